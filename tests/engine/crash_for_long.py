"""Crash and kill all scenarios for as long as one likes: `make crashes`.

    python -m tests.engine.crash_for_long --seconds 600 --seed 7

First every boundary of every scenario once, with pairs of them; then rounds of random crashes and
kills, each with a new seed, until the time is up: one round at the least. Exits with 1 if anything was wrong.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.engine.airline import DATA, conversations, schemas_of
from tests.engine.crash_scenarios import SCENARIOS, Scenario, airline, the_demo, twenty

from batonlog.engine.testing import CrashReport, crash_at_random, crash_everywhere, kill_at_random

COLUMNS = ("scenario", "boundaries", "crashes", "kills", "wrong logs", "repeats, same key", "repeats, others")

OPENS_ITSELF = "batonlog demo"
"""The one scenario that holds the file open: processes that use it cannot be forked."""


@dataclass
class Found:
    """What all rounds have shown of one scenario."""

    boundaries: int = 0
    crashes: int = 0
    kills: int = 0
    wrong: list[str] = field(default_factory=list)
    idempotent: int = 0
    others: list[str] = field(default_factory=list)

    def add(self, report: CrashReport) -> None:
        self.wrong += report.wrong_logs
        self.idempotent += len(report.repeated_idempotent)
        self.others += report.repeated_effects

    def row(self, name: str) -> tuple[object, ...]:
        return (
            name,
            self.boundaries,
            self.crashes,
            self.kills,
            len(self.wrong),
            self.idempotent,
            len(self.others),
        )


def scenarios() -> dict[str, Scenario]:
    """All of them; the airline's where its data is."""
    found = {**SCENARIOS, OPENS_ITSELF: the_demo(chain=False)}
    if DATA.exists():
        recorded = conversations()
        schemas = schemas_of(recorded)
        found |= {f"airline {one.name}": airline(one, schemas) for one in twenty(recorded)}
    return found


async def crash(seconds: float, kills: int, seed: int, tell: Callable[[str], object]) -> dict[str, Found]:
    """Crash everything, until the time is up and there were so many kills of each; return what that has shown."""
    end = time.monotonic() + seconds
    cast = scenarios()
    found = {name: Found() for name in cast}
    for name, scenario in cast.items():
        report = await crash_everywhere(scenario, pairs=10, seed=seed)
        found[name].boundaries = report.boundaries
        found[name].add(report)
        tell(f"{name}: {report}")
    number = 0
    killable = [name for name in cast if hasattr(os, "fork") and name != OPENS_ITSELF]
    while number == 0 or time.monotonic() < end or any(found[name].kills < kills for name in killable):
        number += 1
        for name, scenario in cast.items():
            crashed = await crash_at_random(scenario, times=20, seed=seed + number)
            found[name].crashes += crashed.boundaries
            found[name].add(crashed)
            if name in killable:
                killed = await kill_at_random(scenario, times=5, seed=seed + number)
                found[name].kills += killed.boundaries
                found[name].add(killed)
    return found


def table(found: dict[str, Found]) -> str:
    """What was found, for people."""
    total = Found()
    for one in found.values():
        total.boundaries += one.boundaries
        total.crashes += one.crashes
        total.kills += one.kills
        total.wrong += one.wrong
        total.idempotent += one.idempotent
        total.others += one.others
    rows = [COLUMNS, *(one.row(name) for name, one in found.items()), total.row("all")]
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if not n else cell.rjust(width) for n, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in texts)
    ]
    faults = [f"WRONG  {name}: {fault}" for name, one in found.items() for fault in one.wrong + one.others]
    return "\n".join(lines + faults)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.crash_for_long", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long, at the least (default 300)")
    parser.add_argument("--kills", type=int, default=0, help="kills of each scenario, at the least")
    parser.add_argument("--seed", type=int, default=0, help="draws places and moments (default 0)")
    parser.add_argument("--verbose", action="store_true", help="tell each scenario's report at once")
    asked = parser.parse_args()
    begun = time.monotonic()
    tell: Callable[[str], object] = print if asked.verbose else lambda text: None
    found = asyncio.run(crash(asked.seconds, asked.kills, asked.seed, tell))
    print(table(found))
    print(f"{time.monotonic() - begun:.0f} s, seed {asked.seed}")
    return 1 if any(one.wrong or one.others for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
