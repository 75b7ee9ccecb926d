"""One trial of a filter: what it was given, what it returned, and whether it changed what it was given."""

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from hypothesis.errors import HypothesisException
from msgspec import Raw

from batonlog.events import JSON, Ref, UsageError
from batonlog.projections.filters import Filter, FilterInput, FilterOutput, apply_filters, filter_name
from batonlog.projections.history import History
from batonlog.projections.items import Item

Given: TypeAlias = FilterInput[Any]
Run: TypeAlias = Callable[[Awaitable[Sequence[Item]]], Sequence[Item]]
"""Drives a coroutine to its end."""


class RaisedError(Exception):
    """A filter raised. Its cause is what it raised."""


class NoHistoryError(Exception):
    """What a filter returned is no history, in words."""


def applied(filters: Sequence[Filter[Any]], given: Given, run: Run) -> Sequence[Item]:
    """Apply filters as the engine does, and return the items.

    Raises RaisedError for whatever one of them raises, and NoHistoryError for what is none.
    """

    async def whole() -> Sequence[Item]:
        return await apply_filters([_told_apart(one) for one in filters], given)

    try:
        return run(whole())
    except UsageError as error:
        raise NoHistoryError(str(error)) from None


def _told_apart(one: Filter[Any]) -> Filter[Any]:
    """The same filter, whose own exceptions are told from those about what it returned."""

    async def tried(given: Given) -> FilterOutput:
        try:
            made = one(given)
            output: Any = await made if inspect.isawaitable(made) else made
            # A generator may raise half-way.
            iterates = isinstance(output, Iterable) and not isinstance(output, str | bytes | Mapping)
            return list(output) if iterates else output
        except HypothesisException:
            raise  # `assume` and the like are the caller's
        except Exception as error:
            raise RaisedError from error

    tried.__name__ = filter_name(one)
    return tried


def fresh(given: Given) -> Given:
    """Return an equal input that shares nothing with it but the context. Every item has a ref."""
    own = given.own
    return _like(
        given,
        [_copy(item, n) for n, item in enumerate(given)],
        version=given.version,
        split=len(given.earlier),
        own=History(map(_copy, own), own.version) if own is not None else None,
        arguments=_copied(given.arguments),
    )


def again(given: Given, returned: Sequence[Item], recorded: Sequence[Item]) -> Given:
    """Return the input that the same filter would get after its own rewrite was recorded."""
    split = len(given._with(returned).earlier)
    return _like(
        given, recorded, version=given.version + 1, split=split, own=given.own, arguments=given.arguments
    )


def _like(
    given: Given, items: Iterable[Item], *, version: int, split: int, own: History | None, arguments: object
) -> Given:
    return FilterInput(
        items,
        version=version,
        cause=given.cause,
        session=given.session,
        context=given.context,
        split=split,
        own=own,
        source=given.source,
        target=given.target,
        arguments=arguments,
    )


def _copy(item: Item, n: int = 0) -> Item:
    return msgspec.structs.replace(item, ref=item.ref or Ref(0, n), held=Raw(bytes(item.held)), _head=None)


def _copied(value: object) -> object:
    try:
        return copy.deepcopy(value)
    except Exception:  # of a user's own class
        return value


class Snapshot:
    """What an input held, to be compared with what it holds later."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._items = [(item, _state_of(item)) for item in (*given, *(given.own or ()))]
        self._lengths = _lengths(given)
        self._arguments = _copied(given.arguments)

    def changed(self) -> str | None:
        """Say what was changed since, or None."""
        given = self._given
        now = (*given, *(given.own or ()))
        if _lengths(given) != self._lengths or any(
            item is not was for item, (was, _) in zip(now, self._items, strict=True)
        ):
            return "the history that it was given holds other items now"
        for item, before in self._items:
            if (after := _state_of(item)) != before:
                names = [name for name in before if before[name] != after[name]]
                return f"item {item.ref} has another {' and '.join(names)} now"
        if not _equal(given.arguments, self._arguments):
            return f"the arguments were {self._arguments!r}, and are {given.arguments!r} now"
        return None


def _lengths(given: Given) -> tuple[int, int, int]:
    return len(given), len(given.earlier), len(given.own) if given.own is not None else -1


def _state_of(item: Item) -> dict[str, JSON]:
    fields = {name: getattr(item, name) for name in Item.__struct_fields__ if name not in ("held", "_head")}
    return {**fields, "data": bytes(item.held), "head": msgspec.structs.astuple(item.head)}


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # of a user's own class
        return True
