"""What providers refuse, and the smallest rewrite that mends it.

A view need be legal only when it is sent. It is never repaired on the way out: what is found
here becomes a `history.rewritten`, and then what is sent *is* the view.

1. An output follows its call, once; a call has its output.
2. Reasoning stands directly before what followed it in its response. Without it, it is
   dropped; a message, a call or an output is never dropped for reasoning's sake.
3. Reasoning, and items that go out with their ids, go back to the endpoint and model that made
   them, and to no other. Without a known maker they are dropped.
4. No id stands twice.

A `call_id` that is used again is no fault: calls are told apart by their refs, and the wire
form keeps them apart (see wire.py).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from batonlog.events import JSON, Ref
from batonlog.projections.history import History
from batonlog.projections.items import ANSWERED_BY, OUTPUTS, Item, as_item
from batonlog.projections.pairing import Pairing, is_call, is_output
from batonlog.projections.wire import keeps_id

NO_OUTPUT = "[The output of this call is not part of this history.]"
"""What stands for an output that a filter left out."""

Issuer = tuple[str, str]


class Violation(NamedTuple):
    """One thing that a provider would refuse."""

    item: Item
    rule: str
    """`output_without_call`, `call_without_output`, `second_output`, `reasoning_without_follower`,
    `foreign_item` or `duplicate_id`."""
    message: str


def check_legal(history: History) -> tuple[Violation, ...]:
    """Return what a provider would refuse in this history; nothing, if it is legal."""
    return tuple(violations(list(history), None))


def repair(history: History) -> History:
    """Return the nearest legal history: orphans dropped, missing outputs made up. Twice is once."""
    return History(repaired(list(history), None), history.version)


def violations(items: Sequence[Item], issuer: Issuer | None) -> Iterator[Violation]:
    """Yield what this issuer would refuse; None is any."""
    yield from _pairs(items)
    yield from _reasoning(items)
    yield from _ids(items)
    if issuer is not None:
        yield from _foreign(items, issuer)


def _pairs(items: Sequence[Item]) -> Iterator[Violation]:
    pairing = Pairing()
    for n, item in enumerate(items):
        if is_call(item):
            pairing.call(n, item)
        elif is_output(item):
            place, waited = pairing.answer(item)
            if place is None:
                yield Violation(item, "output_without_call", f"{_name(item)} answers no call before it")
            elif not waited:
                yield Violation(item, "second_output", f"{_name(item)} answers a call that has its output")
    for item in pairing.waiting.values():
        yield Violation(item, "call_without_output", f"{_name(item)} has no output")


def _foreign(items: Sequence[Item], issuer: Issuer) -> Iterator[Violation]:
    for item in items:
        if item.issuer != issuer and (item.type == "reasoning" or keeps_id(item)):
            maker = item.issuer[1] if item.issuer is not None else "nobody that the log knows"
            yield Violation(item, "foreign_item", f"{_name(item)} was made by {maker}, not by {issuer[1]}")


def _reasoning(items: Sequence[Item]) -> Iterator[Violation]:
    for n, item in enumerate(items):
        if item.type == "reasoning" and not _is_followed(items, n):
            yield Violation(item, "reasoning_without_follower", f"{_name(item)} lost what followed it")


def _is_followed(items: Sequence[Item], n: int) -> bool:
    """Whether reasoning stands before what followed it in its response."""
    item = items[n]
    if n + 1 == len(items):
        return False
    follower = items[n + 1]
    if not is_output_of_a_model(follower):
        return False
    if item.ref is None or follower.ref is None or item.replaces:
        return True
    follows = Ref(item.ref.version, item.ref.index + 1)
    if follower.ref != follows and follows not in follower.replaces:
        return False
    return follower.type != "reasoning" or _is_followed(items, n + 1)


def is_output_of_a_model(item: Item) -> bool:
    """Whether a model says such items: all but input and answers."""
    if item.type == "message":
        return item.role == "assistant"
    return item.type not in OUTPUTS and item.type != "item_reference"


def _ids(items: Sequence[Item]) -> Iterator[Violation]:
    seen: set[str] = set()
    for item in items:
        if (
            item.type in ("message", "item_reference")
            or item.head.call_id is not None
            or item.head.id is None
        ):
            continue
        if item.head.id in seen:
            yield Violation(
                item, "duplicate_id", f"the id {item.head.id} of {_name(item)} stands there already"
            )
        seen.add(item.head.id)


def _name(item: Item) -> str:
    return f"{item.type} {item.ref}" if item.ref is not None else f"a new {item.type}"


def repaired(items: Sequence[Item], issuer: Issuer | None) -> list[Item]:
    """Return the items without what this issuer would refuse, and with made-up outputs put in."""
    out = list(items)
    while bad := list(violations(out, issuer)):
        # Dropping one item may take another's follower away: until nothing is found.
        out = _mend(out, bad)
    return out


def _mend(items: Sequence[Item], bad: Sequence[Violation]) -> list[Item]:
    wrong = {id(violation.item): violation.rule for violation in bad}
    out: list[Item] = []
    owed: list[Item] = []
    for item in items:
        rule = wrong.get(id(item))
        if owed and not is_call(item):
            out.extend(owed)
            owed = []
        if rule is None:
            out.append(item)
        elif rule == "call_without_output" and item.type in _TEXT_OUTPUT:
            out.append(item)
            owed.append(_made_up(item))
    return [*out, *owed]


_TEXT_OUTPUT = frozenset({"function_call", "custom_tool_call"})


def _made_up(call: Item) -> Item:
    data: dict[str, JSON] = {
        "type": ANSWERED_BY[call.type],
        "call_id": call.head.call_id or "call",
        "output": NO_OUTPUT,
    }
    made = as_item(data)
    return Item(None, made.held, call.agent, call.ref)
