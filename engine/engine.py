"""The engine: runs agents over one log."""

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias
from uuid import UUID

from typing_extensions import TypeVar

from batonlog.engine.agents import Agent
from batonlog.engine.inputs import Input, input_items
from batonlog.engine.models import (
    DEFAULT_RETRIES,
    NO_SETTINGS,
    Model,
    ModelSettings,
    Retries,
    check_model,
)
from batonlog.engine.openai_responses import OpenAIResponsesModel
from batonlog.engine.recovery import Recovery
from batonlog.engine.registry import Registry
from batonlog.engine.sessions import Job, Sessions
from batonlog.engine.setup import Setup
from batonlog.engine.storing import fork
from batonlog.engine.stream import RunStream, Update
from batonlog.events import (
    JSON,
    EventLog,
    Limits,
    Ref,
    UnknownSessionError,
    UsageError,
    open_log,
)
from batonlog.events.log import check_name
from batonlog.events.record import new_id as fresh_id
from batonlog.projections import Filter, RunResult
from batonlog.projections.filters import as_filters
from batonlog.projections.result import result_of

_Ctx = TypeVar("_Ctx", default=object)
_R = TypeVar("_R")
_MaybeAsync: TypeAlias = _R | Awaitable[_R]

_LIMITS = Limits()

built: ContextVar["Callable[[Engine[Any]], None] | None"] = ContextVar("built", default=None)
"""Told of every engine that is built in its context: where `testing.crash_everywhere` gets in."""


def _utc_now() -> datetime:
    return datetime.now(tz=UTC)


class Engine(Generic[_Ctx]):
    """Runs agents over one log. Many sessions at once, one event loop, many processes.

    Args:
        log: a log, or what `open_log` takes; one that is opened here is closed here.
        agents: those that are given and all that they hand off to. The first starts new
            sessions. Without agents an engine can still approve, send, cancel and tell the status.
        model: for agents that have none of their own; a name is made by `provider` at the
            first use, so that importing an application needs no key.
        provider: makes a model from its name.
        retries: how often, and after how long, a model that does not answer is asked again.
            `Retries(attempts=1)` never asks again.
        fallback: who is asked, in this order, when an agent's own model does not answer: for the
            rest of the run. The next run, and one that is resumed, begin with the agent's own model.
        context_for: makes the context of a session wherever none is given: always in `recover` and `serve`.
        handoff_filter: for handoffs that have none of their own.
        compact: rewrites the view for good, before a model call, when it passes `compact_above`
            tokens, and once when the provider refuses it for its length.
        compact_above: tokens, as the provider counted them last; what has come since is
            estimated, four bytes a token. None compacts only what was refused.
        limits: how far a run may go before it pauses.
        model_settings: what agents leave open.
        busy: what becomes of a `run` while another one of its session is going or waits for
            somebody: it is refused with SessionBusyError; or its input is recorded, for the run
            after that one (`"queue"`) or for that one's next turn (`"steer"`), and answered there.
        next_agent: who gets the next user message: the one that holds control, the first agent,
            or the one that handed over to it in the last run.
        unknown_agent: what becomes of a session whose agent this process does not have, after a
            deploy say: UnknownAgentError, and nothing is recorded; or the first agent goes on.
        clock: for wall-clock limits.
        new_id: makes ids of events and runs.

    Raises UsageError, naming what is wrong with which agent.
    """

    lease_seconds: ClassVar[float] = 30.0
    """How long a worker may be silent before another takes its session over."""

    def __init__(
        self,
        log: EventLog | str | Path,
        *,
        agents: Sequence[Agent[_Ctx]] = (),
        model: Model | str | None = None,
        provider: Callable[[str], Model] = OpenAIResponsesModel,
        retries: Retries = DEFAULT_RETRIES,
        fallback: Model | str | Sequence[Model | str] | None = None,
        context_for: Callable[[str], _MaybeAsync[_Ctx]] | None = None,
        handoff_filter: Filter[_Ctx] | Sequence[Filter[_Ctx]] | None = None,
        compact: Filter[_Ctx] | Sequence[Filter[_Ctx]] | None = None,
        compact_above: int | None = None,
        limits: Limits = _LIMITS,
        model_settings: ModelSettings = NO_SETTINGS,
        busy: Literal["refuse", "queue", "steer"] = "refuse",
        next_agent: Literal["active", "entry", "source"] = "active",
        unknown_agent: Literal["raise", "entry"] = "raise",
        clock: Callable[[], datetime] = _utc_now,
        new_id: Callable[[], UUID] = fresh_id,
    ) -> None:
        if model is not None and not isinstance(model, str):
            check_model(model)
        if not isinstance(retries, Retries):
            raise UsageError(f"retries={retries!r}: give Retries(attempts=...)")
        _check_compaction(compact, compact_above)
        if busy not in ("refuse", "queue", "steer"):
            raise UsageError(f"busy={busy!r}: give 'refuse', 'queue' or 'steer'")
        if next_agent not in ("active", "entry", "source"):
            raise UsageError(f"next_agent={next_agent!r}: give 'active', 'entry' or 'source'")
        if unknown_agent not in ("raise", "entry"):
            raise UsageError(f"unknown_agent={unknown_agent!r}: give 'raise' or 'entry'")
        self._registry = Registry(agents, stand_in=unknown_agent == "entry")
        self._setup = Setup(
            registry=self._registry,
            model=model,
            fallback=_fallbacks(fallback),
            retries=retries,
            provider=provider,
            handoff_filter=None if handoff_filter is None else as_filters(handoff_filter),
            compact=None if compact is None else as_filters(compact),
            compact_above=compact_above,
            settings=model_settings,
        )
        self._own_log = isinstance(log, str | Path)
        self.log: EventLog = open_log(log) if isinstance(log, str | Path) else log
        self._new_id = new_id
        self._sessions = Sessions(
            self.log,
            self._setup,
            owner=f"{platform.node() or 'host'}:{os.getpid()}:{new_id().hex[-8:]}",
            new_id=new_id,
            clock=clock,
            limits=limits,
            context_for=context_for,
            lease_seconds=self.lease_seconds,
            next_agent=next_agent,
            busy=busy,
        )
        self._control = self._sessions.control
        self._busy = busy
        self._recovery = Recovery(self._sessions, self._keep)
        self._tasks: set[asyncio.Task[Any]] = set()
        if (tell := built.get()) is not None:
            tell(self)

    async def __aenter__(self) -> Self:
        if self._own_log:
            await self.log.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let runs reach the next append, release their leases, close the log if we opened it."""
        self._sessions.closed = True
        self._recovery.stop()
        await self._sessions.close()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._setup.close()
        if self._own_log:
            await self.log.close()

    # -- what takes input

    async def run(
        self,
        input: Input,
        *,
        session: str | None = None,
        context: _Ctx | None = None,
        agent: Agent[_Ctx] | str | None = None,
        run_id: str | None = None,
        limits: Limits | None = None,
        model_settings: ModelSettings | None = None,
    ) -> RunResult:
        """Run to an answer, a pause or a cancellation. Raises RunFailedError.

        Without a session, a new one with a new id (`result.session`). With a `run_id` the
        session has seen, nothing new starts: that run's result is awaited and returned.
        Cancelling the caller stops the work, not the run: `resume` goes on.

        While another run of the session is going or waits for somebody, it goes by the engine's
        `busy`: raises SessionBusyError, or the input is queued or steers that run, and what came
        of the run that takes it is awaited and returned; of one that waits for somebody, what it
        waits for. After a limit or a failure, a run closes what is open and starts anew.

        Raises UsageError for input that is none, and LogError if the store fails.
        """
        name = session if session is not None else str(self._new_id())
        run = run_id if run_id is not None else str(self._new_id())
        job = Job(context=context, limits=limits, settings=model_settings)
        return await self._starter(input, name, run, run_id is not None, agent, job)()

    def stream(
        self,
        input: Input | None,
        *,
        session: str | None = None,
        context: _Ctx | None = None,
        agent: Agent[_Ctx] | str | None = None,
        run_id: str | None = None,
        limits: Limits | None = None,
        model_settings: ModelSettings | None = None,
    ) -> RunStream:
        """The same run, as it goes: recorded events, and deltas between them. None goes on as `resume` does."""
        try:
            asyncio.get_running_loop()
        except RuntimeError as error:
            raise UsageError(
                "stream works inside a running event loop; in a script, run_sync(...)"
            ) from error
        job = Job(context=context, limits=limits, settings=model_settings)
        if input is None:
            if session is None:
                raise UsageError("stream(None) goes on with a session: name it with session=")
            check_session(session)
            self._need_agents("resume")
            return self._streamed(session, "", job, partial(self._sessions.resume, session, job))
        name = session if session is not None else str(self._new_id())
        run = run_id if run_id is not None else str(self._new_id())
        return self._streamed(name, run, job, self._starter(input, name, run, run_id is not None, agent, job))

    def _streamed(
        self, session: str, run_id: str, job: Job, begin: Callable[[], Awaitable[RunResult]]
    ) -> RunStream:
        stream = job.stream = RunStream(session=session, run_id=run_id, log=self.log)
        stream.task = self._keep(stream.run(begin))
        # Whoever only follows has seen how it ended: what it raises is for those who ask for the result.
        stream.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return stream

    def run_sync(
        self,
        input: Input,
        *,
        session: str | None = None,
        context: _Ctx | None = None,
        limits: Limits | None = None,
    ) -> RunResult:
        """`run` for scripts. Raises UsageError inside a running loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(input, session=session, context=context, limits=limits))
        raise UsageError("run_sync blocks, and a loop is running here: await run(...) instead")

    async def send(self, input: Input, *, session: str, by: str = "user") -> int:
        """Record input: for the run that is going, or for the next worker to answer. Return its version.

        A run that is going takes it at its next turn, exactly once; with `busy="queue"`, the next
        run does. Nothing is driven here: `serve`, `recover` or `resume` does that.
        Raises UsageError for anything but messages.
        """
        check_session(session)
        items = input_items(input, messages=True)
        return (await self._control.send(session, items, by, queue=self._busy == "queue")).version

    # -- what drives sessions

    async def resume(
        self, session: str, *, context: _Ctx | None = None, limits: Limits | None = None
    ) -> RunResult:
        """Go on where the log says, or join the run that is going on here. Of a completed run, return its result again.

        A run that waits for somebody who has not spoken waits on; nothing is recorded then.
        Raises UnknownSessionError, SessionBusyError while another worker has it, and
        RunFailedError.
        """
        check_session(session)
        self._need_agents("resume")
        return await self._sessions.resume(session, Job(context=context, limits=limits))

    async def recover(self) -> tuple[str, ...]:
        """Resume, in the background, every session that has work and no worker; return them.

        Work is a run whose worker has died, a call that somebody has decided, and input that
        nobody has answered. Not a run that failed or reached a limit, until somebody sends more: a
        new run answers that. What keeps a session from going on is logged, as `batonlog.engine`.
        Raises LogError if the store fails.
        """
        self._need_agents("recover")
        return await self._recovery.once()

    async def serve(self) -> None:
        """`recover` for ever: whatever is crashed, approved, settled or sent to. For worker processes.

        Returns when the engine is closed, and ends when it is cancelled; what it has taken up goes
        on until then. A store that fails is tried again.
        """
        self._need_agents("serve")
        await self._recovery.for_ever()

    # -- what anyone may say, from any process

    async def approve(self, session: str, call: Ref | str, *, by: str, always: bool = False) -> None:
        """Let a gated or unknown call run. Only records it: `resume` or a worker goes on.

        Raises UnknownSessionError, and UsageError for a call that does not wait.
        """
        await self._control.decide(session, call, "run", by=by, always=always)

    async def reject(
        self, session: str, call: Ref | str, *, by: str, reason: str = "", always: bool = False
    ) -> None:
        """Refuse a call that waits; the model is told the reason. Raises as `approve` does."""
        await self._control.decide(session, call, "refuse", by=by, reason=reason, always=always)

    async def settle(self, session: str, call: Ref | str, output: object, *, by: str) -> None:
        """Give the output of a call whose outcome is unknown, or that runs elsewhere. Raises as `approve` does."""
        await self._control.decide(session, call, "answer", by=by, output=output)

    async def cancel(
        self, session: str, *, after_turn: bool = False, by: str = "user", reason: str = ""
    ) -> None:
        """End the run: now, or after its turn. Every open call gets an answer, so the next message works.

        Raises UnknownSessionError, and UsageError if no run is open.
        """
        await self._control.cancel(session, after_turn=after_turn, by=by, reason=reason)

    async def note(self, session: str, name: str, data: JSON) -> int:
        """Record a fact of the application's own. Return its version. Raises UnknownSessionError."""
        return await self._control.note(session, name, data)

    async def rewrite(self, session: str, filter: Filter[_Ctx] | Sequence[Filter[_Ctx]]) -> int:
        """Edit what the model sees from here on, for good, and return the version.

        The session stays as it is. What is taken out is out of every older view too. A filter
        that changes nothing records nothing. Raises UnknownSessionError, SessionBusyError while
        a run is going or a call is open, UsageError for a filter that leaves nothing, and
        whatever the filter raises.
        """
        check_session(session)
        return await self._sessions.rewrite(session, as_filters(filter))

    async def fork(self, session: str, *, at: int | None = None, into: str | None = None) -> str:
        """Start a session that continues this one at that version; return its id.

        Copies no bytes and leaves the original alone. Raises UnknownSessionError, UsageError
        for a version that is not there, and ConflictError if `into` exists.
        """
        name = into if into is not None else str(self._new_id())
        check_session(name)
        check_session(session)
        if at is not None and type(at) is not int:
            raise UsageError(f"at={at!r:.60} is no version: give a number, such as 4", session=session)
        head = await self.log.head(session)
        if head is None:
            raise UnknownSessionError(f"no session {session} in this log", session=session)
        await fork(self.log, session, at=head.version if at is None else at, into=name)
        return name

    # -- what is going on

    async def status(self, session: str) -> RunResult:
        """Return what came of the latest run, by the log alone. Raises UnknownSessionError."""
        return result_of(await self._sessions.state(session), session)

    def updates(self, session: str, *, after: int = 0) -> AsyncIterator[Update]:
        """Yield records after that version, then live ones, until the session rests.

        At rest is a session in which no run goes on, and that waits for no worker: what was sent
        or decided is followed to its end, whoever takes it up. With deltas between the records
        where the run is going on in this engine. Raises UnknownSessionError.
        """
        return self._sessions.updates(session, after=after)

    # -- checks

    def _starter(
        self,
        input: Input,
        session: str,
        run_id: str,
        keyed: bool,
        agent: Agent[_Ctx] | str | None,
        job: Job,
    ) -> Callable[[], Awaitable[RunResult]]:
        """Check what a run is started with, and return what starts it."""
        self._need_agents("run")
        check_session(session)
        starts = agent.name if isinstance(agent, Agent) else agent
        if starts is not None:
            self._registry[starts]  # raises UnknownAgentError
        items = input_items(input)

        def start() -> Awaitable[RunResult]:
            return self._sessions.start(
                session, run_id=run_id, keyed=keyed, agent=starts, items=items, job=job
            )

        return start

    def _need_agents(self, what: str) -> None:
        if self._sessions.closed:
            raise UsageError(f"cannot {what}: the engine was closed")
        if not self._registry:
            raise UsageError(f"cannot {what}: this engine has no agents; give it some with agents=")

    def _keep(self, work: Coroutine[Any, Any, _R]) -> "asyncio.Task[_R]":
        """Do something in the background, and hold on to it until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _fallbacks(given: "Model | str | Sequence[Model | str] | None") -> tuple[Model | str, ...]:
    if given is None:
        return ()
    models = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    return tuple(one if isinstance(one, str) else check_model(one) for one in models)


def _check_compaction(compact: object, above: int | None) -> None:
    if above is not None and compact is None:
        raise UsageError(f"compact_above={above} needs a filter to compact with: give compact=")
    if above is not None and above < 1:
        raise UsageError(f"compact_above={above}: a number of tokens")


def check_session(session: str) -> None:
    """Refuse a name that a caller cannot give."""
    check_name(session)
    if "/" in session:
        raise UsageError(f"{session} is no name of a session: '/' is for the sessions of nested runs")
