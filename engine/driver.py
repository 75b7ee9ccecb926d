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
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from batonlog.engine.decide import NOTHING, decide
from batonlog.engine.draft import Draft
from batonlog.engine.effects import ask, run_callback, run_tool
from batonlog.engine.intend import Intentions
from batonlog.engine.models import Delta
from batonlog.engine.outcomes import Outcome
from batonlog.engine.setup import Setup
from batonlog.events import (
    ConflictError,
    DamagedError,
    Event,
    EventLog,
    FencedError,
    FormatError,
    IllegalTransitionError,
    Lease,
    LogError,
    ModelRequested,
    Ref,
    RunCancelled,
    RunResumed,
    ToolCalled,
    UsageError,
)
from batonlog.events.lifecycle import ASKING, CALLED, RUNNING
from batonlog.events.log import Alarm
from batonlog.projections.request import ModelRequest
from batonlog.projections.state import State, advance

_TRIES = 6
"""How often one batch is given to a store that fails."""

_FIRST_PAUSE = 0.05
"""Seconds before the second try; twice as long each time."""

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
        self._flying: dict[Ref | int, asyncio.Task[Outcome]] = {}
        """Effects in flight: calls by key, the model request by version."""
        self._landed: list[Outcome] = []
        self._alarm: Alarm | None = None
        self._stopping = False

    async def drive(self, first: Sequence[Event]) -> None:
        """Append what begins the run, if it may, and go on until it rests.

        Raises ConflictError if someone else appended before that, FencedError if the lease was
        lost, LogError if the store fails. The lease is given back, whatever happens.
        """
        with self._log.watch(self.session) as self._alarm:
            try:
                if first:
                    await self._begin(first)
                while not self._stopping and await self._advance():
                    pass
            finally:
                await self._leave()

    def stop(self) -> None:
        """Let the loop end before its next append; what is in flight is given up."""
        self._stopping = True
        if self._alarm is not None:
            self._alarm.ring()

    async def renew(self, owner: str, seconds: float) -> None:
        """Keep the lease while an effect takes its time."""
        if (
            self._lease is not None
            and await self._log.acquire(self.session, owner=owner, seconds=seconds) is None
        ):
            self.stop()

    async def _begin(self, first: Sequence[Event]) -> None:
        draft = Draft(self.session, self.state)
        draft.add(*first)
        await self._follow_up(draft)
        await self._append(draft)

    async def _advance(self) -> bool:
        """Do one thing. Whether there is more."""
        outcomes, self._landed = self._landed, []
        draft = Draft(self.session, self.state)
        await self._fold(draft, outcomes)
        await self._follow_up(draft)
        if draft.events:
            try:
                await self._append(draft)
            except ConflictError:
                self._landed = outcomes + self._landed  # facts are kept; decisions are made again
                await self._catch_up()
        elif self._flying:
            await self._wait()
        else:
            return (
                self._alarm is not None and self._alarm.after(self.state.version) and await self._catch_up()
            )
        return True

    async def _fold(self, draft: Draft, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            mark = draft.mark()
            try:
                await outcome.add(draft, self._intentions)
            except IllegalTransitionError:  # its call or request was closed meanwhile
                draft.back(mark)

    async def _follow_up(self, draft: Draft) -> None:
        """Decide, until the next thing to do is an effect or to wait."""
        while (step := decide(draft.state, late=self._late(draft.state))) is not NOTHING:
            await self._intentions.follow(draft, step)

    # -- appending

    async def _append(self, draft: Draft) -> None:
        """Store a batch, and start the effects that it announces.

        A batch whose outcome is unknown is repeated, the same bytes and ids, until it is answered.
        """
        ids = [self._new_id() for _ in draft.events]
        rests = draft.state.phase not in (RUNNING, ASKING)
        pause = _FIRST_PAUSE
        for attempt in range(_TRIES):
            try:
                await self._log.append(
                    self.session,
                    draft.events,
                    expected=self.state.version,
                    ids=ids,
                    lease=self._lease,
                    release=rests,
                )
                break
            except (ConflictError, FencedError, DamagedError, FormatError, UsageError):
                raise
            except LogError:
                if attempt == _TRIES - 1:
                    raise
                await asyncio.sleep(pause)
                pause *= 2
        if rests:
            self._lease = None
        version = self.state.version
        self.state = draft.state
        self.failure = self._intentions.failure
        for listener in self.listeners:
            listener(self.state.version, None)
        for event in draft.events:
            version += 1
            self._start(version, event)
        self._drop_closed()

    async def _catch_up(self) -> bool:
        """Fold what others have appended. Whether there was something."""
        before = self.state.version
        for record in await self._log.records(self.session, after=before):
            self.state = advance(self.state, record.version, record.event)
            if isinstance(record.event, RunResumed):  # another worker has taken over
                self._stopping = True
        if self.state.version == before:
            return False
        for listener in self.listeners:
            listener(self.state.version, None)
        if self.state.cancel is not None and not self.state.cancel.after_turn:
            self._cancel_flights()
        self._drop_closed()
        return True

    # -- effects

    def _start(self, version: int, event: Event) -> None:
        match event:
            case ModelRequested():
                agent = self._setup.registry[event.agent]
                request = ModelRequest(
                    view=self.state.place.settled, parts=self.state.parts[event.agent], requested=event
                )
                self._fly(version, ask(self._setup.model_of(agent), request, version, self._tell))
            case ToolCalled() if self.state.calls[event.call].state == CALLED:
                self._call(event)
            case RunCancelled():
                self._cancel_flights()
            case _:
                pass

    def _call(self, event: ToolCalled) -> None:
        call = self.state.calls[event.call]
        context = self._intentions.tool_context(self.state, call, event.attempt)
        tool = self._setup.registry.tool(call.agent, call.name)
        if tool is not None:
            self._fly(event.call, run_tool(tool, context, event.arguments))
        elif (one := self._setup.registry.handoff(call.agent, call.name)) is not None and one.on_handoff:
            self._fly(event.call, run_callback(one, context, event.arguments))

    def _fly(self, key: Ref | int, effect: Coroutine[Any, Any, Outcome]) -> None:
        task = asyncio.get_running_loop().create_task(effect)
        self._flying[key] = task
        task.add_done_callback(lambda done: self._land(key, done))

    def _land(self, key: Ref | int, task: asyncio.Task[Outcome]) -> None:
        if self._flying.get(key) is task:
            del self._flying[key]
            if not task.cancelled():
                self._landed.append(task.result())
        if self._alarm is not None:
            self._alarm.ring()

    def _tell(self, delta: Delta) -> None:
        for listener in self.listeners:
            listener(self.state.version, delta)

    async def _wait(self) -> None:
        """Until an effect has come to something, or somebody has appended."""
        assert self._alarm is not None
        while not self._landed and not self._stopping and self._flying:
            await self._alarm.wait()
            if self._alarm.after(self.state.version) and await self._catch_up():
                return

    def _cancel_flights(self) -> None:
        for task in self._flying.values():
            task.cancel()

    def _drop_closed(self) -> None:
        """Give up effects whose call or request has been closed: nobody waits for what they come to."""
        for key, task in list(self._flying.items()):
            if isinstance(key, Ref):
                call = self.state.calls.get(key)
                alive = call is not None and call.state == CALLED
            else:
                alive = self.state.request is not None and self.state.request.version == key
            if not alive:
                del self._flying[key]
                task.cancel()

    async def _leave(self) -> None:
        """Give up what is in flight, and the lease."""
        flying, self._flying = list(self._flying.values()), {}
        for task in flying:
            task.cancel()
        if flying:
            await asyncio.gather(*flying, return_exceptions=True)
        lease, self._lease = self._lease, None
        if lease is not None:
            await asyncio.shield(self._release(lease))

    async def _release(self, lease: Lease) -> None:
        with suppress(LogError):  # it runs out by itself
            await self._log.release(lease)
