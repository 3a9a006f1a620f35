"""Who holds a workspace, found out without taking its lock: a daemon that starts at the same time is not disturbed."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

LOCK_NAME = 'trading-agent.lock'
"""The file whose lock a daemon has for as long as it lives."""

_LOCKS = Path('/proc/locks')
_LONGEST_BYTES = 1 << 16


class Holder(msgspec.Struct, frozen=True):
    """How the lock of a workspace was found. Two that are equal mean that nobody took or left it in between.

    Attributes:
        is_there: Whether somebody has it.
        pid: Who wrote into the file last, or None.
        started_at: When that one was started, as it wrote; may be empty.
        written: The file's inode, size and time of writing in nanoseconds; None where it is missing.
    """

    is_there: bool
    pid: int | None
    started_at: str
    written: tuple[int, int, int] | None

    @property
    def in_words(self) -> str:
        """Who it is."""
        if self.pid is None:
            return 'a daemon that is just starting'
        return f'the process {self.pid}' + (f', started at {self.started_at}' if self.started_at else '')


def find_holder(workspace: Path) -> Holder:
    """Looks at who holds a workspace; nothing is changed, and no lock is taken."""
    path = workspace / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Holder(is_there=False, pid=None, started_at='', written=None)
    try:
        status = os.fstat(descriptor)
        pid, started_at = None, ''
        with suppress(OSError):
            pid, started_at = said_in(os.pread(descriptor, _LONGEST_BYTES, 0))
    finally:
        os.close(descriptor)
    is_there = _is_locked(status.st_ino) or (pid is not None and _has_open(pid, path))
    written = status.st_ino, status.st_size, status.st_mtime_ns
    return Holder(is_there=is_there, pid=pid, started_at=started_at, written=written)


def said_in(data: bytes) -> tuple[int | None, str]:
    """Returns who wrote what is in the lock's file, and when that one was started."""
    try:
        said = msgspec.json.decode(data, type=dict[str, object])
    except (ValueError, RecursionError):
        return None, ''
    pid, started_at = said.get('pid'), said.get('started_at')
    return (pid if isinstance(pid, int) and pid > 0 else None), started_at if isinstance(started_at, str) else ''


def _is_locked(inode: int) -> bool:
    """Returns whether the system knows of a lock, see proc(5): `1: FLOCK ADVISORY WRITE 708 08:01:2147625 0 EOF`."""
    try:
        lines = _LOCKS.read_text().split('\n')
    except OSError:
        return False
    fields = [line.split() for line in lines if ' FLOCK ' in line and ' WRITE ' in line and '->' not in line]
    return any(field.endswith(f':{inode}') for each in fields for field in each)


def _has_open(pid: int, path: Path) -> bool:
    """Returns whether a process has the file open; for where the system numbers files in another way than `stat`."""
    folder = Path('/proc', str(pid), 'fd')
    with suppress(OSError):
        wanted = os.path.realpath(path)
        for name in os.listdir(folder):  # noqa: PTH208 - names, not paths
            with suppress(OSError):
                if os.readlink(folder / name) == wanted:  # noqa: PTH115 - as it is written there
                    return True
    return False
