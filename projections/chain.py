"""The server chain: what the provider holds and may be continued."""

from collections.abc import Iterable

from msgspec import Struct

from batonlog.events import Record, Ref
from batonlog.projections.state import run_state


class Chain(Struct, frozen=True, gc=False):
    """A response that the provider keeps, or a conversation, and what it holds with it."""

    response_id: str
    """The response that may be continued. In a conversation the latest one, "" if that has no id."""
    held: tuple[Ref, ...]
    """The items of the view that need not be sent again."""
    conversation: str | None = None
    """The conversation that may be continued; None if the response is."""


def server_chain(records: Iterable[Record], *, at: int | None = None) -> Chain | None:
    """What the provider holds and may be chained to; None after a rewrite.

    A stored response sets it. A rewrite breaks it for good, as do a request that does not
    continue it, an erasure, and the provider not knowing the id: then the next request
    carries the whole view. A conversation is also broken by a fork, and by a request in it that
    was not answered in full; while one is open there is none.
    """
    state = run_state(records, at=at)
    if state.chain is None:
        return None
    held = state.place.settled[: state.chain.held]
    refs = tuple(item.ref for item in held if item.ref is not None)
    return Chain(state.chain.response_id, refs, state.chain.conversation)
