"""Events and items in words: one line each, for people."""

from collections.abc import Iterable
from typing import assert_never, cast

from batonlog.engine.cli.terminal import joined, one_line
from batonlog.events import (
    JSON,
    AgentResolved,
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    CancelRequested,
    Event,
    EventRedacted,
    GuardrailTripped,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    InputAdded,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    NoteAdded,
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
    UnknownEvent,
)
from batonlog.events.facts import AnyEvent
from batonlog.events.values import dump, load
from batonlog.projections import Item
from batonlog.projections.items import ANSWERED_BY, OUTPUTS, text_of


def say_item(item: Item) -> str:
    """Return an item in one line, without who said it."""
    return _say_data(item.type, item.data, item.text)


def counted(n: int, what: str = "item") -> str:
    """Return a number of things: "1 item", "2 items"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def who_said(item: Item) -> str:
    """Return who an item is from: the agent, or the role of the input."""
    return one_line(item.agent or item.role or "input")


def say_event(event: Event) -> str:
    """Return what an event says, in one line, without its tag."""
    if isinstance(event, UnknownEvent):
        return "of a newer batonlog"
    return one_line(_say(cast(AnyEvent, event)))


def _say(event: AnyEvent) -> str:
    match event:
        case RunStarted(agent=agent, input=items, parent=parent):
            nested = f"for call {parent[1]} of {parent[0]}" if parent is not None else ""
            return joined(
                [f"agent {agent}", nested, f"input: {_say_items(items)}" if items else "no new input"]
            )
        case RunResumed(by=by, limits=limits):
            return joined([f"by {by}", "new limits" if limits is not None else ""])
        case RunPaused(reason=reason, limit=limit):
            return f"at its limit of {limit}" if limit is not None else f"waits: {reason}"
        case RunCompleted(output=output):
            return f"answer {output}" if output is not None else "no answer"
        case RunFailed(kind=kind, message=message):
            return f"{kind}: {message}"
        case RunCancelled(by=by, reason=reason):
            return joined([f"by {by}", reason], by=": ")
        case InputAdded(by=by, goes_to=goes_to, input=items):
            return f"by {by}, for the next {goes_to}: {_say_items(items)}"
        case CancelRequested(by=by, after_turn=after_turn, reason=reason):
            return joined([f"by {by}{', after the turn' if after_turn else ''}", reason], by=": ")
        case NoteAdded(name=name, data=data):
            return f"{name} = {dump(data).decode()}"
        case AgentResolved():
            return f"{event.agent}: {_say_parts(event) or 'nothing yet'}"
        case ModelRequested():
            return joined(
                [
                    f"turn {event.turn}",
                    event.agent,
                    event.issuer[1],
                    f"attempt {event.attempt}" if event.attempt > 1 else "",
                    _say_held(event),
                ]
            )
        case ModelResponded(output=items, status=status):
            return joined([_say_items(items) or "nothing", "" if status == "completed" else status])
        case ModelFailed(kind=kind, message=message):
            # First what follows: what a provider says may be longer than the line.
            return f"{joined([kind, _say_again(event)])}: {message}"
        case ToolCalled(call=call, name=name, arguments=arguments, attempt=attempt):
            again = f", attempt {attempt}" if attempt > 1 else ""
            return f"{call} {_say_call(name, arguments)}{again}"
        case ToolReturned(call=call, output=output, error=error):
            return f"{call} {'error: ' if error else ''}{_say_json(output)}"
        case ToolAbandoned(call=call, reason=reason, answer=answer):
            return f"{call} {reason}: {answer}"
        case CallRefused(call=call, reason=reason, answer=answer):
            return f"{call} {reason}: {answer}"
        case ApprovalRequested(call=call, reason=reason):
            return f"{call} {reason}"
        case ApprovalDecided(call=call, verdict=verdict, by=by, reason=reason, standing=standing):
            also = f"always for {standing[1]} of {standing[0]}" if standing is not None else ""
            which = f"{call} " if call is not None else ""
            return joined([joined([f"{which}{verdict}", also, f"by {by}"]), reason], by=": ")
        case HandoffFiltered(call=call, rewrite=rewrite):
            return f"{call} {_say_rewrite(rewrite)}"
        case HandoffMade(call=call, source=source, target=target):
            return f"{call} from {source} to {target}"
        case HistoryRewritten(cause=cause, rewrite=rewrite):
            return f"{cause}: {_say_rewrite(rewrite)}"
        case GuardrailTripped(stage=stage, name=name, reason=reason):
            return f"{stage}, {name}: {reason}"
        case EventRedacted(target=target, reason=reason):
            return f"version {target}: {reason}"
        case SessionForked(parent=parent_session, at=at):
            return f"from {parent_session} at version {at}"
    assert_never(event)


def _say_again(event: ModelFailed) -> str:
    """Who is asked after a failed attempt; the request that follows names the model."""
    if event.passed_on:
        return "passed on to the next model"
    if not event.retried:
        return ""
    return f"asked again in {event.delay:.3g} s" if event.delay else "asked again"


def _say_held(event: ModelRequested) -> str:
    """What the provider holds of the view, or is given to hold."""
    if event.conversation is not None and not event.first:
        return f"opens {event.conversation}"
    held = event.conversation or event.previous_response_id
    return f"continues {held} from item {event.first} on" if held is not None else ""


def _say_parts(event: AgentResolved) -> str:
    """What of an agent has changed."""
    offered = event.offered
    return joined(
        [
            "instructions" if event.instructions is not None else "",
            f"{len(offered)} tool{'' if len(offered) == 1 else 's'}" if offered is not None else "",
            "settings" if event.settings is not None else "",
        ]
    )


def _say_rewrite(rewrite: Rewrite) -> str:
    """How much of the view a rewrite leaves."""
    kept = sum(step[2] - step[1] for step in rewrite.operations if step[0] == "take")
    put = sum(step[0] == "put" for step in rewrite.operations)
    return joined(
        [f"{rewrite.filter} keeps {kept} item{'' if kept == 1 else 's'}", f"puts in {put}" if put else ""]
    )


def say_filter(rewrite: Rewrite) -> str:
    """Return the filters of a rewrite with their parameters: "messages_only + keep_last(n=4)"."""
    steps = rewrite.parameters.get("filters")
    if not (isinstance(steps, list) and all(isinstance(step, dict) for step in steps) and steps):
        steps = [{"filter": rewrite.filter, "parameters": rewrite.parameters}]
    return one_line(
        joined((_say_step(step.get("filter"), step.get("parameters")) for step in steps), by=" + ")
    )


def _say_step(name: JSON, parameters: JSON) -> str:
    given = say_named(parameters) if isinstance(parameters, dict) else ""
    return f"{name}({given})" if given else str(name)


def _say_items(items: Iterable[JSON]) -> str:
    return joined(_say_foreign(data) for data in items)


def _say_foreign(data: JSON) -> str:
    """An item as it stands in an event: plain data, of any shape."""
    if not isinstance(data, dict):
        return _say_json(data)
    kind = str(data.get("type") or "message")
    return _say_data(kind, data, text_of(data.get("output" if kind in OUTPUTS else "content")))


def _say_data(kind: str, data: dict[str, JSON], text: str) -> str:
    if kind == "message":
        return one_line(text) or "(no text)"
    if kind == "reasoning":
        return joined(["reasoning", one_line(text_of(data.get("summary")))], by=": ")
    if kind in OUTPUTS:
        return f"→ {one_line(text) or _say_json(data.get('output', ''))}"
    if kind in ANSWERED_BY and isinstance(data.get("name"), str):
        return _say_call(data["name"], _read(data.get("arguments", data.get("input", ""))))
    return kind


def _say_call(name: str, arguments: JSON) -> str:
    if not isinstance(arguments, dict):
        return one_line(f"{name}({_say_json(arguments)})")
    return one_line(f"{name}({say_named(arguments)})")


def say_named(values: dict[str, JSON]) -> str:
    return ", ".join(f"{key}={dump(value).decode()}" for key, value in values.items())


def _read(arguments: JSON) -> JSON:
    try:
        return load(str(arguments).encode(errors="surrogatepass")) if arguments else {}
    except ValueError:
        return arguments


def _say_json(value: JSON) -> str:
    return one_line(value if isinstance(value, str) else dump(value).decode())
