"""What callbacks get first: who is running, and which call it is."""

from collections.abc import Mapping
from typing import Any, Generic

from msgspec import Raw
from typing_extensions import TypeVar

from batonlog.events import JSON, Ref, UsageError
from batonlog.events.values import dump, load
from batonlog.projections.state import Call, State

_Ctx_co = TypeVar("_Ctx_co", default=object, covariant=True)


class RunContext(Generic[_Ctx_co]):
    """Who is running, for instructions, is_enabled and guardrails."""

    __slots__ = ("_context", "_notes", "agent", "noted", "run_id", "session", "turn")

    def __init__(
        self,
        *,
        session: str,
        run_id: str,
        turn: int,
        agent: str,
        context: _Ctx_co,
        notes: Mapping[str, Raw],
    ) -> None:
        self.session = session
        self.run_id = run_id
        self.turn = turn
        """Number of the model call in the run."""
        self.agent = agent
        self._context = context
        self._notes = notes
        self.noted: dict[str, JSON] = {}
        """What this callback has noted."""

    @property
    def context(self) -> _Ctx_co:
        """The caller's own object. Never stored."""
        return self._context

    @property
    def notes(self) -> Mapping[str, JSON]:
        """The latest note of each name. Stored: survives restarts, handoffs and later runs."""
        return {**{name: load(data) for name, data in self._notes.items()}, **self.noted}

    def note(self, name: str, data: JSON) -> None:
        """Record a fact, together with what this callback results in.

        Raises UsageError for what JSON cannot hold.
        """
        try:
            self.noted[name] = load(dump(data))
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"note {name!r} cannot be stored as JSON: {error}", session=self.session
            ) from error


class ToolContext(RunContext[_Ctx_co], Generic[_Ctx_co]):
    """The same, and which call it is, for tools, approvals and handoff callbacks."""

    __slots__ = ("attempt", "call", "call_id", "tool")

    def __init__(
        self,
        *,
        session: str,
        run_id: str,
        turn: int,
        agent: str,
        context: _Ctx_co,
        notes: Mapping[str, Raw],
        call: Ref,
        call_id: str,
        tool: str,
        attempt: int,
    ) -> None:
        super().__init__(session=session, run_id=run_id, turn=turn, agent=agent, context=context, notes=notes)
        self.call = call
        self.call_id = call_id
        """The provider's id; providers reuse them, so go by `call`."""
        self.tool = tool
        self.attempt = attempt
        """1, and more if it is tried again."""

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this call, and for no other call."""
        return f"{self.session}/{self.call}"


class Contexts:
    """Makes what the callbacks of one session get."""

    def __init__(self, session: str, context: Any) -> None:
        self.session = session
        self.context = context
        """The caller's own object."""

    def of_run(self, state: State, agent: str) -> RunContext[Any]:
        """Make what instructions and conditions are given."""
        run = state.run
        return RunContext(
            session=self.session,
            run_id=run.run_id if run else "",
            turn=(run.turns if run else 0) + 1,
            agent=agent,
            context=self.context,
            notes=state.notes,
        )

    def of_call(self, state: State, call: Call, attempt: int) -> ToolContext[Any]:
        """Make what tools, gates and handoff callbacks are given."""
        run = state.run
        return ToolContext(
            session=self.session,
            run_id=run.run_id if run else "",
            turn=run.turns if run else 0,
            agent=call.agent,
            context=self.context,
            notes=state.notes,
            call=call.ref,
            call_id=call.call_id,
            tool=call.name,
            attempt=attempt,
        )
