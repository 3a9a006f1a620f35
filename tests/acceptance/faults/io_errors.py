"""I/O errors: each call in turn, a disk that fills up, syncs that fail and then "succeed", and errors below Python.

What is acknowledged meanwhile is there; the desk says what is wrong, and goes on by itself once nothing fails any more.
"""

import errno
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import full_disk
import images
from failing_calls import KINDS, FailingCalls, Plan, Way
from failing_daemon import failing_daemon
from findings import Budget, Findings
from io_story import make_template, through
from planted import planted
from quick_folder import quick_folder
from real_failures import errors_of_the_system, failing_syncs

CATCHES = (
    'an exchange appended twice on a retry',
    'a sync error swallowed',
    'a trigger acknowledged before it is durable',
    'closed before the exchange is synced',
    'no fdatasync on append',
)

LEVELS_AT_A_TIME = 6

_NEW_LOG = r'fdatasync desks/main/sessions/2026-10-20-\d+\.jsonl'
TRIALS = (Plan(1, errno.EIO, 'once', of=_NEW_LOG), Plan(1, errno.EIO, 'this one for a while', of=_NEW_LOG))
"""The shortest stories that find each of `CATCHES`: syncs of an exchange fail."""


class Stories:
    """Stories of a desk whose calls fail, each in a workspace of its own.

    Args:
        folder: Where these are made.
    """

    def __init__(self, folder: Path) -> None:
        self._template = folder / 'template'
        self._workspace = folder / 'ws'
        make_template(self._template)

    def live(self, plan: Plan | None, findings: Findings, where: str) -> FailingCalls:
        """Lets a story happen; returns the calls that were made."""
        calls = FailingCalls(self._workspace, plan)
        try:
            findings.found(through(self._template, self._workspace, calls), f'{where}: {plan}, {calls.failed[:3]}')
        finally:
            shutil.rmtree(self._workspace, ignore_errors=True)
        return calls

    def plans(self, chances: random.Random, findings: Findings) -> list[Plan]:
        """Returns all plans there are, each call in turn with each error in each way, in an order by chance."""
        counted = self.live(None, findings, 'nothing fails').counted
        ways: Sequence[Way] = ('once', 'all for a while', 'this one for a while')
        kinds = [Plan(0, error, way) for error in KINDS for way in ways]
        kinds += [Plan(0, errno.EIO, 'half'), Plan(0, errno.EIO, 'short')]
        plans = [
            Plan(number, plan.error, plan.way)
            for plan in kinds
            for number in range(1, sum(counted[kind] for kind in plan.kinds) + 1)
        ]
        chances.shuffle(plans)
        return plans


def missing() -> str:
    """Returns an empty text: what a machine lacks is left out, and that is told on stderr."""
    return ''


def mounts_missing() -> str:
    """Returns why no small disks can be made here; empty where they can."""
    return images.missing('ext4')


def strace_missing() -> str:
    """Returns why no calls can be made to fail below Python; empty where they can."""
    return '' if shutil.which('strace') else 'strace is missing (Debian: apt-get install strace)'


def run(budget: Budget, plant: str = '') -> Findings:
    """Goes through the calls in an order by chance; every few rounds it is the disk that fails, or the system."""
    findings = Findings()
    with planted(plant), quick_folder() as folder:
        stories = Stories(Path(folder))
        plans = stories.plans(random.Random(budget.seed), findings)  # noqa: S311 - no secret
        others = _others(plant)
        for number in budget:
            where = f'seed {budget.seed}, round {number}'
            other = others.get(number % 20)
            if other is None:
                stories.live(plans[number % len(plans)], findings, where)
                findings.counts['io_errors'] += 1
                continue
            found = other(f'{budget.seed}-{number}', number)
            found.faults = [fault._replace(what=f'{where}: {fault.what}') for fault in found.faults]
            findings.take(found)
    return findings


def _others(plant: str) -> dict[int, Callable[[str, int], Findings]]:
    """Returns what is done in some of twenty rounds instead of a story; what cannot be done here is told."""

    def filled(seed: str, number: int) -> Findings:
        return fill_levels(seed, number // 10)

    def synced_in_vain(seed: str, _: int) -> Findings:
        return images.apart(lambda: failing_syncs(seed, plant))

    def below(seed: str, _: int) -> Findings:
        return errors_of_the_system(seed, plant)

    def of_the_command_line(seed: str, _: int) -> Findings:
        return failing_daemon(seed, plant)

    others: dict[int, Callable[[str, int], Findings]] = {}
    if why := mounts_missing():
        print(f'io_errors: full disks and syncs in vain are left out: {why}', file=sys.stderr)  # noqa: T201
    else:
        others |= {3: filled, 13: filled, 6: synced_in_vain, 16: synced_in_vain}
    if why := strace_missing():
        print(f'io_errors: errors below Python are left out: {why}', file=sys.stderr)  # noqa: T201
    else:
        others |= {9: below, 19: below, 18: of_the_command_line}
    return others


def fill_levels(seed: str, turn: int) -> Findings:
    """Lets a desk live through the next few fill levels of a small disk."""
    first = turn * LEVELS_AT_A_TIME
    levels = [(first + place) % (full_disk.MOST_PAGES + 1) for place in range(LEVELS_AT_A_TIME)]
    chances = random.Random(seed)  # noqa: S311 - no secret
    faults = images.apart(lambda: full_disk.fill(levels, chances))
    findings = Findings(faults=[fault._replace(what=f'the levels {levels}: {fault.what}') for fault in faults])
    findings.counts['fill_levels'] += len(levels)
    return findings


def trial(plant: str) -> Findings:
    """Lets the sync of an exchange fail: the shortest run that finds each of `CATCHES`."""
    findings = Findings()
    with quick_folder() as folder:
        stories = Stories(Path(folder))
        with planted(plant):
            for plan in TRIALS:
                if not stories.live(plan, findings, 'trial').failed:
                    findings.add('broken', f'there is no such call any more: {plan}')
                if findings.faults:
                    break
    return findings
