"""How text reaches the terminal, or whatever stands in its place.

A log holds what users, models and tools said: any string at all. None of it may steer a
terminal, be taken for markup, or stop the program because it cannot be encoded.
"""

import os
import sys
from collections.abc import Iterable
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from batonlog.events import JSON
from batonlog.events.values import dump

_PIPED: Final = 120
"""Columns where there is no terminal to ask."""

_JOINERS: Final = "\u200c\u200d"
"""Not printable, and harmless: scripts and emoji need them."""

_LONGEST: Final = 500
"""Characters of one line that are looked at; no terminal shows more."""


def make_console() -> Console:
    """Return the console for results. In a pipe it is wide, and without colours."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED
    return Console(width=width, highlight=False, markup=False, emoji=False)


def print_line(console: Console, line: Text) -> None:
    """Print one line: cut at the edge of a terminal, whole in a pipe."""
    if console.is_terminal:
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    else:
        console.print(line, soft_wrap=True)


def print_json(value: JSON) -> None:
    """Print one JSON document on a line of its own, in UTF-8."""
    typer.echo(dump(value) + b"\n", nl=False)


def tell_error(message: str) -> None:
    """Say on stderr, in one line, what went wrong."""
    typer.echo(f"error: {one_line(message)}", err=True)


def printable(text: str) -> str:
    """Return text with what is not printable made visible; line ends stay."""
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def one_line(text: str) -> str:
    """Return the beginning of a text, long enough for a line, with white space run together."""
    cut = text[: _LONGEST + 1]
    return printable(" ".join(cut.split())) + ("…" if len(cut) > _LONGEST else "")


def _visible(letter: str) -> str:
    if letter.isprintable() or letter in _JOINERS or letter == "\n":
        return letter
    return " " if letter.isspace() else repr(letter)[1:-1]


def joined(parts: Iterable[str], *, by: str = ", ") -> str:
    """Join what is not empty."""
    return by.join(part for part in parts if part)
