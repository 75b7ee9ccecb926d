"""Everything batonlog raises, in one tree, by whose fault it is.

    BatonlogError                 root, never raised itself
    ├── UsageError                the caller's code is wrong; nothing has happened
    │   ├── UnknownSessionError   no such session in this log
    │   ├── IllegalTransitionError  the lifecycle has no such step from here
    │   └── UnknownAgentError     (engine) no such agent in this process
    ├── LogError                  the store said no
    │   ├── ConflictError         someone else appended first: read again, decide again
    │   ├── FencedError           this worker lost its lease: stop
    │   ├── DamagedError          a record or the file cannot be read; nothing was deleted
    │   └── FormatError           not a batonlog file, or of a newer format
    ├── RunFailedError            (engine) a run ended in failure; the record is whole
    └── SessionBusyError          (engine) another run is going, or one waits

Errors carry ids, never payloads. A message names the thing and the cure.
"""


class BatonlogError(Exception):
    """Root of the tree. Carries the ids of what it is about, never their contents."""

    session: str | None
    version: int | None

    def __init__(self, message: str, *, session: str | None = None, version: int | None = None) -> None:
        super().__init__(message)
        self.session = session
        self.version = version


class UsageError(BatonlogError):
    """The caller's code is wrong. Nothing has happened."""


class UnknownSessionError(UsageError):
    """There is no session of this name in the log."""


class IllegalTransitionError(UsageError):
    """The lifecycle does not allow this event in this state. Nothing was stored."""


class LogError(BatonlogError):
    """The store said no."""


class ConflictError(LogError):
    """Someone else appended first: read again and decide again. Nothing was stored."""

    actual: int
    """The version at which the session stands."""

    def __init__(self, session: str, *, expected: int, actual: int) -> None:
        new = f"{session} exists already, at version {actual}. Give a new name, or read it and go on there."
        stale = (
            f"cannot append to {session} at version {expected}: it is at {actual}. Read it again and retry."
        )
        super().__init__(
            new if expected == 0 else stale,
            session=session,
            version=expected,
        )
        self.actual = actual


class FencedError(LogError):
    """This worker lost its lease to another: stop. Nothing was stored."""


class DamagedError(LogError):
    """A record or the file cannot be read. Nothing was deleted."""


class FormatError(LogError):
    """Not a batonlog file, or one of a newer format."""
