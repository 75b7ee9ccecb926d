"""The diagrams say what the lifecycle tables say, and files that hold them can be kept in step."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine.diagram import call_diagram, run_diagram, with_diagrams
from batonlog.events import CALL_LIFECYCLE, RUN_LIFECYCLE, UsageError
from batonlog.events.lifecycle import ANYONE, EVERY_CALL

PAGE = """# Title

<!-- lifecycle:run -->
<!-- /lifecycle -->

Between.

<!-- lifecycle:call -->
old
<!-- /lifecycle -->
End.
"""

Triple = tuple[str, str, str]


def pairs(table: Mapping[str, Mapping[str, str]]) -> set[Triple]:
    return {(tag, source, target) for tag, row in table.items() for source, target in row.items()}


def drawn(diagram: str) -> set[Triple]:
    edges = re.findall(r"^    (\w+) --> (\w+): (.+)$", diagram, re.MULTILINE)
    return {(tag, source, target) for source, target, label in edges for tag in re.split(r", |<br/>", label)}


@pytest.mark.parametrize(
    ("diagram", "table", "noted"),
    [(run_diagram(), RUN_LIFECYCLE, ANYONE), (call_diagram(), CALL_LIFECYCLE, EVERY_CALL)],
    ids=["run", "call"],
)
def test_a_diagram_draws_every_pair_of_its_table_but_the_stays_that_it_notes(
    diagram: str, table: Mapping[str, Mapping[str, str]], noted: frozenset[str]
) -> None:
    stays = {
        (tag, source, target) for tag, source, target in pairs(table) if tag in noted and source == target
    }
    (note,) = re.findall(r"note right of \w+\n(.*?)end note", diagram, re.DOTALL)

    assert drawn(diagram) == pairs(table) - stays
    assert set(re.findall(r"\w+\.\w+", note)) == noted


@pytest.mark.parametrize("diagram", [run_diagram(), call_diagram()], ids=["run", "call"])
def test_each_pair_of_states_has_one_edge(diagram: str) -> None:
    edges = re.findall(r"^    (\w+) --> (\w+):", diagram, re.MULTILINE)

    assert len(edges) == len(set(edges))


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = with_diagrams(PAGE)

    assert f"```mermaid\n{run_diagram()}```" in page
    assert f"```mermaid\n{call_diagram()}```" in page
    assert re.sub(r"```mermaid.*?```\n", "", page, flags=re.DOTALL) == PAGE.replace("old\n", "")


def test_replacing_twice_is_replacing_once() -> None:
    assert with_diagrams(with_diagrams(PAGE)) == with_diagrams(PAGE)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("# Title\n", "lifecycle:run"),
        (PAGE.replace("lifecycle:call", "lifecycle:session"), "no diagram of session"),
    ],
    ids=["no markers", "unknown marker"],
)
def test_a_page_without_a_place_for_a_diagram_is_refused(page: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        with_diagrams(page)


def test_the_command_prints_both(batonlog: Callable[..., Any]) -> None:
    done = batonlog("diagram")

    assert done.code == 0
    assert run_diagram() in done.out
    assert call_diagram() in done.out


def test_write_brings_a_file_up_to_date(batonlog: Callable[..., Any], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")

    assert batonlog("diagram", "--write", page).code == 0
    assert page.read_text(encoding="utf-8") == with_diagrams(PAGE)
    assert batonlog("diagram", "--check", page).code == 0


def test_check_fails_on_a_file_that_has_drifted_and_leaves_it(
    batonlog: Callable[..., Any], tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    done = batonlog("diagram", "--check", page)

    assert done.code == 1
    assert "--write" in done.err
    assert page.read_text(encoding="utf-8") == PAGE


def test_a_file_that_is_not_there_is_an_error_in_one_line(
    batonlog: Callable[..., Any], tmp_path: Path
) -> None:
    done = batonlog("diagram", "--check", tmp_path / "none.md")

    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "none.md" in done.err
