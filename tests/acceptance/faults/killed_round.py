"""A round of kills: one workspace, whose daemon is killed in every way, and audited each time."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from auditor import audit
from findings import Fault, Findings
from killed_daemon import CALLS, Kill, Time
from killed_life import PATIENCE, Blocked, Life, Zygote
from killed_workspace import DESKS, Workspace
from quick_folder import quick_folder
from told_audit import ToldAudit, of_effects, outcomes

LONGEST_LIFE = 0.25
"""How long a daemon lives that is killed at any time, at most; in seconds."""

WINDOWS: tuple[tuple[tuple[str, ...], str, int], ...] = (
    (CALLS, '/desks/', 200),
    (('replace', 'rename', 'link', 'unlink'), '/desks/', 30),
    (('replace', 'unlink'), 'sessions/rollover.json$', 9),
    (('replace', 'link'), 'sessions/', 12),
    (('pwrite',), '/desks/', 80),
    (('pwrite',), 'journal/', 40),
    (('pwrite',), 'triggers.jsonl$', 25),
    (('pwrite',), r'sessions/\d.*jsonl$', 9),
)
"""The calls of its own that a daemon is killed at, the files that they are about, and up to the how manieth of them."""

STRACED = {
    'fdatasync': 6,
    'fsync': 6,
    'pwrite64': 12,
    '?rename,?renameat,?renameat2': 3,
    '?link,?linkat': 2,
    '?unlink,?unlinkat': 3,
    'ftruncate': 2,
}
"""The system calls that strace kills at, and up to the how manieth of a thread."""

DAY = 86400.0
NOON = datetime(2026, 3, 10, 6, 30, tzinfo=UTC)
"""When every workspace begins: noon in India."""


class Round:
    """Kills the daemon of one workspace again and again, and audits it.

    Args:
        workspace: The workspace.
        chances: Decide how.

    Attributes:
        workspace: The workspace.
        findings: What was found.
    """

    def __init__(self, workspace: Workspace, chances: random.Random) -> None:
        self.workspace = self._ws = workspace
        self._chances = chances
        self._told = ToldAudit(workspace.path)
        self._where = ''
        self.findings = Findings()

    def run(self, *, straced: bool) -> None:
        """Runs the whole round; `straced` where strace is there.

        Raises:
            Blocked: A daemon does not go on.
        """
        ways = [self.at_any_time] * 5 + [self.in_a_call] * 6 + [self.at_a_request] * 3 + [self.at_the_boundary] * 3
        ways += [self.by_strace if straced else self.at_any_time]
        self._chances.shuffle(ways)
        for way in ways:
            self.killed(way())
        self.settle()

    def _found(self, faults: Iterable[Fault]) -> None:
        self.findings.found(faults, self._where)

    # -- ways to kill ------------------------------------------------------------------------------------------

    def at_any_time(self) -> Life:
        """Kills it at a random time after its start."""
        after = self._chances.uniform(0, LONGEST_LIFE)
        life = self._ws.start(f'killed after {after * 1000:.1f} ms')
        life.kill_at = time.monotonic() + after
        return self._loaded(life)

    def in_a_call(self) -> Life:
        """Lets it kill itself before, in or after one of its calls that change a file."""
        calls, where, most = self._chances.choice(WINDOWS)
        how = self._chances.choice(('before', 'after', 'half', 'half') if calls == ('pwrite',) else ('before', 'after'))
        number = 1 + int(self._chances.triangular(0, most, 0))
        life = self._ws.start(kill=Kill(calls, where, number, how))
        life.kill_at = time.monotonic() + 2 * LONGEST_LIFE
        self._loaded(life)
        self.findings.counts['kills_in_calls'] += not life.killed
        return life

    def at_a_request(self) -> Life:
        """Kills it a moment after a request was sent."""
        which, after = self._chances.randrange(1, 4), self._chances.uniform(0, 0.008)
        life = self._ws.start(f'killed {after * 1000:.1f} ms after request {which}')
        life.kill_at = time.monotonic() + 2 * LONGEST_LIFE
        return self._loaded(life, which, after)

    def at_the_boundary(self) -> Life:
        """Kills it around the next date boundary."""
        left = (DAY - (self._ws.shown.now() + 5.5 * 3600) % DAY) / self._ws.shown.factor
        if left > 3 * LONGEST_LIFE:
            return self.at_any_time()
        after = self._chances.uniform(-0.005, 0.1)
        life = self._ws.start(f'killed {after * 1000:.1f} ms after the boundary')
        life.kill_at = time.monotonic() + left + after
        return self._loaded(life)

    def by_strace(self) -> Life:
        """Has it killed as it enters one of its system calls."""
        call, most = self._chances.choice(list(STRACED.items()))
        number = self._chances.randint(1, most)
        life = self._ws.start(f'killed by strace at {call} {number}', stopped=True)
        with strace(life, call, number):
            life.kill_at = time.monotonic() + 4 * LONGEST_LIFE
            self._loaded(life)
            life.wait(time.monotonic() + PATIENCE)
        self.findings.counts['strace_kills'] += not life.killed
        return life

    # -- what happens meanwhile --------------------------------------------------------------------------------

    def _loaded(self, life: Life, which: int = 0, after: float = 0.0) -> Life:
        """Sends it this and that until it is killed; with `which`, so long after that request.

        Raises:
            Blocked: It does not answer.
        """
        desks = [*self._ws.unacknowledged, *self._chances.choices(DESKS, k=self._chances.randrange(3, 7))]
        requests: list[Callable[[], object]] = [lambda desk=desk: self._ws.send(life, desk) for desk in desks]  # type: ignore[misc]
        if self._chances.random() < 0.3:
            requests.insert(self._chances.randrange(len(requests)), lambda: self._command(life))
        for number, request in enumerate(requests, 1):
            if number == which:
                life.kill_at = time.monotonic() + after
            if not request():
                break
        return life

    def _command(self, life: Life) -> bool:
        """Gives a command as a person would; returns whether the daemon lives on."""
        desk = self._chances.choice(DESKS)
        command = self._chances.choice(('rollover', 'rollover', 'rollover', 'pause', 'cancel'))
        if command == 'rollover':
            self._ws.roll_over(life, desk)
            return True
        if command == 'cancel' and self._ws.accepted[desk]:
            target = f'/v1/desks/{desk}/triggers/{self._ws.accepted[desk][-1]}'
            return self._ws.ask(life, 'DELETE', target) is not None
        now = self._chances.random() < 0.5
        paused = self._ws.ask(life, 'POST', f'/v1/desks/{desk}/pause', {'by': 'harness', 'now': now}) is not None
        return paused and self._ws.ask(life, 'POST', f'/v1/desks/{desk}/resume') is not None

    # -- audits ------------------------------------------------------------------------------------------------

    def killed(self, life: Life) -> None:
        """Waits for the death of one that is killed, and audits what it left.

        Raises:
            Blocked: It does not die.
        """
        self._where = str(life)
        code = self._ws.die(life)
        if code != -signal.SIGKILL:
            self.findings.add('broken', f'{life}: it ended by itself, with {code}')
        self.findings.counts['kills'] += 1
        folders = self._ws.path.glob('desks/*/sessions/rollover.json')
        self.findings.counts['kills_in_rollovers'] += any(folders)
        if self._ws.path.exists():
            self._found(audit(self._ws.path, self._ws.accepted, settled=False))
        self._found(self._told.after_death(life.log))

    def settle(self) -> None:
        """Starts it once more, and audits it when it has come to rest and was stopped.

        Raises:
            Blocked: It does not come to rest.
        """
        life = self._ws.start('not killed')
        self._where = str(life)
        self._ws.settle(life)
        self.begin_another_beside(life)
        code = self._ws.stop(life)
        if code:
            self.findings.add('broken', f'{life}: it was told to stop, and ended with {code}')
        self._found(self._told.after_death(life.log))
        self._found(self._told.in_the_end(self._ws.manual))
        self._found(of_effects(self._ws.effects, self._ws.path))
        self._found(by_the_auditor(self._ws))
        self._count()

    def begin_another_beside(self, life: Life) -> None:
        """Starts another daemon on the same workspace, as somebody may who takes the first one for dead.

        Raises:
            Blocked: It neither runs nor ends, or the first one answers no longer.
        """
        other = self._ws.start('beside another')
        other.kill_at = time.monotonic() + PATIENCE
        if self._ws.ready(other):
            self.findings.add('twice', f'{other}: two daemons run on the workspace')
            other.kill()
        code = self._ws.die(other)
        if code != 1 and not other.killed:
            self.findings.add('broken', f'{other}: it ended with {code}')
        if self._ws.ask(life, 'GET', '/v1/status') is None:
            self.findings.add('broken', f'{life}: it was ended by another')

    def _count(self) -> None:
        counts = self.findings.counts
        counts.update(self._ws.counts)
        counts['torn_tails'] += self._told.torn_tails
        for folder in (self._ws.path / 'desks').iterdir():
            counts['rollovers'] += len(list((folder / 'sessions').glob('*.jsonl'))) - 1
            for outcome in ('quarantined', 'unknown', 'cancelled'):
                counts[outcome] += len(outcomes(folder, outcome))


@contextmanager
def strace(life: Life, call: str, number: int) -> Iterator[None]:
    """Has a daemon that is stopped killed as a thread of it enters a system call so often, and lets it go on.

    Raises:
        Blocked: strace does not do that.
    """
    until = time.monotonic() + PATIENCE
    while Path(f'/proc/{life.pid}/stat').read_text().rpartition(')')[2].split()[0] != 'T':
        if time.monotonic() > until:
            raise Blocked('it does not stop')
        time.sleep(0.001)
    what = ['-e', f'trace={call}', '-e', f'inject={call}:signal=KILL:when={number}', '-e', 'signal=none']
    with subprocess.Popen(
        ['strace', '-f', '-p', str(life.pid), *what, '-o', os.devnull], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as tracer:
        try:
            assert tracer.stderr is not None
            if b'attached' not in (said := tracer.stderr.readline()):
                raise Blocked(f'strace: {said.decode()}')
            os.kill(life.pid, signal.SIGCONT)
            yield
        finally:
            tracer.kill()


def by_the_auditor(workspace: Workspace) -> Iterator[Fault]:
    """Yields what the auditor finds, run as the program that it is."""
    accepted = workspace.path.parent / 'accepted.json'
    accepted.write_text(json.dumps(workspace.accepted))
    program = Path(__file__).with_name('auditor.py')
    done = subprocess.run(
        [sys.executable, program, workspace.path, accepted],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.split('\n')[:-1]:
        kind, _, what = line.partition(': ')
        yield Fault(kind, what)  # type: ignore[arg-type] # one of its own kinds
    if done.stderr or done.returncode not in (0, 1):
        yield Fault('broken', f'the auditor ended with {done.returncode}: {done.stderr[-2000:]}')


@contextmanager
def round_of(zygote: Zygote, chances: random.Random, factor: float, told: str) -> Iterator[Round]:
    """Yields a round on a new workspace; what keeps it from going on becomes a fault of it.

    Args:
        zygote: Starts its daemons.
        chances: Decide what happens.
        factor: How much faster than the host's its clock goes.
        told: What repeats it.
    """
    with quick_folder() as folder:
        workspace = Workspace(folder, zygote, chances, Time(NOON.timestamp(), time.time(), factor))
        each = Round(workspace, chances)
        try:
            yield each
        except Blocked as error:
            each.findings.add('blocked', f'{workspace.lives[-1]}: {error}')
        finally:
            workspace.close()
        each.findings.faults = [Fault(kind, f'{told}: {what}') for kind, what in each.findings.faults]
        if each.findings.faults and 'KEEP_FAULTS' in os.environ:
            kept = Path(os.environ['KEEP_FAULTS']) / told.replace(' ', '-')
            shutil.copytree(folder, kept, ignore=shutil.ignore_patterns('*.sock', 'notify'), dirs_exist_ok=True)
