"""What providers refuse, and the smallest rewrite that mends it.

A view need be legal only when it is sent. It is never repaired on the way out: what is found
here becomes a `history.rewritten`, and then what is sent *is* the view.

1. An output follows its call, once; a call has its output.
2. A call that a program made, and its output, stand behind that program.
3. Reasoning stands directly before what followed it in its response. Without it, it is
   dropped; a message, a call or an output is never dropped for reasoning's sake.
4. An item that goes out with its id is not sent without the reasoning that stood before it: it
   is dropped with it. (Without an id nothing ties an item to its reasoning.)
5. Reasoning, and items that go out with their ids, go back to the endpoint and model that made
   them, and to no other. Without a known maker they are dropped.
6. No id stands twice.

A `call_id` that is used again is no fault: calls are told apart by their refs, and the wire
form keeps them apart (see wire.py).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Raw

from batonlog.events import JSON, Ref
from batonlog.events.values import dump
from batonlog.projections.history import History
from batonlog.projections.items import ANSWERED_BY, OUTPUTS, Item
from batonlog.projections.pairing import Pairing, called, is_call, is_output, program_of
from batonlog.projections.wire import keeps_id

NO_OUTPUT = "[The output of this call is not part of this history.]"
"""What stands for an output that a filter left out."""

Issuer = tuple[str, str]


class Violation(NamedTuple):
    """One thing that a provider would refuse."""

    item: Item
    rule: str
    """`output_without_call`, `call_without_output`, `second_output`, `reasoning_without_follower`,
    `item_without_reasoning`, `without_program`, `foreign_item` or `duplicate_id`."""
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
    yield from _programs(items)
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


def _programs(items: Sequence[Item]) -> Iterator[Violation]:
    """Calls that a program made, and their outputs, without the program."""
    programs: set[str] = set()
    for item in items:
        if item.type == "program":
            programs.add(called(item))
        elif (program := program_of(item)) is not None and program not in programs:
            yield Violation(item, "without_program", f"{_name(item)} lost the program that called it")


def _foreign(items: Sequence[Item], issuer: Issuer) -> Iterator[Violation]:
    for item in items:
        if item.issuer != issuer and (item.type in _SEALED or keeps_id(item)):
            maker = item.issuer[1] if item.issuer is not None else "nobody that the log knows"
            yield Violation(item, "foreign_item", f"{_name(item)} was made by {maker}, not by {issuer[1]}")


def _reasoning(items: Sequence[Item]) -> Iterator[Violation]:
    for n, item in enumerate(items):
        if item.type == "reasoning" and not _is_followed(items, n):
            yield Violation(item, "reasoning_without_follower", f"{_name(item)} lost what followed it")
        elif item.thought and keeps_id(item) and not _is_preceded(items, n):
            yield Violation(item, "item_without_reasoning", f"{_name(item)} lost the reasoning before it")


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


def _is_preceded(items: Sequence[Item], n: int) -> bool:
    """Whether an item stands behind the reasoning that it stood behind in its response."""
    if n == 0 or items[n - 1].type != "reasoning":
        return False
    refs = (items[n].ref, *items[n].replaces)
    return items[n - 1].ref in [Ref(ref.version, ref.index - 1) for ref in refs if ref is not None]


_SEALED = frozenset({"reasoning", "compaction"})
"""What only its maker can read."""


def is_output_of_a_model(item: Item) -> bool:
    """Whether a model says such items: all but input and answers."""
    if item.type == "message":
        return item.role == "assistant"
    return item.type not in OUTPUTS and item.type != "item_reference"


def _ids(items: Sequence[Item]) -> Iterator[Violation]:
    seen: set[str] = set()
    for item in items:
        if item.head.id is None or not keeps_id(item):
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


def untorn(history: History, left: History) -> History:
    """Return what a filter left of a history, without what it tore from what it dropped.

    So an output goes with its call, reasoning with what followed it, and a hosted item with its reasoning.
    """
    known = {_identity(fault.item) for fault in violations(list(history), None)}
    out = list(left)
    while torn := {_identity(fault.item) for fault in violations(out, None)} - known:
        out = [item for item in out if _identity(item) not in torn]
    return History(out, left.version) if len(out) < len(left) else left


def _identity(item: Item) -> object:
    """What an item and an edited copy of it have in common."""
    return item.covers or id(item)


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
        "call_id": call.head.call_id or "",  # as the call has it; the wire form mends both
        "output": NO_OUTPUT,
    }
    # What it is made from says which call it answers: ids are used again.
    sources = (call.ref,) if call.ref is not None else call.replaces
    return Item(None, Raw(dump(data)), call.agent, call.ref, replaces=sources)
