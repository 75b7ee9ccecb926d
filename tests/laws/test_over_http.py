"""The strong law of requests: a server that refuses what OpenAI refuses never refuses one of ours."""

import asyncio
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.laws.conversations import http_scripts
from tests.laws.depth import examples
from tests.laws.play import play
from tests.laws.played import Played
from tests.laws.scripts import JSON, Script, named

from batonlog.engine.openai_responses import OpenAIResponsesModel, request_body
from batonlog.engine.testing.fake_responses import FakeResponsesServer
from batonlog.events import Record
from batonlog.events.values import load
from batonlog.projections import model_request, timeline

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


async def over_http(
    script: Script, *, stream: bool = True
) -> tuple[Played, FakeResponsesServer, tuple[Record, ...]]:
    """Play a script with a real client and a strict server."""
    async with FakeResponsesServer(*answers(script)) as server:

        def models(played: Played) -> tuple[Any, Any]:
            chain = "previous_response_id" if script.chain else None
            return tuple(
                OpenAIResponsesModel(name, client=server.client, chain=chain, stream=stream)  # type: ignore[arg-type]
                for name in ("first", "second")
            )  # type: ignore[return-value]

        kept = await play(script, models=models)
        server._script.clear()  # the server would mind that nobody asked for the rest
        return kept, server, await kept.records()


@examples(50, many=3000)
@given(http_scripts, st.booleans())
def test_the_server_never_refuses_a_request_of_the_engine(script: Script, stream: bool) -> None:
    _, server, _ = asyncio.run(over_http(script, stream=stream))
    assert server.refusals == ()


@examples(15)
@given(http_scripts)
def test_the_adapter_makes_the_same_bytes_of_a_rebuilt_request(script: Script) -> None:
    _, server, records = asyncio.run(over_http(script, stream=False))
    asked = [turn.requested for turn in timeline(records)]
    assert len(asked) == len(server.requests)
    for version, seen in zip(asked, server.requests, strict=True):
        assert load(request_body(model_request(records, at=version), stream=False)) == seen
