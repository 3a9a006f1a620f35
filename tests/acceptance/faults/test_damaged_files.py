"""Whatever is done to the bytes of its files, a desk goes on, loses nothing that is whole, and says what is not."""

from collections.abc import Iterator
from pathlib import Path

import damaged_files
import pytest
from damage import Damage
from damaged_desk import HOME, TRIGGERS, Case
from damaged_files import bench
from findings import Budget, Findings
from memory_growth import grown_by
from old_desk import THIRD

ROUNDS = 2
JOURNAL = f'{HOME}/journal/{THIRD}.jsonl'
ALLOWED = 3 * 64 << 20


@pytest.fixture(scope='module')
def desks() -> Iterator[tuple[list[Path], Path]]:
    """The desks that are damaged, and where a copy of one goes."""
    with bench() as found:
        yield found


def test_damaged_files() -> None:
    """Files damaged in every way, by chance: nothing whole is lost, no desk is held up, and all of it is told."""
    damaged_files.run(Budget(rounds=ROUNDS)).check()


@pytest.mark.parametrize('plant', ['', *damaged_files.CATCHES])
def test_what_is_planted_is_found(plant: str) -> None:
    """The same few damages find each fault that is planted, and nothing where none is."""
    assert bool(damaged_files.trial(plant).faults) == bool(plant)


@pytest.mark.parametrize(
    'damage',
    [
        Damage(f'{HOME}/sessions/state.json', 'value', 0.9, 'below zero'),
        Damage(f'{HOME}/sessions/untold.json', 'empty'),
        Damage(f'{HOME}/sessions/backfill.json', 'insert', 0.5, 'a bad byte'),
        Damage(f'{HOME}/sessions/rollover.json', 'overwrite', 0.5, 'a block of NULs'),
        Damage(f'{HOME}/sessions/summaries/2026-03-10.md', 'insert', 0.9, 'a bad byte'),
        Damage(f'{HOME}/sessions/.session-ids', 'line before', 0.5, 'brackets'),
        Damage(f'{HOME}/notes/{THIRD}.jsonl', 'instead of a line', 0.9, 'a quote'),
        Damage(f'{HOME}/memory_history/ledger.jsonl', 'flip', 0.3, size=3),
        Damage(f'{HOME}/skills/ledger.jsonl', 'cut', 0.9),
        Damage(f'{HOME}/Memory.md', 'insert', 0.3, 'surrogate bytes'),
        Damage(f'{HOME}/AGENTS.md', 'insert', 0.3, 'half a character'),
        Damage(f'{HOME}/paused.json', 'cut', 0.5),
        Damage('disabled-backends.json', 'insert', 0.5, 'NUL'),
        Damage(JOURNAL, 'lines joined', 0.5),
        Damage(JOURNAL, 'line before', 0.5, 'a number'),
    ],
    ids=lambda damage: damage.path.rpartition('/')[2],
)
def test_each_file_is_told(desks: tuple[list[Path], Path], tmp_path: Path, damage: Damage) -> None:
    """Of each of a desk's files it is told that it is damaged, and its bytes are kept."""
    findings = Findings()
    Case(desks[0][1], tmp_path / 'ws', [damage], findings, str(damage)).run()
    findings.check()


@pytest.mark.parametrize('path', [TRIGGERS, JOURNAL])
def test_a_line_of_100_mb(desks: tuple[list[Path], Path], tmp_path: Path, path: str) -> None:
    """A line of 100 MB costs a start less memory than three of the longest lines, is told, and stays in its file."""
    findings = Findings()
    case = Case(desks[0][0], tmp_path / 'ws', [Damage(path, 'a long line', 0.5)], findings, path)
    case.prepare()
    work = "opened = anyio.run(old_desk.open_and_use, Path(sys.argv[1]), 'after')\nprint(opened.trouble)"
    prepare = 'import sys\nfrom pathlib import Path\nimport anyio, old_desk'
    trouble, grown = grown_by(prepare, work, tmp_path / 'ws', cwd=Path(__file__).parent)
    assert not trouble
    assert grown < ALLOWED
    (tmp_path / 'ws').rename(tmp_path / 'used')
    case.run(thoroughly=False)
    findings.check()
