"""Random conversations as plain values: who there is, what the models say, and what people do.

A script is a value that prints as it must be written, so that what Hypothesis finds can be
pasted into a test. `play.py` plays one through a real engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from batonlog.engine.handoffs import wire_name

JSON: TypeAlias = Any
Thing: TypeAlias = dict[str, JSON]

AGENTS = ("front", "Billing Team", "退款专家")
TOOLS = ("look", "pay", "ask", "boom", "steer", "note", "wait", "lost", "stop")
TRANSFERS = tuple(wire_name(name) for name in AGENTS)
ROUTE = "route"
"""The wire name of every handoff that picks its target."""


def named(output: Sequence[Thing], offered: Sequence[str]) -> list[Thing]:
    """Return what a model says with the names of handoffs filled in."""
    transfers = [name for name in offered if name in (*TRANSFERS, ROUTE)]

    def fill(item: Thing) -> Thing:
        name = item.get("name")
        if not (isinstance(name, str) and name.startswith("@")):
            return item
        return {**item, "name": transfers[int(name[1:]) % len(transfers)] if transfers else "nosuch"}

    return [fill(item) for item in output]


@dataclass(frozen=True)
class Step:
    """What a model says in one turn."""

    output: Sequence[Thing] = ()
    incomplete: bool = False
    fails: bool = False
    """It raises instead, once; asked again, it says its output."""


@dataclass(frozen=True)
class Edit:
    """One thing that a filter does to a list of items. What is out of range wraps around."""

    what: str
    at: int = 0
    by: JSON = None


@dataclass(frozen=True)
class Filtering:
    """What a filter does."""

    edits: Sequence[Edit] = ()
    asynchronous: bool = False
    fails: int = 0
    """How often it raises before it does its work."""


@dataclass(frozen=True)
class Passing:
    """One handoff."""

    source: int
    targets: Sequence[int]
    picks: str = ""
    """For one that picks: `first`, `last`, `raise`, `nowhere` or `self`."""
    callback: str = ""
    """What its callback does: `note` or `raise`."""
    filtering: Filtering | str | None = "default"
    typed: bool = False
    gate: bool = False
    acknowledgement: str | None = None


@dataclass(frozen=True)
class Turn:
    """One run, and what happens before it."""

    says: str | Sequence[Thing]
    before: Sequence[tuple[str, JSON]] = ()
    """`note`, `send`, `rewrite` (edits) and `always` (a verdict on a tool), while nothing runs."""
    limit: int | None = None


@dataclass(frozen=True)
class Script:
    """A whole conversation, and everything that it depends on."""

    steps: Sequence[Step]
    turns: Sequence[Turn] = (Turn("hi"),)
    passings: Sequence[Passing] = ()
    default: Filtering | None = None
    """The engine's own filter."""
    chain: bool = False
    second_model: Sequence[int] = ()
    """Agents that ask another model."""
    people: Sequence[str] = ("run",)
    """Verdicts on calls that wait, in turn."""
    outputs: Sequence[JSON] = ("fine",)
    """What tools return, by the number that they are given."""
    delays: Sequence[int] = (0,)
    """How many rounds of the loop each effect takes, in turn."""
    tools: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Tools by agent, where it has not all of them."""
