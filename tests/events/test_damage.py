"""What a damaged file gets: typed errors, all that stands before the damage, and no byte changed.

A read yields exactly what was stored, or what stood before the damage and then a typed error. Two
things it cannot notice by itself, and they are for the hash chain to find: a payload that still is an
event, and records that are lost at the end of a session. Both are compared here with a saved head.
"""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.conftest import Batonlog
from tests.laws.depth import DEEP

from batonlog.engine import Engine
from batonlog.events import (
    DamagedError,
    EventLog,
    FormatError,
    NoteAdded,
    Record,
    SQLiteLog,
)
from batonlog.events.record import GENESIS, link

PAGE = 4096
SESSIONS = ("a", "b", "c")
FORK, FORKED_AT = "f", 5


async def fill(path: Path, rounds: int = 20) -> None:
    async with SQLiteLog(path) as log:
        for n in range(rounds):
            for name in SESSIONS:
                await log.append(name, [NoteAdded(name="n", data=f"{name}{n} " * 60)], expected=n)
        await log.fork("a", at=FORKED_AT, into=FORK)
        await log.acquire("a", owner="somebody", seconds=0)


@cache
def whole() -> bytes:
    """A log that is closed: one file."""
    with TemporaryDirectory() as folder:
        asyncio.run(fill(Path(folder, "log.db")))
        return Path(folder, "log.db").read_bytes()


PAGES = len(whole()) // PAGE


@dataclass(frozen=True)
class Found:
    """What a read yielded, and what it raised then."""

    records: tuple[Record, ...]
    error: BaseException | None

    def tells(self) -> list[tuple[object, ...]]:
        """What is told, but for when it was recorded, which is for people and in no hash."""
        return [(r.session, r.version, r.type, r.id, r.hash, r.payload, r.erased) for r in self.records]


async def found(reading: AsyncIterator[Record]) -> Found:
    records: list[Record] = []
    try:
        async for record in reading:
            records.append(record)  # noqa: PERF401
    except BaseException as error:
        return Found(tuple(records), error)
    return Found(tuple(records), None)


async def inherited(log: EventLog) -> AsyncIterator[Record]:
    for record in await log.records(FORK):
        yield record


READS: dict[str, Callable[[EventLog], AsyncIterator[Record]]] = {
    "log": lambda log: log.read_all(),
    **{name: lambda log, name=name: log.read(name) for name in (*SESSIONS, FORK)},  # type: ignore[misc]
    "fork": inherited,
}


async def read(path: Path, *, read_only: bool = True) -> dict[str, Found]:
    """Read all there is in every way. Raises what opening raises."""
    async with SQLiteLog(path, read_only=read_only) as log:
        return {name: await found(reading(log)) for name, reading in READS.items()}


@cache
def original() -> dict[str, Found]:
    with TemporaryDirectory() as folder:
        Path(folder, "log.db").write_bytes(whole())
        return asyncio.run(read(Path(folder, "log.db")))


def is_proven(got: Found, head: bytes) -> bool:
    """Whether the hash chain of each session is whole, and ends at the head that was saved."""
    hashes = {(name, 0): GENESIS for name in SESSIONS}
    if got.records and got.records[0].session == FORK:  # read without what it inherits
        hashes[FORK, FORKED_AT] = original()["a"].records[FORKED_AT - 1].hash
    for r in got.records:
        before = hashes.get((r.session, r.version - 1), b"")
        hashes[r.session, r.version] = link(before, r.session, r.version, r.id, r.digest)
        if r.hash != hashes[r.session, r.version]:
            return False
        if (r.session, r.version) == ("a", FORKED_AT):
            hashes[FORK, FORKED_AT] = r.hash
    return bool(got.records) and got.records[-1].hash == head


def check(got: dict[str, Found]) -> None:
    for name, one in got.items():
        stood = original()[name]
        if one.tells() == stood.tells() and one.error is None:
            continue
        if one.error is None:
            assert not is_proven(one, stood.records[-1].hash), name
        else:
            assert isinstance(one.error, DamagedError), (name, one.error)
            assert "log.db" in str(one.error) or f"{one.error.session} " in str(one.error)
            assert "nothing was deleted" in str(one.error)


def changed(path: Path, data: bytes) -> dict[str, Found] | None:
    """Read a file of these bytes; None if it is refused whole."""
    path.write_bytes(data)
    refused, got = "log.db", None
    try:
        got = asyncio.run(read(path))
    except (DamagedError, FormatError) as error:
        refused = str(error)
    assert "log.db" in refused
    assert path.read_bytes() == data
    return got


RANDOM = random.Random(59)


def damages(page: bytes, chance: random.Random) -> Iterator[bytes]:
    """A page of zeros, overwritten, noise, with either half torn off; and single bits that turned."""
    yield bytes(PAGE)
    yield b"\xaa" * PAGE
    yield chance.randbytes(PAGE)
    yield page[: PAGE // 2] + bytes(PAGE // 2)
    yield bytes(PAGE // 2) + page[PAGE // 2 :]
    for _ in range(400 if DEEP else 8):
        at = chance.randrange(PAGE)
        yield page[:at] + bytes([page[at] ^ 1 << chance.randrange(8)]) + page[at + 1 :]


@pytest.mark.parametrize("number", range(PAGES))
def test_whatever_becomes_of_a_page_no_read_tells_what_was_not_stored(tmp_path: Path, number: int) -> None:
    start = number * PAGE
    for page in damages(whole()[start : start + PAGE], random.Random(number)):
        if (
            got := changed(tmp_path / "log.db", whole()[:start] + page + whole()[start + PAGE :])
        ) is not None:
            check(got)


def test_an_overwritten_page_is_noticed_by_reads(tmp_path: Path) -> None:
    """But for what a read of records does not look at: leases, their index, and erasures, a page each."""
    unnoticed = []
    for start in range(0, len(whole()), PAGE):
        got = changed(tmp_path / "log.db", whole()[:start] + b"\xaa" * PAGE + whole()[start + PAGE :])
        if got is not None and all(one.error is None for one in got.values()):
            unnoticed.append(got)
    assert len(unnoticed) == 3


def test_what_stands_before_a_damaged_page_is_read_and_so_are_other_pages(tmp_path: Path) -> None:
    """Of a page of records only what is on it and what comes after it in the same read is lost."""
    partial = 0
    for start in range(PAGE, len(whole()), PAGE):
        got = changed(tmp_path / "log.db", whole()[:start] + bytes(PAGE) + whole()[start + PAGE :])
        assert got is not None
        one = got["log"]
        if one.error is not None and one.records:
            assert one.tells() == original()["log"].tells()[: len(one.records)]
            partial += 1
    assert partial >= 3


@pytest.mark.parametrize("size", [*range(PAGE, PAGES * PAGE, PAGE), *range(600, PAGES * PAGE, 2 * PAGE + 77)])
def test_a_file_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path, size: int) -> None:
    got = changed(tmp_path / "log.db", whole()[:size])
    if got is not None:
        check(got)
        assert any(one.error is not None for one in got.values())


def edited(path: Path, *statements: str) -> None:
    """A log in which a program wrote that knows nothing of it."""
    path.write_bytes(whole())
    raw = sqlite3.connect(path, isolation_level=None)
    for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        raw.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        raw.execute(statement)
    raw.close()


async def test_a_record_that_cannot_be_read_hides_none_before_it(tmp_path: Path) -> None:
    edited(tmp_path / "log.db", "UPDATE event SET payload = x'7b' WHERE session = 'b' AND version = 4")
    got = await read(tmp_path / "log.db")
    assert [(name, len(one.records)) for name, one in got.items() if one.error is not None] == [
        ("log", 10),
        ("b", 3),
    ]
    error = got["b"].error
    assert isinstance(error, DamagedError)
    assert (error.session, error.version) == ("b", 4)
    assert "read with until=3" in str(error)


@pytest.mark.parametrize(
    ("statement", "session", "version"),
    [
        ("DELETE FROM event WHERE session = 'b' AND version = 4", "b", 4),
        ("DELETE FROM event WHERE session = 'b' AND version = 1", "b", 1),
        ("UPDATE event SET type = 'run.started' WHERE session = 'b' AND version = 4", "b", 4),
        ("UPDATE event SET version = 400 WHERE session = 'b' AND version = 4", "b", 4),
    ],
)
async def test_a_record_that_is_missing_is_named(
    tmp_path: Path, statement: str, session: str, version: int
) -> None:
    edited(tmp_path / "log.db", statement)
    one = (await read(tmp_path / "log.db"))[session]
    assert isinstance(one.error, DamagedError)
    assert (one.error.session, one.error.version) == (session, version)
    assert [record.version for record in one.records] == list(range(1, version))


async def test_a_fork_whose_parent_is_not_told_is_never_read_without_what_it_inherits(tmp_path: Path) -> None:
    edited(tmp_path / "log.db", "DELETE FROM fork")
    got = await read(tmp_path / "log.db")
    assert isinstance(got["fork"].error, DamagedError)
    assert "begins at version 6" in str(got["fork"].error)
    assert [record.version for record in got[FORK].records] == [6]


@pytest.mark.parametrize("table", ["event", "fork", "lease"])
async def test_a_log_without_one_of_its_tables_is_damaged_and_not_made_anew(
    tmp_path: Path, table: str
) -> None:
    path = tmp_path / "log.db"
    edited(path, f"DROP TABLE {table}")
    before = path.read_bytes()
    async with SQLiteLog(path) as log:
        uses: dict[str, Callable[[], Awaitable[object]]] = {
            "event": lambda: log.append("t", [NoteAdded(name="n", data=1)], expected=0),
            "fork": lambda: log.fork("a", at=1, into="u"),
            "lease": lambda: log.acquire("a", owner="x", seconds=1),
        }
        with pytest.raises(DamagedError, match=r"log\.db is damaged.*no such table.* nothing was deleted"):
            await uses[table]()
    assert path.read_bytes() == before


async def test_nothing_is_driven_on_what_cannot_be_read(tmp_path: Path) -> None:
    edited(tmp_path / "log.db", "UPDATE event SET payload = x'7b' WHERE session = 'b' AND version = 4")
    async with Engine(tmp_path / "log.db") as person:
        for use in (person.status("b"), person.send("go", session="b"), person.cancel("b")):
            with pytest.raises(DamagedError, match="record 4 of b cannot be read"):
                await use
        assert await person.send("go", session="c") == 21


# -- the write-ahead log


@cache
def in_use() -> tuple[bytes, bytes, bytes]:
    """A log that a process was using when it died: the file, its write-ahead log and the index of that."""

    async def used(path: Path) -> tuple[bytes, bytes, bytes]:
        async with SQLiteLog(path) as log:
            for n in range(8):
                batch = [NoteAdded(name="n", data=f"{n}.{m} " * 300) for m in range(3)]
                await log.append("late", batch, expected=3 * n)
            return files(path)

    def files(path: Path) -> tuple[bytes, bytes, bytes]:
        return path.read_bytes(), Path(f"{path}-wal").read_bytes(), Path(f"{path}-shm").read_bytes()

    with TemporaryDirectory() as folder:
        Path(folder, "log.db").write_bytes(whole())
        return asyncio.run(used(Path(folder, "log.db")))


def reopened(path: Path, wal: bytes, shm: bytes | None) -> tuple[Record, ...]:
    """Write the files as they were left, open them, and read all but what stood before."""
    path.write_bytes(in_use()[0])
    Path(f"{path}-wal").write_bytes(wal)
    if shm is not None:
        Path(f"{path}-shm").write_bytes(shm)
    one = asyncio.run(read(path, read_only=False))["log"]
    assert one.error is None
    before = original()["log"].records
    assert one.records[: len(before)] == before
    return one.records[len(before) :]


FRAME = 24 + PAGE


@pytest.mark.parametrize("torn", [0, FRAME // 2])
def test_of_a_write_ahead_log_that_was_cut_short_whole_batches_are_left(tmp_path: Path, torn: int) -> None:
    _, wal, _ = in_use()
    left = []
    for frames in range((len(wal) - 32) // FRAME):
        folder = tmp_path / f"{frames}"
        folder.mkdir()
        late = reopened(folder / "log.db", wal[: 32 + frames * FRAME + torn], None)
        assert [record.version for record in late] == list(range(1, len(late) + 1))
        assert len(late) % 3 == 0  # all of a batch, or none of it
        left.append(len(late))
    assert left == sorted(left)
    assert set(left) >= {0, 3, 6, 21 if torn == 0 else 18}


def test_without_the_index_of_the_write_ahead_log_nothing_is_lost(tmp_path: Path) -> None:
    for name, shm in {"gone": None, "empty": b"", "noise": RANDOM.randbytes(32768)}.items():
        (tmp_path / name).mkdir()
        assert len(reopened(tmp_path / name / "log.db", in_use()[1], shm)) == 24, name


@pytest.mark.parametrize(
    "wal", [b"", b"x", bytes(5000), b"\xaa" * 50_000], ids=["empty", "byte", "zeros", "noise"]
)
def test_a_write_ahead_log_that_is_none_leaves_the_file_as_it_was(tmp_path: Path, wal: bytes) -> None:
    assert reopened(tmp_path / "log.db", wal, None) == ()


def test_a_write_ahead_log_with_a_bad_frame_ends_before_it(tmp_path: Path) -> None:
    _, wal, _ = in_use()
    for at in range(40, len(wal), 3 * FRAME + 501):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        late = reopened(folder / "log.db", wal[:at] + bytes([wal[at] ^ 1]) + wal[at + 1 :], None)
        assert [record.version for record in late] == list(range(1, len(late) + 1))
        assert len(late) % 3 == 0
        assert len(late) < 24


# -- at the command line


def test_no_command_breaks_on_a_damaged_page(tmp_path: Path, batonlog: Batonlog) -> None:
    path = tmp_path / "log.db"
    codes = set()
    for start in range(0, len(whole()), PAGE):
        for page in (bytes(PAGE), b"\xaa" * PAGE, whole()[start : start + PAGE // 2] + bytes(PAGE // 2)):
            data = whole()[:start] + page + whole()[start + PAGE :]
            path.write_bytes(data)
            for command in (["log", "list"], ["log", "show", "a"], ["history", "f"]):
                done = batonlog(*command, "--log", path)
                assert done.code in (0, 1), (start, command, done.err)
                if done.code:
                    assert (done.out, done.err.count("\n")) == ("", 1), (start, command)
                    assert "Traceback" not in done.err
                codes.add(done.code)
            assert path.read_bytes() == data
    assert codes == {0, 1}
