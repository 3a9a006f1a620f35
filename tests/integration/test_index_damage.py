"""An index that is damaged, missing or another program's: set aside, told once, made anew, and right again."""

import errno
import itertools
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from index_days import Day, Rows, found, rebuilt, rows_of

from trading_agent.errors import StorageError
from trading_agent.index import database, feed, schema
from trading_agent.index.database import IndexFile
from trading_agent.index.faults import IndexDamaged, IndexStopped
from trading_agent.index.lines import Lines, Place
from trading_agent.index.results import Difference, Progress
from trading_agent.index.sqlite import SqliteIndex

Told = list[tuple[Path, str]]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """What a whole index holds of two desks with a day each."""
    for desk in ('main', 'other'):
        day = Day(tmp_path, desk)
        for number in range(150):
            day.say(f'zebra {number} ' + 'some more words ' * 20)
    rows = rebuilt(tmp_path)
    assert sorted(path.name for path in tmp_path.glob('index*')) == ['index.lock', 'index.sqlite3']
    return rows


def garbage(path: Path) -> None:
    """Overwrites all of it in place."""
    with path.open('r+b') as file:
        file.write(bytes(range(256)) * (path.stat().st_size // 256))


def shorter(path: Path) -> None:
    """Cuts off its second half."""
    with path.open('r+b') as file:
        file.truncate(path.stat().st_size // 2 // 4096 * 4096)


def zeros(path: Path) -> None:
    """Overwrites its second quarter with zero bytes."""
    size = path.stat().st_size // 4096 // 4
    with path.open('r+b') as file:
        file.seek(size * 4096)
        file.write(bytes(size * 4096))


def empty(path: Path) -> None:
    """Cuts off everything."""
    path.write_bytes(b'')


def text(path: Path) -> None:
    """Puts a text in its place."""
    path.write_text('not a database')


def folder(path: Path) -> None:
    """Puts a folder in its place."""
    path.unlink()
    (path / 'inner').mkdir(parents=True)


def foreign(path: Path) -> None:
    """Puts another program's database in its place."""
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE files (name)')
    connection.close()


def no_table(path: Path) -> None:
    """Drops a table."""
    with sqlite3.connect(path) as connection:
        connection.execute('DROP TABLE messages')
    connection.close()


def no_column(path: Path) -> None:
    """Drops a column."""
    with sqlite3.connect(path) as connection:
        connection.execute('ALTER TABLE exchanges DROP COLUMN finished_at')
    connection.close()


@pytest.mark.parametrize(
    'statement',
    [
        "UPDATE files SET offset = 'x', size = 0",
        "UPDATE messages SET trading_date = '20x6-10-19'",
        'DELETE FROM said_config',
    ],
)
def test_rows_that_can_not_be(tmp_path: Path, rows: Rows, statement: str) -> None:
    """A number that is none, a date that is none, a full text without its format: it is set aside, and all is found."""
    with sqlite3.connect(tmp_path / 'index.sqlite3') as connection:
        connection.execute(statement)
    connection.close()
    told: Told = []
    with SqliteIndex(tmp_path, lambda *what: told.append(what)) as index:
        index.catch_up()
        assert len(index.search('zebra', limit=1000)) == 300
    assert len(told) == 1
    assert rows_of(tmp_path) == rows


DAMAGES = [garbage, shorter, zeros, empty, text, folder, foreign, no_table, no_column]


@pytest.mark.parametrize('harm', DAMAGES, ids=lambda harm: harm.__name__)
def test_is_set_aside_and_made_anew(tmp_path: Path, rows: Rows, harm: Callable[[Path], None]) -> None:
    """Whatever became of the file, it is kept beside, told once, and the next look makes a new one that is right."""
    path = tmp_path / 'index.sqlite3'
    harm(path)
    told: Told = []
    with SqliteIndex(tmp_path, lambda *what: told.append(what)) as index:
        index.verify()
        index.catch_up()
        assert rows_of(tmp_path) == rows
        assert index.check() == []
    ((aside, error),) = told
    assert error
    assert aside.name.startswith('index.sqlite3.damaged-2')
    assert aside.exists()
    assert {path.name.partition('damaged')[0] for path in tmp_path.glob('index*')} == {
        'index.lock',
        'index.sqlite3',
        'index.sqlite3.',
    }


@pytest.mark.parametrize('harm', DAMAGES, ids=lambda harm: harm.__name__)
def test_searching_answers_all_the_same(tmp_path: Path, rows: Rows, harm: Callable[[Path], None]) -> None:
    """Whoever searches first mends it: all that was said is found, and later searches find it too."""
    harm(tmp_path / 'index.sqlite3')
    told: Told = []
    with SqliteIndex(tmp_path, lambda *what: told.append(what)) as index:
        assert len(index.search('zebra', limit=1000)) == 300
        assert len(found(index, '149')) == 2
    assert len(told) <= 1  # what no search touches is found by `verify`


@pytest.mark.parametrize('harm', [garbage, shorter, zeros, empty], ids=lambda harm: harm.__name__)
def test_damage_below_an_open_connection(tmp_path: Path, rows: Rows, harm: Callable[[Path], None]) -> None:
    """A connection that has parts of the file in memory notices what became of the rest, and mends it."""
    told: Told = []
    with SqliteIndex(tmp_path, lambda *what: told.append(what)) as index:
        index.verify()
        assert index.search('zebra')
        index.catch_up()
        harm(tmp_path / 'index.sqlite3')
        Day(tmp_path, 'main', '2026-10-20-1').say('lion')
        index.verify()
        index.catch_up()
        assert len(told) == 1
        assert found(index, 'lion') == [('user', 'lion')]
        assert index.check() == []
        index.verify()
        assert len(told) == 1
    assert rows_of(tmp_path) == rebuilt(tmp_path)


def test_a_missing_one_is_made(tmp_path: Path, rows: Rows) -> None:
    """One that was deleted is made anew untold, also while it is open and its log lies there still."""
    told: Told = []
    with SqliteIndex(tmp_path, lambda *what: told.append(what)) as index:
        Day(tmp_path, 'main', '2026-10-20-1').say('lion')
        index.catch_up()
        assert (tmp_path / 'index.sqlite3-wal').stat().st_size > 0
        (tmp_path / 'index.sqlite3').unlink()
        index.catch_up()
        followed = rows_of(tmp_path)
        (tmp_path / 'index.sqlite3').unlink()
        assert len(index.search('zebra', limit=1000)) == 300
    assert followed == rebuilt(tmp_path)
    assert told == []


def test_one_of_another_version_is_made_anew(tmp_path: Path, rows: Rows) -> None:
    """An index of an older or newer program is replaced without a word: it is a copy."""
    path = tmp_path / 'index.sqlite3'
    for version in (schema.VERSION - 1, schema.VERSION + 1):
        with sqlite3.connect(path) as connection:
            connection.execute('DROP TABLE usage')
            connection.execute(f'PRAGMA user_version = {version}')
        connection.close()
        with SqliteIndex(tmp_path, lambda path, error: pytest.fail(f'{path}: {error}')) as index:
            index.catch_up()
        assert rows_of(tmp_path) == rows
    assert not list(tmp_path.glob('*damaged*'))


def test_others_notice_the_new_one(tmp_path: Path, rows: Rows) -> None:
    """Who has the damaged file open goes over to the new one, and nothing is set aside twice."""
    told: Told = []
    with SqliteIndex(tmp_path, lambda *what: told.append(what)) as one, SqliteIndex(tmp_path, told.append) as other:  # type: ignore[arg-type] # it must not be called
        assert one.search('zebra')
        assert other.search('zebra')
        garbage(tmp_path / 'index.sqlite3')
        one.verify()
        Day(tmp_path, 'main', '2026-10-20-1').say('lion')
        other.catch_up()
        assert found(other, 'lion') == found(one, 'lion') == [('user', 'lion')]
        other.close()
        one.catch_up()
    assert len(told) == 1
    assert rows_of(tmp_path) == rebuilt(tmp_path)


def test_many_find_it_damaged_at_once(tmp_path: Path, rows: Rows) -> None:
    """Threads with a connection each that find the same damage set it aside once, and all go on."""
    garbage(tmp_path / 'index.sqlite3')
    told: Told = []
    failures: list[BaseException] = []
    begin = threading.Barrier(6)

    def use() -> None:
        try:
            with SqliteIndex(tmp_path, lambda *what: told.append(what)) as index:
                begin.wait()
                index.catch_up()
                assert len(index.search('zebra', limit=1000)) == 300
        except BaseException as failure:  # noqa: BLE001 - told by the test
            failures.append(failure)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len(told) == 1
    assert rows_of(tmp_path) == rows


def test_a_damage_that_comes_back_ends_in_an_error(tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each new one is damaged too, that is an error in the end, and few copies are kept."""

    def places(*_: object) -> None:
        raise IndexDamaged('again')

    monkeypatch.setattr('trading_agent.index.sqlite.places', places)
    with SqliteIndex(tmp_path, lambda *_: None) as index:
        for _ in range(3):
            with pytest.raises(StorageError, match='again and again: again'):
                index.catch_up()
        monkeypatch.undo()
        index.catch_up()
    assert len(list(tmp_path.glob('*damaged*'))) == 3
    assert rows_of(tmp_path) == rows


@pytest.mark.parametrize('code', ['SQLITE_FULL', 'SQLITE_READONLY', 'SQLITE_IOERR_WRITE', 'SQLITE_CANTOPEN'])
def test_a_disk_that_refuses_is_no_damage(
    tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """What the disk refuses is a storage error with its reason; nothing is set aside, and it goes on by itself."""
    number = {'SQLITE_FULL': errno.ENOSPC, 'SQLITE_IOERR_WRITE': errno.EIO}.get(code, errno.EACCES)

    def purge(*_: object) -> None:
        failure = sqlite3.OperationalError('the disk says no')
        failure.sqlite_errorcode = getattr(sqlite3, code)
        raise failure

    Day(tmp_path, 'main').journal.write_bytes(b'')
    with SqliteIndex(tmp_path, lambda path, error: pytest.fail(f'{path}: {error}')) as index:
        monkeypatch.setattr(schema, 'purge', purge)
        with pytest.raises(StorageError, match='the disk says no') as raised:
            index.catch_up()
        assert raised.value.errno == number
        assert raised.value.hint
        monkeypatch.undo()
        index.catch_up()
    assert rows_of(tmp_path) == rebuilt(tmp_path)


def test_a_workspace_that_cannot_be_written(tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no new index can be made, that is an error of the disk."""

    def refuse(*_: object) -> None:
        raise StorageError('create', tmp_path, OSError(errno.EROFS, 'Read-only file system'))

    (tmp_path / 'index.sqlite3').unlink()
    with SqliteIndex(tmp_path) as index:
        monkeypatch.setattr('trading_agent.files.create', refuse)
        with pytest.raises(StorageError, match='Read-only file system'):
            index.search('zebra')
        monkeypatch.undo()
        assert index.search('zebra')


def test_interrupted_work_leaves_no_trace(tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the middle of making it anew, the old one is whole; the object is of no further use."""
    index = SqliteIndex(tmp_path)
    told = 0

    def interrupt(_: object) -> None:
        nonlocal told
        told += 1
        if told == 3:
            index.interrupt()

    with pytest.raises(IndexStopped):
        index.rebuild(on_progress=interrupt)
    with pytest.raises(IndexStopped):
        index.search('zebra')
    index.close()
    assert rows_of(tmp_path) == rows


def test_somebody_who_writes_all_the_time(tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searching goes on while another process writes; who wants to write waits, and is told so in the end."""
    monkeypatch.setattr(database, 'BUSY_SECONDS', 0.3)
    holder = sqlite3.connect(tmp_path / 'index.sqlite3', isolation_level=None)
    Day(tmp_path, 'main', '2026-10-20-1').say('lion')
    with SqliteIndex(tmp_path, lambda path, error: pytest.fail(f'{path}: {error}')) as index:
        holder.execute('BEGIN IMMEDIATE')
        assert index.search('zebra')
        with pytest.raises(StorageError, match='keeps it locked'):
            index.catch_up()
        holder.execute('ROLLBACK')
        holder.close()
        index.catch_up()
        assert index.search('lion')


# -- check ---------------------------------------------------------------------------------------------------------


def test_check_finds_nothing_wrong(tmp_path: Path, rows: Rows) -> None:
    """A right index has no differences, and checking it writes nothing."""
    path = tmp_path / 'index.sqlite3'
    before = path.read_bytes()
    with SqliteIndex(tmp_path) as index:
        assert index.check() == []
        assert index.check('main') == []
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ('statement', 'table', 'what'),
    [
        ("UPDATE messages SET name = 'x' WHERE number = 3 AND desk = 'main'", 'messages', 'number 3 differs in name'),
        (
            "DELETE FROM tool_calls; DELETE FROM turns WHERE number = 2 AND desk = 'main'",
            'turns',
            'number 2 is missing',
        ),
        (
            """INSERT INTO exchanges SELECT desk, session_id, 9999, trading_date, turn, trigger_id, backend, started_at,
            finished_at FROM exchanges WHERE desk = 'main' AND number = 1""",
            'exchanges',
            'number 9999 is in no file',
        ),
        ("UPDATE files SET damaged = 7 WHERE desk = 'main' AND kind = 'journal'", 'files', 'differs in damaged'),
        (
            "UPDATE files SET digest = 'x' WHERE desk = 'main' AND kind = 'journal'",
            'files',
            'is not what was read of it',
        ),
        (
            """INSERT INTO files SELECT replace(path, 'main', 'gone'), 'gone', session_id, kind, offset, lines, damaged,
            digest, size, mtime_ns FROM files WHERE desk = 'main'""",
            'files',
            'they are gone',
        ),
    ],
)
def test_check_names_what_differs(tmp_path: Path, rows: Rows, statement: str, table: str, what: str) -> None:
    """A row that was changed, is missing or too many is named with its desk, session and table."""
    with sqlite3.connect(tmp_path / 'index.sqlite3') as connection:
        connection.executescript(statement)
    connection.close()
    with SqliteIndex(tmp_path) as index:
        (difference,) = index.check(patience=0)
        assert (difference.session_id, difference.table) == ('2026-10-19-1', table)
        assert what in difference.what
        assert difference.desk == ('gone' if 'gone' in what else 'main')
        index.rebuild()
        assert index.check() == []


def test_check_reads_the_full_text_too(tmp_path: Path, rows: Rows) -> None:
    """A full text that is not that of the messages is a difference."""
    with sqlite3.connect(tmp_path / 'index.sqlite3') as connection:
        connection.execute("INSERT INTO said (said) VALUES ('delete-all')")
    connection.close()
    with SqliteIndex(tmp_path) as index:
        assert [difference.table for difference in index.check()] == ['said']


def test_check_tells_what_is_not_read(tmp_path: Path, rows: Rows) -> None:
    """Bytes that nobody reads within the patience are a difference; those that a daemon reads meanwhile are none."""
    day = Day(tmp_path)
    day.say('lion')
    with SqliteIndex(tmp_path) as index, SqliteIndex(tmp_path) as daemon:
        assert {item.table for item in index.check(patience=0)} == {'files'}
        assert 'bytes are not in the index yet' in index.check(patience=0)[0].what
        reading = threading.Timer(0.2, daemon.catch_up)
        reading.start()
        assert index.check(patience=20) == []
        reading.join()


def test_check_of_none_and_of_garbage(tmp_path: Path, rows: Rows) -> None:
    """No index, and one that cannot be read, are each told as such; nothing is mended."""
    path = tmp_path / 'index.sqlite3'
    garbage(path)
    with SqliteIndex(tmp_path, lambda path, error: pytest.fail(f'{path}: {error}')) as index:
        (difference,) = index.check()
        assert difference.table == 'index'
        assert 'cannot be read' in difference.what
        with pytest.raises(IndexDamaged):
            index.status()
        path.unlink()
        assert index.check() == [Difference('', '', 'index', 'there is none')]
        assert not path.exists()


def test_a_file_that_is_moved_away_by_hand(tmp_path: Path, rows: Rows) -> None:
    """What lies beside a missing index, such as the log of an old one, never becomes part of the new one."""
    shutil.copy(tmp_path / 'index.sqlite3', tmp_path / 'old')
    holder = IndexFile(tmp_path / 'index.sqlite3', lambda *_: None)
    with holder.writing('write') as connection:
        connection.execute("UPDATE messages SET text = 'tiger'")
    for companion in ('-wal', '-shm'):
        shutil.copy(tmp_path / f'index.sqlite3{companion}', tmp_path / f'kept{companion}')
    holder.close()
    (tmp_path / 'index.sqlite3').unlink()
    for companion in ('-wal', '-shm'):
        (tmp_path / f'kept{companion}').rename(tmp_path / f'index.sqlite3{companion}')
    with SqliteIndex(tmp_path) as index:
        index.catch_up()
    assert rows_of(tmp_path) == rows


# -- what becomes of it, and of the files, behind its back -------------------------------------------------------


def delete(path: Path) -> None:
    """Removes it, with what is beside it."""
    for each in path.parent.glob(f'{path.name}*'):
        each.unlink()


@pytest.mark.parametrize('then', [SqliteIndex.verify, SqliteIndex.close])
def test_one_that_is_deleted_while_nothing_else_changes(
    tmp_path: Path, rows: Rows, then: Callable[[SqliteIndex], None]
) -> None:
    """It is made anew by the next look, whatever was done between the two."""
    with SqliteIndex(tmp_path) as index:
        index.catch_up()
        delete(index.path)
        then(index)
        index.catch_up()
    assert rows_of(tmp_path) == rows


def test_one_that_is_deleted_while_all_is_read(tmp_path: Path, rows: Rows) -> None:
    """What went into the one that is gone is read by the next look, though that is for another session only."""
    delete(tmp_path / 'index.sqlite3')
    desks: list[str] = []

    with SqliteIndex(tmp_path) as index:

        def remove(progress: Progress) -> None:
            if desks and progress.desk not in desks:
                delete(index.path)
            desks.append(progress.desk)

        index.catch_up(on_progress=remove)
        index.catch_up(sessions=[(desks[-1], '2026-10-19-1')])
    assert rows_of(tmp_path) == rows


def test_an_old_copy_in_its_place(tmp_path: Path, rows: Rows) -> None:
    """What the copy has not is read by the next look, though no file has changed since the last one."""
    path = tmp_path / 'index.sqlite3'
    shutil.copy(path, tmp_path / 'copy')
    with SqliteIndex(tmp_path) as index:
        Day(tmp_path, 'main', '2026-10-20-1').say('lion')
        index.verify()
        index.catch_up()
        index.close()
        (tmp_path / 'copy').rename(path)
        index.verify()
        index.catch_up()
    assert rows_of(tmp_path) == rebuilt(tmp_path)


def test_a_backup_put_back(tmp_path: Path, rows: Rows) -> None:
    """A session's files as they were once, put back with their times, are read anew by the next look at all."""
    day = Day(tmp_path, 'main')
    before = {path: path.read_bytes() for path in (day.journal, day.log)}
    times = {path: path.stat().st_mtime_ns for path in before}
    day.turns = 500
    with SqliteIndex(tmp_path) as index:
        index.catch_up()
        day.say('lion')
        index.catch_up(sessions=[('main', day.session_id)])
        for path, data in before.items():
            path.write_bytes(data)
            os.utime(path, ns=(times[path], times[path]))
        index.catch_up()
    assert rows_of(tmp_path) == rows


def test_a_session_that_could_not_be_read_for_a_while(
    tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that making it anew could not read is read by the next look."""
    with SqliteIndex(tmp_path) as index:
        index.catch_up()

        def refuse(lines: Lines, _: int) -> None:
            raise StorageError('read', tmp_path / lines.source.name, OSError(errno.EIO, 'Input/output error'))

        with monkeypatch.context() as patch:
            patch.setattr(Lines, 'take', refuse)
            with pytest.raises(StorageError):
                index.rebuild()
        index.catch_up()
    assert rows_of(tmp_path) == rows


def test_files_that_are_away_for_a_moment(tmp_path: Path, rows: Rows) -> None:
    """Files that are moved away while they are read, and back, are read by the next look: also by another process."""
    delete(tmp_path / 'index.sqlite3')
    desk, away = tmp_path / 'desks' / 'main', tmp_path / 'away'

    def move_away(progress: Progress) -> None:
        if progress.desk == 'main' and desk.exists():
            desk.rename(away)

    with SqliteIndex(tmp_path) as index:
        index.catch_up(on_progress=move_away)
        away.rename(desk)
    with SqliteIndex(tmp_path) as index:
        assert index.behind() > 0
        index.catch_up()
    assert rows_of(tmp_path) == rows


def test_a_journal_that_comes_after_its_log(tmp_path: Path, rows: Rows) -> None:
    """A journal that is copied bit by bit, its log being there, ends with each exchange once."""
    delete(tmp_path / 'index.sqlite3')
    day = Day(tmp_path, 'main')
    whole = day.journal.read_bytes()
    cut = whole.rfind(b'\n', 0, len(whole) // 2) + 1
    day.journal.write_bytes(whole[:cut])
    with SqliteIndex(tmp_path) as index:
        index.catch_up()
        with day.journal.open('ab') as file:
            file.write(whole[cut:])
        index.catch_up()
    assert rows_of(tmp_path) == rows


def test_a_journal_that_is_replaced_while_all_is_read(
    tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look reads the new one whole."""
    day = Day(tmp_path, 'main')
    day.turns = 500
    for number in range(300):
        day.say(f'old {number} ' + 'some more words ' * 20)
    other = tmp_path / 'other.jsonl'
    whole = day.journal.read_bytes()
    other.write_bytes(whole.replace(b'old ', b'new '))

    def replace(progress: Progress) -> None:
        if progress.done > len(whole) * 0.8 and other.exists():
            other.rename(day.journal)

    monkeypatch.setattr(feed, 'LOAD_BYTES', 1 << 15)
    with SqliteIndex(tmp_path) as index:
        index.rebuild(on_progress=replace)
        index.catch_up()
    assert rows_of(tmp_path) == rebuilt(tmp_path)


def test_a_folder_in_the_place_of_a_session(tmp_path: Path, rows: Rows) -> None:
    """A session whose files are gone is forgotten, whatever else has their names."""
    day = Day(tmp_path, 'main')
    with SqliteIndex(tmp_path) as index:
        index.catch_up()
        day.journal.unlink()
        day.log.unlink()
        day.log.mkdir()
        index.catch_up()
        assert index.search('zebra', desk='main') == []


def test_a_file_that_is_cut_off_while_it_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another one; nobody waits for its bytes to come back."""
    path = tmp_path / 'log.jsonl'
    path.write_bytes(b'x' * 100_000)
    tries = itertools.count()

    def none_left(*_: int) -> bytes:
        assert next(tries) < 100
        return b''

    monkeypatch.setattr(os, 'pread', none_left)
    assert not Place(offset=50_000, digest='some').is_in(path)


def test_a_full_disk_while_it_is_made_anew(tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one stays, is no damage, and goes on to be read."""
    prepare = schema.prepare

    def on_a_full_disk(connection: sqlite3.Connection) -> int:
        version = prepare(connection)
        (pages,) = connection.execute('PRAGMA page_count').fetchone()
        connection.execute(f'PRAGMA max_page_count = {pages + 3}')
        return version

    day = Day(tmp_path, 'main', '2026-10-20-1')
    for number in range(200):
        day.say(f'lion {number} ' + 'some more words ' * 30)
    monkeypatch.setattr(schema, 'prepare', on_a_full_disk)
    with SqliteIndex(tmp_path, lambda path, error: pytest.fail(f'{path}: {error}')) as index:
        with pytest.raises(StorageError, match='full'):
            index.rebuild()
        assert index.search('zebra')
    assert rows_of(tmp_path) == rows
