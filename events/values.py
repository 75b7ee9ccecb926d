"""The small values that events are made of: refs, limits, usage, and foreign JSON.

Foreign JSON (a provider's items, a tool's output) is held as the raw bytes that were
stored, so that fields nobody has heard of survive, and is given out as fresh data.
"""

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec
from msgspec import Raw, Struct

from batonlog.events.errors import UsageError

JSON: TypeAlias = Any
"""A parsed JSON value: the one place where Any is allowed."""

# How an event's field of foreign JSON is annotated. The type checker sees what the field
# gives out; msgspec sees Raw and leaves the bytes alone (see facts.py).
if TYPE_CHECKING:
    Foreign: TypeAlias = Any
    ForeignObject: TypeAlias = dict[str, Any]
    Foreigns: TypeAlias = tuple[Any, ...]
else:
    Foreign = Raw
    ForeignObject = Raw
    Foreigns = tuple[Raw, ...]

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.decode


def dump(value: object) -> bytes:
    """Encode any JSON value; lone surrogates become JSON escapes, so that any string can be stored.

    Raises TypeError for what JSON cannot hold.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        # msgspec writes UTF-8, which has no lone surrogates; the standard library writes escapes.
        return json.dumps(plain(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()


def load(data: bytes | Raw) -> JSON:
    """Decode JSON into fresh data; the inverse of `dump`."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        # msgspec refuses escapes of lone surrogates; the standard library gives them back.
        return json.loads(bytes(data))


def plain(value: object) -> JSON:
    """Return a value as dicts, lists and scalars, fresh and with nothing raw in it."""
    match value:
        case Raw():
            return load(value)
        case dict():
            return {_key(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case float() if not isfinite(value):
            return None  # as msgspec writes it: JSON has no such number
        case str() | int() | float() | bool() | None:
            return value
        case _:
            return msgspec.to_builtins(value, enc_hook=_refuse)


def _key(key: object) -> str:
    if isinstance(key, (str, int, float)) and not isinstance(key, bool):
        return str(key)
    raise TypeError("the keys of a JSON object are texts")


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not a JSON value")


class Ref(Struct, frozen=True, order=True, array_like=True, gc=False):
    """Where an item stands: the version of its event and its place in it. Also the key of a call."""

    version: int
    index: int

    def __str__(self) -> str:
        """Return it as text, `"7.1"`: for URLs, the command line and JSON."""
        return f"{self.version}.{self.index}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `"7.1"` back. Raises UsageError for anything else."""
        version, dot, index = text.partition(".")
        if not (dot and _is_number(version) and _is_number(index)):
            raise UsageError(f"{text!r} is no ref: write version.index, as in 7.1")
        return cls(int(version), int(index))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


class Limits(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=False):
    """How far one run may go before it pauses. None is no limit."""

    turns: int | None = 10
    """Model calls."""
    tokens: int | None = None
    """Tokens of all model calls, in and out."""
    seconds: float | None = None
    """Wall-clock time since the run was started or last resumed."""
    handoffs: int | None = 20
    """Switches of the agent."""
    ping_pong: int | None = 4
    """Handoffs back to an agent that held control before, with no tool result and no input in between.

    The run does not pause then: the transfer is refused, and the agent told to go on itself.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"Limits({name}={value}): a limit is at least 0; None is no limit")


class Usage(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Tokens of one or more model calls."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    """Those of the input that the provider had cached."""
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of the output that were spent on reasoning."""
    total_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
        )
