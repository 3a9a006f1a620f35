"""What the daemon tells of itself: its heartbeat, the space on its disk, and what systemd wants to hear."""

import os
import socket
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from daemon_fakes import MORNING, Gate, answered, config_for, daemon_of, send, told, until

from trading_agent import __version__
from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon import scheduler as scheduler_module
from trading_agent.daemon import supervisor as supervisor_module
from trading_agent.daemon import vitals as vitals_module
from trading_agent.daemon.supervisor import Supervisor
from trading_agent.daemon.vitals import Vitals
from trading_agent.disk import Disk
from trading_agent.event_bus import EventBus, Subscription
from trading_agent.events import DaemonHeartbeat, DiskLow
from trading_agent.systemd import Notifier
from trading_agent.units import Duration, Size


async def next_beat(events: Subscription) -> DaemonHeartbeat:
    """Returns a heartbeat that comes from now on."""
    events.ready(1 << 20)
    return (await until(lambda: told(events, DaemonHeartbeat), 'a heartbeat'))[0]


# -- heartbeat ---------------------------------------------------------------------------------------------------


async def test_the_heartbeat(tmp_path: Path) -> None:
    """A heartbeat counts desks by state, turns and open triggers, and names the one that has been due for longest."""
    gate, clock = Gate(), ManualClock(MORNING)
    held = '{"at": "2026-03-10T04:00:00Z", "by": "me", "reason": ""}'
    for name, file in (('parked', '{"version": 99}'), ('held', held)):
        (tmp_path / 'desks' / name).mkdir(parents=True)
        (tmp_path / 'desks' / name / 'paused.json').write_text(file)
    desks = [Desk(name=name, backends=['slow']) for name in ('busy', 'late', 'idle', 'held', 'parked')]
    config = config_for(
        tmp_path,
        desks=desks,
        backends={'slow': gate.backend()},
        heartbeat_every=Duration(0.05),
        max_concurrent_turns=1,
    )
    async with daemon_of(config, clock) as daemon:
        await send(daemon, 'held', 'waits for a person')
        await send(daemon, 'busy', 'runs')
        await until(lambda: daemon.supervisor.desks['busy'].turn, 'it runs')
        clock.advance(timedelta(seconds=30))
        await send(daemon, 'late', 'first')
        await send(daemon, 'idle', 'tomorrow', not_before=MORNING + timedelta(hours=20))
        clock.advance(timedelta(seconds=60))
        with daemon.bus.subscribe(DaemonHeartbeat) as events:
            beat = await next_beat(events)
            assert beat.version == __version__
            assert (beat.desks_running, beat.desks_paused, beat.desks_parked) == (3, 1, 1)
            assert beat.turns_running == 2  # one of them waits for its slot
            assert beat.queue_depth == 4
            assert (beat.oldest_trigger_age_ms, beat.oldest_trigger_desk) == (90_000, 'busy')
            assert beat.summaries_owed == 0
            status = os.statvfs(tmp_path)
            assert beat.disk_free_bytes == pytest.approx(status.f_bavail * status.f_frsize, rel=0.2)
            assert (beat.clock_state, beat.market_hours) == ('steady', True)
            assert 10 << 20 < beat.rss_bytes < 2 << 30
            assert beat.events_skipped == 0
            gate.open()
            await until(lambda: not daemon.supervisor.desks['late'].queue.depth, 'both are answered')
            clock.step(timedelta(hours=6))
            beat = await next_beat(events)
            assert (beat.turns_running, beat.queue_depth) == (0, 2)
            assert (beat.oldest_trigger_age_ms, beat.oldest_trigger_desk) == (None, None)
            assert (beat.clock_state, beat.market_hours) == ('stepped', False)


async def test_owed_summaries_are_counted(tmp_path: Path) -> None:
    """A summary that was made without a model is owed, and each heartbeat says so until it is made in full."""
    clock = ManualClock(datetime(2026, 3, 10, 23, 59, tzinfo=INDIA))
    broken = Backend(kind='test_vitals:reviews_nothing')
    config = config_for(
        tmp_path, desks=[Desk(name='main', backends=['b'])], backends={'b': broken}, heartbeat_every=Duration(0.05)
    )
    async with daemon_of(config, clock) as daemon:
        await answered(daemon, 'main', 'evening')
        with daemon.bus.subscribe(DaemonHeartbeat) as events:
            assert (await next_beat(events)).summaries_owed == 0
            clock.advance(timedelta(minutes=2))
            await until(lambda: daemon.supervisor.desks['main'].session_id == '2026-03-11-1', 'it has rolled over')
            await next_beat(events)  # may have counted before
            assert (await next_beat(events)).summaries_owed == 1


class ReviewsNothing:
    """Answers turns, and no questions."""

    async def run(self, turn: Any) -> Any:  # noqa: ANN401 - a generator of events
        from trading_agent.errors import BackendError
        from trading_agent.routing.turn_runner import TurnAnswered

        if turn.schema is not None:
            raise BackendError('it answers turns only')
        yield TurnAnswered('noted')


def reviews_nothing(_: str, __: dict[str, Any]) -> ReviewsNothing:
    """Makes a backend of this kind."""
    return ReviewsNothing()


async def test_how_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat comes as often as configured, and a change counts at once and not after the old time."""
    monkeypatch.setattr(vitals_module, 'LOOK_SECONDS', 0.02)
    config = config_for(tmp_path, heartbeat_every=Duration(3600))
    async with daemon_of(config) as daemon:
        with daemon.bus.subscribe(DaemonHeartbeat) as events:
            await anyio.sleep(0.2)
            assert told(events, DaemonHeartbeat) == []
            await daemon.configuration.apply(config_for(tmp_path, heartbeat_every=Duration(0.1)))
            began = anyio.current_time()
            await until(lambda: len(events.ready()) or None, 'the first')
            for _ in range(3):
                await until(lambda: len(events.ready()) or None, 'the next')
            assert anyio.current_time() - began > 0.25


async def test_without_files_to_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system tells nothing of memory or disk the heartbeat comes without them, and nothing ends."""

    def refused(path: object, *_: object, **__: object) -> Any:  # noqa: ANN401 - never returns
        raise OSError(24, 'Too many open files')

    config = config_for(tmp_path, heartbeat_every=Duration(0.05))
    async with daemon_of(config) as daemon:
        monkeypatch.setattr(os, 'statvfs', refused)
        monkeypatch.setattr(Path, 'read_text', refused)
        with daemon.bus.subscribe(DaemonHeartbeat, DiskLow) as events:
            beat = await next_beat(events)
            assert (beat.rss_bytes, beat.disk_free_bytes) == (0, None)
        monkeypatch.undo()
        await answered(daemon, 'main', 'after')


# -- disk --------------------------------------------------------------------------------------------------------


class Space:
    """A file system of 100 GB of which the test says how much is free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_gb = 50.0
        monkeypatch.setattr(os, 'statvfs', self)

    def __call__(self, _: object) -> os.statvfs_result:
        block = 4096
        size = 100 * 10**9 // block
        free = int(self.free_gb * 10**9) // block
        reserved = size // 20  # what only root may use is not free
        return os.statvfs_result((block, block, size, free + reserved, free, 0, 0, 0, 0, 255))


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Space:
    """Stands in for the file system, which is looked at all the time."""
    monkeypatch.setattr(vitals_module, 'DISK_SECONDS', 0.01)
    return Space(monkeypatch)


class Host:
    """A daemon's vitals alone."""

    def __init__(self, config: Config, environ: dict[str, str] | None = None) -> None:
        self.bus = EventBus()
        self.config = config
        self.beats = [0.0]
        self.vitals = Vitals(
            config=lambda: self.config,
            supervisor=Supervisor(self.bus),
            bus=self.bus,
            clock=ManualClock(MORNING),
            disk=Disk(),
            notifier=Notifier(environ or {}),
            beats=lambda: self.beats,
        )


async def test_once_an_episode(tmp_path: Path, space: Space) -> None:
    """A disk that gets low is told once, with what is free, and again when it has been well in between."""
    host = Host(config_for(tmp_path, disk_low=Size(10**9), disk_low_percent=5.0))
    async with anyio.create_task_group() as tasks:
        with host.bus.subscribe(DiskLow) as events:
            tasks.start_soon(host.vitals.run)
            await anyio.sleep(0.1)
            assert told(events, DiskLow) == []
            for _ in range(2):
                space.free_gb = 4.2
                (event,) = await until(lambda: told(events, DiskLow), 'it is told')
                assert (event.disk_free_percent, event.path) == (4.2, str(tmp_path))
                assert event.disk_free_bytes == pytest.approx(4.2 * 10**9, rel=0.001)
                assert 'free some space' in event.hint
                space.free_gb = 3.0
                await anyio.sleep(0.1)
                assert told(events, DiskLow) == []
                space.free_gb = 5.1
                await anyio.sleep(0.1)
                assert told(events, DiskLow) == []
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    'case',
    [
        ({'disk_low': Size(10**9), 'disk_low_percent': 0.0}, 0.99, True),
        ({'disk_low': Size(10**9), 'disk_low_percent': 0.0}, 1.01, False),
        ({'disk_low': Size(0), 'disk_low_percent': 2.0}, 1.99, True),
        ({'disk_low': Size(0), 'disk_low_percent': 2.0}, 2.01, False),
        ({'disk_low': Size(0), 'disk_low_percent': 0.0}, 0.0, False),
        ({}, 2.01, False),
        ({}, 1.99, True),
    ],
)
def test_the_thresholds(
    tmp_path: Path, space: Space, monkeypatch: pytest.MonkeyPatch, case: tuple[dict[str, Any], float, bool]
) -> None:
    """Either threshold of the configuration is enough; none is crossed before its value."""
    thresholds, free_gb, low = case
    monkeypatch.setattr(anyio, 'current_time', lambda: 0.0)
    host = Host(config_for(tmp_path, **thresholds))
    space.free_gb = free_gb
    with host.bus.subscribe(DiskLow) as events:
        host.vitals._tell_low(*(vitals_module._space(tmp_path) or (0, 0)))
        assert bool(told(events, DiskLow)) == low


def test_again_after_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stays low is told every ten minutes; a changed threshold counts from the next look on."""
    now = 1000.0
    monkeypatch.setattr(anyio, 'current_time', lambda: now)
    host = Host(config_for(tmp_path, disk_low=Size(100), disk_low_percent=0.0))
    told_at = []
    with host.bus.subscribe(DiskLow) as events:
        for minute in range(61):
            now = 1000.0 + 60 * minute
            host.vitals._tell_low(99, 1000)
            told_at += [minute] * len(told(events, DiskLow))
        assert told_at == [0, 10, 20, 30, 40, 50, 60]
        host.config = config_for(tmp_path, disk_low=Size(50), disk_low_percent=0.0)
        host.vitals._tell_low(99, 1000)
        host.config = config_for(tmp_path, disk_low=Size(100), disk_low_percent=0.0)
        host.vitals._tell_low(99, 1000)
        assert len(told(events, DiskLow)) == 1


# -- systemd -----------------------------------------------------------------------------------------------------


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Listens as systemd does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / 'notify'))
        listener.settimeout(0)
        yield listener


def heard(manager: socket.socket) -> list[str]:
    """Returns what systemd was told since the last look."""
    states: list[str] = []
    while True:
        try:
            states += manager.recv(65536).decode().split('\n')
        except BlockingIOError:
            return states


async def test_the_watchdog_attests_every_part(tmp_path: Path, manager: socket.socket) -> None:
    """While one part is not alive the watchdog is not fed, and it is again once that part is."""
    host = Host(config_for(tmp_path), {'NOTIFY_SOCKET': str(tmp_path / 'notify'), 'WATCHDOG_USEC': '400000'})
    now = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        host.beats = [now + 1000, now + 1000]
        tasks.start_soon(host.vitals.run)
        await until(lambda: heard(manager).count('WATCHDOG=1') or None, 'it is fed')
        host.beats = [now + 1000, now - 1]
        await anyio.sleep(0.11)
        heard(manager)
        await anyio.sleep(0.5)
        assert heard(manager) == []
        host.beats = [now + 1000, now + 1000]
        await until(lambda: 'WATCHDOG=1' in heard(manager), 'it is fed again')
        tasks.cancel_scope.cancel()


async def test_a_scheduler_that_stands_still(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon whose scheduler no longer looks is not attested, although its desks go on answering."""
    for module in (scheduler_module, supervisor_module):
        monkeypatch.setattr(module, 'TICK_SECONDS', 0.02)
    environ = {'NOTIFY_SOCKET': str(tmp_path / 'notify'), 'WATCHDOG_USEC': '400000'}
    async with daemon_of(config_for(tmp_path / 'ws'), notifier=Notifier(environ)) as daemon:
        states = heard(manager)
        assert 'READY=1' in states
        await until(lambda: heard(manager).count('WATCHDOG=1') or None, 'it is fed')
        monkeypatch.setattr(scheduler_module, 'TICK_SECONDS', 3600)
        await anyio.sleep(0.5)
        heard(manager)
        await anyio.sleep(0.5)
        assert 'WATCHDOG=1' not in heard(manager)
        await answered(daemon, 'main', 'meanwhile')


async def test_the_status_in_words(tmp_path: Path, manager: socket.socket) -> None:
    """The status line names what is paused and parked."""
    (tmp_path / 'desks' / 'bad').mkdir(parents=True)
    (tmp_path / 'desks' / 'bad' / 'paused.json').write_text('{"version": 99}')
    desks = [Desk(name='main'), Desk(name='bad')]
    environ = {'NOTIFY_SOCKET': str(tmp_path / 'notify')}
    config = config_for(tmp_path, desks=desks, heartbeat_every=Duration(0.05))
    async with daemon_of(config, notifier=Notifier(environ)) as daemon:
        assert 'STATUS=2 desks, 0 triggers open; PARKED: bad' in heard(manager)
        await daemon.supervisor.desks['main'].pause('me', 'lunch', now=False)
        await until(
            lambda: 'STATUS=2 desks, 0 triggers open; PAUSED: main; PARKED: bad' in heard(manager), 'systemd is told'
        )
