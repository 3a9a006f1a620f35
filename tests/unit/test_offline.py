"""The built-in offline provider and backend: its answers, its summaries, its Memory.md, and how it is asked."""

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trading_agent.config import OfflineOptions
from trading_agent.errors import BackendError, TurnRefused
from trading_agent.memory.exchange import Exchange
from trading_agent.messages import AssistantMessage, Message, ToolCall, ToolResultMessage, UserMessage
from trading_agent.providers.announcement import NO_MODEL, announcement_of, clipped, lines_of, read
from trading_agent.providers.extract import day_summary, folded_memory
from trading_agent.providers.heard import Hearing, Pair
from trading_agent.providers.offline import OfflineProvider
from trading_agent.providers.offline_answer import LONGEST_ANSWER, MOST_PIECES, answer, pieces
from trading_agent.providers.provider import ModelRequest, Stopped
from trading_agent.routing.provider_runner import ProviderRunner
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent
from trading_agent.units import Duration

DATA = Path(__file__).parents[2].parent / 'shared' / 'data'
DAY = date(2025, 12, 16)

PRESS = (
    'Saffron Looms Limited SAFLOOM : Press Release SAFLOOM : Saffron Looms Limited has informed the Exchange regarding '
    'a press release dated December 16, 2025, titled "Saffron Looms bags order worth Rs. 41.75 crore".'
)
BOARD = (
    'Saffron Looms Limited SAFLOOM : Outcome of Board Meeting-XBRL SAFFRON LOOMS LIMITED has informed the Exchange '
    'regarding Outcome of Board Meeting held on 15-Dec-2025 for Dividend'
)
MEET = (
    'Teak & Tin Works Limited T&TWORKS : Analysts/Institutional Investor Meet/Con. Call Updates T&TWORKS  : Teak & Tin '
    'Works Limited has informed the Exchange about Schedule of meet'
)
BARE = (
    'Copper Kettle Limited COPKET : Credit Rating Copper Kettle Limited has informed the Exchange about Credit Rating'
)
FRONT = (
    '[First message of session 2025-12-16-1. What came before:]\n## Session 2025-12-15-1\n\n'
    '- 10:00 SAFLOOM, Updates: a loom of Rs. 999 crore was ordered\n- 10:05 never trust a forecast\n'
    '[End of what came before. The message follows.]\n\n'
)
AWKWARD = [
    '\x00',
    'x' * (1 << 20),
    'Never ' * 150_000,
    '[note]\n' * 100_000,
    '. ' * 300_000,
    ' ' * 500_000 + 'end?',
    PRESS + ' 12' * 200_000,
    'never\u2028always\u2029limit\u0085must\x1cremember',
    '[First message of session x',
    '[End of what came before]',
    ' : ',
    'A A : A : A',
]


def exchange(text: str, given: str = f'Heard.\n{NO_MODEL}', minute: int = 0) -> Exchange:
    """Returns an exchange that finished so many minutes after 09:15 IST."""
    finished = datetime(2025, 12, 16, 3, 45, tzinfo=UTC) + timedelta(minutes=minute)
    return Exchange(text, given, 'offline', finished.isoformat())


def day(*texts: str) -> list[Exchange]:
    """Returns exchanges of these texts, a minute apart."""
    return [exchange(text, minute=number) for number, text in enumerate(texts)]


def tokens(text: str) -> set[str]:
    """Returns the symbols and figures of a text, whole."""
    return {
        token.strip('.,:;&/%*-') for token in re.findall(r'[\w.,:;&/%*-]+', text) if re.search(r'[\dA-Z]', token)
    } - {''}


def quoted_tokens(summary: str) -> set[str]:
    """Returns the symbols and figures of a summary that are not its own counts, times and headings."""
    body = summary.partition('\n\n')[2]
    body = re.sub(r'^### .*$', '', body, flags=re.MULTILINE)
    body = re.sub(r'^- (\d\d:\d\d|--:--) ', '', body, flags=re.MULTILINE)
    body = re.sub(r'\[\d+ (more|characters) left out\]', '', body)
    return tokens(re.sub(r'(?<!\S)\d+x(?=[ :])', '', body))


def said_tokens(exchanges: Sequence[Exchange]) -> set[str]:
    """Returns the symbols and figures of all that was said."""
    return set().union(*(tokens(each.trigger_text) | tokens(each.answer) for each in exchanges))


SNIPPETS = ['never', 'limit', 'Rs. 1,234.50', 'decided', 'NET', 'ZED-1', 'ZED-1 :', ' : ', '12%', '- ', '\n', '.', '?']

texts = st.one_of(
    st.text(),
    st.sampled_from([PRESS, BOARD, MEET, BARE, FRONT + PRESS, FRONT + 'What now?']),
    st.lists(
        st.sampled_from(
            [
                *SNIPPETS,
                'has informed the Exchange',
                '[',
                ']',
                'x3',
                '3x',
                '\u2028',
                'SEVEN7',
                'Limited',
                '10:30',
                '-XBRL',
            ]
        ),
        max_size=30,
    ).map(' '.join),
)
exchange_lists = st.lists(
    st.builds(
        Exchange,
        trigger_text=texts,
        answer=st.one_of(texts, st.just(f'Heard.\n{NO_MODEL}')),
        backend_name=st.just('offline'),
        finished_at=st.sampled_from(['2025-12-16T04:00:00Z', '2025-12-16T04:00:00', 'yesterday', '0001-01-01T00:00Z']),
    ),
    max_size=12,
)


# What a trigger says


def test_an_announcement_is_read_with_and_without_its_second_symbol() -> None:
    """Company, symbol, subject and text are told apart in each of the exchange's shapes."""
    shapes = [(a.company, a.symbol, a.subject) for line in (PRESS, BOARD, MEET, BARE) if (a := announcement_of(line))]

    assert shapes == [
        ('Saffron Looms Limited', 'SAFLOOM', 'Press Release'),
        ('Saffron Looms Limited', 'SAFLOOM', 'Outcome of Board Meeting-XBRL'),
        ('Teak & Tin Works Limited', 'T&TWORKS', 'Analysts/Institutional Investor Meet/Con. Call Updates'),
        ('Copper Kettle Limited', 'COPKET', 'Credit Rating'),
    ]


@pytest.mark.parametrize(
    'text',
    [
        'Remember for SAFLOOM : never above 200',
        'COMPANY NAME    SYMBOL    : ANNOUNCEMENTS',
        'We met at 10 : all well',
        '',
    ],
)
def test_what_a_person_writes_is_no_announcement(text: str) -> None:
    """A colon behind a symbol does not make an announcement."""
    assert announcement_of(text) is None


@pytest.mark.parametrize(
    'front',
    [
        FRONT,
        FRONT.replace('## S', '[End of day: flat]\n## S'),
        FRONT.replace('First message of session 2025-12-16-1. What came before', 'The full summary is there now'),
        FRONT + '[This message was cut off at 10:31 and is run again.]\n',
        '[This message was cut off at 10:31 and is run again.]\n' + FRONT,
        '[This is the first message of a new session. Summary of 2025-12-15:]\nSold.\n[End of the summary. Now:]\n\n',
    ],
)
def test_what_stands_in_front_is_told_from_the_message(front: str) -> None:
    """Neither the summary of before nor a note in square brackets is part of the message."""
    message = read(front + 'Hold all.\n[no more]')

    assert message.told == ('Hold all.', '[no more]')
    assert message.front.strip() == front.strip()


def test_a_text_that_is_too_long_is_cut_between_sentences() -> None:
    """Only whole sentences are kept, no figure loses its unit, and the rest is counted."""
    text = 'Profit was Rs. 345.04 Cr. approx. by then. Dr. B. L. Rao of the Board said more than can be told here.'

    assert clipped(text, 60) == 'Profit was Rs. 345.04 Cr. approx. by then. [60 characters left out]'
    assert clipped('x' * 50, 20) == '[50 characters left out]'


# Answers


def test_the_first_announcement_of_a_company_is_called_the_first() -> None:
    """It is answered with symbol and subject, says that it is the first, and that no model was asked."""
    assert answer(PRESS, day(MEET), '').split('\n') == [
        'SAFLOOM: Press Release.',
        'It is the first announcement of this company in this session.',
        NO_MODEL,
    ]


def test_a_later_announcement_is_answered_with_the_earlier_ones() -> None:
    """They are counted, and the newest two are quoted with time, subject and the words of the company."""
    told = answer(MEET.replace('T&TWORKS', 'SAFLOOM'), day(PRESS, MEET, BOARD, PRESS.replace('41.75', '9.50')), '')

    assert 'This company has made 3 announcements before in this session' in told
    assert '- 09:18 SAFLOOM, Press Release: … a press release dated December 16, 2025' in told
    assert 'Rs. 9.50 crore' in told
    assert '- 09:17 SAFLOOM, Outcome of Board Meeting-XBRL' in told
    assert '41.75' not in told
    assert 'T&TWORKS' not in told


def test_an_announcement_is_answered_with_what_people_said_about_the_company() -> None:
    """A person's line, a line of Memory.md and one of the summary of before are quoted when they name the symbol."""
    earlier = day(FRONT + MEET, 'Never buy SAFLOOM before results.', 'SAFLOOMS are another thing')

    told = answer(PRESS, earlier, '# Memory\n\n- SAFLOOM trades thinly\n- COPKET does not\n')

    assert 'The desk was told about it:\n- 09:16 Never buy SAFLOOM before results.\nMemory.md has:' in told
    assert 'Memory.md has:\n- SAFLOOM trades thinly\nFrom' in told
    assert 'From before this session:\n- 10:00 SAFLOOM, Updates: a loom of Rs. 999 crore was ordered\n' in told
    assert 'the first announcement' in told


def test_a_summary_in_unknown_words_in_front_is_quoted_too() -> None:
    """Whatever stands in front of an announcement, the last line is the message and the lines with its symbol count."""
    told = answer(f'What was:\nSAFLOOM fell by 3 %.\nCOPKET rose.\n\n{PRESS}\n\n', [], '')

    assert told.startswith('SAFLOOM: Press Release.')
    assert '- SAFLOOM fell by 3 %.' in told
    assert 'COPKET' not in told


def test_a_question_is_answered_with_what_shares_its_rarest_words() -> None:
    """The exchange that has them is quoted with its answer, and so is the line of Memory.md."""
    others = [f'The weather at port {number} is fair.' for number in range(20)]
    asked = exchange('Is the copper freight booked?', 'Yes, the copper freight is booked for 4,100.', 30)

    told = answer(
        'What did we say about freight in this weather?',
        [*day(*others), asked],
        'Ask for weather.\nFreight is paid by us.',
    )

    assert '- 09:45 Is the copper freight booked? → answered: Yes, the copper freight is booked for 4,100.' in told
    assert 'Memory.md has:\n- Freight is paid by us.\n' in told
    assert 'port' not in told
    assert 'weather' not in told


def test_who_names_a_symbol_is_not_told_of_others() -> None:
    """A question about a symbol finds that symbol in any case of letters, or says that nothing was heard of it."""
    heard = answer('Any order for SAFLOOM?', day(PRESS, MEET), '')
    unheard = answer('Any order for COPKET?', day(PRESS, MEET), '')

    assert '- 09:15 SAFLOOM, Press Release' in heard
    assert unheard == f'Nothing about COPKET was heard in the 2 exchanges so far in this session.\n{NO_MODEL}'
    assert 'SAFLOOM, Press Release' in answer('anything from safloom today', day(PRESS, MEET), '')


def test_an_instruction_is_noted_word_for_word() -> None:
    """A standing rule is repeated in the answer; a question about one is not."""
    assert '- Never hold options overnight.' in answer('Good morning.\nNever hold options overnight.', [], '')
    assert 'Noted' not in answer('Should we never hold options overnight?', [], '')


def test_a_question_without_an_answer_does_not_answer_its_repeat() -> None:
    """Asked twice, an unanswered question is not quoted as what was heard."""
    assert 'Nothing about this was heard' in answer('Where is the freight?', day('Where is the freight?'), '')


def test_an_answer_that_would_be_too_long_is_cut_between_lines() -> None:
    """When every part has much to quote, whole lines are dropped from the end."""
    long = ' '.join(['SAFLOOM'] * 32)
    earlier = day(
        f'[First message of session x\n{long} 1\n{long} 2\n[End]\n{PRESS} {long[:100]}', BOARD, long, f'{long} !'
    )

    told = answer(PRESS, [*earlier, *day(*[f'{PRESS[:-1]} {"and more " * 11}.'] * 2)], f'{long}\n{long} 4')

    assert 1700 < len(told) <= LONGEST_ANSWER
    assert f'- {long} 4\nFrom before this session:\n' in told
    assert told.endswith(f'\n{NO_MODEL}')


@given(texts, exchange_lists, texts)
def test_any_text_is_answered_within_bounds(text: str, exchanges: list[Exchange], memory: str) -> None:
    """An answer is never longer than the bound, says that no model was asked, and is the same again."""
    told = answer(text, exchanges, memory)

    assert len(told) <= LONGEST_ANSWER
    assert told.endswith(NO_MODEL)
    assert told == answer(text, list(exchanges), memory)


@pytest.mark.parametrize('text', AWKWARD, ids=range(len(AWKWARD)))
def test_awkward_texts_cost_little(text: str) -> None:
    """A MiB without spaces, of notes, of sentence ends or of rules is answered, summarised and folded in seconds."""
    began = time.process_time()
    exchanges = day(text, PRESS, text)

    assert len(answer(text, exchanges, text)) <= LONGEST_ANSWER
    assert len(answer(PRESS, exchanges, text)) <= LONGEST_ANSWER
    assert len(day_summary(exchanges, 6000)) <= 6000
    assert folded_memory('old', exchanges, DAY, 12000).startswith('old')
    assert time.process_time() - began < 10


@given(st.text())
@example('')
@example(' ' * 50)
@example('word ' * 300)
def test_pieces_make_up_the_answer(text: str) -> None:
    """Put together they are the answer exactly; there are at most 20, and none is empty."""
    cut = list(pieces(text))

    assert ''.join(cut) == text
    assert len(cut) <= MOST_PIECES
    assert all(cut)


# The summary of a day


def test_a_summary_counts_the_day_in_india_time() -> None:
    """The first paragraph says how many exchanges, symbols and instructions there were, and when in IST."""
    head = day_summary(day(PRESS, MEET, BOARD, 'Never average down.'), 6000).split('\n')[0]

    assert head == (
        '4 exchanges from 09:15 to 09:18 IST: 3 announcements of 2 symbols, 1 other messages, '
        '1 instructions or decisions. No model was asked: what follows is quoted.'
    )


def test_a_summary_names_the_companies_and_subjects_heard_most() -> None:
    """The symbols heard more than once stand with their subjects, the subjects with counts and, if weighty, symbols."""
    summary = day_summary(day(PRESS, MEET, BOARD, *[BARE] * 3), 6000)

    assert '### Companies heard most\n- COPKET 3x: Credit Rating\n- SAFLOOM 2x: Press Release; Outcome of' in summary
    assert '### Subjects heard most\n- 3x Credit Rating; 1x Press Release; ' in summary


def test_a_summary_keeps_rules_and_money_verbatim() -> None:
    """Instructions, decisions and lines with money stand in it in the order of the day; questions do not."""
    exchanges = day(PRESS, MEET, BARE, 'Never short COPKET.\nBought 200 SAFLOOM at 41.20.', 'Is there a limit?')
    exchanges += day('Thanks.', 'Bye.', 'So.', 'Well.')
    exchanges.insert(4, exchange('And?', 'Decided to hold. Net is +1,180.', 5))

    summary = day_summary(exchanges, 6000)

    assert '### Standing instructions and decisions\n- 09:18 Never short COPKET.\n\n' in summary
    assert (
        '### Orders, results and money\n- 09:15 SAFLOOM, Press Release: … a press release dated December 16, 2025, '
        'titled "Saffron Looms bags order worth Rs. 41.75 crore".\n- 09:18 Bought 200 SAFLOOM at 41.20.\n'
        '- 09:20 answered: Decided to hold. Net is +1,180.\n\n'
    ) in summary


def test_a_summary_of_a_day_of_talk_quotes_the_talk() -> None:
    """Without announcements the messages and their answers stand in it, and it says nothing of announcements."""
    summary = day_summary([exchange(f'Message {number}.', f'Reply {number}.', number) for number in range(9)], 6000)

    assert summary.startswith('9 exchanges from 09:15 to 09:23 IST: 9 messages. ')
    assert '- 09:15 Message 0. → answered: Reply 0.' in summary
    assert summary.endswith('- 09:23 Message 8. → answered: Reply 8.')


def test_the_summary_of_the_day_before_is_not_summarised_again() -> None:
    """What the keeper put in front of a message was not said today, nor are its notes."""
    note = '[This message was cut off; never mind, Rs. 77 crore]\n'

    summary = day_summary(day(FRONT + PRESS, note + 'Hold.', FRONT + note + 'Never sell.'), 6000)

    assert '999' not in summary
    assert '77' not in summary
    assert 'forecast' not in summary
    assert 'Never sell.' in summary
    assert '41.75' in summary


def test_what_does_not_fit_is_counted() -> None:
    """A small budget keeps whole lines, the newest rules first, and says how many are left out."""
    summary = day_summary(day(*(f'Never buy at {number}00.' for number in range(1, 40))), 400)

    rules = summary.split('\n\n')[1].split('\n')
    assert rules[0] == '### Standing instructions and decisions'
    assert rules[-2] == '- 09:53 Never buy at 3900.'
    assert rules[-1] == f'[{39 - len(rules[1:-1])} more left out]'
    assert len(summary) <= 400


@given(exchange_lists, st.integers(0, 3000))
def test_a_summary_keeps_to_its_budget_and_to_what_was_said(exchanges: list[Exchange], budget: int) -> None:
    """It is never longer than the budget, and each figure and symbol that it quotes stands whole in an exchange."""
    summary = day_summary(exchanges, budget)

    assert len(summary) <= budget
    assert quoted_tokens(summary) <= said_tokens(exchanges)
    assert summary or budget < 20


# Memory.md


def test_memory_gains_the_rules_that_it_lacks() -> None:
    """The old text stays, the day's rules follow under its heading, and once folded nothing is added again."""
    old = '# Memory\n\n- Never hold options overnight\n'
    told = day('never hold options overnight.', '* Always hedge NIFTY.\nWhy?', 'Is there a rule?', 'Decided to wait.')

    new = folded_memory(old, told, DAY, 12000)

    assert new == f'{old}\n## Lessons of 2025-12-16\n\n- Always hedge NIFTY.\n'
    assert folded_memory(new, told, DAY, 12000) is new


def test_a_second_session_of_a_day_adds_to_the_same_heading() -> None:
    """The day's heading stands in Memory.md once, also when its last line has no end."""
    first = folded_memory('', day('Never sell first.'), DAY, 12000)

    second = folded_memory(first.rstrip(), day('Always ask twice.'), DAY, 12000)

    assert first == '## Lessons of 2025-12-16\n\n- Never sell first.\n'
    assert second == f'{first}- Always ask twice.\n'


def test_memory_takes_no_rule_from_announcements_or_from_before() -> None:
    """An announcement that says `must`, and the summary of the day before, are not what people told today."""
    must = PRESS.replace('bags', 'must bag')

    assert folded_memory('old', day(must, FRONT + 'Good morning.', FRONT + must), DAY, 12000) == 'old'


def test_rules_that_do_not_fit_are_dropped() -> None:
    """Memory.md never grows beyond its budget; a text that is longer already stays as it is."""
    told = day('Never ' + 'ever ' * 50 + 'sell.', 'Always ask.')

    assert folded_memory('old', told, DAY, 60) == 'old\n\n## Lessons of 2025-12-16\n\n- Always ask.\n'
    assert folded_memory('old' * 30, told, DAY, 60) == 'old' * 30


@given(texts, exchange_lists, st.integers(0, 500))
def test_memory_is_never_cut_and_never_grows_beyond_its_budget(memory: str, told: list[Exchange], budget: int) -> None:
    """The new text begins with the old one, and is the old one itself or within the budget."""
    new = folded_memory(memory, told, DAY, budget)

    assert new.startswith(memory)
    assert new is memory or len(new) <= budget


# The runner


def turn(text: str = PRESS, schema: dict[str, Any] | None = None, **further: Any) -> Turn:  # noqa: ANN401 - any field of a turn
    """Returns a turn of the desk `main`."""
    return Turn(desk='main', session_id='2025-12-16-1', trading_date=DAY, text=text, schema=schema, **further)


def offline(options: OfflineOptions | None = None, name: str = 'offline') -> ProviderRunner:
    """Returns the built-in backend's runner."""
    return ProviderRunner(OfflineProvider(options, name))


def answered(text: str) -> TurnAnswered:
    """Returns the last event of a turn that the built-in backend answers."""
    return TurnAnswered(text, None, 'offline', 'end_turn')


async def events_of(runner: ProviderRunner, given_turn: Turn) -> list[TurnEvent]:
    """Returns what a runner yields for a turn."""
    return [event async for event in runner.run(given_turn)]


async def test_a_turn_is_answered_in_pieces() -> None:
    """The pieces make up the answer, which comes last and leaves nothing to resume."""
    exchanges = day(BOARD)

    *shown, last = await events_of(offline(), turn(exchanges=exchanges, memory='- SAFLOOM is thin'))

    assert isinstance(last, TurnAnswered)
    assert last == answered(answer(PRESS, exchanges, '- SAFLOOM is thin'))
    assert len(shown) > 3
    assert ''.join(piece.text for piece in shown if isinstance(piece, TextPiece)) == last.answer


class Skill(msgspec.Struct):
    name: str
    uses: int


class Review(msgspec.Struct, forbid_unknown_fields=True):
    summary: Annotated[str, msgspec.Meta(max_length=500)]
    memory: str | None
    skills: list[Skill]
    best: Skill
    kept: bool
    share: float
    table: dict[str, int]
    title: str
    worst: Skill | None = None
    reasons: str = ''


async def test_a_question_beside_the_session_is_answered_by_its_schema() -> None:
    """One JSON object of the schema comes, and no pieces: a summary within its maxLength, Memory.md, empty values."""
    exchanges = day(*[PRESS, MEET, 'Never sell first.'] * 5)

    events = await events_of(
        offline(),
        turn('Review the day.', schema=msgspec.json.schema(Review), exchanges=exchanges, memory='# Memory\n'),
    )

    (last,) = events
    assert isinstance(last, TurnAnswered)
    review = msgspec.json.decode(last.answer, type=Review)
    assert review == Review(
        summary=day_summary(exchanges, 500),
        memory=folded_memory('# Memory\n', exchanges, DAY, 12000),
        skills=[],
        best=Skill('', 0),
        kept=False,
        share=0.0,
        table={},
        title='',
        reasons='No model was asked: the lines were chosen by their words.',
    )
    assert review.memory is not None
    assert '- Never sell first.' in review.memory


@pytest.mark.parametrize(
    'schema',
    [
        {'type': 'object'},
        {'$ref': '#/$defs/A', '$defs': {'A': {'$ref': '#/$defs/A'}}},
        {'properties': 3},
        {'$ref': '#/nowhere'},
    ],
)
async def test_a_schema_without_properties_gets_an_empty_object(schema: dict[str, Any]) -> None:
    """A schema that is damaged, or that names itself, is answered with an empty object."""
    told = await stream_of(OfflineProvider(), request(UserMessage('x'), schema=schema))

    assert told == [TextPiece('{}'), Stopped('end_turn', 'offline')]


async def test_an_empty_schema_asks_for_plain_text() -> None:
    """It is answered as a turn is, but in one piece."""
    assert await events_of(offline(), turn(schema={})) == [answered(answer(PRESS, [], ''))]


async def test_a_schema_that_contains_itself_is_cut_off() -> None:
    """A property that is required within itself does not go on for ever."""
    schema = {'$ref': '#/$defs/A', '$defs': {'A': {'type': 'object', 'properties': {'a': {'$ref': '#/$defs/A'}}}}}

    (last,) = await events_of(offline(), turn(schema=schema))

    assert isinstance(last, TurnAnswered)
    assert json.loads(last.answer)['a']['a'] is not None


async def test_every_third_call_fails_when_it_is_told_to() -> None:
    """`fail_every` counts all calls of a runner, those with a schema too, and its hint says that it is a drill."""
    runner = offline(OfflineOptions(fail_every=3), 'drill')
    schemas: list[dict[str, Any] | None] = [None, {}, None, {}, None, {}]
    outcomes = []
    for schema in schemas:
        try:
            await events_of(runner, turn(schema=schema))
            outcomes.append('answered')
        except BackendError as error:
            outcomes.append(error.hint.partition(':')[0])

    assert outcomes == ['answered', 'answered', 'a drill'] * 2
    assert await events_of(offline(OfflineOptions(fail_every=3), 'drill'), turn())


async def test_a_call_that_hangs_can_be_cancelled() -> None:
    """`hang_every` never answers, ends when it is cancelled, and the next call answers."""
    runner = offline(OfflineOptions(hang_every=2), 'drill')
    await events_of(runner, turn())

    with anyio.move_on_after(0.05) as scope:
        await events_of(runner, turn())

    assert scope.cancelled_caught
    assert await events_of(runner, turn())


async def test_delays_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """`delay` comes before the first piece and before an answer by schema, `chunk_delay` between two pieces."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr('trading_agent.providers.offline.anyio.sleep', sleep)
    runner = offline(OfflineOptions(delay=Duration(7), chunk_delay=Duration(2)), 'slow')

    shown = await events_of(runner, turn())
    assert slept == [7] + [2] * (len(shown) - 2)

    slept.clear()
    await events_of(runner, turn(schema={'type': 'object'}))
    assert slept == [7]


async def test_other_tasks_go_on_between_two_pieces() -> None:
    """Without a `chunk_delay` each piece still gives way to whoever else is ready."""
    ran = 0

    async def other() -> None:
        nonlocal ran
        while True:
            ran += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        seen = [ran async for event in offline().run(turn()) if isinstance(event, TextPiece)]
        tasks.cancel_scope.cancel()

    assert len(seen) > 3
    assert len(set(seen)) == len(seen)


# The provider


def request(*messages: Message, **further: Any) -> ModelRequest:  # noqa: ANN401 - any field of a request
    """Returns a request that ends with these messages."""
    return ModelRequest(model='', messages=messages, **further)


async def stream_of(provider: OfflineProvider, asked: ModelRequest) -> list[TurnEvent]:
    """Returns what a provider yields for a request."""
    return [event async for event in provider.stream(asked)]


def conversation(exchanges: Sequence[Exchange]) -> list[Message]:
    """Returns exchanges as messages with their times."""
    said: list[Message] = []
    for each in exchanges:
        instant = datetime.fromisoformat(each.finished_at).timestamp()
        said += [UserMessage(each.trigger_text, instant), AssistantMessage(each.answer, timestamp=instant)]
    return said


async def test_a_request_is_answered_from_its_messages() -> None:
    """The answer is made of the conversation and of what stands above it; no tokens are counted, and it has its end."""
    exchanges = day(BOARD, MEET)
    asked = request(*conversation(exchanges), UserMessage(PRESS), system='- SAFLOOM is thin')

    *told, last = await stream_of(OfflineProvider(), asked)

    assert last == Stopped('end_turn', 'offline')
    assert all(isinstance(event, TextPiece) for event in told)
    assert ''.join(getattr(event, 'text', '') for event in told) == answer(PRESS, exchanges, '- SAFLOOM is thin')


async def test_a_request_without_a_user_is_refused() -> None:
    """There is nothing to answer."""
    with pytest.raises(TurnRefused):
        await stream_of(OfflineProvider(), request(AssistantMessage('x')))


def test_tools_are_no_part_of_a_pair() -> None:
    """Each user's message is paired with the model's last word before the next one, if there is any."""
    messages: list[Message] = [
        AssistantMessage('Welcome.', timestamp=1.0),
        UserMessage('price?', 2.0),
        AssistantMessage('let me see', [ToolCall('1', 'price')], timestamp=3.0),
        ToolResultMessage('1', 'price', '41.20', timestamp=4.0),
        AssistantMessage('41.20', timestamp=5.0),
        UserMessage('noted?', 6.0),
        UserMessage('hello?', 7.0),
        AssistantMessage('yes'),
    ]

    pairs = Hearing().pairs_of(messages)

    assert pairs == [
        Pair('', 'Welcome.', 1.0),
        Pair('price?', '41.20', 5.0),
        Pair('noted?', '', 6.0),
        Pair('hello?', 'yes', 7.0),
    ]
    assert pairs[1].finished_at == '1970-01-01T00:00:05.000000Z'
    assert [Pair(timestamp=odd).finished_at for odd in (0.0, 1e300, float('nan'))] == ['', '', '']


@given(exchange_lists, exchange_lists, st.integers(0, 24))
def test_conversations_are_heard_apart(one: list[Exchange], other: list[Exchange], cut: int) -> None:
    """Whatever was heard before, the pairs are those of the conversation that is asked about, and stay so."""
    hearing = Hearing()
    both: list[list[Message]] = [
        [UserMessage(each.trigger_text) if at % 3 else AssistantMessage(each.answer) for at, each in enumerate(said)]
        for said in (one, other)
    ]
    for said in (both[0][:cut], both[0], both[1], both[0], both[0] + both[1], both[1][:cut]):
        pairs = hearing.pairs_of(said)
        expected = Hearing().pairs_of(tuple(said))
        assert pairs == expected
        hearing.pairs_of([*said, UserMessage('more'), AssistantMessage('and more')])
        assert pairs == expected


@pytest.mark.parametrize(
    ('metadata', 'heading'),
    [
        ({'trading_date': '2025-12-16'}, '2025-12-16'),
        ({'trading_date': DAY}, '2025-12-16'),
        ({}, '2025-12-18'),
        ({'trading_date': 'today'}, '2025-12-18'),
    ],
)
async def test_the_day_of_a_memory(metadata: dict[str, Any], heading: str) -> None:
    """It is the one that the caller gives, else the India date of the newest message."""
    late = datetime(2025, 12, 17, 20, 0, tzinfo=UTC).timestamp()
    asked = request(
        UserMessage('Never sell first.', 1.0),
        AssistantMessage('Noted.', timestamp=2.0),
        UserMessage('Fold it.', late),
        schema={'type': 'object', 'properties': {'memory': {'type': 'string'}}},
        metadata=metadata,
    )

    told, _ = await stream_of(OfflineProvider(), asked)

    assert json.loads(getattr(told, 'text', '')) == {'memory': f'## Lessons of {heading}\n\n- Never sell first.\n'}


async def test_exchanges_are_remembered_as_messages_and_nothing_else() -> None:
    """A runner answers each turn from that turn's exchanges, also when they are fewer, others or longer than before."""
    runner = offline()
    long, other = day(BOARD, MEET, PRESS), day(MEET, BOARD)
    for exchanges in (long, long[:1], other, long, [*long, *other], []):
        last = (await events_of(runner, turn(exchanges=exchanges)))[-1]
        assert last == answered(answer(PRESS, exchanges, ''))
        assert last == answered(answer(PRESS, tuple(exchanges), ''))


async def test_the_times_of_exchanges_are_told_as_they_are() -> None:
    """A time without a zone is UTC, and what is no time is told as none."""
    heard = [Exchange(BOARD, '', 'x', finished) for finished in ('2025-12-16T04:00:00', 'yesterday')]

    last = (await events_of(offline(), turn(exchanges=heard)))[-1]

    assert last == answered(answer(PRESS, heard, ''))
    assert isinstance(last, TurnAnswered)
    assert '- 09:30 SAFLOOM' in last.answer
    assert '- --:-- SAFLOOM' in last.answer


# Real days


@pytest.mark.skipif(not DATA.is_dir(), reason='the announcements of the exchange are not beside this checkout')
@pytest.mark.parametrize('name', ['2025-12-16', '2025-12-17'])
def test_a_real_day_is_answered_and_summarised(name: str) -> None:
    """A whole day takes seconds, nothing in its summary is made up, and the symbol heard most is named."""
    lines = lines_of((DATA / 'nse-announcements' / f'{name}.txt').read_text('utf-8'))
    exchanges: list[Exchange] = []
    began = time.process_time()
    for number, line in enumerate(lines):
        told = answer(line, exchanges, '# Memory\n')
        assert len(told) <= LONGEST_ANSWER
        exchanges.append(exchange(line, told, number // 2))
    summary = day_summary(exchanges, 6000)
    assert time.process_time() - began < 10

    heard = Counter(announcement.symbol for line in lines if (announcement := announcement_of(line)))
    assert heard.total() > 0.9 * len(lines)
    assert 5000 < len(summary) <= 6000
    assert quoted_tokens(summary) <= said_tokens(exchanges)
    assert f'- {heard.most_common(1)[0][0]} {heard.most_common(1)[0][1]}x: ' in summary
    assert re.search(r'Rs\. [\d,.]+ [Cc]r', summary)
    assert folded_memory('# Memory\n', exchanges, DAY, 12000) == '# Memory\n'
