"""A model that answers by script."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeAlias

from batonlog.engine.agents import Agent
from batonlog.engine.handoffs import Handoff, wire_name
from batonlog.engine.models import Delta, ModelResponse
from batonlog.engine.testing._responses_script import BrokenStream
from batonlog.engine.tools import Tool
from batonlog.events import JSON, Usage
from batonlog.events.values import dump
from batonlog.projections import ModelRequest
from batonlog.projections.items import text_of

Step: TypeAlias = (
    str
    | Mapping[str, JSON]
    | Sequence[Mapping[str, JSON]]
    | Exception
    | BrokenStream
    | Callable[[ModelRequest], "Step"]
)
"""One answer: text, an item, several items, an error to raise, or a function of the request.

A `BrokenStream` (of `batonlog.engine.testing.fake_responses`) is an answer that breaks off: `after`
deltas come, one for each message, and then a ConnectionError.
"""


def assistant_message(text: str) -> dict[str, JSON]:
    """Return a message as a model says it."""
    return {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def function_call(
    target: str | Tool[Any] | Handoff[Any] | Agent[Any],
    arguments: Mapping[str, JSON] | str,
    *,
    call_id: str | None = None,
) -> dict[str, JSON]:
    """A call of a tool, or of the transfer to an agent; text arguments go out as they are, broken or not.

    Without a `call_id`, whoever serves it makes one.
    """
    match target:
        case Agent():
            name = wire_name(target.name)
        case Handoff():
            name = target.tool_name
        case Tool():
            name = target.name
        case _:
            name = target
    text = arguments if isinstance(arguments, str) else dump(dict(arguments)).decode()
    item: dict[str, JSON] = {"type": "function_call", "name": name, "arguments": text}
    return item if call_id is None else {**item, "call_id": call_id}


class ScriptedModel:
    """Answers by script. A call too many raises; `with` or `assert_complete` finds steps left over.

    Args:
        steps: one answer each.
        name: the model's name.
    """

    requests: Sequence[ModelRequest]
    """What it was asked, in order."""

    def __init__(self, *steps: Step, name: str = "scripted") -> None:
        self._steps = list(steps)
        self._next = 0
        self._name = name
        self._ids = count(1)
        self._asked: list[ModelRequest] = []
        self.requests = self._asked

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        """Yield the next answer of the script. Raises AssertionError when there is none."""
        self._asked.append(request)
        if self._next == len(self._steps):
            raise AssertionError(
                f"model {self._name} was asked {len(self._asked)} times, but its script has "
                f"{len(self._steps)} steps: add one, or find out why it is asked"
            )
        step = self._steps[self._next]
        self._next += 1
        breaks_after: int | None = None
        while isinstance(step, BrokenStream) or callable(step):
            if isinstance(step, BrokenStream):
                breaks_after, step = step.after, step.step
            else:
                step = step(request)
        if isinstance(step, Exception):
            raise step
        output = [self._complete(item) for item in _items(step)]
        texts = [text_of(item.get("content")) for item in output if item.get("type") == "message"]
        for text in list(filter(None, texts))[:breaks_after]:
            yield Delta(kind="text", text=text, agent=request.agent, turn=request.turn)
        if breaks_after is not None:
            raise ConnectionError(f"the stream of {self._name} broke off")
        yield ModelResponse(output, usage=Usage(requests=1))

    def _complete(self, item: Mapping[str, JSON]) -> Mapping[str, JSON]:
        if item.get("type") in ("function_call", "custom_tool_call") and "call_id" not in item:
            return {**item, "call_id": f"call_{next(self._ids)}"}
        return item

    def assert_complete(self) -> None:
        """Raise AssertionError if steps are left over."""
        if (left := len(self._steps) - self._next) > 0:
            raise AssertionError(
                f"model {self._name} has {left} of {len(self._steps)} steps left over: it was asked less than scripted"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.assert_complete()


def _items(step: str | Mapping[str, JSON] | Sequence[Mapping[str, JSON]]) -> Sequence[Mapping[str, JSON]]:
    match step:
        case str():
            return [assistant_message(step)]
        case Mapping():
            return [step]
        case _:
            return step
