"""The code changes while a run waits: the run goes on, by what the log says it was told and promised."""

import asyncio
from typing import Any

import pytest

from batonlog.engine import Agent, Engine, RunContext, UnknownAgentError, handoff, tool
from batonlog.engine.testing import ScriptedModel, Step, function_call
from batonlog.events import Limits, MemoryLog, UsageError
from batonlog.projections import check_legal, model_history, model_request, session_history, timeline


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def engine(log: MemoryLog, agents: list[Agent[Any]], *script: Step, **options: Any) -> Engine[Any]:
    return Engine(log, agents=agents, model=ScriptedModel(*script), **options)


async def waits(log: MemoryLog, *agents: Agent[Any]) -> None:
    """Leave a run that waits for somebody's word on a call of the last of these agents."""
    script: list[Step] = [function_call(agent, {}) for agent in agents[1:]]
    paused = await engine(log, [*agents], *script, function_call("pay", {})).run("go", session="s")
    await Engine(log).approve("s", paused.open_calls[0].call, by="anna")


# -- what it was told


async def test_new_instructions_and_tools_count_from_the_next_turn_on_and_old_turns_stay_as_they_were() -> (
    None
):
    log = MemoryLog()
    await waits(log, Agent("a", instructions="Be brief.", tools=[pay]))
    newer = Agent("a", instructions="Be kind.", tools=[pay, tool(name="look")(lambda: "seen")])
    await engine(log, [newer], "done").resume("s")
    records = await log.records("s")
    asked = [model_request(records, at=turn.requested) for turn in timeline(records)]
    assert [request.instructions for request in asked] == ["Be brief.", "Be kind."]
    assert [len(request.tools) for request in asked] == [1, 2]


async def test_a_call_goes_by_what_was_promised_when_it_was_offered() -> None:
    log, begun = MemoryLog(), asyncio.Event()

    async def forever() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    older = Agent("a", tools=[tool(name="send")(forever)])
    run = asyncio.ensure_future(engine(log, [older], function_call("send", {})).run("go", session="s"))
    await begun.wait()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    newer = Agent("a", tools=[tool(name="send", idempotent=True)(lambda: "sent")])
    assert (await engine(log, [newer]).resume("s")).reason == "unknown"  # not run again in silence


async def test_a_gate_that_is_gone_still_holds_the_call_that_it_held() -> None:
    log = MemoryLog()
    await engine(log, [Agent("a", tools=[pay])], function_call("pay", {})).run("go", session="s")
    newer = engine(log, [Agent("a", tools=[tool(name="pay")(lambda: "paid")])])
    assert (await newer.resume("s")).reason == "approval"


# -- an agent that is gone


async def test_an_agent_that_is_gone_is_named_and_nothing_is_recorded() -> None:
    log = MemoryLog()
    await waits(log, Agent("a", tools=[pay]))
    before = await log.records("s")
    with pytest.raises(
        UnknownAgentError, match=r"no agent a in this process; it has b\. .*unknown_agent='entry'"
    ):
        await engine(log, [Agent("b")]).resume("s")
    assert await log.records("s") == before


async def test_if_the_engine_is_told_so_the_first_agent_goes_on_for_one_that_is_gone() -> None:
    log = MemoryLog()
    refund = Agent("refund", tools=[pay])
    await waits(log, Agent("triage", handoffs=[handoff(refund)]), refund)
    newer = engine(log, [Agent("front", instructions="Help.")], "done", unknown_agent="entry")
    result = await newer.resume("s")
    assert (result.final_output, result.agent) == ("done", "front")
    records = await log.records("s")
    last = model_request(records, at=timeline(records)[-1].requested)
    assert (last.agent, last.instructions) == ("front", "Help.")
    assert [item.text for item in session_history(records)][-2:] == [
        "pay is not available any more. Go on without it.",
        "done",
    ]
    assert not check_legal(model_history(records))


async def test_the_next_message_goes_to_the_first_agent_too() -> None:
    log = MemoryLog()
    await engine(log, [Agent("old")], "hi").run("hello", session="s")
    newer = engine(log, [Agent("front")], "welcome", unknown_agent="entry")
    assert (await newer.run("hello again", session="s")).agent == "front"


async def test_a_worker_answers_for_an_agent_that_is_gone() -> None:
    log = MemoryLog()
    await waits(log, Agent("a", tools=[pay]))
    newer = engine(log, [Agent("front")], "done", unknown_agent="entry")
    assert await newer.recover() == ("s",)
    assert (await newer.resume("s")).final_output == "done"


async def test_a_session_whose_agent_is_gone_can_be_ended_and_begun_anew_with_another() -> None:
    log = MemoryLog()
    await waits(log, Agent("a", tools=[pay]))
    newer = engine(log, [Agent("b")], "hi")
    await newer.cancel("s")
    assert (await newer.run("hello", session="s", agent="b")).final_output == "hi"


async def test_who_is_given_a_session_by_name_must_be_there_whatever_the_policy() -> None:
    newer = engine(MemoryLog(), [Agent("front")], unknown_agent="entry")
    with pytest.raises(UnknownAgentError, match="no agent back"):
        await newer.run("hello", session="s", agent="back")


async def test_a_handoff_that_was_begun_to_an_agent_that_is_gone_is_an_answer() -> None:
    log = MemoryLog()
    back = Agent[Any]("back")
    older = Agent("a", handoffs=[handoff(back, needs_approval=True)])
    paused = await engine(log, [older], function_call(back, {})).run("go", session="s")
    await Engine(log).approve("s", paused.open_calls[0].call, by="anna")
    newer = engine(log, [Agent("a")], "on my own")
    assert (await newer.resume("s")).final_output == "on my own"
    assert "not available any more" in session_history(await log.records("s"))[-2].text


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown_agent='first': give 'raise' or 'entry'"):
        Engine("memory:", unknown_agent="first")  # type: ignore[arg-type]


async def test_what_the_log_holds_of_a_run_does_not_depend_on_the_code_that_reads_it() -> None:
    log = MemoryLog()

    async def told(context: RunContext[Any]) -> str:
        return f"turn {context.turn}"

    one = Agent("a", instructions=told, tools=[tool(name="look")(lambda: "seen")])
    await engine(log, [one], function_call("look", {}), "done").run("go", session="s", limits=Limits(turns=5))
    records = await log.records("s")
    asked = [model_request(records, at=turn.requested).instructions for turn in timeline(records)]
    assert asked == ["turn 1", "turn 2"]
