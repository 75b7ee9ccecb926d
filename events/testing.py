"""The contract of a log, as a test suite that runs on every backend, ours and yours.

    from batonlog.events import EventLog
    from batonlog.events.testing import EventLogConformance

    class TestMyLog(EventLogConformance):
        def open(self) -> AbstractAsyncContextManager[EventLog]:
            return MyLog(...)

The tests are plain functions that start an event loop of their own, so that no plugin is
needed, and none disturbs. The suite knows nothing of a backend but the port: what is checked
here is what the engine relies on. It needs `pip install batonlog[testing]`.

pytest shows the two sides of a failed comparison if it is told about this module before the
first import of it: `pytest.register_assert_rewrite("batonlog.events.testing")` in conftest.py.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from itertools import count, pairwise, product
from typing import Any, ClassVar, TypeVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batonlog.events import (
    JSON,
    Appended,
    ConflictError,
    Event,
    EventLog,
    FencedError,
    Head,
    Lease,
    Limits,
    NoteAdded,
    Record,
    RunStarted,
    SessionForked,
    UnknownEvent,
    UnknownSessionError,
    UsageError,
)

_T = TypeVar("_T")

_PATIENCE = 120
"""Seconds until a log that hangs is called broken. Nothing else depends on it."""

_LONG = 3600.0
"""Seconds of a lease that never runs out in a test."""

_OVER = 0.0
"""Seconds of a lease that has run out as soon as it is taken."""

_SETTINGS = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def _joined(text: str) -> str:
    """Join the halves that stand side by side: JSON cannot tell them from the whole character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


_texts = st.text(st.characters()).map(_joined)  # with lone surrogates, which `st.text()` leaves out
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=10,
)

_Test = Callable[["EventLogConformance", EventLog], Coroutine[Any, Any, None]]


def _on_an_empty_log(test: _Test) -> Callable[["EventLogConformance"], None]:
    """Make a plain test of a coroutine function that is given an empty log."""

    def run(self: "EventLogConformance") -> None:
        async def whole() -> None:
            async with self.open() as log:
                await test(self, log)

        _run(whole())

    # Not functools.wraps: pytest would look for a fixture named `log`.
    run.__name__, run.__qualname__, run.__module__ = test.__name__, test.__qualname__, test.__module__
    run.__doc__ = test.__doc__
    return run


def _run(whole: Coroutine[Any, Any, None]) -> None:
    async def patient() -> None:
        async with asyncio.timeout(_PATIENCE):
            await whole

    asyncio.run(patient())


class EventLogConformance:
    """Subclass it in a test module, say how to open your log, and pytest runs the contract.

    `open` is called once in a test, and must give an empty log each time: make its file, or its
    database, in a fixture. A log that outlives its object says how to open it again in
    `reopen`, and is then held to be durable; the tests of that are skipped elsewhere.

        class TestMyLog(EventLogConformance):
            @pytest.fixture(autouse=True)
            def _path(self, tmp_path: Path) -> None:
                self.path = tmp_path / "log.db"

            def open(self) -> AbstractAsyncContextManager[EventLog]:
                return MyLog(self.path)

            def reopen(self) -> AbstractAsyncContextManager[EventLog]:
                return MyLog(self.path)

    A lease of 0 seconds has run out as soon as it is taken. The properties enter and leave the
    log in different tasks of one event loop.
    """

    def open(self) -> AbstractAsyncContextManager[EventLog]:
        """Open an empty log. The only method to write."""
        raise NotImplementedError("say how to open an empty log: def open(self)")

    def reopen(self) -> AbstractAsyncContextManager[EventLog]:
        """Open the same log again; durability tests are skipped where this is left out."""
        pytest.skip("this log does not say how to reopen it: def reopen(self)")

    # -- append: all or nothing, at exactly one version

    @_on_an_empty_log
    async def test_an_append_is_stored_at_the_version_it_expects(self, log: EventLog) -> None:
        first = await log.append("s", _notes("a", "b"), expected=0)
        second = await log.append("s", _notes("c"), expected=2)
        records = await _read(log, "s")
        assert [(record.version, _data(record)) for record in records] == [(1, "a"), (2, "b"), (3, "c")]
        assert [record.session for record in records] == ["s"] * 3
        assert first == Appended(2, records[1].position, False)
        assert second == Appended(3, records[2].position, False)

    @_on_an_empty_log
    async def test_an_append_must_say_what_it_expects(self, log: EventLog) -> None:
        with pytest.raises(TypeError):
            await log.append("s", _notes("a"))  # type: ignore[call-arg]
        assert await _everything(log) == ([], [])

    @_on_an_empty_log
    async def test_expected_0_means_that_the_session_must_not_exist(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        await _refused(log, "s", expected=0, actual=1)

    @_on_an_empty_log
    async def test_a_stale_append_stores_nothing_and_says_where_the_session_is(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b", "c"), expected=0)
        for expected in (0, 1, 2, 4, 99):
            await _refused(log, "s", expected=expected, actual=3)

    @_on_an_empty_log
    async def test_a_session_that_does_not_exist_is_at_0(self, log: EventLog) -> None:
        await _refused(log, "s", expected=1, actual=0)

    @_on_an_empty_log
    async def test_a_conflict_names_session_and_version(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        with pytest.raises(ConflictError, match="s") as caught:
            await log.append("s", _notes("b"), expected=7)
        assert (caught.value.session, caught.value.version, caught.value.actual) == ("s", 7, 1)

    @_on_an_empty_log
    async def test_versions_have_no_gaps_whatever_was_refused(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        await _refused(log, "s", expected=0, actual=1)
        with pytest.raises(UsageError):
            await log.append("s", [*_notes("b"), NoteAdded(name="n", data=object())], expected=1)
        await log.append("s", _notes("c", "d"), expected=1)
        assert [record.version for record in await _read(log, "s")] == [1, 2, 3]

    @_on_an_empty_log
    async def test_positions_rise_in_commit_order_and_are_never_used_twice(self, log: EventLog) -> None:
        stored = []
        for n in range(4):
            for session in ("b", "a", "c"):
                answer = await log.append(session, _notes(f"{n}"), expected=n)
                stored.append((session, answer.version, answer.position))
        assert [(r.session, r.version, r.position) for r in await _read_all(log)] == stored
        _check_positions(await _read_all(log))

    @_on_an_empty_log
    async def test_a_record_keeps_the_id_it_was_given(self, log: EventLog) -> None:
        ids = _ids(2)
        await log.append("s", _notes("a", "b"), expected=0, ids=ids)
        assert [record.event_id for record in await _read(log, "s")] == ids

    @_on_an_empty_log
    async def test_a_record_without_an_id_gets_one_of_its_own(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "a"), expected=0)
        await log.append("t", _notes("a"), expected=0)
        assert len({record.event_id for record in await _read_all(log)}) == 3

    @_on_an_empty_log
    async def test_the_time_of_a_record_is_utc(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        assert [record.recorded_at.utcoffset() for record in await _read(log, "s")] == [timedelta(0)]

    @_on_an_empty_log
    async def test_what_cannot_be_stored_is_refused_with_its_whole_batch(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        before = await _everything(log)
        with pytest.raises(UsageError):
            await log.append("s", [*_notes("b"), NoteAdded(name="n", data=object())], expected=1)
        assert await _everything(log) == before

    @_on_an_empty_log
    async def test_an_empty_batch_is_refused(self, log: EventLog) -> None:
        with pytest.raises(UsageError):
            await log.append("s", [], expected=0)
        assert await log.head("s") is None

    @_on_an_empty_log
    async def test_a_batch_needs_as_many_ids_as_events(self, log: EventLog) -> None:
        for n in (0, 1, 3):
            with pytest.raises(UsageError):
                await log.append("s", _notes("a", "b"), expected=0, ids=_ids(n))
        assert await log.head("s") is None

    @_on_an_empty_log
    async def test_a_version_below_0_is_refused(self, log: EventLog) -> None:
        with pytest.raises(UsageError):
            await log.append("s", _notes("a"), expected=-1)
        assert await log.head("s") is None

    @_on_an_empty_log
    async def test_what_is_no_name_is_refused(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        before = await _everything(log)
        for name in ("", " s", "s ", "a\nb", "a\0b", "\ud800", "x" * 501):
            with pytest.raises(UsageError):
                await log.append(name, _notes("a"), expected=0)
            with pytest.raises(UsageError):
                await log.fork("s", at=1, into=name)
        assert await _everything(log) == before

    @_on_an_empty_log
    async def test_a_name_is_a_text_of_up_to_500_characters(self, log: EventLog) -> None:
        names = ["x", "x" * 500, "退款-42", "s/4.0/7.1", "S", "a b", "%_'\"\\"]
        for name in names:
            await log.append(name, _notes(name), expected=0)
        assert {head.session for head in await _heads(log)} == set(names)
        for name in names:
            assert [_data(record) for record in await _read(log, name)] == [name]

    # -- the same append again

    @_on_an_empty_log
    async def test_the_same_batch_again_is_a_duplicate(self, log: EventLog) -> None:
        ids = _ids(2)
        first = await log.append("s", _notes("a", "b"), expected=0, ids=ids)
        before = await _everything(log)
        again = await log.append("s", _notes("a", "b"), expected=0, ids=ids)
        assert again == Appended(first.version, first.position, True)
        assert await _everything(log) == before

    @_on_an_empty_log
    async def test_a_duplicate_is_known_after_later_appends(self, log: EventLog) -> None:
        ids = _ids(2)
        await log.append("s", _notes("0"), expected=0)
        first = await log.append("s", _notes("a", "b"), expected=1, ids=ids)
        await log.append("s", _notes("c"), expected=3)
        await log.append("t", _notes("d"), expected=0)
        before = await _everything(log)
        again = await log.append("s", _notes("a", "b"), expected=1, ids=ids)
        assert again == Appended(first.version, first.position, True)
        assert await _everything(log) == before

    @_on_an_empty_log
    async def test_other_events_with_the_same_ids_are_a_conflict(self, log: EventLog) -> None:
        ids = _ids(2)
        await log.append("s", _notes("a", "b"), expected=0, ids=ids)
        await _refused(log, "s", "a", "c", expected=0, actual=2, ids=ids)

    @_on_an_empty_log
    async def test_the_same_events_with_other_ids_are_a_conflict(self, log: EventLog) -> None:
        one, two, three = _ids(3)
        await log.append("s", _notes("a", "b"), expected=0, ids=[one, two])
        await _refused(log, "s", "a", "b", expected=0, actual=2, ids=[one, three])
        await _refused(log, "s", "a", "b", expected=0, actual=2, ids=[two, one])

    @_on_an_empty_log
    async def test_a_batch_that_stands_there_in_part_is_a_conflict(self, log: EventLog) -> None:
        one, two, three = _ids(3)
        await log.append("s", _notes("a", "b"), expected=0, ids=[one, two])
        await _refused(log, "s", "a", "b", "c", expected=0, actual=2, ids=[one, two, three])
        await _refused(log, "s", "b", "c", expected=1, actual=2, ids=[two, three])

    @_on_an_empty_log
    async def test_the_same_batch_at_another_version_is_a_conflict(self, log: EventLog) -> None:
        ids = _ids(1)
        await log.append("s", _notes("a", "b"), expected=0)
        await log.append("s", _notes("c"), expected=2, ids=ids)
        for expected in (0, 1, 4):
            await _refused(log, "s", "c", expected=expected, actual=3, ids=ids)

    @_on_an_empty_log
    async def test_a_batch_of_a_fork_is_a_duplicate_only_at_its_version(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b"), expected=0)
        await log.fork("s", at=2, into="f")
        (forked,) = await _read(log, "f")
        again = await log.append("f", [forked.event], expected=2, ids=[forked.event_id])
        assert again == Appended(3, forked.position, True)
        for expected in (0, 1):
            with pytest.raises(ConflictError):
                await log.append("f", [forked.event], expected=expected, ids=[forked.event_id])

    # -- many at once

    @_on_an_empty_log
    async def test_of_many_appends_at_one_version_one_is_stored(self, log: EventLog) -> None:
        answers = await asyncio.gather(
            *(log.append("s", _notes(f"{n}", "more"), expected=0) for n in range(20)),
            return_exceptions=True,
        )
        won = [n for n, answer in enumerate(answers) if isinstance(answer, Appended)]
        lost = [answer.actual for answer in answers if isinstance(answer, ConflictError)]
        assert (len(won), lost) == (1, [2] * 19)
        assert [_data(record) for record in await _read(log, "s")] == [f"{won[0]}", "more"]

    @_on_an_empty_log
    async def test_the_conflict_of_one_never_affects_another(self, log: EventLog) -> None:
        await log.append("stale", _notes("a"), expected=0)
        answers = await asyncio.gather(
            *(log.append("stale" if n % 3 else f"s{n}", _notes("b"), expected=0) for n in range(60)),
            return_exceptions=True,
        )
        for n, answer in enumerate(answers):
            assert isinstance(answer, ConflictError if n % 3 else Appended), f"append {n} of 60"
        assert {head.session: head.version for head in await _heads(log)} == {
            "stale": 1,
            **{f"s{n}": 1 for n in range(0, 60, 3)},
        }
        await _check_whole(log)

    @_on_an_empty_log
    async def test_a_batch_repeated_while_it_is_under_way_is_stored_once(self, log: EventLog) -> None:
        ids = _ids(2)
        answers = await asyncio.gather(
            *(log.append("s", _notes("a", "b"), expected=0, ids=ids) for _ in range(8))
        )
        assert sorted(answer.duplicate for answer in answers) == [False] + [True] * 7
        assert {(answer.version, answer.position) for answer in answers} == {(2, answers[0].position)}
        assert [_data(record) for record in await _read(log, "s")] == ["a", "b"]

    @_on_an_empty_log
    async def test_writers_who_retry_lose_nothing(self, log: EventLog) -> None:
        async def write(name: str) -> None:
            for n in range(5):
                await _insist(log, "s", f"{name}{n}")

        await asyncio.gather(*(write(name) for name in "abcdefgh"))
        records = await _read(log, "s")
        assert sorted(_data(r) for r in records) == [f"{c}{n}" for c in "abcdefgh" for n in range(5)]
        for name in "abcdefgh":  # each in its own order
            assert [_data(r) for r in records if _data(r)[0] == name] == [f"{name}{n}" for n in range(5)]
        await _check_whole(log)

    # -- reading

    @_on_an_empty_log
    async def test_a_read_yields_what_is_after_and_until(self, log: EventLog) -> None:
        await log.append("other", _notes("x"), expected=0)
        await log.append("s", _notes("a", "b", "c"), expected=0)
        await log.append("s", _notes("d"), expected=3)
        whole = await _read(log, "s")
        for after, until in product(range(6), (None, *range(6))):
            expected = [r for r in whole if after < r.version <= (4 if until is None else until)]
            assert await _read(log, "s", after=after, until=until) == expected, f"{after=}, {until=}"
            assert list(await log.records("s", after=after, until=until)) == expected, f"{after=}, {until=}"

    @_on_an_empty_log
    async def test_a_session_that_does_not_exist_has_no_records(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        assert await _read(log, "t") == []
        assert await log.records("t") == ()
        assert await log.head("t") is None

    @_on_an_empty_log
    async def test_read_all_yields_the_log_in_commit_order(self, log: EventLog) -> None:
        for n in range(3):
            await log.append("b", _notes(f"b{n}"), expected=n)
            await log.append("a", _notes(f"a{n}", f"A{n}"), expected=2 * n)
        records = await _read_all(log)
        assert [_data(record) for record in records] == ["b0", "a0", "A0", "b1", "a1", "A1", "b2", "a2", "A2"]
        for session in ("a", "b"):
            assert [r for r in records if r.session == session] == await _read(log, session)

    @_on_an_empty_log
    async def test_read_all_goes_on_after_any_position_and_up_to_any_limit(self, log: EventLog) -> None:
        for n in range(5):
            await log.append(f"s{n % 2}", _notes(f"{n}"), expected=n // 2)
        whole = await _read_all(log)
        for after in (0, *(record.position for record in whole)):
            rest = [record for record in whole if record.position > after]
            for limit in range(7):
                assert await _read_all(log, after=after, limit=limit) == rest[:limit], f"{after=}, {limit=}"
            assert await _read_all(log, after=after) == rest, f"{after=}"

    @_on_an_empty_log
    async def test_long_sessions_are_read_whole(self, log: EventLog) -> None:
        texts = [f"{n}" for n in range(2500)]
        await log.append("s", _notes(*texts), expected=0)
        await log.append("t", _notes(*texts), expected=0)
        assert [_data(record) for record in await _read(log, "s")] == texts
        assert [_data(record) for record in await _read_all(log, after=0, limit=4999)] == (texts + texts)[:-1]
        assert [_data(record) for record in await log.records("t", after=2, until=2400)] == texts[2:2400]

    @_on_an_empty_log
    async def test_the_head_is_the_last_record(self, log: EventLog) -> None:
        for n, session in enumerate(["b", "c", "a"]):
            await log.append(session, _notes(*"xyz"[: n + 1]), expected=0)
            last = (await _read(log, session))[-1]
            assert await log.head(session) == Head(session, n + 1, last.hash)
        heads = await _heads(log)
        assert heads == [await log.head(session) for session in ("a", "b", "c")]

    @_on_an_empty_log
    async def test_reading_twice_gives_equal_records(self, log: EventLog) -> None:
        await log.append("s", [_run_started({"role": "user", "content": "hi"}), *_notes("a")], expected=0)
        assert await _read(log, "s") == await _read(log, "s")

    # -- the chain

    @_on_an_empty_log
    async def test_the_digest_is_of_the_payload(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "\ud800", "退款"), expected=0)
        for record in await _read(log, "s"):
            assert record.digest == sha256(record.payload).digest()

    @_on_an_empty_log
    async def test_the_hash_covers_everything_before_it(self, log: EventLog) -> None:
        await log.append("退款", _notes("a", "b"), expected=0)
        await log.append("other", _notes("a"), expected=0)
        for n in range(2, 12):
            await log.append("退款", _notes("c"), expected=n)
        await _check_whole(log)

    @_on_an_empty_log
    async def test_the_payload_is_json_tagged_with_the_type(self, log: EventLog) -> None:
        await log.append("s", [*_notes("a"), _run_started({"role": "user"})], expected=0)
        for record, tag in zip(await _read(log, "s"), ("note.added", "run.started"), strict=True):
            assert record.type == record.event.type == tag
            assert json.loads(record.payload)["type"] == tag

    # -- what is stored

    @_on_an_empty_log
    async def test_an_unknown_event_is_kept(self, log: EventLog) -> None:
        data = {"type": "future.thing", "answer": 42, "texts": ["\ud800", "", "\0"], "nested": {"a": [None]}}
        await log.append("s", [UnknownEvent(tag="future.thing", data=data)], expected=0)
        (record,) = await _read(log, "s")
        assert isinstance(record.event, UnknownEvent)
        assert (record.type, record.event.tag) == ("future.thing", "future.thing")
        assert record.event.data == data

    @_on_an_empty_log
    async def test_stored_bytes_survive_being_appended_elsewhere(self, log: EventLog) -> None:
        item = {"type": "message", "content": [{"new": 1.50, "x": 10**30}], "zzz": {"\ud800": ["", "\u2028"]}}
        events = [
            _run_started(item, {"role": "user", "nobody": ["knows", None]}),
            NoteAdded(name="n", data=item),
            UnknownEvent(tag="future.thing", data={"type": "future.thing", **item, "more": 1e300}),
        ]
        await log.append("s", events, expected=0)
        first = await _read(log, "s")
        await log.append("t", [record.event for record in first], expected=0)
        assert [record.payload for record in await _read(log, "t")] == [record.payload for record in first]

    @_on_an_empty_log
    async def test_nobody_can_change_an_event_through_what_it_gives_out(self, log: EventLog) -> None:
        item = {"role": "user", "content": [{"text": "hi"}]}
        await log.append("s", [_run_started(item), NoteAdded(name="n", data={"a": [1]})], expected=0)
        item["role"] = "changed before it was read"
        started, note = await _read(log, "s")
        assert isinstance(started.event, RunStarted)
        assert isinstance(note.event, NoteAdded)
        started.event.input[0]["content"][0]["text"] = "changed"
        note.event.data["a"].append(2)
        for record in (started, (await _read(log, "s"))[0]):
            assert isinstance(record.event, RunStarted)
            assert record.event.input == ({"role": "user", "content": [{"text": "hi"}]},)
        for record in (note, (await _read(log, "s"))[1]):
            assert _data(record) == {"a": [1]}

    @_on_an_empty_log
    async def test_an_odd_text_comes_back_equal(self, log: EventLog) -> None:
        texts = [
            "",
            "\0",
            "a\0b",
            "\u2028\u2029\x85",
            "\ud800",
            "\udfff\ud800",  # the wrong way round
            "\ufeff\uffff",
            "😀退款",
            "\\ud800",
            '"\\',
        ]
        await log.append("s", _notes(*texts), expected=0)
        assert [_data(record) for record in await _read(log, "s")] == texts

    @_on_an_empty_log
    async def test_a_megabyte_comes_back_equal(self, log: EventLog) -> None:
        texts = ["x" * 1_000_000, "退" * 400_000, "\ud800" * 200_000, "\0" * 200_000]
        await log.append("s", _notes(*texts), expected=0)
        assert [_data(record) == text for record, text in zip(await _read(log, "s"), texts, strict=True)] == [
            True
        ] * 4

    def test_any_text_comes_back_equal(self) -> None:
        with _driven(self) as driven:

            @settings(_SETTINGS, max_examples=60)
            @given(_texts)
            def claim(text: str) -> None:
                note = driven.store_and_read(NoteAdded(name=text, data=[text, {text: text}]))
                assert isinstance(note, NoteAdded)
                assert (note.name, note.data) == (text, [text, {text: text}])

            claim()

    def test_any_json_comes_back_equal(self) -> None:
        with _driven(self) as driven:

            @settings(_SETTINGS, max_examples=60)
            @given(_json, st.dictionaries(_texts, _json, max_size=4))
            def claim(data: JSON, fields: dict[str, JSON]) -> None:
                note = driven.store_and_read(NoteAdded(name="n", data=data))
                assert isinstance(note, NoteAdded)
                assert note.data == data
                unknown = driven.store_and_read(UnknownEvent(tag="future.thing", data=fields))
                assert isinstance(unknown, UnknownEvent)
                assert unknown.data == {**fields, "type": "future.thing"}

            claim()

    # -- forks

    @_on_an_empty_log
    async def test_a_fork_goes_on_counting(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b", "c"), expected=0)
        head = await log.fork("s", at=2, into="f")
        assert head.version == 3
        assert head == await log.head("f")
        (forked,) = await _read(log, "f")
        assert (forked.version, forked.event) == (3, SessionForked(parent="s", at=2))
        answer = await log.append("f", _notes("d"), expected=3)
        assert (answer.version, answer.duplicate) == (4, False)
        assert [record.version for record in await _read(log, "f")] == [3, 4]

    @_on_an_empty_log
    async def test_a_forks_hash_goes_on_from_its_parents_record(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b", "c"), expected=0)
        parent = await _read(log, "s")
        for at in (1, 2, 3):
            await log.fork("s", at=at, into=f"f{at}")
            await log.append(f"f{at}", _notes("d"), expected=at + 1)
            _check_chain(await _read(log, f"f{at}"), previous=parent[at - 1].hash)

    @_on_an_empty_log
    async def test_a_fork_copies_nothing(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b", "c"), expected=0)
        before = await _read_all(log)
        await log.fork("s", at=3, into="f")
        assert (await _read_all(log))[:-1] == before
        assert (await _read_all(log))[-1:] == await _read(log, "f")

    @_on_an_empty_log
    async def test_the_records_of_a_fork_are_its_parents_then_its_own(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b", "c"), expected=0)
        await log.fork("s", at=2, into="f")
        await log.append("f", _notes("d", "e"), expected=3)
        whole = await log.records("f")
        assert whole == (*(await _read(log, "s"))[:2], *await _read(log, "f"))
        for after, until in product(range(7), (None, *range(7))):
            expected = tuple(r for r in whole if after < r.version <= (5 if until is None else until))
            assert await log.records("f", after=after, until=until) == expected, f"{after=}, {until=}"

    @_on_an_empty_log
    async def test_a_fork_can_be_forked_at_any_version(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b", "c"), expected=0)
        await log.fork("s", at=2, into="f")
        await log.append("f", _notes("d"), expected=3)
        of_fork = await log.records("f")
        for at in (1, 2, 3, 4):  # inherited, the last inherited, the fork itself, its own
            await log.fork("f", at=at, into=f"g{at}")
            await log.append(f"g{at}", _notes("e"), expected=at + 1)
            own = await _read(log, f"g{at}")
            assert await log.records(f"g{at}") == (*of_fork[:at], *own)
            _check_chain(own, previous=of_fork[at - 1].hash)

    @_on_an_empty_log
    async def test_nothing_that_is_appended_to_the_parent_changes_a_fork(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b"), expected=0)
        await log.fork("s", at=2, into="f")
        before = await log.records("f")
        await log.append("s", _notes("c"), expected=2)
        assert await log.records("f") == before

    @_on_an_empty_log
    async def test_nothing_that_is_appended_to_a_fork_changes_the_parent(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b"), expected=0)
        before = await log.records("s")
        await log.fork("s", at=1, into="f")
        await log.append("f", _notes("c"), expected=2)
        assert await log.records("s") == before

    @_on_an_empty_log
    async def test_a_fork_at_a_version_that_is_not_there_is_refused(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b"), expected=0)
        before = await _everything(log)
        for at in (-1, 0, 3, 99):
            with pytest.raises(UsageError):
                await log.fork("s", at=at, into="f")
        assert await _everything(log) == before

    @_on_an_empty_log
    async def test_a_fork_of_a_session_that_does_not_exist_is_refused(self, log: EventLog) -> None:
        with pytest.raises(UnknownSessionError) as caught:
            await log.fork("nobody", at=1, into="f")
        assert caught.value.session == "nobody"
        assert await _everything(log) == ([], [])

    @_on_an_empty_log
    async def test_a_fork_into_a_session_that_exists_is_a_conflict(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        await log.append("t", _notes("b", "c"), expected=0)
        before = await _everything(log)
        for into, actual in (("t", 2), ("s", 1)):
            with pytest.raises(ConflictError) as caught:
                await log.fork("s", at=1, into=into)
            assert (caught.value.session, caught.value.actual) == (into, actual)
        assert await _everything(log) == before

    @_on_an_empty_log
    async def test_a_stale_append_to_a_fork_is_a_conflict(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b"), expected=0)
        await log.fork("s", at=2, into="f")
        for expected in (0, 1, 2, 4):
            await _refused(log, "f", expected=expected, actual=3)

    # -- leases

    @_on_an_empty_log
    async def test_one_worker_at_a_time_holds_a_session(self, log: EventLog) -> None:
        lease = await log.acquire("s", owner="a", seconds=_LONG)
        assert lease is not None
        assert (lease.session, lease.owner) == ("s", "a")
        assert await log.acquire("s", owner="b", seconds=_LONG) is None
        assert await log.acquire("t", owner="b", seconds=_LONG) is not None

    @_on_an_empty_log
    async def test_of_many_who_want_a_lease_one_gets_it(self, log: EventLog) -> None:
        leases = await asyncio.gather(
            *(log.acquire("s", owner=f"w{n}", seconds=_LONG) for n in range(20)),
        )
        assert sum(lease is not None for lease in leases) == 1

    @_on_an_empty_log
    async def test_an_owner_renews_its_lease_with_the_same_epoch(self, log: EventLog) -> None:
        first = await _acquired(log, "s", "a")
        again = await _acquired(log, "s", "a")
        assert again.epoch == first.epoch
        assert again.until >= first.until

    @_on_an_empty_log
    async def test_the_epoch_rises_with_each_takeover(self, log: EventLog) -> None:
        epochs = [(await _acquired(log, "s", owner, _OVER)).epoch for owner in ("a", "b", "a", "c")]
        assert epochs == sorted(set(epochs))

    @_on_an_empty_log
    async def test_an_owner_whose_lease_ran_out_and_was_not_taken_keeps_it(self, log: EventLog) -> None:
        first = await _acquired(log, "s", "a", _OVER)
        assert (await _acquired(log, "s", "a")).epoch == first.epoch
        await log.append("s", _notes("a"), expected=0, lease=first)

    @_on_an_empty_log
    async def test_a_lease_that_was_given_back_is_over_for_its_owner_too(self, log: EventLog) -> None:
        first = await _acquired(log, "s", "a")
        await log.release(first)
        assert (await _acquired(log, "s", "a")).epoch > first.epoch
        with pytest.raises(FencedError):
            await log.append("s", _notes("a"), expected=0, lease=first)

    @_on_an_empty_log
    async def test_an_append_under_a_lost_lease_is_fenced_and_stores_nothing(self, log: EventLog) -> None:
        lost = await _acquired(log, "s", "a", _OVER)
        await log.append("s", _notes("a"), expected=0, lease=lost)
        await _acquired(log, "s", "b")
        before = await _everything(log)
        for expected in (0, 1, 2):  # whatever it expects
            with pytest.raises(FencedError) as caught:
                await log.append("s", _notes("b"), expected=expected, lease=lost)
            assert caught.value.session == "s"
        assert await _everything(log) == before

    @_on_an_empty_log
    async def test_a_duplicate_is_known_before_the_lease_is_looked_at(self, log: EventLog) -> None:
        lost, ids = await _acquired(log, "s", "a", _OVER), _ids(1)
        first = await log.append("s", _notes("a"), expected=0, ids=ids, lease=lost)
        await _acquired(log, "s", "b")
        again = await log.append("s", _notes("a"), expected=0, ids=ids, lease=lost)
        assert again == Appended(first.version, first.position, True)

    @_on_an_empty_log
    async def test_an_append_without_a_lease_is_never_fenced(self, log: EventLog) -> None:
        await _acquired(log, "s", "a")
        await log.append("s", _notes("a"), expected=0)
        assert [_data(record) for record in await _read(log, "s")] == ["a"]

    @_on_an_empty_log
    async def test_an_append_under_a_lease_is_stored_and_keeps_it(self, log: EventLog) -> None:
        lease = await _acquired(log, "s", "a")
        await log.append("s", _notes("a"), expected=0, lease=lease)
        await log.append("s", _notes("b"), expected=1, lease=lease)
        assert await log.acquire("s", owner="b", seconds=_LONG) is None
        assert [_data(record) for record in await _read(log, "s")] == ["a", "b"]

    @_on_an_empty_log
    async def test_a_lease_that_ran_out_still_serves_until_another_takes_it(self, log: EventLog) -> None:
        lease = await _acquired(log, "s", "a", _OVER)
        await log.append("s", _notes("a"), expected=0, lease=lease)
        assert [_data(record) for record in await _read(log, "s")] == ["a"]

    @_on_an_empty_log
    async def test_a_lease_is_given_back_with_the_append_that_says_so(self, log: EventLog) -> None:
        lease = await _acquired(log, "s", "a")
        await log.append("s", _notes("a"), expected=0, lease=lease, release=True)
        assert (await _acquired(log, "s", "b")).epoch > lease.epoch

    @_on_an_empty_log
    async def test_an_append_that_is_refused_gives_no_lease_back(self, log: EventLog) -> None:
        lease = await _acquired(log, "s", "a")
        with pytest.raises(ConflictError):
            await log.append("s", _notes("a"), expected=7, lease=lease, release=True)
        assert await log.acquire("s", owner="b", seconds=_LONG) is None

    @_on_an_empty_log
    async def test_a_released_lease_is_free(self, log: EventLog) -> None:
        lease = await _acquired(log, "s", "a")
        await log.release(lease)
        assert (await _acquired(log, "s", "b")).epoch > lease.epoch

    @_on_an_empty_log
    async def test_a_lost_lease_gives_nothing_back(self, log: EventLog) -> None:
        lost = await _acquired(log, "s", "a", _OVER)
        await _acquired(log, "s", "b")
        await log.release(lost)
        assert await log.acquire("s", owner="c", seconds=_LONG) is None

    @_on_an_empty_log
    async def test_expired_are_the_leases_that_ran_out_and_were_not_given_back(self, log: EventLog) -> None:
        await _acquired(log, "held", "a")
        await _acquired(log, "over", "a", _OVER)
        await _acquired(log, "over too", "a", _OVER)
        await log.release(await _acquired(log, "released", "a", _OVER))
        lease = await _acquired(log, "ended", "a", _OVER)
        await log.append("ended", _notes("a"), expected=0, lease=lease, release=True)
        await log.append("never", _notes("a"), expected=0)
        assert await _expired(log) == ["over", "over too"]

    @_on_an_empty_log
    async def test_a_lease_for_no_time_at_all_has_run_out_also_after_the_append_under_it(
        self, log: EventLog
    ) -> None:
        lease = await _acquired(log, "s", "a", _OVER)
        await log.append("s", _notes("a"), expected=0, lease=lease)
        assert await _expired(log) == ["s"]
        await _acquired(log, "s", "b")

    @_on_an_empty_log
    async def test_a_lease_taken_over_is_no_longer_expired(self, log: EventLog) -> None:
        await _acquired(log, "s", "a", _OVER)
        await _acquired(log, "s", "b")
        assert await _expired(log) == []

    # -- following

    @_on_an_empty_log
    async def test_follow_yields_the_past_then_what_is_new(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b"), expected=0)
        following = log.follow("s")
        assert [_data(await anext(following)) for _ in "ab"] == ["a", "b"]
        for n, text in enumerate("cde", start=2):
            coming = asyncio.ensure_future(anext(following))
            await log.append("other", _notes("x"), expected=n - 2)
            await log.append("s", _notes(text), expected=n)
            assert _data(await coming) == text
        await _leave(following)

    @_on_an_empty_log
    async def test_follow_all_yields_the_past_then_what_is_new(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b"), expected=0)
        following = log.follow_all()
        assert [_data(await anext(following)) for _ in "ab"] == ["a", "b"]
        for session in "tuv":
            coming = asyncio.ensure_future(anext(following))
            await log.append(session, _notes(session), expected=0)
            assert _data(await coming) == session
        await _leave(following)

    @_on_an_empty_log
    async def test_following_goes_on_after_a_version_or_a_position(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b"), expected=0)
        middle = await log.append("t", _notes("c"), expected=0)
        await log.append("s", _notes("d", "e"), expected=2)
        assert [_data(record) for record in await _first(3, log.follow("s", after=1))] == ["b", "d", "e"]
        found = await _first(2, log.follow_all(after=middle.position))
        assert [_data(record) for record in found] == ["d", "e"]

    @_on_an_empty_log
    async def test_a_session_can_be_followed_before_it_exists(self, log: EventLog) -> None:
        coming = asyncio.ensure_future(_first(2, log.follow("s")))
        await log.append("t", _notes("x"), expected=0)
        await log.append("s", _notes("a", "b"), expected=0)
        assert [_data(record) for record in await coming] == ["a", "b"]

    @_on_an_empty_log
    async def test_following_a_fork_begins_with_what_it_inherits(self, log: EventLog) -> None:
        await log.append("s", _notes("a", "b", "c"), expected=0)
        await log.fork("s", at=2, into="f")
        await log.append("f", _notes("d"), expected=3)
        assert tuple(await _first(4, log.follow("f"))) == await log.records("f")

    @_on_an_empty_log
    async def test_a_fork_is_news(self, log: EventLog) -> None:
        await log.append("s", _notes("a"), expected=0)
        of_fork, of_all = log.follow("f"), log.follow_all(after=(await _read_all(log))[-1].position)
        coming = [asyncio.ensure_future(anext(following)) for following in (of_fork, of_all)]
        await asyncio.sleep(0)
        await log.fork("s", at=1, into="f")
        assert [(record.session, record.version) for record in await asyncio.gather(*coming)] == [
            ("s", 1),
            ("f", 2),
        ]
        await _leave(of_fork)
        await _leave(of_all)

    @_on_an_empty_log
    async def test_followers_miss_nothing_while_many_write(self, log: EventLog) -> None:
        sessions = ["s0", "s1", "s2"]

        async def write(n: int) -> None:
            for k in range(8):
                await _insist(log, sessions[(n + k) % 3], f"{n}.{k}")

        of_one = asyncio.ensure_future(_first(1, log.follow_all()))
        of_all = asyncio.ensure_future(_first(64, log.follow_all()))
        before = await asyncio.gather(*(write(n) for n in range(8)))
        assert len(before) == 8
        whole = await _read_all(log)
        assert await of_all == whole
        assert await of_one == whole[:1]
        for session in sessions:
            own = [record for record in whole if record.session == session]
            assert await _first(len(own), log.follow(session)) == own
        await _check_whole(log)

    # -- durability, where there is a reopen

    def test_everything_is_there_again(self) -> None:
        async def claim() -> None:
            async with self.open() as log:
                await log.append("s", [_run_started({"x": "\ud800"}), *_notes("a", "\0")], expected=0)
                await log.append("t", _notes("b"), expected=0)
                await log.fork("s", at=2, into="f")
                await log.append("f", [UnknownEvent(tag="future.thing", data={"a": 1})], expected=3)
                before, of_fork = await _everything(log), await log.records("f")
            async with self.reopen() as log:
                assert await _everything(log) == before
                assert await log.records("f") == of_fork
                await _check_whole(log)

        _run(claim())

    def test_a_reopened_log_goes_on_where_it_was(self) -> None:
        async def claim() -> None:
            async with self.open() as log:
                await log.append("s", _notes("a", "b"), expected=0)
            async with self.reopen() as log:
                await _refused(log, "s", expected=0, actual=2)
                await log.append("s", _notes("c"), expected=2)
                await log.fork("s", at=1, into="f")
                await log.append("t", _notes("d"), expected=0)
                await _check_whole(log)

        _run(claim())

    def test_a_duplicate_is_known_in_a_reopened_log(self) -> None:
        async def claim() -> None:
            ids = _ids(2)
            async with self.open() as log:
                first = await log.append("s", _notes("a", "b"), expected=0, ids=ids)
            async with self.reopen() as log:
                again = await log.append("s", _notes("a", "b"), expected=0, ids=ids)
                assert again == Appended(first.version, first.position, True)

        _run(claim())

    def test_leases_and_their_epochs_outlive_the_log_object(self) -> None:
        async def claim() -> None:
            async with self.open() as log:
                held = await _acquired(log, "held", "a")
                lost = await _acquired(log, "over", "a", _OVER)
                back = await _acquired(log, "back", "a")
                await log.release(back)
            async with self.reopen() as log:
                assert await _expired(log) == ["over"]
                assert await log.acquire("held", owner="b", seconds=_LONG) is None
                assert (await _acquired(log, "held", "a")).epoch == held.epoch
                assert (await _acquired(log, "over", "b")).epoch > lost.epoch
                assert (await _acquired(log, "back", "b")).epoch > back.epoch
                with pytest.raises(FencedError):
                    await log.append("over", _notes("a"), expected=0, lease=lost)

        _run(claim())

    # -- everything together

    def test_the_log_behaves_as_plain_lists_would(self) -> None:
        with _driven(self) as opened:

            class OnThisLog(_AgainstLists):
                driven = opened

            run_state_machine_as_test(OnThisLog, settings=settings(_SETTINGS, max_examples=30))


# -- events and their data


def _notes(*texts: str) -> list[Event]:
    return [NoteAdded(name="n", data=text) for text in texts]


def _run_started(*items: JSON) -> RunStarted:
    return RunStarted(run_id="r", agent="a", input=items, limits=Limits())


def _ids(n: int) -> list[UUID]:
    return [uuid4() for _ in range(n)]


def _data(record: Record) -> JSON:
    assert isinstance(record.event, NoteAdded)
    return record.event.data


# -- what is in the log


async def _read(log: EventLog, session: str, *, after: int = 0, until: int | None = None) -> list[Record]:
    return [record async for record in log.read(session, after=after, until=until)]


async def _read_all(log: EventLog, *, after: int = 0, limit: int | None = None) -> list[Record]:
    return [record async for record in log.read_all(after=after, limit=limit)]


async def _heads(log: EventLog) -> list[Head]:
    return [head async for head in log.heads()]


async def _expired(log: EventLog) -> list[str]:
    return sorted([session async for session in log.expired()])


async def _everything(log: EventLog) -> tuple[list[Record], list[Head]]:
    return await _read_all(log), await _heads(log)


async def _first(n: int, following: AsyncIterator[Record]) -> list[Record]:
    """The first n records of somebody who follows, who then leaves."""
    found = [await anext(following) for _ in range(n)]
    await _leave(following)
    return found


async def _leave(following: AsyncIterator[Record]) -> None:
    if isinstance(following, AsyncGenerator):
        await following.aclose()


# -- what is done to the log


async def _insist(log: EventLog, session: str, text: str) -> Appended:
    """Append after whatever the others appended."""
    expected = 0
    while True:
        try:
            return await log.append(session, _notes(text), expected=expected)
        except ConflictError as conflict:
            expected = conflict.actual


async def _refused(
    log: EventLog,
    session: str,
    *texts: str,
    expected: int,
    actual: int,
    ids: Sequence[UUID] | None = None,
) -> None:
    """Hold an append to be a conflict that stores nothing and says where the session is."""
    before = await _everything(log)
    with pytest.raises(ConflictError) as caught:
        await log.append(session, _notes(*texts or ("refused",)), expected=expected, ids=ids)
    assert caught.value.actual == actual
    assert await _everything(log) == before


async def _acquired(log: EventLog, session: str, owner: str, seconds: float = _LONG) -> Lease:
    lease = await log.acquire(session, owner=owner, seconds=seconds)
    assert lease is not None, f"{owner} did not get the lease on {session}"
    return lease


# -- the chain, checked without the code that made it


def _hash(previous: bytes, record: Record) -> bytes:
    parts = (
        previous,
        record.session.encode("utf-8"),
        str(record.version).encode("ascii"),
        record.event_id.bytes,
        record.digest,
    )
    return sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()


def _check_chain(records: Sequence[Record], *, previous: bytes) -> None:
    for record in records:
        assert record.digest == sha256(record.payload).digest(), (
            f"digest of {record.session}@{record.version}"
        )
        assert record.hash == _hash(previous, record), f"hash of {record.session}@{record.version}"
        previous = record.hash


def _check_positions(records: Sequence[Record]) -> None:
    positions = [0, *(record.position for record in records)]
    assert all(one < two for one, two in pairwise(positions)), positions


async def _check_whole(log: EventLog) -> None:
    """Hold the whole log to be gapless, in order and chained."""
    records = await _read_all(log)
    _check_positions(records)
    sessions: dict[str, list[Record]] = {}
    for record in records:
        sessions.setdefault(record.session, []).append(record)
    for name, own in sessions.items():
        start, previous = 0, bytes(32)
        if isinstance(forked := own[0].event, SessionForked):
            start = forked.at
            previous = (await log.records(forked.parent, after=start - 1, until=start))[0].hash
        assert [record.version for record in own] == [start + n for n in range(1, len(own) + 1)], name
        _check_chain(own, previous=previous)
        assert own == await _read(log, name)
    assert await _heads(log) == [
        Head(name, own[-1].version, own[-1].hash) for name, own in sorted(sessions.items())
    ]


# -- a log that plain functions can use: Hypothesis drives those


class _Driven:
    """One log and one event loop, for a whole property: a log is opened once in a test."""

    def __init__(self, suite: EventLogConformance) -> None:
        self.suite = suite
        self.can_reopen = type(suite).reopen is not EventLogConformance.reopen
        self._names = count()
        self._runner = asyncio.Runner()
        self._context = suite.open()
        self.log = self.run(self._context.__aenter__())

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(work)

    def new_name(self) -> str:
        return f"s{next(self._names)}"

    def store_and_read(self, event: Event) -> Event:
        async def both() -> Event:
            name = self.new_name()
            await self.log.append(name, [event], expected=0)
            (record,) = await self.log.records(name)
            _check_chain([record], previous=bytes(32))
            return record.event

        return self.run(both())

    def reopen(self) -> None:
        self.run(self._context.__aexit__(None, None, None))
        self._context = self.suite.reopen()
        self.log = self.run(self._context.__aenter__())

    def close(self) -> None:
        try:
            self.run(self._context.__aexit__(None, None, None))
        finally:
            self._runner.close()


@contextmanager
def _driven(suite: EventLogConformance) -> Iterator[_Driven]:
    driven = _Driven(suite)
    try:
        yield driven
    finally:
        driven.close()


# -- a log as plain lists


@dataclass
class _Session:
    """A session as a list of what each of its own records holds."""

    rows: list[JSON] = field(default_factory=list)
    first: int = 0
    """How many versions it inherits."""
    parent: str = ""

    @property
    def version(self) -> int:
        return self.first + len(self.rows)


@dataclass
class _Holding:
    """The lease of a session."""

    lease: Lease
    seconds: float
    given_back: bool = False

    @property
    def is_free(self) -> bool:
        return self.given_back or self.seconds == _OVER


@dataclass
class _Batch:
    """An append that was stored."""

    session: str
    events: list[Event]
    expected: int
    ids: list[UUID]
    answer: Appended


_names = st.sampled_from(["a", "b", "c"])
_batches = st.lists(_texts, min_size=1, max_size=3)
_some = st.integers(0, 1 << 16)
"""Picks one of whatever there is."""


class _AgainstLists(RuleBasedStateMachine):
    """Every operation in any order, held against plain lists."""

    driven: ClassVar[_Driven]

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"{self.driven.new_name()}/"  # the log is not empty: other examples were here
        self.sessions: dict[str, _Session] = {}
        self.order: list[tuple[str, int]] = []
        self.batches: list[_Batch] = []
        self.leases: dict[str, _Holding] = {}
        self.lost: list[Lease] = []
        self.start = max((r.position for r in self.run(_read_all(self.log))), default=0)

    @property
    def log(self) -> EventLog:
        return self.driven.log

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.driven.run(work)

    def version(self, session: str) -> int:
        return self.sessions[session].version if session in self.sessions else 0

    def append(self, session: str, texts: list[str], *, lease: Lease | None, release: bool) -> None:
        ids, events, expected = _ids(len(texts)), _notes(*texts), self.version(session)
        answer = self.run(
            self.log.append(session, events, expected=expected, ids=ids, lease=lease, release=release)
        )
        assert (answer.version, answer.duplicate) == (expected + len(texts), False)
        self.sessions.setdefault(session, _Session()).rows += texts
        self.order += [(session, expected + n) for n in range(1, len(texts) + 1)]
        self.batches.append(_Batch(session, events, expected, ids, answer))

    def conflicts(self, session: str, events: list[Event], expected: int, ids: list[UUID]) -> None:
        with pytest.raises(ConflictError) as caught:
            self.run(self.log.append(session, events, expected=expected, ids=ids))
        assert caught.value.actual == self.version(session)

    def whole(self, session: str) -> list[JSON]:
        """What `records` must hold."""
        if (stored := self.sessions.get(session)) is None:
            return []
        inherited = self.whole(stored.parent)[: stored.first] if stored.parent else []
        return inherited + stored.rows

    @rule(name=_names, texts=_batches)
    def is_appended_to(self, name: str, texts: list[str]) -> None:
        self.append(self.prefix + name, texts, lease=None, release=False)

    @rule(name=_names, texts=_batches, off=st.integers(-3, 3).filter(bool))
    def is_appended_to_elsewhere(self, name: str, texts: list[str], off: int) -> None:
        session = self.prefix + name
        expected = self.version(session) + off
        if expected >= 0:
            self.conflicts(session, _notes(*texts), expected, _ids(len(texts)))

    @precondition(lambda self: self.batches)
    @rule(which=_some)
    def is_given_the_same_batch(self, which: int) -> None:
        batch = self.batches[which % len(self.batches)]
        answer = self.run(
            self.log.append(batch.session, batch.events, expected=batch.expected, ids=batch.ids)
        )
        assert answer == Appended(batch.answer.version, batch.answer.position, True)

    @precondition(lambda self: self.batches)
    @rule(which=_some)
    def is_given_almost_the_same_batch(self, which: int) -> None:
        batch = self.batches[which % len(self.batches)]
        events, ids = batch.events, batch.ids
        changed = [*events[:-1], NoteAdded(name="n", data="something else")]
        self.conflicts(batch.session, changed, batch.expected, ids)
        self.conflicts(batch.session, events, batch.expected, [*ids[:-1], uuid4()])
        self.conflicts(batch.session, [*events, *_notes("more")], batch.expected, [*ids, uuid4()])

    @precondition(lambda self: self.sessions)
    @rule(which=_some, at=_some)
    def is_forked(self, which: int, at: int) -> None:
        session = sorted(self.sessions)[which % len(self.sessions)]
        at = at % self.version(session) + 1
        into = self.prefix + self.driven.new_name()
        head = self.run(self.log.fork(session, at=at, into=into))
        assert (head.session, head.version) == (into, at + 1)
        self.sessions[into] = _Session([(session, at)], at, session)
        self.order.append((into, at + 1))

    @precondition(lambda self: self.sessions)
    @rule(which=_some, texts=_batches)
    def is_appended_to_wherever_it_stands(self, which: int, texts: list[str]) -> None:
        self.append(
            sorted(self.sessions)[which % len(self.sessions)], texts, lease=None, release=False
        )  # forks too

    @rule(name=_names, owner=st.sampled_from("xy"), seconds=st.sampled_from([_OVER, _LONG]))
    def is_leased(self, name: str, owner: str, seconds: float) -> None:
        session = self.prefix + name
        lease = self.run(self.log.acquire(session, owner=owner, seconds=seconds))
        held = self.leases.get(session)
        if held is None or held.given_back or (held.is_free and held.lease.owner != owner):
            assert lease is not None
            if held is not None:
                assert lease.epoch > held.lease.epoch
                self.lost.append(held.lease)
        elif held.lease.owner == owner:
            assert lease is not None
            assert lease.epoch == held.lease.epoch
        else:
            assert lease is None
            return
        self.leases[session] = _Holding(lease, seconds)

    @rule(name=_names, texts=_batches, release=st.booleans())
    def is_appended_to_under_a_lease(self, name: str, texts: list[str], release: bool) -> None:
        session = self.prefix + name
        held = self.leases.get(session)
        if held is not None and not held.given_back:
            self.append(session, texts, lease=held.lease, release=release)
            held.given_back = release

    @precondition(lambda self: self.lost)
    @rule(which=_some, texts=_batches, off=st.integers(-1, 1))
    def is_appended_to_under_a_lost_lease(self, which: int, texts: list[str], off: int) -> None:
        lost = self.lost[which % len(self.lost)]
        expected = max(0, self.version(lost.session) + off)
        with pytest.raises(FencedError):
            self.run(self.log.append(lost.session, _notes(*texts), expected=expected, lease=lost))

    @rule(name=_names)
    def is_released(self, name: str) -> None:
        if (held := self.leases.get(self.prefix + name)) is not None:
            self.run(self.log.release(held.lease))
            held.given_back = True

    @precondition(lambda self: self.lost)
    @rule(which=_some)
    def is_released_by_somebody_who_lost_it(self, which: int) -> None:
        self.run(self.log.release(self.lost[which % len(self.lost)]))

    @precondition(lambda self: self.sessions)
    @rule(which=_some, after=st.integers(0, 12), until=st.none() | st.integers(0, 12))
    def is_read(self, which: int, after: int, until: int | None) -> None:
        session = sorted(self.sessions)[which % len(self.sessions)]
        records = self.run(self.log.records(session, after=after, until=until))
        assert [_held(record) for record in records] == self.whole(session)[after:until]

    @rule()
    def is_looked_through(self) -> None:
        records = self.run(_read_all(self.log, after=self.start))
        assert [(record.session, record.version) for record in records] == self.order
        _check_positions(records)
        heads = [head for head in self.run(_heads(self.log)) if head.session.startswith(self.prefix)]
        assert {head.session: head.version for head in heads} == {
            name: stored.version for name, stored in self.sessions.items()
        }
        assert [s for s in self.run(_expired(self.log)) if s.startswith(self.prefix)] == sorted(
            name for name, held in self.leases.items() if held.is_free and not held.given_back
        )

    @precondition(lambda self: self.driven.can_reopen)
    @rule()
    def is_reopened(self) -> None:
        self.driven.reopen()

    def teardown(self) -> None:
        self.is_looked_through()
        hashes: dict[tuple[str, int], bytes] = {}
        for session, stored in self.sessions.items():  # a parent stands before its forks
            records = self.run(self.log.records(session))
            assert [_held(record) for record in records] == self.whole(session)
            _check_chain(
                records[stored.first :],
                previous=hashes[stored.parent, stored.first] if stored.parent else bytes(32),
            )
            hashes |= {(session, record.version): record.hash for record in records}


def _held(record: Record) -> JSON:
    if isinstance(record.event, SessionForked):
        return (record.event.parent, record.event.at)
    return _data(record)


__all__ = ["EventLogConformance"]
