"""The strong law of requests: a server that refuses what OpenAI refuses never refuses one of ours."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from tests.laws.conversations import http_scripts
from tests.laws.depth import examples
from tests.laws.play import play
from tests.laws.played import Played
from tests.laws.scripts import JSON, Script, named

from batonlog.engine.openai_responses import OpenAIResponsesModel, request_body
from batonlog.engine.testing._responses_items import normal
from batonlog.engine.testing.fake_responses import FakeResponsesServer
from batonlog.events import Record
from batonlog.events.values import load
from batonlog.projections import model_history, model_request, timeline
from batonlog.projections.request import wire_input

_ENOUGH = 200
"""Requests of the longest conversation."""


class ServerError(Exception):
    """What a provider answers at a bad moment."""


def answers(script: Script) -> Iterator[Any]:
    """The steps of a script as a fake server takes them, and then an answer for whatever else is asked."""
    for step in script.steps:
        if step.fails:
            yield ServerError("at a bad moment")
        yield _said(step.output, step.incomplete)
    for _ in range(_ENOUGH):
        yield "Done."


def _said(output: Any, incomplete: bool) -> Any:
    def say(request: dict[str, JSON]) -> JSON:
        items = named(output, [one["name"] for one in request.get("tools", ())])
        status = "incomplete" if incomplete else "completed"
        return {"response": {"status": status}, "output": items}

    return say


Chain = Literal["previous_response_id", "conversation"]
"""How the provider keeps what it was sent, where a script wants it kept."""

chains: st.SearchStrategy[Chain] = st.sampled_from(["previous_response_id", "conversation"])


class Watched(FakeResponsesServer):
    """Keeps what each request showed to the model: what was held for it, and what it sent."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps)
        self.shown: dict[int, list[JSON]] = {}
        """By number of the request; without those that were answered with an error."""

    def _deliver(self, request: dict[str, JSON], outcome: Any) -> Any:
        turn = self._held.turn_of(request)
        self.shown[len(self.requests) - 1] = [said(item) for item in (*turn.before, *turn.sent)]
        return super()._deliver(request, outcome)


def said(item: JSON) -> JSON:
    """An item without what differs between the ways to send it: ids, tails of call ids, what was mended."""
    bare = {key: value for key, value in normal(item).items() if key not in ("id", "status")}
    if "call_id" in bare:
        bare["call_id"] = bare["call_id"].split("~")[0][:50]  # a tail takes the place of an end
    if "name" in bare:
        bare["name"] = re.sub("[^a-zA-Z0-9_-]", "_", bare["name"])[:64]
    if bare["type"] == "function_call" and not is_object(bare["arguments"]):
        bare["arguments"] = "{}"
    if "content" in bare and bare["type"] == "message":
        bare["content"] = [
            {key: value for key, value in part.items() if key not in ("annotations", "logprobs")}
            for part in bare["content"]
        ]
    return bare


def is_object(text: str) -> bool:
    with suppress(ValueError):
        return isinstance(load(text.encode()), dict)
    return False


async def over_http(
    script: Script, *, stream: bool = True, chain: Chain = "previous_response_id"
) -> tuple[Played, Watched, tuple[Record, ...]]:
    """Play a script with a real client and a strict server."""
    async with Watched(*answers(script)) as server:

        def models(played: Played) -> tuple[Any, Any]:
            kept = chain if script.chain else None
            return tuple(
                OpenAIResponsesModel(name, client=server.client, chain=kept, stream=stream)
                for name in ("first", "second")
            )  # type: ignore[return-value]

        kept = await play(script, models=models)
        server._script.clear()  # the server would mind that nobody asked for the rest
        return kept, server, await kept.records()


@examples(50, many=3000)
@given(http_scripts, st.booleans(), chains)
def test_the_server_never_refuses_a_request_of_the_engine(script: Script, stream: bool, chain: Chain) -> None:
    _, server, _ = asyncio.run(over_http(script, stream=stream, chain=chain))
    assert server.refusals == ()


@examples(15)
@given(http_scripts, chains)
def test_the_adapter_makes_the_same_bytes_of_a_rebuilt_request(script: Script, chain: Chain) -> None:
    _, server, records = asyncio.run(over_http(script, stream=False, chain=chain))
    asked = [turn.requested for turn in timeline(records)]
    assert len(asked) == len(server.requests)
    for version, seen in zip(asked, server.requests, strict=True):
        assert load(request_body(model_request(records, at=version), stream=False)) == seen


@examples(20, many=1500)
@given(http_scripts, chains)
def test_what_the_server_shows_to_the_model_is_the_view_that_is_recorded(
    script: Script, chain: Chain
) -> None:
    _, server, records = asyncio.run(over_http(script, stream=False, chain=chain))
    asked = [turn.requested for turn in timeline(records)]
    for number, shown in server.shown.items():
        view = model_history(records, at=asked[number])
        assert shown == [said(load(item)) for item in wire_input(view)]
