"""The demo: the scenario itself, through the real client, and what the command shows of it."""

import asyncio
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine.demo import Played, play, script
from batonlog.events import RunStarted, SQLiteLog, UsageError
from batonlog.events.values import load
from batonlog.projections import check_legal, model_history, model_request, session_history

Batonlog = Callable[..., Any]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return asyncio.run(play(tmp_path_factory.mktemp("demo") / "demo.db"))


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return asyncio.run(play(tmp_path_factory.mktemp("demo") / "demo.db", chain=True))


def test_the_session_keeps_everything(played: Played) -> None:
    calls = [item.data["name"] for item in session_history(played.records) if item.type == "function_call"]

    assert [name for name in calls if not name.startswith("transfer")] == [
        "get_user_profile",
        "get_order",
        "check_policy",
        "issue_refund",
    ]


def test_the_specialist_is_shown_the_messages_only(played: Played) -> None:
    at = played.first_of_target()
    assert at is not None
    shown = model_request(played.records, at=at).input

    assert [(item.type, item.role) for item in shown] == [("message", "user"), ("message", "assistant")]
    assert len(session_history(played.records, at=at)) > len(shown)


def test_the_look_ups_are_started_together(played: Played) -> None:
    types = [record.type for record in played.records]
    first = types.index("tool.called")

    assert types[first : first + 4] == ["tool.called", "tool.called", "tool.returned", "tool.returned"]


def test_every_request_can_be_rebuilt_from_the_log_as_the_server_received_it(
    played: Played, chained: Played
) -> None:
    for one in (played, chained):
        assert len(one.received) == 5
        assert all(one.reached_server(at) for at, _ in one.requests())


def test_what_the_model_is_shown_is_legal(played: Played) -> None:
    assert all(not check_legal(model_history(played.records, at=at)) for at, _ in played.requests())


def test_the_chain_is_dropped_at_the_handoff_and_nowhere_else(chained: Played) -> None:
    continued = [requested.previous_response_id is not None for _, requested in chained.requests()]

    assert continued == [False, True, False, True, True]
    assert [body.get("previous_response_id") for body in chained.received] == [
        None,
        "resp_1",
        None,
        "resp_3",
        "resp_4",
    ]


def test_after_the_handoff_the_whole_filtered_view_is_sent(chained: Played) -> None:
    at = chained.first_of_target()
    assert at is not None

    assert len(chained.received[2]["input"]) == len(model_history(chained.records, at=at)) == 2


def test_with_and_without_a_chain_both_histories_are_the_same(played: Played, chained: Played) -> None:
    def texts(one: Played) -> list[list[str]]:
        return [[item.text for item in history(one.records)] for history in (session_history, model_history)]

    assert texts(played) == texts(chained)


# -- the command


def test_both_histories_are_shown_side_by_side(batonlog: Batonlog) -> None:
    done = batonlog("demo")
    rows = re.findall(r"^ +(\d+\.\d) +\S+ +(\S.*?)(?:  +(\S.*?))? *$", done.out, re.MULTILINE)

    assert done.code == 0
    assert [ref for ref, _, shown in rows if shown not in ("", "·")] == ["1.0", "10.0"]
    assert [ref for ref, _, shown in rows if shown == "·"] == [
        "4.0",
        "4.1",
        "4.2",
        "7.0",
        "8.0",
        "10.1",
        "12.0",
    ]
    assert [ref for ref, _, shown in rows if shown == ""] == ["15.0", "17.0", "19.0", "21.0", "23.0"]
    assert "is what the server received" in " ".join(done.out.split())


def test_the_chain_is_shown_request_by_request(batonlog: Batonlog) -> None:
    done = batonlog("demo", "--chain")
    rows = re.findall(r"^ +\d+ +(\d) +\S+ +(none|resp_\d) +(\d+) +(\d+) *(.*?) *$", done.out, re.MULTILINE)

    assert rows == [
        ("1", "none", "1", "1", ""),
        ("2", "resp_1", "6", "2", ""),
        ("3", "none", "2", "2", "chain dropped"),
        ("4", "resp_3", "4", "1", ""),
        ("5", "resp_4", "6", "1", ""),
    ]


@pytest.mark.parametrize("options", [(), ("--chain",)], ids=["plain", "chain"])
def test_the_commands_that_it_prints_work_as_they_stand(batonlog: Batonlog, options: tuple[str, ...]) -> None:
    done = batonlog("demo", *options)
    commands = re.findall(r"^  \S*(?:batonlog|batonlog\.engine\.cli) (.*--log .*)$", done.out, re.MULTILINE)

    assert len(commands) >= 2
    assert [batonlog(*shlex.split(command)).code for command in commands] == [0] * len(commands)


def test_a_fresh_file_is_made_each_time(batonlog: Batonlog) -> None:
    places = {re.search(r"The log is (.*)", batonlog("demo", "--chain").out) for _ in range(2)}

    assert len({place[1] for place in places if place is not None}) == 2


def test_in_a_log_that_is_named_each_run_has_a_session_of_its_own(batonlog: Batonlog, tmp_path: Path) -> None:
    path = tmp_path / "my log.db"
    for _ in range(3):
        assert batonlog("demo", "--chain", "--log", path).code == 0

    listed = [
        load(line.encode()) for line in batonlog("log", "list", "--log", path, "--json").out.splitlines()
    ]
    assert [(one["session"], one["version"]) for one in listed] == [
        ("cust-42-3", 24),
        ("cust-42-2", 24),
        ("cust-42", 24),
    ]


def test_another_programs_file_is_refused_and_left_alone(batonlog: Batonlog, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk, eggs", encoding="utf-8")
    done = batonlog("demo", "--log", path)

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert path.read_text(encoding="utf-8") == "milk, eggs"


# -- live


def test_without_a_key_the_live_demo_is_refused_before_anything_happens(
    batonlog: Batonlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "demo.db"
    done = batonlog("demo", "--live", "--log", path)

    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "OPENAI_API_KEY" in done.err
    assert not path.exists()
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        asyncio.run(play(path, live=True))


def test_the_live_demo_asks_whoever_the_environment_names(
    batonlog: Batonlog, serve: Callable[..., Any], tmp_path: Path
) -> None:
    with serve(script()) as server:
        done = batonlog("demo", "--live", "--model", "gpt-5-nano", "--log", tmp_path / "demo.db")

    assert done.code == 0
    assert [body["model"] for body in server.requests] == ["gpt-5-nano"] * 5
    assert "has the recorded digest" in " ".join(done.out.split())


def test_a_model_that_makes_no_handoff_is_no_failure(
    batonlog: Batonlog, serve: Callable[..., Any], tmp_path: Path
) -> None:
    for options in ([], ["--chain"]):
        with serve(["Who are you?"]):
            done = batonlog("demo", "--live", *options, "--log", tmp_path / "demo.db")

        assert (done.code, done.err) == (0, "")


def test_a_model_that_fails_is_told_in_one_line_and_the_log_is_there(
    batonlog: Batonlog, serve: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "demo.db"
    with serve([RefusedError("You exceeded your current quota")]):
        done = batonlog("demo", "--live", "--log", path)

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "quota" in done.err
    assert str(path) in done.out
    assert isinstance(asyncio.run(first_event(path)), RunStarted)


class RefusedError(Exception):
    status_code = 403


async def first_event(path: Path) -> object:
    async with SQLiteLog(path, read_only=True) as log:
        return (await log.records("cust-42"))[0].event
