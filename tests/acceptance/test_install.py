"""The installation and the unit: what `scripts/install` puts where, and whether a daemon in that place does its work.

systemd itself is never started: `systemd-analyze` judges the unit, and the daemon is given what systemd would give it.
"""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest
from desk_files import DeskFiles
from process import DEADLINE, clean_environ, until

from trading_agent import __version__
from trading_agent.cli.check import CONFIGURATION_EXIT
from trading_agent.cli.client import RUNTIME_FOLDER
from trading_agent.cli.run import GIVE_UP_SECONDS
from trading_agent.config import CONFIG_PLACES, Config

ROOT = Path(__file__).parents[2]
UNIT = ROOT / 'systemd' / 'trading-agent.service'
DROP_IN = ROOT / 'systemd' / 'node-backends.conf'
PREFIX = 'opt/trading-agent'
TIMEOUT = 300.0
"""How long a command may take, in seconds: an installation fetches packages."""


def run(*command: str | Path, **environ: str) -> 'subprocess.CompletedProcess[str]':
    """Runs a command in a folder that has nothing to do with it."""
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=TIMEOUT, cwd='/', env=clean_environ(**environ)
    )


@dataclass
class Staged:
    """An installation in a folder of its own.

    Attributes:
        folder: The DESTDIR.
        checkout: What it was installed from.
    """

    folder: Path
    checkout: Path

    def install(self, *arguments: str) -> 'subprocess.CompletedProcess[str]':
        """Runs `scripts/install`."""
        return run(self.checkout / 'scripts' / 'install', *arguments, DESTDIR=str(self.folder))

    @property
    def top(self) -> Path:
        """The program's folder."""
        return self.folder / PREFIX

    @property
    def config(self) -> Path:
        """The configuration."""
        return self.folder / 'etc/trading-agent/trading-agent.toml'

    @property
    def program(self) -> list[str]:
        """The installed command, while the installation is not in its final place."""
        return [str(self.top / 'venv/bin/python'), '-m', 'trading_agent']


def copy_of_checkout(folder: Path) -> Path:
    """Makes a checkout with what an installation needs, and nothing that a developer left in it."""
    for name in ('config', 'scripts', 'src', 'systemd'):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__', '*.egg-info'))
    shutil.copy(ROOT / 'pyproject.toml', folder)
    return folder


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns every file, link and folder with its mode and time of change."""
    found = {str(path.relative_to(folder)): path.lstat() for path in folder.rglob('*')}
    return {name: (status.st_mode, status.st_mtime_ns) for name, status in found.items()}


@pytest.fixture(scope='module')
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """One installation for all tests, from a checkout that it left as it was and that is gone since."""
    if not os.environ.get('TRADING_AGENT_TEST_ALL'):
        pytest.skip('scripts/check --all installs the package into a folder; here that would take a minute more')
    made = Staged(tmp_path_factory.mktemp('staged'), copy_of_checkout(tmp_path_factory.mktemp('checkout')))
    before = tree(made.checkout)
    done = made.install()
    assert done.returncode == 0, done.stderr
    assert tree(made.checkout) == before
    shutil.rmtree(made.checkout)
    return made


@pytest.fixture
def again(staged: Staged, tmp_path: Path) -> Iterator[Staged]:
    """The same installation with a new checkout; its configuration is afterwards what it was."""
    config = staged.config.read_bytes()
    yield Staged(staged.folder, copy_of_checkout(tmp_path / 'checkout'))
    staged.config.write_bytes(config)
    (staged.config.parent / 'requirements.txt').unlink(missing_ok=True)


# -- scripts/install -----------------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    """`--dry-run` says each step of installing and of removing, and neither checkout nor destination changes."""
    (tmp_path / 'destination').mkdir()
    staged = Staged(tmp_path / 'destination', copy_of_checkout(tmp_path / 'checkout'))
    before = tree(tmp_path)
    done = staged.install('--dry-run')
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path) == before
    for step in (
        '-m venv ',
        '-m pip install ',
        '/etc/systemd/system/trading-agent.service',
        '/venv.new',
        '/usr/local/bin',
    ):
        assert step in done.stdout
    assert all(line.startswith('would ') for line in done.stdout.rstrip('\n').split('\n'))
    done = staged.install('--dry-run', '--uninstall')
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ('arguments', 'environ', 'code', 'told'),
    [
        (['--nonsense'], {}, 2, 'there is no option --nonsense'),
        ([], {'PREFIX': 'opt'}, 1, "PREFIX must be an absolute path of plain characters, not 'opt'"),
        ([], {'PREFIX': '/opt/a b'}, 1, 'PREFIX must be'),
        ([], {'DESTDIR': 'here'}, 1, "DESTDIR must be an absolute path, not 'here'"),
        ([], {'PYTHON': '/bin/false'}, 1, 'PYTHON=/bin/false cannot be used'),
        (['--dry-run'], {'DESTDIR': '', 'PREFIX': '/root/agent'}, 1, 'the unit hides /root/agent from the daemon'),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, arguments: list[str], environ: dict[str, str], code: int, told: str) -> None:
    """A wrong option, folder or Python ends it with one line that says so, before anything is done."""
    done = run(ROOT / 'scripts' / 'install', *arguments, **{'DESTDIR': str(tmp_path / 'to'), **environ})
    assert (done.returncode, done.stdout) == (code, '')
    assert done.stderr.startswith('scripts/install: ')
    assert told in done.stderr
    assert done.stderr.count('\n') == 1
    assert list(tmp_path.iterdir()) == []


def test_everything_is_in_its_place(staged: Staged) -> None:
    """Program, unit, configuration and command are where the unit and the operator's manual say, for others to read."""
    name = str((staged.top / 'venv').readlink())
    assert re.fullmatch(rf'venv-{re.escape(__version__)}-\d+', name)
    command = staged.folder / 'usr/local/bin/trading-agent'
    assert command.readlink() == Path('/opt/trading-agent/venv/bin/trading-agent')
    script = staged.top / 'venv/bin/trading-agent'
    assert f'/opt/trading-agent/{name}/bin/python' in script.read_text()
    assert not [path for path in script.parent.iterdir() if os.fsencode(staged.folder) in path.read_bytes()[:4096]]
    unit = staged.folder / 'etc/systemd/system/trading-agent.service'
    assert unit.read_bytes() == UNIT.read_bytes()
    for name, source in (('node-backends.conf', DROP_IN), ('README.md', ROOT / 'systemd' / 'README.md')):
        assert (staged.top / 'systemd' / name).read_bytes() == source.read_bytes()
    example = staged.config.with_name('trading-agent.toml.example')
    assert staged.config.read_bytes() == example.read_bytes() == (ROOT / 'config' / 'trading-agent.toml').read_bytes()
    for path in (unit, staged.config, example, script, staged.top / 'venv'):
        assert path.stat().st_mode & stat.S_IROTH
    assert not list(staged.folder.rglob('*.new'))


def test_a_second_run_upgrades_beside_the_old_one(again: Staged, tmp_path: Path) -> None:
    """A second run makes a new environment and turns the link over; it keeps an edited configuration, the environment
    before, and one that a process still runs from; and puts in what requirements.txt asks for.
    """  # noqa: D205 - the claim is one sentence
    edited = again.config.read_text() + '# edited\n'
    again.config.write_text(edited)
    plug_in = tmp_path / 'plug-in'
    plug_in.mkdir()
    (plug_in / 'pyproject.toml').write_text('[project]\nname = "an-addition"\nversion = "1"\n')
    (plug_in / 'an_addition.py').write_text('')
    (again.config.parent / 'requirements.txt').write_text(f'{plug_in}\n')
    (again.top / 'venv-0.0.1-0').mkdir()
    (again.top / 'venv-0.0.2-0').mkdir()
    used = shutil.copy(shutil.which('sleep') or 'sleep', again.top / 'venv-0.0.2-0')
    first = str((again.top / 'venv').readlink())
    with subprocess.Popen([used, '600']) as process:
        try:
            done = again.install()
        finally:
            process.kill()
    assert done.returncode == 0, done.stderr
    second = str((again.top / 'venv').readlink())
    assert int(second.rsplit('-', 1)[1]) == int(first.rsplit('-', 1)[1]) + 1
    assert {path.name for path in again.top.glob('venv-*')} == {'venv-0.0.2-0', first, second}
    assert again.config.read_text() == edited
    assert not list(again.folder.rglob('*.new'))
    subprocess.run([again.program[0], '-c', 'import an_addition'], check=True)


def test_a_run_that_fails_leaves_what_was(again: Staged) -> None:
    """When the packages cannot be had, what is installed stays as it was, and nothing half made is left."""
    before = tree(again.folder)
    (again.config.parent / 'requirements.txt').write_text('./there-is-no-such-package\n')
    done = again.install()
    assert done.returncode != 0
    assert 'there-is-no-such-package' in done.stderr
    (again.config.parent / 'requirements.txt').unlink()
    after = tree(again.folder)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {PREFIX, 'etc/trading-agent'}


def test_uninstall_keeps_what_is_the_operators(staged: Staged, tmp_path: Path) -> None:
    """`--uninstall` takes the program, the command and the unit, and leaves configuration, drop-ins and workspace."""
    copy = Staged(tmp_path / 'copy', ROOT)
    shutil.copytree(staged.folder, copy.folder, symlinks=True, ignore=shutil.ignore_patterns('lib', 'lib64'))
    drop_in = copy.folder / 'etc/systemd/system/trading-agent.service.d/node-backends.conf'
    data = copy.folder / 'var/lib/trading-agent/desks/main/Memory.md'
    for path in (drop_in, data):
        path.parent.mkdir(parents=True)
        path.write_text('x')
    for _ in range(2):
        done = copy.install('--uninstall')
        assert done.returncode == 0, done.stderr
        assert {path for path in copy.folder.rglob('*') if not path.is_dir()} == {
            drop_in,
            data,
            copy.config,
            copy.config.with_name('trading-agent.toml.example'),
        }
        assert not copy.top.exists()


# -- the unit ------------------------------------------------------------------------------------------------------


def settings(unit: Path = UNIT) -> dict[str, list[str]]:
    """Reads a unit's settings, each with its values in their order."""
    found = defaultdict(list)
    for line in unit.read_text().split('\n'):
        name, equals, value = line.partition('=')
        if equals and not line.startswith('#'):
            found[name].append(value)
    return dict(found)


def analyze(*arguments: str | Path) -> 'subprocess.CompletedProcess[str]':
    """Runs `systemd-analyze`; skips where there is none."""
    program = shutil.which('systemd-analyze')
    if program is None:
        reason = 'systemd-analyze is missing: nothing says whether the unit is right (Debian package systemd)'
        if os.environ.get('TRADING_AGENT_TEST_ALL'):
            pytest.fail(reason)
        pytest.skip(reason)
    return run(program, '--no-pager', *arguments, SYSTEMD_COLORS='0', LC_ALL='C.UTF-8')


def test_systemd_takes_the_unit(staged: Staged, tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say about the unit and its drop-in, with the command where it is here."""
    unit = tmp_path / 'trading-agent.service'
    unit.write_text(UNIT.read_text().replace('ExecStart=/', f'ExecStart={staged.folder}/'))
    (tmp_path / 'trading-agent.service.d').mkdir()
    shutil.copy(DROP_IN, tmp_path / 'trading-agent.service.d')
    done = analyze('verify', unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, '')
    unit.write_text(unit.read_text().replace('WatchdogSec=', 'WatchDogSec='))
    assert 'WatchDogSec' in analyze('verify', unit).stderr


@pytest.mark.parametrize('files', [[UNIT], [UNIT, DROP_IN]], ids=['unit', 'with-drop-in'])
def test_the_unit_is_hardened(tmp_path: Path, files: list[Path]) -> None:
    """The exposure that `systemd-analyze security` finds is 1.5 at most, also with the drop-in for Node."""
    unit = tmp_path / 'trading-agent.service'
    unit.write_text('\n'.join(path.read_text() for path in files))
    done = analyze('security', '--offline=true', '--threshold=15', unit)
    assert done.returncode == 0, done.stdout
    assert 'Overall exposure level' in done.stdout


def test_the_unit_and_the_code_agree() -> None:
    """What the unit says of times, folders and exit codes fits what the daemon does and where the client looks."""
    unit = settings()
    assert float(unit['TimeoutStopSec'][0]) > Config().drain + GIVE_UP_SECONDS
    assert unit['RestartPreventExitStatus'] == [str(CONFIGURATION_EXIT)]
    assert unit['RuntimeDirectory'] == [RUNTIME_FOLDER.name]
    assert f'TRADING_AGENT_CONFIG={CONFIG_PLACES[-1]}' in unit['Environment']
    assert unit['ConfigurationDirectory'] == [CONFIG_PLACES[-1].parent.name]
    # Not for the socket's group to enter is the workspace; for everybody, the folder of the socket.
    assert (unit['StateDirectoryMode'], unit['RuntimeDirectoryMode'], unit['UMask']) == (['0700'], ['0755'], ['0077'])
    assert 'MemoryDenyWriteExecute' in unit
    assert settings(DROP_IN) == {'MemoryDenyWriteExecute': ['no'], 'ProcSubset': ['all']}


# -- a daemon in that place ----------------------------------------------------------------------------------------


class Service:
    """The installed daemon, started with what the unit and systemd give it.

    Args:
        staged: The installation.
        folder: Where it has its state and its runtime directory.
        config: The configuration; None for the installed one.
    """

    def __init__(self, staged: Staged, folder: Path, config: Path | None = None) -> None:
        self.staged = staged
        self.state = folder / 'lib'
        self.runtime = folder / 'run'
        for path, mode in ((self.state, 0o700), (self.runtime, 0o755)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
        # In the abstract namespace, where a name is as long as it likes to be.
        address = f'trading-agent-test-{secrets.token_hex(8)}'
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(f'\0{address}')
        self._notify.settimeout(DEADLINE)
        self.log = folder / 'log'
        unit = settings()
        told = dict(line.split('=', 1) for line in unit['Environment'])
        told |= {
            'TRADING_AGENT_CONFIG': str(config or staged.config),
            'STATE_DIRECTORY': str(self.state),
            'RUNTIME_DIRECTORY': str(self.runtime),
            'NOTIFY_SOCKET': f'@{address}',
            'WATCHDOG_USEC': f'{unit["WatchdogSec"][0]}000000',
        }
        with self.log.open('wb') as log:
            self.process = subprocess.Popen(
                [*staged.program, 'run'], stdin=subprocess.DEVNULL, stderr=log, cwd='/', env=clean_environ(**told)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._notify.close()

    def wait_for(self, state: str) -> None:
        """Returns once systemd would have been told this."""
        while True:
            try:
                told = self._notify.recv(1 << 12).decode()
            except TimeoutError:
                pytest.fail(f'no {state} within {DEADLINE} s; the log:\n{self.log.read_text()}')
            if state in told.split('\n'):
                return

    def client(self, *arguments: str, **environ: str) -> str:
        """Runs the installed command, which succeeds; returns what it said."""
        environ.setdefault('TRADING_AGENT_CONFIG', str(self.staged.config))
        done = run(*self.staged.program, *arguments, **environ)
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_the_installed_daemon_serves_the_installed_client(staged: Staged, tmp_path: Path) -> None:
    """Given what systemd gives it, the daemon says READY and feeds the watchdog; the client reaches it without options
    from the state directory or from the configuration's `workspace`; SIGTERM ends it with exit 0.
    """  # noqa: D205 - the claim is one sentence
    with Service(staged, tmp_path) as service:
        service.wait_for('READY=1')
        service.wait_for('WATCHDOG=1')
        told = json.loads(service.client('status', '--json', STATE_DIRECTORY=str(service.state)))
        assert told['daemon']['pid'] == service.process.pid
        assert [(desk['name'], desk['state']) for desk in told['desks']] == [('main', 'running')]
        assert stat.S_IMODE((service.runtime / 'control.sock').stat().st_mode) == 0o600
        # As the operator's manual has it: the line of the example that names the workspace, made one's own.
        lines = staged.config.read_text().split('\n')
        lines[lines.index('# workspace = "workspace"')] = f'workspace = "{service.state}"'
        config = tmp_path / 'trading-agent.toml'
        config.write_text('\n'.join(lines))
        service.client('send', 'main', 'ABC wins an order', '--wait', TRADING_AGENT_CONFIG=str(config))
        shown = service.client('show', 'main', '--json', TRADING_AGENT_CONFIG=str(config))
        assert [exchange['trigger_text'] for exchange in json.loads(shown)['exchanges']] == ['ABC wins an order']
        service.process.send_signal(signal.SIGTERM)
        service.wait_for('STOPPING=1')
        assert service.process.wait(DEADLINE) == 0
        assert list(service.runtime.iterdir()) == []


def test_a_copy_of_a_held_daemon_is_a_backup(staged: Staged, tmp_path: Path) -> None:
    """From a workspace that was copied while SIGSTOP held the daemon, another one answers what was open, and the held
    one goes on too: each trigger once in both.
    """  # noqa: D205 - the claim is one sentence
    config = tmp_path / 'slow.toml'
    config.write_text(
        '[backends.slow]\nkind = "offline"\ndelay = "2s"\n[[desks]]\nname = "main"\nbackends = ["slow"]\n'
    )
    with Service(staged, tmp_path / 'first', config) as first:
        first.wait_for('READY=1')
        ids = [f'trigger-{number}' for number in range(3)]
        for trigger_id in ids:
            first.client('send', 'main', 'ABC moves', '--id', trigger_id, STATE_DIRECTORY=str(first.state))
        first.process.send_signal(signal.SIGSTOP)
        until(lambda: _is_held(first.process.pid), 'it is held')
        shutil.copytree(first.state, tmp_path / 'second' / 'lib')
        assert ids[-1] not in DeskFiles(tmp_path / 'second/lib/desks/main').answered()
        first.process.send_signal(signal.SIGCONT)
        with Service(staged, tmp_path / 'second', config) as second:
            second.wait_for('READY=1')
            for service in (first, second):
                desk = DeskFiles(service.state / 'desks' / 'main')
                until(lambda desk=desk: len(desk.outcomes()) == len(ids), 'all are closed')  # type: ignore[misc]
                assert desk.answered() == ids


def _is_held(pid: int) -> bool:
    return Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] == 'T'
