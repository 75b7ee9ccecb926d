"""Items: what they say of themselves, and what is one."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec import Raw

from batonlog.events import (
    JSON,
    CallRefused,
    HandoffMade,
    Limits,
    Record,
    Ref,
    RunStarted,
    ToolAbandoned,
    ToolReturned,
    UsageError,
)
from batonlog.events.codec import fresh
from batonlog.projections import Item, session_history
from batonlog.projections.items import answer_item, as_item, head_of, text_of

Log = Callable[..., tuple[Record, ...]]


def item(data: bytes) -> Item:
    return Item(Ref(1, 0), Raw(data))


def test_an_item_is_switched_on_by_its_type() -> None:
    assert item(b'{"type":"hologram","id":"h"}').type == "hologram"


def test_an_item_with_a_role_and_no_type_is_a_message() -> None:
    assert item(b'{"role":"user","content":"hi"}').type == "message"


def test_an_item_with_fields_of_odd_types_has_those_that_are_texts() -> None:
    head = head_of(b'{"type":"function_call","call_id":7,"name":"look"}')
    assert (head.type, head.call_id, head.name) == ("function_call", None, "look")


def test_what_is_no_object_has_no_type() -> None:
    assert item(b"[1]").type == ""
    assert item(b"[1]").data == {}


def test_the_head_of_an_item_with_a_lone_surrogate_is_read() -> None:
    assert head_of(b'{"type":"message","role":"user","content":"\\ud800"}').role == "user"


def test_the_data_of_an_item_is_fresh_each_time() -> None:
    one = item(b'{"type":"message","role":"user","content":[]}')
    one.data["content"].append("x")
    assert one.data["content"] == []


def test_an_item_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        item(b"{}").agent = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "ab"),
        ([{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}], "ano"),
        ([{"type": "input_image", "image_url": "x"}], ""),
        ([{"type": "output_text", "text": None}], ""),
        (None, ""),
        ({"text": "x"}, ""),
    ],
)
def test_text_is_all_text_of_a_content_joined(content: JSON, text: str) -> None:
    assert text_of(content) == text


def test_the_text_of_an_output_is_what_it_says() -> None:
    assert item(b'{"type":"function_call_output","call_id":"x","output":"done"}').text == "done"


def test_a_call_has_no_text() -> None:
    assert item(b'{"type":"function_call","call_id":"x","name":"look","arguments":"{}"}').text == ""


def test_an_edited_item_remembers_what_it_replaces() -> None:
    once = item(b'{"role":"user","content":"a"}').replace(content="b")
    assert (once.ref, once.replaces, once.data) == (None, (Ref(1, 0),), {"role": "user", "content": "b"})


def test_an_item_that_is_edited_twice_still_replaces_the_first() -> None:
    assert item(b"{}").replace(content="b").replace(content="c").replaces == (Ref(1, 0),)


def test_an_edited_item_is_still_its_agents_and_answers_its_call() -> None:
    answer = Item(Ref(2, 0), Raw(b"{}"), "a", Ref(1, 1), ("here", "m"))
    edited = answer.replace(output="[hidden]")
    assert (edited.agent, edited.answers, edited.issuer) == ("a", Ref(1, 1), ("here", "m"))


def test_items_are_equal_if_they_are_the_same_recorded_bytes() -> None:
    assert item(b"{}") == item(b"{}")
    assert item(b"{}") != item(b"{ }")
    assert item(b"{}") != Item(Ref(1, 1), Raw(b"{}"))
    assert hash(item(b"{}")) == hash(item(b"{}"))


def test_equal_items_are_not_unequal() -> None:
    assert not (item(b"{}") != item(b"{}"))  # noqa: SIM202
    assert item(b"{}") != item(b'{"a":1}')


def test_an_item_is_not_equal_to_its_data() -> None:
    assert item(b"{}") != {}


def test_an_item_shows_its_ref_and_the_beginning_of_its_text() -> None:
    assert repr(item(b'{"role":"user","content":"hi"}')) == "Item(1.0 user 'hi')"


def test_fields_that_nobody_has_heard_of_survive(log: Log) -> None:
    given = b'{"role": "user",  "content":"hi","future":[1.50,null]}'
    started = RunStarted(run_id="r", agent="a", input=(Raw(given),), limits=Limits())
    assert bytes(session_history(log(started))[0].held) == given


# -- answers


def returned(output: JSON, *, shown: JSON = None) -> ToolReturned:
    made = fresh(ToolReturned(call=Ref(3, 0), call_id="x", output=output, shown=shown))
    assert isinstance(made, ToolReturned)
    return made


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", '"plain"'),
        ("", '""'),
        ({"a": [1]}, r'"{\"a\":[1]}"'),
        ([], '"[]"'),
        (1.5, '"1.5"'),
        (True, '"true"'),
        (None, '"null"'),
    ],
)
def test_a_text_goes_out_as_it_is_and_other_output_as_its_json(output: JSON, text: str) -> None:
    expected = f'{{"type":"function_call_output","call_id":"x","output":{text}}}'
    assert bytes(answer_item(returned(output))).decode() == expected


def test_what_is_shown_stands_for_the_output() -> None:
    assert b'"output":"short"' in bytes(answer_item(returned("long", shown="short")))


@pytest.mark.parametrize(
    ("event", "output"),
    [
        (ToolAbandoned(call=Ref(3, 0), call_id="x", reason="unknown", answer="gone"), "gone"),
        (CallRefused(call=Ref(3, 0), call_id="x", reason="rejected", answer="no"), "no"),
        (
            HandoffMade(
                call=Ref(3, 0), call_id="x", source="a", target="b", arguments={}, acknowledgement="ok"
            ),
            "ok",
        ),
    ],
)
def test_every_event_that_answers_a_call_holds_its_answer(event: Any, output: str) -> None:
    made = Item(None, answer_item(event))
    assert made.data == {"type": "function_call_output", "call_id": "x", "output": output}


def test_the_answer_to_a_custom_call_is_of_its_own_type() -> None:
    event = ToolReturned(call=Ref(3, 0), call_id="x", output="1", item="custom_tool_call_output")
    made = fresh(event)
    assert isinstance(made, ToolReturned)
    assert Item(None, answer_item(made)).type == "custom_tool_call_output"


# -- what is an item

GOOD: list[Mapping[str, JSON]] = [
    {"role": "user", "content": "hi"},
    {"role": "user", "content": ""},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "hi"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"type": "function_call", "call_id": "x", "name": "look", "arguments": "{"},
    {"type": "custom_tool_call", "call_id": "x", "name": "look", "input": ""},
    {"type": "function_call_output", "call_id": "x", "output": ""},
    {"type": "function_call_output", "call_id": "x", "output": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "id": "rs", "summary": []},
    {"type": "item_reference", "id": "msg"},
    {"type": "compaction", "encrypted_content": "x"},
]


@pytest.mark.parametrize("data", GOOD)
def test_a_responses_item_is_an_item(data: Mapping[str, JSON]) -> None:
    assert as_item(data).data == data


BAD: list[tuple[object, str]] = [
    ("hi", "str is no item"),
    (None, "NoneType is no item"),
    ({}, "a type, or a role"),
    ({"content": "hi"}, "a type, or a role"),
    ({"type": "hologram"}, "'hologram' is no type of item"),
    ({"type": 7}, "7 is no type of item"),
    ({"type": ["message"]}, "is no type of item"),
    ({"role": "robot", "content": "hi"}, "not 'robot'"),
    ({"role": ["user"], "content": "hi"}, "role is one of"),
    ({"role": "user"}, "content of a message from user"),
    ({"role": "user", "content": [{"type": ["input_text"], "text": "hi"}]}, "input_text"),
    ({"role": "user", "content": None}, "content of a message from user"),
    ({"role": "user", "content": [{"type": "output_text", "text": "hi"}]}, "input_text"),
    ({"role": "assistant", "content": [{"type": "input_text", "text": "hi"}]}, "output_text"),
    ({"role": "user", "content": [{"type": "input_text"}]}, "content of a message"),
    ({"role": "user", "content": ["hi"]}, "content of a message"),
    ({"type": "function_call", "call_id": "x", "name": "no good", "arguments": ""}, "needs a name"),
    ({"type": "function_call", "call_id": "x", "name": "look", "arguments": {}}, "needs arguments, as text"),
    ({"type": "function_call", "call_id": "", "name": "look", "arguments": ""}, "needs a call_id"),
    ({"type": "function_call", "call_id": "x" * 65, "name": "look", "arguments": ""}, "needs a call_id"),
    ({"type": "custom_tool_call", "call_id": "x", "name": "look", "arguments": ""}, "needs input, as text"),
    ({"type": "function_call_output", "call_id": "x"}, "needs an output"),
    ({"type": "function_call_output", "call_id": "x", "output": {"a": 1}}, "needs an output"),
    ({"type": "function_call_output", "output": "done"}, "needs a call_id"),
    ({"type": "reasoning", "summary": []}, "needs an id and a summary"),
    ({"role": "user", "content": "hi", "extra": object()}, "object"),
]


@pytest.mark.parametrize(("value", "says"), BAD)
def test_what_no_provider_would_take_is_no_item(value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        as_item(value)


def test_an_item_that_is_nested_too_deep_is_none() -> None:
    deep: JSON = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UsageError, match="recursion"):
        as_item({"role": "user", "content": "hi", "extra": deep})


def test_an_item_that_is_recorded_stands_whatever_it_is() -> None:
    stored = item(b'{"type":"hologram"}')
    assert as_item(stored) is stored


def test_an_item_that_was_edited_into_nonsense_is_none() -> None:
    with pytest.raises(UsageError, match="not 'robot'"):
        as_item(item(b'{"role":"user","content":"hi"}').replace(role="robot"))


def test_an_edited_item_of_an_unknown_type_passes() -> None:
    edited = item(b'{"type":"hologram","text":"a"}').replace(text="b")
    assert as_item(edited) is edited


def test_an_item_with_a_lone_surrogate_is_an_item() -> None:
    assert as_item({"role": "user", "content": "\ud800"}).text == "\ud800"
