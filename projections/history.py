"""The two histories: what was said, and what the model is shown."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from batonlog.events import JSON, Record
from batonlog.projections.items import Item
from batonlog.projections.placement import Placement, place


class History(Sequence[Item]):
    """Items in order: what the session holds or what a model is shown. Slicing gives a History."""

    __slots__ = ("_items", "version")

    version: int
    """The session's version that it shows."""

    def __init__(self, items: Iterable[Item] = (), version: int = 0) -> None:
        self._items = tuple(items)
        self.version = version

    @property
    def data(self) -> list[dict[str, JSON]]:
        """The plain Responses items."""
        return [item.data for item in self._items]

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> "History": ...
    def __getitem__(self, index: int | slice) -> "Item | History":
        if isinstance(index, slice):
            return History(self._items[index], self.version)
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return self._items == other._items

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"History({list(self._items)!r}, version={self.version})"


def session_history(records: Iterable[Record], *, at: int | None = None) -> History:
    """Everything that was said and done, as of version `at`. No rewrite changes it.

    It is a legal input for a model when no call is open.
    """
    return _history(Placement(rewrites=False), records, at)


def model_history(records: Iterable[Record], *, at: int | None = None) -> History:
    """What the model was shown at that version: the session, with every rewrite until then applied.

    At the version of a `model.requested` it is exactly what that request shows.
    """
    return _history(Placement(), records, at)


def _history(state: Placement, records: Iterable[Record], at: int | None) -> History:
    version = 0
    for record in records:
        if at is not None and record.version > at:
            break
        version = record.version
        state = place(state, version, record.event)
    return History(state.items(), version)
