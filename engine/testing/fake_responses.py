"""A fake of the OpenAI Responses API for tests: a real server on loopback, scripted and strict.

    async with FakeResponsesServer("Hello.") as server:
        response = await server.client.responses.create(model="gpt-5", input="hi")

What it checks and what it keeps is in the `_strict*` and `_responses_*` modules; here a
request becomes an endpoint, and an outcome becomes an HTTP reply.
"""

import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from ._http import HangUp, Headers, LoopbackServer, Reply, Request, Streamed, Whole
from ._responses_conversations import (
    create_conversation,
    create_items,
    delete_conversation,
    find_conversation,
    list_items,
)
from ._responses_events import server_sent, stream_events
from ._responses_held import Held
from ._responses_output import respond, tokens_read
from ._responses_script import Answer, BrokenStream, Dropped, Failure, Step, check_step, read_step
from ._strict import refusal_of_count, refusal_of_request
from ._strict_shapes import JSON, Refusal

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["BrokenStream", "FakeResponsesServer", "Step"]

_JSON: Final = ("content-type", "application/json")
_EVENTS: Final = ("content-type", "text/event-stream; charset=utf-8")


class FakeResponsesServer:
    """A loopback Responses API that answers by script and refuses, with 400, what OpenAI refuses.

    Each accepted `POST /v1/responses` takes one step of the script, in order. A refused request
    takes none and changes nothing: `refusals` says why. Leaving the `async with` raises
    AssertionError if steps were left over, or if a request came when none was left, or if a
    function in the script failed; but never over an exception that is already under way.

    Refused are: unknown parameters, keys and types; wrong shapes, names and ids; a call without its
    output, an output without its call, a `call_id` used twice; reasoning cut from what follows it, or
    what follows cut from its reasoning; an item given twice, or never issued by this server; foreign
    encrypted content; an unknown response or conversation to continue; schemas that are called
    strict and are not; bytes that are no JSON in UTF-8.

    Responses are kept as the API keeps them: with `store` (the default) a later request may
    continue one by `previous_response_id`; a `conversation` gathers what is sent and answered.
    Ids, times and token counts are the same in every run. Ids are counters, so two servers issue the
    same ones; encrypted content differs wherever the talks do.
    """

    def __init__(self, *steps: Step, stream_chunk: int = 16) -> None:
        """Make a server with this script; `stream_chunk` is the number of characters in a streamed delta.

        Raises TypeError for what can be no step, ValueError for a chunk of less than one.
        """
        if stream_chunk < 1:
            raise ValueError(f"stream_chunk is a number of characters, at least 1, not {stream_chunk}")
        for step in steps:
            check_step(step)
        self._script = deque(steps)
        self._scripted = len(steps)
        self._stream_chunk = stream_chunk
        self._held = Held()
        self._http = LoopbackServer(self._reply)
        self._replies = 0
        self._port: int | None = None
        self._client: AsyncOpenAI | None = None
        self._requests: list[Mapping[str, JSON]] = []
        self._refusals: list[str] = []
        self._faults: list[str] = []
        self._raised: list[Exception] = []

    @property
    def base_url(self) -> str:
        """The URL to give to a client, ending in `/v1`. Raises RuntimeError outside the `async with`."""
        if self._port is None:
            raise RuntimeError("the server listens only inside `async with FakeResponsesServer(...)`")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def client(self) -> "AsyncOpenAI":
        """A real client that talks to this server and never retries. Closed when the server is."""
        if self._client is None:
            from openai import AsyncOpenAI, DefaultAsyncHttpx2Client

            # No proxy from the environment may come between us and loopback. And there is no TLS
            # on loopback: to load the system's certificates would take 50 ms a client.
            no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._client = AsyncOpenAI(
                base_url=self.base_url,
                api_key="fake",
                max_retries=0,
                http_client=DefaultAsyncHttpx2Client(trust_env=False, verify=no_certificates),
            )
        return self._client

    @property
    def requests(self) -> Sequence[Mapping[str, JSON]]:
        """The bodies of all `POST /v1/responses` that are JSON objects, accepted and refused, in order."""
        return tuple(self._requests)

    @property
    def refusals(self) -> Sequence[str]:
        """The messages of all requests that broke a rule, in order: of every 400, scripted errors aside.

        A request that names an unknown conversation is among them, though it is answered with 404.
        """
        return tuple(self._refusals)

    async def __aenter__(self) -> Self:
        self._port = await self._http.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await self._http.close()
        self._port = None
        if error is None:
            self._assert_script_was_played()

    def _assert_script_was_played(self) -> None:
        faults = list(self._faults)
        if self._script:
            faults.insert(0, f"{len(self._script)} of {self._scripted} scripted steps were never consumed")
        if faults:
            raise AssertionError("; ".join(faults)) from next(iter(self._raised), None)

    # -- from a request to a reply

    def _reply(self, request: Request) -> Reply:
        self._replies += 1
        try:
            return self._dispatch(request)
        except Exception as error:
            # A function in the script, or a fault of ours: either way the test must hear of it.
            self._raised.append(error)
            return self._fault(f"{type(error).__name__}: {error}")

    def _dispatch(self, request: Request) -> Reply:
        if not request.headers.get("authorization", "").startswith("Bearer "):
            return self._error(401, _NO_KEY)
        path, _, query = request.target.partition("?")
        match request.method, path.split("/")[1:]:
            case "POST", ["v1", "responses"]:
                return self._create_response(request)
            case "POST", ["v1", "responses", "input_tokens"]:
                return self._count_tokens(request)
            case "GET", ["v1", "responses", response_id]:
                return self._get_response(response_id)
            case "DELETE", ["v1", "responses", response_id]:
                return self._delete_response(response_id)
            case "POST", ["v1", "conversations"]:
                body = _json_object(request, or_empty=True)
                return self._json(
                    body if isinstance(body, Refusal) else create_conversation(body, self._held)
                )
            case "GET", ["v1", "conversations", conversation]:
                return self._json(find_conversation(conversation, self._held))
            case "DELETE", ["v1", "conversations", conversation]:
                return self._json(delete_conversation(conversation, self._held))
            case "POST", ["v1", "conversations", conversation, "items"]:
                body = _json_object(request)
                return self._json(
                    body if isinstance(body, Refusal) else create_items(conversation, body, self._held)
                )
            case "GET", ["v1", "conversations", conversation, "items"]:
                return self._json(list_items(conversation, query, self._held))
        return self._error(404, f"Invalid URL ({request.method} {path})")

    def _create_response(self, http: Request) -> Reply:
        request = _json_object(http)
        if isinstance(request, Refusal):
            return self._refuse(request)
        self._requests.append(request)
        refusal = refusal_of_request(request, self._held)
        if refusal is not None:
            return self._refuse(refusal)
        if not self._script:
            return self._fault(f"the script has no step left for request {len(self._requests)}")
        outcome = read_step(self._script.popleft(), http.body)
        if isinstance(outcome, Failure):
            return self._failure(outcome)
        if isinstance(outcome, Dropped):
            return HangUp()
        return self._deliver(request, outcome)

    def _deliver(self, request: dict[str, JSON], answer: Answer) -> Reply:
        turn = self._held.turn_of(request)
        response = respond(turn, answer, self._held)
        if request.get("stream") is not True:
            if answer.breaks_after is not None:
                if answer.kept:
                    self._held.keep(turn, response)
                return HangUp()
            reply = self._json(response)
            self._held.keep(turn, response)
            return reply
        chunks = list(server_sent(stream_events(response, chunk=self._stream_chunk)))
        sent = chunks if answer.breaks_after is None else chunks[: answer.breaks_after]
        if answer.kept or len(sent) == len(chunks):
            # Kept before the first byte leaves: the client may continue as soon as it has read the last.
            self._held.keep(turn, response)
        return Streamed(chunks=sent, headers=self._headers(_EVENTS), complete=answer.breaks_after is None)

    def _count_tokens(self, http: Request) -> Reply:
        request = _json_object(http)
        refusal = request if isinstance(request, Refusal) else refusal_of_count(request, self._held)
        if refusal is not None:
            return self._refuse(refusal)
        assert not isinstance(request, Refusal)
        counted = tokens_read(self._held.turn_of(request))
        return self._json({"object": "response.input_tokens", "input_tokens": counted})

    def _get_response(self, response_id: str) -> Reply:
        kept = self._held.responses.get(response_id)
        return self._no_response(response_id) if kept is None else self._json(kept.body)

    def _delete_response(self, response_id: str) -> Reply:
        if response_id not in self._held.responses:
            return self._no_response(response_id)
        self._held.forget(response_id)
        return self._json({"id": response_id, "object": "response", "deleted": True})

    # -- replies

    def _headers(self, *headers: tuple[str, str]) -> Headers:
        return (*headers, ("x-request-id", f"req_{self._replies}"))

    def _json(self, outcome: dict[str, JSON] | Refusal) -> Reply:
        if isinstance(outcome, Refusal):
            # Nothing there is no broken rule: looking for it may be the very point of a test.
            return self._refuse(outcome) if outcome.status == 400 else self._error(404, outcome.message)
        return Whole(status=200, body=msgspec.json.encode(outcome), headers=self._headers(_JSON))

    def _no_response(self, response_id: str) -> Reply:
        return self._error(404, f"Response with id '{response_id}' not found.")

    def _refuse(self, refusal: Refusal) -> Reply:
        self._refusals.append(refusal.message)
        return self._error(refusal.status, refusal.message, param=refusal.param, code=refusal.code)

    def _failure(self, failure: Failure) -> Reply:
        kind = "server_error" if failure.status >= 500 else "invalid_request_error"
        return self._error(
            failure.status, failure.message, kind=kind, code=failure.code, headers=failure.headers
        )

    def _fault(self, message: str) -> Reply:
        self._faults.append(message)
        return self._error(500, message, kind="server_error")

    def _error(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Headers = (),
    ) -> Reply:
        error = {"message": message, "type": kind, "param": param, "code": code}
        body = msgspec.json.encode({"error": error})
        return Whole(status=status, body=body, headers=self._headers(_JSON, *headers))


_NO_KEY: Final = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header "
    "using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
)


def _json_object(request: Request, *, or_empty: bool = False) -> dict[str, JSON] | Refusal:
    if or_empty and not request.body:
        return {}
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        return Refusal(
            message=(
                f"Unsupported content type: '{kind}'. "
                "This API method only accepts 'application/json' requests."
            ),
            code="unsupported_content_type",
        )
    try:
        # Strict on purpose: msgspec takes neither invalid UTF-8 nor an escaped lone surrogate.
        body = msgspec.json.decode(request.body)
    except msgspec.DecodeError as error:
        return Refusal(message=f"We could not parse the JSON body of your request. ({error})")
    if not isinstance(body, dict):
        return Refusal(message="The JSON body of your request is expected to be an object.")
    return body
