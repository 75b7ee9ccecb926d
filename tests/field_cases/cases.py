"""The field cases: faults that users of other products reported, as scripts, read from their file.

A script is a list of records. `user` is a message, `response` one answer of an agent, `output`
what a tool returned, `handoff` a transfer with the name of its filter, `fault` what breaks, and
`do` what the test does. What must hold is stated beside it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine.handoffs import wire_name
from batonlog.engine.testing import assistant_message

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "field_cases.json"

needs_the_cases = pytest.mark.skipif(not DATA.exists(), reason=f"the field cases are not at {DATA}")

JSON = Any
TRANSFER = "transfer_to_"


@dataclass(frozen=True)
class Turn:
    """A message of the user, and the answers that the script has for it."""

    text: str
    answers: Sequence[Sequence[Mapping[str, JSON]]]


@dataclass(frozen=True)
class Case:
    """One field case."""

    number: int
    records: Sequence[Mapping[str, JSON]]

    def of(self, kind: str) -> list[Mapping[str, JSON]]:
        """All records of a kind."""
        return [record for record in self.records if record["t"] == kind]

    def ops(self, op: str) -> list[Mapping[str, JSON]]:
        """All that is to be done of one sort."""
        return [record for record in self.of("do") if record["op"] == op]

    @property
    def turns(self) -> list[Turn]:
        """What the user says, and what is answered; a turn without a last word gets one."""
        found: list[tuple[str, list[list[Mapping[str, JSON]]]]] = []
        for record in self.records:
            if record["t"] == "user":
                found.append((record["text"], []))
            elif record["t"] == "response" and found:
                found[-1][1].append([item_of(item) for item in record["items"]])
        return [
            Turn(text, answers if _is_last(answers) else [*answers, [CLOSING]]) for text, answers in found
        ]

    @property
    def outputs(self) -> dict[str, list[str]]:
        """What the tools return, by the provider's id of the call."""
        found: dict[str, list[str]] = {}
        for record in self.of("output"):
            if record.get("final", True):
                found.setdefault(record["call_id"], []).append(record["output"])
        return found

    @property
    def calls(self) -> list[tuple[str, Mapping[str, JSON]]]:
        """Every call of the script, and the agent that makes it."""
        return [
            (record["agent"], item)
            for record in self.of("response")
            for item in record["items"]
            if item["type"] == "function_call"
        ]

    @property
    def agents(self) -> list[str]:
        """The names of all agents, the one that begins first."""
        names: dict[str, None] = {}
        for record in self.records:
            for key in ("agent", "from", "to"):
                if key in record and record["t"] in ("response", "handoff"):
                    names[record[key]] = None
        known = {wire_name(name) for name in names}
        for _, call in self.calls:
            if call["name"].startswith(TRANSFER) and call["name"] not in known:
                names[call["name"].removeprefix(TRANSFER).capitalize()] = None
        return list(names)

    def filters_of(self, source: str, target: str) -> Sequence[str]:
        """The names of the filters that a handoff has."""
        for record in self.of("handoff"):
            if (record["from"], record["to"]) == (source, target) and record["filter"]:
                named = record["filter"]
                return [named] if isinstance(named, str) else named
        return []


CLOSING = assistant_message("Is there anything else?")


def item_of(item: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """An item of a script as a provider says it."""
    match item["type"]:
        case "message":
            return {**assistant_message(item["text"]), "id": item["id"]}
        case "reasoning":
            return {"summary": [], **item}
        case _:
            return item


def _is_last(answers: Sequence[Sequence[Mapping[str, JSON]]]) -> bool:
    return bool(answers) and all(item["type"] in ("message", "reasoning") for item in answers[-1])


def case(number: int) -> Case:
    """Read a case from the file."""
    for one in json.loads(DATA.read_text(encoding="utf-8")):
        if int(one["case"]) == number:
            return Case(number, one["input"])
    raise LookupError(f"there is no case {number} in {DATA}")
