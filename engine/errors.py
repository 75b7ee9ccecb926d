"""What an engine raises beyond the log: see the tree in `batonlog.events.errors`."""

from batonlog.events import BatonlogError
from batonlog.projections import OpenCall


class RunFailedError(BatonlogError):
    """The run ended in failure; the cause is `__cause__`, the record is whole."""


class SessionBusyError(BatonlogError):
    """Another run is going, or one is paused: says which calls wait."""

    open_calls: tuple[OpenCall, ...]

    def __init__(
        self,
        message: str,
        *,
        session: str,
        version: int | None = None,
        open_calls: tuple[OpenCall, ...] = (),
    ) -> None:
        super().__init__(message, session=session, version=version)
        self.open_calls = open_calls


def words_of(error: BaseException) -> str:
    """Return what an error says, as text that any store and provider takes; its type if it says nothing."""
    try:
        text = str(error)
    except Exception:  # one that cannot even say what it is
        text = ""
    return text.encode(errors="replace").decode() or type(error).__name__
