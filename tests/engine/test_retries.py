"""A model that does not answer is asked again, or another one is; a wait can be ended at any time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.failing import Clock, Shared, down, failed_in
from tests.laws.depth import examples

from batonlog.engine import (
    Agent,
    Delta,
    Engine,
    Limits,
    OpenAIResponsesModel,
    Retries,
    RunFailedError,
    tool,
)
from batonlog.engine.models import TooLongError
from batonlog.engine.testing import (
    FakeResponsesServer,
    ScriptedModel,
    Step,
    crash_everywhere,
    function_call,
)
from batonlog.engine.testing.fake_responses import BrokenStream
from batonlog.events import (
    EventLog,
    MemoryLog,
    ModelRequested,
    Record,
    UsageError,
)
from batonlog.projections import keep_last, session_history, timeline

AT_ONCE = Retries(first=0)
HALF = Delta(kind="text", text="half", agent="a", turn=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("batonlog.engine.effects.pause", clock)
    return clock


class Frozen:
    """A clock that stands still: whoever waits, waits until he is told to go on, or to stop."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = False

    async def __call__(self, seconds: float) -> None:
        self.waiting.set()
        try:
            await self.go_on.wait()
        finally:
            self.ended = True


@pytest.fixture
async def frozen(monkeypatch: pytest.MonkeyPatch) -> Frozen:
    frozen = Frozen()
    monkeypatch.setattr("batonlog.engine.effects.pause", frozen)
    return frozen


@tool
def look(what: str = "it") -> str:
    """Look."""
    return f"{what} seen"


def engine_of(model: Any, log: EventLog | str | None = None, **options: Any) -> Engine[object]:
    return Engine(
        log if log is not None else MemoryLog(),
        agents=[Agent("a", tools=[look])],
        model=model,
        **options,
    )


def types_of(records: tuple[Record, ...]) -> list[str]:
    return [record.type for record in records]


# -- how long


@examples(300)
@given(
    st.builds(
        Retries,
        attempts=st.integers(1, 200),
        first=st.floats(0, 1e300),
        longest=st.floats(0, 1e300),
        longest_asked=st.floats(0, 1e300),
    ),
    st.integers(0, 2000),
    st.floats(0, 1),
    st.one_of(st.none(), st.floats()),
)
def test_a_wait_is_within_its_bounds_and_no_shorter_than_asked(
    retries: Retries, tries: int, chance: float, asked: float | None
) -> None:
    delay = retries.delay(tries, down(asked), chance=chance)

    wanted = asked if asked is not None and asked > 0 else 0.0
    if tries + 1 >= retries.attempts or wanted > retries.longest_asked:
        assert delay is None
    else:
        assert delay is not None
        assert wanted <= delay <= max(wanted, retries.longest)
        assert delay <= max(wanted, retries.first * 2.0 ** min(tries, 1000))


def test_a_wait_doubles_up_to_the_longest() -> None:
    retries = Retries(attempts=99, first=0.5, longest=8)
    assert [retries.delay(n, down(), chance=1) for n in range(6)] == [0.5, 1, 2, 4, 8, 8]
    assert [retries.delay(n, down(), chance=0) for n in range(6)] == [0.25, 0.5, 1, 2, 4, 4]


@pytest.mark.parametrize("error", [down(), ConnectionResetError(), TimeoutError(), BrokenPipeError()])
def test_what_may_go_by_itself_is_asked_again(error: Exception) -> None:
    assert Retries().delay(0, error, chance=1) == 0.5


@pytest.mark.parametrize("error", [down(again=False), ValueError(), OSError(), LookupError(), RuntimeError()])
def test_what_does_not_go_is_not_asked_again(error: Exception) -> None:
    assert Retries().delay(0, error, chance=1) is None


@pytest.mark.parametrize("odd", [float("nan"), -1.0, 0.0, float("-inf")])
def test_an_odd_wait_that_is_asked_for_is_none(odd: float) -> None:
    assert Retries().delay(0, down(odd), chance=1) == 0.5


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"attempts": 0}, r"Retries\(attempts=0\): give a number of calls, 1 to never ask again"),
        ({"attempts": 2.0}, r"attempts=2.0"),
        ({"attempts": True}, r"attempts=True"),
        ({"first": -1}, r"Retries\(first=-1\): give a number of seconds, 0 or more"),
        ({"first": "1"}, r"first='1'"),
        ({"longest": float("nan")}, r"longest=nan"),
        ({"longest_asked": float("inf")}, r"longest_asked=inf"),
        ({"longest_asked": None}, r"longest_asked=None"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_cure(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Retries(**values)


def test_an_engine_takes_retries_and_models() -> None:
    with pytest.raises(UsageError, match=r"retries=3: give Retries\(attempts=...\)"):
        engine_of(ScriptedModel(), retries=3)
    with pytest.raises(UsageError, match="is no model"):
        engine_of(ScriptedModel(), fallback=[7])
    with pytest.raises(UsageError, match="is no model"):
        engine_of(ScriptedModel(), fallback=7)


# -- asked again


async def test_each_attempt_is_an_event_and_none_is_in_the_history(clock: Clock) -> None:
    model = ScriptedModel(down(), BrokenStream("half", after=1), "hi")
    one = engine_of(model)
    assert (await one.run("go", session="s")).final_output == "hi"
    records = await one.log.records("s")
    assert types_of(records) == [
        "run.started",
        "agent.resolved",
        "model.requested",
        "model.failed",
        "model.requested",
        "model.failed",
        "model.requested",
        "model.responded",
        "run.completed",
    ]
    first, second = failed_in(records)
    assert (first.kind, first.message, first.retried, first.partial) == (
        "UnavailableError",
        "down",
        True,
        "",
    )
    assert (second.kind, second.retried, second.partial) == ("ConnectionError", True, "half")
    assert clock.waits == [first.delay, second.delay]
    assert 0.25 <= first.delay <= 0.5 <= second.delay <= 1
    assert [event.event.attempt for event in records if isinstance(event.event, ModelRequested)] == [1, 2, 3]
    assert [item.text for item in session_history(records)] == ["go", "hi"]
    assert [turn.turn for turn in timeline(records)] == [1, 1, 1]


async def test_after_the_last_attempt_the_run_fails_with_the_original_error(clock: Clock) -> None:
    original = LookupError("no route")
    wrapped = down()
    wrapped.__cause__ = original
    one = engine_of(ScriptedModel(wrapped, wrapped, wrapped))
    with pytest.raises(RunFailedError, match="LookupError: no route") as caught:
        await one.run("go", session="s")
    assert caught.value.__cause__ is original
    records = await one.log.records("s")
    assert [(event.kind, event.message, event.retried) for event in failed_in(records)] == [
        ("LookupError", "no route", True),
        ("LookupError", "no route", True),
        ("LookupError", "no route", False),
    ]
    assert len(clock.waits) == 2


async def test_an_error_of_the_request_fails_the_run_at_once() -> None:
    one = engine_of(ScriptedModel(ValueError("no")), fallback=ScriptedModel("never", name="other"))
    with pytest.raises(RunFailedError, match="ValueError: no"):
        await one.run("go", session="s")
    assert len(failed_in(await one.log.records("s"))) == 1


async def test_an_answer_gives_the_next_turn_all_its_attempts_again(clock: Clock) -> None:
    model = ScriptedModel(down(), down(), function_call(look, {}), down(), down(), "hi")
    one = engine_of(model)
    assert (await one.run("go", session="s")).final_output == "hi"
    delays = [event.delay for event in failed_in(await one.log.records("s"))]
    assert all(0.25 <= delay <= 0.5 for delay in delays[::2])
    assert all(0.5 <= delay <= 1 for delay in delays[1::2])


async def test_a_provider_that_asks_for_too_much_is_not_waited_for() -> None:
    one = engine_of(ScriptedModel(down(61)))
    with pytest.raises(RunFailedError):
        await one.run("go", session="s")


async def test_a_provider_is_waited_for_as_it_asks(clock: Clock) -> None:
    one = engine_of(ScriptedModel(down(59), "hi"))
    await one.run("go", session="s")
    assert clock.waits == [59]


async def test_the_usage_of_a_failed_attempt_counts_where_it_is_known() -> None:
    failed = {
        "response": {
            "status": "failed",
            "error": {"code": "server_error", "message": "out of luck"},
            "usage": {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6},
        }
    }
    async with FakeResponsesServer(failed, "hi") as server:
        one = engine_of(OpenAIResponsesModel("gpt-5", client=server.client), retries=AT_ONCE)
        result = await one.run("go", session="s")
        (event,) = failed_in(await one.log.records("s"))
        assert event.usage is not None
        assert event.usage.total_tokens == 6
        (turn, answered) = timeline(await one.log.records("s"))
    assert result.usage.total_tokens == 6 + answered.usage.total_tokens
    assert turn.usage.total_tokens == 6


async def test_a_stream_shows_the_broken_attempt_then_that_it_failed_then_the_next(clock: Clock) -> None:
    one = engine_of(ScriptedModel(BrokenStream("half", after=1), "whole"))
    seen = [
        update.text if isinstance(update, Delta) else update.type
        async for update in one.stream("go", session="s")
    ]
    assert seen[2:] == [
        "model.requested",
        "half",
        "model.failed",
        "model.requested",
        "whole",
        "model.responded",
        "run.completed",
    ]


async def test_a_view_that_is_too_long_is_no_attempt(clock: Clock) -> None:
    model = ScriptedModel("one", down(), TooLongError("long"), down(), "hi")
    one = engine_of(model, compact=keep_last(1))
    await one.run("go", session="s")
    assert (await one.run("more", session="s")).final_output == "hi"
    records = await one.log.records("s")
    kinds = [event.kind for event in failed_in(records)]
    assert kinds == ["UnavailableError", "overflow", "UnavailableError"]


# -- the wait


async def test_a_cancel_ends_a_wait(frozen: Frozen) -> None:
    one = engine_of(ScriptedModel(down()))
    run = asyncio.ensure_future(one.run("go", session="s"))
    await frozen.waiting.wait()
    await one.cancel("s")
    assert (await run).status == "cancelled"
    assert frozen.ended
    assert types_of(await one.log.records("s"))[-3:] == ["cancel.requested", "model.failed", "run.cancelled"]
    assert failed_in(await one.log.records("s"))[-1].retried is False


async def test_closing_ends_a_wait_and_the_next_worker_asks_at_once(frozen: Frozen) -> None:
    log = MemoryLog()
    first = engine_of(ScriptedModel(down()), log)
    run = asyncio.ensure_future(first.run("go", session="s"))
    await frozen.waiting.wait()
    await first.close()
    with pytest.raises(UsageError, match="was closed"):
        await run
    assert frozen.ended

    second = engine_of(ScriptedModel("hi"), log)  # would wait for ever
    assert (await second.resume("s")).final_output == "hi"


async def test_who_goes_on_begins_with_the_own_model_and_all_its_attempts(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    models = Shared(down(again=False), down(), down(), down(), "hi")
    one = engine_of(models.model("own"), log, fallback=models.model("other"))
    run = asyncio.ensure_future(one.run("go", session="s"))
    await frozen.waiting.wait()  # for the other model
    await one.close()
    await asyncio.gather(run, return_exceptions=True)

    monkeypatch.setattr("batonlog.engine.effects.pause", Clock())
    two = engine_of(models.model("own"), log, fallback=models.model("other"))
    assert (await two.resume("s")).final_output == "hi"
    assert models.names == ["own", "other", "own", "own", "own"]


async def test_what_is_sent_during_a_wait_is_for_the_next_turn(frozen: Frozen) -> None:
    model = ScriptedModel(down(), "hi", "quickly")
    one = engine_of(model)
    run = asyncio.ensure_future(one.run("go", session="s"))
    await frozen.waiting.wait()
    await one.send("and quickly", session="s")
    frozen.go_on.set()
    assert (await run).final_output == "quickly"
    assert [len(request.input) for request in model.requests] == [1, 1, 3]


async def test_a_cancel_after_the_turn_ends_a_run_whose_model_fails() -> None:
    engines: list[Engine[object]] = []

    class Failing(ScriptedModel):
        async def respond(self, request: Any, /) -> Any:
            await engines[0].cancel("s", after_turn=True)
            yield HALF
            raise down()

    one = engine_of(Failing(), fallback=ScriptedModel(name="other"))
    engines.append(one)
    assert (await one.run("go", session="s")).status == "cancelled"
    (failed,) = failed_in(await one.log.records("s"))
    assert (failed.retried, failed.passed_on) == (False, False)


async def test_a_limit_of_time_pauses_instead_of_asking_again(clock: Clock) -> None:
    moments = iter(datetime.now(tz=UTC) + timedelta(hours=n) for n in range(99))
    one = engine_of(ScriptedModel(down(), "hi"), clock=lambda: next(moments))
    result = await one.run("go", session="s", limits=Limits(seconds=7200))
    assert (result.status, clock.waits) == ("paused", [])
    assert (await one.resume("s", limits=Limits())).final_output == "hi"
    assert clock.waits == []  # what was decided before the pause is forgotten


# -- crashes


async def test_no_crash_can_hurt_a_run_whose_model_fails_now_and_then() -> None:
    async def scenario(path: str) -> None:
        script: tuple[list[Step], ...] = (
            [down(), BrokenStream("half", after=1), function_call(look, {})],
            [down(5), ConnectionResetError(), "one"],
            ["two"],
        )
        with ScriptedModel(*[step for steps in script for step in steps]) as model:
            async with engine_of(model, path, retries=Retries(first=0, longest_asked=9)) as engine:
                await engine.run("go", session="s")
                await engine.run("more", session="s")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("batonlog.engine.effects.pause", Clock())
        report = await crash_everywhere(scenario)
    assert (report.wrong_logs, report.repeated_effects) == ((), ())
    assert report.boundaries > 30


async def test_no_crash_can_hurt_a_run_that_is_passed_on() -> None:
    class Down(ScriptedModel):
        async def respond(self, request: Any, /) -> Any:
            yield HALF
            raise down(again=False)

    async def scenario(path: str) -> None:
        with ScriptedModel(function_call(look, {}), "one", "two", name="other") as other:
            async with engine_of(Down(name="own"), path, fallback=other) as engine:
                await engine.run("go", session="s")
                await engine.run("more", session="s")

    report = await crash_everywhere(scenario)
    assert (report.wrong_logs, report.repeated_effects) == ((), ())
    assert report.boundaries > 20
