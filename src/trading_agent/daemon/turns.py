"""Runs a desk's triggers, one turn at a time, each trigger to its outcome."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import anyio
import msgspec

from trading_agent.clock import Clock
from trading_agent.daemon.status import TriggerResult, TurnStatus
from trading_agent.daemon.turn_news import CutBy, TurnNews
from trading_agent.daemon.unknown_outcomes import UnknownOutcomes
from trading_agent.disk import Disk
from trading_agent.errors import NoBackend, OutcomeUnknown, StorageError, TurnRefused
from trading_agent.events import Event, WriteFailed
from trading_agent.memory.exchange import answer_to
from trading_agent.memory.gathering import gathered
from trading_agent.memory.session_keeper import SessionKeeper
from trading_agent.memory.session_store import SessionStore
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
        unknown: Closes those that had acted when they were cut off.
        news: Tells what happens.
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
        unknown: UnknownOutcomes,
        news: TurnNews,
        publish: Callable[[Event], None],
        clock: Clock,
        disk: Disk,
    ) -> None:
        self._desk = desk
        self._queue = queue
        self._store = store
        self._keeper = keeper
        self._router = router
        self._unknown = unknown
        self._news = news
        self._publish = publish
        self._clock = clock
        self._disk = disk
        self._current: TurnStatus | None = None
        self._scope: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._cut: Cut | None = None
        self._running: Sequence[Entry] = ()
        self.stopping = False

    @property
    def current(self) -> TurnStatus | None:
        """The turn that is running, or None."""
        call = self._router.call
        if self._current is None or call is None:
            return self._current
        return msgspec.structs.replace(self._current, backend=call.backend, usage=call.usage)

    async def result_of(self, trigger_id: str) -> TriggerResult | None:
        """Returns how a trigger ended, with its answer; None while it is open or when it is not known."""
        closing = self._queue.closing(trigger_id)
        if closing is None:
            return None
        if closing.outcome != 'answered' or closing.session_id is None:
            return TriggerResult(closing.outcome, session_id=closing.session_id)
        exchange = answer_to(await self._disk.run(self._store.exchanges, closing.session_id), trigger_id)
        if exchange is None:
            return TriggerResult('answered', session_id=closing.session_id)
        return TriggerResult('answered', exchange.answer, exchange.backend_name, closing.session_id)

    async def run(self, batch: Sequence[Entry]) -> None:
        """Runs triggers to their outcome, as one turn.

        Args:
            batch: One trigger; or several of a feed that were never started, in order.

        Raises:
            NoBackend: None could answer; the triggers stay where they are.
            StorageError: What happened could not be recorded; the triggers stay open.
        """
        first = batch[0]
        if self._unknown.holds(first):
            await self._unknown.close_again(first)
            return
        if first.cut_offs >= CUT_OFFS_ALLOWED:
            await self._queue.close(
                first,
                'quarantined',
                self._router.session_id,
                error=f'it was cut off {first.cut_offs} times',
                hint='look at it in triggers.jsonl; send it again under another id when it is harmless',
            )
            return
        self._ended = anyio.Event()
        self._cut = None
        try:
            # Cut off by a person in here, the desk goes on with whatever is next.
            with anyio.CancelScope() as self._scope:
                async with self._keeper.turn():
                    batch, prepared = await self._prepared(batch)
                    if batch:
                        await self._run_prepared(batch, prepared)
        finally:
            self._scope = self._current = None
            self._running = ()
            self._ended.set()

    async def _prepared(self, batch: Sequence[Entry]) -> tuple[Sequence[Entry], Trigger]:
        """Returns those triggers that are still to be run, and what the desk is told: getting there can take long."""
        while True:
            prepared = await self._keeper.prepare(_message(batch))
            left = await self._still_to_run(batch)
            if len(left) in (0, len(batch)):
                return left, prepared
            batch = left

    async def _still_to_run(self, batch: Sequence[Entry]) -> list[Entry]:
        now = self._clock.now()
        for entry in batch:
            expires_at = entry.trigger.expires_at
            if self._is_open(entry) and expires_at is not None and expires_at <= now:
                await self._queue.close(entry, 'stale', self._router.session_id)
        return [entry for entry in batch if self._is_open(entry)]

    def _is_open(self, entry: Entry) -> bool:
        return entry.closing is None and self._queue.entry(entry.trigger.id) is entry

    async def _run_prepared(self, batch: Sequence[Entry], prepared: Trigger) -> None:
        self._running = batch  # from here on they are cancelled by cutting them off
        first, ids = batch[0], [entry.trigger.id for entry in batch]
        attempt = await self._queue.start(*batch)
        began, now = anyio.current_time(), self._clock.now()
        gathered_ids = ids if len(ids) > 1 else []
        self._current = TurnStatus(ids[0], attempt, now, None, trigger_ids=gathered_ids or msgspec.UNSET)
        self._news.started(first, attempt, len(batch), now)
        try:
            exchange = await self._router.run(prepared, attempt=attempt, trigger_ids=gathered_ids)
        except (NoBackend, StorageError):
            # Nothing was answered, and nothing was cut off: it counts for nothing.
            await self._queue_interrupt('no_backend')
            raise
        except TurnRefused as error:
            for entry in batch:
                await self._queue.close(entry, 'failed', self._router.session_id, error=str(error), hint=error.hint)
        except OutcomeUnknown as error:
            await self._unknown.close(batch, f'{ids[0]}:{attempt}', error.calls, str(error))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._interrupted(attempt, await self._router.cut_off(self._cause))
            raise
        # Shielded, and nothing waits between the exchange and here: an answered trigger is closed.
        else:
            with anyio.CancelScope(shield=True):
                for entry in batch:
                    await self._queue.close(entry, 'answered', self._router.session_id)
                self._news.finished(ids[0], attempt, len(batch), exchange, anyio.current_time() - began)

    async def cut_off(self, cut: Cut, trigger_id: str | None = None) -> None:
        """Ends the running turn before it is answered, and returns once it has ended, in whatever way.

        Args:
            cut: Who asked for it, and whether the trigger is to be run again or is cancelled.
            trigger_id: Only where the turn is this trigger's, and no other's that is open; None for any.
        """
        if self._scope is None:
            return
        if trigger_id is not None and [each.trigger.id for each in self._running if self._is_open(each)] != [
            trigger_id
        ]:
            return
        self._cut = cut
        self._scope.cancel()
        await self._ended.wait()

    @property
    def _cause(self) -> Literal['cancelled', 'pause', 'stop', 'restart']:
        """What cuts off the running turn."""
        if self._cut is not None:
            return 'cancelled' if self._cut.cancels else 'pause'
        return 'stop' if self.stopping else 'restart'

    async def _interrupted(self, attempt: int, effects: Sequence[str]) -> None:
        """Records an orderly cut-off. One by the supervisor, of a loop that was stuck, counts like a crash."""
        cut = self._cut
        turn_id = f'{self._running[0].trigger.id}:{attempt}'
        try:
            if effects and not (cut is not None and cut.cancels):
                await self._unknown.close(self._running, turn_id, effects, 'it was cut off after it had acted')
                return
            if cut is not None and cut.cancels:
                session_id = self._router.session_id
                for entry in self._running:
                    await self._queue.close(entry, 'cancelled', session_id, by=cut.by, error=cut.reason)
                return
            if cut is not None or self.stopping:
                await self._queue_interrupt('pause' if cut is not None else 'stop')
        except (StorageError, NoBackend) as error:
            if isinstance(error, StorageError):
                self._publish(WriteFailed.of(error, self._desk))
        cause: CutBy = 'pause' if cut is not None else 'stop' if self.stopping else 'restart'
        self._news.interrupted(self._running[0].trigger.id, attempt, len(self._running), cause)

    async def _queue_interrupt(self, reason: str) -> None:
        """Records that the running turn ended without an answer, for those of its triggers that are still open."""
        left = [entry for entry in self._running if self._is_open(entry)]
        if left:
            await self._queue.interrupt(left[0], reason, others=left[1:])


def _message(batch: Sequence[Entry]) -> Trigger:
    first = batch[0]
    if not first.cut_off:
        return gathered([entry.trigger for entry in batch])
    text = CUT_OFF_NOTE.format(attempt=first.attempts + 1, text=first.trigger.text)
    return replace(first.trigger, text=text)
