"""The command line: a demo, and a look into a log. It only reads logs; it never decides anything."""

from batonlog.engine.cli.app import main

__all__ = ["main"]
