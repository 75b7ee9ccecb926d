"""What to do next, from the log alone: one small table of states and steps."""

from collections.abc import Sequence
from typing import Any

import pytest

from batonlog.engine.decide import NOTHING, Step, cancellation, decide, superseding
from batonlog.events import (
    JSON,
    AgentResolved,
    ApprovalDecided,
    ApprovalRequested,
    CancelRequested,
    Event,
    HandoffMade,
    InputAdded,
    Limits,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    Ref,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunStarted,
    SessionForked,
    ToolCalled,
    ToolReturned,
    Usage,
)
from batonlog.events.codec import fresh
from batonlog.projections.state import FILTER_FAILED, State, advance

LIMITS = Limits(turns=2, tokens=100, handoffs=1)


def offer(name: str, **promised: JSON) -> JSON:
    return {"name": name, "tool": {"type": "function", "name": name}, **promised}


OFFERED = (
    offer("look", idempotent=True),
    offer("pay"),
    offer("mail", on_unknown="report"),
    offer("gated", gate="yes"),
    offer("maybe", gate="ask"),
    offer("pick", kind="external"),
    offer("to_b", kind="handoff", targets=["b"]),
    offer("to_c", kind="handoff", targets=["c"], effect=True),
    offer("to_d", kind="handoff", targets=["d"], gate="yes"),
)


def call(name: str) -> JSON:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}


MESSAGE: JSON = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}


def state_after(*events: Event) -> State:
    state = State()
    for event in events:
        state = advance(state, state.version + 1, fresh(event))
    return state


def started(limits: Limits = LIMITS) -> RunStarted:
    return RunStarted(run_id="r", agent="a", input=({"role": "user", "content": "go"},), limits=limits)


def resolved(offered: Sequence[JSON] = OFFERED) -> AgentResolved:
    return AgentResolved(agent="a", offered=tuple(offered))


def requested(turn: int = 1) -> ModelRequested:
    return ModelRequested(turn=turn, agent="a", parts=(), issuer=("x", "m"), wire=1, digest=b"")


def responded(*output: JSON, request: int = 3, tokens: int = 10, status: str = "completed") -> ModelResponded:
    usage = Usage(requests=1, total_tokens=tokens)
    return ModelResponded(request=request, output=output, usage=usage, status=status)


def after(
    *names: str, then: Sequence[Event] = (), limits: Limits = LIMITS, status: str = "completed"
) -> State:
    """After an answer with these calls: 4.0, 4.1 …"""
    calls = [call(name) for name in names]
    return state_after(started(limits), resolved(), requested(), responded(*calls, status=status), *then)


def kinds(step: Step) -> list[str]:
    return [event.type for event in step.events]


def called(index: int = 0, attempt: int = 1) -> ToolCalled:
    return ToolCalled(call=Ref(4, index), name="x", arguments={}, attempt=attempt)


def returned(index: int = 0) -> ToolReturned:
    return ToolReturned(call=Ref(4, index), call_id="x", output="ok")


def gated(index: int = 0, why: str = "approval") -> ApprovalRequested:
    return ApprovalRequested(call=Ref(4, index), reason=why)


def said(verdict: Any, index: int = 0, **more: Any) -> ApprovalDecided:
    return ApprovalDecided(call=Ref(4, index), verdict=verdict, by="anna", **more)


LOST = RunResumed(by="w")

# -- runs


def test_an_idle_session_and_a_stopped_run_do_nothing() -> None:
    assert decide(State()) is NOTHING
    assert decide(state_after(started(), RunPaused(reason="limit"))) is NOTHING


def test_a_run_that_has_just_started_asks_its_model() -> None:
    assert decide(state_after(started())) == Step(ask=True)


def test_while_a_model_is_asked_nothing_follows() -> None:
    assert decide(state_after(started(), requested())) is NOTHING


def test_an_answer_without_calls_ends_the_run_with_its_last_message() -> None:
    state = state_after(started(), resolved(), requested(), responded(MESSAGE, MESSAGE))
    assert decide(state).events == (RunCompleted(output=Ref(4, 1)),)


def test_an_answer_without_a_message_ends_the_run_with_none() -> None:
    state = state_after(started(), resolved(), requested(), responded())
    assert decide(state).events == (RunCompleted(output=None),)


def test_a_run_does_not_end_while_there_is_input_that_it_has_not_shown() -> None:
    more = InputAdded(input=({"role": "user", "content": "and"},), goes_to="turn", by="li")
    state = state_after(started(), resolved(), requested(), responded(MESSAGE), more)
    assert decide(state) == Step(ask=True)


def test_input_for_the_next_run_does_not_keep_this_one_going() -> None:
    more = InputAdded(input=({"role": "user", "content": "and"},), goes_to="run", by="li")
    state = state_after(started(), resolved(), requested(), responded(MESSAGE), more)
    assert kinds(decide(state)) == ["run.completed"]


def test_when_all_calls_have_their_answers_the_model_is_asked_again() -> None:
    assert decide(after("look", then=[called(), returned()])) == Step(ask=True)


def test_a_request_that_failed_and_is_retried_is_made_again() -> None:
    failed = ModelFailed(request=3, kind="chain", message="", retried=True)
    assert decide(state_after(started(), resolved(), requested(), failed)) == Step(ask=True)


# -- limits


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(turns=1), "turns: 1 of 1"),
        (Limits(tokens=10), "tokens: 10 of 10"),
        (Limits(turns=1, tokens=1), "turns: 1 of 1"),
    ],
)
def test_a_limit_that_is_reached_pauses_the_run_and_says_which(limits: Limits, limit: str) -> None:
    state = after("look", then=[called(), returned()], limits=limits)
    assert decide(state).events == (RunPaused(reason="limit", limit=limit),)


def test_no_time_left_pauses_the_run() -> None:
    state = state_after(started(Limits(seconds=1.5)))
    assert decide(state, late=True).events == (RunPaused(reason="limit", limit="seconds: 1.5"),)


def test_an_answer_is_given_even_when_a_limit_is_reached_with_it() -> None:
    state = state_after(started(Limits(turns=1, tokens=1)), resolved(), requested(), responded(MESSAGE))
    assert kinds(decide(state, late=True)) == ["run.completed"]


def test_a_limit_of_nothing_is_no_limit() -> None:
    state = after("look", then=[called(), returned()], limits=Limits(turns=None, tokens=None, handoffs=None))
    assert decide(state).ask


def test_calls_of_an_answer_run_even_when_a_limit_is_reached_with_it() -> None:
    assert decide(after("look", limits=Limits(turns=1))).start == (Ref(4, 0),)


def test_no_more_handoffs_than_the_limit() -> None:
    step = decide(after("to_b", limits=Limits(handoffs=0)))
    assert step.events == (RunPaused(reason="limit", limit="handoffs: 0 of 0"),)


# -- calls


@pytest.mark.parametrize(
    ("names", "then", "events", "start"),
    [
        (["look"], [], [], [0]),
        (["look", "pay"], [], [], [0, 1]),
        (["gated"], [], [], [0]),
        (["look", "gated"], [], [], [0, 1]),
        (["maybe"], [], [], [0]),
        (["pick"], [], ["approval.requested"], []),
        (["nowhere"], [], ["call.refused"], []),
        (["look", "nowhere"], [], ["call.refused"], [0]),
        (["gated"], [gated()], ["run.paused"], []),
        (["gated"], [gated(), said("run")], [], [0]),
        (["gated"], [gated(), said("refuse")], ["call.refused"], []),
        (["gated"], [gated(), said("answer", output="ok")], ["tool.returned"], []),
        (["pick"], [gated(why="external"), said("answer", output="ok")], ["tool.returned"], []),
        (["look"], [called(), LOST], [], [0]),
        (["pay"], [called(), LOST], ["approval.requested"], []),
        (["mail"], [called(), LOST], ["tool.abandoned"], []),
        (["nowhere"], [called(), LOST], ["approval.requested"], []),
        (["pay"], [called(), LOST, gated(why="unknown"), said("run")], [], [0]),
        (["pay"], [called(), LOST, gated(why="unknown"), said("refuse")], ["tool.abandoned"], []),
        (["pay"], [called(), LOST, gated(why="unknown"), said("answer", output="ok")], ["tool.returned"], []),
        (["look"], [called(), SessionForked(parent="p", at=5), LOST], ["approval.requested"], []),
        (["mail"], [called(), SessionForked(parent="p", at=5), LOST], ["approval.requested"], []),
    ],
)
def test_a_call_goes_on_so(names: list[str], then: list[Event], events: list[str], start: list[int]) -> None:
    step = decide(after(*names, then=then))
    assert (kinds(step), step.start) == (events, tuple(Ref(4, index) for index in start))


@pytest.mark.parametrize(
    ("names", "then"),
    [(["look"], [called()]), (["look", "gated"], [called(), gated(1)]), (["to_c"], [called()])],
)
def test_while_an_effect_is_in_flight_nothing_follows(names: list[str], then: list[Event]) -> None:
    assert decide(after(*names, then=then)) is NOTHING


@pytest.mark.parametrize(
    ("whys", "reason"),
    [
        (["approval"], "approval"),
        (["unknown"], "unknown"),
        (["external"], "external"),
        (["external", "unknown"], "unknown"),
        (["external", "unknown", "approval"], "approval"),
    ],
)
def test_a_run_that_waits_says_for_what(whys: list[str], reason: Any) -> None:
    names = ["gated"] * len(whys)
    state = after(*names, then=[gated(index, why) for index, why in enumerate(whys)])
    assert decide(state).events == (RunPaused(reason=reason),)


def test_an_unknown_tool_is_answered_with_those_there_are() -> None:
    state = state_after(started(), resolved(OFFERED[:2]), requested(), responded(call("nowhere")))
    (refused,) = decide(state).events
    assert refused.answer == "There is no tool nowhere. The tools are: look, pay."  # type: ignore[attr-defined]


def test_an_answer_that_was_cut_off_runs_nothing() -> None:
    step = decide(after("look", "to_b", status="incomplete"))
    assert [event.reason for event in step.events] == ["truncated", "truncated"]  # type: ignore[attr-defined]
    assert step.start == ()


@pytest.mark.parametrize(("verdict", "events", "start"), [("run", [], 1), ("refuse", ["call.refused"], 0)])
def test_a_standing_decision_counts_for_later_calls(verdict: Any, events: list[str], start: int) -> None:
    standing = ApprovalDecided(standing=("a", "gated"), verdict=verdict, by="anna")
    state = state_after(started(), standing, resolved(), requested(), responded(call("gated")))
    step = decide(state)
    assert (kinds(step), len(step.start)) == (events, start)


def test_a_standing_decision_is_of_one_agent_and_one_tool() -> None:
    others = [
        ApprovalDecided(standing=standing, verdict="refuse", by="anna")
        for standing in (("b", "gated"), ("a", "pay"))
    ]
    state = state_after(started(), *others, resolved(), requested(), responded(call("gated")))
    assert decide(state) == Step(start=(Ref(6, 0),))


def test_what_was_promised_when_a_call_was_made_counts_whatever_is_offered_later() -> None:
    state = after("look", then=[called(), LOST])
    later = advance(state, state.version + 1, fresh(AgentResolved(agent="b", offered=())))
    assert decide(later).start == (Ref(4, 0),)


# -- handoffs


def test_a_handoff_waits_for_the_ordinary_calls() -> None:
    state = after("to_b", "look")
    assert decide(state) == Step(start=(Ref(4, 1),))
    done = after("to_b", "look", then=[called(1), returned(1)])
    assert decide(done) == Step(transfer=Ref(4, 0))


def test_a_handoff_waits_for_the_gated_calls_beside_it() -> None:
    assert kinds(decide(after("to_b", "gated", then=[gated(1)]))) == ["run.paused"]


def test_the_first_transfer_is_made() -> None:
    assert decide(after("to_c", "to_b")) == Step(transfer=Ref(4, 0))


@pytest.mark.parametrize(
    ("then", "events"),
    [
        ([gated()], ["run.paused"]),
        ([gated(), said("refuse")], ["call.refused"]),
        ([gated(), said("answer", output="no need")], ["tool.returned"]),
    ],
)
def test_a_gated_transfer_waits_and_is_decided_like_any_call(then: list[Event], events: list[str]) -> None:
    assert kinds(decide(after("to_d", "to_b", then=then))) == events


def test_an_approved_transfer_is_made() -> None:
    assert decide(after("to_d", then=[gated(), said("run")])) == Step(transfer=Ref(4, 0))


def test_a_callback_that_was_interrupted_needs_a_persons_word() -> None:
    assert kinds(decide(after("to_c", then=[called(), LOST]))) == ["approval.requested"]


def test_a_filter_that_failed_after_its_callback_is_tried_again() -> None:
    failed = [called(), LOST, RunFailed(kind=FILTER_FAILED, message=""), LOST]
    assert decide(after("to_c", then=failed)) == Step(transfer=Ref(4, 0))


def test_after_a_handoff_the_target_is_asked() -> None:
    made = HandoffMade(
        call=Ref(4, 0), call_id="x", source="a", target="b", arguments={}, acknowledgement="ok"
    )
    state = after("to_b", then=[made])
    assert (state.agent, decide(state)) == ("b", Step(ask=True))


# -- cancelling

NOW, LATER = CancelRequested(by="li", reason="enough"), CancelRequested(by="li", after_turn=True)


def test_a_cancel_gives_every_open_call_an_answer_and_ends_the_run() -> None:
    step = decide(after("look", "pay", "gated", then=[called(), gated(2), NOW]))
    assert kinds(step) == ["tool.abandoned", "call.refused", "call.refused", "run.cancelled"]


def test_a_cancel_names_who_and_why() -> None:
    *_, ended = decide(state_after(started(), NOW)).events
    assert (ended.by, ended.reason) == ("li", "enough")  # type: ignore[attr-defined]


def test_a_cancel_after_the_turn_lets_its_calls_end() -> None:
    assert decide(after("look", then=[LATER])).start == (Ref(4, 0),)
    assert kinds(decide(after("look", then=[LATER, called(), returned()]))) == ["run.cancelled"]


def test_a_cancel_waits_for_the_model_to_be_given_up() -> None:
    assert decide(state_after(started(), requested(), NOW)) is NOTHING


@pytest.mark.parametrize("close", [cancellation, superseding])
def test_what_was_started_is_abandoned_and_what_never_was_is_refused(close: Any) -> None:
    state = after("look", "pay", then=[called()])
    assert [event.type for event in close(state)][:2] == ["tool.abandoned", "call.refused"]


def test_closing_a_session_without_open_calls_says_nothing() -> None:
    assert superseding(after("look", then=[called(), returned()])) == ()
