"""Appending to a store that may fail, so that nothing is stored twice and nobody is left in doubt."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from batonlog.events import (
    ConflictError,
    DamagedError,
    Event,
    EventLog,
    FencedError,
    FormatError,
    Lease,
    LogError,
    SessionForked,
    UsageError,
)
from batonlog.events.log import Appended

_T = TypeVar("_T")

_TRIES = 6
"""How often one batch is given to a store that fails."""

_FIRST_PAUSE = 0.05
"""Seconds before the second try; twice as long each time."""


async def store(
    log: EventLog,
    session: str,
    events: Sequence[Event],
    *,
    expected: int,
    ids: Sequence[UUID],
    lease: Lease | None = None,
    release: bool = False,
) -> Appended:
    """Append a batch. One whose outcome is unknown is repeated, the same bytes and ids, until it is answered.

    Raises what `EventLog.append` raises; LogError only when the store has failed again and again.
    """

    def append() -> Awaitable[Appended]:
        return log.append(session, events, expected=expected, ids=ids, lease=lease, release=release)

    return await until_answered(append)


async def fork(log: EventLog, session: str, *, at: int, into: str) -> None:
    """Fork a session, also in a store that fails. Raises what `EventLog.fork` raises."""
    doubtful = False

    async def once() -> None:
        nonlocal doubtful
        try:
            await log.fork(session, at=at, into=into)
        except ConflictError:
            if not doubtful or not await _is_fork(log, session, at, into):
                raise
        except LogError:
            doubtful = True
            raise

    await until_answered(once)


async def _is_fork(log: EventLog, session: str, at: int, into: str) -> bool:
    """Whether `into` is a fork of just this, and nothing has happened in it yet."""
    own = [record.event async for record in log.read(into)]
    return own == [SessionForked(parent=session, at=at)]


async def until_answered(do: Callable[[], Awaitable[_T]]) -> _T:
    """Do what may be done again without harm, until the store answers, or has failed again and again."""
    pause = _FIRST_PAUSE
    for _ in range(_TRIES - 1):
        try:
            return await do()
        except (ConflictError, FencedError, DamagedError, FormatError, UsageError):
            raise
        except LogError:
            await asyncio.sleep(pause)
            pause *= 2
    return await do()
