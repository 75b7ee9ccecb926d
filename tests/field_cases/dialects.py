"""What stricter providers refuse, as checkers over what goes out.

There is no adapter for Chat Completions yet, so the Responses items of a request are mapped to chat
messages here, by the one rule that such an adapter would have: instructions are the first
message, an answer's text and calls are one message, an output is a tool's message.
"""

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from batonlog.engine import ModelRequest
from batonlog.projections.items import text_of

Message = dict[str, Any]


def chat_messages(request: ModelRequest) -> list[Message]:
    """Return a request as Chat Completions messages."""
    messages: list[Message] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    for item in map(json.loads, request.raw_input):
        match item.get("type", "message"):
            case "message" if item["role"] == "assistant":
                said = _answer(messages)
                said["content"] = (said["content"] or "") + text_of(item["content"])
            case "message":
                messages.append({"role": item["role"], "content": text_of(item["content"])})
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                _answer(messages).setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append(
                    {"role": "tool", "tool_call_id": item["call_id"], "content": text_of(item["output"])}
                )
            case "reasoning":
                pass  # has no place there
            case kind:
                raise AssertionError(f"{kind} has no place in a chat")
    return messages


def _answer(messages: list[Message]) -> Message:
    """The assistant's message that is being said."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _calls(message: Message) -> list[Message]:
    return list(message.get("tool_calls", ()))


def chat_completions_strict(messages: list[Message]) -> list[str]:
    """Each call is answered by exactly one tool message, directly after the message that makes it."""
    wrong: list[str] = []
    owed: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in owed:
                owed.remove(message["tool_call_id"])
            else:
                wrong.append(f"{message['tool_call_id']} is answered, and was not just called")
            continue
        wrong += [f"{call_id} has no answer" for call_id in owed]
        owed = [call["id"] for call in _calls(message)]
        wrong += [f"{call_id} is called twice" for call_id in owed if call_id in seen]
        seen.update(owed)
    return [*wrong, *(f"{call_id} has no answer" for call_id in owed)]


def system_first_only(messages: list[Message]) -> list[str]:
    """The system speaks first, or never."""
    return [
        f"a {message['role']} message stands at {place}"
        for place, message in enumerate(messages)
        if message["role"] in ("system", "developer") and place
    ]


def no_user_after_tool(messages: list[Message]) -> list[str]:
    """No user's message stands directly after a tool's."""
    return [
        f"the user speaks after a tool at {place}"
        for place, (before, message) in enumerate(pairwise(messages))
        if (before["role"], message["role"]) == ("tool", "user")
    ]


def alternate_roles(messages: list[Message]) -> list[str]:
    """The assistant and the others take turns; the answers of tools are one turn."""
    sides: list[str] = []
    for message in messages:
        role = message["role"]
        if role != "system" and not (role == "tool" and sides and sides[-1] == "tool"):
            sides.append(role)
    ours = [role == "assistant" for role in sides]
    return [f"two of one side at {place}" for place, (a, b) in enumerate(pairwise(ours)) if a == b]


def strict_json_args(messages: list[Message]) -> list[str]:
    """The arguments of every call are a JSON object."""
    return [
        f"the arguments of {call['id']} are {text!r}"
        for message in messages
        for call in _calls(message)
        if not _is_object(text := call["function"]["arguments"])
    ]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


DIALECTS: Mapping[str, Callable[[list[Message]], list[str]]] = {
    "chat_completions_strict": chat_completions_strict,
    "system_first_only": system_first_only,
    "no_user_after_tool": no_user_after_tool,
    "alternate_roles": alternate_roles,
    "strict_json_args": strict_json_args,
}


def refused(request: ModelRequest, dialect: str) -> list[str]:
    """Return what a provider of this dialect refuses in a request."""
    return DIALECTS[dialect](chat_messages(request))
