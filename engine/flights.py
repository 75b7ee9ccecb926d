"""Effects in flight, and the one who waits for them.

One effect alone (a model call, a single tool) runs in the waiter's own task: that costs no
task and no turn of the event loop. Several run each in a task of their own. Either way an
effect can be interrupted without its waiter being cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from batonlog.engine.outcomes import Outcome
from batonlog.events import BatonlogError, Ref
from batonlog.events.log import Alarm

LOOKOUT = 0.02
"""Seconds after which somebody looks out for news while one effect runs alone."""

Key = Ref | int
"""A call by its key, the model request by its version."""

Effect = Coroutine[Any, Any, Outcome]


class Flights:
    """The effects of one session."""

    def __init__(self) -> None:
        self.landed: list[Outcome] = []
        """What effects came to."""
        self._alone: tuple[Key, Effect] | None = None
        """Announced, and run by whoever waits next."""
        self._here: asyncio.Task[Any] | None = None
        """The task in which the one effect is running."""
        self._interrupted = False
        self._tasks: dict[Key, asyncio.Task[Outcome]] = {}
        self._alarm: Alarm | None = None

    def __bool__(self) -> bool:
        return self._alone is not None or bool(self._tasks)

    def in_flight(self) -> list[Key]:
        """The keys of what is in flight."""
        return [*self._tasks, *([self._alone[0]] if self._alone is not None else [])]

    def start(self, effects: list[tuple[Key, Effect]], alarm: Alarm, *, may_wait: bool) -> None:
        """Start effects; `may_wait` says that nothing else can follow while they are under way."""
        self._alarm = alarm
        if len(effects) == 1 and may_wait and not self:
            self._alone = effects[0]
            return
        loop = asyncio.get_running_loop()
        for key, effect in effects:
            task = self._tasks[key] = loop.create_task(effect)
            task.add_done_callback(partial(self._land, key))

    def _land(self, key: Key, task: asyncio.Task[Outcome]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
            if not task.cancelled():
                self.landed.append(task.result())
        if self._alarm is not None:
            self._alarm.ring()

    def collect(self) -> None:
        """Take in what has just ended, and of which nobody was told yet."""
        for key, task in list(self._tasks.items()):
            if task.done():
                self._land(key, task)

    async def wait(self, news: Callable[[], Awaitable[bool]]) -> None:
        """Wait until an effect has come to something, or `news` finds that something has happened.

        `news` is called after the alarm has gone off.
        """
        if self._alone is not None:
            await self._run_here(*self._alone, news)
            return
        assert self._alarm is not None
        while not self.landed and self._tasks:
            await self._alarm.wait()
            if await news():
                return

    async def _run_here(self, key: Key, effect: Effect, news: Callable[[], Awaitable[bool]]) -> None:
        loop = asyncio.get_running_loop()
        self._here = task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        lookouts: list[asyncio.Task[None]] = []
        timer = loop.call_later(LOOKOUT, lambda: lookouts.append(loop.create_task(self._look_out(news))))
        try:
            outcome = await effect
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
        else:
            self.landed.append(outcome)
        finally:
            self._here, self._alone = None, None
            timer.cancel()
            for lookout in lookouts:
                lookout.cancel()
            if self._interrupted:
                self._interrupted = False
                if task.uncancel() > cancelled_before:  # the waiter is wanted to stop as well
                    raise asyncio.CancelledError

    async def _look_out(self, news: Callable[[], Awaitable[bool]]) -> None:
        assert self._alarm is not None
        while self._here is not None:
            await self._alarm.wait()
            try:
                await news()
            except BatonlogError:  # whoever appends next finds out himself
                return

    def interrupt(self, keys: list[Key] | None = None) -> None:
        """Cancel effects: these, or all. Nobody waits for what they come to."""
        for key in self.in_flight() if keys is None else keys:
            if (task := self._tasks.get(key)) is not None:
                task.cancel()
            elif self._here is not None and not self._interrupted:
                self._interrupted = True
                self._here.cancel()

    async def give_up(self) -> None:
        """Cancel all, and see them out."""
        if self._alone is not None and self._here is None:
            self._alone[1].close()  # announced, and never begun
        self._alone = None
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
