"""What anyone may say, from any process, without a lease and without agents: the log is the control plane."""

from collections.abc import Callable, Sequence
from typing import Literal
from uuid import UUID

from batonlog.engine.decide import cancellation
from batonlog.engine.draft import Draft
from batonlog.events import (
    JSON,
    ApprovalDecided,
    CancelRequested,
    ConflictError,
    Event,
    EventLog,
    InputAdded,
    NoteAdded,
    Ref,
    UnknownSessionError,
    UsageError,
)
from batonlog.events.lifecycle import GATED, IDLE, STOPPED
from batonlog.events.values import plain
from batonlog.projections.items import Item
from batonlog.projections.state import Call, State, run_state


class Control:
    """Appends facts that never move a run, checked against the session as it is."""

    def __init__(self, log: EventLog, new_id: Callable[[], UUID]) -> None:
        self._log = log
        self._new_id = new_id

    async def send(self, session: str, items: Sequence[Item], by: str) -> int:
        """Record input. Return its version."""
        held = tuple(item.held for item in items)

        def said(state: State) -> list[Event]:
            return [InputAdded(input=held, goes_to="run" if state.phase == IDLE else "turn", by=by)]

        return await self._append(session, said, new=True)

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
            try:
                done = await self._log.append(session, draft.events, expected=state.version, ids=ids)
            except ConflictError:
                continue
            return done.version


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
