"""150 real conversations, through the engine, over HTTP, through the real client.

The recorded assistant's turns are the provider's answers, the tools answer as recorded, every
message of the customer is a run, and `transfer_to_human_agents` is a handoff that keeps only
messages. What comes out must be what went in.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

import msgspec
import pytest

from batonlog.engine import Agent, Engine, Limits, RunResult, Tool, ToolContext, handoff
from batonlog.engine.openai_responses import OpenAIResponsesModel, request_body
from batonlog.engine.testing import FakeResponsesServer, assistant_message, function_call
from batonlog.events import EventLog, HandoffMade, MemoryLog, ModelRequested, Record, Ref, SQLiteLog
from batonlog.projections import (
    History,
    ModelRequest,
    check_legal,
    messages_only,
    model_history,
    model_request,
    session_history,
    timeline,
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

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"the recorded conversations are not at {DATA}")


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


def agents_of(conversation: Conversation, schemas: Schemas) -> list[Agent]:
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
        input_filter=messages_only,
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


# -- the claims


@pytest.fixture(scope="module")
def recorded() -> list[Conversation]:
    return conversations()


@pytest.fixture(scope="module")
def schemas(recorded: list[Conversation]) -> Schemas:
    return schemas_of(recorded)


@pytest.fixture(scope="module")
def played(recorded: list[Conversation], schemas: Schemas) -> list[Played]:
    """All of them, had again once."""
    return asyncio.run(play_all(recorded, MemoryLog(), schemas))


def test_all_150_conversations_were_had_with_everything_that_is_odd_about_them(played: list[Played]) -> None:
    seen = Counter[str]()
    for one in played:
        messages = as_chat(session_history(one.records))
        calls = [call for message in messages for call in message.get("tool_calls", ())]
        seen["conversations"] += 1
        seen["messages"] += len(messages)
        seen["requests"] += len(one.received)
        seen["calls"] += len(calls)
        seen["empty outputs"] += sum(
            message["content"] == "" for message in messages if message["role"] == "tool"
        )
        seen["content and calls in one message"] += sum(
            bool(message["content"] and message.get("tool_calls")) for message in messages
        )
        seen["transfers"] += len(one.transferred)
        seen["reusing call ids"] += len({call["id"] for call in calls}) < len(calls)
        seen["ending on a message of the customer"] += messages[-1]["role"] == "user"
        seen["ending on an output"] += messages[-1]["role"] == "tool"
    assert seen == {
        "conversations": 150,
        "messages": 3984 - 150,  # the system messages are instructions
        "requests": 1842,
        "calls": 898,
        "empty outputs": 68,
        "content and calls in one message": 57,
        "transfers": 39,
        "reusing call ids": 39,
        "ending on a message of the customer": 108,
        "ending on an output": 42,
    }


def test_the_session_is_the_conversation_item_for_item(played: list[Played]) -> None:
    for one in played:
        assert as_chat(session_history(one.records)) == one.conversation.said, one.conversation.name


def test_the_view_after_a_transfer_is_the_view_before_it_filtered(played: list[Played]) -> None:
    for one in played:
        for made in one.transferred:
            # The acknowledgement is part of what the filter saw, and is no message.
            before = model_history(one.records, at=made.version - 1)
            assert any(item.type == "function_call" for item in before)
            assert list(model_history(one.records, at=made.version)) == list(messages_only(before))


def test_before_a_transfer_the_view_is_the_session(played: list[Played]) -> None:
    for one in played:
        until = one.transferred[0].version - 1 if one.transferred else one.records[-1].version
        shown = model_history(one.records, at=until)
        assert list(shown) == list(session_history(one.records, at=until)), one.conversation.name
        assert not check_legal(shown[:-1] if one.transferred else shown)


def test_the_server_refused_nothing(played: list[Played]) -> None:
    assert {one.conversation.name: one.refusals for one in played if one.refusals} == {}


def test_every_request_is_rebuilt_from_the_log_byte_for_byte(played: list[Played]) -> None:
    for one in played:
        for request, sent, received in zip(one.rebuilt, one.sent, one.received, strict=True):
            body = request_body(request, stream=True)
            assert body == sent
            assert json.loads(body) == received


def test_every_request_shows_the_view_of_its_version(played: list[Played]) -> None:
    for one in played:
        for version, request in zip(one.requested, one.rebuilt, strict=True):
            assert request.input == model_history(one.records, at=version)
            assert request.instructions == one.conversation.instructions


def test_a_reused_call_id_goes_out_once_and_is_kept_as_it_came(played: list[Played]) -> None:
    renamed = set()
    for one in played:
        for received in one.received:
            sent = [item["call_id"] for item in received["input"] if item.get("type") == "function_call"]
            assert len(set(sent)) == len(sent)
            renamed |= {one.conversation.name for call_id in sent if "~" in call_id}
        kept = [item.data["call_id"] for item in session_history(one.records) if item.type == "function_call"]
        assert kept == [call["id"] for call in one.conversation.calls]
    reusing = {one.conversation.name for one in played if one.conversation.reuses_ids}
    # In one of them the second use is the last call, after which nothing was sent.
    assert renamed < reusing
    assert len(reusing - renamed) == 1


def test_a_run_ends_with_the_answer_or_is_stopped_on_the_output(played: list[Played]) -> None:
    for one in played:
        *answered, last = one.results
        assert [result.status for result in answered] == ["completed"] * len(answered)
        stopped = one.conversation.said[-1]["role"] == "tool"
        assert last.status == ("paused" if stopped else "completed")
        assert last.reason.startswith("turns: ") == stopped
        assert last.agent == (HUMAN if one.conversation.transfers else "airline")


def test_the_timeline_has_one_answered_turn_for_each_of_the_assistants(played: list[Played]) -> None:
    for one in played:
        turns = timeline(one.records)
        assert [turn.requested for turn in turns] == one.requested
        assert all(turn.responded for turn in turns)
        assert len({turn.run_id for turn in turns}) == len(one.results)


# -- the same in other ways


def sample(recorded: Sequence[Conversation]) -> list[Conversation]:
    """A few of each kind: transfers, reused ids, both, and neither."""
    kinds: dict[tuple[bool, bool], list[Conversation]] = {}
    for one in recorded:
        kinds.setdefault((one.transfers, one.reuses_ids), []).append(one)
    assert len(kinds) == 4
    return [one for few in kinds.values() for one in few[:2]]


def like(one: Played) -> list[tuple[Any, ...]]:
    """The events, but for what differs from run to run and from log to log."""
    return [(record.version, record.type, _steady(record)) for record in one.records]


def _steady(record: Record) -> Any:
    fields = json.loads(record.payload)
    for name in ("run_id", "issuer", "digest"):
        fields.pop(name, None)
    return fields


async def test_it_is_the_same_without_streaming(
    recorded: list[Conversation], schemas: Schemas, played: list[Played]
) -> None:
    before = {one.conversation.name: one for one in played}
    async with Wire() as wire:
        had = [await play(one, MemoryLog(), schemas, wire, stream=False) for one in sample(recorded)]
    for one in had:
        assert not one.refusals
        assert as_chat(session_history(one.records)) == one.conversation.said
        assert like(one) == like(before[one.conversation.name])
        assert [request_body(request, stream=False) for request in one.rebuilt] == one.sent


async def test_it_is_the_same_in_a_file_that_was_opened_again(
    recorded: list[Conversation], schemas: Schemas, played: list[Played], tmp_path: Path
) -> None:
    before = {one.conversation.name: one for one in played}
    async with SQLiteLog(tmp_path / "airline.db") as log, Wire() as wire:
        had = [await play(one, log, schemas, wire) for one in sample(recorded)]
    async with SQLiteLog(tmp_path / "airline.db") as log:
        for one in had:
            one.records = await log.records(one.conversation.name)
            assert not one.refusals
            assert as_chat(session_history(one.records)) == one.conversation.said
            assert like(one) == like(before[one.conversation.name])
            assert [request_body(request, stream=True) for request in one.rebuilt] == one.sent


async def test_with_a_chain_what_is_held_and_what_is_sent_is_the_view(
    recorded: list[Conversation], schemas: Schemas
) -> None:
    async with Wire() as wire:
        had = [
            await play(one, MemoryLog(), schemas, wire, chain="previous_response_id")
            for one in sample(recorded)
        ]
    for one in had:
        assert not one.refusals
        assert as_chat(session_history(one.records)) == one.conversation.said
        assert [request_body(request, stream=True) for request in one.rebuilt] == one.sent
        for number, (version, request) in enumerate(zip(one.requested, one.rebuilt, strict=True)):
            assert (request.previous_response_id is None) == (number == 0)
            shown = model_history(one.records, at=version)
            assert list(shown[request.first :]) == list(request.input)


@pytest.mark.parametrize("chain", [None, "previous_response_id"])
async def test_the_human_agent_is_shown_the_messages_and_nothing_of_the_lookups(
    recorded: list[Conversation], schemas: Schemas, chain: Literal["previous_response_id"] | None
) -> None:
    for conversation in [one for one in recorded if one.transfers][:3]:
        agents = agents_of(conversation, schemas)
        async with FakeResponsesServer(*conversation.answers, "A human here.") as server:
            model = OpenAIResponsesModel("gpt-4o", client=server.client, chain=chain)
            async with Engine("memory:", agents=agents, model=model) as engine:
                for asked, turns in conversation.runs():
                    await engine.run(asked, session="one", limits=Limits(turns=turns))
                result = await engine.resume("one", limits=Limits(turns=None))
        assert result.final_output == "A human here."
        asked_last = server.requests[-1]
        assert "previous_response_id" not in asked_last  # the rewrite broke the chain
        assert asked_last["instructions"] == "Help the customer in person."
        assert [(item["role"], _text(item)) for item in asked_last["input"]] == [
            (message["role"], message["content"])
            for message in conversation.said
            if message["role"] != "tool" and message["content"]
        ]
        assert not server.refusals


def _text(item: Mapping[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
