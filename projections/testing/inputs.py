"""Strategies for what a filter is given, and for the sessions that it comes from."""

from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from batonlog.events import Record
from batonlog.projections.filters import Cause, FilterInput
from batonlog.projections.handover import handover_input, rewrite_input
from batonlog.projections.history import History
from batonlog.projections.legality import check_legal
from batonlog.projections.state import State
from batonlog.projections.testing.moves import Script, Turn, handing_turns, scripts
from batonlog.projections.testing.playing import Player
from batonlog.projections.testing.sayings import mostly, texts

_Ctx = TypeVar("_Ctx")

_cuts = mostly(st.just(0), st.integers(0, 12))
"""How many of the last events are left out."""


@cache
def logs() -> st.SearchStrategy[tuple[Record, ...]]:
    """Whole legal sessions, earlier rewrites included.

    Every event may follow the ones before it, as the lifecycle has it; both histories of every
    prefix can be folded; and at every `model.requested` the model is shown a legal history.
    A session may end anywhere: in the middle of a turn, of parallel calls, of a handoff.

    There are several agents and runs, handoffs with and without filters, rewrites of every
    cause, parallel calls whose outputs come in any order, input in the middle of a turn,
    approvals, crashes, failures, forks, reasoning, images and files, hosted items and types that nobody
    has heard of, reused call ids, and texts of all sorts.
    """
    return st.builds(_log, scripts(), _cuts)


def _log(script: Script, cut: int) -> tuple[Record, ...]:
    player = _played(script)
    return tuple(player.records[: max(1, len(player.records) - cut)])


def _played(script: Script) -> Player:
    player = Player(script)
    player.play()
    return player


@cache
def histories() -> st.SearchStrategy[History]:
    """Legal histories: parallel calls, reasoning, images, reused ids, odd Unicode, several agents.

    They are what a model may be shown at a version of a session where no call is open, earlier rewrites
    included, and hold at least one message of the user.
    """
    return st.builds(_history, scripts(), _cuts)


def _history(script: Script, cut: int) -> History:
    state = _resting(_played(script), cut)
    return History(state.place.items(), state.version)


def _resting(player: Player, cut: int) -> State:
    """A state with a legal history: the one before the last few events, or the nearest one to it."""
    states = player.states
    last = max(1, len(states) - 1 - cut)
    for state in (*states[last:0:-1], *states[last + 1 :]):
        if (
            not state.open_calls()
            and (items := list(state.place.items()))
            and not check_legal(History(items))
        ):
            return state
    raise AssertionError("no version of the session has a legal history")


def _some_arguments() -> st.SearchStrategy[object]:
    return st.one_of(st.just({}), st.fixed_dictionaries({"reason": texts}))


def filter_inputs(
    context: st.SearchStrategy[_Ctx], *, arguments: st.SearchStrategy[object] | None = None
) -> st.SearchStrategy[FilterInput[_Ctx]]:
    """Handoffs with contexts and arguments of the caller's making, for filters that read them.

    Each is the legal view that an unfiltered handoff would leave: with the transfer and its answer, calls
    beside it and transfers that were not taken, and `own` where the target handed off before.

    Args:
        context: what the run's caller gave.
        arguments: what the model gave the handoff: a value of its `input_type`, or a dict. Without
            it, a dict that may hold a `reason`.
    """
    given = arguments if arguments is not None else _some_arguments()
    return st.builds(_handoff, scripts(), handing_turns, context, given)


def _handoff(script: Script, turn: Turn, context: Any, arguments: object) -> FilterInput[Any]:
    player = _played(script)
    taken = player.turn(turn)
    assert taken is not None
    assert turn.handing is not None
    made = player.ready(taken, turn.handing)
    return handover_input(player.state, made, session=player.session, context=context, arguments=arguments)


def _rewriting(script: Script, cut: int, cause: Cause) -> FilterInput[Any]:
    player = _played(script)
    return rewrite_input(_resting(player, cut), cause, session=player.session, context=None)


def all_inputs() -> st.SearchStrategy[FilterInput[Any]]:
    """Handoffs, compactions and edits, without a context."""
    handoffs: st.SearchStrategy[FilterInput[Any]] = filter_inputs(st.none())
    others = st.builds(_rewriting, scripts(), _cuts, st.sampled_from(["compaction", "manual"]))
    return mostly(handoffs, others, times=2)
