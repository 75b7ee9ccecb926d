"""Processes on one file, run by test_many_processes.py. Each is forked from this one, which has only imported.

    crowd.py follow FILE SESSIONS ROUNDS   8 append to all sessions, one follows the whole log
    crowd.py killed FILE LIVES SEED        8 append batches to one session and to one of their own, and
                                           one after the other is killed, so many times; a new one begins

What they stored or saw is told as lines of JSON.
"""

import asyncio
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from batonlog.events import ConflictError, NoteAdded, SQLiteLog

WRITERS = 8
BATCH = 3


def fork(work: Callable[[], Awaitable[object]], gate: tuple[int, int] | None = None) -> int:
    """Begin a process, which waits until this one closes the gate's writing end; return its id."""
    if (child := os.fork()) != 0:
        return child
    code = 1
    try:
        if gate is not None:
            os.close(gate[1])
            os.read(gate[0], 1)
        asyncio.run(_run(work))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


async def _run(work: Callable[[], Awaitable[object]]) -> None:
    await work()


def tell(**what: object) -> None:
    """One line, in one piece."""
    os.write(1, json.dumps(what).encode() + b"\n")


async def append(path: str, name: str, sessions: list[str], rounds: int | None, size: int) -> None:
    """Append batches, each where the session stands by then; say so before and after."""
    async with SQLiteLog(path) as log:
        heads = {head.session: head.version async for head in log.heads()}
        n = 0
        while rounds is None or n < rounds * len(sessions):
            session = sessions[n % len(sessions)]
            batch = [NoteAdded(name=f"{name}.{n}", data=part) for part in range(size)]
            tell(asks=f"{name}.{n}")
            while True:
                try:
                    answer = await log.append(session, batch, expected=heads.get(session, 0))
                    break
                except ConflictError as conflict:
                    heads[session] = conflict.actual
                    tell(conflict=session)
            heads[session] = answer.version
            tell(stored=f"{name}.{n}", session=session, version=answer.version)
            n += 1


async def follow(path: str, total: int) -> None:
    async with SQLiteLog(path) as log, aclosing(log.follow_all()) as following:  # type: ignore[type-var]
        seen = [await anext(following) for _ in range(total)]
    tell(seen=[(r.position, r.session, r.version, r.hash.hex()) for r in seen])


def follow_many(path: str, sessions: int, rounds: int) -> None:
    names = [f"s{n}" for n in range(sessions)]
    gate = os.pipe()
    works = [
        *(lambda n=n: append(path, f"w{n}", names, rounds, 1) for n in range(WRITERS)),
        lambda: follow(path, WRITERS * sessions * rounds),
    ]
    children = [fork(work, gate) for work in works]
    os.close(gate[1])
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(children)


def kill_many(path: str, lives: int, seed: int) -> None:
    chance = random.Random(seed)

    def start(name: str) -> int:
        return fork(lambda: append(path, name, ["all", f"own-{name}"], None, BATCH))

    children = [start(f"w{n}.0") for n in range(WRITERS)]
    for life in range(1, lives + 1):
        # Not a wait for anything: when it is killed is what is tried.
        _pause(chance.random() * 0.03)
        n = chance.randrange(WRITERS)
        os.kill(children[n], signal.SIGKILL)
        os.waitpid(children[n], 0)
        children[n] = start(f"w{n}.{life}")
    _pause(0.05)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _pause(seconds: float) -> None:
    signal.sigtimedwait([], seconds)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[3:]]
    {"follow": follow_many, "killed": kill_many}[sys.argv[1]](sys.argv[2], *numbers)
