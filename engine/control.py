"""What anyone may say, from any process, without agents: the log is the control plane.

Nothing of it needs a lease. But where a session is at rest and a worker should take it up, a
lease that has run out is left behind, with the append: that is what `recover` looks for.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple
from uuid import UUID

from batonlog.engine.decide import cancellation, wants_worker
from batonlog.engine.draft import Draft
from batonlog.engine.storing import store, until_answered
from batonlog.events import (
    JSON,
    ApprovalDecided,
    CancelRequested,
    ConflictError,
    Event,
    EventLog,
    FencedError,
    InputAdded,
    Lease,
    NoteAdded,
    Ref,
    UnknownSessionError,
    UsageError,
)
from batonlog.events.lifecycle import GATED, IDLE, STOPPED
from batonlog.events.values import plain
from batonlog.projections.items import Item
from batonlog.projections.state import Call, State, run_state


class Said(NamedTuple):
    """Input that was recorded."""

    version: int
    goes_to: Literal["turn", "run"]


class Control:
    """Appends facts that never move a run, checked against the session as it is."""

    def __init__(self, log: EventLog, new_id: Callable[[], UUID]) -> None:
        self._log = log
        self._new_id = new_id
        self._name = f"said:{new_id().hex[-12:]}"
        """Owner of the leases that wake up a worker; not that of a worker, which they would end."""

    async def send(
        self, session: str, items: Sequence[Item], by: str, *, queue: bool = False, key: str | None = None
    ) -> Said:
        """Record input: for the run that is open, or with `queue`, and where none is, for the next one."""
        held = tuple(item.held for item in items)
        goes_to: Literal["turn", "run"] = "run"

        def said(state: State) -> list[Event]:
            nonlocal goes_to
            goes_to = "run" if queue or state.phase == IDLE else "turn"
            return [InputAdded(input=held, goes_to=goes_to, by=by, key=key)]

        version = await self._append(session, said, new=True)
        return Said(version, goes_to)

    async def note(self, session: str, name: str, data: JSON) -> int:
        """Record an application's fact. Return its version."""
        try:
            given = plain(data)
        except (TypeError, RecursionError) as error:
            raise UsageError(f"note {name!r} cannot be stored as JSON: {error}", session=session) from error
        return await self._append(session, lambda state: [NoteAdded(name=name, data=given)])

    async def decide(
        self,
        session: str,
        call: Ref | str,
        verdict: Literal["run", "refuse", "answer"],
        *,
        by: str,
        reason: str = "",
        output: object = None,
        always: bool = False,
    ) -> None:
        """Record a person's word on a call that waits."""
        if not isinstance(call, Ref | str):
            raise UsageError(
                f"{call!r:.60} is no call key: give one such as '4.0', or its Ref", session=session
            )
        ref = call if isinstance(call, Ref) else Ref.parse(call)
        try:
            given = plain(output)
        except (TypeError, RecursionError) as error:
            raise UsageError(f"the output for call {ref} cannot be stored as JSON: {error}") from error

        def said(state: State) -> list[Event]:
            waiting = _waiting(session, state, ref)
            if verdict == "run" and waiting.why == "external":
                raise UsageError(
                    f"call {ref} of {session} runs elsewhere: settle it with its output, or reject it",
                    session=session,
                )
            return [
                ApprovalDecided(
                    call=ref,
                    standing=(waiting.agent, waiting.name) if always else None,
                    verdict=verdict,
                    by=by,
                    reason=reason,
                    output=given,
                )
            ]

        await self._append(session, said)

    async def cancel(self, session: str, *, after_turn: bool, by: str, reason: str) -> None:
        """Record the wish; where no worker will see it, end the run at once."""

        def said(state: State) -> list[Event]:
            if state.phase == IDLE:
                raise UsageError(f"{session} has no open run to cancel", session=session)
            requested = CancelRequested(by=by, after_turn=after_turn, reason=reason)
            if state.phase != STOPPED:
                return [requested]
            draft = Draft(session, state)
            draft.add(requested)
            return [requested, *cancellation(draft.state)]

        await self._append(session, said)

    async def _append(self, session: str, said: Callable[[State], list[Event]], *, new: bool = False) -> int:
        """Append what is to be said of the session as it is; again, if it has moved meanwhile."""
        while True:
            state = run_state(await self._log.records(session))
            if state.version == 0 and not new:
                raise UnknownSessionError(f"no session {session} in this log", session=session)
            draft = Draft(session, state)
            draft.add(*said(state))
            ids = [self._new_id() for _ in draft.events]
            wakes = wants_worker(draft.state)
            lease = await self._wake_up(session) if wakes else None
            try:
                done = await store(
                    self._log, session, draft.events, expected=state.version, ids=ids, lease=lease
                )
            except (ConflictError, FencedError):  # it has moved, or a worker came in between
                continue
            if wakes and lease is None:
                # A worker that was there may have looked before this was said. Whoever gives a lease
                # back looks once more; if it has been given back by now, this wakes up another.
                await self._wake_up(session)
            return done.version

    async def _wake_up(self, session: str) -> Lease | None:
        """Leave a lease that has run out, for whoever recovers; None while a worker is there."""
        return await until_answered(lambda: self._log.acquire(session, owner=self._name, seconds=0))


def _waiting(session: str, state: State, ref: Ref) -> Call:
    """The call, if it waits for a person. Raises UsageError, saying what it does instead."""
    call = state.calls.get(ref)
    if call is None:
        waiting = ", ".join(str(one.ref) for one in state.open_calls() if one.state == GATED)
        raise UsageError(f"{session} has no open call {ref}; waiting: {waiting or 'none'}", session=session)
    if call.state != GATED:
        instead = {
            "settled": "has its answer already",
            "decided": f"was decided already, by {call.by}",
            "asked": "does not wait for anybody: resume the session",
            "called": "is running, or was when its worker was lost: resume the session first",
            "unknown": "was interrupted: resume the session first, and it will ask",
        }[call.state]
        raise UsageError(f"call {ref} of {session} ({call.name}) {instead}", session=session)
    return call
