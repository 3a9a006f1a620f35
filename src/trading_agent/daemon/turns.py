"""Runs a desk's triggers, one at a time, each to its outcome."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from typing import Literal

import anyio

from trading_agent import json_lines
from trading_agent.clock import Clock
from trading_agent.clock import trading_date as trading_date_of
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.conversation.records import TurnEnded
from trading_agent.daemon.status import TriggerResult, TurnStatus
from trading_agent.errors import NoBackend, OutcomeUnknown, StorageError, TurnRefused
from trading_agent.events import Event, TurnFinished, TurnInterrupted, TurnStarted, WriteFailed
from trading_agent.files import Disk
from trading_agent.memory.session_keeper import SessionKeeper
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.memory.trigger_queue import CUT_OFFS_ALLOWED, Entry, TriggerQueue
from trading_agent.messages import Usage
from trading_agent.routing.model_router import ModelRouter
from trading_agent.trigger import Trigger

UNKNOWN_NOTE = (
    '[The message below was cut off after these calls had been asked for; whether they took effect is not known:\n'
    '{calls}\n'
    'It is not run again. Find out what happened, and decide what is still to be done.]\n\n{text}'
)
_LONGEST_ERROR = 2000

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
        journals: The desk's journals.
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
        journals: JournalFolder,
        publish: Callable[[Event], None],
        clock: Clock,
        disk: Disk,
    ) -> None:
        self._desk = desk
        self._queue = queue
        self._store = store
        self._keeper = keeper
        self._router = router
        self._journals = journals
        self._publish = publish
        self._clock = clock
        self._disk = disk
        self._current: TurnStatus | None = None
        self._scope: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._cut: Cut | None = None
        self._running_id: str | None = None
        self._acted: dict[str, tuple[Sequence[str], str]] = {}
        self.stopping = False

    @property
    def current(self) -> TurnStatus | None:
        """The turn that is running, or None."""
        call = self._router.call
        if self._current is None or call is None:
            return self._current
        begun = self._current
        return TurnStatus(begun.trigger_id, begun.attempt, begun.started_at, call.backend, call.usage)

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
        """Closes each open trigger whose exchange is in a log: a crash came between the two.

        A turn that has its end in the journal, but no exchange, gets that first. One that a crash cut off after it
        had acted is closed as unknown.
        """
        oldest = self._queue.oldest
        if oldest is None:
            return
        since = trading_date_of(oldest.accepted_at) - timedelta(days=1)
        session_ids = await self._disk.run(self._store.session_ids)
        for number, session_id in enumerate(session_ids):
            if number and split_session_id(session_id)[0] < since:
                break
            for exchange in await self._disk.run(self._completed, session_id):
                entry = self._queue.entry(exchange.trigger_id) if exchange.trigger_id else None
                if entry is not None:
                    await self._queue.close(entry, 'answered', session_id)
            await self._close_if_unknown(session_id)

    async def _close_if_unknown(self, session_id: str) -> None:
        last = await self._disk.run(self._journals.last_turn, session_id)
        entry = self._queue.entry(last.begun.trigger_id) if last is not None else None
        if last is None or entry is None or not entry.in_the_air or last.begun.attempt != entry.attempts:
            return
        if last.effects and not isinstance(last.end, TurnEnded):
            calls = [
                f'{call.name}({json_lines.encode(call.arguments).decode().strip()[:300]})' for call in last.effects
            ]
            await self._close_unknown(entry, calls, 'a crash cut it off after it had acted')

    def _completed(self, session_id: str) -> list[Exchange]:
        exchanges = self._store.exchanges(session_id)
        last = self._journals.last_turn(session_id)
        journaled = last.exchange() if last is not None else None
        if journaled is None or journaled.trigger_id is None or self._queue.entry(journaled.trigger_id) is None:
            return exchanges
        if all(exchange.trigger_id != journaled.trigger_id for exchange in exchanges):
            self._store.append_exchange(session_id, journaled)
            exchanges.append(journaled)
        return exchanges

    async def run(self, entry: Entry) -> None:
        """Runs a trigger to its outcome.

        Raises:
            NoBackend: None could answer; the trigger stays where it is.
            StorageError: What happened could not be recorded; the trigger stays open.
        """
        if entry.trigger.id in self._acted:
            await self._close_unknown(entry, *self._acted[entry.trigger.id])
            return
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
        except OutcomeUnknown as error:
            await self._close_unknown(entry, error.calls, str(error))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._interrupted(entry, await self._router.cut_off(self._cause))
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
                **{kind: count for kind, count in (exchange.usage or {}).items() if kind in Usage.__struct_fields__},
            )
        )

    @property
    def _cause(self) -> Literal['cancelled', 'pause', 'stop', 'restart']:
        """What cuts off the running turn."""
        if self._cut is not None:
            return 'cancelled' if self._cut.cancels else 'pause'
        return 'stop' if self.stopping else 'restart'

    async def _close_unknown(self, entry: Entry, calls: Sequence[str], error: str) -> None:
        """Closes a trigger whose turn was cut off after it had acted: it is not run again, the desk decides.

        The desk is told by a trigger of its own, which is accepted first: a crash in between only repeats that.
        """
        digest = blake2b(f'{entry.trigger.id}:{entry.attempts}'.encode(), digest_size=12).hexdigest()
        told = UNKNOWN_NOTE.format(calls='\n'.join(f'- {call}' for call in calls), text=entry.trigger.text)
        follow_up = Trigger(
            told,
            self._desk,
            id=f'unknown-{digest}',
            source='unknown',
            priority=entry.trigger.priority,
            received_at=self._clock.now(),
        )
        self._acted[entry.trigger.id] = (calls, error)  # until it is closed, it is not run in any case
        receipt = await self._queue.accept(follow_up, own=True)
        if receipt.status == 'refused':
            raise NoBackend({'the queue': 'what is to be told to the desk could not be written down'})
        hint = f'look whether the calls were made; the desk is told by the trigger {follow_up.id}'
        named = ', '.join(call.partition('(')[0] for call in calls)  # what they were given is not for the log
        made = f'{error}; calls: {named}'[:_LONGEST_ERROR]
        await self._queue.close(entry, 'unknown', self._router.session_id, error=made, hint=hint)
        del self._acted[entry.trigger.id]

    async def _interrupted(self, entry: Entry, effects: Sequence[str]) -> None:
        """Records an orderly cut-off. One by the supervisor, of a loop that was stuck, counts like a crash."""
        cut = self._cut
        try:
            if effects and not (cut is not None and cut.cancels):
                await self._close_unknown(entry, effects, 'it was cut off after it had acted')
                return
            if cut is not None and cut.cancels:
                session_id = self._router.session_id
                await self._queue.close(entry, 'cancelled', session_id, by=cut.by, error=cut.reason)
                return
            if cut is not None or self.stopping:
                await self._queue.interrupt(entry, 'pause' if cut is not None else 'stop')
        except (StorageError, NoBackend) as error:
            if isinstance(error, StorageError):
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
