"""Filters that keep some items: which, and that no group is split."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from batonlog.events import Record, UsageError
from batonlog.projections import (
    History,
    Item,
    check_legal,
    drop_reasoning,
    keep_last,
    last_turns,
    messages_only,
    model_history,
    nest_history,
    only_agents,
)
from batonlog.projections.items import as_item

Log = Callable[..., tuple[Record, ...]]
Show = Callable[[Iterable[Item]], str]
Make = Callable[[str], list[Item]]


@pytest.mark.parametrize(
    ("history", "kept"),
    [("u r m", "u m"), ("u r c=x o=x r m", "u c o m"), ("u m", "u m"), ("r m", "m")],
)
def test_drop_reasoning_keeps_all_else(items: Make, show: Show, history: str, kept: str) -> None:
    assert show(drop_reasoning(History(items(history)))) == kept


def test_drop_reasoning_drops_hosted_items_that_no_provider_takes_back_without_it() -> None:
    hosted = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
    held = as_item({"role": "user", "content": ""}).held
    search = Item(None, type(held)(b'{"type":"web_search_call","id":"ws_1"}'), thought=True)
    free = Item(None, search.held)
    thought = as_item({"type": "reasoning", "id": "rs_1", "summary": []})
    assert list(drop_reasoning(History([thought, search, free]))) == [free]
    assert hosted["id"] == search.head.id


TWO_AGENTS = (
    "start a",
    "ask a",
    "answer m c",
    "return 3.1",
    "ask a",
    "answer c",
    "hand 6.0 a b",
    "ask b",
    "answer m",
)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["a"], "u1.0 m3.0 c3.1 o4.0 c6.0 o7.0"),
        (["b"], "u1.0 m9.0"),
        (["a", "b"], "u1.0 m3.0 c3.1 o4.0 c6.0 o7.0 m9.0"),
        (["nobody"], "u1.0"),
    ],
)
def test_only_agents_keeps_what_they_said_and_all_input(
    log: Log, show: Show, names: list[str], kept: str
) -> None:
    assert show(only_agents(*names)(model_history(log(*TWO_AGENTS)))) == kept


@pytest.mark.parametrize("names", [(), (3,)])
def test_only_agents_needs_names(names: Any) -> None:
    with pytest.raises(UsageError, match="needs the names"):
        only_agents(*names)


def test_only_agents_looks_inside_a_nest(log: Log) -> None:
    history = model_history(log(*TWO_AGENTS, "complete 9.0", "start b"))
    nest = nest_history(history)
    texts = " ".join(item.text for item in only_agents("b")(nest))
    assert "message 9.0" in texts
    assert "message 3.0" not in texts


@pytest.mark.parametrize(
    ("n", "kept"),
    [
        (1, "u r m"),
        (2, "u c c o o r m"),
        (3, "m u c c o o r m"),
        (4, "u c o m u c c o o r m"),
        (5, "u m u c o m u c c o o r m"),
        (9, "u m u c o m u c c o o r m"),
    ],
)
def test_last_turns_keeps_model_calls_with_their_input_and_outputs(
    log: Log, show: Show, n: int, kept: str
) -> None:
    rows = [
        *("start a", "ask a", "answer m", "complete 3.0", "start a", "ask a", "answer c", "return 7.0"),
        *(
            "ask a",
            "answer m",
            "complete 10.0",
            "start a",
            "ask a",
            "answer c c",
            "return 14.0",
            "return 14.1",
        ),
        *("ask a", "answer r m"),
    ]
    left = last_turns(n)(model_history(log(*rows)))
    assert " ".join(part[0] for part in show(left).split()) == kept
    assert check_legal(left) == ()


def test_last_turns_never_loses_the_question(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer c", "return 3.0", "ask a", "answer c", "return 6.0")
    assert show(last_turns(1)(model_history(records))) == "u1.0 c6.0 o7.0"


def test_input_after_the_last_answer_belongs_to_the_next_turn(log: Log, show: Show) -> None:
    records = log(
        "start a", "ask a", "answer m", "complete 3.0", "start a", "ask a", "answer m", "complete 7.0"
    )
    waiting = log("start a", "ask a", "answer m", "complete 3.0", "start a")
    assert show(last_turns(1)(model_history(records))) == "u5.0 m7.0"
    assert show(last_turns(1)(model_history(waiting))) == "u1.0 m3.0 u5.0"


@pytest.mark.parametrize("n", [0, -1, True, "2", 1.5])
@pytest.mark.parametrize("make", [keep_last, last_turns])
def test_nothing_is_no_number_to_keep(make: Callable[[Any], object], n: Any) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        make(n)


def test_a_program_and_its_calls_are_cut_together() -> None:
    owned = {"caller": {"type": "program", "caller_id": "p"}}
    values: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"type": "program", "call_id": "p", "id": "prog_1", "code": "look()"},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}", **owned},
        {"type": "function_call_output", "call_id": "c", "output": "seen", **owned},
        {"type": "program_output", "call_id": "p", "id": "po_1", "result": "seen", "status": "completed"},
        {"role": "assistant", "content": "ok"},
    ]
    history = History([as_item(value) for value in values])
    kinds = [[item.type for item in keep_last(n)(history)] for n in range(1, 7)]
    whole = [item.type for item in history]
    assert kinds == [whole[5:]] * 4 + [whole[1:], whole]
    assert [item.type for item in messages_only(history)] == ["message", "message"]
