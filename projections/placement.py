"""Where each item stands: the one placement rule behind both histories.

A history is: settled items, then the outputs so far of the open response in call order, then
input not yet taken. Outputs settle together with the last call of their response. Input
settles at once when no run is open, else when the next `model.requested` or the end of the
run takes it. So outputs stand in call order although they are recorded as they arrive, and a
message that comes in the middle of a turn never splits a call from its output.

Settled items only grow, except at a rewrite. With `rewrites` off the same fold gives the
session: a rewrite changes the view and never what was said.

The fold is total: an event that does not belong is passed over.
"""

from collections.abc import Collection, Iterator, Mapping
from copy import copy

import msgspec
from msgspec import Struct

from batonlog.events import (
    CallRefused,
    Event,
    GuardrailTripped,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    InputAdded,
    ModelRequested,
    ModelResponded,
    Ref,
    Rewrite,
    RunCancelled,
    RunCompleted,
    RunStarted,
    ToolAbandoned,
    ToolReturned,
)
from batonlog.projections.items import OURS, Item, is_made_up, items_of
from batonlog.projections.lines import part_of
from batonlog.projections.rewrite import Past, rewritten
from batonlog.projections.view import View


class Filtered(Struct, frozen=True, gc=False):
    """A handoff.filtered that has just been recorded: it counts for the very next event alone."""

    version: int
    call: Ref
    rewrite: Rewrite


class Placement(Struct, gc=False):
    """Items in their places. A value: `place` returns a new one."""

    rewrites: bool = True
    """Whether rewrites count: yes for the view, no for the session."""
    settled: View = msgspec.field(default_factory=View)
    tail: tuple[Item, ...] = ()
    """Outputs of the open response, in call order."""
    queue: tuple[tuple[Item, bool], ...] = ()
    """Input not yet taken, and whether it waits for the next run."""
    open: frozenset[Ref] = frozenset()
    """Calls of the open response without an answer."""
    idle: bool = True
    """No run is open."""
    agent: str | None = None
    """Who holds control."""
    issuer: tuple[str, str] | None = None
    """Of the open or latest request."""
    filtered: Filtered | None = None
    past: tuple[tuple[int, View], ...] = ()
    """Settled views just before each rewrite and handoff, by its version: for `take … at`.

    Without what was taken out for good since then: by somebody's edit or by a guardrail.
    """

    def items(self) -> Iterator[Item]:
        """All items of the history, in order."""
        yield from self.settled
        yield from self.tail
        for item, _ in self.queue:
            yield item

    def taken(self) -> View:
        """The settled view once the next request has taken what waits for it."""
        return self.settled.plus([item for item, later in self.queue if not later])


def place(old: Placement, version: int, event: Event) -> Placement:
    """Return the placement after an event."""
    new = copy(old)
    new.filtered = None
    match event:
        case ModelResponded():
            own = items_of(version, event, old.agent, old.issuer)
            new.settled = old.settled.plus(own)
            new.open = frozenset(item.ref for item in own if item.ref is not None and item.type in OURS)
            new.tail = ()
        case ModelRequested():
            new.agent, new.issuer = event.agent, event.issuer
            _take(new, everything=False)
        case ToolReturned() | ToolAbandoned() | CallRefused():
            _answer(new, version, event)
        case HandoffMade():
            _answer(new, version, event)
            _hand_over(new, old.filtered, version, event)
        case InputAdded():
            own = items_of(version, event, None, None)
            if old.idle:
                new.settled = old.settled.plus(own)
            else:
                new.queue = (*old.queue, *((item, event.goes_to == "run") for item in own))
        case RunStarted():
            _take(new, everything=True)
            new.settled = new.settled.plus(items_of(version, event, None, None))
            new.idle, new.agent = False, event.agent
        case RunCompleted() | RunCancelled():
            _take(new, everything=True)
            new.idle = True
        case HandoffFiltered():
            new.filtered = Filtered(version, event.call, event.rewrite)
        case HistoryRewritten():
            _rewrite(new, version, event.rewrite, first=0, everywhere=event.cause == "manual")
        case GuardrailTripped():
            own = items_of(version, event, old.agent, None)
            new.settled = old.settled.plus(own)
            if event.rewrite is not None:
                _rewrite(new, version, event.rewrite, first=len(own), everywhere=True)
        case _:
            pass
    return new


def _take(new: Placement, *, everything: bool) -> None:
    """Settle the input that waits: for this run's next turn, or all of it."""
    if new.queue:
        taken = [item for item, later in new.queue if everything or not later]
        new.settled = new.settled.plus(taken)
        new.queue = () if everything else tuple(entry for entry in new.queue if entry[1])


def _answer(
    new: Placement, version: int, event: ToolReturned | ToolAbandoned | CallRefused | HandoffMade
) -> None:
    if event.call not in new.open:
        return
    (item,) = items_of(version, event, new.agent, None)
    tail = [*new.tail, item]
    if len(tail) > 1 and _place_in_response(tail[-1]) < _place_in_response(tail[-2]):
        tail.sort(key=_place_in_response)
    new.open = new.open - {event.call}
    if new.open:
        new.tail = tuple(tail)
    else:
        new.settled, new.tail = new.settled.plus(tail), ()


def _place_in_response(item: Item) -> int:
    assert item.answers is not None
    return item.answers.index


def _hand_over(new: Placement, waiting: Filtered | None, version: int, event: HandoffMade) -> None:
    new.agent = event.target
    if waiting is not None and waiting.call == event.call and new.rewrites:
        _rewrite(new, version, waiting.rewrite, first=0, puts_of=waiting.version)
    else:
        new.past = (*new.past, (version, new.settled))


def _rewrite(
    new: Placement,
    version: int,
    rewrite: Rewrite,
    *,
    first: int,
    puts_of: int | None = None,
    everywhere: bool = False,
) -> None:
    if not new.rewrites:
        return
    before = new.settled
    new.settled = rewritten(before, rewrite, past=new.past, version=puts_of or version, first=first)
    new.past = (*new.past, (version, before))
    if everywhere:
        new.past = _taken_out(new.past, before, new.settled)


def _taken_out(past: Past, before: View, after: View) -> tuple[tuple[int, View], ...]:
    """Take what a rewrite took out of a view out of every older one; what it edited stands edited there."""
    puts = {ref: item for item in after if _place(before, item) is None for ref in item.replaces}
    left = {ref for item in after if _place(before, item) is not None for ref in _stands_for(item)}
    gone = {ref for item in before for ref in _stands_for(item)} - left
    return tuple((version, _without(view, gone, puts) if gone else view) for version, view in past)


def _place(view: View, item: Item) -> int | None:
    return view.place_of(item.ref) if item.ref is not None else None


def _stands_for(item: Item) -> tuple[Ref, ...]:
    if item.ref is None:
        return item.replaces
    # An output that was made up for a call tells nothing of it.
    return (item.ref,) if is_made_up(item) else (item.ref, *item.replaces)


def _without(view: View, gone: Collection[Ref], puts: Mapping[Ref, Item]) -> View:
    """A view without what is gone, and what tells of it; what was made of it stands in its place, once."""
    out: list[Item] = []
    used: set[Ref | None] = set()
    changed = False
    for item in view:
        lost = [ref for ref in _stands_for(item) if ref in gone]
        if not lost:
            out.append(item)
            continue
        changed = True
        if (left := _rest_of(item, gone)) is not None:
            out.append(left)
        for put in (puts[ref] for ref in lost if ref in puts):
            # Beside a text that told of several items only a message can stand alone.
            if put.ref not in used and (item.ref in gone or put.type == "message"):
                used.add(put.ref)
                out.append(put)
    return View(out) if changed else view


def _rest_of(item: Item, gone: Collection[Ref]) -> Item | None:
    """What of a nest does not tell of what is gone; None of anything else: it cannot be taken apart."""
    if not item.lines or item.ref in gone:
        return None
    rest = part_of(
        item,
        lambda line: not any(ref in gone for ref in line.covers),
        covers=lambda ref: ref not in gone,
    )
    return msgspec.structs.replace(rest, ref=item.ref) if rest is not None else None
