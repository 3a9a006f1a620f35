"""What can be wrong with the index's file, split by what is done about it."""

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trading_agent.conversation.stores.database import DatabaseBusy
from trading_agent.errors import StorageError, TradingAgentError

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_DISK = (
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
_LEAST_FREE_BYTES = 256 << 10


class IndexDamaged(TradingAgentError):
    """Raised when the file cannot be used as an index; whoever catches it sets it aside and makes a new one."""


class IndexStopped(TradingAgentError):
    """Raised when work on the index was interrupted by whoever asked for it. What was not finished left no trace."""


def is_busy(error: sqlite3.Error) -> bool:
    """Returns whether others have the file locked for the moment."""
    return _code(error) in _BUSY


def _code(error: Exception) -> int:
    """Returns SQLite's primary result code, https://www.sqlite.org/rescode.html."""
    return getattr(error, 'sqlite_errorcode', sqlite3.SQLITE_ERROR) & 0xFF


@contextmanager
def in_words(operation: str, path: Path) -> Iterator[None]:
    """Turns SQLite's errors, and the system's, into those that say what to do next."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _translated(operation, path, error) from error
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(operation, path, error) from error


def _translated(operation: str, path: Path, error: Exception) -> TradingAgentError:
    code = _code(error)
    extended = getattr(error, 'sqlite_errorcode', code)
    if code == sqlite3.SQLITE_INTERRUPT:
        return IndexStopped('the work on the index was stopped')
    if code in _BUSY:
        return DatabaseBusy(operation, path)
    if code not in _DISK or extended == sqlite3.SQLITE_IOERR_SHORT_READ:
        return IndexDamaged(str(error))
    number = errno.EIO
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_is_full(path)):
        number = errno.ENOSPC
    elif code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        number = errno.EACCES
    elif code == sqlite3.SQLITE_NOMEM:
        number = errno.ENOMEM
    return StorageError(operation, path, OSError(number, str(error)))


def _disk_is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < _LEAST_FREE_BYTES
    except OSError:
        return False
