"""A batch in the making: events folded onto a state before they are stored."""

from batonlog.engine.machine import RUN_MACHINE
from batonlog.events import Event, IllegalTransitionError
from batonlog.events.lifecycle import objection
from batonlog.events.record import Batch
from batonlog.projections.state import State, advance


class Draft:
    """What will be appended, and the state after it.

    A state is a value: a draft that comes to nothing is thrown away.
    """

    __slots__ = ("events", "session", "state")

    def __init__(self, session: str, state: State) -> None:
        self.session = session
        self.state = state
        self.events = Batch()

    def add(self, *events: Event) -> None:
        """Fold events. Raises IllegalTransitionError for one that may not follow; nothing is added then."""
        state, length = self.state, len(self.events)
        try:
            for event in events:
                # What is folded is what will be stored: live and replayed state cannot differ.
                stored = self.events.put(event)
                check(self.session, state, stored)
                state = advance(state, state.version + 1, stored)
        except BaseException:
            self.events.cut(length)
            raise
        self.state = state

    def mark(self) -> tuple[State, int]:
        """Return where the draft is, for `back`."""
        return self.state, len(self.events)

    def back(self, mark: tuple[State, int]) -> None:
        """Forget what was added since."""
        self.state = mark[0]
        self.events.cut(mark[1])


def check(session: str, state: State, event: Event) -> None:
    """Drive the run machine over an event, and the tables' rules. Raises IllegalTransitionError."""
    request = state.request.version if state.request is not None else None
    why = objection(event, run=state.phase, calls=state.calls, request=request)
    if why is not None:
        raise IllegalTransitionError(
            f"cannot append to {session} at version {state.version}: {why}",
            session=session,
            version=state.version,
        )
    RUN_MACHINE.step(state.phase, event.type)
