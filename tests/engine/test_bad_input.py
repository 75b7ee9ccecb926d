"""What bad input gets: an error that names the thing and the cure, before anything happens where it can.

Names that meet are in test_registry.py, tools' arguments in test_tools.py, handoffs and filters in
test_handoff_runs.py.
"""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    RunFailedError,
    Tool,
    UnknownAgentError,
    tool,
)
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.events import (
    JSON,
    CancelRequested,
    ConflictError,
    FormatError,
    Limits,
    LogError,
    MemoryLog,
    ModelFailed,
    NoteAdded,
    SQLiteLog,
    ToolReturned,
    UnknownEvent,
    UnknownSessionError,
    Usage,
    UsageError,
)
from batonlog.projections import History, check_legal, model_history, session_history
from batonlog.projections.request import wire_input


@tool
def look() -> str:
    """Look."""
    return "seen"


def engine(
    *script: Step, log: Any = "memory:", tools: Sequence[Any] = (look,), **options: Any
) -> Engine[object]:
    return Engine(log, agents=[Agent("a", tools=tools)], model=ScriptedModel(*script), **options)


async def nothing_happened(log: Any, session: str = "s") -> bool:
    return await log.head(session) is None


# -- input


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "input is empty"),
        ((), "input is empty"),
        (None, "input is a text, an item or a list of items, not NoneType"),
        (7, "not int"),
        ({}, r"input\[0\] is no item: an item has a type, or a role and a content"),
        (["text"], r"input\[0\] is str is no item"),
        (
            [{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}],
            r"input\[1\] is no item: .*not 'robot'",
        ),
        ([{"role": "user", "content": {"a": 1}}], r"input\[0\] is no item"),
        ([{"type": "function_call", "name": "x", "arguments": "{}"}], "needs a call_id"),
        ([{"type": "hologram"}], "'hologram' is no type of item"),
        ([{"type": ["message"], "role": "user", "content": "x"}], "no type of item"),
        (b"bytes", r"input\[0\] is int is no item"),
    ],
)
async def test_input_that_is_none_starts_nothing(given: Any, says: str) -> None:
    one = engine()
    with pytest.raises(UsageError, match=says):
        await one.run(given, session="s")
    with pytest.raises(UsageError, match=says):
        await one.send(given, session="s")
    if given is not None:  # which goes on with a session
        with pytest.raises(UsageError, match=says):
            one.stream(given, session="s")
    assert await nothing_happened(one.log)


async def test_an_empty_text_is_a_message() -> None:
    assert (await engine("hi").run("")).final_output == "hi"


async def test_only_messages_can_be_sent_to_a_run() -> None:
    one = engine()
    output = {"type": "function_call_output", "call_id": "x", "output": "y"}
    with pytest.raises(UsageError, match=r"input\[0\] is a function_call_output: only messages can be sent"):
        await one.send([output], session="s")
    assert await nothing_happened(one.log)


async def test_input_that_leaves_nothing_to_show_fails_the_run_and_asks_no_model() -> None:
    one = engine()
    output = {"type": "function_call_output", "call_id": "x", "output": "y"}
    with pytest.raises(RunFailedError, match="nothing to show to a"):
        await one.run([output], session="s")
    assert not [record for record in await one.log.records("s") if record.type == "model.requested"]


async def test_input_with_an_orphan_is_mended_before_it_is_sent() -> None:
    model = ScriptedModel("hi")
    one = Engine("memory:", agents=[Agent("a")], model=model)
    orphan = {"type": "function_call_output", "call_id": "x", "output": "y"}
    await one.run([orphan, {"role": "user", "content": "go"}], session="s")
    assert [item.text for item in model.requests[0].input] == ["go"]
    assert len(session_history(await one.log.records("s"))) == 3


async def test_input_with_a_lone_surrogate_and_nul_comes_back_equal_and_goes_out_clean() -> None:
    model = ScriptedModel("\ud800")
    one = Engine("memory:", agents=[Agent("a", instructions="\udfff")], model=model)
    result = await one.run("a\ud800\0", session="s")
    assert result.final_output == "\ud800"
    history = session_history(await one.log.records("s"))
    assert history[0].text == "a\ud800\0"
    for data in wire_input(history):
        data.decode()
        assert b"\\ud" not in data


# -- sessions


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a/b", "'/' is for the sessions of nested runs"),
        ("", "1 to 500 characters"),
        ("x" * 501, "1 to 500 characters"),
        ("a\nb", "no control characters"),
        ("a\0", "no control characters"),
        (" a", "no blanks at the ends"),
        ("\ud800", "is no name of a session"),
    ],
)
async def test_what_is_no_name_of_a_session_starts_nothing(name: str, says: str) -> None:
    one = engine()
    with pytest.raises(UsageError, match=says):
        await one.run("go", session=name)
    with pytest.raises(UsageError, match=says):
        await one.send("go", session=name)
    with pytest.raises(UsageError, match=says):
        one.stream("go", session=name)
    assert [head async for head in one.log.heads()] == []


@pytest.mark.parametrize("name", ["cust-42", "退款", "a b", "a.b:c", "x" * 500])
async def test_any_printable_name_is_a_session(name: str) -> None:
    assert (await engine("hi").run("go", session=name)).session == name


UNKNOWN: dict[str, Callable[[Engine[object]], Any]] = {
    "resume": lambda one: one.resume("s"),
    "status": lambda one: one.status("s"),
    "approve": lambda one: one.approve("s", "4.0", by="anna"),
    "reject": lambda one: one.reject("s", "4.0", by="anna"),
    "settle": lambda one: one.settle("s", "4.0", "ok", by="anna"),
    "cancel": lambda one: one.cancel("s"),
    "note": lambda one: one.note("s", "n", 1),
    "fork": lambda one: one.fork("s"),
    "updates": lambda one: anext(one.updates("s")),
}


@pytest.mark.parametrize("use", UNKNOWN.values(), ids=UNKNOWN)
async def test_a_session_that_never_was_is_named(use: Callable[[Engine[object]], Any]) -> None:
    one = engine()
    with pytest.raises(UnknownSessionError, match="no session s") as caught:
        await use(one)
    assert caught.value.session == "s"
    assert await nothing_happened(one.log)


# -- engines


@pytest.mark.parametrize("what", ["run", "stream", "resume", "recover"])
async def test_an_engine_without_agents_drives_nothing(what: str) -> None:
    one = Engine("memory:")
    uses: dict[str, Callable[[], Any]] = {
        "run": lambda: one.run("go"),
        "stream": lambda: one.stream("go"),
        "resume": lambda: one.resume("s"),
        "recover": lambda: one.recover(),
    }
    with pytest.raises(
        UsageError, match=f"cannot {'run' if what == 'stream' else what}: this engine has no agents"
    ):
        await uses[what]()


@pytest.mark.parametrize("what", ["run", "stream", "resume", "recover"])
async def test_a_closed_engine_drives_nothing(what: str) -> None:
    one = engine("hi")
    await one.run("go", session="s")
    await one.close()
    uses: dict[str, Callable[[], Any]] = {
        "run": lambda: one.run("go", session="s"),
        "stream": lambda: one.stream("go"),
        "resume": lambda: one.resume("s"),
        "recover": lambda: one.recover(),
    }
    with pytest.raises(UsageError, match="the engine was closed"):
        await uses[what]()


async def test_an_agent_that_is_not_there_starts_nothing() -> None:
    one = engine()
    with pytest.raises(UnknownAgentError, match="no agent boss in this process; it has a"):
        await one.run("go", session="s", agent="boss")
    assert await nothing_happened(one.log)


async def test_going_on_with_a_stream_needs_its_session() -> None:
    with pytest.raises(UsageError, match=r"stream\(None\) goes on with a session: name it"):
        engine().stream(None)


@pytest.mark.parametrize("limits", [{"turns": -1}, {"tokens": -1}, {"seconds": -0.1}, {"handoffs": -1}])
def test_a_limit_below_nothing_is_refused(limits: Any) -> None:
    with pytest.raises(UsageError, match="a limit is at least 0; None is no limit"):
        Limits(**limits)


# -- stores


def foreign(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()


def newer(path: Path) -> None:
    asyncio.run(engine("hi", log=path).run("go", session="s"))
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()


def no_database(path: Path) -> None:
    path.write_text("hello\n" * 1000)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (foreign, "another program"),
        (newer, "has format 99; this batonlog reads up to 1. Upgrade"),
        (no_database, "is no database"),
    ],
)
def test_a_file_that_is_no_log_of_ours_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "a.db"
    make(path)
    before = path.read_bytes()
    one = engine(log=path)
    with pytest.raises(FormatError, match=says):
        one.run_sync("go", session="s")
    asyncio.run(one.close())
    assert path.read_bytes() == before


async def test_a_log_that_is_opened_to_read_takes_no_run(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with engine("hi", log=path) as one:
        await one.run("go", session="s")
    async with SQLiteLog(path, read_only=True) as log:
        two = engine(log=log)
        assert (await two.status("s")).status == "completed"
        with pytest.raises(UsageError, match="was opened read_only: open it without"):
            await two.run("go", session="s")
        with pytest.raises(UsageError, match="was opened read_only: open it without"):
            await two.send("go", session="s")


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    one = engine(log=tmp_path / "nowhere" / "a.db")
    with pytest.raises(LogError, match="is there such a folder"):
        await one.run("go")
    await one.close()


async def test_a_stale_version_stores_nothing_and_says_where_the_session_is() -> None:
    one = engine("hi")
    await one.run("go", session="s")
    before = await one.log.records("s")
    with pytest.raises(
        ConflictError, match=f"cannot append to s at version 2: it is at {len(before)}"
    ) as caught:
        await one.log.append("s", [NoteAdded(name="n", data=1)], expected=2)
    assert caught.value.actual == len(before)
    assert await one.log.records("s") == before


async def test_a_store_that_fails_is_a_typed_error_and_the_run_goes_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(MemoryLog):
        broken = False

        async def append(self, session: str, events: Any, **options: Any) -> Any:
            if self.broken:
                raise LogError("the disk is full")
            return await super().append(session, events, **options)

    monkeypatch.setattr("batonlog.engine.storing._FIRST_PAUSE", 0)
    log = Broken()

    def breaks(request: ModelRequest) -> Step:
        log.broken = True
        return "never stored"

    one = engine(breaks, "hi", log=log)
    with pytest.raises(LogError, match="the disk is full"):
        await one.run("go", session="s")
    log.broken = False
    assert (await one.status("s")).status == "running"
    assert (await one.resume("s")).final_output == "hi"


# -- outputs of tools


@pytest.mark.parametrize(
    "output", ["a\ud800b", "\udfff", "\0", "a\0b\x1b", "x" * 10_000_000, "退" * 1000], ids=range(6)
)
@pytest.mark.parametrize("store", ["memory", "file"])
async def test_any_text_that_a_tool_returns_is_stored_and_comes_back_equal(
    tmp_path: Path, output: str, store: str
) -> None:
    model = ScriptedModel(function_call("give", {}), "done")
    path: Any = "memory:" if store == "memory" else tmp_path / "a.db"
    give = Tool("give", lambda ctx, arguments: output)
    async with Engine(path, agents=[Agent("a", tools=[give])], model=model) as one:
        await one.run("go", session="s")
        records = await one.log.records("s")
    (returned,) = [record.event for record in records if isinstance(record.event, ToolReturned)]
    assert returned.output == output
    assert session_history(records)[2].text == output
    for data in model.requests[1].raw_input:
        text = data.decode()
        assert not re.search("[\ud800-\udfff]", text)
        assert "\\ud8" not in text


# -- models


class Odd:
    """A model that answers with whatever it is given."""

    name = "odd"

    def __init__(self, *pieces: Any) -> None:
        self.pieces = pieces

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece


class NoGenerator:
    name = "no-generator"

    async def respond(self, request: ModelRequest, /) -> Any:
        return ModelResponse([assistant_message("hi")])


DELTA = Delta(kind="text", text="half an ans", agent="a", turn=1)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(
    ("model", "kind", "says"),
    [
        (Odd(), "RuntimeError", "model odd ended its answer without a ModelResponse"),
        (Odd(DELTA), "RuntimeError", "without a ModelResponse"),
        (Odd("text"), "TypeError", "model odd yielded str, which is no Delta and no ModelResponse"),
        (Odd(None), "TypeError", "yielded NoneType"),
        (Odd(LookupError("down")), "LookupError", "down"),
        (Odd(LookupError()), "LookupError", "LookupError"),
        (Odd(LookupError("\ud800")), "LookupError", r"\?"),
        (Odd(asyncio.CancelledError()), "CancelledInsideError", "cancelled"),
        (NoGenerator(), "TypeError", "__aiter__"),
    ],
)
async def test_a_model_that_fails_fails_the_run_whole(model: Any, kind: str, says: str) -> None:
    one = Engine("memory:", agents=[Agent("a")], model=model)
    with pytest.raises(RunFailedError, match=f"{kind}: .*{says}"):
        await one.run("go", session="s")
    types = [record.type for record in await one.log.records("s")]
    assert types[-3:] == ["model.requested", "model.failed", "run.failed"]


async def test_what_had_arrived_of_an_answer_that_broke_is_kept_and_is_no_item() -> None:
    one = Engine("memory:", agents=[Agent("a")], model=Odd(DELTA, DELTA, LookupError("cut")))
    with pytest.raises(RunFailedError, match="cut"):
        await one.run("go", session="s")
    records = await one.log.records("s")
    (failed,) = [record.event for record in records if isinstance(record.event, ModelFailed)]
    assert (failed.partial, failed.retried) == ("half an anshalf an ans", False)
    assert len(session_history(records)) == 1


async def test_a_run_whose_model_failed_goes_on_with_resume_and_repeats_nothing() -> None:
    model = ScriptedModel(LookupError("down"), "hi")
    one = Engine("memory:", agents=[Agent("a")], model=model)
    with pytest.raises(RunFailedError) as caught:
        await one.run("go", session="s")
    assert isinstance(caught.value.__cause__, LookupError)
    assert (await one.resume("s")).final_output == "hi"
    assert [len(request.input) for request in model.requests] == [1, 1]


@pytest.mark.parametrize("odd", [{"id": 7}, {"usage": 7}, {"status": 7}])
async def test_an_answer_that_cannot_be_recorded_fails_the_run(odd: Any) -> None:
    one = Engine("memory:", agents=[Agent("a")], model=Odd(ModelResponse([assistant_message("hi")], **odd)))
    with pytest.raises(RunFailedError, match="ValidationError"):
        await one.run("go", session="s")


@pytest.mark.parametrize("output", ["text", ["text"], [None], [7], {"role": "assistant"}])
def test_a_response_takes_items_and_nothing_else(output: Any) -> None:
    with pytest.raises(UsageError, match="a ModelResponse takes Responses items"):
        ModelResponse(output)


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "hologram", "depth": 3},
        {"type": "function_call", "name": None, "arguments": None, "call_id": None},
        {"type": "function_call", "name": "no name", "arguments": {"a": 1}, "call_id": "x"},
        {"type": "function_call", "call_id": 7},
        {"type": "message", "role": "assistant", "content": None},
        {"type": "reasoning"},
        {},
    ],
)
async def test_odd_items_of_a_model_are_kept_as_they_came_and_the_run_goes_on(odd: JSON) -> None:
    model = ScriptedModel([odd, assistant_message("hm")], "done", "again")
    one = Engine("memory:", agents=[Agent("a", tools=[look])], model=model)
    await one.run("go", session="s")
    await one.run("go on", session="s")
    assert session_history(await one.log.records("s")).data[1] == odd
    assert not check_legal(model_history(await one.log.records("s")))


# -- limits


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_the_limit_of_turns_pauses_the_run_and_nothing_is_lost(turns: int) -> None:
    model = ScriptedModel(function_call(look, {}), function_call(look, {}), "done")
    one = Engine("memory:", agents=[Agent("a", tools=[look])], model=model)
    paused = await one.run("go", session="s", limits=Limits(turns=turns))
    assert (paused.status, paused.reason) == ("paused", f"turns: {turns} of {turns}")
    assert (await one.resume("s")).status == "paused"  # nobody has raised it
    assert len(model.requests) == turns
    assert (await one.resume("s", limits=Limits(turns=3))).final_output == "done"
    assert [item.type for item in model.requests[-1].input] == [
        "message",
        *["function_call", "function_call_output"] * 2,
    ]


async def test_the_limits_of_the_engine_are_the_default() -> None:
    one = engine(function_call(look, {}), log="memory:", limits=Limits(turns=1))
    assert (await one.run("go")).reason == "turns: 1 of 1"


async def test_the_limit_of_tokens_pauses_the_run() -> None:
    class Dear(ScriptedModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            async for piece in super().respond(request):
                if isinstance(piece, ModelResponse):
                    piece.usage = Usage(requests=1, total_tokens=60)
                yield piece

    model = Dear(function_call(look, {}), function_call(look, {}), "done")
    one = Engine("memory:", agents=[Agent("a", tools=[look])], model=model)
    paused = await one.run("go", session="s", limits=Limits(tokens=100))
    assert (paused.reason, paused.usage.total_tokens) == ("tokens: 120 of 100", 120)
    assert (await one.resume("s", limits=Limits(tokens=200))).final_output == "done"


async def test_the_limit_of_seconds_pauses_the_run_and_counts_from_the_resumption_on() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def clock() -> datetime:
        return now

    @tool
    async def wait() -> str:
        nonlocal now
        now += timedelta(seconds=61)
        return "waited"

    model = ScriptedModel(function_call(wait, {}), function_call(wait, {}), "done")
    one = Engine("memory:", agents=[Agent("a", tools=[wait])], model=model, clock=clock)
    paused = await one.run("go", session="s", limits=Limits(seconds=60))
    assert (paused.status, paused.reason) == ("paused", "seconds: 60.0")
    assert (await one.resume("s")).reason == "seconds: 60.0"
    assert (await one.resume("s")).final_output == "done"


async def test_a_new_message_after_a_limit_starts_a_new_run() -> None:
    one = engine(function_call(look, {}), "hi")
    await one.run("go", session="s", limits=Limits(turns=1))
    assert (await one.run("go on", session="s")).final_output == "hi"


# -- log and code disagree


async def test_an_agent_that_a_session_needs_and_this_process_lacks_is_named() -> None:
    log = MemoryLog()
    first = Engine(log, agents=[Agent("a", tools=[look])], model=ScriptedModel(function_call(look, {})))
    await first.run("go", session="s", limits=Limits(turns=1))
    before = await log.records("s")
    second = Engine(log, agents=[Agent("b")], model=ScriptedModel())
    with pytest.raises(UnknownAgentError, match="no agent a in this process; it has b"):
        await second.resume("s", limits=Limits(turns=2))
    with pytest.raises(UnknownAgentError, match="no agent a in this process; it has b"):
        await second.run("go on", session="s")
    assert await log.records("s") == before


@pytest.mark.parametrize("approved", [True, False])
async def test_a_tool_that_a_session_needs_and_this_process_lacks_is_an_answer(approved: bool) -> None:
    log = MemoryLog()
    gated = tool(name="gone", needs_approval=True)(lambda: "never")
    first = Engine(log, agents=[Agent("a", tools=[gated])], model=ScriptedModel(function_call(gated, {})))
    (call,) = (await first.run("go", session="s")).open_calls
    if approved:
        await first.approve("s", call.call, by="anna")
    else:
        await first.reject("s", call.call, by="anna", reason="no")
    model = ScriptedModel("done")
    second = Engine(log, agents=[Agent("a")], model=model)
    assert (await second.resume("s")).final_output == "done"
    said = "gone is not available any more. Go on without it." if approved else "no"
    assert model.requests[0].input[-1].text == said


async def test_arguments_that_a_tool_no_longer_takes_when_its_call_was_lost_are_an_answer() -> None:
    log = MemoryLog()
    begun = asyncio.Event()

    @tool(name="find", idempotent=True)
    async def old(id: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    @tool(name="find", idempotent=True)
    async def new(number: int) -> str:
        return "never"

    first = Engine(
        log, agents=[Agent("a", tools=[old])], model=ScriptedModel(function_call("find", {"id": "7"}))
    )
    running = asyncio.ensure_future(first.run("go", session="s"))
    await begun.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    model = ScriptedModel("done")
    second = Engine(log, agents=[Agent("a", tools=[new])], model=model)
    assert (await second.resume("s")).final_output == "done"
    assert "Nobody knows whether it took effect" in model.requests[0].input[-1].text


UNKNOWN_EVENT = UnknownEvent(tag="view.cleared", data={"everything": True})


@pytest.mark.parametrize("what", ["run", "resume"])
async def test_a_session_with_an_event_of_a_newer_version_is_not_gone_on_with(what: str) -> None:
    one = engine(function_call(look, {}))
    await one.run("go", session="s", limits=Limits(turns=1))
    at = await one.log.append("s", [UNKNOWN_EVENT], expected=(await one.status("s")).version)
    uses: dict[str, Callable[[], Any]] = {
        "run": lambda: one.run("go", session="s"),
        "resume": lambda: one.resume("s"),
    }
    with pytest.raises(
        UsageError, match=rf"s holds view\.cleared at version {at.version}.* Upgrade"
    ) as caught:
        await uses[what]()
    assert (caught.value.session, caught.value.version) == ("s", at.version)
    assert (await one.log.head("s")).version == at.version  # type: ignore[union-attr]


async def test_an_event_of_a_newer_version_that_comes_in_meanwhile_stops_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batonlog.engine.flights.LOOKOUT", 0)
    log = MemoryLog()

    class Slow(ScriptedModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            head = await log.head("s")
            assert head is not None
            await log.append("s", [UNKNOWN_EVENT], expected=head.version)
            for _ in range(20):  # time enough to notice
                await asyncio.sleep(0)
            async for piece in super().respond(request):
                yield piece

    one = Engine(log, agents=[Agent("a")], model=Slow("shown what was hidden"))
    with pytest.raises(UsageError, match=r"holds view\.cleared"):
        await one.run("go", session="s")
    assert (await log.records("s"))[-1].type == "view.cleared"


async def test_a_call_key_that_is_none_is_refused() -> None:
    one = engine("hi")
    await one.run("go", session="s")
    for key in ("", "7", "4.x", "-1.0", "4.0.0", "4.0/7.1"):
        with pytest.raises(UsageError, match=r"is no ref: write version\.index, as in 7\.1"):
            await one.approve("s", key, by="anna")


async def test_a_note_that_json_cannot_hold_is_refused() -> None:
    one = engine("hi")
    await one.run("go", session="s")
    with pytest.raises(UsageError, match="cannot be stored"):
        await one.note("s", "n", object())


async def test_an_output_that_json_cannot_hold_settles_nothing() -> None:
    one = engine(function_call("pick", {}), tools=[Tool("pick", None)])
    (call,) = (await one.run("go", session="s")).open_calls
    with pytest.raises(UsageError, match=f"the output for call {call.call} cannot be stored as JSON"):
        await one.settle("s", call.call, object(), by="anna")
    assert (await one.status("s")).open_calls == (call,)


async def test_cancelling_nothing_is_refused() -> None:
    one = engine("hi")
    await one.run("go", session="s")
    with pytest.raises(UsageError, match="s has no open run to cancel"):
        await one.cancel("s")
    assert not [r for r in await one.log.records("s") if isinstance(r.event, CancelRequested)]


@pytest.mark.parametrize("at", [0, 99, -1])
async def test_a_fork_at_a_version_that_is_not_there_is_refused(at: int) -> None:
    one = engine("hi")
    await one.run("go", session="s")
    with pytest.raises(UsageError, match="version"):
        await one.fork("s", at=at, into="t")
    assert await nothing_happened(one.log, "t")


async def test_a_fork_into_a_session_that_exists_is_refused() -> None:
    one = engine("hi", "hi")
    await one.run("go", session="s")
    await one.run("go", session="t")
    with pytest.raises(ConflictError, match=r"t exists already, at version 5\. Give a new name"):
        await one.fork("s", into="t")


@pytest.mark.parametrize("name", ["a/b", "", " a", "x" * 501])
async def test_a_fork_into_what_is_no_name_of_a_session_is_refused(name: str) -> None:
    one = engine("hi")
    await one.run("go", session="s")
    with pytest.raises(UsageError, match=r"name"):
        await one.fork("s", into=name)
    assert [head.session async for head in one.log.heads()] == ["s"]


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


WORDS: dict[str, Callable[[Engine[object], str], Any]] = {
    "approve": lambda one, call: one.approve("s", call, by="li"),
    "reject": lambda one, call: one.reject("s", call, by="li"),
    "settle": lambda one, call: one.settle("s", call, "ok", by="li"),
}
words = pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)


@words
async def test_a_call_that_is_unknown_foreign_decided_or_settled_is_not_decided(
    word: Callable[[Engine[object], str], Any],
) -> None:
    log = MemoryLog()
    one = engine(function_call(pay, {}), "hi", function_call(pay, {}), log=log, tools=[pay])
    (waits,) = (await one.run("go", session="s")).open_calls
    call = str(waits.call)
    await one.run("go", session="t")
    await one.run("go", session="t")
    (foreign,) = (await one.status("t")).open_calls
    assert foreign.call != waits.call

    async def refused(key: str, says: str) -> None:
        before = await log.records("s")
        with pytest.raises(UsageError, match=says):
            await word(one, key)
        assert await log.records("s") == before

    await refused("99.0", f"s has no open call 99.0; waiting: {call}")
    await refused("1.0", f"s has no open call 1.0; waiting: {call}")
    await refused(str(foreign.call), f"s has no open call {foreign.call}; waiting: {call}")
    await one.settle("s", call, "paid", by="anna")
    await refused(call, f"call {call} of s .pay. was decided already, by anna")
    model = ScriptedModel("done")
    await Engine(log, agents=[Agent("a", tools=[pay])], model=model).resume("s")
    await refused(call, f"s has no open call {call}; waiting: none")


async def test_cancelling_twice_is_refused_and_recorded_once() -> None:
    one = engine(function_call(pay, {}), tools=[pay])
    await one.run("go", session="s")
    await one.cancel("s")
    before = await one.log.records("s")
    with pytest.raises(UsageError, match="s has no open run to cancel"):
        await one.cancel("s")
    assert await one.log.records("s") == before
    assert [record.type for record in before].count("run.cancelled") == 1


async def test_resuming_a_run_that_has_ended_gives_its_result_again_and_records_nothing() -> None:
    one = engine("hi")
    first = await one.run("go", session="s")
    before = await one.log.records("s")
    for _ in range(3):
        again = await one.resume("s")
        assert (again.run_id, again.final_output, again.version) == (first.run_id, "hi", first.version)
    assert await one.log.records("s") == before


async def test_two_engines_that_recover_at_once_do_everything_once() -> None:
    log, begun = MemoryLog(), asyncio.Event()
    ran: list[str] = []

    @tool(idempotent=True)
    async def wait() -> str:
        ran.append("x")
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return "waited"

    lost = engine(function_call(wait, {}), log=log, tools=[wait])
    running = asyncio.ensure_future(lost.run("go", session="s"))
    await begun.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    both = [engine("done", log=log, tools=[wait]) for _ in range(2)]
    await asyncio.gather(*(one.recover() for one in both))
    async for _ in lost.updates("s"):  # until it rests
        pass
    await asyncio.gather(*(one.close() for one in both))
    types = [record.type for record in await log.records("s")]
    assert len(ran) == 2  # once before the crash, and once after it
    assert types.count("run.resumed") == types.count("tool.returned") == types.count("run.completed") == 1


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda one: one.approve("s", None, by="anna"), "None is no call key: give one such as '4.0'"),
        (lambda one: one.settle("s", 7, "x", by="anna"), "7 is no call key"),
        (lambda one: one.fork("s", at="3"), "at='3' is no version: give a number"),
        (lambda one: one.fork("s", at=2.5), "at=2.5 is no version"),
        (lambda one: one.resume(None), "a session's name is a text"),
    ],
)
async def test_what_is_of_another_type_is_named(use: Callable[[Engine[object]], Any], says: str) -> None:
    one = engine("hi")
    await one.run("go", session="s")
    with pytest.raises(UsageError, match=says):
        await use(one)


def test_a_history_of_nothing_is_legal() -> None:
    assert not check_legal(History())
