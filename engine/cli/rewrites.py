"""`batonlog history --diff` and `--explain`: what rewrites did to what the model is shown, and why."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from batonlog.engine.cli.as_json import rewrite_json
from batonlog.engine.cli.terminal import joined, make_console, one_line, print_json, print_line
from batonlog.engine.cli.wording import counted, say_filter, say_item, who_said
from batonlog.events import Record
from batonlog.projections import Change
from batonlog.projections.explain import Explained, What, explained, refs_in_words, rewrite_at

_SIGNS: Mapping[What, str] = {"kept": " ", "dropped": "-", "inserted": "+", "edited": "~", "repaired": "!"}
_STYLES: Mapping[What, str] = {
    "kept": "",
    "dropped": "red",
    "inserted": "green",
    "edited": "yellow",
    "repaired": "magenta",
}
_MOST = 8
"""Lines of one rewrite in a list of all; repairs are always told one by one."""


# -- one rewrite, item by item


def print_diff(session: str, records: Sequence[Record], at: int, *, as_json: bool) -> None:
    """Print what the rewrite at that version did. Raises UsageError if there is none."""
    told = rewrite_at(records, at)
    if as_json:
        print_json({"session": session, **rewrite_json(told, kept=True)})
        return
    console = make_console()
    print_line(console, Text(f"{one_line(session)}, version {told.version}: {_say_cause(told)}", "bold"))
    if told.by != told.cause and told.tripped is None:
        print_line(console, Text(f"filter {say_filter(told.rewrite)}"))
    for model, usage in told.rewrite.spent:
        spent = f"it asked {model}, for {counted(usage.total_tokens, 'token')}"
        print_line(console, Text(one_line(spent), "dim"))
    if told.effective is None:
        console.print(Text(_NOT_MADE, "yellow"))
        return
    changes = list(told.changes())
    console.print()
    console.print(_table(told, changes))
    console.print()
    console.print(Text(_summary(told, changes), "dim"))


_NOT_MADE = "It took no effect: a filter event counts for the handoff that follows it, and none was made."


def _table(told: Explained, changes: Sequence[Change]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(no_wrap=True, width=1)
    table.add_column(justify="right", no_wrap=True, min_width=4)
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=12)
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=20)
    table.add_column(overflow="ellipsis", no_wrap=True, ratio=3)
    table.add_column(overflow="fold", ratio=2)
    for change in changes:
        style = _STYLES[change.what]
        reason = Text(one_line(_reason_here(told, change)), "dim")
        reason.no_wrap = change.reason == told.by  # it stands above the table
        reason.overflow = "ellipsis" if reason.no_wrap else None
        table.add_row(
            Text(_SIGNS[change.what], style),
            str(change.item.ref),
            who_said(change.item),
            Text(one_line(change.item.type), "cyan"),
            Text(say_item(change.item), style),
            reason,
        )
    return table


def _reason_here(told: Explained, change: Change) -> str:
    """A reason where the filter and the item stand beside it."""
    reason = change.reason.removeprefix(f"{told.by}: ")
    return reason.removeprefix(f"{change.item.type} {change.item.ref} ")


def _say_cause(told: Explained) -> str:
    if told.made is not None:
        return one_line(f"handoff from {told.made.source} to {told.made.target}, made at {told.effective}")
    if told.tripped is not None:
        return one_line(f"guardrail {told.tripped.name} on {told.tripped.stage}: {told.tripped.reason}")
    return one_line(
        {"manual": "manual edit", "handoff": "handoff that was not made"}.get(told.cause, told.cause)
    )


def _summary(told: Explained, changes: Sequence[Change]) -> str:
    return f"{counted(len(told.before))} before, {len(told.after)} after: {_counts(changes)}"


def _counts(changes: Sequence[Change]) -> str:
    counts = Counter(change.what for change in changes)
    return joined(f"{counts[what]} {what}" if counts[what] else "" for what in _SIGNS)


# -- all rewrites of a session


def print_all(session: str, records: Sequence[Record], *, as_json: bool) -> None:
    """Print every rewrite of a session: what was made up or left out, and why."""
    found = list(explained(records))
    version = records[-1].version
    if as_json:
        rewrites = [rewrite_json(told, kept=False) for told in found]
        print_json({"session": session, "version": version, "rewrites": rewrites})
        return
    console = make_console()
    for told in found:
        _print_short(console, told)
    name = one_line(session)
    if not found:
        console.print(
            Text(f"{name} at version {version}: nothing was rewritten, the model is shown all", "dim")
        )
        return
    number = f"{len(found)} rewrite{'' if len(found) == 1 else 's'}"
    further = f"--diff {found[-1].version} shows one item by item"
    console.print(Text(f"{name} at version {version}: {number}; {further}", "dim"))


def _print_short(console: Console, told: Explained) -> None:
    head = Text(f"{told.version:>4}  ")
    head.append(_say_cause(told), "bold")
    if told.by != told.cause and told.tripped is None:
        head.append(f"  {say_filter(told.rewrite)}")
    print_line(console, head)
    if told.effective is None:
        console.print(Text(f"      {_NOT_MADE}", "yellow"))
    else:
        changes = list(told.changes())
        console.print(Text(f"      {_summary(told, changes)}", "dim"))
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=6)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold")
        for line in _lines(told, changes):
            table.add_row("", *line)
        console.print(table)
    console.print()


def _lines(told: Explained, changes: Sequence[Change]) -> list[tuple[Text, Text, Text]]:
    """What changed: items of one fate and reason together, and so each repair alone."""
    groups: dict[tuple[What, str], list[Change]] = {}
    for change in changes:
        if change.reason:
            groups.setdefault((change.what, _reason_of_all(change)), []).append(change)
    lines = [
        (
            Text(_SIGNS[what], _STYLES[what]),
            Text(refs_in_words(one.item.ref for one in group if one.item.ref is not None), _STYLES[what]),
            Text(one_line(reason)),
        )
        for (what, reason), group in groups.items()
    ]
    if told.cause == "repair" or len(lines) <= _MOST:
        return lines
    more = Text(f"and {len(lines) - _MOST} more lines: --diff {told.version} shows all", "dim")
    return [*lines[:_MOST], (Text(""), Text("…"), more)]


def _reason_of_all(change: Change) -> str:
    """An edited item says what it was, which is no other's: there may be hundreds."""
    return change.reason.partition(": ")[0] if change.what == "edited" else change.reason
