"""The machines agree with the tables that they are built of, on every pair of state and event."""

import logging
from collections.abc import Mapping

import pytest
from transitions import MachineError

from batonlog.engine.draft import Draft
from batonlog.engine.machine import CALL_MACHINE, RUN_MACHINE, Lifecycle
from batonlog.events import (
    CALL_LIFECYCLE,
    RUN_LIFECYCLE,
    CancelRequested,
    IllegalTransitionError,
    Limits,
    NoteAdded,
    RunCompleted,
    RunResumed,
    RunStarted,
    ToolCalled,
)
from batonlog.events.codec import TAGS
from batonlog.events.values import Ref
from batonlog.projections.state import State

Table = Mapping[str, Mapping[str, str]]

MACHINES = [
    pytest.param(RUN_MACHINE, RUN_LIFECYCLE, id="run"),
    pytest.param(CALL_MACHINE, CALL_LIFECYCLE, id="call"),
]


def states_of(table: Table) -> list[str]:
    return sorted({state for row in table.values() for pair in row.items() for state in pair})


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_a_machine_has_the_states_of_its_table_and_no_others(machine: Lifecycle, table: Table) -> None:
    assert machine.states == states_of(table)


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_a_machine_takes_every_listed_step_to_where_the_table_says(machine: Lifecycle, table: Table) -> None:
    for tag, row in table.items():
        for state, after in row.items():
            assert machine.step(state, tag) == after, f"{tag} in {state}"


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_a_machine_refuses_every_pair_that_is_not_listed(machine: Lifecycle, table: Table) -> None:
    refused = 0
    for tag in sorted({*TAGS, *table, "quantum.leapt", "to_idle"}):
        for state in states_of(table):
            if state in table.get(tag, {}):
                continue
            with pytest.raises(IllegalTransitionError, match=tag):
                machine.step(state, tag)
            refused += 1
    assert refused


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_a_refused_step_leaves_the_machine_as_it_was(machine: Lifecycle, table: Table) -> None:
    for tag in sorted(TAGS):
        for state in states_of(table):
            if state not in table.get(tag, {}):
                with pytest.raises(IllegalTransitionError):
                    machine.step(state, tag)
    for tag, row in table.items():
        assert {state: machine.step(state, tag) for state in row} == dict(row)


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_a_machine_has_no_transitions_of_its_own_making(machine: Lifecycle, table: Table) -> None:
    # transitions adds to_<state> for every state unless it is told not to.
    assert set(machine._machine.events) == set(table)
    assert machine._machine.models == []


def test_the_error_says_what_the_machine_said() -> None:
    with pytest.raises(IllegalTransitionError) as caught:
        RUN_MACHINE.step("idle", "tool.called")
    assert isinstance(caught.value.__cause__, MachineError)
    assert "idle" in str(caught.value)


def test_the_machines_do_not_log_every_step() -> None:
    assert not logging.getLogger("transitions").isEnabledFor(logging.INFO)


# -- a draft drives the run machine for every event that an engine appends


def test_an_illegal_event_raises_and_adds_nothing_to_a_draft() -> None:
    draft = Draft("s", State())
    draft.add(RunStarted(run_id="r", agent="a", input=({"role": "user", "content": "hi"},), limits=Limits()))
    state, events = draft.state, list(draft.events)
    with pytest.raises(IllegalTransitionError) as caught:
        draft.add(NoteAdded(name="n", data=1), ToolCalled(call=Ref(1, 0), name="look", arguments={}))
    assert caught.value.session == "s"
    assert draft.state is state
    assert draft.events == events


def test_a_draft_refuses_every_event_that_no_run_may_begin_with() -> None:
    draft = Draft("s", State())
    for event in (RunResumed(by="w"), RunCompleted(output=None), CancelRequested(by="u")):
        with pytest.raises(IllegalTransitionError, match=event.type):
            draft.add(event)
    assert draft.state.version == 0
    assert draft.events == []
