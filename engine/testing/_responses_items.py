"""What the Responses API's items are: their types, their ids, which one answers which.

Everything here is a literal table, or a look-up in one; the rules that use them are in the
`_strict_*` modules. An item is switched on its `type` string, never on a class.
"""

from typing import Any, Final, TypeAlias

Item: TypeAlias = dict[str, Any]

ID_PREFIX: Final = {
    "additional_tools": "at",
    "apply_patch_call": "apc",
    "code_interpreter_call": "ci",
    "compaction": "cmp",
    "compaction_trigger": "cmpt",
    "computer_call": "cu",
    "configuration_update": "cfg",
    "custom_tool_call": "ctc",
    "file_search_call": "fs",
    "function_call": "fc",
    "image_generation_call": "ig",
    "local_shell_call": "lsh",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "message": "msg",
    "program": "prog",
    "program_output": "progo",
    "reasoning": "rs",
    "shell_call": "sh",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "web_search_call": "ws",
}
"""How the ids of a type begin. The ids of an output begin like those of its call."""

KNOWN_PREFIXES: Final = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "function_call",
        "message",
        "reasoning",
        "shell_call",
    }
)
"""The types whose prefix is known from refusals seen in the wild; others are not held to the guess above."""

OUTPUT_OF: Final = {
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "function_call": "function_call_output",
    "local_shell_call": "local_shell_call_output",
    "mcp_approval_request": "mcp_approval_response",
    "shell_call": "shell_call_output",
}
"""Each call that the client answers, and what answers it."""

CALL_OF: Final = {output: call for call, output in OUTPUT_OF.items()}

MADE_BY_THE_MODEL: Final = frozenset(
    {
        *OUTPUT_OF,
        "code_interpreter_call",
        "compaction",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "reasoning",
        "tool_search_call",
        "web_search_call",
    }
)
"""What may follow reasoning, besides an assistant's message."""


def type_of(item: Item) -> str | None:
    """Return the type, also of the two kinds of item that may leave it out; None if it cannot be told."""
    if (kind := item.get("type")) is not None:
        return kind if isinstance(kind, str) else None
    if "role" in item:
        return "message"
    return "item_reference" if "id" in item else None


def id_prefix(kind: str) -> str:
    """Return how the ids of items of this type begin."""
    return ID_PREFIX.get(CALL_OF.get(kind, kind), "item")


def checked_prefix(kind: str) -> str:
    """Return how an id of this type must begin in a request; "" if anything goes."""
    call = CALL_OF.get(kind, kind)
    return ID_PREFIX[call] if call in KNOWN_PREFIXES else ""


def call_key(item: Item) -> str | None:
    """Return what pairs a call with its output: the call id, or the id of the approval request."""
    match item["type"]:
        case "mcp_approval_request":
            key = item.get("id")
        case "mcp_approval_response":
            key = item.get("approval_request_id")
        case "local_shell_call_output":
            # OpenAI's types have no call_id here: `id` is that of the call.
            key = item.get("call_id", item.get("id"))
        case _:
            key = item.get("call_id")
    return key if isinstance(key, str) else None


def is_model_output(item: Item) -> bool:
    """Whether the item is something that a model writes, and so may follow its reasoning."""
    return item["type"] in MADE_BY_THE_MODEL or (item["type"] == "message" and item["role"] == "assistant")


def normal(item: Item) -> Item:
    """Return the item as the API holds it: with its type, and a message's content in parts."""
    kind = type_of(item)
    if kind == "message" and isinstance(item["content"], str):
        return {**item, "type": kind, "content": [_text_part(item["role"], item["content"])]}
    return item if "type" in item else {**item, "type": kind}


def input_items(request: Item) -> tuple[Item, ...]:
    """Return the items of a request's `input`, in normal form."""
    given = request.get("input") or ()
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return tuple(normal(item) for item in given)


def items_in(body: Item) -> tuple[Item, ...]:
    """Return the items of a conversation request's `items`, in normal form."""
    return tuple(normal(item) for item in body.get("items") or ())


def _text_part(role: str, text: str) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}
