"""Which call an output answers: by its ref where the log knows it, else the nearest one that waits.

Providers and local models reuse call ids, so an id alone tells nothing. Calls and outputs are
fed in the order of the view; legality and the wire form read them by this one rule.
"""

from batonlog.events import Ref
from batonlog.projections.items import ANSWERED_BY, OUTPUTS, Item


class Pairing:
    """The calls of a history so far, and those that still wait for an output."""

    __slots__ = ("_places", "_waiting", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, Item] = {}
        """Calls without an output so far, by their place."""
        self._places: dict[Ref, tuple[int, str]] = {}
        """Place of each call, and the type of what answers it."""
        self._waiting: dict[tuple[str, str], list[int]] = {}

    def call(self, place: int, item: Item) -> None:
        """Add a call."""
        self.waiting[place] = item
        for ref in (item.ref, *item.replaces):
            if ref is not None:
                self._places[ref] = (place, ANSWERED_BY[item.type])
        self._waiting.setdefault((ANSWERED_BY[item.type], called(item)), []).append(place)

    def answer(self, item: Item) -> tuple[int | None, bool]:
        """Return the place of the call that an output answers, and whether it was still waiting."""
        same = self._waiting.get((item.type, called(item)), [])
        place = None
        if item.answers is not None:
            place, kind = self._places.get(item.answers, (None, ""))
            if kind != item.type:  # a filter made something else of one of the two
                return None, False
        elif same:
            place = next((n for n in reversed(same) if n in self.waiting), same[-1])
        if place is None:
            return None, False
        return place, self.waiting.pop(place, None) is not None


def is_call(item: Item) -> bool:
    """Whether an output is owed for it."""
    return item.type in ANSWERED_BY


def is_output(item: Item) -> bool:
    """Whether it answers a call."""
    return item.type in OUTPUTS


def program_of(item: Item) -> str | None:
    """The provider's id of the program that made a call, and gets its output; None for none."""
    caller = item.head.caller
    found = caller.get("caller_id") if isinstance(caller, dict) else None
    return found if isinstance(found, str) else None


def called(item: Item) -> str:
    """The provider's id by which a call and its output name each other."""
    head = item.head
    match head.type:
        case "mcp_approval_request":
            return head.id or ""
        case "mcp_approval_response":
            return head.approval_request_id or ""
        case _:
            return head.call_id or head.id or ""
