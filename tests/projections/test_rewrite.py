"""Rewrites as data: what one makes of a view, and which one leads from a view to another."""

from collections.abc import Sequence

import pytest
from msgspec import Raw

from batonlog.events import JSON, Ref, Rewrite, UsageError
from batonlog.events.codec import decode, encode
from batonlog.events.facts import HistoryRewritten
from batonlog.projections import Item
from batonlog.projections.items import as_item
from batonlog.projections.rewrite import operations, rewritten
from batonlog.projections.view import View

MESSAGE: JSON = {"role": "user", "content": "new"}


def view(*numbers: int) -> View:
    return View(Item(Ref(n, 0), Raw(b'{"role":"user","content":"%d"}' % n), agent=f"a{n}") for n in numbers)


def stored(made: Sequence[JSON]) -> Rewrite:
    """As it is read from a log."""
    rewrite = Rewrite(filter="f", parameters={}, operations=tuple(made))
    event = decode(encode(HistoryRewritten(cause="manual", rewrite=rewrite)))
    assert isinstance(event, HistoryRewritten)
    return event.rewrite


def apply(before: View, made: Sequence[JSON], *, past: Sequence[tuple[int, View]] = ()) -> View:
    return rewritten(before, stored(made), past=past, version=9, first=0)


def texts(items: Sequence[Item]) -> list[str]:
    return [item.text for item in items]


# -- applying


def test_what_is_taken_keeps_its_place_in_the_log() -> None:
    assert [item.ref for item in apply(view(1, 2, 3), [["take", 1, 3]])] == [Ref(2, 0), Ref(3, 0)]


def test_what_is_put_in_stands_at_the_event_that_put_it() -> None:
    made = apply(view(1), [["put", MESSAGE], ["take", 0, 1], ["put", MESSAGE]])
    assert [item.ref for item in made] == [Ref(9, 0), Ref(1, 0), Ref(9, 1)]


def test_puts_are_numbered_after_the_events_own_items() -> None:
    (put,) = rewritten(view(1), stored([["put", MESSAGE]]), past=(), version=9, first=2)
    assert put.ref == Ref(9, 2)


def test_what_edits_one_item_is_still_its_agents() -> None:
    (put,) = apply(view(1, 2), [["put", MESSAGE, [[2, 0]]]])
    assert (put.agent, put.replaces) == ("a2", (Ref(2, 0),))


def test_what_is_made_from_several_is_nobodys() -> None:
    (put,) = apply(view(1, 2), [["put", MESSAGE, [[1, 0], [2, 0]]]])
    assert (put.agent, put.replaces) == (None, (Ref(1, 0), Ref(2, 0)))


def test_items_are_taken_from_the_view_as_it_stood_at_a_version() -> None:
    past = [(4, view(1, 2, 3)), (7, view(5))]
    assert texts(apply(view(6), [["take", 1, 3, 4], ["take", 0, 1]], past=past)) == ["2", "3", "6"]


@pytest.mark.parametrize(
    ("made", "left"),
    [
        ([["take", 0, 99]], ["1", "2"]),
        ([["take", 5, 9]], []),
        ([["take", 0, 1, 77]], []),
        ([["swap", 0, 1], ["take", 0, 1]], ["1"]),
        ([{"take": 1}, ["take", 0, 1]], ["1"]),
    ],
    ids=["too far", "outside", "a version that rewrote nothing", "an unknown word", "no operation"],
)
def test_what_makes_no_sense_is_left_out(made: list[JSON], left: list[str]) -> None:
    assert texts(apply(view(1, 2), made)) == left


def test_an_item_with_a_lone_surrogate_can_be_put_in() -> None:
    (put,) = apply(view(1), [["put", {"role": "user", "content": "\udfff"}, [[1, 0]]]])
    assert (put.text, put.replaces) == ("\udfff", (Ref(1, 0),))


# -- finding


def test_the_same_items_are_no_rewrite() -> None:
    before = view(1, 2)
    assert operations(before, list(before)) is None


def test_an_equal_copy_of_an_item_is_the_same_item() -> None:
    assert operations(view(1, 2), list(view(1, 2))) is None


def test_neighbours_are_taken_together() -> None:
    before = view(1, 2, 3, 4, 5)
    kept = [before[0], before[1], before[3], before[4]]
    assert operations(before, kept) == [["take", 0, 2], ["take", 3, 5]]


def test_another_order_is_a_rewrite() -> None:
    before = view(1, 2)
    assert operations(before, [before[1], before[0]]) == [["take", 1, 2], ["take", 0, 1]]


def test_nothing_left_is_a_rewrite_that_takes_nothing() -> None:
    assert operations(view(1), []) == []


def test_a_new_item_covers_nothing_in_particular() -> None:
    made = operations(view(1), [as_item(MESSAGE)])
    assert made is not None
    assert [part[0] for part in made] == ["put"]
    assert len(made[0]) == 2


def test_an_edited_item_covers_what_it_was_made_from() -> None:
    before = view(1, 2)
    made = operations(before, [before[1].replace(content="x")])
    assert made is not None
    assert made[0][2] == [[2, 0]]


def test_an_item_of_an_older_view_is_taken_from_there() -> None:
    past = [(4, view(1, 2, 3))]
    assert operations(view(5), [*past[0][1][:2], view(5)[0]], past=past) == [
        ["take", 0, 2, 4],
        ["take", 0, 1],
    ]


def test_an_item_twice_is_an_error() -> None:
    before = view(1)
    with pytest.raises(UsageError, match=r"item 1\.0 appears twice"):
        operations(before, [before[0], before[0]])


def test_an_item_of_another_session_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"item 7\.0 is not in the history .* another session"):
        operations(view(1), list(view(7)))


def test_an_item_of_another_session_at_a_place_that_is_taken_here_is_an_error() -> None:
    other = Item(Ref(1, 0), Raw(b'{"role":"user","content":"theirs"}'))
    with pytest.raises(UsageError, match="another session"):
        operations(view(1), [other])


def test_applying_what_was_found_gives_what_was_wanted() -> None:
    before, past = view(1, 2, 3), [(4, view(8, 9))]
    wanted = [past[0][1][1], before[2], before[0].replace(content="edited"), as_item(MESSAGE), before[1]]
    found = operations(before, wanted, past=past)
    assert found is not None
    made = apply(before, found, past=past)
    assert [item.data for item in made] == [item.data for item in wanted]
