"""What systemd is told on its socket: ready, alive, how it is, stopping (sd_notify(3))."""

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from process import Start, until

from trading_agent.clock import ManualClock, trading_date
from trading_agent.config import Config, Desk
from trading_agent.daemon.daemon import Daemon
from trading_agent.trigger import Trigger

TWO_DESKS = """
drain = "200ms"
heartbeat_every = "1s"

[backends.hanging]
kind = "offline"
hang_every = 1

[[desks]]
name = "hanging"
backends = ["hanging"]

[[desks]]
name = "healthy"
"""


class Manager:
    """The service manager's end of the socket.

    Attributes:
        told: What came, each with when, in seconds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[tuple[float, list[str]]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0.05)
        self._closing = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._closing:
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            self.told.append((time.monotonic(), data.decode().split('\n')))

    def when(self, state: str) -> list[float]:
        """Returns when a state was told."""
        return [at for at, states in self.told if state in states]

    def words(self) -> list[str]:
        """Returns each STATUS that was told."""
        return [state[7:] for _, states in self.told for state in states if state.startswith('STATUS=')]

    def close(self) -> None:
        """Ends it."""
        self._closing = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """A service manager."""
    one = Manager(tmp_path / 'notify')
    yield one
    one.close()


async def make_yesterday(workspace: Path) -> str:
    """Makes a workspace whose desks had a session yesterday; returns its id."""
    desks = [Desk(name='hanging'), Desk(name='healthy')]
    clock = ManualClock(datetime.now(UTC) - timedelta(days=1))
    async with Daemon(Config(workspace=workspace, desks=desks), clock, faces=False) as daemon:
        for desk in desks:
            await daemon.bus.send(Trigger('Remember: never sell ABC.', desk.name, id='yesterday'))
        await daemon.supervisor.settled()
        return f'{trading_date(clock.now())}-1'


async def test_ready_alive_stopping(start: Start, manager: Manager, tmp_path: Path) -> None:
    """READY comes although a due rollover's summary hangs, then WATCHDOG and STATUS while it does, STOPPING at last."""
    yesterday = await make_yesterday(tmp_path / 'ws')
    environ = {'NOTIFY_SOCKET': str(manager.path), 'WATCHDOG_USEC': '2000000'}
    daemon = start(TWO_DESKS, environ=environ).ready()
    until(lambda: manager.when('READY=1'), 'systemd is told that it is ready')
    assert not [states for _, states in manager.told[:1] if 'READY=1' not in states and 'STOPPING=1' in states]
    assert daemon.desk('hanging')['session_id'] == yesterday
    assert daemon.desk('hanging')['state'] == 'running'
    daemon.wait_for('rollover_started', desk='hanging')
    daemon.wait_for('rollover_finished', desk='healthy')
    daemon.send('anybody?', 'hanging', id='waits')
    daemon.send('hello', 'healthy')
    daemon.wait_for('turn_finished', desk='healthy')
    until(lambda: len(manager.when('WATCHDOG=1')) >= 5, 'the watchdog is fed')
    pings = manager.when('WATCHDOG=1')
    assert statistics.median(after - before for before, after in pairwise(pings)) < 2.0
    until(lambda: '2 desks, 1 triggers open' in manager.words(), 'the status is told in words')
    assert not daemon.found('rollover_finished', desk='hanging')
    assert daemon.desk('hanging')['session_id'] == yesterday
    assert not manager.when('STOPPING=1')
    assert daemon.stop() == 0
    until(lambda: manager.when('STOPPING=1'), 'systemd is told that it stops')
    assert len(manager.when('READY=1')) == len(manager.when('STOPPING=1')) == 1
    check_gone_on_with(start, yesterday)


def check_gone_on_with(start: Start, yesterday: str) -> None:
    """Checks that a rollover whose summary hung is made in full once the backend is mended."""
    daemon = start(TWO_DESKS.replace('hang_every = 1', ''))
    daemon.wait_for('turn_finished', desk='hanging', trigger_id='waits')
    (written,) = daemon.found('summary_written', desk='hanging')
    assert (written['session_id'], written['quality']) == (yesterday, 'full')
    files = daemon.files_of('hanging')
    assert files.summary(yesterday[:10]).count('## Session') == 1
    assert 'never sell ABC' in files.session(files.session_ids()[-1])[0]['trigger_text']


def test_nobody_listens(start: Start, tmp_path: Path) -> None:
    """A NOTIFY_SOCKET that nobody reads, and a WATCHDOG_USEC for another process, harm nothing."""
    environ = {'NOTIFY_SOCKET': str(tmp_path / 'none'), 'WATCHDOG_USEC': '100000', 'WATCHDOG_PID': '1'}
    daemon = start(environ=environ).ready()
    daemon.send('hello')
    daemon.wait_for('turn_finished')
    assert daemon.stop() == 0
    assert not daemon.odd


def test_parked_desks_are_told(start: Start, manager: Manager, tmp_path: Path) -> None:
    """A desk that had to be parked does not hold up READY, and STATUS names it."""
    (tmp_path / 'ws' / 'desks').mkdir(parents=True)
    (tmp_path / 'ws' / 'desks' / 'hanging').write_text('no folder')
    daemon = start(TWO_DESKS, environ={'NOTIFY_SOCKET': str(manager.path)}).ready()
    until(lambda: manager.when('READY=1'), 'systemd is told that it is ready')
    assert '2 desks, 0 triggers open; PARKED: hanging' in manager.words()
    assert daemon.stop() == 0
