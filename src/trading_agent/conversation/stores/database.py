"""The SQLite file under a store: private, shared by threads, forks and processes, and never another program's.

See https://www.sqlite.org/howtocorrupt.html for what is avoided here.
"""

import errno
import os
import shutil
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from trading_agent import files
from trading_agent.errors import StorageError

FORMAT = 1
"""The version of the table's layout, in `PRAGMA user_version`."""

APPLICATION = 0x74617373
"""Marks a file as ours, in `PRAGMA application_id`."""

_EMPTY = (0, 0, 0)
_IDENTITY = """
    SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
    FROM pragma_application_id, pragma_user_version
"""
# Ids are blobs: what SQLite does with a NUL inside text is undefined.
_CREATE = (
    "CREATE TABLE sessions (id BLOB PRIMARY KEY NOT NULL CHECK (typeof(id) = 'blob'), data TEXT NOT NULL)",
    'PRAGMA application_id = 0x74617373',
    'PRAGMA user_version = 1',
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_LEAST_FREE_BYTES = 256 << 10


class DatabaseBusy(StorageError):
    """Raised when others kept a database locked for longer than the timeout. Nothing was changed: try again."""

    def __init__(self, operation: str, path: Path) -> None:
        super().__init__(operation, path, OSError(errno.EBUSY, 'another process keeps it locked'))
        self.hint = 'try again; if it lasts, look for a process that hangs while it writes there'


class DatabaseUnusable(StorageError):
    """Raised when a file is damaged, another program's or from a newer version: a person has to mend that.

    The file stays as it is.
    """

    def __init__(self, operation: str, path: Path, what: str, hint: str = '') -> None:
        super().__init__(operation, path, OSError(errno.EINVAL, what))
        self.hint = hint or (
            f'move {path} and what is beside it (-wal, -shm) away, then put a backup in its place, '
            f'or save what can be read with `sqlite3 {path.name} .recover`'
        )


class Database:
    """One file of sessions, used by one thread at a time.

    It is opened when it is needed, and again when the file at its path has become another one: whoever moved it away
    or put a backup in its place would otherwise get saves that are in no file.

    Args:
        path: The file, as an absolute path.
        timeout: How long to wait for other processes, in seconds.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._forking = False
        _let_go_before_forks(self)

    def query(self, operation: str, sql: str, *parameters: bytes | str) -> list[tuple[Any, ...]]:
        """Runs one statement and returns its rows; `operation` is what an error says could not be done."""
        return self._run(operation, sql, parameters)[0]

    def change(self, operation: str, sql: str, *parameters: bytes | str) -> int:
        """Runs one statement, a transaction of its own, and returns how many rows it changed."""
        return self._run(operation, sql, parameters)[1]

    def _run(self, operation: str, sql: str, parameters: tuple[bytes | str, ...]) -> tuple[list[tuple[Any, ...]], int]:
        with self._lock, _in_words(operation, self._path):
            cursor = self._opened().execute(sql, parameters)
            return cursor.fetchall(), cursor.rowcount

    def open(self) -> None:
        """Opens the file, made where it is missing, so that what is wrong with it is told now."""
        with self._lock, _in_words('open', self._path):
            self._opened()

    def close(self) -> None:
        """Lets go of the file."""
        with self._lock:
            self._close()

    def before_fork(self) -> None:
        """Lets go of the file until the fork is done.

        A child cannot use its parent's connection, nor open one of its own beside an inherited one: SQLite would
        take the parent's locks for the child's, and the parent's closing would remove the log that the child's saves
        are in.
        """
        self._lock.acquire()
        self._forking = True
        self._close()

    def after_fork(self) -> None:
        """Goes on, in the parent and in the child."""
        if self._forking:
            self._forking = False
            self._lock.release()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._identity_of_file() != self._file:
            self._close()
        if self._connection is None:
            _make_private(self._path)
            connection = sqlite3.connect(
                self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
            try:
                _prepare(connection, self._path, self._timeout)
                self._file = self._identity_of_file()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _identity_of_file(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino


def _let_go_before_forks(database: Database) -> None:
    reference = weakref.ref(database)

    def call(step: Callable[[Database], None]) -> None:
        if (living := reference()) is not None:
            step(living)

    after = partial(call, Database.after_fork)
    os.register_at_fork(before=partial(call, Database.before_fork), after_in_parent=after, after_in_child=after)


def _make_private(path: Path) -> None:
    """Makes an empty file of mode 0600 where there is none; SQLite gives its companions the mode that it has.

    A file that is there is not opened: closing it would drop every lock that this process has on it.
    """
    files.make_folder(path.parent)
    if not path.exists():
        with suppress(FileExistsError):  # another process was quicker
            files.create(path)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DatabaseUnusable('open', path, 'it is no regular file', 'name a file as db_path')
    if status.st_size == 0:
        path.chmod(0o600)
    elif status.st_size == 1:  # SQLite would take it for an empty one
        raise DatabaseUnusable('open', path, 'file is not a database')


def _prepare(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    """Makes sure that the file is ours before anything in it is touched; an empty one becomes ours."""
    (identity,) = connection.execute(_IDENTITY).fetchall()
    if identity == _EMPTY:
        connection.execute('BEGIN IMMEDIATE')
        (identity,) = connection.execute(_IDENTITY).fetchall()
        if identity == _EMPTY:  # no other process was quicker
            for statement in _CREATE:
                connection.execute(statement)
        connection.execute('COMMIT')
        (identity,) = connection.execute(_IDENTITY).fetchall()
    application, version, _ = identity
    if application != APPLICATION:
        raise DatabaseUnusable('open', path, 'it is a database of another program', 'name another file as db_path')
    if version != FORMAT:
        raise DatabaseUnusable(
            'open',
            path,
            f'its format is version {version}, and this trading-agent knows version {FORMAT}',
            'use the trading-agent that wrote it, or name another file as db_path',
        )
    _use_write_ahead_log(connection, timeout)
    connection.execute('PRAGMA synchronous = FULL')


def _use_write_ahead_log(connection: sqlite3.Connection, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute('PRAGMA journal_mode = WAL').fetchall()
        except sqlite3.OperationalError as error:  # SQLite itself does not wait here
            if _code(error) not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary result code, https://www.sqlite.org/rescode.html."""
    return getattr(error, 'sqlite_errorcode', sqlite3.SQLITE_ERROR) & 0xFF


@contextmanager
def _in_words(operation: str, path: Path) -> Iterator[None]:
    """Turns SQLite's errors, and the system's, into errors that name the file and say what to do."""
    with files.storage_errors(operation, path):
        try:
            yield
        except sqlite3.DataError:  # larger than SQLite can hold: the session is at fault, not the file
            raise
        except sqlite3.Error as error:
            raise _storage_error(operation, path, error) from error


def _storage_error(operation: str, path: Path, error: sqlite3.Error) -> StorageError:
    code = _code(error)
    if code in _BUSY:
        return DatabaseBusy(operation, path)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_is_full(path)):
        number = errno.ENOSPC
    elif code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM):
        number = errno.EIO
    elif code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        number = errno.EACCES
    else:
        return DatabaseUnusable(operation, path, str(error))
    return _with_hint(StorageError(operation, path, OSError(number, str(error))))


def _with_hint(error: StorageError) -> StorageError:
    if error.errno == errno.ENOSPC:
        error.hint = 'free some space and try again; what was saved before is still there'
    elif error.errno == errno.EACCES:
        error.hint = 'make the file and its folder readable and writable for the user that this runs as'
    return error


def _disk_is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < _LEAST_FREE_BYTES
    except OSError:
        return False
