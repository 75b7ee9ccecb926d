"""What it means: pure folds of the log, the filters, and what providers refuse."""

from batonlog.projections.chain import Chain, server_chain
from batonlog.projections.filters import (
    Filter,
    FilterInput,
    FilterOutput,
    drop_tools,
    keep_last,
    messages_only,
)
from batonlog.projections.fold import Projection, fold
from batonlog.projections.history import History, model_history, session_history
from batonlog.projections.items import Item
from batonlog.projections.legality import Violation, check_legal, repair
from batonlog.projections.request import ModelRequest, model_request
from batonlog.projections.result import OpenCall, RunResult, run_result
from batonlog.projections.timeline import Turn, timeline, usage

__all__ = [
    "Chain",
    "Filter",
    "FilterInput",
    "FilterOutput",
    "History",
    "Item",
    "ModelRequest",
    "OpenCall",
    "Projection",
    "RunResult",
    "Turn",
    "Violation",
    "check_legal",
    "drop_tools",
    "fold",
    "keep_last",
    "messages_only",
    "model_history",
    "model_request",
    "repair",
    "run_result",
    "server_chain",
    "session_history",
    "timeline",
    "usage",
]
