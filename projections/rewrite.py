"""A rewrite as data: applying one, and finding the one that leads from a view to a filter's output.

`["take", start, stop]` takes items of the settled view that the event finds, its own items
included; `["take", start, stop, at]` takes them of the settled view that the event at that
version found. `["put", item]` and `["put", item, covers]` put a new item in; `covers` are the
refs of what it was made from, and without it the item counts as made from all that the filter
saw. `["put", item, covers, lines]` puts in a nest (lines.py): a message, and how many of the
covers each part of its content tells. Positions, not ids: so it replays without the filter, and
no payload holds its own version.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batonlog.events import JSON, Ref, Rewrite, UsageError
from batonlog.events.facts import raw
from batonlog.events.values import dump, load
from batonlog.projections.items import ANSWERED_BY, Item, head_of, is_known_to_maker
from batonlog.projections.view import View

Past = Sequence[tuple[int, View]]


class _Operation(Struct, array_like=True, gc=False):
    kind: str
    first: Raw
    second: Raw = Raw()  # msgspec knows no union of Raw and None
    third: int | tuple[int, ...] | None = None


_operations: msgspec.json.Decoder[_Operation] = msgspec.json.Decoder(_Operation)


def rewritten(before: View, rewrite: Rewrite, *, past: Past, version: int, first: int) -> View:
    """Return the view that a rewrite makes of the settled view `before`.

    Args:
        past: settled views that earlier rewrites found, by version.
        version: the event that holds the puts.
        first: index of the first put: after the event's own items.

    Total: what is out of range is left out.
    """
    out: list[Item] = []
    index = first
    sources = _Sources(before, past)
    for data in raw(rewrite, "operations"):
        operation = _read(data)
        if operation is None:
            continue
        kind, one, two, three = operation
        if kind == "take":
            source: Sequence[Item] = before if three is None else _past_view(past, three)
            out.extend(source[one:two])
        elif kind == "put":
            out.append(_put(one, two, three, sources, Ref(version, index)))
            index += 1
    return View(out)


def _read(data: Any) -> tuple[str, Any, Any, Any] | None:
    """Kind, start or item, stop or covers, and version or lines of an operation; None for what is none."""
    held = data if type(data) is Raw else Raw(dump(data))
    try:
        operation = _operations.decode(held)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError:  # lone surrogates in the item that is put
        values: list[Any] = [*load(held), None, None]
        return (
            ("put", Raw(dump(values[1])), values[2], tuple(values[3] or ())) if values[0] == "put" else None
        )
    if operation.kind == "put":
        covers = load(operation.second) if bytes(operation.second) else None
        lines = operation.third if isinstance(operation.third, tuple) else ()
        return "put", operation.first, covers, lines
    start, stop = load(operation.first), load(operation.second) if bytes(operation.second) else None
    if operation.kind != "take" or not (isinstance(start, int) and isinstance(stop, int)):
        return None
    return "take", start, stop, operation.third if isinstance(operation.third, int) else None


def _past_view(past: Past, at: int) -> Sequence[Item]:
    for version, view in reversed(past):
        if version == at:
            return view
    return ()


class _Sources:
    """The items that puts were made from, found when one is looked for."""

    def __init__(self, before: View, past: Past) -> None:
        self._before = before
        self._past = past
        self._known: dict[Ref, Item] | None = None

    def get(self, ref: Ref) -> Item | None:
        """Return what was recorded there, or what stands for it alone."""
        if self._known is None:
            self._known = _by_ref(self._before)
        return self._known.get(ref) or self._in_the_past(ref)

    def _in_the_past(self, ref: Ref) -> Item | None:
        """A filter may edit what it finds in an earlier view."""
        for _, view in reversed(self._past):
            if (place := view.place_of(ref)) is not None:
                return view[place]
        return None


def _by_ref(view: View) -> dict[Ref, Item]:
    known: dict[Ref, Item] = {}
    for item in view:
        if item.lines:
            known.update((source.ref, source) for source in item.sources if source is not None and source.ref)
        elif len(item.replaces) == 1:
            known.setdefault(item.replaces[0], item)
    known.update((item.ref, item) for item in view if item.ref is not None)
    return known


def _put(held: Raw, covers: JSON, lines: tuple[int, ...], sources: _Sources, ref: Ref) -> Item:
    refs = _refs(covers)
    if lines and sum(lines) == len(refs):
        return Item(ref, held, replaces=refs, lines=lines, sources=_lines(refs, lines, sources))
    source = sources.get(refs[0]) if len(refs) == 1 else None
    if source is None:
        return Item(ref, held, replaces=refs)
    head = head_of(held)
    # An edited item still answers its call, and is still its agent's; an output may be made up for its call.
    answers = source.ref if ANSWERED_BY.get(source.type) == head.type else source.answers
    issuer = source.issuer if is_known_to_maker(source, head) else None
    return Item(ref, held, source.agent, answers, issuer, refs, source.thought)


def _lines(refs: Sequence[Ref], lines: Sequence[int], sources: _Sources) -> tuple[Item | None, ...]:
    """The item whose line each part of a nest is."""
    stops = accumulate(lines)
    return tuple(
        sources.get(refs[stop - 1]) if n == 1 else None for n, stop in zip(lines, stops, strict=True)
    )


def _refs(covers: JSON) -> tuple[Ref, ...]:
    try:
        return msgspec.convert(covers or (), tuple[Ref, ...])
    except msgspec.ValidationError:
        return ()


def operations(before: Sequence[Item], after: Iterable[Item], *, past: Past = ()) -> list[JSON] | None:
    """Return the operations that lead from a settled view to a filter's output, or None for the same.

    Items are compared by ref. Raises UsageError for an item that is not from here, or twice.
    """
    places = {item.ref: n for n, item in enumerate(before)}
    out: list[JSON] = []
    seen: set[Ref] = set()
    for item in after:
        if item.ref is None:
            out.append(_put_operation(item))
            continue
        if item.ref in seen:
            raise UsageError(f"item {item.ref} appears twice in what the filter returned")
        seen.add(item.ref)
        if (place := places.get(item.ref)) is not None and before[place] == item:
            _take(out, place, None)
        elif (found := _find(item, past)) is not None:
            _take(out, found[1], found[0])
        else:
            raise UsageError(
                f"item {item.ref} is not in the history that the filter was given: is it of another session?"
            )
    return None if out == [["take", 0, len(before)]] else out


def _put_operation(item: Item) -> list[JSON]:
    put: list[JSON] = ["put", item.held]
    if not item.replaces and not item.lines:
        return put
    put.append([[ref.version, ref.index] for ref in item.replaces])
    return [*put, list(item.lines)] if item.lines else put


def _find(item: Item, past: Past) -> tuple[int, int] | None:
    assert item.ref is not None
    for version, view in reversed(past):
        place = view.place_of(item.ref)
        if place is not None and view[place] == item:
            return version, place
    return None


def _take(out: list[JSON], place: int, at: int | None) -> None:
    """Take one more item: longer, if it goes on where the last operation stopped."""
    where = [] if at is None else [at]
    if out and out[-1][0] == "take" and out[-1][2] == place and out[-1][3:] == where:
        out[-1][2] = place + 1
    else:
        out.append(["take", place, place + 1, *where])
