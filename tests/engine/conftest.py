"""Fixtures of the engine's tests: the airline conversations, had once for all; logs for the command line."""

import asyncio
from pathlib import Path

import pytest
from tests.engine.airline import Conversation, Played, Schemas, conversations, play_all, schemas_of
from tests.engine.cli_logs import Batonlog

from batonlog.events import MemoryLog


@pytest.fixture(scope="session")
def recorded() -> list[Conversation]:
    return conversations()


@pytest.fixture(scope="session")
def schemas(recorded: list[Conversation]) -> Schemas:
    return schemas_of(recorded)


@pytest.fixture(scope="session")
def played(recorded: list[Conversation], schemas: Schemas) -> list[Played]:
    """All of them, had again once."""
    return asyncio.run(play_all(recorded, MemoryLog(), schemas))


@pytest.fixture
def path(shared: Path, batonlog: Batonlog, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log that BATONLOG_LOG names. Only read."""
    monkeypatch.setenv("BATONLOG_LOG", str(shared))
    return shared


@pytest.fixture
def own(tmp_path: Path, batonlog: Batonlog, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test makes a log of its own, which BATONLOG_LOG names."""
    monkeypatch.setenv("BATONLOG_LOG", str(tmp_path / "own.db"))
    return tmp_path / "own.db"
