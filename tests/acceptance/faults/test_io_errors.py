"""A short run of the I/O errors, and calls that are answered for one by one."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import images
import io_errors
import pytest
from failing_calls import FailingCalls, Plan, Way
from failing_daemon import failing_daemon
from findings import Budget, Findings
from full_disk import MOST_PAGES
from io_errors import LEVELS_AT_A_TIME, Stories, fill_levels
from quick_folder import quick_folder
from real_failures import errors_of_the_system, failing_disk, failing_syncs

from trading_agent import files

DESK = 'desks/main'
NEW_LOG = rf'{DESK}/sessions/2026-10-20-\d\.jsonl'
ONCE: list[tuple[int, str]] = [
    (errno.EIO, rf'io\.open {DESK}/Memory\.md'),
    (errno.EIO, rf'io\.open {DESK}/AGENTS\.md'),
    (errno.EIO, rf'io\.open {DESK}/sessions/state\.json'),
    (errno.EIO, rf'stat {DESK}/skills'),
    (errno.EIO, rf'stat {DESK}/skills/spreads'),
    (errno.EIO, rf'stat {DESK}/journal/.*\.jsonl'),
    (errno.EIO, rf'stat {DESK}'),
    (errno.EIO, r'stat index\.sqlite3'),
    (errno.EIO, rf'close {NEW_LOG}'),
    (errno.EIO, r'close trading-agent\.lock'),
    (errno.EIO, rf'fdatasync {NEW_LOG}'),
    (errno.EIO, rf'fdatasync {DESK}/triggers\.jsonl'),
    (errno.EIO, rf'fsync {DESK}/sessions'),
    (errno.EMFILE, rf'open {DESK}/triggers\.jsonl'),
    (errno.EACCES, rf'replace {DESK}/sessions/\.state\.json.*'),
    (errno.ENOSPC, rf'link {DESK}/sessions/.*'),
]
"""Calls that fail once."""

FOR_A_WHILE: list[tuple[int, Way, str]] = [
    (errno.EIO, 'all for a while', rf'fdatasync {NEW_LOG}'),
    (errno.EIO, 'all for a while', rf'fsync {DESK}/sessions'),
    (errno.EIO, 'all for a while', rf'fdatasync {DESK}/sessions/\.session-ids'),
    (errno.ENOSPC, 'this one for a while', rf'pwrite {DESK}/journal/.*'),
    (errno.EACCES, 'all for a while', rf'open {DESK}/triggers\.jsonl'),
]


def skip_without(why: str) -> None:
    """Skips a test for a reason, or fails it where all are to be run."""
    if why:
        assert not os.environ.get('TRADING_AGENT_TEST_ALL'), why
        pytest.skip(why)


@pytest.fixture(scope='module')
def stories() -> Iterator[Stories]:
    """Stories in a quick folder."""
    with quick_folder() as folder:
        yield Stories(Path(folder))


@pytest.mark.parametrize(('error', 'of'), ONCE)
def test_a_call_that_fails_once(stories: Stories, error: int, of: str) -> None:
    """The desk goes on by itself, the failure is told where anything failed by it, and nothing is lost or doubled."""
    findings = Findings()
    calls = stories.live(Plan(1, error, 'once', of), findings, 'once')
    assert calls.failed, 'there is no such call any more'
    findings.check()


@pytest.mark.parametrize(('error', 'way', 'of'), FOR_A_WHILE)
def test_calls_that_fail_for_a_while(stories: Stories, error: int, way: Way, of: str) -> None:
    """While the disk refuses, that is told; once it takes again, the desk goes on, and nothing is lost or doubled."""
    findings = Findings()
    calls = stories.live(Plan(1, error, way, of), findings, way)
    assert len(calls.failed) > 1
    findings.check()


def test_each_call_in_turn() -> None:
    """A sample of all calls, each failing with an error that it can have, changes nothing of what is promised."""
    found = io_errors.run(Budget(rounds=3))
    found.check()
    assert found.counts['io_errors'] == 3


@pytest.mark.parametrize('turn', range(3))
def test_fill_levels(turn: int) -> None:
    """With so many pages left a desk does what it can, says what it cannot, and goes on when there is room again."""
    skip_without(io_errors.mounts_missing())
    assert LEVELS_AT_A_TIME * 3 < MOST_PAGES
    found = fill_levels(f'short-{turn}', turn)
    found.check()
    assert found.counts['fill_levels'] == LEVELS_AT_A_TIME


def test_a_sync_that_fails_and_then_says_that_all_is_well() -> None:
    """What the system failed to sync, and then took for synced, is on the disk when the power is cut afterwards."""
    skip_without(io_errors.mounts_missing())
    found = images.apart(lambda: failing_syncs('short'))
    found.check()
    assert found.counts['io_errors'] > 0


def test_errors_below_python() -> None:
    """Desks whose system calls fail, and that may open no more files, go on by themselves after each time."""
    skip_without(io_errors.strace_missing())
    errors_of_the_system('short').check()


def test_the_daemon_of_the_command_line() -> None:
    """So does the daemon as an operator runs it: it takes triggers again, answers all, and ends in order."""
    skip_without(io_errors.strace_missing())
    failing_daemon('short').check()


def test_calls_are_seen(tmp_path: Path) -> None:
    """A call on a file of the folder fails as told, bytes of a failed sync are lost, and others are not touched."""
    calls = FailingCalls(tmp_path, Plan(1, errno.EIO, 'once', of='fdatasync .*'))
    with calls.installed():
        descriptor = os.open(tmp_path / 'file', os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(descriptor, b'hello', 0)
        assert not calls.is_synced(tmp_path / 'file', b'ell')
        with pytest.raises(OSError, match='Input/output error'):
            os.fdatasync(descriptor)
        os.fdatasync(descriptor)
        assert calls.lost() == ['file']
        os.pwrite(descriptor, b'hello', 0)
        assert calls.lost() == []
        os.close(descriptor)
    assert calls.failed == ['fdatasync file']


def test_what_an_earlier_process_failed_to_sync() -> None:
    """A line that is in memory only, and taken for written, is on the disk once a start has sealed the file."""
    skip_without(io_errors.mounts_missing())
    first, second = b'a' * 2999 + b'\n', b'b' * 8999 + b'\n'

    def sealed(*, seals: bool) -> bytes:
        with failing_disk() as (image, ballast):
            with image.mounted() as mounted:
                files.append(mounted / 'log', first)
                ballast.leave(0)
                with (mounted / 'log').open('ab', buffering=0) as file:
                    file.write(second)
                    with pytest.raises(OSError, match='No space left'):
                        os.fdatasync(file.fileno())
                ballast.remove()
                if seals:
                    files.seal(mounted / 'log')
                image.shut_down()
            with image.mounted() as mounted:
                return (mounted / 'log').read_bytes()

    assert images.apart(lambda: sealed(seals=False)) != first + second, 'it was on the disk all the same'
    assert images.apart(lambda: sealed(seals=True)) == first + second
