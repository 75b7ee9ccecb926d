"""One conversation as it is played: the models that say what its script has, and what is kept of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.laws.scripts import JSON, Script, named
from tests.laws.store import SESSION, Store

from batonlog.engine import (
    Engine,
    UnavailableError,
)
from batonlog.engine.models import Delta, ModelResponse
from batonlog.events import (
    Record,
    Usage,
)
from batonlog.projections import (
    ModelRequest,
)


class FailedError(Exception):
    """What a scripted model, filter or callback raises."""


class Played:
    """One conversation as it is played: what was asked, what was done, and the log."""

    def __init__(self, script: Script, store: Store | None = None, session: str = SESSION) -> None:
        self.script = script
        self.store = store if store is not None else Store()
        self.session = session
        self.requests: list[ModelRequest] = []
        """What the models were given, in order."""
        self.raw: list[list[bytes]] = []
        """The bytes of each request's input, when it was made."""
        self.effects: list[tuple[str, str, int, str]] = []
        """Tool, call key, number and idempotency key of each effect, as they began."""
        self.states: list[tuple[int, JSON]] = []
        """What `look` found whenever an effect began: version and value."""
        self.look: Callable[[Any], JSON] | None = None
        """Looks at the driver's state."""
        self.filtered = 0
        """How often a filter was called."""
        self.refused: list[str] = []
        """What the engine refused to take from a caller."""
        self.failures: dict[int, int] = {}
        self.effect_count = 0
        self.engine: Engine[Played]

    async def records(self) -> tuple[Record, ...]:
        return await self.store.records(self.session)

    async def pause(self) -> None:
        """Let an effect take its time."""
        delays = self.script.delays
        rounds = delays[self.effect_count % len(delays)]
        self.effect_count += 1
        for _ in range(rounds):
            await asyncio.sleep(0)

    def see(self, context: object = None) -> None:
        """Look at the state that the engine holds right now."""
        claim = self.engine._sessions._claims.get(self.session)
        if self.look is not None and claim is not None and claim.driver is not None:
            self.states.append((claim.driver.state.version, self.look(claim.driver.state)))

    def verdict(self) -> str:
        return self.script.people[self.store.decided.get(self.session, 0) % len(self.script.people)]


class Voice:
    """A model that says what the script has next, however often it is asked for that."""

    def __init__(self, played: Played, name: str) -> None:
        self.name = name
        self.endpoint = "loopback"
        self.chain = "previous_response_id" if played.script.chain else None
        self._played = played

    async def respond(self, request: ModelRequest, /) -> AsyncIterator[Delta | ModelResponse]:
        played = self._played
        played.requests.append(request)
        played.raw.append([bytes(item) for item in request.raw_input])
        played.see()
        await played.pause()
        n = played.store.answered.get(played.session, 0)
        steps = played.script.steps
        if n >= len(steps):
            yield ModelResponse(
                [{"type": "message", "role": "assistant", "content": "Done."}], id=f"resp_{n}", usage=USED
            )
            return
        step = steps[n]
        if step.fails and not played.failures.get(n):
            played.failures[n] = 1
            raise FailedError(f"step {n}") if n % 2 else UnavailableError(f"step {n}")
        yield Delta(kind="text", text="…", agent=request.agent, turn=request.turn)
        yield ModelResponse(
            named(step.output, [one["name"] for one in request.tools]),
            id=f"resp_{n}",
            usage=USED,
            status="incomplete" if step.incomplete else "completed",
        )


USED = Usage(requests=1, input_tokens=7, output_tokens=3, total_tokens=10)
