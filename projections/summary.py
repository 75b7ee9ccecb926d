"""`replace_with_summary`: earlier turns replaced by what somebody, or a model, makes of them."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw

from batonlog.events import JSON, Usage, UsageError
from batonlog.events.values import dump
from batonlog.projections.filters import FilterInput, FilterOutput
from batonlog.projections.history import History
from batonlog.projections.items import Item
from batonlog.projections.selecting import turns_start


class Summary(str):
    """A summary, and what it cost: what a function that asks a model returns."""

    __slots__ = ("model", "usage")

    model: str
    usage: Usage

    def __new__(cls, text: str, *, model: str, usage: Usage) -> "Summary":
        summary = super().__new__(cls, text)
        summary.model = model
        summary.usage = usage
        return summary


def replace_with_summary(
    summarise: Callable[[History], Awaitable[str]], /, *, keep_turns: int = 2
) -> Callable[[FilterInput[object]], Awaitable[FilterOutput]]:
    """Replace all but the last turns by a summary of them, as one message of the assistant.

    Nothing changes while there is nothing older than `keep_turns` turns, or only a summary. If
    `summarise` raises, the rewrite is not made. A `Summary` that it returns says what it cost,
    which is recorded with the rewrite and counts for the run.

    Args:
        summarise: given the older part, returns its summary.
        keep_turns: how many model calls stay, with their input and what came of them; 0 for none.
    """
    if keep_turns < 0:
        raise UsageError(f"keep_turns={keep_turns}: a number of turns to keep, or 0")
    return _ReplaceWithSummary(summarise, keep_turns)


class _ReplaceWithSummary(msgspec.Struct, frozen=True):
    summarise: Callable[[History], Awaitable[str]]
    keep_turns: int

    async def __call__(self, history: FilterInput[object]) -> FilterOutput:
        start = turns_start(history, self.keep_turns) if self.keep_turns else len(history)
        older = history[:start]
        if not older or (len(older) == 1 and older[0].ref is not None and len(older[0].replaces) > 1):
            return history
        text: Any = await self.summarise(older)
        if not isinstance(text, str) or not text:
            raise UsageError(f"the summary is {'empty' if text == '' else type(text).__name__}, not a text")
        if isinstance(text, Summary):
            history.spend(text.usage, model=text.model)
        data: dict[str, JSON] = {"type": "message", "role": "assistant", "content": str(text)}
        covers = tuple(ref for item in older for ref in item.covers)
        return [Item(None, Raw(dump(data)), replaces=covers), *history[start:]]


_ReplaceWithSummary.__name__ = "replace_with_summary"
