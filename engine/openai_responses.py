"""The OpenAI Responses API, through the official client: the one module that imports `openai`.

Requests go out as bytes and responses come in as bytes. The client walks every input item of
`responses.create(input=…)` against its type hints, 0.36 ms each, on the event loop; posting
the body through the same client keeps its typed errors, authentication and headers, and costs
less than a millisecond for a thousand items. The raw JSON of a response is what is recorded.

The client never asks for a response again: the engine does, so that each attempt is an event.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw, Struct

from batonlog.engine.models import ChainLostError, Delta, ModelResponse, TooLongError, UnavailableError
from batonlog.engine.openai_failures import of_error, of_status
from batonlog.events import JSON, Usage, UsageError
from batonlog.events.values import dump, load
from batonlog.projections import ModelRequest
from batonlog.projections.wire import clean

if TYPE_CHECKING:
    from openai import APIError, APIStatusError, AsyncOpenAI

_JSON_BODY: Any = {"headers": {"Content-Type": "application/json"}}
_ONCE: Any = {**_JSON_BODY, "max_retries": 0}


class ResponseFailedError(Exception):
    """The provider answered that the response failed, or broke its stream off."""

    unavailable: UnavailableError | None = None
    """Set if it may go by itself, or with another model."""
    usage: Usage | None = None
    """Tokens, where the provider told them."""


class OpenAIResponsesModel:
    """A model behind the Responses API.

    Args:
        name: the model's name.
        client: stays the caller's to close; without one, OPENAI_API_KEY is needed at this line.
        chain: `previous_response_id` has the provider keep what it was sent, so that only what
            is new goes out; a rewrite of the view breaks the chain, and the whole view goes
            out. `conversation` does the same with a conversation of the provider's, which
            others can read there; after a rewrite or a failure the whole view goes into a new
            one. None keeps nothing there (`store` is false, reasoning comes back encrypted).
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

        Raises ChainLostError if the provider does not know the response or conversation that the
        request continues, TooLongError if the model does not take that much, UnavailableError if it
        does not answer now (or not this client, or has no such model), ResponseFailedError for an
        answer that failed or is none, and else what the client raises.
        """
        import httpx2
        import openai

        try:
            async for piece in self._tried(request):
                yield piece
        except httpx2.RequestError as error:  # while an error was read, which the client does not look after
            raise UnavailableError(str(error)) from error
        except openai.APIError as error:
            if (found := _unavailable(error)) is None:
                raise
            raise found from error
        except ResponseFailedError as error:
            if error.unavailable is None:
                raise
            raise error.unavailable from error

    async def _tried(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
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
        if not self._stream:
            response = await client.post("/responses", content=body, cast_to=httpx2.Response, options=_ONCE)
            yield read_response(response.content)
            return
        stream = await client.post(
            "/responses",
            content=body,
            cast_to=object,
            options=_ONCE,
            stream=True,
            stream_cls=AsyncStream[object],
        )
        try:
            async for piece in _read_stream(_unbroken(stream.response.aiter_bytes()), request):
                yield piece
        finally:
            await stream.response.aclose()

    async def open_conversation(self) -> str:
        """Open an empty conversation and return its id.

        The client retries this as it is told: nothing is lost if one too many is opened. Raises
        UnavailableError as `respond` does, and else what the client raises; also where there are
        no conversations at all.
        """
        import openai

        try:
            opened = await self._client().conversations.create()
        except openai.APIError as error:
            if isinstance(error, openai.NotFoundError) or (found := _unavailable(error)) is None:
                raise
            raise found from error
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
            response = await self._client().post(
                "/responses/input_tokens",
                content=body,
                cast_to=httpx2.Response,
                options=_JSON_BODY,
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


def _unavailable(error: "APIError") -> UnavailableError | None:
    """What an error of the client says about asking again; None for the request's own fault."""
    import openai

    if isinstance(error, openai.APIConnectionError):
        return UnavailableError(str(error))
    if isinstance(error, openai.APIStatusError):
        return of_status(error.status_code, error.code, error.response.headers, str(error))
    return None


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
        used = _usage(response.usage) if response.usage is not None else None
        says = f"the response is {response.status}: {_said(response.error)}"
        raise _failure(says, response.error, usage=used)
    if response.output is None:
        why = f"it is an error: {_said(response.error)}" if bytes(response.error) else "it has no output"
        raise _failure(f"the answer is no response: {why}", response.error)
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


def _failure(message: str, error: Raw, *, usage: Usage | None = None) -> Exception:
    given = load(error) if bytes(error) else None
    code = given.get("code") if isinstance(given, dict) else None
    if _is_too_long(code, message):
        return TooLongError(message)
    failure = ResponseFailedError(message)
    failure.unavailable, failure.usage = of_error(given, message), usage
    return failure


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
            # OpenAI has the code in the event itself, others in an error object in it.
            inner = bytes(event.error) not in (b"", b"null")
            raise _failure(event.message or _said(event.error), event.error if inner else Raw(data))
    raise _broken_off("the stream broke off before the response was complete")


async def _unbroken(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what comes. Whatever breaks it is the connection's: the answer is not whole then."""
    try:
        async for chunk in chunks:
            yield chunk
    except Exception as error:
        raise UnavailableError(str(error)) from error


def _broken_off(message: str) -> ResponseFailedError:
    failure = ResponseFailedError(message)
    failure.unavailable = UnavailableError(message)
    return failure


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
