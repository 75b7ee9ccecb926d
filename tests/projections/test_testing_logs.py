"""Random sessions, histories and filter inputs: that they are legal, and that they hold what matters."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batonlog.events import (
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    ModelRequested,
    Record,
    SessionForked,
)
from batonlog.events.lifecycle import objection
from batonlog.events.record import GENESIS, link
from batonlog.projections import (
    FilterInput,
    History,
    check_legal,
    model_history,
    model_request,
    session_history,
)
from batonlog.projections.items import ANSWERED_BY, OURS
from batonlog.projections.pairing import Pairing, is_call, is_output
from batonlog.projections.state import State, advance
from batonlog.projections.testing import filter_inputs, histories, logs

DEEP = bool(os.environ.get("BATONLOG_DEEP"))
_T = TypeVar("_T", bound=Callable[..., Any])


def examples(few: int) -> Callable[[_T], _T]:
    """The same examples in every run, unless asked to go deep."""
    return settings(
        max_examples=few * 30 if DEEP else few,
        derandomize=not DEEP,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def states(records: Iterable[Record]) -> list[State]:
    made = [State()]
    for record in records:
        made.append(advance(made[-1], record.version, record.event))
    return made


# -- sessions


@examples(30)
@given(logs())
def test_every_event_of_a_session_may_follow_those_before_it(records: tuple[Record, ...]) -> None:
    for before, record in zip(states(records), records, strict=False):
        request = before.request.version if before.request is not None else None
        assert objection(record.event, run=before.phase, calls=before.calls, request=request) is None


@examples(25)
@given(logs())
def test_records_are_numbered_and_linked_as_a_log_does_it(records: tuple[Record, ...]) -> None:
    assert [record.version for record in records] == list(range(1, len(records) + 1))
    positions = [record.position for record in records]
    assert positions == sorted(set(positions))
    assert len({record.id for record in records}) == len(records)
    previous = GENESIS
    for record in records:
        assert record.hash == link(previous, record.session, record.version, record.id, record.digest)
        previous = record.hash


@examples(25)
@given(logs())
def test_a_fork_continues_the_session_that_it_names(records: tuple[Record, ...]) -> None:
    session = records[0].session
    for before, record in pairwise(records):
        if isinstance(record.event, SessionForked):
            assert record.event.at == before.version
            assert record.session not in (session, record.event.parent)
            session = record.session
        assert record.session == session


@examples(25)
@given(logs())
def test_both_histories_of_every_prefix_can_be_folded(records: tuple[Record, ...]) -> None:
    for version in range(len(records) + 1):
        for history in (model_history(records, at=version), session_history(records, at=version)):
            refs = [item.ref for item in history]
            assert None not in refs
            assert len(set(refs)) == len(refs)


@examples(30)
@given(logs())
def test_every_request_shows_a_legal_history_and_is_proven_by_its_digest(records: tuple[Record, ...]) -> None:
    for record in records:
        if isinstance(record.event, ModelRequested):
            assert check_legal(model_history(records, at=record.version)) == ()
            assert model_request(records, at=record.version).digest == record.event.digest


@examples(25)
@given(logs())
def test_no_rewrite_takes_the_last_message_of_the_user(records: tuple[Record, ...]) -> None:
    for record in records:
        if isinstance(record.event, HandoffMade | HistoryRewritten):
            assert any(item.role == "user" for item in model_history(records, at=record.version))


# -- histories


@examples(40)
@given(histories())
def test_a_history_is_legal_and_holds_a_message_of_the_user(history: History) -> None:
    assert check_legal(history) == ()
    assert any(item.role == "user" for item in history)


@examples(30)
@given(histories())
def test_a_history_leaves_no_call_open(history: History) -> None:
    pairing = Pairing()
    for n, item in enumerate(history):
        if is_call(item):
            pairing.call(n, item)
        elif is_output(item):
            assert pairing.answer(item) != (None, False)
    assert not pairing.waiting


# -- what filters are given


@examples(30)
@given(filter_inputs(st.just("the caller's"), arguments=st.just({"reason": "money"})))
def test_an_input_is_what_an_unfiltered_handoff_would_leave(given: FilterInput[str]) -> None:
    assert (given.cause, given.context, given.arguments) == ("handoff", "the caller's", {"reason": "money"})
    assert given.source != given.target
    assert check_legal(given) == ()
    assert [*given.earlier, *given.latest] == list(given)
    assert any(item.type == "function_call" and item.agent == given.source for item in given.latest)
    assert is_output(given[-1])
    assert all(item.ref is not None for item in given)


@examples(80)
@given(st.data())
def test_own_is_the_view_of_who_has_handed_off_before(data: st.DataObject) -> None:
    given = data.draw(filter_inputs(st.none()))
    handed = {item.agent for item in given.earlier if item.type == "function_call" and _is_transfer(item)}
    if given.own is not None:
        assert given.own.version <= given.version
    elif given.target in handed:
        # Its earlier transfer was refused, or made in the run of another session.
        assert all(item.text != "Transferred." for item in given.earlier if item.agent == given.target)


def _is_transfer(item: Any) -> bool:
    return str(item.head.name).startswith("transfer_to_")


@examples(25)
@given(filter_inputs(st.none()))
def test_without_arguments_a_dict_is_given(given: FilterInput[None]) -> None:
    assert isinstance(given.arguments, dict)
    assert given.arguments.keys() <= {"reason"}


# -- that they hold what matters


def _gathered(
    strategy: st.SearchStrategy[Any], see: Callable[[Any], Iterable[str]], count: int
) -> Counter[str]:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(strategy)
    def look(made: Any) -> None:
        seen.update(set(see(made)))

    look()
    return seen


def _in_log(records: tuple[Record, ...]) -> Iterable[str]:
    session = session_history(records)
    yield from (record.type for record in records)
    agents = {item.agent for item in session} - {None}
    yield f"{len(agents)} agents"
    if sum(record.type == "run.started" for record in records) > 1:
        yield "several runs"
    for record, following in pairwise(records):
        if isinstance(following.event, HandoffMade) and not isinstance(record.event, HandoffFiltered):
            yield "unfiltered handoff"
    settled = [r.event.call for r in records if r.type in ("tool.returned", "call.refused")]  # type: ignore[attr-defined]
    if any(a.version == b.version and a > b for a, b in pairwise(settled)):
        yield "late output"
    if states(records)[-1].open_calls():
        yield "ends with open calls"
    for record in records:
        if isinstance(record.event, HandoffFiltered | HistoryRewritten):
            yield from (f"operation {step[0]}{len(step)}" for step in record.event.rewrite.operations)


def test_sessions_hold_all_that_goes_on() -> None:
    seen = _gathered(logs(), _in_log, 180)
    missing = {
        *("run.started", "run.resumed", "run.paused", "run.failed", "run.completed", "run.cancelled"),
        *("input.added", "cancel.requested", "note.added", "agent.resolved", "session.forked"),
        *("model.requested", "model.responded", "model.failed", "tool.called", "tool.returned"),
        *("tool.abandoned", "call.refused", "approval.requested", "approval.decided"),
        *("handoff.filtered", "handoff.made", "history.rewritten"),
        *(
            "2 agents",
            "3 agents",
            "several runs",
            "unfiltered handoff",
            "late output",
            "ends with open calls",
        ),
        *("operation take3", "operation put2", "operation put3", "operation put4"),
    } - set(seen)
    assert missing == set()


def _in_input(given: FilterInput[None]) -> Iterable[str]:
    yield from (item.type for item in given)
    ids = Counter(item.head.call_id for item in given if item.type in OURS)
    yield from ("reused id" for count in ids.values() if count > 1)
    for item in given:
        data = item.data
        for part in (data.get("content"), data.get("output")):
            if isinstance(part, list):
                yield from (f"{item.type} {one.get('type')}" for one in part)
        if not item.text.isprintable():
            yield "odd text"
        if len(item.replaces) > 1:
            yield "nest"
        if len(item.replaces) == 1:
            yield "edit"
        if "encrypted_content" in data:
            yield "sealed"
    if len({item.issuer for item in given}) > 2:
        yield "two models"
    if given.own is not None:
        yield "own"
    if sum(item.type == "function_call" for item in given.latest) > 1:
        yield "calls beside it"


def test_inputs_hold_all_that_is_said() -> None:
    seen = _gathered(filter_inputs(st.none()), _in_input, 200)
    missing = {
        *("message", "reasoning", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output", "program", "program_output"),
        *("tool_search_call", "tool_search_output"),
        *("reused id", "odd text", "nest", "edit", "sealed", "two models", "own", "calls beside it"),
        *("message input_image", "message input_file", "function_call_output input_image"),
    } - set(seen)
    assert missing == set()
    # What a provider does by itself, and has the client do, is rare: some of it must have come.
    hosted = {"web_search_call", "file_search_call", "mcp_call", "compaction", "quantum_leap", "telepathy"}
    assert len(hosted & set(seen)) >= 3
    assert len(set(ANSWERED_BY) & set(seen)) >= 5
