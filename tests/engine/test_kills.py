"""The harness that kills the processes that work for a scenario: where it kills, what it finds, what it refuses."""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.engine.crash_scenarios import (
    LOOKUPS,
    REFUND,
    SESSION,
    call,
    check_policy,
    get_user_profile,
    issue_refund,
    notify,
    triage,
)

from batonlog.engine import Agent, Engine, RunFailedError, RunResult, ToolContext, handoff, tool
from batonlog.engine import decide as decisions
from batonlog.engine.sessions import Job, Sessions
from batonlog.engine.testing import ScriptedModel, _crash_kills, crash_everywhere, kill_at_random
from batonlog.engine.testing._crash_kills import Fate, HangsError, Killing, Span
from batonlog.engine.testing._crash_link import Raised
from batonlog.engine.testing._crash_passes import CrashReport, Trial, place_for_logs
from batonlog.events import ConflictError, RunCancelled, RunResumed, SQLiteLog, UsageError
from batonlog.events.lifecycle import STOPPED
from batonlog.projections import messages_only
from batonlog.projections.state import State, run_state

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


specialist = Agent("specialist", tools=[issue_refund])
clerk = Agent(
    "clerk",
    tools=[get_user_profile, check_policy],
    handoffs=[handoff(specialist, on_handoff=notify, input_filter=messages_only)],
)

OUTPUTS = {"issue_refund": "refund r-1 issued", "check_policy": "refundable"}


async def whole(
    path: str, speak: Callable[[Engine[object], RunResult], Awaitable[object]] | None = None
) -> None:
    """Tools that are idempotent and not, at once and by themselves, and a handoff that has an effect."""
    at_once = [call(get_user_profile, user="li"), call(check_policy, order="7")]
    model = ScriptedModel(at_once, call(specialist), REFUND, "Refunded.")
    async with Engine(path, agents=[clerk], model=model) as engine:
        result = await engine.run("refund", session=SESSION)
        while result.status == "paused" and speak is not None:
            await speak(engine, result)
            result = await engine.resume(SESSION)
        assert result.final_output == "Refunded."


async def refunds(path: str) -> None:
    """Three refunds, one after the other: most kills hit one of them."""
    with ScriptedModel(REFUND, REFUND, REFUND, "Refunded.") as model:
        async with Engine(path, agents=[Agent("a", tools=[issue_refund])], model=model) as engine:
            assert (await engine.run("refund", session=SESSION)).final_output == "Refunded."


# -- at every place


class Fated(Killing):
    """A pass whose lives end at these places, one each; those after them in peace."""

    def __init__(self, places: Iterable[int], spans: list[Span]) -> None:
        super().__init__(None, spans)
        self._places = iter(places)

    def fate(self) -> Fate:
        return Fate(kill_at=next(self._places, None))


class Alone(Fated):
    """There is no person who says what became of interrupted calls."""

    @property
    def crashed(self) -> bool:
        return False


async def test_a_kill_at_any_place_leaves_exactly_what_was_in_flight_to_a_person_and_hurts_nothing() -> None:
    where: list[str] = []
    waited = Counter[int]()
    one = Killing(None, [])

    async def speak(engine: Engine[object], result: RunResult) -> None:
        """Be the person: what took place is told, what did not may be run."""
        for open_call in result.open_calls:
            if one.effects.took_place(SESSION, open_call.call) and open_call.tool in OUTPUTS:
                await engine.settle(SESSION, open_call.call, OUTPUTS[open_call.tool], by="anna")
            else:
                one.allow(SESSION, open_call.call)
                await engine.approve(SESSION, open_call.call, by="anna")

    async def see(engine: Engine[object], result: RunResult) -> None:
        records = await engine.log.records(SESSION)
        resumed = next(n for n, record in enumerate(records) if isinstance(record.event, RunResumed))
        in_flight = [left for left in run_state(records[:resumed]).open_calls() if left.state == "called"]
        expected = [(left.ref, "unknown") for left in in_flight if left.name != "get_user_profile"]
        assert [(open_call.call, open_call.why) for open_call in result.open_calls] == expected
        waited[len(expected)] += 1
        await speak(engine, result)

    async def scenario(path: str) -> None:
        await whole(path, see)

    async with place_for_logs() as folder:
        trial = Trial(scenario, folder)
        await trial.undisturbed(one, Killing(None, []))
        for place in count():
            one = Alone([place], [])
            crashes = await trial.crash(f"{place}", one)
            if not crashes:
                break
            where += crashes
        report = trial.report(len(where))
    assert not report.wrong_logs, str(report)
    assert not report.repeated_effects, str(report)
    assert any("get_user_profile" in effect for effect in report.repeated_idempotent)
    assert waited[1] >= 6
    assert not waited[0]
    transfer = handoff(specialist).tool_name
    for effect in ("get_user_profile", "check_policy", "issue_refund", f"the callback of {transfer}"):
        assert f"before {effect} began" in where
        assert f"in the middle of {effect.removeprefix('the callback of ')}" in where
        assert f"when {effect} was done, and nobody had heard" in where
    for agent in ("clerk", "specialist"):
        assert f"before scripted was asked by {agent}" in where
        assert f"when scripted had answered {agent}, and nobody had heard" in where
    kinds = Counter(one.partition(" ")[0] for one in where)
    assert sum("transaction" in one for one in where) >= 7
    assert kinds["after"] >= 7
    assert kinds["before"] >= 7 + 4 + 4


async def test_however_often_workers_die_the_run_gets_through() -> None:
    """Each life ends one place later than the one before."""
    async with place_for_logs() as folder:
        trial = Trial(whole, folder)
        await trial.undisturbed(Killing(None, []), Killing(None, []))
        crashes = await trial.crash("lives", Fated(count(), []))
        report = trial.report(len(crashes))
    assert len(crashes) >= 10
    assert not report.wrong_logs, str(report)
    assert not report.repeated_effects, str(report)


# -- what it finds


async def test_an_engine_that_repeats_effects_in_silence_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "_after_loss", lambda call, offer: None)
    report = await kill_at_random(refunds, times=12, seed=1)
    assert any("issue_refund ran 2 times" in repeated for repeated in report.repeated_effects)


async def test_an_engine_that_loses_results_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def abandon(call: Any, offer: object) -> Any:
        return decisions.abandoned(call, "cancelled", "lost")

    monkeypatch.setattr(decisions, "_after_loss", abandon)
    report = await kill_at_random(refunds, times=12, seed=1)
    assert any("'lost'" in wrong for wrong in report.wrong_logs)


async def test_an_engine_that_repeats_with_another_key_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(self: ToolContext) -> str:
        return f"{self.session}/{self.call}/{self.attempt}"

    async def scenario(path: str) -> None:
        model = ScriptedModel(LOOKUPS, "Looked up.")
        async with Engine(path, agents=[triage], model=model) as engine:
            await engine.run("look me up", session=SESSION)

    report = await crash_everywhere(scenario)
    assert report.repeated_idempotent
    assert not report.repeated_effects
    monkeypatch.setattr(ToolContext, "idempotency_key", property(key))
    report = await crash_everywhere(scenario)
    assert not report.repeated_idempotent
    assert all("with another key" in repeated for repeated in report.repeated_effects)
    assert any("get_order" in repeated for repeated in report.repeated_effects)


async def test_what_tools_keep_in_memory_is_lost_and_that_is_found_out() -> None:
    async def scenario(path: str) -> None:
        kept: list[str] = []

        @tool(idempotent=True)
        async def remember() -> str:
            kept.append("order 7")
            return "I will"

        @tool(idempotent=True)
        async def recall() -> str:
            return ", ".join(sorted(set(kept)))

        agent = Agent("a", tools=[remember, recall])
        with ScriptedModel(call(remember), call(recall), "There.") as model:
            async with Engine(path, agents=[agent], model=model) as engine:
                await engine.run("which order?", session=SESSION)

    assert not (await crash_everywhere(scenario)).wrong_logs
    async with place_for_logs() as folder:
        trial = Trial(scenario, folder)
        await trial.undisturbed(Killing(None, []), Killing(None, []))
        place = 0
        while await trial.crash(f"{place}", Fated([place], [])):
            place += 3  # recall begins some places after remember has returned
        report = trial.report(place)
    assert any("'output': ''" in wrong for wrong in report.wrong_logs), str(report)


async def test_an_engine_that_recovers_only_once_is_found_out_by_a_second_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resumption = Sessions._resumption

    def once(self: Sessions, session: str, state: State, job: Job) -> Any:
        """Whoever takes up what was taken up before makes nothing of it."""
        first = resumption(self, session, state, job)
        if state.phase != STOPPED and state.run is not None and state.run.resumed > state.run.started:
            return [*(first or ()), RunCancelled(by="", reason="")] if not state.open_calls() else first
        return first

    async def scenario(path: str) -> None:
        model = ScriptedModel("One.")
        async with Engine(path, agents=[triage], model=model) as engine:
            await engine.run("hello", session=SESSION)

    monkeypatch.setattr(Sessions, "_resumption", once)
    assert not (await crash_everywhere(scenario)).wrong_logs
    report = await crash_everywhere(scenario, pairs="all")
    assert report.wrong_logs
    assert all(" and " in wrong for wrong in report.wrong_logs)


# -- what it refuses


async def test_a_scenario_that_drives_nothing_is_refused() -> None:
    async def scenario(path: str) -> None:
        async with Engine(path) as engine:
            await engine.send("hello", session=SESSION)

    with pytest.raises(UsageError, match="drives nothing"):
        await kill_at_random(scenario)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="which files are open cannot be seen here")
async def test_a_scenario_that_holds_the_file_open_is_refused() -> None:
    async def scenario(path: str) -> None:
        async with SQLiteLog(path) as log, Engine(log, agents=[triage], model=ScriptedModel("Hi.")) as engine:
            await log.head(SESSION)
            await engine.run("hello", session=SESSION)

    with pytest.raises(UsageError, match="holds it open"):
        await kill_at_random(scenario)


async def test_a_scenario_over_another_log_is_refused() -> None:
    async def scenario(path: str) -> None:
        async with Engine("memory:", agents=[triage], model=ScriptedModel("Hi.")) as engine:
            await engine.run("hello", session=SESSION)

    with pytest.raises(UsageError, match="needs engines over the file"):
        await kill_at_random(scenario)


async def test_a_system_that_cannot_fork_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(UsageError, match="use crash_everywhere"):
        await kill_at_random(whole)


async def test_what_a_run_raises_in_its_process_is_raised_by_the_scenario() -> None:
    async def scenario(path: str) -> None:
        async with Engine(path, agents=[triage], model=ScriptedModel(OSError("no line"))) as engine:
            await engine.run("hello", session=SESSION)

    with pytest.raises(RunFailedError, match="no line") as raised:
        await kill_at_random(scenario)
    assert raised.value.session == SESSION


async def test_a_process_that_hangs_is_named_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[int] = []
    fork = os.fork

    def noted() -> int:
        if (child := fork()) != 0:
            children.append(child)
        return child

    @tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    async def scenario(path: str) -> None:
        agent = Agent("a", tools=[hang])
        async with Engine(path, agents=[agent], model=ScriptedModel(call(hang))) as engine:
            await engine.run("hello", session=SESSION)

    monkeypatch.setattr(os, "fork", noted)
    monkeypatch.setattr(_crash_kills, "PATIENCE", 0.5)
    with pytest.raises(HangsError, match=f"drives {SESSION} has done nothing for .* tool='hang'"):
        await kill_at_random(scenario)
    (child,) = children
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


# -- what is told


def test_an_error_is_told_with_its_fields_and_its_cause() -> None:
    error = ConflictError(SESSION, expected=7, actual=9)
    error.__cause__ = ValueError("why")
    told = Raised.of(error).error()
    assert type(told) is ConflictError
    assert (str(told), vars(told)) == (str(error), vars(error))
    assert isinstance(told.__cause__, ValueError)


def test_an_error_that_cannot_be_pickled_is_told_by_its_name() -> None:
    class OwnError(Exception):
        pass

    told = Raised.of(OwnError("mine")).error()
    assert isinstance(told, RuntimeError)
    assert str(told) == "OwnError: mine"


def test_a_report_is_told_in_words() -> None:
    report = CrashReport(
        boundaries=7,
        wrong_logs=tuple(f"log {n}" for n in range(12)),
        repeated_effects=("refund ran 2 times",),
        repeated_idempotent=("get_order ran again",),
    )
    told = str(report).splitlines()
    assert told[0] == "crashed 7 times"
    assert "  wrong logs: 12" in told
    assert "    log 9" in told
    assert "    log 10" not in told
    assert "    and 2 more" in told
    assert told[-3:-1] == ["  repeated effects: 1", "    refund ran 2 times"]
    assert told[-1].endswith("with the key that it had: 1")
