"""Sessions in a SQLite file."""

import sqlite3
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trading_agent.conversation.stores.base import (
    InvalidSession,
    SessionStore,
    decode_data,
    encode_data,
    encode_id,
)
from trading_agent.conversation.stores.database import Database, DatabaseBusy, DatabaseUnusable

_SAVE = 'INSERT INTO sessions (id, data) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET data = excluded.data'


class SQLiteStore(SessionStore):
    """Keeps sessions in one SQLite file, for several threads and processes at once.

    A session that was saved survives kill -9 and power loss. The file is 0600, and so are its companions `…-wal` and
    `…-shm`, which belong to it: copy it only after `close`. The folder is made where it is missing.

    Example:
        with SQLiteStore('sessions.db') as store:
            store.save('morning', {'system': 'You watch NSE.', 'messages': []})
        SQLiteStore('sessions.db').load('morning')  # tomorrow, in another process

    Args:
        db_path: The file. A relative path counts from the folder that is current now.
        timeout: How long to wait for another process that is writing, in seconds.

    Attributes:
        db_path: The file, as an absolute path.

    Raises:
        DatabaseBusy: Another process was writing all the time: try again.
        DatabaseUnusable: The file is damaged, another program's, or from a newer version. It stays as it is.
        StorageError: It could not be opened or made.
        ValueError: `db_path` is `:memory:`, which is what `InMemoryStore` is for.
    """

    def __init__(self, db_path: str | Path = 'agent_sessions.db', *, timeout: float = 30.0) -> None:
        if str(db_path) == ':memory:':
            raise ValueError('a SQLiteStore is a file: use InMemoryStore() to keep sessions in memory')
        self.db_path = Path(db_path).absolute()
        self._database = Database(self.db_path, timeout)
        self._database.open()
        weakref.finalize(self, self._database.close)

    def save(self, session_id: str, data: dict[str, Any]) -> None:
        """Keeps a session's data durably, in place of any that was there.

        Raises:
            InvalidSession: The id or the data cannot be kept (see `SessionStore.save`). The old data stays.
            DatabaseBusy: Another process was writing all the time: try again. The old data stays.
            StorageError: It could not be written. The old data stays.
        """
        key, text = encode_id(session_id), encode_data(session_id, data)
        try:
            self._database.change('save a session in', _SAVE, key, text)
        except (sqlite3.DataError, OverflowError) as error:
            raise InvalidSession(session_id, 'it is larger than SQLite can hold', 'save less in one session') from error

    def load(self, session_id: str) -> dict[str, Any] | None:
        """Returns a copy of a session's data, or None where there is no such session.

        Raises:
            InvalidSession: No session can have this id.
            StorageError: It could not be read.
        """
        operation = 'load a session from'
        rows = self._database.query(operation, 'SELECT data FROM sessions WHERE id = ?', encode_id(session_id))
        if not rows:
            return None
        try:
            return decode_data(rows[0][0])
        except (ValueError, TypeError) as error:
            raise DatabaseUnusable(operation, self.db_path, f'the data of {session_id[:80]!r} is damaged') from error

    def delete(self, session_id: str) -> bool:
        """Forgets a session; returns whether it was there. `vacuum` gives its space back.

        Raises:
            InvalidSession: No session can have this id.
            StorageError: It could not be deleted; it is still there.
        """
        key = encode_id(session_id)
        return self._database.change('delete a session from', 'DELETE FROM sessions WHERE id = ?', key) > 0

    def list_sessions(self) -> list[str]:
        """Returns the id of every session, sorted."""
        rows = self._database.query('list the sessions of', 'SELECT id FROM sessions ORDER BY id')
        return [key.decode() for (key,) in rows]

    def exists(self, session_id: str) -> bool:
        """Returns whether there is such a session, without reading its data."""
        sql = 'SELECT 1 FROM sessions WHERE id = ?'
        return bool(self._database.query('look for a session in', sql, encode_id(session_id)))

    def clear(self) -> None:
        """Forgets every session. `vacuum` gives the space back."""
        self._database.change('clear', 'DELETE FROM sessions')

    def vacuum(self) -> None:
        """Gives the space of deleted sessions back to the file system; needs up to twice the file's size meanwhile.

        Raises:
            DatabaseBusy: Another process used the file all the time: try again.
            StorageError: There is not enough space, or the disk failed. No session is lost.
        """
        self._database.change('vacuum', 'VACUUM')
        ((blocked, _, _),) = self._database.query('vacuum', 'PRAGMA wal_checkpoint(TRUNCATE)')
        if blocked:  # the file is small already in the -wal, and becomes so once the others let go
            raise DatabaseBusy('vacuum', self.db_path)

    def close(self) -> None:
        """Lets go of the file. A later call of any method opens it again; closing twice does nothing."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
