"""A writer of legal sessions: appends events as a log would, and refuses what may not follow.

It reads the lifecycle from the tables that the engine's machine is built of, and the state
from the fold that the engine decides by. Nothing in it is random and nothing reads a clock:
the same calls make the same records.
"""

from uuid import UUID

from batonlog.events import Event, Record, SessionForked
from batonlog.events.codec import decode
from batonlog.events.lifecycle import objection
from batonlog.events.record import GENESIS, link, seal
from batonlog.projections.state import State, advance

_FIRST = 1_767_225_600_000_000
"""2026-01-01, in microseconds."""

_UUID7 = 0x7 << 76 | 0x2 << 62


class IllegalLogError(Exception):
    """An event that the lifecycle does not let follow. A fault of this package, never of a caller."""


class Writer:
    """One session in the making. `records` and `states` are what a log would give, and what it means."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.records: list[Record] = []
        self.states: list[State] = [State()]
        """Where the session is after each version, from 0 on."""
        self._position = 0

    @property
    def state(self) -> State:
        """Where the session is."""
        return self.states[-1]

    @property
    def next(self) -> int:
        """The version that the next event gets."""
        return len(self.records) + 1

    def add(self, event: Event) -> None:
        """Append one event. Raises IllegalLogError if it may not follow, and then changes nothing."""
        state = self.state
        request = state.request.version if state.request is not None else None
        wrong = objection(event, run=state.phase, calls=state.calls, request=request)
        if wrong is not None:
            raise IllegalLogError(wrong)
        self._position += 1
        moment = _FIRST + self._position * 1_000_000
        ((key, tag, payload, digest),) = seal(
            [event], [UUID(int=moment // 1000 << 80 | _UUID7 | self._position)]
        )
        previous = self.records[-1].hash if self.records else GENESIS
        hashed = link(previous, self.session, self.next, key, digest)
        stored = decode(payload)
        record = Record(self.session, self.next, self._position, tag, stored, payload, hashed, key, moment)
        self.states.append(advance(state, record.version, stored))
        self.records.append(record)

    def fork(self, at: int, into: str) -> None:
        """Go on from an earlier version, in another session: what came after it stays with the first."""
        del self.records[at:]
        del self.states[at + 1 :]
        parent, self.session = self.session, into
        self.add(SessionForked(parent=parent, at=at))
