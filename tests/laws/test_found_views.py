"""What the laws have found in views, repairs and the wire form, each as its smallest example."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.laws.scripts import JSON

from batonlog.engine.testing import assistant_message
from batonlog.events import (
    HistoryRewritten,
    Ref,
    Rewrite,
)
from batonlog.events.codec import fresh
from batonlog.events.values import dump
from batonlog.projections import (
    History,
    Item,
    check_legal,
    repair,
)
from batonlog.projections.legality import repaired, violations
from batonlog.projections.request import wire_input
from batonlog.projections.rewrite import operations, rewritten
from batonlog.projections.view import View

ISSUER = ("ScriptedModel", "scripted")


def made(data: JSON, version: int, index: int = 0, **others: Any) -> Item:
    return Item(Ref(version, index), Raw(dump(data)), **others)


def call(call_id: str, version: int, index: int = 0) -> Item:
    data = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    return made(data, version, index, issuer=ISSUER)


def output(call_id: str, version: int, answers: Ref) -> Item:
    return made({"type": "function_call_output", "call_id": call_id, "output": "x"}, version, answers=answers)


def reasoning(name: str, version: int, index: int = 0) -> Item:
    return made({"type": "reasoning", "id": name, "summary": []}, version, index, issuer=ISSUER)


def search(name: str, version: int, index: int = 0, *, thought: bool = False) -> Item:
    data = {"type": "web_search_call", "id": name, "status": "completed"}
    return made(data, version, index, issuer=ISSUER, thought=thought)


def said(text: str, version: int) -> Item:
    return made({"role": "user", "content": text}, version)


def through_the_log(before: Sequence[Item], after: Sequence[Item]) -> View:
    """What a rewrite that leads from one to the other makes of the first."""
    changes = operations(before, after)
    assert changes is not None
    event = fresh(
        HistoryRewritten(
            cause="repair", rewrite=Rewrite(filter="f", parameters={}, operations=tuple(changes))
        )
    )
    assert isinstance(event, HistoryRewritten)
    return rewritten(View(before), event.rewrite, past=(), version=99, first=0)


def test_an_output_that_was_made_up_answers_its_own_call_though_ids_are_used_again() -> None:
    view = [call("c1", 4, 0), call("c1", 4, 1), output("c1", 6, Ref(4, 1))]
    mended = through_the_log(view, repaired(view, None))
    assert list(violations(list(mended), None)) == []
    assert [item.answers for item in mended if item.type == "function_call_output"] == [Ref(4, 0), Ref(4, 1)]


@pytest.mark.parametrize("call_id", ["", "c" * 70, "\ud800"])
def test_a_call_with_an_id_that_no_provider_takes_is_repaired_all_the_same(call_id: str) -> None:
    view = [call(call_id, 4)]
    mended = through_the_log(view, repaired(view, None))
    assert list(violations(list(mended), None)) == []
    ids = {item["call_id"] for item in map(from_json, wire_input(mended))}
    assert len(ids) == 1
    assert 1 <= len(ids.pop()) <= 64


def from_json(data: bytes) -> JSON:
    return msgspec.json.decode(data)


def test_two_call_ids_that_differ_in_a_lone_surrogate_stay_apart_on_the_wire() -> None:
    view = [
        call("\ud800", 4, 0),
        call("\ud801", 4, 1),
        output("\ud800", 5, Ref(4, 0)),
        output("\ud801", 6, Ref(4, 1)),
    ]
    one, two, first, second = map(from_json, wire_input(view))
    assert one["call_id"] != two["call_id"]
    assert (first["call_id"], second["call_id"]) == (one["call_id"], two["call_id"])


@pytest.mark.parametrize("changed", ["call", "output"])
def test_a_call_and_its_output_go_out_under_one_id_though_a_filter_changed_one(changed: str) -> None:
    one, two = call("c1", 4), output("c1", 5, Ref(4, 0))
    after = [one.replace(call_id="mine"), two] if changed == "call" else [one, two.replace(call_id="mine")]
    view = through_the_log([one, two], after)
    assert list(violations(list(view), None)) == []
    sent = [item["call_id"] for item in map(from_json, wire_input(view))]
    assert sent == (["mine", "mine"] if changed == "call" else ["c1", "c1"])


def test_an_edited_item_of_an_earlier_view_still_answers_its_call() -> None:
    earlier = View(
        [call("c1", 4, 0), call("c1", 4, 1), output("c1", 5, Ref(4, 0)), output("c1", 6, Ref(4, 1))]
    )
    now = View([said("hi", 8)])
    after = [*earlier[:2], *(item.replace(output="[hidden]") for item in earlier[2:])]
    changes = operations(now, after, past=[(7, earlier)])
    assert changes is not None
    made = Rewrite(filter="f", parameters={}, operations=tuple(changes))
    event = fresh(HistoryRewritten(cause="manual", rewrite=made))
    assert isinstance(event, HistoryRewritten)
    view = rewritten(now, event.rewrite, past=[(7, earlier)], version=99, first=0)
    assert [item.answers for item in view] == [None, None, Ref(4, 0), Ref(4, 1)]


def test_an_output_of_another_type_than_its_call_wants_is_no_answer() -> None:
    one, two = call("c1", 4), output("c1", 5, Ref(4, 0))
    view = through_the_log([one, two], [one, two.replace(type="custom_tool_call_output")])
    rules = [violation.rule for violation in violations(list(view), None)]
    assert rules == ["output_without_call", "call_without_output"]
    assert list(violations(repaired(list(view), None), None)) == []


def test_reasoning_that_was_edited_is_not_sent_back() -> None:
    view = [reasoning("rs_1", 4), made(assistant_message("ok"), 4, 1, issuer=ISSUER)]
    after = through_the_log(view, [view[0].replace(summary=[]), view[1]])
    assert [violation.rule for violation in violations(list(after), ISSUER)] == ["foreign_item"]


def test_an_item_under_an_id_that_its_maker_never_gave_is_not_sent_back() -> None:
    view = [said("hi", 1), search("ws_1", 4)]
    after = through_the_log(view, [view[0], view[1].replace(id="ws_2")])
    assert [violation.rule for violation in violations(list(after), ISSUER)] == ["foreign_item"]
    same = through_the_log(view, [view[0], view[1].replace(status="completed")])
    assert list(violations(list(same), ISSUER)) == []


def test_an_item_that_goes_out_with_its_id_needs_the_reasoning_that_stood_before_it() -> None:
    whole = [said("hi", 1), reasoning("rs_1", 4), search("ws_1", 4, 1, thought=True)]
    assert list(violations(whole, ISSUER)) == []
    without = [whole[0], whole[2]]
    assert [violation.rule for violation in violations(without, ISSUER)] == ["item_without_reasoning"]
    assert repaired(without, ISSUER) == [whole[0]]
    apart = [whole[1], whole[0], whole[2]]
    assert {violation.rule for violation in violations(apart, ISSUER)} == {
        "reasoning_without_follower",
        "item_without_reasoning",
    }


def test_an_item_that_goes_out_without_an_id_needs_no_reasoning() -> None:
    message = made(assistant_message("ok"), 4, 1, issuer=ISSUER, thought=True)
    assert check_legal(History([said("hi", 1), message])) == ()


def test_a_calls_id_that_goes_out_may_not_stand_twice_either() -> None:
    computer = {"type": "computer_call", "id": "cu_1", "call_id": "k1"}
    answer = {"type": "computer_call_output", "call_id": "k1", "output": {}}
    items = [
        made(computer, 4),
        made(answer, 5, answers=Ref(4, 0)),
        made(computer, 6),
        made(answer, 7, answers=Ref(6, 0)),
    ]
    assert [violation.rule for violation in check_legal(History(items))] == ["duplicate_id"]
    assert check_legal(repair(History(items))) == ()


def test_a_view_knows_that_an_id_stands_twice_in_it_and_its_shorter_self_does_not() -> None:
    short = View([reasoning("rs_1", 4)])
    long = short.plus([reasoning("rs_1", 6)])
    assert long.repeats_an_id()
    assert not short.repeats_an_id()
    assert not short.plus([reasoning("rs_2", 6)]).repeats_an_id()
    assert not View([call("c1", 4), call("c1", 6)]).repeats_an_id()
