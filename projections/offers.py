"""What an agent is told and offered, as the log knows it."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batonlog.events import AgentResolved
from batonlog.events.facts import raw


class Offer(Struct, frozen=True, gc=False):
    """What was offered under one name, and promised about it when it was."""

    tool: Raw
    """As it is sent: a function tool of the Responses API."""
    name: str
    kind: str = "tool"
    """`tool`, `handoff`, or `external` for one that runs elsewhere."""
    gate: str = "no"
    """Whether it needs approval: `no`, `yes`, or `ask` for a function that decides."""
    idempotent: bool = False
    on_unknown: str = "ask"
    targets: tuple[str, ...] = ()
    effect: bool = False
    """A handoff with a callback, which is an effect."""


_offers: msgspec.json.Decoder[Offer] = msgspec.json.Decoder(Offer)


def offer_from(data: Raw) -> Offer | None:
    """Read what an `agent.resolved` holds about one tool or handoff; None for what is none."""
    try:
        return _offers.decode(data)
    except msgspec.MsgspecError:
        return None


class Parts(Struct, frozen=True, gc=False):
    """What an agent is told and offered, as the log knows it."""

    instructions: str = ""
    offered: tuple[Raw, ...] = ()
    offers: Mapping[str, Offer] = {}
    output_schema: Raw = Raw(b"null")
    settings: Raw = Raw(b"{}")
    versions: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Of the `agent.resolved` that holds each part, in this order; 0 for none."""
    digest: bytes = b""

    def changed(self, version: int, event: AgentResolved) -> "Parts":
        """Return the parts after an `agent.resolved`."""
        offered = raw(event, "offered")
        versions = list(self.versions)
        changes: dict[str, Any] = {}
        for n, (name, value) in enumerate(
            (
                ("instructions", event.instructions),
                ("offered", offered),
                ("output_schema", raw(event, "output_schema")),
                ("settings", raw(event, "settings")),
            )
        ):
            if value is not None:
                changes[name] = value
                versions[n] = version
        if offered is not None:
            known = map(offer_from, offered)
            changes["offers"] = {offer.name: offer for offer in known if offer is not None}
        new = msgspec.structs.replace(self, **changes, versions=tuple(versions))
        return msgspec.structs.replace(new, digest=new.made_digest())

    def size(self) -> int:
        """Return the bytes of all that goes out with every request."""
        return len(self.instructions) + sum(map(len, self.offered)) + len(self.output_schema)

    def made_digest(self) -> bytes:
        """sha256 over the parts, each with its length before it."""
        parts = (self.instructions.encode(errors="surrogatepass"), *self.offered)
        total = sha256()
        for part in (*parts, self.output_schema, self.settings):
            data = bytes(part)
            total.update(b"%d:" % len(data))
            total.update(data)
        return total.digest()
