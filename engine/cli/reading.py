"""Opening a log to read it, and finding a session in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from batonlog.events import EventLog, Record, UnknownSessionError, UsageError, open_log

LogPath: TypeAlias = Annotated[
    str,
    typer.Option(
        "--log",
        "-l",
        envvar="BATONLOG_LOG",
        metavar="PATH",
        help="The log: a file such as support.db. It is only read, also while a process writes to it.",
        show_default=False,
    ),
]
SessionName: TypeAlias = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session's name.", show_default=False)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@asynccontextmanager
async def opened(path: str) -> AsyncIterator[EventLog]:
    """Open a log to read it. Raises UsageError if there is none, LogError for what is no log."""
    _check_there(path)
    async with open_log(path, read_only=True) as log:
        yield log


def _check_there(path: str) -> None:
    if path == "memory:":
        raise UsageError("memory: is a log within one process, and empty here; name a file")
    if "://" not in path and not Path(path).exists():
        raise UsageError(f"there is no log {path}; `batonlog demo` makes one to look at")


async def whole_session(log: EventLog, session: str, *, at: int | None = None) -> tuple[Record, ...]:
    """Return a session's records, up to version `at`.

    Raises UnknownSessionError, with names that are close, and UsageError for a version that is not there.
    """
    records = await log.records(session, until=at)
    head = await log.head(session)
    if head is None:
        raise await _unknown(log, session)
    if at is not None:
        check_version(session, at, head.version)
    return records


def check_version(session: str, at: int, last: int, *, cure: str = "") -> None:
    """Raise UsageError for a version that a session has not reached."""
    if at > last:
        more = f"; {cure}" if cure else ""
        raise UsageError(
            f"{session} is at version {last}; there is no version {at}{more}", session=session, version=at
        )


async def _unknown(log: EventLog, session: str) -> UnknownSessionError:
    known = [head.session async for head in log.heads()]
    close = get_close_matches(session, known, n=3, cutoff=0.5)
    if close:
        cure = f"did you mean {' or '.join(close)}?"
    elif known:
        cure = f"`batonlog log list` shows the {len(known)} that are there"
    else:
        cure = "the log is empty"
    return UnknownSessionError(f"no session {session} in this log; {cure}", session=session)
