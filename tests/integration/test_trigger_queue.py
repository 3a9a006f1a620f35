"""A desk's queue on a real file: order, refusals, crashes, archiving, damage, and how often it waits for the disk."""

import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent import files, json_lines
from trading_agent.clock import ManualClock
from trading_agent.disk import Disk
from trading_agent.errors import DeskUnusable, StorageError
from trading_agent.events import (
    Event,
    Outcome,
    StoreDamaged,
    TriggerAccepted,
    TriggerClosed,
    TriggerRefused,
    WriteFailed,
)
from trading_agent.memory.trigger_queue import Closing, Entry, TriggerQueue
from trading_agent.trigger import PRIORITIES, Priority, Receipt, Trigger

NOW = datetime(2026, 10, 19, 4, 0, tzinfo=UTC)
SESSION = '2026-10-19-1'
HEADER = {'type': 'header', 'version': 1, 'desk': 'main'}


class Box:
    """A queue, its clock, its folder and what it told."""

    def __init__(self, folder: Path, **options: Any) -> None:  # noqa: ANN401
        self.folder = folder
        self.options = options
        self.clock = ManualClock(NOW)
        self.events: list[Event] = []
        self.woken = 0
        self.queue = self.make()

    def make(self) -> TriggerQueue:
        return TriggerQueue(
            self.folder, 'main', self.clock, self.events.append, Disk(), on_ready=self._on_ready, **self.options
        )

    def _on_ready(self) -> None:
        self.woken += 1

    async def restart(self) -> TriggerQueue:
        """What a new process would find."""
        self.queue = self.make()
        await self.queue.load()
        return self.queue

    @property
    def path(self) -> Path:
        return self.folder / 'triggers.jsonl'

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().split('\n')[:-1]]

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def accept(self, trigger_id: str, priority: Priority = 'feed', **options: Any) -> Receipt:  # noqa: ANN401
        return await self.queue.accept(Trigger('wake up', 'main', id=trigger_id, priority=priority, **options))

    async def take(self) -> Entry:
        """Starts the trigger at the head."""
        entry = self.queue.head()
        assert entry is not None
        await self.queue.start(entry)
        return entry

    async def run_all(self) -> list[str]:
        """Answers what is due, in the queue's order, and returns the ids."""
        order = []
        while (entry := self.queue.head()) is not None:
            await self.queue.close(entry, 'answered', SESSION)
            order.append(entry.trigger.id)
        return order


@pytest.fixture
async def box(tmp_path: Path) -> Box:
    """A queue that has been loaded."""
    box = Box(tmp_path / 'desk')
    await box.queue.load()
    return box


def failing(number: int = errno.ENOSPC) -> Callable[..., Any]:
    """Returns a system call that fails."""

    def call(*_args: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def ids(queue: TriggerQueue) -> list[str]:
    """Returns the ids of the open triggers in their order."""
    return [entry.trigger.id for entry in queue.open_entries()]


@asynccontextmanager
async def gate(monkeypatch: pytest.MonkeyPatch, name: str) -> AsyncIterator[threading.Event]:
    """Holds the first call of a system call until the block is left; the yielded event says that it has come."""
    real: Callable[..., Any] = getattr(os, name)
    come, go_on = threading.Event(), threading.Event()

    def held(*args: object) -> object:
        if not come.is_set():
            come.set()
            assert go_on.wait(30)
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, held)
        try:
            yield come
        finally:
            go_on.set()


# -- accepting ---------------------------------------------------------------------------------------------------


async def test_what_is_accepted_is_durable_and_told(box: Box) -> None:
    """An accepted trigger is in the file, in the queue, told once with the depth, and wakes the desk."""
    woken = box.woken
    trigger = Trigger('₹ \u2028 \x00', 'main', id='a', source='inbox', priority='person', received_at=NOW)
    assert await box.queue.accept(trigger) == Receipt('a', 'main', 'accepted')
    assert [record['type'] for record in box.records] == ['header', 'accepted']
    assert box.records[0] == HEADER
    assert box.woken == woken + 1
    (event,) = box.told(TriggerAccepted)
    assert (event.trigger_id, event.source, event.priority, event.queue_depth) == ('a', 'inbox', 'person', 1)
    queue = await box.restart()
    (entry,) = queue.open_entries()
    assert (entry.trigger, entry.accepted_at, entry.attempts) == (trigger, NOW, 0)


async def test_a_repeat_is_a_duplicate(box: Box) -> None:
    """An id that was accepted before is a duplicate: while it is open, once it is closed, and after a restart."""
    await box.accept('a')
    assert (await box.accept('a')).status == 'duplicate'
    await box.run_all()
    assert (await box.accept('a')).status == 'duplicate'
    await box.restart()
    assert (await box.accept('a')).status == 'duplicate'
    assert [record['type'] for record in box.records] == ['header', 'accepted', 'closed']
    assert box.told(TriggerRefused) == []


async def test_of_equal_ids_at_once_one_is_accepted(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many senders of one id at the same time one is accepted and the others wait and are told duplicate."""
    receipts: list[Receipt] = []

    async def send() -> None:
        receipts.append(await box.accept('a'))

    async with anyio.create_task_group() as tasks, gate(monkeypatch, 'fdatasync') as come:
        for _ in range(20):
            tasks.start_soon(send)
        await anyio.to_thread.run_sync(come.wait, 10)
        await anyio.wait_all_tasks_blocked()
        assert receipts == []
    assert sorted(receipt.status for receipt in receipts) == ['accepted'] + ['duplicate'] * 19
    assert [record['type'] for record in box.records] == ['header', 'accepted']


async def test_equal_ids_across_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the desk starts again in the middle of it, one is accepted and the others are duplicates."""
    box = Box(tmp_path / 'desk')
    receipts: list[Receipt] = []

    async def send(number: int) -> None:
        receipts.append(await box.accept(f'id-{number % 5}'))

    for _ in range(4):
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(send, number)
            tasks.start_soon(box.queue.load)
            for number in range(10):
                tasks.start_soon(send, number)
    assert sorted(receipt.status for receipt in receipts) == ['accepted'] * 5 + ['duplicate'] * 75
    assert sorted(ids(box.queue)) == [f'id-{number}' for number in range(5)]
    assert sorted(ids(await box.restart())) == [f'id-{number}' for number in range(5)]
    assert len(box.told(TriggerAccepted)) == 5


async def test_a_refused_id_may_be_sent_again_at_once(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal ids at once whose first could not be stored, the next is tried, and not called a duplicate."""
    receipts: list[Receipt] = []

    async def send() -> None:
        receipts.append(await box.accept('a'))

    calls: list[int] = []
    real = os.pwrite

    def full_once(fd: int, data: bytes | memoryview, offset: int) -> int:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, 'No space left on device')
        return real(fd, data, offset)

    monkeypatch.setattr(os, 'pwrite', full_once)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(send)
    assert [(receipt.status, receipt.reason) for receipt in receipts] == [
        ('refused', 'storage'),
        ('accepted', None),
        ('duplicate', None),
    ]


async def test_a_queue_that_was_not_loaded_loads_itself_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A desk that has not started, or is parked, accepts: the file is read first, once for all who ask at once."""
    earlier = Box(tmp_path / 'desk')
    await earlier.queue.load()
    await earlier.accept('old')
    box = Box(tmp_path / 'desk')
    reads: list[Path] = []
    real = json_lines.read

    def lines(path: Path) -> Any:  # noqa: ANN401
        reads.append(path)
        return real(path)

    monkeypatch.setattr(json_lines, 'read', lines)
    receipts: list[Receipt] = []

    async def send(trigger_id: str) -> None:
        receipts.append(await box.accept(trigger_id))

    async with anyio.create_task_group() as tasks:
        for trigger_id in ['old', *(f'new-{number}' for number in range(20))]:
            tasks.start_soon(send, trigger_id)
    assert len(reads) == 1
    assert sorted(receipt.status for receipt in receipts) == ['accepted'] * 20 + ['duplicate']
    assert ids(box.queue)[0] == 'old'


async def test_what_waits_for_a_load_does_not_load_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that comes while the desk loads never makes it forget what the desk has begun since."""
    box = Box(tmp_path / 'desk')
    await box.queue.load()
    await box.accept('begun')
    begun: list[Entry] = []

    async def begin() -> None:
        await box.queue.load()
        begun.append(await box.take())

    async with anyio.create_task_group() as tasks, gate(monkeypatch, 'fdatasync') as come:
        tasks.start_soon(begin)
        await anyio.to_thread.run_sync(come.wait, 10)
        tasks.start_soon(box.accept, 'new')
        await anyio.wait_all_tasks_blocked()
    assert [box.queue.entry('begun')] == begun
    assert box.queue.entry('begun') is begun[0]
    assert ids(box.queue) == ['begun', 'new']


# -- refusing ----------------------------------------------------------------------------------------------------


async def test_refusals_say_why(tmp_path: Path) -> None:
    """Each refusal names its reason and is told; nothing is written; those for the moment invite another try."""
    box = Box(tmp_path / 'desk', limit=2, max_size=10)
    await box.queue.load()
    before = box.path.read_bytes()

    async def refused(**options: Any) -> Receipt:  # noqa: ANN401
        return await box.queue.accept(Trigger(**{'text': 'x', 'desk': 'main', 'id': 'r', **options}))

    too_large = await refused(text='₹₹₹₹')
    expired = await refused(expires_at=NOW)
    assert box.path.read_bytes() == before
    assert (await box.queue.accept(Trigger('1234567890', 'main', expires_at=NOW + timedelta(seconds=1)))).reason is None
    await box.accept('b')
    full = await refused()
    box.queue.stopping = True
    stopping = await refused()
    assert [receipt.reason for receipt in (too_large, expired, full, stopping)] == [
        'too_large', 'expired', 'queue_full', 'stopping'
    ]  # fmt: skip
    assert [receipt.try_again for receipt in (too_large, expired, full, stopping)] == [False, False, True, True]
    assert [event.reason for event in box.told(TriggerRefused)] == ['too_large', 'expired', 'queue_full', 'stopping']
    assert (await box.accept('b')).status == 'duplicate'
    assert box.queue.depth == 2
    box.queue.stopping = False
    await box.run_all()
    assert (await refused()).status == 'accepted'


async def test_senders_at_once_never_exceed_the_limit(tmp_path: Path) -> None:
    """Of many at once as many are accepted as there is room for, exactly."""
    box = Box(tmp_path / 'desk', limit=7)
    await box.queue.load()
    receipts: list[Receipt] = []

    async def send(number: int) -> None:
        receipts.append(await box.accept(f'{number}'))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(send, number)
    assert [receipt.reason for receipt in receipts].count('queue_full') == 13
    assert box.queue.depth == 7


async def test_who_is_stored_is_not_counted_twice(tmp_path: Path) -> None:
    """A sender that comes while others are just being told has the room that there is."""
    box = Box(tmp_path / 'desk', limit=10)
    await box.queue.load()
    receipts: list[Receipt] = []

    async def send(number: int) -> None:
        receipts.append(await box.accept(f'{number}'))

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(send, number)
        while box.queue.depth < 6:
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(send, 6)
    assert [receipt.status for receipt in receipts] == ['accepted'] * 7


@pytest.mark.parametrize('call', ['pwrite', 'fdatasync', 'open'])
async def test_a_full_disk_refuses_and_keeps_nothing(box: Box, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """What cannot be stored is refused for the moment and leaves nothing; once there is space it is accepted."""
    await box.accept('before')
    file = box.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing())
        receipt = await box.accept('a')
    assert (receipt.status, receipt.reason, receipt.try_again) == ('refused', 'storage', True)
    (event,) = box.told(TriggerRefused)
    assert 'No space left' in event.error
    assert 'free some space' in event.hint
    assert box.path.read_bytes() == file
    assert ids(box.queue) == ['before']
    assert (await box.accept('a')).status == 'accepted'
    assert ids(await box.restart()) == ['before', 'a']


async def test_a_queue_that_cannot_be_read_refuses(tmp_path: Path) -> None:
    """A desk whose file cannot be read refuses with `storage`, and accepts once it can be."""
    box = Box(tmp_path / 'desk')
    box.path.mkdir(parents=True)
    with pytest.raises(StorageError):
        await box.queue.load()
    assert (await box.accept('a')).reason == 'storage'
    box.path.rmdir()
    assert (await box.accept('a')).status == 'accepted'


# -- taking ------------------------------------------------------------------------------------------------------


async def test_people_before_timers_before_feeds(box: Box) -> None:
    """The order is by priority, and first come first served within one; also after a restart."""
    for number in range(2):
        for priority in ('feed', 'person', 'timer'):
            await box.accept(f'{priority}-{number}', priority)
    expected = ['person-0', 'person-1', 'timer-0', 'timer-1', 'feed-0', 'feed-1']
    await box.restart()
    assert ids(box.queue)[0] == 'feed-0'
    assert await box.run_all() == expected


@given(priorities=st.lists(st.sampled_from(PRIORITIES), min_size=1, max_size=15))
@settings(deadline=None, max_examples=30)
def test_any_mix_of_priorities(priorities: list[Priority], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever comes in whatever order, it is taken by priority and then as it came."""

    async def story() -> list[str]:
        box = Box(tmp_path_factory.mktemp('mix'))
        for number, priority in enumerate(priorities):
            await box.accept(f'{number:02}-{priority}', priority)
        return await box.run_all()

    names = [f'{number:02}-{priority}' for number, priority in enumerate(priorities)]
    expected = sorted(names, key=lambda name: (PRIORITIES.index(name[3:]), name))
    assert anyio.run(story) == expected


async def test_a_later_trigger_waits_for_its_time(box: Box) -> None:
    """`not_before` keeps a trigger back until then, also after a restart, and `next_instant` says when that is."""
    at = NOW + timedelta(minutes=10)
    await box.accept('later', 'person', not_before=at)
    await box.accept('now')
    await box.accept('past', not_before=NOW - timedelta(hours=1))
    await box.restart()
    assert box.queue.next_instant() == at
    assert await box.run_all() == ['now', 'past']
    box.clock.advance(timedelta(minutes=10) - timedelta(microseconds=1))
    assert box.queue.head() is None
    box.clock.advance(timedelta(microseconds=1))
    assert await box.run_all() == ['later']
    assert box.queue.next_instant() is None


async def test_what_has_been_due_for_longest(box: Box) -> None:
    """`longest_due` counts from when a trigger may run, and `oldest` is the one that came first."""
    await box.accept('later', not_before=NOW + timedelta(minutes=10))
    assert box.queue.longest_due(box.clock.now()) is None
    box.clock.advance(timedelta(minutes=1))
    await box.accept('now')
    box.clock.advance(timedelta(minutes=30))
    longest, oldest = box.queue.longest_due(box.clock.now()), box.queue.oldest
    assert longest is not None
    assert longest.trigger.id == 'now'
    assert oldest is not None
    assert oldest.trigger.id == 'later'


async def test_what_is_expired_is_listed_once(box: Box) -> None:
    """A trigger whose time is over is listed once, unless it was closed before; a restart lists it again."""
    for trigger_id in ('a', 'b', 'c'):
        await box.accept(trigger_id, expires_at=NOW + timedelta(minutes=1 if trigger_id != 'c' else 5))
    await box.queue.close(next(box.queue.open_entries()), 'cancelled')
    assert box.queue.expired() == []
    assert box.queue.next_instant() == NOW + timedelta(minutes=1)
    box.clock.advance(timedelta(minutes=1))
    assert [entry.trigger.id for entry in box.queue.expired()] == ['b']
    assert box.queue.expired() == []
    assert box.queue.next_instant() == NOW + timedelta(minutes=5)
    assert [entry.trigger.id for entry in (await box.restart()).expired()] == ['b']


async def test_the_head_stays_the_head_when_nobody_answers(box: Box) -> None:
    """A feed that was tried in vain stays in front of a person's that came later, also after a restart."""
    await box.accept('feed')
    entry = await box.take()
    await box.accept('person', 'person')
    await box.queue.interrupt(entry, 'no_backend')
    assert box.queue.head() is entry
    assert not entry.cut_off
    queue = await box.restart()
    head = queue.head()
    assert head is not None
    assert (head.trigger.id, head.attempts, head.cut_offs, head.cut_off) == ('feed', 1, 0, False)
    assert await box.run_all() == ['feed', 'person']


async def test_what_was_interrupted_comes_first_after_a_restart(box: Box) -> None:
    """A trigger that a crash cut off is the first to run again, before any person's."""
    for trigger_id, priority in (('one', 'feed'), ('two', 'feed'), ('three', 'person')):
        await box.accept(trigger_id, priority)  # type: ignore[arg-type]
    entry = box.queue.entry('two')
    assert entry is not None
    assert await box.queue.start(entry) == 1
    queue = await box.restart()
    head = queue.head()
    assert head is not None
    assert (head.trigger.id, head.attempts, head.cut_offs, head.cut_off) == ('two', 1, 1, True)
    assert await queue.start(head) == 2
    assert await box.run_all() == ['two', 'three', 'one']


async def test_cut_offs_are_counted_and_orderly_ends_are_not(box: Box) -> None:
    """Only a start that neither ended in order nor was closed counts as cut off; `cut_off` stays true after a stop."""
    await box.accept('a')
    story: list[tuple[str, int, int, bool]] = []
    for end in ('crash', 'no_backend', 'stop', 'crash', 'no_backend'):
        entry = await box.take()
        if end != 'crash':
            await box.queue.interrupt(entry, end)
        live = (entry.attempts, entry.cut_offs, entry.cut_off)
        await box.restart()
        again = box.queue.entry('a')
        assert again is not None
        assert (again.attempts, again.cut_offs, again.cut_off) == live
        story.append((end, *live))
    assert story == [
        ('crash', 1, 1, True),
        ('no_backend', 2, 1, True),
        ('stop', 3, 1, True),
        ('crash', 4, 2, True),
        ('no_backend', 5, 2, True),
    ]
    await box.run_all()
    assert (await box.restart()).depth == 0


async def test_after_a_stop_the_desk_is_told_that_it_was_cut_off(box: Box) -> None:
    """An orderly stop counts no cut-off, but the run it ended was cut off in its middle all the same."""
    await box.accept('a')
    await box.queue.interrupt(await box.take())
    again = (await box.restart()).entry('a')
    assert again is not None
    assert (again.cut_offs, again.cut_off) == (0, True)


async def test_a_lost_start_costs_nothing(box: Box) -> None:
    """When a power cut took the record of a start, the next one has its right number all the same."""
    await box.accept('a')
    await box.queue.interrupt(await box.take(), 'no_backend')
    await box.take()
    records = [line for line in box.path.read_bytes().split(b'\n') if b'"attempt":1' not in line]
    box.path.write_bytes(b'\n'.join(records))
    again = (await box.restart()).entry('a')
    assert again is not None
    assert again.attempts == 2


# -- closing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('outcome', ['failed', 'stale', 'cancelled', 'quarantined', 'unknown'])
async def test_an_outcome_that_nothing_proves_is_durable_before_it_is_told(
    box: Box, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """When it cannot be synced, the trigger is still open and nobody hears of an outcome."""
    await box.accept('a')
    entry = await box.take()
    with monkeypatch.context() as patch:
        patch.setattr(os, 'fdatasync', failing(errno.EIO))
        with pytest.raises(StorageError):
            await box.queue.close(entry, outcome, SESSION)
    assert box.told(TriggerClosed) == []
    assert ids(box.queue) == ['a']
    await box.queue.close(entry, outcome, SESSION, error='why', hint='what')
    (event,) = box.told(TriggerClosed)
    assert (event.trigger_id, event.outcome, event.error, event.hint) == ('a', outcome, 'why', 'what')
    assert event.session_id == SESSION
    closing = (await box.restart()).closing('a')
    assert closing is not None
    assert (closing.outcome, closing.session_id) == (outcome, SESSION)


async def test_an_answer_is_told_although_its_close_failed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """`answered` is proved by its exchange: it needs no sync, and a failing write is told and stops nothing."""
    await box.accept('a')
    await box.accept('b')
    with monkeypatch.context() as patch:
        patch.setattr(os, 'fdatasync', failing(errno.EIO))
        await box.queue.close(await box.take(), 'answered', SESSION)
        assert box.told(WriteFailed) == []
        patch.setattr(os, 'pwrite', failing())
        entry = box.queue.entry('b')
        assert entry is not None
        await box.queue.close(entry, 'answered', SESSION)
    assert [event.trigger_id for event in box.told(TriggerClosed)] == ['a', 'b']
    assert [event.operation for event in box.told(WriteFailed)] == ['append to']
    assert box.queue.depth == 0
    assert box.queue.closing('b') == Closing('answered', SESSION, '2026-10-19T04:00:00.000000Z')
    assert ids(await box.restart()) == ['b']


# -- archiving ---------------------------------------------------------------------------------------------------


async def fill(box: Box) -> None:
    """Leaves one trigger of each kind: closed, open, tried in vain, stopped, cut off, and waiting."""
    for trigger_id in ('closed', 'open', 'in-vain', 'stopped', 'cut-off'):
        await box.accept(trigger_id)
    await box.accept('later', 'person', not_before=NOW + timedelta(days=3), expires_at=NOW + timedelta(days=4))
    for trigger_id, end in (('in-vain', 'no_backend'), ('stopped', 'stop'), ('cut-off', ''), ('closed', 'closed')):
        entry = box.queue.entry(trigger_id)
        assert entry is not None
        for _ in range(2):
            await box.queue.start(entry)
            if end in ('no_backend', 'stop'):
                await box.queue.interrupt(entry, end)
        if end == 'closed':
            await box.queue.close(entry, 'answered', SESSION)


def shape(queue: TriggerQueue) -> list[Any]:
    """Returns everything that must survive an archiving."""
    return [
        (e.trigger, e.accepted_at, e.attempts, e.cut_offs, e.fruitless, e.cut_off) for e in queue.open_entries()
    ] + [queue.closing('closed')]


async def test_archiving_keeps_the_old_file_and_goes_on_with_what_is_open(box: Box) -> None:
    """The old file is kept whole under the session's name; the new one has the open triggers, as they were."""
    await fill(box)
    before, file = shape(box.queue), box.path.read_bytes()
    await box.queue.archive(SESSION)
    assert (box.folder / 'triggers' / f'{SESSION}.jsonl').read_bytes() == file
    assert shape(box.queue) == before
    assert shape(await box.restart()) == before
    assert box.records[0] == HEADER
    assert len(box.records) < len(file.split(b'\n'))
    head = box.queue.head()
    assert head is not None
    assert head.trigger.id == 'in-vain'
    assert (await box.accept('closed')).status == 'duplicate'


async def test_an_archive_has_a_private_folder(box: Box) -> None:
    """The archive's folder is 0700 and its files are 0600."""
    await box.accept('a')
    await box.queue.archive(SESSION)
    assert (box.folder / 'triggers').stat().st_mode & 0o777 == 0o700
    for path in (box.path, box.folder / 'triggers' / f'{SESSION}.jsonl'):
        assert path.stat().st_mode & 0o777 == 0o600


async def test_ids_are_remembered_for_a_week(box: Box) -> None:
    """A closed id is a duplicate for a week, and longer until the next archiving; then it may be used again."""
    await box.accept('a')
    await box.run_all()
    box.clock.advance(timedelta(days=7))
    await box.queue.archive('2026-10-26-1')
    assert (await box.accept('a')).status == 'duplicate'
    assert (await box.restart()).closing('a') is not None
    box.clock.advance(timedelta(microseconds=1))
    await box.queue.archive('2026-10-26-2')
    assert (await box.accept('a')).status == 'accepted'
    assert ids(await box.restart()) == ['a']


async def test_an_id_is_not_forgotten_while_the_file_has_it(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """When archiving fails, an old id stays a duplicate: accepted again it would be taken for closed at a restart."""
    await box.accept('a')
    await box.run_all()
    box.clock.advance(timedelta(days=8))
    with monkeypatch.context() as patch:
        patch.setattr(os, 'replace', failing())
        with pytest.raises(StorageError):
            await box.queue.archive('2026-10-27-1')
    receipt = await box.accept('a')
    await box.restart()
    assert receipt.status == 'duplicate' or ids(box.queue) == ['a']
    await box.queue.archive('2026-10-27-1')
    assert (await box.accept('a')).status == 'accepted'
    # A repeated archiving does nothing to the file, so it must not forget anything either.
    await box.run_all()
    box.clock.advance(timedelta(days=8))
    await box.queue.archive('2026-10-27-1')
    receipt = await box.accept('a')
    await box.restart()
    assert receipt.status == 'duplicate' or ids(box.queue) == ['a']


@pytest.mark.parametrize('restarted', [False, True])
@pytest.mark.parametrize('step', ['link', 'replace'])
async def test_archiving_goes_on_where_it_was_cut_off(
    box: Box, monkeypatch: pytest.MonkeyPatch, step: str, *, restarted: bool
) -> None:
    """Cut off before the link or between link and replacement, a repeat finishes it; what came since is kept."""
    await fill(box)
    with monkeypatch.context() as patch:
        patch.setattr(files, step, failing())
        with pytest.raises(OSError, match='No space'):
            await box.queue.archive(SESSION)
    target = box.folder / 'triggers' / f'{SESSION}.jsonl'
    assert target.exists() == (step == 'replace')
    if restarted:
        await box.restart()
    assert (await box.accept('since')).status == 'accepted'
    before, size = shape(box.queue), box.path.stat().st_size
    await box.queue.archive(SESSION)
    assert target.stat().st_size == size
    assert not target.samefile(box.path)
    assert shape(box.queue) == before
    assert shape(await box.restart()) == before


async def test_archiving_again_does_nothing(box: Box) -> None:
    """A repeat after it was done changes neither file: what was accepted since is kept, and the archive too."""
    await fill(box)
    await box.queue.archive(SESSION)
    target = box.folder / 'triggers' / f'{SESSION}.jsonl'
    archived = target.read_bytes()
    await box.accept('since')
    await box.queue.close(await box.take(), 'answered', SESSION)
    file = box.path.read_bytes()
    for _ in range(2):
        await box.queue.archive(SESSION)
        await box.restart()
    assert target.read_bytes() == archived
    assert box.path.read_bytes() == file
    assert box.queue.entry('since') is not None


async def test_an_accept_waits_for_an_archiving(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trigger that comes between the link and the replacement is accepted afterwards, into the new file."""
    await box.accept('a')
    receipts: list[Receipt] = []

    async def send() -> None:
        receipts.append(await box.accept('b'))

    async with anyio.create_task_group() as tasks, gate(monkeypatch, 'replace') as come:
        tasks.start_soon(box.queue.archive, SESSION)
        await anyio.to_thread.run_sync(come.wait, 10)
        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        assert receipts == []
    assert [receipt.status for receipt in receipts] == ['accepted']
    assert ids(await box.restart()) == ['a', 'b']


async def test_a_failed_archiving_is_told_and_loses_nothing(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk at the rollover is an error; the queue goes on as before."""
    await fill(box)
    before = shape(box.queue)
    for name in ('pwrite', 'fsync', 'link'):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing())
            with pytest.raises(StorageError):
                await box.queue.archive(SESSION)
    assert shape(box.queue) == before
    assert shape(await box.restart()) == before


async def test_no_accept_is_lost_to_an_archiving(box: Box) -> None:
    """Of 200 triggers accepted while the file is archived 20 times, each is open exactly once after a restart."""
    accepted: list[str] = []

    async def send(first: int) -> None:
        for number in range(first, first + 20):
            receipt = await box.accept(f'{number}')
            accepted.extend([receipt.id] if receipt.status == 'accepted' else [])

    async def archive() -> None:
        for number in range(20):
            await box.queue.archive(f'2026-10-19-{number + 1}')

    async with anyio.create_task_group() as tasks:
        for sender in range(10):
            tasks.start_soon(send, sender * 20)
        tasks.start_soon(archive)
    assert len(accepted) == 200
    assert len(list((box.folder / 'triggers').iterdir())) == 20
    await box.restart()
    assert sorted(ids(box.queue)) == sorted(accepted)
    assert [record['trigger']['id'] for record in box.records if record['type'] == 'accepted'] == ids(box.queue)


# -- damage ------------------------------------------------------------------------------------------------------

ACCEPTED = b'{"type":"accepted","at":"2026-10-19T04:00:00Z","trigger":{"text":"x","desk":"main","id":"'
BAD_LINES = {
    'torn': b'{"type":"accepted","at":"2026-10-19T04',
    'garbage': b'\x00\xff\xfe',
    'nested too deep': b'[' * 200_000,
    'nested too deep inside': b'{"type":"closed","at":' + b'{"a":' * 200_000,
    'nested too deep in an unknown field': b'{"type":"closed","more":' + b'[' * 200_000,
    'unknown type': b'{"type":"exploded","at":"x","id":"a"}',
    'unknown outcome': b'{"type":"closed","at":"x","id":"a","outcome":"exploded"}',
    'a blank trigger': ACCEPTED.replace(b'"x"', b'" "') + b'b"}}',
    'no id': (ACCEPTED + b'"}}').replace(b'"id":"', b'"ie":"b'),
    'a bad id': ACCEPTED + b'"}}',
    'a lone surrogate': ACCEPTED.replace(b'"x"', b'"\\ud800"') + b'b"}}',
    'a number beyond all': b'{"type":"started","at":"x","id":"a","attempt":1e999}',
    'a naive time': ACCEPTED + b'b","received_at":"2026-10-19T04:00:00"}}',
    'a BOM': b'\xef\xbb\xbf{"type":"closed","at":"x","id":"a","outcome":"answered"}',
    'null': b'null',
}


@pytest.mark.parametrize('bad', BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize('place', ['first', 'middle', 'last, torn'])
async def test_a_damaged_line_costs_itself(box: Box, bad: bytes, place: str) -> None:
    """A line that cannot be read is skipped, told once with its number, and stays; the other records count."""
    await box.accept('a')
    await box.accept('c')
    lines = box.path.read_bytes().split(b'\n')
    number = {'first': 0, 'middle': 2, 'last, torn': 3}[place]
    box.path.write_bytes(b'\n'.join([*lines[:number], bad, *lines[number:]]) if place != 'last, torn' else
                         b'\n'.join([*lines[:3], bad]))  # fmt: skip
    await box.restart()
    await box.queue.load()
    assert ids(box.queue) == ['a', 'c']
    assert [(event.desk, event.path, event.line) for event in box.told(StoreDamaged)] == [
        ('main', str(box.path), number + 1)
    ]
    assert (await box.accept('d')).status == 'accepted'
    assert bad in box.path.read_bytes().split(b'\n')
    assert ids(await box.restart()) == ['a', 'c', 'd']


async def test_damage_is_told_anew_in_a_new_file(box: Box) -> None:
    """After an archiving the lines have other numbers: what is damaged then is told as well."""
    await box.accept('a')
    with box.path.open('ab') as file:
        file.write(b'one\n')
    await box.queue.load()
    await box.queue.archive(SESSION)
    with box.path.open('ab') as file:
        file.write(b'two\n')
    await box.queue.load()
    assert [event.line for event in box.told(StoreDamaged)] == [3, 3]


async def test_a_line_torn_while_the_queue_lives_costs_itself(box: Box) -> None:
    """A line torn by somebody else never swallows the trigger that is accepted next."""
    await box.accept('a')
    with box.path.open('ab') as file:
        file.write(b'{"type":"acc')
    await box.accept('b')
    assert ids(await box.restart()) == ['a', 'b']
    assert [event.line for event in box.told(StoreDamaged)] == [3]


@pytest.mark.parametrize('torn', [b'', b'{"type":"acc'])
async def test_a_newer_file_is_not_touched(tmp_path: Path, torn: bytes) -> None:
    """A file of a newer version parks the desk, with what to do, and not one byte of it changes."""
    box = Box(tmp_path / 'desk')
    box.folder.mkdir()
    data = b'{"type":"header","version":2,"desk":"main","more":1}\n{"type":"moved","id":"a"}\n' + torn
    box.path.write_bytes(data)
    with pytest.raises(DeskUnusable) as caught:
        await box.queue.load()
    assert 'install the newer version' in caught.value.hint
    receipt = await box.accept('a')
    assert (receipt.status, receipt.reason) == ('refused', 'storage')
    assert 'install the newer version' in box.told(TriggerRefused)[0].hint
    assert box.path.read_bytes() == data
    assert box.told(StoreDamaged) == []
    assert list(box.folder.iterdir()) == [box.path]


@given(
    garbage=st.lists(st.binary(max_size=60).map(lambda data: data.replace(b'\n', b' ')), min_size=1, max_size=4),
    torn=st.binary(max_size=30),
)
@settings(deadline=None, max_examples=60)
def test_garbage_never_hides_a_trigger(
    garbage: list[bytes], torn: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever lines are put between records, and however the file ends, every trigger is found, and one more fits."""

    async def story() -> None:
        box = Box(tmp_path_factory.mktemp('garbage'))
        for number in range(len(garbage)):
            await box.accept(f'{number}')
        lines = box.path.read_bytes().split(b'\n')[:-1]
        mixed = [line for pair in zip(lines, [*garbage, b''], strict=True) for line in pair]
        box.path.write_bytes(b'\n'.join([*mixed, torn]))
        expected = [f'{number}' for number in range(len(garbage))]
        assert ids(await box.restart()) == expected
        assert (await box.accept('one more')).status == 'accepted'
        assert ids(await box.restart()) == [*expected, 'one more']
        bad = [2 * number for number, line in enumerate(garbage, 1) if line.strip()]
        told = {event.line for event in box.told(StoreDamaged)}
        assert told >= set(bad)

    anyio.run(story)


@given(data=st.binary(max_size=150))
@settings(deadline=None, max_examples=60)
def test_any_bytes_as_a_file(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever the file holds, it loads without an error, and takes a trigger that is there after a restart."""

    async def story() -> None:
        box = Box(tmp_path_factory.mktemp('bytes'))
        box.path.write_bytes(data)
        await box.queue.load()
        assert (await box.accept('a')).status == 'accepted'
        assert ids(await box.restart()) == ['a']

    anyio.run(story)


TRIGGERS = st.builds(
    Trigger,
    text=st.text(st.characters(exclude_categories=()), min_size=1).filter(lambda text: text.strip()),
    desk=st.just('main'),
    id=st.uuids().map(str),
    source=st.text(st.characters(exclude_categories=()), max_size=10),
    priority=st.sampled_from(PRIORITIES),
    received_at=st.datetimes(timezones=st.timezones()).filter(lambda at: 1 < at.year < 9999),
    not_before=st.none() | st.datetimes(timezones=st.timezones()).filter(lambda at: 1 < at.year < 9999),
)


@given(triggers=st.lists(TRIGGERS, max_size=3))
@settings(deadline=None, max_examples=60)
def test_triggers_round_trip(triggers: list[Trigger], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever a trigger says, whenever it came, it is the same after a restart and after an archiving."""

    async def story() -> None:
        box = Box(tmp_path_factory.mktemp('trip'))
        for trigger in triggers:
            assert (await box.queue.accept(trigger)).status == 'accepted'
        queue = await box.restart()
        assert [entry.trigger for entry in queue.open_entries()] == triggers
        await queue.archive(SESSION)
        queue = await box.restart()
        assert [entry.trigger for entry in queue.open_entries()] == triggers
        assert box.told(StoreDamaged) == []

    anyio.run(story)


# -- how often it waits for the disk -----------------------------------------------------------------------------


async def test_senders_at_once_share_a_sync(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty senders at once need a handful of syncs, and each is told only after a sync that had its line."""
    real = os.fdatasync
    syncs: list[int] = []
    synced_bytes = b''

    def fdatasync(fd: int) -> None:
        nonlocal synced_bytes
        data = box.path.read_bytes()
        real(fd)
        synced_bytes = data
        syncs.append(fd)

    monkeypatch.setattr(os, 'fdatasync', fdatasync)
    told_early: list[str] = []

    async def send(number: int) -> None:
        await box.accept(f'number-{number}')
        if f'"number-{number}"'.encode() not in synced_bytes:
            told_early.append(f'{number}')

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(send, number)
    assert told_early == []
    assert 1 <= len(syncs) <= 5
    assert sorted(ids(await box.restart())) == sorted(f'number-{number}' for number in range(50))


async def test_nobody_is_told_before_the_sync(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the sync is under way neither the sender nor the bus nor the queue knows of the trigger."""
    receipts: list[Receipt] = []

    async def send() -> None:
        receipts.append(await box.accept('a'))

    async with anyio.create_task_group() as tasks, gate(monkeypatch, 'fdatasync') as come:
        tasks.start_soon(send)
        await anyio.to_thread.run_sync(come.wait, 10)
        await anyio.wait_all_tasks_blocked()
        assert b'"a"' in box.path.read_bytes()
        assert (receipts, box.told(TriggerAccepted), ids(box.queue)) == ([], [], [])
    assert [receipt.status for receipt in receipts] == ['accepted']


async def test_a_failing_sync_fails_all_that_shared_it(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the shared sync fails, each of its senders is refused, nothing is kept, and the next one is accepted."""
    file = box.path.read_bytes()
    receipts: list[Receipt] = []

    async def send(number: int) -> None:
        receipts.append(await box.accept(f'{number}'))

    with monkeypatch.context() as patch:
        patch.setattr(os, 'fdatasync', failing(errno.EIO))
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(send, number)
    assert [receipt.reason for receipt in receipts] == ['storage'] * 20
    assert box.path.read_bytes() == file
    assert box.queue.depth == 0
    assert len(box.told(TriggerRefused)) == 20
    assert (await box.accept('0')).status == 'accepted'


async def test_a_write_that_breaks_off_is_never_told_as_done(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """When not even a thread can be had for the write, of all that shared it none is told that it was accepted."""
    receipts: list[Receipt] = []
    errors: list[BaseException] = []

    async def send(number: int) -> None:
        try:
            receipts.append(await box.accept(f'{number}'))
        except RuntimeError as error:
            errors.append(error)

    def no_thread(*_args: object, **_options: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(files, 'append', no_thread)
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(send, number)
    assert [receipt.status for receipt in receipts] == ['refused'] * (5 - len(errors))
    assert box.queue.depth == 0
    assert (await box.accept('0')).status == 'accepted'


async def test_a_failed_sync_takes_no_trigger_with_it(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not synced yet is written again with the next trigger: a hole in its place would swallow that one."""
    await box.accept('a')
    await box.take()
    unsynced = box.path.read_bytes()[-80:]
    assert b'"started"' in unsynced
    written: list[bytes] = []
    real = os.pwrite

    def write(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        written.append(bytes(data))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, 'pwrite', write)
    await box.accept('b')
    await box.accept('c')
    assert [(data.count(b'"started"'), data.count(b'"accepted"')) for data in written] == [(1, 1), (0, 1)]


async def test_a_sender_that_gives_up_leaves_no_doubt(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that is cancelled in the middle of the sync leaves the trigger accepted, and its id a duplicate."""
    async with anyio.create_task_group() as tasks, gate(monkeypatch, 'fdatasync') as come:
        tasks.start_soon(box.accept, 'a')
        await anyio.to_thread.run_sync(come.wait, 10)
        tasks.cancel_scope.cancel()
    assert ids(box.queue) == ['a']
    assert (await box.accept('a')).status == 'duplicate'
    assert ids(await box.restart()) == ['a']


async def test_a_sender_that_gives_up_in_the_line_leaves_no_doubt(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cancelled while it waits for another one's sync is accepted, without anybody's help."""
    scope = anyio.CancelScope()

    async def give_up() -> None:
        with scope:
            await box.accept('b')

    async with anyio.create_task_group() as tasks, gate(monkeypatch, 'fdatasync') as come:
        tasks.start_soon(box.accept, 'a')
        await anyio.to_thread.run_sync(come.wait, 10)
        tasks.start_soon(give_up)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
    assert ids(box.queue) == ['a', 'b']
    assert ids(await box.restart()) == ['a', 'b']


async def test_starts_and_answers_wait_for_no_sync(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start, a fruitless end and an answer are written without a sync; a stop is synced."""
    await box.accept('a')
    syncs: list[int] = []
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        syncs.append(fd)
        real(fd)

    monkeypatch.setattr(os, 'fdatasync', fdatasync)
    entry = await box.take()
    await box.queue.interrupt(entry, 'no_backend')
    await box.take()
    assert syncs == []
    await box.queue.interrupt(entry)
    assert len(syncs) == 1
    await box.take()
    await box.queue.close(entry, 'answered', SESSION)
    assert len(syncs) == 1
    assert [record['type'] for record in box.records] == [
        'header', 'accepted', 'started', 'interrupted', 'started', 'interrupted', 'started', 'closed'
    ]  # fmt: skip
