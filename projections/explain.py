"""What a rewrite did, item by item, in words.

A rewrite is data, so all of this is read from the log: which items of the view that it found
are in the view that it left, what stands for those that are not, and who is known to have
wanted it. No filter is called. Items are told apart by ref, and what stands for them by what
it covers: a put covers what was said first, however often that was edited since.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from batonlog.events import (
    AgentResolved,
    GuardrailTripped,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    ModelResponded,
    Record,
    Ref,
    Rewrite,
    UsageError,
)
from batonlog.events.facts import raw
from batonlog.projections.items import OURS, Item
from batonlog.projections.offers import offer_from
from batonlog.projections.placement import Placement, place
from batonlog.projections.rewrite import Past
from batonlog.projections.view import View

What: TypeAlias = Literal["kept", "dropped", "inserted", "edited", "repaired"]


class Change(NamedTuple):
    """What became of one item."""

    what: What
    """`repaired` is one that a repair made up. All but `dropped` are in the view afterwards."""
    item: Item
    """As it stands after the rewrite; a dropped one as it stood before."""
    reason: str
    """Which filter, or what a provider would have refused; "" for one that stays where it was."""


def explain_rewrite(records: Iterable[Record], *, at: int) -> tuple[Change, ...]:
    """Say item by item what the rewrite at that version did, in the order of the view.

    Every item of the view before is there once, kept, dropped, or as the edited one that stands
    for it, and every item of the view after.

    Args:
        records: the whole session.
        at: version of a `handoff.filtered`, of its `handoff.made`, of a `history.rewritten`, or
            of a `guardrail.tripped` with a rewrite.

    A `handoff.filtered` whose handoff was not made took no effect: nothing is returned. Raises
    UsageError if there is no rewrite at that version, naming those that are nearest.
    """
    return tuple(rewrite_at(records, at).changes())


def rewrite_at(records: Iterable[Record], at: int) -> "Explained":
    """Return the rewrite that the event at that version holds or brings into effect. Raises UsageError."""
    whole = tuple(records)
    known: list[int] = []
    for one in explained(whole):
        if at in (one.version, one.effective):
            return one
        known.append(one.version)
    where = f"its rewrites are at {versions_near(known, at)}" if known else "nothing was ever rewritten in it"
    session = whole[-1].session if whole else None
    there = next((record for record in whole if record.version == at), None)
    if there is not None:
        what = f"{session} has {there.type} at version {at}, which rewrites nothing; {where}"
    elif whole and at > whole[-1].version:
        what = f"{session} is at version {whole[-1].version}; there is no version {at}; {where}"
    else:
        what = f"there is no version {at} in these records: give the whole session"
    raise UsageError(what, session=session, version=at)


def versions_near(versions: Sequence[int], at: int, *, most: int = 6) -> str:
    """Return the versions nearest to one, in words: "9, 12 and 40"."""
    near = sorted(sorted(set(versions), key=lambda version: abs(version - at))[:most])
    more = ", among others" if len(near) < len(set(versions)) else ""
    *some, last = map(str, near)
    return (f"{', '.join(some)} and {last}" if some else last) + more


def refs_in_words(refs: Iterable[Ref], *, most: int = 6) -> str:
    """Return refs compactly: "3.0, 5.0–5.2, 7.1"; of very many the first, the last and their number."""
    runs: list[tuple[Ref, Ref]] = []
    count = 0
    for ref in sorted(set(refs)):
        count += 1
        if runs and runs[-1][1] == Ref(ref.version, ref.index - 1):
            runs[-1] = (runs[-1][0], ref)
        else:
            runs.append((ref, ref))
    said = [str(first) if first == last else f"{first}–{last}" for first, last in runs]
    if len(said) <= most:
        return ", ".join(said)
    return f"{', '.join(said[: most - 2])}, …, {said[-1]} ({count} items)"


class Explained(Struct, frozen=True, gc=False):
    """A rewrite of a session, and the views before and after it."""

    version: int
    """The event that holds it."""
    effective: int | None
    """The event with which it took effect: itself, or the handoff; None if it took none."""
    cause: str
    """`handoff`, `guardrail`, `compaction`, `manual` or `repair`."""
    rewrite: Rewrite
    before: View = msgspec.field(default_factory=View)
    after: View = msgspec.field(default_factory=View)
    past: Past = ()
    """Earlier views, for what was brought back from one."""
    made: HandoffMade | None = None
    """The handoff that it belongs to."""
    tripped: GuardrailTripped | None = None
    """The guardrail that it belongs to."""
    untaken: frozenset[Ref | None] = frozenset()
    """Transfers that were not taken, of the response that handed off."""

    @property
    def by(self) -> str:
        """Who did it: the filter, or the guardrail."""
        if self.tripped is not None:
            return f"guardrail {self.tripped.name}"
        return self.rewrite.filter or self.cause

    def changes(self) -> Iterator[Change]:
        """Yield what became of each item, in the order of the view: what was dropped where it stood."""
        return _Comparison(self).changes() if self.effective is not None else iter(())


def explained(records: Iterable[Record]) -> Iterator[Explained]:
    """Yield every rewrite of a session, in the order in which they were recorded."""
    state = Placement()
    transfers = _Transfers()
    waiting: HandoffFiltered | None = None
    version = 0
    for record in records:
        before, state, event = state, place(state, record.version, record.event), record.event
        transfers.hear(before.agent, record)
        if waiting is not None and not (isinstance(event, HandoffMade) and event.call == waiting.call):
            yield Explained(version, None, "handoff", waiting.rewrite)
            waiting = None
        match event:
            case HandoffFiltered():
                waiting = event
            case HandoffMade() if waiting is not None:
                whole = place(msgspec.structs.replace(before, filtered=None), record.version, event)
                yield Explained(
                    version,
                    record.version,
                    "handoff",
                    waiting.rewrite,
                    whole.settled,
                    state.settled,
                    past=before.past,
                    made=event,
                    untaken=transfers.of_response(event.call) - {event.call},
                )
                waiting = None
            case HistoryRewritten(cause=cause, rewrite=rewrite):
                views, past = (before.settled, state.settled), before.past
                yield Explained(record.version, record.version, cause, rewrite, *views, past)
            case GuardrailTripped(rewrite=Rewrite() as rewrite):
                views, past = (before.settled, state.settled), before.past
                yield Explained(
                    record.version, record.version, "guardrail", rewrite, *views, past, tripped=event
                )
            case _:
                pass
        version = record.version
    if waiting is not None:
        yield Explained(version, None, "handoff", waiting.rewrite)


class _Transfers:
    """Which calls of the latest response are transfers, by what its agent was offered."""

    def __init__(self) -> None:
        self._offered: dict[str, frozenset[str]] = {}
        self._version = 0
        self._found: frozenset[Ref] = frozenset()

    def hear(self, agent: str | None, record: Record) -> None:
        match record.event:
            case AgentResolved() as event if (offered := raw(event, "offered")) is not None:
                offers = [offer for offer in map(offer_from, offered) if offer is not None]
                self._offered[event.agent] = frozenset(one.name for one in offers if one.kind == "handoff")
            case ModelResponded() as event:
                names = self._offered.get(agent or "", frozenset())
                items = [Item(Ref(record.version, n), held) for n, held in enumerate(raw(event, "output"))]
                found = (item.ref for item in items if item.type in OURS and item.head.name in names)
                self._version, self._found = (
                    record.version,
                    frozenset(ref for ref in found if ref is not None),
                )
            case _:
                pass

    def of_response(self, call: Ref) -> frozenset[Ref | None]:
        return self._found if call.version == self._version else frozenset()


class _Comparison:
    """The view before a rewrite beside the view after it."""

    def __init__(self, told: Explained) -> None:
        self._told = told
        self._before, self._after = list(told.before), list(told.after)
        self._places = {item.ref: n for n, item in enumerate(self._before)}
        self._left = {item.ref for item in self._after}
        self._by = told.by
        self._steps = _steps(told)
        self._repairs = _repairs(told.rewrite)
        self._origins = _origins(told)
        puts = [item for item in self._after if self._is_put(item)]
        self._in: dict[Ref, Item] = {}
        """The put that covers what was said there."""
        for put in reversed(puts):
            self._in.update(dict.fromkeys(put.replaces, put))
        self._edits = self._find_edits(puts)
        """Place of what an edited item stands for, by the ref of the edited item."""
        self._edited = frozenset(self._edits.values())

    def _is_put(self, item: Item) -> bool:
        return item.ref not in self._places and item.ref not in self._origins

    def _find_edits(self, puts: Sequence[Item]) -> dict[Ref | None, int]:
        """Pair puts with the one item that each of them stands for: what it covers, that covered too."""
        standing: dict[Ref, list[int]] = {}
        for n, item in enumerate(self._before):
            if item.ref is not None and item.ref not in self._left:
                for ref in {item.ref, *item.replaces}:
                    standing.setdefault(ref, []).append(n)
        found: dict[Ref | None, int] = {}
        taken: set[int] = set()
        for put in puts:
            for n in standing.get(put.replaces[0], ()) if put.replaces else ():
                item = self._before[n]
                if n not in taken and {item.ref, *item.replaces}.issuperset(put.replaces):
                    found[put.ref] = n
                    taken.add(n)
                    break
        return found

    def changes(self) -> Iterator[Change]:
        stood = [self._places.get(item.ref, self._edits.get(item.ref)) for item in self._after]
        in_order = _rising(stood)
        place = 0
        waiting: list[Change] = []
        for n, (item, was) in enumerate(zip(self._after, stood, strict=True)):
            change = self._standing(item, moved=was is not None and n not in in_order)
            if was is None or n not in in_order:
                waiting.append(change)
                continue
            # As in any diff: what is gone from between two that stay, then what came there.
            yield from self._gone(place, was)
            yield from waiting
            yield change
            waiting, place = [], was + 1
        yield from self._gone(place, len(self._before))
        yield from waiting

    # -- what is in the view afterwards

    def _standing(self, item: Item, *, moved: bool) -> Change:
        by = self._steps.get(item.ref, self._by)
        if item.ref in self._places:
            return Change("kept", item, f"{self._by}: moved" if moved else "")
        if (origin := self._origins.get(item.ref)) is not None:
            return Change("inserted", item, f"{self._by}: {origin}")
        if (told := self._repair_of(item)) is not None:
            return Change("repaired", item, f"made up: {told}")
        if self._told.cause == "repair":
            return Change("repaired", item, "made up")
        if (was := self._edits.get(item.ref)) is not None:
            return Change("edited", item, f"{by}: {self._edit(item, self._before[was])}")
        if item.answers is not None and item.answers in item.replaces:
            return Change("inserted", item, f"{by}: made up as the output of {item.answers}")
        made = f": from {refs_in_words(item.replaces)}" if item.replaces else ": made anew"
        return Change("inserted", item, f"{by}{made}")

    def _edit(self, item: Item, was: Item) -> str:
        of = f", of {refs_in_words(was.replaces)}" if was.replaces else ""
        less = set(was.covers) - set(item.replaces)
        return f"was {was.ref}{f', without {refs_in_words(less)}' if less and was.replaces else of}"

    # -- what is not

    def _gone(self, start: int, stop: int) -> Iterator[Change]:
        for n in range(start, stop):
            item = self._before[n]
            if item.ref not in self._left and n not in self._edited:
                yield Change("dropped", item, self._why_gone(item))

    def _why_gone(self, item: Item) -> str:
        if (told := self._repair_of(item)) is not None:
            return told
        if self._told.cause == "repair":
            return _FOLLOWING.get(item.type, "what it belonged to was left out")
        by = self._steps.get(item.ref, self._by)
        covers = item.covers
        if inside := [self._in[ref] for ref in (item.ref, *covers) if ref in self._in]:
            whole = item.ref in self._in or all(ref in self._in for ref in covers)
            refs = refs_in_words(put.ref for put in inside if put.ref is not None)
            made = self._steps.get(inside[0].ref, self._by)
            return f"{made}: {'it' if whole else 'part of it'} is in {refs}"
        if back := [ref for ref in covers if ref in self._origins and ref in self._left]:
            stands = "stands" if len(back) == 1 else "stand"
            return f"{self._by}: {refs_in_words(back)} {stands} there again"
        if not self._told.untaken.isdisjoint((item.ref, *item.replaces)):
            return f"{by}: a transfer that was not taken"
        if item.answers in self._told.untaken:
            return f"{by}: the answer to a transfer that was not taken"
        tripped = self._told.tripped
        return f"{by}: {tripped.reason}" if tripped is not None and tripped.reason else by

    def _repair_of(self, item: Item) -> str | None:
        """What was said of an item, or of the call that it was made up for, when it was repaired."""
        if not self._repairs:
            return None
        if item.answers is not None and item.answers in item.replaces:
            place = self._places.get(item.answers)
            of: Item | None = self._before[place] if place is not None else None
            return self._repairs.get(f"{of.type} {of.ref}") if of is not None else None
        return self._repairs.get(f"{item.type} {item.ref}")


def _steps(told: Explained) -> dict[Ref | None, str]:
    """Which filter of a sequence left an item out, or made it."""
    found: dict[Ref | None, str] = {}
    for name, dropped, puts in told.rewrite.steps:
        found.update((ref, name) for ref in dropped if ref not in found)
        found.update((Ref(told.version, n), name) for n in puts)
    return found


_FOLLOWING: Mapping[str, str] = {"reasoning": "what followed it was left out"}
"""Why a repair dropped what was no fault before another was mended."""


def _origins(told: Explained) -> dict[Ref | None, str]:
    """Where that comes from which is no put, and was not in the view: an older view, or the event itself."""
    found: dict[Ref | None, str] = {}
    past = dict(told.past)
    for step in told.rewrite.operations:
        match step:
            case ["take", int(start), int(stop), int(at)]:
                taken = past[at][start:stop] if at in past else []
                found.update((item.ref, f"brought back from version {at}") for item in taken)
            case _:
                pass
    if told.tripped is not None and told.tripped.replacement is not None:
        found[Ref(told.version, 0)] = "its replacement"
    return found


_MENDED = re.compile(r"(\S+ \d+\.\d+) ")


def _repairs(rewrite: Rewrite) -> dict[str, str]:
    """What was repaired in words, by the type and ref of what it is about; without the rule's name."""
    found: dict[str, str] = {}
    for text in rewrite.repairs:
        message = re.sub(r"^\w+: ", "", text)
        for name in _MENDED.findall(message):
            found.setdefault(name, message)
    return found


def _rising(numbers: Sequence[int | None]) -> frozenset[int]:
    """Return the places of a longest rising part of some numbers: all else was moved."""
    ends: list[int] = []  # ends[k] is the least last number of a rising part of k + 1 numbers
    places: list[int] = []
    before: dict[int, int | None] = {}
    for n, number in enumerate(numbers):
        if number is None:
            continue
        k = bisect_left(ends, number)
        before[n] = places[k - 1] if k else None
        ends[k : k + 1] = [number]
        places[k : k + 1] = [n]
    found: set[int] = set()
    last = places[-1] if places else None
    while last is not None:
        found.add(last)
        last = before[last]
    return frozenset(found)
