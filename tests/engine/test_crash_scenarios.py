"""What backends do with an engine, crashed at every boundary, twice in one pass, and by kill -9.

A few crashes of each; BATONLOG_DEEP=1 crashes them everywhere, and `make crashes` for as long as one likes.
"""

import os
from typing import Literal

import pytest
from tests.engine.airline import Conversation, conversations, needs_data, schemas_of
from tests.engine.crash_scenarios import SCENARIOS, SESSION, airline, call, get_order, twenty
from tests.laws.depth import DEEP

from batonlog.engine import Agent, Engine
from batonlog.engine.testing import CrashReport, ScriptedModel, crash_everywhere, kill_at_random

pytest_killed = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

SPOKEN_TO = ("what_another_engine_decides", "a_second_run_that_is_queued", "a_fork_in_the_middle_of_a_turn")
CHAINS = ("handoffs_in_a_circle", "handoffs_in_a_circle_in_conversations")
OTHERS = ("the_demo", "calls_beside_a_gated_one_and_a_handoff", "what_is_sent_to_a_worker_that_serves")
LONG = (
    "the_demo_along_a_chain",
    "handoffs_in_a_circle_along_a_chain",
    "sessions_that_go_on_at_once",
)
"""Twins of others, over HTTP or three at once: at some boundaries only, unless one goes deep."""

FEW = SCENARIOS if DEEP else (*SPOKEN_TO, *CHAINS, *OTHERS)


def check(report: CrashReport) -> None:
    assert not report.wrong_logs, str(report)
    assert not report.repeated_effects, str(report)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_no_crash_at_any_boundary_can_hurt(name: str) -> None:
    places: int | Literal["all"] = 8 if name in LONG and not DEEP else "all"
    report = await crash_everywhere(SCENARIOS[name], places=places)
    check(report)
    assert places != "all" or report.boundaries >= 16


async def test_recovery_that_crashes_anywhere_recovers_again_to_the_same() -> None:
    async def scenario(path: str) -> None:
        with ScriptedModel(call(get_order, order="7"), "A kettle.") as model:
            async with Engine(path, agents=[Agent("a", tools=[get_order])], model=model) as engine:
                assert (await engine.run("what is it?", session=SESSION)).final_output == "A kettle."

    report = await crash_everywhere(scenario, pairs="all")
    check(report)
    assert report.boundaries >= 12 + 12 * 11 / 2


@pytest.mark.parametrize("name", FEW)
async def test_no_two_crashes_can_hurt(name: str) -> None:
    check(await crash_everywhere(SCENARIOS[name], places=2, pairs=200 if DEEP else 4))


@pytest_killed
@pytest.mark.parametrize("name", FEW)
async def test_no_kill_can_hurt(name: str) -> None:
    times = 30 if DEEP else 2
    report = await kill_at_random(SCENARIOS[name], times=times)
    check(report)
    assert report.boundaries >= times


# -- the airline


@pytest.fixture(scope="module")
def recorded() -> list[Conversation]:
    return conversations()


@needs_data
async def test_no_crash_can_hurt_twenty_airline_conversations(recorded: list[Conversation]) -> None:
    schemas = schemas_of(recorded)
    places: int | Literal["all"] = "all" if DEEP else 3
    chosen = twenty(recorded)
    assert len(chosen) == 20
    for n, conversation in enumerate(chosen):
        check(await crash_everywhere(airline(conversation, schemas), places=places, seed=n))


@needs_data
@pytest_killed
async def test_no_kill_can_hurt_airline_conversations(recorded: list[Conversation]) -> None:
    schemas = schemas_of(recorded)
    for n, conversation in enumerate(twenty(recorded) if DEEP else twenty(recorded)[4::10]):
        check(await kill_at_random(airline(conversation, schemas), times=2, seed=n))
