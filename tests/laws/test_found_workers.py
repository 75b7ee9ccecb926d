"""What the laws have found between workers, each as its smallest example."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.laws.store import Store

from batonlog.engine import (
    Agent,
    Engine,
    SessionBusyError,
    tool,
)
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import (
    Event,
    LogError,
    NoteAdded,
    Record,
    RunStarted,
    ToolReturned,
    UsageError,
)
from batonlog.events.log import Alarm
from batonlog.events.news import News


class Slow:
    """A tool that waits to be let go, and tells that it has begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

        @tool(idempotent=True)
        async def slow() -> str:
            """Take its time."""
            self.begun.set()
            await self.go.wait()
            return "at last"

        self.tool = slow


def agents(slow: Slow) -> list[Agent[object]]:
    return [Agent("a", tools=[slow.tool])]


async def interrupted(log: Store, slow: Slow) -> None:
    """Leave a run in the middle of a tool call, as a worker does that dies."""
    engine = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {})))
    task = asyncio.ensure_future(engine.run("hi", session="s"))
    await slow.begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_whoever_recovers_finds_a_run_whose_caller_has_gone() -> None:
    log, slow = Store(), Slow()
    await interrupted(log, slow)
    slow.go.set()
    async with Engine(log, agents=agents(slow), model=ScriptedModel("done")) as engine:
        assert await engine.recover() == ("s",)
        assert (await engine.resume("s")).final_output == "done"
        assert await engine.recover() == ()


async def test_whoever_recovers_finds_a_run_that_a_new_one_could_not_supersede() -> None:
    log, slow = Store(), Slow()
    await interrupted(log, slow)
    slow.go.set()
    async with Engine(log, agents=agents(slow), model=ScriptedModel()) as other:
        with pytest.raises(SessionBusyError, match="resume it"):
            await other.run("hello?", session="s")
    async with Engine(log, agents=agents(slow), model=ScriptedModel("done")) as engine:
        assert await engine.recover() == ("s",)
        assert (await engine.resume("s")).final_output == "done"


async def test_a_lease_that_ran_out_with_nothing_to_do_is_given_back() -> None:
    log, slow = Store(), Slow()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel("done"))
    await engine.run("hi", session="s")
    # A worker that dies between its lease and its first append.
    await log.acquire("s", owner="dead", seconds=1)
    log.expire("s")
    await engine.recover()
    await engine.close()
    assert [session async for session in log.expired()] == []


async def test_resume_goes_on_where_whoever_it_joined_has_given_up() -> None:
    log, slow = Store(), Slow()
    await interrupted(log, slow)
    slow.go.set()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel("done"))
    busy, resumed = await asyncio.gather(
        engine.run("hello?", session="s"), engine.resume("s"), return_exceptions=True
    )
    assert isinstance(busy, SessionBusyError)
    assert not isinstance(resumed, BaseException)
    assert resumed.final_output == "done"


class Forgetful(Store):
    """A store that takes the end of the first run, and says that it did not."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Any = None

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        done = await super().append(session, events, **options)
        if self.then is not None and events[-1].type == "run.completed":
            then, self.then = self.then, None
            await then()
            raise LogError("no answer")
        return done


@pytest.mark.usefixtures("at_once")
async def test_a_run_returns_what_came_of_itself_though_another_has_begun() -> None:
    log, slow = Forgetful(), Slow()
    other = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {}), "two"))
    tasks: list[asyncio.Task[Any]] = []

    async def begin_another() -> None:
        tasks.append(asyncio.ensure_future(other.run("and?", session="s")))
        await slow.begun.wait()

    log.then = begin_another
    one = Engine(log, agents=agents(slow), model=ScriptedModel("one"))
    result = await one.run("hi", session="s")
    assert (result.status, result.final_output) == ("completed", "one")
    slow.go.set()
    assert (await tasks[0]).final_output == "two"


async def test_a_lease_that_ran_out_and_that_nobody_took_is_good_again_when_it_is_renewed() -> None:
    log, slow = Store(), Slow()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {}), "done"))
    running = asyncio.ensure_future(engine.run("hi", session="s"))
    await slow.begun.wait()
    log.expire("s")
    (claim,) = engine._sessions._claims.values()
    assert claim.driver is not None
    await claim.driver.renew(engine._sessions.owner, 30)
    slow.go.set()
    assert (await running).final_output == "done"


class Dawdling(Store):
    """A store that takes its time with renewals."""

    def __init__(self) -> None:
        super().__init__()
        self.door: asyncio.Event | None = None

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Any:
        if self.door is not None:
            await self.door.wait()
        return await super().acquire(session, owner=owner, seconds=seconds)


async def test_a_renewal_that_comes_late_does_not_keep_others_from_the_session() -> None:
    log, slow = Dawdling(), Slow()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {}), "done"))
    running = asyncio.ensure_future(engine.run("hi", session="s"))
    await slow.begun.wait()
    (claim,) = engine._sessions._claims.values()
    assert claim.driver is not None
    log.door = asyncio.Event()
    renewal = asyncio.ensure_future(claim.driver.renew(engine._sessions.owner, 30))
    await asyncio.sleep(0)
    slow.go.set()
    for _ in range(50):
        await asyncio.sleep(0)
    log.door.set()
    await renewal
    assert (await running).final_output == "done"
    other = Engine(log, agents=agents(slow), model=ScriptedModel("at once"))
    assert (await other.run("and?", session="s")).final_output == "at once"


class Crowded(Store):
    """A store in which somebody else appends just before the first batch of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.first = True

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        if self.first and isinstance(events[0], RunStarted):
            self.first = False
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await super().append(session, [NoteAdded(name="n", data=1)], expected=options["expected"])
        return await super().append(session, events, **options)


async def test_a_stream_ends_though_its_run_had_to_begin_twice() -> None:
    log = Crowded()
    engine = Engine(log, agents=[Agent("a")], model=ScriptedModel("done"))
    stream = engine.stream("hi", session="s")
    types = [update.type async for update in stream if isinstance(update, Record)]
    assert types[-1] == "run.completed"
    assert (await stream.result()).final_output == "done"


async def test_what_has_ended_just_as_the_engine_is_closed_is_recorded() -> None:
    doors = {1: asyncio.Event(), 2: asyncio.Event()}
    both = asyncio.Barrier(3)

    @tool
    async def send(n: int) -> str:
        """Send something, once."""
        await both.wait()
        await doors[n].wait()
        return f"sent {n}"

    log = Store()
    model = ScriptedModel([function_call("send", {"n": 1}), function_call("send", {"n": 2})])
    engine = Engine(log, agents=[Agent("a", tools=[send])], model=model)
    running = asyncio.ensure_future(engine.run("hi", session="s"))
    await both.wait()
    for _ in range(5):
        await asyncio.sleep(0)  # both stand before their doors
    doors[1].set()
    await asyncio.sleep(0)  # the first has returned, and nobody has been told
    await engine.close()
    with pytest.raises(UsageError, match="closed"):
        await running
    returned = [record.event for record in await log.records("s") if record.type == "tool.returned"]
    assert [event.output for event in returned if isinstance(event, ToolReturned)] == ["sent 1"]


async def test_an_output_that_was_on_its_way_into_the_log_is_not_lost_when_the_engine_is_closed() -> None:
    log, slow = Contested(), Slow()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {})))
    running = asyncio.ensure_future(engine.run("hi", session="s"))
    await slow.begun.wait()
    slow.go.set()
    await log.contested.wait()
    closing = asyncio.ensure_future(engine.close())
    await asyncio.sleep(0)
    log.door.set()
    await closing
    with pytest.raises(UsageError, match="closed"):
        await running
    assert "tool.returned" in [record.type for record in await log.records("s")]


class Contested(Store):
    """A store in which somebody else appends just before a tool's output."""

    def __init__(self) -> None:
        super().__init__()
        self.contested = asyncio.Event()
        self.door = asyncio.Event()

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        if isinstance(events[0], ToolReturned) and not self.contested.is_set():
            self.contested.set()
            await self.door.wait()
            await super().append(session, [NoteAdded(name="n", data=1)], expected=options["expected"])
        return await super().append(session, events, **options)


class Deaf(Store):
    """A store that tells nobody what others have appended."""

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        return News().watch(session)


async def test_a_worker_that_comes_back_takes_nobodys_work_away_with_its_lease() -> None:
    log, slow = Deaf(), Slow()
    zombie = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {})))
    task = asyncio.ensure_future(zombie.run("hi", session="s"))
    await slow.begun.wait()
    async with Engine(log, agents=agents(slow), model=ScriptedModel(), busy="queue") as other:
        await other.send("more", session="s")
        await other.cancel("s")
        log.expire("s")
        assert (await other.resume("s")).status == "cancelled"
    assert [session async for session in log.expired()] == ["s"]
    driver = zombie._sessions._claims["s"].driver
    assert driver is not None
    await driver.renew(zombie._sessions.owner, 100)  # its heart beats before it hears of it
    slow.go.set()
    assert (await task).status == "cancelled"
    log.expire("s")
    assert [session async for session in log.expired()] == ["s"]
    await zombie.close()
