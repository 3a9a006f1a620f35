"""A folder that is given one content after the other, so quickly that tens of thousands are tried."""

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from disk_nodes import State

_EPOCH = 1_700_000_000 * 10**9


def _time_of(content: bytes) -> int:
    """Returns the time that a file is given: before this program, so that any later write to it shows."""
    return _EPOCH + zlib.crc32(content)


class StateFolder:
    """A folder that takes on states.

    Only the files that are not as they have to be are written: those that another state had otherwise, and those that
    were written to since.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._there: dict[str, tuple[int, bytes, int]] = {}

    def put(self, state: State) -> None:
        """Makes it hold a state, and nothing else."""
        found = dict(self._scan(str(self.path), ''))
        for name in sorted(found.keys() - state.keys(), reverse=True):
            _remove(self.path / name, found.pop(name))
        first_name: dict[int, str] = {}
        for name, leaf in state.items():
            path, status = f'{self.path}/{name}', found.get(name)
            if leaf.content is None:
                self._put_folder(path, status, leaf.mode)
            elif leaf.number in first_name:
                if status is not None:
                    _remove(Path(path), status)
                os.link(f'{self.path}/{first_name[leaf.number]}', path)  # thousands of times
            else:
                first_name[leaf.number] = name
                if not self._is_as_left(name, status, leaf.content, leaf.mode):
                    if status is not None:
                        _remove(Path(path), status)
                    self._there[name] = _write(path, leaf.content, leaf.mode), leaf.content, leaf.mode

    def _scan(self, path: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                yield prefix + entry.name, status
                if stat.S_ISDIR(status.st_mode):
                    yield from self._scan(entry.path, f'{prefix}{entry.name}/')

    def _put_folder(self, path: str, status: os.stat_result | None, mode: int) -> None:
        if status is not None and not stat.S_ISDIR(status.st_mode):
            _remove(Path(path), status)
            status = None
        if status is None:
            os.mkdir(path, mode)  # noqa: PTH102 - thousands of times
        if status is None or stat.S_IMODE(status.st_mode) != mode:
            os.chmod(path, mode)  # noqa: PTH101 - likewise

    def _is_as_left(self, name: str, status: os.stat_result | None, content: bytes, mode: int) -> bool:
        if status is None or status.st_nlink > 1 or not stat.S_ISREG(status.st_mode):
            return False
        inode, was, mode_was = self._there.get(name, (0, b'', 0))
        return (
            (inode, was, mode_was) == (status.st_ino, content, mode)
            and status.st_mtime_ns == _time_of(content)
            and stat.S_IMODE(status.st_mode) == mode
        )


def _remove(path: Path, status: os.stat_result) -> None:
    """Removes a file, or a folder; what is in that was removed before or goes with it."""
    if not stat.S_ISDIR(status.st_mode):
        path.unlink(missing_ok=True)
        return
    for each in path.iterdir():
        _remove(each, each.lstat())
    path.rmdir()


def _write(path: str, content: bytes, mode: int) -> int:
    """Writes a new file; returns its inode."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, content)
        os.fchmod(descriptor, mode)
        os.utime(descriptor, ns=(_EPOCH, _time_of(content)))
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)
