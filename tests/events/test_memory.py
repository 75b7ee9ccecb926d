"""The log in memory keeps the contract."""

from contextlib import AbstractAsyncContextManager

from batonlog.events import EventLog, MemoryLog
from batonlog.events.testing import EventLogConformance


class TestMemoryLog(EventLogConformance):
    def open(self) -> AbstractAsyncContextManager[EventLog]:
        return MemoryLog()
