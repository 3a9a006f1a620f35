"""Files that survive a crash: durable append, atomic replace, torn-tail repair, and the workspace's lock.

"Durable" means that the data is synced before the call returns, a new file's folder too. Every file is 0600 and
every folder 0700, whatever the umask. Every failure is a `StorageError` that names the file.
"""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trading_agent import swap, syncs
from trading_agent.errors import StorageError

TEMPORARY = re.compile(r'\..+\.[0-9a-f]{8}\.tmp', re.DOTALL)
"""What a file is called here that is not finished yet; any other hidden one is somebody else's."""


@contextmanager
def storage_errors(operation: str, path: Path) -> Iterator[None]:
    """Raises whatever the system says within the block as a `StorageError` of this operation and path."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(operation, path, error) from error


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        # What is to last was synced before: what close(2) says of it now would take back what is on the disk.
        with suppress(OSError):
            os.close(descriptor)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, where they are missing, and syncs the folders they are in."""
    if os.path.isdir(path):  # noqa: PTH112 - asked before every append, and three times as quick
        return
    with storage_errors('make the folder', path):
        make_folder(path.parent)
        with suppress(FileExistsError):
            path.mkdir(0o700)
            path.chmod(0o700)  # whatever the umask took away
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Makes durable which files are in a folder."""
    with storage_errors('sync the folder', path), _opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def append(
    path: Path,
    data: bytes | Callable[[int], bytes],
    *,
    sync: bool = True,
    synced: int | None = None,
    once: bool = False,
) -> int:
    """Appends whole lines to a file, made where it is missing, and syncs them.

    A torn line at the end, whoever left it there, is closed first, so that it never swallows the next one. When
    the sync fails, the bytes are written again from memory and synced: after a failed fdatasync(2) a second one may
    succeed although the data is gone, see `syncs`. Threads and processes that append to one file take turns.

    Args:
        path: The file. Its folder exists.
        data: One or more lines, each ended by a newline; or what makes them from the file's size in bytes, called
            while nobody else can append.
        sync: False leaves the write to the system: it survives the process, but maybe not the machine.
        synced: How much of the file is on the disk for certain; None for all of it. What stands behind that is
            written again with the new lines: an earlier sync of it may have failed.
        once: Whether the lines are unlike all others: where the file ends with them, an earlier try failed and could
            not even be taken back, and they are written in that place again.

    Returns:
        The file's size now, in bytes.

    Raises:
        StorageError: It could not be written or synced. The file holds what it held before.
    """
    with storage_errors('append to', path), _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        end = os.fstat(descriptor).st_size
        data = data(end) if callable(data) else data
        start = min(end, synced) if sync and synced is not None else end
        begin = max(0, min(start, end - (len(data) if once else 0) - 1))
        tail = os.pread(descriptor, end - begin, begin) if end else b''
        if once and tail[-len(data) - 1 :] in (data, b'\n' + data):
            end, tail = end - len(data), tail[: -len(data)]
            start = min(start, end)
        if not end:
            os.fchmod(descriptor, 0o600)
        elif not tail.endswith(b'\n'):
            data = b'\n' + data
        unsynced = tail[start - begin :] + data
        try:
            syncs.write_all(descriptor, unsynced, start)
            if sync:
                syncs.sync_or_rewrite(descriptor, unsynced, start, path, end - start)
                if not end:  # the first line: until now the file's name may be in memory only
                    sync_folder(path.parent)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, min(end, os.fstat(descriptor).st_size))
            raise
        return end + len(data)


def seal(path: Path) -> bool:
    """Closes a torn last line and makes sure that what can be read of the last lines is on the disk too.

    Returns:
        Whether it was torn. A missing file is not.
    """
    with storage_errors('seal', path), suppress(FileNotFoundError), _opened(path, os.O_RDWR) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        end = os.fstat(descriptor).st_size
        start = max(0, end - (1 << 20))
        tail = os.pread(descriptor, end - start, start)
        torn = bool(tail) and not tail.endswith(b'\n')
        closed = tail + (b'\n' if torn else b'')
        # A sync that failed under an earlier process may have left these bytes in memory only, marked as clean.
        there = syncs.on_disk(descriptor, end - start, start)
        if there == tail:
            last_line = tail.rfind(b'\n', 0, len(tail) - 1) + 1
            syncs.write_all(descriptor, closed[last_line:], start + last_line)
            os.fdatasync(descriptor)
        else:
            same = next(
                (at for at, (one, other) in enumerate(zip(there, tail, strict=False)) if one != other), len(there)
            )
            syncs.write_again(descriptor, closed[same:], start + same, len(tail) - same)
        sync_folder(path.parent)
        return torn
    return False


def create(path: Path, data: bytes = b'') -> None:
    """Creates a file, durably: with all of its content, or not at all.

    Raises:
        FileExistsError: There is one already. It is a `StorageError` too.
        StorageError: It could not be created; there is none.
    """
    with storage_errors('create', path):
        try:
            _put(path, data, lambda new: os.link(new, path))
        except FileExistsError as error:
            raise FileExists('create', path, error) from error
        try:
            sync_folder(path.parent)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise


def _put(path: Path, data: bytes, place: Callable[[Path], None]) -> None:
    """Writes a new file beside another and lets `place` give it its name; once more, where a `sweep` took it."""
    for is_last in (False, True):
        temporary = path.with_name(f'.{path.name}.{secrets.token_hex(4)}.tmp')
        try:
            _write_new(temporary, data)
            place(temporary)
        except FileNotFoundError:
            if is_last:
                raise
        else:
            return
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _write_new(path: Path, data: bytes) -> None:
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        os.fchmod(descriptor, 0o600)
        syncs.write_all(descriptor, data, 0)
        os.fsync(descriptor)


class FileExists(StorageError, FileExistsError):
    """Raised when a file that was to be new is there already."""


def replace(
    path: Path, data: bytes, *, sync_name: bool = True, check: Callable[[bytes | None], None] | None = None
) -> None:
    """Puts `data` in place of a file's content, whole or not at all.

    The data is synced before the rename and the folder after it.

    Args:
        path: The file. Its folder exists.
        data: The new content.
        sync_name: False spares the folder's sync: after a power cut the old content may be back.
        check: Where others write to the file too: is given what the new content is to replace, in the very instant of
            the rename, or None where there is no file; what it raises leaves the old content.

    Raises:
        StorageError: It could not be done; the old content stays. Where only the folder's sync failed, the new one
            is there, but a power cut may bring the old one back.
    """
    with storage_errors('replace', path):
        if check is None:
            _put(path, data, lambda new: os.replace(new, path))  # noqa: PTH105 - the system call by its own name
        else:
            _put(path, data, lambda new: swap.put_in_place(new, path, check))
        if sync_name:
            sync_folder(path.parent)


def link(path: Path, second_name: Path) -> bool:
    """Gives a file a second name, durably; returns False when another file has that name."""
    with storage_errors('link', second_name):
        try:
            os.link(path, second_name)
        except FileExistsError:
            if not path.samefile(second_name):
                return False
        sync_folder(second_name.parent)
        return True


def move(path: Path, destination: Path) -> None:
    """Renames a file, durably on both ends."""
    with storage_errors('move', path):
        path.rename(destination)
        sync_folder(destination.parent)
        if destination.parent != path.parent:
            sync_folder(path.parent)


def remove(path: Path) -> None:
    """Removes a file, durably; a missing one is no error."""
    with storage_errors('remove', path):
        path.unlink(missing_ok=True)
        sync_folder(path.parent)


def read(path: Path) -> bytes | None:
    """Returns a file's content, or None where there is none.

    Raises:
        StorageError: It is there and cannot be read. That is not "missing".
    """
    with storage_errors('read', path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def names_in(path: Path) -> list[str]:
    """Returns the names in a folder, none where it is missing."""
    with storage_errors('list', path):
        try:
            return os.listdir(path)  # noqa: PTH208 - names, not paths
        except FileNotFoundError:
            return []


class Lock:
    """An exclusive lock on a file, for as long as the process lives: the system lets go of it on any death."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bytes | None:
        """Takes the lock and returns None; or returns what the one who has it wrote into the file."""
        with storage_errors('lock', self._path):
            # What is there is overwritten: not a file elsewhere that a link leads to.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.fchmod(descriptor, 0o600)
            except OSError as error:
                held_by = os.pread(descriptor, 1 << 16, 0) if isinstance(error, BlockingIOError) else None
                os.close(descriptor)
                if held_by is None:
                    raise
                return held_by
            self._descriptor = descriptor
            return None

    def write(self, data: bytes) -> None:
        """Says in the file who holds the lock. Call it after `acquire`."""
        assert self._descriptor is not None  # noqa: S101 - a misuse, not a fault
        with storage_errors('write', self._path):
            syncs.write_all(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))

    def release(self) -> None:
        """Lets go of the lock; the file stays, empty."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            with suppress(OSError):
                os.close(self._descriptor)  # whatever it says, the descriptor is gone, and the lock with it
            self._descriptor = None


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yields another name of `path` that fits where a name is at most 107 bytes: a unix socket's address.

    See unix(7); the name goes through an open descriptor of the folder and is good only within the block.
    """
    if len(os.fsencode(path)) <= 107:
        yield str(path)
        return
    with storage_errors('open the folder', path.parent):
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f'/proc/self/fd/{descriptor}/{path.name}'
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Removes the temporary files that a killed writer left in a folder; a living one makes its own once more."""
    for name in filter(TEMPORARY.fullmatch, names_in(folder)):
        remove(folder / name)
