"""File systems to break: ext4 and XFS in a file that is mounted by loop, and small ones in memory.

All of them are mounted in a mount namespace of their own, mount_namespaces(7): nobody else sees them, and when the
last process in it is gone, in whatever way, nothing is left mounted and no loop device in use.
"""

import ctypes
import fcntl
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

T = TypeVar('T')
Kind = Literal['ext4', 'xfs']

SIZES: dict[Kind, int] = {'ext4': 64 << 20, 'xfs': 320 << 20}
"""How large an image is, in bytes; its file has holes. mkfs.xfs makes none below 300 MB."""

PAGE = 4096

_SHUT_DOWN = 0x8004587D
"""_IOR('X', 125, u32): XFS_IOC_GOINGDOWN, and on ext4 EXT4_IOC_SHUTDOWN."""

_TRIES = 100
"""How often a ballast tries to take what is left, where others take it too."""

_LOG_FLUSHED, _NO_LOG_FLUSHED = 1, 2

_FREE_LINE = re.compile(r'^  Free blocks: (.+)$', re.MULTILINE)
_FREE = re.compile(r'(\d+)(?:-(\d+))?')

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE, _PR_SET_PDEATHSIG, _SIGKILL = 0x20000, 0x4000, 0x40000, 1, 9


def _libc(function: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f'{function}: {os.strerror(number)}')


def die_with_parent() -> None:
    """Lets this process be killed when the thread that started it is gone, prctl(2)."""
    _libc('prctl', _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def apart(function: Callable[[], T]) -> T:
    """Calls a function in a thread with mounts of its own, and returns what it returns.

    Threads and processes that it starts share them. They are gone with it.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _libc('unshare', _CLONE_NEWNS)
            _libc('mount', None, b'/', None, _MS_REC | _MS_PRIVATE, None)
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it was asked for
            errors.append(error)

    thread = threading.Thread(target=run, name='apart')
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def missing(*kinds: Kind) -> str:
    """Returns why no file systems of these kinds can be mounted here; empty where they can. Without any: in memory."""
    if os.geteuid():
        return 'only root may mount file systems'
    for kind in kinds:
        if shutil.which(f'mkfs.{kind}') is None:
            package = {'ext4': 'e2fsprogs', 'xfs': 'xfsprogs'}[kind]
            return f'mkfs.{kind} is missing (Debian: apt-get install {package})'

    def try_out() -> None:
        with in_memory(sum(SIZES.values())) as folder:
            for kind in kinds:
                Image(kind, folder).make()
                with Image(kind, folder).mounted():
                    pass

    try:
        apart(try_out)
    except (OSError, subprocess.CalledProcessError) as error:
        return f'nothing can be mounted here: {error}'
    return ''


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def in_memory(size: int) -> Iterator[Path]:
    """Yields a folder that is a file system in memory of so many bytes; call it within `apart`."""
    with tempfile.TemporaryDirectory(prefix='faults-') as folder:
        _run('mount', '-t', 'tmpfs', '-o', f'size={size},mode=700', 'tmpfs', folder)
        try:
            yield Path(folder)
        finally:
            _run('umount', '--lazy', folder)


class Image:
    """A file system in a file; use it within `apart`.

    Args:
        kind: Of which kind.
        folder: Where its file is, and the folder that it is mounted on.
        size: How many bytes it has; None for as many as its kind needs.

    Attributes:
        folder: What it is mounted on.
    """

    def __init__(self, kind: Kind, folder: Path, size: int | None = None) -> None:
        self._kind = kind
        self._file = folder / f'{kind}.image'
        self._size = SIZES[kind] if size is None else size
        self.folder = folder / kind

    def make(self, *options: str) -> None:
        """Makes it anew, empty; the options are those of mkfs."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._file.unlink(missing_ok=True)
        with self._file.open('wb') as file:
            file.truncate(self._size)
        _run(f'mkfs.{self._kind}', '-q', *(['-F'] if self._kind == 'ext4' else []), *options, self._file)

    def make_room_for_all_but_data(self) -> None:
        """Has its file hold all that mkfs made: whatever fails for want of room are writes to what was free then."""
        told = subprocess.run(['dumpe2fs', self._file], check=True, capture_output=True, text=True).stdout
        (block_size,) = map(int, re.findall(r'^Block size: +(\d+)$', told, re.MULTILINE))
        (blocks,) = map(int, re.findall(r'^Block count: +(\d+)$', told, re.MULTILINE))
        place = 0
        with self._file.open('r+b') as file:
            for first, last in [*_FREE.findall(','.join(_FREE_LINE.findall(told))), (blocks, '')]:
                if int(first) > place:
                    os.posix_fallocate(file.fileno(), place * block_size, (int(first) - place) * block_size)
                place = int(last or first) + 1

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        """Yields the folder that it is mounted on; what was cut off is played back from its journal."""
        _run('mount', '-o', 'loop', self._file, self.folder)
        self.folder.chmod(0o700)
        # Of a write of which only a part has room the loop device says that all is well: each page is one of its own.
        device = os.major(self.folder.stat().st_dev), os.minor(self.folder.stat().st_dev)
        Path(f'/sys/dev/block/{device[0]}:{device[1]}/queue/max_sectors_kb').write_text(str(PAGE >> 10))
        try:
            yield self.folder
        finally:
            _run('umount', self.folder)

    def shut_down(self, *, log_flushed: bool = False) -> None:
        """Cuts its power: nothing that is not on it by now ever gets there.

        Args:
            log_flushed: Whether its journal is written before, but not the data of files.
        """
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            flag = _LOG_FLUSHED if log_flushed else _NO_LOG_FLUSHED
            fcntl.ioctl(descriptor, _SHUT_DOWN, struct.pack('I', flag))
        finally:
            os.close(descriptor)

    def write_back(self) -> None:
        """Begins to write all that is not on it, as the system does by itself now and then; it may be cut off."""
        with suppress(OSError):
            descriptor = os.open(self.folder, os.O_RDONLY)
            try:
                _libc('syncfs', descriptor)
            finally:
                os.close(descriptor)


class Ballast:
    """A file that leaves so many pages of a small file system free.

    Args:
        folder: The file system.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / 'ballast'
        self._folder = folder

    def leave(self, pages: int) -> None:
        """Lets so many pages be free: the file grows or shrinks."""
        for _ in range(_TRIES):
            with self.path.open('ab') as file, suppress(OSError):  # somebody took space in this moment
                status = os.statvfs(self._folder)
                size = file.tell() + (status.f_bfree - pages) * status.f_frsize
                if size < file.tell():
                    file.truncate(max(0, size))
                else:
                    os.posix_fallocate(file.fileno(), 0, max(1, size))
                return

    def remove(self) -> None:
        """Gives all of its space back."""
        self.path.unlink(missing_ok=True)
