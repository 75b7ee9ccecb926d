"""Field cases G: crashes, and what is done again after them. `docs/field-reports.md` lists them all."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.field_cases.cases import case, needs_the_cases
from tests.field_cases.play import SESSION, shown

from batonlog.engine import Agent, Engine, Tool, handoff
from batonlog.engine.testing import ScriptedModel
from batonlog.events import BatonlogError, Event, HandoffMade, SQLiteLog
from batonlog.events.log import Appended
from batonlog.projections import model_history, session_history
from batonlog.projections.request import wire_input
from batonlog.projections.state import run_state

pytestmark = needs_the_cases

_ANY = {"type": "object"}


async def gone(engine: Engine[object], task: "asyncio.Task[Any]") -> None:
    """The process is gone: whoever awaited it hears no more."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await engine.close()


# -- an effect that may have happened


@pytest.mark.parametrize("policy", ["ask", "rerun"])
async def test_case_35_what_was_sent_before_the_crash_is_sent_again_only_if_the_tool_says_so(
    policy: Literal["ask", "rerun"], tmp_path: Path
) -> None:
    ((first, *_),) = [turn.answers for turn in case(35).turns]
    sent: list[str] = []
    crash = asyncio.Event()

    async def send_mail(context: Any, arguments: object) -> str:
        sent.append(context.idempotency_key)
        if len(sent) == 1:
            crash.set()
            await asyncio.Event().wait()
        return "sent"

    def process(*script: Any) -> Engine[object]:
        tool = Tool[object](
            "send_mail",
            send_mail,
            parameters=_ANY,
            strict=False,
            needs_approval=True,
            idempotent=policy == "rerun",
        )
        return Engine(
            tmp_path / "case.db", agents=[Agent("Front", tools=[tool])], model=ScriptedModel(*script)
        )

    one = process(list(first))
    paused = await one.run("email the customer", session=SESSION)
    await one.approve(SESSION, paused.open_calls[0].call, by="anna")
    task = asyncio.create_task(one.resume(SESSION))
    await crash.wait()
    await gone(one, task)

    async with process("Done.") as two:
        result = await two.resume(SESSION)
        if policy == "ask":
            assert [(call.tool, call.why) for call in result.open_calls] == [("send_mail", "unknown")]
            assert (await two.resume(SESSION)).status == "paused"  # the approval was spent
            assert len(sent) == 1
            await two.settle(SESSION, result.open_calls[0].call, "sent", by="anna")
            assert (await two.resume(SESSION)).final_output == "Done."
            assert len(sent) == 1
        else:
            assert result.final_output == "Done."
            assert len(sent) == 2
            assert len(set(sent)) == 1


# -- the order of what is recorded


@pytest.mark.parametrize("order", list(permutations("abc")), ids="".join)
async def test_case_37_outputs_stand_in_the_order_of_their_calls_whenever_they_came(
    order: Sequence[str], tmp_path: Path
) -> None:
    ((first, *_),) = [turn.answers for turn in case(37).turns]
    go = {name: asyncio.Event() for name in "abc"}

    def process(*script: Any) -> Engine[object]:
        def tool(name: str) -> Tool[object]:
            async def run(context: object, arguments: object) -> str:
                await go[name].wait()
                return name.upper()

            return Tool(name, run, parameters=_ANY, strict=False, idempotent=True)

        agents = [Agent("Front", tools=[tool(name) for name in "abc"])]
        return Engine(tmp_path / "case.db", agents=agents, model=ScriptedModel(*script))

    one = process(list(first))
    task = asyncio.create_task(one.run("three at once", session=SESSION))
    for n, name in enumerate(order[:2], 1):
        go[name].set()
        async for _ in one.log.follow(SESSION):
            if [record.type for record in await one.log.records(SESSION)].count("tool.returned") == n:
                break
    await gone(one, task)

    async with SQLiteLog(tmp_path / "case.db", read_only=True) as log:
        replays = {_told(await log.records(SESSION)) for _ in range(20)}
    assert len(replays) == 1

    go[order[2]].set()
    async with process("done") as two:
        assert (await two.resume(SESSION)).final_output == "done"
        records = await two.log.records(SESSION)
    for history in (session_history(records), model_history(records)):
        assert shown(history)[1:7] == ["c1 a", "c2 b", "c3 c", "c1 = A", "c2 = B", "c3 = C"]


def _told(records: Any) -> bytes:
    both = (*session_history(records), *model_history(records))
    return b"\n".join([*(repr(item.data).encode() for item in both), *wire_input(model_history(records))])


# -- at the handoff


class Stuck(SQLiteLog):
    """Never answers where control is handed over; what it was given is stored, or is not."""

    def __init__(self, path: Path, stored: bool | None) -> None:
        super().__init__(path)
        self.stored = stored
        self.reached = asyncio.Event()

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Appended:
        if self.stored is not None and any(event.type == "handoff.made" for event in events):
            if self.stored:
                await super().append(session, events, **options)
            self.reached.set()
            await asyncio.Event().wait()
        return await super().append(session, events, **options)


@pytest.mark.parametrize("crashes", [[False], [True], [False, False], [False, True]], ids=str)
async def test_case_38_a_crash_at_the_handoff_is_before_it_or_after_it_however_often(
    crashes: list[bool], tmp_path: Path
) -> None:
    ((first, *_),) = [turn.answers for turn in case(38).turns]
    lost = crashes.count(False)  # an answer that was not stored is asked for again
    model = ScriptedModel(*[list(first)] * (lost + 1), "hello from B")
    agents = [Agent[object]("A", handoffs=[handoff("B")]), Agent[object]("B")]
    for stored in crashes:
        log = Stuck(tmp_path / "case.db", stored)
        engine = Engine(log, agents=agents, model=model)
        begun = await log.head(SESSION) is not None
        going = engine.resume(SESSION) if begun else engine.run("x", session=SESSION)
        task = asyncio.create_task(going)
        await log.reached.wait()
        await gone(engine, task)
        await log.close()
        await _whole(tmp_path / "case.db", made=stored)
    async with Engine(tmp_path / "case.db", agents=agents, model=model) as last:
        result = await last.resume(SESSION)
        assert (result.agent, result.final_output) == ("B", "hello from B")
    model.assert_complete()
    assert [request.agent for request in model.requests] == ["A"] * (lost + 1) + ["B"]
    await _whole(tmp_path / "case.db", made=True)


async def _whole(path: Path, *, made: bool) -> None:
    """Either A holds control and its transfer has no answer, or B does and it has."""
    async with SQLiteLog(path) as log:
        records = await log.records(SESSION)
    with suppress(BatonlogError):
        await log.close()
    state = run_state(records)
    handoffs = [record.event for record in records if isinstance(record.event, HandoffMade)]
    answered = any(line.startswith("h1 =") for line in shown(model_history(records)))
    assert (state.agent, len(handoffs), answered) == (("B", 1, True) if made else ("A", 0, False))
    assert all(event.arguments == {"note": "n1"} for event in handoffs)
