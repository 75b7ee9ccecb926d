"""Filters: what those that come with it keep, how any is applied, and how it is recorded."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from msgspec import Raw, Struct

from batonlog.events import JSON, Record, Ref, UsageError
from batonlog.projections import (
    Filter,
    FilterInput,
    FilterOutput,
    History,
    Item,
    check_legal,
    drop_tools,
    keep_last,
    messages_only,
    session_history,
)
from batonlog.projections.filters import apply_filters, as_filters, describe
from batonlog.projections.selecting import whole_cuts

Log = Callable[..., tuple[Record, ...]]
Show = Callable[[Iterable[Item]], str]
Make = Callable[[str], list[Item]]


def given(items: Iterable[Item], *, split: int = 0) -> FilterInput[str]:
    return FilterInput(
        items,
        version=9,
        cause="handoff",
        session="s",
        context="the caller's",
        split=split,
        source="a",
        target="b",
        arguments={"why": "money"},
    )


# -- those that come with it


@pytest.mark.parametrize(
    ("history", "kept"),
    [
        ("u m", "u m"),
        ("u r c=x o=x m", "u m"),
        ("u r m c=x o=x", "u m"),
        ("c=x o=x", ""),
    ],
)
def test_messages_only_keeps_what_was_said(items: Make, show: Show, history: str, kept: str) -> None:
    assert show(messages_only(History(items(history)))) == kept


@pytest.mark.parametrize(
    ("history", "kept"),
    [
        ("u r m", "u r m"),
        ("u r c=x o=x r m", "u r m"),
        ("u r r c=x o=x m", "u m"),
        ("u m c=x o=x", "u m"),
        ("u r", "u"),
    ],
)
def test_drop_tools_keeps_messages_and_the_reasoning_before_them(
    items: Make, show: Show, history: str, kept: str
) -> None:
    assert show(drop_tools(History(items(history)))) == kept


@pytest.mark.parametrize("kind", ["web_search_call", "mcp_call", "hologram", "computer_call_output"])
def test_drop_tools_drops_items_of_every_other_type(items: Make, kind: str) -> None:
    other = Item(None, Raw(b'{"type":"%b","id":"x"}' % kind.encode()))
    assert list(drop_tools(History([*items("u"), other]))) == items("u")


def test_drop_tools_keeps_a_compaction() -> None:
    compacted = Item(None, Raw(b'{"type":"compaction","encrypted_content":"x"}'))
    assert list(drop_tools(History([compacted]))) == [compacted]


@pytest.mark.parametrize(
    ("history", "n", "kept"),
    [
        ("u m u m", 2, "u m"),
        ("u m", 5, "u m"),
        ("u m", 2, "u m"),
        ("u c=x o=x m", 2, "m"),
        ("u c=x o=x m", 3, "c o m"),
        ("u c=x c=y o=x o=y m", 4, "m"),
        ("u c=x c=y o=x o=y m", 5, "c c o o m"),
        ("u r m", 1, "r m"),
        ("u r c=x o=x", 2, "r c o"),
        ("u c=x o=x", 1, "c o"),
        ("u c=x u o=x", 1, "c u o"),
        ("c=x o=x", 1, "c o"),
    ],
)
def test_keep_last_never_splits_a_group(items: Make, show: Show, history: str, n: int, kept: str) -> None:
    result = keep_last(n)(History(items(history)))
    assert show(result) == kept
    assert not check_legal(result)


@pytest.mark.parametrize("n", [0, -1])
def test_keep_last_keeps_at_least_one(n: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        keep_last(n)


def test_a_history_can_be_cut_between_groups_alone(items: Make) -> None:
    assert whole_cuts(items("u r c=x o=x m")) == [0, 1, 4, 5]


def test_filters_leave_what_they_were_given_as_it_was(items: Make) -> None:
    history = History(items("u r c=x o=x m"), 7)
    before = list(history)
    for one in (messages_only, drop_tools, keep_last(1)):
        assert one(history).version == 7
    assert list(history) == before


# -- what a filter is given


def test_a_filters_input_is_the_history_and_says_why(items: Make) -> None:
    data = given(items("u m c=x o=x"), split=1)
    assert (data.cause, data.session, data.source, data.target) == ("handoff", "s", "a", "b")
    assert data.context == "the caller's"
    assert data.arguments == {"why": "money"}
    assert (list(data.earlier), list(data.latest)) == (list(data[:1]), list(data[1:]))


def test_filters_call_each_other_directly(items: Make, show: Show) -> None:
    data = given(items("u c=x o=x m"))
    assert show(keep_last(1)(messages_only(data))) == "m"


# -- applying


async def applied(filters: Any, items: Iterable[Item], *, split: int = 0) -> Sequence[Item]:
    return await apply_filters(filters, given(items, split=split))


async def kept_later(history: History) -> History:
    return messages_only(history)


def with_a_note(history: History) -> FilterOutput:
    yield from history
    yield {"role": "developer", "content": "a note"}


def one_message(history: History) -> FilterOutput:
    return ({"role": "user", "content": "all"} for _ in range(1))


class FirstOnly(Struct, frozen=True):
    async def __call__(self, history: History) -> History:
        return history[:1]


@pytest.mark.parametrize(
    ("one", "texts"),
    [
        (messages_only, ["user 0", "message 0.3"]),
        (kept_later, ["user 0", "message 0.3"]),
        (with_a_note, ["user 0", "", "done", "message 0.3", "a note"]),
        (one_message, ["all"]),
        (lambda history: [history[0]], ["user 0"]),
        (lambda history: tuple(history[:1].data), ["user 0"]),
        (partial(messages_only), ["user 0", "message 0.3"]),
        (FirstOnly(), ["user 0"]),
    ],
    ids=["function", "async", "generator", "new items", "lambda", "dicts", "partial", "async object"],
)
async def test_anything_that_makes_a_history_of_a_history_is_a_filter(
    items: Make, one: Filter[str], texts: list[str]
) -> None:
    assert [item.text for item in await applied(one, items("u c=x o=x m"))] == texts


async def test_a_sequence_applies_the_first_one_first(items: Make) -> None:
    result = await applied([keep_last(1), with_a_note], items("u m"))
    assert [item.text for item in result] == ["message 0.1", "a note"]


def test_each_filter_of_a_sequence_is_told_what_is_latest(log: Log, show: Show) -> None:
    seen: list[str] = []

    def spy(data: FilterInput[str]) -> FilterOutput:
        seen.append(f"{show(data.earlier)} | {show(data.latest)}")
        return data

    history = session_history(
        log("start a", "ask a", "answer m", "complete 3.0", "start a", "ask a", "answer c")
    )
    edited = [
        spy,
        lambda data: [item for item in data if item.role != "assistant"],
        spy,
        lambda data: [item.replace(content="x") if item.role == "user" else item for item in data],
        spy,
    ]
    asyncio.run(applied(edited, history, split=3))
    assert seen == ["u1.0 m3.0 u5.0 | c7.0", "u1.0 u5.0 | c7.0", "+ + | c7.0"]


async def test_context_and_arguments_reach_every_filter_of_a_sequence(items: Make) -> None:
    seen: list[object] = []

    def spy(data: FilterInput[str]) -> FilterOutput:
        seen.append((data.context, data.arguments, data.target))
        return data

    await applied([spy, spy], items("u"))
    assert seen == [("the caller's", {"why": "money"}, "b")] * 2


def returns(value: object) -> Callable[[History], Any]:
    def odd(history: History) -> object:
        return value

    return odd


async def _later() -> AsyncIterator[Item]:
    yield Item(None, Raw(b"{}"))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("text", "returned str, which is no history"),
        (b"bytes", "returned bytes, which is no history"),
        (None, "returned NoneType, which is no history"),
        (7, "returned int, which is no history"),
        ({"role": "user", "content": "x"}, "returned dict, which is no history"),
        ([], "left nothing to show"),
        (["text"], "str is no item"),
        ([None], "NoneType is no item"),
        ([{"role": "robot", "content": "x"}], "not 'robot'"),
        ([[{"role": "user", "content": "x"}]], "list is no item"),
    ],
)
async def test_what_is_no_history_is_an_error_that_names_the_filter(
    items: Make, value: object, says: str
) -> None:
    with pytest.raises(UsageError, match=f"filter odd .*{says}"):
        await applied(returns(value), items("u"))


async def test_an_async_generator_is_no_history(items: Make) -> None:
    with pytest.raises(UsageError, match="returned async_generator, which is no history"):
        await applied(returns(_later()), items("u"))


async def test_the_first_filter_of_a_sequence_that_leaves_nothing_is_named(items: Make) -> None:
    with pytest.raises(UsageError, match="filter odd left nothing"):
        await applied([returns([]), with_a_note], items("u"))


async def test_what_a_generator_raises_half_way_passes(items: Make) -> None:
    def breaks(history: History) -> Iterator[Item]:
        yield history[0]
        raise LookupError("half way")

    with pytest.raises(LookupError, match="half way"):
        await applied(breaks, items("u m"))


async def test_what_a_filter_awaits_may_raise(items: Make) -> None:
    async def breaks(history: History) -> History:
        raise LookupError("later")

    with pytest.raises(LookupError, match="later"):
        await applied(breaks, items("u"))


@pytest.mark.parametrize("none", ["default", [], [None], 7, [messages_only, "x"]])
def test_what_cannot_be_called_is_no_filter(none: Any) -> None:
    with pytest.raises(UsageError, match="is no filter"):
        as_filters(none)


# -- recorded as


def named(history: History, *, words: tuple[str, ...] = ()) -> History:
    return history


class Asked(Struct, frozen=True):
    words: tuple[str, ...]

    def __call__(self, history: History) -> History:
        return history


@dataclass(frozen=True)
class Dated:
    limit: int
    check: Callable[[str], bool] = str.isalpha

    def __call__(self, history: History) -> History:
        return history


@pytest.mark.parametrize(
    ("filters", "recorded"),
    [
        ([messages_only], ("messages_only", {})),
        ([keep_last(3)], ("keep_last", {"n": 3})),
        ([named], ("named", {})),
        ([partial(named, words=("a", "b"))], ("named", {"words": ["a", "b"]})),
        ([partial(partial(named, words=("a",)), words=("b",))], ("named", {"words": ["b"]})),
        ([Asked(("a",))], ("Asked", {"words": ["a"]})),
        ([Dated(3)], ("Dated", {"limit": 3, "check": "isalpha"})),
        ([lambda history: history], ("<lambda>", {})),
        (
            [messages_only, keep_last(3)],
            (
                "messages_only + keep_last",
                {
                    "filters": [
                        {"filter": "messages_only", "parameters": {}},
                        {"filter": "keep_last", "parameters": {"n": 3}},
                    ]
                },
            ),
        ),
    ],
)
def test_a_filter_is_recorded_by_its_name_and_parameters(
    filters: Sequence[Callable[..., object]], recorded: tuple[str, JSON]
) -> None:
    assert describe(filters) == recorded


def test_a_parameter_that_is_no_json_is_recorded_by_its_name() -> None:
    odd: Any = Ref
    assert describe([partial(named, words=odd)]) == ("named", {"words": "Ref"})
