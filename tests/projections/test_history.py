"""Histories as values, and as of a version."""

from collections.abc import Callable, Iterable

import pytest

from batonlog.events import Record
from batonlog.projections import History, Item, model_history, session_history

Log = Callable[..., tuple[Record, ...]]
Show = Callable[[Iterable[Item]], str]
Make = Callable[[str], list[Item]]


def test_a_history_is_a_sequence_of_items(items: Make) -> None:
    history = History(items("u m u"), 4)
    assert len(history) == 3
    assert history[-1] in history
    assert [item.role for item in reversed(history)] == ["user", "assistant", "user"]


def test_slicing_a_history_gives_a_history_of_the_same_version(items: Make) -> None:
    part = History(items("u m u"), 4)[1:]
    assert isinstance(part, History)
    assert (len(part), part.version) == (2, 4)


def test_the_data_of_a_history_is_fresh_each_time(items: Make) -> None:
    history = History(items("u"))
    history.data[0]["content"] = "changed"
    assert history.data[0]["content"] == "user 0"


def test_histories_are_equal_if_their_items_are(items: Make) -> None:
    assert History(items("u m"), 1) == History(items("u m"), 2)
    assert History(items("u m")) != History(items("u"))
    assert hash(History(items("u"))) == hash(History(items("u")))
    assert History() != []


def test_a_history_shows_its_items(items: Make) -> None:
    assert repr(History(items("u"), 4)) == "History([Item(new user 'user 0')], version=4)"


@pytest.mark.parametrize("history", [session_history, model_history])
def test_a_history_of_no_records_is_empty(history: Callable[[Iterable[Record]], History]) -> None:
    assert len(history([])) == 0
    assert history([]).version == 0


def test_a_history_is_as_of_a_version_and_says_which(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer m", "complete 3.0", "start a")
    past = model_history(records, at=3)
    assert (show(past), past.version) == ("u1.0 m3.0", 3)


def test_a_version_that_has_not_come_yet_shows_what_there_is(log: Log) -> None:
    assert model_history(log("start a"), at=99).version == 1


def test_before_the_first_version_there_is_nothing(log: Log) -> None:
    assert len(session_history(log("start a"), at=0)) == 0


def test_records_may_come_from_an_iterator(log: Log, show: Show) -> None:
    assert show(session_history(iter(log("start a", "ask a", "answer m")))) == "u1.0 m3.0"


def test_no_rewrite_changes_the_session(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer m", "rewrite: put u=short", "rewrite: take 0 0")
    assert show(session_history(records)) == "u1.0 m3.0"
    assert show(model_history(records)) == ""


def test_no_later_rewrite_brings_back_what_an_earlier_one_removed(log: Log, show: Show) -> None:
    records = log("start a", "ask a", "answer m", "rewrite: take 1 2", "rewrite: take 0 9")
    assert show(model_history(records)) == "m3.0"
