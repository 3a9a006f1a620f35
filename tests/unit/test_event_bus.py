"""The bus: order, where a subscriber begins, who falls behind, who is woken, and that publishing never fails."""

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent import event_bus
from trading_agent.event_bus import EventBus, Subscription
from trading_agent.events import (
    DateChanged,
    DeskStarted,
    Event,
    SubscriberLagged,
    TriggerRefused,
    TurnOutput,
)
from trading_agent.trigger import Receipt, Trigger


def changed(number: int, desk: str | None = None) -> DateChanged:
    """Returns an event that carries a number."""
    return DateChanged(desk=desk, desks=number)


def output(text: str) -> TurnOutput:
    """Returns an event that is not logged."""
    return TurnOutput(desk='main', trigger_id='t', turn_id='t:1', backend='x', text=text)


def numbers(events: Sequence[Event]) -> list[int]:
    """Returns the numbers of what `changed` made."""
    return [event.desks for event in events if isinstance(event, DateChanged)]


def there(events: Subscription, most: int = 1024) -> list[Event]:
    """Returns what a subscriber has now."""
    return [item.event for item in events.ready(most)]


def lags(bus: EventBus) -> list[SubscriberLagged]:
    """Returns every lag that the ring still tells of."""
    with bus.subscribe(SubscriberLagged, since='oldest') as events:
        return [event for event in there(events) if isinstance(event, SubscriberLagged)]


async def woken() -> None:
    """Lets everything run that is ready to."""
    await anyio.wait_all_tasks_blocked()


# -- order -------------------------------------------------------------------------------------------------------


async def test_events_come_in_order_to_each_subscriber() -> None:
    """Two subscribers each get every event once, in the order in which it was published."""
    bus = EventBus()
    got: list[list[int]] = [[], []]

    async def follow(number: int) -> None:
        with bus.subscribe() as events:
            async for event in events:
                got[number] += numbers([event])
                if len(got[number]) == 300:
                    return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, 0)
        tasks.start_soon(follow, 1)
        await woken()
        for number in range(300):
            bus.publish(changed(number))
            if number % 70 == 0:
                await woken()
    assert got == [list(range(300))] * 2


async def test_a_subscriber_gets_what_it_asked_for() -> None:
    """A subscriber gets the types that it named, all when it named none, and only its desk's when it named one."""
    bus = EventBus()
    started = DeskStarted(desk='main', open_triggers=0, duration_ms=1)
    with (
        bus.subscribe() as everything,
        bus.subscribe(DeskStarted) as one,
        bus.subscribe(DeskStarted, DateChanged) as two,
        bus.subscribe(desk='main') as main,
        bus.subscribe(DateChanged, desk='other') as other,
        bus.subscribe(Event) as base,
    ):
        published = [changed(1), started, changed(2, 'other'), output('x')]
        for event in published:
            bus.publish(event)
        assert there(everything) == published
        assert there(one) == [started]
        assert there(two) == published[:3]
        assert there(main) == [started, published[3]]
        assert there(other) == [published[2]]
        assert there(base) == []


def test_a_subscriber_begins_now_or_with_the_oldest() -> None:
    """`since='now'` gets what comes from now on, `since='oldest'` what the ring still holds too."""
    bus = EventBus(capacity=4)
    bus.publish(changed(0))
    with bus.subscribe() as new, bus.subscribe(since='oldest') as old:
        bus.publish(changed(1))
        assert numbers(there(new)) == [1]
        assert numbers(there(old)) == [0, 1]
    for number in range(2, 10):
        bus.publish(changed(number))
    with bus.subscribe(since='oldest') as old:
        assert numbers(there(old)) == [6, 7, 8, 9]
    assert bus.events_skipped == 0
    assert lags(bus) == []


def test_at_most_so_many_at_once() -> None:
    """`ready` gives at most as many as asked for, and nothing is lost in between."""
    bus = EventBus()
    with bus.subscribe(DateChanged) as events:
        for number in range(5):
            bus.publish(changed(number))
            bus.publish(output('x'))
        assert numbers(there(events, 2)) == [0, 1]
        assert numbers(there(events, 2)) == [2, 3]
        assert numbers(there(events, 2)) == [4]
        assert there(events) == []


async def test_batches() -> None:
    """`batch` waits for the first event and gives what is there, at most as many as asked for."""
    bus = EventBus()
    with bus.subscribe() as events:
        for number in range(5):
            bus.publish(changed(number))
        assert numbers(await events.batch(3)) == [0, 1, 2]
        assert numbers(await events.batch()) == [3, 4]
        with pytest.raises(TimeoutError), anyio.fail_after(0):
            await events.batch()
        bus.publish(changed(5))
        assert numbers(await events.batch()) == [5]


# -- numbers -----------------------------------------------------------------------------------------------------


def test_logged_events_are_numbered_without_gaps() -> None:
    """`seq` counts from 1 over the events that are logged; one that is not has that of the one before."""
    bus = EventBus()
    with bus.subscribe() as events:
        for event in (output('a'), changed(1), output('b'), output('c'), changed(2), changed(3)):
            bus.publish(event)
        assert [item.seq for item in events.ready()] == [0, 1, 1, 1, 2, 3]
    assert bus.published == 6


def test_events_have_the_time_they_were_published() -> None:
    """Each event is stamped in UTC, never earlier than the one before while the clock is not set back."""
    bus = EventBus()
    with bus.subscribe() as events:
        for number in range(3):
            bus.publish(changed(number))
        stamps = [item.timestamp for item in events.ready()]
    assert stamps == sorted(stamps)
    assert all(stamp.utcoffset() is not None and not stamp.utcoffset() for stamp in stamps)


# -- waiting -----------------------------------------------------------------------------------------------------


async def test_who_waits_is_woken() -> None:
    """A subscriber that waits is woken by what it waits for, and sleeps on through everything else."""
    bus = EventBus()
    got: list[list[int]] = []

    async def follow() -> None:
        with bus.subscribe(DateChanged) as events:
            got.append(numbers(await events.batch()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await woken()
        bus.publish(output('x'))
        await woken()
        assert got == []
        bus.publish(changed(1))
        bus.publish(changed(2))
        await woken()
        assert got == [[1, 2]]


async def test_a_hundred_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred that wait are all woken and get everything in order, for one deferred wake a burst."""
    bus = EventBus()
    got: list[list[int]] = [[] for _ in range(100)]

    async def follow(number: int) -> None:
        with bus.subscribe() as events:
            while len(got[number]) < 40:
                got[number] += numbers(await events.batch())

    loop = asyncio.get_running_loop()
    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(follow, number)
        await woken()
        wakes: list[object] = []
        call_soon = loop.call_soon

        def counting(callback: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
            if callback == bus._wake:
                wakes.append(callback)
            return call_soon(callback, *args, **options)

        monkeypatch.setattr(loop, 'call_soon', counting)
        for burst in range(4):
            for number in range(10):
                bus.publish(changed(burst * 10 + number))
            await woken()
        monkeypatch.undo()
    assert got == [list(range(40))] * 100
    assert len(wakes) == 4


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    """A subscriber that stops waiting, again and again while nothing happens, takes no memory and misses nothing."""
    bus = EventBus()
    with bus.subscribe() as events:
        for _ in range(50):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(events.batch)
                await woken()
                assert len(bus._waiting) == 1
                tasks.cancel_scope.cancel()
        assert len(bus._waiting) == 0
        bus.publish(changed(1))
        assert numbers(await events.batch()) == [1]


async def test_publishing_never_fails() -> None:
    """A subscriber that was cancelled, failed, or never reads makes no publish raise or wait, and harms no other."""
    bus = EventBus(capacity=16)

    async def fail() -> None:
        with bus.subscribe() as events:
            await events.batch()
            raise RuntimeError('a subscriber fault')

    async def follow() -> None:
        with bus.subscribe() as events:
            while len(got) < 100:
                got.extend(numbers(await events.batch()))

    got: list[int] = []
    with bus.subscribe() as never_read:
        with pytest.raises(BaseExceptionGroup):  # noqa: PT012
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fail)
                await woken()
                bus.publish(changed(-1))
                bus.publish(changed(-1))
                await woken()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await woken()
            for number in range(100):
                bus.publish(changed(number))
                if number % 10 == 9:
                    await woken()
        assert got == list(range(100))
        assert len(never_read.ready()) <= 16


def test_publishing_needs_no_loop() -> None:
    """An event may be published where no event loop runs."""
    bus = EventBus()
    bus.publish(changed(1))
    with bus.subscribe(since='oldest') as events:
        assert numbers(there(events)) == [1]


# -- falling behind ----------------------------------------------------------------------------------------------


def test_who_falls_a_ring_behind_skips_ahead_and_is_told() -> None:
    """What is left of the ring comes in order, each once, and how much was missed is told, by whom."""
    bus = EventBus(capacity=8)
    with bus.subscribe(name='slow') as events:
        for number in range(20):
            bus.publish(changed(number))
        got = there(events)
        assert numbers(got) == list(range(13, 20))
        (lag,) = [event for event in got if isinstance(event, SubscriberLagged)]
        assert got[-1] is lag
        assert (lag.subscriber, lag.events_skipped) == ('slow', 13)
        assert bus.events_skipped == 13
        assert there(events) == []


def test_a_lag_is_told_once_an_episode() -> None:
    """Who stays behind is not told again until it has caught up; what it missed counts all the same."""
    bus = EventBus(capacity=8)
    published = 0

    def publish(count: int) -> None:
        nonlocal published
        for _ in range(count):
            bus.publish(changed(published))
            published += 1

    with bus.subscribe(DateChanged, name='slow') as events:
        got: list[int] = []
        for _ in range(5):
            publish(12)
            got += numbers(there(events, 3))
        assert bus.published - published == 1
        assert got == sorted(set(got))
        got += numbers(there(events))
        assert there(events) == []
        # In the second episode it is told anew.
        publish(30)
        got += numbers(there(events))
        assert bus.published - published == 2
        assert len(got) + bus.events_skipped >= published
        assert got == sorted(set(got))


def test_who_wavers_near_the_end_of_the_ring_is_told_once() -> None:
    """A subscriber that reads as fast as is published, but a ring behind, is one episode and not many."""
    bus = EventBus(capacity=8)
    with bus.subscribe(DateChanged, name='slow') as events:
        for number in range(200):
            bus.publish(changed(number))
            if number >= 20:
                events.ready(1)
            if number >= 20 and number % 3 == 0:
                bus.publish(changed(-1))
    assert bus.published - 200 - 60 == 1


@given(
    steps=st.lists(st.one_of(st.integers(1, 12), st.integers(-12, -1)), max_size=30),
    capacity=st.integers(1, 8),
)
@settings(deadline=None, max_examples=150)
def test_read_and_skipped_add_up(steps: list[int], capacity: int) -> None:
    """However reading and publishing alternate, what comes is in order and never twice, and the rest is counted."""
    bus = EventBus(capacity)
    read = 0
    got: list[int] = []
    with bus.subscribe() as events:
        for step in steps:
            if step > 0:
                for _ in range(step):
                    bus.publish(changed(bus.published))
            else:
                found = there(events, -step)
                read += len(found)
                got += numbers(found)
        while found := there(events):
            read += len(found)
            got += numbers(found)
    assert got == sorted(set(got))
    assert read + bus.events_skipped == bus.published


# -- writing down --------------------------------------------------------------------------------------------------


async def test_told_waits_for_who_writes_events_down() -> None:
    """`told` returns once a subscriber that keeps events has written those that were published, and no later ones."""
    bus = EventBus()
    await bus.told()
    with bus.subscribe(DateChanged, name='log', keeps=True) as events, bus.subscribe():
        bus.publish(changed(1))
        bus.publish(output('of no interest to it'))
        async with anyio.create_task_group() as tasks:
            told = asyncio.ensure_future(bus.told())
            assert numbers(await events.batch()) == [1]
            await asyncio.sleep(0)
            assert not told.done()
            bus.publish(changed(2))
            events.kept()
            await told
            tasks.cancel_scope.cancel()
        assert numbers(there(events)) == [2]


async def test_told_waits_for_nobody_who_is_gone() -> None:
    """A subscriber that ends, with or without having written everything down, is not waited for any longer."""
    bus = EventBus()
    with bus.subscribe(name='log', keeps=True):
        bus.publish(changed(1))
        told = asyncio.ensure_future(bus.told())
        await asyncio.sleep(0)
        assert not told.done()
    await told


async def test_told_waits_no_longer_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that stalls holds up nobody for longer than a second."""
    monkeypatch.setattr(event_bus, 'TOLD_SECONDS', 0.01)
    bus = EventBus()
    with bus.subscribe(name='log', keeps=True):
        bus.publish(changed(1))
        with anyio.fail_after(30):
            await bus.told()


# -- sending -----------------------------------------------------------------------------------------------------


async def test_a_trigger_goes_to_its_desk() -> None:
    """`send` hands a trigger to the receiver of its desk, the last one attached, and returns what that one says."""
    bus = EventBus()
    got: list[tuple[str, Trigger]] = []

    def receiver(name: str) -> Any:  # noqa: ANN401
        async def receive(trigger: Trigger) -> Receipt:
            got.append((name, trigger))
            return Receipt(trigger.id, trigger.desk, 'accepted')

        return receive

    bus.attach('main', receiver('old'))
    bus.attach('main', receiver('main'))
    bus.attach('other', receiver('other'))
    trigger = Trigger('x', 'main')
    assert await bus.send(trigger) == Receipt(trigger.id, 'main', 'accepted')
    assert got == [('main', trigger)]
    assert bus.published == 0


async def test_a_trigger_for_nobody_is_refused() -> None:
    """A trigger for a desk that is not there, or no longer, is refused for good, and that is told."""
    bus = EventBus()

    async def receive(trigger: Trigger) -> Receipt:
        raise AssertionError(trigger)

    bus.attach('main', receive)
    bus.detach('main')
    bus.detach('main')
    with bus.subscribe(TriggerRefused) as events:
        receipt = await bus.send(Trigger('x', 'main', id='t', source='inbox'))
        assert receipt == Receipt('t', 'main', 'refused', 'unknown_desk')
        assert not receipt.try_again
        (event,) = there(events)
        assert isinstance(event, TriggerRefused)
        assert (event.trigger_id, event.source, event.reason) == ('t', 'inbox', 'unknown_desk')
        assert "'main'" in event.error
        assert event.hint
