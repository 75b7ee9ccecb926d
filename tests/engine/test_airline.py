"""150 real conversations, through the engine, over HTTP, through the real client.

The recorded assistant's turns are the provider's answers, the tools answer as recorded, every
message of the customer is a run, and `transfer_to_human_agents` is a handoff that keeps only
messages. What comes out must be what went in.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.engine.airline import (
    HUMAN,
    Conversation,
    Played,
    Schemas,
    Wire,
    agents_of,
    as_chat,
    needs_data,
    play,
    sample,
)

from batonlog.engine import Engine, Limits
from batonlog.engine.openai_responses import OpenAIResponsesModel, request_body
from batonlog.engine.testing import FakeResponsesServer
from batonlog.events import MemoryLog, Record, SQLiteLog
from batonlog.projections import (
    check_legal,
    messages_only,
    model_history,
    session_history,
    timeline,
)

pytestmark = needs_data

# -- the claims


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
