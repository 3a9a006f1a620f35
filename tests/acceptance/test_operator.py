"""What an operator does to the real process: hold a desk and let it go, drop a trigger, reload, ask why."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from desk_files import DeskFiles
from process import DEADLINE, Process, Start, clean_environ, run_cli, until

from trading_agent.cli.hold import login_name

NOTE = '[This message was cut off before it was answered'
GATED_BACKEND = """
import anyio
from pathlib import Path
from trading_agent.routing.turn_runner import TurnAnswered

class Runner:
    def __init__(self, gate):
        self.gate = gate

    async def run(self, turn):
        while not self.gate.exists():
            await anyio.sleep(0.01)
        yield TurnAnswered('answer to ' + turn.text[-20:])

def make(name, options):
    return Runner(Path(options['gate']))
"""
DESK = '[[desks]]\nname = "{0}"\n'


class Gate:
    """A backend of the daemon that answers once it is open, and whenever it is.

    Args:
        folder: Where its module and its gate are.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / 'gate-is-open'
        (folder / 'gated_backend.py').write_text(GATED_BACKEND)
        self.environ = {'PYTHONPATH': os.pathsep.join([str(folder), os.environ.get('PYTHONPATH', '')])}
        self.backend = f'[backends.gated]\nkind = "gated_backend:make"\ngate = "{self._file}"\n'
        self.config = f'{self.backend}{DESK.format("main")}backends = ["gated"]\n'

    def open(self) -> None:
        """Lets it answer."""
        self._file.touch()

    def shut(self) -> None:
        """Lets it think."""
        self._file.unlink(missing_ok=True)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A backend that is shut."""
    return Gate(tmp_path)


def why(daemon: Process, trigger_id: str) -> dict[str, Any]:
    """Returns a trigger's story, as `why --json` tells it."""
    done = daemon.cli('why', 'main', trigger_id, '--json')
    assert done.returncode == 0, done.stderr
    story: dict[str, Any] = json.loads(done.stdout)
    return story


def done_by(daemon: Process, *arguments: str) -> str:
    """Runs a command that is to succeed; returns what it writes."""
    done = daemon.cli(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- holding a desk ------------------------------------------------------------------------------------------------


def test_a_pause_outlives_a_kill(start: Start) -> None:
    """Paused, killed and started again: still paused, nothing run or lost; resumed, what is not stale runs once."""
    first = start().ready()
    assert done_by(first, 'pause', 'main', '--reason', 'expiry day') == 'main: paused\n'
    ids = [f't-{number}' for number in range(6)]
    for trigger_id in ids:
        assert first.send(f'about {trigger_id}', id=trigger_id)['status'] == 'accepted'
    soon = datetime.now(UTC) + timedelta(seconds=1.5)
    assert first.send('for a moment', id='fleeting', expires_at=soon.isoformat())['status'] == 'accepted'
    paused = first.wait_for('desk_paused')
    assert (paused['by'], paused['reason']) == (login_name(), 'expiry day')
    first.kill()
    second = start().ready()
    desk = second.desk()
    assert (desk['state'], desk['turn']) == ('paused', None)
    assert desk['queue'] in (6, 7)
    assert f'paused by {login_name()} at ' in desk['reason']
    assert 'expiry day' in desk['reason']
    assert '`trading-agent resume main`' in desk['reason']
    second.send('sent while it is paused', id='t-6')
    second.wait_for('trigger_closed', trigger_id='fleeting', outcome='stale')
    assert 'paused' in done_by(second, 'status')
    time.sleep(0.2)
    assert not [line for process in (first, second) for line in process.found('turn_started')]
    assert done_by(second, 'resume', 'main').startswith('main: running')
    assert second.wait_for('desk_resumed')['by'] == login_name()
    second.wait_for('turn_finished', count=7)
    assert second.stop() == 0
    files = second.files_of()
    assert files.answered() == [*ids, 't-6']
    assert files.outcomes() == dict.fromkeys([*ids, 't-6'], 'answered') | {'fleeting': 'stale'}
    assert [line['attempt'] for line in second.found('turn_started')] == [1] * 7
    assert not (files.folder / 'paused.json').exists()
    assert start().ready().desk()['state'] == 'running'


def test_a_pause_waits_for_the_running_turn(start: Start, gate: Gate) -> None:
    """Without --now the running turn is answered, and the next one is not begun."""
    daemon = start(gate.config, environ=gate.environ).ready()
    daemon.send('the running one', id='running')
    daemon.send('the waiting one', id='waiting')
    daemon.wait_for('turn_started')
    told = done_by(daemon, 'pause', 'main')
    assert told == 'main: paused; the turn of running on gated goes on to its end; 1 trigger waits\n'
    gate.open()
    daemon.wait_for('turn_finished', trigger_id='running')
    until(lambda: daemon.desk()['turn'] is None, 'nothing runs')
    time.sleep(0.2)
    assert len(daemon.found('turn_started')) == 1
    assert daemon.desk()['queue'] == 1
    done_by(daemon, 'resume', '--all')
    daemon.wait_for('turn_finished', trigger_id='waiting')
    assert not daemon.found('turn_interrupted')


def test_a_pause_now_does_not_count_to_quarantine(start: Start, gate: Gate) -> None:
    """Interrupted by `pause --now` more often than a crash may: it runs again, with its note, to its answer."""
    daemon = start(gate.config, environ=gate.environ).ready()
    daemon.send('the long one', id='long')
    for attempt in range(1, 6):
        daemon.wait_for('turn_started', attempt=attempt)
        assert done_by(daemon, 'pause', 'main', '--now') == 'main: paused; 1 trigger waits\n'
        interrupted = daemon.wait_for('turn_interrupted', count=attempt)
        assert (interrupted['trigger_id'], interrupted['cause']) == ('long', 'pause')
        assert daemon.desk()['turn'] is None
        assert done_by(daemon, 'resume', 'main').startswith('main: running')
    gate.open()
    daemon.wait_for('turn_finished', trigger_id='long', attempt=6)
    (exchange,) = daemon.files_of().exchanges()
    assert exchange['trigger_text'].startswith(NOTE)
    assert exchange['trigger_text'].endswith('\n\nthe long one')
    assert daemon.files_of().outcomes() == {'long': 'answered'}


def test_all_desks_are_held(start: Start) -> None:
    """`pause --all` holds each desk, past one that cannot be held, which is exit 1; `resume --all` lets them go."""
    config = ''.join(DESK.format(name) for name in ('one', 'two', 'three'))
    workspace = start(config).ready()
    workspace.stop()
    folder = workspace.workspace / 'desks' / 'two'
    folder.rename(folder.with_name('two.aside'))
    folder.write_text('')
    daemon = start(config).ready()
    done = daemon.cli('pause', '--all', '--reason', 'the exchange is down')
    assert (done.returncode, done.stdout) == (1, 'one: paused\nthree: paused\n')
    assert done.stderr.startswith('error: two: could not ')
    assert 'move it away' in done.stderr
    assert [daemon.desk(name)['state'] for name in ('one', 'two', 'three')] == ['paused', 'parked', 'paused']
    done = daemon.cli('resume', '--all')
    assert (done.returncode, done.stdout) == (1, 'one: running\nthree: running\n')
    folder.unlink()
    folder.with_name('two.aside').rename(folder)
    assert done_by(daemon, 'resume', '--all') == 'one: running\ntwo: running\nthree: running\n'


def test_a_parked_desk_is_resumed(start: Start) -> None:
    """A desk with a file in its folder's place is parked, says what mends it, and runs once that is done and said."""
    workspace = start().ready()
    workspace.stop()
    folder = workspace.workspace / 'desks' / 'main'
    folder.rename(folder.with_name('aside'))
    folder.write_text('')
    daemon = start().ready()
    status = done_by(daemon, 'status')
    assert 'parked' in status
    assert 'a file stands where a folder should be: move it away; then `trading-agent resume main`' in status
    done = daemon.cli('resume', 'main')
    assert (done.returncode, done.stdout) == (1, '')
    assert 'error: the desk main is still parked: ' in done.stderr
    assert not daemon.found('desk_resumed')
    folder.unlink()
    folder.with_name('aside').rename(folder)
    assert done_by(daemon, 'resume', 'main') == 'main: running\n'
    assert daemon.wait_for('desk_resumed')['by'] == login_name()
    assert done_by(daemon, 'send', 'main', 'are you back?', '--wait')
    assert daemon.desk()['reason'] == ''


# -- cancelling a trigger ------------------------------------------------------------------------------------------


def test_triggers_are_cancelled(start: Start, gate: Gate) -> None:
    """A waiting and a running trigger are closed as cancelled, told with who and why; an answered one says so."""
    daemon = start(gate.config, environ=gate.environ).ready()
    gate.open()
    daemon.send('an old one', id='old')
    daemon.wait_for('turn_finished', trigger_id='old')
    gate.shut()
    daemon.send('the running one', id='replay/2025-12-16/7')
    daemon.send('the waiting one', id='a b/%41')
    daemon.send('the last one', id='last')
    daemon.wait_for('turn_started', trigger_id='replay/2025-12-16/7')
    assert done_by(daemon, 'cancel', 'main', 'a b/%41') == 'main: a b/%41 is cancelled\n'
    assert daemon.desk()['turn']['trigger_id'] == 'replay/2025-12-16/7'
    done_by(daemon, 'cancel', 'main', 'replay/2025-12-16/7', '--reason', 'the wrong file')
    daemon.wait_for('turn_started', trigger_id='last')
    running = daemon.wait_for('trigger_closed', trigger_id='replay/2025-12-16/7')
    assert (running['outcome'], running['by'], running['error']) == ('cancelled', login_name(), 'the wrong file')
    waiting = daemon.wait_for('trigger_closed', trigger_id='a b/%41')
    assert (waiting['outcome'], waiting['by']) == ('cancelled', login_name())
    gate.open()
    daemon.wait_for('turn_finished', trigger_id='last')
    for trigger_id, told in (('old', 'closed before as answered'), ('a b/%41', 'closed before as cancelled')):
        done = daemon.cli('cancel', 'main', trigger_id)
        assert (done.returncode, told in done.stderr) == (1, True)
    done = daemon.cli('cancel', 'main', 'nobody')
    assert (done.returncode, "knows no trigger 'nobody'" in done.stderr) == (1, True)
    daemon.kill()
    assert start(gate.config, environ=gate.environ).ready().desk()['queue'] == 0
    files = daemon.files_of()
    assert files.answered() == ['old', 'last']
    assert files.outcomes() == {
        'old': 'answered',
        'a b/%41': 'cancelled',
        'replay/2025-12-16/7': 'cancelled',
        'last': 'answered',
    }


# -- configuration -------------------------------------------------------------------------------------------------


def test_a_reload_disturbs_no_other_desk(start: Start, gate: Gate) -> None:
    """Desks are added, changed and removed while another one's turn runs on; a bad file changes nothing at all."""
    daemon = start(gate.config + DESK.format('leaves') + DESK.format('changes'), environ=gate.environ).ready()
    daemon.send('the long one', id='long')
    daemon.wait_for('turn_started', trigger_id='long')
    daemon.config.write_text(f'{gate.config}{DESK.format("changes")}queue_limit = 1\n{DESK.format("comes")}')
    told = done_by(daemon, 'reload')
    assert told == 'added desk comes\nchanged desk changes\nremoved desk leaves\n'
    until(lambda: 'comes' in done_by(daemon, 'status'), 'the new desk is there')
    assert done_by(daemon, 'send', 'comes', 'hello', '--wait')
    assert done_by(daemon, 'send', 'changes', 'hello', '--wait')
    assert daemon.cli('send', 'leaves', 'hello').returncode == 1
    good = daemon.config.read_text()
    daemon.config.write_text(f'{good}{DESK.format("another")}backends = ["nope"]\nquue_limit = 3\n')
    done = daemon.cli('reload')
    assert (done.returncode, done.stdout) == (78, '')
    assert 'quue_limit: there is no such key' in done.stderr
    assert "hint: did you mean 'queue_limit'?" in done.stderr
    rejected = daemon.wait_for('config_rejected')
    assert rejected['level'] == 'error'
    assert 'quue_limit' in rejected['error']
    assert [desk['name'] for desk in daemon.request('GET', '/v1/status')[1]['desks']] == ['main', 'changes', 'comes']
    daemon.config.write_text(good)
    assert done_by(daemon, 'reload') == 'nothing has changed\n'
    gate.open()
    daemon.wait_for('turn_finished', trigger_id='long', attempt=1)
    assert not daemon.found('turn_interrupted')
    assert daemon.files_of().answered() == ['long']


def test_a_removed_desk_keeps_its_triggers(start: Start, gate: Gate) -> None:
    """A removed desk's turn ends, its queue stays, shown by `status`; configured again it goes on where it was."""
    both = f'{gate.config}{DESK.format("other")}backends = ["gated"]\n'
    daemon = start(both, environ=gate.environ).ready()
    for number in range(3):
        daemon.send(f'number {number}', 'other', id=f'o-{number}')
    daemon.wait_for('turn_started', desk='other')
    daemon.config.write_text(gate.config)
    assert done_by(daemon, 'reload') == 'removed desk other\n'
    gate.open()
    daemon.wait_for('turn_finished', desk='other', trigger_id='o-0')
    until(lambda: daemon.desk('other')['queue'] == 2, 'two triggers are left')
    assert daemon.desk('other')['state'] == 'parked'
    assert 'not configured' in daemon.desk('other')['reason']
    for command in (['pause', 'other'], ['resume', 'other'], ['cancel', 'other', 'o-1'], ['send', 'other', 'hello']):
        done = daemon.cli(*command)
        assert done.returncode == 1
        assert "error: the desk 'other' is not configured" in done.stderr
        assert 'trading-agent reload' in done.stderr
    assert done_by(daemon, 'pause', '--all') == 'main: paused\n'
    daemon.kill()
    daemon = start(gate.config, environ=gate.environ).ready()
    assert [(desk['name'], desk['state']) for desk in desks_of(daemon)] == [('main', 'paused'), ('other', 'parked')]
    daemon.config.write_text(both)
    assert done_by(daemon, 'reload') == 'added desk other\n'
    daemon.wait_for('turn_finished', desk='other', trigger_id='o-2')
    assert daemon.files_of('other').answered() == ['o-0', 'o-1', 'o-2']
    until(lambda: daemon.desk('other')['state'] == 'running', 'it runs')


def desks_of(daemon: Process) -> list[dict[str, Any]]:
    """Returns every desk that the status shows."""
    desks: list[dict[str, Any]] = daemon.request('GET', '/v1/status')[1]['desks']
    return desks


@pytest.mark.parametrize('how', ['SIGHUP', 'watch_config'])
def test_the_file_is_read_again_without_a_command(start: Start, how: str) -> None:
    """SIGHUP, or with `watch_config` saving the file, puts it in force; a mistake is told, and changes nothing."""
    first = 'watch_config = true\n' if how == 'watch_config' else ''
    daemon = start(first + DESK.format('main')).ready()

    def ask() -> None:
        if how == 'SIGHUP':
            daemon.send_signal(signal.SIGHUP)

    daemon.config.write_text(first + DESK.format('main') + DESK.format('second'))
    ask()
    assert daemon.wait_for('config_reloaded')['added'] == ['desk second']
    until(lambda: len(desks_of(daemon)) == 2, 'the second desk is there')
    daemon.config.write_text(first + DESK.format('Main'))
    ask()
    assert 'no desk name' in daemon.wait_for('config_rejected')['error']
    assert len(desks_of(daemon)) == 2
    assert daemon.send('still there?', 'second')['status'] == 'accepted'
    daemon.wait_for('turn_finished', desk='second')
    daemon.config.write_text(first + DESK.format('second'))
    ask()
    assert daemon.wait_for('config_reloaded', count=2)['removed'] == ['desk main']


# -- from nothing --------------------------------------------------------------------------------------------------


@pytest.fixture
def background() -> Iterator[Callable[[list[str], Path], 'subprocess.Popen[bytes]']]:
    """Starts a command in a folder; it is killed at the end of the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(command: list[str], folder: Path) -> 'subprocess.Popen[bytes]':
        quiet = {'stdin': subprocess.DEVNULL, 'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}
        started.append(subprocess.Popen(command, cwd=folder, env=clean_environ(), **quiet))  # type: ignore[call-overload]
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_from_nothing_to_an_answer(
    tmp_path: Path, background: Callable[[list[str], Path], 'subprocess.Popen[bytes]']
) -> None:
    """`init` in an empty folder, then the two commands that it prints as they stand: a daemon, and its first answer."""

    def command(line: str) -> list[str]:
        program, *arguments = shlex.split(line)
        assert program == 'trading-agent'
        return [sys.executable, '-m', 'trading_agent', *arguments]

    done = subprocess.run(
        command("trading-agent init 'my desks'"),
        cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=True, timeout=DEADLINE,
    )  # fmt: skip
    run, send = (line.strip() for line in done.stdout.split('\n') if line.startswith('    '))
    daemon = background(command(run), tmp_path)
    until((tmp_path / 'my desks' / 'workspace' / 'control.sock').is_socket, 'the daemon is there')
    asked = subprocess.run(
        command(send),
        cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=False, timeout=DEADLINE,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    assert 'offline backend: no model was asked' in asked.stdout
    daemon.terminate()
    assert daemon.wait(DEADLINE) == 0
    assert len(DeskFiles(tmp_path / 'my desks' / 'workspace' / 'desks' / 'main').exchanges()) == 1


# -- why -----------------------------------------------------------------------------------------------------------


def test_why_at_each_stage_of_a_triggers_life(start: Start, gate: Gate) -> None:
    """Waiting, running, interrupted, cut off, answered and archived, with a daemon and without: `why` tells it."""
    daemon = start(gate.config, environ=gate.environ).ready()
    done_by(daemon, 'pause', 'main')
    daemon.send('what is NIFTY?', id='life', source='desk')
    story = why(daemon, 'life')
    assert (story['state'], story['attempts'], story['source'], story['outcome']) == ('waiting', 0, 'desk', None)
    done_by(daemon, 'resume', 'main')
    daemon.wait_for('turn_started')
    until(lambda: why(daemon, 'life')['state'] == 'running', 'it runs')
    story = why(daemon, 'life')
    assert (story['backend'], story['turn']['attempt']) == ('gated', 1)
    assert story['waited_ms'] > 0
    done_by(daemon, 'pause', 'main', '--now')
    story = why(daemon, 'life')
    assert (story['state'], story['steps'][-1]['reason']) == ('waiting', 'pause')
    done_by(daemon, 'resume', 'main')
    daemon.wait_for('turn_started', attempt=2)
    daemon.kill()
    assert why(daemon, 'life')['state'] == 'cut_off'
    daemon = start(gate.config, environ=gate.environ).ready()
    gate.open()
    daemon.wait_for('turn_finished', attempt=3)
    story = why(daemon, 'life')
    assert (story['state'], story['attempts'], story['backend']) == ('answered', 3, 'gated')
    assert [step['what'] for step in story['steps']] == [
        'accepted', 'started', 'interrupted', 'started', 'started', 'closed',
    ]  # fmt: skip
    assert story['exchange']['answer'].endswith('what is NIFTY?')
    done_by(daemon, 'rollover', 'main')
    daemon.wait_for('rollover_finished')
    archived = why(daemon, 'life')
    session_id = story['session_id']
    assert {step['path'] for step in archived['steps']} == {f'triggers/{session_id}.jsonl'}
    assert {**archived, 'steps': None} == {**story, 'steps': None}
    line = (daemon.files_of().folder / archived['exchange']['path']).read_bytes().split(b'\n')
    assert json.loads(line[archived['exchange']['line'] - 1])['trigger_id'] == 'life'
    assert daemon.stop() == 0
    assert why(daemon, 'life') == archived
    shown = done_by(daemon, 'why', 'main', 'li')
    assert shown.startswith('life, a trigger of main: answered\n')
    assert f'sessions/{session_id}.jsonl, line 1 (`trading-agent show main {session_id}`)' in shown
    assert 'cut off by a crash' in shown
    done = daemon.cli('why', 'main', 'leif')
    assert (done.returncode, 'did you mean life?' in done.stderr) == (1, True)


def test_why_without_a_workspace(tmp_path: Path) -> None:
    """Where there is no desk, `why` says where it looked: exit 1, and nothing is made."""
    done = run_cli('why', 'main', 'life', '--workspace', str(tmp_path / 'none'))
    assert done.returncode == 1
    assert str(tmp_path / 'none' / 'desks') in done.stderr
    assert not (tmp_path / 'none').exists()
