"""Plays a script through a real engine, from its first turn to its last."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tests.laws.cast import Models, edited, engine_of, voices
from tests.laws.played import Played
from tests.laws.scripts import AGENTS, JSON, Edit, Script, Turn
from tests.laws.store import append

from batonlog.engine import (
    RunFailedError,
    SessionBusyError,
)
from batonlog.events import (
    ApprovalDecided,
    HistoryRewritten,
    Limits,
    Ref,
    Rewrite,
    UsageError,
)
from batonlog.events.lifecycle import IDLE
from batonlog.projections import (
    FilterInput,
    RunResult,
)
from batonlog.projections.filters import apply_filters
from batonlog.projections.rewrite import operations
from batonlog.projections.state import run_state

_PATIENCE = 40
"""How often a run that waits or has failed is taken up again."""


async def play(
    script: Script, *, models: Models = voices, look: Callable[[Any], JSON] | None = None
) -> Played:
    """Play a script from its first turn to its last, with a person who answers whatever waits."""
    played = Played(script)
    played.look = look
    engine = engine_of(played, models=models)
    for turn in script.turns:
        await before(played, turn)
        try:
            await take(played, turn, engine.run)
        except UsageError as error:
            # What is said may be no item; then nothing has begun.
            played.refused.append(str(error))
        except SessionBusyError:
            break  # patience was lost
    await engine.close()
    return played


async def take(played: Played, turn: Turn, run: Callable[..., Any]) -> RunResult | None:
    """One run, from what is said to its end."""
    result: RunResult | None = None
    with suppress(RunFailedError):
        result = await run(
            turn.says, session=played.session, context=played, limits=Limits(turns=turn.limit or 10)
        )
    return await go_on(played, result)


async def go_on(played: Played, result: RunResult | None) -> RunResult | None:
    """Answer what waits, and take up what failed, until the run has its end or patience is lost."""
    engine = played.engine
    for _ in range(_PATIENCE):
        if result is None:
            result = await engine.status(played.session)
        if result.status not in ("paused", "failed", "running"):
            return result
        for call in result.open_calls:
            await speak(played, call.call, call.why)
        try:
            result = await engine.resume(played.session, limits=Limits(turns=30, handoffs=40))
        except RunFailedError:
            result = None
    return result


async def speak(played: Played, call: Ref, why: str) -> None:
    """Say a person's word on one call, if it waits for one."""
    engine, session = played.engine, played.session
    try:
        match played.verdict():
            case _ if why == "running":
                pass
            case "refuse":
                await engine.reject(session, call, by="p", reason="no")
            case "run" if why != "external":
                await engine.approve(session, call, by="p")
            case _:
                await engine.settle(session, call, {"settled": True}, by="p")
    except UsageError:
        # A call that was interrupted is asked about once the session has been resumed.
        if why != "unknown":
            raise


async def before(played: Played, turn: Turn) -> None:
    """What happens between two runs."""
    for what, by in turn.before:
        head = await played.store.head(played.session)
        match what:
            case "note" if head is not None:
                await played.engine.note(played.session, "between", by)
            case "send":
                await played.engine.send(by, session=played.session)
            case "always" if head is not None:
                await append(
                    played.store,
                    played.session,
                    ApprovalDecided(standing=(AGENTS[0], "pay"), verdict=by, by="p"),
                )
            case "rewrite" if head is not None:
                await rewrite(played, by)


async def rewrite(played: Played, edits: Sequence[Edit]) -> None:
    """Rewrite the view from outside, where no call is open."""
    state = run_state(await played.records())
    if state.open_calls() or state.phase != IDLE:
        return
    view = state.place.settled
    given = FilterInput(
        view, version=state.version, cause="manual", session=played.session, context=played, split=0
    )
    try:
        after = await apply_filters(lambda history: edited(history, edits), given)
        changes = operations(view, after)
    except UsageError:
        return
    if changes is not None:
        change = Rewrite(filter="by hand", parameters={}, operations=tuple(changes))
        await append(played.store, played.session, HistoryRewritten(cause="manual", rewrite=change))
