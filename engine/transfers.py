"""Transfers: one agent hands control to another, and what the other is shown.

In order: arguments, gate, target (`on_invoke`); then the callback, which is an effect; then the
filter, and one append of the refusals of the other transfers, the rewrite and the switch.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from batonlog.engine.agents import Agent
from batonlog.engine.arguments import BadArgumentsError, read_arguments
from batonlog.engine.contexts import Contexts
from batonlog.engine.decide import NOT_FIRST, abandoned, refused
from batonlog.engine.draft import Draft
from batonlog.engine.handoffs import Handoff
from batonlog.engine.rewrites import Rewrites
from batonlog.engine.setup import Setup
from batonlog.engine.starting import called, gated, in_words, is_async, never, notes_of, unavailable
from batonlog.events import (
    JSON,
    ApprovalRequested,
    Event,
    HandoffFiltered,
    HandoffMade,
    NoteAdded,
    Ref,
    Rewrite,
    RunResumed,
)
from batonlog.events.lifecycle import CALLED, UNKNOWN
from batonlog.events.values import dump
from batonlog.projections import Filter
from batonlog.projections.items import ANSWERED_BY
from batonlog.projections.state import FILTER_FAILED, Call, State

IN_CIRCLES = (
    "Not made: control goes back and forth, and nothing is done in between. "
    "{} had it already. Answer the user yourself, or use a tool."
)


class Transfers:
    """Makes the handoffs of one session."""

    def __init__(
        self,
        setup: Setup,
        contexts: Contexts,
        rewrites: Rewrites,
        *,
        worker: str,
        fail: Callable[[Draft, Exception, str], None],
    ) -> None:
        self._setup = setup
        self._contexts = contexts
        self._rewrites = rewrites
        self._worker = worker
        self._fail = fail
        self._picked: dict[Ref, str] = {}
        """Targets that were chosen, by call: a callback runs for one, and the switch is to the same."""

    def waits(self, call: Call) -> bool:
        """Whether making a transfer waits for a callable that is async."""
        one = self._setup.registry.handoff(call.agent, call.name)
        if one is None:
            return False
        return any(map(is_async, (one.on_invoke, one.needs_approval, *(self._filters_of(one) or ()))))

    def _filters_of(self, one: Handoff[Any]) -> Sequence[Filter[Any]] | None:
        """Its own filters, or the engine's."""
        return self._setup.handoff_filter if isinstance(one.input_filter, str) else one.input_filter

    async def begin(self, draft: Draft, call: Call) -> None:
        """Look at a transfer: check it, ask the gate, choose the target; then its callback, or the switch."""
        state = draft.state
        one = self._setup.registry.handoff(call.agent, call.name)
        if one is None:
            draft.add(unavailable(call))
            return
        context = self._contexts.of_call(state, call, call.attempts + 1)
        try:
            arguments = read_arguments(call.name, call.arguments)
            value = one.read(arguments)
            given = one.given(context, value)
            if await gated(state, call, one.needs_approval, *given):
                draft.add(*notes_of(context), ApprovalRequested(call=call.ref, reason="approval"))
                return
            self._picked[call.ref] = await self._target(one, state, given)
        except BadArgumentsError as error:
            draft.add(never(call, "invalid_arguments", str(error)))
            return
        except _NoTargetError as error:
            draft.add(_not_made(call, error))
            return
        if one.on_handoff is not None and not call.prepared:
            draft.add(*notes_of(context), called(call, arguments))  # the callback is an effect
            return
        if call.state == UNKNOWN:  # its callback had returned; its filter is tried again
            draft.add(called(call, arguments))
        await self.hand_over(draft, call.ref, context.noted)

    async def hand_over(self, draft: Draft, ref: Ref, noted: dict[str, JSON]) -> None:
        """Make the switch: filter what the target is shown, and append both together.

        A raising filter fails the run with the record whole: what it would have hidden is unknown.
        """
        call = draft.state.calls[ref]
        one = self._setup.registry.handoff(call.agent, call.name)
        if one is None:
            draft.add(unavailable(call))
            return
        context = self._contexts.of_call(draft.state, call, max(call.attempts, 1))
        context.noted.update(noted)
        arguments = read_arguments(call.name, call.arguments)
        value = one.read(arguments)
        try:
            target = self._picked.get(ref) or await self._target(one, draft.state, one.given(context, value))
        except _NoTargetError as error:
            draft.add(*notes_of(context), _not_made(call, error))
            return
        mark = draft.mark()
        draft.add(*notes_of(context), *_not_first(draft.state, call))
        made = HandoffMade(
            call=call.ref,
            call_id=call.call_id,
            source=call.agent,
            target=target,
            arguments=arguments,
            acknowledgement=_acknowledgement(one, target),
            item=ANSWERED_BY[call.item],
        )
        try:
            rewrite = await self._rewrite(draft.state, one, made, value)
        except Exception as error:
            draft.back(mark)
            self._filter_failed(draft, call, noted, error)
            return
        if rewrite is not None:
            draft.add(HandoffFiltered(call=call.ref, rewrite=rewrite))
        draft.add(made)

    def _filter_failed(self, draft: Draft, call: Call, noted: dict[str, JSON], error: Exception) -> None:
        if call.state == CALLED:
            # Its callback has returned and is not called again: what is tried again is the filter.
            notes = [NoteAdded(name=name, data=data) for name, data in noted.items()]
            draft.add(*notes, RunResumed(by=self._worker))
        self._fail(draft, error, FILTER_FAILED)

    async def _target(self, one: Handoff[Any], state: State, given: tuple[Any, ...]) -> str:
        """Choose the target. Raises _NoTargetError, with what the model is told."""
        target: Any = one.targets[0]
        if one.on_invoke is not None:
            try:
                made = one.on_invoke(*given)
                target = await made if isinstance(made, Awaitable) else made
            except Exception as error:
                raise _NoTargetError("on_invoke", f"The transfer was not made: {in_words(error)}") from error
        name = target if isinstance(target, str) else getattr(target, "name", None)
        known = self._setup.registry.get(name) if isinstance(name, str) else None
        if known is None:
            raise _NoTargetError("unknown_target", f"The transfer was not made: there is no agent {name}.")
        if isinstance(target, Agent) and target is not known:
            raise _NoTargetError(
                "unknown_target", f"The transfer was not made: {name} is the name of two agents."
            )
        if name == state.agent:
            raise _NoTargetError(
                "same_target", f"Not made: {name} holds the conversation already. Go on with it."
            )
        if _goes_in_circles(state, known.name):
            raise _NoTargetError("ping_pong", IN_CIRCLES.format(known.name))
        return known.name

    async def _rewrite(
        self, state: State, one: Handoff[Any], made: HandoffMade, value: object
    ) -> Rewrite | None:
        """What the filter does to the view that an unfiltered handoff would leave."""
        filters = self._filters_of(one)
        return await self._rewrites.of_handoff(filters, state, made, value, whole=one.keep_untaken)


class _NoTargetError(Exception):
    """No target could be chosen."""

    def __init__(self, reason: str, answer: str) -> None:
        super().__init__(answer)
        self.reason = reason
        self.answer = answer


def _acknowledgement(one: Handoff[Any], target: str) -> str:
    return one.acknowledgement if one.acknowledgement is not None else dump({"assistant": target}).decode()


def _not_first(state: State, taken: Call) -> list[Event]:
    return [refused(call, "not_first", NOT_FIRST) for call in state.open_calls() if call.ref != taken.ref]


def _not_made(call: Call, error: _NoTargetError) -> Event:
    if call.attempts:
        return abandoned(call, "superseded", error.answer)
    return refused(call, error.reason, error.answer)


def _goes_in_circles(state: State, target: str) -> bool:
    """Whether control has gone back often enough with nothing done in between."""
    run = state.run
    if run is None or run.limits.ping_pong is None or target not in run.held:
        return False
    return run.bounces >= run.limits.ping_pong
