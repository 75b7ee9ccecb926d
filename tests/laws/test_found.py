"""What the laws have found, each as the smallest example that shows it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw
from tests.laws.play import Store, append
from tests.laws.scripts import JSON

import batonlog.engine.driver as driver
from batonlog.engine import (
    Agent,
    Engine,
    RunFailedError,
    SessionBusyError,
    handoff,
    tool,
)
from batonlog.engine.testing import ScriptedModel, assistant_message, function_call
from batonlog.engine.testing.fake_responses import FakeResponsesServer
from batonlog.events import (
    Event,
    HistoryRewritten,
    InputAdded,
    LogError,
    NoteAdded,
    Record,
    Ref,
    Rewrite,
    RunStarted,
    ToolReturned,
    UsageError,
)
from batonlog.events.codec import fresh
from batonlog.projections import (
    History,
    Item,
    check_legal,
    model_history,
    repair,
    session_history,
)
from batonlog.projections.items import as_item
from batonlog.projections.legality import repaired, violations
from batonlog.projections.request import wire_input
from batonlog.projections.rewrite import operations, rewritten
from batonlog.projections.view import View

ISSUER = ("ScriptedModel", "scripted")


def made(data: JSON, version: int, index: int = 0, **others: Any) -> Item:
    from batonlog.events.values import dump

    return Item(Ref(version, index), Raw(dump(data)), **others)


def call(call_id: str, version: int, index: int = 0) -> Item:
    data = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    return made(data, version, index, issuer=ISSUER)


def output(call_id: str, version: int, answers: Ref) -> Item:
    return made({"type": "function_call_output", "call_id": call_id, "output": "x"}, version, answers=answers)


def reasoning(name: str, version: int, index: int = 0) -> Item:
    return made({"type": "reasoning", "id": name, "summary": []}, version, index, issuer=ISSUER)


def search(name: str, version: int, index: int = 0, *, thought: bool = False) -> Item:
    data = {"type": "web_search_call", "id": name, "status": "completed"}
    return made(data, version, index, issuer=ISSUER, thought=thought)


def said(text: str, version: int) -> Item:
    return made({"role": "user", "content": text}, version)


def through_the_log(before: Sequence[Item], after: Sequence[Item]) -> View:
    """What a rewrite that leads from one to the other makes of the first."""
    changes = operations(before, after)
    assert changes is not None
    event = fresh(
        HistoryRewritten(
            cause="repair", rewrite=Rewrite(filter="f", parameters={}, operations=tuple(changes))
        )
    )
    assert isinstance(event, HistoryRewritten)
    return rewritten(View(before), event.rewrite, past=(), version=99, first=0)


# -- legality, repair and the wire form


def test_an_output_that_was_made_up_answers_its_own_call_though_ids_are_used_again() -> None:
    view = [call("c1", 4, 0), call("c1", 4, 1), output("c1", 6, Ref(4, 1))]
    mended = through_the_log(view, repaired(view, None))
    assert list(violations(list(mended), None)) == []
    assert [item.answers for item in mended if item.type == "function_call_output"] == [Ref(4, 0), Ref(4, 1)]


@pytest.mark.parametrize("call_id", ["", "c" * 70, "\ud800"])
def test_a_call_with_an_id_that_no_provider_takes_is_repaired_all_the_same(call_id: str) -> None:
    view = [call(call_id, 4)]
    mended = through_the_log(view, repaired(view, None))
    assert list(violations(list(mended), None)) == []
    ids = {item["call_id"] for item in map(from_json, wire_input(mended))}
    assert len(ids) == 1
    assert 1 <= len(ids.pop()) <= 64


def from_json(data: bytes) -> JSON:
    import msgspec

    return msgspec.json.decode(data)


def test_two_call_ids_that_differ_in_a_lone_surrogate_stay_apart_on_the_wire() -> None:
    view = [
        call("\ud800", 4, 0),
        call("\ud801", 4, 1),
        output("\ud800", 5, Ref(4, 0)),
        output("\ud801", 6, Ref(4, 1)),
    ]
    one, two, first, second = map(from_json, wire_input(view))
    assert one["call_id"] != two["call_id"]
    assert (first["call_id"], second["call_id"]) == (one["call_id"], two["call_id"])


@pytest.mark.parametrize("changed", ["call", "output"])
def test_a_call_and_its_output_go_out_under_one_id_though_a_filter_changed_one(changed: str) -> None:
    one, two = call("c1", 4), output("c1", 5, Ref(4, 0))
    after = [one.replace(call_id="mine"), two] if changed == "call" else [one, two.replace(call_id="mine")]
    view = through_the_log([one, two], after)
    assert list(violations(list(view), None)) == []
    sent = [item["call_id"] for item in map(from_json, wire_input(view))]
    assert sent == (["mine", "mine"] if changed == "call" else ["c1", "c1"])


def test_an_edited_item_of_an_earlier_view_still_answers_its_call() -> None:
    earlier = View(
        [call("c1", 4, 0), call("c1", 4, 1), output("c1", 5, Ref(4, 0)), output("c1", 6, Ref(4, 1))]
    )
    now = View([said("hi", 8)])
    after = [*earlier[:2], *(item.replace(output="[hidden]") for item in earlier[2:])]
    changes = operations(now, after, past=[(7, earlier)])
    assert changes is not None
    made = Rewrite(filter="f", parameters={}, operations=tuple(changes))
    event = fresh(HistoryRewritten(cause="manual", rewrite=made))
    assert isinstance(event, HistoryRewritten)
    view = rewritten(now, event.rewrite, past=[(7, earlier)], version=99, first=0)
    assert [item.answers for item in view] == [None, None, Ref(4, 0), Ref(4, 1)]


def test_an_output_of_another_type_than_its_call_wants_is_no_answer() -> None:
    one, two = call("c1", 4), output("c1", 5, Ref(4, 0))
    view = through_the_log([one, two], [one, two.replace(type="custom_tool_call_output")])
    rules = [violation.rule for violation in violations(list(view), None)]
    assert rules == ["output_without_call", "call_without_output"]
    assert list(violations(repaired(list(view), None), None)) == []


def test_reasoning_that_was_edited_is_not_sent_back() -> None:
    view = [reasoning("rs_1", 4), made(assistant_message("ok"), 4, 1, issuer=ISSUER)]
    after = through_the_log(view, [view[0].replace(summary=[]), view[1]])
    assert [violation.rule for violation in violations(list(after), ISSUER)] == ["foreign_item"]


def test_an_item_under_an_id_that_its_maker_never_gave_is_not_sent_back() -> None:
    view = [said("hi", 1), search("ws_1", 4)]
    after = through_the_log(view, [view[0], view[1].replace(id="ws_2")])
    assert [violation.rule for violation in violations(list(after), ISSUER)] == ["foreign_item"]
    same = through_the_log(view, [view[0], view[1].replace(status="completed")])
    assert list(violations(list(same), ISSUER)) == []


def test_an_item_that_goes_out_with_its_id_needs_the_reasoning_that_stood_before_it() -> None:
    whole = [said("hi", 1), reasoning("rs_1", 4), search("ws_1", 4, 1, thought=True)]
    assert list(violations(whole, ISSUER)) == []
    without = [whole[0], whole[2]]
    assert [violation.rule for violation in violations(without, ISSUER)] == ["item_without_reasoning"]
    assert repaired(without, ISSUER) == [whole[0]]
    apart = [whole[1], whole[0], whole[2]]
    assert {violation.rule for violation in violations(apart, ISSUER)} == {
        "reasoning_without_follower",
        "item_without_reasoning",
    }


def test_an_item_that_goes_out_without_an_id_needs_no_reasoning() -> None:
    message = made(assistant_message("ok"), 4, 1, issuer=ISSUER, thought=True)
    assert check_legal(History([said("hi", 1), message])) == ()


def test_a_calls_id_that_goes_out_may_not_stand_twice_either() -> None:
    computer = {"type": "computer_call", "id": "cu_1", "call_id": "k1"}
    answer = {"type": "computer_call_output", "call_id": "k1", "output": {}}
    items = [
        made(computer, 4),
        made(answer, 5, answers=Ref(4, 0)),
        made(computer, 6),
        made(answer, 7, answers=Ref(6, 0)),
    ]
    assert [violation.rule for violation in check_legal(History(items))] == ["duplicate_id"]
    assert check_legal(repair(History(items))) == ()


def test_a_view_knows_that_an_id_stands_twice_in_it_and_its_shorter_self_does_not() -> None:
    short = View([reasoning("rs_1", 4)])
    long = short.plus([reasoning("rs_1", 6)])
    assert long.repeats_an_id()
    assert not short.repeats_an_id()
    assert not short.plus([reasoning("rs_2", 6)]).repeats_an_id()
    assert not View([call("c1", 4), call("c1", 6)]).repeats_an_id()


# -- what is an item


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "hi", "name": "bob"},
        {"role": "user", "content": "hi", "status": "whatever"},
        {"role": "user", "content": "hi", "status": ["completed"]},
        {"role": "user", "content": "hi", "id": 7},
        {"role": "user", "content": [{"type": "input_text", "text": "hi", "bold": True}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": 7}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": None}]},
        {"type": "function_call", "call_id": "c9", "name": "x", "arguments": "{}", "parsed": 1},
        {"type": "function_call_output", "call_id": "c9", "output": "x", "tool": "look"},
        {"type": "compaction"},
        {"type": "computer_call"},
        {"type": "local_shell_call", "call_id": "c9"},
        {"type": "shell_call", "call_id": "c9"},
        {"type": "apply_patch_call", "call_id": "c9"},
        {"type": "mcp_approval_request", "id": "mcpr_1"},
        {"type": "item_reference"},
    ],
)
async def test_what_a_provider_would_refuse_makes_no_handoff(value: JSON) -> None:
    back = Agent("back")
    front = Agent("front", handoffs=[handoff(back, input_filter=lambda history: [*history, value])])
    log = Store()
    engine = Engine(log, agents=[front, back], model=ScriptedModel(function_call(back, {})))
    with pytest.raises(RunFailedError):
        await engine.run("hi", session="s")
    records = await log.records("s")
    assert records[-1].type == "run.failed"
    assert "handoff.made" not in [record.type for record in records]
    assert model_history(records) == session_history(records)


def test_an_item_that_a_provider_made_may_keep_what_nobody_has_heard_of() -> None:
    item = made({"role": "assistant", "content": "hi", "mood": "good"}, 4)
    assert item.replace(content="ho").data == {"role": "assistant", "content": "ho", "mood": "good"}
    with pytest.raises(UsageError, match="a message has no field 'weather'"):
        item.replace(weather="fine")


def test_an_item_that_is_made_another_kind_of_item_may_not_keep_its_old_fields() -> None:
    with pytest.raises(UsageError, match="a message has no field"):
        call("c1", 4).replace(type="message", role="user", content="a call once")


@pytest.mark.parametrize(
    "returned",
    [
        None,
        7,
        "text",
        {"role": "user", "content": "hi"},
        [],
        [7],
        [None],
        [{}],
        [{"type": "nonsense"}],
        [{"role": "nobody", "content": "hi"}],
        [{"type": "function_call_output", "call_id": "c7", "output": "an orphan"}],
        [{"type": "reasoning", "id": "rs_1", "summary": []}],
        [{"type": "item_reference", "id": "msg_1"}],
    ],
)
async def test_what_is_no_history_or_leaves_nothing_makes_no_handoff(returned: Any) -> None:
    back = Agent("back")
    front = Agent("front", handoffs=[handoff(back, input_filter=lambda history: returned)])
    log = Store()
    engine = Engine(log, agents=[front, back], model=ScriptedModel(function_call(back, {}), "on my own"))
    with pytest.raises(RunFailedError, match=r"handoff\.filter"):
        await engine.run("hi", session="s")
    records = await log.records("s")
    assert "handoff.made" not in [record.type for record in records]
    assert model_history(records) == session_history(records)
    assert (await engine.run("well?", session="s")).agent == "front"


@pytest.mark.parametrize("item", [{"role": "user", "content": "hi", "id": None}])
def test_an_id_that_is_null_is_none(item: JSON) -> None:
    assert "id" not in as_item(item).data
    assert "id" not in said("hi", 1).replace(id=None).data


# -- requests


async def test_reasoning_under_an_id_that_was_given_before_is_not_sent_twice() -> None:
    def thinks() -> list[JSON]:
        return [{"type": "reasoning", "id": "rs_1", "summary": []}, function_call("look", {}, call_id="c1")]

    @tool
    async def look() -> str:
        """Look."""
        return "x"

    model = ScriptedModel(thinks(), thinks(), "done")
    log = Store()
    await Engine(log, agents=[Agent("a", tools=[look])], model=model).run("hi", session="s")
    sent = [item.type for item in model.requests[-1].input]
    assert sent.count("reasoning") == 1
    assert sent.count("function_call") == 2


async def test_input_for_a_later_run_is_looked_at_before_it_is_sent() -> None:
    log = Store()

    @tool
    async def queue() -> str:
        """Say something for the next run."""
        orphan = {"type": "function_call_output", "call_id": "c7", "output": "x"}
        await append(log, "s", InputAdded(input=(orphan,), goes_to="run", by="u"))
        return "x"

    model = ScriptedModel(function_call("queue", {}, call_id="c1"), "done", "and again")
    engine = Engine(log, agents=[Agent("a", tools=[queue])], model=model)
    await engine.run("hi", session="s")
    await engine.run("again", session="s")
    assert check_legal(model.requests[-1].input) == ()


async def test_input_of_this_turn_that_cannot_be_sent_stops_the_run_and_not_the_session() -> None:
    log = Store()

    @tool
    async def inject() -> str:
        """Add what is no message."""
        orphan = {"type": "function_call_output", "call_id": "c7", "output": "x"}
        await append(log, "s", InputAdded(input=(orphan,), goes_to="turn", by="u"))
        return "x"

    model = ScriptedModel(function_call("inject", {}, call_id="c1"), "fine")
    engine = Engine(log, agents=[Agent("a", tools=[inject])], model=model)
    with pytest.raises(RunFailedError, match="answers no call before it"):
        await engine.run("hi", session="s")
    assert (await engine.run("again", session="s")).final_output == "fine"
    assert check_legal(model.requests[-1].input) == ()


async def test_a_call_that_somebody_gives_breaks_the_chain_where_its_id_may_be_in_use() -> None:
    from batonlog.engine.openai_responses import OpenAIResponsesModel

    @tool
    async def look() -> str:
        """Look."""
        return "x"

    given = [
        function_call("look", {}, call_id="c1"),
        {"type": "function_call_output", "call_id": "c1", "output": "y"},
        {"role": "user", "content": "and?"},
    ]
    async with FakeResponsesServer(function_call("look", {}, call_id="c1"), "one", "two") as server:
        model = OpenAIResponsesModel("m", client=server.client, chain="previous_response_id")
        engine = Engine(Store(), agents=[Agent("a", tools=[look])], model=model)
        await engine.run("hi", session="s")
        await engine.run(given, session="s")
        assert server.refusals == ()
        assert "previous_response_id" not in server.requests[-1]


@pytest.mark.parametrize("output", ["x" * 10_485_761, "é" * 10_485_761, ["x" * 10_485_760]])
async def test_an_output_that_no_provider_takes_is_shown_cut_off_and_kept_whole(output: JSON) -> None:
    from batonlog.engine.openai_responses import OpenAIResponsesModel

    @tool
    async def big() -> object:
        """Return a lot."""
        return output

    log = Store()
    async with FakeResponsesServer(function_call("big", {}, call_id="c1"), "done") as server:
        model = OpenAIResponsesModel("m", client=server.client)
        engine = Engine(log, agents=[Agent("a", tools=[big])], model=model)
        assert (await engine.run("hi", session="s")).final_output == "done"
        assert server.refusals == ()
    (returned,) = [record.event for record in await log.records("s") if record.type == "tool.returned"]
    assert isinstance(returned, ToolReturned)
    assert returned.output == output
    assert len(returned.shown) == 10_485_760
    assert "characters in all]" in returned.shown[-60:]


@pytest.mark.parametrize("output", ["x" * 10_485_760, {"a": 1}, None])
async def test_an_output_that_a_provider_takes_is_shown_as_it_is(output: JSON) -> None:
    @tool
    async def big() -> object:
        """Return a lot."""
        return output

    log = Store()
    model = ScriptedModel(function_call("big", {}, call_id="c1"), "done")
    await Engine(log, agents=[Agent("a", tools=[big])], model=model).run("hi", session="s")
    (returned,) = [record.event for record in await log.records("s") if record.type == "tool.returned"]
    assert isinstance(returned, ToolReturned)
    assert returned.shown is None


# -- who drives


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_FIRST_PAUSE", 0)


class Slow:
    """A tool that waits to be let go, and tells that it has begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

        @tool(idempotent=True)
        async def slow() -> str:
            """Take its time."""
            self.begun.set()
            await self.go.wait()
            return "at last"

        self.tool = slow


def agents(slow: Slow) -> list[Agent[object]]:
    return [Agent("a", tools=[slow.tool])]


async def interrupted(log: Store, slow: Slow) -> None:
    """Leave a run in the middle of a tool call, as a worker does that dies."""
    engine = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {})))
    task = asyncio.ensure_future(engine.run("hi", session="s"))
    await slow.begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_whoever_recovers_finds_a_run_whose_caller_has_gone() -> None:
    log, slow = Store(), Slow()
    await interrupted(log, slow)
    slow.go.set()
    async with Engine(log, agents=agents(slow), model=ScriptedModel("done")) as engine:
        assert await engine.recover() == ("s",)
        assert (await engine.resume("s")).final_output == "done"
        assert await engine.recover() == ()


async def test_whoever_recovers_finds_a_run_that_a_new_one_could_not_supersede() -> None:
    log, slow = Store(), Slow()
    await interrupted(log, slow)
    slow.go.set()
    async with Engine(log, agents=agents(slow), model=ScriptedModel()) as other:
        with pytest.raises(SessionBusyError, match="resume it"):
            await other.run("hello?", session="s")
    async with Engine(log, agents=agents(slow), model=ScriptedModel("done")) as engine:
        assert await engine.recover() == ("s",)
        assert (await engine.resume("s")).final_output == "done"


async def test_a_lease_that_ran_out_with_nothing_to_do_is_given_back() -> None:
    log, slow = Store(), Slow()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel("done"))
    await engine.run("hi", session="s")
    # A worker that dies between its lease and its first append.
    await log.acquire("s", owner="dead", seconds=1)
    log.expire("s")
    await engine.recover()
    await engine.close()
    assert [session async for session in log.expired()] == []


async def test_resume_goes_on_where_whoever_it_joined_has_given_up() -> None:
    log, slow = Store(), Slow()
    await interrupted(log, slow)
    slow.go.set()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel("done"))
    busy, resumed = await asyncio.gather(
        engine.run("hello?", session="s"), engine.resume("s"), return_exceptions=True
    )
    assert isinstance(busy, SessionBusyError)
    assert not isinstance(resumed, BaseException)
    assert resumed.final_output == "done"


class Forgetful(Store):
    """A store that takes the end of the first run, and says that it did not."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Any = None

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        done = await super().append(session, events, **options)
        if self.then is not None and events[-1].type == "run.completed":
            then, self.then = self.then, None
            await then()
            raise LogError("no answer")
        return done


async def test_a_run_returns_what_came_of_itself_though_another_has_begun(at_once: None) -> None:
    log, slow = Forgetful(), Slow()
    other = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {}), "two"))
    tasks: list[asyncio.Task[Any]] = []

    async def begin_another() -> None:
        tasks.append(asyncio.ensure_future(other.run("and?", session="s")))
        await slow.begun.wait()

    log.then = begin_another
    one = Engine(log, agents=agents(slow), model=ScriptedModel("one"))
    result = await one.run("hi", session="s")
    assert (result.status, result.final_output) == ("completed", "one")
    slow.go.set()
    assert (await tasks[0]).final_output == "two"


async def test_a_lease_that_ran_out_and_that_nobody_took_is_good_again_when_it_is_renewed() -> None:
    log, slow = Store(), Slow()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {}), "done"))
    running = asyncio.ensure_future(engine.run("hi", session="s"))
    await slow.begun.wait()
    log.expire("s")
    (claim,) = engine._sessions._claims.values()
    assert claim.driver is not None
    await claim.driver.renew(engine._sessions.owner, 30)
    slow.go.set()
    assert (await running).final_output == "done"


class Dawdling(Store):
    """A store that takes its time with renewals."""

    def __init__(self) -> None:
        super().__init__()
        self.door: asyncio.Event | None = None

    async def acquire(self, session: str, *, owner: str, seconds: float) -> Any:
        if self.door is not None:
            await self.door.wait()
        return await super().acquire(session, owner=owner, seconds=seconds)


async def test_a_renewal_that_comes_late_does_not_keep_others_from_the_session() -> None:
    log, slow = Dawdling(), Slow()
    engine = Engine(log, agents=agents(slow), model=ScriptedModel(function_call("slow", {}), "done"))
    running = asyncio.ensure_future(engine.run("hi", session="s"))
    await slow.begun.wait()
    (claim,) = engine._sessions._claims.values()
    assert claim.driver is not None
    log.door = asyncio.Event()
    renewal = asyncio.ensure_future(claim.driver.renew(engine._sessions.owner, 30))
    await asyncio.sleep(0)
    slow.go.set()
    for _ in range(50):
        await asyncio.sleep(0)
    log.door.set()
    await renewal
    assert (await running).final_output == "done"
    other = Engine(log, agents=agents(slow), model=ScriptedModel("at once"))
    assert (await other.run("and?", session="s")).final_output == "at once"


class Crowded(Store):
    """A store in which somebody else appends just before the first batch of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.first = True

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        if self.first and isinstance(events[0], RunStarted):
            self.first = False
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await super().append(session, [NoteAdded(name="n", data=1)], expected=options["expected"])
        return await super().append(session, events, **options)


async def test_a_stream_ends_though_its_run_had_to_begin_twice() -> None:
    log = Crowded()
    engine = Engine(log, agents=[Agent("a")], model=ScriptedModel("done"))
    stream = engine.stream("hi", session="s")
    types = [update.type async for update in stream if isinstance(update, Record)]
    assert types[-1] == "run.completed"
    assert (await stream.result()).final_output == "done"
