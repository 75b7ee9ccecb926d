"""The fake Responses API answers as OpenAI does, and refuses what OpenAI refuses."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.conversations import ConversationItem
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from batonlog.engine.testing.fake_responses import BrokenStream, FakeResponsesServer, Step

JSON = Any

USER = {"role": "user", "content": "hi"}
MODEL = "gpt-5"
SEALED = ["reasoning.encrypted_content"]


def call(call_id: str | None = "call_a", **more: JSON) -> dict[str, JSON]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}", **more}


def output(call_id: str = "call_a", **more: JSON) -> dict[str, JSON]:
    return {"type": "function_call_output", "call_id": call_id, "output": "found", **more}


def reasoning(**more: JSON) -> dict[str, JSON]:
    return {"type": "reasoning", "summary": [], **more}


def assistant(text: str = "yes", **more: JSON) -> dict[str, JSON]:
    return {"type": "message", "role": "assistant", "content": text, **more}


def function(schema: JSON = None, **more: JSON) -> dict[str, JSON]:
    return {"type": "function", "name": "look", "parameters": schema, **more}


async def post(
    server: FakeResponsesServer, body: Mapping[str, JSON] | bytes, path: str = "/responses"
) -> JSON:
    """Send a body as it is, past the typed client's own ideas, and return what came back."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response: httpx2.Response = await server.client.post(
        path,
        content=content,
        cast_to=httpx2.Response,
        options={"headers": {"Content-Type": "application/json"}},
    )
    return response.json()


async def create(server: FakeResponsesServer, *items: JSON, **more: JSON) -> JSON:
    return await post(server, {"model": MODEL, "input": list(items) or [USER], **more})


def state_of(server: FakeResponsesServer) -> str:
    """Everything that a refused request must leave alone."""
    return repr((vars(server._held), server._script))


async def refusal(
    server: FakeResponsesServer, *items: JSON, body: JSON = None, path: str = "/responses", **more: JSON
) -> dict[str, JSON]:
    """Send a request that must be refused; return the error, having seen that nothing else has changed."""
    before, refused = state_of(server), len(server.refusals)
    if body is None:
        body = {"model": MODEL, "input": list(items) or [USER], **more}
    with pytest.raises(openai.APIStatusError) as caught:
        await post(server, body, path)
    error: dict[str, JSON] = caught.value.response.json()["error"]
    assert caught.value.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error.keys() == {"message", "type", "param", "code"}
    assert state_of(server) == before
    assert server.refusals[refused:] == (error["message"],)
    return error


@pytest.fixture
async def server() -> AsyncIterator[FakeResponsesServer]:
    """A server of one step, which only an accepted request may take."""
    async with FakeResponsesServer("spare") as server:
        yield server
        await create(server)


# -- answers


async def test_text_is_answered_as_a_message() -> None:
    async with FakeResponsesServer("Hello.") as server:
        response = await server.client.responses.create(model=MODEL, input="hi")
    assert response.output_text == "Hello."
    assert response.status == "completed"
    assert [item.to_dict() for item in response.output] == [
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}],
        }
    ]


ITEMS = [
    reasoning(summary=[{"type": "summary_text", "text": "Let me think about it."}]),
    {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Looking…"}, {"type": "refusal", "refusal": "no"}],
    },
    {"type": "function_call", "name": "look", "arguments": '{"question": "where is it?"}'},
    {"type": "custom_tool_call", "call_id": "call_x", "name": "shell", "input": "ls -la /tmp/somewhere"},
    {
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "it", "queries": ["it"]},
    },
]


async def test_items_are_completed_with_ids_and_status() -> None:
    async with FakeResponsesServer(ITEMS) as server:
        items = (await create(server))["output"]
    assert [item["id"] for item in items] == ["rs_1", "msg_1", "fc_1", "ctc_1", "ws_1"]
    assert items[0].keys() == {"id", "type", "summary"}
    assert items[1]["status"] == items[2]["status"] == "completed"
    assert items[2]["call_id"] == "call_1"


async def test_a_scripted_id_is_kept_and_never_given_out_again() -> None:
    async with FakeResponsesServer([call("mine", id="fc_1"), call("yours", id=None)]) as server:
        items = (await create(server))["output"]
    assert [(item["id"], item["call_id"]) for item in items] == [("fc_1", "mine"), ("fc_2", "yours")]


async def test_no_id_is_given_out_that_the_request_uses() -> None:
    async with FakeResponsesServer([call(None), call(None)]) as server:
        items = (await create(server, USER, call("call_1"), output("call_1")))["output"]
    assert [item["call_id"] for item in items] == ["call_2", "call_3"]


async def test_every_answer_is_a_response_by_the_clients_own_types() -> None:
    async with FakeResponsesServer(ITEMS, "text") as server:
        tools = [function({"type": "object", "properties": {}}, strict=False)]
        first = await create(
            server,
            instructions="Be brief.",
            tools=tools,
            metadata={"a": "b"},
            temperature=0,
            reasoning={"effort": "low"},
            include=SEALED,
        )
        second = await create(server, assistant(), USER, store=False)
    parsed = Response.model_validate(first, strict=False)
    assert (parsed.instructions, parsed.temperature, parsed.metadata) == ("Be brief.", 0, {"a": "b"})
    assert first["tools"] == tools
    assert (first["tool_choice"], first["parallel_tool_calls"], first["previous_response_id"]) == (
        "auto",
        True,
        None,
    )
    assert (first["store"], second["store"]) == (True, False)
    assert first["reasoning"] == {"effort": "low", "summary": None}
    assert first["text"] == {"format": {"type": "text"}}
    Response.model_validate(second)


async def test_usage_is_estimated_the_same_way_every_time() -> None:
    async def usage() -> JSON:
        async with FakeResponsesServer(ITEMS, "longer" * 100) as server:
            return [(await create(server))["usage"], (await create(server, USER, USER))["usage"]]

    first, second = await usage()
    assert [first, second] == await usage()
    assert first["total_tokens"] == first["input_tokens"] + first["output_tokens"]
    assert 0 < first["output_tokens_details"]["reasoning_tokens"] < first["output_tokens"]
    assert second["input_tokens"] > first["input_tokens"]
    assert second["output_tokens"] > 150


async def test_a_function_answers_what_it_is_asked() -> None:
    def echo(request: JSON) -> Step:
        text: str = request["input"][0].pop("content")
        return lambda _request: text.upper()

    async with FakeResponsesServer(echo) as server:
        response = await create(server, {"role": "user", "content": "abc"})
        assert server.requests[0]["input"] == [{"role": "user", "content": "abc"}]
    assert response["output"][0]["content"][0]["text"] == "ABC"


async def test_a_response_may_be_cut_off() -> None:
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3,
    }
    fields = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": usage}
    step = {"response": fields, "output": [assistant("I will"), call(arguments='{"a": ')]}
    async with FakeResponsesServer(step) as server:
        response = Response.model_validate(await create(server))
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.total_tokens == 3
    assert [item.to_dict()["status"] for item in response.output] == ["completed", "incomplete"]


async def test_a_response_may_fail_and_is_then_no_ground_to_continue_from() -> None:
    error = {"code": "server_error", "message": "The model is tired."}
    async with FakeResponsesServer({"response": {"status": "failed", "error": error}}) as server:
        response = Response.model_validate(await create(server))
        assert response.status == "failed"
        assert response.error is not None
        assert response.error.message == "The model is tired."
        found = await refusal(server, previous_response_id=response.id)
    assert found["code"] == "previous_response_not_found"


async def test_an_exception_is_a_server_error() -> None:
    async with FakeResponsesServer(RuntimeError("down"), "up") as server:
        with pytest.raises(openai.InternalServerError, match="down") as caught:
            await create(server)
        await create(server)
    assert caught.value.status_code == 500
    assert caught.value.response.json()["error"]["type"] == "server_error"
    assert not server.refusals


async def test_an_exception_may_bring_its_status_and_when_to_come_again() -> None:
    class SlowDownError(Exception):
        status_code = 429
        code = "rate_limit_exceeded"
        retry_after = 7

    async with FakeResponsesServer(SlowDownError("slowly")) as server:
        with pytest.raises(openai.RateLimitError, match="slowly") as caught:
            await create(server)
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.request_id == "req_1"


async def test_an_exception_may_bring_headers() -> None:
    class BusyError(Exception):
        status_code = 503
        headers = {"X-Should-Retry": False, "retry-after-ms": 20}  # noqa: RUF012

    async with FakeResponsesServer(BusyError("busy")) as server:
        with pytest.raises(openai.InternalServerError, match="busy") as caught:
            await create(server)
    assert caught.value.response.headers["x-should-retry"] == "False"
    assert caught.value.response.headers["retry-after-ms"] == "20"


async def test_a_connection_error_drops_the_connection() -> None:
    async with FakeResponsesServer(ConnectionResetError("gone"), "back") as server:
        with pytest.raises(openai.APIConnectionError):
            await create(server)
        await create(server)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "step",
    [
        7,
        b"bytes",
        ["text"],
        {"content": "no type"},
        {"role": "user", "content": "not the model's"},
        {"role": "assistant", "content": ["text"]},
        {"role": "assistant", "content": None},
        {"type": "function_call", "arguments": "{}"},
        {"type": "function_call", "name": "look"},
        {"type": "function_call", "name": "look", "arguments": {}},
        {"type": "item_reference", "id": "msg_1"},
        {"response": {"status": "queued"}},
        {"response": {"output": []}},
        {"response": {}, "items": []},
        BrokenStream(RuntimeError(), after=1),
    ],
)
def test_what_can_be_no_step_is_refused_when_the_script_is_written(step: JSON) -> None:
    with pytest.raises(TypeError):
        FakeResponsesServer("fine", step)


def test_odd_numbers_are_refused_when_the_script_is_written() -> None:
    with pytest.raises(ValueError, match="stream_chunk"):
        FakeResponsesServer(stream_chunk=0)
    with pytest.raises(ValueError, match="-1 events"):
        BrokenStream("text", after=-1)


# -- streams


async def raw_events(server: FakeResponsesServer, **more: JSON) -> list[dict[str, JSON]]:
    body = {"model": MODEL, "input": [USER], "stream": True, **more}
    async with httpx2.AsyncClient(trust_env=False, headers={"Authorization": "Bearer x"}) as client:
        response = await client.post(f"{server.base_url}/responses", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["transfer-encoding"] == "chunked"
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_text_is_streamed_as_openai_streams_it() -> None:
    async with FakeResponsesServer("Hello, world.", stream_chunk=5) as server:
        events = await raw_events(server)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["delta"] for event in events[4:7]] == ["Hello", ", wor", "ld."]
    assert events[2]["item"] == {
        "id": "msg_1",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }


async def test_every_stream_event_is_one_by_the_clients_own_types() -> None:
    known: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    thought = reasoning(content=[{"type": "reasoning_text", "text": "Hm."}])
    async with FakeResponsesServer([*ITEMS, thought, assistant()], stream_chunk=3) as server:
        events = await raw_events(server)
    for event in events:
        parsed = known.validate_python(event)
        assert parsed.type == event["type"]
        assert not parsed.model_extra
    kinds = {event["type"].removeprefix("response.") for event in events}
    assert kinds > {
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "reasoning_text.delta",
        "reasoning_text.done",
        "refusal.delta",
        "refusal.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
    }


async def test_an_item_is_added_empty_and_done_whole() -> None:
    thought = reasoning(content=[{"type": "reasoning_text", "text": "Hm."}])
    async with FakeResponsesServer([thought, *ITEMS[2:], ITEMS[0]]) as server:
        events = await raw_events(server)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert added[0] == {"id": "rs_1", "type": "reasoning", "summary": [], "content": []}
    assert added[1] == {**done[1], "status": "in_progress", "arguments": ""}
    assert added[2] == {**done[2], "input": ""}
    assert added[3] == {**done[3], "status": "in_progress"}
    assert added[4] == {"id": "rs_2", "type": "reasoning", "summary": []}


async def test_a_part_that_nobody_knows_is_streamed_whole() -> None:
    part = {"type": "output_smell", "smell": "roses"}
    async with FakeResponsesServer({"role": "assistant", "content": [part]}) as server:
        events = await raw_events(server)
    assert [event["type"] for event in events if event.get("part") == part] == [
        "response.content_part.added",
        "response.content_part.done",
    ]


async def test_the_typed_client_reads_the_stream_to_the_same_response() -> None:
    async with FakeResponsesServer(ITEMS, ITEMS) as server:
        whole = await server.client.responses.create(model=MODEL, input="hi")
        text = arguments = ""
        async for event in await server.client.responses.create(model=MODEL, input="hi", stream=True):
            match event.type:
                case "response.output_text.delta":
                    text += event.delta
                case "response.function_call_arguments.delta":
                    arguments += event.delta
        assert event.type == "response.completed"
        assert event.response.id == "resp_2"
        assert event.response.usage == whole.usage
        assert [item.type for item in event.response.output] == [item.type for item in whole.output]
    assert (text, arguments) == ("Looking…", '{"question": "where is it?"}')


@pytest.mark.parametrize("status", ["incomplete", "failed"])
async def test_a_stream_ends_as_its_response_does(status: str) -> None:
    async with FakeResponsesServer({"response": {"status": status}, "output": [assistant()]}) as server:
        events = await raw_events(server)
    assert events[-1]["type"] == f"response.{status}"
    assert events[-1]["response"]["status"] == status


async def test_a_streamed_response_can_be_continued_at_once() -> None:
    async with FakeResponsesServer("one", "two") as server:
        events = await raw_events(server)
        response = await create(server, previous_response_id=events[-1]["response"]["id"])
    assert response["previous_response_id"] == "resp_1"


async def until_it_breaks(
    server: FakeResponsesServer, conversation: str | None = None
) -> list[ResponseStreamEvent]:
    """Read a stream that must break, and return what came before."""
    seen = []
    try:
        async for event in await server.client.responses.create(
            model=MODEL, input="hi", stream=True, conversation=conversation
        ):
            seen.append(event)  # noqa: PERF401 (a comprehension would lose what came)
    except (openai.APIConnectionError, httpx2.RemoteProtocolError):
        return seen
    pytest.fail("the stream came to its end")


async def test_a_broken_stream_ends_after_that_many_events() -> None:
    async with FakeResponsesServer(BrokenStream("a long text to be broken", after=5)) as server:
        seen = await until_it_breaks(server)
    assert len(seen) == 5
    assert seen[-1].type == "response.output_text.delta"


async def test_nothing_is_kept_of_a_broken_stream() -> None:
    async with FakeResponsesServer(BrokenStream([call()], after=4)) as server:
        conversation = await server.client.conversations.create()
        before = (repr(server._held.responses), repr(server._held.conversations), repr(server._held.issued))
        *_, last = await until_it_breaks(server, conversation.id)
        after = (repr(server._held.responses), repr(server._held.conversations), repr(server._held.issued))
        assert last.type == "response.function_call_arguments.delta"
        assert before == after
        assert (await refusal(server, previous_response_id="resp_1"))["code"] == "previous_response_not_found"


async def test_a_stream_that_breaks_behind_its_last_event_is_kept() -> None:
    async with FakeResponsesServer(BrokenStream("text", after=1000), "more") as server:
        *_, last = await until_it_breaks(server)
        assert last.type == "response.completed"
        await create(server, previous_response_id=last.response.id)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_broken_answer_may_be_kept_all_the_same(stream: bool) -> None:
    broken = BrokenStream([call()], after=2, kept=True)
    async with FakeResponsesServer(broken, lambda _: broken, "done", "done") as server:
        conversation = await server.client.conversations.create()
        for more in ({"conversation": conversation.id}, {}):
            body = {"model": MODEL, "input": [USER], "stream": stream, **more}
            with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
                await server.client.post("/responses", body=body, cast_to=httpx2.Response)
        page = await server.client.conversations.items.list(conversation.id, order="asc")
        assert [item.type for item in page.data] == ["message", "function_call"]
        await create(server, output(), conversation=conversation.id)
        await create(server, output(), previous_response_id="resp_2")


async def test_without_streaming_a_broken_answer_is_a_closed_connection() -> None:
    async with FakeResponsesServer(BrokenStream("text", after=3)) as server:
        with pytest.raises(openai.APIConnectionError):
            await create(server)
        assert not server._held.responses


# -- what is kept


async def test_a_stored_response_can_be_fetched_and_deleted() -> None:
    async with FakeResponsesServer("Hello.") as server:
        made = await server.client.responses.create(model=MODEL, input="hi")
        assert (await server.client.responses.retrieve(made.id)).to_dict() == made.to_dict()
        await server.client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{made.id}' not found"):
            await server.client.responses.retrieve(made.id)
        await refusal(server, previous_response_id=made.id)
        error = await refusal(server, USER, {"type": "item_reference", "id": "msg_1"})
    assert error["message"].startswith("Item with id 'msg_1' not found.")


async def test_a_chain_holds_the_calls_that_its_outputs_answer() -> None:
    async with FakeResponsesServer([call(), call("call_b")], "done", "again") as server:
        first = await create(server)
        second = await create(server, output("call_b"), output(), previous_response_id=first["id"])
        third = await create(server, previous_response_id=second["id"])
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


async def test_a_chain_may_branch() -> None:
    async with FakeResponsesServer([call()], "one", "two") as server:
        first = await create(server)
        await create(server, output(), previous_response_id=first["id"])
        await create(server, output(), USER, previous_response_id=first["id"])


async def test_a_conversation_gathers_what_is_sent_and_answered() -> None:
    async with FakeResponsesServer([call()], "done") as server:
        conversation = await server.client.conversations.create(
            items=[{"type": "message", "role": "developer", "content": "Be brief."}], metadata={"topic": "x"}
        )
        await create(server, conversation=conversation.id)
        response = await create(server, output(), conversation={"id": conversation.id})
        assert response["conversation"] == {"id": conversation.id}
        held = [item async for item in server.client.conversations.items.list(conversation.id, order="asc")]
    assert [item.type for item in held] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert [item.id for item in held] == ["msg_1", "msg_2", "fc_1", "fco_1", "msg_3"]


async def test_a_conversation_takes_items_and_lists_them_page_by_page() -> None:
    known: TypeAdapter[ConversationItem] = TypeAdapter(ConversationItem)
    async with FakeResponsesServer() as server:
        conversation = await server.client.conversations.create()
        for start in (0, 20):
            texts = [str(number) for number in range(start, start + 20)]
            added = await server.client.conversations.items.create(
                conversation.id,
                items=[{"type": "message", "role": "user", "content": text} for text in texts],
            )
            assert (added.first_id, added.last_id) == (f"msg_{start + 1}", f"msg_{start + 20}")
        page = await server.client.conversations.items.list(conversation.id)
        assert [len(page.data), page.has_more, page.data[0].id] == [20, True, "msg_40"]
        items = [item async for item in server.client.conversations.items.list(conversation.id, limit=7)]
    assert [item.id for item in items] == [f"msg_{number}" for number in range(40, 0, -1)]
    for item in items:
        known.validate_python(item.to_dict())


async def test_a_conversation_holds_text_in_parts_by_who_said_it() -> None:
    said = {"type": "message", "status": "completed"}
    searched: JSON = {"type": "tool_search_call", "arguments": {}}
    async with FakeResponsesServer() as server:
        conversation = await server.client.conversations.create(
            items=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}, searched]
        )
        page = await server.client.conversations.items.list(conversation.id, order="asc")
    assert [item.to_dict() for item in page.data] == [
        {**said, "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            **said,
            "id": "msg_2",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "yes", "annotations": []}],
        },
        {**searched, "id": "tsc_1"},
    ]


async def test_what_was_not_stored_is_held_once_a_conversation_has_it() -> None:
    async with FakeResponsesServer([reasoning(), call()], "kept", "sent back") as server:
        made = (await create(server, store=False, include=SEALED))["output"]
        conversation = await server.client.conversations.create()
        await create(server, *made, output(), store=False, conversation=conversation.id)
        pointed = [{"type": "item_reference", "id": item["id"]} for item in made]
        await create(server, *pointed, output())
        page = await server.client.conversations.items.list(conversation.id, order="asc")
        with pytest.raises(openai.NotFoundError):
            await server.client.responses.delete("resp_2")
    assert [item.to_dict() for item in page.data][:2] == made


async def test_a_conversation_can_be_found_and_deleted_and_its_items_stay() -> None:
    async with FakeResponsesServer("Hello.", "again") as server:
        conversation = await server.client.conversations.create(metadata={"topic": "x"})
        [said] = (await create(server, conversation=conversation.id))["output"]
        assert await server.client.conversations.retrieve(conversation.id) == conversation
        deleted = await server.client.conversations.delete(conversation.id)
        assert deleted.to_dict() == {"id": "conv_1", "object": "conversation.deleted", "deleted": True}
        for find in (server.client.conversations.retrieve, server.client.conversations.delete):
            with pytest.raises(openai.NotFoundError, match="Conversation with id 'conv_1' not found"):
                await find(conversation.id)
        with pytest.raises(openai.NotFoundError, match="Conversation with id 'conv_1' not found"):
            await create(server, conversation=conversation.id)
        await create(server, {"type": "item_reference", "id": said["id"]}, USER)
    assert server.refusals == ("Conversation with id 'conv_1' not found.",)


async def test_two_conversations_share_nothing() -> None:
    async with FakeResponsesServer([call()], "one", "two") as server:
        first = await server.client.conversations.create()
        second = await server.client.conversations.create()
        await create(server, conversation=first.id)
        error = await refusal(server, output(), conversation=second.id)
        assert error["message"] == "No tool call found for function call output with call_id call_a."
        await create(server, output(), conversation=first.id)
        await create(server, conversation=second.id)
        assert [len(kept.items) for kept in server._held.conversations.values()] == [4, 2]


async def test_a_conversation_takes_call_ids_that_the_server_has_used_again() -> None:
    async with FakeResponsesServer([call()], "one", [call()], "two") as server:
        conversation = await server.client.conversations.create()
        for items in ([USER], [output()], [USER], [output()]):
            await create(server, *items, conversation=conversation.id)
        error = await refusal(server, output(), conversation=conversation.id)
        assert error["message"].startswith("Duplicate function call output for call_id call_a.")
        error = await refusal(server, call(), output(), conversation=conversation.id)
        assert error["message"].startswith("Duplicate call_id call_a")


async def test_of_a_response_that_failed_a_conversation_holds_nothing() -> None:
    failed: Step = {"response": {"status": "failed"}, "output": [call()]}
    async with FakeResponsesServer(failed, "one") as server:
        conversation = await server.client.conversations.create()
        await create(server, conversation=conversation.id)
        assert server._held.conversations[conversation.id].items == []
        await create(server, conversation=conversation.id)
        assert len(server._held.conversations[conversation.id].items) == 2


async def test_an_item_can_be_pointed_to() -> None:
    async with FakeResponsesServer([reasoning(), call()], "done") as server:
        await create(server)
        pointed = [{"type": "item_reference", "id": "rs_1"}, {"id": "fc_1"}]
        await create(server, USER, *pointed, output())


async def test_a_whole_history_may_be_sent_back_with_ids_or_without() -> None:
    async with FakeResponsesServer([reasoning(), call()], "with", "without") as server:
        made = (await create(server))["output"]
        await create(server, USER, *made, output())
        await create(server, USER, {key: value for key, value in made[1].items() if key != "id"}, output())


async def test_reasoning_that_was_not_stored_comes_back_sealed() -> None:
    async with FakeResponsesServer([reasoning(), call()], "done", "again") as server:
        made = (await create(server, store=False, include=SEALED))["output"]
        assert ["encrypted_content" in item for item in made] == [True, False]
        await create(server, USER, *made, output(), store=False)
        nameless = {key: value for key, value in made[0].items() if key != "id"}
        await create(server, USER, nameless, made[1], output(), store=False)


async def test_reasoning_is_sealed_only_when_asked_for() -> None:
    async with FakeResponsesServer(
        [reasoning(encrypted_content="own")], [reasoning(encrypted_content="own")]
    ) as server:
        assert "encrypted_content" not in (await create(server))["output"][0]
        assert (await create(server, include=SEALED))["output"][0]["encrypted_content"] == "own"


async def test_two_servers_do_not_verify_each_others_reasoning() -> None:
    step = [reasoning(), call()]
    async with FakeResponsesServer(step) as one, FakeResponsesServer(step) as other:
        made = (await create(one, include=SEALED))["output"]
        await create(other, assistant(), USER, include=SEALED)
        error = await refusal(other, USER, *made, output())
    assert error["code"] == "invalid_encrypted_content"


async def test_nul_characters_and_astral_ones_are_taken() -> None:
    async with FakeResponsesServer("ok") as server:
        response = await create(server, USER, call(), output(output="a\0b \U0001f600 \u2028"))
    assert response["status"] == "completed"


async def test_a_call_id_that_the_server_used_again_can_be_answered_along_the_chain() -> None:
    async with FakeResponsesServer([call("c")], [call("c")], "done") as server:
        first = await create(server)
        second = await create(server, output("c"), previous_response_id=first["id"])
        await create(server, output("c"), previous_response_id=second["id"])


# -- refusals: the request by itself

STRICT = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def strict(**properties: JSON) -> dict[str, JSON]:
    return {**STRICT, "properties": properties, "required": list(properties)}


def message_of(content: JSON, role: JSON = "user", **more: JSON) -> dict[str, JSON]:
    return {"type": "message", "role": role, "content": content, **more}


REFUSED: dict[str, tuple[dict[str, JSON], str]] = {
    # input
    "input that is empty text": ({"input": ""}, "Invalid 'input': empty string"),
    "input that is an empty list": ({"input": []}, "Invalid 'input': empty array"),
    "input of another type": ({"input": 5}, "Invalid type for 'input'"),
    "an item that is no object": ({"input": ["hi"]}, "Invalid type for 'input[0]': expected an object"),
    "an item without type": ({"input": [{"content": "hi"}]}, "Missing required parameter: 'input[0].type'."),
    "an item of unknown type": (
        {"input": [USER, {"type": "tool_result", "content": "x"}]},
        "Invalid value: 'tool_result'. Supported values are: 'message', 'function_call'",
    ),
    "an item whose type is no text": ({"input": [{"type": 3}]}, "Invalid value: '3'."),
    # messages
    "an unknown role": (
        {"input": [message_of("x", role="tool")]},
        "Invalid value: 'tool'. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
    ),
    "a message without role": (
        {"input": [{"type": "message", "content": "x"}]},
        "Missing required parameter: 'input[0].role'.",
    ),
    "a message without content": (
        {"input": [{"role": "user"}]},
        "Missing required parameter: 'input[0].content'.",
    ),
    "content of another type": (
        {"input": [message_of(5)]},
        "Invalid type for 'input[0].content': expected one of an array of objects or string, but got an int",
    ),
    "null content": ({"input": [message_of(None, role="assistant")]}, "Invalid type for 'input[0].content'"),
    "an output text from the user": (
        {"input": [message_of([{"type": "output_text", "text": "x"}])]},
        "Invalid value: 'output_text'. Supported values are: 'input_text', 'input_image', and 'input_file'.",
    ),
    "an input text from the assistant": (
        {"input": [message_of([{"type": "input_text", "text": "x"}], role="assistant")]},
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
    ),
    "a part of a chat message": (
        {"input": [message_of([{"type": "text", "text": "x"}], role="developer")]},
        "Invalid value: 'text'.",
    ),
    "a part without type": ({"input": [message_of([{"text": "x"}])]}, "Missing required parameter"),
    "a part that is no object": ({"input": [message_of(["x"])]}, "Invalid type for 'input[0].content[0]'"),
    "the client's own parsed": (
        {"input": [message_of([{"type": "output_text", "text": "x", "parsed": {}}], role="assistant")]},
        "Unknown parameter: 'input[0].content[0].parsed'.",
    ),
    "an unknown key in a message": (
        {"input": [{**USER, "name": "Ann"}]},
        "Unknown parameter: 'input[0].name'.",
    ),
    "an unknown status": ({"input": [assistant(status="done")]}, "Invalid value: 'done'."),
    # calls and outputs
    "an unknown key in a call": (
        {"input": [call(parsed_arguments={}), output()]},
        "Unknown parameter: 'input[0].parsed_arguments'.",
    ),
    "an unknown key in an output": (
        {"input": [call(), output(final=True)]},
        "Unknown parameter: 'input[1].final'.",
    ),
    "an unknown key in reasoning": (
        {"input": [reasoning(foo=1), assistant()]},
        "Unknown parameter: 'input[0].foo'.",
    ),
    "a status in reasoning": ({"input": [reasoning(status=None)]}, "Unknown parameter: 'input[0].status'."),
    "reasoning without summary": (
        {"input": [{"type": "reasoning", "id": "rs_1"}]},
        "Missing required parameter: 'input[0].summary'.",
    ),
    "reasoning with neither id nor seal": (
        {"input": [reasoning(), assistant()]},
        "Missing required parameter: 'input[0].id'.",
    ),
    "an empty call_id": ({"input": [call("")]}, "Invalid 'input[0].call_id': empty string."),
    "a call without call_id": (
        {"input": [{"type": "function_call", "name": "x", "arguments": ""}]},
        "Missing required parameter: 'input[0].call_id'.",
    ),
    "a call_id of 65 characters": (
        {"input": [call("c" * 65)]},
        "Invalid 'input[0].call_id': string too long. Expected a string with maximum length 64, "
        "but got a string with length 65 instead.",
    ),
    "an output's call_id of 65 characters": ({"input": [output("c" * 65)]}, "Invalid 'input[0].call_id'"),
    "a called name that is no name": (
        {"input": [call(name="look up")]},
        "Invalid 'input[0].name': string does not match pattern. "
        "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
    ),
    "a called name with a line break": (
        {"input": [call(name="look\n")]},
        "Invalid 'input[0].name': string does",
    ),
    "a called name of 65 characters": (
        {"input": [call(name="n" * 65)]},
        "Invalid 'input[0].name': string too long.",
    ),
    "arguments that are no text": (
        {"input": [call(arguments={"a": 1})]},
        "Invalid type for 'input[0].arguments': expected a string, but got an object instead.",
    ),
    "an output that is an object": (
        {"input": [call(), output(output={"ok": True})]},
        "Invalid type for 'input[1].output'",
    ),
    "an output that is null": (
        {"input": [call(), output(output=None)]},
        "Invalid type for 'input[1].output'",
    ),
    "an output part of the wrong type": (
        {"input": [call(), output(output=[{"type": "output_text", "text": "x"}])]},
        "Invalid value: 'output_text'.",
    ),
    "an output longer than 10 MiB": (
        {"input": [call(), output(output="x" * 10_485_761)]},
        "Invalid 'input[1].output': string too long. Expected a string with maximum length 10485760",
    ),
    # ids
    "a call whose id is a call_id": (
        {"input": [USER, USER, call(id="call_1")]},
        "Invalid 'input[2].id': 'call_1'. Expected an ID that begins with 'fc'.",
    ),
    "a message whose id is a reference": (
        {"input": [assistant(id="7.1")]},
        "Invalid 'input[0].id': '7.1'. Expected an ID that begins with 'msg'.",
    ),
    "reasoning whose id is none": (
        {"input": [reasoning(id="msg_1"), assistant()]},
        "Invalid 'input[0].id': 'msg_1'. Expected an ID that begins with 'rs'.",
    ),
    "an output whose id is a call_id": (
        {"input": [call(), output(id="call_1")]},
        "Invalid 'input[1].id': 'call_1'. Expected an ID that begins with 'fc'.",
    ),
    "a custom call whose id is a function call's": (
        {"input": [{"type": "custom_tool_call", "id": "fc_1", "call_id": "c", "name": "x", "input": ""}]},
        "Invalid 'input[0].id': 'fc_1'. Expected an ID that begins with 'ctc'.",
    ),
    "an id that is null": ({"input": [assistant(id=None)]}, "Invalid type for 'input[0].id'"),
    "an id it never issued": ({"input": [assistant(id="msg_99")]}, "Item with id 'msg_99' not found."),
    "a reference it never issued": (
        {"input": [{"type": "item_reference", "id": "msg_99"}]},
        "Item with id 'msg_99' not found.",
    ),
    "reasoning it never issued": (
        {"input": [reasoning(id="rs_99"), assistant()]},
        "Item with id 'rs_99' not found.",
    ),
    "a seal it never issued": (
        {"input": [reasoning(id="rs_99", encrypted_content="gAAA…"), assistant()]},
        "The encrypted content for item rs_99 could not be verified.",
    ),
    "a nameless seal it never issued": (
        {"input": [reasoning(encrypted_content="gAAAAAforeign=="), assistant()]},
        "The encrypted content gAAA...gn== could not be verified.",
    ),
    # pairs
    "an output without its call": (
        {"input": [USER, output("call_x")]},
        "No tool call found for function call output with call_id call_x.",
    ),
    "an output before its call": (
        {"input": [output(), call()]},
        "No tool call found for function call output",
    ),
    "a call without output": (
        {"input": [USER, call("call_x")]},
        "No tool output found for function call call_x.",
    ),
    "one of two calls without output": (
        {"input": [call(), call("call_b"), output()]},
        "No tool output found for function call call_b.",
    ),
    "an output of another kind than its call": (
        {"input": [call(), {**output(), "type": "custom_tool_call_output"}]},
        "No tool call found for custom tool call output with call_id call_a.",
    ),
    "one call_id for two calls": (
        {"input": [call(), output(), call(), output()]},
        "Duplicate call_id call_a",
    ),
    "two outputs for one call": (
        {"input": [call(), output(), output()]},
        "Duplicate function call output for call_id call_a.",
    ),
    # parameters
    "an unknown parameter": ({"foo": 1}, "Unknown parameter: 'foo'."),
    "a chat completion's messages": ({"messages": []}, "Unknown parameter: 'messages'."),
    "a model that is no text": ({"model": 5}, "Invalid type for 'model'"),
    "a conversation together with a previous response": (
        {"conversation": "conv_1", "previous_response_id": "resp_1"},
        "Mutually exclusive parameters",
    ),
    "an unknown previous response": (
        {"previous_response_id": "resp_99"},
        "Previous response with id 'resp_99' not found.",
    ),
    "a temperature that is text": (
        {"temperature": "hot"},
        "Invalid type for 'temperature': expected a decimal",
    ),
    "a temperature that is true": ({"temperature": True}, "Invalid type for 'temperature'"),
    "a temperature above 2": ({"temperature": 2.5}, "Invalid 'temperature': decimal above maximum value."),
    "a negative top_p": ({"top_p": -0.1}, "Invalid 'top_p': decimal below minimum value."),
    "max_output_tokens below 16": (
        {"max_output_tokens": 15},
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 15",
    ),
    "max_output_tokens in decimals": ({"max_output_tokens": 16.5}, "Invalid type for 'max_output_tokens'"),
    "store that is no boolean": ({"store": "no"}, "Invalid type for 'store': expected a boolean"),
    "stream that is no boolean": ({"stream": 1}, "Invalid type for 'stream'"),
    "instructions that are no text": ({"instructions": ["x"]}, "Invalid type for 'instructions'"),
    "an unknown include": ({"include": ["everything"]}, "Invalid value: 'everything'."),
    "an unknown effort": ({"reasoning": {"effort": "some"}}, "Invalid value: 'some'."),
    "a flat reasoning effort": ({"reasoning_effort": "low"}, "Unknown parameter: 'reasoning_effort'."),
    "metadata that is no text": ({"metadata": {"a": 1}}, "Invalid type for 'metadata.a'"),
    "a metadata key of 65 characters": ({"metadata": {"k" * 65: ""}}, "Invalid 'metadata': string too long."),
    "input longer than 10 MiB": ({"input": "x" * 10_485_761}, "Invalid 'input': string too long."),
    "a role that is no text": ({"input": [message_of("x", role=5)]}, "Invalid type for 'input[0].role'"),
    "reasoning that is text": ({"reasoning": "low"}, "Invalid type for 'reasoning': expected an object"),
    "too much metadata": ({"metadata": {str(n): "" for n in range(17)}}, "Invalid 'metadata'"),
    "metadata that is a list": ({"metadata": []}, "Invalid type for 'metadata'"),
    "a conversation that is a number": ({"conversation": 1}, "Invalid type for 'conversation'"),
    "a conversation without id": ({"conversation": {}}, "Missing required parameter: 'conversation.id'."),
    # tools
    "a tool of unknown type": ({"tools": [{"type": "magic"}]}, "Invalid value: 'magic'."),
    "a tool in the form of chat completions": (
        {"tools": [{"type": "function", "function": {"name": "look"}}]},
        "Missing required parameter: 'tools[0].name'.",
    ),
    "a tool name that is no name": (
        {"tools": [function(name="退款")]},
        "Invalid 'tools[0].name': string does not match pattern. "
        "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
    ),
    "an empty tool name": ({"tools": [function(name="")]}, "Invalid 'tools[0].name': empty string."),
    "a tool name of 65 characters": (
        {"tools": [function(name="n" * 65)]},
        "Invalid 'tools[0].name': string too long.",
    ),
    "two tools of one name": ({"tools": [function(), function()]}, "Duplicate tool name 'look'."),
    "an unknown key in a tool": (
        {"tools": [function(idempotent=True)]},
        "Unknown parameter: 'tools[0].idempotent'.",
    ),
    "a choice that is not among the tools": (
        {"tools": [function()], "tool_choice": {"type": "function", "name": "other"}},
        "Tool choice 'other' not found in 'tools' parameter.",
    ),
    "an allowed tool that is not among the tools": (
        {
            "tools": [function()],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "o"}],
            },
        },
        "Tool choice 'o' not found in 'tools' parameter.",
    ),
    "a hosted choice that is not among the tools": (
        {"tools": [function()], "tool_choice": {"type": "web_search"}},
        "Tool choice 'web_search' not found in 'tools' parameter.",
    ),
    "allowed tools without mode": (
        {"tools": [function()], "tool_choice": {"type": "allowed_tools", "tools": []}},
        "Missing required parameter: 'tool_choice.mode'.",
    ),
    "a choice without name": (
        {"tool_choice": {"type": "function"}},
        "Missing required parameter: 'tool_choice.name'.",
    ),
    "a choice without type": ({"tool_choice": {}}, "Missing required parameter: 'tool_choice.type'."),
    "a choice of another type": ({"tool_choice": 1}, "Invalid type for 'tool_choice'"),
    "an unknown choice": ({"tool_choice": "look"}, "Invalid value: 'look'."),
    "a required choice of nothing": ({"tool_choice": "required"}, "Tool choice 'required' must be"),
    # other pairs
    "an approval nobody asked for": (
        {"input": [{"type": "mcp_approval_response", "approval_request_id": "mcpr_9", "approve": True}]},
        "No approval request found with id 'mcpr_9'.",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
async def test_it_refuses(server: FakeResponsesServer, body: dict[str, JSON], message: str) -> None:
    error = await refusal(server, body={"model": MODEL, "input": [USER], **body})
    assert error["message"].startswith(message)


PAIRS: dict[str, tuple[dict[str, JSON], dict[str, JSON]]] = {
    "custom_tool_call": ({"name": "x", "input": ""}, {"output": "x"}),
    "computer_call": ({"action": {}}, {"output": {}}),
    "local_shell_call": ({"action": {}}, {"output": "x"}),
    "shell_call": ({"action": {}}, {"output": []}),
    "apply_patch_call": ({"operation": {}}, {"status": "completed"}),
}


@pytest.mark.parametrize("kind", PAIRS)
async def test_each_kind_of_call_is_paired_with_its_output(kind: str) -> None:
    made = {"type": kind, "call_id": "c", **PAIRS[kind][0]}
    answer = {"type": f"{kind}_output", "call_id": "c", **PAIRS[kind][1]}
    words = kind.replace("_", " ")
    async with FakeResponsesServer("both", [made], "chained") as server:
        error = await refusal(server, USER, made)
        assert error["message"] == f"No tool output found for {words} c."
        error = await refusal(server, USER, answer)
        assert error["message"] == f"No tool call found for {words} output with call_id c."
        await create(server, USER, made, answer)
        issued = await create(server)
        await create(server, answer, previous_response_id=issued["id"])


async def test_an_approval_request_is_paired_with_its_response() -> None:
    asked = {"type": "mcp_approval_request", "name": "x", "arguments": "{}", "server_label": "s"}
    async with FakeResponsesServer([asked], "done") as server:
        first = await create(server)
        error = await refusal(server, previous_response_id=first["id"])
        assert error["message"] == "MCP approval requests do not have an approval: mcpr_1"
        answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
        await create(server, answer, previous_response_id=first["id"])


async def test_a_local_shell_output_may_name_its_call_by_id() -> None:
    made = {"type": "local_shell_call", "id": "lsh_1", "call_id": "lsh_1", "action": {}}
    async with FakeResponsesServer([made], "done") as server:
        first = await create(server)
        answer = {"type": "local_shell_call_output", "id": "lsh_1", "output": "ok"}
        await create(server, answer, previous_response_id=first["id"])


@pytest.mark.parametrize("key", ["model", "input"])
async def test_it_refuses_a_request_without(server: FakeResponsesServer, key: str) -> None:
    body = {"model": MODEL, "input": "hi"}
    del body[key]
    error = await refusal(server, body=body)
    assert error == {
        "message": f"Missing required parameter: '{key}'.",
        "type": "invalid_request_error",
        "param": key,
        "code": "missing_required_parameter",
    }


@pytest.mark.parametrize("empty", [None, "", []])
async def test_it_refuses_empty_input_also_along_a_chain_or_conversation(empty: JSON) -> None:
    async with FakeResponsesServer("one", "two") as server:
        conversation = await server.client.conversations.create()
        first = await create(server)
        await create(server, conversation=conversation.id)
        for held in ({"previous_response_id": first["id"]}, {"conversation": conversation.id}):
            body = {"model": MODEL, **held} if empty is None else {"model": MODEL, "input": empty, **held}
            error = await refusal(server, body=body)
            assert error["param"] == "input"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "gpt-5", "input": "hi"',
        b'{"model": "gpt-5", "input": "hi"} and more',
        b'{"model": "gpt-5", "input": "\xff"}',
        b'{"model": "gpt-5", "input": "\xed\xa0\x80"}',
        rb'{"model": "gpt-5", "input": "\ud800"}',
        rb'{"model": "gpt-5", "input": "cut in half: \ud83d, and on"}',
        b'{"model": "gpt-5", "temperature": NaN, "input": "hi"}',
    ],
)
async def test_it_refuses_what_is_no_json_in_utf_8(server: FakeResponsesServer, body: bytes) -> None:
    error = await refusal(server, body=body)
    assert error["message"].startswith("We could not parse the JSON body of your request.")
    assert not server.requests


async def test_it_refuses_json_that_is_no_object(server: FakeResponsesServer) -> None:
    error = await refusal(server, body=b"[]")
    assert "expected to be an object" in error["message"]


async def test_it_refuses_another_content_type(server: FakeResponsesServer) -> None:
    with pytest.raises(openai.BadRequestError, match="Unsupported content type: 'text/plain'"):
        await server.client.post(
            "/responses",
            content=b'{"model": "gpt-5", "input": "hi"}',
            cast_to=httpx2.Response,
            options={"headers": {"Content-Type": "text/plain"}},
        )


# -- refusals: schemas

ADDITIONAL = "'additionalProperties' is required to be supplied and to be false."
REQUIRED = "'required' is required to be supplied and to be an array including every key in properties."
TEXT = {"type": "string"}

NOT_STRICT: dict[str, tuple[JSON, str]] = {
    "open objects": ({"type": "object", "properties": {}}, f"In context=(), {ADDITIONAL}"),
    "open objects inside": (
        strict(a={"type": "array", "items": {"type": "object", "properties": {}}}),
        f"In context=('properties', 'a', 'items'), {ADDITIONAL}",
    ),
    "open objects in definitions": (
        {**strict(), "$defs": {"A": {"type": "object"}}},
        f"In context=('$defs', 'A'), {ADDITIONAL}",
    ),
    "open objects among alternatives": (
        strict(a={"anyOf": [TEXT, {"type": "object"}]}),
        f"In context=('properties', 'a', 'anyOf', '1'), {ADDITIONAL}",
    ),
    "nullable open objects": (
        strict(a={"type": ["object", "null"]}),
        f"In context=('properties', 'a'), {ADDITIONAL}",
    ),
    "an optional property": ({**strict(a=TEXT), "required": []}, f"In context=(), {REQUIRED} Missing 'a'."),
    "a required key without property": (
        {**strict(a=TEXT), "required": ["a", "b"]},
        f"In context=(), {REQUIRED} Extra required key 'b' supplied.",
    ),
    "required that is no list": ({**strict(a=TEXT), "required": True}, f"In context=(), {REQUIRED}"),
    "properties that are no object": (
        {**strict(), "properties": []},
        "In context=(), [] is not of type 'object'.",
    ),
    "a default": (
        strict(a={"type": "string", "default": "x"}),
        "In context=('properties', 'a'), 'default' is not permitted.",
    ),
    "a length": (
        strict(a={"type": "string", "minLength": 1}),
        "In context=('properties', 'a'), 'minLength' is not permitted.",
    ),
    "allOf": (strict(a={"allOf": [TEXT]}), "In context=('properties', 'a'), 'allOf' is not permitted."),
    "oneOf": (strict(a={"oneOf": [TEXT]}), "In context=('properties', 'a'), 'oneOf' is not permitted."),
    "an unknown format": (
        strict(a={"type": "string", "format": "uri"}),
        "In context=('properties', 'a'), 'uri' is not a valid format.",
    ),
    "no type": (strict(a={}), "In context=('properties', 'a'), schema must have a 'type' key."),
    "an unknown type": (
        strict(a={"type": "text"}),
        "In context=('properties', 'a'), 'text' is not a valid type.",
    ),
    "a type that is no text": (
        strict(a={"type": [{}]}),
        "In context=('properties', 'a'), {} is not a valid type.",
    ),
    "a schema that is true": (
        strict(a=True),
        "In context=('properties', 'a'), True is not of type 'object'.",
    ),
    "an array without items": (
        strict(a={"type": "array"}),
        "In context=('properties', 'a'), array schema missing items.",
    ),
    "a reference with neighbours": (
        {**strict(a={"$ref": "#/$defs/A", "description": "x"}), "$defs": {"A": TEXT}},
        "In context=('properties', 'a'), $ref cannot have keywords {'description'}.",
    ),
    "a reference to nothing": (
        strict(a={"$ref": "#/$defs/A"}),
        "In context=('properties', 'a'), reference to component '#/$defs/A' which was not found",
    ),
    "a reference that is no text": (
        strict(a={"$ref": 5}),
        "In context=('properties', 'a'), reference to component '5'",
    ),
    "a foreign reference": (
        strict(a={"$ref": "http://x"}),
        "In context=('properties', 'a'), reference to component",
    ),
    "a root that is no object": (
        {"type": "array", "items": TEXT},
        "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"array\"'.",
    ),
    "a root of alternatives": (
        {**STRICT, "anyOf": [STRICT]},
        "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
    ),
    "an empty schema": ({}, "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'."),
}


@pytest.mark.parametrize(("schema", "fault"), NOT_STRICT.values(), ids=NOT_STRICT.keys())
async def test_a_strict_schema_has_no(server: FakeResponsesServer, schema: JSON, fault: str) -> None:
    error = await refusal(server, tools=[function(), function(schema, name="f", strict=True)])
    assert error["message"].startswith(f"Invalid schema for function 'f': {fault}")
    assert (error["param"], error["code"]) == ("tools[1].parameters", "invalid_function_parameters")
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    error = await refusal(server, text={"format": form})
    assert error["message"].startswith(f"Invalid schema for response_format 'answer': {fault}")
    assert (error["param"], error["code"]) == ("text.format.schema", "invalid_json_schema")


async def test_a_strict_schema_may_have_all_that_is_documented() -> None:
    schema = {
        **strict(
            a={"type": ["string", "null"], "description": "x", "pattern": "^a"},
            b={"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 1, "maxItems": 2},
            c={"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            d={"type": "integer", "minimum": 0, "exclusiveMaximum": 9, "multipleOf": 3},
            e={"type": "string", "format": "date-time", "title": "E"},
            f={"enum": ["x", "y"]},
            g={"const": 1},
        ),
        "$defs": {"node": strict(next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
    }
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    async with FakeResponsesServer("ok") as server:
        await create(server, tools=[function(schema, strict=True)], text={"format": form})


async def test_a_schema_that_is_not_strict_needs_little_but_that() -> None:
    loose = {"type": "object", "properties": {"a": {"default": 1, "oneOf": [TEXT]}, "b": {"x": 1}, "c": True}}
    form = {"type": "json_schema", "name": "answer", "schema": {"type": "array"}}
    async with FakeResponsesServer("ok") as server:
        await create(server, tools=[function(loose), function(None, name="g")], text={"format": form})
        for schema, fault in (
            ({"type": "object"}, "In context=(), object schema missing properties."),
            (
                {"type": "object", "properties": {"a": {"type": "array"}}},
                "In context=('properties', 'a'), array schema",
            ),
            (
                {"type": "string"},
                "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"string\"'.",
            ),
        ):
            error = await refusal(server, tools=[function(schema)])
            assert error["message"].startswith(f"Invalid schema for function 'look': {fault}")


@pytest.mark.parametrize(
    "choice",
    [
        "none",
        "auto",
        "required",
        {"type": "function", "name": "look"},
        {"type": "custom", "name": "shell"},
        {"type": "mcp", "server_label": "docs"},
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    ],
)
async def test_a_choice_among_the_tools_is_taken(choice: JSON) -> None:
    hosted = [{"type": "web_search_2025_08_26"}, {"type": "image_generation"}, {"type": "image_generation"}]
    named = [function(), {"type": "custom", "name": "shell"}, {"type": "mcp", "server_label": "docs"}]
    async with FakeResponsesServer("ok") as server:
        response = await create(server, tools=[*hosted, *named], tool_choice=choice)
    assert response["tool_choice"] == choice


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"type": "xml"}, "Invalid value: 'xml'."),
        ({"type": "json_schema", "schema": STRICT}, "Missing required parameter: 'text.format.name'."),
        ({"type": "json_schema", "name": "a b", "schema": STRICT}, "Invalid 'text.format.name'"),
        ({"type": "json_schema", "name": "a"}, "Missing required parameter: 'text.format.schema'."),
        ({"type": "json_schema", "json_schema": {}}, "Missing required parameter: 'text.format.name'."),
    ],
)
async def test_it_refuses_a_format(server: FakeResponsesServer, form: JSON, message: str) -> None:
    assert (await refusal(server, text={"format": form}))["message"].startswith(message)


# -- refusals: what is held


async def test_it_refuses_to_go_on_while_a_held_call_is_open() -> None:
    async with FakeResponsesServer([call("call_x")], [call("call_y")]) as server:
        conversation = await server.client.conversations.create()
        first = await create(server)
        await create(server, conversation=conversation.id)
        error = await refusal(server, previous_response_id=first["id"])
        assert error["message"] == "No tool output found for function call call_x."
        error = await refusal(server, conversation=conversation.id)
        assert error["message"] == "No tool output found for function call call_y."


async def test_it_refuses_an_output_whose_call_is_in_another_chain() -> None:
    async with FakeResponsesServer([call()], "other") as server:
        await create(server)
        other = await create(server)
        error = await refusal(server, output(), previous_response_id=other["id"])
    assert error["message"] == "No tool call found for function call output with call_id call_a."


async def test_it_refuses_a_second_output_along_a_chain() -> None:
    async with FakeResponsesServer([call()], "done") as server:
        first = await create(server)
        second = await create(server, output(), previous_response_id=first["id"])
        error = await refusal(server, output(), previous_response_id=second["id"])
    assert error["message"].startswith("Duplicate function call output for call_id call_a.")


async def test_it_refuses_a_call_id_that_is_held_already() -> None:
    async with FakeResponsesServer([call()], "done") as server:
        first = await create(server)
        second = await create(server, output(), previous_response_id=first["id"])
        error = await refusal(server, call(), output(), previous_response_id=second["id"])
    assert error["message"].startswith("Duplicate call_id call_a")


@pytest.mark.parametrize(
    "again",
    [lambda item: item, lambda item: {"type": "item_reference", "id": item["id"]}],
    ids=["whole", "pointed to"],
)
async def test_it_refuses_an_item_that_is_there_already(again: Callable[[JSON], JSON]) -> None:
    async with FakeResponsesServer("Hello.", "Hello.") as server:
        conversation = await server.client.conversations.create()
        first = await create(server)
        [message] = first["output"]
        expected = "Duplicate item found with id msg_1. Remove duplicate items from your input and try again."
        assert (await refusal(server, message, again(message), USER))["message"] == expected
        error = await refusal(server, again(message), USER, previous_response_id=first["id"])
        assert error["message"] == expected
        [message] = (await create(server, conversation=conversation.id))["output"]
        error = await refusal(server, again(message), USER, conversation=conversation.id)
        assert error["message"].startswith(f"Duplicate item found with id {message['id']}.")


async def test_it_refuses_an_id_of_another_item() -> None:
    async with FakeResponsesServer([call()]) as server:
        await create(server)
        error = await refusal(server, call(), output(id="fc_1"))
    assert error["message"] == "Item with id 'fc_1' not found."


async def test_it_refuses_to_continue_what_was_not_stored() -> None:
    async with FakeResponsesServer("Hello.", "again") as server:
        first = await create(server, store=False)
        with pytest.raises(openai.NotFoundError):
            await server.client.responses.retrieve(first["id"])
        error = await refusal(server, previous_response_id=first["id"])
        assert error["message"] == "Previous response with id 'resp_1' not found."
        assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
        error = await refusal(server, {"type": "item_reference", "id": "msg_1"}, USER)
        assert error["message"].startswith(
            "Item with id 'msg_1' not found. Items are not persisted when `store`"
        )
        await create(server, USER, *first["output"], USER)  # whole, it may come back


async def test_an_unknown_conversation_is_not_found(server: FakeResponsesServer) -> None:
    with pytest.raises(openai.NotFoundError, match="Conversation with id 'conv_9' not found"):
        await create(server, conversation="conv_9")
    assert server.refusals == ("Conversation with id 'conv_9' not found.",)
    with pytest.raises(openai.NotFoundError, match="Conversation with id 'conv_9' not found"):
        await server.client.conversations.items.list("conv_9")
    with pytest.raises(openai.NotFoundError, match="Conversation with id 'conv_9' not found"):
        await post(server, {"items": [USER]}, "/conversations/conv_9/items")
    assert len(server.refusals) == 1  # looking for what is not there breaks no rule


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"items": [{"role": "robot", "content": "x"}]}, "Invalid value: 'robot'."),
        ({"items": [USER] * 21}, "Invalid 'items': array too long. Expected an array with maximum length 20"),
        ({"items": "hi"}, "Invalid type for 'items'"),
        ({"items": [assistant(id="msg_77")]}, "Item with id 'msg_77' not found."),
        ({"name": "x"}, "Unknown parameter: 'name'."),
    ],
)
async def test_a_conversation_refuses(server: FakeResponsesServer, body: JSON, message: str) -> None:
    error = await refusal(server, body=body, path="/conversations")
    assert error["message"].startswith(message)
    conversation = await server.client.conversations.create()
    error = await refusal(
        server, body={"items": [USER], **body}, path=f"/conversations/{conversation.id}/items"
    )
    assert error["message"].startswith(message)


@pytest.mark.parametrize("limit", ["0", "101", "many"])
async def test_a_conversation_refuses_a_page_of(server: FakeResponsesServer, limit: str) -> None:
    conversation = await server.client.conversations.create()
    with pytest.raises(openai.BadRequestError, match="Invalid 'limit'"):
        await server.client.conversations.items.list(conversation.id, extra_query={"limit": limit})


# -- refusals: reasoning

FOLLOWING = "Item 'rs_1' of type 'reasoning' was provided without its required following item."


async def test_it_refuses_reasoning_without_what_follows_it() -> None:
    async with FakeResponsesServer([reasoning(), call()], "spare") as server:
        thought, made = (await create(server))["output"]
        for rest in ([], [USER], [message_of("x", "developer")]):
            assert (await refusal(server, USER, thought, *rest))["message"] == FOLLOWING
        assert (await refusal(server, call(), thought, output()))["message"] == FOLLOWING
        await create(server, USER, thought, made, output())


async def test_reasoning_may_be_followed_by_anything_that_a_model_makes() -> None:
    search = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}}
    async with FakeResponsesServer(
        [reasoning(), assistant()], "a", "b", "c", [reasoning(), reasoning(), call()], "d"
    ) as server:
        thought = (await create(server))["output"][0]
        await create(server, USER, thought, assistant())
        await create(server, USER, thought, call(), output())
        await create(server, USER, thought, search, assistant())
        chain = (await create(server))["output"]
        await create(server, USER, *chain, output())


@pytest.mark.parametrize("made", [call(), assistant()])
async def test_it_refuses_an_item_without_the_reasoning_before_it(made: JSON) -> None:
    async with FakeResponsesServer([reasoning(), made], "spare") as server:
        thought, made = (await create(server))["output"]
        rest = [output()] if made["type"] == "function_call" else [USER]
        expected = (
            f"Item '{made['id']}' of type '{made['type']}' was provided "
            "without its required 'reasoning' item: 'rs_1'."
        )
        for before in ([], [USER], [thought, assistant()]):
            error = await refusal(server, *before, made, *rest)
            assert error["message"] == expected
        error = await refusal(server, USER, {"type": "item_reference", "id": made["id"]}, *rest)
        assert error["message"] == expected
        del made["id"]
        await create(server, USER, made, *rest)  # without its id nothing ties it


async def test_only_the_item_directly_behind_reasoning_needs_it() -> None:
    async with FakeResponsesServer([reasoning(), call(), call("call_b")], "done") as server:
        *_, second = (await create(server))["output"]
        await create(server, USER, second, output("call_b"))


async def test_it_refuses_unstored_reasoning_without_its_seal() -> None:
    async with FakeResponsesServer([reasoning(), call()], "spare") as server:
        thought, made = (await create(server, store=False, include=SEALED))["output"]
        bare = {key: value for key, value in thought.items() if key != "encrypted_content"}
        error = await refusal(server, USER, bare, made, output())
        assert error["message"].startswith("Item with id 'rs_1' not found. Items are not persisted")
        await create(server, USER, thought, made, output())


async def test_it_refuses_one_reasoning_under_the_seal_of_another() -> None:
    async with FakeResponsesServer([reasoning(), call()], [reasoning(), call("call_b")]) as server:
        first = (await create(server, include=SEALED))["output"]
        second = (await create(server, include=SEALED))["output"]
        swapped = {**first[0], "encrypted_content": second[0]["encrypted_content"]}
        error = await refusal(server, USER, swapped, first[1], output())
    assert error["message"] == "The encrypted content for item rs_1 could not be verified."
    assert error["code"] == "invalid_encrypted_content"


# -- the script, and what is seen of the requests


async def test_requests_are_seen_in_order_refused_ones_too(server: FakeResponsesServer) -> None:
    await refusal(server, output())
    await refusal(server, foo=1)
    assert [sorted(request) for request in server.requests] == [["input", "model"], ["foo", "input", "model"]]
    assert server.refusals == (
        "No tool call found for function call output with call_id call_a.",
        "Unknown parameter: 'foo'.",
    )


async def test_steps_left_over_are_reported() -> None:
    with pytest.raises(AssertionError, match="2 of 3 scripted steps were never consumed"):
        async with FakeResponsesServer("one", "two", "three") as server:
            await create(server)


async def test_a_request_too_many_is_answered_with_an_error_and_reported() -> None:
    message = "the script has no step left for request 3"

    async def play() -> None:
        async with FakeResponsesServer("one") as server:
            await create(server)
            await refusal(server, foo=1)
            with pytest.raises(openai.InternalServerError, match=message):
                await create(server)

    with pytest.raises(AssertionError, match=message):
        await play()


async def test_a_function_that_fails_is_an_error_and_reported_with_its_cause() -> None:
    def never(request: JSON) -> Step:
        raise AssertionError(f"{request['model']} is not what was expected")

    async def play() -> None:
        async with FakeResponsesServer(never) as server:
            with pytest.raises(openai.InternalServerError, match="gpt-5 is not what was expected"):
                await create(server)

    with pytest.raises(AssertionError, match="gpt-5 is not what was expected") as caught:
        await play()
    assert isinstance(caught.value.__cause__, AssertionError)


@pytest.mark.parametrize("step", [lambda _: 7, BrokenStream(lambda _: RuntimeError(), after=1)])
async def test_a_function_that_returns_no_step_is_reported(step: Step) -> None:
    async def play() -> None:
        async with FakeResponsesServer(step) as server:
            with pytest.raises(openai.InternalServerError):
                await create(server)

    with pytest.raises(AssertionError, match="TypeError"):
        await play()


async def test_a_step_that_json_cannot_hold_is_reported_and_nothing_of_it_kept() -> None:
    server = FakeResponsesServer("half of a pair: \ud83d", {"type": "odd", "value": object()})

    async def play() -> None:
        async with server:
            for _ in range(2):
                with pytest.raises(openai.InternalServerError):
                    await create(server)

    with pytest.raises(AssertionError, match=r"UnicodeEncodeError.*; TypeError"):
        await play()
    assert not server._held.responses


async def test_an_exception_under_way_is_never_covered() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with FakeResponsesServer("never asked for"):
            raise KeyError("mine")


# -- HTTP


async def test_a_key_is_needed(server: FakeResponsesServer) -> None:
    async with httpx2.AsyncClient(trust_env=False) as client:
        response = await client.post(f"{server.base_url}/responses", json={"model": MODEL, "input": "hi"})
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("HEAD", "/responses"),
        ("POST", "/chat/completions"),
        ("GET", "/responses"),
        ("PUT", "/responses/resp_1"),
        ("GET", "/models"),
        ("GET", "/"),
    ],
)
async def test_there_is_nothing_else(server: FakeResponsesServer, method: str, path: str) -> None:
    headers = {"Authorization": "Bearer x"}
    async with httpx2.AsyncClient(trust_env=False, headers=headers) as client:
        response = await client.request(method, f"{server.base_url}{path}")
    assert response.status_code == 404
    if method != "HEAD":
        assert response.json()["error"]["message"] == f"Invalid URL ({method} /v1{path})"


async def test_what_is_not_there_cannot_be_deleted(server: FakeResponsesServer) -> None:
    with pytest.raises(openai.NotFoundError, match="Response with id 'resp_9' not found"):
        await server.client.responses.delete("resp_9")


async def test_url_and_client_exist_only_while_the_server_does() -> None:
    server = FakeResponsesServer()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="async with"):
            server.base_url  # noqa: B018
        with pytest.raises(RuntimeError, match="async with"):
            server.client  # noqa: B018
        async with server:
            client = server.client
            assert client is server.client
            assert str(client.base_url) == f"{server.base_url}/"
            assert client.max_retries == 0
        assert client.is_closed()


async def test_one_connection_serves_many_requests() -> None:
    async with FakeResponsesServer("one", "two", "three") as server:
        for _ in range(2):
            await create(server)
        assert len(await raw_events(server)) > 5
        assert len(server._http._connections) <= 2


async def test_many_requests_at_once_each_get_their_answer() -> None:
    async with FakeResponsesServer(*(lambda request: request["input"] for _ in range(50))) as server:
        texts = [str(number) * 1000 for number in range(50)]
        answers = await asyncio.gather(
            *(server.client.responses.create(model=MODEL, input=text) for text in texts)
        )
    assert [answer.output_text for answer in answers] == texts


async def test_closing_leaves_nothing_even_while_clients_hold_connections() -> None:
    before = asyncio.all_tasks()
    async with AsyncOpenAI(
        base_url="http://unset", api_key="x", http_client=openai.DefaultAsyncHttpx2Client(trust_env=False)
    ) as client:
        async with FakeResponsesServer("one", "text " * 2_000_000, stream_chunk=1 << 20) as server:
            client.base_url = server.base_url
            await client.responses.create(model=MODEL, input="hi")
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(server.base_url).port)
            unread = await client.responses.create(model=MODEL, input="hi", stream=True)
        assert asyncio.all_tasks() == before
        with pytest.raises((openai.APIConnectionError, httpx2.TransportError)):
            async for _ in unread:
                pass
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_at_any_stage_is_closed_with_the_server(turns: int) -> None:
    before = asyncio.all_tasks()
    async with FakeResponsesServer() as server:
        # Blocking, so that the server learns of it only in the turns of the loop that follow.
        connection = socket.create_connection(("127.0.0.1", httpx2.URL(server.base_url).port or 0))
        for _ in range(turns):
            await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    with connection, suppress(ConnectionResetError):
        connection.settimeout(10)
        assert connection.recv(1) == b""


async def talk(server: FakeResponsesServer, data: bytes) -> bytes:
    """Send bytes, close our side, and return all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(server.base_url).port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


HEAD = (
    b"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer x\r\ncontent-type: application/json\r\n"
)


async def test_what_is_no_http_is_refused_and_the_server_goes_on(server: FakeResponsesServer) -> None:
    assert (await talk(server, b"\x16\x03\x01 hello\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_a_client_that_leaves_in_the_middle_harms_nobody(server: FakeResponsesServer) -> None:
    await talk(server, HEAD + b"content-length: 500\r\n\r\n{")
    await talk(server, b"")
    assert not server.requests


async def test_a_client_may_ask_before_it_sends_and_send_in_chunks() -> None:
    body = b'{"model": "gpt-5", "input": "hi"}'
    async with FakeResponsesServer("one", "two") as server:
        waiting = HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body)
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx2.URL(server.base_url).port)
        writer.write(waiting)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()
        chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
        answer = await talk(server, chunked % (body[:5], len(body) - 5, body[5:]))
    assert answer.startswith(b"HTTP/1.1 200 ")
