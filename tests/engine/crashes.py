"""Crash all scenarios at random, for as long as one likes, and tell what came of it.

    python -m tests.engine.crashes [--seconds 300] [--kills N] [--seed 0] [--only NAME]

Round by round each scenario is crashed at places and pairs of places that are drawn, and its
processes are killed. Ends with status 1 if anything was wrong. The same seed draws the same.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from time import monotonic

from tests.engine.airline import DATA, conversations, schemas_of
from tests.engine.crash_scenarios import SCENARIOS, Scenario, airline, twenty

from batonlog.engine.testing import CrashReport, crash_everywhere, kill_at_random

PLACES, PAIRS, KILLS = 4, 4, 2
"""Of each scenario, in one round."""

_ROW = "{:48} {:>7} {:>6} {:>6} {:>9} {:>9} {:>8}"


@dataclass
class Row:
    """What came of one scenario."""

    crashes: int = 0
    kills: int = 0
    wrong: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    idempotent: int = 0
    seconds: float = 0

    def add(self, report: CrashReport) -> None:
        self.wrong += report.wrong_logs
        self.repeated += report.repeated_effects
        self.idempotent += len(report.repeated_idempotent)

    def told(self, name: str) -> str:
        counted = (self.crashes, self.kills, len(self.wrong), self.idempotent, len(self.repeated))
        return _ROW.format(name, *counted, f"{self.seconds:.0f}")


def all_scenarios() -> dict[str, Scenario]:
    scenarios = dict(SCENARIOS)
    if DATA.exists():
        recorded = conversations()
        schemas = schemas_of(recorded)
        scenarios |= {f"airline {one.name}": airline(one, schemas) for one in twenty(recorded)}
    return scenarios


async def try_all(
    scenarios: Mapping[str, Scenario], *, seconds: float, kills: int | None, seed: int
) -> dict[str, Row]:
    """Crash them, round by round, for so many seconds, or until so many processes were killed."""
    rows = {name: Row() for name in scenarios}
    begun = monotonic()

    def is_over() -> bool:
        if kills is not None:
            return sum(row.kills for row in rows.values()) >= kills
        return monotonic() - begun >= seconds

    for turn in count(seed):
        for name, scenario in scenarios.items():
            if is_over():
                return rows
            row, since = rows[name], monotonic()
            report = await crash_everywhere(scenario, places=PLACES, pairs=PAIRS, seed=turn)
            row.crashes += report.boundaries
            row.add(report)
            if hasattr(os, "fork"):
                report = await kill_at_random(scenario, times=KILLS, seed=turn)
                row.kills += report.boundaries
                row.add(report)
            row.seconds += monotonic() - since
            if sys.stderr.isatty():
                print(f"round {turn - seed + 1}: {name}", end="\033[K\r", file=sys.stderr)
    raise AssertionError("unreachable")


def tell(rows: Mapping[str, Row], say: Callable[[str], object] = print) -> bool:
    """Print what came of it; return whether nothing was wrong."""
    whole = Row()
    say(_ROW.format("", "", "", "wrong", "repeated,", "repeated,", ""))
    say(_ROW.format("scenario", "crashes", "kills", "logs", "same key", "others", "seconds"))
    rows = {name: row for name, row in rows.items() if row.crashes}
    for name, row in rows.items():
        say(row.told(name))
        whole.crashes += row.crashes
        whole.kills += row.kills
        whole.wrong += [f"{name}: {wrong}" for wrong in row.wrong]
        whole.repeated += [f"{name}: {repeated}" for repeated in row.repeated]
        whole.idempotent += row.idempotent
        whole.seconds += row.seconds
    say(whole.told(f"{len(rows)} scenarios"))
    for fault in (*whole.wrong, *whole.repeated):
        say(fault)
    return not whole.wrong and not whole.repeated


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.crashes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long, about")
    parser.add_argument(
        "--kills", type=int, default=None, help="until so many processes were killed, instead"
    )
    parser.add_argument("--seed", type=int, default=0, help="what is drawn")
    parser.add_argument("--only", default="", help="scenarios with this in their names")
    given = parser.parse_args()
    chosen = {name: one for name, one in all_scenarios().items() if given.only in name}
    if not chosen:
        parser.error(f"no scenario has {given.only!r} in its name")
    rows = asyncio.run(try_all(chosen, seconds=given.seconds, kills=given.kills, seed=given.seed))
    sys.exit(0 if tell(rows) else 1)


if __name__ == "__main__":
    main()
