"""What came of the latest run, by the log alone."""

from collections.abc import Iterable
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from batonlog.events import JSON, Record, Ref, UnknownSessionError, Usage, UsageError
from batonlog.events.lifecycle import CALLED, GATED, IDLE, UNKNOWN
from batonlog.events.values import load
from batonlog.projections.items import Item
from batonlog.projections.state import Call, State, advance

_T = TypeVar("_T")

Why: TypeAlias = Literal["approval", "unknown", "external", "running"]
Status: TypeAlias = Literal["running", "paused", "completed", "failed", "cancelled"]


class OpenCall(Struct, frozen=True, gc=False):
    """A call without an end: what a person or another system has to settle."""

    call: Ref
    """Its key: give it to approve, reject or settle."""
    why: Why
    """It needs approval; its outcome is unknown; it runs elsewhere; or it is running."""
    agent: str
    tool: str
    arguments: dict[str, JSON]
    """As the model gave them; empty if they are no JSON object."""
    reason: str
    """In words."""


class RunResult(Struct, frozen=True, kw_only=True, gc=False, eq=False):
    """The latest run of a session, by the log alone. What `run` returns and `status` tells."""

    session: str
    run_id: str
    """The run; "" for a session in which none was started."""
    status: Status
    """The word of the event that ended it."""
    reason: str
    """Why it waits, failed or was cancelled; "" otherwise."""
    agent: str
    """Who holds control; answers the next message too."""
    after: int
    version: int
    """The run's records are those of (after, version]."""
    usage: Usage
    open_calls: tuple[OpenCall, ...]
    answer: Item | None = None
    """The item that is the answer."""

    @property
    def final_output(self) -> object:
        """The answer's text. Raises UsageError unless completed."""
        if self.status != "completed":
            why = f": {self.reason}" if self.reason else ""
            raise UsageError(
                f"run {self.run_id} of {self.session} is {self.status}{why}; it has no answer",
                session=self.session,
                version=self.version,
            )
        return self.answer.text if self.answer is not None else ""

    def final_output_as(self, type_: type[_T], /) -> _T:
        """The same, checked to be of that type: text as it is, anything else decoded from its JSON.

        Raises UsageError if it is not of that type.
        """
        output = self.final_output
        if isinstance(output, type_):
            return output
        try:
            return msgspec.json.decode(str(output), type=type_)
        except (msgspec.MsgspecError, TypeError) as error:
            name = getattr(type_, "__name__", str(type_))
            raise UsageError(
                f"the answer of {self.session} is no {name}: {error}", session=self.session
            ) from error


def run_result(records: Iterable[Record], *, at: int | None = None) -> RunResult:
    """Return what came of the latest run, as of version `at`. Raises UnknownSessionError for no records."""
    state, session = State(), None
    for record in records:
        if at is not None and record.version > at:
            break
        # The last record names the session: those before may be a parent's.
        session = record.session
        state = advance(state, record.version, record.event)
    if session is None:
        raise UnknownSessionError("there are no records: is the session's name right?")
    return result_of(state, session)


def result_of(state: State, session: str) -> RunResult:
    """Return the result that a state holds."""
    run = state.run
    if run is None:
        return RunResult(
            session=session,
            run_id="",
            status="completed",
            reason="",
            agent=state.agent or "",
            after=0,
            version=state.version,
            usage=Usage(),
            open_calls=(),
        )
    status: Status = run.status  # type: ignore[assignment]  # the words of the events
    return RunResult(
        session=session,
        run_id=run.run_id,
        status=status,
        reason=run.reason,
        agent=state.agent or run.agent,
        after=run.started - 1,
        version=run.at,
        usage=run.usage,
        open_calls=open_calls(state),
        answer=state.answer,
    )


def open_calls(state: State) -> tuple[OpenCall, ...]:
    """Return the calls that somebody has to settle, or that are running."""
    if state.phase == IDLE:
        return ()
    found = ((call, _why(state, call)) for call in state.open_calls())
    return tuple(
        OpenCall(call.ref, why, call.agent, call.name, arguments_of(call), call.reason or _REASONS[why])
        for call, why in found
        if why is not None
    )


_REASONS = {
    "approval": "needs approval",
    "unknown": "was started, and nobody knows whether it was done",
    "external": "runs elsewhere",
    "running": "is running",
}


def _why(state: State, call: Call) -> Why | None:
    match call.state:
        case s if s == GATED:
            return call.why if call.why in ("unknown", "external") else "approval"  # type: ignore[return-value]
        case s if s == UNKNOWN:
            return "unknown"
        case s if s == CALLED:
            return "running"
        case _:
            return None


def arguments_of(call: Call) -> dict[str, JSON]:
    """Return a call's arguments, or nothing if they are no JSON object."""
    try:
        value = load(call.arguments.encode(errors="surrogatepass"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
