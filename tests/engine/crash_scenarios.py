"""Scenarios to be crashed and killed: each a client of engines over the log at a path, the same every time.

Run by test_crash_scenarios.py, and for longer by crash_for_long.py. What tools keep in memory
dies with their process, so they keep nothing; what models do is done outside.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engine.airline import HUMAN, TRANSFER, Conversation, Schemas, Summary

from batonlog.engine import (
    Agent,
    Engine,
    Limits,
    ModelRequest,
    OpenAIResponsesModel,
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
    assistant_message,
    function_call,
)
from batonlog.events import JSON, CancelRequested, Event, InputAdded, ToolCalled
from batonlog.projections import Filter, messages_only, nest_history, own_view

Scenario = Callable[[str], Awaitable[object]]

SESSION = "cust-42"


# -- the demo


def the_demo(*, chain: bool) -> Scenario:
    """Just as `batonlog demo` plays it: it opens the file itself."""

    async def scenario(path: str) -> None:
        played = await demo.play(Path(path), chain=chain)
        assert played.session == demo.SESSION

    return scenario


def the_demos_agents(*, chain: bool) -> Scenario:
    """The same conversation, for processes that open the file by themselves."""

    async def scenario(path: str) -> None:
        async with FakeResponsesServer(*demo.script()) as server:
            kind = "previous_response_id" if chain else None
            model = OpenAIResponsesModel(demo.MODEL, client=server.client, chain=kind)  # type: ignore[arg-type]
            async with Engine(path, agents=[demo.triage], model=model) as engine:
                stream = engine.stream(demo.QUESTION, session=demo.SESSION)
                updates = [update async for update in stream]
                assert updates
                assert (await stream.result()).agent == demo.SPECIALIST
            assert not server.refusals

    return scenario


# -- parallel calls beside a handoff, and people who decide


@tool(idempotent=True)
async def get_profile(user: str) -> dict[str, JSON]:
    """Look up a customer."""
    return {"name": user, "tier": "gold"}


@tool(idempotent=True)
def get_order(order: str) -> dict[str, JSON]:
    """Look up an order."""
    return {"order": order, "paid": 120}


@tool
async def issue_refund(context: ToolContext, order: str) -> str:
    """Pay the money back."""
    await asyncio.sleep(0)
    context.note("refunded", order)
    return f"refund of {order} issued"


@tool
async def fail() -> str:
    """Raise."""
    raise ValueError("no")


@tool(needs_approval=True)
async def delete_account(user: str) -> str:
    """Delete a customer's account."""
    return f"{user} is gone"


@tool(needs_approval=True, idempotent=True)
async def write_off(order: str) -> str:
    """Give an order up."""
    return f"{order} is written off"


async def notify(context: ToolContext) -> None:
    """Tell somebody that a transfer comes."""
    context.note("transferred", context.tool)


ask_bank = Tool("ask_bank", None, description="Ask the bank.")

refunds = Agent("退款专家", tools=[issue_refund, write_off, get_order])
triage = Agent(
    "triage",
    tools=[get_profile, get_order, issue_refund, fail, delete_account, write_off, ask_bank],
    handoffs=[
        handoff(refunds, on_handoff=notify, input_filter=messages_only, needs_approval=True),
    ],
)

ASKED = [
    assistant_message("All at once."),
    function_call(get_profile, {"user": "li"}),
    function_call(get_order, {"order": "7"}),
    function_call(issue_refund, {"order": "7"}),
    function_call(fail, {}),
    function_call(delete_account, {"user": "li"}),
    function_call(write_off, {"order": "8"}),
    function_call(ask_bank, {}),
    function_call(refunds, {}),
]


async def decisions(path: str) -> None:
    """Free calls, gated ones and one that runs elsewhere, beside a gated handoff; people in another engine."""
    script = (ASKED, function_call(write_off, {"order": "9"}), "All done.")
    with ScriptedModel(*script) as model:
        async with Engine(path, agents=[triage], model=model) as engine, Engine(path) as office:
            result = await engine.run("refund me, and delete my account", session=SESSION)
            waiting = {call.tool: call.call for call in result.open_calls}
            assert set(waiting) == {"delete_account", "write_off", "ask_bank"}
            await office.approve(SESSION, waiting["write_off"], by="anna", always=True)
            await office.reject(SESSION, waiting["delete_account"], by="bo", reason="not by phone")
            assert (await engine.resume(SESSION)).status == "paused"
            await office.settle(SESSION, waiting["ask_bank"], {"paid": True}, by="bank")
            (transfer,) = (await engine.resume(SESSION)).open_calls  # the handoff waits for what is beside it
            await office.approve(SESSION, transfer.call, by="anna")
            # A standing decision is for the agent that asked.
            (other,) = (await engine.resume(SESSION)).open_calls
            await office.approve(SESSION, other.call, by="anna")
            result = await engine.resume(SESSION)
            assert (result.agent, result.final_output) == (refunds.name, "All done.")


async def one_effect(path: str) -> None:
    """As little as there can be to lose, or to do twice."""
    with ScriptedModel(function_call(issue_refund, {"order": "7"}), "Refunded.") as model:
        async with Engine(path, agents=[refunds], model=model) as engine:
            await engine.run("refund order 7", session=SESSION)


async def standing(path: str) -> None:
    """What was decided for always is not asked again, in this run or a later one."""
    again = [function_call(write_off, {"order": "8"}), function_call(write_off, {"order": "9"})]
    with ScriptedModel(function_call(write_off, {"order": "7"}), again, "Done.", again[0], "Bye.") as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            (waiting,) = (await engine.run("write it off", session=SESSION)).open_calls
            await engine.approve(SESSION, waiting.call, by="anna", always=True)
            assert (await engine.resume(SESSION)).final_output == "Done."
            assert (await engine.run("and again", session=SESSION)).final_output == "Bye."


# -- chains of handoffs


def chain_of_handoffs(*, chain: str | None) -> Scenario:
    """A looks something up and hands off to B, B to C, C back to A; each with a callback and another filter."""

    async def scenario(path: str) -> None:
        server = FakeResponsesServer()
        server._script.extend([_says_by_what_is_shown(server)] * 60)
        async with server:
            model = OpenAIResponsesModel("gpt-5", client=server.client, chain=chain)  # type: ignore[arg-type]
            async with Engine(path, agents=_cast(), model=model) as engine:
                result = await engine.run("go round", session=SESSION)
                assert (result.agent, result.final_output) == ("a", "Round.")
                await engine.run("thanks", session=SESSION)
            server._script.clear()  # how often it is asked depends on the crash
        assert not server.refusals

    return scenario


def _cast() -> list[Agent]:
    def to(name: str, filter: Filter[object]) -> Any:
        return handoff(name, on_handoff=notify, input_filter=filter)

    return [
        Agent("a", instructions="You are a.", tools=[get_order], handoffs=[to("b", nest_history)]),
        Agent("b", instructions="You are b.", tools=[issue_refund], handoffs=[to("c", messages_only)]),
        Agent("c", instructions="You are c.", handoffs=[to("a", own_view)]),
    ]


def _says_by_what_is_shown(server: FakeResponsesServer) -> Any:
    """One answer for one view, however often it is asked for: after a crash it is asked again."""

    def say(request: JSON) -> Any:
        assert isinstance(request, dict)
        shown = server._held.turn_of(request)
        items = [*shown.before, *shown.sent]
        n = len(items)
        text = json.dumps(items)
        outputs = [item for item in items if item["type"] == "function_call_output"]
        match request["instructions"]:
            case "You are a." if "Round." in text or "c has seen it." in text:
                return _answer(n, assistant_message("Welcome." if "thanks" in text else "Round."))
            case "You are a." if not outputs:
                return _answer(n, function_call(get_order, {"order": "7"}, call_id="look"))
            case "You are a.":
                return _answer(n, assistant_message("b takes over."), _transfer("b"))
            case "You are b." if not any(item.get("name") == "issue_refund" for item in items):
                return _answer(n, function_call(issue_refund, {"order": "7"}, call_id="refund"))
            case "You are b.":
                return _answer(n, assistant_message("b has paid."), _transfer("c"))
            case "You are c.":
                return _answer(n, assistant_message("c has seen it."), _transfer("a"))
            case other:
                raise AssertionError(f"nobody is told {other!r}")

    return say


def _transfer(name: str) -> dict[str, JSON]:
    return function_call(f"transfer_to_{name}", {}, call_id=f"to_{name}")


def _answer(n: int, *output: dict[str, JSON]) -> dict[str, JSON]:
    """An answer whose ids and usage follow from what was shown."""
    items = [
        {**item, "id": f"{'msg' if item['type'] == 'message' else 'fc'}_{n}_{place}"}
        for place, item in enumerate(output)
    ]
    usage = {"input_tokens": n, "output_tokens": 1, "total_tokens": n + 1}
    return {"response": {"usage": usage}, "output": items}


# -- limits, cancellation, steering, models that fail, forks


async def limits_and_failures(path: str) -> None:
    """A model that fails, a limit that is reached and raised, and input while the run waits."""
    looks = [function_call(get_profile, {"user": "li"}), function_call(issue_refund, {"order": "7"})]
    script = (RuntimeError("down"), looks, function_call(get_order, {"order": "7"}), "Here you are.", "Bye.")
    with ScriptedModel(*script) as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            with pytest.raises(RunFailedError, match="down"):
                await engine.run("look me up", session=SESSION)
            assert (await engine.resume(SESSION, limits=Limits(turns=1))).status == "paused"
            await engine.send("and quickly", session=SESSION)
            assert (await engine.resume(SESSION, limits=Limits(turns=2))).status == "paused"
            result = await engine.resume(SESSION, limits=Limits(turns=5))
            assert result.final_output == "Here you are."
            assert (await engine.run("thanks", session=SESSION, run_id="r-2")).final_output == "Bye."
            again = await engine.run("thanks", session=SESSION, run_id="r-2")
            assert again.final_output == "Bye."


class Once:
    """Something that is said to the session once, whoever has it said, and however often.

    Args:
        path: of the log.
        said: the event that shows that it was said.
        say: says it.
    """

    def __init__(self, path: str, said: type[Event], say: Callable[[Engine], Awaitable[object]]) -> None:
        self._path = path
        self._said = said
        self._say = say
        self._saying: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        if self._saying is None:
            self._saying = asyncio.get_running_loop().create_task(self._say_once())
        await asyncio.shield(self._saying)

    async def _say_once(self) -> None:
        async with Engine(self._path) as office:
            records = await office.log.records(SESSION)
            if not any(isinstance(record.event, self._said) for record in records):
                await self._say(office)


async def cancelled(path: str) -> None:
    """Somebody cancels after the turn, while a tool is at work; the next message works."""
    once = Once(path, CancelRequested, lambda office: office.cancel(SESSION, after_turn=True, by="anna"))

    @tool(idempotent=True)
    async def work() -> str:
        await once()
        return "worked"

    looks = [function_call(work, {}), function_call(issue_refund, {"order": "7"})]
    with ScriptedModel(looks, "Here again.") as model:
        worker = Agent("worker", tools=[work, issue_refund])
        async with Engine(path, agents=[worker], model=model) as engine:
            assert (await engine.run("look me up", session=SESSION)).status == "cancelled"
            assert (await engine.run("hello?", session=SESSION)).final_output == "Here again."


async def steered(path: str) -> None:
    """Somebody sends while a tool is at work; it is taken at the next turn, exactly once."""
    once = Once(path, InputAdded, lambda office: office.send("and quickly", session=SESSION))

    @tool(idempotent=True)
    async def work() -> str:
        await once()
        return "worked"

    def answer(request: ModelRequest) -> str:
        said = [item.text for item in request.input if item.role == "user"]
        assert said == ["work", "and quickly"]
        return "Done, quickly."

    with ScriptedModel(function_call(work, {}), answer) as model:
        async with Engine(path, agents=[Agent("worker", tools=[work])], model=model) as engine:
            assert (await engine.run("work", session=SESSION)).final_output == "Done, quickly."


async def forked(path: str) -> None:
    """A fork in mid-turn, both calls in flight: a person lets them run there, and the original stays."""
    looks = [function_call(get_profile, {"user": "li"}), function_call(issue_refund, {"order": "7"})]
    with ScriptedModel(looks, "Here you are.", "Here, too.") as model:
        async with Engine(path, agents=[triage], model=model) as engine:
            await engine.run("look me up", session=SESSION)
            called = [
                record.version
                for record in await engine.log.records(SESSION)
                if isinstance(record.event, ToolCalled)
            ]
            await engine.fork(SESSION, at=called[1], into="other")
            result = await engine.resume("other")
            for call in result.open_calls:
                await engine.approve("other", call.call, by="anna")
            result = await engine.resume("other")
            assert result.final_output == "Here, too."
            assert (await engine.status(SESSION)).final_output == "Here you are."


# -- the airline


LOOK_UPS = ("get_", "search_", "list_", "calculate", "think")
"""How the names of tools begin that change nothing."""


def is_idempotent(name: str) -> bool:
    return name.startswith(LOOK_UPS)


def airline(conversation: Conversation, schemas: Schemas) -> Scenario:
    """A recorded conversation, with tools that answer by which of its calls they get."""

    async def scenario(path: str) -> None:
        with ScriptedModel(*conversation.answers, name="gpt-4o") as model:
            async with Engine(path, agents=_airline_agents(conversation, schemas), model=model) as engine:
                for asked, turns in conversation.runs():
                    if turns:
                        await engine.run(asked, session=conversation.name, limits=Limits(turns=turns))
                    else:
                        await engine.send(asked, session=conversation.name)

    return scenario


def _airline_agents(conversation: Conversation, schemas: Schemas) -> list[Agent]:
    answers: dict[tuple[str, str], str] = {}
    for call, output in zip(conversation.calls, conversation.outputs, strict=True):
        asked = call["function"]
        answers.setdefault((asked["name"], json.dumps(json.loads(asked["arguments"]))), output)

    async def answer(context: ToolContext, arguments: dict[str, Any]) -> object:
        return answers[context.tool, json.dumps(arguments)]

    human = Agent(HUMAN, instructions="Help the customer in person.")
    tools = [
        Tool(name, answer, parameters=schema, idempotent=is_idempotent(name))
        for name, schema in schemas.items()
        if name != TRANSFER
    ]
    to_human = handoff(
        human,
        tool_name=TRANSFER,
        input_type=Summary,
        input_filter=messages_only,
        acknowledgement="Transfer successful",
        on_handoff=_tell_human,
    )
    return [Agent("airline", instructions=conversation.instructions, tools=tools, handoffs=[to_human])]


async def _tell_human(context: ToolContext, summary: Summary) -> None:
    """Somebody is told."""


def twenty(recorded: Sequence[Conversation]) -> list[Conversation]:
    """Five of each kind: with and without a transfer, and with and without ids that are used again.

    The shortest that change something; not those where one call was answered in two ways: the tools
    here keep nothing.
    """
    kinds: dict[tuple[bool, bool], list[Conversation]] = {}
    for one in sorted(recorded, key=lambda one: (len(one.messages), one.name)):
        if _changes(one) and _is_plain(one):
            kinds.setdefault((one.transfers, one.reuses_ids), []).append(one)
    return [one for few in kinds.values() for one in few[:5]]


def _changes(conversation: Conversation) -> bool:
    names = [call["function"]["name"] for call in conversation.calls]
    return any(name != TRANSFER and not is_idempotent(name) for name in names)


def _is_plain(conversation: Conversation) -> bool:
    answers: dict[tuple[str, str], str] = {}
    pairs = zip(conversation.calls, conversation.outputs, strict=True)
    return all(
        answers.setdefault((call["function"]["name"], call["function"]["arguments"]), output) == output
        for call, output in pairs
    )


SCENARIOS: dict[str, Scenario] = {
    "the demo": the_demos_agents(chain=False),
    "the demo, chained": the_demos_agents(chain=True),
    "one effect": one_effect,
    "decisions": decisions,
    "standing decisions": standing,
    "handoffs round": chain_of_handoffs(chain=None),
    "handoffs round, chained": chain_of_handoffs(chain="previous_response_id"),
    "handoffs round, in a conversation": chain_of_handoffs(chain="conversation"),
    "limits and failures": limits_and_failures,
    "cancelled after the turn": cancelled,
    "steered": steered,
    "forked in mid-turn": forked,
}
"""By name; those that need no recorded data."""
