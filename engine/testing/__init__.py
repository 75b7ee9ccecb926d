"""Fakes for users' own tests: strict, and the same that batonlog is tested with."""

from batonlog.engine.testing.crashes import CrashReport, crash_everywhere
from batonlog.engine.testing.fake_responses import FakeResponsesServer
from batonlog.engine.testing.scripted import ScriptedModel, Step, assistant_message, function_call

__all__ = [
    "CrashReport",
    "FakeResponsesServer",
    "ScriptedModel",
    "Step",
    "assistant_message",
    "crash_everywhere",
    "function_call",
]
