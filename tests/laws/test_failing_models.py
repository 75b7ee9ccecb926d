"""The laws of a model that fails: nothing of it is in any history, and who is asked goes by a few rules.

The rules stand here a second time, as a loop over what the models come to (`Oracle`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.failing import Clock, Shared, down, failed_in, issuers_in
from tests.laws.depth import examples

from batonlog.engine import Agent, Engine, Retries, RunFailedError, tool
from batonlog.engine.testing import function_call
from batonlog.events import MemoryLog, Record, Usage
from batonlog.projections import model_history, session_history, usage
from batonlog.projections.state import run_state

NOTHING = Usage()
NAMES = ("own", "second", "third")


@tool
def look() -> str:
    """Look."""
    return "seen"


CALL = function_call(look, {}, call_id="c")

failures = st.one_of(
    st.just(("down", None)),
    st.just(("never", None)),
    st.sampled_from([0.0, 0.01, 0.4, 3.0, 59.0, 61.0]).map(lambda seconds: ("down", seconds)),
    st.sampled_from([("reset", None), ("slow", None)]),
)
outcomes = st.lists(st.one_of(failures, failures, st.just("call"), st.just("say")), max_size=14)
retries = st.builds(
    Retries,
    attempts=st.integers(1, 4),
    first=st.sampled_from([0, 0.125, 0.5, 3]),
    longest=st.sampled_from([0.25, 8]),
)


def step_of(outcome: Any) -> Any:
    match outcome:
        case "say":
            return "said"
        case "call":
            return CALL
        case ("never", _):
            return down(again=False)
        case ("reset", _):
            return ConnectionResetError("reset")
        case ("slow", _):
            return TimeoutError("slow")
        case ("down", seconds):
            return down(seconds)
    raise AssertionError(outcome)


@dataclass
class Oracle:
    """Who is asked, and after which waits at least and at most: a loop over what the models come to."""

    outcomes: Sequence[Any]
    retries: Retries
    fallbacks: int
    asked: list[str] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Of the failures after which the same model is asked again."""
    failed: int = 0
    """Runs that end in failure."""

    def play(self) -> None:
        now = tries = 0
        for outcome in self.outcomes:
            self.asked.append(NAMES[now])
            if outcome in ("say", "call"):
                tries = 0
                now = 0 if outcome == "say" else now  # the next run begins with the own model
                continue
            kind, asked = outcome
            if kind != "never" and (asked or 0) <= 60 and tries + 1 < self.retries.attempts:
                backoff = min(self.retries.first * 2**tries, self.retries.longest)
                self.waits.append((max(asked or 0, backoff / 2), max(asked or 0, backoff)))
                tries += 1
            elif now < self.fallbacks:
                now, tries = now + 1, 0
            else:
                now, tries = 0, 0
                self.failed += 1
        self.asked.append(NAMES[now])  # "done"


async def play(
    outcomes: Sequence[Any], retries: Retries, fallbacks: int
) -> tuple[Shared, tuple[Record, ...], int, int, list[float]]:
    """Run until the outcomes are used up, and one answer more; resume what fails."""
    models = Shared(*map(step_of, outcomes), tail=True)
    own, *others = (models.model(name) for name in NAMES[: fallbacks + 1])
    log, clock, failed, runs = MemoryLog(), Clock(), 0, 0
    with patch("batonlog.engine.effects.pause", clock):
        async with Engine(
            log, agents=[Agent("a", tools=[look])], model=own, fallback=others, retries=retries
        ) as engine:
            while not ended_with_done(models):
                runs += 1
                try:
                    await engine.run(f"message {runs}", session="s")
                except RunFailedError:
                    failed += 1 + await resumed(engine)
    return models, await log.records("s"), failed, runs, clock.waits


def ended_with_done(models: Shared) -> bool:
    """Whether somebody was asked after the script was over."""
    return len(models.asked) > models.scripted


async def resumed(engine: Engine[Any]) -> int:
    """Resume until it ends; how often it failed again."""
    failed = 0
    while True:
        try:
            await engine.resume("s")
            return failed
        except RunFailedError:
            failed += 1


def without_failures(outcomes: Sequence[Any]) -> list[Any]:
    return [one for one in outcomes if one in ("say", "call")]


@examples(150, many=4000)
@given(outcomes, retries, st.integers(0, 2))
def test_who_is_asked_and_when_goes_by_the_rules(
    outcomes: list[Any], retries: Retries, fallbacks: int
) -> None:
    oracle = Oracle(outcomes, retries, fallbacks)
    oracle.play()

    models, records, failed, _, waits = asyncio.run(play(outcomes, retries, fallbacks))

    assert models.names == issuers_in(records) == oracle.asked
    assert failed == oracle.failed
    delays = [event.delay for event in failed_in(records) if event.retried and not event.passed_on]
    assert len(delays) == len(oracle.waits)
    assert all(least <= delay <= most for delay, (least, most) in zip(delays, oracle.waits, strict=True))
    assert waits == [delay for delay in delays if delay]
    assert all(not event.delay for event in failed_in(records) if event.passed_on or not event.retried)


@examples(100, many=4000)
@given(outcomes, retries, st.integers(0, 2))
def test_nothing_of_a_failure_is_in_a_history_nor_in_the_usage(
    outcomes: list[Any], retries: Retries, fallbacks: int
) -> None:
    _, records, _, runs, _ = asyncio.run(play(outcomes, retries, fallbacks))
    _, calm, _, same, _ = asyncio.run(play(without_failures(outcomes), retries, fallbacks))

    assert runs == same
    for history in (session_history, model_history):
        assert told(history(records).data) == told(history(calm).data)
    texts = [item.text for item in session_history(records) if item.role == "user"]
    assert texts == [f"message {n + 1}" for n in range(runs)]
    assert sum(usage(records).values(), start=NOTHING) == sum(usage(calm).values(), start=NOTHING)
    requested = sum(record.type == "model.requested" for record in records)
    answered = sum(record.type == "model.responded" for record in records)
    assert requested == answered + len(failed_in(records))
    assert {event.partial for event in failed_in(records)} <= {"half"}
    assert {event.kind for event in failed_in(records)} <= {
        "UnavailableError",
        "ConnectionResetError",
        "TimeoutError",
    }


@examples(60)
@given(outcomes, retries, st.integers(0, 2))
def test_a_state_counts_the_same_from_the_log_alone(
    outcomes: list[Any], retries: Retries, fallbacks: int
) -> None:
    """And at rest nothing is left of it but what the next run forgets."""
    _, records, _, _, _ = asyncio.run(play(outcomes, retries, fallbacks))
    tries: list[int] = []
    for record in records:
        state = run_state(records, at=record.version)
        if record.type == "model.failed":
            tries.append(state.tries)
        if record.type in ("run.started", "run.resumed"):
            assert (state.tries, state.delay, state.given_up) == (0, 0.0, frozenset())
        if record.type == "model.requested":
            assert state.request is not None
            assert record.event.issuer not in state.given_up  # type: ignore[attr-defined]
    assert all(count < retries.attempts for count in tries)


def told(items: Sequence[Any]) -> list[Any]:
    """Items without the ids of calls."""
    return [{key: value for key, value in item.items() if key != "call_id"} for item in items]
