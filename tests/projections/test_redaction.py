"""`redact`: nothing that matches is left to read, and nothing else changes."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from batonlog.events import JSON, Ref, UsageError
from batonlog.events.values import dump
from batonlog.projections import History, Item, check_legal, nest_history, redact
from batonlog.projections.filters import describe
from batonlog.projections.items import as_item

CODE = r"\d{4}"


def one(value: dict[str, JSON], place: int = 1) -> Item:
    return Item(Ref(place, 0), as_item(value).held)


def after(value: dict[str, JSON], pattern: Any = CODE) -> dict[str, JSON]:
    (item,) = redact(pattern)(History([one(value)]))
    return item.data


@pytest.mark.parametrize(
    ("value", "field", "left"),
    [
        ({"role": "user", "content": "code 4711!"}, "content", "code [redacted]!"),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "4711"}]},
            "content",
            [{"type": "input_text", "text": "[redacted]"}],
        ),
        (
            {"type": "function_call", "call_id": "c4711", "name": "f4711", "arguments": '{"pin":"4711"}'},
            "arguments",
            '{"pin":"[redacted]"}',
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"pin": 4711, "n": 1}'},
            "arguments",
            '{"pin":"[redacted]","n":1}',
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"4711": tr'},
            "arguments",
            '{"[redacted]": tr',
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": '["\\u0034711", {"4711": true}]'},
            "output",
            '["[redacted]",{"[redacted]":true}]',
        ),
        (
            {"type": "reasoning", "id": "rs_4711", "summary": [{"type": "summary_text", "text": "4711?"}]},
            "summary",
            [{"type": "summary_text", "text": "[redacted]?"}],
        ),
    ],
)
def test_every_text_is_blanked_and_the_structure_stays(
    value: dict[str, JSON], field: str, left: JSON
) -> None:
    assert after(value) == {**one(value).data, field: left}


def test_media_are_left_alone() -> None:
    picture = {
        "role": "user",
        "content": [{"type": "input_image", "image_url": "data:4711", "detail": "low"}],
    }
    assert after(picture) == picture


def test_what_does_not_match_is_kept_as_it_was_recorded() -> None:
    item = one({"role": "user", "content": '{"a": 1.50}'})
    assert list(redact(CODE)(History([item]))) == [item]


def test_names_of_somebodys_own_are_no_structure() -> None:
    found = {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": []}
    told: dict[str, JSON] = {**found, "results": [{"file_id": "f4711", "attributes": {"name": "4711"}}]}
    (item,) = redact(CODE)(History([Item(Ref(1, 0), Raw(dump(told)))]))
    assert item.data["results"] == [{"file_id": "f4711", "attributes": {"name": "[redacted]"}}]


def test_a_blanked_text_is_not_told_by_its_tokens() -> None:
    tokens: list[JSON] = [{"token": "47", "logprob": 0}, {"token": "11", "logprob": 0}]
    said: JSON = [{"type": "output_text", "text": "4711", "annotations": [], "logprobs": tokens}]
    left = [{"type": "output_text", "text": "[redacted]", "annotations": [], "logprobs": []}]
    assert after({"role": "assistant", "content": said})["content"] == left


def test_what_points_to_something_that_only_its_provider_holds_is_dropped() -> None:
    thought = one({"type": "reasoning", "id": "rs_1", "summary": []})
    pointer = one({"type": "item_reference", "id": "msg_1"})
    plain = one({"role": "assistant", "content": "hi"})
    assert list(redact(CODE)(History([pointer, thought, plain]))) == [plain]


def test_what_nobody_can_read_is_dropped() -> None:
    sealed = one({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"})
    compaction = one({"type": "compaction", "encrypted_content": "x"})
    plain = one({"role": "user", "content": "hi"})
    assert list(redact(CODE)(History([sealed, compaction, plain]))) == [plain]


def test_a_function_may_say_what_becomes_of_a_text() -> None:
    assert after({"role": "user", "content": "Hi"}, str.upper)["content"] == "HI"


def test_an_edited_item_covers_what_it_was_made_of_and_answers_the_same_call() -> None:
    call, output = (
        one({"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"pin":"4711"}'}),
        one({"type": "function_call_output", "call_id": "c", "output": "4711"}, 2),
    )
    assert check_legal(redact(CODE)(History([call, output]))) == ()


def test_inside_a_nest_the_lines_are_blanked_too_and_stay_lines() -> None:
    history = History([one({"role": "user", "content": "my 4711"}), one({"role": "user", "content": "?"}, 2)])
    nest, _ = redact(CODE)(nest_history(history))
    assert json.loads(nest.data["content"][1]["text"]) == {"role": "user", "text": "my [redacted]"}
    assert len(nest.lines) == 2


@pytest.mark.parametrize("pattern", ["(", 7, None])
def test_what_is_no_pattern_is_refused_at_once(pattern: Any) -> None:
    with pytest.raises(UsageError, match="no regular expression"):
        redact(pattern)


def test_a_redaction_is_recorded_by_its_pattern() -> None:
    assert describe([redact(CODE)]) == ("redact", {"pattern": CODE})
    assert describe([redact(str.upper)]) == ("redact", {"pattern": "upper"})


values = st.recursive(
    st.text() | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(values, min_size=1, max_size=4), st.sampled_from([r"\d", "[A-Z]", "é|ß", r"\s"]))
def test_no_reader_finds_a_match(outputs: list[JSON], pattern: str) -> None:
    texts = [value if isinstance(value, str) else json.dumps(value) for value in outputs]
    items = [
        one({"type": "function_call_output", "call_id": "c", "output": text}, n)
        for n, text in enumerate(texts)
    ]
    for item in redact(pattern)(History(items)):
        assert [text for text in readings(item.text) if re.search(pattern, text)] == []


def readings(text: str) -> list[str]:
    """What a reader of JSON reads in a text."""
    try:
        found = json.loads(text)
    except ValueError:
        return [text]
    return [text, *leaves(found)]


def leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(leaf for inner in value.values() for leaf in leaves(inner))]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value if isinstance(value, str) else json.dumps(value)]
