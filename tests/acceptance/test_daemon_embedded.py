"""The whole daemon within another program, by a clock that goes when it is told to."""

import errno
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from desk_files import DeskFiles
from process import DEADLINE, eventually

from trading_agent import files
from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon import desk_loop, restarts
from trading_agent.daemon import supervisor as supervisor_module
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.scheduler import Scheduler
from trading_agent.daemon.status import DeskStatus
from trading_agent.daemon.turns import Turns
from trading_agent.errors import ConfigurationError, DeskUnusable, StorageError, WorkspaceLocked
from trading_agent.event_bus import Subscription
from trading_agent.events import (
    DeskParked,
    DeskRestarted,
    Event,
    SessionStarted,
    TriggerClosed,
    TurnFinished,
    TurnInterrupted,
    WriteFailed,
)
from trading_agent.memory.trigger_queue import Entry
from trading_agent.routing import model_router
from trading_agent.trigger import Trigger
from trading_agent.units import Duration, TimeOfDay

MORNING = datetime(2026, 3, 10, 10, tzinfo=INDIA)


def config_for(workspace: Path, *, desks: list[Desk] | None = None, **backends: Backend) -> Config:
    """Returns a configuration; a backend `offline` is always there."""
    return Config(
        workspace=workspace,
        backends={'offline': Backend(kind='offline'), **backends},
        desks=desks or [Desk(name='main')],
    )


def offline(**options: Any) -> Backend:  # noqa: ANN401 - as in the configuration
    """Returns a built-in backend."""
    return Backend(kind='offline', options=options)


def plug_in(kind: str, **options: Any) -> Backend:  # noqa: ANN401 - live objects
    """Returns a backend of this folder."""
    return Backend(kind=f'drill_backends:{kind}', options=options)


def told(events: Subscription) -> list[Event]:
    """Returns what was published since the last look."""
    return [item.event for item in events.ready(1 << 20)]


def status_of(daemon: Daemon, desk: str) -> DeskStatus:
    """Returns a desk's status."""
    return next(status for status in daemon.operations.status().desks if status.name == desk)


async def ask(daemon: Daemon, desk: str, trigger_id: str) -> None:
    """Sends a trigger and waits for its answer."""
    with daemon.bus.subscribe(TurnFinished, desk=desk) as events:
        receipt = await daemon.bus.send(Trigger('hello', desk, id=trigger_id))
        assert receipt.status == 'accepted'
        await eventually(lambda: trigger_id in [e.trigger_id for e in told(events)], f'{trigger_id} is answered')  # type: ignore[attr-defined]


async def test_it_begins_and_ends(tmp_path: Path) -> None:
    """since='oldest' gets the first session_started, and after the end nothing holds the workspace."""
    config = config_for(tmp_path)
    for reason in ('first', 'resumed'):
        async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
            with daemon.bus.subscribe(SessionStarted, since='oldest') as events:
                (started,) = told(events)
            assert isinstance(started, SessionStarted)
            assert (started.reason, started.session_id) == (reason, '2026-03-10-1')
            await ask(daemon, 'main', f'asked-{reason}')
    assert not (tmp_path / 'control.sock').exists()
    assert (tmp_path / 'trading-agent.lock').read_bytes() == b''
    assert DeskFiles(tmp_path / 'desks' / 'main').answered() == ['asked-first', 'asked-resumed']


async def test_its_program_fails(tmp_path: Path) -> None:
    """An exception of the embedding program comes out as itself, after the running turn has ended and is on disk."""
    config = config_for(tmp_path, offline=offline(delay='1s'))
    mine = LookupError('of the program around it')

    async def program() -> None:
        async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
            await daemon.bus.send(Trigger('hello', 'main', id='running'))
            await eventually(lambda: status_of(daemon, 'main').turn, 'the turn runs')
            raise mine

    with pytest.raises(LookupError) as caught:
        await program()
    assert caught.value is mine
    assert DeskFiles(tmp_path / 'desks' / 'main').answered() == ['running']
    async with Daemon(config, clock=ManualClock(MORNING)):
        pass


async def test_its_program_is_cancelled(tmp_path: Path) -> None:
    """A program that is cancelled with a daemon in it lets the running turn end, and everything is let go of."""
    config = config_for(tmp_path, offline=offline(delay='1s'))
    with anyio.move_on_after(DEADLINE) as scope:
        async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
            await daemon.bus.send(Trigger('hello', 'main', id='running'))
            await eventually(lambda: status_of(daemon, 'main').turn, 'the turn runs')
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
        await ask(daemon, 'main', 'after')
    assert DeskFiles(tmp_path / 'desks' / 'main').answered() == ['running', 'after']


async def test_two_in_one_program(tmp_path: Path) -> None:
    """Two daemons on two workspaces live in one program; a second one on one of them is refused as itself."""
    one, two = config_for(tmp_path / 'one'), config_for(tmp_path / 'two')
    async with Daemon(one, clock=ManualClock(MORNING)) as first, Daemon(two, clock=ManualClock(MORNING)) as second:
        with pytest.raises(WorkspaceLocked):
            await Daemon(one, clock=ManualClock(MORNING)).__aenter__()
        await ask(first, 'main', 'in-one')
        await ask(second, 'main', 'in-two')
    assert DeskFiles(tmp_path / 'two' / 'desks' / 'main').answered() == ['in-two']


async def test_a_backend_that_cannot_be_made(tmp_path: Path) -> None:
    """A plug-in that raises when it is made is a ConfigurationError that names its key, and no file is made."""
    config = config_for(tmp_path / 'ws', desks=[Desk(name='main', backends=['bad'])], bad=plug_in('counting', wrong=1))
    with pytest.raises(ConfigurationError, match=r'backends\.bad\.kind'):
        await Daemon(config, clock=ManualClock(MORNING)).__aenter__()
    assert not (tmp_path / 'ws').exists()


async def test_not_before_and_expiry(tmp_path: Path) -> None:
    """A trigger runs at the instant of its not_before, and one that has expired is closed as stale."""
    clock = ManualClock(MORNING)
    async with Daemon(config_for(tmp_path), clock=clock) as daemon:
        with daemon.bus.subscribe(TurnFinished, TriggerClosed) as events:
            at = MORNING + timedelta(hours=5, minutes=10)
            await daemon.bus.send(Trigger('at 15:10', 'main', id='timed', not_before=at))
            late = Trigger('never', 'main', id='late', not_before=at, expires_at=at - timedelta(minutes=1))
            await daemon.bus.send(late)
            await ask(daemon, 'main', 'now')
            clock.advance(at - timedelta(minutes=1, seconds=1))
            await daemon.supervisor.settled()
            clock.advance(at - timedelta(seconds=30))
            await eventually(lambda: status_of(daemon, 'main').queue == 1, 'the expired one is closed')
            clock.advance(at - timedelta(seconds=1))
            await anyio.sleep(0.05)
            assert status_of(daemon, 'main').queue == 1
            clock.advance(at)
            await eventually(lambda: status_of(daemon, 'main').queue == 0, 'the timed one is answered')
            closed = [(e.trigger_id, e.outcome) for e in told(events) if isinstance(e, TriggerClosed)]
    assert closed == [('now', 'answered'), ('late', 'stale'), ('timed', 'answered')]
    assert DeskFiles(tmp_path / 'desks' / 'main').answered() == ['now', 'timed']


async def test_midnight_without_a_trigger(tmp_path: Path) -> None:
    """At the very instant of midnight in India an idle desk rolls over, and one of 05:00 at five; each once."""
    clock = ManualClock(datetime(2026, 3, 10, 23, 59, 59, tzinfo=INDIA))
    desks = [Desk(name='main'), Desk(name='mcx', rollover_at=TimeOfDay(hours=5))]
    async with Daemon(config_for(tmp_path, desks=desks), clock=clock) as daemon:
        for desk in desks:
            await ask(daemon, desk.name, 'evening')
        with daemon.bus.subscribe(SessionStarted) as events:
            clock.advance(timedelta(seconds=1))
            await eventually(lambda: status_of(daemon, 'main').session_id == '2026-03-11-1', 'main has rolled over')
            assert status_of(daemon, 'mcx').session_id == '2026-03-10-1'
            clock.advance(timedelta(hours=5))
            await eventually(lambda: status_of(daemon, 'mcx').session_id == '2026-03-11-1', 'mcx has rolled over')
            await daemon.supervisor.settled()
            assert [event.desk for event in told(events)] == ['main', 'mcx']


async def test_stopped_while_a_desk_waits_for_a_backend(tmp_path: Path) -> None:
    """The end does not wait for a desk that waits for a backend; its trigger is kept."""
    desks = [Desk(name='main', backends=['bad'])]
    config = msgspec.structs.replace(config_for(tmp_path, desks=desks, bad=offline(fail_every=1)), drain=Duration(600))
    async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
        await daemon.bus.send(Trigger('hello', 'main', id='waits'))
        await eventually(lambda: 'no backend can answer' in status_of(daemon, 'main').reason, 'the desk waits')
        began = time.monotonic()
    assert time.monotonic() - began < DEADLINE
    async with Daemon(config_for(tmp_path), clock=ManualClock(MORNING)) as daemon:
        await eventually(lambda: status_of(daemon, 'main').queue == 0, 'it is answered')
    assert DeskFiles(tmp_path / 'desks' / 'main').answered() == ['waits']


async def test_a_backend_that_cannot_be_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that swallows its cancellation gets its desk parked, told and shown; callers are told, others go on."""
    monkeypatch.setattr(desk_loop, 'OVERDUE_GRACE_SECONDS', 0.1)
    monkeypatch.setattr(supervisor_module, 'CANCEL_GRACE_SECONDS', 0.1)
    monkeypatch.setattr(supervisor_module, 'TICK_SECONDS', 0.05)
    let_go = anyio.Event()
    desks = [Desk(name='stuck', backends=['stubborn'], turn_timeout=Duration(0.1)), Desk(name='healthy')]
    config = config_for(tmp_path, desks=desks, stubborn=plug_in('stubborn', let_go=let_go))
    async with Daemon(config, clock=ManualClock(MORNING)) as daemon, anyio.create_task_group() as tasks:
        refused: list[str] = []

        async def ask_for_a_rollover() -> None:
            with pytest.raises(DeskUnusable) as caught:
                await daemon.operations.roll_over('stuck')
            refused.append(str(caught.value))

        try:
            with daemon.bus.subscribe(DeskParked) as events:
                await daemon.bus.send(Trigger('hello', 'stuck', id='stuck'))
                await eventually(lambda: status_of(daemon, 'stuck').turn, 'the turn runs')
                tasks.start_soon(ask_for_a_rollover)
                parked = await eventually(lambda: told(events), 'the desk is parked')
            assert [event.desk for event in parked] == ['stuck']
            assert isinstance(parked[0], DeskParked)
            assert parked[0].error == 'it waits for the backend stubborn and cannot be cut off'
            assert parked[0].hint == 'mend or remove what it waits for; then restart the daemon'
            status = status_of(daemon, 'stuck')
            assert status.state == 'parked'
            assert status.reason.endswith('then restart the daemon')
            await eventually(lambda: refused, 'the caller is told')
            await ask_for_a_rollover()
            await ask(daemon, 'healthy', 'still-there')
            receipt = await daemon.bus.send(Trigger('kept', 'stuck', id='kept'))
            assert receipt.status == 'accepted'
        finally:
            let_go.set()
    assert DeskFiles(tmp_path / 'desks' / 'healthy').answered() == ['still-there']


async def test_a_desk_that_fails_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault within a desk restarts it five times, then parks it; it still accepts, and another one answers."""
    monkeypatch.setattr(restarts, 'LONGEST_DELAY_SECONDS', 0.01)
    run = Turns.run

    async def faulty(self: Turns, batch: Sequence[Entry]) -> None:
        if batch[0].trigger.desk == 'faulty':
            raise RuntimeError('a fault of the program')
        await run(self, batch)

    monkeypatch.setattr(Turns, 'run', faulty)
    config = config_for(tmp_path, desks=[Desk(name='faulty'), Desk(name='healthy')])
    async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
        with daemon.bus.subscribe(DeskRestarted, DeskParked) as events:
            await daemon.bus.send(Trigger('hello', 'faulty', id='first'))
            await eventually(lambda: status_of(daemon, 'faulty').state == 'parked', 'the desk is parked')
            kinds = [type(event) for event in told(events)]
        assert kinds == [DeskRestarted] * 5 + [DeskParked]
        assert 'a fault of the program' in status_of(daemon, 'faulty').reason
        await ask(daemon, 'healthy', 'still-there')
        assert (await daemon.bus.send(Trigger('kept', 'faulty', id='kept'))).status == 'accepted'
    monkeypatch.setattr(Turns, 'run', run)
    async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
        await eventually(lambda: status_of(daemon, 'faulty').queue == 0, 'both are answered')
    assert DeskFiles(tmp_path / 'desks' / 'faulty').answered() == ['first', 'kept']


async def test_the_scheduler_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its scheduler the daemon is none: its program is ended with that fault, and the desks end in order."""
    config = config_for(tmp_path)

    def broken(_: Scheduler) -> None:
        raise RuntimeError('the scheduler is broken')

    async def program() -> None:
        async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
            await ask(daemon, 'main', 'before')
            monkeypatch.setattr(Scheduler, 'look', broken)
            await anyio.sleep(DEADLINE)

    with pytest.raises(ExceptionGroup) as caught:
        await program()
    assert caught.group_contains(RuntimeError, match='the scheduler is broken')
    monkeypatch.undo()
    async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
        await ask(daemon, 'main', 'after')
    assert DeskFiles(tmp_path / 'desks' / 'main').answered() == ['before', 'after']


class FullDisk:
    """Lets appends to files of some folders fail for as long as it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
        self.full = True
        self.refused = 0
        append = files.append

        def refusing(path: Path, data: bytes, **options: Any) -> int:  # noqa: ANN401 - whatever it takes
            if self.full and path.parent.name in folders:
                self.refused += 1
                raise StorageError('append to', path, OSError(errno.ENOSPC, 'No space left on device'))
            return append(path, data, **options)

        monkeypatch.setattr(files, 'append', refusing)


async def test_a_full_disk_when_the_answer_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that a full disk cannot take is told and shown, and is on disk once there is space, asked for once."""
    monkeypatch.setattr(model_router, 'WRITE_AGAIN_SECONDS', (0.02, 0.05))
    monkeypatch.setattr(desk_loop, 'OVERDUE_SECONDS', 1.5)
    monkeypatch.setattr(supervisor_module, 'TICK_SECONDS', 0.05)
    asked: list[str] = []
    desks = [Desk(name='main', backends=['counting'])]
    config = config_for(tmp_path, desks=desks, counting=plug_in('counting', asked=asked))
    async with Daemon(config, clock=ManualClock(MORNING)) as daemon:
        with daemon.bus.subscribe(WriteFailed, TurnFinished, TurnInterrupted, DeskRestarted) as events:
            disk = FullDisk(monkeypatch, 'sessions')
            await daemon.bus.send(Trigger('hello', 'main', id='once'))
            # For much longer than a desk may be at work without a word.
            began = time.monotonic()
            await eventually(lambda: disk.refused > 10 and time.monotonic() - began > 3, 'it was tried again')
            seen = told(events)
            assert {type(event) for event in seen} == {WriteFailed}
            assert 'No space left' in status_of(daemon, 'main').reason
            assert 'free some space' in status_of(daemon, 'main').reason
            disk.full = False
            finished = await eventually(
                lambda: [event for event in told(events) if isinstance(event, TurnFinished)], 'it is answered'
            )
            assert len(finished) == 1
        assert status_of(daemon, 'main').reason == ''
        await ask(daemon, 'main', 'next')
    assert asked == ['hello', 'hello']
    answers = [(e['trigger_id'], e['answer']) for e in DeskFiles(tmp_path / 'desks' / 'main').exchanges()]
    assert answers == [('once', 'answer 1'), ('next', 'answer 2')]


async def test_a_full_disk_when_a_trigger_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full a trigger is refused for the moment and the desk goes on by itself when there is space."""
    monkeypatch.setattr(desk_loop, 'TRY_AGAIN_SECONDS', (0.02, 0.05))
    async with Daemon(config_for(tmp_path), clock=ManualClock(MORNING)) as daemon:
        disk = FullDisk(monkeypatch, 'main')
        receipt = await daemon.bus.send(Trigger('hello', 'main', id='refused'))
        assert (receipt.status, receipt.reason) == ('refused', 'storage')
        assert receipt.try_again
        disk.full = False
        await ask(daemon, 'main', 'refused')
        assert status_of(daemon, 'main').state == 'running'
    assert DeskFiles(tmp_path / 'desks' / 'main').answered() == ['refused']


async def test_a_full_disk_at_midnight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollover that the disk cannot take is told, tried again, and done once when there is space."""
    monkeypatch.setattr(desk_loop, 'TRY_AGAIN_SECONDS', (0.02, 0.05))
    clock = ManualClock(datetime(2026, 3, 10, 23, 59, 59, tzinfo=INDIA))
    async with Daemon(config_for(tmp_path), clock=clock) as daemon:
        await ask(daemon, 'main', 'evening')
        replace, full = files.replace, [True]

        def refusing(path: Path, data: bytes, *, sync_name: bool = True) -> None:
            if full and path.parent.name == 'summaries':
                raise StorageError('replace', path, OSError(errno.ENOSPC, 'No space left on device'))
            replace(path, data, sync_name=sync_name)

        monkeypatch.setattr(files, 'replace', refusing)
        with daemon.bus.subscribe(WriteFailed, SessionStarted) as events:
            clock.advance(timedelta(seconds=1))
            await eventually(lambda: 'No space left' in status_of(daemon, 'main').reason, 'it is shown')
            full.clear()
            await eventually(lambda: status_of(daemon, 'main').session_id == '2026-03-11-1', 'it has rolled over')
            await daemon.supervisor.settled()
            started = [event for event in told(events) if isinstance(event, SessionStarted)]
        assert [event.reason for event in started] == ['daily_rollover']
        await eventually(lambda: status_of(daemon, 'main').reason == '', 'the trouble is over')
    desk = DeskFiles(tmp_path / 'desks' / 'main')
    assert desk.session_ids() == ['2026-03-10-1', '2026-03-11-1']
    assert desk.summary('2026-03-10').count('## Session') == 1
