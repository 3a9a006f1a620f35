"""Names the code that blocks the event loop, from a thread of its own."""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable

import anyio
import anyio.abc

from trading_agent.events import LoopBlocked

BLOCKED_SECONDS = 1.0
BEAT_SECONDS = 0.25
FRAMES_SHOWN = 4


class LoopMonitor:
    """Looks every quarter of a second whether the loop still turns; tells once of each time that it does not.

    Args:
        tell_now: Is told from the monitor's thread while the loop is still blocked, for it may never go on.
        tell: Is told on the loop once it goes on.
    """

    def __init__(self, tell_now: Callable[[LoopBlocked], None], tell: Callable[[LoopBlocked], None]) -> None:
        self._tell_now = tell_now
        self._tell = tell
        self._beat = time.monotonic()
        self._stop = threading.Event()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watches the loop that it is called on, until it is cancelled."""
        loop = asyncio.get_running_loop()
        watcher = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name='loop-monitor', daemon=True
        )
        watcher.start()
        task_status.started()
        try:
            while True:
                self._beat = time.monotonic()
                await anyio.sleep(BEAT_SECONDS)
        finally:
            self._stop.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        told_for = going_since = 0.0
        looked_at, worked = time.monotonic(), time.process_time()
        while not self._stop.wait(BEAT_SECONDS):
            beat = self._beat
            now, work = time.monotonic(), time.process_time()
            if now - looked_at > BLOCKED_SECONDS and work - worked < (now - looked_at) / 2:
                going_since = now  # this thread stood still too, and nothing ran: the process or its host was stopped
            looked_at, worked = now, work
            blocked = now - max(beat, going_since)
            if blocked < BLOCKED_SECONDS + BEAT_SECONDS or beat == told_for:
                continue
            told_for = beat
            event = _describe(loop, thread, blocked)
            self._tell_now(event)
            try:
                loop.call_soon_threadsafe(self._tell, event)
            except RuntimeError:
                return  # the loop is closed: the daemon has ended


def _describe(loop: asyncio.AbstractEventLoop, thread: int, blocked: float) -> LoopBlocked:
    task = asyncio.current_task(loop)
    # Looked at only now, and let go at once: whoever has a thread's frames keeps alive what is in its variables.
    frame = sys._current_frames()[thread]  # noqa: SLF001 - the documented way to see another thread's stack
    stack = traceback.extract_stack(frame)[-FRAMES_SHOWN:]
    where = ' < '.join(f'{item.name} ({item.filename}:{item.lineno})' for item in reversed(stack))
    return LoopBlocked(
        task=task.get_name() if task is not None else 'a callback',
        blocked_ms=round(blocked * 1000),
        error=f'the event loop is blocked in {where}',
        hint='that code must not block: let it await, or run it in a thread (anyio.to_thread.run_sync)',
    )
