"""Views: values that grow cheaply, with what is derived from their items."""

from collections.abc import Callable

import pytest
from msgspec import Raw

from batonlog.events import Ref
from batonlog.projections import Item
from batonlog.projections.view import View


def numbered(*numbers: int) -> list[Item]:
    return [Item(Ref(n, 0), Raw(b'{"role":"user","content":"%d"}' % n)) for n in numbers]


def test_a_view_that_grew_leaves_the_old_one_as_it_was() -> None:
    old = View(numbered(1))
    new = old.plus(numbered(2))
    assert ([item.text for item in old], [item.text for item in new]) == (["1"], ["1", "2"])


def test_two_views_may_go_on_from_one() -> None:
    old = View(numbered(1))
    left, right = old.plus(numbered(2)), old.plus(numbered(3))
    assert [item.text for item in left] == ["1", "2"]
    assert [item.text for item in right] == ["1", "3"]
    assert [item.text for item in left.plus(numbered(4))] == ["1", "2", "4"]


def test_adding_nothing_is_the_same_view() -> None:
    view = View(numbered(1))
    assert view.plus([]) is view


def test_a_view_reads_like_a_sequence() -> None:
    view = View(numbered(1, 2, 3, 4)).plus(numbered(5))
    old = View(numbered(1, 2, 3))
    old.plus(numbered(4))
    assert view[-1].text == "5"
    assert [item.text for item in view[1:3]] == ["2", "3"]
    assert [item.text for item in view[::-2]] == ["5", "3", "1"]
    assert [item.text for item in old[::-1]] == ["3", "2", "1"]
    assert [item.text for item in old[1:]] == ["2", "3"]


@pytest.mark.parametrize("index", [3, -4])
def test_there_is_nothing_beyond_a_views_end(index: int) -> None:
    view = View(numbered(1, 2, 3))
    view.plus(numbered(4))
    with pytest.raises(IndexError):
        view[index]


def test_the_digest_is_that_of_the_items_however_they_came() -> None:
    grown = View(numbered(1)).plus(numbered(2)).plus(numbered(3))
    assert grown.digest() == View(numbered(1, 2, 3)).digest()


def test_the_digest_of_an_old_view_is_found_after_a_longer_ones() -> None:
    old = View(numbered(1))
    before = old.digest()
    new = old.plus(numbered(2))
    assert new.digest() != before
    assert old.digest() == before


@pytest.mark.parametrize(
    "other",
    [
        lambda: numbered(1),
        lambda: numbered(2, 1),
        lambda: [Item(Ref(1, 1), numbered(1)[0].held), *numbered(2)],
        lambda: [Item(Ref(1, 0), Raw(b"{}")), *numbered(2)],
    ],
    ids=["fewer", "another order", "another ref", "other bytes"],
)
def test_another_view_has_another_digest(other: Callable[[], list[Item]]) -> None:
    assert View(other()).digest() != View(numbered(1, 2)).digest()


def test_the_wire_form_from_an_item_on_is_the_rest_of_the_whole() -> None:
    view = View(numbered(1, 2, 3))
    assert view.wire(1) == view.wire()[1:]


def test_the_wire_form_of_an_old_view_ends_where_it_ends() -> None:
    old = View(numbered(1))
    new = old.plus(numbered(2))
    assert len(new.wire()) == 2
    assert len(old.wire()) == 1
