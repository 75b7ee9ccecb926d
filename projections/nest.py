"""`nest_history`: the earlier conversation folded into one message.

What is folded is known by ref, never by reading a text back. Each item becomes a line of JSON
in a part of its own (lines.py), so a second nest adds lines to the first, whatever any of them
says: text that looks like a marker or a role, line separators of all sorts, and quotes are
inside a JSON string and stay there, as they were written.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import merge

from msgspec import Raw

from batonlog.events import JSON, Ref
from batonlog.events.values import dump
from batonlog.projections.history import History
from batonlog.projections.items import TEXT_PARTS, Item
from batonlog.projections.lines import Line, lines_of, nest_of, one_line
from batonlog.projections.pairing import Pairing, called, is_call, is_output, program_of
from batonlog.projections.wire import keeps_id

HEADING = "What was said and done before, one JSON object a line:"
"""The first part of a nest."""


def nest_history(history: History, /, *, mapper: Callable[[History], str] | None = None) -> History:
    """Fold the conversation into one message of the assistant, and keep the last user message after it.

    Every item is told on a line of its own, in the order of the history. A second nest folds
    the same items again: it adds lines for what is new, and quotes none of its own.

    What stays an item: images and files (a call with its output, if that holds one), messages
    of the system and the developer, what only its provider can read, and the last user message.
    Reasoning is told by its summary; without one it is folded in silence.

    Args:
        history: what is to be shown.
        mapper: makes another text of what is folded. That text is opaque: no other filter takes
            it apart, and a second nest treats it as one message.
    """
    stays = _staying(history)
    folded = [item for n, item in enumerate(history) if n not in stays]
    if not any(_can_be_read(item) for item in folded) or (len(folded) == 1 and folded[0].lines):
        return history[:]
    nest = _told(folded) if mapper is None else _mapped(History(folded, history.version), mapper)
    # The nest never comes behind the question: some providers refuse what ends with the assistant.
    question = _question(history)
    first = next(n for n in range(len(history)) if n not in stays or n == question)
    before = [item for n, item in enumerate(history) if n in stays and n < first]
    after = [item for n, item in enumerate(history) if n in stays and n >= first]
    return History([*before, nest, *after], history.version)


def _mapped(folded: History, mapper: Callable[[History], str]) -> Item:
    data = {"type": "message", "role": "assistant", "content": mapper(folded)}
    return Item(None, Raw(dump(data)), replaces=tuple(ref for item in folded for ref in item.covers))


# -- what stays an item


def _staying(history: Sequence[Item]) -> set[int]:
    """Places of the items that are not folded."""
    stays = {n for n, item in enumerate(history) if not _can_be_told(item)}
    if (question := _question(history)) is not None:
        stays.add(question)
    _add_groups(history, stays)
    return stays


def _question(history: Sequence[Item]) -> int | None:
    """Place of the last user message, if there is one."""
    return next((n for n in range(len(history) - 1, -1, -1) if history[n].role == "user"), None)


def _can_be_read(item: Item) -> bool:
    return bool(item.lines) or _line(item) is not None


def _can_be_told(item: Item) -> bool:
    if item.lines:
        return True
    if item.type == "message" and item.role in ("system", "developer"):
        return False
    return item.type not in _SEALED and not _holds_media(item)


_SEALED = frozenset({"compaction", "item_reference", "image_generation_call"})
"""What is no text: only its provider can read it, or it is a picture."""


def _holds_media(item: Item) -> bool:
    """Whether a message or an output has a part that is no text."""
    data = item.data
    content = data.get("output") if is_output(item) else data.get("content")
    parts = content if isinstance(content, list) else [content]  # a computer's screenshot stands alone
    kinds = (part.get("type") for part in parts if isinstance(part, Mapping))
    return any(isinstance(kind, str) and kind not in _READABLE for kind in kinds)


_READABLE = frozenset({*TEXT_PARTS, "reasoning_text"})


def _add_groups(history: Sequence[Item], stays: set[int]) -> None:
    """Add what a staying item cannot be sent without: its call, output, program, the reasoning before it."""
    pairing = Pairing()
    pairs: list[tuple[int, int]] = []
    programs: dict[str, int] = {}
    owned: list[tuple[int, int]] = []
    for n, item in enumerate(history):
        if item.type == "program":
            programs[called(item)] = n
        elif (program := programs.get(program_of(item) or "")) is not None:
            owned.append((program, n))
        if is_call(item):
            pairing.call(n, item)
        elif is_output(item) and (place := pairing.answer(item)[0]) is not None:
            pairs.append((place, n))
    for _ in range(2):  # the program of a call has an output too
        for place, n in pairs:
            if place in stays or n in stays:
                stays |= {place, n}
        stays |= {program for program, n in owned if n in stays}
    for n in range(len(history) - 1, 0, -1):
        if n in stays and history[n - 1].type == "reasoning" and keeps_id(history[n]):
            stays.add(n - 1)


# -- what is told


def _told(folded: Sequence[Item]) -> Item:
    """One nest of all: the lines of earlier nests and of new items, in the order in which they were said."""
    told: list[list[Line]] = [[]]
    silent: list[Ref] = []
    for item in folded:
        if item.lines:
            heading, *rest = lines_of(item)
            silent.extend(heading.covers)
            told.append(rest)
        elif (text := _line(item)) is None:
            silent.extend(item.covers)
        else:
            told[0].append(Line(text, item.covers, item))
    merged = merge(*map(_keyed, told), key=lambda pair: pair[0])
    return nest_of([Line(HEADING, tuple(silent)), *(part for _, part in merged)])


def _keyed(parts: Sequence[Line]) -> list[tuple[Ref, Line]]:
    """Parts with the latest ref so far, by which sequences of them merge without changing their own order."""
    out: list[tuple[Ref, Line]] = []
    latest = Ref(0, 0)
    for part in parts:
        latest = max([latest, *part.covers[:1]])
        out.append((latest, part))
    return out


def _line(item: Item) -> str | None:
    """What an item said, as a line of JSON; None if there is nothing to read in it."""
    data = item.data
    told: dict[str, JSON] = {}
    match item.type:
        case "message":
            told = {"role": item.role, **_by(item), "text": item.text}
        case "reasoning":
            summary = "".join(_texts(data.get("summary"))) or "".join(_texts(data.get("content")))
            if not summary:
                return None
            told = {"thought": summary, **_by(item)}
        case "function_call" | "custom_tool_call":
            given = data.get("arguments", data.get("input"))
            told = {"call": data.get("name"), **_key(item.covers), **_by(item), "arguments": given}
        case "function_call_output" | "custom_tool_call_output":
            told = {"output": item.text, **_key((item.answers,) if item.answers else ())}
        case kind:
            rest = {name: value for name, value in data.items() if name not in _UNTOLD}
            told = {"item": kind, **_by(item), **rest}
    return "\n" + one_line(told)


_UNTOLD = frozenset({"type", "id", "status", "encrypted_content", "fingerprint"})


def _texts(parts: JSON) -> list[str]:
    found = (
        [part.get("text") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    )
    return [text for text in found if isinstance(text, str)]


def _by(item: Item) -> dict[str, JSON]:
    return {"agent": item.agent} if item.agent is not None else {}


def _key(refs: Sequence[Ref]) -> dict[str, JSON]:
    """The key of a call, so that an output names its own."""
    return {"key": str(refs[0])} if len(refs) == 1 else {}
