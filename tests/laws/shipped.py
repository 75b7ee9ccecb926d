"""The shipped filters as plain values, and strategies for compositions of them.

A choice prints as it must be written, so that what Hypothesis finds can be pasted into a test.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from hypothesis import strategies as st
from tests.laws.scripts import AGENTS, JSON

from batonlog.events import Usage
from batonlog.projections import (
    Filter,
    History,
    Summary,
    drop_reasoning,
    drop_tools,
    keep_last,
    last_turns,
    messages_only,
    nest_history,
    only_agents,
    own_view,
    redact,
    replace_with_summary,
)


@dataclass(frozen=True)
class Chosen:
    """One of the shipped filters."""

    name: str
    by: JSON = None


Composed: TypeAlias = tuple[Chosen, ...]
"""Filters, applied first to last."""

SUMMARY = Usage(requests=1, input_tokens=5, output_tokens=2, total_tokens=7)
"""What a summary costs."""


async def summarised(older: History) -> str:
    """Return a summary that tells how much it is of, and nothing of what was said."""
    return Summary(f"{len(older)} items before.", model="small", usage=SUMMARY)


def mapped(folded: History) -> str:
    """Return a nest's text of somebody's own making."""
    return f"Once upon a time there were {len(folded)} items."


def shouted(text: str) -> str:
    """Change a text, and leave alone what was changed once."""
    return text.upper()


def built(composed: Composed) -> Sequence[Filter[Any]]:
    """Return the filters themselves."""
    return [_built(one) for one in composed]


def _built(one: Chosen) -> Filter[Any]:
    match one.name:
        case "keep_last":
            return keep_last(one.by)
        case "last_turns":
            return last_turns(one.by)
        case "only_agents":
            return only_agents(*one.by)
        case "redact":
            return redact(one.by)
        case "shout":
            return redact(shouted)
        case "summary":
            return replace_with_summary(summarised, keep_turns=one.by)
        case "mapped":
            return partial(nest_history, mapper=mapped)
        case name:
            return _PLAIN[name]


_PLAIN: dict[str, Filter[Any]] = {
    "messages_only": messages_only,
    "drop_tools": drop_tools,
    "drop_reasoning": drop_reasoning,
    "nest": nest_history,
    "own_view": own_view,
}


def choices(*, agents: Sequence[str] = AGENTS) -> st.SearchStrategy[Chosen]:
    """Any shipped filter, with parameters."""
    some = st.lists(st.sampled_from(agents), min_size=1, max_size=2, unique=True).map(tuple)
    return st.one_of(
        st.builds(Chosen, st.sampled_from(list(_PLAIN))),
        st.builds(Chosen, st.sampled_from(["nest", "own_view"])),
        st.builds(Chosen, st.just("own_view")),
        st.builds(Chosen, st.just("keep_last"), st.integers(1, 6)),
        st.builds(Chosen, st.just("last_turns"), st.integers(1, 3)),
        st.builds(Chosen, st.just("only_agents"), some),
        st.builds(Chosen, st.just("redact"), st.sampled_from(["refund", r"\d+", "ok|yes", "[aeiou]", "."])),
        st.builds(Chosen, st.just("summary"), st.integers(0, 2)),
        st.builds(Chosen, st.sampled_from(["mapped", "shout"])),
    )


def compositions(*, agents: Sequence[str] = AGENTS, most: int = 3) -> st.SearchStrategy[Composed]:
    """One to three of them, one after the other."""
    return st.lists(choices(agents=agents), min_size=1, max_size=most).map(tuple)
