"""Run state: where a session is, and all that the engine's decisions read.

A fold over the whole log, incremental, and total: an event that the lifecycle does not list is
passed over. It reads the lifecycle from the same tables that the engine's machine is built of.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batonlog.events import (
    AgentResolved,
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    CancelRequested,
    Event,
    EventRedacted,
    GuardrailTripped,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    InputAdded,
    Limits,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    NoteAdded,
    Record,
    Ref,
    Rewrite,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunStarted,
    SessionForked,
    ToolAbandoned,
    ToolCalled,
    ToolReturned,
    UnknownEvent,
    Usage,
)
from batonlog.events.facts import raw
from batonlog.events.lifecycle import (
    ASKED,
    CALL_LIFECYCLE,
    EVERY_CALL,
    IDLE,
    RUN_LIFECYCLE,
    SETTLED,
    STOPPED,
    UNKNOWN,
)
from batonlog.projections.items import OURS, Item
from batonlog.projections.offers import Offer, Parts
from batonlog.projections.placement import Placement, place

FILTER_FAILED = "handoff.filter"
"""Kind of a `run.failed` whose cause is a handoff's filter."""

OVERFLOWED = "overflow"
"""Kind of a `model.failed` whose cause is the length of what was sent."""

CHAIN_LOST = "chain"
"""Kind of a `model.failed` whose cause is that the provider does not know what was continued."""


class Call(Struct, frozen=True, gc=False):
    """One call of the open response."""

    ref: Ref
    call_id: str
    item: str
    """Type of the call's item."""
    name: str
    agent: str
    """Who made it: its offers explain it, also after a handoff."""
    arguments: str
    """As the model wrote them."""
    state: str = ASKED
    attempts: int = 0
    why: str = ""
    """For what it is gated: approval, unknown or external."""
    verdict: str = ""
    by: str = ""
    reason: str = ""
    output: Raw | None = None
    """A person's answer."""
    child: str | None = None
    forked: bool = False
    """It was in flight when this session was forked: never run here without a person's word."""
    prepared: bool = False
    """A handoff whose callback has returned, and whose filter then failed."""


class Request(Struct, frozen=True, gc=False):
    """The open model request."""

    version: int
    event: ModelRequested
    broken: bool = False
    """What it has sent may no longer be continued."""
    delay: float = 0.0
    """Seconds before it is sent."""


class ChainState(Struct, frozen=True, gc=False):
    """What the provider holds and may be continued: a response, or a conversation."""

    issuer: tuple[str, str]
    response_id: str
    """The latest response; in a conversation "" if that has no id."""
    held: int
    """Number of settled items of the view."""
    conversation: str | None = None
    """The conversation that holds them; None if the response does."""


class Run(Struct, frozen=True, gc=False):
    """The latest run."""

    run_id: str
    key: str | None
    started: int
    """Version of its `run.started`."""
    agent: str
    """Who began."""
    at: int = 0
    """Version of its last event so far."""
    limits: Limits = Limits()
    turns: int = 0
    handoffs: int = 0
    held: frozenset[str] = frozenset()
    """Who held control since a tool returned or input came."""
    bounces: int = 0
    """Handoffs to one of them."""
    givers: dict[str, str] = {}
    """Who handed over to each agent that has not handed back since."""
    usage: Usage = Usage()
    status: str = "running"
    reason: str = ""
    kind: str = ""
    """Of the error it failed with."""
    resumed: int = 0
    """Version of its latest start or resumption: the wall-clock limit counts from there."""
    at_limit: bool = False
    """It waits because it has reached a limit."""
    output: Ref | None = None
    parent: tuple[str, Ref] | None = None


class State(Struct, gc=False):
    """Where a session is. A value: `advance` returns a new one."""

    version: int = 0
    phase: str = IDLE
    place: Placement = msgspec.field(default_factory=Placement)
    run: Run | None = None
    runs: tuple[tuple[str, str | None, int], ...] = ()
    """Id, key and version of every run of the session."""
    agent: str | None = None
    """Who holds control."""
    calls: dict[Ref, Call] = {}
    """Calls of the open response, by key."""
    response: int = 0
    """Version of the open response."""
    final: Item | None = None
    """The last message of the last response, if that made no calls."""
    done: bool = False
    """The last response made no calls, or a call has nothing after it: the run may complete."""
    truncated: bool = False
    """The token limit cut the open response off."""
    request: Request | None = None
    attempts: int = 0
    """Failed attempts at the current turn."""
    tries: int = 0
    """Those of the model that is asked now, where it did not answer; none after an answer or a resumption."""
    delay: float = 0.0
    """Seconds before the next request is sent."""
    given_up: frozenset[tuple[str, str]] = frozenset()
    """Issuers that are not asked again in this run, unless it is resumed."""
    chain: ChainState | None = None
    cancel: CancelRequested | None = None
    standing: dict[tuple[str, str], ApprovalDecided] = {}
    """Standing decisions by agent and tool."""
    parts: dict[str, Parts] = {}
    """What each agent was told, by its name."""
    hands: dict[str, int] = {}
    """Version at which each agent last handed off."""
    counted: tuple[int, int] | None = None
    """Tokens of the view as the provider last counted them, and its bytes then; None after a rewrite."""
    compacted: int = 0
    """Bytes of the view after the latest compaction, or after a rewrite that made it shorter since."""
    overflowed: bool = False
    """The provider refused the view for its length, and it was not rewritten since."""
    squeezed: bool = False
    """It did so for this turn."""
    notes: dict[str, Raw] = {}
    """The latest note of each name."""
    unchecked: bool = False
    """The view may hold something that a provider refuses."""
    unanswered: bool = False
    """Input has come that no request has shown, and that no cancellation was meant for."""
    queued: bool = False
    """Input for the next run has come that none has taken."""
    inputs: tuple[tuple[str, int, str], ...] = ()
    """Client's key, version and destination of every input with a key that was added."""
    spoken: bool = False
    """Somebody has spoken since the run stopped: it may go on."""
    unknown: tuple[int, str] | None = None
    """Version and tag of the first event of a newer version."""
    answer: Item | None = None
    """The item that the latest completed run answered with."""

    # -- what decisions read

    def open_calls(self) -> list[Call]:
        """Calls without an answer, in call order."""
        return [call for call in self.calls.values() if call.state != SETTLED]

    @property
    def gave_up(self) -> bool:
        """Whether the run failed or reached a limit: it may be resumed, and a new one may begin instead."""
        return (
            self.phase == STOPPED
            and self.run is not None
            and (self.run.status == "failed" or self.run.at_limit)
        )

    def offer_of(self, call: Call) -> Offer | None:
        """What was offered under the name of a call; None for a name that was not."""
        parts = self.parts.get(call.agent)
        return parts.offers.get(call.name) if parts is not None else None


def run_state(records: Iterable[Record], *, at: int | None = None) -> State:
    """Return where a session is, as of version `at`."""
    state = State()
    for record in records:
        if at is not None and record.version > at:
            break
        state = advance(state, record.version, record.event)
    return state


def advance(old: State, version: int, event: Event) -> State:
    """Return the state after an event."""
    new = copy(old)
    new.version = version
    new.phase = RUN_LIFECYCLE.get(event.type, _NONE).get(old.phase, old.phase)
    new.place = place(old.place, version, event)
    if event.type in EVERY_CALL and old.calls:
        row = CALL_LIFECYCLE[event.type]
        new.calls = {ref: _moved(call, row[call.state]) for ref, call in old.calls.items()}
    _APPLY.get(type(event), _pass)(new, version, event)
    if new.run is not None and (old.phase != IDLE or new.run is not old.run):
        new.run = msgspec.structs.replace(new.run, at=version)
    return new


_NONE: Mapping[str, str] = {}


def _pass(new: State, version: int, event: Any) -> None:
    """Change nothing more."""


def _changed(new: State, **changes: Any) -> None:
    """Change the latest run."""
    if new.run is not None:
        new.run = msgspec.structs.replace(new.run, **changes)


def _moved(call: Call, state: str) -> Call:
    return call if call.state == state else msgspec.structs.replace(call, state=state)


def _move(new: State, ref: Ref | None, tag: str, **changes: Any) -> Call | None:
    """Move one call as the table says; None for a call or a step that it does not list."""
    call = new.calls.get(ref) if ref is not None else None
    if call is None or (state := CALL_LIFECYCLE[tag].get(call.state)) is None:
        return None
    moved = msgspec.structs.replace(call, state=state, **changes)
    new.calls = {**new.calls, call.ref: moved}
    return moved


# -- the run


def _run_started(new: State, version: int, event: RunStarted) -> None:
    new.run = Run(
        run_id=event.run_id,
        key=event.key,
        started=version,
        agent=event.agent,
        limits=event.limits,
        resumed=version,
        parent=event.parent,
    )
    new.runs = (*new.runs, (event.run_id, event.key, version))
    new.agent = event.agent
    new.final, new.done, new.cancel, new.attempts, new.answer = None, False, None, 0, None
    new.squeezed = False
    _ask_afresh(new)
    new.calls = {}
    new.unanswered, new.queued, new.spoken = True, False, False
    _doubt_input(new, event)


def _run_resumed(new: State, version: int, event: RunResumed) -> None:
    if new.request is not None:
        _changed(new, turns=new.run.turns - 1 if new.run else 0)
    new.request, new.spoken = None, False
    _changed(new, status="running", reason="", kind="", resumed=version, at_limit=False)
    new.squeezed = False
    _ask_afresh(new)
    if event.limits is not None:
        _changed(new, limits=event.limits)


def _ask_afresh(new: State) -> None:
    """Whatever became of earlier requests: ask the agent's own model, at once."""
    new.tries, new.delay, new.given_up = 0, 0.0, frozenset()


def _run_paused(new: State, version: int, event: RunPaused) -> None:
    new.spoken = False
    reason = event.reason if event.limit is None else event.limit
    _changed(new, status="paused", reason=reason, at_limit=event.reason == "limit")


def _run_failed(new: State, version: int, event: RunFailed) -> None:
    new.spoken = False
    _changed(new, status="failed", reason=event.message, kind=event.kind)
    if event.kind == FILTER_FAILED:
        # Its callback had returned: what is tried again is the filter.
        new.calls = {
            ref: msgspec.structs.replace(call, prepared=True) if call.state == UNKNOWN else call
            for ref, call in new.calls.items()
        }


def _run_completed(new: State, version: int, event: RunCompleted) -> None:
    _changed(new, status="completed", reason="", output=event.output)
    new.answer = new.final if new.final is not None and new.final.ref == event.output else None
    new.cancel = None


def _run_cancelled(new: State, version: int, event: RunCancelled) -> None:
    _changed(new, status="cancelled", reason=event.reason)
    new.cancel, new.request, new.final, new.done = None, None, None, False
    # What was said to the run that was cancelled goes with it; what waits for the next one does not.
    new.unanswered = new.queued
    new.spoken = False


def _cancel_requested(new: State, version: int, event: CancelRequested) -> None:
    # One that wants it now counts over one that lets the turn end.
    if new.phase != IDLE and (new.cancel is None or not event.after_turn):
        new.cancel = event


def _input_added(new: State, version: int, event: InputAdded) -> None:
    new.unanswered, new.spoken = True, new.phase == STOPPED
    new.queued = new.queued or event.goes_to == "run"
    if event.key is not None:
        new.inputs = (*new.inputs, (event.key, version, event.goes_to))
    _progressed(new)
    _doubt_input(new, event)


def _doubt_input(new: State, event: RunStarted | InputAdded) -> None:
    """Anything but plain messages may be illegal: check before it is sent."""
    if any(item.type != "message" for item in _given(event)):
        new.unchecked = True


def _given(event: RunStarted | InputAdded) -> Iterable[Item]:
    return (Item(None, held) for held in raw(event, "input") if type(held) is Raw)


def _note_added(new: State, version: int, event: NoteAdded) -> None:
    new.notes = {**new.notes, event.name: raw(event, "data")}


# -- the model


def _agent_resolved(new: State, version: int, event: AgentResolved) -> None:
    known = new.parts.get(event.agent, Parts())
    new.parts = {**new.parts, event.agent: known.changed(version, event)}


def _model_requested(new: State, version: int, event: ModelRequested) -> None:
    if new.run is not None:
        _changed(new, turns=new.run.turns + 1)
    # Nobody knows what a conversation holds while it is added to: only an answer says so. If
    # none comes (a failure, another worker, a cancel, a fork), it is never continued.
    if new.chain is not None and (
        new.chain.conversation is not None or event.previous_response_id != new.chain.response_id
    ):
        new.chain = None
    new.request, new.delay = Request(version, event, delay=new.delay), 0.0
    new.agent = event.agent
    new.final, new.done = None, False
    # Input for a later run has not been looked at.
    new.unchecked = any(later and item.type != "message" for item, later in new.place.queue)
    new.unanswered = any(later for _, later in new.place.queue)


def _model_responded(new: State, version: int, event: ModelResponded) -> None:
    request, new.request = new.request, None
    items = new.place.settled[len(new.place.settled) - len(raw(event, "output")) :]
    agent = new.agent or ""
    new.response, new.attempts, new.overflowed, new.squeezed = version, 0, False, False
    new.tries = 0
    if event.usage.input_tokens:
        new.counted = event.usage.input_tokens + event.usage.output_tokens, new.place.settled.size()
    new.truncated = event.status != "completed"
    new.calls = {
        item.ref: _asked(item, agent) for item in items if item.type in OURS and item.ref is not None
    }
    new.done = not new.calls
    new.final = _last_message(items) if new.done else None
    _changed(new, usage=(new.run.usage if new.run else Usage()) + event.usage)
    new.chain = _held_since(request, event, len(new.place.settled))
    if _is_odd(items):
        new.unchecked = True


def _held_since(request: Request | None, event: ModelResponded, held: int) -> ChainState | None:
    """What the provider holds once it has answered."""
    if request is None or request.broken or not request.event.stored:
        return None
    issuer, conversation = request.event.issuer, request.event.conversation
    if conversation is not None:
        # "Input items and output items from this response are automatically added to this conversation
        # after this response completes" (openai, response_create_params.py): of others, nobody knows.
        done = event.status == "completed"
        return ChainState(issuer, event.response_id or "", held, conversation) if done else None
    return ChainState(issuer, event.response_id, held) if event.response_id is not None else None


def _asked(item: Item, agent: str) -> Call:
    data = item.data
    arguments = data.get("arguments", data.get("input", ""))
    return Call(
        ref=item.ref or Ref(0, 0),
        call_id=item.head.call_id or "",
        item=item.type,
        name=item.head.name or "",
        agent=agent,
        arguments=arguments if isinstance(arguments, str) else "",
    )


def _last_message(items: Iterable[Item]) -> Item | None:
    messages = [item for item in items if item.type == "message"]
    return messages[-1] if messages else None


def _is_odd(items: list[Item]) -> bool:
    """Whether a response holds anything but messages, our calls, and reasoning before them."""
    expected = True
    for item in reversed(items):
        if item.type == "reasoning":
            expected = expected and item is not items[-1]
        elif item.type != "message" and item.type not in OURS:
            expected = False
    return not expected


def _model_failed(new: State, version: int, event: ModelFailed) -> None:
    request, new.request = new.request, None
    new.delay = event.delay
    if event.passed_on and request is not None:
        new.given_up = new.given_up | {request.event.issuer}
    if event.passed_on or not event.retried:
        new.tries = 0
    elif event.kind not in (CHAIN_LOST, OVERFLOWED):
        new.tries += 1
    new.attempts = new.attempts + 1 if event.retried else 0
    if new.run is not None:
        used = new.run.usage + event.usage if event.usage is not None else new.run.usage
        _changed(new, turns=new.run.turns - 1, usage=used)
    if event.kind == OVERFLOWED:
        new.overflowed = new.squeezed = True
    if event.kind == CHAIN_LOST:
        new.chain = None


# -- calls


def _tool_called(new: State, version: int, event: ToolCalled) -> None:
    _move(new, event.call, event.type, attempts=event.attempt, child=event.child, verdict="", forked=False)


def _settled(new: State, version: int, event: ToolReturned | ToolAbandoned | CallRefused) -> None:
    _move(new, event.call, event.type)
    if type(event) is ToolReturned:
        _progressed(new)


def _approval_requested(new: State, version: int, event: ApprovalRequested) -> None:
    _move(new, event.call, event.type, why=event.reason)


def _approval_decided(new: State, version: int, event: ApprovalDecided) -> None:
    if event.call is not None:
        changes = {"verdict": event.verdict, "by": event.by, "reason": event.reason}
        _move(new, event.call, event.type, output=raw(event, "output"), **changes)
    if event.standing is not None:
        new.standing = {**new.standing, event.standing: event}
    new.spoken = new.spoken or new.phase == STOPPED


def _handoff_made(new: State, version: int, event: HandoffMade) -> None:
    _move(new, event.call, event.type)
    new.hands = {**new.hands, event.source: version}
    new.agent = event.target
    if (run := new.run) is not None:
        _changed(
            new,
            handoffs=run.handoffs + 1,
            held=run.held | {event.source, event.target},
            bounces=run.bounces + (event.target in run.held),
            givers=_givers(run.givers, event),
        )
    if new.place.settled is not new.place.past[-1][1]:
        _view_changed(new)


def _givers(givers: dict[str, str], event: HandoffMade) -> dict[str, str]:
    if givers.get(event.source) == event.target:  # handed back
        return {agent: giver for agent, giver in givers.items() if agent != event.source}
    return {**givers, event.target: event.source}


def _progressed(new: State) -> None:
    """Something was done or said: handoffs so far led somewhere."""
    if new.run is not None and new.run.held:
        _changed(new, held=frozenset(), bounces=0)


def _spent(new: State, rewrite: Rewrite) -> None:
    """What a filter cost counts for the run."""
    if new.run is not None and new.phase != IDLE:
        for _, usage in rewrite.spent:
            _changed(new, usage=new.run.usage + usage)


def _view_changed(new: State) -> None:
    """After a rewrite what the provider holds is no longer what the model is shown."""
    _break_chain(new)
    new.unchecked, new.counted, new.overflowed = True, None, False
    new.compacted = min(new.compacted, new.place.settled.size())


def _break_chain(new: State) -> None:
    """Never continue what the provider holds, nor what it is being sent."""
    new.chain = None
    if new.request is not None:
        new.request = msgspec.structs.replace(new.request, broken=True)


def _handoff_filtered(new: State, version: int, event: HandoffFiltered) -> None:
    _spent(new, event.rewrite)


def _history_rewritten(new: State, version: int, event: HistoryRewritten) -> None:
    _view_changed(new)
    _spent(new, event.rewrite)
    if event.cause == "compaction":
        new.compacted = new.place.settled.size()


def _guardrail_tripped(new: State, version: int, event: Any) -> None:
    if event.rewrite is not None:
        _view_changed(new)
    else:
        new.unchecked = True


def _event_redacted(new: State, version: int, event: Any) -> None:
    _break_chain(new)


def _session_forked(new: State, version: int, event: SessionForked) -> None:
    if new.request is not None and new.run is not None:
        _changed(new, turns=new.run.turns - 1)
    new.request, new.cancel, new.spoken = None, None, False
    if new.chain is not None and new.chain.conversation is not None:
        new.chain = None  # the parent's: what one adds to it, the other would be shown
    if new.phase != IDLE:
        _changed(new, status="paused", reason="forked")
    # A decision that was not spent is asked again: it was given for the other session.
    new.calls = {
        ref: msgspec.structs.replace(call, verdict="", forked=call.state == UNKNOWN)
        for ref, call in new.calls.items()
    }


def _unknown(new: State, version: int, event: UnknownEvent) -> None:
    if new.unknown is None:
        new.unknown = (version, event.tag)


_APPLY: Mapping[type[Event], Any] = {
    RunStarted: _run_started,
    RunResumed: _run_resumed,
    RunPaused: _run_paused,
    RunFailed: _run_failed,
    RunCompleted: _run_completed,
    RunCancelled: _run_cancelled,
    CancelRequested: _cancel_requested,
    InputAdded: _input_added,
    NoteAdded: _note_added,
    AgentResolved: _agent_resolved,
    ModelRequested: _model_requested,
    ModelResponded: _model_responded,
    ModelFailed: _model_failed,
    ToolCalled: _tool_called,
    ToolReturned: _settled,
    ToolAbandoned: _settled,
    CallRefused: _settled,
    ApprovalRequested: _approval_requested,
    ApprovalDecided: _approval_decided,
    HandoffFiltered: _handoff_filtered,
    HandoffMade: _handoff_made,
    HistoryRewritten: _history_rewritten,
    GuardrailTripped: _guardrail_tripped,
    EventRedacted: _event_redacted,
    SessionForked: _session_forked,
    UnknownEvent: _unknown,
}
