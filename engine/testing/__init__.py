"""Fakes for users' own tests: strict, and the same that batonlog is tested with."""

from batonlog.engine.testing._crash_passes import CrashReport
from batonlog.engine.testing.crashes import crash_everywhere
from batonlog.engine.testing.fake_responses import FakeResponsesServer
from batonlog.engine.testing.kills import kill_at_random
from batonlog.engine.testing.scripted import ScriptedModel, Step, assistant_message, function_call

__all__ = [
    "CrashReport",
    "FakeResponsesServer",
    "ScriptedModel",
    "Step",
    "assistant_message",
    "crash_everywhere",
    "function_call",
    "kill_at_random",
]
