"""How often something that fails is started again, and how long until then."""

import random
from collections import deque

import anyio

RESTARTS = 5
WINDOW_SECONDS = 60.0
LONGEST_DELAY_SECONDS = 30.0


class RestartBudget:
    """At most 5 restarts within 60 s; the pause before each doubles, with jitter, from about 0.2 s on."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque()

    @property
    def used(self) -> int:
        """How many failures the window holds."""
        return len(self._failures)

    def spend(self) -> bool:
        """Counts a failure; returns whether the budget allows another start."""
        now = anyio.current_time()
        self._failures.append(now)
        while self._failures[0] < now - WINDOW_SECONDS:
            self._failures.popleft()
        return len(self._failures) <= RESTARTS

    def delay(self) -> float:
        """Returns how long to wait before the next start, in seconds."""
        longest = min(0.1 * 2.0 ** len(self._failures), LONGEST_DELAY_SECONDS)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
