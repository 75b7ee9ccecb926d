"""The log in memory: the reference for all others, and enough for tests and scripts."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

from batonlog.events.errors import ConflictError, FencedError, UnknownSessionError, UsageError
from batonlog.events.facts import Event, SessionForked
from batonlog.events.log import (
    Alarm,
    Appended,
    EventLog,
    Head,
    Lease,
    check_expected,
    check_lease,
    check_name,
)
from batonlog.events.news import News
from batonlog.events.record import GENESIS, Record, Sealed, link, now, read_event, seal, tag_of


class _Session:
    """One session's rows. Digests and hashes are made when somebody asks for them."""

    __slots__ = ("base", "first", "hashes", "rows")

    def __init__(self, first: int, base: bytes) -> None:
        self.first = first
        """Version before its own first row: 0, or where it was forked."""
        self.base = base
        self.rows: list[tuple[bytes, int, int, bytes]] = []
        """Event id, time, position, payload."""
        self.hashes: list[bytes] = []

    @property
    def version(self) -> int:
        return self.first + len(self.rows)

    def hash(self, name: str, n: int) -> bytes:
        """The hash of row n."""
        while len(self.hashes) <= n:
            k = len(self.hashes)
            digest = sha256(self.rows[k][3]).digest()
            previous = self.hashes[-1] if k else self.base
            self.hashes.append(link(previous, name, self.first + k + 1, self.rows[k][0], digest))
        return self.hashes[n]


class MemoryLog(EventLog):
    """A log that lasts as long as the process. For one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._order: list[tuple[str, int]] = []
        self._leases: dict[str, tuple[str, int, float, int]] = {}
        self._in_force: set[str] = set()
        """Sessions whose lease was not given back."""
        self._news = News()

    async def append(
        self,
        session: str,
        events: Sequence[Event],
        *,
        expected: int,
        ids: Sequence[UUID] | None = None,
        lease: Lease | None = None,
        release: bool = False,
    ) -> Appended:
        check_name(session)
        check_expected(session, expected)
        check_lease(session, lease)
        batch = seal(events, ids)
        stored = self._sessions.get(session)
        version = stored.version if stored else 0
        if stored and self._is_duplicate(stored, expected, batch):
            last = expected + len(batch)
            return Appended(last, stored.rows[last - stored.first - 1][2], True)
        if lease is not None:
            self._check(lease)
        if version != expected:
            raise ConflictError(session, expected=expected, actual=version)
        if stored is None:
            stored = self._sessions[session] = _Session(0, GENESIS)
        position = self._store(session, stored, batch)
        if lease is not None:
            self._renew(lease, release)
        self._news.tell({session: stored.version})
        return Appended(stored.version, position, False)

    def _is_duplicate(self, stored: _Session, expected: int, batch: Sequence[Sealed]) -> bool:
        start = expected - stored.first
        rows = stored.rows[start : start + len(batch)] if start >= 0 else []
        return len(rows) == len(batch) and all(
            row[0] == sealed.id and row[3] == sealed.payload for row, sealed in zip(rows, batch, strict=True)
        )

    def _store(self, session: str, stored: _Session, batch: Sequence[Sealed]) -> int:
        at = now()
        for sealed in batch:
            self._order.append((session, len(stored.rows)))
            stored.rows.append((sealed.id, at, len(self._order), sealed.payload))
        return len(self._order)

    def _record(self, session: str, stored: _Session, n: int) -> Record:
        key, at, position, payload = stored.rows[n]
        version = stored.first + n + 1
        hashed = stored.hash(session, n)
        event = read_event(session, version, payload)
        return Record(session, version, position, tag_of(event), event, payload, hashed, key, at)

    async def read(self, session: str, *, after: int = 0, until: int | None = None) -> AsyncIterator[Record]:
        stored = self._sessions.get(session)
        if stored is None:
            return
        n = max(after - stored.first, 0)
        last = stored.version if until is None else min(until, stored.version)
        while stored.first + n < last:
            yield self._record(session, stored, n)
            n += 1

    async def read_all(self, *, after: int = 0, limit: int | None = None) -> AsyncIterator[Record]:
        end = len(self._order) if limit is None else min(after + limit, len(self._order))
        for position in range(after, end):
            name, n = self._order[position]
            yield self._record(name, self._sessions[name], n)

    async def heads(self) -> AsyncIterator[Head]:
        for name in sorted(self._sessions):
            yield self._head(name)

    def _head(self, name: str) -> Head:
        stored = self._sessions[name]
        return Head(name, stored.version, stored.hash(name, len(stored.rows) - 1))

    async def head(self, session: str) -> Head | None:
        return self._head(session) if session in self._sessions else None

    async def _parent(self, session: str) -> SessionForked | None:
        return self._forked(session)

    def _forked(self, session: str) -> SessionForked | None:
        stored = self._sessions.get(session)
        if stored is None or stored.first == 0:
            return None
        forked = read_event(session, stored.first + 1, stored.rows[0][3])
        assert isinstance(forked, SessionForked)
        return forked

    async def fork(self, session: str, *, at: int, into: str) -> Head:
        check_name(into)
        if session not in self._sessions:
            raise UnknownSessionError(f"no session {session} in this log", session=session)
        version = self._sessions[session].version
        if not 1 <= at <= version:
            raise UsageError(
                f"cannot fork {session} at version {at}: it has 1 to {version}", session=session, version=at
            )
        if (taken := self._sessions.get(into)) is not None:
            raise ConflictError(into, expected=0, actual=taken.version)
        forked = self._sessions[into] = _Session(at, self._hash_at(session, at))
        self._store(into, forked, seal([SessionForked(parent=session, at=at)]))
        self._news.tell({into: forked.version})
        return self._head(into)

    def _hash_at(self, session: str, version: int) -> bytes:
        stored = self._sessions[session]
        if version > stored.first:
            return stored.hash(session, version - stored.first - 1)
        if version == stored.first:
            return stored.base
        forked = self._forked(session)
        assert forked is not None
        return self._hash_at(forked.parent, version)

    # -- leases: owner, epoch, seconds, until (microseconds; 0 when given back)

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Lease | None:
        holder, epoch, _, until = self._leases.get(session, ("", 0, 0.0, 0))
        if until > now() and holder != owner:
            return None
        if holder != owner or until == 0:
            epoch += 1  # one that ran out, and that nobody took, is still its owner's
        until = now() + int(seconds * 1e6)
        self._leases[session] = (owner, epoch, seconds, until)
        self._in_force.add(session)
        return Lease(session, owner, epoch, datetime.fromtimestamp(until / 1e6, tz=UTC))

    def _check(self, lease: Lease) -> None:
        _, epoch, _, until = self._leases.get(lease.session, ("", 0, 0.0, 0))
        if epoch != lease.epoch or until == 0:  # lost, or given back
            raise FencedError(
                f"{lease.owner} lost its lease on {lease.session} (epoch {lease.epoch}, now {epoch}): stop",
                session=lease.session,
            )

    def _renew(self, lease: Lease, release: bool) -> None:
        owner, epoch, seconds, _ = self._leases[lease.session]
        until = 0 if release else now() + int(seconds * 1e6)
        self._leases[lease.session] = (owner, epoch, seconds, until)
        if release:
            self._in_force.discard(lease.session)

    async def release(self, lease: Lease) -> None:
        held = self._leases.get(lease.session)
        if held is not None and held[1] == lease.epoch:
            self._renew(lease, True)

    async def expired(self) -> AsyncIterator[str]:
        for session in sorted(self._in_force):
            if self._leases[session][3] <= now():
                yield session

    def watch(self, session: str | None) -> AbstractContextManager[Alarm]:
        return self._news.watch(session)

    async def close(self) -> None:
        """Do nothing: what it holds goes with the object."""
