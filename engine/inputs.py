"""What a caller says: a text, one Responses item, or several."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from batonlog.events import JSON, UsageError
from batonlog.projections.items import Item, as_item

Input: TypeAlias = str | Mapping[str, JSON] | Sequence[Mapping[str, JSON]]
"""A user's text, one Responses item, or several."""


def input_items(input: Input, *, messages: bool = False) -> list[Item]:
    """Return the items of an input. Raises UsageError for what is none; `messages` allows nothing else."""
    given: Sequence[Any]
    match input:
        case str():
            given = [{"role": "user", "content": input}]
        case Mapping():
            given = [input]
        case Sequence():
            given = input
        case _:
            raise UsageError(f"input is a text, an item or a list of items, not {type(input).__name__}")
    if not given:
        raise UsageError("input is empty: a run starts with at least one item")
    items = []
    for n, value in enumerate(given):
        try:
            items.append(as_item(value))
        except UsageError as error:
            raise UsageError(f"input[{n}] is {error}") from error
        if messages and items[-1].type != "message":
            raise UsageError(f"input[{n}] is a {items[-1].type}: only messages can be sent to a run")
    return items
