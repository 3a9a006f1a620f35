"""Where blocking file work is done: in threads, so that the event loop waits for no disk, and no desk for another's."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

T = TypeVar('T')
Ts = TypeVarTuple('Ts')

SYNC_THREADS = 16
"""How many files are written and synced side by side; more threads were measured to gain nothing."""

SLOW_SECONDS = 0.1
"""A call that takes longer waits for a slow disk, and no longer keeps one of these threads from the others."""

CALLS_AT_ONCE = 8
"""How many calls of one user are made at once, slow ones too."""


class _Place:
    """What a call holds of a limiter until it ends, or is slow."""

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._slow: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        try:
            self._limiter.acquire_on_behalf_of_nowait(self)
        except anyio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(self)
        self._slow = asyncio.get_running_loop().call_later(SLOW_SECONDS, self.give_back)

    def give_back(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
            self._limiter.release_on_behalf_of(self)


class Disk:
    """Runs blocking file work in threads, a few at a time.

    Each user has a `share`. While the disk answers soon all of them together use `threads` threads. A call that is
    slow gives up its place among these, so that whoever writes to a disk that hangs keeps nobody else from his.

    Args:
        threads: How many calls run side by side.
    """

    def __init__(self, threads: int = SYNC_THREADS) -> None:
        self._places = anyio.CapacityLimiter(threads)
        self._mine = anyio.CapacityLimiter(CALLS_AT_ONCE)

    def share(self) -> 'Disk':
        """Returns the same threads for another user, who never waits for slow calls of this one."""
        other = Disk()
        other._places = self._places
        return other

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Calls `function(*args)` in a thread. It is done and waited for, also when the caller is cancelled."""
        with anyio.CancelScope(shield=True) as scope:
            place = _Place(self._places)
            try:
                # Behind slow calls of one's own no place is held for nothing.
                if self._mine.available_tokens:
                    await place.take()
                result = await anyio.to_thread.run_sync(function, *args, limiter=self._mine)
            finally:
                place.give_back()
        assert not scope.cancelled_caught  # noqa: S101 - nobody else has this scope
        return result
