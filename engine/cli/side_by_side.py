"""Two histories side by side: what was said and done, and what a model is shown of it."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batonlog.engine.cli.terminal import one_line
from batonlog.engine.cli.wording import say_item, who_said
from batonlog.events import Ref
from batonlog.projections import Item

HIDDEN = Text("·", "dim", justify="center")
"""Stands where one history has what the other has not."""


class Placed(NamedTuple):
    """An item in its history."""

    item: Item
    waits: str = ""
    """Why it is not settled; "" for one that is."""


class Row(NamedTuple):
    """The same item in both histories, or what stands in one alone."""

    said: Placed | None
    shown: Placed | None


def align(said: Sequence[Placed], shown: Sequence[Placed]) -> Iterator[Row]:
    """Yield both histories, row by row; an edited item stands beside what it was made from."""
    refs = {placed.item.ref for placed in shown}
    left = [placed.item.ref for placed in said]
    right = [_stands_for(placed.item, refs) for placed in shown]
    for what, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if what == "equal":
            yield from map(Row, said[i:j], shown[k:m])
        else:
            yield from (Row(placed, None) for placed in said[i:j])
            yield from (Row(None, placed) for placed in shown[k:m])


def _stands_for(item: Item, refs: set[Ref | None]) -> Ref | None:
    alone = len(item.replaces) == 1 and item.replaces[0] not in refs
    return item.replaces[0] if alone else item.ref


def print_side_by_side(
    console: Console, rows: Sequence[Row], *, said: str, shown: str, until: int | None = None
) -> None:
    """Print both histories as a table.

    Args:
        said: heading of what was said and done.
        shown: heading of what the model is shown.
        until: version up to which the model was shown anything; what came later is set apart.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column("ref", justify="right", no_wrap=True, min_width=5)
    table.add_column("who", overflow="ellipsis", no_wrap=True, min_width=6, max_width=12)
    table.add_column(said, ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column(shown, ratio=1, overflow="ellipsis", no_wrap=True)
    later = False
    for row in rows:
        placed = row.said or row.shown
        assert placed is not None
        ref = placed.item.ref
        if until is not None and not later and ref is not None and ref.version > until:
            later = True
            table.add_row("", "", Text("— later —", "dim"), "")
        table.add_row(
            str(ref),
            Text(who_said(placed.item), _style(placed.item)),
            _cell(row.said),
            Text("") if later else _cell(row.shown),
        )
    console.print(table)


def _cell(placed: Placed | None) -> Text:
    if placed is None:
        return HIDDEN
    text = Text(say_item(placed.item), _style(placed.item))
    return Text.assemble((f"[{one_line(placed.waits)}] ", "yellow"), text) if placed.waits else text


def _style(item: Item) -> str:
    if item.type == "message":
        return "bold" if item.role == "user" else ""
    return "dim" if item.type == "reasoning" else "cyan"
