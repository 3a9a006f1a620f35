"""The `openai_compatible` provider: what it makes of the streams of many servers, and what it asks of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from llmock_server import KEY, asking, require, told
from raw_http import Act, Raw, answer, serving, stream

from trading_agent.errors import BackendError, InvalidAnswer, TurnRefused
from trading_agent.providers.openai_compatible import OpenAICompatibleProvider
from trading_agent.providers.provider import Stopped
from trading_agent.turn_events import TextPiece, ToolCalled, UsageCounted

DONE = 'data: [DONE]\n\n'
SCHEMA = {'type': 'object', 'properties': {'price': {'type': 'integer'}}}


@pytest.fixture(autouse=True)
def sdk() -> None:
    """The SDK is needed."""
    require('openai')


@asynccontextmanager
async def asked_of(*script: Act, key: str = KEY, **options: Any) -> AsyncIterator[tuple[OpenAICompatibleProvider, Raw]]:  # noqa: ANN401 - as it takes them
    """Starts a server and a provider that asks it."""
    async with serving(*script) as raw:
        provider = OpenAICompatibleProvider('gpt', key, f'{raw.url}/v1', **options)
        yield provider, raw
        await provider.aclose()


def chunk(finish: str | None = None, usage: object = None, **delta: object) -> dict[str, Any]:
    """Returns a piece of a stream."""
    choice = {'index': 0, 'delta': delta, 'finish_reason': finish}
    return {'model': 'gpt-1', 'choices': [choice], **({'usage': usage} if usage else {})}


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """Returns the piece that counts, behind all others."""
    details = {} if cached is None else {'prompt_tokens_details': {'cached_tokens': cached}}
    return {'choices': [], 'usage': {'prompt_tokens': prompt, 'completion_tokens': completion, **details}}


def call(index: int | None, call_id: str | None, name: str | None, arguments: object) -> dict[str, Any]:
    """Returns a piece of a tool call."""
    numbered = {} if index is None else {'index': index}
    return {**numbered, 'id': call_id, 'function': {'name': name, 'arguments': arguments}}


async def test_a_whole_answer() -> None:
    """Text and calls come when they are complete enough, what a cache had is counted apart, thoughts never come."""
    events = [
        chunk(role='assistant', content=''),
        chunk(reasoning_content='Hm.'),
        chunk(content='Infosys '),
        chunk(content='costs'),
        chunk(tool_calls=[call(0, 'call_1', 'price', '')]),
        chunk(tool_calls=[call(0, None, None, '{"sym')]),
        chunk(tool_calls=[call(0, None, None, 'bol": "INFY"}'), call(1, 'call_2', 'now', '')]),
        chunk('tool_calls'),
        usage(120, 30, 100),
        DONE,
    ]
    async with asked_of(stream(*events)) as (provider, _):
        assert await told(provider, asking(tools=True)) == [
            TextPiece('Infosys '),
            TextPiece('costs'),
            ToolCalled('call_1', 'price', {'symbol': 'INFY'}),
            ToolCalled('call_2', 'now', {}),
            UsageCounted(20, 30, 100),
            Stopped('tool_use', 'gpt-1'),
        ]


CALLS = [ToolCalled('a', 'price', {'symbol': 'INFY'}), ToolCalled('b', 'price', {'symbol': 'WIPRO'})]
ODD_CALLS = {
    'all of them number 0': [
        chunk(tool_calls=[call(0, 'a', 'price', '{"symbol": ')]),
        chunk(tool_calls=[call(0, None, None, '"INFY"}')]),
        chunk(tool_calls=[call(0, 'b', 'price', '{"symbol": ')]),
        chunk(tool_calls=[call(0, '', '', '"WIPRO"}')]),
        chunk('stop'),
    ],
    'not numbered': [
        chunk(tool_calls=[call(None, 'a', 'price', '{"symbol": "INFY"}'), call(None, 'b', 'price', '{"symbol": ')]),
        chunk(tool_calls=[call(None, None, None, '"WIPRO"}')]),
        chunk('tool_calls'),
    ],
    'mixed': [
        chunk(tool_calls=[call(0, 'a', 'price', ''), call(1, 'b', 'price', '')]),
        chunk(tool_calls=[call(1, None, None, '{"symbol": "WIPRO"}'), call(0, 'a', None, '{"symbol": "INFY"}')]),
        chunk('tool_calls'),
    ],
    'objects': [
        chunk(
            tool_calls=[call(0, 'a', 'price', {'symbol': 'INFY'}), call(1, 'b', 'price', {'symbol': 'WIPRO'})],
            finish='function_call',
        ),
    ],
}


@pytest.mark.parametrize('way', ODD_CALLS)
async def test_calls_as_many_servers_stream_them(way: str) -> None:
    """Calls are put together right, however a server numbers them and whatever reason it gives."""
    async with asked_of(stream(*ODD_CALLS[way], DONE)) as (provider, _):
        assert await told(provider, asking(tools=True)) == [*CALLS, Stopped('tool_use', 'gpt-1')]


async def test_usage_as_many_servers_count_it() -> None:
    """Usage that comes with each piece is counted once; a server that counts nothing is believed."""
    counted = [
        chunk(content='a', usage={'prompt_tokens': 10, 'completion_tokens': 1}),
        chunk(content='b', usage={'prompt_tokens': 10, 'completion_tokens': 2, 'prompt_tokens_details': None}),
        chunk('stop', usage={'prompt_tokens': 10, 'completion_tokens': 3}),
        usage(10, 3),
    ]
    async with asked_of(stream(*counted, DONE), stream(chunk(content='a'), chunk('stop'))) as (provider, _):
        events = await told(provider, asking())
        counts = [event for event in events if isinstance(event, UsageCounted)]
        assert [sum(event.input_tokens for event in counts), sum(event.output_tokens for event in counts)] == [10, 3]
        assert await told(provider, asking()) == [TextPiece('a'), Stopped('end_turn', 'gpt-1')]


@pytest.mark.parametrize(
    ('finish', 'reason'),
    [('stop', 'end_turn'), ('length', 'max_tokens'), ('content_filter', 'refusal'), ('insufficient', 'insufficient')],
)
async def test_why_it_stopped(finish: str, reason: str) -> None:
    """The reasons why the model stopped are told in the words of the contract, an unknown one in the server's own."""
    async with asked_of(stream(chunk(content='Well', finish=''), chunk(finish), DONE)) as (provider, _):
        assert (await told(provider, asking()))[-1] == Stopped(reason, 'gpt-1')


async def test_parts_of_content() -> None:
    """Content that comes in parts is read, but for the thoughts among them; answers that nobody asked for are not."""
    parts = [{'type': 'thinking', 'thinking': [{'type': 'text', 'text': 'Hm.'}]}, {'type': 'text', 'text': 'Well'}]
    second = {'choices': [{'index': 1, 'delta': {'content': 'no'}, 'finish_reason': 'length'}]}
    async with asked_of(stream(chunk(content=parts), second, chunk('stop'), DONE)) as (provider, _):
        assert await told(provider, asking()) == [TextPiece('Well'), Stopped('end_turn', 'gpt-1')]


async def test_answers_in_which_there_is_nothing() -> None:
    """An answer without a word or a call fails, and one that was refused without a word refuses the turn."""
    script = [
        stream(chunk(content=' '), chunk('stop'), DONE),
        stream(chunk('length'), DONE),
        stream(chunk(refusal='I am not able to.'), chunk('stop'), DONE),
        stream(chunk('content_filter'), DONE),
        stream(chunk(tool_calls=[call(0, 'a', 'price', '{"symbol": "INF')]), chunk('length'), DONE),
    ]
    async with asked_of(*script) as (provider, _):
        for failure in (BackendError, BackendError, TurnRefused, TurnRefused, InvalidAnswer):
            with pytest.raises(failure) as raised:
                await told(provider, asking())
            assert type(raised.value) is failure


WELL: list[object] = [chunk(content='{"price": 1}'), chunk('stop'), DONE]


async def test_what_is_asked() -> None:
    """A request goes to the server as the SDK sends it: streaming, with its usage, and with nothing unknown to it."""
    async with asked_of(stream(*WELL), max_tokens=99) as (provider, raw):
        await told(provider, asking(system='You trade.', metadata={'desk': 'main'}))
    asked = raw.received[0]
    assert asked.line == 'POST /v1/chat/completions HTTP/1.1'
    assert asked.headers['authorization'] == f'Bearer {KEY}'
    assert asked.body == {
        'model': 'gpt',
        'max_tokens': 99,
        'stream': True,
        'stream_options': {'include_usage': True},
        'messages': [
            {'role': 'system', 'content': 'You trade.'},
            {'role': 'user', 'content': 'What does Infosys cost?'},
        ],
    }


async def test_a_server_that_wants_no_key() -> None:
    """Without a key there is no Authorization at all."""
    async with asked_of(stream(*WELL), key='') as (provider, raw):
        await told(provider, asking())
    assert 'authorization' not in raw.received[0].headers


def refusal(message: str, status: int = 400, param: str | None = None) -> Act:
    """Answers that something is wrong with the request."""
    return answer(status, {'error': {'type': 'invalid_request_error', 'message': message, 'param': param}})


MAX_TOKENS_REFUSED = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
ALL = {'response_format', 'stream_options', 'max_tokens'}
NEWER = {'response_format', 'stream_options', 'max_completion_tokens'}
NO_USAGE = answer(422, {'detail': [{'loc': ['body', 'stream_options'], 'msg': 'extra'}]})
FALLBACKS: list[tuple[list[Act], list[set[str]]]] = [
    ([refusal('response_format is not supported')], [ALL, ALL - {'response_format'}]),
    ([refusal('that will not do')], [ALL, ALL - {'response_format'}]),
    ([NO_USAGE], [ALL, ALL - {'stream_options'}]),
    ([refusal(MAX_TOKENS_REFUSED, param='max_tokens')], [ALL, NEWER]),
    ([NO_USAGE, refusal('no response_format')], [ALL, ALL - {'stream_options'}, {'max_tokens'}]),
]


@pytest.mark.parametrize(('script', 'sent'), FALLBACKS, ids=['format', 'in-doubt', 'usage', 'limit', 'two'])
async def test_servers_that_know_less(script: list[Act], sent: list[set[str]]) -> None:
    """What a server refuses to know is left out or said in its other way, once, and never sent to it again."""
    async with asked_of(*script, stream(*WELL), max_tokens=99) as (provider, raw):
        for _ in range(2):
            await told(provider, asking(schema=SCHEMA))
    assert [(ALL | NEWER) & set(asked.body) for asked in raw.received] == [*sent, sent[-1]]
    assert 'JSON Schema' in raw.received[-1].body['messages'][0]['content']


async def test_a_request_that_is_refused_for_another_reason() -> None:
    """A request that is refused all the same fails the turn after one more try, and nothing is remembered of it."""
    script = [refusal('max_tokens is too large'), refusal('max_completion_tokens is too large'), stream(*WELL)]
    async with asked_of(*script, max_tokens=99) as (provider, raw):
        with pytest.raises(TurnRefused, match='max_completion_tokens is too large'):
            await told(provider, asking())
        await told(provider, asking())
    assert ['max_tokens' in asked.body for asked in raw.received] == [True, False, True]
