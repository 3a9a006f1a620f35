"""Runs a program under strace and reads what it did to files: typed operations, each with its beginning and its end.

What is seen here is seen below the program: whatever it calls, and whatever it believes to have synced, these are the
system calls that the kernel got. See strace(1), and the man page of each call.
"""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from file_operations import (
    ChangeMode,
    Close,
    Duplicate,
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

SECONDS = 120.0
"""How long a program may take under strace."""

_DATA = 'write pwrite64 writev pwritev pwritev2 truncate ftruncate fallocate'
_SYNCS = 'fsync fdatasync'
_NAMES = 'rename renameat renameat2 link linkat unlink unlinkat mkdir mkdirat rmdir symlink symlinkat'
_DESCRIPTORS = 'open openat creat close dup dup2 dup3 lseek chmod fchmod fchmodat'
_NOT_MODELLED = 'openat2 mknod mknodat sendfile copy_file_range splice mmap fchmodat2'
"""What would write to files in a way that is not read here: such a call is an error, unless it does nothing to one."""

# With the mark in front a machine may lack the call.
TRACED = ','.join(f'?{name}' for name in f'{_DATA} {_SYNCS} {_NAMES} {_DESCRIPTORS} {_NOT_MODELLED}'.split())


class NotUnderstood(Exception):
    """Raised when the trace has something that may have changed a file, and that is not known here."""


def record(
    command: Sequence[str],
    trace: Path,
    *,
    inject: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs a program under strace, with all of its threads.

    Args:
        command: The program.
        trace: Where the trace is written.
        inject: What strace puts in place of calls, each as its `--inject` says: `fdatasync:error=EIO:when=2+3`.
        environment: What is added to the environment.

    Raises:
        RuntimeError: The program failed, or did not end in time.
    """
    calls = ['-e', f'trace={TRACED}', *(f'--inject={each}' for each in inject)]
    # All text in hexadecimal, whole; each descriptor with the path of its file.
    strace = ['strace', '-f', '--seccomp-bpf', '-y', '-xx', '-s', str(1 << 28), '-o', str(trace), *calls, '--']
    process = subprocess.Popen(
        [*strace, *command],
        cwd='/',
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f'{command} did not end under strace within {SECONDS} s') from error
        finally:
            with suppress(ProcessLookupError):  # strace and what it traces are the group
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f'{command} ended with {process.returncode}:\n{output.decode(errors="replace")[-4000:]}')


# -- reading ---------------------------------------------------------------------------------------------------

_LINE = re.compile(r'(?P<thread>\d+) +(?P<name>\w+)\((?P<given>.*?)(?: <unfinished \.\.\.>|\) += (?P<result>.*))$')
_RESUMED = re.compile(r'(?P<thread>\d+) +<\.\.\. (?P<name>\w+) resumed>(?P<more>.*)\) += (?P<result>.*)$')
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r'(?P<number>\d+|AT_FDCWD)(?:<(?P<path>(?:\\x[0-9a-f]{2})*)>(?P<deleted>\(deleted\))?)?')


class _Call(NamedTuple):
    """One call as strace tells it: what it was given, and what came of it."""

    line: int
    name: str
    given: list[str]
    result: str

    @property
    def value(self) -> int:
        """What it returned, -1 for an error."""
        found = re.match(r'-?\d+', self.result)
        if found is None:
            raise NotUnderstood(f'line {self.line}: {self.name} = {self.result}')
        return int(found[0])


def hexadecimal(text: str) -> str:
    """Returns a text as strace writes it."""
    return ''.join(f'\\x{byte:02x}' for byte in os.fsencode(text))


def read(trace: Path, folder: Path) -> list[Moment]:
    """Returns what was done to files within a folder, in the order in which it began and ended.

    A call that failed did nothing, and is left out; but a sync that failed is told.

    Args:
        trace: What strace wrote.
        folder: The folder, as the program named it: absolute and without links.

    Raises:
        NotUnderstood: Something else was done to these files.
    """
    within = hexadecimal(str(folder))
    moments: list[tuple[int, Operation, bool]] = []
    open_calls: dict[str, tuple[int, str, list[str]]] = {}
    with trace.open() as lines:
        for number, line in enumerate(lines, 1):
            if within not in line and 'resumed>' not in line:
                continue
            begun = _LINE.match(line)
            if begun is not None and begun['result'] is None:
                open_calls[begun['thread']] = number, begun['name'], begun['given'].split(', ')
                continue
            if begun is not None:
                call = _Call(number, begun['name'], begun['given'].split(', '), begun['result'])
            else:
                resumed = _RESUMED.match(line)
                before = open_calls.pop(resumed['thread'], None) if resumed is not None else None
                if resumed is None or before is None:
                    continue
                call = _Call(before[0], before[1], before[2], resumed['result'])
            for operation in _operations(call):
                moments += [(call.line, operation, False), (number, operation, True)]
    if open_calls:
        raise NotUnderstood(f'these calls have no end: {[name for _, name, _ in open_calls.values()]}')
    # Stable: a call in one line ends before the next line begins.
    return [Moment(operation, ends) for _, operation, ends in sorted(moments, key=lambda moment: moment[0])]


def _operations(call: _Call) -> Iterator[Operation]:
    failed = call.value < 0
    if call.name in ('fsync', 'fdatasync'):
        number, path = _descriptor(call, 0)
        data_only = call.name == 'fdatasync'
        yield Sync(line=call.line, descriptor=number, path=path, data_only=data_only, failed=failed)
    elif not failed:
        reader = _READERS.get(call.name)
        if reader is None:
            raise NotUnderstood(f'line {call.line}: {call.name} is not known')
        operation = reader(call)
        if operation is not None:
            yield operation


def _descriptor(call: _Call, at: int) -> tuple[int, str]:
    found = _DESCRIPTOR.match(call.given[at])
    if found is None or found['number'] == 'AT_FDCWD':
        raise NotUnderstood(f'line {call.line}: {call.name} of {call.given[at]}')
    return int(found['number']), '' if found['deleted'] else _plain(found['path'] or '')


def _plain(text: str) -> str:
    return os.fsdecode(bytes.fromhex(text.replace('\\x', '')))


def _bytes(call: _Call, text: str) -> bytes:
    parts = _TEXT.findall(text)
    if any(cut for _, cut in parts):
        raise NotUnderstood(f'line {call.line}: strace has cut what {call.name} was given')
    return b''.join(bytes.fromhex(part.replace('\\x', '')) for part, _ in parts)


def _path(call: _Call, at: int, folder: int | None = None) -> str:
    """Returns a path that a call was given; `folder` is the place of the descriptor that it goes out from."""
    path = os.fsdecode(_bytes(call, call.given[at]))
    if path.startswith('/'):
        return path
    found = _DESCRIPTOR.match(call.given[folder]) if folder is not None else None
    if found is None or not found['path']:
        raise NotUnderstood(f'line {call.line}: {call.name} of {path}, which is no absolute path')
    return f'{_plain(found["path"])}/{path}'


def _opened(call: _Call) -> Operation:
    at = 1 if call.name == 'openat' else 0
    flags = set(call.given[at + 1].split('|')) if call.name != 'creat' else {'O_WRONLY', 'O_CREAT', 'O_TRUNC'}
    if 'O_TMPFILE' in flags:
        raise NotUnderstood(f'line {call.line}: a file without a name')
    return Open(
        line=call.line,
        path=_path(call, at, 0 if at else None),
        descriptor=call.value,
        mode=int(call.given[-1], 8) if 'O_CREAT' in flags else 0,
        creates='O_CREAT' in flags,
        empties='O_TRUNC' in flags,
        appends='O_APPEND' in flags,
    )


def _written(call: _Call) -> Operation:
    number, path = _descriptor(call, 0)
    data = _bytes(call, ', '.join(call.given[1:]))[: call.value]  # it may have taken less than it was given
    at = {'pwrite64': -1, 'pwritev': -1, 'pwritev2': -2}.get(call.name)
    offset = int(call.given[at]) if at is not None else None
    return Write(line=call.line, descriptor=number, path=path, data=data, offset=offset)


def _allocated(call: _Call) -> Operation | None:
    number, _ = _descriptor(call, 0)
    if call.given[1] == 'FALLOC_FL_KEEP_SIZE':
        return None
    if call.given[1] != '0':
        raise NotUnderstood(f'line {call.line}: fallocate with {call.given[1]}')
    return Resize(line=call.line, file=number, size=int(call.given[2]) + int(call.given[3]), grows=True)


def _renamed(call: _Call) -> Operation:
    if call.name == 'rename':
        return Rename(line=call.line, path=_path(call, 0), to=_path(call, 1))
    path, to = _path(call, 1, 0), _path(call, 3, 2)
    if call.name == 'renameat2' and call.given[4] == 'RENAME_EXCHANGE':
        return Swap(line=call.line, path=path, to=to)
    if call.name == 'renameat2' and call.given[4] not in ('0', 'RENAME_NOREPLACE'):
        raise NotUnderstood(f'line {call.line}: renameat2 with {call.given[4]}')
    return Rename(line=call.line, path=path, to=to)


def _linked(call: _Call) -> Operation:
    if call.name == 'link':
        return Link(line=call.line, path=_path(call, 0), to=_path(call, 1))
    return Link(line=call.line, path=_path(call, 1, 0), to=_path(call, 3, 2))


def _removed(call: _Call) -> Operation:
    at = 1 if call.name == 'unlinkat' else 0
    return Remove(line=call.line, path=_path(call, at, 0 if at else None))


def _folder_made(call: _Call) -> Operation:
    at = 1 if call.name == 'mkdirat' else 0
    return MakeFolder(line=call.line, path=_path(call, at, 0 if at else None), mode=int(call.given[at + 1], 8))


def _mode_changed(call: _Call) -> Operation:
    if call.name == 'fchmod':
        return ChangeMode(line=call.line, file=_descriptor(call, 0)[0], mode=int(call.given[1], 8))
    at = 1 if call.name == 'fchmodat' else 0
    return ChangeMode(line=call.line, file=_path(call, at, 0 if at else None), mode=int(call.given[at + 1], 8))


def _truncated(call: _Call) -> Operation:
    file = _descriptor(call, 0)[0] if call.name == 'ftruncate' else _path(call, 0)
    return Resize(line=call.line, file=file, size=int(call.given[1]))


def _mapped(call: _Call) -> Operation | None:
    """A file that is written to by memory cannot be followed; the shared memory of SQLite's index is left out."""
    _, path = _descriptor(call, 4)
    if {'PROT_WRITE', 'MAP_SHARED'} <= {*call.given[2].split('|'), *call.given[3].split('|')} and path[-4:] != '-shm':
        raise NotUnderstood(f'line {call.line}: {path} is written to by memory')
    return None


def _closed(call: _Call) -> Operation:
    return Close(line=call.line, descriptor=_descriptor(call, 0)[0])


def _duplicated(call: _Call) -> Operation:
    return Duplicate(line=call.line, descriptor=_descriptor(call, 0)[0], second=call.value)


def _sought(call: _Call) -> Operation:
    return Seek(line=call.line, descriptor=_descriptor(call, 0)[0], offset=call.value)


_READERS: dict[str, Callable[[_Call], Operation | None]] = {
    **dict.fromkeys(('open', 'openat', 'creat'), _opened),
    **dict.fromkeys(('write', 'pwrite64', 'writev', 'pwritev', 'pwritev2'), _written),
    **dict.fromkeys(('truncate', 'ftruncate'), _truncated),
    **dict.fromkeys(('rename', 'renameat', 'renameat2'), _renamed),
    **dict.fromkeys(('link', 'linkat'), _linked),
    **dict.fromkeys(('unlink', 'unlinkat', 'rmdir'), _removed),
    **dict.fromkeys(('mkdir', 'mkdirat'), _folder_made),
    **dict.fromkeys(('chmod', 'fchmod', 'fchmodat'), _mode_changed),
    **dict.fromkeys(('dup', 'dup2', 'dup3'), _duplicated),
    'fallocate': _allocated,
    'mmap': _mapped,
    'close': _closed,
    'lseek': _sought,
}
