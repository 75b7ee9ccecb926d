"""The loop that drives one session: decide purely, append, perform. Every run takes this path.

    while True:
        fold the outcomes and what follows from them
        if there is something to append:
            append it in one batch, and start the effects that this append announced
        elif effects are in flight:
            wait for one of them, or for news of the session
        else:
            return: finished, or waiting for somebody

An intent is durable before its effect, and an effect is started only by the engine whose own
append of its intent has just succeeded. Nothing that is learned by reading starts one.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from batonlog.engine.decide import NOTHING, decide, needs_worker
from batonlog.engine.draft import Draft
from batonlog.engine.effects import ask, run_callback, run_tool
from batonlog.engine.flights import Effect, Flights, Key
from batonlog.engine.intend import Intentions
from batonlog.engine.models import Delta
from batonlog.engine.outcomes import ModelBroke, Outcome
from batonlog.engine.setup import Setup
from batonlog.engine.storing import store
from batonlog.events import (
    ConflictError,
    Event,
    EventLog,
    FencedError,
    IllegalTransitionError,
    Lease,
    LogError,
    ModelRequested,
    Ref,
    RunResumed,
    ToolCalled,
    UsageError,
)
from batonlog.events.lifecycle import ASKING, CALLED, GATED, RUNNING
from batonlog.events.log import Alarm
from batonlog.projections.request import ModelRequest
from batonlog.projections.state import State, advance

Listener = Callable[[int, Delta | None], None]
"""Told of each new version, and of each delta with the version that it follows."""


class Driver:
    """Drives one session for one engine, while it holds the lease."""

    def __init__(
        self,
        log: EventLog,
        setup: Setup,
        intentions: Intentions,
        *,
        session: str,
        state: State,
        lease: Lease,
        new_id: Callable[[], UUID],
        late: Callable[[State], bool],
    ) -> None:
        self.session = session
        self.state = state
        """As it is stored."""
        self.failure: Exception | None = None
        """What made the run fail here."""
        self.listeners: list[Listener] = []
        self._log = log
        self._setup = setup
        self._intentions = intentions
        self._lease: Lease | None = lease
        self._new_id = new_id
        self._late = late
        self._flights = Flights()
        self._partial: list[str] = []
        """Text of the model's answer so far."""
        self._alarm: Alarm | None = None
        self._stopping = False
        self._leasing = asyncio.Lock()
        """Held while the lease is renewed or given back: a late renewal would take it again."""
        self._lost = False
        """Another worker has the lease."""

    async def drive(self, first: Sequence[Event]) -> None:
        """Append what begins the run, if it may, and go on until it rests.

        Raises ConflictError if someone else appended before that, FencedError if the lease was
        lost, LogError if the store fails. The lease is given back, whatever happens.
        """
        with self._log.watch(self.session) as self._alarm:
            try:
                if first:
                    draft = Draft(self.session, self.state)
                    draft.add(*first)
                    await self._follow_up(draft, known=True)
                    await self._append(draft)
                while not self._stopping and await self._advance():
                    pass
                await self._keep_landed()
            finally:
                await self._leave()

    def stop(self) -> None:
        """Let the loop end before its next append; what is in flight is given up."""
        self._stopping = True
        self._flights.interrupt()
        if self._alarm is not None:
            self._alarm.ring()

    async def renew(self, owner: str, seconds: float) -> None:
        """Keep the lease while an effect takes its time."""
        async with self._leasing:
            if self._lease is None:
                return
            lease = await self._log.acquire(self.session, owner=owner, seconds=seconds)
            if lease is not None:
                self._lease = lease  # of a new epoch, if it had run out and nobody took it
                return
        self._lost = True
        self.stop()

    async def _advance(self) -> bool:
        """Wait for what is in flight, or do what follows from the state. Whether there is more."""
        if self._flights:
            # What was decided is under way: nothing more follows from this state alone.
            await self._flights.wait(self._has_news)
            if self._stopping and (self._lost or not self._flights.landed):
                return False
        outcomes = self._flights.landed[:]
        draft = Draft(self.session, self.state)
        await self._fold(draft, outcomes)
        if not self._stopping:  # else what has been done is recorded, and nothing new begins
            await self._follow_up(draft, known=bool(draft.events))
        if draft.events:
            check_known(self.session, self.state)
            try:
                await self._append(draft)
            except ConflictError:  # facts are kept; decisions are made again
                await asyncio.sleep(0)  # others have their turn, also if a filter of ours is who appends
                await self._catch_up()
                return True
        del self._flights.landed[: len(outcomes)]
        if self.state.phase not in (RUNNING, ASKING):
            return False  # what comes after this run is not ours
        return bool(draft.events) or bool(self._flights) or await self._has_news()

    async def _keep_landed(self) -> None:
        """Record what effects have come to before one was told to stop. Nothing follows from it here."""
        self._flights.collect()
        while self._flights.landed and not self._lost:
            draft = Draft(self.session, self.state)
            await self._fold(draft, self._flights.landed)
            if draft.events:
                try:
                    await self._append(draft)
                except ConflictError:
                    await self._catch_up()
                    continue
            self._flights.landed.clear()

    async def _has_news(self) -> bool:
        """Whether somebody has appended something, which is folded then."""
        assert self._alarm is not None
        return self._stopping or (self._alarm.after(self.state.version) and await self._catch_up())

    async def _fold(self, draft: Draft, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            mark = draft.mark()
            try:
                await outcome.add(draft, self._intentions)
            except IllegalTransitionError:  # its call or request was closed meanwhile
                draft.back(mark)

    async def _follow_up(self, draft: Draft, *, known: bool = False) -> None:
        """Decide, until the next thing to do is an effect or to wait.

        What effects have come to, and what a run begins with, is stored with what follows from it,
        but is `known` without: it is stored first where what follows has to wait for somebody.
        """
        while (step := decide(draft.state, late=self._late(draft.state))) is not NOTHING:
            if known and self._intentions.waits(draft.state, step):
                return
            await self._intentions.follow(draft, step)

    # -- appending

    async def _append(self, draft: Draft) -> None:
        """Store a batch, and start the effects that it announces."""
        if needs_worker(draft.state):
            await self._store(draft.events, release=False)
        else:
            async with self._leasing:
                await self._store(draft.events, release=True)
                self._lease = None
        version = self.state.version
        self.state = draft.state
        self.failure = self._intentions.failure
        for listener in self.listeners:
            listener(self.state.version, None)
        effects: list[tuple[Key, Effect]] = []
        for event in draft.events:
            version += 1
            effects += self._effects(version, event)
        self._drop_closed()
        if effects:
            assert self._alarm is not None
            # A gated call may be decided at any time, and then it starts beside the others.
            gated = any(call.state == GATED for call in self.state.calls.values())
            self._flights.start(effects, self._alarm, may_wait=not gated)

    async def _store(self, events: Sequence[Event], *, release: bool) -> None:
        try:
            await store(
                self._log,
                self.session,
                events,
                expected=self.state.version,
                ids=[self._new_id() for _ in events],
                lease=self._lease,
                release=release,
            )
        except FencedError:
            self._lost = True
            raise

    async def _catch_up(self) -> bool:
        """Fold what others have appended. Whether there was something."""
        before = self.state.version
        for record in await self._log.records(self.session, after=before):
            self.state = advance(self.state, record.version, record.event)
            if isinstance(record.event, RunResumed):  # another worker has taken over
                self._stopping = self._lost = True
        if self.state.version == before:
            return False
        check_known(self.session, self.state)
        for listener in self.listeners:
            listener(self.state.version, None)
        if self.state.cancel is not None and not self.state.cancel.after_turn:
            self._interrupt()
        self._drop_closed()
        return True

    # -- effects

    def _effects(self, version: int, event: Event) -> list[tuple[Key, Effect]]:
        """What an event announces that was just appended here."""
        match event:
            case ModelRequested():
                parts = self.state.parts[event.agent]
                request = ModelRequest(view=self.state.place.settled, parts=parts, requested=event)
                model = self._setup.model_of(self._setup.registry[event.agent], self.state.given_up)
                delay = self.state.request.delay if self.state.request is not None else 0.0
                self._partial = []
                return [(version, ask(model, request, version, self._tell, self._partial, delay=delay))]
            case ToolCalled(call=ref) if self.state.calls[ref].state == CALLED:
                return [(ref, self._call(event))]
            case _:
                return []

    def _call(self, event: ToolCalled) -> Effect:
        call = self.state.calls[event.call]
        context = self._intentions.contexts.of_call(self.state, call, event.attempt)
        tool = self._setup.registry.tool(call.agent, call.name)
        if tool is not None:
            return run_tool(tool, context, event.arguments)
        one = self._setup.registry.handoff(call.agent, call.name)
        assert one is not None
        return run_callback(one, context, event.arguments)

    def _interrupt(self) -> None:
        """Somebody wants the run to end now."""
        request = self.state.request
        if request is not None and request.version in self._flights.in_flight():
            self._flights.landed.append(ModelBroke(request.version, None, "".join(self._partial)))
        self._flights.interrupt()

    def _tell(self, delta: Delta) -> None:
        for listener in self.listeners:
            listener(self.state.version, delta)

    def _drop_closed(self) -> None:
        """Give up effects whose call or request has been closed: nobody waits for what they come to."""
        closed = [key for key in self._flights.in_flight() if not self._is_open(key)]
        if closed:
            self._flights.interrupt(closed)

    def _is_open(self, key: Key) -> bool:
        if isinstance(key, Ref):
            call = self.state.calls.get(key)
            return call is not None and call.state == CALLED
        return self.state.request is not None and self.state.request.version == key

    async def _leave(self) -> None:
        """Give up what is in flight, and the lease."""
        await self._flights.give_up()
        if self._lease is not None:
            await asyncio.shield(self._give_back())

    async def _give_back(self) -> None:
        async with self._leasing:
            lease, self._lease = self._lease, None
            if lease is None:
                return
            with suppress(LogError):  # it runs out by itself
                if self._lost:
                    await self._log.release(lease)  # of an old epoch, that does nothing
                else:
                    await give_back(self._log, lease, self.state)


async def give_back(log: EventLog, lease: Lease, state: State) -> None:
    """Give a lease back. Where there is more to do it runs out now, so that whoever recovers finds it.

    What was said while it was held has woken nobody up. So it runs out first, and is given back
    when nothing was said: whoever dies in between leaves too much to look at, and never too little.
    """
    await log.acquire(lease.session, owner=lease.owner, seconds=0)
    if not needs_worker(state):
        head = await log.head(lease.session)
        if (head.version if head is not None else 0) == state.version:
            await log.release(lease)


def check_known(session: str, state: State) -> None:
    """Refuse to go on with a session that holds an event of a newer version: it might be a rewrite."""
    if state.unknown is not None:
        version, tag = state.unknown
        raise UsageError(
            f"{session} holds {tag} at version {version}, which this batonlog does not know; "
            f"passing over it might show a model what was hidden. Upgrade batonlog to go on",
            session=session,
            version=version,
        )
