"""10,000 real announcements through a desk, and an index that is deleted, cut off, overwritten and killed meanwhile."""

import json
import os
import socket
import sqlite3
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from process import Process, Start, UnixConnection, until

from trading_agent.clock import utc_text
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.conversation.records import MessageSaid, TextCame, TurnBegun, TurnEnded
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.memory.session_state import SessionState
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.messages import AssistantMessage, UserMessage
from trading_agent.providers.offline_answer import answer

REAL = Path(__file__).parents[2].parent / 'shared' / 'data' / 'nse-announcements'
EARLIER_DAYS, EACH_DAY = 8, 1050
LIVE = 1600
FIRST_DAY = datetime(2026, 2, 2, 4, tzinfo=UTC)
BAD = ('component_failed', 'desk_parked', 'desk_restarted', 'loop_blocked', 'model_call_failed', 'write_failed')
TABLES = ('messages', 'turns', 'tool_calls', 'exchanges', 'usage')


def announcements() -> Iterator[str]:
    """Yields real announcements without an end, each with a number of its own."""
    texts = [line for path in sorted(REAL.glob('*.txt')) for line in path.read_text().split('\n')[1:] if line.strip()]
    if not texts:
        pytest.skip(f'there are no announcements in {REAL}')
    number = 0
    while True:
        for text in texts:
            number += 1
            yield f'{text} [no{number}]'


@contextmanager
def without_waiting_for_the_disk() -> Iterator[None]:
    """Lets the past be written quickly: nothing of it has to survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ('fsync', 'fdatasync'):
            patch.setattr(os, name, lambda _: None)
        yield


def write_past(desk: Path, texts: Iterator[str]) -> None:
    """Writes the sessions of some days by the parts that a desk writes them with."""
    store = SessionStore(desk / 'sessions')
    for number in range(EARLIER_DAYS):
        now = FIRST_DAY + timedelta(days=number)
        session_id = store.new_session_id(now.date())
        journal = JournalFolder(desk / 'journal', desk.name, lambda now=now: now).open(session_id)  # type: ignore[misc]
        for place in range(EACH_DAY):
            text, trigger, at = next(texts), f'{session_id}/{place}', utc_text(now + timedelta(seconds=20 * place))
            turn, said = f'{trigger}:1', answer(text, (), '')
            journal.append(
                TurnBegun(turn_id=turn, purpose='turn', trigger_id=trigger),
                MessageSaid(turn_id=turn, message=UserMessage(text)),
                TextCame(turn_id=turn, text=said),
                MessageSaid(turn_id=turn, message=AssistantMessage(said)),
                TurnEnded(turn_id=turn, outcome='answered', backend='offline', started_at=at),
            )
            store.append_exchange(session_id, Exchange(text, said, 'offline', at, trigger, at))
        store.save_state(SessionState(session_id, now.date(), {}))


class Searching:
    """Searches again and again, in a thread, and notes how long each answer takes and what goes wrong."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._search)
        self.seconds: list[float] = []
        self.failures: list[BaseException] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _search(self) -> None:
        queries = ['board meeting', '"newspaper publication"', 'M&M', 'dividend*', 'no9', '1,00,000', '"', 'zzzz']
        try:
            while not self._stop.wait(0.03):
                with SqliteIndex(self._workspace, lambda *_: None) as index:
                    began = time.monotonic()
                    for hit in index.search(queries[len(self.seconds) % len(queries)]):
                        assert hit.text
                    self.seconds.append(time.monotonic() - began)
        except BaseException as failure:  # noqa: BLE001 - the test tells it
            self.failures.append(failure)


def garbage(path: Path) -> None:
    """Overwrites it in place."""
    with path.open('r+b') as file:
        file.write(os.urandom(path.stat().st_size))


def shorter(path: Path) -> None:
    """Cuts it off in its middle."""
    with path.open('r+b') as file:
        file.truncate(path.stat().st_size // 2)


class Live:
    """Sends announcements one after the other, and waits for each answer."""

    def __init__(self, daemon: Process, texts: Iterator[str]) -> None:
        self._texts = texts
        self.daemon = daemon
        self.sent: list[str] = []
        self.seconds: list[float] = []

    def send(self, count: int) -> None:
        """Sends so many; each is answered."""
        for _ in range(count):
            trigger = f'live-{len(self.sent)}'
            began = time.monotonic()
            with closing(UnixConnection(self.daemon.workspace / 'control.sock')) as connection:
                body = json.dumps({'text': next(self._texts), 'id': trigger})
                connection.request('POST', '/v1/desks/main/triggers?wait=true', body)
                last = json.loads(connection.getresponse().read().split(b'\n')[-2])
            self.seconds.append(time.monotonic() - began)
            assert last['result']['outcome'] == 'answered', last
            self.sent.append(trigger)


def converged(workspace: Path) -> None:
    """Returns once the index has all that is in the files."""

    def done() -> bool:
        with SqliteIndex(workspace, lambda *_: None) as index:
            return index.exists and index.behind() == 0

    until(done, 'the index has all that is in the files')


def differences(workspace: Path, other: Path) -> dict[str, list[Any]]:
    """Returns the rows of each table that only one of two indexes has."""
    with closing(sqlite3.connect(workspace / 'index.sqlite3')) as connection:
        connection.execute('ATTACH ? AS other', (str(other / 'index.sqlite3'),))
        found = {}
        for table in TABLES:
            columns = [name for _, name, *_ in connection.execute(f'PRAGMA table_info ({table})') if name != 'id']
            one, two = (f'SELECT {", ".join(columns)} FROM {where}.{table}' for where in ('main', 'other'))  # noqa: S608
            either = f'SELECT * FROM ({one} EXCEPT {two}) UNION ALL SELECT * FROM ({two} EXCEPT {one})'  # noqa: S608
            found[table] = connection.execute(either).fetchall()
        return found


def test_ten_thousand_announcements(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of the index meanwhile, it ends as the rebuilt one, searching answers, and no desk notices."""
    texts, workspace = announcements(), tmp_path / 'ws'
    with without_waiting_for_the_disk():
        write_past(workspace / 'desks' / 'main', texts)
    path = workspace / 'index.sqlite3'
    live = Live(start().ready(), texts)
    live.send(150)
    with Searching(workspace) as searching:
        for harm in (Path.unlink, shorter, garbage):
            until(path.exists, 'there is an index')
            harm(path)
            live.send(350)
            converged(workspace)
        path.unlink()
        live.send(20)
        until(path.exists, 'it is made anew')
        live.daemon.kill()
        first, live.daemon = live.daemon, start().ready()
        live.send(LIVE - len(live.sent))
        converged(workspace)
    assert searching.failures == []
    assert len(searching.seconds) > 50
    assert live.daemon.stop() == 0

    outcomes = live.daemon.files_of().outcomes()
    assert [outcomes[trigger] for trigger in live.sent] == ['answered'] * LIVE
    for daemon in (first, live.daemon):
        for event in BAD:
            assert daemon.found(event) == []
        for damage in daemon.found('store_damaged'):
            assert damage['path'] == str(path)
    undisturbed, meanwhile = statistics.median(live.seconds[:150]), statistics.median(live.seconds[150:])
    assert meanwhile < 10 * undisturbed
    check_convergence(workspace, tmp_path / 'other', len(live.sent) + EARLIER_DAYS * EACH_DAY, monkeypatch)


def check_convergence(workspace: Path, other: Path, exchanges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that an index is as one that was made from the same files anew, with no connection to anywhere."""

    def no_socket(*arguments: object, **options: object) -> socket.socket:
        raise AssertionError(f'a socket: {arguments} {options}')

    (workspace / 'desks').rename(other.with_name('desks'))
    for folder in (workspace, other):
        folder.mkdir(exist_ok=True)
        (folder / 'desks').symlink_to(other.with_name('desks'))
    monkeypatch.setattr(socket, 'socket', no_socket)
    with SqliteIndex(other) as rebuilt:
        rebuilt.rebuild()
    assert differences(workspace, other) == {table: [] for table in TABLES}
    with SqliteIndex(workspace) as index:
        assert index.check() == []
        assert index.status()[0].exchanges == exchanges == 10_000
        for number in (1, 4321, 8400, 9999, 10_000):
            assert [hit.who for hit in index.search(f'"no{number}"') if hit.who == 'user'] == ['user']
