"""The tables of the index.

Rows are named by desk, session and the number of their line, so that they are the same whenever they were read;
only `messages.id`, by which the full text names its rows, follows the order of arrival.
"""

import sqlite3

from trading_agent.index.faults import IndexDamaged

APPLICATION = 0x74616978
"""Marks a file as an index, in `PRAGMA application_id`."""

VERSION = 1
"""The version of these tables, in `PRAGMA user_version`: a file of another one is made anew."""

_KEY = 'desk TEXT NOT NULL, session_id TEXT NOT NULL, number INTEGER NOT NULL, trading_date TEXT NOT NULL'
_NATURAL = 'PRIMARY KEY (desk, session_id, number)) WITHOUT ROWID'

TOKENIZER = "unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
"""Letters, digits and the vowel signs of Indian scripts make words; M&M is two of them, found as a phrase."""

CREATE = (
    # How far each file has been read. `digest` is of the last bytes before `offset`; `size` and `mtime_ns` are those of
    # the file when it was read to its end.
    """CREATE TABLE files (
        path TEXT PRIMARY KEY NOT NULL, desk TEXT NOT NULL, session_id TEXT NOT NULL, kind TEXT NOT NULL,
        offset INTEGER NOT NULL, lines INTEGER NOT NULL, damaged INTEGER NOT NULL,
        digest TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL) WITHOUT ROWID""",
    'CREATE INDEX files_by_session ON files (desk, session_id)',
    # `turn` is the number of the turn's first line, NULL where the message belongs to none; `shown` is 1 where search
    # finds it. The text comes last, so that the other columns are read without it.
    f"""CREATE TABLE messages (
        id INTEGER PRIMARY KEY, {_KEY}, turn INTEGER, turn_id TEXT NOT NULL, trigger_id TEXT NOT NULL,
        purpose TEXT NOT NULL, role TEXT NOT NULL, name TEXT NOT NULL, call_id TEXT NOT NULL,
        is_error INTEGER NOT NULL, at TEXT NOT NULL, shown INTEGER NOT NULL, text TEXT NOT NULL,
        UNIQUE (desk, session_id, number))""",
    # `outcome` is answered, failed, interrupted or running; `last_failure` the line of the last backend that failed:
    # what was said before it is void.
    f"""CREATE TABLE turns (
        {_KEY}, turn_id TEXT NOT NULL, trigger_id TEXT NOT NULL, purpose TEXT NOT NULL, attempt INTEGER NOT NULL,
        outcome TEXT NOT NULL, cause TEXT NOT NULL, backend TEXT NOT NULL, begun_at TEXT NOT NULL,
        started_at TEXT NOT NULL, ended_at TEXT NOT NULL, last_failure INTEGER NOT NULL, shown INTEGER NOT NULL,
        {_NATURAL}""",
    'CREATE INDEX turns_by_trigger ON turns (desk, session_id, trigger_id)',
    f"""CREATE TABLE tool_calls (
        {_KEY}, turn INTEGER, turn_id TEXT NOT NULL, call_id TEXT NOT NULL, name TEXT NOT NULL,
        read_only INTEGER NOT NULL, arguments TEXT NOT NULL, {_NATURAL}""",
    # `turn` is NULL where no journal has the exchange's turn: its two messages are made from it.
    f"""CREATE TABLE exchanges (
        {_KEY}, turn INTEGER, trigger_id TEXT NOT NULL, backend TEXT NOT NULL, started_at TEXT NOT NULL,
        finished_at TEXT NOT NULL, {_NATURAL}""",
    f"""CREATE TABLE usage (
        {_KEY}, turn INTEGER, purpose TEXT NOT NULL, backend TEXT NOT NULL, input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL,
        {_NATURAL}""",
    'CREATE VIEW shown_messages AS SELECT id, text FROM messages WHERE shown',
    f"""CREATE VIRTUAL TABLE said USING fts5 (
        text, content = 'shown_messages', content_rowid = 'id', tokenize = "{TOKENIZER}")""",
    f'PRAGMA application_id = {APPLICATION}',
    f'PRAGMA user_version = {VERSION}',
)

TABLES = ('messages', 'turns', 'tool_calls', 'exchanges', 'usage')
"""The tables whose rows come from lines."""

INSERT = {
    'messages': 'INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
    # A turn that was running is written again once it has ended.
    'turns': 'INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
    'tool_calls': 'INSERT INTO tool_calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
    'exchanges': 'INSERT INTO exchanges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)',
    'usage': 'INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)',
}

SAY = 'INSERT INTO said (rowid, text) VALUES (?, ?)'
SAY_ALL = "INSERT INTO said (said) VALUES ('rebuild')"
UNSAY_ALL = "INSERT INTO said (said) VALUES ('delete-all')"
CHECK_SAID = "INSERT INTO said (said, rank) VALUES ('integrity-check', 1)"

_CACHE_KIB = 8192
_LONGEST_LOG_BYTES = 32 << 20

_OF_SESSION = 'desk = ? AND session_id = ?'


def create(connection: sqlite3.Connection) -> None:
    """Makes the tables in an empty file."""
    for statement in CREATE:
        connection.execute(statement)


def version_of(connection: sqlite3.Connection) -> int:
    """Returns the version of the tables in a file.

    Raises:
        IndexDamaged: They are another program's, or are not as they were made.
    """
    (application,) = connection.execute('PRAGMA application_id').fetchone()
    (version,) = connection.execute('PRAGMA user_version').fetchone()
    found = {sql for (sql,) in connection.execute('SELECT sql FROM sqlite_master')}
    if application != APPLICATION:
        raise IndexDamaged('it is no index of trading-agent')
    if version == VERSION and not found.issuperset(each for each in CREATE if each.startswith('CREATE')):
        raise IndexDamaged('its tables are not those of an index')
    return int(version)


def prepare(connection: sqlite3.Connection) -> int:
    """Sets a new connection up and returns the version of its tables; raises what `version_of` raises."""
    version = version_of(connection)
    connection.execute(f'PRAGMA cache_size = -{_CACHE_KIB}')
    connection.execute(f'PRAGMA journal_size_limit = {_LONGEST_LOG_BYTES}').fetchall()
    # A power cut may take the last transactions, with the offsets that say so; the file stays whole.
    connection.execute('PRAGMA synchronous = NORMAL')
    return version


def check_structure(connection: sqlite3.Connection) -> None:
    """Reads through the structure of the whole file.

    Raises:
        IndexDamaged: It is damaged.
    """
    problems = connection.execute('PRAGMA quick_check (1)').fetchall()
    if problems != [('ok',)]:
        raise IndexDamaged(str(problems[0][0]) if problems else 'it cannot be checked')


def purge(connection: sqlite3.Connection, desk: str, session_id: str) -> None:
    """Removes all rows of a session, those of its files too."""
    session = (desk, session_id)
    connection.execute(
        "INSERT INTO said (said, rowid, text) SELECT 'delete', id, text FROM messages "  # noqa: S608 - a constant
        f'WHERE {_OF_SESSION} AND shown ORDER BY number',
        session,
    )
    for table in (*TABLES, 'files'):
        connection.execute(f'DELETE FROM {table} WHERE {_OF_SESSION}', session)  # noqa: S608 - a constant


def purge_all(connection: sqlite3.Connection) -> None:
    """Removes all rows."""
    connection.execute(UNSAY_ALL)
    for table in (*TABLES, 'files'):
        connection.execute(f'DELETE FROM {table}')  # noqa: S608 - a constant
