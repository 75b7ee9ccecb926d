"""`redact`: texts blanked wherever a model could read them."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from batonlog.events import JSON, UsageError
from batonlog.projections.history import History
from batonlog.projections.items import Item
from batonlog.projections.legality import untorn
from batonlog.projections.lines import one_line

REDACTED = "[redacted]"
"""What stands in the place of a match."""


def redact(pattern: str | Callable[[str], str], /) -> Callable[[History], History]:
    """Blank what a pattern matches, or what a function changes, in every text of the view.

    Texts are those of messages, arguments, outputs, reasoning and hosted items, and inside JSON
    that a text holds. Names, ids and types stay. What only its provider can read (encrypted
    reasoning, a compaction) is dropped, since nobody can tell what it holds.

    The session keeps everything: this is about what the model is shown.

    Raises UsageError for a pattern that is no regular expression.
    """
    if callable(pattern):
        return _Redact(getattr(pattern, "__name__", "function"), pattern)
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        raise UsageError(f"redact({pattern!r}): no regular expression: {error}") from error
    return _Redact(pattern, lambda text: compiled.sub(REDACTED, text))


class _Redact(msgspec.Struct, frozen=True):
    pattern: str
    _change: Callable[[str], str]

    def __call__(self, history: History) -> History:
        items = (self._redacted(item) for item in history)
        return untorn(history, History((item for item in items if item is not None), history.version))

    def _redacted(self, item: Item) -> Item | None:
        before = item.data
        if _is_sealed(item.type, before):
            return None
        after = {name: self._blank_field(name, value) for name, value in before.items()}
        changes = {name: value for name, value in after.items() if value != before[name]}
        return item.replace(**changes) if changes else item

    def _blank(self, value: JSON) -> JSON:
        """The value with every text in it changed; itself if nothing is."""
        match value:
            case str():
                return self._blank_text(value)
            case dict():
                out = {key: self._blank_field(key, inner) for key, inner in value.items()}
                if "logprobs" in out and out.get("text") != value.get("text"):
                    out["logprobs"] = []  # the text again, token by token
                return out
            case list():
                return [self._blank(inner) for inner in value]
            case bool() | None:
                return value
            case _:  # a number that matches as a text
                text = json.dumps(value)
                return changed if (changed := self._change(text)) != text else value

    def _blank_field(self, name: str, value: JSON) -> JSON:
        if name in _STRUCTURE or name in _MEDIA:
            return value
        if name in _FREE and isinstance(value, dict):
            return self._blank_inside(value)
        return self._blank(value)

    def _blank_text(self, text: str) -> str:
        if (found := _json_in(text)) is not None and (changed := self._blank_inside(found)) != found:
            start = "\n" if text.startswith("\n") else ""  # a line of a nest
            text = start + one_line(changed)
        return self._change(text)

    def _blank_inside(self, value: JSON) -> JSON:
        """The same for JSON that stands in a text: nothing in it is structure of ours."""
        match value:
            case dict():
                return {self._change(key): self._blank_inside(inner) for key, inner in value.items()}
            case list():
                return [self._blank_inside(inner) for inner in value]
            case _:
                return self._blank(value)


_Redact.__name__ = "redact"

_STRUCTURE = frozenset(
    {"type", "role", "id", "call_id", "status", "name", "phase", "caller", "namespace", "detail"}
)
"""Fields that say what an item is: changed, it would be another one, or none."""

_MEDIA = frozenset({"image_url", "file_id", "file_data", "file_url"})


_FREE = frozenset({"arguments", "attributes", "env"})
"""Objects with names of somebody's own: nothing in them is structure."""


def _is_sealed(kind: str, data: Mapping[str, JSON]) -> bool:
    """Whether only the provider can read an item: it may hold anything."""
    if isinstance(data.get("encrypted_content"), str) or kind == "item_reference":
        return True
    return kind == "reasoning" and not data.get("summary") and not data.get("content")


def _json_in(text: str) -> Any:
    """The object or array that a text is, or None."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
