"""Engines in many processes on one SQLite file: outcomes go on the new head, and one alone drives."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.engine.many_engines import INPUTS, NOTES, PROCESSES, TOOLS
from tests.laws.depth import DEEP

from batonlog.engine import Agent, Engine
from batonlog.engine.testing import ScriptedModel
from batonlog.events import NoteAdded, Record, RunResumed, SQLiteLog, ToolCalled, ToolReturned
from batonlog.events.testing import _check_whole
from batonlog.projections import check_legal, model_history, session_history

ENGINES = Path(__file__).with_name("many_engines.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes fork, and this system cannot")


def engines(command: str, path: Path, number: int) -> list[dict[str, Any]]:
    """Run the processes; return what they told."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ENGINES), command, str(path), str(number)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def of(records: tuple[Record, ...], kind: type[Any]) -> list[Any]:
    return [record.event for record in records if isinstance(record.event, kind)]


async def test_while_seven_processes_speak_no_outcome_of_a_run_is_lost_and_nothing_is_done_twice(
    tmp_path: Path,
) -> None:
    turns = 8 if DEEP else 3
    told = engines("crowd", tmp_path / "log.db", turns)
    async with SQLiteLog(tmp_path / "log.db") as log:
        await _check_whole(log)
        if (await Engine[object](log).status("s")).status == "completed":  # input came in when it had ended
            last = Engine[object](log, agents=[Agent("a")], model=ScriptedModel("done"))
            await last.resume("s")
            await last.close()
        records = await log.records("s")
    begun = [line["began"] for line in told if "began" in line]
    assert len(begun) == len(set(begun)) == turns * TOOLS
    assert len(of(records, ToolCalled)) == turns * TOOLS
    assert sorted(event.output for event in of(records, ToolReturned)) == sorted(
        f"worked {TOOLS + n}" for n in range(turns * TOOLS)
    )
    assert not of(records, RunResumed)
    assert Counter(event.name for event in of(records, NoteAdded)) == Counter(
        f"p{p}.{n}" for p in range(1, PROCESSES) for n in range(NOTES)
    )
    for history in (session_history(records), model_history(records)):
        said = Counter(item.text for item in history if item.role == "user")
        assert said == Counter(
            ["go"] + [f"p{p}.{n}" for p in range(1, PROCESSES) for n in range(0, NOTES, NOTES // INPUTS)]
        )
    assert check_legal(model_history(records)) == ()
    (driver,) = [line for line in told if "status" in line]
    assert driver["status"] == "completed"
    assert sum(line.get("conflicts", 0) for line in told) > 0  # they did meet


async def test_of_two_engines_that_recover_at_once_one_drives_and_the_other_is_refused(
    tmp_path: Path,
) -> None:
    sessions = 40 if DEEP else 5
    told = engines("recover", tmp_path / "log.db", sessions)
    assert sum("found" in line for line in told) == 2  # neither raised
    names = {f"s{n}" for n in range(sessions)}
    came = [line["session"] for line in told if "came" in line]
    busy = [line["session"] for line in told if "busy" in line]
    assert set(came) == set(busy) == names
    assert len(came) == len(busy) == sessions
    assert all(f"{line['session']} is busy" in line["busy"] for line in told if "busy" in line)
    assert Counter(line["began"] for line in told if "began" in line) == Counter(f"{s}/4.0" for s in names)
    async with SQLiteLog(tmp_path / "log.db") as log:
        await _check_whole(log)
        for name in names:
            records = await log.records(name)
            assert len(of(records, RunResumed)) == len(of(records, ToolReturned)) == 1
            assert [record.type for record in records].count("run.completed") == 1
