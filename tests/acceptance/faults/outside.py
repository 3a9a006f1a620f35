"""Input from outside: a real daemon whose socket and inbox get what no honest source sends.

After each round it still answers others, what it accepted is answered, and nothing was written anywhere else.
"""

import json
import os
import random
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from auditor import audit, modes
from findings import Budget, Fault, Findings
from planted import environment
from process import Process

CATCHES = ('a file made 0644',)

PATIENCE_SECONDS = 20.0
CONNECTIONS = 150
"""How many clients at once send nothing, or one byte now and then."""

UMASKS = ('0', '0777', '022')

PATHS = (
    '../../../escaped',
    '/escaped',
    'a/../../b',
    '..',
    '.',
    'x\x00y',
    'CON',
    '\u202e\u2028',
    'n' * 128,
    '%2e%2e%2f',
)

_POST = b'POST /v1/desks/main/triggers HTTP/1.1\r\nHost: d\r\n'
REQUESTS: tuple[bytes, ...] = (
    b'\x00' * 5000,
    b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
    b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    b'GET\r\n\r\n',
    b'GET /v1/status HTTP/9.9\r\n\r\n',
    b'GET /v1/../../../../etc/passwd HTTP/1.1\r\nHost: d\r\n\r\n',
    b'GET /v1/status HTTP/1.1\r\n' + b'X: y\r\n' * 10_000 + b'\r\n',
    b'GET /v1/status HTTP/1.1\r\nX: ' + b'y' * 1_000_000 + b'\r\n\r\n',
    b'GET /v1/status HTTP/1.1\r\nHost: d\r\n\r\n' * 50,
    _POST + b'Content-Length: 100000000\r\n\r\n' + b'{' * 3_000_000,
    _POST + b'Content-Length: -1\r\n\r\n{}',
    _POST + b'Content-Length: 5\r\nContent-Length: 7\r\n\r\n{}',
    _POST + b'Content-Length: 50\r\n\r\n{"text":',
    _POST + b'Transfer-Encoding: chunked\r\n\r\nzz\r\nnonsense\r\n',
    _POST + b'Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n',
    _POST + b'Content-Length: 200000\r\n\r\n' + b'[' * 200_000,
    _POST + b'Content-Length: 12\r\n\r\n{"text":1e999',
    _POST + b'Content-Length: 17\r\n\r\n{"text":"\\ud800"}x',
    b'DELETE /v1/desks/main/triggers/..%2f..%2fescaped HTTP/1.1\r\nHost: d\r\n\r\n',
    b'GET /v1/events HTTP/1.1\r\nHost: d\r\n\r\n',
)
"""What is sent by clients that then go away, or wait without reading."""


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


class Target:
    """A daemon, and what surrounds its workspace.

    Args:
        folder: Holds the workspace; nothing else in it may change.
        umask: What the daemon is started with.
        plant: A fault that is planted into it.
    """

    def __init__(self, folder: Path, umask: str, plant: str) -> None:
        self._folder = folder
        self._secret = folder / 'secret.txt'
        self._secret.write_text('not for the desk')
        self.workspace = folder / 'ws'
        here = os.pathsep.join([str(Path(__file__).parent), os.environ.get('PYTHONPATH', '')])
        program = folder / 'planted_run.py'
        program.write_text(
            'import planted\nplanted.plant_from_environment()\nfrom trading_agent.cli.main import main\nmain()\n'
        )
        self.daemon = Process(
            self.workspace,
            program=[str(program)],
            prefix=['sh', '-c', f'umask {umask}; exec "$@"', 'sh'],
            environ={'PYTHONPATH': here, **environment(plant)},
        ).ready()
        self._before = self._listing()

    def _listing(self) -> dict[str, bytes | None]:
        around = [path for path in self._folder.iterdir() if path != self.workspace]
        return {path.name: path.read_bytes() if path.is_file() else None for path in around}

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """Yields a connection to the socket."""
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.settimeout(PATIENCE_SECONDS)
            client.connect(str(self.workspace / 'control.sock'))
            yield client

    def hostile_request(self, data: bytes) -> None:
        """Sends bytes and goes away, whatever comes back."""
        with self.connected() as client, suppress(OSError):
            client.settimeout(1.0)
            client.sendall(data)
            client.settimeout(0.05)
            client.recv(100)

    def inbox_entries(self, number: int) -> list[str]:
        """Puts what is no message into the inbox; returns the names."""
        inbox = self.workspace / 'desks' / 'main' / 'inbox'
        makers: dict[str, Callable[[Path], object]] = {
            f'link-{number}.txt': lambda path: path.symlink_to(self._secret),
            f'loop-{number}.txt': lambda path: path.symlink_to(path),
            f'dangling-{number}.txt': lambda path: path.symlink_to('/nowhere/at/all'),
            f'pipe-{number}.txt': os.mkfifo,
            f'folder-{number}.txt': lambda path: path.mkdir(mode=0o700),
            f'huge-{number}.txt': _huge,
            f'bytes-{number}.txt': lambda path: path.write_bytes(b'\xff\xfe\x00'),
            f'deep-{number}.json': lambda path: path.write_bytes(b'[' * 200_000),
            f'path-{number}.json': lambda path: path.write_text(json.dumps({'text': 'x', 'id': '../../escaped'})),
            f'-rf {number}\n.txt': lambda path: path.write_text('a name with a line end'),
        }
        for name, make in makers.items():
            make(inbox / name)
            if not (inbox / name).is_symlink() and (inbox / name).is_file():
                (inbox / name).chmod(0o600)
        return list(makers)

    def faults(self, accepted: list[str]) -> Iterator[Fault]:
        """Yields what is not as it should be, once the daemon has stopped."""
        if self._listing() != self._before:
            yield Fault('broken', 'something was written outside of the workspace')
        for path in self.workspace.rglob('*'):
            if 'escaped' in path.name:
                yield Fault('broken', f'an id became a path: {path.name}')
            small = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 20
            if small and b'not for the desk' in path.read_bytes():
                yield Fault('broken', f'a link was followed into {path.name}')
        # What a person put into the inbox keeps what they gave it.
        yield from (fault for fault in modes(self.workspace) if not re.match('(folder|pipe)-', fault.what))
        known = audit(self.workspace, {'main': accepted})
        yield from (fault for fault in known if fault.kind in ('lost', 'twice'))


def _round(target: Target, number: int, chances: random.Random, findings: Findings) -> list[str]:
    """Sends what is hostile and, beside it, what is not; returns the ids that were accepted."""
    accepted = []
    with ExitStack() as idle:
        for _ in range(CONNECTIONS):
            client = idle.enter_context(target.connected())
            client.sendall(
                chances.choice(
                    [b'', b'G', b'GET /v1/status HTTP/1.1\r\nHost:', b'GET /v1/events HTTP/1.1\r\nHost: d\r\n\r\n']
                )
            )
        for data in chances.sample(REQUESTS, len(REQUESTS)):
            target.hostile_request(data)
            findings.counts['outside_requests'] += 1
        findings.counts['outside_requests'] += CONNECTIONS
        for path in PATHS:
            target.daemon.request('POST', '/v1/desks/main/triggers', {'text': 'a path for an id', 'id': path})
            code, _ = target.daemon.request('GET', '/v1/status')
            if code != 200:
                findings.add('blocked', f'status is answered with {code}')
        findings.counts['inbox_entries'] += len(target.inbox_entries(number))
        trigger_id = f'honest-{number}'
        began = time.monotonic()
        receipt = target.daemon.send('an honest message', id=trigger_id)
        if receipt.get('status') != 'accepted':
            findings.add('blocked', f'an honest message was not taken: {receipt}')
        accepted.append(trigger_id)
        target.daemon.wait_for('turn_finished', trigger_id=trigger_id)
        if time.monotonic() - began > PATIENCE_SECONDS / 2:
            findings.add('blocked', f'an honest message was answered after {time.monotonic() - began:.0f} s')
    return accepted


def missing() -> str:
    """Returns an empty text: every machine can do this."""
    return ''


def run(budget: Budget, plant: str = '') -> Findings:
    """Lets a daemon live through the rounds, under each umask in turn."""
    findings = Findings()
    for number in budget:
        chances = random.Random(f'{budget.seed}-{number}')  # noqa: S311 - the same requests each time
        umask = UMASKS[number % len(UMASKS)]
        where = f'seed {budget.seed}, round {number}, umask {umask}'
        with tempfile.TemporaryDirectory() as folder:
            target = Target(Path(folder), umask, plant)
            try:
                accepted = _round(target, number, chances, findings)
                code = target.daemon.stop()
                if code:
                    findings.add('broken', f'{where}: it ended with {code}')
                findings.found(target.faults(accepted), where)
                for line in target.daemon.found('loop_blocked') + target.daemon.found('component_failed'):
                    findings.add('broken', f'{where}: {line}')
            except AssertionError as error:
                findings.add('blocked', f'{where}: {error}'[:2000])
            finally:
                target.daemon.close()
    return findings


def trial(plant: str) -> Findings:
    """One round: what a planted fault is found by."""
    return run(Budget(rounds=1), plant)
