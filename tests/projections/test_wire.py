"""The wire form: what leaves for a provider that is sent the whole view. Wire format 1, for ever."""

import json
from collections.abc import Sequence

import pytest
from msgspec import Raw

from batonlog.events import JSON, Ref
from batonlog.projections import Item
from batonlog.projections.request import wire_input
from batonlog.projections.wire import Former, chained, clean, edit, keeps_id


def item(version: int, data: bytes, *, answers: Ref | None = None) -> Item:
    return Item(Ref(version, 0), Raw(data), answers=answers)


def call(version: int, call_id: str, name: str = "look") -> Item:
    data = {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}
    return item(version, json.dumps(data).encode())


def output(version: int, call_id: str, answers: int | None = None) -> Item:
    data = {"type": "function_call_output", "call_id": call_id, "output": "done"}
    return item(version, json.dumps(data).encode(), answers=Ref(answers, 0) if answers else None)


def sent(*items: Item) -> list[JSON]:
    return [json.loads(data) for data in wire_input(items)]


def call_ids(*items: Item) -> list[str]:
    return [data["call_id"] for data in sent(*items)]


@pytest.mark.parametrize(
    "data",
    [
        b'{"role": "user",  "content":"hi"}',
        b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}],"x":[1.50]}',
        b'{"type":"function_call","name":"look","call_id":"x","arguments":"{\\"a\\": 1}"}',
        b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"abc"}',
        b'{"type":"web_search_call","id":"ws_1","status":"completed"}',
        b'{"type":"hologram","id":"h","depth":3}',
    ],
)
def test_an_item_that_needs_no_change_goes_out_byte_for_byte(data: bytes) -> None:
    assert wire_input([item(1, data)]) == [data]


def arguments_sent(arguments: str) -> str:
    data = {"type": "function_call", "call_id": "c", "name": "look", "arguments": arguments}
    sent_arguments: str = sent(item(1, json.dumps(data).encode()))[0]["arguments"]
    return sent_arguments


@pytest.mark.parametrize("arguments", ["", "  ", '{"a": "cut o', "null", "7", '["a"]', "[" * 3000, "\ud83d"])
def test_arguments_that_are_no_json_object_go_out_as_an_empty_one(arguments: str) -> None:
    assert arguments_sent(arguments) == "{}"


@pytest.mark.parametrize(
    "arguments", ["{}", ' {"a": 1.50, "a": [{}]}\n', r'{"a": "\ud83d"}', '{"ü": "\x7f"}']
)
def test_arguments_that_are_an_object_go_out_as_they_were_written(arguments: str) -> None:
    assert arguments_sent(arguments) == arguments


def test_arguments_that_are_an_object_with_half_a_pair_go_out_clean() -> None:
    assert arguments_sent('{"a": "\ud83d"}') == '{"a": "\ufffd"}'


@pytest.mark.parametrize("given", [b"", b',"arguments":null', b',"arguments":{"a":1}'])
def test_arguments_that_are_no_text_are_left_as_they_came(given: bytes) -> None:
    data = b'{"type":"function_call","call_id":"c","name":"look"%b}' % given
    assert wire_input([item(1, data)]) == [data]


@pytest.mark.parametrize(
    "kind", ["message", "function_call", "function_call_output", "custom_tool_call", "shell_call"]
)
def test_an_id_is_left_out_where_the_provider_needs_none(kind: str) -> None:
    made = item(1, b'{"id":"x_1","type":"%b","call_id":"c"}' % kind.encode())
    assert not keeps_id(made)
    assert "id" not in sent(made)[0]


def test_leaving_an_id_out_changes_nothing_else() -> None:
    data = b'{"id":"msg_1","type":"message","role":"assistant","content":[1.50],"future":{"a":  1}}'
    (out,) = wire_input([item(1, data)])
    assert out == b'{"type":"message","role":"assistant","content":[1.50],"future":{"a":  1}}'


def test_a_call_id_that_was_used_goes_out_changed_together_with_its_output() -> None:
    history = (call(2, "x"), output(3, "x", answers=2), call(5, "x"), output(6, "x", answers=5))
    assert call_ids(*history) == ["x", "x", "x~5", "x~5"]


def test_an_output_that_the_log_does_not_know_goes_with_the_call_that_waits() -> None:
    assert call_ids(call(2, "x"), output(3, "x"), call(5, "x"), output(6, "x")) == ["x", "x", "x~5", "x~5"]


def test_three_calls_of_one_response_with_one_id_are_told_apart() -> None:
    calls = [Item(Ref(4, n), call(4, "x").held) for n in range(3)]
    outputs = [Item(Ref(5 + n, 0), output(5, "x").held, answers=Ref(4, n)) for n in range(3)]
    assert call_ids(*calls, *outputs) == ["x", "x~4", "x~4.2", "x", "x~4", "x~4.2"]


def test_a_call_id_that_is_too_long_is_cut_with_its_output() -> None:
    ids = call_ids(call(2, "x" * 70), output(3, "x" * 70, answers=2))
    assert ids == ["x" * 62 + "~2"] * 2


def test_a_call_without_an_id_gets_one_with_its_output() -> None:
    assert call_ids(call(2, ""), output(3, "", answers=2)) == ["~2", "~2"]


def test_an_id_that_looks_like_a_changed_one_is_not_met() -> None:
    assert call_ids(call(1, "x~5"), call(2, "x"), call(5, "x")) == ["x~5", "x", "x~5.0"]


@pytest.mark.parametrize(
    ("name", "mended"),
    [("look up", "look_up"), ("看", "_"), ("a.b", "a_b"), ("x" * 70, "x" * 64), ("", "_")],
)
def test_a_name_that_the_provider_refuses_is_mended(name: str, mended: str) -> None:
    assert sent(call(1, "x", name))[0]["name"] == mended


def test_lone_surrogates_become_the_replacement_character() -> None:
    data = b'{"role":"user","content":"a\\ud800b"}'
    assert sent(item(1, data)) == [{"role": "user", "content": "a\ufffdb"}]


def test_a_pair_of_surrogate_escapes_is_a_character() -> None:
    assert sent(item(1, b'{"role":"user","content":"\\ud83d\\ude00"}'))[0]["content"] == "😀"


def test_surrogates_are_cleaned_where_an_id_is_left_out_too() -> None:
    data = b'{"type":"message","role":"assistant","id":"m","content":"\\udfff"}'
    assert sent(item(1, data)) == [{"type": "message", "role": "assistant", "content": "\ufffd"}]


def test_everything_that_goes_out_is_utf8() -> None:
    for data in wire_input([item(1, b'{"role":"user","content":"\\udc00 \\u0000"}')]):
        data.decode("utf-8")
        assert json.loads(data)["content"] == "\ufffd \0"


def test_keys_are_cleaned_like_values() -> None:
    assert clean(b'{"\\ud800":["\\ud800",1,null]}') == '{"\ufffd":["\ufffd",1,null]}'.encode()


def test_along_a_chain_calls_keep_the_ids_that_the_server_knows() -> None:
    assert [chained(one) for one in (call(5, "x"), output(6, "x", answers=5))] == [
        bytes(call(5, "x").held),
        bytes(output(6, "x").held),
    ]


def test_along_a_chain_messages_go_out_without_their_ids() -> None:
    assert b'"id"' not in chained(item(1, b'{"type":"message","role":"user","id":"m","content":"x"}'))


def test_an_edit_leaves_the_other_fields_as_they_were_recorded() -> None:
    data = Raw(b'{"type":"function_call","call_id":"x","n":1.50}')
    assert edit(data, {"call_id": "y"}, drop=()) == b'{"type":"function_call","call_id":"y","n":1.50}'


def test_what_an_item_becomes_depends_on_those_before_it_alone() -> None:
    history: Sequence[Item] = [
        call(2, "x"),
        output(3, "x", answers=2),
        call(5, "x"),
        output(6, "x", answers=5),
    ]
    whole = wire_input(history)
    assert [wire_input(history[:n]) for n in range(5)] == [whole[:n] for n in range(5)]


def test_reasoning_goes_out_without_its_status() -> None:
    item = Item(Ref(2, 0), Raw(b'{"type":"reasoning","id":"rs_1","summary":[],"status":"completed"}'))
    assert Former().form(item) == b'{"type":"reasoning","id":"rs_1","summary":[]}'
