"""Field cases I and J: several transfers, their names, arguments and ids. `docs/field-reports.md` lists them all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.field_cases.cases import case, needs_the_cases
from tests.field_cases.dialects import refused
from tests.field_cases.play import SESSION, Play, Way, every_way, played, shown

from batonlog.engine import Agent, Engine, Handoff, Tool, ToolContext, handoff
from batonlog.engine.decide import NOT_FIRST
from batonlog.engine.handoffs import wire_name
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import CallRefused, HandoffMade, ToolReturned, UsageError
from batonlog.projections import check_legal
from batonlog.projections.request import wire_input

pytestmark = needs_the_cases


# -- case 47


@every_way
async def test_case_47_of_several_transfers_one_is_made_and_each_is_answered(
    way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        assert play.requests[-1].agent == "Refunds"
        (made,) = play.events(HandoffMade)
        assert (made.call_id, made.target) == ("h1", "Refunds")
        assert shown(play.session)[4:7] == [
            'h1 = {"assistant":"Refunds"}',
            f"h2 = {NOT_FIRST}",
            f"h3 = {NOT_FIRST}",
        ]
        assert shown(play.requests[-1].input)[1:] == [
            "h1 transfer_to_refunds",
            'h1 = {"assistant":"Refunds"}',
        ]

    await played(case(47), scenario, way, tmp_path)


# -- case 48

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


@every_way
@pytest.mark.parametrize("keep_untaken", [False, True])
async def test_case_48_a_transfer_that_was_not_taken_is_not_shown_to_the_target(
    keep_untaken: bool, way: Way, tmp_path: Path
) -> None:
    def cast(play: Play) -> list[Agent[object]]:
        one: Handoff[object] = handoff("A", keep_untaken=keep_untaken)
        return [Agent("Front", handoffs=[one, "B"]), Agent("A"), Agent("B")]

    async def scenario(play: Play) -> None:
        await play.all()
        request = play.first_request("A")
        pairs = ["h1 transfer_to_a", "h2 transfer_to_b", 'h1 = {"assistant":"A"}', f"h2 = {NOT_FIRST}"]
        assert shown(play.session)[1:5] == pairs
        assert shown(request.input)[1:] == (pairs if keep_untaken else pairs[::2])

    await played(case(48), scenario, way, tmp_path, agents=cast)


@every_way
@pytest.mark.parametrize("before", [0, 1], ids=["the one that was taken", "the one that was not"])
async def test_case_48_reasoning_goes_only_with_what_it_led_to(before: int, way: Way, tmp_path: Path) -> None:
    calls = list(case(48).turns[0].answers[0])

    async def scenario(play: Play) -> None:
        await play.all()
        request = play.first_request("A")
        assert check_legal(request.input) == ()
        kinds = [item.type for item in request.input]
        assert kinds[1:] == [*["reasoning"][before:], "function_call", "function_call_output"]
        assert "reasoning" in shown(play.session)

    steps = [[*calls[:before], THOUGHT, *calls[before:]], "Hello."]
    await played(case(48), scenario, way, tmp_path, steps=steps)


# -- case 51


def names_of_case_51() -> list[str]:
    """The names; the one of 200 letters is described, not spelled out."""
    names: list[str] = case(51).ops("agents")[0]["names"]
    return ["n" * 200 if name.startswith("<200") else name for name in names]


def test_case_51_an_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match="name"):
        Agent(min(names_of_case_51(), key=len))


async def test_case_51_all_other_names_can_be_reached_by_tools_of_their_own(tmp_path: Path) -> None:
    names = list(filter(None, names_of_case_51()))
    tools = [wire_name(name) for name in names]
    assert len(set(tools)) == len(names) == 7
    assert all(tool.isascii() and tool.replace("_", "").isalnum() and len(tool) <= 64 for tool in tools)
    for name, tool in zip(names, tools, strict=True):
        targets: list[Agent[object]] = [Agent(one) for one in names]
        with ScriptedModel(function_call(tool, {}), "here") as model:
            agents = [Agent("Front", handoffs=targets)]
            async with Engine("memory:", agents=agents, model=model) as engine:
                assert (await engine.run("go")).agent == name


def test_case_51_the_names_of_the_tools_are_the_same_in_another_process() -> None:
    names = list(filter(None, names_of_case_51()))
    program = (
        "import json, sys; from batonlog.engine.handoffs import wire_name;"
        "print(json.dumps([wire_name(name) for name in json.loads(sys.argv[1])]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, json.dumps(names)], capture_output=True, text=True, check=True
    )
    assert json.loads(other.stdout) == [wire_name(name) for name in names]


# -- case 52


class Reason(Struct):
    reason: str


async def fails(context: ToolContext[object], given: Reason) -> None:
    """The callback of the case."""
    raise RuntimeError("the ticket system is down")


def typed_transfers(play: Play) -> list[Agent[object]]:
    to_b = handoff("B", input_type=Reason, on_handoff=fails)
    return [Agent("Front", handoffs=["A"]), Agent("A", handoffs=[to_b]), Agent("B")]


@every_way
async def test_case_52_bad_arguments_and_a_failing_callback_refuse_a_transfer_each_in_its_own_words(
    way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        assert [made.call_id for made in play.events(HandoffMade)] == ["h1"]
        assert [result.agent for result in play.results] == ["A", "A", "A"]
        (unread,) = play.events(CallRefused)
        assert (unread.call_id, unread.reason) == ("h2", "invalid_arguments")
        assert "not valid JSON" in unread.answer
        (undone,) = play.events(ToolReturned)
        assert (undone.call_id, undone.error) == ("h3", True)
        assert "RuntimeError: the ticket system is down" in undone.output
        assert "JSON" not in undone.output
        dialect = play.case.ops("project_model")[0]["dialect"]
        assert [refused(request, dialect) for request in play.requests] == [[]] * len(play.requests)
        # What the model wrote is kept as it wrote it.
        written = [item.data["arguments"] for item in play.session if item.type == "function_call"]
        assert written == [call["arguments"] for _, call in play.case.calls]

    await played(case(52), scenario, way, tmp_path, agents=typed_transfers)


# -- case 54


@every_way
async def test_case_54_a_call_id_that_is_used_again_is_another_call(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        assert sorted(play.keys.values()) == ["one", "two"]
        assert len({returned.call for returned in play.events(ToolReturned)}) == 2
        wire = [json.loads(data) for data in wire_input(play.view)]
        pairs = [(data["type"], data["call_id"]) for data in wire if "call_id" in data]
        first, second = pairs[0][1], pairs[2][1]
        assert first == "call_0" != second
        kinds = ["function_call", "function_call_output"]
        assert pairs == [(kind, call_id) for call_id in (first, second) for kind in kinds]
        assert [data["output"] for data in wire if "output" in data] == ["one", "two"]

    await played(case(54), scenario, way, tmp_path)


def gating(play: Play) -> list[Agent[object]]:
    def second(context: ToolContext[object], arguments: dict[str, Any]) -> bool:
        return bool(arguments["n"] == 2)

    tool: Tool[object] = Tool(
        "t", play.answer, parameters={"type": "object"}, strict=False, needs_approval=second, idempotent=True
    )
    return [Agent("Front", tools=[tool])]


@every_way
async def test_case_54_the_second_call_is_open_though_the_first_has_its_answer(
    way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        (waiting,) = play.results[-1].open_calls
        assert (waiting.tool, waiting.arguments) == ("t", {"n": 2})
        await play.engine.approve(SESSION, waiting.call, by="p")
        await play.engine.resume(SESSION)
        await play.read()
        assert [returned.output for returned in play.events(ToolReturned)] == ["one", "two"]

    await played(case(54), scenario, way, tmp_path, agents=gating)
