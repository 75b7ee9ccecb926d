"""The lifecycle tables as transitions machines: the one module that imports `transitions`.

The engine drives the run machine for every event that it appends. The machines are
synchronous (an AsyncMachine swallows a task's cancellation), shared, without automatic
transitions, and no model is registered with them: any object with a `state` will do, and
that costs a sixth of the time and no memory.
"""

import logging
from collections.abc import Mapping

from transitions import Machine, MachineError

from batonlog.events import CALL_LIFECYCLE, RUN_LIFECYCLE, IllegalTransitionError

# At INFO its logger triples the cost of a step.
logging.getLogger("transitions").setLevel(logging.WARNING)


class Lifecycle:
    """One table as a machine."""

    def __init__(self, table: Mapping[str, Mapping[str, str]], initial: str) -> None:
        states = {state for row in table.values() for pair in row.items() for state in pair}
        self.states = sorted(states)
        self._machine = Machine(
            model=None, states=self.states, initial=initial, auto_transitions=False, send_event=False
        )
        for tag, row in table.items():
            for source, target in row.items():
                # A stay is an internal transition: nothing is left and entered, at half the cost.
                self._machine.add_transition(tag, source, None if source == target else target)

    def step(self, state: str, tag: str) -> str:
        """Return the state after an event. Raises IllegalTransitionError for a pair that is not listed."""
        standing = _Standing(state)
        event = self._machine.events.get(tag)
        try:
            if event is None:
                raise MachineError(f"no {tag} in this lifecycle")
            event.trigger(standing)
        except MachineError as error:
            raise IllegalTransitionError(f"{tag} may not follow in a state that is {state}") from error
        return standing.state


class _Standing:
    """All that a machine needs of a model."""

    __slots__ = ("state",)

    def __init__(self, state: str) -> None:
        self.state = state


RUN_MACHINE = Lifecycle(RUN_LIFECYCLE, "idle")
CALL_MACHINE = Lifecycle(CALL_LIFECYCLE, "asked")
