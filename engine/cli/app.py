"""The program `batonlog`: its commands, and what becomes of errors."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from batonlog.engine.cli import log
from batonlog.engine.cli.demo import demo
from batonlog.engine.cli.history import history
from batonlog.engine.cli.request import request
from batonlog.engine.cli.terminal import tell_error
from batonlog.engine.diagram import call_diagram, run_diagram, with_diagrams
from batonlog.events import BatonlogError, UsageError


class _Commands(TyperGroup):
    """Commands whose errors are told in one line. Any other exception is a fault of the program."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read has gone: nothing to tell
            raise
        except (BatonlogError, OSError) as error:
            tell_error(str(error))
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="One append-only log, two histories: what was said and done, and what a model was shown.",
    epilog="Begin with: batonlog demo",
)
app.add_typer(log.app, name="log")
app.command(
    epilog="Example: batonlog history cust-42 --log support.db\n\n"
    "Example: batonlog history cust-42 --log support.db --at 14 --model\n\n"
    "Example: batonlog history cust-42 --log support.db --explain\n\n"
    "Example: batonlog history cust-42 --log support.db --diff 12"
)(history)
app.command(
    epilog="Example: batonlog request cust-42 --log support.db\n\n"
    "Example: batonlog request cust-42 --log support.db --at 14\n\n"
    "Example: batonlog request cust-42 --log support.db --at 14 --body"
)(request)
app.command(
    epilog="Example: batonlog demo\n\nExample: batonlog demo --chain\n\n"
    "Example: OPENAI_API_KEY=… batonlog demo --live"
)(demo)


@app.command(epilog="Example: batonlog diagram\n\nExample: batonlog diagram --write README.md")
def diagram(
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Bring the diagrams of this Markdown file up to date.", show_default=False
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Fail unless the diagrams of this file are up to date.", show_default=False
        ),
    ] = None,
) -> None:
    """Print the lifecycles of a run and of a call as mermaid state diagrams."""
    for path in (write, check):
        if path is not None:
            _compare(path, rewrite=path is write)
            return
    typer.echo(f"```mermaid\n{run_diagram()}```\n\n```mermaid\n{call_diagram()}```")


def _compare(path: Path, *, rewrite: bool) -> None:
    text = path.read_text(encoding="utf-8")
    try:
        drawn = with_diagrams(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    if drawn == text:
        typer.echo(f"{path} is up to date")
    elif rewrite:
        path.write_text(drawn, encoding="utf-8")
        typer.echo(f"{path} was brought up to date")
    else:
        raise UsageError(f"{path} has drifted from the lifecycle tables: batonlog diagram --write {path}")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batonlog {version('batonlog')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the program."""
    app(prog_name="batonlog")
