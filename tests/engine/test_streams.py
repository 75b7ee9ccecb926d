"""Streams: recorded events in order, deltas between them, and a run that goes on whoever follows."""

import asyncio
import gc
from collections.abc import AsyncIterator
from itertools import pairwise
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
    Update,
    tool,
)
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.events import MemoryLog, Record, UsageError


@tool
def look() -> str:
    """Look."""
    return "seen"


class Talker(ScriptedModel):
    """Says its text word by word."""

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        async for piece in super().respond(request):
            if isinstance(piece, Delta):
                for word in piece.text.split(" "):
                    yield Delta(kind="text", text=word, agent=piece.agent, turn=piece.turn)
                    await asyncio.sleep(0)
            else:
                yield piece


def engine(*script: Step, log: Any = "memory:", tools: Any = (look,)) -> Engine[object]:
    return Engine(log, agents=[Agent("a", tools=tools)], model=Talker(*script))


def word(update: Update) -> str:
    return update.text if isinstance(update, Delta) else update.type


async def everything(updates: AsyncIterator[Update]) -> list[Update]:
    return [update async for update in updates]


def versions(updates: list[Update]) -> list[int]:
    return [update.version for update in updates if isinstance(update, Record)]


async def test_a_stream_yields_every_record_in_order_and_the_deltas_between_them() -> None:
    one = engine([assistant_message("let me look"), function_call(look, {})], "all done")
    updates = await everything(one.stream("go", session="s"))
    assert [word(update) for update in updates] == [
        "run.started",
        "agent.resolved",
        "model.requested",
        "let",
        "me",
        "look",
        "model.responded",
        "tool.called",
        "tool.returned",
        "model.requested",
        "all",
        "done",
        "model.responded",
        "run.completed",
    ]
    assert versions(updates) == list(range(1, 10))


async def test_a_delta_says_whose_it_is() -> None:
    one = engine(function_call(look, {}), "hi")
    deltas = [update for update in await everything(one.stream("go")) if isinstance(update, Delta)]
    assert deltas == [Delta(kind="text", text="hi", agent="a", turn=2)]


async def test_a_streamed_run_records_what_a_plain_one_does() -> None:
    script: list[Step] = [[assistant_message("wait"), function_call(look, {}, call_id="x")], "done"]
    plain, streamed = engine(*script), engine(*script)
    await plain.run("go", session="s")
    await everything(streamed.stream("go", session="s"))
    kinds = [[record.type for record in await one.log.records("s")] for one in (plain, streamed)]
    assert kinds[0] == kinds[1]


async def test_deltas_are_never_recorded() -> None:
    one = engine("a secret word")
    await everything(one.stream("go", session="s"))
    assert all(b'"secret"' not in record.payload for record in await one.log.records("s"))


async def test_a_stream_gives_the_result_that_run_would() -> None:
    one = engine("hi")
    stream = one.stream("go", session="s")
    result = await stream.result()
    assert (result.final_output, result.run_id, result.session) == ("hi", stream.run_id, stream.session)
    assert (await stream.result()).final_output == "hi"


async def test_a_stream_may_be_followed_after_its_result() -> None:
    stream = engine("hi").stream("go")
    await stream.result()
    assert [word(update) for update in await everything(stream)][-1] == "run.completed"


async def test_a_stream_that_has_ended_yields_nothing_more() -> None:
    stream = engine("hi").stream("go")
    await everything(stream)
    assert await everything(stream) == []


async def test_leaving_a_stream_does_not_stop_the_run() -> None:
    one = engine(function_call(look, {}), "done")
    stream = one.stream("go", session="s")
    async for _ in stream:
        break
    assert (await stream.result()).final_output == "done"


async def test_cancelling_whoever_follows_does_not_stop_the_run() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "waited"

    one = engine(function_call(wait, {}), "done", tools=[wait])
    stream = one.stream("go", session="s")
    for waits in (everything(stream), stream.result()):
        follower = asyncio.ensure_future(waits)
        await begun.wait()
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
    go.set()
    assert (await stream.result()).final_output == "done"


async def test_a_stream_of_a_run_that_fails_ends_with_its_failure_and_the_result_raises() -> None:
    stream = engine(LookupError("down")).stream("go")
    updates = await everything(stream)
    assert word(updates[-1]) == "run.failed"
    with pytest.raises(RunFailedError, match="down") as caught:
        await stream.result()
    assert isinstance(caught.value.__cause__, LookupError)


async def test_a_failure_that_nobody_asks_for_is_not_reported_twice(caplog: pytest.LogCaptureFixture) -> None:
    stream = engine(LookupError("down")).stream("go")
    await everything(stream)
    del stream
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_stream_that_could_not_begin_raises_what_run_would() -> None:
    one = engine(function_call("pick", {}), tools=[Tool("pick", None)])
    await one.run("go", session="s")
    stream = one.stream("me too", session="s")
    with pytest.raises(SessionBusyError):
        await everything(stream)
    with pytest.raises(SessionBusyError):
        await stream.result()


async def test_what_is_wrong_with_the_input_is_said_at_once() -> None:
    with pytest.raises(UsageError, match="input is empty"):
        engine().stream([])


async def test_a_stream_names_its_session_and_run_at_once() -> None:
    one = engine("hi")
    stream = one.stream("go", session="s", run_id="k")
    assert (stream.session, stream.run_id) == ("s", "k")
    await stream.result()


async def test_a_stream_with_a_key_that_was_seen_tells_of_that_run_again_and_starts_nothing() -> None:
    one = engine("hi")
    first = await one.run("go", session="s", run_id="k")
    stream = one.stream("go", session="s", run_id="k")
    assert await everything(stream) == list(await one.log.records("s"))
    assert (await stream.result()).version == first.version


# -- going on


async def test_a_stream_without_input_goes_on_as_resume_does() -> None:
    one = engine(function_call("pick", {}), "done", tools=[Tool("pick", None)])
    paused = await one.run("go", session="s")
    await one.settle("s", "4.0", "12A", by="li")
    stream = one.stream(None, session="s")
    updates = await everything(stream)
    assert [word(update) for update in updates] == [
        "run.resumed",
        "tool.returned",
        "model.requested",
        "done",
        "model.responded",
        "run.completed",
    ]
    assert stream.run_id == paused.run_id
    assert (await stream.result()).final_output == "done"


async def test_a_stream_without_input_joins_a_run_that_is_going() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "waited"

    one = engine(function_call(wait, {}), "done", tools=[wait])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await begun.wait()
    stream = one.stream(None, session="s")
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    go.set()
    updates = [await first, *await everything(stream)]
    assert word(updates[0]) == "tool.returned"
    assert word(updates[-1]) == "run.completed"
    assert (await stream.result()).run_id == (await running).run_id


async def test_a_stream_of_a_completed_run_has_its_result_and_nothing_to_show() -> None:
    one = engine("hi")
    await one.run("go", session="s")
    stream = one.stream(None, session="s")
    assert await everything(stream) == []
    assert (await stream.result()).final_output == "hi"


# -- updates


async def test_updates_of_a_session_at_rest_are_its_records() -> None:
    one = engine("hi")
    await one.run("go", session="s")
    assert await everything(one.updates("s")) == list(await one.log.records("s"))


async def test_updates_begin_after_any_version() -> None:
    one = engine("hi")
    result = await one.run("go", session="s")
    assert versions(await everything(one.updates("s", after=3))) == list(range(4, result.version + 1))
    assert await everything(one.updates("s", after=result.version)) == []


@pytest.mark.parametrize("after", [0, 2])
async def test_updates_of_a_run_that_is_going_are_its_past_and_then_what_comes(after: int) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "waited"

    one = engine(function_call(wait, {}), "all done", tools=[wait])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await begun.wait()
    following = [asyncio.ensure_future(everything(one.updates("s", after=after))) for _ in range(3)]
    await asyncio.sleep(0)
    go.set()
    result = await running
    for updates in await asyncio.gather(*following):
        assert versions(updates) == list(range(after + 1, result.version + 1))
        words = [word(update) for update in updates]
        at = words.index("all")
        assert words[at - 1 : at + 3] == ["model.requested", "all", "done", "model.responded"]


async def test_updates_in_another_process_are_the_records_without_deltas() -> None:
    log = MemoryLog()
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "waited"

    one = engine(function_call(wait, {}), "all done", log=log, tools=[wait])
    running = asyncio.ensure_future(one.run("go", session="s"))
    await begun.wait()
    following = asyncio.ensure_future(everything(Engine(log).updates("s")))
    await asyncio.sleep(0)
    go.set()
    result = await running
    updates = await following
    assert versions(updates) == list(range(1, result.version + 1))
    assert len(updates) == result.version


async def test_updates_that_are_left_leave_nothing_behind() -> None:
    one = engine("hi")
    await one.run("go", session="s")
    updates = one.updates("s")
    assert isinstance(await anext(updates), Record)
    await updates.aclose()  # type: ignore[attr-defined]
    assert (await one.status("s")).status == "completed"


async def test_a_slow_follower_misses_nothing_and_holds_nobody_up() -> None:
    one = engine(*[function_call(look, {})] * 5, "done")
    stream = one.stream("go", session="s")
    first = await anext(stream)
    result = await stream.result()  # the run has ended before anybody has read the second update
    updates = [first, *await everything(stream)]
    seen = versions(updates)
    assert seen[-1] == result.version
    assert all(later == earlier + 1 for earlier, later in pairwise(seen))
