"""The top level of a request: which parameters there are, and what their values look like."""

from collections.abc import Mapping
from typing import Final

from ._strict_items import NAME, check_item
from ._strict_shapes import (
    JSON,
    Check,
    Complaints,
    Refusal,
    anything,
    array,
    boolean,
    decimal,
    integer,
    invalid,
    missing,
    nullable,
    one_of,
    shape,
    string,
    tagged,
    wrong_type,
)

_TEXT: Final = string()

_ITEMS: Final = array(check_item)

_INCLUDE: Final = array(
    one_of(
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)

_REASONING: Final = shape(
    {},
    {
        "context": nullable(one_of("auto", "current_turn", "all_turns")),
        "effort": nullable(one_of("none", "minimal", "low", "medium", "high", "xhigh", "max")),
        "generate_summary": nullable(one_of("auto", "concise", "detailed")),
        "mode": _TEXT,
        "summary": nullable(one_of("auto", "concise", "detailed")),
    },
)

_FORMAT: Final = tagged(
    {
        "text": shape({}, {"type": anything}),
        "json_object": shape({}, {"type": anything}),
        "json_schema": shape(
            {"name": NAME, "schema": shape({}, {}, closed=False)},
            {"type": anything, "description": _TEXT, "strict": nullable(boolean)},
        ),
    }
)


def check_metadata(value: JSON, path: str) -> Complaints:
    """Yield what is wrong with a `metadata` object: 16 pairs, keys of 64 and values of 512 characters."""
    if not isinstance(value, dict):
        yield wrong_type(path, "an object", value)
        return
    if len(value) > 16:
        why = f"too many properties. Expected an object with at most 16 properties, but got {len(value)}."
        yield invalid(path, why, "object_above_max_properties")
    for key, inner in value.items():
        yield from string(longest=64)(key, path)
        yield from string(longest=512)(inner, f"{path}.{key}")


def _conversation(value: JSON, path: str) -> Complaints:
    if isinstance(value, dict):
        yield from shape({"id": _TEXT}, {})(value, path)
    elif not isinstance(value, str):
        yield wrong_type(path, "one of an object or string", value)


def _input(value: JSON, path: str) -> Complaints:
    if value == "":
        yield invalid(
            path,
            "empty string. Expected a string with minimum length 1, but got an empty string instead.",
            "empty_string",
        )
    elif value == []:
        yield invalid(
            path,
            "empty array. Expected an array with minimum length 1, but got an empty array instead.",
            "empty_array",
        )
    elif isinstance(value, str):
        yield from _TEXT(value, path)
    elif isinstance(value, list):
        yield from _ITEMS(value, path)
    else:
        yield wrong_type(path, "one of an array of input items or string", value)


_PARAMETERS: Final[Mapping[str, Check]] = {
    "access_programs": anything,
    "background": nullable(boolean),
    "background_options": anything,
    "context_management": anything,
    "conversation": nullable(_conversation),
    "image": anything,
    "include": nullable(_INCLUDE),
    "input": _input,
    "instructions": nullable(_TEXT),
    "max_output_tokens": nullable(integer(least=16)),
    "max_tool_calls": nullable(integer(least=1)),
    "metadata": nullable(check_metadata),
    "model": _TEXT,
    "moderation": anything,
    "parallel_tool_calls": nullable(boolean),
    "previous_response_id": nullable(_TEXT),
    "prompt": anything,
    "prompt_cache_key": nullable(_TEXT),
    "prompt_cache_options": anything,
    "prompt_cache_retention": nullable(one_of("in_memory", "in-memory", "24h")),
    "reasoning": nullable(_REASONING),
    "safety_identifier": nullable(_TEXT),
    "service_tier": nullable(_TEXT),
    "store": nullable(boolean),
    "stream": nullable(boolean),
    "stream_options": anything,
    "temperature": nullable(decimal(least=0, most=2)),
    "text": nullable(shape({}, {"format": _FORMAT, "verbosity": nullable(one_of("low", "medium", "high"))})),
    "tool_choice": anything,  # with the tools it names: _strict_tools
    "tools": anything,
    "top_logprobs": nullable(integer(least=0, most=20)),
    "top_p": nullable(decimal(least=0, most=1)),
    "truncation": nullable(one_of("auto", "disabled")),
    "user": _TEXT,
}

_REQUEST: Final = shape({}, _PARAMETERS)


def check_parameters(request: JSON) -> Complaints:
    """Yield what is wrong with the request's parameters, each looked at by itself."""
    stored_prompt = request.get("prompt") is not None
    for key in ("model", "input"):
        # A stored prompt brings its own model and input.
        if key not in request and not stored_prompt:
            yield missing(key)
    yield from _REQUEST(request, "")
    if request.get("conversation") is not None and request.get("previous_response_id") is not None:
        yield Refusal(
            message=(
                "Mutually exclusive parameters: Ensure you are only providing one of: "
                "'previous_response_id' or 'conversation'."
            ),
            code="mutually_exclusive_parameters",
        )
