"""The `anthropic` provider: what it makes of the Messages API's streams, and what it asks of the API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from llmock_server import KEY, PRICE, asking, require, told
from raw_http import Act, Raw, answer, serving, stream

from trading_agent.errors import BackendError, TurnRefused
from trading_agent.messages import UserMessage
from trading_agent.providers.anthropic import MAX_TOKENS, AnthropicProvider
from trading_agent.providers.provider import Stopped
from trading_agent.turn_events import TextPiece, ToolCalled, TurnEvent, UsageCounted

SCHEMA = {
    'type': 'object',
    'properties': {'price': {'type': 'integer', 'minimum': 1}},
    'required': ['price'],
}


@pytest.fixture(autouse=True)
def sdk() -> None:
    """The SDK is needed."""
    require('anthropic')


@asynccontextmanager
async def asked_of(*script: Act, **options: Any) -> AsyncIterator[tuple[AnthropicProvider, Raw]]:  # noqa: ANN401 - as it takes them
    """Starts a server and a provider that asks it."""
    async with serving(*script) as raw:
        provider = AnthropicProvider('claude', KEY, raw.url, **options)
        yield provider, raw
        await provider.aclose()


def start(**usage: object) -> dict[str, Any]:
    """Returns the first event of a stream."""
    return {'type': 'message_start', 'message': {'model': 'claude-1', 'usage': usage}}


def block(index: int, deltas: list[dict[str, Any]], **fields: object) -> list[dict[str, Any]]:
    """Returns the events of one block."""
    return [
        {'type': 'content_block_start', 'index': index, 'content_block': fields},
        *({'type': 'content_block_delta', 'index': index, 'delta': delta} for delta in deltas),
        {'type': 'content_block_stop', 'index': index},
    ]


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    """Returns the events of a text."""
    return block(index, [{'type': 'text_delta', 'text': piece} for piece in pieces], type='text', text='')


def stop(reason: str | None, **usage: object) -> list[dict[str, Any]]:
    """Returns the last events of a stream."""
    return [{'type': 'message_delta', 'delta': {'stop_reason': reason}, 'usage': usage}, {'type': 'message_stop'}]


async def test_a_whole_answer() -> None:
    """Text comes as it is said, calls when they are complete, each token is counted once; thoughts are left out."""
    thoughts = [{'type': 'thinking_delta', 'thinking': 'Hm.'}, {'type': 'signature_delta', 'signature': 's'}]
    pieces = [{'type': 'input_json_delta', 'partial_json': part} for part in ('', '{"sym', 'bol": "INFY"}')]
    events = [
        start(input_tokens=12, output_tokens=1, cache_read_input_tokens=100, cache_creation_input_tokens=20),
        *block(0, thoughts, type='thinking', thinking='', signature=''),
        {'type': 'ping'},
        *text(1, 'Infosys ', 'costs', ''),
        *block(2, pieces, type='tool_use', id='toolu_1', name='price', input={}),
        *block(3, [], type='tool_use', id='toolu_2', name='now', input={}),
        {'type': 'an_event_of_the_future', 'index': 9},
        *stop('tool_use', output_tokens=30, input_tokens=12, cache_read_input_tokens=100),
    ]
    async with asked_of(stream(*events)) as (provider, _):
        assert await told(provider, asking(tools=True)) == [
            UsageCounted(12, 1, 100, 20),
            TextPiece('Infosys '),
            TextPiece('costs'),
            ToolCalled('toolu_1', 'price', {'symbol': 'INFY'}),
            ToolCalled('toolu_2', 'now', {}),
            UsageCounted(0, 29),
            Stopped('tool_use', 'claude-1'),
        ]


@pytest.mark.parametrize('reason', ['end_turn', 'max_tokens', 'refusal', 'stop_sequence', 'pause_turn'])
async def test_why_it_stopped(reason: str) -> None:
    """The reasons why the model stopped are the API's own words."""
    async with asked_of(stream(start(), *text(0, 'Well'), *stop(reason))) as (provider, _):
        assert (await told(provider, asking()))[-1] == Stopped(reason, 'claude-1')


async def test_answers_in_which_there_is_nothing() -> None:
    """An answer without a word or a call fails, and one that was refused without a word refuses the turn."""
    script = [stream(start(), *text(0, ' '), *stop(reason)) for reason in ('end_turn', 'max_tokens', 'refusal')]
    async with asked_of(*script) as (provider, _):
        for failure in (BackendError, BackendError, TurnRefused):
            with pytest.raises(failure) as raised:
                await told(provider, asking())
            assert type(raised.value) is failure


async def test_what_is_asked() -> None:
    """A request goes to the API as the SDK sends it: streaming, with the key, and with nothing unknown to the API."""
    async with asked_of(stream(start(), *text(0, 'Well'), *stop('end_turn'))) as (provider, raw):
        await told(provider, asking(tools=True, system='You trade.', metadata={'desk': 'main'}))
    asked = raw.received[0]
    assert asked.line == 'POST /v1/messages HTTP/1.1'
    assert asked.headers['authorization'] == f'Bearer {KEY}'
    cached = {'type': 'ephemeral'}
    assert asked.body == {
        'model': 'claude',
        'max_tokens': MAX_TOKENS,
        'stream': True,
        'system': [{'type': 'text', 'text': 'You trade.', 'cache_control': cached}],
        'tools': [
            {
                'name': PRICE.name,
                'description': PRICE.description,
                'input_schema': PRICE.parameters,
                'cache_control': cached,
            }
        ],
        'messages': [
            {
                'role': 'user',
                'content': [{'type': 'text', 'text': 'What does Infosys cost?', 'cache_control': cached}],
            }
        ],
    }


WELL: list[dict[str, Any]] = [start(), *text(0, '{"price": 1}'), *stop('end_turn')]
REFUSED = answer(400, {'type': 'error', 'error': {'type': 'invalid_request_error', 'message': 'no output_config here'}})
BLAMED = answer(400, {'type': 'error', 'error': {'type': 'invalid_request_error', 'message': 'something is wrong'}})


@pytest.mark.parametrize('refusal', [REFUSED, BLAMED], ids=['named', 'not-named'])
async def test_a_server_without_structured_output(refusal: Act) -> None:
    """A server that refuses the output format is asked once more without it, and never again with it."""
    async with asked_of(refusal, stream(*WELL)) as (provider, raw):
        for _ in range(2):
            await told(provider, asking(schema=SCHEMA))
    assert ['output_config' in asked.body for asked in raw.received] == [True, False, False]
    sent = raw.received[0].body['output_config']['format']
    assert sent['type'] == 'json_schema'
    assert sent['schema']['additionalProperties'] is False
    assert sent['schema']['properties']['price']['type'] == 'integer'
    assert 'minimum' not in sent['schema']['properties']['price']
    for asked in raw.received:
        assert '"minimum":1' in asked.body['system'][-1]['text']


async def test_a_request_that_is_refused_for_another_reason() -> None:
    """Where a request is refused without the output format too, that is the failure, and nothing is remembered."""
    async with asked_of(REFUSED, BLAMED, stream(*WELL)) as (provider, raw):
        with pytest.raises(TurnRefused, match='something is wrong'):
            await told(provider, asking(schema=SCHEMA))
        await told(provider, asking(schema=SCHEMA))
    assert ['output_config' in asked.body for asked in raw.received] == [True, False, True]


@pytest.mark.parametrize('schema', [{'type': 'object'}, {'type': 'object', 'properties': {'a': {}}}, {'not': {}}])
async def test_a_schema_that_the_output_format_cannot_say(schema: dict[str, Any]) -> None:
    """A schema that the API does not take is told in words alone."""
    async with asked_of(stream(*WELL)) as (provider, raw):
        await told(provider, asking(schema=schema))
    assert 'output_config' not in raw.received[0].body
    assert 'JSON Schema' in raw.received[0].body['system'][-1]['text']


async def test_a_block_that_never_ends() -> None:
    """A call whose end is missing is no call, though the stream says that it has ended."""
    begun = block(0, [{'type': 'input_json_delta', 'partial_json': '{}'}], type='tool_use', id='1', name='price')[:-1]
    events: list[TurnEvent] = []
    async with asked_of(stream(start(), *begun, *stop('tool_use'))) as (provider, _):
        with pytest.raises(BackendError, match='cut'):
            await told(provider, asking([UserMessage('x')]), events)
    assert not any(isinstance(event, ToolCalled) for event in events)
