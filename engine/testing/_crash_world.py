"""A process that may die, and what the world outside it has seen: the effects, and the models' answers.

A crash is played, not made: everything that the process does is cancelled where it is, and from
then on it appends nothing and gives no lease back. The world goes on: an effect that took place
has taken place, and a model that answered has used up its answer, whether or not anybody heard.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from batonlog.engine.contexts import ToolContext
from batonlog.engine.models import Delta, Model, ModelResponse
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
from batonlog.projections import ModelRequest

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
    key: str
    """The idempotency key that it had first."""
    runs: int = 0
    allowed: int = 1
    """One run, and one more for each time that a person said so."""


class Effects:
    """All effects of one pass, as the world outside has seen them."""

    def __init__(self) -> None:
        self.repeated: list[str] = []
        """Those that ran again though nothing allowed it, in words."""
        self.repeated_idempotent: list[str] = []
        """Those of idempotent tools that ran again, with the key that they had, in words."""
        self._performed: dict[Effect, Performed] = {}
        self._ended: set[Effect] = set()
        """Calls whose end is recorded."""

    def begins(self, session: str, call: Ref, tool: str, key: str, *, idempotent: bool) -> None:
        """Take note that an effect takes place, and whether it may."""
        effect = (session, call)
        seen = self._performed.setdefault(effect, Performed(tool, key))
        seen.runs += 1
        if effect in self._ended:
            self.repeated.append(f"{tool} ran again for call {call} of {session}, whose end is recorded")
        elif key != seen.key:
            self.repeated.append(
                f"{tool} ran again for call {call} of {session} with another key: {key} instead of {seen.key}"
            )
        elif idempotent and seen.runs > 1:
            self.repeated_idempotent.append(
                f"{tool} ran again for call {call} of {session} with the same key"
            )
        elif seen.runs > seen.allowed:
            self.repeated.append(
                f"{tool} ran {seen.runs} times for call {call} of {session}, and nobody had said so"
            )

    def ended(self, session: str, call: Ref) -> None:
        """Take note that the end of a call is recorded: it must not run again."""
        self._ended.add((session, call))

    def took_place(self, session: str, call: Ref) -> bool:
        """Whether an effect has taken place, as a person would find out."""
        return (session, call) in self._performed

    def allow(self, session: str, call: Ref) -> None:
        """Take note that a person lets an effect run once more."""
        seen = self._performed.get((session, call))
        if seen is not None:
            seen.allowed = seen.runs + 1


def ends_of(events: Iterable[Event]) -> Iterator[Ref]:
    """Yield the calls whose ends these events record."""
    for event in events:
        if isinstance(event, ToolReturned | ToolAbandoned | CallRefused | HandoffMade):
            yield event.call


async def listen(model: Model, request: ModelRequest) -> Answer:
    """Return what a model comes to."""
    pieces: list[Delta | ModelResponse] = []
    try:
        async for piece in model.respond(request):
            pieces.append(piece)  # noqa: PERF401  # what came before an error counts
    except Exception as error:
        return Answer(pieces, error)
    return Answer(pieces, None)


class Outside(Protocol):
    """What a client needs of the world outside the process."""

    @property
    def crashed(self) -> bool:
        """Whether the process has died at all."""
        ...

    @property
    def effects(self) -> Effects:
        """What it has done."""
        ...

    def allow(self, session: str, call: Ref) -> None:
        """Take note that a person lets an effect run once more."""


class Life(Protocol):
    """What the ports of a worker need of the process that it lives in."""

    def point(self, where: str) -> None:
        """Go on, or die here."""

    def begins(self, context: ToolContext[Any], *, idempotent: bool) -> None:
        """Tell the world that an effect takes place."""

    def ends(self, context: ToolContext[Any]) -> None:
        """Tell the world that it has."""

    async def answer(self, model: Model, request: ModelRequest) -> Answer:
        """Ask a model."""
        ...

    def attribute(self, model: Model, agent: str, name: str) -> Any:
        """Return what else a model has. Raises AttributeError."""


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

    def begins(self, context: ToolContext[Any], *, idempotent: bool) -> None:
        """Tell the world that an effect takes place."""
        self.world.effects.begins(
            context.session, context.call, context.tool, context.idempotency_key, idempotent=idempotent
        )

    def ends(self, context: ToolContext[Any]) -> None:
        """Tell the world that it has: nobody asks."""

    async def answer(self, model: Model, request: ModelRequest) -> Answer:
        """Ask a model, unless it has answered this and nobody has recorded it."""
        answer = self.world.unheard(request.digest)
        if answer is None:
            answer = await listen(model, request)
        self.world.answered(request.digest, answer)
        return answer

    def attribute(self, model: Model, agent: str, name: str) -> Any:
        """Return what else a model has. Raises AttributeError."""
        return getattr(model, name)

    def die(self) -> None:
        """Stop everything but the caller, who has to raise."""
        self.alive = False
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()


class World:
    """One pass of a scenario.

    Args:
        crash_at: at which of the points the process dies.
    """

    def __init__(self, crash_at: Collection[int]) -> None:
        self.process = Process(self)
        self.crashes: list[str] = []
        """Where it did, in words."""
        self.effects = Effects()
        self.points = 0
        """How many it has passed."""
        self._crash_at = crash_at
        self._asked: dict[str, bytes] = {}
        """Digest of the open request of each session."""
        self._unheard: dict[bytes, list[Answer]] = defaultdict(list)

    @property
    def crashed(self) -> bool:
        """Whether it has died at all."""
        return bool(self.crashes)

    def point(self, where: str) -> None:
        """Somewhere to crash. If it is here, the process dies and another one is there."""
        here, self.points = self.points, self.points + 1
        if here in self._crash_at:
            self.crashes.append(where)
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
                case _:
                    pass
        for call in ends_of(events):
            self.effects.ended(session, call)

    def allow(self, session: str, call: Ref) -> None:
        """Take note that a person lets an effect run once more."""
        self.effects.allow(session, call)

    # -- models

    def unheard(self, digest: bytes) -> Answer | None:
        """Take out an answer to this request that was given and not recorded."""
        answers = self._unheard.get(digest)
        return answers.pop(0) if answers else None

    def answered(self, digest: bytes, answer: Answer) -> None:
        """Keep an answer, until somebody has recorded it."""
        self._unheard[digest].append(answer)
