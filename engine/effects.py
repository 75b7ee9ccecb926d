"""Effects: model calls, tools and handoff callbacks. Each one's intent is durable before it runs."""

import asyncio
from collections.abc import Callable
from typing import Any

from batonlog.engine.contexts import ToolContext
from batonlog.engine.handoffs import Handoff
from batonlog.engine.models import Delta, Model, ModelResponse
from batonlog.engine.outcomes import (
    CallbackReturned,
    ModelAnswered,
    ModelBroke,
    Outcome,
    ToolDone,
    as_output,
    error_output,
)
from batonlog.engine.tools import Tool, call_either
from batonlog.events import JSON
from batonlog.projections import ModelRequest

pause = asyncio.sleep
"""How a wait before a request is waited for. Tests put a clock of their own here."""


async def ask(
    model: Model,
    request: ModelRequest,
    version: int,
    tell: Callable[[Delta], None],
    partial: list[str],
    *,
    delay: float = 0.0,
) -> Outcome:
    """Call a model, after `delay` seconds, and pass its deltas on.

    A stream that breaks is no answer; its text is in `partial`. The wait is a part of the call: a
    cancel or a close ends it, the lease is kept, and a crash forgets it.
    """
    if delay:
        await pause(delay)
    response: ModelResponse | None = None
    try:
        async for piece in model.respond(request):
            if isinstance(piece, Delta):
                if piece.kind == "text":
                    partial.append(piece.text)
                tell(piece)
            elif isinstance(piece, ModelResponse):
                response = piece
            else:
                raise TypeError(
                    f"model {model.name} yielded {type(piece).__name__}, which is no Delta and no ModelResponse"
                )
        if response is None:
            raise RuntimeError(f"model {model.name} ended its answer without a ModelResponse")
    except (Exception, asyncio.CancelledError) as error:
        return ModelBroke(version, _its_own(error), "".join(partial))
    return ModelAnswered(version, response)


async def run_tool(tool: Tool[Any], context: ToolContext[Any], arguments: dict[str, JSON]) -> Outcome:
    """Run a tool. What it raises becomes its output."""
    try:
        output = as_output(await tool.run(context, arguments))
        return ToolDone(context.call, output, False, context.noted)
    except (Exception, asyncio.CancelledError) as error:
        raised = _its_own(error)
        try:
            text = error_output(tool, context, raised)
        except Exception as second:
            text = error_output(None, context, second)
        return ToolDone(context.call, text, True, context.noted)


async def run_callback(one: Handoff[Any], context: ToolContext[Any], arguments: dict[str, JSON]) -> Outcome:
    """Run a handoff's callback. One that raises refuses the transfer."""
    assert one.on_handoff is not None
    try:
        await call_either(one.on_handoff, *one.given(context, one.read(arguments)))
        return CallbackReturned(context.call, context.noted)
    except (Exception, asyncio.CancelledError) as error:
        text = f"The transfer was not made: {error_output(None, context, _its_own(error))}"
        return ToolDone(context.call, text, True, context.noted)


class CancelledInsideError(Exception):
    """An effect let a cancellation of something of its own through."""


def _its_own(error: BaseException) -> Exception:
    """What an effect raised; raises a cancellation that was meant for it."""
    if isinstance(error, Exception):
        return error
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise error
    own = CancelledInsideError("something that it waited for was cancelled")
    own.__cause__ = error
    return own
