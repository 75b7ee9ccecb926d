"""Append-only is enforced by the store: whatever a raw connection tries, nothing of a log is changed."""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonlog.events import NoteAdded, SQLiteLog

F, TEXT = "'f'", "'text'"
COLUMNS = "position, session, version, type, format, event_id, recorded_at, hash, digest, payload"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with two sessions, a fork of the first at 2, and a lease of epoch 2."""
    path = tmp_path_factory.mktemp("schema") / "log.db"

    async def fill() -> None:
        async with SQLiteLog(path) as log:
            await log.append("s", [NoteAdded(name="n", data=text) for text in "abc"], expected=0)
            await log.append("t", [NoteAdded(name="n", data="d")], expected=0)
            await log.fork("s", at=2, into="f")
            await log.acquire("s", owner="a", seconds=0)
            await log.acquire("s", owner="b", seconds=3600)

    asyncio.run(fill())
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    shutil.copy(filled, tmp_path)
    return tmp_path / filled.name


@pytest.fixture(params=["OFF", "ON"], ids=["recursive_triggers off", "recursive_triggers on"])
def raw(path: Path, request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    """Another program's connection."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA recursive_triggers = {request.param}")
    yield connection
    connection.close()


def copied(**changes: object) -> str:
    """A row to insert: the first record, with some columns changed."""
    chosen = [str(changes.get(column, column)) for column in COLUMNS.split(", ")]
    return f"event ({COLUMNS}) SELECT {', '.join(chosen)} FROM event WHERE position = 1"


NEW = {  # for every column of an event, something else that its type allows
    "position": "99",
    "session": "'other'",
    "version": "99",
    "type": "'run.started'",
    "format": "2",
    "event_id": "zeroblob(16)",
    "recorded_at": "0",
    "hash": "zeroblob(32)",
    "digest": "zeroblob(32)",
    "payload": "x'7b7d'",
}

ATTACKS = [
    "DELETE FROM event",
    "DELETE FROM event WHERE position = 3",
    "DELETE FROM event WHERE session = 'f'",
    *(f"UPDATE event SET {column} = {value} WHERE position = 1" for column, value in NEW.items()),
    *(f"UPDATE OR REPLACE event SET {column} = {value} WHERE position = 3" for column, value in NEW.items()),
    "UPDATE OR REPLACE event SET version = 1 WHERE position = 3",
    "UPDATE OR REPLACE event SET position = 1 WHERE position = 3",
    "UPDATE event SET rowid = 99 WHERE position = 1",
    "UPDATE event SET payload = payload",
    # a row in the place of another
    f"REPLACE INTO {copied(payload=NEW['payload'])}",
    f"REPLACE INTO {copied(position=99, payload=NEW['payload'])}",
    f"REPLACE INTO {copied(position='NULL', payload=NEW['payload'])}",
    f"REPLACE INTO {copied(version=4)}",
    f"REPLACE INTO {copied(session=NEW['session'])}",
    f"INSERT OR REPLACE INTO {copied(payload=NEW['payload'])}",
    f"INSERT OR REPLACE INTO {copied(position=4, version=4)}",
    f"INSERT OR REPLACE INTO {copied(position=6, version=3)}",
    f"INSERT INTO {copied()} AND true ON CONFLICT DO UPDATE SET payload = x'7b7d'",
    f"INSERT INTO {copied(version=4)} AND true ON CONFLICT (position) DO UPDATE SET payload = x'7b7d'",
    # a position that is taken, or before, or far behind
    f"INSERT INTO {copied(version=4)}",
    f"INSERT INTO {copied(version=4, position=5)}",
    f"INSERT INTO {copied(version=4, position=0)}",
    f"INSERT INTO {copied(version=4, position=-1)}",
    f"INSERT INTO {copied(version=4, position=-7)}",
    f"INSERT INTO {copied(version=4, position=7)}",
    f"INSERT INTO {copied(version=4, position=2**63 - 1)}",
    # a version that is taken, or before, or too far
    f"INSERT INTO {copied(position='NULL', version=0)}",
    f"INSERT INTO {copied(position='NULL', version=-1)}",
    f"INSERT INTO {copied(position='NULL', version=3)}",
    f"INSERT INTO {copied(position='NULL', version=5)}",
    f"INSERT INTO {copied(position='NULL', session=NEW['session'], version=2)}",
    f"INSERT INTO {copied(position='NULL', session=NEW['session'], version=0)}",
    f"INSERT INTO {copied(position='NULL', session=F, version=1)}",
    f"INSERT INTO {copied(position='NULL', session=F, version=2)}",
    f"INSERT INTO {copied(position='NULL', session=F, version=5)}",
    # what is no record
    f"INSERT INTO {copied(position='NULL', version=4, event_id='zeroblob(15)')}",
    f"INSERT INTO {copied(position='NULL', version=4, digest='zeroblob(31)')}",
    f"INSERT INTO {copied(position='NULL', version=4, hash='zeroblob(33)')}",
    f"INSERT INTO {copied(position='NULL', version=4, payload='NULL')}",
    f"INSERT INTO {copied(position='NULL', version=4, payload=TEXT)}",
    # where a fork begins
    "DELETE FROM fork",
    "UPDATE fork SET at = 1",
    "UPDATE fork SET parent = 't'",
    "UPDATE OR REPLACE fork SET session = 'g'",
    "REPLACE INTO fork VALUES ('f', 't', 1)",
    "INSERT OR REPLACE INTO fork VALUES ('f', 's', 1)",
    "INSERT INTO fork VALUES ('f', 's', 1) ON CONFLICT DO UPDATE SET at = 1",
    "INSERT INTO fork VALUES ('t', 's', 1)",
    # who may drive a session
    "DELETE FROM lease",
    "UPDATE lease SET epoch = 1",
    "UPDATE lease SET epoch = epoch - 1, owner = 'a'",
    "UPDATE lease SET session = 't'",
    "UPDATE OR REPLACE lease SET session = 't'",
    "REPLACE INTO lease VALUES ('s', 'a', 1, 1, 1)",
    "INSERT OR REPLACE INTO lease VALUES ('s', 'a', 3, 1, 1)",
    "INSERT INTO lease VALUES ('s', 'a', 1, 1, 1) ON CONFLICT DO UPDATE SET epoch = 1",
]


def dump(raw: sqlite3.Connection) -> list[str]:
    return list(raw.iterdump())


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_and_changes_nothing(raw: sqlite3.Connection, attack: str) -> None:
    before = dump(raw)
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute(attack)
    assert dump(raw) == before


def test_the_attacks_try_every_column(raw: sqlite3.Connection) -> None:
    columns = [name for _, name, *_ in raw.execute("PRAGMA table_info(event)")]
    assert columns == list(NEW) == COLUMNS.split(", ")


ERASURE = "payload = x'7b7d', digest = zeroblob(32)"
"""What an erasure sets: the payload without its texts, and the digest of what stood there."""


@pytest.fixture
def asked(raw: sqlite3.Connection) -> sqlite3.Connection:
    """The erasure of the first record is asked for."""
    raw.execute("INSERT INTO erasure VALUES (1, 'asked for')")
    return raw


def test_an_erasure_that_was_asked_for_is_allowed(asked: sqlite3.Connection) -> None:
    asked.execute(f"UPDATE event SET {ERASURE} WHERE position = 1")


@pytest.mark.parametrize("column", [column for column in NEW if column not in ("digest", "payload")])
def test_an_erasure_changes_nothing_but_the_payload(asked: sqlite3.Connection, column: str) -> None:
    before = dump(asked)
    with pytest.raises(sqlite3.IntegrityError):
        asked.execute(f"UPDATE event SET {column} = {NEW[column]}, {ERASURE} WHERE position = 1")
    assert dump(asked) == before


def test_an_erasure_keeps_the_digest_of_what_stood_there(asked: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        asked.execute("UPDATE event SET payload = x'7b7d' WHERE position = 1")
    asked.execute(f"UPDATE event SET {ERASURE} WHERE position = 1")
    before = dump(asked)
    for digest in ("NULL", "randomblob(32)"):
        with pytest.raises(sqlite3.IntegrityError):
            asked.execute(f"UPDATE event SET digest = {digest} WHERE position = 1")
    assert dump(asked) == before


def test_an_erasure_changes_no_other_record(asked: sqlite3.Connection) -> None:
    before = dump(asked)
    with pytest.raises(sqlite3.IntegrityError):
        asked.execute(f"UPDATE event SET {ERASURE} WHERE position = 2")
    assert dump(asked) == before


def test_what_the_log_would_do_is_allowed(raw: sqlite3.Connection) -> None:
    raw.execute(f"INSERT INTO {copied(position='NULL', version=4)}")
    raw.execute(f"INSERT INTO {copied(position=7, session=F, version=4)}")
    raw.execute("UPDATE lease SET epoch = 3, owner = 'c'")
    found = raw.execute("SELECT session, version, position FROM event WHERE position > 5")
    assert found.fetchall() == [("s", 4, 6), ("f", 4, 7)]
