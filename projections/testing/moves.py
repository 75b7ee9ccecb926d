"""What happens in a session, as plain values: Hypothesis makes them smaller one by one.

Every move can be made in every state: whatever must be so first is made so by who plays it.
So any list of moves is a session, and a shorter list is a smaller session.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

from hypothesis import strategies as st

from batonlog.events import JSON
from batonlog.projections.testing.edits import Edit, Shipped, edits
from batonlog.projections.testing.sayings import (
    ASKS,
    PLAIN,
    TRANSFERRING,
    Group,
    Thing,
    all_groups,
    groups,
    inputs,
    mostly,
    parts,
    reasoning,
    texts,
    transfer,
    user_message,
    values,
)

How: TypeAlias = Literal[
    "returned", "failed", "refused", "approved", "rejected", "settled", "stopped", "lost", "repeated"
]
"""How a call ends: what its tool returned or raised, unknown names and bad arguments, a person's yes, no, or
own answer, a cancellation, a crash that leaves it unknown, and one after which it runs again."""


@dataclass(frozen=True)
class End:
    """How a call ends, and with what."""

    how: How = "returned"
    output: JSON = "ok"
    shown: JSON = None
    """What the model is shown in its place: parts, with images and files."""


@dataclass(frozen=True)
class Handing:
    """A handoff at the end of a turn."""

    to: int = 0
    """Which of the other agents."""
    filters: tuple[Edit, ...] = ()
    """None at all for a handoff without `handoff.filtered`."""
    acknowledgement: str = "Transferred."
    callback: bool = False
    """Whether it has an effect of its own, and so is called before it is made."""


@dataclass(frozen=True)
class Said:
    """The user says something: it starts a run, or reaches the one that is going on."""

    items: tuple[Thing, ...]
    goes_to: Literal["turn", "run"] = "turn"


@dataclass(frozen=True)
class Turn:
    """The model is asked, and everything that its answer leads to is done."""

    groups: tuple[Group, ...]
    ends: tuple[End, ...] = (End(),)
    """Of the calls, in turn."""
    late: tuple[int, ...] = ()
    """Which of the calls that are open is answered next; none for their own order."""
    meanwhile: tuple[tuple[int, Said], ...] = ()
    """What the user says once so many calls are answered."""
    handing: Handing | None = None
    mishap: Literal["", "again", "run", "cut"] = ""
    """Whether the model fails before it answers, and is asked again at once or after a failed run; or whether
    the token limit cuts its answer off, so that its calls are refused."""


@dataclass(frozen=True)
class Rewriting:
    """A compaction, or somebody's edit."""

    cause: Literal["compaction", "manual"]
    filters: tuple[Edit, ...]


@dataclass(frozen=True)
class Ending:
    """The run is interrupted or ended, or something is noted."""

    what: Literal["failed", "paused", "resumed", "cancelled", "noted"]


@dataclass(frozen=True)
class Fork:
    """Another session goes on from a few versions ago."""

    back: int


Move: TypeAlias = Said | Turn | Rewriting | Ending | Fork


@dataclass(frozen=True)
class Script:
    """A session: what happens in it, one move after the other."""

    moves: tuple[Move, ...]
    models: tuple[int, ...] = (0,)
    """Which of two models each agent asks, in turn."""
    stored: bool = False
    """Whether the provider keeps responses, so that requests may continue them."""


# -- strategies

# What is plain takes one choice, and comes first: Hypothesis turns what it can into that, and drops it.

_small = st.integers(0, 3)
_ends = mostly(
    st.just((End(),)),
    st.lists(
        st.builds(
            End,
            st.sampled_from([*["returned"] * 3, *get_args(How)]),
            values,
            mostly(st.none(), parts, texts),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    times=1,
)
_said: st.SearchStrategy[Said] = st.builds(Said, inputs, st.sampled_from(["turn", "turn", "run"]))
_meanwhile = mostly(st.just(()), st.tuples(st.tuples(_small, _said)))
_late = mostly(st.just(()), st.lists(_small, min_size=1, max_size=3).map(tuple), times=1)
_filters = st.lists(edits, min_size=1, max_size=2).map(tuple)
PLAIN_HANDINGS = (
    Handing(),
    Handing(filters=(Shipped("messages_only"),)),
    Handing(filters=(Shipped("nest_history"),)),
    Handing(to=1),
)
handings: st.SearchStrategy[Handing] = mostly(
    st.sampled_from(PLAIN_HANDINGS),
    st.builds(
        Handing,
        st.integers(0, 1),
        _filters,
        st.one_of(st.sampled_from(["Transferred.", '{"assistant": "billing"}']), texts),
        st.sampled_from([False, False, True]),
    ),
    times=1,
)


def _turns(
    said: st.SearchStrategy[tuple[Group, ...]],
    handing: st.SearchStrategy[Handing | None],
    mishap: st.SearchStrategy[Any],
) -> st.SearchStrategy[Turn]:
    return st.builds(Turn, said, _ends, _late, _meanwhile, handing, mishap)


turns = _turns(
    st.lists(all_groups, min_size=1, max_size=3).map(tuple),
    st.one_of(st.none(), handings),
    st.sampled_from([*[""] * 9, "again", "run", "cut"]),
)
PLAIN_MOVES: tuple[Move, ...] = (
    Said((user_message("hello"),)),
    *(Turn((group,)) for group in PLAIN),
    *(Turn((), handing=handing) for handing in PLAIN_HANDINGS),
    *(Turn(((ask,),)) for ask in ASKS),
)
moves: st.SearchStrategy[Move] = mostly(
    st.sampled_from(PLAIN_MOVES),
    _said,
    turns,
    turns,
    turns,
    st.builds(
        Rewriting,
        st.sampled_from(["compaction", "manual"]),
        st.lists(edits, min_size=1, max_size=2).map(tuple),
    ),
    st.builds(Ending, st.sampled_from(["failed", "paused", "resumed", "cancelled", "noted"])),
    st.builds(Fork, st.integers(0, 9)),
    times=4,
)

handing_turns = _turns(
    st.builds(
        lambda before, one, after: (*before, one, *after),
        st.lists(groups, max_size=2),
        mostly(st.just((TRANSFERRING,)), st.tuples(transfer), st.tuples(reasoning, transfer), times=2),
        st.lists(mostly(groups, st.tuples(transfer)), max_size=1),
    ),
    handings,
    st.just(""),
)
"""Turns that end in a handoff, whatever else they say: also calls beside it, and transfers not taken."""


@cache
def scripts() -> st.SearchStrategy[Script]:
    """Whole sessions."""
    return st.builds(
        Script,
        st.lists(moves, max_size=12).map(tuple),
        st.sampled_from([(0,), (0,), (0, 1), (0, 0, 1)]),
        st.booleans(),
    )
