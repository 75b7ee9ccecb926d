"""ScriptedModel: strict, so that a test of one's agents cannot pass by accident."""

from typing import Any

import pytest

from batonlog.engine import Agent, Delta, Engine, ModelRequest, ModelResponse, RunFailedError, handoff, tool
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.engine.testing.fake_responses import BrokenStream
from batonlog.events import JSON


@tool
def look(what: str = "all") -> str:
    return f"{what} seen"


async def run(model: ScriptedModel, text: str = "go") -> str:
    async with Engine("memory:", agents=[Agent("a", tools=[look])], model=model) as engine:
        return str((await engine.run(text)).final_output)


# -- steps


def echo(request: ModelRequest) -> Step:
    return f"you said {request.input[-1].text}"


def twice(request: ModelRequest) -> Step:
    return echo


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        ("text", "text"),
        ("", ""),
        (assistant_message("an item"), "an item"),
        ([assistant_message("one"), assistant_message("two")], "two"),
        ((assistant_message("a tuple"),), "a tuple"),
        ([], ""),
        (echo, "you said go"),
        (twice, "you said go"),
        (lambda request: [assistant_message("made")], "made"),
    ],
)
async def test_a_step_is_an_answer(step: Step, answer: str) -> None:
    with ScriptedModel(step) as model:
        assert await run(model) == answer


async def test_a_step_may_be_an_error_to_raise() -> None:
    with pytest.raises(RunFailedError, match="down"):
        await run(ScriptedModel(LookupError("down")))


async def deltas_of(step: Step) -> list[str]:
    """What comes of an answer before it breaks off."""
    found: list[str] = []

    async def listen() -> None:
        async for piece in ScriptedModel(step).respond(await a_request()):
            assert isinstance(piece, Delta)
            found.append(piece.text)

    with pytest.raises(ConnectionError, match="the stream of scripted broke off"):
        await listen()
    return found


async def a_request() -> ModelRequest:
    with ScriptedModel("any") as model:
        await run(model)
    return model.requests[0]


@pytest.mark.parametrize(("after", "told"), [(0, []), (1, ["one"]), (5, ["one", "two"])])
async def test_a_stream_may_break_after_some_deltas(after: int, told: list[str]) -> None:
    step = [assistant_message("one"), function_call(look, {}), assistant_message("two")]
    assert await deltas_of(BrokenStream(step, after=after)) == told
    assert await deltas_of(lambda request: BrokenStream(step, after=after)) == told


async def test_a_function_may_make_an_error() -> None:
    with pytest.raises(RunFailedError, match="down"):
        await run(ScriptedModel(lambda request: LookupError("down")))


async def test_steps_are_taken_in_their_order() -> None:
    with ScriptedModel(function_call(look, {"what": "x"}), echo) as model:
        assert await run(model) == "you said x seen"


# -- too many, too few


async def test_a_call_too_many_is_an_error_that_says_what_to_do() -> None:
    model = ScriptedModel("one")
    await run(model)
    with pytest.raises(RunFailedError, match="was asked 2 times, but its script has 1 steps: add one"):
        await run(model)


def test_steps_left_over_are_an_error() -> None:
    with pytest.raises(AssertionError, match="model scripted has 2 of 2 steps left over"):
        ScriptedModel("one", "two").assert_complete()
    with pytest.raises(AssertionError, match="left over"), ScriptedModel("one"):
        pass


def test_a_script_that_was_played_is_complete() -> None:
    ScriptedModel().assert_complete()


def test_what_fails_inside_is_not_hidden_by_steps_left_over() -> None:
    with pytest.raises(LookupError, match="the real one"), ScriptedModel("one"):
        raise LookupError("the real one")


# -- what it shows


async def test_requests_show_what_it_was_asked() -> None:
    model = ScriptedModel(function_call(look, {}), "done")
    await run(model)
    assert [(request.agent, request.turn, request.model) for request in model.requests] == [
        ("a", 1, "scripted"),
        ("a", 2, "scripted"),
    ]
    assert [item.type for item in model.requests[1].input] == [
        "message",
        "function_call",
        "function_call_output",
    ]


def test_a_model_has_a_name() -> None:
    assert ScriptedModel(name="gpt-5").name == "gpt-5"


async def test_texts_come_as_deltas_before_the_answer() -> None:
    model = ScriptedModel(
        [assistant_message("one"), function_call(look, {}), assistant_message("two")], "done"
    )
    async with Engine("memory:", agents=[Agent("a", tools=[look])], model=model) as engine:
        await engine.run("go")
    pieces = [piece async for piece in ScriptedModel("a text").respond(model.requests[0])]
    assert isinstance(pieces[0], Delta)
    assert pieces[0].text == "a text"
    assert isinstance(pieces[-1], ModelResponse)


# -- items


async def test_calls_without_an_id_get_one_each() -> None:
    model = ScriptedModel(
        [function_call(look, {}), function_call(look, {}), function_call(look, {}, call_id="mine")], "x"
    )
    await run(model)
    ids = [item.data["call_id"] for item in model.requests[1].input if item.type == "function_call"]
    assert ids == ["call_1", "call_2", "mine"]


HANDOFF: Any = handoff("b", tool_name="route")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("anything", "anything"),
        (look, "look"),
        (HANDOFF, "route"),
        (Agent("退款专家"), "transfer_to_2cf1ab57"),
    ],
)
def test_a_call_may_be_of_a_name_a_tool_a_handoff_or_an_agent(target: Any, name: str) -> None:
    assert function_call(target, {})["name"] == name


@pytest.mark.parametrize(
    ("arguments", "text"), [({"a": 1}, '{"a":1}'), ({}, "{}"), ('{"a": ', '{"a": '), ("", "")]
)
def test_arguments_may_be_broken(arguments: JSON, text: str) -> None:
    assert function_call("look", arguments)["arguments"] == text


def test_a_message_is_one_as_a_model_says_it() -> None:
    assert assistant_message("hi") == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hi", "annotations": []}],
    }
