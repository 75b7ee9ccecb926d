"""What a refusal is, and the checks of shape from which the tables of the other modules are built.

A check is a function of a value and of the path to it that yields what is wrong with it. Checks
are generators and the caller takes the first complaint, so nothing behind a fault is looked at:
like the real API, which names one fault at a time. The sentences are OpenAI's own wherever they
are known, because users will look for them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

JSON: TypeAlias = Any
"""A parsed JSON value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is refused, in the provider's words."""

    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400


Complaints: TypeAlias = Iterator[Refusal]
Check: TypeAlias = Callable[[JSON, str], Complaints]

LONGEST_TEXT: Final = 10_485_760
"""The limit that the API names when a text or a tool's output is too long."""

_ARTICLES: Final = {
    dict: "an object",
    list: "an array of objects",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    type(None): "null",
}


def missing(path: str) -> Refusal:
    return Refusal(
        message=f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter"
    )


def unknown(path: str) -> Refusal:
    return Refusal(message=f"Unknown parameter: '{path}'.", param=path, code="unknown_parameter")


def wrong_type(path: str, expected: str, value: JSON) -> Refusal:
    got = _ARTICLES.get(type(value), type(value).__name__)
    return Refusal(
        message=f"Invalid type for '{path}': expected {expected}, but got {got} instead.",
        param=path,
        code="invalid_type",
    )


def invalid_value(path: str, value: JSON, supported: Iterator[str] | Mapping[str, object]) -> Refusal:
    quoted = [f"'{name}'" for name in supported]
    names = f"{', '.join(quoted[:-1])}, and {quoted[-1]}" if len(quoted) > 2 else " and ".join(quoted)
    return Refusal(
        message=f"Invalid value: '{value}'. Supported values are: {names}.", param=path, code="invalid_value"
    )


def invalid(path: str, why: str, code: str) -> Refusal:
    return Refusal(message=f"Invalid '{path}': {why}", param=path, code=code)


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def anything(value: JSON, path: str) -> Complaints:
    """Accept it: nothing is known about this value, or nothing is worth checking."""
    yield from ()


def string(*, shortest: int = 0, longest: int | None = LONGEST_TEXT, pattern: str | None = None) -> Check:
    def check(value: JSON, path: str) -> Complaints:
        if not isinstance(value, str):
            yield wrong_type(path, "a string", value)
            return
        if len(value) < shortest:
            why = (
                f"empty string. Expected a string with minimum length {shortest}, "
                "but got an empty string instead."
            )
            yield invalid(path, why, "empty_string")
        if longest is not None and len(value) > longest:
            why = (
                f"string too long. Expected a string with maximum length {longest}, "
                f"but got a string with length {len(value)} instead."
            )
            yield invalid(path, why, "string_above_max_length")
        if pattern is not None and not re.fullmatch(pattern, value):
            why = f"string does not match pattern. Expected a string that matches the pattern '{pattern}'."
            yield invalid(path, why, "invalid_value")

    return check


def identifier(prefix: str) -> Check:
    """Accept the id of an item of a type whose ids begin so; "" accepts any."""

    def check(value: JSON, path: str) -> Complaints:
        yield from string(shortest=1, longest=64)(value, path)
        if not value.startswith(prefix):
            yield invalid(path, f"'{value}'. Expected an ID that begins with '{prefix}'.", "invalid_value")

    return check


def boolean(value: JSON, path: str) -> Complaints:
    if not isinstance(value, bool):
        yield wrong_type(path, "a boolean", value)


def integer(*, least: int | None = None, most: int | None = None) -> Check:
    def check(value: JSON, path: str) -> Complaints:
        if isinstance(value, bool) or not isinstance(value, int):
            yield wrong_type(path, "an integer", value)
            return
        yield from _within(value, path, "integer", least, most)

    return check


def decimal(*, least: float, most: float) -> Check:
    def check(value: JSON, path: str) -> Complaints:
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield wrong_type(path, "a decimal", value)
            return
        yield from _within(value, path, "decimal", least, most)

    return check


def _within(value: float, path: str, word: str, least: float | None, most: float | None) -> Complaints:
    if least is not None and value < least:
        why = f"{word} below minimum value. Expected a value >= {least}, but got {value} instead."
        yield invalid(path, why, f"{word}_below_min_value")
    if most is not None and value > most:
        why = f"{word} above maximum value. Expected a value <= {most}, but got {value} instead."
        yield invalid(path, why, f"{word}_above_max_value")


def one_of(*values: str) -> Check:
    def check(value: JSON, path: str) -> Complaints:
        if not isinstance(value, str):
            yield wrong_type(path, "a string", value)
        elif value not in values:
            yield invalid_value(path, value, iter(values))

    return check


def nullable(check: Check) -> Check:
    def check_unless_null(value: JSON, path: str) -> Complaints:
        if value is not None:
            yield from check(value, path)

    return check_unless_null


def array(of: Check, *, longest: int | None = None) -> Check:
    def check(value: JSON, path: str) -> Complaints:
        if not isinstance(value, list):
            yield wrong_type(path, "an array of objects", value)
            return
        if longest is not None and len(value) > longest:
            why = (
                f"array too long. Expected an array with maximum length {longest}, "
                f"but got an array with length {len(value)} instead."
            )
            yield invalid(path, why, "array_above_max_length")
        for index, element in enumerate(value):
            yield from of(element, f"{path}[{index}]")

    return check


def text_or(parts: Check) -> Check:
    """Accept a plain string, or an array that `parts` accepts."""

    def check(value: JSON, path: str) -> Complaints:
        if isinstance(value, str):
            yield from string()(value, path)
        elif isinstance(value, list):
            yield from parts(value, path)
        else:
            yield wrong_type(path, "one of an array of objects or string", value)

    return check


def shape(required: Mapping[str, Check], optional: Mapping[str, Check], *, closed: bool = True) -> Check:
    """Accept an object with these keys; any others too unless `closed`."""
    known = {**optional, **required}

    def check(value: JSON, path: str) -> Complaints:
        if not isinstance(value, dict):
            yield wrong_type(path, "an object", value)
            return
        for key in required:
            if key not in value:
                yield missing(join(path, key))
        for key, inner in value.items():
            if key in known:
                if known[key] is not anything:  # saves most of the time that a long history takes
                    yield from known[key](inner, join(path, key))
            elif closed:
                yield unknown(join(path, key))

    return check


def tagged(by_type: Mapping[str, Check]) -> Check:
    """Accept an object whose `type` names one of these; each check must know the key `type` itself."""

    def check(value: JSON, path: str) -> Complaints:
        if not isinstance(value, dict):
            yield wrong_type(path, "an object", value)
        elif "type" not in value:
            yield missing(join(path, "type"))
        elif not isinstance(tag := value["type"], str) or tag not in by_type:
            yield invalid_value(join(path, "type"), tag, by_type)
        else:
            yield from by_type[tag](value, path)

    return check
