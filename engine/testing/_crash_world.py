"""A process that may die, and what the world outside it has seen: the effects, and the models' answers.

A crash is played, not made: everything that the process does is cancelled where it is, and from
then on it appends nothing and gives no lease back. The world goes on: an effect that took place
has taken place, and a model that answered has used up its answer, whether or not anybody heard.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batonlog.engine.contexts import ToolContext
from batonlog.engine.models import Delta, ModelResponse
from batonlog.events import (
    CallRefused,
    Event,
    HandoffMade,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    Ref,
    ToolAbandoned,
    ToolReturned,
)

Effect = tuple[str, Ref]
"""Session and call: what an idempotency key says."""


@dataclass(frozen=True)
class Answer:
    """What a model came to: pieces, or what it raised after them."""

    pieces: Sequence[Delta | ModelResponse]
    error: Exception | None


@dataclass
class Performed:
    """One effect, as the world outside has seen it."""

    tool: str
    runs: int = 0
    allowed: int = 1
    """One run, and one more for each time that a person said so."""


class Process:
    """One life of all engines of a scenario."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.alive = True
        self.tasks: set[asyncio.Task[Any]] = set()
        """What it is doing."""

    def check(self) -> None:
        """Raise CancelledError if it has died."""
        if not self.alive:
            raise asyncio.CancelledError

    def point(self, where: str) -> None:
        """Go on, or die here. Raises CancelledError if it has died."""
        self.check()
        self.world.point(where)
        self.check()

    def die(self) -> None:
        """Stop everything but the caller, who has to raise."""
        self.alive = False
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()


class World:
    """One pass of a scenario.

    Args:
        crash_at: at which of the points the process dies; None for never.
    """

    def __init__(self, crash_at: int | None) -> None:
        self.process = Process(self)
        self.crashed: str | None = None
        """Where it did, in words."""
        self.performed: dict[Effect, Performed] = {}
        self.repeated: list[str] = []
        """Effects that ran again though nothing allowed it, in words."""
        self._crash_at = crash_at
        self._points = 0
        self._ended: set[Effect] = set()
        """Calls whose end is recorded."""
        self._asked: dict[str, bytes] = {}
        """Digest of the open request of each session."""
        self._unheard: dict[bytes, list[Answer]] = defaultdict(list)

    def point(self, where: str) -> None:
        """Somewhere to crash. If it is here, the process dies and another one is there."""
        here, self._points = self._points, self._points + 1
        if here == self._crash_at:
            self.crashed = where
            self.process.die()
            self.process = Process(self)

    def stored(self, session: str, events: Sequence[Event]) -> None:
        """Take note of what a worker has recorded."""
        for event in events:
            match event:
                case ModelRequested(digest=digest):
                    self._asked[session] = digest
                case ModelResponded() | ModelFailed():
                    self.unheard(self._asked.pop(session, b""))
                case ToolReturned(call=call) | ToolAbandoned(call=call) | CallRefused(call=call):
                    self._ended.add((session, call))
                case HandoffMade(call=call):
                    self._ended.add((session, call))
                case _:
                    pass

    # -- models

    def unheard(self, digest: bytes) -> Answer | None:
        """Take out an answer to this request that was given and not recorded."""
        answers = self._unheard.get(digest)
        return answers.pop(0) if answers else None

    def answered(self, digest: bytes, answer: Answer) -> None:
        """Keep an answer, until somebody has recorded it."""
        self._unheard[digest].append(answer)

    # -- effects

    def begins(self, context: ToolContext[Any], *, idempotent: bool) -> None:
        """Take note that an effect takes place, and whether it may."""
        key = (context.session, context.call)
        effect = self.performed.setdefault(key, Performed(context.tool))
        effect.runs += 1
        if key in self._ended:
            self.repeated.append(f"{context.tool} ran again for call {context.call}, whose end is recorded")
        elif effect.runs > effect.allowed and not idempotent:
            self.repeated.append(
                f"{context.tool} ran {effect.runs} times for call {context.call}, and nobody had said so"
            )

    def took_place(self, session: str, call: Ref) -> bool:
        """Whether an effect has taken place, as a person would find out."""
        return (session, call) in self.performed

    def allow(self, session: str, call: Ref) -> None:
        """Take note that a person lets an effect run once more."""
        effect = self.performed.get((session, call))
        if effect is not None:
            effect.allowed = effect.runs + 1
