"""The index for search: a copy, in SQLite, of what the JSONL files of all desks say.

It can be deleted at any time. Wherever it and the files disagree, the files are right, and the session is read anew.

Example:
    with SqliteIndex(Path('workspace')) as index:
        index.catch_up()
        for hit in index.search('M&M "final dividend"'):
            print(hit.trading_date, hit.who, hit.excerpt)
"""

import errno
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from trading_agent.errors import StorageError
from trading_agent.index import schema, search
from trading_agent.index.comparison import differences
from trading_agent.index.database import FILE_NAME, Identity, IndexFile
from trading_agent.index.desk_status import desk_status
from trading_agent.index.faults import IndexDamaged, IndexStopped
from trading_agent.index.feed import Feed, Meter, behind, is_read, places, savepoint
from trading_agent.index.results import DeskStatus, Difference, Hit, Passage, Progress, mark_after
from trading_agent.index.session_files import SessionKey, Snapshot

__all__ = [
    'DeskStatus',
    'Difference',
    'Hit',
    'IndexDamaged',
    'IndexStopped',
    'Passage',
    'Progress',
    'SqliteIndex',
    'mark_after',
]

T = TypeVar('T')

_LOGGER = logging.getLogger(__name__)
_TRIES = 3
_PASSAGES = 256


def _log_damage(path: Path, error: str) -> None:
    _LOGGER.warning('the index was damaged and is made anew; the old one is %s: %s', path, error)


class SqliteIndex:
    """The index of one workspace. Several threads, objects and processes may use it side by side.

    It is opened when it is needed. One that is damaged is set aside, and made anew from the files.

    Args:
        workspace: The workspace.
        on_damage: Is told where a damaged index was moved to and what was wrong with it, from the thread that found
            it; None logs it.
    """

    def __init__(self, workspace: Path, on_damage: Callable[[Path, str], None] = _log_damage) -> None:
        self._workspace = workspace.absolute()
        self._file = IndexFile(self._workspace / FILE_NAME, on_damage)
        self._feed = Feed(self._workspace, self._file)
        self._seen: int | None = None
        self._whole: Identity | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file; whatever is used next opens it again."""
        self._file.close()

    def interrupt(self) -> None:
        """Ends for good what this object does, from any thread: it raises `IndexStopped`, in the middle of anything.

        What was begun and not finished leaves no trace.
        """
        self._file.stop()

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self._file.path

    @property
    def exists(self) -> bool:
        """Whether there is one, damaged or not."""
        return self._file.exists

    # -- feeding it --------------------------------------------------------------------------------------------

    def catch_up(
        self,
        *,
        desk: str | None = None,
        sessions: Collection[SessionKey] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Reads what the files have that the index has not, the newest sessions first, in small transactions.

        A session whose files are others than those that were read is read anew; one that is gone is forgotten. A
        file that cannot be read holds up no other one.

        Args:
            desk: Only of this desk; None for all.
            sessions: Only these sessions, each as desk and session id; None for all. All are read where this object
                has not read all into the file that is there now.
            on_progress: Is told when a session is begun, and after each transaction.
            stop: Is asked after each transaction whether to leave it at that; it may also pause.

        Returns:
            Whether all was read; False where `stop` said so.

        Raises:
            DatabaseBusy: Another process writes all the time. Try again.
            StorageError: The index cannot be written, or a file not be read; the others have been.
        """
        return self._mending(partial(self._catch_up, desk, sessions, on_progress, stop))

    def _catch_up(
        self,
        desk: str | None,
        sessions: Collection[SessionKey] | None,
        on_progress: Callable[[Progress], None] | None,
        stop: Callable[[], bool],
    ) -> bool:
        if sessions is not None and not self._is_whole():
            sessions = None
        snapshot = Snapshot(self._workspace, desk, sessions)
        seen = hash(tuple(snapshot.found))
        if desk is None and sessions is None:
            if seen == self._seen and self._file.is_as_left:
                return True
            self._file.read_all()
        self._seen = None
        known = self._file.read('read', lambda connection: places(connection, sessions))
        for key in snapshot.gone(known):
            self._feed.forget(key)
        left = [session for session in snapshot.found if not is_read(session, known)]
        meter = Meter(sum(behind(session, known) for session in left), on_progress)
        for session in left:
            with snapshot.failures():
                if not self._feed.catch_up(session, meter.of(session), stop):
                    return False
        snapshot.raise_first()
        if desk is None and sessions is None:
            known = self._file.read('read', places)
            # What was moved away meanwhile, or went into an index that was removed, is looked at again.
            self._whole = None if any(behind(session, known) for session in snapshot.found) else self._file.identity
            self._seen = seen if all(is_read(session, known) for session in snapshot.found) else None
        return True

    def _is_whole(self) -> bool:
        """Returns whether this object has read everything into the file that is there now."""
        if self._whole is None or self._whole != self._file.identity:
            return False
        # A new file may have got the number of the one that was removed.
        return (
            self._file.read('read', lambda index: index.execute('SELECT 1 FROM files LIMIT 1').fetchone()) is not None
        )

    def rebuild(
        self,
        desk: str | None = None,
        session_id: str | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Makes all of the index anew from the files, or a part of it.

        Whoever searches meanwhile sees the old one; killed in the middle, it stays.

        Args:
            desk: Only this desk; None for all.
            session_id: Only this session of it, or of all desks; None for all.
            on_progress: Is told now and then.

        Raises:
            DatabaseBusy: Another process writes all the time. Try again.
            StorageError: The index cannot be written, or a file not be read; the others have been.
        """
        self._mending(partial(self._rebuild, desk, session_id, on_progress))

    def rebuild_sqlite_from_jsonl(self, session_id: str, desk: str | None = None) -> None:
        """Removes all rows of a session and makes them anew from its files, in one transaction.

        Args:
            session_id: The session; one that has no files is only removed.
            desk: Whose; None for every desk that has it.

        Raises:
            DatabaseBusy: Another process writes all the time. Try again.
            StorageError: The index cannot be written, or a file not be read.
        """
        self.rebuild(desk, session_id)

    def _rebuild(
        self, desk: str | None, session_id: str | None, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._seen = None
        snapshot = Snapshot(self._workspace, desk, session_id=session_id)
        meter = Meter(sum(session.size for session in snapshot.found), on_progress)
        if desk is None and session_id is None:
            with self._file.writing('rebuild') as connection:
                schema.purge_all(connection)
                for session in sorted(snapshot.found, key=lambda session: session.key):  # rows are added at the end
                    with snapshot.failures(), savepoint(connection):
                        self._feed.load(connection, session, meter.of(session), full_text=False)
                connection.execute(schema.SAY_ALL)
        else:
            for key in snapshot.gone(self._file.read('read', places)):
                self._feed.forget(key)
            for session in snapshot.found:
                with snapshot.failures(), self._file.writing('rebuild') as connection:
                    schema.purge(connection, *session.key)
                    self._feed.load(connection, session, meter.of(session), full_text=True)
        snapshot.raise_first()

    def verify(self) -> None:
        """Looks for damage within the file where anybody else has written to it, and mends it. It may take a while.

        Raises:
            StorageError: It cannot be read, or not be mended.
        """
        self._mending(self._file.verify)

    # -- asking it ---------------------------------------------------------------------------------------------

    def search(
        self,
        query: str,
        *,
        desk: str | None = None,
        first: date | None = None,
        last: date | None = None,
        limit: int = 20,
    ) -> list[Hit]:
        """Finds what was said, as far as it is in the index; one that is missing or damaged is made first.

        Args:
            query: What people type, see `query.expressions`; nothing of it is an error.
            desk: Only this desk's; None for all.
            first: Only of sessions of this India date or later; None for all.
            last: Only of sessions of this India date or earlier; None for all.
            limit: How many at most.

        Returns:
            The messages that fit best; of those that fit alike, the newest first.

        Raises:
            StorageError: The index cannot be read or made.
        """

        def find(connection: sqlite3.Connection) -> list[Hit]:
            return search.search(connection, query, desk=desk, first=first, last=last, limit=limit)

        return self._ask(find)

    def message(self, desk: str, session_id: str, number: int) -> Hit | None:
        """Returns one of the messages that search finds; None where there is none of this number."""
        return self._ask(partial(search.message, desk=desk, session_id=session_id, number=number))

    def passages(self, marks: Mapping[SessionKey, int]) -> Iterator[list[Passage]]:
        """Yields the messages that search finds, session by session, in bounded batches.

        Args:
            marks: How far each session has been taken over, see `mark_after`; 0 for one that is missing.
        """
        batch: list[Passage] = []
        for key in self._ask(search.sessions):
            mark = marks.get(key, 0)
            while found := self._ask(partial(search.passages_of, key=key, mark=mark)):
                for passage in found:
                    mark = mark_after(mark, passage.number)
                batch += found
                if len(batch) >= _PASSAGES:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def behind(self) -> int:
        """Returns how many bytes of the files are not in the index yet; all of them where there is none.

        Raises:
            IndexDamaged: It is damaged.
            StorageError: It cannot be read.
        """
        return sum(status.behind for status in self.status())

    def status(self) -> list[DeskStatus]:
        """Returns what the index holds of each desk that has a folder or is in it, by name. Nothing is written.

        Raises:
            IndexDamaged: It is damaged.
            StorageError: It cannot be read.
        """
        return desk_status(self._file, self._workspace)

    def check(self, desk: str | None = None, *, patience: float = 2.0) -> list[Difference]:
        """Compares the index with the files, by making the rows anew. Nothing is written, and nothing mended.

        Args:
            desk: Only this desk; None for all.
            patience: How long a daemon may take to read what the files have at the beginning, in seconds.

        Raises:
            StorageError: A file cannot be read.
        """
        return differences(self._file, self._workspace, desk, patience)

    # -- mending it --------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        if not self.exists:
            self.catch_up()
        return self._mending(partial(self._file.read, 'read', question), then=self.catch_up)

    def _mending(self, action: Callable[[], T], then: Callable[[], object] = lambda: None) -> T:
        """Does something with the index; where that is damaged, it is set aside and the same done again.

        Args:
            action: What is done.
            then: What is done with a new index first.
        """
        damage: IndexDamaged | None = None
        for _ in range(_TRIES):
            try:
                if damage is not None:
                    then()
                return action()
            except IndexDamaged as error:
                damage, self._seen, self._whole = error, None, None
                self._file.set_aside(str(error))
        assert damage is not None  # noqa: S101 - it returned otherwise
        again = OSError(errno.EIO, f'it is damaged again and again: {damage}')
        raise StorageError('use', self.path, again) from damage
