"""Plays a script through a real engine, and keeps all that came of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from tests.laws.scripts import AGENTS, JSON, ROUTE, TOOLS, Edit, Filtering, Passing, Script, Turn, named

from batonlog.engine import (
    Agent,
    Engine,
    Handoff,
    RunFailedError,
    SessionBusyError,
    Tool,
    ToolContext,
    handoff,
    tool,
)
from batonlog.engine.models import Delta, ModelResponse
from batonlog.events import (
    ApprovalDecided,
    ConflictError,
    Event,
    HistoryRewritten,
    Limits,
    MemoryLog,
    NoteAdded,
    Record,
    Ref,
    Rewrite,
    Usage,
    UsageError,
)
from batonlog.events.lifecycle import IDLE
from batonlog.projections import (
    FilterInput,
    History,
    Item,
    ModelRequest,
    RunResult,
    drop_tools,
    keep_last,
    messages_only,
)
from batonlog.projections.filters import apply_filters
from batonlog.projections.rewrite import operations
from batonlog.projections.state import run_state

SESSION = "talk"


class Store(MemoryLog):
    """A log that tells of every append, and whose leases can be made to run out."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: dict[str, int] = {}
        """Responses so far, by session: which step of the script is next."""
        self.decided: dict[str, int] = {}
        """Words of a person so far, by session: which verdict is next."""

    async def append(self, session: str, events: Sequence[Event], **options: Any) -> Any:
        done = await super().append(session, events, **options)
        if not done.duplicate:
            said = sum(event.type == "model.responded" for event in events)
            self.answered[session] = self.answered.get(session, 0) + said
            words = sum(event.type == "approval.decided" for event in events)
            self.decided[session] = self.decided.get(session, 0) + words
        return done

    def expire(self, session: str) -> None:
        """Let the time of a lease be over."""
        if session in self._leases:
            owner, epoch, seconds, until = self._leases[session]
            self._leases[session] = (owner, epoch, seconds, min(until, 1))


class FailedError(Exception):
    """What a scripted model, filter or callback raises."""


class Played:
    """One conversation as it is played: what was asked, what was done, and the log."""

    def __init__(self, script: Script, store: Store | None = None, session: str = SESSION) -> None:
        self.script = script
        self.store = store if store is not None else Store()
        self.session = session
        self.requests: list[ModelRequest] = []
        """What the models were given, in order."""
        self.raw: list[list[bytes]] = []
        """The bytes of each request's input, when it was made."""
        self.effects: list[tuple[str, str, int, str]] = []
        """Tool, call key, number and idempotency key of each effect, as they began."""
        self.states: list[tuple[int, JSON]] = []
        """What `look` found whenever an effect began: version and value."""
        self.look: Callable[[Any], JSON] | None = None
        """Looks at the driver's state."""
        self.filtered = 0
        """How often a filter was called."""
        self.refused: list[str] = []
        """What the engine refused to take from a caller."""
        self.failures: dict[int, int] = {}
        self.effect_count = 0
        self.engine: Engine[Played]

    async def records(self) -> tuple[Record, ...]:
        return await self.store.records(self.session)

    async def pause(self) -> None:
        """Let an effect take its time."""
        delays = self.script.delays
        rounds = delays[self.effect_count % len(delays)]
        self.effect_count += 1
        for _ in range(rounds):
            await asyncio.sleep(0)

    def see(self) -> None:
        """Look at the state that the engine holds right now."""
        claim = self.engine._sessions._claims.get(self.session)
        if self.look is not None and claim is not None and claim.driver is not None:
            self.states.append((claim.driver.state.version, self.look(claim.driver.state)))

    def verdict(self) -> str:
        return self.script.people[self.store.decided.get(self.session, 0) % len(self.script.people)]


class Voice:
    """A model that says what the script has next, however often it is asked for that."""

    def __init__(self, played: Played, name: str) -> None:
        self.name = name
        self.endpoint = "loopback"
        self.chain = "previous_response_id" if played.script.chain else None
        self._played = played

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        played = self._played
        played.requests.append(request)
        played.raw.append([bytes(item) for item in request.raw_input])
        played.see()
        await played.pause()
        n = played.store.answered.get(played.session, 0)
        steps = played.script.steps
        if n >= len(steps):
            yield ModelResponse(
                [{"type": "message", "role": "assistant", "content": "Done."}], id=f"resp_{n}", usage=USED
            )
            return
        step = steps[n]
        if step.fails and not played.failures.get(n):
            played.failures[n] = 1
            raise FailedError(f"step {n}")
        yield Delta(kind="text", text="…", agent=request.agent, turn=request.turn)
        yield ModelResponse(
            named(step.output, [one["name"] for one in request.tools]),
            id=f"resp_{n}",
            usage=USED,
            status="incomplete" if step.incomplete else "completed",
        )


USED = Usage(requests=1, input_tokens=7, output_tokens=3, total_tokens=10)


# -- tools


async def _begin(context: ToolContext[Played], n: int) -> Played:
    played = context.context
    played.effects.append((context.tool, str(context.call), n, context.idempotency_key))
    played.see()
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


async def append(store: MemoryLog, session: str, event: Event) -> None:
    """Append as another process does: without a lease, at the head, again after a conflict."""
    while True:
        head = await store.head(session)
        try:
            await store.append(session, [event], expected=head.version if head is not None else 0)
            return
        except ConflictError:
            continue


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
        played.see()
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
    )
    return played.engine


# -- playing

_PATIENCE = 40
"""How often a run that waits or has failed is taken up again."""


async def play(
    script: Script, *, models: Models = voices, look: Callable[[Any], JSON] | None = None
) -> Played:
    """Play a script from its first turn to its last, with a person who answers whatever waits."""
    played = Played(script)
    played.look = look
    engine = engine_of(played, models=models)
    for turn in script.turns:
        await before(played, turn)
        try:
            await take(played, turn, engine.run)
        except UsageError as error:
            # What is said may be no item; then nothing has begun.
            played.refused.append(str(error))
        except SessionBusyError:
            break  # patience was lost
    await engine.close()
    return played


async def take(played: Played, turn: Turn, run: Callable[..., Any]) -> RunResult | None:
    """One run, from what is said to its end."""
    result: RunResult | None = None
    with suppress(RunFailedError):
        result = await run(
            turn.says, session=played.session, context=played, limits=Limits(turns=turn.limit or 10)
        )
    return await go_on(played, result)


async def go_on(played: Played, result: RunResult | None) -> RunResult | None:
    """Answer what waits, and take up what failed, until the run has its end or patience is lost."""
    engine = played.engine
    for _ in range(_PATIENCE):
        if result is None:
            result = await engine.status(played.session)
        if result.status not in ("paused", "failed", "running"):
            return result
        for call in result.open_calls:
            await speak(played, call.call, call.why)
        try:
            result = await engine.resume(played.session, limits=Limits(turns=30, handoffs=40))
        except RunFailedError:
            result = None
    return result


async def speak(played: Played, call: Ref, why: str) -> None:
    """Say a person's word on one call, if it waits for one."""
    engine, session = played.engine, played.session
    try:
        match played.verdict():
            case _ if why == "running":
                pass
            case "refuse":
                await engine.reject(session, call, by="p", reason="no")
            case "run" if why != "external":
                await engine.approve(session, call, by="p")
            case _:
                await engine.settle(session, call, {"settled": True}, by="p")
    except UsageError:
        # A call that was interrupted is asked about once the session has been resumed.
        if why != "unknown":
            raise


async def before(played: Played, turn: Turn) -> None:
    """What happens between two runs."""
    for what, by in turn.before:
        head = await played.store.head(played.session)
        match what:
            case "note" if head is not None:
                await played.engine.note(played.session, "between", by)
            case "send":
                await played.engine.send(by, session=played.session)
            case "always" if head is not None:
                await append(
                    played.store,
                    played.session,
                    ApprovalDecided(standing=(AGENTS[0], "pay"), verdict=by, by="p"),
                )
            case "rewrite" if head is not None:
                await rewrite(played, by)


async def rewrite(played: Played, edits: Sequence[Edit]) -> None:
    """Rewrite the view from outside, where no call is open."""
    state = run_state(await played.records())
    if state.open_calls() or state.phase != IDLE:
        return
    view = state.place.settled
    given = FilterInput(
        view, version=state.version, cause="manual", session=played.session, context=played, split=0
    )
    try:
        after = await apply_filters(lambda history: edited(history, edits), given)
        changes = operations(view, after)
    except UsageError:
        return
    if changes is not None:
        change = Rewrite(filter="by hand", parameters={}, operations=tuple(changes))
        await append(played.store, played.session, HistoryRewritten(cause="manual", rewrite=change))


__all__ = [
    "SESSION",
    "FailedError",
    "Played",
    "Store",
    "Voice",
    "agents_of",
    "append",
    "edited",
    "engine_of",
    "go_on",
    "keep_last",
    "messages_only",
    "play",
    "take",
    "voices",
]
