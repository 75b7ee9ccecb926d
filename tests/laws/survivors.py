"""Processes that share one file and go on only when they are let: what dies, pauses, or is failed by its store.

A process waits before and after each append, and in each model call, tool and callback (`point`).
The store answers at once, in this thread, and the time stands still, so what happens depends on
nothing but who is let go on. What effects have begun is kept outside the processes (`Ledger`).
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, closing
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

from tests.laws.process import Cast, Ids, Process
from tests.laws.scripts import TRANSFERS

import batonlog.engine.storing as storing
from batonlog.engine import Engine, ToolContext
from batonlog.events import (
    ApprovalDecided,
    ConflictError,
    Event,
    FencedError,
    Head,
    Lease,
    LogError,
    ModelRequested,
    Record,
    SessionForked,
    SQLiteLog,
    ToolCalled,
    UsageError,
)
from batonlog.events.log import Alarm, Appended
from batonlog.events.news import News
from batonlog.events.record import now
from batonlog.events.sqlite_file import connect, failure
from batonlog.projections import ModelRequest

_T = TypeVar("_T")

Tell: TypeAlias = Callable[["Worker", dict[str, int]], None]
"""Tells others what a process has appended."""

PATIENCE = storing._TRIES
"""How often a batch is given to a store that fails."""

AGAIN = ("look",)
"""Tools that may run again, with the same key."""


class Still(asyncio.SelectorEventLoop):
    """A loop whose time passes when it is told to."""

    now = 0.0

    def time(self) -> float:
        return self.now


MOMENT = 0.1
"""Seconds that pass while nobody looks: shorter waits are no waits."""


async def rest(loop: Any) -> None:
    """Let all go on until nothing can, unless it is let or time passes."""
    end, quiet = loop.now + MOMENT, 0
    for _ in range(20_000):
        await asyncio.sleep(0)
        soon = [timer._when for timer in loop._scheduled if not timer._cancelled and timer._when <= end]
        if loop._ready:
            quiet = 0
        elif (quiet := quiet + 1) < 3:
            continue
        elif not soon:
            return
        else:
            loop.now, quiet = max(loop.now, min(soon)), 0
    raise AssertionError("it never comes to rest")


@dataclass(frozen=True)
class Storm:
    """What the store of one process fails next."""

    what: Literal["append", "acquire", "fork", "records"] = "append"
    at: str = ""
    """Only appends that hold an event of this type."""
    times: int = 1
    after: bool = False
    """It is done, and the answer is lost."""


class Begun(NamedTuple):
    """An effect that has begun."""

    worker: str
    name: str
    when: int


class Ledger:
    """What has happened outside the log: who appended what, and which effects have begun."""

    def __init__(self) -> None:
        self.now = 0
        self.authors: dict[bytes, str] = {}
        """By the id of the event."""
        self.takers: list[tuple[str, str]] = []
        """Session and owner of every lease that was taken."""
        self.begun: dict[tuple[str, str, int], Begun] = {}
        """By session, call and attempt."""
        self.asked: dict[tuple[str, int], str] = {}
        """Model requests by session and version, and who made them."""
        self.wrong: list[str] = []
        """What should never happen. An effect cannot raise it: that would be its output."""
        self._keys: dict[str, tuple[str, str]] = {}

    def hold(self, right: bool, what: str) -> None:
        """Note what is wrong."""
        if not right:
            self.wrong.append(what)

    def begin(self, worker: str, session: str, context: ToolContext[Any], records: Sequence[Record]) -> None:
        """An effect begins: its own process has announced it, and it is no repetition but by the rules."""
        call, name, attempt = context.call, context.tool, context.attempt
        what = f"{worker} begins {name} {call} of {session}, attempt {attempt}"
        found = [
            record
            for record in records
            if isinstance(event := record.event, ToolCalled)
            and (event.call, event.attempt) == (call, attempt)
        ]
        self.hold(len(found) == 1, f"{what}, announced {len(found)} times")
        for intent in found[:1]:
            self.hold(intent.session == session, f"{what}, which a parent has announced")
            self.hold(self.authors.get(intent.id) == worker, f"{what}: somebody else has announced it")
            before = [
                other
                for other in records[: intent.version - 1]
                if isinstance(event := other.event, ToolCalled)
                and event.call == call
                and (other.session, str(call), event.attempt) in self.begun
            ]
            for last in before[-1:]:
                self.check_again(what, name, str(call), records[last.version : intent.version - 1])
        place = session, str(call), attempt
        self.hold(place not in self.begun, f"{what} a second time")
        self.begun[place] = Begun(worker, name, self.now)
        key = context.idempotency_key
        same = self._keys.setdefault(key, place[:2])
        self.hold(same == place[:2], f"{what} with the key of call {same}")
        keys = [other for other, known in self._keys.items() if known == place[:2]]
        self.hold(keys == [key], f"{what} with another key")

    def check_again(self, what: str, name: str, call: str, between: Sequence[Record]) -> None:
        """It is begun again: an idempotent one in its own session, any other by a person's word."""
        forks = [n for n, record in enumerate(between) if isinstance(record.event, SessionForked)]
        if name in AGAIN and not forks:
            return
        since = between[forks[-1] :] if forks else between
        words = [
            record
            for record in since
            if isinstance(event := record.event, ApprovalDecided)
            and event.verdict == "run"
            and str(event.call) == call
        ]
        self.hold(bool(words), f"{what}, again, and nobody was asked")

    def ask(self, worker: str, session: str, version: int, record: Record) -> None:
        """A model is asked: once for each request, by who has announced it."""
        what = f"{worker} makes request {version} of {session}"
        self.hold(self.authors.get(record.id) == worker, f"{what}, which somebody else has announced")
        self.hold((session, version) not in self.asked, f"{what} a second time")
        self.asked[session, version] = worker


def check_announced(records: Sequence[Record], ledger: Ledger) -> None:
    """No tool is even announced again but by the rules. (Of a callback, only the effect counts.)"""
    last: dict[str, Record] = {}
    for record in records:
        if isinstance(event := record.event, ToolCalled) and event.name not in TRANSFERS:
            call = str(event.call)
            if call in last:
                between = records[last[call].version : record.version - 1]
                what = f"{record.session} announces {event.name} {call} at {record.version}"
                ledger.check_again(what, event.name, call, between)
            last[call] = record


_REQUEST: ContextVar[tuple[str, int]] = ContextVar("request")
"""Session and version of the request that a driver has announced last."""


class Shared(SQLiteLog):
    """One process's way into the file: at once, in this thread. It fails when it is told to."""

    def __init__(self, path: Path, owner: "Worker") -> None:
        super().__init__(path)
        self._owner = owner
        self._db = connect(path, read_only=False)
        self._db.execute("PRAGMA synchronous = OFF")  # processes die here, and not the machine
        self.storms: list[Storm] = []
        self._tries: Counter[object] = Counter()

    def _write(self, work: Callable[[sqlite3.Connection], _T], session: str | None) -> "asyncio.Future[_T]":
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            result = work(self._db)
        except BaseException as error:
            self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise failure(self.path, error) from error
            raise
        self._db.execute("COMMIT")
        future.set_result(result)
        return future

    async def _read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return work(self._db)

    def _fails(self, what: str, events: Sequence[Event] = ()) -> Storm | None:
        for n, storm in enumerate(self.storms):
            if storm.what == what and (not storm.at or any(event.type == storm.at for event in events)):
                left = Storm(storm.what, storm.at, storm.times - 1, storm.after)
                self.storms[n : n + 1] = [left] if left.times else []
                self._owner.failed += 1
                return storm
        return None

    async def _do(self, what: str, work: Coroutine[Any, Any, _T], events: Sequence[Event] = ()) -> _T:
        storm = self._fails(what, events)
        if storm is not None and not storm.after:
            work.close()
            raise LogError("the store is not there")
        done = await work
        if storm is not None:
            raise LogError("no answer")
        return done

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Appended:
        try:
            return await self._do("append", self._append_at_once(session, events, **options), events)
        except ConflictError:
            raise
        except LogError as error:
            self._tries[options.get("ids", (None,))[0]] += 1
            if type(error) is FencedError or PATIENCE in self._tries.values():
                self._tries.clear()
                self._owner.gave_up.add(session)
            raise

    async def _append_at_once(self, session: str, events: Sequence[Event], **options: Any) -> Appended:
        done = await super().append(session, events, **options)
        if not done.duplicate:
            for record in await super().records(session, after=options["expected"], until=done.version):
                self._owner.ledger.authors[record.id] = self._owner.name
            self._owner.tell(self._owner, {session: done.version})
        for n, event in enumerate(events):
            if isinstance(event, ModelRequested):
                _REQUEST.set((session, options["expected"] + n + 1))
        return done

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        return await self._do("acquire", self._acquire_at_once(session, owner, seconds))

    async def _acquire_at_once(self, session: str, owner: str, seconds: float) -> Lease | None:
        row = self._db.execute("SELECT owner, until FROM lease WHERE session = ?", (session,)).fetchone()
        if row is not None and row[0] != owner and row[1] > now():
            lease = await super().acquire(session, owner=owner, seconds=seconds)
            self._owner.ledger.hold(lease is None, f"{owner} takes the lease of {session} from {row[0]}")
            return lease
        lease = await super().acquire(session, owner=owner, seconds=seconds)
        if lease is not None:
            self._owner.ledger.takers.append((session, owner))
        return lease

    async def records(self, session: str, *, after: int = 0, until: int | None = None) -> tuple[Record, ...]:
        try:
            return await self._do("records", super().records(session, after=after, until=until))
        except LogError:
            self._owner.gave_up.add(session)
            raise

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        return await self._do("fork", super().fork(session, at=at, into=into))

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        return self._owner.news.watch(session)

    async def close(self) -> None:
        self._db.close()


class Patient(Engine[Any]):
    """An engine whose leases run out when they are told to."""

    lease_seconds: ClassVar[float] = 10_000.0


@dataclass(eq=False)
class Work:
    """What a process was asked to do."""

    task: asyncio.Task[Any]
    what: str
    session: str | None
    text: str = ""
    since: int = 0
    """How many leases had been taken when it began."""
    failed: int = 0
    """How often its store had failed by then."""


class Worker(Process):
    """A process that goes on when it is let; a free one goes on by itself."""

    def __init__(
        self, path: Path, cast: Cast, ids: Ids, *, name: str, ledger: Ledger, tell: Tell, free: bool = False
    ) -> None:
        self.name, self.ledger, self.tell, self.free = name, ledger, tell, free
        self.news = News()
        """What it is told of at once."""
        self.gates: list[asyncio.Future[None]] = []
        self.works: list[Work] = []
        self.ended: list[Work] = []
        self.failed = 0
        """How often its store has failed."""
        self.gave_up: set[str] = set()
        """Sessions of which it has lost the lease, or in which its store has failed it for good."""
        self.own: Shared
        super().__init__(path, cast, ids)

    def open(self, path: Path) -> SQLiteLog:
        self.own = Shared(path, self)
        return self.own

    def build(self) -> Engine[Any]:
        return self.engine_of(Patient)

    async def point(self) -> None:
        if self.free and self.alive:
            return
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.alive:
            self.gates.append(gate)
        try:
            await gate
        finally:
            if gate in self.gates:
                self.gates.remove(gate)

    def whose(self, request: ModelRequest) -> tuple[str, int]:
        session, version = _REQUEST.get()
        (record,) = at_once(SQLiteLog.records(self.own, session, after=version - 1, until=version))
        self.ledger.hold(isinstance(record.event, ModelRequested), "a model is asked what nobody announced")
        self.ledger.ask(self.name, session, version, record)
        return session, version

    def saw(self, session: str, context: ToolContext[Any]) -> None:
        self.ledger.begin(self.name, session, context, at_once(SQLiteLog.records(self.own, session)))

    # -- what it is asked to do

    def ask(self, what: str, session: str | None, work: Coroutine[Any, Any, Any], text: str = "") -> Work:
        """Begin something."""
        task = asyncio.get_running_loop().create_task(work)
        one = Work(task, what, session, text, len(self.ledger.takers), self.failed)
        self.works.append(one)
        return one

    async def let(self, points: int | None, order: int = 0) -> None:
        """Go on for so many points, or until nothing is left to do."""
        loop: Any = asyncio.get_running_loop()
        self.news.tell_all()
        await rest(loop)
        for _ in range(400 if points is None else points):
            if not self.gates:
                break
            gate = self.gates.pop(order % len(self.gates))
            if not gate.done():
                gate.set_result(None)
            await rest(loop)
        else:
            assert points is not None, f"{self.name} goes on for ever"
        ended = [work for work in self.works if work.task.done()]
        self.works = [work for work in self.works if not work.task.done()]
        self.ended += ended

    def drives(self, session: str) -> bool:
        """Whether it drives a session, or is about to say something to it."""
        return self.engine._sessions.is_driven(session) or any(work.session == session for work in self.works)

    async def die(self) -> None:
        """Nothing of it goes on, and nothing is cleaned up."""
        self.alive = False
        self.gates.clear()
        heart = self.engine._sessions._claims._heart
        tasks = [*(work.task for work in self.works), *self.engine._tasks, *([heart] if heart else [])]
        for _ in range(3):
            for task in tasks:
                task.cancel()
            await rest(asyncio.get_running_loop())
        await asyncio.gather(*[task for task in tasks if task.done()], return_exceptions=True)
        self.works.clear()
        await self.own.close()

    async def leave(self) -> None:
        """End as it should: what it has done is kept, and its leases are given back."""
        one = self.ask("close", None, self.engine.close())
        await self.let(None)
        assert one.task.done(), f"{self.name} cannot be closed"
        self.alive = False
        await self.own.close()

    def check_ended(self) -> list[Work]:
        """Hold what has ended: it came to an error of a documented type, or to something. Return that."""
        came: list[Work] = []
        ended, self.ended = self.ended, []
        for work in ended:
            if work.task.cancelled():
                continue
            error = work.task.exception()
            if error is not None and not self._may_raise(work, error):
                raise AssertionError(f"{self.name} {work.what} {work.session} raises {error!r}") from error
            if error is None:
                came.append(work)
        return came

    def _may_raise(self, work: Work, error: BaseException) -> bool:
        kind = type(error).__name__
        match error:
            case ConflictError():
                return work.what == "fork"
            case FencedError():
                since = self.ledger.takers[max(work.since - 1, 0) :]
                owner = self.engine._sessions.owner
                return any(taker != owner for session, taker in since if session == work.session)
            case LogError():
                return type(error) is LogError and self.failed > work.failed
            case UsageError() if kind == "IllegalTransitionError":
                return False
            case UsageError() if "closed" in str(error):
                return self.engine._sessions.closed
            case UsageError() if kind == "UnknownAgentError":
                return bool(self.cast.gone) and not self.cast.stand_in
            case UsageError():
                return work.what not in ("run", "stream", "serve", "recover", "send")
            case _:
                return kind in ("RunFailedError", "SessionBusyError")


def at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of what waits for nobody."""
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    raise AssertionError("it waits")


def run_out(path: Path, session: str) -> None:
    """Let the time of a lease be over."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE lease SET until = 1 WHERE session = ? AND until > 1", (session,))


def has_lease(path: Path, session: str) -> bool:
    """Whether somebody has a lease, or has left one that has run out."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        row = db.execute("SELECT until FROM lease WHERE session = ?", (session,)).fetchone()
    return row is not None and row[0] > 0
