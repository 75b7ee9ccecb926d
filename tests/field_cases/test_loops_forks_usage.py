"""Field cases P, Q and R: loops, forks and usage. `docs/field-reports.md` lists them all."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.field_cases.cases import case, needs_the_cases
from tests.field_cases.play import SESSION, Play, Way, every_way, played, shown

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    Retries,
    UnavailableError,
    handoff,
)
from batonlog.engine.testing import assistant_message, function_call
from batonlog.events import CallRefused, HandoffMade, Limits, Usage, UsageError
from batonlog.projections import FilterInput, Item, model_history, session_history, usage
from batonlog.projections.state import run_state

pytestmark = needs_the_cases


# -- P: loops


def in_a_loop(play: Play) -> list[Agent[object]]:
    return [Agent("A", handoffs=[handoff("B")]), Agent("B", handoffs=[handoff("A")])]


@every_way
async def test_case_71_control_goes_back_and_forth_so_often_and_then_somebody_must_answer(
    way: Way, tmp_path: Path
) -> None:
    (options,) = case(71).ops("options")
    most = options["max_switches"]
    # The first switch leads to somebody new, and is no return.
    limits = Limits(ping_pong=most - 1)

    async def scenario(play: Play) -> None:
        assert (await play.say("x", limits=limits)).final_output == "Then I answer."
        assert len(play.events(HandoffMade)) == most
        (refused,) = play.events(CallRefused)
        assert refused.reason == "ping_pong"
        before = run_state(play.records).run
        await play.restart()
        after = run_state(play.records).run
        assert before is not None
        assert after is not None
        assert (after.handoffs, after.bounces) == (before.handoffs, before.bounces) == (most, most - 1)
        await play.say("y", limits=limits)
        latest = run_state(play.records).run
        assert latest is not None
        assert (latest.handoffs, latest.bounces) == (0, 0)
        assert run_state(play.records).agent == "A"

    steps = [function_call("transfer_to_b" if n % 2 == 0 else "transfer_to_a", {}) for n in range(most + 1)]
    script: Any = [*steps, "Then I answer.", "Hello."]
    await played(case(71), scenario, way, tmp_path, steps=script, agents=in_a_loop)


# -- Q: forks


@every_way
async def test_case_73_a_fork_holds_what_it_was_told_to_and_leaves_the_original_alone(
    way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        original = play.records
        middle = play.results[0].version
        for at, items in ((middle, 2), (None, 4)):
            fork = await play.engine.fork(SESSION, at=at)
            records = await play.engine.log.records(fork)
            assert len(session_history(records)) == len(model_history(records)) == items
            assert shown(session_history(records)) == shown(play.session)[:items]
        with pytest.raises(UsageError, match="version 0"):
            await play.engine.fork(SESSION, at=0)
        await play.read()
        assert play.records == original

    await played(case(73), scenario, way, tmp_path)


async def test_case_73_both_branches_go_on_by_themselves(tmp_path: Path) -> None:
    async with Play(
        case(73), tmp_path / "case.db", streamed=False, filters={}, steps=["a", "b", "c", "d"]
    ) as play:
        for turn in play.turns:
            await play.say(turn)
        fork = await play.engine.fork(SESSION, at=play.results[0].version, into="branch")
        await play.engine.run("3", session=fork)
        await play.say("4")
        records = await play.engine.log.records(fork)
        assert shown(session_history(records)) == ["user: 1", "assistant: a", "user: 3", "assistant: c"]
        assert shown(play.session)[-2:] == ["user: 4", "assistant: d"]


# -- R: usage


class Counted:
    """Answers, and fails, at the price that the case names."""

    name = "m"

    def __init__(self, steps: Iterable[Any]) -> None:
        self._steps = iter(steps)

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        output, used = next(self._steps)
        if output is None:
            error = UnavailableError("broken off")
            error.usage = used  # type: ignore[attr-defined]  # an adapter tells what a failure cost
            raise error
        yield ModelResponse(output, usage=used)


def priced(record: Any) -> Usage:
    given, made = record["usage"]["in"], record["usage"]["out"]
    return Usage(requests=1, input_tokens=given, output_tokens=made, total_tokens=given + made)


async def test_case_74_what_was_used_is_a_sum_over_events_however_often_it_is_taken_up(
    tmp_path: Path,
) -> None:
    first, second, compactor = case(74).of("response")
    (failed,) = case(74).of("fault")

    async def summed_up(history: FilterInput[object]) -> list[Item | dict[str, Any]]:
        history.spend(priced(compactor), model="compactor")
        return [assistant_message("in short")]

    steps = [
        ([function_call("transfer_to_b", {})], priced(first)),
        (None, priced(failed)),
        ([assistant_message("y")], priced(second)),
    ]
    agents = [Agent[object]("A", handoffs=[handoff("B", input_filter=None)]), Agent[object]("B")]
    path = tmp_path / "case.db"
    retries = Retries(attempts=2, first=0)
    async with Engine(path, agents=agents, model=Counted(steps), retries=retries) as engine:
        await engine.run("go", session=SESSION)
        await engine.rewrite(SESSION, summed_up)
    for _ in range(3):
        async with Engine(path, agents=agents, model=Counted([])) as engine:
            await engine.resume(SESSION)
            spent = usage(await engine.log.records(SESSION))
        assert spent == {
            ("A", "m"): priced(first),
            ("B", "m"): priced(failed) + priced(second),
            ("B", "compactor"): priced(compactor),
        }
        total = sum(spent.values(), Usage())
        assert (total.input_tokens, total.output_tokens) == (480, 35)
