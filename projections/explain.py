"""What a rewrite did, item by item, in words."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from batonlog.events import (
    GuardrailTripped,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    Record,
    Ref,
    Rewrite,
    UsageError,
)
from batonlog.projections.items import Item
from batonlog.projections.placement import Placement, place


class Change(NamedTuple):
    """What became of one item."""

    what: Literal["kept", "dropped", "inserted", "edited", "repaired"]
    item: Item
    """As it stands after the rewrite; a dropped one as it stood before."""
    reason: str


class _Effect(NamedTuple):
    rewrite: Rewrite
    cause: str
    before: Sequence[Item]
    after: Sequence[Item]


def explain_rewrite(records: Iterable[Record], *, at: int) -> tuple[Change, ...]:
    """Say item by item what the rewrite at that version did, in the order of the view.

    `at` is the version of a `handoff.filtered`, of its `handoff.made`, of a `history.rewritten`
    or of a `guardrail.tripped`. Raises UsageError if there is no rewrite, or it took no effect.
    """
    effect = _effect(records, at)
    return tuple(_changes(effect))


def _effect(records: Iterable[Record], at: int) -> _Effect:
    state = Placement()
    for record in records:
        before, state = state, place(state, record.version, record.event)
        event = record.event
        match event:
            case HandoffMade() if before.filtered is not None and record.version in (at, at + 1):
                waiting = before.filtered
                if waiting.call == event.call and at in (waiting.version, record.version):
                    whole = place(msgspec.structs.replace(before, filtered=None), record.version, event)
                    return _Effect(waiting.rewrite, "handoff", list(whole.settled), list(state.settled))
            case HistoryRewritten() if record.version == at:
                return _Effect(event.rewrite, event.cause, list(before.settled), list(state.settled))
            case GuardrailTripped(rewrite=Rewrite() as rewrite) if record.version == at:
                bare = place(msgspec.structs.replace(before, rewrites=False), record.version, event)
                return _Effect(rewrite, "guardrail", list(bare.settled), list(state.settled))
            case HandoffFiltered() if record.version == at:
                continue
            case _:
                pass
        if record.version > at:
            break
    raise UsageError(
        f"there is no rewrite at version {at} that took effect: see handoff.filtered and history.rewritten",
        version=at,
    )


def _changes(effect: _Effect) -> Iterator[Change]:
    left = {item.ref for item in effect.after}
    covered = {
        ref: item for item in effect.after if item.ref not in _refs(effect.before) for ref in item.replaces
    }
    place = 0
    places = {item.ref: n for n, item in enumerate(effect.before)}
    for item in effect.after:
        stood = places.get(item.ref)
        if stood is not None and stood >= place:
            yield from _gone(effect, effect.before[place:stood], left, covered)
            place = stood + 1
        yield _standing(effect, item, stood)
    yield from _gone(effect, effect.before[place:], left, covered)


def _refs(items: Sequence[Item]) -> set[Ref | None]:
    return {item.ref for item in items}


def _standing(effect: _Effect, item: Item, stood: int | None) -> Change:
    if stood is not None:
        return Change("kept", item, "")
    if effect.cause == "repair":
        return Change("repaired", item, _repair_of(effect, item) or "made up, so that the call has an output")
    if len(item.replaces) == 1:
        return Change("edited", item, f"{_by(effect)}, from {item.replaces[0]}")
    made = f", from {len(item.replaces)} items" if item.replaces else ""
    return Change("inserted", item, f"{_by(effect)}{made}")


def _gone(
    effect: _Effect, items: Sequence[Item], left: set[Ref | None], covered: dict[Ref, Item]
) -> Iterator[Change]:
    for item in items:
        if item.ref in left:
            continue  # it was moved, and stands elsewhere
        if item.ref is not None and item.ref in covered:
            if len(covered[item.ref].replaces) > 1:
                yield Change("dropped", item, f"{_by(effect)}: it is in {covered[item.ref].ref}")
        elif effect.cause == "repair":
            yield Change("repaired", item, _repair_of(effect, item) or "left out")
        else:
            yield Change("dropped", item, _by(effect))


def _by(effect: _Effect) -> str:
    return effect.rewrite.filter or effect.cause


def _repair_of(effect: _Effect, item: Item) -> str:
    """What was said of an item when it was repaired."""
    refs = {item.ref, *item.replaces}
    return next((text for text in effect.rewrite.repairs if any(f" {ref} " in text for ref in refs)), "")
