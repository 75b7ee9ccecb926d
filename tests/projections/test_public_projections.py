"""The public names are those of the reference page, but for what later issues bring."""

import ast
from pathlib import Path

import pytest

from batonlog import projections

REFERENCE = Path(__file__).parents[2].parent / "shared" / "API.pyi"

LATER = {
    # 3, handoff history complete
    # 6, the log as a product
    "ReadModel",
}
"""On the page, and not built yet, by the issue that brings it."""

ADDED = {
    "Summary",  # what a summary cost has to come from somewhere, to be recorded
}
"""Not on the page."""


def names_of(section: str) -> set[str]:
    """The names that a section of the reference page defines."""
    page = REFERENCE.read_text(encoding="utf-8").split("\n# ==== ")
    (body,) = [part.partition("\n")[2] for part in page if part.partition("\n")[0].strip() == section]
    names = set()
    for node in ast.parse(body).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case _:
                pass
    return {name for name in names if not name.startswith("_")}


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference page is not beside this repository")
def test_the_public_names_are_those_of_the_reference_page() -> None:
    assert set(projections.__all__) == names_of("batonlog.projections") - LATER | ADDED


def test_every_public_name_is_there() -> None:
    assert [name for name in projections.__all__ if not hasattr(projections, name)] == []


def test_the_public_names_are_sorted_and_named_once() -> None:
    def order(name: str) -> tuple[bool, bool, str]:
        return (not name.isupper(), not name[0].isupper(), name)  # constants, classes, functions

    assert projections.__all__ == sorted(set(projections.__all__), key=order)
