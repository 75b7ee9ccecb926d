"""The public names are those of the reference page, but for what later issues bring."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from batonlog import engine
from batonlog.engine import testing

REFERENCE = Path(__file__).parents[2].parent / "shared" / "API.pyi"
BESIDE = pytest.mark.skipif(not REFERENCE.exists(), reason="the reference page is not beside this repository")

LATER = {
    # 5, everything that users expect: guardrails, and Chat Completions
    "Guard",
    "GuardrailTrippedError",
    "OpenAIChatModel",
    "Replace",
    "Trip",
    "racing",
}
"""On the page, and not built yet, by the issue that brings it."""

BESIDES = {
    # 4: what is done when a model fails
    "Retries",
    "UnavailableError",
}
"""Built, and not on the page."""

BESIDES_IN_TESTING = {"kill_at_random"}

LATER_IN_TESTING = {
    # 5
    "FakeChatServer",
}

LATER_PARAMETERS = {
    # 3: compaction, and who answers next; 4: the busy rule; 5: observers, guardrails, typed answers
    "Engine": {"compact", "compact_above", "busy", "next_agent", "observers"},
    "Agent": {"tool_use_behavior", "input_guardrails", "output_guardrails"},
    "Tool": {"input_guardrails", "output_guardrails"},
}

LATER_METHODS = {
    "Engine": {"serve", "rewrite"},  # 4, 3
    "Agent": {"as_tool"},  # 5
    "RunContext": {"run"},  # 5
}


def classes_of(section: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in body_of(section) if isinstance(node, ast.ClassDef)}


def body_of(section: str) -> list[ast.stmt]:
    page = REFERENCE.read_text(encoding="utf-8").split("\n# ==== ")
    (body,) = [part.partition("\n")[2] for part in page if part.partition("\n")[0].strip() == section]
    return ast.parse(body).body


def names_of(section: str) -> set[str]:
    """The names that a section of the reference page defines, or takes up from another."""
    names = set()
    for node in body_of(section):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.ImportFrom(names=imported):
                names |= {alias.name for alias in imported if alias.asname == alias.name}
            case _:
                pass
    return {name for name in names if not name.startswith("_")}


@BESIDE
def test_the_public_names_are_those_of_the_reference_page() -> None:
    assert set(engine.__all__) == names_of("batonlog.engine") - LATER | BESIDES


@BESIDE
def test_the_names_of_testing_are_those_of_the_reference_page() -> None:
    assert set(testing.__all__) == names_of("batonlog.engine.testing") - LATER_IN_TESTING | BESIDES_IN_TESTING


@pytest.mark.parametrize("module", [engine, testing])
def test_every_public_name_is_there(module: Any) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("module", [engine, testing])
def test_the_public_names_are_sorted_and_named_once(module: Any) -> None:
    def order(name: str) -> tuple[bool, bool, str]:
        return (not name.isupper(), not name[0].isupper(), name)  # constants, classes, functions

    assert module.__all__ == sorted(set(module.__all__), key=order)


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = function.args
    return {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def public(cls: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in cls.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.name == "__init__" or not node.name.startswith("_"))
    ]


@BESIDE
@pytest.mark.parametrize(
    "name",
    ["Agent", "Engine", "Tool", "RunContext", "ToolContext", "RunStream", "ModelSettings", "ModelResponse"],
)
def test_methods_take_what_the_reference_page_says(name: str) -> None:
    for method in public(classes_of("batonlog.engine")[name]):
        if method.name in LATER_METHODS.get(name, ()):
            continue
        cls = getattr(engine, name)
        made = cls if method.name == "__init__" else inspect.getattr_static(cls, method.name)
        if isinstance(made, property):
            continue
        later = LATER_PARAMETERS.get(name, set()) if method.name == "__init__" else set()
        assert parameters_of(method) - later <= {"self", *inspect.signature(made).parameters}, method.name


@BESIDE
@pytest.mark.parametrize("name", ["tool", "handoff"])
def test_functions_take_what_the_reference_page_says(name: str) -> None:
    stated: set[str] = set()
    for node in body_of("batonlog.engine"):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            stated |= parameters_of(node)
    real = {"tool": engine.Tool, "handoff": engine.Handoff}[name]
    taken = set(inspect.signature(getattr(engine, name)).parameters) | set(inspect.signature(real).parameters)
    assert stated - LATER_PARAMETERS["Tool"] - {"function"} <= taken


@BESIDE
def test_what_has_a_default_is_keyword_only() -> None:
    for name in ("Agent", "Engine", "Tool", "ModelResponse"):
        for parameter in inspect.signature(getattr(engine, name)).parameters.values():
            if parameter.default is not parameter.empty:
                assert parameter.kind is parameter.KEYWORD_ONLY, f"{name}({parameter.name})"
