"""A run as it goes: recorded events, and between them the deltas that are not recorded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self, TypeAlias

from batonlog.engine.driver import Driver
from batonlog.engine.models import Delta
from batonlog.events import EventLog, Record
from batonlog.projections import RunResult

Update: TypeAlias = Record | Delta


class Feed:
    """What a driver tells, in order: each delta after the records that it follows.

    The driver never waits for whoever reads.
    """

    def __init__(self, log: EventLog, session: str, *, after: int) -> None:
        self._log = log
        self._session = session
        self._after = after
        self._told: asyncio.Queue[tuple[int, Delta | None] | None] = asyncio.Queue()
        self.driver: Driver | None = None

    def attach(self, driver: Driver) -> None:
        """Listen to a driver from now on."""
        self.driver = driver
        driver.listeners.append(self.hear)

    def hear(self, version: int, delta: Delta | None) -> None:
        """Note that the session has come to that version, or a delta that follows it."""
        self._told.put_nowait((version, delta))

    def end(self) -> None:
        """Say that nothing more will come."""
        self._told.put_nowait(None)

    async def updates(self) -> AsyncIterator[Update]:
        """Yield what comes, until the end."""
        while (told := await self._told.get()) is not None:
            version, delta = told
            async for record in self.records(version):
                yield record
            if delta is not None:
                yield delta
        async for record in self.records(None):
            yield record

    async def records(self, until: int | None) -> AsyncIterator[Record]:
        """Yield the records that were not yielded yet."""
        if until is None or until > self._after:
            for record in await self._log.records(self._session, after=self._after, until=until):
                self._after = record.version
                yield record


class RunStream:
    """A run that is under way. Iterating follows it; leaving off does not stop it.

    One follower: iterate it once. Any number may follow with `Engine.updates`.
    """

    session: str
    run_id: str

    task: "asyncio.Task[RunResult]"
    """Drives the run, whoever follows."""

    def __init__(self, *, session: str, run_id: str, log: EventLog) -> None:
        self.session = session
        self.run_id = run_id
        self._log = log
        self._feed: Feed | None = None
        self._begun = asyncio.Event()
        self._updates: AsyncIterator[Update] | None = None

    async def run(self, begin: Callable[[], Awaitable[RunResult]]) -> RunResult:
        """Begin the run and drive it to its rest."""
        try:
            return await begin()
        finally:
            self._begun.set()
            if self._feed is not None:
                self._feed.end()

    def begin(self, *, after: int) -> None:
        """Follow the session from that version on."""
        self._feed = Feed(self._log, self.session, after=after)
        self._begun.set()

    def hear(self, version: int) -> None:
        """Pass on what somebody else has recorded up to that version."""
        if self._feed is not None:
            self._feed.hear(version, None)

    def follow(self, driver: Driver, *, after: int) -> None:
        """Follow this driver, from that version on."""
        if self._feed is None:
            self._feed = Feed(self._log, self.session, after=after)
        self._feed.attach(driver)  # another one, if the first came second or gave up
        self._begun.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        """Return the next update. Raises what `run` would, if the run could not begin."""
        if self._updates is None:
            await self._begun.wait()
            if self._feed is None:
                await self.task
                raise StopAsyncIteration
            self._updates = self._feed.updates()
        return await anext(self._updates)

    async def result(self) -> RunResult:
        """Wait for the end and return or raise what `run` would."""
        return await asyncio.shield(self.task)
