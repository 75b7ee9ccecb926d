"""Proof for your own filters: random legal sessions, and the laws that every filter obeys.

    def test_my_filter() -> None:
        check_filter(my_filter)

It needs `pip install batonlog[testing]`, and is the one place that imports hypothesis.
"""

from batonlog.projections.testing.checking import check_filter
from batonlog.projections.testing.inputs import filter_inputs, histories, logs

__all__ = ["check_filter", "filter_inputs", "histories", "logs"]
