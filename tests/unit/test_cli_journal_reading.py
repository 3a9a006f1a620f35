"""How the records of a journal become what happened: pieces put together, and nothing told twice."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_agent.cli.journal_reading import Happening, Line, last_turns, read_journal, turns_in
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.recorder import TurnRecords
from trading_agent.conversation.records import (
    AnyRecord,
    CallFailed,
    Digested,
    MessageSaid,
    SessionHeader,
    TextCame,
    ToolRequested,
    TurnBegun,
    TurnCut,
    TurnEnded,
)
from trading_agent.memory.damage import Damage
from trading_agent.messages import AssistantMessage, ToolCall, Usage, UserMessage
from trading_agent.turn_events import TextPiece, ToolCalled, ToolReturned, TurnAnswered, TurnEvent, UsageCounted

BEGUN = TurnBegun(turn_id='t:1', purpose='turn', trigger_id='t')


def told(*records: AnyRecord) -> list[tuple[str, str]]:
    """Returns what happened in the only turn of these records."""
    [turn] = turns_in(Line(number, record) for number, record in enumerate(records, 2))
    return [(happening.what, happening.text) for happening in turn.happenings()]


def piece(text: str) -> TextCame:
    """Returns a piece of an answer."""
    return TextCame(turn_id='t:1', text=text)


def said(text: str, *calls: ToolCall) -> MessageSaid:
    """Returns a whole message of the model."""
    return MessageSaid(turn_id='t:1', message=AssistantMessage(text, list(calls)))


def test_pieces_are_put_together_and_told_once() -> None:
    """A text that came in pieces and then as a message is told once; so is a tool call."""
    call = ToolCall('c', 'quote', {'symbol': 'ABC'})
    request = ToolRequested(turn_id='t:1', id='c', name='quote', arguments={'symbol': 'ABC'})
    question = MessageSaid(turn_id='t:1', message=UserMessage('how?'))
    assert told(BEGUN, question, piece('let '), piece('me'), request, said('let me', call), piece('4'), said('4')) == [
        ('told', 'how?'),
        ('said', 'let me'),
        ('tool_called', '{"symbol":"ABC"}'),
        ('said', '4'),
    ]


def test_a_call_that_only_a_message_has_is_told() -> None:
    """Where a tool call stands in a message alone, as other programs write it, it is told from there."""
    assert told(BEGUN, said('hm', ToolCall('c', 'quote', {}))) == [('said', 'hm'), ('tool_called', '{}')]


def test_a_backend_that_acts_by_itself_is_asked() -> None:
    """A call that stands for the whole turn of a backend is told as a question to it, and a digest with its size."""
    asked = ToolRequested(turn_id='t:1', id='t:1', name='claude_code', arguments={})
    digest = Digested(turn_id='t:1', text='ABC was bought', exchanges=40)
    [turn] = turns_in(Line(2, record) for record in (BEGUN, asked, digest, said('4')))
    first, second, third = turn.happenings()
    assert (first.what, first.backend, first.tool) == ('asked', 'claude_code', '')
    assert (second.what, second.exchanges, second.text) == ('digested', 40, 'ABC was bought')
    assert third.what == 'said'


def test_what_was_said_in_vain_is_told_as_such() -> None:
    """The pieces before a failure, and those of a turn that was cut off or has no end, are said in vain."""
    failed = CallFailed(turn_id='t:1', backend='a', error_type='BackendError', error='dead')
    cut = TurnCut(turn_id='t:1', cause='crash')
    assert told(BEGUN, piece('on'), piece('e'), failed, piece('two'), cut) == [
        ('said_in_vain', 'one'),
        ('backend_failed', 'dead'),
        ('said_in_vain', 'two'),
        ('interrupted', ''),
    ]
    assert told(BEGUN, piece('on'), piece('e')) == [('said_in_vain', 'one')]


def test_a_backend_that_fails_does_not_make_the_next_one_say_things_twice() -> None:
    """What a failed backend had said is not looked for in the message of the one that answers."""
    failed = CallFailed(turn_id='t:1', backend='a', error_type='E', error='dead')
    request = ToolRequested(turn_id='t:1', id='c', name='quote', arguments={})
    call = ToolCall('c', 'quote', {})
    shown = told(BEGUN, piece('I think'), failed, piece('let me'), request, said('let me', call))
    assert [text for what, text in shown if what == 'said'] == ['let me']


def test_how_much_had_been_said_counts_for_one_backend() -> None:
    """What had been said when a turn was cut off is that of the backend that was speaking, not of one that failed."""
    failed = CallFailed(turn_id='t:1', backend='a', error_type='E', error='dead', usage=Usage(5))
    records: list[AnyRecord] = [
        BEGUN,
        piece('12345'),
        failed,
        piece('123'),
        TurnCut(turn_id='t:1', cause='stop', usage=Usage(7)),
    ]
    [turn] = turns_in(Line(0, record) for record in records)
    assert (turn.said, turn.usage) == (3, Usage(12))


def test_turns_end_where_the_next_one_begins() -> None:
    """Each turn is its own, whether it has its end or not; so is what was saved between them, without a turn."""
    alone = MessageSaid(message=UserMessage('x'))
    end = TurnEnded(turn_id='t:1', outcome='answered')
    records: list[AnyRecord] = [alone, BEGUN, piece('a'), BEGUN, end, alone, alone, BEGUN]
    turns = list(turns_in(Line(0, record) for record in records))
    assert [len(turn.lines) for turn in turns] == [1, 2, 2, 2, 1]
    assert [turn.begun is None for turn in turns] == [True, False, False, True, False]
    assert [turn.end for turn in turns] == [None, None, end, None, None]


STEPS = st.one_of(
    st.tuples(st.just('says'), st.text(min_size=1, max_size=5)),
    st.tuples(st.sampled_from(['calls', 'calls and hears', 'counts']), st.just('')),
)


@given(steps=st.lists(STEPS), answered=st.booleans())
def test_every_word_of_a_turn_is_told_once(*, steps: list[tuple[str, str]], answered: bool) -> None:
    """Whatever a backend yields, what is told of the turn is all that was said, in order, and every call, once."""
    events: list[TurnEvent] = []
    since_a_call = ''
    for number, (step, text) in enumerate(steps):
        if step == 'says':
            events.append(TextPiece(text))
            since_a_call += text
        elif step == 'counts':
            events.append(UsageCounted(1))
        else:
            events.append(ToolCalled(f'c{number}', 'quote', {}))
            since_a_call = ''
        if step == 'calls and hears':
            events.append(ToolReturned(f'c{number}', '4'))
    if answered:
        events.append(TurnAnswered(since_a_call))
    records = TurnRecords('t:1', now=lambda: 0.0)
    written = [BEGUN, *(record for event in events for record in records.of(event))]
    [turn] = turns_in(Line(0, record) for record in written)
    shown = list(turn.happenings())
    words = ''.join(text for _, text in steps)
    assert ''.join(one.text for one in shown if one.what in ('said', 'said_in_vain')) == words
    assert sum(one.what == 'tool_called' for one in shown) == sum(step.startswith('calls') for step, _ in steps)
    assert not answered or all(one.what != 'said_in_vain' for one in shown)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal of three turns."""
    made = Journal.begin(tmp_path / 'j.jsonl', SessionHeader(session_id='2026-10-19-1', created_at='2026-10-19'))
    for number in range(3):
        turn_id = f't{number}:1'
        begun = TurnBegun(turn_id=turn_id, purpose='turn', trigger_id=f't{number}')
        made.append(begun, TextCame(turn_id=turn_id, text='x'), TurnEnded(turn_id=turn_id, outcome='answered'))
    return made


def test_the_numbers_are_those_of_the_lines(journal: Journal) -> None:
    """Each record comes with the number of its line; a damaged line is told with its own, a torn last one is not."""
    text = journal.path.read_bytes().split(b'\n')
    text[4:4] = [b'', b'{"type":"nonsense"}']
    journal.path.write_bytes(b'\n'.join(text) + b'{"type":"text","te')
    damaged: list[Damage] = []
    numbers = [line.number for line in read_journal(journal.path, damaged.append)]
    assert numbers == [2, 3, 4, 7, 8, 9, 10, 11, 12]
    assert [(damage.path, damage.line) for damage in damaged] == [(journal.path, 6)]


def test_the_last_turns_are_whole(journal: Journal) -> None:
    """The end of a journal is its last turns, from their beginning; of a short one it is all."""
    assert [line.record.turn_id for line in last_turns(journal.path, 2)] == ['t1:1'] * 3 + ['t2:1'] * 3
    assert len(last_turns(journal.path, 9)) == 9
    assert isinstance(last_turns(journal.path, 1)[0].record, TurnBegun)
    assert last_turns(journal.path.with_name('none.jsonl'), 1) == []


def test_what_happened_can_be_written_as_json() -> None:
    """What happened is written with the fields that say something, and nothing else."""
    happening = Happening(at='2026-10-19T04:00:00Z', what='interrupted', line=7, cause='crash', usage=Usage(3))
    assert msgspec.to_builtins(happening) == {
        'at': '2026-10-19T04:00:00Z', 'what': 'interrupted', 'line': 7, 'cause': 'crash', 'usage': {'input_tokens': 3},
    }  # fmt: skip
