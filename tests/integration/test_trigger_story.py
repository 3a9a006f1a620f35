"""A trigger's story, told from the files that a real queue and a real session store wrote."""

import os
import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from trading_agent.clock import ManualClock
from trading_agent.disk import Disk
from trading_agent.errors import StorageError
from trading_agent.memory import trigger_story
from trading_agent.memory.damage import Damage
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_store import SessionStore
from trading_agent.memory.trigger_entry import Entry
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.memory.trigger_story import TriggerStory, known_ids, tell_story
from trading_agent.trigger import Trigger

MORNING = datetime(2026, 10, 19, 4, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Box:
    """A desk's folder, with its queue and its sessions, by a clock that goes when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(MORNING)
        self.queue = TriggerQueue(folder, 'main', self.clock, lambda _: None, Disk())
        self.store = SessionStore(folder / 'sessions', lambda: date(2026, 10, 19))
        self.session_id = self.store.new_session_id(date(2026, 10, 19))

    async def accept(self, trigger_id: str, text: str = 'wake up', not_before: datetime | None = None) -> Entry:
        trigger = Trigger(text, 'main', id=trigger_id, source='inbox', received_at=MORNING, not_before=not_before)
        assert (await self.queue.accept(trigger)).status == 'accepted'
        entry = self.queue.entry(trigger_id)
        assert entry is not None
        return entry

    async def start(self, entry: Entry, after: timedelta = SECOND) -> None:
        self.clock.advance(after)
        await self.queue.start(entry)

    async def answer(self, entry: Entry, text: str = 'yes', after: timedelta = SECOND) -> None:
        self.clock.advance(after)
        finished = self.clock.now().isoformat()
        exchange = Exchange(entry.trigger.text, text, 'claude', finished, trigger_id=entry.trigger.id)
        self.store.append_exchange(self.session_id, exchange)
        await self.queue.close(entry, 'answered', self.session_id)

    async def roll_over(self, days: int = 1) -> None:
        self.clock.advance(timedelta(days=days))
        await self.queue.archive(self.session_id)
        self.session_id = self.store.new_session_id(self.clock.now().date())

    async def restart(self) -> None:
        self.queue = TriggerQueue(self.folder, 'main', self.clock, lambda _: None, Disk())
        await self.queue.load()

    def story(self, trigger_id: str) -> TriggerStory:
        story = tell_story(self.folder, trigger_id)
        assert story is not None
        return story


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A desk on the morning of 19 October 2026."""
    return Box(tmp_path / 'main')


def steps(story: TriggerStory) -> list[str]:
    """Returns what happened, in short: what, which attempt or why, and where it is written."""
    return [
        f'{step.what} {step.attempt or ""}{step.reason}'.strip() + f' {step.path}:{step.line}' for step in story.steps
    ]


async def test_a_trigger_that_waits(box: Box) -> None:
    """Accepted and not started: it waits, from when it was due, and nothing is known of an end."""
    await box.accept('a-1')
    await box.accept('a-2', not_before=MORNING + timedelta(hours=1))
    story = box.story('a-1')
    assert (story.desk, story.outcome, story.place, story.closing, story.earlier) == ('main', None, None, None, 0)
    assert story.trigger is not None
    assert story.trigger.source == 'inbox'
    assert steps(story) == ['accepted triggers.jsonl:2']
    assert story.waited(MORNING + timedelta(minutes=5)) == timedelta(minutes=5)
    assert box.story('a-2').waited(MORNING + timedelta(minutes=5)) == timedelta()
    assert box.story('a-2').waited(MORNING + timedelta(minutes=65)) == timedelta(minutes=5)


async def test_a_trigger_that_was_answered(box: Box) -> None:
    """Each step comes with its file and line, and the exchange with the session, the line and the answer."""
    for number in range(3):
        entry = await box.accept(f'a-{number}')
        await box.start(entry)
        await box.answer(entry, f'answer {number}')
    story = box.story('a-1')
    assert steps(story) == [
        'accepted triggers.jsonl:5',
        'started 1 triggers.jsonl:6',
        'closed answered triggers.jsonl:7',
    ]
    assert story.outcome == 'answered'
    assert story.waited(box.clock.now()) == SECOND
    assert story.place is not None
    assert (story.place.session_id, story.place.path, story.place.line) == (
        '2026-10-19-1',
        'sessions/2026-10-19-1.jsonl',
        2,
    )
    assert story.place.exchange.answer == 'answer 1'


async def test_a_trigger_that_was_interrupted(box: Box) -> None:
    """A start without an end, an interruption with its reason and another outcome are each told as they were."""
    entry = await box.accept('a-1')
    await box.start(entry)
    await box.restart()
    entry = next(box.queue.open_entries())
    await box.start(entry)
    await box.queue.interrupt(entry, 'pause')
    await box.start(entry)
    await box.queue.close(entry, 'failed', box.session_id)
    story = box.story('a-1')
    assert [line.split(' trig')[0] for line in steps(story)] == [
        'accepted',
        'started 1',
        'started 2',
        'interrupted 2pause',
        'started 3',
        'closed failed',
    ]
    assert (story.outcome, story.place) == ('failed', None)


async def test_an_exchange_proves_the_answer(box: Box) -> None:
    """Where a crash came between the exchange and the closing, the trigger is answered all the same."""
    entry = await box.accept('a-1')
    await box.start(entry)
    exchange = Exchange('wake up', 'yes', 'claude', '2026-10-19T04:00:02Z', trigger_id='a-1')
    box.store.append_exchange(box.session_id, exchange)
    story = box.story('a-1')
    assert (story.outcome, story.closing) == ('answered', None)


async def test_a_story_goes_on_over_rollovers(box: Box) -> None:
    """What an open trigger went through is told once, with its first times, however often it was carried over."""
    entry = await box.accept('a-1')
    await box.start(entry)
    await box.queue.interrupt(entry, 'stop')
    await box.start(entry)
    await box.queue.interrupt(entry, 'no_backend')
    await box.roll_over()
    await box.restart()
    await box.roll_over()
    entry = next(box.queue.open_entries())
    await box.start(entry)
    await box.answer(entry)
    await box.roll_over()
    await box.roll_over()
    story = box.story('a-1')
    assert steps(story) == [
        'accepted triggers/2026-10-19-1.jsonl:2',
        'started 1 triggers/2026-10-19-1.jsonl:3',
        'interrupted 1stop triggers/2026-10-19-1.jsonl:4',
        'started 2 triggers/2026-10-19-1.jsonl:5',
        'interrupted 2no_backend triggers/2026-10-19-1.jsonl:6',
        'started 3 triggers/2026-10-21-1.jsonl:7',
        'closed answered triggers/2026-10-21-1.jsonl:8',
    ]
    assert story.waited(box.clock.now()) == SECOND
    assert story.place is not None
    assert story.place.session_id == '2026-10-21-1'


async def test_an_id_that_comes_again(box: Box) -> None:
    """An id is forgotten after a week; the story is that of the last trigger that had it, and counts the others."""
    for number in range(3):
        entry = await box.accept('a-1', f'text {number}')
        await box.start(entry)
        await box.answer(entry, f'answer {number}')
        await box.roll_over(days=4)
        await box.roll_over(days=4)
    story = box.story('a-1')
    assert story.earlier == 2
    assert story.trigger is not None
    assert story.place is not None
    assert (story.trigger.text, story.place.exchange.answer) == ('text 2', 'answer 2')
    assert len(story.steps) == 3


async def test_what_is_left_when_files_are_gone(box: Box) -> None:
    """Without the archive the closing and the exchange are still told; without any record the exchange alone."""
    entry = await box.accept('a-1')
    await box.start(entry)
    await box.answer(entry)
    await box.roll_over()
    (box.folder / 'triggers' / '2026-10-19-1.jsonl').unlink()
    story = box.story('a-1')
    assert (story.trigger, story.outcome, len(story.steps)) == (None, 'answered', 1)
    assert story.place is not None
    assert story.waited(box.clock.now()) is None
    (box.folder / 'triggers.jsonl').unlink()
    story = box.story('a-1')
    assert (story.outcome, story.steps) == ('answered', [])
    (box.folder / 'sessions' / '2026-10-19-1.jsonl').unlink()
    assert tell_story(box.folder, 'a-1') is None


@pytest.mark.parametrize('trigger_id', ['replay/2025-12-16/7', 'a "quoted" \\ one', 'निफ्टी ₹', '%41', '1', 'x' * 128])
async def test_any_id_is_found_and_no_other(box: Box, trigger_id: str) -> None:
    """A story is that of exactly this id, whatever characters it has, and although others say it in their text."""
    other = await box.accept('another', f'"id":"{trigger_id}" and {trigger_id}')
    await box.start(other)
    await box.answer(other, trigger_id)
    assert tell_story(box.folder, trigger_id) is None
    entry = await box.accept(trigger_id)
    await box.start(entry)
    await box.answer(entry)
    assert len(box.story(trigger_id).steps) == 3
    assert box.story(trigger_id).place is not None
    assert known_ids(box.folder) == ['another', trigger_id]


async def test_ids_are_known_in_the_order_in_which_they_came(box: Box) -> None:
    """Every id is there once, those of the archive first."""
    first = await box.accept('b')
    await box.accept('a')
    await box.start(first)
    await box.answer(first)
    await box.roll_over()
    await box.accept('0')
    assert known_ids(box.folder) == ['b', 'a', '0']
    assert known_ids(box.folder.with_name('nobody')) == []


async def test_damage_is_told_and_hides_nothing_else(box: Box) -> None:
    """A damaged line about the trigger is reported with its file and line; a torn end and odd files are passed by."""
    entry = await box.accept('a-1')
    with (box.folder / 'triggers.jsonl').open('ab') as log:
        log.write(b'{"type":"started","at":"2026-10-19T04:00:01Z","id":"a-1","attempt":"one"}\n')
        log.write(b'{"type":"wound","id":"another"}\n\xff\n')
    (box.folder / 'triggers').mkdir()
    (box.folder / 'triggers' / 'notes.jsonl').write_text('{"id":"a-1"}\n')
    (box.folder / 'triggers' / '2026-10-18-1.jsonl.gz').write_bytes(b'"a-1"')
    await box.start(entry)
    with (box.folder / 'triggers.jsonl').open('ab') as log:
        log.write(b'{"type":"closed","at":"2026-10-19T04:00:02Z","id":"a-1","outco')
    damaged: list[Damage] = []
    story = tell_story(box.folder, 'a-1', damaged)
    assert story is not None
    assert [step.what for step in story.steps] == ['accepted', 'started']
    assert [damage.line for damage in damaged] == [3, 7]


async def test_reading_changes_nothing(box: Box) -> None:
    """Also where an end is torn or a file is empty, every file keeps its bytes, its time and its name."""
    entry = await box.accept('a-1')
    await box.start(entry)
    await box.answer(entry)
    await box.roll_over()
    for path in (box.folder / 'triggers.jsonl', box.folder / 'sessions' / '2026-10-19-1.jsonl'):
        with path.open('ab') as log:
            log.write(b'{"torn')
    (box.folder / 'triggers' / '2026-10-18-1.jsonl').touch()

    def state() -> dict[Path, tuple[bytes, int]]:
        paths = [path for path in box.folder.rglob('*') if path.is_file()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}

    before = state()
    box.story('a-1')
    assert tell_story(box.folder, 'nobody') is None
    known_ids(box.folder)
    assert tell_story(box.folder.with_name('no-desk'), 'a-1') is None
    assert state() == before
    assert not box.folder.with_name('no-desk').exists()


async def test_a_file_that_cannot_be_read_is_an_error(box: Box) -> None:
    """A folder in a file's place is no file that is missing."""
    (box.folder / 'triggers.jsonl').mkdir(parents=True)
    with pytest.raises(StorageError, match='could not read'):
        tell_story(box.folder, 'a-1')


async def test_a_file_with_two_names_is_read_once(box: Box) -> None:
    """While a rollover has linked the file into the archive and not replaced it yet, nothing is told twice."""
    entry = await box.accept('a-1')
    await box.start(entry)
    await box.answer(entry)
    (box.folder / 'triggers').mkdir()
    os.link(box.folder / 'triggers.jsonl', box.folder / 'triggers' / '2026-10-19-1.jsonl')
    assert len(box.story('a-1').steps) == 3


async def test_a_story_is_whole_while_the_desk_goes_on(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again and again while triggers come, run and roll over, a story never loses or doubles a step."""
    monkeypatch.setattr(trigger_story, '_READ_AGAIN', 100)
    entry = await box.accept('a-1')
    await box.start(entry)
    await box.queue.interrupt(entry, 'stop')
    rng = random.Random(3)  # noqa: S311 - to be repeated
    done = anyio.Event()
    told = 0

    async def go_on() -> None:
        for number in range(60):
            other = await box.accept(f'b-{number}')
            await box.start(other)
            await box.answer(other)
            if rng.random() < 0.5:
                await box.roll_over()
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on)
        while not done.is_set():
            story = await anyio.to_thread.run_sync(box.story, 'a-1')
            assert [step.what for step in story.steps] == ['accepted', 'started', 'interrupted']
            told += 1
    assert told > 5
