"""Chapters of the crash story as they were recorded: what was done to the disk, and what was promised, in one order."""

import json
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import planted
import system_calls
from crash_story import desks_of
from disk_model import Disk
from file_operations import Moment, Write
from quick_folder import quick_folder
from scripted_story import Mark

STORY = Path(__file__).with_name('crash_story.py')


class Recording(NamedTuple):
    """One chapter.

    Attributes:
        name: Its name, with what was put in place of its syncs.
        desks: Its desks.
        root: The folder that it was told in, which is gone.
        moments: What was done, and between that the promises.
        begins: With which of them it begins; before, what it begins from is made.
    """

    name: str
    desks: tuple[str, ...]
    root: Path
    moments: list[Moment | Mark]
    begins: int


class ModelWrong(AssertionError):
    """Raised when the model's disk is not the one that the kernel has made of the same calls."""


def record(chapters: Sequence[str], plant: str = '', inject: Sequence[str] = ()) -> list[Recording]:
    """Runs chapters of the story under strace, and reads what they did.

    Args:
        chapters: Their names.
        plant: A fault that is planted into the program.
        inject: What strace puts in place of calls.

    Raises:
        RuntimeError: The story failed.
        ModelWrong: What was read does not explain what is on the disk.
    """
    with quick_folder() as folder:
        place = folder / 'story'
        for chapter in chapters:
            (place / chapter).mkdir(mode=0o700, parents=True)
        command = [sys.executable, str(STORY), str(place), *chapters]
        system_calls.record(command, folder / 'trace', inject=inject, environment=planted.environment(plant))
        moments = system_calls.read(folder / 'trace', place)
        found = [_chapter(chapter, place, moments, inject) for chapter in chapters]
        for recording in found:
            _compare(recording)
        shutil.rmtree(place)
        return found


def _chapter(chapter: str, place: Path, moments: Sequence[Moment], inject: Sequence[str]) -> Recording:
    """Returns what belongs to a chapter. A mark counts from the beginning of its write on: then it has come true."""
    marks, within = str(place / 'marks'), f'{place / chapter}/'
    found: list[Moment | Mark] = []
    begins = 0
    for moment in moments:
        operation = moment.operation
        if isinstance(operation, Write) and operation.path == marks:
            mark: Mark = json.loads(operation.data)
            if not moment.ends and mark['chapter'] == chapter:
                found.append(mark)
                begins = len(found) - 1 if mark['what'] == 'left' else begins
        elif any(path.startswith(within) for path in _paths(moment)) or not _paths(moment):
            found.append(moment)
    name = ' '.join([chapter, *inject])
    return Recording(name, desks_of(chapter), place / chapter, found, begins)


def _paths(moment: Moment) -> list[str]:
    """Returns the paths that an operation tells; none where it goes by a descriptor."""
    told = (getattr(moment.operation, name, '') for name in ('path', 'to', 'file'))
    return [f'{path}/' for path in told if isinstance(path, str) and path]


def _compare(recording: Recording) -> None:
    """Makes sure that the model sees what the program saw in the end."""
    disk = Disk(recording.root)
    for moment in recording.moments:
        if isinstance(moment, Moment):
            disk.take(moment)
    model = {name: (leaf.content, leaf.mode) for name, leaf in disk.everything().items()}
    kernel = {}
    for path in recording.root.rglob('*'):
        if not path.name.endswith('-shm'):
            status = path.stat()
            content = None if path.is_dir() else path.read_bytes()
            kernel[str(path.relative_to(recording.root))] = content, stat.S_IMODE(status.st_mode)
    different = sorted(name for name in model.keys() | kernel.keys() if model.get(name) != kernel.get(name))
    if different:
        raise ModelWrong(f'{recording.name}: the model is wrong about {different}')
