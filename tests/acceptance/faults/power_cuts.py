"""Real power cuts: ext4 and XFS, shut down under desks at work, mounted again and audited.

The same workspace goes through many cuts, so that its files grow old; now and then the desks come to rest in between.
"""

import random
import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import images
from auditor import audit
from findings import Budget, Fault, Findings
from images import Image, Kind
from planted import NO_SYNC_AT_ALL
from real_failures import failing_syncs
from told_of_desks import Told
from writers import PATIENCE_SECONDS, Task, Writers, utc

SAME_PAGES = 'a failed sync written again to the same pages'
CATCHES = (NO_SYNC_AT_ALL, 'no fdatasync on append', 'closed before the exchange is synced', SAME_PAGES)

SETTLED_EVERY = 5
"""So many cuts after each other, then the desks come to rest."""

CUTS_OF_A_WORKSPACE = 40
"""After so many cuts the file system is made anew."""

Way = Literal['now', 'journal kept', 'in the middle']
"""How much of what was not synced is kept: nothing; the journal of the file system; whatever a sync of all of it has
written until then."""


@dataclass
class Cut:
    """How a power cut comes.

    Attributes:
        after: After how many lines of the process.
        seconds: How long after that.
        way: How much is kept of what was not synced.
    """

    after: int
    seconds: float
    way: Way

    @classmethod
    def by(cls, chances: random.Random) -> 'Cut':
        """Returns one by chance: at work, or while the desks still start."""
        way = chances.choices(get_args(Way), (4, 1, 1))[0]
        if chances.random() < 0.15:
            return cls(0, chances.uniform(0, 0.12), way)
        return cls(chances.randrange(1, 70), chances.uniform(0, 0.005), way)


class Box:
    """A file system with a workspace whose power is cut again and again.

    Args:
        image: The file system.
        writers: The processes.
    """

    def __init__(self, image: Image, writers: Writers) -> None:
        self._image = image
        self._writers = writers
        self._told = Told()
        self._cuts = 0

    def cut(self, cut: Cut, seed: str, findings: Findings, where: str) -> None:
        """Lets desks work, cuts the power, and looks at what is left."""
        if self._cuts % CUTS_OF_A_WORKSPACE == 0:
            self._image.make()
            self._told = Told()
        self._cuts += 1
        with self._image.mounted() as folder:
            workspace = folder / 'ws'
            self._until_cut(cut, self._task(workspace, seed))
        with self._image.mounted() as folder:
            workspace = folder / 'ws'
            if workspace.exists():
                findings.found(audit(workspace, self._told.accepted, settled=False), f'{where}, after the cut')
            findings.found(self._told.faults(workspace), f'{where}, after the cut')
            if self._cuts % SETTLED_EVERY == 0:
                findings.found(self._settle(workspace, seed), f'{where}, at rest')

    def _task(self, workspace: Path, seed: str, *, settle: bool = False) -> Task:
        told = self._told
        return Task(
            workspace=str(workspace),
            seed=seed,
            now=utc(told.now),
            number=told.number,
            again=told.again,
            settle=settle,
        )

    def _until_cut(self, cut: Cut, task: Task) -> None:
        self._writers.begin(task)
        count, until = 0, time.monotonic() + PATIENCE_SECONDS
        while count < cut.after and self._writers.running and time.monotonic() < until:
            for line in self._writers.lines(1.0):
                count += 1
                self._told.take(line, cut=False)
        if count < cut.after:
            self._told.trouble.append(Fault('blocked', f'only {count} lines came of the desks'))
        time.sleep(cut.seconds)
        with ExitStack() as stack:
            if cut.way == 'in the middle':
                writing_back = threading.Thread(target=self._image.write_back)
                writing_back.start()
                stack.callback(writing_back.join)
                time.sleep(cut.seconds / 5)
            for line in self._writers.lines(0):
                self._told.take(line, cut=False)
            self._image.shut_down(log_flushed=cut.way == 'journal kept')
        for line in self._writers.kill():
            self._told.take(line, cut=True)

    def _settle(self, workspace: Path, seed: str) -> list[Fault]:
        """Lets the desks bring to its end what is open."""
        self._writers.begin(self._task(workspace, seed, settle=True))
        until = time.monotonic() + PATIENCE_SECONDS
        while self._writers.running and time.monotonic() < until:
            for line in self._writers.lines(1.0):
                self._told.take(line, cut=False)
        faults = [Fault('blocked', 'the desks do not come to rest')] if self._writers.running else []
        self._writers.kill()
        return [*faults, *self._told.faults(workspace), *audit(workspace, self._told.accepted)]


def missing() -> str:
    """Returns why no power can be cut here; empty where it can. Without XFS only ext4 is tried."""
    return images.missing('ext4')


def kinds() -> list[Kind]:
    """Returns the file systems that can be made here."""
    return [kind for kind in get_args(Kind) if shutil.which(f'mkfs.{kind}') and not images.missing(kind)]


def run(budget: Budget, plant: str = '') -> Findings:
    """Cuts the power of each file system in turn, one cut a round."""
    findings = Findings()
    images.apart(lambda: _run(budget, kinds(), plant, findings))
    return findings


def _run(budget: Budget, which: list[Kind], plant: str, findings: Findings) -> None:
    size = 2 * sum(images.SIZES[kind] for kind in which)
    with images.in_memory(size) as folder, Writers(plant) as writers:
        boxes = {kind: Box(Image(kind, folder), writers) for kind in which}
        for number in budget:
            kind = which[number % len(which)]
            seed = f'{budget.seed}-{number}'
            cut = Cut.by(random.Random(seed))  # noqa: S311 - the same cuts each time
            boxes[kind].cut(cut, seed, findings, f'{kind}, seed {budget.seed}, round {number}, {cut}')
            findings.counts[f'power_cuts_{kind}'] += 1


def trial(plant: str) -> Findings:
    """Cuts the power a few times while the desks are at work: the shortest run that finds each of `CATCHES`."""
    findings = Findings()
    if plant != SAME_PAGES:
        images.apart(lambda: _cut_a_few_times(plant, findings))
    for number in range({'': 1, SAME_PAGES: 4}.get(plant, 0)):  # a full disk may hit a file that needs no room
        if not findings.faults:
            findings.take(images.apart(lambda number=number: failing_syncs(f'trial-{number}', plant)))  # type: ignore[misc]
    return findings


def _cut_a_few_times(plant: str, findings: Findings) -> None:
    with images.in_memory(2 * images.SIZES['ext4']) as folder, Writers(plant) as writers:
        box = Box(Image('ext4', folder), writers)
        for number in range(2):
            box.cut(Cut(60, 0, 'now'), f'trial-{number}', findings, f'ext4, cut {number}')
            if findings.faults:
                return
