"""Who answers the next message, and transfers that lead nowhere."""

from typing import Any, Literal

import pytest

from batonlog.engine import Agent, Engine, RunResult, ToolContext, handoff, tool
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.events import CallRefused, EventLog, HandoffMade, Limits, MemoryLog, Record, UsageError
from batonlog.projections import model_history, session_history

Policy = Literal["active", "entry", "source"]


@tool(idempotent=True)
def look() -> str:
    return "seen"


def team(model: ScriptedModel, **options: Any) -> list[Agent[Any]]:
    """Three agents that hand over to each other."""
    names = ["front", "sched", "bill"]
    return [
        Agent(
            name,
            tools=[look],
            handoffs=[handoff(other, **options) for other in names if other != name],
            model=model,
        )
        for name in names
    ]


def to(name: str) -> dict[str, Any]:
    return function_call(f"transfer_to_{name}", {})


async def play(log: EventLog, policy: Policy, *script: Step, runs: int = 1) -> RunResult:
    engine = Engine(log, agents=team(ScriptedModel(*script)), next_agent=policy)
    for n in range(runs):
        result = await engine.run(f"message {n}", session="s")
    return result


def started(records: tuple[Record, ...]) -> list[str]:
    return [record.event.agent for record in records if record.type == "run.started"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("policy", "second"), [("active", "sched"), ("entry", "front"), ("source", "front")])
async def test_the_next_message_goes_to_whom_the_policy_says(policy: Policy, second: str) -> None:
    log = MemoryLog()
    await play(log, policy, [to("sched")], "your id?", "thanks", runs=2)
    assert started(await log.records("s")) == ["front", second]


@pytest.mark.parametrize(
    ("hops", "second"),
    [
        (["sched", "bill"], "sched"),
        (["sched", "front"], "front"),
        (["sched", "bill", "sched"], "front"),
        ([], "front"),
    ],
)
async def test_the_source_is_who_handed_over_and_was_not_handed_back_to(hops: list[str], second: str) -> None:
    log = MemoryLog()
    await play(log, "source", *([to(name)] for name in hops), "done", "hello", runs=2)
    assert started(await log.records("s"))[1] == second


async def test_the_policy_counts_for_input_that_was_sent_in_between() -> None:
    log = MemoryLog()
    await play(log, "entry", [to("sched")], "your id?")
    model = ScriptedModel("hello")
    engine = Engine(log, agents=team(model), next_agent="entry")
    await engine.send("12345", session="s")
    await engine.resume("s")
    assert started(await log.records("s")) == ["front", "front"]


async def test_an_agent_that_is_named_answers_whatever_the_policy() -> None:
    log = MemoryLog()
    await play(log, "entry", [to("sched")], "your id?")
    await Engine(log, agents=team(ScriptedModel("hi")), next_agent="entry").run(
        "x", session="s", agent="bill"
    )
    assert started(await log.records("s")) == ["front", "bill"]


async def test_the_active_agent_is_the_same_after_a_restart_and_a_note_and_a_refusal() -> None:
    log = MemoryLog()
    await play(log, "active", [to("sched")], [to("sched"), to("nobody")], "your id?")
    engine = Engine(log, agents=team(ScriptedModel("hi")))
    await engine.note("s", "by", "front")
    assert (await engine.status("s")).agent == "sched"
    assert (await engine.run("12345", session="s")).agent == "sched"


def test_an_unknown_policy_is_refused() -> None:
    policy: Any = "sticky"
    with pytest.raises(UsageError, match="'active', 'entry' or 'source'"):
        Engine(MemoryLog(), next_agent=policy)


# -- in circles


def refusals(records: tuple[Record, ...], reason: str) -> list[CallRefused]:
    found = [record.event for record in records if isinstance(record.event, CallRefused)]
    return [event for event in found if event.reason == reason]


def handoffs(records: tuple[Record, ...]) -> int:
    return sum(isinstance(record.event, HandoffMade) for record in records)


BACK_AND_FORTH = [[to(name)] for name in ["sched", "front"] * 4]


async def test_control_that_goes_back_and_forth_is_stopped_with_an_answer() -> None:
    log = MemoryLog()
    model = ScriptedModel(*BACK_AND_FORTH[:5], [to("front")], "I answer myself")
    result = await Engine(log, agents=team(model)).run("hi", session="s")
    records = await log.records("s")
    assert result.final_output == "I answer myself"
    assert handoffs(records) == 5
    (refused,) = refusals(records, "ping_pong")
    assert "control goes back and forth" in refused.answer
    assert "front had it already" in refused.answer
    assert model.requests[-1].input[-1].text == refused.answer


@pytest.mark.parametrize("between", [[function_call(look, {})], [function_call("nosuch", {})]])
async def test_a_tool_that_returned_is_progress_and_a_refused_call_is_none(between: list[Any]) -> None:
    log = MemoryLog()
    script = [step for hop in BACK_AND_FORTH[:5] for step in (between, hop)]
    model = ScriptedModel(*script, between, [to("front")], "end")
    await Engine(log, agents=team(model)).run("hi", session="s", limits=Limits(turns=None))
    progressed = between[0]["name"] == "look"
    assert len(refusals(await log.records("s"), "ping_pong")) == (0 if progressed else 1)


async def test_a_new_message_is_progress() -> None:
    log = MemoryLog()
    model = ScriptedModel(*BACK_AND_FORTH[:4], "?", *BACK_AND_FORTH[:4], "!")
    engine = Engine(log, agents=team(model))
    for text in ("one", "two"):
        await engine.run(text, session="s")
    assert refusals(await log.records("s"), "ping_pong") == []


async def test_a_chain_of_different_agents_is_no_ping_pong() -> None:
    log = MemoryLog()
    agents = [Agent(f"a{n}", handoffs=[f"a{n + 1}"]) for n in range(9)]
    model = ScriptedModel(*([to(f"a{n + 1}")] for n in range(9)), "end")
    engine = Engine(log, agents=[*agents, Agent("a9")], model=model)
    result = await engine.run("hi", session="s", limits=Limits(turns=None))
    assert result.agent == "a9"


@pytest.mark.parametrize(("limit", "made"), [(0, 1), (1, 2), (None, 8)])
async def test_the_limit_can_be_set(limit: int | None, made: int) -> None:
    log = MemoryLog()
    model = ScriptedModel(
        *BACK_AND_FORTH[:made], *([to("front" if made % 2 else "sched")] if limit is not None else []), "end"
    )
    limits = Limits(ping_pong=limit, turns=None, handoffs=None)
    await Engine(log, agents=team(model)).run("hi", session="s", limits=limits)
    assert handoffs(await log.records("s")) == made


# -- what else a target can be


async def test_an_agent_that_shares_the_name_of_another_is_no_target() -> None:
    log = MemoryLog()
    stranger = Agent[Any]("sched")

    def pick(context: ToolContext[Any]) -> Agent[Any]:
        return stranger

    front = Agent("front", handoffs=[handoff("sched", "bill", on_invoke=pick, tool_name="route")])
    model = ScriptedModel([function_call("route", {})], "sorry")
    agents = [front, Agent("sched"), Agent("bill")]
    result = await Engine(log, agents=agents, model=model).run("hi", session="s")
    (refused,) = refusals(await log.records("s"), "unknown_target")
    assert refused.answer == "The transfer was not made: sched is the name of two agents."
    assert result.agent == "front"


@pytest.mark.parametrize("keep", [False, True])
async def test_transfers_that_were_not_taken_are_shown_to_the_target_only_at_its_wish(keep: bool) -> None:
    log = MemoryLog()
    model = ScriptedModel([assistant_message("on it"), to("sched"), to("bill")], "hello")
    await Engine(log, agents=team(model, keep_untaken=keep)).run("hi", session="s")
    records = await log.records("s")
    assert len(session_history(records)) == 7
    assert len(model_history(records)) == (7 if keep else 5)
