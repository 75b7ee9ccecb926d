"""Records out of a SQLite file: all that are asked for, or those before the first that is not whole.

A page that was torn or overwritten does not always fail to be read: rows may be missing, or hold
what no log holds. Versions and positions have no gaps, so a row that is missing is noticed by its
neighbours. Whether a text is what was written only the hash chain tells, and that is not looked at here.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batonlog.events.errors import DamagedError, LogError
from batonlog.events.facts import SessionForked
from batonlog.events.record import Record, read_rows, tag_of
from batonlog.events.sqlite_file import BROKEN, failure

_COLUMNS = "session, version, position, type, payload, hash, event_id, recorded_at, digest"
_OF_SESSION = "session = ? AND version > ? AND version <= ? ORDER BY version"
_IN_LOG = "position > ? ORDER BY position"

Found = tuple[list[Record], LogError | None]
"""What was read in order, and what is wrong with the next, if something is."""


def of_session(db: sqlite3.Connection, path: Path, session: str, after: int, until: int, limit: int) -> Found:
    """Read a session's own records."""
    found = _read(db, path, _OF_SESSION, (session, after, until), limit, session)
    return _checked(path, found, after, session)


def in_log(db: sqlite3.Connection, path: Path, after: int, limit: int) -> Found:
    """Read the whole log."""
    return _checked(path, _read(db, path, _IN_LOG, (after,), limit, None), after, None)


def _read(
    db: sqlite3.Connection, path: Path, where: str, values: Sequence[Any], limit: int, session: str | None
) -> Found:
    query = f"SELECT {_COLUMNS} FROM event WHERE {where} LIMIT {limit}"
    try:
        return read_rows(db.execute(query, values).fetchall()), None
    except (*BROKEN, DamagedError, TypeError):  # again, one by one, as far as it goes
        records: list[Record] = []
    try:
        for row in db.execute(query, values):
            if None in row[:-1]:  # no log holds that
                error = f"{path} is damaged: a row is empty; nothing was deleted. Restore a copy"
                return records, DamagedError(error, session=session)
            records += read_rows([row])
    except BROKEN as broken:
        before = _stepped_over(db, where, values, len(records))
        return records + before, failure(path, broken, session=session)
    except DamagedError as damaged:
        return records, damaged
    return records, None


def _stepped_over(db: sqlite3.Connection, where: str, values: Sequence[Any], read: int) -> list[Record]:
    """The record before the one that cannot be read: sqlite3 takes a step ahead, and drops it if that fails."""
    query = f"SELECT {_COLUMNS} FROM event WHERE {where} LIMIT 1 OFFSET {read}"
    try:
        return read_rows(db.execute(query, values).fetchall())
    except (*BROKEN, DamagedError, TypeError):  # it is that one
        return []


def _checked(path: Path, found: Found, after: int, session: str | None) -> Found:
    """Keep what stands in order, without a gap, and is a record."""
    records, error = found
    number = max(after, 0)
    for n, record in enumerate(records):
        number += 1
        if session is None:
            next_one = record.position == number
        else:
            # What comes before a fork is stored under its parent's name.
            begins = n == 0 and type(record.event) is SessionForked and record.event.at == record.version - 1
            next_one = record.session == session and (record.version == number or begins)
            number = record.version if begins else number
        if not next_one or not _is_whole(record):
            return records[:n], _missing(path, number, session)
    return records, error


def _is_whole(record: Record) -> bool:
    return (
        type(record.session) is str
        and type(record.version) is int
        and record.type == tag_of(record.event)
        and type(record.hash) is bytes
        and len(record.hash) == 32
        and type(record.id) is bytes
        and len(record.id) == 16
        and type(record.at) is int
        and type(record.payload) is bytes
        and (record.erased is None or type(record.erased) is bytes)
    )


def _missing(path: Path, number: int, session: str | None) -> DamagedError:
    which = f"position {number}" if session is None else f"record {number} of {session}"
    return DamagedError(
        f"{path} is damaged: {which} is missing or not whole; nothing was deleted. Restore a copy, or read "
        f"what is whole{'' if session is None else f': with until={number - 1}, or --at {number - 1}'}",
        session=session,
        version=None if session is None else number,
    )
