"""What systemd is told, over a socket like its own."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from trading_agent.systemd import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of the notification socket, in a folder of its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / 'notify'))
        listener.settimeout(30)
        yield listener


def environ(manager: socket.socket) -> dict[str, str]:
    """Returns the environment that the manager gives a service."""
    return {'NOTIFY_SOCKET': manager.getsockname()}


def test_states_arrive_in_one_message(manager: socket.socket) -> None:
    """Several states go together, one a line, as sd_notify(3) has it."""
    Notifier(environ(manager)).send('READY=1', 'STATUS=2 desks, 1 parked ₹')
    assert manager.recv(4096) == 'READY=1\nSTATUS=2 desks, 1 parked ₹'.encode()


def test_an_abstract_socket() -> None:
    """An address that begins with @ is in the abstract namespace."""
    name = f'trading-agent-test-{os.getpid()}'
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind('\0' + name)
        listener.settimeout(30)
        Notifier({'NOTIFY_SOCKET': f'@{name}'}).send('WATCHDOG=1')
        assert listener.recv(4096) == b'WATCHDOG=1'


@pytest.mark.parametrize('address', [None, '', '/nowhere/notify', '@trading-agent-nobody', 'x' * 300, 'vsock:2:1', '@'])
def test_no_manager_is_no_fault(address: str | None) -> None:
    """Without a manager, or with one that is gone or cannot be reached, nothing happens."""
    Notifier({} if address is None else {'NOTIFY_SOCKET': address}).send('READY=1')


def test_text_that_is_no_utf8_is_sent_all_the_same(manager: socket.socket) -> None:
    """A status with a lone surrogate, from a file name for example, does not raise."""
    Notifier(environ(manager)).send('STATUS=a\udcffb')
    assert manager.recv(4096) == b'STATUS=a?b'


def test_a_manager_that_does_not_read_is_not_waited_for(manager: socket.socket) -> None:
    """When the manager's socket is full, and when a message is too large for it, sending returns at once."""
    notifier = Notifier(environ(manager))
    notifier.send('STATUS=' + 'x' * (16 << 20))
    for number in range(2000):
        notifier.send(f'STATUS={number}', 'X=' + 'x' * 1000)
    assert manager.recv(4096).startswith(b'STATUS=0\n')


def test_the_environment_of_the_process(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an environment the process's own is read."""
    monkeypatch.setenv('NOTIFY_SOCKET', manager.getsockname())
    monkeypatch.setenv('WATCHDOG_USEC', '30000000')
    monkeypatch.setenv('WATCHDOG_PID', str(os.getpid()))
    notifier = Notifier()
    notifier.send('STOPPING=1')
    assert manager.recv(4096) == b'STOPPING=1'
    assert notifier.watchdog_seconds == 30


@pytest.mark.parametrize(
    ('variables', 'seconds'),
    [
        ({}, None),
        ({'WATCHDOG_USEC': '10000000'}, 10.0),
        ({'WATCHDOG_USEC': '1500000', 'WATCHDOG_PID': str(os.getpid())}, 1.5),
        ({'WATCHDOG_USEC': '10000000', 'WATCHDOG_PID': '1'}, None),
        ({'WATCHDOG_USEC': '10000000', 'WATCHDOG_PID': ''}, None),
        ({'WATCHDOG_USEC': '0'}, None),
        ({'WATCHDOG_USEC': '-5'}, None),
        ({'WATCHDOG_USEC': 'soon'}, None),
        ({'WATCHDOG_USEC': ''}, None),
    ],
)
def test_the_watchdogs_patience(variables: dict[str, str], seconds: float | None) -> None:
    """The watchdog's time is that of WATCHDOG_USEC, when it is meant for this process; nonsense means none."""
    assert Notifier(variables).watchdog_seconds == seconds
