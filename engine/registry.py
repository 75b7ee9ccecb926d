"""The agents of an engine: found, checked, and looked up by name."""

from collections.abc import Iterable, Sequence
from typing import Any

from batonlog.engine.agents import Agent
from batonlog.engine.handoffs import Handoff
from batonlog.engine.tools import Tool
from batonlog.events import UsageError


class UnknownAgentError(UsageError):
    """There is no agent of this name in this process."""


class Registry:
    """All agents that are reachable from the given ones.

    Raises UsageError, naming what is wrong, for two agents of one name, two tools or handoffs
    with one wire name on an agent, and a handoff to an agent that is not there.

    Args:
        agents: the given ones.
        stand_in: whether the first one acts for an agent that is not there.
    """

    def __init__(self, agents: Sequence[Agent[Any]], *, stand_in: bool = False) -> None:
        self._stand_in = stand_in
        self._agents: dict[str, Agent[Any]] = {}
        if isinstance(agents, Agent):
            raise UsageError(f"agents= takes a list: [{agents!r}]")
        for agent in agents:
            self._add(agent)
        for agent in self._agents.values():
            _check_names(agent)
            for one in agent.handoffs:
                self._check_targets(agent, one)
        self.first = agents[0].name if agents else None
        self._tools = {(agent.name, one.name): one for agent in self._agents.values() for one in agent.tools}
        self._handoffs = {
            (agent.name, one.tool_name): one for agent in self._agents.values() for one in agent.handoffs
        }

    def _add(self, agent: Agent[Any]) -> None:
        if not isinstance(agent, Agent):
            raise UsageError(f"{agent!r} is no agent: agents= takes Agent(...)")
        known = self._agents.get(agent.name)
        if known is agent:
            return
        if known is not None:
            raise UsageError(
                f"two agents are named {agent.name}; the name is an agent's identity: rename one"
            )
        self._agents[agent.name] = agent
        for one in agent.handoffs:
            for target in one.agents:
                if isinstance(target, Agent):
                    self._add(target)

    def _check_targets(self, agent: Agent[Any], one: Handoff[Any]) -> None:
        for target in one.targets:
            if target not in self._agents:
                raise UsageError(
                    f"agent {agent.name} hands off to {target}, which is not among this engine's agents: "
                    f"{_listed(self._agents)}. Add it to agents=, or mend the name"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._agents

    def __bool__(self) -> bool:
        return bool(self._agents)

    def __getitem__(self, name: str) -> Agent[Any]:
        if (agent := self._agents.get(name)) is None:
            raise UnknownAgentError(
                f"no agent {name} in this process; it has {_listed(self._agents)}. Add it to agents=, "
                f"name another one for a new run with agent=, or let the first one act for those that are "
                f"gone with unknown_agent='entry'"
            )
        return agent

    def acting(self, name: str | None) -> Agent[Any]:
        """Return who acts when control is with that name. Raises UnknownAgentError if nobody does."""
        if self._stand_in and name not in self._agents:
            name = self.first
        return self[name or ""]

    def get(self, name: str) -> Agent[Any] | None:
        """Return an agent, or None."""
        return self._agents.get(name)

    def tool(self, agent: str, name: str) -> Tool[Any] | None:
        """Return the tool that an agent calls so, or None if this process has no such."""
        return self._tools.get((agent, name))

    def handoff(self, agent: str, name: str) -> Handoff[Any] | None:
        """Return the handoff that an agent calls so, or None if this process has no such."""
        return self._handoffs.get((agent, name))


def _check_names(agent: Agent[Any]) -> None:
    seen: dict[str, str] = {}
    for name, what in (
        *((one.name, f"the tool {one.name}") for one in agent.tools),
        *((one.tool_name, f"the handoff to {' or '.join(one.targets)}") for one in agent.handoffs),
    ):
        if name in seen:
            raise UsageError(
                f"agent {agent.name}: {seen[name]} and {what} are both called {name} on the wire; "
                f"give one of them another name (tool_name= for a handoff)"
            )
        seen[name] = what


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
