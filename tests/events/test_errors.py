"""One tree of errors, by whose fault; ids in them, never payloads."""

import pytest

from batonlog.events import (
    BatonlogError,
    ConflictError,
    DamagedError,
    FencedError,
    FormatError,
    IllegalTransitionError,
    LogError,
    UnknownSessionError,
    UsageError,
)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (UsageError, BatonlogError),
        (LogError, BatonlogError),
        (UnknownSessionError, UsageError),
        (IllegalTransitionError, UsageError),
        (ConflictError, LogError),
        (FencedError, LogError),
        (DamagedError, LogError),
        (FormatError, LogError),
    ],
)
def test_every_error_says_whose_fault_it_is(error: type[Exception], fault: type[Exception]) -> None:
    assert error.__bases__ == (fault,)


def test_an_error_carries_ids() -> None:
    error = UsageError("no", session="s", version=3)
    assert (str(error), error.session, error.version) == ("no", "s", 3)
    assert (UsageError("no").session, UsageError("no").version) == (None, None)


def test_a_conflict_says_where_the_session_is_and_what_to_do() -> None:
    error = ConflictError("cust-42", expected=7, actual=9)
    assert str(error) == "cannot append to cust-42 at version 7: it is at 9. Read it again and retry."
    assert (error.session, error.version, error.actual) == ("cust-42", 7, 9)
