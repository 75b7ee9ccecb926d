"""Users' own folds: the same records, the same state."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from batonlog.events import Record

_S = TypeVar("_S")


class Projection(ABC, Generic[_S]):
    """A pure fold: same records, same state. No clock, no I/O."""

    @abstractmethod
    def initial(self) -> _S:
        """Return the state before the first record."""

    @abstractmethod
    def apply(self, state: _S, record: Record) -> _S:
        """Return the state after a record, leaving `state` as it was."""

    def key(self, record: Record) -> str | None:
        """Which state of a ReadModel this record changes; None for no state. Default: one state, ""."""
        return ""


def fold(
    projection: Projection[_S], records: Iterable[Record], *, at: int | None = None, state: _S | None = None
) -> _S:
    """Return the state after the records, up to version `at`; goes on from `state` if given."""
    value = projection.initial() if state is None else state
    for record in records:
        if at is not None and record.version > at:
            break
        value = projection.apply(value, record)
    return value
