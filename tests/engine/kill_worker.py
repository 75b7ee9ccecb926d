"""A worker that kills itself, run as a process of its own by test_crashes.py.

    kill_worker.py crash KIND FOLDER     kill -9 at every boundary in turn, each in a log of its own,
                                         until a run gets through; then one restart for each log
    kill_worker.py resume KIND FOLDER    one more restart for each log
    kill_worker.py lives KIND FOLDER     kill one process after the other, each one boundary later, in one
                                         log, until one gets through

Every life is a process, forked from this one, which has done nothing but import. What each
restart came to is told as a line of JSON. What the tools do to the world is a line in a ledger.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    ModelRequest,
    ModelResponse,
    RunResult,
    SessionBusyError,
    ToolContext,
    handoff,
    tool,
)
from batonlog.engine.testing import assistant_message, function_call
from batonlog.events import Event, SQLiteLog, UnknownSessionError, Usage
from batonlog.events.log import Appended, Lease
from batonlog.projections import messages_only

SESSION = "cust-42"
POLL = 0.01
"""Seconds between two looks at a lease that a dead worker holds."""


class Boundaries:
    """Where the process may die, counted from its start."""

    def __init__(self, kill_at: int | None) -> None:
        self._kill_at = kill_at
        self._next = 0

    def __call__(self, where: str) -> None:
        here, self._next = self._next, self._next + 1
        if here == self._kill_at:
            tell(killed=where)
            os.kill(os.getpid(), signal.SIGKILL)


def tell(**said: Any) -> None:
    """Tell the test something; in one write, so that dying does not cut it."""
    os.write(1, json.dumps(said).encode() + b"\n")


# -- the ports


class KillLog(SQLiteLog):
    """Dies around every append, and inside the transaction."""

    def __init__(self, path: Path, boundary: Callable[[str], None]) -> None:
        super().__init__(path)
        self._boundary = boundary

    async def append(
        self,
        session: str,
        events: Sequence[Event],
        *,
        expected: int,
        ids: Sequence[UUID] | None = None,
        lease: Lease | None = None,
        release: bool = False,
    ) -> Appended:
        what = ", ".join(event.type for event in events)
        self._boundary(f"before {what}")
        done = await super().append(session, events, expected=expected, ids=ids, lease=lease, release=release)
        self._boundary(f"after {what}")
        return done


def die_before_commits(boundary: Callable[[str], None]) -> None:
    """Have every connection of this process pass a boundary when events are about to be committed."""
    connect = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        inserted = False

        def trace(statement: str) -> None:
            nonlocal inserted
            if statement.startswith("INSERT INTO event"):
                inserted = True
            elif statement == "COMMIT" and inserted:
                inserted = False
                boundary("in the middle of a transaction")

        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]


class Deterministic:
    """A model whose answer follows from the request: it goes on after a restart."""

    name = "deterministic"

    def __init__(self, boundary: Callable[[str], None]) -> None:
        self._boundary = boundary

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        outputs = [item for item in request.input if item.type == "function_call_output"]
        output = ANSWERS[request.agent][len(outputs)]
        yield Delta(kind="text", text="…", agent=request.agent, turn=request.turn)
        self._boundary(f"while {request.agent} is asked")
        yield ModelResponse(
            output, usage=Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        )


ANSWERS = {
    "triage": {
        0: [
            assistant_message("Let me look."),
            function_call("get_user_profile", {"user": "li"}, call_id="c1"),
            function_call("get_order", {"order": "7"}, call_id="c2"),
        ],
        2: [function_call("transfer_to_refund", {}, call_id="c3")],
    },
    "refund": {
        0: [function_call("check_policy", {"order": "7"}, call_id="c4")],
        1: [function_call("issue_refund", {"order": "7", "amount": 120}, call_id="c5")],
        2: [assistant_message("Refunded.")],
    },
}


def agents(ledger: Path, boundary: Callable[[str], None], kind: str) -> list[Agent]:
    """Triage and the specialist. Of kind `idempotent` all tools are; else none, and the handoff has an effect."""

    def write(context: ToolContext, what: str) -> None:
        line = f"{what} {context.tool} {context.idempotency_key}\n"
        file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())
        os.close(file)

    def begin(context: ToolContext) -> None:
        boundary(f"before {context.tool}")
        write(context, "begun")
        boundary(f"in the middle of {context.tool}")

    def end(context: ToolContext) -> None:
        write(context, "done")
        boundary(f"when {context.tool} was done")

    idempotent = kind == "idempotent"

    @tool(idempotent=idempotent)
    async def get_user_profile(context: ToolContext, user: str) -> dict[str, str]:
        begin(context)
        await asyncio.sleep(0)
        end(context)
        return {"name": "Li", "tier": "gold"}

    @tool(idempotent=idempotent)
    async def get_order(context: ToolContext, order: str) -> dict[str, object]:
        begin(context)
        await asyncio.sleep(0)
        end(context)
        return {"order": order, "paid": 120}

    @tool(idempotent=idempotent)
    async def check_policy(context: ToolContext, order: str) -> str:
        begin(context)
        end(context)
        return "refundable"

    @tool(idempotent=idempotent)
    def issue_refund(context: ToolContext, order: str, amount: float) -> str:
        begin(context)
        end(context)
        return "refund r-1 issued"

    async def on_handoff(context: ToolContext) -> None:
        begin(context)
        end(context)

    refund = Agent("refund", instructions="You handle refunds only.", tools=[check_policy, issue_refund])
    to_refund = handoff(refund, input_filter=messages_only, on_handoff=None if idempotent else on_handoff)
    return [Agent("triage", tools=[get_user_profile, get_order], handoffs=[to_refund])]


# -- one life


class ShortLeased(Engine):
    """A dead worker's sessions are free soon."""

    lease_seconds = 0.05


async def live(log_path: Path, kind: str, boundary: Callable[[str], None]) -> RunResult:
    """Drive the session to its rest, wherever it is."""
    die_before_commits(boundary)
    async with KillLog(log_path, boundary) as log:
        model = Deterministic(boundary)
        async with ShortLeased(
            log, agents=agents(ledger_of(log_path), boundary, kind), model=model
        ) as engine:
            while True:
                try:
                    return await engine.resume(SESSION)
                except SessionBusyError:  # a dead worker's lease
                    await asyncio.sleep(POLL)
                except UnknownSessionError:
                    try:
                        return await engine.run("I want a refund for order 7", session=SESSION)
                    except SessionBusyError:
                        await asyncio.sleep(POLL)


def ledger_of(log_path: Path) -> Path:
    return log_path.with_suffix(".ledger")


def in_a_process(log_path: Path, kind: str, kill_at: int | None) -> bool:
    """Live one life in a process of its own. Whether it got through."""
    child = os.fork()
    if child == 0:
        try:
            result = asyncio.run(live(log_path, kind, Boundaries(kill_at)))
            waiting = [[str(call.call), call.why, call.tool] for call in result.open_calls]
            tell(log=log_path.name, status=result.status, reason=result.reason, waiting=waiting)
        except BaseException as error:
            tell(log=log_path.name, failed=f"{type(error).__name__}: {error}")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


def main(command: str, kind: str, folder: Path) -> None:
    match command:
        case "crash":
            for kill_at in count():
                log_path = folder / f"{kill_at:03}.db"
                if in_a_process(log_path, kind, kill_at):
                    return
                in_a_process(log_path, kind, None)
        case "resume":
            for log_path in sorted(folder.glob("*.db")):
                in_a_process(log_path, kind, None)
        case "lives":
            for kill_at in count():
                if in_a_process(folder / "lives.db", kind, kill_at):
                    return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
