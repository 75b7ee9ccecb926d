"""`batonlog request`: what a model was asked, rebuilt from the log and proven by the recorded digest."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batonlog.engine.cli.as_json import request_json
from batonlog.engine.cli.reading import AsJson, LogPath, SessionName, check_version, opened, whole_session
from batonlog.engine.cli.terminal import joined, make_console, one_line, print_json, print_line, printable
from batonlog.engine.cli.wording import counted, say_named, who_said
from batonlog.engine.openai_responses import request_body
from batonlog.events import JSON, DamagedError, ModelRequested, Record, UsageError
from batonlog.events.values import dump, load
from batonlog.projections import ModelRequest, model_request
from batonlog.projections.explain import versions_near
from batonlog.projections.placement import Placement, place

_LONGEST = 2_000
"""Characters of a text that are shown; the rest is in the JSON."""


def request(
    session: SessionName,
    log: LogPath,
    at: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="VERSION",
            help="The model.requested at this version. Without it, the session's requests are listed.",
            show_default=False,
        ),
    ] = None,
    body: Annotated[
        bool,
        typer.Option(
            "--body", help="Print the very bytes that OpenAIResponsesModel posts, and nothing else."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a model was asked, exactly: instructions, tools, settings, and the items as they went out.

    It is rebuilt from the log, and shown only if the recorded digest proves it.
    """
    if body and as_json:
        raise typer.BadParameter("choose one of --json and --body", param_hint="'--body'")
    if body and at is None:
        raise typer.BadParameter("--body needs --at VERSION: which request?", param_hint="'--body'")
    asyncio.run(_request(log, session, at, body, as_json))


async def _request(path: str, session: str, at: int | None, body: bool, as_json: bool) -> None:
    async with opened(path) as log:
        records = await whole_session(log, session)
    if at is None:
        _print_list(session, records, as_json)
        return
    event = _requested(session, records, at)
    asked = _proven(session, records, at)
    if body:
        _print_body(asked)
    elif as_json:
        print_json(_json(session, at, event, asked))
    else:
        _print(session, at, event, asked)


def _requested(session: str, records: Sequence[Record], at: int) -> ModelRequested:
    """Return the event at that version. Raises UsageError for another, naming the nearest requests."""
    versions = [record.version for record in records if isinstance(record.event, ModelRequested)]
    where = f"its requests are at {versions_near(versions, at)}" if versions else "no model was asked in it"
    check_version(session, at, records[-1].version, cure=where)
    (record,) = (record for record in records if record.version == at)
    if not isinstance(record.event, ModelRequested):
        raise UsageError(
            f"{session} has {record.type} at version {at}, not model.requested; {where}",
            session=session,
            version=at,
        )
    return record.event


def _proven(session: str, records: Sequence[Record], at: int) -> ModelRequest:
    try:
        return model_request(records, at=at)
    except DamagedError as error:
        raise DamagedError(
            f"{error}; `batonlog history {session} --at {at}` shows what it does hold",
            session=session,
            version=at,
        ) from error


# -- all requests of a session


class _Listed(NamedTuple):
    version: int
    event: ModelRequested
    view: int

    @property
    def sent(self) -> int:
        return max(0, self.view - self.event.first)


def _print_list(session: str, records: Sequence[Record], as_json: bool) -> None:
    found: list[_Listed] = []
    state = Placement()
    for record in records:
        state = place(state, record.version, record.event)
        if isinstance(record.event, ModelRequested):
            found.append(_Listed(record.version, record.event, len(state.settled)))
    if as_json:
        for one in found:
            print_json(_listed_json(session, one))
        return
    console = make_console()
    if not found:
        console.print(
            Text(f"{one_line(session)} at version {records[-1].version}: no model was asked", "dim")
        )
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("version", "turn", "agent", "model", "continues", "sent", "in view"):
        numbers = name in ("version", "turn", "sent", "in view")
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for one in found:
        event = one.event
        table.add_row(
            str(one.version),
            joined([str(event.turn), f"attempt {event.attempt}" if event.attempt > 1 else ""]),
            Text(one_line(event.agent)),
            Text(one_line(event.issuer[1])),
            Text(one_line(_continues(event))),
            f"{one.sent:,}",
            f"{one.view:,}",
        )
    console.print(table)
    further = f"--at {found[-1].version} shows one as it was asked"
    console.print(Text(f"{one_line(session)}: {counted(len(found), 'request')}; {further}", "dim"))


def _continues(event: ModelRequested) -> str:
    return (
        event.previous_response_id or (event.conversation if event.conversation and event.first else "") or ""
    )


def _listed_json(session: str, one: _Listed) -> JSON:
    event = one.event
    return {
        "session": session,
        "version": one.version,
        "turn": event.turn,
        "attempt": event.attempt,
        "agent": event.agent,
        "model": event.issuer[1],
        "endpoint": event.issuer[0],
        "previous_response_id": event.previous_response_id,
        "conversation": event.conversation,
        "sent": one.sent,
        "view": one.view,
    }


# -- one request


def _print(session: str, at: int, event: ModelRequested, asked: ModelRequest) -> None:
    console = make_console()
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    head = f"{session}, version {at}: turn {asked.turn}{attempt}, {asked.agent} to {asked.model}"
    print_line(console, Text(one_line(head), "bold"))
    print_line(console, Text(one_line(f"endpoint {event.issuer[0]}"), "dim"))
    print_line(console, Text(one_line(_say_chain(event, asked))))
    if asked.instructions:
        _print_part(console, "instructions", _shortened(asked.instructions))
    if asked.tools:
        _heading(console, "tools")
        for tool in asked.tools:
            print_line(console, Text(f"  {_say_tool(tool)}"))
    if asked.settings:
        _print_part(console, "settings", one_line(say_named(dict(asked.settings))))
    if asked.output_schema is not None:
        _print_part(console, "output schema", _shortened(dump(asked.output_schema).decode()))
    _heading(console, f"input: {counted(len(asked.input))}, as they went out")
    _print_items(console, asked)
    proof = f"Its digest {asked.digest.hex()[:12]}… holds: this is what {asked.model} was asked."
    console.print()
    console.print(Text(one_line(proof), "green"))


def _print_items(console: Console, asked: ModelRequest) -> None:
    """In a terminal beside their refs; in a pipe one a line."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True, style="dim", min_width=6)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=12, style="bold")
    table.add_column(overflow="fold")
    for item, raw in zip(asked.input, asked.raw_input, strict=True):
        cells = str(item.ref), who_said(item), _shortened(raw.decode())
        if console.is_terminal:
            table.add_row(*map(Text, cells))
        else:
            console.print(Text(f"  {'  '.join(cells)}"), soft_wrap=True)
    if console.is_terminal:
        console.print(table)


def _say_chain(event: ModelRequested, asked: ModelRequest) -> str:
    """How much of the view goes out, and what the provider holds already."""
    sent = counted(len(asked.input))
    if asked.first:
        held = f"{sent} of {asked.first + len(asked.input)} in view are sent"
        return f"continues {_continues(event)}: {held}"
    kept = "kept by the provider" if asked.stored else "the provider keeps nothing"
    if asked.conversation is not None:
        kept = f"into the new conversation {asked.conversation}"
    return f"the whole view is sent, {sent}; {kept}"


def _say_tool(tool: JSON) -> str:
    given = tool if isinstance(tool, dict) else {}
    parameters = given.get("parameters")
    names = parameters.get("properties") if isinstance(parameters, dict) else None
    said = f"{given.get('name', given.get('type'))}({', '.join(names) if isinstance(names, dict) else ''})"
    return joined([one_line(said), one_line(str(given.get("description") or ""))], by="  ")


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, "cyan"))


def _print_part(console: Console, name: str, text: str) -> None:
    _heading(console, name)
    for line in text.splitlines():
        console.print(Text(f"  {line}"), soft_wrap=not console.is_terminal)


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST:
        return printable(text)
    return f"{printable(text[:_LONGEST])}… ({len(text):,} characters in all; --json shows them)"


def _json(session: str, at: int, event: ModelRequested, asked: ModelRequest) -> JSON:
    return {
        "session": session,
        "version": at,
        **request_json(asked),
        "attempt": event.attempt,
        "endpoint": event.issuer[0],
        "wire": event.wire,
        "view": asked.first + len(asked.input),
        "input": [
            {"ref": str(item.ref), "agent": item.agent, "item": load(raw)}
            for item, raw in zip(asked.input, asked.raw_input, strict=True)
        ],
    }


def _print_body(asked: ModelRequest) -> None:
    typer.echo(request_body(asked, stream=True), nl=sys.stdout.isatty())
    note = '"stream" and "include" are those of OpenAIResponsesModel by default: a log does not hold them'
    typer.echo(f"note: {note}", err=True)
