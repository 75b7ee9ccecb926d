"""Tools, the choice among them, and the schemas they and the answer's format carry."""

from collections.abc import Mapping
from typing import Final

from ._strict_items import NAME
from ._strict_schema import loose_fault, strict_fault
from ._strict_shapes import (
    JSON,
    Check,
    Complaints,
    Refusal,
    anything,
    array,
    boolean,
    missing,
    nullable,
    one_of,
    shape,
    string,
    tagged,
    wrong_type,
)

_TEXT: Final = string()
_SCHEMA: Final = nullable(shape({}, {}, closed=False))
_HOSTED: Final = shape({}, {}, closed=False)

_HOSTED_TYPES: Final = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "namespace",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)

_TOOLS: Final[Mapping[str, Check]] = {
    "function": shape(
        {"name": NAME},
        {
            "type": anything,
            "description": nullable(_TEXT),
            "parameters": _SCHEMA,
            "strict": nullable(boolean),
            "allowed_callers": anything,
            "async": boolean,
            "defer_loading": boolean,
            "output_schema": _SCHEMA,
        },
    ),
    "custom": shape(
        {"name": NAME},
        {
            "type": anything,
            "description": _TEXT,
            "format": anything,
            "allowed_callers": anything,
            "async": boolean,
            "defer_loading": boolean,
        },
    ),
    "mcp": shape({"server_label": _TEXT}, {}, closed=False),
    **dict.fromkeys(_HOSTED_TYPES, _HOSTED),
}

_CHECK_TOOLS: Final = array(tagged(_TOOLS))
_NAMED: Final = ("function", "custom")


def check_tools(request: JSON) -> Complaints:
    """Yield what is wrong with `tools`, `tool_choice` and the schema of `text.format`."""
    tools = request.get("tools")
    if tools is not None:
        yield from _CHECK_TOOLS(tools, "tools")
        yield from _unique_names(tools)
        yield from _function_schemas(tools)
    if request.get("tool_choice") is not None:
        yield from _tool_choice(request["tool_choice"], tools or [])
    yield from _format_schema((request.get("text") or {}).get("format") or {})


def _unique_names(tools: list[JSON]) -> Complaints:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool["type"] not in _NAMED:
            continue
        if tool["name"] in seen:
            yield Refusal(
                message=f"Duplicate tool name '{tool['name']}'. Tool names must be unique.",
                param=f"tools[{index}].name",
                code="invalid_value",
            )
        seen.add(tool["name"])


def _function_schemas(tools: list[JSON]) -> Complaints:
    for index, tool in enumerate(tools):
        schema = tool.get("parameters")
        if tool["type"] != "function" or schema is None:
            continue
        fault = strict_fault(schema) if tool.get("strict") else loose_fault(schema)
        if fault is not None:
            yield Refusal(
                message=f"Invalid schema for function '{tool['name']}': {fault}",
                param=f"tools[{index}].parameters",
                code="invalid_function_parameters",
            )


def _format_schema(form: JSON) -> Complaints:
    if form.get("type") == "json_schema" and form.get("strict"):
        fault = strict_fault(form["schema"])
        if fault is not None:
            yield Refusal(
                message=f"Invalid schema for response_format '{form['name']}': {fault}",
                param="text.format.schema",
                code="invalid_json_schema",
            )


def _tool_choice(choice: JSON, tools: list[JSON]) -> Complaints:
    if isinstance(choice, str):
        yield from one_of("none", "auto", "required")(choice, "tool_choice")
        if choice == "required" and not tools:
            yield Refusal(
                message="Tool choice 'required' must be specified with 'tools' parameter.",
                param="tool_choice",
            )
    elif not isinstance(choice, dict):
        yield wrong_type("tool_choice", "one of an object or string", choice)
    elif choice.get("type") == "allowed_tools":
        yield from shape({"tools": array(_HOSTED), "mode": one_of("auto", "required")}, {"type": anything})(
            choice, "tool_choice"
        )
        for index, chosen in enumerate(choice["tools"]):
            yield from _chosen(chosen, tools, f"tool_choice.tools[{index}]")
    else:
        yield from _chosen(choice, tools, "tool_choice")


def _chosen(choice: JSON, tools: list[JSON], path: str) -> Complaints:
    kind = choice.get("type")
    if kind is None:
        yield missing(f"{path}.type")
        return
    key = "name" if kind in _NAMED else "server_label" if kind == "mcp" else None
    if key is not None and key not in choice:
        yield missing(f"{path}.{key}")
    elif not any(_matches(tool, choice, key) for tool in tools):
        name = kind if key is None else choice[key]
        yield Refusal(message=f"Tool choice '{name}' not found in 'tools' parameter.", param=path)


def _matches(tool: JSON, choice: JSON, key: str | None) -> bool:
    if key is not None:
        return bool(tool["type"] == choice["type"] and tool.get(key) == choice[key])
    # "web_search" chooses the dated "web_search_2025_08_26" too.
    return str(tool["type"]).startswith(str(choice["type"]))
