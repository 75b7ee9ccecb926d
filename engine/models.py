"""The port to a provider, and what goes through it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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

    Three more are used where they are there: `endpoint`, a text that tells one provider from
    another; `chain`, for one that keeps what it was sent, `"previous_response_id"` or
    `"conversation"`; and for the latter `async open_conversation() -> str`, which opens an empty
    conversation and returns its id. It may be called again after a conflict or a crash, and an
    empty conversation that is never used must do no harm.

    `async count_tokens(request) -> int | None` is used where it is there and a budget for compaction
    is set: how many tokens the request has, or None if it does not know.
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


ChainKind: TypeAlias = Literal["previous_response_id", "conversation"]


def chain_of(model: Model) -> ChainKind | None:
    """How the provider keeps what it was sent, so that the next request may continue it; None if it does not."""
    match getattr(model, "chain", None):
        case "previous_response_id":
            return "previous_response_id"
        case "conversation":
            return "conversation"
        case _:
            return None


async def open_conversation(model: Model) -> str:
    """Have the provider open an empty conversation, and return its id. Raises UsageError if the model cannot."""
    opens: Callable[[], Awaitable[object]] | None = getattr(model, "open_conversation", None)
    if opens is None:
        raise UsageError(
            f"model {model.name} has chain='conversation' and no open_conversation: "
            f"give it an async method that returns the id of a new conversation"
        )
    conversation = await opens()
    if not isinstance(conversation, str) or not conversation:
        raise UsageError(f"open_conversation of model {model.name} returned {conversation!r}, which is no id")
    return conversation


class ChainLostError(Exception):
    """The provider does not know the response or conversation that a request continues.

    Raised by adapters, and only for a request that continues something: it is made again in full.
    """


class TooLongError(Exception):
    """What a request shows is longer than the model takes. Raised by adapters; a compaction may help."""


def check_model(model: object) -> Model:
    """Refuse what cannot be a model. Raises UsageError."""
    if not hasattr(model, "respond") or not isinstance(getattr(model, "name", None), str):
        raise UsageError(
            f"{model!r} is no model: it needs a name and an async generator method respond(request)"
        )
    return model  # type: ignore[return-value]
