"""What the laws have found in what filters return and callers give, each as its smallest example."""

from typing import Any

import pytest
from msgspec import Raw
from tests.laws.scripts import JSON
from tests.laws.store import Store

from batonlog.engine import (
    Agent,
    Engine,
    RunFailedError,
    handoff,
)
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import (
    Ref,
    UsageError,
)
from batonlog.events.values import dump
from batonlog.projections import (
    Item,
    model_history,
    session_history,
)
from batonlog.projections.items import as_item

ISSUER = ("ScriptedModel", "scripted")


def made(data: JSON, version: int, index: int = 0, **others: Any) -> Item:
    return Item(Ref(version, index), Raw(dump(data)), **others)


def call(call_id: str, version: int, index: int = 0) -> Item:
    data = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    return made(data, version, index, issuer=ISSUER)


def said(text: str, version: int) -> Item:
    return made({"role": "user", "content": text}, version)


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "hi", "name": "bob"},
        {"role": "user", "content": "hi", "status": "whatever"},
        {"role": "user", "content": "hi", "status": ["completed"]},
        {"role": "user", "content": "hi", "id": 7},
        {"role": "user", "content": [{"type": "input_text", "text": "hi", "bold": True}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": 7}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": None}]},
        {"type": "function_call", "call_id": "c9", "name": "x", "arguments": "{}", "parsed": 1},
        {"type": "function_call_output", "call_id": "c9", "output": "x", "tool": "look"},
        {"type": "compaction"},
        {"type": "computer_call"},
        {"type": "local_shell_call", "call_id": "c9"},
        {"type": "shell_call", "call_id": "c9"},
        {"type": "apply_patch_call", "call_id": "c9"},
        {"type": "mcp_approval_request", "id": "mcpr_1"},
        {"type": "item_reference"},
    ],
)
async def test_what_a_provider_would_refuse_makes_no_handoff(value: JSON) -> None:
    back = Agent("back")
    front = Agent("front", handoffs=[handoff(back, input_filter=lambda history: [*history, value])])
    log = Store()
    engine = Engine(log, agents=[front, back], model=ScriptedModel(function_call(back, {})))
    with pytest.raises(RunFailedError):
        await engine.run("hi", session="s")
    records = await log.records("s")
    assert records[-1].type == "run.failed"
    assert "handoff.made" not in [record.type for record in records]
    assert model_history(records) == session_history(records)


def test_an_item_that_a_provider_made_may_keep_what_nobody_has_heard_of() -> None:
    item = made({"role": "assistant", "content": "hi", "mood": "good"}, 4)
    assert item.replace(content="ho").data == {"role": "assistant", "content": "ho", "mood": "good"}
    with pytest.raises(UsageError, match="a message has no field 'weather'"):
        item.replace(weather="fine")


def test_an_item_that_is_made_another_kind_of_item_may_not_keep_its_old_fields() -> None:
    with pytest.raises(UsageError, match="a message has no field"):
        call("c1", 4).replace(type="message", role="user", content="a call once")


@pytest.mark.parametrize(
    "returned",
    [
        None,
        7,
        "text",
        {"role": "user", "content": "hi"},
        [],
        [7],
        [None],
        [{}],
        [{"type": "nonsense"}],
        [{"role": "nobody", "content": "hi"}],
        [{"type": "function_call_output", "call_id": "c7", "output": "an orphan"}],
        [{"type": "reasoning", "id": "rs_1", "summary": []}],
        [{"type": "item_reference", "id": "msg_1"}],
    ],
)
async def test_what_is_no_history_or_leaves_nothing_makes_no_handoff(returned: Any) -> None:
    back = Agent("back")
    front = Agent("front", handoffs=[handoff(back, input_filter=lambda history: returned)])
    log = Store()
    engine = Engine(log, agents=[front, back], model=ScriptedModel(function_call(back, {}), "on my own"))
    with pytest.raises(RunFailedError, match=r"handoff\.filter"):
        await engine.run("hi", session="s")
    records = await log.records("s")
    assert "handoff.made" not in [record.type for record in records]
    assert model_history(records) == session_history(records)
    assert (await engine.run("well?", session="s")).agent == "front"


@pytest.mark.parametrize("item", [{"role": "user", "content": "hi", "id": None}])
def test_an_id_that_is_null_is_none(item: JSON) -> None:
    assert "id" not in as_item(item).data
    assert "id" not in said("hi", 1).replace(id=None).data
