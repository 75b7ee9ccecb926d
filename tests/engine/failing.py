"""What tests of failing models share: models that fail by script, and a clock that nobody waits for."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from batonlog.engine import Delta, ModelRequest, ModelResponse, UnavailableError
from batonlog.engine.testing import assistant_message
from batonlog.events import ModelFailed, ModelRequested, Record, Usage

USED = Usage(requests=1, input_tokens=7, output_tokens=3, total_tokens=10)


class Shared:
    """Several models that answer from one script: whoever is asked takes the next step."""

    def __init__(self, *steps: Any, tail: bool = False) -> None:
        self.steps = list(steps)
        self.scripted = len(self.steps)
        self.tail = tail
        """Whether "done" is said when the script is over."""
        self.asked: list[tuple[str, ModelRequest]] = []

    def model(self, name: str) -> "Named":
        return Named(self, name)

    @property
    def names(self) -> list[str]:
        """Who was asked, in order."""
        return [name for name, _ in self.asked]


class Named:
    """One model of a shared script."""

    def __init__(self, shared: Shared, name: str) -> None:
        self.name = name
        self._shared = shared

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        self._shared.asked.append((self.name, request))
        if not self._shared.steps and self._shared.tail:
            step: Any = "done"
        else:
            step = self._shared.steps.pop(0)
        if isinstance(step, Exception):
            yield Delta(kind="text", text="half", agent=request.agent, turn=request.turn)
            raise step
        items: Sequence[Any] = [assistant_message(step)] if isinstance(step, str) else step
        items = items if isinstance(items, list) else [items]
        yield ModelResponse(items, usage=USED)


def down(after: float | None = None, *, again: bool = True) -> UnavailableError:
    return UnavailableError("down", after=after, again=again)


class Clock:
    """Takes the place of `effects.pause`: remembers the waits, and lets nobody wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)


def failed_in(records: Sequence[Record]) -> list[ModelFailed]:
    return [record.event for record in records if isinstance(record.event, ModelFailed)]


def issuers_in(records: Sequence[Record]) -> list[str]:
    return [record.event.issuer[1] for record in records if isinstance(record.event, ModelRequested)]
