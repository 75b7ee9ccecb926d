"""`check_filter`: what passes, how it looks, and how it says what it has found."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.errors import FailedHealthCheck, UnsatisfiedAssumption

from batonlog.events import UsageError
from batonlog.projections import (
    Filter,
    FilterInput,
    FilterOutput,
    History,
    Item,
    check_legal,
    drop_reasoning,
    drop_tools,
    keep_last,
    last_turns,
    messages_only,
    nest_history,
    only_agents,
    own_view,
    redact,
    repair,
    replace_with_summary,
)
from batonlog.projections import testing as public
from batonlog.projections.items import as_item
from batonlog.projections.testing import check_filter, filter_inputs
from batonlog.projections.testing.laws import fault_of
from batonlog.projections.testing.words import say_item, tell

FEW = settings(derandomize=True, database=None, deadline=None, max_examples=30)

Given = FilterInput[Any]


def told(filter: Any, **options: Any) -> str:
    """What is said of a bad filter."""
    with pytest.raises(AssertionError) as caught:
        check_filter(filter, **{"settings": FEW, **options})
    return str(caught.value)


async def summarise(older: History) -> str:
    await asyncio.sleep(0)
    return f"{len(older)} items"


async def later(history: Given) -> FilterOutput:
    await asyncio.sleep(0)
    return messages_only(history)


def developer_first(history: Given) -> FilterOutput:
    return [{"role": "developer", "content": f"Context: {history.context}"}, *history]


def split_texts(history: Given) -> FilterOutput:
    """A text and its images, apart."""
    for item in history:
        parts = item.data.get("content")
        if item.role == "user" and isinstance(parts, list) and len(parts) > 1:
            yield from (item.replace(content=[part]) for part in parts)
        else:
            yield item


GOOD: dict[str, Filter[Any] | list[Filter[Any]]] = {
    "messages_only": messages_only,
    "drop_tools": drop_tools,
    "drop_reasoning": drop_reasoning,
    "keep_last(1)": keep_last(1),
    "keep_last(5)": keep_last(5),
    "last_turns(1)": last_turns(1),
    "only_agents": only_agents("triage"),
    "redact": redact("[0-9]+"),
    "nest_history": nest_history,
    "nest_history with a mapper": partial(nest_history, mapper=lambda history: "told"),
    "own_view": own_view,
    "replace_with_summary": replace_with_summary(summarise),
    "a sequence": [drop_tools, nest_history],
    "a coroutine function": later,
}


@pytest.mark.parametrize("filter", GOOD.values(), ids=GOOD)
def test_a_good_filter_passes(filter: Filter[Any]) -> None:
    check_filter(filter, idempotent=True, settings=FEW)


@pytest.mark.parametrize(
    "filter", [lambda history: history, repair, split_texts, list], ids=["same", "repair", "split", "list"]
)
def test_what_is_legal_and_plain_passes(filter: Filter[Any]) -> None:
    check_filter(filter, settings=FEW)


def test_a_filter_of_contexts_is_given_them() -> None:
    contexts: set[str] = set()

    def remember(history: FilterInput[str]) -> FilterOutput:
        contexts.add(history.context)
        return developer_first(history)

    check_filter(remember, inputs=filter_inputs(st.sampled_from(["gold", "silver"])), settings=FEW)
    assert contexts == {"gold", "silver"}


@dataclass
class Reason:
    why: str = "money"


def test_arguments_of_the_callers_making_are_given() -> None:
    def remember(history: Given) -> FilterOutput:
        assert isinstance(history.arguments, Reason)
        return history

    check_filter(remember, inputs=filter_inputs(st.none(), arguments=st.builds(Reason)), settings=FEW)


def test_by_default_every_cause_is_tried() -> None:
    causes: set[str] = set()

    def remember(history: Given) -> FilterOutput:
        causes.add(history.cause)
        assert history.source is not None
        return history

    check_filter(remember, settings=FEW)
    assert causes == {"handoff", "compaction", "manual"}


# -- how it looks


async def test_it_works_where_an_event_loop_is_running() -> None:
    check_filter(later, settings=FEW)
    with pytest.raises(AssertionError, match="breaks a law"):
        check_filter([later, lambda history: history[::-1]], settings=FEW)


def test_settings_say_how_many_examples() -> None:
    calls = 0

    def count(history: Given) -> FilterOutput:
        nonlocal calls
        calls += 1
        return history

    check_filter(count, settings=settings(FEW, max_examples=7))
    assert calls == 14  # each is called twice with the same


def test_the_active_profile_says_how_many_if_nobody_else_does() -> None:
    calls = 0

    def count(history: Given) -> FilterOutput:
        nonlocal calls
        calls += 1
        return history

    before = settings.get_current_profile_name()
    settings.register_profile("three", max_examples=3, database=None)
    settings.load_profile("three")
    try:
        check_filter(count)
    finally:
        settings.load_profile(before)
    assert calls == 6


def test_what_was_found_is_kept_in_the_callers_database_for_this_filter_alone() -> None:
    database = InMemoryExampleDatabase()
    saved = settings(FEW, derandomize=False, database=database)
    seen: list[int] = []

    def reverse(history: Given) -> FilterOutput:
        seen.append(len(history))
        return history[::-1]

    def same(history: Given) -> FilterOutput:
        seen.append(len(history))
        return history

    told(reverse, settings=saved)
    keys = set(database.data)
    assert keys
    seen.clear()
    check_filter(same, settings=settings(saved, max_examples=5))
    assert set(database.data) == keys
    seen.clear()
    told(reverse, settings=saved)
    assert seen[0] == 3  # the smallest one comes first


def test_nothing_is_kept_without_a_database(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told(lambda history: history[::-1])
    assert list(tmp_path.iterdir()) == []


def test_inputs_that_are_mostly_thrown_away_are_said_to_be() -> None:
    given = smallest()
    few = st.integers().map(lambda _: given).filter(lambda given: False)
    with pytest.raises(FailedHealthCheck):
        check_filter(messages_only, inputs=few, settings=settings(FEW, max_examples=100))


def test_an_assumption_of_the_filter_is_hypothesis_own_business() -> None:
    def picky(history: Given) -> FilterOutput:
        if history.cause != "handoff":
            raise UnsatisfiedAssumption("only handoffs")
        return history

    check_filter(picky, settings=settings(FEW, suppress_health_check=list(HealthCheck)))


def test_what_is_no_filter_is_refused() -> None:
    with pytest.raises(UsageError, match="is no filter"):
        check_filter("messages_only")  # type: ignore[arg-type]


# -- what it says


def test_the_whole_story_is_told() -> None:
    def without_outputs(history: Given) -> FilterOutput:
        return [item for item in history if item.type != "function_call_output"]

    assert told(without_outputs) == (
        "without_outputs breaks a law of filters: what a filter returns is legal.\n"
        "\n"
        "In what it returned, function_call 4.0 has no output.\n"
        "A provider answers 400. So before it asks, the engine would make up an output for the call, saying "
        "'[The output of this call is not part of this history.]'.\n"
        "\n"
        "It was given (handoff from triage to billing, arguments {}):\n"
        "   1  1.0  message               user    'hello'\n"
        ">  2  4.0  function_call         triage  transfer_to_billing '{}'\n"
        "   3  6.0  function_call_output  triage  → 'Transferred.' (answers 4.0)\n"
        "It returned:\n"
        "   1  1.0  message        user    'hello'\n"
        ">  2  4.0  function_call  triage  transfer_to_billing '{}'"
    )


def test_a_sequence_is_named_by_all_its_filters() -> None:
    assert told([messages_only, lambda history: history[:0]]).startswith("messages_only + <lambda> breaks")


def test_what_a_filter_raised_is_the_cause() -> None:
    def divide(history: Given) -> FilterOutput:
        raise ZeroDivisionError("by zero")

    with pytest.raises(AssertionError) as caught:
        check_filter(divide, settings=FEW)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_filter_of_handoffs_alone_is_told_how_to_say_so() -> None:
    def reason(history: Given) -> FilterOutput:
        given: Any = history.arguments
        return [*history, {"role": "developer", "content": given.get("reason", "")}]

    assert "give inputs=filter_inputs(...)" in told(reason)
    check_filter(reason, inputs=filter_inputs(st.none()), settings=FEW)


def test_an_edit_is_told_with_what_it_stands_for() -> None:
    def louder(history: Given) -> FilterOutput:
        return [item.replace(content=f"{item.text}!") if item.role == "user" else item for item in history]

    assert "1.0  message               user    'hello'\n" in told(louder, idempotent=True)
    assert "new  message               user    'hello!' (in place of 1.0)" in told(louder, idempotent=True)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"role": "user", "content": "a\u2028b\ud800\x00\u202e"}, r"'a\u2028b\ud800\x00\u202e'"),
        ({"role": "user", "content": "x" * 100}, f"'{'x' * 59}…"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}, "[input_image]"),
        ({"role": "assistant", "content": []}, "(no text)"),
        ({"type": "reasoning", "id": "rs", "summary": []}, "''"),
        ({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}, "look '{}'"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"}, "run 'ls'"),
        ({"type": "function_call_output", "call_id": "c", "output": "ok"}, "→ 'ok'"),
        ({"type": "compaction", "encrypted_content": "seal"}, '{"encrypted_content": "seal"}'),
    ],
)
def test_an_item_is_told_in_one_line_that_nobody_misreads(data: dict[str, Any], said: str) -> None:
    assert say_item(as_item(data)) == said


# -- laws that only forged filters break


def smallest() -> Given:
    """Any input."""
    return find(filter_inputs(st.none()), lambda given: True, settings=settings(FEW, phases=[Phase.generate]))


def run(work: Any) -> Any:
    return asyncio.run(work)


def law_of(filter: Callable[[Given], Any]) -> str | None:
    fault = fault_of([filter], smallest(), run, idempotent=False)
    return fault.law if fault is not None else None


def test_a_forged_copy_of_an_item_comes_from_nowhere() -> None:
    def forge(history: Given) -> FilterOutput:
        first = history[0]
        return [Item(first.ref, as_item({"role": "user", "content": "forged"}).held), *history[1:]]

    assert law_of(forge) == "no item comes from nowhere"


def test_own_items_may_come_first_in_their_own_order_and_nowhere_else() -> None:
    given = find(
        filter_inputs(st.none()),
        lambda given: (
            given.own is not None
            and len(given.own) > 1
            and not any(item.replaces for item in (*given, *given.own))
        ),
        settings=settings(FEW, max_examples=2000, phases=[Phase.generate]),
    )
    assert given.own is not None
    own = list(given.own)
    since = [item for item in given if item not in own]
    in_order = fault_of([lambda history: [*own, *since]], given, run, idempotent=False)
    assert in_order is None
    backwards = fault_of([lambda history: [*own[::-1], *since]], given, run, idempotent=False)
    assert backwards is not None
    assert backwards.law in ("kept items keep their order", "what a filter returns is legal")
    assert "with own, the view in which the target last handed off:" in tell("f", backwards)


def test_what_was_illegal_before_is_not_held_against_a_filter() -> None:
    made = [
        as_item({"role": "user", "content": "hi"}),
        as_item({"type": "reasoning", "id": "r", "summary": []}),
    ]
    given: Given = FilterInput(made, version=3, cause="manual", session="s", context=None, split=0)
    assert check_legal(given)
    assert fault_of([lambda history: history], given, run, idempotent=True) is None


@dataclass
class Shared:
    """A context that every call is given itself, not a copy of."""

    calls: list[int] = field(default_factory=list)


def test_the_context_is_the_callers_own_object() -> None:
    shared = Shared()

    def count(history: FilterInput[Shared]) -> FilterOutput:
        history.context.calls.append(1)
        return history

    check_filter(count, inputs=filter_inputs(st.just(shared)), settings=settings(FEW, max_examples=3))
    assert len(shared.calls) == 6


def test_the_public_names_are_these() -> None:
    assert public.__all__ == ["check_filter", "filter_inputs", "histories", "logs"]
    assert all(hasattr(public, name) for name in public.__all__)
