"""Journals out of whose newest records a power cut has taken one, with zeros in its place."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from test_recovery import SESSION, Night

from trading_agent import files
from trading_agent.conversation.chain import verify
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.conversation.records import AnyRecord, MessageSaid, TextCame, ToolRequested, TurnEnded
from trading_agent.memory.damage import Damage
from trading_agent.messages import AssistantMessage, ToolResultMessage

ACT = ToolRequested(turn_id='t', id='c', name='order', arguments={})


class Folder:
    """A journal of one session, whose records are text, and what is told when it is mended."""

    def __init__(self, folder: Path) -> None:
        self.told: list[Damage] = []
        self.folder = JournalFolder(folder, 'main', lambda: datetime.now(UTC), on_damage=self.told.append)
        self.journal = self.folder.open(SESSION)
        self.path = self.journal.path

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().split(b'\n')[:-1]

    def write(self, *records: str | AnyRecord) -> None:
        for record in records:
            self.journal.append(TextCame(turn_id='t', text=record) if isinstance(record, str) else record)

    def lose(self, number: int, whole: Callable[[bytes], bytes] = lambda line: bytes(len(line))) -> None:
        """Puts zeros in the place of a line, from 0, its newline too."""
        lines = [line + b'\n' for line in self.lines()]
        lines[number] = whole(lines[number])
        self.path.write_bytes(b''.join(lines))


@pytest.fixture
def box(tmp_path: Path) -> Folder:
    """A journal."""
    return Folder(tmp_path)


def test_what_hangs_behind_a_hole_is_taken_out(box: Folder) -> None:
    """The chain ends before the hole and goes on there; nothing is gone, and all of it is told."""
    box.write('a', 'b', 'lost', 'merged', 'hanging')
    box.lose(3)
    before = box.path.read_bytes()
    journal = box.folder.open(SESSION)
    assert [b'"a"' in line or b'"b"' in line for line in box.lines()] == [False, True, True]
    journal.append(TextCame(turn_id='t', text='next'))
    assert (verify(box.path).records, verify(box.path).broken, verify(box.path).unreadable) == (3, None, [])
    (aside,) = box.path.parent.glob('*.damaged-*')
    assert aside.read_bytes() == before
    assert [(told.path, told.line, aside.name in told.error) for told in box.told] == [(box.path, 4, True)]
    box.folder.mend(SESSION)
    assert len(box.told) == 1


@pytest.mark.parametrize('torn', [lambda line: line[:9] + bytes(len(line) - 9), lambda line: line[:-1] + b'\0'])
def test_a_hole_in_the_middle_of_a_record(box: Folder, torn: Callable[[bytes], bytes]) -> None:
    """Of the lost record the beginning may be there; it goes with what is behind it."""
    box.write('a', 'lost', 'merged', 'hanging')
    box.lose(2, torn)
    box.folder.mend(SESSION)
    assert (verify(box.path).records, verify(box.path).broken) == (1, None)


def test_what_hangs_may_have_lost_its_newline(box: Folder) -> None:
    """A last record of which only the newline is missing hangs too: closed, it would be one that follows nothing."""
    box.write('a', 'lost', 'merged', 'hanging')
    box.lose(2)
    box.path.write_bytes(box.path.read_bytes()[:-1])
    box.folder.open(SESSION)
    assert (verify(box.path).records, verify(box.path).broken) == (1, None)


def test_a_torn_line_with_zeros_stays(box: Folder) -> None:
    """A last line that ends in zeros is closed as any torn one, also when others have followed it since."""
    box.write('a')
    with box.path.open('ab') as file:
        file.write(b'{"type":"te' + bytes(20))
    for text in ('b', 'c'):
        box.folder.open(SESSION).append(TextCame(turn_id='t', text=text))
    assert (verify(box.path).records, verify(box.path).broken, verify(box.path).unreadable) == (3, None, [3])
    assert box.told == []


def test_a_record_that_was_taken_out_still_shows(box: Folder) -> None:
    """Without zeros in its place it was no power cut: nothing is touched, and the chain is broken."""
    box.write('a', 'gone', 'b', 'c')
    box.lose(2, lambda _: b'')
    before = box.path.read_bytes()
    box.folder.mend(SESSION)
    assert box.path.read_bytes() == before
    assert verify(box.path).broken is not None


@pytest.mark.parametrize(
    'synced', [ACT, TurnEnded(turn_id='t', outcome='answered')], ids=lambda record: type(record).__name__
)
def test_what_was_synced_is_not_taken_out(box: Folder, synced: AnyRecord) -> None:
    """Behind a call or an answered turn's end that others follow there is no power cut's hole: that is to show."""
    box.write('a', 'lost', 'b', synced, 'c')
    box.lose(2)
    before = box.path.read_bytes()
    box.folder.mend(SESSION)
    assert (box.path.read_bytes(), box.told) == (before, [])


def test_a_missing_journal_needs_no_mending(tmp_path: Path) -> None:
    """Nothing is made where there is none."""
    JournalFolder(tmp_path / 'journal', 'main', lambda: datetime.now(UTC)).mend(SESSION)
    assert not (tmp_path / 'journal').exists()


async def test_an_end_without_its_answer_does_not_run_the_order_again(tmp_path: Path) -> None:
    """A power cut left an order, and the end of its turn, but not the answer: the trigger is unknown, not run again."""
    night = Night(tmp_path)
    await night.accept('t1')
    night.order('t1')
    result = MessageSaid(turn_id='t1:1', message=ToolResultMessage('c1', 'broker__order', 'ordered'))
    answer = MessageSaid(turn_id='t1:1', message=AssistantMessage('ordered'))
    for record in (result, answer, TurnEnded(turn_id='t1:1', outcome='answered', backend='offline')):
        night.journal.append(record)
    _lose_line_with(night.journal, b'"tool_call_id"')
    assert await night.outcome_of('t1') == 'unknown'
    assert len(night.store.exchanges(SESSION)) == 1


def _lose_line_with(journal: Journal, text: bytes) -> None:
    data = files.read(journal.path) or b''
    lines = [bytes(len(line)) if text in line else line for line in data.splitlines(keepends=True)]
    journal.path.write_bytes(b''.join(lines))
