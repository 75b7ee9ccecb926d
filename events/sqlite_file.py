"""Opening a SQLite file as a log: ours or not, new or old, to write or to read."""

import sqlite3
import time
from importlib.resources import files
from pathlib import Path

from batonlog.events.errors import DamagedError, FormatError, LogError

APPLICATION_ID = 0x62744C67
"""`btLg` in the file's header: how a log is told from any other database."""

FORMAT = 1
"""Number of the stored format, in `user_version`. Not frozen before the first release."""

_BUSY_SECONDS = 30

BROKEN = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises; the latter where it cannot even say what is wrong, or a name is no text any more."""

_SMALLEST = 512
"""Bytes of the smallest page: no database is smaller."""


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the file and check that it is a log, making one of a file that is not there.

    Raises FormatError for another program's file or a newer format, and LogError for a file
    that cannot be opened. Nothing is changed then.
    """
    if read_only and not path.exists():
        raise LogError(f"{path} is not there; to start a log, open it without read_only")
    if path.is_dir():
        raise LogError(f"{path} is a folder; name a file in it")
    if path.is_file() and 0 < path.stat().st_size < _SMALLEST:
        raise _no_database(path)  # SQLite would take a file of one byte for an empty one, and write over it
    try:
        connection = _open(path, read_only)
    except BROKEN as error:
        raise failure(path, error) from error
    try:
        _check(connection, path, read_only)
    except BROKEN as error:
        connection.close()
        raise failure(path, error) from error
    except LogError:
        connection.close()
        raise
    return connection


def _open(path: Path, read_only: bool) -> sqlite3.Connection:
    uri = path.absolute().as_uri() + ("?mode=ro" if read_only else "")
    connection = sqlite3.connect(
        uri,
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=_BUSY_SECONDS,
        cached_statements=64,
    )
    connection.execute("PRAGMA recursive_triggers = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    if read_only and _lost_its_end(path):  # SQLite would open none of it; so it is read up to there
        connection.execute("PRAGMA writable_schema = ON")
    return connection


def _lost_its_end(path: Path) -> bool:
    """Whether a database is shorter than its header says: the size of its pages, and their number."""
    with path.open("rb") as file:
        header = file.read(32)
    return path.stat().st_size < int.from_bytes(header[16:18], "big") * int.from_bytes(header[28:32], "big")


def _check(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    application, number = _ids(connection)
    if application == 0 and not read_only:
        if number == 0 and _is_empty(connection):
            _use_wal(connection)
            _create(connection)
        # Ours now, or that of a process that was faster: it may have committed between two looks.
        application, number = _ids(connection)
    if application == 0 and number == 0 and read_only and _is_empty(connection):
        raise FormatError(
            f"{path} is empty: no log was started in it. To start one, open it without read_only"
        )
    if application != APPLICATION_ID:
        raise FormatError(
            f"{path} is a database of another program (application id {application:#x}); "
            f"nothing was changed. Give the log a file of its own"
        )
    if number > FORMAT:
        raise FormatError(
            f"{path} has format {number}; this batonlog reads up to {FORMAT}. "
            f"Upgrade batonlog; nothing was changed"
        )
    if not read_only:
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Have the file keep a write-ahead log, which it remembers; wait for who is in the way.

    SQLite waits in every other statement. Here it upgrades a lock, where two that waited would
    wait for each other, so it fails at once (`sqlite3BtreeSetVersion` in btree.c).
    """
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise
            time.sleep(0.005)


def _ids(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    return application, number


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None


def _create(connection: sqlite3.Connection) -> None:
    schema = files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection):  # another process may have been faster
            for statement in _statements(schema):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """Split a script; executescript would commit our transaction."""
    statements, current = [], ""
    for line in script.splitlines():
        current += line + "\n"
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements


def failure(path: Path, error: Exception, *, session: str | None = None) -> LogError:
    """Say what one of the errors in BROKEN means for this file, and what to do."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_NOTADB"):
        return _no_database(path)
    if name.startswith("SQLITE_CORRUPT") or _is_damage(error):
        of = f" where {session} is read" if session is not None else ""
        return DamagedError(
            f"{path} is damaged{of} ({error}); nothing was deleted. Restore a copy, or read what "
            f"is whole, read_only",
            session=session,
        )
    if name.startswith("SQLITE_READONLY"):
        return LogError(
            f"{path} cannot be written: make the file and its folder writable, or open it read_only"
        )
    if name.startswith("SQLITE_CANTOPEN"):
        return LogError(f"{path} cannot be opened: is there such a folder, and may this process use it?")
    if name.startswith("SQLITE_FULL"):
        return LogError(f"{path}: the disk is full; nothing was stored. Make room and repeat")
    if name.startswith("SQLITE_BUSY"):
        return LogError(f"{path} was locked by another process for {_BUSY_SECONDS} s; repeat")
    return LogError(f"{path}: {error}")


def _is_damage(error: Exception) -> bool:
    """Whether a file that is a log lacks what every log has, or holds a name that is no text."""
    return isinstance(error, UnicodeDecodeError) or str(error).startswith(
        ("no such ", "Could not decode to UTF-8")
    )


def _no_database(path: Path) -> FormatError:
    return FormatError(f"{path} is no database; nothing was changed. Give the log a file of its own")
