"""Passes of a scenario: one that nothing happens to, others that crash, and what tells them apart."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from msgspec import Struct

from batonlog.engine.engine import Engine, built
from batonlog.engine.testing._crash_story import Reference, Story, differences, sessions_of
from batonlog.engine.testing._crash_world import Effects
from batonlog.events import SQLiteLog, UsageError

Scenario = Callable[[str], Awaitable[object]]

_IN_MEMORY = "/dev/shm"
"""A folder that no disk stands behind, on Linux. Nothing here loses power: nothing need reach a disk."""

_TOLD = 10
"""How many faults of a kind a report tells in words."""


class CrashReport(Struct, frozen=True, kw_only=True):
    """What crashing a scenario has shown. Nothing is wrong: `wrong_logs` and `repeated_effects` are empty."""

    boundaries: int
    """Places at which it was crashed; two crashes in one pass count once. Or how often it was killed."""
    wrong_logs: tuple[str, ...]
    """Where a recovered log differs from the one that nothing happened to, and how."""
    repeated_effects: tuple[str, ...]
    """Effects that took place again though their end was recorded, or though they are not idempotent
    and no person had said so, or under another idempotency key."""
    repeated_idempotent: tuple[str, ...]
    """Effects of idempotent tools that took place again, as they may: with the key that they had."""

    def __str__(self) -> str:
        lines = [
            f"crashed {self.boundaries} times",
            *_told("wrong logs", self.wrong_logs),
            *_told("repeated effects", self.repeated_effects),
            f"  repeated effects of idempotent tools, each with the key that it had: {len(self.repeated_idempotent)}",
        ]
        return "\n".join(lines)


def _told(what: str, faults: Sequence[str]) -> list[str]:
    more = [f"    and {len(faults) - _TOLD} more"] if len(faults) > _TOLD else []
    return [f"  {what}: {len(faults)}", *(f"    {fault}" for fault in faults[:_TOLD]), *more]


class Pass(Protocol):
    """One pass of a scenario, and how it crashes."""

    @property
    def effects(self) -> Effects:
        """What took place."""
        ...

    @property
    def crashes(self) -> Sequence[str]:
        """Where it crashed, in words."""
        ...

    def install(self, engine: Engine[Any], path: Path, reference: Reference | None) -> None:
        """Put an engine that was just built, in a pass over the log at the path, into a process that may die."""

    async def close(self) -> None:
        """Let go of what it holds."""


@asynccontextmanager
async def place_for_logs() -> AsyncIterator[Path]:
    """A folder for logs, in memory where that can be."""
    in_memory = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="batonlog-crash-", dir=in_memory) as folder:
        yield Path(folder)


class Trial:
    """Plays a scenario, and gathers what its passes show.

    Args:
        scenario: the scenario.
        folder: where the logs are.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario = scenario
        self._folder = folder
        self._reference: Reference | None = None
        self._wrong: list[str] = []
        self._repeated: list[str] = []
        self._idempotent: list[str] = []

    async def undisturbed(self, *passes: Pass) -> None:
        """See what the scenario comes to when nothing happens, in two passes.

        Raises what the scenario raises, and UsageError if it records nothing or does not do the
        same twice.
        """
        paths = [self._path(name) for name in ("undisturbed", "again")]
        names = []
        for path, one in zip(paths, passes, strict=True):
            if (failure := await self._play(path, one)) is not None:
                raise failure
            async with SQLiteLog(path) as log:
                names.append(frozenset(await sessions_of(log)))
        if not names[0]:
            raise UsageError(
                "the scenario recorded nothing: it must build its engine over the path that it is given"
            )
        same = names[0] & names[1]
        empty = Reference({}, same)
        first, second = [await _tell(path, one, empty) for path, one in zip(paths, passes, strict=True)]
        for difference in differences(first, second):
            raise UsageError(
                f"the scenario does not do the same twice, so nothing can be compared: {difference}"
            )
        self._reference = Reference(first, same)

    async def crash(self, name: str, one: Pass) -> Sequence[str]:
        """Play a pass that may crash, and compare. Return where it did."""
        assert self._reference is not None
        path = self._path(name)
        failure = await self._play(path, one)
        if one.crashes:
            found = await _tell(path, one, self._reference)
            where = f"crashed {', and '.join(one.crashes)}"
            faults = [*differences(self._reference.stories, found)]
            if failure is not None:
                faults.insert(0, f"the scenario raised {type(failure).__name__}: {failure}")
            self._wrong += [f"{where}: {fault}" for fault in faults]
            self._repeated += [f"{where}: {effect}" for effect in one.effects.repeated]
            self._idempotent += [f"{where}: {effect}" for effect in one.effects.repeated_idempotent]
        for file in path.parent.iterdir():
            file.unlink()
        path.parent.rmdir()
        return one.crashes

    def report(self, boundaries: int) -> CrashReport:
        """What all of this has shown."""
        return CrashReport(
            boundaries=boundaries,
            wrong_logs=tuple(self._wrong),
            repeated_effects=tuple(self._repeated),
            repeated_idempotent=tuple(self._idempotent),
        )

    def _path(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder / "log.db"

    async def _play(self, path: Path, one: Pass) -> BaseException | None:
        """Run the scenario once; return what it raised."""
        engines: list[Engine[Any]] = []

        def adopt(engine: Engine[Any]) -> None:
            engines.append(engine)
            one.install(engine, path, self._reference)

        async def begin() -> None:
            await self._scenario(str(path))

        context = copy_context()
        context.run(built.set, adopt)
        task = asyncio.get_running_loop().create_task(begin(), context=context)
        try:
            await asyncio.wait([task])
        finally:
            if task.cancel():
                await asyncio.wait([task])
            for engine in engines:
                await engine.close()
            await one.close()
        if task.cancelled():
            return asyncio.CancelledError()
        return task.exception()


async def _tell(path: Path, one: Pass, reference: Reference) -> dict[str, Story]:
    async with SQLiteLog(path) as log:
        return await reference.tell(log, one.effects)
