"""What a Responses server holds: responses, conversations, and the ids that it has issued.

Only `keep`, `forget` and the three conversation methods change anything, and the server calls them
after a request has passed every check: a refused request leaves everything as it was. Ids are
counters, so that a test that runs twice sees the same ids twice.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ._responses_items import CALL_OF, Item, call_key, id_prefix, input_items

_EPOCH = 1_760_000_000
"""The time at which the first thing is created; each next one a second later. No clock is read."""


@dataclass(slots=True)
class Issued:
    """An item whose id this server has given out, or has taken into a conversation."""

    item: Item
    after: str | None
    """The reasoning item directly before it in its response, if there is one."""
    stored: bool
    """Whether the server still holds it, so that it may be pointed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponse:
    """A response that may be fetched; `context` is None if none may continue it."""

    body: Item
    context: tuple[Item, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptConversation:
    """A conversation and what it holds so far, oldest first."""

    body: Item
    items: list[Item]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An accepted request: what the server held for it, and what it sent, references resolved."""

    request: Item
    before: tuple[Item, ...]
    sent: tuple[Item, ...]


class Held:
    """Everything that the server knows between two requests."""

    def __init__(self) -> None:
        self.responses: dict[str, KeptResponse] = {}
        self.conversations: dict[str, KeptConversation] = {}
        self.issued: dict[str, Issued] = {}
        self.sealed: dict[str, str] = {}
        """Encrypted content that was given out, and the reasoning item it belongs to."""
        self._counts: Counter[str] = Counter()
        self._reserved: set[str] = set()

    # -- reading

    def turn_of(self, request: Item) -> Turn:
        """Return a request with its context. The request must have been accepted."""
        sent = tuple(self.resolve(item) for item in input_items(request))
        return Turn(request=request, before=self.context_of(request), sent=sent)

    def context_of(self, request: Item) -> tuple[Item, ...]:
        """Return what the server already holds of a request's context, oldest first."""
        conversation = conversation_id(request)
        if conversation is not None:
            return tuple(self.conversations[conversation].items)
        previous = request.get("previous_response_id")
        if previous is not None:
            return self.responses[previous].context or ()
        return ()

    def resolve(self, item: Item) -> Item:
        """Return the item that is meant: what a reference points to, sealed reasoning with its id."""
        if item["type"] == "item_reference":
            return self.issued[item["id"]].item
        known = self.id_of(item)
        return item if known is None or "id" in item else {**item, "id": known}

    def id_of(self, item: Item) -> str | None:
        """Return the id of an item, also of reasoning that is sent without one."""
        found: str | None = item.get("id")
        if found is None and item["type"] == "reasoning":
            return self.sealed.get(item.get("encrypted_content") or "")
        return found

    # -- changing

    def mint(self, prefix: str) -> str:
        """Return the next id with this prefix, passing over those that somebody else has used."""
        while True:
            self._counts[prefix] += 1
            minted = f"{prefix}_{self._counts[prefix]}"
            if minted not in self._reserved:
                return minted

    def reserve(self, item: Item) -> None:
        """Never mint the ids of this item, which a script or a client has made."""
        self._reserved.update(found for found in (item.get("id"), call_key(item)) if found is not None)

    def tick(self) -> int:
        """Return the time of creation for the next thing created."""
        self._counts["tick"] += 1
        return _EPOCH + self._counts["tick"]

    def keep(self, turn: Turn, response: Item) -> None:
        """Remember an answer that was given: its ids, itself if stored, its turn in the conversation."""
        stored = turn.request.get("store") is not False
        conversation = conversation_id(turn.request)
        self._issue(response["output"], stored=stored or conversation is not None)
        failed = response["status"] == "failed"
        if stored:
            context = None if failed else (*turn.before, *turn.sent, *response["output"])
            self.responses[response["id"]] = KeptResponse(body=response, context=context)
        if conversation is not None and not failed:
            self._extend(self.conversations[conversation], turn.sent)
            self.conversations[conversation].items.extend(response["output"])

    def forget(self, response_id: str) -> None:
        """Delete a response. Its items can no longer be pointed to, unless a conversation holds them."""
        body = self.responses.pop(response_id).body
        elsewhere = {item["id"] for kept in self.conversations.values() for item in kept.items}
        for item in body["output"]:
            self.issued[item["id"]].stored = item["id"] in elsewhere

    def open_conversation(self, items: Sequence[Item], metadata: Item) -> KeptConversation:
        """Make a conversation that holds these items."""
        name = self.mint("conv")
        body = {"id": name, "object": "conversation", "created_at": self.tick(), "metadata": metadata}
        kept = self.conversations[name] = KeptConversation(body=body, items=[])
        self.add_to_conversation(name, items)
        return kept

    def forget_conversation(self, conversation: str) -> None:
        """Delete a conversation. What it held may still be pointed to."""
        del self.conversations[conversation]

    def add_to_conversation(self, conversation: str, items: Sequence[Item]) -> list[Item]:
        """Append items to a conversation and return them with their ids."""
        return self._extend(self.conversations[conversation], [self.resolve(item) for item in items])

    def _extend(self, kept: KeptConversation, items: Sequence[Item]) -> list[Item]:
        named = [self._named(item) for item in items]
        kept.items.extend(named)
        return named

    def _named(self, item: Item) -> Item:
        """Give an input item the id that it has in its conversation from now on."""
        known = item.get("id")
        if known in self.issued:
            self.issued[known].stored = True
            return item
        kind = item["type"]
        minted = self.mint(id_prefix(kind) + ("o" if kind in CALL_OF else ""))
        item = {**item, "id": minted}
        if kind in ("message", "function_call", "function_call_output"):
            item["status"] = item.get("status") or "completed"
        self.issued[minted] = Issued(item=item, after=None, stored=True)
        return item

    def _issue(self, output: Sequence[Item], *, stored: bool) -> None:
        for before, item in _pairwise(output):
            after = before["id"] if before is not None and before["type"] == "reasoning" else None
            self.issued[item["id"]] = Issued(item=item, after=after, stored=stored)
            sealed = item.get("encrypted_content")
            if sealed is not None:
                self.sealed[sealed] = item["id"]


def conversation_id(request: Item) -> str | None:
    """Return the id of the conversation that a request belongs to, however it is spelled."""
    conversation = request.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation["id"]
    return conversation if isinstance(conversation, str) else None


def _pairwise(items: Sequence[Item]) -> Iterator[tuple[Item | None, Item]]:
    return zip((None, *items), items, strict=False)
