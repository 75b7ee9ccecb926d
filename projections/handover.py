"""What a filter is given: the view that it rewrites, and the circumstances."""

from collections.abc import Sequence
from typing import TypeVar

from batonlog.events import HandoffMade, Ref
from batonlog.projections.filters import Cause, FilterInput
from batonlog.projections.history import History
from batonlog.projections.items import Item
from batonlog.projections.placement import place
from batonlog.projections.state import State

_Ctx = TypeVar("_Ctx")


def handover_input(
    state: State, made: HandoffMade, *, session: str, context: _Ctx, arguments: object
) -> FilterInput[_Ctx]:
    """Return the input of the filter of a handoff that is about to be made.

    Its own answer is in it. It stands two versions on: `handoff.filtered` comes before it.
    """
    base = place(state.place, state.version + 2, made).settled
    own = state.hands.get(made.target)
    past = next((view for version, view in reversed(state.place.past) if version == own), None)
    return FilterInput(
        base,
        version=state.version,
        cause="handoff",
        session=session,
        context=context,
        split=start_of(base, state.response),
        own=History(past, own or 0) if past is not None else None,
        source=made.source,
        target=made.target,
        arguments=arguments,
    )


def rewrite_input(state: State, cause: Cause, *, session: str, context: _Ctx) -> FilterInput[_Ctx]:
    """Return the input of a filter that rewrites the view as it stands."""
    view = state.place.settled
    return FilterInput(
        view,
        version=state.version,
        cause=cause,
        session=session,
        context=context,
        split=start_of(view, state.response),
        source=state.agent,
        target=state.agent,
    )


def start_of(view: Sequence[Item], version: int) -> int:
    """Return the place of the first item that was recorded at that version or later."""
    return next((n for n, item in enumerate(view) if item.ref and item.ref.version >= version), len(view))


def untaken(state: State, taken: Ref) -> frozenset[Ref | None]:
    """Return the transfers of the open response that are not taken: the target is not shown them."""
    return frozenset(
        ref
        for ref, call in state.calls.items()
        if ref != taken and (offer := state.offer_of(call)) is not None and offer.kind == "handoff"
    )
