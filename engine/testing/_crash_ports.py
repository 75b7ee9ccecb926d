"""The engine's ports as a process that may die uses them: the log, the models, the tools, the callbacks."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, TypeVar
from uuid import UUID

from batonlog.engine.agents import Agent
from batonlog.engine.contexts import ToolContext
from batonlog.engine.handoffs import Handoff
from batonlog.engine.models import Delta, Issuer, Model, ModelResponse, issuer_of
from batonlog.engine.registry import Registry
from batonlog.engine.setup import Setup
from batonlog.engine.testing._crash_world import Life, Process, World
from batonlog.engine.tools import Tool, call_either
from batonlog.events import JSON, Event, EventLog, Record
from batonlog.events.log import Alarm, Appended, Head, Lease
from batonlog.projections import ModelRequest

_T = TypeVar("_T")


class _Through(EventLog):
    """Another log, by its own methods."""

    def __init__(self, store: EventLog) -> None:
        self.store = store

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
        return await self.store.append(
            session, events, expected=expected, ids=ids, lease=lease, release=release
        )

    def read(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[Record]:
        return self.store.read(session, after=after, until=until)

    def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Record]:
        return self.store.read_all(after=after, limit=limit)

    def heads(self) -> AsyncIterator[Head]:
        return self.store.heads()

    async def head(self, session: str) -> Head | None:
        return await self.store.head(session)

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        return await self.store.fork(session, at=at, into=into)

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        return await self.store.acquire(session, owner=owner, seconds=seconds)

    async def release(self, lease: Lease) -> None:
        await self.store.release(lease)

    def expired(self) -> AsyncIterator[str]:
        return self.store.expired()

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        return self.store.watch(session)

    async def close(self) -> None:
        await self.store.close()


class ClientLog(_Through):
    """The log as the scenario itself uses it. It outlives the process: it appends again what was not answered."""

    def __init__(self, store: EventLog, world: World) -> None:
        super().__init__(store)
        self._world = world

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
        self._world.point(f"before {what} was stored")
        done = await super().append(session, events, expected=expected, ids=ids, lease=lease, release=release)
        self._world.point(f"after {what} was stored")
        return done


class WorkerLog(_Through):
    """The log as a worker uses it. A dead one appends nothing more, and gives nothing back.

    What it had begun in the store is done there, as a store does it whose client is gone.
    """

    def __init__(self, store: EventLog, process: Process) -> None:
        super().__init__(store)
        self._process = process
        self._leases: dict[str, Lease] = {}
        self._begun: set[asyncio.Task[Any]] = set()

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

        async def append() -> Appended:
            done = await super(WorkerLog, self).append(
                session, events, expected=expected, ids=ids, lease=lease, release=release
            )
            if release:
                self._leases.pop(session, None)
            self._process.world.stored(session, events)
            return done

        self._process.point(f"before {what} was stored")
        done = await self._in_store(append())
        self._process.point(f"after {what} was stored")
        return done

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        async def acquire() -> Lease | None:
            lease = await super(WorkerLog, self).acquire(session, owner=owner, seconds=seconds)
            if lease is not None:
                self._leases[session] = lease
            return lease

        self._process.check()
        return await self._in_store(acquire())

    async def release(self, lease: Lease) -> None:
        if self._process.alive:
            self._leases.pop(lease.session, None)
            await super().release(lease)

    async def _in_store(self, work: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.get_running_loop().create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return await asyncio.shield(task)

    async def let_go(self) -> None:
        """Let what was begun be done, and give the leases back: as if they had run out."""
        await asyncio.gather(*self._begun, return_exceptions=True)
        while self._leases:
            _, lease = self._leases.popitem()
            await self.store.release(lease)


def named(session: str, events: Sequence[Event]) -> str:
    """Say what a batch is."""
    return f"{', '.join(event.type for event in events)} of {session}"


# -- models and tools


class WatchedSetup(Setup):
    """An engine's configuration, with all effects watched."""

    def __init__(self, setup: Setup, life: Life) -> None:
        vars(self).update(vars(setup))
        self.registry = _WatchedRegistry(setup.registry, life)
        self._life = life

    def model_of(self, agent: Agent[Any], given_up: Collection[Issuer] = ()) -> Model:
        return _WatchedModel(super().model_of(agent, given_up), agent.name, self._life)


class _WatchedModel:
    def __init__(self, model: Model, agent: str, life: Life) -> None:
        self._model = model
        self._agent = agent
        self._life = life
        self.endpoint, self.name = issuer_of(model)

    def __getattr__(self, name: str) -> Any:
        return self._life.attribute(self._model, self._agent, name)

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        self._life.point(f"before {self.name} was asked by {request.agent}")
        answer = await self._life.answer(self._model, request)
        self._life.point(f"when {self.name} had answered {request.agent}, and nobody had heard")
        for piece in answer.pieces:
            yield piece
        if answer.error is not None:
            raise answer.error


class _WatchedRegistry(Registry):
    def __init__(self, registry: Registry, life: Life) -> None:
        vars(self).update(vars(registry))
        self._life = life

    def tool(self, agent: str, name: str) -> Tool[Any] | None:
        one = super().tool(agent, name)
        return one if one is None else _WatchedTool(one, self._life)

    def handoff(self, agent: str, name: str) -> Handoff[Any] | None:
        one = super().handoff(agent, name)
        return one if one is None or one.on_handoff is None else _watched(one, self._life)


class _WatchedTool(Tool[Any]):
    def __init__(self, tool: Tool[Any], life: Life) -> None:
        vars(self).update(vars(tool))
        self._tool = tool
        self._life = life

    def check(self, arguments: dict[str, JSON]) -> None:
        self._tool.check(arguments)

    async def run(self, context: ToolContext[Any], arguments: dict[str, JSON]) -> object:
        self._life.point(f"before {self.name} began")
        self._life.begins(context, idempotent=self.idempotent)
        try:
            return await self._tool.run(context, arguments)
        finally:
            self._life.ends(context)
            self._life.point(f"when {self.name} was done, and nobody had heard")


def _watched(one: Handoff[Any], life: Life) -> Handoff[Any]:
    callback = one.on_handoff
    assert callback is not None

    async def on_handoff(context: ToolContext[Any], *given: Any) -> None:
        life.point(f"before the callback of {one.tool_name} began")
        life.begins(context, idempotent=False)
        try:
            await call_either(callback, context, *given)
        finally:
            life.ends(context)
            life.point(f"when the callback of {one.tool_name} was done, and nobody had heard")

    watched = copy(one)
    watched.on_handoff = on_handoff
    return watched
