"""The harness that plays crashes, and a worker that is killed by kill -9 at every boundary.

What is crashed, and is not hurt, stands in test_crash_scenarios.py.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.engine.crash_scenarios import REFUND, triage

from batonlog.engine import (
    Agent,
    Engine,
    Tool,
    ToolContext,
    tool,
)
from batonlog.engine import decide as decisions
from batonlog.engine.testing import ScriptedModel, crash_everywhere, function_call
from batonlog.events import Record, RunResumed, SQLiteLog, ToolCalled, ToolReturned, UsageError
from batonlog.projections import model_history, session_history, usage
from batonlog.projections.state import run_state

WORKER = Path(__file__).with_name("kill_worker.py")

# -- played crashes


async def test_a_context_outlives_the_crash_with_its_caller() -> None:
    @tool(idempotent=True)
    async def greet(context: ToolContext[str]) -> str:
        return f"Hello, {context.context}."

    async def scenario(path: str) -> None:
        agent = Agent[str]("greeter", tools=[greet])
        with ScriptedModel(function_call(greet, {}), "Greeted.") as model:
            async with Engine(path, agents=[agent], model=model) as engine:
                await engine.run("hi", session="cust-42", context="Li")

    assert not (await crash_everywhere(scenario)).wrong_logs


async def test_what_is_reported_to_the_model_as_unknown_is_not_wrong() -> None:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        return "sent"

    send = Tool("send", call, on_unknown="report")

    async def scenario(path: str) -> None:
        with ScriptedModel(function_call(send, {}), "Sent.") as model:
            async with Engine(path, agents=[Agent("sender", tools=[send])], model=model) as engine:
                await engine.run("send it", session="cust-42")

    report = await crash_everywhere(scenario)
    assert report.wrong_logs == report.repeated_effects == ()


# -- what the harness finds


async def test_a_tool_that_only_says_that_it_is_idempotent_is_found_out() -> None:
    async def scenario(path: str) -> None:
        counted = 0

        @tool(idempotent=True)
        async def count() -> int:
            nonlocal counted
            counted += 1
            return counted

        with ScriptedModel(function_call(count, {}), "Counted.") as model:
            async with Engine(path, agents=[Agent("counter", tools=[count])], model=model) as engine:
                await engine.run("count", session="cust-42")

    report = await crash_everywhere(scenario)
    assert report.wrong_logs
    assert all(
        "crashed when count was done" in wrong or "before tool.returned" in wrong
        for wrong in report.wrong_logs
    )


async def test_an_engine_that_repeats_effects_in_silence_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "_after_loss", lambda call, offer: None)

    async def scenario(path: str) -> None:
        with ScriptedModel(REFUND, "Refunded.") as model:
            async with Engine(path, agents=[triage], model=model) as engine:
                await engine.run("refund", session="cust-42")

    report = await crash_everywhere(scenario)
    assert report.repeated_effects
    assert all("issue_refund ran 2 times" in repeated for repeated in report.repeated_effects)


async def test_an_engine_that_loses_results_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def abandon(call: Any, offer: object) -> Any:
        return decisions.abandoned(call, "cancelled", "lost")

    monkeypatch.setattr(decisions, "_after_loss", abandon)

    async def scenario(path: str) -> None:
        with ScriptedModel(REFUND, "Refunded.") as model:
            async with Engine(path, agents=[triage], model=model) as engine:
                await engine.run("refund", session="cust-42")

    assert any("'lost'" in wrong for wrong in (await crash_everywhere(scenario)).wrong_logs)


async def test_a_scenario_that_does_something_else_each_time_is_refused() -> None:
    said = iter(("one", "another"))

    async def scenario(path: str) -> None:
        async with Engine(path, agents=[triage], model=ScriptedModel(next(said))) as engine:
            await engine.run("hi", session="cust-42")

    with pytest.raises(UsageError, match="does not do the same twice"):
        await crash_everywhere(scenario)


async def test_a_scenario_that_records_elsewhere_is_refused() -> None:
    async def scenario(path: str) -> None:
        async with Engine("memory:", agents=[triage], model=ScriptedModel("Hello.")) as engine:
            await engine.run("hi", session="cust-42")

    with pytest.raises(UsageError, match="recorded nothing"):
        await crash_everywhere(scenario)


async def test_what_a_scenario_raises_by_itself_is_raised() -> None:
    async def scenario(path: str) -> None:
        raise LookupError("my own fault")

    with pytest.raises(LookupError, match="my own fault"):
        await crash_everywhere(scenario)


# -- kill -9

pytest_killed = pytest.mark.skipif(not hasattr(os, "fork"), reason="the worker forks, and this system cannot")


@dataclass(frozen=True)
class Killed:
    """A log whose worker was killed, and what the first restart came to."""

    where: str
    status: str
    waiting: tuple[tuple[str, ...], ...]
    path: Path

    @property
    def ledger(self) -> list[tuple[str, ...]]:
        """What the world has seen: begun or done, tool, idempotency key."""
        ledger = self.path.with_suffix(".ledger")
        return [tuple(line.split()) for line in ledger.read_text().splitlines()] if ledger.exists() else []

    def begun(self) -> Counter[str]:
        return Counter(name for what, name, _ in self.ledger if what == "begun")

    async def records(self) -> tuple[Record, ...]:
        async with SQLiteLog(self.path) as log:
            return await log.records("cust-42")

    async def left(self) -> tuple[Record, ...]:
        """What the killed worker left."""
        records = await self.records()
        resumed = [n for n, record in enumerate(records) if isinstance(record.event, RunResumed)]
        return records[: resumed[0]] if resumed else records


def work(command: str, kind: str, folder: Path) -> list[dict[str, Any]]:
    """Run the worker; return what it and its children told."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(WORKER), command, kind, str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def killed_everywhere(kind: str, folder: Path) -> tuple[list[Killed], Killed]:
    """Kill a worker at every boundary; return the logs, and the one of the worker that got through."""
    *told, through = work("crash", kind, folder)
    pairs = zip(told[::2], told[1::2], strict=True)
    return [_killed(killed["killed"], restarted, folder) for killed, restarted in pairs], _killed(
        "", through, folder
    )


def _killed(where: str, told: dict[str, Any], folder: Path) -> Killed:
    return Killed(where, told["status"], tuple(map(tuple, told["waiting"])), folder / told["log"])


def as_told(records: Sequence[Record]) -> Any:
    """Both histories and the usage, without the refs: a recovery's own events shift versions."""
    return (
        [(item.agent, item.data) for item in session_history(records)],
        [(item.agent, item.data) for item in model_history(records)],
        usage(records),
        run_state(records).phase,
    )


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory where that can be: what kills a process leaves what it has written."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="batonlog-killed-", dir=in_memory) as made:
        for kind in ("idempotent", "plain", "lives"):
            Path(made, kind).mkdir()
        yield Path(made)


@pytest.fixture(scope="module")
def idempotent(folder: Path) -> tuple[list[Killed], Killed]:
    return killed_everywhere("idempotent", folder / "idempotent")


@pytest.fixture(scope="module")
def plain(folder: Path) -> tuple[list[Killed], Killed]:
    return killed_everywhere("plain", folder / "plain")


@pytest_killed
def test_a_worker_is_killed_around_and_inside_every_append_and_effect(
    idempotent: tuple[list[Killed], Killed], plain: tuple[list[Killed], Killed]
) -> None:
    for (killed, _), effects in ((idempotent, 4), (plain, 5)):
        kinds = Counter(one.where.partition(" ")[0] for one in killed)
        transactions = sum("transaction" in one.where for one in killed)
        asked = sum("is asked" in one.where for one in killed)
        assert transactions >= 7
        assert asked == 5
        assert sum("was done" in one.where for one in killed) == effects
        assert sum("in the middle of" in one.where for one in killed) == transactions + effects
        assert kinds["before"] == transactions + effects
        assert kinds["after"] == transactions


@pytest_killed
async def test_with_idempotent_tools_both_histories_end_as_if_nothing_had_happened(
    idempotent: tuple[list[Killed], Killed],
) -> None:
    killed, through = idempotent
    expected = as_told(await through.records())
    for one in killed:
        assert one.status == "completed", one
        assert as_told(await one.records()) == expected, one.where


@pytest_killed
async def test_no_tool_whose_return_was_recorded_runs_again(
    idempotent: tuple[list[Killed], Killed], plain: tuple[list[Killed], Killed]
) -> None:
    for killed, _ in (idempotent, plain):
        for one in killed:
            left = await one.left()
            names = {
                record.event.call: record.event.name
                for record in left
                if isinstance(record.event, ToolCalled)
            }
            returned = [names[record.event.call] for record in left if isinstance(record.event, ToolReturned)]
            assert [one.begun()[name] for name in returned] == [1] * len(returned), one.where


@pytest_killed
async def test_a_tool_that_runs_again_has_the_key_that_it_had(
    idempotent: tuple[list[Killed], Killed],
) -> None:
    killed, _ = idempotent
    for one in killed:
        keys = {(name, key) for _, name, key in one.ledger}
        assert len(keys) == 4
        assert len({name for name, _ in keys}) == 4
        assert max(one.begun().values()) <= 2, one.where


@pytest_killed
async def test_else_the_run_waits_for_a_word_on_exactly_the_calls_whose_outcome_is_unknown(
    plain: tuple[list[Killed], Killed],
) -> None:
    killed, _ = plain
    waited = 0
    for one in killed:
        in_flight = [call for call in run_state(await one.left()).open_calls() if call.state == "called"]
        assert one.waiting == tuple((str(call.ref), "unknown", call.name) for call in in_flight), one.where
        assert one.status == ("paused" if in_flight else "completed"), one.where
        waited += bool(in_flight)
    assert waited >= 20


OUTPUTS = {
    "get_user_profile": {"name": "Li", "tier": "gold"},
    "get_order": {"order": "7", "paid": 120},
    "check_policy": "refundable",
    "issue_refund": "refund r-1 issued",
}


@pytest_killed
async def test_with_a_persons_word_it_ends_as_if_nothing_had_happened(
    plain: tuple[list[Killed], Killed],
) -> None:
    killed, through = plain
    before = {one.path: one.begun() for one in killed}
    for one in killed:
        async with SQLiteLog(one.path) as log, Engine(log) as person:
            for call, _, name in one.waiting:
                # It is known to have happened, by the ledger; or it never did, and may.
                if before[one.path][name] and name in OUTPUTS:
                    await person.settle("cust-42", call, OUTPUTS[name], by="anna")
                else:
                    await person.approve("cust-42", call, by="anna")
    work("resume", "plain", through.path.parent)
    expected = as_told(await through.records())
    for one in killed:
        assert as_told(await one.records()) == expected, one.where
        for name, times in one.begun().items():
            # Only a transfer's callback is run twice, where a person let it.
            assert times == 1 or (name not in OUTPUTS and times == 2 and before[one.path][name]), one.where


@pytest_killed
async def test_however_often_workers_die_the_run_gets_through(
    idempotent: tuple[list[Killed], Killed], folder: Path
) -> None:
    *lives, last = work("lives", "idempotent", folder / "lives")
    assert len(lives) >= 10
    assert last["status"] == "completed"
    async with SQLiteLog(folder / "lives" / "lives.db") as log:
        records = await log.records("cust-42")
    assert as_told(records) == as_told(await idempotent[1].records())
