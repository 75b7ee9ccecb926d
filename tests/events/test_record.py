"""Sealing a batch, ids, the chain, and reading a payload back."""

import time
from collections.abc import Callable
from hashlib import sha256
from types import SimpleNamespace
from uuid import RFC_4122, UUID, uuid4

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batonlog.events import (
    DamagedError,
    Event,
    Limits,
    NoteAdded,
    RunPaused,
    RunStarted,
    UnknownEvent,
    UsageError,
)
from batonlog.events import record as module
from batonlog.events.record import GENESIS, link, new_id, read_event, seal

NOTE = NoteAdded(name="n", data="a")

# -- ids


def test_an_id_is_a_uuid7() -> None:
    for _ in range(200):
        key = new_id()
        assert (key.version, key.variant) == (7, RFC_4122)


def test_an_id_begins_with_the_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    moment = int.from_bytes(new_id().bytes[:6], "big")
    assert before <= moment <= time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def id_at() -> Callable[[int], UUID]:
    """Make an id at a moment of one's choice."""

    def make(milliseconds: int) -> UUID:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "time", SimpleNamespace(time_ns=lambda: milliseconds * 1_000_000))
            return new_id()

    return make


moments = st.integers(0, 2**48 - 1)


@given(moments, moments)
def test_ids_are_ordered_by_millisecond(id_at: Callable[[int], UUID], one: int, two: int) -> None:
    assume(one != two)
    assert (id_at(one) < id_at(two)) == (one < two)
    assert (id_at(one).bytes < id_at(two).bytes) == (one < two)


def test_ids_of_one_millisecond_differ(id_at: Callable[[int], UUID]) -> None:
    assert len({id_at(7) for _ in range(1000)}) == 1000


# -- sealing


def test_a_sealed_event_is_its_id_its_tag_its_bytes_and_their_digest() -> None:
    key = uuid4()
    (sealed,) = seal([NOTE], [key])
    assert sealed.id == key.bytes
    assert sealed.type == "note.added"
    assert sealed.payload == b'{"type":"note.added","name":"n","data":"a"}'
    assert sealed.digest == sha256(sealed.payload).digest()


def test_an_unknown_event_is_sealed_under_its_own_tag() -> None:
    (sealed,) = seal([UnknownEvent(tag="future.thing", data={"a": 1})])
    assert (sealed.type, sealed.payload) == ("future.thing", b'{"type":"future.thing","a":1}')


def test_a_batch_without_ids_gets_new_ones() -> None:
    keys = [UUID(bytes=sealed.id) for sealed in seal([NOTE] * 3)]
    assert len(set(keys)) == 3
    assert {key.version for key in keys} == {7}


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one event"):
        seal([])


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_batch_needs_as_many_ids_as_events(n: int) -> None:
    with pytest.raises(UsageError, match=f"2 events need 2 ids, not {n}"):
        seal([NOTE, NOTE], [uuid4() for _ in range(n)])


def nested(depth: int) -> object:
    value: object = None
    for _ in range(depth):
        value = [value]
    return value


UNSTORABLE: dict[str, Event] = {
    "an object": NoteAdded(name="n", data=object()),
    "an object beside a lone surrogate": NoteAdded(name="\ud800", data=object()),
    "a key that is no text": NoteAdded(name="n", data={(1, 2): 3}),
    "too deep": NoteAdded(name="n", data=nested(100_000)),
    "too deep beside a lone surrogate": NoteAdded(name="\ud800", data=nested(100_000)),
    "raw bytes that are no JSON": NoteAdded(name="n", data=msgspec.Raw(b"{oops")),
    "a field of another type": NoteAdded(name=7, data=None),  # type: ignore[arg-type]
    "a word that is not on the list": RunPaused(reason="lunch"),  # type: ignore[arg-type]
    "items that are none": RunStarted(run_id="r", agent="a", input=7, limits=Limits()),  # type: ignore[arg-type]
    "data that is no object": UnknownEvent(tag="future.thing", data=[1]),
    "a known event in disguise": UnknownEvent(tag="run.started", data={"run_id": "r"}),
    "no event of any kind": Event(),
}


@pytest.mark.parametrize("event", UNSTORABLE.values(), ids=list(UNSTORABLE))
def test_what_could_not_be_read_again_is_refused(event: Event) -> None:
    with pytest.raises(UsageError, match="cannot be stored"):
        seal([NOTE, event])


# -- the chain

hashes = st.binary(min_size=32, max_size=32)
names = st.text(min_size=1, max_size=20)
keys = st.binary(min_size=16, max_size=16)
parts = st.tuples(hashes, names, st.integers(1, 10**6), keys, hashes)


@given(parts)
def test_the_hash_is_over_length_prefixed_parts(row: tuple[bytes, str, int, bytes, bytes]) -> None:
    previous, session, version, key, digest = row
    fields = (previous, session.encode(), str(version).encode(), key, digest)
    expected = b"".join(str(len(field)).encode() + b":" + field for field in fields)
    assert link(*row) == sha256(expected).digest()


@given(parts, parts)
def test_no_two_records_share_a_hash(
    one: tuple[bytes, str, int, bytes, bytes], two: tuple[bytes, str, int, bytes, bytes]
) -> None:
    assume(one != two)
    assert link(*one) != link(*two)


@pytest.mark.parametrize("n", range(5))
def test_the_hash_covers_every_part(n: int) -> None:
    row = (GENESIS, "s1", 1, bytes(16), bytes(32))
    other = (bytes([1]) * 32, "s", 11, bytes([1]) * 16, bytes([1]) * 32)
    assert link(*row) != link(*(*row[:n], other[n], *row[n + 1 :]))  # type: ignore[arg-type]


# -- reading back


DEEP = b'{"type":"note.added","name":"n","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"{}", b'{"type":"note.added"}', DEEP])
def test_a_damaged_payload_is_named_and_says_what_is_whole(payload: bytes) -> None:
    with pytest.raises(DamagedError, match="until=6") as caught:
        read_event("s", 7, payload)
    assert (caught.value.session, caught.value.version) == ("s", 7)


def test_a_damaged_payload_is_not_shown() -> None:
    with pytest.raises(DamagedError) as caught:
        read_event("s", 7, b'{"type":"note.added","name":"4111 1111 1111 1111"}')
    assert "4111" not in str(caught.value)


def test_a_payload_that_is_no_utf8_is_damaged_also_where_no_field_of_ours_is() -> None:
    payload = seal([NoteAdded(name="n", data={"text": "caf\u00e9"})])[0].payload
    broken = payload.replace("\u00e9".encode(), b"\xff")
    assert broken != payload
    with pytest.raises(DamagedError, match="record 3 of s cannot be read"):
        read_event("s", 3, broken)
