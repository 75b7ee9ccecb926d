"""Model requests as data, rebuilt from the log and proven by their digests."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from msgspec.structs import replace

from batonlog.engine import Agent, Engine, ModelRequest, ModelSettings, handoff, tool
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.events import (
    AgentResolved,
    DamagedError,
    Event,
    EventRedacted,
    ModelRequested,
    NoteAdded,
    Record,
    RunStarted,
    UnknownEvent,
    UsageError,
)
from batonlog.events.facts import raw
from batonlog.projections import messages_only, model_history, model_request, timeline


@tool
def look(what: str) -> str:
    """Look it up."""
    return f"{what} is here"


class Chained(ScriptedModel):
    """Asks its provider to keep what it was sent."""

    chain = "previous_response_id"

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[object]:  # type: ignore[override]
        async for piece in super().respond(request):
            if hasattr(piece, "id"):
                piece.id = f"resp_{len(self.requests)}"
            yield piece


async def conversation(model: ScriptedModel) -> tuple[Record, ...]:
    """A lookup, a filtered handoff and an answer."""
    b = Agent("b", instructions="Be b.")
    a = Agent(
        "a",
        instructions="Be a.",
        tools=[look],
        handoffs=[handoff(b, input_filter=messages_only)],
        model_settings=ModelSettings(temperature=0.5),
    )
    async with Engine("memory:", agents=[a], model=model) as engine:
        await engine.run("hi", session="s")
        return await engine.log.records("s")


def script() -> list[Step]:
    return [
        [assistant_message("Looking."), function_call("look", {"what": "it"})],
        function_call("transfer_to_b", {}),
        "done",
    ]


async def test_every_request_of_the_log_can_be_rebuilt_as_the_model_saw_it() -> None:
    model = ScriptedModel(*script())
    records = await conversation(model)
    for turn, seen in zip(timeline(records), model.requests, strict=True):
        rebuilt = model_request(records, at=turn.requested)
        assert rebuilt.raw_input == seen.raw_input
        assert rebuilt.input == seen.input
        assert (rebuilt.model, rebuilt.agent, rebuilt.turn) == (seen.model, seen.agent, seen.turn)
        assert (rebuilt.instructions, rebuilt.tools) == (seen.instructions, seen.tools)
        assert (rebuilt.settings, rebuilt.output_schema) == (seen.settings, seen.output_schema)
        assert (rebuilt.previous_response_id, rebuilt.first) == (seen.previous_response_id, seen.first)
        assert rebuilt.digest == seen.digest


async def test_a_request_in_full_shows_the_view_at_its_version() -> None:
    records = await conversation(ScriptedModel(*script()))
    for turn in timeline(records):
        assert model_request(records, at=turn.requested).input == model_history(records, at=turn.requested)


async def test_a_chained_request_shows_what_the_provider_does_not_hold() -> None:
    records = await conversation(Chained(*script()))
    first, second, third = (model_request(records, at=turn.requested) for turn in timeline(records))
    assert (first.previous_response_id, len(first.input)) == (None, 1)
    assert (second.previous_response_id, [item.type for item in second.input]) == (
        "resp_1",
        ["function_call_output"],
    )
    assert (third.previous_response_id, [item.role for item in third.input]) == (None, ["user", "assistant"])


async def test_a_request_says_what_the_agent_was_told_and_offered() -> None:
    records = await conversation(ScriptedModel(*script()))
    request = model_request(records, at=timeline(records)[0].requested)
    assert (request.agent, request.instructions, request.settings) == ("a", "Be a.", {"temperature": 0.5})
    assert [offered["name"] for offered in request.tools] == ["look", "transfer_to_b"]
    assert request.output_schema is None


async def test_what_a_request_gives_out_is_fresh_each_time() -> None:
    records = await conversation(ScriptedModel(*script()))
    request = model_request(records, at=timeline(records)[0].requested)
    request.tools[0]["name"] = "changed"
    assert request.tools[0]["name"] == "look"


# -- tampering


def changed(records: tuple[Record, ...], version: int, event: Event) -> tuple[Record, ...]:
    return tuple(replace(one, event=event) if one.version == version else one for one in records)


async def test_a_changed_input_is_found() -> None:
    records = await conversation(ScriptedModel(*script()))
    started = records[0].event
    assert isinstance(started, RunStarted)
    other = RunStarted(
        run_id=started.run_id, agent="a", input=({"role": "user", "content": "ho"},), limits=started.limits
    )
    at = timeline(records)[0].requested
    with pytest.raises(DamagedError, match="digest does not prove") as caught:
        model_request(changed(records, 1, other), at=at)
    assert (caught.value.session, caught.value.version) == ("s", at)


async def test_changed_instructions_are_found() -> None:
    records = await conversation(ScriptedModel(*script()))
    resolved = records[1].event
    assert isinstance(resolved, AgentResolved)
    other = AgentResolved(
        agent="a",
        instructions="Be evil.",
        offered=raw(resolved, "offered"),
        settings=raw(resolved, "settings"),
    )
    with pytest.raises(DamagedError, match="digest does not prove"):
        model_request(changed(records, 2, other), at=timeline(records)[0].requested)


@pytest.mark.parametrize(
    "field",
    [
        {"issuer": ("elsewhere", "scripted")},
        {"first": 1},
        {"previous_response_id": "resp_9"},
        {"conversation": "conv"},
        {"wire": 2},
        {"digest": b"x"},
    ],
)
async def test_a_changed_request_is_found(field: dict[str, Any]) -> None:
    records = await conversation(ScriptedModel(*script()))
    at = timeline(records)[0].requested
    asked = records[at - 1].event
    assert isinstance(asked, ModelRequested)
    with pytest.raises(DamagedError):
        model_request(changed(records, at, replace(cast(Any, asked), **field)), at=at)


async def test_a_missing_record_is_found() -> None:
    records = await conversation(ScriptedModel(*script()))
    last = timeline(records)[-1].requested
    without = tuple(record for record in records if record.type != "handoff.filtered")
    with pytest.raises(DamagedError):
        model_request(without, at=last)


async def test_after_an_erasure_a_request_is_not_provable_and_says_so() -> None:
    records = await conversation(ScriptedModel(*script()))
    at = timeline(records)[-1].requested
    erased = changed(records, 1, EventRedacted(target=1, reason="gdpr", digest=b""))
    with pytest.raises(DamagedError, match="not provable: 1 events erased"):
        model_request(erased, at=at)


# -- what there is no request for


async def test_another_event_is_no_request() -> None:
    records = await conversation(ScriptedModel(*script()))
    with pytest.raises(UsageError, match=r"run\.started at version 1, not model\.requested: see timeline"):
        model_request(records, at=1)


@pytest.mark.parametrize("at", [0, 999])
async def test_a_version_that_is_not_there_has_no_request(at: int) -> None:
    records = await conversation(ScriptedModel(*script()))
    with pytest.raises(UsageError):
        model_request(records, at=at)


async def test_a_request_after_an_event_of_a_newer_version_is_not_rebuilt() -> None:
    records = await conversation(ScriptedModel(*script()))
    unknown = changed(records, 1, UnknownEvent(tag="view.cleared", data={}))
    with pytest.raises(UsageError, match=r"holds view\.cleared at version 1.* upgrade"):
        model_request(unknown, at=timeline(records)[0].requested)


async def test_events_that_move_no_view_change_no_request() -> None:
    records = await conversation(ScriptedModel(*script()))
    at = timeline(records)[0].requested
    noted = (*records[:1], replace(records[0], event=NoteAdded(name="n", data=1)), *records[1:])
    assert model_request(noted, at=at).digest == model_request(records, at=at).digest
