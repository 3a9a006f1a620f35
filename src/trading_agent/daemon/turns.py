"""Runs a desk's triggers, one at a time, each to its outcome."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

import anyio

from trading_agent.clock import Clock
from trading_agent.clock import trading_date as trading_date_of
from trading_agent.daemon.status import TriggerResult, TurnStatus
from trading_agent.errors import NoBackend, StorageError, TurnRefused
from trading_agent.events import Event, TurnFinished, TurnInterrupted, TurnStarted, WriteFailed
from trading_agent.files import Disk
from trading_agent.memory.session_keeper import SessionKeeper
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.memory.trigger_queue import CUT_OFFS_ALLOWED, Entry, TriggerQueue
from trading_agent.routing.model_router import ModelRouter
from trading_agent.trigger import Trigger

CUT_OFF_NOTE = (
    '[This message was cut off before it was answered (this is attempt {attempt}); '
    'nothing of that answer was kept. It follows once more.]\n\n{text}'
)


@dataclass(frozen=True)
class Cut:
    """Why a person ends a running turn.

    Attributes:
        by: Who.
        reason: Why, in that person's words; may be empty.
        cancels: Whether the trigger is closed as cancelled; else it is run again later.
    """

    by: str
    reason: str
    cancels: bool


class Turns:
    """One desk's turns.

    Args:
        desk: The desk's name.
        queue: Where triggers come from and are closed.
        store: The desk's sessions folder.
        keeper: Prepares each trigger.
        router: Answers it.
        publish: Where events go.
        clock: What time it is.
        disk: Where file work is done.
    """

    def __init__(
        self,
        *,
        desk: str,
        queue: TriggerQueue,
        store: SessionStore,
        keeper: SessionKeeper,
        router: ModelRouter,
        publish: Callable[[Event], None],
        clock: Clock,
        disk: Disk,
    ) -> None:
        self._desk = desk
        self._queue = queue
        self._store = store
        self._keeper = keeper
        self._router = router
        self._publish = publish
        self._clock = clock
        self._disk = disk
        self._current: TurnStatus | None = None
        self._scope: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._cut: Cut | None = None
        self._running_id: str | None = None
        self.last_at: datetime | None = None
        self.stopping = False

    @property
    def current(self) -> TurnStatus | None:
        """The turn that is running, or None."""
        call = self._router.call
        if self._current is None or call is None:
            return self._current
        return TurnStatus(self._current.trigger_id, self._current.attempt, self._current.started_at, call.backend)

    async def result_of(self, trigger_id: str) -> TriggerResult | None:
        """Returns how a trigger ended, with its answer; None while it is open or when it is not known."""
        closing = self._queue.closing(trigger_id)
        if closing is None:
            return None
        if closing.outcome != 'answered' or closing.session_id is None:
            return TriggerResult(closing.outcome, session_id=closing.session_id)
        exchange = await self._disk.run(self._find_exchange, closing.session_id, trigger_id)
        if exchange is None:
            return TriggerResult('answered', session_id=closing.session_id)
        return TriggerResult('answered', exchange.answer, exchange.backend_name, closing.session_id)

    def _find_exchange(self, session_id: str, trigger_id: str) -> Exchange | None:
        newest_first = reversed(self._store.exchanges(session_id))
        return next((exchange for exchange in newest_first if exchange.trigger_id == trigger_id), None)

    async def close_answered(self) -> None:
        """Closes each open trigger whose exchange is in a log: a crash came between the two."""
        oldest = self._queue.oldest
        if oldest is None:
            return
        since = trading_date_of(oldest.accepted_at) - timedelta(days=1)
        session_ids = await self._disk.run(self._store.session_ids)
        for number, session_id in enumerate(session_ids):
            if number and split_session_id(session_id)[0] < since:
                break
            for exchange in await self._disk.run(self._store.exchanges, session_id):
                entry = self._queue.entry(exchange.trigger_id) if exchange.trigger_id else None
                if entry is not None:
                    await self._queue.close(entry, 'answered', session_id)

    async def run(self, entry: Entry) -> None:
        """Runs a trigger to its outcome.

        Raises:
            NoBackend: None could answer; the trigger stays where it is.
            StorageError: What happened could not be recorded; the trigger stays open.
        """
        if entry.cut_offs >= CUT_OFFS_ALLOWED:
            await self._queue.close(
                entry,
                'quarantined',
                self._router.session_id,
                error=f'it was cut off {entry.cut_offs} times',
                hint='look at it in triggers.jsonl; send it again under another id when it is harmless',
            )
            return
        self._ended = anyio.Event()
        self._cut = None
        try:
            # Cut off by a person in here, the desk goes on with whatever is next.
            with anyio.CancelScope() as self._scope:
                async with self._keeper.turn():
                    await self._run_prepared(entry, await self._keeper.prepare(_with_note(entry)))
        finally:
            self._scope = self._current = self._running_id = None
            self._ended.set()

    async def _run_prepared(self, entry: Entry, prepared: Trigger) -> None:
        if entry.closing is not None or self._queue.entry(entry.trigger.id) is not entry:
            return
        self._running_id = entry.trigger.id  # from here on it is cancelled by cutting it off
        if entry.trigger.expires_at is not None and entry.trigger.expires_at <= self._clock.now():
            await self._queue.close(entry, 'stale', self._router.session_id)
            return
        attempt = await self._queue.start(entry)
        began = anyio.current_time()
        self._tell_started(entry, attempt)
        try:
            exchange = await self._router.run(prepared, attempt=attempt)
        except (NoBackend, StorageError):
            # Nothing was answered, and nothing was cut off: it counts for nothing.
            await self._queue.interrupt(entry, 'no_backend')
            raise
        except TurnRefused as error:
            await self._queue.close(entry, 'failed', self._router.session_id, error=str(error), hint=error.hint)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._interrupted(entry)
            raise
        # Shielded, and nothing waits between the exchange and here: an answered trigger is closed.
        else:
            with anyio.CancelScope(shield=True):
                await self._finished(entry, exchange, attempt, anyio.current_time() - began)

    async def cut_off(self, cut: Cut, trigger_id: str | None = None) -> None:
        """Ends the running turn before it is answered, and returns once it has ended, in whatever way.

        Args:
            cut: Who asked for it, and whether the trigger is to be run again or is cancelled.
            trigger_id: Only where the turn is this trigger's; None for any.
        """
        if self._scope is None or (trigger_id is not None and self._running_id != trigger_id):
            return
        self._cut = cut
        self._scope.cancel()
        await self._ended.wait()

    async def _finished(self, entry: Entry, exchange: Exchange, attempt: int, seconds: float) -> None:
        await self._queue.close(entry, 'answered', self._router.session_id)
        self.last_at = self._clock.now()
        self._publish(
            TurnFinished(
                desk=self._desk,
                session_id=self._router.session_id,
                trading_date=self._router.trading_date,
                trigger_id=entry.trigger.id,
                turn_id=f'{entry.trigger.id}:{attempt}',
                attempt=attempt,
                backend=exchange.backend_name,
                preferred=exchange.backend_name == self._router.backends[0],
                duration_ms=round(seconds * 1000),
                exchanges=len(self._router.exchanges),
                answer=exchange.answer,
            )
        )

    async def _interrupted(self, entry: Entry) -> None:
        """Records an orderly cut-off. One by the supervisor, of a loop that was stuck, counts like a crash."""
        cut = self._cut
        try:
            if cut is not None and cut.cancels:
                session_id = self._router.session_id
                await self._queue.close(entry, 'cancelled', session_id, by=cut.by, error=cut.reason)
                return
            if cut is not None or self.stopping:
                await self._queue.interrupt(entry, 'pause' if cut is not None else 'stop')
        except StorageError as error:
            self._publish(WriteFailed.of(error, self._desk))
        self._tell_interrupted(entry, 'pause' if cut is not None else 'stop' if self.stopping else 'restart')

    def _tell_started(self, entry: Entry, attempt: int) -> None:
        now = self._clock.now()
        trigger = entry.trigger
        self._current = TurnStatus(trigger.id, attempt, now, None)
        self._publish(
            TurnStarted(
                desk=self._desk,
                session_id=self._router.session_id,
                trading_date=self._router.trading_date,
                trigger_id=trigger.id,
                turn_id=f'{trigger.id}:{attempt}',
                attempt=attempt,
                source=trigger.source,
                wait_ms=max(0, round((now - entry.due_at).total_seconds() * 1000)),
            )
        )

    def tell_cut_off(self) -> None:
        """Tells of the turns that a crash cut off."""
        for entry in self._queue.open_entries():
            if entry.in_the_air:
                self._tell_interrupted(entry, 'crash')

    def _tell_interrupted(self, entry: Entry, cause: Literal['crash', 'stop', 'restart', 'pause']) -> None:
        self._publish(
            TurnInterrupted(
                desk=self._desk,
                session_id=self._router.session_id,
                trading_date=self._router.trading_date,
                trigger_id=entry.trigger.id,
                turn_id=f'{entry.trigger.id}:{entry.attempts}',
                attempt=entry.attempts,
                cause=cause,
            )
        )


def _with_note(entry: Entry) -> Trigger:
    if not entry.cut_off:
        return entry.trigger
    text = CUT_OFF_NOTE.format(attempt=entry.attempts + 1, text=entry.trigger.text)
    return replace(entry.trigger, text=text)
