"""The laws of forks: the same past, a future of its own, and nothing done twice."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.laws.checks import Provider, shown, views
from tests.laws.depth import examples
from tests.laws.play import Played, engine_of, go_on, play, take
from tests.laws.scripts import Script, Turn, scripts

from batonlog.events import ModelRequested, Record
from batonlog.events.lifecycle import CALLED, DECIDED, IDLE
from batonlog.projections import model_history, session_history
from batonlog.projections.legality import violations
from batonlog.projections.state import run_state


async def forked(script: Script, part: float) -> tuple[Played, tuple[Record, ...], tuple[Record, ...], int]:
    kept = await play(script)
    records = await kept.records()
    at = 1 + int(part * (len(records) - 1))
    await kept.engine.fork(kept.session, at=at, into="fork")
    return kept, records, await kept.store.records("fork"), at


parts = st.floats(0, 1)


@examples(80)
@given(scripts, parts)
def test_a_fork_has_the_past_of_its_parent(script: Script, part: float) -> None:
    _, records, fork, at = asyncio.run(forked(script, part))
    assert len(fork) == at + 1
    assert [record.hash for record in fork[:at]] == [record.hash for record in records[:at]]
    assert [record.payload for record in fork[:at]] == [record.payload for record in records[:at]]
    assert shown(session_history(fork)) == shown(session_history(records, at=at))
    assert shown(model_history(fork)) == shown(model_history(records, at=at))


@examples(80)
@given(scripts, parts)
def test_a_fork_leaves_its_parent_alone(script: Script, part: float) -> None:
    kept, records, _, _ = asyncio.run(forked(script, part))
    assert asyncio.run(kept.records()) == records


@examples(80)
@given(scripts, parts)
def test_nothing_is_in_flight_or_decided_in_a_fork(script: Script, part: float) -> None:
    _, _, fork, _ = asyncio.run(forked(script, part))
    state = run_state(fork)
    assert state.request is None
    assert not [call for call in state.open_calls() if call.state in (CALLED, DECIDED)]


@examples(80)
@given(scripts, parts)
def test_a_fork_goes_on_to_a_legal_end(script: Script, part: float) -> None:
    async def on() -> tuple[tuple[Record, ...], int]:
        kept, _, _, at = await forked(script, part)
        effects = len(kept.effects)
        other = Played(script, kept.store, "fork")
        engine = engine_of(other)
        await go_on(other, await engine.status("fork"))
        await take(other, Turn("and then?"), engine.run)
        await engine.close()
        assert len(kept.effects) == effects
        return await other.records(), at

    records, at = asyncio.run(on())
    provider = Provider()
    for record, placed in zip(records, views(records), strict=True):
        provider.hear(record, list(placed.settled))
        if isinstance(record.event, ModelRequested) and record.version > at:
            assert list(violations(list(placed.settled), record.event.issuer)) == []
    state = run_state(records)
    assert state.run is not None
    assert state.phase == IDLE or state.run.status == "failed"  # by a filter that always raises
    assert not [item for item in state.place.items() if item.ref is None]
