"""History that the provider holds in a conversation: it holds what the model is shown, or it is left for good."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import httpx2
import openai
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, DefaultAsyncHttpx2Client

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    OpenAIResponsesModel,
    Retries,
    RunFailedError,
    ToolContext,
    handoff,
    tool,
)
from batonlog.engine.models import ModelResponse
from batonlog.engine.openai_responses import request_body
from batonlog.engine.testing import (
    FakeResponsesServer,
    ScriptedModel,
    assistant_message,
    crash_everywhere,
    function_call,
)
from batonlog.engine.testing._http import Reply, Request
from batonlog.engine.testing._responses_script import Answer
from batonlog.engine.testing.fake_responses import BrokenStream, Step
from batonlog.events import (
    JSON,
    EventLog,
    EventRedacted,
    MemoryLog,
    ModelFailed,
    ModelRequested,
    Record,
    SQLiteLog,
)
from batonlog.events.values import load
from batonlog.projections import (
    drop_tools,
    keep_last,
    messages_only,
    model_history,
    model_request,
    nest_history,
    own_view,
    server_chain,
)

Chain = Literal["previous_response_id", "conversation"]

BOTH_WAYS = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


# -- a server that says what it has shown


class Watched(FakeResponsesServer):
    """Keeps what each request showed to the model: what the server held, and what it was sent."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(*steps)
        self.shown: list[list[Any] | None] = []
        """None for a request that was answered with an error."""

    def _create_response(self, http: Request) -> Reply:
        self.shown.append(None)
        return super()._create_response(http)

    def _deliver(self, request: dict[str, JSON], outcome: Answer) -> Reply:
        turn = self._held.turn_of(request)
        self.shown[-1] = told([*turn.before, *turn.sent])
        return super()._deliver(request, outcome)

    def holds(self, conversation: str) -> list[Any]:
        """What a conversation holds now."""
        return told(self._held.conversations[conversation].items)

    @property
    def conversations(self) -> list[str | None]:
        """The conversation of each request."""
        return [request.get("conversation") for request in self.requests]

    @property
    def sizes(self) -> list[int]:
        """The number of items of each request."""
        return [len(request["input"]) for request in self.requests]


def told(items: Sequence[Mapping[str, JSON]]) -> list[Any]:
    """What items say, but for ids and the two ways to write a message."""
    return [_told(item) for item in items]


def _told(item: Mapping[str, JSON]) -> Any:
    match item.get("type", "message"):
        case "message":
            content = item["content"]
            return item["role"], content if isinstance(content, str) else content[0]["text"]
        case "function_call":
            # A reused id goes out with a tail in a request that is sent in full.
            return item["call_id"].split("~")[0], item["name"], item["arguments"]
        case "function_call_output":
            return item["call_id"].split("~")[0], item["output"]
        case kind:
            return kind, item["id"]


async def records_of(log: EventLog, session: str = "s") -> tuple[Record, ...]:
    return await log.records(session)


def requests_in(records: Sequence[Record]) -> list[ModelRequested]:
    return [record.event for record in records if isinstance(record.event, ModelRequested)]


async def assert_the_server_shows_what_is_recorded(server: Watched, log: EventLog) -> None:
    """Compare every request with the log, and see that no two sessions share a conversation."""
    asked = [record async for record in log.read_all() if isinstance(record.event, ModelRequested)]
    assert len(asked) == len(server.shown)
    users: dict[str, str] = {}
    for record, shown, body in zip(asked, server.shown, server.requests, strict=True):
        records = await log.records(record.session)
        request = model_request(records, at=record.version)  # raises if its digest does not hold
        assert load(request_body(request, stream="stream" in body, encrypted="include" in body)) == body
        if shown is not None:
            assert shown == told(model_history(records, at=record.version).data)
        assert request.conversation is not None
        assert ("previous_response_id" in body, body["store"]) == (False, True)
        assert (request.first == 0) == (request.conversation not in users)
        assert users.setdefault(request.conversation, record.session) == record.session


# -- agents


@tool
def look(what: str) -> str:
    """Look it up."""
    return f"{what} is here"


LOOK = function_call(look, {"what": "it"})
TO_B = function_call("transfer_to_b", {})
TO_A = function_call("transfer_to_a", {})


def agents(filter: Any = None, *, back: Any = None, model_of_b: Any = None) -> list[Agent[object]]:
    return [
        Agent("a", tools=[look], handoffs=[handoff("b", input_filter=filter)]),
        Agent("b", tools=[look], handoffs=[handoff("a", input_filter=back)], model=model_of_b),
    ]


def model_for(
    server: FakeResponsesServer, name: str = "gpt-5", *, stream: bool = True
) -> OpenAIResponsesModel:
    return OpenAIResponsesModel(name, client=server.client, chain="conversation", stream=stream)


AT_ONCE = Retries(first=0)


def engine_for(
    server: FakeResponsesServer,
    filter: Any = None,
    *,
    log: EventLog | None = None,
    back: Any = None,
    model_of_b: Any = None,
    stream: bool = True,
    retries: Retries = AT_ONCE,
) -> Engine[object]:
    return Engine(
        log if log is not None else MemoryLog(),
        agents=agents(filter, back=back, model_of_b=model_of_b),
        model=model_for(server, stream=stream),
        retries=retries,
    )


# -- only what is new


@BOTH_WAYS
async def test_along_a_conversation_only_what_is_new_goes_out(stream: bool) -> None:
    async with Watched([assistant_message("Let me see."), LOOK, LOOK], "one", LOOK, "two", "three") as server:
        engine = engine_for(server, stream=stream)
        for text in ("go", "more", "and more"):
            await engine.run(text, session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.sizes == [1, 2, 1, 1, 1]
    assert set(server.conversations) == {"conv_1"}
    assert server.refusals == ()


async def test_the_conversation_is_open_and_recorded_before_it_is_asked() -> None:
    async with FakeResponsesServer("one") as server:
        log = MemoryLog()
        seen: list[Any] = []

        class Recording(OpenAIResponsesModel):
            async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
                (requested,) = requests_in(await records_of(log))
                seen.append((requested.conversation, requested.previous_response_id, requested.stored))
                assert list(server._held.conversations) == [request.conversation]
                async for piece in super().respond(request):
                    yield piece

        model = Recording("gpt-5", client=server.client, chain="conversation")
        await Engine(log, agents=[Agent("a")], model=model).run("go", session="s")
    assert seen == [("conv_1", None, True)]


async def test_what_the_provider_holds_is_told() -> None:
    async with FakeResponsesServer("one") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        records = await records_of(engine.log)
    chain = server_chain(records)
    assert chain is not None
    assert (chain.conversation, chain.response_id) == ("conv_1", "resp_1")
    assert list(chain.held) == [item.ref for item in model_history(records)]


async def test_call_ids_that_are_used_again_are_no_matter() -> None:
    again = function_call(look, {"what": "it"}, call_id="c")
    async with Watched(again, "one", again, "two", RuntimeError("no"), again, "three") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        await engine.run("go", session="s")
        with suppress(RunFailedError):
            await engine.run("go", session="s")
        await engine.resume("s")  # in full, with a tail on the second id; then the id comes once more
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.refusals == ()
    sent = [item["call_id"] for item in server.requests[5]["input"] if item.get("type") == "function_call"]
    assert sent[0] == "c"
    assert sent[1].startswith("c~")
    assert server.requests[6]["input"][0]["call_id"] == "c"


async def test_a_call_that_somebody_gives_goes_out_in_a_new_conversation() -> None:
    given = [
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "by hand"},
        {"role": "user", "content": "and now?"},
    ]
    async with Watched(LOOK, "one", "two") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        await engine.run(given, session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_1", "conv_2"]


# -- handoffs


@pytest.mark.parametrize(
    "filter",
    [messages_only, drop_tools, [drop_tools, keep_last(2)]],
    ids=["messages_only", "drop_tools", "two filters"],
)
@BOTH_WAYS
async def test_a_filtered_handoff_goes_on_in_a_new_conversation_that_holds_the_filtered_view(
    filter: Any, stream: bool
) -> None:
    async with Watched([assistant_message("Looking."), LOOK], TO_B, "done", "again") as server:
        engine = engine_for(server, filter, stream=stream)
        assert (await engine.run("go", session="s")).agent == "b"
        assert server.holds("conv_2") == [("user", "go"), ("assistant", "Looking."), ("assistant", "done")]
        await engine.run("more", session="s")
        records = await records_of(engine.log)
        assert server.holds("conv_2") == told(model_history(records).data)
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.refusals == ()
    assert server.conversations == ["conv_1", "conv_1", "conv_2", "conv_2"]
    assert server.sizes == [1, 1, 2, 1]


async def test_no_tool_detail_comes_back_after_it_was_filtered_out() -> None:
    async with Watched(LOOK, TO_B, LOOK, "done", "again", RuntimeError("no"), "still") as server:
        engine = engine_for(server, messages_only)
        await engine.run("go", session="s")
        await engine.run("more", session="s")
        with suppress(RunFailedError):
            await engine.run("more", session="s")
        await engine.resume("s")
        first = server.holds("conv_1")[1]
        assert first not in server.holds("conv_2")
        assert first not in server.holds("conv_3")
        await assert_the_server_shows_what_is_recorded(server, engine.log)


async def test_an_unfiltered_handoff_goes_on_in_the_conversation() -> None:
    async with Watched(LOOK, TO_B, "done", "again") as server:
        engine = engine_for(server)
        assert (await engine.run("go", session="s")).agent == "b"
        await engine.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert set(server.conversations) == {"conv_1"}
    assert server.sizes == [1, 1, 1, 1]


async def test_a_handoff_to_another_model_goes_on_in_a_new_conversation() -> None:
    async with Watched(LOOK, TO_B, "done", "again") as server:
        engine = engine_for(server, model_of_b=model_for(server, "gpt-5-mini"))
        await engine.run("go", session="s")
        await engine.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_1", "conv_2", "conv_2"]
    assert server.sizes == [1, 1, 5, 1]


async def test_reasoning_does_not_follow_to_another_model() -> None:
    thought = {"type": "reasoning", "id": "rs_a", "summary": []}
    async with Watched([thought, TO_B], "done") as server:
        engine = engine_for(server, model_of_b=model_for(server, "gpt-5-mini"))
        await engine.run("go", session="s")
        assert ("reasoning", "rs_a") in server.holds("conv_1")
        assert ("reasoning", "rs_a") not in server.holds("conv_2")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.refusals == ()


async def test_a_nest_is_what_the_next_conversation_begins_with() -> None:
    async with Watched(LOOK, TO_B, "done", TO_A, "again") as server:
        engine = engine_for(server, nest_history, back=nest_history)
        await engine.run("go", session="s")
        await engine.run("back, please", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
        assert server.holds("conv_3") == told(model_history(await records_of(engine.log)).data)
        assert not [item for item in server.holds("conv_3") if len(item) == 3]  # no call
    assert server.conversations == ["conv_1", "conv_1", "conv_2", "conv_2", "conv_3"]
    assert server.refusals == ()


async def test_an_own_view_that_comes_back_does_not_bring_its_conversation_back() -> None:
    async with Watched(LOOK, TO_B, LOOK, TO_A, "done", "more") as server:
        engine = engine_for(server, messages_only, back=own_view)
        await engine.run("go", session="s")
        await engine.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
        assert server.holds("conv_1")[:3] == server.holds("conv_3")[:3]
    assert server.conversations == ["conv_1", "conv_1", "conv_2", "conv_2", "conv_3", "conv_3"]
    assert server.refusals == ()


@pytest.mark.parametrize(
    ("filter", "other"), [(messages_only, None), (None, "gpt-5-mini")], ids=["filter", "model"]
)
async def test_coming_back_never_goes_on_in_an_earlier_conversation(filter: Any, other: str | None) -> None:
    async with Watched("hi", TO_B, TO_A, "done", TO_B, "more") as server:
        engine = engine_for(server, filter, model_of_b=model_for(server, other) if other else None)
        for text in ("hello", "go", "more"):
            await engine.run(text, session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    third = "conv_3" if other else "conv_2"  # a plain way back leaves the view as it is
    last = "conv_4" if other else "conv_3"
    assert server.conversations == ["conv_1", "conv_1", "conv_2", third, third, last]


async def test_transfers_that_were_not_taken_are_not_held_for_the_target() -> None:
    async with Watched([LOOK, TO_B, TO_B], "done") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_2"]
    assert [item for item in server.holds("conv_2") if "transfer_to_b" in item] == [
        ("call_2", "transfer_to_b", "{}")
    ]


# -- what the log says, whoever goes on


@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
async def test_another_process_goes_on_with_what_the_log_says(chain: Chain, tmp_path: Any) -> None:
    path = tmp_path / "log.db"
    async with FakeResponsesServer(LOOK, "one", "two") as server:
        for text in ("go", "more"):
            model = OpenAIResponsesModel("gpt-5", client=server.client, chain=chain)
            async with Engine(path, agents=agents(), model=model) as engine:
                await engine.run(text, session="s")
    first, second, third = server.requests
    assert len(third["input"]) == 1
    if chain == "conversation":
        assert first["conversation"] == second["conversation"] == third["conversation"] == "conv_1"
    else:
        assert (second[chain], third[chain]) == ("resp_1", "resp_2")


@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
async def test_after_a_filtered_handoff_nothing_of_what_was_held_is_continued_in_any_process(
    chain: Chain, tmp_path: Any
) -> None:
    """https://github.com/openai/openai-agents-python/issues/2151"""
    path = tmp_path / "log.db"
    async with FakeResponsesServer(LOOK, TO_B, "b", TO_A, "a", "a again") as server:
        for text in ("refund please", "back", "more"):
            model = OpenAIResponsesModel("gpt-5", client=server.client, chain=chain)
            made = agents(messages_only, back=messages_only)
            async with Engine(path, agents=made, model=model) as engine:
                await engine.run(text, session="s")
        async with SQLiteLog(path) as log:
            asked = requests_in(await records_of(log))
    assert server.refusals == ()
    held: list[set[str]] = [set(), set(), set()]
    for n, request in enumerate(asked):
        begun = held[0 if n < 2 else 1 if n < 4 else 2]
        begun |= {one for one in (request.conversation, request.previous_response_id) if one is not None}
    assert not held[0] & held[1]
    assert not (held[0] | held[1]) & held[2]
    assert [len(request["input"]) for request in server.requests] == [1, 1, 1, 1, 3, 1]
    assert [request.first == 0 for request in asked] == [True, False, True, False, True, False]


@pytest.mark.parametrize("chain", [None, "previous_response_id"])
async def test_a_model_that_keeps_history_otherwise_does_not_go_on_in_a_conversation(
    chain: Any, tmp_path: Any
) -> None:
    path = tmp_path / "log.db"
    async with FakeResponsesServer("one", "two", "three") as server:
        for kind in ("conversation", chain, "conversation"):
            model = OpenAIResponsesModel("gpt-5", client=server.client, chain=kind)
            async with Engine(path, agents=agents(), model=model) as engine:
                await engine.run("go", session="s")
    assert [request.get("conversation") for request in server.requests] == ["conv_1", None, "conv_2"]
    assert [len(request["input"]) for request in server.requests] == [1, 3, 5]
    assert all("previous_response_id" not in request for request in server.requests)


# -- forks


async def test_a_fork_opens_a_conversation_of_its_own_and_the_parent_goes_on_with_its_own() -> None:
    async with Watched("one", "two", "three", "four", "five") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        fork = await engine.fork("s")
        await engine.run("in the fork", session=fork)
        await engine.run("in the parent", session="s")
        await engine.run("more in the fork", session=fork)
        await engine.run("more in the parent", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_2", "conv_1", "conv_2", "conv_1"]
    assert server.sizes == [1, 3, 1, 1, 1]


async def test_a_fork_of_an_earlier_version_knows_nothing_of_what_came_after() -> None:
    async with Watched("one", "two", "other") as server:
        engine = engine_for(server)
        at = (await engine.run("go", session="s")).version
        await engine.run("secret", session="s")
        fork = await engine.fork("s", at=at)
        await engine.run("in the fork", session=fork)
        await assert_the_server_shows_what_is_recorded(server, engine.log)
        assert ("user", "secret") not in server.holds("conv_2")


async def test_a_fork_made_while_a_request_is_open_opens_its_own() -> None:
    forks: list[str] = []

    class Forked(OpenAIResponsesModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            if request.input[-1].text == "fork now":
                forks.append(await engine.fork("s"))
            async for piece in super().respond(request):
                yield piece

    async with Watched("one", "parent", "fork", "more") as server:
        model = Forked("gpt-5", client=server.client, chain="conversation")
        engine = Engine(MemoryLog(), agents=[Agent("a")], model=model)
        await engine.run("go", session="s")
        await engine.run("fork now", session="s")
        other = engine_for(server, log=engine.log)
        assert (await other.resume(forks[0])).final_output == "fork"
        await other.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_1", "conv_2", "conv_1"]


async def test_a_fork_made_in_the_middle_of_a_turn_opens_its_own() -> None:
    forks: list[str] = []
    engines: list[Engine[object]] = []

    @tool
    async def fork_now() -> str:
        """Fork the session in the middle of a turn."""
        forks.append(await engines[0].fork("s"))
        return "forked"

    async with Watched(function_call(fork_now, {}), "parent", "fork") as server:
        engine = Engine[object](MemoryLog(), agents=[Agent("a", tools=[fork_now])], model=model_for(server))
        engines.append(engine)
        await engine.run("go", session="s")
        fork = forks[0]
        await engine.resume(fork)
        (waiting,) = (await engine.status(fork)).open_calls
        await engine.settle(fork, waiting.call, "settled by hand", by="anna")
        await engine.resume(fork)
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_1", "conv_2"]
    assert server.holds("conv_2")[2][1] == "settled by hand"


# -- rewrites and erasure


async def test_after_a_rewrite_the_next_conversation_holds_the_rewritten_view() -> None:
    async with Watched(LOOK, "one", "two", "three") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        await engine.rewrite("s", keep_last(1))
        await engine.run("more", session="s")
        await engine.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
        assert server.holds("conv_2")[:2] == [("assistant", "one"), ("user", "more")]
    assert server.conversations == ["conv_1", "conv_1", "conv_2", "conv_2"]


async def test_after_a_compaction_the_next_conversation_holds_the_compacted_view() -> None:
    async with Watched(LOOK, "x" * 4000, "two", "three") as server:
        engine = Engine(
            MemoryLog(),
            agents=agents(),
            model=model_for(server),
            compact=keep_last(1),
            compact_above=1000,
        )
        for text in ("go", "more", "and more"):
            await engine.run(text, session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_1", "conv_2", "conv_2"]
    assert server.sizes == [1, 1, 1, 1]


async def test_a_view_that_was_too_long_is_compacted_into_a_new_conversation() -> None:
    long = Refused(400, "too long", code="context_length_exceeded")
    async with Watched(LOOK, "one", long, "two") as server:
        engine = Engine(MemoryLog(), agents=agents(), model=model_for(server), compact=keep_last(1))
        await engine.run("go", session="s")
        assert (await engine.run("more", session="s")).final_output == "two"
        await assert_the_server_shows_what_is_recorded(server, engine.log)
        assert server.holds("conv_2") == [("user", "more"), ("assistant", "two")]
    assert server.conversations == ["conv_1", "conv_1", "conv_1", "conv_2"]


@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("when", ["at rest", "while it is asked"])
async def test_an_erasure_ends_what_the_provider_holds(chain: Chain, when: str) -> None:
    log = MemoryLog()

    async def erase() -> None:
        head = await log.head("s")
        assert head is not None
        erased = EventRedacted(target=1, reason="asked for", digest=b"")
        await log.append("s", [erased], expected=head.version)

    class Erasing(OpenAIResponsesModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            if when != "at rest" and request.first == 0 and len(request.input) == 1:
                await erase()
            async for piece in super().respond(request):
                yield piece

    async with FakeResponsesServer("one", "two") as server:
        engine = Engine(log, agents=[Agent("a")], model=Erasing("gpt-5", client=server.client, chain=chain))
        await engine.run("go", session="s")
        if when == "at rest":
            await erase()
        await engine.run("more", session="s")
        asked = requests_in(await records_of(log))
    assert [request.first for request in asked] == [0, 0]
    assert asked[1].previous_response_id is None
    if chain == "conversation":
        assert asked[0].conversation != asked[1].conversation


# -- told to people


def test_the_command_line_names_the_conversation(batonlog: Any, tmp_path: Any) -> None:
    path = tmp_path / "log.db"

    async def play() -> None:
        async with (
            FakeResponsesServer("one", "two") as server,
            Engine(path, agents=agents(), model=model_for(server)) as engine,
        ):
            await engine.run("go", session="s")
            await engine.run("more", session="s")

    asyncio.run(play())
    shown = batonlog("log", "show", "s", "--log", path, COLUMNS="200").out
    assert "opens conv_1" in shown
    assert "continues conv_1 from item 2 on" in shown
    asked = batonlog("history", "s", "--log", path, "--at", "7", COLUMNS="200").out
    assert "1 item sent, continuing conv_1." in asked
    first = batonlog("history", "s", "--log", path, "--at", "3", COLUMNS="200").out
    assert "1 item sent. Its digest" in first


# -- what goes wrong: nobody knows what a conversation holds then


class Refused(Exception):  # noqa: N818  # what the server is to answer
    def __init__(
        self,
        status_code: int,
        message: str = "no",
        *,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.retry_after = retry_after


@pytest.mark.parametrize(
    "breaks",
    [
        Refused(500),
        Refused(400),
        BrokenStream("half of it", after=4),
        BrokenStream("half of it", after=4, kept=True),
        {"response": {"status": "failed"}, "output": [assistant_message("half")]},
    ],
    ids=["error", "refusal", "broken", "broken and kept", "failed"],
)
@BOTH_WAYS
async def test_after_a_failure_resume_goes_on_in_a_new_conversation(breaks: Step, stream: bool) -> None:
    async with Watched(LOOK, "one", breaks, "two", "three") as server:
        engine = engine_for(server, stream=stream, retries=Retries(attempts=1))
        await engine.run("go", session="s")
        with pytest.raises(RunFailedError):
            await engine.run("more", session="s")
        assert server_chain(await records_of(engine.log)) is None
        await engine.resume("s")
        await engine.run("and more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
        assert server.holds("conv_2") == told(model_history(await records_of(engine.log)).data)
    assert server.conversations == ["conv_1", "conv_1", "conv_1", "conv_2", "conv_2"]
    assert server.refusals == ()


class Deaf(httpx2.AsyncBaseTransport):
    """Delivers every request; of some, the answer is never heard."""

    def __init__(self, *unheard: int) -> None:
        self.inner = httpx2.AsyncHTTPTransport()
        self.unheard = unheard
        self.asked = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self.inner.handle_async_request(request)
        if request.url.path.endswith("/responses"):
            self.asked += 1
            if self.asked in self.unheard:
                await response.aclose()
                raise httpx2.ReadTimeout("too slow", request=request)
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


def client_of(server: FakeResponsesServer, transport: httpx2.AsyncBaseTransport | None = None) -> AsyncOpenAI:
    """A client that retries, as one does outside of tests."""
    http = DefaultAsyncHttpx2Client(trust_env=False, transport=transport)
    return AsyncOpenAI(base_url=server.base_url, api_key="x", max_retries=2, http_client=http)


@BOTH_WAYS
async def test_what_may_have_been_added_to_a_conversation_is_not_sent_again(stream: bool) -> None:
    async with Watched("one", "unheard", "two") as server, client_of(server, Deaf(2)) as client:
        model = OpenAIResponsesModel("gpt-5", client=client, chain="conversation", stream=stream)
        engine = Engine(MemoryLog(), agents=[Agent("a")], model=model, retries=AT_ONCE)
        await engine.run("go", session="s")
        assert (await engine.run("more", session="s")).final_output == "two"
        (failed,) = [one.event for one in await records_of(engine.log) if isinstance(one.event, ModelFailed)]
        assert (failed.kind, failed.retried) == ("APITimeoutError", True)
        assert server.holds("conv_1")[-1] == ("assistant", "unheard")  # it was added, and nobody here knows
        await assert_the_server_shows_what_is_recorded(server, engine.log)
        assert ("assistant", "unheard") not in server.holds("conv_2")
    assert server.conversations == ["conv_1", "conv_1", "conv_2"]


@BOTH_WAYS
async def test_what_came_too_fast_is_sent_again_in_a_new_conversation(stream: bool) -> None:
    fast = Refused(429, "too fast", retry_after=0.001)
    async with Watched("one", fast, fast, "two") as server, client_of(server) as client:
        model = OpenAIResponsesModel("gpt-5", client=client, chain="conversation", stream=stream)
        engine = Engine(MemoryLog(), agents=[Agent("a")], model=model, retries=AT_ONCE)
        await engine.run("go", session="s")
        assert (await engine.run("more", session="s")).final_output == "two"
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_1", "conv_2", "conv_3"]
    assert server.sizes == [1, 1, 3, 3]


@pytest.mark.parametrize(
    "fast",
    [Refused(429, "too fast", retry_after=0), Refused(429, "out of money", retry_after=3600)],
    ids=["too often", "too long"],
)
async def test_a_rate_limit_that_does_not_end_fails_the_run(fast: Refused) -> None:
    tries = 3 if fast.retry_after == 0 else 1
    async with FakeResponsesServer(*[fast] * tries) as server, client_of(server) as client:
        model = OpenAIResponsesModel("gpt-5", client=client, chain="conversation")
        engine = Engine(MemoryLog(), agents=[Agent("a")], model=model, retries=AT_ONCE)
        with pytest.raises(RunFailedError) as caught:
            await engine.run("go", session="s")
    assert isinstance(caught.value.__cause__, openai.RateLimitError)


@pytest.mark.parametrize("chain", [None, "previous_response_id", "conversation"])
async def test_the_client_never_asks_again_by_itself(chain: Any) -> None:
    async with FakeResponsesServer(Refused(500)) as server, client_of(server) as client:
        model = OpenAIResponsesModel("gpt-5", client=client, chain=chain)
        engine = Engine(MemoryLog(), agents=[Agent("a")], model=model, retries=Retries(attempts=1))
        with pytest.raises(RunFailedError):
            await engine.run("go", session="s")
    assert len(server.requests) == 1


async def test_an_answer_that_was_cut_off_ends_the_conversation() -> None:
    cut: Step = {"response": {"status": "incomplete"}, "output": [assistant_message("half of"), LOOK]}
    async with Watched(cut, "one") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_2"]


async def test_a_cancel_while_a_request_is_open_ends_the_conversation() -> None:
    class Cancelled(OpenAIResponsesModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            async for piece in super().respond(request):
                if isinstance(piece, Delta) and request.input[-1].text == "stop me":
                    await engine.cancel("s")
                    await asyncio.Event().wait()
                yield piece

    async with Watched("one", "two", "three") as server:
        model = Cancelled("gpt-5", client=server.client, chain="conversation")
        engine = Engine(MemoryLog(), agents=[Agent("a")], model=model)
        await engine.run("go", session="s")
        assert (await engine.run("stop me", session="s")).status == "cancelled"
        assert server_chain(await records_of(engine.log)) is None
        await engine.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_1", "conv_2"]


async def test_a_cancel_between_requests_keeps_the_conversation() -> None:
    engines: list[Engine[object]] = []

    @tool
    async def stop(context: ToolContext[object]) -> str:
        """Have the run cancelled."""
        await engines[0].cancel(context.session, after_turn=True)
        return "stopping"

    async with Watched(function_call(stop, {}), "two") as server:
        engine = Engine[object](MemoryLog(), agents=[Agent("a", tools=[stop])], model=model_for(server))
        engines.append(engine)
        assert (await engine.run("go", session="s")).status == "cancelled"
        await engine.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_1", "conv_1"]
    assert server.sizes == [1, 2]


async def test_a_request_that_a_dead_process_left_open_ends_the_conversation() -> None:
    log = MemoryLog()

    class Slow(OpenAIResponsesModel):
        async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
            async for piece in super().respond(request):
                if request.input[-1].text == "and die":
                    dying.set()
                    await asyncio.Event().wait()
                yield piece

    async with Watched("one", "unheard", "two") as server:
        dying = asyncio.Event()
        first = Engine(
            log, agents=[Agent("a")], model=Slow("gpt-5", client=server.client, chain="conversation")
        )
        await first.run("go", session="s")
        run = asyncio.create_task(first.run("and die", session="s"))
        await dying.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await first.close()
        second = engine_for(server, log=log)
        assert (await second.resume("s")).final_output == "two"
        await assert_the_server_shows_what_is_recorded(server, log)
        assert ("assistant", "unheard") in server.holds("conv_1")
    assert server.conversations == ["conv_1", "conv_1", "conv_2"]
    assert server.sizes == [1, 1, 3]


async def test_what_was_sent_while_a_tool_ran_goes_out_once() -> None:
    engines: list[Engine[object]] = []

    @tool
    async def steered() -> str:
        """Be steered."""
        await engines[0].send("quickly", session="s")
        return "done"

    async with Watched(function_call(steered, {}), "one", "two") as server:
        engine = Engine[object](MemoryLog(), agents=[Agent("a", tools=[steered])], model=model_for(server))
        engines.append(engine)
        await engine.run("go", session="s")
        await engine.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.sizes == [1, 2, 1]


# -- a conversation that the provider does not have


async def test_a_conversation_that_was_deleted_is_asked_again_in_a_new_one() -> None:
    async with Watched(LOOK, "one", "two") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        await server.client.conversations.delete("conv_1")
        assert (await engine.run("more", session="s")).final_output == "two"
        records = await records_of(engine.log)
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    (failed,) = [record.event for record in records if isinstance(record.event, ModelFailed)]
    assert (failed.kind, failed.retried) == ("chain", True)
    assert server.conversations == ["conv_1", "conv_1", "conv_1", "conv_2"]
    assert server.sizes == [1, 1, 1, 5]
    assert server.refusals == ("Conversation with id 'conv_1' not found.",)


@pytest.mark.parametrize(
    "said",
    [
        Refused(404, "Conversation with id 'conv_1' not found."),
        Refused(400, "Invalid conversation id 'conv_1', Malformed identifier."),
        Refused(404, "no such thing", code="conversation_not_found"),
        Refused(
            400, "Another process is currently operating on this conversation.", code="conversation_locked"
        ),
    ],
    ids=["not found", "malformed", "by its code", "locked"],
)
async def test_a_conversation_is_left_when_the_provider_says(said: Refused) -> None:
    async with Watched("one", said, "two") as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        assert (await engine.run("more", session="s")).final_output == "two"
    assert server.conversations == ["conv_1", "conv_1", "conv_2"]


async def test_a_new_conversation_that_is_not_there_fails_the_run() -> None:
    async with FakeResponsesServer(Refused(404, "Conversation with id 'conv_1' not found.")) as server:
        engine = engine_for(server)
        with pytest.raises(RunFailedError) as caught:
            await engine.run("go", session="s")
    assert isinstance(caught.value.__cause__, openai.NotFoundError)
    assert len(server.requests) == 1


async def test_another_fault_is_not_taken_for_a_lost_conversation() -> None:
    async with FakeResponsesServer("one", Refused(404, "The model `gpt-5` does not exist.")) as server:
        engine = engine_for(server)
        await engine.run("go", session="s")
        with pytest.raises(RunFailedError):
            await engine.run("more", session="s")
    assert len(server.requests) == 2


# -- opening one


class Closed(Watched):
    """Opens no conversation at first."""

    def __init__(self, *steps: Step, refuses: int, status: int = 503) -> None:
        super().__init__(*steps)
        self.refuses = refuses
        self.status = status

    def _dispatch(self, request: Request) -> Reply:
        if request.target == "/v1/conversations" and self.refuses:
            self.refuses -= 1
            return self._error(self.status, "not now", kind="server_error")
        return super()._dispatch(request)


async def test_when_none_can_be_opened_now_the_request_goes_out_by_itself_and_the_next_opens_one() -> None:
    async with Closed("one", "two", refuses=1) as server:
        engine = engine_for(server)
        assert (await engine.run("go", session="s")).final_output == "one"
        await engine.run("more", session="s")
        view = told(model_history(await records_of(engine.log)).data)
        assert server.shown == [view[:1], view[:3]]
    assert [request.get("conversation") for request in server.requests] == [None, "conv_1"]
    assert [request["store"] for request in server.requests] == [False, True]
    assert server.sizes == [1, 3]


async def test_where_there_are_none_at_all_the_run_fails_whole_and_can_be_resumed() -> None:
    async with Closed("one", refuses=1, status=404) as server:
        engine = engine_for(server)
        with pytest.raises(RunFailedError, match="not now") as caught:
            await engine.run("go", session="s")
        assert isinstance(caught.value.__cause__, openai.NotFoundError)
        records = await records_of(engine.log)
        assert not requests_in(records)
        assert records[-1].type == "run.failed"
        assert (await engine.resume("s")).final_output == "one"


class Keeper(ScriptedModel):
    """A model of somebody's own that keeps what it was sent."""

    chain = "conversation"

    def __init__(self, *steps: Any, opens: Sequence[object] = ("mine",)) -> None:
        super().__init__(*steps)
        self.opens = list(opens)

    async def open_conversation(self) -> object:
        return self.opens.pop(0)


async def test_a_model_of_ones_own_may_keep_conversations() -> None:
    model = Keeper("one", "two", RuntimeError("no"), "three", opens=["mine", "another"])
    engine = Engine(MemoryLog(), agents=[Agent("a")], model=model)
    await engine.run("go", session="s")
    await engine.run("more", session="s")
    with suppress(RunFailedError):
        await engine.run("more", session="s")
    await engine.resume("s")
    assert [(request.conversation, request.first) for request in model.requests] == [
        ("mine", 0),
        ("mine", 2),
        ("mine", 4),
        ("another", 0),
    ]


async def test_a_response_without_an_id_does_not_end_a_conversation() -> None:
    engine = Engine(MemoryLog(), agents=[Agent("a")], model=Keeper("one"))
    await engine.run("go", session="s")
    chain = server_chain(await records_of(engine.log))
    assert chain is not None
    assert (chain.conversation, chain.response_id, len(chain.held)) == ("mine", "", 2)


@pytest.mark.parametrize("opened", ["", None, 7])
async def test_what_is_no_id_opens_nothing(opened: object) -> None:
    engine = Engine(MemoryLog(), agents=[Agent("a")], model=Keeper(opens=[opened]))
    with pytest.raises(
        RunFailedError, match=r"open_conversation of model scripted returned .*, which is no id"
    ):
        await engine.run("go", session="s")
    assert not requests_in(await records_of(engine.log))


async def test_a_model_that_cannot_open_one_is_told_what_it_lacks() -> None:
    class Incomplete(ScriptedModel):
        chain = "conversation"

    engine = Engine(MemoryLog(), agents=[Agent("a")], model=Incomplete())
    with pytest.raises(RunFailedError, match="has chain='conversation' and no open_conversation: give it"):
        await engine.run("go", session="s")


async def test_a_conflict_while_one_is_opened_opens_another() -> None:
    class Meanwhile(OpenAIResponsesModel):
        opened = 0

        async def open_conversation(self) -> str:
            self.opened += 1
            if self.opened == 1:
                head = await engine.log.head("s")
                if head is not None:
                    await engine.note("s", "meanwhile", 1)
            return await super().open_conversation()

    async with Watched("one", "two") as server:
        model = Meanwhile("gpt-5", client=server.client, chain="conversation")
        engine = Engine(MemoryLog(), agents=[Agent("a")], model=model)
        await engine.send("first", session="s")
        await engine.resume("s")
        await engine.run("more", session="s")
        await assert_the_server_shows_what_is_recorded(server, engine.log)
    assert server.conversations == ["conv_2", "conv_2"]
    assert model.opened == 2


# -- crashes


def answers_by_what_is_shown(server: FakeResponsesServer) -> Step:
    """One answer for one view, however often it is asked for: after a crash it is asked again."""

    def say(request: JSON) -> Step:
        shown = server._held.turn_of(request)
        items = [*shown.before, *shown.sent]
        n = len(items)
        done = [item for item in items if item["type"] == "function_call_output"]
        said: dict[str, JSON] = {**assistant_message(f"Answer {n}."), "id": f"msg_n{n}"}
        match items[-1]["type"], len(done), request["model"]:
            case "message", 0, "gpt-5":
                output = [
                    {**assistant_message("Looking."), "id": f"msg_l{n}"},
                    {**function_call(look, {"what": "it"}, call_id="c"), "id": f"fc_{n}"},
                ]
            case "function_call_output", 1, "gpt-5":
                output = [{**TO_B, "call_id": "h", "id": f"fc_{n}"}]
            case _:
                output = [said]
        usage = {"input_tokens": n, "output_tokens": 1, "total_tokens": n + 1}
        return {"response": {"usage": usage}, "output": output}

    return say


@pytest.mark.parametrize("filter", [messages_only, None], ids=["filtered", "plain"])
async def test_no_crash_can_hurt_a_conversation(filter: Any) -> None:
    @tool(idempotent=True)
    def look(what: str) -> str:
        """Look it up."""
        return f"{what} is here"

    shown: list[Watched] = []

    async def scenario(path: str) -> None:
        server = Watched()
        server._script.extend([answers_by_what_is_shown(server)] * 40)
        shown.append(server)
        async with server:
            cast = [
                Agent[object]("a", tools=[look], handoffs=[handoff("b", input_filter=filter)]),
                Agent[object]("b", model=model_for(server, "gpt-5-mini")),
            ]
            async with Engine(path, agents=cast, model=model_for(server)) as engine:
                assert (await engine.run("go", session="s")).agent == "b"
                await engine.run("more", session="s")
            server._script.clear()  # how often it is asked depends on the crash
        async with SQLiteLog(path) as log:
            asked = requests_in(await records_of(log))
        # What one process had asked for, another never goes on with.
        for conversation in {request.conversation for request in asked}:
            firsts = [request.first for request in asked if request.conversation == conversation]
            assert firsts[0] == 0
            assert 0 not in firsts[1:]

    report = await crash_everywhere(scenario)
    assert report.wrong_logs == report.repeated_effects == ()
    assert report.boundaries >= 20
    assert all(server.refusals == () for server in shown)


# -- the law

DEEP = bool(os.environ.get("BATONLOG_DEEP"))

OPERATIONS = (
    "say",
    "say",
    "look",
    "look",
    "transfer",
    "transfer",
    "fail",
    "unheard",
    "cut",
    "rewrite",
    "restart",
    "fork",
    "delete",
)


def cast(server: FakeResponsesServer, filters: Sequence[Any]) -> list[Agent[object]]:
    """Three agents in a ring and back; the last has another model."""
    ab, bc, ca, ba = filters
    return [
        Agent("a", tools=[look], handoffs=[handoff("b", input_filter=ab)]),
        Agent("b", tools=[look], handoffs=[handoff("c", input_filter=bc), handoff("a", input_filter=ba)]),
        Agent(
            "c",
            tools=[look],
            handoffs=[handoff("a", input_filter=ca)],
            model=model_for(server, "gpt-5-mini", stream=False),
        ),
    ]


def step_of(operation: str, way: int) -> list[Step]:
    """What the model says to one thing that is done."""

    def transfer(request: JSON) -> Step:
        names = [one["name"] for one in request["tools"] if one["name"].startswith("transfer")]
        return {**function_call(look, {}, call_id="t"), "name": names[way % len(names)], "arguments": "{}"}

    reused = function_call(look, {"what": "it"}, call_id="c")
    match operation:
        case "say":
            return ["said"]
        case "look":
            return [[assistant_message("Looking."), reused, {**reused, "call_id": f"d{way}"}], "found"]
        case "transfer":
            return [[reused, LOOK], transfer, "taken over"]
        case "fail":
            return [Refused(500), "after all"]
        case "unheard":
            return [BrokenStream([reused], after=2, kept=way % 2 == 0), "after all"]
        case "cut":
            return [
                {"response": {"status": "incomplete"}, "output": [assistant_message("ha"), reused]},
                "whole",
            ]
        case _:
            return []


@settings(
    max_examples=600 if DEEP else 40,
    derandomize=not DEEP,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
@given(
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3)), min_size=2, max_size=9),
    st.tuples(*[st.sampled_from([None, None, messages_only, drop_tools])] * 4),
    st.booleans(),
    st.booleans(),
)
def test_the_server_shows_the_view_that_is_recorded_whatever_happens(
    operations: list[tuple[str, int]], filters: tuple[Any, ...], stream: bool, again: bool
) -> None:
    async def play() -> None:
        log = MemoryLog()
        async with Watched() as server:
            retries = Retries(attempts=2 if again else 1, first=0)

            def started() -> Engine[Any]:
                model = model_for(server, stream=stream)
                return Engine(log, agents=cast(server, filters), model=model, retries=retries)

            engine = started()
            sessions = ["s"]
            for operation, way in operations:
                session = sessions[way % len(sessions)]
                known = await log.head(session) is not None
                server._script.extend(step_of(operation, way))
                if server._script:
                    try:
                        await engine.run(f"do {operation}", session=session)
                    except RunFailedError:
                        await engine.resume(session)
                elif operation == "restart":
                    await engine.close()
                    engine = started()
                elif operation == "rewrite" and known and len(model_history(await log.records(session))):
                    await engine.rewrite(session, keep_last(1 + way))
                elif operation == "fork" and known:
                    sessions.append(await engine.fork(session))
                elif operation == "delete" and server._held.conversations:
                    await server.client.conversations.delete(max(server._held.conversations))
            await assert_the_server_shows_what_is_recorded(server, log)
            lost = [record async for record in log.read_all() if isinstance(record.event, ModelFailed)]
            assert len(server.refusals) == sum(record.event.kind == "chain" for record in lost)  # type: ignore[attr-defined]
            await engine.close()

    asyncio.run(play())
