"""A view: settled items as a value that grows cheaply.

A view is a shared sheet and a length. Adding extends the sheet when nobody else has, and
copies it when somebody did; so old values stay good, a speculative fold can be thrown away,
and a run costs what its events cost. What is derived from the items (their wire form, the
running digest) is kept on the sheet too: it depends on the items before it alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import overload

from batonlog.events import Ref
from batonlog.projections.items import Item
from batonlog.projections.wire import Former, keeps_id

_EMPTY = bytes(32)


class _Sheet:
    __slots__ = (
        "digested",
        "double",
        "formed",
        "former",
        "ids",
        "indexed",
        "items",
        "looked",
        "places",
        "sizes",
    )

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.former = Former()
        self.formed: list[bytes] = []
        self.digested: tuple[int, bytes] = (0, _EMPTY)
        self.ids: set[str] = set()
        """Those that go out, of the items that were looked at."""
        self.looked = 0
        self.places: dict[Ref, int] = {}
        """Place of each item that was indexed so far, by its ref."""
        self.indexed = 0
        self.sizes = [0]
        """Bytes of the first n items, for each n so far."""
        self.double: int | None = None
        """Place of the first item whose id stood there before."""


class View(Sequence[Item]):
    """Settled items, in order. Immutable."""

    __slots__ = ("_n", "_sheet")

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._sheet = _Sheet(list(items))
        self._n = len(self._sheet.items)

    def plus(self, items: Sequence[Item]) -> "View":
        """Return this view with items added."""
        if not items:
            return self
        sheet = self._sheet
        if len(sheet.items) == self._n:
            sheet.items.extend(items)
        elif not self._goes_on_with(items):  # another value went on from here, elsewhere
            sheet = _Sheet(sheet.items[: self._n])
            sheet.items.extend(items)
        return _view(sheet, self._n + len(items))

    def _goes_on_with(self, items: Sequence[Item]) -> bool:
        """Whether these very items stand next on the sheet."""
        standing = self._sheet.items[self._n : self._n + len(items)]
        return len(standing) == len(items) and all(a is b for a, b in zip(standing, items, strict=True))

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._n)
            return self._sheet.items[start:stop] if step == 1 else self._sheet.items[: self._n][index]
        if not -self._n <= index < self._n:
            raise IndexError(index)
        return self._sheet.items[index % self._n]

    def __iter__(self) -> Iterator[Item]:
        items = self._sheet.items
        for n in range(self._n):
            yield items[n]

    def place_of(self, ref: Ref) -> int | None:
        """Return where an item stands, or None."""
        sheet = self._sheet
        for n in range(sheet.indexed, self._n):
            found = sheet.items[n].ref
            assert found is not None
            sheet.places[found] = n
        sheet.indexed = max(sheet.indexed, self._n)
        place = sheet.places.get(ref)
        return place if place is not None and place < self._n else None

    def digest(self) -> bytes:
        """Return the running digest: sha256 of the one before and the item, for each item."""
        sheet = self._sheet
        n, value = sheet.digested
        if n > self._n:
            n, value = 0, _EMPTY
        for item in sheet.items[n : self._n]:
            assert item.ref is not None
            value = sha256(b"%b%d.%d:%b" % (value, item.ref.version, item.ref.index, item.held)).digest()
        sheet.digested = (self._n, value)
        return value

    def size(self) -> int:
        """Return the bytes of all items, as they are recorded."""
        sheet = self._sheet
        for item in sheet.items[len(sheet.sizes) - 1 :]:
            sheet.sizes.append(sheet.sizes[-1] + len(item.held))
        return sheet.sizes[self._n]

    def repeats_an_id(self) -> bool:
        """Return whether two items would go out under one id, as some models make them."""
        sheet = self._sheet
        while sheet.double is None and sheet.looked < self._n:
            item = sheet.items[sheet.looked]
            if item.head.id is not None and keeps_id(item):
                if item.head.id in sheet.ids:
                    sheet.double = sheet.looked
                sheet.ids.add(item.head.id)
            sheet.looked += 1
        return sheet.double is not None and sheet.double < self._n

    def wire(self, first: int = 0) -> Sequence[bytes]:
        """Return the items from `first` as they go to a provider that is sent the whole view."""
        sheet = self._sheet
        for item in sheet.items[len(sheet.formed) : self._n]:
            sheet.formed.append(sheet.former.form(item))
        return sheet.formed[first : self._n]


def _view(sheet: _Sheet, n: int) -> View:
    view = View.__new__(View)
    view._sheet = sheet
    view._n = n
    return view
