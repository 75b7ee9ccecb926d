"""JSON schemas of Python types, in the strict form that providers ask for, and checks against them.

Strict mode (https://platform.openai.com/docs/guides/structured-outputs): every object is closed
and names all its properties as required; one with a default may be null instead; a few
keywords are not known.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from batonlog.events import JSON, UsageError

_UNKNOWN_KEYWORDS = frozenset(
    {
        "contentEncoding",
        "default",
        "discriminator",
        "examples",
        "maxLength",
        "minLength",
        "title",
        "uniqueItems",
    }
)
_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
_COMBINED = ("anyOf", "oneOf", "allOf")


def schema_of(type_: Any, *, strict: bool, what: str) -> dict[str, JSON]:
    """Return the JSON schema of a type that msgspec understands.

    Raises UsageError, naming `what` and the place, for a type that has none or that strict
    mode cannot express.
    """
    try:
        (schema,), components = msgspec.json.schema_components([type_], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise UsageError(
            f"{what} has no JSON schema: {error}. Annotate it with a type that JSON can hold"
        ) from error
    definitions = dict(components)
    if "$ref" in schema:  # a provider wants the object itself at the root
        name = str(schema["$ref"]).rpartition("/")[2]
        schema = definitions[name] if _is_recursive(definitions, name) else definitions.pop(name)
    schema = {**schema, **({"$defs": definitions} if definitions else {})}
    schema.pop("title", None)
    typed: dict[str, JSON] = _typed(schema)
    return closed(typed, what=what) if strict else typed


def _typed(schema: JSON) -> JSON:
    """Give every list of values its type: some providers want one at every place."""
    if isinstance(schema, list):
        return [_typed(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _typed(inner) for key, inner in schema.items()}
    values = schema.get("enum")
    if isinstance(values, list) and "type" not in schema:
        for kind in ("string", "integer"):
            if all(_is(value, kind) for value in values):
                return {"type": kind, **out}
    return out


def _is_recursive(definitions: Mapping[str, JSON], name: str) -> bool:
    return f'"#/$defs/{name}"' in msgspec.json.encode(definitions).decode()


def closed(schema: JSON, *, what: str, place: str = "$") -> JSON:
    """Return a schema in the strict form. Raises UsageError for what it cannot express."""
    if not isinstance(schema, dict):
        return schema
    out = {key: value for key, value in schema.items() if key not in _UNKNOWN_KEYWORDS}
    if out.get("format", "date") not in _FORMATS:
        del out["format"]
    if "$ref" in out and len(out) > 1:  # no other keyword may stand beside it
        out = {"anyOf": [{"$ref": out.pop("$ref")}], **out}
    if _is_object(schema):
        out |= _closed_object(schema, what, place)
    if isinstance(schema.get("items"), dict):
        out["items"] = closed(schema["items"], what=what, place=f"{place}[]")
    if "prefixItems" in schema:
        raise UsageError(
            f"{what}: strict schemas cannot express the tuple at {place}; use a list or a Struct, or strict=False"
        )
    for key in _COMBINED:
        if key in schema:
            out[key] = [closed(inner, what=what, place=place) for inner in schema[key]]
    if "$defs" in schema:
        out["$defs"] = {name: closed(inner, what=what, place=name) for name, inner in schema["$defs"].items()}
    return out


def is_closed(schema: Mapping[str, JSON], *, what: str) -> bool:
    """Whether a schema is in the strict form already. Raises UsageError for what that cannot express."""
    return bool(_in_order(closed(dict(schema), what=what)) == _in_order(dict(schema)))


def _in_order(schema: JSON) -> JSON:
    """The order in which properties are required says nothing."""
    if isinstance(schema, dict):
        return {
            key: sorted(inner) if key == "required" and isinstance(inner, list) else _in_order(inner)
            for key, inner in schema.items()
        }
    return [_in_order(inner) for inner in schema] if isinstance(schema, list) else schema


def _is_object(schema: Mapping[str, JSON]) -> bool:
    return schema.get("type") == "object" or "properties" in schema


def _closed_object(schema: Mapping[str, JSON], what: str, place: str) -> dict[str, JSON]:
    if schema.get("additionalProperties") not in (None, False) or (
        "properties" not in schema and place != "$" and schema.get("additionalProperties") is not False
    ):
        raise UsageError(
            f"{what}: strict schemas cannot express the mapping at {place}; "
            f"use a Struct with named fields, or strict=False"
        )
    required = set(schema.get("required", ()))
    properties = {}
    for name, inner in schema.get("properties", {}).items():
        strict = closed(inner, what=what, place=f"{place}.{name}")
        properties[name] = strict if name in required else _or_null(strict)
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _or_null(schema: JSON) -> JSON:
    """A property with a default: strict mode wants it given, so null stands for leaving it out."""
    if "anyOf" in schema:
        options = schema["anyOf"]
        return schema if {"type": "null"} in options else {**schema, "anyOf": [*options, {"type": "null"}]}
    description = {"description": schema["description"]} if "description" in schema else {}
    inner = {key: value for key, value in schema.items() if key != "description"}
    return {"anyOf": [inner, {"type": "null"}], **description}


# -- checking data against a schema that a user wrote

_TYPES: Mapping[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def mismatch(value: JSON, schema: JSON, place: str = "$") -> str | None:
    """Say where data differs from a schema, or None. Knows types, enums, objects, lists, unions and bounds."""
    if not isinstance(schema, dict):
        return None
    if "anyOf" in schema:
        found = [mismatch(value, inner, place) for inner in schema["anyOf"]]
        return None if None in found else found[0]
    expected = schema.get("type")
    kinds = expected if isinstance(expected, list) else [expected] if expected else []
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"expected {' or '.join(kinds)} at {place}"
    if "enum" in schema and value not in schema["enum"]:
        return f"expected one of {schema['enum']} at {place}"
    if "const" in schema and value != schema["const"]:
        return f"expected {schema['const']!r} at {place}"
    return _mismatch_inside(value, schema, place)


def _is(value: JSON, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, _TYPES.get(kind, object))


def _mismatch_inside(value: JSON, schema: Mapping[str, JSON], place: str) -> str | None:
    if isinstance(value, dict):
        return _mismatch_object(value, schema, place)
    if isinstance(value, list) and "items" in schema:
        found = (mismatch(inner, schema["items"], f"{place}[{n}]") for n, inner in enumerate(value))
        return next((wrong for wrong in found if wrong), None)
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return f"expected text that matches {schema['pattern']} at {place}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            return f"expected at least {schema['minimum']} at {place}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"expected at most {schema['maximum']} at {place}"
    return None


def _mismatch_object(value: dict[str, JSON], schema: Mapping[str, JSON], place: str) -> str | None:
    properties: Mapping[str, JSON] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"missing {name!r} at {place}"
    for name, inner in value.items():
        if name in properties:
            if (wrong := mismatch(inner, properties[name], f"{place}.{name}")) is not None:
                return wrong
        elif schema.get("additionalProperties") is False:
            return f"unknown {name!r} at {place}"
    return None
