"""Crash a scenario everywhere, and see that nothing is lost, and nothing done twice.

    async def scenario(path: str) -> None:
        async with Engine(path, agents=[triage], model=ScriptedModel(*SCRIPT)) as engine:
            await engine.run("refund order 7", session="cust-42")

    report = asyncio.run(crash_everywhere(scenario))
    assert not report.wrong_logs and not report.repeated_effects

The crashes are played, in this process: how is in `_crash_world`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from batonlog.engine.engine import Engine, built
from batonlog.engine.testing._crash_client import install
from batonlog.engine.testing._crash_story import Reference, Story, differences, sessions_of
from batonlog.engine.testing._crash_world import World
from batonlog.events import SQLiteLog, UsageError

Scenario = Callable[[str], Awaitable[object]]

_IN_MEMORY = "/dev/shm"
"""A folder that no disk stands behind, on Linux. Played crashes lose no power: nothing need reach a disk."""


class CrashReport(Struct, frozen=True, kw_only=True):
    """What crashing a scenario everywhere has shown. Nothing wrong: both tuples are empty."""

    boundaries: int
    """Places at which it was crashed."""
    wrong_logs: tuple[str, ...]
    """Where a recovered log differs from the one that nothing happened to, and how."""
    repeated_effects: tuple[str, ...]
    """Effects that took place again though their end was recorded, or though they are not idempotent
    and no person had said so."""


async def crash_everywhere(scenario: Scenario, /) -> CrashReport:
    """Run `scenario(path of the log)`, crash it at every append and effect in turn, recover, compare.

    A crash stops all engines that the scenario has built, and starts them again; the scenario
    itself goes on, as a client does whose server was restarted: a call of `run`, `resume` or
    `stream` in which the crash happened returns what came of it after the recovery. Crashed is
    before and after each batch is stored, before each model call, tool and `on_handoff` begins,
    and when it is done and nobody has heard. A model that had answered is not asked again, so
    a ScriptedModel that the scenario makes is played once; but in a provider's conversation it is
    asked again, in a new one, and should answer by what it is shown. A model that fails is waited for
    as ever: give the engine `Retries(first=0)`. A call that is not idempotent and
    whose outcome is unknown gets a person's word: one that never took place is let run, and
    for one that did the person gives the output that it had when nothing happened.

    Compared are both histories, the ends of runs and calls, the effects that took place, and
    usage; not where a model was told that nobody knows, as `on_unknown="report"` promises.

    Args:
        scenario: builds its engines over a SQLite log at the path, and its models and scripts
            anew each time. It must do the same whenever it is run.

    Raises what the scenario raises when nothing happens to it, and UsageError if it records
    nothing at the path or does not do the same twice.
    """
    in_memory = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="batonlog-crash-", dir=in_memory) as folder:
        reference = await _reference(scenario, Path(folder))
        wrong: list[str] = []
        repeated: list[str] = []
        for at in count():
            world = World(at)
            log = Path(folder, f"{at}.db")
            failure = await _play(scenario, log, world, reference)
            if world.crashed is None:
                return CrashReport(boundaries=at, wrong_logs=tuple(wrong), repeated_effects=tuple(repeated))
            found = await _tell(log, world, reference)
            faults = [*differences(reference.stories, found)]
            if failure is not None:
                faults.insert(0, f"the scenario raised {type(failure).__name__}: {failure}")
            wrong += [f"crashed {world.crashed}: {fault}" for fault in faults]
            repeated += [f"crashed {world.crashed}: {effect}" for effect in world.repeated]
    raise AssertionError("unreachable")


async def _reference(scenario: Scenario, folder: Path) -> Reference:
    """What the scenario comes to when nothing happens, twice."""
    worlds = [World(None), World(None)]
    paths = [folder / "undisturbed.db", folder / "again.db"]
    names = []
    for world, path in zip(worlds, paths, strict=True):
        failure = await _play(scenario, path, world, None)
        if failure is not None:
            raise failure
        async with SQLiteLog(path) as log:
            names.append(frozenset(await sessions_of(log)))
    if not names[0]:
        raise UsageError(
            "the scenario recorded nothing: it must build its engine over the path that it is given"
        )
    empty = Reference({}, names[0] & names[1])
    first, second = [await _tell(path, world, empty) for path, world in zip(paths, worlds, strict=True)]
    for difference in differences(first, second):
        raise UsageError(f"the scenario does not do the same twice, so nothing can be compared: {difference}")
    return Reference(first, names[0] & names[1])


async def _tell(path: Path, world: World, reference: Reference) -> dict[str, Story]:
    async with SQLiteLog(path) as log:
        return await reference.tell(log, world)


async def _play(
    scenario: Scenario, path: Path, world: World, reference: Reference | None
) -> BaseException | None:
    """Run the scenario once; return what it raised."""
    engines: list[Engine[Any]] = []

    def adopt(engine: Engine[Any]) -> None:
        engines.append(engine)
        install(engine, world, reference)

    async def begin() -> None:
        await scenario(str(path))

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
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception()
