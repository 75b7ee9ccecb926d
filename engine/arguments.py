"""Arguments as a model writes them: read, checked, and refused with words that it can act on."""

from typing import Any

import msgspec
from msgspec import inspect

from batonlog.events import JSON
from batonlog.events.values import load

_DEEPEST = 200
"""Levels of nesting that are taken: what is read must be stored, and read again anywhere."""


class BadArgumentsError(Exception):
    """A call's arguments are not what its schema asks for. The text is for the model."""


def read_arguments(tool: str, text: str) -> dict[str, JSON]:
    """Return the arguments as a JSON object; nothing at all counts as none.

    Raises BadArgumentsError for text that is cut off, is no JSON, is no object, or is nested too deep.
    """
    if not text.strip():
        return {}
    try:
        value = load(text.encode(errors="surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadArgumentsError(
            f"The arguments of {tool} are not valid JSON ({error}). Call it again with one complete JSON object."
        ) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadArgumentsError(
            f"The arguments of {tool} must be a JSON object, not {type(value).__name__}. Call it again with one."
        )
    if text.count("[") + text.count("{") > _DEEPEST and _depth(value) > _DEEPEST:
        raise BadArgumentsError(
            f"The arguments of {tool} are nested more than {_DEEPEST} levels deep. Call it again with flatter ones."
        )
    return value


def _depth(value: JSON) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [part for one in inner for part in (one.values() if isinstance(one, dict) else one)]
    return depth


class Converter:
    """Makes values of one type of arguments."""

    __slots__ = ("_info", "_optional", "type")

    def __init__(self, type_: Any) -> None:
        self.type = type_
        struct = isinstance(type_, type) and issubclass(type_, msgspec.Struct)
        fields = msgspec.structs.fields(type_) if struct else ()
        self._optional = frozenset(field.encode_name for field in fields if not field.required)
        self._info = inspect.type_info(type_) if any(_is_deep(field.type) for field in fields) else None
        """Where an object may stand inside, and leave something out itself."""

    def convert(self, tool: str, arguments: dict[str, JSON]) -> Any:
        """Return the arguments as a value of the type. Raises BadArgumentsError, naming the field."""
        # Strict mode has a model give null for what it leaves out: there the default counts.
        if self._info is not None:
            given = _without_nulls(arguments, self._info)
        else:
            given = {
                name: value
                for name, value in arguments.items()
                if value is not None or name not in self._optional
            }
        try:
            return msgspec.convert(given, self.type)
        except msgspec.ValidationError as error:
            raise BadArgumentsError(
                f"Invalid arguments for {tool}: {error}. Call it again with arguments that match its schema."
            ) from error


_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


def _is_deep(annotation: Any) -> bool:
    """Whether values of a type hold objects with fields of their own."""
    try:
        found = [inspect.type_info(annotation)]
    except TypeError:  # it has no schema either, and is refused for that
        return False
    while found:
        match info := found.pop():
            case inspect.UnionType():
                found += info.types
            case inspect.Metadata():
                found.append(info.type)
            case inspect.DictType():
                found.append(info.value_type)
            case _ if isinstance(info, _LISTS):
                found.append(info.item_type)
            case _ if isinstance(info, _OBJECTS):
                return True
            case _:
                pass
    return False


def _without_nulls(value: JSON, info: inspect.Type) -> JSON:
    """Leave out every null that stands in a field with a default."""
    match info:
        case inspect.UnionType():
            return _without_nulls(value, _one_of(value, info.types))
        case inspect.Metadata():
            return _without_nulls(value, info.type)
        case inspect.DictType() if isinstance(value, dict):
            return {name: _without_nulls(inner, info.value_type) for name, inner in value.items()}
        case _ if isinstance(info, _LISTS) and isinstance(value, list):
            return [_without_nulls(inner, info.item_type) for inner in value]
        case _ if isinstance(info, _OBJECTS) and isinstance(value, dict):
            fields = {field.encode_name: field for field in info.fields}
            return {
                name: _without_nulls(inner, fields[name].type) if name in fields else inner
                for name, inner in value.items()
                if inner is not None or name not in fields or fields[name].required
            }
        case _:
            return value


def _one_of(value: JSON, types: tuple[inspect.Type, ...]) -> inspect.Type:
    """The member of a union that a value is of, as far as its nulls go."""
    plain = [one.type if isinstance(one, inspect.Metadata) else one for one in types]
    if isinstance(value, list):
        return next((one for one in plain if isinstance(one, _LISTS)), plain[0])
    if not isinstance(value, dict):
        return next((one for one in plain if isinstance(one, inspect.NoneType)), plain[0])
    structs = [one for one in plain if isinstance(one, inspect.StructType) and one.tag_field is not None]
    tagged = (one for one in structs if value.get(one.tag_field) == one.tag)
    objects = (one for one in plain if isinstance(one, (*_OBJECTS, inspect.DictType)))
    return next(tagged, next(objects, plain[0]))
