"""What anyone may say: appended on the head as it is, without a lease, moving no run."""

from typing import Any

import pytest

from batonlog.engine.control import Control
from batonlog.engine.inputs import input_items
from batonlog.events import (
    ApprovalDecided,
    ConflictError,
    InputAdded,
    Lease,
    MemoryLog,
    NoteAdded,
    RunCompleted,
    RunStarted,
    UnknownSessionError,
    UsageError,
)
from batonlog.events.facts import ApprovalRequested, ModelRequested, ModelResponded
from batonlog.events.record import new_id
from batonlog.events.values import Limits, Ref, Usage


class Raced(MemoryLog):
    """Somebody else is faster, so often."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.leases: list[Lease | None] = []

    async def append(self, session: str, events: Any, *, expected: int, **options: Any) -> Any:
        self.leases.append(options.get("lease"))
        if self.times:
            self.times -= 1
            await super().append(session, [NoteAdded(name="first", data=1)], expected=expected)
        return await super().append(session, events, expected=expected, **options)


HELLO = input_items("hello")
STARTED = RunStarted(run_id="r", agent="a", input=({"role": "user", "content": "go"},), limits=Limits())
CALL = {"type": "function_call", "call_id": "x", "name": "pay", "arguments": "{}"}
GATED = [
    STARTED,
    ModelRequested(turn=1, agent="a", parts=(), issuer=("e", "m"), wire=1, digest=b""),
    ModelResponded(request=2, output=(CALL,), usage=Usage()),
    ApprovalRequested(call=Ref(3, 0), reason="approval"),
]


async def kinds(log: MemoryLog) -> list[str]:
    return [record.type for record in await log.records("s")]


async def test_what_was_said_is_appended_on_the_head_as_it_is_by_then() -> None:
    log = Raced(times=3)
    assert (await Control(log, new_id).send("s", HELLO, "li")).version == 4
    assert await kinds(log) == ["note.added"] * 3 + ["input.added"]


async def test_nothing_that_anyone_says_needs_a_lease() -> None:
    log = Raced(times=0)
    await log.acquire("s", owner="w", seconds=30)
    await Control(log, new_id).send("s", HELLO, "li")
    assert log.leases == [None]


@pytest.mark.parametrize(
    ("events", "goes_to"),
    [([], "run"), ([STARTED], "turn"), ([STARTED, RunCompleted(output=None)], "run")],
)
async def test_input_goes_to_the_run_that_is_going_else_to_the_next(events: list[Any], goes_to: str) -> None:
    log = MemoryLog()
    if events:
        await log.append("s", events, expected=0)
    at, where = await Control(log, new_id).send("s", HELLO, "li")
    said = (await log.records("s"))[at - 1].event
    assert where == goes_to
    assert isinstance(said, InputAdded)
    assert (said.goes_to, said.by, said.input) == (goes_to, "li", ({"role": "user", "content": "hello"},))


async def test_a_note_says_at_which_version_it_stands() -> None:
    log = MemoryLog()
    await log.append("s", [STARTED], expected=0)
    assert await Control(log, new_id).note("s", "customer", {"tier": "gold"}) == 2


async def test_a_decision_that_comes_second_finds_the_call_decided() -> None:
    log = Raced(times=0)
    await log.append("s", GATED, expected=0)
    control = Control(log, new_id)
    await control.decide("s", "3.0", "run", by="anna")
    with pytest.raises(UsageError, match="decided already, by anna"):
        await control.decide("s", "3.0", "refuse", by="bert")


async def test_a_standing_decision_names_agent_and_tool() -> None:
    log = MemoryLog()
    await log.append("s", GATED, expected=0)
    await Control(log, new_id).decide("s", Ref(3, 0), "run", by="anna", always=True)
    said = (await log.records("s"))[-1].event
    assert isinstance(said, ApprovalDecided)
    assert (said.call, said.standing, said.verdict) == (Ref(3, 0), ("a", "pay"), "run")


async def test_a_wish_to_cancel_is_recorded_where_a_worker_will_see_it() -> None:
    log = MemoryLog()
    await log.append("s", [STARTED], expected=0)
    await Control(log, new_id).cancel("s", after_turn=False, by="li", reason="enough")
    assert await kinds(log) == ["run.started", "cancel.requested"]


async def test_a_store_that_fails_is_not_asked_again() -> None:
    class Broken(MemoryLog):
        async def append(self, *args: Any, **options: Any) -> Any:
            raise ConflictError("s", expected=0, actual=0) if self.calls.pop() else LookupError("gone")

        calls = [False, True]  # noqa: RUF012  # popped from the end

    with pytest.raises(LookupError, match="gone"):
        await Control(Broken(), new_id).send("s", HELLO, "li")


async def test_only_sending_starts_a_session() -> None:
    control = Control(MemoryLog(), new_id)
    with pytest.raises(UnknownSessionError, match="no session s"):
        await control.note("s", "n", 1)
    with pytest.raises(UnknownSessionError):
        await control.cancel("s", after_turn=False, by="li", reason="")
    assert (await control.send("s", HELLO, "li")).version == 1
