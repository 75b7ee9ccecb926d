"""Failures of the shipped suite show both sides of a comparison."""

import pytest

pytest.register_assert_rewrite("batonlog.events.testing")
