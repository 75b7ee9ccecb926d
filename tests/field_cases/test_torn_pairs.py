"""Field cases A: calls and outputs that were torn apart. `docs/field-reports.md` lists them all."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.field_cases.cases import case, needs_the_cases
from tests.field_cases.dialects import refused
from tests.field_cases.play import SESSION, Play, Way, every_way, played, shown

from batonlog.engine import SessionBusyError, ToolContext
from batonlog.engine.decide import CANCELLED
from batonlog.engine.testing import Step
from batonlog.events import BatonlogError, HandoffMade, HistoryRewritten, Record, ToolAbandoned
from batonlog.projections import check_legal, keep_last

pytestmark = needs_the_cases


@every_way
async def test_case_1_a_window_of_any_length_splits_no_pair(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        for n in range(1, len(play.view) + 1):
            window = keep_last(n)(play.view)
            assert 0 < len(window) <= n
            assert check_legal(window) == ()
            assert list(window) == list(play.view[-len(window) :])
        assert len(play.session[-3:]) == 3

    await played(case(1), scenario, way, tmp_path)


@every_way
@pytest.mark.parametrize("n", [3, 4])
async def test_case_1_what_is_sent_after_such_a_window_is_legal_and_has_its_instructions(
    n: int, way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        first, last = play.turns
        await play.say(first)
        await play.engine.rewrite(SESSION, keep_last(n))
        await play.say(last)
        request = play.requests[-1]
        assert request.instructions == "You are Front."
        assert check_legal(request.input) == ()
        assert len(play.session) == 6

    await played(case(1), scenario, way, tmp_path)


@every_way
async def test_case_2_a_call_beside_a_handoff_keeps_its_result(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        expected = ["c1 add", "h1 transfer_to_billing", "c1 = 12", 'h1 = {"assistant":"Billing"}']
        assert shown(play.first_request("Billing").input)[1:] == expected
        assert shown(play.session)[1:5] == expected
        assert len(play.events(HandoffMade)) == 1

    await played(case(2), scenario, way, tmp_path)


@every_way
async def test_case_3_a_transfer_has_its_output_right_behind_it(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        dialect = play.case.ops("project_model")[0]["dialect"]
        assert refused(play.first_request("Weather"), dialect) == []

    await played(case(3), scenario, way, tmp_path)


def imported(play: Play) -> list[dict[str, Any]]:
    """The history of the case as another product kept it: with a call that has no output, and the reverse."""
    found: list[dict[str, Any]] = []
    for record in play.case.records:
        match record["t"]:
            case "user":
                found.append({"role": "user", "content": record["text"]})
            case "response":
                found.extend(record["items"])
            case "output":
                output = {"call_id": record["call_id"], "output": record["output"]}
                found.append({"type": "function_call_output", **output})
    return found


@every_way
async def test_case_5_an_imported_history_with_bad_pairs_is_mended_in_the_view_alone(
    way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        given: Any = imported(play)
        await play.engine.run(given, session=SESSION)
        await play.read()
        view = shown(play.requests[0].input)
        (rewritten,) = play.events(HistoryRewritten)
        assert (rewritten.cause, len(rewritten.rewrite.repairs)) == ("repair", 2)
        assert [line for line in view if line.startswith("c1")] == [
            "c1 export",
            "c1 = [The output of this call is not part of this history.]",
        ]
        assert not [line for line in view if line.startswith("c9")]
        assert "c9 = late result of an unknown call" in shown(play.session)
        assert check_legal(play.requests[0].input) == ()

    await played(case(5), scenario, way, tmp_path, steps=["Yes."])


class Slow:
    """A tool that says when it began, and ends only with its process."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def __call__(self, context: ToolContext[object], arguments: dict[str, Any]) -> str:
        self.began.set()
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")


def interrupted(number: int, folder: Path, *, streamed: bool = False) -> Play:
    """A case whose first turn does not get beyond its calls."""
    steps: list[Step] = [case(number).turns[0].answers[0], "I am."]
    return Play(
        case(number), folder / "case.db", streamed=streamed, filters={}, steps=steps, idempotent=False
    )


async def test_case_5_a_call_that_a_crash_left_open_keeps_nobody_from_going_on(tmp_path: Path) -> None:
    async with interrupted(5, tmp_path) as play:
        play.calls["export"] = slow = Slow()
        first, last = play.turns
        running = asyncio.create_task(play.say(first))
        await slow.began.wait()
        await play.restart()
        with pytest.raises(BatonlogError):
            await running
        paused = await play.engine.resume(SESSION)
        assert [(call.tool, call.why) for call in paused.open_calls] == [("export", "unknown")]
        with pytest.raises(SessionBusyError):
            await play.engine.run(last.text, session=SESSION)
        await play.engine.cancel(SESSION)
        await play.engine.resume(SESSION)
        await play.say(last)
        assert check_legal(play.requests[-1].input) == ()
        assert [event.call_id for event in play.events(ToolAbandoned)] == ["c1"]


@every_way
@pytest.mark.parametrize("finished", ["before", "after", "never"])
async def test_case_6_a_cancel_answers_every_call_and_keeps_what_was_finished(
    finished: str, way: Way, tmp_path: Path
) -> None:
    async with interrupted(6, tmp_path, streamed=way == "streamed") as play:
        play.calls["slow"] = slow = Slow()
        if finished == "never":
            play.calls["fast"] = Slow()
        elif finished == "after":
            play.calls["fast"] = at_the_last_moment
        first, last = play.turns
        running = asyncio.create_task(play.say(first))
        await slow.began.wait()
        if finished == "before":
            await until(play, "tool.returned")
        if way == "resumed":
            await play.restart()
            with suppress(BatonlogError):
                await running
        await play.engine.cancel(SESSION)
        ended = await (play.engine.resume(SESSION) if way == "resumed" else running)
        assert ended.status == "cancelled"
        await play.say(last)
        view = shown(play.requests[-1].input)
        assert view[1:4] == ["c1 slow", "c2 fast", f"c1 = {CANCELLED}"]
        assert view[4] == "c2 = ok" if finished == "before" else view[4] in ("c2 = ok", f"c2 = {CANCELLED}")
        assert view[5:] == ["user: never mind, hello"]


async def at_the_last_moment(context: ToolContext[object], arguments: dict[str, Any]) -> str:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "ok"


async def until(play: Play, kind: str) -> None:
    """Wait until an event of a kind is recorded."""
    async for update in play.engine.updates(SESSION):
        if isinstance(update, Record) and update.type == kind:
            return
