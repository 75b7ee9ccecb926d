"""Model calls and what they cost."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from batonlog.events import (
    HandoffFiltered,
    HistoryRewritten,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    Record,
    RunStarted,
    Usage,
)


class Turn(NamedTuple):
    """One model call."""

    run_id: str
    turn: int
    agent: str
    requested: int
    """Version of the request: give it to model_history and model_request."""
    responded: int | None
    """Version of the answer; None if there is none."""
    usage: Usage


def timeline(records: Iterable[Record], *, at: int | None = None) -> tuple[Turn, ...]:
    """Return every model call in order, up to version `at`; failed attempts too."""
    turns: dict[int, Turn] = {}
    run_id = ""
    for record in records:
        if at is not None and record.version > at:
            break
        match record.event:
            case RunStarted() as started:
                run_id = started.run_id
            case ModelRequested() as asked:
                turns[record.version] = Turn(run_id, asked.turn, asked.agent, record.version, None, Usage())
            case ModelResponded(request=request, usage=used) if request in turns:
                turns[request] = turns[request]._replace(responded=record.version, usage=used)
            case ModelFailed(request=request, usage=spent) if request in turns and spent is not None:
                turns[request] = turns[request]._replace(usage=spent)
            case _:
                pass
    return tuple(turns.values())


def usage(records: Iterable[Record], *, at: int | None = None) -> Mapping[tuple[str, str], Usage]:
    """Return usage by (agent, model), of failed calls too where the provider told it.

    What a filter spent on a model, for a summary say, counts for the agent that held control.
    """
    agent = ""
    asked: dict[int, tuple[str, str]] = {}
    totals: dict[tuple[str, str], Usage] = {}
    for record in records:
        if at is not None and record.version > at:
            break
        match record.event:
            case RunStarted() as started:
                agent = started.agent
            case ModelRequested(issuer=(_, model)) as requested:
                agent = requested.agent
                asked[record.version] = (agent, model)
            case HandoffFiltered(rewrite=rewrite) | HistoryRewritten(rewrite=rewrite):
                for model, cost in rewrite.spent:
                    totals[agent, model] = totals.get((agent, model), Usage()) + cost
            case ModelResponded(request=request, usage=used) | ModelFailed(request=request, usage=used) if (
                used is not None and request in asked
            ):
                totals[asked[request]] = totals.get(asked[request], Usage()) + used
            case _:
                pass
    return totals
