"""How the daemon is, told again and again: heartbeat, disk space, and what systemd wants to hear."""

import os
from collections.abc import Callable
from datetime import datetime, time
from pathlib import Path
from typing import Literal

import anyio

from trading_agent import __version__
from trading_agent.clock import INDIA, Clock
from trading_agent.config import Config
from trading_agent.daemon.desk import Desk
from trading_agent.daemon.scheduler import STEPPED_FOR
from trading_agent.daemon.supervisor import Supervisor
from trading_agent.disk import Disk
from trading_agent.event_bus import EventBus
from trading_agent.events import DaemonHeartbeat, DiskLow
from trading_agent.systemd import Notifier

LOOK_SECONDS = 1.0
"""How often it is looked whether a heartbeat is due: how soon a changed `heartbeat_every` counts."""

DISK_SECONDS = 10.0
DISK_AGAIN_SECONDS = 600.0
"""How often a disk that stays low is told again."""

MARKET_OPENS = time(9, 15)
MARKET_CLOSES = time(15, 30)
"""The regular session of the NSE's equity segment, IST (nseindia.com, Market Timings)."""


class Vitals:
    """Tells how the daemon is.

    Args:
        config: Returns the configuration in force.
        supervisor: The desks.
        bus: Where events go.
        clock: What time it is.
        disk: Where file work is done.
        notifier: Tells systemd.
        beats: Returns when the parts that the watchdog attests were last alive, in event-loop time.
    """

    def __init__(
        self,
        *,
        config: Callable[[], Config],
        supervisor: Supervisor,
        bus: EventBus,
        clock: Clock,
        disk: Disk,
        notifier: Notifier,
        beats: Callable[[], list[float]],
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._bus = bus
        self._clock = clock
        self._disk = disk
        self._notifier = notifier
        self._beats = beats
        self._low_since: float | None = None

    async def run(self) -> None:
        """Tells until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._heartbeat)
            tasks.start_soon(self._watch_disk)
            if self._notifier.watchdog_seconds is not None:
                tasks.start_soon(self._feed_watchdog, self._notifier.watchdog_seconds)

    def in_words(self) -> str:
        """Returns the daemon's state in one line."""
        desks = self._supervisor.desks.values()
        told = f'{len(desks)} desks, {sum(desk.queue.depth for desk in desks)} triggers open'
        for state in ('paused', 'parked'):
            names = [desk.name for desk in desks if desk.state == state]
            told += f'; {state.upper()}: {", ".join(names)}' if names else ''
        return told

    async def _heartbeat(self) -> None:
        told_at = anyio.current_time()
        while True:
            while (left := told_at + self._config().heartbeat_every - anyio.current_time()) > 0:  # noqa: ASYNC110
                # Not for the whole time at once: the configuration may change meanwhile.
                await anyio.sleep(min(left, LOOK_SECONDS))
            told_at = anyio.current_time()
            space = await self._disk.run(_space, self._config().workspace)
            self._bus.publish(self._beat(space[0] if space else None))
            self._notifier.send(f'STATUS={self.in_words()}')

    def _beat(self, free: int | None) -> DaemonHeartbeat:
        desks = list(self._supervisor.desks.values())
        states = [desk.state for desk in desks]
        now = self._clock.now()
        waiting = ((desk.queue.longest_due(now), desk.name) for desk in desks if desk.state != 'paused')
        oldest = min(((entry.due_at, name) for entry, name in waiting if entry is not None), default=None)
        return DaemonHeartbeat(
            version=__version__,
            desks_running=states.count('running') + states.count('starting'),
            desks_paused=states.count('paused'),
            desks_parked=states.count('parked'),
            turns_running=sum(desk.turn is not None for desk in desks),
            queue_depth=sum(desk.queue.depth for desk in desks),
            oldest_trigger_age_ms=round((now - oldest[0]).total_seconds() * 1000) if oldest else None,
            oldest_trigger_desk=oldest[1] if oldest else None,
            summaries_owed=sum(desk.summaries_owed for desk in desks),
            disk_free_bytes=free,
            clock_state='behind' if any(map(self._is_behind, desks)) else clock_state(self._clock),
            market_hours=market_hours(now),
            rss_bytes=_resident_bytes(),
            events_skipped=self._bus.events_skipped,
        )

    def _is_behind(self, desk: Desk) -> bool:
        today = self._clock.trusted_date(desk.settings.rollover_at)
        return desk.session_date is not None and desk.session_date > today

    async def _watch_disk(self) -> None:
        while True:
            space = await self._disk.run(_space, self._config().workspace)
            if space is not None:
                self._tell_low(*space)
            await anyio.sleep(DISK_SECONDS)

    def _tell_low(self, free: int, size: int) -> None:
        config = self._config()
        percent = 100 * free / size if size else 100.0
        if free >= config.disk_low and percent >= config.disk_low_percent:
            self._low_since = None
            return
        now = anyio.current_time()
        if self._low_since is None or now - self._low_since >= DISK_AGAIN_SECONDS:
            self._low_since = now
            hint = 'free some space or grow the disk; at zero nothing more is accepted (disk_low, disk_low_percent)'
            self._bus.publish(
                DiskLow(
                    path=str(config.workspace), disk_free_bytes=free, disk_free_percent=round(percent, 1), hint=hint
                )
            )

    async def _feed_watchdog(self, seconds: float) -> None:
        """Attests that the supervisor, the scheduler and the control socket are alive; never a single desk."""
        while True:
            if min(self._beats()) > anyio.current_time() - seconds / 2:
                self._notifier.send('WATCHDOG=1')
            await anyio.sleep(seconds / 4)


def clock_state(clock: Clock) -> Literal['steady', 'stepped']:
    """Returns `stepped` within a minute of a step, else `steady`."""
    steadiness = clock.steadiness()
    return 'stepped' if steadiness.step and clock.now() - steadiness.since < STEPPED_FOR else 'steady'


def market_hours(instant: datetime) -> bool:
    """Returns whether the NSE trades shares at an instant, if that day is no holiday: those are not known here."""
    in_india = instant.astimezone(INDIA)
    return in_india.weekday() < 5 and MARKET_OPENS <= in_india.time() < MARKET_CLOSES


def _space(folder: Path) -> tuple[int, int] | None:
    """Returns the bytes that are free for an ordinary user, and all (statvfs(3))."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def _resident_bytes() -> int:
    """Reads the second field of /proc/self/statm, in pages (proc(5)); 0 where it cannot be read."""
    try:
        return int(Path('/proc/self/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')
    except (OSError, ValueError, IndexError):
        return 0  # no files may be left to open; the heartbeat matters more
