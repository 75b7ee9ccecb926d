"""A file is opened as a log only if it is one, and nothing is changed in any other."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from batonlog.events import FormatError, LogError, NoteAdded, SQLiteLog, sqlite_file

NOTE = NoteAdded(name="n", data="a")


async def append(path: Path) -> None:
    async with SQLiteLog(path) as log:
        await log.append("s", [NOTE], expected=0)


async def read(path: Path) -> None:
    async with SQLiteLog(path, read_only=True) as log:
        await log.records("s")


async def append_unopened(path: Path) -> None:
    log = SQLiteLog(path)
    try:
        await log.append("s", [NOTE], expected=0)
    finally:
        await log.close()


USES = pytest.mark.parametrize("use", [append, append_unopened, read])


def database(path: Path, *statements: str) -> None:
    raw = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        raw.execute(statement)
    raw.close()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "one byte": lambda path: path.write_bytes(b"0"),
    "a short text": lambda path: path.write_text("hello\n"),
    "a long text": lambda path: path.write_text("hello\n" * 5000),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "another program's": lambda path: database(path, "CREATE TABLE t (x)", "INSERT INTO t VALUES (1)"),
    "another program's, in WAL": lambda path: database(
        path, "PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"
    ),
    "marked as another program's": lambda path: database(path, "PRAGMA application_id = 77"),
    "another program's, empty but numbered": lambda path: database(path, "PRAGMA user_version = 3"),
}


@USES
@pytest.mark.parametrize("make", FOREIGN.values(), ids=list(FOREIGN))
def test_a_file_that_is_no_log_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], object], use: Callable[[Path], object]
) -> None:
    path = tmp_path / "notes.txt"
    make(path)
    before = path.read_bytes()
    with pytest.raises(FormatError, match=r"notes\.txt .*nothing was changed.* a file of its own"):
        run(use, path)
    assert path.read_bytes() == before


def run(use: Callable[[Path], object], path: Path) -> None:
    outcome = use(path)
    assert asyncio.iscoroutine(outcome)
    asyncio.run(outcome)


@USES
def test_a_log_of_a_newer_format_is_refused_and_left_alone(
    tmp_path: Path, use: Callable[[Path], object]
) -> None:
    path = tmp_path / "log.db"
    asyncio.run(append(path))
    database(path, f"PRAGMA user_version = {sqlite_file.FORMAT + 1}")
    before = path.read_bytes()
    with pytest.raises(FormatError, match=r"log\.db has format 2.*Upgrade batonlog"):
        run(use, path)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    asyncio.run(append(path))
    asyncio.run(read(path))


@pytest.mark.parametrize("name", ["a b.db", "a#b?c%20.db", "退款.db", "log"])
def test_a_log_may_have_any_name(tmp_path: Path, name: str) -> None:
    asyncio.run(append(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 0


@USES
def test_a_folder_is_refused(tmp_path: Path, use: Callable[[Path], object]) -> None:
    path = tmp_path / "logs"
    path.mkdir()
    with pytest.raises(LogError, match=r"logs is a folder; name a file in it"):
        run(use, path)
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("use", [append, append_unopened])
def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, use: Callable[[Path], object]) -> None:
    with pytest.raises(LogError, match=r"log\.db cannot be opened: is there such a folder"):
        run(use, tmp_path / "missing" / "log.db")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_is_not_there_is_not_made_to_read_it(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"log\.db is not there.*open it without read_only"):
        asyncio.run(read(tmp_path / "log.db"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["before it looks", "after it looked"])
def test_two_processes_may_start_a_log_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path = tmp_path / "log.db"
    is_empty = sqlite_file._is_empty

    def overtaken(connection: sqlite3.Connection) -> bool:
        monkeypatch.setattr(sqlite_file, "_is_empty", is_empty)
        found = is_empty(connection) if when == "after it looked" else None
        asyncio.run(append(path))
        return is_empty(connection) if found is None else found

    monkeypatch.setattr(sqlite_file, "_is_empty", overtaken)
    asyncio.run(append_more(path))


async def append_more(path: Path) -> None:
    async with SQLiteLog(path) as log:
        assert (await log.append("s", [NOTE], expected=1)).version == 2


@pytest.mark.parametrize("created", [False, True], ids=["empty", "created"])
def test_a_file_that_another_process_is_making_is_waited_for(tmp_path: Path, created: bool) -> None:
    path = tmp_path / "log.db"
    if created:
        asyncio.run(append(path))
        database(path, "PRAGMA journal_mode = DELETE")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    leaves = threading.Timer(0.2, other.close)
    leaves.start()
    connection = sqlite_file.connect(path, read_only=False)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    leaves.join()
