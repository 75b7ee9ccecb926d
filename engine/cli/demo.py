"""`batonlog demo`: one conversation, one log, and its two histories side by side."""

import asyncio
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from batonlog.engine.cli.log import RecordPrinter
from batonlog.engine.cli.side_by_side import Placed, align, print_side_by_side
from batonlog.engine.cli.terminal import make_console
from batonlog.engine.demo import MODEL, Played, check_key, play
from batonlog.engine.errors import RunFailedError
from batonlog.projections import model_history, model_request, session_history


def demo(
    live: Annotated[
        bool, typer.Option("--live", help="Ask OpenAI, or OPENAI_BASE_URL; needs OPENAI_API_KEY.")
    ] = False,
    chain: Annotated[
        bool, typer.Option("--chain", help="Have the provider keep the conversation; show what is sent.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", "-l", metavar="PATH", help="Where to; a fresh file by default.", show_default=False
        ),
    ] = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="The model to ask.")] = MODEL,
) -> None:
    """Play a conversation with tools and a handoff; show what was said, and what the model was shown.

    It goes through the real openai client to a Responses API on loopback, which answers by script.
    """
    if live:
        check_key()
    path = log if log is not None else Path(tempfile.mkdtemp(prefix="batonlog-")) / "demo.db"
    asyncio.run(_demo(path, live=live, chain=chain, model=model))


async def _demo(path: Path, *, live: bool, chain: bool, model: str) -> None:
    console = make_console()
    watch = RecordPrinter(times=live).print if live or not chain else None
    if watch is not None:
        _heading(console, f"A conversation with {model if live else 'a scripted model'}, as it is recorded")
        if not live:
            _say(console, "Through the openai client, to a Responses API on loopback.", "dim")
    try:
        played = await play(path, model=model, chain=chain, live=live, watch=watch)
    except RunFailedError as error:
        _look_further(console, path, str(error.session))
        raise
    at = played.first_of_target()
    if chain:
        _heading(console, 'With chain="previous_response_id"')
        _print_chain(console, played)
    else:
        _heading(console, "The same log, read twice")
        _print_histories(console, played, at)
    _look_further(console, path, played.session, None if chain else at)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Rule(Text(text, "bold"), align="left", style="dim"))


# -- the two histories


def _print_histories(console: Console, played: Played, at: int | None) -> None:
    """Print what was said and done beside what the target was shown when it was first asked."""
    made = at is not None
    at = at if at is not None else played.requests()[-1][0]
    request = model_request(played.records, at=at)  # raises unless the recorded digest proves it
    said, before = session_history(played.records), session_history(played.records, at=at)
    print_side_by_side(
        console,
        list(align([*map(Placed, said)], [*map(Placed, request.input)])),
        said="said and done",
        shown=f"shown to {request.agent}",
        until=at,
    )
    _say(
        console,
        f"The session keeps all {len(said)} items. When {request.agent} was first asked (event {at}), there "
        f"were {len(before)}, and the filter messages_only had left {len(request.input)} of them."
        if made
        else "The model made no handoff this time, so nothing was filtered.",
    )
    proof = f"Proof: rebuilt from the log, that request has the recorded digest {request.digest.hex()[:12]}…"
    proof += ", and is what the server received." if played.reached_server(at) else "."
    _say(console, proof, "green")


# -- the chain


def _print_chain(console: Console, played: Played) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("event", "turn", "agent", "continues", "in view", "sent", ""):
        table.add_column(name, justify="right" if name in ("event", "turn", "in view", "sent") else "left")
    held = False
    for version, requested in played.requests():
        dropped = held and requested.previous_response_id is None
        held = requested.stored
        view = len(model_history(played.records, at=version))
        table.add_row(
            str(version),
            str(requested.turn),
            requested.agent,
            requested.previous_response_id or Text("none", "yellow" if dropped else "dim"),
            str(view),
            str(view - requested.first),
            Text("chain dropped" if dropped else "", "yellow"),
        )
    console.print(table)
    kept = "The provider keeps what it was sent, and only new items go out. "
    dropped_there = (
        "The handoff rewrote the view: what the provider held was more than the target may see. So the "
        "chain was dropped there, and the whole filtered view was sent."
    )
    _say(console, kept + (dropped_there if played.first_of_target() is not None else ""))


# -- where to look


def _look_further(console: Console, path: Path, session: str, at: int | None = None) -> None:
    """Say where the log is, and what to type: commands that can be pasted as they stand."""
    _heading(console, "Look further")
    console.print(Text.assemble("The log is ", (str(path), "bold")), soft_wrap=True)
    commands = [["log", "show", session], ["history", session]]
    if at is not None:
        commands.append(["history", session, "--at", str(at), "--model"])
        commands.append(["history", session, "--explain"])
        commands.append(["request", session, "--at", str(at)])
    for command in commands:
        line = f"{_program()} {shlex.join([*command, '--log', str(path)])}"
        console.print(Text(f"  {line}", "cyan"), soft_wrap=True)


def _program() -> str:
    """How this program is called from here: a command that can be pasted."""
    script = Path(sys.executable).with_name("batonlog")
    if (found := shutil.which("batonlog")) is not None and Path(found) == script:
        return "batonlog"
    if not script.exists():
        return shlex.join([sys.executable, "-m", "batonlog.engine.cli"])
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style))
