"""Filters: functions from a history to a history. What one did is recorded, never the function.

A filter is given the view as an unfiltered handoff would leave it, and returns a history, or
any iterable of items and dicts. It may be sync or async, a lambda, and may be deleted from the
code later: what the log holds is its effect.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from typing_extensions import TypeVar as TypeVarWithDefault

from batonlog.events import JSON, Ref, Usage, UsageError
from batonlog.events.values import plain
from batonlog.projections.history import History
from batonlog.projections.items import Item, as_item

_Ctx = TypeVar("_Ctx")
_Ctx_co = TypeVarWithDefault("_Ctx_co", default=object, covariant=True)

Step: TypeAlias = tuple[str, tuple[Ref, ...], tuple[int, ...]]
"""A filter of a sequence: its name, what it left out, and which of the new items it made."""

Cause: TypeAlias = Literal["handoff", "compaction", "manual"]


class FilterInput(History, Generic[_Ctx_co]):
    """The view to be rewritten, and why. It is a History, so filters call each other directly."""

    __slots__ = (
        "_context",
        "_spent",
        "_split",
        "arguments",
        "cause",
        "own",
        "session",
        "source",
        "steps",
        "target",
    )

    def __init__(
        self,
        items: Iterable[Item],
        *,
        version: int,
        cause: Cause,
        session: str,
        context: _Ctx_co,
        split: int,
        own: History | None = None,
        source: str | None = None,
        target: str | None = None,
        arguments: object = None,
    ) -> None:
        super().__init__(items, version)
        self._context = context
        self._split = split
        self._spent: list[tuple[str, Usage]] = []
        self.steps: tuple[Step, ...] = ()
        """What each filter of a sequence did, once it has been applied."""
        self.cause: Cause = cause
        """Why: a handoff, a compaction, or somebody's edit."""
        self.session = session
        self.own = own
        """The target's view when it last handed off; None if it never did."""
        self.source = source
        """Who hands off."""
        self.target = target
        """Who will see the result."""
        self.arguments = arguments
        """What the model gave the handoff: a value of its input_type, else a dict."""

    @property
    def earlier(self) -> History:
        """The view before the turn that made the handoff."""
        return History(self._items[: self._split], self.version)

    @property
    def latest(self) -> History:
        """What this turn added, the transfer and its answer included."""
        return History(self._items[self._split :], self.version)

    @property
    def context(self) -> _Ctx_co:
        """The caller's own object."""
        return self._context

    def spend(self, usage: Usage, *, model: str) -> None:
        """Say what making the rewrite cost, if the filter asks a model: it is recorded with it."""
        self._spent.append((model, usage))

    @property
    def spent(self) -> tuple[tuple[str, Usage], ...]:
        """What the filters said they spent, by model."""
        return tuple(self._spent)

    def _with(self, items: Sequence[Item]) -> "FilterInput[_Ctx_co]":
        """The same input as the next filter of a sequence sees it: with what this one returned."""
        latest = {id(item) for item in self._items[self._split :]}
        latest_refs = {item.ref for item in self._items[self._split :] if item.ref is not None}

        def is_latest(item: Item) -> bool:
            return (
                id(item) in latest or item.ref in latest_refs or bool(latest_refs.intersection(item.replaces))
            )

        split = next((n for n, item in enumerate(items) if is_latest(item)), len(items))
        following = FilterInput(
            items,
            version=self.version,
            cause=self.cause,
            session=self.session,
            context=self._context,
            split=split,
            own=self.own,
            source=self.source,
            target=self.target,
            arguments=self.arguments,
        )
        following._spent = self._spent
        return following


FilterOutput: TypeAlias = Iterable[Item | Mapping[str, JSON]]
Filter: TypeAlias = Callable[[FilterInput[_Ctx]], FilterOutput | Awaitable[FilterOutput]]


# -- applying them


async def apply_filters(
    filters: Filter[_Ctx] | Sequence[Filter[_Ctx]], given: FilterInput[_Ctx]
) -> Sequence[Item]:
    """Apply filters, first one first, and return the items.

    Raises UsageError for what is no history or leaves nothing; whatever a filter raises passes.
    """
    first, *others = as_filters(filters)
    items = await _applied(first, given)
    stages = [(filter_name(first), items)]
    start = given
    for one in others:
        given = given._with(items)
        items = await _applied(one, given)
        stages.append((filter_name(one), items))
    if others:
        start.steps = _steps(start, stages)
    return items


def _steps(start: Sequence[Item], stages: Sequence[tuple[str, Sequence[Item]]]) -> tuple[Step, ...]:
    """What each filter of a sequence left out, and which of the new items it made."""
    new = [id(item) for item in stages[-1][1] if item.ref is None]
    known: set[int] = set()
    before: Sequence[Item] = start
    out: list[Step] = []
    for name, after in stages:
        told = {ref for item in after for ref in item.covers}
        dropped = tuple(item.ref for item in before if item.ref is not None and told.isdisjoint(item.covers))
        here = {id(item) for item in after} - known
        out.append((name, dropped, tuple(n for n, item in enumerate(new) if item in here)))
        known |= here
        before = after
    return tuple(out)


async def _applied(one: Filter[_Ctx], given: FilterInput[_Ctx]) -> Sequence[Item]:
    made = one(given)
    return _items(one, await made if inspect.isawaitable(made) else made)


def as_filters(filters: Filter[_Ctx] | Sequence[Filter[_Ctx]]) -> Sequence[Filter[_Ctx]]:
    """Return a sequence of filters, whatever was given. Raises UsageError for what is none."""
    found = tuple(filters) if isinstance(filters, Sequence) else (filters,)
    if not found or not all(map(callable, found)):
        raise UsageError(f"{filters!r} is no filter: give a function of a history, or a sequence of them")
    return found


def _items(one: Callable[..., object], output: Any) -> Sequence[Item]:
    name = filter_name(one)
    if isinstance(output, str | bytes | Mapping) or not isinstance(output, Iterable):
        raise UsageError(
            f"filter {name} returned {type(output).__name__}, which is no history: "
            f"return the items to show, as a History, a list or a generator"
        )
    try:
        items = [as_item(value) for value in output]
    except UsageError as error:
        raise UsageError(f"filter {name} returned {error}") from error
    if not items:
        raise UsageError(f"filter {name} left nothing to show; a model needs at least one item")
    return items


def filter_name(one: Callable[..., object]) -> str:
    """Return the name under which a filter is recorded."""
    if isinstance(one, partial):
        return filter_name(one.func)
    name = getattr(one, "__name__", None)
    return name if isinstance(name, str) else type(one).__name__


def filter_parameters(one: Callable[..., object]) -> dict[str, JSON]:
    """Return the parameters of a filter: a partial's keywords, a dataclass's or Struct's fields."""
    if isinstance(one, partial):
        return _shown({**filter_parameters(one.func), **one.keywords})
    given: Any = one
    if isinstance(given, msgspec.Struct):
        return _shown(msgspec.structs.asdict(given))
    if is_dataclass(given) and not isinstance(given, type):
        return _shown({field.name: getattr(given, field.name) for field in fields(given)})
    return {}


def describe(filters: Sequence[Callable[..., object]]) -> tuple[str, dict[str, JSON]]:
    """Return the name and the parameters under which a sequence of filters is recorded."""
    if len(filters) == 1:
        return filter_name(filters[0]), filter_parameters(filters[0])
    steps = [{"filter": filter_name(one), "parameters": filter_parameters(one)} for one in filters]
    return " + ".join(str(step["filter"]) for step in steps), {"filters": steps}


def _shown(parameters: Mapping[str, object]) -> dict[str, JSON]:
    """Parameters as JSON; what is no JSON by its name."""
    out: dict[str, JSON] = {}
    for name, value in parameters.items():
        if name.startswith("_"):
            continue
        try:
            out[name] = plain(value)
        except (TypeError, ValueError):
            out[name] = getattr(value, "__name__", None) or repr(value)
    return out
