"""The log in a SQLite file: the embedded default. Durable when an append returns.

One thread writes, and commits together whatever has come in by then (group commit): with
many sessions at once the cost of reaching the disk is shared. Another thread reads. Several
processes may use one file; each append is checked against the head inside its transaction.
"""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID

from batonlog.events.errors import (
    ConflictError,
    FencedError,
    UnknownSessionError,
    UsageError,
)
from batonlog.events.facts import Event, SessionForked
from batonlog.events.log import (
    Alarm,
    Appended,
    EventLog,
    Head,
    Lease,
    check_expected,
    check_lease,
    check_name,
)
from batonlog.events.news import News
from batonlog.events.record import GENESIS, Record, Sealed, link, now, seal
from batonlog.events.sqlite_file import BROKEN, connect, failure
from batonlog.events.sqlite_reading import in_log, of_session
from batonlog.events.sqlite_writer import Writer

_T = TypeVar("_T")

_CHUNK = 250
"""Records read at once: more make the collector look at them while they wait to be told."""

_HEADS = """
    SELECT session, version, hash FROM event
    WHERE (session, version) IN (SELECT session, max(version) FROM event GROUP BY session)
    ORDER BY session
"""
_BATCH = """
    SELECT event_id, payload, digest, position FROM event
    WHERE session = ? AND version > ? AND version <= ? ORDER BY version
"""
_HEAD = "SELECT version, hash FROM event WHERE session = ? ORDER BY version DESC LIMIT 1"


class SQLiteLog(EventLog):
    """A log in one file. Opened at the first use; for any number of event loops and processes.

    Args:
        path: the file; made if it is not there.
        read_only: never write; works on a log that a running process uses.

    Every method raises FormatError for a file that is not a log or of a newer format,
    DamagedError for one that cannot be read, and LogError if the store fails.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._news = News()
        self._open = threading.Lock()
        self._writer: Writer | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._reading: sqlite3.Connection | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._read(_nothing)
        return self

    # -- writing

    async def append(
        self,
        session: str,
        events: Sequence[Event],
        *,
        expected: int,
        ids: Sequence[UUID] | None = None,
        lease: Lease | None = None,
        release: bool = False,
    ) -> Appended:
        check_name(session)
        check_expected(session, expected)
        check_lease(session, lease)
        batch = seal(events, ids)
        return await self._write(lambda db: _append(db, session, batch, expected, lease, release), session)

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        check_name(into)
        (sealed,) = seal([SessionForked(parent=session, at=at)])
        return await self._write(lambda db: _fork(db, session, at, into, sealed), into)

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        return await self._write(lambda db: _acquire(db, session, owner, seconds), None)

    async def release(self, lease: Lease) -> None:
        await self._write(lambda db: _release(db, lease), None)

    def _write(self, work: Callable[[sqlite3.Connection], _T], session: str | None) -> "asyncio.Future[_T]":
        if self.read_only:
            raise UsageError(f"{self.path} was opened read_only: open it without, to append")
        return self._the_writer().submit(work, session)

    def _the_writer(self) -> Writer:
        with self._open:
            self._check_open()
            if self._writer is None:
                self._writer = Writer(self.path, self._news)
        return self._writer

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self.path} was closed: open the log again")

    # -- reading

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[Record]:
        last = until if until is not None else 1 << 62
        while True:
            find = partial(of_session, path=self.path, session=session, after=after, until=last, limit=_CHUNK)
            records, error = await self._read(find)
            for record in records:
                yield record
            if error is not None:
                raise error
            if len(records) < _CHUNK:
                return
            after = records[-1].version

    async def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Record]:
        left = limit if limit is not None else 1 << 62
        while left > 0:
            wanted = min(left, _CHUNK)
            records, error = await self._read(partial(in_log, path=self.path, after=after, limit=wanted))
            for record in records:
                yield record
            if error is not None:
                raise error
            if len(records) < wanted:
                return
            left -= len(records)
            after = records[-1].position

    async def _parent(self, session: str) -> SessionForked | None:
        query = "SELECT parent, at FROM fork WHERE session = ?"
        row = await self._read(lambda db: db.execute(query, (session,)).fetchone())
        return SessionForked(parent=row[0], at=row[1]) if row else None

    async def heads(self) -> AsyncIterator[Head]:
        for row in await self._read(lambda db: db.execute(_HEADS).fetchall()):
            yield Head(*row)

    async def head(self, session: str) -> Head | None:
        row = await self._read(lambda db: db.execute(_HEAD, (session,)).fetchone())
        return Head(session, *row) if row else None

    async def expired(self) -> AsyncIterator[str]:
        query = "SELECT session FROM lease WHERE until > 0 AND until <= ? ORDER BY session"
        for (session,) in await self._read(lambda db: db.execute(query, (now(),)).fetchall()):
            yield session

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        """As `EventLog.watch`; what other processes append is noticed within a tenth of a second."""
        return super().watch(session) if self.read_only else self._watching(session)

    @contextmanager
    def _watching(self, session: str | None) -> Iterator[Alarm]:
        with self._news.watch(session) as watch:
            self._the_writer().poke()  # from now on it looks for what others commit
            yield watch

    async def _read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._open:
            self._check_open()
            if self._reader is None:
                self._reader = ThreadPoolExecutor(1, thread_name_prefix="batonlog-read")
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._in_reader, work)

    def _in_reader(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            if self._reading is None:
                self._reading = connect(self.path, read_only=self.read_only)
            return work(self._reading)
        except BROKEN as error:
            raise failure(self.path, error) from error

    async def close(self) -> None:
        with self._open:
            if self._closed:
                return
            self._closed = True
        loop = asyncio.get_running_loop()
        if self._writer is not None:
            await loop.run_in_executor(None, self._writer.close)
        if self._reader is not None:
            await loop.run_in_executor(None, self._close_reader)

    def _close_reader(self) -> None:
        assert self._reader is not None
        self._reader.shutdown()
        if self._reading is not None:
            self._reading.close()


# -- what is done inside the writer's transaction


def _append(
    db: sqlite3.Connection,
    session: str,
    batch: list[Sealed],
    expected: int,
    lease: Lease | None,
    release: bool,
) -> Appended:
    version, previous = db.execute(_HEAD, (session,)).fetchone() or (0, GENESIS)
    if version > expected and (position := _duplicate(db, session, expected, batch)) is not None:
        return Appended(expected + len(batch), position, True)
    if lease is not None:
        held = _check_lease(db, lease)
    if version != expected:
        raise ConflictError(session, expected=expected, actual=version)
    position = _insert(db, session, version, previous, batch)
    if lease is not None:
        _renew(db, lease, held, release)
    return Appended(expected + len(batch), position, False)


def _duplicate(db: sqlite3.Connection, session: str, expected: int, batch: list[Sealed]) -> int | None:
    """The position of the last event, if this very batch stands there."""
    rows = db.execute(_BATCH, (session, expected, expected + len(batch))).fetchall()
    stands = len(rows) == len(batch) and all(
        (key, digest or sha256(payload).digest()) == (sealed.id, sealed.digest)
        for (key, payload, digest, _), sealed in zip(rows, batch, strict=True)
    )
    return int(rows[-1][3]) if stands else None


def _insert(db: sqlite3.Connection, session: str, version: int, previous: bytes, batch: list[Sealed]) -> int:
    at = now()
    position = 0
    for sealed in batch:
        version += 1
        previous = link(previous, session, version, sealed.id, sealed.digest)
        cursor = db.execute(
            "INSERT INTO event (session, version, type, event_id, recorded_at, hash, payload) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (session, version, sealed.type, sealed.id, at, previous, sealed.payload),
        )
        position = cursor.lastrowid or 0
    return position


def _fork(db: sqlite3.Connection, session: str, at: int, into: str, sealed: Sealed) -> Head:
    row = db.execute(_HEAD, (session,)).fetchone()
    if row is None:
        raise UnknownSessionError(f"no session {session} in this log", session=session)
    if not 1 <= at <= row[0]:
        raise UsageError(
            f"cannot fork {session} at version {at}: it has 1 to {row[0]}", session=session, version=at
        )
    if (taken := db.execute(_HEAD, (into,)).fetchone()) is not None:
        raise ConflictError(into, expected=0, actual=taken[0])
    base = _hash_at(db, session, at)
    db.execute("INSERT INTO fork (session, parent, at) VALUES (?, ?, ?)", (into, session, at))
    _insert(db, into, at, base, [sealed])
    version, hashed = db.execute(_HEAD, (into,)).fetchone()
    return Head(into, version, hashed)


def _hash_at(db: sqlite3.Connection, session: str, version: int) -> bytes:
    while True:
        row = db.execute(
            "SELECT hash FROM event WHERE session = ? AND version = ?", (session, version)
        ).fetchone()
        if row is not None:
            return bytes(row[0])
        (session,) = db.execute("SELECT parent FROM fork WHERE session = ?", (session,)).fetchone()


_Held = tuple[int, float, int]


def _check_lease(db: sqlite3.Connection, lease: Lease) -> _Held:
    row = db.execute("SELECT epoch, seconds, until FROM lease WHERE session = ?", (lease.session,)).fetchone()
    epoch, seconds, until = row or (0, 0.0, 0)
    if epoch != lease.epoch or until == 0:  # lost, or given back
        raise FencedError(
            f"{lease.owner} lost its lease on {lease.session} (epoch {lease.epoch}, now {epoch}): stop",
            session=lease.session,
        )
    return epoch, seconds, until


def _renew(db: sqlite3.Connection, lease: Lease, held: _Held, release: bool) -> None:
    _, seconds, until = held
    fresh = 0 if release else now() + int(seconds * 1e6)
    # A row that is touched is a page that is written: only when half of the time has gone.
    if release or until - now() < seconds * 5e5:
        db.execute("UPDATE lease SET until = ? WHERE session = ?", (fresh, lease.session))


def _acquire(db: sqlite3.Connection, session: str, owner: str, seconds: float) -> Lease | None:
    row = db.execute("SELECT owner, epoch, until FROM lease WHERE session = ?", (session,)).fetchone()
    moment = now()
    until = moment + int(seconds * 1e6)
    if row is None:
        epoch = 1
        db.execute(
            "INSERT INTO lease (session, owner, epoch, seconds, until) VALUES (?, ?, ?, ?, ?)",
            (session, owner, epoch, seconds, until),
        )
    else:
        holder, epoch, held = row
        if held > moment and holder != owner:
            return None
        if holder != owner or held == 0:
            epoch += 1  # one that ran out, and that nobody took, is still its owner's
        db.execute(
            "UPDATE lease SET owner = ?, epoch = ?, seconds = ?, until = ? WHERE session = ?",
            (owner, epoch, seconds, until, session),
        )
    return Lease(session, owner, epoch, datetime.fromtimestamp(until / 1e6, tz=UTC))


def _release(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute("UPDATE lease SET until = 0 WHERE session = ? AND epoch = ?", (lease.session, lease.epoch))


# -- what is done in the reader


def _nothing(db: sqlite3.Connection) -> None:
    """Open the file, and be told if that fails."""
