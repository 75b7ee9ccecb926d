"""The airline conversations are had once for all tests that look at them."""

import asyncio

import pytest
from tests.engine.airline import Conversation, Played, Schemas, conversations, play_all, schemas_of

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
