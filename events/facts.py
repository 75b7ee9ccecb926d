"""The event set: what can happen in a session. Plain frozen values, past tense, one tag each.

Rules of this file:

1. Events only ever gain fields, each with a default, and a stored default never changes:
   what equals its default is not written.
2. The tag is explicit and for ever. Renaming a class must not touch a log.
3. No payload holds the version that it itself will get.
4. A field of foreign JSON is annotated `Foreign…`: it holds the stored bytes, and reading
   it gives fresh data, so that nobody can change an event and unknown fields survive.
   `raw(event, name)` gives the bytes.

Users add facts of their own with `NoteAdded`, never by subclassing.
"""

from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, dataclass_transform

import msgspec
from msgspec import Raw, Struct, StructMeta

from batonlog.events.values import Foreign, ForeignObject, Foreigns, Limits, Ref, Usage, load, plain


def _lens(slot: MemberDescriptorType) -> property:
    def get(event: Struct) -> object:
        value = slot.__get__(event)
        if type(value) is Raw:
            return load(value)
        if type(value) is tuple:
            return tuple(plain(inner) for inner in value)
        return plain(value)

    return property(get)


class _EventMeta(StructMeta):
    """Makes every event frozen, keyword-only and tagged, and puts a lens before each foreign field.

    msgspec fills and reads the fields by offset; attribute access goes through the class.
    So a property in place of a field's descriptor changes what is given out, and nothing else.
    """

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, tag: str | None = None
    ) -> Any:
        cls: Any = super().__new__(
            mcls,
            name,
            bases,
            namespace,
            tag=tag,
            tag_field="type" if tag else None,
            frozen=True,
            kw_only=True,  # not inherited by msgspec, hence here
            gc=False,
            omit_defaults=True,
        )
        cls.type = tag or ""
        cls._slots = {}
        for field in msgspec.structs.fields(cls):
            if field.type in (Foreign, Foreigns, Foreigns | None):
                slot = cls._slots[field.name] = cls.__dict__[field.name]
                setattr(cls, field.name, _lens(slot))
        return cls


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True, kw_only_default=True)
    class _Value:
        """What events and their parts have in common."""

        _slots: ClassVar[dict[str, MemberDescriptorType]]

        def __init_subclass__(cls, *, tag: str | None = None) -> None: ...

else:

    class _Value(Struct, metaclass=_EventMeta):
        """What events and their parts have in common."""


class Event(_Value):
    """What happened. Users add facts with NoteAdded, never by subclassing."""

    type: ClassVar[str]


def raw(value: _Value, name: str) -> Any:
    """Return a foreign field as it is held: Raw, a tuple of Raws, or None if it was not given.

    Only of what was read from a log; what was just made may hold plain data.
    """
    return value._slots[name].__get__(value)


# -- the run


class RunStarted(Event, tag="run.started"):
    """A run begins: from an input to an answer."""

    run_id: str
    """Unique in the session; the client's own where it gave one."""
    agent: str
    """Who begins."""
    input: Foreigns
    """The items that start it."""
    limits: Limits
    """How far it may go."""
    key: str | None = None
    """The client's idempotency key: a key that the session has seen starts nothing."""
    parent: tuple[str, Ref] | None = None
    """Session and call that this run answers, if it is nested."""


class RunResumed(Event, tag="run.resumed"):
    """A run is taken up again. Every call in flight becomes unknown; an open model request is forgotten."""

    by: str
    """Which worker."""
    limits: Limits | None = None
    """New limits; None leaves them as they are."""


class RunPaused(Event, tag="run.paused"):
    """The run waits for somebody."""

    reason: Literal["approval", "unknown", "external", "child", "limit"]
    """For what it waits."""
    limit: str | None = None
    """Which limit was reached, in words."""


class RunCompleted(Event, tag="run.completed"):
    """The run has its answer."""

    output: Ref | None
    """The item that is the answer; None for an empty one."""


class RunFailed(Event, tag="run.failed"):
    """The run stopped at an error. The record is whole; `run.resumed` tries again."""

    kind: str
    """What failed: the type of the error."""
    message: str
    """What it said."""


class RunCancelled(Event, tag="run.cancelled"):
    """The run was ended by somebody's wish."""

    by: str
    """Whose."""
    reason: str = ""
    """Why, for people."""


class InputAdded(Event, tag="input.added"):
    """Input while a run is going, or for the next one. Anyone may append it."""

    input: Foreigns
    """The items."""
    goes_to: Literal["turn", "run"]
    """For this run's next turn (steer), or for the next run (queue)."""
    by: str
    """Who said it."""
    key: str | None = None
    """The client's idempotency key."""


class CancelRequested(Event, tag="cancel.requested"):
    """Somebody wants the run to end. Anyone may append it."""

    by: str
    """Who."""
    after_turn: bool = False
    """Let the turn end first."""
    reason: str = ""
    """Why, for people."""


class NoteAdded(Event, tag="note.added"):
    """An application's own fact. Anyone may append it."""

    name: str
    """The latest note of a name is its value."""
    data: Foreign
    """Any JSON."""


# -- the model


class AgentResolved(Event, tag="agent.resolved"):
    """What an agent is told and offered: only the parts that changed since the session last saw it."""

    agent: str
    """Its name, which is its identity."""
    instructions: str | None = None
    """The system text of its requests."""
    offered: Foreigns | None = None
    """Tools and handoffs: what is sent (`wire`), and what was promised about each."""
    output_schema: Foreign = None
    """JSON schema of the answer; JSON null for text."""
    settings: Foreign = None
    """Sampling and provider options, as they are sent."""


class ModelRequested(Event, tag="model.requested"):
    """Intent: a model is about to be called, with the view as it stands."""

    turn: int
    """Number of this model call in the run, across handoffs."""
    agent: str
    """Who asks."""
    parts: tuple[int, ...]
    """Versions of the `agent.resolved` events that hold instructions, offers, output schema and settings."""
    issuer: tuple[str, str]
    """Endpoint and model."""
    previous_response_id: str | None = None
    """The response that the provider continues."""
    conversation: str | None = None
    """The provider's conversation that it is added to: a new one, if `first` is 0."""
    first: int = 0
    """Index in the settled view of the first item that is sent."""
    wire: int
    """Number of the wire format: how items become bytes."""
    attempt: int = 1
    """Number of this attempt at the turn."""
    stored: bool = False
    """Whether the provider is asked to keep the response, so that the next request may continue it."""
    digest: bytes
    """sha256 over all parts of the request."""


class ModelResponded(Event, tag="model.responded"):
    """Outcome: what the model answered."""

    request: int
    """Version of the `model.requested` that it answers."""
    response_id: str | None = None
    """The provider's id."""
    output: Foreigns
    """The raw output items."""
    usage: Usage
    """Tokens of this call."""
    status: str = "completed"
    """`completed`, or `incomplete` when the token limit cut it off."""


class ModelFailed(Event, tag="model.failed"):
    """Outcome: there is no answer."""

    request: int
    """Version of the `model.requested`."""
    kind: str
    """Type of the error; `cancelled` if somebody stopped it, `chain` if the provider forgot the chain."""
    message: str
    """What it said."""
    partial: str = ""
    """Text that had arrived."""
    usage: Usage | None = None
    """Tokens, where they are known."""
    retried: bool = False
    """Whether it will be asked again."""
    delay: float = 0.0
    """Seconds until then, as was decided: what the provider asked for, or a backoff with its jitter."""
    passed_on: bool = False
    """Whether this model is given up for this run, and the next one is asked."""


# -- calls

OutputType: TypeAlias = str
"""Type of the item that answers a call: `function_call_output`, `custom_tool_call_output`."""


class ToolCalled(Event, tag="tool.called"):
    """Intent: stored before the effect. A call without an end may or may not have happened."""

    call: Ref
    """Which call."""
    name: str
    """The tool."""
    arguments: ForeignObject
    """As they are given to the tool."""
    attempt: int = 1
    """Number of this attempt at the call."""
    child: str | None = None
    """The session in which an agent answers this call, if an agent does."""


class ToolReturned(Event, tag="tool.returned"):
    """Outcome: what a tool returned, or the error it ended in."""

    call: Ref
    """Which call."""
    call_id: str
    """The provider's id, as it stands in the answer item."""
    output: Foreign
    """Any JSON value."""
    error: bool = False
    """Whether it is an error."""
    shown: Foreign = None
    """The form for the model, when it is not the output itself."""
    item: OutputType = "function_call_output"
    """Type of the answer item."""


class ToolAbandoned(Event, tag="tool.abandoned"):
    """The call was started and has no result."""

    call: Ref
    """Which call."""
    call_id: str
    """The provider's id, as it stands in the answer item."""
    reason: Literal["unknown", "cancelled", "superseded"]
    """Why there will be none."""
    answer: str
    """What the model is told."""
    item: OutputType = "function_call_output"
    """Type of the answer item."""


class CallRefused(Event, tag="call.refused"):
    """The call was never started."""

    call: Ref
    """Which call."""
    call_id: str
    """The provider's id, as it stands in the answer item."""
    reason: str
    """One word: unknown_tool, invalid_arguments, truncated, rejected, not_first, same_target, limit, …"""
    answer: str
    """What the model is told."""
    item: OutputType = "function_call_output"
    """Type of the answer item."""


class ApprovalRequested(Event, tag="approval.requested"):
    """The call waits for a person's word."""

    call: Ref
    """Which call."""
    reason: str
    """`approval`, `unknown` (it was started and nobody knows whether it happened) or `external`."""


class ApprovalDecided(Event, tag="approval.decided"):
    """A person's word: for one call, or standing for a tool of an agent. Anyone may append it."""

    call: Ref | None = None
    """Which call."""
    standing: tuple[str, str] | None = None
    """Agent and tool, for this and all later calls."""
    verdict: Literal["run", "refuse", "answer"]
    """Run it, refuse it, or this is its result."""
    by: str
    """Who."""
    reason: str = ""
    """Why; the model is told when it is refused."""
    output: Foreign = None
    """The result, for `answer`."""


# -- rewrites


class Rewrite(_Value):
    """A filter's effect, as data: replayed without the filter."""

    filter: str
    """Its name, for people."""
    parameters: ForeignObject
    """Its parameters, for people."""
    operations: Foreigns
    """`["take", start, stop]`, `["take", start, stop, at]`, `["put", item, covers]` and, for a message
    that tells its covers part by part, `["put", item, covers, lines]`; in order."""
    repairs: tuple[str, ...] = ()
    """What had to be mended, in words."""
    steps: tuple[tuple[str, tuple[Ref, ...], tuple[int, ...]], ...] = ()
    """Of a sequence of filters, for people: the name of each, what it left out, and which of the puts it made."""
    spent: tuple[tuple[str, Usage], ...] = ()
    """What the filter cost, by model, if it asked one."""


class HandoffFiltered(Event, tag="handoff.filtered"):
    """The handoff filter event: takes effect with the `handoff.made` of the same call right after it."""

    call: Ref
    """Which handoff."""
    rewrite: Rewrite
    """What its filter did."""


class HandoffMade(Event, tag="handoff.made"):
    """The switch: from here on the target holds control."""

    call: Ref
    """Which call."""
    call_id: str
    """The provider's id, as it stands in the acknowledgement."""
    source: str
    """Who handed off."""
    target: str
    """Who holds control now."""
    arguments: ForeignObject
    """What the model gave."""
    acknowledgement: str
    """What the call is answered with."""
    item: OutputType = "function_call_output"
    """Type of the answer item."""


class HistoryRewritten(Event, tag="history.rewritten"):
    """The same rewrite from another cause."""

    cause: Literal["compaction", "manual", "repair"]
    """Why."""
    rewrite: Rewrite
    """What changed."""


class GuardrailTripped(Event, tag="guardrail.tripped"):
    """A guard withheld or replaced something."""

    stage: Literal["input", "output", "tool_input", "tool_output"]
    """Where."""
    name: str
    """Which guard."""
    reason: str
    """Why."""
    replacement: Foreign = None
    """The item that stands in its place."""
    rewrite: Rewrite | None = None
    """Takes what was withheld out of the view."""


class EventRedacted(Event, tag="event.redacted"):
    """An event's texts were erased. Anyone may append it."""

    target: int
    """Its version."""
    reason: str
    """Why."""
    digest: bytes
    """Of what stands there now."""


class SessionForked(Event, tag="session.forked"):
    """This session continues another from there."""

    parent: str
    """The other session."""
    at: int
    """Its version."""


class UnknownEvent(Event):
    """An event of a newer version: kept, shown and passed over."""

    tag: str
    """Its tag."""
    data: Foreign
    """The whole payload."""


AnyEvent: TypeAlias = (
    RunStarted
    | RunResumed
    | RunPaused
    | RunCompleted
    | RunFailed
    | RunCancelled
    | InputAdded
    | CancelRequested
    | NoteAdded
    | AgentResolved
    | ModelRequested
    | ModelResponded
    | ModelFailed
    | ToolCalled
    | ToolReturned
    | ToolAbandoned
    | CallRefused
    | ApprovalRequested
    | ApprovalDecided
    | HandoffFiltered
    | HandoffMade
    | HistoryRewritten
    | GuardrailTripped
    | EventRedacted
    | SessionForked
)
"""Every event that this version writes."""
