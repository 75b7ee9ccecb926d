"""Waking up whoever follows a log in this process. A hint that may come for nothing."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Watch:
    """One follower's alarm: set when the session may have changed."""

    __slots__ = ("_event", "_loop", "session")

    def __init__(self, session: str | None) -> None:
        self.session = session
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Return when something may have been appended since the last call."""
        await self._event.wait()
        self._event.clear()

    def ring(self) -> None:
        """Wake the follower up, from any thread."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._event.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)


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

    def tell(self, sessions: Iterable[str]) -> None:
        """Ring for these sessions, and for those who watch the whole log."""
        if not self._watches:
            return
        with self._lock:
            found = [watch for name in (*sessions, None) for watch in self._watches.get(name, ())]
        for watch in found:
            watch.ring()

    def tell_all(self) -> None:
        """Ring for everyone: something changed, and nobody knows what."""
        with self._lock:
            found = [watch for watches in self._watches.values() for watch in watches]
        for watch in found:
            watch.ring()
