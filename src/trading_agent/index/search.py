"""Finding what was said."""

import re
import secrets
import sqlite3
from datetime import date
from typing import Any

from trading_agent.index import query
from trading_agent.index.faults import IndexDamaged
from trading_agent.index.results import EXCHANGE_STEP, Hit, Passage
from trading_agent.index.session_files import SessionKey

_EXCERPT_WORDS = 32
_EXCERPT_LENGTH = 240
_BEFORE_MATCH = 80
_PASSAGES = 256
_PASSAGE_CHARACTERS = 1 << 20

_COLUMNS = ('desk', 'session_id', 'trading_date', 'number', 'at', 'role', 'name', 'trigger_id', 'text')
_SELECT = f'SELECT {", ".join(_COLUMNS)} FROM messages'  # noqa: S608 - constants
_UNSEEN = re.compile(r'[\s\x00-\x1f\x7f-\x9f]+')
"""What an excerpt, which is one line, has a space for."""


def search(
    connection: sqlite3.Connection,
    typed: str,
    *,
    desk: str | None,
    first: date | None,
    last: date | None,
    limit: int,
) -> list[Hit]:
    """Returns the messages that fit best what was typed; of those that fit alike, the newest first.

    Args:
        connection: The index, being read.
        typed: What was typed.
        desk: Only this desk's; None for all.
        first: Only of sessions of this India date or later; None for all.
        last: Only of sessions of this India date or earlier; None for all.
        limit: How many at most.
    """
    conditions, values = ['said MATCH ?'], list[str]()
    for condition, value in (
        ('desk = ?', desk),
        ('trading_date >= ?', first.isoformat() if first else None),
        ('trading_date <= ?', last.isoformat() if last else None),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    # The marks hold what no text can have guessed.
    nonce = secrets.token_hex(8)
    begin, end = f'\x02{nonce}', f'\x03{nonce}'
    select = (
        f'SELECT {", ".join(f"messages.{column}" for column in _COLUMNS)}, '  # noqa: S608 - constants
        f"-rank, snippet(said, 0, '{begin}', '{end}', '…', {_EXCERPT_WORDS}) "
        f'FROM said JOIN messages ON messages.id = said.rowid WHERE {" AND ".join(conditions)} '
        'ORDER BY rank, at DESC, desk, session_id DESC, number DESC LIMIT ?'
    )
    for expression in query.expressions(typed):
        try:
            rows = connection.execute(select, (expression, *values, max(0, limit))).fetchall()
        except sqlite3.OperationalError as error:
            if 'fts5' not in str(error) or 'file format' in str(error):
                raise
            continue  # more than the full text takes: nothing is found by it, and nothing is damaged
        if rows:
            return [_hit(row, *marked(row[-1], begin, end), row[-2]) for row in rows]
    return []


def message(connection: sqlite3.Connection, desk: str, session_id: str, number: int) -> Hit | None:
    """Returns a message that search may find; None where there is none of this number."""
    where = f'{_SELECT} WHERE desk = ? AND session_id = ? AND number = ? AND shown'
    row = connection.execute(where, (desk, session_id, number)).fetchone()
    return None if row is None else _hit(row, *marked(row[8][: 4 * _EXCERPT_LENGTH]))


def passages_of(connection: sqlite3.Connection, key: SessionKey, mark: int) -> list[Passage]:
    """Returns the next messages of a session behind a mark: at least one, unless there are no further ones."""
    above = (
        f'{_SELECT} WHERE desk = ? AND session_id = ? AND shown '
        'AND ((number > ? AND number < ?) OR number >= ?) ORDER BY number LIMIT ?'
    )
    line, exchange = mark % EXCHANGE_STEP, mark // EXCHANGE_STEP
    values = (*key, line, EXCHANGE_STEP, (exchange + 1) * EXCHANGE_STEP, _PASSAGES)
    found, characters = list[Passage](), 0
    for row in connection.execute(above, values):
        desk, session_id, trading_date, number, *_, text = row
        found.append(Passage(desk, session_id, _date(trading_date), number, text))
        characters += len(text)
        if characters >= _PASSAGE_CHARACTERS:
            break
    return found


def sessions(connection: sqlite3.Connection) -> list[SessionKey]:
    """Returns every session of which a file has been read, by desk and id."""
    return connection.execute('SELECT DISTINCT desk, session_id FROM files ORDER BY desk, session_id').fetchall()


def _hit(row: tuple[Any, ...], excerpt: str, marks: list[tuple[int, int]], score: float = 0.0) -> Hit:
    desk, session_id, trading_date, number, at, role, name, trigger_id, text = row[:9]
    day, who = _date(trading_date), _who(role, name)
    return Hit(desk, session_id, day, number, at, who, trigger_id, text, excerpt, marks, score)


def _date(text: object) -> date:
    try:
        return date.fromisoformat(str(text))
    except ValueError:
        raise IndexDamaged(f'it has {text!r} for a date') from None


def _who(role: str, name: str) -> str:
    return f'tool:{name}' if role == 'tool' else role


def marked(text: str, begin: str = '\x02', end: str = '\x03') -> tuple[str, list[tuple[int, int]]]:
    """Returns an excerpt as one line of bounded length, and where in it the matches are.

    Args:
        text: The excerpt.
        begin: What stands in front of each match.
        end: What stands behind each.
    """
    line, marks, start = '', list[tuple[int, int]](), None
    for part in re.split(f'({re.escape(begin)}|{re.escape(end)})', text):
        if part == begin:
            start = len(line)
        elif part == end:
            if start is not None and len(line) > start:
                marks.append((start, len(line)))
            start = None
        else:
            line += _UNSEEN.sub(' ', part)
    cut = max(0, marks[0][0] - _BEFORE_MATCH) if marks and len(line) > _EXCERPT_LENGTH else 0
    shown = line[cut : cut + _EXCERPT_LENGTH]
    before, after = '…' if cut else '', '…' if len(line) > cut + _EXCERPT_LENGTH else ''
    moved = len(before) - cut
    inside = [(from_, min(to, cut + len(shown))) for from_, to in marks if from_ < cut + len(shown)]
    return before + shown + after, [(from_ + moved, to + moved) for from_, to in inside]
