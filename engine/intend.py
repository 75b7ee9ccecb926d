"""From a decision to events: everything that needs the code, and is a computation.

Instructions, gates, targets and filters are computed here. They may run again after a
conflict or a crash, and only what one of them came to is recorded. Nothing here has an effect.
"""

from collections.abc import Awaitable, Sequence
from typing import Any

from batonlog.engine.arguments import BadArgumentsError, read_arguments
from batonlog.engine.contexts import RunContext, ToolContext
from batonlog.engine.decide import NOBODY_KNOWS, NOT_FIRST, Step, refused
from batonlog.engine.draft import Draft
from batonlog.engine.errors import words_of
from batonlog.engine.handoffs import Handoff
from batonlog.engine.models import ModelSettings, issuer_of, keeps_history
from batonlog.engine.setup import Resolved, Setup
from batonlog.events import (
    JSON,
    AgentResolved,
    ApprovalRequested,
    Event,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    ModelRequested,
    NoteAdded,
    Ref,
    Rewrite,
    RunFailed,
    RunResumed,
    ToolAbandoned,
    ToolCalled,
    UsageError,
)
from batonlog.events.lifecycle import ASKED, CALLED, UNKNOWN
from batonlog.events.values import dump
from batonlog.projections import FilterInput, History
from batonlog.projections.filters import apply_filters, describe
from batonlog.projections.items import ANSWERED_BY, Item
from batonlog.projections.legality import repaired, violations
from batonlog.projections.offers import Parts
from batonlog.projections.pairing import is_call
from batonlog.projections.placement import place
from batonlog.projections.request import digest_of
from batonlog.projections.rewrite import operations
from batonlog.projections.state import FILTER_FAILED, Call, ChainState, State
from batonlog.projections.view import View
from batonlog.projections.wire import WIRE


class Intentions:
    """Turns steps into events for one session."""

    def __init__(
        self,
        setup: Setup,
        *,
        session: str,
        worker: str,
        context: Any,
        settings: ModelSettings | None,
    ) -> None:
        self._setup = setup
        self._session = session
        self._worker = worker
        self._context = context
        self._settings = settings
        self._same: dict[str, tuple[Resolved, Parts]] = {}
        """What was found to be the same in code and log."""
        self._picked: dict[Ref, str] = {}
        """Targets that were chosen, by call: a callback runs for one, and the switch is to the same."""
        self.failure: Exception | None = None
        """What made a run.failed of the latest draft."""

    async def follow(self, draft: Draft, step: Step) -> None:
        """Add what a step comes to. What a user's callable raises becomes a `run.failed`."""
        draft.add(*step.events)
        for ref in step.start:
            await self._start(draft, draft.state.calls[ref])
        mark = draft.mark()
        try:
            if step.transfer is not None:
                await self._transfer(draft, draft.state.calls[step.transfer])
            elif step.ask:
                await self._ask(draft)
        except Exception as error:  # of a user's instructions, condition, provider
            draft.back(mark)
            self.fail(draft, error)

    def fail(self, draft: Draft, error: Exception, kind: str | None = None) -> None:
        """End the draft in a failure."""
        self.failure = error
        draft.add(RunFailed(kind=kind or type(error).__name__, message=words_of(error)))

    # -- contexts

    def run_context(self, state: State, agent: str) -> RunContext[Any]:
        """Make what instructions and conditions are given."""
        run = state.run
        return RunContext(
            session=self._session,
            run_id=run.run_id if run else "",
            turn=(run.turns if run else 0) + 1,
            agent=agent,
            context=self._context,
            notes=state.notes,
        )

    def tool_context(self, state: State, call: Call, attempt: int) -> ToolContext[Any]:
        """Make what tools, gates and handoff callbacks are given."""
        run = state.run
        return ToolContext(
            session=self._session,
            run_id=run.run_id if run else "",
            turn=run.turns if run else 0,
            agent=call.agent,
            context=self._context,
            notes=state.notes,
            call=call.ref,
            call_id=call.call_id,
            tool=call.name,
            attempt=attempt,
        )

    # -- asking the model

    async def _ask(self, draft: Draft) -> None:
        state = draft.state
        agent = self._setup.registry[state.agent or ""]
        model = self._setup.model_of(agent)
        context = self.run_context(state, agent.name)
        resolved = await self._setup.resolve(agent, context, self._settings)
        draft.add(*notes_of(context), *self._resolved(agent.name, state.parts.get(agent.name), resolved))
        issuer = issuer_of(model)
        self._repair(draft, issuer)
        draft.add(_request(draft.state, agent.name, issuer, stored=keeps_history(model)))

    def _resolved(self, agent: str, known: Parts | None, now: Resolved) -> list[Event]:
        """Only the parts that changed since the session last saw this agent."""
        same = self._same.get(agent)
        if same is not None and same[0] is now and same[1] is known:
            return []
        changes = _changes(agent, known, now)
        if not changes and known is not None:
            self._same[agent] = (now, known)
        return changes

    def _repair(self, draft: Draft, issuer: tuple[str, str]) -> None:
        """Mend what this provider would refuse, as a rewrite: then what is sent is the view."""
        state = draft.state
        view = state.place.settled
        known = state.place.issuer in (None, issuer) and not view.repeats_an_id()
        if known and not state.unchecked:
            return
        found = list(violations(list(view), issuer))
        if not found:
            return
        mended = operations(view, repaired(list(view), issuer))
        if mended is not None:
            rewrite = Rewrite(
                filter="repair",
                parameters={},
                operations=tuple(mended),
                repairs=tuple(f"{fault.rule}: {fault.message}" for fault in found),
            )
            draft.add(HistoryRewritten(cause="repair", rewrite=rewrite))

    # -- calls

    async def _start(self, draft: Draft, call: Call) -> None:
        state = draft.state
        tool = self._setup.registry.tool(call.agent, call.name)
        if tool is None or tool.runs_elsewhere:
            draft.add(_unavailable(call))
            return
        try:
            arguments = read_arguments(call.name, call.arguments)
            tool.check(arguments)
        except BadArgumentsError as error:
            draft.add(_never(call, "invalid_arguments", str(error)))
            return
        except Exception as error:  # of a check of the user's own
            text = f"The arguments of {call.name} could not be checked: {_typed(error)}"
            draft.add(_never(call, "invalid_arguments", text))
            return
        context = self.tool_context(state, call, call.attempts + 1)
        if await _gated(state, call, tool.needs_approval, context, arguments):
            draft.add(*notes_of(context), ApprovalRequested(call=call.ref, reason="approval"))
            return
        draft.add(*notes_of(context), _called(call, arguments))

    # -- handoffs

    async def _transfer(self, draft: Draft, call: Call) -> None:
        state = draft.state
        one = self._setup.registry.handoff(call.agent, call.name)
        if one is None:
            draft.add(_unavailable(call))
            return
        context = self.tool_context(state, call, call.attempts + 1)
        try:
            arguments = read_arguments(call.name, call.arguments)
            value = one.read(arguments)
            given = one.given(context, value)
            if await _gated(state, call, one.needs_approval, *given):
                draft.add(*notes_of(context), ApprovalRequested(call=call.ref, reason="approval"))
                return
            self._picked[call.ref] = await self._target(one, state, given)
        except BadArgumentsError as error:
            draft.add(_never(call, "invalid_arguments", str(error)))
            return
        except _NoTargetError as error:
            draft.add(_not_made(call, error))
            return
        if one.on_handoff is not None and not call.prepared:
            draft.add(*notes_of(context), _called(call, arguments))  # the callback is an effect
            return
        if call.state == UNKNOWN:  # its callback had returned; its filter is tried again
            draft.add(_called(call, arguments))
        await self.hand_over(draft, call.ref, context.noted)

    async def hand_over(self, draft: Draft, ref: Ref, noted: dict[str, JSON]) -> None:
        """Make the switch: filter what the target is shown, and append both together.

        A raising filter fails the run with the record whole: what it would have hidden is unknown.
        """
        call = draft.state.calls[ref]
        one = self._setup.registry.handoff(call.agent, call.name)
        if one is None:
            draft.add(_unavailable(call))
            return
        context = self.tool_context(draft.state, call, max(call.attempts, 1))
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
            filtered = await self._filtered(draft.state, one, made, value)
        except Exception as error:
            draft.back(mark)
            self._filter_failed(draft, call, noted, error)
            return
        draft.add(*filtered, made)

    def _filter_failed(self, draft: Draft, call: Call, noted: dict[str, JSON], error: Exception) -> None:
        if call.state == CALLED:
            # Its callback has returned and is not called again: what is tried again is the filter.
            notes = [NoteAdded(name=name, data=data) for name, data in noted.items()]
            draft.add(*notes, RunResumed(by=self._worker))
        self.fail(draft, error, FILTER_FAILED)

    async def _target(self, one: Handoff[Any], state: State, given: tuple[Any, ...]) -> str:
        """Choose the target. Raises _NoTargetError, with what the model is told."""
        target: Any = one.targets[0]
        if one.on_invoke is not None:
            try:
                made = one.on_invoke(*given)
                target = await made if isinstance(made, Awaitable) else made
            except Exception as error:
                raise _NoTargetError("on_invoke", f"The transfer was not made: {_typed(error)}") from error
        name = target if isinstance(target, str) else getattr(target, "name", None)
        if not isinstance(name, str) or name not in self._setup.registry:
            raise _NoTargetError("unknown_target", f"The transfer was not made: there is no agent {name}.")
        if name == state.agent:
            raise _NoTargetError(
                "same_target", f"Not made: {name} holds the conversation already. Go on with it."
            )
        return name

    async def _filtered(
        self, state: State, one: Handoff[Any], made: HandoffMade, value: object
    ) -> Sequence[Event]:
        """What the filter does to the view that an unfiltered handoff would leave."""
        filters = self._setup.handoff_filter if isinstance(one.input_filter, str) else one.input_filter
        # The filter event and the switch stand next to each other: the acknowledgement is two on.
        base = place(state.place, state.version + 2, made).settled
        untaken = _untaken(state, made.call)
        after: Sequence[Item] = list(base)
        if filters:
            after = await apply_filters(filters, self._filter_input(state, base, made, value))
        name, parameters = describe(filters) if filters else ("drop_untaken_transfers", {})
        kept = [item for item in after if untaken.isdisjoint((item.ref, item.answers, *item.replaces))]
        if filters and not repaired(kept, self._issuer_of(made.target)):
            raise UsageError(
                f"filter {name} left nothing that can be shown: an output needs its call, "
                f"and reasoning what followed it"
            )
        changes = operations(base, kept, past=state.place.past)
        if changes is None:
            return ()
        rewrite = Rewrite(filter=name, parameters=parameters, operations=tuple(changes))
        return (HandoffFiltered(call=made.call, rewrite=rewrite),)

    def _issuer_of(self, agent: str) -> tuple[str, str] | None:
        """Whom an agent will ask; None if that cannot be told."""
        try:
            return issuer_of(self._setup.model_of(self._setup.registry[agent]))
        except Exception:  # of a provider: asking for the model again will say so
            return None

    def _filter_input(self, state: State, base: View, made: HandoffMade, value: object) -> FilterInput[Any]:
        turn = state.response
        own = state.hands.get(made.target)
        past = next((view for version, view in reversed(state.place.past) if version == own), None)
        return FilterInput(
            base,
            version=state.version,
            cause="handoff",
            session=self._session,
            context=self._context,
            split=next(
                (n for n, item in enumerate(base) if item.ref and item.ref.version >= turn), len(base)
            ),
            own=History(past, own or 0) if past is not None else None,
            source=made.source,
            target=made.target,
            arguments=value,
        )


class _NoTargetError(Exception):
    """No target could be chosen."""

    def __init__(self, reason: str, answer: str) -> None:
        super().__init__(answer)
        self.reason = reason
        self.answer = answer


def _untaken(state: State, taken: Ref) -> frozenset[Ref | None]:
    """Transfers of this response that were not taken."""
    return frozenset(
        ref
        for ref, call in state.calls.items()
        if ref != taken and (offer := state.offer_of(call)) is not None and offer.kind == "handoff"
    )


def _acknowledgement(one: Handoff[Any], target: str) -> str:
    return one.acknowledgement if one.acknowledgement is not None else dump({"assistant": target}).decode()


def _not_first(state: State, taken: Call) -> list[Event]:
    return [refused(call, "not_first", NOT_FIRST) for call in state.open_calls() if call.ref != taken.ref]


def _not_made(call: Call, error: _NoTargetError) -> Event:
    if call.attempts:
        return ToolAbandoned(
            call=call.ref,
            call_id=call.call_id,
            reason="superseded",
            answer=error.answer,
            item=ANSWERED_BY[call.item],
        )
    return refused(call, error.reason, error.answer)


def _unavailable(call: Call) -> Event:
    """Log and code disagree: this process lacks what the log names."""
    return _never(call, "unavailable", f"{call.name} is not available any more. Go on without it.")


def _never(call: Call, reason: str, answer: str) -> Event:
    """Answer a call that is not started here; of one that was started before, nobody knows."""
    if call.attempts:
        return ToolAbandoned(
            call=call.ref,
            call_id=call.call_id,
            reason="unknown",
            answer=NOBODY_KNOWS,
            item=ANSWERED_BY[call.item],
        )
    return refused(call, reason, answer)


def _called(call: Call, arguments: dict[str, JSON]) -> ToolCalled:
    return ToolCalled(call=call.ref, name=call.name, arguments=arguments, attempt=call.attempts + 1)


async def _gated(state: State, call: Call, gate: object, *given: Any) -> bool:
    """Whether a person must agree first, by what was promised. A function that raises counts as yes."""
    offer = state.offer_of(call)
    if call.state != ASKED or offer is None or offer.gate == "no":
        return False
    if (call.agent, call.name) in state.standing:
        return False
    if offer.gate == "yes" or not callable(gate):
        return True
    try:
        made = gate(*given)
        return bool(await made if isinstance(made, Awaitable) else made)
    except Exception:
        return True


def _changes(agent: str, known: Parts | None, now: Resolved) -> list[Event]:
    old = known if known is not None else Parts()
    changes: dict[str, Any] = {}
    if old.instructions != now.instructions:
        changes["instructions"] = now.instructions
    if tuple(map(bytes, old.offered)) != tuple(map(bytes, now.offered)):
        changes["offered"] = now.offered
    if bytes(old.settings) != bytes(now.settings):
        changes["settings"] = now.settings
    return [AgentResolved(agent=agent, **changes)] if changes or known is None else []


def _check_waiting(state: State, view: View, issuer: tuple[str, str]) -> None:
    """Refuse input of this turn that cannot be sent: before it has settled, no rewrite mends it."""
    odd = [item for item, later in state.place.queue if not later and item.type != "message"]
    if odd and (bad := next(violations(list(view), issuer), None)) is not None:
        raise UsageError(
            f"what was added to the run cannot be sent: {bad.message}. Add messages only, or start a new run"
        )


def _goes_on(chain: ChainState | None, view: View, issuer: tuple[str, str]) -> bool:
    """Whether a request may continue what the provider holds."""
    if chain is None or chain.issuer != issuer or chain.held >= len(view):
        return False
    # The id of a call that somebody gave may be in use there, and only a whole view tells them apart.
    return not any(is_call(item) for item in view[chain.held :])


def _request(state: State, agent: str, issuer: tuple[str, str], *, stored: bool) -> ModelRequested:
    view = state.place.taken()
    if not view:
        raise UsageError(f"there is nothing to show to {agent}: a model needs at least one item")
    _check_waiting(state, view, issuer)
    parts = state.parts[agent]
    chain = state.chain if stored and _goes_on(state.chain, view, issuer) else None
    first = chain.held if chain is not None else 0
    previous = chain.response_id if chain is not None else None
    run = state.run
    return ModelRequested(
        turn=(run.turns if run else 0) + 1,
        agent=agent,
        parts=parts.versions,
        issuer=issuer,
        previous_response_id=previous,
        first=first,
        wire=WIRE,
        attempt=state.attempts + 1,
        stored=stored,
        digest=digest_of(
            view=view,
            parts=parts,
            issuer=issuer,
            first=first,
            previous_response_id=previous,
            conversation=None,
        ),
    )


def notes_of(context: RunContext[Any]) -> list[Event]:
    """What a callback has noted, as events."""
    return [NoteAdded(name=name, data=data) for name, data in context.noted.items()]


def _typed(error: Exception) -> str:
    return f"{type(error).__name__}: {words_of(error)}"
