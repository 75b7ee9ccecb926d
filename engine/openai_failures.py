"""What an error of OpenAI's API, or of one like it, says about asking again. Nothing here imports `openai`.

Three kinds. Some failures go by themselves: no connection, a rate limit, a fault of the server, a stream
that breaks off. Some do not go, but are this provider's, and another model may well answer: no
such model, no permission, no money. All others are the request's own fault, and whoever is asked would
refuse it.
"""

import email.utils
import math
import time
from collections.abc import Mapping

from batonlog.engine.models import UnavailableError
from batonlog.events import JSON

_PASSING = frozenset({408, 409, 429})
"""Beside all from 500 on: what the openai client tries again (`_should_retry`)."""

_ELSEWHERE = frozenset({401, 402, 403, 404})
"""What only another model, or another provider, may answer."""

_PASSING_CODES = frozenset(
    {
        # https://platform.openai.com/docs/api-reference/responses/object (`error.code`), and what the
        # error object says of them as its `type`.
        "server_error",
        "rate_limit_exceeded",
        "vector_store_timeout",
        # of others that speak this API
        "internal_error",
        "internal_server_error",
        "overloaded",
        "overloaded_error",
        "rate_limit_error",
        "service_unavailable",
        "timeout",
        "too_many_requests",
    }
)

_ELSEWHERE_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "model_not_found"})


def of_status(status: int, code: object, headers: Mapping[str, str], message: str) -> UnavailableError | None:
    """Return what an HTTP error says; None for one that is the request's own fault.

    Args:
        status: the HTTP status.
        code: the `code` of the error object in its body.
        headers: the response's, looked up in lower case.
        message: what it said.
    """
    passes = status in _PASSING or status >= 500
    elsewhere = status in _ELSEWHERE or (isinstance(code, str) and code in _ELSEWHERE_CODES)
    said = headers.get("x-should-retry")
    if not (passes or elsewhere or said == "true"):
        return None
    again = said == "true" if said in ("true", "false") else passes and not elsewhere
    return UnavailableError(message, after=seconds_asked(headers), again=again)


def of_error(error: JSON, message: str) -> UnavailableError | None:
    """Return what an error object in an answer says: of a response that failed, or in a stream."""
    given = error if isinstance(error, dict) else {}
    words = [word for word in (given.get("code"), given.get("type")) if isinstance(word, str)]
    status = given.get("code")
    if any(word in _ELSEWHERE_CODES for word in words):
        return UnavailableError(message, again=False)
    if any(word in _PASSING_CODES for word in words):
        return UnavailableError(message)
    return of_status(status, None, {}, message) if type(status) is int else None


def seconds_asked(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a provider asks to wait; None if it does not say, or nothing that can be waited for.

    As the openai client reads it: `retry-after-ms`, else `retry-after` in seconds or as a date
    (https://www.rfc-editor.org/rfc/rfc9110#field.retry-after).
    """
    for name, parts in (("retry-after-ms", 1000), ("retry-after", 1)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return seconds / parts if seconds > 0 else None
    until = email.utils.parsedate_tz(headers.get("retry-after", ""))
    if until is None:
        return None
    try:
        seconds = email.utils.mktime_tz(until) - time.time()
    except (ValueError, OverflowError, OSError):
        return None
    return seconds if seconds > 0 else None


def _number(text: str | None) -> float | None:
    """A number of seconds; one that is too large for a float is as long as any."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return None if math.isnan(value) else value
