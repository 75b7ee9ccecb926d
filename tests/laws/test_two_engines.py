"""Two workers, a person, crashes, takeovers and a live zombie on one session, in any order."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from tests.laws.depth import examples
from tests.laws.world import World
from tests.laws.world_cast import Plan

plans = st.builds(
    Plan,
    chain=st.booleans(),
    slow=st.sampled_from(
        [frozenset({"append"}), frozenset({"append", "acquire"}), frozenset({"append", "acquire", "records"})]
    ),
    deaf=st.sampled_from([frozenset(), frozenset("B"), frozenset("AB")]),
    pensive=st.booleans(),
    busy=st.sampled_from(["refuse", "queue", "steer"]),
    turns=st.sampled_from([2, 8, 8]),
)
schedules = st.lists(st.integers(0, 999_999), min_size=40, max_size=140)


async def live(plan: Plan, schedule: Sequence[int]) -> World:
    world = World(plan)
    try:
        world.ask("A", "run")
        await world.rest()
        for n in schedule:
            await world.step(n)
        await world.end()
    except BaseException:
        note("\n".join([*world.log, "", *told(world)]))
        raise
    finally:
        await world.stop()
    return world


def told(world: World) -> list[str]:
    return [
        f"{r.version} {a} {r.event}"[:200]
        for r, a in zip(world.store.trace, world.store.authors, strict=True)
    ]


@pytest.mark.usefixtures("at_once")
@examples(150, many=6000)
@given(plans, schedules)
def test_two_workers_and_whoever_else_speaks_never_break_a_law(plan: Plan, schedule: list[int]) -> None:
    asyncio.run(live(plan, schedule))
