"""The rules of a whole context: origin of items, calls and their outputs, reasoning and its follower.

The context is what the server holds for the request (a chain, a conversation) and then the
request's input. What is held was accepted before, so only what is sent can break a rule of origin
or of reasoning; a call and its output may well stand on the two sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ._responses_held import Held, conversation_id
from ._responses_items import CALL_OF, OUTPUT_OF, Item, call_key, is_model_output
from ._strict_shapes import Complaints, Refusal, missing


def check_history(request: Item, held: Held) -> Complaints:
    """Yield whether the response or conversation that the request continues is not there."""
    previous = request.get("previous_response_id")
    if previous is not None and (previous not in held.responses or held.responses[previous].context is None):
        yield Refusal(
            message=f"Previous response with id '{previous}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    conversation = conversation_id(request)
    if conversation is not None and conversation not in held.conversations:
        yield Refusal(message=f"Conversation with id '{conversation}' not found.", status=404)


def check_origin(before: Sequence[Item], sent: Sequence[Item], held: Held) -> Complaints:
    """Yield items that this server never issued, holds no longer, or is given twice."""
    seen = {item["id"] for item in before if "id" in item}
    for index, item in enumerate(sent):
        if item["type"] == "reasoning":
            yield from _reasoning_origin(item, f"input[{index}].id", held)
        known = held.id_of(item)
        if known is None or item["type"] == "local_shell_call_output":
            # The id of a local shell call's output is that of its call, not its own.
            continue
        issued = held.issued.get(known)
        if issued is None or item["type"] not in ("item_reference", issued.item["type"]):
            yield _not_found(known, why="")
        elif item["type"] == "item_reference" and not issued.stored:
            yield _not_found(known, why=_NOT_PERSISTED)
        if known in seen:
            yield Refusal(
                message=(
                    f"Duplicate item found with id {known}. "
                    "Remove duplicate items from your input and try again."
                ),
                param="input",
            )
        seen.add(known)


_NOT_PERSISTED = (
    " Items are not persisted when `store` is set to false. "
    "Try again with `store` set to true, or remove this item from your input."
)


def _not_found(item_id: str, *, why: str) -> Refusal:
    return Refusal(message=f"Item with id '{item_id}' not found.{why}", param="input")


def _reasoning_origin(item: Item, path: str, held: Held) -> Complaints:
    sealed = item.get("encrypted_content")
    own = item.get("id")
    if sealed:
        if sealed not in held.sealed or own not in (None, held.sealed[sealed]):
            which = f"for item {own}" if own else f"{sealed[:4]}...{sealed[-4:]}"
            yield Refusal(
                message=f"The encrypted content {which} could not be verified.",
                code="invalid_encrypted_content",
            )
    elif own is None:
        yield missing(path)
    elif own in held.issued and not held.issued[own].stored:
        # Nothing was kept and nothing is brought along: the reasoning is nowhere.
        yield _not_found(own, why=_NOT_PERSISTED)


@dataclass(slots=True)
class _Calls:
    kind: str
    unanswered: int


def check_pairs(before: Sequence[Item], sent: Sequence[Item]) -> Complaints:
    """Yield a call without its output, an output without its call, a call id used again.

    Calls that the server itself has issued under one id are its own doing: along a chain each
    output then answers one of them.
    """
    calls: dict[str, _Calls] = {}
    for position, item in enumerate((*before, *sent)):
        key = call_key(item)
        if key is None:
            continue
        if item["type"] in OUTPUT_OF:
            if key in calls and position >= len(before):
                yield _repeated_call(key)
            earlier = calls[key].unanswered if key in calls else 0
            calls[key] = _Calls(item["type"], earlier + 1)
        elif item["type"] in CALL_OF:
            call = calls.get(key)
            if call is None or OUTPUT_OF[call.kind] != item["type"]:
                yield _no_call(key, item["type"])
            elif call.unanswered == 0:
                yield _repeated_output(key, item["type"])
            else:
                call.unanswered -= 1
    for key, call in calls.items():
        if call.unanswered:
            yield _no_output(key, call.kind)


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _no_call(key: str, kind: str) -> Refusal:
    if kind == "mcp_approval_response":
        return Refusal(message=f"No approval request found with id '{key}'.", param="input")
    message = f"No tool call found for {_words(kind)} with call_id {key}."
    return Refusal(message=message, param="input")


def _no_output(key: str, kind: str) -> Refusal:
    if kind == "mcp_approval_request":
        return Refusal(message=f"MCP approval requests do not have an approval: {key}", param="input")
    return Refusal(message=f"No tool output found for {_words(kind)} {key}.", param="input")


def _repeated_call(key: str) -> Refusal:
    message = f"Duplicate call_id {key} found in input. Each tool call needs a call_id of its own."
    return Refusal(message=message, param="input")


def _repeated_output(key: str, kind: str) -> Refusal:
    message = f"Duplicate {_words(kind)} for call_id {key}. Each tool call must have exactly one output."
    return Refusal(message=message, param="input")


def check_reasoning(before: Sequence[Item], sent: Sequence[Item], held: Held) -> Complaints:
    """Yield reasoning without the item that follows it, and an item sent without the reasoning before it."""
    previous = before[-1] if before else None
    for position, item in enumerate(sent):
        if item["type"] == "reasoning":
            follower = sent[position + 1] if position + 1 < len(sent) else None
            if follower is None or not is_model_output(follower):
                yield Refusal(
                    message=(
                        f"Item '{item['id']}' of type 'reasoning' was provided without "
                        "its required following item."
                    ),
                    param="input",
                )
        elif (needed := _needed_reasoning(item, held)) is not None and (
            previous is None or previous.get("id") != needed
        ):
            yield Refusal(
                message=(
                    f"Item '{item['id']}' of type '{item['type']}' was provided without "
                    f"its required 'reasoning' item: '{needed}'."
                ),
                param="input",
            )
        previous = item


def _needed_reasoning(item: Item, held: Held) -> str | None:
    # Sent without an id, an item is the client's own and nothing ties it to its reasoning.
    known = item.get("id")
    return held.issued[known].after if known in held.issued else None
