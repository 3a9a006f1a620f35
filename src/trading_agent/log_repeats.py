"""A fault that repeats is told at once, then counted, then told again with its count."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

WINDOW_SECONDS = 60.0
MOST_FAULTS = 1000
"""How many different faults are remembered; past it, what comes is told as it comes."""

_SAME = (
    'event',
    'desk',
    'backend',
    'component',
    'server',
    'tool',
    'source',
    'subscriber',
    'path',
    'line',
    'reason',
    'error_type',
)


@dataclass
class _Fault:
    told_at: float
    repeats: int = 0
    last: dict[str, Any] | None = None


class Repeats:
    """Gathers log records of the same fault.

    Args:
        now: Returns the time in seconds; tests replace it.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._faults: dict[tuple[Any, ...], _Fault] = {}

    def take(self, record: dict[str, Any]) -> bool:
        """Counts a record; returns whether it is to be written now."""
        key = tuple(record.get(name) for name in _SAME)
        fault = self._faults.get(key)
        if fault is None:
            if len(self._faults) < MOST_FAULTS:
                self._faults[key] = _Fault(self._now())
            return True
        fault.repeats += 1
        fault.last = record
        return False

    def due(self, *, everything: bool = False) -> Iterator[dict[str, Any]]:
        """Yields the last record of each fault whose minute is over, with `repeats`: how often since it was told.

        Args:
            everything: Also those whose minute is not over: the log ends.
        """
        now = self._now()
        for key, fault in list(self._faults.items()):
            if now - fault.told_at < WINDOW_SECONDS and not everything:
                continue
            if fault.last is None:
                del self._faults[key]
                continue
            yield {**fault.last, 'repeats': fault.repeats}
            self._faults[key] = _Fault(now)
