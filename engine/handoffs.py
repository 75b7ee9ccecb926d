"""Handoffs: tools that pass control."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, overload

from typing_extensions import TypeVar

from batonlog.engine.arguments import Converter
from batonlog.engine.contexts import RunContext, ToolContext
from batonlog.engine.schemas import schema_of
from batonlog.engine.tools import check_tool_name
from batonlog.events import JSON, UsageError
from batonlog.projections import Filter
from batonlog.projections.filters import as_filters

if TYPE_CHECKING:
    from batonlog.engine.agents import Agent

_Ctx_contra = TypeVar("_Ctx_contra", default=object, contravariant=True)
_C = TypeVar("_C")
_Args = TypeVar("_Args")
_R = TypeVar("_R")
_MaybeAsync: TypeAlias = _R | Awaitable[_R]

_PREFIX = "transfer_to_"
_LONGEST = 64
_NOTHING: Mapping[str, JSON] = {
    "type": "object",
    "properties": {},
    "required": [],
    "additionalProperties": False,
}


def wire_name(agent: str) -> str:
    """Return the name of the tool that transfers to an agent: ASCII, at most 64 characters.

    Lower-casing and a space to `_` lose nothing; any other character that has to go adds a
    short stable hash, so that two names never share a tool by accident.
    """
    lowered = agent.lower().replace(" ", "_")
    slug = re.sub(r"[^a-z0-9_]", "", lowered)
    if slug != lowered or len(_PREFIX + slug) > _LONGEST or not slug:
        mark = hashlib.sha256(agent.encode(errors="surrogatepass")).hexdigest()[:8]
        room = _LONGEST - len(_PREFIX) - len(mark) - 1
        slug = f"{slug[:room]}_{mark}" if slug else mark
    return _PREFIX + slug


def _name_of(target: object) -> str:
    from batonlog.engine.agents import Agent

    if isinstance(target, Agent):
        return target.name
    if not isinstance(target, str):
        raise UsageError(f"one hands off to an agent, or to the name of one, not to {target!r:.60}")
    return target


class Handoff(Generic[_Ctx_contra]):
    """A tool that passes control. Made by `handoff()`."""

    def __init__(
        self,
        targets: Sequence["Agent[Any] | str"],
        *,
        input_type: Any = None,
        on_invoke: Callable[..., Any] | None = None,
        on_handoff: Callable[..., Any] | None = None,
        input_filter: Filter[Any] | Sequence[Filter[Any]] | Literal["default"] | None = "default",
        tool_name: str | None = None,
        tool_description: str | None = None,
        acknowledgement: str | None = None,
        keep_untaken: bool = False,
        is_enabled: bool | Callable[..., Any] = True,
        needs_approval: bool | Callable[..., Any] = False,
    ) -> None:
        if not targets:
            raise UsageError("a handoff needs a target: an agent, or the name of one")
        names = [_name_of(target) for target in targets]
        if len(names) > 1 and (on_invoke is None or tool_name is None):
            raise UsageError(
                f"a handoff to {' or '.join(names)} needs on_invoke, which picks one, and a tool_name"
            )
        self.agents: tuple[Agent[Any] | str, ...] = tuple(targets)
        self.targets: tuple[str, ...] = tuple(names)
        self.tool_name = tool_name or wire_name(names[0])
        check_tool_name(self.tool_name)
        self.tool_description = tool_description
        self.input_type = input_type
        self._converter = Converter(input_type)
        self.parameters = (
            schema_of(input_type, strict=True, what=f"handoff {self.tool_name}") if input_type else _NOTHING
        )
        if self.parameters.get("type") != "object":
            raise UsageError(f"handoff {self.tool_name}: input_type must be an object, such as a Struct")
        self.on_invoke = on_invoke
        self.on_handoff = on_handoff
        self.input_filter: Sequence[Filter[Any]] | Literal["default"] | None = (
            input_filter
            if input_filter is None or isinstance(input_filter, str)
            else as_filters(input_filter)
        )
        if isinstance(self.input_filter, str) and self.input_filter != "default":
            raise UsageError(
                f"handoff {self.tool_name}: {input_filter!r} is no filter: give a function of a history"
            )
        self.acknowledgement = acknowledgement
        self.keep_untaken = keep_untaken
        self.is_enabled = is_enabled
        self.needs_approval = needs_approval

    def read(self, arguments: dict[str, JSON]) -> Any:
        """Return what the model gave: a value of the input type, or the arguments as they are.

        Raises BadArgumentsError, in words for the model.
        """
        if self.input_type is None:
            return arguments
        return self._converter.convert(self.tool_name, arguments)

    def given(self, context: ToolContext[Any], value: Any) -> tuple[Any, ...]:
        """Return what callbacks are called with: the value only where an input_type was given."""
        return (context,) if self.input_type is None else (context, value)

    def __repr__(self) -> str:
        return f"Handoff({self.tool_name!r})"


@overload
def handoff(
    *targets: "Agent[_C] | str",
    input_type: type[_Args],
    on_invoke: Callable[[ToolContext[_C], _Args], "_MaybeAsync[Agent[_C] | str]"] | None = None,
    on_handoff: Callable[[ToolContext[_C], _Args], _MaybeAsync[None]] | None = None,
    input_filter: Filter[_C] | Sequence[Filter[_C]] | Literal["default"] | None = "default",
    tool_name: str | None = None,
    tool_description: str | None = None,
    acknowledgement: str | None = None,
    keep_untaken: bool = False,
    is_enabled: bool | Callable[[RunContext[_C]], _MaybeAsync[bool]] = True,
    needs_approval: bool | Callable[[ToolContext[_C], _Args], _MaybeAsync[bool]] = False,
) -> Handoff[_C]: ...
@overload
def handoff(
    *targets: "Agent[_C] | str",
    on_invoke: Callable[[ToolContext[_C]], "_MaybeAsync[Agent[_C] | str]"] | None = None,
    on_handoff: Callable[[ToolContext[_C]], _MaybeAsync[None]] | None = None,
    input_filter: Filter[_C] | Sequence[Filter[_C]] | Literal["default"] | None = "default",
    tool_name: str | None = None,
    tool_description: str | None = None,
    acknowledgement: str | None = None,
    keep_untaken: bool = False,
    is_enabled: bool | Callable[[RunContext[_C]], _MaybeAsync[bool]] = True,
    needs_approval: bool | Callable[[ToolContext[_C]], _MaybeAsync[bool]] = False,
) -> Handoff[_C]: ...
def handoff(*targets: Any, **options: Any) -> Handoff[Any]:
    """Offer a transfer to `targets`. Several need `on_invoke`, which picks one, and a `tool_name`.

    Order: arguments are checked, `on_invoke` picks, `on_handoff` runs, the filter runs on
    what they left in the context, then the switch and the rewrite are appended together.
    `input_filter=None` shows the target everything even if the engine has a default.

    Args:
        targets: agents, or names of registered agents.
        input_type: what the model must give: a Struct or any object that msgspec understands.
        on_invoke: picks the target; a computation that may run again.
        on_handoff: an effect, recorded before it runs.
        input_filter: rewrites what the target is shown; a sequence applies first to last.
        tool_name: the tool's name; by default from the target's name.
        tool_description: what the model is told about it.
        acknowledgement: what the call is answered with.
        keep_untaken: show the target the transfers that were not taken, with their answers.
        is_enabled: whether it is offered; asked before every model call.
        needs_approval: whether a person must agree first.

    Raises UsageError for a handoff that could not work.
    """
    return Handoff(targets, **options)
