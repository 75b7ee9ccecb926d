"""The SQLite log: append, group commit and replay, against the same work done bare."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measure import Row, at_least, compare, wall

from batonlog.events import SQLiteLog, ToolReturned
from batonlog.events.codec import decode_known
from batonlog.events.values import Ref

APPENDS = 400
EVENTS = 100_000
_EVENT = ToolReturned(call=Ref(7, 1), call_id="call_1", output="It is on its way. " * 20)
_PAYLOAD = b'{"type":"tool.returned","call":[7,1],"call_id":"call_1","output":"%b"}' % (
    b"It is on its way. " * 20
)


def rows() -> Iterator[Row]:
    """Rates are per second."""
    with tempfile.TemporaryDirectory() as folder:
        yield _append(Path(folder))
        yield _group(Path(folder))
        yield _replay(Path(folder))


_count = iter(range(1_000_000))


def _append(folder: Path) -> Row:
    def ours() -> float:
        async def run() -> float:
            async with SQLiteLog(folder / f"{next(_count)}.db") as log:
                await log.append("s", [_EVENT], expected=0)
                begun = asyncio.get_running_loop().time()
                for version in range(1, APPENDS):
                    await log.append("s", [_EVENT], expected=version)
                return (APPENDS - 1) / (asyncio.get_running_loop().time() - begun)

        return asyncio.run(run())

    def bare() -> float:
        async def run() -> float:
            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(1) as thread:
                db = await loop.run_in_executor(thread, _bare_file, folder / f"{next(_count)}.db")
                begun = loop.time()
                for version in range(1, APPENDS):
                    await loop.run_in_executor(thread, _insert, db, version)
                rate = (APPENDS - 1) / (loop.time() - begun)
                await loop.run_in_executor(thread, db.close)
                return rate

        return asyncio.run(run())

    a, b, ratio = compare(ours, bare, repetitions=9)
    return at_least("append, 1 event a commit, against a raw insert", a, b, ratio, 0.8, "/s", 1)


def _bare_file(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(
        "CREATE TABLE event (position INTEGER PRIMARY KEY, session TEXT, version INTEGER, type TEXT, "
        "payload BLOB, UNIQUE (session, version)) STRICT"
    )
    return db


def _insert(db: sqlite3.Connection, version: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.execute(
        "INSERT INTO event (session, version, type, payload) VALUES (?, ?, ?, ?)",
        ("s", version, "tool.returned", _PAYLOAD),
    )
    db.execute("COMMIT")


def _group(folder: Path) -> Row:
    sessions = 64

    def ours() -> float:
        async def run() -> float:
            async with SQLiteLog(folder / f"{next(_count)}.db") as log:
                loop = asyncio.get_running_loop()

                async def write(session: str) -> None:
                    for version in range(50):
                        await log.append(session, [_EVENT], expected=version)

                begun = loop.time()
                await asyncio.gather(*(write(f"s{n}") for n in range(sessions)))
                return sessions * 50 / (loop.time() - begun)

        return asyncio.run(run())

    def alone() -> float:
        """The same log, one session: a commit for each call."""

        async def run() -> float:
            async with SQLiteLog(folder / f"{next(_count)}.db") as log:
                loop = asyncio.get_running_loop()
                begun = loop.time()
                for version in range(APPENDS):
                    await log.append("s", [_EVENT], expected=version)
                return APPENDS / (loop.time() - begun)

        return asyncio.run(run())

    a, b, ratio = compare(ours, alone, repetitions=5)
    return at_least("group commit, 64 sessions, against a commit per call", a, b, ratio, 10, "/s", 1)


def _replay(folder: Path) -> Row:
    path = folder / "replay.db"

    async def fill() -> None:
        async with SQLiteLog(path) as log:
            for version in range(0, EVENTS, 1000):
                await log.append("s", [_EVENT] * 1000, expected=version)

    asyncio.run(fill())

    def ours() -> float:
        async def run() -> int:
            count = 0
            async with SQLiteLog(path, read_only=True) as log:
                async for _ in log.read_all():
                    count += 1
            return count

        return EVENTS / wall(lambda: asyncio.run(run()))

    def bare() -> float:
        """The same columns of the same rows, decoded by the same decoder, and thrown away."""

        def run() -> None:
            db = sqlite3.connect(path)
            cursor = db.execute(
                "SELECT session, version, position, type, payload, hash, event_id, recorded_at, digest "
                "FROM event ORDER BY position"
            )
            count = 0
            while rows := cursor.fetchmany(1000):
                for row in rows:
                    decode_known(row[4])
                    count += 1
            db.close()
            assert count == EVENTS

        return EVENTS / wall(run)

    a, b, ratio = compare(ours, bare, repetitions=5)
    return at_least("replay, against bare fetchmany and msgspec decode", a, b, ratio, 0.7, "/s", 1)
