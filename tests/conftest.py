"""What tests of whole programs share: the command line, and a provider on loopback."""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner

from batonlog.engine.cli.app import app
from batonlog.engine.testing.fake_responses import FakeResponsesServer, Step

# Failures of the shipped suite show both sides of a comparison.
pytest.register_assert_rewrite("batonlog.events.testing")


class Done:
    """What a command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


Batonlog: TypeAlias = Callable[..., Done]
Serve: TypeAlias = Callable[[Sequence[Step]], AbstractContextManager[FakeResponsesServer]]


@pytest.fixture
def batonlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batonlog:
    """Run a command, without anything from the environment that changes what it does."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "BATONLOG_LOG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, **environment: str) -> Done:
        done = CliRunner(env=environment).invoke(app, [str(one) for one in arguments], prog_name="batonlog")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Done(done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Have openai clients that are made from the environment talk to a fake server.

    It lives in a thread of its own, so that the code under test may run its own event loop.
    """

    @contextmanager
    def served(script: Sequence[Step]) -> Iterator[FakeResponsesServer]:
        server = FakeResponsesServer(*script)
        with _loop_in_a_thread() as run:
            run(server.__aenter__())
            monkeypatch.setenv("OPENAI_API_KEY", "fake")
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            try:
                yield server
            except BaseException as error:
                run(server.__aexit__(type(error), error, error.__traceback__))
                raise
            run(server.__aexit__(None, None, None))

    return served


@contextmanager
def _loop_in_a_thread() -> Iterator[Callable[[Any], Any]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
