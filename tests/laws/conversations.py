"""Strategies for whole conversations."""

from typing import Any

from hypothesis import strategies as st
from tests.laws.filterings import edits, filterings, new_items
from tests.laws.sayings import hosted, outputs_of, steps, texts, unheard, values
from tests.laws.scripts import AGENTS, JSON, Filtering, Passing, Script, Step, Turn


def passings(
    filters: st.SearchStrategy[Filtering | str | None], *, effects: bool = True
) -> st.SearchStrategy[list[Passing]]:
    """Handoffs between the agents: there and back, to one or picked from several."""
    pairs = [(a, b) for a in range(len(AGENTS)) for b in range(len(AGENTS)) if a != b]
    common: dict[str, st.SearchStrategy[Any]] = {
        "callback": st.sampled_from(["", "", "", "note", "raise"] if effects else [""]),
        "filtering": filters,
        "typed": st.booleans(),
        "gate": st.sampled_from([False, False, False, True]),
        "acknowledgement": st.sampled_from([None, None, "Transfer successful"]),
    }
    one = [
        st.builds(Passing, st.just(a), st.just((b,)), **common) if (a, b) in pairs else st.nothing()
        for a in range(len(AGENTS))
        for b in range(len(AGENTS))
    ]
    picking = st.builds(
        Passing,
        st.integers(0, 2),
        st.sampled_from([(0, 1), (1, 2), (0, 1, 2)]),
        picks=st.sampled_from(["first", "last", "first", "last", "raise", "nowhere", "self"]),
        **common,
    )
    ring = st.tuples(one[1], st.one_of(one[3], one[5]), st.one_of(one[6], one[7]))
    more = st.lists(st.one_of(one[2], picking), max_size=2)
    return st.tuples(ring, more).map(lambda found: [*found[0], *found[1]])


inputs = st.one_of(
    texts,
    texts,
    st.lists(
        st.one_of(
            st.builds(lambda text: {"role": "user", "content": text}, texts),
            st.just({"role": "developer", "content": "be brief"}),
            st.just({"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}),
            new_items,
        ),
        min_size=1,
        max_size=3,
    ),
)

between = st.one_of(
    st.tuples(st.just("note"), values.filter(lambda value: not isinstance(value, bytes))),
    st.tuples(st.just("send"), texts),
    st.tuples(st.just("rewrite"), st.lists(edits, min_size=1, max_size=2)),
    st.tuples(st.just("always"), st.sampled_from(["run", "refuse"])),
)


def turns(*, limits: bool = True) -> st.SearchStrategy[list[Turn]]:
    """One to three runs, and what happens between them."""
    return st.lists(
        st.builds(
            Turn,
            says=inputs,
            before=st.lists(between, max_size=2),
            limit=st.sampled_from([None, None, None, 1, 2, 3]) if limits else st.none(),
        ),
        min_size=1,
        max_size=3,
    )


filters = st.one_of(
    filterings(odd=False),
    filterings(odd=False),
    filterings(odd=False),
    filterings(),
    st.just("default"),
    st.none(),
)


def conversations(
    steps: st.SearchStrategy[list[Step]], **others: st.SearchStrategy[Any]
) -> st.SearchStrategy[Script]:
    """Whole conversations with these steps."""
    tools = [{}, {}, {1: ("look",)}, {2: ()}, {0: ("look", "pay"), 1: ("steer", "ask", "lost")}]
    parts: dict[str, st.SearchStrategy[Any]] = {
        "turns": turns(),
        "passings": passings(filters),
        "default": st.one_of(st.none(), st.none(), filterings(odd=False), filterings()),
        "chain": st.booleans(),
        "second_model": st.sampled_from([(), (), (1,), (1, 2), (2,)]),
        "people": st.lists(st.sampled_from(["run", "run", "refuse", "answer"]), min_size=1, max_size=4),
        "outputs": st.lists(values, min_size=1, max_size=4),
        "delays": st.lists(st.integers(0, 4), min_size=1, max_size=4),
        "tools": st.sampled_from(tools),
    }
    return st.builds(Script, steps=steps, **{**parts, **others})


scripts = conversations(steps(outputs_of(hosted, unheard)))
"""Any conversation at all."""


def sayable(value: JSON) -> JSON:
    """Return what a provider could have said: in UTF-8, with ids and seals of its own, and types that it has."""
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case dict():
            made = {k: sayable(v) for k, v in value.items() if k not in ("id", "encrypted_content")}
            if "call_id" in made and not 1 <= len(made["call_id"]) <= 64:
                made["call_id"] = "c5"
            if value.get("type") == "custom_tool_call":
                made["call_id"] = f"custom_{made['call_id']}"  # one id is not used for two kinds
            return {**made, "id": value["id"]} if value.get("type") == "mcp_approval_request" else made
        case list() | tuple():
            return [sayable(inner) for inner in value]
        case Step():
            return Step(sayable(value.output), value.incomplete, value.fails)
        case _:
            return value


http_scripts = conversations(steps(outputs_of(hosted)).map(sayable))
"""Conversations that a provider may have its part in."""
