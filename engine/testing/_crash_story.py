"""What a log tells, but for what differs from one pass of a scenario to the next.

Ids of runs, versions and times differ, and so do the events of a recovery. What was said and
done, what the models were shown, how every call ended and what it cost must not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from batonlog.engine.testing._crash_world import Effects
from batonlog.events import (
    JSON,
    BatonlogError,
    CallRefused,
    Event,
    EventLog,
    HandoffMade,
    ModelRequested,
    Record,
    Ref,
    RunStarted,
    ToolAbandoned,
    ToolReturned,
    Usage,
)
from batonlog.projections import (
    History,
    Item,
    model_history,
    model_request,
    run_result,
    session_history,
    usage,
)
from batonlog.projections.items import OURS
from batonlog.projections.lines import lines_of


class Story(Struct, frozen=True):
    """What came of one session."""

    said: tuple[Any, ...]
    """Its history: who said what."""
    shown: tuple[Any, ...]
    """The view that a model has of it at the end."""
    runs: tuple[tuple[str, str, str], ...]
    """Status, reason and agent of each run."""
    ends: tuple[tuple[str, str], ...]
    """Of each call in order: its name, and the tag of the event that ended it."""
    outputs: tuple[JSON, ...]
    """Of each call in order, what its tool returned."""
    performed: tuple[str, ...]
    """The effects that took place: names of the calls, in order, each once."""
    usage: Mapping[tuple[str, str], Usage]
    faults: tuple[str, ...]
    """What cannot be told of it: requests that are not as they were proven."""
    uncertain: bool
    """A model was told that nobody knows what became of a call, as the tool promised: what follows may differ."""


def story_of(session: str, records: Sequence[Record], effects: Effects) -> Story:
    """Return what the records of a session tell, and what the world outside has seen of it."""
    calls = calls_of(records)
    ends = {end.call: end for end in map(_end, records) if end is not None}
    performed = [ref for ref in calls if effects.took_place(session, ref)]
    return Story(
        said=_items(session_history(records)),
        shown=_items(model_history(records)),
        runs=tuple(_runs(records)),
        ends=tuple((name, ends[ref].type if ref in ends else "open") for ref, name in calls.items()),
        outputs=tuple(_output(ends.get(ref)) for ref in calls),
        performed=tuple(calls[ref] for ref in performed),
        usage=usage(records),
        faults=tuple(_faults(records)),
        uncertain=any(_is_uncertain(record.event) for record in records),
    )


def calls_of(records: Sequence[Record]) -> dict[Ref, str]:
    """Return the names of all calls of a session, in order, by key."""
    return {
        item.ref: item.data.get("name", item.type)
        for item in session_history(records)
        if item.type in OURS and item.ref is not None
    }


_End = ToolReturned | ToolAbandoned | CallRefused | HandoffMade


def _end(record: Record) -> _End | None:
    return record.event if isinstance(record.event, _End) else None


def _output(end: _End | None) -> JSON:
    return end.output if isinstance(end, ToolReturned) else None


def _is_uncertain(event: Event) -> bool:
    return isinstance(event, ToolAbandoned) and event.reason == "unknown"


def _items(history: History) -> tuple[Any, ...]:
    return tuple((item.agent, _told(item)) for item in history)


def _told(item: Item) -> JSON:
    """What an item says. The lines of a nest name calls by their keys, which are versions."""
    if not item.lines:
        return item.data
    return [part.text if part.source is None else _told(part.source) for part in lines_of(item)]


def _runs(records: Sequence[Record]) -> Iterator[tuple[str, str, str]]:
    begun = [record.version for record in records if isinstance(record.event, RunStarted)]
    for until in [*(version - 1 for version in begun[1:]), None] if begun else []:
        result = run_result(records, at=until)
        yield result.status, result.reason, result.agent


def _faults(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if isinstance(record.event, ModelRequested):
            try:
                model_request(records, at=record.version)
            except BatonlogError as error:
                yield str(error)


# -- all sessions of a log


class Reference:
    """What the scenario comes to when nothing happens.

    Args:
        stories: by label.
        names: those that sessions have in every pass; others are made anew each time.
    """

    def __init__(self, stories: Mapping[str, Story], names: frozenset[str]) -> None:
        self.stories = stories
        self._names = names

    async def tell(self, log: EventLog, effects: Effects) -> dict[str, Story]:
        """Return the stories of another pass, under the same labels."""
        return {
            label: story_of(session, await log.records(session), effects)
            for session, label in labels(await sessions_of(log), self._names).items()
        }

    async def output(self, log: EventLog, session: str, call: Ref) -> JSON:
        """Return what the same call returned when nothing happened; None if there was no such call."""
        story = self.stories.get(labels(await sessions_of(log), self._names)[session])
        place = list(calls_of(await log.records(session))).index(call)
        return story.outputs[place] if story is not None and place < len(story.outputs) else None


async def sessions_of(log: EventLog) -> list[str]:
    """Return the names of all sessions, in the order in which they began."""
    return list(dict.fromkeys([record.session async for record in log.read_all()]))


def labels(sessions: Iterable[str], names: frozenset[str]) -> dict[str, str]:
    """Return what stands for the name of each session: the name itself, or its place among those without."""
    found: dict[str, str] = {}
    unnamed = 0
    for session in sessions:
        parent, slash, _ = session.rpartition("/")
        if session in names and not slash:
            found[session] = session
        else:
            unnamed += 1
            found[session] = f"{found.get(parent, parent)}/{unnamed}" if slash else f"session {unnamed}"
    return found


# -- differences


def differences(expected: Mapping[str, Story], found: Mapping[str, Story]) -> Iterator[str]:
    """Yield in words how one pass differs from another."""
    for label in dict.fromkeys((*expected, *found)):
        if label not in found:
            yield f"{label} is not in the log"
        elif label not in expected:
            yield f"{label} should not be in the log"
        elif not found[label].uncertain:
            yield from (f"{label}: {what}" for what in _differences(expected[label], found[label]))


def _differences(expected: Story, found: Story) -> Iterator[str]:
    yield from found.faults
    yield from _unlike("the session", expected.said, found.said)
    yield from _unlike("the view", expected.shown, found.shown)
    yield from _unlike("the runs", expected.runs, found.runs)
    yield from _unlike("the ends of calls", expected.ends, found.ends)
    yield from _unlike("the effects", expected.performed, found.performed)
    if expected.usage != found.usage:
        yield f"the usage is {dict(found.usage)} instead of {dict(expected.usage)}"


def _unlike(what: str, expected: Sequence[object], found: Sequence[object]) -> Iterator[str]:
    for place, (before, now) in enumerate(zip(expected, found, strict=False)):
        if before != now:
            yield f"{what} has {now} at place {place} instead of {before}"
            return
    if len(found) > len(expected):
        yield f"{what} goes on with {found[len(expected)]}"
    elif len(found) < len(expected):
        yield f"{what} ends before {expected[len(found)]}"
