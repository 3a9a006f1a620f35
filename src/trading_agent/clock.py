"""What time it is in India, and which trading date can be trusted.

Stored instants are UTC. Trading dates are India dates (`Asia/Kolkata`: UTC+05:30 without daylight saving since
1945, IANA tz database). The host's own zone never matters.
"""

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, date, datetime, timedelta, timezone, tzinfo
from datetime import time as time_of_day
from typing import Protocol
from zoneinfo import ZoneInfo

import anyio


def _india() -> tzinfo:
    try:
        return ZoneInfo('Asia/Kolkata')
    except Exception:  # noqa: BLE001 - a damaged file raises what its reader happens to meet
        # Neither the host nor the tzdata package has it whole; the offset has not changed for 80 years.
        return timezone(timedelta(hours=5, minutes=30), 'IST')


INDIA = _india()

LONGEST_READING_SECONDS = 0.1
"""Both clocks are read again where reading them took longer: the process was held up in between."""

MOST_READINGS = 20


def utc_text(instant: datetime) -> str:
    """Returns an instant as it is stored: ISO 8601 in UTC, in microseconds, with `Z`."""
    return instant.astimezone(UTC).isoformat(timespec='microseconds').replace('+00:00', 'Z')


def instant_in(text: str) -> datetime | None:
    """Reads a stored instant; None where it is none, has no zone, or cannot be told in every other zone.

    That is so in the first and the last year of the calendar.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if instant.utcoffset() is None or not 1 < instant.year < MAXYEAR else instant


def trading_date(instant: datetime, rollover_at: timedelta = timedelta()) -> date:
    """Returns the trading date of an instant.

    Args:
        instant: Any instant with a zone.
        rollover_at: How long after midnight IST the new date begins, from 0 to 11:59 hours.
    """
    return (instant.astimezone(INDIA) - rollover_at).date()


def boundary_after(instant: datetime, rollover_at: timedelta = timedelta()) -> datetime:
    """Returns when the trading date after the one of `instant` begins, in UTC."""
    next_date = trading_date(instant, rollover_at) + timedelta(days=1)
    return (datetime.combine(next_date, time_of_day(), INDIA) + rollover_at).astimezone(UTC)


@dataclass(frozen=True)
class Steadiness:
    """Since when a clock has run without a step.

    Attributes:
        since: The instant, by the clock itself: its start or its last step.
        step: The size of that step in seconds, positive when the clock went forward; 0 at the start.
    """

    since: datetime
    step: float = 0.0


class Clock(Protocol):
    """What the daemon asks of a clock."""

    def now(self) -> datetime:
        """Returns the instant it is, in UTC."""
        ...

    def trusted_date(self, rollover_at: timedelta) -> date:
        """Returns the trading date that may be acted upon: a step of the clock counts only once it has lasted."""
        ...

    def steadiness(self) -> Steadiness:
        """Returns since when the clock has run without a step."""
        ...

    async def sleep_until(self, instant: datetime) -> None:
        """Returns once `now()` is `instant` or later, also when the host slept or its clock was set."""
        ...


class IndiaClock:
    """The host's clock, watched for steps.

    CLOCK_BOOTTIME goes on while the host is suspended and is never set, so wall time minus boot time changes only
    when somebody sets the wall clock (clock_gettime(2)). A change of more than 2 s is a step. For a minute after
    one, the trading date is still told by the old setting.

    Args:
        wall: Returns the wall clock, in seconds since the epoch. Tests replace it.
        boot: Returns a clock that is never set and counts suspended time, in seconds. Tests replace it.
        settle: How long a step must last before its date counts.
        hop: The longest single sleep: how late a suspend or a step is noticed.
    """

    TOLERANCE_SECONDS = 2.0

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        settle: timedelta = timedelta(minutes=1),
        hop: timedelta = timedelta(seconds=1),
    ) -> None:
        self._wall = wall
        self._boot = boot
        self._settle = settle.total_seconds()
        self._hop = hop.total_seconds()
        now, boot_now = self._read()
        self._offset = now - boot_now
        self._trusted_offset = self._offset
        self._steady_from = boot_now
        self._steadiness = Steadiness(_instant(now))

    def now(self) -> datetime:
        """Returns the host's wall clock, in UTC."""
        return _instant(self._look()[0])

    def trusted_date(self, rollover_at: timedelta) -> date:
        """Returns the trading date; for a minute after a step, the one that the old setting would have told."""
        now, boot_now = self._look()
        if self._trusted_offset != self._offset:
            now = boot_now + self._trusted_offset
        return trading_date(_instant(now), rollover_at)

    def steadiness(self) -> Steadiness:
        """Returns the last step, or the start."""
        self._look()
        return self._steadiness

    async def sleep_until(self, instant: datetime) -> None:
        """Sleeps in short hops, for a timer of the event loop does not count suspended time."""
        while (left := (instant - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - nothing tells of a suspend
            await anyio.sleep(min(left, self._hop))

    def _read(self) -> tuple[float, float]:
        """Returns wall time and boot time of one instant: a process held up between the two would see a step."""
        span, now, boot_now = math.inf, 0.0, 0.0
        for _ in range(MOST_READINGS):
            before, wall, after = self._boot(), self._wall(), self._boot()
            if after - before < span:
                span, now, boot_now = after - before, wall, before
            if span < LONGEST_READING_SECONDS:
                break
        return now, boot_now

    def _look(self) -> tuple[float, float]:
        now, boot_now = self._read()
        if boot_now - self._steady_from >= self._settle:
            self._trusted_offset = self._offset
        drift = now - boot_now - self._offset
        if abs(drift) > self.TOLERANCE_SECONDS:
            self._offset += drift
            self._steady_from = boot_now
            self._steadiness = Steadiness(_instant(now), drift)
        else:
            # A clock that is slewed drifts by less than the tolerance at a time: follow it, so that months of it
            # never add up to a step, nor hide one.
            trusted = self._trusted_offset == self._offset
            self._offset += drift
            if trusted:
                self._trusted_offset = self._offset
        return now, boot_now


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class ManualClock:
    """A clock that goes only when it is told to: for tests and for `replay`.

    Args:
        start: The instant it shows first, with a zone.
    """

    def __init__(self, start: datetime) -> None:
        self._now = start.astimezone(UTC)
        self._steadiness = Steadiness(self._now)
        self._sleepers: list[tuple[datetime, int, anyio.Event]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        """Returns the instant that was set last."""
        return self._now

    def trusted_date(self, rollover_at: timedelta) -> date:
        """Returns the trading date; a manual clock is always trusted."""
        return trading_date(self._now, rollover_at)

    def steadiness(self) -> Steadiness:
        """Returns the last `step`, or the start."""
        return self._steadiness

    async def sleep_until(self, instant: datetime) -> None:
        """Returns once the clock was moved to `instant` or past it."""
        while instant > self._now:
            event = anyio.Event()
            heapq.heappush(self._sleepers, (instant, next(self._order), event))
            await event.wait()

    def advance(self, to: datetime | timedelta) -> None:
        """Lets time pass: to an instant no earlier than now, or by a span, and wakes who waited for it.

        Raises:
            ValueError: That instant is in the past.
        """
        instant = self._now + to if isinstance(to, timedelta) else to.astimezone(UTC)
        if instant < self._now:
            raise ValueError(f'the clock shows {self._now} already; use step() to set it back to {instant}')
        self._now = instant
        self._wake()

    def step(self, by: timedelta) -> None:
        """Sets the clock forward or back, as somebody who corrects a wrong clock does."""
        self._now += by
        self._steadiness = Steadiness(self._now, by.total_seconds())
        self._wake()

    def _wake(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._now:
            heapq.heappop(self._sleepers)[2].set()
