"""Tools: made from functions and from schemas, called by a model, answered whatever they do."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from batonlog.engine import Agent, Engine, RunContext, Tool, ToolContext, tool
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.engine.tools import read_docstring
from batonlog.events import JSON, NoteAdded, Record, Ref, ToolCalled, ToolReturned, UsageError
from batonlog.projections import session_history


async def played(*tools: Any, calls: list[JSON], context: object = None) -> tuple[Record, ...]:
    """The records of a run in which a model makes these calls and then answers."""
    with ScriptedModel(calls, "done") as model:
        async with Engine("memory:", agents=[Agent("a", tools=tools)], model=model) as engine:
            result = await engine.run("go", session="s", context=context)
            assert result.final_output == "done"
            return await engine.log.records("s")


def outputs(records: tuple[Record, ...]) -> list[str]:
    return [item.text for item in session_history(records) if item.type == "function_call_output"]


async def output(one: Any, arguments: Mapping[str, JSON] | str = "{}", *, context: object = None) -> str:
    """What one call is answered with."""
    name = one.name if isinstance(one, Tool) else one.__name__
    (text,) = outputs(await played(one, calls=[function_call(name, arguments)], context=context))
    return text


def returns(value: object) -> Tool[Any]:
    return Tool("give", lambda ctx, arguments: value)


# -- made from a function


class Line(Struct):
    what: str
    count: int = 1


@tool
def order(
    customer: str,
    lines: list[Line],
    speed: Literal["slow", "fast"] = "slow",
    limit: Annotated[float, Meta(ge=0)] | None = None,
) -> str:
    """Order things.

    They are sent at once.

    Args:
        customer: who orders,
            by name.
        speed (str): how fast.
        nobody: not a parameter.

    Returns:
        what was ordered.
    """
    return f"{customer}: {', '.join(f'{line.count} {line.what}' for line in lines)}, {speed}"


def test_a_tool_has_the_schema_of_its_signature() -> None:
    assert order.parameters["required"] == ["customer", "lines", "speed", "limit"]
    assert order.parameters["additionalProperties"] is False
    assert order.parameters["properties"] == {
        "customer": {"type": "string", "description": "who orders, by name."},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
        "speed": {
            "anyOf": [{"type": "string", "enum": ["fast", "slow"]}, {"type": "null"}],
            "description": "how fast.",
        },
        "limit": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]},
    }


def test_a_tool_has_the_text_of_its_docstring_without_the_sections() -> None:
    assert (order.name, order.description) == ("order", "Order things.\n\nThey are sent at once.")


def test_a_tool_made_from_a_function_is_still_that_function() -> None:
    assert order("li", [Line("hat")]) == "li: 1 hat, slow"  # type: ignore[operator]


def test_name_and_description_can_be_given() -> None:
    @tool(name="say-hi", description="")
    def hello() -> str:
        """Greet."""
        return "hi"

    assert (hello.name, hello.description) == ("say-hi", "")


def test_a_function_without_parameters_takes_none() -> None:
    @tool
    def now() -> str:
        return "12:00"

    assert now.parameters == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


def test_what_is_not_strict_leaves_out_what_has_a_default() -> None:
    @tool(strict=False)
    def find(tags: dict[str, str], limit: int = 3) -> str:
        return ""

    assert find.parameters["required"] == ["tags"]
    assert not find.strict


def test_a_mapping_is_an_error_that_names_the_parameter_and_the_cure() -> None:
    with pytest.raises(UsageError, match=r"tool find: .*mapping at \$\.tags; .*strict=False"):

        @tool
        def find(tags: dict[str, str]) -> str:
            return ""


def test_annotations_may_be_texts() -> None:
    @tool
    def find(ctx: "ToolContext[object]", what: "str") -> "str":
        return ""

    assert list(find.parameters["properties"]) == ["what"]


@pytest.mark.parametrize("context", [ToolContext, RunContext, ToolContext[Any]])
def test_a_context_comes_first_and_is_not_the_models_to_give(context: Any) -> None:
    def find(ctx: object, what: str) -> str:
        return ""

    find.__annotations__["ctx"] = context
    assert list(tool(find).parameters["properties"]) == ["what"]


class Adder:
    """Adds."""

    def __init__(self, base: int) -> None:
        self.base = base

    def add(self, n: int) -> int:
        """Add to the base."""
        return self.base + n

    def __call__(self, n: int) -> int:
        """Add by calling."""
        return self.base + n


async def test_a_method_is_a_tool() -> None:
    assert await output(tool(Adder(40).add), {"n": 2}) == "42"


async def test_an_object_that_can_be_called_is_a_tool() -> None:
    assert await output(tool(name="adder")(Adder(40)), {"n": 2}) == "42"


async def test_a_partial_is_a_tool_of_what_is_left_to_give() -> None:
    def add(base: int, n: int) -> int:
        return base + n

    made = tool(name="add")(partial(add, 40))
    assert list(made.parameters["properties"]) == ["n"]
    assert await output(made, {"n": 2}) == "42"


def _plain(**changes: Any) -> Callable[..., str]:
    def look(what: str) -> str:
        return what

    for name, value in changes.items():
        setattr(look, name, value)
    return look


def unannotated(what):  # type: ignore[no-untyped-def]
    return what


def starred(*what: str) -> str:
    return ""


def double_starred(**what: str) -> str:
    return ""


def positional(what: str, /) -> str:
    return what


def opaque(what: threading.Lock) -> str:
    return ""


def unreadable(what: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def two_contexts(ctx: ToolContext[Any], other: ToolContext[Any]) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (unannotated, "annotate parameter what"),
        (starred, r"gives arguments by name; parameter \*what"),
        (double_starred, r"gives arguments by name; parameter \*\*what"),
        (positional, "gives arguments by name; parameter what"),
        (opaque, "no JSON schema"),
        (unreadable, "an annotation cannot be read"),
        (two_contexts, "no JSON schema"),
        (lambda: "", "'<lambda>' is no name of a tool"),
        (_plain(__name__="look it up"), "'look it up' is no name of a tool"),
        (7, "7 is no function"),
    ],
)
def test_a_function_that_a_model_could_not_call_is_an_error(function: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tool(function)


# -- docstrings


def test_texts_of_parameters_are_read_from_the_docstring() -> None:
    summary, texts = read_docstring(
        "Do it.\n\nMore.\n\nArgs:\n    a: the\n        first.\n    *b: the second.\n    c (int): third\n"
        "\nReturns:\n    d: not one.\n\nStill more."
    )
    assert summary == "Do it.\n\nMore.\n\nStill more."
    assert texts == {"a": "the first.", "b": "the second.", "c": "third"}


def test_without_a_docstring_there_are_no_texts() -> None:
    assert read_docstring("") == ("", {})


# -- what a call is answered with


class Found(Struct):
    name: str
    at: datetime


@dataclass
class Price:
    amount: float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ('{"a": 1}', '{"a": 1}'),
        (None, ""),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ({1: "x"}, '{"1":"x"}'),
        ([], "[]"),
        ((1, 2), "[1,2]"),
        (1.5, "1.5"),
        (True, "true"),
        (10**30, "1" + "0" * 30),
        (float("nan"), "null"),
        (Found("x", datetime(2026, 1, 2, tzinfo=UTC)), '{"name":"x","at":"2026-01-02T00:00:00Z"}'),
        ([Price(1.5)], '[{"amount":1.5}]'),
        ({"price": Price(1.5)}, '{"price":{"amount":1.5}}'),
        (b"hi", "aGk="),
        ("a\0b", "a\0b"),
        ("\ud800", "\ud800"),
        (["\ud800"], '["\\ud800"]'),
    ],
)
async def test_whatever_json_can_hold_is_an_output(value: object, text: str) -> None:
    assert await output(returns(value)) == text


class Opaque: ...


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Opaque(), "TypeError: Opaque is not a JSON value"),
        ({"deep": [Opaque()]}, "TypeError: Opaque is not a JSON value"),
        ({(1, 2): 3}, "TypeError: the keys of a JSON object are texts"),
    ],
)
async def test_what_json_cannot_hold_is_an_error_that_names_the_type(value: object, says: str) -> None:
    records = await played(returns(value), calls=[function_call("give", {})])
    assert outputs(records) == [says]
    assert [one.event.error for one in records if isinstance(one.event, ToolReturned)] == [True]


async def test_a_value_that_holds_itself_is_an_error() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert (await output(returns(endless))).startswith("RecursionError")


async def test_an_output_is_kept_as_the_value_it_was() -> None:
    records = await played(returns({"a": [1]}), calls=[function_call("give", {})])
    assert [one.event.output for one in records if isinstance(one.event, ToolReturned)] == [{"a": [1]}]


def raising(error: Exception, **options: Any) -> Tool[Any]:
    def give(ctx: object, arguments: object) -> None:
        raise error

    return Tool("give", give, **options)


class OutOfStockError(Exception): ...


class Unsayable(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OutOfStockError("no hats"), "OutOfStockError: no hats"),
        (OutOfStockError(), "OutOfStockError"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError("\ud800"), "ValueError: ?"),
        (Unsayable(), "Unsayable"),
        (TimeoutError("mine"), "TimeoutError: mine"),
    ],
)
async def test_what_a_tool_raises_is_an_output_that_names_the_type(error: Exception, text: str) -> None:
    assert await output(raising(error)) == text


async def test_a_cancellation_of_a_tools_own_is_an_error_like_any_other() -> None:
    @tool
    async def wait() -> str:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
        return "never"

    assert (await output(wait)).startswith("CancelledInsideError")


async def test_the_text_of_an_error_can_be_chosen() -> None:
    def sorry(ctx: ToolContext[Any], error: Exception) -> str:
        return f"{ctx.tool} is down: {error}"

    assert await output(raising(ValueError("x"), on_error=sorry)) == "give is down: x"


async def test_an_error_text_that_fails_itself_is_told_instead() -> None:
    def broken(ctx: ToolContext[Any], error: Exception) -> str:
        raise LookupError("no text")

    assert await output(raising(ValueError("x"), on_error=broken)) == "LookupError: no text"


async def test_a_tool_that_takes_too_long_is_an_error() -> None:
    @tool(timeout=0.01)
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    assert await output(hang) == "TimeoutError: hang did not finish within 0.01 seconds"


async def test_a_timeout_of_a_tools_own_is_told_as_it_is() -> None:
    @tool(timeout=60)
    async def fetch() -> str:
        raise TimeoutError("no answer from the shop")

    assert await output(fetch) == "TimeoutError: no answer from the shop"


async def test_a_blocking_tool_that_takes_too_long_is_an_error_too() -> None:
    let_go = threading.Event()

    @tool(timeout=0.01)
    def hang() -> str:
        let_go.wait()
        return "never"

    try:
        assert (await output(hang)).startswith("TimeoutError: hang did not finish")
    finally:
        let_go.set()


async def test_a_blocking_tool_runs_in_a_thread() -> None:
    @tool
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await output(where) == "false"


async def test_an_async_tool_runs_in_the_event_loop() -> None:
    @tool
    async def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await output(where) == "true"


async def test_a_function_that_returns_something_to_await_is_awaited() -> None:
    async def later() -> str:
        return "later"

    assert await output(Tool("give", lambda ctx, arguments: later())) == "later"


# -- arguments


async def test_arguments_come_as_the_types_of_the_parameters() -> None:
    lines = [{"what": "hat", "count": 2}, {"what": "shoe", "count": None}]
    arguments = {"customer": "li", "lines": lines, "speed": None, "limit": None}
    assert await output(order, arguments) == "li: 2 hat, 1 shoe, slow"


async def test_a_default_that_can_change_is_fresh_for_each_call() -> None:
    @tool
    def collect(found: list[str] = []) -> int:  # noqa: B006  # what is tested
        found.append("x")
        return len(found)

    calls = [function_call(collect, {"found": None}), function_call(collect, {"found": None})]
    assert outputs(await played(collect, calls=calls)) == ["1", "1"]


LOOKUP: dict[str, JSON] = {
    "type": "object",
    "properties": {"id": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}


def lookup() -> Tool[Any]:
    return Tool("lookup", lambda ctx, arguments: arguments, parameters=LOOKUP)


@tool
def find(id: str) -> str:
    return id


@pytest.mark.parametrize("one", [lookup(), find], ids=["by schema", "by function"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "Invalid arguments"),
        ("{}", "Invalid arguments"),
        ('{"id": "7"', "not valid JSON"),
        ("id=7", "not valid JSON"),
        ('["7"]', "must be a JSON object, not list"),
        ('{"id": 7}', "$.id"),
        ('{"id": null}', "$.id"),
        ('{"id": "7", "colour": "red"}', "colour"),
        ('{"id": ' + "[" * 100_000, "not valid JSON"),
    ],
)
async def test_bad_arguments_are_refused_with_what_to_do_and_the_run_goes_on(
    one: Tool[Any], arguments: str, says: str
) -> None:
    records = await played(one, calls=[function_call(one, arguments)])
    (text,) = outputs(records)
    assert says in text
    assert text.endswith(("Call it again with arguments that match its schema.", "JSON object.", "with one."))
    assert [r.event.reason for r in records if r.type == "call.refused"] == ["invalid_arguments"]  # type: ignore[attr-defined]
    assert not [record for record in records if record.type == "tool.called"]


class Even(Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("not even")
        if self.n == 4:
            raise KeyError("four")


async def test_a_check_of_ones_own_refuses_like_the_schema() -> None:
    @tool
    def halve(even: Even) -> int:
        return even.n // 2

    calls = [function_call(halve, {"even": {"n": n}}) for n in (2, 3, 4)]
    half, odd, four = outputs(await played(halve, calls=calls))
    assert half == "1"
    assert "not even" in odd
    assert "KeyError: 'four'" in four


async def test_a_schema_that_cannot_be_checked_refuses_the_call() -> None:
    schema: dict[str, JSON] = {**LOOKUP, "properties": {"id": {"type": "string", "pattern": "("}}}
    one = Tool("lookup", lambda ctx, arguments: arguments, parameters=schema)
    assert "could not be checked" in await output(one, {"id": "7"})


async def test_a_tool_by_its_schema_gets_plain_arguments() -> None:
    assert await output(lookup(), {"id": "7"}) == '{"id":"7"}'


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("no name", {}, "'no name' is no name of a tool"),
        ("", {}, "'' is no name of a tool"),
        ("x" * 65, {}, "is no name of a tool"),
        ("看", {}, "is no name of a tool"),
        ("x", {"parameters": {}}, "must be the schema of an object"),
        ("x", {"parameters": {"type": "array"}}, "must be the schema of an object"),
        ("x", {"parameters": {**LOOKUP, "required": []}}, "strict needs a closed schema"),
        (
            "x",
            {"parameters": {**LOOKUP, "additionalProperties": True}},
            "strict schemas cannot express the mapping",
        ),
        ("x", {"parameters": {**LOOKUP, "properties": {"id": {"type": "object"}}}}, r"mapping at \$\.id"),
    ],
)
def test_a_tool_that_no_provider_takes_is_an_error(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Tool(name, None, **options)


def test_an_open_schema_is_taken_where_strict_is_off() -> None:
    one = Tool("x", None, parameters={"type": "object", "properties": {"a": {}}}, strict=False)
    assert one.parameters == {"type": "object", "properties": {"a": {}}}


# -- several calls


async def test_several_calls_run_at_once() -> None:
    met = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        await met.wait()  # comes back only if all three are under way
        return "met"

    assert outputs(await played(meet, calls=[function_call(meet, {})] * 3)) == ["met"] * 3


async def test_blocking_calls_run_at_once_too() -> None:
    met = threading.Barrier(2)

    @tool
    def meet() -> str:
        met.wait(timeout=30)
        return "met"

    assert outputs(await played(meet, calls=[function_call(meet, {})] * 2)) == ["met"] * 2


async def test_outputs_stand_in_the_order_of_the_calls_however_they_came() -> None:
    second = asyncio.Event()

    @tool
    async def first_to_be_called() -> str:
        await second.wait()
        return "first"

    @tool
    async def last_to_be_called() -> str:
        second.set()
        return "last"

    calls = [function_call(first_to_be_called, {}), function_call(last_to_be_called, {})]
    records = await played(first_to_be_called, last_to_be_called, calls=calls)
    assert [r.event.output for r in records if isinstance(r.event, ToolReturned)] == ["last", "first"]
    assert outputs(records) == ["first", "last"]


async def test_a_call_is_recorded_before_it_starts() -> None:
    seen: list[str] = []
    async with Engine("memory:") as reader:
        log = reader.log

        @tool
        async def look(ctx: ToolContext[object]) -> str:
            seen.extend(record.type for record in await log.records(ctx.session))
            return "ok"

        engine = Engine(
            log, agents=[Agent("a", tools=[look])], model=ScriptedModel(function_call("look", {}), "done")
        )
        await engine.run("go", session="s")
    assert seen[-2:] == ["model.responded", "tool.called"]


# -- contexts


async def test_a_tool_is_told_who_runs_it_and_which_call_it_is() -> None:
    seen: list[ToolContext[object]] = []

    @tool
    async def look(ctx: ToolContext[object], what: str) -> str:
        seen.append(ctx)
        return what

    await played(look, calls=[function_call(look, {"what": "x"}, call_id="c1")], context="mine")
    (ctx,) = seen
    assert (ctx.session, ctx.agent, ctx.turn, ctx.tool, ctx.attempt) == ("s", "a", 1, "look", 1)
    assert (ctx.call, ctx.call_id, ctx.context) == (Ref(4, 0), "c1", "mine")
    assert ctx.idempotency_key == "s/4.0"
    assert ctx.run_id


async def test_what_a_tool_notes_is_recorded_with_its_result_and_seen_later() -> None:
    @tool
    async def write(ctx: ToolContext[object]) -> str:
        ctx.note("seen", {"n": 1})
        return f"{ctx.notes['seen']}"

    @tool
    async def read(ctx: ToolContext[object]) -> JSON:
        return ctx.notes.get("seen")

    with ScriptedModel(function_call(write, {}), function_call(read, {}), "done") as model:
        async with Engine("memory:", agents=[Agent("a", tools=[write, read])], model=model) as engine:
            await engine.run("go", session="s")
            records = await engine.log.records("s")
    assert outputs(records) == ["{'n': 1}", '{"n":1}']
    noted = next(record for record in records if isinstance(record.event, NoteAdded))
    assert records[noted.version].type == "tool.returned"


async def test_what_a_tool_noted_before_it_failed_is_kept() -> None:
    @tool
    async def write(ctx: ToolContext[object]) -> str:
        ctx.note("tried", True)
        raise OutOfStockError("no hats")

    records = await played(write, calls=[function_call(write, {})])
    assert [record.event.name for record in records if isinstance(record.event, NoteAdded)] == ["tried"]


async def test_a_note_that_json_cannot_hold_is_an_error_of_the_tool() -> None:
    @tool
    async def write(ctx: ToolContext[object]) -> str:
        ctx.note("bad", Opaque())
        return "never"

    assert "UsageError: note 'bad' cannot be stored as JSON" in await output(write)


async def test_the_arguments_are_recorded_as_the_model_gave_them() -> None:
    records = await played(lookup(), calls=[function_call("lookup", ' {"id": "7"} ')])
    assert [r.event.arguments for r in records if isinstance(r.event, ToolCalled)] == [{"id": "7"}]


async def test_a_plain_function_among_the_tools_is_a_tool() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    assert await output(add, {"a": 1, "b": 2}) == "3"
