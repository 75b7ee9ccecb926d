"""The port to a store: what every log guarantees.

1. `append` is atomic, at exactly the version it names, and idempotent.
2. Positions follow commit order: who reads on from one misses nothing.
3. Nothing that was stored is changed or removed (but for an erasure, which says so).

Correctness between workers is the version check. A lease only keeps two workers from doing
the same work: an append without a lease is never fenced.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self
from uuid import UUID

from batonlog.events.errors import DamagedError, UsageError
from batonlog.events.facts import Event, SessionForked
from batonlog.events.record import Record

POLL = 0.1
"""Seconds between two looks at a store that cannot tell when it changes."""


class Head(NamedTuple):
    """Where a session stands."""

    session: str
    version: int
    hash: bytes


class Appended(NamedTuple):
    """What an append came to."""

    version: int
    """Of its last event."""
    position: int
    """Of its last event."""
    duplicate: bool
    """Whether these very events stood there already."""


class Lease(NamedTuple):
    """Who may drive a session for now."""

    session: str
    owner: str
    epoch: int
    """Rises with each new owner."""
    until: datetime
    """By the store's clock."""


class Alarm(Protocol):
    """What `EventLog.watch` gives: something to wait for."""

    async def wait(self) -> None:
        """Return when something may have been appended since the last call, or it was rung for."""

    def after(self, version: int) -> bool:
        """Whether there may be something after that version."""
        ...

    def ring(self) -> None:
        """Wake up whoever waits."""


class EventLog(Protocol):
    """The store. A backend subclasses it, writes what is not marked concrete, runs EventLogConformance."""

    async def append(
        self,
        session: str,
        events: Sequence[Event],
        *,
        expected: int,
        ids: Sequence[UUID] | None = None,
        lease: Lease | None = None,
        release: bool = False,
    ) -> Appended:
        """Store all events or none, at exactly version `expected`; the same `ids` again is a duplicate.

        `expected` 0 means that the session must not exist. `lease` fences the append and is
        renewed by it; `release` gives it back in the same transaction.

        Raises ConflictError if the session is elsewhere, FencedError if the lease was lost
        (a duplicate is recognised first), UsageError for events that cannot be stored, and
        LogError if the store fails; then the outcome is unknown, and the same batch with the
        same ids may be repeated until it is answered.
        """
        ...

    def read(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[Record]:
        """Yield what is stored under this name alone, in version order. Raises DamagedError."""
        ...

    def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Record]:
        """Yield the whole log in commit order; `after` is a position."""
        ...

    def heads(self) -> AsyncIterator[Head]:
        """Yield the head of every session, by name."""
        ...

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        """Start `into` as a continuation of `session` at that version; copies no bytes.

        Raises UnknownSessionError, UsageError for a version that is not there, ConflictError
        if `into` exists.
        """
        ...

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        """Take or renew the lease; None while another worker holds it.

        The epoch rises with each new owner, and when one that was given back is taken again: a
        lease that ran out and that nobody took is renewed. One of no seconds has run out at once,
        and stays so with the appends under it: that is how a worker is called.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back; nothing happens if it was lost."""
        ...

    def expired(self) -> AsyncIterator[str]:
        """Yield the sessions whose lease ran out: what `recover` looks at."""
        ...

    async def close(self) -> None:
        """Release files and threads. Closing twice does nothing."""
        ...

    # concrete: inherited, and overridden where the store can do better

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        """Get woken up when a session, or with None anything, may have changed.

        A hint: it may come for nothing, and is never the only way to learn of an append.
        """
        return _polling()

    async def follow(self, session: str, *, after: int = 0) -> AsyncIterator[Record]:
        """Yield the past, then what is appended, for ever."""
        with self.watch(session) as alarm:
            while True:
                for record in await self.records(session, after=after):
                    yield record
                    after = record.version
                await alarm.wait()

    async def follow_all(self, *, after: int = 0) -> AsyncIterator[Record]:
        """The same for the whole log; `after` is a position."""
        with self.watch(None) as alarm:
            while True:
                async for record in self.read_all(after=after):
                    yield record
                    after = record.position
                await alarm.wait()

    async def head(self, session: str) -> Head | None:
        """Return the head, or None if there is no such session."""
        async for head in self.heads():
            if head.session == session:
                return head
        return None

    async def records(self, session: str, *, after: int = 0, until: int | None = None) -> tuple[Record, ...]:
        """Return a session as it is, what a fork inherits included. The one way to get records for a fold.

        Empty if there is no such session.
        """
        after = max(after, 0)
        own = [record async for record in self.read(session, after=after, until=until)]
        if own and own[0].version == after + 1:
            return tuple(own)
        parent = await self._parent(session)
        if own and (parent is None or (after < parent.at != own[0].version - 1)):
            raise DamagedError(
                f"{session} begins at version {own[0].version}, and what it continues is not there; nothing was "
                f"deleted. Restore a copy, or read what is stored under its own name",
                session=session,
                version=own[0].version,
            )
        if parent is None or after >= parent.at:
            return tuple(own)
        inherited = parent.at if until is None else min(parent.at, until)
        past = await self.records(parent.parent, after=after, until=inherited)
        if len(past) < inherited - after:
            missing = after + len(past) + 1
            raise DamagedError(
                f"{session} continues {parent.parent} at version {parent.at}, whose record {missing} is not there; "
                f"nothing was deleted. Restore a copy, or read what is stored under its own name",
                session=session,
                version=missing,
            )
        return (*past, *own)

    async def _parent(self, session: str) -> SessionForked | None:
        """What a session continues: a fork's own records begin with it."""
        async for record in self.read(session):
            return record.event if isinstance(record.event, SessionForked) else None
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Poll:
    """An alarm that goes off all the time: for a store that cannot tell when it changes."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    async def wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL):
                await self._rung.wait()
        self._rung.clear()

    def after(self, version: int) -> bool:
        return True

    def ring(self) -> None:
        self._rung.set()


@contextmanager
def _polling() -> Iterator[Alarm]:
    yield _Poll()


def check_name(session: str) -> None:
    """Refuse what is no name of a session. Child sessions have a `/` in theirs."""
    given: object = session  # whoever does not check types is told as well
    if not isinstance(given, str) or not 1 <= len(given) <= 500:
        raise UsageError(f"a session's name is a text of 1 to 500 characters, not {session!r:.60}")
    if not session.isprintable() or session.strip() != session:
        raise UsageError(
            f"{session!r:.60} is no name of a session: no control characters, no blanks at the ends"
        )


def check_expected(session: str, expected: int) -> None:
    """Refuse what is no version."""
    if expected < 0:
        raise UsageError(
            f"append to {session} needs expected=, the version at which the session stands (0 starts a new "
            f"one); {expected} is none"
        )


def check_lease(session: str, lease: Lease | None) -> None:
    """Refuse the lease of another session."""
    if lease is not None and lease.session != session:
        raise UsageError(f"this is the lease of {lease.session}, not of {session}", session=session)


def open_log(url: str | Path, *, read_only: bool = False) -> EventLog:
    """Pick a log by URL: `support.db`, `memory:`, `postgresql://…`.

    Nothing is opened before the first use. Raises UsageError for a scheme that it does not know.
    """
    from batonlog.events.memory import MemoryLog
    from batonlog.events.sqlite import SQLiteLog

    if isinstance(url, Path):
        return SQLiteLog(url, read_only=read_only)
    scheme, colon, rest = url.partition(":")
    if url in ("memory:", ":memory:"):
        return MemoryLog()
    if colon and rest.startswith("//") and scheme == "sqlite":
        return SQLiteLog(rest.removeprefix("//"), read_only=read_only)
    if colon and rest.startswith("//"):
        raise UsageError(f"no log for {scheme}://: use a path such as support.db, or memory:")
    if not url:
        raise UsageError("a log needs a path such as support.db, or memory:")
    return SQLiteLog(url, read_only=read_only)
