"""Handoffs as they run: in which order, what is recorded, and what the target is shown."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
from msgspec import Struct

from batonlog.engine import (
    Agent,
    Engine,
    Handoff,
    ModelRequest,
    RunContext,
    RunFailedError,
    RunResult,
    ToolContext,
    handoff,
    tool,
)
from batonlog.engine.testing import ScriptedModel, Step, assistant_message, function_call
from batonlog.events import (
    JSON,
    CallRefused,
    HandoffFiltered,
    HandoffMade,
    Limits,
    MemoryLog,
    NoteAdded,
    Record,
    Ref,
    RunFailed,
)
from batonlog.projections import (
    FilterInput,
    FilterOutput,
    History,
    Item,
    check_legal,
    drop_tools,
    keep_last,
    messages_only,
    model_history,
    session_history,
)


class Played:
    """What came of a run."""

    def __init__(self, result: RunResult, records: tuple[Record, ...], requests: list[ModelRequest]) -> None:
        self.result = result
        self.records = records
        self.requests = requests

    @property
    def types(self) -> list[str]:
        return [record.type for record in self.records]

    def of(self, type_: type[Any]) -> list[Any]:
        return [record.event for record in self.records if isinstance(record.event, type_)]

    @property
    def shown(self) -> list[str]:
        """What the last request showed."""
        return [one_word(item) for item in self.requests[-1].input]

    @property
    def said(self) -> list[str]:
        return [one_word(item) for item in session_history(self.records)]


def one_word(item: Item) -> str:
    match item.type:
        case "function_call":
            return f"call {item.data['name']}"
        case "function_call_output":
            return f"output {item.text}"
        case _:
            return f"{item.role} {item.text}"


@tool
def look() -> str:
    return "seen"


async def play(*handoffs: Any, script: list[Step], context: object = None, **options: Any) -> Played:
    """Run agent `a` with these handoffs; there are `b` and `c` too."""
    agents = [Agent("a", tools=[look], handoffs=handoffs), Agent("b", tools=[look]), Agent("c")]
    with ScriptedModel(*script) as model:
        async with Engine("memory:", agents=agents, model=model, **options) as engine:
            result = await engine.run("go", session="s", context=context)
            return Played(result, await engine.log.records("s"), list(model.requests))


def to(target: str, arguments: Mapping[str, JSON] | str = "{}") -> dict[str, JSON]:
    return function_call(f"transfer_to_{target}", arguments)


# -- the switch


async def test_a_handoff_passes_control() -> None:
    played = await play("b", script=[to("b"), "hi"])
    assert (played.result.agent, played.result.final_output) == ("b", "hi")
    assert [request.agent for request in played.requests] == ["a", "b"]


async def test_a_handoff_is_recorded_with_what_was_given() -> None:
    played = await play(handoff("b", input_type=Why), script=[to("b", {"why": "money"}), "hi"])
    (made,) = played.of(HandoffMade)
    assert (made.call, made.source, made.target, made.arguments) == (Ref(4, 0), "a", "b", {"why": "money"})


@pytest.mark.parametrize(
    ("given", "said"),
    [(None, '{"assistant":"b"}'), ("Transfer successful", "Transfer successful"), ("", "")],
)
async def test_the_acknowledgement_can_be_chosen(given: str | None, said: str) -> None:
    played = await play(handoff("b", acknowledgement=given), script=[to("b"), "hi"])
    assert played.said[2] == f"output {said}"


async def test_ordinary_calls_of_the_same_answer_run_first() -> None:
    played = await play("b", script=[[to("b"), function_call(look, {})], "hi"])
    assert played.types[3:8] == [
        "model.responded",
        "tool.called",
        "tool.returned",
        "handoff.made",
        "agent.resolved",
    ]
    assert played.said[1:5] == ["call transfer_to_b", "call look", 'output {"assistant":"b"}', "output seen"]


async def test_a_handoff_beats_a_final_message() -> None:
    played = await play("b", script=[[assistant_message("Bye."), to("b")], "hi"])
    assert (played.result.agent, played.result.final_output) == ("b", "hi")


async def test_turns_are_counted_across_handoffs() -> None:
    played = await play("b", script=[to("b"), "hi"])
    assert [request.turn for request in played.requests] == [1, 2]


async def test_the_switch_and_the_rewrite_are_one_append() -> None:
    batches: list[list[str]] = []

    class Watched(MemoryLog):
        async def append(self, session: str, events: Any, **options: Any) -> Any:
            batches.append([event.type for event in events])
            return await super().append(session, events, **options)

    agents = [Agent("a", handoffs=[handoff("b", input_filter=messages_only)]), Agent("b")]
    engine = Engine(Watched(), agents=agents, model=ScriptedModel(to("b"), "hi"))
    await engine.run("go")
    (switch,) = [batch for batch in batches if "handoff.made" in batch]
    at = switch.index("handoff.filtered")
    assert switch[at : at + 2] == ["handoff.filtered", "handoff.made"]


# -- the target


class Why(Struct):
    why: str


class Request(Struct):
    urgency: Literal["high", "normal"]


def by_urgency(ctx: ToolContext[object], request: Request) -> str:
    return "b" if request.urgency == "high" else "c"


async def by_urgency_later(ctx: ToolContext[object], request: Request) -> str:
    return by_urgency(ctx, request)


@pytest.mark.parametrize("on_invoke", [by_urgency, by_urgency_later])
@pytest.mark.parametrize(("urgency", "target"), [("high", "b"), ("normal", "c")])
async def test_the_target_is_picked_from_what_the_model_gave(
    on_invoke: Any, urgency: str, target: str
) -> None:
    route: Handoff[object] = handoff("b", "c", on_invoke=on_invoke, input_type=Request, tool_name="route")
    played = await play(route, script=[function_call("route", {"urgency": urgency}), "hi"])
    assert played.result.agent == target


async def test_the_target_may_be_picked_as_an_agent() -> None:
    b = Agent("b")
    route = handoff(b, "c", on_invoke=lambda ctx: b, tool_name="route")
    agents = [Agent("a", handoffs=[route]), b, Agent("c")]
    model = ScriptedModel(function_call("route", {}), "hi")
    async with Engine("memory:", agents=agents, model=model) as engine:
        assert (await engine.run("go")).agent == "b"


async def test_the_target_is_picked_once_for_a_handoff() -> None:
    asked: list[int] = []

    def pick(ctx: ToolContext[object]) -> str:
        asked.append(ctx.attempt)
        return "b"

    await play(handoff("b", on_invoke=pick), script=[to("b"), "hi"])
    assert asked == [1]


def picks(target: Any) -> Callable[[ToolContext[object]], Any]:
    return lambda ctx: target


def picks_badly(ctx: ToolContext[object]) -> str:
    raise LookupError("nobody is in")


@pytest.mark.parametrize(
    ("on_invoke", "reason", "answer"),
    [
        (picks_badly, "on_invoke", "The transfer was not made: LookupError: nobody is in"),
        (picks("boss"), "unknown_target", "The transfer was not made: there is no agent boss."),
        (picks(None), "unknown_target", "The transfer was not made: there is no agent None."),
        (picks("a"), "same_target", "Not made: a holds the conversation already. Go on with it."),
    ],
)
async def test_a_transfer_without_a_target_is_refused_with_an_answer(
    on_invoke: Any, reason: str, answer: str
) -> None:
    played = await play(handoff("b", on_invoke=on_invoke), script=[to("b"), "alone"])
    (refused,) = played.of(CallRefused)
    assert (refused.reason, refused.answer) == (reason, answer)
    assert played.result.agent == "a"
    assert played.shown[-1] == f"output {answer}"


async def test_a_handoff_to_oneself_is_refused() -> None:
    played = await play("a", script=[to("a"), "alone"])
    assert played.of(CallRefused)[0].reason == "same_target"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "missing required field `why`"),
        ('{"why": ', "not valid JSON"),
        ("because", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"why": 7}', "Expected `str`, got `int`"),
        ('{"why": ' + "[" * 100_000, "not valid JSON"),
    ],
)
async def test_bad_arguments_of_a_handoff_are_refused_and_the_run_goes_on(arguments: str, says: str) -> None:
    played = await play(
        handoff("b", input_type=Why), script=[to("b", arguments), to("b", {"why": "x"}), "hi"]
    )
    (refused,) = played.of(CallRefused)
    assert refused.reason == "invalid_arguments"
    assert says in refused.answer
    assert played.result.agent == "b"


@pytest.mark.parametrize("arguments", ["", "{}", "null", '{"extra": 1}'])
async def test_a_handoff_without_an_input_type_takes_any_arguments(arguments: str) -> None:
    played = await play("b", script=[to("b", arguments), "hi"])
    assert played.result.agent == "b"


# -- several transfers in one answer


async def test_the_first_of_several_transfers_is_made() -> None:
    played = await play("b", "c", script=[[to("c"), to("b")], "hi"])
    assert played.result.agent == "c"
    (refused,) = played.of(CallRefused)
    assert (refused.reason, refused.call) == ("not_first", Ref(4, 1))


async def test_a_transfer_that_was_not_taken_is_said_but_not_shown_to_the_target() -> None:
    played = await play("b", "c", script=[[to("c"), to("b")], "hi"])
    assert played.said == [
        "user go",
        "call transfer_to_c",
        "call transfer_to_b",
        'output {"assistant":"c"}',
        "output Not made: another transfer of the same answer came first.",
        "assistant hi",
    ]
    assert played.shown == ["user go", "call transfer_to_c", 'output {"assistant":"c"}']


async def test_transfers_that_were_not_taken_are_dropped_without_a_filter_too() -> None:
    played = await play(handoff("b", input_filter=None), "c", script=[[to("b"), to("c")], "hi"])
    assert played.shown == ["user go", "call transfer_to_b", 'output {"assistant":"b"}']
    assert played.of(HandoffFiltered)[0].rewrite.filter == "drop_untaken_transfers"


async def test_a_transfer_that_is_refused_gives_way_to_the_next() -> None:
    played = await play(handoff("b", on_invoke=picks_badly), "c", script=[[to("b"), to("c")], "hi"])
    assert played.result.agent == "c"
    assert played.shown == ["user go", "call transfer_to_c", 'output {"assistant":"c"}']


async def test_a_filter_sees_the_transfers_that_were_not_taken() -> None:
    seen: list[list[str]] = []

    def spy(data: FilterInput[object]) -> FilterOutput:
        seen.append([one_word(item) for item in data])
        return data

    await play(handoff("b", input_filter=spy), "c", script=[[to("b"), to("c")], "hi"])
    assert seen == [
        [
            "user go",
            "call transfer_to_b",
            "call transfer_to_c",
            'output {"assistant":"b"}',
            "output Not made: another transfer of the same answer came first.",
        ]
    ]


# -- callbacks


async def test_callbacks_come_in_their_order_with_their_context() -> None:
    order: list[tuple[object, ...]] = []

    def note(name: str) -> Callable[..., Any]:
        def called(ctx: ToolContext[str], *given: object) -> Any:
            order.append((name, ctx.context, ctx.tool, ctx.call, ctx.agent, *given))
            return {"gate": False, "on_invoke": "b"}.get(name)

        return called

    def filtered(data: FilterInput[str]) -> FilterOutput:
        order.append(("filter", data.context, data.arguments))
        return data

    one: Handoff[Any] = handoff(
        "b",
        "c",
        input_type=Why,
        needs_approval=note("gate"),
        on_invoke=note("on_invoke"),
        on_handoff=note("on_handoff"),
        input_filter=filtered,
        tool_name="route",
    )
    await play(one, script=[function_call("route", {"why": "x"}), "hi"], context="mine")
    given = ("mine", "route", Ref(4, 0), "a", Why("x"))
    assert order == [
        ("gate", *given),
        ("on_invoke", *given),
        ("on_handoff", *given),
        ("filter", "mine", Why("x")),
    ]


async def test_without_an_input_type_callbacks_get_the_context_alone() -> None:
    given: list[tuple[object, ...]] = []

    def callback(*args: object) -> None:
        given.append(args)

    await play(handoff("b", on_handoff=callback), script=[to("b"), "hi"])
    assert [len(args) for args in given] == [1]


async def test_a_callback_is_an_effect_recorded_before_it_runs() -> None:
    async def callback(ctx: ToolContext[object]) -> None:
        ctx.note("ran", True)

    played = await play(handoff("b", on_handoff=callback), script=[to("b"), "hi"])
    at = played.types.index("tool.called")
    assert played.types[at : at + 3] == ["tool.called", "note.added", "handoff.made"]


async def test_what_callbacks_note_is_recorded_with_the_handoff_and_seen_by_the_target() -> None:
    async def fetch(ctx: ToolContext[object]) -> None:
        ctx.note("orders", ["o-1"])

    def instructions(ctx: RunContext[object]) -> str:
        return f"Orders: {ctx.notes.get('orders')}"

    b = Agent("b", instructions=instructions)
    model = ScriptedModel(function_call(b, {}), "hi")
    agents = [Agent("a", handoffs=[handoff(b, on_handoff=fetch)])]
    async with Engine("memory:", agents=agents, model=model) as engine:
        await engine.run("go", session="s")
        records = await engine.log.records("s")
    assert model.requests[1].instructions == "Orders: ['o-1']"
    assert [record.event.name for record in records if isinstance(record.event, NoteAdded)] == ["orders"]


async def test_a_filter_works_on_what_a_callback_left_in_the_context() -> None:
    def fetch(ctx: ToolContext[list[str]]) -> None:
        ctx.context.append("o-1")

    def with_orders(data: FilterInput[list[str]]) -> FilterOutput:
        yield from messages_only(data)
        yield {"role": "developer", "content": f"Orders: {data.context}"}

    one: Handoff[Any] = handoff("b", on_handoff=fetch, input_filter=with_orders)
    played = await play(one, script=[to("b"), "hi"], context=[])
    assert played.shown == ["user go", "developer Orders: ['o-1']"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_callback_that_raises_refuses_the_transfer(is_async: bool) -> None:
    def fetch(ctx: ToolContext[object]) -> None:
        raise LookupError("no orders")

    async def fetch_later(ctx: ToolContext[object]) -> None:
        fetch(ctx)

    callback = fetch_later if is_async else fetch
    played = await play(handoff("b", on_handoff=callback), script=[to("b"), "alone"])
    assert played.result.agent == "a"
    assert not played.of(HandoffMade)
    assert played.shown[-1] == "output The transfer was not made: LookupError: no orders"


async def test_after_a_callback_that_raised_the_next_transfer_has_its_turn() -> None:
    def fetch(ctx: ToolContext[object]) -> None:
        raise LookupError("no orders")

    played = await play(handoff("b", on_handoff=fetch), "c", script=[[to("b"), to("c")], "hi"])
    assert played.result.agent == "c"


# -- filters


async def test_the_target_is_shown_what_the_filter_left_and_the_session_keeps_all() -> None:
    played = await play(
        handoff("b", input_filter=messages_only),
        script=[[assistant_message("One moment."), function_call(look, {})], to("b"), "hi"],
    )
    assert played.shown == ["user go", "assistant One moment."]
    assert len(played.said) == 7
    assert [one_word(item) for item in model_history(played.records)] == [*played.shown, "assistant hi"]


async def test_the_filtered_view_holds_in_later_runs_and_without_the_filter() -> None:
    log = MemoryLog()
    first = [Agent("a", handoffs=[handoff("b", input_filter=messages_only)]), Agent("b")]
    await Engine(log, agents=first, model=ScriptedModel(to("b"), "hi")).run("go", session="s")
    model = ScriptedModel("again")
    await Engine(log, agents=[Agent("b")], model=model).run("go on", session="s")
    assert [one_word(item) for item in model.requests[0].input] == ["user go", "assistant hi", "user go on"]


async def test_the_engines_filter_is_the_default() -> None:
    played = await play("b", script=[to("b"), "hi"], handoff_filter=messages_only)
    assert played.shown == ["user go"]
    assert played.of(HandoffFiltered)[0].rewrite.filter == "messages_only"


async def test_a_handoffs_own_filter_counts_over_the_engines() -> None:
    one: Handoff[object] = handoff("b", input_filter=keep_last(2))
    played = await play(one, script=[to("b"), "hi"], handoff_filter=messages_only)
    assert played.shown == ["call transfer_to_b", 'output {"assistant":"b"}']


async def test_none_shows_everything_even_if_the_engine_has_a_default() -> None:
    played = await play(handoff("b", input_filter=None), script=[to("b"), "hi"], handoff_filter=messages_only)
    assert len(played.shown) == 3
    assert not played.of(HandoffFiltered)


def identity(data: History) -> FilterOutput:
    return list(data)


@pytest.mark.parametrize(
    "one", [identity, lambda data: data, lambda data: (item for item in data), keep_last(9)]
)
async def test_an_identity_filter_makes_no_event(one: Any) -> None:
    played = await play(handoff("b", input_filter=one), script=[to("b"), "hi"])
    assert not played.of(HandoffFiltered)
    assert len(played.shown) == 3


async def later(data: FilterInput[object]) -> History:
    return messages_only(data)


def about(data: FilterInput[object], *, words: tuple[str, ...]) -> FilterOutput:
    return [item for item in data if any(word in item.text for word in words)]


class Last(Struct, frozen=True):
    n: int

    def __call__(self, data: FilterInput[object]) -> History:
        return data[-self.n :]


@dataclass(frozen=True)
class First:
    n: int

    async def __call__(self, data: FilterInput[object]) -> History:
        return data[: self.n]


@pytest.mark.parametrize(
    ("filters", "name", "parameters", "shown"),
    [
        (messages_only, "messages_only", {}, ["user go"]),
        (later, "later", {}, ["user go"]),
        (partial(about, words=("go", "price")), "about", {"words": ["go", "price"]}, ["user go"]),
        (Last(2), "Last", {"n": 2}, ["call transfer_to_b", 'output {"assistant":"b"}']),
        (First(1), "First", {"n": 1}, ["user go"]),
        (lambda data: data[:1], "<lambda>", {}, ["user go"]),
        (
            [drop_tools, First(1)],
            "drop_tools + First",
            {
                "filters": [
                    {"filter": "drop_tools", "parameters": {}},
                    {"filter": "First", "parameters": {"n": 1}},
                ]
            },
            ["user go"],
        ),
    ],
)
async def test_a_filter_is_recorded_with_its_parameters(
    filters: Any, name: str, parameters: JSON, shown: list[str]
) -> None:
    played = await play(handoff("b", input_filter=filters), script=[to("b"), "hi"])
    (filtered,) = played.of(HandoffFiltered)
    assert (filtered.rewrite.filter, filtered.rewrite.parameters) == (name, parameters)
    assert played.shown == shown


async def test_a_filter_is_told_why_and_for_whom() -> None:
    seen: list[FilterInput[str]] = []

    def spy(data: FilterInput[str]) -> FilterOutput:
        seen.append(data)
        return data

    one: Handoff[Any] = handoff("b", input_type=Why, input_filter=spy)
    await play(one, script=[function_call(look, {}), to("b", {"why": "x"}), "hi"], context="mine")
    (data,) = seen
    assert (data.cause, data.session, data.source, data.target) == ("handoff", "s", "a", "b")
    assert (data.arguments, data.context, data.own) == (Why("x"), "mine", None)
    assert [one_word(item) for item in data.earlier] == ["user go", "call look", "output seen"]
    assert [one_word(item) for item in data.latest] == ["call transfer_to_b", 'output {"assistant":"b"}']


async def test_a_filter_may_give_back_the_targets_own_view() -> None:
    def own(data: FilterInput[object]) -> FilterOutput:
        return [*(data.own or ()), *data.latest] if data.own else data

    agents = [
        Agent("a", handoffs=[handoff("b", input_filter=messages_only)], tools=[look]),
        Agent("b", handoffs=[handoff("a", input_filter=own)]),
    ]
    model = ScriptedModel(function_call(look, {}), to("b"), to("a"), "back")
    async with Engine("memory:", agents=agents, model=model) as engine:
        await engine.run("go", session="s")
    assert [one_word(item) for item in model.requests[-1].input] == [
        "user go",
        "call look",
        "output seen",
        "call transfer_to_b",
        'output {"assistant":"b"}',
        "call transfer_to_a",
        'output {"assistant":"a"}',
    ]


async def test_a_message_that_comes_in_meanwhile_is_not_filtered_away() -> None:
    log = MemoryLog()
    seen: list[list[str]] = []

    def spy(data: FilterInput[object]) -> FilterOutput:
        seen.append([one_word(item) for item in data])
        return data[:1]

    @tool
    async def hurry(ctx: ToolContext[object]) -> str:
        await Engine(log).send("hurry up", session=ctx.session)
        return "ok"

    agents = [Agent("a", tools=[hurry], handoffs=[handoff("b", input_filter=spy)]), Agent("b")]
    model = ScriptedModel([function_call(hurry, {}), to("b")], "hi")
    await Engine(log, agents=agents, model=model).run("go", session="s")
    assert "user hurry up" not in seen[0]
    assert [one_word(item) for item in model.requests[-1].input] == ["user go", "user hurry up"]


async def test_what_a_filter_leaves_is_mended_before_it_is_sent() -> None:
    def without_outputs(data: FilterInput[object]) -> FilterOutput:
        return [item for item in data if item.type != "function_call_output"]

    played = await play(handoff("b", input_filter=without_outputs), script=[to("b"), "hi"])
    assert played.types.count("history.rewritten") == 1
    assert not check_legal(played.requests[-1].input)


# -- filters that fail

GOOD: Any = {"role": "user", "content": "x"}


def raises(data: History) -> FilterOutput:
    raise LookupError("no pattern")


def raises_half_way(data: History) -> Iterator[Item]:
    yield data[0]
    raise LookupError("half way")


async def raises_later(data: History) -> FilterOutput:
    raise LookupError("later")


async def yields(data: History) -> AsyncIterator[Item]:
    yield data[0]


def takes_elsewhere(data: History) -> FilterOutput:
    return [GOOD, OTHER[0]]


OTHER: list[Item] = []
"""An item of another session."""


def only_outputs(data: History) -> FilterOutput:
    return [item for item in data if item.type == "function_call_output"]


BROKEN: list[tuple[Any, type[Exception] | None, str]] = [
    (raises, LookupError, "no pattern"),
    (raises_half_way, LookupError, "half way"),
    (raises_later, LookupError, "later"),
    (yields, None, "filter yields returned async_generator, which is no history"),
    (lambda data: "text", None, "filter <lambda> returned str, which is no history"),
    (lambda data: None, None, "filter <lambda> returned NoneType, which is no history"),
    (lambda data: {"role": "user"}, None, "filter <lambda> returned dict, which is no history"),
    (lambda data: [{"role": "robot", "content": "x"}], None, "not 'robot'"),
    (lambda data: ["text"], None, "str is no item"),
    (lambda data: [], None, "left nothing to show"),
    (lambda data: [data[0], data[0]], None, "item 1.0 appears twice"),
    (takes_elsewhere, None, "another session"),
    ([messages_only, raises], LookupError, "no pattern"),
    (only_outputs, None, "nothing"),
]


@pytest.fixture(autouse=True)
async def _other_session() -> None:
    async with Engine("memory:", agents=[Agent("a")], model=ScriptedModel("theirs")) as engine:
        await engine.run("other", session="other")
        OTHER[:] = session_history(await engine.log.records("other"))[1:]


@pytest.mark.parametrize(("broken", "cause", "says"), BROKEN)
@pytest.mark.parametrize("called_back", [False, True], ids=["alone", "with a callback"])
async def test_a_filter_that_fails_fails_the_run_whole_and_resume_tries_it_again(
    broken: Any, cause: type[Exception] | None, says: str, called_back: bool
) -> None:
    log, calls = MemoryLog(), 0

    def callback(ctx: ToolContext[object]) -> None:
        nonlocal calls
        calls += 1
        ctx.note("called", calls)

    def engine(one: Any, *script: Step) -> Engine[object]:
        on_handoff = callback if called_back else None
        made: Handoff[object] = handoff("b", input_filter=one, on_handoff=on_handoff)
        return Engine(log, agents=[Agent("a", handoffs=[made]), Agent("b")], model=ScriptedModel(*script))

    with pytest.raises(RunFailedError, match=says) as caught:
        await engine(broken, [assistant_message("Wait."), to("b")]).run("go", session="s")
    assert caught.value.session == "s"
    assert caught.value.__cause__ is not None
    assert cause is None or isinstance(caught.value.__cause__, cause)
    failed = await log.records("s")
    assert isinstance(failed[-1].event, RunFailed)
    assert failed[-1].event.kind == "handoff.filter"
    assert not [record for record in failed if record.type in ("handoff.made", "handoff.filtered")]

    with pytest.raises(RunFailedError, match=says):  # it is tried again, and fails again
        await engine(broken).resume("s")

    model = ScriptedModel("hi")
    made: Handoff[object] = handoff(
        "b", input_filter=messages_only, on_handoff=callback if called_back else None
    )
    mended = Engine(log, agents=[Agent("a", handoffs=[made]), Agent("b")], model=model)
    assert (await mended.resume("s")).final_output == "hi"
    assert calls == called_back  # the callback had returned: it is not repeated
    assert [one_word(item) for item in model.requests[0].input] == ["user go", "assistant Wait."]
    assert (await mended.resume("s")).final_output == "hi"


async def test_after_a_filter_that_failed_a_new_run_closes_what_is_open() -> None:
    log = MemoryLog()
    agents = [Agent("a", handoffs=[handoff("b", input_filter=raises)]), Agent("b")]
    engine = Engine(log, agents=agents, model=ScriptedModel(to("b"), "alone"))
    with pytest.raises(RunFailedError):
        await engine.run("go", session="s")
    result = await engine.run("never mind", session="s")
    assert (result.agent, result.final_output) == ("a", "alone")
    assert not check_legal(session_history(await log.records("s")))


async def test_replay_calls_no_filter() -> None:
    calls = 0

    def counted(data: History) -> FilterOutput:
        nonlocal calls
        calls += 1
        return data[:1]

    played = await play(handoff("b", input_filter=counted), script=[to("b"), "hi"])
    model_history(played.records)
    assert calls == 1


# -- gated


async def test_a_gated_handoff_waits_for_a_persons_word() -> None:
    log = MemoryLog()
    called: list[str] = []
    one: Handoff[object] = handoff(
        "b", needs_approval=True, on_handoff=lambda ctx: called.append("x"), input_filter=messages_only
    )
    agents = [Agent("a", tools=[look], handoffs=[one]), Agent("b")]
    model = ScriptedModel([function_call(look, {}), to("b")], "hi")
    engine = Engine(log, agents=agents, model=model)
    paused = await engine.run("go", session="s")
    (waiting,) = paused.open_calls
    assert (paused.reason, waiting.tool, waiting.why, called) == ("approval", "transfer_to_b", "approval", [])
    await Engine(log).approve("s", waiting.call, by="anna")
    result = await engine.resume("s")
    assert (result.agent, result.final_output, called) == ("b", "hi", ["x"])


async def test_a_gated_handoff_that_is_refused_gives_way_to_the_next() -> None:
    log = MemoryLog()
    agents = [Agent("a", handoffs=[handoff("b", needs_approval=True), "c"]), Agent("b"), Agent("c")]
    engine = Engine(log, agents=agents, model=ScriptedModel([to("b"), to("c")], "hi"))
    paused = await engine.run("go", session="s")
    await engine.reject("s", paused.open_calls[0].call, by="anna", reason="not them")
    assert (await engine.resume("s")).agent == "c"


@pytest.mark.parametrize(("answer", "status"), [(True, "paused"), (False, "completed")])
async def test_a_gate_that_is_a_function_decides_by_what_was_given(answer: bool, status: str) -> None:
    async def gate(ctx: ToolContext[object], why: Why) -> bool:
        return answer and why.why == "money"

    agents = [Agent("a", handoffs=[handoff("b", input_type=Why, needs_approval=gate)]), Agent("b")]
    model = ScriptedModel(to("b", {"why": "money"}), "hi")
    async with Engine("memory:", agents=agents, model=model) as engine:
        assert (await engine.run("go")).status == status


# -- limits and deploys


async def test_the_limit_of_handoffs_pauses_the_run() -> None:
    agents = [Agent("a", handoffs=["b"]), Agent("b", handoffs=["a"])]
    model = ScriptedModel(to("b"), to("a"), "back")
    async with Engine("memory:", agents=agents, model=model, limits=Limits(handoffs=1)) as engine:
        paused = await engine.run("go", session="s")
        assert (paused.status, paused.reason, paused.agent) == ("paused", "handoffs: 1 of 1", "b")
        assert (await engine.resume("s")).status == "paused"  # nobody has raised it
        assert (await engine.resume("s", limits=Limits(handoffs=2))).final_output == "back"


async def test_a_handoff_that_this_process_lacks_is_answered() -> None:
    log = MemoryLog()
    one: Handoff[object] = handoff("b", needs_approval=True)
    engine = Engine(log, agents=[Agent("a", handoffs=[one]), Agent("b")], model=ScriptedModel(to("b")))
    paused = await engine.run("go", session="s")
    await engine.approve("s", paused.open_calls[0].call, by="anna")
    model = ScriptedModel("alone")
    result = await Engine(log, agents=[Agent("a")], model=model).resume("s")
    assert result.final_output == "alone"
    assert model.requests[0].input[-1].text == "transfer_to_b is not available any more. Go on without it."
