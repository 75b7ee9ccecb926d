"""Crash a scenario everywhere, and see that nothing is lost, and nothing done twice.

    async def scenario(path: str) -> None:
        async with Engine(path, agents=[triage], model=ScriptedModel(*SCRIPT)) as engine:
            await engine.run("refund order 7", session="cust-42")

    report = asyncio.run(crash_everywhere(scenario))
    assert not report.wrong_logs and not report.repeated_effects

The crashes are played, in this process: how is in `_crash_world`. `kill_at_random` makes real ones.
"""

from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

from batonlog.engine.engine import Engine
from batonlog.engine.testing._crash_client import Client, PlayedWorker, install
from batonlog.engine.testing._crash_passes import CrashReport, Scenario, Trial, place_for_logs
from batonlog.engine.testing._crash_ports import ClientLog
from batonlog.engine.testing._crash_story import Reference
from batonlog.engine.testing._crash_world import Effects, World

_T = TypeVar("_T")


async def crash_everywhere(
    scenario: Scenario,
    /,
    *,
    places: int | Literal["all"] = "all",
    pairs: int | Literal["all"] = 0,
    seed: int = 0,
) -> CrashReport:
    """Run `scenario(path of the log)`, crash it at every append and effect in turn, recover, compare.

    A crash stops all engines that the scenario has built, and starts them again; the scenario
    itself goes on, as a client does whose server was restarted: a call of `run`, `resume` or
    `stream` in which the crash happened returns what came of it after the recovery. Crashed is
    before and after each batch is stored, before each model call, tool and `on_handoff` begins,
    and when it is done and nobody has heard. A model that had answered is not asked again, so
    a ScriptedModel that the scenario makes is played once; but in a provider's conversation it is
    asked again, in a new one, and should answer by what it is shown. A model that fails is waited for
    as ever: give the engine `Retries(first=0)`. A call that is not idempotent and
    whose outcome is unknown gets a person's word: one that never took place is let run, and
    for one that did the person gives the output that it had when nothing happened.

    Compared are both histories, the ends of runs and calls, the effects that took place, and
    usage; not where a model was told that nobody knows, as `on_unknown="report"` promises.

    Args:
        scenario: builds its engines over a SQLite log at the path, and its models and scripts
            anew each time. It must do the same whenever it is run.
        places: crash it at all places, or at so many, taken at random: for what takes long.
        pairs: crash it also twice in one pass, the second time while it recovers or later: so
            many pairs of places, the first of them one of those above, taken at random, or all there are.
        seed: which places and pairs these are.

    Raises what the scenario raises when nothing happens to it, and UsageError if it records
    nothing at the path or does not do the same twice.
    """
    async with place_for_logs() as folder:
        trial, random = Trial(scenario, folder), Random(seed)
        whole = _Played(())
        await trial.undisturbed(whole, _Played(()))
        reached: dict[int, int] = {}
        """For each place, how many there are in a pass that crashes there."""
        for place in count() if places == "all" else _some(range(whole.world.points), places, random):
            one = _Played((place,))
            if await trial.crash(f"{place}", one):
                reached[place] = one.world.points
            elif places == "all":  # that was the last one
                break
        every = [(first, second) for first, points in reached.items() for second in range(first + 1, points)]
        chosen = every if pairs == "all" else _some(every, pairs, random)
        for first, second in chosen:
            await trial.crash(f"{first} {second}", _Played((first, second)))
        return trial.report(len(reached) + len(chosen))


def _some(every: Sequence[_T], wanted: int, random: Random) -> Sequence[_T]:
    return random.sample(every, min(wanted, len(every)))


class _Played:
    """A pass whose crashes are played in this process."""

    def __init__(self, crash_at: Collection[int]) -> None:
        self.world = World(crash_at)

    @property
    def effects(self) -> Effects:
        return self.world.effects

    @property
    def crashes(self) -> Sequence[str]:
        return self.world.crashes

    def install(self, engine: Engine[Any], path: Path, reference: Reference | None) -> None:
        world, store = self.world, engine.log

        def start(client: Client) -> PlayedWorker:
            return PlayedWorker(client, store, world)

        log = ClientLog(store, world)
        install(engine, Client(engine, log=log, store=store, world=world, start=start, reference=reference))

    async def close(self) -> None:
        """Nothing is held."""
