"""What to do next: pure, and from the log alone.

What was offered and promised is in `agent.resolved`, so a new version of the code changes
nothing about a call that was already made. What needs the code (a filter, instructions, a
tool's arguments) is named here and computed elsewhere.
"""

from msgspec import Raw, Struct

from batonlog.events import (
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    Event,
    Limits,
    Ref,
    RunCancelled,
    RunCompleted,
    RunPaused,
    RunResumed,
    ToolAbandoned,
    ToolReturned,
)
from batonlog.events.lifecycle import ASKED, ASKING, CALLED, DECIDED, GATED, IDLE, RUNNING, STOPPED, UNKNOWN
from batonlog.events.values import dump, load
from batonlog.projections.items import ANSWERED_BY
from batonlog.projections.offers import Offer
from batonlog.projections.state import Call, State, advance

REJECTED = "This call was not approved."
CANCELLED = "This call was cancelled. It may have taken effect before."
NOT_STARTED = "This call was cancelled before it began."
NOBODY_KNOWS = "This call was interrupted. Nobody knows whether it took effect."
SUPERSEDED = "This call was not made: the conversation went on without it."
TRUNCATED = "The answer was cut off by the token limit, so none of its calls was made. Call again, with less."
NOT_FIRST = "Not made: another transfer of the same answer came first."

LONGEST = 10_485_760
"""Most characters of an output that the Responses API takes."""


class Step(Struct, frozen=True):
    """What follows from a state."""

    events: tuple[Event, ...] = ()
    """Settled by the log alone."""
    start: tuple[Ref, ...] = ()
    """Calls to look at: check the arguments, ask the gate, and start."""
    transfer: Ref | None = None
    """The handoff to make."""
    ask: bool = False
    """Ask the model."""


NOTHING = Step()


def decide(state: State, *, late: bool = False) -> Step:
    """Return what to do next. `late` says that the run's wall-clock time is used up."""
    if state.phase != RUNNING:
        return NOTHING
    if state.cancel is not None and (not state.cancel.after_turn or not state.open_calls()):
        return Step(events=cancellation(state))
    if state.open_calls():
        return _settle(state)
    if state.done and not any(not later for _, later in state.place.queue):
        return Step(events=(RunCompleted(output=state.final.ref if state.final is not None else None),))
    if (limit := _limit(state, late)) is not None:
        return Step(events=(RunPaused(reason="limit", limit=limit),))
    return Step(ask=True)


# -- at rest: is there anything for a worker to do?


def needs_worker(state: State) -> bool:
    """Whether a session should have a worker: a run goes on, or somebody has said what lets one go on."""
    return state.phase in (RUNNING, ASKING) or wants_worker(state)


def wants_worker(state: State) -> bool:
    """Whether a session is at rest, and somebody has said what a worker should take up."""
    if state.phase == IDLE:
        return state.unanswered
    if state.phase != STOPPED:
        return False
    if state.gave_up:
        return state.spoken or state.queued
    return state.spoken and not waits_on(state)


def waits_on(state: State, limits: Limits | None = None) -> bool:
    """Whether taking a run up that has stopped would change nothing: nobody has spoken whom it waits for."""
    step = decide(advance(state, state.version + 1, RunResumed(by="", limits=limits)))
    return step is NOTHING or (len(step.events) == 1 and step.events[0].type == "run.paused")


def cancellation(state: State) -> tuple[Event, ...]:
    """Give every open call an answer, and end the run."""
    by = state.cancel.by if state.cancel is not None else ""
    reason = state.cancel.reason if state.cancel is not None else ""
    return (*closing(state, "cancelled", CANCELLED, NOT_STARTED), RunCancelled(by=by, reason=reason))


def superseding(state: State) -> tuple[Event, ...]:
    """Give every open call of a stopped run an answer, so that a new run can start."""
    return closing(state, "superseded", NOBODY_KNOWS, SUPERSEDED)


def closing(state: State, reason: str, started: str, never: str) -> tuple[Event, ...]:
    """Answer every open call: one text for those that were started, one for those that never were."""
    return tuple(
        abandoned(call, reason, started) if call.attempts else refused(call, reason, never)
        for call in state.open_calls()
    )


def abandoned(call: Call, reason: str, answer: str) -> ToolAbandoned:
    """Answer a call that was started and has no result."""
    return ToolAbandoned(
        call=call.ref,
        call_id=call.call_id,
        reason=reason,  # type: ignore[arg-type]  # one of its words
        answer=answer,
        item=ANSWERED_BY[call.item],
    )


def refused(call: Call, reason: str, answer: str) -> CallRefused:
    """Answer a call that is not started."""
    return CallRefused(
        call=call.ref, call_id=call.call_id, reason=reason, answer=answer, item=ANSWERED_BY[call.item]
    )


def _limit(state: State, late: bool) -> str | None:
    """Which limit was reached, in words."""
    run = state.run
    if run is None:
        return None
    if run.limits.turns is not None and run.turns >= run.limits.turns:
        return f"turns: {run.turns} of {run.limits.turns}"
    if run.limits.tokens is not None and run.usage.total_tokens >= run.limits.tokens:
        return f"tokens: {run.usage.total_tokens} of {run.limits.tokens}"
    if late:
        return f"seconds: {run.limits.seconds}"
    return None


# -- the calls of one response: ordinary ones first, all at once; then at most one handoff


def _settle(state: State) -> Step:
    calls = state.open_calls()
    if state.truncated and (cut := [call for call in calls if call.state == ASKED]):
        return Step(events=tuple(refused(call, "truncated", TRUNCATED) for call in cut))
    ordinary = [call for call in calls if not _is_transfer(state, call)]
    if ordinary:
        return _run_calls(state, ordinary)
    return _hand_over(state, calls)


def _is_transfer(state: State, call: Call) -> bool:
    offer = state.offer_of(call)
    return offer is not None and offer.kind == "handoff"


def _run_calls(state: State, calls: list[Call]) -> Step:
    events: list[Event] = []
    start: list[Ref] = []
    for call in calls:
        event = _next_of(state, call)
        if event is not None:
            events.append(event)
        elif call.state in (ASKED, DECIDED, UNKNOWN):
            start.append(call.ref)
    if events or start:
        return Step(events=tuple(events), start=tuple(start))
    if any(call.state == CALLED for call in calls):
        return NOTHING
    return Step(events=(_waiting(calls),))


def _next_of(state: State, call: Call) -> Event | None:
    """What happens to a call without looking at its arguments; None to start it, or to wait."""
    offer = state.offer_of(call)
    match call.state:
        case s if s == ASKED:
            return _first_step(state, call, offer)
        case s if s == DECIDED:
            return _as_decided(call)
        case s if s == UNKNOWN:
            return _after_loss(call, offer)
        case _:
            return None


def _first_step(state: State, call: Call, offer: Offer | None) -> Event | None:
    if offer is None:
        known = ", ".join(sorted(state.parts[call.agent].offers)) if call.agent in state.parts else ""
        return refused(
            call, "unknown_tool", f"There is no tool {call.name}. The tools are: {known or 'none'}."
        )
    standing = state.standing.get((call.agent, call.name))
    if standing is not None and standing.verdict == "refuse":
        return refused(call, "rejected", _rejection(standing))
    if offer.kind == "external":
        return ApprovalRequested(call=call.ref, reason="external")
    return None  # its arguments are checked before anybody is asked


def _as_decided(call: Call) -> Event | None:
    if call.verdict == "run":
        return None
    if call.verdict == "answer":
        return returned(call, call.output)
    text = call.reason or REJECTED
    return abandoned(call, "unknown", text) if call.attempts else refused(call, "rejected", text)


def returned(call: Call, output: object, *, error: bool = False) -> ToolReturned:
    """Answer a call with its output. Of one that no provider takes, the model is shown the beginning."""
    return ToolReturned(
        call=call.ref,
        call_id=call.call_id,
        output=output,
        error=error,
        shown=_shown(output),
        item=ANSWERED_BY[call.item],
    )


def _shown(output: object) -> str | None:
    size = len(output) if isinstance(output, str) else len(dump(output))
    if size <= LONGEST:  # in bytes it is no less than in characters
        return None
    given = load(output) if isinstance(output, Raw) else output
    text = given if isinstance(given, str) else dump(given).decode()
    if len(text) <= LONGEST:
        return None
    note = f"… [cut off here: {len(text)} characters in all]"
    return text[: LONGEST - len(note)] + note


def _rejection(decision: ApprovalDecided) -> str:
    return decision.reason or REJECTED


def _after_loss(call: Call, offer: Offer | None) -> Event | None:
    if offer is not None and offer.idempotent and not call.forked:
        return None
    if offer is not None and offer.on_unknown == "report" and not call.forked:
        return abandoned(call, "unknown", NOBODY_KNOWS)
    return ApprovalRequested(call=call.ref, reason="unknown")


def _waiting(calls: list[Call]) -> RunPaused:
    """For what the run waits: a person's approval before all else."""
    whys = {call.why for call in calls if call.state == GATED}
    if "approval" in whys:
        return RunPaused(reason="approval")
    return RunPaused(reason="unknown" if "unknown" in whys else "external")


def _hand_over(state: State, calls: list[Call]) -> Step:
    """The first transfer that can be made is made; one that is refused gives way to the next."""
    call = calls[0]
    if call.state == GATED:
        return Step(events=(_waiting([call]),))
    if call.state == CALLED:  # its on_handoff is running
        return NOTHING
    if call.state == UNKNOWN and not call.prepared:
        return Step(events=(ApprovalRequested(call=call.ref, reason="unknown"),))
    event = _next_of(state, call) if call.state != UNKNOWN else None
    if event is not None:
        return Step(events=(event,))
    run = state.run
    if run is not None and run.limits.handoffs is not None and run.handoffs >= run.limits.handoffs:
        return Step(
            events=(RunPaused(reason="limit", limit=f"handoffs: {run.handoffs} of {run.limits.handoffs}"),)
        )
    return Step(transfer=call.ref)
