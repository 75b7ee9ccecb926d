"""Which run takes an input: the one that was open when it was added, or the next one."""

from collections.abc import Callable
from typing import TypeAlias

from batonlog.projections.state import State

Finder: TypeAlias = Callable[[State], int | None]
"""Finds a run in a state: the version of its start; None before it has begun."""


def run_with(state: State, key: str) -> Finder | None:
    """Find the run with this key, or that takes the input with this key; None if there is neither."""
    for run_id, _, started in state.runs:
        if run_id == key:
            return _at(started)
    for known, at, goes_to in state.inputs:
        if known == key:
            return taker_of(at, goes_to)
    return None


def _at(started: int) -> Finder:
    return lambda state: started


def taker_of(at: int, goes_to: str) -> Finder:
    """Find the run that takes the input at that version."""

    def find(state: State) -> int | None:
        starts = [started for _, _, started in state.runs]
        if goes_to == "turn":
            return max((started for started in starts if started < at), default=None)
        return min((started for started in starts if started > at), default=None)

    return find


def next_key(state: State) -> str | None:
    """Return the key of the first input that waits for the next run, if it has one that no run has."""
    last = state.run.started if state.run is not None else 0
    known = {run_id for run_id, _, _ in state.runs}
    waiting = (key for key, at, goes_to in state.inputs if goes_to == "run" and at > last)
    return next((key for key in waiting if key not in known), None)
