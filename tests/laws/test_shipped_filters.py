"""The laws of filters, for every shipped one and for whatever comes of one after the other."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.laws.depth import tried
from tests.laws.shipped import Composed, built, compositions, mapped, shouted, summarised

from batonlog.events import UsageError
from batonlog.projections import (
    Filter,
    FilterInput,
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
    replace_with_summary,
)
from batonlog.projections.filters import apply_filters
from batonlog.projections.testing import check_filter
from batonlog.projections.testing.inputs import all_inputs
from batonlog.projections.testing.sayings import AGENTS

ONCE: dict[str, Filter[Any]] = {
    "messages_only": messages_only,
    "drop_tools": drop_tools,
    "drop_reasoning": drop_reasoning,
    "only_agents(one)": only_agents(AGENTS[0]),
    "only_agents(two)": only_agents(*AGENTS[1:]),
    "only_agents(nobody)": only_agents("nobody"),
    "keep_last(1)": keep_last(1),
    "keep_last(4)": keep_last(4),
    "last_turns(1)": last_turns(1),
    "last_turns(2)": last_turns(2),
    "redact(pattern)": redact(r"(?i)refund|order|\d"),
    "redact(function)": redact(shouted),
    "nest_history": nest_history,
}
"""Those that leave alone what they have returned."""

OTHERS: dict[str, Filter[Any]] = {
    "redact(all)": redact("(?s).+"),
    "replace_with_summary": replace_with_summary(summarised),
    "replace_with_summary(0)": replace_with_summary(summarised, keep_turns=0),
    "nest_history(mapper)": partial(nest_history, mapper=mapped),
    "own_view": own_view,
}


@pytest.mark.parametrize("name", ONCE)
def test_a_shipped_filter_keeps_all_laws_and_applied_twice_is_applied_once(name: str) -> None:
    check_filter(ONCE[name], idempotent=True, settings=tried(500, many=5_000))


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_shipped_filter_keeps_all_laws(name: str) -> None:
    check_filter(OTHERS[name], settings=tried(500, many=5_000))


def with_composition(given: FilterInput[Any], composed: Composed) -> FilterInput[Composed]:
    """The same input with a composition of filters as its context.

    A view is mended when a model is asked, so the one in which somebody handed off may be illegal. What
    mended it later stands in the history alone, where an earlier filter may drop it: such are left out.
    """
    own = given.own
    return FilterInput(
        given,
        version=given.version,
        cause=given.cause,
        session=given.session,
        context=composed,
        split=len(given.earlier),
        own=own if own is not None and not check_legal(own) else None,
        source=given.source,
        target=given.target,
        arguments=given.arguments,
    )


async def composed(given: FilterInput[Composed]) -> Iterable[Item]:
    """The composition that the context holds; where it leaves nothing, which is refused, all."""
    try:
        return await apply_filters(built(given.context), given)
    except UsageError as error:
        if "left nothing to show" not in str(error):
            raise
        return given


def test_shipped_filters_one_after_the_other_keep_all_laws() -> None:
    inputs = st.builds(with_composition, all_inputs(), compositions(agents=AGENTS))
    check_filter(composed, inputs=inputs, settings=tried(500))
