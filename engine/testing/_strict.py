"""Whether the Responses API would take a request: a pure function of the request and of what is held.

The order is that of the API: the shape of what was sent, then the schemas in it, then whether
it fits with what the server holds. The first complaint is the answer.
"""

from collections.abc import Sequence
from typing import Final

from ._responses_held import Held
from ._responses_items import Item, input_items, items_in
from ._strict_context import check_history, check_origin, check_pairs, check_reasoning
from ._strict_items import check_item
from ._strict_parameters import check_metadata, check_parameters
from ._strict_shapes import Complaints, Refusal, array, nullable, shape, unknown
from ._strict_tools import check_tools


def refusal_of_request(request: Item, held: Held) -> Refusal | None:
    """Return why `POST /v1/responses` refuses this body, or None. Changes nothing."""
    return next(_request_complaints(request, held), None)


def refusal_of_count(request: Item, held: Held) -> Refusal | None:
    """Return why `POST /v1/responses/input_tokens` refuses this body, or None. Changes nothing."""
    odd = next((name for name in request if name not in _COUNTED), None)
    if odd is not None:
        return unknown(odd)
    return refusal_of_request(request, held)


_COUNTED: Final = frozenset(
    {
        *("conversation", "input", "instructions", "model", "parallel_tool_calls", "personality"),
        *("previous_response_id", "reasoning", "text", "tool_choice", "tools", "truncation"),
    }
)
"""What it takes (openai, input_token_count_params.py)."""


def refusal_of_conversation(body: Item, held: Held) -> Refusal | None:
    """Return why `POST /v1/conversations` refuses this body, or None. Changes nothing."""
    return next(_conversation_complaints(body, held), None)


def refusal_of_items(body: Item, before: Sequence[Item], held: Held) -> Refusal | None:
    """Return why a conversation that holds `before` does not take the items in this body, or None."""
    return next(_item_complaints(body, before, held), None)


def _request_complaints(request: Item, held: Held) -> Complaints:
    yield from check_parameters(request)
    yield from check_tools(request)
    yield from check_history(request, held)
    before = held.context_of(request)
    sent = input_items(request)
    yield from check_origin(before, sent, held)
    sent = tuple(held.resolve(item) for item in sent)
    yield from check_pairs(before, sent)
    yield from check_reasoning(before, sent, held)


_AT_MOST_TWENTY: Final = array(check_item, longest=20)
_CONVERSATION: Final = shape({}, {"items": nullable(_AT_MOST_TWENTY), "metadata": nullable(check_metadata)})
_MORE_ITEMS: Final = shape({"items": _AT_MOST_TWENTY}, {})


def _conversation_complaints(body: Item, held: Held) -> Complaints:
    yield from _CONVERSATION(body, "")
    yield from check_origin((), items_in(body), held)


def _item_complaints(body: Item, before: Sequence[Item], held: Held) -> Complaints:
    yield from _MORE_ITEMS(body, "")
    yield from check_origin(before, items_in(body), held)
