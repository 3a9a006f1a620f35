"""Memory.md on the disk: replaced whole, its old text kept, and a person's edit never overwritten."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent import swap
from trading_agent.errors import InvalidSessionId, StorageError
from trading_agent.memory.memory_file import MemoryEdited, MemoryFile

SESSION = '2026-10-19-1'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A desk's folder."""
    path = tmp_path / 'desk'
    path.mkdir()
    return path


@pytest.fixture
def memory(folder: Path) -> MemoryFile:
    """Its Memory.md, with a text in it."""
    memory = MemoryFile(folder)
    memory.path.write_text('Buy low.\n')
    return memory


def history(folder: Path) -> dict[str, str]:
    """Returns the old texts by their names."""
    return {path.name: path.read_text() for path in (folder / 'memory_history').glob('*.md')}


def replaced(memory: MemoryFile, text: str, session_id: str = SESSION) -> bool:
    """Folds a new text that was made from the one of now."""
    return memory.replace(session_id, text, memory.read().digest)


def test_the_old_text_goes_to_the_history(memory: MemoryFile, folder: Path) -> None:
    """A new text takes the place of the old one, which is kept under the session's name."""
    assert replaced(memory, '  Sell high. \n\n') is True
    assert memory.read().text == 'Sell high.\n'
    assert history(folder) == {'2026-10-19-1.md': 'Buy low.\n'}
    assert replaced(memory, 'Rest.', '2026-10-20-1') is True
    assert history(folder) == {'2026-10-19-1.md': 'Buy low.\n', '2026-10-20-1.md': 'Sell high.\n'}


def test_the_first_text(folder: Path) -> None:
    """Where there is no Memory.md it reads as empty, and the first text makes it."""
    memory = MemoryFile(folder)
    assert memory.read().text == ''
    assert replaced(memory, 'Buy low.') is True
    assert memory.path.read_text() == 'Buy low.\n'


def test_the_history_is_there_before_the_new_text(
    memory: MemoryFile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the new text cannot be put in place, the old one is in its place and in the history."""

    def fail(source: Path, destination: Path) -> bool:
        raise OSError(errno.EIO, 'Input/output error')

    with monkeypatch.context() as patch:
        patch.setattr(swap, 'exchange', fail)
        with pytest.raises(StorageError):
            replaced(memory, 'Sell high.')
    assert memory.read().text == 'Buy low.\n'
    assert history(folder) == {'2026-10-19-1.md': 'Buy low.\n'}
    assert [path.name for path in folder.iterdir() if path.is_file()] == ['Memory.md']
    assert replaced(memory, 'Sell high.') is True
    assert history(folder) == {'2026-10-19-1.md': 'Buy low.\n'}


@pytest.mark.parametrize('call', ['pwrite', 'fsync', 'exchange', 'open'])
def test_a_full_disk_leaves_the_old_text(memory: MemoryFile, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Whichever step finds no space, the old text stays."""
    digest = memory.read().digest

    def full(*_args: object, **_options: object) -> Any:  # noqa: ANN401
        raise OSError(errno.ENOSPC, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(swap if call == 'exchange' else os, call, full)
        with pytest.raises(StorageError):
            memory.replace(SESSION, 'Sell high.', digest)
    assert memory.read().text == 'Buy low.\n'


def test_the_same_text_changes_nothing(memory: MemoryFile, folder: Path) -> None:
    """A text that is there already, by a fold that a crash cut off for example, is no change and no history."""
    digest = memory.read().digest
    assert replaced(memory, 'Sell high.') is True
    assert memory.replace(SESSION, 'Sell high.', digest) is False
    assert history(folder) == {'2026-10-19-1.md': 'Buy low.\n'}


def test_the_same_text_is_made_durable(memory: MemoryFile, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeat after a replacement whose last sync failed does that sync before it says that all is there."""
    real = os.fsync
    synced: list[Path] = []

    def fsync(fd: int) -> None:
        path = Path(f'/proc/self/fd/{fd}').resolve()
        synced.append(path)
        if path == folder.resolve() and synced.count(path) == 2:
            raise OSError(errno.EIO, 'Input/output error')
        real(fd)

    digest = memory.read().digest
    monkeypatch.setattr(os, 'fsync', fsync)
    with pytest.raises(StorageError):
        memory.replace(SESSION, 'Sell high.', digest)
    assert memory.replace(SESSION, 'Sell high.', digest) is False
    assert synced.count(folder.resolve()) == 3


def test_an_edit_is_never_overwritten(memory: MemoryFile, folder: Path) -> None:
    """A text that a person changed since it was read stays, and nothing is written at all."""
    digest = memory.read().digest
    memory.path.write_text('Buy low. Mind the budget day.\n')
    with pytest.raises(MemoryEdited):
        memory.replace(SESSION, 'Sell high.', digest)
    assert memory.path.read_text() == 'Buy low. Mind the budget day.\n'
    assert not (folder / 'memory_history').exists()
    assert replaced(memory, 'Sell high on budget day.') is True
    assert history(folder) == {'2026-10-19-1.md': 'Buy low. Mind the budget day.\n'}


def test_a_deleted_text_is_an_edit(memory: MemoryFile) -> None:
    """A person who removes the file has edited it, and one who makes it has too."""
    digest = memory.read().digest
    memory.path.unlink()
    with pytest.raises(MemoryEdited):
        memory.replace(SESSION, 'Sell high.', digest)
    assert not memory.path.exists()
    missing = memory.read().digest
    memory.path.write_text('Mine.')
    with pytest.raises(MemoryEdited):
        memory.replace(SESSION, 'Sell high.', missing)


@pytest.mark.parametrize('step', [1, 2, 3, 4, 5])
def test_an_edit_in_the_last_moment_is_never_overwritten(
    memory: MemoryFile, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Also an edit that comes while the history or the new text is being written stays."""
    real = os.fsync
    calls: list[int] = []

    def edit(fd: int) -> None:
        calls.append(fd)
        if len(calls) == step:
            memory.path.write_text('Edited.\n')
        real(fd)

    digest = memory.read().digest
    monkeypatch.setattr(os, 'fsync', edit)
    with pytest.raises(MemoryEdited):
        memory.replace(SESSION, 'Sell high.', digest)
    assert len(calls) == 5
    assert memory.path.read_text() == 'Edited.\n'
    assert [path.name for path in memory.path.parent.iterdir() if path.is_file()] == ['Memory.md']


def test_nothing_that_was_replaced_is_lost(memory: MemoryFile, folder: Path) -> None:
    """A session that is folded in again keeps each text that it replaces, a person's included, under another name."""
    replaced(memory, 'First fold.')
    memory.path.write_text('First fold, edited.\n')
    replaced(memory, 'Second fold.')
    replaced(memory, 'Third fold.')
    assert history(folder) == {
        '2026-10-19-1.md': 'Buy low.\n',
        '2026-10-19-1.2.md': 'First fold, edited.\n',
        '2026-10-19-1.3.md': 'Second fold.\n',
    }


@pytest.mark.parametrize('bad', ['../x', '', 'x', '2026-10-19', '2026-10-19-1/../../x'])
def test_only_a_session_names_the_history(memory: MemoryFile, folder: Path, bad: str) -> None:
    """An id that is none is refused before anything is written."""
    with pytest.raises(InvalidSessionId):
        memory.replace(bad, 'Sell high.', memory.read().digest)
    assert [path.name for path in folder.iterdir()] == ['Memory.md']


def test_unreadable_is_not_empty(folder: Path) -> None:
    """A Memory.md that cannot be read is an error on reading and on replacing."""
    memory = MemoryFile(folder)
    digest = memory.read().digest
    memory.path.mkdir()
    calls: list[Callable[[], Any]] = [memory.read, lambda: memory.replace(SESSION, 'x', digest)]
    for call in calls:
        with pytest.raises(StorageError):
            call()
    assert memory.path.is_dir()


def test_modes(memory: MemoryFile, folder: Path) -> None:
    """The new text and the history are 0600 in a folder of 0700."""
    memory.path.chmod(0o644)
    replaced(memory, 'Sell high.')
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob('*')}
    files = dict.fromkeys(('Memory.md', '2026-10-19-1.md', 'ledger.jsonl'), 0o600)
    assert modes == {**files, 'memory_history': 0o700}


@given(old=st.binary(max_size=60), new=st.text(st.characters(exclude_categories=()), max_size=30))
@settings(deadline=None, max_examples=60)
def test_any_bytes_and_any_text(old: bytes, new: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever bytes are in the file and whatever text comes, the bytes are kept and the text is read back."""
    memory = MemoryFile(tmp_path_factory.mktemp('memory'))
    memory.path.write_bytes(old)
    changed = replaced(memory, new)
    kept = memory.path.parent / 'memory_history' / f'{SESSION}.md'
    assert (kept.read_bytes() == old) if changed else memory.path.read_bytes() == old
    assert memory.read().text.encode() == memory.path.read_bytes().removeprefix(b'\xef\xbb\xbf')
