"""The triggers that a desk has accepted, from the moment that they are durable to their outcome.

`triggers.jsonl` holds a header and then what happened to each: accepted, started, interrupted, closed. At a
rollover it is linked into the archive and replaced by one with the open triggers and a week of ids.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import anyio

from trading_agent.clock import Clock, utc_text
from trading_agent.disk import Disk
from trading_agent.errors import DeskUnusable, StorageError
from trading_agent.events import Event, Outcome, TriggerAccepted, TriggerClosed, TriggerRefused, WriteFailed
from trading_agent.memory.trigger_entry import Closing, Entry, instant_of, records_of
from trading_agent.memory.trigger_log import Accepted, Closed, Interrupted, Record, Started, TriggerLog
from trading_agent.memory.trigger_order import TriggerOrder
from trading_agent.trigger import Receipt, RefusalReason, Trigger

__all__ = ['CUT_OFFS_ALLOWED', 'REMEMBERED', 'Closing', 'Entry', 'TriggerQueue']

REMEMBERED = timedelta(days=7)
"""How long the id of a closed trigger is kept beyond a rollover, so that a repeat is a duplicate."""

CUT_OFFS_ALLOWED = 3


class TriggerQueue:
    """One desk's accepted triggers.

    Args:
        folder: The desk's folder.
        desk: The desk's name.
        clock: For due times, expiry and the times in the file.
        publish: Where events go.
        disk: Where file work is done.
        limit: How many triggers may be open.
        max_size: The longest text, in bytes as UTF-8.
        on_ready: Called when there may be something new to run.
    """

    def __init__(
        self,
        folder: Path,
        desk: str,
        clock: Clock,
        publish: Callable[[Event], None],
        disk: Disk,
        *,
        limit: int = 1000,
        max_size: int = 1 << 20,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._desk = desk
        self._clock = clock
        self._publish = publish
        self._log = TriggerLog(folder, desk, publish, disk)
        self.limit = limit
        self.max_size = max_size
        self._on_ready = on_ready
        self._loaded = False
        self._loading = anyio.Lock()
        self._open: dict[str, Entry] = {}
        self._order = TriggerOrder(self._open, clock)
        self._forget()
        self._reserved: dict[str, anyio.Event] = {}
        self.stopping = False

    def _forget(self) -> None:
        self._open.clear()
        self._closed: dict[str, Closing] = {}
        self._order.clear()
        self._numbers = itertools.count()

    # -- reading -----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the file anew, closing a torn tail first; what is in memory is forgotten.

        Raises:
            StorageError: It cannot be read.
            DeskUnusable: A newer version of the program wrote it.
        """
        async with self._loading:
            self._loaded = False
            await self._log.read(self._restore)
        self._on_ready()

    async def _load_once(self) -> None:
        async with self._loading:
            if not self._loaded:
                await self._log.read(self._restore)

    def _restore(self, records: list[Record]) -> None:
        self._forget()
        for record in records:
            self._apply(record)
        for entry in self._open.values():
            self._order.add(entry)
        self._loaded = True

    def _apply(self, record: Record) -> None:
        match record:
            case Accepted(at=at, trigger=trigger):
                if trigger.id not in self._open and trigger.id not in self._closed:
                    self._open[trigger.id] = Entry(trigger, instant_of(at, trigger.received_at), next(self._numbers))
            case Started(id=trigger_id, attempt=attempt) if trigger_id in self._open:
                entry = self._open[trigger_id]
                entry.attempts = max(attempt, entry.attempts + 1)
                entry.cut_offs += 1
                entry.in_the_air = True
            case Interrupted(id=trigger_id, reason=reason) if trigger_id in self._open:
                self._open[trigger_id].interrupted(reason)
            case Closed(at=at, id=trigger_id, outcome=outcome, session_id=session_id):
                self._open.pop(trigger_id, None)
                self._closed[trigger_id] = Closing(outcome, session_id, at)
            case _:
                pass

    # -- accepting ---------------------------------------------------------------------------------------------

    async def accept(self, trigger: Trigger, *, own: bool = False) -> Receipt:
        """Makes a trigger durable, and says so; or says why not. One of the desk's own is taken whatever the bounds."""
        while not self._loaded or trigger.id in self._reserved:
            try:
                await self._load_once()
            except (StorageError, DeskUnusable) as error:
                return self._refuse(trigger, 'storage', str(error), error.hint)
            if trigger.id in self._reserved:
                await self._reserved[trigger.id].wait()
        # From here to the reservation nothing waits, so that of two equal triggers one is the first.
        if trigger.id in self._open or trigger.id in self._closed:
            return Receipt(trigger.id, self._desk, 'duplicate')
        refusal = None if own else self._refusal(trigger)
        if refusal is not None:
            return self._refuse(trigger, *refusal)
        self._reserved[trigger.id] = anyio.Event()
        try:
            now = self._clock.now()
            await self._log.append(Accepted(utc_text(now), trigger), apply=partial(self._accepted, trigger, now))
        except StorageError as error:
            return self._refuse(trigger, 'storage', str(error), error.hint)
        finally:
            self._reserved.pop(trigger.id).set()
        return Receipt(trigger.id, self._desk, 'accepted')

    def _refusal(self, trigger: Trigger) -> tuple[RefusalReason, str, str] | None:
        size = len(trigger.text.encode())
        if self.stopping:
            return 'stopping', 'the daemon is stopping', 'send it again when it runs'
        if size > self.max_size:
            return 'too_large', f'the text has {size} bytes, {self.max_size} are allowed', 'send it in parts'
        if trigger.expires_at is not None and trigger.expires_at <= self._clock.now():
            return 'expired', f'it expired at {utc_text(trigger.expires_at)}', ''
        if self.depth + len(self._reserved.keys() - self._open.keys()) >= self.limit:
            return 'queue_full', f'{self.limit} triggers are open', 'send it again later, or raise queue_limit'
        return None

    def _refuse(self, trigger: Trigger, reason: RefusalReason, error: str, hint: str) -> Receipt:
        self._publish(
            TriggerRefused(
                desk=self._desk, trigger_id=trigger.id, source=trigger.source, reason=reason, error=error, hint=hint
            )
        )
        return Receipt(trigger.id, self._desk, 'refused', reason)

    def _accepted(self, trigger: Trigger, now: datetime) -> None:
        entry = self._open[trigger.id] = Entry(trigger, now, next(self._numbers))
        self._order.add(entry)
        self._publish(
            TriggerAccepted(
                desk=self._desk,
                trigger_id=trigger.id,
                source=trigger.source,
                priority=trigger.priority,
                text=trigger.text,
                queue_depth=self.depth,
            )
        )
        self._on_ready()

    # -- taking ------------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """How many triggers are open: they wait, or run."""
        return len(self._open)

    @property
    def oldest(self) -> Entry | None:
        """The open trigger that came first."""
        return next(iter(self._open.values()), None)

    def longest_due(self, now: datetime) -> Entry | None:
        """Returns the open trigger that has been due for longest, or None when none is due."""
        due = (entry for entry in self._open.values() if entry.due_at <= now)
        return min(due, key=lambda entry: entry.due_at, default=None)

    def entry(self, trigger_id: str) -> Entry | None:
        """Returns an open trigger, or None."""
        return self._open.get(trigger_id)

    def closing(self, trigger_id: str) -> Closing | None:
        """Returns how a trigger ended; None when it is open, not known, or closed more than a week before."""
        return self._closed.get(trigger_id)

    def open_entries(self) -> Iterator[Entry]:
        """Yields the open triggers in the order in which they came."""
        yield from list(self._open.values())

    def head(self) -> Entry | None:
        """Returns the trigger that is to run next, or None when none is due. It stays in the queue."""
        return self._order.head()

    def batch(self) -> list[Entry]:
        """Returns the triggers to run next as one turn; more than one only where a feed's are gathered. They stay."""
        return self._order.batch()

    def expired(self) -> list[Entry]:
        """Returns the open triggers whose time is over, each once."""
        return self._order.expired()

    def next_instant(self) -> datetime | None:
        """Returns when the next waiting trigger is due, has waited for others long enough, or expires."""
        return self._order.next_instant()

    @property
    def collect(self) -> timedelta:
        """How long a feed's triggers wait for each other, to be run as one turn; zero for not at all."""
        return self._order.collect

    @collect.setter
    def collect(self, span: timedelta) -> None:
        self._order.collect = span

    # -- recording ---------------------------------------------------------------------------------------------

    async def start(self, entry: Entry, *others: Entry) -> int:
        """Records that a trigger is being run, and which others together with it.

        The records are left to the system to sync: losing them in a power cut means one more try, nothing else.

        Returns:
            Which attempt of the first one it is, from 1.
        """
        now = utc_text(self._clock.now())
        begun = [(each, each.attempts + 1) for each in (entry, *others)]
        records = [Started(now, each.trigger.id, attempt) for each, attempt in begun]
        await self._log.append(*records, apply=partial(self._started, begun), sync=False)
        return entry.attempts

    def _started(self, begun: list[tuple[Entry, int]]) -> None:
        for entry, attempt in begun:
            entry.attempts = attempt
            entry.cut_offs += 1
            entry.in_the_air = True
            if attempt == 1:
                self._order.begun(entry)

    async def interrupt(self, entry: Entry, reason: str = 'stop', *, others: Sequence[Entry] = ()) -> None:
        """Records that a run ended in order but without an answer: by a stop, or since no backend could answer.

        Args:
            entry: The trigger.
            reason: By what.
            others: Those that were run together with it.
        """
        now = utc_text(self._clock.now())
        ended = (entry, *others)
        records = [Interrupted(now, each.trigger.id, each.attempts, reason) for each in ended]
        await self._log.append(*records, apply=partial(_interrupted, ended, reason), sync=reason != 'no_backend')

    async def close(
        self,
        entry: Entry,
        outcome: Outcome,
        session_id: str | None = None,
        *,
        by: str = '',
        error: str = '',
        hint: str = '',
    ) -> None:
        """Records how a trigger ended, and tells it.

        `answered` is proved by its exchange, so its record need not be synced and its failure is only told; every
        other outcome is durable before anyone hears of it. Of two at once the first counts.

        Raises:
            StorageError: Another outcome than `answered` could not be recorded; the trigger is still open.
        """
        while entry.closing is not None:
            await entry.closing.wait()
        if self._open.get(entry.trigger.id) is not entry:
            return
        record = Closed(utc_text(self._clock.now()), entry.trigger.id, outcome, session_id)
        event = TriggerClosed(
            desk=self._desk,
            session_id=session_id,
            trigger_id=entry.trigger.id,
            outcome=outcome,
            by=by,
            error=error,
            hint=hint,
        )
        closing = entry.closing = anyio.Event()
        try:
            await self._log.append(record, apply=partial(self._closed_as, record, event), sync=outcome != 'answered')
        except StorageError as failure:
            if outcome != 'answered':
                self._order.add(entry)
                raise
            self._publish(WriteFailed.of(failure, self._desk))
            self._closed_as(record, event)
        finally:
            entry.closing = None
            closing.set()

    def _closed_as(self, record: Closed, event: TriggerClosed) -> None:
        self._apply(record)
        self._publish(event)

    async def archive(self, session_id: str) -> None:
        """Archives what happened in a session, and goes on with the open triggers and a week of ids.

        Safe to repeat after a crash in its middle.

        Raises:
            StorageError: It could not be done; everything is where it was, or linked into the archive already.
        """
        horizon = utc_text(self._clock.now() - REMEMBERED)
        if await self._log.archive(session_id, partial(self._kept, horizon)):
            # Not before: an id that the file still has must not be accepted again.
            self._closed = {key: closing for key, closing in self._closed.items() if closing.at >= horizon}

    def _kept(self, horizon: str) -> Iterator[Record]:
        for trigger_id, closing in self._closed.items():
            if closing.at >= horizon:
                yield Closed(closing.at, trigger_id, closing.outcome, closing.session_id)
        for entry in self._open.values():
            yield from records_of(entry)


def _interrupted(entries: Sequence[Entry], reason: str) -> None:
    for entry in entries:
        entry.interrupted(reason)
