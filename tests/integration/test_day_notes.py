"""What a desk notes down in the course of a day is durable, bounded, and damaged only where it is damaged."""

import errno
import os
from datetime import UTC, datetime
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent.errors import DeskUnusable, InvalidSessionId, StorageError
from trading_agent.memory.day_notes import DayNotes, NoteRefused

SESSION = '2026-10-19-1'
NOON = datetime(2026, 10, 19, 6, 30, tzinfo=UTC)


@pytest.fixture
def notes(tmp_path: Path) -> DayNotes:
    """The notes of a desk that has none yet."""
    return DayNotes(tmp_path)


def file_of(tmp_path: Path) -> Path:
    """Returns the file of the session's notes."""
    return tmp_path / 'notes' / f'{SESSION}.jsonl'


def test_notes_are_read_back_in_their_order(notes: DayNotes, tmp_path: Path) -> None:
    """Each session has its own notes; where none were made there are none."""
    assert notes.read(SESSION) == []
    notes.add(SESSION, '  ABC looks weak\n', NOON)
    notes.add(SESSION, 'a\nb\u2028c\ud800', NOON)
    notes.add('2026-10-19-2', 'another', NOON)
    assert notes.read(SESSION) == ['ABC looks weak', 'a\nb\u2028c\ufffd']
    lines = file_of(tmp_path).read_text().split('\n')
    assert lines[0] == '{"type":"header","version":1}'
    assert lines[1] == '{"type":"note","at":"2026-10-19T06:30:00.000000Z","text":"ABC looks weak"}'
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob('*.jsonl')} == {0o600}


@pytest.mark.parametrize('text', ['', ' \n', 'x' * 4001])
def test_a_note_that_is_none_is_refused(notes: DayNotes, tmp_path: Path, text: str) -> None:
    """A blank note and one over 4,000 characters are refused with what to do, and leave no file."""
    with pytest.raises(NoteRefused) as refused:
        notes.add(SESSION, text, NOON)
    assert refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_one_note_too_many_is_refused(notes: DayNotes, tmp_path: Path) -> None:
    """A session takes 200 notes, of up to 4,000 characters, also when many are made at once."""

    def add(number: int) -> bool:
        try:
            notes.add(SESSION, f'{number} '.ljust(4000, 'x'), NOON)
        except NoteRefused:
            return False
        return True

    with ThreadPool(8) as pool:
        taken = pool.map(add, range(230))
    assert sum(taken) == 200
    assert len(notes.read(SESSION)) == 200
    notes.add('2026-10-19-2', 'the next session has its own', NOON)


@pytest.mark.parametrize('session_id', ['../x', '', '2026-10-19', '2026-10-19-1/x'])
def test_only_a_session_names_a_file(notes: DayNotes, tmp_path: Path, session_id: str) -> None:
    """What is no session's id is refused before anything is touched."""
    with pytest.raises(InvalidSessionId):
        notes.add(session_id, 'x', NOON)
    with pytest.raises(InvalidSessionId):
        notes.read(session_id)
    assert list(tmp_path.iterdir()) == []


def test_damage_costs_a_line(notes: DayNotes, tmp_path: Path) -> None:
    """A torn line and one that is no note are skipped, and a new note is not swallowed by the torn one."""
    notes.add(SESSION, 'one', NOON)
    with file_of(tmp_path).open('ab') as file:
        file.write(b'\xff\n[[[[\n{"type":"note","at":"x"}\n{"type":"other"}\n{"type":"note","at":"2026')
    notes.add(SESSION, 'two', NOON)
    assert notes.read(SESSION) == ['one', 'two']


def test_notes_of_a_newer_version_are_left_alone(notes: DayNotes, tmp_path: Path) -> None:
    """They are neither read nor added to; a person is told what to do."""
    file_of(tmp_path).parent.mkdir()
    file_of(tmp_path).write_text('{"type":"header","version":2}\n')
    with pytest.raises(DeskUnusable, match='format 2'):
        notes.read(SESSION)
    with pytest.raises(DeskUnusable, match='format 2'):
        notes.add(SESSION, 'x', NOON)
    assert file_of(tmp_path).read_text() == '{"type":"header","version":2}\n'


def test_a_full_disk_takes_no_note(notes: DayNotes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note that could not be written is an error, and not there."""
    notes.add(SESSION, 'one', NOON)

    def full(*_: object) -> Any:  # noqa: ANN401
        raise OSError(errno.ENOSPC, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(os, 'pwrite', full)
        with pytest.raises(StorageError):
            notes.add(SESSION, 'two', NOON)
    assert notes.read(SESSION) == ['one']


@settings(deadline=None, max_examples=40)
@given(text=st.text(st.characters(exclude_categories=()), min_size=1, max_size=40).filter(str.strip))
def test_any_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is noted down is read back, in one piece."""
    notes = DayNotes(tmp_path_factory.mktemp('desk'))
    notes.add(SESSION, text, NOON)
    assert notes.read(SESSION) == [text.strip().encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')]
