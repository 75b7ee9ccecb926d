"""Field cases B: the filtered view and the record. `docs/field-reports.md` lists them all."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.field_cases.cases import case, item_of, needs_the_cases
from tests.field_cases.play import SESSION, Play, Way, every_way, played, sent, shown

from batonlog.engine import Agent, Engine, RunResult
from batonlog.engine.openai_responses import OpenAIResponsesModel
from batonlog.engine.testing import FakeResponsesServer, function_call
from batonlog.events import HandoffMade, HistoryRewritten, ModelResponded, UsageError
from batonlog.projections import (
    FilterInput,
    History,
    Item,
    check_legal,
    drop_tools,
    keep_last,
    messages_only,
    nest_history,
    own_view,
    redact,
)

pytestmark = needs_the_cases


# -- case 8


@every_way
async def test_case_8_what_a_filter_took_out_stays_out_when_the_filter_is_gone(
    way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        first, last = play.turns
        await play.say(first)
        before = play.requests[-1].input.data
        answer = play.session[-1].data
        await play.restart(filters=play.case.ops("restart_with")[0]["filters"])
        await play.say(last)
        after = play.requests[-1].input.data
        assert after == [*before, answer, {"role": "user", "content": last.text}]
        assert not any(b"0000" in sent(request.input) for request in play.requests[1:])
        assert b"0000" in sent(play.session)

    filters = {"redact_user_codes": redact(r"\b\d{4}\b")}
    await played(case(8), scenario, way, tmp_path, filters=filters)


@every_way
async def test_case_8_the_module_of_the_filter_need_not_even_be_importable(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        with module_of_a_filter(tmp_path) as codes:
            await play.restart(filters={"redact_user_codes": codes.redact_user_codes})
            await play.say(play.turns[0])
        await play.restart(filters={})
        await play.say(play.turns[1])
        assert "0000" not in "".join(shown(play.requests[-1].input))

    await played(case(8), scenario, way, tmp_path)


class module_of_a_filter:  # noqa: N801  # a context
    """A module that exists only for a while."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "codes_of_case_8.py"

    def __enter__(self) -> Any:
        self._file.write_text(
            "def redact_user_codes(history):\n"
            "    for item in history:\n"
            "        yield item.replace(content=item.text.replace('0000', '?')) if item.role == 'user' else item\n"
        )
        sys.path.insert(0, str(self._file.parent))
        importlib.invalidate_caches()
        return importlib.import_module("codes_of_case_8")

    def __exit__(self, *error: object) -> None:
        self._file.unlink()
        sys.path.remove(str(self._file.parent))
        del sys.modules["codes_of_case_8"]


# -- case 9


@pytest.mark.parametrize("chain", ["previous_response_id", "conversation"])
@every_way
async def test_case_9_a_filtered_handoff_leaves_what_the_server_holds_behind(
    chain: Any, way: Way, tmp_path: Path
) -> None:
    scripted = case(9)
    steps: list[Any] = [
        "How can I help?",  # what the server holds before the case begins
        [item_of(item) for item in scripted.of("response")[0]["items"]],
        "What is the order?",
        function_call("transfer_to_front", {}),
        "Back at the desk.",
    ]
    async with FakeResponsesServer(*steps) as server:

        def engine() -> Engine[object]:
            model = OpenAIResponsesModel("gpt-5", client=server.client, chain=chain, stream=way == "streamed")
            play = Play(scripted, "memory:", streamed=False, filters={"remove_tools": drop_tools}, steps=[])
            front, refunds = play.agents()
            back = Agent("Refunds", instructions=refunds.instructions, handoffs=["Front"])
            return Engine(tmp_path / "case.db", agents=[front, back], model=model)

        one = engine()
        for text in ("hello", scripted.turns[0].text, "never mind"):
            if way == "resumed":
                await one.close()
                one = engine()
            await said(one, text, streamed=way == "streamed")
        records = await one.log.records(SESSION)
        await one.close()

    (switch, *_) = [record.version for record in records if isinstance(record.event, HandoffMade)]
    front = {
        record.event.response_id
        for record in records
        if isinstance(record.event, ModelResponded) and record.version < switch
    }
    continued = [request.get(chain) for request in server.requests]
    assert continued[1] is not None  # until the filter, what the server holds goes on
    assert len(front) == 2
    assert {continued[1], *front}.isdisjoint(continued[2:])
    assert (continued[2] is None) == (chain == "previous_response_id")
    assert [item["role"] for item in server.requests[2]["input"]] == ["user", "assistant", "user"]
    assert server.requests[2]["input"][2]["content"] == scripted.turns[0].text
    assert server.refusals == ()


async def said(engine: Engine[object], text: str, *, streamed: bool) -> RunResult:
    if not streamed:
        return await engine.run(text, session=SESSION)
    stream = engine.stream(text, session=SESSION)
    assert [update async for update in stream]
    return await stream.result()


# -- case 11


@pytest.mark.parametrize(
    ("window", "way"),
    [
        *((keep_last(1), way) for way in ("plain", "streamed", "resumed")),
        *((one, "plain") for one in (messages_only, drop_tools, nest_history)),
    ],
)
async def test_case_11_no_filter_makes_the_session_shorter(window: Any, way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        first, second = play.turns
        await play.say(first)
        assert play.case.ops("with_filter")
        await play.restart(compact=window, compact_above=1)
        result = await play.say(second)
        assert shown(play.session) == ["user: first", "assistant: a", "user: second", "assistant: b"]
        new = [
            item for item in play.session if item.ref and result.after < item.ref.version <= result.version
        ]
        assert shown(History(new)) == ["user: second", "assistant: b"]
        if window not in (messages_only, drop_tools):
            assert play.events(HistoryRewritten)
            assert len(play.requests[-1].input) < 3

    await played(case(11), scenario, way, tmp_path)


# -- case 12


@every_way
@pytest.mark.parametrize("turned", [False, True], ids=["as it is", "the other way round"])
async def test_case_12_a_tool_that_was_folded_is_dropped_in_either_order_of_the_filters(
    turned: bool, way: Way, tmp_path: Path
) -> None:
    filters = {"nest": nest_history, "remove_tools": drop_tools}
    if turned:
        filters = {"nest": drop_tools, "remove_tools": nest_history}

    async def scenario(play: Play) -> None:
        await play.all()
        out = sent(play.first_request("Billing").input).decode()
        assert "check 42" in out
        assert not [secret for secret in ("INTERNAL-VALUE", "secret_lookup", "c1", "x1") if secret in out]

    await played(case(12), scenario, way, tmp_path, filters=filters)


# -- case 14


def last_user_only(history: FilterInput[object]) -> Iterator[Item]:
    """What the report's users forwarded: the newest message of the user."""
    yield [item for item in history if item.role == "user"][-1]


@every_way
async def test_case_14_an_agent_that_comes_back_remembers_its_own_work(way: Way, tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        assert shown(play.first_request("Billing").input) == ["user: plan A"]
        back = play.requests[-1]
        assert back.agent == "Front"
        assert "assistant: A noted" in shown(back.input)
        assert check_legal(back.input) == ()
        assert (await play.engine.status(SESSION)).agent == "Front"
        assert [made.target for made in play.events(HandoffMade)] == ["Billing", "Front"]

    # Where the case names its filter for the way back, batonlog has own_view after it.
    await played(case(14), scenario, way, tmp_path, filters={"last_user_only": remembering})


def remembering(history: FilterInput[object]) -> Any:
    """The case's filter, and for whom control returns to, own_view."""
    forwarded = History(last_user_only(history), history.version)
    return own_view(history) if history.own is not None else forwarded


async def test_case_14_without_own_view_the_filter_of_the_way_back_counts(tmp_path: Path) -> None:
    async def scenario(play: Play) -> None:
        await play.all()
        assert shown(play.requests[-1].input) == ["user: plan A"]

    await played(case(14), scenario, "plain", tmp_path, filters={"last_user_only": last_user_only})


# -- E, case 23


@every_way
async def test_case_23_what_was_said_is_recorded_once_and_said_twice_is_recorded_twice(
    way: Way, tmp_path: Path
) -> None:
    async def scenario(play: Play) -> None:
        (first,) = play.turns
        again = play.case.ops("run_again")[0]["user"]
        await play.say(first.text)
        with pytest.raises(UsageError, match="twice"):
            await play.engine.rewrite(SESSION, lambda history: [history[0], *history])
        await play.say(again)
        assert shown(play.session) == ["user: one", "assistant: 1", "user: two", "assistant: 2"]
        assert shown(play.view) == shown(play.session)
        await play.say(again)
        assert [item.text for item in play.session if item.role == "user"] == ["one", "two", "two"]

    responses = [[item_of(item) for item in record["items"]] for record in case(23).of("response")]
    await played(case(23), scenario, way, tmp_path, steps=[*responses, "3"])
