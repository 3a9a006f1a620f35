"""A host whose clock is set, suspended and slewed, and the dates that it must tell, by arithmetic alone."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta

from trading_agent.clock import IndiaClock, ManualClock, Steadiness

IST = timedelta(hours=5, minutes=30)


def date_in_india(seconds: float, rollover_at: timedelta) -> date:
    """Returns the trading date of an instant in seconds since the epoch, by arithmetic alone."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds) + IST - rollover_at).date()


class Host:
    """A machine: a boot clock that only goes on, a wall clock that is set and slewed, and how long settings lasted.

    All spans are eighths of a second, which binary fractions hold exactly.
    """

    def __init__(self, start: float) -> None:
        self.booted = 1000.0
        self.offset = start - self.booted
        self.restart()

    def restart(self) -> None:
        """Lets the program be started anew: it takes the clock as it finds it."""
        self.settings = [(self.booted, self.offset)]
        self.clock = IndiaClock(lambda: self.booted + self.offset, lambda: self.booted)

    def step(self, by: float) -> None:
        self.offset += by
        self.settings.append((self.booted, self.offset))

    def slew(self, by: float) -> None:
        self.offset += by
        self.settings[-1] = (self.settings[-1][0], self.offset)

    @property
    def steady(self) -> bool:
        return len(self.settings) == 1 or self.booted - self.settings[-1][0] >= 60

    def trusted(self, rollover_at: timedelta) -> date:
        """Returns the date by the newest setting that has lasted a minute, or by the first one."""
        ends = [since for since, _ in self.settings[1:]] + [self.booted]
        lasted = [
            offset
            for number, ((since, offset), end) in enumerate(zip(self.settings, ends, strict=True))
            if number == 0 or end - since >= 60
        ]
        return date_in_india(self.booted + lasted[-1], rollover_at)


class HostClock(ManualClock):
    """The clock that a program has on a `Host`, which is moved as a `ManualClock` is."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self.host = Host(start.timestamp())

    def now(self) -> datetime:
        return self.host.clock.now()

    def trusted_date(self, rollover_at: timedelta) -> date:
        return self.host.clock.trusted_date(rollover_at)

    def steadiness(self) -> Steadiness:
        return self.host.clock.steadiness()

    def advance(self, to: datetime | timedelta) -> None:
        span = to if isinstance(to, timedelta) else to - self.now()
        # Crystals are no better than this, and a time service corrects them bit by bit.
        while span > timedelta(days=1):
            self._pass(timedelta(days=1))
            span -= timedelta(days=1)
        self._pass(span)

    def _pass(self, span: timedelta) -> None:
        self.host.booted += round(span.total_seconds() * 8) / 8
        self.host.slew(0.125)
        self.now()

    def step(self, by: timedelta) -> None:
        seconds = round(by.total_seconds() * 8) / 8
        if abs(seconds) > IndiaClock.TOLERANCE_SECONDS:
            self.host.step(seconds)
        else:
            self.host.slew(seconds)
        self.now()


@contextmanager
def host_zone(name: str) -> Iterator[None]:
    """Lets this process run on a host of another zone."""
    before = os.environ.get('TZ')
    os.environ['TZ'] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ['TZ']
        else:
            os.environ['TZ'] = before
        time.tzset()
