"""A log for the laws: it counts what scripts go by, and its leases run out when they are told to."""

from collections.abc import Sequence
from typing import Any

from batonlog.events import (
    ConflictError,
    Event,
    MemoryLog,
)

SESSION = "talk"


class Store(MemoryLog):
    """A log that tells of every append, and whose leases can be made to run out."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: dict[str, int] = {}
        """Responses so far, by session: which step of the script is next."""
        self.decided: dict[str, int] = {}
        """Words of a person so far, by session: which verdict is next."""

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        done = await super().append(session, events, **options)
        if not done.duplicate:
            said = sum(event.type == "model.responded" for event in events)
            self.answered[session] = self.answered.get(session, 0) + said
            words = sum(event.type == "approval.decided" for event in events)
            self.decided[session] = self.decided.get(session, 0) + words
        return done

    def expire(self, session: str) -> None:
        """Let the time of a lease be over."""
        if session in self._leases:
            owner, epoch, seconds, until = self._leases[session]
            self._leases[session] = (owner, epoch, seconds, min(until, 1))


async def append(store: MemoryLog, session: str, event: Event) -> None:
    """Append as another process does: without a lease, at the head, again after a conflict."""
    while True:
        head = await store.head(session)
        try:
            await store.append(session, [event], expected=head.version if head is not None else 0)
            return
        except ConflictError:
            continue
