"""Whoever watches is woken up, from any thread, and nobody else is disturbed."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from batonlog.events.news import News, Watch


async def is_rung(watch: Watch, ring: Callable[[], object]) -> bool:
    """Whether somebody who waits has been woken up when all that was set off is done."""
    waiting = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    ring()
    for _ in range(3):
        await asyncio.sleep(0)
    rung = waiting.done()
    waiting.cancel()
    return rung


async def test_who_watches_a_session_hears_of_it_alone() -> None:
    news = News()
    with news.watch("s") as watch:
        assert await is_rung(watch, lambda: news.tell({"s": 1}))
        assert not await is_rung(watch, lambda: news.tell({"t": 1}))


async def test_who_watches_the_log_hears_of_every_session() -> None:
    news = News()
    with news.watch(None) as watch:
        assert await is_rung(watch, lambda: news.tell({"s": 1}))
        assert await is_rung(watch, lambda: news.tell({"t": 1}))


@pytest.mark.parametrize("session", ["s", None])
async def test_everybody_is_told_when_nobody_knows_what_changed(session: str | None) -> None:
    news = News()
    with news.watch(session) as watch:
        assert await is_rung(watch, news.tell_all)


async def test_news_that_came_before_the_waiting_are_not_lost() -> None:
    news = News()
    with news.watch("s") as watch:
        news.tell({"s": 1})
        await watch.wait()


async def test_another_thread_may_tell() -> None:
    news = News()
    with news.watch("s") as watch:
        await asyncio.to_thread(news.tell, {"s": 1})
        await watch.wait()


async def test_nobody_watches_after_leaving() -> None:
    news = News()
    with news.watch("s"), news.watch("s"), news.watch(None):
        assert news
    assert not news


def test_a_watcher_whose_loop_was_closed_disturbs_nobody() -> None:
    news = News()
    watching = news.watch("s")

    async def leave() -> None:
        watching.__enter__()

    asyncio.run(leave())
    assert news
    news.tell({"s": 1})
    news.tell_all()


async def test_a_loop_that_closes_meanwhile_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    news = News()
    with news.watch("s"), ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", closed)
        pool.submit(news.tell, {"s": 1}).result()
