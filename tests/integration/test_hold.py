"""A desk that a person holds, lets go, or of which one cancels a trigger; by a clock that goes when it is told to."""

import errno
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from daemon_fakes import MORNING, Gate, answered, config_for, daemon_of, send, told, until

from trading_agent import files
from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon import desk_loop
from trading_agent.daemon import scheduler as scheduler_module
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.desk import Desk as RunningDesk
from trading_agent.daemon.hold import Hold, HoldFile
from trading_agent.daemon.operations import Operations
from trading_agent.errors import DeskUnusable, StorageError
from trading_agent.events import (
    DeskPaused,
    DeskResumed,
    DeskStarted,
    Event,
    RolloverLate,
    RolloverStarted,
    SessionStarted,
    TriggerClosed,
    TurnFinished,
    TurnInterrupted,
    TurnStarted,
)
from trading_agent.memory.trigger_queue import CUT_OFFS_ALLOWED
from trading_agent.routing import backend_health
from trading_agent.trigger import Trigger

EVENING = datetime(2026, 3, 10, 23, 50, tzinfo=INDIA)


def desk_of(daemon: Daemon) -> RunningDesk:
    """Returns the one desk."""
    return daemon.supervisor.desks['main']


def gated(tmp_path: Path, gate: Gate) -> Config:
    """Returns a configuration whose backend is held by the test."""
    return config_for(tmp_path, desks=[Desk(name='main', backends=['held'])], backends={'held': gate.backend()})


def lines(path: Path) -> list[dict[str, Any]]:
    """Returns a file's records."""
    return [json.loads(line) for line in path.read_bytes().split(b'\n') if line] if path.exists() else []


def exchanges(tmp_path: Path, session_id: str = '2026-03-10-1') -> list[str]:
    """Returns the triggers that a session has answered."""
    log = tmp_path / 'desks' / 'main' / 'sessions' / f'{session_id}.jsonl'
    return [record['trigger_id'] for record in lines(log)]


def outcomes(tmp_path: Path) -> list[tuple[str, str]]:
    """Returns every closing on disk, in order."""
    folder = tmp_path / 'desks' / 'main'
    paths = [*sorted((folder / 'triggers').glob('*.jsonl')), folder / 'triggers.jsonl']
    found = [(r['id'], r['outcome']) for path in paths for r in lines(path) if r['type'] == 'closed']
    return list(dict.fromkeys(found))


async def quiet(daemon: Daemon) -> None:
    """Lets the desk do whatever it would do now."""
    await daemon.supervisor.settled()
    for _ in range(20):
        await anyio.sleep(0.005)
    await daemon.supervisor.settled()


def kinds(events: Sequence[Event]) -> list[str]:
    """Returns the names of events."""
    return [type(event).__name__ for event in events]


# -- pause and resume --------------------------------------------------------------------------------------------


async def test_over_midnight(tmp_path: Path) -> None:
    """A desk that is paused over midnight does nothing; on resume it rolls over, once, and then runs what waits."""
    clock = ManualClock(EVENING)
    async with daemon_of(config_for(tmp_path), clock) as daemon:
        desk = desk_of(daemon)
        await answered(daemon, 'main', 'evening')
        await desk.pause('asha', 'a holiday', now=False)
        with daemon.bus.subscribe(RolloverStarted, SessionStarted, TurnStarted, DeskResumed, desk='main') as events:
            clock.advance(timedelta(hours=10))
            await send(daemon, 'main', 'morning')
            await quiet(daemon)
            clock.advance(timedelta(days=2))
            await quiet(daemon)
            status = desk.status()
            assert (status.state, status.session_id, status.queue) == ('paused', '2026-03-10-1', 1)
            assert 'paused by asha at 23:50 IST on 10 Mar: a holiday' in status.reason
            assert '`trading-agent resume main`' in status.reason
            with pytest.raises(DeskUnusable, match='is paused'):
                await desk.roll_over()
            assert told(events, Event) == []
            await desk.resume('ravi')
            await until(lambda: not desk.queue.depth, 'what waited is answered')
            seen = told(events, Event)
            assert kinds(seen) == ['DeskResumed', 'RolloverStarted', 'SessionStarted', 'TurnStarted']
            assert isinstance(seen[0], DeskResumed)
            assert (seen[0].by, seen[0].queue_depth) == ('ravi', 1)
        assert desk.status().state == 'running'
        assert desk.status().reason == ''
    assert exchanges(tmp_path) == ['evening']
    assert exchanges(tmp_path, '2026-03-13-1') == ['morning']
    assert (tmp_path / 'desks' / 'main' / 'sessions' / 'summaries' / '2026-03-10.md').exists()


async def test_triggers_go_stale(tmp_path: Path) -> None:
    """While a desk is paused a trigger is closed as stale when its time is over; the others wait, in their order."""
    clock = ManualClock(MORNING)
    async with daemon_of(config_for(tmp_path), clock) as daemon:
        desk = desk_of(daemon)
        await desk.pause('asha', '', now=False)
        with daemon.bus.subscribe(TriggerClosed) as events:
            await send(daemon, 'main', 'feed')
            await send(daemon, 'main', 'soon over', expires_at=MORNING + timedelta(minutes=5))
            await send(daemon, 'main', 'timed', not_before=MORNING + timedelta(minutes=30))
            await send(daemon, 'main', 'person', priority='person')
            clock.advance(timedelta(minutes=4))
            await quiet(daemon)
            assert told(events, Event) == []
            clock.advance(timedelta(minutes=1))
            (closed,) = await until(lambda: told(events, TriggerClosed), 'it is closed')
            assert (closed.trigger_id, closed.outcome) == ('soon over', 'stale')
            clock.advance(timedelta(hours=1))
            await quiet(daemon)
            assert desk.queue.depth == 3
            await desk.resume('asha')
            await until(lambda: not desk.queue.depth, 'the rest is answered')
    assert exchanges(tmp_path) == ['person', 'feed', 'timed']


async def test_after_a_restart(tmp_path: Path) -> None:
    """A pause survives the end of the process: nothing is run, nothing is lost, and a resume runs all once."""
    clock, config = ManualClock(MORNING), config_for(tmp_path)
    async with daemon_of(config, clock) as daemon:
        await answered(daemon, 'main', 'before')
        await desk_of(daemon).pause('asha', 'lunch', now=False)
        for number in range(5):
            await send(daemon, 'main', f't{number}')
    for _ in range(2):
        async with daemon_of(config, clock) as daemon:
            await quiet(daemon)
            status = desk_of(daemon).status()
            assert (status.state, status.queue) == ('paused', 5)
            assert 'paused by asha at 10:00 IST on 10 Mar: lunch' in status.reason
            assert exchanges(tmp_path) == ['before']
            await send(daemon, 'main', 'stale', expires_at=clock.now() + timedelta(minutes=1))
            receipt = await daemon.bus.send(Trigger('a repeat', 'main', id='t0'))
            assert receipt.status == 'duplicate'
            clock.advance(timedelta(minutes=2))
            await until(lambda: desk_of(daemon).queue.depth == 5, 'the stale one is closed')
            break
    async with daemon_of(config, clock) as daemon:
        await desk_of(daemon).resume('asha')
        await until(lambda: not desk_of(daemon).queue.depth, 'all are answered')
    async with daemon_of(config, clock) as daemon:
        assert desk_of(daemon).status().state == 'running'
    assert exchanges(tmp_path) == ['before', *(f't{number}' for number in range(5))]
    assert not (tmp_path / 'desks' / 'main' / 'paused.json').exists()


async def test_during_a_turn(tmp_path: Path) -> None:
    """A pause lets the running turn end, in its session and recorded; the next one waits."""
    gate = Gate()
    async with daemon_of(gated(tmp_path, gate)) as daemon:
        desk = desk_of(daemon)
        await send(daemon, 'main', 'one')
        await send(daemon, 'main', 'two')
        await until(lambda: gate.seen, 'the turn runs')
        with daemon.bus.subscribe(DeskPaused, TurnInterrupted, TurnFinished) as events:
            await desk.pause('asha', 'news', now=False)
            status = desk.status()
            assert (status.state, status.turn and status.turn.trigger_id) == ('paused', 'one')
            gate.open()
            await until(lambda: desk.queue.depth == 1, 'it is answered')
            await quiet(daemon)
            seen = told(events, Event)
        assert kinds(seen) == ['DeskPaused', 'TurnFinished']
        assert isinstance(seen[0], DeskPaused)
        assert (seen[0].by, seen[0].reason, seen[0].session_id) == ('asha', 'news', '2026-03-10-1')
        assert desk.turn is None
        assert exchanges(tmp_path) == ['one']
        await desk.resume('asha')
        await until(lambda: not desk.queue.depth, 'two is answered')
    assert exchanges(tmp_path) == ['one', 'two']


async def test_at_once(tmp_path: Path) -> None:
    """A pause at once cuts the turn off; it is run again after the resume, with a note, however often that happens."""
    gate = Gate()
    async with daemon_of(gated(tmp_path, gate)) as daemon:
        desk = desk_of(daemon)
        with daemon.bus.subscribe(TurnInterrupted, TurnFinished, TriggerClosed) as events:
            await send(daemon, 'main', 'one')
            for attempt in range(1, CUT_OFFS_ALLOWED + 3):
                await until(lambda attempt=attempt: len(gate.seen) == attempt, 'the turn runs')  # type: ignore[misc]
                await desk.pause('asha', 'stop!', now=True)
                assert desk.turn is None
                (cut,) = told(events, TurnInterrupted)
                assert (cut.trigger_id, cut.attempt, cut.cause) == ('one', attempt, 'pause')
                await quiet(daemon)
                assert len(gate.seen) == attempt
                await desk.resume('asha')
            gate.open()
            await until(lambda: not desk.queue.depth, 'it is answered')
            assert kinds(told(events, Event)) == ['TriggerClosed', 'TurnFinished']
    assert 'cut off' not in gate.seen[0]
    assert 'this is attempt 2' in gate.seen[1]
    assert exchanges(tmp_path) == ['one']
    assert outcomes(tmp_path) == [('one', 'answered')]


async def test_during_a_rollover(tmp_path: Path) -> None:
    """A pause, also one at once, lets a rollover that has begun be finished; then nothing is run."""
    for number, now in enumerate([False, True]):
        gate, clock, folder = Gate(is_open=True), ManualClock(EVENING), tmp_path / str(number)
        async with daemon_of(gated(folder, gate), clock) as daemon:
            desk = desk_of(daemon)
            await answered(daemon, 'main', 'evening')
            gate.shut()
            clock.advance(timedelta(minutes=10))
            await until(lambda gate=gate: gate.seen[-1] == 'review', 'the day is being reviewed')  # type: ignore[misc]
            await send(daemon, 'main', 'night')
            with anyio.fail_after(30):
                await desk.pause('asha', '', now=now)
            gate.open()
            await until(lambda desk=desk: desk.session_id == '2026-03-11-1', 'it has rolled over')  # type: ignore[misc]
            await quiet(daemon)
            assert (desk.status().state, desk.queue.depth, desk.stage) == ('paused', 1, 'waiting')
            await desk.resume('asha')
            await until(lambda desk=desk: not desk.queue.depth, 'it is answered')  # type: ignore[misc]
        assert gate.seen.count('review') == 2  # of the day, and of the skills
        assert exchanges(folder, '2026-03-11-1') == ['night']


async def test_a_rollover_that_waits_for_the_turn(tmp_path: Path) -> None:
    """A rollover that somebody asked for during the turn is refused when the desk is paused before it could begin."""
    gate = Gate()
    async with daemon_of(gated(tmp_path, gate)) as daemon, anyio.create_task_group() as tasks:
        desk = desk_of(daemon)
        refused: list[str] = []

        async def ask() -> None:
            with pytest.raises(DeskUnusable) as caught:
                await desk.roll_over()
            refused.append(str(caught.value))

        await send(daemon, 'main', 'one')
        await until(lambda: gate.seen, 'the turn runs')
        tasks.start_soon(ask)
        await anyio.sleep(0.01)
        await desk.pause('asha', '', now=False)
        gate.open()
        await until(lambda: refused, 'it is refused')
        assert 'is paused' in refused[0]
        assert desk.session_id == '2026-03-10-1'


async def test_while_no_backend_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A desk that waits for a backend tries no more while it is paused, and goes on with the same trigger."""
    monkeypatch.setattr(desk_loop, 'TRY_AGAIN_SECONDS', (0.02, 0.05))
    monkeypatch.setattr(backend_health, 'COOL_DOWN_SECONDS', (0.02, 0.05))
    calls: list[str] = []
    backends = {'bad': Backend(kind='test_hold:failing', options={'calls': calls, 'failures': 1000})}
    config = config_for(tmp_path, desks=[Desk(name='main', backends=['bad'])], backends=backends)
    async with daemon_of(config) as daemon:
        desk = desk_of(daemon)
        await send(daemon, 'main', 'one')
        await until(lambda: len(calls) > 2, 'it is tried again')
        await desk.pause('asha', '', now=True)
        await quiet(daemon)
        tried = len(calls)
        await anyio.sleep(0.2)
        assert len(calls) == tried
        assert desk.status().reason.startswith('paused by asha')
        backends['bad'].options['failures'] = 0
        calls.clear()
        await desk.resume('asha')
        await until(lambda: len(calls) > 2, 'it is tried again')
        await daemon.configuration.apply(config_for(tmp_path))
        await until(lambda: not desk.queue.depth, 'the other backend answers')
    assert exchanges(tmp_path) == ['one']


class Failing:
    """A backend that is not there."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    async def run(self, turn: Any) -> Any:  # noqa: ANN401 - a generator that yields nothing
        self._calls.append(turn.text)
        raise ConnectionError('refused')
        yield


def failing(_: str, options: dict[str, Any]) -> Failing:
    """Makes a backend of this kind."""
    return Failing(options['calls'])


async def test_twice_and_not_at_all(tmp_path: Path) -> None:
    """A second pause replaces the words of the first; who resumes a desk that runs changes nothing."""
    async with daemon_of(config_for(tmp_path)) as daemon:
        desk, operations = desk_of(daemon), Operations(daemon)
        with daemon.bus.subscribe(DeskPaused, DeskResumed, DeskStarted) as events:
            assert (await operations.resume('main', 'asha')).state == 'running'
            assert told(events, Event) == []
            await operations.pause('main', 'asha', 'one', now=False)
            await operations.pause('main', 'ravi', 'two', now=True)
            assert 'paused by ravi at 10:00 IST on 10 Mar: two' in desk.status().reason
            await operations.resume('main', 'asha')
            await operations.resume('main', 'asha')
            assert kinds(told(events, Event)) == ['DeskPaused', 'DeskPaused', 'DeskResumed']
        await answered(daemon, 'main', 'after')


async def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that the disk does not take is refused and the desk goes on; so is a resume, and it stays paused."""

    def full(path: Path, *_: object, **__: object) -> None:
        raise StorageError('replace', path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    async with daemon_of(config_for(tmp_path)) as daemon:
        desk = desk_of(daemon)
        with monkeypatch.context() as patch:
            patch.setattr(files, 'replace', full)
            with pytest.raises(StorageError):
                await desk.pause('asha', '', now=True)
        assert desk.status().state == 'running'
        await answered(daemon, 'main', 'one')
        await desk.pause('asha', '', now=True)
        with monkeypatch.context() as patch:
            patch.setattr(files, 'remove', full)
            with pytest.raises(StorageError):
                await desk.resume('asha')
        await send(daemon, 'main', 'two')
        await quiet(daemon)
        assert (desk.status().state, desk.queue.depth) == ('paused', 1)
        await desk.resume('asha')
        await until(lambda: not desk.queue.depth, 'it is answered')
    assert exchanges(tmp_path) == ['one', 'two']


# -- late --------------------------------------------------------------------------------------------------------


async def test_paused_again_without_a_reason(tmp_path: Path) -> None:
    """The reason that was given holds until another one is given: pausing again without one does not lose it."""
    async with daemon_of(config_for(tmp_path)) as daemon:
        desk = desk_of(daemon)
        for reason, shown in (('outage', 'outage'), ('', 'outage'), ('over', 'over')):
            await desk.pause('asha', reason, now=False)
            assert f': {shown} (' in desk.status().reason


async def test_a_paused_desk_is_not_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A desk that a person holds over midnight is not late, nor is it at once when it is let go hours afterwards."""
    monkeypatch.setattr(scheduler_module, 'TICK_SECONDS', 0.01)
    clock, gate = ManualClock(EVENING), Gate(is_open=True)
    desks = [Desk(name=name, backends=['held']) for name in ('main', 'other')]
    config = config_for(tmp_path, desks=desks, backends={'held': gate.backend()})
    async with daemon_of(config, clock) as daemon:
        for desk in desks:
            await answered(daemon, desk.name, 'evening')
        gate.shut()
        await desk_of(daemon).pause('asha', '', now=False)
        with daemon.bus.subscribe(RolloverLate) as events:
            clock.advance(timedelta(minutes=12, seconds=1))
            (late,) = await until(lambda: told(events, RolloverLate), 'the other one is late')
            assert late.desk == 'other'
            clock.advance(timedelta(hours=9))
            await anyio.sleep(0.1)
            assert told(events, RolloverLate) == []
            await desk_of(daemon).resume('asha')
            await until(lambda: gate.seen.count('review') == 2, 'the day is being reviewed')
            await anyio.sleep(0.1)
            assert told(events, RolloverLate) == []
            clock.advance(timedelta(minutes=2, seconds=1))
            (late,) = await until(lambda: told(events, RolloverLate), 'now it is')
            assert late.desk == 'main'
            gate.open()


# -- the file ----------------------------------------------------------------------------------------------------


DAMAGED = {
    'empty': b'',
    'torn': b'{',
    'a list': b'[]',
    'without its time': b'{"by": "asha"}',
    'bytes': b'\xff\xfe',
    'no time': b'{"at": "yesterday", "by": "a", "reason": ""}',
    'nested': b'[' * 100_000,
    'no version': b'{"version": "two", "at": "2026-03-10T04:30:00Z", "by": "a", "reason": ""}',
}


@pytest.mark.parametrize('content', DAMAGED.values(), ids=DAMAGED)
async def test_a_damaged_file_holds(tmp_path: Path, content: bytes) -> None:
    """A file that cannot be understood holds the desk, says so, and goes when a person resumes it."""
    folder = tmp_path / 'desks' / 'main'
    folder.mkdir(parents=True)
    (folder / 'paused.json').write_bytes(content)
    async with daemon_of(config_for(tmp_path)) as daemon:
        desk = desk_of(daemon)
        await send(daemon, 'main', 'one')
        await quiet(daemon)
        assert (desk.status().state, desk.queue.depth) == ('paused', 1)
        assert 'paused.json is damaged' in desk.status().reason
        await desk.resume('asha')
        await until(lambda: not desk.queue.depth, 'it is answered')
    assert not (folder / 'paused.json').exists()


@pytest.mark.parametrize('content', [b'{"version": 2}', b'{"version": 2, "until": "noon", "by": {"name": "asha"}}'])
async def test_a_file_of_a_newer_version(tmp_path: Path, content: bytes) -> None:
    """A file of a newer version parks the desk; nothing that a person asks of this version overwrites or removes it."""
    path = tmp_path / 'desks' / 'main' / 'paused.json'
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    async with daemon_of(config_for(tmp_path)) as daemon:
        desk, operations = desk_of(daemon), Operations(daemon)
        await send(daemon, 'main', 'one')
        assert desk.status().state == 'parked'
        assert 'has format 2' in desk.status().reason
        assert 'install the newer version' in desk.status().reason
        with pytest.raises(DeskUnusable):
            await operations.pause('main', 'asha', '', now=True)
        with pytest.raises(DeskUnusable):
            await operations.resume('main', 'asha')
        with pytest.raises(DeskUnusable):
            await desk.resume('asha')
        assert path.read_bytes() == content
        path.write_bytes(b'{"at": "2026-03-10T04:30:00Z", "by": "ravi", "reason": "written by this version"}')
        await operations.resume('main', 'asha')
        await until(lambda: not desk.queue.depth, 'it is answered')
    assert not path.exists()


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets the host be somewhere else."""
    monkeypatch.setenv('TZ', 'America/New_York')
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_any_words(tmp_path: Path, in_new_york: None) -> None:
    """Whatever words a person gives are kept; a time without a zone is one in UTC, wherever the host is."""
    file = HoldFile(tmp_path / 'main')
    assert file.read() is None
    file.remove()
    for text in ('', 'lunch', 'जल्दी', '\x00\u2028"\\', 'x' * 100_000):
        hold = Hold(MORNING, text, text)
        file.write(hold)
        assert file.read() == hold
        assert hold.in_words('main').startswith(f'paused by {text} at 10:00 IST on 10 Mar')
    file.write(Hold(MORNING, '\ud800', 'a\udfff'))
    assert file.read() == Hold(MORNING, '\ufffd', 'a\ufffd')
    (tmp_path / 'main' / 'paused.json').write_text('{"at": "2026-03-10T04:30:00", "by": "a", "reason": ""}')
    assert (file.read() or Hold(EVENING, '', '')).in_words('main').startswith('paused by a at 10:00 IST')
    file.remove()
    assert file.read() is None


async def test_both_paused_and_parked(tmp_path: Path) -> None:
    """A parked desk can be paused too; one resume brings it back and lets it go."""
    sessions = tmp_path / 'desks' / 'main' / 'sessions'
    sessions.parent.mkdir(parents=True)
    sessions.write_text('a file in the place of a folder')
    async with daemon_of(config_for(tmp_path)) as daemon:
        desk, operations = desk_of(daemon), Operations(daemon)
        assert desk.status().state == 'parked'
        await operations.pause('main', 'asha', 'until it is mended', now=True)
        assert desk.status().state == 'parked'
        sessions.unlink()
        await operations.resume('main', 'asha')
        await answered(daemon, 'main', 'one')
        assert desk.status().state == 'running'


# -- cancel ------------------------------------------------------------------------------------------------------


async def test_a_waiting_trigger(tmp_path: Path) -> None:
    """A waiting trigger that is cancelled is never run, on a paused desk too; an unknown one is not there to cancel."""
    async with daemon_of(config_for(tmp_path)) as daemon:
        desk = desk_of(daemon)
        await desk.pause('asha', '', now=False)
        for trigger_id in ('one', 'two'):
            await send(daemon, 'main', trigger_id)
        await send(daemon, 'main', 'later', not_before=MORNING + timedelta(hours=1))
        with daemon.bus.subscribe(TriggerClosed) as events:
            for trigger_id in ('one', 'later'):
                result = await desk.cancel(trigger_id, 'ravi', 'a mistake')
                assert result is not None
                assert result.outcome == 'cancelled'
            seen = told(events, TriggerClosed)
            assert [(e.trigger_id, e.outcome, e.by, e.error) for e in seen] == [
                ('one', 'cancelled', 'ravi', 'a mistake'),
                ('later', 'cancelled', 'ravi', 'a mistake'),
            ]
            again = await desk.cancel('one', 'asha', '')
            assert again == result
            assert await desk.cancel('nobody', 'asha', '') is None
            assert told(events, TriggerClosed) == []
        await desk.resume('asha')
        await until(lambda: not desk.queue.depth, 'two is answered')
        too_late = await desk.cancel('two', 'asha', '')
        assert too_late is not None
        assert too_late.outcome == 'answered'
        receipt = await daemon.bus.send(Trigger('again', 'main', id='one'))
        assert receipt.status == 'duplicate'
    assert exchanges(tmp_path) == ['two']
    assert outcomes(tmp_path) == [('one', 'cancelled'), ('later', 'cancelled'), ('two', 'answered')]


async def test_the_running_trigger(tmp_path: Path) -> None:
    """Cancelling the running trigger ends its turn without an exchange, and the desk goes on with the next."""
    gate = Gate()
    async with daemon_of(gated(tmp_path, gate)) as daemon:
        desk = desk_of(daemon)
        await send(daemon, 'main', 'one')
        await send(daemon, 'main', 'two')
        await until(lambda: gate.seen, 'the turn runs')
        with daemon.bus.subscribe(TriggerClosed, TurnInterrupted, TurnFinished) as events:
            result = await desk.cancel('one', 'asha', 'old news')
            assert result is not None
            assert result.outcome == 'cancelled'
            assert kinds(told(events, Event)) == ['TriggerClosed']
            await until(lambda: len(gate.seen) == 2, 'the next one runs')
            gate.open()
            await until(lambda: not desk.queue.depth, 'two is answered')
    assert exchanges(tmp_path) == ['two']
    assert outcomes(tmp_path) == [('one', 'cancelled'), ('two', 'answered')]


async def test_one_that_waits_for_a_slot(tmp_path: Path) -> None:
    """A turn that waits for its model call can be cancelled, and a pause at once reaches it too."""
    gate = Gate()
    desks = [Desk(name=name, backends=['held']) for name in ('first', 'main')]
    config = config_for(tmp_path, desks=desks, backends={'held': gate.backend()}, max_concurrent_turns=1)
    async with daemon_of(config) as daemon:
        desk = desk_of(daemon)
        await send(daemon, 'first', 'holds the slot')
        await until(lambda: gate.seen, 'it runs')
        await send(daemon, 'main', 'one')
        await until(lambda: desk.turn, 'the other one waits for its slot')
        with anyio.fail_after(30):
            assert await desk.cancel('one', 'asha', '')
        await send(daemon, 'main', 'two')
        await until(lambda: desk.turn, 'the next one waits for its slot')
        with anyio.fail_after(30):
            await desk.pause('asha', '', now=True)
        assert len(gate.seen) == 1
        await desk.resume('asha')
        gate.open()
        await until(lambda: not desk.queue.depth, 'it is answered')
    assert exchanges(tmp_path) == ['two']


RACES = 150


async def test_cancel_races_with_the_turn(tmp_path: Path) -> None:
    """At whatever moment a cancel comes, a trigger has one outcome, told once, and an exchange only when answered."""
    rng = random.Random(7)  # noqa: S311 - to be repeated
    results: dict[str, str] = {}
    async with daemon_of(config_for(tmp_path)) as daemon:
        desk = desk_of(daemon)
        with daemon.bus.subscribe(TriggerClosed) as events:
            for number in range(RACES):
                trigger_id = f't{number}'
                await send(daemon, 'main', trigger_id)
                for _ in range(rng.randrange(150)):
                    await anyio.sleep(0 if rng.random() < 0.95 else 0.001)
                found: list[str] = []

                async def cancel(trigger_id: str = trigger_id, found: list[str] = found) -> None:
                    result = await desk.cancel(trigger_id, 'asha', '')
                    assert result is not None
                    found.append(result.outcome)

                async with anyio.create_task_group() as tasks:
                    for _ in range(rng.choice([1, 1, 2])):
                        tasks.start_soon(cancel)
                assert len(set(found)) == 1
                results[trigger_id] = found[0]
            await quiet(daemon)
            closed = [(e.trigger_id, e.outcome) for e in told(events, TriggerClosed)]
    assert sorted(closed) == sorted(results.items())
    assert sorted(outcomes(tmp_path)) == sorted(results.items())
    assert exchanges(tmp_path) == [trigger_id for trigger_id, outcome in results.items() if outcome == 'answered']
    assert set(results.values()) == {'answered', 'cancelled'}


async def test_cancel_races_with_the_expiry(tmp_path: Path) -> None:
    """A trigger whose time is over while it is cancelled has one outcome, told once."""
    rng = random.Random(3)  # noqa: S311 - to be repeated
    clock = ManualClock(MORNING)
    results: dict[str, str] = {}
    async with daemon_of(config_for(tmp_path), clock) as daemon:
        desk = desk_of(daemon)
        await desk.pause('asha', '', now=False)
        with daemon.bus.subscribe(TriggerClosed) as events:
            for number in range(25):
                both = [f't{number}', f'u{number}']
                for trigger_id in both:
                    await send(daemon, 'main', trigger_id, expires_at=clock.now() + timedelta(seconds=1))
                clock.advance(timedelta(seconds=1))
                for _ in range(rng.randrange(20)):
                    await anyio.lowlevel.checkpoint()
                for trigger_id in both:
                    result = await desk.cancel(trigger_id, 'asha', '')
                    assert result is not None
                    results[trigger_id] = result.outcome
            await quiet(daemon)
            closed = [(e.trigger_id, e.outcome) for e in told(events, TriggerClosed)]
    assert sorted(closed) == sorted(results.items())
    assert sorted(outcomes(tmp_path)) == sorted(results.items())
    assert set(results.values()) == {'stale', 'cancelled'}


async def test_pause_races_with_the_turn(tmp_path: Path) -> None:
    """At whatever moment a pause at once comes, nothing runs afterwards, and each trigger is answered exactly once."""
    rng = random.Random(11)  # noqa: S311 - to be repeated
    backend = Backend(kind='offline', options={'chunk_delay': '1ms'})
    config = config_for(tmp_path, backends={'quick': backend}, desks=[Desk(name='main', backends=['quick'])])
    async with daemon_of(config) as daemon:
        desk = desk_of(daemon)
        with daemon.bus.subscribe(TurnStarted, TurnFinished) as events:
            for number in range(60):
                await send(daemon, 'main', f't{number}')
                for _ in range(rng.randrange(60)):
                    await anyio.sleep(0 if rng.random() < 0.9 else 0.001)
                await desk.pause('asha', '', now=True)
                told(events, Event)
                assert desk.turn is None
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                assert told(events, Event) == []
                await desk.resume('asha')
            await until(lambda: not desk.queue.depth, 'all are answered')
    assert sorted(exchanges(tmp_path)) == sorted(f't{number}' for number in range(60))
