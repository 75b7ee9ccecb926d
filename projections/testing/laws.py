"""The laws of filters. Each looks at one trial, and says what is wrong with it.

They are tried in the order of this file, from what makes all else meaningless to what only a
caller who asks for it wants. A law that finds nothing returns None.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from batonlog.events import HistoryRewritten, Ref, Rewrite, UsageError
from batonlog.events.codec import decode, encode
from batonlog.projections.filters import Filter, describe
from batonlog.projections.items import OURS, Item
from batonlog.projections.legality import NO_OUTPUT, Violation, violations
from batonlog.projections.placement import Placement, place
from batonlog.projections.rewrite import operations
from batonlog.projections.testing.trials import (
    Given,
    NoHistoryError,
    RaisedError,
    Run,
    Snapshot,
    again,
    applied,
    fresh,
)
from batonlog.projections.view import View

ANSWERS = "a filter answers every legal history"
HISTORY = "a filter returns a history, with something in it"
UNCHANGED = "a filter leaves what it is given as it is"
SAME = "a filter returns the same for the same history"
FROM_HERE = "no item comes from nowhere"
ONCE = "no item is shown twice"
ORDER = "kept items keep their order"
LEGAL = "what a filter returns is legal"
REPLAYED = "what is recorded is what was returned, and the session stays whole"
TWICE = "applied twice is applied once"
"""The laws, in words."""


KINDS = {"handoff": "handoff", "compaction": "compaction", "manual": "manual rewrite"}
"""Causes, in words."""


class Fault(NamedTuple):
    """One law, broken."""

    law: str
    what: str
    """What is wrong, in a sentence."""
    would: str
    """What the engine or a provider would do about it."""
    given: Given
    returned: Sequence[Item] | None = None
    second: Sequence[Item] | None = None
    """What it returned the other time, where that is the matter."""
    marked: tuple[Item, ...] = ()
    """The items that it is about."""
    cause: BaseException | None = None
    """What the filter raised."""


def fault_of(filters: Sequence[Filter[Any]], given: Given, run: Run, *, idempotent: bool) -> Fault | None:
    """Return the first law that filters break on this input, or None."""
    given = fresh(given)
    before = Snapshot(given)
    try:
        returned = applied(filters, given, run)
    except RaisedError as error:
        return _raised(given, error)
    except NoHistoryError as error:
        return Fault(HISTORY, f"{error}.", "The engine would fail the run.", given)
    if (what := before.changed()) is not None:
        would = "What was said is never changed. Return an edited copy: item.replace(...)."
        return Fault(UNCHANGED, f"It changed it: {what}.", would, fresh(given), returned)
    if (fault := _differs(filters, given, returned, run)) is not None:
        return fault
    for law in (_from_nowhere, _shown_twice, _out_of_order, _illegal):
        if (fault := law(given, returned)) is not None:
            return fault
    recorded = _recorded(filters, given, returned)
    if isinstance(recorded, Fault):
        return recorded
    return _not_idempotent(filters, given, returned, recorded, run) if idempotent else None


def _raised(given: Given, error: RaisedError) -> Fault:
    cause = error.__cause__
    would = "The engine would fail the run, with the record whole, and make no handoff."
    if given.cause != "handoff":
        would += (
            f" (This is a {KINDS[given.cause]}, which has no arguments. For a filter of handoffs alone, give "
            f"inputs=filter_inputs(...).)"
        )
    return Fault(ANSWERS, f"It raised {_typed(cause)}.", would, given, cause=cause)


def _typed(error: BaseException | None) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# -- the same for the same


def _differs(
    filters: Sequence[Filter[Any]], given: Given, returned: Sequence[Item], run: Run
) -> Fault | None:
    would = "The effect of a filter is recorded, but after a conflict or a crash it is computed again."
    try:
        second = applied(filters, fresh(given), run)
    except (RaisedError, NoHistoryError) as error:
        what = f"raised {_typed(error.__cause__)}" if isinstance(error, RaisedError) else f"failed: {error}"
        return Fault(SAME, f"Called again with the same, it {what}.", would, given, returned)
    if _shown(second) == _shown(returned):
        return None
    return Fault(
        SAME, "Called again with the same, it returned something else.", would, given, returned, second
    )


def _shown(items: Sequence[Item]) -> list[tuple[object, ...]]:
    return [(item.ref, bytes(item.held), item.replaces, item.lines) for item in items]


# -- from here, once, in order


def _here(given: Given) -> list[Item]:
    """All items that may be kept."""
    return [*given, *(given.own or ())]


def _from_nowhere(given: Given, returned: Sequence[Item]) -> Fault | None:
    here = _here(given)
    known = set(here)
    told = {ref for item in here for ref in (item.ref, *item.replaces)}
    for item in returned:
        if item.ref is not None and item not in known:
            what = f"Item {item.ref} is not in the history: is it of another session, or kept from an earlier call?"
        elif item.ref is None and not told.issuperset(item.replaces):
            what = (
                f"An item stands for {' and '.join(map(str, item.replaces))}, which the history does not hold: "
                f"is it of another session, or kept from an earlier call?"
            )
        else:
            continue
        would = "The engine would fail the run: what is shown comes from the history, or is new."
        return Fault(FROM_HERE, what, would, given, returned, marked=(item,))
    return None


def _shown_twice(given: Given, returned: Sequence[Item]) -> Fault | None:
    told: dict[Ref, Item] = {}
    double = _told_twice(given)
    for item in returned:
        for ref in _tells(item):
            other = told.setdefault(ref, item)
            # A filter may make two items of one, such as a text and its image: of two parts, maybe the same.
            made = item.ref is other.ref is None and item.replaces == other.replaces
            split = made and (item != other or _is_a_part(item, given))
            if other is item or split or (ref in double and item.ref != other.ref):
                continue
            return _two(given, returned, other, item, ref)
        if item.ref is not None and sum(item.ref == one.ref for one in returned) > 1:
            return _two(given, returned, item, item, item.ref)
    return None


def _two(given: Given, returned: Sequence[Item], one: Item, other: Item, ref: Ref) -> Fault:
    if one.ref == other.ref is not None:
        would = "The engine would fail the run: an item stands in a view once."
        return Fault(ONCE, f"Item {ref} is there twice.", would, given, returned, marked=(one,))
    what = f"Item {ref} is told twice: by one item and by another that stands for it."
    would = "The model would read it twice, and each of its tokens would be paid twice."
    return Fault(ONCE, what, would, given, returned, marked=(one, other))


def _tells(item: Item) -> tuple[Ref, ...]:
    """What was said that an item tells. An output that was made up for a call tells nothing of it."""
    if item.answers is not None and item.answers in item.replaces:
        return (item.ref,) if item.ref is not None else ()
    return item.covers


def _is_a_part(item: Item, given: Given) -> bool:
    """Whether an edited copy holds less than what it stands for."""
    size = len(bytes(item.held))
    return any(one.covers == item.replaces and size < len(bytes(one.held)) for one in _here(given))


def _told_twice(given: Given) -> set[Ref]:
    """What the history tells twice as it is: somebody split an item."""
    counts: dict[Ref, int] = {}
    for item in given:
        for ref in set(_tells(item)):
            counts[ref] = counts.get(ref, 0) + 1
    return {ref for ref, count in counts.items() if count > 1}


def _out_of_order(given: Given, returned: Sequence[Item]) -> Fault | None:
    """Items of `own` may come first, in their own order; then the history's, in theirs."""
    placed = [(item, ref) for item in returned if (ref := _stands_at(item, given)) is not None]
    refs = [ref for _, ref in placed]
    first = _in_order(refs, [item.ref for item in given.own or ()])
    rest = len(refs) - _in_order(refs[::-1], [item.ref for item in reversed(given)])
    if rest <= first:
        return None
    before, after = placed[rest - 1], placed[rest]
    what = f"Item {before[1]} stands before {after[1]}, and stood behind it."
    would = "The model would read what was said in another order than it was said in."
    return Fault(ORDER, what, would, given, returned, marked=(before[0], after[0]))


def _stands_at(item: Item, given: Given) -> Ref | None:
    """The item of the history that one is, or is an edited copy of."""
    if item.ref is not None:
        return item.ref
    if item.lines or (item.role == "assistant" and item.agent is None):
        return None  # somebody's summary: it stands where its filter likes
    found = [
        one.ref
        for one in _here(given)
        if (one.covers, one.type, one.role, one.agent) == (item.replaces, item.type, item.role, item.agent)
    ]
    return found[0] if len(set(found)) == 1 else None


def _in_order(refs: Sequence[Ref | None], order: Sequence[Ref | None]) -> int:
    """How many of the first refs stand in this order."""
    place = 0
    for n, ref in enumerate(refs):
        if ref not in order[place:]:
            return n
        place = order.index(ref, place)  # not the next one: an item may have been made two
    return len(refs)


# -- legal


def _illegal(given: Given, returned: Sequence[Item]) -> Fault | None:
    # A view is mended when a model is asked, so the one in which somebody handed off may be illegal.
    here = {item.ref for item in given}
    there = [fault for fault in violations(list(given.own or ()), None) if fault.item.ref not in here]
    known = {fault.item.ref for fault in (*violations(list(given), None), *there)}
    found = [
        fault
        for fault in violations(returned, None)
        if known.isdisjoint((fault.item.ref, *fault.item.replaces))
    ]
    if not found:
        return None
    what = "; ".join(dict.fromkeys(fault.message for fault in found))
    would = "; ".join(dict.fromkeys(_mended(fault) for fault in found))
    marked = tuple(fault.item for fault in found)
    return Fault(
        LEGAL,
        f"In what it returned, {what}.",
        f"A provider answers 400. So before it asks, the engine would {would}.",
        given,
        returned,
        marked=marked,
    )


def _mended(fault: Violation) -> str:
    """What a repair does about it."""
    match fault.rule:
        case "call_without_output" if fault.item.type in OURS:
            return f"make up an output for the call, saying {NO_OUTPUT!r}"
        case "call_without_output":
            return "leave the call out too"
        case "output_without_call" | "second_output":
            return "leave the output out"
        case "reasoning_without_follower":
            return "leave the reasoning out"
        case _:
            return "leave the item out"


# -- as data


def _recorded(
    filters: Sequence[Filter[Any]], given: Given, returned: Sequence[Item]
) -> Sequence[Item] | Fault:
    """Record the rewrite, and return the view that a replay of it makes."""
    version = given.version + 1
    view = View(given)
    past = ((given.own.version, View(given.own)),) if given.own is not None else ()
    would = "The engine would fail the run, or show something else after a restart."
    try:
        changes = operations(view, returned, past=past)
        if changes is None:
            return list(view)
        name, parameters = describe(filters)
        rewrite = Rewrite(filter=name, parameters=parameters, operations=tuple(changes))
        event = decode(encode(HistoryRewritten(cause="compaction", rewrite=rewrite)))
    except (UsageError, TypeError, ValueError) as error:
        return Fault(REPLAYED, f"It cannot be recorded: {error}.", would, given, returned)
    shown = place(Placement(settled=view, past=past), version, event).settled
    said = place(Placement(settled=view, rewrites=False), version, event).settled
    same = len(shown) == len(returned) and all(map(_is_recorded, shown, returned))
    if not same or list(said) != list(view):
        what = "What a replay of the log shows is not what it returned."
        return Fault(REPLAYED, what, would, given, returned, list(shown))
    return list(shown)


def _is_recorded(shown: Item, returned: Item) -> bool:
    same = shown.ref == returned.ref if returned.ref is not None else shown.replaces == returned.replaces
    return same and shown.data == returned.data


def _not_idempotent(
    filters: Sequence[Filter[Any]], given: Given, returned: Sequence[Item], recorded: Sequence[Item], run: Run
) -> Fault | None:
    would = "At the next handoff it is given what it made, and would change it again."
    try:
        second = applied(filters, again(given, returned, recorded), run)
    except (RaisedError, NoHistoryError) as error:
        what = f"raised {_typed(error.__cause__)}" if isinstance(error, RaisedError) else f"failed: {error}"
        return Fault(TWICE, f"Applied to what it returned, it {what}.", would, given, returned)
    if [item.data for item in second] == [item.data for item in returned]:
        return None
    what = "Applied to what it returned, it returned something else."
    return Fault(TWICE, what, would, given, returned, second)
