"""Who plays a script: agents with tools and handoffs of every kind, and the filters between them."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.laws.played import FailedError, Played, Voice
from tests.laws.scripts import AGENTS, JSON, ROUTE, TOOLS, Edit, Filtering, Passing
from tests.laws.store import append

from batonlog.engine import (
    Agent,
    Engine,
    Handoff,
    Retries,
    Tool,
    ToolContext,
    handoff,
    tool,
)
from batonlog.events import (
    NoteAdded,
    Ref,
)
from batonlog.projections import (
    FilterInput,
    History,
    Item,
    drop_tools,
)

# -- tools


async def _begin(context: ToolContext[Played], n: int) -> Played:
    played = context.context
    played.effects.append((context.tool, str(context.call), n, context.idempotency_key))
    played.see(context)
    await played.pause()
    return played


def _output(played: Played, n: int) -> JSON:
    return played.script.outputs[n % len(played.script.outputs)]


@tool(idempotent=True)
async def look(context: ToolContext[Played], n: int) -> object:
    """Look something up."""
    return _output(await _begin(context, n), n)


@tool(needs_approval=True)
async def pay(context: ToolContext[Played], n: int) -> object:
    """Pay."""
    return _output(await _begin(context, n), n)


@tool(needs_approval=lambda context, arguments: arguments["n"] % 2 == 1)
async def ask(context: ToolContext[Played], n: int) -> object:
    """Ask a person for odd numbers."""
    return _output(await _begin(context, n), n)


@tool
async def boom(context: ToolContext[Played], n: int) -> object:
    """Raise."""
    await _begin(context, n)
    raise FailedError("\ud800 tool")


@tool
async def steer(context: ToolContext[Played], n: int) -> object:
    """Let the user say something in the middle of the turn."""
    played = await _begin(context, n)
    await played.engine.send(f"one more thing {n}", session=played.session)
    await played.pause()
    return _output(played, n)


@tool
async def note(context: ToolContext[Played], n: int) -> object:
    """Note something, here and from another process."""
    played = await _begin(context, n)
    context.note("seen", n)
    await append(played.store, played.session, NoteAdded(name="foreign", data={"n": n}))
    return None


@tool(on_unknown="report")
async def lost(context: ToolContext[Played], n: int) -> object:
    """Do what is better not done twice."""
    return _output(await _begin(context, n), n)


@tool
async def stop(context: ToolContext[Played], n: int) -> object:
    """Let the user cancel the run."""
    played = await _begin(context, n)
    await played.engine.cancel(played.session, after_turn=n % 2 == 1)
    await played.pause()
    return "stopping"


wait: Tool[Any] = Tool("wait", None)  # runs elsewhere

ALL_TOOLS = {one.name: one for one in (look, pay, ask, boom, steer, note, lost, wait, stop)}
assert set(ALL_TOOLS) == set(TOOLS)


# -- filters


def edited(items: Sequence[Item], edits: Sequence[Edit], own: History | None = None) -> Any:
    """Do to a history what the edits say."""
    out: list[Any] = list(items)
    for edit in edits:
        n = len(out)
        match edit.what:
            case "same":
                pass
            case "messages":
                out = [item for item in out if _type(item) == "message"]
            case "drop_tools":
                out = list(drop_tools(History(item for item in out if isinstance(item, Item))))
            case "own":
                out = list(own) if own is not None else out
            case "keep":
                out = [item for k, item in enumerate(out) if edit.by >> (k % 16) & 1]
            case "last":
                out = out[-edit.at :]
            case "reverse":
                out.reverse()
            case "rotate" if n:
                out = out[edit.at % n :] + out[: edit.at % n]
            case "move" if n:
                out.insert(edit.by % n, out.pop(edit.at % n))
            case "change" if n and isinstance(out[edit.at % n], Item):
                out[edit.at % n] = out[edit.at % n].replace(**edit.by)
            case "put":
                out.insert(edit.at % (n + 1), edit.by)
            case "copy" if n and isinstance(out[edit.at % n], Item):
                out.insert(edit.by % (n + 1), out[edit.at % n].data)
            case "copies":
                out = [item.data if isinstance(item, Item) else item for item in out]
            case "only":
                out = list(edit.by)
            case "return":
                return edit.by
            case "twice":
                out = [*out, *out]
            case "strange":
                out.append(Item(Ref(999, 0), msgspec.Raw(b'{"role":"user","content":"not from here"}')))
            case "raise":
                raise FailedError("filter")
    return out


def _type(item: Any) -> str:
    if isinstance(item, Item):
        return item.type
    return str(item.get("type", "message")) if isinstance(item, dict) else ""


def filter_of(played: Played, filtering: Filtering) -> Callable[[FilterInput[Any]], Any]:
    """Make a filter."""

    def work(given: FilterInput[Any]) -> Any:
        played.filtered += 1
        key = id(filtering)
        if played.failures.get(key, 0) < filtering.fails:
            played.failures[key] = played.failures.get(key, 0) + 1
            raise FailedError("filter")
        return edited(given, filtering.edits, given.own)

    async def work_later(given: FilterInput[Any]) -> Any:
        await played.pause()
        return work(given)

    return work_later if filtering.asynchronous else work


# -- agents


class Reason(msgspec.Struct):
    """Why control is passed; a model may leave it out."""

    n: int = 0


def _handoff(played: Played, passing: Passing) -> Handoff[Any]:
    targets = [AGENTS[n] for n in passing.targets]

    async def callback(context: ToolContext[Played], value: object = None) -> None:
        played.effects.append((context.tool, str(context.call), 0, context.idempotency_key))
        played.see(context)
        await played.pause()
        if passing.callback == "raise":
            raise FailedError("callback")
        context.note("passed", len(targets))

    def pick(context: ToolContext[Played], value: object = None) -> str:
        match passing.picks:
            case "raise":
                raise FailedError("pick")
            case "nowhere":
                return "nobody"
            case "self":
                return context.agent
            case "last":
                return targets[-1]
            case _:
                return targets[0]

    filtering: Any = passing.filtering
    options: dict[str, Any] = {
        "on_handoff": callback if passing.callback else None,
        "on_invoke": pick if passing.picks else None,
        "input_filter": filter_of(played, filtering) if isinstance(filtering, Filtering) else filtering,
        "acknowledgement": passing.acknowledgement,
        "needs_approval": passing.gate,
        "tool_name": ROUTE if passing.picks else None,
    }
    if passing.typed:
        options["input_type"] = Reason
    return handoff(*targets, **options)


def agents_of(played: Played, second: Any) -> list[Agent[Any]]:
    """Make the agents; of handoffs that would have one name, the first counts."""
    script = played.script
    made = []
    for n, name in enumerate(AGENTS):
        found: dict[str, Any] = {}
        for passing in script.passings:
            if passing.source == n:
                one = _handoff(played, passing)
                found.setdefault(one.tool_name, one)
        made.append(
            Agent[Any](
                name,
                instructions=f"You are {name}.",
                tools=[ALL_TOOLS[key] for key in script.tools.get(n, TOOLS)],
                handoffs=list(found.values()),
                model=second if n in script.second_model else None,
            )
        )
    return made


Models = Callable[[Played], tuple[Any, Any]]


def voices(played: Played) -> tuple[Any, Any]:
    """The two models of a script, in this process."""
    return Voice(played, "first"), Voice(played, "second")


def engine_of(played: Played, log: Any = None, *, models: Models = voices) -> Engine[Played]:
    """Make an engine for a script."""
    first, second = models(played)
    default = played.script.default
    played.engine = Engine(
        log if log is not None else played.store,
        agents=agents_of(played, second),
        model=first,
        handoff_filter=filter_of(played, default) if default is not None else None,
        context_for=lambda session: played,
        retries=Retries(first=0),
    )
    return played.engine
