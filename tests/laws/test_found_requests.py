"""What the laws have found in requests, each as its smallest example."""

import pytest
from tests.laws.scripts import JSON
from tests.laws.store import Store, append

from batonlog.engine import (
    Agent,
    Engine,
    RunFailedError,
    tool,
)
from batonlog.engine.openai_responses import OpenAIResponsesModel
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.engine.testing.fake_responses import FakeResponsesServer
from batonlog.events import (
    InputAdded,
    ToolReturned,
)
from batonlog.projections import (
    check_legal,
)


async def test_reasoning_under_an_id_that_was_given_before_is_not_sent_twice() -> None:
    def thinks() -> list[JSON]:
        return [{"type": "reasoning", "id": "rs_1", "summary": []}, function_call("look", {}, call_id="c1")]

    @tool
    async def look() -> str:
        """Look."""
        return "x"

    model = ScriptedModel(thinks(), thinks(), "done")
    log = Store()
    await Engine(log, agents=[Agent("a", tools=[look])], model=model).run("hi", session="s")
    sent = [item.type for item in model.requests[-1].input]
    assert sent.count("reasoning") == 1
    assert sent.count("function_call") == 2


async def test_input_for_a_later_run_is_looked_at_before_it_is_sent() -> None:
    log = Store()

    @tool
    async def queue() -> str:
        """Say something for the next run."""
        orphan = {"type": "function_call_output", "call_id": "c7", "output": "x"}
        await append(log, "s", InputAdded(input=(orphan,), goes_to="run", by="u"))
        return "x"

    model = ScriptedModel(function_call("queue", {}, call_id="c1"), "done", "and again")
    engine = Engine(log, agents=[Agent("a", tools=[queue])], model=model)
    await engine.run("hi", session="s")
    await engine.run("again", session="s")
    assert check_legal(model.requests[-1].input) == ()


async def test_input_of_this_turn_that_cannot_be_sent_stops_the_run_and_not_the_session() -> None:
    log = Store()

    @tool
    async def inject() -> str:
        """Add what is no message."""
        orphan = {"type": "function_call_output", "call_id": "c7", "output": "x"}
        await append(log, "s", InputAdded(input=(orphan,), goes_to="turn", by="u"))
        return "x"

    model = ScriptedModel(function_call("inject", {}, call_id="c1"), "fine")
    engine = Engine(log, agents=[Agent("a", tools=[inject])], model=model)
    with pytest.raises(RunFailedError, match="answers no call before it"):
        await engine.run("hi", session="s")
    assert (await engine.run("again", session="s")).final_output == "fine"
    assert check_legal(model.requests[-1].input) == ()


async def test_a_call_that_somebody_gives_breaks_the_chain_where_its_id_may_be_in_use() -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "x"

    given = [
        function_call("look", {}, call_id="c1"),
        {"type": "function_call_output", "call_id": "c1", "output": "y"},
        {"role": "user", "content": "and?"},
    ]
    async with FakeResponsesServer(function_call("look", {}, call_id="c1"), "one", "two") as server:
        model = OpenAIResponsesModel("m", client=server.client, chain="previous_response_id")
        engine = Engine(Store(), agents=[Agent("a", tools=[look])], model=model)
        await engine.run("hi", session="s")
        await engine.run(given, session="s")
        assert server.refusals == ()
        assert "previous_response_id" not in server.requests[-1]


@pytest.mark.parametrize("output", ["x" * 10_485_761, "é" * 10_485_761, ["x" * 10_485_760]])
async def test_an_output_that_no_provider_takes_is_shown_cut_off_and_kept_whole(output: JSON) -> None:
    @tool
    async def big() -> object:
        """Return a lot."""
        return output

    log = Store()
    async with FakeResponsesServer(function_call("big", {}, call_id="c1"), "done") as server:
        model = OpenAIResponsesModel("m", client=server.client)
        engine = Engine(log, agents=[Agent("a", tools=[big])], model=model)
        assert (await engine.run("hi", session="s")).final_output == "done"
        assert server.refusals == ()
    (returned,) = [record.event for record in await log.records("s") if record.type == "tool.returned"]
    assert isinstance(returned, ToolReturned)
    assert returned.output == output
    assert len(returned.shown) == 10_485_760
    assert "characters in all]" in returned.shown[-60:]


@pytest.mark.parametrize("output", ["x" * 10_485_760, {"a": 1}, None])
async def test_an_output_that_a_provider_takes_is_shown_as_it_is(output: JSON) -> None:
    @tool
    async def big() -> object:
        """Return a lot."""
        return output

    log = Store()
    model = ScriptedModel(function_call("big", {}, call_id="c1"), "done")
    await Engine(log, agents=[Agent("a", tools=[big])], model=model).run("hi", session="s")
    (returned,) = [record.event for record in await log.records("s") if record.type == "tool.returned"]
    assert isinstance(returned, ToolReturned)
    assert returned.shown is None
