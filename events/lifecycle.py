"""The lifecycle of a run and of a call: two tables, and four joint rules.

Rules of this file:

1. Everything that says which event may follow which stands here, as data that a reader can
   check with a finger. There is no other test of a state.
2. An unlisted pair is illegal: appending it raises, and changes nothing.
3. This file does not know who asks. The engine builds its machines from these tables and
   drives them for every event that it appends; a replay folds the same tables.

A run is *idle* (none is open), *running*, *asking* (a model request is open) or *stopped*
(it waits for somebody, or failed). The events that anyone may append never move it, so they
can never make a result illegal: that is what lets the log be the control plane.

A call is *asked* (the model wants it), *gated* (it waits for a person), *decided* (a person
has spoken), *called* (its effect has begun), *unknown* (it had begun when its worker was
lost) or *settled* (it has its answer).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from batonlog.events.facts import (
    ApprovalDecided,
    CallRefused,
    Event,
    HandoffMade,
    ModelFailed,
    ModelResponded,
    RunFailed,
    RunPaused,
    ToolAbandoned,
    ToolReturned,
)
from batonlog.events.values import Ref

IDLE: Final = "idle"
RUNNING: Final = "running"
ASKING: Final = "asking"
STOPPED: Final = "stopped"

ASKED: Final = "asked"
GATED: Final = "gated"
DECIDED: Final = "decided"
CALLED: Final = "called"
UNKNOWN: Final = "unknown"
SETTLED: Final = "settled"


def _frozen(table: dict[str, dict[str, str]]) -> Mapping[str, Mapping[str, str]]:
    return MappingProxyType({tag: MappingProxyType(row) for tag, row in table.items()})


_stay: Final = {IDLE: IDLE, RUNNING: RUNNING, ASKING: ASKING, STOPPED: STOPPED}

RUN_LIFECYCLE: Final = _frozen(
    {
        "run.started": {IDLE: RUNNING, STOPPED: RUNNING},
        "run.resumed": {RUNNING: RUNNING, ASKING: RUNNING, STOPPED: RUNNING},
        "run.paused": {RUNNING: STOPPED},
        "run.failed": {RUNNING: STOPPED},
        "run.completed": {RUNNING: IDLE},
        "run.cancelled": {RUNNING: IDLE, STOPPED: IDLE},
        "model.requested": {RUNNING: ASKING},
        "model.responded": {ASKING: RUNNING},
        "model.failed": {ASKING: RUNNING},
        "agent.resolved": {RUNNING: RUNNING},
        "tool.called": {RUNNING: RUNNING},
        "tool.returned": {RUNNING: RUNNING},
        "approval.requested": {RUNNING: RUNNING},
        "handoff.filtered": {RUNNING: RUNNING},
        "handoff.made": {RUNNING: RUNNING},
        "guardrail.tripped": {RUNNING: RUNNING},
        "tool.abandoned": {RUNNING: RUNNING, STOPPED: STOPPED},
        "call.refused": {RUNNING: RUNNING, STOPPED: STOPPED},
        "history.rewritten": {IDLE: IDLE, RUNNING: RUNNING, STOPPED: STOPPED},
        "session.forked": {IDLE: IDLE, RUNNING: STOPPED, ASKING: STOPPED, STOPPED: STOPPED},
        # Anyone, from any process, without a lease: these never move the run.
        "input.added": _stay,
        "approval.decided": _stay,
        "note.added": _stay,
        "event.redacted": _stay,
        "cancel.requested": {RUNNING: RUNNING, ASKING: ASKING, STOPPED: STOPPED},
    }
)
"""Event tag -> state -> state, of a run."""

CALL_LIFECYCLE: Final = _frozen(
    {
        "approval.requested": {ASKED: GATED, UNKNOWN: GATED},
        "approval.decided": {GATED: DECIDED},  # for one call; a standing one moves none
        "tool.called": {ASKED: CALLED, DECIDED: CALLED, UNKNOWN: CALLED},
        "tool.returned": {DECIDED: SETTLED, CALLED: SETTLED},
        "tool.abandoned": {GATED: SETTLED, DECIDED: SETTLED, CALLED: SETTLED, UNKNOWN: SETTLED},
        "call.refused": {ASKED: SETTLED, GATED: SETTLED, DECIDED: SETTLED},
        "handoff.made": {ASKED: SETTLED, DECIDED: SETTLED, CALLED: SETTLED},
        # Every call of the session at once.
        "run.resumed": {
            ASKED: ASKED,
            GATED: GATED,
            DECIDED: DECIDED,
            CALLED: UNKNOWN,
            UNKNOWN: UNKNOWN,
            SETTLED: SETTLED,
        },
        "session.forked": {
            ASKED: ASKED,
            GATED: GATED,
            DECIDED: GATED,
            CALLED: UNKNOWN,
            UNKNOWN: UNKNOWN,
            SETTLED: SETTLED,
        },
    }
)
"""Event tag -> state -> state, of a call."""

EVERY_CALL: Final = frozenset({"run.resumed", "session.forked"})
"""Events that move every call of the session, not one."""

ANYONE: Final = frozenset(
    {"input.added", "approval.decided", "cancel.requested", "note.added", "event.redacted"}
)
"""Tags that anyone may append, without a lease."""

_NEED_EVERY_CALL_SETTLED: Final = frozenset(
    {"model.requested", "history.rewritten", "run.started", "run.completed", "run.cancelled"}
)

Answer = ToolReturned | ToolAbandoned | CallRefused | HandoffMade
"""The events that settle a call; each holds the answer item."""

ANSWERS: Final = (ToolReturned, ToolAbandoned, CallRefused, HandoffMade)


class Standing(Protocol):
    """What the rules need to know of a call."""

    @property
    def state(self) -> str:
        """Where it is in CALL_LIFECYCLE."""
        ...

    @property
    def attempts(self) -> int:
        """How often it was started."""
        ...


def objection(
    event: Event, *, run: str, calls: Mapping[Ref, Standing], request: int | None = None
) -> str | None:
    """Say why this event may not follow, or None if it may.

    Args:
        event: what would be appended.
        run: the state of the run.
        calls: every call of the open response.
        request: version of the open `model.requested`.
    """
    tag = event.type
    if run not in RUN_LIFECYCLE.get(tag, _NONE):
        return f"{tag} in a session that is {run}"
    if tag in _NEED_EVERY_CALL_SETTLED:
        if unsettled := [ref for ref, call in calls.items() if call.state != SETTLED]:
            return f"{tag} while {_list(unsettled)} is not settled"
        return None
    match event:
        case HandoffMade(call=made):
            others = [ref for ref, call in calls.items() if call.state != SETTLED and ref != made]
            if others:
                return f"handoff.made for {made} while {_list(others)} is not settled"
        case RunPaused() | RunFailed():
            flying = [ref for ref, call in calls.items() if call.state == CALLED]
            return f"{tag} while {_list(flying)} is in flight" if flying else None
        case ModelResponded(request=answered) | ModelFailed(request=answered):
            return None if answered == request else f"{tag} for request {answered}; the open one is {request}"
        case ToolAbandoned(call=ref) if ref in calls and not calls[ref].attempts:
            return f"tool.abandoned for {ref}, which was never started"
        case CallRefused(call=ref) if ref in calls and calls[ref].attempts:
            return f"call.refused for {ref}, which was started"
        case _:
            pass
    return _call_objection(event, calls)


_NONE: Final[Mapping[str, str]] = {}


def _call_objection(event: Event, calls: Mapping[Ref, Standing]) -> str | None:
    row = CALL_LIFECYCLE.get(event.type)
    if row is None or event.type in EVERY_CALL:
        return None
    ref: Ref | None = event.call  # type: ignore[attr-defined]  # every other event of the table has one
    if ref is None and isinstance(event, ApprovalDecided):
        return None
    if ref is None or ref not in calls:
        return f"{event.type} for {ref}, which is no open call"
    if calls[ref].state not in row:
        return f"{event.type} for {ref}, which is {calls[ref].state}"
    return None


def _list(refs: Iterable[Ref]) -> str:
    return " and ".join(f"call {ref}" for ref in refs)
