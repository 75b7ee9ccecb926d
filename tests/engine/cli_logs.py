"""What the tests of the command line have in common: logs to look at, and reading what it prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from batonlog.events import JSON, Event, Record, SQLiteLog
from batonlog.events.values import load

Batonlog: TypeAlias = Callable[..., Any]

NASTY = "\x1b[31mred\x1b[0m [bold]loud[/bold] :smile: \ud800 \u202e\u2028\nsecond line\ttab 退款专家"


async def add(path: Path, session: str, *events: Event, expected: int = 0) -> None:
    async with SQLiteLog(path) as log:
        await log.append(session, events, expected=expected)


async def records_of(path: Path, session: str) -> tuple[Record, ...]:
    async with SQLiteLog(path, read_only=True) as log:
        return await log.records(session)


def documents(text: str) -> list[dict[str, JSON]]:
    """The documents that were printed, one a line."""
    return [load(line.encode()) for line in text.split("\n") if line]
