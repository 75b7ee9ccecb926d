"""Engines in processes of their own on one file, run by test_many_engines.py and the field cases.

    many_engines.py own FILE ROUNDS       8 engines, each with a session of its own: that many runs
    many_engines.py crowd FILE TURNS      one engine drives a run of parallel tools; 7 send and note meanwhile
    many_engines.py recover FILE SESSIONS 2 engines recover what a third has left

Each is forked from this process, which has only imported. What they came to is told as lines of JSON.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    SessionBusyError,
    ToolContext,
    tool,
)
from batonlog.engine.testing import ScriptedModel, assistant_message, function_call
from batonlog.events import ConflictError, Event, NoteAdded, SQLiteLog
from batonlog.events.log import Appended

PROCESSES = 8
TOOLS = 6
NOTES, INPUTS = 12, 4
"""What each of the others says."""


def tell(**what: object) -> None:
    """One line, in one piece."""
    os.write(1, json.dumps(what).encode() + b"\n")


def together(works: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Let processes do these at once, and see them all end well."""
    gate = os.pipe()
    children = []
    for work in works:
        if (child := os.fork()) == 0:
            code = 1
            try:
                os.close(gate[1])
                os.read(gate[0], 1)
                asyncio.run(_run(work))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    os.close(gate[1])
    failed = False
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and not failed:  # those who wait for it would wait for ever
            failed = True
            for other in children:
                os.kill(other, signal.SIGKILL)
    assert not failed


async def _run(work: Callable[[], Awaitable[object]]) -> None:
    await work()


class Counted(SQLiteLog):
    """Counts the appends that came second."""

    conflicts = 0

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Appended:
        try:
            return await super().append(session, events, **options)
        except ConflictError:
            self.conflicts += 1
            raise


# -- each on its own


async def own(path: str, name: str, rounds: int) -> None:
    async with Engine(path, agents=[Agent("Front")], model=ScriptedModel(*["y"] * rounds)) as engine:
        for _ in range(rounds):
            await engine.run("x", session=name)


# -- all on one


class Model:
    """Asks for all tools at once, turn after turn; then says what it was told."""

    name = "model"

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.asked = 0

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        self.asked += 1
        if self.asked <= self.turns:
            calls = [
                function_call("work", {"n": self.asked * TOOLS + n}, call_id=f"c{self.asked}.{n}")
                for n in range(TOOLS)
            ]
            yield ModelResponse(calls)
        else:
            yield ModelResponse([assistant_message("done")])


async def drive(path: str, turns: int) -> None:
    every = PROCESSES * NOTES // (turns * TOOLS + TOOLS)

    @tool
    async def work(context: ToolContext[object], n: int) -> str:
        """Work until so many notes have been made: others speak all the while."""
        tell(began=context.idempotency_key)
        left = (n - TOOLS) * every
        async with aclosing(log.follow("s")) as following:  # type: ignore[type-var]
            while left > 0:
                left -= isinstance((await anext(following)).event, NoteAdded)
        return f"worked {n}"

    async with Counted(path) as log:
        engine = Engine[object](log, agents=[Agent("a", tools=[work])], model=Model(turns))
        result = await engine.run("go", session="s")
        await engine.close()
        tell(status=result.status, conflicts=log.conflicts)


async def speak(path: str, name: str) -> None:
    async with Counted(path) as log:
        engine = Engine[object](log)
        async with aclosing(log.follow("s")) as following:  # type: ignore[type-var]
            await anext(following)  # the run has begun
        for n in range(NOTES):
            await engine.note("s", f"{name}.{n}", n)
            if n % (NOTES // INPUTS) == 0:
                await engine.send(f"{name}.{n}", session="s")
        await engine.close()
        tell(conflicts=log.conflicts)


# -- recovering


class Short(Engine[object]):
    lease_seconds = 60


async def leave(path: str, sessions: int) -> None:
    """Begin a run in each session and go away in the middle of its tool."""
    begun = asyncio.Semaphore(0)

    @tool(idempotent=True)
    async def work() -> str:
        begun.release()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(*[function_call("work", {})] * sessions)
    engine = Short(path, agents=[Agent("a", tools=[work])], model=model)
    runs = [asyncio.create_task(engine.run("go", session=f"s{n}")) for n in range(sessions)]
    for _ in runs:
        await begun.acquire()
    for run in runs:
        run.cancel()  # the leases run out at once
    await asyncio.gather(*runs, return_exceptions=True)
    await engine.close()


async def recover(path: str, sessions: int) -> None:
    @tool(idempotent=True)
    async def work(context: ToolContext[object]) -> str:
        """End when the other engine was refused this session."""
        tell(began=context.idempotency_key)
        async with aclosing(engine.log.follow(context.session)) as following:  # type: ignore[type-var]
            async for record in following:
                if isinstance(record.event, NoteAdded):
                    return "worked"
        raise AssertionError("a follower follows for ever")

    async with Short(
        path, agents=[Agent("a", tools=[work])], model=ScriptedModel(*["done"] * sessions)
    ) as engine:
        found = await engine.recover()
        tell(found=found)

        async def one(session: str) -> None:
            try:
                result = await engine.resume(session)
                tell(session=session, came=result.final_output)
            except SessionBusyError as error:
                await engine.note(session, "refused", str(error))
                tell(session=session, busy=str(error))

        await asyncio.gather(*(one(f"s{n}") for n in range(sessions)))


def main(command: str, path: str, number: int) -> None:
    if command == "own":
        together([lambda n=n: own(path, f"w{n}", number) for n in range(PROCESSES)])  # type: ignore[misc]
    elif command == "crowd":
        speakers = [lambda n=n: speak(path, f"p{n}") for n in range(1, PROCESSES)]
        together([lambda: drive(path, number), *speakers])
    else:
        together([lambda: leave(path, number)])
        together([lambda: recover(path, number)] * 2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
