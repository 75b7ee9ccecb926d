"""Programs that users would write, run as they stand, against a provider on loopback.

They lie beside this repository and not in it. Those that name what is not built yet wait.
"""

import asyncio
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import pytest

from batonlog import engine, projections
from batonlog.engine import Agent, Engine, handoff, tool
from batonlog.engine.testing import FakeResponsesServer, ScriptedModel, assistant_message, function_call
from batonlog.engine.testing.fake_responses import Step
from batonlog.events import SQLiteLog, UsageError, open_log
from batonlog.projections import messages_only

USES = Path(__file__).parents[1].parent / "shared" / "uses"

pytestmark = pytest.mark.skipif(not USES.exists(), reason="the programs are not beside this repository")

Serve: TypeAlias = Callable[[Sequence[Step]], AbstractContextManager[FakeResponsesServer]]

REFUND: list[Step] = [
    [
        assistant_message("Let me look."),
        function_call("get_user_profile", {"user": "li"}),
        function_call("get_order", {"order": "7"}),
    ],
    function_call(Agent("退款专家"), {}),
    function_call("check_policy", {"order": "7"}),
    function_call("issue_refund", {"order": "7", "amount": 120}),
    "Refunded.",
    "You are welcome.",
]
"""What a model answers to use_01, which others import and thereby run."""

WAITING: Mapping[str, Callable[[], bool]] = {
    "use_05_sse.py": lambda: _takes(lambda: open_log("postgresql:///support")),
    "use_09_readmodel.py": lambda: hasattr(projections, "ReadModel"),
    "use_10_as_tool.py": lambda: hasattr(Agent, "as_tool"),
    "use_11_output.py": lambda: _takes(lambda: Agent("a", output_type=int)),
    "use_12_guardrail.py": lambda: hasattr(engine, "racing"),
}
"""Programs that cannot run yet, and whether what they wait for has come."""

RUN = {
    "01_refund",
    "02_dynamic",
    "03_prefetch",
    "04_filter",
    "06_approval",
    "07_recover",
    "08_fork",
    "13_tests",
    "14_notebook",
    "15_ports",
}


def _takes(make: Callable[[], object]) -> bool:
    try:
        make()
    except UsageError:
        return False
    return True


def run(*arguments: str, cwd: Path) -> str:
    """Run Python in a folder, and return what it printed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(USES),
        "PYTHONDONTWRITEBYTECODE": "1",  # leave no trace beside the programs
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


def test_every_program_is_run_here_or_waits() -> None:
    names = {path.name for path in USES.glob("use_*.py")}
    assert names == {f"use_{name}.py" for name in RUN} | set(WAITING)


@pytest.mark.parametrize("name", WAITING)
def test_a_program_waits_only_while_something_is_missing(name: str) -> None:
    assert not WAITING[name](), f"{name} can run now: run it here"


def test_the_refund_runs(serve: Serve, tmp_path: Path) -> None:
    with serve(REFUND) as server:
        printed = run(str(USES / "use_01_refund.py"), cwd=tmp_path)
    first, session, model = printed.splitlines()
    assert first == "退款专家 Refunded."
    assert session.count("function_call'") == 5
    assert model.count("function_call'") == 2
    assert [item.get("type", "message") for item in server.requests[-1]["input"]][:2] == ["message"] * 2
    assert not server.refusals


@pytest.mark.parametrize(("urgency", "target"), [("high", "senior"), ("normal", "junior")])
async def test_the_target_is_chosen_from_what_the_model_gives(urgency: str, target: str) -> None:
    program = runpy.run_path(str(USES / "use_02_dynamic.py"))
    model = ScriptedModel(function_call("route_request", {"urgency": urgency, "reason": "late"}), "hi")
    async with Engine("memory:", agents=[program["triage"]], model=model) as one:
        assert (await one.run("go")).agent == target


class Orders:
    """A database."""

    async def orders(self, user: str) -> Sequence[str]:
        return [f"o-1 of {user}"]

    async def user_of(self, session: str) -> str:
        return f"user of {session}"


def test_what_a_callback_fetches_reaches_the_target(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = runpy.run_path(str(USES / "use_03_prefetch.py"))

    async def main() -> object:
        async with program["make_engine"](Orders()) as one:
            return (await one.run("my refund?", session="cust-42")).final_output

    with serve([function_call("transfer_to_refund", {}), "Soon."]) as server:
        assert asyncio.run(main()) == "Soon."
    assert "o-1 of user of cust-42" in server.requests[1]["instructions"]
    assert server.requests[1]["input"][-1] == {
        "role": "developer",
        "content": "Orders: o-1 of user of cust-42",
    }


def test_filters_of_ones_own_are_proven(tmp_path: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider")
    printed = run("-m", "pytest", *options, str(USES / "use_04_filter.py"), cwd=tmp_path)
    assert "3 passed" in printed


def test_a_large_refund_waits_and_is_approved_from_another_process(serve: Serve, tmp_path: Path) -> None:
    program = (USES / "use_06_approval.py").read_text(encoding="utf-8")
    # It counts on the call's being 3.0, but what an agent is told and offered is an event of its
    # own before the request: the call is 4.0, as the program itself prints.
    program, count = re.subn(r'tuesday_back_office\("3\.0"\)', 'tuesday_back_office("4.0")', program)
    assert count == 1
    with serve([function_call("issue_refund", {"order": "7", "amount": 120}), "Refunded."]) as server:
        printed = run("-c", program, cwd=tmp_path)
    assert printed.splitlines() == [
        "4.0 issue_refund {'order': '7', 'amount': 120}",
        "Refunded.",
        "Refunded.",
    ]
    assert server.requests[1]["input"][-1]["output"] == "refunded 7 under cust-42/4.0"


async def lose_a_refund(path: Path) -> None:
    """A worker that dies while it pays: nobody knows whether it did."""
    begun = asyncio.Event()

    @tool
    async def issue_refund(order: str, amount: float) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    paying = function_call(issue_refund, {"order": "9", "amount": 5})
    async with SQLiteLog(path) as log:
        agents = [Agent("退款专家", tools=[issue_refund])]
        one = Engine(log, agents=agents, model=ScriptedModel(paying))
        running = asyncio.ensure_future(one.run("refund order 9", session="cust-43"))
        await begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await log.acquire("cust-43", owner="dead", seconds=0)


def test_what_a_dead_process_left_goes_on(serve: Serve, tmp_path: Path) -> None:
    asyncio.run(lose_a_refund(tmp_path / "support.db"))
    with serve([*REFUND, "It was paid."]) as server:
        printed = run(str(USES / "use_07_recover.py"), cwd=tmp_path)
    assert printed.splitlines()[-2:] == [
        "cust-43 issue_refund {'order': '9', 'amount': 5}",
        "cust-43 completed",
    ]
    assert server.requests[-1]["input"][-1]["output"] == "refund r-1 issued"
    assert not server.refusals


def test_two_configurations_answer_from_the_same_point(serve: Serve, tmp_path: Path) -> None:
    async def first() -> None:
        path = tmp_path / "support.db"
        async with Engine(path, agents=[Agent("support")], model=ScriptedModel("Maybe.")) as one:
            await one.run("A refund?", session="cust-42")

    asyncio.run(first())
    with serve(["No.", "Yes."]) as server:
        printed = run(str(USES / "use_08_fork.py"), cwd=tmp_path)
    assert printed == "{'careful': 'No.', 'generous': 'Yes.'}\n"
    assert server.requests[0]["input"] == server.requests[1]["input"]


def test_tests_of_ones_own_agents_run(serve: Serve, tmp_path: Path) -> None:
    # Its log is ours, and passes the same suite in tests/events: here a part will do.
    some = "not TestMyLog or conflict or duplicate"
    with serve(REFUND):
        printed = run(
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            some,
            str(USES / "use_13_tests.py"),
            cwd=tmp_path,
        )
    assert re.search(r"\b([5-9]|\d\d) passed", printed)


async def refund_in_three_turns(path: Path) -> None:
    """cust-42 is handed to refund, which is shown the messages alone, and asks three times."""

    @tool
    async def get_order(order: str) -> str:
        return "a kettle"

    refund = Agent("refund", instructions="Decide.", tools=[get_order])
    triage = Agent("triage", tools=[get_order], handoffs=[handoff(refund, input_filter=messages_only)])
    look = function_call(get_order, {"order": "7"})
    model = ScriptedModel(look, function_call(refund, {}), look, look, "Refunded.")
    async with Engine(path, agents=[triage], model=model) as one:
        await one.run("A refund?", session="cust-42")


def test_a_notebook_shows_what_an_agent_saw_and_why_not_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(refund_in_three_turns(tmp_path / "support.db"))
    monkeypatch.chdir(tmp_path)
    program = runpy.run_path(str(USES / "use_14_notebook.py"))
    asyncio.run(program["cells"]())
    printed = capsys.readouterr().out.splitlines()

    assert printed[0] == "1.0 None message A refund?"
    assert printed[5:] == [
        "[('4.0', 'function_call'), ('6.0', 'function_call_output'), "
        "('8.0', 'function_call'), ('10.0', 'function_call_output')]",
        "9 handoff.filtered messages_only {}",
        "   kept 1.0 ",
        "   dropped 4.0 messages_only",
        "   dropped 6.0 messages_only",
        "   dropped 8.0 messages_only",
        "   dropped 10.0 messages_only",
        "Decide. {} None",
    ]


PORTS = """
import runpy, sys
import batonlog.engine

class Later(batonlog.engine.OpenAIResponsesModel):
    'Stands for the model of Chat Completions, which is not built yet.'

batonlog.engine.OpenAIChatModel = Later
runpy.run_path(sys.argv[1])
"""


def test_all_that_plugs_in_plugs_in(tmp_path: Path) -> None:
    assert not hasattr(engine, "OpenAIChatModel")  # when it comes: run the program as it stands
    run("-W", "ignore:coroutine:RuntimeWarning", "-c", PORTS, str(USES / "use_15_ports.py"), cwd=tmp_path)
