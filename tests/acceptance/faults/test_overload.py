"""Overload and slowness in the short run: each of them once, and the bounds that hold them."""

import os
import threading
from datetime import date
from pathlib import Path

import anyio
import anyio.to_thread
import overload
import pytest

from trading_agent import disk as disk_module
from trading_agent import event_bus
from trading_agent.disk import CALLS_AT_ONCE, Disk
from trading_agent.event_bus import EventBus
from trading_agent.events import DateChanged, SubscriberLagged, TriggerAccepted

PATIENCE_SECONDS = 60.0


@pytest.mark.parametrize('name', overload.OVERLOADS)
def test_an_overload(name: str) -> None:
    """What floods is refused, what stalls is skipped ahead and told, what is slow is waited for by nobody else."""
    if why := overload.lacks(name):
        assert not os.environ.get('TRADING_AGENT_TEST_ALL'), why
        pytest.skip(why)
    overload.run_overload(name, 'short').check()


# -- the ring ----------------------------------------------------------------------------------------------------


def accepted(number: int, length: int) -> TriggerAccepted:
    """Returns an event with a text."""
    return TriggerAccepted(
        trigger_id=str(number), source='inbox', priority='feed', text='x' * length, queue_depth=number
    )


def test_the_ring_holds_so_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts make room for newer ones, long before there are too many events; the newest is there, however long."""
    monkeypatch.setattr(event_bus, 'CONTENT_CHARACTERS', 1000)
    bus = EventBus(64)
    for number in range(50):
        bus.publish(accepted(number, 100))
    with bus.subscribe(since='oldest') as events:
        held = [item.event for item in events.ready()]
    assert [each.trigger_id for each in held if isinstance(each, TriggerAccepted)] == [
        str(each) for each in range(40, 50)
    ]
    bus.publish(accepted(50, 5000))
    with bus.subscribe(since='oldest') as events:
        assert [item.event for item in events.ready()] == [accepted(50, 5000)]
    for _ in range(200):
        bus.publish(DateChanged(trading_date=date.min, desks=1))
    with bus.subscribe(since='oldest') as events:
        assert len(events.ready()) == 64


@pytest.mark.parametrize('capacity', [5, 1000])
def test_who_falls_behind_the_text_is_told(monkeypatch: pytest.MonkeyPatch, capacity: int) -> None:
    """A subscriber that stalls while long texts come is skipped ahead to what is left, and told how much, once."""
    monkeypatch.setattr(event_bus, 'CONTENT_CHARACTERS', 1000)
    bus = EventBus(capacity)
    with bus.subscribe(TriggerAccepted, name='stalled') as stalled:
        for number in range(30):
            bus.publish(accepted(number, 200))
        with bus.subscribe(SubscriberLagged) as told:
            events = [item.event for item in stalled.ready()]
            assert events == [accepted(number, 200) for number in range(25 if capacity > 5 else 26, 30)]
            (lagged,) = (item.event for item in told.ready())
            assert isinstance(lagged, SubscriberLagged)
            assert (lagged.subscriber, lagged.events_skipped) == ('stalled', 30 - len(events))
            assert bus.events_skipped == 30 - len(events)
            bus.publish(accepted(30, 200))
            assert [item.event for item in stalled.ready()] == [accepted(30, 200)]
            assert told.ready() == []


# -- threads for files -------------------------------------------------------------------------------------------


class Held:
    """Calls that do not end before they are let."""

    def __init__(self) -> None:
        self.begun = 0
        self.let_go = threading.Event()
        self._lock = threading.Lock()

    def call(self) -> None:
        with self._lock:
            self.begun += 1
        assert self.let_go.wait(PATIENCE_SECONDS)


async def until(held: Held, number: int) -> None:
    """Returns once so many calls have begun."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while held.begun < number:  # noqa: ASYNC110 - of another thread
            await anyio.sleep(0.002)


async def test_a_slow_call_keeps_nobody_out() -> None:
    """While calls of others hang in every thread that there is, those of another user are made; then all end."""
    disk, held = Disk(threads=2), Held()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(disk.share().run, held.call)
        await until(held, 2)
        with anyio.fail_after(PATIENCE_SECONDS):
            assert await disk.share().run(str, 1) == '1'
        await until(held, 5)
        held.let_go.set()
    with anyio.fail_after(PATIENCE_SECONDS):
        assert await disk.run(str, 2) == '2'


async def test_a_user_has_so_many_slow_calls() -> None:
    """However many calls one user makes that hang, a few are made, and the rest after these."""
    disk, held = Disk(), Held()
    share = disk.share()
    async with anyio.create_task_group() as tasks:
        for _ in range(3 * CALLS_AT_ONCE):
            tasks.start_soon(share.run, held.call)
        await until(held, CALLS_AT_ONCE)
        for _ in range(20):
            assert await disk.share().run(str, 1) == '1'
        assert held.begun == CALLS_AT_ONCE
        held.let_go.set()
    assert held.begun == 3 * CALLS_AT_ONCE


async def test_quick_calls_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are not slow are made so many at a time, whoever makes them."""
    monkeypatch.setattr(disk_module, 'SLOW_SECONDS', 60.0)
    disk, held = Disk(threads=2), Held()
    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(disk.share().run, held.call)
        await until(held, 2)
        for _ in range(20):
            await anyio.to_thread.run_sync(str, 1)
        assert held.begun == 2
        held.let_go.set()
    assert held.begun == 6


async def test_a_call_that_fails_slowly_gives_its_place_back_once() -> None:
    """A slow call that fails tells its caller, and every thread can be used afterwards."""
    disk, held = Disk(threads=1), Held()

    def fail() -> None:
        held.call()
        raise OSError(5, 'Input/output error')

    async def call() -> None:
        with pytest.raises(OSError, match='Input/output'):
            await disk.run(fail)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(call)
        await until(held, 3)
        held.let_go.set()
    for _ in range(3):
        with anyio.fail_after(PATIENCE_SECONDS):
            assert await disk.share().run(Path, '/') == Path('/')
