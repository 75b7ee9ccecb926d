"""What a provider refuses, rule by rule, and the smallest rewrite that mends it."""

from collections.abc import Callable, Iterable

import pytest
from msgspec import Raw

from batonlog.events import JSON, Record, Ref
from batonlog.projections import History, Item, check_legal, model_history, repair, session_history
from batonlog.projections.items import ANSWERED_BY, as_item
from batonlog.projections.legality import NO_OUTPUT, repaired, violations

Log = Callable[..., tuple[Record, ...]]
Show = Callable[[Iterable[Item]], str]
Make = Callable[[str], list[Item]]

HERE, THERE = ("here", "model"), ("there", "model")


def found(history: Iterable[Item]) -> list[str]:
    return [violation.rule for violation in check_legal(History(history))]


@pytest.mark.parametrize(
    ("history", "rules"),
    [
        ("u m", []),
        ("u c=x o=x m", []),
        ("u c=x c=y o=y o=x m", []),
        ("u c=x o=x c=x o=x m", []),
        ("u r m", []),
        ("u r c=x o=x", []),
        ("u r r m", []),
        ("u o=x", ["output_without_call"]),
        ("u o=x c=x o=x", ["output_without_call"]),
        ("u c=x m", ["call_without_output"]),
        ("u c=x o=x o=x", ["second_output"]),
        ("u r", ["reasoning_without_follower"]),
        ("u r u", ["reasoning_without_follower"]),
        ("u c=x r o=x", ["reasoning_without_follower"]),
        ("u r r", ["reasoning_without_follower"]),
        ("", []),
    ],
)
def test_a_history_breaks_these_rules(items: Make, history: str, rules: list[str]) -> None:
    assert found(items(history)) == rules


def test_a_fault_names_its_item_and_says_what_is_wrong(log: Log) -> None:
    (fault,) = check_legal(session_history(log("start a", "ask a", "answer c")))
    assert fault.item.ref == Ref(3, 0)
    assert fault.message == "function_call 3.0 has no output"


def test_a_session_at_rest_is_legal(log: Log) -> None:
    records = log("start a", "ask a", "answer r c c", "return 3.2", "return 3.1", "ask a", "answer r m")
    assert not check_legal(session_history(records))


def test_reasoning_that_was_moved_away_from_what_followed_it_is_a_fault(log: Log) -> None:
    records = log("start a", "ask a", "answer r m m", "rewrite: take 0 2; take 3 4")
    assert found(model_history(records)) == ["reasoning_without_follower"]


def test_reasoning_may_stand_before_an_edited_follower(log: Log) -> None:
    records = log("start a", "ask a", "answer r m", "rewrite: take 0 2; put m=edited 3.1")
    assert found(model_history(records)) == []


def test_reasoning_that_leads_to_lost_reasoning_is_a_fault(log: Log) -> None:
    records = log("start a", "ask a", "answer r r m", "rewrite: take 0 3")
    assert found(model_history(records)) == ["reasoning_without_follower"] * 2


def test_an_id_that_stands_twice_is_a_fault() -> None:
    reasoning = Item(None, Raw(b'{"type":"reasoning","id":"rs","summary":[]}'))
    message = Item(None, Raw(b'{"type":"message","role":"assistant","content":"x"}'))
    assert found([reasoning, message, reasoning, message]) == ["duplicate_id"]


def test_messages_with_one_id_are_legal_because_it_is_not_sent() -> None:
    message = Item(None, Raw(b'{"type":"message","id":"m","role":"assistant","content":"x"}'))
    assert found([message, message]) == []


@pytest.mark.parametrize("kind", sorted(ANSWERED_BY))
def test_every_call_that_a_client_answers_needs_its_output(kind: str) -> None:
    call = Item(None, Raw(b'{"type":"%b","call_id":"x","id":"i"}' % kind.encode()))
    assert found([call]) == ["call_without_output"]


def test_hosted_calls_need_no_output_of_ours() -> None:
    assert found([Item(None, Raw(b'{"type":"web_search_call","id":"ws"}'))]) == []


# -- issuers


def test_reasoning_of_another_provider_is_a_fault(log: Log) -> None:
    items = list(session_history(log("start a", "ask a", "answer r m")))
    assert [fault.rule for fault in violations(items, THERE)] == ["foreign_item"]
    assert list(violations(items, HERE)) == []


def test_reasoning_of_no_known_maker_is_a_fault_for_anyone(items: Make) -> None:
    (fault,) = violations(items("r m"), HERE)
    assert "nobody that the log knows" in fault.message


def test_messages_and_calls_may_come_from_anywhere(log: Log) -> None:
    items = list(session_history(log("start a", "ask a", "answer m c", "return 3.1")))
    assert list(violations(items, THERE)) == []


# -- mending


@pytest.mark.parametrize(
    ("history", "mended"),
    [
        ("u m", "u m"),
        ("u o=x m", "u m"),
        ("u c=x o=x o=x m", "u c o m"),
        ("u c=x m", "u c o m"),
        ("u c=x c=y m", "u c c o o m"),
        ("u c=x c=y o=y m", "u c c o o m"),
        ("u c=x", "u c o"),
        ("u r", "u"),
        ("u r r", "u"),
        ("u m r u", "u m u"),
        ("o=x", ""),
    ],
)
def test_repair_makes_the_nearest_legal_history(items: Make, show: Show, history: str, mended: str) -> None:
    result = repair(History(items(history)))
    assert show(result) == mended
    assert not check_legal(result)
    assert repair(result) == result


def test_a_made_up_output_says_that_it_is_missing(items: Make) -> None:
    (_, output) = repair(History(items("c=x")))
    assert output.data == {"type": "function_call_output", "call_id": "x", "output": NO_OUTPUT}


def test_a_custom_call_gets_a_custom_output() -> None:
    call = Item(None, Raw(b'{"type":"custom_tool_call","call_id":"x","name":"n","input":""}'))
    assert [item.type for item in repair(History([call]))] == ["custom_tool_call", "custom_tool_call_output"]


def test_a_call_whose_output_nobody_can_make_up_is_dropped() -> None:
    call = Item(None, Raw(b'{"type":"computer_call","call_id":"x","id":"cu"}'))
    assert list(repair(History([call]))) == []


def test_a_message_or_call_is_never_dropped_for_reasonings_sake(log: Log, show: Show) -> None:
    items = list(session_history(log("start a", "ask a", "answer r m r c", "return 3.3")))
    assert show(repaired(items, THERE)) == "u1.0 m3.1 c3.3 o4.0"


def test_what_is_legal_stays_the_same_item_for_item(log: Log) -> None:
    items = list(session_history(log("start a", "ask a", "answer r c", "return 3.1")))
    assert repaired(items, HERE) == items


def test_dropping_one_item_may_make_another_illegal_and_both_go() -> None:
    reasoning = Item(Ref(3, 0), Raw(b'{"type":"reasoning","id":"rs","summary":[]}'))
    screen = Item(Ref(3, 1), Raw(b'{"type":"computer_call","call_id":"x","id":"cu"}'))
    assert repaired([reasoning, screen], None) == []


def test_repair_keeps_the_version(items: Make) -> None:
    assert repair(History(items("u"), 7)).version == 7


# -- programs

PROGRAM: list[dict[str, JSON]] = [
    {"type": "program", "id": "prog_1", "call_id": "p", "code": "look()"},
    {
        "type": "function_call",
        "call_id": "c",
        "name": "look",
        "arguments": "{}",
        "caller": {"type": "program", "caller_id": "p"},
    },
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "program_output", "id": "po_1", "call_id": "p", "result": "x", "status": "completed"},
]


def test_a_program_with_its_calls_is_legal() -> None:
    assert check_legal(History(map(as_item, PROGRAM))) == ()


def test_a_call_without_the_program_that_made_it_is_dropped_with_its_output() -> None:
    history = History(map(as_item, [{"role": "user", "content": "go"}, *PROGRAM[1:3]]))
    assert [fault.rule for fault in check_legal(history)] == ["without_program"]
    assert [item.type for item in repair(history)] == ["message"]


def test_a_call_that_a_model_made_itself_needs_no_program() -> None:
    direct = {**PROGRAM[1], "caller": {"type": "direct"}}
    assert check_legal(History(map(as_item, [direct, PROGRAM[2]]))) == ()
