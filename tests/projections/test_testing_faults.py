"""Bad filters, each with a bug that was reported somewhere: `check_filter` finds it, and says it in words."""

import random
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from msgspec import Raw

from batonlog.events import Ref
from batonlog.projections import FilterInput, FilterOutput, Item, nest_history
from batonlog.projections.pairing import is_call
from batonlog.projections.testing import check_filter, filter_inputs

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=150)

Given = FilterInput[Any]


def told(filter: Any, **options: Any) -> str:
    """What is said of a bad filter."""
    with pytest.raises(AssertionError) as caught:
        check_filter(filter, **{"settings": SETTINGS, **options})
    return str(caught.value)


def given_in(text: str) -> list[str]:
    """The lines of the history in which the fault was found."""
    lines = text[text.index("It was given") :].splitlines()[1:]
    ends = next((n for n, line in enumerate(lines) if not re.match(r"[> ] +\d+  ", line)), len(lines))
    return lines[:ends]


# openai-agents-python#4322 and agno#9372: only the newest items are kept
def newest_items(history: Given) -> FilterOutput:
    return history[-3:]


# pydantic-ai#4728: outputs are long, so they go, and one bad pair poisons the conversation
def without_outputs(history: Given) -> FilterOutput:
    return [item for item in history if item.type != "function_call_output"]


# openai-agents-js#42: a transfer without an answer
def without_acknowledgement(history: Given) -> FilterOutput:
    return [item for item in history if item.text != "Transferred."]


# openai-agents-python#4614, #3253, #2885: a list of types that forgets one
def without_listed_types(history: Given) -> FilterOutput:
    listed = {"function_call", "function_call_output", "custom_tool_call", "reasoning", "program"}
    return [item for item in history if item.type not in listed]


# openai-agents-python#2503: the call goes, and the reasoning that led to it stays
def without_calls(history: Given) -> FilterOutput:
    kinds = ("function_call", "function_call_output")
    return [item for item in history if item.type not in kinds]


# openai-agents-js#929: the reasoning goes out in another order than it came in
def reasoning_first(history: Given) -> FilterOutput:
    return sorted(history, key=lambda item: item.type != "reasoning")


# openai-agents-python#1699: what is new is worked out by comparing content
def without_repeated_texts(history: Given) -> FilterOutput:
    texts: set[str] = set()
    for item in history:
        if not item.text or item.text not in texts:
            yield item
        texts.add(item.text)


# langchainjs#10145: outputs are looked up by a call id that is used again in a later turn
def with_outputs_by_call_id(history: Given) -> FilterOutput:
    outputs = {item.data["call_id"]: item for item in history if item.type == "function_call_output"}
    for item in history:
        yield outputs[item.data["call_id"]] if item.type == "function_call_output" else item


# openai-agents-python#2171: a summary, and the raw calls that it already tells, which have no role
def summary_and_raw_calls(history: Given) -> FilterOutput:
    return [*nest_history(history), *(item for item in history if item.role is None)]


# openai-agents-python#2317: a compaction that swallows a call and leaves its answer
def compacted_up_to_the_last_call(history: Given) -> FilterOutput:
    calls = [n for n, item in enumerate(history) if is_call(item)]
    last = calls[-1] if calls else 0
    return [*nest_history(history[: last + 1]), *history[last + 1 :]]


# openai-agents-python#4069: a callback that returns old items a second time
def with_the_latest_again(history: Given) -> FilterOutput:
    return [*history, *history.latest]


# microsoft/agent-framework#4695: two providers of history give the same message
def with_every_message_twice(history: Given) -> FilterOutput:
    for item in history:
        yield from (item.replace(role="user"), item.replace(role="user")) if item.role == "user" else (item,)


# semantic-kernel#12708 and others: newest first
def newest_first(history: Given) -> FilterOutput:
    return [item for item in reversed(history) if item.type == "message"]


# pydantic-ai#2914: what is filtered for the model shrinks the record
def with_arguments_taken_out(history: Given) -> FilterOutput:
    assert isinstance(history.arguments, dict)
    reason = history.arguments.pop("reason", None)
    return [*history, {"role": "developer", "content": f"Why: {reason}"}] if reason else history


# midday-ai/ai-sdk-tools#133: the role is changed to please a provider, in the item itself
def with_another_role(history: Given) -> FilterOutput:
    for item in history:
        if item.role == "user":
            item.head.role = "developer"
    return history


# dbos-transact-py#688: each run of the same comes out otherwise
def with_a_new_number(history: Given) -> FilterOutput:
    return [*history, {"role": "developer", "content": f"Case {uuid.uuid4()}"}]


def with_a_lucky_number(history: Given) -> FilterOutput:
    return [*history, {"role": "developer", "content": f"Lucky: {random.random()}"}]


_seen: set[Ref | None] = set()


# openai-agents-js#701: what was seen is remembered from one call to the next
def what_was_not_seen_before(history: Given) -> FilterOutput:
    new = [item for item in history if item.role == "user" or item.ref not in _seen]
    _seen.update(item.ref for item in history)
    return new


# openai-agents-python#2171: calls and outputs have no role, and no content
def until_it_raises(history: Given) -> Iterator[Item]:
    for item in history:
        if item.data["content"] is not None:
            yield item


# openai-agents-js#152: the content is taken for a text
def lower_case(history: Given) -> FilterOutput:
    return [
        item.replace(content=item.data["content"].lower()) if item.role == "user" else item
        for item in history
    ]


def as_one_text(history: Given) -> Any:
    return "\n".join(item.text for item in history)


def forgetful(history: Given) -> Any:
    [item for item in history if item.type == "message"]


# langgraph-supervisor-py#110: only the last message of an agent, where there may be none
def what_agents_said(history: Given) -> FilterOutput:
    return [item for item in history if item.role == "assistant" and item.agent is not None][-1:]


_foreign = Item(Ref(999, 0), Raw(b'{"role":"user","content":"my card is 4711"}'), agent=None)


# HexamindOrganisation/hexgate#215: whose is it, and of which session
def with_what_another_user_said(history: Given) -> FilterOutput:
    return [_foreign, *history]


def with_an_edit_of_what_another_user_said(history: Given) -> FilterOutput:
    return [_foreign.replace(content="a card number"), *history]


# openai-agents-python#3814 and its kin: a summary of a summary, longer at every hop
def with_a_heading(history: Given) -> FilterOutput:
    return [
        item.replace(content=f"Earlier: {item.text}") if item.role == "user" else item for item in history
    ]


@dataclass(frozen=True)
class Bad:
    """A bad filter, the law that it breaks, what says how, and how few items show it."""

    filter: Callable[[Given], Any]
    law: str
    says: str
    items: int
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return self.filter.__name__


LEGAL = "what a filter returns is legal"
ONCE = "no item is shown twice"
ORDER = "kept items keep their order"
SAME = "a filter returns the same for the same history"
UNCHANGED = "a filter leaves what it is given as it is"
HISTORY = "a filter returns a history, with something in it"
ANSWERS = "a filter answers every legal history"
FROM_HERE = "no item comes from nowhere"
TWICE = "applied twice is applied once"

BAD = (
    Bad(newest_items, LEGAL, "answers no call before it", 5),
    Bad(without_outputs, LEGAL, "function_call 4.0 has no output", 3),
    Bad(without_acknowledgement, LEGAL, "function_call 4.0 has no output", 3),
    Bad(without_listed_types, LEGAL, "answers no call before it", 5),
    Bad(without_calls, LEGAL, "reasoning 4.0 lost what followed it", 4),
    Bad(reasoning_first, ORDER, "Item 4.\\d stands before 1.0, and stood behind it.", 6),
    Bad(without_repeated_texts, LEGAL, "has no output|lost what followed it", 6),
    Bad(with_outputs_by_call_id, ONCE, "is there twice", 7),
    Bad(summary_and_raw_calls, ONCE, "is told twice", 3),
    Bad(compacted_up_to_the_last_call, LEGAL, "answers no call before it", 3),
    Bad(with_the_latest_again, ONCE, "is there twice", 3),
    Bad(with_every_message_twice, ONCE, "is told twice", 3),
    Bad(newest_first, ORDER, "Item 4.0 stands before 1.0, and stood behind it.", 4),
    Bad(
        with_arguments_taken_out,
        UNCHANGED,
        r"the arguments were \{'reason': 'hello'\}, and are \{\} now",
        3,
        (("inputs", filter_inputs(st.none())),),
    ),
    Bad(with_another_role, UNCHANGED, "item 1.0 has another head now", 3),
    Bad(with_a_new_number, SAME, "it returned something else", 3),
    Bad(with_a_lucky_number, SAME, "it returned something else", 3),
    Bad(what_was_not_seen_before, SAME, "It does not always do so", 5),
    Bad(until_it_raises, ANSWERS, "It raised KeyError: 'content'", 3),
    Bad(lower_case, ANSWERS, "It raised AttributeError: 'list' object has no attribute 'lower'", 3),
    Bad(as_one_text, HISTORY, "filter as_one_text returned str, which is no history", 3),
    Bad(forgetful, HISTORY, "filter forgetful returned NoneType, which is no history", 3),
    Bad(what_agents_said, HISTORY, "filter what_agents_said left nothing to show", 3),
    Bad(with_what_another_user_said, FROM_HERE, "Item 999.0 is not in the history", 3),
    Bad(with_an_edit_of_what_another_user_said, FROM_HERE, "An item stands for 999.0", 3),
    Bad(with_a_heading, TWICE, "it returned something else", 3, (("idempotent", True),)),
)


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_the_fault_is_found_and_told_with_the_smallest_history(bad: Bad) -> None:
    text = told(bad.filter, **dict(bad.options))

    assert text.startswith(f"{bad.filter.__name__} breaks a law of filters: {bad.law}.\n")
    assert re.search(bad.says, text)
    assert len(given_in(text)) <= bad.items


def test_a_summary_of_a_summary_is_no_fault_unless_it_is_said_to_be() -> None:
    check_filter(with_a_heading, settings=settings(SETTINGS, max_examples=20))
