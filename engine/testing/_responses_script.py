"""The script of a fake provider: what a step may be, and what it says the next answer is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from ._responses_items import Item, type_of
from ._strict_shapes import JSON


@dataclass(frozen=True, slots=True)
class BrokenStream:
    """An answer that breaks off: `after` events are streamed, then the connection is dropped.

    A request that does not stream gets no answer at all, only the closed connection. Unless the
    last event went out, the provider keeps nothing of the answer: no response to continue,
    nothing in the conversation, no id. With `kept` it keeps all of it, as one does that has
    finished and does not know that nobody heard.
    """

    step: "Step"
    after: int = field(kw_only=True)
    kept: bool = field(kw_only=True, default=False)

    def __post_init__(self) -> None:
        if self.after < 0:
            raise ValueError(f"a stream cannot break after {self.after} events")


Step: TypeAlias = (
    str
    | Mapping[str, JSON]
    | Sequence[Mapping[str, JSON]]
    | Exception
    | BrokenStream
    | Callable[[JSON], "Step"]
)
"""One answer.

Text is an assistant's message. A mapping is one output item, a sequence of them several. A mapping
with the key `response` overrides fields of the response object, such as `status`,
`incomplete_details`, `error` and `usage`; its `output`, if there, is the list of items. An exception
is an HTTP error: status 500, or its `status_code`, with its `code`, a `Retry-After` header if it has
`retry_after`, and its `headers`, a mapping, if it has some. A ConnectionError without a `status_code`
is no answer at all: the connection is dropped. A function is called with the request's body and
returns any of these.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Output items as they were scripted, and the fields of the response that the script sets."""

    items: tuple[Item, ...]
    fields: Item
    breaks_after: int | None = None
    kept: bool = True
    """Whether the provider keeps it, if it breaks off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An HTTP error in place of an answer."""

    status: int
    message: str
    code: str | None
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A connection that is closed in place of an answer."""


def check_step(step: object) -> None:
    """Raise TypeError if this can be no step, so that a wrong script fails where it is written."""
    if isinstance(step, BrokenStream):
        if isinstance(step.step, Exception):
            raise TypeError(
                "BrokenStream breaks an answer, and an exception is none: script the exception itself"
            )
        check_step(step.step)
    elif isinstance(step, Mapping):
        _check_mapping(step)
    elif isinstance(step, Sequence) and not isinstance(step, str | bytes | bytearray):
        for item in step:
            _check_item(item)
    elif not isinstance(step, str | Exception) and not callable(step):
        raise TypeError(
            "a step is text, an output item, a sequence of items, an exception, a BrokenStream, "
            f"or a function of the request; not {step!r}"
        )


def read_step(step: Step, body: bytes) -> Answer | Failure | Dropped:
    """Return what the step answers to a request with this body. Raises TypeError if a function returns no step.

    Each function gets a request of its own: what it does to it is seen nowhere else.
    """
    while callable(step) and not isinstance(step, str | Mapping | Sequence | Exception | BrokenStream):
        step = step(msgspec.json.decode(body))
        check_step(step)
    if isinstance(step, Exception):
        return _failure(step)
    if isinstance(step, BrokenStream):
        inner = read_step(step.step, body)
        if not isinstance(inner, Answer):
            raise TypeError("BrokenStream breaks an answer, but its function returned an exception")
        return Answer(items=inner.items, fields=inner.fields, breaks_after=step.after, kept=step.kept)
    if isinstance(step, str):
        return Answer(items=tuple(_copies([{"role": "assistant", "content": step}])), fields={})
    if isinstance(step, Mapping):
        if "response" in step:
            return Answer(items=tuple(_copies(step.get("output", ()))), fields=_plain(step["response"]))
        return Answer(items=tuple(_copies([step])), fields={})
    return Answer(items=tuple(_copies(step)), fields={})


def _check_mapping(step: Mapping[object, object]) -> None:
    if "response" not in step:
        _check_item(step)
        return
    fields, output = step["response"], step.get("output", ())
    if (
        step.keys() - {"response", "output"}
        or not isinstance(fields, Mapping)
        or not isinstance(output, Sequence)
    ):
        raise TypeError(
            f"a step with `response` has that mapping and a list `output`, nothing else: {step!r}"
        )
    if "output" in fields:
        raise TypeError("the items of a step with `response` stand beside it, under `output`")
    if fields.get("status", "completed") not in ("completed", "incomplete", "failed"):
        raise TypeError(f"a response ends as completed, incomplete or failed, not {fields['status']!r}")
    for item in output:
        _check_item(item)


def _check_item(item: object) -> None:
    kind = type_of(dict(item)) if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or kind in (None, "item_reference"):
        raise TypeError(f"an output item is a mapping with a `type`, not {item!r}")
    if kind == "message" and item.get("role", "assistant") != "assistant":
        raise TypeError(f"a model answers as the assistant, not as {item['role']!r}")
    if kind == "message" and not _is_content(item.get("content")):
        raise TypeError(f"a message's content is text or a list of parts, each with a `type`: {item!r}")
    if kind == "function_call" and not isinstance(item.get("name"), str):
        raise TypeError(f"a function_call names a function: {item!r}")
    if kind == "function_call" and not isinstance(item.get("arguments"), str):
        raise TypeError(f"the arguments of a function_call are JSON text: {item!r}")


def _is_content(content: object) -> bool:
    if isinstance(content, str):
        return True
    return isinstance(content, Sequence) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content
    )


def _failure(error: Exception) -> Failure | Dropped:
    status = getattr(error, "status_code", None)
    code = getattr(error, "code", None)
    retry_after = getattr(error, "retry_after", None)
    headers = getattr(error, "headers", None)
    if isinstance(error, ConnectionError) and status is None:
        return Dropped()
    sent = {} if retry_after is None else {"retry-after": str(retry_after)}
    if isinstance(headers, Mapping):
        sent |= {str(name).lower(): str(value) for name, value in headers.items()}
    return Failure(
        status=status if isinstance(status, int) else 500,
        message=str(error),
        code=code if isinstance(code, str) else None,
        headers=tuple(sent.items()),
    )


def _copies(items: Sequence[Mapping[str, JSON]]) -> Iterator[Item]:
    for item in items:
        copy = _plain(item)
        copy["type"] = type_of(copy)
        yield copy


def _plain(value: Mapping[str, JSON]) -> Item:
    # Through JSON and back: a copy that is JSON for certain, whatever the script was built from.
    plain: Item = msgspec.json.decode(msgspec.json.encode(dict(value)))
    return plain
