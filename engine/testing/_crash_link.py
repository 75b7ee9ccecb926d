"""What a worker in a process of its own and its client say to each other: pickled messages over a socket."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from socket import socket
from typing import Any, Self, TypeAlias

from msgspec import Struct

from batonlog.engine.models import Delta, Issuer, ModelResponse
from batonlog.engine.testing._crash_world import Answer

_LENGTH = 8
"""Bytes of a message's length."""


class Raised(Struct, frozen=True):
    """What was raised, so that it can be raised elsewhere: pickle calls constructors that take more than args."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    fields: Mapping[str, Any]
    cause: "Raised | None"

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return what stands for an error: itself where it can be pickled, else its name and text."""
        cause = cls.of(error.__cause__) if error.__cause__ is not None else None
        raised = cls(type(error), error.args, vars(error), cause)
        try:
            pickle.loads(pickle.dumps(raised)).error()
        except Exception:
            return cls(RuntimeError, (f"{type(error).__name__}: {error}",), {}, cause)
        return raised

    def error(self) -> BaseException:
        """Return the error."""
        error = self.kind.__new__(self.kind, *self.args)
        error.args = self.args
        vars(error).update(self.fields)
        error.__cause__ = self.cause.error() if self.cause is not None else None
        return error


class Asked(Struct, frozen=True):
    """The worker asks for the answer to a request that it has recorded."""

    number: int
    session: str
    version: int


class Opened(Struct, frozen=True):
    """The worker asks for a new conversation with a model of an agent."""

    number: int
    agent: str
    issuer: Issuer


class Answered(Struct, frozen=True):
    """The client's answer to one of these."""

    number: int
    pieces: Sequence[Delta | ModelResponse]
    conversation: str
    raised: Raised | None

    @classmethod
    def of(cls, number: int, answer: Answer) -> Self:
        """Return what a model has come to."""
        return cls(number, answer.pieces, "", None if answer.error is None else Raised.of(answer.error))

    @property
    def answer(self) -> Answer:
        """What the model has come to."""
        error = self.raised.error() if self.raised is not None else None
        assert error is None or isinstance(error, Exception)
        return Answer(self.pieces, error)


class Reached(Struct, frozen=True):
    """The worker has recorded a session up to this version."""

    version: int


class Ended(Struct, frozen=True):
    """The worker has done what it was told to: what came of it, or what it raised."""

    result: Any
    raised: Raised | None
    points: int
    """How many places to die at it has passed."""


class Stop(Struct, frozen=True):
    """The worker is told to stop at the next append."""


Message: TypeAlias = Asked | Opened | Answered | Reached | Ended | Stop


class Link:
    """One end of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket) -> Self:
        """Take over one end of a pair of sockets."""
        return cls(*await asyncio.open_connection(sock=end))

    def tell(self, message: Message) -> None:
        """Send something; to nobody, if the other is dead."""
        data = pickle.dumps(message)
        with suppress(OSError):
            self._writer.write(len(data).to_bytes(_LENGTH, "big") + data)

    async def hear(self) -> Message | None:
        """Return what the other says; None when he is dead."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
            message: Message = pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    async def close(self) -> None:
        """Send what was told, and hang up."""
        with suppress(OSError):
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
