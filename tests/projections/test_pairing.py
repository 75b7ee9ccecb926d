"""Which call an output answers."""

import pytest
from msgspec import Raw

from batonlog.events import Ref
from batonlog.projections import Item
from batonlog.projections.items import ANSWERED_BY
from batonlog.projections.pairing import Pairing, called, is_call, is_output


def call(version: int, call_id: str) -> Item:
    return Item(Ref(version, 0), Raw(b'{"type":"function_call","call_id":"%b"}' % call_id.encode()))


def output(call_id: str, *, answers: Ref | None = None) -> Item:
    held = Raw(b'{"type":"function_call_output","call_id":"%b"}' % call_id.encode())
    return Item(Ref(9, 0), held, answers=answers)


def paired(*calls: Item) -> Pairing:
    pairing = Pairing()
    for place, item in enumerate(calls):
        pairing.call(place, item)
    return pairing


def test_an_output_answers_the_call_that_the_log_knows() -> None:
    pairing = paired(call(1, "x"), call(2, "x"))
    assert pairing.answer(output("x", answers=Ref(1, 0))) == (0, True)
    assert list(pairing.waiting) == [1]


def test_an_output_that_the_log_does_not_know_answers_the_nearest_that_waits() -> None:
    pairing = paired(call(1, "x"), call(2, "x"), call(3, "y"))
    assert [pairing.answer(output("x"))[0] for _ in range(2)] == [1, 0]


def test_a_second_output_finds_its_call_answered() -> None:
    pairing = paired(call(1, "x"))
    pairing.answer(output("x"))
    assert pairing.answer(output("x")) == (0, False)


def test_an_output_without_a_call_answers_none() -> None:
    assert paired(call(1, "x")).answer(output("y")) == (None, False)


def test_an_output_whose_call_is_gone_answers_no_other_of_the_same_id() -> None:
    assert paired(call(2, "x")).answer(output("x", answers=Ref(1, 0))) == (None, False)


def test_an_edited_call_is_still_answered() -> None:
    edited = call(1, "x").replace(arguments="[hidden]")
    assert paired(edited).answer(output("x", answers=Ref(1, 0))) == (0, True)


def test_an_output_of_another_type_answers_no_call() -> None:
    custom = Item(None, Raw(b'{"type":"custom_tool_call_output","call_id":"x"}'))
    assert paired(call(1, "x")).answer(custom) == (None, False)


@pytest.mark.parametrize(("kind", "answer"), ANSWERED_BY.items())
def test_every_call_of_the_provider_is_answered_by_its_output(kind: str, answer: str) -> None:
    made = Item(None, Raw(b'{"type":"%b","call_id":"x","id":"x"}' % kind.encode()))
    held = b'{"type":"%b","call_id":"x","approval_request_id":"x"}' % answer.encode()
    answers = Item(None, Raw(held))
    assert is_call(made)
    assert is_output(answers)
    assert called(made) == called(answers) == "x"
    assert paired(made).answer(answers) == (0, True)
