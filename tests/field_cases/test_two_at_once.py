"""Field cases L: several who write at once. `docs/field-reports.md` lists them all."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.field_cases.cases import case, needs_the_cases

from batonlog.engine import Agent, Engine, SessionBusyError, tool
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import (
    ConflictError,
    EventLog,
    FencedError,
    HandoffMade,
    MemoryLog,
    NoteAdded,
    RunStarted,
    SQLiteLog,
    ToolReturned,
)
from batonlog.events.record import now
from batonlog.events.values import Limits, Ref
from batonlog.projections import session_history

pytestmark = needs_the_cases


# -- two runs, one session


async def test_case_59_a_second_worker_is_refused_until_the_first_is_lost_and_then_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (late,) = case(59).of("output")
    began, go = asyncio.Event(), asyncio.Event()

    @tool(idempotent=True)
    async def work() -> str:
        if not began.is_set():
            began.set()
            await go.wait()
            return str(late["output"])
        return "done by W2"

    agents = [Agent("a", tools=[work])]
    async with SQLiteLog(tmp_path / "log.db") as here, SQLiteLog(tmp_path / "log.db") as there:
        one = Engine(here, agents=agents, model=ScriptedModel(function_call(work, {}), "never"))
        two = Engine(there, agents=agents, model=ScriptedModel("done"))
        running = asyncio.create_task(one.run("x", session="s"))
        await began.wait()
        for refused in (two.run("x", session="s"), two.resume("s")):
            with pytest.raises(SessionBusyError, match=r"s is busy: call 4\.0 \(work\) is running"):
                await refused
        # W1 is so slow that it does not even keep its lease.
        monkeypatch.setattr("batonlog.events.sqlite.now", lambda: now() + 3_600_000_000)
        assert (await two.resume("s")).final_output == "done"
        go.set()
        with pytest.raises(FencedError):
            await running
        records = await there.records("s")
    assert [item.text for item in session_history(records)][2:] == ["done by W2", "done"]
    types = [record.type for record in records]
    assert types.count("run.started") == types.count("run.completed") == types.count("tool.returned") == 1


async def test_case_59_a_workers_own_background_words_do_not_trip_it() -> None:
    log = MemoryLog()

    @tool
    async def work() -> str:
        for n in range(5):
            await one.note("s", "progress", n)
        return "done"

    one = Engine(log, agents=[Agent("a", tools=[work])], model=ScriptedModel(function_call(work, {}), "bye"))
    assert (await one.run("x", session="s")).final_output == "bye"
    assert [
        record.event.data for record in await log.records("s") if isinstance(record.event, NoteAdded)
    ] == [*range(5)]


# -- one file


async def test_case_61_eight_who_share_a_file_lose_nothing_and_lock_nobody_out(tmp_path: Path) -> None:
    (parallel,) = case(61).ops("parallel")
    workers, rounds = parallel["workers"], parallel["rounds"]

    async def work(n: int, log: EventLog) -> None:
        agents = [Agent("Front")]
        one = Engine(log, agents=agents, model=ScriptedModel(*["y"] * rounds))
        for _ in range(rounds):
            await one.run("x", session=f"s{n}")

    async with AsyncExitStack() as stack:
        logs = [await stack.enter_async_context(SQLiteLog(tmp_path / "log.db")) for _ in range(workers)]
        await asyncio.gather(*[work(n, log) for n, log in enumerate(logs)])
        for n in range(workers):
            records = await logs[0].records(f"s{n}")
            assert [record.version for record in records] == [*range(1, len(records) + 1)]
            assert [item.text for item in session_history(records)] == ["x", "y"] * rounds


# -- one change


@pytest.fixture(params=["memory", "file"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    one: EventLog = MemoryLog() if request.param == "memory" else SQLiteLog(tmp_path / "log.db")
    async with one:
        yield one


def made(n: int) -> HandoffMade:
    return HandoffMade(
        call=Ref(3, 0), call_id="h", source="A", target="B", arguments={"by": n}, acknowledgement="ok"
    )


async def test_case_62_of_a_hundred_changes_at_one_place_one_is_made_and_all_others_are_told(
    log: EventLog,
) -> None:
    parallel = case(62).ops("parallel")[0]
    before = parallel["each"][0]["expect_seq"]
    await log.append("s", [NoteAdded(name="n", data=n) for n in range(before)], expected=0)
    ends = await asyncio.gather(
        *[log.append("s", [made(n)], expected=before) for n in range(parallel["workers"])],
        return_exceptions=True,
    )
    refused = [end for end in ends if isinstance(end, ConflictError)]
    assert len(refused) == parallel["workers"] - 1
    assert {end.actual for end in refused} == {before + 1}
    records = await log.records("s")
    assert len(records) == before + 1


async def test_case_62_an_append_that_is_cancelled_is_whole_or_not_there_and_blocks_nobody(
    log: EventLog,
) -> None:
    for turns in range(6):
        session = f"s{turns}"
        batch = [
            RunStarted(run_id="r", agent="A", input=(), limits=Limits()),
            ToolReturned(call=Ref(1, 0), call_id="c", output="o"),
        ]
        task = asyncio.create_task(log.append(session, batch, expected=0))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # A batch that is under way when its caller goes may still be stored, before whatever comes next.
        await log.append("other", [NoteAdded(name="n", data=1)], expected=turns)
        head = await log.head(session)
        assert (head.version if head else 0) in (0, 2)
        await log.append(session, [made(1)], expected=head.version if head else 0)
