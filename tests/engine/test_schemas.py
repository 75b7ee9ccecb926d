"""JSON schemas of Python types in the strict form, and data checked against a schema."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from msgspec import Meta, Struct, defstruct

from batonlog.engine.schemas import closed, is_closed, mismatch, schema_of
from batonlog.engine.testing.fake_responses import FakeResponsesServer
from batonlog.events import JSON, UsageError


class Address(Struct):
    street: str
    number: int = 1


class Tree(Struct):
    name: str
    children: list["Tree"] = []


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float


class Row(TypedDict):
    id: int


def field(type_: Any, *, strict: bool = True) -> JSON:
    """The schema of one required field of that type."""
    made = defstruct("Made", [("value", type_)])
    return schema_of(made, strict=strict, what="it")["properties"]["value"]


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
        (Literal[1, "a"], {"enum": [1, "a"]}),
        (Annotated[datetime, Meta(tz=True)], {"type": "string", "format": "date-time"}),
        (Decimal, {"type": "string"}),
        (
            Annotated[int, Meta(ge=1, description="How many.")],
            {"type": "integer", "minimum": 1, "description": "How many."},
        ),
        (Colour, {"$ref": "#/$defs/Colour"}),
        (Address, {"$ref": "#/$defs/Address"}),
        (
            Annotated[Address, Meta(description="Where.")],
            {"anyOf": [{"$ref": "#/$defs/Address"}], "description": "Where."},
        ),
    ],
)
def test_a_type_has_this_schema(type_: Any, schema: JSON) -> None:
    assert field(type_) == schema


def test_an_object_is_closed_and_names_all_its_properties_as_required() -> None:
    assert schema_of(Address, strict=True, what="it") == {
        "type": "object",
        "properties": {
            "street": {"type": "string"},
            "number": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["street", "number"],
        "additionalProperties": False,
    }


def test_what_is_not_strict_keeps_its_defaults() -> None:
    schema = schema_of(Address, strict=False, what="it")
    assert schema["required"] == ["street"]
    assert schema["properties"]["number"] == {"type": "integer", "default": 1}


@pytest.mark.parametrize("type_", [Point, Row, Address])
def test_structs_dataclasses_and_typed_dicts_are_objects(type_: Any) -> None:
    assert schema_of(type_, strict=True, what="it")["type"] == "object"


def test_a_type_that_holds_itself_is_an_object_at_the_root() -> None:
    schema = schema_of(Tree, strict=True, what="it")
    assert schema["type"] == "object"
    assert schema["properties"]["children"]["anyOf"][0]["items"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["additionalProperties"] is False


def test_a_field_may_be_called_like_a_keyword() -> None:
    class Odd(Struct):
        enum: str
        type: int = 1

    assert set(schema_of(Odd, strict=True, what="it")["properties"]) == {"enum", "type"}


def test_keywords_that_strict_mode_does_not_know_are_left_out() -> None:
    assert field(Annotated[str, Meta(min_length=1, max_length=3, pattern="^a")]) == {
        "type": "string",
        "pattern": "^a",
    }


@pytest.mark.parametrize(
    ("type_", "place"),
    [
        (dict[str, int], r"the mapping at \$\.value"),
        (list[dict[str, int]], r"the mapping at \$\.value\[\]"),
        (tuple[int, str], r"the tuple at \$\.value"),
        (dict[str, int] | None, r"the mapping at \$\.value"),
    ],
)
def test_what_strict_mode_cannot_express_is_named_with_its_cure(type_: Any, place: str) -> None:
    with pytest.raises(UsageError, match=f"it: strict schemas cannot express {place}; use a .*strict=False"):
        field(type_)


def test_what_strict_mode_cannot_express_passes_where_it_is_off() -> None:
    assert field(dict[str, int], strict=False)["type"] == "object"


def test_a_mapping_deep_in_a_named_type_is_named_with_it() -> None:
    class Inner(Struct):
        tags: dict[str, str]

    with pytest.raises(UsageError, match=r"the mapping at Inner\.tags"):
        field(Inner)


def test_a_type_without_a_schema_is_an_error_that_names_what_has_it() -> None:
    class Opaque: ...

    with pytest.raises(UsageError, match="it has no JSON schema"):
        field(Opaque)


class Everything(Struct):
    """All that a parameter may be."""

    where: Annotated[Address, Meta(description="Where.")]
    maybe: Address | None
    colour: Annotated[Colour, Meta(description="Which.")]
    speed: Literal["slow", "fast"]
    money: Decimal
    when: datetime
    blob: bytes
    tags: set[str]
    pay: "Card | Cash"
    tree: Tree
    points: list[Point] = []
    row: Row | None = None
    size: Annotated[int, Meta(gt=0, title="Size", examples=[3])] = 1


class Card(Struct, tag=True):
    number: str


class Cash(Struct, tag=True):
    amount: float


@pytest.mark.parametrize("type_", [Address, Tree, Point, Row, Everything])
async def test_a_provider_takes_every_strict_schema(type_: Any) -> None:
    schema = schema_of(type_, strict=True, what="it")
    async with FakeResponsesServer("ok") as server:
        await server.client.responses.create(
            model="gpt-5",
            input="hi",
            tools=[{"type": "function", "name": "f", "parameters": schema, "strict": True}],
        )
    assert not server.refusals


# -- is it closed already

CLOSED: dict[str, JSON] = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
    "required": ["b", "a"],
    "additionalProperties": False,
}


def test_the_order_of_required_says_nothing() -> None:
    assert is_closed(CLOSED, what="it")


@pytest.mark.parametrize(
    "change",
    [
        {"required": ["a"]},
        {"additionalProperties": None},
        {"properties": {**CLOSED["properties"], "c": {"type": "string"}}},
        {"properties": {**CLOSED["properties"], "a": {"type": "string", "default": "x"}}},
    ],
)
def test_an_open_schema_is_not_closed(change: dict[str, JSON]) -> None:
    schema = {key: value for key, value in {**CLOSED, **change}.items() if value is not None}
    assert not is_closed(schema, what="it")


def test_a_schema_that_cannot_be_closed_is_an_error() -> None:
    with pytest.raises(UsageError, match="it: strict schemas cannot express"):
        is_closed({**CLOSED, "additionalProperties": True}, what="it")


def test_closing_twice_is_closing_once() -> None:
    once = closed({"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}, what="it")
    assert closed(once, what="it") == once
    assert is_closed(once, what="it")


# -- checking data


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({"a": "x", "b": 1}, CLOSED),
        (1.5, {"type": "number"}),
        (1, {"type": "number"}),
        (None, {"type": ["string", "null"]}),
        ("a", {"enum": ["a", "b"]}),
        ("a", {"const": "a"}),
        (None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ([1, 2], {"type": "array", "items": {"type": "integer"}}),
        ("abc", {"type": "string", "pattern": "b"}),
        (3, {"minimum": 3, "maximum": 3}),
        ({"x": 1}, {"type": "object"}),
        ("anything", {}),
        ("anything", True),
        ("anything", {"type": "a word nobody knows"}),
    ],
)
def test_data_that_matches_has_no_fault(value: JSON, schema: JSON) -> None:
    assert mismatch(value, schema) is None


@pytest.mark.parametrize(
    ("value", "schema", "says"),
    [
        ({"a": "x"}, CLOSED, "missing 'b' at $"),
        ({"a": "x", "b": 1, "c": 2}, CLOSED, "unknown 'c' at $"),
        ({"a": 1, "b": 1}, CLOSED, "expected string at $.a"),
        (True, {"type": "integer"}, "expected integer at $"),
        (True, {"type": "number"}, "expected number at $"),
        (1.0, {"type": "integer"}, "expected integer at $"),
        ("x", {"type": ["integer", "null"]}, "expected integer or null at $"),
        ("c", {"enum": ["a", "b"]}, "expected one of ['a', 'b'] at $"),
        ("b", {"const": "a"}, "expected 'a' at $"),
        (1, {"anyOf": [{"type": "string"}, {"type": "null"}]}, "expected string at $"),
        ([1, "x"], {"type": "array", "items": {"type": "integer"}}, "expected integer at $[1]"),
        ("abc", {"type": "string", "pattern": "^b"}, "expected text that matches ^b at $"),
        (2, {"minimum": 3}, "expected at least 3 at $"),
        (4, {"maximum": 3}, "expected at most 3 at $"),
        (
            {"a": {"b": [{}]}},
            {"properties": {"a": {"properties": {"b": {"items": CLOSED}}}}},
            "missing 'b' at $.a.b[0]",
        ),
    ],
)
def test_data_that_differs_says_where_and_what_was_expected(value: JSON, schema: JSON, says: str) -> None:
    assert mismatch(value, schema) == says
