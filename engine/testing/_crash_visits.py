"""A SQLite log that is open only while something is done with it.

A process that holds a SQLite file open must not be forked: its child would take the locks for its
own (https://www.sqlite.org/howtocorrupt.html, 2.6). So whoever forks visits the file, each time in
a thread that has gone when the answer is there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from batonlog.events import Event, EventLog, Record, SessionForked, SQLiteLog
from batonlog.events.log import Alarm, Appended, Head, Lease

_T = TypeVar("_T")


class VisitedLog(EventLog):
    """The log at the path. Every method blocks until it is done, and leaves the file closed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def visit(self, work: Callable[[SQLiteLog], Awaitable[_T]]) -> _T:
        """Open the file, do something, close it, and return what came of it."""

        async def visited() -> _T:
            async with SQLiteLog(self.path) as log:
                return await work(log)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(visited())).result()

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
        return self.visit(
            lambda log: log.append(session, events, expected=expected, ids=ids, lease=lease, release=release)
        )

    async def records(self, session: str, *, after: int = 0, until: int | None = None) -> tuple[Record, ...]:
        return self.visit(lambda log: log.records(session, after=after, until=until))

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[Record]:
        for record in self.visit(lambda log: _all(log.read(session, after=after, until=until))):
            yield record

    async def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Record]:
        for record in self.visit(lambda log: _all(log.read_all(after=after, limit=limit))):
            yield record

    async def _parent(self, session: str) -> SessionForked | None:
        return self.visit(lambda log: log._parent(session))

    async def heads(self) -> AsyncIterator[Head]:
        for head in self.visit(lambda log: _all(log.heads())):
            yield head

    async def head(self, session: str) -> Head | None:
        return self.visit(lambda log: log.head(session))

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        return self.visit(lambda log: log.fork(session, at=at, into=into))

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        return self.visit(lambda log: log.acquire(session, owner=owner, seconds=seconds))

    async def release(self, lease: Lease) -> None:
        self.visit(lambda log: log.release(lease))

    async def expired(self) -> AsyncIterator[str]:
        for session in self.visit(lambda log: _all(log.expired())):
            yield session

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        """As `EventLog.watch`: it looks from time to time."""
        return super().watch(session)

    async def close(self) -> None:
        """Nothing is open."""

    async def expire(self, owner: str) -> None:
        """Have all leases of a worker that is dead run out now."""

        async def expired(log: SQLiteLog) -> None:
            held = await log._read(lambda db: db.execute(_HELD, (owner,)).fetchall())
            for (session,) in held:
                await log.acquire(session, owner=owner, seconds=0)

        self.visit(expired)


_HELD = "SELECT session FROM lease WHERE owner = ? AND until > 0"


async def _all(found: AsyncIterator[_T]) -> list[_T]:
    return [one async for one in found]
