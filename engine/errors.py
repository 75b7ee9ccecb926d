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
