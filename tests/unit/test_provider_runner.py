"""A desk's turns on a stateless model API: what the model is sent, and what comes of its answer."""

from collections.abc import AsyncIterator
from datetime import date
from typing import Any

import pytest

from trading_agent.errors import BackendError, InvalidAnswer, TurnRefused
from trading_agent.memory.exchange import Exchange
from trading_agent.messages import AssistantMessage, UserMessage
from trading_agent.providers.provider import ModelRequest, Stopped
from trading_agent.routing.provider_runner import ModelSettings, ProviderRunner
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent, UsageCounted
from trading_agent.testing import TurnRunnerContract
from trading_agent.testing.provider import ScriptedProvider, Step

SCHEMA = {
    'type': 'object',
    'properties': {'summary': {'type': 'string', 'minLength': 1, 'maxLength': 5}},
    'required': ['summary'],
    'additionalProperties': False,
}
END = Stopped('end_turn', 'm1')


def turn(text: str = 'news', **changes: Any) -> Turn:  # noqa: ANN401 - any field of a Turn
    """Returns a turn of a desk."""
    return Turn(desk='main', session_id='2026-10-19-1', trading_date=date(2026, 10, 19), text=text, **changes)


async def events_of(runner: ProviderRunner, asked: Turn) -> list[TurnEvent]:
    """Runs a turn to its end."""
    return [event async for event in runner.run(asked)]


class Agreeing:
    """Answers everything at once, by the schema where there is one."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[TurnEvent]:
        yield TextPiece('{"summary": "quiet"}' if request.schema else 'as agreed')
        yield END


class TestAgreeing(TurnRunnerContract):
    """A provider that does nothing wrong makes a sound backend."""

    def make_runner(self) -> ProviderRunner:
        return ProviderRunner(Agreeing())


async def test_what_a_model_is_sent() -> None:
    """The exchanges are messages with their times, Memory.md stands above them, and the day goes with them."""
    exchanges = [
        Exchange('told', 'answered', 'gpt', '2026-10-19T04:00:01Z', started_at='2026-10-19T04:00:00Z'),
        Exchange('then', 'again', 'claude', '1970-01-01T00:00:05+00:00'),
        Exchange('odd', '', 'claude', 'yesterday'),
    ]
    provider = ScriptedProvider('yes', 'no')
    runner = ProviderRunner(provider, 'm')
    await events_of(runner, turn(exchanges=exchanges, memory='- a rule\n'))
    await events_of(runner, turn('more'))
    first, second = provider.requests
    assert first.messages[:-1] == [
        UserMessage('told', 1792382400.0),
        AssistantMessage('answered', timestamp=1792382401.0),
        UserMessage('then', 5.0),
        AssistantMessage('again', timestamp=5.0),
        UserMessage('odd'),
        AssistantMessage(''),
    ]
    assert getattr(first.messages[-1], 'content', None) == 'news'
    assert (first.system, second.system) == ('- a rule\n', None)
    assert (first.model, first.temperature, first.max_tokens, first.schema) == ('m', None, None, None)
    assert first.metadata == {'desk': 'main', 'session_id': '2026-10-19-1', 'trading_date': '2026-10-19'}
    assert len(second.messages) == 1


async def test_exchanges_from_the_ends_of_the_calendar() -> None:
    """An exchange whose times cannot be said in India is told like one whose times are not known."""
    odd = Exchange('told', 'answered', 'gpt', '0001-01-01T00:00:00+14:00', started_at='9999-12-31T23:59:59Z')
    provider = ScriptedProvider('yes')
    await events_of(ProviderRunner(provider, 'm', ModelSettings()), turn(exchanges=[odd]))
    first, second, _ = provider.requests[0].messages
    assert first == UserMessage('[Trading date 2026-10-19]\ntold')
    assert second == AssistantMessage('answered')


async def test_a_turn_is_told_as_it_comes() -> None:
    """Pieces and tokens are told, the answer comes last, and there is nothing to resume."""
    steps: list[Step] = [TextPiece('Buy '), UsageCounted(3, 4), TextPiece('now'), END]
    events = await events_of(ProviderRunner(ScriptedProvider(steps)), turn())
    assert events == [*steps[:-1], TurnAnswered('Buy now', None, 'm1', 'end_turn')]


async def test_a_question_beside_the_session() -> None:
    """The provider gets the schema; no pieces are told, and the answer is the JSON."""
    steps: list[Step] = [TextPiece('{"summary": '), UsageCounted(3, 4), TextPiece('"x"}'), END]
    provider = ScriptedProvider(steps, 'quiet')
    runner = ProviderRunner(provider)
    assert await events_of(runner, turn(schema=SCHEMA)) == [
        UsageCounted(3, 4),
        TurnAnswered('{"summary": "x"}', None, 'm1', 'end_turn'),
    ]
    assert provider.requests[0].schema == SCHEMA
    assert await events_of(runner, turn(schema={})) == [TurnAnswered('quiet', None, 'scripted', 'end_turn')]
    assert provider.requests[1].schema is None


async def test_a_question_is_asked_once_more() -> None:
    """Nonsense is told to the model, which may try again; after that it is the backend's failure."""
    provider = ScriptedProvider('Sure!', '{"summary": "x"}', '{}', '{"summary": 5}')
    runner = ProviderRunner(provider)
    assert (await events_of(runner, turn(schema=SCHEMA)))[-1] == TurnAnswered(
        '{"summary": "x"}', None, 'scripted', 'end_turn'
    )
    with pytest.raises(InvalidAnswer, match='no text for summary'):
        await events_of(runner, turn(schema=SCHEMA))
    assert len(provider.requests) == 4


async def test_what_is_too_much_is_let_pass() -> None:
    """A summary that is too long, or a field too many, is not asked for again: who asked cuts it."""
    provider = ScriptedProvider('{"summary": "much too long", "mood": "good"}')
    (last,) = await events_of(ProviderRunner(provider), turn(schema=SCHEMA))
    assert isinstance(last, TurnAnswered)
    assert 'much too long' in last.answer


@pytest.mark.parametrize(
    ('steps', 'error', 'why'),
    [
        ([TextPiece(' \n'), END], BackendError, 'its answer is blank'),
        ([END], BackendError, 'its answer is blank'),
        ([TextPiece('half')], BackendError, 'the stream was cut'),
        ([TextPiece('half'), BackendError('overloaded')], BackendError, 'overloaded'),
        ([TurnRefused('too long')], TurnRefused, 'too long'),
        ([RuntimeError('bad')], RuntimeError, 'bad'),
    ],
)
async def test_what_goes_wrong(steps: list[Step], error: type[Exception], why: str) -> None:
    """An answer that is blank or cut is a failure; the provider's own come through. The next turn is answered."""
    provider = ScriptedProvider(steps, 'yes')
    runner = ProviderRunner(provider)
    with pytest.raises(error, match=why):
        await events_of(runner, turn())
    assert provider.closed == 1
    last = (await events_of(runner, turn()))[-1]
    assert isinstance(last, TurnAnswered)
    assert last.answer == 'yes'
    assert len(provider.requests[1].messages) == 1
