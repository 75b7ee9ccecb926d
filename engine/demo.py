"""The demo: a refund, for which control and the view change hands.

Triage looks up the customer and the order, both at once, and hands off to a specialist, who
is shown the messages only; the specialist checks the policy, issues the refund and answers.
Every request goes through the real `openai` client: to a Responses API on loopback that
answers by script, or to OpenAI.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from msgspec import Struct

from batonlog.engine.agents import Agent
from batonlog.engine.engine import Engine
from batonlog.engine.handoffs import handoff
from batonlog.engine.models import Model
from batonlog.engine.tools import tool
from batonlog.events import JSON, EventLog, HandoffMade, ModelRequested, Record, SQLiteLog, UsageError
from batonlog.events.values import load
from batonlog.projections import messages_only, model_request

QUESTION: Final = "Li here. Please refund order 7: the kettle leaks."
SPECIALIST: Final = "退款专家"
MODEL: Final = "gpt-5-mini"
SESSION: Final = "cust-42"


@tool(idempotent=True)
async def get_user_profile(name: str) -> dict[str, JSON]:
    """Look up a customer.

    Args:
        name: the customer's name, as far as it is known.
    """
    return {"name": f"{name} Wei", "tier": "gold"}


@tool(idempotent=True)
async def get_order(order: str) -> dict[str, JSON]:
    """Look up an order.

    Args:
        order: the order's number.
    """
    return {"item": "kettle", "paid": 39.9, "delivered": "5 days ago", "order": order}


@tool(idempotent=True)
async def check_policy(order: str) -> str:
    """Say whether an order may be refunded.

    Args:
        order: the order's number.
    """
    return f"order {order} is refundable: 14 days are not over"


@tool
async def issue_refund(order: str) -> str:
    """Pay the price of an order back.

    Args:
        order: the order's number.
    """
    return f"refund r-{order} of 39.90 issued"


specialist = Agent(
    SPECIALIST,
    instructions="You are the refund specialist. Check the policy, then issue the refund, then tell the "
    "customer in one sentence what happens next. Answer in the customer's language.",
    handoff_description="Decides on refunds and pays them.",
    tools=[check_policy, issue_refund],
)
triage = Agent(
    "triage",
    instructions="You are the first contact of a shop. Look up the customer and the order, both at once. "
    "Then tell the customer in one sentence that a specialist takes over, naming the order number, and "
    "hand off. Never decide on a refund yourself.",
    tools=[get_user_profile, get_order],
    handoffs=[handoff(specialist, input_filter=messages_only)],
)


class Played(Struct, frozen=True):
    """What came of the demo."""

    session: str
    records: tuple[Record, ...]
    received: Sequence[Mapping[str, JSON]]
    """The requests that reached the loopback server, in order; none if OpenAI was asked."""

    def requests(self) -> list[tuple[int, ModelRequested]]:
        """Every model request, with its version."""
        return [
            (record.version, record.event)
            for record in self.records
            if isinstance(record.event, ModelRequested)
        ]

    def first_of_target(self) -> int | None:
        """Version of the first request after the handoff; None if the model made none."""
        made = next((one.version for one in self.records if isinstance(one.event, HandoffMade)), None)
        return None if made is None else next((at for at, _ in self.requests() if at > made), None)

    def reached_server(self, at: int) -> bool:
        """Whether the request at that version, rebuilt from the log, is what reached the server."""
        from batonlog.engine.openai_responses import request_body

        place = [version for version, _ in self.requests()].index(at)
        rebuilt = request_body(model_request(self.records, at=at), stream=True)
        return place < len(self.received) and load(rebuilt) == self.received[place]


def check_key() -> None:
    """Raise UsageError unless there is a key for OpenAI."""
    if not os.environ.get("OPENAI_API_KEY"):
        raise UsageError(
            "the live demo needs OPENAI_API_KEY in the environment; without --live it needs none"
        )


async def play(
    path: Path,
    *,
    model: str = MODEL,
    chain: bool = False,
    live: bool = False,
    watch: Callable[[Record], object] | None = None,
) -> Played:
    """Play the scenario into the log at `path`, in a session of its own.

    Args:
        path: the log; made if it is not there.
        model: name of the model.
        chain: let the provider keep what it was sent, and send only what is new.
        live: ask OpenAI, or OPENAI_BASE_URL.
        watch: called with each record as it is stored.

    Raises UsageError without OPENAI_API_KEY if `live`, RunFailedError if the model fails.
    """
    from batonlog.engine.openai_responses import OpenAIResponsesModel
    from batonlog.engine.testing.fake_responses import FakeResponsesServer

    if live:
        check_key()
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(SQLiteLog(path))
        server = None if live else await stack.enter_async_context(FakeResponsesServer(*script()))
        client = server.client if server is not None else None
        asked = OpenAIResponsesModel(model, client=client, chain="previous_response_id" if chain else None)
        if live:
            stack.push_async_callback(asked.close)
        session = await _run(log, asked, watch)
        received = server.requests if server is not None else ()
        return Played(session, await log.records(session), received)


async def _run(log: EventLog, model: Model, watch: Callable[[Record], object] | None) -> str:
    session = await _unused_name(log)
    async with Engine(log, agents=[triage], model=model) as engine:
        stream = engine.stream(QUESTION, session=session)
        async for update in stream:
            if watch is not None and isinstance(update, Record):
                watch(update)
        await stream.result()
    return session


async def _unused_name(log: EventLog) -> str:
    taken = {head.session async for head in log.heads()}
    name, n = SESSION, 1
    while name in taken:
        n += 1
        name = f"{SESSION}-{n}"
    return name


def script() -> Sequence[JSON]:
    """What the fake provider answers."""
    from batonlog.engine.testing.scripted import assistant_message, function_call

    return [
        [
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "Two look-ups, at once."}],
            },
            function_call(get_user_profile, {"name": "Li"}),
            function_call(get_order, {"order": "7"}),
        ],
        [
            assistant_message("Our refund specialist takes over for order 7."),
            function_call(specialist, {}),
        ],
        function_call(check_policy, {"order": "7"}),
        function_call(issue_refund, {"order": "7"}),
        "Done: 39.90 will be with you within 3 days.",
    ]
