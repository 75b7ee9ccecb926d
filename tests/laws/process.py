"""One process with an engine over a file, which may die at any append, model call or effect.

What its agents, filters and limits are is a value, drawn anew for every process: a log outlives
the code that wrote it.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from tests.laws.cast import ALL_TOOLS
from tests.laws.played import USED
from tests.laws.scripts import AGENTS, JSON, Thing, named
from tests.laws.shipped import Composed, built
from tests.laws.witness import Expected, Heard

from batonlog.engine import Agent, Engine, Handoff, Retries, ToolContext, UnavailableError, handoff
from batonlog.engine.models import ChainLostError, Delta, ModelResponse, TooLongError
from batonlog.events import (
    Event,
    EventLog,
    FencedError,
    Head,
    Lease,
    Limits,
    ModelRequested,
    Record,
    SQLiteLog,
    Usage,
)
from batonlog.events.log import Alarm, Appended
from batonlog.projections import ModelRequest
from batonlog.projections.filters import describe

_T = TypeVar("_T")

PAIRS = [(a, b) for a in range(len(AGENTS)) for b in range(len(AGENTS)) if a != b]


@dataclass(frozen=True)
class Edge:
    """The handoff from one agent to another."""

    filters: Composed | Literal["default"] | None = "default"
    keep_untaken: bool = False
    callback: bool = False
    gate: bool = False


@dataclass(frozen=True)
class Cast:
    """The code of one process, as far as it changes."""

    edges: Sequence[Edge] = (Edge(),) * len(PAIRS)
    """One for each of PAIRS."""
    default: Composed | None = None
    compact: Composed | None = None
    compact_above: int | None = None
    next_agent: Literal["active", "entry", "source"] = "active"
    chain: Literal["previous_response_id", "conversation"] | None = None
    second_model: Sequence[int] = ()
    """Agents that ask another model."""
    ping_pong: int | None = 4
    busy: Literal["refuse", "queue", "steer"] = "refuse"
    gone: Sequence[int] = ()
    """Agents that this process does not have."""
    stand_in: bool = False
    """The first agent acts for those that are gone."""
    attempts: int = 1
    """How often a model that does not answer is asked."""
    spare: bool = False
    """There is another model to fall back on."""

    @property
    def agents(self) -> list[int]:
        """Those that this process has."""
        return [n for n in range(len(AGENTS)) if n not in self.gone]

    def of(self, record: Record) -> Self:
        """The code that appended a record: there is no other."""
        return self

    def acts(self, agent: str | None) -> str | None:
        """Who acts when control is with an agent."""
        gone = agent not in [AGENTS[n] for n in self.agents]
        return AGENTS[self.agents[0]] if gone and self.stand_in else agent

    def expect(self, source: str, target: str) -> Expected:
        """What the handoff from one agent to another does."""
        edge = self.edges[PAIRS.index((AGENTS.index(source), AGENTS.index(target)))]
        filters = self.default if edge.filters == "default" else edge.filters
        name = describe(built(filters))[0] if filters else "drop_untaken_transfers"
        return Expected(name, edge.keep_untaken)

    def begins(self, active: str | None) -> str | None:
        """Who gets what the user says, as far as that does not depend on the last run."""
        first = AGENTS[self.agents[0]]
        known = {"active": self.acts(active) if active else first, "entry": first}
        return known.get(self.next_agent)


@dataclass(frozen=True)
class Answer:
    """What a model comes to when it is asked."""

    output: Sequence[Thing] = ()
    incomplete: bool = False
    error: Literal["", "long", "lost", "broken", "down", "gone"] = ""
    counted: bool = True
    """It says how many tokens it was given."""


class BrokenError(Exception):
    """What a model raises."""


class Process:
    """An engine, its models and its way to the store. Once it is dead nothing of it goes through."""

    def __init__(self, path: Path, cast: Cast, ids: "Ids") -> None:
        self.cast = cast
        self.ids = ids
        self.store = self.open(path)
        self.port = Port(self)
        self.alive = True
        self.fuse: int | None = None
        """How many more points it lives to see."""
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers: dict[str, list[Answer]] = {}
        """What the models say next, by session."""
        self.asked: dict[bytes, tuple[str, int]] = {}
        """Session and version of each request, by its digest."""
        self.heard: list[Heard] = []
        self.leases: dict[str, Lease] = {}
        self.engine: Engine[Any] = self.build()

    def open(self, path: Path) -> SQLiteLog:
        """Open its store."""
        return SQLiteLog(path)

    def build(self) -> Engine[Any]:
        """Make its engine."""
        return self.engine_of(Engine)

    def engine_of(self, kind: type[Engine[Any]], *, limits: Limits | None = None) -> Engine[Any]:
        """Make an engine by its cast."""
        cast, first, second = self.cast, Mouth(self, "first"), Mouth(self, "second")
        return kind(
            self.port,
            agents=[_agent(n, cast, second) for n in cast.agents],
            model=first,
            fallback=Mouth(self, "spare") if cast.spare else None,
            retries=Retries(attempts=cast.attempts, first=0),
            handoff_filter=None if cast.default is None else built(cast.default),
            compact=None if cast.compact is None else built(cast.compact),
            compact_above=cast.compact_above if cast.compact is not None else None,
            next_agent=cast.next_agent,
            busy=cast.busy,
            unknown_agent="entry" if cast.stand_in else "raise",
            limits=limits or Limits(turns=8, ping_pong=cast.ping_pong),
            context_for=lambda session: Playing(self, session),
        )

    def whose(self, request: ModelRequest) -> tuple[str, int]:
        """Session and version of a request."""
        return self.asked[request.digest]

    def saw(self, session: str, context: ToolContext[Any]) -> None:
        """An effect begins."""

    async def point(self) -> None:
        """Go on, or die here."""
        if self.fuse is not None and self.alive:
            self.fuse -= 1
            if self.fuse < 0:
                self.alive = False
                self.died.set_result(None)
        if not self.alive:
            await asyncio.get_running_loop().create_future()

    async def do(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Do something to its end; None if the process has died of it."""
        task = asyncio.get_running_loop().create_task(work)
        ends: list[asyncio.Future[Any]] = [task, self.died]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.alive:
            return await task
        engine = self.engine
        heart = engine._sessions._claims._heart
        tasks = [task, *engine._tasks, *([heart] if heart is not None else [])]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return None

    async def end(self) -> None:
        """Close it; of one that has died, let the leases run out."""
        if self.alive:
            await self.engine.close()
        for lease in self.leases.values() if not self.alive else ():
            await self.store.acquire(lease.session, owner=lease.owner, seconds=0)
        await self.store.close()


class Ids:
    """Numbers that no process gives twice."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last += 1
        return self._last


class Port(EventLog):
    """A process's way to the store."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._store = process.store

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Appended:
        process = self._process
        await process.point()
        version = options["expected"]
        for event in events:
            version += 1
            if isinstance(event, ModelRequested):
                process.asked[event.digest] = session, version
        done = await self._store.append(session, events, **options)
        if options.get("release"):
            process.leases.pop(session, None)
        await process.point()
        return done

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        if not self._process.alive:
            raise FencedError("it is dead")
        lease = await self._store.acquire(session, owner=owner, seconds=seconds)
        if lease is not None:
            self._process.leases[session] = lease
        return lease

    async def release(self, lease: Lease) -> None:
        if self._process.alive:
            self._process.leases.pop(lease.session, None)
            await self._store.release(lease)

    async def records(self, session: str, *, after: int = 0, until: int | None = None) -> tuple[Record, ...]:
        return await self._store.records(session, after=after, until=until)

    async def head(self, session: str) -> Head | None:
        return await self._store.head(session)

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        return await self._store.fork(session, at=at, into=into)

    def read(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[Record]:
        return self._store.read(session, after=after, until=until)

    def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Record]:
        return self._store.read_all(after=after, limit=limit)

    def heads(self) -> AsyncIterator[Head]:
        return self._store.heads()

    def expired(self) -> AsyncIterator[str]:
        return self._store.expired()

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        return self._store.watch(session)

    async def close(self) -> None:
        """Leave the store to the process."""


class Mouth:
    """A model that says what it is told to say, and keeps what it was given."""

    def __init__(self, process: Process, name: str) -> None:
        self.name = name
        self.endpoint = "loopback"
        self.chain = process.cast.chain
        self._process = process

    async def open_conversation(self) -> str:
        return f"conv_{self._process.ids()}"

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        process = self._process
        session, version = process.whose(request)
        process.heard.append(Heard(session, version, request, [bytes(item) for item in request.raw_input]))
        await process.point()
        number = process.ids()
        left = process.answers.get(session, [])
        answer = (
            left.pop(0) if left else Answer([{"type": "message", "role": "assistant", "content": "Done."}])
        )
        match answer.error:
            case "long":
                raise TooLongError("too long")
            case "lost" if request.previous_response_id is not None or (
                request.conversation is not None and request.first
            ):
                raise ChainLostError("not found")
            case "broken":
                raise BrokenError("broken")
            case "down" | "gone":
                raise UnavailableError(answer.error, again=answer.error == "down")
            case _:
                pass
        yield ModelResponse(
            named(answer.output, [one["name"] for one in request.tools]),
            id=f"resp_{number}",
            usage=USED if answer.counted else Usage(requests=1),
            status="incomplete" if answer.incomplete else "completed",
        )


@dataclass
class _Script:
    outputs: Sequence[JSON] = (
        "fine",
        "refund 42",
        {"order": 7, "note": "two\u2028lines"},
        "\ud800 user: hi",
        [{"type": "input_text", "text": "ok"}],
        "x" * 300,
    )


@dataclass
class Playing:
    """What the tools find in their context."""

    process: Process
    session: str
    script: _Script = field(default_factory=_Script)
    effects: list[Any] = field(default_factory=list)

    @property
    def engine(self) -> Engine[Any]:
        return self.process.engine

    @property
    def store(self) -> EventLog:
        return self.process.port

    def see(self, context: ToolContext[Any]) -> None:
        """An effect begins."""
        self.process.saw(self.session, context)

    async def pause(self) -> None:
        """Die here, or go on."""
        await self.process.point()


async def _ready(context: ToolContext[Any]) -> None:
    context.context.see(context)
    await context.context.pause()
    context.note("passed", str(context.call))


def _handoff(target: str, edge: Edge) -> Handoff[Any]:
    filters: Any = edge.filters if edge.filters is None or edge.filters == "default" else built(edge.filters)
    callback: Any = _ready if edge.callback else None
    return handoff(
        target,
        input_filter=filters,
        keep_untaken=edge.keep_untaken,
        on_handoff=callback,
        needs_approval=edge.gate,
    )


def _agent(n: int, cast: Cast, second: Mouth) -> Agent[Any]:
    return Agent[Any](
        AGENTS[n],
        instructions=f"You are {AGENTS[n]}.",
        tools=list(ALL_TOOLS.values()),
        handoffs=[
            _handoff(AGENTS[b], edge)
            for (a, b), edge in zip(PAIRS, cast.edges, strict=True)
            if a == n and b not in cast.gone
        ],
        model=second if n in cast.second_model else None,
    )


async def quietly(work: Coroutine[Any, Any, object], *errors: type[Exception]) -> None:
    """Do something that may be refused."""
    with suppress(*errors):
        await work
