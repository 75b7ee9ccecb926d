"""Strategies for what models say and tools return: sensible, odd, and what nobody has heard of."""

from typing import Any

from hypothesis import strategies as st
from tests.laws.scripts import ROUTE, TOOLS, TRANSFERS, Step, Thing

surrogates = st.sampled_from(["\ud800", "a\udfffb", "😀", "\ud83d\ude00", "\x00", "﷽", "ünï", "\\ud800", ""])
texts = st.one_of(st.sampled_from(["ok", "yes", "It is 42."]), st.text(max_size=12), surrogates)
"""Also texts that UTF-8 cannot hold."""

scalars = st.one_of(texts, st.integers(-(2**70), 2**70), st.floats(allow_nan=True), st.booleans(), st.none())
values = st.one_of(
    texts,
    scalars,
    st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
        max_leaves=6,
    ),
    st.just("x" * 100_000),
    st.just(b"no JSON"),
)
"""What tools return: any JSON, huge, odd, and what is none."""

call_ids = st.sampled_from(["c1", "c1", "c2", "c2", "c3", "c4", "呼"])
odd_call_ids = st.sampled_from(["", "c" * 64, "c" * 70, "c1~4", "\ud800"])

arguments = st.one_of(
    st.integers(0, 7).map(lambda n: f'{{"n": {n}}}'),
    st.integers(0, 7).map(lambda n: f'{{"n": {n}}}'),
    st.integers(0, 7).map(lambda n: f'{{"n": {n}}}'),
    st.sampled_from(
        ['{"n": 1', "", "null", "[1]", '{"n": "one"}', '{"n": 1, "m": "\ud800"}', "{}", "\ud800"]
    ),
)

names = st.sampled_from(
    [*TOOLS, *["look", "look", "look", "look", "pay", "pay", "ask", "ask", "steer", "steer"]]
    + ["@0", "@1", "@2"] * 4
    + [*TRANSFERS, ROUTE, "nosuch", "bad name!", "n" * 70, "\ud800"]
)
"""Of tools and transfers; `@1` is the second handoff that whoever asks is offered."""


def said(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Thing]:
    """A message of an assistant."""
    parts: st.SearchStrategy[Any] = st.one_of(
        texts,
        texts.map(lambda text: [{"type": "output_text", "text": text, "annotations": []}]),
        texts.map(lambda text: [{"type": "refusal", "refusal": text}]),
        st.just([]),
    )
    return parts.map(lambda content: {"type": "message", "role": "assistant", "content": content})


thoughts = st.builds(
    lambda n, sealed: {
        "type": "reasoning",
        "id": f"rs_{n}",
        "summary": [],
        **({"encrypted_content": f"seal{n}"} if sealed else {}),
    },
    st.integers(0, 9),
    st.booleans(),
)


def called(call_id: str, name: str, text: str) -> Thing:
    """A call as a model makes it."""
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}


calls = st.builds(called, st.one_of(call_ids, call_ids, call_ids, odd_call_ids), names, arguments)
transfers = st.builds(
    called, call_ids, st.sampled_from(["@0", "@1", "@2"]), st.sampled_from(["{}", '{"n": 1}'])
)

custom_calls = st.builds(
    lambda call_id, name: {
        "type": "custom_tool_call",
        "call_id": call_id,
        "name": name,
        "input": '{"n": 1}',
    },
    call_ids,
    st.sampled_from(["look", "nosuch"]),
)

hosted = st.one_of(
    st.integers(0, 9).map(
        lambda n: {"type": "web_search_call", "id": f"ws_{n}", "status": "completed", "action": {}}
    ),
    st.integers(0, 9).map(
        lambda n: {
            "type": "mcp_approval_request",
            "id": f"mcpr_{n}",
            "name": "rm",
            "arguments": "{}",
            "server_label": "s",
        }
    ),
    st.integers(0, 9).map(
        lambda n: {"type": "computer_call", "id": f"cu_{n}", "call_id": f"k{n}", "status": "completed"}
    ),
)
"""What the provider does by itself, or asks for what this engine does not do."""

unheard = st.sampled_from(
    [
        {"type": "quantum_leap", "id": "q1", "to": "\ud800"},
        {"type": "telepathy"},
        {"type": "telepathy", "id": 7},
    ]
)
"""Items of types that nobody has heard of."""


def outputs_of(*kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Thing]]:
    """What a model may say in one turn: usually sensible, sometimes anything in any order."""
    work = st.lists(calls, min_size=1, max_size=3)
    plain = st.one_of(
        work,
        work,
        st.tuples(thoughts, calls).map(list),
        st.tuples(said(texts), calls).map(list),
        st.tuples(thoughts, calls, calls, calls).map(list),
        st.tuples(said(texts), transfers).map(list),
        st.tuples(calls, transfers).map(list),
        st.tuples(thoughts, transfers).map(list),
    )
    anything = st.lists(st.one_of(said(texts), thoughts, calls, calls, custom_calls, *kinds), max_size=5)
    return st.one_of(plain, plain, plain, anything)


def steps(outputs: st.SearchStrategy[list[Thing]], *, failing: bool = True) -> st.SearchStrategy[list[Step]]:
    """What the models say, turn by turn."""
    rarely = st.sampled_from([False] * 11 + [True])
    return st.lists(
        st.builds(Step, output=outputs, incomplete=rarely, fails=rarely if failing else st.just(False)),
        min_size=3,
        max_size=8,
    )
