"""The scenarios of crash_scenarios.py, crashed everywhere, twice in one pass, and killed: `make crashes` does more."""

import os

import pytest
from tests.engine.airline import Conversation, Schemas, needs_data
from tests.engine.crash_scenarios import (
    SCENARIOS,
    Scenario,
    airline,
    one_effect,
    the_demo,
    twenty,
)

from batonlog.engine.testing import CrashReport, crash_at_random, crash_everywhere, kill_at_random

EVERYWHERE: dict[str, Scenario] = {
    "the demo": the_demo(chain=False),
    **{
        name: one
        for name, one in SCENARIOS.items()
        if name
        not in ("the demo", "the demo, chained", "handoffs round", "handoffs round, in a conversation")
    },
}

AT_RANDOM = (
    "decisions",
    "forked in mid-turn",
    "handoffs round, in a conversation",
    "limits and failures",
    "the demo, chained",
)

KILLED = [name for name in SCENARIOS if name not in ("the demo", "handoffs round", "handoffs round, chained")]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def nothing_was_wrong(report: CrashReport) -> bool:
    assert report.wrong_logs == report.repeated_effects == (), str(report)
    return True


@pytest.mark.parametrize("name", EVERYWHERE)
async def test_no_crash_anywhere_can_hurt(name: str) -> None:
    report = await crash_everywhere(EVERYWHERE[name])
    assert nothing_was_wrong(report)
    assert report.boundaries >= 14


async def test_no_two_crashes_can_hurt_whichever_they_are() -> None:
    """Recovery that crashes recovers again to the same."""
    report = await crash_everywhere(one_effect, pairs="all")
    assert nothing_was_wrong(report)
    assert report.boundaries >= 14 * 15 / 2


@pytest.mark.parametrize("name", AT_RANDOM)
async def test_no_crash_after_crash_can_hurt(name: str) -> None:
    report = await crash_at_random(SCENARIOS[name], times=15)
    assert nothing_was_wrong(report)


@needs_data
async def test_no_crash_can_hurt_an_airline_conversation(
    recorded: list[Conversation], schemas: Schemas
) -> None:
    chosen = twenty(recorded)
    assert len(chosen) == 20
    assert sum(one.transfers for one in chosen) == sum(one.reuses_ids for one in chosen) == 10
    for one in chosen:
        assert nothing_was_wrong(await crash_at_random(airline(one, schemas), times=4))
    assert nothing_was_wrong(await crash_everywhere(airline(chosen[0], schemas)))


@needs_fork
@pytest.mark.parametrize("name", KILLED)
async def test_no_kill_can_hurt(name: str) -> None:
    report = await kill_at_random(SCENARIOS[name], times=2)
    assert nothing_was_wrong(report)
    assert report.boundaries >= 2


@needs_fork
@needs_data
async def test_no_kill_can_hurt_an_airline_conversation(
    recorded: list[Conversation], schemas: Schemas
) -> None:
    for one in twenty(recorded)[:2]:
        assert nothing_was_wrong(await kill_at_random(airline(one, schemas), times=5))
