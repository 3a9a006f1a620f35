"""Real files under faults: short writes, failing syncs, full disks, torn tails, odd umasks, and a killed holder."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent import files, json_lines
from trading_agent.disk import Disk
from trading_agent.errors import StorageError


class Fault:
    """Makes a system call fail the next `times` times that it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, number: int = errno.ENOSPC) -> None:
        self.times = 0
        self.calls = 0
        self._number = number
        self._real: Callable[..., Any] = getattr(os, name)
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args: object, **options: object) -> object:
        self.calls += 1
        if self.times:
            self.times -= 1
            raise OSError(self._number, os.strerror(self._number))
        return self._real(*args, **options)


def writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
    """Returns a list that is given the bytes of each write and their place."""
    written: list[tuple[bytes, int]] = []
    real = os.pwrite

    def write(fd: int, data: bytes | memoryview, offset: int) -> int:
        written.append((bytes(data), offset))
        return real(fd, data, offset)

    monkeypatch.setattr(os, 'pwrite', write)
    return written


def modes_in(folder: Path) -> dict[str, int]:
    """Returns the mode of everything in a folder."""
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o7777 for path in folder.rglob('*')}


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The process's umask for one test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with one line in it."""
    path = tmp_path / 'log.jsonl'
    files.append(path, b'first\n')
    return path


# -- append ------------------------------------------------------------------------------------------------------


def test_append_makes_the_file_and_adds_to_its_end(tmp_path: Path) -> None:
    """The first append makes the file, later ones add to its end."""
    path = tmp_path / 'log'
    files.append(path, b'one\n')
    files.append(path, b'two\nthree\n')
    assert path.read_bytes() == b'one\ntwo\nthree\n'


def test_a_torn_line_never_swallows_the_next(log: Path) -> None:
    """A line that somebody else tore, also while the writer lives, is closed before the next one."""
    for torn in (b'torn', b'{"a": "\xe2\x82', b'\x00'):
        with log.open('ab') as other:
            other.write(torn)
        files.append(log, b'next\n')
    assert log.read_bytes() == b'first\ntorn\nnext\n{"a": "\xe2\x82\nnext\n\x00\nnext\n'


def test_append_writes_on_after_a_short_write(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that writes three bytes at a time still writes the whole line, once."""
    real = os.pwrite
    monkeypatch.setattr(os, 'pwrite', lambda fd, data, offset: real(fd, bytes(data)[:3], offset))
    files.append(log, b'a line of some length\n')
    files.replace(log.with_name('whole'), b'another text\n')
    assert log.read_bytes() == b'first\na line of some length\n'
    assert log.with_name('whole').read_bytes() == b'another text\n'


def test_an_append_that_finds_no_space_leaves_the_file(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full after some bytes, what was written is taken back, and the next append works."""
    real = os.pwrite
    calls = []

    def full(fd: int, data: bytes | memoryview, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, 'No space left on device')
        return real(fd, bytes(data)[:4], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, 'pwrite', full)
        with pytest.raises(StorageError, match=r'append to .*log\.jsonl: No space left') as caught:
            files.append(log, b'second\n')
    assert (caught.value.errno, caught.value.path) == (errno.ENOSPC, log)
    assert 'free some space' in caught.value.hint
    assert log.read_bytes() == b'first\n'
    files.append(log, b'second\n')
    assert log.read_bytes() == b'first\nsecond\n'


def test_a_sync_that_failed_once_is_written_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fdatasync the same bytes are written in the same place and synced: once in the file, no error."""
    sync = Fault(monkeypatch, 'fdatasync', errno.EIO)
    write = Fault(monkeypatch, 'pwrite')
    sync.times = 1
    files.append(log, b'second\n')
    assert (sync.calls, write.calls) == (2, 2)
    assert log.read_bytes() == b'first\nsecond\n'


def test_a_sync_that_failed_twice_is_an_error(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the second sync fails too, the caller is told and the file is as it was: nothing is acknowledged."""
    sync = Fault(monkeypatch, 'fdatasync', errno.EIO)
    sync.times = 2
    with pytest.raises(StorageError) as caught:
        files.append(log, b'second\n')
    assert caught.value.errno == errno.EIO
    assert 'disk reports errors' in caught.value.hint
    assert log.read_bytes() == b'first\n'


def test_a_torn_line_stays_as_it_is_when_the_append_fails(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newline that closes a torn line is taken back too when the line after it could not be written."""
    with log.open('ab') as other:
        other.write(b'torn')
    Fault(monkeypatch, 'fdatasync', errno.EIO).times = 2
    with pytest.raises(StorageError):
        files.append(log, b'second\n')
    assert log.read_bytes() == b'first\ntorn'


@pytest.mark.parametrize('there', [False, True])
def test_the_first_line_of_a_file_syncs_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    """A first line syncs the folder, also where an earlier writer left an empty file; a later line does not."""
    path = tmp_path / 'log'
    if there:
        path.touch()
    sync = Fault(monkeypatch, 'fsync')
    files.append(path, b'one\n')
    assert sync.calls == 1
    files.append(path, b'two\n')
    assert sync.calls == 1


def test_a_first_line_whose_folder_is_not_synced_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a new file's folder cannot be synced, the caller is told and the line is not in the file."""
    path = tmp_path / 'log'
    fault = Fault(monkeypatch, 'fsync', errno.EIO)
    fault.times = 1
    with pytest.raises(StorageError):
        files.append(path, b'one\n')
    assert files.read(path) in (None, b'')
    files.append(path, b'two\n')
    assert path.read_bytes() == b'two\n'


def test_an_unsynced_append_syncs_nothing(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sync=False` writes and leaves the syncing to the system."""
    data, folder = Fault(monkeypatch, 'fdatasync'), Fault(monkeypatch, 'fsync')
    files.append(log, b'second\n', sync=False)
    assert (data.calls, folder.calls) == (0, 0)
    assert log.read_bytes() == b'first\nsecond\n'


def test_what_an_earlier_sync_may_have_lost_is_written_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands behind the bytes that are on the disk for certain is written once more with the new line."""
    files.append(log, b'second\n', sync=False)
    written = writes(monkeypatch)
    sync = Fault(monkeypatch, 'fdatasync', errno.EIO)
    sync.times = 2
    with pytest.raises(StorageError):
        files.append(log, b'third\n', synced=len(b'first\n'))
    assert log.read_bytes() == b'first\nsecond\n'
    assert files.append(log, b'third\n', synced=len(b'first\n')) == len(b'first\nsecond\nthird\n')
    both = (b'second\nthird\n', 6)
    assert written == [both, both, (b'second\n', 6), both]
    assert log.read_bytes() == b'first\nsecond\nthird\n'


def test_a_sync_that_failed_is_told(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That bytes were written again after a failed sync stands in the log, with the file and what to look at."""
    Fault(monkeypatch, 'fdatasync', errno.EIO).times = 1
    files.append(log, b'second\n')
    (told,) = caplog.messages
    assert str(log) in told
    assert 'look at the kernel log' in told


def test_a_line_that_could_not_be_taken_back_is_not_written_twice(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is unlike all others is there once, also where a failed try of it was left behind; others are not."""
    with monkeypatch.context() as broken:
        Fault(broken, 'fdatasync', errno.EIO).times = 2
        Fault(broken, 'ftruncate', errno.EIO).times = 1
        with pytest.raises(StorageError):
            files.append(log, b'second\n', once=True)
    assert files.append(log, b'second\n', once=True) == len(b'first\nsecond\n')
    assert files.append(log, b'cond\n', once=True) == len(b'first\nsecond\ncond\n')
    files.append(log, b'cond\n')
    assert log.read_bytes() == b'first\nsecond\ncond\ncond\n'


def test_what_close_says_changes_nothing(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is synced is appended, also where close(2) reports an error."""
    real = os.close

    def close(descriptor: int) -> None:
        real(descriptor)
        raise OSError(errno.EIO, 'as told')

    with monkeypatch.context() as broken:
        broken.setattr(os, 'close', close)
        files.append(log, b'second\n')
    assert log.read_bytes() == b'first\nsecond\n'


def test_threads_that_append_to_one_file_take_turns(log: Path) -> None:
    """Lines that eight threads append at the same time are all there, none over another."""

    def write(thread: int) -> None:
        for number in range(20):
            files.append(log, f'{thread}-{number}\n'.encode(), sync=False)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [f'{thread}-{number}' for thread in range(8) for number in range(20)]
    assert sorted(log.read_text().split()) == sorted(['first', *expected])


def test_append_to_a_folder_is_an_error(tmp_path: Path) -> None:
    """A folder where the file should be is an error that names it and says what to do."""
    (tmp_path / 'log').mkdir()
    with pytest.raises(StorageError) as caught:
        files.append(tmp_path / 'log', b'x\n')
    assert 'a folder stands where a file should be' in caught.value.hint


# -- seal --------------------------------------------------------------------------------------------------------


def test_seal_closes_a_torn_tail_once(log: Path) -> None:
    """A torn tail is closed and told, a whole one or a missing file is not touched."""
    assert files.seal(log) is False
    with log.open('ab') as other:
        other.write(b'torn')
    assert files.seal(log) is True
    assert files.seal(log) is False
    assert log.read_bytes() == b'first\ntorn\n'
    assert files.seal(log.with_name('missing')) is False
    assert not log.with_name('missing').exists()


def test_seal_writes_the_last_line_again_and_syncs_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line, which an earlier process may have failed to sync, is written once more and synced."""
    files.append(log, b'last\n')
    written = writes(monkeypatch)
    sync = Fault(monkeypatch, 'fdatasync')
    files.seal(log)
    assert (written, sync.calls) == ([(b'last\n', 6)], 2)
    sync.times = 1
    with pytest.raises(StorageError):
        files.seal(log)
    assert log.read_bytes() == b'first\nlast\n'


def test_seal_of_a_line_that_is_longer_than_its_look_back(log: Path) -> None:
    """A torn line of several MiB is closed as any other."""
    with log.open('ab') as other:
        other.write(b'x' * (3 << 20))
    assert files.seal(log) is True
    assert log.read_bytes() == b'first\n' + b'x' * (3 << 20) + b'\n'


# -- create, link, move, remove ----------------------------------------------------------------------------------


def test_create_makes_an_empty_file_only_once(tmp_path: Path) -> None:
    """A second `create` is a FileExistsError and a StorageError, and touches nothing."""
    path = tmp_path / 'new'
    files.create(path)
    assert path.read_bytes() == b''
    path.write_bytes(b'mine')
    with pytest.raises(FileExistsError) as caught:
        files.create(path)
    assert isinstance(caught.value, StorageError)
    assert path.read_bytes() == b'mine'


def test_create_that_is_not_durable_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the folder cannot be synced, the file that was just created is gone again."""
    Fault(monkeypatch, 'fsync', errno.EIO).times = 1
    with pytest.raises(StorageError):
        files.create(tmp_path / 'new')
    assert list(tmp_path.iterdir()) == []


def test_create_without_a_free_descriptor_removes_nothing(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure before the file was looked at never removes one that is there."""
    Fault(monkeypatch, 'open', errno.EMFILE).times = 1
    with pytest.raises(StorageError) as caught:
        files.create(log)
    assert not isinstance(caught.value, FileExistsError)
    assert log.read_bytes() == b'first\n'


def test_link_gives_a_second_name(log: Path) -> None:
    """A second name is given once, found again by whoever repeats it, and refused where another file has it."""
    second = log.with_name('second')
    assert files.link(log, second) is True
    assert files.link(log, second) is True
    files.replace(log, b'new\n')
    assert files.link(log, second) is False
    assert second.read_bytes() == b'first\n'


def test_move_and_remove(log: Path, tmp_path: Path) -> None:
    """`move` takes the file to its new name, `remove` takes it away and does not mind that it is gone."""
    (tmp_path / 'there').mkdir()
    destination = tmp_path / 'there' / 'log'
    files.move(log, destination)
    assert destination.read_bytes() == b'first\n'
    assert not log.exists()
    files.remove(destination)
    files.remove(destination)
    assert files.names_in(tmp_path / 'there') == []
    with pytest.raises(StorageError):
        files.move(log, destination)


# -- replace -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('call', ['pwrite', 'fsync', 'replace', 'fchmod', 'open'])
def test_a_failed_replace_leaves_the_old_text_alone(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whichever step fails, the old text stays, no temporary file is left, and the next try works."""
    Fault(monkeypatch, call).times = 1
    with pytest.raises(StorageError) as caught:
        files.replace(log, b'new\n')
    assert caught.value.errno == errno.ENOSPC
    assert log.read_bytes() == b'first\n'
    assert list(tmp_path.iterdir()) == [log]
    files.replace(log, b'new\n')
    assert log.read_bytes() == b'new\n'
    assert list(tmp_path.iterdir()) == [log]


def test_replace_syncs_the_data_before_the_rename_and_the_folder_after(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data is synced, then renamed, then the folder synced; `sync_name=False` spares the last."""
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        steps.append('folder' if Path(f'/proc/self/fd/{fd}').resolve() == tmp_path.resolve() else 'data')
        real_fsync(fd)

    def replace(source: Path, destination: Path) -> None:
        steps.append('rename')
        real_replace(source, destination)

    monkeypatch.setattr(os, 'fsync', fsync)
    monkeypatch.setattr(os, 'replace', replace)
    files.replace(log, b'new\n')
    assert steps == ['data', 'rename', 'folder']
    steps.clear()
    files.replace(log, b'newer\n', sync_name=False)
    assert steps == ['data', 'rename']


def test_a_folder_that_is_not_synced_is_told(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When only the last step fails, the caller hears of it: the new text is there but not acknowledged."""
    real = os.fsync
    calls: list[int] = []

    def fsync(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.EIO, 'Input/output error')
        real(fd)

    monkeypatch.setattr(os, 'fsync', fsync)
    with pytest.raises(StorageError):
        files.replace(log, b'new\n')
    assert log.read_bytes() == b'new\n'


def test_a_check_before_the_rename_can_still_say_no(log: Path, tmp_path: Path) -> None:
    """What `check` raises leaves the old text and no temporary file, and reaches the caller."""

    def check(_: bytes | None) -> None:
        raise RuntimeError('not now')

    with pytest.raises(RuntimeError, match='not now'):
        files.replace(log, b'new\n', check=check)
    assert log.read_bytes() == b'first\n'
    assert list(tmp_path.iterdir()) == [log]


def test_sweep_removes_what_a_killed_writer_left(log: Path, tmp_path: Path) -> None:
    """Only our own temporary files go, and not what somebody's editor has not finished either."""
    for name in ('.state.json.0a1b2c3d.tmp', '.session-ids', 'mine.tmp', '.hidden', '.Memory.md.tmp'):
        (tmp_path / name).write_text('x')
    files.sweep(tmp_path)
    assert sorted(files.names_in(tmp_path)) == ['.Memory.md.tmp', '.hidden', '.session-ids', 'log.jsonl', 'mine.tmp']
    files.sweep(tmp_path / 'missing')


@pytest.mark.parametrize('how', ['create', 'replace', 'replace what is checked', 'make what is checked'])
def test_a_sweep_beside_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A writer whose temporary file is swept away in the middle, as by a desk that is started again, makes it anew."""
    path, swept = tmp_path / 'state', 0
    if how.startswith('replace'):
        path.write_text('old')
    write_new = files._write_new

    def sweep_once(temporary: Path, data: bytes) -> None:
        nonlocal swept
        write_new(temporary, data)
        if not swept:
            swept = 1
            files.sweep(tmp_path)

    monkeypatch.setattr(files, '_write_new', sweep_once)
    if how == 'create':
        files.create(path, b'new')
    else:
        files.replace(path, b'new', check=(lambda _: None) if 'checked' in how else None)
    assert swept
    assert path.read_bytes() == b'new'
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """What cannot be written for want of a folder is an error, and nothing is tried for ever."""
    for write in (files.create, files.replace):
        with pytest.raises(StorageError, match='No such file or directory'):
            write(tmp_path / 'missing' / 'state', b'x')


# -- folders and modes -------------------------------------------------------------------------------------------


def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    """Under any umask each file is 0600 and each folder 0700, and each can be written again."""
    folder = tmp_path / 'a'
    files.make_folder(folder / 'b' / 'c')
    files.append(folder / 'log', b'x\n')
    files.append(folder / 'log', b'y\n')
    files.create(folder / 'empty')
    files.replace(folder / 'state', b'x')
    files.replace(folder / 'state', b'y')
    lock = files.Lock(folder / 'lock')
    lock.acquire()
    lock.release()
    assert modes_in(tmp_path) == {
        'a': 0o700,
        'a/b': 0o700,
        'a/b/c': 0o700,
        'a/log': 0o600,
        'a/empty': 0o600,
        'a/state': 0o600,
        'a/lock': 0o600,
    }


def test_a_folder_is_never_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between its making and its chmod a folder is not open to others under umask 0."""
    monkeypatch.setattr(Path, 'chmod', lambda _path, _mode: None)
    before = os.umask(0)
    try:
        files.make_folder(tmp_path / 'a')
    finally:
        os.umask(before)
    assert (tmp_path / 'a').stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize('inner', ['x', 'x/y', 'x/y/z'])
def test_make_folder_where_a_file_stands(tmp_path: Path, inner: str) -> None:
    """A file in the way, here or further up, is an error that says so, and stays."""
    (tmp_path / 'x').write_text('mine')
    with pytest.raises(StorageError) as caught:
        files.make_folder(tmp_path / inner)
    assert 'a file stands where a folder should be' in caught.value.hint
    assert (tmp_path / 'x').read_text() == 'mine'


def test_make_folder_syncs_the_folders_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new folder's name is synced; one that is there costs nothing."""
    sync = Fault(monkeypatch, 'fsync', errno.EIO)
    files.make_folder(tmp_path / 'a' / 'b')
    assert sync.calls == 2
    files.make_folder(tmp_path / 'a' / 'b')
    assert sync.calls == 2
    sync.times = 1
    with pytest.raises(StorageError):
        files.make_folder(tmp_path / 'c')


# -- reading -----------------------------------------------------------------------------------------------------


def test_missing_is_not_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file reads as None, no lines or no names; one that cannot be read is an error."""
    missing = tmp_path / 'missing'
    assert files.read(missing) is None
    assert list(json_lines.read(missing)) == []
    assert files.names_in(missing) == []
    (tmp_path / 'file').write_text('x')
    for unreadable in (tmp_path, tmp_path / 'file' / 'below'):
        with pytest.raises(StorageError):
            files.read(unreadable)
        with pytest.raises(StorageError):
            list(json_lines.read(unreadable))
    with pytest.raises(StorageError):
        files.names_in(tmp_path / 'file')


def test_lines_are_split_on_newlines_alone(log: Path) -> None:
    """U+2028, U+2029, U+0085, form feeds and carriage returns stay inside their line; blank lines only count."""
    text = 'a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1e\re'
    log.write_bytes(f'{text}\n\n  \t\nlast, torn'.encode())
    assert list(json_lines.read(log)) == [(1, text.encode()), (4, b'last, torn')]


@given(data=st.binary(max_size=200).map(lambda data: data.replace(b'\x00', b'\n')), block=st.integers(1, 20))
@settings(deadline=None, max_examples=150)
def test_lines_of_any_bytes(data: bytes, block: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is in a file and however it is read, each line that is not blank comes once with its number."""
    path = tmp_path_factory.mktemp('lines') / 'file'
    path.write_bytes(data)
    expected = [(number, line) for number, line in enumerate(data.split(b'\n'), 1) if line.strip()]
    assert list(json_lines.read(path, block)) == expected


@given(data=st.binary(max_size=200).map(lambda data: data.replace(b'\x00', b'\n')), block=st.integers(1, 20))
@settings(deadline=None, max_examples=150)
def test_the_same_lines_from_either_end(data: bytes, block: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Read from the end, or whole ones with their offsets, the lines are those of the file, whatever the block is."""
    path = tmp_path_factory.mktemp('lines') / 'file'
    path.write_bytes(data)
    lines = data.split(b'\n')
    assert list(json_lines.read_back(path, block)) == [line for line in reversed(lines) if line.strip()]
    whole = list(json_lines.read_whole(path, block=block))
    assert [line for _, line in whole] == lines[:-1]
    assert [data[end - len(line) - 1 : end] for end, line in whole] == [line + b'\n' for line in lines[:-1]]


@pytest.mark.parametrize('block', [1, 7, 1000, 1 << 20])
def test_a_line_that_is_too_long_and_those_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """A line beyond the limit comes as what nobody can decode, with its number; those around it come whole."""
    monkeypatch.setattr(json_lines, 'MAX_LINE_BYTES', 10)
    path = tmp_path / 'file'
    content = b'short\n' + b'{}' + b' ' * 1000 + b'\nafter\n' + b'y' * 10 + b'\n' + b'z' * 11
    path.write_bytes(content)
    expected = [b'short', json_lines.TOO_LONG, b'after', b'y' * 10, json_lines.TOO_LONG]
    assert list(json_lines.read(path, block)) == list(enumerate(expected, 1))
    assert list(json_lines.read_back(path, block)) == expected[::-1]
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord('\n')]
    assert list(json_lines.read_whole(path, block=block)) == list(zip(ends, expected, strict=False))


@pytest.mark.parametrize('how', ['read', 'read_back', 'read_whole'])
def test_memory_is_bounded_by_the_limit_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A line of 64 MiB, read with a limit of 1 KiB, never takes more than a few blocks of memory."""
    import tracemalloc

    monkeypatch.setattr(json_lines, 'MAX_LINE_BYTES', 1024)
    path = tmp_path / 'file'
    with path.open('wb') as file:
        file.truncate(64 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b'\nafter\n')
    tracemalloc.start()
    try:
        found = list(getattr(json_lines, how)(path, block=1 << 16))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [line if how == 'read_back' else line[1] for line in found] == (
        [b'after', json_lines.TOO_LONG] if how == 'read_back' else [json_lines.TOO_LONG, b'after']
    )
    assert peak < 1 << 20


# -- lock --------------------------------------------------------------------------------------------------------


def test_who_comes_second_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    """The second one gets the holder's text; a shorter text replaces a longer one; once let go of, it can be taken."""
    path = tmp_path / 'lock'
    first, second = files.Lock(path), files.Lock(path)
    assert first.acquire() is None
    first.write(b'{"pid": 1234567}')
    first.write(b'{"pid": 1}')
    assert second.acquire() == b'{"pid": 1}'
    first.release()
    first.release()
    assert path.read_bytes() == b''
    assert second.acquire() is None
    second.release()


def test_the_death_of_its_holder_frees_the_lock(tmp_path: Path) -> None:
    """A holder that is killed by SIGKILL lets go of the lock, although it could tidy up nothing."""
    path = tmp_path / 'lock'
    code = (
        'import sys, pathlib; from trading_agent import files; lock = files.Lock(pathlib.Path(sys.argv[1]))\n'
        'assert lock.acquire() is None; lock.write(b"me"); print("held", flush=True); sys.stdin.read()'
    )
    holder = subprocess.Popen(
        [sys.executable, '-c', code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == 'held\n'
        mine = files.Lock(path)
        assert mine.acquire() == b'me'
        holder.kill()
        holder.wait(30)
        assert mine.acquire() is None
        mine.release()


def test_a_lock_is_no_link(tmp_path: Path) -> None:
    """Where the lock's file is a link nobody gets it, and not a byte of what it leads to is touched."""
    (tmp_path / 'precious').write_text('precious')
    (tmp_path / 'lock').symlink_to('precious')
    with pytest.raises(StorageError):
        files.Lock(tmp_path / 'lock').acquire()
    assert (tmp_path / 'precious').read_text() == 'precious'


def test_a_lock_that_cannot_be_had_keeps_no_descriptor(tmp_path: Path) -> None:
    """Who asks for a held lock again and again leaves no file open."""
    holder, other = files.Lock(tmp_path / 'lock'), files.Lock(tmp_path / 'lock')
    holder.acquire()
    before = len(os.listdir('/proc/self/fd'))  # noqa: PTH208 - counted, not read
    for _ in range(20):
        assert other.acquire() == b''
    assert len(os.listdir('/proc/self/fd')) == before  # noqa: PTH208
    holder.release()


def test_a_long_path_has_a_short_name(tmp_path: Path) -> None:
    """A name that no unix socket could have goes through a short one, to the same file."""
    folder = tmp_path / ('x' * 120)
    folder.mkdir()
    with files.short_name(folder / 'socket') as name:
        assert len(name) <= 107
        Path(name).write_text('here')
    assert (folder / 'socket').read_text() == 'here'
    with files.short_name(Path('/short')) as name:
        assert name == '/short'


# -- threads -----------------------------------------------------------------------------------------------------


async def test_file_work_once_begun_is_waited_for(tmp_path: Path) -> None:
    """A caller that is cancelled in the middle of file work goes on only when that work is done."""
    disk = Disk()
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        begun.set()
        go_on.wait(30)
        done.append('work')

    async def call() -> None:
        try:
            await disk.run(work)
        finally:
            done.append('caller')

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        assert await anyio.to_thread.run_sync(begun.wait, 10)
        tasks.cancel_scope.cancel()
        go_on.set()
    assert done == ['work', 'caller']


async def test_file_work_is_done_although_its_caller_was_cancelled_before() -> None:
    """What is asked for under a cancellation, to leave the files whole for example, is done, also after a wait."""
    disk = Disk(threads=1)
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        assert go_on.wait(30)

    async def second() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await disk.run(done.append, 'work')

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(disk.run, first)
        assert await anyio.to_thread.run_sync(begun.wait, 10)
        tasks.start_soon(second)
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    assert done == ['work']


async def test_only_so_many_at_once() -> None:
    """No more threads work side by side than the disk was given."""
    disk = Disk(threads=2)
    lock = threading.Lock()
    running = 0
    most = 0
    both = threading.Barrier(2)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(30)
        with lock:
            running -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(disk.run, work)
    assert most == 2
