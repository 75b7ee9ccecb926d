"""A worker in a process of its own: one life, forked for one thing to do, that may end at any place.

It inherits the scenario's agents, closures and contexts as they were when it was forked. Its log,
loop and threads are its own. Models are outside: it asks its client, who asks them.
"""

import asyncio
import gc
import os
import signal
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from pathlib import Path
from socket import socket
from typing import Any, NoReturn
from uuid import UUID

from batonlog.engine.contexts import ToolContext
from batonlog.engine.models import Model, issuer_of
from batonlog.engine.sessions import Sessions
from batonlog.engine.setup import Setup
from batonlog.engine.testing._crash_ledger import Ledger, Line
from batonlog.engine.testing._crash_link import Answered, Asked, Ended, Link, Opened, Raised, Reached, Stop
from batonlog.engine.testing._crash_ports import WatchedSetup, named
from batonlog.engine.testing._crash_world import Answer, ends_of
from batonlog.events import Event, ModelRequested, SQLiteLog
from batonlog.events.log import Appended, Lease
from batonlog.projections import ModelRequest, RunResult

Work = Callable[[Sessions], Coroutine[Any, Any, RunResult]]
"""What one life is for."""


class ForkedLife:
    """What is left of a life: its places to die at, and its ways to the world.

    Args:
        ledger: outside.
        kill_at: at which of the places it kills itself.
    """

    def __init__(self, ledger: Ledger, kill_at: int | None) -> None:
        self.ledger = ledger
        self.points = 0
        self._kill_at = kill_at
        self._counted = count()
        self._link: Link | None = None
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        self._asked: dict[bytes, tuple[str, int]] = {}
        """Session and version of recorded requests, by digest."""

    # -- places to die at

    def point(self, where: str) -> None:
        """Go on, or die here. In any thread."""
        here = next(self._counted)
        self.points = here + 1
        if here == self._kill_at:
            self.ledger.write(Line(what="died", where=where))
            os.kill(os.getpid(), signal.SIGKILL)

    # -- effects

    def begins(self, context: ToolContext[Any], *, idempotent: bool) -> None:
        """Tell the world that an effect takes place."""
        self._write("begun", context, idempotent)
        self.point(f"in the middle of {context.tool}")

    def ends(self, context: ToolContext[Any]) -> None:
        """Tell the world that it has."""
        self._write("done", context, False)

    def _write(self, what: Any, context: ToolContext[Any], idempotent: bool) -> None:
        self.ledger.write(
            Line(
                what=what,
                session=context.session,
                call=str(context.call),
                tool=context.tool,
                key=context.idempotency_key,
                idempotent=idempotent,
            )
        )

    def stored(self, session: str, events: Sequence[Event], expected: int) -> None:
        """Take note of what was recorded."""
        for version, event in enumerate(events, expected + 1):
            if isinstance(event, ModelRequested):
                self._asked[event.digest] = (session, version)
        for call in ends_of(events):
            self.ledger.write(Line(what="ended", session=session, call=str(call)))
        if self._link is not None:
            self._link.tell(Reached(expected + len(events)))

    # -- models

    async def answer(self, model: Model, request: ModelRequest) -> Answer:
        """Have the client ask a model: it knows what the model has answered before."""
        session, version = self._asked[request.digest]
        answered = await self._ask(lambda number: Asked(number, session, version))
        return answered.answer

    def attribute(self, model: Model, agent: str, name: str) -> Any:
        """Return what else a model has. Raises AttributeError."""
        value = getattr(model, name)
        if name != "open_conversation":
            return value

        async def open_conversation() -> str:
            answered = await self._ask(lambda number: Opened(number, agent, issuer_of(model)))
            if answered.raised is not None:
                raise answered.raised.error()
            return answered.conversation

        return open_conversation

    async def _ask(self, message: Callable[[int], Asked | Opened]) -> Answered:
        assert self._link is not None
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._link.tell(message(number))
            return await self._waiting[number]
        finally:
            del self._waiting[number]

    async def listen(self, link: Link, sessions: Sessions) -> None:
        """Hear what the client says, as long as it lives: a worker without one has nothing to live for."""
        self._link = link
        while (message := await link.hear()) is not None:
            match message:
                case Answered(number=number) if number in self._waiting:
                    self._waiting[number].set_result(message)
                case Stop():
                    sessions.closed = True
                    self._closing = asyncio.create_task(sessions.close())
                case _:
                    pass  # nobody waits any more
        os._exit(1)


class _DyingLog(SQLiteLog):
    """Dies around every append."""

    def __init__(self, path: Path, life: ForkedLife) -> None:
        super().__init__(path)
        self._life = life

    async def append(
        self,
        session: str,
        events: Sequence[Event],
        *,
        expected: int,
        ids: Sequence[UUID] | None = None,
        lease: Lease | None = None,
        release: bool = False,
    ) -> Appended:
        what = named(session, events)
        self._life.point(f"before {what} was stored")
        done = await super().append(session, events, expected=expected, ids=ids, lease=lease, release=release)
        self._life.stored(session, events, expected)
        self._life.point(f"after {what} was stored")
        return done

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        self._life.point(f"before the lease of {session} was taken")
        lease = await super().acquire(session, owner=owner, seconds=seconds)
        self._life.point(f"after the lease of {session} was taken")
        return lease


def _die_before_commits(life: ForkedLife) -> None:
    """Have every connection of this process pass a place when events are about to be committed."""
    connect = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        inserted = False

        def trace(statement: str) -> None:
            nonlocal inserted
            if statement.startswith("INSERT INTO event"):
                inserted = True
            elif statement == "COMMIT" and inserted:
                inserted = False
                life.point("in the middle of a transaction")

        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]


class Birth:
    """What a life is given.

    Args:
        path: of the log.
        ledger: outside.
        kill_at: at which of its places it kills itself.
        setup: the engine's configuration.
        owner: who it is, for leases.
        options: of its sessions.
        closed: whether the engine is.
    """

    def __init__(
        self,
        *,
        path: Path,
        ledger: Ledger,
        kill_at: int | None,
        setup: Setup,
        owner: str,
        options: dict[str, Any],
        closed: bool,
    ) -> None:
        self.path = path
        self.ledger = ledger
        self.kill_at = kill_at
        self.setup = setup
        self.owner = owner
        self.options = options
        self.closed = closed


def live(birth: Birth, end: socket, work: Work) -> NoReturn:
    """Do it, tell the client what came of it, and end the process."""
    code = 1
    try:
        gc.freeze()  # what was inherited is the client's to destroy
        signal.set_wakeup_fd(-1)
        asyncio.run(_lived(birth, end, work))
        code = 0
    finally:
        os._exit(code)


async def _lived(birth: Birth, end: socket, work: Work) -> None:
    life = ForkedLife(birth.ledger, birth.kill_at)
    _die_before_commits(life)
    link = await Link.over(end)
    async with _DyingLog(birth.path, life) as log:
        sessions = Sessions(log, WatchedSetup(birth.setup, life), owner=birth.owner, **birth.options)
        sessions.closed = birth.closed
        listening = asyncio.create_task(life.listen(link, sessions))
        result: RunResult | None = None
        raised: Raised | None = None
        try:
            result = await work(sessions)
        except Exception as error:
            raised = Raised.of(error)
        await sessions.close()
    listening.cancel()
    link.tell(Ended(result, raised, life.points))
    await link.close()
