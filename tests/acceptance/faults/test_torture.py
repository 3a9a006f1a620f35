"""`scripts/torture` as a person runs it: its figures, its exit code, and a Python that does not sync."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torture

NO_SYNCS = 'import os\nos.fsync = os.fdatasync = lambda _: None\n'


def run(*arguments: str, python_path: str = '') -> tuple[int, dict[str, str], str]:
    """Runs it; returns the exit code, the figures of its last line, and everything that it printed."""
    environ = os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, [python_path, os.environ.get('PYTHONPATH')]))}
    done = subprocess.run(
        [sys.executable, torture.__file__, '--seed', '7', *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environ,
    )
    last = done.stdout.strip().split('\n')[-1]
    told = dict(pair.split('=', 1) for pair in last.split()) if '=' in last else {}
    return done.returncode, told, done.stdout + done.stderr


def test_the_figures_stand_in_the_last_line() -> None:
    """A run in which every promise was kept ends with exit code 0, and its last line says how much was tried."""
    code, told, output = run('--minutes', '0.05', '--parts', 'time_walks,damaged_files')
    assert code == 0, output
    assert float(told['desk_years']) > 0
    assert int(told['damaged_files']) > 0
    faults = [told[name] for name in ('acknowledged_lost', 'recorded_twice', 'desks_blocked', 'silent_repairs')]
    assert faults == ['0'] * 4
    assert told['left_out'] == 'nothing'


def test_every_part_is_run_by_the_script() -> None:
    """Each part begins also where no test runner has prepared anything for it, and is told."""
    code, told, output = run('--minutes', '0')
    assert code == 0, output
    for part in torture.PARTS:
        assert f'{part.name}: 0 faults' in output or part.name in told['left_out'].split(','), output


def test_a_python_that_does_not_sync(tmp_path: Path) -> None:
    """Where `os.fsync` and `os.fdatasync` do nothing the run is red: what is synced is seen below Python."""
    if why := torture.lacks('crash_states'):
        assert not os.environ.get('TRADING_AGENT_TEST_ALL'), why
        pytest.skip(why)
    (tmp_path / 'sitecustomize.py').write_text(NO_SYNCS)
    code, told, output = run('--minutes', '0.1', '--parts', 'crash_states', python_path=str(tmp_path))
    assert code == 1, output
    assert int(told['acknowledged_lost']) > 0
