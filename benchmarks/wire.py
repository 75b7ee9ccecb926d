"""A model call over loopback with 100 items in the history: through the same client, the two ways."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median

from benchmarks.measure import Row, at_most
from openai import AsyncOpenAI

from batonlog.engine import ModelResponse, OpenAIResponsesModel
from batonlog.events import ModelRequested
from batonlog.projections.items import as_item
from batonlog.projections.offers import Parts
from batonlog.projections.request import ModelRequest
from batonlog.projections.view import View

ITEMS = 100
CALLS = 20
_ANSWER = (
    b'{"id":"resp_1","object":"response","created_at":1,"status":"completed","model":"m","output":[{"id":"msg_1",'
    b'"type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"ok",'
    b'"annotations":[]}]}],"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"usage":{"input_tokens":1,'
    b'"input_tokens_details":{"cached_tokens":0},"output_tokens":1,"output_tokens_details":{"reasoning_tokens":0},'
    b'"total_tokens":2}}'
)


def serve(pipe: Connection) -> None:
    """Answer every request with the same response, in a process of its own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(_ANSWER), _ANSWER)
            )
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 24)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def history() -> list[dict[str, object]]:
    """Turns of a user, a call and its output, and an answer."""
    items: list[dict[str, object]] = []
    for n in range(ITEMS // 4):
        items += [
            {"role": "user", "content": f"What about order {n}?"},
            {"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": '{"order":"7"}'},
            {"type": "function_call_output", "call_id": f"c{n}", "output": "It is on its way. " * 10},
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "On its way.", "annotations": []}],
            },
        ]
    return items


def rows() -> Iterator[Row]:
    """CPU of a call in this process; the server has one of its own."""
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = mine.recv()
    try:
        ours, usual = asyncio.run(_measure(f"http://127.0.0.1:{port}/v1"))
    finally:
        server.terminate()
        server.join()
    ratio = ours / usual
    yield at_most(
        f"CPU of a call with {ITEMS} items, against responses.create", ours, usual, ratio, 0.1, "ms", 1e3
    )


async def _measure(base_url: str) -> tuple[float, float]:
    items = history()
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        model = OpenAIResponsesModel("m", client=client, stream=False)

        async def ours() -> None:
            # A view of its own each time: nothing is formed before.
            request = _request(items)
            async for piece in model.respond(request):
                assert isinstance(piece, ModelResponse)

        async def usual() -> None:
            await client.responses.create(model="m", input=items, store=False)  # type: ignore[arg-type]

        await ours()
        await usual()
        pairs = [(await _cpu(ours), await _cpu(usual)) for _ in range(5)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


async def _cpu(call: Callable[[], Awaitable[None]]) -> float:
    begun = time.process_time()
    for _ in range(CALLS):
        await call()
    return (time.process_time() - begun) / CALLS


def _request(items: list[dict[str, object]]) -> ModelRequest:
    requested = ModelRequested(turn=1, agent="a", parts=(0, 0, 0, 0), issuer=("e", "m"), wire=1, digest=b"")
    return ModelRequest(view=View(map(as_item, items)), parts=Parts(), requested=requested)
