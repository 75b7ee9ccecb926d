"""Field cases E and F: what was written twice, and what was not written. `docs/field-reports.md` lists them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.field_cases.cases import case, needs_the_cases
from tests.field_cases.play import SESSION, Play, Way, every_way, played, shown
from tests.field_cases.test_torn_pairs import Slow

from batonlog.engine import Agent, Engine, Tool, handoff
from batonlog.engine.testing import ScriptedModel
from batonlog.events import (
    BatonlogError,
    ConflictError,
    Event,
    HandoffMade,
    Limits,
    LogError,
    MemoryLog,
    ModelRequested,
    ModelResponded,
    Record,
    RunCompleted,
    RunStarted,
    SQLiteLog,
    ToolCalled,
    ToolReturned,
    Usage,
    UsageError,
)
from batonlog.events.log import Appended
from batonlog.events.record import new_id
from batonlog.events.values import Ref
from batonlog.projections import History, check_legal, model_history, session_history
from batonlog.projections.state import run_state

pytestmark = needs_the_cases

_ANY = {"type": "object"}


def gated(name: str) -> Any:
    """A cast of which one tool waits for approval."""

    def agents(play: Play) -> list[Agent[object]]:
        front, *others = play.agents()
        tools = [Tool(name, play.answer, parameters=_ANY, strict=False, needs_approval=True)]
        return [Agent("Front", tools=tools, handoffs=front.handoffs), *others]

    return agents


# -- E: written or sent twice


@every_way
async def test_case_25_an_approved_call_has_one_call_and_one_output(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        (turn,) = play.turns
        paused = await play.say(turn)
        await play.restart()
        await play.engine.approve(SESSION, paused.open_calls[0].call, by="anna")
        await play.engine.resume(SESSION)
        await play.read()
        assert shown(play.session)[1:3] == ["c1 pay", "c1 = paid"]
        assert shown(play.view)[1:3] == ["c1 pay", "c1 = paid"]
        with pytest.raises(UsageError, match=r"no open call|has its answer already"):
            await play.engine.settle(SESSION, paused.open_calls[0].call, "paid (other layer)", by="another")
        before = play.records
        await play.read()
        assert play.records == before

    await played(case(25), scenario, way, tmp_path, agents=gated("pay"))


async def test_case_25_the_same_output_again_is_nothing_new_and_another_one_conflicts() -> None:
    outputs = [record["output"] for record in case(25).of("output")]
    log, key = MemoryLog(), new_id()

    async def append(output: str, ids: Sequence[Any]) -> Appended:
        returned = ToolReturned(call=Ref(1, 0), call_id="c1", output=output)
        return await log.append(SESSION, [returned], expected=0, ids=ids)

    assert not (await append(outputs[0], [key])).duplicate
    assert (await append(outputs[1], [key])).duplicate
    with pytest.raises(ConflictError):
        await append(outputs[2], [new_id()])
    assert len(await log.records(SESSION)) == 1


@every_way
async def test_case_26_a_request_that_is_made_again_adds_its_message_once(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        for record in play.case.of("user"):
            await play.say(record["text"], run_id=record["key"])
        assert shown(play.session) == ["user: book it", "assistant: one", "user: book it", "assistant: two"]
        assert [event.key for event in play.events(RunStarted)] == ["req-1", "req-2"]
        assert [result.run_id for result in play.results] == ["req-1", "req-1", "req-2"]

    agents = [Agent[object]("Front")]
    await played(case(26), scenario, way, tmp_path, steps=["one", "two"], agents=agents)


async def test_case_26_after_the_clients_time_out_the_same_request_goes_on_with_its_run(
    tmp_path: Path,
) -> None:
    first, again, other = case(26).of("user")
    step = {"type": "function_call", "call_id": "c1", "name": "book", "arguments": "{}"}
    async with Play(
        case(26), tmp_path / "case.db", streamed=False, filters={}, steps=[step, "one", "two"], agents=booking
    ) as play:
        play.calls["book"] = slow = Slow()
        running = asyncio.create_task(play.say(first["text"], run_id=first["key"]))
        await slow.began.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        play.calls["book"] = booked
        assert (await play.say(again["text"], run_id=again["key"])).final_output == "one"
        assert (await play.say(other["text"], run_id=other["key"])).final_output == "two"
        assert [line for line in shown(play.session) if line.startswith("user")] == ["user: book it"] * 2


def booking(play: Play) -> list[Agent[object]]:
    return [Agent("Front", tools=[Tool("book", play.answer, parameters=_ANY, strict=False, idempotent=True)])]


async def booked(*_: object) -> str:
    return "booked"


# -- F: not written


@pytest.mark.parametrize("stop", range(12))
async def test_case_28_what_whoever_left_a_stream_has_seen_is_in_the_log(stop: int, tmp_path: Path) -> None:
    (turn,) = case(28).turns
    async with Play(case(28), tmp_path / "case.db", streamed=True, filters={}) as play:
        play.calls["find"] = booked
        stream = play.engine.stream(turn.text, session=SESSION)
        seen: list[Record] = []
        for _ in range(stop):
            with suppress(StopAsyncIteration):
                update = await anext(stream)
                if isinstance(update, Record):
                    seen.append(update)
                    await play.read()
                    assert update in play.records  # by then it is stored
        await play.restart()
        with suppress(BatonlogError):
            await stream.result()
        await play.read()
        assert seen == list(play.records[: len(seen)])
        with suppress(BatonlogError):
            result = await play.engine.resume(SESSION)
            assert result.status == "completed"
            return
        assert not play.records  # it had not begun
        await play.say(turn)


class Failing(SQLiteLog):
    """A store that fails where control is handed over: before or after the commit, so often."""

    def __init__(self, path: Path, *, times: int, after: bool) -> None:
        super().__init__(path)
        self.times = times
        self.after = after

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Appended:
        fails = self.times > 0 and any(event.type == "handoff.made" for event in events)
        if fails:
            self.times -= 1
            if not self.after:
                raise LogError("the disk is away")
        done = await super().append(session, events, **options)
        if fails:
            raise LogError("no answer")
        return done


@pytest.mark.parametrize("times", [1, 6, 9])
@pytest.mark.parametrize("after", [False, True])
async def test_case_31_a_store_that_fails_at_the_handoff_leaves_no_mixed_state_and_repeats_nothing(
    times: int, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batonlog.engine.storing._FIRST_PAUSE", 0)
    ((first, *_),) = [turn.answers for turn in case(31).turns]
    charged: list[str] = []

    async def charge(context: Any, arguments: object) -> str:
        charged.append(context.idempotency_key)
        return "charged"

    care = Agent[object]("Care")
    tools = [Tool[object]("charge", charge, parameters=_ANY, strict=False, needs_approval=True)]
    agents = [Agent("Front", tools=tools, handoffs=[handoff(care)])]
    async with Failing(tmp_path / "case.db", times=times, after=after) as log:
        engine = Engine(log, agents=agents, model=ScriptedModel(list(first), "welcome"))
        paused = await engine.run("charge and move me", session=SESSION)
        await engine.approve(SESSION, paused.open_calls[0].call, by="anna")
        if times < 6:
            assert (await engine.resume(SESSION)).final_output == "welcome"
        else:
            with pytest.raises(LogError):
                await engine.resume(SESSION)
            log.times = 0
            result = await engine.resume(SESSION)
            if not after:  # that it was charged could not be stored: a person says so
                assert [(call.tool, call.why) for call in result.open_calls] == [("charge", "unknown")]
                await engine.settle(SESSION, result.open_calls[0].call, "charged", by="anna")
                result = await engine.resume(SESSION)
            assert result.final_output == "welcome"
        records = await log.records(SESSION)
        assert len(charged) == 1
        assert [line.partition(" =")[0] for line in shown(session_history(records))][3:] == [
            "c1",
            "h1",
            "assistant: welcome",
        ]
        for record in records:
            state = run_state(records, at=record.version)
            if state.agent == "Care":
                assert "c1 = charged" in shown(session_history(records, at=record.version))
        assert sum(isinstance(record.event, HandoffMade) for record in records) == 1


@every_way
async def test_case_32_each_step_is_stored_when_it_is_done(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        async def second(*_: object) -> str:
            await play.read()
            found.append((shown(play.session), [event.name for event in play.events(ToolCalled)]))
            return "ok"

        found: list[Any] = []
        play.calls["step2"] = second
        await play.all()
        for session, called in found:
            assert session == ["user: long job", "c1 step1", "c1 = ok", "c2 step2"]
            assert called[-1] == "step2"

    await played(case(32), scenario, way, tmp_path)


async def test_case_32_after_a_crash_the_run_goes_on_where_it_was(tmp_path: Path) -> None:
    (turn,) = case(32).turns
    async with Play(case(32), tmp_path / "case.db", streamed=False, filters={}) as play:
        play.calls["step2"] = slow = Slow()
        running = asyncio.create_task(play.say(turn))
        await slow.began.wait()
        await play.restart()
        with suppress(BatonlogError):
            await running
        assert shown(play.session) == ["user: long job", "c1 step1", "c1 = ok", "c2 step2"]
        play.calls["step2"] = booked
        assert (await play.engine.resume(SESSION)).status == "completed"
        await play.read()
        assert [event.name for event in play.events(ToolCalled)] == ["step1", "step2", "step2"]


ENTRIES = 40


async def older(path: Path) -> None:
    """A log as the first version wrote it: without anything that events have gained since."""
    async with SQLiteLog(path) as log:
        at = 0
        for n in range(ENTRIES // 2):
            user = {"type": "message", "role": "user", "content": f"question {n}"}
            answer = {"type": "message", "role": "assistant", "content": f"answer {n}"}
            events: list[Event] = [
                RunStarted(run_id=f"r{n}", agent="Front", input=(user,), limits=Limits()),
                ModelRequested(turn=1, agent="Front", parts=(), issuer=("e", "m"), wire=1, digest=b""),
                ModelResponded(request=at + 2, output=(answer,), usage=Usage()),
                RunCompleted(output=Ref(at + 3, 0)),
            ]
            await log.append(SESSION, events, expected=at)
            at += len(events)


async def test_case_34_an_older_log_is_whole_and_an_undo_takes_nothing_out_of_it(tmp_path: Path) -> None:
    (opened,) = case(34).ops("open_store_written_by")
    assert opened["entries"] == ENTRIES
    path = tmp_path / "old.db"
    await older(path)
    before = path.read_bytes()
    async with Engine(path, agents=[Agent("Front")], model=ScriptedModel("Hi.")) as engine:
        records = await engine.log.records(SESSION)
        assert len(session_history(records)) == len(model_history(records)) == ENTRIES
        assert path.read_bytes() == before  # looking changes nothing

        def undo(history: History) -> History:
            return history[:-1]

        await engine.rewrite(SESSION, undo)
        records = await engine.log.records(SESSION)
        assert len(model_history(records)) == ENTRIES - 1
        assert len(session_history(records)) == ENTRIES
        assert (await engine.run("and now?", session=SESSION)).final_output == "Hi."
    async with SQLiteLog(path) as log:
        records = await log.records(SESSION)
    assert "answer 19" in [item.text for item in session_history(records)]
    assert "answer 19" not in [item.text for item in model_history(records)]
    assert not check_legal(model_history(records))
