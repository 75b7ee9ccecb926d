"""Watches sessions from outside, by their stored records alone, and holds every one of them against all laws.

It reads the file as another process would, folds each session from scratch at every look, and
remembers what it has seen: a view that was shown once is that view for ever.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from tests.laws.checks import said, shown

from batonlog.events import (
    Event,
    EventLog,
    GuardrailTripped,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    Record,
    Ref,
    Rewrite,
    RunCompleted,
    RunStarted,
    SessionForked,
)
from batonlog.events.facts import raw
from batonlog.events.lifecycle import objection
from batonlog.events.record import GENESIS, link
from batonlog.projections import (
    Item,
    ModelRequest,
    explain_rewrite,
    model_history,
    model_request,
    server_chain,
    session_history,
)
from batonlog.projections.handover import untaken
from batonlog.projections.legality import violations
from batonlog.projections.placement import Placement, place
from batonlog.projections.state import OVERFLOWED, State, advance


class Heard(NamedTuple):
    """What a model was given."""

    session: str
    version: int
    request: ModelRequest
    raw: list[bytes]


class Expected(NamedTuple):
    """What a handoff should do, by the code that made it."""

    filter: str
    """Name of its rewrite, if it makes one."""
    whole: bool
    """Transfers that were not taken are shown too."""


class Code(Protocol):
    """What was expected of the code that has just run."""

    def of(self, record: Record) -> "Code":
        """The code that appended a record."""
        ...

    def acts(self, agent: str | None) -> str | None:
        """Who should act when control is with that agent."""
        ...

    def expect(self, source: str, target: str) -> Expected:
        """What the handoff from one agent to another should do."""
        ...

    def begins(self, active: str | None) -> str | None:
        """Who should get what the user says, if this one holds control; None if that is not known."""
        ...


class Witness:
    """All that was ever seen of the sessions of one log."""

    def __init__(self) -> None:
        self.sessions: dict[str, Seen] = {}
        self._numbers: dict[object, int] = {}

    async def look(
        self, log: EventLog, code: Code, heard: Sequence[Heard] = (), *, everything: bool = False
    ) -> None:
        """Read all sessions in which something was stored, or all, and hold old and new against the laws."""
        read = []
        async for head in log.heads():
            seen = self.sessions.get(head.session)
            if seen is not None and len(seen.records) == head.version and not everything:
                continue
            records = await log.records(head.session)
            if seen is None:
                seen = self.sessions[head.session] = Seen(head.session, self._numbers)
            seen.take(records, code)
            read.append(seen)
        for seen in read:  # a parent may be read after its fork
            self._check_past_of_fork(seen)
        for one in heard:
            self.sessions[one.session].check_heard(one)

    def _check_past_of_fork(self, seen: "Seen") -> None:
        for record in seen.records:
            if isinstance(event := record.event, SessionForked) and event.parent in self.sessions:
                parent = self.sessions[event.parent]
                at = event.at
                assert seen.records[:at] == parent.records[:at], "a fork has another past"
                assert seen.views[:at] == parent.views[:at], "a fork shows its past otherwise"


class Seen:
    """What was seen of one session."""

    def __init__(self, session: str, numbers: dict[object, int]) -> None:
        self.session = session
        self.records: tuple[Record, ...] = ()
        self.state = State()
        self.views: list[tuple[int, ...]] = []
        """The view at each version when it was first seen, each item as a number."""
        self._said = Placement(rewrites=False)
        self._items: dict[Ref, bytes] = {}
        """Every item of every event but puts."""
        self._numbers = numbers
        self._hash = GENESIS
        self._provider = Provider()
        self._carries: dict[Ref, frozenset[Ref]] = {}
        """Whose words each item of a view may hold: its own, and those of what it was made from."""
        self._banned: set[Ref] = set()
        """What somebody took out."""

    def take(self, records: tuple[Record, ...], code: Code) -> None:
        """Take in the whole session as it was just read."""
        assert records[: len(self.records)] == self.records, "what was stored has changed"
        known = len(self.records)
        for record in records[known:]:
            self._judge(record, code)
        views = self._check_views(records)
        for record in records[known:]:
            if _rewrite_of(record.event) is not None:
                check_explained(records, views, record.version)

    # -- every version, from scratch

    def _check_views(self, records: Sequence[Record]) -> list[Placement]:
        """Fold anew, and find at each version what was found there before."""
        view, session = Placement(), Placement(rewrites=False)
        found = [view]
        known: dict[int, tuple[int, Item]] = {}
        for n, record in enumerate(records):
            view = place(view, record.version, record.event)
            session = place(session, record.version, record.event)
            found.append(view)
            now = tuple(self._number(item, known) for item in view.items())
            assert now == self.views[n], f"the view at version {record.version} has changed"
        for fold, public in ((view, model_history), (session, session_history)):
            assert shown(fold.items()) == shown(public(records)), "a history is not what its fold is"
        assert shown(view.items()) == shown(self.state.place.items())
        assert shown(session.items()) == shown(self._said.items())
        return found

    def _number(self, item: Item, known: dict[int, tuple[int, Item]]) -> int:
        """A number for all that there is to an item."""
        if (found := known.get(id(item))) is not None:
            return found[0]
        number = self._numbers.setdefault(_all_of(item), len(self._numbers))
        known[id(item)] = number, item  # so that the id stays its own
        return number

    # -- one record

    def _judge(self, record: Record, code: Code) -> None:
        old, event, code = self.state, record.event, code.of(record)
        assert record.version == old.version + 1, "versions have a gap"
        self._hash = link(self._hash, record.session, record.version, record.id, record.digest)
        assert record.hash == self._hash, "the hash chain is broken"
        request = old.request.version if old.request is not None else None
        why = objection(event, run=old.phase, calls=old.calls, request=request)
        assert why is None, f"{record.version}: {why}"
        self.records = (*self.records, record)
        new = self.state = advance(old, record.version, event)
        self._check_session(record)
        view = list(new.place.items())
        self.views.append(tuple(self._number(item, {}) for item in view))
        check_told_once(view, record.version)
        rewrite = self._rewrite(record, old, code)
        if rewrite is None:
            before = list(old.place.settled)
            assert list(new.place.settled)[: len(before)] == before, f"the view shrank at {record.version}"
            for item in view:
                assert item.ref is not None
                self._carries.setdefault(item.ref, frozenset([item.ref]))
        self._check_banned(view, record.version)
        self._check_agent(record, old, code)
        self._provider.hear(record, list(new.place.settled))
        match event:
            case ModelRequested():
                self._check_request(record)
            case RunCompleted():
                assert all(later for _, later in old.place.queue), "a run ended and has not shown its input"
            case ModelFailed(kind=kind, retried=retried) if kind == OVERFLOWED:
                assert not (retried and old.squeezed), "what is too long is sent more than twice"
            case _:
                pass

    def _check_session(self, record: Record) -> None:
        before = list(self._said.settled)
        self._said = place(self._said, record.version, record.event)
        assert list(self._said.settled)[: len(before)] == before, f"the session shrank at {record.version}"
        self._items.update(said([record]))
        there = [(item.ref, bytes(item.held)) for item in self._said.items()]
        assert dict(there) == self._items, "the session is not what was said"
        assert len(there) == len(self._items), "something was said twice"

    def _check_agent(self, record: Record, old: State, code: Code) -> None:
        match record.event:
            case HandoffMade(target=agent) | RunStarted(agent=agent) | ModelRequested(agent=agent):
                assert self.state.agent == agent
            case _:
                assert self.state.agent == old.agent, f"{record.type} passed control"
        if isinstance(record.event, ModelRequested):
            assert record.event.agent == code.acts(old.agent), "somebody asks who does not hold control"
        if isinstance(record.event, RunStarted) and record.session == self.session:
            begins = code.begins(old.agent)
            assert begins in (None, record.event.agent), f"{record.event.agent} begins instead of {begins}"

    def _check_request(self, record: Record) -> None:
        event = record.event
        assert isinstance(event, ModelRequested)
        view = list(self.state.place.items())
        settled = list(self.state.place.settled)
        assert view[: len(settled)] == settled
        bad = list(violations(settled, event.issuer))
        assert not bad, f"request {record.version} is illegal: {bad}"
        asked = model_request(self.records, at=record.version)  # proves its digest
        assert shown(asked.input) == shown(settled[event.first :])

    def check_heard(self, heard: Heard) -> None:
        """What a model was given is what the log says it was."""
        rebuilt, given = model_request(self.records, at=heard.version), heard.request
        assert shown(rebuilt.input) == shown(given.input), f"request {heard.version} showed something else"
        assert [bytes(item) for item in rebuilt.raw_input] == heard.raw
        for name in ("agent", "model", "instructions", "tools", "settings", "first", "digest", "turn"):
            assert getattr(rebuilt, name) == getattr(given, name), name
        assert rebuilt.previous_response_id == given.previous_response_id
        assert rebuilt.conversation == given.conversation
        if given.first == 0:
            check_wire(heard.raw)

    # -- rewrites

    def _rewrite(self, record: Record, old: State, code: Code) -> Rewrite | None:
        """Hold a rewrite against the laws, if this record brings one into effect."""
        version, event = record.version, record.event
        rewrite, cause, puts_of, given = None, "", version, old.place
        match event:
            case HistoryRewritten():
                rewrite, cause = event.rewrite, event.cause
                before = list(old.place.settled)
            case HandoffMade():
                plain = place(msgspec.structs.replace(old.place, filtered=None), version, event)
                before, cause = list(plain.settled), "handoff"
                waiting = old.place.filtered
                expected = code.expect(event.source, event.target)
                here = record.session == self.session  # what was done before a fork, other code did
                if waiting is not None:
                    rewrite, puts_of, given = waiting.rewrite, waiting.version, plain
                    assert waiting.call == event.call
                    assert not here or rewrite.filter == expected.filter, "the filter is another handoff's"
                if here and not expected.whole:
                    self._check_untaken(untaken(old, event.call))
            case _:
                return None
        if rewrite is None:
            assert list(self.state.place.settled) == before, "a handoff without a rewrite changed the view"
            for item in before:
                assert item.ref is not None
                self._carries.setdefault(item.ref, frozenset([item.ref]))
            return None
        assert self.state.chain is None, f"what a provider holds is continued after the rewrite {version}"
        assert server_chain(self.records) is None
        own: list[Item] = []
        if "own_view" in rewrite.filter and isinstance(event, HandoffMade):
            at = old.hands.get(event.target)
            own = next((list(view) for v, view in reversed(given.past) if v == at), [])
        self._check_rewrite(cause, puts_of, before, own)
        return rewrite

    def _check_rewrite(self, cause: str, version: int, before: list[Item], own: list[Item]) -> None:
        after = list(self.state.place.settled)
        for item in before:
            assert item.ref is not None
            self._carries.setdefault(item.ref, frozenset([item.ref]))
        here = [*before, *own]
        known = {item.ref for item in here}
        told = {ref for item in here for ref in all_told(item)}
        puts = [item for item in after if item.ref is not None and item.ref.version == version]
        new = {item.ref for item in puts if item.ref not in known}
        for item in after:
            assert item.ref in known or item.ref in new, f"{cause} {version} brought {item.ref} back"
            assert told.union(new).issuperset(all_told(item)), (
                f"{cause} {version} tells what was gone: {item}"
            )
        for item in puts:
            assert item.ref is not None
            made_from = [one for one in here if one.ref != item.ref and _stands_for(item, one)]
            words = frozenset([item.ref])
            if cause != "manual" and not _is_made_up(item):
                words = words.union(*(self._carries[one.ref] for one in made_from if one.ref is not None))
            self._carries[item.ref] = words
        if cause == "manual":
            left = {ref for item in after if item.ref is not None for ref in self._carries[item.ref]}
            gone = {ref for item in before if item.ref is not None for ref in self._carries[item.ref]}
            self._banned |= gone - left

    def _check_untaken(self, calls: frozenset[Ref | None]) -> None:
        """The target is not shown what was not taken, but in a text about more than that."""
        for item in self.state.place.settled:
            assert calls.isdisjoint((item.ref, item.answers)), f"{item} was not taken"
            if item.replaces:
                assert not calls.issuperset(item.replaces), f"{item} tells what was not taken"

    def _check_banned(self, view: Iterable[Item], version: int) -> None:
        if not self._banned:
            return
        for item in view:
            assert item.ref is not None
            words = self._carries.get(item.ref, frozenset())
            if item.lines:  # lines of it may have been taken out
                words = words.intersection((item.ref, *item.replaces))
            back = self._banned.intersection(words)
            assert not back, f"{item} at {version} shows {sorted(back)}, which somebody took out"


# -- items


def _all_of(item: Item) -> object:
    sources = tuple(source.ref if source is not None else None for source in item.sources)
    return (
        item.ref,
        bytes(item.held),
        item.agent,
        item.answers,
        item.issuer,
        item.replaces,
        item.thought,
        item.lines,
        sources,
    )


def _is_made_up(item: Item) -> bool:
    """Whether a repair made an output up for a call: it tells nothing of what was said."""
    return item.answers is not None and item.answers in item.replaces


def all_told(item: Item) -> set[Ref]:
    """What an item tells: itself, and what it stands for."""
    own = {item.ref} if item.ref is not None else set()
    return own if _is_made_up(item) else {*own, *item.replaces}


def _stands_for(put: Item, item: Item) -> bool:
    return bool(set(put.replaces).intersection(all_told(item)))


def check_told_once(view: Sequence[Item], version: int) -> None:
    """Every item has a ref of its own, and nothing is both there and told by another item."""
    teller: dict[Ref, Item] = {}
    for item in view:
        assert item.ref is not None, f"an item without a ref at {version}"
        for ref in all_told(item):
            other = teller.setdefault(ref, item)
            assert other is item, f"at {version} {ref} is told by {other.ref} and by {item.ref}"


def check_wire(raw: Sequence[bytes]) -> None:
    """On the wire no id stands twice, and each output names its call."""
    waiting: dict[str, str] = {}
    used: set[str] = set()
    for item in map(json.loads, raw):
        kind, call_id = item.get("type", "message"), item.get("call_id")
        if kind in ("function_call", "custom_tool_call"):
            assert call_id not in used, f"{call_id} is sent twice"
            used.add(call_id)
            waiting[call_id] = f"{kind}_output"
        elif kind in ("function_call_output", "custom_tool_call_output"):
            assert waiting.pop(call_id, None) == kind, f"{kind} {call_id} answers nothing"
    assert not waiting, f"nothing answers {sorted(waiting)}"


def _rewrite_of(event: Event) -> Rewrite | None:
    match event:
        case HistoryRewritten(rewrite=rewrite) | HandoffFiltered(rewrite=rewrite):
            return rewrite
        case GuardrailTripped(rewrite=rewrite):
            return rewrite
        case _:
            return None


def check_explained(records: Sequence[Record], views: Sequence[Placement], version: int) -> None:
    """The explanation of a rewrite names every item of the views before and after it once."""
    changes = explain_rewrite(records, at=version)
    event = records[version - 1].event
    if isinstance(event, HandoffFiltered):
        made = records[version].event if version < len(records) else None
        if not (isinstance(made, HandoffMade) and made.call == event.call):
            assert changes == (), "a handoff that was not made is explained"
            return
        effective = version + 1
        assert explain_rewrite(records, at=effective) == changes
        plain = msgspec.structs.replace(views[version], filtered=None)
        before = list(place(plain, effective, made).settled)
    else:
        effective = version
        before = list(views[version - 1].settled)
    after = list(views[effective].settled)
    standing = [change.item for change in changes if change.what != "dropped"]
    assert shown(standing) == shown(after), "an explanation leaves out what is shown"
    kept = [change.item.ref for change in changes if change.what == "kept"]
    dropped = [change.item.ref for change in changes if change.what == "dropped"]
    edited = [change for change in changes if change.what == "edited"]
    rest = [item.ref for item in before if item.ref not in {*kept, *dropped}]
    assert len(kept) + len(dropped) + len(rest) == len(before), "an item is explained twice"
    assert len(rest) == len(edited), f"the explanation of {version} leaves out {rest}"
    assert {item.ref for item in after}.isdisjoint(dropped)
    assert {item.ref for item in before}.issuperset(kept)
    assert all(change.reason for change in changes if change.what != "kept"), "no reason is given"


class Provider:
    """What a provider would hold, in responses that it stores and in conversations."""

    def __init__(self) -> None:
        self._responses: dict[str, list[Ref | None]] = {}
        self._conversations: dict[str, list[Ref | None]] = {}
        self._unsure: set[str] = set()
        """Conversations of which nobody knows what they hold."""
        self._asked: dict[int, tuple[ModelRequested, list[Ref | None]]] = {}

    def hear(self, record: Record, view: Sequence[Item]) -> None:
        """Take in one record; `view` is the settled view after it."""
        refs = [item.ref for item in view]
        match record.event:
            case ModelRequested() as event:
                before = self._held(event)
                sent = refs[event.first :]
                assert sent, f"request {record.version} sends nothing"
                assert [*before, *sent] == refs, f"request {record.version}: held and sent are not the view"
                self._asked[record.version] = event, refs
            case ModelResponded() as event:
                asked, shown = self._asked[event.request]
                whole = [*shown, *(Ref(record.version, n) for n in range(len(raw(event, "output"))))]
                if asked.conversation is not None:
                    self._conversations[asked.conversation] = whole
                    if event.status == "completed":
                        self._unsure.discard(asked.conversation)
                elif asked.stored and event.response_id is not None:
                    self._responses[event.response_id] = whole
            case SessionForked():
                self._unsure.update(self._conversations)  # the parent's: it may go on with them
            case _:
                pass

    def _held(self, event: ModelRequested) -> list[Ref | None]:
        if event.conversation is not None:
            assert event.conversation not in self._unsure, "nobody knows what that conversation holds"
            self._unsure.add(event.conversation)
            return self._conversations.get(event.conversation, [])
        if event.previous_response_id is not None:
            return self._responses[event.previous_response_id]
        return []


def versions(seen: Seen) -> Iterator[Any]:
    """What happened in a session, for people."""
    for record in seen.records:
        yield f"{record.version} {record.event}"[:300]
