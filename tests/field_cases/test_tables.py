"""The tables in the docs name tests that are there."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CASES = [
    1,
    2,
    3,
    5,
    6,
    8,
    9,
    11,
    12,
    14,
    15,
    17,
    19,
    20,
    22,
    23,
    25,
    26,
    28,
    31,
    32,
    34,
    35,
    37,
    38,
    40,
    41,
    43,
    44,
    47,
    48,
    51,
    52,
    54,
    55,
    56,
    59,
    61,
    62,
    69,
    71,
    73,
    74,
]


def rows(page: str) -> Iterator[tuple[int, list[str]]]:
    """The numbered rows of a page's tables."""
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0].isdigit():
            yield int(cells[0]), cells[1:]


@cache
def names_in(name: str) -> frozenset[str]:
    """The tests of a module."""
    (path,) = (ROOT / "tests").rglob(name)
    return frozenset(
        re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_every_field_case_has_a_row_and_tests() -> None:
    found = dict(rows("field-reports.md"))
    assert sorted(found) == CASES
    for number, cells in found.items():
        tests = names_in(cells[-1].strip("`"))
        assert any(re.match(rf"test_cases?_(\d+_and_)?{number}_", name) for name in tests), number


def test_every_point_of_comparison_has_a_row_and_a_test() -> None:
    found = list(rows("compared.md"))
    assert [number for number, _ in found] == list(range(1, 69))
    for number, cells in found:
        module, _, name = cells[-1].strip("`").partition("::")
        assert name in names_in(module), (number, name)
        assert cells[-2] in ("same", "different", "does not apply")


@pytest.mark.parametrize("page", ["field-reports.md", "compared.md"])
def test_every_row_has_all_its_cells(page: str) -> None:
    assert len({len(cells) for _, cells in rows(page)}) == 1
    assert all(all(cells) for _, cells in rows(page))
