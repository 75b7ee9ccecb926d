"""What effects came to, and the events that say so.

An outcome is a fact. After a conflict it is folded onto the new head and appended there; it is
dropped only if its call or request is closed by then.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from batonlog.engine.decide import returned
from batonlog.engine.draft import Draft
from batonlog.engine.errors import words_of
from batonlog.engine.intend import AT_ONCE, NOT_AGAIN, Intentions
from batonlog.engine.models import ChainLostError, ModelResponse, TooLongError, cause_of, is_unavailable
from batonlog.engine.tools import Tool
from batonlog.events import JSON, ModelFailed, ModelResponded, NoteAdded, Ref, Usage
from batonlog.events.lifecycle import SETTLED
from batonlog.events.values import plain
from batonlog.projections.state import CHAIN_LOST, OVERFLOWED, Call


class ModelAnswered(Struct, frozen=True):
    """A model has answered."""

    request: int
    response: ModelResponse

    async def add(self, draft: Draft, intentions: Intentions) -> None:
        """Add its events. Raises IllegalTransitionError if the request is closed."""
        responded = ModelResponded(
            request=self.request,
            response_id=self.response.id,
            output=self.response.output,
            usage=self.response.usage,
            status=self.response.status,
        )
        try:
            draft.add(responded)
        except (TypeError, ValueError, RecursionError) as error:  # a model of the user's own
            await ModelBroke(self.request, error).add(draft, intentions)


class ModelBroke(Struct, frozen=True):
    """A model call ended without an answer."""

    request: int
    error: Exception | None
    """None if somebody cancelled it."""
    partial: str = ""

    async def add(self, draft: Draft, intentions: Intentions) -> None:
        """Add its events. Raises IllegalTransitionError if the request is closed."""
        cause = cause_of(self.error) if self.error is not None else None
        kind, message = (type(cause).__name__, words_of(cause)) if cause is not None else ("cancelled",) * 2
        again = NOT_AGAIN
        match self.error:
            case None:
                pass
            case ChainLostError():
                kind, again = CHAIN_LOST, AT_ONCE
            case TooLongError():
                kind = OVERFLOWED
                again = AT_ONCE if intentions.may_compact(draft.state) else NOT_AGAIN
            case _:
                again = intentions.again(draft.state, self.error)
        used = getattr(cause, "usage", None)
        draft.add(
            ModelFailed(
                request=self.request,
                kind=kind,
                message=message,
                partial=self.partial,
                usage=used if isinstance(used, Usage) else None,
                retried=again.retried,
                delay=again.delay,
                passed_on=again.passed_on,
            )
        )
        if self.error is None or cause is None or again.retried:
            return
        if draft.state.cancel is not None and is_unavailable(self.error):
            return  # nobody waits for it: what follows is the cancellation
        intentions.fail(draft, cause)


class ToolDone(Struct, frozen=True):
    """A tool has returned, or raised."""

    call: Ref
    output: object
    error: bool
    noted: dict[str, JSON]

    async def add(self, draft: Draft, intentions: Intentions) -> None:
        """Add its events. Raises IllegalTransitionError if the call is closed."""
        # A call that is not known any more is refused by the draft.
        nobodys = Call(self.call, call_id="", item="function_call", name="", agent="", arguments="")
        call = draft.state.calls.get(self.call, nobodys)
        notes = [NoteAdded(name=name, data=data) for name, data in self.noted.items()]
        draft.add(*notes, returned(call, self.output, error=self.error))


class CallbackReturned(Struct, frozen=True):
    """A handoff's callback has returned: the switch follows, computed on the state as it is then."""

    call: Ref
    noted: dict[str, JSON]

    async def add(self, draft: Draft, intentions: Intentions) -> None:
        """Add its events; none if the call is closed."""
        call = draft.state.calls.get(self.call)
        if call is not None and call.state != SETTLED:
            await intentions.transfers.hand_over(draft, self.call, self.noted)


Outcome = ModelAnswered | ModelBroke | ToolDone | CallbackReturned


def as_output(value: object) -> JSON:
    """Return what a tool returned as JSON: text as it is, None as nothing.

    Raises TypeError, naming the type, for what JSON cannot hold.
    """
    return "" if value is None else plain(value)


def error_output(tool: Tool[Any] | None, context: Any, error: Exception) -> str:
    """Return what the model is told about an error: its type and text, or what the tool makes of it."""
    on_error: Callable[[Any, Exception], str] | None = tool.on_error if tool is not None else None
    if on_error is not None:
        return str(on_error(context, error))
    name, text = type(error).__name__, words_of(error)
    return name if text == name else f"{name}: {text}"
