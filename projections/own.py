"""`own_view`: an agent that control comes back to remembers what it saw itself."""

from collections.abc import Collection, Sequence

from batonlog.events import Ref
from batonlog.projections.filters import FilterInput
from batonlog.projections.history import History
from batonlog.projections.items import Item, is_made_up
from batonlog.projections.legality import untorn, violations
from batonlog.projections.lines import part_of


def own_view(history: FilterInput[object], /) -> History:
    """Show the target its view as it stood when it last handed off, and what was said since.

    It is the one filter that brings back what a rewrite took out of the view. What a
    guardrail or somebody's edit took out is out of every older view too. To an agent that never
    handed off, the view is shown as it is.

    Nothing is told twice: of a nest only the lines stay that tell what was said since, and what a
    summary tells together with later items is told by the summary alone.
    """
    own = history.own
    if own is None:
        return history[:]
    found = (_since(item, own.version) for item in history)
    since = [item for item in found if item is not None]
    told = {ref for item in since for ref in (*item.replaces, item.ref)}
    left = (_untold(item, told) for item in own)
    before = untorn(own, History(item for item in left if item is not None))
    return History([*before, *_made_up_for(before, history), *since], history.version)


def _made_up_for(before: History, history: History) -> list[Item]:
    """The outputs that were made up since for calls of a view that have none in it."""
    faults = violations(list(before), None)
    lacking = {fault.item.ref for fault in faults if fault.rule == "call_without_output"}
    return [item for item in history if is_made_up(item) and item.answers in lacking]


def _since(item: Item, version: int) -> Item | None:
    """An item, or the lines of a nest, that tell anything which was said after that version."""
    if not item.lines:
        return item if not item.covers or _is_later(item.covers, version) else None
    return part_of(
        item,
        lambda line: not line.covers or _is_later(line.covers, version),
        covers=lambda ref: ref.version > version,
    )


def _untold(item: Item, told: Collection[Ref | None]) -> Item | None:
    """An item, or the lines of a nest, that nothing tells which was said since."""
    if item.ref in told:
        return None
    if not item.lines:
        return item if not any(ref in told for ref in item.replaces) else None
    return part_of(
        item,
        lambda line: not any(ref in told for ref in line.covers),
        covers=lambda ref: ref not in told,
    )


def _is_later(covers: Sequence[Ref], version: int) -> bool:
    return any(ref.version > version for ref in covers)
