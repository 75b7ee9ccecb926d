"""The shape of one input item, by its type: which keys it has and what their values are.

The four types that every agent loop sends back are closed: a key that the API does not know is
refused, which is how a client's own bookkeeping (`parsed`, `parsed_arguments`, a chat message's
`name`) is found out. Of the other types only what the rules of context need is demanded. Keys and
their optionality follow the `…Param` types of the openai package, except where noted.
"""

from collections.abc import Mapping
from typing import Final

from ._responses_items import checked_prefix, type_of
from ._strict_shapes import (
    JSON,
    Check,
    Complaints,
    anything,
    array,
    boolean,
    identifier,
    invalid_value,
    missing,
    nullable,
    one_of,
    shape,
    string,
    tagged,
    text_or,
    wrong_type,
)

NAME: Final = string(shortest=1, longest=64, pattern="^[a-zA-Z0-9_-]+$")
CALL_ID: Final = string(shortest=1, longest=64)
_TEXT: Final = string()
_LONG: Final = string(longest=None)
_STATUS: Final = one_of("in_progress", "completed", "incomplete")
_PHASE: Final = nullable(one_of("commentary", "final_answer"))


def _part(required: Mapping[str, Check], optional: Mapping[str, Check]) -> Check:
    return shape(required, {"type": anything, **optional})


_INPUT_PARTS: Final = array(
    tagged(
        {
            "input_text": _part({"text": _TEXT}, {"prompt_cache_breakpoint": anything}),
            "input_image": _part(
                {},
                {
                    "image_url": nullable(_LONG),
                    "file_id": nullable(_TEXT),
                    "detail": nullable(one_of("low", "high", "auto", "original")),
                    "prompt_cache_breakpoint": anything,
                },
            ),
            "input_file": _part(
                {},
                {
                    "file_id": nullable(_TEXT),
                    "file_data": nullable(_LONG),
                    "file_url": nullable(_LONG),
                    "filename": nullable(_TEXT),
                    "detail": one_of("auto", "low", "high"),
                    "prompt_cache_breakpoint": anything,
                },
            ),
        }
    )
)

_OUTPUT_PARTS: Final = array(
    tagged(
        {
            "output_text": _part(
                {"text": _TEXT}, {"annotations": array(anything), "logprobs": nullable(array(anything))}
            ),
            "refusal": _part({"refusal": _TEXT}, {}),
        }
    )
)


def _message_of(parts: Check) -> Check:
    return shape(
        {"role": anything, "content": text_or(parts)},
        {"type": anything, "id": identifier("msg"), "status": _STATUS, "phase": _PHASE},
    )


_ASSISTANT_MESSAGE: Final = _message_of(_OUTPUT_PARTS)
_INPUT_MESSAGE: Final = _message_of(_INPUT_PARTS)


def _message(item: JSON, path: str) -> Complaints:
    if "role" not in item:
        yield missing(f"{path}.role")
        return
    yield from one_of("assistant", "system", "developer", "user")(item["role"], f"{path}.role")
    yield from (_ASSISTANT_MESSAGE if item["role"] == "assistant" else _INPUT_MESSAGE)(item, path)


def _open(kind: str, required: Mapping[str, Check] | None = None) -> Check:
    return shape(required or {}, {"id": nullable(identifier(checked_prefix(kind)))}, closed=False)


_ITEMS: Final[Mapping[str, Check]] = {
    "message": _message,
    "function_call": shape(
        {"call_id": CALL_ID, "name": NAME, "arguments": _TEXT},
        {
            "type": anything,
            "id": identifier("fc"),
            "status": _STATUS,
            "namespace": _TEXT,
            "caller": anything,
            "async": boolean,
        },
    ),
    "function_call_output": shape(
        {"call_id": CALL_ID, "output": text_or(_INPUT_PARTS)},
        {
            "type": anything,
            "id": nullable(identifier("fc")),
            "status": nullable(_STATUS),
            "name": nullable(_TEXT),
            "namespace": nullable(_TEXT),
            "caller": anything,
        },
    ),
    # No `status`, though the package's type has it: the API answers "Unknown parameter:
    # 'input[1].status'." (BerriAI/litellm#13420, 1jehuang/jcode#1028).
    "reasoning": shape(
        {"summary": array(tagged({"summary_text": _part({"text": _TEXT}, {})}))},
        {
            "type": anything,
            "id": identifier("rs"),
            "content": nullable(array(tagged({"reasoning_text": _part({"text": _TEXT}, {})}))),
            "encrypted_content": nullable(_LONG),
        },
    ),
    "custom_tool_call": _open("custom_tool_call", {"call_id": CALL_ID, "name": NAME, "input": _TEXT}),
    "custom_tool_call_output": _open(
        "custom_tool_call_output", {"call_id": CALL_ID, "output": text_or(_INPUT_PARTS)}
    ),
    "computer_call": _open("computer_call", {"call_id": CALL_ID}),
    "computer_call_output": _open("computer_call_output", {"call_id": CALL_ID, "output": anything}),
    "local_shell_call": _open("local_shell_call", {"call_id": CALL_ID, "action": anything}),
    "local_shell_call_output": _open("local_shell_call_output", {"output": _TEXT}),
    "shell_call": _open("shell_call", {"call_id": CALL_ID, "action": anything}),
    "shell_call_output": _open("shell_call_output", {"call_id": CALL_ID, "output": array(anything)}),
    "apply_patch_call": _open("apply_patch_call", {"call_id": CALL_ID, "operation": anything}),
    "apply_patch_call_output": _open("apply_patch_call_output", {"call_id": CALL_ID, "status": anything}),
    "mcp_approval_request": _open("mcp_approval_request", {"id": identifier("mcpr"), "name": _TEXT}),
    "mcp_approval_response": _open(
        "mcp_approval_response", {"approval_request_id": _TEXT, "approve": boolean}
    ),
    "item_reference": shape({"id": identifier("")}, {"type": anything}),
    "compaction": _open("compaction", {"encrypted_content": _LONG}),
    "additional_tools": _open("additional_tools", {"tools": array(anything)}),
    **{
        kind: _open(kind)
        for kind in (
            "code_interpreter_call",
            "compaction_trigger",
            "configuration_update",
            "file_search_call",
            "image_generation_call",
            "mcp_call",
            "mcp_list_tools",
            "program",
            "program_output",
            "tool_search_call",
            "tool_search_output",
            "web_search_call",
        )
    },
}


def check_item(item: JSON, path: str) -> Complaints:
    """Yield what is wrong with the shape of one input item."""
    if not isinstance(item, dict):
        yield wrong_type(path, "an object", item)
    elif (kind := type_of(item)) is not None and kind in _ITEMS:
        yield from _ITEMS[kind](item, path)
    elif "type" in item:
        yield invalid_value(f"{path}.type" if kind is None else path, item["type"], _ITEMS)
    else:
        yield missing(f"{path}.type")
