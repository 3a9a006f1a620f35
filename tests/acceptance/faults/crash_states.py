"""Crash states: what a power cut may leave of the disk at any moment, and whether the desks' start keeps every promise.

A story is recorded below the program, call by call; at each call that changed something, and at each promise, a power
cut is assumed, and many of the states that it may leave are opened by the start that the daemon uses.
"""

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import anyio
import planted
from crash_check import Opening, Promises
from desk_start import quick_starts
from disk_model import Disk, power_cuts
from disk_nodes import Change, Fates, State
from file_operations import Link, Moment, Rename
from findings import Budget, Findings
from quick_folder import quick_folder
from recordings import Recording, record
from scripted_story import MORNING, Mark
from state_folder import StateFolder

CHAPTERS = ('day', 'rollovers', 'desks', 'index', 'acted', 'ended', 'rolling', 'holed')

FAILING_SYNCS = (
    ('fdatasync:error=EIO:when=1+2',),
    ('fdatasync:error=EIO:when=4..5', 'fsync:error=EIO:when=9'),
    ('fdatasync:error=EIO:when=1..2', 'fsync:error=EIO:when=13..14'),
    ('fdatasync:error=EIO:when=8..9', 'fsync:error=EIO:when=17'),
    ('fdatasync:error=EIO:when=6..7', 'fsync:error=EIO:when=19..21'),
    ('fdatasync:error=EIO:when=5+7', 'fsync:error=EIO:when=23'),
    ('fdatasync:error=EIO:when=10..11', 'fsync:error=EIO:when=27..28'),
    ('fdatasync:error=EIO:when=12..14', 'fsync:error=EIO:when=31'),
)
"""Which syncs fail in one recording each: every other one, so that each is tried once more; two in a row; a few."""

SLICES = 96
"""In how many rounds each crash point is come by once."""

_MOST_DIGESTS = 2000

KEEP = 'CRASH_STATES_KEEP'
"""The environment variable that names a folder in which the states are kept that have a fault, to be looked at."""


class _Point(NamedTuple):
    """A moment at which the power may be cut.

    Attributes:
        recording: The chapter.
        number: The how-manieth moment of the chapter it is.
        words: What has just begun, or was just promised.
        disk: The disk as it is then.
        promises: What was promised until then.
    """

    recording: Recording
    number: int
    words: str
    disk: Disk
    promises: Promises


class _Trial:
    """Opens states, each distinct one once.

    Args:
        findings: What is found is added there.
        folder: Where they are opened.
        further: In how manieth a state the desks go on until all is settled; with torn writes they do so more often,
            for a torn line must not swallow the next one.
    """

    def __init__(self, findings: Findings, folder: Path, further: int) -> None:
        self.findings = findings
        self._further = further
        self._folder = folder
        self._place = StateFolder(folder)
        self._seen: set[bytes] = set()
        self._points: set[tuple[str, int]] = set()
        self._digests: dict[bytes | None, bytes] = {}

    async def at(self, point: _Point, cuts: Iterator[Fates], pending: Sequence[Change], *, where: str) -> None:
        """Opens what these power cuts leave at a point."""
        opening = Opening(self._folder / 'workspace', indexed=point.recording.name == 'index')
        name = point.recording.name
        if (name, point.number) not in self._points:
            self._points.add((name, point.number))
            self.findings.counts['crash_points'] += 1
        for fates in cuts:
            state = point.disk.state(fates)
            key = self._key(state, f'{name} {point.promises.count}')
            if key in self._seen:
                continue
            self._seen.add(key)
            self.findings.counts['crash_states'] += 1
            self._place.put(state)
            number = self.findings.counts['crash_states']
            further = number % self._further == 0 or (number % 3 == 0 and any(fates.values()))
            self.findings.counts['gone_on_with'] += further
            found = await opening.check(point.promises, further=further)
            if found:
                told = f'{where}: {name}, moment {point.number} ({point.words}), {_in_words(fates, pending)}'
                self.findings.found(found, told)
                self._keep(state)
        self.findings.counts['indexes_made_anew'] += opening.aside

    def _key(self, state: State, promises: str) -> bytes:
        """Returns the digest of all that is on the disk, and of what was promised."""
        digest = blake2b(promises.encode(), digest_size=16)
        for path, leaf in state.items():
            content = self._digests.get(leaf.content)
            if content is None:
                if len(self._digests) > _MOST_DIGESTS:
                    self._digests.clear()
                data = b'' if leaf.content is None else b'=' + leaf.content
                content = self._digests[leaf.content] = blake2b(data, digest_size=16).digest()
            digest.update(f'{path}\0{leaf.mode}\0'.encode() + content)
        return digest.digest()

    def _keep(self, state: State) -> None:
        if os.environ.get(KEEP):
            target = Path(os.environ[KEEP]) / str(len(self.findings.faults))
            target.mkdir(parents=True)
            StateFolder(target).put(state)


def _in_words(fates: Fates, pending: Sequence[Change], most: int = 6) -> str:
    """Returns what came of the changes that were not durable; the shorter of what is lost and what is kept."""
    kept = [f'{change} ({tear.length} of it)' if (tear := fates[change]) else str(change) for change in fates]
    lost = [str(change) for change in pending if change not in fates]
    torn = [words for words, change in zip(kept, fates, strict=True) if fates[change]]
    what, words = ('lost', lost) if len(lost) <= len(kept) else ('kept only', kept)
    more = f' and {len(words) - most} more' if len(words) > most else ''
    shown = f'{what} of {len(pending)}: {"; ".join(words[:most]) or "nothing"}{more}'
    return f'{shown}; torn: {"; ".join(torn[:most])}' if torn and what == 'lost' else shown


def _points(recording: Recording, wanted: Callable[[int, Moment | Mark], bool]) -> Iterator[_Point]:
    """Follows a recording, and yields moments at which something new may be on the disk, or was promised.

    Args:
        recording: The recording.
        wanted: Is given the number of each, and what it is, and says whether it is yielded.
    """
    disk, promises = Disk(recording.root), Promises(recording.desks, MORNING)
    number = 0
    for at, moment in enumerate(recording.moments):
        if isinstance(moment, Moment):
            new, words = disk.take(moment), f'line {moment.operation.line}: {type(moment.operation).__name__}'
        else:
            promises.take(moment)
            new, words = True, f'{moment["what"]} {moment.get("id", "")}'
        if new and at >= recording.begins:
            if wanted(number, moment):
                yield _Point(recording, number, words, disk, promises)
            number += 1


def _chance(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311 - no secret


def run(budget: Budget, plant: str = '') -> Findings:
    """Opens crash states, round by round.

    Each round looks at every so-manieth crash point of every chapter; once all were looked at, at more of each.
    """
    findings = Findings()
    with planted.planted(plant), quick_folder() as folder, quick_starts():
        told = _recorded(findings, CHAPTERS, plant)
        failing: dict[int, list[Recording]] = {}
        trial = _Trial(findings, folder, further=8)
        for number in budget:
            variant = number % len(FAILING_SYNCS)
            if variant not in failing:
                failing[variant] = _recorded(findings, ['syncs'], plant, FAILING_SYNCS[variant])
            anyio.run(_round, trial, budget, number, [*told, *failing[variant]])
    return findings


def _recorded(findings: Findings, chapters: Sequence[str], plant: str, inject: Sequence[str] = ()) -> list[Recording]:
    """Records chapters; that one does not come to its end is a fault where one was planted."""
    try:
        found = record(chapters, plant, inject)
    except RuntimeError as error:
        if not plant:
            raise
        findings.add('blocked', f'the story of {", ".join(chapters)} fails: {error}')
        return []
    findings.counts['system_calls'] += sum(isinstance(each, Moment) for one in found for each in one.moments) // 2
    return found


async def _round(trial: _Trial, budget: Budget, number: int, recordings: Sequence[Recording]) -> None:
    passes, part = divmod(number, SLICES)
    for recording in recordings:
        own, of = part, SLICES
        if recording.name.startswith('syncs'):  # each of these has its turn less often
            own, of = number // len(FAILING_SYNCS), SLICES // len(FAILING_SYNCS)
        for point in _points(recording, lambda each, _, own=own, of=of: each % of == own % of):  # type: ignore[misc]
            chance = _chance(f'{budget.seed}-{number}-{recording.name}-{point.number}')
            pending = point.disk.pending()
            most, chances = (10, 6) if not passes else (16, 24)
            if recording.name == 'index':  # twice as slow, and mostly about the pages of one file
                most, chances = most // 2, chances // 2
            cuts = power_cuts(pending, chance, most=most, chances=chances)
            await trial.at(point, cuts, pending, where=f'round {number}')
            if budget.spent:
                return


# -- planted faults --------------------------------------------------------------------------------------------

_SHOWN_BY = {
    'no fdatasync on append': 'day',
    'no folder sync on create': 'day',
    'rename before sync': 'rollovers',
    'tail not sealed': 'day',
    'a trigger acknowledged before it is durable': 'day',
    'closed before the exchange is synced': 'day',
    'state before the exchange': 'day',
    'an exchange appended twice by a restart': 'day',
    'a sync error swallowed': 'syncs',
    'rollover without its stages': 'rollovers',
    'summary named by the current date': 'rollovers',
    "a second session's section overwriting the first's": 'rollovers',
    'index offset committed apart from its rows': 'index',
    'a file made 0644': 'day',
    'journal digest not chained': 'day',
    'side-effect call made before its record is synced': 'day',
    planted.NO_SYNC_AT_ALL: 'day',
}
"""By which chapter each fault shows soonest."""

CATCHES = tuple(_SHOWN_BY)

_STRIDE = 7
_MOST_STATES = 160


def trial(plant: str) -> Findings:
    """Records the chapter that shows a fault, and opens states of it until one does, 160 at most."""
    findings = Findings()
    chapter = _SHOWN_BY.get(plant, 'rollovers')
    inject = FAILING_SYNCS[0] if chapter == 'syncs' else ()
    with planted.planted(plant), quick_folder() as folder, quick_starts():
        recordings = _recorded(findings, [chapter], plant, inject)
        anyio.run(_until_found, _Trial(findings, folder, further=1), recordings)
    return findings


async def _until_found(trial: _Trial, recordings: Sequence[Recording]) -> None:
    counts = trial.findings.counts
    for recording in recordings:
        for part in range(-1, _STRIDE):
            for point in _points(recording, partial(_is_of_part, part)):
                chance = _chance(f'{recording.name}-{point.number}')
                pending = point.disk.pending()
                cuts = power_cuts(pending, chance, most=6 if part >= 0 else 0, chances=3)
                await trial.at(point, cuts, pending, where='trial')
                if trial.findings.faults or counts['crash_states'] > _MOST_STATES:
                    return


def _is_of_part(part: int, number: int, moment: Moment | Mark) -> bool:
    """Whether a crash point is looked at in a part of a trial: first come the promises, and what takes a place."""
    is_first = not isinstance(moment, Moment) or isinstance(moment.operation, Rename | Link)
    return is_first if part < 0 else not is_first and number % _STRIDE == part


def missing() -> str:
    """Returns what the machine lacks for this part; empty where it lacks nothing."""
    if sys.platform != 'linux':
        return 'system calls are recorded on Linux only'
    return '' if shutil.which('strace') else 'strace is not installed'
