"""The laws of rewrites: the effect of a filter as data leads where the filter led."""

import asyncio
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.cast import edited
from tests.laws.checks import bare, played, shown, views
from tests.laws.conversations import scripts
from tests.laws.depth import examples
from tests.laws.filterings import edits, odd_edits
from tests.laws.scripts import Edit, Script

from batonlog.events import (
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    Ref,
    Rewrite,
    RunFailed,
    UsageError,
)
from batonlog.events.codec import fresh
from batonlog.events.lifecycle import STOPPED
from batonlog.projections import FilterInput, History, Item, check_legal, repair
from batonlog.projections.filters import apply_filters
from batonlog.projections.legality import repaired, violations
from batonlog.projections.placement import place
from batonlog.projections.rewrite import operations, rewritten
from batonlog.projections.state import FILTER_FAILED, run_state
from batonlog.projections.view import View

some_edits = st.lists(st.one_of(edits, edits, odd_edits), max_size=4)
issuers = st.sampled_from([None, ("loopback", "first"), ("loopback", "second"), ("elsewhere", "third")])


def filtered(view: View, what: Sequence[Edit]) -> Sequence[Item] | None:
    """Return what a filter makes of a view; None if that is no history."""
    given = FilterInput(view, version=1, cause="manual", session="s", context=None, split=0)
    try:
        return asyncio.run(apply_filters(lambda history: edited(history, what), given))
    except Exception:
        return None


def stored(changes: Sequence[object]) -> Rewrite:
    """Return a rewrite as it is read back from a log."""
    made = Rewrite(filter="f", parameters={}, operations=tuple(changes))
    event = fresh(HistoryRewritten(cause="manual", rewrite=made))
    assert isinstance(event, HistoryRewritten)
    return event.rewrite


@examples(50)
@given(scripts, some_edits)
def test_the_operations_of_a_filter_lead_to_what_it_returned(script: Script, what: list[Edit]) -> None:
    _, records = played(script)
    placed = run_state(records).place
    before = placed.settled
    after = filtered(before, what)
    if after is None:
        return
    try:
        changes = operations(before, after, past=placed.past)
    except UsageError:
        refs = [item.ref for item in after if item.ref is not None]
        known = {item.ref for item in before} | {item.ref for _, view in placed.past for item in view}
        assert len(refs) != len(set(refs)) or not set(refs) <= known
        return
    version = len(records) + 1
    if changes is None:
        assert list(after) == list(before)
        return
    made = rewritten(before, stored(changes), past=placed.past, version=version, first=0)
    assert [item.data for item in made] == [item.data for item in after]
    puts = 0
    for item, wanted in zip(made, after, strict=True):
        if wanted.ref is None:
            assert item.ref == Ref(version, puts)
            assert item.replaces == wanted.replaces
            puts += 1
        else:
            assert bare(item) == bare(wanted)


@examples(30)
@given(scripts)
def test_what_a_handoff_shows_is_what_its_filter_returned(script: Script) -> None:
    _, records = played(script)
    for n, record in enumerate(records):
        if not isinstance(record.event, HandoffFiltered):
            continue
        made = records[n + 1].event
        assert isinstance(made, HandoffMade)
        assert made.call == record.event.call
        before = views(records[: n + 1])[-1]
        base = place(before, made_version := record.version + 1, made)
        plain = place(msgspec.structs.replace(before, filtered=None), made_version, made)
        wanted = rewritten(
            plain.settled, record.event.rewrite, past=before.past, version=record.version, first=0
        )
        assert shown(base.settled) == shown(wanted)


@examples(30)
@given(scripts)
def test_a_filter_event_alone_changes_nothing(script: Script) -> None:
    _, records = played(script)
    states = views(records)
    for n, record in enumerate(records):
        if isinstance(record.event, HandoffFiltered):
            assert shown(states[n].items()) == shown(states[n - 1].items())
            assert states[n].agent == states[n - 1].agent


@examples(30)
@given(scripts)
def test_who_takes_over_is_not_shown_the_transfers_that_were_not_taken(script: Script) -> None:
    _, records = played(script)
    for n, record in enumerate(records):
        if not isinstance(record.event, HandoffMade):
            continue
        taken = record.event.call
        before = run_state(records[:n])
        untaken = {
            ref
            for ref, call in before.calls.items()
            if ref != taken and (offer := before.offer_of(call)) is not None and offer.kind == "handoff"
        }
        for item in run_state(records[: n + 1]).place.settled:
            assert untaken.isdisjoint({item.ref, item.answers, *item.replaces})


@examples(30)
@given(scripts)
def test_a_filter_that_fails_leaves_the_record_whole_and_makes_no_handoff(script: Script) -> None:
    _, records = played(script)
    states = views(records)
    for n, record in enumerate(records):
        if not (isinstance(record.event, RunFailed) and record.event.kind == FILTER_FAILED):
            continue
        state = run_state(records[: n + 1])
        assert state.open_calls()
        assert state.phase == STOPPED
        begun = max(k for k in range(n) if records[k].type in ("model.responded", "run.resumed"))
        assert not [r for r in records[begun : n + 1] if r.type.startswith("handoff.")]
        assert states[n].agent == states[begun].agent
        assert list(states[n].settled) == list(states[begun].settled)


@examples(50)
@given(scripts, some_edits, issuers)
def test_a_repair_is_legal_and_repairing_twice_is_repairing_once(
    script: Script, what: list[Edit], issuer: tuple[str, str] | None
) -> None:
    _, records = played(script)
    state = run_state(records)
    view = state.place.settled
    after = filtered(view, what)
    try:
        changes = operations(view, after, past=state.place.past) if after is not None else None
    except UsageError:
        return
    if changes is not None:
        view = rewritten(view, stored(changes), past=state.place.past, version=len(records) + 1, first=0)
    once = repaired(list(view), issuer)
    assert list(violations(once, issuer)) == []
    assert repaired(once, issuer) == once
    # What it leads to in the log is legal too, with the refs that the made-up items get there.
    mended = operations(view, once, past=state.place.past)
    if mended is not None:
        again = rewritten(view, stored(mended), past=state.place.past, version=len(records) + 2, first=0)
        assert list(violations(list(again), issuer)) == []
        assert [item.data for item in again] == [item.data for item in once]


@examples(30)
@given(scripts, some_edits)
def test_the_public_repair_leaves_nothing_to_find(script: Script, what: list[Edit]) -> None:
    _, records = played(script)
    after = filtered(run_state(records).place.settled, what)
    if after is not None:
        once = repair(History(after))
        assert check_legal(once) == ()
        assert repair(once) == once


@examples(30)
@given(scripts, issuers)
def test_a_repair_keeps_every_message_and_every_answered_call(
    script: Script, issuer: tuple[str, str] | None
) -> None:
    _, records = played(script)
    for n, record in enumerate(records):
        if isinstance(record.event, HistoryRewritten) and record.event.cause == "repair":
            before, after = views(records[: n + 1])[-2:]
            kept = [item.ref for item in after.settled if item.type == "message"]
            assert kept == [item.ref for item in before.settled if item.type == "message"]
            answered = {item.answers for item in before.settled}
            calls = [i.ref for i in before.settled if i.type == "function_call" and i.ref in answered]
            assert calls == [ref for ref in (i.ref for i in after.settled) if ref in calls]
