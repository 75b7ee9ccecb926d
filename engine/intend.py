"""From a decision to events: everything that needs the code, and is a computation.

Instructions, gates, targets and filters are computed here. They may run again after a
conflict or a crash, and only what one of them came to is recorded. Nothing here has an effect.
"""

from random import random
from typing import Any

from msgspec import Struct

from batonlog.engine.agents import Agent
from batonlog.engine.arguments import BadArgumentsError, read_arguments
from batonlog.engine.contexts import Contexts
from batonlog.engine.decide import Step
from batonlog.engine.draft import Draft
from batonlog.engine.errors import words_of
from batonlog.engine.models import (
    ChainKind,
    Issuer,
    Model,
    ModelSettings,
    chain_of,
    is_unavailable,
    issuer_of,
    open_conversation,
)
from batonlog.engine.registry import UnknownAgentError
from batonlog.engine.rewrites import Rewrites
from batonlog.engine.setup import Resolved, Setup
from batonlog.engine.starting import called, gated, in_words, is_async, never, notes_of, unavailable
from batonlog.engine.transfers import Transfers
from batonlog.events import (
    AgentResolved,
    ApprovalRequested,
    Event,
    ModelRequested,
    RunFailed,
    UsageError,
)
from batonlog.projections.legality import violations
from batonlog.projections.offers import Parts
from batonlog.projections.pairing import is_call
from batonlog.projections.request import digest_of
from batonlog.projections.state import Call, ChainState, State
from batonlog.projections.view import View
from batonlog.projections.wire import WIRE


class Again(Struct, frozen=True, kw_only=True):
    """What follows when a model has failed."""

    retried: bool
    """Whether a model is asked again at this turn."""
    delay: float = 0.0
    """Seconds before that."""
    passed_on: bool = False
    """Whether it is another one."""


AT_ONCE, NOT_AGAIN = Again(retried=True), Again(retried=False)


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
        self._settings = settings
        self.contexts = Contexts(session, context)
        self._rewrites = Rewrites(setup, session=session, context=context)
        self.transfers = Transfers(setup, self.contexts, self._rewrites, worker=worker, fail=self.fail)
        self._same: dict[str, tuple[Resolved, Parts]] = {}
        """What was found to be the same in code and log."""
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
                await self.transfers.begin(draft, draft.state.calls[step.transfer])
            elif step.ask:
                await self._ask(draft)
        except Exception as error:  # of a user's instructions, condition, provider
            draft.back(mark)
            self.fail(draft, error)

    def waits(self, state: State, step: Step) -> bool:
        """Whether following a step waits for somebody: a callable that is async, or a provider."""
        if step.transfer is not None:
            return self.transfers.waits(state.calls[step.transfer])
        if not step.ask:
            return False
        try:
            agent = self._setup.registry.acting(state.agent)
        except UnknownAgentError:  # following the step will say so
            return False
        if any(map(is_async, agent.callables)):
            return True
        try:
            model = self._setup.model_of(agent, state.given_up)
        except Exception:  # of a provider: following the step will say so
            return False
        return opens_conversation(state, model) or self._rewrites.waits(state, agent.name, model)

    def fail(self, draft: Draft, error: Exception, kind: str | None = None) -> None:
        """End the draft in a failure."""
        self.failure = error
        draft.add(RunFailed(kind=kind or type(error).__name__, message=words_of(error)))

    def may_compact(self, state: State) -> bool:
        """Whether a view that its provider found too long is compacted and sent again: once."""
        return self._setup.compact is not None and not state.squeezed

    def again(self, state: State, error: Exception) -> "Again":
        """Who is asked after a model has failed: the same one, after a wait, or the next one, or nobody."""
        request, agent = state.request, self._setup.registry.get(state.agent or "")
        if request is None or agent is None or state.cancel is not None:
            return NOT_AGAIN
        delay = self._setup.retries.delay(state.tries, error, chance=random())
        if delay is not None:
            return Again(retried=True, delay=delay)
        if is_unavailable(error) and self._has_another(agent, {*state.given_up, request.event.issuer}):
            return Again(retried=True, passed_on=True)
        return NOT_AGAIN

    def _has_another(self, agent: Agent[Any], given_up: set[Issuer]) -> bool:
        """Whether an agent may ask a model that is not given up."""
        try:
            return issuer_of(self._setup.model_of(agent, given_up)) not in given_up
        except Exception:  # of a provider: asking for the model again will say so
            return True

    # -- asking the model

    async def _ask(self, draft: Draft) -> None:
        state = draft.state
        agent = self._setup.registry.acting(state.agent)
        model = self._setup.model_of(agent, state.given_up)
        context = self.contexts.of_run(state, agent.name)
        resolved = await self._setup.resolve(agent, context, self._settings)
        draft.add(*notes_of(context), *self._resolved(agent.name, state.parts.get(agent.name), resolved))
        if (compaction := await self._rewrites.compaction(draft.state, agent.name, model)) is not None:
            draft.add(compaction)
        if (repair := self._rewrites.repair(draft.state, issuer_of(model))) is not None:
            draft.add(repair)
        draft.add(await _request(draft.state, agent.name, model))

    def _resolved(self, agent: str, known: Parts | None, now: Resolved) -> list[Event]:
        """Only the parts that changed since the session last saw this agent."""
        same = self._same.get(agent)
        if same is not None and same[0] is now and same[1] is known:
            return []
        changes = _changes(agent, known, now)
        if not changes and known is not None:
            self._same[agent] = (now, known)
        return changes

    # -- calls

    async def _start(self, draft: Draft, call: Call) -> None:
        state = draft.state
        tool = self._setup.registry.tool(call.agent, call.name)
        if tool is None or tool.runs_elsewhere:
            draft.add(unavailable(call))
            return
        try:
            arguments = read_arguments(call.name, call.arguments)
            tool.check(arguments)
        except BadArgumentsError as error:
            draft.add(never(call, "invalid_arguments", str(error)))
            return
        except Exception as error:  # of a check of the user's own
            text = f"The arguments of {call.name} could not be checked: {in_words(error)}"
            draft.add(never(call, "invalid_arguments", text))
            return
        context = self.contexts.of_call(state, call, call.attempts + 1)
        if await gated(state, call, tool.needs_approval, context, arguments):
            draft.add(*notes_of(context), ApprovalRequested(call=call.ref, reason="approval"))
            return
        draft.add(*notes_of(context), called(call, arguments))


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


def opens_conversation(state: State, model: Model) -> bool:
    """Whether asking a model opens a new conversation of the provider's."""
    if chain_of(model) != "conversation":
        return False
    return not _goes_on(state.chain, state.place.taken(), issuer_of(model), "conversation")


def _goes_on(chain: ChainState | None, view: View, issuer: tuple[str, str], kind: ChainKind | None) -> bool:
    """Whether a request may continue what the provider holds."""
    if chain is None or chain.issuer != issuer or chain.held >= len(view):
        return False
    if kind != ("previous_response_id" if chain.conversation is None else "conversation"):
        return False
    # The id of a call that somebody gave may be in use there, and only a whole view tells them apart.
    return not any(is_call(item) for item in view[chain.held :])


async def _request(state: State, agent: str, model: Model) -> ModelRequested:
    issuer, kind = issuer_of(model), chain_of(model)
    view = state.place.taken()
    if not view:
        raise UsageError(f"there is nothing to show to {agent}: a model needs at least one item")
    _check_waiting(state, view, issuer)
    parts = state.parts[agent]
    chain = state.chain if _goes_on(state.chain, view, issuer, kind) else None
    first = chain.held if chain is not None else 0
    previous = conversation = None
    if kind == "conversation":
        # Opening an empty one is a computation: after a conflict or a crash another is opened.
        conversation = chain.conversation if chain is not None else await _opened(model)
    elif chain is not None:
        previous = chain.response_id
    run = state.run
    return ModelRequested(
        turn=(run.turns if run else 0) + 1,
        agent=agent,
        parts=parts.versions,
        issuer=issuer,
        previous_response_id=previous,
        conversation=conversation,
        first=first,
        wire=WIRE,
        attempt=state.attempts + 1,
        stored=kind == "previous_response_id" or conversation is not None,
        digest=digest_of(
            view=view,
            parts=parts,
            issuer=issuer,
            first=first,
            previous_response_id=previous,
            conversation=conversation,
        ),
    )


async def _opened(model: Model) -> str | None:
    """A new conversation; None if the provider does not answer now.

    Then the request goes out by itself. If that is not answered either, it is an attempt like any other.
    """
    try:
        return await open_conversation(model)
    except Exception as error:
        if not is_unavailable(error):
            raise
        return None
