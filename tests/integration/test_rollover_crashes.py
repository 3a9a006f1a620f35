"""The process dies at every write of a rollover, before it, after it and in its middle; the restart ends it, once."""

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from keeper_fakes import (
    MONDAY,
    TUESDAY,
    Box,
    Crash,
    InlineDisk,
    fast_folder,
    spare_the_disk,
)

from trading_agent import files
from trading_agent.errors import BackendError
from trading_agent.events import SessionStarted
from trading_agent.memory.review import Limits
from trading_agent.memory.rollover import RolloverRecord
from trading_agent.routing.turn_runner import Turn
from trading_agent.trigger import Trigger

LESSON = '- lesson of 2026-10-19-1\n'
NEEDED_REVIEWS = {'full': 1, 'edited': 2, 'parts': 3, 'too long': 2, 'refused': 1, 'degraded': 1, 'empty': 0}
"""The kinds of a day, and how often a model is asked about each."""

PRIMITIVES = ('replace', 'append', 'create', 'remove', 'link', 'move')
VARIANTS = ('before', 'after', 'in the middle')


class Killer:
    """Lets the process die at its n-th write: before it, after it, or with half of it done."""

    def __init__(self) -> None:
        self.real = {name: getattr(files, name) for name in PRIMITIVES}
        self.number = 0
        self.variant = ''
        self.writes: list[str] = []

    def arm(self, number: int, variant: str) -> None:
        self.number, self.variant, self.writes = number, variant, []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in PRIMITIVES:
            monkeypatch.setattr(files, name, self.instead_of(name))

    def instead_of(self, name: str) -> Callable[..., object]:
        def write(path: Path, *args: object, **options: object) -> object:
            self.writes.append(f'{name} {path.name}')
            if len(self.writes) != self.number:
                return self.real[name](path, *args, **options)
            if self.variant == 'after':
                self.real[name](path, *args, **options)
            elif self.variant == 'in the middle':
                self.half(name, path, args)
            raise Crash(f'{self.variant} {self.writes[-1]}')

        return write

    def half(self, name: str, path: Path, args: tuple[object, ...]) -> None:
        """Leaves what a killed writer may leave: a torn line, or a temporary file."""
        data = args[0] if args else b''
        if name == 'append' and callable(data):
            data = data(path.stat().st_size if path.exists() else 0)
        if name == 'append' and isinstance(data, bytes):
            with path.open('ab') as file:
                file.write(data[: len(data) // 2])
        elif name == 'replace' and isinstance(data, bytes):
            path.with_name(f'.{path.name}.01234567.tmp').write_bytes(data[: len(data) // 2])
        elif name == 'link' and isinstance(args[0], Path):
            self.real[name](path, args[0])


@dataclass
class Curator:
    days: list[date] = field(default_factory=list)

    async def review(self, trading_date: date) -> None:
        self.days.append(trading_date)


class Story:
    """A desk at the end of its Monday: two turns, a rule in Memory.md, an open trigger and a closed one.

    Args:
        folder: Where the desk is.
        kind: `full`; `edited`: a person edits Memory.md while the first review is made; `parts`: the day is summed up
            in two parts; `too long`: the first new Memory.md is; `refused`: the new one lacks a line that is to be
            kept; `degraded`: no model can be asked; `empty`: there were no turns.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self.curator = Curator()
        limits = Limits(review_chars=150, memory_budget=1000) if kind == 'parts' else Limits(memory_budget=1000)
        self.box = Box(folder, disk=InlineDisk(), curator=self.curator, limits=limits)
        by_hand = '- by hand <!-- keep -->\n' if kind == 'refused' else '- by hand\n'
        self.expected_memory = '' if kind == 'empty' else by_hand
        self.needed_reviews = NEEDED_REVIEWS[kind]
        model = self.box.model
        scripts: dict[str, Callable[[Turn], Awaitable[dict[str, Any] | str]]] = {
            'edited': self.edited,
            'degraded': self.down,
            'too long': self.too_long,
            'refused': self.forgetful,
        }
        model.on_review = scripts.get(kind, model.review)

    async def edited(self, turn: Turn) -> dict[str, Any]:
        answer = await self.box.model.review(turn)
        if len(self.box.model.reviews) == 1:
            self.box.memory.path.write_text('- by a person\n')
        return answer

    async def too_long(self, turn: Turn) -> dict[str, Any]:
        if 'Write it again, shorter' in turn.text:
            return {'memory': f'- by hand\n{LESSON}', 'reasons': 'shorter'}
        answer = await self.box.model.review(turn)
        return {**answer, 'memory': answer['memory'] + 'x' * 1000}

    async def forgetful(self, turn: Turn) -> dict[str, Any]:
        return {**await self.box.model.review(turn), 'memory': LESSON}

    async def down(self, turn: Turn) -> str:
        raise BackendError('down')

    async def until_midnight(self) -> None:
        box = self.box
        await box.start()
        if self.kind != 'empty':
            box.memory.path.write_text(self.expected_memory)
            for name in ('closed', 'open'):
                await box.queue.accept(Trigger(name, 'main', id=name, received_at=box.clock.now()))
            await box.turn('one')
            await box.turn('two')
            entry = box.queue.entry('closed')
            assert entry is not None
            await box.queue.close(entry, 'answered', '2026-10-19-1')
            await box.queue.start(box.queue.entry('open') or entry)
        box.next_day()

    async def restart(self) -> None:
        """Does what a desk does at its start, up to its first turn."""
        for folder in (self.box.folder, self.box.path, self.box.path / 'summaries'):
            files.sweep(folder)
        await self.box.restart()
        await self.box.keeper.roll_over_if_due()

    def record(self) -> RolloverRecord | None:
        data = files.read(self.box.path / 'rollover.json')
        return msgspec.json.decode(data, type=RolloverRecord) if data else None

    async def check(self, before: RolloverRecord | None, asked: tuple[int, int], crashes: int) -> None:
        box = self.box
        empty = self.kind == 'empty'
        # Sessions, and their announcement.
        assert box.store.session_ids() == ['2026-10-20-1', '2026-10-19-1']
        ids = (box.path / '.session-ids').read_text().split()
        assert [name for name in ids if name in ('2026-10-19-1', '2026-10-20-1')] == ['2026-10-19-1', '2026-10-20-1']
        state = box.store.load_state()
        assert state is not None
        assert (state.session_id, state.trading_date) == ('2026-10-20-1', TUESDAY) == (box.router.session_id, TUESDAY)
        announced = [event for event in box.told(SessionStarted) if event.session_id == '2026-10-20-1']
        assert announced
        assert announced[0].reason == 'daily_rollover', 'whoever hears of it first hears why'
        assert announced[0].previous_session_id == '2026-10-19-1'
        assert announced[0].summary_path == (None if empty else str(box.store.summary_path(MONDAY)))
        assert not (box.path / 'rollover.json').exists()
        # Its summary, and what was asked for it.
        heading = '## Session 2026-10-19-1' + (' (degraded)' if self.kind == 'degraded' else '')
        assert box.headings() == ([] if empty else [heading])
        reviews, curated = len(box.model.reviews), len(self.curator.days)
        assert reviews <= self.needed_reviews + crashes
        if before is not None and before.review is not None:
            again = self.kind == 'edited' and before.review.memory == f'- by hand\n{LESSON}'
            again |= self.kind == 'too long' and not before.review.shortened
            assert reviews - asked[0] <= again, 'the answers were recorded'
        elif before is not None and before.parts:
            assert reviews - asked[0] <= self.needed_reviews - len(before.parts), 'the parts were recorded'
        if before is not None and before.stage in ('session', 'announced'):
            assert curated == asked[1], 'its stage was recorded'
        assert curated <= (0 if empty else 1 + crashes)
        # Memory.md.
        lesson = LESSON if self.kind in ('full', 'edited', 'parts', 'too long') else ''
        assert box.memory_text == {'edited': '- by a person\n'}.get(self.kind, self.expected_memory) + lesson
        history = [path.read_text() for path in (box.folder / 'memory_history').glob('*.md')]
        replaced = LESSON if self.kind == 'refused' else box.memory_text.removesuffix(lesson) if lesson else None
        assert history == [replaced] * (replaced is not None)
        done = [change.kind for change in box.memory.changes()]
        assert done == ['refused' if self.kind == 'refused' else 'folded'] * len(history), 'it is written down once'
        # Triggers.
        if not empty:
            self.check_triggers()
        # And the desk goes on.
        told = await box.turn('tuesday')
        assert told.endswith('tuesday')
        assert ('2026-10-19-1 had 2 exchanges' in told) == (self.kind not in ('degraded', 'empty'))
        assert not await box.keeper.roll_over_if_due()

    def check_triggers(self) -> None:
        box = self.box
        archive = (box.folder / 'triggers' / '2026-10-19-1.jsonl').read_text()
        current = (box.folder / 'triggers.jsonl').read_text()
        assert archive.count('"accepted"') == 2
        assert archive.count('"closed"') >= 1
        assert current.count('"accepted"') == 1
        assert [entry.trigger.id for entry in box.queue.open_entries()] == ['open']
        assert box.queue.entry('open').attempts == 1  # type: ignore[union-attr] # it is there
        assert box.queue.closing('closed').outcome == 'answered'  # type: ignore[union-attr] # likewise
        assert not (box.folder / 'triggers.jsonl').samefile(box.folder / 'triggers' / '2026-10-19-1.jsonl')


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    """Stands between the program and its files."""
    spare_the_disk(monkeypatch)
    killer = Killer()
    killer.install(monkeypatch)
    return killer


async def die(killer: Killer, number: int, variant: str, do: Callable[[], Awaitable[object]]) -> bool:
    """Runs something up to its n-th write; returns whether the process died there."""
    killer.arm(number, variant)
    try:
        await do()
    except Crash:
        return True
    except BaseExceptionGroup as group:
        if group.subgroup(Crash) is None:
            raise
        return True
    finally:
        killer.arm(0, '')
    return False


@pytest.mark.parametrize('variant', VARIANTS)
@pytest.mark.parametrize('kind', NEEDED_REVIEWS)
async def test_a_crash_at_every_write(tmp_path: Path, killer: Killer, kind: str, variant: str) -> None:
    """Wherever the process dies, the next one ends the rollover: nothing is lost, done twice or left over."""
    number, folder = 0, fast_folder(tmp_path)
    try:
        while True:
            number += 1
            story = Story(folder / str(number), kind)
            await story.until_midnight()
            died = await die(killer, number, variant, story.box.keeper.roll_over_if_due)
            before, asked = story.record(), (len(story.box.model.reviews), len(story.curator.days))
            if died:
                await story.restart()
            await story.check(before, asked, int(died))
            if not died:
                break
    finally:
        shutil.rmtree(folder)
    assert number > (8 if kind == 'empty' else 14), 'fewer writes than stages: nothing was tested'


@pytest.mark.parametrize('kind', NEEDED_REVIEWS)
async def test_a_crash_of_the_restart_too(tmp_path: Path, killer: Killer, kind: str) -> None:
    """A process that dies while it ends what another one began leaves as little behind."""
    first, folder, deepest = 0, fast_folder(tmp_path), 0
    try:
        died = True
        while died:
            first += 1
            second, died_again = 0, True
            while died_again:
                second += 1
                story = Story(folder / f'{first}-{second}', kind)
                await story.until_midnight()
                variants = VARIANTS[(first + second) % 3], VARIANTS[second % 3]
                died = await die(killer, first, variants[0], story.box.keeper.roll_over_if_due)
                died_again = died and await die(killer, second, variants[1], story.restart)
                before, asked = story.record(), (len(story.box.model.reviews), len(story.curator.days))
                if died:
                    await story.restart()
                await story.check(before, asked, died + died_again)
                shutil.rmtree(story.box.folder)
            deepest = max(deepest, second)
    finally:
        shutil.rmtree(folder)
    assert deepest > 8


async def test_the_writes_of_a_rollover(tmp_path: Path, killer: Killer) -> None:
    """What is written, in which order: each stage is recorded before the next one begins."""
    story = Story(tmp_path, 'full')
    await story.until_midnight()
    killer.arm(0, '')
    await story.box.keeper.roll_over_if_due()
    assert killer.writes == [
        'replace rollover.json',
        'append 2026-10-19-1.jsonl',  # the journal: what is asked, and the answer
        'append 2026-10-19-1.jsonl',
        'replace rollover.json',
        'replace 2026-10-19.md',
        'replace rollover.json',
        'replace 2026-10-19-1.md',
        'append ledger.jsonl',
        'replace Memory.md',
        'replace rollover.json',
        'replace rollover.json',
        'link triggers.jsonl',
        'replace triggers.jsonl',
        'replace rollover.json',
        'append .session-ids',
        'create 2026-10-20-1.jsonl',
        'append 2026-10-19-1.jsonl',  # the ended journal, put on the disk to its last byte
        'create 2026-10-20-1.jsonl',  # its journal
        'replace state.json',
        'replace rollover.json',
        'remove rollover.json',
    ]


async def test_a_crash_of_the_very_first_start(tmp_path: Path, killer: Killer) -> None:
    """A desk whose first start died has one session after the second, and takes its turn in it."""
    for variant in VARIANTS:
        number, died = 0, True
        while died:
            number += 1
            box = Box(tmp_path / f'{variant}-{number}')
            died = await die(killer, number, variant, box.start)
            if died:
                await box.restart()
            await box.turn()
            logs = box.store.session_ids()
            assert [len(box.store.exchanges(session_id)) for session_id in logs] == [1]
            assert logs[0] in ('2026-10-19-1', '2026-10-19-2'), 'a number given out is not given again'
        assert number > 3
