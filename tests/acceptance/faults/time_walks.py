"""Time: desks that live through years of random days, on hosts whose clock is set, suspended and slewed at random.

As a program it walks once and prints which sessions came of it: `python time_walks.py FOLDER SEED [--no-tz-data]`.
"""

import asyncio
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

if __name__ == '__main__' and sys.argv[-1] == '--no-tz-data':
    sys.modules['tzdata'] = None  # type: ignore[assignment] # whoever imports it finds none
# The rig that a desk is walked in is that of the keeper's own tests.

import pytest
from auditor import audit
from findings import Budget, Findings
from host_clock import HostClock, date_in_india, host_zone
from keeper_fakes import Box, Crash, InlineDisk, around, spare_the_disk
from planted import planted
from quick_folder import quick_folder

from trading_agent.clock import ManualClock
from trading_agent.errors import BackendError
from trading_agent.events import ClockBehind, SessionEnded, SessionStarted, SummaryWritten
from trading_agent.memory.session_state import split_session_id
from trading_agent.routing.turn_runner import Turn
from trading_agent.trigger import Trigger

CATCHES = (
    'dates compared with !=',
    'rollover without its stages',
    'summary named by the current date',
    "a second session's section overwriting the first's",
)

DAYS_A_WALK = 73
WALKS_A_YEAR = 5
ROLLOVER_AT = [timedelta(), timedelta(), timedelta(hours=5, minutes=30), timedelta(hours=11, minutes=59)]
ZONES = [
    'Asia/Kolkata',
    'Pacific/Kiritimati',
    'Pacific/Marquesas',
    'America/St_Johns',
    'Antarctica/Troll',
    'ODD-24:59:59SUMMER,0/0,J365/25',
    'No/Such_Zone',
    '',
]
WRITES = ('replace', 'append', 'create', 'remove', 'link', 'move')


# -- the desk --------------------------------------------------------------------------------------------------


class Walk:
    """One desk on its way through some months, and what must be true of it all the while.

    Args:
        workspace: A folder of its own.
        seed: Decides everything that happens.
    """

    def __init__(self, workspace: Path, seed: str) -> None:
        self.random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.workspace = workspace
        self.zone = self.random.choice(ZONES)
        self.steps = self.random.random() < 0.6
        self.kills = self.random.random() < 0.5
        self.rollover_at = self.random.choice([*ROLLOVER_AT, timedelta(minutes=self.random.randrange(720))])
        start = datetime(2026, 1, 1, 2, 30, tzinfo=UTC) + timedelta(minutes=self.random.randrange(3000 * 1440))
        clock = HostClock(start) if self.random.random() < 0.7 else ManualClock(start)
        folder = workspace / 'desks' / 'main'
        folder.mkdir(mode=0o700, parents=True)
        for path in (workspace, folder.parent):
            path.chmod(0o700)
        self.box = Box(folder, clock, disk=InlineDisk(), rollover_at=self.rollover_at)
        self.box.model.on_review = self.review
        self.model_is_down = False
        self.logged: list[tuple[str, str]] = []
        self.accepted: list[str] = []
        self.writes_left = self.deaths = 0
        self.cut_off: set[str | None] = set()

    async def review(self, turn: Turn) -> dict[str, Any]:
        if self.model_is_down:
            raise BackendError('down')
        return await self.box.model.review(turn)

    @property
    def today(self) -> date:
        """The trading date, which arithmetic must agree with."""
        clock = self.box.clock
        by_hand = (
            clock.host.trusted(self.rollover_at)
            if isinstance(clock, HostClock)
            else date_in_india(clock.now().timestamp(), self.rollover_at)
        )
        assert self.box.store.today() == by_hand, 'the date is told wrong'
        return by_hand

    async def run(self, days: int = DAYS_A_WALK) -> None:
        with ExitStack() as stack:
            stack.enter_context(host_zone(self.zone))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            spare_the_disk(patch)
            for name in WRITES:
                around(patch, name, before=self.maybe_die, after=self.maybe_die)
            await self.box.start()
            for _ in range(days):
                await self.one_day()
            self.model_is_down = False
            while await self.pay():
                pass
            self.check_all()

    # -- what happens ------------------------------------------------------------------------------------------

    async def one_day(self) -> None:
        chance = self.random.random()
        if chance < 0.06:
            await self.restart()
        elif chance < 0.10:
            self.box.clock.advance(timedelta(days=self.random.randint(1, 9), hours=self.random.randrange(24)))
        elif chance < 0.14 and self.steps:
            await self.set_the_clock()
        elif chance < 0.18:
            self.model_is_down = not self.model_is_down
        elif chance < 0.22:
            await self.or_die_in(self.pay)
        elif chance < 0.24:
            await self.roll_over_by_hand()
        exchanges = (
            self.random.choice([0, 0, 1, 1, 2]) if self.today.weekday() < 5 else self.random.choice([0, 0, 0, 1])
        )
        for _ in range(exchanges):
            self.box.clock.advance(timedelta(minutes=self.random.randint(1, 90)))
            await self.one_turn()
            if self.random.random() < 0.02:
                await self.roll_over_by_hand()
        until_tomorrow = timedelta(hours=self.random.randint(12, 23), minutes=self.random.randrange(60))
        self.box.clock.advance(until_tomorrow)
        if self.random.random() < 0.7:
            await self.or_die_in(self.box.keeper.roll_over_if_due)

    async def pay(self) -> bool:
        """Makes an owed summary as a desk does: when nothing is due."""
        await self.box.keeper.roll_over_if_due()
        return await self.box.keeper.backfill()

    async def restart(self) -> None:
        if isinstance(self.box.clock, HostClock):
            self.box.clock.host.restart()
        await self.box.restart()

    def maybe_die(self, _: Path) -> None:
        """Is asked before and after each write."""
        if self.writes_left:
            self.writes_left -= 1
            if not self.writes_left:
                self.deaths += 1
                raise Crash

    async def or_die_in(self, what: Callable[[], Awaitable[object]]) -> None:
        """Does something, or dies at one of its writes and is started again."""
        self.writes_left = self.random.randint(1, 40) if self.kills and self.random.random() < 0.25 else 0
        died, ended = self.deaths, self.box.router.session_id
        try:
            await what()
        except BaseException:  # a task group hands it on among others
            if self.deaths == died:
                raise
            self.cut_off.add(ended)
            await self.restart()
        finally:
            self.writes_left = 0

    async def set_the_clock(self) -> None:
        """Sets it by a second or by a year, and maybe puts it right again, or leaves it for as long as it takes."""
        size = timedelta(seconds=10 ** self.random.uniform(0, 7.538))  # up to 400 days
        by = self.random.choice([size, -size])
        before = self.today
        self.box.clock.step(by)
        if isinstance(self.box.clock, HostClock):
            assert self.today == before or size.total_seconds() <= 2, 'a step alone never changes the date'
        if self.random.random() < 0.2:
            await self.roll_over_by_hand()
        minutes = self.random.choice([0, 3, 13, 13, 30])
        for _ in range(minutes):
            await self.box.keeper.roll_over_if_due()
            self.box.clock.advance(timedelta(minutes=1))
        await self.box.keeper.roll_over_if_due()
        assert minutes < 13 or self.box.router.trading_date == self.today, 'ten steady minutes are enough'
        if self.random.random() < 0.5:
            self.box.clock.step(-by)

    async def one_turn(self) -> None:
        box, number = self.box, len(self.logged)
        before = box.router.trading_date
        assert before is not None
        trigger = Trigger(f'message {number}', 'main', id=f't{number}', received_at=box.clock.now())
        assert (await box.queue.accept(trigger)).status == 'accepted'
        self.accepted.append(trigger.id)
        entry = box.queue.entry(trigger.id)
        assert entry is not None
        await box.queue.start(entry)
        async with box.keeper.turn():
            prepared = await box.keeper.prepare(trigger)
            await box.router.run(prepared)
        session_id, session_date = box.router.session_id, box.router.trading_date
        assert session_id is not None
        await box.queue.close(entry, 'answered', session_id)
        assert session_date == self.today or (self.today < before == session_date), 'today, or a clock that is behind'
        assert prepared.text.endswith(trigger.text)
        self.logged.append((session_id, prepared.text))
        if len(box.router.exchanges) == 1 and self.random.random() < 0.2:
            self.check_first_message(prepared.text, session_date)

    async def roll_over_by_hand(self) -> None:
        ended, had_exchanges = self.box.router.session_id, bool(self.box.router.exchanges)
        session_date, today = self.box.router.trading_date or self.today, self.today
        following = await self.box.keeper.roll_over()
        assert following != ended
        assert following is not None or not (had_exchanges or today > session_date), 'a rollover is lost'
        assert following is None or had_exchanges or today != session_date, 'an empty session is ended'

    # -- what must be true -------------------------------------------------------------------------------------

    def check_first_message(self, told: str, session_date: date) -> None:
        """A new session knows what happened last, and nothing of days that have not come."""
        carried = [date.fromisoformat(day) for day in re.findall(r'^## Session (\S{10})-\d+', told, re.MULTILINE)]
        there = [day.trading_date for day in self.box.store.summaries() if day.trading_date <= session_date]
        assert carried[-1:] == there[:1]
        assert carried == sorted(carried)

    def check_all(self) -> None:
        self.check_order()
        self.check_records()
        box = self.box
        state = box.store.load_state()
        assert state is not None
        assert state.session_id == box.router.session_id == box.told(SessionStarted)[-1].session_id
        faults = audit(self.workspace, {'main': self.accepted}, clock_was_set=self.steps)
        assert not faults, '; '.join(what for _, what in faults[:5])

    def check_order(self) -> None:
        """Sessions follow each other in time; only a corrected clock goes back, and only by hand a day has two."""
        begun = [event for event in self.box.told(SessionStarted) if event.reason != 'resumed']
        if self.kills:  # told once more after a crash, word for word
            begun = [event for event, before in zip(begun, [None, *begun], strict=False) if event != before]
        ids = [event.session_id or '' for event in begun]
        assert len(set(ids)) == len(ids), 'a session was begun twice'
        assert [event.previous_session_id for event in begun] == [None, *ids[:-1]], 'a session was not announced'
        latest, corrected = date.min, False
        for event, (day, number) in zip(begun, map(split_session_id, ids), strict=True):
            assert day == event.trading_date
            corrected |= event.reason == 'clock_corrected'
            assert day >= latest or event.reason == 'clock_corrected', 'the date went back'
            # Begun, and gone on with after a crash, when the clock had been set back.
            set_back = self.steps and event.previous_session_id in self.cut_off
            if number > 1:
                assert event.reason == 'manual' or corrected or set_back, 'a second session of a day is made by hand'
            if event.reason == 'daily_rollover':
                previous = split_session_id(event.previous_session_id or '')[0]
                assert day > previous or (set_back and day == previous), 'the same date once more'
            elif event.reason == 'manual':
                assert day >= split_session_id(event.previous_session_id or '')[0]
            elif event.reason == 'clock_corrected':
                assert self.steps
                assert day < split_session_id(event.previous_session_id or '')[0]
            latest = day
        if not self.steps:
            assert self.box.told(ClockBehind) == []

    def check_records(self) -> None:
        """Every exchange is in one log, and every session with exchanges has one summary and one lesson."""
        box = self.box
        logs = {session_id: box.store.exchanges(session_id) for session_id in box.store.session_ids()}
        found = [(session_id, exchange.trigger_text) for session_id, log in logs.items() for exchange in log]
        assert sorted(found) == sorted(self.logged)
        current = box.router.session_id
        ended = [session_id for session_id, log in logs.items() if log and session_id != current]
        sections = [
            section for day in box.store.summaries() for section in box.store.summary_sections(day.trading_date)
        ]
        assert sorted(section.session_id for section in sections) == sorted(ended), 'one summary for each session'
        assert sorted(section.session_id for section in sections if section.degraded) == sorted(box.keeper.owed)
        told = [event.session_id or '' for event in box.told(SummaryWritten) if event.quality != 'backfilled']
        assert sorted(set(told) if self.kills else told) == sorted(ended), 'each summary is told'
        counts = {event.session_id: event.exchanges for event in box.told(SessionEnded)}
        assert all(counts[session_id] == len(log) for session_id, log in logs.items() if session_id != current)
        lessons = [line for line in box.memory_text.split('\n') if line]
        in_full = {section.session_id for section in sections if not section.degraded}
        assert sorted(lessons) == sorted(f'- lesson of {session_id}' for session_id in in_full), 'one lesson of each'

    def sessions(self) -> dict[str, int]:
        """Returns how many exchanges each session has."""
        return {session_id: len(self.box.store.exchanges(session_id)) for session_id in self.box.store.session_ids()}


# -- the part --------------------------------------------------------------------------------------------------


def walked(folder: Path, seed: str, findings: Findings) -> None:
    """Walks once; what was not as promised is noted with the seed."""
    walk = Walk(folder, seed)
    try:
        asyncio.run(walk.run())
    except Exception as failure:  # noqa: BLE001 - whatever it is, a promise was not kept
        what = f'{type(failure).__name__}: {str(failure).strip()[:300]}'
        findings.add('broken', f'the walk {seed!r} in {walk.zone or "UTC"}, rollover at {walk.rollover_at}: {what}')


def _walks(folder: Path, seeds: Iterable[str]) -> Iterator[Findings]:
    """Walks once for each seed, and yields what was found."""
    for seed in seeds:
        workspace = folder / seed
        findings = Findings()
        walked(workspace, seed, findings)
        shutil.rmtree(workspace)
        yield findings


def _seeds(budget: Budget, number: int) -> Iterator[str]:
    """Yields the seeds of a round, which is a year."""
    for part in range(WALKS_A_YEAR):
        yield f'{budget.seed}-{number}-{part}'


def run(budget: Budget, plant: str = '') -> Findings:
    """Walks a desk through a year in each round."""
    findings = Findings()
    with planted(plant), quick_folder() as folder:
        for number in budget:
            for found in _walks(folder, _seeds(budget, number)):
                findings.take(found)
            findings.counts['desk_years'] += 1
    return findings


def trial(plant: str) -> Findings:
    """Walks a desk through two years, or until something is found."""
    with planted(plant), quick_folder() as folder:
        seeds = [seed for number in range(2) for seed in _seeds(Budget(), number)]
        return next((found for found in _walks(folder, seeds) if found.faults), Findings())


if __name__ == '__main__':
    one = Walk(Path(sys.argv[1]), sys.argv[2])
    one.zone = os.environ['TZ']
    asyncio.run(one.run())
    sys.stdout.write(json.dumps(one.sessions()) + '\n')
