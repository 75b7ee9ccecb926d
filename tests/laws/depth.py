"""How hard the laws are tried: a few hundred examples each, or with BATONLOG_DEEP=1 many more."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings

DEEP = bool(os.environ.get("BATONLOG_DEEP"))
"""Whether to look for what has not been found yet, rather than for what has come back."""

_T = TypeVar("_T", bound=Callable[..., Any])


def examples(few: int, *, many: int | None = None) -> Callable[[_T], _T]:
    """Try a law on this many examples; on many more when asked to go deep.

    Without going deep the examples are the same in every run: what fails for one fails for all.
    """
    return tried(few, many=many)


def tried(few: int, *, many: int | None = None, steps: int = 50) -> settings:
    """The same as settings: for what takes them as a value, and for machines of so many steps."""
    return settings(
        max_examples=(many or few * 20) if DEEP else few,
        stateful_step_count=steps * 2 if DEEP else steps,
        derandomize=not DEEP,
        database=None if not DEEP else settings.default.database,  # type: ignore[union-attr]
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        phases=[phase for phase in Phase if phase is not Phase.explain],
        print_blob=DEEP,
    )
