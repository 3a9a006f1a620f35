"""One trigger in a desk's queue, and how it ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import anyio

from trading_agent.clock import instant_in, utc_text
from trading_agent.events import Outcome
from trading_agent.memory.trigger_log import Accepted, Interrupted, Record, Started
from trading_agent.trigger import PRIORITIES, Trigger


@dataclass
class Entry:
    """One open trigger.

    Attributes:
        trigger: The trigger.
        accepted_at: When it was accepted, in UTC.
        order: Its place among all, first come first.
        attempts: How often it was started.
        cut_offs: How many of these starts ended with the process or the desk, and not in order.
        fruitless: How many of them ended since no backend could answer.
        in_the_air: Whether its last run has neither an end nor an outcome: a crash cut it off, where none runs.
        closing: Set once its outcome, which is being recorded, is; None while nobody records one.
    """

    trigger: Trigger
    accepted_at: datetime
    order: int
    attempts: int = 0
    cut_offs: int = 0
    fruitless: int = 0
    in_the_air: bool = False
    closing: anyio.Event | None = None

    @property
    def due_at(self) -> datetime:
        """From when on it may run."""
        return max(self.trigger.not_before or self.accepted_at, self.accepted_at)

    @property
    def cut_off(self) -> bool:
        """Whether a run of it was cut off in its middle, so that the desk is told when it runs again."""
        return self.attempts > self.fruitless

    def interrupted(self, reason: str) -> None:
        """Notes that a run of it ended in order, but without an answer."""
        self.in_the_air = False
        self.cut_offs = max(0, self.cut_offs - 1)
        self.fruitless += reason == 'no_backend'

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in the queue: what was begun before comes first, then by priority, then as it came."""
        return (-1 if self.attempts else PRIORITIES.index(self.trigger.priority), self.order)


@dataclass(frozen=True)
class Closing:
    """How a trigger ended."""

    outcome: Outcome
    session_id: str | None
    at: str


def records_of(entry: Entry) -> Iterator[Record]:
    """Yields the lines that an open trigger comes to, when its file is begun anew."""
    at = utc_text(entry.accepted_at)
    yield Accepted(at, entry.trigger)
    for attempt in range(1, entry.attempts + 1):
        yield Started(at, entry.trigger.id, attempt)
        if attempt <= entry.attempts - entry.cut_offs:
            reason = 'no_backend' if attempt <= entry.fruitless else 'stop'
            yield Interrupted(at, entry.trigger.id, attempt, reason)


def instant_of(text: str, fallback: datetime) -> datetime:
    """Returns the instant that a record's text says, or another one where it says none."""
    return instant_in(text) or fallback
