"""Approvals: who is asked, who decides, and that each decision is spent once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine import Agent, Engine, Tool, ToolContext, tool
from batonlog.engine.testing import ScriptedModel, Step, function_call
from batonlog.events import JSON, ApprovalDecided, CallRefused, MemoryLog, Ref, UsageError
from batonlog.projections import OpenCall, check_legal, session_history


class Till:
    """A tool that pays, gated, and counts what it paid."""

    def __init__(self, needs_approval: Any = True, **options: Any) -> None:
        self.paid: list[float] = []
        self.has_paid = asyncio.Event()

        @tool(needs_approval=needs_approval, **options)
        async def pay(ctx: ToolContext[object], amount: float) -> str:
            self.paid.append(amount)
            self.has_paid.set()
            return f"paid {amount} under {ctx.idempotency_key}"

        self.tool = pay

    def engine(self, log: Any, *script: Step) -> Engine[object]:
        return Engine(log, agents=[Agent("a", tools=[self.tool])], model=ScriptedModel(*script))


def pay(amount: float = 120) -> dict[str, JSON]:
    return function_call("pay", {"amount": amount})


async def outputs(log: Any, session: str = "s") -> list[str]:
    history = session_history(await log.records(session))
    assert not check_legal(history)
    return [item.text for item in history if item.type == "function_call_output"]


# -- who is asked


async def test_a_gated_call_waits_and_says_what_it_would_do() -> None:
    till = Till()
    paused = await till.engine("memory:", pay()).run("go", session="s")
    assert (paused.status, paused.reason) == ("paused", "approval")
    assert paused.open_calls == (
        OpenCall(Ref(4, 0), "approval", "a", "pay", {"amount": 120}, paused.open_calls[0].reason),
    )
    assert till.paid == []


@pytest.mark.parametrize(("amount", "status"), [(120, "paused"), (80, "completed")])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_decides_by_the_arguments(amount: float, status: str, is_async: bool) -> None:
    def is_large(ctx: ToolContext[object], arguments: dict[str, JSON]) -> bool:
        return bool(arguments["amount"] > 100)

    async def is_large_later(ctx: ToolContext[object], arguments: dict[str, JSON]) -> bool:
        return is_large(ctx, arguments)

    till = Till(is_large_later if is_async else is_large)
    result = await till.engine("memory:", pay(amount), "done").run("go")
    assert result.status == status
    assert till.paid == ([] if status == "paused" else [80])


async def test_a_gate_that_raises_counts_as_yes() -> None:
    def broken(ctx: ToolContext[object], arguments: dict[str, JSON]) -> bool:
        raise LookupError("no limits known")

    till = Till(broken)
    assert (await till.engine("memory:", pay()).run("go")).status == "paused"
    assert till.paid == []


async def test_what_a_gate_notes_is_recorded_with_its_decision() -> None:
    def gate(ctx: ToolContext[object], arguments: dict[str, JSON]) -> bool:
        ctx.note("asked about", arguments["amount"])
        return True

    log = MemoryLog()
    await Till(gate).engine(log, pay()).run("go", session="s")
    types = [record.type for record in await log.records("s")]
    assert types[-3:] == ["note.added", "approval.requested", "run.paused"]


async def test_bad_arguments_are_refused_before_anybody_is_asked() -> None:
    till = Till()
    result = await till.engine("memory:", function_call("pay", '{"amount": '), "done").run("go")
    assert result.status == "completed"


async def test_free_calls_of_the_same_answer_run_while_a_gated_one_waits() -> None:
    till = Till()
    looked: list[str] = []

    @tool
    async def look() -> str:
        looked.append("x")
        return "seen"

    log = MemoryLog()
    agents = [Agent("a", tools=[till.tool, look])]
    one = Engine(log, agents=agents, model=ScriptedModel([pay(), function_call(look, {})], "done"))
    paused = await one.run("go", session="s")
    assert (paused.status, looked) == ("paused", ["x"])
    await one.approve("s", "4.0", by="anna")
    await one.resume("s")
    assert (looked, till.paid) == (["x"], [120])
    assert (await outputs(log))[1] == "seen"


async def test_gated_calls_go_on_each_upon_its_own_decision() -> None:
    till, log = Till(), MemoryLog()
    one = till.engine(log, [pay(1), pay(2)], "done")
    await one.run("go", session="s")
    await one.approve("s", "4.1", by="anna")
    paused = await one.resume("s")
    assert (paused.status, till.paid, [call.call for call in paused.open_calls]) == (
        "paused",
        [2],
        [Ref(4, 0)],
    )
    await one.approve("s", "4.0", by="anna")
    assert (await one.resume("s")).final_output == "done"
    assert till.paid == [2, 1]


# -- who decides


async def test_an_engine_without_agents_in_another_process_decides(tmp_path: Path) -> None:
    path, till = tmp_path / "a.db", Till()
    async with till.engine(path, pay()) as monday:
        paused = await monday.run("go", session="s")
    async with Engine(path) as office:
        (call,) = (await office.status("s")).open_calls
        assert call == paused.open_calls[0]
        await office.approve("s", str(call.call), by="anna")
    async with till.engine(path, "done") as tuesday:
        assert (await tuesday.resume("s")).final_output == "done"
        assert await outputs(tuesday.log) == ["paid 120.0 under s/4.0"]
    assert till.paid == [120]


async def test_approving_only_records_it() -> None:
    till, log = Till(), MemoryLog()
    one = till.engine(log, pay())
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna")
    assert till.paid == []
    assert [r.event.by for r in await log.records("s") if isinstance(r.event, ApprovalDecided)] == ["anna"]
    assert (await one.status("s")).status == "paused"


async def test_a_call_key_may_be_a_ref_or_its_text() -> None:
    till, log = Till(), MemoryLog()
    one = till.engine(log, [pay(1), pay(2)], "done")
    await one.run("go", session="s")
    await one.approve("s", Ref(4, 0), by="anna")
    await one.approve("s", "4.1", by="anna")
    assert (await one.resume("s")).status == "completed"


@pytest.mark.parametrize(("reason", "told"), [("too much", "too much"), ("", "This call was not approved.")])
async def test_a_rejected_call_never_runs_and_the_model_is_told_why(reason: str, told: str) -> None:
    till, log = Till(), MemoryLog()
    one = till.engine(log, pay(), "sorry")
    await one.run("go", session="s")
    await one.reject("s", "4.0", by="anna", reason=reason)
    assert (await one.resume("s")).final_output == "sorry"
    assert (till.paid, await outputs(log)) == ([], [told])
    assert [r.event.reason for r in await log.records("s") if isinstance(r.event, CallRefused)] == [
        "rejected"
    ]


@pytest.mark.parametrize(
    ("output", "told"),
    [("paid by hand", "paid by hand"), ({"receipt": 7}, '{"receipt":7}'), (0, "0"), ("", "")],
)
async def test_a_person_may_give_the_output_himself(output: JSON, told: str) -> None:
    till, log = Till(), MemoryLog()
    one = till.engine(log, pay(), "done")
    await one.run("go", session="s")
    await one.settle("s", "4.0", output, by="anna")
    await one.resume("s")
    assert (till.paid, await outputs(log)) == ([], [told])


async def test_a_decision_while_another_call_still_runs_is_taken_at_once() -> None:
    till = Till()
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "waited"

    agents = [Agent("a", tools=[till.tool, wait])]
    one = Engine("memory:", agents=agents, model=ScriptedModel([pay(), function_call(wait, {})], "done"))
    running = asyncio.ensure_future(one.run("go", session="s"))
    await begun.wait()
    await one.approve("s", "4.0", by="anna")
    await till.has_paid.wait()  # beside the one that still runs
    go.set()
    assert (await running).final_output == "done"


# -- standing decisions


async def test_a_standing_approval_counts_for_all_later_calls_of_that_tool() -> None:
    till, log = Till(), MemoryLog()
    one = till.engine(log, pay(1), pay(2), "done", pay(3), "done")
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna", always=True)
    assert (await one.resume("s")).final_output == "done"
    assert (await one.run("again", session="s")).final_output == "done"
    assert till.paid == [1, 2, 3]


async def test_a_standing_approval_counts_where_a_function_would_ask() -> None:
    till = Till(lambda ctx, arguments: True)
    one = till.engine("memory:", pay(1), pay(2), "done")
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna", always=True)
    assert (await one.resume("s")).final_output == "done"
    assert till.paid == [1, 2]


async def test_a_standing_rejection_refuses_all_later_calls_and_tells_why() -> None:
    till, log = Till(), MemoryLog()
    one = till.engine(log, pay(1), pay(2), "sorry")
    await one.run("go", session="s")
    await one.reject("s", "4.0", by="anna", reason="never", always=True)
    assert (await one.resume("s")).final_output == "sorry"
    assert (till.paid, await outputs(log)) == ([], ["never", "never"])


async def test_a_standing_decision_is_of_one_session() -> None:
    till, log = Till(), MemoryLog()
    one = till.engine(log, pay(1), "done", pay(2))
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna", always=True)
    await one.resume("s")
    assert (await one.run("go", session="t")).status == "paused"


# -- each spent once


async def test_resuming_twice_runs_it_once() -> None:
    till = Till()
    one = till.engine("memory:", pay(), "done")
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna")
    first, second = await one.resume("s"), await one.resume("s")
    assert (first.final_output, second.final_output, till.paid) == ("done", "done", [120])


async def test_two_engines_that_resume_at_once_run_it_once() -> None:
    till, log = Till(), MemoryLog()
    await till.engine(log, pay()).run("go", session="s")
    await Engine(log).approve("s", "4.0", by="anna")
    engines = [till.engine(log, "done"), till.engine(log, "done")]
    results = await asyncio.gather(*(one.resume("s") for one in engines), return_exceptions=True)
    assert "done" in [getattr(result, "final_output", None) for result in results]
    assert till.paid == [120]


async def test_an_approval_is_spent_by_its_call_and_not_by_the_next() -> None:
    till = Till()
    one = till.engine("memory:", pay(1), pay(2))
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna")
    paused = await one.resume("s")
    assert (paused.status, till.paid, [call.arguments for call in paused.open_calls]) == (
        "paused",
        [1],
        [{"amount": 2}],
    )


# -- what cannot be decided


async def waiting_and_settled() -> Engine[object]:
    """Call 4.0 is settled, and another one waits."""
    one = Till().engine("memory:", pay(1), pay(2), "done")
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna")
    await one.resume("s")
    return one


@pytest.mark.parametrize("what", ["approve", "reject", "settle"])
async def test_a_call_that_is_not_there_names_those_that_wait(what: str) -> None:
    one = await waiting_and_settled()
    (call,) = (await one.status("s")).open_calls
    before = await one.log.records("s")
    uses = {
        "approve": lambda: one.approve("s", "99.0", by="anna"),
        "reject": lambda: one.reject("s", "99.0", by="anna"),
        "settle": lambda: one.settle("s", "99.0", "ok", by="anna"),
    }
    with pytest.raises(UsageError, match=rf"s has no open call 99\.0; waiting: {call.call}"):
        await uses[what]()
    assert await one.log.records("s") == before


async def test_a_call_of_an_earlier_answer_is_open_no_more() -> None:
    one = await waiting_and_settled()
    with pytest.raises(UsageError, match=r"s has no open call 4\.0"):
        await one.approve("s", "4.0", by="anna")


async def test_a_call_that_has_its_answer_is_not_decided_again() -> None:
    till = Till()
    one = till.engine("memory:", [pay(1), pay(2)])
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna")
    await one.resume("s")
    with pytest.raises(UsageError, match=r"call 4\.0 of s \(pay\) has its answer already"):
        await one.reject("s", "4.0", by="bert")


async def test_a_call_that_was_decided_is_not_decided_again() -> None:
    one = Till().engine("memory:", pay())
    await one.run("go", session="s")
    await one.approve("s", "4.0", by="anna")
    with pytest.raises(UsageError, match="was decided already, by anna"):
        await one.reject("s", "4.0", by="bert")


async def test_a_call_that_runs_is_not_decided() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "waited"

    agents = [Agent("a", tools=[wait])]
    one = Engine("memory:", agents=agents, model=ScriptedModel(function_call(wait, {}), "done"))
    running = asyncio.ensure_future(one.run("go", session="s"))
    await begun.wait()
    with pytest.raises(
        UsageError, match="is running, or was when its worker was lost: resume the session first"
    ):
        await one.approve("s", "4.0", by="anna")
    go.set()
    await running


# -- tools that run elsewhere


async def test_a_tool_that_runs_elsewhere_waits_for_its_output() -> None:
    log = MemoryLog()
    seat = Tool[object]("seat", None)
    model = ScriptedModel(function_call(seat, {}), "done")
    one = Engine(log, agents=[Agent("a", tools=[seat])], model=model)
    paused = await one.run("go", session="s")
    assert (paused.reason, paused.open_calls[0].why) == ("external", "external")
    await Engine(log).settle("s", "4.0", {"seat": "12A"}, by="browser")
    assert (await one.resume("s")).final_output == "done"
    assert await outputs(log) == ['{"seat":"12A"}']


async def test_a_tool_that_runs_elsewhere_cannot_be_approved_but_rejected() -> None:
    one = Engine(
        "memory:",
        agents=[Agent("a", tools=[Tool("seat", None)])],
        model=ScriptedModel(function_call("seat", {}), "done"),
    )
    await one.run("go", session="s")
    with pytest.raises(UsageError, match=r"runs elsewhere: settle it with its output, or reject it"):
        await one.approve("s", "4.0", by="anna")
    await one.reject("s", "4.0", by="anna", reason="no seats")
    await one.resume("s")
    assert await outputs(one.log) == ["no seats"]


# -- unknown calls


class Lost:
    """A call whose worker was lost while it ran."""

    def __init__(self, **options: Any) -> None:
        self.log = MemoryLog()
        self.begun = asyncio.Event()
        self.keys: list[tuple[int, str]] = []

        @tool(**options)
        async def pay(ctx: ToolContext[object]) -> str:
            self.keys.append((ctx.attempt, ctx.idempotency_key))
            if not self.begun.is_set():
                self.begun.set()
                await asyncio.Event().wait()
            return "paid"

        self.agents = [Agent("a", tools=[pay])]

    async def lose(self) -> Engine[object]:
        first = Engine(self.log, agents=self.agents, model=ScriptedModel(function_call("pay", {})))
        running = asyncio.ensure_future(first.run("go", session="s"))
        await self.begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return Engine(self.log, agents=self.agents, model=ScriptedModel("done"))


async def test_an_idempotent_tool_runs_again_under_the_same_key() -> None:
    lost = Lost(idempotent=True)
    assert (await (await lost.lose()).resume("s")).final_output == "done"
    assert lost.keys == [(1, "s/4.0"), (2, "s/4.0")]


async def test_another_tool_waits_for_a_persons_word() -> None:
    lost = Lost()
    one = await lost.lose()
    paused = await one.resume("s")
    assert (paused.reason, paused.open_calls[0].why) == ("unknown", "unknown")
    assert len(lost.keys) == 1


@pytest.mark.parametrize(
    ("say", "attempts", "told"),
    [
        (lambda one: one.approve("s", "4.0", by="anna"), 2, "paid"),
        (lambda one: one.reject("s", "4.0", by="anna", reason="it failed"), 1, "it failed"),
        (lambda one: one.settle("s", "4.0", "r-1 issued", by="anna"), 1, "r-1 issued"),
    ],
    ids=["run it", "refuse it", "this is what happened"],
)
async def test_a_person_answers_for_what_cannot_be_known(say: Any, attempts: int, told: str) -> None:
    lost = Lost()
    one = await lost.lose()
    await one.resume("s")
    await say(Engine(lost.log))
    assert (await one.resume("s")).final_output == "done"
    assert len(lost.keys) == attempts
    assert await outputs(lost.log) == [told]


async def test_a_tool_may_have_it_reported_to_the_model() -> None:
    lost = Lost(on_unknown="report")
    one = await lost.lose()
    assert (await one.resume("s")).final_output == "done"
    assert await outputs(lost.log) == ["This call was interrupted. Nobody knows whether it took effect."]
    assert len(lost.keys) == 1


async def test_a_call_that_was_lost_is_decided_only_after_the_session_was_taken_up() -> None:
    lost = Lost()
    await lost.lose()
    with pytest.raises(UsageError, match="resume the session first"):
        await Engine(lost.log).settle("s", "4.0", "ok", by="anna")
