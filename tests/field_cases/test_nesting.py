"""Field cases C and D: nested histories, and reasoning. `docs/field-reports.md` lists them all."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.field_cases.cases import case, needs_the_cases
from tests.field_cases.dialects import refused
from tests.field_cases.play import Play, Way, every_way, played, sent, shown

from batonlog.engine import Agent, handoff
from batonlog.engine.testing import ScriptedModel
from batonlog.projections import (
    History,
    check_legal,
    drop_reasoning,
    drop_tools,
    keep_last,
    last_turns,
    messages_only,
    nest_history,
)
from batonlog.projections.lines import lines_of

pytestmark = needs_the_cases

NEST = {"nest": nest_history}


def told(history: History) -> list[dict[str, Any]]:
    """The lines of the one nest in a history."""
    (nest,) = [item for item in history if item.lines]
    return [json.loads(part.text) for part in lines_of(nest)[1:]]


@every_way
async def test_case_15_everything_is_told_once_folded_or_as_it_is(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        view = play.first_request("Refunds").input
        said = [item.ref for item in play.session if item.agent != "Refunds"]
        assert sorted(ref for item in view for ref in item.covers) == said
        assert shown(view[-1:]) == ["user: refund 9"]
        assert [next(iter(line)) for line in told(view)] == ["call", "output", "call", "output"]

    await played(case(15), scenario, way, tmp_path, filters=NEST)


@every_way
async def test_case_17_what_looks_like_a_marker_is_text(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        text = play.turns[0].text
        await play.say(play.turns[0])
        assert play.first_request("Billing").input[-1].text == text
        await play.say("and now?")
        again = nest_history(nest_history(play.view))
        assert [line["text"] for line in told(again) if line.get("role") == "user"] == [text]
        # Its lines stand nowhere but inside that one JSON string.
        assert not [part for part in again.data[0]["content"] if part["text"].startswith("1. user")]

    steps = [*case(17).turns[0].answers, "It is paid."]
    await played(case(17), scenario, way, tmp_path, filters=NEST, steps=steps)


@every_way
async def test_case_19_a_nest_stands_where_every_provider_takes_it(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        request = play.first_request("Data")
        dialects = [record["dialect"] for record in play.case.ops("project_model")]
        assert {dialect: refused(request, dialect) for dialect in dialects} == {
            dialect: [] for dialect in dialects
        }
        assert [item.role for item in request.input] == ["assistant", "user"]

    await played(case(19), scenario, way, tmp_path, filters=NEST)


OTHERS = [drop_tools, drop_reasoning, messages_only, last_turns(1), keep_last(2)]


@pytest.mark.parametrize(
    ("one", "way"),
    [*((nest_history, way) for way in ("plain", "streamed", "resumed")), *((one, "plain") for one in OTHERS)],
)
async def test_case_20_reasoning_stays_with_what_it_led_to(one: Any, way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        assert all(check_legal(request.input) == () for request in play.requests)
        for n in range(1, len(play.session) + 1):
            assert check_legal(keep_last(n)(play.session)) == ()
        asked = play.case.ops("project_model")[1]
        assert check_legal(keep_last(asked["last"])(play.session)) == ()

    await played(case(20), scenario, way, tmp_path, filters={"nest": one})


class Issuer(ScriptedModel):
    """A model of some provider."""

    def __init__(self, issuer: str, *steps: Any) -> None:
        self.endpoint, name = issuer.split("/")
        super().__init__(*steps, name=name)


@every_way
@pytest.mark.parametrize("n", [0, 1, 2])
async def test_case_22_what_only_its_maker_can_read_goes_to_nobody_else(
    n: int, way: Way, tmp_path: Path
) -> None:
    asked = case(22).ops("project_model")[n]

    async def scenario(play: Play) -> None:
        deep = Issuer(asked["issuer"], "Done.")
        (turn,) = play.turns
        source = Issuer(case(22).of("response")[0]["issuer"], *map(list, turn.answers[:2]))
        agents = [
            Agent("Front", handoffs=[handoff("Deep")], model=source),
            Agent("Deep", model=deep),
        ]
        await play.restart(agents=agents)
        # The case has two answers to one message; between them the user says something.
        await play.say(turn.text)
        await play.say("deeper")
        (request,) = deep.requests
        out = sent(request.input).decode()
        assert ("sigX" in out, '"reasoning"' in out) == ((True, True) if n == 1 else (False, False))
        assert "__local_1" not in out
        assert ('"t1"' in out) == (n == 1)
        assert "assistant: a" in shown(request.input)
        assert "sigX" in sent(play.session).decode()

    await played(case(22), scenario, way, tmp_path, steps=[])
