"""The port to a provider, and what goes through it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Raw, Struct

from batonlog.events import JSON, Usage, UsageError
from batonlog.events.values import dump
from batonlog.projections import ModelRequest


class ModelSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling and provider options; what is None is not sent."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    tool_choice: str | None = None
    """`auto`, `required`, `none`, or the name of a tool."""
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, JSON] | None = None
    """Fields of the provider's own, sent as they are."""

    def over(self, other: "ModelSettings") -> "ModelSettings":
        """Return these settings, and the other's where these say nothing."""
        return ModelSettings(
            **{
                name: mine if (mine := getattr(self, name)) is not None else getattr(other, name)
                for name in self.__struct_fields__
            }
        )


NO_SETTINGS = ModelSettings()


class Delta(Struct, frozen=True, kw_only=True, gc=False):
    """A piece of an answer on its way. Never recorded; only seen in the process that runs it."""

    kind: Literal["text", "reasoning", "arguments"]
    text: str
    agent: str
    turn: int


class ModelResponse:
    """What a model answered: Responses output items as they came."""

    __slots__ = ("id", "output", "status", "usage")

    def __init__(
        self,
        output: Sequence[Mapping[str, JSON] | Raw],
        *,
        id: str | None = None,
        usage: Usage | None = None,
        status: Literal["completed", "incomplete"] = "completed",
    ) -> None:
        if isinstance(output, str | bytes | Mapping):
            raise UsageError(f"a ModelResponse takes Responses items in a list, not {type(output).__name__}")
        self.output: tuple[Raw, ...] = tuple(map(_held, output))
        """The items, as their bytes."""
        self.id = id
        self.usage = usage if usage is not None else Usage(requests=1)
        self.status = status


def _held(item: Mapping[str, JSON] | Raw) -> Raw:
    if type(item) is Raw:
        return item
    if not isinstance(item, Mapping):
        raise UsageError(f"a ModelResponse takes Responses items as dicts, not {type(item).__name__}")
    return Raw(dump(dict(item)))


class Model(Protocol):
    """The port to a provider: two attributes of any object.

    Two more are used where they are there: `endpoint`, a text that tells one provider from
    another, and `chain`, `"previous_response_id"` for one that keeps what it was sent.
    """

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        """Yield deltas if there are any, then one ModelResponse. An async generator function does it."""
        ...


Issuer: TypeAlias = tuple[str, str]


def issuer_of(model: Model) -> Issuer:
    """Return the endpoint and model that make what this model answers."""
    return getattr(model, "endpoint", type(model).__name__), model.name


def keeps_history(model: Model) -> bool:
    """Whether the provider is asked to keep responses, so that the next request may continue one."""
    return getattr(model, "chain", None) == "previous_response_id"


class ChainLostError(Exception):
    """The provider does not know the response that a request continues. Raised by adapters."""


def check_model(model: object) -> Model:
    """Refuse what cannot be a model. Raises UsageError."""
    if not hasattr(model, "respond") or not isinstance(getattr(model, "name", None), str):
        raise UsageError(
            f"{model!r} is no model: it needs a name and an async generator method respond(request)"
        )
    return model  # type: ignore[return-value]
