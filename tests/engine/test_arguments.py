"""Arguments as a model writes them: read, checked, and refused with words that it can act on."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct, defstruct

from batonlog.engine.arguments import BadArgumentsError, Converter, read_arguments
from batonlog.events import JSON


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ("{}", {}),
        ("", {}),
        ("  \n", {}),
        ("null", {}),
        (' {"a": "\\ud800"} ', {"a": "\ud800"}),
        ('{"a": "\ud800"}', {"a": "\ud800"}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_arguments_are_a_json_object_and_nothing_at_all_is_none(text: str, arguments: JSON) -> None:
    assert read_arguments("look", text) == arguments


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1', "not valid JSON"),
        ("what?", "not valid JSON"),
        ('{"a": 1} {"a": 2}', "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": ' + "[" * 100_000, "not valid JSON"),
        ("[1]", "must be a JSON object, not list"),
        ('"text"', "must be a JSON object, not str"),
        ("7", "must be a JSON object, not int"),
    ],
)
def test_what_is_no_object_is_refused_with_what_to_do(text: str, says: str) -> None:
    with pytest.raises(BadArgumentsError, match=f"arguments of look .*{says}.*Call it again with one"):
        read_arguments("look", text)


class Line(Struct):
    what: str
    count: Annotated[int, Meta(ge=1)] = 1


class Order(Struct, forbid_unknown_fields=True):
    customer: str
    lines: list[Line] = []
    first: Line | None = None
    speed: Literal["slow", "fast"] = "slow"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"customer": "li"}, Order("li")),
        ({"customer": "li", "speed": None, "lines": None}, Order("li")),
        ({"customer": "li", "lines": [{"what": "hat", "count": 2}]}, Order("li", [Line("hat", 2)])),
        ({"customer": "li", "lines": [{"what": "hat", "count": None}]}, Order("li", [Line("hat", 1)])),
        ({"customer": "li", "first": {"what": "hat", "count": None}}, Order("li", first=Line("hat", 1))),
    ],
)
def test_null_stands_for_what_was_left_out(arguments: dict[str, JSON], value: Order) -> None:
    assert Converter(Order).convert("buy", arguments) == value


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "missing required field `customer`"),
        ({"customer": None}, r"Expected `str`, got `null` - at `\$\.customer`"),
        ({"customer": 7}, r"Expected `str`, got `int` - at `\$\.customer`"),
        ({"customer": "li", "colour": "red"}, "unknown field `colour`"),
        ({"customer": "li", "speed": "warp"}, r"Invalid enum value 'warp' - at `\$\.speed`"),
        ({"customer": "li", "lines": [{"what": "hat", "count": 0}]}, r">= 1 - at `\$\.lines\[0\]\.count`"),
    ],
)
def test_what_does_not_match_is_refused_naming_the_field(arguments: dict[str, JSON], says: str) -> None:
    with pytest.raises(BadArgumentsError, match=f"Invalid arguments for buy: .*{says}.*Call it again"):
        Converter(Order).convert("buy", arguments)


def test_a_null_that_is_meant_is_a_value() -> None:
    class Note(Struct):
        text: str | None

    assert Converter(Note).convert("note", {"text": None}) == Note(None)


def test_nulls_are_left_out_in_dataclasses_and_mappings_too() -> None:
    @dataclass
    class Part:
        size: int = 3

    whole: Any = defstruct("Whole", [("parts", dict[str, Part])])
    assert Converter(whole).convert("build", {"parts": {"a": {"size": None}}}).parts == {"a": Part(3)}


class Card(Struct, tag="card"):
    number: str
    holder: str = "nobody"


class Cash(Struct, tag="cash"):
    amount: int = 5


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"type": "card", "number": "1", "holder": None}, Card("1")),
        ({"type": "cash", "amount": None}, Cash()),
        (None, "none"),
        ([{"type": "cash", "amount": None}], [Cash()]),
    ],
)
def test_nulls_are_left_out_in_the_member_of_a_union_that_is_meant(given: JSON, value: object) -> None:
    pay: Any = defstruct("Pay", [("by", Card | Cash | list[Annotated[Cash, Meta()]] | None, "none")])
    assert Converter(pay).convert("pay", {"by": given}).by == value


def test_arguments_are_left_as_they_were() -> None:
    given: dict[str, JSON] = {"customer": "li", "lines": [{"what": "hat", "count": None}]}
    Converter(Order).convert("buy", given)
    assert given == {"customer": "li", "lines": [{"what": "hat", "count": None}]}
