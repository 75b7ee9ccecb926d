"""Handoffs as they are offered: names, schemas, and what could not work."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest
from msgspec import Meta, Struct

from batonlog.engine import Agent, handoff
from batonlog.engine.arguments import BadArgumentsError
from batonlog.engine.handoffs import Handoff, wire_name
from batonlog.events import UsageError
from batonlog.projections import keep_last, messages_only

# -- names


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("refund", "transfer_to_refund"),
        ("Refund Desk", "transfer_to_refund_desk"),
        ("level_2", "transfer_to_level_2"),
        ("REFUND", "transfer_to_refund"),
    ],
)
def test_lower_casing_and_blanks_lose_nothing(agent: str, name: str) -> None:
    assert wire_name(agent) == name


AWKWARD = ["退款专家", "退货专家", "refund-desk", "refund.desk", "refund desk!", "Rückgabe", "💸", "___"]


@pytest.mark.parametrize("agent", [*AWKWARD, "x" * 200, "退" * 200, "a" * 52, "a" * 53, "!"])
def test_every_name_is_one_that_a_provider_takes(agent: str) -> None:
    assert re.fullmatch(r"transfer_to_[a-z0-9_]{1,52}", wire_name(agent))


def test_awkward_names_never_share_a_tool() -> None:
    names = [wire_name(agent) for agent in [*AWKWARD, "refunddesk", "refund_desk", "", "x" * 60, "x" * 61]]
    assert len(set(names)) == len(names)


def test_a_character_that_has_to_go_adds_a_short_hash_that_never_changes() -> None:
    assert wire_name("退款专家") == "transfer_to_2cf1ab57"
    assert wire_name("Rückgabe") == "transfer_to_rckgabe_6223760a"


def test_names_that_differ_in_case_alone_share_a_tool_and_are_refused_together() -> None:
    # An engine says so when it starts: see test_registry.py.
    assert wire_name("Refund") == wire_name("refund")


def test_a_handoff_may_have_a_name_of_its_own() -> None:
    assert handoff("b", tool_name="route-request").tool_name == "route-request"


@pytest.mark.parametrize("name", ["no name", "x" * 65, "转"])
def test_a_name_that_no_provider_takes_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a tool"):
        handoff("b", tool_name=name)


# -- targets


def test_targets_are_agents_or_names() -> None:
    made = handoff(Agent("b"), "c", tool_name="route", on_invoke=lambda ctx: "c")
    assert made.targets == ("b", "c")


def test_an_agent_among_the_handoffs_is_a_handoff_to_it() -> None:
    b = Agent("b")
    assert [one.tool_name for one in Agent("a", handoffs=[b, "c", handoff("d")]).handoffs] == [
        "transfer_to_b",
        "transfer_to_c",
        "transfer_to_d",
    ]


def test_a_handoff_to_nobody_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a target"):
        handoff()


@pytest.mark.parametrize("options", [{}, {"tool_name": "route"}, {"on_invoke": lambda ctx: "b"}])
def test_several_targets_need_one_who_picks_and_a_name(options: Any) -> None:
    with pytest.raises(UsageError, match="to b or c needs on_invoke, which picks one, and a tool_name"):
        handoff("b", "c", **options)


def test_a_single_target_may_be_picked_too() -> None:
    assert handoff("b", on_invoke=lambda ctx: "b").tool_name == "transfer_to_b"


# -- what the model gives


class Request(Struct, frozen=True):
    urgency: Annotated[Literal["high", "normal"], Meta(description="How urgent.")]
    reason: str = "none"


@dataclass
class Reason:
    text: str


class Row(TypedDict):
    id: int


def test_an_input_type_is_the_schema() -> None:
    assert handoff("b", input_type=Request).parameters == {
        "type": "object",
        "properties": {
            "urgency": {"type": "string", "enum": ["high", "normal"], "description": "How urgent."},
            "reason": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["urgency", "reason"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("input_type", "arguments", "value"),
    [
        (Request, {"urgency": "high", "reason": None}, Request("high")),
        (Reason, {"text": "x"}, Reason("x")),
        (Row, {"id": 7}, {"id": 7}),
    ],
)
def test_arguments_are_read_as_the_input_type(input_type: Any, arguments: Any, value: object) -> None:
    assert handoff("b", input_type=input_type).read(arguments) == value


def test_bad_arguments_say_where_and_what_to_do() -> None:
    with pytest.raises(BadArgumentsError, match=r"Invalid arguments for transfer_to_b: .*\$\.urgency.*again"):
        handoff("b", input_type=Request).read({"urgency": "low"})


def test_without_an_input_type_the_arguments_are_what_they_are() -> None:
    assert handoff("b").read({"anything": 1}) == {"anything": 1}
    assert handoff("b").parameters["properties"] == {}


@pytest.mark.parametrize("input_type", [int, str, list[int], Request | None])
def test_an_input_type_is_an_object(input_type: Any) -> None:
    with pytest.raises(UsageError, match="input_type must be an object"):
        handoff("b", input_type=input_type)


def test_an_input_type_without_a_schema_is_refused() -> None:
    class Opaque: ...

    with pytest.raises(UsageError, match="handoff transfer_to_b has no JSON schema"):
        handoff("b", input_type=Opaque)


# -- filters


def test_a_filter_or_several_are_kept_in_their_order() -> None:
    last = keep_last(3)
    assert handoff("b", input_filter=messages_only).input_filter == (messages_only,)
    assert handoff("b", input_filter=[last, messages_only]).input_filter == (last, messages_only)


def test_by_default_the_engines_filter_counts_and_none_is_none() -> None:
    assert handoff("b").input_filter == "default"
    assert handoff("b", input_filter=None).input_filter is None


@pytest.mark.parametrize("filter", ["messages_only", 7, [], [messages_only, None]])
def test_what_is_no_filter_is_refused(filter: Any) -> None:
    with pytest.raises(UsageError, match="is no filter"):
        handoff("b", input_filter=filter)


def test_a_handoff_shows_its_tool() -> None:
    assert repr(handoff("b")) == "Handoff('transfer_to_b')"
    assert isinstance(handoff("b"), Handoff)
