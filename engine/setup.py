"""What an engine was given: agents, models, filters and settings. The same for every session."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from msgspec import Raw, Struct

from batonlog.engine.agents import Agent
from batonlog.engine.contexts import RunContext
from batonlog.engine.handoffs import Handoff
from batonlog.engine.models import (
    DEFAULT_RETRIES,
    Issuer,
    Model,
    ModelSettings,
    Retries,
    check_model,
    issuer_of,
)
from batonlog.engine.registry import Registry
from batonlog.engine.tools import Tool
from batonlog.events import JSON, UsageError
from batonlog.events.values import dump
from batonlog.projections import Filter
from batonlog.projections.wire import clean


class Resolved(Struct, frozen=True):
    """What an agent is told and offered at one turn."""

    instructions: str
    offered: tuple[Raw, ...]
    settings: Raw


class Setup:
    """The engine's configuration, and the parts of requests that follow from it alone."""

    def __init__(
        self,
        *,
        registry: Registry,
        model: Model | str | None,
        fallback: Sequence[Model | str] = (),
        retries: Retries = DEFAULT_RETRIES,
        provider: Callable[[str], Model],
        handoff_filter: Sequence[Filter[Any]] | None,
        compact: Sequence[Filter[Any]] | None,
        compact_above: int | None,
        settings: ModelSettings,
    ) -> None:
        self.registry = registry
        self.handoff_filter = handoff_filter
        self.compact = compact
        self.compact_above = compact_above
        """Tokens."""
        self.retries = retries
        self._model = model
        self._fallback = tuple(fallback)
        self._provider = provider
        self._settings = settings
        self._named: dict[str, Model] = {}
        self._offers: dict[int, Raw] = {}
        self._static: dict[str, Resolved] = {}
        """Of agents whose parts are the same at every turn."""

    def model_of(self, agent: Agent[Any], given_up: Collection[Issuer] = ()) -> Model:
        """Return the model that an agent asks: its own, or the first fallback that is not given up.

        Its own again, if all are. Raises UsageError if there is none.
        """
        own = agent.model if agent.model is not None else self._model
        if own is None:
            raise UsageError(f"agent {agent.name} has no model: give it one, or the engine one")
        model = self._made(own)
        if not given_up or issuer_of(model) not in given_up:
            return model
        others = map(self._made, self._fallback)
        return next((other for other in others if issuer_of(other) not in given_up), model)

    def check_models(self, agent: Agent[Any]) -> None:
        """Make sure that an agent has a model, and that the fallbacks can be made. Raises UsageError."""
        self.model_of(agent)
        for one in self._fallback:
            self._made(one)

    def _made(self, model: Model | str) -> Model:
        if not isinstance(model, str):
            return model
        if (known := self._named.get(model)) is None:
            known = self._named[model] = check_model(self._provider(model))
        return known

    async def close(self) -> None:
        """Close the models that were made from a name, where they can be closed."""
        named, self._named = self._named, {}
        for model in named.values():
            if (close := getattr(model, "close", None)) is not None:
                await close()

    async def resolve(
        self, agent: Agent[Any], context: RunContext[Any], run: ModelSettings | None
    ) -> Resolved:
        """Return what the agent is told and offered now; the same object, where nothing can have changed.

        Whatever its callables raise passes.
        """
        if run is None and (known := self._static.get(agent.name)) is not None:
            return known
        instructions = agent.instructions
        if not isinstance(instructions, str):
            made = instructions(context)
            instructions = await made if isinstance(made, Awaitable) else made
            if not isinstance(instructions, str):
                raise UsageError(
                    f"the instructions of {agent.name} are {type(instructions).__name__}, not text"
                )
        tools = [one for one in agent.tools if await _enabled(one.is_enabled, context)]
        handoffs = [one for one in agent.handoffs if await _enabled(one.is_enabled, context)]
        settings = agent.model_settings.over(self._settings)
        settings = settings if run is None else run.over(settings)
        resolved = Resolved(
            instructions, (*map(self._tool, tools), *map(self._handoff, handoffs)), Raw(dump(settings))
        )
        if run is None and not agent.callables:
            self._static[agent.name] = resolved
        return resolved

    def _tool(self, one: Tool[Any]) -> Raw:
        if (known := self._offers.get(id(one))) is None:
            known = self._offers[id(one)] = _offer(
                one.name,
                one.description,
                dict(one.parameters),
                strict=one.strict,
                kind="external" if one.runs_elsewhere else "tool",
                gate=_gate(one.needs_approval),
                idempotent=one.idempotent,
                on_unknown=one.on_unknown,
            )
        return known

    def _handoff(self, one: Handoff[Any]) -> Raw:
        if (known := self._offers.get(id(one))) is None:
            known = self._offers[id(one)] = _offer(
                one.tool_name,
                one.tool_description or self._described(one),
                dict(one.parameters),
                strict=True,
                kind="handoff",
                gate=_gate(one.needs_approval),
                targets=list(one.targets),
                effect=one.on_handoff is not None,
            )
        return known

    def _described(self, one: Handoff[Any]) -> str:
        texts = [f"Hand the conversation over to {' or '.join(one.targets)}."]
        for target in one.targets:
            agent = self.registry.get(target)
            if agent is not None and agent.handoff_description:
                texts.append(agent.handoff_description)
        return " ".join(texts)


def _offer(name: str, description: str, parameters: JSON, *, strict: bool, **promised: JSON) -> Raw:
    """What `agent.resolved` holds about one tool: as it is sent, and what was promised about it."""
    sent = {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": strict,
    }
    kept = {key: value for key, value in promised.items() if value not in (False, "", None)}
    data = dump({"name": name, "tool": sent, **kept})
    # Kept as it is sent: without lone surrogates, which no provider takes.
    return Raw(clean(data) if b"\\ud" in data else data)


def _gate(needs_approval: object) -> str:
    if callable(needs_approval):
        return "ask"
    return "yes" if needs_approval else "no"


async def _enabled(condition: object, context: RunContext[Any]) -> bool:
    if not callable(condition):
        return bool(condition)
    made = condition(context)
    return bool(await made if isinstance(made, Awaitable) else made)
