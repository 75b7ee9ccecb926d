"""Every Python block of the README and the docs runs, and prints what the text says it prints.

A block is a program of its own, in an empty folder. What a reader need not see stands in HTML
comments: `<!-- setup` before one block, `<!-- every block` for all blocks of a file. If they
define SCRIPT, the block runs against a Responses API on loopback that answers by it. A block
may use `await` at the top level; one that holds tests is run by pytest, with the options that its setup
names in a comment `# pytest: …`.
"""

import ast
import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

import pytest

from batonlog.engine.diagram import with_diagrams

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]

_EVERY = re.compile(r"<!-- every block\n(.*?)\n-->", re.DOTALL)
_BLOCK = re.compile(
    r"(?:<!-- setup\n(?P<setup>.*?)\n-->\n)?"
    r"```python\n(?P<code>.*?)```"
    r"(?:\n+```text\n(?P<printed>.*?)```)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One Python block of a page."""

    page: Path
    line: int
    setup: str
    code: str
    printed: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for_all = "\n".join(found[1] for found in _EVERY.finditer(text))
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        setup = f"{for_all}\n{found['setup'] or ''}"
        yield Block(page, line, setup, found["code"], found["printed"])


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
_OPTIONS = re.compile(r"^# pytest: (.*)$", re.MULTILINE)
_IS_TEST = re.compile(r"^(?:async )?(?:def test_|class Test)", re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_runs_and_prints_what_the_text_says(
    block: Block,
    tmp_path: Path,
    serve: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if _IS_TEST.search(block.code):
        run_by_pytest(block, tmp_path)
        return
    names: dict[str, Any] = {"__name__": "__main__"}
    execute(block.setup, f"{block} setup", names)
    capsys.readouterr()
    script = names.get("SCRIPT")
    with serve(script) if script is not None else nullcontext() as server:
        execute(block.code, str(block), names)
    assert server is None or not server.refusals

    printed = capsys.readouterr().out
    assert block.printed is None or printed == block.printed


def execute(source: str, name: str, names: dict[str, Any]) -> None:
    code = compile(source, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(code, names)
    if code.co_flags & CO_COROUTINE:
        asyncio.run(made)


def run_by_pytest(block: Block, folder: Path) -> None:
    path = folder / "test_block.py"
    path.write_text(f"{block.setup}\n{block.code}", encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)]
    options += [option for line in _OPTIONS.findall(block.setup) for option in shlex.split(line)]
    command = [sys.executable, "-m", "pytest", *options, str(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_commands_of_the_readme_work_after_its_example(
    batonlog: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks_of(README)
    names: dict[str, Any] = {"__name__": "__main__"}
    execute(block.setup, "setup", names)
    with serve(names["SCRIPT"]):
        execute(block.code, str(block), names)

    commands = re.findall(
        r"^\$ batonlog (.*--log support\.db.*)$", README.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert commands
    assert [(command, batonlog(*shlex.split(command)).err) for command in commands] == [
        (command, "") for command in commands
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    text = README.read_text(encoding="utf-8")

    assert [page.name for page in PAGES if page != README and f"(docs/{page.name})" not in text] == []


def test_the_diagrams_of_the_readme_have_not_drifted_from_the_lifecycle_tables() -> None:
    text = README.read_text(encoding="utf-8")

    assert with_diagrams(text) == text
