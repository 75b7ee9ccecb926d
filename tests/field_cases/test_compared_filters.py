"""What the OpenAI Agents SDK's filters do, and batonlog's: the filters alone. docs/compared.md lists all."""

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from batonlog.events import JSON, Ref, Rewrite
from batonlog.events.values import dump
from batonlog.projections import (
    History,
    Item,
    drop_reasoning,
    drop_tools,
    keep_last,
    last_turns,
    messages_only,
    nest_history,
    only_agents,
    redact,
)
from batonlog.projections.items import as_item
from batonlog.projections.lines import lines_of
from batonlog.projections.rewrite import operations, rewritten
from batonlog.projections.view import View

SHIPPED = [
    messages_only,
    drop_tools,
    drop_reasoning,
    keep_last(3),
    last_turns(2),
    only_agents("front"),
    redact("secret"),
    nest_history,
]


def said(*values: JSON, start: int = 1, agent: str = "front") -> list[Item]:
    """Recorded items, one an event, as they came."""
    return [
        Item(Ref(n, 0), Raw(dump(value)), None if value.get("role") == "user" else agent)
        for n, value in enumerate(values, start)
    ]


def recorded(before: Sequence[Item], after: Sequence[Item], version: int) -> History:
    """What a filter returned, once its rewrite is recorded and read again."""
    made = operations(list(before), after)
    if made is None:
        return History(before, version)
    rewrite = Rewrite(filter="f", parameters={}, operations=tuple(made))
    return History(rewritten(View(before), rewrite, past=(), version=version, first=0), version)


def lines(history: History) -> list[Any]:
    """What the one nest of a history tells."""
    (nest,) = [item for item in history if item.lines]
    return [json.loads(part.text) for part in lines_of(nest)[1:]]


def user(text: JSON) -> dict[str, JSON]:
    return {"role": "user", "content": text}


def assistant(text: JSON) -> dict[str, JSON]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("one", SHIPPED)
def test_an_empty_history_stays_empty(one: Any) -> None:
    assert list(one(History())) == []


def test_without_tools_there_is_nothing_for_drop_tools_to_do() -> None:
    history = History(said(user("hi"), assistant("hello")))
    assert drop_tools(history) == history


KINDS = [
    "program",
    "tool_search_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "web_search_call",
]
OTHERS = ["file_search_call", "code_interpreter_call", "computer_call", "shell_call", "apply_patch_call"]


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS, "custom_tool_call", "local_shell_call", "of_next_year"])
@pytest.mark.parametrize("nested", [False, True])
def test_tool_items_of_every_kind_are_dropped_and_messages_stay(kind: str, nested: bool) -> None:
    tool = {"type": kind, "id": "t_1", "call_id": "c_1", "name": "look", "detail": "secret"}
    history = History(said(user("hi"), assistant("hello"), tool, assistant("done"), user("thanks")))
    left = drop_tools(nest_history(history) if nested else history)
    assert "secret" not in json.dumps(left.data)
    assert "hello" in json.dumps(left.data)
    assert "thanks" in json.dumps(left.data)


@pytest.mark.parametrize("content", [None, [], "", [{"type": "output_text"}], {"odd": 1}, 7, [None]])
def test_contents_of_any_kind_are_nested(content: JSON) -> None:
    history = History(said(assistant(content), {"type": "message"}, user("hi")))
    assert [line["role"] for line in lines(nest_history(history))] == ["assistant", None]


def test_turns_without_a_text_are_still_there_after_any_number_of_nests() -> None:
    view: Sequence[Item] = said(user(""), assistant(""), user("now"), assistant("2. user:"), user("go on"))
    for version in range(10, 14):
        view = recorded(view, nest_history(History(view)), version)
        assert [line["role"] for line in lines(History(view))] == ["user", "assistant", "user", "assistant"]


def test_equal_texts_of_different_turns_are_all_told() -> None:
    history = History(said(user("yes"), assistant("no"), user("yes"), assistant("no"), user("yes")))
    assert [line["text"] for line in lines(nest_history(history))] == ["yes", "no", "yes", "no"]


def test_a_mapper_sees_items_as_a_provider_knows_them_at_every_hop() -> None:
    seen: list[list[dict[str, JSON]]] = []

    def mapper(folded: History) -> str:
        seen.append(folded.data)
        return f"{len(folded)} things"

    first = said(user("one"), assistant("two"), user("three"))
    hop = recorded(first, nest_history(History(first), mapper=mapper), 4)
    more = [*hop, *said(assistant("four"), user("five"), start=5)]
    nest_history(History(more), mapper=mapper)
    assert seen[0] == [user("one"), assistant("two")]
    assert seen[1] == [{"type": "message", **assistant("2 things")}, user("three"), assistant("four")]


@pytest.mark.parametrize("field", ["id", "status"])
def test_a_field_that_a_dumped_model_has_as_null_is_left_out(field: str) -> None:
    assert as_item({"type": "message", **assistant("hi"), field: None}).data == {
        "type": "message",
        **assistant("hi"),
    }


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, list, lambda items: [*items[:1], *items[1:]]])
def test_copies_of_items_are_the_items(copied: Any) -> None:
    items = said(user("hi"), assistant("hello"))
    assert operations(items, copied(items)) is None


@pytest.mark.parametrize(
    "later", [lambda history: history, list, copy.deepcopy, nest_history, lambda history: history[:]]
)
def test_what_was_folded_at_one_hop_stays_folded_at_the_next(later: Any) -> None:
    first = said(user("one"), assistant("two"), user("three"))
    hop = recorded(first, nest_history(History(first)), 4)
    again = recorded(hop, list(later(hop)), 5)
    assert [line["text"] for line in lines(again)] == ["one", "two"]
    assert [item.text for item in again if not item.lines] == ["three"]
