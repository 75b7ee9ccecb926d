"""What the laws ask of records: values that can be compared, and what a provider would hold."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from tests.laws.play import play
from tests.laws.played import Played
from tests.laws.scripts import JSON, Script

from batonlog.events import (
    Event,
    GuardrailTripped,
    HandoffFiltered,
    HistoryRewritten,
    ModelRequested,
    ModelResponded,
    Record,
    Ref,
    Rewrite,
)
from batonlog.events.codec import encode
from batonlog.events.facts import raw
from batonlog.events.values import dump, load
from batonlog.projections import Item
from batonlog.projections.items import items_of
from batonlog.projections.placement import Placement, place
from batonlog.projections.view import View


def played(script: Script, **options: Any) -> tuple[Played, tuple[Record, ...]]:
    """Play a script, and return what was kept and the records."""

    async def both() -> tuple[Played, tuple[Record, ...]]:
        kept = await play(script, **options)
        return kept, await kept.records()

    return asyncio.run(both())


def bare(value: object) -> JSON:
    """Return a value as one that compares by its contents: states, placements, views, items."""
    match value:
        case View():
            return ("view", [bare(item) for item in value])
        case Item():
            return (
                "item",
                value.ref,
                bytes(value.held),
                value.agent,
                value.answers,
                value.issuer,
                value.replaces,
            )
        case Raw():
            return bytes(value)
        case Event():
            return (type(value).__name__, encode(value))
        case Rewrite():
            return ("rewrite", value.filter, [bytes(part) for part in raw(value, "operations")])
        case Ref():
            return value
        case Struct():
            return (
                type(value).__name__,
                [(name, bare(getattr(value, name))) for name in value.__struct_fields__],
            )
        case dict():
            return [(bare(key), bare(inner)) for key, inner in value.items()]
        case list() | tuple():
            return [bare(inner) for inner in value]
        case frozenset():
            return sorted(map(bare, value))
        case _:
            return value


def shown(history: Iterable[Item]) -> list[JSON]:
    """Return the items of a history as values that compare."""
    return [bare(item) for item in history]


def without_rewrites(records: Sequence[Record]) -> Placement:
    """Fold the records as if no rewrite had ever been recorded, and rewrites counted."""
    state = Placement()
    for record in records:
        match record.event:
            case HistoryRewritten() | HandoffFiltered():
                continue
            case GuardrailTripped() as event if event.rewrite is not None:
                replaced: Any = msgspec.structs.replace
                tripped = replaced(event, rewrite=None)
                state = place(state, record.version, tripped)
            case event:
                state = place(state, record.version, event)
    return state


def said(records: Iterable[Record]) -> dict[Ref, bytes]:
    """Return every item of every event that is no rewrite, by its ref."""
    found: dict[Ref, bytes] = {}
    for record in records:
        for item in items_of(record.version, record.event, None, None):
            assert item.ref is not None
            assert item.ref not in found
            found[item.ref] = bytes(item.held)
    return found


def put(records: Iterable[Record]) -> dict[Ref, bytes]:
    """Return every item that a rewrite puts in, by its ref."""
    found: dict[Ref, bytes] = {}
    for record in records:
        match record.event:
            case HistoryRewritten(rewrite=rewrite) | HandoffFiltered(rewrite=rewrite):
                first = 0
            case GuardrailTripped(rewrite=Rewrite() as rewrite):
                first = len(items_of(record.version, record.event, None, None))
            case _:
                continue
        n = first
        for operation in raw(rewrite, "operations"):
            kind, item, *_ = load(operation)
            if kind == "put":
                found[Ref(record.version, n)] = dump(item)
                n += 1
    return found


class Provider:
    """What a provider would hold: of each stored response, the items it was shown and its own."""

    def __init__(self) -> None:
        self.held: dict[str, list[Ref | None]] = {}
        self._asked: dict[int, tuple[bool, list[Ref | None]]] = {}

    def hear(self, record: Record, view: Sequence[Item]) -> None:
        """Take in one record; `view` is the settled view after it."""
        refs = [item.ref for item in view]
        match record.event:
            case ModelRequested() as event:
                before: list[Ref | None] = []
                if event.previous_response_id is not None:
                    before = self.held[event.previous_response_id]
                sent = refs[event.first :]
                assert sent, f"request {record.version} sends nothing"
                assert [*before, *sent] == refs, f"request {record.version}: held and sent are not the view"
                self._asked[record.version] = (event.stored, refs)
            case ModelResponded() as event:
                stored, shown = self._asked[event.request]
                own = [Ref(record.version, n) for n in range(len(raw(event, "output")))]
                if stored and event.response_id is not None:
                    self.held[event.response_id] = [*shown, *own]
            case _:
                pass


def views(records: Sequence[Record]) -> list[Placement]:
    """Return the placement after each record."""
    state, found = Placement(), []
    for record in records:
        state = place(state, record.version, record.event)
        found.append(state)
    return found
