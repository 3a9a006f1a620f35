"""An index that followed the files, in whatever steps, and one that was made from them anew are equal, row for row."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_days import AT, Day, Rows, as_first_read, failure, rebuilt, rows_of, spoken, tool

from trading_agent.index import comparison, feed
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.memory.carry import BEGIN, LATE, framed
from trading_agent.messages import Usage

Appended = tuple[Path, bytes]
KINDS = (
    'plain', 'tools', 'failing', 'failed', 'interrupted', 'running', 'review', 'cut review', 'carried', 'old',
    'old with id', 'again', 'damaged begin', 'damaged question', 'damaged answer', 'damaged end', 'damaged exchange',
    'torn', 'garbage', 'blank', 'odd text', 'no text', 'alone', 'no exchange', 'exchange twice',
)  # fmt: skip


class Story:
    """What a desk writes in one session, step by step."""

    def __init__(self, day: Day) -> None:
        self.day = day
        self.exchanges: list[str] = []
        self._words = 0

    def word(self) -> str:
        """Returns a word that stands in no other text of the session."""
        self._words += 1
        return f'{self.day.desk}{self.day.session_id[8:10]}w{self._words}'

    def step(self, kind: str) -> list[Appended]:
        """Returns what a step of a kind appends, in order; the words of exchanges that can be read are noted."""
        day, word = self.day, self.word()
        told, answer = f'zebra {word}', f'lion {self.word()} of it'
        usage = Usage(len(word), 2)
        outcomes = {'failed': 'failed', 'interrupted': 'interrupted', 'running': 'running', 'cut review': 'interrupted'}
        before = {
            'tools': [*tool('quotes', f'tiger {self.word()}'), spoken('so far'), *tool('news', '', is_error=True)],
            'failing': [spoken('void'), *tool('quotes', 'void'), failure(usage), spoken('better')],
            'failed': [spoken('void'), failure()],
            'interrupted': [spoken('half')],
            'running': [spoken('half'), failure(), spoken('more')],
        }.get(kind, [])
        match kind:
            case 'old' | 'old with id':
                parts = [day.unjournaled(told, answer, f'old-{word}' if kind == 'old with id' else None)]
            case 'garbage':
                return [(day.journal, b'\xff\x00{"type":\n'), (day.log, b'[[[[' * 100 + b'\n{"trigger_text":1}\n')]
            case 'blank':
                return [(day.journal, b'\n \n'), (day.log, b'\n')]
            case 'alone':
                return [(day.journal, day.line(spoken(f'said alone {word}')))]
            case 'odd text':
                return [self._foreign(f'{told} \ud83d \0 \u2028', answer)]
            case _:
                if kind == 'carried':
                    told = framed(BEGIN.format(session_id='2026-10-16-1'), framed(LATE, 'sold', 'x'), told)
                if kind == 'no text':
                    answer = ' \n'
                parts = day.turn(
                    told,
                    answer,
                    outcome=outcomes.get(kind, 'answered'),
                    purpose='review' if 'review' in kind else 'turn',
                    before=before,
                    usage=usage,
                )
        if kind == 'again':
            cut = day.turn(told, 'half', trigger_id=f'again-{word}', outcome='interrupted')
            parts = cut + day.turn(told, answer, trigger_id=f'again-{word}', attempt=2)
        return self._spoilt(kind, parts, word)

    def _spoilt(self, kind: str, parts: list[Appended], word: str) -> list[Appended]:
        places = {'damaged begin': 0, 'damaged question': 1, 'damaged answer': -3, 'damaged end': -2}
        if kind in places:
            path, line = parts[places[kind]]
            parts[places[kind]] = path, line[: len(line) // 2] + b'\xfe\n'
        if kind == 'damaged exchange':
            parts[-1] = parts[-1][0], b'{' + parts[-1][1]
        elif kind == 'no exchange':
            parts.pop()
        elif kind == 'exchange twice':
            parts.append(parts[-1])
        elif kind == 'torn':  # a crash tore the line, and the restart sealed it and wrote it again
            path, line = parts.pop()
            parts += [(path, line[:40]), (path, b'\n'), (path, line)]
        if parts[-1][0] == self.day.log and kind not in ('damaged exchange', 'no text'):
            self.exchanges.append(word)
        return parts

    def _foreign(self, told: str, answer: str) -> Appended:
        data = {'trigger_text': told, 'answer': answer, 'backend_name': 'x', 'finished_at': AT, 'usage': {'n': 1}}
        return self.day.log, json.dumps(data).encode() + b'\n'


@contextmanager
def workspace() -> Iterator[Path]:
    """Yields a folder of its own, for each example."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def one_by_one(folder: Path) -> Rows:
    """Returns what an index holds once each session was made anew."""
    with SqliteIndex(folder) as index:
        for path in folder.glob('desks/*/*/*.jsonl'):
            index.rebuild_sqlite_from_jsonl(path.stem)
    return rows_of(folder)


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(KINDS)), min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, data=st.data())
def test_following_the_files_is_as_good_as_reading_them_anew(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    """However lines come in, are cut, damaged and mixed, and whenever they are read: the rows are the same."""
    with workspace() as folder:
        days = [Day(folder, 'main', '2026-10-19-1'), Day(folder, 'main', '2026-10-20-1'), Day(folder, 'nifty')]
        stories = [Story(day) for day in days]
        queues: list[list[Appended]] = [[], [], []]
        for which, kind in steps:
            queues[which] += stories[which].step(kind)
        batch = data.draw(st.sampled_from([1, 40, 300, 1500, 1 << 18]), 'bytes of a transaction')
        with mock.patch.object(feed, 'BATCH_BYTES', batch), SqliteIndex(folder) as index, SqliteIndex(folder) as other:
            while any(queues):
                which = data.draw(st.sampled_from([number for number, queue in enumerate(queues) if queue]), 'session')
                path, line = queues[which].pop(0)
                if data.draw(st.booleans(), 'in two parts'):
                    cut = data.draw(st.integers(0, len(line)), 'cut')
                    days[which].append((path, line[:cut]))
                    index.catch_up()
                    days[which].append((path, line[cut:]))
                else:
                    days[which].append((path, line))
                if data.draw(st.booleans(), 'read'):
                    data.draw(st.sampled_from([index, other]), 'by').catch_up()
            index.catch_up()
            followed = rows_of(folder)
            with mock.patch.object(comparison, '_BYTES', batch):
                assert index.check(patience=0) == []
            for word in (word for story in stories for word in story.exchanges):
                assert [hit.who for hit in index.search(word)] == ['user'], word
            assert index.behind() == 0
        assert followed == rebuilt(folder)
        assert followed == one_by_one(folder)
        assert followed == as_first_read(folder)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, changes=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=3), data=st.data())
def test_files_that_are_put_back_or_cut(
    steps: list[tuple[int, str]], changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whatever an operator does to the files between two looks, the index is as if it had read only what is there."""
    with workspace() as folder:
        day = Day(folder)
        story = Story(day)
        parts = [part for _, kind in steps for part in story.step(kind)]
        with SqliteIndex(folder) as index:
            for which, how in changes:
                taken, parts = parts[: len(parts) // 2], parts[len(parts) // 2 :]
                day.append(*taken)
                index.catch_up()
                change(folder, (day.journal, day.log)[which], how, data)
                if data.draw(st.booleans(), 'read at once'):
                    index.catch_up()
            day.append(*parts)
            index.catch_up()
        assert rows_of(folder) == rebuilt(folder)


def change(folder: Path, path: Path, how: int, data: st.DataObject) -> None:
    """Does something to a file that a desk never does."""
    if not path.exists():
        return
    lines = path.read_bytes().split(b'\n')
    if how == 0:
        path.unlink()
    elif how == 1:
        path.rename(folder / path.name)
        shutil.copyfile(folder / path.name, path)
    elif how == 2:
        path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, path.stat().st_size), 'size')])
    elif how == 3:
        path.write_bytes(b'\n'.join(lines[: len(lines) // 2]) + b'\n')
    else:
        path.write_bytes(b'\n'.join(reversed(lines)))


@pytest.mark.parametrize('kind', KINDS)
def test_each_step_alone(tmp_path: Path, kind: str) -> None:
    """Each kind of step, read after every line of it, becomes what it becomes when it is read in one go."""
    story = Story(Day(tmp_path))
    with SqliteIndex(tmp_path) as index:
        for part in [*story.step(kind), *story.step('plain'), *story.step(kind)]:
            story.day.append(part)
            index.catch_up()
        for word in story.exchanges:
            assert [hit.who for hit in index.search(word)] == ['user']
    assert rows_of(tmp_path) == rebuilt(tmp_path)


@pytest.mark.parametrize('length', [10, 5000, 100_000])
def test_a_last_line_that_a_power_cut_took_and_another_replaced(tmp_path: Path, length: int) -> None:
    """A line that was read, lost by a power cut and written anew, as long and with the same end, is read anew."""
    day = Day(tmp_path)
    day.say('hello')
    before = day.journal.read_bytes()
    for number in (1, 2):
        day.journal.write_bytes(before)
        day.append(*day.turn('x' * length, trigger_id=f'{number}', purpose='review', outcome='running')[:2])
        with SqliteIndex(tmp_path) as index:
            index.catch_up()
            assert index.check(patience=0) == []
    assert rows_of(tmp_path) == rebuilt(tmp_path)
