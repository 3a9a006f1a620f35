"""The model of a disk: what a sync makes durable, for certain and no more, and what a power cut may leave besides."""

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import system_calls
from disk_model import Disk, power_cuts
from disk_nodes import PAGE, Change, Fates, State, Tear, Written
from file_operations import (
    ChangeMode,
    Close,
    Link,
    MakeFolder,
    Moment,
    Open,
    Operation,
    Remove,
    Rename,
    Resize,
    Seek,
    Swap,
    Sync,
    Write,
)
from system_calls import NotUnderstood

ROOT = Path('/disk')


class Program:
    """A program that makes system calls on a model disk.

    Attributes:
        disk: The disk.
    """

    def __init__(self) -> None:
        self.disk = Disk(ROOT)
        self._lines = count(1)
        self._descriptors = count(3)
        self._paths: dict[int, str] = {}

    def begin(self, operation: Operation) -> None:
        self.disk.take(Moment(operation, ends=False))

    def end(self, operation: Operation) -> None:
        self.disk.take(Moment(operation, ends=True))

    def do(self, kind: Callable[..., Operation], **given: object) -> Operation:
        """Makes a call, which ends before anything else begins."""
        operation = kind(line=next(self._lines), **given)
        self.begin(operation)
        self.end(operation)
        return operation

    def open(self, name: str, *, creates: bool = False, empties: bool = False, appends: bool = False) -> int:
        descriptor = next(self._descriptors)
        path = self._paths[descriptor] = str(ROOT / name) if name else str(ROOT)
        flags = {'creates': creates, 'empties': empties, 'appends': appends}
        self.do(Open, path=path, descriptor=descriptor, mode=0o600, **flags)
        return descriptor

    def new(self, name: str, data: bytes = b'') -> int:
        """Makes a file; nothing of it is synced."""
        descriptor = self.open(name, creates=True)
        if data:
            self.write(descriptor, data, 0)
        return descriptor

    def write(self, descriptor: int, data: bytes, offset: int | None = None) -> Operation:
        return self.do(Write, **self.of(descriptor), data=data, offset=offset)

    def sync(self, descriptor: int, *, data_only: bool = False, failed: bool = False) -> None:
        self.do(Sync, **self.of(descriptor), data_only=data_only, failed=failed)

    def sync_folder(self, name: str = '') -> None:
        self.sync(self.open(name))

    def rename(self, name: str, to: str) -> None:
        self.do(Rename, path=str(ROOT / name), to=str(ROOT / to))
        self._paths = {
            number: str(ROOT / to) if path == str(ROOT / name) else path for number, path in self._paths.items()
        }

    def of(self, descriptor: int) -> dict[str, object]:
        return {'descriptor': descriptor, 'path': self._paths[descriptor]}

    def call(self, kind: Callable[..., Operation], descriptor: int, **given: object) -> Operation:
        """Returns a call that has not begun."""
        return kind(line=next(self._lines), **self.of(descriptor), **given)


@pytest.fixture
def program() -> Program:
    """A program on an empty disk."""
    return Program()


def files(state: State) -> dict[str, bytes | None]:
    """Returns the content of each file."""
    return {name: leaf.content for name, leaf in state.items()}


def outcomes(disk: Disk) -> list[dict[str, bytes | None]]:
    """Returns every state that whole changes make, kept or lost."""
    pending = disk.pending()
    assert len(pending) <= 12
    found: list[dict[str, bytes | None]] = []
    for chosen in range(1 << len(pending)):
        fates: Fates = {change: None for at, change in enumerate(pending) if chosen >> at & 1}
        state = files(disk.state(fates))
        if state not in found:
            found.append(state)
    return found


def certain(disk: Disk) -> dict[str, bytes | None]:
    """Returns what is there when everything is lost that can be."""
    return files(disk.state({}))


# -- syncs -------------------------------------------------------------------------------------------------------


def test_what_is_not_synced_may_be_there_or_not(program: Program) -> None:
    """Of a new file there may be nothing, its name, or its name and its bytes; never the bytes without a name."""
    program.new('a', b'text')
    assert outcomes(program.disk) == [{}, {'a': b''}, {'a': b'text'}]


def test_a_synced_file_may_have_no_name(program: Program) -> None:
    """To sync a file does not make its folder's entry durable."""
    program.sync(program.new('a', b'text'))
    assert outcomes(program.disk) == [{}, {'a': b'text'}]


def test_a_synced_folder_has_the_names_and_not_the_bytes(program: Program) -> None:
    """To sync a folder makes its entries durable, and nothing of the files."""
    program.new('a', b'text')
    program.sync_folder()
    assert outcomes(program.disk) == [{'a': b''}, {'a': b'text'}]


def test_a_file_and_its_folder_synced_are_certain(program: Program) -> None:
    """With both there is one state only."""
    program.sync(program.new('a', b'text'), data_only=True)
    program.sync_folder()
    assert (outcomes(program.disk), program.disk.pending()) == ([{'a': b'text'}], [])


def test_a_folder_is_there_once_the_one_above_is_synced(program: Program) -> None:
    """What is synced within a folder is lost with it where nobody has synced the folder above."""
    program.do(MakeFolder, path='/disk/sub', mode=0o700)
    program.sync(program.new('sub/a', b'text'))
    program.sync_folder('sub')
    assert outcomes(program.disk) == [{}, {'sub': None, 'sub/a': b'text'}]
    program.sync_folder()
    assert outcomes(program.disk) == [{'sub': None, 'sub/a': b'text'}]


def test_only_what_had_ended_before_a_sync_began_is_covered(program: Program) -> None:
    """A write that begins or ends while the sync runs is not made durable by it."""
    descriptor = program.new('a', b'1')
    program.sync_folder()
    running = program.call(Write, descriptor, data=b'2', offset=1)
    sync = program.call(Sync, descriptor, data_only=True, failed=False)
    program.begin(running)
    program.begin(sync)
    program.end(running)
    program.write(descriptor, b'3', 2)
    assert certain(program.disk) == {'a': b''}
    program.end(sync)
    assert certain(program.disk) == {'a': b'1'}
    assert {'a': b'1\0' + b'3'} in outcomes(program.disk)
    program.sync(descriptor)
    assert outcomes(program.disk) == [{'a': b'123'}]


def test_a_sync_that_runs_has_synced_nothing_yet(program: Program) -> None:
    """Until it returns, everything may still be lost."""
    descriptor = program.new('a', b'1')
    program.sync_folder()
    program.begin(program.call(Sync, descriptor, data_only=True, failed=False))
    assert certain(program.disk) == {'a': b''}


def test_a_call_that_runs_may_have_happened(program: Program) -> None:
    """What it changes may be on the disk from its beginning on."""
    descriptor = program.new('a')
    program.sync_folder()
    program.begin(program.call(Write, descriptor, data=b'1', offset=0))
    assert outcomes(program.disk) == [{'a': b''}, {'a': b'1'}]


def test_fdatasync_leaves_the_mode(program: Program) -> None:
    """It makes size and bytes durable; fsync the mode too."""
    descriptor = program.new('a', b'1')
    program.sync_folder()
    program.do(ChangeMode, file=descriptor, mode=0o644)
    program.sync(descriptor, data_only=True)
    pending = program.disk.pending()
    assert [program.disk.state(dict.fromkeys(kept))['a'].mode for kept in (pending[:0], pending)] == [0o600, 0o644]
    program.sync(descriptor)
    assert program.disk.state({})['a'].mode == 0o644


def test_another_descriptor_syncs_the_file(program: Program) -> None:
    """A sync is of the file, whoever wrote to it, and also once it has another name."""
    writer = program.new('a', b'1')
    program.rename('a', 'b')
    program.do(Close, descriptor=writer)
    program.sync(program.open('b'))
    program.sync_folder()
    assert outcomes(program.disk) == [{'b': b'1'}]


# -- a sync that failed ------------------------------------------------------------------------------------------


def test_after_a_failed_sync_a_second_one_saves_nothing(program: Program) -> None:
    """The bytes may be lost though the next sync succeeds; what was written after is saved."""
    descriptor = program.new('a', b'12')
    program.sync_folder()
    program.sync(descriptor, data_only=True, failed=True)
    program.write(descriptor, b'3', 2)
    program.sync(descriptor)
    assert outcomes(program.disk) == [{'a': b'\0\0' + b'3'}, {'a': b'123'}]


def test_bytes_written_again_after_a_failed_sync_are_saved(program: Program) -> None:
    """In place and from memory: then the next sync is one."""
    descriptor = program.new('a', b'12')
    program.sync_folder()
    program.sync(descriptor, data_only=True, failed=True)
    program.write(descriptor, b'12', 0)
    assert certain(program.disk) == {'a': b''}
    program.sync(descriptor, data_only=True)
    assert outcomes(program.disk) == [{'a': b'12'}]


def test_a_failed_sync_of_a_folder_loses_no_name(program: Program) -> None:
    """The next one makes it durable."""
    program.new('a')
    folder = program.open('')
    program.sync(folder, failed=True)
    assert certain(program.disk) == {}
    program.sync(folder)
    assert certain(program.disk) == {'a': b''}


# -- names -------------------------------------------------------------------------------------------------------


def _old_and_new(program: Program) -> None:
    program.sync(program.new('a', b'old'))
    program.sync_folder()
    program.sync(program.new('.tmp', b'new'))


def test_a_rename_is_atomic(program: Program) -> None:
    """The old content or the new one, never none, and never both names gone."""
    _old_and_new(program)
    program.rename('.tmp', 'a')
    for state in outcomes(program.disk):
        assert state['a'] in (b'old', b'new')
        assert state['a'] == b'old' or '.tmp' not in state
    program.sync_folder()
    assert outcomes(program.disk) == [{'a': b'new'}]


def test_a_rename_may_come_before_the_bytes(program: Program) -> None:
    """Where the new file is not synced, its name can take the old one's place empty."""
    program.sync(program.new('a', b'old'))
    program.sync_folder()
    program.new('.tmp', b'new')
    program.rename('.tmp', 'a')
    assert {'a': b''} in outcomes(program.disk)
    program.sync_folder()
    assert outcomes(program.disk) == [{'a': b''}, {'a': b'new'}]


def test_a_rename_between_folders_is_one_change(program: Program) -> None:
    """Both of its names change or none, and syncing either folder makes both durable."""
    program.do(MakeFolder, path='/disk/sub', mode=0o700)
    program.sync(program.new('a', b'1'))
    program.sync_folder()
    program.rename('a', 'sub/b')
    assert outcomes(program.disk) == [{'a': b'1', 'sub': None}, {'sub': None, 'sub/b': b'1'}]
    program.sync_folder('sub')
    assert outcomes(program.disk) == [{'sub': None, 'sub/b': b'1'}]


def test_a_swap_of_names_is_atomic(program: Program) -> None:
    """Two files take each other's name, both or neither."""
    for name in 'ab':
        program.sync(program.new(name, name.encode()))
    program.sync_folder()
    program.do(Swap, path='/disk/a', to='/disk/b')
    assert outcomes(program.disk) == [{'a': b'a', 'b': b'b'}, {'a': b'b', 'b': b'a'}]
    program.sync_folder()
    assert outcomes(program.disk) == [{'a': b'b', 'b': b'a'}]


def test_names_come_in_any_order(program: Program) -> None:
    """A newer name may be there without an older one."""
    program.new('a')
    program.new('b')
    assert {'b': b''} in outcomes(program.disk)


def test_two_names_are_one_file(program: Program) -> None:
    """What is written by one name is there by the other; removing one leaves the other."""
    descriptor = program.new('a')
    program.do(Link, path='/disk/a', to='/disk/b')
    program.write(descriptor, b'1', 0)
    everything = program.disk.everything()
    assert files(everything) == {'a': b'1', 'b': b'1'}
    assert everything['a'].number == everything['b'].number
    program.do(Remove, path='/disk/a')
    assert files(program.disk.everything()) == {'b': b'1'}
    program.sync_folder()
    program.sync(descriptor_of(program, 'b'))
    assert outcomes(program.disk) == [{'b': b'1'}]


def descriptor_of(program: Program, name: str) -> int:
    """Opens a file."""
    return program.open(name)


def test_a_removal_may_be_lost(program: Program) -> None:
    """A removed file may be back, with all that was synced of it."""
    program.sync(program.new('a', b'1'))
    program.sync_folder()
    program.do(Remove, path='/disk/a')
    assert outcomes(program.disk) == [{'a': b'1'}, {}]
    program.sync_folder()
    assert outcomes(program.disk) == [{}]


# -- bytes -------------------------------------------------------------------------------------------------------


def test_writes_come_in_any_order(program: Program) -> None:
    """A later one without an earlier one leaves a hole of zeros."""
    descriptor = program.new('a')
    program.sync_folder()
    program.write(descriptor, b'12', 0)
    program.write(descriptor, b'34', 2)
    assert outcomes(program.disk) == [{'a': b''}, {'a': b'12'}, {'a': b'\0\0' + b'34'}, {'a': b'1234'}]


def test_a_write_is_torn_at_any_byte(program: Program) -> None:
    """What is behind the tear is missing, or zeros; what stood there before stays."""
    descriptor = program.new('a', b'old')
    program.sync(descriptor)
    program.sync_folder()
    program.write(descriptor, b'NEWER', 0)
    (change,) = program.disk.pending()
    found = {
        (length, zeros): files(program.disk.state({change: Tear(length, zeros)}))['a']
        for length in range(5)
        for zeros in (False, True)
    }
    assert [found[length, False] for length in range(5)] == [b'old', b'Nld', b'NEd', b'NEW', b'NEWE']
    assert [found[length, True] for length in range(5)] == [
        b'old\0\0',
        b'Nld\0\0',
        b'NEd\0\0',
        b'NEW\0\0',
        b'NEWE\0',
    ]


def test_the_pages_of_a_write_come_in_any_order(program: Program) -> None:
    """A write over the end of a page is two changes."""
    descriptor = program.new('a', b'x' * (PAGE - 1))
    program.sync(descriptor)
    program.sync_folder()
    program.write(descriptor, b'123', PAGE - 1)
    ends = sorted((state['a'] or b'')[PAGE - 1 :] for state in outcomes(program.disk))
    assert ends == [b'', b'\x0023', b'1', b'123']


def test_a_file_that_is_cut_off(program: Program) -> None:
    """The bytes behind may be back until it is synced."""
    descriptor = program.new('a', b'1234')
    program.sync(descriptor)
    program.sync_folder()
    program.do(Resize, file=descriptor, size=1)
    assert outcomes(program.disk) == [{'a': b'1234'}, {'a': b'1'}]
    program.sync(descriptor, data_only=True)
    assert outcomes(program.disk) == [{'a': b'1'}]
    program.do(Resize, file=descriptor, size=3, grows=True)
    assert outcomes(program.disk) == [{'a': b'1'}, {'a': b'1\0\0'}]


def test_a_descriptor_has_its_place(program: Program) -> None:
    """write(2) goes on where the last one ended, lseek(2) moves it, O_APPEND writes at the end."""
    descriptor = program.new('a')
    program.write(descriptor, b'12')
    program.write(descriptor, b'34')
    program.do(Seek, descriptor=descriptor, offset=1)
    program.write(descriptor, b'x')
    program.write(program.open('a', appends=True), b'5')
    assert files(program.disk.everything()) == {'a': b'1x345'}
    program.open('a', empties=True)
    assert files(program.disk.everything()) == {'a': b''}


# -- what is left out, and what is not understood ---------------------------------------------------------------


def test_elsewhere_is_left_out(program: Program) -> None:
    """Another folder is not followed, nor is SQLite's shared memory."""
    program.do(Open, path='/diskette', descriptor=90, mode=0o600, creates=True, empties=False, appends=False)
    program.do(Write, path='/diskette', descriptor=90, data=b'1', offset=0)
    program.new('index-shm')
    assert (files(program.disk.everything()), program.disk.pending()) == ({}, [])


def test_a_descriptor_that_is_not_known_is_an_error(program: Program) -> None:
    """What would be followed wrongly is not followed."""
    program.new('a')
    with pytest.raises(NotUnderstood):
        program.do(Write, path='/disk/a', descriptor=90, data=b'1', offset=0)
    descriptor = program.new('b')
    with pytest.raises(NotUnderstood):
        program.do(Write, path='/disk/a', descriptor=descriptor, data=b'1', offset=0)
    with pytest.raises(NotUnderstood):
        program.do(Open, path='/disk/c', descriptor=91, mode=0, creates=False, empties=False, appends=False)


# -- choosing ----------------------------------------------------------------------------------------------------


def _chance() -> random.Random:
    return random.Random(1)  # noqa: S311 - no secret


def _shape(pending: list[Change], fates: Fates) -> str:
    marks = ('-' if change not in fates else '+' if fates[change] is None else '~' for change in pending)
    return ''.join(marks)


def test_what_is_tried(program: Program) -> None:
    """Nothing, all, each prefix with its last write whole and torn, all but one, one alone, and then by chance."""
    descriptor = program.new('a')
    program.write(descriptor, b'12', 0)
    program.write(descriptor, b'34', 2)
    pending = program.disk.pending()
    tried = [_shape(pending, fates) for fates in power_cuts(pending, _chance(), most=9, chances=40)]
    assert tried[:8] == ['---', '+++', '---', '+--', '+--', '+~-', '++-', '++~']
    assert tried[8:14] == ['-++', '+--', '+-+', '-+-', '++-', '--+']
    assert len(tried) == 54
    assert {'~~~', '-~~'} & set(tried) == set()  # a new name is not torn
    assert {'-~-', '-~+', '+~~'} & set(tried)
    torn = [
        tear
        for fates in power_cuts(pending, _chance(), most=9, chances=40)
        for change, tear in fates.items()
        if tear is not None and isinstance(change, Written)
    ]
    assert {tear.length for tear in torn} == {0, 1}
    assert {tear.zeros for tear in torn} == {False, True}


def test_many_changes_are_tried_in_part(program: Program) -> None:
    """Of many changes only some of each kind are tried, by chance; where nothing is open there is one state."""
    assert [dict(fates) for fates in power_cuts([], _chance(), most=9, chances=9)] == [{}, {}]
    for number in range(50):
        program.new(str(number))
    pending = program.disk.pending()
    assert len(list(power_cuts(pending, _chance(), most=5, chances=7))) == 2 + 2 * 5 + 2 * 5 + 7


# -- against the kernel ------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, threading
root = sys.argv[1]
def at(name): return os.path.join(root, name)
os.mkdir(at('sub'), 0o700)
one = os.open(at('one'), os.O_RDWR | os.O_CREAT, 0o600)
os.write(one, b'hello "world"\\n\\xff')
os.lseek(one, 2, os.SEEK_SET)
os.writev(one, [b'L', b'L'])
os.pwritev(one, [b'x' * 5000, b'y'], 4000)
two = os.dup2(one, 77)
os.close(one)
os.write(two, b'O')
os.ftruncate(two, 9000)
os.fchmod(two, 0o640)
os.rename(at('one'), at('sub/first'))
os.link(at('sub/first'), at('second'))
os.posix_fallocate(os.open(at('room'), os.O_RDWR | os.O_CREAT, 0o600), 10, 20)
try:
    os.mkdir(at('sub'))
except FileExistsError:
    pass
def append():
    log = os.open(at('log'), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for _ in range(20):
        os.write(log, b'line\\n')
        try: os.fsync(log)
        except OSError: pass
threads = [threading.Thread(target=append) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
os.truncate(at('log'), 200)
with open(at('text'), 'w') as file: file.write('old')
with open(at('text'), 'w') as file: file.write('a text')
with open(at('gone'), 'w') as file: file.write('x')
os.unlink(at('gone'))
folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
os.fsync(folder)
"""


@pytest.fixture
def strace() -> None:
    """Skips a test where there is no strace."""
    if shutil.which('strace') is None:
        if os.environ.get('TRADING_AGENT_TEST_ALL'):
            pytest.fail('strace is not installed')
        pytest.skip('strace is not installed')


@pytest.fixture
def traced(tmp_path: Path, strace: None) -> tuple[Path, list[Moment]]:
    """A folder that a program has worked in, and what strace saw of it."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    (tmp_path / 'program.py').write_text(PROGRAM)
    command = [sys.executable, '-S', str(tmp_path / 'program.py'), str(folder)]
    before = os.umask(0o022)
    try:
        system_calls.record(command, tmp_path / 'trace', inject=['fsync:error=EIO:when=3'])
    finally:
        os.umask(before)
    return folder, system_calls.read(tmp_path / 'trace', folder)


def test_the_model_sees_what_the_kernel_did(traced: tuple[Path, list[Moment]]) -> None:
    """All changes kept, the model's disk is the kernel's, with bytes, modes and links, whatever threads did at once."""
    folder, moments = traced
    disk = Disk(folder)
    for moment in moments:
        disk.take(moment)
    model = {name: (leaf.content, leaf.mode) for name, leaf in disk.everything().items()}
    kernel = {
        str(path.relative_to(folder)): (None if path.is_dir() else path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in folder.rglob('*')
    }
    assert model == kernel
    assert disk.everything()['second'].number == disk.everything()['sub/first'].number
    begun = [moment.operation for moment in moments if not moment.ends]
    assert sorted(map(id, begun)) == sorted(id(moment.operation) for moment in moments if moment.ends)
    syncs = [operation for operation in begun if isinstance(operation, Sync)]
    assert len(syncs) == 3 * 20 + 1
    assert sum(sync.failed for sync in syncs) == 3  # the third of each thread


def test_a_write_that_is_not_followed_is_an_error(tmp_path: Path) -> None:
    """A file that is written to by memory, or has a new kind of name, ends the reading."""
    folder = system_calls.hexadecimal('/disk')
    file = system_calls.hexadecimal('/disk/a')
    told = {
        'mapped': f'7 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3<{file}>, 0) = 0x7f0000000000',
        'link': f'7 symlink("\\x61", "{file}") = 0',
        'cut': f'7 pwrite64(3<{file}>, "\\x61"..., 9, 0) = 9',
        'running': f'7 fsync(3<{folder}> <unfinished ...>',
    }
    trace = tmp_path / 'trace'
    for line in told.values():
        trace.write_text(line + '\n')
        with pytest.raises(NotUnderstood):
            system_calls.read(trace, Path('/disk'))
    private = told['mapped'].replace('MAP_SHARED', 'MAP_PRIVATE')
    trace.write_text(f'{private}\n7 symlink("\\x61", "{file}") = -1 EEXIST (File exists)\n')
    assert system_calls.read(trace, Path('/disk')) == []


def test_a_program_that_fails_is_told(tmp_path: Path, strace: None) -> None:
    """What it said is in the error."""
    command = [sys.executable, '-S', '-c', 'print("it went wrong"); raise SystemExit(3)']
    with pytest.raises(RuntimeError, match='ended with 3:\nit went wrong'):
        system_calls.record(command, tmp_path / 'trace')


def test_a_program_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strace: None) -> None:
    """It is told, and neither it nor strace is left running."""
    monkeypatch.setattr(system_calls, 'SECONDS', 0.5)
    command = [sys.executable, '-S', '-c', f'import time; time.sleep(600)  # {tmp_path}']
    with pytest.raises(RuntimeError, match='did not end'):
        system_calls.record(command, tmp_path / 'trace')
    deadline = time.monotonic() + 30
    while any(os.fsencode(tmp_path) in line for line in _command_lines()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _command_lines() -> Iterator[bytes]:
    for process in Path('/proc').glob('[0-9]*'):
        with suppress(OSError):
            yield (process / 'cmdline').read_bytes()
