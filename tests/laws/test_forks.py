"""The laws of forks: the same past, a future of its own, and nothing done twice."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from tests.laws.cast import engine_of
from tests.laws.checks import Provider, shown, views
from tests.laws.conversations import scripts
from tests.laws.depth import examples
from tests.laws.play import go_on, play, take
from tests.laws.played import Played
from tests.laws.scripts import Script, Turn

from batonlog.events import ModelRequested, Record
from batonlog.events.lifecycle import CALLED, DECIDED, IDLE
from batonlog.projections import model_history, session_history
from batonlog.projections.legality import violations
from batonlog.projections.state import run_state


async def forked(script: Script) -> tuple[Played, tuple[Record, ...], list[tuple[Record, ...]]]:
    """Play a script, and fork it at every version."""
    kept = await play(script)
    records = await kept.records()
    forks = []
    for record in records:
        name = await kept.engine.fork(kept.session, at=record.version)
        forks.append(await kept.store.records(name))
    return kept, records, forks


@examples(30)
@given(scripts)
def test_a_fork_at_any_version_has_the_past_of_its_parent(script: Script) -> None:
    _, records, forks = asyncio.run(forked(script))
    for at, fork in enumerate(forks, 1):
        assert len(fork) == at + 1
        assert [record.hash for record in fork[:at]] == [record.hash for record in records[:at]]
        assert fork[:at] == records[:at]
        assert shown(session_history(fork)) == shown(session_history(records, at=at))
        assert shown(model_history(fork)) == shown(model_history(records, at=at))


@examples(30)
@given(scripts)
def test_a_fork_leaves_its_parent_alone(script: Script) -> None:
    kept, records, _ = asyncio.run(forked(script))
    assert asyncio.run(kept.records()) == records


@examples(30)
@given(scripts)
def test_nothing_is_in_flight_or_decided_in_a_fork(script: Script) -> None:
    _, _, forks = asyncio.run(forked(script))
    for fork in forks:
        state = run_state(fork)
        assert state.request is None
        assert not [call for call in state.open_calls() if call.state in (CALLED, DECIDED)]


@examples(25)
@given(scripts, st.floats(0, 1))
def test_a_fork_goes_on_to_a_legal_end(script: Script, part: float) -> None:
    async def on() -> tuple[tuple[Record, ...], int]:
        kept = await play(script)
        at = 1 + int(part * (len(await kept.records()) - 1))
        await kept.engine.fork(kept.session, at=at, into="fork")
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
