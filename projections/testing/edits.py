"""Filters of earlier rewrites: what took items out of a view, put some in, or changed them.

Each is a value that prints as it must be written. They keep at least one message of the user,
as sensible filters do: who shows nothing but tool items to a model gets no sensible answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st
from msgspec import Raw

from batonlog.events import JSON
from batonlog.events.values import dump
from batonlog.projections.filters import FilterInput
from batonlog.projections.items import Item
from batonlog.projections.legality import repaired
from batonlog.projections.nest import nest_history
from batonlog.projections.own import own_view
from batonlog.projections.selecting import drop_reasoning, drop_tools, keep_last, messages_only
from batonlog.projections.testing.sayings import texts

View: TypeAlias = Sequence[Item]


@dataclass(frozen=True)
class Keep:
    """Keep the items whose bits are set."""

    bits: int

    def __call__(self, given: FilterInput[object]) -> View:
        """Return what is left."""
        return [item for n, item in enumerate(given) if self.bits >> n % 16 & 1]


@dataclass(frozen=True)
class Put:
    """Put in a new message."""

    place: int
    role: str
    text: str

    def __call__(self, given: FilterInput[object]) -> View:
        """Return the items and the new one, at the nearest place where it splits nothing."""
        data: dict[str, JSON] = {"type": "message", "role": self.role, "content": self.text}
        place = self.place % (len(given) + 1)
        while 0 < place < len(given) and given[place - 1].type != "message":
            place -= 1
        return [*given[:place], Item(None, Raw(dump(data))), *given[place:]]


@dataclass(frozen=True)
class Change:
    """Change the text of a message, or the output of a call."""

    place: int
    text: str

    def __call__(self, given: FilterInput[object]) -> View:
        """Return the items, one of them edited."""
        place = self.place % len(given)
        item = given[place]
        match item.type:
            case "message":
                edited = item.replace(content=self.text)
            case "function_call_output" | "custom_tool_call_output":
                edited = item.replace(output=self.text)
            case _:
                return given
        return [*given[:place], edited, *given[place + 1 :]]


@dataclass(frozen=True)
class Summarise:
    """Put one opaque message in the place of everything before the last message of the user."""

    text: str

    def __call__(self, given: FilterInput[object]) -> View:
        """Return the summary, and what stays."""
        last = max((n for n, item in enumerate(given) if item.role == "user"), default=0)
        covers = tuple(ref for item in given[:last] for ref in item.covers)
        data: dict[str, JSON] = {"type": "message", "role": "assistant", "content": self.text}
        return [Item(None, Raw(dump(data)), replaces=covers), *given[last:]] if covers else given


@dataclass(frozen=True)
class Shipped:
    """One of the filters that come with the package."""

    name: str

    def __call__(self, given: FilterInput[object]) -> View:
        """Return what it returns."""
        return _SHIPPED[self.name](given)


_SHIPPED = {
    "messages_only": messages_only,
    "drop_tools": drop_tools,
    "drop_reasoning": drop_reasoning,
    "keep_last(4)": keep_last(4),
    "nest_history": nest_history,
    "own_view": own_view,
}

Edit: TypeAlias = Callable[[FilterInput[object]], View]
"""Any of these."""

_places = st.integers(0, 15)
edits: st.SearchStrategy[Edit] = st.one_of(
    st.builds(Shipped, st.sampled_from(list(_SHIPPED))),
    st.builds(Keep, st.integers(0, 2**16 - 1)),
    st.builds(Change, _places, texts),
    st.builds(Put, _places, st.sampled_from(["developer", "user", "assistant", "system"]), texts),
    st.builds(Summarise, texts),
)


def edited(given: FilterInput[object], edits: Sequence[Edit]) -> View:
    """Apply edits, first one first; one that would leave no message of the user changes nothing."""
    items: View = list(given)
    for edit in edits:
        made = edit(given._with(items))
        if any(item.role == "user" for item in repaired(list(made), None)):
            items = list(made)
    return items
