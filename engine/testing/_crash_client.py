"""What a scenario sees of an engine whose process may die: a server that crashed, and was started again.

The scenario is the client. It outlives the process: a call that was not answered is made again
after the restart, unless the log says that it had begun; then the client waits for its end.
Calls whose outcome nobody knows wait for a person, who lets run what never took place, and
gives the output of what did.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NamedTuple, Protocol, TypeAlias

from batonlog.engine.control import Control
from batonlog.engine.engine import Engine
from batonlog.engine.recovery import Recovery
from batonlog.engine.sessions import Job, Sessions
from batonlog.engine.stream import Update
from batonlog.engine.testing._crash_ports import WatchedSetup, WorkerLog
from batonlog.engine.testing._crash_story import Reference
from batonlog.engine.testing._crash_world import Outside, World
from batonlog.events import EventLog, Record, Ref, SessionForked, ToolCalled
from batonlog.events.lifecycle import IDLE, STOPPED
from batonlog.projections import OpenCall, RunResult
from batonlog.projections.items import Item
from batonlog.projections.result import open_calls
from batonlog.projections.state import State

Request: TypeAlias = Callable[[Sessions, Job], Coroutine[Any, Any, RunResult]]
"""Ask something of the sessions of a worker."""


class Asked(NamedTuple):
    """One thing that is asked of a worker, and of the next one if that has died."""

    ask: Request
    has_begun: Callable[[State], bool] | None
    """Whether a worker that has died had begun it; None if it is asked again however far that came: it has a key."""


class DiedError(Exception):
    """The process died before it had answered."""


class Worker(Protocol):
    """What works for a client, and may die."""

    @property
    def alive(self) -> bool:
        """Whether it can still be asked something."""
        ...

    async def do(self, session: str, ask: Request, job: Job) -> RunResult:
        """Return or raise what it answers. Raises DiedError."""
        ...

    def is_driven(self, session: str) -> bool:
        """Whether it drives a session."""
        ...

    def updates(self, session: str, *, after: int) -> AsyncIterator[Update]:
        """Yield what happens in a session, until it rests."""
        ...

    async def bury(self) -> None:
        """Close it, in peace or after its death. A dead one's leases count as run out."""


def install(engine: Engine[Any], client: "Client") -> None:
    """Put an engine that was just built into a process that may die."""
    engine.log = client.log
    engine._sessions = client
    engine._control = client.control
    engine._recovery = Recovery(client, engine._keep)


class Client(Sessions):
    """The sessions of one engine, through all lives of its process.

    Args:
        engine: the engine.
        log: as the client itself uses it.
        store: the same, where nothing happens to it.
        world: what is outside.
        start: starts a worker.
        reference: what the scenario comes to when nothing happens.
    """

    def __init__(
        self,
        engine: Engine[Any],
        *,
        log: EventLog,
        store: EventLog,
        world: Outside,
        start: Callable[["Client"], Worker],
        reference: Reference | None,
    ) -> None:
        before = engine._sessions
        self.options: dict[str, Any] = {
            "new_id": engine._new_id,
            "clock": before._clock,
            "limits": before._limits,
            "context_for": before._context_for,
            "lease_seconds": before.lease_seconds,
            "next_agent": before._next_agent,
            "busy": before._busy,
        }
        """Of all sessions that drive for it."""
        super().__init__(log, engine._setup, owner=before.owner, **self.options)
        self.setup = engine._setup
        self._store = store
        self._world = world
        self._start = start
        self._reference = reference
        self._contexts: dict[str, Any] = {}
        self._starting = asyncio.Lock()
        self._answering = asyncio.Lock()
        self._worker = start(self)

    # -- what an engine asks of its sessions

    async def start(
        self, session: str, *, run_id: str, keyed: bool, agent: str | None, items: list[Item], job: Job
    ) -> RunResult:
        # Input that was put in line would be put there twice if it was asked for again without a key.
        keyed = keyed or self._busy != "refuse"

        def ask(sessions: Sessions, job: Job) -> Coroutine[Any, Any, RunResult]:
            return sessions.start(session, run_id=run_id, keyed=keyed, agent=agent, items=items, job=job)

        def has_begun(state: State) -> bool:
            return any(run_id == known for known, _, _ in state.runs)

        asked = Asked(ask, None if keyed else has_begun)
        return await self._see_through(session, job, asked)

    async def resume(self, session: str, job: Job) -> RunResult:
        return await self._see_through(session, job, await self._resumption_of(session))

    def is_driven(self, session: str) -> bool:
        return self._worker.is_driven(session)

    async def updates(self, session: str, *, after: int) -> AsyncIterator[Update]:
        while True:
            worker = await self._living()
            async for update in worker.updates(session, after=after):
                if isinstance(update, Record):
                    after = update.version
                yield update
            if worker.alive:
                return

    async def close(self) -> None:
        await super().close()
        await self._worker.bury()

    # -- through a crash

    async def _see_through(self, session: str, job: Job, asked: "Asked") -> RunResult:
        """Return what it comes to when a person has spoken about all that was interrupted."""
        if job.context is not None:
            self._contexts[session] = job.context
        while True:
            result = await self._through_crashes(session, job, asked)
            if not await self._answer_unknown(session, result):
                return result
            job = self._again(session, job, limits=False)
            resumption = await self._resumption_of(session)
            if asked.has_begun is None:
                await self._through_crashes(session, job, resumption)
            else:
                asked = resumption

    async def _through_crashes(self, session: str, job: Job, asked: "Asked") -> RunResult:
        while True:
            worker = await self._living()
            try:
                return await worker.do(session, asked.ask, job)
            except DiedError:
                await self._living()  # by then the log holds all that was under way
                state = await self.read(session)
                begun = asked.has_begun is not None and asked.has_begun(state)
                job = self._again(session, job, limits=not begun)
                if begun:
                    if state.phase in (IDLE, STOPPED):
                        return self._ended(state, session, None)
                    asked = await self._resumption_of(session)

    async def _resumption_of(self, session: str) -> "Asked":
        before = await self.read(session)

        def has_begun(state: State) -> bool:
            """Whether it was taken up after that; and what rests now and did not was."""
            return state.run is not None and (
                before.phase not in (IDLE, STOPPED)
                or state.run.resumed > before.version
                or state.run.started > before.version
            )

        return Asked(lambda sessions, job: sessions.resume(session, job), has_begun)

    def _again(self, session: str, job: Job, *, limits: bool) -> Job:
        """The same for another worker: the context is the caller's, and was never recorded."""
        follows = job.stream is not None and not job.stream._begun.is_set()
        return Job(
            context=self._contexts.get(session),
            limits=job.limits if limits else None,
            settings=job.settings,
            stream=job.stream if follows else None,
            found=job.found,
        )

    async def _answer_unknown(self, session: str, result: RunResult) -> bool:
        """Be the person who says what became of interrupted calls. Whether there were any."""
        unknown = [call for call in result.open_calls if call.why == "unknown"]
        if not self._world.crashed or not await self._interrupted(session, unknown):
            return False
        async with self._answering:  # of several who ask, one is told
            unknown = [call for call in open_calls(await self.read(session)) if call.why == "unknown"]
            for call in await self._interrupted(session, unknown):
                await self._answer(session, call)
        return True

    async def _interrupted(self, session: str, calls: list[OpenCall]) -> list[OpenCall]:
        """Those that were called here. What a fork has left unknown is for the scenario to say."""
        called: set[Ref] = set()
        for record in await self._store.records(session) if calls else ():
            match record.event:
                case SessionForked():
                    called.clear()
                case ToolCalled(call=ref):
                    called.add(ref)
                case _:
                    pass
        return [call for call in calls if call.call in called]

    async def _answer(self, session: str, call: OpenCall) -> None:
        control = Control(self._store, self._new_id)
        transfers = self._setup.registry.handoff(call.agent, call.tool) is not None
        if self._reference is None or transfers or not self._world.effects.took_place(session, call.call):
            # The output of a transfer's callback is the transfer: it can only be run.
            self._world.allow(session, call.call)
            await control.decide(session, call.call, "run", by="crash_everywhere")
            return
        output = await self._reference.output(self._store, session, call.call)
        await control.decide(session, call.call, "answer", by="crash_everywhere", output=output)

    async def _living(self) -> Worker:
        """The worker, started again if its process has died."""
        async with self._starting:
            if not self._worker.alive:
                await self._worker.bury()
                self._worker = self._start(self)
            return self._worker


class PlayedWorker:
    """An engine's sessions in one life of its process, which is played in this one."""

    def __init__(self, client: Client, store: EventLog, world: World) -> None:
        self._process = world.process
        self._log = WorkerLog(store, self._process)
        setup = WatchedSetup(client.setup, self._process)
        owner = f"{client.owner}:again" if world.crashed else client.owner
        self._sessions = Sessions(self._log, setup, owner=owner, **client.options)
        self._sessions.closed = client.closed

    @property
    def alive(self) -> bool:
        return self._process.alive

    def is_driven(self, session: str) -> bool:
        return self._sessions.is_driven(session)

    def updates(self, session: str, *, after: int) -> AsyncIterator[Update]:
        return self._sessions.updates(session, after=after)

    async def do(self, session: str, ask: Request, job: Job) -> RunResult:
        task = asyncio.get_running_loop().create_task(ask(self._sessions, job))
        self._process.tasks.add(task)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self._process.tasks.discard(task)
        if self.alive:
            return task.result()
        if not task.cancelled():
            task.exception()  # died with it: nobody asks
        raise DiedError

    async def bury(self) -> None:
        if not self.alive and self._process.tasks:
            await asyncio.wait(self._process.tasks)
        await self._sessions.close()
        if not self.alive:
            await self._log.let_go()
