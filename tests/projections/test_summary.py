"""`replace_with_summary`: what is older becomes one message, made by a function that may ask a model."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from batonlog.events import Record, Ref, Usage, UsageError
from batonlog.projections import FilterInput, History, Item, Summary, model_history, replace_with_summary
from batonlog.projections.filters import apply_filters, describe
from batonlog.projections.items import as_item

Log = Callable[..., tuple[Record, ...]]

TALK = (
    "start a",
    "ask a",
    "answer m",
    "complete 3.0",
    "start a",
    "ask a",
    "answer c",
    "return 7.0",
    "ask a",
    "answer m",
)


def given(items: Iterable[Item]) -> FilterInput[object]:
    return FilterInput(items, version=20, cause="compaction", session="s", context=None, split=0)


def applied(filters: Any, data: FilterInput[object]) -> list[Item]:
    return list(asyncio.run(apply_filters(filters, data)))


async def in_short(history: History) -> str:
    return f"{len(history)} things"


def test_all_but_the_last_turns_become_a_message(log: Log) -> None:
    data = given(model_history(log(*TALK)))
    summary, *rest = applied(replace_with_summary(in_short, keep_turns=2), data)
    assert (summary.role, summary.text) == ("assistant", "2 things")
    assert summary.replaces == (Ref(1, 0), Ref(3, 0))
    assert rest == list(data[2:])


def test_with_no_turns_to_keep_everything_is_summarised(log: Log) -> None:
    (summary,) = applied(replace_with_summary(in_short, keep_turns=0), given(model_history(log(*TALK))))
    assert summary.text == "6 things"


def test_while_nothing_is_older_nothing_changes(log: Log) -> None:
    data = given(model_history(log(*TALK)))
    assert list(applied(replace_with_summary(in_short, keep_turns=3), data)) == list(data)


def test_a_summary_alone_is_not_summarised_again(log: Log) -> None:
    records = log(*TALK, "complete 10.0", "rewrite: put m=short 1.0 3.0; take 2 6")
    data = given(model_history(records))
    assert list(applied(replace_with_summary(in_short), data)) == list(data)


def test_what_it_cost_is_told() -> None:
    cost = Usage(requests=1, total_tokens=9)

    async def ask(history: History) -> str:
        return Summary("short", model="small", usage=cost)

    data = given([Item(Ref(1, 0), as_item({"role": "user", "content": "hi"}).held)])
    applied([lambda history: history, replace_with_summary(ask, keep_turns=0)], data)
    assert data.spent == (("small", cost),)


@pytest.mark.parametrize("text", ["", None, 7])
def test_what_is_no_summary_is_refused(log: Log, text: Any) -> None:
    async def broken(history: History) -> str:
        return text  # type: ignore[no-any-return]

    with pytest.raises(UsageError, match="not a text"):
        applied(replace_with_summary(broken), given(model_history(log(*TALK))))


def test_what_the_function_raises_passes(log: Log) -> None:
    async def broken(history: History) -> str:
        raise ConnectionError("down")

    with pytest.raises(ConnectionError, match="down"):
        applied(replace_with_summary(broken), given(model_history(log(*TALK))))


def test_it_is_recorded_by_its_function() -> None:
    one = replace_with_summary(in_short, keep_turns=3)
    assert describe([one]) == ("replace_with_summary", {"summarise": "in_short", "keep_turns": 3})


def test_less_than_no_turns_is_refused() -> None:
    with pytest.raises(UsageError, match="keep_turns=-1"):
        replace_with_summary(in_short, keep_turns=-1)
