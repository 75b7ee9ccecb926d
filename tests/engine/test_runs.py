"""Runs: begun, joined, refused, cancelled, taken up again; one at a time in a session."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    RunContext,
    RunFailedError,
    SessionBusyError,
    Tool,
    ToolContext,
    tool,
)
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.events import (
    EventLog,
    InputAdded,
    Limits,
    MemoryLog,
    ModelFailed,
    Record,
    RunResumed,
    RunStarted,
    SQLiteLog,
    ToolAbandoned,
    UsageError,
)
from batonlog.projections import check_legal, session_history


@tool
def look() -> str:
    """Look."""
    return "seen"


def types(records: tuple[Record, ...]) -> list[str]:
    return [record.type for record in records]


class Gate:
    """A tool that waits until it is let go, and says when it has begun."""

    def __init__(self, name: str = "wait", **options: Any) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.calls = 0

        async def wait(ctx: ToolContext[object], arguments: object) -> str:
            self.calls += 1
            self.begun.set()
            await self.go.wait()
            return "waited"

        self.tool: Tool[object] = Tool(name, wait, **options)


class Slow(ScriptedModel):
    """A model that waits, before it answers, until it is let go."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(*steps)
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        yield Delta(kind="text", text="Let me ", agent=request.agent, turn=request.turn)
        self.begun.set()
        await self.go.wait()
        async for piece in super().respond(request):
            yield piece


def engine(*script: Step, log: Any = "memory:", tools: Any = (look,), **options: Any) -> Engine[object]:
    return Engine(log, agents=[Agent("a", tools=tools)], model=ScriptedModel(*script), **options)


async def stopped(task: "asyncio.Future[Any]") -> None:
    """Cancel whoever awaits a run, and see it out."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- results


async def test_a_result_says_what_came_of_the_run() -> None:
    one = engine("one", function_call(look, {}), "two")
    await one.run("go", session="s")
    result = await one.run("go on", session="s")
    records = await one.log.records("s")
    assert (result.session, result.status, result.reason, result.agent) == ("s", "completed", "", "a")
    assert (result.final_output, result.open_calls, result.usage.requests) == ("two", (), 2)
    own = records[result.after : result.version]
    assert (own[0].type, own[-1].type) == ("run.started", "run.completed")
    assert isinstance(own[0].event, RunStarted)
    assert own[0].event.run_id == result.run_id


async def test_without_a_session_each_run_has_a_new_one() -> None:
    one = engine("one", "two")
    first, second = await one.run("go"), await one.run("go")
    assert first.session != second.session
    assert len(await one.log.records(first.session)) == first.version


async def test_a_session_goes_on_with_all_that_was_said() -> None:
    model = ScriptedModel("one", "two")
    one = Engine("memory:", agents=[Agent("a")], model=model)
    await one.run("first", session="s")
    await one.run("second", session="s")
    assert [item.text for item in model.requests[1].input] == ["first", "one", "second"]


async def test_input_may_be_items() -> None:
    model = ScriptedModel("one")
    one = Engine("memory:", agents=[Agent("a")], model=model)
    image = {"type": "input_image", "image_url": "https://x/y.png"}
    await one.run([{"role": "developer", "content": "be brief"}, {"role": "user", "content": [image]}])
    assert model.requests[0].input.data == [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [image]},
    ]


async def test_status_tells_the_same_by_the_log_alone() -> None:
    log = MemoryLog()
    result = await engine("one", log=log).run("go", session="s")
    told = await Engine(log).status("s")
    assert (told.run_id, told.status, told.version, told.final_output) == (
        result.run_id,
        result.status,
        result.version,
        result.final_output,
    )


async def test_an_engine_opens_and_closes_the_log_that_it_was_named(tmp_path: Path) -> None:
    async with engine("one", log=tmp_path / "a.db") as one:
        await one.run("go", session="s")
    async with engine("two", log=str(tmp_path / "a.db")) as two:
        assert (await two.run("go", session="s")).final_output == "two"


async def test_an_engine_leaves_the_log_that_it_was_given_open(tmp_path: Path) -> None:
    async with SQLiteLog(tmp_path / "a.db") as log:
        async with engine("one", log=log) as one:
            await one.run("go", session="s")
        assert await log.records("s")


async def test_closing_twice_does_nothing() -> None:
    one = engine()
    await one.close()
    await one.close()


async def test_many_sessions_run_in_one_engine_at_once() -> None:
    met = asyncio.Barrier(20)

    @tool
    async def meet() -> str:
        await met.wait()  # comes back only if all twenty are under way
        return "met"

    one = engine(*[function_call(meet, {})] * 20, *["done"] * 20, tools=[meet])
    results = await asyncio.gather(*(one.run("go") for _ in range(20)))
    assert [result.final_output for result in results] == ["done"] * 20


# -- the caller's context


async def test_the_context_is_the_callers_and_never_stored() -> None:
    seen: list[object] = []

    @tool
    def peek(ctx: ToolContext[object]) -> str:
        seen.append(ctx.context)
        return ""

    one = engine(function_call(peek, {}), "done", tools=[peek])
    mine = object()
    await one.run("go", session="s", context=mine)
    assert seen == [mine]
    assert all(b"object object" not in record.payload for record in await one.log.records("s"))


@pytest.mark.parametrize("is_async", [False, True])
async def test_where_no_context_is_given_one_is_made(is_async: bool) -> None:
    async def later(session: str) -> str:
        return f"of {session}"

    seen: list[object] = []

    def instructions(ctx: RunContext[str]) -> str:
        seen.append(ctx.context)
        return ""

    agents = [Agent[str]("a", instructions=instructions)]
    context_for: Any = later if is_async else lambda session: f"of {session}"
    one = Engine("memory:", agents=agents, model=ScriptedModel("1", "2"), context_for=context_for)
    await one.run("go", session="s")
    await one.run("go", session="s", context="given")
    assert seen == ["of s", "given"]


async def test_a_context_that_cannot_be_made_starts_nothing() -> None:
    def context_for(session: str) -> object:
        raise LookupError("no such user")

    one = engine(context_for=context_for)
    with pytest.raises(LookupError, match="no such user"):
        await one.run("go", session="s")
    assert await one.log.head("s") is None


# -- idempotency keys


async def test_a_key_that_the_session_has_seen_starts_nothing() -> None:
    one = engine("one", "two")
    first = await one.run("go", session="s", run_id="k")
    again = await one.run("go", session="s", run_id="k")
    assert (again.run_id, again.final_output, again.version) == ("k", "one", first.version)
    assert len(await one.log.records("s")) == first.version


async def test_a_key_gives_the_result_of_its_own_run_whatever_came_later() -> None:
    one = engine("one", "two")
    await one.run("go", session="s", run_id="k1")
    await one.run("go", session="s", run_id="k2")
    assert (await one.run("go", session="s", run_id="k1")).final_output == "one"


async def test_a_key_of_a_run_that_is_going_awaits_its_result() -> None:
    gate = Gate()
    one = engine(function_call("wait", {}), "done", tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s", run_id="k"))
    await gate.begun.wait()
    again = [asyncio.ensure_future(one.run("go", session="s", run_id="k")) for _ in range(2)]
    await asyncio.sleep(0)
    gate.go.set()
    assert [result.final_output for result in await asyncio.gather(running, *again)] == ["done"] * 3
    assert types(await one.log.records("s")).count("run.started") == 1


async def test_two_who_start_with_one_key_at_once_start_one_run() -> None:
    one = engine("done")
    first, second = await asyncio.gather(
        one.run("go", session="s", run_id="k"), one.run("go", session="s", run_id="k")
    )
    assert (first.final_output, second.final_output) == ("done", "done")


async def test_a_key_of_a_run_that_is_going_in_another_engine_awaits_its_result() -> None:
    log, gate = MemoryLog(), Gate()
    one = engine(function_call("wait", {}), "done", log=log, tools=[gate.tool])
    two = engine(log=log)
    running = asyncio.ensure_future(one.run("go", session="s", run_id="k"))
    await gate.begun.wait()
    again = asyncio.ensure_future(two.run("go", session="s", run_id="k"))
    await asyncio.sleep(0)
    gate.go.set()
    assert (await again).final_output == "done"
    await running


async def test_a_key_of_a_run_that_lost_its_worker_goes_on_with_it() -> None:
    log, gate = MemoryLog(), Gate(idempotent=True)
    one = engine(function_call("wait", {}), log=log, tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s", run_id="k"))
    await gate.begun.wait()
    await stopped(running)
    gate.go.set()
    two = engine("done", log=log, tools=[gate.tool])
    assert (await two.run("go", session="s", run_id="k")).final_output == "done"
    assert types(await log.records("s")).count("run.started") == 1


async def test_a_key_of_a_run_that_failed_raises_again() -> None:
    one = engine(LookupError("down"))
    for _ in range(2):
        with pytest.raises(RunFailedError, match="down"):
            await one.run("go", session="s", run_id="k")


async def test_a_key_of_a_run_that_waits_tells_for_what() -> None:
    one = engine(function_call("pick", {}), tools=[Tool("pick", None)])
    first = await one.run("go", session="s", run_id="k")
    assert (await one.run("go", session="s", run_id="k")).open_calls == first.open_calls


# -- one at a time


async def test_a_second_run_while_one_is_going_is_refused() -> None:
    gate = Gate()
    one = engine(function_call("wait", {}), "done", tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    with pytest.raises(SessionBusyError, match=r"s is busy: call 4\.0 \(wait\) is running") as caught:
        await one.run("me too", session="s")
    assert [(call.tool, call.why) for call in caught.value.open_calls] == [("wait", "running")]
    gate.go.set()
    assert (await running).final_output == "done"


async def test_a_second_run_while_one_is_going_in_another_process_is_refused() -> None:
    log, gate = MemoryLog(), Gate()
    one, two = engine(function_call("wait", {}), "done", log=log, tools=[gate.tool]), engine(log=log)
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    for use in (two.run("me too", session="s"), two.resume("s")):
        with pytest.raises(SessionBusyError, match="s is busy"):
            await use
    gate.go.set()
    await running


async def test_a_new_run_while_one_waits_is_refused_and_says_for_what() -> None:
    one = engine(function_call("pick", {}), tools=[Tool("pick", None)])
    paused = await one.run("go", session="s")
    with pytest.raises(SessionBusyError, match=r"busy: call 4\.0 \(pick\) runs elsewhere") as caught:
        await one.run("me too", session="s")
    assert caught.value.open_calls == paused.open_calls
    assert caught.value.session == "s"


async def test_a_new_run_while_one_has_been_decided_and_not_resumed_is_refused() -> None:
    one = engine(function_call("pick", {}), "done", tools=[Tool("pick", None)])
    (call,) = (await one.run("go", session="s")).open_calls
    await one.settle("s", call.call, "12A", by="li")
    with pytest.raises(SessionBusyError, match="resume"):
        await one.run("me too", session="s")
    assert (await one.resume("s")).final_output == "done"


@pytest.mark.parametrize("how", ["limit", "failure"])
async def test_a_new_run_after_a_limit_or_a_failure_closes_what_is_open(how: str) -> None:
    first: list[Step] = [LookupError("down")] if how == "failure" else [function_call(look, {})]
    one = engine(*first, "done")
    if how == "failure":
        with pytest.raises(RunFailedError):
            await one.run("go", session="s")
    else:
        await one.run("go", session="s", limits=Limits(turns=1))
    assert (await one.run("go on", session="s")).final_output == "done"
    assert not check_legal(session_history(await one.log.records("s")))


async def test_a_run_that_was_interrupted_is_resumed_or_cancelled_before_a_new_one() -> None:
    gate = Gate()
    one = engine(function_call("wait", {}), "done", tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    await stopped(running)
    with pytest.raises(SessionBusyError, match="holds a run that was interrupted: resume it, or cancel it"):
        await one.run("me too", session="s")


# -- run_sync


def test_a_script_may_run_without_a_loop() -> None:
    one = engine("one", "two")
    assert one.run_sync("go", session="s").final_output == "one"
    assert one.run_sync("go", session="s").final_output == "two"


def test_a_script_may_run_on_a_file_in_one_loop_after_another(tmp_path: Path) -> None:
    one = engine(function_call(look, {}), "one", "two", log=tmp_path / "a.db")
    assert one.run_sync("go", session="s").final_output == "one"
    assert asyncio.run(one.run("go", session="s")).final_output == "two"
    asyncio.run(one.close())


async def test_inside_a_loop_it_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"a loop is running here: await run\(\.\.\.\) instead"):
        engine().run_sync("go")


def test_streaming_without_a_loop_is_an_error() -> None:
    with pytest.raises(UsageError, match="inside a running event loop"):
        engine().stream("go")


# -- input meanwhile


async def test_what_is_sent_to_an_idle_session_is_answered_by_whoever_resumes_it() -> None:
    model = ScriptedModel("hi")
    log = MemoryLog()
    await Engine(log).send("hello", session="s")
    one = Engine(log, agents=[Agent("a")], model=model)
    result = await one.resume("s")
    assert (result.final_output, [item.text for item in model.requests[0].input]) == ("hi", ["hello"])
    assert (await one.resume("s")).version == result.version  # there is nothing more to answer


async def test_several_messages_that_were_sent_are_answered_together() -> None:
    model = ScriptedModel("hi")
    one = Engine("memory:", agents=[Agent("a")], model=model)
    for text in ("one", "two"):
        await one.send(text, session="s", by="li")
    await one.resume("s")
    assert [item.text for item in model.requests[0].input] == ["one", "two"]


async def test_sending_says_at_which_version_it_stands() -> None:
    one = engine()
    at = await one.send("hello", session="s", by="li")
    (record,) = await one.log.records("s")
    assert isinstance(record.event, InputAdded)
    assert (record.version, record.event.by, record.event.goes_to) == (at, "li", "run")


async def test_what_is_sent_while_a_tool_runs_is_shown_at_the_next_turn_exactly_once() -> None:
    gate = Gate()
    model = ScriptedModel(function_call("wait", {}), "done", "again")
    one = Engine("memory:", agents=[Agent("a", tools=[gate.tool])], model=model)
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    await one.send("hurry", session="s")
    gate.go.set()
    await running
    assert [item.text for item in model.requests[1].input][-2:] == ["waited", "hurry"]
    await one.run("more", session="s")
    assert [item.text for item in model.requests[2].input].count("hurry") == 1


async def test_what_is_sent_while_the_model_answers_keeps_the_run_going() -> None:
    model = Slow("one", "two")
    one = Engine("memory:", agents=[Agent("a")], model=model)
    running = asyncio.ensure_future(one.run("go", session="s"))
    await model.begun.wait()
    await one.send("and this?", session="s")
    model.go.set()
    assert (await running).final_output == "two"
    assert [item.text for item in model.requests[1].input] == ["go", "one", "and this?"]


async def test_what_is_sent_while_a_run_waits_is_shown_when_it_goes_on() -> None:
    model = ScriptedModel(function_call("pick", {}), "done")
    one = Engine("memory:", agents=[Agent("a", tools=[Tool("pick", None)])], model=model)
    (call,) = (await one.run("go", session="s")).open_calls
    await one.send("a window seat", session="s")
    await one.settle("s", call.call, "12A", by="li")
    await one.resume("s")
    assert [item.text for item in model.requests[1].input][-2:] == ["12A", "a window seat"]


# -- cancelling


async def test_cancelling_while_a_tool_runs_answers_its_call_and_ends_the_run() -> None:
    gate = Gate()
    one = engine(
        [function_call("wait", {}), function_call("pick", {})], "again", tools=[gate.tool, Tool("pick", None)]
    )
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    await one.cancel("s", by="li", reason="changed my mind")
    result = await running
    assert (result.status, result.reason, result.open_calls) == ("cancelled", "changed my mind", ())
    records = await one.log.records("s")
    assert not check_legal(session_history(records))
    assert [record.event.reason for record in records if isinstance(record.event, ToolAbandoned)] == [
        "cancelled"
    ]
    assert (await one.run("go on", session="s")).final_output == "again"


async def test_cancelling_while_the_model_answers_keeps_what_had_come() -> None:
    model = Slow("never")
    one = Engine("memory:", agents=[Agent("a")], model=model)
    running = asyncio.ensure_future(one.run("go", session="s"))
    await model.begun.wait()
    await one.cancel("s")
    assert (await running).status == "cancelled"
    records = await one.log.records("s")
    (failed,) = [record.event for record in records if isinstance(record.event, ModelFailed)]
    assert (failed.kind, failed.partial) == ("cancelled", "Let me ")
    assert len(session_history(records)) == 1


async def test_cancelling_after_the_turn_lets_its_calls_end() -> None:
    gate = Gate()
    model = ScriptedModel(function_call("wait", {}))
    one = Engine("memory:", agents=[Agent("a", tools=[gate.tool])], model=model)
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    await one.cancel("s", after_turn=True)
    gate.go.set()
    assert (await running).status == "cancelled"
    assert session_history(await one.log.records("s"))[-1].text == "waited"


async def test_cancelling_after_the_turn_counts_less_than_cancelling_now() -> None:
    gate = Gate()
    one = engine(function_call("wait", {}), tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    await one.cancel("s", after_turn=True)
    await one.cancel("s")
    assert (await running).status == "cancelled"
    assert not gate.go.is_set()


@pytest.mark.parametrize("after_turn", [False, True])
async def test_cancelling_a_run_that_waits_ends_it_at_once_from_any_process(after_turn: bool) -> None:
    log = MemoryLog()
    one = engine(function_call("pick", {}), "again", log=log, tools=[Tool("pick", None)])
    await one.run("go", session="s")
    await Engine(log).cancel("s", by="li", after_turn=after_turn)
    assert (await one.status("s")).status == "cancelled"
    assert (await one.resume("s")).status == "cancelled"
    assert (await one.run("go on", session="s")).final_output == "again"


async def test_cancelling_from_another_process_reaches_a_run_that_is_going(tmp_path: Path) -> None:
    gate = Gate()
    async with SQLiteLog(tmp_path / "a.db") as log, SQLiteLog(tmp_path / "a.db") as other:
        one = engine(function_call("wait", {}), log=log, tools=[gate.tool])
        running = asyncio.ensure_future(one.run("go", session="s"))
        await gate.begun.wait()
        await Engine(other).cancel("s")
        assert (await running).status == "cancelled"


async def test_cancelling_does_not_wait_for_a_blocking_tool() -> None:
    begun, go = threading.Event(), threading.Event()

    @tool
    def block() -> str:
        begun.set()
        go.wait(30)
        return "late"

    one = engine(function_call(block, {}), tools=[block])
    running = asyncio.ensure_future(one.run("go", session="s"))
    try:
        await asyncio.to_thread(begun.wait)
        await one.cancel("s")
        assert (await running).status == "cancelled"
    finally:
        go.set()


async def test_cancelling_one_of_several_calls_in_flight_cancels_them_all() -> None:
    first, second = Gate("first"), Gate("second")
    one = engine([function_call("first", {}), function_call("second", {})], tools=[first.tool, second.tool])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await first.begun.wait()
    await second.begun.wait()
    await one.cancel("s")
    assert (await running).status == "cancelled"
    assert types(await one.log.records("s")).count("tool.abandoned") == 2


# -- the caller goes away


async def test_cancelling_the_caller_stops_the_work_and_resume_goes_on() -> None:
    gate = Gate(idempotent=True)
    one = engine(function_call("wait", {}), "done", tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    await stopped(running)
    assert (await one.status("s")).status == "running"
    gate.go.set()
    assert (await one.resume("s")).final_output == "done"
    assert gate.calls == 2  # it is idempotent: it runs again
    assert types(await one.log.records("s")).count("run.resumed") == 1


async def test_a_callers_timeout_is_the_callers() -> None:
    gate = Gate(idempotent=True)
    one = engine(function_call("wait", {}), "done", tools=[gate.tool])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await one.run("go", session="s")
    gate.go.set()
    assert (await one.resume("s")).final_output == "done"


async def test_a_model_that_was_being_asked_is_asked_again() -> None:
    model = Slow("done")
    one = Engine("memory:", agents=[Agent("a")], model=model)
    running = asyncio.ensure_future(one.run("go", session="s"))
    await model.begun.wait()
    await stopped(running)
    model.go.set()
    assert (await one.resume("s")).final_output == "done"
    assert types(await one.log.records("s")).count("model.requested") == 2


async def test_cancelling_the_run_and_its_caller_at_once_stops_both() -> None:
    gate = Gate()
    one = engine(function_call("wait", {}), tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    await one.cancel("s")
    await stopped(running)
    assert (await one.resume("s")).status == "cancelled"


async def test_a_caller_that_was_cancelled_before_may_still_run() -> None:
    one = engine(function_call(look, {}), "done")

    async def cleanup() -> object:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return (await one.run("clean up", session="s")).final_output
        return None

    task = asyncio.ensure_future(cleanup())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "done"


# -- resuming


async def test_resuming_a_completed_run_gives_its_result_again() -> None:
    one = engine("done")
    first = await one.run("go", session="s")
    again = await one.resume("s")
    assert (again.final_output, again.version) == ("done", first.version)


async def test_resuming_a_run_that_waits_for_somebody_waits_on() -> None:
    one = engine(function_call("pick", {}), tools=[Tool("pick", None)])
    paused = await one.run("go", session="s")
    again = await one.resume("s")
    assert (again.status, again.version, again.open_calls) == ("paused", paused.version, paused.open_calls)


async def test_resuming_a_run_that_is_going_here_joins_it() -> None:
    gate = Gate()
    one = engine(function_call("wait", {}), "done", tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    joined = asyncio.ensure_future(one.resume("s"))
    await asyncio.sleep(0)
    gate.go.set()
    assert (await joined).final_output == (await running).final_output == "done"
    assert not [r for r in await one.log.records("s") if isinstance(r.event, RunResumed)]


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_resuming_twice_at_once_resumes_once(tmp_path: Path, store: str) -> None:
    one = engine(LookupError("down"), "done", log="memory:" if store == "memory" else tmp_path / "a.db")
    with pytest.raises(RunFailedError):
        await one.run("go", session="s")
    first, second = await asyncio.gather(one.resume("s"), one.resume("s"))
    assert first.version == second.version
    assert types(await one.log.records("s")).count("run.resumed") == 1
    await one.close()


async def test_a_run_that_fails_again_raises_again() -> None:
    one = engine(LookupError("down"), LookupError("still down"))
    with pytest.raises(RunFailedError, match="down"):
        await one.run("go", session="s")
    with pytest.raises(RunFailedError, match="still down"):
        await one.resume("s")


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_recovering_resumes_what_has_no_worker_and_resume_joins_it(tmp_path: Path, store: str) -> None:
    log: EventLog = MemoryLog() if store == "memory" else SQLiteLog(tmp_path / "a.db")
    gate = Gate(idempotent=True)
    dead = engine(function_call("wait", {}), log=log, tools=[gate.tool])
    running = asyncio.ensure_future(dead.run("go", session="s"))
    await gate.begun.wait()
    await stopped(running)
    await log.acquire("s", owner="dead", seconds=0)  # it gave nothing back, and its time is over
    one = engine("done", log=log, tools=[gate.tool])
    assert await one.recover() == ("s",)
    gate.go.set()
    assert (await one.resume("s")).final_output == "done"
    assert await one.recover() == ()
    await one.close()
    await log.close()


# -- closing


async def test_closing_while_a_run_is_going_stops_it_and_another_engine_goes_on() -> None:
    log, gate = MemoryLog(), Gate(idempotent=True)
    one = engine(function_call("wait", {}), log=log, tools=[gate.tool])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await gate.begun.wait()
    await one.close()
    with pytest.raises(UsageError, match="the engine was closed while s was running; resume goes on with it"):
        await running
    gate.go.set()
    two = engine("done", log=log, tools=[gate.tool])
    assert (await two.resume("s")).final_output == "done"  # at once: the lease was given back


async def test_what_an_effect_came_to_when_it_was_closed_is_recorded_and_nothing_new_begins() -> None:
    log, begun, calls = MemoryLog(), asyncio.Event(), 0

    @tool
    async def careful() -> str:
        nonlocal calls
        calls += 1
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "half done"
        return "done"

    one = engine(function_call(careful, {}), log=log, tools=[careful])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await begun.wait()
    await one.close()
    with pytest.raises(UsageError, match="the engine was closed"):
        await running
    assert types(await log.records("s"))[-1] == "tool.returned"
    two = engine("ok", log=log, tools=[careful])
    assert (await two.resume("s")).final_output == "ok"
    assert calls == 1


async def test_closing_sees_streams_out() -> None:
    gate = Gate()
    one = engine(function_call("wait", {}), tools=[gate.tool])
    stream = one.stream("go", session="s")
    await gate.begun.wait()
    await one.close()
    with pytest.raises(UsageError, match="the engine was closed"):
        await stream.result()


# -- truncated answers


async def test_an_answer_that_was_cut_off_runs_none_of_its_calls() -> None:
    class Cut(ScriptedModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            async for piece in super().respond(request):
                if isinstance(piece, ModelResponse) and len(self.requests) == 1:
                    piece.status = "incomplete"
                yield piece

    model = Cut(function_call(look, '{"a": '), "done")
    one = Engine("memory:", agents=[Agent("a", tools=[look])], model=model)
    assert (await one.run("go", session="s")).final_output == "done"
    assert "cut off by the token limit" in model.requests[1].input[-1].text
    assert "tool.called" not in types(await one.log.records("s"))


async def test_a_custom_call_is_answered_with_a_custom_output() -> None:
    call = {"type": "custom_tool_call", "name": "look", "input": "{}", "call_id": "x"}
    one = engine(call, "done")
    await one.run("go", session="s")
    assert session_history(await one.log.records("s"))[2].data == {
        "type": "custom_tool_call_output",
        "call_id": "x",
        "output": "seen",
    }


async def test_ids_that_are_used_again_are_told_apart() -> None:
    calls: list[Callable[[], Any]] = [lambda: function_call(look, {}, call_id="same")] * 3
    model = ScriptedModel([calls[0](), calls[1]()], calls[2](), "done")
    one = Engine("memory:", agents=[Agent("a", tools=[look])], model=model)
    await one.run("go", session="s")
    sent = [json.loads(data) for data in model.requests[-1].raw_input]
    assert [data["call_id"] for data in sent[1:]] == [
        "same",
        "same~4",
        "same",
        "same~4",
        "same~10",
        "same~10",
    ]


async def test_the_last_message_is_the_answer() -> None:
    one = engine([assistant_message("one"), assistant_message("two")])
    assert (await one.run("go")).final_output == "two"


async def test_an_answer_of_nothing_is_an_empty_answer() -> None:
    assert (await engine([]).run("go")).final_output == ""
