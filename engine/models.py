"""The port to a provider, what goes through it, and what is done when it does not answer."""

import math
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
    empty conversation that is never used must do no harm. If the provider does not answer it, the
    request goes out without one.

    `async count_tokens(request) -> int | None` is used where it is there and a budget for compaction
    is set: how many tokens the request has, or None if it does not know.
    """

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        """Yield deltas if there are any, then one ModelResponse. An async generator function does it.

        What may go by itself is raised as UnavailableError, or as a ConnectionError or TimeoutError:
        then the engine asks again, or another model. Anything else fails the run.
        """
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


class UnavailableError(Exception):
    """The provider does not answer now. Raised by adapters, from the error that says why.

    Args:
        message: what the provider said.
        after: seconds to wait before it is asked again, as it said; None if it did not say.
        again: whether the same model may be asked again. Without that only another one may.
    """

    def __init__(self, message: str = "", *, after: float | None = None, again: bool = True) -> None:
        super().__init__(message)
        self.after = after
        self.again = again


def cause_of(error: Exception) -> Exception:
    """Return what an adapter found: the error behind an UnavailableError, or else the error itself."""
    cause = error.__cause__ if isinstance(error, UnavailableError) else None
    return cause if isinstance(cause, Exception) else error


class Retries(Struct, frozen=True, kw_only=True):
    """How often, and after how long, a model that does not answer is asked again.

    Each attempt is an event, and so is the wait before it. The wait doubles from one attempt to the
    next, and up to half of it, at random, is left out, so that many sessions do not come back all
    at once. It is never shorter than what the provider asked for.

    Raises UsageError for a value that cannot be.
    """

    attempts: int = 3
    """Calls of one model for one turn, the first included; 1 never asks again."""
    first: float = 0.5
    """Seconds before the second call, at most; twice as long before each further one."""
    longest: float = 8.0
    """Seconds beyond which the wait does not grow."""
    longest_asked: float = 60.0
    """Seconds that a provider may ask for. If it asks for more, it is not asked again."""

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError(
                f"Retries(attempts={self.attempts!r}): give a number of calls, 1 to never ask again"
            )
        for name in ("first", "longest", "longest_asked"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise UsageError(f"Retries({name}={value!r}): give a number of seconds, 0 or more")

    def delay(self, tries: int, error: Exception, *, chance: float) -> float | None:
        """Return the seconds before a model is asked again; None if it is not.

        Args:
            tries: calls of it for this turn that failed before this one.
            error: what it failed with now.
            chance: from 0 to 1, the jitter.
        """
        if not is_unavailable(error) or tries + 1 >= self.attempts:
            return None
        asked = 0.0
        if isinstance(error, UnavailableError):
            asked = error.after if error.after is not None and error.after > 0 else 0.0
            if not error.again or asked > self.longest_asked:
                return None
        # "Equal jitter" of https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/.
        # Its "full jitter" spreads more, but of only a few attempts it may spend all within moments;
        # the openai client takes off a quarter at most, which leaves those that failed together close.
        backoff = min(self.first * 2.0 ** min(tries, _DOUBLINGS), self.longest)
        return max(asked, backoff * (1 + chance) / 2)


_DOUBLINGS = 60
"""As many as a float may take; by then the longest wait is long reached."""

DEFAULT_RETRIES = Retries()


def is_unavailable(error: Exception) -> bool:
    """Whether an error says that a provider does not answer now, or not at all, and another might."""
    return isinstance(error, UnavailableError | ConnectionError | TimeoutError)


def check_model(model: object) -> Model:
    """Refuse what cannot be a model. Raises UsageError."""
    if not hasattr(model, "respond") or not isinstance(getattr(model, "name", None), str):
        raise UsageError(
            f"{model!r} is no model: it needs a name and an async generator method respond(request)"
        )
    return model  # type: ignore[return-value]
