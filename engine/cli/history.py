"""`batonlog history`: both histories of a session, as they stand or as they stood."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from batonlog.engine.cli.as_json import item_json, request_json
from batonlog.engine.cli.reading import AsJson, LogPath, SessionName, opened, whole_session
from batonlog.engine.cli.rewrites import print_all, print_diff
from batonlog.engine.cli.side_by_side import Placed, align, print_side_by_side
from batonlog.engine.cli.terminal import joined, make_console, one_line, print_json, printable
from batonlog.engine.cli.wording import counted, say_item, who_said
from batonlog.events import JSON, BatonlogError, ModelRequested, Record, Ref, UsageError
from batonlog.projections import ModelRequest, model_request
from batonlog.projections.placement import Placement, place

_LONGEST = 2_000
"""Characters of a text that are shown; the rest is in the JSON."""


def _read_ref(text: str) -> Ref:
    try:
        return Ref.parse(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


def history(
    session: SessionName,
    log: LogPath,
    at: Annotated[
        int | None,
        typer.Option(min=1, metavar="VERSION", help="As it stood at this version.", show_default=False),
    ] = None,
    said: Annotated[bool, typer.Option("--session", help="Only what was said and done, in full.")] = False,
    shown: Annotated[bool, typer.Option("--model", help="Only what the model is shown, in full.")] = False,
    item: Annotated[
        Ref | None,
        typer.Option(
            parser=_read_ref, metavar="REF", help="Only this item, such as 7.1.", show_default=False
        ),
    ] = None,
    diff: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="VERSION",
            help="Only what the rewrite at this version did, item by item: what was kept, dropped (-), "
            "inserted (+), edited (~), made up by a repair (!).",
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only the rewrites: what was made up or left out, and why.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the two histories of a session side by side: what was said and done, and what the model is shown.

    At the version of a model.requested it also proves, by the recorded digest, what that request showed.
    --explain lists the rewrites that make the two differ, and --diff shows one of them.
    """
    if said + shown + explain + (item is not None) + (diff is not None) > 1:
        raise typer.BadParameter(
            "choose one of --session, --model, --item, --diff and --explain", param_hint="'--session'"
        )
    if diff is not None and at is not None:
        raise typer.BadParameter(
            "--diff names the version itself: leave --at out, or use --explain --at", param_hint="'--at'"
        )
    if diff is not None or explain:
        asyncio.run(_rewrites(log, session, at, diff, as_json))
    else:
        asyncio.run(_history(log, session, at, said, shown, item, as_json))


async def _rewrites(path: str, session: str, at: int | None, diff: int | None, as_json: bool) -> None:
    async with opened(path) as log:
        records = await whole_session(log, session, at=at)
    if diff is not None:
        print_diff(session, records, diff, as_json=as_json)
    else:
        print_all(session, records, as_json=as_json)


async def _history(
    path: str, session: str, at: int | None, said: bool, shown: bool, item: Ref | None, as_json: bool
) -> None:
    async with opened(path) as log:
        records = await whole_session(log, session, at=at)
    told = _Told(session, records)
    if item is not None:
        _print_item(told, item, as_json)
    elif as_json:
        print_json(_told_json(told, said=not shown, shown=not said))
    elif said or shown:
        _print_one(told, told.said if said else told.shown)
    else:
        _print_both(told)
    if told.doubt is not None:
        raise told.doubt


class _Told:
    """A session as its histories tell it."""

    def __init__(self, session: str, records: Sequence[Record]) -> None:
        session_place, view_place = Placement(rewrites=False), Placement()
        for record in records:
            session_place = place(session_place, record.version, record.event)
            view_place = place(view_place, record.version, record.event)
        last = records[-1]
        self.session = session
        self.version = last.version
        self.agent = view_place.agent
        self.said = _placed(session_place)
        self.shown = _placed(view_place)
        self.request: ModelRequest | None = None
        """If the last event is a model.requested: what it asked, proven."""
        self.doubt: BatonlogError | None = None
        """Why it could not be proven."""
        if isinstance(last.event, ModelRequested):
            try:
                self.request = model_request(records, at=last.version)
            except BatonlogError as error:  # damaged, erased, or of a newer version: the histories are there
                self.doubt = error


def _placed(state: Placement) -> list[Placed]:
    return [
        *(Placed(item) for item in state.settled),
        *(Placed(item, "not settled") for item in state.tail),
        *(Placed(item, "for the next run" if later else "for the next turn") for item, later in state.queue),
    ]


# -- for people


def _print_both(told: _Told) -> None:
    console = make_console()
    rows = list(align(told.said, told.shown))
    shown = f"shown to {one_line(told.agent)}" if told.agent else "shown to the model"
    print_side_by_side(console, rows, said="said and done", shown=shown)
    hidden = sum(row.shown is None for row in rows)
    made = sum(row.said is None for row in rows)
    console.print(
        Text(
            joined(
                [
                    f"{one_line(told.session)} at version {told.version}: {counted(len(told.said))}",
                    f"{hidden} not shown (·)" if hidden else "all shown",
                    f"{made} put in by a rewrite" if made else "",
                ]
            ),
            "dim",
        )
    )
    _print_proof(told)


def _print_one(told: _Told, items: Sequence[Placed]) -> None:
    console = make_console()
    for item, waits in items:
        head = Text.assemble((f"{item.ref}  ", "dim"), (who_said(item), "bold"), ("  ", ""))
        head.append(item.type if item.type != "message" else "", "cyan")
        head.append(f" [{waits}]" if waits else "", "yellow")
        console.print(head, soft_wrap=True)
        text = item.text
        more = f"… ({len(text):,} characters in all; --item {item.ref} --json shows them)"
        body = printable(text) if len(text) <= _LONGEST else printable(text[:_LONGEST]) + more
        console.print(Text(body or say_item(item)), soft_wrap=not console.is_terminal)
        console.print()
    console.print(Text(f"{one_line(told.session)} at version {told.version}: {counted(len(items))}", "dim"))
    _print_proof(told)


def _print_proof(told: _Told) -> None:
    request = told.request
    if request is None:
        return
    held = request.previous_response_id or (request.conversation if request.first else None)
    continued = f", continuing {held}" if held else ""
    text = (
        f"Version {told.version} is a model request, turn {request.turn}, {request.agent} to {request.model}: "
        f"{counted(len(request.input))} sent{continued}. "
        f"Its digest {request.digest.hex()[:12]}… holds: this is what the model was shown."
    )
    make_console().print(Text(one_line(text), "green"))


def _print_item(told: _Told, ref: Ref, as_json: bool) -> None:
    said = next((one for one in told.said if one.item.ref == ref), None)
    shown = next((one for one in told.shown if one.item.ref == ref), None)
    placed = said or shown
    if placed is None:
        known = [
            str(one.item.ref) for one in told.said if one.item.ref and one.item.ref.version == ref.version
        ]
        raise UsageError(
            f"{told.session} has no item {ref} at version {told.version}; "
            f"event {ref.version} has {joined(known) or 'none'}",
            session=told.session,
        )
    document = {
        **item_json(placed.item, settled=not placed.waits),
        "in_session": said is not None,
        "in_view": shown is not None,
    }
    if as_json:
        print_json(document)
    else:
        make_console().print_json(data=document, ensure_ascii=False)


# -- for programs


def _told_json(told: _Told, *, said: bool, shown: bool) -> JSON:
    document: dict[str, JSON] = {
        "session": told.session,
        "version": told.version,
        "agent": told.agent,
        "request": request_json(told.request) if told.request is not None else None,
    }
    if said:
        document["session_history"] = [item_json(one.item, settled=not one.waits) for one in told.said]
    if shown:
        document["model_history"] = [item_json(one.item, settled=not one.waits) for one in told.shown]
    return document
