"""Nests, line by line: one message that tells what several items said, each in a part of its own.

A nest can be taken apart again without reading its text: its parts stand beside the refs that
they cover, and the items that were there say of what kind each was. So a second nest adds to
the first instead of quoting it, and a filter that drops tools drops them inside nests too.

`Item.lines` counts, part by part of the content, how many of `Item.replaces` the part tells.
A part that tells one item is that item's line. One that tells several is opaque: somebody's
text about all of them, which no filter takes apart.
"""

from collections.abc import Callable, Sequence

from msgspec import Raw, Struct

from batonlog.events import JSON, Ref
from batonlog.events.values import dump
from batonlog.projections.items import Item


class Line(Struct, frozen=True, gc=False):
    """One part of a nest: a text, and what it tells."""

    text: str
    covers: tuple[Ref, ...] = ()
    source: Item | None = None
    """The item whose line this is; None for a heading, and for a text about several."""


def lines_of(nest: Item) -> list[Line]:
    """Take a nest apart."""
    content = nest.data["content"]
    out: list[Line] = []
    start = 0
    for part, count, source in zip(content, nest.lines, nest.sources, strict=True):
        stop = start + count
        out.append(Line(part.get("text", ""), nest.replaces[start:stop], source))
        start = stop
    return out


def nest_of(parts: Sequence[Line]) -> Item:
    """Make a nest of parts, the first of them its heading.

    It is an assistant's message: what a user wrote gains no weight by being told in it.
    """
    data: dict[str, JSON] = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": part.text} for part in parts],
    }
    return Item(
        None,
        Raw(dump(data)),
        replaces=tuple(ref for part in parts for ref in part.covers),
        lines=tuple(len(part.covers) for part in parts),
        sources=tuple(part.source for part in parts),
    )


def part_of(
    nest: Item, tells: Callable[[Line], bool], *, covers: Callable[[Ref], bool] = lambda _: True
) -> Item | None:
    """Return a nest with only the lines for which `tells` holds; None if nothing is left to tell.

    Its heading covers what no line tells: of that, what `covers` holds for. A nest that loses
    nothing is returned as it is.
    """
    heading, *parts = lines_of(nest)
    left = [part for part in parts if tells(part)]
    silent = tuple(ref for ref in heading.covers if covers(ref))
    if len(left) == len(parts) and silent == heading.covers:
        return nest
    return nest_of([Line(heading.text, silent), *left]) if left else None


def one_line(value: JSON) -> str:
    """Return JSON without anything that some reader takes for the end of a line."""
    return dump(value).decode().translate(_BREAKS)


_BREAKS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
