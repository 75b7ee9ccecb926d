"""The concrete part of the port: a backend that writes only what it must keeps the contract."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import pytest

from batonlog.events import Appended, Event, EventLog, Head, Lease, MemoryLog, Record
from batonlog.events.testing import EventLogConformance


class BareLog(EventLog):
    """What is marked concrete is inherited; all else is asked of a log in memory."""

    def __init__(self) -> None:
        self.inner = MemoryLog()

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
        return await self.inner.append(
            session, events, expected=expected, ids=ids, lease=lease, release=release
        )

    def read(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[Record]:
        return self.inner.read(session, after=after, until=until)

    def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Record]:
        return self.inner.read_all(after=after, limit=limit)

    def heads(self) -> AsyncIterator[Head]:
        return self.inner.heads()

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        return await self.inner.fork(session, at=at, into=into)

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        return await self.inner.acquire(session, owner=owner, seconds=seconds)

    async def release(self, lease: Lease) -> None:
        await self.inner.release(lease)

    def expired(self) -> AsyncIterator[str]:
        return self.inner.expired()

    async def close(self) -> None:
        await self.inner.close()


class TestBareLog(EventLogConformance):
    @pytest.fixture(autouse=True)
    def _at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("batonlog.events.log.POLL", 0)

    def open(self) -> AbstractAsyncContextManager[EventLog]:
        return BareLog()
