"""A world in which everything happens when it is told to: stores that answer late, workers that die.

Two workers and whoever else speaks share one log. Every append and every effect waits until the
world lets it go on, so a list of numbers decides what happens in which order. Whatever the store
takes is checked at once against the laws.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.laws.checks import bare
from tests.laws.world_cast import Doing, Plan, Voice, agents_of
from tests.laws.world_store import SESSION, Pending, Port, Watched

from batonlog.engine import Engine, Retries, RunFailedError, SessionBusyError, ToolContext
from batonlog.engine.decide import wants_worker
from batonlog.events import (
    ApprovalDecided,
    CallRefused,
    ConflictError,
    FencedError,
    HandoffMade,
    HistoryRewritten,
    IllegalTransitionError,
    InputAdded,
    Limits,
    LogError,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    Record,
    Ref,
    Rewrite,
    RunCancelled,
    RunResumed,
    RunStarted,
    ToolAbandoned,
    ToolCalled,
    ToolReturned,
    UnknownSessionError,
    UsageError,
)
from batonlog.events.lifecycle import ASKING, GATED, IDLE, RUNNING
from batonlog.events.record import new_id
from batonlog.projections import ModelRequest, RunResult
from batonlog.projections.state import run_state


@dataclass
class Worker:
    """One process: an engine, and what it was asked to do."""

    name: str
    port: Port
    engine: Engine[Any]
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    runs: dict[asyncio.Task[Any], str] = field(default_factory=dict)
    """Which run a task has started."""
    beating: list[asyncio.Task[Any]] = field(default_factory=list)


class PatientEngine(Engine[Any]):
    """An engine whose leases run out when the world says so."""

    lease_seconds: ClassVar[float] = 10_000.0


class World:
    """Two workers, somebody who speaks, and one who decides what happens next."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan = plan if plan is not None else Plan()
        self.slow = self.plan.slow
        self.deaf = self.plan.deaf
        self.store = Watched()
        self.operations: list[Pending] = []
        self.doing: list[Doing] = []
        self.done: list[Doing] = []
        """Effects that came to something."""
        self.begun: dict[tuple[Ref | int, int], str] = {}
        """The ledger: who performed which intent."""
        self.crashed: set[str] = set()
        self.gave_up: list[tuple[str, int]] = []
        """Workers whose store failed them, or who lost their lease, and when."""
        self.takers: list[tuple[str, int]] = []
        """Who has taken the lease, and when."""
        self.left: dict[str, int] = {}
        """When each worker that has left did so."""
        self.began: dict[asyncio.Task[Any], int] = {}
        """How many had when a task began."""
        self.now = 0
        self.unexpected: list[BaseException] = []
        self.log: list[str] = []
        """What happened, for people."""
        self._made = 0
        self._said = 0
        self.workers: dict[str, Worker] = {}
        self.leaving: list[Worker] = []
        self.api = PatientEngine(Port(self, "person"))
        self.speaking: list[asyncio.Task[Any]] = []

    # -- workers

    def worker(self, letter: str) -> Worker:
        """The process of this letter, started if there is none."""
        if letter not in self.workers:
            self._made += 1
            name = f"{letter}{self._made}"
            port = Port(self, name)
            self.workers[letter] = Worker(name, port, self._engine(name, port))
        return self.workers[letter]

    def _engine(self, name: str, port: Port) -> Engine[Any]:
        return PatientEngine(
            port,
            agents=agents_of(self, name),
            model=Voice(self, name),
            limits=Limits(turns=self.plan.turns),
            busy=self.plan.busy,
            fallback=Voice(self, name, "spare"),
            retries=Retries(attempts=2, first=0),
            context_for=lambda session: (self, name),
        )

    async def crash(self, letter: str) -> None:
        """Kill a process: nothing of it goes on, nothing is cleaned up."""
        worker = self.workers.pop(letter, None)
        if worker is None:
            return
        worker.port.dead = True
        self.crashed.add(worker.name)
        dropped = [one for one in self.operations if one.port is worker.port]
        self.operations = [one for one in self.operations if one.port is not worker.port]
        self.doing = [one for one in self.doing if one.worker != worker.name]
        await self._end(worker)
        for one in dropped:
            one.done.cancel()  # for what outlives those who asked

    def leave(self, letter: str, n: int) -> None:
        """Let a process end as it should: what it has done is kept, and its leases are given back."""
        worker = self.workers.pop(letter, None)
        if worker is not None:
            own = [k for k, one in enumerate(self.doing) if one.worker == worker.name]
            if own:
                self.finish(own[n % len(own)], n)  # at the same moment
            self.tell(f"{worker.name} leaves")
            worker.tasks.append(asyncio.get_running_loop().create_task(worker.engine.close()))
            self.leaving.append(worker)

    async def _end(self, worker: Worker) -> None:
        engine = worker.engine
        tasks = [*worker.tasks, *worker.beating, *engine._tasks]
        if engine._sessions._claims._heart is not None:
            tasks.append(engine._sessions._claims._heart)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in worker.tasks:
            self._look_at(worker.name, task)

    # -- effects

    async def do(self, worker: str, kind: str, key: Ref | int, intent: int) -> tuple[int, str]:
        """Begin an effect, and wait for the world to say what it comes to."""
        self._made += 1
        one = Doing(
            worker,
            kind,
            key,
            intent,
            asyncio.get_running_loop().create_future(),
            f"{kind}{self._made}",
            self.now,
        )
        if intent:
            self._enter(one)
        self.doing.append(one)
        try:
            return await one.done, one.token
        except asyncio.CancelledError:
            one.cancelled = True
            raise
        finally:
            if one in self.doing:
                self.doing.remove(one)

    def _enter(self, one: Doing) -> None:
        assert one.worker not in self.crashed, "the dead work"
        author = self.store.authors[one.intent - 1]
        assert author == one.worker, f"{one.worker} performs what {author} announced: {one.key}"
        assert (one.key, one.intent) not in self.begun, f"intent {one.intent} is performed twice"
        self.begun[one.key, one.intent] = one.worker

    def request_of(self, request: ModelRequest) -> int:
        """Version of the event that announced a request."""
        for record in reversed(self.store.trace):
            if isinstance(record.event, ModelRequested) and record.event.digest == request.digest:
                return record.version
        raise AssertionError("a model is asked what nobody has announced")

    def call_of(self, context: ToolContext[Any]) -> int:
        """Version of the event that announced a call."""
        for record in reversed(self.store.trace):
            match record.event:
                case ToolCalled(call=call, attempt=attempt) if call == context.call:
                    assert attempt == context.attempt
                    return record.version
        raise AssertionError("a tool is run that nobody has announced")

    # -- what can happen

    async def rest(self) -> None:
        """Let all go on until nothing can, unless the world lets it."""
        loop: Any = asyncio.get_running_loop()
        quiet = 0
        for _ in range(20_000):
            await asyncio.sleep(0)
            due = [t for t in loop._scheduled if not t._cancelled and t._when <= loop.time() + 1]
            quiet = 0 if loop._ready or due else quiet + 1
            if quiet == 3:
                break
        else:
            raise AssertionError("it never comes to rest")
        for worker in [*self.workers.values(), *self.leaving]:
            ended = [task for task in worker.tasks if task.done()]
            for task in sorted(ended, key=_failed, reverse=True):
                worker.tasks.remove(task)
                self._look_at(worker.name, task)
                if not _failed(task) and task in worker.runs:
                    self._check_run(worker.runs[task], task.result())
        for worker in self.leaving:
            if not worker.tasks:
                self.left.setdefault(worker.name, self.now)
        for task in [task for task in self.speaking if task.done()]:
            self.speaking.remove(task)
            self._look_at("person", task)
        assert not self.unexpected, self.unexpected
        self._check_cancelled()
        self._check_woken()

    def _check_run(self, key: str, result: RunResult) -> None:
        """What `run` returns is what came of the run that took its input, which was recorded once."""
        taken = [
            r for r in self.store.trace if isinstance(r.event, RunStarted | InputAdded) and r.event.key == key
        ]
        added = [r for r in taken if isinstance(r.event, InputAdded)]
        assert len(added) <= 1, f"the input of {key} was added twice"
        assert len(taken) - len(added) <= 1, f"two runs have the key {key}"
        if not added:
            assert result.run_id == key, "run returns what came of another run"
            return
        (said,) = added
        assert isinstance(said.event, InputAdded)
        if result.status == "completed":
            shown = [
                r for r in self.store.trace[said.version : result.version] if r.type == "model.requested"
            ]
            assert shown, f"the run that is returned for {key} never showed its input"
        if said.event.goes_to == "run" and result.status != "paused":
            assert result.after >= said.version, "what was queued was taken by the run before"

    def _check_woken(self) -> None:
        """Where a worker should go on and none is there, whoever recovers finds the session."""
        if not wants_worker(self.store.state) or self.operations or self.speaking or self.leaving:
            return
        if any(worker.tasks or worker.beating for worker in self.workers.values()):
            return
        owner, _, _, until = self.store._leases[SESSION]
        assert until > 0, f"nobody is woken up for what was said, and {owner} has left"

    def _check_cancelled(self) -> None:
        """Whoever is told at once, and has nothing else to wait for, stops what somebody has cancelled."""
        cancels = [r.version for r in self.store.trace if r.type == "cancel.requested"]
        cancel = self.store.state.cancel
        if cancel is None or cancel.after_turn or "records" in self.slow:
            return
        occupied = {one.port.name for one in self.operations} | {
            one.worker for one in self.doing if not one.intent
        }
        for one in self.doing:
            deaf = one.worker[0] in self.plan.deaf
            if one.intent and one.intent < cancels[-1] and not deaf and one.worker not in occupied:
                raise AssertionError(f"{one.token} of {one.key} goes on though somebody has cancelled")

    def _look_at(self, name: str, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or not task.done():
            return
        match task.exception():
            case None:
                self._check_rest(name, task.result())
            case SessionBusyError() | RunFailedError() | UnknownSessionError():
                pass
            case FencedError() as error:
                since = self.takers[max(self.began.pop(task, 0) - 1, 0) :]
                if all(taker == name for taker, _ in since):
                    self.unexpected.append(error)
            case IllegalTransitionError() | ConflictError() as error:
                self.unexpected.append(error)
            case LogError():
                pass
            case UsageError() if name == "person":
                pass  # what waited does so no more
            case UsageError() as error if "closed" in str(error):
                assert name in [worker.name for worker in self.leaving]
            case error:
                self.unexpected.append(error)

    def _check_rest(self, name: str, result: object) -> None:
        """Whoever leaves a run that is going on says why: he raises."""
        if isinstance(result, RunResult):
            assert result.status != "running", f"{name} leaves a run that goes on"

    def tell(self, what: str) -> None:
        self.log.append(f"{len(self.store.trace)}: {what}")

    def ask(self, letter: str, what: str) -> None:
        """Have a worker start, resume or recover."""
        worker = self.worker(letter)
        engine = worker.engine
        if len(worker.tasks) > 3:
            return
        self.tell(f"{worker.name} {what}")
        match what:
            case "run":
                self._said += 1
                name = f"r{self._said}"
                work: Coroutine[Any, Any, Any] = engine.run(f"question {name}", session=SESSION, run_id=name)
            case "resume":
                work = engine.resume(SESSION, limits=Limits(turns=self.turns() + 4, handoffs=99))
            case "plainly":
                work = engine.resume(SESSION)
            case "recover":
                work = engine.recover()
            case _:
                return
        worker.tasks.append(asyncio.get_running_loop().create_task(work))
        self.began[worker.tasks[-1]] = len(self.takers)
        if what == "run":
            worker.runs[worker.tasks[-1]] = name

    def turns(self) -> int:
        return self.store.state.run.turns if self.store.state.run is not None else 0

    def speak(self, what: str, n: int = 0) -> None:
        """Have somebody say something, from a process without agents."""
        gated = [call.ref for call in self.store.state.open_calls() if call.state == GATED]
        match what:
            case "send":
                self._said += 1
                work: Coroutine[Any, Any, Any] = self.api.send(f"more {self._said}", session=SESSION)
            case "note":
                work = self.api.note(SESSION, "n", n)
            case "rewrite":
                work = self._rewrite(n)
            case "cancel":
                work = self.api.cancel(SESSION, after_turn=n % 2 == 1)
            case "approve" if gated:
                work = self.api.approve(SESSION, gated[n % len(gated)], by="p", always=n % 5 == 4)
            case "reject" if gated:
                work = self.api.reject(SESSION, gated[n % len(gated)], by="p")
            case "settle" if gated:
                work = self.api.settle(SESSION, gated[n % len(gated)], {"by": "p"}, by="p")
            case _:
                return
        self.tell(f"person: {what}")
        self.speaking.append(asyncio.get_running_loop().create_task(work))

    async def _rewrite(self, n: int) -> None:
        """Have somebody rewrite the view from outside, where no call is open and nothing is asked."""
        while True:
            state = run_state(await self.api.log.records(SESSION))
            if state.phase == ASKING or state.open_calls() or not state.version:
                return
            view = state.place.settled
            kept = [["take", max(len(view) - 1 - n % 4, 0), len(view)]]
            put = ["put", {"role": "developer", "content": "in short"}]
            change = Rewrite(filter="by hand", parameters={}, operations=(put, *kept))
            try:
                await self.api.log.append(
                    SESSION,
                    [HistoryRewritten(cause="manual", rewrite=change)],
                    expected=state.version,
                    ids=[new_id()],
                )
                return
            except ConflictError:
                continue

    async def let(self, n: int, how: str = "through") -> None:
        """Let an operation of the store through, or fail before or after it is done."""
        if not self.operations:
            return
        one = self.operations.pop(n % len(self.operations))
        if one.done.done():
            return
        self.tell(f"{one.port.name} {one.what} {how}")
        if how == "fail":
            one.done.set_exception(LogError("the store is not there"))
            return
        try:
            result = await one.work()
        except (ConflictError, FencedError, UsageError) as error:
            one.done.set_exception(LogError("no answer") if how == "fail after" else error)
        else:
            if how == "fail after":
                one.done.set_exception(LogError("no answer"))
            else:
                one.done.set_result(result)

    def finish(self, n: int, choice: int) -> None:
        """Let an effect come to something."""
        if not self.doing:
            return
        one = self.doing.pop(n % len(self.doing))
        if one.done.done():
            return
        self.tell(f"{one.worker} {one.token} of {one.key} ends with {choice}")
        one.ended = self.now
        one.done.set_result(choice)
        if one.intent:
            self.done.append(one)

    def beat(self, letter: str) -> None:
        """Let a worker's heart beat."""
        worker = self.workers.get(letter)
        if worker is None:
            return
        for claim in worker.engine._sessions._claims.values():
            if claim.driver is not None:
                work = claim.driver.renew(worker.engine._sessions.owner, 10_000.0)
                worker.beating.append(asyncio.get_running_loop().create_task(work))

    def hear(self) -> None:
        """Let the news reach those who are not told at once."""
        for worker in self.workers.values():
            worker.port.news.tell_all()

    async def step(self, n: int) -> None:
        """Let one thing happen; the number says which."""
        self.now += 1
        kind, n = n % 100, n // 100
        letter = "AB"[n % 2]
        if kind < 40 and self.operations:
            await self.let(n)
        elif kind < 68 and self.doing:
            self.finish(n, n // 7)
        elif kind < 76:
            self.ask(letter, ["run", "resume", "plainly", "recover"][n // 2 % 4])
        elif kind < 80:
            self.speak("send")
        elif kind < 88:
            self.speak(["approve", "approve", "reject", "settle", "note", "rewrite"][n % 6], n // 6)
        elif kind < 89:
            self.speak("cancel", n)
        elif kind < 91:
            self.tell("the lease runs out")
            self.store.expire(SESSION)
        elif kind < 93:
            if n // 2 % 3 == 2:
                self.leave(letter, n // 6)
            else:
                self.tell(f"{letter} crashes")
                await self.crash(letter)
        elif kind < 94 and self.operations:
            # It is stored, and whoever asked for it dies before he hears.
            one = self.operations[n % len(self.operations)]
            await self.let(n)
            await self.crash(one.port.name[0])
        elif kind < 96:
            await self.let(n, "fail")
        elif kind < 98:
            await self.let(n, "fail after")
        elif kind < 99:
            await self.let_time_pass() if n // 2 % 3 == 2 else self.beat(letter)
        else:
            self.hear()
        await self.rest()

    # -- the end

    async def end(self) -> None:
        """One worker is left, and a person who answers everything: every run must come to its end."""
        self.slow = frozenset()
        self.deaf = frozenset()
        self.hear()
        self.tell("one worker is left")
        await self.crash("B")
        for _ in range(80):
            await self._go_on()
            state = self.store.state
            if state.phase == IDLE and not state.unanswered and not self._busy():
                await self.let_time_pass()
                if not self.worker("A").tasks:
                    break
        else:
            raise AssertionError(f"the run never ends: {self.store.state.phase}")
        self._check_ledger()
        self._check_outcomes()
        records = await self.store.records(SESSION)
        assert bare(run_state(records)) == bare(self.store.state)

    def _busy(self) -> bool:
        going = [task for worker in self.leaving for task in worker.tasks]
        drives = self.worker("A").engine._sessions.is_driven(SESSION)
        return bool(self.operations or self.doing or self.speaking or going or drives)

    async def let_time_pass(self) -> None:
        """Let everybody wake up who sleeps, for however long."""
        loop: Any = asyncio.get_running_loop()
        for timer in loop._scheduled:
            timer._when = loop.time()
        await self.rest()

    async def _go_on(self) -> None:
        self.hear()
        while self.operations:
            await self.let(0)
            await self.rest()
        while self.doing:
            self.finish(0, 0)
            await self.rest()
        await self.rest()
        state = self.store.state
        for _ in [call for call in state.open_calls() if call.state == GATED]:
            self.speak("approve" if self._made % 2 else "settle")
            await self.rest()
            self.speak("settle")
            await self.rest()
        if self._busy() or (state.phase == IDLE and not state.unanswered):
            return
        self.store.expire(SESSION)
        open_ = state.phase in (RUNNING, ASKING) or wants_worker(state)
        # A run that is going on and that nobody drives is found by whoever recovers; whoever waits
        # in line finds it too, when he looks again.
        if self.worker("A").tasks:
            await self.let_time_pass()
            return
        self.ask("A", "recover" if open_ else "resume")
        await self.rest()
        assert not open_ or self._busy() or self.store.state is not state, "recover has not found the run"

    def _check_ledger(self) -> None:
        """Nothing that is not idempotent ran again without a person's word in between."""
        intents: dict[Ref, list[int]] = {}
        for key, version in self.begun:
            if isinstance(key, Ref):
                intents.setdefault(key, []).append(version)
        for call, versions in intents.items():
            event = self.store.trace[versions[0] - 1].event
            assert isinstance(event, ToolCalled)
            if event.name == "look":
                continue
            for one, two in zip(sorted(versions), sorted(versions)[1:], strict=False):
                words = [record.event for record in self.store.trace[one : two - 1]]
                asked = [e for e in words if isinstance(e, ApprovalDecided) and e.call == call]
                assert any(e.verdict == "run" for e in asked), f"call {call} ran again and nobody was asked"

    def _check_outcomes(self) -> None:
        """What an effect came to is in the log, unless its call or request was closed by somebody else."""
        for one in self.done:
            gave_up = any(name == one.worker and when >= one.ended for name, when in self.gave_up)
            if one.worker in self.crashed or gave_up or one.cancelled:
                continue
            if not any(self._closes(record, one) for record in self.store.trace[one.intent :]):
                raise AssertionError(f"what {one.token} came to is lost (call or request {one.key})")

    def _closes(self, record: Record, one: Doing) -> bool:
        if one.token.encode() in record.payload:
            return True
        match record.event:
            case ModelResponded(request=key) | ModelFailed(request=key):
                return key == one.key
            case ToolReturned(call=call) | ToolAbandoned(call=call) | CallRefused(call=call):
                return call == one.key
            case HandoffMade(call=call):
                return call == one.key
            case RunResumed():
                gone = self.left.get(one.worker, self.now)
                others = [when for name, when in self.takers if name != one.worker]
                return any(one.began <= when <= gone for when in others)  # taken over while it worked
            case RunCancelled():
                return True
            case _:
                return False

    async def stop(self) -> None:
        """Leave no task behind."""
        for letter in list(self.workers):
            await self.crash(letter)
        for worker in self.leaving:
            worker.port.dead = True
            await self._end(worker)
        for task in self.speaking:
            task.cancel()
        await asyncio.gather(*self.speaking, return_exceptions=True)


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is not None
