"""What becomes of a run while another one is open: refused, queued for the next run, or steering this one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.leases import Hasty

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    RunFailedError,
    Tool,
    tool,
)
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.events import (
    EventLog,
    InputAdded,
    Limits,
    MemoryLog,
    Record,
    RunStarted,
    SQLiteLog,
    UsageError,
)
from batonlog.projections import model_history, session_history

Busy = Literal["queue", "steer"]
BOTH: tuple[Busy, ...] = ("queue", "steer")


class Door:
    """A tool that waits until the door is opened, and says when somebody stands before it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

        @tool(idempotent=True)
        async def wait() -> str:
            self.reached.set()
            await self.opened.wait()
            return "open"

        self.tool = wait


class Echo:
    """Calls the door once; answers with the texts that it was shown since its last answer."""

    name = "echo"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        self.requests.append(request)
        if request.input[-1].text == "wait":
            yield ModelResponse([function_call("wait", {})])
            return
        new: list[str] = []
        for item in request.input:
            if item.role == "assistant":
                new = []
            elif item.role == "user" and item.text != "wait":
                new.append(item.text)
        yield ModelResponse([assistant_message(" ".join(["heard", ", ".join(new)]).strip())])


def engine(log: EventLog | str, door: Door, busy: Any, model: Any = None, **options: Any) -> Engine[object]:
    agents = [Agent("a", tools=[door.tool])]
    return Engine(log, agents=agents, model=model if model is not None else Echo(), busy=busy, **options)


async def in_line(one: Engine[object], text: str, **options: Any) -> "asyncio.Task[Any]":
    """Start a run that finds the session busy, and wait until its input is recorded."""
    head = await one.log.head("s")
    assert head is not None
    task = asyncio.ensure_future(one.run(text, session="s", **options))
    async for record in one.log.follow("s", after=head.version):
        if isinstance(record.event, InputAdded):
            break
    return task


def of(records: tuple[Record, ...], kind: type[Any]) -> list[Any]:
    return [record.event for record in records if isinstance(record.event, kind)]


# -- here


async def test_what_is_queued_is_answered_by_the_next_run() -> None:
    door = Door()
    one = engine("memory:", door, "queue")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too")
    door.opened.set()
    assert (await first).final_output == "heard"
    result = await second
    assert result.final_output == "heard me too"
    assert result.run_id != (await first).run_id
    assert result.after == (await first).version


async def test_what_steers_is_shown_at_the_next_turn_and_answered_there() -> None:
    door = Door()
    one = engine("memory:", door, "steer")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too")
    door.opened.set()
    assert (await second).final_output == "heard me too"
    assert (await second).run_id == (await first).run_id
    assert len(of(await one.log.records("s"), RunStarted)) == 1


async def test_several_that_queue_are_answered_together_in_their_order() -> None:
    door = Door()
    one = engine("memory:", door, "queue")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    others = [await in_line(one, text) for text in ("b", "c", "d")]
    door.opened.set()
    await first
    assert {(await other).final_output for other in others} == {"heard b, c, d"}
    assert len(of(await one.log.records("s"), RunStarted)) == 2


@pytest.mark.parametrize("busy", BOTH)
async def test_input_that_waited_is_said_once_in_both_histories(busy: Busy) -> None:
    door = Door()
    one = engine("memory:", door, busy)
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too")
    door.opened.set()
    await asyncio.gather(first, second)
    records = await one.log.records("s")
    for history in (session_history(records), model_history(records)):
        assert [item.text for item in history].count("me too") == 1


@pytest.mark.parametrize("busy", BOTH)
async def test_a_run_that_finds_nobody_there_just_begins(busy: Busy) -> None:
    one = engine("memory:", Door(), busy)
    assert (await one.run("hello", session="s")).final_output == "heard hello"
    assert of(await one.log.records("s"), InputAdded) == []


async def test_what_is_sent_where_runs_queue_waits_for_the_next_run_too() -> None:
    door = Door()
    one = engine("memory:", door, "queue")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    await one.send("later", session="s")
    door.opened.set()
    assert (await first).final_output == "heard"
    assert (await one.resume("s")).final_output == "heard later"


async def test_a_queued_stream_tells_of_the_run_that_answers_it() -> None:
    door = Door()
    one = engine("memory:", door, "queue")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    stream = one.stream("me too", session="s")
    told = asyncio.ensure_future(_all(stream))
    async for record in one.log.follow("s"):
        if isinstance(record.event, InputAdded):
            break
    door.opened.set()
    records = [update for update in await told if isinstance(update, Record)]
    assert (await stream.result()).final_output == "heard me too"
    assert records == list(await one.log.records("s"))[-len(records) :]
    assert "run.started" in [record.type for record in records]
    await first


async def _all(stream: Any) -> list[Any]:
    return [update async for update in stream]


# -- in another process


@pytest.mark.parametrize("busy", BOTH)
async def test_whoever_finds_another_process_at_work_waits_for_it(busy: Busy, tmp_path: Path) -> None:
    door = Door()
    async with SQLiteLog(tmp_path / "log.db") as here, SQLiteLog(tmp_path / "log.db") as there:
        one, two = engine(here, door, busy), engine(there, door, busy)
        first = asyncio.ensure_future(one.run("wait", session="s"))
        await door.reached.wait()
        second = await in_line(two, "me too")
        door.opened.set()
        await first
        assert (await second).final_output == "heard me too"


@pytest.mark.parametrize("busy", BOTH)
async def test_whoever_waits_for_a_worker_that_dies_goes_on_in_its_place(busy: Busy) -> None:
    door = Door()
    log = MemoryLog()
    one = Hasty(log, agents=[Agent("a", tools=[door.tool])], model=Echo(), busy=busy)
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    assert one._sessions._claims._heart is not None
    one._sessions._claims._heart.cancel()  # its process stops: the lease runs out by itself
    two = Hasty(log, agents=[Agent("a", tools=[door.tool])], model=Echo(), busy=busy)
    second = await in_line(two, "me too")
    door.opened.set()
    assert (await second).final_output == "heard me too"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize("busy", BOTH)
async def test_a_run_that_was_interrupted_is_taken_up_first(busy: Busy) -> None:
    door = Door()
    one = engine("memory:", door, busy)
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    door.opened.set()
    assert (await one.run("me too", session="s")).final_output == "heard me too"
    assert len(of(await one.log.records("s"), RunStarted)) == (2 if busy == "queue" else 1)


# -- behind a run that waits for somebody


def waiting(log: EventLog | str, busy: Busy, *script: Step) -> Engine[object]:
    agents = [Agent("a", tools=[Tool("pick", None)])]
    model = ScriptedModel(function_call("pick", {}), *script)
    return Engine(log, agents=agents, model=model, busy=busy)


@pytest.mark.parametrize("busy", BOTH)
async def test_behind_a_run_that_waits_for_somebody_it_says_so_and_keeps_the_input(busy: Busy) -> None:
    one = waiting("memory:", busy, "one", "two")
    paused = await one.run("go", session="s")
    behind = await one.run("me too", session="s")
    assert (behind.status, behind.open_calls) == ("paused", paused.open_calls)
    assert len(of(await one.log.records("s"), InputAdded)) == 1


async def test_what_steers_a_run_that_waits_is_answered_when_it_goes_on() -> None:
    one = waiting("memory:", "steer", "both")
    (call,) = (await one.run("go", session="s")).open_calls
    await one.run("me too", session="s")
    await one.settle("s", call.call, "12A", by="li")
    assert (await one.resume("s")).final_output == "both"


async def test_what_queues_behind_a_run_that_waits_is_answered_by_the_run_after_it() -> None:
    one = waiting("memory:", "queue", "one", "two")
    (call,) = (await one.run("go", session="s")).open_calls
    await one.run("me too", session="s")
    await one.settle("s", call.call, "12A", by="li")
    assert (await one.resume("s")).final_output == "one"
    assert (await one.resume("s")).final_output == "two"


async def test_a_run_that_was_decided_goes_on_before_what_queues_behind_it() -> None:
    one = waiting("memory:", "queue", "one", "two")
    (call,) = (await one.run("go", session="s")).open_calls
    await one.settle("s", call.call, "12A", by="li")
    assert (await one.run("me too", session="s")).final_output == "two"


@pytest.mark.parametrize("busy", BOTH)
@pytest.mark.parametrize("how", ["limit", "failure"])
async def test_after_a_limit_or_a_failure_a_run_begins_anew_whatever_the_rule(busy: Busy, how: str) -> None:
    first: Step = LookupError("down") if how == "failure" else function_call("look", {})
    agents = [Agent("a", tools=[Tool("look", lambda ctx, arguments: "seen")])]
    one = Engine("memory:", agents=agents, model=ScriptedModel(first, "done"), busy=busy)
    try:
        await one.run("go", session="s", limits=Limits(turns=1))
    except RunFailedError:
        assert how == "failure"
    assert (await one.run("again", session="s")).final_output == "done"
    assert len(of(await one.log.records("s"), RunStarted)) == 2


async def test_behind_a_run_that_fails_what_is_queued_begins_a_run_of_its_own() -> None:
    door = Door()
    script: tuple[Step, ...] = (function_call("wait", {}), LookupError("down"), "second")
    one = engine("memory:", door, "queue", ScriptedModel(*script))
    first = asyncio.ensure_future(one.run("go", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too")
    door.opened.set()
    with pytest.raises(RunFailedError, match="down"):
        await first
    assert (await second).final_output == "second"


async def test_what_steers_a_run_that_fails_fails_with_it() -> None:
    door = Door()
    one = engine("memory:", door, "steer", ScriptedModel(function_call("wait", {}), LookupError("down")))
    first = asyncio.ensure_future(one.run("go", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too")
    door.opened.set()
    for each in (first, second):
        with pytest.raises(RunFailedError, match="down") as caught:
            await each
        assert isinstance(caught.value.__cause__, LookupError)


# -- cancelled


async def test_what_was_said_to_a_run_that_is_cancelled_goes_with_it() -> None:
    door = Door()
    one = engine("memory:", door, "steer")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too")
    await one.cancel("s")
    assert (await first).status == (await second).status == "cancelled"
    assert (await one.resume("s")).status == "cancelled"  # nothing is left to answer
    assert await one.recover() == ()


async def test_what_is_queued_outlives_the_run_that_is_cancelled() -> None:
    door = Door()
    one = engine("memory:", door, "queue")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too")
    await one.cancel("s")
    assert (await first).status == "cancelled"
    assert (await second).final_output == "heard me too"


async def test_a_run_that_is_cancelled_before_it_asked_is_not_begun_again() -> None:
    log = MemoryLog()
    started = RunStarted(run_id="r", agent="a", input=({"role": "user", "content": "go"},), limits=Limits())
    await log.append("s", [started], expected=0)
    one = engine(log, Door(), "refuse")
    await one.cancel("s")
    assert (await one.resume("s")).status == "cancelled"
    assert (await one.resume("s")).status == "cancelled"
    assert len(of(await log.records("s"), RunStarted)) == 1


async def test_whoever_waits_in_line_is_told_when_the_engine_closes() -> None:
    door = Door()
    log = MemoryLog()
    one, two = engine(log, door, "queue"), engine(log, door, "queue")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    second = await in_line(two, "me too")
    await two.close()
    with pytest.raises(UsageError, match="closed"):
        await second
    door.opened.set()
    await first


# -- keys


@pytest.mark.parametrize("busy", BOTH)
async def test_a_request_that_is_made_again_adds_its_input_once(busy: Busy) -> None:
    door = Door()
    one = engine("memory:", door, busy)
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too", run_id="k")
    again = asyncio.ensure_future(one.run("me too", session="s", run_id="k"))
    door.opened.set()
    await first
    assert (await second).final_output == (await again).final_output == "heard me too"
    assert (await one.run("me too", session="s", run_id="k")).final_output == "heard me too"
    assert len(of(await one.log.records("s"), InputAdded)) == 1


async def test_the_run_that_answers_a_queued_request_has_its_key() -> None:
    door = Door()
    one = engine("memory:", door, "queue")
    first = asyncio.ensure_future(one.run("wait", session="s"))
    await door.reached.wait()
    second = await in_line(one, "me too", run_id="k")
    door.opened.set()
    await first
    assert (await second).run_id == "k"
    assert (await one.run("bye", session="s")).final_output == "heard bye"
    assert (await one.run("me too", session="s", run_id="k")).final_output == "heard me too"


async def test_a_request_with_another_key_is_refused_like_any_other() -> None:
    door = Door()
    one = engine("memory:", door, "refuse")
    first = asyncio.ensure_future(one.run("wait", session="s", run_id="k"))
    await door.reached.wait()
    with pytest.raises(Exception, match="s is busy"):
        await one.run("me too", session="s", run_id="other")
    door.opened.set()
    await first


def test_a_rule_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="busy='wait': give 'refuse', 'queue' or 'steer'"):
        Engine("memory:", busy="wait")  # type: ignore[arg-type]


# -- whatever comes, in whatever order


@given(st.lists(st.sampled_from(["run", "keyed", "send"]), max_size=6), st.sampled_from(BOTH))
def test_whatever_comes_while_a_run_is_open_is_shown_exactly_once_and_in_order(
    comes: list[str], busy: Busy
) -> None:
    async def live() -> tuple[list[str], list[str], list[Any]]:
        door = Door()
        one = engine(MemoryLog(), door, busy)
        going = [asyncio.ensure_future(one.run("wait", session="s"))]
        await door.reached.wait()
        for n, what in enumerate(comes):
            if what == "send":
                await one.send(f"m{n}", session="s")
            else:
                going.append(await in_line(one, f"m{n}", run_id=f"k{n}" if what == "keyed" else None))
        door.opened.set()
        results = await asyncio.gather(*going)
        await one.resume("s")
        records = await one.log.records("s")
        users = [item.text for item in session_history(records) if item.role == "user"]
        shown = [item.text for item in model_history(records) if item.role == "user"]
        return users, shown, results

    users, shown, results = asyncio.run(live())
    assert users == shown == ["wait", *(f"m{n}" for n in range(len(comes)))]
    assert {result.status for result in results} == {"completed"}
