"""Filters in bad circumstances: slow ones, ones that change what they are given, and histories with no text."""

import asyncio
from typing import Any

import pytest
from tests.engine.leases import Hasty, Leased

from batonlog.engine import Agent, Engine, RunFailedError, handoff, tool
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import Limits, MemoryLog, RunFailed, UsageError
from batonlog.projections import (
    FilterInput,
    FilterOutput,
    History,
    check_legal,
    drop_reasoning,
    drop_tools,
    keep_last,
    last_turns,
    messages_only,
    model_history,
    nest_history,
    only_agents,
    own_view,
    redact,
    replace_with_summary,
    session_history,
)
from batonlog.projections.filters import apply_filters

TO_B = [function_call("transfer_to_b", {})]
IMAGE: dict[str, Any] = {
    "role": "user",
    "content": [{"type": "input_image", "image_url": "https://x/y.png"}],
}


def team(filters: Any) -> list[Agent[Any]]:
    return [Agent("a", handoffs=[handoff("b", input_filter=filters)]), Agent("b")]


async def in_short(history: History) -> str:
    return f"{len(history)} items"


SHIPPED: dict[str, Any] = {
    "messages_only": messages_only,
    "drop_tools": drop_tools,
    "drop_reasoning": drop_reasoning,
    "keep_last": keep_last(1),
    "last_turns": last_turns(1),
    "only_agents": only_agents("b"),
    "redact": redact("x"),
    "replace_with_summary": replace_with_summary(in_short, keep_turns=0),
    "nest_history": nest_history,
    "own_view": own_view,
}
each_shipped = pytest.mark.parametrize("filters", SHIPPED.values(), ids=list(SHIPPED))


async def test_a_filter_cannot_change_what_it_is_given() -> None:
    def vandal(history: FilterInput[Any]) -> FilterOutput:
        for item in history:
            item.data["content"] = "nothing to see"
            item.data.clear()
        for data in history.data:
            data["role"] = "system"
        return history

    log = MemoryLog()
    await Engine(log, agents=team(vandal), model=ScriptedModel(TO_B, "hi")).run("go", session="s")
    records = await log.records("s")
    assert model_history(records) == session_history(records)
    assert "handoff.filtered" not in [record.type for record in records]


async def test_a_filter_that_takes_longer_than_a_lease_keeps_its_session() -> None:
    log, calls = Leased(), 0

    async def slow(history: FilterInput[Any]) -> History:
        nonlocal calls
        calls += 1
        await log.renewed()  # the lease has been renewed meanwhile, several times
        return messages_only(history)

    first = Hasty(log, agents=team(slow), model=ScriptedModel(TO_B, "hi"))
    other = Hasty(log, agents=team(slow), model=ScriptedModel())
    running = asyncio.create_task(first.run("go", session="s"))
    await log.renewed()
    assert await other.recover() == ()
    assert (await running).final_output == "hi"
    assert calls == 1


async def test_while_a_filter_is_slow_a_message_and_a_cancel_are_heard() -> None:
    log, reached, go = MemoryLog(), asyncio.Event(), asyncio.Event()

    async def slow(history: FilterInput[Any]) -> History:
        reached.set()
        await go.wait()
        return messages_only(history)

    engine = Engine(log, agents=team(slow), model=ScriptedModel(TO_B, "hi"))
    running = asyncio.create_task(engine.run("go", session="s"))
    await reached.wait()
    await engine.send("hurry up", session="s")
    await engine.cancel("s", by="li")
    go.set()
    assert (await running).status == "cancelled"
    said = [item.text for item in session_history(await log.records("s")) if item.role == "user"]
    assert said == ["go", "hurry up"]


async def test_a_summary_that_fails_makes_no_handoff_and_can_be_tried_again() -> None:
    log, works = MemoryLog(), False

    async def summarise(history: History) -> str:
        if not works:
            raise TimeoutError("the summary took too long")
        return "all that was said"

    agents = team(replace_with_summary(summarise, keep_turns=0))
    model = ScriptedModel(TO_B, "hi")
    engine = Engine(log, agents=agents, model=model)
    with pytest.raises(RunFailedError, match="the summary took too long"):
        await engine.run("go", session="s")
    records = await log.records("s")
    assert isinstance(records[-1].event, RunFailed)
    assert "handoff.made" not in [record.type for record in records]
    works = True
    assert (await engine.resume("s")).final_output == "hi"
    assert [item.text for item in model.requests[-1].input] == ["all that was said"]


@each_shipped
async def test_a_history_of_images_alone_can_be_handed_over(filters: Any) -> None:
    log = MemoryLog()
    model = ScriptedModel(TO_B, "a cat")
    result = await Engine(log, agents=team(filters), model=model).run([IMAGE], session="s")
    shown = model.requests[-1].input
    assert result.final_output == "a cat"
    assert check_legal(shown) == ()
    if filters not in (SHIPPED["keep_last"], SHIPPED["replace_with_summary"]):
        assert IMAGE in shown.data


@each_shipped
async def test_an_empty_history_stays_empty_and_is_told_to_be_nothing_to_show(filters: Any) -> None:
    empty: FilterInput[object] = FilterInput(
        [], version=0, cause="manual", session="s", context=None, split=0
    )
    with pytest.raises(UsageError, match="left nothing to show"):
        await apply_filters(filters, empty)


async def test_a_session_without_items_cannot_be_edited() -> None:
    log = MemoryLog()
    engine = Engine(log, agents=[Agent("a", model=ScriptedModel())])
    await engine.run("go", session="s", limits=Limits(turns=0))
    with pytest.raises(UsageError, match="left nothing"):
        await engine.rewrite("s", lambda history: [item for item in history if item.role == "nobody"])


@each_shipped
async def test_a_filter_over_a_turn_with_an_image_from_a_tool_is_legal(filters: Any) -> None:
    @tool(idempotent=True)
    def snap() -> list[dict[str, str]]:
        return [{"type": "input_image", "image_url": "https://x/z.png"}]

    log = MemoryLog()
    model = ScriptedModel([function_call(snap, {})], TO_B, "a cat")
    agents = [Agent("a", tools=[snap], handoffs=[handoff("b", input_filter=filters)]), Agent("b")]
    await Engine(log, agents=agents, model=model).run("look", session="s")
    assert check_legal(model.requests[-1].input) == ()
    assert "history.rewritten" not in [record.type for record in await log.records("s")]
