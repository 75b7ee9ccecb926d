"""Run state: all that decisions read, event by event."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from batonlog.events import (
    AgentResolved,
    ApprovalDecided,
    Event,
    EventRedacted,
    GuardrailTripped,
    Limits,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    Record,
    Ref,
    Rewrite,
    RunCompleted,
    RunResumed,
    ToolCalled,
    UnknownEvent,
    Usage,
)
from batonlog.events.lifecycle import (
    ASKED,
    ASKING,
    CALLED,
    DECIDED,
    GATED,
    IDLE,
    RUNNING,
    SETTLED,
    STOPPED,
    UNKNOWN,
)
from batonlog.projections.offers import Parts
from batonlog.projections.state import FILTER_FAILED, State, advance, run_state

Log = Callable[..., tuple[Record, ...]]

ASKED_TWO = ("start a", "resolve a", "ask a", "answer m c c")
"""Calls 4.1 and 4.2."""


def states(state: State) -> list[str]:
    return [call.state for call in state.calls.values()]


# -- phases and calls


@pytest.mark.parametrize(
    ("more", "phase", "calls"),
    [
        ([], RUNNING, [ASKED, ASKED]),
        (["call 4.1"], RUNNING, [CALLED, ASKED]),
        (["call 4.1", "return 4.1"], RUNNING, [SETTLED, ASKED]),
        (["gate 4.1"], RUNNING, [GATED, ASKED]),
        (["gate 4.1", "approve 4.1"], RUNNING, [DECIDED, ASKED]),
        (["call 4.1", "resume"], RUNNING, [UNKNOWN, ASKED]),
        (["call 4.1", "resume", "gate 4.1 unknown"], RUNNING, [GATED, ASKED]),
        (["call 4.1", "abandon 4.1"], RUNNING, [SETTLED, ASKED]),
        (["refuse 4.2"], RUNNING, [ASKED, SETTLED]),
        (["gate 4.1", "pause approval"], STOPPED, [GATED, ASKED]),
        (["fail x"], STOPPED, [ASKED, ASKED]),
        (["refuse 4.1", "hand 4.2 a b"], RUNNING, [SETTLED, SETTLED]),
        (["refuse 4.1", "refuse 4.2", "ask a"], ASKING, [SETTLED, SETTLED]),
        (["refuse 4.1", "refuse 4.2", "cancel"], IDLE, [SETTLED, SETTLED]),
        (["call 4.1", "fork"], STOPPED, [UNKNOWN, ASKED]),
        (["gate 4.1", "approve 4.1", "fork"], STOPPED, [GATED, ASKED]),
    ],
)
def test_a_run_and_its_calls_stand_so(log: Log, more: list[str], phase: str, calls: list[str]) -> None:
    state = run_state(log(*ASKED_TWO, *more))
    assert (state.phase, states(state)) == (phase, calls)


def test_an_event_that_the_lifecycle_does_not_list_moves_nothing(log: Log) -> None:
    state = run_state(log("complete", "return 1.0", "gate 7.7", *ASKED_TWO[:1]))
    assert (state.phase, state.calls) == (RUNNING, {})


def test_a_call_is_what_the_model_wrote(log: Log) -> None:
    call = run_state(log(*ASKED_TWO)).calls[Ref(4, 1)]
    assert (call.call_id, call.name, call.agent, call.arguments) == ("call_4_1", "look", "a", "{}")


def test_a_call_counts_its_attempts(log: Log) -> None:
    again = ToolCalled(call=Ref(4, 1), name="look", arguments={}, attempt=2)
    state = run_state(log(*ASKED_TWO, "call 4.1", "resume", again))
    assert state.calls[Ref(4, 1)].attempts == 2


def test_a_decision_is_spent_when_its_call_starts(log: Log) -> None:
    state = run_state(log(*ASKED_TWO, "gate 4.1", "approve 4.1", "call 4.1"))
    assert state.calls[Ref(4, 1)].verdict == ""


def test_a_decision_in_a_fork_is_not_spent_there(log: Log) -> None:
    state = run_state(log(*ASKED_TWO, "gate 4.1", "approve 4.1", "fork"))
    assert state.calls[Ref(4, 1)].verdict == ""


def test_a_call_that_was_in_flight_at_a_fork_is_marked(log: Log) -> None:
    state = run_state(log(*ASKED_TWO, "call 4.1", "fork"))
    assert [call.forked for call in state.calls.values()] == [True, False]


def test_a_standing_decision_is_kept_by_agent_and_tool(log: Log) -> None:
    standing = ApprovalDecided(standing=("a", "look"), verdict="refuse", by="anna")
    state = run_state(log(*ASKED_TWO, standing))
    assert state.standing[("a", "look")].verdict == "refuse"
    assert states(state) == [ASKED, ASKED]


def test_a_handoff_whose_filter_failed_is_not_prepared_again(log: Log) -> None:
    state = run_state(log(*ASKED_TWO, "refuse 4.1", "call 4.2", "resume", f"fail {FILTER_FAILED}"))
    assert [call.prepared for call in state.calls.values()] == [False, True]


def test_a_call_that_was_lost_to_another_failure_is_not_prepared(log: Log) -> None:
    state = run_state(log(*ASKED_TWO, "call 4.2", "resume", "fail RuntimeError"))
    assert not state.calls[Ref(4, 2)].prepared


def test_the_agent_that_called_is_remembered_after_a_handoff(log: Log) -> None:
    state = run_state(log(*ASKED_TWO, "refuse 4.1", "hand 4.2 a b"))
    assert state.agent == "b"
    assert {call.agent for call in state.calls.values()} == {"a"}


def test_hosted_calls_are_none_of_ours(log: Log) -> None:
    answered = ModelResponded(request=2, output=({"type": "web_search_call", "id": "ws"},), usage=Usage())
    state = run_state(log("start a", "ask a", answered))
    assert (state.calls, state.done) == ({}, True)


# -- the run


def test_turns_count_model_calls_across_handoffs(log: Log) -> None:
    state = run_state(log("start a", "ask a", "answer c", "hand 3.0 a b", "ask b"))
    assert state.run is not None
    assert (state.run.turns, state.run.handoffs) == (2, 1)


@pytest.mark.parametrize("last", ["break RuntimeError", "resume", "fork"])
def test_a_request_without_an_answer_is_no_turn(log: Log, last: str) -> None:
    state = run_state(log("start a", "ask a", last))
    assert state.run is not None
    assert (state.run.turns, state.request) == (0, None)


def test_attempts_count_what_is_retried_until_an_answer_comes(log: Log) -> None:
    lines = ["start a", "ask a", "break chain again", "ask a", "break chain again", "ask a", "answer m"]
    assert [run_state(log(*lines), at=n).attempts for n in (3, 5, 7)] == [1, 2, 0]


def failing(**follows: Any) -> ModelFailed:
    return ModelFailed(request=2, kind="APIError", message="down", **follows)


AGAIN, PASSED_ON = failing(retried=True, delay=2.5), failing(retried=True, passed_on=True)


def test_tries_count_what_one_model_did_not_answer(log: Log) -> None:
    lost, long = "break chain again", "break overflow again"
    lines = ["start a", "ask a", AGAIN, "ask a", lost, "ask a", long, "ask a", AGAIN, "ask a", PASSED_ON]
    assert [run_state(log(*lines), at=n).tries for n in (3, 5, 7, 9, 11)] == [1, 1, 1, 2, 0]
    assert run_state(log("start a", "ask a", AGAIN, "ask a", "answer m")).tries == 0
    assert run_state(log("start a", "ask a", AGAIN, "ask a", failing())).tries == 0


def test_a_delay_is_of_the_next_request(log: Log) -> None:
    lines = ["start a", "ask a", AGAIN, "ask a"]
    assert [run_state(log(*lines), at=n).delay for n in (2, 3, 4)] == [0, 2.5, 0]
    request = run_state(log(*lines)).request
    assert request is not None
    assert request.delay == 2.5


def test_a_model_that_was_passed_on_is_given_up_until_the_run_is_resumed_or_another_begins(log: Log) -> None:
    lines = ["start a", "ask a", PASSED_ON]
    assert [len(run_state(log(*lines), at=n).given_up) for n in (2, 3)] == [0, 1]
    for more in (["pause limit turns", "resume"], ["ask a", "answer m", "complete 5.0", "start a"]):
        state = run_state(log(*lines, *more))
        assert (state.given_up, state.tries, state.delay) == (frozenset(), 0, 0)


def test_usage_counts_failed_attempts_too(log: Log) -> None:
    state = run_state(log("start a", "ask a", "break chain again", "ask a", "answer m"))
    assert state.run is not None
    assert (state.run.usage.requests, state.run.usage.total_tokens) == (2, 10)


def test_new_limits_count_from_the_resumption_on(log: Log) -> None:
    state = run_state(log("start a", "pause limit turns: 1 of 1", RunResumed(by="w", limits=Limits(turns=5))))
    assert state.run is not None
    assert (state.run.limits.turns, state.run.status, state.run.reason, state.run.resumed) == (
        5,
        "running",
        "",
        3,
    )


def test_a_limit_says_which(log: Log) -> None:
    state = run_state(log("start a", "pause limit turns: 1 of 1"))
    assert state.run is not None
    assert (state.run.status, state.run.reason) == ("paused", "turns: 1 of 1")


def test_every_run_of_the_session_is_known(log: Log) -> None:
    state = run_state(log("start a", "complete", "start b", "complete"))
    assert state.runs == (("run 1", None, 1), ("run 3", None, 3))


def test_a_new_run_starts_with_nothing_of_the_last(log: Log) -> None:
    state = run_state(log(*ASKED_TWO, "refuse 4.1", "refuse 4.2", "cancel", "start a"))
    assert (state.calls, state.final, state.done, state.cancel, state.attempts) == ({}, None, False, None, 0)


# -- the answer


def test_the_last_message_of_a_response_without_calls_is_the_answer(log: Log) -> None:
    state = run_state(log("start a", "ask a", "answer m=one r m=two", "complete 3.2"))
    assert state.answer is not None
    assert state.answer.text == "two"


def test_a_response_with_calls_has_no_answer_yet(log: Log) -> None:
    state = run_state(log(*ASKED_TWO))
    assert (state.final, state.done) == (None, False)


def test_a_response_without_a_message_is_done_with_an_empty_answer(log: Log) -> None:
    state = run_state(log("start a", "ask a", "answer r", RunCompleted(output=None)))
    assert state.answer is None


# -- cancelling, input and notes


def test_a_cancel_that_wants_it_now_counts_over_one_that_lets_the_turn_end(log: Log) -> None:
    later, now = "stop after", "stop"
    for lines in ([later, now], [now, later]):
        state = run_state(log("start a", *lines))
        assert state.cancel is not None
        assert not state.cancel.after_turn


def test_a_cancel_of_nothing_is_passed_over(log: Log) -> None:
    assert run_state(log("stop")).cancel is None


@pytest.mark.parametrize(
    ("lines", "unanswered"),
    [
        (["queue"], True),
        (["start a"], True),
        (["start a", "ask a"], False),
        (["start a", "ask a", "send"], True),
        (["start a", "ask a", "answer m", "send", "ask a"], False),
        (["start a", "queue", "ask a"], True),
    ],
)
def test_input_is_unanswered_until_a_request_shows_it(log: Log, lines: list[str], unanswered: bool) -> None:
    assert run_state(log(*lines)).unanswered is unanswered


def test_the_latest_note_of_a_name_counts(log: Log) -> None:
    notes = run_state(log("note n one", "note m x", "note n two")).notes
    assert {name: bytes(data) for name, data in notes.items()} == {"n": b'"two"', "m": b'"x"'}


def test_the_first_event_of_a_newer_version_is_remembered(log: Log) -> None:
    newer = [UnknownEvent(tag=tag, data={"x": 1}) for tag in ("guess.made", "other")]
    assert run_state(log("start a", *newer)).unknown == (2, "guess.made")


# -- what agents were told


OFFER: dict[str, Any] = {"name": "look", "tool": {"type": "function", "name": "look"}, "gate": "yes"}


def test_parts_change_one_by_one_and_keep_the_version_of_each(log: Log) -> None:
    state = run_state(
        log(
            "start a",
            AgentResolved(agent="a", instructions="Help.", offered=(OFFER,), settings={"top_p": 1}),
            AgentResolved(agent="a", instructions="Help more."),
            AgentResolved(agent="b", instructions="Other."),
        )
    )
    parts = state.parts["a"]
    assert (parts.instructions, list(parts.offers), parts.versions) == ("Help more.", ["look"], (3, 2, 0, 2))
    assert parts.offers["look"].gate == "yes"
    assert bytes(parts.settings) == b'{"top_p":1}'


def test_an_agent_may_be_offered_nothing_any_more(log: Log) -> None:
    state = run_state(
        log("start a", AgentResolved(agent="a", offered=(OFFER,)), AgentResolved(agent="a", offered=()))
    )
    assert state.parts["a"].offers == {}


@pytest.mark.parametrize(
    "other",
    [
        AgentResolved(agent="a", instructions="b", offered=(OFFER,), settings={}),
        AgentResolved(agent="a", instructions="a", offered=(), settings={}),
        AgentResolved(agent="a", instructions="a", offered=(OFFER,), settings={"top_p": 1}),
        AgentResolved(agent="a", instructions="a", offered=(OFFER,), settings={}, output_schema={}),
    ],
)
def test_other_parts_have_another_digest(log: Log, other: AgentResolved) -> None:
    def digest(event: AgentResolved) -> bytes:
        return run_state(log(event)).parts["a"].digest

    same = AgentResolved(agent="a", instructions="a", offered=(OFFER,), settings={})
    assert digest(other) != digest(same)
    assert digest(same) == digest(same)


def test_no_text_of_parts_runs_into_the_next() -> None:
    assert (
        Parts(instructions='a{"b":1}').made_digest()
        != Parts(instructions="a", offered=(Raw(b'{"b":1}'),)).made_digest()
    )


def test_a_name_that_was_not_offered_has_no_offer(log: Log) -> None:
    state = run_state(log(*ASKED_TWO))
    assert state.offer_of(state.calls[Ref(4, 1)]) is None


# -- doubt about the view

TRIPPED = GuardrailTripped(stage="output", name="g", reason="r")


@pytest.mark.parametrize(
    ("lines", "unchecked"),
    [
        (["start a"], False),
        (["start a o=x"], True),
        (["start a", "ask a", "answer r m"], False),
        (["start a", "ask a", "answer r"], True),
        (["start a", "ask a", "answer r c"], False),
        (["start a", "ask a", "answer c", "filter 3.0: take 0 1", "hand 3.0 a b"], True),
        (["start a", "ask a", "answer c", "hand 3.0 a b"], False),
        (["start a", "rewrite: take 0 1"], True),
        (["start a o=x", "ask a"], False),
        (["start a", "send o=x"], True),
        (["start a", TRIPPED], True),
    ],
)
def test_a_view_is_checked_after_whatever_may_have_made_it_illegal(
    log: Log, lines: list[str | Event], unchecked: bool
) -> None:
    assert run_state(log(*lines)).unchecked is unchecked


# -- as a value


def test_an_old_state_stays_good(log: Log) -> None:
    records = log(*ASKED_TWO, "call 4.1", "return 4.1")
    past = run_state(records, at=4)
    seen = (past.version, states(past), len(list(past.place.items())))
    advance(past, 5, records[4].event)
    run_state(records)
    assert (past.version, states(past), len(list(past.place.items()))) == seen


def test_folding_on_is_folding_from_scratch(log: Log) -> None:
    records = log(*ASKED_TWO, "gate 4.1", "call 4.2", "return 4.2", "pause approval", "send")
    state = State()
    for record in records:
        state = advance(state, record.version, record.event)
        again = run_state(records, at=record.version)
        assert (state.phase, states(state), state.run, list(state.place.items())) == (
            again.phase,
            states(again),
            again.run,
            list(again.place.items()),
        )


# -- chains (see test_chain.py)


def test_an_erasure_breaks_the_chain(log: Log) -> None:
    erased = EventRedacted(target=1, reason="gdpr", digest=b"")
    assert run_state(log("start a", "ask a", "answer m", erased)).chain is None


def test_a_guardrails_rewrite_breaks_the_chain(log: Log) -> None:
    rewrite = Rewrite(filter="g", parameters={}, operations=(["take", 0, 1],))
    tripped = GuardrailTripped(stage="output", name="g", reason="r", rewrite=rewrite)
    assert run_state(log("start a", "ask a", "answer m", tripped)).chain is None


def test_a_response_that_was_not_stored_holds_nothing(log: Log) -> None:
    asked = ModelRequested(turn=1, agent="a", parts=(), issuer=("here", "m"), wire=1, digest=b"")
    assert run_state(log("start a", asked, "answer m")).chain is None
