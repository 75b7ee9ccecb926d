"""Sessions that an engine drives: leases between processes, and what is remembered between runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    RunFailedError,
    SessionBusyError,
    Tool,
    tool,
)
from batonlog.engine.sessions import _REMEMBERED
from batonlog.engine.testing import ScriptedModel, Step, function_call
from batonlog.events import (
    FencedError,
    Lease,
    Limits,
    LogError,
    MemoryLog,
    NoteAdded,
    RunResumed,
    UnknownEvent,
    UsageError,
)
from batonlog.events.record import now


class Watched(MemoryLog):
    """Says what becomes of leases."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str] = []
        self.given_back: list[str] = []
        self.read_after: list[int] = []
        self.taken_again = asyncio.Event()

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        if session in self.taken:
            self.taken_again.set()
        self.taken.append(session)
        return await super().acquire(session, owner=owner, seconds=seconds)

    async def release(self, lease: Lease) -> None:
        self.given_back.append(lease.session)
        await super().release(lease)

    async def records(self, session: str, *, after: int = 0, until: int | None = None) -> Any:
        self.read_after.append(after)
        return await super().records(session, after=after, until=until)


def engine(log: Any, *script: Step, tools: Any = ()) -> Engine[object]:
    return Engine(log, agents=[Agent("a", tools=tools)], model=ScriptedModel(*script))


async def free(log: MemoryLog, session: str = "s") -> bool:
    lease = await log.acquire(session, owner="somebody", seconds=30)
    if lease is not None:
        await log.release(lease)
    return lease is not None


# -- leases


async def test_a_lease_is_given_back_with_the_last_append_of_a_run() -> None:
    log = Watched()
    await engine(log, "hi").run("go", session="s")
    assert log.given_back == []  # in the transaction of the append
    assert await free(log)


@pytest.mark.parametrize(
    "step", [LookupError("down"), function_call("pick", {}), function_call("nowhere", {})], ids=str
)
async def test_a_lease_is_given_back_when_a_run_stops(step: Step) -> None:
    log = MemoryLog()
    one = engine(log, step, tools=[Tool("pick", None)])
    with suppress(RunFailedError):
        await one.run("go", session="s", limits=Limits(turns=1))
    assert (await one.status("s")).status in ("failed", "paused")
    assert await free(log)


async def test_a_lease_is_given_back_when_the_caller_goes_away() -> None:
    log, begun = MemoryLog(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    one = engine(log, function_call(wait, {}), tools=[wait])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await begun.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await free(log)


async def test_a_lease_is_given_back_when_a_run_may_not_begin() -> None:
    log = MemoryLog()
    await log.append("s", [UnknownEvent(tag="x.y", data={})], expected=0)
    with pytest.raises(UsageError):
        await engine(log).run("go", session="s")
    assert await free(log)


async def test_a_session_that_another_worker_holds_is_refused() -> None:
    log = MemoryLog()
    await log.acquire("s", owner="another", seconds=30)
    with pytest.raises(SessionBusyError, match="s is busy"):
        await engine(log).run("go", session="s")
    assert await log.head("s") is None


class Impatient(Engine[object]):
    lease_seconds = 0.03


async def test_a_lease_is_renewed_while_an_effect_takes_its_time() -> None:
    log, go = Watched(), asyncio.Event()

    @tool
    async def wait() -> str:
        await go.wait()
        return "waited"

    agents = [Agent("a", tools=[wait])]
    one = Impatient(log, agents=agents, model=ScriptedModel(function_call(wait, {}), "done"))
    running = asyncio.ensure_future(one.run("go", session="s"))
    await log.taken_again.wait()
    go.set()
    assert (await running).final_output == "done"


async def test_a_lease_that_could_not_be_renewed_is_tried_again() -> None:
    go = asyncio.Event()

    class Flaky(MemoryLog):
        tries = 0

        async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
            self.tries += 1
            if self.tries == 2:
                raise LogError("busy")
            if self.tries == 3:
                go.set()
            return await super().acquire(session, owner=owner, seconds=seconds)

    @tool
    async def wait() -> str:
        await go.wait()
        return "waited"

    agents = [Agent("a", tools=[wait])]
    one = Impatient(Flaky(), agents=agents, model=ScriptedModel(function_call(wait, {}), "done"))
    assert (await one.run("go")).final_output == "done"


async def test_a_lease_that_ran_out_and_that_nobody_took_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    log, moment = Watched(), now()
    monkeypatch.setattr("batonlog.events.memory.now", lambda: moment)

    @tool
    async def sleep() -> str:
        nonlocal moment
        moment += 3_600_000_000  # the machine slept for an hour
        log.taken_again.clear()
        await log.taken_again.wait()
        return "awake"

    agents = [Agent("a", tools=[sleep])]
    one = Impatient(log, agents=agents, model=ScriptedModel(function_call(sleep, {}), "done"))
    assert (await one.run("go", session="s")).final_output == "done"


async def test_a_worker_that_lost_its_lease_stops_and_repeats_nothing() -> None:
    log, begun, go = MemoryLog(), asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @tool(idempotent=True)
    async def wait() -> str:
        ran.append("x")
        begun.set()
        await go.wait()
        return "waited"

    class Dead(Engine[object]):
        lease_seconds = 0.0

    agents = [Agent("a", tools=[wait])]
    slow = Dead(log, agents=agents, model=ScriptedModel(function_call(wait, {}), "never"))
    zombie = asyncio.ensure_future(slow.run("go", session="s"))
    await begun.wait()
    go.set()
    fast = Engine(log, agents=agents, model=ScriptedModel("done"))
    assert (await fast.resume("s")).final_output == "done"
    (ended,) = await asyncio.gather(zombie, return_exceptions=True)
    assert isinstance(ended, FencedError)
    types = [record.type for record in await log.records("s")]
    assert types.count("run.completed") == 1
    assert types.count("tool.returned") == 1


async def test_a_run_that_somebody_else_takes_over_stops_here() -> None:
    log = MemoryLog()

    class Slow(ScriptedModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            head = await log.head("s")
            assert head is not None
            await log.append("s", [RunResumed(by="another")], expected=head.version)
            async for piece in super().respond(request):
                yield piece

    one = Engine(log, agents=[Agent("a")], model=Slow("never"))
    with pytest.raises(FencedError, match="another worker has taken s over: stop"):
        await one.run("go", session="s")
    assert (await log.records("s"))[-1].type == "run.resumed"


async def test_what_recover_finds_is_what_has_no_worker() -> None:
    log = MemoryLog()
    one = engine(log, "hi")
    await one.run("go", session="at-rest")
    await log.acquire("held", owner="another", seconds=30)
    assert await one.recover() == ()


async def test_a_lease_without_a_session_is_no_work() -> None:
    log = MemoryLog()
    await log.acquire("never-was", owner="another", seconds=0)
    one = engine(log)
    await one.recover()
    await one.close()
    assert await log.head("never-was") is None


# -- beginning


async def test_a_run_that_somebody_comes_before_looks_again() -> None:
    class Raced(MemoryLog):
        raced = False

        async def append(self, session: str, events: Any, *, expected: int, **options: Any) -> Any:
            if not self.raced and events[0].type == "run.started":
                self.raced = True
                await super().append(session, [NoteAdded(name="first", data=1)], expected=expected)
            return await super().append(session, events, expected=expected, **options)

    log = Raced()
    assert (await engine(log, "hi").run("go", session="s")).final_output == "hi"
    assert [record.type for record in await log.records("s")][:2] == ["note.added", "run.started"]


async def test_a_store_that_cannot_give_the_lease_back_ends_no_run() -> None:
    class Broken(MemoryLog):
        async def release(self, lease: Lease) -> None:
            raise LogError("gone")

    log = Broken()
    assert (await engine(log, "hi").run("go", session="s")).final_output == "hi"


# -- remembered


async def test_a_session_that_was_just_driven_is_not_read_from_the_start() -> None:
    log = Watched()
    one = engine(log, "one", "two")
    first = await one.run("go", session="s")
    log.read_after.clear()
    await one.run("go", session="s")
    assert min(log.read_after) == first.version


async def test_what_others_appended_in_between_counts() -> None:
    log = MemoryLog()
    model = ScriptedModel("one", "two")
    one = Engine(log, agents=[Agent("a")], model=model)
    await one.run("go", session="s")
    await Engine(log).send("from elsewhere", session="s")
    await one.run("go on", session="s")
    assert [item.text for item in model.requests[1].input] == ["go", "one", "from elsewhere", "go on"]


async def test_however_many_sessions_there_are_each_goes_on_with_its_own() -> None:
    names = [f"s{n}" for n in range(_REMEMBERED + 3)]
    model = ScriptedModel(*["hi"] * (2 * len(names)))
    one = Engine("memory:", agents=[Agent("a")], model=model)
    for _ in range(2):
        for name in names:
            await one.run(name, session=name)
    assert [item.text for item in model.requests[-1].input] == [names[-1], "hi", names[-1]]
    assert [item.text for item in model.requests[len(names)].input] == ["s0", "hi", "s0"]
