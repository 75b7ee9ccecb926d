"""What a provider answers at a bad moment, over HTTP: what is asked again, after how long, and what is not."""

import email.utils
import time
from collections.abc import Mapping
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpx2Client
from tests.engine.failing import Clock, failed_in

from batonlog.engine import Agent, Engine, OpenAIResponsesModel, Retries, RunFailedError, tool
from batonlog.engine.models import UnavailableError
from batonlog.engine.openai_failures import of_error, of_status, seconds_asked
from batonlog.engine.testing import FakeResponsesServer, ScriptedModel, function_call
from batonlog.engine.testing.fake_responses import BrokenStream, Step
from batonlog.events import MemoryLog, Record, Usage
from batonlog.projections import model_history, session_history, usage

BOTH_WAYS = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
CHAINS = pytest.mark.parametrize("chain", [None, "previous_response_id", "conversation"])


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("batonlog.engine.effects.pause", clock)
    return clock


class Says(Exception):  # noqa: N818  # what the server is to answer
    def __init__(
        self, status_code: int, message: str = "no", *, code: str | None = None, **headers: object
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def failing(code: str) -> Step:
    return {"response": {"status": "failed", "error": {"code": code, "message": "out of luck"}}}


@tool
def look(what: str) -> str:
    """Look it up."""
    return f"{what} is here"


LOOK = function_call(look, {"what": "it"})


class Watched(FakeResponsesServer):
    """Counts how often each request shows the user's message to the model: what is held, and what is sent."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(*steps)
        self.copies: list[int] = []

    def _deliver(self, request: dict[str, Any], answer: Any) -> Any:
        turn = self._held.turn_of(request)
        self.copies.append(str([*turn.before, *turn.sent]).count("the user's message"))
        return super()._deliver(request, answer)


def engine_of(server: FakeResponsesServer, *, fallback: Any = None, **options: Any) -> Engine[object]:
    model = OpenAIResponsesModel("gpt-5", client=server.client, **options)
    return Engine(MemoryLog(), agents=[Agent("a", tools=[look])], model=model, fallback=fallback)


def told(records: tuple[Record, ...]) -> list[Any]:
    """Both histories, without ids."""

    def bare(items: Any) -> list[Any]:
        return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]

    return [bare(session_history(records).data), bare(model_history(records).data)]


PASSING: Mapping[str, Step] = {
    "408": Says(408),
    "409": Says(409),
    "429": Says(429),
    "429, and when": Says(429, retry_after=3),
    "500": Says(500),
    "503": Says(503),
    "529": Says(529),
    "it says so": Says(400, x_should_retry="true"),
    "dropped": ConnectionResetError(),
    "broken at once": BrokenStream("half of it", after=0),
    "broken": BrokenStream("half of it", after=5),
    "broken and kept": BrokenStream("half of it", after=5, kept=True),
    "server_error": failing("server_error"),
    "rate_limit_exceeded": failing("rate_limit_exceeded"),
}
"""What may go by itself."""

LASTING: Mapping[str, Step] = {
    "401": Says(401),
    "402": Says(402),
    "403": Says(403),
    "404": Says(404, "The model `gpt-5` does not exist.", code="model_not_found"),
    "no money": Says(429, code="insufficient_quota"),
    "it says no": Says(500, x_should_retry="false"),
    "too late": Says(429, retry_after=61),
    "failed for no money": failing("insufficient_quota"),
}
"""What does not go, and another model may answer."""

OWN_FAULT: Mapping[str, Step] = {
    "400": Says(400),
    "413": Says(413),
    "422": Says(422),
    "no, in any case": Says(400, x_should_retry="false"),
    "failed for its prompt": failing("invalid_prompt"),
}
"""What another model would refuse as well."""


@BOTH_WAYS
@CHAINS
@pytest.mark.parametrize("step", PASSING.values(), ids=PASSING)
async def test_what_may_go_by_itself_is_asked_again_and_nothing_is_sent_twice(
    step: Step, chain: Any, stream: bool
) -> None:
    async with Watched(step, LOOK, step, step, "found") as server:
        one = engine_of(server, chain=chain, stream=stream)
        assert (await one.run("the user's message", session="s")).final_output == "found"
        records = await one.log.records("s")
    async with Watched(LOOK, "found") as calm:
        two = engine_of(calm, chain=chain, stream=stream)
        await two.run("the user's message", session="s")
        undisturbed = await two.log.records("s")
    assert told(records) == told(undisturbed)
    lost = sum((event.usage or Usage() for event in failed_in(records)), start=Usage())
    assert bool(lost.requests) == isinstance(step, dict)  # which says what it has cost
    if chain != "conversation":  # where the server counts the ids of what it holds, too
        assert usage(records)["a", "gpt-5"] == usage(undisturbed)["a", "gpt-5"] + lost
    assert len(server.requests) == 5
    assert set(server.copies) == {1}
    assert server.refusals == ()
    assert all(event.retried and event.delay for event in failed_in(records))


@BOTH_WAYS
@CHAINS
@pytest.mark.parametrize("step", LASTING.values(), ids=LASTING)
async def test_what_does_not_go_is_passed_on_at_once(step: Step, chain: Any, stream: bool) -> None:
    async with Watched(LOOK, step) as server:
        one = engine_of(server, chain=chain, stream=stream, fallback=ScriptedModel("found"))
        assert (await one.run("the user's message", session="s")).final_output == "found"
        (failed,) = failed_in(await one.log.records("s"))
    assert failed.passed_on
    assert len(server.requests) == 2
    assert server.refusals == ()


@BOTH_WAYS
@pytest.mark.parametrize("step", LASTING.values(), ids=LASTING)
async def test_what_does_not_go_fails_the_run_where_there_is_no_other(step: Step, stream: bool) -> None:
    async with FakeResponsesServer(step) as server:
        one = engine_of(server, stream=stream)
        with pytest.raises(RunFailedError) as caught:
            await one.run("go", session="s")
    assert not isinstance(caught.value.__cause__, UnavailableError)
    assert len(server.requests) == 1


@BOTH_WAYS
@pytest.mark.parametrize("step", OWN_FAULT.values(), ids=OWN_FAULT)
async def test_a_fault_of_the_request_fails_the_run_at_once(step: Step, stream: bool) -> None:
    async with FakeResponsesServer(step) as server:
        one = engine_of(server, stream=stream, fallback=ScriptedModel())
        with pytest.raises(RunFailedError):
            await one.run("go", session="s")
        (failed,) = failed_in(await one.log.records("s"))
    assert (failed.retried, failed.passed_on) == (False, False)
    assert len(server.requests) == 1


@CHAINS
async def test_a_fallback_at_the_same_provider_is_shown_everything_once(chain: Any) -> None:
    async with Watched(LOOK, Says(401), LOOK, "found", "again") as server:
        other = OpenAIResponsesModel("gpt-5-mini", client=server.client, chain=chain)
        one = engine_of(server, chain=chain, fallback=other)
        await one.run("the user's message", session="s")
        await one.run("more", session="s")
    assert [request["model"] for request in server.requests] == [
        "gpt-5",
        "gpt-5",
        "gpt-5-mini",
        "gpt-5-mini",
        "gpt-5",
    ]
    assert set(server.copies) == {1}
    assert server.refusals == ()


async def test_a_provider_is_waited_for_as_long_as_it_asks(clock: Clock) -> None:
    late = email.utils.formatdate(time.time() + 40, usegmt=True)
    steps: list[Step] = [
        Says(429, retry_after=7),
        Says(429, retry_after_ms=2500, retry_after=9),
        LOOK,
        Says(503, retry_after=late),
    ]
    async with FakeResponsesServer(*steps, "found") as server:
        await engine_of(server).run("go", session="s")
    assert clock.waits[:2] == [7, 2.5]
    assert 30 < clock.waits[2] <= 40


async def test_a_server_that_is_not_there_is_asked_as_often_as_said(clock: Clock) -> None:
    http = DefaultAsyncHttpx2Client(trust_env=False)
    async with AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="x", http_client=http) as client:
        model = OpenAIResponsesModel("gpt-5", client=client)
        one = Engine("memory:", agents=[Agent("a")], model=model, retries=Retries(attempts=4))
        with pytest.raises(RunFailedError) as caught:
            await one.run("go", session="s")
        kinds = [event.kind for event in failed_in(await one.log.records("s"))]
    assert isinstance(caught.value.__cause__, openai.APIConnectionError)
    assert kinds == ["APIConnectionError"] * 4
    assert len(clock.waits) == 3


async def test_a_conversation_that_cannot_be_opened_for_want_of_a_key_is_passed_on() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(401, json={"error": {"message": "no key"}})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(refuse))
    async with AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="x", http_client=http) as client:
        model = OpenAIResponsesModel("gpt-5", client=client, chain="conversation")
        one = Engine("memory:", agents=[Agent("a")], model=model, fallback=ScriptedModel("hi"))
        assert (await one.run("go", session="s")).final_output == "hi"


class Cut(httpx2.AsyncByteStream):
    """A body that comes so far, and then the connection fails in its own way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def __aiter__(self) -> Any:
        yield b'data: {"type":"response.output_text.delta","delta":"half"}\n\n'
        raise self.error


@pytest.mark.parametrize(
    "error",
    [httpx2.ReadTimeout("slow"), httpx2.ReadError(""), httpx2.RemoteProtocolError("eof"), OSError("tls")],
    ids=lambda error: type(error).__name__,
)
async def test_a_stream_that_breaks_in_any_way_is_asked_for_again(error: Exception) -> None:
    bodies: list[Any] = [
        httpx2.Response(200, stream=Cut(error), headers={"content-type": "text/event-stream"}),
        httpx2.Response(
            200,
            content=b'data: {"type":"response.completed","response":{"output":[]}}\n\n',
            headers={"content-type": "text/event-stream"},
        ),
    ]
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda request: bodies.pop(0)))
    async with AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="x", http_client=http) as client:
        one = Engine("memory:", agents=[Agent("a")], model=OpenAIResponsesModel("gpt-5", client=client))
        await one.run("go", session="s")
        (failed,) = failed_in(await one.log.records("s"))
    assert (failed.kind, failed.partial, failed.retried) == (type(error).__name__, "half", True)


@BOTH_WAYS
async def test_an_error_that_breaks_off_while_it_is_read_is_asked_for_again(stream: bool) -> None:
    done = b'{"type":"response.completed","response":{"output":[]}}'
    bodies: list[Any] = [
        httpx2.Response(503, stream=Cut(httpx2.ReadError("gone"))),
        httpx2.Response(200, content=b"data: " + done + b"\n\n" if stream else b'{"output":[]}'),
    ]
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda request: bodies.pop(0)))
    async with AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="x", http_client=http) as client:
        model = OpenAIResponsesModel("gpt-5", client=client, stream=stream)
        await Engine("memory:", agents=[Agent("a")], model=model).run("go")
    assert not bodies


# -- what an error says


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "20"}, 0.02),
        ({"retry-after-ms": "20", "retry-after": "7"}, 0.02),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 99 Oct 99999 07:28:00 GMT"}, None),
        ({"retry-after": "1e999"}, float("inf")),
    ],
)
def test_what_a_provider_asks_for_is_read_as_the_client_reads_it(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert seconds_asked(headers) == seconds


@pytest.mark.parametrize("seconds", ["1e999", "inf", "3600"])
def test_who_asks_for_too_much_is_not_asked_again(seconds: str) -> None:
    found = of_status(429, None, {"retry-after": seconds}, "slowly")
    assert found is not None
    assert Retries().delay(0, found, chance=0) is None


@pytest.mark.parametrize(
    ("error", "again"),
    [
        ({"code": "server_error"}, True),
        ({"code": None, "type": "overloaded_error"}, True),
        ({"code": 502}, True),
        ({"code": 429}, True),
        ({"code": 401}, False),
        ({"code": "insufficient_quota"}, False),
        ({"code": "rate_limit_exceeded", "type": "insufficient_quota"}, False),
        ({"code": "invalid_prompt", "type": "invalid_request_error"}, None),
        ({"code": 400}, None),
        ({"code": True}, None),
        ({"code": []}, None),
        ("overloaded", None),
        (None, None),
    ],
)
def test_an_error_in_an_answer_says_whether_to_ask_again(error: Any, again: bool | None) -> None:
    found = of_error(error, "says")
    assert (found.again if found is not None else None) == again


@pytest.mark.parametrize("code", ["model_not_found", ["odd"], {"odd": 1}, None, 7])
def test_an_odd_code_hurts_nobody(code: Any) -> None:
    assert of_status(400, code, {}, "no") is None or code == "model_not_found"
