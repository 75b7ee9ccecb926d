"""`batonlog history --diff` and `--explain` say what rewrites did to what the model is shown."""

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from tests.engine.cli_logs import NASTY, Batonlog, add, records_of

from batonlog.engine import Agent, Engine, handoff, tool
from batonlog.engine.testing import ScriptedModel, assistant_message, function_call
from batonlog.events import (
    JSON,
    GuardrailTripped,
    HandoffFiltered,
    HistoryRewritten,
    Limits,
    NoteAdded,
    Ref,
    Rewrite,
    RunStarted,
    Usage,
)
from batonlog.events.values import load
from batonlog.projections import (
    FilterInput,
    FilterOutput,
    History,
    explain_rewrite,
    keep_last,
    messages_only,
    model_history,
)


@tool
async def look(place: str) -> str:
    """Look somewhere."""
    return NASTY if place == "attic" else "x" * 1_000_000


def reworded(history: FilterInput[object]) -> FilterOutput:
    """Put one in, edit one, and leave the calls out but not their outputs."""
    yield {"role": "developer", "content": NASTY}
    yield history[0].replace(content="a kettle is lost")
    yield from (item for item in history[1:] if item.type != "function_call")


def shortened(history: History) -> FilterOutput:
    yield {"role": "user", "content": "in short"}


refund = Agent("refund", tools=[look], handoffs=[handoff("triage", input_filter=reworded)])
triage = Agent(
    "triage",
    tools=[look],
    handoffs=[handoff(refund, input_filter=[messages_only, keep_last(4)]), handoff("sales")],
)
sales = Agent("sales")


async def fill(path: Path) -> None:
    """cust-42 is handed to refund and back, which needs a repair; cust-7 was never rewritten."""
    reasoning: JSON = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": NASTY}],
    }
    model = ScriptedModel(
        [function_call(look, {"place": "attic"}), function_call(look, {"place": "cellar"})],
        [assistant_message("One moment."), function_call(refund, {}), function_call(sales, {})],
        function_call(look, {"place": "attic"}),
        [reasoning, function_call(triage, {})],
        "Found.",
        "Hello.",
    )
    async with Engine(path, agents=[triage, refund, sales], model=model) as engine:
        await engine.run(f"where is my kettle? {NASTY}", session="cust-42")
        await engine.run("Hi!", session="cust-7")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "support.db"
    asyncio.run(fill(path))
    return path


def lines(out: str) -> list[str]:
    return [line.rstrip() for line in out.splitlines()]


def rows(out: str) -> list[tuple[str, ...]]:
    """Sign, ref, who and type of each item of a diff."""
    found = re.findall(r"^([-+~! ]) +(\d+\.\d+) +(\S+) +(\w+) ", out, re.MULTILINE)
    return [(sign.strip(), *others) for sign, *others in found]


EDIT = Rewrite(
    filter="short", parameters={}, operations=(["put", {"role": "user", "content": "s"}, [[1, 0]]],)
)
SAID = RunStarted(run_id="r", agent="a", input=({"role": "user", "content": "hello"},) * 3, limits=Limits())


# -- one rewrite


def test_a_rewrite_is_shown_item_by_item_with_a_sign_for_what_became_of_each(
    batonlog: Batonlog, path: Path
) -> None:
    assert rows(batonlog("history", "cust-42", "--diff", 12).out) == [
        ("", "1.0", "user", "message"),
        ("-", "4.0", "triage", "function_call"),
        ("-", "4.1", "triage", "function_call"),
        ("-", "7.0", "triage", "function_call_output"),
        ("-", "8.0", "triage", "function_call_output"),
        ("", "10.0", "triage", "message"),
        ("-", "10.1", "triage", "function_call"),
        ("-", "10.2", "triage", "function_call"),
        ("-", "13.0", "triage", "function_call_output"),
        ("-", "11.0", "triage", "function_call_output"),
    ]


def test_above_it_stands_what_was_rewritten_by_what_and_below_it_how_much(
    batonlog: Batonlog, path: Path
) -> None:
    out = lines(batonlog("history", "cust-42", "--diff", 12).out)

    assert out[:2] == [
        "cust-42, version 12: handoff from triage to refund, made at 13",
        "filter messages_only + keep_last(n=4)",
    ]
    assert out[-1] == "10 items before, 2 after: 2 kept, 8 dropped"


def test_the_switch_shows_the_same_as_its_filter_event(batonlog: Batonlog, path: Path) -> None:
    assert (
        batonlog("history", "cust-42", "--diff", 13).out == batonlog("history", "cust-42", "--diff", 12).out
    )


def test_what_was_put_in_and_edited_says_what_it_was_made_from(batonlog: Batonlog, path: Path) -> None:
    out = batonlog("history", "cust-42", "--diff", 21).out

    assert rows(out)[:2] == [("+", "21.0", "developer", "message"), ("~", "21.1", "user", "message")]
    assert re.search(r"^~ 21\.1 .*a kettle is lost +was 1\.0 *$", out, re.MULTILINE)


def test_a_repair_says_what_a_provider_would_have_refused(batonlog: Batonlog, path: Path) -> None:
    out = batonlog("history", "cust-42", "--diff", 23).out

    assert lines(out)[0] == "cust-42, version 23: repair"
    assert re.search(r"^- 20\.0 refund +reasoning .* lost what followed it", out, re.MULTILINE)
    assert re.search(r"^- 18\.0 refund +function_call_output .* answers no call before it", out, re.MULTILINE)


def test_what_a_repair_made_up_has_a_sign_of_its_own(batonlog: Batonlog, own: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "none"}
    mended = Rewrite(
        filter="repair",
        parameters={},
        operations=(["take", 0, 1], ["put", output, [[1, 0]]]),
        repairs=("call_without_output: function_call 1.0 has no output",),
    )
    started = RunStarted(run_id="r", agent="a", input=(call,), limits=Limits())
    asyncio.run(add(own, "cust-1", started, HistoryRewritten(cause="repair", rewrite=mended)))
    out = batonlog("history", "cust-1", "--diff", 2).out

    assert rows(out)[-1] == ("!", "2.0", "input", "function_call_output")
    assert "made up: function_call 1.0 has no output" in " ".join(out.split())
    assert lines(out)[-1] == "1 item before, 2 after: 1 kept, 1 repaired"


def test_a_guardrail_says_its_name_and_reason(batonlog: Batonlog, own: Path) -> None:
    tripped = GuardrailTripped(
        stage="input", name="g", reason="not nice", replacement={"role": "user", "content": "…"}, rewrite=EDIT
    )
    asyncio.run(add(own, "cust-1", SAID, tripped))

    out = batonlog("history", "cust-1", "--diff", 2).out

    assert lines(out)[0] == "cust-1, version 2: guardrail g on input: not nice"
    assert rows(out)[0] == ("~", "2.1", "user", "message")
    assert re.search(r"^- +1\.1 user message hello +not nice *$", out, re.MULTILINE)


def test_a_handoff_that_was_not_made_says_so(batonlog: Batonlog, own: Path) -> None:
    asyncio.run(add(own, "cust-1", SAID, HandoffFiltered(call=Ref(1, 0), rewrite=EDIT)))
    done = batonlog("history", "cust-1", "--diff", 2)

    assert "It took no effect" in done.out
    assert done.code == 0


def test_what_a_filter_spent_on_a_model_is_told(batonlog: Batonlog, own: Path) -> None:
    usage = Usage(requests=1, total_tokens=1_200)
    summed = Rewrite(filter="sum", parameters={}, operations=EDIT.operations, spent=(("small", usage),))
    asyncio.run(add(own, "cust-1", SAID, HistoryRewritten(cause="compaction", rewrite=summed)))

    assert "it asked small, for 1,200 tokens" in batonlog("history", "cust-1", "--diff", 2).out
    (spent,) = load(batonlog("history", "cust-1", "--diff", 2, "--json").out.encode())["spent"]
    assert (spent["model"], spent["usage"]["total_tokens"]) == ("small", 1_200)


@pytest.mark.parametrize("at", [12, 21, 23])
def test_in_json_it_is_what_python_says(batonlog: Batonlog, path: Path, at: int) -> None:
    records = asyncio.run(records_of(path, "cust-42"))
    document = load(batonlog("history", "cust-42", "--diff", at, "--json").out.encode())

    said = [(one["what"], one["ref"], one["reason"], one["item"]) for one in document["changes"]]
    assert said == [
        (change.what, str(change.item.ref), change.reason, change.item.data)
        for change in explain_rewrite(records, at=at)
    ]
    effective = document["effective"]
    left = [one["item"] for one in document["changes"] if one["what"] != "dropped"]
    assert left == model_history(records, at=effective).data
    assert (document["version"], document["after"]) == (at, len(left))


# -- all rewrites


def test_all_rewrites_are_listed_with_what_changed_and_why(batonlog: Batonlog, path: Path) -> None:
    assert lines(batonlog("history", "cust-42", "--explain").out) == [
        "  12  handoff from triage to refund, made at 13  messages_only + keep_last(n=4)",
        "      10 items before, 2 after: 2 kept, 8 dropped",
        "       - 4.0–4.1, 7.0, 8.0, 10.1, 13.0 messages_only",
        "       - 10.2                          messages_only: a transfer that was not taken",
        "       - 11.0                          messages_only: the answer to a transfer that was not taken",
        "",
        "  21  handoff from refund to triage, made at 22  reworded",
        "      7 items before, 6 after: 4 kept, 2 dropped, 1 inserted, 1 edited",
        "       + 21.0       reworded: made anew",
        "       ~ 21.1       reworded",
        "       - 16.0, 20.1 reworded",
        "",
        "  23  repair",
        "      6 items before, 3 after: 3 kept, 3 dropped",
        "       - 18.0 function_call_output 18.0 answers no call before it",
        "       - 20.0 reasoning 20.0 lost what followed it",
        "       - 22.0 function_call_output 22.0 answers no call before it",
        "",
        "cust-42 at version 26: 3 rewrites; --diff 23 shows one item by item",
    ]


def test_only_the_rewrites_up_to_a_version_are_listed(batonlog: Batonlog, path: Path) -> None:
    out = batonlog("history", "cust-42", "--explain", "--at", 13).out

    assert "cust-42 at version 13: 1 rewrite;" in out
    assert "reworded" not in out


def test_where_nothing_was_rewritten_that_is_said(batonlog: Batonlog, path: Path) -> None:
    assert batonlog("history", "cust-7", "--explain").out == (
        "cust-7 at version 5: nothing was rewritten, the model is shown all\n"
    )


def test_a_rewrite_of_a_hundred_kinds_is_cut_and_a_repair_never(batonlog: Batonlog, own: Path) -> None:
    calls: Any = [
        {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(20)
    ]
    puts = [["put", {"role": "user", "content": f"{n}"}, [[1, n], [1, n + 1]]] for n in range(0, 20, 2)]
    mended = Rewrite(
        filter="repair",
        parameters={},
        operations=(["take", 0, 0],),
        repairs=tuple(f"call_without_output: function_call 1.{n} has no output" for n in range(20)),
    )
    started = RunStarted(run_id="r", agent="a", input=tuple(calls), limits=Limits())
    edited = Rewrite(filter="f", parameters={}, operations=tuple(puts))
    rewritten = HistoryRewritten(cause="manual", rewrite=edited)
    asyncio.run(add(own, "edited", started, rewritten))
    asyncio.run(add(own, "mended", started, HistoryRewritten(cause="repair", rewrite=mended)))

    assert "and 12 more lines: --diff 2 shows all" in batonlog("history", "edited", "--explain").out
    assert batonlog("history", "mended", "--explain").out.count("has no output") == 20


def test_in_json_all_rewrites_are_listed_without_what_was_kept(batonlog: Batonlog, path: Path) -> None:
    document = load(batonlog("history", "cust-42", "--explain", "--json").out.encode())

    assert [one["version"] for one in document["rewrites"]] == [12, 21, 23]
    assert document["rewrites"][2]["repairs"][0].startswith("output_without_call: ")
    assert {change["what"] for one in document["rewrites"] for change in one["changes"]} == {
        "dropped",
        "inserted",
        "edited",
    }


# -- what it does to a terminal

COMMANDS = [["--diff", "12"], ["--diff", "21"], ["--diff", "23"], ["--explain"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_that_a_log_holds_steers_the_terminal(
    batonlog: Batonlog, path: Path, command: list[str]
) -> None:
    out = batonlog("history", "cust-42", *command).out

    assert all(letter.isprintable() or letter == "\n" for letter in out)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_in_a_terminal_no_line_is_wider_than_it(
    batonlog: Batonlog, path: Path, command: list[str], width: int
) -> None:
    out = batonlog(
        "history", "cust-42", *command, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm", COLUMNS=str(width)
    ).out

    assert [line for line in re.sub(r"\x1b\[[\d;]*m", "", out).splitlines() if cell_len(line) > width] == []


def test_names_of_filters_and_reasons_are_shown_as_they_are_and_in_one_line(
    batonlog: Batonlog, own: Path
) -> None:
    odd = Rewrite(filter=NASTY, parameters={NASTY: NASTY}, operations=(["take", 0, 1],), repairs=(NASTY,))
    tripped = GuardrailTripped(stage="input", name=NASTY, reason=NASTY, replacement=None, rewrite=odd)
    asyncio.run(add(own, "cust-1", SAID, HistoryRewritten(cause="manual", rewrite=odd), tripped))

    for command in (["--diff", "2"], ["--diff", "3"], ["--explain"]):
        out = batonlog("history", "cust-1", *command).out
        assert all(letter.isprintable() or letter == "\n" for letter in out)


# -- wrong input


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ["cust-42", "--diff", "9"],
            "model.requested at version 9, which rewrites nothing; its rewrites are at 12,",
        ),
        (["cust-42", "--diff", "99"], "there is no version 99; its rewrites are at 12, 21 and 23"),
        (["cust-7", "--diff", "3"], "nothing was ever rewritten in it"),
        (["cust-4", "--diff", "3"], "did you mean cust-42"),
        (["cust-4", "--explain"], "did you mean cust-42"),
        (["cust-42", "--explain", "--at", "99"], "there is no version 99"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_shown_is_an_error_in_one_line(
    batonlog: Batonlog, path: Path, command: list[str], says: str
) -> None:
    done = batonlog("history", *command)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert says in done.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["--diff", "x"], "--diff"),
        (["--diff", "0"], "--diff"),
        (["--diff", "12", "--at", "13"], "leave --at out"),
        (["--diff", "12", "--explain"], "choose one"),
        (["--explain", "--model"], "choose one"),
        (["--diff", "12", "--item", "4.0"], "choose one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_line_that_is_wrong_exits_with_2(
    batonlog: Batonlog, path: Path, command: list[str], says: str
) -> None:
    done = batonlog("history", "cust-42", *command)

    assert (done.code, done.out) == (2, "")
    assert says in done.err


@pytest.mark.parametrize("command", [["--diff", "2"], ["--explain"]], ids=" ".join)
def test_a_damaged_record_is_named(batonlog: Batonlog, own: Path, command: list[str]) -> None:
    asyncio.run(add(own, "cust-1", SAID, HistoryRewritten(cause="manual", rewrite=EDIT)))
    damage(own)
    done = batonlog("history", "cust-1", *command)

    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "record 2 of cust-1" in done.err


def damage(path: Path) -> None:
    """Overwrite the payload of the second record, as a faulty disk would."""
    with sqlite3.connect(path) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE event SET payload = x'7b' WHERE version = 2")
    connection.close()


def test_without_a_rewrite_a_version_that_is_not_there_is_an_error_too(batonlog: Batonlog, own: Path) -> None:
    asyncio.run(add(own, "cust-1", NoteAdded(name="n", data=1)))

    assert (
        "there is no version 2; nothing was ever rewritten in it"
        in batonlog("history", "cust-1", "--diff", 2).err
    )
