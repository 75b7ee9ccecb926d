"""Rewrites, computed: what filters make of a view, and what has to be mended before it is sent.

Rewrites are decisions. After a conflict they are computed again, never moved: what was
appended in between would vanish.
"""

from collections.abc import Collection, Sequence
from typing import Any

from batonlog.engine.models import Issuer, Model, issuer_of
from batonlog.engine.setup import Setup
from batonlog.engine.starting import is_async
from batonlog.events import JSON, HandoffMade, HistoryRewritten, Ref, Rewrite, UsageError
from batonlog.projections import Filter, FilterInput, History, selecting
from batonlog.projections.filters import Cause, Step, apply_filters, describe
from batonlog.projections.handover import handover_input, rewrite_input, untaken
from batonlog.projections.items import Item
from batonlog.projections.legality import repaired, violations
from batonlog.projections.offers import Parts
from batonlog.projections.request import request_of
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
        made: HandoffMade,
        value: object,
        *,
        whole: bool,
    ) -> Rewrite | None:
        """What the filters of a handoff do to the view that an unfiltered one would leave.

        Transfers that were not taken are left out, unless the view is to be `whole`.
        """
        given = handover_input(state, made, session=self._session, context=self._context, arguments=value)
        without = frozenset() if whole else untaken(state, made.call)
        past = ((given.own.version, View(given.own)),) if given.own is not None else ()
        if filters:
            issuer = self._issuer_of(made.target, state)
            return await _filtered(filters, given, past=past, without=without, issuer=issuer)
        left = [item for item in given if not _is_of(item, without)]
        return _made(given, left, "drop_untaken_transfers", {})

    async def by_hand(self, filters: Sequence[Filter[Any]], state: State) -> Rewrite | None:
        """What filters do to the view as it stands, at somebody's wish."""
        return await _filtered(filters, self._given(state, "manual"))

    async def compaction(self, state: State, agent: str, model: Model) -> HistoryRewritten | None:
        """What the engine's compaction does, if the view is too long for it or for the provider.

        Raises UsageError if the provider has refused the view for its length, and it gets no shorter.
        """
        filters = self._setup.compact
        refused = _was_refused(state, model)
        if not filters or not (refused or await self._is_long(state, agent, model)):
            return None
        rewrite = await _filtered(filters, self._given(state, "compaction"))
        if rewrite is not None:
            return HistoryRewritten(cause="compaction", rewrite=rewrite)
        if refused:
            name, _ = describe(filters)
            raise UsageError(f"the history is too long for {model.name}, and {name} makes it no shorter")
        return None

    def waits(self, state: State, agent: str, model: Model) -> bool:
        """Whether a compaction may be due that waits for somebody."""
        budget, filters = self._setup.compact_above, self._setup.compact
        if not filters:
            return False
        estimate = _estimate(state, state.parts.get(agent, Parts()))
        if budget is not None and estimate > budget // 2 and hasattr(model, "count_tokens"):
            return True
        due = _was_refused(state, model) or (budget is not None and estimate > budget)
        return due and any(map(is_async, filters))

    async def _is_long(self, state: State, agent: str, model: Model) -> bool:
        """Whether the view passes the budget: near it by what the model counts, if it can."""
        budget, parts = self._setup.compact_above, state.parts[agent]
        if budget is None:
            return False
        tokens = _estimate(state, parts)
        if tokens > budget // 2 and (count := getattr(model, "count_tokens", None)) is not None:
            exact: int | None = await count(request_of(state.place.taken(), parts, agent, issuer_of(model)))
            tokens = exact if exact is not None else tokens
        return tokens > budget

    def _given(self, state: State, cause: Cause) -> FilterInput[Any]:
        return rewrite_input(state, cause, session=self._session, context=self._context)

    def _issuer_of(self, agent: str, state: State) -> Issuer | None:
        """Whom an agent will ask; None if that cannot be told."""
        try:
            return issuer_of(self._setup.model_of(self._setup.registry[agent], state.given_up))
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


def _was_refused(state: State, model: Model) -> bool:
    """Whether this model has refused the view for its length. What is too long for one may do for another."""
    return state.overflowed and state.place.issuer == issuer_of(model)


def _estimate(state: State, parts: Parts) -> int:
    """Tokens of what would be shown: as counted with the last answer, and by bytes what has come since.

    None of a view that has not grown since it was compacted: it will get no shorter.
    """
    size = state.place.taken().size()
    if size < state.compacted * _GROWN:
        return 0
    counted, at = state.counted if state.counted is not None else (parts.size() // _BYTES_A_TOKEN, 0)
    return counted + (size - at) // _BYTES_A_TOKEN


def _is_of(item: Item, calls: Collection[Ref | None]) -> bool:
    """Whether an item tells such a call and nothing else: a text about more than that stays."""
    return item.answers in calls or (bool(item.covers) and all(ref in calls for ref in item.covers))


async def _filtered(
    filters: Sequence[Filter[Any]],
    given: FilterInput[Any],
    *,
    past: Past = (),
    without: Collection[Ref | None] = (),
    issuer: Issuer | None = None,
) -> Rewrite | None:
    """What filters do, as data; None for nothing. Raises UsageError if nothing is left that can be shown."""
    after = await apply_filters(filters, given)
    kept: Sequence[Item] = after
    if without:
        kept = list(selecting.kept(History(after, given.version), lambda item: not _is_of(item, without)))
        given.steps = _still(given.steps, after, kept)
    name, parameters = describe(filters)
    # A message is never dropped by a repair.
    if not any(item.type == "message" for item in kept) and not repaired(kept, issuer):
        raise UsageError(
            f"filter {name} left nothing that can be shown: an output needs its call, "
            f"and reasoning what followed it"
        )
    return _made(given, kept, name, parameters, past=past)


def _still(steps: Sequence[Step], after: Sequence[Item], kept: Sequence[Item]) -> tuple[Step, ...]:
    """What the filters of a sequence did, with the numbers that their new items have now."""
    numbers = {id(item): n for n, item in enumerate(item for item in kept if item.ref is None)}
    new = [numbers.get(id(item)) for item in after if item.ref is None]
    return tuple(
        (name, dropped, tuple(n for n in map(new.__getitem__, puts) if n is not None))
        for name, dropped, puts in steps
    )


def _made(
    given: FilterInput[Any],
    left: Sequence[Item],
    name: str,
    parameters: dict[str, JSON],
    *,
    past: Past = (),
) -> Rewrite | None:
    changes = operations(given, left, past=past)
    if changes is None:
        return None
    return Rewrite(
        filter=name,
        parameters=parameters,
        operations=tuple(changes),
        steps=given.steps,
        spent=given.spent,
    )
