"""Arguments as a model writes them: read, checked, and refused with words that it can act on."""

from typing import Any

import msgspec

from batonlog.events import JSON
from batonlog.events.values import load


class BadArgumentsError(Exception):
    """A call's arguments are not what its schema asks for. The text is for the model."""


def read_arguments(tool: str, text: str) -> dict[str, JSON]:
    """Return the arguments as a JSON object; nothing at all counts as none.

    Raises BadArgumentsError for text that is cut off, is no JSON, or is no object.
    """
    if not text.strip():
        return {}
    try:
        value = load(text.encode(errors="surrogatepass"))
    except ValueError as error:
        raise BadArgumentsError(
            f"The arguments of {tool} are not valid JSON ({error}). Call it again with one complete JSON object."
        ) from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadArgumentsError(
            f"The arguments of {tool} must be a JSON object, not {type(value).__name__}. Call it again with one."
        )
    return value


class Converter:
    """Makes values of one type of arguments."""

    __slots__ = ("_optional", "type")

    def __init__(self, type_: Any) -> None:
        self.type = type_
        struct = isinstance(type_, type) and issubclass(type_, msgspec.Struct)
        fields = msgspec.structs.fields(type_) if struct else ()
        self._optional = frozenset(field.encode_name for field in fields if not field.required)

    def convert(self, tool: str, arguments: dict[str, JSON]) -> Any:
        """Return the arguments as a value of the type. Raises BadArgumentsError, naming the field."""
        # Strict mode has a model give null for what it leaves out: there the default counts.
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
