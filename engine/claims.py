"""Who drives which session: claims within the process, leases between processes.

A session is claimed before anything is awaited, so that two callers of one engine never drive
it at once. The lease does the same between processes, and runs out if its worker dies.
"""

import asyncio
from collections import UserDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from batonlog.engine.driver import Driver, give_back
from batonlog.engine.errors import SessionBusyError
from batonlog.events import EventLog, Lease, LogError, UsageError
from batonlog.events.lifecycle import ASKING, DECIDED, GATED, RUNNING, STOPPED
from batonlog.projections.result import open_calls
from batonlog.projections.state import State

FASTEST_BEAT = 0.05
"""Seconds between two looks at the leases, at the least."""


class Claim:
    """One session that is driven here, or is about to be."""

    __slots__ = ("driver", "end", "keeps", "key", "ready")

    def __init__(self, key: str | None) -> None:
        self.key = key
        """Of the run that begins."""
        self.driver: Driver | None = None
        self.keeps: Held | None = None
        """What has a lease to be kept and no driver."""
        self.ready = asyncio.Event()
        """It is driven, or it is let go."""
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Claims(UserDict[str, Claim]):
    """The claims of one engine, by session."""

    def __init__(
        self, log: EventLog, *, owner: str, seconds: float, read: Callable[[str], Awaitable[State]]
    ) -> None:
        super().__init__()
        self.log = log
        self.owner = owner
        self.seconds = seconds
        """How long a lease lasts."""
        self.read = read
        """Where a session is."""
        self.closed = False
        self._heart: asyncio.Task[None] | None = None

    def hold(self, session: str, *, key: str | None = None) -> "Held":
        """Claim a session and take its lease, for the time of a `with`.

        Raises SessionBusyError while somebody else has it; but while a run with this key begins or
        goes on here, it waits for its end, and then holds nothing.
        """
        return Held(self, session, key)

    def beat(self) -> None:
        """Keep the leases of long effects, as long as there are any."""
        if self._heart is None or self._heart.done():
            self._heart = asyncio.get_running_loop().create_task(self._heartbeat())

    async def _heartbeat(self) -> None:
        while self and not self.closed:
            ends = [claim.end for claim in self.values()]
            await asyncio.wait(ends, timeout=max(self.seconds / 3, FASTEST_BEAT))
            for claim in list(self.values()):
                keeper = claim.driver or claim.keeps
                if keeper is not None:
                    with suppress(LogError):  # the next beat tries again
                        await keeper.renew(self.owner, self.seconds)

    async def close(self) -> None:
        """Let every driver reach its next append, and see it out."""
        self.closed = True
        claims = list(self.values())
        for claim in claims:
            if claim.driver is not None:
                claim.driver.stop()
        if claims:
            await asyncio.wait([claim.end for claim in claims])
        if self._heart is not None and self._heart.get_loop() is asyncio.get_running_loop():
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)


class Held:
    """A claim and its lease, for the time of a `with`. A driver takes the lease over."""

    def __init__(self, claims: Claims, session: str, key: str | None) -> None:
        self.session = session
        self.lease: Lease | None = None
        self.state: State | None = None
        """Where the session is, once it has been read."""
        self.claim = Claim(key)
        self._claims = claims
        self._claimed = False
        self._leasing = asyncio.Lock()
        """Held while the lease is renewed or given back: a late renewal would take it again."""

    async def __aenter__(self) -> Self:
        claims, session = self._claims, self.session
        if claims.closed:
            raise UsageError("the engine was closed")
        if (other := claims.get(session)) is not None:
            if other.key is not None and other.key == self.claim.key:
                await asyncio.wait([other.end])
                return self
            raise busy(session, other.driver.state if other.driver is not None else State())
        claims[session] = self.claim
        self._claimed = True
        try:
            self.lease = await claims.log.acquire(session, owner=claims.owner, seconds=claims.seconds)
            if self.lease is None:
                raise busy(session, await claims.read(session))
        except BaseException:
            self._let_go()
            raise
        return self

    def keep(self) -> None:
        """Keep the lease until the `with` ends, however long that takes. Nobody may take it over then."""
        self.claim.keeps = self
        self._claims.beat()

    async def renew(self, owner: str, seconds: float) -> None:
        """Keep the lease for some more time, unless another worker has taken it."""
        async with self._leasing:
            if self.lease is not None:
                lease = await self._claims.log.acquire(self.session, owner=owner, seconds=seconds)
                self.lease = lease if lease is not None else self.lease

    def take(self) -> Lease:
        """Return the lease, which is the taker's to give back."""
        assert self.lease is not None
        lease, self.lease = self.lease, None
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._claimed:
            return
        try:
            async with self._leasing:
                lease, self.lease = self.lease, None
                # One whose state nobody knows runs out by itself.
                if lease is not None and self.state is not None:
                    with suppress(LogError):  # and so does one that cannot be given back
                        await give_back(self._claims.log, lease, self.state)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        del self._claims[self.session]
        self.claim.ready.set()
        if not self.claim.end.done():
            self.claim.end.set_result(None)


def busy(session: str, state: State) -> SessionBusyError:
    """Say why a session takes no new run."""
    calls = open_calls(state)
    waits = "; ".join(f"call {call.call} ({call.tool}) {call.reason}" for call in calls)
    return SessionBusyError(
        f"{session} is busy: {waits or 'a run is going'}. Send to it, wait for it, or cancel it",
        session=session,
        version=state.version,
        open_calls=calls,
    )


def check_settled(session: str, state: State) -> None:
    """Refuse an edit of the view while a run is open or a call has no answer: its output would come to nothing."""
    _check_whole(session, state)
    if state.open_calls():
        raise busy(session, state)


def _check_whole(session: str, state: State) -> None:
    if state.phase in (RUNNING, ASKING):
        raise SessionBusyError(
            f"{session} holds a run that was interrupted: resume it, or cancel it",
            session=session,
            version=state.version,
            open_calls=open_calls(state),
        )


def check_free(session: str, state: State) -> None:
    """Refuse a new run while one is open; after a limit or a failure it may start."""
    _check_whole(session, state)
    if state.phase != STOPPED or state.run is None or state.run.status != "paused":
        return
    states = {call.state for call in state.open_calls()}
    if GATED in states:
        raise busy(session, state)
    if DECIDED in states:
        raise SessionBusyError(
            f"{session} holds a run whose call was decided and not carried out: resume it, or cancel it",
            session=session,
            version=state.version,
        )
