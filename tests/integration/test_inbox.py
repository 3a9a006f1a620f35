"""Real files in real inboxes, a real bus, and desks that answer as they are told to."""

import errno
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from trading_agent import files
from trading_agent.clock import ManualClock
from trading_agent.daemon.sources import inbox as inbox_module
from trading_agent.daemon.sources.inbox import InboxSource
from trading_agent.disk import Disk
from trading_agent.errors import StorageError
from trading_agent.event_bus import EventBus
from trading_agent.events import ComponentFailed, Event, TriggerRefused, WriteFailed
from trading_agent.trigger import Receipt, RefusalReason, Trigger

# 01:10 on the 20th in India, while it is still the 19th in UTC.
NIGHT = datetime(2026, 10, 19, 19, 40, tzinfo=UTC)
TODAY = '2026-10-20'
SETTLE = 0.1
WATCHER_LOOKS_UP_SECONDS = 4.0
"""A little less than the time after which a watcher that nobody wakes looks whether it is to end."""


class FakeDesk:
    """Takes triggers as a desk's queue does: a second one with the same id is a duplicate."""

    def __init__(self) -> None:
        self.got: list[Trigger] = []
        self.receipts: list[Receipt] = []
        self.refusals: list[RefusalReason] = []
        self.before: Callable[[Trigger], Awaitable[None]] | None = None

    @property
    def texts(self) -> list[str]:
        return [trigger.text for trigger in self.got]

    async def receive(self, trigger: Trigger) -> Receipt:
        if self.before is not None:
            await self.before(trigger)
        if self.refusals:
            receipt = Receipt(trigger.id, trigger.desk, 'refused', self.refusals.pop(0))
        elif any(trigger.id == earlier.id for earlier in self.got):
            receipt = Receipt(trigger.id, trigger.desk, 'duplicate')
        else:
            self.got.append(trigger)
            receipt = Receipt(trigger.id, trigger.desk, 'accepted')
        self.receipts.append(receipt)
        return receipt


class Box:
    """A bus with fake desks, their inboxes, and every event that was told."""

    def __init__(self, root: Path, *desks: str) -> None:
        self.bus = EventBus()
        self.paths = {desk: root / 'desks' / desk / 'inbox' for desk in desks}
        self.desks = {desk: FakeDesk() for desk in desks}
        for desk, fake in self.desks.items():
            self.bus.attach(desk, fake.receive)
        self._all = self.bus.subscribe(since='oldest')
        self._following = self._all.__enter__()
        self._told: list[Event] = []

    @property
    def inbox(self) -> Path:
        return self.paths['main']

    @property
    def main(self) -> FakeDesk:
        return self.desks['main']

    @property
    def done(self) -> Path:
        return self.inbox / 'done' / TODAY

    @property
    def rejected(self) -> Path:
        return self.inbox / 'rejected'

    def told(self, kind: type[Event] | None = None) -> list[Event]:
        self._told += [item.event for item in self._following.ready(10_000)]
        return [event for event in self._told if kind is None or isinstance(event, kind)]

    def refused(self) -> list[TriggerRefused]:
        return [event for event in self.told() if isinstance(event, TriggerRefused)]

    def source(
        self,
        inboxes: Mapping[str, Path] | Callable[[], Mapping[str, Path]] | None = None,
        *,
        max_size: int = 10_000,
        rescan_every: float = 3600.0,
        settle_seconds: float = SETTLE,
    ) -> InboxSource:
        return InboxSource(
            self.bus,
            self.paths if inboxes is None else inboxes,
            ManualClock(NIGHT),
            Disk(),
            max_size=max_size,
            rescan_every=rescan_every,
            settle_seconds=settle_seconds,
        )


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box with one desk, `main`."""
    return Box(tmp_path, 'main')


@asynccontextmanager
async def running(source: InboxSource) -> AsyncIterator[None]:
    """Runs a source for the block; it must end by `stop()`, and not first when its watcher looks up."""
    async with anyio.create_task_group() as group:
        await group.start(lambda task_status: source.run(task_status=task_status))
        try:
            yield
        except BaseException:
            group.cancel_scope.cancel()
            raise
        source.stop()
        group.cancel_scope.deadline = anyio.current_time() + WATCHER_LOOKS_UP_SECONDS
    assert not group.cancel_scope.cancelled_caught, 'the source did not stop at once'


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for a condition, and fails when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, 'it did not happen in time'
        await anyio.sleep(0.01)


def names(folder: Path) -> list[str]:
    """The files in a folder, none where it is missing."""
    return sorted(path.name for path in folder.iterdir() if not path.is_dir()) if folder.is_dir() else []


def put(path: Path, text: str) -> None:
    """Writes a file the recommended way: under another name first."""
    temporary = path.with_name(path.name + '.tmp')
    temporary.write_text(text)
    temporary.rename(path)


@contextmanager
def failing_moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Lets every move fail within the block, and lists what was to be moved."""
    tried: list[Path] = []

    def fail(path: Path, destination: Path) -> None:
        tried.append(path)
        raise StorageError('move', path, OSError(errno.EIO, 'Input/output error'))

    with monkeypatch.context() as patch:
        patch.setattr(files, 'move', fail)
        yield tried


async def test_a_file_is_sent_and_moved_to_done(box: Box) -> None:
    """A file put into the inbox becomes one trigger of that desk, and lies in the India date's folder after it."""
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'alert.txt', 'INFY up 2%')
        await until(lambda: names(box.done) == ['alert.txt'])
    (trigger,) = box.main.got
    assert (trigger.text, trigger.desk, trigger.source, trigger.priority) == ('INFY up 2%', 'main', 'inbox', 'feed')
    assert trigger.received_at == NIGHT
    assert (box.done / 'alert.txt').read_text() == 'INFY up 2%'
    assert names(box.inbox) == []
    assert box.told() == []


async def test_the_inbox_is_made_for_its_owner_alone(box: Box) -> None:
    """A missing inbox is made, and it and what it files into are closed to others."""
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'a')
        await until(lambda: names(box.done) == ['a.txt'])
    for folder in (box.inbox, box.inbox / 'done', box.done):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_a_file_is_picked_up_soon(box: Box) -> None:
    """With the usual settling time a file is sent once that has passed, by the watcher and not by a rescan."""
    async with running(box.source(settle_seconds=0.5)):
        await until(box.inbox.is_dir)
        await anyio.sleep(0.3)
        put(box.inbox / 'a.txt', 'a')
        began = time.monotonic()
        await until(lambda: box.main.got)
        assert time.monotonic() - began > 0.4


async def test_a_relative_inbox_is_watched_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that is given relative to the working folder is watched like any other."""
    monkeypatch.chdir(tmp_path)
    box = Box(Path('box'), 'main')
    async with running(box.source()):
        await until(box.inbox.is_dir)
        await anyio.sleep(0.3)
        put(box.inbox / 'a.txt', 'a')
        await until(lambda: names(box.done) == ['a.txt'])


async def test_files_that_lie_there_at_the_start_are_sent_in_order(box: Box) -> None:
    """What came while no daemon ran is sent at the start, by time of writing and then by name."""
    box.inbox.mkdir(parents=True)
    for name, mtime in (('a.txt', 300), ('b.txt', 100), ('d.md', 200), ('c.txt', 200)):
        (box.inbox / name).write_text(name)
        os.utime(box.inbox / name, (mtime, mtime))
    async with running(box.source()):
        await until(lambda: len(names(box.done)) == 4)
    assert box.main.texts == ['b.txt', 'c.txt', 'd.md', 'a.txt']


async def test_a_slow_writer_is_taken_once_and_whole(box: Box) -> None:
    """A file that grows is sent when it has come to rest: once, with all that was written."""
    async with running(box.source(settle_seconds=0.4)):
        await until(box.inbox.is_dir)
        with (box.inbox / 'slow.txt').open('w') as file:
            for number in range(15):
                file.write(f'line {number}\n')
                file.flush()
                await anyio.sleep(0.08)
        await until(lambda: names(box.done) == ['slow.txt'])
    assert box.main.texts == [''.join(f'line {number}\n' for number in range(15))]


async def test_an_empty_file_is_given_more_time(box: Box) -> None:
    """A file that was made before there is anything to say is waited for, as `command > inbox/a.txt` makes it."""
    async with running(box.source(settle_seconds=0.2)):
        await until(box.inbox.is_dir)
        (box.inbox / 'a.txt').touch()
        await anyio.sleep(1.0)
        assert box.refused() == []
        (box.inbox / 'a.txt').write_text('at last')
        (box.inbox / 'b.txt').touch()
        await until(lambda: names(box.rejected) == ['b.txt', 'b.txt.reason'])
    assert box.main.texts == ['at last']
    assert 'blank' in (box.rejected / 'b.txt.reason').read_text()


async def test_unfinished_names_are_left_alone(box: Box) -> None:
    """What is hidden or ends in `.tmp` or `.part` is neither taken, told nor moved."""
    box.inbox.mkdir(parents=True)
    for name in ('.a.txt', 'b.txt.tmp', 'c.part'):
        (box.inbox / name).write_text('not yet')
    async with running(box.source()):
        put(box.inbox / 'z.txt', 'z')
        await until(lambda: names(box.done) == ['z.txt'])
        await anyio.sleep(3 * SETTLE)
    assert names(box.inbox) == ['.a.txt', 'b.txt.tmp', 'c.part']
    assert box.main.texts == ['z']
    assert box.told() == []


async def test_json_reaches_the_desk_with_its_own_id(box: Box) -> None:
    """A `.json` file's id and priority are the trigger's; a second file with that id is a duplicate, and filed too."""
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.json', '{"text": "look", "id": "nse-1", "priority": "person"}')
        await until(lambda: names(box.done) == ['a.json'])
        put(box.inbox / 'b.json', '{"text": "look again", "id": "nse-1"}')
        await until(lambda: names(box.done) == ['a.json', 'b.json'])
    assert [(trigger.id, trigger.priority) for trigger in box.main.got] == [('nse-1', 'person')]
    assert [receipt.status for receipt in box.main.receipts] == ['accepted', 'duplicate']


@pytest.mark.parametrize(
    ('name', 'content', 'reason', 'said'),
    [
        ('a.pdf', b'%PDF', 'invalid', 'ending'),
        ('a.txt', b'caf\xe9', 'invalid', 'UTF-8'),
        ('a.txt', b' \n', 'invalid', 'blank'),
        ('a.json', b'{"txt": "x", "text": "y"}', 'invalid', "did you mean 'text'"),
        ('a.txt', b'x' * 10_001, 'too_large', 'max_trigger_size'),
    ],
)
async def test_a_mistake_is_rejected_with_its_reason(
    box: Box, name: str, content: bytes, reason: str, said: str
) -> None:
    """A file that can be no trigger lies in `rejected/`, why and what to do beside it, and is told once."""
    async with running(box.source(rescan_every=0.2)):
        await until(box.inbox.is_dir)
        (box.inbox / name).write_bytes(content)
        await until(lambda: names(box.rejected) == [name, f'{name}.reason'])
        await anyio.sleep(0.5)
    assert (box.rejected / name).read_bytes() == content
    told = (box.rejected / f'{name}.reason').read_text()
    assert said in told
    assert 'What to do: ' in told
    (event,) = box.refused()
    assert (event.desk, event.source, event.reason) == ('main', 'inbox', reason)
    assert event.trigger_id.startswith('inbox-')
    assert event.error
    assert event.hint
    assert box.main.got == []
    assert names(box.inbox) == []


async def test_a_huge_file_is_rejected_without_being_read(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a gigabyte is moved to `rejected/` unopened."""
    opened: list[object] = []
    real_read = os.read

    def read(descriptor: int, length: int) -> bytes:
        opened.append(length)
        return real_read(descriptor, length)

    async with running(box.source()):
        await until(box.inbox.is_dir)
        monkeypatch.setattr(os, 'read', read)
        for name in ('big.txt', 'big.json'):
            with (box.inbox / name).open('wb') as file:
                file.truncate(1 << 30)
        await until(lambda: len(names(box.rejected)) == 4)
    assert opened == []
    assert {event.reason for event in box.refused()} == {'too_large'}
    assert (box.rejected / 'big.txt').stat().st_size == 1 << 30


async def test_links_are_rejected_and_never_followed(box: Box, tmp_path: Path) -> None:
    """A symbolic link is moved to `rejected/` as a link, whether or not it leads anywhere."""
    secret = tmp_path / 'secret.txt'
    secret.write_text('a key')
    async with running(box.source()):
        await until(box.inbox.is_dir)
        (box.inbox / 'a.txt').symlink_to(secret)
        (box.inbox / 'b.txt').symlink_to(tmp_path / 'nowhere')
        await until(lambda: names(box.rejected) == ['a.txt', 'a.txt.reason', 'b.txt', 'b.txt.reason'])
    assert (box.rejected / 'a.txt').is_symlink()
    assert 'symbolic link' in (box.rejected / 'a.txt.reason').read_text()
    assert box.main.got == []
    assert secret.read_text() == 'a key'
    assert len(box.refused()) == 2


async def test_pipes_sockets_and_folders_are_left_and_told_once(box: Box) -> None:
    """What is no file never blocks the inbox: it stays, is told once each, and files beside it are sent."""
    box.inbox.mkdir(parents=True)
    os.mkfifo(box.inbox / 'pipe.txt')
    (box.inbox / 'folder.txt').mkdir()
    listener = socket.socket(socket.AF_UNIX)
    with listener, files.short_name(box.inbox / 'socket.txt') as address:
        listener.bind(address)
        async with running(box.source(rescan_every=0.1)):
            await until(lambda: len(box.refused()) == 3)
            (box.inbox / 'folder.txt' / 'inside.txt').write_text('not looked at')
            put(box.inbox / 'z.txt', 'z')
            await until(lambda: names(box.done) == ['z.txt'])
            await anyio.sleep(0.5)
    assert names(box.inbox) == ['pipe.txt', 'socket.txt']
    assert (box.inbox / 'folder.txt').is_dir()
    assert sorted(event.error.split(' ')[0] for event in box.refused()) == [
        "'folder.txt'",
        "'pipe.txt'",
        "'socket.txt'",
    ]
    assert {event.reason for event in box.refused()} == {'invalid'}
    assert box.main.texts == ['z']


async def test_a_pipe_that_takes_a_files_place_never_blocks(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that becomes a pipe or a link between the look and the opening is noticed, not waited for or read."""
    box.inbox.mkdir(parents=True)
    swapped: list[str] = []
    real_open = os.open

    def swap_first(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if Path(path).name in ('a.txt', 'b.txt') and Path(path).name not in swapped:
            swapped.append(Path(path).name)
            Path(path).unlink()
            if Path(path).name == 'a.txt':
                os.mkfifo(path)
            else:
                Path(path).symlink_to('/etc/hostname')
        return real_open(path, flags, mode, dir_fd=dir_fd)

    put(box.inbox / 'a.txt', 'a')
    put(box.inbox / 'b.txt', 'b')
    monkeypatch.setattr(os, 'open', swap_first)
    async with running(box.source()):
        await until(lambda: len(box.refused()) == 2)
    assert sorted(swapped) == ['a.txt', 'b.txt']
    assert box.main.got == []


async def test_a_refusal_for_the_moment_leaves_the_file(box: Box) -> None:
    """While the desk cannot take more, the files stay in the inbox and in order, and are sent when it can."""
    box.main.refusals = ['queue_full', 'storage']
    box.inbox.mkdir(parents=True)
    for name, mtime in (('a.txt', 100), ('b.txt', 200)):
        (box.inbox / name).write_text(name)
        os.utime(box.inbox / name, (mtime, mtime))
    async with running(box.source(rescan_every=0.1)):
        await until(lambda: box.main.receipts)
        assert names(box.inbox) == ['a.txt', 'b.txt']
        began = time.monotonic()
        await until(lambda: names(box.done) == ['a.txt', 'b.txt'])
        assert time.monotonic() - began > 2.5, 'the waits are one second, then two'
    assert box.main.texts == ['a.txt', 'b.txt']
    assert [receipt.reason for receipt in box.main.receipts] == ['queue_full', 'storage', None, None]
    assert box.told() == []


async def test_a_refusal_for_good_is_filed_with_its_reason(box: Box) -> None:
    """What the desk never takes lies in `rejected/`; the desk has told of it, so the inbox does not."""
    box.main.refusals = ['expired']
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'a')
        await until(lambda: names(box.rejected) == ['a.txt', 'a.txt.reason'])
    assert 'expired' in (box.rejected / 'a.txt.reason').read_text()
    assert box.told() == []


async def test_a_desk_that_the_bus_does_not_know_yet_keeps_its_files(box: Box) -> None:
    """A file of a desk that is not attached stays in the inbox, and is sent once it is."""
    box.bus.detach('main')
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'a')
        await until(box.refused)
        assert names(box.inbox) == ['a.txt']
        box.bus.attach('main', box.main.receive)
        await until(lambda: names(box.done) == ['a.txt'])
    assert box.main.texts == ['a']


async def test_a_desk_that_raises_is_told_once_and_tried_again(box: Box) -> None:
    """An error of the receiver costs its file a second, not the inbox its life; the next file is sent."""
    failing = 2

    async def fail(trigger: Trigger) -> None:
        nonlocal failing
        if trigger.text == 'a' and failing:
            failing -= 1
            raise RuntimeError('a bug')

    box.main.before = fail
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'a')
        await until(lambda: failing == 1)
        put(box.inbox / 'b.txt', 'b')
        await until(lambda: names(box.done) == ['b.txt'])
        await until(lambda: names(box.done) == ['a.txt', 'b.txt'])
    assert box.main.texts == ['b', 'a']
    (event,) = box.told(ComponentFailed)
    assert isinstance(event, ComponentFailed)
    assert (event.component, event.desk, event.error_type) == ('inbox', 'main', 'RuntimeError')


async def test_nothing_filed_is_overwritten(box: Box) -> None:
    """A second file of a name gets `-2` before its ending, in `done/` and in `rejected/` with its reason."""
    async with running(box.source()):
        await until(box.inbox.is_dir)
        for number in (1, 2, 3):
            put(box.inbox / 'a.txt', f'text {number}')
            await until(lambda: len(names(box.done)) == number)  # noqa: B023 - awaited here
        for number in (1, 2):
            put(box.inbox / 'b.pdf', f'pdf {number}')
            await until(lambda: len(names(box.rejected)) == 2 * number)  # noqa: B023 - awaited here
    assert names(box.done) == ['a-2.txt', 'a-3.txt', 'a.txt']
    assert (box.done / 'a-3.txt').read_text() == 'text 3'
    assert names(box.rejected) == ['b-2.pdf', 'b-2.pdf.reason', 'b.pdf', 'b.pdf.reason']
    assert (box.rejected / 'b-2.pdf').read_text() == 'pdf 2'


async def test_the_longest_names_can_be_filed(box: Box) -> None:
    """A name of 255 bytes, or one that is no UTF-8, is sent or rejected like any other."""
    long_text, long_other = 'é' * 125 + '.txt', 'x' * 251 + '.pdf'
    async with running(box.source()):
        await until(box.inbox.is_dir)
        (box.inbox / long_text).write_text('long')
        (box.inbox / long_other).write_text('long')
        (box.inbox / os.fsdecode(b'caf\xe9.txt')).write_text('odd')
        (box.inbox / os.fsdecode(b'caf\xe9.pdf')).write_text('odd')
        await until(lambda: len(names(box.done)) == 2 and len(names(box.rejected)) == 4)
    assert sorted(box.main.texts) == ['long', 'odd']
    for event in box.refused():
        assert event.error.encode()
    assert box.told(WriteFailed) == []


async def test_one_desk_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    """While one desk does not answer, the files of another are sent; stopping does not wait for it either."""
    box = Box(tmp_path, 'main', 'stuck')

    async def hang(trigger: Trigger) -> None:
        await anyio.sleep_forever()

    box.desks['stuck'].before = hang
    async with running(box.source()):
        await until(lambda: all(path.is_dir() for path in box.paths.values()))
        put(box.paths['stuck'] / 'a.txt', 'a')
        await anyio.sleep(3 * SETTLE)
        put(box.inbox / 'b.txt', 'b')
        await until(lambda: names(box.done) == ['b.txt'])
    assert names(box.paths['stuck']) == ['a.txt']


async def test_an_unusable_inbox_stops_no_other_desk(tmp_path: Path) -> None:
    """A file where an inbox should be is told once with what to do; the others go on, and it does when it is mended."""
    box = Box(tmp_path, 'main', 'broken')
    broken = box.paths['broken']
    broken.parent.mkdir(parents=True)
    broken.write_text('in the way')
    async with running(box.source(rescan_every=0.2)):
        await until(lambda: box.told(WriteFailed))
        put_when_there = box.inbox / 'b.txt'
        await until(box.inbox.is_dir)
        put(put_when_there, 'b')
        await until(lambda: names(box.done) == ['b.txt'])
        await anyio.sleep(0.5)
        assert len(box.told(WriteFailed)) == 1
        broken.unlink()
        await until(broken.is_dir)
        put(broken / 'c.txt', 'c')
        await until(lambda: box.desks['broken'].texts == ['c'])
    (event,) = box.told(WriteFailed)
    assert isinstance(event, WriteFailed)
    assert (event.desk, event.path) == ('broken', str(broken))
    assert 'move it away' in event.hint


async def test_a_file_sent_before_a_crash_is_a_duplicate(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was sent but not moved has the same id after a restart, and is moved without being run again."""
    with failing_moves(monkeypatch):
        async with running(box.source()):
            await until(box.inbox.is_dir)
            put(box.inbox / 'a.txt', 'a')
            await until(lambda: box.main.got)
    assert names(box.inbox) == ['a.txt']
    async with running(box.source()):
        await until(lambda: names(box.done) == ['a.txt'])
    assert [receipt.status for receipt in box.main.receipts] == ['accepted', 'duplicate']
    assert len({receipt.id for receipt in box.main.receipts}) == 1


async def test_a_move_that_fails_is_tried_again_without_sending(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be moved is sent once and told once; only the move is tried again, and leaves no litter."""
    async with running(box.source(rescan_every=0.1)):
        await until(box.inbox.is_dir)
        with failing_moves(monkeypatch) as tried:
            put(box.inbox / 'a.txt', 'a')
            put(box.inbox / 'b.pdf', 'b')
            await until(lambda: len(tried) >= 4)
            assert names(box.rejected) == []
        await until(lambda: names(box.done) == ['a.txt'] and names(box.rejected) == ['b.pdf', 'b.pdf.reason'])
    assert [receipt.status for receipt in box.main.receipts] == ['accepted']
    assert len(box.refused()) == 1
    told = box.told(WriteFailed)
    assert sorted(event.path for event in told if isinstance(event, WriteFailed)) == [
        str(box.inbox / 'a.txt'),
        str(box.inbox / 'b.pdf'),
    ]


async def test_a_file_put_in_place_of_one_being_sent_is_sent_too(box: Box) -> None:
    """A file that replaces another while that is being sent is never filed away unseen."""

    async def replace_first(trigger: Trigger) -> None:
        if trigger.text == 'first':
            put(box.inbox / 'a.txt', 'second')

    box.main.before = replace_first
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'first')
        await until(lambda: names(box.done) == ['a.txt'])
    assert box.main.texts == ['first', 'second']
    assert (box.done / 'a.txt').read_text() == 'second'


async def test_a_file_put_in_place_at_the_last_moment_is_given_back(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that replaces another between the last look at it and its move is put back into the inbox and sent."""
    real_move = files.move
    moved: list[Path] = []

    def move(path: Path, destination: Path) -> None:
        if not moved:
            put(path, 'second')
        moved.append(path)
        real_move(path, destination)

    monkeypatch.setattr(files, 'move', move)
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'first')
        await until(lambda: len(moved) == 2 and names(box.done) == ['a.txt'])
    assert box.main.texts == ['first', 'second']
    assert names(box.inbox) == []


async def test_a_file_that_is_taken_from_done_at_once(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that somebody tidies away in the moment in which it was filed is done: nothing is told of it."""
    real_move = files.move

    def move(path: Path, destination: Path) -> None:
        real_move(path, destination)
        destination.unlink()

    monkeypatch.setattr(files, 'move', move)
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'a')
        await until(lambda: box.main.got and not names(box.inbox))
    assert box.told() == []
    assert len(box.main.receipts) == 1


async def test_what_is_filed_is_its_owners_alone(box: Box, tmp_path: Path) -> None:
    """A file that others might read is 0600 once it is filed; one that has a name elsewhere too keeps its mode."""
    box.inbox.mkdir(parents=True)
    (tmp_path / 'elsewhere.txt').write_text('elsewhere')
    os.link(tmp_path / 'elsewhere.txt', box.inbox / 'elsewhere.txt')
    (box.inbox / 'a.txt').write_text('a')
    (box.inbox / 'a.doc').write_text('what is it?')
    for path in box.inbox.iterdir():
        path.chmod(0o644)
    async with running(box.source()):
        await until(lambda: names(box.done) == ['a.txt', 'elsewhere.txt'] and not names(box.inbox))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [*box.done.iterdir(), *box.rejected.iterdir()]}
    assert modes == {'a.txt': 0o600, 'elsewhere.txt': 0o644, 'a.doc': 0o600, 'a.doc.reason': 0o600}


async def test_a_name_that_is_no_text(box: Box) -> None:
    """A file whose name is not UTF-8 is sent, and watching goes on: nobody is told that it does not work."""
    async with running(box.source()):
        await until(box.inbox.is_dir)
        await anyio.sleep(0.3)  # until the watch is in place
        for name in (b'\xff\xfe.txt', b'a.txt'):
            (box.inbox / os.fsdecode(name)).write_text('a')
            await until(lambda: name in map(os.fsencode, names(box.done)))  # noqa: B023 - awaited here
    assert box.told() == []


async def test_a_file_taken_away_is_forgotten(box: Box) -> None:
    """A file that is removed while it is being sent ends in nothing worse than that."""

    async def remove(trigger: Trigger) -> None:
        (box.inbox / 'a.txt').unlink()

    box.main.before = remove
    async with running(box.source()):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'a')
        await until(lambda: box.main.got)
        box.main.before = None
        put(box.inbox / 'b.txt', 'b')
        await until(lambda: names(box.done) == ['b.txt'])
    assert box.told() == []


async def test_an_inbox_that_was_made_anew_is_noticed(box: Box) -> None:
    """After the folder was renamed away and made again, what is put there is seen, by the watcher too."""
    async with running(box.source(rescan_every=0.3)):
        await until(box.inbox.is_dir)
        put(box.inbox / 'a.txt', 'a')
        await until(lambda: names(box.done) == ['a.txt'])
        box.inbox.rename(box.inbox.with_name('old'))
        await until(box.inbox.is_dir)
        put(box.inbox / 'b.txt', 'b')
        await until(lambda: names(box.done) == ['b.txt'])
    assert box.main.texts == ['a', 'b']


async def test_a_folder_that_was_removed_and_made_is_watched_again(box: Box) -> None:
    """A folder that was removed and made again is watched at once, also where it has the old one's inode."""
    async with running(box.source(rescan_every=3600)):
        for number in range(3):
            await until(box.inbox.is_dir)
            await anyio.sleep(0.5)
            inode = box.inbox.stat().st_ino
            box.inbox.rmdir()
            box.inbox.mkdir()
            if box.inbox.stat().st_ino == inode:
                await anyio.sleep(0.5)
            put(box.inbox / 'a.txt', f'{number}')
            await until(lambda: box.main.texts[-1:] == [str(number)], 3.0)  # noqa: B023 - awaited here
            await until(lambda: names(box.done) == ['a.txt'])
            await anyio.sleep(0.3)
            (box.done / 'a.txt').unlink()
            box.done.rmdir()
            (box.inbox / 'done').rmdir()


async def test_the_watch_follows_a_new_folder(box: Box) -> None:
    """Once a new inbox of the same name was noticed, files in it are picked up without a further rescan."""
    source = box.source(rescan_every=3600)
    async with running(source):
        await until(box.inbox.is_dir)
        box.inbox.rename(box.inbox.with_name('old'))
        source.rescan()
        await until(box.inbox.is_dir)
        await anyio.sleep(0.5)
        put(box.inbox / 'b.txt', 'b')
        await until(lambda: box.main.texts == ['b'])


async def test_a_desk_that_was_added_or_removed_is_noticed(tmp_path: Path) -> None:
    """After `rescan()` a new desk's inbox is made and watched, a removed one's left alone, and taken up again later."""
    box = Box(tmp_path, 'main', 'new')
    inboxes = {'main': box.paths['main']}
    source = box.source(lambda: dict(inboxes), rescan_every=3600)
    async with running(source):
        await until(box.inbox.is_dir)
        inboxes['new'] = box.paths['new']
        source.rescan()
        await until(box.paths['new'].is_dir)
        put(box.paths['new'] / 'a.txt', 'a')
        await until(lambda: box.desks['new'].texts == ['a'])
        del inboxes['main']
        source.rescan()
        await anyio.sleep(0.3)
        put(box.inbox / 'b.txt', 'b')
        await anyio.sleep(0.5)
        assert box.main.got == []
        inboxes['main'] = box.paths['main']
        source.rescan()
        await until(lambda: box.main.texts == ['b'])
        put(box.inbox / 'c.txt', 'c')
        await until(lambda: box.main.texts == ['b', 'c'])


async def test_without_a_watcher_the_inboxes_are_polled(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """When watching fails, as at the limit of inotify, it is told once and every inbox is looked at each second."""

    def fail(*paths: str, **options: object) -> None:
        raise OSError('OS file watch limit reached')

    monkeypatch.setattr(inbox_module, 'awatch', fail)
    async with running(box.source(rescan_every=1.5)):
        await until(box.inbox.is_dir)
        for name in ('a.txt', 'b.txt'):
            put(box.inbox / name, name)
            await until(lambda: name in names(box.done))  # noqa: B023 - awaited here
        await anyio.sleep(1.5)
    assert box.main.texts == ['a.txt', 'b.txt']
    (event,) = box.told()
    assert isinstance(event, ComponentFailed)
    assert event.component == 'inbox'
    assert 'watch limit' in event.error
    assert 'inotify' in event.hint


async def test_many_files_at_once_are_each_sent_once(box: Box) -> None:
    """A burst of files is sent whole: every one, and each once."""
    box.inbox.mkdir(parents=True)
    async with running(box.source()):
        for number in range(200):
            put(box.inbox / f'{number:03}.txt', f'{number:03}')
            os.utime(box.inbox / f'{number:03}.txt', ns=(number, number))
        await until(lambda: len(names(box.done)) == 200)
    assert sorted(box.main.texts) == [f'{number:03}' for number in range(200)]
    assert len(box.main.receipts) == 200


async def test_a_stop_finishes_the_file_at_hand(box: Box) -> None:
    """A file that is being sent when the source is told to stop is still filed, and the next one left."""
    source = box.source()

    async def stop(trigger: Trigger) -> None:
        source.stop()
        await anyio.sleep(0.2)

    box.main.before = stop
    box.inbox.mkdir(parents=True)
    for name, mtime in (('a.txt', 100), ('b.txt', 200)):
        (box.inbox / name).write_text(name)
        os.utime(box.inbox / name, (mtime, mtime))
    with anyio.fail_after(30):
        await source.run()
    assert names(box.done) == ['a.txt']
    assert names(box.inbox) == ['b.txt']


async def test_a_cancelled_source_ends_soon(box: Box) -> None:
    """Cancelling ends the source as quickly as a stop does, its watcher's thread included."""
    async with anyio.create_task_group() as group:
        await group.start(lambda task_status: box.source().run(task_status=task_status))
        await until(box.inbox.is_dir)
        await anyio.sleep(0.3)
        began = time.monotonic()
        group.cancel_scope.cancel()
    assert time.monotonic() - began < WATCHER_LOOKS_UP_SECONDS


async def test_a_source_that_was_stopped_before_it_ran_ends_at_once(box: Box) -> None:
    """`stop()` counts also when it comes before `run()`."""
    source = box.source()
    source.stop()
    with anyio.fail_after(30):
        await source.run()
    assert box.main.got == []
