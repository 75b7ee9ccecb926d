"""The agents of an engine: found, checked before anything runs, and looked up."""

from typing import Any

import pytest

from batonlog.engine import Agent, Engine, Handoff, Tool, UnknownAgentError, handoff
from batonlog.engine.registry import Registry
from batonlog.events import UsageError


def named(name: str) -> Tool[object]:
    return Tool(name, None)


def test_every_agent_that_can_be_reached_is_there() -> None:
    d = Agent("d")
    c = Agent("c", handoffs=[handoff(d, "a", tool_name="route", on_invoke=lambda ctx: "d")])
    registry = Registry([Agent("a", handoffs=[Agent("b", handoffs=[c])])])
    assert all(name in registry for name in "abcd")
    assert registry.first == "a"


def test_agents_that_refer_to_each_other_are_found_once() -> None:
    a = Agent("a", handoffs=["b"])
    b = Agent("b", handoffs=[a])
    assert "b" in Registry([a, b])
    assert "a" in Registry([b])


def test_one_agent_given_twice_is_one() -> None:
    a = Agent("a")
    assert Registry([a, a]).first == "a"


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"two agents are named b; .* rename one"):
        Registry([Agent("a", handoffs=[Agent("b")]), Agent("b")])


def test_a_handoff_to_an_agent_that_is_not_there_is_refused_naming_both() -> None:
    with pytest.raises(UsageError, match=r"agent a hands off to boss, .*engine's agents: a, b\. Add it"):
        Registry([Agent("a", handoffs=["boss"]), Agent("b")])


def test_one_of_several_targets_that_is_not_there_is_refused() -> None:
    one: Handoff[object] = handoff("b", "boss", tool_name="route", on_invoke=lambda ctx: "b")
    with pytest.raises(UsageError, match="hands off to boss"):
        Registry([Agent("a", handoffs=[one]), Agent("b")])


@pytest.mark.parametrize(
    ("tools", "handoffs", "says"),
    [
        ([named("x"), named("x")], [], "the tool x and the tool x are both called x"),
        ([named("transfer_to_b")], ["b"], "the tool transfer_to_b and the handoff to b"),
        ([], ["b", "b"], "the handoff to b and the handoff to b"),
        (
            [],
            [handoff("b", tool_name="go"), handoff("c", tool_name="go")],
            "the handoff to b and the handoff to c",
        ),
        ([], ["b", "B"], "the handoff to b and the handoff to B are both called transfer_to_b"),
        (
            [],
            ["退款", handoff("b", tool_name="transfer_to_f1c91e1d")],
            "the handoff to 退款 and the handoff to b",
        ),
    ],
)
def test_two_of_one_wire_name_on_an_agent_are_refused_naming_both(
    tools: Any, handoffs: Any, says: str
) -> None:
    agents = [Agent("a", tools=tools, handoffs=handoffs), *map(Agent, ["b", "c", "B", "退款"])]
    with pytest.raises(UsageError, match=f"agent a: {says}.*tool_name="):
        Registry(agents)


def test_two_non_ascii_names_that_meet_are_refused_naming_both(monkeypatch: pytest.MonkeyPatch) -> None:
    class Same:
        def hexdigest(self) -> str:
            return "0" * 64

    monkeypatch.setattr("batonlog.engine.handoffs.hashlib.sha256", lambda data: Same())
    agents = [Agent("a", handoffs=["退款", "退货"]), Agent("退款"), Agent("退货")]
    with pytest.raises(
        UsageError, match="the handoff to 退款 and the handoff to 退货 are both called transfer_to_0"
    ):
        Registry(agents)


def test_two_agents_may_have_tools_of_one_name() -> None:
    mine, yours = named("x"), named("x")
    registry = Registry([Agent("a", tools=[mine]), Agent("b", tools=[yours])])
    assert (registry.tool("a", "x"), registry.tool("b", "x")) == (mine, yours)


def test_what_is_not_there_is_none_or_an_error_that_lists_what_is() -> None:
    one: Handoff[object] = handoff("b")
    registry = Registry([Agent("a", handoffs=[one]), Agent("b")])
    assert registry.handoff("a", "transfer_to_b") is one
    assert (registry.tool("a", "x"), registry.tool("z", "x"), registry.handoff("b", "x")) == (
        None,
        None,
        None,
    )
    assert registry.get("z") is None
    with pytest.raises(UnknownAgentError, match="no agent z in this process; it has a, b"):
        registry["z"]


def test_no_agents_are_no_error() -> None:
    assert not Registry([])
    assert Registry([]).first is None


@pytest.mark.parametrize("agents", [[7], ["a"], [handoff("a")]])
def test_what_is_no_agent_is_refused(agents: Any) -> None:
    with pytest.raises(UsageError, match="is no agent"):
        Registry(agents)


def test_a_single_agent_without_its_list_is_refused() -> None:
    agent: Any = Agent("a")
    with pytest.raises(UsageError, match=r"agents= takes a list: \[Agent\('a'\)\]"):
        Registry(agent)


def test_an_engine_checks_its_agents_before_it_opens_anything(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match="hands off to boss"):
        Engine(tmp_path / "a.db", agents=[Agent("a", handoffs=["boss"])])
    assert list(tmp_path.iterdir()) == []
