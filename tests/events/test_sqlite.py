"""The log in a SQLite file keeps the contract, between threads, loops and processes, and against attacks."""

import asyncio
import json
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from batonlog.events import (
    Appended,
    DamagedError,
    Event,
    EventLog,
    LogError,
    NoteAdded,
    Record,
    SQLiteLog,
    UsageError,
    sqlite,
    sqlite_writer,
)
from batonlog.events.testing import EventLogConformance, _check_whole

T = TypeVar("T")

WRITER = Path(__file__).with_name("many_writers.py")


class TestSQLiteLog(EventLogConformance):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "log.db"

    def open(self) -> AbstractAsyncContextManager[EventLog]:
        return SQLiteLog(self.path)

    def reopen(self) -> AbstractAsyncContextManager[EventLog]:
        return SQLiteLog(self.path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[SQLiteLog]:
    """A log whose writer is at work already."""
    async with SQLiteLog(path) as log:
        await log.append("first", notes("a"), expected=0)
        yield log


def notes(*texts: str) -> list[Event]:
    return [NoteAdded(name="n", data=text) for text in texts]


async def texts(log: EventLog, session: str) -> list[str]:
    return [text(record) async for record in log.read(session)]


def text(record: Record) -> str:
    assert isinstance(record.event, NoteAdded)
    assert isinstance(record.event.data, str)
    return record.event.data


# -- one writer, many who wait


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep the writer waiting, as another process would, so that what is submitted becomes one group."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


@asynccontextmanager
async def busy(log: SQLiteLog, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[threading.Event]:
    """Keep the writer in the middle of a transaction until the event is set, at the latest at the end.

    What is submitted meanwhile becomes one group.
    """
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        begun.set()
        go_on.wait(60)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_acquire", slow)
        job = asyncio.create_task(log.acquire("s", owner="a", seconds=1))
        await asyncio.to_thread(begun.wait, 60)
    yield go_on
    go_on.set()
    await soon(job)


async def submitted() -> None:
    """Let every task that was just made take its first step."""
    await asyncio.sleep(0)


async def soon(answer: Awaitable[T]) -> T:
    """Wait, but not for ever: only a log that hangs ever notices."""
    return await asyncio.wait_for(answer, 60)


def commits(path: Path) -> int:
    """Count the commits in the write-ahead log: frames that say how large the database is after them."""
    wal = Path(f"{path}-wal").read_bytes()
    page, salt = int.from_bytes(wal[8:12], "big"), wal[16:24]
    frames = [wal[start : start + 24] for start in range(32, len(wal), 24 + page)]
    return sum(frame[8:16] == salt and frame[4:8] != bytes(4) for frame in frames)


async def test_appends_that_come_together_are_committed_together(
    log: SQLiteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = commits(path)
    async with busy(log, monkeypatch):
        waiting = [asyncio.create_task(log.append(f"s{n}", notes("a"), expected=0)) for n in range(64)]
        await submitted()
    answers = await soon(asyncio.gather(*waiting))
    assert commits(path) - before == 1
    assert sorted(answer.position for answer in answers) == list(range(2, 66))


@pytest.mark.parametrize("error", [sqlite3.IntegrityError, ValueError])
async def test_a_poisoned_append_never_rolls_back_its_group(
    log: SQLiteLog, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    insert = sqlite._insert

    def poisoned(db: sqlite3.Connection, session: str, *rest: Any) -> int:
        position = insert(db, session, *rest)
        if session == "s5":
            raise error("poison")
        return position

    monkeypatch.setattr(sqlite, "_insert", poisoned)
    async with busy(log, monkeypatch):
        waiting = [asyncio.create_task(log.append(f"s{n}", notes("a"), expected=0)) for n in range(10)]
        await submitted()
    answers = await soon(asyncio.gather(*waiting, return_exceptions=True))
    assert [n for n, answer in enumerate(answers) if not isinstance(answer, Appended)] == [5]
    assert isinstance(answers[5], LogError if issubclass(error, sqlite3.Error) else error)
    assert {head.session async for head in log.heads()} == {"first", *(f"s{n}" for n in range(10) if n != 5)}
    await _check_whole(log)


@pytest.mark.parametrize("error", [sqlite3.OperationalError, OverflowError, RuntimeError])
async def test_whatever_fails_the_writer_goes_on(
    log: SQLiteLog, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def broken(*_: object) -> None:
        raise error("broken")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_acquire", broken)
        with pytest.raises((LogError, error), match="broken"):
            await soon(log.acquire("s", owner="a", seconds=1))
    assert (await soon(log.append("s", notes("a"), expected=0))).version == 1


async def test_what_a_cancelled_waiter_submitted_is_stored_whole(log: SQLiteLog, path: Path) -> None:
    with locked(path):
        waiter = asyncio.create_task(log.append("s", notes("a", "b"), expected=0))
        await submitted()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    await log.append("after", notes("c"), expected=0)
    assert await texts(log, "s") == ["a", "b"]


async def test_an_append_whose_answer_was_lost_is_a_duplicate_when_repeated(
    log: SQLiteLog, path: Path
) -> None:
    ids = [uuid4(), uuid4()]
    with locked(path):
        waiter = asyncio.create_task(log.append("s", notes("a", "b"), expected=0, ids=ids))
        await submitted()
        waiter.cancel()
    assert await log.append("s", notes("a", "b"), expected=0, ids=ids) == Appended(2, 3, True)
    assert await texts(log, "s") == ["a", "b"]


async def test_close_finishes_what_was_submitted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SQLiteLog(path)
    async with busy(log, monkeypatch) as go_on:
        waiting = [asyncio.create_task(log.append(f"s{n}", notes("a"), expected=0)) for n in range(20)]
        await submitted()
        assert log._writer is not None
        thread, join = log._writer._thread, log._writer._thread.join

        def finish() -> None:  # when the end is in the queue, behind all the others
            go_on.set()
            join()

        monkeypatch.setattr(thread, "join", finish)
        await soon(log.close())
    assert [answer.version for answer in await soon(asyncio.gather(*waiting))] == [1] * 20
    async with SQLiteLog(path) as again:
        assert len([head async for head in again.heads()]) == 20


def test_one_log_serves_one_event_loop_after_another(path: Path) -> None:
    log = SQLiteLog(path)

    async def use(n: int) -> list[str]:
        await log.append("s", notes(f"{n}"), expected=n)
        return await texts(log, "s")

    assert asyncio.run(use(0)) == ["0"]
    assert asyncio.run(use(1)) == ["0", "1"]
    asyncio.run(log.close())


def test_an_append_outlives_the_event_loop_that_asked_for_it(path: Path) -> None:
    log = SQLiteLog(path)

    async def leave() -> None:
        task = asyncio.create_task(log.append("s", notes("a"), expected=1))
        await submitted()
        task.cancel()

    async def come_back() -> list[str]:
        await log.append("s", notes("b"), expected=2)
        found = await texts(log, "s")
        await log.close()
        return found

    asyncio.run(use_first(log))
    with locked(path):
        asyncio.run(leave())  # the loop is closed before the writer can answer
    assert asyncio.run(come_back()) == ["first", "a", "b"]


async def use_first(log: SQLiteLog) -> None:
    await log.append("s", notes("first"), expected=0)


def test_a_loop_that_closes_meanwhile_never_stops_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SQLiteLog(path)
    asyncio.run(use_first(log))
    loop = asyncio.new_event_loop()

    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(loop, "call_soon_threadsafe", closed)

    async def submit() -> None:
        task = asyncio.create_task(log.append("s", notes("a"), expected=1))
        await submitted()
        task.cancel()

    loop.run_until_complete(submit())

    async def come_back() -> Appended:
        answer = await soon(log.append("s", notes("b"), expected=2))
        await log.close()
        return answer

    assert asyncio.run(come_back()).version == 3
    loop.close()


# -- several processes


async def run_writers(path: Path, *, writers: int, sessions: int, rounds: int) -> list[dict[str, Any]]:
    """Start the writers, let them go at once, and return what each says it did."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", str(WRITER), str(path), f"w{n}", str(sessions), str(rounds)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for n in range(writers)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * writers
    return [json.loads(output) for output, _ in outputs]


async def test_of_eight_processes_on_one_session_every_loser_gets_a_conflict(path: Path) -> None:
    reports = await run_writers(path, writers=8, sessions=1, rounds=20)
    async with SQLiteLog(path) as log:
        await _check_whole(log)
        records = await log.records("s0")
        assert len(records) == 160
        stood = {record.version: text(record) for record in records}
    assert sum(report["conflicts"] for report in reports) > 0  # they did meet
    for report in reports:
        for version, stored in report["stored"]:
            assert stood.pop(version) == stored
    assert not stood


async def test_a_follower_loses_nothing_that_eight_processes_append(path: Path) -> None:
    async with SQLiteLog(path) as log:

        async def follow() -> list[Record]:
            async with aclosing(log.follow_all()) as following:  # type: ignore[type-var]
                return [await anext(following) for _ in range(8 * 64)]

        follower = asyncio.create_task(follow())
        reports = await run_writers(path, writers=8, sessions=64, rounds=1)
        followed = await soon(follower)
        assert [record.position for record in followed] == list(range(1, 513))
        assert followed == [record async for record in log.read_all()]
        assert sorted(text(record) for record in followed) == sorted(
            stored for report in reports for _, stored in report["stored"]
        )
        await _check_whole(log)


async def test_a_follower_hears_of_another_process(log: SQLiteLog, path: Path) -> None:
    async with SQLiteLog(path) as other, aclosing(log.follow("s")) as following:  # type: ignore[type-var]
        coming = asyncio.ensure_future(anext(following))
        await submitted()
        await other.append("s", notes("theirs"), expected=0)
        assert text(await soon(coming)) == "theirs"


async def test_a_follower_hears_of_another_process_however_busy_its_own_is(
    log: SQLiteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "POLL", 3600)  # its writer never comes to rest
    async with SQLiteLog(path) as other, aclosing(log.follow("s")) as following:  # type: ignore[type-var]
        coming = asyncio.ensure_future(anext(following))
        await submitted()
        await log.append("first", notes("ours"), expected=1)
        await other.append("s", notes("theirs"), expected=0)
        await log.append("first", notes("ours"), expected=2)
        assert text(await soon(coming)) == "theirs"


async def test_a_watcher_is_told_the_newest_version_of_a_group(
    log: SQLiteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [uuid4()]
    with log.watch("s") as alarm:
        await log.append("s", notes("a"), expected=0, ids=ids)
        await soon(alarm.wait())
        alarm.after(0)  # that is heard
        async with busy(log, monkeypatch):
            new = asyncio.create_task(log.append("s", notes("b"), expected=1))
            again = asyncio.create_task(log.append("s", notes("a"), expected=0, ids=ids))
            await submitted()
        assert [(await soon(new)).version, (await soon(again)).version] == [2, 1]
        while not alarm.after(1):
            await soon(alarm.wait())


# -- opened to read


async def test_a_read_only_log_reads_what_another_instance_writes(log: SQLiteLog, path: Path) -> None:
    async with SQLiteLog(path, read_only=True) as reading:
        for n in range(3):
            await log.append("s", notes(f"{n}"), expected=n)
            assert await reading.records("s") == await log.records("s")
        assert await reading.head("s") == await log.head("s")


async def test_a_read_only_log_can_be_followed(
    log: SQLiteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batonlog.events.log.POLL", 0)
    async with SQLiteLog(path, read_only=True) as reading, aclosing(reading.follow("s")) as following:  # type: ignore[type-var]
        coming = asyncio.ensure_future(anext(following))
        await log.append("s", notes("a"), expected=0)
        assert text(await soon(coming)) == "a"


async def test_a_read_only_log_refuses_to_write_and_says_so(log: SQLiteLog, path: Path) -> None:
    lease = await log.acquire("first", owner="a", seconds=60)
    assert lease is not None
    before = await log.records("first")
    async with SQLiteLog(path, read_only=True) as reading:
        with pytest.raises(UsageError, match="read_only"):
            await reading.append("first", notes("b"), expected=1)
        with pytest.raises(UsageError, match="read_only"):
            await reading.fork("first", at=1, into="f")
        with pytest.raises(UsageError, match="read_only"):
            await reading.acquire("first", owner="b", seconds=60)
        with pytest.raises(UsageError, match="read_only"):
            await reading.release(lease)
        assert await reading.records("first") == before
        assert await reading.head("f") is None


# -- opening and closing


def test_nothing_is_opened_before_the_first_use(path: Path) -> None:
    SQLiteLog(path)
    asyncio.run(SQLiteLog(path).close())
    assert not path.exists()


async def test_a_closed_log_says_so(path: Path) -> None:
    log = SQLiteLog(str(path))
    await log.append("s", notes("a"), expected=0)
    await log.close()
    await log.close()
    with pytest.raises(UsageError, match="closed"):
        await log.append("s", notes("b"), expected=1)
    with pytest.raises(UsageError, match="closed"):
        await log.records("s")


# -- damage


async def damaged(path: Path, payload: bytes) -> SQLiteLog:
    """A log of five records in one session, the third of which cannot be read."""
    async with SQLiteLog(path) as log:
        await log.append("s", notes("a", "b", "c", "d", "e"), expected=0)
    with sqlite3.connect(path) as raw:
        raw.execute("DROP TRIGGER event_is_final")
        raw.execute("UPDATE event SET payload = ? WHERE version = 3", (payload,))
    raw.close()
    return SQLiteLog(path)


PAYLOADS = [
    b"",
    b"\xff\xfe",
    b"{",
    b"[]",
    b"{}",
    b'{"type":7}',
    b'{"type":"note.added","name":"n"}',
    b'{"type":"note.added","name":7,"data":"\\ud800"}',
    b'{"type":"note.added","name":"n","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: repr(payload[:20]))
async def test_a_damaged_record_is_named_and_what_is_before_it_is_whole(path: Path, payload: bytes) -> None:
    async with await damaged(path, payload) as log:
        with pytest.raises(DamagedError, match="until=2") as caught:
            await log.records("s")
        assert (caught.value.session, caught.value.version) == ("s", 3)
        assert [text(record) for record in await log.records("s", until=2)] == ["a", "b"]
        assert [text(record) for record in await log.records("s", after=3)] == ["d", "e"]


async def test_a_damaged_record_is_not_in_the_way_of_a_limit(path: Path) -> None:
    async with await damaged(path, b"{") as log:
        assert [text(record) async for record in log.read_all(limit=2)] == ["a", "b"]
        assert [text(record) async for record in log.read_all(after=3)] == ["d", "e"]


async def test_a_damaged_record_does_not_stop_the_session(path: Path) -> None:
    async with await damaged(path, b"{") as log:
        assert (await log.append("s", notes("f"), expected=5)).version == 6


def test_a_damaged_file_is_a_typed_error_and_left_alone(path: Path) -> None:
    async def use() -> None:
        async with SQLiteLog(path) as log:
            await log.append("s", notes("a"), expected=0)

    asyncio.run(use())
    before = path.read_bytes()[:4096] + b"\xaa" * 8192
    path.write_bytes(before)
    with pytest.raises(DamagedError, match=rf"{path.name} is damaged.* nothing was deleted"):
        asyncio.run(use())
    assert path.read_bytes() == before
