"""The lock of the index: shared by who opens its file, held alone by who puts another one in its place."""

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trading_agent.conversation.stores.database import DatabaseBusy
from trading_agent.files import storage_errors
from trading_agent.index.faults import IndexStopped

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX

_PAUSE_SECONDS = 0.005


@contextmanager
def holding(path: Path, mode: int, seconds: float, stopped: Callable[[], bool]) -> Iterator[None]:
    """Holds the lock within the block; the system lets go of it on any death.

    Args:
        path: The lock's file, made where it is missing; never the file that it is about.
        mode: `SHARED` or `EXCLUSIVE`.
        seconds: How long to wait for others.
        stopped: Is asked now and then whether to give up.

    Raises:
        DatabaseBusy: Others held it all the time.
        IndexStopped: `stopped` said so.
        StorageError: The file cannot be made or opened.
    """
    with storage_errors('lock', path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not os.fstat(descriptor).st_mode & stat.S_IRUSR:  # the umask took it away: nobody could open it again
            with storage_errors('lock', path):
                os.fchmod(descriptor, 0o600)
        deadline = time.monotonic() + seconds
        while not _taken(descriptor, mode):
            if stopped():
                raise IndexStopped('the work on the index was stopped')
            if time.monotonic() > deadline:
                raise DatabaseBusy('open', path)
            time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
