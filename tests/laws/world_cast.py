"""Who works in the world: models, tools and callbacks that come to something when they are told to."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tests.laws.checks import shown
from tests.laws.sayings import called
from tests.laws.scripts import JSON

from batonlog.engine import Agent, Tool, ToolContext, UnavailableError, handoff, tool
from batonlog.engine.models import ChainLostError, Delta, ModelResponse
from batonlog.events import (
    Ref,
    Usage,
)
from batonlog.projections import FilterInput, ModelRequest, messages_only

if TYPE_CHECKING:
    from tests.laws.world import World


@dataclass(frozen=True)
class Plan:
    """What kind of world it is."""

    chain: bool = True
    slow: frozenset[str] = frozenset({"append"})
    """Operations of the store that wait until they are let through."""
    deaf: frozenset[str] = frozenset()
    """Workers that are not told at once of what others append."""
    pensive: bool = False
    """Filters and instructions take their time."""
    busy: Literal["refuse", "queue", "steer"] = "refuse"
    """What becomes of a run while another one is open."""
    turns: int = 8
    """How many model calls a run may make before it pauses."""


@dataclass(eq=False)
class Doing:
    """An effect, or a piece of the user's code, that has begun and has no result yet."""

    worker: str
    kind: str
    key: Ref | int
    intent: int
    """Version of the event that announced it; 0 for code, which nothing announces."""
    done: asyncio.Future[int]
    token: str
    began: int
    ended: int = 0
    """When it came to something."""
    cancelled: bool = False


def answers(token: str) -> list[Any]:
    """What a model may answer."""
    say = {"type": "message", "role": "assistant", "content": f"say {token}"}
    think = {"type": "reasoning", "id": f"rs_{token}", "summary": []}

    def call(name: str, n: int = 1) -> JSON:
        return called(f"c{n}", name, "{}")

    return [
        [say],
        [call("look")],
        [call("send")],
        [say, call("look"), call("send", 1)],
        [call("pay")],
        [call("look"), call("look", 2), call("look", 3)],
        [think, call("pay"), call("look", 2), call("transfer_to_back")],
        [call("transfer_to_back"), call("transfer_to_front", 2)],
        [call("transfer_to_front")],
        [think, call("transfer_to_back")],
        [call("told"), call("transfer_to_front")],
        [think, say],
        [say, think],
        [call("send"), call("transfer_to_back"), call("transfer_to_front"), call("nosuch")],
        RuntimeError("provider"),
        ChainLostError("forgotten"),
        [call("elsewhere"), call("look")],
        [],
        UnavailableError("busy"),
        UnavailableError("gone", again=False),
    ]


class Voice:
    """A model that answers when the world says so."""

    endpoint = "loopback"

    def __init__(self, world: "World", worker: str, name: str = "voice") -> None:
        self.name = name
        self._world = world
        self._worker = worker
        self.chain = "previous_response_id" if world.plan.chain else None

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        version = self._world.request_of(request)
        given = shown(request.input)
        assert given == shown(self._world.store.shown[version]), f"request {version} is not what is asked"
        choice, token = await self._world.do(self._worker, "model", version, version)
        found = answers(token)
        answer = found[choice % len(found)]
        yield Delta(kind="text", text="…", agent=request.agent, turn=request.turn)
        if isinstance(answer, Exception):
            raise answer
        cut = choice // len(found) % 12 == 11
        status: Any = "incomplete" if cut else "completed"
        yield ModelResponse(answer, id=f"resp_{token}", usage=Usage(requests=1), status=status)


def agents_of(world: "World", name: str) -> list[Agent[Any]]:
    """Two agents with tools of every kind, and handoffs with and without a callback."""

    async def perform(context: ToolContext[Any]) -> str:
        choice, token = await world.do(name, "tool", context.call, world.call_of(context))
        if choice % 5 == 4:
            raise RuntimeError(token)
        return token

    @tool(idempotent=True)
    async def look(context: ToolContext[Any]) -> str:
        """Look something up."""
        return await perform(context)

    @tool
    async def send(context: ToolContext[Any]) -> str:
        """Send something."""
        return await perform(context)

    @tool(needs_approval=True)
    async def pay(context: ToolContext[Any]) -> str:
        """Pay."""
        return await perform(context)

    @tool(on_unknown="report")
    async def told(context: ToolContext[Any]) -> str:
        """Do what is better not asked about."""
        return await perform(context)

    elsewhere: Tool[Any] = Tool("elsewhere", None)

    async def ready(context: ToolContext[Any]) -> None:
        choice, token = await world.do(name, "tool", context.call, world.call_of(context))
        if choice % 5 == 4:
            raise RuntimeError(token)
        context.note("ready", token)

    async def think(why: str) -> None:
        if world.plan.pensive:
            choice, _ = await world.do(name, why, 0, 0)
            if why == "filter" and choice % 6 == 5:
                raise RuntimeError("filter")

    async def only_messages(given: FilterInput[Any]) -> Any:
        await think("filter")
        return messages_only(given)

    async def summary(given: FilterInput[Any]) -> Any:
        await think("filter")
        return [
            {"role": "developer", "content": f"{len(given)} items so far"},
            *given[-1:],
            *given.latest[:1],
        ]

    async def instructions(context: Any) -> str:
        await think("instructions")
        return "Be brief."

    tools = [look, send, pay, told, elsewhere]
    return [
        Agent(
            "front",
            instructions=instructions,
            tools=tools,
            handoffs=[handoff("back", on_handoff=ready, input_filter=only_messages)],
        ),
        Agent(
            "back",
            instructions=instructions,
            tools=tools,
            handoffs=[handoff("front", input_filter=summary), handoff("side", input_filter=None)],
        ),
        Agent("side", tools=tools, handoffs=[handoff("back", on_handoff=ready, input_filter=None)]),
    ]
