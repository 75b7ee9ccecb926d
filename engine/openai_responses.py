"""The OpenAI Responses API, through the official client: the one module that imports `openai`.

Requests go out as bytes and responses come in as bytes. The client walks every input item of
`responses.create(input=…)` against its type hints, 0.36 ms each, on the event loop; posting
the body through the same client keeps its retries, its typed errors, authentication and
headers, and costs less than a millisecond for a thousand items. The raw JSON of a response is
what is recorded.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from batonlog.engine.models import ChainLostError, Delta, ModelResponse, TooLongError
from batonlog.events import JSON, Usage, UsageError
from batonlog.events.values import dump, load
from batonlog.projections import ModelRequest
from batonlog.projections.wire import clean

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_JSON_BODY = {"headers": {"Content-Type": "application/json"}}

_FIRST_WAIT, _LAST_WAIT, _LONGEST_WAIT = 0.5, 8.0, 120.0
"""Seconds before the second try and before the last, and the most that a provider may ask for."""

_T = TypeVar("_T")


class ResponseFailedError(Exception):
    """The provider answered that the response failed, or broke its stream off."""


class OpenAIResponsesModel:
    """A model behind the Responses API.

    Args:
        name: the model's name.
        client: stays the caller's to close; without one, OPENAI_API_KEY is needed at this line.
        chain: `previous_response_id` has the provider keep what it was sent, so that only what
            is new goes out; a rewrite of the view breaks the chain, and the whole view goes
            out. `conversation` does the same with a conversation of the provider's, which
            others can read there; after a rewrite or a failure the whole view goes into a new
            one, and only rate limits are retried by the client. None keeps nothing there
            (`store` is false, reasoning comes back encrypted).
        stream: get the answer in pieces, for deltas.
        count: how tokens are counted for a compaction's budget, where an estimate would be near it:
            `server` asks the provider, `tiktoken` counts here (extra `tiktoken`; it fetches its
            tables once). None goes by what was counted with the last answer.
    """

    def __init__(
        self,
        name: str,
        *,
        client: "AsyncOpenAI | None" = None,
        chain: Literal["previous_response_id", "conversation"] | None = None,
        stream: bool = True,
        count: Literal["server", "tiktoken"] | None = None,
    ) -> None:
        if count not in (None, "server", "tiktoken"):
            raise UsageError(f"count={count!r}: give 'server' or 'tiktoken', or None to estimate")
        if count == "tiktoken" and find_spec("tiktoken") is None:
            raise UsageError("count='tiktoken' needs the package: pip install 'batonlog[tiktoken]'")
        if chain not in (None, "previous_response_id", "conversation"):
            raise UsageError(
                f"chain={chain!r}: give 'previous_response_id' or 'conversation', or None to keep nothing there"
            )
        if client is None and not os.environ.get("OPENAI_API_KEY"):
            raise UsageError(
                f"model {name} needs OPENAI_API_KEY in the environment, or client=AsyncOpenAI(...)"
            )
        self._name = name
        self._given = client
        self._made: tuple[asyncio.AbstractEventLoop, AsyncOpenAI] | None = None
        self._stream = stream
        self._count = count
        self._encrypted = True
        self.chain = chain

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def endpoint(self) -> str:
        """Where it is asked: what it makes goes back there and nowhere else."""
        if self._given is not None:
            return str(self._given.base_url)
        return os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1/"

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        """Yield deltas, then the response.

        Raises what the client raises, ChainLostError if the provider does not know the response
        or conversation that the request continues, TooLongError if the model does not take that
        much, and ResponseFailedError if it failed.
        """
        import openai

        try:
            async for piece in self._respond(request):
                yield piece
            return
        except openai.APIStatusError as error:
            if _is_lost(error, request):
                raise ChainLostError(str(error)) from error
            if _is_too_long(error.code, str(error)):
                raise TooLongError(str(error)) from error
            if not (self._encrypted and "ncrypted content is not supported" in str(error)):
                raise
        self._encrypted = False  # a model without reasoning: it does not know the word
        async for piece in self._respond(request):
            yield piece

    async def _respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        import httpx2
        from openai import AsyncStream

        body = request_body(request, stream=self._stream, encrypted=self._encrypted)
        client = self._client()
        # What is added to a conversation is sent once: if it fails, it may have been added all the same.
        send = _once_accepted if request.conversation is not None else _as_it_retries
        if not self._stream:
            response = await send(
                client,
                lambda options: client.post(
                    "/responses", content=body, cast_to=httpx2.Response, options=options
                ),
            )
            yield read_response(response.content)
            return
        stream = await send(
            client,
            lambda options: client.post(
                "/responses",
                content=body,
                cast_to=object,
                options=options,
                stream=True,
                stream_cls=AsyncStream[object],
            ),
        )
        try:
            async for piece in _read_stream(stream.response.aiter_bytes(), request):
                yield piece
        finally:
            await stream.response.aclose()

    async def open_conversation(self) -> str:
        """Open an empty conversation and return its id. Raises what the client raises."""
        opened = await self._client().conversations.create()
        return getattr(opened, "id", "")  # the client reads anything as a conversation

    def _client(self) -> "AsyncOpenAI":
        """The caller's client, or one of this event loop: connections belong to a loop."""
        if self._given is not None:
            return self._given
        from openai import AsyncOpenAI

        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            self._made = (loop, AsyncOpenAI())
        return self._made[1]

    async def count_tokens(self, request: ModelRequest, /) -> int | None:
        """Return how many tokens a request has; None if that is not to be counted, or cannot be."""
        if self._count == "tiktoken":
            with suppress(OSError):  # its tables could not be fetched
                return await asyncio.get_running_loop().run_in_executor(None, _count_here, request)
            return None
        return await self._count_there(request) if self._count == "server" else None

    async def _count_there(self, request: ModelRequest) -> int | None:
        import httpx2
        import openai

        body = b"{%b}" % b",".join(_shown(request))
        try:
            client = self._client()
            response = await _as_it_retries(
                client,
                lambda options: client.post(
                    "/responses/input_tokens", content=body, cast_to=httpx2.Response, options=options
                ),
            )
            found = load(response.content)
        except (openai.APIError, ValueError):  # others than OpenAI do not have it
            return None
        count = found.get("input_tokens") if isinstance(found, dict) else None
        return count if isinstance(count, int) else None

    async def close(self) -> None:
        """Close the client that was made here, if one was."""
        made, self._made = self._made, None
        if made is not None and made[0] is asyncio.get_running_loop():
            await made[1].close()


async def _as_it_retries(client: "AsyncOpenAI", post: Callable[[Any], Awaitable[_T]]) -> _T:
    """Post, and leave it to the client what it tries again."""
    return await post(dict(_JSON_BODY))


async def _once_accepted(client: "AsyncOpenAI", post: Callable[[Any], Awaitable[_T]]) -> _T:
    """Post, and try again only what the provider did not look at: a request beyond its rate limit."""
    import openai

    for tried in count():
        try:
            return await post({**_JSON_BODY, "max_retries": 0})
        except openai.RateLimitError as error:
            seconds = _seconds_to_wait(error.response.headers.get("retry-after"), tried)
            if tried >= client.max_retries or seconds > _LONGEST_WAIT:
                raise
        await asyncio.sleep(seconds)
    raise AssertionError("unreachable")


def _seconds_to_wait(said: str | None, tried: int) -> float:
    """How long to wait before the next try: as the provider says in seconds, else twice as long each time."""
    try:
        return max(0.0, float(said or ""))
    except ValueError:
        return float(min(_FIRST_WAIT * 2**tried, _LAST_WAIT))


def _is_lost(error: "APIStatusError", request: ModelRequest) -> bool:
    """Whether the provider does not have what the request continues, or does not let it be continued."""
    if request.previous_response_id is not None:
        return error.code == "previous_response_not_found"
    if request.conversation is None or request.first == 0:  # a new one that is not there is a fault
        return False
    if error.code in _NOT_CONTINUED:
        return True
    # OpenAI answers 404 without a code: "Conversation with id '…' not found."
    return error.status_code in (400, 404) and request.conversation in str(error)


_NOT_CONTINUED = frozenset({"conversation_not_found", "conversation_locked"})


# -- requests


def request_body(request: ModelRequest, *, stream: bool, encrypted: bool = True) -> bytes:
    """Return the body of a request. The same request and wire format make the same bytes."""
    parts = _shown(request)
    if request.conversation is not None:
        parts.append(b'"conversation":%b' % dump(request.conversation))
    elif request.previous_response_id is not None:
        parts.append(b'"previous_response_id":%b' % dump(request.previous_response_id))
    parts.append(b'"store":true' if request.stored else b'"store":false')
    if encrypted:
        parts.append(b'"include":["reasoning.encrypted_content"]')
    schema = bytes(request.raw_output_schema)
    if schema != b"null":
        parts.append(
            b'"text":{"format":{"type":"json_schema","name":"final_output","strict":true,"schema":%b}}'
            % schema
        )
    parts += [b"%b:%b" % (_clean(key), _clean(value)) for key, value in _settings(request.settings).items()]
    if stream:
        parts.append(b'"stream":true')
    return b"{%b}" % b",".join(parts)


def _shown(request: ModelRequest) -> list[bytes]:
    """The parts of a request's body that the model reads."""
    parts = [b'"model":%b' % dump(request.model)]
    if request.instructions:
        parts.append(b'"instructions":%b' % _clean(request.instructions))
    parts.append(b'"input":[%b]' % b",".join(request.raw_input))
    if tools := request.raw_tools:
        parts.append(b'"tools":[%b]' % b",".join(map(bytes, tools)))
    return parts


def _count_here(request: ModelRequest) -> int:
    """Tokens of the JSON that the model reads: a little more than of what it is turned into."""
    import tiktoken

    try:
        encoding = tiktoken.encoding_for_model(request.model)
    except KeyError:  # a model that is newer than the tables
        encoding = tiktoken.get_encoding("o200k_base")
    texts = [part.decode() for part in _shown(request)]
    return sum(map(len, encoding.encode_batch(texts, disallowed_special=())))


def _clean(value: JSON) -> bytes:
    """JSON without lone surrogates, which no provider takes; what is recorded keeps them."""
    data = dump(value)
    return clean(data) if b"\\ud" in data else data


def _settings(settings: Mapping[str, JSON]) -> dict[str, JSON]:
    """The settings under the provider's names."""
    given = dict(settings)
    own = given.pop("extra_body", None) or {}
    effort = given.pop("reasoning_effort", None)
    choice = given.pop("tool_choice", None)
    if effort is not None:
        given["reasoning"] = {"effort": effort}
    if choice in ("auto", "required", "none"):
        given["tool_choice"] = choice
    elif choice is not None:
        given["tool_choice"] = {"type": "function", "name": choice}
    return {**given, **own}


# -- responses


class _Details(Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(Struct):
    input_tokens: int = 0
    input_tokens_details: _Details | None = None
    output_tokens: int = 0
    output_tokens_details: _Details | None = None
    total_tokens: int = 0


class _Response(Struct):
    # msgspec knows no union of Raw and None: what is not there is empty.
    id: str | None = None
    status: str | None = None
    output: list[Raw] | None = None
    usage: _Usage | None = None
    error: Raw = Raw()


_responses = msgspec.json.Decoder(_Response)


def read_response(data: bytes | Raw) -> ModelResponse:
    """Return a response; its items as the bytes that came. Raises ResponseFailedError for one that failed."""
    try:
        response = _responses.decode(data)
    except msgspec.MsgspecError as error:
        response = _leniently(data, error)
    if response.status not in ("completed", "incomplete", None):
        raise _failure(f"the response is {response.status}: {_said(response.error)}", response.error)
    if response.output is None:
        why = f"it is an error: {_said(response.error)}" if bytes(response.error) else "it has no output"
        raise ResponseFailedError(f"the answer is no response: {why}")
    return ModelResponse(
        # Raw keeps the whole body alive: copied, an item keeps itself.
        [item.copy() for item in response.output],
        id=response.id,
        usage=_usage(response.usage),
        status="incomplete" if response.status == "incomplete" else "completed",
    )


def _leniently(data: bytes | Raw, error: Exception) -> _Response:
    """A response with lone surrogates in its texts, which msgspec refuses, or with odd fields."""
    try:
        body = load(data)
        output = [Raw(dump(item)) for item in body["output"]]
    except (ValueError, LookupError, TypeError, RecursionError) as second:
        raise ResponseFailedError(f"the answer is no response: {error}") from second
    return _Response(
        id=_text_or_none(body.get("id")),
        status=_text_or_none(body.get("status")),
        output=output,
        usage=_counted(body.get("usage")),
    )


def _text_or_none(value: JSON) -> str | None:
    return value if isinstance(value, str) else None


def _counted(usage: JSON) -> _Usage:
    """What of a usage can be counted: no answer is thrown away for the rest."""
    given = usage if isinstance(usage, dict) else {}
    return _Usage(
        **_numbers(given, _Usage),
        input_tokens_details=_Details(**_numbers(given.get("input_tokens_details"), _Details)),
        output_tokens_details=_Details(**_numbers(given.get("output_tokens_details"), _Details)),
    )


def _numbers(found: JSON, type_: Any) -> dict[str, int]:
    fields = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in fields if key in type_.__struct_fields__ and type(value) is int}


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage(requests=1)
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens if usage.input_tokens_details else 0,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else 0,
        total_tokens=usage.total_tokens,
    )


def _is_too_long(code: object, message: str) -> bool:
    """Whether an error says that the model does not take that much; others than OpenAI say it in words alone."""
    return code == "context_length_exceeded" or "maximum context length" in message


def _failure(message: str, error: Raw) -> Exception:
    given = load(error) if bytes(error) else None
    code = given.get("code") if isinstance(given, dict) else None
    return TooLongError(message) if _is_too_long(code, message) else ResponseFailedError(message)


def _said(error: Raw) -> str:
    value = load(error) if bytes(error) else None
    return str(value.get("message") or value) if isinstance(value, dict) else "no reason was given"


class _Event(Struct):
    type: str = ""
    delta: Raw = Raw()
    response: Raw = Raw()
    message: str | None = None
    error: Raw = Raw()


_events = msgspec.json.Decoder(_Event)

_DELTAS: Mapping[str, Literal["text", "reasoning", "arguments"]] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


async def _read_stream(
    chunks: AsyncIterator[bytes], request: ModelRequest
) -> AsyncIterator[Delta | ModelResponse]:
    """Yield what a stream brings. Raises ResponseFailedError if it breaks off or fails."""
    async for data in _server_sent(chunks):
        if data == b"[DONE]":
            break
        try:
            event = _events.decode(data)
        except msgspec.MsgspecError:
            event = _event_leniently(data)
        kind = _DELTAS.get(event.type)
        if kind is not None:
            text = load(event.delta)
            yield Delta(kind=kind, text=str(text), agent=request.agent, turn=request.turn)
        elif event.type in _ENDS:
            yield read_response(event.response)
            return
        elif event.type == "error":
            raise _failure(event.message or _said(event.error), event.error)
    raise ResponseFailedError("the stream broke off before the response was complete")


def _event_leniently(data: bytes) -> _Event:
    try:
        body = load(data)
    except ValueError as error:
        raise ResponseFailedError(f"the stream holds what is no event: {error}") from error
    if not isinstance(body, dict):
        raise ResponseFailedError(f"the stream holds what is no event: {type(body).__name__}")
    held = {key: Raw(dump(value)) for key, value in body.items() if value is not None}
    none = Raw()
    return _Event(
        type=str(body.get("type", "")),
        delta=held.get("delta", none),
        response=held.get("response", none),
        error=held.get("error", none),
    )


async def _server_sent(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    rest = b""
    lines: list[bytes] = []
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                yield b"\n".join(lines)
                lines = []
    if lines:
        yield b"\n".join(lines)
