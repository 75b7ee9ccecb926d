"""There is one path: plain, streamed and interrupted runs come to the same."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.laws.cast import engine_of
from tests.laws.checks import played, shown
from tests.laws.conversations import conversations, passings, scripts, turns
from tests.laws.depth import examples
from tests.laws.filterings import filterings
from tests.laws.play import before, go_on, take
from tests.laws.played import Played
from tests.laws.sayings import hosted, outputs_of, steps, unheard
from tests.laws.scripts import JSON, Script
from tests.laws.store import Store

from batonlog.engine import RunFailedError, SessionBusyError
from batonlog.events import (
    CallRefused,
    Event,
    HandoffMade,
    Record,
    RunCancelled,
    RunCompleted,
    ToolAbandoned,
    ToolReturned,
    UsageError,
)
from batonlog.projections import RunResult, model_history, session_history, usage


def ends(records: Sequence[Record]) -> list[JSON]:
    """How every call ended, in call order, and how every run did."""
    calls: list[tuple[Any, JSON]] = []
    runs: list[JSON] = []
    for record in records:
        match record.event:
            case ToolReturned() as event:
                calls.append((event.call, (record.type, event.error, event.output, event.shown)))
            case ToolAbandoned() | CallRefused() as event:
                calls.append((event.call, (record.type, event.reason, event.answer)))
            case HandoffMade() as event:
                calls.append((event.call, (record.type, event.source, event.target, event.acknowledgement)))
            case RunCompleted() | RunCancelled():
                runs.append(record.type)
            case _:
                pass
    return [*(end for _, end in sorted(calls, key=lambda pair: pair[0])), *runs]


def story(records: Sequence[Record]) -> JSON:
    """What a conversation came to, whatever happened on the way."""
    return {
        "session": session_history(records).data,
        "view": model_history(records).data,
        "agents": [item.agent for item in session_history(records)],
        "ends": ends(records),
        "usage": usage(records),
    }


# -- streamed


async def streamed(script: Script) -> Played:
    """Play a script with `stream` in place of `run`."""
    kept = Played(script)
    engine = engine_of(kept)

    async def run(says: Any, **options: Any) -> RunResult:
        stream = engine.stream(says, **options)
        seen = [update.version async for update in stream if isinstance(update, Record)]
        result = await stream.result()
        # All of the run, and before it the answers to what it supersedes.
        assert seen == list(range(seen[0], result.version + 1))
        assert seen[0] <= result.after + 1
        return result

    for turn in script.turns:
        await before(kept, turn)
        try:
            await take(kept, turn, run)
        except UsageError as error:
            kept.refused.append(str(error))
        except SessionBusyError:
            break
    await engine.close()
    return kept


@examples(30)
@given(scripts)
def test_a_streamed_run_comes_to_what_a_plain_one_does(script: Script) -> None:
    plain, records = played(script)
    other = asyncio.run(streamed(script))
    others = asyncio.run(other.records())
    assert [record.type for record in others] == [record.type for record in records]
    assert shown(session_history(others)) == shown(session_history(records))
    assert shown(model_history(others)) == shown(model_history(records))
    assert story(others) == story(records)
    assert other.effects == plain.effects


# -- interrupted


class Crash(BaseException):
    """The process is gone."""


class Mortal(Store):
    """A store at which the process dies: at certain appends, before or after they are stored."""

    def __init__(self, deaths: Sequence[int], *, after: bool) -> None:
        super().__init__()
        self.deaths = set(deaths)
        self.after = after
        self.appends = 0

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        self.appends += 1
        dies = self.appends in self.deaths
        if dies and not self.after:
            raise Crash
        done = await super().append(session, events, **options)
        if dies:
            raise Crash
        return done


async def interrupted(script: Script, deaths: Sequence[int], *, after: bool) -> Played:
    """Play a script with a process that dies at some appends, and is started again."""
    store = Mortal(deaths, after=after)
    kept = Played(script, store)
    engine_of(kept)
    for turn in script.turns:
        while True:
            begun = len(await kept.records())
            try:
                await before(kept, turn) if not begun else None
                await take(kept, turn, kept.engine.run)
                break
            except Crash:
                store.expire(kept.session)
                engine_of(kept)
                if await pick_up(kept, begun):
                    break
    await kept.engine.close()
    return kept


async def pick_up(kept: Played, begun: int) -> bool:
    """Take up what was interrupted, through any number of deaths. Whether the run had begun."""
    store = kept.store
    while True:
        records = await kept.records()
        if not any(record.type == "run.started" for record in records[begun:]):
            return False
        try:
            with suppress(RunFailedError):
                await kept.engine.resume(kept.session, context=kept)
            await go_on(kept, None)
            return True
        except Crash:
            store.expire(kept.session)
            engine_of(kept)


calm = conversations(
    steps(outputs_of(hosted, unheard), failing=False),
    turns=turns().map(lambda found: [type(turn)(turn.says, (), turn.limit) for turn in found]),
    passings=passings(st.one_of(filterings(odd=False), st.none()), effects=False),
    default=st.none(),
    tools=st.just(dict.fromkeys(range(3), ("look",))),
)
"""Conversations whose every effect is idempotent, and in which nobody else speaks."""


@examples(50)
@given(calm, st.lists(st.integers(1, 25), min_size=1, max_size=3), st.booleans())
def test_an_interrupted_run_comes_to_what_a_plain_one_does(
    script: Script, deaths: list[int], after: bool
) -> None:
    plain, records = played(script)
    other = asyncio.run(interrupted(script, deaths, after=after))
    others = asyncio.run(other.records())
    assert story(others) == story(records)
    numbers = {n for _, _, n, _ in plain.effects}
    assert {n for _, _, n, _ in other.effects} == numbers
    once = {key for *_, key in other.effects}
    assert len(once) == len(plain.effects)
