"""Failures that the system itself makes, below Python: syncs to a full disk, no more files to open, strace's errors."""

import itertools
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import images
from auditor import audit, lines_of
from findings import Fault, Findings
from images import Ballast, Image
from quick_folder import quick_folder
from told_of_desks import Told
from writers import PATIENCE_SECONDS, Task, Writers, utc

TROUBLE = frozenset({'log', 'write_failed', 'desk_restarted', 'make room', 'roll over'})
"""What a desk may say while something fails."""

FULL_SECONDS = 2.0
"""How long a disk stays full at most, where no sync fails: what is written may need no more room."""

_SMALL = 12 << 20
_IMAGE = 24 << 20
_OPTIONS = ('-b', '4096', '-J', 'size=4', '-N', '1024')


def _task(told: Told, workspace: Path, seed: str, *, settle: bool = False, space: Path | None = None) -> Task:
    return Task(
        workspace=str(workspace),
        seed=seed,
        now=utc(told.now),
        number=told.number,
        again=told.again,
        settle=settle,
        space=str(space or ''),
    )


def _follow(
    writers: Writers, told: Told, *, until: int = 1 << 30, word: str = '', seconds: float = PATIENCE_SECONDS
) -> bool:
    """Takes note of what desks say: of so many lines, or up to one with a word; returns whether that came."""
    count, deadline = 0, time.monotonic() + seconds
    while writers.running and time.monotonic() < deadline:
        found = False
        for line in writers.lines(min(1.0, seconds)):
            count += 1
            found |= bool(word) and word in (line.get('did'), line.get('event'))
            told.take(line, cut=False)
        if found or count >= until:
            return True
    return False


def _settled(writers: Writers, told: Told, workspace: Path, seed: str) -> list[Fault]:
    """Lets desks bring to its end what is open, with nothing that fails any more."""
    told.allowed = frozenset()
    writers.begin(_task(told, workspace, seed, settle=True))
    _follow(writers, told)
    faults = [Fault('blocked', 'the desks do not come to rest')] if writers.running else []
    writers.kill()
    faults += [*told.faults(workspace), *audit(workspace, told.accepted)]
    for path in workspace.glob('desks/*/sessions/*.jsonl'):
        for _, exchange in lines_of(path):
            if exchange and exchange.get('trigger_id') in told.refused:
                faults.append(Fault('broken', f'{exchange["trigger_id"]} was refused, and is answered'))
    return faults


# -- a sync that fails, and then says that all is well ---------------------------------------------------------------


@contextmanager
def failing_disk() -> Iterator[tuple[Image, Ballast]]:
    """Yields an ext4 file system, and what fills the memory that it is in: writes to new places fail then."""
    with images.in_memory(_SMALL) as folder:
        image = Image('ext4', folder, _IMAGE)
        image.make(*_OPTIONS)
        image.make_room_for_all_but_data()
        yield image, Ballast(folder)


def failing_syncs(seed: str, plant: str = '', *, most: int = 4) -> Findings:
    """Lets syncs fail for want of room, gives room before the program hears of it, and cuts the power.

    From then on the system says that all is well, and what was to be synced is in memory only, marked as written.
    """
    findings = Findings()
    with failing_disk() as (image, ballast), Writers(plant) as writers:
        told = Told(allowed=TROUBLE)
        with image.mounted() as mounted:
            writers.begin(_task(told, mounted / 'ws', seed, space=ballast.path))
            _follow(writers, told, until=10)
            for _ in range(most):
                ballast.leave(0)
                if _follow(writers, told, word='make room', seconds=FULL_SECONDS):
                    findings.counts['io_errors'] += 1
                ballast.remove()
                if not _follow(writers, told, word='turn_finished'):
                    findings.add('blocked', f'the desks do not go on after a sync that failed, seed {seed}')
            image.shut_down()
            for line in writers.kill():
                told.take(line, cut=True)
        with image.mounted() as mounted:
            workspace = mounted / 'ws'
            where = f'a real sync failed {findings.counts["io_errors"]} times, seed {seed}, after the cut'
            findings.found(audit(workspace, told.accepted, settled=False), where)
            findings.found(told.faults(workspace), where)
            findings.found(_settled(writers, told, workspace, seed), f'{where} at rest')
    return findings


# -- errors of the system --------------------------------------------------------------------------------------------

Failing = Callable[[int], Iterator[None]]

CALLS = ('fdatasync', 'fsync', 'pwrite64', 'rename', 'link', 'ftruncate', 'flock', 'fchmod')
ERRORS = ('EIO', 'ENOSPC', 'EDQUOT')
IN_TROUBLE_SECONDS = 0.5


@contextmanager
def no_files_left(pid: int, more: int) -> Iterator[None]:
    """Lets a process open so many files more and no others, within the block; setrlimit(2)."""
    used = {int(path.name) for path in Path(f'/proc/{pid}/fd').iterdir()}
    limit = next(number for number in itertools.count() if number not in used) + more
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def failing_calls(pid: int, call: str, error: str, when: str) -> Iterator[None]:
    """Lets a process's system calls fail below Python, within the block.

    Args:
        pid: The process.
        call: The name of the call.
        error: The name of the error.
        when: Which of them, of each thread, as strace(1) has it: `3`, or `3+`.
    """
    command = ['strace', '-f', '-qq', '-o', os.devnull, '-p', str(pid), '-e', f'trace={call}']
    strace = subprocess.Popen([*command, '-e', f'inject={call}:error={error}:when={when}'], stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while not all(_is_traced(task) for task in Path(f'/proc/{pid}/task').iterdir()):
            assert time.monotonic() < until, 'strace does not attach'
            time.sleep(0.005)
        yield
    finally:
        strace.terminate()  # it lets go of the process
        strace.communicate()


def _is_traced(task: Path) -> bool:
    try:
        return 'TracerPid:\t0\n' not in (task / 'status').read_text()
    except OSError:
        return True  # the thread has ended


def errors_of_the_system(seed: str, plant: str = '', *, times: int = 4) -> Findings:
    """Lets calls of desks at work fail a few times, one way after the other; they go on by themselves after each."""
    findings, chances = Findings(), random.Random(seed)  # noqa: S311 - no secret
    with quick_folder() as folder, Writers(plant) as writers:
        told, workspace = Told(allowed=TROUBLE), Path(folder) / 'ws'
        writers.begin(_task(told, workspace, seed))
        _follow(writers, told, until=20)
        for _ in range(times):
            if chances.random() < 0.3:
                more = chances.randrange(4)
                failing, where = no_files_left(writers.pid, more), f'{more} files more'
            else:
                call, error = chances.choice(CALLS), chances.choice(ERRORS)
                when = f'{chances.randrange(1, 8)}{chances.choice(("", "+"))}'
                failing, where = failing_calls(writers.pid, call, error, when), f'{call}:{error}:when={when}'
            with failing:
                _follow(writers, told, word='write_failed', seconds=IN_TROUBLE_SECONDS)
            findings.counts['io_errors'] += 1
            if not _follow(writers, told, word='turn_finished'):
                findings.add('blocked', f'{where}, seed {seed}: the desks do not go on')
            findings.found(told.faults(workspace), f'{where}, seed {seed}')
        for line in writers.kill():
            told.take(line, cut=False)
        findings.found(_settled(writers, told, workspace, seed), f'errors of the system, seed {seed}, at rest')
    return findings
