"""Fakes for users' own tests: strict, and the same that batonlog is tested with."""

from batonlog.engine.testing.scripted import ScriptedModel, Step, assistant_message, function_call

__all__ = ["ScriptedModel", "Step", "assistant_message", "function_call"]
