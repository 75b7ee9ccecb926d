"""The airline conversations: reading them, having them again, and telling them as they were told.

Run by test_airline.py and test_airline_filters.py.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

import msgspec
import pytest

from batonlog.engine import Agent, Engine, Limits, RunResult, Tool, ToolContext, handoff
from batonlog.engine.openai_responses import OpenAIResponsesModel
from batonlog.engine.testing import FakeResponsesServer, assistant_message, function_call
from batonlog.events import EventLog, HandoffMade, ModelRequested, Record, Ref
from batonlog.projections import (
    History,
    ModelRequest,
    messages_only,
    model_request,
)

if TYPE_CHECKING:
    from httpx2 import Request
    from openai import AsyncOpenAI

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "airline_trajectories.json"
TRANSFER = "transfer_to_human_agents"
HUMAN = "human agents"
AT_ONCE = 6

Message = Mapping[str, Any]
"""A Chat Completions message, as it was recorded."""

Schemas = Mapping[str, Mapping[str, Any]]
"""Of the arguments of each tool."""

needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"the recorded conversations are not at {DATA}")


# -- a conversation as it was recorded


@dataclass(frozen=True)
class Conversation:
    """One recorded conversation: a system message, then what was said and done."""

    name: str
    messages: Sequence[Message]

    @property
    def instructions(self) -> str:
        return str(self.messages[0]["content"])

    @property
    def said(self) -> Sequence[Message]:
        return self.messages[1:]

    @property
    def answers(self) -> list[list[dict[str, Any]]]:
        """What the provider answers, turn by turn."""
        return [list(_items(message)) for message in self.said if message["role"] == "assistant"]

    @property
    def calls(self) -> list[Message]:
        return [call for message in self.said for call in message.get("tool_calls") or ()]

    @property
    def outputs(self) -> list[str]:
        return [message["content"] for message in self.said if message["role"] == "tool"]

    @property
    def transfers(self) -> bool:
        return any(call["function"]["name"] == TRANSFER for call in self.calls)

    @property
    def reuses_ids(self) -> bool:
        ids = [call["id"] for call in self.calls]
        return len(set(ids)) < len(ids)

    def runs(self) -> Iterator[tuple[str, int]]:
        """Each message of the customer, and the number of the assistant's turns that follow it."""
        asked: str | None = None
        turns = 0
        for message in self.said:
            if message["role"] == "user":
                if asked is not None:
                    yield asked, turns
                asked, turns = message["content"], 0
            elif message["role"] == "assistant":
                turns += 1
        if asked is not None:
            yield asked, turns


def _items(message: Message) -> Iterator[dict[str, Any]]:
    """An assistant's message with content and calls is several items."""
    if message["content"]:
        yield assistant_message(message["content"])
    for call in message.get("tool_calls") or ():
        asked = call["function"]
        yield function_call(asked["name"], asked["arguments"], call_id=call["id"])


def conversations() -> list[Conversation]:
    recorded = json.loads(DATA.read_text())
    return [Conversation(f"{one['task_id']}-{one['trial']}", one["traj"]) for one in recorded]


# -- tools that answer as recorded


def schema_of(values: Iterable[Any]) -> dict[str, Any]:
    """The narrowest strict schema that fits all these values."""
    seen = list(values)
    if all(isinstance(value, dict) for value in seen):
        names = dict.fromkeys(name for value in seen for name in value)
        return {
            "type": "object",
            "properties": {name: schema_of(value[name] for value in seen) for name in names},
            "required": list(names),
            "additionalProperties": False,
        }
    if all(isinstance(value, list) for value in seen):
        return {"type": "array", "items": schema_of(inner for value in seen for inner in value)}
    kind = "string" if all(isinstance(value, str) for value in seen) else "number"
    return {"type": kind}


def schemas_of(recorded: Sequence[Conversation]) -> dict[str, dict[str, Any]]:
    """The schema of each tool's arguments, by all of its recorded calls."""
    arguments: dict[str, list[Any]] = {}
    for conversation in recorded:
        for call in conversation.calls:
            asked = call["function"]
            arguments.setdefault(asked["name"], []).append(json.loads(asked["arguments"]))
    return {name: schema_of(values) for name, values in arguments.items()}


class Summary(msgspec.Struct):
    """What the assistant tells the human agents."""

    summary: str


def agents_of(conversation: Conversation, schemas: Schemas, input_filter: Any = messages_only) -> list[Agent]:
    """The assistant with its tools, and the human agents to whom it transfers."""
    expected = iter(zip(conversation.calls, conversation.outputs, strict=True))

    async def answer(context: ToolContext, arguments: dict[str, Any]) -> object:
        call, output = next(expected)
        assert (context.tool, context.call_id) == (call["function"]["name"], call["id"])
        assert arguments == json.loads(call["function"]["arguments"])
        return output

    human = Agent(HUMAN, instructions="Help the customer in person.")
    tools = [Tool(name, answer, parameters=schema) for name, schema in schemas.items() if name != TRANSFER]
    to_human = handoff(
        human,
        tool_name=TRANSFER,
        input_type=Summary,
        input_filter=input_filter,
        acknowledgement="Transfer successful",
    )
    return [Agent("airline", instructions=conversation.instructions, tools=tools, handoffs=[to_human])]


# -- playing them


@dataclass
class Played:
    """What a conversation has come to in the log, and what the server saw."""

    conversation: Conversation
    results: list[RunResult] = field(default_factory=list)
    records: tuple[Record, ...] = ()
    sent: list[bytes] = field(default_factory=list)
    """The bodies of all requests, as bytes."""
    received: Sequence[Mapping[str, Any]] = ()
    refusals: Sequence[str] = ()

    @property
    def requested(self) -> list[int]:
        return [record.version for record in self.records if isinstance(record.event, ModelRequested)]

    @cached_property
    def rebuilt(self) -> list[ModelRequest]:
        """All requests, from the log alone. Raises if one is not what its digest proves."""
        return [model_request(self.records, at=version) for version in self.requested]

    @property
    def transferred(self) -> list[Record]:
        return [record for record in self.records if isinstance(record.event, HandoffMade)]


class Wire:
    """One HTTP client for all servers; the bodies that it sends are kept, by the server's port.

    Making one costs far more than a conversation: it reads the certificates of the world.
    """

    def __init__(self) -> None:
        from openai import DefaultAsyncHttpx2Client

        self._http = DefaultAsyncHttpx2Client(trust_env=False, event_hooks={"request": [self._keep]})
        self._sent: dict[int | None, list[bytes]] = defaultdict(list)

    async def _keep(self, request: "Request") -> None:
        self._sent[request.url.port].append(request.content)

    def client_of(self, server: FakeResponsesServer) -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=server.base_url, api_key="fake", max_retries=0, http_client=self._http)

    def take(self, server: FakeResponsesServer) -> list[bytes]:
        """Return what was sent to a server. Ports are used again: its record ends with it."""
        return self._sent.pop(urlsplit(server.base_url).port, [])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()


async def play(
    conversation: Conversation,
    log: EventLog,
    schemas: Schemas,
    wire: Wire,
    *,
    stream: bool = True,
    chain: Literal["previous_response_id"] | None = None,
) -> Played:
    """Have one conversation again. Whatever the script or the tools find wrong raises."""
    played = Played(conversation)
    session = conversation.name
    async with FakeResponsesServer(*conversation.answers, stream_chunk=200) as server:
        client = wire.client_of(server)
        model = OpenAIResponsesModel("gpt-4o", client=client, stream=stream, chain=chain)
        async with Engine(log, agents=agents_of(conversation, schemas), model=model) as engine:
            for asked, turns in conversation.runs():
                if turns:
                    # What ends on a tool's output was stopped there.
                    limits = Limits(turns=turns)
                    played.results.append(await engine.run(asked, session=session, limits=limits))
                else:
                    await engine.send(asked, session=session)
        played.sent = wire.take(server)
        played.received, played.refusals = server.requests, server.refusals
    played.records = await log.records(session)
    return played


async def play_all(recorded: Sequence[Conversation], log: EventLog, schemas: Schemas) -> list[Played]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(conversation: Conversation) -> Played:
        async with slots:
            return await play(conversation, log, schemas, wire)

    async with Wire() as wire:
        return await asyncio.gather(*map(one, recorded))


# -- back to Chat Completions


def as_chat(history: History) -> Sequence[Message]:
    """A session's history, as it would have been recorded."""
    messages: list[dict[str, Any]] = []
    names: dict[Ref | None, str] = {}
    said_at = 0
    for item in history:
        assert item.ref is not None
        data = item.data
        match item.type, item.role:
            case "message", "user":
                messages.append({"role": "user", "content": item.text})
            case "message", "assistant":
                messages.append({"role": "assistant", "content": item.text})
            case "function_call", _:
                names[item.ref] = data["name"]
                if said_at != item.ref.version:
                    messages.append({"role": "assistant", "content": None})
                asked = {"name": data["name"], "arguments": data["arguments"]}
                call = {"id": data["call_id"], "function": asked, "type": "function"}
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output", _:
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": data["call_id"],
                        "name": names[item.answers],
                        "content": data["output"],
                    }
                )
            case other:
                raise AssertionError(f"{other} was never recorded")
        said_at = item.ref.version
    return messages


def sample(recorded: Sequence[Conversation]) -> list[Conversation]:
    """A few of each kind: transfers, reused ids, both, and neither."""
    kinds: dict[tuple[bool, bool], list[Conversation]] = {}
    for one in recorded:
        kinds.setdefault((one.transfers, one.reuses_ids), []).append(one)
    assert len(kinds) == 4
    return [one for few in kinds.values() for one in few[:2]]
