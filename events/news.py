"""Waking up whoever follows a log in this process. A hint that may come for nothing."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf


class Watch:
    """One follower's alarm: set when the session may have changed."""

    __slots__ = ("_event", "_loop", "_newest", "session")

    def __init__(self, session: str | None) -> None:
        self.session = session
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._newest: float = 0

    async def wait(self) -> None:
        """Return when something may have been appended since the last call, or it was rung for."""
        await self._event.wait()
        self._event.clear()

    def after(self, version: int) -> bool:
        """Whether there may be something after that version."""
        newest, self._newest = self._newest, 0
        return newest > version

    def ring(self, version: float = 0) -> None:
        """Wake the follower up, from any thread; `version` is where the session is now."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._note(version)
        else:
            with suppress(RuntimeError):  # its loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._note, version)

    def _note(self, version: float) -> None:
        self._newest = max(self._newest, version)
        self._event.set()


class News:
    """Who watches which session. May be rung from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[str | None, set[Watch]] = {}

    @contextmanager
    def watch(self, session: str | None) -> Iterator[Watch]:
        """Watch one session, or with None the whole log."""
        watch = Watch(session)
        with self._lock:
            self._watches.setdefault(session, set()).add(watch)
        try:
            yield watch
        finally:
            with self._lock:
                watches = self._watches[session]
                watches.discard(watch)
                if not watches:
                    del self._watches[session]

    def __bool__(self) -> bool:
        return bool(self._watches)

    def tell(self, changed: Mapping[str, int]) -> None:
        """Ring for these sessions, with their new versions, and for those who watch the whole log."""
        if not self._watches:
            return
        with self._lock:
            found: list[tuple[Watch, float]] = [
                (watch, at) for name, at in changed.items() for watch in self._watches.get(name, ())
            ]
            found += [(watch, inf) for watch in self._watches.get(None, ())]
        for watch, at in found:
            watch.ring(at)

    def tell_all(self) -> None:
        """Ring for everyone: something changed, and nobody knows what."""
        with self._lock:
            found = [watch for watches in self._watches.values() for watch in watches]
        for watch in found:
            watch.ring(inf)
