"""The command line reads a log as it is: whatever stands in it, and whatever is asked for."""

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.cells import cell_len
from tests.engine.cli_logs import NASTY, Batonlog, add, documents, records_of

from batonlog.engine import Agent, Engine, ToolContext, handoff, tool
from batonlog.engine.cli.as_json import event_json
from batonlog.engine.cli.wording import say_event
from batonlog.engine.testing import ScriptedModel, assistant_message, function_call
from batonlog.events import (
    AgentResolved,
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    CancelRequested,
    Event,
    EventRedacted,
    GuardrailTripped,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    InputAdded,
    Limits,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    NoteAdded,
    Ref,
    Rewrite,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunStarted,
    SessionForked,
    SQLiteLog,
    ToolAbandoned,
    ToolCalled,
    ToolReturned,
    UnknownEvent,
    Usage,
)
from batonlog.events.facts import AnyEvent
from batonlog.events.values import dump, load
from batonlog.projections import FilterInput, FilterOutput, model_history, session_history


@tool
async def look(place: str) -> str:
    """Look somewhere."""
    return NASTY if place == "attic" else "nothing"


@tool(needs_approval=True)
async def pay(ctx: ToolContext[object], amount: int) -> str:
    """Pay."""
    return "paid"


def reworded(history: FilterInput[object]) -> FilterOutput:
    """Put one in, edit one, leave the rest out."""
    yield {"role": "developer", "content": "Be kind."}
    yield history[0].replace(content="a kettle is lost")


clerk = Agent("clerk", tools=[pay])
triage = Agent("triage", tools=[look], handoffs=[handoff(clerk, input_filter=reworded)])


async def fill(path: Path) -> None:
    """cust-42 was handed over and waits for approval; cust-7 said hello; cust-7-b is a fork of it."""
    model = ScriptedModel(
        "Hello.",
        [function_call(look, {"place": "attic"}), function_call(look, {"place": "cellar"})],
        [assistant_message("One moment."), function_call(clerk, {})],
        function_call(pay, {"amount": 40}),
    )
    async with Engine(path, agents=[triage, clerk], model=model) as engine:
        await engine.run("Hi!", session="cust-7")
        await engine.run("where is my kettle?", session="cust-42")
        await engine.fork("cust-7", into="cust-7-b")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "support.db"
    asyncio.run(fill(path))
    return path


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


# -- log list


def test_the_sessions_are_listed_the_latest_first(batonlog: Batonlog, path: Path) -> None:
    lines = batonlog("log", "list").out.splitlines()

    assert [line.split()[0] for line in lines if "cust-" in line] == ["cust-7-b", "cust-42", "cust-7"]


def test_the_list_says_which_call_waits_for_whom(batonlog: Batonlog, path: Path) -> None:
    (line,) = (line for line in batonlog("log", "list").out.splitlines() if "cust-42" in line)

    assert "paused: 15.0 pay (needs approval)" in line
    assert "clerk" in line


def test_the_list_in_json_has_stable_keys(batonlog: Batonlog, path: Path) -> None:
    listed = documents(batonlog("log", "list", "--json").out)

    assert {tuple(one) for one in listed} == {
        (
            "session",
            "version",
            "hash",
            "recorded_at",
            "tokens",
            "run",
            "status",
            "reason",
            "agent",
            "usage",
            "open_calls",
        )
    }
    (waiting,) = (one for one in listed if one["session"] == "cust-42")
    assert (waiting["status"], waiting["reason"], waiting["agent"]) == ("paused", "approval", "clerk")
    assert waiting["open_calls"] == [
        {
            "call": "15.0",
            "why": "approval",
            "agent": "clerk",
            "tool": "pay",
            "arguments": {"amount": 40},
            "reason": "needs approval",
        }
    ]


def test_a_session_without_a_run_has_no_status(batonlog: Batonlog, own: Path) -> None:
    run(add(own, "cust-1", NoteAdded(name="tier", data="gold")))
    (listed,) = documents(batonlog("log", "list", "--json").out)

    assert (listed["run"], listed["status"]) == (None, None)
    assert "none yet" in batonlog("log", "list").out


def test_an_empty_log_is_said_to_be_empty(batonlog: Batonlog, own: Path) -> None:
    run(SQLiteLog(own).__aenter__())

    assert "no session" in batonlog("log", "list").out
    assert batonlog("log", "list", "--json").out == ""


def test_a_damaged_session_does_not_hide_the_others(batonlog: Batonlog, own: Path) -> None:
    run(add(own, "good", NoteAdded(name="tier", data="gold")))
    run(add(own, "bad", NoteAdded(name="tier", data="gold")))
    damage(own, "bad")

    (bad,) = (one for one in documents(batonlog("log", "list", "--json").out) if one["session"] == "bad")
    assert "record 1 of bad" in bad["damaged"]
    assert "good" in batonlog("log", "list").out
    assert batonlog("log", "show", "bad").code == 1
    assert batonlog("log", "show", "good").code == 0


def damage(path: Path, session: str) -> None:
    """Overwrite a payload, as a faulty disk would."""
    with sqlite3.connect(path) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE event SET payload = x'7b' WHERE session = ?", (session,))
    connection.close()


# -- log show


def test_every_event_has_one_line(batonlog: Batonlog, path: Path) -> None:
    records = run(records_of(path, "cust-42"))
    lines = re.findall(
        r"^ +(\d+)  \d\d:\d\d:\d\d  (\S+)", batonlog("log", "show", "cust-42").out, re.MULTILINE
    )

    assert lines == [(str(record.version), record.type) for record in records]


def test_after_is_exclusive_and_until_is_inclusive(batonlog: Batonlog, path: Path) -> None:
    shown = documents(batonlog("log", "show", "cust-42", "--after", 3, "--until", 6, "--json").out)

    assert [one["version"] for one in shown] == [4, 5, 6]


def test_events_in_json_are_the_records(batonlog: Batonlog, path: Path) -> None:
    records = run(records_of(path, "cust-42"))
    shown = documents(batonlog("log", "show", "cust-42", "--json").out)

    assert [(one["version"], one["type"], one["hash"], one["event_id"]) for one in shown] == [
        (record.version, record.type, record.hash.hex(), str(record.event_id)) for record in records
    ]
    assert [one["event"]["call"] for one in shown if one["type"] == "tool.called"] == ["4.0", "4.1"]


def test_a_fork_shows_what_it_inherits(batonlog: Batonlog, path: Path) -> None:
    shown = documents(batonlog("log", "show", "cust-7-b", "--json").out)

    assert [one["session"] for one in shown][-2:] == ["cust-7", "cust-7-b"]
    assert shown[-1]["event"] == {"parent": "cust-7", "at": len(shown) - 1}


# -- words and JSON for every event

_REWRITE = Rewrite(
    filter="f",
    parameters={"n": 1},
    operations=(["take", 0, 2], ["put", {"role": "user", "content": "x"}, [[3, 0]]]),
)
_CALL: dict[str, Any] = {"call": Ref(4, 0), "call_id": "call_1"}
_ITEM = {"role": "user", "content": "hello"}
EVENTS: Sequence[Event] = [
    RunStarted(run_id="r", agent="a", input=(_ITEM,), limits=Limits(), parent=("p", Ref(3, 0))),
    RunResumed(by="w", limits=Limits(turns=3)),
    RunPaused(reason="limit", limit="turns: 2 of 2"),
    RunCompleted(output=Ref(5, 0)),
    RunFailed(kind="ValueError", message="no\nway"),
    RunCancelled(by="anna", reason="enough"),
    InputAdded(input=(_ITEM, "odd", {"type": "new_thing"}), goes_to="turn", by="user"),
    CancelRequested(by="anna", after_turn=True),
    NoteAdded(name="tier", data={"level": 3}),
    AgentResolved(agent="a", instructions="Be kind.", offered=({"name": "look"},), settings={}),
    ModelRequested(
        turn=2,
        agent="a",
        parts=(2, 2, 0, 0),
        issuer=("e", "m"),
        previous_response_id="resp_1",
        first=4,
        wire=1,
        attempt=2,
        digest=b"\1\2",
    ),
    ModelResponded(
        request=3,
        output=(
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "name": "look", "arguments": "{broken", "call_id": "c"},
            {"type": "custom_tool_call", "name": "sh", "input": "ls", "call_id": "d"},
        ),
        usage=Usage(requests=1),
        status="incomplete",
    ),
    ModelFailed(request=3, kind="APIError", message="down", retried=True, delay=1.25),
    ToolCalled(call=Ref(4, 0), name="look", arguments={"place": "attic"}, attempt=2),
    ToolReturned(**_CALL, output={"a": [1, None]}, error=True),
    ToolAbandoned(**_CALL, reason="unknown", answer="Nobody knows."),
    CallRefused(**_CALL, reason="rejected", answer="No."),
    ApprovalRequested(call=Ref(4, 0), reason="approval"),
    ApprovalDecided(call=Ref(4, 0), standing=("a", "look"), verdict="refuse", by="anna", reason="no"),
    HandoffFiltered(call=Ref(4, 0), rewrite=_REWRITE),
    HandoffMade(**_CALL, source="a", target="b", arguments={}, acknowledgement="ok"),
    HistoryRewritten(cause="manual", rewrite=_REWRITE),
    GuardrailTripped(stage="input", name="g", reason="bad", replacement=_ITEM, rewrite=_REWRITE),
    EventRedacted(target=3, reason="asked", digest=b"\3"),
    SessionForked(parent="cust-1", at=3),
    UnknownEvent(tag="later.thing", data={"type": "later.thing", "x": 1}),
]


def test_every_event_is_among_the_samples() -> None:
    assert {type(event) for event in EVENTS} == {*get_args(AnyEvent), UnknownEvent}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_can_be_said_in_one_line(event: Event) -> None:
    said = say_event(event)

    assert said
    assert said.isprintable()


@pytest.mark.parametrize(
    ("said", "follows"),
    [
        ("APIError: down", {}),
        ("APIError, asked again: down", {"retried": True}),
        ("APIError, asked again in 1.23 s: down", {"retried": True, "delay": 1.2345}),
        ("APIError, asked again in 60 s: down", {"retried": True, "delay": 60.0}),
        ("APIError, passed on to the next model: down", {"retried": True, "passed_on": True}),
    ],
)
def test_a_failed_attempt_says_first_what_follows(said: str, follows: dict[str, Any]) -> None:
    assert say_event(ModelFailed(request=3, kind="APIError", message="down", **follows)) == said


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_in_json_every_ref_is_text(event: Event) -> None:
    document = load(dump(event_json(event)))

    assert document.get("call", "4.0") == "4.0"
    rewrite = document.get("rewrite") or {"operations": []}
    assert [step[2] for step in rewrite["operations"] if step[0] == "put"] in ([], [["3.0"]])


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (EVENTS[0], "agent a, for call 3.0 of p, input: hello"),
        (EVENTS[10], "turn 2, a, m, attempt 2, continues resp_1 from item 4 on"),
        (EVENTS[11], "reasoning: hm, look({broken), sh(ls), incomplete"),
        (EVENTS[13], '4.0 look(place="attic"), attempt 2'),
        (EVENTS[14], '4.0 error: {"a":[1,null]}'),
        (EVENTS[18], "4.0 refuse, always for look of a, by anna: no"),
        (EVENTS[19], "4.0 f keeps 2 items, puts in 1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Event) else "",
)
def test_an_event_is_said_in_words(event: Event, says: str) -> None:
    assert say_event(event) == says


# -- history


def table_of(out: str) -> dict[str, tuple[str, str]]:
    """The rows of the two histories: ref -> left and right cell."""
    rows = re.findall(r"^ +(\d+\.\d+) +\S+ +(\S.*?)(?:  +(\S.*?))? *$", out, re.MULTILINE)
    return {ref: (left, right) for ref, left, right in rows}


def test_both_histories_stand_side_by_side(batonlog: Batonlog, path: Path) -> None:
    rows = table_of(batonlog("history", "cust-42").out)

    assert rows["4.0"] == ('look(place="attic")', "·")
    assert rows["15.0"] == ("pay(amount=40)", "pay(amount=40)")


def test_an_edited_item_stands_beside_what_it_was_made_from(batonlog: Batonlog, path: Path) -> None:
    assert table_of(batonlog("history", "cust-42").out)["1.0"] == ("where is my kettle?", "a kettle is lost")


def test_what_a_rewrite_puts_in_stands_on_the_right_alone(batonlog: Batonlog, path: Path) -> None:
    done = batonlog("history", "cust-42")

    assert table_of(done.out)["11.0"] == ("·", "Be kind.")
    assert "1 put in by a rewrite" in done.out


def test_history_in_json_is_both_histories(batonlog: Batonlog, path: Path) -> None:
    records = run(records_of(path, "cust-42"))
    (document,) = documents(batonlog("history", "cust-42", "--json").out)

    assert [one["item"] for one in document["session_history"]] == session_history(records).data
    assert [one["item"] for one in document["model_history"]] == model_history(records).data
    assert [one["ref"] for one in document["model_history"]] == [
        str(item.ref) for item in model_history(records)
    ]
    assert document["model_history"][1]["covers"] == ["1.0"]


@pytest.mark.parametrize("at", [1, 4, 9, 13, 15])
def test_at_gives_the_histories_of_that_version(batonlog: Batonlog, path: Path, at: int) -> None:
    records = run(records_of(path, "cust-42"))
    (document,) = documents(batonlog("history", "cust-42", "--at", at, "--json").out)

    assert document["version"] == at
    assert [one["item"] for one in document["session_history"]] == session_history(records, at=at).data
    assert [one["item"] for one in document["model_history"]] == model_history(records, at=at).data


def test_one_history_alone_can_be_had(batonlog: Batonlog, path: Path) -> None:
    said, shown = batonlog("history", "cust-42", "--session"), batonlog("history", "cust-42", "--model")

    assert "where is my kettle?" in said.out
    assert "where is my kettle?" not in shown.out
    assert "a kettle is lost" in shown.out
    assert "session_history" not in documents(batonlog("history", "cust-42", "--model", "--json").out)[0]


def test_at_a_model_request_its_digest_is_proven(batonlog: Batonlog, path: Path) -> None:
    records = run(records_of(path, "cust-42"))
    at = next(record.version for record in records if record.type == "model.requested")
    (document,) = documents(batonlog("history", "cust-42", "--at", at, "--json").out)

    event = records[at - 1].event
    assert isinstance(event, ModelRequested)
    assert document["request"]["digest"] == event.digest.hex()
    assert "holds" in batonlog("history", "cust-42", "--at", at).out


ASKING: Sequence[Event] = [
    RunStarted(run_id="r", agent="a", input=(_ITEM,), limits=Limits()),
    AgentResolved(agent="a"),
    ModelRequested(turn=1, agent="a", parts=(2, 2, 2, 2), issuer=("e", "m"), wire=1, digest=b"wrong"),
]


def test_a_digest_that_does_not_hold_is_an_error_and_the_histories_are_shown(
    batonlog: Batonlog, own: Path
) -> None:
    run(add(own, "cust-1", *ASKING))
    done = batonlog("history", "cust-1")

    assert table_of(done.out)["1.0"] == ("hello", "hello")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "digest" in done.err
    assert "holds" not in done.out


def test_what_is_not_settled_is_marked(batonlog: Batonlog, own: Path) -> None:
    call = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"}
    events = [
        *ASKING,
        ModelResponded(request=3, output=(call, call), usage=Usage()),
        ToolCalled(call=Ref(4, 0), name="look", arguments={}),
        ToolReturned(call=Ref(4, 0), call_id="c", output="nothing"),
        InputAdded(input=({"role": "user", "content": "hurry"},), goes_to="turn", by="user"),
        InputAdded(input=({"role": "user", "content": "bye"},), goes_to="run", by="user"),
    ]
    run(add(own, "cust-1", *events))
    rows = table_of(batonlog("history", "cust-1").out)

    assert rows["6.0"][0] == "[not settled] → nothing"
    assert rows["7.0"][0] == "[for the next turn] hurry"
    assert rows["8.0"][0] == "[for the next run] bye"
    (document,) = documents(batonlog("history", "cust-1", "--json").out)
    assert [one["settled"] for one in document["model_history"]] == [True, True, True, False, False, False]


def test_one_item_is_shown_with_what_the_log_knows_of_it(batonlog: Batonlog, path: Path) -> None:
    (document,) = documents(batonlog("history", "cust-42", "--item", "4.0", "--json").out)

    assert (document["ref"], document["agent"], document["item"]["name"]) == ("4.0", "triage", "look")
    assert (document["in_session"], document["in_view"]) == (True, False)
    assert load(batonlog("history", "cust-42", "--item", "4.0").out.encode()) == document


def test_a_long_text_is_cut_and_says_where_the_rest_is(batonlog: Batonlog, own: Path) -> None:
    text = "x" * 5_000
    started = RunStarted(run_id="r", agent="a", input=({"role": "user", "content": text},), limits=Limits())
    run(add(own, "cust-1", started))
    out = batonlog("history", "cust-1", "--session").out

    assert text not in out
    assert "5,000 characters in all; --item 1.0 --json shows them" in out
    assert text in batonlog("history", "cust-1", "--item", "1.0", "--json").out


# -- what it does to a terminal


@pytest.mark.parametrize(
    "command",
    [
        ["log", "list"],
        ["log", "show", "cust-42"],
        ["history", "cust-42"],
        ["history", "cust-42", "--session"],
    ],
    ids=" ".join,
)
def test_nothing_that_a_log_holds_steers_the_terminal(
    batonlog: Batonlog, path: Path, command: list[str]
) -> None:
    out = batonlog(*command).out

    assert all(letter.isprintable() or letter == "\n" for letter in out)


def test_text_is_shown_as_it_is_and_not_as_markup(batonlog: Batonlog, path: Path) -> None:
    out = batonlog("log", "show", "cust-42").out

    assert r"\x1b[31mred\x1b[0m [bold]loud[/bold] :smile: \ud800 \u202e second line tab" in out


def test_json_holds_the_very_text(batonlog: Batonlog, path: Path) -> None:
    shown = documents(batonlog("log", "show", "cust-42", "--json").out)

    assert NASTY in [one["event"]["output"] for one in shown if one["type"] == "tool.returned"]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "command", [["log", "list"], ["log", "show", "cust-42"], ["history", "cust-42"]], ids=" ".join
)
def test_in_a_terminal_no_line_is_wider_than_it(
    batonlog: Batonlog, path: Path, command: list[str], width: int
) -> None:
    out = batonlog(*command, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm", COLUMNS=str(width)).out

    assert [line for line in re.sub(r"\x1b\[[\d;]*m", "", out).splitlines() if cell_len(line) > width] == []


def test_colours_are_left_out_where_nobody_wants_them(batonlog: Batonlog, path: Path) -> None:
    wanted = batonlog("log", "show", "cust-42", FORCE_COLOR="1", TERM="xterm-256color").out
    unwanted = batonlog("log", "show", "cust-42", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color").out

    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3|9)\d")
    assert colour.search(wanted)
    assert not colour.search(unwanted)


def test_in_a_pipe_no_line_is_cut(batonlog: Batonlog, own: Path) -> None:
    words = "word " * 80
    run(add(own, "cust-1", NoteAdded(name="n", data=words)))

    assert words.strip() in batonlog("log", "show", "cust-1").out


# -- beside others


def test_a_log_is_read_while_it_is_written_to(batonlog: Batonlog, own: Path) -> None:
    async def write_and_look() -> str:
        async with SQLiteLog(own) as log:
            await log.append("cust-1", [NoteAdded(name="n", data=1)], expected=0)
            first = await asyncio.to_thread(batonlog, "log", "show", "cust-1", "--json")
            await log.append("cust-1", [NoteAdded(name="n", data=2)], expected=1)
            second = await asyncio.to_thread(batonlog, "log", "show", "cust-1", "--json")
        assert (len(documents(first.out)), first.err) == (1, "")
        return str(second.out)

    assert len(documents(run(write_and_look()))) == 2


def test_looking_changes_nothing(batonlog: Batonlog, path: Path) -> None:
    before = path.read_bytes()
    for command in (["log", "list"], ["log", "show", "cust-42"], ["history", "cust-42"]):
        batonlog(*command)

    assert path.read_bytes() == before


# -- wrong input


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["history", "cust-4"], "did you mean cust-42"),
        (["log", "show", "cust-43"], "did you mean cust-42"),
        (["history", "someone"], "`batonlog log list` shows the 3"),
        (["history", "cust-42", "--at", "99"], "there is no version 99"),
        (["history", "cust-42", "--item", "4.7"], "event 4 has 4.0, 4.1"),
        (["history", "cust-42", "--item", "2.0"], "event 2 has none"),
        (["log", "list", "--log", "memory:"], "name a file"),
        (["log", "list", "--log", "postgresql://h/d"], "postgresql://"),
        (["log", "list", "--log", "."], "folder"),
        (["log", "list", "--log", "none.db"], "there is no log none.db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_shown_is_an_error_in_one_line(
    batonlog: Batonlog, path: Path, command: list[str], says: str
) -> None:
    done = batonlog(*command)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert says in done.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["history", "cust-42", "--at", "0"], "--at"),
        (["history", "cust-42", "--item", "7"], "as in 7.1"),
        (["history", "cust-42", "--item", "4.0", "--model"], "choose one"),
        (["history"], "SESSION"),
        (["log", "show", "cust-42", "--after", "9", "--until", "3"], "--until"),
        (["log", "shw"], "show"),
        (["log", "list", "--lgo", "x"], "--lgo"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_line_that_is_wrong_exits_with_2(
    batonlog: Batonlog, path: Path, command: list[str], says: str
) -> None:
    done = batonlog(*command)

    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_a_log_must_be_named(batonlog: Batonlog) -> None:
    done = batonlog("log", "list")

    assert done.code == 2
    assert "--log" in done.err
    assert "BATONLOG_LOG" in done.err


def make_text(path: Path) -> None:
    path.write_text("not a database, but a text. " * 40, encoding="utf-8")


def make_short_text(path: Path) -> None:
    path.write_text("x", encoding="utf-8")


def make_other(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()


def make_newer(path: Path) -> None:
    run(add(path, "s", NoteAdded(name="n", data=1)))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()


@pytest.mark.parametrize("make", [make_text, make_short_text, make_other, make_newer])
def test_a_file_that_is_no_log_is_refused_and_left_alone(
    batonlog: Batonlog, own: Path, make: Callable[[Path], None]
) -> None:
    make(own)
    before = own.read_bytes()
    done = batonlog("log", "list")

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "nothing was changed" in done.err
    assert own.read_bytes() == before


# -- the program


@pytest.mark.parametrize(
    "command",
    [["demo"], ["history"], ["request"], ["diagram"], ["log", "list"], ["log", "show"]],
    ids=" ".join,
)
def test_every_command_has_a_help_with_an_example(batonlog: Batonlog, command: list[str]) -> None:
    done = batonlog(*command, "--help")

    assert done.code == 0
    assert f"Example: batonlog {' '.join(command)}" in " ".join(done.out.split())


def test_without_a_command_the_help_is_shown(batonlog: Batonlog) -> None:
    assert "batonlog demo" in batonlog().out


def test_the_version_is_told(batonlog: Batonlog) -> None:
    assert re.fullmatch(r"batonlog \d+\.\d+\.\d+\n", batonlog("--version").out)


def test_it_runs_as_a_module_and_starts_without_openai(path: Path) -> None:
    code = (
        "import runpy, sys; sys.argv = ['batonlog', 'log', 'list', '--json']\n"
        "try: runpy.run_module('batonlog.engine.cli', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'openai' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert len(documents(done.stdout)) == 3
