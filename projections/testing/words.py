"""A broken law in words, for whoever wrote the filter: what is wrong, and the smallest history that shows it."""

import json
from collections.abc import Iterator, Sequence

from batonlog.events import JSON
from batonlog.projections.filters import FilterInput
from batonlog.projections.items import OUTPUTS, Item, text_of
from batonlog.projections.testing.laws import KINDS, Fault

_LONGEST = 60
"""Characters of a text that are shown."""


def tell(name: str, fault: Fault, *, sometimes: bool = False) -> str:
    """Return the whole story."""
    lines = [f"{name} breaks a law of filters: {fault.law}.", "", fault.what, fault.would]
    if sometimes:
        lines += ["It does not always do so: what it returns depends on more than what it is given."]
    lines += ["", f"It was given ({_circumstances(fault.given)}):", *_listed(fault.given, fault.marked)]
    if fault.given.own is not None:
        lines += ["with own, the view in which the target last handed off:", *_listed(fault.given.own, ())]
    if fault.returned is not None:
        lines += ["It returned:", *_listed(fault.returned, fault.marked)]
    if fault.second is not None:
        lines += ["And the other time:", *_listed(fault.second, ())]
    return "\n".join(lines)


def _circumstances(given: FilterInput[object]) -> str:
    if given.cause != "handoff":
        return f"a {KINDS[given.cause]}"
    return f"handoff from {given.source} to {given.target}, arguments {_short(repr(given.arguments))}"


def _listed(items: Sequence[Item], marked: Sequence[Item]) -> Iterator[str]:
    """One line an item: its number, ref, type, who said it and what; > before those that it is about."""
    rows = [(str(item.ref or "new"), item.type, _who(item), say_item(item)) for item in items]
    widths = [max((len(row[n]) for row in rows), default=0) for n in range(3)]
    for n, (item, (ref, kind, who, what)) in enumerate(zip(items, rows, strict=True), 1):
        mark = ">" if any(item is one or item == one for one in marked) else " "
        start = f"{mark} {n:2}  {ref:{widths[0]}}  {kind:{widths[1]}}  {who:{widths[2]}}"
        yield f"{start}  {what}".rstrip()
    if not items:
        yield "   (nothing)"


def _who(item: Item) -> str:
    return item.agent or item.role or "-"


def say_item(item: Item) -> str:
    """Return what an item says, in one line that no terminal can misread."""
    data = item.data
    stands = f" (in place of {', '.join(map(str, item.replaces))})" if item.replaces else ""
    match item.type:
        case "message":
            what = _said(data.get("content"))
        case "reasoning":
            what = _short(repr(text_of(data.get("summary"))))
        case kind if kind in OUTPUTS:
            what = f"→ {_said(data.get('output', data.get('status', data.get('approve'))))}"
        case _ if isinstance(data.get("name"), str):
            what = f"{data['name']} {_short(_json(data.get('arguments', data.get('input', ''))))}"
        case _:
            rest = {name: value for name, value in data.items() if name not in ("type", "id", "status")}
            what = _short(_json(rest)) if rest else ""
    answers = f" (answers {item.answers})" if item.answers is not None else ""
    return f"{what}{answers}{stands}".strip()


def _said(content: JSON) -> str:
    if isinstance(content, str):
        return _short(repr(content))
    if not isinstance(content, list):
        return _short(_json(content))
    parts = [part for part in content if isinstance(part, dict)]
    texts = [repr(text_of([part])) if text_of([part]) else f"[{part.get('type')}]" for part in parts]
    return _short(" ".join(texts)) or "(no text)"


def _json(value: JSON) -> str:
    """JSON in ASCII, but for a text, which stands as it is written in Python."""
    return repr(value) if isinstance(value, str) else json.dumps(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
