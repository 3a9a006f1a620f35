"""The real process in everyday use: started, asked, fed, misconfigured, and read by its log."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from process import DEADLINE, Process, Start, clean_environ, run_cli, until

LINE_LIMIT = 16 << 10


def test_send_wait_answers(start: Start) -> None:
    """`send --wait` prints the answer, and with --json the receipt and the result; both are in the session's log."""
    daemon = start().ready()
    plain = daemon.cli('send', 'main', 'Remember: never sell ABC before the dividend.', '--wait')
    assert plain.returncode == 0, plain.stderr
    asked = daemon.cli('--json', 'send', 'main', 'What do you know about ABC?', '--id', 'q-1', '--wait')
    assert asked.returncode == 0, asked.stderr
    result = json.loads(asked.stdout)
    assert result['receipt'] == {'id': 'q-1', 'desk': 'main', 'status': 'accepted', 'reason': None}
    first, second = daemon.files_of().exchanges()
    assert plain.stdout.strip() == first['answer'].strip()
    assert {name: result[name] for name in ('outcome', 'answer', 'backend')} == {
        'outcome': 'answered',
        'answer': second['answer'],
        'backend': 'offline',
    }
    assert 'never sell ABC' in second['answer']
    again = daemon.cli('--json', 'send', 'main', 'What do you know about ABC?', '--id', 'q-1', '--wait')
    assert json.loads(again.stdout)['answer'] == second['answer']
    assert json.loads(again.stdout)['receipt']['status'] == 'duplicate'
    assert len(daemon.files_of().exchanges()) == 2


def test_an_inbox_file_is_answered(start: Start) -> None:
    """A file put into the inbox is answered once and moved to done/<date>/; a bad one to rejected/ with the reason."""
    daemon = start().ready()
    inbox = daemon.workspace / 'desks' / 'main' / 'inbox'
    until(inbox.is_dir, 'the inbox is there')
    (inbox / 'note.txt').write_text('NIFTY crossed 26000')
    (inbox / 'broken.json').write_text('{"text": ')
    daemon.wait_for('trigger_closed', outcome='answered')
    until(lambda: list(inbox.glob('done/*/note.txt')), 'the file is moved')
    until(lambda: list(inbox.glob('rejected/**/broken.json*.reason')), 'the reason is beside the rejected file')
    assert [exchange['trigger_text'] for exchange in daemon.files_of().exchanges()] == ['NIFTY crossed 26000']
    until(lambda: not [path for path in inbox.iterdir() if path.is_file()], 'nothing is left in the inbox')


def test_everything_is_private(start: Start) -> None:
    """Whatever the umask, every file of the workspace is 0600, every folder 0700, and the socket 0600."""
    before = os.umask(0)
    try:
        daemon = start().ready()
    finally:
        os.umask(before)
    daemon.cli('send', 'main', 'hello', '--wait')
    assert daemon.cli('rollover', 'main').returncode == 0
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in [daemon.workspace, *daemon.workspace.rglob('*')]}
    wide = [(str(path), oct(mode)) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)]
    assert not wide


def test_the_log(start: Start) -> None:
    """Each line of stderr is one JSON object of under 16 KiB that says when, how bad, what and in which run."""
    daemon = start('heartbeat_every = "1s"\nlog_content = true\n').ready()
    daemon.send('x' * 200_000 + '"\u2028\x00')
    daemon.send('refused ' * 200_000)
    daemon.wait_for('turn_finished')
    daemon.wait_for('daemon_heartbeat')
    assert daemon.stop() == 0
    assert not daemon.odd
    assert all(len(raw) <= LINE_LIMIT and raw.endswith(b'\n') for raw in daemon.raw)
    assert [line['seq'] for line in daemon.lines] == list(range(1, len(daemon.lines) + 1))
    assert len({line['run_id'] for line in daemon.lines}) == 1
    for line in daemon.lines:
        assert list(line)[:4] == ['timestamp', 'level', 'event', 'run_id']
        assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z', line['timestamp'])
        assert line['level'] in ('debug', 'info', 'warning', 'error', 'critical')
    assert not daemon.found('turn_output')
    assert daemon.lines[-1]['event'] == 'daemon_stopping'


def test_the_log_hides_what_was_said(start: Start) -> None:
    """Unless `log_content` is set, the log tells lengths and not a word of what was said."""
    daemon = start().ready()
    daemon.send('a word that nobody else may read: xyzzy')
    finished = daemon.wait_for('turn_finished')
    assert finished['answer_length'] > 0
    assert daemon.found('trigger_accepted')[0]['text_length'] == len('a word that nobody else may read: xyzzy')
    assert daemon.stop() == 0
    assert b'xyzzy' not in b''.join(daemon.raw + daemon.odd)


def test_priorities_for_journald(tmp_path: Path) -> None:
    """Lines begin with <6> and the like when JOURNAL_STREAM names stderr, and not when it names another file."""
    config = tmp_path / 'config.toml'
    config.write_text('')
    program = [sys.executable, '-m', 'trading_agent', '--config', str(config), '--workspace']
    for name in ('matching', 'other'):
        log = tmp_path / f'{name}.log'
        with log.open('wb') as stderr:
            status = os.fstat(stderr.fileno())
            inode = status.st_ino + (name == 'other')
            environ = clean_environ(JOURNAL_STREAM=f'{status.st_dev}:{inode}')
            process = subprocess.Popen([*program, str(tmp_path / name), 'run'], stderr=stderr, env=environ)
            try:
                wait_until_ready(log)
                process.terminate()
                assert process.wait(DEADLINE) == 0
            finally:
                process.kill()
                process.wait()
        lines = log.read_bytes().split(b'\n')[:-1]
        assert lines
        assert all(line.startswith(b'<6>{' if name == 'matching' else b'{') for line in lines)


def wait_until_ready(log: Path) -> None:
    """Returns once a daemon has logged that it is ready."""
    until(lambda: b'daemon_ready' in log.read_bytes(), 'the daemon is ready')


def test_nobody_reads_the_log(tmp_path: Path) -> None:
    """A daemon whose log has lost its reader goes on, answers, and exits 0."""
    config = tmp_path / 'config.toml'
    config.write_text('')
    arguments = ['--config', str(config), '--workspace', str(tmp_path / 'ws')]
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, '-m', 'trading_agent', *arguments, 'run'], stderr=writer, env=clean_environ()
    )
    os.close(writer)
    os.close(reader)
    try:
        until(lambda: run_cli(*arguments, 'status').returncode == 0, 'the daemon answers')
        assert run_cli(*arguments, 'send', 'main', 'hello', '--wait').returncode == 0
        process.terminate()
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ('config', 'told'),
    [
        ('max_concurent_turns = 4\n', ['max_concurent_turns', 'no such key', "did you mean 'max_concurrent_turns'?"]),
        ('[[desks]]\nname = "main"\nqueue_limt = 3\n', ['desks[0].queue_limt', "did you mean 'queue_limit'?"]),
        ('[[desks]]\nname = "Main"\n', ['desks[0].name', "'Main' is no desk name"]),
        ('[backends.b]\nkind = "offlin"\n', ['backends.b.kind', "did you mean 'offline'?"]),
        ('[backends.b]\nkind = "offline"\ndelai = "1s"\n', ['backends.b.delai', "did you mean 'delay'?"]),
        ('drain = 30\n', ['drain', '30s']),
        ('drain = "30s\n', ['is not TOML']),
        (
            '[backends.b]\nkind = "no_such_package.runner:make"\n[[desks]]\nname = "main"\nbackends = ["b"]\n',
            ['backends.b.kind', 'no_such_package', 'hint: '],
        ),
        (
            '[backends.b]\nkind = "json:dumps"\n[[desks]]\nname = "main"\nbackends = ["b"]\n',
            ['backends.b.kind', 'json:dumps', 'hint: '],
        ),
    ],
)
def test_bad_configuration(start: Start, config: str, told: list[str]) -> None:
    """A mistake ends the process with 78 before it touches the disk, told with file, key and what was meant."""
    daemon = start(config)
    assert daemon.wait() == 78
    stderr = b''.join(daemon.odd).decode()
    assert not daemon.lines
    assert all(part in stderr for part in [str(daemon.config), *told]), stderr
    assert 'Traceback' not in stderr
    assert not daemon.workspace.exists()


def test_no_configuration_file(tmp_path: Path) -> None:
    """A configuration file that was named and is not there ends the process with 78."""
    done = run_cli('--config', str(tmp_path / 'none.toml'), '--workspace', str(tmp_path / 'ws'), 'run')
    assert done.returncode == 78
    assert f'{tmp_path}/none.toml: cannot be read' in done.stderr
    assert 'Traceback' not in done.stderr


@pytest.mark.parametrize('place', ['workspace', 'above', 'lock', 'socket'])
def test_unusable_workspace(start: Start, tmp_path: Path, place: str) -> None:
    """What stands in place of the workspace, a folder above it, its socket or its lock is told: exit 1, a hint."""
    workspace = tmp_path / 'x' / 'ws'
    workspace.parent.mkdir()
    spoilt = {'workspace': workspace, 'above': workspace / 'deeper', 'lock': workspace, 'socket': workspace}[place]
    if place in ('workspace', 'above'):
        workspace.write_text('')
    elif place == 'lock':
        (workspace / 'trading-agent.lock').mkdir(parents=True)
    else:
        workspace.mkdir()
        (workspace / 'control.sock').write_text('')
    if place == 'above':
        done = run_cli('--config', '/dev/null', '--workspace', str(spoilt), 'run')
        code, stderr = done.returncode, done.stderr
    else:
        daemon = start(workspace=spoilt)
        code, stderr = daemon.wait(), b''.join(daemon.odd).decode()
    assert code == 1, stderr
    assert re.search(r'^error: .*' + re.escape(str(workspace)), stderr, re.MULTILINE), stderr
    assert re.search('^hint: .', stderr, re.MULTILINE), stderr
    assert 'Traceback' not in stderr
    if place == 'socket':
        assert (workspace / 'control.sock').is_file()


@pytest.mark.parametrize('number', [signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_in_the_code_of_a_library(start: Start, number: signal.Signals) -> None:
    """A process that dies in C code, or by systemd's watchdog, says where each thread was, and the next one goes on."""
    daemon = start().ready()
    assert daemon.cli('send', 'main', 'hello', '--wait').returncode == 0
    daemon.send_signal(number)
    assert daemon.wait() == -number
    told = b''.join(daemon.odd).decode()
    assert told.startswith('Fatal Python error: ')
    assert 'loop_monitor.py' in told
    assert start().ready().cli('send', 'main', 'hello', '--wait').returncode == 0
    assert len(daemon.files_of().exchanges()) == 2


def test_a_client_without_a_daemon(tmp_path: Path) -> None:
    """`status` and `send` exit with 69 after the daemon was killed, and say where they looked for it."""
    daemon = Process(tmp_path / 'ws')
    try:
        daemon.ready()
        daemon.kill()
    finally:
        daemon.close()
    for command in (['status'], ['send', 'main', 'hello']):
        done = daemon.cli(*command)
        assert (done.returncode, done.stdout) == (69, '')
        assert str(tmp_path / 'ws' / 'control.sock') in done.stderr
        assert 'hint: ' in done.stderr


def test_a_waiting_client_whose_daemon_dies(start: Start) -> None:
    """A `send --wait` whose daemon is killed exits with 1 and says that the trigger is kept; the same id asks again."""
    hanging = '[backends.b]\nkind = "offline"\nhang_every = 1\n[[desks]]\nname = "main"\nbackends = ["b"]\n'
    daemon = start(hanging).ready()
    done: list[subprocess.CompletedProcess[str]] = []
    thread = threading.Thread(target=lambda: done.append(daemon.cli('send', 'main', 'hello', '--id', 'q', '--wait')))
    thread.start()
    daemon.wait_for('turn_started')
    daemon.kill()
    thread.join(DEADLINE)
    assert done[0].returncode == 1
    assert re.search('hint: .*send it again with .*--id', done[0].stderr)
    assert 'Traceback' not in done[0].stderr
    again = start(hanging.replace('hang_every = 1', '')).ready()
    asked = again.cli('--json', 'send', 'main', 'hello', '--id', 'q', '--wait')
    assert (asked.returncode, json.loads(asked.stdout)['outcome']) == (0, 'answered')
    assert again.files_of().answered() == ['q']


@pytest.mark.parametrize('place', ['runtime', 'deep'])
def test_where_the_socket_is(start: Start, tmp_path: Path, place: str) -> None:
    """The socket is in $RUNTIME_DIRECTORY, or in a workspace of any depth, and a client finds it by the workspace."""
    runtime = tmp_path / 'run'
    runtime.mkdir()
    if place == 'runtime':
        workspace, folder = tmp_path / 'ws', runtime
        daemon = start(workspace=workspace, environ={'RUNTIME_DIRECTORY': str(runtime)}).ready()
    else:
        workspace = folder = tmp_path / ('deep' * 30) / ('deeper' * 20) / 'ws'
        workspace.parent.mkdir(parents=True)
        daemon = start(workspace=workspace).ready()
    assert (folder / 'control.sock').is_socket()
    assert daemon.cli('send', 'main', 'hello', '--wait').returncode == 0
    assert daemon.stop() == 0
    assert not list(tmp_path.rglob('control.sock'))
