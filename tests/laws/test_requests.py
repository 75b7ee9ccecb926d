"""The laws of requests: legal, provable, what the model was given, and never more than it lacks."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.checks import Provider, bare, played, shown, views
from tests.laws.conversations import scripts
from tests.laws.depth import examples
from tests.laws.scripts import Script

from batonlog.events import (
    CallRefused,
    DamagedError,
    Event,
    HandoffMade,
    InputAdded,
    ModelRequested,
    ModelResponded,
    RunStarted,
    ToolAbandoned,
    ToolReturned,
)
from batonlog.events.codec import fresh
from batonlog.projections import History, model_history, model_request, server_chain, timeline
from batonlog.projections.legality import violations
from batonlog.projections.state import run_state


@examples(50)
@given(scripts)
def test_every_view_that_is_sent_is_legal_for_its_issuer(script: Script) -> None:
    _, records = played(script)
    for record, placed in zip(records, views(records), strict=True):
        if isinstance(record.event, ModelRequested):
            assert list(violations(list(placed.settled), record.event.issuer)) == []
            assert len(placed.settled) > 0


@examples(50)
@given(scripts)
def test_what_the_provider_holds_and_what_is_sent_are_the_view(script: Script) -> None:
    _, records = played(script)
    provider = Provider()
    for record, placed in zip(records, views(records), strict=True):
        provider.hear(record, list(placed.settled))


@examples(30)
@given(scripts)
def test_the_server_chain_is_what_the_provider_holds(script: Script) -> None:
    _, records = played(script)
    provider = Provider()
    for record, placed in zip(records, views(records), strict=True):
        provider.hear(record, list(placed.settled))
        chain = server_chain(records, at=record.version)
        if chain is not None:
            assert list(chain.held) == provider.held[chain.response_id]
            assert list(chain.held) == [item.ref for item in placed.settled][: len(chain.held)]


@examples(30)
@given(scripts)
def test_a_chain_is_kept_where_nothing_broke_it(script: Script) -> None:
    _, records = played(script)
    state = run_state(())
    for record in records:
        if isinstance(record.event, ModelRequested) and script.chain:
            chain = server_chain(records, at=record.version - 1)
            issuer = state.chain.issuer if state.chain is not None else None
            if chain is not None and issuer == record.event.issuer:
                assert record.event.previous_response_id == chain.response_id
            else:
                assert record.event.previous_response_id is None
        state = run_state(records, at=record.version)


@examples(50)
@given(scripts)
def test_a_request_is_rebuilt_from_the_log_as_the_model_was_given_it(script: Script) -> None:
    kept, records = played(script)
    asked = [turn.requested for turn in timeline(records)]
    assert len(asked) == len(kept.requests)
    for version, asked_for, raw in zip(asked, kept.requests, kept.raw, strict=True):
        rebuilt = model_request(records, at=version)  # raises if its digest does not hold
        assert shown(rebuilt.input) == shown(asked_for.input)
        assert [bytes(item) for item in rebuilt.raw_input] == raw
        assert rebuilt.digest == asked_for.digest
        assert rebuilt.previous_response_id == asked_for.previous_response_id
        assert rebuilt.instructions == asked_for.instructions
        assert rebuilt.model == asked_for.model
        assert rebuilt.agent == asked_for.agent
        assert list(map(bytes, rebuilt.raw_tools)) == list(map(bytes, asked_for.raw_tools))
        assert bytes(rebuilt.raw_settings) == bytes(asked_for.raw_settings)
        for item in raw:
            msgspec.json.decode(item)  # UTF-8, without lone surrogates


@examples(30)
@given(scripts)
def test_a_request_shows_the_end_of_the_model_history(script: Script) -> None:
    _, records = played(script)
    for turn in timeline(records):
        request = model_request(records, at=turn.requested)
        view = model_history(records, at=turn.requested)
        assert shown(view)[request.first :] == shown(request.input)
        assert request.first == 0 or request.previous_response_id is not None


@examples(25)
@given(scripts)
def test_the_state_that_an_engine_holds_is_the_fold_of_what_is_stored(script: Script) -> None:
    kept, records = played(script, look=bare)
    assert kept.states or not kept.requests
    for version, state in kept.states:
        assert state == bare(run_state(records, at=version))


@examples(30)
@given(scripts)
def test_a_call_id_goes_out_once_in_a_request(script: Script) -> None:
    kept, _ = played(script)
    for request, raw in zip(kept.requests, kept.raw, strict=True):
        if request.previous_response_id is None:
            calls = [item for item in map(msgspec.json.decode, raw) if item.get("type") == "function_call"]
            ids = [call["call_id"] for call in calls]
            assert len(ids) == len(set(ids))
            assert all(1 <= len(found) <= 64 for found in ids)


def test_an_empty_history_is_falsy() -> None:
    assert not History()


@examples(30)
@given(scripts, st.randoms(use_true_random=False))
def test_a_request_cannot_be_rebuilt_from_what_was_tampered_with(
    script: Script, chance: random.Random
) -> None:
    _, records = played(script)
    turns = timeline(records)
    if not turns:
        return
    turn = chance.choice(turns)
    (shown_item, *_) = chance.sample(list(model_history(records, at=turn.requested)), 1)
    assert shown_item.ref is not None
    n = shown_item.ref.version - 1
    changed = tampered(records[n].event)
    if changed is None:
        return
    forged = [*records[:n], msgspec.structs.replace(records[n], event=changed), *records[n + 1 :]]
    with pytest.raises(DamagedError):
        model_request(forged, at=turn.requested)


def tampered(event: Event) -> Event | None:
    """Return an event with another text in every item that it says."""
    other = {"role": "user", "content": "something else"}
    match event:
        case RunStarted() | InputAdded():
            return changed(event, input=tuple(other for _ in event.input))
        case ModelResponded():
            return changed(event, output=tuple(other for _ in event.output))
        case CallRefused() | ToolAbandoned():
            return changed(event, answer=event.answer + "!")
        case HandoffMade():
            return changed(event, acknowledgement=event.acknowledgement + "!")
        case ToolReturned():
            return changed(event, output=["something else"])
        case _:
            return None


def changed(event: Any, **fields: object) -> Event:
    """Return an event with other fields, as it would be read from a log."""
    return fresh(msgspec.structs.replace(event, **fields))
