"""The SQLite file of the index: private, shared by threads and processes, and replaced when it is damaged.

It is a copy, so that whoever finds it damaged moves it aside and makes an empty one; the others notice that the file
at its path is another one. Who does that holds `index.lock`, and who opens the file shares it: an empty file must
never be opened with the write-ahead log of the damaged one. See https://www.sqlite.org/howtocorrupt.html.
"""

import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from trading_agent import files
from trading_agent.files import storage_errors
from trading_agent.index import schema
from trading_agent.index.faults import IndexDamaged, IndexStopped, in_words, is_busy
from trading_agent.index.lock import EXCLUSIVE, SHARED, holding

T = TypeVar('T')

FILE_NAME = 'index.sqlite3'
LOCK_NAME = 'index.lock'

BUSY_SECONDS = 10.0
"""How long to wait for another process that writes, or opens the file."""

_WAIT_SECONDS = 0.05
_PAUSE_SECONDS = 0.005
_QUICK_SECONDS = 0.1
_COMPANIONS = ('', '-wal', '-shm')
_KEPT = 3
"""How many damaged files are kept."""

WrittenAt = tuple[tuple[int, ...] | None, tuple[int, ...] | None]
"""Size and time of the file and of its write-ahead log, as `stat` tells them; None for one that is missing."""

Identity = tuple[int, int]
"""The device and the inode of a file."""


class IndexFile:
    """The file, opened when it is needed, and again when it has become another one.

    Args:
        path: The file.
        on_damage: Is told where a damaged file was moved to, and what was wrong with it.
    """

    def __init__(self, path: Path, on_damage: Callable[[Path, str], None]) -> None:
        self.path = path
        self._on_damage = on_damage
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        self._as_left: WrittenAt | None = None
        self._touched = True
        self._others_wrote = True
        self._verify_from = 0.0
        self.stopped = False

    # -- using it ----------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self, operation: str) -> Iterator[sqlite3.Connection]:
        """Yields the connection to read by: all of it sees the index as it stood at one instant.

        Raises:
            IndexDamaged: It is no index, or damaged.
            IndexStopped: `stop` was called.
            StorageError: It cannot be read.
        """
        with self._using(operation) as connection:
            self._begin(connection, 'BEGIN')
            with _ended_by(connection, 'ROLLBACK'):
                yield connection

    @contextmanager
    def writing(self, operation: str) -> Iterator[sqlite3.Connection]:
        """Yields the connection within a transaction, which nobody else can write in between.

        Raises:
            IndexDamaged: It is no index, or damaged.
            IndexStopped: `stop` was called.
            DatabaseBusy: Another process writes all the time.
            StorageError: It cannot be written.
        """
        with self._using(operation) as connection:
            self._notice_others()
            self._begin(connection, 'BEGIN IMMEDIATE')
            with _ended_by(connection, 'COMMIT'):
                yield connection
            self._as_left = self._written_at()

    def read(self, operation: str, question: Callable[[sqlite3.Connection], T]) -> T:
        """Returns what a question about the index at one instant returns; raises what `reading` raises."""
        with self.reading(operation) as connection:
            return question(connection)

    @contextmanager
    def _using(self, operation: str) -> Iterator[sqlite3.Connection]:
        with self._lock, in_words(operation, self.path):
            yield self._opened()

    def _begin(self, connection: sqlite3.Connection, statement: str) -> None:
        def begin() -> None:
            connection.execute(statement)
            try:
                connection.execute('SELECT 1 FROM files LIMIT 1').fetchall()  # what is read is settled here
            except sqlite3.Error:
                connection.execute('ROLLBACK')
                raise

        self._patiently(begin)

    def _patiently(self, action: Callable[[], T]) -> T:
        """Tries again while others have the file locked: SQLite itself waits for a moment, so that a stop is heard."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            self.raise_if_stopped()
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """Ends what runs, also from another thread: it raises `IndexStopped`, as does every write from now on."""
        self.stopped = True
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.ProgrammingError):
                connection.interrupt()

    def raise_if_stopped(self) -> None:
        """Raises `IndexStopped` once `stop` was called."""
        if self.stopped:
            raise IndexStopped('the work on the index was stopped')

    def close(self) -> None:
        """Lets go of the file; whatever is used next opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                self._notice_others()
                connection.close()
                self._as_left = self._written_at()

    @property
    def exists(self) -> bool:
        """Whether something is at the path."""
        return os.path.lexists(self.path)

    @property
    def identity(self) -> Identity | None:
        """The file that is at the path now; None for none."""
        return _identity_of(self.path)

    @property
    def is_as_left(self) -> bool:
        """Whether nobody else has written anything since `read_all`."""
        self._notice_others()
        return not self._others_wrote

    def read_all(self) -> None:
        """Notes that all of it is read from now on, so that only what others write later makes it another one."""
        self._notice_others()
        self._as_left, self._others_wrote = self._written_at(), False

    def _notice_others(self) -> None:
        self._others_wrote |= self._as_left != self._written_at()
        # What others write comes by the log first; the file itself changes when that is full, or is closed.
        if self._as_left is None or self._as_left[0] != _written_at(self.path):
            self._touched = True

    def _written_at(self) -> WrittenAt:
        return _written_at(self.path), _written_at(self._beside('-wal'))

    # -- opening it --------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and _identity_of(self.path) != self._identity:
            self.close()
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        with self._holding(SHARED):
            found = self._identity = _identity_of(self.path)
            connection = self._connect() if found is not None else None
        if connection is not None:
            return connection
        with self._holding(EXCLUSIVE):
            if _identity_of(self.path) == found:  # nobody else was quicker
                self._remove()
                self._create()
            self._identity = _identity_of(self.path)
            connection = self._connect()
        if connection is None:
            raise IndexDamaged('another version of trading-agent makes its own index at the same time')
        return connection

    def _connect(self) -> sqlite3.Connection | None:
        """Opens the file; returns None where it is an index of another version.

        Raises:
            IndexDamaged: It is another program's, or nobody's.
        """
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise IndexDamaged('it is no regular file')
        address = f'{self.path.absolute().as_uri()}?mode=rw'
        connection = sqlite3.connect(
            address, uri=True, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            version = self._patiently(partial(schema.prepare, connection))
            if version == schema.VERSION:
                return connection
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    def _remove(self) -> None:
        """Removes an index of another version, or what is left beside one that is gone."""
        for companion in _COMPANIONS:
            self._beside(companion).unlink(missing_ok=True)

    def _create(self) -> None:
        """Makes an empty index, which nobody sees before it is whole. Call it with the lock held."""
        temporary = self.path.with_name(f'.{self.path.name}.tmp')
        for companion in (*_COMPANIONS, '-journal'):
            temporary.with_name(temporary.name + companion).unlink(missing_ok=True)
        files.create(temporary)
        connection = sqlite3.connect(temporary, isolation_level=None)
        try:
            connection.execute('BEGIN')
            schema.create(connection)
            connection.execute('COMMIT')
            connection.execute('PRAGMA journal_mode = WAL').fetchall()
        finally:
            connection.close()
        temporary.rename(self.path)

    def _holding(self, mode: int) -> AbstractContextManager[None]:
        return holding(self.path.with_name(LOCK_NAME), mode, BUSY_SECONDS, lambda: self.stopped)

    def _beside(self, companion: str) -> Path:
        return self.path.with_name(self.path.name + companion)

    # -- mending it --------------------------------------------------------------------------------------------

    def set_aside(self, reason: str) -> None:
        """Moves the damaged file aside and makes an empty one, unless another process has done so.

        Raises:
            StorageError: It could not be moved, or no new one be made.
        """
        with self._lock:
            damaged = self._identity
            self.close()
            with in_words('set aside', self.path), self._holding(EXCLUSIVE):
                if _identity_of(self.path) != damaged or damaged is None:
                    return
                stamp = f'.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}'
                for companion in ('-wal', '-shm', ''):
                    with suppress(FileNotFoundError):
                        self._beside(companion).rename(self._beside(stamp + companion))
                self._forget_oldest()
                self._create()
        self._on_damage(self._beside(stamp), reason)

    def _forget_oldest(self) -> None:
        """Keeps a fault that comes back from filling the disk with copies of a copy."""
        pattern = re.compile(re.escape(self.path.name) + r'\.damaged-\d{8}T\d{12}Z')
        stamped = sorted(filter(pattern.fullmatch, files.names_in(self.path.parent)), reverse=True)
        for name in stamped[_KEPT:]:
            for companion in _COMPANIONS:
                with suppress(OSError):  # a folder that was in its place stays
                    self.path.with_name(name + companion).unlink(missing_ok=True)

    def verify(self) -> None:
        """Reads through the structure of the whole file, where anybody else has written to it since this object has.

        What a connection has read it keeps, so that it would not see what became of the file below it. A large file
        takes a while: a twentieth of the time at most is spent on this.

        Raises:
            IndexDamaged: It is damaged.
            StorageError: It cannot be read.
        """
        with self._lock:
            began = time.monotonic()
            self._notice_others()
            if not self._touched or began < self._verify_from:
                return
            self.close()
            with self._using('check') as connection:
                schema.check_structure(connection)
            self._as_left, self._touched = self._written_at(), False
            seconds = time.monotonic() - began
            self._verify_from = began + (20 * seconds if seconds > _QUICK_SECONDS else 0)


def _identity_of(path: Path) -> Identity | None:
    with storage_errors('look at', path), suppress(FileNotFoundError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _written_at(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _ended_by(connection: sqlite3.Connection, statement: str) -> Iterator[None]:
    """Ends a transaction: by the statement where the block comes to its end, else by taking it back."""
    try:
        yield
        connection.execute(statement)
    except BaseException:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute('ROLLBACK')
        raise
