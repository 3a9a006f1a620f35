"""The command line against a control server on a real socket, with a fake desk behind it, and against real files."""

import asyncio
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import click
import msgspec
import pytest
from cli_fakes import call, lonely, on_terminal, start

from trading_agent import __version__, config, settings
from trading_agent.cli import client, hold, init, unit
from trading_agent.cli.main import COMMANDS, cli
from trading_agent.cli.options import Options
from trading_agent.daemon.sources.control import ControlServer
from trading_agent.daemon.status import (
    BackendStatus,
    ClockStatus,
    DaemonInfo,
    DeskStatus,
    ReloadResult,
    RolloverResult,
    Status,
    TriggerResult,
    TurnStatus,
)
from trading_agent.errors import ConfigurationError, DaemonUnreachable, DeskUnusable, Problem
from trading_agent.event_bus import EventBus
from trading_agent.events import Outcome, TriggerClosed, TurnOutput
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_state import SessionState
from trading_agent.memory.session_store import SessionStore
from trading_agent.trigger import Receipt, Trigger

NOON = datetime(2026, 10, 19, 6, 30, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


class Daemon:
    """A control server in a thread, and the desk `main` behind it, which answers as it is told."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.socket = workspace / 'control.sock'
        self.received: list[Trigger] = []
        self.results: dict[str, TriggerResult] = {}
        self.answer: Callable[[Trigger], None] = lambda _: None
        self.state: Any = 'running'
        self.reason = ''
        self.turn: TurnStatus | None = None
        self.queue = 0
        self.told: list[Any] = []
        self.failures: dict[str, Exception] = {}
        self.more: list[DeskStatus] = []
        self.empty = False
        self.bus = EventBus()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: ControlServer | None = None
        self._ready: queue.Queue[None] = queue.Queue()
        self._thread = threading.Thread(target=lambda: anyio.run(self._serve))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = ControlServer(self.bus, self, self.socket, run_id='run-1')
        self.bus.attach('main', self._receive)
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._server.run)
            self._ready.put(None)

    def start(self) -> None:
        self._thread.start()
        self._ready.get(timeout=30)

    def stop(self) -> None:
        assert self._loop is not None
        assert self._server is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _receive(self, trigger: Trigger) -> Receipt:
        if trigger.id in {earlier.id for earlier in self.received}:
            return Receipt(trigger.id, trigger.desk, 'duplicate')
        self.received.append(trigger)
        self.answer(trigger)
        return Receipt(trigger.id, trigger.desk, 'accepted')

    def say(self, trigger: Trigger, *pieces: str, turn: str = '1') -> None:
        for piece in pieces:
            self.bus.publish(
                TurnOutput(desk='main', trigger_id=trigger.id, turn_id=turn, backend='offline', text=piece)
            )

    def close(self, trigger: Trigger, answer: str | None, outcome: Outcome = 'answered') -> None:
        self.results[trigger.id] = TriggerResult(outcome, answer, 'offline', '2026-10-19-1')
        self.bus.publish(TriggerClosed(desk='main', trigger_id=trigger.id, outcome=outcome))

    def status(self) -> Status:
        desks = [self.status_of('main'), *self.more]
        return Status(DaemonInfo(__version__, 'run-1', 7, NOON), ClockStatus(NOON, 'steady'), desks)

    def status_of(self, name: str, *, configured: bool = True) -> DeskStatus:
        return DeskStatus(
            name=name,
            state=self.state,
            reason=self.reason,
            session_id='2026-10-19-1',
            trading_date=date(2026, 10, 19),
            exchanges=2,
            queue=self.queue,
            oldest_trigger_at=None,
            turn=self.turn,
            last_turn_at=NOON,
            backends=[BackendStatus('offline', 'up')] if configured else [],
            next_boundary=datetime(2026, 10, 19, 18, 30, tzinfo=UTC),
        )

    def has_desk(self, desk: str) -> bool:
        return desk == 'main' or any(desk == more.name for more in self.more if more.backends)

    async def pause(self, desk: str, by: str, reason: str, *, now: bool) -> DeskStatus:
        return self.tell('pause', desk, by, reason, now)

    async def resume(self, desk: str, by: str) -> DeskStatus:
        return self.tell('resume', desk, by)

    def tell(self, what: str, desk: str, *more: Any) -> DeskStatus:  # noqa: ANN401 - as they come
        self.told.append((what, desk, *more))
        if desk in self.failures:
            raise self.failures[desk]
        return self.status_of(desk)

    async def cancel(self, desk: str, trigger_id: str, by: str, reason: str) -> TriggerResult | None:
        self.tell('cancel', desk, trigger_id, by, reason)
        return TriggerResult('cancelled') if trigger_id.startswith('replay/') else None

    async def reload(self) -> ReloadResult:
        self.tell('reload', 'configuration')
        return ReloadResult(['desk b', 'component watch'], ['drain'], ['desk c'])

    async def result_of(self, desk: str, trigger_id: str) -> TriggerResult | None:
        return self.results.get(trigger_id)

    async def roll_over(self, desk: str) -> RolloverResult:
        if self.state == 'parked':
            raise DeskUnusable('main is parked', self.reason)
        if self.empty:
            return RolloverResult(rolled_over=False, session_id='2026-10-19-1')
        return RolloverResult(rolled_over=True, session_id='2026-10-19-2', previous_session_id='2026-10-19-1')


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds a daemon or a configuration of this machine."""
    lonely(tmp_path, monkeypatch)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon in the workspace that `run` would choose here."""
    workspace = tmp_path / 'workspace'
    workspace.mkdir()
    running = Daemon(workspace)
    running.start()
    yield running
    running.stop()


def answer_once(listener: socket.socket, answer: bytes) -> None:
    """Answers one request with these bytes, whatever they are, and ends the connection."""
    connection, _ = listener.accept()
    with connection:
        request = b''
        # To its end: what is left unread would turn the answer into a reset.
        while not request.endswith(b'}' if request.startswith(b'POST') else b'\r\n\r\n'):
            request += connection.recv(1 << 16)
        connection.sendall(answer)


# -- finding the daemon --------------------------------------------------------------------------------------------


def test_without_a_daemon_every_place_that_was_tried_is_told(tmp_path: Path) -> None:
    """No daemon is exit 69, one line for the error and one for the hint, with each socket that was tried."""
    result = call('status')
    assert result.exit_code == 69
    assert result.stdout == ''
    error, hint = result.stderr.rstrip('\n').split('\n')
    assert error == (
        'error: no daemon answers; tried workspace/control.sock (No such file or directory), '
        f'{tmp_path}/run/control.sock (No such file or directory)'
    )
    assert hint.startswith('hint: start one with `trading-agent run`')


def test_a_named_workspace_alone_is_looked_into(daemon: Daemon, tmp_path: Path) -> None:
    """With --workspace another daemon is not taken for the one that was meant."""
    assert call('status').exit_code == 0
    result = call('status', '--workspace', 'other')
    assert result.exit_code == 69
    assert 'tried other/control.sock (No such file or directory)\n' in result.stderr


@pytest.mark.parametrize('how', ['--workspace', '--config', 'TRADING_AGENT_CONFIG', 'TRADING_AGENT_WORKSPACE', 'place'])
def test_the_daemon_is_found_where_run_would_work(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The client looks in the workspace that `run` would choose, however it is told."""
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path / 'elsewhere')
    file = tmp_path / 'elsewhere' / ('trading-agent.toml' if how == 'place' else 'desk.toml')
    file.write_text('workspace = "../workspace"\n')
    options = []
    if how.startswith('--'):
        options = [how, str(daemon.workspace if how == '--workspace' else file)]
    elif how != 'place':
        monkeypatch.setenv(how, str(daemon.workspace if how.endswith('WORKSPACE') else file))
    assert call('status', *options).exit_code == 0


def test_a_configuration_that_does_not_load_leaves_the_usual_place(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a spoilt file the daemon of systemd is still found; where there is none, the file is told."""
    Path('spoilt.toml').write_text('workspace')
    result = call('--config', 'spoilt.toml', 'status')
    assert result.exit_code == 69
    assert 'spoilt.toml: is not TOML' in result.stderr
    monkeypatch.setattr(client, 'RUNTIME_FOLDER', daemon.workspace)
    assert call('--config', 'spoilt.toml', 'status').exit_code == 0


def test_the_lock_names_the_socket(daemon: Daemon, tmp_path: Path) -> None:
    """A daemon whose socket is not in its workspace is found by its lock; a lock that says nothing is no obstacle."""
    place = tmp_path / 'place'
    place.mkdir()
    lock = place / 'trading-agent.lock'
    lock.write_text(json.dumps({'pid': 7, 'control_socket': str(daemon.socket)}))
    assert call('--workspace', 'place', 'status').exit_code == 0
    for text in ('', '{', '[]', '{"control_socket": null}'):
        lock.write_text(text)
        result = call('--workspace', 'place', 'status')
        assert (result.exit_code, 'tried place/control.sock' in result.stderr) == (69, True)
        lock.with_name('control.sock').unlink(missing_ok=True)
        lock.with_name('control.sock').symlink_to(daemon.socket)
        assert call('--workspace', 'place', 'status').exit_code == 0
        lock.with_name('control.sock').unlink()


def test_a_stale_socket_is_no_daemon(tmp_path: Path) -> None:
    """A socket that nobody listens on is told as refused."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / 'control.sock'))
    result = call('--workspace', '.', 'status')
    assert (result.exit_code, 'control.sock (Connection refused)' in result.stderr) == (69, True)


def test_a_socket_with_a_long_path_is_reached(tmp_path: Path) -> None:
    """A workspace whose socket has a path of more than 107 bytes is like any other."""
    workspace = tmp_path / ('long' * 40)
    workspace.mkdir()
    daemon = Daemon(workspace)
    daemon.start()
    try:
        assert call('--workspace', str(workspace), 'status').exit_code == 0
    finally:
        daemon.stop()


def test_a_daemon_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    """Whoever takes the connection and stays silent is given up after the time-out."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / 'control.sock'))
        silent.listen()
        with (
            client.connect(Options(workspace=tmp_path)) as reached,
            pytest.raises(DaemonUnreachable, match=r'control\.sock \(no answer within 0\.05 s\)'),
        ):
            reached.request('GET', '/v1/status', timeout=0.05)


@pytest.mark.parametrize(
    ('answer', 'told'),
    [
        (b'', 'went away before it had answered'),
        (b'rubbish\r\n\r\n', 'went away before it had answered'),
        (b'HTTP/1.1 OK\r\n\r\n', 'went away before it had answered'),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 2', 'went away before it had answered'),
        (b'x' * 100_000, 'went away before it had answered'),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{', 'went away before it had answered'),
        (b'HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\noops', "makes no sense: b'oops'"),
    ],
)
def test_an_answer_that_is_cut_off_or_rubbish_is_an_error(tmp_path: Path, answer: bytes, told: str) -> None:
    """A connection that ends too early and an answer that is none are told in words, with exit code 1."""
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(str(tmp_path / 'control.sock'))
        odd.listen()

        thread = threading.Thread(target=answer_once, args=(odd, answer))
        thread.start()
        result = call('--workspace', '.', 'status')
        thread.join(30)
    assert result.exit_code == 1
    assert told in result.stderr


# -- options, help, errors -----------------------------------------------------------------------------------------


def test_the_options_stand_before_or_after_the_command(daemon: Daemon) -> None:
    """`--json` and `--workspace` mean the same on either side, and the later of two wins."""
    workspace = str(daemon.workspace)
    for arguments in (
        ['--json', '--workspace', workspace, 'status'],
        ['status', '--json', '--workspace', workspace],
        ['--workspace', 'wrong', 'status', '--json', '--workspace', workspace],
        ['--workspace', workspace, 'rollover', 'main', '--json'],
        ['--workspace', workspace, 'rollover', '--json', 'main'],
    ):
        json.loads(call(*arguments).stdout)
    assert call('--workspace', workspace, 'status', '--workspace', 'wrong').exit_code == 69


def test_the_help_lists_every_command_in_its_own_words() -> None:
    """The help needs no command's module; what it says of each is what the command says of itself."""
    code = 'import sys; from trading_agent.cli.main import main\ntry: main()\nfinally: print(*sys.modules)'
    shown = subprocess.run([sys.executable, '-c', code, '--help'], capture_output=True, text=True, check=True).stdout
    for name, (target, about) in COMMANDS.items():
        assert re.search(rf'^  {name} +{re.escape(about)}$', shown, re.MULTILINE)
        assert target.split(':')[0] not in shown.split()
        if find_spec(target.split(':')[0]):
            command = cli.get_command(click.Context(cli), name)
            assert command is not None
            assert command.name == name
            assert (command.help or '').startswith(about.rstrip('.')), name


def test_a_command_that_is_not_there_is_told_with_the_nearest() -> None:
    """An unknown command, a missing argument and an unknown option are usage errors: exit 2."""
    result = call('statsu')
    assert (result.exit_code, "did you mean 'status'?" in result.stderr) == (2, True)
    for arguments in (['send', 'main'], ['status', '--nonsense'], ['send', 'main', 'x', '--priority', 'urgent']):
        assert call(*arguments).exit_code == 2
    assert call('--version').stdout == f'trading-agent, version {__version__}\n'


def test_errors_of_ours_become_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each problem of a configuration is told on its own lines with exit 78; a line break in an error is none."""
    problems = [Problem('a.toml: x', 'there is no such\nkey', 'remove it'), Problem('a.toml: y', 'is empty')]

    def fail(_: Options) -> None:
        raise ConfigurationError(problems)

    monkeypatch.setattr(client, 'connect', fail)
    result = call('status')
    assert result.exit_code == 78
    assert result.stderr == ('error: a.toml: x: there is no such key\nhint: remove it\nerror: a.toml: y: is empty\n')


def test_ctrl_c_is_exit_130(daemon: Daemon) -> None:
    """A client that is interrupted while it waits ends at once, without a traceback."""
    process = start('send', 'main', 'hello', '--wait', '--workspace', str(daemon.workspace))
    deadline = time.monotonic() + 30
    while not daemon.received:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ('', '')
    assert process.returncode == 130


def test_a_reader_that_goes_away_is_no_error() -> None:
    """A pipe that is closed ends the command without a word."""
    process = start('events', '--catalog')
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ''
    process.stderr.close()
    process.wait(30)


def test_status_imports_nothing_heavy(daemon: Daemon) -> None:
    """`status`, `send` and the stream of events need no Rich, no server, no log, no event loop and no msgspec."""
    heavy = {
        'rich',
        'starlette',
        'uvicorn',
        'structlog',
        'anyio',
        'asyncio',
        'msgspec',
        'pydantic',
        'httpx',
    }
    code = 'import sys; from trading_agent.cli.main import main\ntry: main()\nfinally: print(*sys.modules)'
    daemon.answer = lambda trigger: daemon.close(trigger, 'yes')
    for arguments in (['status'], ['status', '--json'], ['send', 'main', 'hello'], ['send', 'main', 'hello', '--wait']):
        command = [sys.executable, '-c', code, '--workspace', str(daemon.workspace), *arguments]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert not heavy & set(shown.split()), arguments


# -- status and rollover -------------------------------------------------------------------------------------------


def test_status_for_programs(daemon: Daemon) -> None:
    """`status --json` has exactly the documented keys."""
    status = json.loads(call('status', '--json').stdout)
    assert list(status) == ['daemon', 'clock', 'desks']
    assert list(status['daemon']) == ['version', 'run_id', 'pid', 'started_at']
    assert list(status['clock']) == ['now_ist', 'state']
    [desk] = status['desks']
    assert list(desk) == [
        'name',
        'state',
        'reason',
        'session_id',
        'trading_date',
        'exchanges',
        'queue',
        'oldest_trigger_at',
        'turn',
        'last_turn_at',
        'backends',
        'next_boundary',
        'usage',
        'last_backend',
        'last_preferred',
    ]
    assert desk['usage'] == {'session': {}, 'day': {}}
    assert desk['backends'] == [{'name': 'offline', 'state': 'up'}]


def test_status_for_people_without_a_terminal(daemon: Daemon) -> None:
    """In a pipe `status` is plain columns without colour, with the reason of a desk that is not well."""
    daemon.state, daemon.reason = 'parked', 'the disk is full: free some space'
    shown = call('status').stdout
    assert re.search(r'^main +parked +0 +- +0s ago +offline +2026-10-19-1 +2 +20 Oct 00:00$', shown, re.MULTILINE)
    assert shown.endswith('main: the disk is full: free some space\n')
    assert '\x1b' not in shown


def test_status_for_people_on_a_terminal(daemon: Daemon) -> None:
    """On a terminal the state is in words and in colour, with NO_COLOR in words alone."""
    shown = on_terminal('status', '--workspace', str(daemon.workspace))
    assert '\x1b[32mrunning\x1b[0m' in shown
    plain = on_terminal('status', '--workspace', str(daemon.workspace), NO_COLOR='1')
    assert 'running' in plain
    assert '\x1b' not in plain


def test_status_fits_a_terminal_of_80_columns(daemon: Daemon) -> None:
    """No line is longer than the terminal: reasons wrap, and a command in one is never broken in two."""
    daemon.state, daemon.queue, daemon.turn = 'paused', 12, TurnStatus('a-1', 1, NOON, 'claude-opus')
    daemon.reason = f'paused by anil at 11:20 IST on 19 Oct: {"fills look wrong, " * 9}(`trading-agent resume main`)'
    daemon.more = [daemon.status_of('commodities-and-everything-else')]
    shown = on_terminal('status', '--workspace', str(daemon.workspace), columns=80)
    lines = re.sub(r'\x1b\[[0-9;]*m', '', shown).split('\n')
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith('main: paused by anil') for line in lines) == 1
    assert sum('`trading-agent resume main`' in line for line in lines) == 2
    assert any(line.startswith('main ') and 'paused' in line and 'claude-opus 0s' in line for line in lines)


def test_rollover_tells_what_came_of_it(daemon: Daemon) -> None:
    """A rollover names both sessions, an empty one says so, and a parked desk is a refusal: exit 1."""
    assert call('rollover', 'main').stdout == 'main: 2026-10-19-1 has ended, 2026-10-19-2 has begun\n'
    assert json.loads(call('rollover', 'main', '--json').stdout) == {
        'rolled_over': True,
        'session_id': '2026-10-19-2',
        'previous_session_id': '2026-10-19-1',
    }
    daemon.empty = True
    result = call('rollover', 'main')
    assert (result.exit_code, result.stdout) == (0, 'main: nothing to do, 2026-10-19-1 has no exchanges\n')
    daemon.state, daemon.reason = 'parked', 'mend the disk'
    result = call('rollover', 'main')
    assert (result.exit_code, result.stderr) == (1, 'error: main is parked\nhint: mend the disk\n')
    assert call('rollover', 'a/../b').exit_code == 1


# -- holding a desk ------------------------------------------------------------------------------------------------


@pytest.fixture
def anil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests is called anil."""
    monkeypatch.setattr(hold, 'login_name', lambda: 'anil')


def test_pause_and_resume_tell_what_came_of_it(daemon: Daemon, anil: None) -> None:
    """`pause` and `resume` say who and why to the daemon, and to the person what the desk does now."""
    daemon.state, daemon.queue = 'paused', 3
    result = call('pause', 'main', '--reason', 'expiry day')
    assert (result.exit_code, result.stdout) == (0, 'main: paused; 3 triggers wait\n')
    assert daemon.told == [('pause', 'main', 'anil', 'expiry day', False)]
    daemon.turn = TurnStatus('a-1', 1, NOON, 'claude')
    assert (
        call('pause', 'main').stdout == 'main: paused; the turn of a-1 on claude goes on to its end; 2 triggers wait\n'
    )
    assert 'does not let itself be interrupted' in call('pause', 'main', '--now').stdout
    assert daemon.told[-1] == ('pause', 'main', 'anil', '', True)
    daemon.state, daemon.turn, daemon.queue = 'running', None, 1
    result = call('resume', 'main')
    assert (result.exit_code, result.stdout) == (0, 'main: running; 1 trigger waits\n')
    assert daemon.told[-1] == ('resume', 'main', 'anil')
    daemon.queue = 0
    assert call('resume', 'main').stdout == 'main: running\n'
    daemon.state, daemon.reason = 'parked', 'a file stands in its place'
    assert call('pause', 'main').stdout == 'main: is parked, and stays so: a file stands in its place\n'


def test_every_desk_is_held_and_each_is_reported(daemon: Daemon, anil: None) -> None:
    """`--all` goes through the desks in the daemon's order, past those that fail: exit 1 when any did."""
    daemon.more = [daemon.status_of('options'), daemon.status_of('futures'), daemon.status_of('old', configured=False)]
    daemon.failures = {'options': DeskUnusable('the desk options cannot be cut off', 'restart the daemon')}
    result = call('resume', '--all')
    assert (result.exit_code, result.stdout) == (1, 'main: running\nfutures: running\n')
    assert result.stderr == (
        'old: left out, \nerror: options: the desk options cannot be cut off\nhint: restart the daemon\n'
    )
    assert [desk for _, desk, *_ in daemon.told] == ['main', 'options', 'futures']
    told = json.loads(call('resume', '--all', '--json').stdout)
    assert told['ok'] is False
    assert [(desk['name'], desk['ok']) for desk in told['desks']] == [
        ('main', True),
        ('options', False),
        ('futures', True),
    ]
    daemon.failures = {}
    assert call('pause', '--all').exit_code == 0


def test_pause_for_programs(daemon: Daemon, anil: None) -> None:
    """`--json` has each desk's status with `ok`, or what is wrong with `error` and `hint`, and the same exit code."""
    told = json.loads(call('pause', 'main', '--json').stdout)
    assert (told['ok'], told['desks'][0]['name'], told['desks'][0]['state']) == (True, 'main', 'running')
    result = call('pause', 'mian', '--json')
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        'ok': False,
        'desks': [
            {
                'name': 'mian',
                'ok': False,
                'error': "no desk is named 'mian'",
                'hint': "the desks are main; did you mean 'main'?",
            }
        ],
    }
    assert result.stderr.startswith("error: no desk is named 'mian'\nhint: ")


def test_one_desk_or_all_of_them(daemon: Daemon) -> None:
    """Naming no desk, or a desk beside --all, is a usage error, and nothing is done."""
    for command in ('pause', 'resume'):
        for arguments in ([], ['main', '--all']):
            result = call(command, *arguments)
            assert (result.exit_code, 'name a DESK, or say --all' in result.stderr) == (2, True)
    assert daemon.told == []


def test_cancel_says_who_and_why(daemon: Daemon, anil: None) -> None:
    """`cancel` reaches a trigger whatever its id; an unknown one or one that was closed before is exit 1."""
    result = call('cancel', 'main', 'replay/2025-12-16/7', '--reason', 'sent twice')
    assert (result.exit_code, result.stdout) == (0, 'main: replay/2025-12-16/7 is cancelled\n')
    assert daemon.told == [('cancel', 'main', 'replay/2025-12-16/7', 'anil', 'sent twice')]
    assert json.loads(call('cancel', 'main', 'replay/a b%2F?#', '--json').stdout)['id'] == 'replay/a b%2F?#'
    result = call('cancel', 'main', 'a-1')
    assert (result.exit_code, result.stdout) == (1, '')
    assert result.stderr.startswith("error: main knows no trigger 'a-1'\nhint: ")
    daemon.results['a-2'] = TriggerResult('answered', 'yes', 'offline', '2026-10-19-1')
    result = call('cancel', 'main', 'a-2', '--json')
    assert (result.exit_code, json.loads(result.stdout)['outcome']) == (1, 'answered')
    assert 'a-2 was closed before as answered' in result.stderr


def test_who_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The person is the one whom sudo serves, or who logged in, or a number where the machine knows no name."""
    monkeypatch.delenv('SUDO_USER', raising=False)
    monkeypatch.setattr(os, 'getuid', lambda: 0)
    assert hold.login_name() == 'root'
    monkeypatch.setenv('SUDO_USER', 'anil')
    assert hold.login_name() == 'anil as root'
    monkeypatch.setattr(os, 'getuid', lambda: 987_654)
    assert hold.login_name() == 'uid 987654'


# -- reload --------------------------------------------------------------------------------------------------------


def test_reload_tells_what_has_changed(daemon: Daemon) -> None:
    """`reload` lists what it changed; a configuration that is refused is exit 78 with each problem and its hint."""
    result = call('reload')
    assert (result.exit_code, result.stdout) == (
        0,
        'added desk b\nadded component watch\nchanged drain\nremoved desk c\n',
    )
    assert json.loads(call('reload', '--json').stdout)['removed'] == ['desk c']
    problems = [Problem('a.toml: x', 'there is no such key', 'remove it'), Problem('a.toml: y', 'is empty')]
    daemon.failures = {'configuration': ConfigurationError(problems)}
    result = call('reload')
    assert (result.exit_code, result.stdout) == (78, '')
    assert result.stderr == 'error: a.toml: x: there is no such key\nhint: remove it\nerror: a.toml: y: is empty\n'
    result = call('reload', '--json')
    assert result.exit_code == 78
    assert [problem['where'] for problem in json.loads(result.stdout)['problems']] == ['a.toml: x', 'a.toml: y']
    daemon.failures = {'configuration': DeskUnusable('not now')}
    assert call('reload').exit_code == 1


# -- send ----------------------------------------------------------------------------------------------------------


def test_send_prints_the_receipt(daemon: Daemon) -> None:
    """`send --json` prints exactly the receipt; accepted and duplicate are exit 0, for people in words."""
    result = call('send', 'main', 'hello', '--id', 'a-1', '--json')
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {'id': 'a-1', 'desk': 'main', 'status': 'accepted', 'reason': None}
    result = call('send', 'main', 'hello', '--id', 'a-1', '--json')
    assert (result.exit_code, json.loads(result.stdout)['status']) == (0, 'duplicate')
    assert call('send', 'main', 'hello', '--id', 'a-2').stdout == 'accepted a-2\n'
    assert call('send', 'main', 'hello', '--id', 'a-2').stdout == 'duplicate a-2: main was sent it before\n'
    first, _ = daemon.received
    assert (first.text, first.priority, first.source, first.not_before) == ('hello', 'person', 'cli', None)


def test_send_takes_times_and_priority(daemon: Daemon) -> None:
    """--at, --expires-in and --priority reach the desk; a mistake in one is a usage error and nothing is sent."""
    at = '2099-01-01T09:15:00+05:30'
    result = call('send', 'main', 'hello', '--at', at, '--expires-in', '10m', '--priority', 'timer')
    assert result.exit_code == 0
    [trigger] = daemon.received
    assert trigger.priority == 'timer'
    assert trigger.not_before == datetime(2099, 1, 1, 3, 45, tzinfo=UTC)
    assert trigger.expires_at == datetime(2099, 1, 1, 3, 55, tzinfo=UTC)
    for wrong in (['--at', 'noon'], ['--at', '2099-01-01T09:15:00'], ['--expires-in', '10']):
        result = call('send', 'main', 'hello', *wrong)
        assert (result.exit_code, wrong[0] in result.stderr) == (2, True)
    assert len(daemon.received) == 1


def test_send_reads_stdin(daemon: Daemon) -> None:
    """A TEXT of `-` is stdin, as UTF-8 and without the newline at its end; other bytes are refused."""
    assert call('send', 'main', '-', stdin='₹ is up\nand NIFTY\n').exit_code == 0
    assert daemon.received[0].text == '₹ is up\nand NIFTY'
    result = call('send', 'main', '-', stdin=b'ab\xff')
    assert (result.exit_code, result.stderr) == (1, 'error: standard input is not UTF-8 (byte 2)\n')
    assert len(daemon.received) == 1


@pytest.mark.parametrize('wait', [[], ['--wait']])
def test_a_refusal_is_exit_1(daemon: Daemon, wait: list[str]) -> None:
    """A refused trigger is told on stderr; --json prints its receipt, within an empty result where one waits."""
    receipt = {'id': 'a-1', 'desk': 'mian', 'status': 'refused', 'reason': 'unknown_desk'}
    told = "error: no desk is named 'mian'\nhint: the desks are main; did you mean 'main'?\n"
    result = call('send', 'mian', 'hello', '--id', 'a-1', *wait)
    assert (result.exit_code, result.stdout, result.stderr) == (1, '', told)
    result = call('send', 'mian', 'hello', '--id', 'a-1', '--json', *wait)
    assert (result.exit_code, result.stderr) == (1, told)
    nothing = {'outcome': None, 'answer': None, 'backend': None, 'session_id': None}
    assert json.loads(result.stdout) == ({'receipt': receipt, **nothing} if wait else receipt)
    result = call('send', 'main', ' ', '--id', 'a-1', '--json', *wait)
    assert result.exit_code == 1
    assert 'blank' in result.stderr


def test_an_odd_argument_is_no_traceback(daemon: Daemon) -> None:
    """Bytes that are not UTF-8 in an argument, as a terminal of another encoding sends them, are taken or refused."""
    assert call('send', 'main', 'a\udcffb').exit_code == 0
    assert daemon.received[0].text == 'a\ufffdb'
    for desk in ('', 'a/b', '../main', 'm\udcff', 'a b?c#d'):
        result = call('send', desk, 'hello')
        assert result.exit_code == 1
        assert result.stderr.startswith('error: ')


def test_send_waits_for_the_answer(daemon: Daemon) -> None:
    """`--wait` prints the answer on stdout, `--wait --json` the whole result, and a duplicate gets the same answer."""

    def answer(trigger: Trigger) -> None:
        daemon.say(trigger, 'NIFTY ', 'is up')
        daemon.close(trigger, 'NIFTY is up')

    daemon.answer = answer
    result = call('send', 'main', 'hello', '--wait', '--id', 'a-1')
    assert (result.exit_code, result.stdout, result.stderr) == (0, 'NIFTY is up\n', '')
    for status, trigger_id in (('accepted', 'a-2'), ('duplicate', 'a-1')):
        result = call('send', 'main', 'hello', '--wait', '--json', '--id', trigger_id)
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {
            'receipt': {'id': trigger_id, 'desk': 'main', 'status': status, 'reason': None},
            'outcome': 'answered',
            'answer': 'NIFTY is up',
            'backend': 'offline',
            'session_id': '2026-10-19-1',
        }
    assert call('send', 'main', 'hello', '--wait', '--id', 'a-1').stdout == 'NIFTY is up\n'


def test_the_answer_is_printed_as_it_comes(daemon: Daemon) -> None:
    """The first piece is on stdout before the answer is complete."""
    daemon.answer = lambda trigger: daemon.say(trigger, 'NIFTY is up\n')
    process = start('send', 'main', 'hello', '--wait', '--workspace', str(daemon.workspace))
    assert process.stdout is not None
    assert process.stdout.readline() == 'NIFTY is up\n'
    assert process.poll() is None
    assert daemon._loop is not None
    daemon._loop.call_soon_threadsafe(daemon.close, daemon.received[0], 'NIFTY is up\n')
    assert process.communicate(timeout=30) == ('', '')
    assert process.returncode == 0


def test_an_answer_that_starts_over_or_was_missed_in_part_is_printed_whole(daemon: Daemon) -> None:
    """After a restart the answer comes anew; where pieces were missed the whole answer follows, and stderr says so."""

    def start_over(trigger: Trigger) -> None:
        daemon.say(trigger, 'NIF')
        daemon.say(trigger, 'NIFTY is up', turn='2')
        daemon.close(trigger, 'NIFTY is up')

    daemon.answer = start_over
    result = call('send', 'main', 'hello', '--wait')
    assert result.stdout == 'NIF\nNIFTY is up\n'
    assert 'starts over' in result.stderr

    def miss(trigger: Trigger) -> None:
        daemon.say(trigger, 'is up')
        daemon.close(trigger, 'NIFTY is up')

    daemon.answer = miss
    result = call('send', 'main', 'hello', '--wait')
    assert result.stdout == 'is up\nNIFTY is up\n'
    assert 'the whole answer' in result.stderr


def test_an_answer_cannot_command_the_terminal(daemon: Daemon) -> None:
    """Control characters in an answer are shown as such to people, and are whole for programs."""

    def answer(trigger: Trigger) -> None:
        daemon.say(trigger, '\x1b[2J', 'gone')
        daemon.close(trigger, '\x1b[2Jgone')

    daemon.answer = answer
    assert call('send', 'main', 'hello', '--wait').stdout == '\ufffd[2Jgone\n'
    assert json.loads(call('send', 'main', 'hello', '--wait', '--json').stdout)['answer'] == '\x1b[2Jgone'


@pytest.mark.parametrize('outcome', ['failed', 'stale', 'cancelled', 'quarantined', 'unknown'])
def test_a_trigger_that_ends_without_an_answer_is_exit_1(daemon: Daemon, outcome: Outcome) -> None:
    """Any other outcome than answered is told with what to do, and is exit 1."""
    daemon.answer = lambda trigger: daemon.close(trigger, None, outcome)
    result = call('send', 'main', 'hello', '--wait')
    assert (result.exit_code, result.stdout) == (1, '')
    assert result.stderr.startswith(f'error: the trigger was closed as {outcome}\nhint: ')
    result = call('send', 'main', 'hello', '--wait', '--json')
    assert (result.exit_code, json.loads(result.stdout)['outcome']) == (1, outcome)


def test_a_daemon_that_stops_is_told_to_who_waits(daemon: Daemon) -> None:
    """Who waits when the daemon stops gets the receipt, the reason, and exit 1."""
    process = start('send', 'main', 'hello', '--wait', '--json', '--id', 'a-1', '--workspace', str(daemon.workspace))
    deadline = time.monotonic() + 30
    while not daemon.received:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    daemon.stop()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert json.loads(out)['receipt']['id'] == 'a-1'
    assert json.loads(out)['outcome'] is None
    assert err == (
        'error: the daemon is stopping\n'
        'hint: it may have been accepted: send it again with --id a-1 to see what became of it\n'
    )


def test_a_daemon_that_vanishes_leaves_the_id_to_ask_with(tmp_path: Path) -> None:
    """When the connection ends before the receipt, or before the result, the error names the id to send again."""
    begun = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n'
    piece = b'{"text": "NIF"}\n'
    for answer, out in ((b'', ''), (begun + piece, 'NIF\n'), (begun + piece + b'{"te', 'NIF\n')):
        (tmp_path / 'control.sock').unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as odd:
            odd.bind(str(tmp_path / 'control.sock'))
            odd.listen()
            thread = threading.Thread(target=answer_once, args=(odd, answer))
            thread.start()
            result = call('--workspace', '.', 'send', 'main', 'hello', '--wait', '--id', 'a-1')
            thread.join(30)
        assert (result.exit_code, result.stdout) == (1, out)
        assert 'went away before it had answered' in result.stderr
        assert 'send it again with --id a-1' in result.stderr


# -- events --------------------------------------------------------------------------------------------------------


def test_events_are_printed_as_they_happen(daemon: Daemon) -> None:
    """`events --json` prints one event a line at once, those that were chosen; a stop of the daemon ends it."""
    arguments = ['events', '--desk', 'main', '--event', 'turn_output', '--event', 'trigger_closed']
    process = start(*arguments, '--json', '--workspace', str(daemon.workspace))
    people = start('events', '--workspace', str(daemon.workspace))
    assert daemon._loop is not None
    deadline = time.monotonic() + 30
    while len(daemon.bus._waiting) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    def happen() -> None:
        daemon.bus.publish(TriggerClosed(desk='other', trigger_id='b-1', outcome='failed'))
        daemon.say(Trigger('x', 'main', id='a-1'), 'NIFTY is up')
        daemon.bus.publish(TriggerClosed(desk='main', trigger_id='a-1', outcome='answered'))

    daemon._loop.call_soon_threadsafe(happen)
    assert process.stdout is not None
    assert people.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [line['event'] for line in lines] == ['turn_output', 'trigger_closed']
    assert lines[0]['text'] == 'NIFTY is up'
    assert list(lines[1]) == ['timestamp', 'level', 'event', 'run_id', 'seq', 'desk', 'trigger_id', 'outcome']
    assert re.fullmatch(
        r'\d\d:\d\d:\d\d info     other trigger_closed trigger_id=b-1 outcome=failed\n', people.stdout.readline()
    )
    daemon.stop()
    for ended in (process, people):
        _, err = ended.communicate(timeout=30)
        assert (ended.returncode, err.split('\n')[0]) == (1, 'error: the daemon is stopping')


def test_an_event_that_does_not_exist_is_told(daemon: Daemon) -> None:
    """A wrong event or desk is a refusal with what was probably meant: exit 1."""
    result = call('events', '--event', 'sesion_started')
    assert (result.exit_code, "did you mean 'session_started'?" in result.stderr) == (1, True)
    result = call('events', '--desk', 'a&b=c')
    assert (result.exit_code, "no desk is named 'a&b=c'" in result.stderr) == (1, True)


def test_the_catalog_needs_no_daemon() -> None:
    """`events --catalog` lists every event with exactly its level, fields and meaning."""
    events = json.loads(call('events', '--catalog', '--json').stdout)
    assert all(list(event) == ['event', 'level', 'fields', 'about'] for event in events)
    [started] = [event for event in events if event['event'] == 'session_started']
    assert started['fields']['session_id'] == 'the session, such as `2026-10-19-1`'
    shown = call('events', '--catalog').stdout
    assert all(f'{event["event"]} ({event["level"]}): ' in shown for event in events)
    assert '\x1b' not in shown


# -- records -------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    """The sessions of the desk `main`: two days, the second of them current, without a daemon."""
    store = SessionStore(tmp_path / 'workspace' / 'desks' / 'main' / 'sessions', lambda: date(2026, 10, 19))
    for number, day in enumerate((date(2026, 10, 16), date(2026, 10, 19))):
        session_id = store.new_session_id(day)
        for hour in (4, 5):
            store.append_exchange(
                session_id,
                Exchange(
                    f'NIFTY at {hour}?\nNow.',
                    f'It is {hour + number}.',
                    'offline',
                    f'{day}T0{hour}:00:00.000000Z',
                    trigger_id=f'a-{hour}',
                ),
            )
        store.save_state(SessionState(session_id, day))
    store.write_summary_section('2026-10-15-1', 'Sold everything.')
    store.write_summary_section('2026-10-16-1', 'Held.', degraded=True)
    return store


def test_sessions_are_listed_newest_first(store: SessionStore) -> None:
    """`sessions --json` has exactly the documented keys; the current session is marked."""
    assert json.loads(call('sessions', 'main', '--json').stdout) == [
        {
            'id': '2026-10-19-1',
            'trading_date': '2026-10-19',
            'exchanges': 2,
            'first_at': '2026-10-19T04:00:00.000000Z',
            'last_at': '2026-10-19T05:00:00.000000Z',
            'current': True,
            'usage': {},
        },
        {
            'id': '2026-10-16-1',
            'trading_date': '2026-10-16',
            'exchanges': 2,
            'first_at': '2026-10-16T04:00:00.000000Z',
            'last_at': '2026-10-16T05:00:00.000000Z',
            'current': False,
            'usage': {},
        },
    ]
    shown = call('sessions', 'main').stdout
    assert re.search(r'^2026-10-19-1 +2 +2026-10-19 09:30:00 +2026-10-19 10:30:00 +current$', shown, re.MULTILINE)
    store.create_session('2026-10-19-2')
    newest, *_ = json.loads(call('sessions', 'main', '--json').stdout)
    assert (newest['id'], newest['first_at'], newest['current']) == ('2026-10-19-2', None, False)


def test_show_is_the_current_session_unless_one_is_named(store: SessionStore) -> None:
    """`show --json` has the exchanges as they are stored; without a SESSION those of the current one."""
    shown = json.loads(call('show', 'main', '--json').stdout)
    assert shown['session_id'] == '2026-10-19-1'
    assert shown['exchanges'] == [exchange.to_json_dictionary() for exchange in store.exchanges('2026-10-19-1')]
    assert list(shown) == ['session_id', 'exchanges', 'usage']
    assert json.loads(call('show', 'main', '2026-10-16-1', '--json').stdout)['exchanges'][0]['answer'] == 'It is 4.'
    assert call('show', 'main').stdout == (
        'session 2026-10-19-1, 2 exchanges\n'
        '\n2026-10-19 09:30:00 IST, offline, trigger a-4\n> NIFTY at 4?\n> Now.\nIt is 5.\n'
        '\n2026-10-19 10:30:00 IST, offline, trigger a-5\n> NIFTY at 5?\n> Now.\nIt is 6.\n'
    )


def test_without_a_state_the_newest_session_is_current(store: SessionStore) -> None:
    """Where the state is missing or names a session without a log, the newest log is shown."""
    state = store.directory / 'state.json'
    store.save_state(SessionState('2026-10-18-1', date(2026, 10, 18)))
    assert json.loads(call('show', 'main', '--json').stdout)['session_id'] == '2026-10-19-1'
    state.unlink()
    assert json.loads(call('show', 'main', '--json').stdout)['session_id'] == '2026-10-19-1'
    state.write_text('{')
    result = call('show', 'main', '--json')
    assert json.loads(result.stdout)['session_id'] == '2026-10-19-1'
    assert result.stderr.startswith(f'warning: {Path("workspace/desks/main/sessions/state.json")} cannot be read: ')


def test_summaries_are_listed_newest_first(store: SessionStore) -> None:
    """`summaries --json` has exactly the documented keys, and tells which ones still wait for a full one."""
    assert json.loads(call('summaries', 'main', '--json').stdout) == [
        {'trading_date': '2026-10-16', 'text': '## Session 2026-10-16-1 (degraded)\n\nHeld.', 'degraded': True},
        {'trading_date': '2026-10-15', 'text': '## Session 2026-10-15-1\n\nSold everything.', 'degraded': False},
    ]
    assert call('summaries', 'main').stdout == (
        '# 2026-10-16 (degraded: a full one is owed)\n## Session 2026-10-16-1 (degraded)\n\nHeld.\n'
        '\n# 2026-10-15\n## Session 2026-10-15-1\n\nSold everything.\n'
    )


def test_a_damaged_line_is_told_and_the_rest_is_shown(store: SessionStore) -> None:
    """A line that cannot be read is a warning on stderr with its number, and no reason to show nothing."""
    with store.log_path('2026-10-19-1').open('ab') as log:
        log.write(b'{"trigger_text"\n')
    result = call('show', 'main', '--json')
    assert len(json.loads(result.stdout)['exchanges']) == 2
    assert re.search(r'^warning: .*2026-10-19-1\.jsonl, line 3 cannot be read: ', result.stderr)


def test_records_that_are_not_there(store: SessionStore, tmp_path: Path) -> None:
    """An unknown desk or session is exit 1 with those that there are; a desk without records is empty."""
    for command in ('sessions', 'show', 'summaries'):
        for desk, hint in (('mian', "did you mean 'main'?"), ('../desks/main', 'there is main'), ('zzz', 'there is')):
            result = call(command, desk)
            assert (result.exit_code, result.stdout) == (1, '')
            assert hint in result.stderr
        assert '--workspace' in call(command, 'main', '--workspace', 'nowhere').stderr
    for session in ('2026-10-18-1', '../state', ''):
        result = call('show', 'main', session) if session else call('show', 'main', '--', 'x')
        assert (result.exit_code, '2026-10-19-1' in result.stderr) == (1, True)
    (tmp_path / 'workspace' / 'desks' / 'new').mkdir()
    assert json.loads(call('sessions', 'new', '--json').stdout) == []
    assert json.loads(call('summaries', 'new', '--json').stdout) == []
    assert call('sessions', 'new').stderr == 'new has had no session yet\n'
    assert call('summaries', 'new').stderr == 'new has no summary yet\n'
    assert call('show', 'new').exit_code == 1


# -- check ---------------------------------------------------------------------------------------------------------


def test_check_tells_what_is_wrong() -> None:
    """`check` is exit 0 or 78, with the documented keys, and says which file it used."""
    result = call('check', '--json')
    assert (result.exit_code, json.loads(result.stdout)) == (0, {'ok': True, 'problems': []})
    assert result.stderr == 'checked the built-in default (there is no file)\n'
    file = Path('trading-agent.toml')
    file.write_text('[[desks]]\nname = "Main"\nbackends = ["gtp"]\n[backends.gpt]\nkind = "a:b"\n')
    result = call('check', '--json')
    assert result.exit_code == 78
    assert json.loads(result.stdout) == {
        'ok': False,
        'problems': [
            {
                'where': 'trading-agent.toml: desks[0].name',
                'what': "'Main' is no desk name",
                'hint': 'a-z, 0-9, _ and -, at most 63',
            },
            {
                'where': 'trading-agent.toml: desks[0].backends',
                'what': "there is no backend 'gtp'",
                'hint': "did you mean 'gpt'?",
            },
        ],
    }
    result = call('check')
    assert result.exit_code == 78
    assert result.stdout.endswith('checked trading-agent.toml: 2 problems\n')
    file.write_text('workspace = "var"\n')
    result = call('check')
    assert (result.exit_code, result.stdout) == (0, 'checked trading-agent.toml: ok, the workspace is var\n')
    assert call('check', '--config', 'missing.toml').exit_code == 78


PLUG_IN = """
class Runner:
    async def run(self, turn):
        yield

def make(name, options):
    if 'api_key' not in options:
        raise TypeError('no api_key')
    return Runner()

async def component(bus, options):
    pass

nothing = 5
"""


def test_check_makes_what_the_daemon_would_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in, a component, a variable or a credential that is missing is a problem each, told by name: exit 78."""
    (tmp_path / 'checked_plug_in.py').write_text(PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ('MODEL_KEY', 'CREDENTIALS_DIRECTORY'):
        monkeypatch.delenv(name, raising=False)
    Path('trading-agent.toml').write_text(
        '[backends.gone]\nkind = "no_such_package:make"\n'
        '[backends.mine]\nkind = "checked_plug_in:make"\napi_key_env = "MODEL_KEY"\n'
        '[backends.theirs]\nkind = "checked_plug_in:make"\napi_key_credential = "model-key"\n'
        '[backends.unused]\nkind = "no_such_package_either:make"\n'
        '[[desks]]\nname = "main"\nbackends = ["gone", "mine"]\n'
        '[[desks]]\nname = "options"\nbackends = ["mine", "theirs"]\n'
        '[[components]]\nname = "gone"\nentry = "no_such_component:run"\n'
        '[[components]]\nname = "odd"\nentry = "checked_plug_in:nothing"\n'
        '[[components]]\nname = "fine"\nentry = "checked_plug_in:component"\n'
    )
    result = call('check', '--json')
    assert result.exit_code == 78
    problems = {problem['where']: problem['what'] for problem in json.loads(result.stdout)['problems']}
    assert list(problems) == [
        'trading-agent.toml: backends.gone.kind',
        'trading-agent.toml: backends.mine.api_key_env',
        'trading-agent.toml: backends.theirs.api_key_credential',
        'trading-agent.toml: components.gone.entry',
        'trading-agent.toml: components.odd.entry',
    ]
    assert 'no_such_package' in problems['trading-agent.toml: backends.gone.kind']
    assert problems['trading-agent.toml: backends.mine.api_key_env'] == 'the environment variable MODEL_KEY is not set'
    assert 'model-key' in problems['trading-agent.toml: backends.theirs.api_key_credential']


def test_check_takes_what_systemd_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential that the unit gives to the daemon is a warning where systemd does not run the check: exit 0."""
    (tmp_path / 'held_plug_in.py').write_text(PLUG_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv('CREDENTIALS_DIRECTORY', raising=False)
    Path('trading-agent.toml').write_text(
        '[backends.mine]\nkind = "held_plug_in:make"\napi_key_credential = "model-key"\n'
        '[[desks]]\nname = "main"\nbackends = ["mine"]\n'
    )
    assert call('check').exit_code == 78
    drop_in = unit.UNIT.with_name('trading-agent.service.d') / 'keys.conf'
    drop_in.parent.mkdir()
    unit.UNIT.write_text('[Service]\nType=notify\n')
    drop_in.write_text('[Service]\nLoadCredential=model-key:/etc/trading-agent/model-key\n')
    result = call('check')
    assert result.exit_code == 0
    assert 'warning: trading-agent.toml: backends.mine.api_key_credential: ' in result.stdout
    assert result.stdout.endswith('checked trading-agent.toml: ok, the workspace is workspace\n')
    drop_in.write_text('[Service]\nLoadCredential=another-key:/etc/trading-agent/another-key\n')
    assert call('check').exit_code == 78


def test_check_compares_drain_with_the_unit() -> None:
    """Where the unit is at hand and stops the daemon too soon for `drain`, that is a warning with both: exit 0."""
    Path('trading-agent.toml').write_text('drain = "2m"\n')
    assert 'warning' not in call('check').stdout
    unit.UNIT.write_text('[Service]\nTimeoutStopSec=90\n')
    result = call('check', '--json')
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told['ok'] is True
    [problem] = told['problems']
    assert problem['where'] == f'{unit.UNIT}: TimeoutStopSec'
    assert '90 s leave no time for drain = 120 s' in problem['what']
    assert 'systemctl edit trading-agent' in problem['hint']
    shown = call('check').stdout
    assert shown.startswith(f'warning: {unit.UNIT}: TimeoutStopSec: ')
    assert shown.endswith(': ok, the workspace is workspace\n')
    unit.UNIT.write_text('[Service]\nTimeoutStopSec=3min\n')
    assert 'warning' not in call('check').stdout


def test_the_unit_of_this_checkout_leaves_time_for_the_usual_drain() -> None:
    """The unit that is shipped goes with the configuration that is shipped."""
    unit.UNIT.write_text((ROOT / 'systemd' / 'trading-agent.service').read_text())
    result = call('--config', str(ROOT / 'config' / 'trading-agent.toml'), 'check')
    assert (result.exit_code, 'warning' in result.stdout) == (0, False)


# -- init ----------------------------------------------------------------------------------------------------------


def test_init_writes_a_configuration_and_says_how_to_go_on(tmp_path: Path) -> None:
    """`init` makes the folder and its configuration, which loads with the workspace beside it; two commands follow."""
    result = call('init', 'new desk/here')
    assert result.exit_code == 0
    file = Path('new desk/here/trading-agent.toml')
    assert result.stdout == (
        f'wrote {file}; now start the daemon, and in another terminal talk to its desk:\n'
        f"    trading-agent --config '{file}' run\n"
        f"    trading-agent --config '{file}' send main 'What do you know so far?' --wait\n"
    )
    loaded = config.load(file, environ={})
    assert loaded.workspace == file.parent / 'workspace'
    assert not loaded.workspace.exists()
    told = json.loads(call('init', 'other', '--json').stdout)
    assert (told['config'], len(told['next'])) == ('other/trading-agent.toml', 2)


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    """A configuration that is there, or a file in the folder's place, is left as it is: exit 1."""
    Path('trading-agent.toml').write_text('mine')
    Path('file').write_text('mine')
    for folder, named in (('.', 'trading-agent.toml'), ('file', 'file')):
        result = call('init', folder)
        assert (result.exit_code, result.stdout) == (1, '')
        assert result.stderr.startswith(f'error: {named} is there already, and is left as it is\nhint: ')
    assert Path('trading-agent.toml').read_text() == Path('file').read_text() == 'mine'
    result = call('init', 'file/below')
    assert (result.exit_code, 'Not a directory' in result.stderr) == (1, True)


def test_the_starter_is_the_shipped_configuration() -> None:
    """config/trading-agent.toml is the text that `init` writes, byte for byte; the package brings it along."""
    assert (ROOT / 'config' / 'trading-agent.toml').read_bytes() == init.starter().encode()
    packaged = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['setuptools']['package-data']
    assert 'cli/starter.toml' in packaged['trading_agent']


def test_the_starter_has_every_key_at_its_default(tmp_path: Path) -> None:
    """The starter names every key there is, each with its default: loaded it equals no configuration at all."""
    text = init.starter()
    file = tmp_path / 'starter.toml'
    file.write_text(text)
    loaded = config.load(file, environ={})
    assert msgspec.structs.replace(loaded, file=None) == msgspec.structs.replace(
        config.Config(), backends=loaded.backends
    )
    assert config.options_of(loaded.backends['offline']) == config.OfflineOptions()
    for table in (settings.File, settings.Desk, settings.OfflineOptions, settings.Component):
        for key in table.__struct_fields__:
            assert re.search(rf'^(# )?(\[+)?{key}\b', text, re.MULTILINE), key


# -- why -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def records(store: SessionStore) -> Path:
    """The folder of the desk `main`, whose second session has the exchange of the trigger `a-5`; `a-6` waits."""
    lines = [
        {'type': 'header', 'version': 1, 'desk': 'main'},
        {'type': 'accepted', 'at': '2026-10-19T04:59:00Z', 'trigger': trigger_record('a-5', 'NIFTY at 5?\nNow.')},
        {'type': 'started', 'at': '2026-10-19T04:59:02.500000Z', 'id': 'a-5', 'attempt': 1},
        {'type': 'interrupted', 'at': '2026-10-19T04:59:07Z', 'id': 'a-5', 'attempt': 1, 'reason': 'pause'},
        {'type': 'started', 'at': '2026-10-19T04:59:58Z', 'id': 'a-5', 'attempt': 2},
        {'type': 'closed', 'at': '2026-10-19T05:00:00Z', 'id': 'a-5', 'outcome': 'answered',
         'session_id': '2026-10-19-1'},
        {'type': 'accepted', 'at': '2026-10-19T05:01:00Z', 'trigger': trigger_record('a-6', 'Still there?')},
    ]  # fmt: skip
    folder = store.directory.parent
    (folder / 'triggers.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    return folder


def trigger_record(trigger_id: str, text: str) -> dict[str, str]:
    """Returns a trigger as it stands in triggers.jsonl."""
    return {
        'text': text,
        'desk': 'main',
        'id': trigger_id,
        'source': 'inbox',
        'priority': 'feed',
        'received_at': '2026-10-19T04:58:59Z',
    }


def test_why_tells_a_whole_story(records: Path) -> None:
    """`why` tells, without a daemon, when a trigger came, waited, ran, was interrupted and closed, and its exchange."""
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in records.rglob('*') if path.is_file()}
    result = call('why', 'main', 'a-5')
    assert result.exit_code == 0
    assert result.stdout == (
        'a-5, a trigger of main: answered\n'
        '  received    2026-10-19 10:28:59 IST from inbox, priority feed\n'
        '  accepted    2026-10-19 10:29:00 IST\n'
        '  waited      2.5s\n'
        '  attempt 1   2026-10-19 10:29:02 IST, interrupted by `pause --now` after 4.5s\n'
        '  attempt 2   2026-10-19 10:29:58 IST, answered by offline after 2.0s\n'
        '  closed      2026-10-19 10:30:00 IST as answered\n'
        '  exchange    sessions/2026-10-19-1.jsonl, line 2 (`trading-agent show main 2026-10-19-1`)\n'
        '  records     triggers.jsonl, lines 2, 3, 4, 5, 6\n'
        '  text        NIFTY at 5?\n'
        '              Now.\n'
        '  answer      It is 6.\n'
    )
    assert before == {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in records.rglob('*') if path.is_file()
    }


def test_why_for_programs(records: Path) -> None:
    """`why --json` has the facts, the exchange with its file and line, and each step with its file and line."""
    told = json.loads(call('why', 'main', 'a-5', '--json').stdout)
    assert list(told) == [
        'id', 'desk', 'state', 'source', 'priority', 'received_at', 'not_before', 'expires_at', 'text', 'waited_ms',
        'attempts', 'turn', 'outcome', 'closed_at', 'session_id', 'backend', 'model', 'exchange', 'steps', 'earlier',
        'turns', 'events', 'usage',
    ]  # fmt: skip
    assert (told['state'], told['waited_ms'], told['attempts'], told['backend']) == ('answered', 2500, 2, 'offline')
    exchange = told['exchange']
    assert (exchange['path'], exchange['line'], exchange['answer']) == ('sessions/2026-10-19-1.jsonl', 2, 'It is 6.')
    assert [(step['what'], step['line']) for step in told['steps']] == [
        ('accepted', 2),
        ('started', 3),
        ('interrupted', 4),
        ('started', 5),
        ('closed', 6),
    ]
    waiting = json.loads(call('why', 'main', 'a-6', '--json').stdout)
    assert (waiting['state'], waiting['outcome'], waiting['exchange'], waiting['turn']) == ('waiting', None, None, None)


def test_why_takes_a_part_of_an_id(records: Path) -> None:
    """A beginning or another part of an id is enough while it is the only one; else the near ones are told: exit 1."""
    with (records / 'triggers.jsonl').open('a') as log:
        for trigger_id in ('18eca61dae92353b-db04f55f6ce3', '18eca61dae92353b-ffffffffffff'):
            record = {'type': 'accepted', 'at': '2026-10-19T05:02:00Z', 'trigger': trigger_record(trigger_id, 'x')}
            log.write(json.dumps(record) + '\n')
    for part in ('18eca61dae92353b-d', '…db04f55f6ce3', 'db04'):
        assert call('why', 'main', part).stdout.startswith('18eca61dae92353b-db04f55f6ce3, ')
    result = call('why', 'main', '18eca')
    assert (result.exit_code, result.stdout) == (1, '')
    assert result.stderr == (
        "error: 2 triggers of main have '18eca' in their id\n"
        'hint: say more of it: 18eca61dae92353b-db04f55f6ce3, 18eca61dae92353b-ffffffffffff\n'
    )
    result = call('why', 'main', 'a5')
    assert (result.exit_code, 'did you mean a-5' in result.stderr) == (1, True)
    for unknown in ('zzz', '', '…'):
        result = call('why', 'main', unknown)
        assert (result.exit_code, 'the last ones are a-6, 18eca' in result.stderr) == (1, True)
    result = call('why', 'mian', 'a-5')
    assert (result.exit_code, "did you mean 'main'?" in result.stderr) == (1, True)


def test_why_knows_what_the_daemon_runs(daemon: Daemon, records: Path) -> None:
    """With a daemon a trigger that was started is running on a backend; without its word it was cut off."""
    with (records / 'triggers.jsonl').open('a') as log:
        log.write('{"type":"started","at":"2026-10-19T05:01:01Z","id":"a-6","attempt":1}\n')
    daemon.turn = TurnStatus('another', 1, NOON, 'claude')
    assert call('why', 'main', 'a-6').stdout.startswith('a-6, a trigger of main: cut off\n')
    daemon.turn = TurnStatus('a-6', 1, NOON, 'claude')
    shown = call('why', 'main', 'a-6').stdout
    assert shown.startswith('a-6, a trigger of main: running\n')
    assert '10:31:01 IST, running on claude for ' in shown
    told = json.loads(call('why', 'main', 'a-6', '--json').stdout)
    assert (told['state'], told['backend'], told['turn']['attempt']) == ('running', 'claude', 1)


def test_a_long_story_fits_on_a_screen(records: Path) -> None:
    """Fifty attempts, a long text and a long answer are told on one screen of 24 lines of 80 columns."""
    with (records / 'triggers.jsonl').open('a') as log:
        record = {'type': 'accepted', 'at': '2026-10-19T05:02:00Z'}
        log.write(json.dumps(record | {'trigger': trigger_record('long', 'a line of text\n' * 100)}) + '\n')
        for attempt in range(1, 51):
            log.write(f'{{"type":"started","at":"2026-10-19T05:03:00Z","id":"long","attempt":{attempt}}}\n')
            log.write(
                f'{{"type":"interrupted","at":"2026-10-19T05:03:01Z","id":"long","attempt":{attempt},'
                '"reason":"no_backend"}\n'
            )
        log.write('{"type":"closed","at":"2026-10-19T06:00:00Z","id":"long","outcome":"answered",')
        log.write('"session_id":"2026-10-19-1"}\n')
    exchange = Exchange('told', 'word ' * 500 + '\nline' * 50, 'offline', '2026-10-19T06:00:00Z', trigger_id='long')
    SessionStore(records / 'sessions').append_exchange('2026-10-19-1', exchange)
    shown = on_terminal('why', 'main', 'long', '--workspace', str(records.parent.parent), columns=80)
    lines = re.sub(r'\x1b\[[0-9;]*m', '', shown).rstrip('\n').split('\n')
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert any('44 more attempts' in line for line in lines)
    assert any('no backend could answer after 1.0s' in line for line in lines)
    assert lines[-1].endswith('(and 46 more lines)')


def test_the_records_of_a_daemon_that_systemd_runs(records: Path, tmp_path: Path) -> None:
    """Where the workspace that `run` would choose has no desks, those of the installed daemon are shown."""
    records.parent.parent.rename(tmp_path / 'state')
    assert call('why', 'main', 'a-5').exit_code == 0
    assert call('sessions', 'main').exit_code == 0
    assert call('why', 'main', 'a-5', '--workspace', 'workspace').exit_code == 1
