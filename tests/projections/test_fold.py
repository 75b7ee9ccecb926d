"""Users' own folds."""

from collections.abc import Callable

import pytest

from batonlog.events import NoteAdded, Record
from batonlog.projections import Projection, fold

Log = Callable[..., tuple[Record, ...]]


class Tags(Projection[tuple[str, ...]]):
    def initial(self) -> tuple[str, ...]:
        return ()

    def apply(self, state: tuple[str, ...], record: Record) -> tuple[str, ...]:
        return (*state, record.type)


def test_a_fold_applies_every_record_in_order(log: Log) -> None:
    assert fold(Tags(), log("start a", "ask a")) == ("run.started", "model.requested")


def test_a_fold_is_as_of_a_version(log: Log) -> None:
    assert fold(Tags(), log("start a", "ask a"), at=1) == ("run.started",)


def test_a_fold_of_nothing_is_the_initial_state() -> None:
    assert fold(Tags(), []) == ()


def test_a_fold_goes_on_from_a_state(log: Log) -> None:
    records = log("start a", "ask a", "answer m")
    assert fold(Tags(), records[1:], state=fold(Tags(), records[:1])) == fold(Tags(), records)


def test_a_fold_goes_on_from_a_state_that_is_false(log: Log) -> None:
    class Count(Projection[int]):
        def initial(self) -> int:
            raise AssertionError("there is a state already")

        def apply(self, state: int, record: Record) -> int:
            return state + isinstance(record.event, NoteAdded)

    assert fold(Count(), log("note n v"), state=0) == 1


def test_every_record_changes_the_one_state_by_default(log: Log) -> None:
    assert [Tags().key(record) for record in log("start a", "ask a")] == ["", ""]


def test_a_projection_says_how_it_begins_and_goes_on() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Projection()  # type: ignore[abstract]
