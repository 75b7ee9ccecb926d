"""A model request as data: what a model is shown, rebuilt from the log and proven by its digest.

The digest is over the request's parts, so that it costs what was added since the last one,
not what is held: the running digest of the view, the first item that is sent, what it
continues, the digest of the agent's parts, the issuer, and the number of the wire format.
Given that number, an adapter makes the same bytes of the same request.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from msgspec import Raw

from batonlog.events import (
    JSON,
    AgentResolved,
    DamagedError,
    EventRedacted,
    ModelRequested,
    Record,
    UnknownEvent,
    UsageError,
)
from batonlog.events.values import dump, load
from batonlog.projections.history import History
from batonlog.projections.items import Item
from batonlog.projections.offers import Parts, offer_from
from batonlog.projections.placement import Placement, place
from batonlog.projections.view import View
from batonlog.projections.wire import WIRE, Former, chained


class ModelRequest:
    """One request as data, free of any provider; `digest` proves it. Immutable."""

    __slots__ = (
        "_offered",
        "_output_schema",
        "_settings",
        "_view",
        "agent",
        "conversation",
        "digest",
        "first",
        "instructions",
        "model",
        "previous_response_id",
        "stored",
        "turn",
    )

    def __init__(
        self,
        *,
        view: View,
        parts: Parts,
        requested: ModelRequested,
    ) -> None:
        self._view = view
        self._offered = parts.offered
        self._output_schema = parts.output_schema
        self._settings = parts.settings
        self.model: str = requested.issuer[1]
        """The model's name."""
        self.agent: str = requested.agent
        """Who asks."""
        self.instructions: str = parts.instructions
        """The system text."""
        self.previous_response_id: str | None = requested.previous_response_id
        """The response that it continues."""
        self.conversation: str | None = requested.conversation
        """The provider's conversation that it is added to; new, if `first` is 0."""
        self.first: int = requested.first
        """Index in the view of the first item of `input`."""
        self.stored: bool = requested.stored
        """Whether the provider is asked to keep the response."""
        self.turn: int = requested.turn
        """Number of the model call in its run."""
        self.digest: bytes = requested.digest
        """sha256 over all of it."""

    @property
    def input(self) -> History:
        """What is sent: the view, or the part that the provider does not hold."""
        return History(self._view[self.first :])

    @property
    def tools(self) -> tuple[JSON, ...]:
        """Tools and handoffs, as function tools of the Responses API."""
        return tuple(load(tool) for tool in self.raw_tools)

    @property
    def output_schema(self) -> JSON:
        """JSON schema of the answer; None for text."""
        return load(self._output_schema)

    @property
    def settings(self) -> Mapping[str, JSON]:
        """Sampling and provider options; what is not set is not there."""
        settings: dict[str, JSON] = load(self._settings)
        return settings

    # -- for adapters that make bytes of it

    @property
    def raw_input(self) -> Sequence[bytes]:
        """The items of `input` in the wire form: with the ids that the provider knows, if it holds others."""
        if self.previous_response_id is not None or (self.conversation is not None and self.first):
            return [chained(item) for item in self._view[self.first :]]
        return self._view.wire(self.first)

    @property
    def raw_tools(self) -> Sequence[Raw]:
        """The tools as JSON."""
        return [offer.tool for offer in map(offer_from, self._offered) if offer is not None]

    @property
    def raw_output_schema(self) -> Raw:
        """The schema of the answer as JSON; `null` for text."""
        return self._output_schema

    @property
    def raw_settings(self) -> Raw:
        """The settings as a JSON object."""
        return self._settings


def request_of(view: View, parts: Parts, agent: str, issuer: tuple[str, str]) -> ModelRequest:
    """Return the request that would show a view in full; nothing is promised about it, so it has no digest."""
    asked = ModelRequested(
        turn=0, agent=agent, parts=parts.versions, issuer=issuer, wire=WIRE, stored=False, digest=b""
    )
    return ModelRequest(view=view, parts=parts, requested=asked)


def digest_of(
    *,
    view: View,
    parts: Parts,
    issuer: tuple[str, str],
    first: int,
    previous_response_id: str | None,
    conversation: str | None,
    wire: int = WIRE,
) -> bytes:
    """Return the digest of a request for this view."""
    total = sha256()
    for part in (
        view.digest(),
        parts.digest,
        dump([*issuer, first, previous_response_id, conversation, wire]),
    ):
        total.update(b"%d:" % len(part))
        total.update(part)
    return total.digest()


def model_request(records: Iterable[Record], *, at: int) -> ModelRequest:
    """Rebuild the request of the `model.requested` at that version, and check its digest.

    Raises UsageError if there is no request at that version, and DamagedError if the digest
    does not prove it. After an erasure it is not provable, and says so.
    """
    state = Placement()
    parts: dict[str, Parts] = {}
    erased = 0
    for record in records:
        state = place(state, record.version, record.event)
        match record.event:
            case AgentResolved() as event:
                parts[event.agent] = parts.get(event.agent, Parts()).changed(record.version, event)
            case EventRedacted():
                erased += 1
            case ModelRequested() as event if record.version == at:
                return _proven(record, event, state.settled, parts.get(event.agent, Parts()), erased)
            case UnknownEvent(tag=tag):
                raise UsageError(
                    f"{record.session} holds {tag} at version {record.version}, which this batonlog does not "
                    f"know: upgrade it to rebuild later requests",
                    session=record.session,
                    version=record.version,
                )
            case _:
                pass
        if record.version >= at:
            raise UsageError(
                f"{record.session} has {record.type} at version {at}, not model.requested: "
                f"see timeline() for the versions of its requests",
                session=record.session,
                version=at,
            )
    raise UsageError(f"there is no version {at} in these records: give the whole session", version=at)


def _proven(record: Record, event: ModelRequested, view: View, parts: Parts, erased: int) -> ModelRequest:
    found = digest_of(
        view=view,
        parts=parts,
        issuer=event.issuer,
        first=event.first,
        previous_response_id=event.previous_response_id,
        conversation=event.conversation,
        wire=event.wire,
    )
    if found != event.digest:
        why = (
            f"not provable: {erased} events erased"
            if erased
            else "not what was asked: its digest does not prove what the log holds"
        )
        raise DamagedError(
            f"the request at version {record.version} of {record.session} is {why}",
            session=record.session,
            version=record.version,
        )
    return ModelRequest(view=view, parts=parts, requested=event)


def wire_input(items: Iterable[Item]) -> list[bytes]:
    """Return items in the wire form, as a request that is sent in full holds them."""
    former = Former()
    return [former.form(item) for item in items]
