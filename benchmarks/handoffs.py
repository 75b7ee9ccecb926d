"""What handoffs cost: with filters over many hops, and a nest at a late hop beside one at an early hop."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.measure import Row, at_most, compare, cpu
from msgspec import Raw

from batonlog.engine import Agent, Engine, Limits, handoff, tool
from batonlog.engine.testing import ScriptedModel, function_call
from batonlog.events import JSON, Ref, Rewrite
from batonlog.events.values import dump
from batonlog.projections import History, Item, drop_tools, keep_last, nest_history, own_view
from batonlog.projections.rewrite import operations, rewritten
from batonlog.projections.view import View

_CALLS = 3


@tool
async def look(q: str) -> str:
    """Look something up."""
    return f"result of {q}"


def hops(n: int, filters: Any) -> float:
    """CPU seconds of one run in which two agents hand over to each other, three calls before each."""
    turn = [function_call("look", {"q": f"q{k}"}) for k in range(_CALLS)]
    script: list[Any] = []
    for hop in range(n):
        script += [*([call] for call in turn), [function_call(f"transfer_to_{'ba'[hop % 2]}", {})]]
    agents = [
        Agent(name, tools=[look], handoffs=[handoff(other, input_filter=filters)])
        for name, other in ("ab", "ba")
    ]

    async def run() -> None:
        model = ScriptedModel(*script, "done")
        limits = Limits(turns=None, handoffs=None)
        async with Engine("memory:", agents=agents, model=model, limits=limits) as engine:
            assert (await engine.run("go")).final_output == "done"

    return cpu(lambda: asyncio.run(run()))


def nested(hops: int, text: str) -> tuple[View, int]:
    """A view that was nested at each of so many hops, and its version."""
    view, version = View(_said(1, text)), 10
    for _ in range(hops):
        rewrite = Rewrite(filter="", parameters={}, operations=tuple(_operations(view)))
        view = rewritten(view, rewrite, past=(), version=version, first=0).plus(_said(version + 1, text))
        version += 10
    return view, version


def _operations(view: View) -> list[JSON]:
    return operations(view, nest_history(History(view))) or []


def _said(version: int, text: str) -> list[Item]:
    values: Sequence[dict[str, JSON]] = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "go on"},
    ]
    return [Item(Ref(version + n, 0), Raw(dump(value))) for n, value in enumerate(values)]


def nest(view: View) -> float:
    """CPU seconds of one more nest: the filter, its rewrite as stored, and the view that it makes."""

    def once() -> None:
        for _ in range(200):
            rewrite = Rewrite(filter="", parameters={}, operations=tuple(_operations(view)))
            rewritten(view, rewrite, past=(), version=10_000, first=0)

    return cpu(once) / 200


def rows() -> Iterator[Row]:
    """Growth with the number of handoffs, and of a nest with what earlier hops said."""
    for name, filters in (
        ("drop_tools", drop_tools),
        ("keep_last(5)", keep_last(5)),
        ("own_view", own_view),
        ("nest_history", nest_history),
    ):
        hops(5, filters)
        ours, theirs, ratio = compare(lambda: hops(50, filters), lambda: hops(12, filters), repetitions=5)  # noqa: B023
        yield at_most(f"CPU of 50 handoffs against 12, {name}", ours, theirs, ratio, 4.6, "ms", 1e3)
    short, long = nested(20, "x" * 20)[0], nested(20, "x" * 2_000)[0]
    ours, theirs, ratio = compare(lambda: nest(long), lambda: nest(short), repetitions=5)
    yield at_most(
        "CPU of a nest at hop 21, texts of 2,000 characters against 20", ours, theirs, ratio, 2.0, "us", 1e6
    )
