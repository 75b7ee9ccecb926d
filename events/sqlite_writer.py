"""The thread that writes to a SQLite log, and commits together whatever has come in (group commit)."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from batonlog.events.errors import LogError, UsageError
from batonlog.events.log import POLL
from batonlog.events.news import News
from batonlog.events.sqlite_file import BROKEN, connect, failure

_T = TypeVar("_T")

_GROUP = 512
"""Most jobs in one transaction."""


class _Job:
    __slots__ = ("error", "future", "loop", "result", "session", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], Any], session: str | None) -> None:
        self.work = work
        self.session = session
        """Whose followers are told; None for nobody."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: Exception | None = None

    def resolve(self) -> None:
        if self.future.done():  # nobody waits any more; what was stored stays stored
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


_POKE = object()
_STOP = object()


class Writer:
    """The thread that writes: takes what has come in, does it in one transaction, commits, answers."""

    def __init__(self, path: Path, news: News) -> None:
        self._path = path
        self._news = news
        self._jobs: SimpleQueue[_Job | object] = SimpleQueue()
        self._taken: list[_Job] = []
        """What is being done."""
        self._died: LogError | None = None
        self._thread = threading.Thread(target=self._work, name="batonlog-write", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[sqlite3.Connection], _T], session: str | None) -> "asyncio.Future[_T]":
        job = _Job(work, session)
        if self._died is not None:
            raise type(self._died)(*self._died.args)
        self._jobs.put(job)
        return job.future

    def poke(self) -> None:
        """Make it look around: somebody has begun to watch."""
        self._jobs.put(_POKE)

    def close(self) -> None:
        """Do what was submitted, then stop."""
        self._jobs.put(_STOP)
        self._thread.join()

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            # Whoever waits, and whoever comes, is told; nobody hangs.
            self._died = LogError(
                f"{self._path}: the thread that writes has died of {error!r}; open the log again"
            )
            with suppress(Empty):
                while True:
                    job = self._jobs.get_nowait()
                    self._taken += [job] if isinstance(job, _Job) else []
            _fail(self._taken, self._died)
            for job in self._taken:
                with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                    job.loop.call_soon_threadsafe(job.resolve)
            raise

    def _serve(self) -> None:
        connection: sqlite3.Connection | None = None
        seen = 0
        while True:
            self._taken, more = self._next()
            group = self._taken
            try:
                if connection is None:
                    connection = connect(self._path, read_only=False)
                if group:
                    self._commit(connection, group)
                if self._news:  # somebody watches: has another process committed?
                    (version,) = connection.execute("PRAGMA data_version").fetchone()
                    if version != seen:
                        seen = version
                        self._news.tell_all()
            except LogError as error:
                _fail(group, error)
            except BROKEN as error:
                _fail(group, failure(self._path, error))
            self._answer(group)
            if not more:
                break
        if connection is not None:
            connection.close()

    def _next(self) -> tuple[list[_Job], bool]:
        """Wait for work and take all there is; whether there may be more."""
        group: list[_Job] = []
        try:
            job = self._jobs.get(timeout=POLL if self._news else None)
            while True:
                if job is _STOP:
                    return group, False
                if isinstance(job, _Job):
                    group.append(job)
                if len(group) >= _GROUP:
                    break
                job = self._jobs.get_nowait()
        except Empty:
            pass
        return group, True

    def _commit(self, connection: sqlite3.Connection, group: list[_Job]) -> None:
        try:
            self._transact(connection, group)
        except Exception as error:
            # Whatever it was: the others go on, and so does this thread.
            if len(group) == 1:
                group[0].error = failure(self._path, error) if isinstance(error, BROKEN) else error
                return
            # One bad job must not take the others with it: each on its own.
            for job in group:
                self._commit(connection, [job])

    def _transact(self, connection: sqlite3.Connection, group: list[_Job]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in group:
                job.error = None
                try:
                    # A job raises a LogError or UsageError before it writes anything.
                    job.result = job.work(connection)
                except (LogError, UsageError) as error:
                    job.error = error
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _answer(self, group: list[_Job]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        for job in group:
            loops.setdefault(job.loop, []).append(job)
        for loop, jobs in loops.items():
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, jobs)
        if self._news:
            changed: dict[str, int] = {}
            for job in group:
                if job.session and not job.error:  # a duplicate answers with an older version
                    changed[job.session] = max(changed.get(job.session, 0), job.result.version)
            self._news.tell(changed)


def _resolve(jobs: list[_Job]) -> None:
    for job in jobs:
        job.resolve()


def _fail(group: list[_Job], error: LogError) -> None:
    for job in group:
        job.error = type(error)(*error.args)
