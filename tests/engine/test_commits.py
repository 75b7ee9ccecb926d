"""What is known is stored before anybody is waited for, and with what follows from it otherwise."""

import asyncio
from typing import Any

from batonlog.engine import Agent, Engine, RunContext, handoff, tool
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import Appended, MemoryLog
from batonlog.projections import FilterInput, History, keep_last


class Watched(MemoryLog):
    """A log that remembers its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    async def append(self, session: str, events: Any, **options: Any) -> Appended:
        done = await super().append(session, events, **options)
        self.batches.append([event.type for event in events])
        return done


@tool(idempotent=True)
def look() -> str:
    return "seen"


TO_B = [function_call("transfer_to_b", {})]


async def test_a_turn_is_two_appends() -> None:
    log = Watched()
    model = ScriptedModel([function_call(look, {})], "end")
    await Engine(log, agents=[Agent("a", tools=[look], model=model)]).run("go", session="s")
    assert log.batches == [
        ["run.started", "agent.resolved", "model.requested"],
        ["model.responded", "tool.called"],
        ["tool.returned", "model.requested"],
        ["model.responded", "run.completed"],
    ]


async def test_a_handoff_with_a_filter_that_waits_for_nobody_is_one_append_with_its_response() -> None:
    log = Watched()
    agents = [Agent("a", handoffs=[handoff("b", input_filter=keep_last(1))]), Agent("b")]
    await Engine(log, agents=agents, model=ScriptedModel(TO_B, "end")).run("go", session="s")
    assert [
        "model.responded",
        *("handoff.filtered", "handoff.made", "agent.resolved", "model.requested"),
    ] in log.batches


class Slow:
    """A callable that waits, and by then sees what is in the log."""

    def __init__(self, log: Watched) -> None:
        self._log = log
        self.seen: list[str] = []

    async def _look(self) -> None:
        await asyncio.sleep(0)
        self.seen = [record.type for record in await self._log.records("s")]

    async def as_filter(self, history: FilterInput[Any]) -> History:
        await self._look()
        return history[-1:] if history[-1].type == "message" else history[:1]

    async def as_instructions(self, context: RunContext[Any]) -> str:
        await self._look()
        return "Help."

    async def as_condition(self, context: RunContext[Any]) -> bool:
        await self._look()
        return True


async def test_a_response_is_stored_before_an_async_filter_runs() -> None:
    log = Watched()
    slow = Slow(log)
    agents = [Agent("a", handoffs=[handoff("b", input_filter=slow.as_filter)]), Agent("b")]
    await Engine(log, agents=agents, model=ScriptedModel(TO_B, "end")).run("go", session="s")
    assert slow.seen[-1] == "model.responded"


async def test_an_output_is_stored_before_an_async_compaction_runs() -> None:
    log = Watched()
    slow = Slow(log)
    model = ScriptedModel([function_call(look, {})], "end")
    agents = [Agent("a", tools=[look], model=model)]
    await Engine(log, agents=agents, compact=slow.as_filter, compact_above=1).run("go", session="s")
    assert slow.seen[-1] == "tool.returned"


async def test_an_output_is_stored_before_async_instructions_and_conditions_are_asked() -> None:
    for part in ("instructions", "condition"):
        log = Watched()
        slow = Slow(log)
        told: Any = slow.as_instructions if part == "instructions" else "Help."
        offered = handoff("b", is_enabled=slow.as_condition if part == "condition" else True)
        model = ScriptedModel([function_call(look, {})], "end")
        agents = [Agent("a", instructions=told, tools=[look], handoffs=[offered], model=model), Agent("b")]
        await Engine(log, agents=agents).run("go", session="s")
        assert slow.seen[-1] == "tool.returned"


async def test_an_output_is_stored_before_a_conversation_is_opened() -> None:
    log = Watched()
    seen: list[str] = []

    class Kept(ScriptedModel):
        chain = "conversation"

        async def open_conversation(self) -> str:
            seen[:] = [record.type for record in await log.records("s")]
            return f"conv_{len(seen)}"

    agents = [Agent("a", handoffs=[handoff("b", input_filter=keep_last(1))]), Agent("b")]
    await Engine(log, agents=agents, model=Kept(TO_B, "end")).run("go", session="s")
    assert seen[-1] == "handoff.made"


async def test_what_a_run_begins_with_is_stored_before_async_instructions_are_asked() -> None:
    log = Watched()
    slow = Slow(log)
    agents = [Agent("a", instructions=slow.as_instructions, model=ScriptedModel("end"))]
    await Engine(log, agents=agents).run("go", session="s")
    assert slow.seen == ["run.started"]


async def test_a_run_can_be_cancelled_while_its_first_instructions_are_asked() -> None:
    log = MemoryLog()

    async def cancelling(context: RunContext[Any]) -> str:
        await engine.cancel("s")
        return "Help."

    engine = Engine(log, agents=[Agent("a", instructions=cancelling, model=ScriptedModel())])
    assert (await engine.run("go", session="s")).status == "cancelled"
