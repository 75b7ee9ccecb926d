"""The laws of calls: each is begun when it may be, ends once, and its end says what came of it."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from tests.laws.checks import played
from tests.laws.conversations import scripts
from tests.laws.depth import examples
from tests.laws.scripts import TOOLS, Script

from batonlog.events import (
    ApprovalDecided,
    CallRefused,
    HandoffMade,
    ModelResponded,
    Record,
    Ref,
    ToolAbandoned,
    ToolCalled,
    ToolReturned,
)
from batonlog.events.values import plain
from batonlog.projections import session_history
from batonlog.projections.items import ANSWERED_BY, OURS
from batonlog.projections.state import run_state


def calls_of(records: Sequence[Record]) -> dict[Ref, str]:
    """Every call of a model, and the name it was made under."""
    items = [item for item in session_history(records) if item.issuer is not None and item.type in OURS]
    return {item.ref: item.head.name or "" for item in items if item.ref is not None}


def ends_of(records: Sequence[Record]) -> list[Ref]:
    """The calls that have ended, as often as they did."""
    kinds = (ToolReturned, ToolAbandoned, CallRefused, HandoffMade)
    return [record.event.call for record in records if isinstance(record.event, kinds)]


@examples(30)
@given(scripts)
def test_every_call_ends_once_or_is_open_still(script: Script) -> None:
    _, records = played(script)
    waiting = {call.ref for call in run_state(records).open_calls()}
    ends = Counter(ends_of(records))
    assert all(count == 1 for count in ends.values())
    assert set(ends) | waiting == set(calls_of(records))
    assert not set(ends) & waiting


@examples(30)
@given(scripts)
def test_an_answer_is_of_its_calls_kind_and_bears_its_id(script: Script) -> None:
    _, records = played(script)
    items = {item.ref: item for item in session_history(records)}
    for item in items.values():
        if item.answers is not None:
            call = items[item.answers]
            assert item.type == ANSWERED_BY[call.type]
            assert item.data["call_id"] == call.data["call_id"]


@examples(30)
@given(scripts)
def test_a_response_that_was_cut_off_runs_nothing(script: Script) -> None:
    _, records = played(script)
    cut = {
        record.version
        for record in records
        if isinstance(record.event, ModelResponded) and record.event.status == "incomplete"
    }
    calls = {ref for ref in calls_of(records) if ref.version in cut}
    refused = {
        record.event.call
        for record in records
        if isinstance(record.event, CallRefused) and record.event.reason == "truncated"
    }
    begun = {record.event.call for record in records if isinstance(record.event, ToolCalled | HandoffMade)}
    assert calls == refused
    assert not calls & begun


@examples(30)
@given(scripts)
def test_a_response_makes_one_handoff_at_most_and_after_all_else(script: Script) -> None:
    _, records = played(script)
    made = [record.event.call for record in records if isinstance(record.event, HandoffMade)]
    assert len({call.version for call in made}) == len(made)
    for record in records:
        if isinstance(record.event, HandoffMade):
            state = run_state(records, at=record.version)
            assert state.open_calls() == []
            assert state.agent == record.event.target != record.event.source


@examples(30)
@given(scripts)
def test_every_intent_is_performed_once(script: Script) -> None:
    kept, records = played(script)
    intents = [str(record.event.call) for record in records if isinstance(record.event, ToolCalled)]
    # A callback that returned before its filter failed is announced again, and not called again.
    callbacks = {str(call) for call, name in calls_of(records).items() if name not in TOOLS}
    performed = Counter(call for _, call, _, _ in kept.effects)
    assert all(count == 1 for count in performed.values())
    assert set(performed) == set(intents)
    assert all(count == 1 or call in callbacks for call, count in Counter(intents).items())


@examples(30)
@given(scripts)
def test_what_needs_a_persons_word_waits_for_it(script: Script) -> None:
    _, records = played(script)
    names = calls_of(records)
    for n, record in enumerate(records):
        if not (isinstance(record.event, ToolCalled) and names[record.event.call] == "pay"):
            continue
        words = [earlier.event for earlier in records[:n] if isinstance(earlier.event, ApprovalDecided)]
        agent = run_state(records, at=record.version).calls[record.event.call].agent
        said = [word for word in words if word.call == record.event.call or word.standing == (agent, "pay")]
        assert said
        assert said[-1].verdict == "run"


@examples(40)
@given(scripts)
def test_what_a_tool_returns_comes_back_equal(script: Script) -> None:
    kept, records = played(script)
    numbers = {call: (tool, n) for tool, call, n, _ in kept.effects}
    for record in records:
        if not isinstance(record.event, ToolReturned) or record.event.error:
            continue
        tool, n = numbers.get(str(record.event.call), ("", 0))
        if tool in ("look", "pay", "ask", "lost", "steer"):
            wanted = script.outputs[n % len(script.outputs)]
            assert record.event.output == ("" if wanted is None else plain(wanted))
