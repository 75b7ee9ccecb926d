"""Random conversations as plain values: who there is, what the models say, and what people do.

A script is a value that prints as it must be written, so that what Hypothesis finds can be
pasted into a test. `play.py` plays one through a real engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hypothesis import strategies as st

from batonlog.engine.handoffs import wire_name

JSON: TypeAlias = Any
Thing: TypeAlias = dict[str, JSON]

AGENTS = ("front", "Billing Team", "退款专家")
TOOLS = ("look", "pay", "ask", "boom", "steer", "note", "wait", "lost", "stop")
TRANSFERS = tuple(wire_name(name) for name in AGENTS)
ROUTE = "route"
"""The wire name of every handoff that picks its target."""


def named(output: Sequence[Thing], offered: Sequence[str]) -> list[Thing]:
    """Return what a model says with the names of handoffs filled in."""
    transfers = [name for name in offered if name in (*TRANSFERS, ROUTE)]

    def fill(item: Thing) -> Thing:
        name = item.get("name")
        if not (isinstance(name, str) and name.startswith("@")):
            return item
        return {**item, "name": transfers[int(name[1:]) % len(transfers)] if transfers else "nosuch"}

    return [fill(item) for item in output]


@dataclass(frozen=True)
class Step:
    """What a model says in one turn."""

    output: Sequence[Thing] = ()
    incomplete: bool = False
    fails: bool = False
    """It raises instead, once; asked again, it says its output."""


@dataclass(frozen=True)
class Edit:
    """One thing that a filter does to a list of items. What is out of range wraps around."""

    what: str
    at: int = 0
    by: JSON = None


@dataclass(frozen=True)
class Filtering:
    """What a filter does."""

    edits: Sequence[Edit] = ()
    asynchronous: bool = False
    fails: int = 0
    """How often it raises before it does its work."""


@dataclass(frozen=True)
class Passing:
    """One handoff."""

    source: int
    targets: Sequence[int]
    picks: str = ""
    """For one that picks: `first`, `last`, `raise`, `nowhere` or `self`."""
    callback: str = ""
    """What its callback does: `note` or `raise`."""
    filtering: Filtering | str | None = "default"
    typed: bool = False
    gate: bool = False
    acknowledgement: str | None = None


@dataclass(frozen=True)
class Turn:
    """One run, and what happens before it."""

    says: str | Sequence[Thing]
    before: Sequence[tuple[str, JSON]] = ()
    """`note`, `send`, `rewrite` (edits) and `always` (a verdict on a tool), while nothing runs."""
    limit: int | None = None


@dataclass(frozen=True)
class Script:
    """A whole conversation, and everything that it depends on."""

    steps: Sequence[Step]
    turns: Sequence[Turn] = (Turn("hi"),)
    passings: Sequence[Passing] = ()
    default: Filtering | None = None
    """The engine's own filter."""
    chain: bool = False
    second_model: Sequence[int] = ()
    """Agents that ask another model."""
    people: Sequence[str] = ("run",)
    """Verdicts on calls that wait, in turn."""
    outputs: Sequence[JSON] = ("fine",)
    """What tools return, by the number that they are given."""
    delays: Sequence[int] = (0,)
    """How many rounds of the loop each effect takes, in turn."""
    tools: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Tools by agent, where it has not all of them."""


# -- small things

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


# -- filters

roles = st.sampled_from(["user", "assistant", "system", "developer"])

new_items = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, roles, texts),
    st.builds(lambda role, text: {"type": "message", "role": role, "content": text}, roles, texts),
    st.just({"role": "user", "content": [{"type": "input_text", "text": "see"}]}),
    st.just({"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}),
    st.builds(
        lambda c, name: {"type": "function_call", "call_id": c, "name": name, "arguments": "{}"},
        call_ids,
        st.sampled_from(["look", "made_up"]),
    ),
    st.builds(
        lambda c, text: {"type": "function_call_output", "call_id": c, "output": text}, call_ids, texts
    ),
    st.builds(lambda c: {"type": "custom_tool_call", "call_id": c, "name": "x", "input": "i"}, call_ids),
    st.builds(lambda c: {"type": "custom_tool_call_output", "call_id": c, "output": "o"}, call_ids),
    st.builds(
        lambda n, sealed: {
            "type": "reasoning",
            "id": f"rs_{n}",
            "summary": [],
            **({"encrypted_content": "mine"} if sealed else {}),
        },
        st.integers(0, 9),
        st.booleans(),
    ),
    st.just({"type": "item_reference", "id": "msg_1"}),
    st.just(
        {"type": "mcp_approval_request", "id": "mcpr_1", "name": "x", "server_label": "s", "arguments": ""}
    ),
    st.just({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}),
    st.just({"type": "computer_call", "id": "cu_1", "call_id": "c9", "status": "completed"}),
    st.just({"type": "compaction", "encrypted_content": "made up"}),
)
"""Items that a filter makes by itself: orphans, doubles, and what only a provider can make."""

odd_items = st.sampled_from(
    [
        {"role": "user", "content": "hi", "name": "bob"},
        {"role": "user", "content": "hi", "status": "whatever"},
        {"role": "user", "content": "hi", "id": 7},
        {"role": "user", "content": [{"type": "input_text", "text": "hi", "bold": True}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": 7}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": None}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi", "bold": True}]},
        {"type": "function_call", "call_id": "c9", "name": "x", "arguments": "{}", "parsed": 1},
        {"type": "function_call", "call_id": "c9", "name": "x", "arguments": "{}", "status": "odd"},
        {"type": "function_call_output", "call_id": "c9", "output": "x", "tool": "look"},
        {"type": "function_call_output", "call_id": "c9", "output": [{"type": "output_text", "text": "x"}]},
        {"type": "reasoning", "id": "rs_1", "summary": ["x"]},
        {"type": "reasoning", "id": "x", "summary": []},
        {"type": "compaction"},
        {"type": "computer_call"},
        {"type": "computer_call", "call_id": "c9"},
        {"type": "local_shell_call", "call_id": "c9"},
        {"type": "shell_call", "call_id": "c9"},
        {"type": "apply_patch_call", "call_id": "c9"},
        {"type": "mcp_approval_request"},
        {"type": "program"},
        {"type": "tool_search_call"},
        {"type": "item_reference"},
    ]
)
"""What looks like an item and is none that a provider takes, or almost one."""

no_items: st.SearchStrategy[Any] = st.sampled_from(
    [None, 7, "text", {}, {"type": "nonsense"}, {"role": "nobody", "content": ""}, []]
)
"""What is no item at all."""

changes = st.one_of(
    texts.map(lambda text: {"content": text}),
    texts.map(lambda text: {"output": text}),
    texts.map(lambda text: {"arguments": text}),
    call_ids.map(lambda call_id: {"call_id": call_id}),
    st.integers(0, 9).map(lambda n: {"id": f"rs_{n}"}),
    st.sampled_from(
        [
            {"summary": []},
            {"encrypted_content": "forged"},
            {"name": "look"},
            {"status": "completed"},
            {"id": "ws_99"},
            {"type": "custom_tool_call_output"},
            {"type": "function_call_output", "output": "x", "call_id": "c1"},
            {"type": "message", "role": "user", "content": "was something else"},
        ]
    ),
)
odd_changes = st.sampled_from(
    [
        {"bold": True},
        {"role": "nobody"},
        {"content": 7},
        {"content": [{"type": "output_text", "text": "x", "bold": 1}]},
        {"output": {"no": "text"}},
        {"name": "bad name!"},
        {"call_id": ""},
        {"status": "odd"},
    ]
)
"""What an item can be changed to, and no longer be one."""

places = st.integers(0, 30)

edits = st.one_of(
    st.builds(Edit, st.just("keep"), by=st.integers(0, 2**16 - 1)),
    st.builds(Edit, st.just("keep"), by=st.integers(0, 2**16 - 1)),
    st.builds(Edit, st.sampled_from(["messages", "drop_tools", "same", "own", "reverse"])),
    st.builds(Edit, st.just("last"), at=st.integers(1, 6)),
    st.builds(Edit, st.just("rotate"), at=places),
    st.builds(Edit, st.just("move"), at=places, by=places),
    st.builds(Edit, st.just("change"), at=places, by=changes),
    st.builds(Edit, st.just("put"), at=places, by=new_items),
    st.builds(Edit, st.just("put"), at=places, by=new_items),
    st.builds(Edit, st.just("copy"), at=places, by=places),
    st.builds(Edit, st.just("copies")),
)
"""What a filter may do, sensible or not, that leaves a history."""

odd_edits = st.one_of(
    st.builds(Edit, st.just("put"), at=places, by=odd_items),
    st.builds(Edit, st.just("put"), at=places, by=odd_items),
    st.builds(Edit, st.just("change"), at=places, by=odd_changes),
    st.builds(Edit, st.just("only"), by=st.lists(new_items, max_size=2)),
    st.builds(Edit, st.just("put"), at=places, by=no_items),
    st.builds(Edit, st.just("return"), by=no_items),
    st.builds(Edit, st.sampled_from(["twice", "strange", "raise"])),
)
"""What it may do that leaves none, or nothing."""


def filterings(*, odd: bool = True) -> st.SearchStrategy[Filtering]:
    """Filters of up to three edits."""
    kinds = st.one_of(edits, edits, edits, odd_edits) if odd else edits
    return st.builds(
        Filtering,
        edits=st.lists(kinds, max_size=3),
        asynchronous=st.booleans(),
        fails=st.sampled_from([0, 0, 0, 0, 1, 2]) if odd else st.just(0),
    )


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
