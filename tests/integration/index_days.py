"""Sessions on disk as a desk leaves them, written by their parts, and an index as plain rows to compare."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from trading_agent import json_lines
from trading_agent.conversation.records import (
    AnyRecord,
    CallFailed,
    MessageSaid,
    SessionHeader,
    TextCame,
    ToolRequested,
    TurnBegun,
    TurnCut,
    TurnEnded,
)
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.memory.exchange import Exchange, encode_line
from trading_agent.messages import AssistantMessage, ToolResultMessage, Usage, UserMessage

AT = '2026-10-19T04:00:00.000000Z'
SID = '2026-10-19-1'
NOT_COMPARED = {'messages': {'id'}, 'files': {'size', 'mtime_ns'}}
"""What depends on when something was read."""

Rows = dict[str, list[tuple[object, ...]]]


class Day:
    """One session of a desk, whose files grow as a desk's do.

    Args:
        workspace: The workspace.
        desk: The desk.
        session_id: The session.
    """

    def __init__(self, workspace: Path, desk: str = 'main', session_id: str = SID) -> None:
        folder = workspace / 'desks' / desk
        self.desk, self.session_id = desk, session_id
        self.journal = folder / 'journal' / f'{session_id}.jsonl'
        self.log = folder / 'sessions' / f'{session_id}.jsonl'
        for path in (self.journal, self.log):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.turns = 0

    def header(self) -> bytes:
        """Returns the first line of a journal."""
        return json_lines.encode(SessionHeader(session_id=self.session_id, created_at=AT, desk=self.desk))

    def append(self, *parts: tuple[Path, bytes]) -> None:
        """Adds bytes to the files."""
        for path, data in parts:
            if path == self.journal and not path.exists():
                path.write_bytes(self.header())
            with path.open('ab') as file:
                file.write(data)

    def say(self, told: str, answer: str = 'noted', **how: Any) -> None:  # noqa: ANN401 - as `turn` takes it
        """Writes a whole turn and its exchange."""
        self.append(*self.turn(told, answer, **how))

    def turn(
        self,
        told: str,
        answer: str = 'noted',
        *,
        trigger_id: str | None = None,
        attempt: int = 1,
        outcome: str = 'answered',
        purpose: Any = 'turn',  # noqa: ANN401 - a literal
        before: Sequence[AnyRecord] = (),
        usage: Usage | None = None,
    ) -> list[tuple[Path, bytes]]:
        """Returns what a turn writes, and where, in the order in which it does.

        Args:
            told: What the model is told.
            answer: What it answers.
            trigger_id: The trigger; by default one of its own.
            attempt: Which attempt it is.
            outcome: `answered`, `failed`, `interrupted`, or `running` for one that has no end yet.
            purpose: `turn` or `review`.
            before: Records between what is told and the answer.
            usage: What the end says of tokens.
        """
        self.turns += 1
        trigger_id = trigger_id or (f't{self.turns}' if purpose == 'turn' else '')
        turn = f'{trigger_id or f"review{self.turns}"}:{attempt}'
        started = f'2026-10-19T04:{self.turns // 60 % 60:02}:{self.turns % 60:02}.000000Z'
        begun = TurnBegun(turn_id=turn, purpose=purpose, trigger_id=trigger_id, attempt=attempt)
        records: list[AnyRecord] = [begun, MessageSaid(turn_id=turn, message=UserMessage(told, 1.0)), *before]
        if outcome == 'answered':
            said = MessageSaid(turn_id=turn, message=AssistantMessage(answer, model='m', usage=usage))
            end = TurnEnded(turn_id=turn, outcome='answered', backend='b', started_at=started, usage=usage)
            records += [TextCame(turn_id=turn, text=answer), said, end]
        elif outcome == 'failed':
            records.append(TurnEnded(turn_id=turn, outcome='failed'))
        elif outcome == 'interrupted':
            records += [TextCame(turn_id=turn, text=answer), TurnCut(turn_id=turn, cause='stop', usage=usage)]
        lines = [(self.journal, self.line(record, turn)) for record in records]
        if outcome == 'answered' and purpose == 'turn':
            counts = msgspec.to_builtins(usage) if usage else None
            exchange = Exchange(told, answer, 'b', started, trigger_id, started, counts)
            lines.append((self.log, encode_line(exchange)))
        return lines

    def line(self, record: AnyRecord, turn_id: str = '') -> bytes:
        """Returns a record as it is written."""
        stamped = {'number': 1, 'previous': 'd', 'timestamp': AT, 'turn_id': record.turn_id or turn_id}
        return json_lines.encode(msgspec.structs.replace(record, **stamped))

    def unjournaled(self, told: str, answer: str = 'noted', trigger_id: str | None = None) -> tuple[Path, bytes]:
        """Returns an exchange whose turn is in no journal, and where it is written."""
        return self.log, encode_line(Exchange(told, answer, 'b', AT, trigger_id))


def failure(usage: Usage | None = None) -> AnyRecord:
    """Returns the record of a backend that failed."""
    return CallFailed(backend='a', error_type='BackendError', error='no answer', usage=usage)


def spoken(text: str) -> AnyRecord:
    """Returns a message of the model in the middle of a turn."""
    return MessageSaid(message=AssistantMessage(text, stop_reason='tool_use'))


def tool(name: str, result: str, *, is_error: bool = False) -> list[AnyRecord]:
    """Returns the records of a tool call and its result."""
    call = ToolRequested(id='c1', name=name, arguments={'symbol': 'ABC', 'n': 1.5})
    said = MessageSaid(message=ToolResultMessage('c1', name, result, is_error, 1.0))
    return [call, spoken(''), said]


def rows_of(workspace: Path) -> Rows:
    """Returns what is in an index, table by table and in order, and each word of the full text with its place."""
    connection = sqlite3.connect(workspace / 'index.sqlite3')
    try:
        rows: Rows = {}
        for table in ('files', 'messages', 'turns', 'tool_calls', 'exchanges', 'usage'):
            columns = [column for _, column, *_ in connection.execute(f'PRAGMA table_info ({table})')]
            kept = ', '.join(column for column in columns if column not in NOT_COMPARED.get(table, ()))
            rows[table] = sorted(connection.execute(f'SELECT {kept} FROM {table}'), key=repr)  # noqa: S608
        connection.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab ('main', 'said', 'instance')")
        words = connection.execute(
            'SELECT desk, session_id, number, term, offset FROM words JOIN messages ON messages.id = words.doc'
        )
        rows['said'] = sorted(words)
        (documents,) = connection.execute('SELECT count(DISTINCT doc) FROM words').fetchone()
        assert documents == len({row[:3] for row in rows['said']})
        return rows
    finally:
        connection.close()


def rebuilt(workspace: Path) -> Rows:
    """Returns what is in an index once it is made anew."""
    with SqliteIndex(workspace) as index:
        index.rebuild()
    return rows_of(workspace)


def as_first_read(folder: Path) -> Rows:
    """Returns what an index holds that reads all the files in one go."""
    for path in folder.glob('index.sqlite3*'):
        path.unlink()
    with SqliteIndex(folder) as index:
        index.catch_up()
    return rows_of(folder)


def found(index: SqliteIndex, query: str, **where: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - as `search` takes it
    """Returns who said what, of the messages that are found."""
    return [(hit.who, hit.text) for hit in index.search(query, **where)]
