"""Reading sessions into the index: on from where it stands, or anew.

The rows of some lines and the offset behind them are written in one transaction, so that wherever a process is
killed, and however many of them read the same file, each line's rows are there once.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from trading_agent.index import schema
from trading_agent.index.database import IndexFile
from trading_agent.index.faults import IndexDamaged
from trading_agent.index.lines import Lines, Place
from trading_agent.index.results import EXCHANGE_STEP, Progress
from trading_agent.index.rows import SessionRows, Turn
from trading_agent.index.session_files import SessionFiles, SessionKey, Source

BATCH_BYTES = 1 << 18
"""How much of a file is read in one transaction while others use the index too."""

LOAD_BYTES = 1 << 17
"""How much is read at a time where all of it is one transaction."""

_REPLAYS = 3
"""How often a session is begun again, when its files change faster than they can be read."""

_PLACE_COLUMNS = ', '.join(Place.__struct_fields__)
_PLACE_TYPES = [type(value) for value in msgspec.structs.astuple(Place())]
_SHOW = (
    f'desk = ? AND session_id = ? AND number > ? AND number < {EXCHANGE_STEP} AND turn = ? '
    "AND text <> '' AND (role = 'user' OR number > ?)"
)

Places = dict[SessionKey, dict[str, Place]]
"""How far the files of each session have been read, by their path within the workspace."""


class _Overtaken(Exception):
    """Raised when the session was replayed by another process meanwhile."""


def places(connection: sqlite3.Connection, sessions: Collection[SessionKey] | None = None) -> Places:
    """Returns how far files have been read.

    Args:
        connection: The index.
        sessions: Of which sessions; None for all.

    Raises:
        IndexDamaged: What stands there is no place in a file.
    """
    select = f'SELECT desk, session_id, path, {_PLACE_COLUMNS} FROM files'  # noqa: S608 - constants
    if sessions is None:
        rows = connection.execute(select).fetchall()
    else:
        one = f'{select} WHERE desk = ? AND session_id = ?'
        rows = [row for key in sessions for row in connection.execute(one, key)]
    found: Places = {}
    for desk, session_id, path, *place in rows:
        if [*map(type, place)] != _PLACE_TYPES:
            raise IndexDamaged(f'how far it says that {path} was read is nowhere: {place}')
        found.setdefault((desk, session_id), {})[path] = Place(*place)
    return found


def is_read(session: SessionFiles, known: Places) -> bool:
    """Returns whether there is nothing to do for a session."""
    places_of = known.get(session.key, {})
    ends = [source.name in places_of and places_of[source.name].is_end_of(source) for source in session.sources]
    return all(ends) and len(ends) == len(places_of)


def behind(session: SessionFiles, known: Places) -> int:
    """Returns how many bytes of a session are not in the index yet."""
    places_of = known.get(session.key, {})
    return sum(places_of.get(source.name, Place()).behind(source) for source in session.sources)


class Meter:
    """Tells how far the reading of many sessions is.

    Args:
        total: How many bytes there are to read.
        on_progress: Who is told; None for nobody.
    """

    def __init__(self, total: int, on_progress: Callable[[Progress], None] | None) -> None:
        self._done, self._total = 0, total
        self._on_progress = on_progress

    def of(self, session: SessionFiles) -> Callable[[int], None]:
        """Tells that a session is begun; returns what is to be told of the bytes of it that were read."""

        def read(count: int) -> None:
            self._done += count
            if self._on_progress is not None:
                total = max(self._done, self._total)  # more may have been written meanwhile
                self._on_progress(Progress(self._done, total, session.desk, session.session_id))

        read(0)
        return read


class Feed:
    """Reads the files of sessions into the index.

    Args:
        workspace: The workspace.
        index: The index's file.
    """

    def __init__(self, workspace: Path, index: IndexFile) -> None:
        self._workspace = workspace
        self._index = index

    # -- on from where it stands -------------------------------------------------------------------------------

    def catch_up(self, session: SessionFiles, on_read: Callable[[int], None], stop: Callable[[], bool]) -> bool:
        """Reads what is new in a session, in small transactions; all of it anew where the files are others.

        Args:
            session: The session's files.
            on_read: Is told after each transaction how many bytes were read in it.
            stop: Is asked after each transaction whether to leave it at that.

        Returns:
            Whether it was read to the end of its files.

        Raises:
            IndexDamaged: The index is damaged.
            StorageError: A file cannot be read, or the index not be written.
        """
        for _ in range(_REPLAYS):
            with suppress(_Overtaken):
                return self._read_on(session, on_read, stop)
        return False

    def _read_on(self, session: SessionFiles, on_read: Callable[[int], None], stop: Callable[[], bool]) -> bool:
        reached: tuple[str, int] | None = None
        for source in session.sources:
            at_end = False
            while not at_end:
                at_end, place, read = self._batch(session, source, reached)
                on_read(read)
                if stop():
                    return False
            reached = source.name, place.offset
        return True

    def forget(self, key: SessionKey) -> None:
        """Removes the rows of a session that has no files any more."""
        with self._index.writing('write') as connection:
            names = places(connection, [key]).get(key, {})
            if not any((self._workspace / name).is_file() for name in names):  # it may have come back meanwhile
                schema.purge(connection, *key)

    def _batch(self, session: SessionFiles, source: Source, reached: tuple[str, int] | None) -> tuple[bool, Place, int]:
        """Reads some lines of one file; returns whether they were its last ones, where it stands, and their bytes."""
        with self._index.writing('write') as connection:
            known = places(connection, [session.key]).get(session.key, {})
            if not self._continues(session, known):
                schema.purge(connection, *session.key)
                known = {}
            if reached is not None and known.get(reached[0], Place()).offset < reached[1]:
                raise _Overtaken  # what the log becomes depends on the journal, and that is gone
            before = known.get(source.name, Place())
            if before.is_end_of(source):
                return True, before, 0
            lines = Lines(self._workspace / source.name, source, before)
            rows = SessionRows(*session.key, _running(connection, session.key))
            _read(connection, lines, rows, BATCH_BYTES)
            write(connection, rows, full_text=True)
            if source.kind == 'journal' and _came_late(connection, session.key):
                schema.purge(connection, *session.key)
                return False, Place(), 0
            place = lines.place()
            _set_place(connection, session.key, source, place)
            return lines.at_end, place, place.offset - before.offset

    def _continues(self, session: SessionFiles, known: Mapping[str, Place]) -> bool:
        """Returns whether the files still begin with what was read of them."""
        there = {source.name: source for source in session.sources}
        if known and any(source.kind == 'journal' and source.name not in known for source in session.sources):
            return False  # the log was read without this journal, which may have its turns
        return all(
            name in there and (place.is_end_of(there[name]) or place.is_in(self._workspace / name))
            for name, place in known.items()
        )

    # -- anew --------------------------------------------------------------------------------------------------

    def load(
        self,
        connection: sqlite3.Connection,
        session: SessionFiles,
        on_read: Callable[[int], None],
        *,
        full_text: bool,
    ) -> None:
        """Reads all of a session, of which there are no rows, within the caller's transaction.

        Args:
            connection: The index.
            session: The session's files.
            on_read: Is told now and then how many bytes were read since.
            full_text: Whether what was said goes into the full text at once.
        """
        for source in session.sources:
            lines = Lines(self._workspace / source.name, source, Place())
            rows = SessionRows(*session.key)
            while not lines.at_end:
                before = lines.offset
                _read(connection, lines, rows, LOAD_BYTES)
                write(connection, rows, full_text=full_text)
                rows.clear()
                on_read(lines.offset - before)
                self._index.raise_if_stopped()
            _set_place(connection, session.key, source, lines.place())


def _read(connection: sqlite3.Connection, lines: Lines, rows: SessionRows, most_bytes: int) -> None:
    """Turns the next lines of a file into rows."""
    damaged = rows.damaged
    batch = lines.take(most_bytes)
    if lines.source.kind == 'journal':
        for number, line in batch:
            rows.journal_line(number, line)
        rows.finish()
    else:
        rows.exchange_lines(batch, lambda triggers: _turns_of(connection, rows.key, triggers))
    lines.damaged += rows.damaged - damaged


def _came_late(connection: sqlite3.Connection, key: SessionKey) -> bool:
    """Returns whether a journal has a turn whose exchange was read before it, and stands there as what was said."""
    late = connection.execute(
        'SELECT 1 FROM exchanges AS e JOIN turns AS t USING (desk, session_id, trigger_id, started_at) WHERE '
        "desk = ? AND session_id = ? AND e.turn IS NULL AND trigger_id <> '' AND t.outcome = 'answered' AND t.shown",
        key,
    )
    return late.fetchone() is not None


def _running(connection: sqlite3.Connection, key: SessionKey) -> Turn | None:
    """Returns the turn of a session that has no end yet."""
    found = connection.execute(
        'SELECT number, turn_id, trigger_id, purpose, attempt, begun_at, last_failure, outcome FROM turns '
        'WHERE desk = ? AND session_id = ? ORDER BY number DESC LIMIT 1',
        key,
    ).fetchone()
    if found is None or found[-1] != 'running':
        return None
    turn = Turn(*found[:-1])
    turn.earlier = True
    said = connection.execute(
        'SELECT number, role FROM messages WHERE desk = ? AND session_id = ? AND number > ? AND turn = ?',
        (*key, turn.number, turn.number),
    ).fetchall()
    turn.told = any(role == 'user' for _, role in said)
    turn.answered = any(role == 'assistant' and number > turn.last_failure for number, role in said)
    return turn


def _turns_of(connection: sqlite3.Connection, key: SessionKey, triggers: Collection[str]) -> dict[tuple[str, str], int]:
    """Returns the turns that answered triggers and are shown, by trigger and start."""
    rows = connection.execute(
        'SELECT trigger_id, started_at, number FROM turns WHERE desk = ? AND session_id = ? '
        "AND trigger_id IN (SELECT value FROM json_each(?)) AND outcome = 'answered' AND shown",
        (*key, msgspec.json.encode(list(triggers)).decode()),
    )
    found: dict[tuple[str, str], int] = {}
    for trigger_id, started_at, number in rows:
        known = found.get((trigger_id, started_at), number)
        found[trigger_id, started_at] = min(known, number)
    return found


def write(connection: sqlite3.Connection, rows: SessionRows, *, full_text: bool) -> None:
    """Writes the rows of some lines.

    Args:
        connection: The index, within a transaction.
        rows: The rows.
        full_text: Whether what was said goes into the full text, too.
    """
    for turn in rows.shown_before:
        _show(connection, rows.key, turn, full_text=full_text)
    (last_id,) = connection.execute('SELECT coalesce(max(id), 0) FROM messages').fetchone()
    for number, message in enumerate(rows.rows['messages'], last_id + 1):
        message[0] = number
    for table, statement in schema.INSERT.items():
        if rows.rows[table]:
            connection.executemany(statement, rows.rows[table])
    if full_text:
        connection.executemany(schema.SAY, rows.shown_texts())


def _show(connection: sqlite3.Connection, key: SessionKey, turn: Turn, *, full_text: bool) -> None:
    """Shows the messages of a turn that were written before it had its end."""
    where = (*key, turn.number, turn.number, turn.last_failure)
    connection.execute(f'UPDATE messages SET shown = 1 WHERE {_SHOW}', where)  # noqa: S608 - a constant
    if full_text:
        connection.execute(
            f'INSERT INTO said (rowid, text) SELECT id, text FROM messages WHERE {_SHOW} ORDER BY id',  # noqa: S608
            where,
        )


def _set_place(connection: sqlite3.Connection, key: SessionKey, source: Source, place: Place) -> None:
    connection.execute(
        f'INSERT OR REPLACE INTO files (path, desk, session_id, kind, {_PLACE_COLUMNS}) '  # noqa: S608 - a constant
        'VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
        (source.name, *key, source.kind, *msgspec.structs.astuple(place)),
    )


@contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """Takes back what is done within the block, and only that, where it fails."""
    connection.execute('SAVEPOINT session')
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk, for one, has taken back all of it
            connection.execute('ROLLBACK TO session')
        raise
    finally:
        if connection.in_transaction:
            connection.execute('RELEASE session')
