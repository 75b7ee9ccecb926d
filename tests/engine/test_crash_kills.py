"""kill_at_random, on itself: what it finds, what it kills in the middle of, and what becomes of what hangs."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    SessionBusyError,
    ToolContext,
    tool,
)
from batonlog.engine import decide as decisions
from batonlog.engine.testing import (
    CrashReport,
    ScriptedModel,
    _crash_kills,
    _crash_passes,
    assistant_message,
    crash_at_random,
    crash_everywhere,
    function_call,
    kill_at_random,
)
from batonlog.engine.testing._crash_kills import Fate, Killing
from batonlog.engine.testing._crash_passes import Trial, place_for_logs
from batonlog.events import Record, SQLiteLog, UnknownSessionError, UsageError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@tool(idempotent=True)
async def get_order(order: str) -> str:
    """Look up an order."""
    return "a kettle"


@tool
async def issue_refund(order: str) -> str:
    """Pay the money back."""
    return "issued"


clerk = Agent("clerk", tools=[get_order, issue_refund])
LOOK = function_call(get_order, {"order": "7"})
REFUND = function_call(issue_refund, {"order": "7"})


async def look(path: str) -> None:
    with ScriptedModel(LOOK, "It is a kettle.") as model:
        async with Engine(path, agents=[clerk], model=model) as engine:
            await engine.run("What is order 7?", session="cust-42")


async def refund(path: str) -> None:
    with ScriptedModel(REFUND, "Refunded.") as model:
        async with Engine(path, agents=[clerk], model=model) as engine:
            await engine.run("refund order 7", session="cust-42")


# -- what is found


class KilledAt(Killing):
    """The first process of a pass dies at this place; those that follow live."""

    def __init__(self, place: int) -> None:
        super().__init__(None, [])
        self._fates = [Fate(kill_at=place)]

    def fate(self) -> Fate:
        return self._fates.pop() if self._fates else Fate()


async def killed_at(scenario: Any, places: Iterable[int]) -> tuple[list[str], CrashReport]:
    """Kill the first process at each of these places, as far as there are such; where that was, and what it showed."""
    killed: list[str] = []
    async with place_for_logs() as folder:
        trial = Trial(scenario, folder)
        await trial.undisturbed(Killing(None, []), Killing(None, []))
        for place in places:
            crashes = await trial.crash(f"{place}", KilledAt(place))
            if not crashes:
                break
            killed += crashes
        return killed, trial.report(len(killed))


AT_WORK = range(10, 16)
"""Places around the one tool of a run: asserted by the first test."""


async def test_processes_are_killed_around_and_inside_every_append_and_effect() -> None:
    killed, report = await killed_at(look, count())
    assert report.wrong_logs == report.repeated_effects == ()
    appends = killed.count("in the middle of a transaction")
    assert appends == 4
    assert sum(where.startswith("before") and where.endswith("stored") for where in killed) == appends
    assert sum(where.startswith("after") and where.endswith("stored") for where in killed) == appends
    assert sum("scripted" in where for where in killed) == 2 * 2
    assert sum("lease" in where for where in killed) == 2
    at_work = [killed[place] for place in AT_WORK]
    assert at_work[:3] == [
        "before get_order began",
        "in the middle of get_order",
        "when get_order was done, and nobody had heard",
    ]
    assert at_work[4] == "in the middle of a transaction"
    # It runs again where its end was not stored: in four of these places.
    assert [one.split(":")[0] for one in report.repeated_idempotent] == [
        f"crashed {at}" for at in at_work[1:5]
    ]


async def test_a_process_that_is_killed_at_work_repeats_nothing_without_a_persons_word() -> None:
    killed, report = await killed_at(refund, AT_WORK)
    assert len(killed) == len(AT_WORK)
    assert report.wrong_logs == report.repeated_effects == report.repeated_idempotent == ()


async def test_processes_are_killed_at_moments_too() -> None:
    report = await kill_at_random(look, times=8)
    assert report.boundaries >= 8
    assert report.wrong_logs == report.repeated_effects == ()


async def test_a_tool_that_only_says_that_it_is_idempotent_is_found_out_by_kills(tmp_path: Path) -> None:
    passes = 0

    async def scenario(path: str) -> None:
        nonlocal passes
        passes += 1
        counted = tmp_path / str(passes)

        @tool(idempotent=True)
        async def count() -> int:
            with counted.open("a") as file:
                file.write(".")
            return counted.stat().st_size

        with ScriptedModel(function_call(count, {}), "Counted.") as model:
            async with Engine(path, agents=[Agent("counter", tools=[count])], model=model) as engine:
                await engine.run("count", session="cust-42")

    _, report = await killed_at(scenario, AT_WORK)
    assert report.wrong_logs


async def test_an_engine_that_repeats_effects_in_silence_is_found_out_by_kills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "_after_loss", lambda call, offer: None)
    _, report = await killed_at(refund, AT_WORK)
    assert any("issue_refund ran 2 times" in one for one in report.repeated_effects)


async def test_an_engine_that_gives_each_attempt_a_key_of_its_own_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not (await crash_everywhere(look)).repeated_effects
    key = property(lambda context: f"{context.session}/{context.call}/{context.attempt}")
    monkeypatch.setattr(ToolContext, "idempotency_key", key)
    report = await crash_everywhere(look)
    assert all("with another key" in one for one in report.repeated_effects)
    assert len(report.repeated_effects) >= 2
    assert not report.repeated_idempotent


async def test_repeats_of_idempotent_tools_with_their_key_are_told_and_not_wrong() -> None:
    report = await crash_everywhere(look)
    assert report.wrong_logs == report.repeated_effects == ()
    assert len(report.repeated_idempotent) == 2
    assert all("get_order ran again" in one and "same key" in one for one in report.repeated_idempotent)


def test_a_report_can_be_read() -> None:
    report = CrashReport(
        boundaries=7,
        wrong_logs=tuple(f"wrong {n}" for n in range(12)),
        repeated_effects=("twice",),
        repeated_idempotent=("again", "and again"),
    )
    text = str(report)
    assert text.splitlines()[:3] == ["crashed 7 times", "  wrong logs: 12", "    wrong 0"]
    assert "and 2 more" in text
    assert "wrong 10" not in text
    assert "repeated effects: 1\n    twice\n" in text
    assert text.endswith("each with the key that it had: 2")


async def test_random_crashes_are_as_many_as_asked_for_and_come_again_with_their_seed() -> None:
    first, again = [await crash_at_random(look, times=25, seed=3) for _ in range(2)]
    assert first.boundaries >= 25
    assert first.repeated_idempotent == again.repeated_idempotent
    assert first.wrong_logs == first.repeated_effects == ()


# -- a client of processes sees what a client of one process sees


class Waits:
    """A model that waits, the first time that it is asked, until it is told to answer."""

    name = "waits"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        self.asked.set()
        await self.may_answer.wait()
        yield ModelResponse([assistant_message("At last.")])


async def test_one_run_goes_on_at_a_time_and_who_resumes_it_joins() -> None:
    async def scenario(path: str) -> None:
        model = Waits()
        async with Engine(path, agents=[clerk], model=model) as engine:
            run = asyncio.create_task(engine.run("hi", session="cust-42", run_id="r-1"))
            await model.asked.wait()
            with pytest.raises(SessionBusyError) as refused:
                await engine.run("again", session="cust-42")
            assert refused.value.session == "cust-42"
            joined = asyncio.create_task(engine.resume("cust-42"))
            same = asyncio.create_task(engine.run("hi", session="cust-42", run_id="r-1"))
            await asyncio.sleep(0)
            model.may_answer.set()
            results = await asyncio.gather(run, joined, same)
            assert [result.final_output for result in results] == ["At last."] * 3
            assert len({result.run_id for result in results}) == 1

    report = await kill_at_random(scenario, times=2)
    assert report.wrong_logs == report.repeated_effects == ()


async def test_what_a_process_raises_its_client_raises() -> None:
    async def scenario(path: str) -> None:
        async with Engine(path, agents=[clerk], model=ScriptedModel("Hello.")) as engine:
            with pytest.raises(UnknownSessionError, match="no session nobody") as unknown:
                await engine.resume("nobody")
            assert unknown.value.session == "nobody"
            await engine.run("hi", session="cust-42")

    report = await kill_at_random(scenario, times=2)
    assert report.wrong_logs == report.repeated_effects == ()


async def test_an_engine_that_is_closed_stops_its_process_and_the_model_that_it_asked() -> None:
    async def scenario(path: str) -> None:
        model = Waits()
        async with Engine(path, agents=[clerk], model=model) as engine:
            run = asyncio.create_task(engine.run("hi", session="cust-42"))
            await model.asked.wait()
        with pytest.raises(UsageError, match="closed while cust-42 was running"):
            await run
        model.may_answer.set()
        async with Engine(path, agents=[clerk], model=model) as engine:
            assert (await engine.resume("cust-42")).final_output == "At last."

    async with place_for_logs() as folder:
        await Trial(scenario, folder).undisturbed(Killing(None, []), Killing(None, []))


async def test_a_stream_tells_all_records_through_kills() -> None:
    async def scenario(path: str) -> None:
        with ScriptedModel(LOOK, "It is a kettle.") as model:
            async with Engine(path, agents=[clerk], model=model) as engine:
                stream = engine.stream("What is order 7?", session="cust-42")
                followed = [update async for update in stream if isinstance(update, Record)]
                assert (await stream.result()).final_output == "It is a kettle."
                assert followed == list(await engine.log.records("cust-42"))

    report = await kill_at_random(scenario, times=3)
    assert report.wrong_logs == report.repeated_effects == ()


async def test_a_context_that_no_pickle_takes_outlives_the_process_with_its_caller() -> None:
    @tool(idempotent=True)
    async def greet(context: ToolContext[Any]) -> str:
        return f"Hello, {context.context()}."

    async def scenario(path: str) -> None:
        with ScriptedModel(function_call(greet, {}), "Greeted.") as model:
            async with Engine(path, agents=[Agent[Any]("greeter", tools=[greet])], model=model) as engine:
                await engine.run("hi", session="cust-42", context=lambda: "Li")

    assert not (await kill_at_random(scenario, times=2)).wrong_logs


# -- what hangs, dies by itself, or cannot be killed


async def test_a_process_that_hangs_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_crash_kills, "PATIENCE", 0.5)

    @tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    async def scenario(path: str) -> None:
        model = ScriptedModel(function_call(hang, {}))
        async with Engine(path, agents=[Agent("one", tools=[hang])], model=model) as engine:
            await engine.run("hang", session="cust-42")

    with pytest.raises(_crash_kills.WorkerLostError, match=r"drives cust-42 has done nothing for .*hang"):
        await kill_at_random(scenario)


async def test_a_scenario_that_waits_for_ever_is_told_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_crash_passes, "LONGEST", 0.5)

    async def scenario(path: str) -> None:
        await asyncio.Event().wait()

    for crash in (crash_everywhere, crash_at_random, kill_at_random):
        with pytest.raises(TimeoutError, match="had not ended"):
            await crash(scenario)


async def test_a_process_that_ends_by_itself_is_no_crash() -> None:
    @tool
    async def leave() -> str:
        os._exit(3)

    async def scenario(path: str) -> None:
        model = ScriptedModel(function_call(leave, {}))
        async with Engine(path, agents=[Agent("one", tools=[leave])], model=model) as engine:
            await engine.run("leave", session="cust-42")

    with pytest.raises(_crash_kills.WorkerLostError, match="ended by itself"):
        await kill_at_random(scenario)


async def test_a_file_that_the_scenario_holds_open_is_not_forked() -> None:
    async def scenario(path: str) -> None:
        async with SQLiteLog(path), Engine(path, agents=[clerk], model=ScriptedModel("Hi.")) as engine:
            await engine.run("hi", session="cust-42")

    if not _crash_kills._OPEN_FILES.exists():
        pytest.skip("this system does not say what is open")
    with pytest.raises(UsageError, match="holds it open"):
        await kill_at_random(scenario)


async def test_a_log_elsewhere_is_refused_by_kills() -> None:
    async def scenario(path: str) -> None:
        async with Engine("memory:", agents=[clerk], model=ScriptedModel("Hi.")) as engine:
            await engine.run("hi", session="cust-42")

    with pytest.raises(UsageError, match="over the file that it gives"):
        await kill_at_random(scenario)


async def test_a_scenario_that_drives_nothing_is_refused_by_kills() -> None:
    async def scenario(path: str) -> None:
        async with Engine(path) as engine:
            await engine.send("hi", session="cust-42")

    with pytest.raises(UsageError, match="drives nothing"):
        await kill_at_random(scenario)


async def test_a_system_that_cannot_fork_is_told_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(UsageError, match="crash_everywhere"):
        await kill_at_random(look)


async def test_no_process_is_left_over() -> None:
    await kill_at_random(look, times=2)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # noqa: ASYNC222  # it does not wait
