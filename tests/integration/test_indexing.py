"""The index in a daemon: fed while desks answer, mended when it is damaged, and never in their way."""

import errno
import itertools
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from blockbuster import blockbuster_ctx
from daemon_fakes import answered, config_for, daemon_of, told, until
from index_days import Day, rebuilt, rows_of

from trading_agent.config import Desk
from trading_agent.daemon import indexing
from trading_agent.daemon.indexing import Indexing
from trading_agent.errors import StorageError
from trading_agent.event_bus import EventBus
from trading_agent.events import ComponentFailed, IndexLagged, StoreDamaged, TurnFinished, WriteFailed
from trading_agent.index import feed
from trading_agent.index.lines import Lines
from trading_agent.index.sqlite import SqliteIndex


async def in_index(workspace: Path, query: str, count: int = 1) -> None:
    """Returns once so many messages of users are found, by an index object of its own, in a thread."""

    def search() -> bool:
        with SqliteIndex(workspace) as index:
            hits = index.search(query, limit=10_000) if index.exists else []
            return index.exists and sum(hit.who == 'user' for hit in hits) == count

    await anyio.to_thread.run_sync(wait_for, search)


async def read_up(workspace: Path) -> None:
    """Returns once there is an index that has all that is in the files."""

    def done() -> bool:
        with SqliteIndex(workspace) as index:
            return index.exists and index.behind() == 0

    await anyio.to_thread.run_sync(wait_for, done)


def wait_for(condition: Callable[[], bool]) -> None:
    """Returns once a condition is true."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_what_was_said_is_found_soon(tmp_path: Path) -> None:
    """A turn is in the index within moments of its end, with nobody asking for it."""
    async with daemon_of(config_for(tmp_path, desks=[Desk(name='main'), Desk(name='other')]), index=True) as daemon:
        for number in range(5):
            await answered(daemon, 'main', f'zebra{number}')
            await answered(daemon, 'other', f'zebra{number}')
        await read_up(tmp_path)
        with SqliteIndex(tmp_path) as index:
            hits = index.search('zebra3')
        assert {(hit.desk, hit.who, hit.trigger_id) for hit in hits if hit.who == 'user'} == {
            ('main', 'user', 'zebra3'),
            ('other', 'user', 'zebra3'),
        }
    assert rows_of(tmp_path) == rebuilt(tmp_path)


async def test_a_daemon_without_one(tmp_path: Path) -> None:
    """Without faces none is kept, unless it is asked for: `replay` goes as fast as before, and search makes it then."""
    async with daemon_of(config_for(tmp_path)) as daemon:
        await answered(daemon, 'main', 'zebra')
    assert not (tmp_path / 'index.sqlite3').exists()
    with SqliteIndex(tmp_path) as index:
        assert any(hit.who == 'user' for hit in index.search('zebra'))


def garbage(path: Path) -> None:
    """Overwrites it in place."""
    with path.open('r+b') as file:
        file.write(b'\xa5' * path.stat().st_size)


def shorter(path: Path) -> None:
    """Cuts it off in its middle."""
    with path.open('r+b') as file:
        file.truncate(path.stat().st_size // 2)


def is_whole(index: SqliteIndex) -> bool:
    """Whether an index has everything, and nothing else."""
    return index.exists and not index.check(patience=0) and not index.behind()


@pytest.mark.parametrize('harm', [garbage, shorter, Path.unlink])
async def test_damage_is_mended_while_desks_answer(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """A damaged or deleted index is made anew whole with the next turns, told once, and the desks are not touched."""
    Day(tmp_path, 'elsewhere', '2026-02-19-1').say('tiger')
    async with daemon_of(config_for(tmp_path), index=True) as daemon:
        with daemon.bus.subscribe() as events:
            for number in range(30):
                await answered(daemon, 'main', f'zebra{number}')
            await read_up(tmp_path)
            index = SqliteIndex(tmp_path)
            harm(tmp_path / 'index.sqlite3')
            with anyio.fail_after(30):
                # What the database still holds in memory may hide the damage from one turn, not from the next ones.
                for number in itertools.count():
                    await answered(daemon, 'main', f'lion{number}')
                    await anyio.sleep(0.1)
                    if await anyio.to_thread.run_sync(is_whole, index):
                        break
            damage = told(events, StoreDamaged)
        if harm is Path.unlink:
            assert damage == []
        else:
            assert [event.path for event in damage] == [str(tmp_path / 'index.sqlite3')]
            assert 'damaged-' in damage[0].hint
        assert len(index.search('lion*')) >= 1
        index.close()
    assert rows_of(tmp_path) == rebuilt(tmp_path)


class Faulty:
    """Lets the index fail for as long as a test wants it to.

    Attributes:
        error: What is raised; None for nothing.
        calls: How often it was looked for something to read.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.calls = 0
        real = SqliteIndex.catch_up

        def catch_up(index: SqliteIndex, **how: object) -> bool:
            self.calls += 1
            if self.error is not None:
                raise self.error
            return real(index, **how)  # type: ignore[arg-type] # as it was called

        monkeypatch.setattr(SqliteIndex, 'catch_up', catch_up)


@pytest.mark.parametrize('kind', [WriteFailed, ComponentFailed])
async def test_a_failure_is_told_once_and_gets_over_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[WriteFailed | ComponentFailed]
) -> None:
    """A full disk, or a fault of the program, is told once while it lasts; desks go on, and then so does the index."""
    monkeypatch.setattr(indexing, 'AGAIN_SECONDS', (0.02, 0.04))
    faulty = Faulty(monkeypatch)
    failure: Exception = StorageError('write', tmp_path / 'index.sqlite3', OSError(errno.ENOSPC, 'No space left'))
    if kind is ComponentFailed:
        failure = RuntimeError('a fault')
    async with daemon_of(config_for(tmp_path), index=True) as daemon:
        await answered(daemon, 'main', 'zebra')
        for _ in range(2):
            with daemon.bus.subscribe() as events:
                faulty.error, faulty.calls = failure, 0
                await answered(daemon, 'main', f'lion{time.monotonic_ns()}')
                await until(lambda: faulty.calls > 5, 'it is tried again and again')
                faulty.error = None
                await read_up(tmp_path)
                failures = told(events, kind)
            assert len(failures) == 1
            assert failures[0].error
            assert failures[0].hint
    assert rows_of(tmp_path) == rebuilt(tmp_path)


async def test_it_says_when_it_lags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind for long, that is told once with how much is left and why; caught up and behind again, once more."""
    monkeypatch.setattr(indexing, 'AGAIN_SECONDS', (0.02, 0.04))
    monkeypatch.setattr(indexing, 'LAGGED_SECONDS', 0.2)
    faulty = Faulty(monkeypatch)
    async with daemon_of(config_for(tmp_path), index=True) as daemon:
        with daemon.bus.subscribe() as events:
            lags: list[IndexLagged] = []
            for number in (1, 2):
                faulty.error = StorageError('write', tmp_path / 'index.sqlite3', OSError(errno.EROFS, 'Read-only'))
                await answered(daemon, 'main', f'zebra{number}')
                lags += await until(lambda: told(events, IndexLagged), 'it is told')
                assert len(lags) == number
                faulty.error = None
                await read_up(tmp_path)
            assert not told(events, IndexLagged)
    for lag in lags:
        assert lag.behind_bytes > 0
        assert 'Read-only' in lag.error
        assert lag.hint


async def test_a_long_way_to_go_is_a_lag_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it reads for long the lag is told without an error, from the first byte on, and is over at the last."""
    monkeypatch.setattr(indexing, 'LAGGED_SECONDS', 0.1)
    batch = feed.Feed._batch

    def slow(*arguments: Any) -> Any:  # noqa: ANN401 - as it is
        time.sleep(0.4)
        return batch(*arguments)

    monkeypatch.setattr(feed.Feed, '_batch', slow)
    day = Day(tmp_path, 'main', '2026-02-19-1')
    for number in range(300):
        day.say(f'zebra {number}')
    async with daemon_of(config_for(tmp_path), index=True) as daemon:
        with daemon.bus.subscribe(since='oldest') as events:
            await in_index(tmp_path, 'zebra', 300)
            (lag,) = await until(lambda: told(events, IndexLagged), 'it is told')
    assert lag.error == ''
    assert 0 < lag.behind_bytes < day.journal.stat().st_size + day.log.stat().st_size + 10_000


async def test_it_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a long way to go it ends, and the next run goes on from there."""
    for number in range(4):
        day = Day(tmp_path, 'main', f'2026-02-{number + 10}-1')
        day.append(*(part for number in range(1500) for part in day.turn(f'zebra {number} ' + 'words ' * 50)))
    bus = EventBus()
    part = Indexing(tmp_path, bus)
    async with anyio.create_task_group() as tasks:
        await tasks.start(part.run)
        index = SqliteIndex(tmp_path)
        total = index.behind()
        await until(lambda: index.exists and 0 < index.behind() < total, 'it is under way')
        part.stop()
    left = index.behind()
    assert 0 < left < total
    index.close()
    monkeypatch.setattr(indexing, 'PAUSE_SECONDS', 0)
    part = Indexing(tmp_path, bus)
    async with anyio.create_task_group() as tasks:
        await tasks.start(part.run)
        await until(lambda: index.behind() == 0, 'the rest is read', 60)
        part.stop()
    index.close()
    assert rows_of(tmp_path) == rebuilt(tmp_path)


async def test_idle_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing to read it holds no file open, and does not look before a minute is over."""
    monkeypatch.setattr(indexing, 'LET_GO_SECONDS', 0.05)
    faulty = Faulty(monkeypatch)
    async with daemon_of(config_for(tmp_path), index=True) as daemon:
        await answered(daemon, 'main', 'zebra')
        await in_index(tmp_path, 'zebra')
        await until(lambda: not (tmp_path / 'index.sqlite3-wal').exists(), 'it is closed')
        calls = faulty.calls
        await anyio.sleep(0.5)  # nothing is to happen meanwhile
        assert faulty.calls == calls
    assert indexing.LOOK_SECONDS >= 60


async def test_a_lost_event_costs_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody told of is read at the next look."""
    monkeypatch.setattr(indexing, 'LOOK_SECONDS', 0.2)
    async with daemon_of(config_for(tmp_path), index=True):
        await in_index(tmp_path, 'zebra', 0)
        Day(tmp_path, 'main', '2026-02-19-1').say('zebra')
        await in_index(tmp_path, 'zebra', 1)


async def test_an_event_without_a_session_looks_at_everything(tmp_path: Path) -> None:
    """An event that does not name its session makes all files be looked at."""
    async with daemon_of(config_for(tmp_path), index=True) as daemon:
        await answered(daemon, 'main', 'lion')
        await in_index(tmp_path, 'lion')
        Day(tmp_path, 'elsewhere', '2026-02-19-1').say('zebra')
        fields = {'trigger_id': 't', 'turn_id': 't:1', 'attempt': 1, 'backend': 'b', 'preferred': True}
        daemon.bus.publish(TurnFinished(**fields, duration_ms=1, exchanges=1, answer='x'))  # type: ignore[arg-type]
        await in_index(tmp_path, 'zebra', 1)


async def test_nothing_blocks_the_event_loop(tmp_path: Path) -> None:
    """Neither feeding, mending nor stopping waits for the disk or the database in the event loop's thread."""
    Day(tmp_path, 'main', '2026-02-19-1').say('zebra')
    (tmp_path / 'index.sqlite3').write_bytes(b'no index')
    bus = EventBus()
    seen: list[int] = []
    connect = sqlite3.connect
    with blockbuster_ctx('trading_agent'), bus.subscribe() as events, pytest.MonkeyPatch.context() as patch:

        def connecting(*arguments: object, **options: object) -> sqlite3.Connection:
            seen.append(threading.get_ident())
            return connect(*arguments, **options)  # type: ignore[call-overload,no-any-return]

        patch.setattr(sqlite3, 'connect', connecting)
        part = Indexing(tmp_path, bus)
        async with anyio.create_task_group() as tasks:
            await tasks.start(part.run)
            await until(lambda: told(events, StoreDamaged), 'it is mended')
            await anyio.to_thread.run_sync(wait_for, (tmp_path / 'index.sqlite3').exists)
            part.stop()
    assert seen
    assert threading.get_ident() not in seen


async def test_a_cancelled_daemon_ends_it(tmp_path: Path) -> None:
    """A program around it that is cancelled gets its daemon ended, in the middle of reading too."""
    day = Day(tmp_path, 'main', '2026-02-19-1')
    day.append(*(part for number in range(3000) for part in day.turn(f'zebra {number} ' + 'words ' * 50)))

    async def run(started: Callable[[], Awaitable[None]]) -> None:
        async with daemon_of(config_for(tmp_path), index=True):
            await started()
            await anyio.sleep_forever()

    async def begun() -> None:
        await until((tmp_path / 'index.sqlite3').exists, 'it has begun')
        tasks.cancel_scope.cancel()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, begun)
    with suppress(FileNotFoundError), SqliteIndex(tmp_path) as index:
        assert index.behind() > 0


async def test_a_desk_that_cannot_be_read_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one desk that cannot be read are told once; what the others say is found as soon as ever."""
    monkeypatch.setattr(indexing, 'LOOK_SECONDS', 0.1)
    Day(tmp_path, 'broken', '2026-02-19-1').say('zebra')
    (tmp_path / 'desks' / 'no-desk').write_text('a file')
    real = Lines.take
    looks = 0

    def take(lines: Lines, most_bytes: int) -> Iterable[tuple[int, bytes]]:
        nonlocal looks
        if 'broken' in lines.source.name:
            looks += 1
            raise StorageError('read', tmp_path / lines.source.name, OSError(errno.EIO, 'Input/output error'))
        return real(lines, most_bytes)

    monkeypatch.setattr(Lines, 'take', take)
    async with daemon_of(config_for(tmp_path), index=True) as daemon:
        with daemon.bus.subscribe(since='oldest') as events:
            for number in range(3):
                await answered(daemon, 'main', f'lion{number}')
                await in_index(tmp_path, f'lion{number}')
            before = looks
            await until(lambda: looks > before + 3, 'it is tried again')
            (lag,) = told(events, IndexLagged)
            assert lag.path.endswith('desks/broken/journal/2026-02-19-1.jsonl')
            assert 'Input/output error' in lag.error
            assert lag.behind_bytes > 0
            monkeypatch.undo()
            monkeypatch.setattr(indexing, 'LOOK_SECONDS', 0.1)
            await in_index(tmp_path, 'zebra')
