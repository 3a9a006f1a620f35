"""`memory` on real files: what is there, what each session changed, and taking that back."""

import json
import os
import pty
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cli_fakes import call, lonely, on_terminal, start
from keeper_fakes import Box, InlineDisk, spare_the_disk

from trading_agent.cli import hold
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.routing.turn_runner import Turn

NOW = datetime(2026, 10, 20, 18, 30, 3, tzinfo=UTC)
FIRST, SECOND = '2026-10-19-1', '2026-10-20-1'


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely(tmp_path, monkeypatch)
    monkeypatch.setattr(hold, 'login_name', lambda: 'anil')
    monkeypatch.setattr('trading_agent.cli.memory.login_name', lambda: 'anil')


@pytest.fixture
def memory(tmp_path: Path) -> MemoryFile:
    """The Memory.md of a desk `main`, after two folds."""
    folder = tmp_path / 'workspace' / 'desks' / 'main'
    folder.mkdir(parents=True)
    memory = MemoryFile(folder, lambda: NOW)
    memory.path.write_text('- by hand\n')
    fold(memory, FIRST, '- by hand\n- one\n', 'it was a lesson')
    fold(memory, SECOND, '- by hand\n- one\n- two\n', 'and another')
    return memory


def fold(memory: MemoryFile, session_id: str, text: str, why: str = '') -> None:
    """Folds a session into what is there."""
    memory.replace(session_id, text, memory.read().digest, why)


# -- showing ---------------------------------------------------------------------------------------------------


def test_the_text_its_size_and_its_last_fold(memory: MemoryFile) -> None:
    """`memory DESK` shows the text behind how large it may be, when it was folded last, and how to see that."""
    result = call('memory', 'main')
    assert result.exit_code == 0
    assert result.stdout == (
        'Memory.md of main: 21 of 12,000 characters\n'
        'folded 2026-10-21 00:00:03 IST, session 2026-10-20-1 (`trading-agent memory diff main 2026-10-20-1`)\n'
        '\n'
        '- by hand\n- one\n- two\n'
    )
    assert call('memory', 'show', 'main').stdout == result.stdout


def test_the_budget_is_the_configurations(memory: MemoryFile, tmp_path: Path) -> None:
    """The budget is the desk's own, and is left out where the configuration does not name the desk or is spoilt."""
    file = tmp_path / 'trading-agent.toml'
    file.write_text('[[desks]]\nname = "main"\nmemory_budget = 900\n')
    assert call('memory', 'main').stdout.startswith('Memory.md of main: 21 of 900 characters\n')
    for text in ('[[desks]]\nname = "other"\n', 'desks = 7'):
        file.write_text(text)
        assert call('memory', 'main').stdout.startswith('Memory.md of main: 21 characters\n')


def test_what_a_person_did_since(memory: MemoryFile) -> None:
    """An edit after the last fold is told; so is a new text that was refused, with where it is."""
    memory.path.write_text('- mine\n')
    assert 'main 2026-10-20-1`); edited since\n' in call('memory', 'main').stdout
    memory.keep_refused('2026-10-21-1', 'x', memory.read().digest, 'it has 13,000 characters')
    lines = call('memory', 'main').stdout.split('\n')
    assert lines[2] == (
        'a new text was refused 2026-10-21 00:00:03 IST, session 2026-10-21-1: it has 13,000 characters '
        '(it is in memory_history/2026-10-21-1.refused.md)'
    )


def test_a_desk_without_a_memory(tmp_path: Path) -> None:
    """Nothing is there yet: the size says so. A desk that is not there is an error with what there is."""
    (tmp_path / 'workspace' / 'desks' / 'main').mkdir(parents=True)
    result = call('memory', 'main')
    assert (result.exit_code, result.stdout) == (0, 'Memory.md of main: 0 of 12,000 characters\n')
    result = call('memory', 'mian')
    assert result.exit_code == 1
    assert "hint: did you mean 'main'?" in result.stderr


def test_for_programs(memory: MemoryFile) -> None:
    """With --json the text, its size and all that was done to it come as one object."""
    shown = json.loads(call('memory', 'main', '--json').stdout)
    assert {key: shown[key] for key in ('desk', 'text', 'characters', 'budget', 'edited')} == {
        'desk': 'main', 'text': '- by hand\n- one\n- two\n', 'characters': 21, 'budget': 12000, 'edited': False,
    }  # fmt: skip
    assert [(change['kind'], change['session_id'], change['why']) for change in shown['changes']] == [
        ('folded', FIRST, 'it was a lesson'),
        ('folded', SECOND, 'and another'),
    ]
    assert shown['last'] == shown['changes'][1]


def test_a_text_cannot_command_the_terminal(memory: MemoryFile) -> None:
    """Control characters in a text or in a model's reasons are not written out."""
    memory.path.write_text('a\x1b[2Jb\n')
    assert call('memory', 'main').stdout.endswith('a\ufffd[2Jb\n')


# -- diff ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('arguments', [('diff', 'main', SECOND), ('main', 'diff', SECOND)])
def test_what_a_session_changed(memory: MemoryFile, arguments: tuple[str, ...]) -> None:
    """The fold of a session is shown as lines that came and went, with the reasons; in either order of words."""
    result = call('memory', *arguments)
    assert result.stdout == (
        'session 2026-10-20-1, 2026-10-21 00:00:03 IST: and another\n'
        '--- before\n+++ after\n@@ -1,2 +1,3 @@\n - by hand\n - one\n+- two\n'
    )


def test_an_edit_before_the_next_fold(memory: MemoryFile) -> None:
    """Where a person edited what a fold had made, the fold's own text is gone: both are shown, and that is told."""
    memory.path.write_text('- by hand\n- two, but not on Fridays\n')
    assert 'a person edited it afterwards; that is shown with it\n' in call('memory', 'diff', 'main', SECOND).stdout
    assert 'edited' not in call('memory', 'diff', 'main', FIRST).stdout
    fold(memory, '2026-10-21-1', '- by hand\n- two, but not on Fridays\n- three\n')
    shown = json.loads(call('memory', 'diff', 'main', SECOND, '--json').stdout)
    assert shown['folds'][0]['edited'] is True
    assert shown['folds'][0]['after'] == '- by hand\n- two, but not on Fridays\n'
    assert '+- two, but not on Fridays' in shown['folds'][0]['diff']


def test_a_session_that_was_folded_twice(memory: MemoryFile) -> None:
    """A session whose full summary came late shows both of its folds."""
    fold(memory, FIRST, '- by hand\n- one\n- two\n- late\n')
    folds = json.loads(call('memory', 'diff', 'main', FIRST, '--json').stdout)['folds']
    assert [fold['diff'][-1] for fold in folds] == ['+- one', '+- late']


def test_a_history_from_before_there_was_a_ledger(memory: MemoryFile) -> None:
    """Folds of an earlier version are found by their files' names, in the order of the sessions."""
    (memory.path.parent / 'memory_history' / 'ledger.jsonl').unlink()
    assert call('memory', 'diff', 'main', FIRST).stdout.endswith(' - by hand\n+- one\n')
    assert call('memory', 'diff', 'main', SECOND).stdout.endswith('+- two\n')
    assert 'folded at a time that is not known, session 2026-10-20-1' in call('memory', 'main').stdout


@pytest.mark.parametrize('session', ['2026-10-18-1', '../../x', 'nonsense'])
@pytest.mark.parametrize('command', ['diff', 'restore'])
def test_a_session_that_changed_nothing(memory: MemoryFile, command: str, session: str) -> None:
    """A session that is not in the history is an error that names those that are, the newest first."""
    result = call('memory', command, 'main', session)
    assert result.exit_code == 1
    assert 'has changed nothing in ' in result.stderr
    assert 'hint: there is 2026-10-20-1, 2026-10-19-1\n' in result.stderr


def test_a_ledger_cannot_lead_anywhere_else(memory: MemoryFile, tmp_path: Path) -> None:
    """A line of the ledger that names a file elsewhere shows nothing of it."""
    (tmp_path / 'secret.md').write_text('secret')
    ledger = memory.path.parent / 'memory_history' / 'ledger.jsonl'
    ledger.write_text(ledger.read_text().replace('2026-10-20-1.md', '../../../../secret.md'))
    result = call('memory', 'diff', 'main', FIRST)
    assert 'secret' not in result.output


# -- restore ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('arguments', [('restore', 'main', SECOND), ('main', 'restore', SECOND)])
def test_a_text_is_put_back(memory: MemoryFile, arguments: tuple[str, ...]) -> None:
    """The text from before the fold is there again, the one of now is kept, and that is written down."""
    result = call('memory', *arguments)
    assert result.exit_code == 0
    kept = 'memory_history/before-restore-of-2026-10-20-1.md'
    assert result.stdout == f'main: Memory.md is what it was before 2026-10-20-1; what it was until now is {kept}\n'
    assert memory.read().text == '- by hand\n- one\n'
    assert (memory.path.parent / kept).read_text() == '- by hand\n- one\n- two\n'
    last = memory.changes()[-1]
    assert (last.kind, last.session_id, last.by) == ('restored', SECOND, 'anil')
    assert 'by anil, to what it was before session 2026-10-20-1\n' in call('memory', 'main').stdout
    assert call('memory', 'restore', 'main', SECOND).stdout.startswith('main: nothing to do')
    assert '+- two' in call('memory', 'diff', 'main', SECOND).stdout, 'what it changed can still be seen'


def test_a_text_that_a_person_edited_is_kept_too(memory: MemoryFile) -> None:
    """Nothing that stood in Memory.md is lost by putting texts back again and again."""
    texts = [memory.read().text]
    for session in (SECOND, FIRST, SECOND, SECOND):
        memory.path.write_text(f'- mine, before {session}, {len(texts)}\n')
        texts.append(memory.read().text)
        shown = json.loads(call('memory', 'restore', 'main', session, '--json').stdout)
        assert shown['restored'] is True
        assert Path(shown['kept']).read_text() == texts[-1]
    kept = {path.read_text() for path in (memory.path.parent / 'memory_history').glob('*.md')}
    assert set(texts[1:]) <= kept


def test_back_to_nothing(tmp_path: Path) -> None:
    """Before the very first fold there was no text: that is put back too."""
    folder = tmp_path / 'workspace' / 'desks' / 'main'
    folder.mkdir(parents=True)
    memory = MemoryFile(folder)
    fold(memory, FIRST, '- one\n')
    assert call('memory', 'restore', 'main', FIRST).exit_code == 0
    assert memory.read().text == ''


def answer_on_terminal(answer: str, *arguments: str) -> tuple[int, str]:
    """Runs a command on a terminal on which this is typed; returns its exit code and what it wrote to stderr."""
    ours, theirs = pty.openpty()
    process = start(*arguments, stdin=theirs)
    os.close(theirs)
    os.write(ours, answer.encode())
    _, errors = process.communicate(timeout=30)
    os.close(ours)
    return process.returncode, errors


@pytest.mark.parametrize(('answer', 'restored'), [('y\n', True), ('n\n', False), ('\n', False)])
def test_it_asks_on_a_terminal(memory: MemoryFile, answer: str, *, restored: bool) -> None:
    """A person is asked first; who does not say yes changes nothing, and the exit code is 1."""
    code, told = answer_on_terminal(answer, 'memory', 'restore', 'main', SECOND)
    assert 'put the Memory.md of main back to what it was before 2026-10-20-1? [y/N]' in told
    assert code == (0 if restored else 1)
    assert memory.read().text == ('- by hand\n- one\n' if restored else '- by hand\n- one\n- two\n')


def test_it_does_not_ask_who_said_yes(memory: MemoryFile) -> None:
    """With --yes a terminal is not asked."""
    code, told = answer_on_terminal('', 'memory', 'restore', 'main', SECOND, '--yes')
    assert (code, told) == (0, '')


async def test_it_works_beside_a_running_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back while a model is asked, the text is what the fold is made on: neither is lost."""
    spare_the_disk(monkeypatch)
    box = Box(tmp_path / 'workspace' / 'desks' / 'main', disk=InlineDisk())
    box.folder.mkdir(parents=True)
    box.memory.path.write_text('- by hand\n')
    await box.start()
    await box.turn()
    await box.keeper.roll_over()
    await box.turn()

    async def interrupted(turn: Turn) -> dict[str, object]:
        answer = await box.model.review(turn)
        if len(box.model.reviews) == 2:
            assert call('memory', 'restore', 'main', FIRST).exit_code == 0
        return answer

    box.model.on_review = interrupted
    await box.keeper.roll_over()
    assert box.memory_text == '- by hand\n- lesson of 2026-10-19-2\n'
    assert call('memory', 'diff', 'main', '2026-10-19-2').stdout.endswith(' - by hand\n+- lesson of 2026-10-19-2\n')


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can give files away')
def test_root_writes_as_the_one_whom_the_desk_belongs_to(memory: MemoryFile, tmp_path: Path) -> None:
    """What root puts back can be read by the user that the daemon runs as."""
    for path in [tmp_path, *tmp_path.rglob('*')]:
        os.chown(path, 12345, 12346)
    closed = {path: path.stat().st_mode for path in tmp_path.parents if not path.stat().st_mode & 0o001}
    try:
        for path, mode in closed.items():
            path.chmod(mode | 0o001)
        assert call('memory', 'restore', 'main', SECOND).exit_code == 0
    finally:
        for path, mode in closed.items():
            path.chmod(mode)
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in memory.path.parent.rglob('*')}
    assert owners == {(12345, 12346)}
    assert os.geteuid() == 0


# -- usage -----------------------------------------------------------------------------------------------------


def test_usage() -> None:
    """Without a desk the help is shown; a mistyped command is told with the nearest one: exit 2."""
    assert call('memory').exit_code == 2
    result = call('memory', 'dif', 'main', FIRST)
    assert result.exit_code == 2
    assert "did you mean 'diff'?" in result.stderr
    assert call('memory', 'diff', 'main').exit_code == 2
    shown = call('memory', '--help').stdout
    assert 'memory [OPTIONS] DESK | COMMAND DESK SESSION' in shown
    assert 'restore' in shown


def test_colours_on_a_terminal_alone(memory: MemoryFile) -> None:
    """Lines that came are green where a person reads them, and plain elsewhere."""
    assert '\x1b[32m+- two\x1b[0m' in on_terminal('memory', 'diff', 'main', SECOND)
    assert '\x1b' not in call('memory', 'diff', 'main', SECOND).stdout
