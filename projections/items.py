"""Items: what histories are made of. Both histories come from one function, `items_of`.

An item is held as the bytes that were recorded and is switched on by its `type` string, never
by a provider's class, so that types nobody has heard of pass through whole. The answer to a
call has a fixed form (below), so that past views do not change with the code.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batonlog.events import (
    JSON,
    CallRefused,
    Event,
    GuardrailTripped,
    HandoffMade,
    InputAdded,
    ModelResponded,
    Ref,
    RunStarted,
    ToolAbandoned,
    ToolReturned,
    UsageError,
)
from batonlog.events.facts import raw
from batonlog.events.values import dump, load

TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "refusal")

ANSWERED_BY: Mapping[str, str] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""Call -> output, of all pairs in the Responses API whose output the client sends."""

OUTPUTS = frozenset(ANSWERED_BY.values())

OURS = frozenset({"function_call", "custom_tool_call"})
"""Calls that the engine answers."""


class Head(Struct, gc=False):
    """What of an item anybody switches on."""

    type: str = ""
    role: str | None = None
    id: str | None = None
    call_id: str | None = None
    approval_request_id: str | None = None
    name: str | None = None
    caller: Any = None


_heads: msgspec.json.Decoder[Head] = msgspec.json.Decoder(Head)


def head_of(data: Raw | bytes) -> Head:
    """Read an item's head. One with a role and no type is a message."""
    try:
        head = _heads.decode(data)
    except msgspec.MsgspecError:
        head = _lenient(load(data))
    if not head.type and head.role:
        head.type = "message"
    return head


def _lenient(data: JSON) -> Head:
    """The head of an item whose fields are of odd types, or hold lone surrogates."""
    fields = data if isinstance(data, dict) else {}
    texts = {name: fields[name] for name in Head.__struct_fields__ if isinstance(fields.get(name), str)}
    return Head(**texts)


class Item(Struct, frozen=True, gc=False, eq=False):
    """One item of a history. Immutable; `data` is a fresh dict each time."""

    ref: Ref | None
    """Where it is recorded; None for one that a filter has just made."""
    held: Raw
    """Its recorded bytes."""
    agent: str | None = None
    """Who said or called it, or was answered; None for input."""
    answers: Ref | None = None
    """The call that it answers, where the log knows it."""
    issuer: tuple[str, str] | None = None
    """Endpoint and model that made it."""
    replaces: tuple[Ref, ...] = ()
    """What it was made from, if a filter edited it."""
    thought: bool = False
    """Reasoning stood directly before it in its response."""
    lines: tuple[int, ...] = ()
    """Of a nest: how many of `replaces` each part of its content tells. See lines.py."""
    sources: "tuple[Item | None, ...]" = ()
    """Of a nest: the item whose line each part is; None for what is no item's line."""
    _head: Head | None = None
    _odd: bool = False
    """Edited, and no item by our rules before that: so it came from a provider, or a log."""

    @property
    def head(self) -> Head:
        """Type, role and ids."""
        head = self._head
        if head is None:
            head = head_of(self.held)
            msgspec.structs.force_setattr(self, "_head", head)
        return head

    @property
    def type(self) -> str:
        """`message`, `function_call`, `reasoning`, … as the provider calls it."""
        return self.head.type

    @property
    def role(self) -> str | None:
        """`user`, `assistant`, `developer`, `system`; None for what is no message."""
        return self.head.role

    @property
    def text(self) -> str:
        """All text of a message or an output, joined; "" if there is none."""
        data = self.data
        return text_of(data.get("output") if self.type in OUTPUTS else data.get("content"))

    @property
    def data(self) -> dict[str, JSON]:
        """The plain item, fresh each time."""
        data = load(self.held)
        return data if isinstance(data, dict) else {}

    def replace(self, **changes: JSON) -> "Item":
        """Return an edited copy that remembers what it replaces.

        Raises UsageError for a field that such an item does not have, and what JSON cannot hold.
        """
        before = self.data
        data = _without_nulls({**before, **changes})
        # What came from a provider is its own; what is added must be what it takes.
        same = data.get("type") == before.get("type")
        odd = same and _wrong_fields(before, known=before.keys()) is not None
        if not odd and (wrong := _wrong_fields(data, known=before.keys() if same else ())) is not None:
            raise UsageError(f"no item: {wrong}")
        try:
            held = Raw(dump(data))
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"no item: {error}") from error
        return Item(
            ref=None,
            held=held,
            agent=self.agent,
            answers=self.answers,
            issuer=self.issuer if is_known_to_maker(self, head_of(held)) else None,
            replaces=self.covers,
            thought=self.thought,
            _odd=same and (self._odd or _wrong(before) is not None),
            **(_told_alike(self, data) if self.lines else {}),
        )

    @property
    def covers(self) -> tuple[Ref, ...]:
        """What was said that it stands for: itself, or what it was made from."""
        return self.replaces or ((self.ref,) if self.ref is not None else ())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Item):
            return NotImplemented
        return self is other or (self.ref == other.ref and bytes(self.held) == bytes(other.held))

    def __ne__(self, other: object) -> bool:
        # A Struct without eq has an identity of its own for this, and Python does not ask __eq__.
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return hash((self.ref, bytes(self.held)))

    def __repr__(self) -> str:
        text = self.text
        return f"Item({self.ref or 'new'} {self.role or self.type} {text[:40]!r})"


def _told_alike(nest: Item, edited: dict[str, JSON]) -> dict[str, Any]:
    """What of a nest an edited copy keeps: all, if it still has the same parts."""
    content = edited.get("content")
    same = isinstance(content, list) and len(content) == len(nest.lines)
    return {"lines": nest.lines, "sources": nest.sources} if same else {}


def is_made_up(item: Item) -> bool:
    """Whether it is an output that was made up for a call: it stands for nothing that was said."""
    return item.answers is not None and item.answers in item.replaces


def is_known_to_maker(item: Item, edited: Head) -> bool:
    """Whether whoever made an item takes it back after an edit.

    Under another id he does not know it, and sealed reasoning still holds what was edited out.
    """
    return edited.type == item.type != "reasoning" and edited.id == item.head.id


def text_of(content: JSON) -> str:
    """Join the texts of a content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (
        part.get("text", part.get("refusal", ""))
        for part in content
        if isinstance(part, dict) and part.get("type") in TEXT_PARTS
    )
    return "".join(text for text in texts if isinstance(text, str))


def items_of(version: int, event: Event, agent: str | None, issuer: tuple[str, str] | None) -> list[Item]:
    """Return the items that an event says: the one function behind every history.

    `agent` and `issuer` are those of the open request or call. A rewrite's puts are not among
    them: they are in the view alone.
    """
    match event:
        case ModelResponded():
            return _responded(version, _held(raw(event, "output")), agent, issuer)
        case RunStarted() | InputAdded():
            return [Item(Ref(version, n), held) for n, held in enumerate(_held(raw(event, "input")))]
        case ToolReturned() | ToolAbandoned() | CallRefused() | HandoffMade():
            return [Item(Ref(version, 0), answer_item(event), agent, event.call)]
        case GuardrailTripped() if raw(event, "replacement") is not None:
            return [Item(Ref(version, 0), _one(raw(event, "replacement")), agent)]
        case _:
            return []


def _responded(
    version: int, values: Iterator[Raw], agent: str | None, issuer: tuple[str, str] | None
) -> list[Item]:
    items: list[Item] = []
    thought = False
    for n, held in enumerate(values):
        item = Item(Ref(version, n), held, agent, issuer=issuer, thought=thought)
        thought = item.type == "reasoning"
        items.append(item)
    return items


def _held(values: Sequence[Any]) -> Iterator[Raw]:
    for value in values:
        yield _one(value)


def _one(value: Any) -> Raw:
    return value if type(value) is Raw else Raw(dump(value))


def answer_item(event: ToolReturned | ToolAbandoned | CallRefused | HandoffMade) -> Raw:
    """Return the item that answers a call, in its fixed form.

    A tool's string goes out as it is, and any other JSON value as its JSON text; `shown`
    stands for it where it was given.
    """
    match event:
        case ToolReturned():
            shown = raw(event, "shown")
            output = bytes(_one(raw(event, "output") if shown is None else shown))
            if shown is None and not output.startswith(b'"'):
                output = dump(output.decode())
        case HandoffMade():
            output = dump(event.acknowledgement)
        case ToolAbandoned() | CallRefused():
            output = dump(event.answer)
    kind, call_id = dump(event.item), dump(event.call_id)
    return Raw(b'{"type":%b,"call_id":%b,"output":%b}' % (kind, call_id, output))


# -- what is an item

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_ROLES = frozenset({"user", "assistant", "system", "developer"})
_PARTS: Mapping[str, frozenset[str]] = {
    "user": frozenset({"input_text", "input_image", "input_file"}),
    "system": frozenset({"input_text", "input_image", "input_file"}),
    "developer": frozenset({"input_text", "input_image", "input_file"}),
    "assistant": frozenset({"output_text", "refusal"}),
}


def as_item(value: Item | Mapping[str, JSON]) -> Item:
    """Return a new item, or the given one. Raises UsageError for what no provider would take."""
    if isinstance(value, Item):
        # What is recorded stands; what a filter edited must still be an item, if it was one.
        edited = value.ref is None and not value._odd and (value.type in _KNOWN or not value.replaces)
        if edited and (wrong := _wrong(value.data)) is not None:
            raise UsageError(f"no item: {wrong}")
        return value
    if not isinstance(value, Mapping):
        raise UsageError(f"{type(value).__name__} is no item: give a Responses item as a dict, or an Item")
    data = _without_nulls(dict(value))
    if (wrong := _wrong(data)) is not None:
        raise UsageError(f"no item: {wrong}")
    try:
        held = Raw(dump(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"no item: {error}") from error
    if (wrong := _wrong_fields(data)) is not None:
        raise UsageError(f"no item: {wrong}")
    return Item(None, held)


def _wrong(data: dict[str, JSON]) -> str | None:
    """What is wrong with an item that somebody made, in words."""
    kind = data.get("type", "message" if "role" in data else None)
    if not isinstance(kind, str | None):
        return f"{kind!r} is no type of item that a provider takes"
    match kind:
        case "message":
            return _wrong_message(data)
        case "function_call" | "custom_tool_call":
            text = "arguments" if kind == "function_call" else "input"
            if not (isinstance(data.get("name"), str) and _NAME.match(data["name"])):
                return f"a {kind} needs a name of 1 to 64 of a-z, A-Z, 0-9, _ and -"
            if not isinstance(data.get(text), str):
                return f"a {kind} needs {text}, as text"
            return _wrong_call_id(kind, data)
        case "function_call_output" | "custom_tool_call_output":
            if not _is_content(data.get("output"), _PARTS["user"]):
                return f"a {kind} needs an output: text, or a list of input parts"
            return _wrong_call_id(kind, data)
        case "reasoning":
            if not isinstance(data.get("id"), str) or not isinstance(data.get("summary"), list):
                return "a reasoning item needs an id and a summary"
            return None
        case str() if kind in _OTHERS:
            lacks = [name for name in _OTHERS[kind] if name not in data]
            return f"a {kind} needs {' and '.join(lacks)}" if lacks else None
        case None:
            return "an item has a type, or a role and a content"
        case _:
            return f"{kind!r} is no type of item that a provider takes"


_KNOWN = frozenset({"message", "reasoning", *OURS, *(ANSWERED_BY[kind] for kind in OURS)})
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "computer_call": ("call_id",),
    "computer_call_output": ("call_id", "output"),
    "local_shell_call": ("call_id", "action"),
    "local_shell_call_output": ("output",),
    "shell_call": ("call_id", "action"),
    "shell_call_output": ("call_id", "output"),
    "apply_patch_call": ("call_id", "operation"),
    "apply_patch_call_output": ("call_id", "status"),
    "tool_search_call": (),
    "tool_search_output": (),
    "program": (),
    "program_output": (),
    "mcp_approval_request": ("id", "name"),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "compaction": ("encrypted_content",),
    "item_reference": ("id",),
}
"""What else may be given, and the fields that it needs."""

_FIELDS: Mapping[str, frozenset[str]] = {
    "message": frozenset({"type", "id", "status", "role", "content", "phase"}),
    "function_call": frozenset(
        {"type", "id", "status", "call_id", "name", "arguments", "namespace", "caller", "async"}
    ),
    "function_call_output": frozenset(
        {"type", "id", "status", "call_id", "output", "name", "namespace", "caller"}
    ),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content"}),
}
"""All fields of the items that every conversation has; the API refuses any other."""

_PART_FIELDS: Mapping[str, frozenset[str]] = {
    "input_text": frozenset({"type", "text", "prompt_cache_breakpoint"}),
    "input_image": frozenset({"type", "image_url", "file_id", "detail", "prompt_cache_breakpoint"}),
    "input_file": frozenset(
        {"type", "file_id", "file_data", "file_url", "filename", "detail", "prompt_cache_breakpoint"}
    ),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
}

_TEXTS = frozenset({"image_url", "file_id", "file_data", "file_url", "filename", "detail"})
_STATUS = ("completed", "in_progress", "incomplete")


def _without_nulls(data: dict[str, JSON]) -> dict[str, JSON]:
    """An id or a status that is null is none: so dumped models have it."""
    for name in ("id", "status"):
        if data.get(name, "") is None:
            del data[name]
    return data


def _wrong_fields(data: dict[str, JSON], known: Collection[str] = ()) -> str | None:
    """What is wrong with the fields of an item, but for those that are known."""
    kind = data.get("type", "message" if "role" in data else None)
    if not isinstance(data.get("id", ""), str):
        return "the id of an item is a text"
    if not isinstance(kind, str) or kind not in _FIELDS:
        return None
    if odd := sorted(map(repr, data.keys() - _FIELDS[kind] - set(known))):
        return f"a {kind} has no field {odd[0]}"
    if data.get("status", "completed") not in _STATUS:
        return f"the status of a {kind} is one of {', '.join(_STATUS)}, not {data['status']!r}"
    return None


def _wrong_call_id(kind: str, data: dict[str, JSON]) -> str | None:
    call_id = data.get("call_id")
    if not isinstance(call_id, str) or not 1 <= len(call_id) <= 64:
        return f"a {kind} needs a call_id of 1 to 64 characters"
    return None


def _wrong_message(data: dict[str, JSON]) -> str | None:
    role = data.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        return f"a message's role is one of {', '.join(sorted(_ROLES))}, not {role!r}"
    if not _is_content(data.get("content"), _PARTS[role]):
        return f"the content of a message from {role} is text, or a list of {', '.join(sorted(_PARTS[role]))}"
    return None


def _is_content(content: JSON, kinds: frozenset[str]) -> bool:
    if isinstance(content, str):
        return True
    if not isinstance(content, list | tuple):
        return False
    return all(isinstance(part, Mapping) and _is_part(part, kinds) for part in content)


def _is_part(part: Mapping[str, JSON], kinds: frozenset[str]) -> bool:
    if not isinstance(part.get("type"), str) or part["type"] not in kinds:
        return False
    if not part.keys() <= _PART_FIELDS[part["type"]]:
        return False
    match part["type"]:
        case "input_text":
            return isinstance(part.get("text"), str)
        case "output_text":
            marks = part.get("annotations", []), part.get("logprobs") or []
            return isinstance(part.get("text"), str) and all(isinstance(mark, list | tuple) for mark in marks)
        case "refusal":
            return isinstance(part.get("refusal"), str)
        case _:
            return all(isinstance(value, str | None) for name, value in part.items() if name in _TEXTS)
