"""`own_view`: an agent that control comes back to remembers what it saw itself."""

from batonlog.events import Ref
from batonlog.projections.filters import FilterInput
from batonlog.projections.history import History
from batonlog.projections.items import Item


def own_view(history: FilterInput[object], /) -> History:
    """Show the target its view as it stood when it last handed off, and what was said since.

    It is the one filter that brings back what a rewrite took out of the view. What a
    guardrail or somebody's edit took out is out of every older view too. To an agent that never
    handed off, the view is shown as it is.

    Nothing is told twice: what was folded together with later items is told by the fold alone.
    """
    own = history.own
    if own is None:
        return history[:]
    since = [item for item in history if _is_since(item, own.version)]
    told = {ref for item in since for ref in (*item.replaces, item.ref)}
    before = [item for item in own if item.ref not in told and told.isdisjoint(item.replaces)]
    return History([*before, *since], history.version)


def _is_since(item: Item, version: int) -> bool:
    """Whether an item tells anything that was said after that version."""
    covers = item.covers or (Ref(version + 1, 0),)  # a filter's own word, made just now
    return any(ref.version > version for ref in covers)
