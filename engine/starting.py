"""What looking at a call comes to: started, asked about first, or answered at once."""

from collections.abc import Awaitable
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from batonlog.engine.contexts import RunContext
from batonlog.engine.decide import NOBODY_KNOWS, abandoned, refused
from batonlog.engine.errors import words_of
from batonlog.events import JSON, Event, NoteAdded, ToolCalled
from batonlog.events.lifecycle import ASKED
from batonlog.projections.state import Call, State


def called(call: Call, arguments: dict[str, JSON]) -> ToolCalled:
    """Start a call: the intent of its next attempt."""
    return ToolCalled(call=call.ref, name=call.name, arguments=arguments, attempt=call.attempts + 1)


def unavailable(call: Call) -> Event:
    """Log and code disagree: this process lacks what the log names."""
    return never(call, "unavailable", f"{call.name} is not available any more. Go on without it.")


def never(call: Call, reason: str, answer: str) -> Event:
    """Answer a call that is not started here; of one that was started before, nobody knows."""
    return abandoned(call, "unknown", NOBODY_KNOWS) if call.attempts else refused(call, reason, answer)


async def gated(state: State, call: Call, gate: object, *given: Any) -> bool:
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


def is_async(one: object) -> bool:
    """Whether calling it gives something to wait for."""
    while isinstance(one, partial):
        one = one.func
    return iscoroutinefunction(one) or iscoroutinefunction(getattr(one, "__call__", None))  # noqa: B004


def notes_of(context: RunContext[Any]) -> list[Event]:
    """What a callback has noted, as events."""
    return [NoteAdded(name=name, data=data) for name, data in context.noted.items()]


def in_words(error: Exception) -> str:
    """An error by its type and text, for the model."""
    return f"{type(error).__name__}: {words_of(error)}"
