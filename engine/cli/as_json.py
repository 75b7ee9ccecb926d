"""The JSON that `--json` prints. Keys are stable, refs are text such as "7.1", digests are hex."""

from collections import Counter
from typing import Any

from msgspec import Struct

from batonlog.events import JSON, Event, Record, Ref, Rewrite, UnknownEvent
from batonlog.projections import Item, ModelRequest, RunResult
from batonlog.projections.explain import Explained


def record_json(record: Record) -> JSON:
    """Return a record."""
    return {
        "session": record.session,
        "version": record.version,
        "position": record.position,
        "event_id": str(record.event_id),
        "recorded_at": record.recorded_at.isoformat(),
        "type": record.type,
        "event": event_json(record.event),
        "digest": record.digest.hex(),
        "hash": record.hash.hex(),
    }


def event_json(event: Event) -> JSON:
    """Return an event's fields; of one that is unknown the whole payload."""
    return event.data if isinstance(event, UnknownEvent) else _value(event)


def item_json(item: Item, *, settled: bool) -> JSON:
    """Return an item with what the log knows about it."""
    return {
        "ref": _ref(item.ref),
        "agent": item.agent,
        "answers": _ref(item.answers),
        "covers": [str(ref) for ref in item.replaces],
        "settled": settled,
        "item": item.data,
    }


def result_json(result: RunResult) -> JSON:
    """Return what came of a session's latest run; its fields are null if none was started."""
    run = result.run_id or None
    return {
        "run": run,
        "status": result.status if run else None,
        "reason": result.reason or None,
        "agent": result.agent or None,
        "usage": _value(result.usage),
        "open_calls": [_value(call) for call in result.open_calls],
    }


def request_json(request: ModelRequest) -> dict[str, JSON]:
    """Return a request without what it sends: its items are said in other ways."""
    return {
        "turn": request.turn,
        "agent": request.agent,
        "model": request.model,
        "instructions": request.instructions,
        "tools": list(request.tools),
        "output_schema": request.output_schema,
        "settings": dict(request.settings),
        "previous_response_id": request.previous_response_id,
        "conversation": request.conversation,
        "stored": request.stored,
        "first": request.first,
        "digest": request.digest.hex(),
    }


def rewrite_json(told: Explained, *, kept: bool) -> dict[str, JSON]:
    """Return what a rewrite did, item by item; with `kept`, also the items that it left as they were."""
    changes = list(told.changes())
    made = told.made
    return {
        "version": told.version,
        "effective": told.effective,
        "cause": told.cause,
        "source": made.source if made is not None else None,
        "target": made.target if made is not None else None,
        "guardrail": told.tripped.name if told.tripped is not None else None,
        "filter": told.rewrite.filter,
        "parameters": told.rewrite.parameters,
        "repairs": list(told.rewrite.repairs),
        "spent": [{"model": model, "usage": _value(usage)} for model, usage in told.rewrite.spent],
        "before": len(told.before),
        "after": len(told.after),
        "counts": dict(Counter(change.what for change in changes)),
        "changes": [
            {"what": change.what, "reason": change.reason, **item_json(change.item, settled=True)}
            for change in changes
            if kept or change.what != "kept" or change.reason
        ],
    }


def _ref(ref: Ref | None) -> str | None:
    return None if ref is None else str(ref)


def _value(value: object) -> JSON:
    match value:
        case Ref():
            return str(value)
        case bytes():
            return value.hex()
        case Rewrite():
            operations = [_operation(step) for step in value.operations]
            return {**_fields(value), "operations": operations}
        case Struct():
            return _fields(value)
        case tuple() | list():
            return [_value(inner) for inner in value]
        case _:
            return value


def _fields(value: Any) -> dict[str, JSON]:
    return {name: _value(getattr(value, name)) for name in value.__struct_fields__}


def _operation(step: JSON) -> JSON:
    """A put's covers are recorded as pairs of numbers."""
    if step[0] == "put" and len(step) > 2:
        return [*step[:2], [f"{version}.{index}" for version, index in step[2]]]
    return step
