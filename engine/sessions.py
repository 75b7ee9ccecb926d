"""The sessions that this process drives: claimed, begun, joined, and let go.

Within the process a session is claimed before anything is awaited, so that two callers never
drive it at once; between processes the lease does that. Correctness rests on neither: an
append that comes second conflicts.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from itertools import count
from typing import Any
from uuid import UUID

from batonlog.engine.claims import FASTEST_BEAT, Claim, Claims, Held, check_free, check_settled
from batonlog.engine.control import Control
from batonlog.engine.decide import needs_worker, superseding, waits_on, wants_worker
from batonlog.engine.draft import Draft
from batonlog.engine.driver import Driver, check_known
from batonlog.engine.errors import RunFailedError, SessionBusyError
from batonlog.engine.intend import Intentions
from batonlog.engine.models import ModelSettings
from batonlog.engine.rewrites import Rewrites
from batonlog.engine.setup import Setup
from batonlog.engine.storing import store
from batonlog.engine.stream import Feed, RunStream, Update
from batonlog.engine.takers import Finder, next_key, run_with, taker_of
from batonlog.events import (
    ConflictError,
    Event,
    EventLog,
    FencedError,
    HistoryRewritten,
    Limits,
    Record,
    RunResumed,
    RunStarted,
    UnknownSessionError,
    UsageError,
)
from batonlog.events.lifecycle import ASKING, CALLED, IDLE, RUNNING, STOPPED
from batonlog.projections import Filter, RunResult
from batonlog.projections.items import Item
from batonlog.projections.result import result_of
from batonlog.projections.state import State, advance, run_state

_TRIES = 20
"""How often an edit is computed again because somebody appended meanwhile."""

_REMEMBERED = 64
"""How many sessions that are at rest are kept folded."""


class Job:
    """What one caller wants of a session: the context, settings and stream that go with it."""

    __slots__ = ("context", "found", "limits", "settings", "stream")

    def __init__(
        self,
        *,
        context: Any = None,
        limits: Limits | None = None,
        settings: ModelSettings | None = None,
        stream: RunStream | None = None,
        found: bool = False,
    ) -> None:
        self.context = context
        self.limits = limits
        self.settings = settings
        self.stream = stream
        self.found = found
        """Nobody has asked for this very run to go on: taken up is what somebody has spoken to, or a
        worker has left. After a limit or a failure what was said since begins a new run."""


class Sessions:
    """Drives sessions for one engine."""

    def __init__(
        self,
        log: EventLog,
        setup: Setup,
        *,
        owner: str,
        new_id: Callable[[], UUID],
        clock: Callable[[], datetime],
        limits: Limits,
        context_for: Callable[[str], Any] | None,
        lease_seconds: float,
        next_agent: str = "active",
        busy: str = "refuse",
    ) -> None:
        self.log = log
        self.owner = owner
        self.control = Control(log, new_id)
        self._busy = busy
        self._setup = setup
        self._new_id = new_id
        self._clock = clock
        self._limits = limits
        self._context_for = context_for
        self._next_agent = next_agent
        self._claims = Claims(log, owner=owner, seconds=lease_seconds, read=self.read)
        self._recent: OrderedDict[str, State] = OrderedDict()
        """States of sessions that were driven here: they need not be folded again from the start."""
        self._following: set[asyncio.Task[None]] = set()
        """Waits for what other workers drive."""

    @property
    def lease_seconds(self) -> float:
        """How long a lease lasts."""
        return self._claims.seconds

    @property
    def closed(self) -> bool:
        """Whether nothing is begun any more."""
        return self._claims.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._claims.closed = closed

    # -- beginning

    async def start(
        self, session: str, *, run_id: str, keyed: bool, agent: str | None, items: list[Item], job: Job
    ) -> RunResult:
        """Start a run, or return what came of the run with this key."""
        while True:
            if keyed and (taken := run_with(await self.read(session), run_id)) is not None:
                return await self._outcome(session, taken, job)
            try:
                async with self._claims.hold(session, key=run_id if keyed else None) as held:
                    if held.lease is None:  # it was let go meanwhile, or holds a run with this key
                        continue
                    state = held.state = await self.read(session)
                    if keyed and run_with(state, run_id) is not None:
                        continue
                    check_known(session, state)
                    check_free(session, state)
                    first = self._started(state, run_id, keyed, agent, items, job)
                    try:
                        return await self._drive(held, state, first, job)
                    except _BegunError:
                        self._recent.pop(session, None)
            except SessionBusyError:
                if self._busy == "refuse":
                    raise
                return await self._get_in_line(session, run_id if keyed else None, items, job)

    async def _get_in_line(self, session: str, key: str | None, items: list[Item], job: Job) -> RunResult:
        """Add to the run that is open, or leave it to the next one; return what comes of it."""
        queue = self._busy == "queue"
        said = await self.control.send(session, items, "user", queue=queue, key=key)
        if job.stream is not None:
            job.stream.begin(after=said.version)
        if said.goes_to == "turn":
            job.limits = job.settings = None  # those of the run that is open stand
        return await self._outcome(session, taker_of(said.version, said.goes_to), job)

    def _started(
        self, state: State, run_id: str, keyed: bool, agent: str | None, items: list[Item], job: Job
    ) -> list[Event]:
        name = agent or self._next(state)
        # Without its agent or a model a run does not begin at all. Nor without a fallback that it was
        # promised: a bad moment is no time to find out.
        self._setup.check_models(self._setup.registry[name])
        return [
            *superseding(state),
            RunStarted(
                run_id=run_id,
                agent=name,
                input=tuple(item.held for item in items),
                limits=job.limits if job.limits is not None else self._limits,
                key=run_id if keyed else None,
            ),
        ]

    def _next(self, state: State) -> str:
        """Who gets the next user message."""
        first = self._setup.registry.first or ""
        if self._next_agent == "entry":
            return first
        active = self._setup.registry.acting(state.agent).name if state.agent else first
        if self._next_agent == "source" and state.run is not None:
            return self._setup.registry.acting(state.run.givers.get(active, active)).name
        return active

    async def _outcome(self, session: str, find: Finder, job: Job) -> RunResult:
        """Wait until a run rests, and return what came of it; where nobody drives it, do so.

        Of one that has not begun, because another waits for somebody, returns what that waits for.
        """
        failure: Exception | None = None
        job.found = True
        while True:
            state = await self.state(session)
            started = find(state)
            later = [at for _, _, at in state.runs if started is not None and at > started]
            if later:
                before = run_state(await self.log.records(session), at=min(later) - 1)
                return result_of(before, session)
            at_rest = state.phase in (IDLE, STOPPED)
            if at_rest and (started is not None or self._resumption(session, state, job) is None):
                return self._ended(state, session, failure)
            try:
                await self.resume(session, job)
            except SessionBusyError:  # another worker has it
                await self._until_rest(session, state.version, job.stream)
            except RunFailedError as error:
                failure = error.__cause__ if isinstance(error.__cause__, Exception) else None

    async def _until_rest(self, session: str, after: int, stream: RunStream | None) -> None:
        """Wait until a session rests, or whoever drives it may have died."""

        async def follow() -> None:
            async for update in self.updates(session, after=after):
                if stream is not None and isinstance(update, Record):
                    stream.hear(update.version)
            await asyncio.sleep(FASTEST_BEAT)  # at rest already, and held by somebody all the same

        if self.closed:
            return  # looking again says so
        following = asyncio.get_running_loop().create_task(follow())
        self._following.add(following)
        try:
            await asyncio.wait([following], timeout=max(self.lease_seconds, FASTEST_BEAT))
            if following.done() and not following.cancelled():
                following.result()
        finally:
            self._following.discard(following)
            following.cancel()

    async def resume(self, session: str, job: Job) -> RunResult:
        """Take a session up where the log says, or join whoever drives it here."""
        while True:
            if (claim := self._claims.get(session)) is not None:
                if (joined := await self._join(session, claim, job.stream)) is not None:
                    return joined
                continue
            # A lease that was found may be of a session that never began.
            state = await (self.read if job.found else self.state)(session)
            if job.stream is not None and state.run is not None:
                job.stream.run_id = state.run.run_id
            check_known(session, state)
            if not job.found and self._resumption(session, state, job) is None:
                return self._ended(state, session, None)
            if session in self._claims:  # somebody here was faster: join him
                continue
            async with self._claims.hold(session) as held:
                if held.lease is None:
                    continue
                state = held.state = await self.read(session)
                first = self._resumption(session, state, job)
                if first is None:
                    return self._ended(state, session, None)
                self._setup.registry.acting(_next_agent(first, state))  # raises UnknownAgentError
                try:
                    return await self._drive(held, state, first, job)
                except _BegunError:
                    self._recent.pop(session, None)

    # -- editing

    async def rewrite(self, session: str, filters: Sequence[Filter[Any]]) -> int:
        """Edit what the model sees from here on; return the version."""
        await self.state(session)  # raises UnknownSessionError
        for tried in count(1):
            async with self._claims.hold(session) as held:
                state = held.state = await self.read(session)
                check_known(session, state)
                check_settled(session, state)
                held.keep()  # a filter may take its time
                rewrites = Rewrites(self._setup, session=session, context=await self._context(session))
                rewrite = await rewrites.by_hand(filters, state)
                if rewrite is None:
                    return state.version
                draft = Draft(session, state)
                draft.add(HistoryRewritten(cause="manual", rewrite=rewrite))
                try:
                    done = await store(
                        self.log,
                        session,
                        draft.events,
                        expected=state.version,
                        ids=[self._new_id() for _ in draft.events],
                        lease=held.lease,
                    )
                except ConflictError:  # a filter is a computation: it is asked again
                    if tried == _TRIES:  # does it append to this very session?
                        raise
                    continue
                held.state = draft.state
                return done.version
        raise AssertionError("unreachable")

    async def _context(self, session: str) -> Any:
        """The context of a session for which none was given."""
        if self._context_for is None:
            return None
        made = self._context_for(session)
        return await made if isinstance(made, Awaitable) else made

    async def _join(self, session: str, claim: Claim, stream: RunStream | None) -> RunResult | None:
        """Wait for whoever drives it; None if he gave up, and the run goes on without him."""
        await claim.ready.wait()
        driver = claim.driver
        if driver is None:  # held for something else, or let go
            await asyncio.wait([claim.end])
            return None
        if stream is not None:
            stream.run_id = driver.state.run.run_id if driver.state.run is not None else ""
            stream.follow(driver, after=driver.state.version)
        await asyncio.wait([claim.end])
        state = await self.state(session)
        if state.phase in (RUNNING, ASKING):
            return None
        return self._ended(state, session, driver.failure)

    def _resumption(self, session: str, state: State, job: Job) -> list[Event] | None:
        """What taking a session up appends first; None if there is nothing to do."""
        if state.phase == IDLE:
            return self._next_run(state, job) if state.unanswered else None
        if job.found and state.phase == STOPPED:
            if not wants_worker(state):
                return None
            if state.gave_up:
                return [*superseding(state), *self._next_run(state, job)]
        limits = None if job.found else job.limits
        in_flight = state.phase == ASKING or any(call.state == CALLED for call in state.open_calls())
        if state.phase == RUNNING and not in_flight and limits is None:
            return []
        resumed = RunResumed(by=self.owner, limits=limits)
        return None if state.phase == STOPPED and waits_on(state, limits) else [resumed]

    def _next_run(self, state: State, job: Job) -> list[Event]:
        """Begin a run that answers what was added to the session."""
        key = next_key(state)
        return [
            RunStarted(
                run_id=key or str(self._new_id()),
                agent=self._next(state),
                input=(),
                limits=job.limits if job.limits is not None else self._limits,
                key=key,
            )
        ]

    # -- driving

    async def _drive(self, held: Held, state: State, first: list[Event], job: Job) -> RunResult:
        """Drive a session to its rest, in the caller's task. Raises _BegunError if someone came first."""
        session = held.session
        context = job.context if job.context is not None else await self._context(session)
        intentions = Intentions(
            self._setup, session=session, worker=self.owner, context=context, settings=job.settings
        )
        driver = Driver(
            self.log,
            self._setup,
            intentions,
            session=session,
            state=state,
            lease=held.take(),
            new_id=self._new_id,
            late=_deadline(self._clock),
        )
        held.claim.driver = driver
        if job.stream is not None:
            job.stream.follow(driver, after=state.version)
        held.claim.ready.set()
        self._claims.beat()
        try:
            await driver.drive(first)
        except (ConflictError, FencedError) as error:
            # Who has lost the lease before he began has done nothing: he may try again.
            if isinstance(error, FencedError) and driver.state.version > state.version:
                raise
            raise _BegunError from error
        self._remember(session, driver.state)
        if driver.state.phase in (RUNNING, ASKING):
            if self.closed:
                raise UsageError(
                    f"the engine was closed while {session} was running; resume goes on with it",
                    session=session,
                )
            raise FencedError(f"another worker has taken {session} over: stop", session=session)
        return self._ended(driver.state, session, driver.failure)

    def _ended(self, state: State, session: str, failure: Exception | None) -> RunResult:
        """Return a result, or raise for a run that failed."""
        result = result_of(state, session)
        if result.status == "failed":
            kind = state.run.kind if state.run is not None else ""
            raise RunFailedError(
                f"run {result.run_id} of {session} failed: {kind}: {result.reason}. "
                f"The record is whole; resume tries again",
                session=session,
                version=result.version,
            ) from failure
        return result

    async def close(self) -> None:
        """Let runs reach the next append, and release their leases."""
        self.closed = True
        for following in self._following:
            following.cancel()  # whoever waits in line is told
        await self._claims.close()

    # -- reading

    async def read(self, session: str) -> State:
        """Return where a session is; at version 0 if there is none."""
        state = self._recent.get(session, State())
        for record in await self.log.records(session, after=state.version):
            state = advance(state, record.version, record.event)
        return state

    def _remember(self, session: str, state: State) -> None:
        self._recent[session] = state
        self._recent.move_to_end(session)
        if len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)

    async def state(self, session: str) -> State:
        """Return where a session is. Raises UnknownSessionError."""
        state = await self.read(session)
        if state.version == 0:
            raise UnknownSessionError(
                f"no session {session} in this log; `batonlog log list` shows what there is", session=session
            )
        return state

    def is_driven(self, session: str) -> bool:
        """Whether this process drives it, or is about to."""
        return session in self._claims

    async def updates(self, session: str, *, after: int) -> AsyncIterator[Update]:
        """Yield records after that version, then live ones, until there is nothing for a worker to do."""
        while True:
            claim = self._claims.get(session)
            following = self._followed(session, after) if claim is None else self._fed(session, claim, after)
            async for update in following:
                if isinstance(update, Record):
                    after = update.version
                yield update
            state = await self.state(session)
            if state.version <= after and not needs_worker(state):
                return

    async def _fed(self, session: str, claim: Claim, after: int) -> AsyncIterator[Update]:
        """What whoever drives a session here tells, deltas included."""
        await claim.ready.wait()
        if claim.driver is None:  # held for something else, or let go
            await asyncio.wait([claim.end])
            return
        feed = Feed(self.log, session, after=after)
        feed.attach(claim.driver)
        claim.end.add_done_callback(lambda _: feed.end())
        async for record in feed.records(claim.driver.state.version):
            yield record
        async for update in feed.updates():
            yield update

    async def _followed(self, session: str, after: int) -> AsyncIterator[Update]:
        """What others record, until the session rests or is driven here."""
        state = State()
        with self.log.watch(session) as alarm:
            while True:
                for record in await self.log.records(session, after=state.version):
                    state = advance(state, record.version, record.event)
                    if record.version > after:
                        yield record
                if state.version == 0:
                    await self.state(session)  # raises UnknownSessionError
                if not needs_worker(state) or session in self._claims:
                    return
                await alarm.wait()


class _BegunError(Exception):
    """Someone else appended before this run began: look again."""


def _deadline(clock: Callable[[], datetime]) -> Callable[[State], bool]:
    """Whether the wall-clock time of a run is used up, from now on."""
    begun = clock()

    def late(state: State) -> bool:
        seconds = state.run.limits.seconds if state.run is not None else None
        return seconds is not None and (clock() - begun).total_seconds() >= seconds

    return late


def _next_agent(first: list[Event], state: State) -> str:
    """Who acts first when a session is taken up."""
    for event in first:
        if isinstance(event, RunStarted):
            return event.agent
    return state.agent or ""
