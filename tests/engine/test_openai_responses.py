"""The Responses adapter: bytes out, bytes in, through the real client, over loopback."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Self

import openai
import pytest
from msgspec import Raw
from openai import AsyncOpenAI, DefaultAsyncHttpx2Client

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelSettings,
    OpenAIResponsesModel,
    Retries,
    RunFailedError,
    Tool,
    handoff,
    tool,
)
from batonlog.engine.openai_responses import (
    ResponseFailedError,
    _read_stream,
    _server_sent,
    read_response,
    request_body,
)
from batonlog.engine.testing import FakeResponsesServer, ScriptedModel, assistant_message, function_call
from batonlog.engine.testing.fake_responses import BrokenStream, Step
from batonlog.events import (
    JSON,
    HistoryRewritten,
    MemoryLog,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    Record,
    Rewrite,
    Usage,
    UsageError,
)
from batonlog.events.facts import raw
from batonlog.projections import messages_only, model_request, session_history, timeline

BOTH_WAYS = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@tool
def look(what: str) -> str:
    """Look it up."""
    return f"{what} is here"


def requests_of(records: tuple[Record, ...]) -> list[ModelRequest]:
    return [model_request(records, at=turn.requested) for turn in timeline(records)]


def events_of(records: tuple[Record, ...], type_: type[Any]) -> list[Any]:
    return [record.event for record in records if isinstance(record.event, type_)]


class BytesServer:
    """A server that answers every request with the next of these bodies, byte for byte."""

    def __init__(self, *bodies: bytes, kind: str = "text/event-stream", status: int = 200) -> None:
        self.bodies = list(bodies)
        self.head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode()
        self.requests: list[bytes] = []

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.client = AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key="x",
            max_retries=0,
            http_client=DefaultAsyncHttpx2Client(trust_env=False),
        )
        return self

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        self.requests.append(await reader.readexactly(int(length.split(b":")[1])))
        writer.write(self.head + self.bodies.pop(0))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()
        self.server.close()
        await self.server.wait_closed()


def events(*events: bytes) -> bytes:
    return b"".join(b"data: %b\n\n" % event for event in events)


def response(*output: bytes, more: bytes = b"") -> bytes:
    return b'{"id":"resp_1","status":"completed","output":[%b]%b}' % (b",".join(output), more)


def completed(*output: bytes, more: bytes = b"") -> bytes:
    return b'{"type":"response.completed","response":%b}' % response(*output, more=more)


SAID = b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}]}'


# -- a conversation


@BOTH_WAYS
@pytest.mark.parametrize("chain", [None, "previous_response_id", "conversation"])
async def test_a_conversation_with_tools_and_a_filtered_handoff_is_legal_all_along(
    stream: bool, chain: Any
) -> None:
    script: list[Step] = [
        [assistant_message("Looking."), function_call(look, {"what": "it"})],
        function_call("transfer_to_b", {}),
        "done",
    ]
    agents = [
        Agent("a", instructions="Be a.", tools=[look], handoffs=[handoff("b", input_filter=messages_only)]),
        Agent("b", instructions="Be b."),
    ]
    async with FakeResponsesServer(*script) as server:
        model = OpenAIResponsesModel("gpt-5", client=server.client, chain=chain, stream=stream)
        async with Engine("memory:", agents=agents, model=model) as engine:
            result = await engine.run("go", session="s")
            records = await engine.log.records("s")
    assert (result.final_output, result.agent, server.refusals) == ("done", "b", ())
    assert [len(request["input"]) for request in server.requests] == [1, 1 if chain else 4, 2]
    continued = chain == "previous_response_id"
    assert [request.get("previous_response_id") is not None for request in server.requests] == [
        False,
        continued,
        False,
    ]
    kept = ["conv_1", "conv_1", "conv_2"] if chain == "conversation" else [None] * 3
    assert [request.get("conversation") for request in server.requests] == kept
    for rebuilt, seen in zip(requests_of(records), server.requests, strict=True):
        assert json.loads(request_body(rebuilt, stream=stream)) == seen


@BOTH_WAYS
async def test_usage_is_what_the_provider_says(stream: bool) -> None:
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 15,
    }
    async with FakeResponsesServer(
        {"response": {"usage": usage}, "output": [assistant_message("hi")]}
    ) as server:
        model = OpenAIResponsesModel("gpt-5", client=server.client, stream=stream)
        result = await Engine("memory:", agents=[Agent("a")], model=model).run("go")
    assert result.usage == Usage(
        requests=1, input_tokens=10, cached_tokens=4, output_tokens=5, reasoning_tokens=3, total_tokens=15
    )


async def test_an_answer_comes_in_pieces() -> None:
    script: list[Step] = [[assistant_message("hello you"), function_call(look, {"what": "x"})], "done"]
    async with FakeResponsesServer(*script, stream_chunk=6) as server:
        model = OpenAIResponsesModel("gpt-5", client=server.client)
        stream = Engine("memory:", agents=[Agent("a", tools=[look])], model=model).stream("go")
        deltas = [update async for update in stream if isinstance(update, Delta)]
    text = [delta.text for delta in deltas if delta.kind == "text"]
    arguments = [delta.text for delta in deltas if delta.kind == "arguments"]
    assert text == ["hello ", "you", "done"]
    assert "".join(arguments) == '{"what":"x"}'


@BOTH_WAYS
async def test_an_answer_that_the_token_limit_cut_off_runs_nothing(stream: bool) -> None:
    cut = {
        "response": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        "output": [function_call(look, '{"what": "i')],
    }
    async with FakeResponsesServer(cut, "done") as server:
        model = OpenAIResponsesModel("gpt-5", client=server.client, stream=stream)
        engine = Engine("memory:", agents=[Agent("a", tools=[look])], model=model)
        assert (await engine.run("go", session="s")).final_output == "done"
        records = await engine.log.records("s")
    assert [event.status for event in events_of(records, ModelResponded)] == ["incomplete", "completed"]
    assert not [record for record in records if record.type == "tool.called"]


# -- bytes out


async def body_of(model: ScriptedModel, *, stream: bool = False, **agent: Any) -> JSON:
    async with Engine("memory:", agents=[Agent("a", **agent)], model=model) as engine:
        await engine.run("go")
    return json.loads(request_body(model.requests[0], stream=stream))


async def test_a_request_keeps_nothing_at_the_provider_and_gets_reasoning_encrypted() -> None:
    assert await body_of(ScriptedModel("hi", name="gpt-5")) == {
        "model": "gpt-5",
        "input": [{"role": "user", "content": "go"}],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


async def test_a_request_has_instructions_tools_and_the_wish_to_stream() -> None:
    body = await body_of(ScriptedModel("hi"), stream=True, instructions="Be kind.", tools=[look])
    assert (body["instructions"], body["stream"]) == ("Be kind.", True)
    assert [one["name"] for one in body["tools"]] == ["look"]


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        (ModelSettings(temperature=0.5, top_p=0.1), {"temperature": 0.5, "top_p": 0.1}),
        (
            ModelSettings(max_output_tokens=9, parallel_tool_calls=False),
            {"max_output_tokens": 9, "parallel_tool_calls": False},
        ),
        (ModelSettings(reasoning_effort="low"), {"reasoning": {"effort": "low"}}),
        (ModelSettings(tool_choice="auto"), {"tool_choice": "auto"}),
        (ModelSettings(tool_choice="required"), {"tool_choice": "required"}),
        (ModelSettings(tool_choice="none"), {"tool_choice": "none"}),
        (ModelSettings(tool_choice="look"), {"tool_choice": {"type": "function", "name": "look"}}),
        (
            ModelSettings(extra_body={"seed": 1, "temperature": 0}, temperature=1),
            {"seed": 1, "temperature": 0},
        ),
        (ModelSettings(), {}),
    ],
)
async def test_settings_go_out_under_the_providers_names(
    settings: ModelSettings, sent: dict[str, JSON]
) -> None:
    body = await body_of(ScriptedModel("hi"), model_settings=settings)
    plain = await body_of(ScriptedModel("hi"))
    assert {key: value for key, value in body.items() if key not in plain or plain[key] != value} == sent


async def test_everything_that_goes_out_is_utf8_without_lone_surrogates() -> None:
    odd = "a\ud800b"
    model = ScriptedModel("hi")
    given = Tool[object]("given", None, description=odd)
    settings = ModelSettings(extra_body={"user": odd})
    agent = Agent("a", instructions=odd, tools=[given], model_settings=settings)
    async with Engine("memory:", agents=[agent], model=model) as engine:
        await engine.run(odd)
    body = request_body(model.requests[0], stream=False)
    body.decode()
    assert b"\\ud8" not in body
    assert body.decode().count("a\ufffdb") == 4


async def test_the_same_request_makes_the_same_bytes() -> None:
    model = ScriptedModel("hi")
    async with Engine("memory:", agents=[Agent("a", tools=[look])], model=model) as engine:
        await engine.run("go", session="s")
        (rebuilt,) = requests_of(await engine.log.records("s"))
    assert request_body(rebuilt, stream=True) == request_body(model.requests[0], stream=True)


@BOTH_WAYS
async def test_a_model_without_reasoning_is_asked_again_without_the_word_and_never_again_with_it(
    stream: bool,
) -> None:
    refusal = Refused(400, "Encrypted content is not supported with this model.")
    async with FakeResponsesServer(refusal, "one", "two") as server:
        model = OpenAIResponsesModel("gpt-4o", client=server.client, stream=stream)
        engine = Engine("memory:", agents=[Agent("a")], model=model)
        assert (await engine.run("go", session="s")).final_output == "one"
        assert (await engine.run("go", session="s")).final_output == "two"
        records = await engine.log.records("s")
    assert ["include" in request for request in server.requests] == [True, False, False]
    assert not events_of(records, ModelFailed)


# -- chains


async def chained(server: FakeResponsesServer) -> Engine[object]:
    model = OpenAIResponsesModel("gpt-5", client=server.client, chain="previous_response_id")
    return Engine("memory:", agents=[Agent("a", tools=[look])], model=model)


async def test_along_a_chain_only_what_is_new_goes_out() -> None:
    async with FakeResponsesServer(function_call(look, {"what": "x"}), "one", "two") as server:
        engine = await chained(server)
        await engine.run("go", session="s")
        await engine.run("more", session="s")
    assert [[item.get("type", "message") for item in request["input"]] for request in server.requests] == [
        ["message"],
        ["function_call_output"],
        ["message"],
    ]
    assert [request["store"] for request in server.requests] == [True, True, True]


async def test_a_response_that_the_provider_forgot_is_asked_for_again_in_full() -> None:
    async with FakeResponsesServer("one", "two") as server:
        engine = await chained(server)
        await engine.run("go", session="s")
        (first,) = events_of(await engine.log.records("s"), ModelResponded)
        await server.client.responses.delete(first.response_id)
        assert (await engine.run("more", session="s")).final_output == "two"
        records = await engine.log.records("s")
    assert [event.kind for event in events_of(records, ModelFailed)] == ["chain"]
    assert [request.previous_response_id is not None for request in events_of(records, ModelRequested)] == [
        False,
        True,
        False,
    ]
    assert len(server.requests[-1]["input"]) == 3


async def test_a_request_that_continues_nothing_is_not_asked_again_as_if_it_did() -> None:
    lost = Refused(400, "no such response", code="previous_response_not_found")
    async with FakeResponsesServer(lost) as server:
        engine = await chained(server)
        with pytest.raises(RunFailedError):
            await engine.run("go", session="s")
    assert len(server.requests) == 1


async def test_a_rewrite_breaks_the_chain() -> None:
    async with FakeResponsesServer("one", "two") as server:
        engine = await chained(server)
        at = (await engine.run("go", session="s")).version
        rewrite = Rewrite(filter="test", parameters={}, operations=(["take", 1, 2],))
        await engine.log.append("s", [HistoryRewritten(cause="manual", rewrite=rewrite)], expected=at)
        await engine.run("more", session="s")
    assert "previous_response_id" not in server.requests[1]
    assert [item["role"] for item in server.requests[1]["input"]] == ["assistant", "user"]


# -- what goes wrong

ONCE = Retries(attempts=1)


class Refused(Exception):  # noqa: N818  # what the server is to answer
    def __init__(self, status_code: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code


@BOTH_WAYS
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
async def test_what_the_provider_refuses_is_the_clients_own_error(
    stream: bool, status: int, error: type[Exception]
) -> None:
    async with FakeResponsesServer(Refused(status, "no way"), "hi") as server:
        model = OpenAIResponsesModel("gpt-5", client=server.client, stream=stream)
        engine = Engine("memory:", agents=[Agent("a")], model=model, retries=ONCE)
        with pytest.raises(RunFailedError, match="no way") as caught:
            await engine.run("go", session="s")
        assert isinstance(caught.value.__cause__, error)
        assert (await engine.resume("s")).final_output == "hi"


async def test_a_server_that_is_not_there_is_the_clients_own_error() -> None:
    client = AsyncOpenAI(
        base_url="http://127.0.0.1:9",
        api_key="x",
        max_retries=0,
        http_client=DefaultAsyncHttpx2Client(trust_env=False),
    )
    async with client:
        model = OpenAIResponsesModel("gpt-5", client=client)
        engine = Engine("memory:", agents=[Agent("a")], model=model, retries=ONCE)
        with pytest.raises(RunFailedError) as caught:
            await engine.run("go")
    assert isinstance(caught.value.__cause__, openai.APIConnectionError)


@pytest.mark.parametrize("after", [0, 1, 4, 5])
async def test_a_stream_that_breaks_is_no_answer_and_resume_asks_again(after: int) -> None:
    broken = BrokenStream(assistant_message("hello you"), after=after)
    async with FakeResponsesServer(broken, "hi", stream_chunk=6) as server:
        model = OpenAIResponsesModel("gpt-5", client=server.client)
        engine = Engine("memory:", agents=[Agent("a")], model=model, retries=ONCE)
        with pytest.raises(RunFailedError):
            await engine.run("go", session="s")
        (failed,) = events_of(await engine.log.records("s"), ModelFailed)
        assert failed.partial == ("hello " if after == 5 else "")
        assert len(session_history(await engine.log.records("s"))) == 1
        assert (await engine.resume("s")).final_output == "hi"


@BOTH_WAYS
async def test_a_response_that_failed_says_why(stream: bool) -> None:
    failed = {"response": {"status": "failed", "error": {"code": "server_error", "message": "out of luck"}}}
    async with FakeResponsesServer(failed) as server:
        model = OpenAIResponsesModel("gpt-5", client=server.client, stream=stream)
        engine = Engine("memory:", agents=[Agent("a")], model=model, retries=ONCE)
        with pytest.raises(RunFailedError, match="the response is failed: out of luck") as caught:
            await engine.run("go")
    assert isinstance(caught.value.__cause__, ResponseFailedError)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "broke off before the response was complete"),
        (events(b'{"type":"response.created"}'), "broke off before the response was complete"),
        (events(b"[DONE]"), "broke off before the response was complete"),
        (events(b'{"type":"error","message":"overloaded"}'), "overloaded"),
        (events(b'{"type":"error","error":{"message":"overloaded"}}'), "overloaded"),
        (events(b'{"type":"error"}'), "no reason was given"),
        (events(b'{"type":"response.completed"}'), "the answer is no response"),
        (events(b'{"type":"response.completed","response":[]}'), "the answer is no response"),
        (events(b'{"type":"response.completed","response":{"output":7}}'), "the answer is no response"),
        (events(b"what?"), "the stream holds what is no event"),
        (events(b"[1]"), "the stream holds what is no event"),
        (b"<html>busy</html>", "broke off before the response was complete"),
    ],
)
async def test_a_stream_of_odd_bytes_is_a_typed_failure(body: bytes, says: str) -> None:
    async with BytesServer(body) as server:
        model = OpenAIResponsesModel("m", client=server.client)
        engine = Engine("memory:", agents=[Agent("a")], model=model, retries=ONCE)
        with pytest.raises(RunFailedError, match=says) as caught:
            await engine.run("go")
        assert isinstance(caught.value.__cause__, ResponseFailedError)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", ""),
        (b"<html>", ""),
        (b"[]", ""),
        (b"{", ""),
        (b"{}", "it has no output"),
        (b'{"output":7}', ""),
        (b'{"output":null}', "it has no output"),
        (b'{"error":{"message":"overloaded"}}', "it is an error: overloaded"),
    ],
)
async def test_an_answer_of_odd_bytes_is_a_typed_failure(body: bytes, says: str) -> None:
    async with BytesServer(body, kind="application/json") as server:
        model = OpenAIResponsesModel("m", client=server.client, stream=False)
        engine = Engine("memory:", agents=[Agent("a")], model=model)
        with pytest.raises(RunFailedError, match=f"the answer is no response: .*{says}") as caught:
            await engine.run("go")
        assert isinstance(caught.value.__cause__, ResponseFailedError)


# -- bytes in

ODD_ITEMS = [
    b'{"type": "hologram",  "depth":[1.50, null], "id":"h_1"}',
    b'{"id":"msg_1","type":"message","role":"assistant","future":{"a":  1e3},'
    b'"content":[{"type":"output_text","text":"hi","logprobs":[]}]}',
]


@BOTH_WAYS
async def test_items_are_logged_byte_for_byte_as_the_provider_sent_them(stream: bool) -> None:
    body = events(completed(*ODD_ITEMS)) if stream else response(*ODD_ITEMS)
    kind = "text/event-stream" if stream else "application/json"
    async with BytesServer(body, kind=kind) as server:
        model = OpenAIResponsesModel("m", client=server.client, stream=stream)
        engine = Engine("memory:", agents=[Agent("a")], model=model)
        assert (await engine.run("go", session="s")).final_output == "hi"
        records = await engine.log.records("s")
    (responded,) = events_of(records, ModelResponded)
    assert [bytes(held) for held in raw(responded, "output")] == ODD_ITEMS
    (record,) = [record for record in records if record.event is responded]
    assert all(held in record.payload for held in ODD_ITEMS)


async def test_unknown_items_go_back_as_they_came() -> None:
    async with BytesServer(events(completed(*ODD_ITEMS)), events(completed(SAID))) as server:
        engine = Engine("memory:", agents=[Agent("a")], model=OpenAIResponsesModel("m", client=server.client))
        await engine.run("go", session="s")
        await engine.run("more", session="s")
        assert ODD_ITEMS[0] in server.requests[1]


@BOTH_WAYS
async def test_a_lone_surrogate_in_a_response_comes_back_equal(stream: bool) -> None:
    item = b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a\\ud800b"}]}'
    delta = b'{"type":"response.output_text.delta","delta":"a\\ud800b"}'
    body = events(delta, completed(item)) if stream else response(item)
    kind = "text/event-stream" if stream else "application/json"
    async with BytesServer(body, kind=kind) as server:
        model = OpenAIResponsesModel("m", client=server.client, stream=stream)
        engine = Engine("memory:", agents=[Agent("a")], model=model)
        updates = [update async for update in engine.stream("go", session="s")]
        assert [update.text for update in updates if isinstance(update, Delta)] == (
            ["a\ud800b"] if stream else []
        )
        assert session_history(await engine.log.records("s"))[1].text == "a\ud800b"


@pytest.mark.parametrize(
    ("more", "usage"),
    [
        (b"", Usage(requests=1)),
        (b',"usage":null', Usage(requests=1)),
        (b',"usage":{}', Usage(requests=1)),
        (b',"usage":{"input_tokens":3,"input_tokens_details":null}', Usage(requests=1, input_tokens=3)),
        (b',"usage":{"input_tokens":null,"total_tokens":7}', Usage(requests=1, total_tokens=7)),
        (b',"usage":{"input_tokens":"many"}', Usage(requests=1)),
        (b',"usage":[]', Usage(requests=1)),
    ],
)
def test_an_answer_is_not_thrown_away_for_its_usage(more: bytes, usage: Usage) -> None:
    read = read_response(response(SAID, more=more))
    assert (read.usage, [bytes(item) for item in read.output]) == (usage, [SAID])


def test_an_answer_without_an_id_or_a_status_is_an_answer() -> None:
    read = read_response(b'{"output":[%b]}' % SAID)
    assert (read.id, read.status, len(read.output)) == (None, "completed", 1)


@pytest.mark.parametrize("id", [b"7", b"null", b"[]"])
async def test_an_odd_id_is_none(id: bytes) -> None:
    body = b'{"id":%b,"output":[%b]}' % (id, SAID)
    async with BytesServer(body, kind="application/json") as server:
        model = OpenAIResponsesModel("m", client=server.client, stream=False)
        engine = Engine("memory:", agents=[Agent("a")], model=model)
        await engine.run("go", session="s")
        (responded,) = events_of(await engine.log.records("s"), ModelResponded)
    assert responded.response_id is None


def test_an_item_does_not_keep_the_whole_body_alive() -> None:
    body = response(SAID, more=b',"rest":"' + b"x" * 1000 + b'"')
    (item,) = read_response(body).output
    assert item == Raw(SAID)
    assert item is not body


# -- server-sent events


async def chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def sent(*parts: bytes) -> list[bytes]:
    return [data async for data in _server_sent(chunks(parts))]


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"event: x\nid: 7\nretry: 1\ndata: a\n\n", [b"a"]),
        (b": keep-alive\n\ndata: a\n\n: keep-alive\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\n\ndata: cut of", [b"a"]),
        (b"data: \xe9\x80\x80\n\n", ["退".encode()]),
        (b"", []),
    ],
)
async def test_events_are_found_however_the_stream_is_split(stream: bytes, data: list[bytes]) -> None:
    assert await sent(stream) == data
    assert await sent(*(stream[n : n + 1] for n in range(len(stream)))) == data
    for n in range(len(stream)):
        assert await sent(stream[:n], stream[n:]) == data


async def test_a_stream_is_read_to_its_end_and_no_further() -> None:
    model = ScriptedModel("x")
    async with Engine("memory:", agents=[Agent("a")], model=model) as engine:
        await engine.run("go")
    after_the_end = [events(completed(SAID)), b"data: what?\n\n"]
    pieces = [piece async for piece in _read_stream(chunks(after_the_end), model.requests[0])]
    assert len(pieces) == 1


# -- made


def test_without_a_client_a_key_is_needed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError, match="model gpt-5 needs OPENAI_API_KEY in the environment, or client="):
        OpenAIResponsesModel("gpt-5")


def test_a_chain_of_another_kind_is_refused() -> None:
    chain: Any = "conversation id"
    with pytest.raises(UsageError, match="give 'previous_response_id' or 'conversation', or None"):
        OpenAIResponsesModel("gpt-5", client=AsyncOpenAI(api_key="x"), chain=chain)


def test_the_endpoint_is_where_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert OpenAIResponsesModel("m").endpoint == "https://api.openai.com/v1/"
    client = AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="x")
    assert OpenAIResponsesModel("m", client=client).endpoint == "http://127.0.0.1:1/v1/"


async def test_a_client_that_was_given_stays_open() -> None:
    async with FakeResponsesServer("one", "two") as server:
        for _ in range(2):
            model = OpenAIResponsesModel("m", client=server.client)
            async with Engine("memory:", agents=[Agent("a")], model=model) as engine:
                await engine.run("go")
            await model.close()


def test_a_model_by_name_works_in_one_loop_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    engine = Engine(MemoryLog(), agents=[Agent("a")], model="gpt-5")
    answers: list[object] = []

    async def ask(*script: str) -> None:
        async with FakeResponsesServer(*script) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            answers.append((await engine.run("go")).final_output)

    for text in ("one", "two"):
        asyncio.run(ask(text))
    assert answers == ["one", "two"]


def test_importing_the_engine_does_not_import_openai() -> None:
    code = "import sys, batonlog.engine; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
