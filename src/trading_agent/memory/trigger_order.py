"""In which order a desk's open triggers are run, and when the next of them is due."""

import heapq
from datetime import datetime, timedelta

from trading_agent.clock import Clock
from trading_agent.memory import gathering
from trading_agent.memory.trigger_entry import Entry


class TriggerOrder:
    """The order of the open triggers: those begun before, then persons', timers' and feeds', each as they came.

    Args:
        entries: The open triggers by id, in the order in which they came; whoever owns them changes them.
        clock: For due times and expiry.

    Attributes:
        collect: How long a feed's triggers wait for each other, to be run as one; zero for not at all.
    """

    def __init__(self, entries: dict[str, Entry], clock: Clock) -> None:
        self._open = entries
        self._clock = clock
        self.collect = timedelta()
        self.clear()

    def clear(self) -> None:
        """Forgets every trigger."""
        self._ready: list[tuple[tuple[int, int], str]] = []
        self._later: list[tuple[datetime, str]] = []
        self._expiring: list[tuple[datetime, str]] = []
        self._collected_at: datetime | None = None
        self._left_over: tuple[datetime, int] | None = None

    def add(self, entry: Entry) -> None:
        """Takes in an open trigger."""
        trigger_id = entry.trigger.id
        if entry.trigger.expires_at is not None:
            heapq.heappush(self._expiring, (entry.trigger.expires_at, trigger_id))
        if entry.due_at > self._clock.now() and entry.trigger.not_before is not None:
            heapq.heappush(self._later, (entry.due_at, trigger_id))
        else:
            heapq.heappush(self._ready, (entry.rank, trigger_id))

    def begun(self, entry: Entry) -> None:
        """Takes in that a trigger was started for the first time: from now on it comes before the others."""
        heapq.heappush(self._ready, (entry.rank, entry.trigger.id))

    def head(self) -> Entry | None:
        """Returns the trigger that is to run next, or None when none is due, or those that are wait for others."""
        self._collected_at = None
        entry = self._first()
        if entry is not None and self._waits(entry):
            at = self._ripe_at()
            if at > self._clock.now():
                self._collected_at = at
                return None
        return entry

    def batch(self) -> list[Entry]:
        """Returns the triggers that are to run next, together, in order; none when none is due. They stay here."""
        entry = self.head()
        if entry is None or not self._waits(entry):
            return [] if entry is None else [entry]
        found: dict[str, Entry] = {}
        while len(found) <= gathering.MOST_TRIGGERS and (entry := self._first()) is not None:
            heapq.heappop(self._ready)
            found[entry.trigger.id] = entry
        for entry in found.values():
            heapq.heappush(self._ready, (entry.rank, entry.trigger.id))
        taken = gathering.fitting(found.values())
        # What is left over has waited with the others, and follows at once.
        newest = next(reversed(self._open.values())).order
        self._left_over = (self._clock.now(), newest) if len(taken) < len(found) else None
        return taken

    def expired(self) -> list[Entry]:
        """Returns the triggers whose time is over, each once."""
        now = self._clock.now()
        found = []
        while self._expiring and self._expiring[0][0] <= now:
            _, trigger_id = heapq.heappop(self._expiring)
            if trigger_id in self._open:
                found.append(self._open[trigger_id])
        return found

    def next_instant(self) -> datetime | None:
        """Returns when the next waiting trigger is due, has waited for others long enough, or expires."""
        instants = [heap[0][0] for heap in (self._later, self._expiring) if heap]
        return min(filter(None, (*instants, self._collected_at)), default=None)

    def _first(self) -> Entry | None:
        now = self._clock.now()
        while self._later and self._later[0][0] <= now:
            _, trigger_id = heapq.heappop(self._later)
            if trigger_id in self._open:
                heapq.heappush(self._ready, (self._open[trigger_id].rank, trigger_id))
        while self._ready:
            entry = self._still_ready(*self._ready[0])
            if entry is not None:
                return entry
            heapq.heappop(self._ready)  # closed or being closed, or begun since and listed under its new rank too
        return None

    def _still_ready(self, rank: tuple[int, int], trigger_id: str) -> Entry | None:
        entry = self._open.get(trigger_id)
        return entry if entry is not None and entry.rank == rank and entry.closing is None else None

    # -- collecting --------------------------------------------------------------------------------------------

    def _waits(self, entry: Entry) -> bool:
        return bool(self.collect) and gathering.may_be_gathered(entry)

    def _ripe_at(self) -> datetime:
        """Returns when those that wait for others are to be run; now, or earlier, where they need not wait."""
        now = self._clock.now()
        waiting = self._some_waiting()
        if gathering.is_full(waiting) or any(map(self._is_left_over, waiting)):
            return now
        # Due later than now: the clock was set back since, and nobody is to wait for it twice.
        return min(entry.due_at + self.collect if entry.due_at <= now else now for entry in waiting)

    def _is_left_over(self, entry: Entry) -> bool:
        if self._left_over is None:
            return False
        at, newest = self._left_over
        return entry.due_at <= at and entry.order <= newest

    def _some_waiting(self) -> list[Entry]:
        """Returns those that wait for others, in any order: all of them, or as many as one turn takes."""
        found: dict[str, Entry] = {}
        for rank, trigger_id in self._ready:
            entry = self._still_ready(rank, trigger_id)
            if entry is not None and gathering.may_be_gathered(entry):
                found[trigger_id] = entry
            if len(found) >= gathering.MOST_TRIGGERS:
                break
        return list(found.values())
