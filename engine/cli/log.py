"""`batonlog log`: the sessions of a log, and the events of a session."""

import asyncio
from datetime import date
from typing import Annotated, NamedTuple

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from batonlog.engine.cli.as_json import record_json, result_json
from batonlog.engine.cli.reading import AsJson, LogPath, SessionName, opened, whole_session
from batonlog.engine.cli.terminal import joined, make_console, one_line, print_json, print_line
from batonlog.engine.cli.wording import say_event
from batonlog.events import DamagedError, Event, EventLog, Head, ModelFailed, Record
from batonlog.projections import RunResult, run_result, usage

app = typer.Typer(no_args_is_help=True, help="Look into a log: its sessions, and their events.")

_WIDEST_TAG = 18


@app.command("list", epilog="Example: batonlog log list --log support.db")
def list_sessions(log: LogPath, as_json: AsJson = False) -> None:
    """List the sessions of a log, the latest first: how the last run ended, and what waits for somebody."""
    asyncio.run(_list(log, as_json))


@app.command(
    epilog="Example: batonlog log show cust-42 --log support.db\n\n"
    "Example: batonlog log show cust-42 --log support.db --after 8 --json"
)
def show(
    session: SessionName,
    log: LogPath,
    after: Annotated[int, typer.Option(min=0, metavar="VERSION", help="Only events after this version.")] = 0,
    until: Annotated[
        int | None, typer.Option(min=1, metavar="VERSION", help="Only events up to this version.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the events of a session, one a line. What a fork inherits is part of it. Times are UTC."""
    asyncio.run(_show(log, session, after, until, as_json))


# -- list


class _Listed(NamedTuple):
    head: Head
    latest: Record | None = None
    result: RunResult | None = None
    tokens: int = 0
    damage: str = ""


async def _list(path: str, as_json: bool) -> None:
    async with opened(path) as log:
        listed = [await _look_at(log, head) async for head in log.heads()]
    listed.sort(key=lambda one: one.latest.position if one.latest is not None else 0, reverse=True)
    if as_json:
        for one in listed:
            print_json(_listed_json(one))
        return
    console = make_console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("session", overflow="fold")
    table.add_column("version", justify="right")
    table.add_column("latest run", overflow="fold")
    table.add_column("agent", overflow="fold")
    table.add_column("tokens", justify="right")
    table.add_column("last event, UTC", no_wrap=True)
    for one in listed:
        table.add_row(
            Text(one_line(one.head.session)),
            str(one.head.version),
            _status(one),
            Text(one_line(one.result.agent) if one.result is not None else ""),
            f"{one.tokens:,}",
            f"{one.latest.recorded_at:%Y-%m-%d %H:%M:%S}" if one.latest is not None else "",
        )
    console.print(table if listed else Text("The log is empty: it holds no session."))


async def _look_at(log: EventLog, head: Head) -> _Listed:
    """Fold one session. One that is damaged must not hide the others."""
    try:
        records = await log.records(head.session)
        tokens = sum(used.total_tokens for used in usage(records).values())
        return _Listed(head, records[-1], run_result(records), tokens)
    except DamagedError as error:
        return _Listed(head, damage=str(error))


def _status(one: _Listed) -> Text:
    result = one.result
    if result is None:
        return Text(f"damaged: {one_line(one.damage)}", "red")
    if not result.run_id:
        return Text("none yet", "dim")
    waits = [f"{call.call} {call.tool} ({call.reason})" for call in result.open_calls]
    reason = joined(waits) or result.reason
    return Text(joined([result.status, one_line(reason)], by=": "), _STYLES[result.status])


_STYLES = {"running": "cyan", "paused": "yellow", "completed": "green", "failed": "red", "cancelled": "dim"}


def _listed_json(one: _Listed) -> dict[str, object]:
    found = {"session": one.head.session, "version": one.head.version, "hash": one.head.hash.hex()}
    if one.latest is None or one.result is None:
        return {**found, "damaged": one.damage}
    at = one.latest.recorded_at.isoformat()
    return {**found, "recorded_at": at, "tokens": one.tokens, **result_json(one.result)}


# -- show


async def _show(path: str, session: str, after: int, until: int | None, as_json: bool) -> None:
    if until is not None and until <= after:
        raise typer.BadParameter(f"there is nothing after {after} and up to {until}", param_hint="'--until'")
    async with opened(path) as log:
        records = await log.records(session, after=after, until=until)
        if not records:
            await whole_session(log, session)  # raises if there is no such session
    if as_json:
        for record in records:
            print_json(record_json(record))
        return
    printer = RecordPrinter()
    for record in records:
        printer.print(record)


class RecordPrinter:
    """Prints records as they come, one a line; with `times`, also when, and the date where it changes."""

    def __init__(self, *, times: bool = True) -> None:
        self._console = make_console()
        self._times = times
        self._date: date | None = None

    def print(self, record: Record) -> None:
        """Print one record."""
        line = Text(f"{record.version:>4}  ")
        if self._times:
            self._print_date(record.recorded_at.date())
            line.append(f"{record.recorded_at:%H:%M:%S}  ", "dim")
        line.append(f"{one_line(record.type):<{_WIDEST_TAG}} ", _style(record.event))
        line.append(say_event(record.event))
        print_line(self._console, line)

    def _print_date(self, today: date) -> None:
        if today != self._date:
            self._date = today
            print_line(self._console, Text(f"      {today} UTC", "dim"))


def _style(event: Event) -> str:
    tag = event.type
    if isinstance(event, ModelFailed) and event.retried:
        return "yellow"  # an attempt, and not yet a failure
    if tag.endswith((".failed", ".abandoned", ".refused", ".tripped")):
        return "red"
    family = tag.partition(".")[0]
    return {"run": "bold", "model": "blue", "tool": "green", "handoff": "magenta", "agent": "dim"}.get(
        family, "yellow"
    )
