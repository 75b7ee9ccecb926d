"""Where each item stands, event by event: what the session and the view hold after it."""

from collections.abc import Callable, Iterable

import pytest

from batonlog.events import InputAdded, Record, Ref, Rewrite
from batonlog.events.facts import GuardrailTripped
from batonlog.projections import Item, model_history, session_history
from batonlog.projections.placement import Placement, place

Log = Callable[..., tuple[Record, ...]]
Show = Callable[[Iterable[Item]], str]
Row = tuple[str, str, str | None]
"""An event, the session after it, and the view: None for the same."""

APPROVED_A_WEEK_LATER: list[Row] = [
    ("start triage", "u1.0", None),
    ("resolve triage", "u1.0", None),
    ("ask triage", "u1.0", None),
    ("answer r c c c", "u1.0 r4.0 c4.1 c4.2 c4.3", None),
    ("call 4.1", "u1.0 r4.0 c4.1 c4.2 c4.3", None),
    ("gate 4.2", "u1.0 r4.0 c4.1 c4.2 c4.3", None),
    ("return 4.1", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0", None),
    ("pause approval", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0", None),
    ("send", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 u9.0", None),
    ("approve 4.2", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 u9.0", None),
    ("resume", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 u9.0", None),
    ("call 4.2", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 u9.0", None),
    ("return 4.2", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 o13.0 u9.0", None),
    ("filter 4.3: take 0 1", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 o13.0 u9.0", None),
    ("hand 4.3 triage b", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 o13.0 o15.0 u9.0", "u1.0 u9.0"),
    ("ask b", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 o13.0 o15.0 u9.0", "u1.0 u9.0"),
    ("answer m", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 o13.0 o15.0 u9.0 m17.0", "u1.0 u9.0 m17.0"),
    ("complete 17.0", "u1.0 r4.0 c4.1 c4.2 c4.3 o7.0 o13.0 o15.0 u9.0 m17.0", "u1.0 u9.0 m17.0"),
]

OUTPUTS_COME_BACKWARDS: list[Row] = [
    ("start a", "u1.0", None),
    ("ask a", "u1.0", None),
    ("send", "u1.0 u3.0", None),
    ("answer c c c", "u1.0 c4.0 c4.1 c4.2 u3.0", None),
    ("call 4.0", "u1.0 c4.0 c4.1 c4.2 u3.0", None),
    ("call 4.1", "u1.0 c4.0 c4.1 c4.2 u3.0", None),
    ("call 4.2", "u1.0 c4.0 c4.1 c4.2 u3.0", None),
    ("return 4.2", "u1.0 c4.0 c4.1 c4.2 o8.0 u3.0", None),
    ("note seen yes", "u1.0 c4.0 c4.1 c4.2 o8.0 u3.0", None),
    ("return 4.0", "u1.0 c4.0 c4.1 c4.2 o10.0 o8.0 u3.0", None),
    ("return 4.1", "u1.0 c4.0 c4.1 c4.2 o10.0 o11.0 o8.0 u3.0", None),
    ("ask a", "u1.0 c4.0 c4.1 c4.2 o10.0 o11.0 o8.0 u3.0", None),
    ("break cancelled", "u1.0 c4.0 c4.1 c4.2 o10.0 o11.0 o8.0 u3.0", None),
    ("cancel", "u1.0 c4.0 c4.1 c4.2 o10.0 o11.0 o8.0 u3.0", None),
    ("start a", "u1.0 c4.0 c4.1 c4.2 o10.0 o11.0 o8.0 u3.0 u15.0", None),
]

COMPACTED_AND_HANDED_BACK: list[Row] = [
    ("start front", "u1.0", None),
    ("ask front", "u1.0", None),
    ("answer m c", "u1.0 m3.0 c3.1", None),
    ("filter 3.1: take 0 1", "u1.0 m3.0 c3.1", None),
    ("hand 3.1 front billing", "u1.0 m3.0 c3.1 o5.0", "u1.0"),
    ("ask billing", "u1.0 m3.0 c3.1 o5.0", "u1.0"),
    ("answer m", "u1.0 m3.0 c3.1 o5.0 m7.0", "u1.0 m7.0"),
    ("complete 7.0", "u1.0 m3.0 c3.1 o5.0 m7.0", "u1.0 m7.0"),
    ("start billing", "u1.0 m3.0 c3.1 o5.0 m7.0 u9.0", "u1.0 m7.0 u9.0"),
    ("rewrite: put u=short 1.0 7.0; take 2 3", "u1.0 m3.0 c3.1 o5.0 m7.0 u9.0", "+10.0 u9.0"),
    ("ask billing", "u1.0 m3.0 c3.1 o5.0 m7.0 u9.0", "+10.0 u9.0"),
    ("answer c", "u1.0 m3.0 c3.1 o5.0 m7.0 u9.0 c12.0", "+10.0 u9.0 c12.0"),
    (
        "filter 12.0: take 0 4 at 5; take 1 2",  # its own view as it stood when it handed off, and what was said since
        "u1.0 m3.0 c3.1 o5.0 m7.0 u9.0 c12.0",
        "+10.0 u9.0 c12.0",
    ),
    (
        "hand 12.0 billing front",
        "u1.0 m3.0 c3.1 o5.0 m7.0 u9.0 c12.0 o14.0",
        "u1.0 m3.0 c3.1 o5.0 u9.0",
    ),
]

STEERED_AND_QUEUED: list[Row] = [
    ("queue", "u1.0", None),
    ("start a", "u1.0 u2.0", None),
    ("send", "u1.0 u2.0 u3.0", None),
    ("queue", "u1.0 u2.0 u3.0 u4.0", None),
    ("ask a", "u1.0 u2.0 u3.0 u4.0", None),
    ("answer m", "u1.0 u2.0 u3.0 m6.0 u4.0", None),
    ("complete 6.0", "u1.0 u2.0 u3.0 m6.0 u4.0", None),
    ("start a", "u1.0 u2.0 u3.0 m6.0 u4.0 u8.0", None),
]


@pytest.mark.parametrize(
    "rows",
    [APPROVED_A_WEEK_LATER, OUTPUTS_COME_BACKWARDS, COMPACTED_AND_HANDED_BACK, STEERED_AND_QUEUED],
    ids=["approved a week later", "outputs come backwards", "compacted and handed back", "steered"],
)
def test_each_event_leaves_the_two_histories_so(log: Log, show: Show, rows: list[Row]) -> None:
    records = log(*(event for event, _, _ in rows))
    for version, (_, session, view) in enumerate(rows, 1):
        assert show(session_history(records, at=version)) == session, version
        assert show(model_history(records, at=version)) == (session if view is None else view), version


def test_a_message_never_splits_a_call_from_its_output(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer c", "send", "return 3.0")
    assert show(model_history(records)) == "u1.0 c3.0 o5.0 u4.0"


def test_outputs_settle_with_the_last_call_of_their_response(log: Log) -> None:
    state = Placement()
    settled = []
    for record in log("start a", "ask a", "answer c c", "return 3.1", "return 3.0"):
        state = place(state, record.version, record.event)
        settled.append(len(state.settled))
    assert settled == [1, 1, 3, 3, 5]


def test_input_between_runs_settles_at_once(log: Log) -> None:
    state = Placement()
    for record in log("queue", "queue"):
        state = place(state, record.version, record.event)
    assert len(state.settled) == 2
    assert state.queue == ()


def test_queued_input_is_not_shown_before_the_next_run(log: Log) -> None:
    state = Placement()
    for record in log("start a", "queue", "ask a"):
        state = place(state, record.version, record.event)
    assert len(state.settled) == 1


def test_the_end_of_a_run_takes_what_waited(log: Log) -> None:
    state = Placement()
    for record in log("start a", "ask a", "answer m", "queue", "complete 3.0"):
        state = place(state, record.version, record.event)
    assert len(state.settled) == 3


def test_a_filter_without_its_handoff_changes_nothing(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer c", "filter 3.0: take 0 1")
    assert show(model_history(records)) == "u1.0 c3.0"


def test_a_filter_counts_for_the_very_next_event_alone(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer c", "filter 3.0: take 0 1", "note n v", "hand 3.0 a b")
    assert show(model_history(records)) == "u1.0 c3.0 o6.0"


def test_a_filter_counts_for_its_own_call_alone(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer c c", "refuse 3.0", "filter 3.0: take 0 1", "hand 3.1 a b")
    assert show(model_history(records)) == "u1.0 c3.0 c3.1 o4.0 o6.0"


def test_what_a_filter_puts_in_has_a_ref_to_the_filter_event(log: Log) -> None:
    records = log("start a", "ask a", "answer c", "filter 3.0: put u; take 0 1; put u", "hand 3.0 a b")
    assert [item.ref for item in model_history(records)] == [Ref(4, 0), Ref(1, 0), Ref(4, 1)]


def test_a_handoff_without_a_filter_leaves_the_view_whole(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer c", "hand 3.0 a b")
    assert show(model_history(records)) == show(session_history(records)) == "u1.0 c3.0 o4.0"


def test_every_answer_belongs_to_the_agent_that_called(log: Log) -> None:
    records = log("start a", "ask a", "answer c", "hand 3.0 a b", "ask b", "answer m")
    assert [item.agent for item in session_history(records)] == [None, "a", "a", "b"]


def test_an_answer_to_a_call_that_is_not_open_is_passed_over(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer m c", "return 3.0", "return 9.9", "return 3.1", "return 3.1")
    assert show(session_history(records)) == "u1.0 m3.0 c3.1 o6.0"


def test_a_guardrails_replacement_was_said_and_what_it_withheld_leaves_the_view(log: Log, show: Show) -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "no"}]}
    rewrite = Rewrite(filter="guard", parameters={}, operations=(["take", 0, 1], ["take", 2, 3]))
    tripped = GuardrailTripped(stage="output", name="g", reason="r", replacement=said, rewrite=rewrite)
    records = log("start a", "ask a", "answer m", tripped)
    assert show(session_history(records)) == "u1.0 m3.0 m4.0"
    assert show(model_history(records)) == "u1.0 m4.0"


def test_items_of_a_message_that_held_several_stand_side_by_side(log: Log, show: Show) -> None:
    assert show(session_history(log("start a u=one u=two"))) == "u1.0 u1.1"


def test_an_old_placement_stays_good_when_two_go_on_from_it(log: Log) -> None:
    state = place(Placement(), 1, log("start a")[0].event)
    left, right = (
        place(state, 2, InputAdded(input=({"role": "user", "content": text},), goes_to="turn", by="li"))
        for text in ("left", "right")
    )
    assert [[item.text for item in one.items()] for one in (state, left, right)] == [
        ["user 1"],
        ["user 1", "left"],
        ["user 1", "right"],
    ]
