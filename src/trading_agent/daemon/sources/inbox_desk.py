"""The one who empties a single desk's inbox. Each desk has its own, so that none waits for another."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import EACCES, EPERM
from typing import Literal

import anyio

from trading_agent.clock import Clock, trading_date
from trading_agent.daemon.sources.inbox_file import (
    SOURCE,
    Found,
    Rejection,
    derived_id,
    most_bytes,
    rejection_by_desk,
    rejection_unread,
    trigger_from,
)
from trading_agent.daemon.sources.inbox_folder import InboxFolder
from trading_agent.disk import Disk
from trading_agent.errors import StorageError
from trading_agent.event_bus import EventBus
from trading_agent.events import ComponentFailed, TriggerRefused, WriteFailed
from trading_agent.trigger import Trigger, storable

Identity = tuple[int, int]
Verdict = Rejection | Literal['done']

EMPTY_PATIENCE = 10
"""How many times longer an empty file is waited for: `command > inbox/a.txt` makes it before it has anything to say."""


class _BackOff:
    """How long to wait before the next try, in seconds: 1, 2, 4 … 30."""

    def __init__(self) -> None:
        self._next = 1.0

    def next(self) -> float:
        delay, self._next = self._next, min(30.0, self._next * 2)
        return delay

    def reset(self) -> None:
        self._next = 1.0


@dataclass
class _Entry:
    """What is known of one thing in the inbox, for as long as it lies there unchanged.

    Attributes:
        found: The thing.
        due: When it is looked at next, on the loop's clock.
        verdict: What became of it, once that is known: then only the move is outstanding.
        failure_told: Whether somebody was told that it could not be read, sent or moved.
    """

    found: Found
    due: float
    verdict: Verdict | None = None
    failure_told: bool = False
    back_off: _BackOff = field(default_factory=_BackOff)


class DeskInbox:
    """Sends what comes to rest in a desk's inbox, in the order in which it was written, and files it away.

    Args:
        desk: The desk's name.
        folder: Its inbox.
        bus: Takes the triggers.
        clock: Dates what is received and filed.
        disk: Runs what blocks.
        max_size: The longest text, in bytes as UTF-8.
        settle_seconds: How long a file's size and time of writing must rest before it counts.
        on_look: Is told which folder was seen: its device and inode, or None where it is unusable.
    """

    def __init__(
        self,
        desk: str,
        folder: InboxFolder,
        bus: EventBus,
        clock: Clock,
        disk: Disk,
        *,
        max_size: int,
        settle_seconds: float,
        on_look: Callable[[Identity | None], None],
    ) -> None:
        self._desk = desk
        self._folder = folder
        self._bus = bus
        self._clock = clock
        self._disk = disk
        self._max_size = max_size
        self._settle = settle_seconds
        self._on_look = on_look
        self._entries: dict[str, _Entry] = {}
        self._woken = anyio.Event()
        self._stopping = False
        self._sending_from = -math.inf
        self._sending_back_off = _BackOff()
        self._round_back_off = _BackOff()
        self._trouble_told = False
        self._skipped_told = False

    def wake(self) -> None:
        """Asks for a look at the folder."""
        self._woken.set()

    def stop(self) -> None:
        """Lets `run` return after the file at hand."""
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Looks whenever it is woken or something is due, until it is stopped. Nothing that fails ends it."""
        while not self._stopping:
            self._woken = anyio.Event()
            try:
                wait = await self._round()
            except Exception as error:  # noqa: BLE001 - it must go on, and the others too
                wait = self._round_failed(error)
            with anyio.move_on_after(wait):
                await self._woken.wait()

    async def _round(self) -> float:
        """Looks at the folder and handles what is due; returns for how many seconds there is nothing to do."""
        look = await self._disk.run(self._folder.look)
        self._on_look(look.identity)
        self._round_back_off.reset()
        self._trouble_told = False
        if look.error is not None and not self._skipped_told:
            self._tell_failure(look.error)
        self._skipped_told = look.error is not None
        now = anyio.current_time()
        before, self._entries = self._entries, {}
        for found in look.found:
            entry = before.get(found.name)
            self._entries[found.name] = entry if entry and entry.found == found else _Entry(found, self._rested(found))
        due = [entry for entry in self._entries.values() if entry.due <= now]
        for entry in sorted(due, key=lambda entry: (entry.found.mtime_ns, entry.found.name)):
            if self._stopping:
                break
            if self._ready_at(entry) <= anyio.current_time():
                await self._handle(entry)
        return min(map(self._ready_at, self._entries.values()), default=math.inf) - anyio.current_time()

    def _round_failed(self, error: Exception) -> float:
        if isinstance(error, StorageError):
            self._on_look(None)
        if not self._trouble_told:
            self._trouble_told = True
            self._tell_failure(error)
        return self._round_back_off.next()

    def _rested(self, found: Found) -> float:
        patience = EMPTY_PATIENCE if found.kind == 'file' and not found.size else 1
        return anyio.current_time() + self._settle * patience

    def _ready_at(self, entry: _Entry) -> float:
        return entry.due if entry.verdict else max(entry.due, self._sending_from)

    async def _handle(self, entry: _Entry) -> None:
        try:
            if not entry.verdict:
                entry.verdict = await self._verdict(entry)
            if entry.verdict:
                await self._file_away(entry.found, entry.verdict)
                del self._entries[entry.found.name]
        except Exception as error:  # noqa: BLE001 - one file must not hold up the next
            entry.due = anyio.current_time() + entry.back_off.next()
            if not entry.failure_told:
                entry.failure_told = True
                self._tell_failure(error)

    async def _verdict(self, entry: _Entry) -> Verdict | None:
        """Sends what a file says, where it says something; returns None where that is for later or never."""
        found = entry.found
        rejection = rejection_unread(found, self._max_size)
        if rejection is not None:
            self._tell_rejection(found, rejection)
            if found.is_movable:
                return rejection
            entry.due = math.inf
            return None
        opened = await self._disk.run(self._open, found)
        if opened is None:
            entry.due = self._rested(found)
            return None
        if isinstance(opened, Rejection):
            self._tell_rejection(found, opened)
            return opened
        return await self._send(found, opened)

    def _open(self, found: Found) -> Trigger | Rejection | None:
        try:
            content = self._folder.read(found, most_bytes(found, self._max_size))
        except StorageError as error:
            if error.errno not in (EACCES, EPERM):
                raise
            hint = "let the daemon's user read it, and move it back into the inbox"
            return Rejection('invalid', f'{found.name!r} may not be read', hint)
        if content is None:
            return None
        return trigger_from(found, content, desk=self._desk, received_at=self._clock.now(), max_size=self._max_size)

    async def _send(self, found: Found, trigger: Trigger) -> Verdict | None:
        receipt = await self._bus.send(trigger)
        # An inbox belongs to a desk that is configured: one that the bus does not know is on its way in or out.
        if receipt.try_again or receipt.reason == 'unknown_desk':
            # It is about the desk and not the file: the files behind this one wait too, and keep their order.
            self._sending_from = anyio.current_time() + self._sending_back_off.next()
            return None
        self._sending_back_off.reset()
        return rejection_by_desk(found, receipt.reason) if receipt.status == 'refused' else 'done'

    async def _file_away(self, found: Found, verdict: Verdict) -> None:
        if isinstance(verdict, Rejection):
            await self._disk.run(self._folder.to_rejected, found, verdict)
        else:
            await self._disk.run(self._folder.to_done, found, trading_date(self._clock.now()))

    def _tell_rejection(self, found: Found, rejection: Rejection) -> None:
        self._bus.publish(
            TriggerRefused(
                desk=self._desk,
                trigger_id=derived_id(found),
                source=SOURCE,
                reason=rejection.reason,
                error=storable(rejection.error),
                hint=storable(rejection.hint),
            )
        )

    def _tell_failure(self, error: Exception) -> None:
        if isinstance(error, StorageError):
            self._bus.publish(WriteFailed.of(error, self._desk))
            return
        self._bus.publish(
            ComponentFailed(
                desk=self._desk,
                component=SOURCE,
                error_type=type(error).__name__,
                error=storable(str(error)),
                hint='the file stays in the inbox and is tried again',
            )
        )
