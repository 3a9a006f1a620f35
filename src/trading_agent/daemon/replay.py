"""Runs recorded days through a desk: the same daemon under a clock that goes as fast as the desk can answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec

from trading_agent import json_lines
from trading_agent.clock import INDIA, ManualClock, boundary_after
from trading_agent.config import Config
from trading_agent.daemon.daemon import Daemon
from trading_agent.errors import TradingAgentError
from trading_agent.event_bus import Subscription
from trading_agent.events import Outcome, SessionEnded, TriggerClosed
from trading_agent.memory.session_state import split_session_id
from trading_agent.memory.session_store import SessionStore
from trading_agent.trigger import Trigger

OPENS = time(9, 0)
CLOSES = time(15, 30)


class ReplayRefused(TradingAgentError):
    """Raised when days cannot be replayed into a workspace."""


@dataclass(frozen=True)
class Day:
    """One recorded day.

    Attributes:
        trading_date: Its India date.
        path: The file that it was read from.
        lines: Each line that is not blank, with its number from 1.
    """

    trading_date: date
    path: Path
    lines: list[tuple[int, str]]

    def instant(self, place: int) -> datetime:
        """Returns when the line at a place, from 0, comes: the lines are spread evenly over 09:00 to 15:30 IST."""
        opens = datetime.combine(self.trading_date, OPENS, INDIA)
        closes = datetime.combine(self.trading_date, CLOSES, INDIA)
        return opens + (closes - opens) * place / len(self.lines)


class DayReport(msgspec.Struct, frozen=True):
    """What became of one day's triggers."""

    date: date
    triggers: int
    answered: int
    failed: int


class SessionReport(msgspec.Struct, frozen=True):
    """One session that has exchanges."""

    id: str
    exchanges: int


class ReplayReport(msgspec.Struct, frozen=True):
    """What a replay came to.

    Attributes:
        workspace: Where everything is.
        days: What became of each day's triggers.
        sessions: The sessions that have exchanges.
        rollovers: How many of these sessions were rolled over.
        summaries: The days that have a summary.
        wall_seconds: How long it took.
    """

    workspace: str
    days: list[DayReport]
    sessions: list[SessionReport]
    rollovers: int
    summaries: list[date]
    wall_seconds: float

    @property
    def complete(self) -> bool:
        """Whether every trigger has its outcome."""
        return all(day.triggers == day.answered + day.failed for day in self.days)


def read_day(trading_date: date, path: Path) -> Day:
    """Reads a recorded day: each line that is not blank is a trigger; split on newlines alone, a CR stripped.

    Raises:
        ReplayRefused: The file cannot be read.
    """
    try:
        found = [
            (number, line.decode('utf-8-sig' if number == 1 else 'utf-8', errors='replace').rstrip('\r'))
            for number, line in json_lines.read(path)
        ]
    except OSError as error:
        raise ReplayRefused(f'{path} cannot be read: {error}') from error
    if not path.exists():
        raise ReplayRefused(f'there is no file {path}')
    return Day(trading_date, path, [(number, text) for number, text in found if text.strip()])


def refuse_unless_new(workspace: Path, desk: str, days: Sequence[Day]) -> None:
    """Checks that a workspace can take the days.

    Raises:
        ReplayRefused: The days do not ascend, or the desk has a session of one of them or of a later day.
    """
    dates = [day.trading_date for day in days]
    if sorted(set(dates)) != dates:
        raise ReplayRefused('the days do not ascend', 'name each day once, the earliest first')
    sessions = SessionStore(workspace / 'desks' / desk / 'sessions').session_ids()
    taken = [session_id for session_id in sessions if split_session_id(session_id)[0] >= dates[0]]
    if taken:
        raise ReplayRefused(
            f'{workspace} already holds the session {taken[-1]} of the desk {desk}',
            'name another --workspace, or move that one away',
        )


class Replay:
    """One replay.

    Args:
        config: The configuration; its first desk gets the triggers.
        days: What to replay, ascending.
        on_progress: Called after each trigger.
    """

    def __init__(self, config: Config, days: Sequence[Day], on_progress: Callable[[Day], None]) -> None:
        self._config = config
        self._days = days
        self._desk = config.desks[0]
        self._on_progress = on_progress
        self._clock = ManualClock(days[0].instant(0) if days[0].lines else _start_of(days[0]))
        self.daemon = Daemon(config, self._clock, faces=False)
        self._outcomes: dict[str, Outcome] = {}
        self._rolled_over = 0

    async def run(self) -> ReplayReport:
        """Runs every day to its end, the last midnight included, and returns what came of it."""
        began = anyio.current_time()
        with self.daemon.bus.subscribe(TriggerClosed, SessionEnded, name='replay') as events:
            async with self.daemon:
                for day in self._days:
                    await self._run_day(day, events)
                await self._advance_to(boundary_after(self._clock.now(), self._desk.rollover_at))
                self._count(events)
        return self._report(anyio.current_time() - began)

    async def _run_day(self, day: Day, events: Subscription) -> None:
        for place, (number, text) in enumerate(day.lines):
            await self._advance_to(day.instant(place))
            await self.daemon.bus.send(
                Trigger(
                    text,
                    self._desk.name,
                    id=_trigger_id(day, number),
                    source='replay',
                    received_at=self._clock.now(),
                )
            )
            await self._settled()
            self._count(events)
            self._on_progress(day)

    async def _advance_to(self, instant: datetime) -> None:
        """Lets time pass, stopping at each instant on the way that something waits for."""
        await self._settled()
        while (following := self.daemon.scheduler.next_instant()) <= instant:
            self._clock.advance(following)
            await self._settled()
        self._clock.advance(max(instant, self._clock.now()))
        await self._settled()

    async def _settled(self) -> None:
        while True:
            await self.daemon.supervisor.settled()
            if self.daemon.scheduler.settled:
                return
            await anyio.lowlevel.checkpoint()  # the scheduler is awake and about to look

    def _count(self, events: Subscription) -> None:
        for item in events.ready(1 << 30):
            if isinstance(item.event, TriggerClosed):
                self._outcomes[item.event.trigger_id] = item.event.outcome
            elif isinstance(item.event, SessionEnded) and item.event.exchanges:
                self._rolled_over += 1

    def _report(self, seconds: float) -> ReplayReport:
        store = SessionStore(self.daemon.workspace / 'desks' / self._desk.name / 'sessions')
        dates = {day.trading_date for day in self._days}
        counts = {session_id: len(store.exchanges(session_id)) for session_id in reversed(store.session_ids())}
        return ReplayReport(
            workspace=str(self._config.workspace),
            days=[self._report_day(day) for day in self._days],
            sessions=[
                SessionReport(session_id, count)
                for session_id, count in counts.items()
                if count and split_session_id(session_id)[0] in dates
            ],
            rollovers=self._rolled_over,
            summaries=sorted(item.trading_date for item in store.summaries() if item.trading_date in dates),
            wall_seconds=round(seconds, 3),
        )

    def _report_day(self, day: Day) -> DayReport:
        outcomes = [self._outcomes.get(_trigger_id(day, number)) for number, _ in day.lines]
        answered = outcomes.count('answered')
        return DayReport(day.trading_date, len(outcomes), answered, len(outcomes) - answered - outcomes.count(None))


def _trigger_id(day: Day, number: int) -> str:
    return f'replay/{day.trading_date.isoformat()}/{number}'


def _start_of(day: Day) -> datetime:
    return datetime.combine(day.trading_date, OPENS, INDIA)
