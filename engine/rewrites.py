"""Rewrites, computed: what filters make of a view, and what has to be mended before it is sent.

Rewrites are decisions. After a conflict they are computed again, never moved: what was
appended in between would vanish.
"""

from collections.abc import Collection, Sequence
from typing import Any

from batonlog.engine.models import Issuer, Model, issuer_of
from batonlog.engine.setup import Setup
from batonlog.events import HandoffMade, HistoryRewritten, Ref, Rewrite, UsageError
from batonlog.projections import Filter, FilterInput, History
from batonlog.projections.filters import Cause, apply_filters, describe
from batonlog.projections.items import Item
from batonlog.projections.legality import repaired, violations
from batonlog.projections.rewrite import Past, operations
from batonlog.projections.state import State
from batonlog.projections.view import View

_GROWN = 1.1
"""How much longer than after the last compaction a view must be, to be compacted again."""

_BYTES_A_TOKEN = 4


class Rewrites:
    """Computes the rewrites of one session."""

    def __init__(self, setup: Setup, *, session: str, context: Any) -> None:
        self._setup = setup
        self._session = session
        self._context = context

    # -- by a filter

    async def of_handoff(
        self,
        filters: Sequence[Filter[Any]] | None,
        state: State,
        base: View,
        made: HandoffMade,
        value: object,
        untaken: Collection[Ref],
    ) -> Rewrite | None:
        """What the filters of a handoff do to the view that an unfiltered one would leave."""
        own = _own(state, made.target)
        if not filters:
            kept = [item for item in base if not _is_of(item, untaken)]
            return _made(base, kept, "drop_untaken_transfers", {}, past=own)
        given = FilterInput(
            base,
            version=state.version,
            cause="handoff",
            session=self._session,
            context=self._context,
            split=_start_of(base, state.response),
            own=History(own[0][1], own[0][0]) if own else None,
            source=made.source,
            target=made.target,
            arguments=value,
        )
        return await _filtered(
            filters, given, base, past=own, without=untaken, issuer=self._issuer_of(made.target)
        )

    async def by_hand(self, filters: Sequence[Filter[Any]], state: State) -> Rewrite | None:
        """What filters do to the view as it stands, at somebody's wish."""
        return await _filtered(filters, self._given(state, "manual"), state.place.settled)

    async def compaction(self, state: State, model: Model) -> HistoryRewritten | None:
        """What the engine's compaction does, if the view is too long for it or for the provider.

        Raises UsageError if the provider has refused the view for its length, and it gets no shorter.
        """
        filters = self._setup.compact
        if not filters or not (state.overflowed or await self._is_long(state, model)):
            return None
        before = state.place.settled
        rewrite = await _filtered(filters, self._given(state, "compaction"), before)
        if rewrite is not None:
            return HistoryRewritten(cause="compaction", rewrite=rewrite)
        if state.overflowed:
            name, _ = describe(filters)
            raise UsageError(f"the history is too long for {model.name}, and {name} makes it no shorter")
        return None

    async def _is_long(self, state: State, model: Model) -> bool:
        """Whether the view passes the budget: as its provider counted it, and by bytes what has come since."""
        budget = self._setup.compact_above
        size = state.place.taken().size()
        if budget is None or size < state.compacted * _GROWN:
            return False
        counted, at = state.counted if state.counted is not None else (0, 0)
        return counted + (size - at) // _BYTES_A_TOKEN > budget

    def _given(self, state: State, cause: Cause) -> FilterInput[Any]:
        view = state.place.settled
        return FilterInput(
            view,
            version=state.version,
            cause=cause,
            session=self._session,
            context=self._context,
            split=_start_of(view, state.response),
            source=state.agent,
            target=state.agent,
        )

    def _issuer_of(self, agent: str) -> Issuer | None:
        """Whom an agent will ask; None if that cannot be told."""
        try:
            return issuer_of(self._setup.model_of(self._setup.registry[agent]))
        except Exception:  # of a provider: asking for the model again will say so
            return None

    # -- by need

    def repair(self, state: State, issuer: Issuer) -> HistoryRewritten | None:
        """Mend what this provider would refuse, as a rewrite: then what is sent is the view."""
        view = state.place.settled
        known = state.place.issuer in (None, issuer) and not view.repeats_an_id()
        if known and not state.unchecked:
            return None
        found = list(violations(list(view), issuer))
        mended = operations(view, repaired(list(view), issuer)) if found else None
        if mended is None:
            return None
        rewrite = Rewrite(
            filter="repair",
            parameters={},
            operations=tuple(mended),
            repairs=tuple(f"{fault.rule}: {fault.message}" for fault in found),
        )
        return HistoryRewritten(cause="repair", rewrite=rewrite)


def _own(state: State, agent: str) -> Past:
    """An agent's view when it last handed off, by its version; nothing if it never did."""
    version = state.hands.get(agent)
    return tuple((at, view) for at, view in state.place.past if at == version)[-1:]


def _start_of(view: View, version: int) -> int:
    return next((n for n, item in enumerate(view) if item.ref and item.ref.version >= version), len(view))


def _is_of(item: Item, calls: Collection[Ref | None]) -> bool:
    return any(ref in calls for ref in (item.ref, item.answers, *item.replaces))


async def _filtered(
    filters: Sequence[Filter[Any]],
    given: FilterInput[Any],
    base: View,
    *,
    past: Past = (),
    without: Collection[Ref] = (),
    issuer: Issuer | None = None,
) -> Rewrite | None:
    """What filters do, as data; None for nothing. Raises UsageError if nothing is left that can be shown."""
    after = await apply_filters(filters, given)
    kept = [item for item in after if not _is_of(item, without)]
    name, parameters = describe(filters)
    if not repaired(kept, issuer):
        raise UsageError(
            f"filter {name} left nothing that can be shown: an output needs its call, "
            f"and reasoning what followed it"
        )
    return _made(base, kept, name, parameters, past=past, spent=given.spent)


def _made(
    base: View, after: Sequence[Item], name: str, parameters: Any, *, past: Past, spent: Any = ()
) -> Rewrite | None:
    changes = operations(base, after, past=past)
    if changes is None:
        return None
    return Rewrite(filter=name, parameters=parameters, operations=tuple(changes), spent=spent)
