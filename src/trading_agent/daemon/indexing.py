"""Keeps the index for search up with the files, beside the desks and never in their way.

An event only says that there is something to read: what is read, and from where on, the files and the index say. An
event that is lost costs a minute, a process that is killed nothing.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.abc
import anyio.from_thread
import anyio.to_thread

from trading_agent.conversation.stores.database import DatabaseBusy
from trading_agent.errors import StorageError, TradingAgentError
from trading_agent.event_bus import EventBus, Subscription
from trading_agent.events import (
    ComponentFailed,
    IndexLagged,
    SessionEnded,
    SessionStarted,
    StoreDamaged,
    SummaryWritten,
    TriggerClosed,
    TurnFinished,
    TurnInterrupted,
    WriteFailed,
)
from trading_agent.index.faults import IndexStopped
from trading_agent.index.results import Progress
from trading_agent.index.session_files import SessionKey, Snapshot
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.trigger import storable

T = TypeVar('T')

LOOK_SECONDS = 60.0
"""How often all files are looked at, whatever was told."""

GATHER_SECONDS = 0.25
"""How long events are gathered before the files are read."""

PAUSE_SECONDS = 0.01
"""How long the thread rests after each transaction, so that desks have interpreter and disk to themselves."""

LET_GO_SECONDS = 5.0
"""After how long a time without anything to read the index is closed, so that nothing of it is held in memory."""

LAGGED_SECONDS = 30.0
"""How long the index may be behind before that is told."""

AGAIN_SECONDS = (1.0, 60.0)
"""How soon it is tried again after a failure: first, and at most."""

_WAKES = (SessionEnded, SessionStarted, SummaryWritten, TriggerClosed, TurnFinished, TurnInterrupted)


class Indexing:
    """Feeds the index of a workspace.

    Args:
        workspace: The workspace.
        bus: Whose events say that there is something to read; where failures are told.
    """

    def __init__(self, workspace: Path, bus: EventBus) -> None:
        self._workspace = workspace
        self._bus = bus
        self._index = SqliteIndex(workspace, self._damaged)
        self._thread = anyio.CapacityLimiter(1)
        self._halt = threading.Event()
        self._stopped = anyio.Event()
        self._woken = anyio.Event()
        self._due: set[SessionKey] | None = None
        self._lag_began = anyio.Event()
        self._lag_ended = anyio.Event()
        self._left = 0
        self._trouble: Exception | None = None

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Reads until `stop` is called, or it is cancelled."""
        with self._bus.subscribe(*_WAKES, name='index') as events:
            task_status.started()
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._listen, events)
                    tasks.start_soon(self._tell_lag)
                    await self._work()
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._in_thread(self._index.close)

    def stop(self) -> None:
        """Lets it end between two transactions, or in the middle of one, which then leaves no trace."""
        self._halt.set()
        self._index.interrupt()
        self._stopped.set()
        self._woken.set()

    # -- when --------------------------------------------------------------------------------------------------

    async def _listen(self, events: Subscription) -> None:
        while True:
            for event in await events.batch():
                if event.desk is None or event.session_id is None:
                    self._due = None  # all files are looked at
                elif self._due is not None:
                    self._due.add((event.desk, event.session_id))
            self._woken.set()

    async def _work(self) -> None:
        look_at, again = anyio.current_time(), AGAIN_SECONDS[0]
        while not self._stopped.is_set():
            due, self._due, self._woken = self._due, set(), anyio.Event()
            if anyio.current_time() >= look_at:
                due, look_at = None, anyio.current_time() + LOOK_SECONDS
            if await self._read(due):
                again = AGAIN_SECONDS[0]
                await self._rest(look_at)
            else:
                self._due = None
                await self._wait(again)
                again = min(again * 2, AGAIN_SECONDS[1])

    async def _rest(self, look_at: float) -> None:
        """Returns when there is something to read, or it is time to look for it."""
        if not await self._woken_within(min(LET_GO_SECONDS, look_at - anyio.current_time())):
            await self._in_thread(self._index.close)
            await self._woken_within(look_at - anyio.current_time())
        if self._woken.is_set():
            await self._wait(GATHER_SECONDS)

    async def _woken_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._woken.wait()
        return self._woken.is_set()

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stopped.wait()

    # -- reading -----------------------------------------------------------------------------------------------

    async def _read(self, due: set[SessionKey] | None) -> bool:
        """Reads what is new in some sessions, or in all of them; returns whether that is done."""
        if not self._lag_began.is_set():
            self._lag_ended = anyio.Event()
            self._lag_began.set()
        try:
            await self._in_thread(lambda: self._catch_up(due))
        except IndexStopped:
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the desks go on, and it is told
            self._left = await self._in_thread(self._unread)
            self._tell_trouble(error)
            if not self._is_of_a_desk(error):
                return False
        else:
            if due is None or not self._is_of_a_desk(self._trouble):
                self._trouble = None
        self._left = 0
        self._lag_began = anyio.Event()
        self._lag_ended.set()
        return True

    def _is_of_a_desk(self, error: Exception | None) -> bool:
        """Returns whether one desk's files cannot be read: all others have been, and it is tried with the next look."""
        return isinstance(error, StorageError) and error.path.is_relative_to(self._workspace / 'desks')

    def _catch_up(self, due: set[SessionKey] | None) -> None:
        if due is not None and not due:
            return
        self._index.verify()
        self._index.catch_up(sessions=due, on_progress=self._note, stop=lambda: self._halt.wait(PAUSE_SECONDS))

    def _note(self, progress: Progress) -> None:
        self._left = progress.total - progress.done

    def _unread(self) -> int:
        try:
            return self._index.behind()
        except TradingAgentError:
            try:
                return sum(session.size for session in Snapshot(self._workspace).found)
            except TradingAgentError:
                return 0

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function, limiter=self._thread)

    # -- telling -----------------------------------------------------------------------------------------------

    async def _tell_lag(self) -> None:
        """Tells once of each time that the index is behind for long."""
        while True:
            await self._lag_began.wait()
            ended = self._lag_ended
            with anyio.move_on_after(LAGGED_SECONDS) as within:
                await ended.wait()
            if within.cancelled_caught and (self._left or self._trouble):
                error = '' if self._trouble is None else str(self._trouble) or type(self._trouble).__name__
                hint = 'search reads on where it stands; look at what is told of the index before'
                if not error:
                    hint = 'nothing to do: it reads on, and search finds the older messages later'
                self._publish_lag(self._index.path, error, hint)
                await ended.wait()

    def _publish_lag(self, path: Path, error: str, hint: str) -> None:
        path_text, error_text = storable(str(path)), storable(error)
        self._bus.publish(IndexLagged(path=path_text, behind_bytes=self._left, error=error_text, hint=hint))

    def _tell_trouble(self, error: Exception) -> None:
        """Tells of a failure, once while it lasts."""
        before, self._trouble = self._trouble, error
        if isinstance(error, DatabaseBusy):
            return  # somebody makes the index anew, perhaps; where that lasts it is told as a lag
        if before is not None and (type(before), str(before)) == (type(error), str(error)):
            return
        if isinstance(error, StorageError) and self._is_of_a_desk(error):
            self._publish_lag(error.path, str(error), error.hint)
        elif isinstance(error, StorageError):
            self._bus.publish(WriteFailed.of(error))
        else:
            self._bus.publish(
                ComponentFailed(
                    component='index',
                    error_type=type(error).__name__,
                    error=storable(str(error)) or type(error).__name__,
                    hint='the desks go on, and it is tried again; this is a fault of the program: report it',
                )
            )

    def _damaged(self, aside: Path, error: str) -> None:
        """Tells, from the thread, that the index was damaged."""
        told = StoreDamaged(
            path=storable(str(self._index.path)),
            error=storable(error),
            hint=f'nothing to do: it is a copy, and is made anew; the old one is {storable(str(aside))}',
        )
        anyio.from_thread.run_sync(self._bus.publish, told)
