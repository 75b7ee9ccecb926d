"""What to do next: decide purely, append, perform."""

from batonlog.engine.agents import Agent
from batonlog.engine.contexts import RunContext, ToolContext
from batonlog.engine.engine import Engine
from batonlog.engine.errors import RunFailedError, SessionBusyError
from batonlog.engine.handoffs import Handoff, handoff
from batonlog.engine.inputs import Input
from batonlog.engine.models import (
    Delta,
    Model,
    ModelResponse,
    ModelSettings,
    Retries,
    UnavailableError,
)
from batonlog.engine.openai_responses import OpenAIResponsesModel
from batonlog.engine.registry import UnknownAgentError
from batonlog.engine.stream import RunStream, Update
from batonlog.engine.tools import Tool, tool
from batonlog.events import Limits
from batonlog.projections import ModelRequest, RunResult

__all__ = [
    "Agent",
    "Delta",
    "Engine",
    "Handoff",
    "Input",
    "Limits",
    "Model",
    "ModelRequest",
    "ModelResponse",
    "ModelSettings",
    "OpenAIResponsesModel",
    "Retries",
    "RunContext",
    "RunFailedError",
    "RunResult",
    "RunStream",
    "SessionBusyError",
    "Tool",
    "ToolContext",
    "UnavailableError",
    "UnknownAgentError",
    "Update",
    "handoff",
    "tool",
]
