"""The 150 airline conversations with each filter that comes with it: always legal, and nothing refused."""

import asyncio
from typing import Any

import pytest
from tests.engine.airline import Conversation, Played, Schemas, agents_of, needs_data

from batonlog.engine import Engine, Limits
from batonlog.engine.openai_responses import OpenAIResponsesModel
from batonlog.engine.testing import FakeResponsesServer
from batonlog.events import HistoryRewritten
from batonlog.projections import (
    FilterInput,
    History,
    check_legal,
    drop_reasoning,
    drop_tools,
    keep_last,
    last_turns,
    messages_only,
    model_history,
    nest_history,
    only_agents,
    own_view,
    redact,
    replace_with_summary,
    session_history,
)
from batonlog.projections.filters import apply_filters

pytestmark = needs_data


async def in_short(history: History) -> str:
    return f"{len(history)} items"


FILTERS: dict[str, Any] = {
    "messages_only": messages_only,
    "drop_tools": drop_tools,
    "drop_reasoning": drop_reasoning,
    "keep_last": keep_last(3),
    "last_turns": last_turns(2),
    "only_agents": only_agents("airline"),
    "redact": redact(r"\b[A-Z0-9]{6}\b"),
    "replace_with_summary": replace_with_summary(in_short),
    "nest_history": nest_history,
    "own_view": own_view,
    "nest_history, then drop_tools": [nest_history, drop_tools],
    "redact, then nest_history, then keep_last": [redact(r"\d"), nest_history, keep_last(2)],
}

each_filter = pytest.mark.parametrize("filters", FILTERS.values(), ids=list(FILTERS))


@each_filter
def test_whatever_a_request_showed_is_legal_once_filtered(played: list[Played], filters: Any) -> None:
    async def look() -> int:
        looked = 0
        for one in played:
            for version in one.requested:
                view = model_history(one.records, at=version)
                given = FilterInput(
                    view, version=version, cause="handoff", session="s", context=None, split=len(view) // 2
                )
                left = History(await apply_filters(filters, given))
                assert check_legal(left) == ()
                looked += 1
        return looked

    assert asyncio.run(look()) > 1_500


@each_filter
@pytest.mark.parametrize("chain", [None, "previous_response_id", "conversation"])
async def test_the_human_agent_is_asked_with_each_filter_and_nothing_is_refused_or_mended(
    recorded: list[Conversation], schemas: Schemas, filters: Any, chain: Any
) -> None:
    (conversation,) = [one for one in recorded if one.transfers and one.reuses_ids][:1]
    agents = agents_of(conversation, schemas, filters)
    async with FakeResponsesServer(*conversation.answers, "A human here.") as server:
        model = OpenAIResponsesModel("gpt-4o", client=server.client, chain=chain)
        async with Engine("memory:", agents=agents, model=model) as engine:
            for asked, turns in conversation.runs():
                await engine.run(asked, session="one", limits=Limits(turns=turns))
            result = await engine.resume("one", limits=Limits(turns=None))
            records = await engine.log.records("one")
    assert result.final_output == "A human here."
    assert not server.refusals
    assert not [record for record in records if isinstance(record.event, HistoryRewritten)]
    assert len(session_history(records)) > len(conversation.said)
