"""Field cases H: who holds control, and who answers next. `docs/field-reports.md` lists them all."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.field_cases.cases import case, needs_the_cases
from tests.field_cases.play import SESSION, Play, Way, every_way, played

from batonlog.engine import Agent, Engine, Handoff, UnknownAgentError, handoff
from batonlog.engine.handoffs import wire_name
from batonlog.engine.testing import function_call
from batonlog.events import HandoffMade, NoteAdded, UsageError

pytestmark = needs_the_cases


# -- case 40


@every_way
async def test_case_40_who_was_handed_control_last_answers_whoever_spoke_since(
    way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        first, last = play.turns
        await play.say(first)
        (late,) = play.case.of("background_event")
        await play.engine.note(SESSION, "background", {"author": late["author"]})
        await play.say(last)
        assert play.requests[-1].agent == "Y"
        await play.restart()
        assert (await play.engine.status(SESSION)).agent == "Y"
        await play.say("3")
        assert play.requests[-1].agent == "Y"
        assert len(play.events(NoteAdded)) == 1

    steps = [*map(list, case(40).turns[0].answers), "2?", "3?"]
    await played(case(40), scenario, way, tmp_path, steps=steps)


def nowhere(*given: object) -> str:
    raise RuntimeError("nobody is there")


def with_a_refusing_way(play: Play) -> list[Agent[object]]:
    """The agents of the case; Y has a transfer that is always refused."""
    refusing: Handoff[object] = handoff("X", on_invoke=nowhere)
    return [
        Agent(name, handoffs=[refusing] if name == "Y" else play.handoffs(name)) for name in play.case.agents
    ]


@every_way
async def test_case_40_a_refused_handoff_leaves_control_where_it_is(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        assert (await play.engine.status(SESSION)).agent == "Y"
        assert [request.agent for request in play.requests[-2:]] == ["Y", "Y"]
        assert [made.target for made in play.events(HandoffMade)] == ["X", "Y"]

    steps = [*map(list, case(40).turns[0].answers), function_call("transfer_to_x", {}), "I stay."]
    await played(case(40), scenario, way, tmp_path, steps=steps, agents=with_a_refusing_way)


# -- case 41


def tree(of: Mapping[str, Sequence[str]], name: str, shown: Any) -> Agent[object]:
    """An agent of the case's tree, with those under it."""
    under = [tree(of, child, shown) for child in of.get(name, ())]
    return Agent(shown(name), handoffs=[handoff(one, tool_name=_tool(one.name)) for one in under])


def _tool(name: str) -> str:
    return wire_name(name.split("#")[0])


def test_case_41_two_agents_of_one_name_are_refused_when_the_engine_starts() -> None:
    agents = case(41).ops("agents")[0]["tree"]
    with pytest.raises(UsageError, match="two agents are named Skill"):
        Engine("memory:", agents=[tree(agents, "Root", lambda name: name.split("#")[0])])


@every_way
async def test_case_41_under_names_of_their_own_the_right_one_goes_on_after_a_restart(
    way: Way, tmp_path: Path
) -> None:
    agents = case(41).ops("agents")[0]["tree"]

    async def scenario(play: Play) -> None:
        await play.all()
        await play.restart()
        assert (await play.engine.status(SESSION)).agent == "Skill#b"
        await play.say("go on")
        assert play.requests[-1].agent == "Skill#b"

    steps = [*map(list, case(41).turns[0].answers), "Gladly."]
    root = [tree(agents, "Root", lambda name: name)]
    await played(case(41), scenario, way, tmp_path, steps=steps, agents=root)


async def test_case_41_a_log_that_names_an_agent_which_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    async with Play(case(41), tmp_path / "case.db", streamed=False, filters={}, steps=["hi"]) as play:
        await play.restart(agents=[Agent("Skill")])
        await play.say("x")
        await play.restart(agents=[Agent("Skill#a"), Agent("Skill#b")])
        with pytest.raises(UnknownAgentError, match=r"Skill\b.*Skill#a"):
            await play.say("y")


# -- case 43

POLICIES = {"sticky": "active", "always_entry": "entry", "return_when_done": "source"}
"""The case's words, and those of the engine's setting."""


@every_way
async def test_case_43_a_setting_says_who_gets_the_next_message(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        turns = iter(play.turns)
        answered: list[str] = []
        for record in play.case.records:
            if record["t"] == "user":
                before = len(play.requests)
                await play.say(next(turns))
                answered.append(play.requests[before].agent)
            elif record.get("op") == "policy":
                await play.restart(next_agent=POLICIES[record["next_turn"]])
        assert answered == ["Front", "Sched", "Front", "Front"]

    await played(case(43), scenario, way, tmp_path)


# -- case 44


@pytest.mark.parametrize(
    ("n", "way"), [(0, "plain"), (0, "streamed"), (0, "resumed"), (1, "plain"), (2, "plain")]
)
async def test_case_44_a_transfer_made_in_a_loop_reaches_its_own_agent(
    n: int, way: Way, tmp_path: Path
) -> None:
    names = case(44).ops("agents_in_loop")[0]["names"]

    def in_a_loop(play: Play) -> list[Agent[object]]:
        handoffs = []
        for name in names:
            agent: Agent[object] = Agent(name)
            handoffs.append(handoff(agent))
        return [Agent("Root", handoffs=handoffs)]

    async def scenario(play: Play) -> None:
        result = await play.say(play.turns[0])
        assert result.agent == names[n]

    # The case goes to the first; the others are its neighbours.
    neighbours = [function_call(wire_name(name), {}) for name in names]
    steps = [list(case(44).turns[0].answers[0]) if n == 0 else neighbours[n], "Here."]
    await played(case(44), scenario, way, tmp_path, steps=steps, agents=in_a_loop)
