"""The JSON Schemas that the API takes: the strict subset, and the little it asks of any other.

The supported keywords are those of OpenAI's guide to structured outputs
(platform.openai.com/docs/guides/structured-outputs, "Supported schemas").
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Any
Context: TypeAlias = tuple[str, ...]

_SUPPORTED: Final = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "multipleOf",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
    }
)
_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_FORMATS: Final = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)


def strict_fault(schema: Schema) -> str | None:
    """Say what keeps a schema from being strict, in OpenAI's words, or return None."""
    return next(_strict_faults(schema), None)


def loose_fault(schema: Schema) -> str | None:
    """Say what the API refuses in the parameters of a function that is not strict, or return None."""
    return next(_loose_faults(schema), None)


def _strict_faults(schema: Schema) -> Iterator[str]:
    yield from _root_faults(schema)
    yield from _node_faults(schema, (), schema)


def _loose_faults(schema: Schema) -> Iterator[str]:
    yield from _root_faults(schema)
    if "properties" not in schema:
        yield "In context=(), object schema missing properties."
    yield from _array_faults(schema, ())


def _root_faults(schema: Schema) -> Iterator[str]:
    if any(key in schema for key in ("oneOf", "anyOf", "allOf", "enum", "not")):
        yield (
            "schema must have type 'object' and not have "
            "'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
        )
    if schema.get("type") != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."


def _node_faults(node: Schema, context: Context, root: Schema) -> Iterator[str]:
    where = f"In context={context!r}, "
    if not isinstance(node, dict):
        yield f"{where}{node!r} is not of type 'object'."
        return
    if "$ref" in node:
        yield from _reference_faults(node, where, root)
    for key in node:
        if key not in _SUPPORTED:
            yield f"{where}'{key}' is not permitted."
    yield from _type_faults(node, where)
    if "object" in _types(node):
        yield from _object_faults(node, where)
    if "array" in _types(node) and "items" not in node:
        yield f"{where}array schema missing items."
    for inner_context, inner in _children(node, context):
        yield from _node_faults(inner, inner_context, root)


def _reference_faults(node: Schema, where: str, root: Schema) -> Iterator[str]:
    others = ", ".join(repr(key) for key in sorted(node.keys() - {"$ref"}))
    if others:
        yield f"{where}$ref cannot have keywords {{{others}}}."
    if not _resolves(node["$ref"], root):
        yield f"{where}reference to component '{node['$ref']}' which was not found in the schema."


def _resolves(reference: Schema, root: Schema) -> bool:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    target = root
    for step in reference.split("/")[1:]:
        if not isinstance(target, dict) or step not in target:
            return False
        target = target[step]
    return True


def _type_faults(node: Schema, where: str) -> Iterator[str]:
    if not any(key in node for key in ("type", "anyOf", "$ref", "enum", "const")):
        yield f"{where}schema must have a 'type' key."
    for name in _types(node):
        if not isinstance(name, str) or name not in _TYPES:
            yield f"{where}{name!r} is not a valid type."
    form = node.get("format", "date")
    if not isinstance(form, str) or form not in _FORMATS:
        yield f"{where}{form!r} is not a valid format."


def _object_faults(node: Schema, where: str) -> Iterator[str]:
    if node.get("additionalProperties") is not False:
        yield f"{where}'additionalProperties' is required to be supplied and to be false."
    properties = node.get("properties", {})
    required = node.get("required", [])
    sentence = (
        f"{where}'required' is required to be supplied and to be an array including every key in properties."
    )
    if not isinstance(properties, dict):
        yield f"{where}{properties!r} is not of type 'object'."
        return
    if not isinstance(required, list):
        yield sentence
        return
    for key in properties:
        if key not in required:
            yield f"{sentence} Missing '{key}'."
    for key in required:
        if key not in properties:
            yield f"{sentence} Extra required key '{key}' supplied."


def _array_faults(node: Schema, context: Context) -> Iterator[str]:
    if not isinstance(node, dict):
        return
    if "array" in _types(node) and "items" not in node:
        yield f"In context={context!r}, array schema missing items."
    for inner_context, inner in _children(node, context):
        yield from _array_faults(inner, inner_context)


def _types(node: Schema) -> tuple[Schema, ...]:
    names = node.get("type", [])
    return tuple(names) if isinstance(names, list) else (names,)


def _children(node: Schema, context: Context) -> Iterator[tuple[Context, Schema]]:
    for key in ("properties", "$defs"):
        inner = node.get(key)
        if isinstance(inner, dict):
            for name, child in inner.items():
                yield (*context, key, name), child
    if "items" in node:
        yield (*context, "items"), node["items"]
    alternatives = node.get("anyOf")
    if isinstance(alternatives, list):
        for index, child in enumerate(alternatives):
            yield (*context, "anyOf", str(index)), child
