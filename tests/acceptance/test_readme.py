"""The README: every command in it is run as shown and its output compared, every example in it is run as printed.

Run as a program it writes the outputs anew: `.venv/bin/python tests/acceptance/test_readme.py`.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / 'README.md'
REGIONS = ('tour', 'operator', 'monitor')
DEADLINE = 60.0


@dataclass
class Step:
    """A command of the README with what it prints."""

    command: str
    output: str


def region(text: str, name: str) -> str:
    """Returns what stands between `<!-- name -->` and `<!-- end of name -->`."""
    return text.partition(f'<!-- {name} -->')[2].partition(f'<!-- end of {name} -->')[0]


def steps(text: str) -> list[Step]:
    """Returns the commands of the console blocks in a text, each with the lines under it."""
    found: list[Step] = []
    for block in re.findall(r'```console\n(.*?)```', text, re.DOTALL):
        for line in block.split('\n')[:-1]:
            if line.startswith('$ '):
                found.append(Step(line[2:], ''))
            else:
                found[-1].output += line + '\n'
    return found


def plain(output: str) -> str:
    """Returns an output without what differs from run to run: times, ids, ages and the width of columns."""
    for pattern, name in (
        (r'\b[0-9a-f]{16}-[0-9a-f]{12}\b', 'ID'),
        (r'inbox-[0-9a-f]{8,32}', 'inbox-ID'),
        (r'\d{4}-\d\d-\d\d', 'DATE'),
        (r'\b\d\d:\d\d(:\d\d)?(\.\d+)?\b', 'TIME'),
        (r'\b\d\d? (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b', 'DAY'),
        (r'\b\d+(\.\d+)? ?(ms|s|m|h)\b', 'AGE'),
        (r'\bpid \d+', 'pid N'),
        (r'\d+ turns/s', 'N turns/s'),
        (r'\b\d+(\.\d+)? (kB|MB)', 'SIZE'),
        (r'\bby \w+', 'by SOMEBODY'),
        (r'─+|━+|-{3,}', '-'),
        (r'[ \t]+', ' '),
    ):
        output = re.sub(pattern, name, output)
    return '\n'.join(line.strip() for line in output.strip().split('\n'))


@contextmanager
def checkout() -> Iterator[Path]:
    """Yields a folder like a fresh checkout, in which a daemon runs as scripts/run runs it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ('config', 'tests', 'src'):
            (folder / part).symlink_to(ROOT / part)
        (folder / '.venv').symlink_to(Path(sys.prefix))
        executed = re.search(r'^exec (.*) "\$@"$', (ROOT / 'scripts' / 'run').read_text(), re.MULTILINE)
        assert executed is not None
        with (folder / 'log').open('wb') as log:
            daemon = subprocess.Popen(executed[1].split(), cwd=folder, stderr=log)
            try:
                wait_for(lambda: b'daemon_ready' in (folder / 'log').read_bytes())
                yield folder
            finally:
                daemon.terminate()
                assert daemon.wait(60) == 0


def wait_for(condition: Callable[[], bool]) -> None:
    """Returns once a condition holds."""
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def run(folder: Path, command: str) -> str:
    """Runs a command of the README as a person's shell does, and returns what it prints."""
    environ = {**os.environ, 'PATH': f'{folder}/.venv/bin:{os.environ["PATH"]}', 'COLUMNS': '100'}
    result = subprocess.run(
        ['bash', '-c', command], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, (command, result.stdout, result.stderr)
    inbox = folder / 'workspace' / 'desks' / 'main' / 'inbox'
    wait_for(lambda: not list(inbox.glob('*.txt')))  # a person is slower than the inbox
    return result.stdout


STEPS = [step for name in REGIONS for step in steps(region(README.read_text(), name))]


@pytest.fixture(scope='module')
def printed() -> Iterator[list[str]]:
    """What each command of the README prints, run one after the other."""
    with checkout() as folder:
        yield [run(folder, step.command) for step in STEPS]


@pytest.mark.parametrize('place', range(len(STEPS)), ids=[step.command[:60] for step in STEPS])
def test_every_command_prints_what_the_readme_says(place: int, printed: list[str]) -> None:
    """A command of the README, run as shown, prints what stands under it."""
    assert plain(printed[place]) == plain(STEPS[place].output)


def example(name: str) -> str:
    """Returns the code block that follows `<!-- name -->`."""
    found = re.search(rf'<!-- {re.escape(name)} -->\n```(?:python|toml|text)\n(.*?)```', README.read_text(), re.DOTALL)
    assert found is not None, name
    return found[1]


def test_the_component(tmp_path: Path) -> None:
    """The component of the README, configured as printed, writes each session_started to its file."""
    (tmp_path / 'sessions_file.py').write_text(example('component.py'))
    sessions = tmp_path / 'sessions.txt'
    (tmp_path / 'config.toml').write_text(example('component.toml').replace('/tmp/sessions.txt', str(sessions)))  # noqa: S108
    environ = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')])}
    command = [sys.executable, '-m', 'trading_agent', '--config', 'config.toml', '--workspace', 'ws', 'run']
    with (tmp_path / 'log').open('wb') as log:
        daemon = subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=log)
        try:
            wait_for(lambda: sessions.exists() and 'main' in sessions.read_text())
        finally:
            daemon.terminate()
            assert daemon.wait(60) == 0


def test_the_embedding(tmp_path: Path) -> None:
    """The embedding of the README prints the very first session_started."""
    script = tmp_path / 'embedding.py'
    script.write_text(example('embedding.py'))
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert re.search(r'\d{4}-\d\d-\d\d-1', result.stdout)


def test_the_session(tmp_path: Path) -> None:
    """The conversation of the README, run as printed, prints what stands under it."""
    (tmp_path / 'session.py').write_text(example('session.py'))
    result = subprocess.run(
        [sys.executable, '-W', 'error', 'session.py'],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.stdout == example('session.txt'), result.stderr


def test_the_backend(tmp_path: Path) -> None:
    """The backend of the README passes the contract suite, written as printed."""
    (tmp_path / 'my_backend.py').write_text(example('backend.py'))
    (tmp_path / 'test_backend.py').write_text(example('test_backend.py'))
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'test_backend.py'],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
    assert ' passed' in result.stdout


def test_the_reference_is_made_from_the_code() -> None:
    """The tables of configuration keys and events in the README are what scripts/reference makes."""
    subprocess.run([sys.executable, str(ROOT / 'scripts' / 'reference.py'), '--check'], check=True, timeout=60)


def write() -> None:
    """Writes the outputs of the commands into the README."""
    text = README.read_text()
    with checkout() as folder:
        for name in REGIONS:
            old = region(text, name)
            new = old
            for step in steps(old):
                output = ''.join(
                    f'{line}\n' if line.strip() else '\n' for line in run(folder, step.command).split('\n')[:-1]
                )
                new = new.replace(f'$ {step.command}\n{step.output}', f'$ {step.command}\n{output}', 1)
            text = text.replace(old, new, 1)
    README.write_text(text)


if __name__ == '__main__':
    assert shutil.which('bash')
    write()
