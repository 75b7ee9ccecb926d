"""The server chain: what the provider holds, and what breaks it for good."""

from collections.abc import Callable

import pytest

from batonlog.events import Record, Ref
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
