"""Events to stored bytes and back: the one place where either is done.

The stored form of an event is JSON, tagged `type`. Stored bytes are never encoded again:
export, forks and verification copy them.
"""

import json
from collections.abc import Callable
from typing import Any, get_args

import msgspec
from msgspec import Raw, Struct

from batonlog.events.facts import AnyEvent, Event, UnknownEvent, raw
from batonlog.events.values import Foreign, Foreigns, dump, load

TAGS: dict[str, type[Event]] = {cls.type: cls for cls in get_args(AnyEvent)}

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(AnyEvent)
decode_known: Callable[[bytes], Event] = _decoder.decode
"""As `decode`, and nothing but that: raises ValueError for unknown tags and lone surrogates too."""


class _Tag(Struct):
    type: str


_tag_decoder = msgspec.json.Decoder(_Tag)


def encode(event: Event) -> bytes:
    """Return the stored form. Raises TypeError for data that JSON cannot hold."""
    if type(event) is UnknownEvent:
        return _encode_unknown(event)
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:  # lone surrogates: see values.dump
        return _encode_escaped(event)


def _encode_unknown(event: UnknownEvent) -> bytes:
    held = raw(event, "data")
    if type(held) is Raw and _tag_of(bytes(held)) == event.tag:
        return bytes(held)  # as it was stored
    data = event.data
    if not isinstance(data, dict):
        raise TypeError("the data of an event is an object")
    return dump({"type": event.tag, **{key: value for key, value in data.items() if key != "type"}})


def _encode_escaped(event: Event) -> bytes:
    return _encoder.encode({"type": event.type, **_fields(event)})


def _fields(value: Any) -> dict[str, Any]:
    """The fields that would be stored, for the escaped form. Foreign bytes stay as they are."""
    out: dict[str, Any] = {}
    for field in msgspec.structs.fields(value):
        inner = (
            value._slots[field.name].__get__(value)
            if field.name in value._slots
            else getattr(value, field.name)
        )
        if field.default is not msgspec.NODEFAULT and inner == field.default:
            continue
        if hasattr(inner, "_slots"):
            out[field.encode_name] = _fields(inner)
        elif isinstance(inner, (list, tuple)):
            out[field.encode_name] = [Raw(dump(part)) for part in inner]
        else:
            out[field.encode_name] = Raw(dump(inner))
    return out


def decode(payload: bytes) -> Event:
    """Return the event of a stored form; one of an unknown tag as UnknownEvent.

    Its foreign fields share the bytes of `payload`. Raises ValueError if it is damaged.
    """
    try:
        return _decoder.decode(payload)  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        if (tag := _tag_of(payload)) in TAGS:
            raise
        return UnknownEvent(tag=tag, data=Raw(payload))
    except msgspec.DecodeError:
        return _decode_escaped(payload)


def _tag_of(payload: bytes) -> str:
    try:
        return _tag_decoder.decode(payload).type
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # a lone surrogate, which msgspec refuses even where it only passes over it
        return _tagged(json.loads(payload))


def _tagged(data: Any) -> str:
    tag = data.get("type") if isinstance(data, dict) else None
    if not isinstance(tag, str):
        raise ValueError("an event is an object with a type")
    return tag


def _decode_escaped(payload: bytes) -> Event:
    """Decode a payload with escapes of lone surrogates, which msgspec refuses."""
    data = json.loads(payload)
    tag = _tagged(data)
    if (cls := TAGS.get(tag)) is None:
        return UnknownEvent(tag=tag, data=Raw(payload))
    return msgspec.convert(_with_raws(data, cls), cls)


def _with_raws(data: Any, cls: Any) -> Any:
    """Put the bytes of each foreign field back in place. What nobody knows yet is passed over."""
    out = {"type": data["type"]} if "type" in data else {}
    for field in msgspec.structs.fields(cls):
        if field.encode_name not in data:
            continue
        value = out[field.encode_name] = data[field.encode_name]
        if field.type is Foreign:
            out[field.encode_name] = Raw(dump(value))
        elif field.type in (Foreigns, Foreigns | None) and value is not None:
            out[field.encode_name] = tuple(Raw(dump(inner)) for inner in value)
        elif isinstance(value, dict) and (inner := _part_of(field.type)) is not None:
            out[field.encode_name] = _with_raws(value, inner)
    return out


def _part_of(annotation: Any) -> Any:
    """The struct that a field holds, if it does."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Struct):
            return candidate
    return None


def fresh(event: Event) -> Event:
    """Return an event as it will be read back: what is folded is always what is stored."""
    return decode(encode(event))


__all__ = ["TAGS", "decode", "dump", "encode", "fresh", "load", "raw"]
