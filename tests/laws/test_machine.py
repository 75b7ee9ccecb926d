"""All at once: runs, handoffs, rewrites, compactions, restarts, crashes and forks over one file.

Whatever has happened, after each step every session of the file is read anew and held against
all laws (witness.py).
"""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.laws.casting import answers, casts, fuses, inputs, parts, verdicts, which
from tests.laws.depth import tried
from tests.laws.process import Answer, Cast, Ids, Process, quietly
from tests.laws.sayings import texts
from tests.laws.shipped import Composed, built, compositions
from tests.laws.witness import Witness, versions

from batonlog.engine import RunFailedError, SessionBusyError
from batonlog.events import Limits, SQLiteLog, UsageError


class Everything(RuleBasedStateMachine):
    """Sessions of one file, and whoever works on them."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "log.db"
        self._eyes = SQLiteLog(self._path)
        self._witness = Witness()
        self._sessions: list[str] = []
        self._ids = Ids()
        self._look_at_everything = False
        self._process: Process

    @initialize(cast=casts, says=inputs, answers=answers)
    def begin(self, cast: Cast, says: Any, answers: list[Answer]) -> None:
        self._start(cast)
        self.run(0, says, answers, None, None)

    def _start(self, cast: Cast) -> None:
        async def start() -> Process:
            return Process(self._path, cast, self._ids)

        self._process = self._runner.run(start())

    def _session(self, n: int) -> str:
        return self._sessions[n % len(self._sessions)]

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        self._runner.run(self._process.do(quietly(work, RunFailedError, SessionBusyError, UsageError)))

    # -- what happens

    @rule(n=which, says=inputs, answers=answers, fuse=fuses, limit=st.sampled_from([None, None, 1, 3]))
    def run(self, n: int, says: Any, answers: list[Answer], fuse: int | None, limit: int | None) -> None:
        """Somebody says something, whether or not the session takes it."""
        if not self._sessions or (n == 7 and len(self._sessions) < 3):
            self._sessions.append(f"s{len(self._sessions)}")
        self._go(n, answers, fuse)
        limits = Limits(turns=limit, ping_pong=self._process.cast.ping_pong) if limit is not None else None
        self._do(self._process.engine.run(says, session=self._session(n), limits=limits))

    @precondition(lambda self: self._sessions)
    @rule(n=which, says=inputs, answers=answers, fuse=fuses, verdicts=verdicts)
    def go_on(self, n: int, says: Any, answers: list[Answer], fuse: int | None, verdicts: list[str]) -> None:
        """Whatever a session waits for, it gets."""
        self._go(n, answers, fuse)
        self._do(self._gone_on(self._session(n), says, verdicts))

    @precondition(lambda self: self._sessions)
    @rule(n=which, says=inputs, answers=answers, fuse=fuses, verdicts=verdicts)
    def go_on_and_on(
        self, n: int, says: Any, answers: list[Answer], fuse: int | None, verdicts: list[str]
    ) -> None:
        """The same: most of what happens is talk."""
        self._go(n, answers, fuse)
        self._do(self._gone_on(self._session(n), says, verdicts))

    def _go(self, n: int, answers: list[Answer], fuse: int | None) -> None:
        self._process.answers.setdefault(self._session(n), []).extend(answers)
        self._process.fuse = fuse

    async def _gone_on(self, session: str, says: Any, verdicts: list[str]) -> None:
        engine = self._process.engine
        status = await engine.status(session) if await self._process.store.head(session) else None
        if status is None or status.status in ("completed", "cancelled"):
            await engine.run(says, session=session)
            return
        for k, call in enumerate(status.open_calls):
            match verdicts[k % len(verdicts)]:
                case "run" if call.why != "external":
                    await quietly(engine.approve(session, call.call, by="p"), UsageError)
                case "refuse":
                    await quietly(engine.reject(session, call.call, by="p", reason="no"), UsageError)
                case _:
                    await quietly(engine.settle(session, call.call, {"done": True}, by="p"), UsageError)
        await self._resumed(session)

    async def _resumed(self, session: str) -> None:
        engine = self._process.engine
        state = await engine.status(session)
        turns = len([one async for one in self._process.store.read(session) if one.type == "model.requested"])
        limits = Limits(turns=turns + 8, handoffs=200) if state.reason.startswith(("turns", "hand")) else None
        await engine.resume(session, limits=limits)

    @precondition(lambda self: self._sessions)
    @rule(n=which, text=texts)
    def send(self, n: int, text: str) -> None:
        self._process.fuse = None
        self._do(self._process.engine.send(text, session=self._session(n)))

    @precondition(lambda self: self._sessions)
    @rule(n=which)
    def note(self, n: int) -> None:
        self._process.fuse = None
        self._do(self._process.engine.note(self._session(n), "seen", n))

    @precondition(lambda self: self._sessions)
    @rule(n=which, after_turn=st.booleans())
    def cancel(self, n: int, after_turn: bool) -> None:
        self._process.fuse = None
        self._do(self._process.engine.cancel(self._session(n), after_turn=after_turn))

    @precondition(lambda self: self._sessions)
    @rule(n=which, composed=compositions(), fuse=fuses)
    def rewrite(self, n: int, composed: Composed, fuse: int | None) -> None:
        """Somebody edits what the model sees."""
        self._process.fuse = fuse
        self._do(self._process.engine.rewrite(self._session(n), built(composed)))

    @precondition(lambda self: self._sessions)
    @rule(n=which, part=st.integers(0, 100), drop=st.sampled_from(["all", "user", "first"]))
    def cut(self, n: int, part: int, drop: str) -> None:
        """Somebody takes one item out, or all that stand before or behind it."""

        def left(history: Any) -> Any:
            place = len(history) * part // 101
            kept = [item for k, item in enumerate(history) if k != place]
            return {"all": kept, "user": history[:place] or history, "first": history[place:]}[drop]

        self._process.fuse = None
        self._do(self._process.engine.rewrite(self._session(n), left))

    @precondition(lambda self: self._sessions and len(self._sessions) < 6)
    @rule(n=which, part=parts, says=inputs, answers=answers, verdicts=verdicts)
    def fork(self, n: int, part: int, says: Any, answers: list[Answer], verdicts: list[str]) -> None:
        """Somebody goes on from an earlier version; the other branch may go on too."""
        session, name = self._session(n), f"f{len(self._sessions)}"
        if session not in self._witness.sessions:
            return
        at = max(1, len(self._witness.sessions[session].records) * (100 - part) // 100)
        self._sessions.append(name)
        self._process.fuse = None
        self._process.answers[name] = answers
        self._do(self._process.engine.fork(session, at=at, into=name))
        self._do(self._gone_on(name, says, verdicts))

    @rule(cast=casts)
    def restart(self, cast: Cast) -> None:
        """Another process, with other code, opens the file, and finds everything where it was."""
        before = self._runner.run(self._found())
        self._runner.run(self._process.end())
        self._start(cast)
        self._look_at_everything = True
        assert self._runner.run(self._found()) == before

    async def _found(self) -> list[Any]:
        """Where each session is."""
        found = []
        for session in self._witness.sessions:
            one = await self._process.engine.status(session)
            found.append((session, one.status, one.reason, one.agent, one.version, one.usage, one.open_calls))
        return found

    @precondition(lambda self: self._sessions)
    @rule()
    def recover(self) -> None:
        """Whatever is left of the dead is taken up."""
        self._process.fuse = None

        async def recover() -> None:
            engine = self._process.engine
            await engine.recover()
            await asyncio.gather(*engine._tasks, return_exceptions=True)

        self._do(recover())

    # -- what holds

    @invariant()
    def laws(self) -> None:
        """Hold every session against all laws; if the process has died, start another first."""
        if not hasattr(self, "_process"):
            return
        heard, self._process.heard = self._process.heard, []
        if not self._process.alive:
            self._runner.run(self._process.end())
            self._start(self._process.cast)
            self._look_at_everything = True
        try:
            whole, self._look_at_everything = self._look_at_everything, False
            look = self._witness.look(self._eyes, self._process.cast, heard, everything=whole)
            self._runner.run(look)
        except BaseException:
            for name, seen in self._witness.sessions.items():
                note("\n".join([name, *versions(seen)]))
            raise

    def teardown(self) -> None:
        async def end() -> None:
            if hasattr(self, "_process"):
                await self._process.end()
            await self._eyes.close()

        self._runner.run(end())
        self._runner.close()
        self._folder.cleanup()


TestEverything = Everything.TestCase
TestEverything.settings = tried(50, many=2000, steps=16)
