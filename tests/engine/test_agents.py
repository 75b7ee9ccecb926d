"""Agents: what a model is told and offered, turn by turn, and which model it is."""

from typing import Any

import pytest

from batonlog.engine import (
    Agent,
    Engine,
    Model,
    ModelRequest,
    ModelSettings,
    RunContext,
    RunFailedError,
    Tool,
    handoff,
    tool,
)
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import AgentResolved, MemoryLog, ModelRequested, Record, UsageError


@tool
def look() -> str:
    """Look."""
    return "seen"


def again(*, turns: int) -> ScriptedModel:
    """A model that looks until it has been asked so often."""
    return ScriptedModel(*[function_call("look", {})] * (turns - 1), "done")


async def asked(agent: Agent[Any], model: ScriptedModel, **options: Any) -> list[ModelRequest]:
    async with Engine("memory:", agents=[agent], model=model, **options) as engine:
        await engine.run("go", session="s")
    return list(model.requests)


async def resolved(*agents: Agent[Any], model: ScriptedModel) -> list[AgentResolved]:
    async with Engine("memory:", agents=agents, model=model) as engine:
        await engine.run("go", session="s")
        records = await engine.log.records("s")
    return [record.event for record in records if isinstance(record.event, AgentResolved)]


# -- instructions


def counted(ctx: RunContext[object]) -> str:
    return f"turn {ctx.turn}"


async def counted_later(ctx: RunContext[object]) -> str:
    return f"turn {ctx.turn}"


async def test_instructions_may_be_a_text() -> None:
    (request,) = await asked(Agent("a", instructions="Be kind."), again(turns=1))
    assert request.instructions == "Be kind."


@pytest.mark.parametrize("instructions", [counted, counted_later, lambda ctx: f"turn {ctx.turn}"])
async def test_instructions_may_be_a_function_which_is_asked_at_every_turn(instructions: Any) -> None:
    requests = await asked(Agent("a", instructions=instructions, tools=[look]), again(turns=3))
    assert [request.instructions for request in requests] == ["turn 1", "turn 2", "turn 3"]


async def test_instructions_are_given_who_runs_and_the_callers_context() -> None:
    seen: list[tuple[object, ...]] = []

    def instructions(ctx: RunContext[str]) -> str:
        seen.append((ctx.session, ctx.agent, ctx.turn, ctx.context, dict(ctx.notes)))
        return ""

    async with Engine(
        "memory:", agents=[Agent[str]("a", instructions=instructions)], model=again(turns=1)
    ) as engine:
        await engine.run("go", session="s", context="mine")
    assert seen == [("s", "a", 1, "mine", {})]


async def test_what_instructions_note_is_recorded_before_the_request() -> None:
    def instructions(ctx: RunContext[object]) -> str:
        ctx.note("asked", ctx.turn)
        return str(ctx.notes["asked"])

    async with Engine(
        "memory:", agents=[Agent("a", instructions=instructions)], model=again(turns=1)
    ) as engine:
        await engine.run("go", session="s")
        types = [record.type for record in await engine.log.records("s")]
    assert types[:4] == ["run.started", "note.added", "agent.resolved", "model.requested"]


@pytest.mark.parametrize(
    ("instructions", "says"),
    [
        (lambda ctx: None, "the instructions of a are NoneType, not text"),
        (lambda ctx: ctx.missing, "missing"),
    ],
)
async def test_instructions_that_fail_fail_the_run(instructions: Any, says: str) -> None:
    model = ScriptedModel()
    async with Engine("memory:", agents=[Agent("a", instructions=instructions)], model=model) as engine:
        with pytest.raises(RunFailedError, match=says):
            await engine.run("go", session="s")
        assert (await engine.status("s")).status == "failed"


async def test_a_run_whose_instructions_failed_is_resumed_when_they_are_mended() -> None:
    log, broken = MemoryLog(), True

    def instructions(ctx: RunContext[object]) -> str:
        if broken:
            raise LookupError("no template")
        return "Be kind."

    engine = Engine(log, agents=[Agent("a", instructions=instructions)], model=ScriptedModel("hi"))
    with pytest.raises(RunFailedError) as caught:
        await engine.run("go", session="s")
    assert isinstance(caught.value.__cause__, LookupError)
    broken = False
    assert (await engine.resume("s")).final_output == "hi"


# -- what is offered


async def test_what_is_offered_is_asked_at_every_turn() -> None:
    def later(ctx: RunContext[object]) -> bool:
        return ctx.turn > 1

    async def never(ctx: RunContext[object]) -> bool:
        return False

    b = Agent("b")
    agent = Agent(
        "a",
        tools=[look, Tool("late", None, is_enabled=later), Tool("off", None, is_enabled=False)],
        handoffs=[handoff(b, is_enabled=later), handoff(b, tool_name="never", is_enabled=never)],
    )
    requests = await asked(agent, again(turns=2))
    assert [[one["name"] for one in request.tools] for request in requests] == [
        ["look"],
        ["look", "late", "transfer_to_b"],
    ]


async def test_a_tool_that_is_not_offered_is_not_there_for_the_model() -> None:
    agent = Agent("a", tools=[tool(name="hidden", is_enabled=False)(lambda: "never")])
    requests = await asked(agent, ScriptedModel(function_call("hidden", {}), "done"))
    assert requests[1].input[-1].text == "There is no tool hidden. The tools are: none."


async def test_a_condition_that_raises_fails_the_run() -> None:
    def broken(ctx: RunContext[object]) -> bool:
        raise LookupError("no flag")

    agent = Agent("a", tools=[Tool("late", None, is_enabled=broken)])
    async with Engine("memory:", agents=[agent], model=ScriptedModel()) as engine:
        with pytest.raises(RunFailedError, match="no flag"):
            await engine.run("go")


async def test_tools_go_out_as_function_tools() -> None:
    (request,) = await asked(Agent("a", tools=[look]), again(turns=1))
    assert request.tools == (
        {
            "type": "function",
            "name": "look",
            "description": "Look.",
            "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
            "strict": True,
        },
    )


async def test_a_handoff_is_described_by_its_target() -> None:
    b = Agent("b", handoff_description="Knows all about money.")
    (request,) = await asked(Agent("a", handoffs=[b]), again(turns=1))
    assert request.tools[0]["description"] == "Hand the conversation over to b. Knows all about money."


# -- what is recorded


async def test_what_stays_the_same_is_recorded_once() -> None:
    events = await resolved(Agent("a", instructions="Be kind.", tools=[look]), model=again(turns=3))
    assert len(events) == 1


async def test_only_the_parts_that_changed_are_recorded() -> None:
    agent = Agent("a", instructions=counted, tools=[look])
    first, second = await resolved(agent, model=again(turns=2))
    assert (first.instructions, first.offered is None, first.settings) == ("turn 1", False, None)
    assert (second.instructions, second.offered, second.settings) == ("turn 2", None, None)


async def test_an_agent_of_which_nothing_is_to_be_said_is_recorded_all_the_same() -> None:
    (event,) = await resolved(Agent("a"), model=again(turns=1))
    assert (event.agent, event.instructions, event.offered, event.settings) == ("a", None, None, None)


async def test_each_agent_is_recorded_on_its_own() -> None:
    b = Agent("b", instructions="Be b.")
    events = await resolved(
        Agent("a", instructions="Be a.", handoffs=[b]), b, model=ScriptedModel(function_call(b, {}), "done")
    )
    assert [(event.agent, event.instructions) for event in events] == [("a", "Be a."), ("b", "Be b.")]


async def test_an_agent_that_is_seen_again_in_a_later_run_is_not_recorded_again() -> None:
    log = MemoryLog()
    for _ in range(2):  # two processes
        engine = Engine(log, agents=[Agent("a", instructions="Be kind.")], model=again(turns=1))
        await engine.run("go", session="s")
    assert [record.type for record in await log.records("s")].count("agent.resolved") == 1


async def test_what_was_taken_away_is_recorded() -> None:
    log = MemoryLog()
    for tools, instructions in (([look], "Be kind."), ([], "")):
        engine = Engine(
            log, agents=[Agent("a", tools=tools, instructions=instructions)], model=again(turns=1)
        )
        await engine.run("go", session="s")
    last = [record.event for record in await log.records("s") if isinstance(record.event, AgentResolved)][-1]
    assert (last.instructions, last.offered) == ("", ())


async def test_what_was_promised_about_a_tool_is_recorded_with_it() -> None:
    @tool(idempotent=True, on_unknown="report", needs_approval=lambda ctx, arguments: False)
    def pay() -> str:
        return ""

    (event,) = await resolved(Agent("a", tools=[pay, Tool("pick", None)]), model=again(turns=1))
    assert event.offered is not None
    paid, picked = event.offered
    assert {key: paid[key] for key in ("name", "kind", "gate", "idempotent", "on_unknown")} == {
        "name": "pay",
        "kind": "tool",
        "gate": "ask",
        "idempotent": True,
        "on_unknown": "report",
    }
    assert picked["kind"] == "external"


# -- settings


async def test_settings_of_the_run_count_over_the_agents_and_those_over_the_engines() -> None:
    agent = Agent("a", model_settings=ModelSettings(temperature=0.2, top_p=0.2))
    model = again(turns=1)
    settings = ModelSettings(temperature=0.1, top_p=0.1, max_output_tokens=1, extra_body={"seed": 1})
    async with Engine("memory:", agents=[agent], model=model, model_settings=settings) as engine:
        await engine.run("go", model_settings=ModelSettings(temperature=0.3))
    assert model.requests[0].settings == {
        "temperature": 0.3,
        "top_p": 0.2,
        "max_output_tokens": 1,
        "extra_body": {"seed": 1},
    }


async def test_settings_of_one_run_are_not_those_of_the_next() -> None:
    model = ScriptedModel("one", "two")
    async with Engine("memory:", agents=[Agent("a")], model=model) as engine:
        await engine.run("go", session="s", model_settings=ModelSettings(temperature=0.0))
        await engine.run("go", session="s")
    assert [request.settings for request in model.requests] == [{"temperature": 0.0}, {}]


# -- models


async def test_an_agent_asks_its_own_model() -> None:
    own, shared = ScriptedModel("own"), ScriptedModel()
    async with Engine("memory:", agents=[Agent("a", model=own)], model=shared) as engine:
        assert (await engine.run("go")).final_output == "own"


async def test_a_model_may_differ_on_the_two_sides_of_a_handoff() -> None:
    small, large = (
        ScriptedModel(function_call("transfer_to_b", {}), name="small"),
        ScriptedModel("hi", name="large"),
    )
    agents = [Agent("a", model=small, handoffs=["b"]), Agent("b", model=large)]
    with small, large:
        async with Engine("memory:", agents=agents) as engine:
            assert (await engine.run("go")).final_output == "hi"


async def test_a_model_given_by_name_is_made_once_at_the_first_use() -> None:
    made: list[str] = []

    def provider(name: str) -> Model:
        made.append(name)
        return ScriptedModel(*["hi"] * 3, name=name)

    agents = [Agent("a"), Agent("b", model="small")]
    async with Engine("memory:", agents=agents, model="large", provider=provider) as engine:
        assert made == []
        for _ in range(2):
            await engine.run("go")
        assert made == ["large"]
        await engine.run("go", agent="b")
    assert made == ["large", "small"]


async def test_models_that_were_made_from_a_name_are_closed_with_the_engine() -> None:
    closed: list[str] = []

    class Closing(ScriptedModel):
        async def close(self) -> None:
            closed.append(self.name)

    given = Closing("hi", name="given")
    agents = [Agent("a", model="named"), Agent("b", model=given)]
    async with Engine("memory:", agents=agents, provider=lambda name: Closing("hi", name=name)) as engine:
        await engine.run("go", agent="a")
        await engine.run("go", agent="b")
        assert closed == []
    assert closed == ["named"]


async def test_without_a_model_nothing_begins() -> None:
    async with Engine("memory:", agents=[Agent("a")]) as engine:
        with pytest.raises(UsageError, match="agent a has no model: give it one, or the engine one"):
            await engine.run("go", session="s")
        assert await engine.log.head("s") is None


async def test_a_model_that_cannot_be_made_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with Engine("memory:", agents=[Agent("a")], model="gpt-5") as engine:
        with pytest.raises(UsageError, match="model gpt-5 needs OPENAI_API_KEY"):
            await engine.run("go", session="s")
        assert await engine.log.head("s") is None


@pytest.mark.parametrize("model", [7, object(), ScriptedModel])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match="is no model: it needs a name"):
        Agent("a", model=model)
    with pytest.raises(UsageError, match="is no model: it needs a name"):
        Engine("memory:", agents=[Agent("a")], model=model)


async def test_a_provider_that_makes_no_model_is_told() -> None:
    provider: Any = {"x": 7}.get
    async with Engine("memory:", agents=[Agent("a")], model="x", provider=provider) as engine:
        with pytest.raises(UsageError, match="7 is no model"):
            await engine.run("go")


# -- what is no agent


@pytest.mark.parametrize("name", ["", "a\n", "\x00", "x" * 201, "\ud800"])
def test_a_name_is_printable(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of an agent"):
        Agent(name)


def test_what_is_no_tool_among_the_tools_is_refused() -> None:
    tools: Any = [7]
    with pytest.raises(UsageError, match="7 is no function"):
        Agent("a", tools=tools)


@pytest.mark.parametrize("other", [7, None, look])
def test_what_is_no_handoff_among_the_handoffs_is_refused(other: Any) -> None:
    with pytest.raises(UsageError, match="hands off to an agent, or to the name of one"):
        Agent("a", handoffs=[other])


def test_typed_answers_are_not_there_yet_and_say_so() -> None:
    with pytest.raises(UsageError, match="output_type other than str is not there yet"):
        Agent("a", output_type=int)


def test_an_agent_shows_its_name() -> None:
    assert repr(Agent("退款专家")) == "Agent('退款专家')"


async def test_two_agents_may_refer_to_each_other_by_name() -> None:
    agents = [Agent("a", handoffs=["b"]), Agent("b", handoffs=["a"])]
    model = ScriptedModel(function_call("transfer_to_b", {}), function_call("transfer_to_a", {}), "back")
    async with Engine("memory:", agents=agents, model=model) as engine:
        result = await engine.run("go")
    assert (result.agent, result.final_output) == ("a", "back")


async def test_the_agent_that_holds_control_answers_the_next_message() -> None:
    b = Agent("b")
    model = ScriptedModel(function_call(b, {}), "one", "two")
    async with Engine("memory:", agents=[Agent("a", handoffs=[b])], model=model) as engine:
        await engine.run("go", session="s")
        await engine.run("go on", session="s")
    assert [request.agent for request in model.requests] == ["a", "b", "b"]


async def test_a_run_may_name_the_agent_that_begins() -> None:
    b = Agent("b")
    model = ScriptedModel("one", "two", "three")
    async with Engine("memory:", agents=[Agent("a"), b], model=model) as engine:
        await engine.run("go", session="s")
        await engine.run("go", session="s", agent=b)
        await engine.run("go", session="s")
    assert [request.agent for request in model.requests] == ["a", "b", "b"]


def versions(records: tuple[Record, ...], tag: str) -> list[int]:
    return [record.version for record in records if record.type == tag]


async def test_a_request_names_the_versions_of_its_parts() -> None:
    async with Engine(
        "memory:", agents=[Agent("a", instructions=counted, tools=[look])], model=again(turns=2)
    ) as engine:
        await engine.run("go", session="s")
        records = await engine.log.records("s")
    one, two = versions(records, "agent.resolved")
    parts = [record.event.parts for record in records if isinstance(record.event, ModelRequested)]
    assert [part[:2] for part in parts] == [(one, one), (two, one)]
