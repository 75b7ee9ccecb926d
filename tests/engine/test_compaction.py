"""Compaction: a view that grows too long is rewritten before it is sent, once and for good."""

import asyncio
import sys
from collections.abc import AsyncIterator
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engine.two_messages import look, played, rewrites, texts

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    OpenAIResponsesModel,
    RunFailedError,
    handoff,
)
from batonlog.engine.models import TooLongError
from batonlog.engine.testing import FakeResponsesServer, ScriptedModel, Step, assistant_message, function_call
from batonlog.events import (
    JSON,
    EventLog,
    MemoryLog,
    ModelFailed,
    Ref,
    Usage,
    UsageError,
)
from batonlog.projections import (
    FilterInput,
    History,
    Item,
    Summary,
    drop_tools,
    keep_last,
    messages_only,
    model_request,
    replace_with_summary,
    session_history,
    timeline,
    usage,
)
from batonlog.projections.items import as_item
from batonlog.projections.offers import Parts
from batonlog.projections.request import request_of
from batonlog.projections.view import View


class Counting:
    """A model that says how many tokens each request had: one a character."""

    name = "counting"

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.seen: list[ModelRequest] = []

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        self.seen.append(request)
        size = sum(len(item.text) for item in request.input)
        answer = self.answers.pop(0)
        used = Usage(
            requests=1, input_tokens=size, output_tokens=len(answer), total_tokens=size + len(answer)
        )
        yield ModelResponse([assistant_message(answer)], usage=used)


async def test_a_view_that_passes_the_budget_is_compacted_before_it_is_sent() -> None:
    log = MemoryLog()
    model = Counting("x" * 60, "y" * 60, "z")
    engine = Engine(log, agents=[Agent("a", model=model)], compact=keep_last(2), compact_above=100)
    for text in ("one", "two", "three"):
        await engine.run(text, session="s")
    assert [texts(request.input) for request in model.seen] == [
        ["one"],
        ["one", "x" * 60, "two"],
        ["y" * 60, "three"],
    ]
    records = await log.records("s")
    assert [event.cause for event in rewrites(records)] == ["compaction"]
    assert len(session_history(records)) == 6


async def test_without_a_count_the_bytes_are_estimated() -> None:
    log = MemoryLog()
    _, model = await played(log, "first " * 100, "second", compact=keep_last(1), compact_above=100)
    assert texts(model.requests[-1].input) == ["two"]


async def test_what_is_within_the_budget_is_left_alone() -> None:
    log = MemoryLog()
    await played(log, "first", "second", compact=keep_last(1), compact_above=10_000)
    assert rewrites(await log.records("s")) == []


async def test_a_view_that_a_compaction_cannot_shorten_enough_is_not_compacted_at_every_turn() -> None:
    log = MemoryLog()
    calls = 0

    def one_less(history: History) -> History:
        nonlocal calls
        calls += 1
        return history[1:] if len(history) > 1 else history

    model = ScriptedModel(*[[function_call(look, {})]] * 6, "end")
    agents = [Agent("a", tools=[look], model=model)]
    engine = Engine(log, agents=agents, compact=[drop_tools, one_less], compact_above=1)
    await engine.run(
        [{"role": "user", "content": "x" * 40_000}, {"role": "user", "content": "y" * 40_000}], session="s"
    )
    assert calls == 1


async def test_a_compaction_brings_nothing_back_that_a_handoff_filter_removed() -> None:
    log = MemoryLog()
    kept: list[Any] = []

    def keep_for_later(history: FilterInput[Any]) -> History:
        kept.extend(history)
        return messages_only(history)

    def bring_back(history: FilterInput[Any]) -> list[Any]:
        return [*kept, *history[-1:]] if kept else list(history)

    front = Agent("front", tools=[look], handoffs=[handoff("back", input_filter=keep_for_later)])
    back = Agent("back")
    model = ScriptedModel([function_call(look, {})], [function_call(back, {})], "hello")
    engine = Engine(log, agents=[front, back], model=model, compact=bring_back, compact_above=1)
    with pytest.raises(RunFailedError, match="is not in the history that the filter was given"):
        await engine.run("hi", session="s")


async def test_a_compaction_that_fails_fails_the_run_whole_and_it_can_be_resumed() -> None:
    log = MemoryLog()
    works = False

    async def summarise(history: History) -> str:
        if not works:
            raise ConnectionError("no summary today")
        return "what was said"

    model = ScriptedModel("first", "second")
    agents = [Agent("a", model=model)]
    engine = Engine(
        log, agents=agents, compact=replace_with_summary(summarise, keep_turns=0), compact_above=1
    )
    with pytest.raises(RunFailedError, match="no summary today"):
        await engine.run("one", session="s")
    assert texts(session_history(await log.records("s"))) == ["one"]
    assert model.requests == []
    works = True
    assert (await engine.resume("s")).final_output == "first"
    assert texts(model.requests[0].input) == ["what was said"]


async def test_what_a_summary_cost_is_recorded_and_counts() -> None:
    log = MemoryLog()
    cost = Usage(requests=1, input_tokens=7, output_tokens=2, total_tokens=9)

    async def summarise(history: History) -> str:
        return Summary("what was said", model="small", usage=cost)

    model = ScriptedModel("first")
    agents = [Agent("a", model=model)]
    engine = Engine(
        log, agents=agents, compact=replace_with_summary(summarise, keep_turns=0), compact_above=1
    )
    result = await engine.run("one", session="s")
    records = await log.records("s")
    assert rewrites(records)[0].rewrite.spent == (("small", cost),)
    assert usage(records)["a", "small"] == cost
    assert result.usage == cost + Usage(requests=1)


class Overflowing(ScriptedModel):
    """A model that takes so many items and no more."""

    most = 2

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        if len(request.input) > self.most:
            raise TooLongError("This model's maximum context length is 2 items")
        async for piece in super().respond(request):
            yield piece


async def overflowed(**options: Any) -> tuple[EventLog, Overflowing, Engine]:
    log, model = MemoryLog(), Overflowing("first", "second")
    engine = Engine(log, agents=[Agent("a", model=model)], **options)
    await engine.run("one", session="s")
    return log, model, engine


async def test_a_view_that_the_provider_refuses_for_its_length_is_compacted_once_and_sent_again() -> None:
    log, model, engine = await overflowed(compact=keep_last(1))
    result = await engine.run("two", session="s")
    records = await log.records("s")
    assert result.final_output == "second"
    assert texts(model.requests[-1].input) == ["two"]
    (failed,) = [record.event for record in records if isinstance(record.event, ModelFailed)]
    assert (failed.kind, failed.retried) == ("overflow", True)
    assert [event.cause for event in rewrites(records)] == ["compaction"]


async def test_a_view_that_is_refused_again_fails_the_run() -> None:
    log, _, engine = await overflowed(
        compact=lambda history: [*history[1:], {"role": "user", "content": "!"}]
    )
    with pytest.raises(RunFailedError, match="maximum context length"):
        await engine.run("two", session="s")
    assert len(rewrites(await log.records("s"))) == 1


async def test_a_view_that_gets_no_shorter_fails_the_run_and_says_so() -> None:
    _, _, engine = await overflowed(compact=lambda history: history)
    with pytest.raises(RunFailedError, match="too long for scripted, and <lambda> makes it no shorter"):
        await engine.run("two", session="s")


async def test_without_a_compaction_an_overflow_fails_the_run_and_one_given_later_mends_it() -> None:
    log, model, engine = await overflowed()
    with pytest.raises(RunFailedError, match="maximum context length"):
        await engine.run("two", session="s")
    better = Engine(log, agents=[Agent("a", model=model)], compact=keep_last(2))
    assert (await better.resume("s")).final_output == "second"


async def test_after_an_edit_a_view_that_was_too_long_is_asked_with_again() -> None:
    _, model, engine = await overflowed(compact=lambda history: history)
    with pytest.raises(RunFailedError, match="makes it no shorter"):
        await engine.run("two", session="s")
    await engine.rewrite("s", keep_last(1))
    assert (await engine.run("three", session="s")).final_output == "second"
    assert texts(model.requests[-1].input) == ["two", "three"]


async def test_what_was_too_long_for_one_model_is_sent_to_another() -> None:
    log, _, engine = await overflowed(compact=lambda history: history)
    with pytest.raises(RunFailedError, match="makes it no shorter"):
        await engine.run("two", session="s")
    other = Agent("a", model=ScriptedModel("done", name="larger"))
    engine = Engine(log, agents=[other], compact=lambda history: history)
    assert (await engine.resume("s")).final_output == "done"


async def test_a_view_that_an_edit_made_short_is_compacted_at_the_budget_again() -> None:
    log = MemoryLog()
    sizes: list[int] = []

    def latest(history: History) -> History:
        sizes.append(sum(len(item.held) for item in history))
        return history[-1:]

    model = ScriptedModel(*["ok"] * 8)
    engine = Engine(log, agents=[Agent("a", model=model)], compact=latest, compact_above=500)
    await engine.run("hello", session="s")
    await engine.run("long " * 4000, session="s")  # as short as it gets, and far over the budget
    await engine.rewrite("s", lambda history: [{"role": "user", "content": "short"}])
    for _ in range(4):
        await engine.run("more " * 200, session="s")
    assert len(sizes) > 1
    assert max(sizes[1:]) < 5000


class RefusedError(Exception):
    status_code, code = 400, "context_length_exceeded"


FAILED: dict[str, JSON] = {
    "response": {
        "status": "failed",
        "error": {"code": "context_length_exceeded", "message": "Your input exceeds the context window."},
    }
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("refusal", [RefusedError("too long"), FAILED], ids=["refused", "failed"])
async def test_an_overflow_is_told_by_the_provider(stream: bool, refusal: Step) -> None:
    async with FakeResponsesServer("first", refusal, "second") as server:
        model = OpenAIResponsesModel("m", client=server.client, stream=stream)
        log = MemoryLog()
        engine = Engine(log, agents=[Agent("a", model=model)], compact=keep_last(1))
        await engine.run("one", session="s")
        assert (await engine.run("two", session="s")).final_output == "second"
        assert [event.cause for event in rewrites(await log.records("s"))] == ["compaction"]


async def test_near_the_budget_the_provider_counts() -> None:
    async with FakeResponsesServer("first", "second") as server:
        model = OpenAIResponsesModel("m", client=server.client, count="server")
        log = MemoryLog()
        agents = [Agent("a", instructions="Help.", tools=[look], model=model)]
        engine = Engine(log, agents=agents, compact=keep_last(1), compact_above=120)
        await engine.run("one", session="s")
        await engine.run("two " * 60, session="s")
        (event,) = rewrites(await log.records("s"))
        assert event.cause == "compaction"
        assert not server.refusals


async def test_what_the_server_counts_is_what_it_bills() -> None:
    async with FakeResponsesServer("first") as server:
        model = OpenAIResponsesModel("m", client=server.client, count="server")
        log = MemoryLog()
        agents = [Agent("a", instructions="Help.", tools=[look], model=model)]
        await Engine(log, agents=agents).run("one", session="s")
        records = await log.records("s")
        (turn,) = timeline(records)
        request = model_request(records, at=turn.requested)
        assert await model.count_tokens(request) == turn.usage.input_tokens


async def test_a_provider_that_cannot_count_is_estimated() -> None:
    async with FakeResponsesServer() as server:
        model = OpenAIResponsesModel(
            "m", client=server.client.with_options(base_url=f"{server.base_url}/x"), count="server"
        )
        assert await model.count_tokens(request_of(View(), Parts(), "a", ("there", "m"))) is None


async def test_what_is_no_count_is_estimated() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(page, "127.0.0.1", 0) as server, FakeResponsesServer() as fake:
        port = server.sockets[0].getsockname()[1]
        client = fake.client.with_options(base_url=f"http://127.0.0.1:{port}/v1")
        model = OpenAIResponsesModel("m", client=client, count="server")
        assert await model.count_tokens(request_of(View(), Parts(), "a", ("there", "m"))) is None


async def test_without_tables_to_count_with_it_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(model: str) -> None:
        raise ConnectionError(model)

    tables = SimpleNamespace(__spec__=ModuleSpec("tiktoken", None), encoding_for_model=offline)
    monkeypatch.setitem(sys.modules, "tiktoken", tables)
    async with FakeResponsesServer() as server:
        model = OpenAIResponsesModel("m", client=server.client, count="tiktoken")
        assert await model.count_tokens(request_of(View(), Parts(), "a", ("there", "m"))) is None


async def test_tokens_can_be_counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Encoding:
        def encode_batch(self, texts: list[str], *, disallowed_special: tuple[str, ...]) -> list[list[str]]:
            assert disallowed_special == ()  # what looks like a token of control is text
            return [text.split(" ") for text in texts]

    def unknown(model: str) -> Encoding:
        raise KeyError(model)

    tables = SimpleNamespace(
        __spec__=ModuleSpec("tiktoken", None),
        encoding_for_model=unknown,
        get_encoding=lambda name: Encoding(),
    )
    monkeypatch.setitem(sys.modules, "tiktoken", tables)
    async with FakeResponsesServer() as server:
        model = OpenAIResponsesModel("m", client=server.client, count="tiktoken")
        item = Item(Ref(1, 0), as_item({"role": "user", "content": "a b c <|endoftext|>"}).held)
        request = request_of(View([item]), Parts(instructions="be brief"), "a", ("there", "m"))
        assert await model.count_tokens(request) == 1 + 2 + 4


def test_counting_here_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonlog.engine.openai_responses.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'batonlog\[tiktoken\]'"):
        OpenAIResponsesModel("m", count="tiktoken")


def test_another_way_to_count_is_refused() -> None:
    way: Any = "fingers"
    with pytest.raises(UsageError, match="'server' or 'tiktoken'"):
        OpenAIResponsesModel("m", count=way)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"compact_above": 10}, "needs a filter"), ({"compact": keep_last(1), "compact_above": 0}, "tokens")],
)
def test_a_budget_without_a_filter_or_of_nothing_is_refused(options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Engine(MemoryLog(), **options)
