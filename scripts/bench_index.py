"""Measures the index for search: making it from the files, against writing the same rows from memory."""

import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from trading_agent import json_lines
from trading_agent.conversation.records import (
    AnyLine,
    AnyRecord,
    MessageSaid,
    Record,
    SessionHeader,
    TextCame,
    TurnBegun,
    TurnEnded,
    digest_of,
)
from trading_agent.index import schema
from trading_agent.index.database import FILE_NAME
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.memory.exchange import Exchange, encode_line
from trading_agent.messages import AssistantMessage, Usage, UserMessage

MESSAGES = 100_000
SESSIONS = 50
ROUNDS = 5
REMARKS = (
    'The amount is small beside a month of turnover, so that the price is not expected to move on it alone.',
    'The record date falls into the expiry week; positions in the near contract have to be looked at before it.',
    'The company has said the same twice this quarter, each time on the evening before the results.',
    'Nothing in Memory.md speaks of it, and no rule of the desk forbids to trade the share this week.',
    'Volumes were three times their average in the last hour, which the announcement may explain.',
    'The promoters pledged shares last year; whether the order is financed by a further pledge is not told.',
    'A call with analysts follows at 16:00; its transcript will be worth reading for the margin guidance.',
)
PIECE = 200
AT = '2026-10-19T04:00:00.000000Z'
TABLES = (*schema.TABLES, 'files')


GROWTH = """
import pathlib, sys
from trading_agent.index.sqlite import SqliteIndex
def peak():
    return int(pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]) / 1024
with SqliteIndex(pathlib.Path(sys.argv[1])) as index:
    before = peak()
    index.rebuild()
    print(peak() - before)
"""
"""Run in a process of its own, which prints by how many MiB its peak memory grows while it makes the index."""


def write_sessions(workspace: Path) -> None:
    """Writes the journals and exchange logs of a desk: as many turns a day as a busy feed brings."""
    desk = workspace / 'desks' / 'main'
    turns = MESSAGES // 2 // SESSIONS
    for folder in ('journal', 'sessions'):
        (desk / folder).mkdir(parents=True)
    for day in range(SESSIONS):
        session_id = f'2026-{1 + day // 28:02}-{1 + day % 28:02}-1'
        pairs = [(f'{session_id}-{number}', *said(day * turns + number)) for number in range(turns)]
        lines = chained([SessionHeader(session_id=session_id, created_at=AT), *records(pairs)])
        (desk / 'journal' / f'{session_id}.jsonl').write_bytes(b''.join(lines))
        exchanges = (Exchange(told, answer, 'offline', AT, trigger, AT) for trigger, told, answer in pairs)
        (desk / 'sessions' / f'{session_id}.jsonl').write_bytes(b''.join(map(encode_line, exchanges)))


def said(number: int) -> tuple[str, str]:
    """Returns an announcement and what was answered, different for each number."""
    company = f'Company {number % 1700} Industries Limited C{number % 1700}IND'
    told = (
        f'{company} : Outcome of Board Meeting held on 19-Oct-2026 : {company} has informed the Exchange regarding '
        f'the outcome of its meeting, an order worth Rs. {number * 37 % 99_991:,}.50 lakh and a dividend of '
        f'Rs. {number % 90}.{number % 100:02} per share; the record date is {1 + number % 28:02}-Nov-2026.'
    )
    answer = (
        f'{company} reports a dividend of Rs. {number % 90}.{number % 100:02} per share and an order worth '
        f'Rs. {number * 37 % 99_991:,}.50 lakh (announcement {number}). '
        f'{REMARKS[number % 7]} {REMARKS[number % 5]} {REMARKS[number % 3]} No order is proposed.'
    )
    return told, answer


def records(pairs: list[tuple[str, str, str]]) -> Iterator[AnyRecord]:
    """Yields the records of turns that were answered."""
    for trigger, told, answer in pairs:
        turn = f'{trigger}:1'
        yield TurnBegun(turn_id=turn, purpose='turn', trigger_id=trigger)
        yield MessageSaid(turn_id=turn, message=UserMessage(told, 1.0))
        for start in range(0, len(answer), PIECE):
            yield TextCame(turn_id=turn, text=answer[start : start + PIECE])
        yield MessageSaid(turn_id=turn, message=AssistantMessage(answer, usage=Usage(200, 40)))
        yield TurnEnded(turn_id=turn, outcome='answered', backend='offline', started_at=AT, usage=Usage(200, 40))


def chained(lines: Iterable[AnyLine]) -> Iterator[bytes]:
    """Yields the lines of a journal, numbered and each with the digest of the one before."""
    digest = ''
    for number, line in enumerate(lines):
        stamp = {'number': number, 'previous': digest, 'timestamp': AT} if isinstance(line, Record) else {}
        encoded = json_lines.encode(msgspec.structs.replace(line, **stamp))
        digest = digest_of(encoded[:-1])
        yield encoded


def rows_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Reads all rows of an index into memory."""
    connection = sqlite3.connect(path)
    try:
        return {table: connection.execute(f'SELECT * FROM {table}').fetchall() for table in TABLES}  # noqa: S608
    finally:
        connection.close()


def write_rows(path: Path, rows: dict[str, list[tuple[object, ...]]]) -> None:
    """Writes rows from memory into an empty index: one `executemany` for each table, then the full text."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute('PRAGMA synchronous = NORMAL')
        connection.execute('BEGIN')
        for table, of_table in rows.items():
            marks = ', '.join('?' * len(of_table[0])) if of_table else ''
            if of_table:
                connection.executemany(f'INSERT INTO {table} VALUES ({marks})', of_table)  # noqa: S608
        connection.execute(schema.SAY_ALL)
        connection.execute('COMMIT')
    finally:
        connection.close()


def bench_index(folder: Path, say: Callable[[str, float, str], None]) -> None:
    """Making the index of 100,000 messages from its files, against the same rows from memory."""
    workspace = folder / 'index'
    write_sessions(workspace)
    growth = float(
        subprocess.run([sys.executable, '-c', GROWTH, str(workspace)], check=True, capture_output=True).stdout
    )
    rows = rows_of(workspace / FILE_NAME)
    number = sum(map(len, rows.values()))
    assert len(rows['messages']) == MESSAGES
    rates = [(number / rebuilding(workspace), number / writing(folder / 'bare', rows)) for _ in range(ROUNDS)]
    ratio = statistics.median(ours / bare for ours, bare in rates)
    print(f'  {number:,} rows, {statistics.median(ours for ours, _ in rates):,.0f} a second from the files')
    say('rebuild of 100,000 messages / executemany of its rows', ratio, 'at least 0.5')
    say('growth of peak memory while it is made, MiB', growth, 'flat (under 64)')


def rebuilding(workspace: Path) -> float:
    """Returns how long it takes to make the index anew, in seconds."""
    for name in ('', '-wal', '-shm'):
        (workspace / f'{FILE_NAME}{name}').unlink(missing_ok=True)
    with SqliteIndex(workspace) as index:
        began = time.perf_counter()
        index.rebuild()
    return time.perf_counter() - began


def writing(workspace: Path, rows: dict[str, list[tuple[object, ...]]]) -> float:
    """Returns how long it takes to write the same rows from memory, in seconds."""
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.mkdir()
    with SqliteIndex(workspace) as index:
        index.catch_up()
    began = time.perf_counter()
    write_rows(workspace / FILE_NAME, rows)
    return time.perf_counter() - began
