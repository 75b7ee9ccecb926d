"""Following a session as it goes: by what drives it here, or by what others record."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from batonlog.engine.claims import FASTEST_BEAT, Claim, Claims
from batonlog.engine.decide import needs_worker
from batonlog.engine.stream import Feed, Update
from batonlog.events import EventLog, Record
from batonlog.projections.state import State, advance


class Following:
    """Follows the sessions of one engine's log."""

    def __init__(self, log: EventLog, claims: Claims, state: Callable[[str], Awaitable[State]]) -> None:
        self._log = log
        self._claims = claims
        self._state = state
        """Where a session is. Raises UnknownSessionError."""
        self._waits: set[asyncio.Task[None]] = set()

    async def updates(self, session: str, *, after: int) -> AsyncIterator[Update]:
        """Yield records after that version, then live ones, until there is nothing for a worker to do."""
        while True:
            claim = self._claims.get(session)
            found = self._recorded(session, after) if claim is None else self._told(session, claim, after)
            async for update in found:
                if isinstance(update, Record):
                    after = update.version
                yield update
            state = await self._state(session)
            if state.version <= after and not needs_worker(state):
                return

    async def _told(self, session: str, claim: Claim, after: int) -> AsyncIterator[Update]:
        """What whoever drives a session here tells, deltas included."""
        await claim.ready.wait()
        if claim.driver is None:  # held for something else, or let go
            await asyncio.wait([claim.end])
            return
        feed = Feed(self._log, session, after=after)
        feed.attach(claim.driver)
        claim.end.add_done_callback(lambda _: feed.end())
        async for record in feed.records(claim.driver.state.version):
            yield record
        async for update in feed.updates():
            yield update

    async def _recorded(self, session: str, after: int) -> AsyncIterator[Update]:
        """What others record, until the session rests or is driven here."""
        state = State()
        with self._log.watch(session) as alarm:
            while True:
                for record in await self._log.records(session, after=state.version):
                    state = advance(state, record.version, record.event)
                    if record.version > after:
                        yield record
                if state.version == 0:
                    await self._state(session)  # raises UnknownSessionError
                if not needs_worker(state) or session in self._claims:
                    return
                await alarm.wait()

    async def until_rest(
        self, session: str, *, after: int, seconds: float, hear: Callable[[int], None] | None
    ) -> None:
        """Wait until a session rests, so long at the most, or until `stop`; tell of each new version."""

        async def follow() -> None:
            async for update in self.updates(session, after=after):
                if hear is not None and isinstance(update, Record):
                    hear(update.version)
            await asyncio.sleep(FASTEST_BEAT)  # at rest already, and held by somebody all the same

        if self._claims.closed:
            return
        following = asyncio.get_running_loop().create_task(follow())
        self._waits.add(following)
        try:
            await asyncio.wait([following], timeout=max(seconds, FASTEST_BEAT))
            if following.done() and not following.cancelled():
                following.result()
        finally:
            self._waits.discard(following)
            following.cancel()

    def stop(self) -> None:
        """Let nobody wait any longer: the engine is closed."""
        for following in self._waits:
            following.cancel()
