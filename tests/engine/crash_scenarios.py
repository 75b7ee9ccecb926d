"""Scenarios to crash: what a backend does with an engine, once each, always the same.

Each builds its engines over the path that it is given, and its models anew. Run by
test_crash_scenarios.py, a few crashes each, and by `make crashes`, for as long as one likes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engine.airline import Conversation, Schemas, agents_of

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    Limits,
    ModelRequest,
    ModelResponse,
    OpenAIResponsesModel,
    Retries,
    RunFailedError,
    Tool,
    ToolContext,
    demo,
    handoff,
    tool,
)
from batonlog.engine.testing import (
    FakeResponsesServer,
    ScriptedModel,
    Step,
    assistant_message,
    function_call,
)
from batonlog.engine.testing.fake_responses import BrokenStream
from batonlog.events import EventLog, InputAdded, Record, ToolCalled
from batonlog.projections import keep_last, messages_only, nest_history, own_view

Scenario = Callable[[str], Awaitable[None]]

SCENARIOS: dict[str, Scenario] = {}
"""All of them, by name. The airline conversations are elsewhere: see `airline`."""

SESSION = "cust-42"


def scenario(play: Scenario) -> Scenario:
    SCENARIOS[play.__name__] = play
    return play


def call(target: Any, /, **arguments: Any) -> dict[str, Any]:
    return function_call(target, arguments)


# -- agents that do one thing each


@tool(idempotent=True)
async def get_user_profile(user: str) -> dict[str, str]:
    """Look up a customer."""
    return {"name": "Li", "tier": "gold"}


@tool(idempotent=True)
def get_order(order: str) -> dict[str, object]:
    """Look up an order."""
    return {"order": order, "paid": 120}


@tool
async def check_policy(order: str) -> str:
    """Say whether an order may be refunded."""
    return "refundable"


@tool
def issue_refund(order: str, amount: float) -> str:
    """Pay the money back."""
    return "refund r-1 issued"


@tool(needs_approval=True)
async def delete_account(user: str) -> str:
    """Delete a customer's account."""
    return f"{user} is gone"


@tool(needs_approval=True, idempotent=True)
async def export_data(user: str) -> str:
    """Send a customer what is known of him."""
    return f"all about {user}"


@tool
async def fail() -> str:
    """Raise."""
    raise ValueError("no")


async def notify(context: ToolContext) -> None:
    """Tell somebody that a transfer comes."""


refund = Agent("退款专家", instructions="Refunds.", tools=[check_policy, issue_refund, get_order])
manager = Agent("manager", handoffs=[handoff(refund, on_handoff=notify, input_filter=keep_last(3))])
triage = Agent(
    "triage",
    instructions="Find out what the customer needs, then hand off.",
    tools=[get_user_profile, get_order, delete_account, export_data, issue_refund, fail],
    handoffs=[
        handoff(refund, input_filter=messages_only),
        handoff(manager, on_handoff=notify, input_filter=messages_only),
    ],
)

LOOKUPS = [call(get_user_profile, user="li"), call(get_order, order="7")]
REFUND = call(issue_refund, order="7", amount=120)


# -- the demo


async def _demo(path: str, chain: bool) -> None:
    async with FakeResponsesServer(*demo.script()) as server:
        kept = "previous_response_id" if chain else None
        model = OpenAIResponsesModel(demo.MODEL, client=server.client, chain=kept)  # type: ignore[arg-type]
        async with Engine(path, agents=[demo.triage], model=model) as engine:
            stream = engine.stream(demo.QUESTION, session=demo.SESSION)
            async for _ in stream:
                pass
            assert (await stream.result()).agent == demo.SPECIALIST
    assert not server.refusals


@scenario
async def the_demo(path: str) -> None:
    await _demo(path, chain=False)


@scenario
async def the_demo_along_a_chain(path: str) -> None:
    await _demo(path, chain=True)


# -- parallel calls, approvals and a handoff


@scenario
async def calls_beside_a_gated_one_and_a_handoff(path: str) -> None:
    asked = [*LOOKUPS, call(fail), REFUND, call(delete_account, user="li"), call(refund), call(manager)]
    with ScriptedModel(asked, "All done.") as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            (waiting,) = (await engine.run("refund me, delete me", session=SESSION)).open_calls
            await engine.approve(SESSION, waiting.call, by="anna")
            result = await engine.resume(SESSION)
            assert (result.agent, result.final_output) == (refund.name, "All done.")


@scenario
async def what_another_engine_decides(path: str) -> None:
    """Approved, rejected, approved for good, and settled: by an engine that has no agents."""
    asked = [LOOKUPS[0], call(delete_account, user="li"), call(export_data, user="li"), call(refund)]
    again = [call(export_data, user="li"), call(delete_account, user="bo")]
    with ScriptedModel(asked, call(refund), "Kept.", call(triage), again, "Sent.") as model:
        back = Agent("退款专家", tools=[check_policy], handoffs=[handoff("triage", needs_approval=True)])
        first = Agent(
            "triage", tools=[get_user_profile, delete_account, export_data], handoffs=[handoff(back)]
        )
        async with (
            Engine(path, agents=[first, back], model=model) as engine,
            Engine(path) as person,
        ):
            waiting = {one.tool: one.call for one in (await engine.run("go", session=SESSION)).open_calls}
            await person.approve(SESSION, waiting["export_data"], by="anna", always=True)
            assert (await engine.resume(SESSION)).status == "paused"
            await person.reject(SESSION, waiting["delete_account"], by="anna", reason="ask bo", always=True)
            assert (await engine.resume(SESSION)).final_output == "Kept."
            (transfer,) = (await engine.run("and again", session=SESSION)).open_calls
            await person.approve(SESSION, transfer.call, by="anna")
            assert (await engine.resume(SESSION)).final_output == "Sent."


@scenario
async def a_call_that_is_settled_by_somebody_else(path: str) -> None:
    ask = Tool("ask_warehouse", None)
    with ScriptedModel([call("ask_warehouse"), REFUND], "It is there.") as model:
        agent = Agent("a", tools=[ask, issue_refund])
        async with Engine(path, agents=[agent], model=model) as engine, Engine(path) as person:
            (waiting,) = (await engine.run("is it there?", session=SESSION)).open_calls
            await person.settle(SESSION, waiting.call, {"shelf": 7}, by="warehouse")
            assert (await engine.resume(SESSION)).final_output == "It is there."


@scenario
async def a_stream_of_a_session_without_a_name(path: str) -> None:
    with ScriptedModel(LOOKUPS, "Here you are.", "Bye.") as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            stream = engine.stream("look me up")
            followed = [update async for update in stream]
            assert (await stream.result()).final_output == "Here you are."
            records = await engine.log.records(stream.session)
            assert [update for update in followed if isinstance(update, Record)] == list(records)
            assert (await engine.run("thanks", session=stream.session)).final_output == "Bye."


@scenario
async def sessions_that_go_on_at_once(path: str) -> None:
    def step(request: ModelRequest) -> Step:
        asked = request.input[0].text
        calls = [{**one, "call_id": f"c{n}"} for n, one in enumerate([*LOOKUPS, REFUND])]
        return f"Done: {asked}" if len(request.input) > 1 else calls

    async with Engine(path, agents=[triage], model=ScriptedModel(*[step] * 6)) as engine:
        runs = [engine.run(f"order {n}", session=f"cust-{n}") for n in range(3)]
        results = await asyncio.gather(*runs)
    assert [result.final_output for result in results] == [f"Done: order {n}" for n in range(3)]


# -- chains of handoffs


def around() -> list[Agent]:
    """A to B to C, and back to A: each with another filter, two with callbacks."""
    tools = [get_order, issue_refund]
    a = Agent("a", tools=tools, handoffs=[handoff("b", input_filter=nest_history, on_handoff=notify)])
    b = Agent("b", tools=tools, handoffs=[handoff("c", input_filter=messages_only)])
    c = Agent("c", tools=tools, handoffs=[handoff("a", input_filter=own_view, on_handoff=notify)])
    return [a, b, c]


ROUND: Sequence[Sequence[Mapping[str, Any]]] = (
    [assistant_message("Looking."), call(get_order, order="7"), call("transfer_to_b")],
    [REFUND],
    [call("transfer_to_c")],
    [assistant_message("Back to a."), call("transfer_to_a")],
    [call("transfer_to_b")],
    [assistant_message("Done.")],
)


@scenario
async def handoffs_in_a_circle(path: str) -> None:
    with ScriptedModel(*ROUND, "Still b.") as model:
        async with Engine(path, agents=around(), model=model) as engine:
            assert (await engine.run("go round", session=SESSION)).agent == "b"
            assert (await engine.run("who is there?", session=SESSION)).final_output == "Still b."


@scenario
async def handoffs_in_a_circle_along_a_chain(path: str) -> None:
    steps = [*ROUND, [assistant_message("Still b.")]]
    async with FakeResponsesServer(*steps) as server:
        model = OpenAIResponsesModel("gpt-5-mini", client=server.client, chain="previous_response_id")
        async with Engine(path, agents=around(), model=model) as engine:
            assert (await engine.run("go round", session=SESSION)).agent == "b"
            assert (await engine.run("who is there?", session=SESSION)).final_output == "Still b."
    assert not server.refusals


class Conversing:
    """Keeps conversations, and answers by what it is shown: what it was asked in vain it is asked in a new one."""

    name = "conversing"
    chain = "conversation"

    def __init__(self) -> None:
        self.opened = 0

    async def open_conversation(self) -> str:
        self.opened += 1
        return f"conv_{self.opened}"

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        last = request.input[-1]
        match request.agent, last.type:
            case "a", "message" if "back" in last.text:
                yield ModelResponse([assistant_message("Done.")])
            case "a", "message":
                yield ModelResponse([*LOOKUPS[1:], call("transfer_to_b")])
            case "b", "function_call_output":
                yield ModelResponse([assistant_message("Go back."), call("transfer_to_c")])
            case "b", _:
                yield ModelResponse([REFUND])
            case _:
                yield ModelResponse([assistant_message("It goes back."), call("transfer_to_a")])


@scenario
async def handoffs_in_a_circle_in_conversations(path: str) -> None:
    a = Agent("a", tools=[get_order], handoffs=[handoff("b", input_filter=messages_only)])
    b = Agent("b", tools=[issue_refund], handoffs=[handoff("c", on_handoff=notify)])
    c = Agent("c", handoffs=[handoff("a", input_filter=messages_only)])
    async with Engine(path, agents=[a, b, c], model=Conversing()) as engine:
        result = await engine.run("go round", session=SESSION)
        assert (result.agent, result.final_output) == ("a", "Done.")


# -- limits, cancellation, and what is said while a run is going


@scenario
async def limits_that_are_reached_and_raised(path: str) -> None:
    with ScriptedModel(LOOKUPS, call(refund), REFUND, "Refunded.") as model:
        async with Engine(path, agents=[triage], model=model, limits=Limits(turns=1)) as engine:
            assert (await engine.run("refund", session=SESSION)).status == "paused"
            assert (await engine.resume(SESSION, limits=Limits(turns=9, handoffs=0))).status == "paused"
            assert (await engine.resume(SESSION, limits=Limits(turns=3))).status == "paused"
            await engine.send("and quickly", session=SESSION)
            result = await engine.resume(SESSION, limits=Limits(turns=4))
            assert result.final_output == "Refunded."


@scenario
async def a_limit_that_a_new_run_leaves_behind(path: str) -> None:
    with ScriptedModel(LOOKUPS, "As you like.") as model:
        async with Engine(path, agents=[triage], model=model, limits=Limits(turns=1)) as engine:
            assert (await engine.run("look me up", session=SESSION)).status == "paused"
            assert (await engine.run("never mind", session=SESSION)).final_output == "As you like."


@scenario
async def a_run_that_is_cancelled_while_it_waits(path: str) -> None:
    with ScriptedModel([*LOOKUPS, call(delete_account, user="li")], "Kept.") as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            assert (await engine.run("delete me", session=SESSION)).status == "paused"
            await engine.cancel(SESSION, by="li", reason="changed my mind")
            assert (await engine.status(SESSION)).status == "cancelled"
            assert (await engine.run("thanks", session=SESSION)).final_output == "Kept."


class Held:
    """A tool that holds its run until it is let go on: by a file, since it may be in another process."""

    def __init__(self, path: str) -> None:
        self._go = Path(path).with_suffix(".go")

        @tool(idempotent=True)
        async def hold() -> str:
            while not self._go.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            return "held"

        self.tool = hold

    async def reached(self, engine: Engine[Any]) -> None:
        """Wait until the run is held."""
        while await engine.log.head(SESSION) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        async for update in engine.updates(SESSION):
            if isinstance(getattr(update, "event", None), ToolCalled):
                return
        raise AssertionError("it rests, and was never held")

    def let_go(self) -> None:
        self._go.touch()


@scenario
async def a_run_that_is_cancelled_after_its_turn(path: str) -> None:
    held = Held(path)
    agent = Agent("a", tools=[held.tool, get_order])
    with ScriptedModel([call(held.tool), call(get_order, order="7")], "Hello again.") as model:
        async with Engine(path, agents=[agent], model=model) as engine:
            run = asyncio.create_task(engine.run("hold", session=SESSION))
            await held.reached(engine)
            await engine.cancel(SESSION, after_turn=True)
            held.let_go()
            assert (await run).status == "cancelled"
            assert (await engine.run("hi", session=SESSION)).final_output == "Hello again."


@scenario
async def what_is_sent_while_a_run_is_going(path: str) -> None:
    held = Held(path)
    with ScriptedModel([call(held.tool)], "Both heard.") as model:
        async with Engine(path, agents=[Agent("a", tools=[held.tool])], model=model) as engine:
            run = asyncio.create_task(engine.run("hold", session=SESSION))
            await held.reached(engine)
            await engine.send("one more thing", session=SESSION)
            held.let_go()
            assert (await run).final_output == "Both heard."


async def _second(path: str, busy: Any, script: Sequence[Step]) -> list[Any]:
    held = Held(path)
    with ScriptedModel(*script) as model:
        agents = [Agent("a", tools=[held.tool, issue_refund])]
        async with Engine(path, agents=agents, model=model, busy=busy) as engine:
            first = asyncio.create_task(engine.run("hold", session=SESSION))
            await held.reached(engine)
            second = asyncio.create_task(engine.run("and refund", session=SESSION, run_id="second"))
            async for update in engine.updates(SESSION):
                if isinstance(getattr(update, "event", None), InputAdded):
                    break
            held.let_go()
            return [result.final_output for result in await asyncio.gather(first, second)]


HOLD = call("hold")


@scenario
async def a_second_run_that_is_queued(path: str) -> None:
    script: Sequence[Step] = ([HOLD], "Held.", [REFUND], "Refunded.")
    assert await _second(path, "queue", script) == ["Held.", "Refunded."]


@scenario
async def a_second_run_that_steers_the_first(path: str) -> None:
    script: Sequence[Step] = ([HOLD], [REFUND], "Held, and refunded.")
    assert await _second(path, "steer", script) == ["Held, and refunded."] * 2


@scenario
async def what_is_sent_to_a_worker_that_serves(path: str) -> None:
    with ScriptedModel(LOOKUPS, call(refund), REFUND, "Refunded.") as model:
        async with Engine(path, agents=[triage], model=model) as worker, Engine(path) as front:
            serving = asyncio.create_task(worker.serve())
            await front.send("refund", session=SESSION)
            status = ""
            while status != "completed":  # it rests for a moment where a call has been interrupted
                async for _ in front.updates(SESSION):
                    pass
                status = (await front.status(SESSION)).status
            assert (await front.status(SESSION)).final_output == "Refunded."
            serving.cancel()


# -- models that fail


@scenario
async def a_model_that_fails_and_is_resumed(path: str) -> None:
    with ScriptedModel(RuntimeError("down"), LOOKUPS, "Here you are.") as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            try:
                await engine.run("look me up", session=SESSION)
            except RunFailedError:
                assert (await engine.resume(SESSION)).final_output == "Here you are."
            else:
                raise AssertionError("it did not fail")


@scenario
async def models_that_are_asked_again_and_given_up(path: str) -> None:
    # A run that is resumed begins with the agent's own model.
    first = ScriptedModel(BrokenStream("Let", after=1), LOOKUPS, *[ConnectionError("gone")] * 20)
    second = ScriptedModel(call(refund), REFUND, "Refunded.", name="second")
    retries = Retries(attempts=2, first=0)
    async with Engine(path, agents=[triage], model=first, fallback=second, retries=retries) as engine:
        assert (await engine.run("refund", session=SESSION)).final_output == "Refunded."
    second.assert_complete()


# -- forks


async def _version_of(log: EventLog, session: str, kind: str) -> int:
    return next(record.version for record in await log.records(session) if record.type == kind)


@scenario
async def a_fork_in_the_middle_of_a_turn(path: str) -> None:
    script: Sequence[Step] = ([*LOOKUPS, REFUND], "Refunded.", "Not again.")
    with ScriptedModel(*script) as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            await engine.run("refund", session=SESSION)
            at = await _version_of(engine.log, SESSION, "tool.called") + 2
            await engine.fork(SESSION, at=at, into="fork")
            waiting = (await engine.resume("fork")).open_calls
            assert [one.why for one in waiting] == ["unknown"] * 3
            for one in waiting:
                await engine.settle("fork", one.call, "see above", by="anna")
            assert (await engine.resume("fork")).final_output == "Not again."


@scenario
async def a_fork_of_what_waits_for_approval(path: str) -> None:
    script: Sequence[Step] = ([*LOOKUPS, call(delete_account, user="li")], "Gone.", "Kept.")
    with ScriptedModel(*script) as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            (waiting,) = (await engine.run("delete me", session=SESSION)).open_calls
            await engine.approve(SESSION, waiting.call, by="anna")
            assert (await engine.resume(SESSION)).final_output == "Gone."
            at = await _version_of(engine.log, SESSION, "approval.requested")
            await engine.fork(SESSION, at=at, into="fork")
            result = await engine.resume("fork")
            (again,) = [one for one in result.open_calls if one.tool == "delete_account"]
            for one in result.open_calls:
                if one.why == "unknown":
                    await engine.approve("fork", one.call, by="anna")
            await engine.reject("fork", again.call, by="bo")
            assert (await engine.resume("fork")).final_output == "Kept."


# -- the airline

WRITES = ("book_", "cancel_", "update_", "send_")


def airline(conversation: Conversation, schemas: Schemas) -> Scenario:
    """Have a conversation again. What only reads is idempotent; nothing that a tool does depends on its process."""
    outputs = {
        (call["id"], call["function"]["name"]): output
        for call, output in zip(conversation.calls, conversation.outputs, strict=True)
    }

    async def answer(context: ToolContext, arguments: dict[str, Any]) -> object:
        return outputs[context.call_id, context.tool]

    def agents() -> list[Agent]:
        (assistant,) = agents_of(conversation, schemas)
        assistant.tools = tuple(
            Tool(one.name, answer, parameters=one.parameters, idempotent=not one.name.startswith(WRITES))
            for one in assistant.tools
        )
        return [assistant]

    async def play(path: str) -> None:
        with ScriptedModel(*conversation.answers) as model:
            async with Engine(path, agents=agents(), model=model) as engine:
                for asked, turns in conversation.runs():
                    if turns:
                        await engine.run(asked, session=conversation.name, limits=Limits(turns=turns))
                    else:
                        await engine.send(asked, session=conversation.name)

    return play


def twenty(recorded: Sequence[Conversation]) -> list[Conversation]:
    """The shortest of each kind: with transfers, reused ids, both, neither."""
    kinds: dict[tuple[bool, bool], list[Conversation]] = {}
    for one in sorted(recorded, key=lambda one: len(one.answers) + len(one.calls)):
        if one.calls:
            kinds.setdefault((one.transfers, one.reuses_ids), []).append(one)
    assert len(kinds) == 4
    return [one for few in kinds.values() for one in few[:5]]
