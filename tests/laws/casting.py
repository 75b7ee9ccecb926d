"""Strategies for the code of processes, for what models say to them, and for how long they live."""

from typing import Any

from hypothesis import strategies as st
from tests.laws.conversations import inputs as odd_inputs
from tests.laws.process import PAIRS, Answer, Cast, Edge
from tests.laws.sayings import called, hosted, outputs_of, texts, thoughts, transfers, unheard
from tests.laws.sayings import said as spoken
from tests.laws.scripts import JSON
from tests.laws.shipped import compositions

from batonlog.projections.testing import sayings

edges = st.builds(
    Edge,
    filters=st.one_of(compositions(), compositions(), compositions(), st.sampled_from(["default", None])),
    keep_untaken=st.booleans(),
    callback=st.sampled_from([False, False, False, True]),
    gate=st.sampled_from([False] * 5 + [True]),
)

casts = st.builds(
    Cast,
    edges=st.tuples(*[edges for _ in PAIRS]),
    default=st.one_of(st.none(), compositions(most=2)),
    compact=st.one_of(st.none(), compositions(most=2), compositions(most=2)),
    compact_above=st.sampled_from([None, 40, 100, 250]),
    next_agent=st.sampled_from(["active", "active", "entry", "source"]),
    chain=st.sampled_from([None, "previous_response_id", "conversation"]),
    second_model=st.sampled_from([(), (), (1,), (0, 2)]),
    ping_pong=st.sampled_from([None, 0, 2, 4]),
)


def _numbered(group: list[tuple[dict[str, JSON], ...]], n: int) -> list[dict[str, JSON]]:
    return sayings.numbered([item for items in group for item in items], n)


_calls = st.builds(
    called,
    st.sampled_from(["c1", "c1", "c2", "c3"]),
    st.sampled_from(["look", "look", "look", "steer", "note", "lost", "pay", "stop"]),
    st.sampled_from(['{"n": 1}', '{"n": 2}', '{"n": 3}', '{"n": 4}']),
)
_moves = st.one_of(
    transfers.map(lambda one: [one]),
    st.tuples(thoughts, transfers).map(list),
    st.tuples(_calls, transfers).map(list),
    st.lists(transfers, min_size=2, max_size=3),
    st.tuples(spoken(texts), transfers, _calls).map(list),
)
_work = st.one_of(
    st.lists(_calls, min_size=1, max_size=3),
    st.tuples(thoughts, _calls, _calls).map(list),
    st.tuples(spoken(texts), _calls).map(list),
    st.tuples(hosted, _calls).map(list),
)
_said = st.one_of(
    _moves,
    _moves,
    _moves,
    _work,
    _work,
    outputs_of(hosted, unheard),
    st.builds(_numbered, st.lists(sayings.groups, min_size=1, max_size=2), st.integers(0, 999)),
)


_answer = st.builds(
    Answer,
    output=_said,
    incomplete=st.sampled_from([False] * 15 + [True]),
    error=st.sampled_from([""] * 20 + ["long", "lost", "broken"]),
    counted=st.booleans(),
)
_inputs: st.SearchStrategy[Any] = st.one_of(texts, sayings.inputs.map(list), odd_inputs)


@st.composite
def answered(draw: st.DrawFn) -> list[Answer]:
    """What models say next. (A strategy with a short name: Hypothesis prints those of rules.)"""
    return [draw(_answer) for _ in range(draw(st.integers(2, 7)))]


@st.composite
def given_in(draw: st.DrawFn) -> Any:
    """What somebody says."""
    return draw(_inputs)


answers, inputs = answered(), given_in()
fuses = st.one_of(st.none(), st.none(), st.integers(0, 40))
"""How many appends, model calls and effects a process lives to see."""

which = st.integers(0, 7)
parts = st.one_of(st.just(0), st.integers(0, 100))
verdicts = st.lists(st.sampled_from(["run", "refuse", "answer"]), min_size=1, max_size=3)
