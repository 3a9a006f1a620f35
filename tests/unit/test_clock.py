"""The clock: India dates in any zone, and a host that is suspended, set or slewed."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import NoReturn
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import anyio
import pytest

from trading_agent import clock as clock_module
from trading_agent.clock import INDIA, IndiaClock, ManualClock, boundary_after, trading_date, utc_text

MIDNIGHT = timedelta()
COMMODITIES = timedelta(hours=5, minutes=30)
MONDAY_NOON = datetime(2026, 10, 19, 12, tzinfo=INDIA)
MONDAY = date(2026, 10, 19)
TUESDAY = date(2026, 10, 20)


class Host:
    """A machine whose clock can be set, slewed and suspended; its boot clock only goes on."""

    def __init__(self, start: datetime = MONDAY_NOON) -> None:
        self.booted = 1000.0
        self.offset = start.timestamp() - self.booted

    def wall(self) -> float:
        return self.booted + self.offset

    def boot(self) -> float:
        return self.booted

    def clock(self, hop: float = 1.0) -> IndiaClock:
        return IndiaClock(self.wall, self.boot, hop=timedelta(seconds=hop))

    def let_pass(self, **span: float) -> None:
        """Lets time pass, awake or suspended: the clocks show no difference."""
        self.booted += timedelta(**span).total_seconds()

    def set_clock(self, **by: float) -> None:
        self.offset += timedelta(**by).total_seconds()


@pytest.fixture(params=['UTC', 'America/New_York', 'Pacific/Kiritimati', 'Etc/GMT+12', 'Asia/Kolkata', 'Europe/Dublin'])
def host_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Puts this process into another zone."""
    monkeypatch.setenv('TZ', request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


# -- dates -----------------------------------------------------------------------------------------------------


def test_dates_are_of_india_in_any_host_zone(host_zone: str) -> None:
    """The trading date and the boundary are the same whatever zone the host is in."""
    host = Host(datetime(2026, 10, 19, 18, 29, 59, tzinfo=UTC))
    clock = host.clock()
    assert clock.trusted_date(MIDNIGHT) == MONDAY
    assert clock.now() == datetime(2026, 10, 19, 18, 29, 59, tzinfo=UTC)
    assert boundary_after(clock.now()) == datetime(2026, 10, 19, 18, 30, tzinfo=UTC)
    host.let_pass(seconds=1)
    assert clock.trusted_date(MIDNIGHT) == TUESDAY
    assert clock.trusted_date(COMMODITIES) == MONDAY
    assert datetime.fromtimestamp(0, INDIA).utcoffset() == timedelta(hours=5, minutes=30)


def test_the_real_clock_agrees_with_the_host() -> None:
    """Without anything injected, now() is the host's time and the date is India's of now."""
    clock = IndiaClock()
    before = datetime.now(UTC)
    now = clock.now()
    assert before <= now <= datetime.now(UTC)
    assert clock.trusted_date(MIDNIGHT) in {trading_date(now), trading_date(datetime.now(UTC))}
    assert clock.steadiness().step == 0


def test_india_without_a_zone_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither the host nor Python has the tz database, India is UTC+05:30."""

    def missing(name: str) -> NoReturn:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(clock_module, 'ZoneInfo', missing)
    assert clock_module._india().utcoffset(datetime(2026, 1, 1)) == timedelta(hours=5, minutes=30)  # noqa: DTZ001


@pytest.mark.parametrize(
    ('instant', 'rollover_at', 'expected'),
    [
        ('2026-10-19T00:00:00+05:30', MIDNIGHT, '2026-10-19'),
        ('2026-10-18T23:59:59.999999+05:30', MIDNIGHT, '2026-10-18'),
        ('2026-10-20T05:29:59+05:30', COMMODITIES, '2026-10-19'),
        ('2026-10-20T05:30:00+05:30', COMMODITIES, '2026-10-20'),
        ('2026-10-20T02:45:00+05:30', COMMODITIES, '2026-10-19'),
        ('2026-10-19T20:00:00-10:00', MIDNIGHT, '2026-10-20'),
        ('2026-10-20T11:58:00+05:30', timedelta(hours=11, minutes=59), '2026-10-19'),
        ('2024-02-29T23:00:00+05:30', MIDNIGHT, '2024-02-29'),
    ],
)
def test_trading_date(instant: str, rollover_at: timedelta, expected: str) -> None:
    """A trading date begins at rollover_at IST, to the microsecond."""
    assert trading_date(datetime.fromisoformat(instant), rollover_at) == date.fromisoformat(expected)


@pytest.mark.parametrize('rollover_at', [MIDNIGHT, COMMODITIES, timedelta(hours=11, minutes=59)])
def test_boundary_after_at_before_and_after_it(rollover_at: timedelta) -> None:
    """The next boundary is strictly after the instant: just before it, it; at it and after it, the one a day later."""
    boundary = datetime(2026, 10, 20, tzinfo=INDIA) + rollover_at
    moment = timedelta(microseconds=1)
    assert boundary_after(boundary - moment, rollover_at) == boundary
    assert boundary_after(boundary, rollover_at) == boundary + timedelta(days=1)
    assert boundary_after(boundary + moment, rollover_at) == boundary + timedelta(days=1)
    assert boundary_after(boundary - timedelta(hours=23), rollover_at) == boundary
    assert boundary_after(boundary, rollover_at).tzinfo is UTC
    assert trading_date(boundary - moment, rollover_at) + timedelta(days=1) == trading_date(boundary, rollover_at)


def test_stored_instants() -> None:
    """A stored instant is UTC in microseconds with a Z, from any zone."""
    assert utc_text(MONDAY_NOON) == '2026-10-19T06:30:00.000000Z'
    assert utc_text(datetime(2026, 10, 19, 6, 30, 0, 7, tzinfo=UTC)) == '2026-10-19T06:30:00.000007Z'
    assert utc_text(datetime(2026, 10, 19, 1, 30, tzinfo=timezone(timedelta(hours=-5)))) == utc_text(MONDAY_NOON)
    assert utc_text(datetime(2026, 10, 19, 8, 30, tzinfo=ZoneInfo('Europe/Berlin'))) == utc_text(MONDAY_NOON)


# -- suspend, step, slew ---------------------------------------------------------------------------------------


def test_three_nights_asleep_are_no_step() -> None:
    """A host that slept for three nights has the new date at once and no step."""
    host = Host()
    clock = host.clock()
    started = clock.steadiness()
    host.let_pass(days=3)
    assert clock.trusted_date(MIDNIGHT) == date(2026, 10, 22)
    assert clock.steadiness() == started
    assert started.since == MONDAY_NOON
    assert started.step == 0


@pytest.mark.parametrize('seconds', [-86400.0, -2.5, 2.5, 3600.0])
def test_a_step_is_noticed(seconds: float) -> None:
    """A clock that is set by more than two seconds has stepped, by that much, at the instant that it was noticed."""
    host = Host()
    clock = host.clock()
    host.let_pass(minutes=5)
    host.set_clock(seconds=seconds)
    host.let_pass(seconds=1)
    steadiness = clock.steadiness()
    assert steadiness.step == seconds
    assert steadiness.since == MONDAY_NOON + timedelta(minutes=5, seconds=1 + seconds)
    assert clock.now() == steadiness.since


@pytest.mark.parametrize('seconds', [-2.0, -0.1, 0.1, 1.9])
def test_a_small_correction_is_no_step(seconds: float) -> None:
    """Two seconds are within what a time service corrects: no step."""
    host = Host()
    clock = host.clock()
    host.set_clock(seconds=seconds)
    assert clock.steadiness().step == 0


def test_a_new_date_after_a_step_counts_after_a_steady_minute() -> None:
    """The date of a clock that was set forward counts once the clock has been steady for a minute, not before."""
    host = Host()
    clock = host.clock()
    host.set_clock(days=1)
    for _ in range(60):
        assert clock.trusted_date(MIDNIGHT) == MONDAY
        host.let_pass(seconds=1)
    assert clock.trusted_date(MIDNIGHT) == TUESDAY
    assert clock.now() == MONDAY_NOON + timedelta(days=1, minutes=1)


def test_a_date_set_back_counts_after_a_steady_minute_too() -> None:
    """A clock that was set back tells the earlier date only after a minute."""
    host = Host()
    clock = host.clock()
    host.set_clock(days=-2)
    assert clock.trusted_date(MIDNIGHT) == MONDAY
    host.let_pass(seconds=59.5)
    assert clock.trusted_date(MIDNIGHT) == MONDAY
    host.let_pass(seconds=0.5)
    assert clock.trusted_date(MIDNIGHT) == date(2026, 10, 17)


def test_a_second_step_starts_the_minute_anew() -> None:
    """A clock that is set again within the minute has its first setting forgotten: it never lasted."""
    host = Host()
    clock = host.clock()
    host.set_clock(days=10)
    assert clock.trusted_date(MIDNIGHT) == MONDAY
    host.let_pass(seconds=50)
    host.set_clock(days=-9)
    assert clock.trusted_date(MIDNIGHT) == MONDAY
    host.let_pass(seconds=50)
    assert clock.trusted_date(MIDNIGHT) == MONDAY
    host.let_pass(seconds=10)
    assert clock.trusted_date(MIDNIGHT) == TUESDAY


def test_a_step_taken_back_within_the_minute_leaves_nothing() -> None:
    """A wrong setting that is put right within a minute never shows in the date."""
    host = Host()
    clock = host.clock()
    dates = []
    for days in (30, -30):
        host.set_clock(days=days)
        for _ in range(30):
            dates.append(clock.trusted_date(MIDNIGHT))
            host.let_pass(seconds=1)
    host.let_pass(minutes=5)
    dates.append(clock.trusted_date(MIDNIGHT))
    assert set(dates) == {MONDAY}


def test_midnight_passes_by_the_old_setting_within_the_minute() -> None:
    """Within the minute after a step, midnight comes when the old setting says so."""
    host = Host(datetime(2026, 10, 19, 23, 59, 30, tzinfo=INDIA))
    clock = host.clock()
    host.set_clock(hours=-2)
    assert clock.trusted_date(MIDNIGHT) == MONDAY
    host.let_pass(seconds=29)
    assert clock.trusted_date(MIDNIGHT) == MONDAY
    host.let_pass(seconds=1)
    assert clock.trusted_date(MIDNIGHT) == TUESDAY
    host.let_pass(seconds=30)
    assert clock.trusted_date(MIDNIGHT) == MONDAY, 'the new setting has lasted a minute: it is 22:00 again'


@pytest.mark.parametrize('ask', [IndiaClock.now, IndiaClock.steadiness, lambda clock: clock.trusted_date(MIDNIGHT)])
@pytest.mark.parametrize('after_a_step', [False, True])
@pytest.mark.parametrize('an_hour', [0.5, -0.5])
def test_slow_slewing_never_counts_as_a_step(
    ask: Callable[[IndiaClock], object], an_hour: float, *, after_a_step: bool
) -> None:
    """Half a second an hour for four months is no step, whatever is asked of the clock meanwhile."""
    host = Host()
    clock = host.clock()
    if after_a_step:
        host.set_clock(days=-1)
        ask(clock)
    before = clock.steadiness()
    for _ in range(24 * 120):
        host.let_pass(hours=1)
        host.set_clock(seconds=an_hour)
        ask(clock)
    assert clock.steadiness() == before
    assert clock.trusted_date(MIDNIGHT) == trading_date(clock.now())


def test_a_step_is_noticed_after_months_of_slewing() -> None:
    """What is followed slowly is not lost track of: a step after it is told by its own size."""
    host = Host()
    clock = host.clock()
    for _ in range(1000):
        host.let_pass(hours=1)
        host.set_clock(seconds=0.5)
        clock.now()
    host.set_clock(seconds=7)
    assert clock.steadiness().step == 7


def test_rollover_at_half_past_five() -> None:
    """A desk that trades past midnight has its own boundary on the same clock."""
    host = Host(datetime(2026, 10, 20, 5, 29, 59, tzinfo=INDIA))
    clock = host.clock()
    assert (clock.trusted_date(COMMODITIES), clock.trusted_date(MIDNIGHT)) == (MONDAY, TUESDAY)
    host.let_pass(seconds=1)
    assert (clock.trusted_date(COMMODITIES), clock.trusted_date(MIDNIGHT)) == (TUESDAY, TUESDAY)


# -- sleeping --------------------------------------------------------------------------------------------------


class Sleeps:
    """Stands in for `anyio.sleep`: the host's time passes, and on the n-th sleep something else happens too."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = host
        self.spans: list[float] = []
        self.during: dict[int, Callable[[], None]] = {}
        monkeypatch.setattr(anyio, 'sleep', self)

    async def __call__(self, seconds: float) -> None:
        self.spans.append(seconds)
        self.host.booted += seconds
        self.during.get(len(self.spans), lambda: None)()


async def test_sleep_until_is_on_time_and_in_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    """An undisturbed sleep ends at its instant, in hops, the last one cut to fit."""
    host = Host()
    sleeps = Sleeps(host, monkeypatch)
    clock = host.clock()
    await clock.sleep_until(MONDAY_NOON + timedelta(seconds=3.25))
    assert clock.now() == MONDAY_NOON + timedelta(seconds=3.25)
    assert sleeps.spans == [1, 1, 1, 0.25]


async def test_sleep_until_the_past_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instant that has passed, or is now, is not waited for."""
    sleeps = Sleeps(host := Host(), monkeypatch)
    await host.clock().sleep_until(MONDAY_NOON)
    await host.clock().sleep_until(MONDAY_NOON - timedelta(days=1))
    assert sleeps.spans == []


@pytest.mark.parametrize('what', ['suspend', 'step'])
async def test_sleep_until_returns_within_a_hop_of_a_suspend_or_step(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A sleeper of hours is back with the hop in which the host slept past its instant, or was set past it."""
    host = Host()
    sleeps = Sleeps(host, monkeypatch)
    jump = host.let_pass if what == 'suspend' else host.set_clock
    sleeps.during[7] = lambda: jump(hours=15)
    await host.clock().sleep_until(MONDAY_NOON + timedelta(hours=12))
    assert len(sleeps.spans) == 7
    assert max(sleeps.spans) <= 1


async def test_sleep_until_goes_on_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set back while somebody sleeps is slept through to the same instant of the clock."""
    host = Host()
    sleeps = Sleeps(host, monkeypatch)
    sleeps.during[2] = lambda: host.set_clock(seconds=-30)
    clock = host.clock()
    await clock.sleep_until(MONDAY_NOON + timedelta(seconds=5))
    assert clock.now() == MONDAY_NOON + timedelta(seconds=5)
    assert sum(sleeps.spans) == 35


# -- the clock that goes by hand -------------------------------------------------------------------------------


def test_manual_clock_advances_and_steps() -> None:
    """It shows what it was told to, in UTC, and a step is told by `steadiness` while time that passes is not."""
    clock = ManualClock(MONDAY_NOON)
    assert clock.now().tzinfo is UTC
    assert clock.steadiness().since == MONDAY_NOON
    clock.advance(timedelta(hours=11, minutes=59))
    clock.advance(MONDAY_NOON + timedelta(hours=12))
    assert clock.now() == MONDAY_NOON + timedelta(hours=12)
    assert clock.trusted_date(MIDNIGHT) == TUESDAY
    assert clock.trusted_date(COMMODITIES) == MONDAY
    assert clock.steadiness().step == 0
    clock.step(timedelta(days=-3))
    assert clock.trusted_date(MIDNIGHT) == date(2026, 10, 17)
    assert clock.steadiness().step == -3 * 86400
    assert clock.steadiness().since == clock.now()


@pytest.mark.parametrize('to', [MONDAY_NOON - timedelta(seconds=1), timedelta(seconds=-1)])
def test_manual_clock_does_not_advance_to_the_past(to: datetime | timedelta) -> None:
    """Time that passes does not go back: that is a step."""
    clock = ManualClock(MONDAY_NOON)
    with pytest.raises(ValueError, match=r'step\(\)'):
        clock.advance(to)
    assert clock.now() == MONDAY_NOON


async def test_manual_clock_wakes_its_sleepers_in_order() -> None:
    """Each sleeper wakes when the clock is moved to its instant or past it, the earlier one first, and not before."""
    clock = ManualClock(MONDAY_NOON)
    woken: list[int] = []

    async def sleeper(minutes: int) -> None:
        await clock.sleep_until(MONDAY_NOON + timedelta(minutes=minutes))
        woken.append(minutes)

    async with anyio.create_task_group() as tasks:
        for minutes in (30, 10, 20, 0, -5):
            tasks.start_soon(sleeper, minutes)
        await anyio.wait_all_tasks_blocked()
        assert woken == [0, -5]
        clock.advance(timedelta(minutes=9, seconds=59))
        await anyio.wait_all_tasks_blocked()
        assert woken == [0, -5]
        clock.advance(timedelta(seconds=1))
        await anyio.wait_all_tasks_blocked()
        assert woken == [0, -5, 10]
        clock.step(timedelta(hours=1))
        await anyio.wait_all_tasks_blocked()
        assert woken == [0, -5, 10, 20, 30]


async def test_manual_clock_set_back_lets_sleepers_wait_on() -> None:
    """A sleeper waits for the instant that the clock shows, also when it was set back in between."""
    clock = ManualClock(MONDAY_NOON)
    done = anyio.Event()

    async def sleeper() -> None:
        await clock.sleep_until(MONDAY_NOON + timedelta(minutes=5))
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper)
        await anyio.wait_all_tasks_blocked()
        clock.step(timedelta(minutes=-10))
        clock.advance(timedelta(minutes=14))
        await anyio.wait_all_tasks_blocked()
        assert not done.is_set()
        clock.advance(timedelta(minutes=1))


async def test_manual_clock_forgets_a_sleeper_that_gave_up() -> None:
    """A sleeper that was cancelled disturbs nobody when its instant comes."""
    clock = ManualClock(MONDAY_NOON)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.sleep_until, MONDAY_NOON + timedelta(minutes=5))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.sleep_until, MONDAY_NOON + timedelta(minutes=5))
        await anyio.wait_all_tasks_blocked()
        clock.advance(timedelta(minutes=5))


def test_a_process_that_is_held_up_sees_no_step() -> None:
    """Held up for seconds between reading one clock and the other, it reads them again: nobody has set anything."""
    uptime, held_up = 1000.0, 0.0

    def wall() -> float:
        nonlocal uptime, held_up
        shown = 1_800_000_000.0 + uptime
        uptime, held_up = uptime + held_up, 0.0
        return shown

    clock = IndiaClock(wall, lambda: uptime)
    since = clock.steadiness()
    for seconds in (3.0, 40.0):
        held_up = seconds
        clock.now()
        assert clock.steadiness() == since
    uptime += 5
    assert clock.steadiness() == since
