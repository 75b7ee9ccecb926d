"""`batonlog request` shows what a model was asked, exactly, or says why that cannot be proven."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from tests.engine.cli_logs import NASTY, Batonlog, add, documents

from batonlog.engine import Agent, Engine, ModelSettings, OpenAIResponsesModel, tool
from batonlog.engine.testing import FakeResponsesServer, ScriptedModel, assistant_message, function_call
from batonlog.events import (
    AgentResolved,
    Event,
    Limits,
    ModelRequested,
    NoteAdded,
    RunStarted,
    UnknownEvent,
)
from batonlog.projections import messages_only


@tool
async def look(place: str) -> str:
    """Look somewhere."""
    return NASTY if place == "attic" else "x" * 1_000_000


refund = Agent("refund", instructions="Decide.", model_settings=ModelSettings(temperature=0.2))
triage = Agent("triage", instructions=f"Look.\n{NASTY}", tools=[look], handoffs=[refund])

SCRIPT: list[Any] = [
    [function_call(look, {"place": "attic"}), function_call(look, {"place": "cellar"})],
    [assistant_message("One moment."), function_call(refund, {})],
    "Done.",
]


async def fill(path: Path) -> None:
    """cust-42 is handed to refund, who is shown the messages; cust-7 said hello."""
    model = ScriptedModel(*SCRIPT, "Hello.")
    async with Engine(path, agents=[triage], model=model, handoff_filter=messages_only) as engine:
        await engine.run(f"where is my kettle? {NASTY}", session="cust-42")
        await engine.run("Hi!", session="cust-7")


async def over_http(path: Path, chain: Any) -> Sequence[bytes]:
    """Play the same through the client, and return what the server got."""
    bodies: list[bytes] = []
    async with FakeResponsesServer(*SCRIPT) as server:
        posted = server.client.post

        async def post(where: str, **options: Any) -> Any:
            if where == "/responses":
                bodies.append(options["content"])
            return await posted(where, **options)

        server.client.post = post  # type: ignore[method-assign, assignment]
        model = OpenAIResponsesModel("m", client=server.client, chain=chain)
        async with Engine(path, agents=[triage], model=model, handoff_filter=messages_only) as engine:
            await engine.run("where is my kettle?", session="cust-42")
        assert not server.refusals
    return bodies


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "support.db"
    asyncio.run(fill(path))
    return path


# -- all requests


def test_without_a_version_the_requests_are_listed(batonlog: Batonlog, path: Path) -> None:
    out = batonlog("request", "cust-42").out

    assert re.findall(r"^ +(\d+) +(\d) +(\w+) +(\w+) +(\d+) +(\d+) *$", out, re.MULTILINE) == [
        ("3", "1", "triage", "scripted", "1", "1"),
        ("9", "2", "triage", "scripted", "5", "5"),
        ("14", "3", "refund", "scripted", "2", "2"),
    ]
    assert "cust-42: 3 requests; --at 14 shows one as it was asked" in out


def test_the_list_in_json_has_a_line_for_each(batonlog: Batonlog, path: Path) -> None:
    found = documents(batonlog("request", "cust-42", "--json").out)

    assert [(one["version"], one["agent"], one["sent"], one["view"]) for one in found] == [
        (3, "triage", 1, 1),
        (9, "triage", 5, 5),
        (14, "refund", 2, 2),
    ]


def test_a_session_in_which_no_model_was_asked_has_no_request(batonlog: Batonlog, own: Path) -> None:
    asyncio.run(add(own, "cust-1", NoteAdded(name="n", data=1)))
    done = batonlog("request", "cust-1")

    assert (done.code, done.out) == (0, "cust-1 at version 1: no model was asked\n")


# -- one request


def test_a_request_is_shown_with_all_that_it_asks(batonlog: Batonlog, path: Path) -> None:
    assert batonlog("request", "cust-42", "--at", 14).out.splitlines()[:-1] == [
        "cust-42, version 14: turn 3, refund to scripted",
        "endpoint ScriptedModel",
        "the whole view is sent, 2 items; the provider keeps nothing",
        "",
        "instructions",
        "  Decide.",
        "",
        "settings",
        "  temperature=0.2",
        "",
        "input: 2 items, as they went out",
        r'  1.0  user  {"role":"user","content":"where is my kettle? \u001b[31mred\u001b[0m [bold]loud[/bold] '
        ':smile: \ufffd \\u202e \\nsecond line\\ttab 退款专家"}',
        '  10.0  triage  {"type":"message","role":"assistant","status":"completed",'
        '"content":[{"type":"output_text","text":"One moment.","annotations":[]}]}',
        "",
    ]


def test_the_digest_is_proven(batonlog: Batonlog, path: Path) -> None:
    (document,) = documents(batonlog("request", "cust-42", "--at", 14, "--json").out)

    last = batonlog("request", "cust-42", "--at", 14).out.splitlines()[-1]
    assert last == f"Its digest {document['digest'][:12]}… holds: this is what scripted was asked."


def test_tools_are_shown_with_what_they_take(batonlog: Batonlog, path: Path) -> None:
    out = batonlog("request", "cust-42", "--at", 3).out.splitlines()

    assert "  look(place)  Look somewhere." in out
    assert "  transfer_to_refund()  Hand the conversation over to refund." in out


def test_a_long_item_is_cut_and_says_where_the_rest_is(batonlog: Batonlog, path: Path) -> None:
    out = batonlog("request", "cust-42", "--at", 9).out

    assert len(out) < 10_000
    assert "characters in all; --json shows them" in out
    assert "x" * 1_000_000 in batonlog("request", "cust-42", "--at", 9, "--json").out


def test_in_json_the_items_are_in_the_form_in_which_they_went_out(batonlog: Batonlog, path: Path) -> None:
    (document,) = documents(batonlog("request", "cust-42", "--at", 14, "--json").out)

    assert [(one["ref"], one["agent"]) for one in document["input"]] == [("1.0", None), ("10.0", "triage")]
    assert "\ufffd" in document["input"][0]["item"]["content"]
    assert "id" not in document["input"][1]["item"]
    assert (document["model"], document["settings"], document["view"]) == (
        "scripted",
        {"temperature": 0.2},
        2,
    )


@pytest.mark.parametrize("chain", [None, "previous_response_id"])
def test_the_body_is_what_was_posted_byte_for_byte(batonlog: Batonlog, own: Path, chain: str | None) -> None:
    bodies = asyncio.run(over_http(own, chain))
    versions = [one["version"] for one in documents(batonlog("request", "cust-42", "--json").out)]

    assert [batonlog("request", "cust-42", "--at", at, "--body").out.encode() for at in versions] == bodies
    note = batonlog("request", "cust-42", "--at", versions[0], "--body").err
    assert '"stream"' in note
    assert note.count("\n") == 1


def test_what_continues_a_response_says_so_and_how_much_is_sent(batonlog: Batonlog, own: Path) -> None:
    asyncio.run(over_http(own, "previous_response_id"))
    (_, second, third) = documents(batonlog("request", "cust-42", "--json").out)
    continued = second["previous_response_id"]

    assert (second["sent"], second["view"]) == (2, 5)
    assert continued in batonlog("request", "cust-42").out
    out = batonlog("request", "cust-42", "--at", second["version"]).out
    assert f"continues {continued}: 2 items of 5 in view are sent" in out
    out = batonlog("request", "cust-42", "--at", third["version"]).out
    assert "the whole view is sent, 2 items; kept by the provider" in out


# -- what it does to a terminal


@pytest.mark.parametrize("command", [[], ["--at", "9"], ["--at", "14"]], ids=" ".join)
def test_nothing_that_a_log_holds_steers_the_terminal(
    batonlog: Batonlog, path: Path, command: list[str]
) -> None:
    out = batonlog("request", "cust-42", *command).out

    assert all(letter.isprintable() or letter == "\n" for letter in out)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", [[], ["--at", "9"]], ids=" ".join)
def test_in_a_terminal_no_line_is_wider_than_it(
    batonlog: Batonlog, path: Path, command: list[str], width: int
) -> None:
    out = batonlog(
        "request", "cust-42", *command, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm", COLUMNS=str(width)
    ).out

    assert [line for line in re.sub(r"\x1b\[[\d;]*m", "", out).splitlines() if cell_len(line) > width] == []


def test_it_needs_no_openai(path: Path) -> None:
    code = (
        "import runpy, sys; sys.argv = ['batonlog', 'request', 'cust-7', '--at', '3', '--body']\n"
        "try: runpy.run_module('batonlog.engine.cli', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'openai' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout)["input"] == [{"role": "user", "content": "Hi!"}]


# -- wrong input

ASKED: Sequence[Event] = [
    RunStarted(run_id="r", agent="a", input=({"role": "user", "content": "hi"},), limits=Limits()),
    AgentResolved(agent="a"),
    ModelRequested(turn=1, agent="a", parts=(2, 2, 2, 2), issuer=("e", "m"), wire=1, digest=b"wrong"),
]


@pytest.mark.parametrize("more", [[], ["--json"], ["--body"]], ids=" ".join)
def test_what_its_digest_does_not_prove_is_not_shown(batonlog: Batonlog, own: Path, more: list[str]) -> None:
    asyncio.run(add(own, "cust-1", *ASKED))
    done = batonlog("request", "cust-1", "--at", 3, *more)

    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "error: the request at version 3 of cust-1 is not what was asked: its digest does not prove what the "
        "log holds; `batonlog history cust-1 --at 3` shows what it does hold\n"
    )


def test_a_request_after_what_this_batonlog_does_not_know_is_not_shown(batonlog: Batonlog, own: Path) -> None:
    unknown = UnknownEvent(tag="later.thing", data={"type": "later.thing"})
    asyncio.run(add(own, "cust-1", ASKED[0], unknown, *ASKED[1:]))
    done = batonlog("request", "cust-1", "--at", 4)

    assert (done.code, done.out) == (1, "")
    assert "holds later.thing at version 2" in done.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ["cust-42", "--at", "10"],
            "model.responded at version 10, not model.requested; its requests are at 3, 9 and 14",
        ),
        (["cust-42", "--at", "99"], "there is no version 99; its requests are at 3, 9 and 14"),
        (["cust-4"], "did you mean cust-42"),
        (["cust-4", "--at", "3"], "did you mean cust-42"),
        (["cust-42", "--log", "none.db"], "there is no log none.db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_shown_is_an_error_in_one_line(
    batonlog: Batonlog, path: Path, command: list[str], says: str
) -> None:
    done = batonlog("request", *command)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert says in done.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["--at", "x"], "--at"),
        (["--at", "0"], "--at"),
        (["--body"], "which request?"),
        (["--at", "3", "--body", "--json"], "choose one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_line_that_is_wrong_exits_with_2(
    batonlog: Batonlog, path: Path, command: list[str], says: str
) -> None:
    done = batonlog("request", "cust-42", *command)

    assert (done.code, done.out) == (2, "")
    assert says in done.err
