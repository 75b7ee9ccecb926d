"""The public names are those of the reference page."""

import ast
from pathlib import Path

import pytest

from batonlog import events

REFERENCE = Path(__file__).parents[2].parent / "shared" / "API.pyi"

LATER = {"PostgresLog"}
"""On the page, and not built yet."""


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
    assert set(events.__all__) == names_of("batonlog.events") - LATER


@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference page is not beside this repository")
def test_the_shipped_suite_is_on_the_reference_page() -> None:
    from batonlog.events import testing

    assert set(testing.__all__) == names_of("batonlog.events.testing")


def test_every_public_name_is_there() -> None:
    assert [name for name in events.__all__ if not hasattr(events, name)] == []


def test_the_public_names_are_sorted_and_named_once() -> None:
    def order(name: str) -> tuple[bool, bool, str]:
        return (not name.isupper(), not name[0].isupper(), name)  # constants, classes, functions

    assert events.__all__ == sorted(set(events.__all__), key=order)
