"""The harness that plays crashes: what it finds, and what it refuses.

What is crashed, and is not hurt, stands in test_crash_scenarios.py; real crashes in test_kills.py.
"""

from typing import Any

import pytest
from tests.engine.crash_scenarios import REFUND, triage

from batonlog.engine import (
    Agent,
    Engine,
    Tool,
    ToolContext,
    tool,
)
from batonlog.engine import decide as decisions
from batonlog.engine.testing import ScriptedModel, crash_everywhere, function_call
from batonlog.events import UsageError

# -- played crashes


async def test_a_context_outlives_the_crash_with_its_caller() -> None:
    @tool(idempotent=True)
    async def greet(context: ToolContext[str]) -> str:
        return f"Hello, {context.context}."

    async def scenario(path: str) -> None:
        agent = Agent[str]("greeter", tools=[greet])
        with ScriptedModel(function_call(greet, {}), "Greeted.") as model:
            async with Engine(path, agents=[agent], model=model) as engine:
                await engine.run("hi", session="cust-42", context="Li")

    assert not (await crash_everywhere(scenario)).wrong_logs


async def test_what_is_reported_to_the_model_as_unknown_is_not_wrong() -> None:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        return "sent"

    send = Tool("send", call, on_unknown="report")

    async def scenario(path: str) -> None:
        with ScriptedModel(function_call(send, {}), "Sent.") as model:
            async with Engine(path, agents=[Agent("sender", tools=[send])], model=model) as engine:
                await engine.run("send it", session="cust-42")

    report = await crash_everywhere(scenario)
    assert report.wrong_logs == report.repeated_effects == ()


# -- what the harness finds


async def test_a_tool_that_only_says_that_it_is_idempotent_is_found_out() -> None:
    async def scenario(path: str) -> None:
        counted = 0

        @tool(idempotent=True)
        async def count() -> int:
            nonlocal counted
            counted += 1
            return counted

        with ScriptedModel(function_call(count, {}), "Counted.") as model:
            async with Engine(path, agents=[Agent("counter", tools=[count])], model=model) as engine:
                await engine.run("count", session="cust-42")

    report = await crash_everywhere(scenario)
    assert report.wrong_logs
    assert all(
        "crashed when count was done" in wrong or "before tool.returned" in wrong
        for wrong in report.wrong_logs
    )


async def test_an_engine_that_repeats_effects_in_silence_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "_after_loss", lambda call, offer: None)

    async def scenario(path: str) -> None:
        with ScriptedModel(REFUND, "Refunded.") as model:
            async with Engine(path, agents=[triage], model=model) as engine:
                await engine.run("refund", session="cust-42")

    report = await crash_everywhere(scenario)
    assert report.repeated_effects
    assert all("issue_refund ran 2 times" in repeated for repeated in report.repeated_effects)


async def test_an_engine_that_loses_results_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def abandon(call: Any, offer: object) -> Any:
        return decisions.abandoned(call, "cancelled", "lost")

    monkeypatch.setattr(decisions, "_after_loss", abandon)

    async def scenario(path: str) -> None:
        with ScriptedModel(REFUND, "Refunded.") as model:
            async with Engine(path, agents=[triage], model=model) as engine:
                await engine.run("refund", session="cust-42")

    assert any("'lost'" in wrong for wrong in (await crash_everywhere(scenario)).wrong_logs)


async def test_a_scenario_that_does_something_else_each_time_is_refused() -> None:
    said = iter(("one", "another"))

    async def scenario(path: str) -> None:
        async with Engine(path, agents=[triage], model=ScriptedModel(next(said))) as engine:
            await engine.run("hi", session="cust-42")

    with pytest.raises(UsageError, match="does not do the same twice"):
        await crash_everywhere(scenario)


async def test_a_scenario_that_records_elsewhere_is_refused() -> None:
    async def scenario(path: str) -> None:
        async with Engine("memory:", agents=[triage], model=ScriptedModel("Hello.")) as engine:
            await engine.run("hi", session="cust-42")

    with pytest.raises(UsageError, match="recorded nothing"):
        await crash_everywhere(scenario)


async def test_what_a_scenario_raises_by_itself_is_raised() -> None:
    async def scenario(path: str) -> None:
        raise LookupError("my own fault")

    with pytest.raises(LookupError, match="my own fault"):
        await crash_everywhere(scenario)
