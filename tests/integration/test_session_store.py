"""The session store on real files: damage, faults, races, foreign folders, and text of every kind."""

import dataclasses
import errno
import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent import files, json_lines
from trading_agent.errors import InvalidSessionId, StorageError
from trading_agent.memory.daily_summary import split_sections
from trading_agent.memory.session_store import (
    DailySummary,
    Damage,
    Exchange,
    RouteState,
    SessionState,
    SessionStore,
)

DAY = date(2026, 10, 19)
SESSION = '2026-10-19-1'
GOOD = Exchange('told', 'answered', 'claude', '2026-10-19T04:00:00Z')
LINE = json.dumps(GOOD.to_json_dictionary()).encode()
STATE = SessionState(SESSION, DAY, {'claude': RouteState(3, {'id': 'abc'})})

LINE_SEPARATORS = 'a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1ee\r\nf\rg'
NOT_LINES = {
    'a byte that is not UTF-8': LINE[:-1].replace(b'told', b't\xffld') + b'}',
    'cut short': LINE[:-5],
    'no JSON': b'hello',
    'nested too deep': b'[' * 200_000,
    'nested too deep inside': b'{"trigger_text": ' + b'{"a":' * 200_000,
    'nested too deep in an unknown field': LINE[:-1] + b', "more": ' + b'[' * 200_000,
    'a field is missing': b'{"trigger_text": "x"}',
    'a field is no text': LINE.replace(b'"answered"', b'1'),
    'a number beyond all': LINE.replace(b'"answered"', b'1e999'),
    'nothing but a number beyond all': b'1e999',
    'no object': b'[1, 2]',
    'null': b'null',
    'a number of 5,000 digits': b'{"usage": ' + b'9' * 5000 + b'}',
    'zeros': b'\x00' * 512,
    'two on one line': LINE + LINE,
}


@pytest.fixture
def damage() -> list[Damage]:
    """What the store has told."""
    return []


@pytest.fixture
def store(tmp_path: Path, damage: list[Damage]) -> SessionStore:
    """A store whose folder is not there yet."""
    return SessionStore(tmp_path / 'sessions', lambda: DAY, on_damage=damage.append)


def fail(monkeypatch: pytest.MonkeyPatch, name: str, number: int = errno.ENOSPC) -> None:
    """Makes a system call fail from now on."""

    def failing(*_args: object, **_options: object) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, failing)


def log_of(store: SessionStore, *lines: bytes) -> Path:
    """Writes a session's log by hand."""
    store.directory.mkdir(exist_ok=True)
    path = store.directory / f'{SESSION}.jsonl'
    path.write_bytes(b''.join(line + b'\n' for line in lines))
    return path


def content_of(folder: Path) -> dict[str, bytes]:
    """Returns every file in a folder with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


# -- exchanges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('bad', NOT_LINES.values(), ids=NOT_LINES)
def test_damage_costs_one_line_and_is_told_once(store: SessionStore, damage: list[Damage], bad: bytes) -> None:
    """A line that cannot be read is skipped and told once with its number; its neighbours are read; it stays."""
    path = log_of(store, LINE, bad, LINE)
    before = path.read_bytes()
    for _ in range(3):
        assert store.exchanges(SESSION) == [GOOD, GOOD]
    assert [(found.path, found.line) for found in damage] == [(path, 2)]
    assert damage[0].error
    assert len(damage[0].error) <= 500
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    'odd',
    [
        b'\xef\xbb\xbf' + LINE,
        LINE.replace(b'"claude"', b'"claude", "trigger_id": 7, "usage": {"input": 1e999}'),
        LINE.replace(b'"claude"', b'"claude", "usage": 3, "started_at": [], "from_the_future": {"a": [1]}'),
        LINE + b'   \r',
        b'  ' + LINE,
    ],
)
def test_an_oddity_beside_the_text_costs_nothing(store: SessionStore, damage: list[Damage], odd: bytes) -> None:
    """A BOM, a field nobody knows, or an extra field that makes no sense costs at most that field."""
    log_of(store, LINE, odd, LINE)
    assert store.exchanges(SESSION) == [GOOD, GOOD, GOOD]
    assert damage == []


def test_a_lone_surrogate_in_the_file_is_read(store: SessionStore, damage: list[Damage]) -> None:
    r"""An escape such as `\ud800`, which json.dumps writes, is read as U+FFFD and costs no line."""
    log_of(store, LINE.replace(b'answered', b'x\\ud800y'), LINE)
    assert [exchange.answer for exchange in store.exchanges(SESSION)] == ['x\ufffdy', 'answered']
    assert damage == []


def test_each_damaged_line_is_told(store: SessionStore, damage: list[Damage]) -> None:
    """Several damaged lines are each told, with the number that an editor shows."""
    log_of(store, b'1', b'', LINE, b'  ', b'5')
    assert store.exchanges(SESSION) == [GOOD]
    assert [found.line for found in damage] == [1, 5]


def test_a_line_that_is_too_long_costs_itself(
    store: SessionStore, damage: list[Damage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line beyond the limit is told as damaged, and the lines behind it are read."""
    monkeypatch.setattr(json_lines, 'MAX_LINE_BYTES', 1000)
    long = json.dumps({**GOOD.to_json_dictionary(), 'answer': 'x' * 5000}).encode()
    log_of(store, LINE, long, LINE)
    assert store.exchanges(SESSION) == [GOOD, GOOD]
    assert [found.line for found in damage] == [2]


@pytest.mark.parametrize('text', [LINE_SEPARATORS, '\x00', '\x00\x01', '"\\', '\\\u2028', '🙂', 'नमस्ते ₹', '', ' '])
def test_any_text_is_storable(store: SessionStore, damage: list[Damage], text: str) -> None:
    """NUL, separators that other readers split lines at, quotes, and no text at all come back as they were."""
    exchange = Exchange(text, text, text, text, trigger_id=text or None, started_at=text or None)
    store.append_exchange(SESSION, exchange)
    store.append_exchange(SESSION, GOOD)
    assert store.exchanges(SESSION) == [exchange, GOOD]
    assert damage == []


def test_lone_surrogates_are_storable(store: SessionStore) -> None:
    """A lone surrogate is stored as U+FFFD, wherever in the exchange it is."""
    store.append_exchange(SESSION, Exchange('a\ud800', '\udfffb', 'x', 'y', usage={'in\ud800': 1}))
    assert store.exchanges(SESSION) == [Exchange('a\ufffd', '\ufffdb', 'x', 'y', usage={'in\ufffd': 1})]


TEXTS = st.text(st.characters(exclude_categories=()), max_size=30)


@given(data=st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
@settings(deadline=None, max_examples=60)
def test_exchanges_round_trip(data: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is said is read back; a lone surrogate as U+FFFD."""
    told: list[Damage] = []
    store = SessionStore(tmp_path_factory.mktemp('trip') / 'sessions', on_damage=told.append)
    exchanges = [Exchange(text, answer, 'x', 'y') for text, answer in data]
    for exchange in exchanges:
        store.append_exchange(SESSION, exchange)

    def clean(text: str) -> str:
        return text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')

    expected = [Exchange(clean(text), clean(answer), 'x', 'y') for text, answer in data]
    assert store.exchanges(SESSION) == expected
    assert told == []


@given(garbage=st.lists(st.binary(max_size=60).map(lambda data: data.replace(b'\n', b'')), min_size=1, max_size=4))
@settings(deadline=None, max_examples=100)
def test_garbage_never_hides_an_exchange(garbage: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever lines are put between good ones, every good one is read, and each bad one is told by its number."""
    told: list[Damage] = []
    store = SessionStore(tmp_path_factory.mktemp('garbage') / 'sessions', on_damage=told.append)
    log_of(store, *(line for bad in garbage for line in (LINE, bad)), LINE)
    assert store.exchanges(SESSION) == [GOOD] * (len(garbage) + 1)
    assert [found.line for found in told] == [2 * n for n, bad in enumerate(garbage, 1) if bad.strip()]


def test_an_append_after_a_torn_line_is_whole(store: SessionStore, damage: list[Damage]) -> None:
    """A line torn by whoever, also while this store lives, loses itself and never the exchange after it."""
    store.append_exchange(SESSION, GOOD)
    path = store.directory / f'{SESSION}.jsonl'
    with path.open('ab') as other:
        other.write(LINE[:20])
    store.append_exchange(SESSION, GOOD)
    assert store.exchanges(SESSION) == [GOOD, GOOD]
    assert [found.line for found in damage] == [2]


def test_seal_closes_the_tail_of_a_log(store: SessionStore) -> None:
    """`seal` tells whether the last line was torn and closes it; a whole torn line is an exchange."""
    path = log_of(store)
    path.write_bytes(LINE)
    assert store.seal(SESSION) is True
    assert store.seal(SESSION) is False
    assert path.read_bytes() == LINE + b'\n'
    assert store.exchanges(SESSION) == [GOOD]


@pytest.mark.parametrize('call', ['fdatasync', 'pwrite'])
def test_an_exchange_that_is_not_durable_is_not_there(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """When it can't be written or synced, the caller is told, the log is as before, and the next one is stored."""
    store.append_exchange(SESSION, GOOD)
    before = (store.directory / f'{SESSION}.jsonl').read_bytes()
    with monkeypatch.context() as patch:
        fail(patch, call)
        with pytest.raises(StorageError) as caught:
            store.append_exchange(SESSION, GOOD)
    assert caught.value.errno == errno.ENOSPC
    assert (store.directory / f'{SESSION}.jsonl').read_bytes() == before
    store.append_exchange(SESSION, GOOD)
    assert store.exchanges(SESSION) == [GOOD, GOOD]


def test_an_exchange_costs_one_sync(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange is synced once before `append_exchange` returns."""
    store.append_exchange(SESSION, GOOD)
    synced: list[int] = []
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        real(fd)
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, 'fdatasync', fdatasync)
    fail(monkeypatch, 'fsync')
    store.append_exchange(SESSION, GOOD)
    assert synced == [(store.directory / f'{SESSION}.jsonl').stat().st_size]


@pytest.mark.parametrize(
    'bad', ['../2026-10-19-1', '/etc/2026-10-19-1', '2026-10-19-1/../x', '', '.', '2026-10-19', '2026-10-19-0',
            '2026-10-19-01', '2026-02-30-1', '2026-10-19-1\n', '٢٠٢٦-10-19-1', '2026-10-19-1\x00', 'state']
)  # fmt: skip
def test_no_id_becomes_a_path(store: SessionStore, tmp_path: Path, bad: str) -> None:
    """An id that is none, a path for example, is refused on writing and has no exchanges on reading."""
    (tmp_path / '2026-10-19-1.jsonl').write_bytes(LINE + b'\n')
    calls: list[Callable[[], Any]] = [
        lambda: store.append_exchange(bad, GOOD),
        lambda: store.create_session(bad),
        lambda: store.plan_session(bad),
        lambda: store.write_summary_section(bad, 'text'),
        lambda: store.seal(bad),
    ]
    for call in calls:
        with pytest.raises(InvalidSessionId):
            call()
    assert store.exchanges(bad) == []
    assert list(content_of(tmp_path)) == ['2026-10-19-1.jsonl']


# -- state -------------------------------------------------------------------------------------------------------


def state_text(routes: str) -> str:
    """Returns a state with these routes."""
    return f'{{"session_id": "{SESSION}", "trading_date": "2026-10-19", "routes": {routes}}}'


@pytest.mark.parametrize(
    'bad',
    ['null', '3', '[]', '"x"', '{"exchanges_seen": 1e999}', '{"exchanges_seen": -1}', '{"exchanges_seen": null}',
     '{"exchanges_seen": [1]}', '{"exchanges_seen": "many"}', '{"exchanges_seen": 1, "runner_state": 3}',
     '{"exchanges_seen": 1e30}', '{"exchanges_seen": NaN}'],
)  # fmt: skip
def test_a_bad_route_costs_itself(store: SessionStore, damage: list[Damage], bad: str) -> None:
    """A route that makes no sense is left out and told, and the state and its other routes are read."""
    store.directory.mkdir()
    text = state_text(f'{{"bad": {bad}, "claude": {{"exchanges_seen": 3, "runner_state": {{"id": "abc"}}}}}}')
    (store.directory / 'state.json').write_text(text)
    assert store.load_state() == STATE
    assert [(found.path.name, found.line, 'bad' in found.error) for found in damage] == [('state.json', None, True)]


@pytest.mark.parametrize('routes', ['null', '[]', '3', '"x"'])
def test_routes_that_are_none_cost_themselves(store: SessionStore, routes: str) -> None:
    """`routes: null`, or anything else that is no object, leaves the session without routes."""
    store.directory.mkdir()
    (store.directory / 'state.json').write_text(state_text(routes))
    assert store.load_state() == SessionState(SESSION, DAY, {})


def test_a_bom_in_front_of_the_state_costs_nothing(store: SessionStore) -> None:
    """A state that an editor saved with a BOM is read."""
    store.directory.mkdir()
    (store.directory / 'state.json').write_bytes(b'\xef\xbb\xbf' + json.dumps(STATE.to_json_dictionary()).encode())
    assert store.load_state() == STATE


@pytest.mark.parametrize(
    'data',
    [b'', b'{', b'\xff\xfe', b'[' * 200_000, b'null', b'[]', b'1e999', b'{"session_id": "../x"}', b'\x00' * 100,
     b'{"session_id": "2026-10-19-1", "trading_date": null}',
     b'{"session_id": "../../x", "trading_date": "2026-10-19"}',
     b'{"session_id": "2026-10-19-1", "trading_date": "2026-W43-1"}',
     b'{"session_id": null, "trading_date": "2026-10-19"}'],
)  # fmt: skip
def test_a_damaged_state_is_none_and_told_once(store: SessionStore, damage: list[Damage], data: bytes) -> None:
    """A damaged state counts as none, is told once, and stays where it is."""
    store.directory.mkdir()
    path = store.directory / 'state.json'
    path.write_bytes(data)
    assert store.load_state() is None
    assert store.load_state() is None
    assert [(found.path, found.line) for found in damage] == [(path, None)]
    assert path.read_bytes() == data


@given(data=st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_any_bytes_as_state(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever is in state.json, reading it never raises, and it can be replaced."""
    told: list[Damage] = []
    store = SessionStore(tmp_path_factory.mktemp('state'), on_damage=told.append)
    (store.directory / 'state.json').write_bytes(data)
    assert (store.load_state() is None) == bool(told)
    store.save_state(STATE)
    assert store.load_state() == STATE


RUNNER_STATES = st.none() | st.dictionaries(
    st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=2), max_size=3
)


@given(routes=st.dictionaries(st.text(), st.builds(RouteState, st.integers(0, 1 << 40), RUNNER_STATES), max_size=3))
@settings(deadline=None, max_examples=60)
def test_states_round_trip(routes: dict[str, RouteState], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever a backend is called and a runner saves is read back."""
    store = SessionStore(tmp_path_factory.mktemp('state'))
    store.save_state(SessionState(SESSION, DAY, routes))
    assert store.load_state() == SessionState(SESSION, DAY, routes)


def test_a_folder_in_the_place_of_the_state_is_an_error(store: SessionStore, damage: list[Damage]) -> None:
    """A state that is there and cannot be read is an error and not "none yet"; nothing is overwritten."""
    (store.directory / 'state.json' / 'mine').mkdir(parents=True)
    calls: list[Callable[[], Any]] = [
        store.load_state,
        lambda: store.save_state(STATE),
        lambda: store.new_session_id(DAY),
        lambda: store.set_state_aside(datetime.now(UTC)),
    ]
    for call in calls:
        with pytest.raises(StorageError):
            call()
    assert damage == []
    assert [path.name for path in store.directory.iterdir()] == ['state.json']
    assert (store.directory / 'state.json' / 'mine').is_dir()


def test_an_io_error_on_the_state_is_an_error(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that reports an error makes no state disappear."""
    store.save_state(STATE)

    def broken(_path: Path) -> bytes:
        raise OSError(errno.EIO, 'Input/output error')

    with monkeypatch.context() as patch:
        patch.setattr(Path, 'read_bytes', broken)
        with pytest.raises(StorageError) as caught:
            store.load_state()
    assert caught.value.errno == errno.EIO
    assert store.load_state() == STATE


def test_a_file_in_the_place_of_the_folder_is_an_error(store: SessionStore) -> None:
    """Where a file stands instead of the sessions folder, everything is an error, and the file stays."""
    store.directory.write_text('mine')
    calls: list[Callable[[], Any]] = [
        store.load_state,
        lambda: store.save_state(STATE),
        lambda: store.new_session_id(DAY),
        lambda: store.append_exchange(SESSION, GOOD),
        lambda: store.exchanges(SESSION),
        store.session_ids,
        store.summaries,
        store.latest_summary,
        lambda: store.write_summary(DAY, 'text'),
        lambda: store.write_summary_section(SESSION, 'text'),
        lambda: store.seal(SESSION),
    ]
    for call in calls:
        with pytest.raises(StorageError):
            call()
    assert store.directory.read_text() == 'mine'


@pytest.mark.parametrize('call', ['pwrite', 'fsync', 'replace'])
def test_a_failed_save_leaves_the_old_state(store: SessionStore, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Whichever step of a save fails, the old state is read, whole, and the next save works."""
    store.save_state(STATE)
    new = dataclasses.replace(STATE, session_id='2026-10-19-2')
    with monkeypatch.context() as patch:
        fail(patch, call)
        with pytest.raises(StorageError):
            store.save_state(new)
    assert list(content_of(store.directory)) == ['state.json']
    assert store.load_state() == STATE
    store.save_state(new)
    assert store.load_state() == new


def test_only_a_new_session_syncs_the_folder(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that names another session syncs the folder too, the same session's next one only the data."""
    store.save_state(STATE)
    synced: list[bool] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(Path(f'/proc/self/fd/{fd}').resolve() == store.directory.resolve())
        real(fd)

    monkeypatch.setattr(os, 'fsync', fsync)
    store.save_state(dataclasses.replace(STATE, routes={}))
    assert synced == [False]
    store.save_state(dataclasses.replace(STATE, session_id='2026-10-19-2'))
    assert synced == [False, False, True]
    synced.clear()
    # What an earlier process left may not be durable, even if it can be read.
    other = SessionStore(store.directory)
    assert other.load_state() is not None
    other.save_state(dataclasses.replace(STATE, session_id='2026-10-19-2'))
    assert synced == [False, True]


def test_a_damaged_state_is_moved_aside(store: SessionStore) -> None:
    """`set_state_aside` keeps the damaged file under a name with the time; where there is none it does nothing."""
    now = datetime(2026, 10, 19, 4, 30, 1, 250_000, tzinfo=UTC)
    assert store.set_state_aside(now) is None
    store.directory.mkdir()
    (store.directory / 'state.json').write_bytes(b'broken')
    aside = store.set_state_aside(now)
    assert aside == store.directory / 'state.json.damaged-20261019T043001250000Z'
    assert aside.read_bytes() == b'broken'
    assert store.load_state() is None
    assert store.session_ids() == []


# -- ids ---------------------------------------------------------------------------------------------------------


def test_threads_never_get_the_same_id(tmp_path: Path) -> None:
    """Eight threads, half of them with stores of their own, get forty different ids."""
    shared = SessionStore(tmp_path / 'sessions')
    got: list[str] = []
    start = threading.Barrier(8)

    def take(store: SessionStore) -> None:
        start.wait(30)
        got.extend(store.new_session_id(DAY) for _ in range(5))

    stores = [shared] * 4 + [SessionStore(tmp_path / 'sessions') for _ in range(4)]
    threads = [threading.Thread(target=take, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 40
    assert set(got) == set(shared.session_ids())


def test_two_processes_never_get_the_same_id(tmp_path: Path) -> None:
    """Two processes get different ids, and none of theirs is used again when all logs are gone."""
    code = (
        'import sys, datetime, pathlib; from trading_agent.memory.session_store import SessionStore\n'
        'store = SessionStore(pathlib.Path(sys.argv[1])); print("ready", flush=True); sys.stdin.readline()\n'
        'print(*[store.new_session_id(datetime.date(2026, 10, 19)) for _ in range(25)])'
    )
    command = [sys.executable, '-c', code, str(tmp_path / 'sessions')]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == 'ready\n'
    for process in processes:
        assert process.stdin is not None
        process.stdin.write('\n')
        process.stdin.flush()
    got = [session_id for process in processes for session_id in process.communicate(timeout=30)[0].split()]
    assert len(got) == len(set(got)) == 50
    store = SessionStore(tmp_path / 'sessions')
    assert set(store.session_ids()) == set(got)
    for session_id in got:
        (store.directory / f'{session_id}.jsonl').unlink()
    assert store.new_session_id(DAY) not in got


@pytest.mark.parametrize('how', ['moved away', 'compressed', 'renamed', 'all of them'])
def test_an_id_is_not_used_again(store: SessionStore, tmp_path: Path, how: str) -> None:
    """An id stays taken when its log was archived: moved, compressed or renamed, also in a later process."""
    ids = [store.new_session_id(DAY) for _ in range(3)]
    for session_id in ids if how == 'all of them' else ids[-1:]:
        log = store.directory / f'{session_id}.jsonl'
        if how == 'compressed':
            (store.directory / f'{session_id}.jsonl.gz').write_bytes(gzip.compress(log.read_bytes()))
        elif how == 'renamed':
            log.rename(store.directory / f'{session_id}.jsonl.old')
        if log.exists():
            log.rename(tmp_path / log.name)
    assert store.new_session_id(DAY) == '2026-10-19-4'
    later = SessionStore(store.directory)
    assert later.new_session_id(DAY) == '2026-10-19-5'


@pytest.mark.parametrize('kept', ['2026-10-19-3.jsonl.gz', 'state.json', 'summaries/2026-10-19.md'])
def test_whatever_carries_an_id_keeps_it_taken(store: SessionStore, kept: str) -> None:
    """An id that only a compressed log, the state or a summary's heading still knows is not given out again."""
    (store.directory / 'summaries').mkdir(parents=True)
    text = {'state.json': state_text('{}').replace(SESSION, '2026-10-19-3')}.get(kept, '## Session 2026-10-19-3\n\nx')
    (store.directory / kept).write_text(text)
    assert store.next_session_id(DAY) == '2026-10-19-4'
    assert store.new_session_id(DAY) == '2026-10-19-4'
    assert store.new_session_id(date(2026, 10, 20)) == '2026-10-20-1'


@pytest.mark.parametrize('crashed', [False, True])
def test_a_planned_id_is_the_next_one(store: SessionStore, *, crashed: bool) -> None:
    """The planned id is used, also when a crash came after its log was created, and once only."""
    if crashed:
        store.directory.mkdir()
        (store.directory / '2026-10-19-7.jsonl').touch()
    store.plan_session('2026-10-19-7')
    assert store.new_session_id(DAY) == '2026-10-19-7'
    (store.directory / '2026-10-19-7.jsonl').unlink()
    assert SessionStore(store.directory).new_session_id(DAY) == '2026-10-19-8'
    assert store.new_session_id(DAY) == '2026-10-19-9'


def test_a_planned_id_goes_to_one_thread(store: SessionStore) -> None:
    """Of several threads at once, one gets the planned id."""
    store.plan_session('2026-10-19-7')
    got: list[str] = []
    start = threading.Barrier(6)

    def take() -> None:
        start.wait(30)
        got.append(store.new_session_id(DAY))

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [f'2026-10-19-{number}' for number in (10, 11, 12, 7, 8, 9)]


@pytest.mark.parametrize('call', ['pwrite', 'fsync', 'fdatasync'])
def test_an_id_that_could_not_be_created_leaves_no_log(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """When creating fails, the caller is told, no log is left, and a planned id stays planned."""
    store.directory.mkdir()
    store.plan_session('2026-10-19-7')
    with monkeypatch.context() as patch:
        fail(patch, call)
        with pytest.raises(StorageError):
            store.new_session_id(DAY)
        assert store.session_ids() == []
    assert store.new_session_id(DAY) == '2026-10-19-7'


def test_an_id_is_durable_before_its_log(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is created only once its id is recorded, so that no crash between the two lets it be used again."""
    recorded: list[bool] = []
    real = files.create

    def create(path: Path) -> None:
        recorded.append(path.stem in (store.directory / '.session-ids').read_text().split())
        real(path)

    monkeypatch.setattr(files, 'create', create)
    store.new_session_id(DAY)
    assert recorded == [True]


def test_what_is_named_otherwise_is_no_session(store: SessionStore) -> None:
    """Only logs named after a session are sessions; they come newest first, the tenth before the ninth."""
    store.directory.mkdir()
    names = ['2026-10-19-9.jsonl', '2026-10-19-10.jsonl', '2026-10-18-3.jsonl', '2026-10-19-01.jsonl', 'x.jsonl']
    names += ['2026-10-19-1.jsonl.gz', '2026-13-01-1.jsonl', '2026-10-19.jsonl', '.2026-10-19-2.jsonl', 'state.json']
    for name in names:
        (store.directory / name).touch()
    assert store.session_ids() == ['2026-10-19-10', '2026-10-19-9', '2026-10-18-3']


# -- summaries ---------------------------------------------------------------------------------------------------


def test_two_sessions_of_a_day(store: SessionStore) -> None:
    """Each session has its section, in the order of the sessions, whichever was written first."""
    path = store.write_summary_section('2026-10-19-10', 'tenth')
    assert store.write_summary_section('2026-10-19-2', 'second', degraded=True) == path
    assert path == store.summary_path(DAY)
    assert path.read_text() == '## Session 2026-10-19-2 (degraded)\n\nsecond\n\n## Session 2026-10-19-10\n\ntenth\n'
    assert [(part.session_id, part.text, part.degraded) for part in store.summary_sections(DAY)] == [
        ('2026-10-19-2', 'second', True),
        ('2026-10-19-10', 'tenth', False),
    ]


def test_a_section_is_replaced_and_never_doubled(store: SessionStore) -> None:
    """A second summary of a session takes the place of its first, and pays what was owed."""
    store.write_summary_section('2026-10-19-1', 'short', degraded=True)
    store.write_summary_section('2026-10-19-2', 'other')
    assert store.owed_summaries() == ['2026-10-19-1']
    for _ in range(2):
        store.write_summary_section('2026-10-19-1', 'full')
    assert [(part.session_id, part.text) for part in store.summary_sections(DAY)] == [
        ('2026-10-19-1', 'full'),
        ('2026-10-19-2', 'other'),
    ]
    assert store.owed_summaries() == []


def test_debts_come_oldest_first_and_only_from_their_own_day(store: SessionStore) -> None:
    """What is owed is listed oldest first; a heading of another day, copied here by a person, is no debt."""
    store.write_summary_section('2026-10-20-1', 'x', degraded=True)
    store.write_summary_section('2026-10-19-2', 'x', degraded=True)
    store.write_summary_section('2026-10-19-1', 'x', degraded=True)
    store.write_summary(date(2026, 10, 21), '## Session 2026-10-18-1 (degraded)\n\ncopied')
    assert store.owed_summaries() == ['2026-10-19-1', '2026-10-19-2', '2026-10-20-1']


@pytest.mark.parametrize(
    'forged',
    ['## Session 2026-10-19-2', '## Session 2026-10-19-2 (degraded)', '## Session 2026-10-19-2  \t',
     '## Session 2026-10-19-1'],
)  # fmt: skip
@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_a_heading_in_a_text_does_not_split_it(store: SessionStore, forged: str, end: str) -> None:
    """A text with a line like another session's heading stays the text of its own session."""
    text = f'before{end}{forged}{end}after'
    store.write_summary_section('2026-10-19-1', text)
    store.write_summary_section('2026-10-19-3', forged)
    found = store.summary_sections(DAY)
    assert [(part.session_id, part.degraded) for part in found] == [('2026-10-19-1', False), ('2026-10-19-3', False)]
    assert found[0].text == f'before\n\\{forged}\nafter'
    assert store.owed_summaries() == []


def test_a_summary_without_sections_stays_in_front(store: SessionStore) -> None:
    """What stands in a day's file without a heading is kept in front of the sections."""
    store.write_summary(DAY, 'Written by an older program.\n\nOr by a person.')
    store.write_summary_section('2026-10-19-2', 'ours')
    store.write_summary_section('2026-10-19-2', 'ours again')
    preface, sections = split_sections(store.summary_path(DAY).read_text())
    assert preface == 'Written by an older program.\n\nOr by a person.'
    assert [part.text for part in sections] == ['ours again']
    assert store.latest_summary() == DailySummary(DAY, store.summary_path(DAY).read_text().strip())


@pytest.mark.parametrize('blank', ['', '  \n\t '])
def test_an_empty_summary_is_refused(store: SessionStore, blank: str) -> None:
    """A blank text is not filed as a session's summary, and what is there stays."""
    store.write_summary_section(SESSION, 'kept')
    with pytest.raises(ValueError, match='empty'):
        store.write_summary_section(SESSION, blank)
    assert [part.text for part in store.summary_sections(DAY)] == ['kept']


@pytest.mark.parametrize('call', ['pwrite', 'fsync', 'replace'])
def test_a_failed_write_leaves_the_old_summary(store: SessionStore, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Whichever step fails, the old summary is read, whole, and nothing else is left."""
    store.write_summary_section(SESSION, 'old')
    before = content_of(store.directory)
    with monkeypatch.context() as patch:
        fail(patch, call)
        with pytest.raises(StorageError):
            store.write_summary(DAY, 'new')
        with pytest.raises(StorageError):
            store.write_summary_section('2026-10-19-2', 'new')
    assert content_of(store.directory) == before


def test_a_summary_that_cannot_be_read_is_never_overwritten(
    store: SessionStore, damage: list[Damage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the day's file cannot be read, a section is refused instead of taking the place of the others."""
    store.write_summary_section('2026-10-19-1', 'first')
    before = content_of(store.directory)

    def broken(_path: Path) -> bytes:
        raise OSError(errno.EIO, 'Input/output error')

    with monkeypatch.context() as patch:
        patch.setattr(Path, 'read_bytes', broken)
        with pytest.raises(StorageError):
            store.write_summary_section('2026-10-19-2', 'second')
        assert store.summaries() == []
    assert [(found.path, found.line) for found in damage] == [(store.summary_path(DAY), None)]
    assert content_of(store.directory) == before


def test_names_that_are_no_date_are_no_summary(store: SessionStore, damage: list[Damage]) -> None:
    """A week date, an ordinal date, a compact date or any other name is not taken for a day's summary."""
    folder = store.directory / 'summaries'
    folder.mkdir(parents=True)
    names = ['2026-W53-1.md', '2026-W43.md', '20261019.md', '2026-293.md', '2026-02-30.md', '2026-10-19', 'x.md',
             '2026-10-19.md.bak', '.2026-10-19.md', '2026-10-19 (2).md', '٢٠٢٦-10-19.md', '2026-10-19.MD']  # fmt: skip
    for name in names:
        (folder / name).write_text('mine')
    assert store.summaries() == []
    assert store.latest_summary() is None
    assert store.owed_summaries() == []
    (folder / '2026-10-18.md').write_text('a day')
    assert store.summaries() == [DailySummary(date(2026, 10, 18), 'a day')]
    assert damage == []


def test_a_summary_that_is_a_folder_costs_itself(store: SessionStore, damage: list[Damage]) -> None:
    """A summary that cannot be read is left out and told once; the others are read."""
    store.write_summary(DAY, 'fine')
    (store.directory / 'summaries' / '2026-10-20.md').mkdir()
    for _ in range(2):
        assert store.latest_summary() == DailySummary(DAY, 'fine')
    assert [found.path.name for found in damage] == ['2026-10-20.md']


def test_a_summary_takes_any_text(store: SessionStore) -> None:
    """NUL, lone surrogates and a BOM in front do no harm."""
    store.write_summary(DAY, 'a\x00b\ud800c\u2028d')
    assert store.summaries()[0].text == 'a\x00b\ufffdc\u2028d'
    store.summary_path(DAY).write_bytes(b'\xef\xbb\xbf## Session 2026-10-19-1\r\n\r\nwith a \xff BOM\r\n')
    assert [part.text for part in store.summary_sections(DAY)] == ['with a \ufffd BOM']


@given(data=st.binary(max_size=100), heading=st.booleans())
@settings(deadline=None, max_examples=80)
def test_any_bytes_as_a_summary(data: bytes, heading: bool, tmp_path_factory: pytest.TempPathFactory) -> None:  # noqa: FBT001
    """Whatever is in a day's file, it is read without an error and takes a section, and other sections stay."""
    store = SessionStore(tmp_path_factory.mktemp('summary') / 'sessions')
    store.write_summary_section('2026-10-19-1', 'good')
    path = store.summary_path(DAY)
    odd = b'\n## Session 2026-99-99-1\n' if heading else b''
    path.write_bytes(path.read_bytes() + b'\n## Session 2026-10-19-2\n\n' + odd + data)
    store.summaries()
    store.owed_summaries()
    store.write_summary_section('2026-10-19-3', 'new')
    found = {part.session_id: part.text for part in store.summary_sections(DAY)}
    assert (found['2026-10-19-1'], found['2026-10-19-3']) == ('good', 'new')
    assert set(found) >= {'2026-10-19-1', '2026-10-19-2', '2026-10-19-3'}


@given(texts=st.lists(TEXTS.filter(str.strip), min_size=1, max_size=3))
@settings(deadline=None, max_examples=60)
def test_sections_hold_whatever_is_said(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever the sessions of a day say, each is read back as one section."""
    store = SessionStore(tmp_path_factory.mktemp('summary') / 'sessions')
    for number, text in enumerate(texts, 1):
        store.write_summary_section(f'2026-10-19-{number}', text)
    found = store.summary_sections(DAY)
    assert [part.session_id for part in found] == [f'2026-10-19-{number}' for number in range(1, len(texts) + 1)]


def test_sections_written_at_once_are_all_there(store: SessionStore) -> None:
    """Two threads that write sections of one day do not lose each other's."""
    start = threading.Barrier(4)

    def write(number: int) -> None:
        start.wait(30)
        store.write_summary_section(f'2026-10-19-{number}', f'session {number}')

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [part.text for part in store.summary_sections(DAY)] == [f'session {number}' for number in range(1, 5)]


# -- the first program's folder ----------------------------------------------------------------------------------


def test_a_folder_of_the_first_program_is_read_as_it_is(tmp_path: Path, damage: list[Damage]) -> None:
    """State, logs and summaries as the first program writes them are read, and its session goes on."""
    folder = tmp_path / 'sessions'
    (folder / 'summaries').mkdir(parents=True)
    state = {
        'session_id': '2026-10-19-2',
        'trading_date': '2026-10-19',
        'routes': {
            'claude': {'exchanges_seen': 2, 'runner_state': {'session_id': '0b1c'}},
            'gpt': {'exchanges_seen': 0, 'runner_state': None},
        },
    }
    (folder / 'state.json').write_text(json.dumps(state, indent=2), encoding='utf-8')
    (folder / '2026-10-19-1.jsonl').touch()
    told = [{**GOOD.to_json_dictionary(), 'answer': text} for text in ('₹ 25,000', 'a\u2028b', 'two\nlines')]
    with (folder / '2026-10-19-2.jsonl').open('a', encoding='utf-8') as log:
        for data in told:
            log.write(json.dumps(data, ensure_ascii=False) + '\n')
    (folder / 'summaries' / '2026-10-18.md').write_text('A quiet day.\n', encoding='utf-8')

    store = SessionStore(folder, lambda: DAY, on_damage=damage.append)
    loaded = store.load_state()
    assert loaded is not None
    assert loaded.to_json_dictionary() == state
    assert [exchange.to_json_dictionary() for exchange in store.exchanges('2026-10-19-2')] == told
    assert store.session_ids() == ['2026-10-19-2', '2026-10-19-1']
    assert store.latest_summary() == DailySummary(date(2026, 10, 18), 'A quiet day.')
    assert store.new_session_id(DAY) == '2026-10-19-3'
    store.append_exchange('2026-10-19-2', GOOD)
    assert len(store.exchanges('2026-10-19-2')) == 4
    assert damage == []


def test_the_first_program_can_read_ours(store: SessionStore) -> None:
    """Its algorithms, line by `str.splitlines` included, find in our folder what we wrote, whatever is in the texts."""
    session_id = store.new_session_id(DAY)
    exchanges = [
        GOOD,
        Exchange(LINE_SEPARATORS, LINE_SEPARATORS, 'claude', 'x', trigger_id='t', started_at='y', usage={'input': 1}),
        Exchange('\\\u2028', '"\u2029"', 'claude', 'x'),
    ]
    for exchange in exchanges:
        store.append_exchange(session_id, exchange)
    state = dataclasses.replace(STATE, session_id=session_id, routes={'c': RouteState(1, {'a': '\u2028\ud800'})})
    store.save_state(state)
    store.write_summary_section(session_id, 'What happened.')

    text = (store.directory / f'{session_id}.jsonl').read_text(encoding='utf-8')
    read = [json.loads(line) for line in text.splitlines() if line.strip()]
    fields = ('trigger_text', 'answer', 'backend_name', 'finished_at')
    assert [tuple(data[name] for name in fields) for data in read] == [
        tuple(getattr(exchange, name) for name in fields) for exchange in exchanges
    ]
    data = json.loads((store.directory / 'state.json').read_text(encoding='utf-8'))
    assert (data['session_id'], date.fromisoformat(data['trading_date'])) == (session_id, DAY)
    assert data['routes']['c'] == {'exchanges_seen': 1, 'runner_state': {'a': '\u2028\ud800'}}
    # It globs for *.jsonl and takes every such file for a session, and every dated .md for a summary.
    assert [path.stem for path in store.directory.glob('*.jsonl')] == [session_id]
    assert [path.stem for path in (store.directory / 'summaries').glob('*.md')] == ['2026-10-19']


@pytest.mark.parametrize('umask', [0o000, 0o777], ids=oct)
def test_everything_is_the_owners_alone(store: SessionStore, umask: int) -> None:
    """Under any umask each file is 0600 and each folder 0700."""
    before = os.umask(umask)
    try:
        session_id = store.new_session_id(DAY)
        store.append_exchange(session_id, GOOD)
        store.append_exchange('2026-10-19-5', GOOD)
        store.save_state(STATE)
        store.write_summary_section(session_id, 'text')
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o7777 for path in [store.directory, *store.directory.rglob('*')]}
    assert len(modes) == 7
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
