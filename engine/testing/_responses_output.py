"""An answer as the API gives it: finished output items, and the response object around them."""

import base64
import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from ._responses_held import Held, Turn, conversation_id
from ._responses_items import Item, id_prefix
from ._responses_script import Answer

_ECHOED: Final[Item] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "",
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, and what it says where the request says nothing."""

_FILLED: Final = frozenset({"id", "call_id", "status", "summary"})


def respond(turn: Turn, answer: Answer, held: Held) -> Item:
    """Return the whole response object for a request that was accepted. Of `held`, only counters move."""
    request = turn.request
    status = answer.fields.get("status", "completed")
    output = _finish_all(turn, answer, status, held)
    created = held.tick()
    return {
        "id": held.mint("resp"),
        "object": "response",
        "created_at": created,
        "completed_at": created if status == "completed" else None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": output,
        **{key: default if (sent := request.get(key)) is None else sent for key, default in _ECHOED.items()},
        "conversation": None if (kept := conversation_id(request)) is None else {"id": kept},
        "reasoning": {"effort": None, "summary": None, **(request.get("reasoning") or {})},
        "text": {"format": {"type": "text"}, **(request.get("text") or {})},
        "usage": _usage(turn, output),
        **answer.fields,
    }


def _finish_all(turn: Turn, answer: Answer, status: str, held: Held) -> list[Item]:
    for item in (*turn.sent, *answer.items):
        held.reserve(item)
    sealing = "reasoning.encrypted_content" in (turn.request.get("include") or ())
    finished = []
    for index, item in enumerate(answer.items):
        # A response that is cut off is cut off in its last item.
        cut = status == "incomplete" and index == len(answer.items) - 1
        item = _finish(item, "incomplete" if cut else "completed", held)
        if item["type"] == "reasoning" and sealing:
            item.setdefault("encrypted_content", _seal(item["id"], turn))
        elif item["type"] == "reasoning":
            item.pop("encrypted_content", None)
        finished.append(item)
    return finished


def _finish(item: Item, status: str, held: Held) -> Item:
    kind = item["type"]
    # A script may be made of dumped models, where what is to be filled in is null.
    item = {key: value for key, value in item.items() if value is not None or key not in _FILLED}
    finished: Item = {"id": item.get("id") or held.mint(id_prefix(kind)), "type": kind}
    match kind:
        case "message":
            finished |= {"status": status, "role": "assistant", **item, "content": _parts(item["content"])}
        case "function_call":
            finished |= {"status": status, "call_id": item.get("call_id") or held.mint("call"), **item}
        case "reasoning":
            finished |= {"summary": [], **item}
        case _:
            finished |= item
    return finished


def _parts(content: str | list[Item]) -> list[Item]:
    parts = [{"type": "output_text", "text": content}] if isinstance(content, str) else content
    return [
        {"annotations": [], "logprobs": [], **part} if part.get("type") == "output_text" else part
        for part in parts
    ]


def _seal(item_id: str, turn: Turn) -> str:
    # Made from all that led to it: two servers never issue the same seal for different talks,
    # so that one cannot verify the other's.
    led = [item_id, turn.request.get("model"), turn.request.get("instructions"), turn.before, turn.sent]
    seal = base64.urlsafe_b64encode(hashlib.sha256(msgspec.json.encode(led)).digest())
    return f"gAAAAA{seal.decode()}"


def _usage(turn: Turn, output: Sequence[Item]) -> Item:
    read = tokens_read(turn)
    written = _tokens([output])
    thought = _tokens([[item for item in output if item["type"] == "reasoning"]])
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": read + written,
    }


def tokens_read(turn: Turn) -> int:
    """Return the tokens of all that a model reads in a turn."""
    return _tokens([turn.before, turn.sent, turn.request.get("instructions"), turn.request.get("tools")])


def _tokens(parts: Sequence[object]) -> int:
    """Estimate: four bytes of JSON are a token."""
    return sum(len(msgspec.json.encode(part)) for part in parts if part) // 4
