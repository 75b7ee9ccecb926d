"""The endpoints of conversations: make one, find it, read what it holds, add to it, delete it."""

from urllib.parse import parse_qs

from ._responses_held import Held, KeptConversation
from ._responses_items import Item, items_in
from ._strict import refusal_of_conversation, refusal_of_items
from ._strict_shapes import Refusal, invalid


def create_conversation(body: Item, held: Held) -> Item | Refusal:
    """Make a conversation, with or without items, and return it."""
    refusal = refusal_of_conversation(body, held)
    return refusal or held.open_conversation(items_in(body), body.get("metadata") or {}).body


def find_conversation(conversation: str, held: Held) -> Item | Refusal:
    """Return a conversation, without what it holds."""
    kept = held.conversations.get(conversation)
    return _no_conversation(conversation) if kept is None else kept.body


def delete_conversation(conversation: str, held: Held) -> Item | Refusal:
    """Delete a conversation. Its items are not deleted, and may still be pointed to."""
    if conversation not in held.conversations:
        return _no_conversation(conversation)
    held.forget_conversation(conversation)
    return {"id": conversation, "object": "conversation.deleted", "deleted": True}


def create_items(conversation: str, body: Item, held: Held) -> Item | Refusal:
    """Add items to a conversation and return the list of them."""
    kept = held.conversations.get(conversation)
    if kept is None:
        return _no_conversation(conversation)
    refusal = refusal_of_items(body, kept.items, held)
    return refusal or _page(held.add_to_conversation(conversation, items_in(body)), more=False)


def list_items(conversation: str, query: str, held: Held) -> Item | Refusal:
    """Return one page of a conversation: 20 items, newest first, unless the query says otherwise."""
    kept = held.conversations.get(conversation)
    if kept is None:
        return _no_conversation(conversation)
    asked = {key: values[-1] for key, values in parse_qs(query).items()}
    limit = asked.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit) <= 100:
        return invalid(
            "limit", f"expected an integer from 1 to 100, but got '{limit}' instead.", "invalid_value"
        )
    rest = _after(kept, asked.get("after"), ascending=asked.get("order") == "asc")
    return _page(rest[: int(limit)], more=len(rest) > int(limit))


def _after(kept: KeptConversation, after: str | None, *, ascending: bool) -> list[Item]:
    items = kept.items if ascending else kept.items[::-1]
    ids = [item["id"] for item in items]
    return items[ids.index(after) + 1 :] if after in ids else items


def _page(items: list[Item], *, more: bool) -> Item:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }


def _no_conversation(conversation: str) -> Refusal:
    return Refusal(message=f"Conversation with id '{conversation}' not found.", status=404)
