"""What came of the latest run, by the log alone."""

from collections.abc import Callable

import pytest
from msgspec import Struct

from batonlog.events import Record, Ref, UnknownSessionError, Usage, UsageError
from batonlog.projections import run_result

Log = Callable[..., tuple[Record, ...]]

CALLS = ("start a", "resolve a", "ask a", "answer c c c")
"""Calls 4.0 to 4.2."""


@pytest.mark.parametrize(
    ("lines", "status", "reason"),
    [
        (["start a"], "running", ""),
        (["start a", "ask a"], "running", ""),
        (["start a", "ask a", "answer m", "complete 3.0"], "completed", ""),
        (["start a", "fail Broken"], "failed", "broken"),
        (["start a", "cancel"], "cancelled", "changed my mind"),
        (["start a", "pause approval"], "paused", "approval"),
        (["start a", "pause limit turns: 10 of 10"], "paused", "turns: 10 of 10"),
        (["start a", "fail Broken", "resume"], "running", ""),
        (["start a", "fork"], "paused", "forked"),
    ],
)
def test_a_result_says_how_its_run_stands(log: Log, lines: list[str], status: str, reason: str) -> None:
    result = run_result(log(*lines))
    assert (result.status, result.reason) == (status, reason)


def test_a_result_names_its_run_and_its_records(log: Log) -> None:
    records = log("start a", "complete", "note n v", "start a", "complete", "note n v", session="cust-42")
    result = run_result(records)
    assert (result.session, result.run_id, result.after, result.version) == ("cust-42", "run 4", 3, 5)
    assert [record.type for record in records[result.after : result.version]] == [
        "run.started",
        "run.completed",
    ]


def test_a_result_is_as_of_a_version(log: Log) -> None:
    records = log("start a", "ask a", "answer m", "complete 3.0", "start a", "fail x")
    assert [run_result(records, at=n).status for n in (1, 4, 5, 6)] == [
        "running",
        "completed",
        "running",
        "failed",
    ]
    assert run_result(records, at=4).final_output == "message 3.0"


def test_a_result_says_who_holds_control(log: Log) -> None:
    assert run_result(log("start a", "ask a", "answer c", "hand 3.0 a b")).agent == "b"


def test_usage_is_of_the_latest_run_alone(log: Log) -> None:
    records = log("start a", "ask a", "answer m", "complete 3.0", "start a", "ask a", "answer m")
    assert run_result(records).usage == Usage(requests=1, total_tokens=10)


def test_a_session_without_a_run_has_a_result_that_says_so(log: Log) -> None:
    result = run_result(log("queue"))
    assert (result.run_id, result.status, result.agent, result.after, result.version) == (
        "",
        "completed",
        "",
        0,
        1,
    )


def test_without_records_there_is_no_session() -> None:
    with pytest.raises(UnknownSessionError, match="no records"):
        run_result([])


# -- the answer


def test_the_final_output_is_the_answers_text(log: Log) -> None:
    assert run_result(log("start a", "ask a", "answer m=hello", "complete 3.0")).final_output == "hello"


def test_an_empty_answer_is_an_empty_text(log: Log) -> None:
    assert run_result(log("start a", "ask a", "answer r", "complete")).final_output == ""


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("fail Broken", "failed: broken"),
        ("cancel", "cancelled: changed my mind"),
        ("pause approval", "paused: approval"),
    ],
)
def test_a_run_that_did_not_complete_has_no_answer(log: Log, end: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"run 1 of s is {says}; it has no answer") as caught:
        run_result(log("start a", end)).final_output  # noqa: B018  # a property that raises
    assert (caught.value.session, caught.value.version) == ("s", 2)


def test_an_answer_of_an_older_run_is_not_that_of_a_new_one(log: Log) -> None:
    records = log("start a", "ask a", "answer m", "complete 3.0", "start a", "ask a", "answer r", "complete")
    assert run_result(records).final_output == ""


class Decision(Struct):
    approve: bool


def test_an_answer_is_decoded_to_the_type_that_is_asked_for(log: Log) -> None:
    result = run_result(log("start a", "ask a", 'answer m={"approve":true}', "complete 3.0"))
    assert result.final_output_as(Decision) == Decision(approve=True)
    assert result.final_output_as(dict) == {"approve": True}
    assert result.final_output_as(str) == '{"approve":true}'


@pytest.mark.parametrize("text", ["yes", '{"approve":1}', ""])
def test_an_answer_that_is_not_of_the_type_says_why(log: Log, text: str) -> None:
    result = run_result(log("start a", "ask a", f"answer m={text}", "complete 3.0"))
    with pytest.raises(UsageError, match="the answer of s is no Decision"):
        result.final_output_as(Decision)


# -- open calls


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ([], []),
        (["call 4.0"], ["running"]),
        (["call 4.0", "resume"], ["unknown"]),
        (["call 4.0", "resume", "gate 4.0 unknown"], ["unknown"]),
        (["gate 4.0"], ["approval"]),
        (["gate 4.0 external"], ["external"]),
        (["gate 4.0", "approve 4.0"], []),
        (["gate 4.0", "gate 4.1 external", "call 4.2"], ["approval", "external", "running"]),
        (["call 4.0", "return 4.0"], []),
    ],
)
def test_open_calls_are_those_that_somebody_has_to_settle(log: Log, more: list[str], why: list[str]) -> None:
    assert [call.why for call in run_result(log(*CALLS, *more)).open_calls] == why


def test_an_open_call_says_what_is_asked(log: Log) -> None:
    (call,) = run_result(log(*CALLS, "gate 4.1")).open_calls
    assert (call.call, call.agent, call.tool, call.arguments, call.reason) == (
        Ref(4, 1),
        "a",
        "look",
        {},
        "needs approval",
    )


def test_a_session_at_rest_has_no_open_calls(log: Log) -> None:
    records = log(*CALLS, "refuse 4.0", "refuse 4.1", "refuse 4.2", "cancel")
    assert run_result(records).open_calls == ()
