"""The two tables are those of DESIGN.md §6, and nothing else says what may follow."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from batonlog.events import (
    CALL_LIFECYCLE,
    RUN_LIFECYCLE,
    AgentResolved,
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    CancelRequested,
    Event,
    EventRedacted,
    GuardrailTripped,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    InputAdded,
    Limits,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    NoteAdded,
    Ref,
    Rewrite,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunStarted,
    SessionForked,
    ToolAbandoned,
    ToolCalled,
    ToolReturned,
    UnknownEvent,
    Usage,
)
from batonlog.events.codec import TAGS
from batonlog.events.lifecycle import ANYONE, EVERY_CALL, objection

# -- the tables, as they stand in DESIGN.md; a dash is an illegal pair

RUN = """
                     idle     running  asking   stopped
run.started          running  -        -        running
run.resumed          -        running  running  running
run.paused           -        stopped  -        -
run.failed           -        stopped  -        -
run.completed        -        idle     -        -
run.cancelled        -        idle     -        idle
model.requested      -        asking   -        -
model.responded      -        -        running  -
model.failed         -        -        running  -
agent.resolved       -        running  -        -
tool.called          -        running  -        -
tool.returned        -        running  -        -
approval.requested   -        running  -        -
handoff.filtered     -        running  -        -
handoff.made         -        running  -        -
guardrail.tripped    -        running  -        -
tool.abandoned       -        running  -        stopped
call.refused         -        running  -        stopped
history.rewritten    idle     running  -        stopped
session.forked       idle     stopped  stopped  stopped
input.added          idle     running  asking   stopped
approval.decided     idle     running  asking   stopped
note.added           idle     running  asking   stopped
event.redacted       idle     running  asking   stopped
cancel.requested     -        running  asking   stopped
"""

CALL = """
                     asked    gated    decided  called   unknown  settled
approval.requested   gated    -        -        -        gated    -
approval.decided     -        decided  -        -        -        -
tool.called          called   -        called   -        called   -
tool.returned        -        -        settled  settled  -        -
tool.abandoned       -        settled  settled  settled  settled  -
call.refused         settled  settled  settled  -        -        -
handoff.made         settled  -        settled  settled  -        -
run.resumed          asked    gated    decided  unknown  unknown  settled
session.forked       asked    gated    gated    unknown  unknown  settled
"""

Table = dict[str, dict[str, str]]


def parsed(text: str) -> tuple[list[str], Table]:
    header, *lines = text.strip().splitlines()
    states = header.split()
    table = {}
    for line in lines:
        tag, *cells = line.split()
        pairs = zip(states, cells, strict=True)
        table[tag] = {state: cell for state, cell in pairs if cell != "-"}
    return states, table


RUN_STATES, RUN_TABLE = parsed(RUN)
CALL_STATES, CALL_TABLE = parsed(CALL)

CALLED, OTHER = Ref(4, 0), Ref(4, 1)
CHANGE = Rewrite(filter="f", parameters={}, operations=())

EVENTS: dict[str, Event] = {
    event.type: event
    for event in (
        RunStarted(run_id="r", agent="a", input=(), limits=Limits()),
        RunResumed(by="w"),
        RunPaused(reason="approval"),
        RunCompleted(output=None),
        RunFailed(kind="E", message="m"),
        RunCancelled(by="u"),
        InputAdded(input=(), goes_to="turn", by="u"),
        CancelRequested(by="u"),
        NoteAdded(name="n", data=None),
        AgentResolved(agent="a"),
        ModelRequested(turn=1, agent="a", parts=(), issuer=("e", "m"), wire=1, digest=b""),
        ModelResponded(request=3, output=(), usage=Usage()),
        ModelFailed(request=3, kind="E", message="m"),
        ToolCalled(call=CALLED, name="t", arguments={}),
        ToolReturned(call=CALLED, call_id="c", output="x"),
        ToolAbandoned(call=CALLED, call_id="c", reason="unknown", answer="a"),
        CallRefused(call=CALLED, call_id="c", reason="limit", answer="a"),
        ApprovalRequested(call=CALLED, reason="approval"),
        ApprovalDecided(call=CALLED, verdict="run", by="u"),
        HandoffFiltered(call=CALLED, rewrite=CHANGE),
        HandoffMade(call=CALLED, call_id="c", source="a", target="b", arguments={}, acknowledgement="ok"),
        HistoryRewritten(cause="manual", rewrite=CHANGE),
        GuardrailTripped(stage="input", name="g", reason="r"),
        EventRedacted(target=1, reason="r", digest=b""),
        SessionForked(parent="s", at=3),
    )
}


def test_the_run_table_is_the_one_that_was_designed() -> None:
    assert {tag: dict(row) for tag, row in RUN_LIFECYCLE.items()} == RUN_TABLE


def test_the_call_table_is_the_one_that_was_designed() -> None:
    assert {tag: dict(row) for tag, row in CALL_LIFECYCLE.items()} == CALL_TABLE


def test_the_run_table_has_a_row_for_every_event() -> None:
    assert set(RUN_LIFECYCLE) == set(TAGS) == set(EVENTS)


@pytest.mark.parametrize("table", [RUN_LIFECYCLE, CALL_LIFECYCLE])
def test_nobody_can_change_a_table(table: Any) -> None:
    with pytest.raises(TypeError):
        table["note.added"] = {}
    with pytest.raises(TypeError):
        table["run.resumed"]["idle"] = "running"


def test_what_anyone_may_append_never_moves_a_run() -> None:
    assert {"input.added", "cancel.requested", "note.added", "approval.decided", "event.redacted"} == ANYONE
    for tag in ANYONE:
        assert all(state == after for state, after in RUN_LIFECYCLE[tag].items())


def test_what_moves_every_call_leaves_none_without_a_state() -> None:
    assert {"run.resumed", "session.forked"} == EVERY_CALL
    for tag in EVERY_CALL:
        assert set(CALL_LIFECYCLE[tag]) == set(CALL_STATES)


@pytest.mark.parametrize("tag", ["run.resumed", "session.forked"])
def test_what_moves_every_call_twice_moves_it_once(tag: str) -> None:
    row = CALL_LIFECYCLE[tag]
    assert all(row[row[state]] == row[state] for state in CALL_STATES)


def test_every_state_can_be_left_and_a_settled_call_cannot() -> None:
    for state in RUN_STATES:
        assert any(row.get(state, state) != state for row in RUN_LIFECYCLE.values())
    for state in CALL_STATES:
        moved = any(row.get(state, state) != state for row in CALL_LIFECYCLE.values())
        assert moved == (state != "settled")


# -- what is objected to: exactly the unlisted pairs and what breaks a joint rule

NEED_EVERY_CALL_SETTLED = {
    "model.requested",
    "history.rewritten",
    "run.started",
    "run.completed",
    "run.cancelled",
}
OF_ONE_CALL = [tag for tag in CALL_TABLE if tag not in ("run.resumed", "session.forked")]


@dataclass(frozen=True)
class Call:
    """What the rules need to know of a call."""

    state: str
    attempts: int = 0


def may_follow(tag: str, run: str, call: Call) -> bool:
    """The same question, asked of the tables above, for a session with one call."""
    if run not in RUN_TABLE[tag]:
        return False
    if tag in NEED_EVERY_CALL_SETTLED and call.state != "settled":
        return False
    if tag in ("run.paused", "run.failed") and call.state == "called":
        return False
    if tag == "tool.abandoned" and not call.attempts:
        return False
    if tag == "call.refused" and call.attempts:
        return False
    return tag not in OF_ONE_CALL or call.state in CALL_TABLE[tag]


@pytest.mark.parametrize("tag", list(RUN_TABLE))
def test_what_may_follow_is_in_the_tables_and_the_joint_rules(tag: str) -> None:
    for run, state, attempts in product(RUN_STATES, CALL_STATES, (0, 1, 2)):
        call = Call(state, attempts)
        found = objection(EVENTS[tag], run=run, calls={CALLED: call}, request=3)
        assert (found is None) == may_follow(tag, run, call), f"{run=} {call=}"


@pytest.mark.parametrize("tag", list(RUN_TABLE))
def test_an_objection_names_the_event(tag: str) -> None:
    for run, state in product(RUN_STATES, CALL_STATES):
        found = objection(EVENTS[tag], run=run, calls={CALLED: Call(state)}, request=3)
        assert found is None or found.startswith(tag)


@pytest.mark.parametrize("run", RUN_STATES)
def test_an_unknown_event_may_never_be_appended_by_an_engine(run: str) -> None:
    assert objection(UnknownEvent(tag="future.thing", data={}), run=run, calls={}) is not None


@pytest.mark.parametrize("tag", sorted(NEED_EVERY_CALL_SETTLED))
def test_some_events_need_every_call_settled(tag: str) -> None:
    run = "stopped" if tag == "run.started" else "running"
    assert objection(EVENTS[tag], run=run, calls={}) is None
    found = objection(EVENTS[tag], run=run, calls={CALLED: Call("settled"), OTHER: Call("gated")})
    assert found is not None
    assert str(OTHER) in found
    assert str(CALLED) not in found


@pytest.mark.parametrize("state", [state for state in CALL_STATES if state != "settled"])
def test_a_handoff_needs_every_other_call_settled(state: str) -> None:
    made = EVENTS["handoff.made"]
    assert objection(made, run="running", calls={CALLED: Call("called"), OTHER: Call("settled")}) is None
    found = objection(made, run="running", calls={CALLED: Call("called"), OTHER: Call(state)})
    assert found is not None
    assert str(OTHER) in found


@pytest.mark.parametrize("tag", ["run.paused", "run.failed"])
def test_a_run_stops_only_when_no_call_is_in_flight(tag: str) -> None:
    found = objection(EVENTS[tag], run="running", calls={CALLED: Call("called"), OTHER: Call("gated")})
    assert found is not None
    assert str(CALLED) in found
    for state in ("asked", "gated", "decided", "unknown", "settled"):
        assert objection(EVENTS[tag], run="running", calls={CALLED: Call(state)}) is None


@pytest.mark.parametrize("tag", ["model.responded", "model.failed"])
@pytest.mark.parametrize("open_", [None, 2, 4])
def test_an_answer_names_the_open_request(tag: str, open_: int | None) -> None:
    assert objection(EVENTS[tag], run="asking", calls={}, request=3) is None
    assert objection(EVENTS[tag], run="asking", calls={}, request=open_) is not None


@pytest.mark.parametrize("tag", OF_ONE_CALL)
def test_an_event_of_a_call_that_is_not_open_is_refused(tag: str) -> None:
    found = objection(EVENTS[tag], run="running", calls={OTHER: Call("settled", 1)})
    assert found is not None
    assert str(CALLED) in found


@pytest.mark.parametrize("run", RUN_STATES)
def test_a_standing_decision_moves_no_call(run: str) -> None:
    standing = ApprovalDecided(standing=("a", "t"), verdict="run", by="u")
    for state in CALL_STATES:
        assert objection(standing, run=run, calls={CALLED: Call(state)}) is None
