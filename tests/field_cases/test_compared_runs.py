"""What the OpenAI Agents SDK's handoffs do, and batonlog's: whole runs. docs/compared.md lists all."""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine import Agent, Engine, RunResult, Tool, ToolContext, handoff, tool
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.events import Event, HandoffMade, LogError, MemoryLog, Record, ToolCalled, ToolReturned
from batonlog.projections import (
    FilterInput,
    History,
    Item,
    check_legal,
    drop_tools,
    model_history,
    nest_history,
    session_history,
)
from batonlog.projections.lines import lines_of

PASS = function_call("transfer_to_pay", {}, call_id="h1")


@tool(idempotent=True)
def look(n: int) -> str:
    """Look something up."""
    return f"secret {n}"


@tool(needs_approval=True)
def charge(n: int) -> str:
    """Take money."""
    return f"charged {n}"


LOOK = function_call(look, {"n": 1}, call_id="c1")
CHARGE = function_call(charge, {"n": 2}, call_id="c2")


def cast(one: Any = None, **options: Any) -> list[Agent[object]]:
    """An agent that passes on to another, with this filter, and that one to a third."""
    to_pay: Any = handoff("pay", input_filter=one, **options)
    to_ship: Any = handoff("ship", input_filter=one)
    tools: list[Tool[Any]] = [look, charge]
    return [
        Agent("front", tools=tools, handoffs=[to_pay]),
        Agent("pay", tools=tools, handoffs=[to_ship]),
        Agent("ship"),
    ]


class Ran:
    """What came of a run."""

    def __init__(self, result: RunResult, records: Sequence[Record], model: ScriptedModel) -> None:
        self.result = result
        self.records = records
        self.requests = model.requests

    @property
    def session(self) -> History:
        return session_history(self.records)

    @property
    def view(self) -> History:
        return model_history(self.records)

    def of(self, kind: type[Event]) -> list[Any]:
        return [record.event for record in self.records if isinstance(record.event, kind)]


async def run(*script: Step, one: Any = None, agents: Sequence[Agent[object]] | None = None) -> Ran:
    with ScriptedModel(*script) as model:
        async with Engine("memory:", agents=agents or cast(one), model=model) as engine:
            result = await engine.run("go", session="s")
            return Ran(result, await engine.log.records("s"), model)


def kinds(history: History) -> list[str]:
    return [item.role or item.type for item in history]


def told(history: History) -> list[Any]:
    (nest,) = [item for item in history if item.lines]
    return [json.loads(part.text) for part in lines_of(nest)[1:]]


PAIR = ["function_call", "function_call_output"]


async def test_without_a_filter_the_target_is_shown_all_seven_items() -> None:
    ran = await run(LOOK, [assistant_message("A moment."), PASS], "Done.")
    assert ran.result.agent == "pay"
    assert kinds(ran.session) == ["user", *PAIR, "assistant", *PAIR, "assistant"]
    assert ran.view == ran.session


async def test_a_filter_may_drop_all_that_the_turn_added() -> None:
    def earlier(history: FilterInput[object]) -> History:
        return history.earlier

    ran = await run(LOOK, [assistant_message("A moment."), PASS], "Done.", one=earlier)
    assert kinds(ran.view) == ["user", *PAIR, "assistant"]
    assert len(ran.session) == 7


class Falsy:
    """A filter that is false, and counts all the same."""

    def __bool__(self) -> bool:
        return False

    def __call__(self, history: History) -> History:
        return drop_tools(history)


async def test_a_filter_that_is_false_counts() -> None:
    with ScriptedModel(LOOK, PASS, "Done.") as model:
        agents = cast(Falsy())
        async with Engine("memory:", agents=agents, model=model, handoff_filter=nest_history) as engine:
            await engine.run("go", session="s")
    assert kinds(model.requests[-1].input) == ["user"]


async def test_after_two_nested_handoffs_one_message_tells_all_that_came_before() -> None:
    script: list[Step] = [
        LOOK,
        [assistant_message("To pay."), PASS],
        [assistant_message("To ship."), function_call("transfer_to_ship", {}, call_id="h2")],
        "Done.",
    ]
    ran = await run(*script, one=nest_history)
    last = ran.requests[-1]
    assert (last.agent, kinds(last.input)) == ("ship", ["assistant", "user"])
    words = [line.get("text", line.get("call", "output")) for line in told(last.input)]
    pair = ["transfer_to_pay", "output"]
    assert words == ["look", "output", "To pay.", *pair, "To ship.", "transfer_to_ship", "output"]


async def test_what_the_target_is_asked_with_is_what_the_log_says_was_shown() -> None:
    ran = await run(LOOK, PASS, "Done.", one=nest_history)
    at = next(record.version for record in reversed(ran.records) if record.type == "model.requested")
    assert model_history(ran.records, at=at) == ran.requests[-1].input


# -- approvals beside and after a handoff, on every path


async def go(engine: Engine[object], text: str | None, *, streamed: bool) -> RunResult:
    """Start a run, or go on with one."""
    if streamed:
        stream = engine.stream(text, session="s")
        assert [update async for update in stream]
        return await stream.result()
    return await (engine.resume("s") if text is None else engine.run(text, session="s"))


@pytest.mark.parametrize("streamed", [False, True])
async def test_after_a_restart_that_an_approval_made_the_target_sees_its_own_tools_alone(
    streamed: bool, tmp_path: Path
) -> None:
    with ScriptedModel(LOOK, PASS, CHARGE, "Done.") as model:
        async with Engine(tmp_path / "a.db", agents=cast(drop_tools), model=model) as engine:
            waits = await go(engine, "go", streamed=streamed)
        async with Engine(tmp_path / "a.db", agents=cast(None), model=model) as engine:
            await engine.approve("s", waits.open_calls[0].call, by="li")
            result = await go(engine, None, streamed=streamed)
            records = await engine.log.records("s")
    assert result.final_output == "Done."
    assert kinds(model.requests[-1].input) == ["user", *PAIR]
    assert model.requests[-1].input[1].data["call_id"] == "c2"
    assert kinds(session_history(records)) == ["user", *PAIR * 3, "assistant"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("verdict", ["approve", "reject"])
@pytest.mark.parametrize("one", [None, nest_history, drop_tools, lambda history: history.earlier])
async def test_a_handoff_beside_a_call_that_waits_is_made_once_when_that_is_decided(
    one: Any, verdict: str, streamed: bool, tmp_path: Path
) -> None:
    with ScriptedModel([LOOK, CHARGE, PASS], "Done.") as model:
        async with Engine(tmp_path / "a.db", agents=cast(one), model=model) as engine:
            waits = await go(engine, "go", streamed=streamed)
        async with Engine(tmp_path / "a.db", agents=cast(one), model=model) as engine:
            decide = engine.approve if verdict == "approve" else engine.reject
            await decide("s", waits.open_calls[0].call, by="li")
            result = await go(engine, None, streamed=streamed)
            records = await engine.log.records("s")
    ran = Ran(result, records, model)
    assert (result.agent, result.final_output) == ("pay", "Done.")
    assert len(ran.of(HandoffMade)) == 1
    outputs = [item.text for item in ran.session if item.type == "function_call_output"]
    assert outputs[0] == "secret 1"
    assert outputs[1] == ("charged 2" if verdict == "approve" else "This call was not approved.")
    assert check_legal(ran.view) == ()
    assert kinds(ran.session) == ["user", *["function_call"] * 3, *["function_call_output"] * 3, "assistant"]


# -- a store that fails, a stream that copies, a run that is cancelled


class Failing(MemoryLog):
    """A log that cannot store a switch, for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        if self.broken and any(isinstance(event, HandoffMade) for event in events):
            raise LogError("the disk is full", session=session)
        return await super().append(session, events, **options)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store that fails be tried again at once."""
    monkeypatch.setattr("batonlog.engine.storing._FIRST_PAUSE", 0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_switch_that_cannot_be_stored_has_not_happened_and_nothing_runs_twice(streamed: bool) -> None:
    log = Failing()
    with ScriptedModel([LOOK, PASS], "Done.") as model:
        engine = Engine(log, agents=cast(drop_tools), model=model)
        with pytest.raises(LogError):
            await go(engine, "go", streamed=streamed)
        assert (await engine.status("s")).agent == "front"
        await engine.close()
        log.broken = False
        engine = Engine(log, agents=cast(drop_tools), model=model)
        result = await go(engine, None, streamed=streamed)
        await engine.close()
    ran = Ran(result, await log.records("s"), model)
    assert (result.agent, result.final_output) == ("pay", "Done.")
    assert len(ran.of(ToolReturned)) == len(ran.of(HandoffMade)) == 1
    calls_and_outputs = ["function_call"] * 2 + ["function_call_output"] * 2
    assert kinds(ran.session) == ["user", *calls_and_outputs, "assistant"]


def as_they_are(history: History) -> History:
    return history


def copies(history: History) -> list[Item]:
    return copy.deepcopy(list(history))


def rebuilt(history: History) -> list[dict[str, Any]]:
    return history.data


@pytest.mark.parametrize("one", [as_they_are, copies, rebuilt, drop_tools])
async def test_a_stream_shows_each_event_once_whatever_a_filter_copies(
    one: Callable[[History], Any],
) -> None:
    with ScriptedModel([assistant_message("To pay."), LOOK, PASS], "Done.") as model:
        async with Engine("memory:", agents=cast(one), model=model) as engine:
            stream = engine.stream("go", session="s")
            seen = [update async for update in stream if isinstance(update, Record)]
            records = await engine.log.records("s")
    assert [record.version for record in seen] == [record.version for record in records]
    texts = [item.text for item in session_history(records) if item.type == "message"]
    assert texts == ["go", "To pay.", "Done."]
    assert [record.event.name for record in seen if isinstance(record.event, ToolCalled)] == ["look"]


async def test_what_a_filter_rebuilds_stands_once_in_the_view_and_never_in_the_session() -> None:
    ran = await run([assistant_message("To pay."), PASS], "Done.", one=rebuilt)
    assert ran.view.data == ran.session.data
    assert [item.ref for item in ran.view] != [item.ref for item in ran.session]


async def test_a_run_that_is_cancelled_after_the_turn_is_handed_over_first() -> None:
    @tool
    async def stop(context: ToolContext[object]) -> str:
        """End the run after this turn."""
        await engine.cancel("s", after_turn=True)
        return "stopping"

    agents = [Agent("front", tools=[stop], handoffs=["pay"]), Agent("pay")]
    with ScriptedModel([function_call(stop, {}), PASS], "Hello again.") as model:
        async with Engine("memory:", agents=agents, model=model) as engine:
            result = await engine.run("go", session="s")
            assert (result.status, result.agent, len(model.requests)) == ("cancelled", "pay", 1)
            records = await engine.log.records("s")
            assert kinds(session_history(records))[1:] == ["function_call"] * 2 + ["function_call_output"] * 2
            assert (await engine.run("hello?", session="s")).agent == "pay"
