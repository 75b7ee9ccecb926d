"""Leases that run out soon, and a log that says how often they were renewed: no test has to wait by the clock."""

import asyncio
from typing import Any, ClassVar

from batonlog.engine import Engine
from batonlog.events import Lease, MemoryLog


class Leased(MemoryLog):
    """A log that says how often a lease was taken or renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0
        self.often = asyncio.Event()

    async def renewed(self) -> None:
        """Wait until the lease has been renewed several times; not for ever, if it never is."""
        await asyncio.wait_for(self.often.wait(), 20)

    def begin_anew(self) -> None:
        """Count from here."""
        self.times = 0
        self.often.clear()

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        self.times += 1
        if self.times > 4:
            self.often.set()
        return await super().acquire(session, owner=owner, seconds=seconds)


class Hasty(Engine[Any]):
    lease_seconds: ClassVar[float] = 0.2
