"""The server chain: what the provider holds, and what breaks it for good."""

from collections.abc import Callable

import pytest

from batonlog.events import Event, EventRedacted, ModelRequested, ModelResponded, Record, Ref, Usage
from batonlog.projections import server_chain

Log = Callable[..., tuple[Record, ...]]


def test_a_stored_response_holds_all_that_was_shown_and_said(log: Log) -> None:
    chain = server_chain(log("start a", "ask a", "answer r m"))
    assert chain is not None
    assert chain.response_id == "resp_3"
    assert chain.held == (Ref(1, 0), Ref(3, 0), Ref(3, 1))


def test_what_comes_after_is_not_held_yet(log: Log) -> None:
    chain = server_chain(log("start a", "ask a", "answer c", "return 3.0"))
    assert chain is not None
    assert len(chain.held) == 2


def test_each_response_that_continues_holds_more(log: Log) -> None:
    records = log("start a", "ask a", "answer c", "return 3.0", "ask a resp_3", "answer m")
    assert [chain and len(chain.held) for chain in (server_chain(records, at=n) for n in range(1, 7))] == [
        None,
        None,
        2,
        2,
        2,
        4,
    ]


def test_without_records_nothing_is_held() -> None:
    assert server_chain([]) is None


@pytest.mark.parametrize(
    "breaks",
    [
        ["rewrite: take 0 1"],
        ["filter 3.0: take 0 1", "hand 3.0 a b"],
        ["refuse 3.0", "ask a"],
        ["refuse 3.0", "ask a resp_3", "break chain again"],
        ["refuse 3.0", "ask a resp_9"],
    ],
    ids=["rewrite", "filtered handoff", "request in full", "lost", "another response"],
)
def test_the_chain_is_broken_by(log: Log, breaks: list[str]) -> None:
    assert server_chain(log("start a", "ask a", "answer c", *breaks)) is None


@pytest.mark.parametrize(
    "keeps",
    [
        ["hand 3.0 a b"],
        ["refuse 3.0", "ask a resp_3", "break RuntimeError"],
        ["refuse 3.0", "cancel"],
        ["call 3.0", "resume"],
        ["fork"],
        ["send"],
    ],
    ids=["handoff without filter", "failure", "cancel", "recovery", "fork", "input"],
)
def test_the_chain_survives(log: Log, keeps: list[str]) -> None:
    chain = server_chain(log("start a", "ask a", "answer c", *keeps))
    assert chain is not None
    assert chain.response_id == "resp_3"


def test_after_a_break_the_next_stored_response_begins_a_new_chain(log: Log) -> None:
    chain = server_chain(log("start a", "ask a", "answer m", "rewrite: take 1 2", "ask a", "answer m"))
    assert chain is not None
    assert chain.held == (Ref(3, 0), Ref(6, 0))


def test_an_erasure_while_a_request_is_open_breaks_what_is_sent(log: Log) -> None:
    assert server_chain(log("start a", "ask a", ERASED, ANSWERED)) is None


# -- conversations


def asks(conversation: str | None, *, first: int = 0, continues: str | None = None) -> ModelRequested:
    return ModelRequested(
        turn=1,
        agent="a",
        parts=(),
        issuer=("here", "model"),
        previous_response_id=continues,
        conversation=conversation,
        first=first,
        wire=1,
        stored=True,
        digest=b"",
    )


def answers(request: int, *, status: str = "completed", response_id: str | None = "resp") -> ModelResponded:
    return ModelResponded(
        request=request,
        response_id=response_id,
        output=({"type": "message", "role": "assistant", "content": "hi"},),
        usage=Usage(requests=1),
        status=status,
    )


ERASED = EventRedacted(target=1, reason="asked for", digest=b"")
ANSWERED = answers(2)
IN_CONVERSATION: tuple[str | Event, ...] = ("start a", asks("conv_1"), ANSWERED)


def test_an_answer_in_a_conversation_says_what_it_holds(log: Log) -> None:
    chain = server_chain(log(*IN_CONVERSATION))
    assert chain is not None
    assert (chain.conversation, chain.response_id) == ("conv_1", "resp")
    assert chain.held == (Ref(1, 0), Ref(3, 0))


def test_a_conversation_may_be_continued_though_its_response_has_no_id(log: Log) -> None:
    chain = server_chain(log("start a", asks("conv_1"), answers(2, response_id=None)))
    assert chain is not None
    assert (chain.conversation, chain.response_id) == ("conv_1", "")


def test_a_response_outside_of_a_conversation_has_none(log: Log) -> None:
    chain = server_chain(log("start a", "ask a", "answer m"))
    assert chain is not None
    assert chain.conversation is None


def test_while_a_conversation_is_added_to_nobody_knows_what_it_holds(log: Log) -> None:
    records = log(*IN_CONVERSATION, "complete 3.0", "start a", asks("conv_1", first=2), answers(6))
    told = [chain and len(chain.held) for chain in (server_chain(records, at=n) for n in range(1, 8))]
    assert told == [None, None, 2, 2, 2, None, 4]


@pytest.mark.parametrize(
    "breaks",
    [
        ["rewrite: take 0 1"],
        ["fork"],
        [ERASED],
        [asks("conv_2")],
        [asks(None)],
        [asks(None, continues="resp")],
        [asks("conv_1", first=2), "break chain again"],
        [asks("conv_1", first=2), "break RuntimeError"],
        [asks("conv_1", first=2), "break cancelled"],
        [asks("conv_1", first=2), "resume"],
        [asks("conv_1", first=2), "fork"],
        [asks("conv_1", first=2), ERASED, answers(4)],
        [asks("conv_1", first=2), answers(4, status="incomplete")],
    ],
    ids=[
        "rewrite",
        "fork",
        "erasure",
        "another conversation",
        "a request outside of it",
        "a request that continues its response",
        "lost",
        "failure",
        "cancel in flight",
        "recovery in flight",
        "fork in flight",
        "erasure in flight",
        "an answer that was cut off",
    ],
)
def test_a_conversation_is_broken_by(log: Log, breaks: list[str | Event]) -> None:
    assert server_chain(log(*IN_CONVERSATION, *breaks)) is None


@pytest.mark.parametrize(
    "keeps",
    [["complete 3.0"], ["cancel"], ["fail RuntimeError", "resume"], ["pause limit", "resume"], ["send"]],
    ids=["completion", "cancel", "failure of another kind", "recovery", "input"],
)
def test_a_conversation_survives_what_happens_while_nothing_is_added_to_it(
    log: Log, keeps: list[str | Event]
) -> None:
    chain = server_chain(log(*IN_CONVERSATION, *keeps))
    assert chain is not None
    assert chain.conversation == "conv_1"


def test_a_handoff_without_a_filter_keeps_the_conversation(log: Log) -> None:
    begun = (*IN_CONVERSATION, "complete 3.0", "start a", asks("conv_1", first=2))
    chain = server_chain(log(*begun, "answer c", "hand 7.0 a b"))
    assert chain is not None
    assert (chain.conversation, len(chain.held)) == ("conv_1", 4)


def test_a_handoff_with_a_filter_breaks_the_conversation(log: Log) -> None:
    begun = (*IN_CONVERSATION, "complete 3.0", "start a", asks("conv_1", first=2))
    assert server_chain(log(*begun, "answer c", "filter 7.0: take 0 1", "hand 7.0 a b")) is None
