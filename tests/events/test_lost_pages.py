"""Pages that are gone: what stands before them is read to the last record, and no fork is read in part.

Torn and overwritten pages are in test_damage.py.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from batonlog.events import DamagedError, LogError, NoteAdded, Record, SQLiteLog

PAGE = 4096
SESSIONS = ("s0", "s1", "s2", "s3")


async def fill(path: Path) -> None:
    """Four sessions of twelve records whose turns alternate, and a fork."""
    async with SQLiteLog(path) as log:
        for version in range(12):
            for session in SESSIONS:
                await log.append(session, [NoteAdded(name="n", data="x" * 200)], expected=version)
        await log.fork("s0", at=5, into="f")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "log.db"))
    return tmp_path / "log.db"


async def read(path: Path, session: str | None) -> tuple[list[Record], LogError | None]:
    """What is read, and the error after it."""
    records: list[Record] = []
    async with SQLiteLog(path, read_only=True) as log:
        try:
            async for record in log.read_all() if session is None else log.read(session):
                records.append(record)  # noqa: PERF401
        except LogError as error:
            return records, error
    return records, None


def test_the_last_record_before_a_damaged_page_is_read(path: Path) -> None:
    want = {session: asyncio.run(read(path, session))[0] for session in SESSIONS}
    every, _ = asyncio.run(read(path, None))
    data = path.read_bytes()
    leaves = [
        at for at in range(PAGE, len(data), PAGE) if data[at] == 13 and data[at + 3 : at + 5] != b"\0\0"
    ]
    partial = 0
    for at in leaves:
        path.write_bytes(data[:at] + bytes(PAGE) + data[at + PAGE :])
        got, error = asyncio.run(read(path, None))
        if isinstance(error, DamagedError) and got:
            partial += 1
            assert got == every[: len(got)]
            for session in SESSIONS:
                before = [record for record in want[session] if record.position <= got[-1].position]
                found, _ = asyncio.run(read(path, session))
                assert found[: len(before)] == before
    assert partial > 1


def test_of_a_file_that_was_cut_off_the_start_is_read_read_only(path: Path) -> None:
    every, _ = asyncio.run(read(path, None))
    data = path.read_bytes()
    counts = []
    for length in range(3 * PAGE, len(data), PAGE):
        path.write_bytes(data[:length])
        got, error = asyncio.run(read(path, None))
        assert isinstance(error, DamagedError)
        assert got == every[: len(got)]
        assert path.read_bytes() == data[:length]
        counts.append(len(got))
    assert counts == sorted(counts)
    assert counts[-1] > 24


async def test_a_fork_is_never_read_without_a_part_of_what_it_inherits(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DROP TRIGGER event_stays")
        raw.execute("DELETE FROM event WHERE session = 's0' AND version >= 4")
        raw.commit()
    async with SQLiteLog(path, read_only=True) as log:
        with pytest.raises(
            DamagedError, match="f continues s0 at version 5, whose record 4 is not there"
        ) as caught:
            await log.records("f")
        assert (caught.value.session, caught.value.version) == ("f", 4)
        assert [record.version for record in await log.records("f", until=3)] == [1, 2, 3]
        assert [record.version for record in await log.records("f", after=5)] == [6]


async def test_a_whole_session_is_not_taken_for_damaged_whatever_it_is_read_after(path: Path) -> None:
    async with SQLiteLog(path, read_only=True) as log:
        for session in ("s0", "f"):
            assert await log.records(session, after=-1) == await log.records(session)
