"""Taking up what has work and no worker: once, or for ever.

A worker that dies leaves a lease behind, which runs out. Whoever says something to a session at
rest leaves one behind that has run out already. So the leases that have run out are all there
is to look at, whatever the number of sessions.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

from batonlog.engine.decide import needs_worker
from batonlog.engine.errors import RunFailedError, SessionBusyError
from batonlog.engine.sessions import Job, Sessions
from batonlog.events import BatonlogError, FencedError, LogError
from batonlog.events.log import Alarm

_LONGEST_BEAT = 1.0
"""Seconds between two looks at the leases, at the most: one runs out without anybody saying so."""

_GATHER = 0.02
"""Seconds from news to a look: what comes in by then is found by the same look."""

_log = logging.getLogger("batonlog.engine")


class Recovery:
    """Takes sessions up in the background, for one engine."""

    def __init__(self, sessions: Sessions, keep: Callable[[Coroutine[Any, Any, Any]], object]) -> None:
        self._sessions = sessions
        self._keep = keep
        self._later: dict[str, float] = {}
        """Sessions that could not be taken up, and when that is tried again."""
        self._alarms: set[Alarm] = set()

    async def once(self, *, but: Collection[str] = ()) -> tuple[str, ...]:
        """Take up every session that has work and no worker, but these; return them. Raises LogError."""
        found = [session async for session in self._sessions.log.expired() if self._is_free(session)]
        taken = [session for session in found if session not in but]
        working = [session for session in taken if await self._has_work(session)]
        for session in taken:
            self._keep(self._take_up(session))
        await asyncio.sleep(0)  # so that a resume that follows joins them
        return tuple(working)

    async def for_ever(self) -> None:
        """Do so whenever something happens, until the engine is closed."""
        beat = min(self._sessions.lease_seconds / 3, _LONGEST_BEAT)
        with self._sessions.log.watch(None) as alarm:
            self._alarms.add(alarm)
            try:
                while not self._sessions.closed:
                    try:
                        await self.once(but=self._to_wait_for())
                    except LogError as error:  # the store may come back
                        _log.warning("cannot look for work: %s", error)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(beat):
                            await alarm.wait()
                    await asyncio.sleep(_GATHER)
            finally:
                self._alarms.discard(alarm)

    def stop(self) -> None:
        """Wake up whoever does so for ever: the engine is closed."""
        for alarm in self._alarms:
            alarm.ring()

    def _is_free(self, session: str) -> bool:
        # Nested runs are recovered through their parent.
        return "/" not in session and not self._sessions.is_driven(session)

    def _to_wait_for(self) -> Collection[str]:
        now = asyncio.get_running_loop().time()
        self._later = {session: then for session, then in self._later.items() if then > now}
        return self._later

    async def _has_work(self, session: str) -> bool:
        try:
            state = await self._sessions.read(session)
        except BatonlogError:
            return False  # taking it up will say why
        return needs_worker(state)

    async def _take_up(self, session: str) -> None:
        """Drive one session. What its run comes to is in the log; what keeps it from going on is logged."""
        try:
            await self._sessions.resume(session, Job(found=True))
        except (RunFailedError, SessionBusyError, FencedError):
            return
        except Exception as error:
            if self._sessions.closed:
                return
            seconds = self._sessions.lease_seconds
            self._later[session] = asyncio.get_running_loop().time() + seconds
            _log.warning("cannot take %s up: %s: %s", session, type(error).__name__, error)
