"""Many processes append to one SQLite file, are followed by another, and are killed: nothing is lost or torn."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.laws.depth import DEEP

from batonlog.events import NoteAdded, SQLiteLog
from batonlog.events.testing import _check_whole

CROWD = Path(__file__).with_name("crowd.py")
BATCH = 3

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes fork, and this system cannot")


def crowd(command: str, path: Path, *numbers: int) -> list[dict[str, Any]]:
    """Run the processes; return what they told."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(CROWD), command, str(path), *map(str, numbers)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_a_process_that_follows_sixty_four_sessions_sees_all_that_eight_append_in_order(
    tmp_path: Path,
) -> None:
    rounds = 20 if DEEP else 2
    told = crowd("follow", tmp_path / "log.db", 64, rounds)
    (seen,) = [line["seen"] for line in told if "seen" in line]
    stored = [(line["session"], line["version"]) for line in told if "stored" in line]
    async with SQLiteLog(tmp_path / "log.db") as log:
        await _check_whole(log)
        final = [[r.position, r.session, r.version, r.hash.hex()] async for r in log.read_all()]
    assert seen == final
    assert [position for position, *_ in seen] == list(range(1, 8 * 64 * rounds + 1))
    versions: dict[str, list[int]] = defaultdict(list)
    for _, session, version, _ in seen:
        versions[session].append(version)
    assert all(one == list(range(1, 8 * rounds + 1)) for one in versions.values())
    assert sorted(stored) == sorted((session, version) for _, session, version, _ in seen)
    assert any("conflict" in line for line in told)  # they did meet


@pytest.mark.parametrize("seed", range(10 if DEEP else 1))
async def test_a_writer_that_is_killed_leaves_all_of_a_batch_or_none(tmp_path: Path, seed: int) -> None:
    told = crowd("killed", tmp_path / "log.db", 300 if DEEP else 40, seed)
    asked = {line["asks"] for line in told if "asks" in line}
    stored = {line["stored"]: line["version"] for line in told if "stored" in line}
    async with SQLiteLog(tmp_path / "log.db") as log:
        await _check_whole(log)
        found: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        async for record in log.read_all():
            assert isinstance(record.event, NoteAdded)
            found[record.event.name].append((record.version, record.event.data))
    for name, parts in found.items():
        first = parts[0][0]
        assert parts == [(first + n, n) for n in range(BATCH)], name  # all of it, together, and once
    # What was answered is there; what was asked for and never answered is there or is not.
    assert {name: version - BATCH + 1 for name, version in stored.items()} == {
        name: found[name][0][0] for name in stored
    }
    assert stored.keys() <= found.keys() <= asked
    assert any("conflict" in line for line in told)
