"""Nothing in the laws waits for a clock."""

import pytest

import batonlog.engine.flights as flights
import batonlog.engine.sessions as sessions
import batonlog.engine.storing as storing


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store that fails be tried again at once, and news be looked out for at once."""
    monkeypatch.setattr(storing, "_FIRST_PAUSE", 0)
    monkeypatch.setattr(flights, "LOOKOUT", 0)
    monkeypatch.setattr(sessions, "FASTEST_BEAT", 5.0)  # who waits in line wakes up when the world says so
