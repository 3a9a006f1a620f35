"""Whether the index for search can be read, and how far it is behind the files; not a byte of it is touched.

SQLite would make files beside a database that it only reads. So one that nobody has open is opened as one that does
not change, and the shared memory of one that is in use is only read. See https://www.sqlite.org/uri.html.
"""

import os
import sqlite3
import stat
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from trading_agent.audit.findings import Reports
from trading_agent.conversation.stores.database import DatabaseBusy
from trading_agent.errors import StorageError
from trading_agent.index import schema
from trading_agent.index.database import FILE_NAME
from trading_agent.index.faults import IndexDamaged, in_words
from trading_agent.index.feed import behind, places
from trading_agent.index.session_files import Snapshot

_TRIES = 10
_PAUSE_SECONDS = 0.05


class _Moved(Exception):
    """Raised when the index was put to use, or replaced, while it was looked at."""


def look_at_index(workspace: Path, reports: Reports) -> None:
    """Writes down how the index is. It is a copy: that it is missing or behind is no fault."""
    path = workspace / FILE_NAME
    report = reports.of(FILE_NAME, 'index')
    for _ in range(_TRIES):
        if not os.path.lexists(path):
            report.note('there is none yet: the daemon or the next search makes it')
            return
        try:
            _look(workspace, path, reports)
        except _Moved:
            time.sleep(_PAUSE_SECONDS)
            continue
        except IndexDamaged as error:
            report.problem(f'is damaged: {error}; it is a copy, and is made anew', mend='index')
        except DatabaseBusy:
            report.note('is in use: it was not looked at')
        except StorageError as error:
            report.problem(f'cannot be read: {error}')
        return
    report.note('is in use: it was not looked at')


def _look(workspace: Path, path: Path, reports: Reports) -> None:
    report, before = reports.of(FILE_NAME, 'index'), _seen(path)
    if not stat.S_ISREG(path.lstat().st_mode):
        raise IndexDamaged('it is no regular file')
    log, shared = (_size(path.with_name(path.name + ending)) for ending in ('-wal', '-shm'))
    if log and not shared:
        raise _Moved
    how = 'mode=ro&readonly_shm=1' if log else 'mode=ro&immutable=1'
    try:
        with in_words('read', path):
            lines, left, desks = _read(workspace, f'{path.absolute().as_uri()}?{how}')
    except (IndexDamaged, StorageError):
        if _seen(path) != before:
            raise _Moved from None
        raise
    if not log and _seen(path) != before:
        raise _Moved
    report.records = lines
    for desk in desks:
        if not os.path.lexists(workspace / 'desks' / desk):
            reports.of(f'desks/{desk}', 'folder').problem('is missing: the index has sessions of this desk')
    if left is None:
        report.note('is of another version: the daemon or the next search makes it anew')
    elif left:
        report.note(f'is {left} bytes behind the files: the daemon or the next search reads on')


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _seen(path: Path) -> list[tuple[int, ...]]:
    """Returns what tells whether others have used the file."""
    found: list[tuple[int, ...]] = []
    for ending in ('', '-wal'):
        try:
            status = path.with_name(path.name + ending).lstat()
        except OSError:
            found.append(())
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def _read(workspace: Path, address: str) -> tuple[int, int | None, Iterable[str]]:
    """Returns how many lines are in the index, how many bytes are not, and the desks that it knows.

    Of one of another version there is None instead of the bytes.
    """
    snapshot = Snapshot(workspace)
    with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
        connection.execute('BEGIN')
        if schema.version_of(connection) != schema.VERSION:
            return 0, None, ()
        schema.check_structure(connection)
        known = places(connection)
    lines = sum(place.lines for of_session in known.values() for place in of_session.values())
    return lines, sum(behind(session, known) for session in snapshot.found), sorted({desk for desk, _ in known})
