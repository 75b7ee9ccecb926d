"""What the laws have found in filters and rewrites, each as its smallest example."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from batonlog.engine import Agent, Engine, handoff
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import JSON, HistoryRewritten, MemoryLog, Ref, Rewrite
from batonlog.events.codec import fresh
from batonlog.events.values import dump
from batonlog.projections import (
    Filter,
    FilterInput,
    History,
    Item,
    check_legal,
    messages_only,
    model_history,
    nest_history,
    own_view,
    redact,
    replace_with_summary,
)
from batonlog.projections.filters import apply_filters
from batonlog.projections.placement import Placement, place
from batonlog.projections.view import View


def made(data: JSON, version: int, index: int = 0, **others: Any) -> Item:
    return Item(Ref(version, index), Raw(dump(data)), **others)


def filtered(one: Filter[None], *items: Item) -> Sequence[Item]:
    """What a filter leaves of a history."""
    given = FilterInput(items, version=9, cause="manual", session="s", context=None, split=len(items))
    return asyncio.run(apply_filters(one, given))


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "function_call_output", "call_id": "", "output": "order 7"},
        {"type": "function_call_output", "call_id": "c" * 65, "output": "order 7"},
        {"type": "function_call", "call_id": "c1", "name": "bad name!", "arguments": '{"order": "7"}'},
        {"type": "message", "role": "assistant", "content": [{"type": "new", "text": "order 7"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "order 7", "new": 1}]},
        {"type": "message", "role": "assistant", "status": "done", "content": "order 7"},
        {"type": "telepathy", "id": 8, "text": "order 7"},
    ],
)
def test_what_a_provider_said_in_an_odd_form_can_be_redacted_all_the_same(odd: JSON) -> None:
    call = {"type": "function_call", "call_id": odd.get("call_id", ""), "name": "look", "arguments": "{}"}
    before = [made(call, 3)] if odd.get("type") == "function_call_output" else []
    *_, item = filtered(redact("7"), *before, made(odd, 4))
    assert item.ref is None
    assert "7" not in dump(item.data).decode()
    assert "[redacted]" in dump(item.data).decode()


# -- what somebody took out is out of every older view, also of what tells of it there

BACK_AND_FORTH = (
    "I keep it.",
    function_call("transfer_to_back", {}, call_id="c1"),
    function_call("transfer_to_front", {}, call_id="c2"),
    "Here again.",
    function_call("transfer_to_back", {}, call_id="c3"),
    "Done.",
)


async def shown_again(first: Filter[Any], edit: Filter[Any]) -> History:
    """What `back` is shown as its own view, after somebody has edited what `front` sees.

    `front` hands off with the first filter and has its own view when it is back.
    """
    log = MemoryLog()
    model = ScriptedModel(*BACK_AND_FORTH)

    def engine(one: Filter[Any]) -> Engine[Any]:
        front: Agent[Any] = Agent("front", handoffs=[handoff("back", input_filter=one)])
        back: Agent[Any] = Agent("back", handoffs=[handoff("front", input_filter=own_view)])
        return Engine(log, agents=[front, back], model=model)

    await engine(first).run("The code is 1234.", session="s")
    await engine(first).run("Go on.", session="s")
    assert any("1234" in item.text for item in model_history(await log.records("s")))
    await engine(first).rewrite("s", edit)
    await engine(own_view).run("And on.", session="s")
    return model_history(await log.records("s"))


def without_code(history: History) -> list[Item]:
    return [item for item in history if "1234" not in item.text]


async def told(older: History) -> str:
    return "The code is 1234."


async def test_what_was_taken_out_does_not_come_back_as_a_line_of_an_older_nest() -> None:
    shown = await shown_again(nest_history, without_code)
    assert not any("1234" in item.text for item in shown)
    assert any("I keep it." in item.text and item.lines for item in shown)


async def test_what_was_taken_out_does_not_come_back_inside_an_older_summary() -> None:
    shown = await shown_again(replace_with_summary(told, keep_turns=0), without_code)
    assert not any("1234" in item.text for item in shown)


async def test_what_was_edited_stands_edited_beside_the_rest_of_an_older_nest() -> None:
    shown = await shown_again(nest_history, redact("1234"))
    assert not any("1234" in item.text for item in shown)
    assert [item.text for item in shown if "code" in item.text] == ["The code is [redacted]."]


def test_a_call_that_was_taken_out_is_gone_though_an_output_was_made_up_for_it() -> None:
    user = made({"role": "user", "content": "hi"}, 1)
    call = made({"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}, 4)
    output: JSON = {"type": "function_call_output", "call_id": "c1", "output": "?"}
    made_up = made(output, 8, answers=Ref(4, 0), replaces=(Ref(4, 0),))
    before = Placement(settled=View([user, call, made_up]), past=((6, View([user, call])),))
    rewrite = Rewrite(filter="f", parameters={}, operations=(["take", 0, 1], ["take", 2, 3]))
    after = place(before, 9, fresh(HistoryRewritten(cause="manual", rewrite=rewrite)))
    assert [item.ref for item in after.past[0][1]] == [Ref(1, 0)]


# -- one filter after the other


def own_input(own: Sequence[Item], items: Sequence[Item], *, handed_off: int) -> FilterInput[None]:
    """What a handoff is given to an agent that handed off at that version, and saw this then."""
    return FilterInput(
        items,
        version=20,
        cause="handoff",
        session="s",
        context=None,
        split=len(items),
        own=History(own, handed_off),
        source="back",
        target="front",
    )


HI = made({"role": "user", "content": "hi"}, 1)
DONE = made({"type": "message", "role": "assistant", "content": "Done."}, 9, agent="back")


def called(name: str, version: int, index: int = 0) -> Item:
    data = {"type": "function_call", "call_id": "c1", "name": name, "arguments": "{}"}
    return made(data, version, index)


def answered(call: Ref, version: int, **others: Any) -> Item:
    data = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    return made(data, version, answers=call, **others)


def test_an_own_view_holds_no_reasoning_whose_follower_a_summary_tells() -> None:
    own = (
        HI,
        made({"type": "reasoning", "id": "rs_1", "summary": []}, 4, 0),
        made({"type": "message", "role": "assistant", "content": "One moment."}, 4, 1),
        called("transfer_to_back", 4, 2),
        answered(Ref(4, 2), 6),
    )
    summarise = replace_with_summary(told, keep_turns=0)
    given = own_input(own, (*own, DONE), handed_off=6)
    shown = asyncio.run(apply_filters([messages_only, summarise, own_view], given))
    assert [item.type for item in shown] == ["function_call", "function_call_output", "message"]
    assert check_legal(History(shown)) == ()


def test_an_own_view_keeps_the_output_that_was_made_up_later_for_a_call_of_it() -> None:
    own = (HI, called("look", 4))
    made_up = answered(Ref(4, 0), 8, replaces=(Ref(4, 0),))
    shown = own_view(own_input(own, (*own, made_up, DONE), handed_off=6))
    assert [item.ref for item in shown] == [HI.ref, Ref(4, 0), made_up.ref, DONE.ref]


def test_an_own_view_takes_no_output_that_was_made_up_for_a_call_that_has_its_own_there() -> None:
    own = (HI, called("look", 4), answered(Ref(4, 0), 5))
    made_up = answered(Ref(4, 0), 8, replaces=(Ref(4, 0),))
    shown = own_view(own_input(own, (HI, called("look", 4), made_up, DONE), handed_off=6))
    assert [item.ref for item in shown] == [*(item.ref for item in own), DONE.ref]
