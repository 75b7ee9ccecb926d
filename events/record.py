"""A stored event, and the bytes around it: ids, digests and the hash chain.

Each record's hash covers the hash before it, the session, the version, the event id and
the digest of the payload. It covers the digest, not the payload, so that erasing a text
leaves the chain whole. The chain is tamper-evident against a head that was saved elsewhere;
alone it proves nothing against someone who can rewrite the file.
"""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

from batonlog.events.codec import decode, decode_known, encode
from batonlog.events.errors import DamagedError, UsageError
from batonlog.events.facts import Event, UnknownEvent

GENESIS = bytes(32)
"""What the hash of a session's first record goes on from."""

_MILLISECONDS = 48


class Record(Struct, frozen=True, gc=False):
    """One stored event. Immutable."""

    session: str
    """The session it is stored under."""
    version: int
    """1, 2, 3 … in the session; a fork goes on counting where it left its parent."""
    position: int
    """Increasing over the whole log, in commit order, never reused."""
    type: str
    """Its tag."""
    event: Event
    """What happened."""
    payload: bytes
    """The stored JSON of the event, as it was written."""
    hash: bytes
    """Links it to all records before it."""
    id: bytes
    """The event id, as 16 bytes."""
    at: int
    """Microseconds since 1970, UTC."""
    erased: bytes | None = None
    """The digest of what stood here, if its texts were erased."""

    @property
    def digest(self) -> bytes:
        """sha256 of the payload as it was first written."""
        return self.erased if self.erased is not None else sha256(self.payload).digest()

    @property
    def event_id(self) -> UUID:
        """uuid7, made by the writer before the append."""
        return UUID(bytes=self.id)

    @property
    def recorded_at(self) -> datetime:
        """UTC, for people; never an ordering key."""
        return datetime.fromtimestamp(self.at / 1e6, tz=UTC)


class Sealed(NamedTuple):
    """An event made ready to be stored: encoded once, whatever happens to the append."""

    id: bytes
    type: str
    payload: bytes
    digest: bytes


class Batch(list[Event]):
    """Events in the making, each encoded once and read back: as they will be stored, and with these bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.payloads: list[bytes] = []

    def put(self, event: Event) -> Event:
        """Add an event, and return it as it will be read."""
        payload = encode(event)
        stored = decode(payload)
        self.append(stored)
        self.payloads.append(payload)
        return stored

    def cut(self, length: int) -> None:
        """Forget all but the first so many."""
        del self[length:]
        del self.payloads[length:]


def seal(events: Sequence[Event], ids: Sequence[UUID] | None = None) -> list[Sealed]:
    """Encode a batch. Raises UsageError for an empty one, or one that could not be read again."""
    if not events:
        raise UsageError("an append needs at least one event")
    if ids is not None and len(ids) != len(events):
        raise UsageError(f"{len(events)} events need {len(events)} ids, not {len(ids)}")
    payloads = events.payloads if isinstance(events, Batch) else map(_encoded, events)
    keys = [key.bytes for key in ids] if ids is not None else [new_id().bytes for _ in events]
    return [
        Sealed(key, tag_of(event), payload, sha256(payload).digest())
        for key, event, payload in zip(keys, events, payloads, strict=True)
    ]


def _encoded(event: Event) -> bytes:
    try:
        payload = encode(event)
        decode(payload)  # constructors do not validate, and what cannot be read must not be stored
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{event.type} cannot be stored as JSON: {error}") from error
    return payload


def tag_of(event: Event) -> str:
    """Return the tag under which an event is stored."""
    return event.tag if isinstance(event, UnknownEvent) else event.type


def link(previous: bytes, session: str, version: int, event_id: bytes, digest: bytes) -> bytes:
    """Return the hash of a record that follows the one with hash `previous`."""
    name, number = session.encode(), b"%d" % version
    # Each part is prefixed with its length, so that no two different tuples share their bytes.
    return sha256(
        b"%d:%b%d:%b%d:%b%d:%b%d:%b"
        % (
            len(previous),
            previous,
            len(name),
            name,
            len(number),
            number,
            len(event_id),
            event_id,
            len(digest),
            digest,
        )
    ).digest()


def read_event(session: str, version: int, payload: bytes) -> Event:
    """Decode a stored payload. Raises DamagedError, naming the record."""
    try:
        return decode(_text(payload))
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(
            f"record {version} of {session} cannot be read ({error}); nothing was deleted, and the records "
            f"before it are whole: read with until={version - 1}, on the command line with --at {version - 1}",
            session=session,
            version=version,
        ) from error


def _text(payload: bytes) -> bytes:
    """Return a payload. Raises ValueError or TypeError if it is no UTF-8: foreign fields are decoded later."""
    if type(payload) is not bytes or not payload.isascii():
        str(payload, "utf-8")
    return payload


Row = tuple[str, int, int, str, bytes, bytes, bytes, int, bytes | None]
"""Session, version, position, tag, payload, hash, event id, time, digest if erased: as a store holds them."""


def read_rows(rows: Sequence[Row]) -> list[Record]:
    """Decode stored rows. Raises DamagedError, naming the record."""
    try:
        return [
            Record(name, version, position, tag, decode_known(_text(data)), data, hashed, key, at, erased)
            for name, version, position, tag, data, hashed, key, at, erased in rows
        ]
    except (ValueError, TypeError, RecursionError):  # one is unknown, holds lone surrogates, or is damaged
        return [
            Record(
                name, version, position, tag, read_event(name, version, data), data, hashed, key, at, erased
            )
            for name, version, position, tag, data, hashed, key, at, erased in rows
        ]


def new_id() -> UUID:
    """Return a new uuid7 (RFC 9562): 48 bits of milliseconds, then randomness."""
    moment = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    number = (moment & (1 << _MILLISECONDS) - 1) << 80 | random
    number = number & ~(0xF << 76) | 0x7 << 76  # version
    return UUID(int=number & ~(0x3 << 62) | 0x2 << 62)  # variant


def now() -> int:
    """Return the store's clock: microseconds since 1970, UTC."""
    return time.time_ns() // 1000
