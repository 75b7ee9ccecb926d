"""A loopback HTTP/1.1 server around one function: a request goes in, a reply comes out.

h11 knows the protocol, asyncio moves the bytes, and this file joins the two. It knows nothing of
any API. Each connection is one task; a connection is kept alive until the client leaves, the
reply hangs up, or the server closes. Closing aborts what is open, so that a client which still
holds a connection in its pool can never keep a test from ending.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

import h11

Headers: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One whole request; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A reply that goes out at once, with its length."""

    status: int
    body: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """A reply of status 200 in chunks. Unless `complete`, the connection ends without a last chunk."""

    chunks: Iterable[bytes]
    headers: Headers = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class HangUp:
    """No reply at all: the connection is closed."""


Reply: TypeAlias = Whole | Streamed | HangUp


_HANDOVER: Final = 8
"""Turns of the loop in which asyncio surely hands over a socket that it has accepted; it takes four."""


class LoopbackServer:
    """Serves `answer` on 127.0.0.1, at a port that the system picks. `answer` must not raise."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self) -> int:
        """Listen, and return the port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Stop listening and end every connection; nothing of the server is left when this returns."""
        server, self._server = self._server, None
        if server is None:
            return
        await _stop_accepting(server)
        connections = dict(self._connections)
        for task, writer in connections.items():
            task.cancel()
            # Aborted from here: a task that is cancelled before its first step never gets to do it,
            # and a mere close would wait for a client that does not read.
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        for writer in connections.values():
            with suppress(ConnectionError):
                await writer.wait_closed()
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Our own task and not a coroutine callback: asyncio keeps no handle on the task it would make.
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that leaves early is its own business, whatever the socket says about it.
        with suppress(ConnectionError):
            await _Connection(reader, writer).serve(self._answer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _stop_accepting(server: asyncio.Server) -> None:
    # asyncio takes a few turns to make a connection of an accepted socket. If its server is closed
    # meanwhile, it forgets the socket, open (3.11). So first no more sockets, then those few turns.
    with suppress(NotImplementedError):
        asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
    for _ in range(_HANDOVER):
        await asyncio.sleep(0)
    server.close()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER)

    async def serve(self, answer: Callable[[Request], Reply]) -> None:
        """Answer requests until one side wants to end."""
        try:
            while (request := await self._receive()) is not None:
                await self._send(answer(request), to_head=request.method == "HEAD")
                if self._h11.our_state is not h11.DONE:
                    return
                self._h11.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._send(Whole(status=error.error_status_hint, body=str(error).encode()))

    async def _receive(self) -> Request | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    await self._write(h11.InformationalResponse(status_code=100, headers=[]))
                self._h11.receive_data(await self._reader.read(1 << 16))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return _request(head, bytes(body))
            else:
                return None

    async def _send(self, reply: Reply, *, to_head: bool = False) -> None:
        match reply:
            case HangUp():
                return
            case Whole(status=status, body=body, headers=headers):
                length = ("content-length", str(len(body)))
                await self._write(h11.Response(status_code=status, headers=[*headers, length]))
                if not to_head:
                    await self._write(h11.Data(data=body))
                await self._write(h11.EndOfMessage())
            case Streamed(chunks=chunks, headers=headers, complete=complete):
                await self._write(h11.Response(status_code=200, headers=list(headers)))
                for chunk in chunks:
                    await self._write(h11.Data(data=chunk))
                if complete:
                    await self._write(h11.EndOfMessage())
            case _:
                assert_never(reply)

    async def _write(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()


def _request(head: h11.Request, body: bytes) -> Request:
    return Request(
        method=head.method.decode(),
        target=head.target.decode(),
        headers={name.decode(): value.decode("latin-1") for name, value in head.headers},
        body=body,
    )
