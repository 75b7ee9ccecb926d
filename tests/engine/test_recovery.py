"""Workers: what they find, what they leave alone, and that they never stop looking."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.engine.leases import Hasty

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    RunFailedError,
    Tool,
    ToolContext,
    tool,
)
from batonlog.engine.testing import ScriptedModel, Step, function_call
from batonlog.events import EventLog, Lease, Limits, LogError, MemoryLog, SQLiteLog, UsageError


@tool(idempotent=True)
def look() -> str:
    return "seen"


@tool(needs_approval=True)
def pay() -> str:
    return "paid"


def engine(log: EventLog | str | Path, *script: Step, **options: Any) -> Engine[Any]:
    agents = [Agent[Any]("a", tools=[look, pay, Tool("pick", None)])]
    return Engine(log, agents=agents, model=ScriptedModel(*script), **options)


@asynccontextmanager
async def serving(worker: Engine[Any]) -> AsyncIterator[None]:
    """Have a worker serve meanwhile."""
    task = asyncio.ensure_future(worker.serve())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await worker.close()


async def rest(log: EventLog, event: str, session: str = "s") -> None:
    """Wait until a session holds this event."""
    async with asyncio.timeout(20):
        async for record in log.follow(session):
            if record.type == event:
                return


async def interrupted(log: EventLog, session: str = "s") -> None:
    """Leave a run in the middle of a tool call, as a worker does that dies."""
    begun = asyncio.Event()

    @tool(name="look", idempotent=True)
    async def slow() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    agents = [Agent("a", tools=[slow])]
    dying = Engine(log, agents=agents, model=ScriptedModel(function_call("look", {})))
    run = asyncio.ensure_future(dying.run("go", session=session))
    await begun.wait()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


# -- what there is to find


async def test_whoever_recovers_finds_a_call_that_was_decided() -> None:
    log = MemoryLog()
    one = engine(log, function_call("pay", {}), "done")
    (call,) = (await one.run("go", session="s")).open_calls
    assert await one.recover() == ()
    await Engine(log).approve("s", call.call, by="anna")
    assert await one.recover() == ("s",)
    assert (await one.resume("s")).final_output == "done"


async def test_whoever_recovers_finds_a_call_that_was_settled_or_rejected() -> None:
    log = MemoryLog()
    one = engine(log, function_call("pick", {}), "one", function_call("pay", {}), "two")
    office = Engine(log)
    (call,) = (await one.run("go", session="s")).open_calls
    await office.settle("s", call.call, "12A", by="li")
    assert await one.recover() == ("s",)
    assert (await one.resume("s")).final_output == "one"
    (call,) = (await one.run("go", session="s")).open_calls
    await office.reject("s", call.call, by="li")
    assert await one.recover() == ("s",)
    assert (await one.resume("s")).final_output == "two"


async def test_whoever_recovers_finds_what_was_sent_to_a_session_at_rest_or_to_a_new_one() -> None:
    log = MemoryLog()
    one = engine(log, "hi", "hi again", "and you")
    await one.run("go", session="old")
    for session in ("old", "new"):
        await Engine(log).send("hello?", session=session)
    assert set(await one.recover()) == {"old", "new"}
    assert (await one.resume("old")).status == (await one.resume("new")).status == "completed"
    assert await one.recover() == ()


async def test_what_queued_behind_a_run_is_found_when_that_has_ended() -> None:
    log = MemoryLog()
    waits = engine(log, function_call("pick", {}), "one", busy="queue")
    (call,) = (await waits.run("go", session="s")).open_calls
    await waits.send("and then?", session="s")
    await waits.settle("s", call.call, "12A", by="li")
    assert (await waits.resume("s")).final_output == "one"
    one = engine(log, "two")
    assert await one.recover() == ("s",)
    assert (await one.resume("s")).final_output == "two"


@pytest.mark.parametrize("how", ["limit", "failure"])
async def test_a_message_after_a_limit_or_a_failure_begins_a_new_run(how: str) -> None:
    log = MemoryLog()
    first: Step = LookupError("down") if how == "failure" else function_call("look", {})
    one = engine(log, first, "hi")
    with suppress(RunFailedError):
        await one.run("go", session="s", limits=Limits(turns=1))
    stopped = await one.status("s")
    assert await one.recover() == ()  # nobody asked it to go on
    await one.send("still there?", session="s")
    assert await one.recover() == ("s",)
    answered = await one.resume("s")
    assert answered.final_output == "hi"
    assert answered.run_id != stopped.run_id


async def test_a_message_to_a_run_that_waits_for_somebody_takes_nothing_up() -> None:
    log = MemoryLog()
    one = engine(log, function_call("pay", {}), "done")
    paused = await one.run("go", session="s")
    await one.send("hello?", session="s")
    await one.recover()
    await asyncio.gather(*one._tasks)
    assert (await one.status("s")).open_calls == paused.open_calls
    assert [session async for session in log.expired()] == []


async def test_a_fork_is_gone_on_with_by_nobody_until_somebody_speaks_to_it() -> None:
    log = MemoryLog()
    one = engine(log, function_call("pay", {}), "done")
    await one.run("go", session="s")
    fork = await one.fork("s", at=4)  # between the answer and its call
    await one.note(fork, "seen", 1)
    await log.acquire(fork, owner="somebody", seconds=0)  # who died before he did anything
    assert await one.recover() == ()
    await asyncio.gather(*one._tasks)
    assert (await one.status(fork)).reason == "forked"
    await one.send("well?", session=fork)
    assert await one.recover() == (fork,)
    assert (await one.resume(fork)).reason == "approval"


async def test_a_lease_without_a_session_is_no_work_and_is_cleared_away() -> None:
    log = MemoryLog()
    await log.acquire("never-was", owner="another", seconds=0)
    one = engine(log)
    assert await one.recover() == ()
    await asyncio.gather(*one._tasks)
    assert [session async for session in log.expired()] == []


async def test_two_engines_that_recover_at_once_do_nothing_twice() -> None:
    log = MemoryLog()
    await interrupted(log)
    looked: list[str] = []

    @tool(name="look", idempotent=True)
    async def counted(ctx: ToolContext[object]) -> str:
        looked.append(ctx.idempotency_key)
        await asyncio.sleep(0)
        return "seen"

    both = [Engine(log, agents=[Agent("a", tools=[counted])], model=ScriptedModel("done")) for _ in range(2)]
    await asyncio.gather(*[each.recover() for each in both])
    await asyncio.gather(*[task for each in both for task in each._tasks])
    assert looked == ["s/4.0"]
    assert (await both[0].status("s")).final_output == "done"


# -- what is said wakes a worker up, and nobody else


async def test_what_is_said_to_a_run_that_is_going_leaves_its_lease_alone() -> None:
    log, go = MemoryLog(), asyncio.Event()

    @tool
    async def wait() -> str:
        await office.send("more", session="s")
        await office.note("s", "n", 1)
        go.set()
        return "waited"

    office = Engine(log)
    agents = [Agent("a", tools=[wait])]
    one = Engine(log, agents=agents, model=ScriptedModel(function_call(wait, {}), "done"))
    assert (await one.run("go", session="s")).final_output == "done"
    assert [session async for session in log.expired()] == []


async def test_a_note_wakes_nobody_up() -> None:
    log = MemoryLog()
    one = engine(log, "hi")
    await one.run("go", session="s")
    await one.note("s", "n", 1)
    assert [session async for session in log.expired()] == []


async def test_a_word_that_comes_while_a_worker_looks_is_not_lost_on_it() -> None:
    class Interrupted(MemoryLog):
        """While a worker gives its lease back, somebody speaks."""

        speak = False

        async def release(self, lease: Lease) -> None:
            if self.speak:
                self.speak = False
                await Engine(self).send("hello?", session="s")
            await super().release(lease)

    log = Interrupted()
    one = engine(log, "hi", "you called?")
    await one.run("go", session="s")
    await log.acquire("s", owner="another", seconds=0)
    log.speak = True
    await one.recover()
    await asyncio.gather(*one._tasks)
    assert [session async for session in log.expired()] == ["s"]


# -- serving


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_a_worker_that_serves_answers_what_is_sent(store: str, tmp_path: Path) -> None:
    here: EventLog = MemoryLog() if store == "memory" else SQLiteLog(tmp_path / "log.db")
    there = here if store == "memory" else SQLiteLog(tmp_path / "log.db")
    async with here, there, serving(engine(here, "hi", "bye")):
        office = Engine(there)
        await office.send("hello", session="s")
        await rest(there, "run.completed")
        assert (await office.status("s")).final_output == "hi"
        await office.send("goodbye", session="t")
        await rest(there, "run.completed", "t")
        assert (await office.status("t")).final_output == "bye"


async def test_a_worker_that_serves_goes_on_when_somebody_decides() -> None:
    log = MemoryLog()
    async with serving(engine(log, function_call("pay", {}), "done")):
        office = Engine(log)
        await office.send("go", session="s")
        await rest(log, "run.paused")
        (call,) = (await office.status("s")).open_calls
        await office.approve("s", call.call, by="anna")
        await rest(log, "run.completed")
    assert [record.type for record in await log.records("s")].count("tool.called") == 1


async def test_a_worker_that_serves_takes_up_what_a_dead_one_has_left() -> None:
    log = MemoryLog()
    await interrupted(log)
    async with serving(engine(log, "done")):
        await rest(log, "run.completed")


async def test_a_worker_that_serves_finds_a_lease_that_runs_out_without_a_word() -> None:
    log = MemoryLog()
    await interrupted(log)
    await log.acquire("s", owner="dying", seconds=0.2)
    agents = [Agent("a", tools=[look])]
    async with serving(Hasty(log, agents=agents, model=ScriptedModel("done"))):
        await rest(log, "run.completed")


async def test_whoever_follows_what_was_sent_sees_it_answered_with_deltas_where_it_is_answered() -> None:
    class Says(ScriptedModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            await asked.wait()
            async for piece in super().respond(request):
                yield piece

    log, asked = MemoryLog(), asyncio.Event()
    worker = Engine(log, agents=[Agent("a")], model=Says("hi"))
    elsewhere = Engine(log)
    await elsewhere.send("hello", session="s")

    async def follow(one: Engine[Any]) -> list[Any]:
        seen = []
        async with asyncio.timeout(20):
            async for update in one.updates("s"):
                seen.append(update)
                if one is worker and not isinstance(update, Delta) and update.type == "model.requested":
                    asked.set()
        return seen

    following = [asyncio.ensure_future(follow(one)) for one in (worker, elsewhere)]
    await asyncio.sleep(0)
    async with serving(worker):
        here, there = await asyncio.gather(*following)
    records = list(await log.records("s"))
    assert there == records
    assert [update for update in here if not isinstance(update, Delta)] == records
    assert [update.text for update in here if isinstance(update, Delta)] == ["hi"]


async def test_a_worker_gets_its_contexts_from_the_engine() -> None:
    log = MemoryLog()

    @tool
    def who(ctx: ToolContext[str]) -> str:
        return ctx.context

    agents = [Agent("a", tools=[who])]
    model = ScriptedModel(function_call(who, {}), "done")
    async with serving(Engine(log, agents=agents, model=model, context_for=lambda session: f"of {session}")):
        await Engine(log).send("go", session="s")
        await rest(log, "run.completed")
    assert any("of s" in record.payload.decode() for record in await log.records("s"))


async def test_a_session_that_cannot_be_taken_up_is_told_of_and_keeps_no_other_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog()
    gone = Engine(log, agents=[Agent("gone", tools=[pay])], model=ScriptedModel(function_call("pay", {})))
    (call,) = (await gone.run("go", session="orphan")).open_calls
    await gone.approve("orphan", call.call, by="anna")
    with caplog.at_level(logging.WARNING, "batonlog.engine"):
        async with serving(engine(log, "hi")):
            await Engine(log).send("hello", session="s")
            await rest(log, "run.completed")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1  # and not again and again
    assert "cannot take orphan up: UnknownAgentError" in told[0]
    assert "gone" in told[0]
    assert [session async for session in log.expired()] == ["orphan"]  # for a worker that has the agent


async def test_a_store_that_fails_is_looked_at_again(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(MemoryLog):
        fails = 2

        async def expired(self) -> AsyncIterator[str]:
            if self.fails:
                self.fails -= 1
                raise LogError("the disk is away")
            async for session in super().expired():
                yield session

    log = Flaky()
    agents = [Agent("a")]
    with caplog.at_level(logging.WARNING, "batonlog.engine"):
        async with serving(Hasty(log, agents=agents, model=ScriptedModel("hi"))):
            await Engine(log).send("hello", session="s")
            await rest(log, "run.completed")
    assert "cannot look for work: the disk is away" in caplog.text


async def test_serving_ends_when_the_engine_is_closed() -> None:
    one = engine(MemoryLog())
    task = asyncio.ensure_future(one.serve())
    await asyncio.sleep(0)
    await one.close()
    async with asyncio.timeout(20):
        await task
    with pytest.raises(UsageError, match="cannot serve: the engine was closed"):
        await one.serve()


async def test_a_worker_that_is_cancelled_at_the_moment_of_news_ends() -> None:
    one = engine(MemoryLog())
    task = asyncio.ensure_future(one.serve())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    one._recovery.stop()  # news
    task.cancel()
    async with asyncio.timeout(20):
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_an_engine_without_agents_serves_nothing() -> None:
    with pytest.raises(UsageError, match="cannot serve: this engine has no agents"):
        await Engine("memory:").serve()


async def test_several_workers_share_what_there_is_and_do_nothing_twice() -> None:
    log = MemoryLog()
    ran: list[str] = []

    @tool
    async def once(ctx: ToolContext[object]) -> str:
        ran.append(ctx.session)
        return "done"

    def worker() -> Engine[object]:
        def step(request: ModelRequest) -> Step:
            return "done" if len(request.input) > 1 else function_call(once, {})

        model = ScriptedModel(*[step] * 40)
        return Engine(log, agents=[Agent("a", tools=[once])], model=model)

    names = [f"s{n}" for n in range(20)]
    async with serving(worker()), serving(worker()), serving(worker()):
        await asyncio.gather(*[Engine(log).send("go", session=name) for name in names])
        for name in names:
            await rest(log, "run.completed", name)
    assert sorted(ran) == sorted(names)
