"""The wire form: how an item of a view goes to a provider. Wire format 1.

Wire formats are numbered, and one that was released never changes: the number is in every
`model.requested`, and the same number makes the same bytes.

1. Ids are left out where the provider needs none: it refuses those that it never issued or
   no longer keeps. Reasoning and hosted items keep theirs. Reasoning goes out without its
   `status`, which the provider sends and does not take.
2. A `call_id` that an earlier call of the view has goes out as `<call_id>~<version>`, with its
   output: providers and local models reuse ids, and the API refuses a second use.
3. Names that the API refuses are mended, and lone surrogates become U+FFFD: UTF-8 has none.
4. Arguments that are no JSON object go out as `{}`: many a provider reads them before it answers,
   and refuses the request. What the model wrote stays in the history, and the answer to its
   call says what was wrong with it.

Along a chain the provider knows the ids that it issued, so there they stay as they are.
"""

import re
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batonlog.events import Ref
from batonlog.events.values import dump, load
from batonlog.projections.items import OURS, Item
from batonlog.projections.pairing import Pairing, is_call, is_output

WIRE = 1
"""The wire format that is written now."""

_NEEDS_NO_ID = frozenset(
    {
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
    }
)
_LONGEST = 64
"""Most characters in a call id and in a name."""

_BAD_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_shallow: msgspec.json.Decoder[dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw])


class _Call(Struct, gc=False):
    arguments: str = "{}"


_arguments: msgspec.json.Decoder[_Call] = msgspec.json.Decoder(_Call)


class Former:
    """Forms the items of one view, in order. What an item becomes depends on those before it."""

    __slots__ = ("_pairing", "_place", "_used", "_wire_ids")

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._pairing = Pairing()
        self._place = 0
        self._wire_ids: dict[int, str] = {}
        """Under which id each call went out, by its place."""

    def form(self, item: Item) -> bytes:
        """Return the bytes of the next item, with its place in the view taken into account."""
        changes: dict[str, str] = {}
        if is_call(item):
            self._pairing.call(self._place, item)
            changes = self._form_call(item)
        elif is_output(item):
            place, _ = self._pairing.answer(item)
            sent = self._wire_ids.get(place) if place is not None else None
            if sent is not None and sent != item.head.call_id:
                # The call's id was changed, or a filter changed one of the two.
                changes["call_id"] = sent
        self._place += 1
        return edit(item.held, changes, drop=_dropped(item))

    def _form_call(self, item: Item) -> dict[str, str]:
        changes = {}
        head = item.head
        if head.type in OURS or head.call_id is not None:
            sent = self._unused(head.call_id or "", item.ref or Ref(0, self._place))
            self._used.add(sent)
            self._wire_ids[self._place] = sent
            if sent != head.call_id:
                changes["call_id"] = sent
        if head.name is not None and (mended := _BAD_NAME.sub("_", head.name)[:_LONGEST] or "_") != head.name:
            changes["name"] = mended
        if head.type == "function_call" and not _has_arguments(item.held):
            changes["arguments"] = "{}"
        return changes

    def _unused(self, call_id: str, ref: Ref) -> str:
        call_id = _SURROGATE.sub("\ufffd", call_id)
        for tail in ("", f"~{ref.version}", f"~{ref.version}.{ref.index}"):
            sent = call_id[: _LONGEST - len(tail)] + tail if tail else call_id
            if 1 <= len(sent) <= _LONGEST and sent not in self._used:
                return sent
        return f"call~{ref}"


def _has_arguments(held: Raw) -> bool:
    """Whether the arguments of a call are a JSON object. What is no text at all is left as it came."""
    try:
        _shallow.decode(_arguments.decode(held).arguments)
    except msgspec.MsgspecError:
        given = load(held).get("arguments")
        return not isinstance(given, str) or _is_object(given)
    return True


def _is_object(text: str) -> bool:
    """The same of a text that the fast reader does not take: it may hold lone surrogates."""
    try:
        return isinstance(load(text.encode(errors="surrogatepass")), dict)
    except (ValueError, RecursionError):
        return False


def keeps_id(item: Item) -> bool:
    """Whether an item goes out with its id."""
    return item.head.id is not None and item.type not in _NEEDS_NO_ID


def chained(item: Item) -> bytes:
    """Return the bytes of an item that continues what the provider holds: with the ids that it knows."""
    return edit(item.held, {}, drop=_dropped(item))


def _dropped(item: Item) -> tuple[str, ...]:
    """Fields that do not go out."""
    if item.type == "reasoning":
        return ("status",)  # the API sends it, and refuses it: "Unknown parameter"
    return ("id",) if item.head.id is not None and not keeps_id(item) else ()


def edit(held: Raw, changes: dict[str, str], *, drop: Collection[str]) -> bytes:
    """Return an item's bytes with a few fields changed or left out; the others as they were recorded."""
    try:
        if not changes and not drop:
            data = bytes(held)
            # An escape of a surrogate may be half of a pair, or alone.
            return clean(data) if b"\\ud" in data or b"\\uD" in data else data
        fields: dict[str, Any] = dict(_shallow.decode(held))
    except msgspec.MsgspecError:
        fields = load(held)
    for name in drop:
        fields.pop(name, None)
    fields.update(changes)
    data = dump(fields)
    return clean(data) if b"\\ud" in data or b"\\uD" in data else data


def clean(data: bytes) -> bytes:
    """Replace lone surrogates by U+FFFD; all else stays."""
    return dump(_clean(load(data)))


def _clean(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATE.sub("�", value)
        case dict():
            return {_clean(key): _clean(inner) for key, inner in value.items()}
        case list():
            return [_clean(inner) for inner in value]
        case _:
            return value
