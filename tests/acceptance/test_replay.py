"""Recorded days through a desk, by the command that an operator types."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from desk_files import DeskFiles, Line
from process import run_cli

DATA = Path(__file__).parents[1] / 'data'
FIRST, SECOND = DATA / 'announcements-first-day.txt', DATA / 'announcements-second-day.txt'
REAL = Path(__file__).parents[2].parent / 'shared' / 'data' / 'nse-announcements'


def lines_of(path: Path) -> list[tuple[int, str]]:
    """Reads a day as the README says it is read: split on newlines alone, a CR dropped, blank lines left out."""
    texts = path.read_bytes().removeprefix(b'\xef\xbb\xbf').split(b'\n')
    numbered = [(number, text.decode().removesuffix('\r')) for number, text in enumerate(texts, 1)]
    return [(number, text) for number, text in numbered if text.strip()]


def replay(workspace: Path, *days: tuple[str, Path], code: int = 0) -> Line:
    """Replays days and returns the report."""
    done = run_cli('--workspace', str(workspace), '--json', 'replay', *(f'--day={day}={file}' for day, file in days))
    assert done.returncode == code, done.stderr
    report: Line = json.loads(done.stdout)
    return report


def told(exchanges: Sequence[Line]) -> list[tuple[str, str]]:
    """Returns what a desk was told and what it answered."""
    return [(exchange['trigger_text'], exchange['answer']) for exchange in exchanges]


def check_day(files: DeskFiles, day: str, path: Path) -> None:
    """Checks that each line of a day is one exchange of the day's session, in order, and nothing else is."""
    expected = lines_of(path)
    exchanges = files.session(f'{day}-1')
    assert [exchange['trigger_id'] for exchange in exchanges] == [f'replay/{day}/{number}' for number, _ in expected]
    texts = [exchange['trigger_text'] for exchange in exchanges]
    assert texts[1:] == [text for _, text in expected[1:]]
    assert texts[0].endswith(expected[0][1])
    assert all(exchange['answer'] for exchange in exchanges)


def test_two_days_become_two_sessions(tmp_path: Path) -> None:
    """Each line is one exchange in order, each day one session with a summary, and the second begins with the first."""
    workspace = tmp_path / 'ws'
    report = replay(workspace, ('2026-03-10', FIRST), ('2026-03-11', SECOND))
    counts = [len(lines_of(path)) for path in (FIRST, SECOND)]
    assert counts == [39, 39]
    seconds = report.pop('wall_seconds')
    assert isinstance(seconds, float)
    assert report == {
        'workspace': str(workspace),
        'days': [
            {'date': '2026-03-10', 'triggers': 39, 'answered': 39, 'failed': 0},
            {'date': '2026-03-11', 'triggers': 39, 'answered': 39, 'failed': 0},
        ],
        'sessions': [{'id': '2026-03-10-1', 'exchanges': 39}, {'id': '2026-03-11-1', 'exchanges': 39}],
        'rollovers': 2,
        'summaries': ['2026-03-10', '2026-03-11'],
    }
    files = DeskFiles(workspace / 'desks' / 'main')
    check_day(files, '2026-03-10', FIRST)
    check_day(files, '2026-03-11', SECOND)
    assert files.summaries() == ['2026-03-10', '2026-03-11']
    heading, _, summary = files.summary('2026-03-10').strip().partition('\n\n')
    assert heading == '## Session 2026-03-10-1'
    assert summary
    assert summary in files.session('2026-03-11-1')[0]['trigger_text']
    assert '\u2028second line' in ''.join(exchange['trigger_text'] for exchange in files.session('2026-03-10-1'))


def test_same_days_give_same_answers(tmp_path: Path) -> None:
    """The same days give the same exchanges, summaries and Memory.md, times aside, and over a weekend too."""
    days = ('2026-03-13', FIRST), ('2026-03-16', SECOND)
    reports, results = [], []
    for name in ('one', 'two'):
        reports.append(replay(tmp_path / name, *days))
        files = DeskFiles(tmp_path / name / 'desks' / 'main')
        check_day(files, '2026-03-13', FIRST)
        check_day(files, '2026-03-16', SECOND)
        summaries = {day: files.summary(day) for day in files.summaries()}
        memory = files.folder / 'Memory.md'
        results.append((told(files.exchanges()), summaries, memory.read_text() if memory.exists() else ''))
    assert results[0] == results[1]
    assert reports[0]['rollovers'] == 2
    assert [session['id'] for session in reports[0]['sessions']] == ['2026-03-13-1', '2026-03-16-1']
    friday = results[0][1]['2026-03-13'].partition('\n\n')[2].strip()
    monday = DeskFiles(tmp_path / 'one' / 'desks' / 'main').session('2026-03-16-1')
    assert friday in monday[0]['trigger_text']


def test_a_day_that_is_there_is_refused(tmp_path: Path) -> None:
    """A workspace that holds one of the days, or a later one, is refused and left as it is; a later day goes on."""
    workspace = tmp_path / 'ws'
    replay(workspace, ('2026-03-10', FIRST))
    before = snapshot(workspace)
    for day in ('2026-03-10', '2026-03-09'):
        done = run_cli('--workspace', str(workspace), 'replay', f'--day={day}={FIRST}', '--day', f'2026-03-20={SECOND}')
        assert done.returncode == 1
        assert 'already holds' in done.stderr
        assert 'hint: ' in done.stderr
        assert 'Traceback' not in done.stderr
    assert snapshot(workspace) == before
    report = replay(workspace, ('2026-03-12', SECOND))
    assert report['sessions'] == [{'id': '2026-03-12-1', 'exchanges': 39}]
    assert report['summaries'] == ['2026-03-12']
    assert '## Session 2026-03-10-1' in DeskFiles(workspace / 'desks' / 'main').summary('2026-03-10')


def snapshot(folder: Path) -> dict[str, bytes]:
    """Returns the content of each file."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize(
    ('arguments', 'code', 'told_of'),
    [
        (['--day=2026-03-11={first}', '--day=2026-03-10={second}'], 1, 'do not ascend'),
        (['--day=2026-03-11={first}', '--day=2026-03-11={second}'], 1, 'do not ascend'),
        (['--day=2026-03-11={first}.missing'], 1, 'no file'),
        (['--day=2026-03-11'], 1, 'cannot be read'),
        (['--day=2026-W11-1={first}'], 2, '2025-12-16=FILE'),
        (['--day=2026-03-11={first}', '--desk=mian'], 1, "no desk is named 'mian'"),
        ([], 2, '--day'),
    ],
)
def test_what_cannot_be_replayed(tmp_path: Path, arguments: list[str], code: int, told_of: str) -> None:
    """Days that do not ascend, a file or desk that is missing, and a date written otherwise are refused in words."""
    given = [argument.format(first=FIRST, second=SECOND) for argument in arguments]
    done = run_cli('--workspace', str(tmp_path / 'ws'), 'replay', *given)
    assert (done.returncode, done.stdout) == (code, '')
    assert told_of in done.stderr
    assert 'Traceback' not in done.stderr
    assert not (tmp_path / 'ws').exists()


def test_a_failing_backend_loses_nothing(tmp_path: Path) -> None:
    """With a backend that fails now and then each line still has one exchange in order, and the exit code is 0."""
    config = tmp_path / 'config.toml'
    config.write_text('[backends.shaky]\nkind = "offline"\nfail_every = 30\n[[desks]]\nname = "main"\n')
    workspace = tmp_path / 'ws'
    day = f'2026-03-10={FIRST}'
    with_shaky = config.read_text() + 'backends = ["shaky"]\n'
    config.write_text(with_shaky)
    done = run_cli('--config', str(config), '--workspace', str(workspace), '--json', 'replay', '--day', day)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report['days'] == [{'date': '2026-03-10', 'triggers': 39, 'answered': 39, 'failed': 0}]
    check_day(DeskFiles(workspace / 'desks' / 'main'), '2026-03-10', FIRST)


def test_the_words_for_people(tmp_path: Path) -> None:
    """Without --json the same is told in words, and nothing but these is on stdout."""
    workspace = tmp_path / 'ws'
    done = run_cli('--workspace', str(workspace), 'replay', f'--day=2026-03-10={FIRST}')
    assert done.returncode == 0, done.stderr
    told_lines = done.stdout.splitlines()
    assert told_lines[0] == '2026-03-10  39 triggers: 39 answered, 0 failed'
    assert told_lines[1:4] == ['sessions:  2026-03-10-1 (39 exchanges)', 'rollovers: 1', 'summaries: 2026-03-10']
    assert told_lines[-1] == f'workspace: {workspace}'


@pytest.mark.skipif(not REAL.is_dir(), reason=f'there are no recorded days in {REAL}')
def test_two_real_days(tmp_path: Path) -> None:
    """The 855 and 887 announcements of two real days become two sessions, every line answered once and in order."""
    workspace = tmp_path / 'ws'
    days = [('2025-12-16', REAL / '2025-12-16.txt'), ('2025-12-17', REAL / '2025-12-17.txt')]
    report: dict[str, Any] = replay(workspace, *days)
    assert [(day['triggers'], day['answered'], day['failed']) for day in report['days']] == [
        (855, 855, 0),
        (887, 887, 0),
    ]
    assert (report['rollovers'], report['summaries']) == (2, ['2025-12-16', '2025-12-17'])
    files = DeskFiles(workspace / 'desks' / 'main')
    for day, path in days:
        check_day(files, day, path)
    summary = files.summary('2025-12-16').partition('\n\n')[2].strip()
    assert summary in files.session('2025-12-17-1')[0]['trigger_text']
    assert workspace.stat().st_mode & 0o777 == 0o700
