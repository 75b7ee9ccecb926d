"""The laws of the two histories: what was said is never lost, and a view is made of it."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.checks import bare, played, put, said, shown, without_rewrites
from tests.laws.conversations import scripts
from tests.laws.depth import examples
from tests.laws.scripts import Script

import batonlog.projections.filters as filters
from batonlog.events import GuardrailTripped, Record, Ref
from batonlog.events.values import dump
from batonlog.projections import (
    model_history,
    model_request,
    run_result,
    server_chain,
    session_history,
    timeline,
    usage,
)
from batonlog.projections.placement import Placement, place
from batonlog.projections.state import State, advance, run_state


@examples(30)
@given(scripts)
def test_the_session_is_the_same_with_and_without_rewrites(script: Script) -> None:
    _, records = played(script)
    assert shown(session_history(records)) == shown(without_rewrites(records).items())


@examples(30)
@given(scripts)
def test_the_session_holds_everything_that_was_said_exactly_once(script: Script) -> None:
    _, records = played(script)
    refs = [item.ref for item in session_history(records)]
    assert len(refs) == len(set(refs))
    assert {item.ref: bytes(item.held) for item in session_history(records)} == said(records)


@examples(30)
@given(scripts)
def test_every_item_of_every_view_stands_in_exactly_one_event(script: Script) -> None:
    _, records = played(script)
    heard, made = said(records), put(records)
    assert not set(heard) & set(made)
    state = Placement()
    for record in records:
        state = place(state, record.version, record.event)
        refs = [item.ref for item in state.items()]
        assert len(refs) == len(set(refs))
        for item in state.items():
            assert item.ref is not None
            assert item.ref.version <= record.version
            if item.ref in made:
                assert dump(item.data) == made[item.ref]
            else:
                assert bytes(item.held) == heard[item.ref]


@examples(30)
@given(scripts)
def test_without_a_rewrite_the_view_is_the_session(script: Script) -> None:
    _, records = played(script)
    first = next((record.version for record in records if has_rewrite(record)), len(records) + 1)
    before = records[: first - 1]
    assert shown(model_history(before)) == shown(session_history(before))


def has_rewrite(record: Record) -> bool:
    event = record.event
    return record.type in ("handoff.filtered", "history.rewritten") or (
        isinstance(event, GuardrailTripped) and event.rewrite is not None
    )


@examples(25)
@given(scripts)
def test_folding_on_gives_what_folding_from_scratch_gives(script: Script) -> None:
    _, records = played(script)
    state, placed, session = State(), Placement(), Placement(rewrites=False)
    for n, record in enumerate(records, 1):
        state = advance(state, record.version, record.event)
        placed = place(placed, record.version, record.event)
        session = place(session, record.version, record.event)
        assert bare(state) == bare(run_state(records[:n]))
        assert bare(state.place) == bare(placed)
        assert shown(session.items()) == shown(session_history(records[:n]))


@examples(25)
@given(scripts)
def test_a_fold_at_a_version_is_the_fold_of_the_records_until_then(script: Script) -> None:
    _, records = played(script)
    for n in range(1, len(records) + 1):
        before = records[:n]
        assert bare(run_state(records, at=n)) == bare(run_state(before))
        assert shown(session_history(records, at=n)) == shown(session_history(before))
        assert shown(model_history(records, at=n)) == shown(model_history(before))
        assert session_history(records, at=n).version == n
        assert server_chain(records, at=n) == server_chain(before)
        assert bare(run_result(records, at=n)) == bare(run_result(before))
        assert timeline(records, at=n) == timeline(before)
        assert usage(records, at=n) == usage(before)


@examples(30)
@given(scripts, st.randoms(use_true_random=False))
def test_going_on_from_one_state_in_two_ways_leaves_both_right(script: Script, chance: random.Random) -> None:
    _, records = played(script)
    cut = chance.randrange(len(records) + 1)
    known = run_state(records[:cut])
    before = bare(known)
    others = records[chance.randrange(len(records) + 1) :]
    one = go_on(known, records[cut:])
    two = go_on(known, others)  # records that do not belong here: a fold is total
    three = go_on(known, records[cut:])
    assert bare(known) == before
    assert bare(one) == bare(three) == bare(run_state(records))
    assert bare(two) == bare(go_on(run_state(records[:cut]), others))
    assert known.place.settled.digest() == run_state(records[:cut]).place.settled.digest()
    assert one.place.settled.digest() == run_state(records).place.settled.digest()
    assert list(one.place.settled.wire()) == list(run_state(records).place.settled.wire())
    assert list(known.place.settled.wire()) == list(run_state(records[:cut]).place.settled.wire())


def go_on(state: State, records: Sequence[Record]) -> State:
    for record in records:
        state = advance(state, record.version, record.event)
    return state


@examples(25)
@given(scripts)
def test_replay_calls_no_filter(script: Script) -> None:
    kept, records = played(script)
    called = kept.filtered
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "apply_filters", None)
        patch.setattr(filters, "as_filters", None)
        for history in (session_history, model_history):
            assert len(history(records)) >= 0
        for turn in timeline(records):
            model_request(records, at=turn.requested)
    assert kept.filtered == called


@examples(30)
@given(scripts)
def test_settled_histories_only_grow_except_at_a_rewrite(script: Script) -> None:
    _, records = played(script)
    view, session = Placement(), Placement(rewrites=False)
    for record in records:
        was_view, was_session = list(view.settled), list(session.settled)
        view = place(view, record.version, record.event)
        session = place(session, record.version, record.event)
        assert list(session.settled)[: len(was_session)] == was_session
        if record.type not in ("handoff.made", "history.rewritten", "guardrail.tripped"):
            assert list(view.settled)[: len(was_view)] == was_view


@examples(30)
@given(scripts)
def test_a_call_and_its_output_are_told_apart_by_refs(script: Script) -> None:
    _, records = played(script)
    answered: set[Ref] = set()
    for item in session_history(records):
        if item.answers is not None:
            assert item.answers not in answered
            answered.add(item.answers)
