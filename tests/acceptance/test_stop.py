"""One daemon a workspace, and how it ends: in order, in time, and leaving nothing that blocks the next one."""

import json
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from process import DEADLINE, Process, Start, until

SLOW = '[backends.slow]\nkind = "offline"\ndelay = "{delay}"\n[[desks]]\nname = "main"\nbackends = ["slow"]\n'
NOTE = '[This message was cut off before it was answered'


def test_a_second_daemon_is_refused(start: Start) -> None:
    """A second daemon on the workspace exits with 1, names the first one's pid and harms nothing; the first goes on."""
    first = start().ready()
    second = start()
    assert second.wait() == 1
    told = b''.join(second.odd).decode()
    assert f'the daemon with pid {first.pid}' in told
    assert 'hint: stop that daemon first' in told
    assert 'Traceback' not in told
    first.send('still there?')
    first.wait_for('turn_finished')
    assert first.stop() == 0
    start().ready()


def test_kill_leaves_nothing_that_blocks(start: Start) -> None:
    """After kill -9 the lock and the socket are still on disk, and the next daemon starts all the same."""
    first = start().ready()
    first.kill()
    lock = first.workspace / 'trading-agent.lock'
    assert json.loads(lock.read_bytes())['pid'] == first.pid
    assert (first.workspace / 'control.sock').is_socket()
    second = start().ready()
    told = json.loads(lock.read_bytes())
    assert list(told) == ['pid', 'started_at', 'run_id', 'control_socket']
    assert (told['pid'], told['run_id']) == (second.pid, second.lines[0]['run_id'])
    assert second.send('hello')['status'] == 'accepted'
    assert second.stop() == 0
    assert not (first.workspace / 'control.sock').exists()


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_turn_ends_within_the_drain(start: Start, number: signal.Signals) -> None:
    """SIGTERM and SIGINT let the running turn end: its exchange is on disk, what waits stays, the exit code is 0."""
    daemon = start(SLOW.format(delay='3s')).ready()
    daemon.send('the running one', id='running')
    daemon.send('the waiting one', id='waiting')
    daemon.wait_for('turn_started')
    assert daemon.stop(number) == 0
    stopping = daemon.found('daemon_stopping')
    assert [(line['cause'], line['turns_running']) for line in stopping] == [(number.name, 1)]
    assert daemon.files_of().answered() == ['running']
    assert [line['trigger_id'] for line in daemon.found('turn_finished')] == ['running']
    assert not daemon.found('turn_interrupted')
    assert len(daemon.found('turn_started')) == 1
    again = start(SLOW.format(delay='0s'))
    again.wait_for('turn_finished', trigger_id='waiting')
    assert [exchange['trigger_text'] for exchange in again.files_of().exchanges()] == [
        'the running one',
        'the waiting one',
    ]


def test_refused_during_a_drain(start: Start) -> None:
    """During a drain a `send` is refused as stopping, exit 1, and a `send --wait` of before gets its answer."""
    daemon = start(SLOW.format(delay='2s')).ready()
    waiting: list[int] = []
    thread = threading.Thread(
        target=lambda: waiting.append(daemon.cli('send', 'main', 'answer me', '--wait').returncode)
    )
    thread.start()
    daemon.wait_for('turn_started')
    daemon.send_signal(signal.SIGTERM)
    daemon.wait_for('daemon_stopping')
    receipt = daemon.send('too late', id='late')
    assert {name: receipt[name] for name in ('id', 'status', 'reason')} == {
        'id': 'late',
        'status': 'refused',
        'reason': 'stopping',
    }
    assert receipt['hint']
    done = daemon.cli('send', 'main', 'too late')
    assert done.returncode == 1
    assert 'stopping' in done.stderr
    assert daemon.wait() == 0
    thread.join(DEADLINE)
    assert waiting == [0]
    assert len(daemon.files_of().exchanges()) == 1
    assert not daemon.found('trigger_accepted', trigger_id='late')


def test_an_overlong_turn_is_interrupted(start: Start) -> None:
    """A turn beyond the drain is interrupted: exit 0; it runs again with its note, and no stop counts to quarantine."""
    hanging = 'drain = "200ms"\n' + SLOW.format(delay='1h')
    for attempt in range(1, 5):
        daemon = start(hanging).ready()
        if attempt == 1:
            daemon.send('the long one', id='long')
        daemon.wait_for('turn_started', attempt=attempt)
        assert not daemon.found('turn_interrupted')
        assert daemon.stop() == 0
        interrupted = daemon.found('turn_interrupted', cause='stop')
        assert [(line['trigger_id'], line['attempt']) for line in interrupted] == [('long', attempt)]
    daemon = start(SLOW.format(delay='0s'))
    daemon.wait_for('turn_finished', trigger_id='long', attempt=5)
    (exchange,) = daemon.files_of().exchanges()
    assert exchange['trigger_text'].startswith(NOTE)
    assert exchange['trigger_text'].endswith('\n\nthe long one')


@pytest.mark.parametrize('numbers', [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_skips_the_drain(start: Start, numbers: tuple[signal.Signals, signal.Signals]) -> None:
    """A second signal ends the drain of an hour at once: exit 0, and the turn runs again at the next start."""
    daemon = start('drain = "1h"\n' + SLOW.format(delay='1h')).ready()
    daemon.send('the long one', id='long')
    daemon.wait_for('turn_started')
    daemon.send_signal(numbers[0])
    daemon.wait_for('daemon_stopping')
    time.sleep(0.3)
    assert daemon.alive
    assert daemon.stop(numbers[1]) == 0
    assert len(daemon.found('daemon_stopping')) == 1
    assert len(daemon.found('turn_interrupted', cause='stop')) == 1
    again = start(SLOW.format(delay='0s'))
    assert again.wait_for('turn_finished')['trigger_id'] == 'long'


def test_a_background_job_stops_on_sigint(start: Start) -> None:
    """A background job of a shell, which begins with SIGINT ignored, stops on SIGINT all the same."""
    shell = ['sh', '-c', 'trap "" INT; exec "$@"', 'sh']
    daemon = start(prefix=shell).ready()
    assert daemon.stop(signal.SIGINT) == 0
    assert daemon.found('daemon_stopping', cause='SIGINT')


def test_stopped_while_it_starts(start: Start) -> None:
    """A signal that comes as the log begins, before it is ready, ends it in order all the same."""
    for _ in range(3):
        daemon = start(''.join(f'[[desks]]\nname = "desk-{number}"\n' for number in range(30)))
        daemon.wait_for('session_started')
        assert daemon.stop() == 0
        assert not daemon.odd
        told = [line['event'] for line in daemon.lines if line['event'].startswith('daemon_')]
        assert told in (['daemon_stopping'], ['daemon_ready', 'daemon_stopping'])


def wait_until_in_trouble(daemon: Process) -> None:
    """Returns once the desk's status says what is wrong."""
    until(lambda: daemon.desk()['reason'], 'the desk waits')


def test_a_stop_while_a_desk_waits_for_a_backend(start: Start) -> None:
    """A desk whose backends all fail stops at once, and its trigger is kept and not counted as cut off."""
    failing = '[backends.bad]\nkind = "offline"\nfail_every = 1\n[[desks]]\nname = "main"\nbackends = ["bad"]\n'
    for _ in range(4):
        daemon = start(failing).ready()
        daemon.send('anybody?', id='waits')
        daemon.wait_for('model_call_failed')
        wait_until_in_trouble(daemon)
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 10
    daemon = start(failing.replace('fail_every = 1', ''))
    daemon.wait_for('turn_finished', trigger_id='waits')
    assert [exchange['trigger_text'] for exchange in daemon.files_of().exchanges()] == ['anybody?']


def test_clients_do_not_hold_up_a_stop(start: Start) -> None:
    """Clients that follow the events or wait for an answer do not hold up a stop; they end, and say why."""
    daemon = start('drain = "200ms"\n' + SLOW.format(delay='1h')).ready()
    done: list[subprocess.CompletedProcess[str]] = []

    def client(*arguments: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: done.append(daemon.cli(*arguments)))
        thread.start()
        return thread

    clients = [client('send', 'main', 'hello', '--wait'), client('--json', 'events')]
    daemon.wait_for('turn_started')
    daemon.send('is the other client there?')
    began = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - began < DEADLINE / 2
    for thread in clients:
        thread.join(DEADLINE)
    assert [process.returncode for process in done] == [1, 1]
    assert all('error: ' in process.stderr and 'Traceback' not in process.stderr for process in done)


BLOCKING_BACKEND = """
import time
from pathlib import Path

class Runner:
    async def run(self, turn):
        Path({marker!r}).touch()
        while True:
            time.sleep(0.01)
        yield

def make(name, options):
    return Runner()
"""


def test_code_that_cannot_be_cut_off(start: Start, tmp_path: Path) -> None:
    """A stopped process whose event loop is blocked for ever by a backend ends itself, told, with exit code 1."""
    marker = tmp_path / 'blocks'
    (tmp_path / 'blocking_backend.py').write_text(BLOCKING_BACKEND.format(marker=str(marker)))
    impatient = tmp_path / 'impatient.py'
    impatient.write_text('from trading_agent.cli import main, run\nrun.GIVE_UP_SECONDS = 0.5\nmain.main()\n')
    config = '[backends.bad]\nkind = "blocking_backend:make"\n[[desks]]\nname = "main"\nbackends = ["bad"]\n'
    environ = {'PYTHONPATH': str(tmp_path)}
    daemon = start(f'drain = "100ms"\n{config}', program=[str(impatient)], environ=environ).ready()
    daemon.send('block')
    until(marker.exists, 'the loop is blocked')
    assert daemon.stop() == 1
    (told,) = daemon.found('log', level='critical')
    assert 'cannot be cut off' in told['error']
    assert not daemon.odd
