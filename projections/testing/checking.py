"""`check_filter`: Hypothesis looks for a history on which a filter breaks a law, and for the smallest one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from batonlog.projections.filters import Filter, FilterInput, as_filters, describe
from batonlog.projections.items import Item
from batonlog.projections.testing.inputs import all_inputs
from batonlog.projections.testing.laws import Fault, fault_of
from batonlog.projections.testing.trials import Run
from batonlog.projections.testing.words import tell

_Ctx = TypeVar("_Ctx")


def check_filter(
    filter: Filter[_Ctx] | Sequence[Filter[_Ctx]],
    /,
    *,
    inputs: SearchStrategy[FilterInput[_Ctx]] | None = None,
    idempotent: bool = False,
    settings: hypothesis.settings | None = None,
) -> None:
    """Try every law of filters on random histories; fail with the smallest one that breaks one, in words.

    Raises AssertionError: its text names the law and the items, and shows what the filter was
    given and what it returned. The laws are listed in docs/filters.md.

    An async filter is run in an event loop of its own, in a thread of its own if one is running
    here; that one stands still meanwhile.

    Args:
        filter: what would be given to a handoff: a filter, or a sequence of them.
        inputs: what it is given; by default handoffs, compactions and edits, without a context.
            Make them with `filter_inputs` for a filter that reads context, arguments or agents.
        idempotent: whether it must leave alone what it has returned, once that is recorded.
        settings: how Hypothesis looks. By default those of the active profile (100 examples, if
            nobody changed that), without a deadline.
    """
    __tracebackhide__ = True
    filters = as_filters(filter)
    given: SearchStrategy[FilterInput[Any]] = inputs if inputs is not None else all_inputs()
    with _loop() as run:
        found = _smallest(filters, given, run, idempotent=idempotent, settings=settings)
    if found is not None:
        fault, sometimes = found
        raise AssertionError(tell(describe(filters)[0], fault, sometimes=sometimes)) from fault.cause


class _BrokenError(Exception):
    """A law is broken. Hypothesis looks for the smallest input that raises it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.law)
        self.fault = fault


def _smallest(
    filters: Sequence[Filter[Any]],
    inputs: SearchStrategy[FilterInput[Any]],
    run: Run,
    *,
    idempotent: bool,
    settings: hypothesis.settings | None,
) -> tuple[Fault, bool] | None:
    """Return the smallest fault, and whether it comes and goes; None if there is none."""
    seen: list[Fault] = []

    @_settings(settings, filters)
    @hypothesis.given(inputs)
    def try_one(given: FilterInput[Any]) -> None:
        fault = fault_of(filters, given, run, idempotent=idempotent)
        if fault is not None:
            seen.append(fault)
            raise _BrokenError(fault)

    try:
        try_one()
    except _BrokenError as broken:
        return broken.fault, False
    except Flaky:
        if not seen:
            raise
        return min(seen, key=lambda fault: len(fault.given)), True
    return None


def _settings(given: hypothesis.settings | None, filters: Sequence[Filter[Any]]) -> hypothesis.settings:
    base = given if given is not None else hypothesis.settings(deadline=None)
    database = base.database
    return hypothesis.settings(
        base,
        database=_Apart(database, filters) if database is not None else None,
        phases=[phase for phase in base.phases if phase is not Phase.explain],
        report_multiple_bugs=False,  # the smallest one, of whichever law
        print_blob=False,
        suppress_health_check=[*base.suppress_health_check, HealthCheck.too_slow],
    )


class _Apart(ExampleDatabase):
    """The user's own database, with what was found for one filter apart from all others."""

    def __init__(self, database: ExampleDatabase, filters: Sequence[Filter[Any]]) -> None:
        super().__init__()
        self._database = database
        names = [f"{getattr(one, '__module__', '')}.{getattr(one, '__qualname__', one)}" for one in filters]
        self._name = " ".join(names).encode(errors="surrogatepass")

    def _key(self, key: bytes) -> bytes:
        return sha256(self._name + key).digest()

    def save(self, key: bytes, value: bytes) -> None:
        self._database.save(self._key(key), value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._database.fetch(self._key(key))

    def delete(self, key: bytes, value: bytes) -> None:
        self._database.delete(self._key(key), value)


@contextmanager
def _loop() -> Iterator[Run]:
    """Give what runs a coroutine to its end, also where an event loop is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with asyncio.Runner() as runner:
            yield _runs(runner.run)
        return
    with ThreadPoolExecutor(1) as thread:
        runner = thread.submit(asyncio.Runner).result()
        try:
            yield _runs(lambda work: thread.submit(runner.run, work).result())
        finally:
            thread.submit(runner.close).result()


def _runs(run: Callable[[Any], Any]) -> Run:
    def driven(work: Awaitable[Sequence[Item]]) -> Sequence[Item]:
        made: Sequence[Item] = run(work)
        return made

    return driven
