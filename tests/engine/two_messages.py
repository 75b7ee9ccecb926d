"""A session of two messages and their answers, for tests of what becomes of the view."""

from collections.abc import Iterable
from typing import Any

from batonlog.engine import Agent, Engine, tool
from batonlog.engine.testing import ScriptedModel, Step
from batonlog.events import EventLog, HistoryRewritten, Record


@tool(idempotent=True)
def look() -> str:
    return "seen"


@tool(needs_approval=True)
def pay() -> str:
    return "paid"


def texts(items: Iterable[Any]) -> list[str]:
    return [item.text for item in items]


def rewrites(records: Iterable[Record]) -> list[HistoryRewritten]:
    return [record.event for record in records if isinstance(record.event, HistoryRewritten)]


async def played(log: EventLog, *script: Step, **options: Any) -> tuple[Engine, ScriptedModel]:
    """Say "one" and "two" in session s, and return the engine."""
    model = ScriptedModel(*script)
    engine = Engine(log, agents=[Agent("a", tools=[look, pay], model=model)], **options)
    await engine.run("one", session="s")
    await engine.run("two", session="s")
    return engine, model
