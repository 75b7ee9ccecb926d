"""`own_view`: what an agent saw when it last handed off, and what was said since."""

from collections.abc import Callable, Iterable

import msgspec
import pytest

from batonlog.events import Record, Ref
from batonlog.projections import FilterInput, History, Item, model_history, nest_history, own_view
from batonlog.projections.items import as_item
from batonlog.projections.state import run_state

Log = Callable[..., tuple[Record, ...]]
Show = Callable[[Iterable[Item]], str]


def given(records: tuple[Record, ...], *, own: int | None) -> FilterInput[object]:
    """The view as it stands, and the view that the target had when it handed off at `own`."""
    state = run_state(records)
    mine = next((view for version, view in state.place.past if version == own), None)
    return FilterInput(
        state.place.settled,
        version=state.version,
        cause="handoff",
        session="s",
        context=None,
        split=0,
        own=History(mine, own or 0) if mine is not None else None,
    )


AWAY = ("start front", "ask front", "answer m c", "filter 3.1: take 0 1", "hand 3.1 front back")
"""Front says m3.0 and hands off; Back is shown u1.0 alone."""


def test_an_agent_that_never_handed_off_is_shown_the_view(log: Log, show: Show) -> None:
    records = log(*AWAY)
    assert show(own_view(given(records, own=None))) == "u1.0"


def test_an_agent_remembers_what_it_said_and_hears_what_was_said_since(log: Log, show: Show) -> None:
    records = log(*AWAY, "ask back", "answer m")
    assert show(own_view(given(records, own=5))) == "u1.0 m3.0 c3.1 o5.0 m7.0"


def test_what_the_view_holds_of_before_is_not_shown_twice(log: Log, show: Show) -> None:
    records = log("start front", "ask front", "answer m c", "hand 3.1 front back", "ask back", "answer m")
    assert show(own_view(given(records, own=4))) == "u1.0 m3.0 c3.1 o4.0 m6.0"


def test_what_a_filter_made_of_the_agents_own_words_is_left_out(log: Log, show: Show) -> None:
    records = log(
        "start front",
        "ask front",
        "answer m c",
        "filter 3.1: put m=short 1.0 3.0",
        "hand 3.1 front back",
        "ask back",
        "answer m",
    )
    assert show(model_history(records)) == "+4.0 m7.0"
    assert show(own_view(given(records, own=5))) == "u1.0 m3.0 c3.1 o5.0 m7.0"


def test_what_tells_old_and_new_together_is_told_once(log: Log, show: Show) -> None:
    records = log(*AWAY, "ask back", "answer m", "complete 7.0", "rewrite: put m=all 1.0 7.0")
    assert show(own_view(given(records, own=5))) == "m3.0 c3.1 o5.0 +9.0"


def test_of_an_agents_own_nest_the_lines_stay_that_nothing_tells_since(log: Log) -> None:
    records = log("start front", "ask front", "answer m c", "hand 3.1 front back", "ask back", "answer m")
    data = given(records, own=4)
    (made,) = nest_history(data[1:4])
    nest = msgspec.structs.replace(made, ref=Ref(4, 1))
    summary = {"type": "message", "role": "assistant", "content": "in short"}
    both = Item(None, as_item(summary).held, replaces=(Ref(3, 0), Ref(6, 0)))
    again = FilterInput(
        [both], version=6, cause="handoff", session="s", context=None, split=0, own=History([nest], 4)
    )
    before, since = own_view(again)
    assert since is both
    assert before.replaces == (Ref(3, 1), Ref(4, 0))
    assert "message 3.0" not in before.text


def test_a_filters_own_word_is_shown(log: Log, show: Show) -> None:
    records = log(*AWAY, "ask back", "answer m", "complete 7.0", "rewrite: take 0 2; put u=note")
    assert show(own_view(given(records, own=5))) == "u1.0 m3.0 c3.1 o5.0 m7.0 u9.0"


@pytest.mark.parametrize(
    ("edit", "left"),
    [
        ("edit: take 1 2", "m3.0 c3.1 o5.0 m7.0"),
        ("edit: put u=blank 1.0; take 1 2", "+9.0 m3.0 c3.1 o5.0 m7.0"),
        ("rewrite: take 1 2", "u1.0 m3.0 c3.1 o5.0 m7.0"),
    ],
)
def test_what_an_edit_took_out_is_out_of_older_views_and_a_compaction_is_not(
    log: Log, show: Show, edit: str, left: str
) -> None:
    records = log(*AWAY, "ask back", "answer m", "complete 7.0", edit)
    assert show(own_view(given(records, own=5))) == left


def test_of_a_nest_only_the_lines_stay_that_tell_what_was_said_since(log: Log, show: Show) -> None:
    records = log("start front", "ask front", "answer m c", "hand 3.1 front back", "ask back", "answer m")
    data = given(records, own=4)
    nested = FilterInput(
        nest_history(data), version=6, cause="handoff", session="s", context=None, split=0, own=data.own
    )
    *own, since = own_view(nested)
    assert show(own) == "u1.0 m3.0 c3.1 o4.0"
    assert since.replaces == (Ref(6, 0),)
    assert "message 6.0" in since.text
    assert "message 3.0" not in since.text
