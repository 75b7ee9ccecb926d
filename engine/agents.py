"""Agents: what a model is told and may do."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeAlias

from typing_extensions import TypeVar

from batonlog.engine.contexts import RunContext
from batonlog.engine.handoffs import Handoff
from batonlog.engine.models import NO_SETTINGS, Model, ModelSettings, check_model
from batonlog.engine.tools import Tool, tool
from batonlog.events import UsageError

_Ctx_contra = TypeVar("_Ctx_contra", default=object, contravariant=True)
_R = TypeVar("_R")
_MaybeAsync: TypeAlias = _R | Awaitable[_R]


class Agent(Generic[_Ctx_contra]):
    """What a model is told and may do. Frozen; the name is its identity.

    Args:
        name: unique among the agents of an engine.
        instructions: the system text, or a function that makes it before every model call.
        tools: tools, or plain functions, which become tools.
        handoffs: to whom it may pass control: agents, handoffs, or names of registered agents;
            a name is how two agents refer to each other.
        handoff_description: what others are told about it.
        model: its own model, or the name of one; by default the engine's.
        model_settings: its own settings; what it leaves open is the engine's.

    Raises UsageError for what could not work.
    """

    def __init__(
        self,
        name: str,
        *,
        instructions: str | Callable[[RunContext[_Ctx_contra]], _MaybeAsync[str]] = "",
        tools: Sequence[Tool[_Ctx_contra] | Callable[..., object]] = (),
        handoffs: "Sequence[Agent[_Ctx_contra] | Handoff[_Ctx_contra] | str]" = (),
        handoff_description: str = "",
        model: Model | str | None = None,
        model_settings: ModelSettings = NO_SETTINGS,
        output_type: object = str,
    ) -> None:
        if not name or not name.isprintable() or len(name) > 200:
            raise UsageError(f"{name!r:.60} is no name of an agent: use 1 to 200 printable characters")
        if output_type is not str:
            raise UsageError(
                f"agent {name}: answers are text; an output_type other than str is not there yet"
            )
        if model is not None and not isinstance(model, str):
            check_model(model)
        self.name = name
        self.instructions = instructions
        self.tools: tuple[Tool[Any], ...] = tuple(
            one if isinstance(one, Tool) else tool(one) for one in tools
        )
        self.handoffs: tuple[Handoff[Any], ...] = tuple(
            one if isinstance(one, Handoff) else Handoff([one]) for one in handoffs
        )
        self.handoff_description = handoff_description
        self.model = model
        self.model_settings = model_settings
        conditions = [one.is_enabled for one in self.tools] + [one.is_enabled for one in self.handoffs]
        self.callables: tuple[Callable[..., Any], ...] = tuple(filter(callable, (instructions, *conditions)))
        """What decides at every turn what it is told and offered."""

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"
