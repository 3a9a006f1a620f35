"""A workspace that real desks have made, to be copied and damaged; and what is told of it."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_fakes import call
from daemon_fakes import MORNING, config_for, daemon_of, until
from keeper_fakes import spare_the_disk

from trading_agent.clock import ManualClock
from trading_agent.config import Backend, Desk
from trading_agent.daemon.daemon import Daemon
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.skill_folder import skill_text
from trading_agent.trigger import Trigger

FIRST, SECOND, THIRD = '2026-03-10-1', '2026-03-11-1', '2026-03-12-1'
DESKS = ('main', 'other')
MAIN = 'desks/main'
TRIGGERS = f'{MAIN}/triggers.jsonl'
LOG, JOURNAL = f'{MAIN}/sessions/{THIRD}.jsonl', f'{MAIN}/journal/{THIRD}.jsonl'
STATE = f'{MAIN}/sessions/state.json'

Line = dict[str, Any]
Found = tuple[str, int | None, int | None]
"""A path, a line and an offset."""


def make_workspace(folder: Path) -> None:
    """Lets two desks work for three days; one uses tools, one trigger of it waits, and a person has begun a skill."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        spare_the_disk(monkeypatch)
        anyio.run(_live, folder)


async def _live(folder: Path) -> None:
    clock = ManualClock(MORNING)
    backends = {'scripted': Backend(kind='cli_fakes:scripted', options={'asleep': []})}
    desks = [Desk(name='main', backends=['scripted']), Desk(name='other')]
    async with daemon_of(config_for(folder, desks=desks, backends=backends), clock, index=True) as daemon:
        running = daemon.supervisor.desks
        for day in (1, 2, 3):
            for desk in DESKS:
                for number in (1, 2, 3):
                    await _ask(
                        daemon, desk, f'{desk}-{day}-{number}', f'remember {day} {number}: never more than 5 lots'
                    )
            if day < 3:
                DayNotes(folder / MAIN).add(running['main'].session_id or '', 'a note', clock.now())
                clock.advance(timedelta(days=1))
                await _until_today(daemon, clock)
        later = clock.now() + timedelta(days=9)
        await daemon.bus.send(Trigger('later', 'main', id='waits', received_at=clock.now(), not_before=later))
    skill = folder / MAIN / 'skills' / 'sizing'
    skill.mkdir(parents=True, mode=0o700)
    skill.parent.chmod(0o700)
    (skill / 'SKILL.md').write_bytes(skill_text('sizing', 'how much to buy', 'Little.'))
    (skill / 'SKILL.md').chmod(0o600)
    with SqliteIndex(folder) as index:
        index.catch_up()


async def _until_today(daemon: Daemon, clock: ManualClock) -> None:
    today = clock.trusted_date(timedelta())
    desks = daemon.supervisor.desks.values()
    await until(lambda: all(desk.session_date == today for desk in desks), 'each desk has a session of today')


async def _ask(daemon: Daemon, desk: str, trigger_id: str, text: str) -> None:
    await daemon.bus.send(Trigger(text, desk, id=trigger_id, received_at=MORNING))
    await until(lambda: daemon.supervisor.desks[desk].queue.closing(trigger_id), f'{trigger_id} is closed')


def copy_of(template: Path, folder: Path) -> Path:
    """Returns a copy of a workspace."""
    shutil.copytree(template, folder)
    return folder


# -- damaging --------------------------------------------------------------------------------------------------


def lines_in(path: Path) -> list[bytes]:
    """Returns the lines of a file, each with its newline."""
    return path.read_bytes().splitlines(keepends=True)


def offset_of(path: Path, number: int) -> int:
    """Returns where a line begins, in bytes."""
    return sum(map(len, lines_in(path)[: number - 1]))


def change(path: Path, number: int, new: bytes | Callable[[bytes], bytes]) -> None:
    """Puts other bytes, the newline included, in the place of a line."""
    lines = lines_in(path)
    lines[number - 1] = new(lines[number - 1]) if callable(new) else new
    path.write_bytes(b''.join(lines))


def add(path: Path, *records: Line | bytes) -> None:
    """Adds lines at the end of a file."""
    with path.open('ab') as file:
        for record in records:
            file.write(record if isinstance(record, bytes) else json.dumps(record).encode() + b'\n')


def record(path: Path, number: int) -> Line:
    """Returns what a line says."""
    said: Line = json.loads(lines_in(path)[number - 1])
    return said


def number_of(path: Path, **fields: object) -> int:
    """Returns the number of the last line that says these things."""
    found = [at for at, line in enumerate(lines_in(path), 1) if fields.items() <= json.loads(line).items()]
    return found[-1]


def kill_left(path: Path, number: int) -> None:
    """Lets a line be what a crash left of one, closed by the next start."""
    change(path, number, lambda line: line[: len(line) // 2] + b'\n')


# -- looking ---------------------------------------------------------------------------------------------------


def verify(workspace: Path, *arguments: str) -> Line:
    """Returns what `verify --json` tells; its exit code is as what it tells."""
    result = call('--workspace', str(workspace), '--json', 'verify', *arguments)
    told: Line = json.loads(result.stdout)
    assert result.exit_code == (0 if told['ok'] else 1)
    assert told['ok'] == (not any(file['problems'] for file in told['files']))
    return told


def findings(told: Line, kind: str = 'problems') -> list[tuple[Found, str]]:
    """Returns where each problem, or each note, is, and what it is."""
    return [
        ((file['path'], each['line'], each['offset']), each['what'])
        for file in told['files']
        for each in file.get(kind, [])
    ]


def problems(workspace: Path, *arguments: str) -> list[tuple[Found, str]]:
    """Returns where each problem is, and what it is."""
    return findings(verify(workspace, *arguments))


def notes(workspace: Path, path: str) -> list[str]:
    """Returns what is told of a file and is no fault."""
    return [what for (noted, *_), what in findings(verify(workspace), 'notes') if noted == path]


def everything_in(folder: Path, leaving_out: Sequence[str] = ()) -> dict[str, tuple[object, ...]]:
    """Returns each file and folder with its kind, mode, inode, size, time of writing, and content."""
    return {
        str(path.relative_to(folder)): (
            status.st_mode,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *_paths(folder)]
        if path.name not in leaving_out
        for status in [os.lstat(path)]
    }


def _paths(folder: Path) -> Iterable[Path]:
    return sorted(folder.rglob('*'))
