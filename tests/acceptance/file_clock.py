"""A clock for a daemon in a process of its own, set by a file."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path


class FileClock:
    """A clock that goes as the host's does, at another time: for a process run as `program`.

    Args:
        file: Where it tells the process its time.
        at: What it shows now.
    """

    def __init__(self, file: Path, at: datetime) -> None:
        self._file = file
        self._wall = at.timestamp() - time.time()
        self._boot = 0.0
        self._tell()

    def _tell(self) -> None:
        temporary = self._file.with_suffix('.tmp')
        temporary.write_text(f'{self._wall} {self._boot}')
        temporary.replace(self._file)

    @property
    def program(self) -> list[str]:
        """What Python runs to follow this clock."""
        return [str(Path(__file__).with_name('clocked.py')), str(self._file)]

    def now(self) -> datetime:
        """Returns what it shows."""
        return datetime.fromtimestamp(time.time() + self._wall, UTC)

    def sleep(self, span: timedelta) -> None:
        """Lets the host sleep for a span: the wall clock goes on, and so does CLOCK_BOOTTIME."""
        self._wall += span.total_seconds()
        self._boot += span.total_seconds()
        self._tell()

    def sleep_until(self, instant: datetime) -> None:
        """Lets the host sleep until an instant."""
        self.sleep(instant - self.now())

    def step(self, span: timedelta) -> None:
        """Sets the wall clock, as somebody who corrects it does."""
        self._wall += span.total_seconds()
        self._tell()
