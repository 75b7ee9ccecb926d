"""Editing what a model sees: for good, for the view alone, and never while a call is open."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from tests.engine.leases import Hasty, Leased
from tests.engine.two_messages import look, pay, played, rewrites, texts

from batonlog.engine import (
    Agent,
    Engine,
    SessionBusyError,
    handoff,
    tool,
)
from batonlog.engine.testing import ScriptedModel, assistant_message, function_call
from batonlog.events import (
    ConflictError,
    Limits,
    MemoryLog,
    SQLiteLog,
    UnknownSessionError,
    UsageError,
)
from batonlog.projections import (
    FilterInput,
    History,
    drop_tools,
    explain_rewrite,
    keep_last,
    messages_only,
    model_history,
    own_view,
    redact,
    session_history,
)


async def test_an_edit_holds_from_then_on_and_leaves_the_session_alone() -> None:
    log = MemoryLog()
    engine, model = await played(log, "first", "second", "third")
    before = session_history(await log.records("s"))
    version = await engine.rewrite("s", keep_last(2))
    records = await log.records("s")
    assert version == records[-1].version
    assert texts(model_history(records)) == ["two", "second"]
    assert session_history(records) == before
    await Engine(log, agents=[Agent("a", model=model)]).run("three", session="s")
    assert texts(model.requests[-1].input) == ["two", "second", "three"]
    assert texts(session_history(await log.records("s"))) == [
        "one",
        "first",
        "two",
        "second",
        "three",
        "third",
    ]


async def test_an_edit_says_by_which_filter_and_for_what_cause() -> None:
    log = MemoryLog()
    engine, _ = await played(log, "first", "second")
    await engine.rewrite("s", [messages_only, keep_last(1)])
    (event,) = rewrites(await log.records("s"))
    assert event.cause == "manual"
    assert event.rewrite.filter == "messages_only + keep_last"
    assert event.rewrite.parameters["filters"][1]["parameters"] == {"n": 1}


async def test_what_each_filter_of_a_sequence_did_is_told_apart() -> None:
    log = MemoryLog()
    engine, _ = await played(log, [function_call(look, {})], "my 4711", "second")

    def greeted(history: History) -> list[Any]:
        return [{"role": "developer", "content": "be nice"}, *history]

    version = await engine.rewrite("s", [drop_tools, redact("4711"), greeted, keep_last(3)])
    changes = explain_rewrite(await log.records("s"), at=version)
    assert [(change.what, change.item.text, change.reason.partition(":")[0]) for change in changes] == [
        ("dropped", "one", "keep_last"),
        ("dropped", "", "drop_tools"),
        ("dropped", "seen", "drop_tools"),
        ("edited", "my [redacted]", "redact"),
        ("kept", "two", ""),
        ("kept", "second", ""),
    ]


async def test_a_filter_is_told_that_it_edits() -> None:
    log = MemoryLog()
    engine, _ = await played(
        log, "first", [function_call(look, {})], "second", context_for=lambda s: f"of {s}"
    )
    seen: list[FilterInput[object]] = []

    async def note(data: FilterInput[object]) -> History:
        seen.append(data)
        return data[1:]

    await engine.rewrite("s", note)
    (data,) = seen
    assert (data.cause, data.session, data.context, data.source, data.own) == (
        "manual",
        "s",
        "of s",
        "a",
        None,
    )
    assert texts(data.latest) == ["second"]


async def test_an_edit_that_changes_nothing_records_nothing() -> None:
    log = MemoryLog()
    engine, _ = await played(log, "first", "second")
    before = await log.records("s")
    assert await engine.rewrite("s", lambda history: history) == before[-1].version
    assert await log.records("s") == before


@pytest.mark.parametrize("left", [[], "text", None, [{"role": "nobody"}]])
async def test_an_edit_that_leaves_no_history_is_refused_and_nothing_is_recorded(left: Any) -> None:
    log = MemoryLog()
    engine, _ = await played(log, "first", "second")
    before = await log.records("s")
    with pytest.raises(UsageError):
        await engine.rewrite("s", lambda history: left)
    assert await log.records("s") == before


async def test_what_a_filter_raises_reaches_the_caller_and_nothing_is_recorded() -> None:
    log = MemoryLog()
    engine, _ = await played(log, "first", "second")
    before = await log.records("s")

    def broken(history: History) -> Iterable[Any]:
        yield history[0]
        raise KeyError("half-way")

    with pytest.raises(KeyError, match="half-way"):
        await engine.rewrite("s", broken)
    assert await log.records("s") == before
    await engine.rewrite("s", keep_last(1))  # it was let go


async def test_an_edit_of_no_session_is_refused() -> None:
    with pytest.raises(UnknownSessionError, match="no session s"):
        await Engine(MemoryLog(), agents=[Agent("a", model=ScriptedModel())]).rewrite("s", messages_only)


async def test_no_edit_while_a_call_is_open() -> None:
    log = MemoryLog()
    engine = Engine(log, agents=[Agent("a", tools=[pay], model=ScriptedModel([function_call(pay, {})]))])
    await engine.run("pay", session="s")
    before = await log.records("s")
    with pytest.raises(SessionBusyError, match="pay") as caught:
        await engine.rewrite("s", keep_last(1))
    assert [call.tool for call in caught.value.open_calls] == ["pay"]
    assert await log.records("s") == before


async def test_no_edit_while_a_run_is_going_in_any_process() -> None:
    log, reached, go = MemoryLog(), asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        reached.set()
        await go.wait()
        return "done"

    agent = Agent("a", tools=[wait], model=ScriptedModel([function_call(wait, {})], "end"))
    engine = Engine(log, agents=[agent])
    running = asyncio.create_task(engine.run("wait", session="s"))
    await reached.wait()
    for other in (engine, Engine(log)):
        with pytest.raises(SessionBusyError):
            await other.rewrite("s", keep_last(1))
    go.set()
    assert (await running).status == "completed"
    assert rewrites(await log.records("s")) == []


async def test_a_run_that_paused_at_a_limit_may_be_edited_and_goes_on() -> None:
    log = MemoryLog()
    model = ScriptedModel([function_call(look, {})], "end")
    engine = Engine(log, agents=[Agent("a", tools=[look], model=model)])
    await engine.run("look", session="s", limits=Limits(turns=1))
    await engine.rewrite("s", drop_tools)
    result = await engine.resume("s", limits=Limits(turns=9))
    assert result.final_output == "end"
    assert texts(model.requests[-1].input) == ["look"]


async def test_of_an_edit_and_an_input_at_once_both_stand() -> None:
    log = MemoryLog()
    engine, _ = await played(log, "first", "second")

    async def slow(history: FilterInput[Any]) -> History:
        if "more" not in texts(history):
            await engine.send("more", session="s")
        return history[1:]

    await engine.rewrite("s", slow)
    assert texts(model_history(await log.records("s"))) == ["first", "two", "second", "more"]


async def test_an_edit_that_takes_longer_than_a_lease_keeps_it() -> None:
    log = Leased()
    await played(log, "first", "second")
    first, other = (Hasty(log, agents=[Agent("a", model=ScriptedModel())]) for _ in range(2))
    log.begin_anew()

    async def slow(history: FilterInput[Any]) -> History:
        await log.renewed()  # the lease has been renewed meanwhile, several times
        assert await other.recover() == ()
        return history[1:]

    await first.rewrite("s", slow)
    assert texts(model_history(await log.records("s"))) == ["first", "two", "second"]
    assert await log.acquire("s", owner="somebody", seconds=1) is not None


async def test_an_edit_is_out_of_the_views_that_agents_come_back_to() -> None:
    log = MemoryLog()
    front = Agent("front", handoffs=[handoff("back", input_filter=keep_last(1))])
    back = Agent("back", handoffs=[handoff("front", input_filter=own_view)])
    model = ScriptedModel(
        [assistant_message("my code is 4711"), function_call(back, {})],
        "hello from back",
        [function_call(front, {})],
        "welcome back",
    )
    engine = Engine(log, agents=[front, back], model=model)
    await engine.run("my pin is 1234", session="s")
    await engine.rewrite("s", lambda history: [*history[:-1], {"role": "assistant", "content": "(cut)"}])
    await engine.run("to front", session="s")
    shown = " ".join(texts(model.requests[-1].input))
    assert "4711" in shown
    assert "hello from back" not in shown


async def test_a_text_that_an_edit_blanked_stays_blank_in_older_views() -> None:
    log = MemoryLog()
    front = Agent("front", handoffs=["back"])
    back = Agent("back", handoffs=[handoff("front", input_filter=own_view)])
    model = ScriptedModel(
        [assistant_message("your code is 4711"), function_call(back, {})],
        "ok",
        [function_call(front, {})],
        "welcome back",
    )
    engine = Engine(log, agents=[front, back], model=model)
    await engine.run("hello", session="s")
    await engine.rewrite("s", redact(r"\d{4}"))
    await engine.run("to front", session="s")
    shown = texts(model.requests[-1].input)
    assert shown[:2] == ["hello", "your code is [redacted]"]
    assert "4711" in " ".join(texts(session_history(await log.records("s"))))


async def test_an_edit_lasts_in_a_fork_and_after_a_restart(tmp_path: Any) -> None:
    async with SQLiteLog(tmp_path / "log.db") as log:
        engine, _ = await played(log, "first", "second")
        await engine.rewrite("s", keep_last(1))
        await engine.fork("s", into="t")
    async with SQLiteLog(tmp_path / "log.db") as log:
        for session in ("s", "t"):
            assert texts(model_history(await log.records(session))) == ["second"]


async def test_a_filter_that_appends_to_its_own_session_ends_in_a_conflict() -> None:
    log = MemoryLog()
    engine, _ = await played(log, "first", "second")
    calls = 0

    async def noting(history: FilterInput[object]) -> History:
        nonlocal calls
        calls += 1
        await engine.note("s", "edited", calls)
        return history[1:]

    with pytest.raises(ConflictError):
        await engine.rewrite("s", noting)
    assert calls == 20
    assert rewrites(await log.records("s")) == []
