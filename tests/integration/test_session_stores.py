"""The stores of sessions on real files: processes, kills, forks, faults, and files that are not theirs."""

import gc
import inspect
import itertools
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent.conversation.stores import (
    DatabaseBusy,
    DatabaseUnusable,
    InMemoryStore,
    InvalidSession,
    SessionStore,
    SQLiteStore,
)
from trading_agent.conversation.stores.base import MAX_NESTING
from trading_agent.conversation.stores.database import APPLICATION, FORMAT
from trading_agent.errors import StorageError, TradingAgentError
from trading_agent.testing import SessionStoreContract

HISTORY: dict[str, Any] = {'system': 'You watch NSE.', 'messages': [{'role': 'user', 'content': 'Hello'}]}
SECONDS = 30.0


class TestSQLiteStore(SessionStoreContract):
    """The store in a file, opened again where the contract asks for it."""

    @pytest.fixture(autouse=True)
    def _paths(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f'{number}.db' for number in itertools.count())

    def make_store(self) -> SessionStore:
        return SQLiteStore(next(self.paths))

    def reopen(self, store: SessionStore) -> SessionStore:
        assert isinstance(store, SQLiteStore)
        store.close()
        return SQLiteStore(store.db_path)


class TestSQLiteStoreTwice(TestSQLiteStore):
    """The store in a file, and a second one beside it that the first does not know of."""

    def reopen(self, store: SessionStore) -> SessionStore:
        assert isinstance(store, SQLiteStore)
        return SQLiteStore(store.db_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store's file may be."""
    return tmp_path / 'sessions.db'


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    """A store that waits for others for 0.1 s only."""
    with SQLiteStore(path, timeout=0.1) as opened:
        yield opened


def raw(path: Path) -> 'closing[sqlite3.Connection]':
    """Opens a file with SQLite alone."""
    return closing(sqlite3.connect(path, timeout=0.1, isolation_level=None))


def companions(path: Path) -> list[Path]:
    """Returns what is in a file's folder under its name and longer ones."""
    return sorted(path.parent.glob(f'*{path.name}*'))


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Starts a process that has the store's names and its path as `store`."""
    start = 'import os, sys, time\nfrom trading_agent.conversation.stores import *\nstore = SQLiteStore(sys.argv[1])\n'
    command = [sys.executable, '-c', start + script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Waits for a process that ends well, and returns what it said."""
    said, complained = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, complained
    return said


# -- the classes' surface ----------------------------------------------------------------------------------------


def test_the_interface_is_as_documented() -> None:
    """Classes, methods, parameters and defaults are those that programs are written against."""
    one, two = ['self', 'session_id'], ['self', 'session_id', 'data']
    for kind in (SessionStore, InMemoryStore, SQLiteStore):
        expected = {'save': two, 'load': one, 'delete': one, 'exists': one, 'list_sessions': ['self']}
        if kind is not SessionStore:
            expected['clear'] = ['self']
        if kind is SQLiteStore:
            expected['vacuum'] = ['self']
        for name, parameters in expected.items():
            assert list(inspect.signature(getattr(kind, name)).parameters) == parameters
    assert SessionStore.__abstractmethods__ == {'save', 'load', 'delete', 'list_sessions'}
    first = next(iter(inspect.signature(SQLiteStore).parameters.values()))
    assert (first.name, first.default) == ('db_path', 'agent_sessions.db')
    assert not inspect.signature(InMemoryStore).parameters


def test_a_subclass_needs_four_methods() -> None:
    """A store without one of the four abstract methods cannot be made; `exists` comes with them."""

    class Forgetful(SessionStore):
        def save(self, session_id: str, data: dict[str, Any]) -> None: ...

        def load(self, session_id: str) -> dict[str, Any] | None:
            return {} if session_id == 'a' else None

        def delete(self, session_id: str) -> bool:
            return False

    with pytest.raises(TypeError, match='list_sessions'):
        Forgetful()  # type: ignore[abstract]

    class Complete(Forgetful):
        def list_sessions(self) -> list[str]:
            return []

    assert Complete().exists('a') is True
    assert Complete().exists('b') is False


def test_the_default_file_is_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path the file is agent_sessions.db of the folder that is current, and stays it after a chdir."""
    monkeypatch.chdir(tmp_path)
    with SQLiteStore() as store:
        monkeypatch.chdir('/')
        store.close()
        store.save('a', HISTORY)
        assert store.db_path == tmp_path / 'agent_sessions.db'
    monkeypatch.chdir(tmp_path)
    with SQLiteStore('agent_sessions.db') as again:
        assert again.load('a') == HISTORY


@pytest.mark.parametrize('make', [InMemoryStore, None])
def test_clear_forgets_every_session(make: Callable[[], InMemoryStore] | None, store: SQLiteStore) -> None:
    """After clear there is no session, and new ones can be saved."""
    cleared = make() if make else store
    for number in range(5):
        cleared.save(str(number), HISTORY)
    cleared.clear()
    assert cleared.list_sessions() == []
    assert cleared.load('1') is None
    cleared.clear()
    cleared.save('a', HISTORY)
    assert cleared.list_sessions() == ['a']


def test_memory_is_not_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's name for a database in memory is refused with what to use, instead of a file of that name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match='InMemoryStore'):
        SQLiteStore(':memory:')
    assert list(tmp_path.iterdir()) == []


def test_close_lets_go_and_the_next_call_opens_again(path: Path) -> None:
    """Nothing is open after close or the end of `with`, closing twice is fine, and a later call finds everything."""

    def opened() -> list[str]:
        links = Path('/proc/self/fd').iterdir()
        return [str(link.readlink()) for link in links if link.is_symlink() and path.name in str(link.readlink())]

    with SQLiteStore(path) as store:
        store.save('a', HISTORY)
        assert opened()
    assert not opened()
    assert companions(path) == [path]
    store.close()
    assert store.load('a') == HISTORY
    assert opened()
    store.close()
    assert not opened()


def test_a_store_that_is_dropped_lets_go(path: Path) -> None:
    """A store that nobody closed lets go of its file when it is gone, without a warning."""
    store = SQLiteStore(path)
    store.save('a', HISTORY)
    del store
    gc.collect()
    assert companions(path) == [path]


# -- what is taken and what is refused ---------------------------------------------------------------------------

TEXTS = st.text(st.characters(blacklist_categories=()), max_size=5) | st.sampled_from(['a', '\ud800', '\ud83d\ude00'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.sampled_from([(1,), b'a', {1}, 2**70, -0.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.integers(0, 1), inner, max_size=3),
    max_leaves=8,
)


def test_both_stores_take_and_refuse_the_same(store: SQLiteStore) -> None:
    """Whatever the id and the data, either both stores refuse it in the same words, or both give back an equal one."""

    @settings(max_examples=200, deadline=None)
    @given(session_id=TEXTS, data=st.dictionaries(TEXTS, VALUES, max_size=3))
    def try_both(session_id: str, data: dict[str, Any]) -> None:
        results = []
        for tried in (InMemoryStore(), store):
            tried.clear()
            try:
                tried.save(session_id, data)
            except InvalidSession as error:
                results.append(error.in_words)
                assert tried.list_sessions() == []
            else:
                results.append(json.dumps(tried.load(session_id)))
                assert tried.load(session_id) == data or re.search('[\ud800-\udfff]', text_of(data))
                assert tried.list_sessions() == [session_id]
        assert results[0] == results[1]

    try_both()


def text_of(data: object) -> str:
    """Returns all text that is anywhere in data."""
    if isinstance(data, dict):
        return ''.join(text_of(part) for pair in data.items() for part in pair)
    if isinstance(data, list | tuple):
        return ''.join(map(text_of, data))
    return data if isinstance(data, str) else ''


def nested(depth: int) -> dict[str, Any]:
    """Returns data of dictionaries that is `depth` deep, with much beside it."""
    data: dict[str, Any] = {'wide': [[], []]} if depth > 3 else {}
    data['in'] = nested(depth - 1) if depth > 1 else 0
    return data


@pytest.mark.parametrize('kind', [InMemoryStore, None])
def test_nesting_has_one_limit(kind: Callable[[], SessionStore] | None, store: SQLiteStore) -> None:
    """Data may be 200 deep, also where there is much of it, and one more is refused: whoever reads it can."""
    tried = kind() if kind else store
    tried.save('a', nested(MAX_NESTING))
    assert tried.load('a') == nested(MAX_NESTING)
    with pytest.raises(InvalidSession, match='deeper than 200 levels'):
        tried.save('a', nested(MAX_NESTING + 1))

    def deep_in_the_stack(frames: int) -> object:
        return deep_in_the_stack(frames - 1) if frames else tried.load('a')

    assert deep_in_the_stack(300) == nested(MAX_NESTING)


@pytest.mark.parametrize(
    ('data', 'told'),
    [
        ({'m': [0, {'score': float('nan')}]}, "data['m'][1]['score'] is nan, which JSON does not have"),
        ({'m': [float('-inf')]}, "data['m'][0] is -inf, which JSON does not have"),
        ({'m': {'at': time.gmtime()}}, "data['m']['at'] is of type struct_time"),
        ({'m': [(1, 2)]}, "data['m'][0] is of type tuple"),
        ({'m': [{1: 2}]}, "data['m'][0] has a key that is int, not text"),
        ({'m': {None: 2}}, "data['m'] has a key that is NoneType, not text"),
        ({'n': 10**5000}, "data['n'] is a number with more digits than Python turns into text"),
        (dict.fromkeys('\ud800\ufffd', 1), 'two keys in it differ in nothing but lone surrogates'),
        ({'m': [{'\ud83d\ude00': 1, '😀': 2}]}, 'two keys in it differ in nothing but lone surrogates'),
        ([1], 'its data is a dictionary, not list'),
        (None, 'its data is a dictionary, not NoneType'),
    ],
)
def test_a_refusal_says_what_and_where(data: Any, told: str) -> None:  # noqa: ANN401 - what is no session
    """A refusal names the session, what is wrong and where in the data, and what to save instead."""
    with pytest.raises(InvalidSession) as refused:
        InMemoryStore().save('morning', data)
    assert str(refused.value) == f"the session 'morning' cannot be kept: {told}"
    assert refused.value.hint.startswith('save plain JSON')
    assert refused.value.session_id == 'morning'
    assert isinstance(refused.value, TradingAgentError)
    assert isinstance(refused.value, ValueError)


def test_a_refusal_is_short() -> None:
    """Ids and keys of any length make a message that can be read."""
    data: dict[str, Any] = {'k' * 100_000: {'l' * 100_000: [object()]}}
    with pytest.raises(InvalidSession) as refused:
        InMemoryStore().save('x' * 100_000, data)
    assert len(str(refused.value)) < 1000
    with pytest.raises(InvalidSession) as refused:
        InMemoryStore().load('\ud800' * 100_000)
    assert len(str(refused.value)) < 1000


def test_what_is_too_large_for_sqlite_is_refused(store: SQLiteStore) -> None:
    """Data beyond SQLite's limit is refused by name, and the old data stays."""
    store.save('a', HISTORY)
    connection = store._database._connection
    assert connection is not None
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
    with pytest.raises(InvalidSession, match='larger than SQLite can hold'):
        store.save('a', {'text': 'x' * 1000})
    assert store.load('a') == HISTORY


# -- the file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('umask', [0o000, 0o077, 0o777])
def test_files_are_private(tmp_path: Path, umask: int) -> None:
    """Whatever the umask, the file and what SQLite puts beside it are 0600, and a folder that is made is 0700."""
    path = tmp_path / 'new' / 'folder' / 'sessions.db'
    before = os.umask(umask)
    try:
        store = SQLiteStore(path)
        store.save('a', HISTORY)
    finally:
        os.umask(before)
    with store:
        modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
        assert modes == {'sessions.db': 0o600, 'sessions.db-wal': 0o600, 'sessions.db-shm': 0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def test_an_empty_file_becomes_a_private_store(path: Path) -> None:
    """A file that is there and empty, as from mktemp or a crash, is taken and made 0600."""
    path.touch(0o644)
    with SQLiteStore(path) as store:
        store.save('a', HISTORY)
        assert {stat.S_IMODE(found.stat().st_mode) for found in companions(path)} == {0o600}


def test_the_mode_of_a_store_is_left_to_its_owner(path: Path) -> None:
    """A file whose mode a person changed keeps it."""
    SQLiteStore(path).close()
    path.chmod(0o640)
    SQLiteStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_saves_wait_for_the_disk(store: SQLiteStore) -> None:
    """The file is in WAL mode, syncs at each commit, and says whose it is and in which format."""
    connection = store._database._connection
    assert connection is not None
    values = [
        connection.execute(f'PRAGMA {name}').fetchone()[0]
        for name in ('journal_mode', 'synchronous', 'busy_timeout', 'application_id', 'user_version')
    ]
    assert values == ['wal', 2, 100, APPLICATION, FORMAT]
    store.close()
    assert store.load('a') is None
    connection = store._database._connection
    assert connection is not None
    assert connection.execute('PRAGMA synchronous').fetchone() == (2,)


def file_of(path: Path, content: bytes) -> bytes:
    """Makes a file."""
    path.write_bytes(content)
    return content


def foreign(path: Path, *statements: str) -> bytes:
    """Makes a database of another program."""
    with raw(path) as connection:
        for statement in statements:
            connection.execute(statement)
    return path.read_bytes()


NOT_OURS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    'one byte': (lambda path: file_of(path, b'x'), 'not a database'),
    'text': (lambda path: file_of(path, b'{"a": 1}\n' * 3), 'not a database'),
    'zeros': (lambda path: file_of(path, bytes(8192)), 'not a database'),
    'much text': (lambda path: file_of(path, b'garbage!' * 5000), 'not a database'),
    'the beginning of a database': (lambda path: file_of(path, b'SQLite format 3\0' + bytes(84)), 'not a database'),
    'tables of another program': (lambda path: foreign(path, 'CREATE TABLE places (url)'), 'of another program'),
    'a sessions table of another program': (
        lambda path: foreign(path, 'CREATE TABLE sessions (id TEXT PRIMARY KEY, data TEXT)', 'PRAGMA user_version = 1'),
        'of another program',
    ),
    'an empty database of another program': (
        lambda path: foreign(path, 'PRAGMA application_id = 252006675'),
        'of another program',
    ),
    'an empty database with a version': (lambda path: foreign(path, 'PRAGMA user_version = 9'), 'of another program'),
}


@pytest.mark.parametrize('name', NOT_OURS)
def test_a_file_that_is_not_ours_is_left_alone(path: Path, name: str) -> None:
    """A file of another kind is refused by name, with what to do, and not a byte of it changes."""
    make, told = NOT_OURS[name]
    before = make(path)
    with pytest.raises(DatabaseUnusable, match=told) as refused:
        SQLiteStore(path)
    assert str(path) in str(refused.value)
    assert refused.value.hint
    assert path.read_bytes() == before
    assert companions(path) == [path]


def test_a_newer_format_is_left_alone(store: SQLiteStore, path: Path) -> None:
    """A file from a newer version is refused with what to do, and stays as it is."""
    store.save('a', HISTORY)
    store.close()
    with raw(path) as connection:
        connection.execute('PRAGMA user_version = 2')
    before = path.read_bytes()
    with pytest.raises(DatabaseUnusable, match='format is version 2') as refused:
        store.load('a')
    assert 'use the trading-agent that wrote it' in refused.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize('kind', ['folder', 'pipe', 'file above', 'dangling link'])
def test_what_is_no_file_is_refused(path: Path, kind: str) -> None:
    """A folder, a pipe, a path below a file and a link to nowhere are refused by name, and stay."""
    if kind == 'folder':
        path.mkdir(0o755)
    elif kind == 'pipe':
        os.mkfifo(path, 0o644)
    elif kind == 'dangling link':
        path.symlink_to('nowhere')
    else:
        path.write_bytes(b'')
    mode = path.lstat().st_mode
    with pytest.raises(StorageError, match=path.name) as refused:
        SQLiteStore(path / 'sessions.db' if kind == 'file above' else path)
    assert refused.value.hint
    assert path.lstat().st_mode == mode
    assert companions(path) == [path]


def test_a_damaged_file_is_told_and_kept(store: SQLiteStore, path: Path) -> None:
    """Damage inside the file is told where it is met, with the file and what to do; the file is not replaced."""
    for number in range(50):
        store.save(f'{number}', {'text': f'{number}' * 2000})
    store.close()
    content = bytearray(path.read_bytes())
    content[8192:] = b'\xa5' * (len(content) - 8192)
    path.write_bytes(content)
    for broken in (lambda: store.load('30'), store.list_sessions, lambda: store.save('new', HISTORY), store.vacuum):
        with pytest.raises(DatabaseUnusable, match='malformed') as told:
            broken()
        assert str(path) in str(told.value)
        assert 'backup' in told.value.hint
    store.close()
    assert path.read_bytes()[8192:] == content[8192:]


def test_a_file_that_was_cut_is_told(store: SQLiteStore, path: Path) -> None:
    """A file that ends too early is told, and stays as it is."""
    for number in range(50):
        store.save(f'{number}', {'text': f'{number}' * 2000})
    store.close()
    content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)
    with pytest.raises(DatabaseUnusable, match='malformed'):
        list(map(store.load, map(str, range(50))))
    store.close()
    assert path.read_bytes() == content


@pytest.mark.parametrize('data', [b'', b'{', b'[1]', b'null', b'\0', b'{"a":"\xff"}', b'{"a":1}{'])
def test_damaged_data_is_told(store: SQLiteStore, path: Path, data: bytes) -> None:
    """Data that somebody else changed into no JSON object is told with the session; the others can be read."""
    store.save('a', HISTORY)
    store.save('b', HISTORY)
    with raw(path) as connection:
        connection.execute('UPDATE sessions SET data = CAST(? AS TEXT) WHERE id = ?', (data, b'a'))
    with pytest.raises(DatabaseUnusable, match='could not load a session from') as told:
        store.load('a')
    assert str(path) in str(told.value)
    assert store.load('b') == HISTORY
    assert store.list_sessions() == ['a', 'b']
    store.save('a', HISTORY)
    assert store.load('a') == HISTORY


def test_a_locked_file_says_try_again(store: SQLiteStore, path: Path) -> None:
    """While another holds the file, a save waits for the timeout and says so; reading goes on; then all is well."""
    store.save('a', HISTORY)
    with raw(path) as other:
        other.execute('BEGIN IMMEDIATE')
        for blocked in (lambda: store.save('a', {}), lambda: store.delete('a'), store.clear, store.vacuum):
            with pytest.raises(DatabaseBusy, match='another process keeps it locked') as told:
                blocked()
            assert str(path) in str(told.value)
            assert 'try again' in told.value.hint
        assert store.load('a') == HISTORY
        other.execute('ROLLBACK')
    store.save('a', {})
    assert store.load('a') == {}


def test_a_file_that_is_being_made_says_try_again(path: Path) -> None:
    """A file that another process is just making is told as busy, and taken once it is done."""
    path.touch()
    with raw(path) as other:
        other.execute('BEGIN EXCLUSIVE')
        with pytest.raises(DatabaseBusy):
            SQLiteStore(path, timeout=0.1)
        other.execute('ROLLBACK')
    with SQLiteStore(path) as store:
        assert store.list_sessions() == []


def test_a_full_disk_leaves_the_old_data(store: SQLiteStore, path: Path) -> None:
    """Without space a save fails by name with what to do, the old data stays, and it works once there is space."""
    store.save('a', HISTORY)
    connection = store._database._connection
    assert connection is not None
    connection.execute('PRAGMA max_page_count = 10')
    with pytest.raises(StorageError, match='full') as told:
        store.save('a', {'text': 'x' * 100_000})
    assert 'free some space' in told.value.hint
    assert str(path) in str(told.value)
    assert store.load('a') == HISTORY
    connection.execute('PRAGMA max_page_count = 10000')
    store.save('a', {'text': 'x' * 100_000})
    assert store.load('a') == {'text': 'x' * 100_000}


def test_a_file_that_was_moved_away_takes_no_saves(store: SQLiteStore, path: Path) -> None:
    """After the file was deleted, or a backup put in its place, sessions go to and come from what is there now."""
    store.save('a', HISTORY)
    store.close()
    backup = path.read_bytes()
    store.save('b', HISTORY)
    for found in companions(path):
        found.unlink()
    store.save('c', HISTORY)
    assert store.list_sessions() == ['c']
    with SQLiteStore(path) as other:
        assert other.list_sessions() == ['c']
    store.close()
    restored = path.with_name('restored')
    restored.write_bytes(backup)
    restored.replace(path)
    assert store.list_sessions() == ['a']


def test_vacuum_gives_space_back(store: SQLiteStore, path: Path) -> None:
    """The file and its log are small again after deletions and a vacuum, and what was not deleted is there."""

    def size() -> int:
        return sum(found.stat().st_size for found in companions(path) if not found.name.endswith('-shm'))

    for number in range(20):
        store.save(f'{number}', {'text': 'x' * 100_000})
    store.save('kept', HISTORY)
    for number in range(20):
        store.delete(f'{number}')
    assert size() > 2_000_000
    store.vacuum()
    assert size() < 50_000
    assert store.list_sessions() == ['kept']
    assert store.load('kept') == HISTORY
    store.close()
    assert SQLiteStore(path).load('kept') == HISTORY


def test_vacuum_waits_for_readers(store: SQLiteStore, path: Path) -> None:
    """A vacuum that a reader of another process holds up says so, loses nothing, and works afterwards."""
    store.save('big', {'text': 'x' * 1_000_000})
    store.save('kept', HISTORY)
    store.delete('big')
    with raw(path) as other:
        other.execute('BEGIN')
        assert other.execute('SELECT count(*) FROM sessions').fetchone() == (1,)
        with pytest.raises(DatabaseBusy):
            store.vacuum()
        assert store.load('kept') == HISTORY
        other.execute('COMMIT')
    store.vacuum()
    assert path.stat().st_size < 50_000
    assert store.load('kept') == HISTORY


def test_a_writer_does_not_keep_a_file_from_its_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal mode cannot be changed because another writes, opening waits for that and then changes it."""
    SQLiteStore(path).close()
    with raw(path) as other:
        other.execute('PRAGMA journal_mode = DELETE')
        other.execute('BEGIN IMMEDIATE')
        monkeypatch.setattr(time, 'sleep', lambda _: other.in_transaction and other.execute('ROLLBACK'))
        with SQLiteStore(path) as store:
            store.save('a', HISTORY)
    with raw(path) as later:
        assert later.execute('PRAGMA journal_mode').fetchone() == ('wal',)


# -- processes ---------------------------------------------------------------------------------------------------

WORK = """
name = sys.argv[2]
for number in range(25):
    store.save(f'{name}-{number}', {'by': name, 'number': number})
    store.save('shared', {'messages': [name] * 500})
    seen = store.load('shared')['messages']
    assert seen == seen[:1] * 500, seen
    store.save(f'gone-{name}', {})
    assert store.delete(f'gone-{name}') is True
    assert store.exists(f'{name}-{number}')
if name == '0':
    store.vacuum()
"""


def test_four_processes_use_one_file_at_once(path: Path) -> None:
    """Processes that make the file, save, load, delete and vacuum at once lose nothing and fail at nothing."""
    workers = [run(WORK, path, number) for number in range(4)]
    for worker in workers:
        finish(worker)
    with SQLiteStore(path) as store:
        expected = {f'{name}-{number}' for name in range(4) for number in range(25)} | {'shared'}
        assert set(store.list_sessions()) == expected
        for session_id in expected - {'shared'}:
            name, number = session_id.split('-')
            assert store.load(session_id) == {'by': name, 'number': int(number)}


MAKE = """
folder, start = os.path.dirname(sys.argv[1]), float(sys.argv[2])
for number in range(40):
    while time.time() < start + number * 0.015:
        pass
    with SQLiteStore(f'{folder}/new-{number}.db') as made:
        made.save(sys.argv[3], {})
"""


def test_processes_may_make_one_file_at_once(path: Path) -> None:
    """Processes that open a file at the instant at which it is made all get it, and none loses a save."""
    start = time.time() + 0.7
    makers = [run(MAKE, path, start, name) for name in range(4)]
    for maker in makers:
        finish(maker)
    for number in range(40):
        with SQLiteStore(path.with_name(f'new-{number}.db')) as store:
            assert store.list_sessions() == ['0', '1', '2', '3']
    assert not list(path.parent.glob('.*'))


SAVE_FOR_EVER = """
for number in range(int(sys.argv[2]), 10**6):
    store.save(f'{number}', {'text': f'{number} ' * 20_000})
    store.save('last', {'number': number})
    print(number, flush=True)
"""


def test_a_killed_process_loses_no_save_that_it_reported(path: Path) -> None:
    """After kill -9 in the middle of saves, several times, each save that was reported is there, whole."""
    reported: list[int] = []
    for _ in range(4):
        process = run(SAVE_FOR_EVER, path, len(reported) and reported[-1] + 1)
        assert process.stdout is not None
        wanted = len(reported) + 15
        while len(reported) < wanted:
            reported.append(int(process.stdout.readline()))
        process.kill()
        said, _ = process.communicate(timeout=SECONDS)
        reported += map(int, said.split())
        with SQLiteStore(path) as store:
            for number in reported:
                assert store.load(f'{number}') == {'text': f'{number} ' * 20_000}
            last = (store.load('last') or {})['number']
            assert last - reported[-1] in (0, 1)
            for unreported in store.list_sessions()[:-1]:
                assert store.load(unreported) == {'text': f'{unreported} ' * 20_000}
    with raw(path) as connection:
        assert connection.execute('PRAGMA integrity_check').fetchall() == [('ok',)]


FORK = """
import threading
store.save('before', {})
stop = threading.Event()
def beside():
    number = 0
    while not stop.wait(0.001):
        store.save('beside', {'number': (number := number + 1)})
thread = threading.Thread(target=beside)
if sys.argv[2] == 'threads':
    thread.start()
ready, go = os.pipe(), os.pipe()
child = os.fork()
if not child:
    store.save('child-0', {})
    os.write(ready[1], b'.')
    os.read(go[0], 1)
    for number in range(1, 20):
        store.save(f'child-{number}', {})
    os._exit(0 if store.exists('parent') else 1)
store.save('parent', {})
os.read(ready[0], 1)
stop.set()
if sys.argv[2] == 'threads':
    thread.join()
store.close()
os.write(go[1], b'.')
_, status = os.waitpid(child, 0)
assert status == 0, status
found = store.list_sessions()
missing = {'before', 'parent', *(f'child-{number}' for number in range(20))} - set(found)
assert not missing, missing
"""


@pytest.mark.parametrize('beside', ['alone', 'threads'])
@pytest.mark.parametrize('when', ['open', 'closed'])
def test_a_store_goes_on_after_a_fork(path: Path, beside: str, when: str) -> None:
    """A fork's child and parent both use the store, one closes it, and what the other saved is there."""
    finish(run(('store.close()\n' if when == 'closed' else '') + FORK, path, beside))


def test_no_work_is_left_to_stores_that_are_gone(path: Path) -> None:
    """A fork after a store was dropped or closed does nothing to it and does not fail."""
    script = 'other = SQLiteStore(sys.argv[1]); del other; store.close()\npid = os.fork()\nif not pid: os._exit(0)\n'
    finish(run(script + 'assert os.waitpid(pid, 0)[1] == 0\nassert store.list_sessions() == []', path))
