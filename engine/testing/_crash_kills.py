"""The client of workers that live in processes of their own, and are killed.

One process is forked for each thing that a client asks for: a run, a resumption. It is killed by
itself, at a place that was drawn for it, or from here, at a moment that was; and another one
takes over. The client outlives them all, and so do the models: what one has answered to a request
that was recorded, it need not answer again.
"""

import asyncio
import os
import signal
import sys
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from socket import socket, socketpair
from typing import Any

from batonlog.engine.claims import busy
from batonlog.engine.decide import needs_worker
from batonlog.engine.engine import Engine
from batonlog.engine.models import Issuer, Model, issuer_of, open_conversation
from batonlog.engine.sessions import Job
from batonlog.engine.stream import Update
from batonlog.engine.takers import run_with
from batonlog.engine.testing._crash_child import Birth, Work, live
from batonlog.engine.testing._crash_client import Client, DiedError, Request, install
from batonlog.engine.testing._crash_ledger import Ledger, Line
from batonlog.engine.testing._crash_link import Answered, Asked, Ended, Link, Opened, Raised, Reached, Stop
from batonlog.engine.testing._crash_story import Reference
from batonlog.engine.testing._crash_visits import VisitedLog
from batonlog.engine.testing._crash_world import Answer, Effects, ends_of, listen
from batonlog.events import (
    ModelFailed,
    ModelRequested,
    ModelResponded,
    Record,
    Ref,
    SQLiteLog,
    UsageError,
)
from batonlog.events.lifecycle import IDLE, STOPPED
from batonlog.projections import ModelRequest, RunResult, model_request
from batonlog.projections.items import Item
from batonlog.projections.state import run_state

PATIENCE = 60.0
"""Seconds that a process may take for one thing: one that takes longer hangs."""

_OPEN_FILES = Path("/proc/self/fd")


class HangsError(Exception):
    """A process that was to do something has not done it, and was not killed either."""


@dataclass(frozen=True)
class Span:
    """How long a life was that nothing happened to."""

    points: int
    """Places to die at."""
    seconds: float


@dataclass(frozen=True)
class Fate:
    """How a life ends: at a place, after some seconds, or with neither in peace."""

    kill_at: int | None = None
    after: float | None = None


@dataclass
class _Listened:
    """A model that was asked."""

    version: int
    """Of the latest request for it."""
    digest: bytes
    answer: "asyncio.Task[Answer]"


class Killing:
    """One pass of a scenario whose processes are killed.

    Args:
        random: draws how lives end; None lets all of them be.
        spans: of lives, as they were when nothing happened; a pass in which nothing does adds to them.
    """

    def __init__(self, random: Random | None, spans: list[Span]) -> None:
        self.crashes: list[str] = []
        self._random = random
        self._spans = spans
        self._ledger: Ledger | None = None
        self._listened: dict[str, list[_Listened]] = defaultdict(list)

    # -- what a pass is asked

    @property
    def effects(self) -> Effects:
        return self._ledger.effects() if self._ledger is not None else Effects()

    @property
    def crashed(self) -> bool:
        return bool(self.crashes)

    def allow(self, session: str, call: Ref) -> None:
        """Take note that a person lets an effect run once more."""
        self.ledger.write(Line(what="allowed", session=session, call=str(call)))

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    def install(self, engine: Engine[Any], path: Path, reference: Reference | None) -> None:
        if not isinstance(engine.log, SQLiteLog) or engine.log.path != path:
            raise UsageError(f"kill_at_random needs engines over the file that it gives, {path}")
        self._ledger = Ledger(path.with_suffix(".ledger"))
        install(engine, ForkingClient(engine, self, VisitedLog(path), reference))

    async def close(self) -> None:
        asked = [one.answer for listened in self._listened.values() for one in listened]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    # -- how lives end

    def fate(self) -> Fate:
        """Draw how the next life ends."""
        if self._random is None or self._random.random() < 0.5:
            return Fate()
        span = self._random.choice(self._spans)
        if self._random.random() < 0.5:
            return Fate(kill_at=self._random.randrange(span.points))
        return Fate(after=self._random.uniform(0, span.seconds))

    def lived(self, span: Span) -> None:
        """Take note of a life that ended in peace."""
        if self._random is None:
            self._spans.append(span)

    # -- models

    async def answer(
        self, session: str, version: int, records: Sequence[Record], model: Any, request: ModelRequest
    ) -> Answer:
        """Return what a model answers to a request that is recorded.

        The same as before, if it was asked this before and what it answered was not recorded.
        """
        recorded = {
            record.event.request
            for record in records
            if isinstance(record.event, ModelResponded | ModelFailed)
        }
        for one in self._listened[session]:
            if one.digest == request.digest and one.version not in recorded:
                one.version = version
                return await asyncio.shield(one.answer)
        answer = asyncio.get_running_loop().create_task(listen(model, request))
        self._listened[session].append(_Listened(version, request.digest, answer))
        return await asyncio.shield(answer)


class ForkingClient(Client):
    """The sessions of one engine, each thing asked of them in a process of its own.

    What callers of one engine share in one process is shared here: one run of a session at a time,
    and whoever resumes one that goes on joins it.
    """

    def __init__(
        self, engine: Engine[Any], killing: Killing, log: VisitedLog, reference: Reference | None
    ) -> None:
        self._going: dict[str, _Going] = {}

        def start(client: Client) -> Forker:
            return Forker(client, killing, log, self._going)

        super().__init__(engine, log=log, store=log, world=killing, start=start, reference=reference)

    async def start(
        self, session: str, *, run_id: str, keyed: bool, agent: str | None, items: list[Item], job: Job
    ) -> RunResult:
        while (going := self._going.get(session)) is not None:
            state = await self.read(session)
            if not (keyed and going.key == run_id) and run_with(state, run_id) is None:
                if self._busy == "refuse":
                    raise busy(session, state)
                return await self._get_in_line(session, run_id, items, job)
            await asyncio.wait([going.end])
        with _Going(self._going, session, run_id):
            return await super().start(session, run_id=run_id, keyed=keyed, agent=agent, items=items, job=job)

    async def resume(self, session: str, job: Job) -> RunResult:
        while (going := self._going.get(session)) is not None:
            await asyncio.wait([going.end])
            state = await self.state(session)
            if state.phase in (IDLE, STOPPED):
                return self._ended(state, session, None)
        with _Going(self._going, session, None):
            return await super().resume(session, job)


class _Going:
    """Says for a time that a session is driven, and for which run."""

    def __init__(self, going: "dict[str, _Going]", session: str, key: str | None) -> None:
        self.key = key
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._going = going
        self._session = session

    def __enter__(self) -> None:
        self._going[self._session] = self

    def __exit__(self, *_: object) -> None:
        del self._going[self._session]
        self.end.set_result(None)


class _Told:
    """What a stream listens to, in place of a driver."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[int, None], None]] = []


class Forker:
    """Forks a process for each thing to do, and sees it to its end. Itself it never dies."""

    alive = True

    def __init__(self, client: Client, killing: Killing, log: VisitedLog, going: dict[str, _Going]) -> None:
        self._client = client
        self._killing = killing
        self._log = log
        self._going = going
        self._lives = 0
        self._links: set[Link] = set()
        self._ends: set[socket] = set()

    def is_driven(self, session: str) -> bool:
        return session in self._going

    async def updates(self, session: str, *, after: int) -> AsyncIterator[Update]:
        with self._log.watch(session) as alarm:
            while True:
                going = session in self._going
                records = await self._log.records(session)
                for record in records:
                    if record.version > after:
                        yield record
                        after = record.version
                if not going:
                    await self._client.state(session)  # raises UnknownSessionError
                    if not needs_worker(run_state(records)):
                        return
                await alarm.wait()

    async def bury(self) -> None:
        for link in self._links:
            link.tell(Stop())
        if self._going:
            await asyncio.wait([going.end for going in self._going.values()])

    async def do(self, session: str, ask: Request, job: Job) -> RunResult:
        told = _Told()
        if job.stream is not None:
            job.stream.follow(told, after=(await self._client.read(session)).version)  # type: ignore[arg-type]
        owner = f"{self._client.owner}:{self._lives}"
        self._lives += 1
        fate = self._killing.fate()
        alone = Job(context=job.context, limits=job.limits, settings=job.settings, found=job.found)
        begun = asyncio.get_running_loop().time()
        await self._note_ends()
        child, end = self._fork(owner, fate, lambda sessions: ask(sessions, alone))
        killer = (
            asyncio.get_running_loop().call_later(fate.after, os.kill, child, signal.SIGKILL)
            if fate.after is not None
            else None
        )
        status: int | None = None
        link = await Link.over(end)
        self._links.add(link)
        try:
            async with asyncio.timeout(PATIENCE):
                ended = await self._hear(link, told)
        except TimeoutError:
            raise HangsError(
                f"a process that drives {session} has done nothing for {PATIENCE:.0f} s; {self._said()}"
            ) from None
        finally:
            if killer is not None:
                killer.cancel()
            status = self._reap(child)
            self._links.discard(link)
            self._ends.discard(end)
            await link.close()
            await self._log.expire(owner)
        if ended is None:
            if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
                raise HangsError(
                    f"a process that drives {session} ended by itself, with status {status}; {self._said()}"
                )
            self._killing.crashes.append(self._where(fate))
            raise DiedError
        self._killing.lived(Span(ended.points, asyncio.get_running_loop().time() - begun))
        if ended.raised is not None:
            raise ended.raised.error()
        result: RunResult = ended.result
        return result

    def _fork(self, owner: str, fate: Fate, work: Work) -> tuple[int, socket]:
        self._check_closed()
        birth = Birth(
            path=self._log.path,
            ledger=self._killing.ledger,
            kill_at=fate.kill_at,
            setup=self._client.setup,
            owner=owner,
            options=self._client.options,
            closed=self._client.closed,
        )
        ours, its = socketpair()
        self._ends.add(ours)
        with warnings.catch_warnings():
            # From Python 3.12 on, of other threads; none of ours lives while this one runs.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            for end in self._ends:
                end.close()
            live(birth, its, work)
        its.close()
        return child, ours

    def _check_closed(self) -> None:
        """Refuse to fork while the scenario holds the file open, where that can be seen."""
        if not _OPEN_FILES.exists():
            return
        for one in _OPEN_FILES.iterdir():
            if one.is_symlink() and os.readlink(one) == str(self._log.path):
                raise UsageError(
                    f"the scenario has opened {self._log.path} itself, and holds it open while an engine works: "
                    f"give the engine the path, and read its log by `engine.log`"
                )

    async def _hear(self, link: Link, told: _Told) -> Ended | None:
        """Do what the process asks for; return what came of it, or None if it died."""
        answering: set[asyncio.Task[None]] = set()
        try:
            while (message := await link.hear()) is not None:
                match message:
                    case Ended():
                        return message
                    case Reached(version):
                        for listener in told.listeners:
                            listener(version, None)
                    case Asked() | Opened():
                        task = asyncio.get_running_loop().create_task(self._answer(link, message))
                        answering.add(task)
                        task.add_done_callback(answering.discard)
                    case _:
                        raise AssertionError(f"a process said {message}")
            return None
        finally:
            for task in answering:
                task.cancel()

    async def _answer(self, link: Link, message: Asked | Opened) -> None:
        try:
            match message:
                case Asked(number, session, version):
                    records = await self._log.records(session)
                    request = model_request(records, at=version)
                    (asked,) = (record.event for record in records if record.version == version)
                    assert isinstance(asked, ModelRequested)
                    model = self._model(request.agent, asked.issuer)
                    answer = await self._killing.answer(session, version, records, model, request)
                    link.tell(Answered.of(number, answer))
                case Opened(number, agent, issuer):
                    conversation = await open_conversation(self._model(agent, issuer))
                    link.tell(Answered(number, (), conversation, None))
        except Exception as error:
            link.tell(Answered(message.number, (), "", Raised.of(error)))

    def _model(self, agent: str, issuer: Issuer) -> Model:
        """The one of an agent's models that the process means: its own, or a fallback."""
        setup, others = self._client.setup, list[Issuer]()
        while (one := issuer_of(model := setup.model_of(setup.registry[agent], others))) != issuer:
            if one in others:
                raise AssertionError(f"a process asks {issuer} for {agent}, who has no such model")
            others.append(one)
        return model

    def _reap(self, child: int) -> int:
        """See a process out, which has said its last word or is to be killed; return its status."""
        done, status = os.waitpid(child, os.WNOHANG)
        if done == 0:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        return status

    async def _note_ends(self) -> None:
        """Write down which calls have ended in the log, before anybody could run them again."""
        known = {(line.session, line.call) for line in self._killing.ledger.lines() if line.what == "ended"}
        begun = {line.session for line in self._killing.ledger.lines() if line.what == "begun"}
        for session in begun:
            for call in ends_of(record.event for record in await self._log.records(session)):
                if (session, str(call)) not in known:
                    self._killing.ledger.write(Line(what="ended", session=session, call=str(call)))

    def _where(self, fate: Fate) -> str:
        if fate.after is not None:
            return f"{fate.after * 1000:.1f} ms after a process was forked"
        died = [line.where for line in self._killing.ledger.lines() if line.what == "died"]
        return died[-1]

    def _said(self) -> str:
        lines = list(self._killing.ledger.lines())
        return f"the last fact in its ledger: {lines[-1] if lines else 'none'}"


def check_forks() -> None:
    """Raise UsageError where processes cannot be forked."""
    if not hasattr(os, "fork") or sys.platform == "win32":
        raise UsageError("kill_at_random forks processes, which this system cannot: use crash_everywhere")
