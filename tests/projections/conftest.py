"""A small language for logs, so that a test shows what happened and nothing else.

    log("start a", "ask a", "answer m c", "call 3.1", "return 3.1 done", "complete 3.0")

Each line is one event; its version is its place. Letters are items: `m` message, `c` call, `r`
reasoning, `u` a user's message; `c=x` is a call with the id x, `m=hello` a message with that text. A
history is written the same way with refs, and `+` for what a rewrite put in: `u1.0 m3.0 c3.1 o5.0`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec
import pytest

from batonlog.events import (
    JSON,
    AgentResolved,
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    CancelRequested,
    Event,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    InputAdded,
    Limits,
    MemoryLog,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    NoteAdded,
    Record,
    Ref,
    Rewrite,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunStarted,
    SessionForked,
    ToolAbandoned,
    ToolCalled,
    ToolReturned,
    Usage,
)
from batonlog.projections import Item

Log = Callable[..., tuple[Record, ...]]
Show = Callable[[Iterable[Item]], str]

ISSUER = ("here", "model")


def item_of(text: str, version: int, n: int) -> dict[str, JSON]:
    letter, _, more = text.partition("=")
    match letter:
        case "u":
            return {"type": "message", "role": "user", "content": more or f"user {version}"}
        case "m":
            content = [{"type": "output_text", "text": more or f"message {version}.{n}"}]
            return {"type": "message", "role": "assistant", "id": f"msg_{version}_{n}", "content": content}
        case "c":
            call_id = more or f"call_{version}_{n}"
            return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
        case "r":
            return {"type": "reasoning", "id": f"rs_{version}_{n}", "summary": []}
        case "o":
            return {"type": "function_call_output", "call_id": more, "output": "done"}
        case _:
            raise AssertionError(f"no item {text}")


def rewrite_of(text: str) -> Rewrite:
    """`take 0 1; put u; put m 2.0; take 0 2 at 4`"""
    operations: list[list[JSON]] = []
    for part in text.split(";"):
        match part.split():
            case ["take", start, stop, *at]:
                operations.append(["take", int(start), int(stop), *([int(at[1])] if at else [])])
            case ["put", what]:
                operations.append(["put", item_of(what, 0, 0)])
            case ["put", what, *covers]:
                refs = [Ref.parse(ref) for ref in covers]
                operations.append(["put", item_of(what, 0, 0), [[ref.version, ref.index] for ref in refs]])
    return Rewrite(filter="test", parameters={}, operations=tuple(operations))


def event_of(line: str, version: int) -> Event:
    words, _, rewrite = (
        line.partition(": ") if line.startswith(("filter", "rewrite", "edit")) else (line, "", "")
    )
    match words.split():
        case ["start", agent, *items]:
            given = tuple(item_of(text, version, n) for n, text in enumerate(items or ["u"]))
            return RunStarted(run_id=f"run {version}", agent=agent, input=given, limits=Limits())
        case ["send", *items] | ["queue", *items]:
            given = tuple(item_of(text, version, n) for n, text in enumerate(items or ["u"]))
            return InputAdded(input=given, goes_to="run" if words.startswith("queue") else "turn", by="li")
        case ["resolve", agent]:
            return AgentResolved(agent=agent, instructions="Help.", offered=(), settings={})
        case ["ask", agent, *continues]:
            return ModelRequested(
                turn=1,
                agent=agent,
                parts=(),
                issuer=ISSUER,
                previous_response_id=continues[0] if continues else None,
                wire=1,
                stored=True,
                digest=b"",
            )
        case ["answer" | "cut", *items]:
            output = tuple(item_of(text, version, n) for n, text in enumerate(items))
            return ModelResponded(
                request=version - 1,
                response_id=f"resp_{version}",
                output=output,
                usage=Usage(requests=1, total_tokens=10),
                status="incomplete" if words.startswith("cut") else "completed",
            )
        case ["break", kind, *retried]:
            return ModelFailed(
                request=version - 1, kind=kind, message="no", retried=bool(retried), usage=Usage(requests=1)
            )
        case ["call", ref]:
            return ToolCalled(call=Ref.parse(ref), name="look", arguments={})
        case ["return", ref, *output]:
            return ToolReturned(call=Ref.parse(ref), call_id=call_id(ref), output=" ".join(output) or "done")
        case ["abandon", ref]:
            return ToolAbandoned(
                call=Ref.parse(ref), call_id=call_id(ref), reason="cancelled", answer="stopped"
            )
        case ["refuse", ref]:
            return CallRefused(call=Ref.parse(ref), call_id=call_id(ref), reason="rejected", answer="no")
        case ["gate", ref, *why]:
            return ApprovalRequested(call=Ref.parse(ref), reason=why[0] if why else "approval")
        case ["approve", ref]:
            return ApprovalDecided(call=Ref.parse(ref), verdict="run", by="anna")
        case ["filter", ref]:
            return HandoffFiltered(call=Ref.parse(ref), rewrite=rewrite_of(rewrite))
        case ["hand", ref, source, target]:
            return HandoffMade(
                call=Ref.parse(ref),
                call_id=call_id(ref),
                source=source,
                target=target,
                arguments={},
                acknowledgement="transferred",
            )
        case ["rewrite"]:
            return HistoryRewritten(cause="compaction", rewrite=rewrite_of(rewrite))
        case ["edit"]:
            return HistoryRewritten(cause="manual", rewrite=rewrite_of(rewrite))
        case ["pause", reason, *limit]:
            return RunPaused(reason=reason, limit=" ".join(limit) or None)  # type: ignore[arg-type]
        case ["resume"]:
            return RunResumed(by="w")
        case ["fail", kind]:
            return RunFailed(kind=kind, message="broken")
        case ["complete", *ref]:
            return RunCompleted(output=Ref.parse(ref[0]) if ref else None)
        case ["cancel"]:
            return RunCancelled(by="li", reason="changed my mind")
        case ["stop", *after_turn]:
            return CancelRequested(by="li", after_turn=bool(after_turn))
        case ["note", name, value]:
            return NoteAdded(name=name, data=value)
        case ["fork"]:
            return SessionForked(parent="p", at=version - 1)
        case _:
            raise AssertionError(f"no event {line}")


def call_id(ref: str) -> str:
    return f"call_{ref.replace('.', '_')}"


async def records_of(lines: Iterable[str | Event], session: str) -> tuple[Record, ...]:
    events = [
        event_of(line, version) if isinstance(line, str) else line for version, line in enumerate(lines, 1)
    ]
    async with MemoryLog() as log:
        await log.append(session, events, expected=0)
        return await log.records(session)


@pytest.fixture
def log() -> Log:
    """Make records of lines and events."""

    def make(*lines: str | Event, session: str = "s") -> tuple[Record, ...]:
        return asyncio.run(records_of(lines, session))

    return make


_LETTERS: Mapping[str, str] = {
    "function_call": "c",
    "function_call_output": "o",
    "reasoning": "r",
}


@pytest.fixture
def show() -> Show:
    """Write a history: a letter and a ref for each item."""

    def letter(item: Item) -> str:
        if item.replaces or item.role == "developer":
            return "+"
        return _LETTERS.get(item.type) or ("u" if item.role == "user" else "m")

    return lambda items: " ".join(f"{letter(item)}{item.ref or ''}" for item in items)


@pytest.fixture
def items() -> Callable[[str], list[Item]]:
    """Make items that stand nowhere yet: `items("u m c=x o=x")`."""

    def make(text: str) -> list[Item]:
        return [
            Item(None, msgspec.Raw(msgspec.json.encode(item_of(one, 0, n))))
            for n, one in enumerate(text.split())
        ]

    return make
