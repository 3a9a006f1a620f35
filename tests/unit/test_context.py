"""What of a long session fits into a model's context: nothing is cut that is not in a digest first."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_agent.conversation.tools import named
from trading_agent.errors import BackendBusy, BackendDown, BackendError, ContextTooSmall, TurnRefused
from trading_agent.memory import carry
from trading_agent.memory.exchange import Exchange
from trading_agent.messages import AssistantMessage, Message
from trading_agent.providers.provider import ModelRequest, Stopped
from trading_agent.routing import context
from trading_agent.routing.provider_runner import ModelSettings, ProviderRunner
from trading_agent.routing.turn_runner import (
    DigestMade,
    TextPiece,
    ToolCalled,
    Turn,
    TurnAnswered,
    TurnEvent,
    UsageCounted,
)
from trading_agent.testing.provider import ScriptedProvider, Step

DATA = Path(__file__).parents[1] / 'data'
REAL = Path(__file__).parents[2].parent / 'shared' / 'data' / 'nse-announcements'
MONDAY = date(2026, 10, 19)
MORNING = datetime(2026, 10, 19, 4, tzinfo=UTC)
END = Stopped('end_turn', 'scripted')
SCHEMA = {
    'type': 'object',
    'properties': {'summary': {'type': 'string', 'minLength': 1}},
    'required': ['summary'],
    'additionalProperties': False,
}


def at(number: int) -> str:
    """Returns the time of an exchange as it is stored."""
    return f'{MORNING + timedelta(minutes=number):%Y-%m-%dT%H:%M:%S}.000000Z'


def day(count: int, size: int = 200) -> list[Exchange]:
    """Returns exchanges, the texts of each with `size` characters together."""
    return [
        Exchange(f'told {n}'.ljust(size // 2, '.'), f'said {n}'.ljust(size // 2, '.'), 'm', at(n), started_at=at(n))
        for n in range(count)
    ]


# -- the estimate ----------------------------------------------------------------------------------------------


def announcements() -> list[str]:
    """Returns lines as the exchange writes them."""
    paths = [*sorted(DATA.glob('*.txt')), *sorted(REAL.glob('*.txt'))]
    return [line for path in paths for line in path.read_text().split('\n') if line.strip()]


def pieces(text: str) -> int:
    """Counts tokens as a bad tokenizer would: capitals by three, words by five letters, the rest one by one."""
    ascii_text = text.encode('ascii', errors='ignore').decode()
    others = len(text.encode()) - len(ascii_text)
    return len(re.findall(r'\d|[A-Z]{1,3}(?![a-z])|[A-Z]?[a-z]{1,5}|[^\sA-Za-z\d]|\n', ascii_text)) + others // 3


def test_the_estimate_is_on_the_safe_side() -> None:
    """Announcements have fewer tokens than is estimated: all of them by a sixth, and each one of them for itself."""
    lines = announcements()
    assert len(lines) > 50
    estimated = [context.tokens_in(line) - context.OVERHEAD_TOKENS for line in lines]
    counted = [pieces(line) for line in lines]
    assert sum(estimated) > 1.15 * sum(counted)
    too_few = [line for line, own, real in zip(lines, estimated, counted, strict=True) if real > own + 12]
    assert too_few == []


@pytest.mark.parametrize(
    ('text', 'at_least'),
    [('', 1), ('₹' * 100, 100), ('नमस्ते' * 100, 600), ('日経平均' * 50, 200), ('é' * 90, 90), ('\ud800' * 8, 1)],
)
def test_other_scripts_have_more_tokens(text: str, at_least: int) -> None:
    """A letter that is not ASCII counts as a token or more, and anything can be counted."""
    assert at_least <= context.tokens_in(text) <= 2 * len(text) + context.OVERHEAD_TOKENS


# -- what has to be folded -------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5000), max_size=60), st.integers(0, 20_000), st.integers(1000, 100_000))
def test_what_is_left_fits(sizes: list[int], fixed: int, limit: int) -> None:
    """Nothing is folded while all fits; else as much as it takes for the rest to fill half of what is free."""
    count = context.needed_fold(sizes, fixed, limit)
    assert 0 <= count <= len(sizes)
    assert (count == 0) == (fixed + sum(sizes) <= limit or not sizes)
    if count:
        free = limit - fixed - context.digest_characters(limit) / context.CHARACTERS_PER_TOKEN
        assert sum(sizes[count:]) <= max(0, free * context.KEEP_SHARE)
        assert count == 1 or sum(sizes[count - 1 :]) > free * context.KEEP_SHARE


@given(st.lists(st.integers(1, 3000), max_size=40), st.integers(100, 2000))
def test_batches_are_all_and_in_order(sizes: list[int], room: int) -> None:
    """Each exchange is in one batch, in its order; a batch fits, unless it is one exchange that is too large alone."""
    exchanges = [Exchange('x' * size, str(number), 'm', at(number)) for number, size in enumerate(sizes)]
    made = context.batches(exchanges, room)
    assert [exchange for batch in made for exchange in batch] == exchanges
    for batch in made:
        tokens = sum(context.tokens_in(each.trigger_text) + context.tokens_in(each.answer) for each in batch)
        assert tokens <= room or len(batch) == 1


def test_a_request_shows_whole_what_fits() -> None:
    """What is folded is shown whole, a long one between short ones too, with the digest so far in front."""
    exchanges = [*day(30, 40), Exchange('a long story ' * 300, 'short', 'm', at(31)), *day(30, 40)]
    (batch,) = context.batches(exchanges, 10_000)
    request = context.fold_request('it rose', batch, 10_000)
    for exchange in exchanges:
        assert f'told: {exchange.trigger_text.strip()}\nanswered: {exchange.answer.strip()}' in request
    assert 'The digest so far:\n\nit rose\n' in request
    assert '[… cut here]' not in request
    assert 'digest so far' not in context.fold_request('', batch, 10_000)


@pytest.mark.parametrize('word', ['word ', 'नमस्ते '])
def test_a_request_fits_in_any_case(word: str) -> None:
    """One exchange that is larger than any request is cut visibly, and then fits."""
    huge = Exchange(word * 20_000, word * 20_000, 'm', at(0))
    (batch,) = context.batches([huge], 1000)
    request = context.fold_request('', batch, 1000)
    assert request.count('[… cut here]') == 2
    frame = context.fold_request('', [Exchange('', '', 'm', at(0))], 1000)
    assert context.tokens_in(request) - context.tokens_in(frame) <= 1050


@pytest.mark.parametrize('limit', [1000, 2048, 4096, 8192, 32_000, 128_000])
def test_a_fold_fits_into_its_model(limit: int) -> None:
    """The digest so far, a batch, the words around them and the new digest fit into the context together."""
    characters = context.digest_characters(limit)
    exchanges = day(2000, 300)
    batch = context.batches(exchanges, limit // 2)[0]
    request = context.fold_request('d' * characters, batch, limit // 2, characters)
    assert context.tokens_in(request) + characters / context.CHARACTERS_PER_TOKEN <= limit


# -- digests by rule -------------------------------------------------------------------------------------------


def test_rules_outlive_any_number_of_digests() -> None:
    """What people told the desk to keep to is in the tenth digest by rule as it was in the first."""
    rule = 'Never hold options overnight in RELIANCE.'
    digest = context.digest_without_model('', [Exchange(rule, 'noted', 'm', at(0)), *day(40)])
    for part in range(10):
        digest = context.digest_without_model(digest, day(40 + part, 400))
        assert rule.rstrip('.') in digest
        assert len(digest) <= context.DIGEST_CHARACTERS


def test_what_a_session_began_with_is_kept() -> None:
    """The first digest begins with what the session's first message had in front of it; later ones go on from it."""
    before = carry.framed(carry.BEGIN.format(session_id='2026-10-19-1'), 'Long 500 INFY at 1500.', 'news')
    digest = context.digest_without_model('', [Exchange(before, 'noted', 'm', at(0)), *day(5)])
    assert 'Long 500 INFY at 1500.' in digest
    assert 'Long 500 INFY at 1500.' in context.digest_without_model(digest, day(5))
    assert 'Long 500 INFY at 1500.' not in context.digest_without_model('other', [Exchange(before, 'a', 'm', at(0))])


@given(
    st.text(max_size=3000), st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5), st.integers(300, 6000)
)
def test_a_digest_by_rule_keeps_to_its_length(digest: str, said: list[tuple[str, str]], characters: int) -> None:
    """Whatever was said, a digest can be made by rule, and is no longer than it may be."""
    exchanges = [Exchange(told, answer, 'm', at(0)) for told, answer in said]
    assert len(context.digest_without_model(digest, exchanges, characters)) <= characters


# -- a desk's turns --------------------------------------------------------------------------------------------

SMALL = ModelSettings(context_tokens=4000, max_tokens=500)


def turn(exchanges: Sequence[Exchange], text: str = 'news', **changes: Any) -> Turn:  # noqa: ANN401 - any field of a Turn
    """Returns the turn that follows exchanges."""
    fields: dict[str, Any] = {
        'desk': 'main',
        'session_id': '2026-10-19-1',
        'trading_date': MONDAY,
        'text': text,
        'exchanges': exchanges,
        'started_at': MORNING + timedelta(minutes=len(exchanges)),
        'trigger_id': f't{len(exchanges)}',
    }
    return Turn(**(fields | changes))


async def events_of(runner: ProviderRunner, asked: Turn) -> list[TurnEvent]:
    """Runs a turn to its end."""
    return [event async for event in runner.run(asked)]


def answer_in(events: list[TurnEvent]) -> TurnAnswered:
    """Returns the answer."""
    last = events[-1]
    assert isinstance(last, TurnAnswered)
    return last


def digests_in(events: list[TurnEvent]) -> list[DigestMade]:
    """Returns the digests that were told."""
    return [event for event in events if isinstance(event, DigestMade)]


def texts(request: ModelRequest) -> list[str]:
    """Returns what was said, without the times in front."""
    return [_text(message).partition(']\n')[2] or _text(message) for message in request.messages]


def _text(message: Message) -> str:
    return message.text if isinstance(message, AssistantMessage) else message.content


async def test_a_session_that_fits_is_sent_whole() -> None:
    """While all fits, nothing is folded, and nothing is to be remembered."""
    provider = ScriptedProvider('yes')
    events = await events_of(ProviderRunner(provider, 'm', SMALL), turn(day(20)))
    assert texts(provider.requests[0]) == [text for each in day(20) for text in (each.trigger_text, each.answer)] + [
        'news'
    ]
    assert answer_in(events).runner_state is None
    assert digests_in(events) == []


async def test_each_request_begins_as_the_one_before() -> None:
    """What is sent for a turn is the beginning of what is sent for the next, so that it is read from the cache."""
    provider = ScriptedProvider(*(f'answer {n}' for n in range(6)))
    runner = ProviderRunner(provider, 'm', SMALL)
    exchanges: list[Exchange] = []
    for number in range(6):
        told = turn(exchanges, f'news {number}', memory='- a rule')
        answered = answer_in(await events_of(runner, told))
        exchanges = [*exchanges, Exchange(told.text, answered.answer, 'm', at(number + 7), started_at=at(number))]
    for before, after in zip(provider.requests, provider.requests[1:], strict=False):
        assert after.system == before.system
        assert [_text(m) for m in after.messages[: len(before.messages)]] == [_text(m) for m in before.messages]
    assert _text(provider.requests[-1].messages[0]) == '[09:30 IST, Monday 2026-10-19; trading date 2026-10-19]\nnews 0'


async def test_nothing_is_cut_that_is_not_in_a_digest() -> None:
    """The oldest are folded by the model before the rest is sent; the digest is told, and stands above what is sent."""
    exchanges = day(40)
    provider = ScriptedProvider('it rose', 'it fell', 'yes')
    events = await events_of(ProviderRunner(provider, 'm', SMALL), turn(exchanges))
    (made,) = digests_in(events)
    folding, again, answering = provider.requests
    asked_to_fold = _text(folding.messages[0]) + _text(again.messages[0])
    for exchange in exchanges[: made.exchanges]:
        assert asked_to_fold.count(exchange.trigger_text.strip()) == 1
        assert asked_to_fold.count(exchange.answer.strip()) == 1
    assert 'it rose' in _text(again.messages[0])
    assert made == DigestMade('it fell', made.exchanges, by_model=True)
    kept = exchanges[made.exchanges :]
    assert texts(answering)[:-1] == [text for each in kept for text in (each.trigger_text, each.answer)]
    assert (answering.system or '').endswith('\n\nit fell')
    assert answer_in(events).runner_state == {'digest': 'it fell', 'folded': made.exchanges}
    sent = sum(map(context.tokens_in, map(_text, answering.messages))) + context.tokens_in(answering.system or '')
    assert sent < SMALL.context_tokens


async def test_what_is_remembered_outlives_a_restart() -> None:
    """A new runner goes on from runner_state: the digest is not made anew, and goes into the next one."""
    exchanges = day(40)
    first = answer_in(
        await events_of(ProviderRunner(ScriptedProvider('it rose', 'it fell', 'yes'), 'm', SMALL), turn(exchanges))
    )
    folded = (first.runner_state or {})['folded']
    provider = ScriptedProvider('no', 'all', 'of it', 'yes')
    runner = ProviderRunner(provider, 'm', SMALL)
    more = [*exchanges, *day(3)]
    second = answer_in(await events_of(runner, turn(more, runner_state=first.runner_state)))
    assert len(provider.requests) == 1
    assert texts(provider.requests[0])[0] == exchanges[folded].trigger_text
    assert second.runner_state == first.runner_state
    many = [*more, *day(30)]
    third = answer_in(await events_of(runner, turn(many, runner_state=second.runner_state)))
    assert 'The digest so far:\n\nit fell\n' in _text(provider.requests[1].messages[0])
    assert exchanges[folded - 1].trigger_text not in _text(provider.requests[1].messages[0])
    assert (third.runner_state or {})['folded'] > folded


@pytest.mark.parametrize(
    'state', [{'digest': 'x', 'folded': 99}, {'digest': 1, 'folded': 1}, {'folded': 1}, {'a': 'b'}]
)
async def test_a_state_that_is_of_something_else(state: dict[str, Any]) -> None:
    """What another program, or another session, left is not taken for a digest."""
    provider = ScriptedProvider('yes')
    await events_of(ProviderRunner(provider, 'm', SMALL), turn(day(2), runner_state=state))
    assert len(provider.requests[0].messages) == 5


@pytest.mark.parametrize('failure', [BackendError('blank'), TurnRefused('policy'), ContextTooSmall('too long')])
async def test_a_digest_that_the_model_does_not_make(failure: Exception) -> None:
    """It is made by rule, and says so; the turn is answered all the same."""
    provider = ScriptedProvider([failure], [failure], 'yes')
    exchanges = [Exchange('Never hold options overnight.', 'noted', 'm', at(0)), *day(40)]
    events = await events_of(ProviderRunner(provider, 'm', SMALL), turn(exchanges))
    (made,) = digests_in(events)
    assert not made.by_model
    assert 'Never hold options overnight' in made.text
    assert made.text in (provider.requests[-1].system or '')
    assert answer_in(events).runner_state == {'digest': made.text, 'folded': made.exchanges}


@pytest.mark.parametrize('failure', [BackendBusy('cut'), BackendDown('overloaded')])
async def test_a_digest_is_worth_waiting_for(failure: Exception) -> None:
    """A backend that is busy fails the turn before anything is lost, and goes on with the digest when asked again."""
    provider = ScriptedProvider('one', [failure], 'two', 'yes')
    runner = ProviderRunner(provider, 'm', SMALL)
    with pytest.raises(type(failure)):
        await events_of(runner, turn(day(40)))
    events = await events_of(runner, turn(day(40)))
    (made,) = digests_in(events)
    assert (made.text, made.by_model) == ('two', True)
    assert 'The digest so far:\n\none\n' in _text(provider.requests[2].messages[0])
    assert answer_in(events).answer == 'yes'


async def test_a_digest_is_not_waited_for_twice() -> None:
    """What fails, or is cut off, time after time is made by rule: the desk is not held up by its digest."""
    down = [BackendDown('overloaded')]
    runner = ProviderRunner(ScriptedProvider(down, down, 'second', 'yes'), 'm', SMALL)
    with pytest.raises(BackendDown):
        await events_of(runner, turn(day(40)))
    (made,) = digests_in(await events_of(runner, turn(day(40))))
    assert not made.by_model
    silent: list[Step] = [anyio.sleep_forever]
    runner = ProviderRunner(ScriptedProvider(silent, silent, 'second', 'yes'), 'm', SMALL)
    for _ in range(2):
        with anyio.move_on_after(0.02) as cut_off:
            await events_of(runner, turn(day(40)))
        assert cut_off.cancelled_caught
    (made,) = digests_in(await events_of(runner, turn(day(40))))
    assert not made.by_model


async def test_a_turn_that_is_run_again_is_not_folded_again() -> None:
    """Where the answer failed, the digest that was made for it is told again and not made again."""
    provider = ScriptedProvider('one', 'two', [BackendBusy('cut')], 'yes', 'three', 'four', 'yes')
    runner = ProviderRunner(provider, 'm', SMALL)
    with pytest.raises(BackendBusy):
        await events_of(runner, turn(day(40)))
    events = await events_of(runner, turn(day(40)))
    (made,) = digests_in(events)
    assert (made.text, len(provider.requests)) == ('two', 4)
    assert answer_in(events).runner_state == {'digest': 'two', 'folded': made.exchanges}
    await events_of(runner, turn(day(40), trigger_id='another'))
    assert len(provider.requests) == 7


async def test_a_context_that_is_smaller_than_it_was_said() -> None:
    """When the model finds it too long, half of it is folded, and half again, until it fits."""
    too_small = [ContextTooSmall('too long')]
    provider = ScriptedProvider(too_small, 'one', too_small, 'two', 'yes')
    events = await events_of(ProviderRunner(provider, 'm', ModelSettings()), turn(day(21)))
    assert [(made.text, made.exchanges) for made in digests_in(events)] == [('one', 11), ('two', 16)]
    assert texts(provider.requests[-1])[0] == day(21)[16].trigger_text
    assert answer_in(events).runner_state == {'digest': 'two', 'folded': 16}


async def test_a_message_that_is_too_long_alone() -> None:
    """When there is nothing left to fold, another backend has to be asked."""
    too_small = [ContextTooSmall('too long')]
    provider = ScriptedProvider(too_small, 'one', too_small, 'two', too_small)
    with pytest.raises(ContextTooSmall):
        await events_of(ProviderRunner(provider, 'm', ModelSettings()), turn(day(2)))
    with pytest.raises(ContextTooSmall):
        await events_of(ProviderRunner(ScriptedProvider(too_small), 'm', ModelSettings()), turn([]))


async def test_nothing_is_done_twice() -> None:
    """A context that is full after a tool was called is a failure: folding and asking again would call it again."""
    calls: list[str] = []

    async def order(symbol: str) -> str:
        calls.append(symbol)
        return 'done'

    called: list[Step] = [ToolCalled('c', 'order', {'symbol': 'INFY'}), Stopped('tool_use', 'm')]
    provider = ScriptedProvider(called, [ContextTooSmall('too long')])
    runner = ProviderRunner(provider, 'm', ModelSettings())
    with pytest.raises(ContextTooSmall):
        await events_of(runner, turn(day(20), tools=list(named([order]).values())))
    assert calls == ['INFY']


async def test_a_long_answer_shows_that_it_goes_on() -> None:
    """Of a review and of a digest no piece is told, but that there was one: a silent backend would be given up."""
    pieces_of_it: list[Step] = [TextPiece('{"summary":'), TextPiece(' "x"}'), UsageCounted(5, 3), END]
    runner = ProviderRunner(ScriptedProvider(pieces_of_it), 'm', SMALL)
    events = await events_of(runner, turn(day(2), schema=SCHEMA, trigger_id=''))
    assert events[:-1] == [UsageCounted(), UsageCounted(), UsageCounted(5, 3)]
    digest: list[Step] = [TextPiece('it'), TextPiece(' rose'), UsageCounted(7, 2), END]
    runner = ProviderRunner(ScriptedProvider(digest, digest, 'yes'), 'm', SMALL)
    events = await events_of(runner, turn(day(40)))
    (made,) = digests_in(events)
    assert made.text == 'it rose'
    assert [event for event in events if isinstance(event, TextPiece)] == [TextPiece('yes')]
    assert events.count(UsageCounted()) == 4
    assert events.count(UsageCounted(7, 2)) == 2


async def test_a_review_of_a_long_day_is_folded_too() -> None:
    """A question about more than fits is asked about the digest and the rest, and leaves nothing to be remembered."""
    provider = ScriptedProvider('one', 'two', '{"summary": "x"}')
    events = await events_of(ProviderRunner(provider, 'm', SMALL), turn(day(40), schema=SCHEMA, trigger_id=''))
    assert len(digests_in(events)) == 1
    assert answer_in(events).runner_state is None
    assert (provider.requests[-1].system or '').endswith('\n\ntwo')


async def test_offline_is_shown_all() -> None:
    """The built-in backend has no context that could be too small."""
    provider = ScriptedProvider('yes')
    events = await events_of(ProviderRunner(provider), turn(day(3000)))
    assert len(provider.requests[0].messages) == 6001
    assert len(events) == 2
