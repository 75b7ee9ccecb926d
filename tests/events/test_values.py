"""Refs, limits, usage, and foreign JSON."""

import json
from math import inf, nan
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonlog.events import Limits, Ref, Usage, UsageError
from batonlog.events.values import dump, load, plain

numbers = st.integers(0, 2**62)
refs = st.builds(Ref, numbers, numbers)
usages = st.builds(Usage, **dict.fromkeys(Usage.__struct_fields__, numbers))


def joined(text: str) -> str:
    """Join surrogates that stand side by side: JSON cannot tell them from the whole character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


texts = st.text(st.characters()).map(joined)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)

# -- refs


@given(refs)
def test_a_ref_is_read_back_from_its_text(ref: Ref) -> None:
    assert Ref.parse(str(ref)) == ref


def test_the_text_of_a_ref_is_version_dot_index() -> None:
    assert str(Ref(7, 1)) == "7.1"


@pytest.mark.parametrize(
    "text",
    ["", "7", "7.", ".1", "7.1.2", "-7.1", "7.-1", "+7.1", " 7.1", "7.1\n", "7,1", "a.b", "٧.١", "7_0.1"],
)
def test_what_is_no_ref_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"no ref: write version\.index"):
        Ref.parse(text)


@given(refs, refs)
def test_refs_are_ordered_by_version_then_index(one: Ref, two: Ref) -> None:
    assert (one < two) == ((one.version, one.index) < (two.version, two.index))


@given(refs)
def test_a_ref_is_a_key(ref: Ref) -> None:
    assert {ref: "x"}[Ref(ref.version, ref.index)] == "x"


@given(refs)
def test_a_ref_is_stored_as_an_array(ref: Ref) -> None:
    assert json.loads(dump(ref)) == [ref.version, ref.index]


# -- limits and usage


@pytest.mark.parametrize("name", ["turns", "tokens", "seconds", "handoffs"])
def test_a_limit_below_0_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        Limits(**{name: -1})


@pytest.mark.parametrize("name", ["turns", "tokens", "seconds", "handoffs"])
@pytest.mark.parametrize("value", [0, None])
def test_a_limit_may_be_0_or_none(name: str, value: int | None) -> None:
    assert getattr(Limits(**{name: value}), name) == value


def test_default_limits_never_change() -> None:
    assert Limits() == Limits(turns=10, tokens=None, seconds=None, handoffs=20)


@given(usages, usages)
def test_usage_adds_up_field_by_field(one: Usage, two: Usage) -> None:
    both = one + two
    for name in Usage.__struct_fields__:
        assert getattr(both, name) == getattr(one, name) + getattr(two, name)


@given(usages)
def test_no_usage_adds_nothing(usage: Usage) -> None:
    assert usage + Usage() == usage == Usage() + usage


@pytest.mark.parametrize(
    ("value", "name"), [(Ref(1, 2), "version"), (Limits(), "turns"), (Usage(), "requests")]
)
def test_values_are_frozen(value: Any, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(value, name, 3)


# -- foreign JSON


@given(values)
def test_what_is_dumped_loads_equal(value: object) -> None:
    assert load(dump(value)) == value


@given(values)
def test_what_is_dumped_is_utf8_json(value: object) -> None:
    assert json.loads(dump(value).decode("utf-8")) == value


@given(values)
def test_dumping_what_was_loaded_gives_the_same_bytes(value: object) -> None:
    assert dump(load(dump(value))) == dump(value)


@given(values)
def test_plain_data_is_equal_and_fresh(value: object) -> None:
    found = plain(value)
    assert found == value
    assert not isinstance(value, list | dict) or found is not value


@given(values)
def test_raw_bytes_become_plain_data(value: object) -> None:
    assert plain({"a": [msgspec.Raw(dump(value))]}) == {"a": [value]}


def test_loading_twice_gives_two_values() -> None:
    data = dump({"a": []})
    load(data)["a"].append(1)
    assert load(data) == {"a": []}


@pytest.mark.parametrize("number", [nan, inf, -inf])
@pytest.mark.parametrize("text", ["x", "\ud800"])
def test_a_number_that_json_has_not_is_null(number: float, text: str) -> None:
    assert load(dump([number, text])) == [None, text]


@pytest.mark.parametrize("text", ["x", "\ud800"])
def test_what_json_cannot_hold_is_a_type_error(text: str) -> None:
    for value in (object(), print, {("a", "b"): 1}):
        with pytest.raises(TypeError):
            dump([text, value])
