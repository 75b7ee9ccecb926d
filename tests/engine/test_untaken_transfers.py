"""A transfer that was not taken is dropped from the target's view, and takes nothing else along."""

from collections.abc import Callable
from typing import Any

import pytest

from batonlog.engine import Agent, Engine, handoff
from batonlog.engine.testing import ScriptedModel, assistant_message, function_call
from batonlog.projections import (
    FilterOutput,
    History,
    Item,
    check_legal,
    model_history,
    nest_history,
    replace_with_summary,
)


async def in_short(history: History) -> str:
    return f"in short: {len(history)} items"


def mapped(history: History) -> History:
    return nest_history(history, mapper=lambda folded: f"in short: {len(folded)} items")


def edited(history: History) -> FilterOutput:
    return [item.replace(output="no") if item.type == "function_call_output" else item for item in history]


async def shown_by(input_filter: Any) -> tuple[History, str]:
    """What refund is shown after two transfers in one response, and all text of it."""
    refund, sales = Agent("refund"), Agent("sales")
    triage = Agent("triage", handoffs=[handoff(refund, input_filter=input_filter), sales])
    both = [assistant_message("One moment."), function_call(refund, {}), function_call(sales, {})]
    async with Engine("memory:", agents=[triage], model=ScriptedModel("Hello.", both, "Done.")) as engine:
        await engine.run("hi", session="cust-42")
        await engine.run("a refund, please", session="cust-42")
        records = await engine.log.records("cust-42")
    asked = [record.version for record in records if record.type == "model.requested"][-1]
    history = model_history(records, at=asked)
    return history, "".join(item.text for item in history)


async def test_a_nest_tells_all_but_the_transfer_that_was_not_taken() -> None:
    history, text = await shown_by(nest_history)

    assert "Hello." in text
    assert "transfer_to_refund" in text
    assert "transfer_to_sales" not in text
    assert "another transfer" not in text
    assert check_legal(history) == ()


@pytest.mark.parametrize(
    "one", [replace_with_summary(in_short, keep_turns=0), mapped], ids=["summary", "mapper"]
)
async def test_a_text_about_all_stays(one: Callable[[History], object]) -> None:
    _, text = await shown_by(one)

    assert "in short: " in text


async def test_an_edited_one_is_dropped_all_the_same() -> None:
    def of(item: Item) -> object:
        return item.data.get("name")

    history, text = await shown_by(edited)

    assert [of(item) for item in history if item.type == "function_call"] == ["transfer_to_refund"]
    assert text.count("no") == 1
    assert check_legal(history) == ()
