"""`explain_rewrite` says of every item what became of it, as the projection has it, and why."""

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from tests.laws.checks import bare, played, views
from tests.laws.conversations import scripts
from tests.laws.depth import examples
from tests.laws.scripts import Script

from batonlog.events import (
    JSON,
    AgentResolved,
    Event,
    GuardrailTripped,
    HandoffFiltered,
    HistoryRewritten,
    Record,
    Ref,
    Rewrite,
    UsageError,
)
from batonlog.projections import Change, Item, explain_rewrite, model_history
from batonlog.projections.explain import explained, refs_in_words, versions_near

Log = Callable[..., tuple[Record, ...]]


def told(changes: Iterable[Change]) -> list[str]:
    """A rewrite in lines, without the reasons of what was kept where it stood."""
    return [f"{change.what} {change.item.ref} {change.reason}".strip() for change in changes]


def rewrite(*operations: JSON, name: str = "f", repairs: Sequence[str] = ()) -> Rewrite:
    return Rewrite(filter=name, parameters={}, operations=operations, repairs=tuple(repairs))


def manual(*operations: JSON) -> Event:
    return HistoryRewritten(cause="manual", rewrite=rewrite(*operations))


def message(text: str) -> JSON:
    return {"role": "user", "content": text}


TALK = ("start a u u u", "ask a", "answer m", "complete 3.0")
"""Leaves the view 1.0 1.1 1.2 3.0, and the next version is 5."""


# -- laws


def checked(records: Sequence[Record], at: int, before: Sequence[Item], after: Sequence[Item]) -> None:
    """What is said of a rewrite is whole, and agrees with the views."""
    changes = explain_rewrite(records, at=at)
    left = [change for change in changes if change.what != "dropped"]
    assert [bare(change.item) for change in left] == [bare(item) for item in after]
    kept = [change.item for change in changes if change.what == "kept"]
    dropped = [change.item for change in changes if change.what == "dropped"]
    assert [item.ref for item in kept] == [item.ref for item in after if item in list(before)]
    refs = [item.ref for item in (*kept, *dropped)]
    assert len(refs) == len(set(refs))
    edited = [item for item in before if item.ref not in refs]
    assert len(edited) == sum(change.what == "edited" for change in changes)
    assert {item.ref for item in (*kept, *dropped, *edited)} == {item.ref for item in before}
    stood = {item.ref: n for n, item in enumerate(before)}
    places = [stood[change.item.ref] for change in changes if change.what == "dropped"]
    assert places == sorted(places)
    assert all(change.reason for change in changes if change.what != "kept")


@examples(60)
@given(scripts)
def test_every_item_of_both_views_is_told_once_and_what_is_told_leads_to_the_view(script: Script) -> None:
    _, records = played(script)
    states = views(records)
    found = list(explained(records))
    assert [one.version for one in found] == [
        record.version
        for record in records
        if isinstance(record.event, HandoffFiltered | HistoryRewritten)
        or (isinstance(record.event, GuardrailTripped) and record.event.rewrite is not None)
    ]
    for one in found:
        if one.effective is None:
            assert explain_rewrite(records, at=one.version) == ()
            continue
        checked(records, one.version, one.before, states[one.effective - 1].settled)
        assert explain_rewrite(records, at=one.version) == explain_rewrite(records, at=one.effective)


@examples(8)
@given(scripts)
def test_where_nothing_was_rewritten_it_says_so(script: Script) -> None:
    _, records = played(script)
    rewriting = {version for one in explained(records) for version in (one.version, one.effective)}
    for record in records:
        if record.version not in rewriting:
            with pytest.raises(UsageError, match="rewrites nothing"):
                explain_rewrite(records, at=record.version)


@examples(20)
@given(scripts)
def test_what_a_rewrite_did_is_the_same_whatever_came_after_it(script: Script) -> None:
    _, records = played(script)
    for one in explained(records):
        if one.effective is not None:
            assert explain_rewrite(records[: one.effective], at=one.version) == tuple(one.changes())


# -- what is said


def test_what_is_left_out_stands_where_it_stood(log: Log) -> None:
    records = log(*TALK, manual(["take", 0, 1], ["take", 2, 3]))

    assert told(explain_rewrite(records, at=5)) == ["kept 1.0", "dropped 1.1 f", "kept 1.2", "dropped 3.0 f"]


def test_what_is_put_in_comes_after_what_is_gone_from_there(log: Log) -> None:
    records = log(*TALK, manual(["take", 0, 1], ["put", message("new")], ["take", 3, 4]))

    assert told(explain_rewrite(records, at=5)) == [
        "kept 1.0",
        "dropped 1.1 f",
        "dropped 1.2 f",
        "inserted 5.0 f: made anew",
        "kept 3.0",
    ]


def test_what_was_moved_is_kept_and_says_so(log: Log) -> None:
    records = log(*TALK, manual(["take", 3, 4], ["take", 0, 3]))

    assert told(explain_rewrite(records, at=5)) == ["kept 3.0 f: moved", "kept 1.0", "kept 1.1", "kept 1.2"]


def test_an_edited_item_stands_for_what_it_was(log: Log) -> None:
    records = log(*TALK, manual(["take", 0, 1], ["put", message("x"), [[1, 1]]], ["take", 2, 4]))

    assert told(explain_rewrite(records, at=5)) == [
        "kept 1.0",
        "edited 5.0 f: was 1.1",
        "kept 1.2",
        "kept 3.0",
    ]


def test_an_item_that_is_edited_again_is_not_dropped(log: Log) -> None:
    edit = ["take", 0, 1], ["put", message("x"), [[1, 1]]], ["take", 2, 4]
    records = log(*TALK, manual(*edit), manual(*edit))

    assert told(explain_rewrite(records, at=6)) == [
        "kept 1.0",
        "edited 6.0 f: was 5.0, of 1.1",
        "kept 1.2",
        "kept 3.0",
    ]


def test_of_two_made_from_one_the_first_is_the_edited_one(log: Log) -> None:
    two = ["put", message("x"), [[1, 0]]], ["put", message("y"), [[1, 0]]]
    records = log(*TALK, manual(*two, ["take", 1, 4]), manual(*two, ["take", 2, 5]))

    assert told(explain_rewrite(records, at=5))[:2] == ["edited 5.0 f: was 1.0", "inserted 5.1 f: from 1.0"]
    assert told(explain_rewrite(records, at=6))[:2] == [
        "edited 6.0 f: was 5.0, of 1.0",
        "edited 6.1 f: was 5.1, of 1.0",
    ]


def test_what_was_made_from_an_item_that_stays_is_no_edit_of_it(log: Log) -> None:
    records = log(*TALK, manual(["take", 0, 4], ["put", message("x"), [[1, 0]]]))

    assert told(explain_rewrite(records, at=5))[-1] == "inserted 5.0 f: from 1.0"


SUMMED = ["put", message("in short"), [[1, 0], [1, 1], [1, 2]]]


def test_what_was_summed_up_is_in_the_summary(log: Log) -> None:
    records = log(*TALK, manual(SUMMED, ["take", 3, 4]))

    assert told(explain_rewrite(records, at=5)) == [
        "dropped 1.0 f: it is in 5.0",
        "dropped 1.1 f: it is in 5.0",
        "dropped 1.2 f: it is in 5.0",
        "inserted 5.0 f: from 1.0–1.2",
        "kept 3.0",
    ]


def test_a_summary_that_is_summed_up_again_is_in_the_new_one(log: Log) -> None:
    again = ["put", message("shorter"), [[1, 0], [1, 1], [1, 2], [3, 0]]]
    records = log(*TALK, manual(SUMMED, ["take", 3, 4]), manual(again))

    assert told(explain_rewrite(records, at=6)) == [
        "dropped 5.0 f: it is in 6.0",
        "dropped 3.0 f: it is in 6.0",
        "inserted 6.0 f: from 1.0–1.2, 3.0",
    ]


def test_a_summary_that_tells_less_says_what_is_gone(log: Log) -> None:
    less = ["put", message("shorter"), [[1, 0], [1, 2]]]
    records = log(*TALK, manual(SUMMED, ["take", 3, 4]), manual(less, ["take", 1, 2]))

    assert told(explain_rewrite(records, at=6)) == ["edited 6.0 f: was 5.0, without 1.1", "kept 3.0"]


def test_of_a_summary_that_is_told_in_part_elsewhere_that_is_said(log: Log) -> None:
    part = ["put", message("x"), [[1, 2], [3, 0]]]
    records = log(*TALK, manual(SUMMED, ["take", 3, 4]), manual(part))

    assert told(explain_rewrite(records, at=6))[0] == "dropped 5.0 f: part of it is in 6.0"


HANDED = (
    "start a u",
    "ask a",
    "answer c c",
    "return 3.0",
)


def handed(*operations: JSON, call: str = "3.1") -> tuple[str | Event, ...]:
    filtered = HandoffFiltered(call=Ref.parse(call), rewrite=rewrite(*operations))
    return (filtered, f"hand {call} a b")


def test_a_handoff_is_told_at_its_filter_event_and_at_the_switch(log: Log) -> None:
    records = log(*HANDED, *handed(["take", 0, 1]))

    assert told(explain_rewrite(records, at=5)) == [
        "kept 1.0",
        "dropped 3.0 f",
        "dropped 3.1 f",
        "dropped 4.0 f",
        "dropped 6.0 f",
    ]
    assert explain_rewrite(records, at=6) == explain_rewrite(records, at=5)


@pytest.mark.parametrize("after", [(), ("note n x",), ("hand 3.0 a b",)], ids=["cut", "other", "other call"])
def test_a_handoff_that_was_not_made_has_changed_nothing(log: Log, after: Sequence[str]) -> None:
    records = log(*HANDED, handed(["take", 0, 1])[0], *after)

    assert explain_rewrite(records, at=5) == ()


def test_what_control_comes_back_to_is_brought_back_from_an_older_view(log: Log) -> None:
    records = log(
        *HANDED,
        *handed(["put", message("in short"), [[1, 0], [3, 0], [3, 1], [4, 0]]]),
        "ask b",
        "answer m c",
        HandoffFiltered(call=Ref(8, 1), rewrite=rewrite(["take", 0, 3, 6], ["take", 1, 4], name="own_view")),
        "hand 8.1 b a",
    )

    assert told(explain_rewrite(records, at=9)) == [
        "dropped 5.0 own_view: 1.0, 3.0–3.1 stand there again",
        "inserted 1.0 own_view: brought back from version 6",
        "inserted 3.0 own_view: brought back from version 6",
        "inserted 3.1 own_view: brought back from version 6",
        "kept 8.0",
        "kept 8.1",
        "kept 10.0",
    ]


def test_what_stands_for_what_is_brought_back_makes_way_for_it(log: Log) -> None:
    records = log(
        *TALK,
        HistoryRewritten(cause="compaction", rewrite=rewrite(["put", message("x"), [[1, 0]]])),
        HistoryRewritten(cause="compaction", rewrite=rewrite(["take", 0, 2, 5])),
    )

    assert told(explain_rewrite(records, at=6)) == [
        "dropped 5.0 f: 1.0 stands there again",
        "inserted 1.0 f: brought back from version 5",
        "inserted 1.1 f: brought back from version 5",
    ]


TRANSFER: JSON = {
    "name": "look",
    "kind": "handoff",
    "tool": {"type": "function", "name": "look", "parameters": {}},
}


def test_a_transfer_that_was_not_taken_is_told_as_one(log: Log) -> None:
    records = log(
        "start a u",
        AgentResolved(agent="a", instructions="", offered=(TRANSFER,), settings={}),
        "ask a",
        "answer c c",
        "refuse 4.1",
        HandoffFiltered(
            call=Ref(4, 0),
            rewrite=rewrite(["take", 0, 2], ["take", 3, 4], name="drop_untaken_transfers"),
        ),
        "hand 4.0 a b",
    )

    assert told(explain_rewrite(records, at=6)) == [
        "kept 1.0",
        "kept 4.0",
        "dropped 4.1 drop_untaken_transfers: a transfer that was not taken",
        "kept 7.0",
        "dropped 5.0 drop_untaken_transfers: the answer to a transfer that was not taken",
    ]


def test_a_repair_tells_what_a_provider_would_have_refused(log: Log) -> None:
    output = {"type": "function_call_output", "call_id": "call_3_0", "output": "none"}
    repairs = [
        "call_without_output: function_call 3.0 has no output",
        "output_without_call: function_call_output 5.0 answers no call before it",
    ]
    records = log(
        "start a u",
        "ask a",
        "answer c r",
        HistoryRewritten(
            cause="repair",
            rewrite=rewrite(["take", 0, 2], ["put", output, [[3, 0]]], name="repair", repairs=repairs[:1]),
        ),
    )

    assert told(explain_rewrite(records, at=4)) == [
        "kept 1.0",
        "kept 3.0",
        "dropped 3.1 what followed it was left out",
        "repaired 4.0 made up: function_call 3.0 has no output",
    ]


def test_a_guardrail_tells_what_it_withheld_and_what_stands_for_it(log: Log) -> None:
    tripped = GuardrailTripped(
        stage="output",
        name="no_secrets",
        reason="a key",
        replacement={"type": "message", "role": "assistant", "content": "I cannot say."},
        rewrite=rewrite(["take", 0, 1], ["take", 2, 3], name=""),
    )
    records = log("start a u", "ask a", "answer m", tripped)

    assert told(explain_rewrite(records, at=4)) == [
        "kept 1.0",
        "dropped 3.0 guardrail no_secrets: a key",
        "inserted 4.0 guardrail no_secrets: its replacement",
    ]


def test_a_guardrail_that_only_says_so_rewrites_nothing(log: Log) -> None:
    tripped = GuardrailTripped(stage="input", name="g", reason="r", replacement=None, rewrite=None)

    with pytest.raises(UsageError, match=r"guardrail\.tripped at version 2, which rewrites nothing"):
        explain_rewrite(log("start a u", tripped), at=2)


# -- wrong input


def test_a_version_without_a_rewrite_is_an_error_that_names_the_nearest(log: Log) -> None:
    records = log(*TALK, *(manual(["take", 0, 3]) for _ in range(9)))

    with pytest.raises(UsageError) as caught:
        explain_rewrite(records, at=3)
    assert str(caught.value) == (
        "s has model.responded at version 3, which rewrites nothing; "
        "its rewrites are at 5, 6, 7, 8, 9 and 10, among others"
    )
    assert (caught.value.session, caught.value.version) == ("s", 3)


def test_where_there_is_no_rewrite_at_all_that_is_said(log: Log) -> None:
    with pytest.raises(UsageError, match="nothing was ever rewritten in it"):
        explain_rewrite(log(*TALK), at=3)


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (6, "s is at version 4; there is no version 6; nothing was ever rewritten in it"),
        (0, "there is no version 0 in these records: give the whole session"),
        (-1, "there is no version -1 in these records"),
    ],
)
def test_a_version_that_is_not_there_is_an_error(log: Log, at: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        explain_rewrite(log(*TALK), at=at)


def test_without_records_there_is_no_version() -> None:
    with pytest.raises(UsageError, match="there is no version 1"):
        explain_rewrite([], at=1)


def test_records_may_come_from_anywhere_once(log: Log) -> None:
    records = log(*TALK, manual(["take", 0, 1]))

    assert explain_rewrite(iter(records), at=5) == explain_rewrite(records, at=5)


@pytest.mark.parametrize(
    "operation",
    [
        ["take", 2, 99],
        ["take", 9, 12],
        ["take", 0, 1, 77],
        ["take"],
        ["other", 1],
        [],
        ["put", message("x"), [[9, 9]]],
    ],
    ids=str,
)
def test_what_cannot_be_applied_is_told_as_the_view_has_it(log: Log, operation: JSON) -> None:
    records = log(*TALK, manual(["take", 0, 1], operation))
    left = [change.item for change in explain_rewrite(records, at=5) if change.what != "dropped"]

    assert left == list(model_history(records))


# -- words


@pytest.mark.parametrize(
    ("refs", "words"),
    [
        ("3.0", "3.0"),
        ("3.0 5.0 5.1 5.2 7.1", "3.0, 5.0–5.2, 7.1"),
        ("5.1 5.0 5.1", "5.0–5.1"),
        ("1.0 3.0 5.0 7.0 9.0 11.0", "1.0, 3.0, 5.0, 7.0, 9.0, 11.0"),
        ("1.0 3.0 5.0 5.1 7.0 9.0 11.0 13.0", "1.0, 3.0, 5.0–5.1, 7.0, …, 13.0 (8 items)"),
        ("", ""),
    ],
)
def test_refs_are_said_compactly(refs: str, words: str) -> None:
    assert refs_in_words(map(Ref.parse, refs.split())) == words


def test_the_nearest_versions_are_named() -> None:
    assert versions_near([4], 9) == "4"
    assert versions_near([4, 9], 9) == "4 and 9"
    assert versions_near(range(1, 100), 50) == "47, 48, 49, 50, 51 and 52, among others"
