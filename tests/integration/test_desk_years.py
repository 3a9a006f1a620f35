"""Fifty years of a desk's life in a minute: random days, and clocks that are set, suspended and slewed at random."""

import random
import re
import shutil
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keeper_fakes import Box, InlineDisk, fast_folder, spare_the_disk

from trading_agent.clock import INDIA, IndiaClock, ManualClock, trading_date
from trading_agent.errors import BackendError
from trading_agent.events import ClockBehind, SessionEnded, SessionStarted, SummaryWritten
from trading_agent.memory.session_state import split_session_id
from trading_agent.routing.turn_runner import Turn

DESK_YEARS = 50
DAYS_A_WALK = 50
WALKS = DESK_YEARS * 365 // DAYS_A_WALK
PARTS = 10
MIDNIGHT = timedelta()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that costs little, for here it is the walk that counts."""
    spare_the_disk(monkeypatch)
    folder = fast_folder(tmp_path)
    yield folder
    shutil.rmtree(folder)


class Walk:
    """One desk on its way through some months, and what must be true of it all the while.

    Args:
        folder: The desk's folder.
        seed: Decides everything that happens.
        steps: Whether somebody sets the clock now and then.
    """

    def __init__(self, folder: Path, seed: int, *, steps: bool) -> None:
        self.random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.steps = steps
        rollover_at = self.random.choice([MIDNIGHT, MIDNIGHT, timedelta(hours=5, minutes=30)])
        start = datetime(2026, 1, 1, 8, tzinfo=INDIA) + timedelta(days=self.random.randrange(3000))
        self.box = Box(folder, ManualClock(start), disk=InlineDisk(), rollover_at=rollover_at)
        self.box.model.on_review = self.review
        self.model_is_down = False
        self.logged: list[tuple[str, str]] = []
        self.manual: set[str] = set()
        self.reviewed_in_full: list[str] = []

    async def review(self, turn: Turn) -> dict[str, Any]:
        if self.model_is_down:
            raise BackendError('down')
        return await self.box.model.review(turn)

    @property
    def today(self) -> date:
        return self.box.store.today()

    async def run(self) -> None:
        await self.box.start()
        for _ in range(DAYS_A_WALK):
            await self.one_day()
        self.check_all()

    async def one_day(self) -> None:
        chance = self.random.random()
        if chance < 0.06:
            await self.box.restart()
        elif chance < 0.10:
            self.box.clock.advance(timedelta(days=self.random.randint(1, 9), hours=self.random.randrange(24)))
        elif chance < 0.14 and self.steps:
            await self.set_the_clock()
        elif chance < 0.18:
            self.model_is_down = not self.model_is_down
        elif chance < 0.22:
            await self.box.keeper.backfill()
        elif chance < 0.24:
            await self.roll_over_by_hand()
        exchanges = self.random.choice([0, 1, 1, 2]) if self.today.weekday() < 5 else self.random.choice([0, 0, 0, 1])
        for _ in range(exchanges):
            self.box.clock.advance(timedelta(minutes=self.random.randint(1, 90)))
            await self.one_turn()
            if self.random.random() < 0.02:
                await self.roll_over_by_hand()
        until_tomorrow = timedelta(hours=self.random.randint(12, 23), minutes=self.random.randrange(60))
        self.box.clock.advance(until_tomorrow)
        if self.random.random() < 0.7:
            await self.box.keeper.roll_over_if_due()

    async def set_the_clock(self) -> None:
        """Sets it by a second or by a year, and maybe puts it right again, or leaves it for as long as it takes."""
        size = timedelta(seconds=10 ** self.random.uniform(0, 7.538))  # up to 400 days
        by = self.random.choice([size, -size])
        self.box.clock.step(by)
        if self.random.random() < 0.2:
            await self.roll_over_by_hand()
        minutes = self.random.choice([0, 3, 12, 12, 30])
        for _ in range(minutes):
            await self.box.keeper.roll_over_if_due()
            self.box.clock.advance(timedelta(minutes=1))
        await self.box.keeper.roll_over_if_due()
        assert minutes < 10 or self.box.router.trading_date == self.today, 'ten steady minutes are enough'
        if self.random.random() < 0.5:
            self.box.clock.step(-by)

    async def one_turn(self) -> None:
        box = self.box
        before = box.router.trading_date
        assert before is not None
        text = f'message {len(self.logged)}'
        told = await box.turn(text)
        session_id, session_date = box.router.session_id, box.router.trading_date
        assert session_id is not None
        assert session_date == self.today or (self.today < before == session_date), 'today, or a clock that is behind'
        assert told.endswith(text)
        self.logged.append((session_id, told))
        if len(box.router.exchanges) == 1 and self.random.random() < 0.2:
            self.check_first_message(told, session_date)

    def check_first_message(self, told: str, session_date: date) -> None:
        """A new session knows what happened last, and nothing of days that have not come."""
        carried = [date.fromisoformat(day) for day in re.findall(r'^## Session (\S{10})-\d+', told, re.MULTILINE)]
        there = [day.trading_date for day in self.box.store.summaries() if day.trading_date <= session_date]
        assert carried[-1:] == there[:1]
        assert carried == sorted(carried)

    async def roll_over_by_hand(self) -> None:
        ended, had_exchanges = self.box.router.session_id, bool(self.box.router.exchanges)
        due = self.today > (self.box.router.trading_date or self.today)
        following = await self.box.keeper.roll_over()
        assert (following is None) == (not had_exchanges and not due)
        assert following != ended

    def check_all(self) -> None:
        self.check_order()
        self.check_records()
        box = self.box
        assert not (box.path / 'rollover.json').exists()
        state = box.store.load_state()
        assert state is not None
        assert state.session_id == box.router.session_id == box.told(SessionStarted)[-1].session_id

    def check_order(self) -> None:
        """Sessions follow each other in time; only a corrected clock goes back, and only by hand a day has two."""
        begun = [event for event in self.box.told(SessionStarted) if event.reason != 'resumed']
        ids = [event.session_id or '' for event in begun]
        assert len(set(ids)) == len(ids)
        assert [event.previous_session_id for event in begun] == [None, *ids[:-1]]
        latest, corrected = date.min, False
        for event, (day, number) in zip(begun, map(split_session_id, ids), strict=True):
            assert day == event.trading_date
            corrected |= event.reason == 'clock_corrected'
            assert day >= latest or event.reason == 'clock_corrected'
            if number > 1:
                assert event.reason == 'manual' or corrected, 'a second session of a day is made by hand'
            if event.reason == 'daily_rollover':
                previous, _ = split_session_id(event.previous_session_id or '')
                assert day > previous
            elif event.reason == 'manual':
                assert day >= split_session_id(event.previous_session_id or '')[0]
            elif event.reason == 'clock_corrected':
                assert self.steps
                assert day < split_session_id(event.previous_session_id or '')[0]
            latest = day if event.reason == 'clock_corrected' else max(latest, day)
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
        assert sorted(section.session_id for section in sections) == sorted(ended)
        assert sorted(section.session_id for section in sections if section.degraded) == sorted(box.keeper.owed)
        first_files = [event for event in box.told(SummaryWritten) if event.quality != 'backfilled']
        assert sorted(event.session_id or '' for event in first_files) == sorted(ended)
        counts = {event.session_id: event.exchanges for event in box.told(SessionEnded)}
        assert all(counts[session_id] == len(log) for session_id, log in logs.items() if session_id != current)
        lessons = [line for line in box.memory_text.split('\n') if line]
        in_full = {section.session_id for section in sections if not section.degraded}
        assert sorted(lessons) == sorted(f'- lesson of {session_id}' for session_id in in_full)


@pytest.mark.parametrize('part', range(PARTS))
async def test_desk_years(folder: Path, part: int) -> None:
    """Through steps, suspends, restarts, outages and rollovers by hand a desk loses nothing and does nothing twice."""
    for number in range(part * WALKS // PARTS, (part + 1) * WALKS // PARTS):
        walk = Walk(folder / str(number), number, steps=number % 3 != 0)
        try:
            await walk.run()
        except BaseException as failure:
            failure.add_note(f'walk {number}')
            raise
        shutil.rmtree(folder / str(number))


# -- the host's clock ------------------------------------------------------------------------------------------


class Host:
    """A machine: a boot clock that only goes on, a wall clock that is set and slewed, and how long settings lasted.

    All spans are eighths of a second, which binary fractions hold exactly.
    """

    def __init__(self, start: float) -> None:
        self.booted = 1000.0
        self.offset = start - self.booted
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
        return trading_date(datetime.fromtimestamp(self.booted + lasted[-1], INDIA), rollover_at)


def eighths(least: float, most: float) -> st.SearchStrategy[float]:
    """Returns spans in seconds that a float holds exactly."""
    return st.integers(int(least * 8), int(most * 8)).map(lambda number: number / 8)


STEPS = st.one_of(eighths(2.125, 400 * 86400.0), eighths(2.125, 120), st.sampled_from([86400.0, 3600.0]))
EVENTS = st.one_of(
    st.tuples(st.just('pass'), st.one_of(eighths(0, 70), eighths(0, 7200), st.sampled_from([59.875, 60.0, 1.0]))),
    st.tuples(st.just('suspend'), eighths(0, 5 * 86400)),
    st.tuples(st.just('step'), st.one_of(STEPS, STEPS.map(lambda size: -size))),
    st.tuples(st.just('slew'), eighths(-0.5, 0.5)),
)
STARTS = st.one_of(
    st.just(datetime(2026, 10, 19, 23, 59, 30, tzinfo=INDIA)),
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)).map(lambda at: at.replace(microsecond=0, tzinfo=INDIA)),  # noqa: DTZ001
)


@settings(max_examples=400, deadline=None)
@given(STARTS, st.lists(EVENTS, max_size=40), st.sampled_from([MIDNIGHT, timedelta(hours=5, minutes=30)]))
def test_walks_of_the_host_clock(start: datetime, events: list[tuple[str, float]], rollover_at: timedelta) -> None:
    """However the clock is set, the date is told by the newest setting that lasted a minute, and so never jumps."""
    host = Host(start.timestamp())
    before = host.clock.trusted_date(rollover_at)
    assert before == trading_date(start, rollover_at)
    for what, amount in events:
        stepped = False
        if what in ('pass', 'suspend'):
            host.booted += amount
        elif what == 'slew':
            host.slew(amount)
        else:
            host.step(amount)
            stepped = True
        was_steady = host.steady
        after = host.clock.trusted_date(rollover_at)
        assert after == host.trusted(rollover_at)
        if was_steady:
            assert after == trading_date(host.clock.now(), rollover_at), 'the true date when steady'
        if stepped:
            assert after == before, 'a step alone never changes the date'
        if after < before:
            assert was_steady, 'back only when a step has lasted'
            assert any(
                later[1] < earlier[1] for earlier, later in zip(host.settings, host.settings[1:], strict=False)
            ) or any(event == 'slew' for event, _ in events)
        before = after
