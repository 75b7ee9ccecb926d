"""What the laws have found in filters and rewrites, each as its smallest example."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from batonlog.events import JSON, Ref
from batonlog.events.values import dump
from batonlog.projections import Filter, FilterInput, Item, redact
from batonlog.projections.filters import apply_filters


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
    ],
)
def test_what_a_provider_said_in_an_odd_form_can_be_redacted_all_the_same(odd: JSON) -> None:
    call = {"type": "function_call", "call_id": odd.get("call_id", ""), "name": "look", "arguments": "{}"}
    before = [made(call, 3)] if odd.get("type") == "function_call_output" else []
    *_, item = filtered(redact("7"), *before, made(odd, 4))
    assert item.ref is None
    assert "7" not in dump(item.data).decode()
    assert "[redacted]" in dump(item.data).decode()
