"""Field cases K and O: odd texts, and compaction beside an open call. `docs/field-reports.md` lists them all."""

import json
from pathlib import Path

import pytest
from tests.field_cases.cases import case, needs_the_cases
from tests.field_cases.play import SESSION, Play, Way, every_way, played, sent, shown

from batonlog.engine import SessionBusyError
from batonlog.events import HistoryRewritten, ToolReturned
from batonlog.projections import check_legal, keep_last, session_history

pytestmark = needs_the_cases


@every_way
@pytest.mark.parametrize("number", [55, 56], ids=["half a surrogate", "NUL"])
async def test_cases_55_and_56_a_text_comes_back_equal_and_goes_out_as_utf8(
    number: int, way: Way, tmp_path: Path
) -> None:
    written = case(number).outputs["c1"][0]

    async def scenario(play: Play) -> None:
        await play.all()
        before = play.session
        await play.restart()
        assert play.session == before
        (returned,) = play.events(ToolReturned)
        assert returned.output == written
        assert [item.text for item in play.session if item.type == "function_call_output"] == [written]
        out = [json.loads(line) for line in sent(play.view).decode("utf-8").splitlines()]
        # What no wire can carry is the one thing that is changed, there alone.
        clean = written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        changed = [data["output"] for data in out if "output" in data]
        assert changed == [clean]
        assert [data for data in out if "output" not in data] == [
            {name: value for name, value in item.data.items() if name != "id"}
            for item in play.session
            if item.type != "function_call_output"
        ]

    await played(case(number), scenario, way, tmp_path)


@pytest.mark.parametrize("log", ["memory:", "case.db"])
async def test_case_56_it_is_the_same_in_every_store(log: str, tmp_path: Path) -> None:
    place = log if log == "memory:" else tmp_path / log
    async with Play(case(56), place, streamed=False, filters={}) as play:
        await play.all()
        records = [record async for record in play.engine.log.read(SESSION)]
        outputs = [item.text for item in session_history(records) if item.type == "function_call_output"]
        assert outputs == case(56).outputs["c1"]


@every_way
async def test_case_69_no_rewrite_comes_between_a_call_and_its_late_answer(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        first, chat = play.turns
        window = keep_last(play.case.ops("compact")[0]["keep_last"])
        progress, end = play.case.of("output")
        paused = await play.say(first)
        await play.engine.note(SESSION, "progress", progress["output"])
        with pytest.raises(SessionBusyError):
            await play.engine.run(chat.text, session=SESSION)
        await play.engine.send(chat.text, session=SESSION)
        with pytest.raises(SessionBusyError, match="long_job"):
            await play.engine.rewrite(SESSION, window)
        (waiting,) = paused.open_calls
        await play.engine.settle(SESSION, waiting.call, end["output"], by="worker")
        await play.engine.resume(SESSION)
        await play.read()
        assert shown(play.requests[-1].input) == [
            "user: approve?",
            "c1 long_job",
            "c1 = finished",
            "user: chat 1",
        ]
        assert not play.events(HistoryRewritten)
        await play.engine.rewrite(SESSION, window)
        await play.read()
        assert shown(play.view) == ["assistant: ok"]
        assert check_legal(play.view) == ()

    # The first message has its answer only with the second one's.
    steps = [list(turn.answers[0]) for turn in case(69).turns]
    await played(case(69), scenario, way, tmp_path, steps=steps, elsewhere=True)
