"""Two engines at once over one file, which die, pause, lose their leases, and are failed by their store.

What they are asked to do is all that an engine can do. After each step every session is read anew
and held against all laws (witness.py), and the effects against what the log has announced
(survivors.py). In the end one process is left, and a person who answers: all must come to rest.
"""

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.laws.casting import parts, verdicts
from tests.laws.depth import tried
from tests.laws.process import PAIRS, Answer, Cast, Edge, Ids
from tests.laws.sayings import called
from tests.laws.scripts import Thing
from tests.laws.shipped import Chosen, Composed, built, compositions
from tests.laws.survivors import (
    Ledger,
    Still,
    Storm,
    Worker,
    at_once,
    check_announced,
    has_lease,
    rest,
    run_out,
)
from tests.laws.witness import Expected, Witness, versions

from batonlog.engine import RunFailedError, SessionBusyError
from batonlog.engine.decide import needs_worker
from batonlog.events import (
    CallRefused,
    Event,
    HandoffMade,
    InputAdded,
    Limits,
    ModelFailed,
    ModelResponded,
    Record,
    Ref,
    RunCancelled,
    RunResumed,
    RunStarted,
    ToolAbandoned,
    ToolReturned,
    UsageError,
)
from batonlog.events.lifecycle import GATED, IDLE, STOPPED
from batonlog.projections import session_history
from batonlog.projections.state import State, run_state

# -- what is drawn

who = st.integers(0, 1)
anyone = st.integers(0, 2)
"""One of the processes, or a person's, which has no agents."""

which = st.integers(0, 7)
lives = st.one_of(st.none(), st.integers(0, 8), st.integers(0, 30))
"""How many points a process goes on for; None until it rests."""

takings = st.sampled_from(["resume", "recover", "run"])
schedules = st.lists(st.integers(0, 40 * 8 - 1), min_size=6, max_size=40)
ends = st.sampled_from(["pause", "pause", "die"])
storms = st.one_of(
    *[st.none()] * 3,
    st.builds(
        Storm,
        st.sampled_from(["append", "append", "append", "acquire", "records"]),
        st.sampled_from(["", "", "handoff.made", "tool.called", "tool.returned", "run.started"]),
        st.sampled_from([1, 1, 2, 6, 9]),
        st.booleans(),
    ).map(lambda storm: storm if storm.what == "append" else Storm(storm.what, "", storm.times, storm.after)),
)


def _calls(*names: str) -> list[Thing]:
    return [called(f"c{n}", name, f'{{"n": {n}}}') for n, name in enumerate(names, 1)]


_THOUGHT: Thing = {"type": "reasoning", "id": "rs_1", "summary": []}
_WORDS: Thing = {"type": "message", "role": "assistant", "content": "Well."}

_ANSWERS = [
    *(
        Answer(_calls(name))
        for name in ("look", "look", "note", "steer", "stop", "lost", "pay", "wait", "boom")
    ),
    *(Answer(_calls(name)) for name in ("@0", "@1", "@0", "@1")),
    Answer(_calls("look", "note", "look")),
    Answer(_calls("note", "note", "@1")),
    Answer(_calls("pay", "look", "@0")),
    Answer(_calls("note", "wait", "pay")),
    Answer(_calls("lost", "boom", "note", "@1", "@0")),
    Answer([_THOUGHT, *_calls("look", "note")]),
    Answer([_WORDS, *_calls("pay", "pay")]),
    Answer([_THOUGHT, _WORDS]),
    Answer([_WORDS]),
    Answer(_calls("note"), incomplete=True),
    *(Answer(_calls("look"), error=error) for error in ("long", "lost", "broken", "down", "down", "gone")),
]


@st.composite
def answered(draw: st.DrawFn) -> list[Answer]:
    """What models say next."""
    return draw(st.lists(st.sampled_from(_ANSWERS), min_size=1, max_size=5))


_KEEP: Composed = (Chosen("keep_last", 3),)
_NEST: Composed = (Chosen("nest"),)
_OWN: Composed = (Chosen("own_view"), Chosen("messages_only"))
_EDGES = [
    Edge(),
    Edge(callback=True),
    Edge(callback=True, gate=True),
    Edge(filters=None, callback=True),
    Edge(filters=_NEST, callback=True),
    Edge(filters=_OWN, keep_untaken=True),
]


@st.composite
def coded(draw: st.DrawFn) -> Cast:
    """The code of a process."""
    some = st.sampled_from(_EDGES)
    return Cast(
        edges=[draw(some), draw(some)] * (len(PAIRS) // 2),
        default=draw(st.sampled_from([None, _KEEP, _NEST, _OWN])),
        compact=draw(st.sampled_from([None, _KEEP, _NEST])),
        compact_above=draw(st.sampled_from([None, None, 60])),
        next_agent=draw(st.sampled_from(["active", "entry", "source"])),
        chain=draw(st.sampled_from([None, "previous_response_id", "conversation"])),
        second_model=draw(st.sampled_from([(), (1,)])),
        busy=draw(st.sampled_from(["refuse", "queue", "steer"])),
        gone=draw(st.sampled_from([(), (), (), (1,), (2,), (0,)])),
        stand_in=draw(st.booleans()),
        attempts=draw(st.integers(1, 3)),
        spare=draw(st.booleans()),
    )


answers, codes = answered(), coded()
again = st.one_of(st.none(), codes)
"""The code of the next process; None for the same."""

SAID = re.compile(rb"message (\d+)[.]")


class Authors:
    """The code of whoever appended a record."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.casts: dict[str, Cast] = {}

    def of(self, record: Record) -> Cast:
        """The code that appended it."""
        return self.casts[self._ledger.authors.get(record.id, "person")]

    def expect(self, source: str, target: str) -> Expected:
        raise NotImplementedError

    def begins(self, active: str | None) -> str | None:
        raise NotImplementedError

    def acts(self, agent: str | None) -> str | None:
        raise NotImplementedError


class Survival(RuleBasedStateMachine):
    """Two processes, a person, and one who decides what happens."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=Still)
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "log.db"
        self._witness = Witness()
        self._ledger = Ledger()
        self._code = Authors(self._ledger)
        self._ids = Ids()
        self._sessions: list[str] = []
        self._workers: list[Worker] = []
        self._keyed: list[tuple[str, str, str]] = []
        """Session, id and text of every run that a client has named."""
        self._said = 0
        self._deaf = False
        self._whole = True
        """Nothing has gone wrong so far."""
        self._happened: list[str] = []
        self._person: Worker

    # -- processes

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        self._whole = False
        self._ledger.now += 1
        done = self._runner.run(work)
        self._whole = True
        return done

    def _tell(self, author: Worker, changed: dict[str, int]) -> None:
        for worker in [*self._workers, self._person]:
            if worker is author or not self._deaf:
                worker.news.tell(changed)

    async def _started(self, cast: Cast, *, name: str = "", free: bool = False) -> Worker:
        name = name or f"w{self._ids()}"
        self._code.casts[name] = cast
        return Worker(self._path, cast, self._ids, name=name, ledger=self._ledger, tell=self._tell, free=free)

    @initialize(one=codes, two=codes, deaf=st.booleans(), answers=answers)
    def begin(self, one: Cast, two: Cast, deaf: bool, answers: list[Answer]) -> None:
        async def begin() -> None:
            self._person = await self._started(Cast(gone=(0, 1, 2)), name="person", free=True)
            self._workers = [await self._started(one), await self._started(two)]
            self._deaf = deaf

        self._do(begin())
        self.say(0, 0, answers, None, "pause", 0, None, None, "", None)

    def _session(self, n: int) -> str:
        return self._sessions[n % len(self._sessions)]

    def _anyone(self, n: int) -> Worker:
        return [*self._workers, self._person][n]

    async def _go(self, worker: Worker, life: int | None, end: str, order: int) -> None:
        """Let a process go on for so many points; then it pauses, or dies."""
        await worker.let(life, order)
        if worker.gates and end == "die":
            await self._replaced(worker, None)

    async def _replaced(self, worker: Worker, cast: Cast | None) -> None:
        self._happened.append(f"{worker.name} dies")
        self._look_at(worker)
        await worker.die()
        await self._succeeded(worker, cast)

    async def _succeeded(self, worker: Worker, cast: Cast | None) -> None:
        n = self._workers.index(worker)
        self._workers[n] = await self._started(worker.cast if cast is None else cast)

    # -- what they are asked to do

    @rule(
        who=who,
        n=which,
        answers=answers,
        life=lives,
        end=ends,
        order=which,
        limit=st.sampled_from([None, None, None, 1, 3]),
        storm=storms,
        key=st.sampled_from(["", "new", "new", "again"]),
        leave=st.sampled_from([None, None, None, 0, 3]),
    )
    def say(
        self,
        who: int,
        n: int,
        answers: list[Answer],
        life: int | None,
        end: str,
        order: int,
        limit: int | None,
        storm: Storm | None,
        key: str,
        leave: int | None,
    ) -> None:
        """Somebody says something, whether or not the session takes it; or follows it, and leaves."""
        worker = self._workers[who]
        if not self._sessions or (n == 7 and len(self._sessions) < 3):
            self._sessions.append(f"s{len(self._sessions)}")
        session, text, run_id = self._session(n), self._text(), None
        if key == "again" and self._keyed:
            session, run_id, text = self._keyed[n % len(self._keyed)]
        elif key:
            run_id = f"r{self._said}"
            self._keyed.append((session, run_id, text))
        worker.answers.setdefault(session, []).extend(answers)
        worker.own.storms = [storm] if storm is not None else []
        limits = Limits(turns=limit, ping_pong=worker.cast.ping_pong) if limit is not None else None

        async def say() -> None:
            engine = worker.engine
            if leave is None:
                work = engine.run(text, session=session, run_id=run_id, limits=limits)
                worker.ask("run", session, work, text)
            else:
                stream = engine.stream(text, session=session, run_id=run_id, limits=limits)
                worker.ask("stream", session, stream.result(), text)
                worker.ask("follow", session, _left(stream, leave))
            await self._go(worker, life, end, order)

        self._happened.append(f"{worker.name} run {session} {text}")
        self._do(say())

    def _text(self) -> str:
        self._said += 1
        return f"message {self._said}."

    @precondition(lambda self: self._sessions)
    @rule(
        who=who, n=which, answers=answers, life=lives, end=ends, order=which, storm=storms, verdicts=verdicts
    )
    def go_on(
        self,
        who: int,
        n: int,
        answers: list[Answer],
        life: int | None,
        end: str,
        order: int,
        storm: Storm | None,
        verdicts: list[str],
    ) -> None:
        """Whatever a session waits for, it gets, and somebody resumes it."""
        worker, session = self._workers[who], self._session(n)
        worker.answers.setdefault(session, []).extend(answers)

        async def go_on() -> None:
            state = await self._state(session)
            await self._answer(session, state, verdicts)
            worker.own.storms = [storm] if storm is not None else []
            run = state.run
            limits = Limits(turns=run.turns + 8, handoffs=200) if run is not None and run.at_limit else None
            worker.ask("resume", session, worker.engine.resume(session, limits=limits))
            await self._go(worker, life, end, order)

        self._happened.append(f"{worker.name} resume {session}")
        self._do(go_on())

    async def _state(self, session: str) -> State:
        return run_state(await self._person.own.records(session))

    async def _answer(self, session: str, state: State, verdicts: Sequence[str]) -> None:
        engine = self._person.engine
        for k, call in enumerate(state.open_calls()):
            if call.state != GATED:
                continue
            match verdicts[k % len(verdicts)]:
                case "run" if call.why != "external":
                    await engine.approve(session, call.ref, by="p")
                case "refuse":
                    await engine.reject(session, call.ref, by="p", reason="no")
                case _:
                    await engine.settle(session, call.ref, {"done": True}, by="p")

    @precondition(lambda self: self._sessions)
    @rule(who=who, n=which, answers=answers, life=lives, verdicts=verdicts)
    def go_on_and_on(
        self, who: int, n: int, answers: list[Answer], life: int | None, verdicts: list[str]
    ) -> None:
        """The same: most of what happens is talk."""
        self.go_on(who, n, answers, life, "pause", n, None, verdicts)

    @rule(who=who, n=which, answers=answers, life=lives, order=which)
    def talk(self, who: int, n: int, answers: list[Answer], life: int | None, order: int) -> None:
        """Somebody says something more."""
        self.say(who, n, answers, life, "pause", order, None, None, "", None)

    @precondition(lambda self: self._sessions)
    @rule(
        who=who,
        what=st.sampled_from(["recover", "recover", "serve"]),
        life=lives,
        end=ends,
        order=which,
        storm=storms,
    )
    def find(self, who: int, what: str, life: int | None, end: str, order: int, storm: Storm | None) -> None:
        """Whatever is left of the dead is taken up: once, or from now on."""
        worker = self._workers[who]
        worker.own.storms = [storm] if storm is not None else []

        async def find() -> None:
            engine = worker.engine
            worker.ask(what, None, engine.recover() if what == "recover" else engine.serve())
            await self._go(worker, life, end, order)

        self._happened.append(f"{worker.name} {what}")
        self._do(find())

    @precondition(lambda self: self._sessions)
    @rule(
        by=anyone,
        n=which,
        what=st.sampled_from(
            ["send", "send", "send", "note", "cancel", "after", "approve", "always", "reject", "settle"]
        ),
        life=lives,
        end=ends,
        storm=storms,
    )
    def speak(self, by: int, n: int, what: str, life: int | None, end: str, storm: Storm | None) -> None:
        """Somebody says something to a session that others drive, or nobody."""
        waiting = [name for name, seen in self._witness.sessions.items() if _waits(seen.state)]
        decides = what in ("approve", "always", "reject", "settle")
        worker, session = self._anyone(by), self._session(n)
        session = waiting[n % len(waiting)] if decides and waiting else session
        if worker is not self._person:
            worker.own.storms = [storm] if storm is not None else []

        async def speak() -> None:
            state = await self._state(session)
            text = self._text() if what == "send" else ""
            work = _spoken(worker, what, session, state, n, text)
            worker.ask(what, session, work, text)
            await worker.let(life)
            if worker.gates and end == "die" and worker is not self._person:
                await self._replaced(worker, None)

        self._happened.append(f"{worker.name} {what} {session}")
        self._do(speak())

    @precondition(lambda self: self._sessions)
    @rule(who=who, n=which, composed=compositions(), life=lives, end=ends, storm=storms)
    def rewrite(
        self, who: int, n: int, composed: Composed, life: int | None, end: str, storm: Storm | None
    ) -> None:
        """Somebody edits what the model sees."""
        worker, session = self._workers[who], self._session(n)
        worker.own.storms = [storm] if storm is not None else []

        async def rewrite() -> None:
            worker.ask("rewrite", session, worker.engine.rewrite(session, built(composed)))
            await self._go(worker, life, end, 0)

        self._happened.append(f"{worker.name} rewrite {session}")
        self._do(rewrite())

    @precondition(lambda self: self._sessions)
    @rule(
        by=anyone,
        n=which,
        part=parts,
        mid=st.booleans(),
        there=st.sampled_from([False] * 5 + [True]),
        storm=st.sampled_from([None, None, Storm("fork"), Storm("fork", after=True), Storm("fork", times=9)]),
        then=st.sampled_from([None, 0, 0, 1]),
    )
    def fork(
        self, by: int, n: int, part: int, mid: bool, there: bool, storm: Storm | None, then: int | None
    ) -> None:
        """Somebody continues a session from an earlier version, or tries to do so into one that is there.

        Often it is forked while a call is in flight, and somebody resumes what comes of it at once.
        """
        worker, session = self._anyone(by), self._session(n)
        if session not in self._witness.sessions or len(self._sessions) > 5:
            return
        into = self._session(n // 2) if there else f"f{len(self._sessions)}"
        records = self._witness.sessions[session].records
        begun = [record.version for record in records if mid and record.type == "tool.called"]
        places = begun or range(1, len(records) + 1)
        at = max(1, places[(len(places) - 1) * (100 - part) // 100])
        if worker is not self._person:
            worker.own.storms = [storm] if storm is not None else []

        async def fork() -> None:
            before = await self._person.own.records(session)
            worker.ask("fork", session, worker.engine.fork(session, at=at, into=into))
            await worker.let(0)
            assert await self._person.own.records(session) == before, "a fork changed its parent"
            if into not in self._sessions and await self._person.own.head(into) is not None:
                self._sessions.append(into)
                if then is not None:
                    self._begin(self._workers[then], "resume", into)
                    await self._workers[then].let(None)

        self._happened.append(f"{worker.name} fork {session} at {at} into {into}")
        self._do(fork())

    @precondition(lambda self: self._sessions)
    @rule(by=anyone, n=which, after=st.integers(0, 9))
    def follow(self, by: int, n: int, after: int) -> None:
        """Somebody follows a session, until it rests."""
        worker, session = self._anyone(by), self._session(n)
        if session in self._witness.sessions:
            self._do(self._followed(worker, session, after))

    async def _followed(self, worker: Worker, session: str, after: int) -> None:
        worker.ask("follow", None, _all(worker, session, after))
        await worker.let(0)

    async def _fork_here(self, session: str, worker: Worker) -> None:
        """Continue a session from where it is, whatever is in flight, and go on with both."""
        if not (before := await self._person.own.records(session)):
            return
        into = await self._person.engine.fork(session, into=f"f{len(self._sessions)}")
        self._sessions.append(into)
        assert await self._person.own.records(session) == before, "a fork changed its parent"
        self._begin(worker, "resume", into)
        await worker.let(6)

    # -- what becomes of them

    @precondition(lambda self: any(worker.gates for worker in self._workers))
    @rule(who=who, life=lives, end=ends, order=which)
    def let(self, who: int, life: int | None, end: str, order: int) -> None:
        """Who was paused goes on."""
        worker = self._workers[who] if self._workers[who].gates else self._workers[1 - who]
        self._happened.append(f"{worker.name} goes on")
        self._do(self._go(worker, life, end, order))

    @rule(
        who=who, n=which, answers=answers, life=st.integers(0, 12), taking=takings, lives=lives, order=which
    )
    def take_over(
        self, who: int, n: int, answers: list[Answer], life: int, taking: str, lives: int | None, order: int
    ) -> None:
        """Somebody is paused and his lease runs out, another takes over, and then the first goes on."""
        zombie, worker = self._workers[who], self._workers[1 - who]
        if not zombie.gates:
            self.say(who, n, answers, life, "pause", order, None, None, "new", None)
        driven = [session for session in self._sessions if zombie.engine._sessions.is_driven(session)]
        if not driven:
            return
        session = driven[n % len(driven)]

        async def take_over() -> None:
            run_out(self._path, session)
            self._begin(worker, taking, session)
            await worker.let(lives)
            await zombie.let(None, order)

        self._happened.append(f"{worker.name} takes {session} over from {zombie.name}")
        self._do(take_over())

    def _begin(self, worker: Worker, what: str, session: str) -> None:
        """Ask a process for something."""
        self._happened.append(f"{worker.name} {what} {session}")
        engine = worker.engine
        match what:
            case "resume":
                worker.ask(what, session, engine.resume(session))
            case "recover":
                worker.ask(what, None, engine.recover())
            case "send":
                text = self._text()
                worker.ask(what, session, engine.send(text, session=session), text)
            case "cancel" | "after":
                worker.ask(what, session, engine.cancel(session, after_turn=what == "after"))
            case _:
                named = [one for one in self._keyed if one[0] == session] if what == "again" else []
                if named:
                    _, run_id, text = named[-1]
                else:
                    text, run_id = self._text(), f"r{self._said}"
                    self._keyed.append((session, run_id, text))
                worker.ask("run", session, engine.run(text, session=session, run_id=run_id), text)

    @rule(n=which, answers=answers, schedule=schedules)
    def interleave(self, n: int, answers: list[Answer], schedule: list[int]) -> None:
        """Everybody at once, on one session: each number lets one thing happen."""
        session = self._session(n)
        for worker in self._workers:
            worker.answers.setdefault(session, []).extend(answers)
        for number in schedule:
            self._do(self._happen(session, number % 40, number // 40))

    async def _happen(self, session: str, kind: int, n: int) -> None:
        worker = self._workers[n % 2]
        if kind < 26:
            if not worker.gates:
                worker = self._workers[1 - n % 2]
            await worker.let(1, n // 2)
        elif kind < 28:
            self._happened.append(f"the lease of {session} runs out")
            run_out(self._path, session)
        elif kind < 36:
            what = ["run", "again", "resume", "resume", "recover", "recover", "send", "cancel"][kind - 28]
            if len(worker.works) < 4:
                self._begin(worker, what, session)
                await worker.let(0)
        elif kind < 37:
            await self._replaced(worker, None)
        elif kind < 38:
            self._begin(self._person, ["send", "send", "after", "cancel"][n % 4], session)
            await self._person.let(0)
        elif kind < 39 and len(self._sessions) < 5:
            await self._fork_here(session, worker)
        else:
            await self._answer(session, await self._state(session), [["run", "refuse", "answer"][n % 3]])
            for one in self._workers:
                await one.let(0)

    @rule(who=who, cast=again)
    def die(self, who: int, cast: Cast | None) -> None:
        """A process is killed; another, with other code, takes its place."""
        self._do(self._replaced(self._workers[who], cast))

    @rule(who=who, cast=again)
    def leave(self, who: int, cast: Cast | None) -> None:
        """A process is closed as it should be; another, with other code, takes its place."""
        worker = self._workers[who]

        async def leave() -> None:
            worker.own.storms = []
            await worker.leave()
            await self._succeeded(worker, cast)

        self._happened.append(f"{worker.name} leaves")
        self._do(leave())
        self._look_at(worker)

    @precondition(lambda self: self._sessions)
    @rule(n=which)
    def expire(self, n: int) -> None:
        """A lease runs out: whoever had it may not know."""
        self._happened.append(f"the lease of {self._session(n)} runs out")
        run_out(self._path, self._session(n))

    @rule(seconds=st.sampled_from([1, 10, 4000, 20_000]))
    def wait(self, seconds: int) -> None:
        """Time passes: hearts beat, and who waits looks again."""

        async def wait() -> None:
            loop: Any = asyncio.get_running_loop()
            loop.now += seconds
            await rest(loop)
            for worker in self._workers:
                await worker.let(0)

        self._happened.append(f"{seconds} seconds pass")
        self._do(wait())

    # -- what holds

    @invariant()
    def laws(self) -> None:
        """Hold everything against all laws."""
        if not hasattr(self, "_person") or not self._whole:
            return
        self._whole = False
        self._runner.run(self._check())
        self._whole = True

    async def _check(self) -> None:
        heard = []
        for worker in self._workers:
            heard += worker.heard
            worker.heard = []
        known = {name: len(seen.records) for name, seen in self._witness.sessions.items()}
        await self._witness.look(self._person.own, self._code, heard)
        assert not self._ledger.wrong, self._ledger.wrong
        for worker in [*self._workers, self._person]:
            self._look_at(worker)
            assert (
                worker is not self._person
                or not worker.works
                or all(w.what == "follow" for w in worker.works)
            )
        for name, seen in self._witness.sessions.items():
            if len(seen.records) != known.get(name):
                check_announced(seen.records, self._ledger)
                assert not self._ledger.wrong, self._ledger.wrong
                _check_said(seen.records)
                await self._person.engine.status(name)
            self._check_woken(name, seen.records, seen.state)
        self._check_kept()

    def _look_at(self, worker: Worker) -> None:
        """What was asked of a process has come to what it may, and what was said is recorded once."""
        for work in worker.check_ended():
            if work.session and work.text:
                records = at_once(self._person.own.records(work.session))
                assert _times(records)[work.text] == 1, f"{work.text} was taken, and is not recorded"

    def _check_woken(self, session: str, records: Sequence[Record], state: State) -> None:
        """Where a worker should go on, one is there or is found missing."""
        if not needs_worker(state) or any(worker.drives(session) for worker in self._workers):
            return
        own = [record for record in records if record.session == session]
        if own[0].type == "session.forked" and all(record.type == "note.added" for record in own[1:]):
            return  # nobody has spoken to it
        assert has_lease(self._path, session), f"nobody is woken up for {session}"

    def _check_kept(self) -> None:
        """What effects came to is in the log, of processes that live and that nobody has taken over."""
        for worker in self._workers:
            for (session, call, attempt), begun in self._ledger.begun.items():
                if begun.worker == worker.name and not self._excused(worker, session):
                    self._check_closed(worker, session, call, attempt)
            for (session, version), name in self._ledger.asked.items():
                if name == worker.name and not self._excused(worker, session):
                    self._check_closed(worker, session, version, 0)

    def _excused(self, worker: Worker, session: str) -> bool:
        return worker.drives(session) or session in worker.gave_up or session not in self._witness.sessions

    def _check_closed(self, worker: Worker, session: str, key: str | int, attempt: int) -> None:
        records = self._witness.sessions[session].records
        if isinstance(key, int):
            later = records[key:]
        else:
            made = [r.version for r in records if _announces(r.event, key, attempt)]
            later = records[made[0] :]
        closed = any(_closes(record.event, key) for record in later)
        assert closed, f"what {key} of {session} came to is lost by {worker.name}"

    # -- the end

    def teardown(self) -> None:
        try:
            if hasattr(self, "_person") and self._whole:
                self._do(self._end())
                self.laws()
            elif hasattr(self, "_person"):
                self._tell_all()
        finally:
            if hasattr(self, "_person"):
                self._runner.run(self._stop())
            self._runner.close()
            self._folder.cleanup()

    async def _stop(self) -> None:
        """Leave no task and no file open."""
        for worker in [*self._workers, self._person]:
            await worker.die()

    def _tell_all(self) -> None:
        """Tell what has happened, for people."""
        note("\n".join(self._happened))
        for name, seen in self._witness.sessions.items():
            note("\n".join([name, *versions(seen)]))

    async def _end(self) -> None:
        """One process is left, and a person who answers everything: all sessions must come to rest."""
        for worker in list(self._workers):
            self._look_at(worker)
            await worker.die()
        self._happened.append("one is left")
        last = await self._started(Cast(), free=True)
        self._workers = [last]
        names = [head.session async for head in self._person.own.heads()]
        for session in names:
            run_out(self._path, session)
        last.ask("serve", None, last.engine.serve())
        await self._all_at_rest(last, names)
        for session in names:
            state = await self._state(session)
            if state.phase == STOPPED:
                turns = state.run.turns if state.run is not None else 0
                limits = Limits(turns=turns + 50, handoffs=999)
                last.ask("resume", session, last.engine.resume(session, limits=limits))
        await self._all_at_rest(last, names)
        for session in names:
            state = await self._state(session)
            failed = state.run is not None and state.run.status == "failed"
            assert state.phase == IDLE or failed, f"{session} does not come to rest: {state.phase}"
            if not await self._is_quiet_fork(session):
                _check_answered(await self._person.own.records(session))
        await last.leave()
        self._look_at(last)
        self._workers = []

    async def _all_at_rest(self, last: Worker, names: Sequence[str]) -> None:
        loop: Any = asyncio.get_running_loop()
        for n in range(60):
            loop.now += 2
            await last.let(0)
            busy = [session for session in names if last.drives(session)]
            for session in names:
                state = await self._state(session)
                if _waits(state):
                    await self._answer(session, state, ["run", "answer"] if n % 2 else ["answer"])
                    busy.append(session)
                elif needs_worker(state) and not await self._is_quiet_fork(session):
                    busy.append(session)
            if not busy:
                return
        raise AssertionError(f"{busy} never come to rest")

    async def _is_quiet_fork(self, session: str) -> bool:
        own = [record.type async for record in self._person.own.read(session)]
        return own[0] == "session.forked" and set(own[1:]) <= {"note.added"}


# -- what was said, and what became of it


def _spoken(
    worker: Worker, what: str, session: str, state: State, n: int, text: str
) -> Coroutine[Any, Any, object]:
    engine, open_ = worker.engine, state.open_calls()
    gated = [call for call in open_ if call.state == GATED] or open_
    call = gated[n % len(gated)].ref if gated else Ref(1, 0)
    match what:
        case "send":
            return engine.send(text, session=session)
        case "note":
            return engine.note(session, "seen", n)
        case "cancel" | "after":
            return engine.cancel(session, after_turn=what == "after")
        case "approve" | "always":
            return engine.approve(session, call, by="p", always=what == "always")
        case "reject":
            return engine.reject(session, call, by="p", always=n == 7)
        case _:
            return engine.settle(session, call, {"by": "p"}, by="p")


def _waits(state: State) -> bool:
    return any(call.state == GATED for call in state.open_calls())


async def _left(stream: Any, updates: int) -> None:
    """Follow a stream for so many updates, and leave."""
    with suppress(RunFailedError, SessionBusyError, UsageError):
        async for _ in stream:
            updates -= 1
            if updates < 0:
                return


async def _all(worker: Worker, session: str, after: int) -> None:
    """Follow a session until it rests: no record is missing."""
    async for update in worker.engine.updates(session, after=after):
        if isinstance(update, Record):
            assert update.version == after + 1, f"{update.version} follows {after}"
            after = update.version


def _times(records: Sequence[Record]) -> Counter[str]:
    """How often each message was recorded."""
    given = [record.payload for record in records if record.type in ("run.started", "input.added")]
    return Counter(f"message {found.decode()}." for payload in given for found in SAID.findall(payload))


def _check_said(records: Sequence[Record]) -> None:
    """What was said is recorded once, and stands once in the history; the view is the witness's."""
    times = _times(records)
    assert set(times.values()) <= {1}, f"recorded more than once: {times}"
    stands = Counter(
        f"message {found.decode()}."
        for item in session_history(records)
        if item.data.get("role") == "user"
        for found in SAID.findall(bytes(item.held))
    )
    assert stands == times, "what was said does not stand in the history once"


def _check_answered(records: Sequence[Record]) -> None:
    """What was said has been shown, or went with the run that somebody cancelled or superseded."""
    for record in records:
        match record.event:
            case InputAdded(goes_to="run"):
                takes = {"run.started"}
            case InputAdded() | RunStarted():
                takes = {"run.started", "model.requested", "run.cancelled", "run.failed"}
            case _:
                continue
        later = {other.type for other in records[record.version :]}
        assert takes & later, f"what was said at {record.version} of {record.session} is lost"


def _announces(event: Event, call: str, attempt: int) -> bool:
    return event.type == "tool.called" and (
        str(getattr(event, "call", "")),
        getattr(event, "attempt", 0),
    ) == (
        call,
        attempt,
    )


def _closes(event: Event, key: str | int) -> bool:
    match event:
        case ModelResponded(request=request) | ModelFailed(request=request):
            return request == key
        case ToolReturned(call=call) | ToolAbandoned(call=call) | CallRefused(call=call):
            return str(call) == key
        case HandoffMade(call=call):
            return str(call) == key
        case RunCancelled() | RunResumed():
            return True
        case _:
            return False


TestSurvival = pytest.mark.usefixtures("at_once")(Survival.TestCase)
TestSurvival.settings = tried(36, many=400, steps=20)
