"""Filters that keep some items and drop the others. What a nest tells of the others goes too."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from batonlog.events import UsageError
from batonlog.projections.history import History
from batonlog.projections.items import Item
from batonlog.projections.legality import is_output_of_a_model, untorn
from batonlog.projections.lines import part_of
from batonlog.projections.pairing import Pairing, is_call, is_output, program_of
from batonlog.projections.wire import keeps_id


def kept(history: History, wanted: Callable[[Item], bool]) -> History:
    """Keep the wanted items, and of each nest the lines of wanted items."""

    def left_of(item: Item) -> Item | None:
        if item.lines:
            return part_of(item, lambda line: line.source is None or wanted(line.source))
        return item if wanted(item) else None

    found = (left_of(item) for item in history)
    return History((item for item in found if item is not None), history.version)


def messages_only(history: History, /) -> History:
    """Keep the messages: what the user and the agents said, and nothing of how they came to it."""
    return kept(history, lambda item: item.type == "message")


def drop_tools(history: History, /) -> History:
    """Drop every tool item, and the reasoning that led to it; keep messages and the reasoning before them.

    Calls and outputs of every kind go, hosted ones and those of types that are not known yet.
    """
    keep = [item.type in _NO_TOOLS for item in history]
    for n in range(len(history) - 1, -1, -1):
        # Reasoning stays with what followed it: a provider refuses it alone.
        if history[n].type == "reasoning" and not (n + 1 < len(history) and keep[n + 1]):
            keep[n] = False
    left = History((item for item, stays in zip(history, keep, strict=True) if stays), history.version)
    return kept(left, lambda item: item.type in _NO_TOOLS)


_NO_TOOLS = frozenset({"message", "reasoning", "compaction"})


def drop_reasoning(history: History, /) -> History:
    """Drop the reasoning, and hosted items that no provider takes back without it."""
    left = kept(history, lambda item: item.type != "reasoning" and not (item.thought and keeps_id(item)))
    return untorn(history, left)


def only_agents(*names: str) -> Callable[[History], History]:
    """Keep what these agents said, called and were answered, and all input.

    What a rewrite put in is no agent's, and stays. Raises UsageError without a name.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError("only_agents() needs the names of the agents to keep, such as only_agents('refund')")
    return _OnlyAgents(names)


class _OnlyAgents(msgspec.Struct, frozen=True):
    names: tuple[str, ...]

    def __call__(self, history: History) -> History:
        left = kept(history, lambda item: item.agent is None or item.agent in self.names)
        return untorn(history, left)  # what a provider had the client do is answered by input


def keep_last(n: int, /) -> Callable[[History], History]:
    """Keep the last `n` items, fewer where that would split a call from its output or a reasoning group.

    Never nothing: if the last group is longer than `n`, that group is kept.
    """
    return _KeepLast(_at_least_one("keep_last", n, "item"))


class _KeepLast(msgspec.Struct, frozen=True):
    n: int

    def __call__(self, history: History) -> History:
        return history[_cut_after(history, len(history) - self.n) :]


def last_turns(n: int, /) -> Callable[[History], History]:
    """Keep the last `n` turns: model calls, each with the input before it and what came of its calls.

    The last user message stays in any case, so that the question is never lost; no pair and no
    reasoning group is split.
    """
    return _LastTurns(_at_least_one("last_turns", n, "turn"))


class _LastTurns(msgspec.Struct, frozen=True):
    n: int

    def __call__(self, history: History) -> History:
        start = turns_start(history, self.n)
        question = next((at for at in range(len(history) - 1, -1, -1) if history[at].role == "user"), start)
        asked = (history[question],) if question < start else ()
        return History((*asked, *history[start:]), history.version)


_KeepLast.__name__ = "keep_last"
_LastTurns.__name__ = "last_turns"
_OnlyAgents.__name__ = "only_agents"


def _at_least_one(name: str, n: Any, what: str) -> int:
    if type(n) is not int or n < 1:
        raise UsageError(f"{name}({n!r}): keep at least 1 {what}; a model needs something to read")
    return n


# -- where a history can be cut


def turns_start(history: Sequence[Item], n: int) -> int:
    """Return where the last `n` turns begin, or an earlier place where a cut splits nothing; 0 for all."""
    starts: list[int] = []
    response: object = None
    waiting: int | None = None  # where the input before the next model call begins
    for place, item in enumerate(history):
        if not item.lines and len(item.replaces) < 2 and is_output_of_a_model(item):
            made_by = item.covers[0].version if item.covers else place
            if waiting is not None or made_by != response:
                starts.append(place if waiting is None else waiting)
            response, waiting = made_by, None
        elif not is_output(item) and waiting is None:
            waiting = place
    if len(starts) <= n:
        return 0
    return max(cut for cut in whole_cuts(history) if cut <= starts[-n])


def _cut_after(history: Sequence[Item], least: int) -> int:
    """The first place from `least` on where a cut splits nothing, or the last one before it."""
    if least <= 0:
        return 0
    cuts = [cut for cut in whole_cuts(history) if cut < len(history)]
    return next((cut for cut in cuts if cut >= least), cuts[-1])


def whole_cuts(history: Sequence[Item]) -> list[int]:
    """Return the places where a history can be cut without splitting a pair or a reasoning group.

    A program and the calls that it owns are a group too.
    """
    pairing = Pairing()
    programs: dict[str, int] = {}
    reaches = list(range(len(history)))  # how far back the group of each item begins
    for n, item in enumerate(history):
        if item.type == "program" and item.head.call_id is not None:
            programs[item.head.call_id] = n
        elif (program := programs.get(program_of(item) or "")) is not None:
            reaches[n] = program
        if is_call(item):
            pairing.call(n, item)
        elif is_output(item):
            place, _ = pairing.answer(item)
            reaches[n] = min(reaches[n], n if place is None else place)
        if n and history[n - 1].type == "reasoning":
            reaches[n] = min(reaches[n], n - 1)
    cuts = []
    earliest = len(history)
    for n in range(len(history), -1, -1):
        if n < len(history):
            earliest = min(earliest, reaches[n])
        if earliest >= n:
            cuts.append(n)
    return cuts[::-1]
