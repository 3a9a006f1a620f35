"""Comparing the index with the files that it is a copy of, without writing."""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trading_agent.index import schema
from trading_agent.index.database import IndexFile
from trading_agent.index.faults import IndexDamaged
from trading_agent.index.feed import behind, places
from trading_agent.index.lines import Lines, Place
from trading_agent.index.results import Difference
from trading_agent.index.rows import Row, SessionRows
from trading_agent.index.session_files import SessionFiles, Snapshot, Source

_BYTES = 1 << 20
_LOOK_SECONDS = 0.1


def differences(index: IndexFile, workspace: Path, desk: str | None, patience: float) -> list[Difference]:
    """Returns where the index is not what the files say.

    Args:
        index: The index.
        workspace: The workspace.
        desk: Only this desk; None for all.
        patience: How long a daemon may take to read what the files have now, in seconds.

    Raises:
        StorageError: A file, or the index, cannot be read.
    """
    if not index.exists:
        return [Difference('', '', 'index', 'there is none')]
    try:
        snapshot = Snapshot(workspace, desk)
        snapshot.raise_first()
        return (
            _unread(index, workspace, snapshot, patience) + _wrong(index, workspace, snapshot) + _wrong_full_text(index)
        )
    except IndexDamaged as error:
        return [Difference('', '', 'index', f'it cannot be read: {error}')]


def _unread(index: IndexFile, workspace: Path, snapshot: Snapshot, patience: float) -> list[Difference]:
    deadline = time.monotonic() + patience
    while True:
        known = index.read('read', places)
        unread = {session.key: behind(session, known) for session in snapshot.found if behind(session, known)}
        if not unread or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_SECONDS)
    # A session that was begun since the files were looked at is no session whose files are gone.
    gone = [
        Difference(*key, 'files', 'they are gone')
        for key in snapshot.gone(known)
        if not any((workspace / name).exists() for name in known[key])
    ]
    return gone + [Difference(*key, 'files', f'{left} bytes are not in the index yet') for key, left in unread.items()]


def _wrong(index: IndexFile, workspace: Path, snapshot: Snapshot) -> list[Difference]:
    with index.reading('read') as connection:
        known = places(connection)
        found: list[Difference] = []
        for session in snapshot.found:
            found += _wrong_rows(connection, workspace, session, known.get(session.key, {}))
        return found


def _wrong_full_text(index: IndexFile) -> list[Difference]:
    try:
        # It asks for the right to write, and writes nothing.
        with index.writing('check') as connection:
            connection.execute(schema.CHECK_SAID)
    except IndexDamaged as error:
        return [Difference('', '', 'said', f'the full text is not that of the messages: {error}')]
    return []


class _Table:
    """The rows of one session in one table, as its files have them, beside those of the index."""

    def __init__(self, connection: sqlite3.Connection, table: str, session: SessionFiles) -> None:
        columns = [name for _, name, *_ in connection.execute(f'PRAGMA table_info ({table})')]
        self._from = columns.index('desk')  # the id in front of it says nothing
        self._columns = columns[self._from :]
        self._table = table
        self._session = session
        self._found = connection.execute(
            f'SELECT {", ".join(self._columns)} FROM {table} '  # noqa: S608 - constants
            'WHERE desk = ? AND session_id = ? ORDER BY number',
            session.key,
        )
        self.difference: Difference | None = None

    def named(self, row: Row) -> dict[str, Any]:
        """Returns a row's values by their column."""
        return dict(zip(self._columns, row[self._from :], strict=True))

    def compare(self, rows: list[Row]) -> None:
        """Compares the next rows, until there is a difference."""
        for row in rows:
            if self.difference is None:
                self._compare(self.named(row), self._found.fetchone())

    def end(self) -> None:
        """Makes sure that the index has no further rows."""
        if self.difference is None:
            self._compare({}, self._found.fetchone())

    def _compare(self, expected: dict[str, Any], row: tuple[Any, ...] | None) -> None:
        found = dict(zip(self._columns, row, strict=True)) if row is not None else {}
        if expected == found:
            return
        if not found or (expected and expected['number'] < found['number']):
            what = f'number {expected["number"]} is missing'
        elif not expected or expected['number'] > found['number']:
            what = f'number {found["number"]} is in no file'
        else:
            others = ', '.join(name for name in self._columns if expected[name] != found[name])
            what = f'number {found["number"]} differs in {others}'
        self.difference = Difference(*self._session.key, self._table, what)


def _wrong_rows(
    connection: sqlite3.Connection, workspace: Path, session: SessionFiles, known: Mapping[str, Place]
) -> list[Difference]:
    """Returns where the rows of a session are not what its files say, as far as these have been read."""
    there = {source.name for source in session.sources}
    for name, place in known.items():
        if name not in there or not place.is_in(workspace / name):
            what = 'is not what was read of it' if name in there else 'is gone'
            return [Difference(*session.key, 'files', f'{name} {what}')]
    tables = {table: _Table(connection, table, session) for table in schema.TABLES}
    found = []
    turns: dict[tuple[str, str], int] = {}
    for source in session.sources:
        place = known.get(source.name, Place())
        lines = Lines(workspace / source.name, msgspec.structs.replace(source, size=place.offset), Place())
        rows = SessionRows(*session.key)
        for _ in _settled(lines, source, rows, turns):
            for turn in map(tables['turns'].named, rows.rows['turns']):
                if turn['outcome'] == 'answered' and turn['shown']:
                    turns.setdefault((turn['trigger_id'], turn['started_at']), turn['number'])
            for name, table in tables.items():
                table.compare(rows.rows[name])
            rows.clear()
        for column, count, kept in (('lines', lines.number, place.lines), ('damaged', rows.damaged, place.damaged)):
            if count != kept:
                found.append(Difference(*session.key, 'files', f'{source.name} differs in {column}'))
    for table in tables.values():
        table.end()
    return found + [table.difference for table in tables.values() if table.difference is not None]


def _settled(lines: Lines, source: Source, rows: SessionRows, turns: Mapping[tuple[str, str], int]) -> Iterator[None]:
    """Reads a file into rows; stops by wherever what was read so far is settled."""
    while not lines.at_end:
        if source.kind == 'exchanges':
            rows.exchange_lines(lines.take(_BYTES), lambda _: turns)
        else:
            for number, line in lines.take(_BYTES):
                rows.journal_line(number, line)
            while rows.in_turn and not lines.at_end:
                for number, line in lines.take(1):
                    rows.journal_line(number, line)
            rows.finish()
        yield
