"""A ledger outside all processes: what effects began and were done, and what a person said about them.

One line a fact, each in one write at the end of the file: whoever dies leaves whole lines.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from batonlog.engine.testing._crash_world import Effects
from batonlog.events import Ref


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fact."""

    what: Literal["begun", "done", "ended", "allowed", "died"]
    """An effect began, or was done; the end of its call is recorded; a person lets it run again; or a
    process died."""
    session: str = ""
    call: str = ""
    tool: str = ""
    key: str = ""
    idempotent: bool = False
    where: str = ""
    """At which place it died."""


class Ledger:
    """The ledger at a path."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, line: Line) -> None:
        """Add a line. From any thread, and by any process."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, msgspec.json.encode(line) + b"\n")
        finally:
            os.close(file)

    def lines(self) -> Iterator[Line]:
        """All facts, in order."""
        if self._path.exists():
            yield from map(msgspec.json.Decoder(Line).decode, self._path.read_bytes().splitlines())

    def effects(self) -> Effects:
        """What has taken place."""
        effects = Effects()
        for line in self.lines():
            match line.what:
                case "begun":
                    call = Ref.parse(line.call)
                    effects.begins(line.session, call, line.tool, line.key, idempotent=line.idempotent)
                case "ended":
                    effects.ended(line.session, Ref.parse(line.call))
                case "allowed":
                    effects.allow(line.session, Ref.parse(line.call))
                case "done" | "died":
                    pass
        return effects
