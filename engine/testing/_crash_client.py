"""What a scenario sees of an engine whose process may die: a server that crashed, and was started again.

The scenario is the client. It outlives the process: a call that was not answered is made again
after the restart, unless the log says that it had begun; then the client waits for its end.
Calls whose outcome nobody knows wait for a person, who lets run what never took place, and
gives the output of what did.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeAlias

from batonlog.engine.control import Control
from batonlog.engine.engine import Engine
from batonlog.engine.sessions import Job, Sessions
from batonlog.engine.stream import Update
from batonlog.engine.testing._crash_ports import ClientLog, WatchedSetup, WorkerLog
from batonlog.engine.testing._crash_story import Reference
from batonlog.engine.testing._crash_world import Process, World
from batonlog.events import Record
from batonlog.events.lifecycle import IDLE, STOPPED
from batonlog.projections import OpenCall, RunResult
from batonlog.projections.items import Item
from batonlog.projections.state import State

_Request: TypeAlias = Callable[[Sessions, Job], Coroutine[Any, Any, RunResult]]
"""Ask something of a worker."""


def install(engine: Engine[Any], world: World, reference: Reference | None) -> None:
    """Put an engine that was just built into a process that may die."""
    client = Client(engine, world, reference)
    engine.log = client.log
    engine._sessions = client
    engine._control = Control(client.log, engine._new_id)


class Client(Sessions):
    """The sessions of one engine, through all lives of its process."""

    def __init__(self, engine: Engine[Any], world: World, reference: Reference | None) -> None:
        before = engine._sessions
        self._options: dict[str, Any] = {
            "new_id": engine._new_id,
            "clock": before._clock,
            "limits": before._limits,
            "context_for": before._context_for,
            "lease_seconds": before.lease_seconds,
            "next_agent": before._next_agent,
        }
        super().__init__(ClientLog(engine.log, world), engine._setup, owner=before.owner, **self._options)
        self._store = engine.log
        self._world = world
        self._reference = reference
        self._contexts: dict[str, Any] = {}
        self._starting = asyncio.Lock()
        self._worker = self._started_worker()

    # -- what an engine asks of its sessions

    async def start(
        self, session: str, *, run_id: str, keyed: bool, agent: str | None, items: list[Item], job: Job
    ) -> RunResult:
        def ask(sessions: Sessions, job: Job) -> Coroutine[Any, Any, RunResult]:
            return sessions.start(session, run_id=run_id, keyed=keyed, agent=agent, items=items, job=job)

        def has_begun(state: State) -> bool:
            return any(run_id == known for known, _, _ in state.runs)

        return await self._see_through(session, job, ask, has_begun)

    async def resume(self, session: str, job: Job) -> RunResult:
        before = (await self.read(session)).version

        def has_begun(state: State) -> bool:
            return state.run is not None and state.run.resumed > before

        return await self._see_through(session, job, _resumption(session), has_begun)

    def is_driven(self, session: str) -> bool:
        return self._worker.sessions.is_driven(session)

    async def updates(self, session: str, *, after: int) -> AsyncIterator[Update]:
        while True:
            worker = await self._living()
            async for update in worker.sessions.updates(session, after=after):
                if isinstance(update, Record):
                    after = update.version
                yield update
            if worker.process.alive:
                return

    async def close(self) -> None:
        self.closed = True
        await self._worker.bury()

    # -- through a crash

    async def _see_through(
        self, session: str, job: Job, ask: _Request, has_begun: Callable[[State], bool]
    ) -> RunResult:
        if job.context is not None:
            self._contexts[session] = job.context
        while True:
            worker = await self._living()
            task = await worker.do(ask(worker.sessions, job))
            if worker.process.alive:
                result = task.result()
            else:
                await self._living()  # by then the log holds all that was under way
                state = await self.read(session)
                begun = has_begun(state)
                if not (begun and state.phase in (IDLE, STOPPED)):
                    ask = _resumption(session) if begun else ask
                    job = self._again(session, job, limits=not begun)
                    continue
                result = self._ended(state, session, None)
            if not await self._answer_unknown(session, result):
                return result
            ask, job = _resumption(session), self._again(session, job, limits=False)

    def _again(self, session: str, job: Job, *, limits: bool) -> Job:
        """The same for another worker: the context is the caller's, and was never recorded."""
        follows = job.stream is not None and not job.stream._begun.is_set()
        return Job(
            context=self._contexts.get(session),
            limits=job.limits if limits else None,
            settings=job.settings,
            stream=job.stream if follows else None,
        )

    async def _answer_unknown(self, session: str, result: RunResult) -> bool:
        """Be the person who says what became of interrupted calls. Whether there were any."""
        unknown = [call for call in result.open_calls if call.why == "unknown"]
        if self._world.crashed is None or not unknown:
            return False
        for call in unknown:
            await self._answer(session, call)
        return True

    async def _answer(self, session: str, call: OpenCall) -> None:
        control = Control(self._store, self._new_id)
        transfers = self._setup.registry.handoff(call.agent, call.tool) is not None
        if self._reference is None or transfers or not self._world.took_place(session, call.call):
            # The output of a transfer's callback is the transfer: it can only be run.
            self._world.allow(session, call.call)
            await control.decide(session, call.call, "run", by="crash_everywhere")
            return
        output = await self._reference.output(self._store, session, call.call)
        await control.decide(session, call.call, "answer", by="crash_everywhere", output=output)

    async def _living(self) -> "_Worker":
        """The worker, started again if its process has died."""
        async with self._starting:
            if not self._worker.process.alive:
                await self._worker.bury()
                self._worker = self._started_worker()
            return self._worker

    def _started_worker(self) -> "_Worker":
        process = self._world.process
        log = WorkerLog(self._store, process)
        setup = WatchedSetup(self._setup, process)
        owner = self.owner if self._world.crashed is None else f"{self.owner}:again"
        sessions = Sessions(log, setup, owner=owner, **self._options)
        sessions.closed = self.closed
        return _Worker(process, log, sessions)


class _Worker:
    """An engine's sessions in one life of its process."""

    def __init__(self, process: Process, log: WorkerLog, sessions: Sessions) -> None:
        self.process = process
        self.sessions = sessions
        self._log = log

    async def do(self, work: Coroutine[Any, Any, RunResult]) -> "asyncio.Task[RunResult]":
        """Do something in this process; return the task that did it, or that died with it."""
        task = asyncio.get_running_loop().create_task(work)
        self.process.tasks.add(task)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self.process.tasks.discard(task)
        if not self.process.alive and not task.cancelled():
            task.exception()  # died with it: nobody asks
        return task

    async def bury(self) -> None:
        """Close it, in peace or after its death. A dead one's leases count as run out."""
        if not self.process.alive and self.process.tasks:
            await asyncio.wait(self.process.tasks)
        await self.sessions.close()
        if not self.process.alive:
            await self._log.let_go()


def _resumption(session: str) -> _Request:
    return lambda sessions, job: sessions.resume(session, job)
