"""Plays a field case: a real engine on a SQLite file, a model by script, tools that return what is recorded.

A scenario is a function of a `Play`. It is tried on three ways, which must come to the same:
plain, streamed, and resumed, that is with a process that dies at every append and effect in
turn and is started again. What the scenario asserts must hold every time.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import pytest
from tests.field_cases.cases import Case, Turn

from batonlog.engine import Agent, Engine, Handoff, ModelRequest, RunResult, Tool, ToolContext, handoff
from batonlog.engine.handoffs import wire_name
from batonlog.engine.testing import ScriptedModel, Step, crash_everywhere
from batonlog.events import Record
from batonlog.projections import History, model_history, session_history
from batonlog.projections.request import wire_input

Way: TypeAlias = Literal["plain", "streamed", "resumed"]
Filters: TypeAlias = Mapping[str, Any]

SESSION = "case"
_ANY = {"type": "object"}

every_way = pytest.mark.parametrize("way", ["plain", "streamed", "resumed"])


class Play:
    """A case that is being played."""

    def __init__(
        self,
        case: Case,
        path: Path | str,
        *,
        streamed: bool,
        filters: Filters,
        steps: Sequence[Step] | None = None,
        idempotent: bool = True,
        elsewhere: bool = False,
        **options: Any,
    ) -> None:
        self.case = case
        self.path = str(path)
        self.streamed = streamed
        self.turns = case.turns
        self.results: list[RunResult] = []
        self.records: tuple[Record, ...] = ()
        script = [list(answer) for turn in self.turns for answer in turn.answers] if steps is None else steps
        self.model = ScriptedModel(*script)
        self.keys: dict[str, str] = {}
        """What each call was answered with, by its idempotency key."""
        self.calls: dict[str, Callable[..., Awaitable[str]]] = {}
        """What tools do that do not return what the case says."""
        self._idempotent = idempotent
        self._elsewhere = elsewhere
        self._left = {call_id: deque(outputs) for call_id, outputs in case.outputs.items()}
        self._filters = filters
        self._options = options
        self.engine: Engine[object] = self._made()

    async def __aenter__(self) -> Self:
        await self.engine.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.engine.close()
        if error is None:
            self.model.assert_complete()

    # -- playing

    async def all(self) -> None:
        """Every turn, one after the other."""
        for turn in self.turns:
            await self.say(turn)

    async def say(self, turn: Turn | str, **options: Any) -> RunResult:
        """One run."""
        text = turn if isinstance(turn, str) else turn.text
        if self.streamed:
            stream = self.engine.stream(text, session=SESSION, **options)
            seen = [update async for update in stream]
            assert seen
            result = await stream.result()
        else:
            result = await self.engine.run(text, session=SESSION, **options)
        self.results.append(result)
        await self.read()
        return result

    async def read(self) -> None:
        """See what the log holds by now."""
        self.records = await self.engine.log.records(SESSION)

    async def restart(self, *, filters: Filters | None = None, **options: Any) -> None:
        """Close the engine, and open another on the same file; with other filters, if some are given."""
        await self.engine.close()
        self._filters = self._filters if filters is None else filters
        self._options = {**self._options, **options}
        self.engine = self._made()
        await self.engine.__aenter__()
        await self.read()

    def _made(self) -> Engine[object]:
        options = {"model": self.model, **self._options}
        agents: Any = options.pop("agents", None) or self.agents()
        agents = agents(self) if callable(agents) else agents
        return Engine(self.path, agents=agents, **options)

    # -- the cast

    def agents(self) -> list[Agent[object]]:
        """The agents of the case, with the tools that they call and the transfers that they make."""
        names = self.case.agents
        return [
            Agent(name, instructions=f"You are {name}.", tools=self.tools(name), handoffs=self.handoffs(name))
            for name in names
        ]

    def tools(self, agent: str) -> list[Tool[object]]:
        """The tools that an agent calls."""
        called = dict.fromkeys(call["name"] for name, call in self.case.calls if name == agent)
        return [self.tool(name) for name in called if self._target(name) is None]

    def tool(self, name: str) -> Tool[object]:
        """A tool that returns what the case says."""
        answer = None if self._elsewhere else self.answer
        return Tool(name, answer, parameters=_ANY, strict=False, idempotent=self._idempotent)

    async def answer(self, context: ToolContext[object], arguments: dict[str, Any]) -> str:
        """What a call returns: the next output that is recorded under its id."""
        if context.tool in self.calls:
            return await self.calls[context.tool](context, arguments)
        key = context.idempotency_key
        if key not in self.keys:
            self.keys[key] = self._left[context.call_id].popleft()
        return self.keys[key]

    def handoffs(self, agent: str) -> list[Handoff[object]]:
        """The transfers that an agent makes."""
        called = dict.fromkeys(call["name"] for name, call in self.case.calls if name == agent)
        found = [target for name in called if (target := self._target(name)) is not None]
        return [self.handoff(agent, target) for target in found]

    def handoff(self, source: str, target: str) -> Handoff[object]:
        """A transfer with the filter that the case names; none of its own, if that is given no more."""
        named = self.case.filters_of(source, target)
        filters = [self._filters[name] for name in named if name in self._filters]
        return handoff(target, input_filter=filters) if filters else handoff(target)

    def _target(self, tool: str) -> str | None:
        return next((name for name in self.case.agents if wire_name(name) == tool), None)

    # -- what came of it

    @property
    def requests(self) -> Sequence[ModelRequest]:
        """What the model was asked."""
        return self.model.requests

    @property
    def session(self) -> History:
        """All that was said and done."""
        return session_history(self.records)

    @property
    def view(self) -> History:
        """What a model is shown."""
        return model_history(self.records)

    def first_request(self, agent: str) -> ModelRequest:
        """The first request of an agent."""
        return next(request for request in self.requests if request.agent == agent)

    def events(self, kind: type[Any]) -> list[Any]:
        """All events of a kind."""
        return [record.event for record in self.records if isinstance(record.event, kind)]


def shown(history: History) -> list[str]:
    """What a history holds, in a few words an item."""
    return [_word(item.data) for item in history]


def _word(data: Mapping[str, Any]) -> str:
    match data.get("type", "message"):
        case "function_call":
            return f"{data['call_id']} {data['name']}"
        case "function_call_output":
            return f"{data['call_id']} = {data['output']}"
        case "message":
            content = data["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            return f"{data['role']}: {text}"
        case kind:
            return str(kind)


def sent(items: History) -> bytes:
    """The bytes that go out of a view that is sent in full."""
    return b"\n".join(wire_input(items))


Scenario: TypeAlias = Callable[[Play], Awaitable[None]]


async def played(
    case: Case, scenario: Scenario, way: Way, folder: Path, *, filters: Filters | None = None, **options: Any
) -> None:
    """Have a case played on one way, and what the scenario asserts hold."""

    async def once(path: Path | str) -> None:
        async with Play(case, path, streamed=way == "streamed", filters=filters or {}, **options) as play:
            await scenario(play)

    if way == "resumed":
        report = await crash_everywhere(once)
        assert report.wrong_logs == ()
        assert report.repeated_effects == ()
        assert report.boundaries > 3
    else:
        await once(folder / "case.db")
