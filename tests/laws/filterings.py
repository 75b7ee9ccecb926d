"""Strategies for filters: what they keep, change and make up, and what is no history at all."""

from typing import Any

from hypothesis import strategies as st
from tests.laws.sayings import call_ids, texts
from tests.laws.scripts import Edit, Filtering

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
