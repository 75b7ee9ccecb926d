"""The store of the world: what it takes is held against the laws, and it answers when it is told to."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.laws.checks import Provider, shown
from tests.laws.store import Store

import batonlog.engine.storing as storing
from batonlog.events import (
    ConflictError,
    Event,
    EventLog,
    FencedError,
    Head,
    Lease,
    LogError,
    ModelRequested,
    Record,
    RunCompleted,
    ToolCalled,
)
from batonlog.events.lifecycle import ANYONE, IDLE, STOPPED, objection
from batonlog.events.log import Alarm, Appended
from batonlog.events.news import News
from batonlog.events.record import GENESIS, link
from batonlog.projections import Item, model_request
from batonlog.projections.legality import violations
from batonlog.projections.placement import Placement, place
from batonlog.projections.state import State, advance

if TYPE_CHECKING:
    from tests.laws.world import World

SESSION = "talk"
PATIENCE = storing._TRIES
"""How often a batch is given to a store that fails."""


class Watched(Store):
    """The log that all share. Each record is held against the laws as it is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.trace: list[Record] = []
        self.authors: list[str] = []
        """Who appended each record."""
        self.state = State()
        self.shown: dict[int, list[Item]] = {}
        """What each request sends."""
        self._session = Placement(rewrites=False)
        self._provider = Provider()
        self._hash = GENESIS

    async def take(self, author: str, session: str, events: Sequence[Event], **options: Any) -> Appended:
        """Append for somebody. What not anyone may append needs a lease, or a run that waits."""
        bare_handed = options.get("lease") is None and self.state.phase != STOPPED
        done = await self.append(session, events, **options)
        if bare_handed and not done.duplicate:
            free = all(event.type in ANYONE or event.type == "history.rewritten" for event in events)
            assert free, f"{author} drives without a lease"
        for record in await self.records(session, after=len(self.trace)):
            self.judge(record)
            self.trace.append(record)
            self.authors.append(author)
        return done  # type: ignore[no-any-return]

    def judge(self, record: Record) -> None:
        old, event = self.state, record.event
        assert record.version == len(self.trace) + 1, "versions have a gap"
        self._hash = link(self._hash, SESSION, record.version, record.id, record.digest)
        assert record.hash == self._hash, "the hash chain is broken"
        request = old.request.version if old.request is not None else None
        why = objection(event, run=old.phase, calls=old.calls, request=request)
        assert why is None, f"{record.version}: {why}"
        new = self.state = advance(old, record.version, event)
        if record.type in ANYONE:
            assert new.phase == old.phase, f"{record.type} moved the run"
        if old.cancel is not None and old.phase != IDLE:
            begins = isinstance(event, ModelRequested) or (
                isinstance(event, ToolCalled) and not old.cancel.after_turn
            )
            assert not begins, f"{record.type} {record.version} after a cancel"
        self._check_growth(record, old.place, new.place)
        self._check_order(new)
        self._provider.hear(record, list(new.place.settled))
        match event:
            case ModelRequested():
                bad = list(violations(list(new.place.settled), event.issuer))
                assert not bad, f"request {record.version} is illegal: {bad}"
                asked = model_request([*self.trace, record], at=record.version)  # proves its digest
                self.shown[record.version] = list(new.place.settled[event.first :])
                assert shown(asked.input) == shown(self.shown[record.version])
            case RunCompleted():
                unseen = [item for item, later in old.place.queue if not later]
                assert not unseen, f"the run ends at {record.version} and has not shown {unseen}"
            case _:
                pass

    def _check_growth(self, record: Record, old: Placement, new: Placement) -> None:
        before = list(self._session.settled)
        self._session = place(self._session, record.version, record.event)
        assert list(self._session.settled)[: len(before)] == before, "the session shrank"
        if record.type not in ("handoff.made", "history.rewritten", "guardrail.tripped"):
            assert list(new.settled)[: len(old.settled)] == list(old.settled), "the view shrank"

    def _check_order(self, new: State) -> None:
        """Outputs stand in call order, right behind what made the calls."""
        items = list(self._session.items())
        calls = [ref for ref in new.calls if any(item.answers == ref for item in items)]
        if calls:
            begin = next(n for n, item in enumerate(items) if item.answers in calls)
            assert [item.answers for item in items[begin : begin + len(calls)]] == calls, (
                "outputs out of order"
            )
            before = items[begin - 1].ref
            assert before is not None
            assert before.version == new.response, "something came between calls and outputs"


@dataclass(eq=False)
class Pending:
    """An operation of the store that has been asked for and not yet been done."""

    port: "Port"
    what: str
    work: Callable[[], Coroutine[Any, Any, Any]]
    done: asyncio.Future[Any]


class Port(EventLog):
    """One process's way to the store. When the process dies, nothing goes through any more."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.dead = False
        self.news = News()
        """For a process that is not told at once."""
        self._tries: Counter[object] = Counter()
        self._world = world
        self._store = world.store

    async def _ask(self, what: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self.dead:
            raise FencedError(f"{self.name} is dead")
        if what not in self._world.slow:
            return await work()
        pending = Pending(self, what, work, asyncio.get_running_loop().create_future())
        self._world.operations.append(pending)
        try:
            return await pending.done
        finally:
            if pending in self._world.operations:
                self._world.operations.remove(pending)

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Appended:
        try:
            taken: Appended = await self._ask(
                "append", lambda: self._store.take(self.name, session, events, **options)
            )
            return taken
        except ConflictError:
            raise
        except LogError as error:
            self._tries[options["ids"][0]] += 1
            if isinstance(error, FencedError) or self._tries[options["ids"][0]] == PATIENCE:
                self._world.gave_up.append((self.name, self._world.now))
            raise

    async def records(self, session: str, *, after: int = 0, until: int | None = None) -> tuple[Record, ...]:
        try:
            found: tuple[Record, ...] = await self._ask(
                "records", lambda: self._store.records(session, after=after, until=until)
            )
            return found
        except LogError:
            self._world.gave_up.append((self.name, self._world.now))
            raise

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        async def take() -> Lease | None:
            lease = await self._store.acquire(session, owner=owner, seconds=seconds)
            if lease is not None:
                # Whoever speaks leaves a lease behind: that is no worker's.
                taker = "said" if owner.startswith("said:") else self.name
                self._world.takers.append((taker, self._world.now))
            return lease

        lease: Lease | None = await self._ask("acquire", take)
        return lease

    async def release(self, lease: Lease) -> None:
        if not self.dead:
            await self._store.release(lease)

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[Record]:
        async for record in self._store.read(session, after=after, until=until):
            yield record

    async def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Record]:
        async for record in self._store.read_all(after=after, limit=limit):
            yield record

    async def heads(self) -> AsyncIterator[Head]:
        async for head in self._store.heads():
            yield head

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        return await self._store.fork(session, at=at, into=into)

    async def expired(self) -> AsyncIterator[str]:
        async for session in self._store.expired():
            yield session

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        if self.name[0] in self._world.deaf:
            return self.news.watch(session)
        return self._store.watch(session)

    async def close(self) -> None:
        """Leave the store to the others."""
