"""Model calls and what they cost."""

from collections.abc import Callable

from batonlog.events import ModelFailed, ModelRequested, ModelResponded, Record, Usage
from batonlog.projections import timeline, usage

Log = Callable[..., tuple[Record, ...]]


def test_every_model_call_is_a_turn_of_its_run(log: Log) -> None:
    records = log(
        "start a",
        "ask a",
        "answer c",
        "hand 3.0 a b",
        "ask b",
        "answer m",
        "complete 6.0",
        "start b",
        "ask b",
    )
    assert [(t.run_id, t.agent, t.requested, t.responded) for t in timeline(records)] == [
        ("run 1", "a", 2, 3),
        ("run 1", "b", 5, 6),
        ("run 8", "b", 9, None),
    ]


def test_a_failed_attempt_is_a_turn_without_an_answer_and_with_its_cost(log: Log) -> None:
    failed, answered = timeline(log("start a", "ask a", "break chain again", "ask a", "answer m"))
    assert (failed.responded, failed.usage) == (None, Usage(requests=1))
    assert (answered.responded, answered.usage) == (5, Usage(requests=1, total_tokens=10))


def test_the_timeline_is_as_of_a_version(log: Log) -> None:
    records = log("start a", "ask a", "answer m", "complete 3.0")
    assert [len(timeline(records, at=n)) for n in (1, 2, 3)] == [0, 1, 1]
    assert timeline(records, at=2)[0].responded is None


def test_a_failure_without_usage_costs_nothing(log: Log) -> None:
    failed = ModelFailed(request=2, kind="x", message="")
    assert timeline(log("start a", "ask a", failed))[0].usage == Usage()
    assert usage(log("start a", "ask a", failed)) == {}


def test_usage_is_by_agent_and_model(log: Log) -> None:
    records = log("start a", "ask a", "answer c", "hand 3.0 a b", "ask b", "answer m", "ask b", "answer m")
    assert usage(records) == {
        ("a", "model"): Usage(requests=1, total_tokens=10),
        ("b", "model"): Usage(requests=2, total_tokens=20),
    }


def test_usage_counts_failed_attempts(log: Log) -> None:
    records = log("start a", "ask a", "break chain again", "ask a", "answer m")
    assert usage(records)[("a", "model")].requests == 2


def test_usage_is_as_of_a_version(log: Log) -> None:
    records = log("start a", "ask a", "answer m", "ask a", "answer m")
    assert usage(records, at=3)[("a", "model")].requests == 1


def test_one_agent_on_two_models_is_told_apart(log: Log) -> None:
    asked = ModelRequested(turn=1, agent="a", parts=(), issuer=("x", "small"), wire=1, digest=b"")
    answered = ModelResponded(request=2, output=(), usage=Usage(requests=1))
    assert set(usage(log("start a", asked, answered, "ask a", "answer m"))) == {
        ("a", "small"),
        ("a", "model"),
    }


def test_without_records_there_are_no_turns() -> None:
    assert timeline([]) == ()
    assert usage([]) == {}
