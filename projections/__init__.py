"""What it means: pure folds of the log, the filters, and what providers refuse."""

from batonlog.projections.chain import Chain, server_chain
from batonlog.projections.explain import Change, explain_rewrite
from batonlog.projections.filters import Filter, FilterInput, FilterOutput
from batonlog.projections.fold import Projection, fold
from batonlog.projections.history import History, model_history, session_history
from batonlog.projections.items import Item
from batonlog.projections.legality import Violation, check_legal, repair
from batonlog.projections.nest import nest_history
from batonlog.projections.own import own_view
from batonlog.projections.redaction import redact
from batonlog.projections.request import ModelRequest, model_request
from batonlog.projections.result import OpenCall, RunResult, run_result
from batonlog.projections.selecting import (
    drop_reasoning,
    drop_tools,
    keep_last,
    last_turns,
    messages_only,
    only_agents,
)
from batonlog.projections.summary import Summary, replace_with_summary
from batonlog.projections.timeline import Turn, timeline, usage

__all__ = [
    "Chain",
    "Change",
    "Filter",
    "FilterInput",
    "FilterOutput",
    "History",
    "Item",
    "ModelRequest",
    "OpenCall",
    "Projection",
    "RunResult",
    "Summary",
    "Turn",
    "Violation",
    "check_legal",
    "drop_reasoning",
    "drop_tools",
    "explain_rewrite",
    "fold",
    "keep_last",
    "last_turns",
    "messages_only",
    "model_history",
    "model_request",
    "nest_history",
    "only_agents",
    "own_view",
    "redact",
    "repair",
    "replace_with_summary",
    "run_result",
    "server_chain",
    "session_history",
    "timeline",
    "usage",
]
