"""A model that does not answer gives way to the next: for the rest of the run, and no longer."""

from typing import Any

import pytest
from tests.engine.failing import Clock, Shared, down, failed_in, issuers_in

from batonlog.engine import Agent, Engine, Model, ModelResponse, Retries, RunFailedError, handoff, tool
from batonlog.engine.testing import ScriptedModel, assistant_message, function_call
from batonlog.events import EventLog, HistoryRewritten, MemoryLog, UsageError
from batonlog.projections import History, model_history, session_history, usage
from batonlog.projections.state import run_state

NEVER = down(again=False)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("batonlog.engine.effects.pause", clock)
    return clock


@tool
def look() -> str:
    """Look."""
    return "seen"


def engine_of(
    models: Shared, *names: str, log: EventLog | None = None, own: Model | str | None = None, **options: Any
) -> Engine[object]:
    """One agent that asks "own", and these others."""
    return Engine(
        log if log is not None else MemoryLog(),
        agents=[Agent("a", tools=[look])],
        model=own if own is not None else models.model("own"),
        fallback=[models.model(name) for name in names],
        **options,
    )


async def test_the_next_model_is_asked_when_the_attempts_are_used_up() -> None:
    models = Shared(down(), down(), "hi")
    one = engine_of(models, "other", retries=Retries(attempts=2))
    result = await one.run("go", session="s")
    assert (result.final_output, models.names) == ("hi", ["own", "own", "other"])
    first, second = failed_in(await one.log.records("s"))
    assert (first.retried, first.passed_on, first.delay > 0) == (True, False, True)
    assert (second.retried, second.passed_on, second.delay) == (True, True, 0)


async def test_a_model_that_cannot_help_is_passed_over_at_once() -> None:
    models = Shared(NEVER, down(3600), "hi")
    one = engine_of(models, "second", "third")
    assert (await one.run("go", session="s")).final_output == "hi"
    assert models.names == ["own", "second", "third"]


async def test_the_fallback_goes_on_for_the_rest_of_the_run_and_the_next_begins_with_the_own_model() -> None:
    models = Shared(NEVER, function_call(look, {}), "hi", NEVER, "again")
    one = engine_of(models, "other")
    await one.run("go", session="s")
    await one.run("more", session="s")
    assert models.names == ["own", "other", "other", "own", "other"]
    assert issuers_in(await one.log.records("s")) == models.names


async def test_a_fallback_has_all_attempts_of_its_own() -> None:
    models = Shared(down(), down(), down(), down(), down(), "hi")
    one = engine_of(models, "other")
    assert (await one.run("go", session="s")).final_output == "hi"
    assert models.names == ["own"] * 3 + ["other"] * 3


async def test_when_all_fail_the_run_fails_with_the_last_error_and_resume_begins_anew() -> None:
    last = ConnectionResetError("the last")
    models = Shared(NEVER, last, "hi")
    one = engine_of(models, "other", retries=Retries(attempts=1))
    with pytest.raises(RunFailedError, match="ConnectionResetError: the last") as caught:
        await one.run("go", session="s")
    assert caught.value.__cause__ is last
    assert (await one.resume("s")).final_output == "hi"
    assert models.names == ["own", "other", "own"]


async def test_the_message_goes_to_every_model_once() -> None:
    models = Shared(NEVER, NEVER, "hi")
    one = engine_of(models, "second", "third")
    await one.run("go", session="s")
    assert [[item.text for item in request.input] for _, request in models.asked] == [["go"]] * 3
    assert [item.text for item in session_history(await one.log.records("s"))] == ["go", "hi"]


async def test_a_fallback_that_is_the_own_model_is_passed_over() -> None:
    models = Shared(NEVER, "hi")
    one = engine_of(models, "own", "other")
    await one.run("go", session="s")
    assert models.names == ["own", "other"]

    alone = Shared(NEVER)
    two = engine_of(alone, "own")
    with pytest.raises(RunFailedError):
        await two.run("go", session="s")
    assert [event.passed_on for event in failed_in(await two.log.records("s"))] == [False]


async def test_one_model_is_a_list_of_one_and_a_name_is_made_once() -> None:
    made: list[str] = []
    models = Shared(NEVER, "hi", NEVER, "again")

    def provider(name: str) -> Model:
        made.append(name)
        return models.model(name)

    one = Engine("memory:", agents=[Agent("a")], model="own", fallback="other", provider=provider)
    assert made == []
    await one.run("go", session="s")
    await one.run("go", session="s")
    assert (models.names, sorted(made)) == (["own", "other", "own", "other"], ["other", "own"])


async def test_without_a_fallback_that_was_promised_a_run_does_not_begin() -> None:
    def provider(name: str) -> Model:
        raise UsageError(f"there is no key for {name}")

    log = MemoryLog()
    own = ScriptedModel()
    one = Engine(log, agents=[Agent("a")], model=own, fallback="other", provider=provider)
    with pytest.raises(UsageError, match="no key for other"):
        await one.run("go", session="s")
    assert await log.head("s") is None


async def test_a_fallback_that_cannot_be_made_by_who_goes_on_fails_the_run_and_says_so() -> None:
    def provider(name: str) -> Model:
        raise UsageError(f"there is no key for {name}")

    log = MemoryLog()
    models = Shared(LookupError("stop"), NEVER)
    with pytest.raises(RunFailedError):
        await engine_of(models, log=log).run("go", session="s")
    two = Engine(log, agents=[Agent("a")], model=models.model("own"), fallback="other", provider=provider)
    with pytest.raises(RunFailedError, match="there is no key for other"):
        await two.resume("s")
    assert failed_in(await log.records("s"))[-1].passed_on


async def test_an_engine_without_a_model_of_its_own_has_no_fallback_either() -> None:
    one = Engine("memory:", agents=[Agent("a")], fallback=ScriptedModel("hi"))
    with pytest.raises(UsageError, match="agent a has no model"):
        await one.run("go")


# -- agents


async def test_two_agents_with_models_of_their_own_share_the_fallback() -> None:
    models = Shared(
        NEVER,  # triage's own
        {**function_call("transfer_to_refund", {}), "call_id": "c"},
        NEVER,  # refund's own
        "refunded",
        "hi",
    )
    refund = Agent("refund", model=models.model("strong"))
    triage = Agent("triage", model=models.model("quick"), handoffs=[refund])
    one = Engine("memory:", agents=[triage, refund], fallback=models.model("spare"))
    await one.run("go", session="s")
    await one.run("more", session="s")
    assert models.names == ["quick", "spare", "strong", "spare", "strong"]


async def test_a_model_that_one_agent_has_given_up_is_given_up_for_all() -> None:
    transfer = {**function_call("transfer_to_b", {}), "call_id": "c"}
    models = Shared(NEVER, transfer, "hi")
    b = Agent("b")
    one = Engine(
        "memory:",
        agents=[Agent("a", handoffs=[b]), b],
        model=models.model("own"),
        fallback=models.model("spare"),
    )
    await one.run("go", session="s")
    assert models.names == ["own", "spare", "spare"]
    assert set(usage(await one.log.records("s"))) == {("a", "spare"), ("b", "spare")}


# -- what another model may not be shown


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}


class Thinking(ScriptedModel):
    """Reasons before it answers, and may be told to keep what it was sent."""

    def __init__(self, *steps: Any, name: str, chain: str | None = None) -> None:
        super().__init__(*steps, name=name)
        self.chain = chain

    async def respond(self, request: Any, /) -> Any:
        async for piece in super().respond(request):
            if isinstance(piece, ModelResponse):
                piece.id = f"resp_{self.name}_{len(self.requests)}"
            yield piece


async def test_a_fallback_is_not_shown_the_reasoning_of_another() -> None:
    own = Thinking([REASONING, assistant_message("one")], NEVER, "three", name="own")
    other = Thinking("two", name="other")
    one = Engine("memory:", agents=[Agent("a")], model=own, fallback=other)
    await one.run("go", session="s")
    await one.run("more", session="s")
    await one.run("and more", session="s")
    records = await one.log.records("s")
    assert [item.type for item in own.requests[1].input] == ["message", "reasoning", "message", "message"]
    assert [item.type for item in other.requests[0].input] == ["message"] * 3
    (repair,) = [record.event for record in records if isinstance(record.event, HistoryRewritten)]
    assert repair.cause == "repair"
    assert [item.type for item in session_history(records)].count("reasoning") == 1
    assert [item.type for item in model_history(records)].count("reasoning") == 0


async def test_that_a_model_is_passed_on_is_stored_before_the_next_opens_a_conversation() -> None:
    log = MemoryLog()
    stored: list[str] = []

    class Opening(ScriptedModel):
        chain = "conversation"

        async def open_conversation(self) -> str:
            stored.extend(record.type for record in await log.records("s"))
            return "conv_1"

    one = Engine(log, agents=[Agent("a")], model=Shared(NEVER).model("own"), fallback=Opening("hi"))
    assert (await one.run("go", session="s")).final_output == "hi"
    assert stored[-1] == "model.failed"


async def test_a_filter_is_judged_by_what_the_model_that_will_be_asked_may_be_shown() -> None:
    sealed = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}
    transfer = {**function_call("transfer_to_b", {}), "call_id": "d"}
    models = Shared(NEVER, [sealed, transfer], "hi")

    def only_sealed(history: History) -> Any:
        return [item for item in history if item.type == "compaction"]

    b = Agent("b")
    a = Agent("a", handoffs=[handoff(b, input_filter=only_sealed)])
    one = Engine("memory:", agents=[a, b], model=models.model("own"), fallback=models.model("other"))
    assert (await one.run("go", session="s")).final_output == "hi"
    assert [item.type for item in models.asked[-1][1].input] == ["compaction"]


async def test_a_fallback_breaks_the_chain_and_so_does_the_way_back() -> None:
    own = Thinking("one", NEVER, "three", "four", name="own", chain="previous_response_id")
    other = Thinking(
        {**function_call(look, {}), "call_id": "c"}, "two", name="other", chain="previous_response_id"
    )
    one = Engine("memory:", agents=[Agent("a", tools=[look])], model=own, fallback=other)
    for text in ("go", "more", "and more", "and on"):
        await one.run(text, session="s")
    assert [request.previous_response_id for request in own.requests] == [
        None,
        "resp_own_1",
        None,
        "resp_own_3",
    ]
    assert [(request.previous_response_id, request.first) for request in other.requests] == [
        (None, 0),
        ("resp_other_1", 4),
    ]
    assert [request.first for request in own.requests] == [0, 2, 0, 8]


async def test_a_retry_goes_on_along_the_chain() -> None:
    own = Thinking("one", down(), ConnectionError(), "two", name="own", chain="previous_response_id")
    one = Engine("memory:", agents=[Agent("a")], model=own)
    await one.run("go", session="s")
    await one.run("more", session="s")
    assert [(request.previous_response_id, request.first) for request in own.requests] == [
        (None, 0),
        ("resp_own_1", 2),
        ("resp_own_1", 2),
        ("resp_own_1", 2),
    ]


async def test_the_state_says_who_is_given_up_until_the_next_run() -> None:
    models = Shared(NEVER, "hi", "again")
    one = engine_of(models, "other")
    await one.run("go", session="s")
    records = await one.log.records("s")
    assert {name for _, name in run_state(records).given_up} == {"own"}
    await one.run("go", session="s")
    assert run_state(await one.log.records("s")).given_up == frozenset()
