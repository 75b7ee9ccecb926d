"""A process that appends: `many_writers.py FILE NAME SESSIONS ROUNDS`. Run by test_sqlite.py.

It waits for a line on stdin, so that all begin at once, and prints what it stored.
"""

import asyncio
import json
import sys

from batonlog.events import ConflictError, NoteAdded, SQLiteLog


async def main(path: str, name: str, sessions: int, rounds: int) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    conflicts, stored = 0, []
    async with SQLiteLog(path) as log:
        for n in range(rounds * sessions):
            session, text, expected = f"s{n % sessions}", f"{name}.{n}", 0
            while True:
                try:
                    answer = await log.append(session, [NoteAdded(name="n", data=text)], expected=expected)
                    break
                except ConflictError as conflict:
                    conflicts, expected = conflicts + 1, conflict.actual
            stored.append((answer.version, text))
    print(json.dumps({"conflicts": conflicts, "stored": stored}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
