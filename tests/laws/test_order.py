"""The laws of order: outputs stand as the calls do, whoever finishes first, and nothing comes between."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.laws.cast import engine_of
from tests.laws.checks import played
from tests.laws.conversations import scripts
from tests.laws.depth import examples
from tests.laws.played import Played as Play
from tests.laws.sayings import called
from tests.laws.scripts import Script, Step
from tests.laws.store import append

from batonlog.events import InputAdded, ModelResponded, Ref, ToolReturned
from batonlog.projections import Item, model_history, session_history
from batonlog.projections.items import OURS
from batonlog.projections.placement import Placement, place


def calls_of(items: Sequence[Item], version: int) -> list[Ref]:
    return [item.ref for item in items if item.ref and item.ref.version == version and item.type in OURS]


@examples(25)
@given(scripts)
def test_outputs_stand_in_call_order_in_every_history(script: Script) -> None:
    _, records = played(script)
    for rewrites in (True, False):
        state = Placement(rewrites=rewrites)
        for record in records:
            state = place(state, record.version, record.event)
            outputs = [item.answers for item in state.tail]
            assert outputs == sorted(outputs, key=str) or outputs == sorted(
                ref for ref in outputs if ref is not None
            )
        if not rewrites:
            answers = [item.answers for item in state.items() if item.answers is not None]
            assert answers == sorted(answers)


@examples(25)
@given(scripts)
def test_a_message_never_splits_a_call_from_its_output(script: Script) -> None:
    _, records = played(script)
    for n in range(1, len(records) + 1):
        items = list(session_history(records, at=n))
        for record in records[:n]:
            if isinstance(record.event, ModelResponded):
                check_block(items, record.version)


def check_block(items: Sequence[Item], version: int) -> None:
    """The outputs of a response stand right behind it, in call order, with nothing in between."""
    calls = calls_of(items, version)
    answered = {item.answers for item in items}
    wanted = [ref for ref in calls if ref in answered]
    last = max(n for n, item in enumerate(items) if item.ref and item.ref.version == version) if calls else 0
    found = [item.answers for item in items[last + 1 : last + 1 + len(wanted)]]
    assert not calls or found == wanted


@examples(25)
@given(
    st.permutations(range(5)),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(1, 5),
)
def test_every_order_of_completion_gives_the_same_histories(
    order: list[int], interruptions: list[int], count: int
) -> None:
    made = [called(f"c{n % 2}", "look", f'{{"n": {n}}}') for n in range(count)]
    script = Script(steps=[Step(output=made)], outputs=[f"out {n}" for n in range(count)])
    items, views = asyncio.run(finish_in_order(script, order, interruptions))
    texts = [item.text for item in items if item.type == "function_call_output"]
    assert texts == [f"out {n}" for n in range(count)]
    said = sorted(item.text for item in items if item.role == "user")
    assert said == sorted(["hi", *(f"between {n}" for n, _ in enumerate(interruptions))])
    assert views == items


async def finish_in_order(
    script: Script, order: Sequence[int], interruptions: Sequence[int]
) -> tuple[list[Item], list[Item]]:
    """Let tools return in the order given, with messages of the user in between."""
    play = Play(script)
    engine = engine_of(play)
    doors = [asyncio.Event() for _ in script.steps[0].output]
    order = [n for n in order if n < len(doors)]

    async def pause() -> None:
        n = play.effects[-1][2] if play.effects else -1
        if n >= 0:
            await doors[n].wait()

    play.pause = pause  # type: ignore[method-assign]

    async def open_doors() -> None:
        while len(play.effects) < len(script.steps[0].output):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        for nth, n in enumerate(order):
            for k, where in enumerate(interruptions):
                if where % len(order) == nth:
                    text = {"role": "user", "content": f"between {k}"}
                    await append(play.store, play.session, InputAdded(input=(text,), goes_to="turn", by="u"))
            doors[n].set()
            while not any(  # noqa: ASYNC110  # nobody tells
                isinstance(record.event, ToolReturned) and record.event.call.index == n
                for record in await play.records()
            ):
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(engine.run("hi", session=play.session, context=play))
        group.create_task(open_doors())
    await engine.close()
    records = await play.records()
    return list(session_history(records)), list(model_history(records))
