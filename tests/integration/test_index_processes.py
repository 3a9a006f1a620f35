"""Several processes with one index: they write no row twice, and one that is killed leaves it right."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from index_days import Day, Rows, as_first_read, rebuilt, rows_of

from trading_agent.index.sqlite import SqliteIndex

FOLLOW = """
import sys, time
from pathlib import Path
from trading_agent.index import feed
from trading_agent.index.sqlite import SqliteIndex
feed.BATCH_BYTES = 4096
print('begun', flush=True)
until = time.monotonic() + float(sys.argv[2])
with SqliteIndex(Path(sys.argv[1]), lambda path, error: sys.exit(f'damaged: {error}')) as index:
    while time.monotonic() < until:
        getattr(index, sys.argv[3])()
"""


def follower(workspace: Path, seconds: float, action: str = 'catch_up') -> 'subprocess.Popen[str]':
    """Starts a process that does something with the index again and again for so long."""
    command = [sys.executable, '-c', FOLLOW, str(workspace), str(seconds), action]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == 'begun\n'
    return process


def ended(process: 'subprocess.Popen[str]') -> str:
    """Returns what a process says of its end, which is in order."""
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    return said


@pytest.fixture
def days(tmp_path: Path) -> list[Day]:
    """Four sessions of two desks, with a hundred turns each."""
    days = [Day(tmp_path, desk, f'2026-10-{day}-1') for desk in ('main', 'other') for day in (19, 20)]
    for day in days:
        for number in range(100):
            day.say(f'zebra {number}', trigger_id=f'{day.session_id}/{number}')
    return days


def test_processes_that_read_the_same_files(tmp_path: Path, days: list[Day]) -> None:
    """Two that follow the files, one that makes the index anew, and a search here: each row is there once."""
    processes = [follower(tmp_path, 2, action) for action in ('catch_up', 'catch_up', 'rebuild')]
    grown = 100
    with SqliteIndex(tmp_path, lambda path, error: pytest.fail(f'{path}: {error}')) as index:
        while any(process.poll() is None for process in processes):
            for day in days:
                day.say(f'zebra {grown}', trigger_id=f'{day.session_id}/{grown}')
            grown += 1
            hits = index.search('zebra', limit=10**6)
            assert len({(hit.desk, hit.session_id, hit.number) for hit in hits}) == len(hits)
    for process in processes:
        assert ended(process) == ''
    with SqliteIndex(tmp_path) as index:
        index.catch_up()
        assert index.check(patience=0) == []
        assert len(index.search('zebra', limit=10**6)) == 4 * grown
    assert rows_of(tmp_path) == rebuilt(tmp_path)


@pytest.mark.parametrize('action', ['catch_up', 'rebuild'])
def test_one_that_is_killed(tmp_path: Path, days: list[Day], action: str) -> None:
    """Killed at any instant, again and again, while the files grow: the next one goes on, and nothing is damaged."""
    chance = random.Random(action)  # noqa: S311 - no secret
    for _ in range(12):
        process = follower(tmp_path, 60, action)
        for day in days:
            for _ in range(20):
                day.say('zebra', trigger_id=f'{day.turns}/{day.session_id}')
        time.sleep(chance.uniform(0, 0.05))  # the instant of the kill, not a wait for anything
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        if chance.random() < 0.3:
            (tmp_path / 'index.sqlite3').unlink(missing_ok=True)
    with SqliteIndex(tmp_path, lambda path, error: pytest.fail(f'{path}: {error}')) as index:
        index.catch_up()
        assert index.check(patience=0) == []
    followed: Rows = rows_of(tmp_path)
    assert len(followed['exchanges']) == 4 * 340
    assert followed == rebuilt(tmp_path) == as_first_read(tmp_path)
