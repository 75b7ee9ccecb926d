"""A response as the events in which it is streamed.

Texts come in deltas of a fixed number of characters; what has no events of its own (a hosted tool's
call, say) is added and done at once. The order and the fields are those of the API.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any, TypeAlias

import msgspec

from ._responses_items import Item

Event: TypeAlias = dict[str, Any]


def server_sent(events: Iterator[Event]) -> Iterator[bytes]:
    """Write events as server-sent events, in their own sequence numbers."""
    for event in events:
        yield b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


def stream_events(response: Item, *, chunk: int) -> Iterator[Event]:
    """Yield the events of a whole response, numbered; the last one carries it as it is."""
    numbers = count()
    for event in _events(response, chunk):
        kind = event.pop("type")
        yield {"type": kind, "sequence_number": next(numbers), **event}


def _events(response: Item, chunk: int) -> Iterator[Event]:
    begun = {
        **response,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        for event in _item_events(item, chunk):
            yield {**event, "item_id": item["id"], "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _begun(item: Item) -> Item:
    begun = dict(item)
    if "status" in item:
        begun["status"] = "in_progress"
    match item["type"]:
        case "message":
            begun["content"] = []
        case "function_call":
            begun["arguments"] = ""
        case "custom_tool_call":
            begun["input"] = ""
        case "reasoning":
            begun["summary"] = []
            if "content" in item:
                begun["content"] = []
    return begun


def _item_events(item: Item, chunk: int) -> Iterator[Event]:
    match item["type"]:
        case "message":
            yield from _content(item["content"], chunk)
        case "function_call":
            yield from _text("response.function_call_arguments", "arguments", item["arguments"], chunk)
        case "custom_tool_call" if isinstance(item.get("input"), str):
            yield from _text("response.custom_tool_call_input", "input", item["input"], chunk)
        case "reasoning":
            for index, part in enumerate(item["summary"]):
                for event in _summary_part(part, chunk):
                    yield {**event, "summary_index": index}
            yield from _content(item.get("content") or [], chunk)


_DELTAS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}
"""Which events carry a content part's text, and where the part holds it."""


def _content(parts: list[Item], chunk: int) -> Iterator[Event]:
    for index, part in enumerate(parts):
        for event in _content_part(part, chunk):
            yield {**event, "content_index": index}


def _content_part(part: Item, chunk: int) -> Iterator[Event]:
    if part["type"] not in _DELTAS:
        yield {"type": "response.content_part.added", "part": part}
    else:
        name, key = _DELTAS[part["type"]]
        yield {"type": "response.content_part.added", "part": {**part, key: ""}}
        extra: Event = {"logprobs": []} if part["type"] == "output_text" else {}
        for event in _text(name, key, part[key], chunk):
            yield {**event, **extra}
    yield {"type": "response.content_part.done", "part": part}


def _summary_part(part: Item, chunk: int) -> Iterator[Event]:
    yield {"type": "response.reasoning_summary_part.added", "part": {**part, "text": ""}}
    yield from _text("response.reasoning_summary_text", "text", part["text"], chunk)
    yield {"type": "response.reasoning_summary_part.done", "part": part}


def _text(name: str, key: str, text: str, chunk: int) -> Iterator[Event]:
    for start in range(0, len(text), chunk):
        yield {"type": f"{name}.delta", "delta": text[start : start + chunk]}
    yield {"type": f"{name}.done", key: text}
