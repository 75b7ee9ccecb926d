"""The framework's own cost of a turn: a scripted model, one tool, in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Row, at_most, compare, cpu

from batonlog.engine import Agent, Engine, Limits, tool
from batonlog.engine.testing import ScriptedModel, function_call


@tool
async def look(q: str) -> str:
    """Look something up."""
    return f"result of {q}"


def batonlog_run(turns: int) -> float:
    """CPU seconds of one run with that many model calls."""
    calls = [function_call("look", {"q": f"q{n}"}) for n in range(turns - 1)]
    agent = Agent("a", instructions="Look it up.", tools=[look])

    async def run() -> None:
        model = ScriptedModel(*calls, "done")
        async with Engine("memory:", agents=[agent], model=model, limits=Limits(turns=None)) as engine:
            result = await engine.run("go")
            assert result.final_output == "done"

    return cpu(lambda: asyncio.run(run()))


def agno_run(turns: int) -> float:
    """The same work in agno, the leanest of the other frameworks."""
    from agno.agent import Agent as AgnoAgent
    from agno.models.base import Model
    from agno.models.response import ModelResponse

    @dataclass
    class Scripted(Model):
        id: str = "scripted"
        asked: int = 0

        def answer(self) -> ModelResponse:
            self.asked += 1
            response = ModelResponse(role="assistant")
            if self.asked == turns:
                response.content = "done"
                return response
            arguments = json.dumps({"q": f"q{self.asked}"})
            call = {"id": f"call_{self.asked}", "type": "function"}
            response.tool_calls = [{**call, "function": {"name": "look", "arguments": arguments}}]
            return response

        def invoke(self, *args: Any, **kwargs: Any) -> ModelResponse:
            return self.answer()

        async def ainvoke(self, *args: Any, **kwargs: Any) -> ModelResponse:
            return self.answer()

        def invoke_stream(self, *args: Any, **kwargs: Any) -> Iterator[ModelResponse]:
            yield self.answer()

        async def ainvoke_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ModelResponse]:
            yield self.answer()

        def _parse_provider_response(self, response: Any, **kwargs: Any) -> ModelResponse:
            return response  # type: ignore[no-any-return]

        def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
            return response  # type: ignore[no-any-return]

    async def look(q: str) -> str:
        """Look something up."""
        return f"result of {q}"

    async def run() -> None:
        agent = AgnoAgent(model=Scripted(), tools=[look], instructions="Look it up.", telemetry=False)
        response = await agent.arun("go")
        assert response.content == "done"

    return cpu(lambda: asyncio.run(run()))


def rows() -> Iterator[Row]:
    """Growth with the length of a run, and the cost of a turn beside agno."""
    batonlog_run(50)
    ours, theirs, ratio = compare(lambda: batonlog_run(400), lambda: batonlog_run(100), repetitions=7)
    yield at_most("CPU of 400 turns against 100", ours, theirs, ratio, 4.6, "ms", 1e3)
    try:
        agno_run(50)
    except ImportError:
        yield Row("CPU of a turn against agno", "", "agno is not installed", 0.0, "< 1.0", None)
        return
    for turns in (100, 400):
        ours, theirs, ratio = compare(lambda: batonlog_run(turns), lambda: agno_run(turns), repetitions=7)  # noqa: B023
        yield at_most(
            f"CPU of a turn, {turns} turns, against agno", ours, theirs, ratio, 1.0, "ms", 1e3 / turns
        )
