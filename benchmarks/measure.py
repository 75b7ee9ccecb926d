"""Ratios within one run: two things measured in turn, so that a noisy machine is noisy to both."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """One line of the table."""

    what: str
    ours: str
    theirs: str
    ratio: float
    wanted: str
    met: bool | None
    """None where there is no goal."""


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU of this process, all threads."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def wall(work: Callable[[], object]) -> float:
    """Seconds on the clock."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def compare(
    ours: Callable[[], float], theirs: Callable[[], float], *, repetitions: int
) -> tuple[float, float, float]:
    """Return the medians of both, and the median of the ratios of neighbours."""
    pairs = [(ours(), theirs()) for _ in range(repetitions)]
    ratios: Sequence[float] = [a / b for a, b in pairs]
    return median(a for a, _ in pairs), median(b for _, b in pairs), median(ratios)


def at_most(what: str, ours: float, theirs: float, ratio: float, goal: float, unit: str, scale: float) -> Row:
    """A row whose ratio should be small."""
    return Row(
        what, f"{ours * scale:.3g} {unit}", f"{theirs * scale:.3g} {unit}", ratio, f"<= {goal}", ratio <= goal
    )


def at_least(
    what: str, ours: float, theirs: float, ratio: float, goal: float, unit: str, scale: float
) -> Row:
    """A row whose ratio should be large; `ours` and `theirs` are rates."""
    return Row(
        what, f"{ours * scale:.3g} {unit}", f"{theirs * scale:.3g} {unit}", ratio, f">= {goal}", ratio >= goal
    )
