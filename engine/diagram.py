"""The lifecycle tables as mermaid state diagrams, and the files that hold them.

A file holds a diagram between `<!-- lifecycle:run -->` (or `lifecycle:call`) and
`<!-- /lifecycle -->`. What stands between them is generated and never edited, so that it
cannot drift from the tables; a test compares the two.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from batonlog.events import CALL_LIFECYCLE, RUN_LIFECYCLE, UsageError
from batonlog.events.lifecycle import ANYONE, ASKED, EVERY_CALL, IDLE, SETTLED

_MARKED: Final = re.compile(r"(<!-- lifecycle:(\w+) -->\n).*?(<!-- /lifecycle -->)", re.DOTALL)


def run_diagram() -> str:
    """Return the lifecycle of a run as a mermaid state diagram."""
    return _diagram(
        RUN_LIFECYCLE,
        ends=[f"[*] --> {IDLE}"],
        stays=ANYONE,
        noted=IDLE,
        note=["Anyone may append", *_rows(sorted(ANYONE)), "They never move the run."],
    )


def call_diagram() -> str:
    """Return the lifecycle of a call as a mermaid state diagram."""
    return _diagram(
        CALL_LIFECYCLE,
        ends=[f"[*] --> {ASKED}", f"{SETTLED} --> [*]"],
        stays=EVERY_CALL,
        noted=SETTLED,
        note=[
            " and ".join(sorted(EVERY_CALL)),
            "reach every call at once: a state",
            "without such an edge stays.",
        ],
    )


_DIAGRAMS: Final[Mapping[str, Callable[[], str]]] = {"run": run_diagram, "call": call_diagram}


def with_diagrams(text: str) -> str:
    """Return a Markdown text with the diagrams between its markers as they should be.

    Raises UsageError if there are no markers, or markers of a diagram that does not exist.
    """

    def drawn(found: re.Match[str]) -> str:
        draw = _DIAGRAMS.get(found[2])
        if draw is None:
            raise UsageError(f"there is no diagram of {found[2]}: the markers are {_MARKERS}")
        return f"{found[1]}```mermaid\n{draw()}```\n{found[3]}"

    new, count = _MARKED.subn(drawn, text)
    if not count:
        raise UsageError(f"no place for a diagram: put {_MARKERS} and <!-- /lifecycle --> where it should be")
    return new


_MARKERS: Final = " or ".join(f"<!-- lifecycle:{subject} -->" for subject in _DIAGRAMS)


def _diagram(
    table: Mapping[str, Mapping[str, str]],
    *,
    ends: Sequence[str],
    stays: frozenset[str],
    noted: str,
    note: Sequence[str],
) -> str:
    """Draw one edge for each pair of states, without the stays that the note tells of."""
    edges: dict[tuple[str, str], list[str]] = {}
    for tag, row in table.items():
        for source, target in row.items():
            if source != target or tag not in stays:
                edges.setdefault((source, target), []).append(tag)
    states = list(dict.fromkeys(source for row in table.values() for source in row))
    lines = [*ends]
    for source, target in sorted(edges, key=lambda edge: states.index(edge[0])):
        label = "<br/>".join(_rows(edges[source, target]))
        lines.append(f"{source} --> {target}: {label}")
    lines += [f"note right of {noted}", *(f"    {text}" for text in note), "end note"]
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in lines)]) + "\n"


def _rows(tags: Iterable[str]) -> list[str]:
    """Tags, two a row: a long label makes a diagram wide."""
    all_tags = list(tags)
    return [", ".join(all_tags[n : n + 2]) for n in range(0, len(all_tags), 2)]
