"""A conversation as each model API takes it."""

import json
from typing import Any

import pytest

from trading_agent.errors import TurnRefused
from trading_agent.messages import AssistantMessage, Message, TextContent, ToolCall, ToolResultMessage, UserMessage
from trading_agent.providers import anthropic_request, openai_request
from trading_agent.providers.provider import ModelRequest, ToolSpec

PRICE = ToolSpec('price', 'The last price.', {'type': 'object', 'properties': {'symbol': {'type': 'string'}}})
NOTE = ToolSpec('note', '', {})

WITH_TOOLS: list[Message] = [
    UserMessage('What do INFY and WIPRO cost?'),
    UserMessage('In rupees.'),
    AssistantMessage(
        content=[TextContent('I look.'), ToolCall('a', 'price', {'symbol': 'INFY'}), TextContent(' And again.')],
        tool_calls=[ToolCall('a', 'price', {'symbol': 'INFY'}), ToolCall('odd/id', 'no such.tool', {'n': [1]})],
    ),
    ToolResultMessage('a', 'price', '1500'),
    ToolResultMessage('odd/id', 'no such.tool', 'there is no such tool', is_error=True),
    AssistantMessage('INFY costs 1500.'),
    UserMessage('   '),
    AssistantMessage(''),
    UserMessage('Half a \ud83d character'),
]


def request(*messages: Message, **fields: object) -> ModelRequest:
    """Returns a request of these messages."""
    return ModelRequest(model='', messages=messages or WITH_TOOLS, **fields)  # type: ignore[arg-type]


CACHED = {'cache_control': {'type': 'ephemeral'}}


def _anthropic(*messages: Any, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - as ModelRequest takes them
    return anthropic_request.params_of(request(*messages, **fields), 'claude', 1000, '5m')


def test_anthropic_a_conversation_with_tools() -> None:
    """Turns alternate, the results of one answer stand in one, what is blank is left out, and ids are acceptable."""
    turns = _anthropic()['messages']
    other = turns[1]['content'][3]['id']
    assert other.startswith('call_')
    assert turns == [
        {
            'role': 'user',
            'content': [
                {'type': 'text', 'text': 'What do INFY and WIPRO cost?'},
                {'type': 'text', 'text': 'In rupees.'},
            ],
        },
        {
            'role': 'assistant',
            'content': [
                {'type': 'text', 'text': 'I look.'},
                {'type': 'tool_use', 'id': 'a', 'name': 'price', 'input': {'symbol': 'INFY'}},
                {'type': 'text', 'text': ' And again.'},
                {'type': 'tool_use', 'id': other, 'name': 'no_such_tool', 'input': {'n': [1]}},
            ],
        },
        {
            'role': 'user',
            'content': [
                {'type': 'tool_result', 'tool_use_id': 'a', 'content': [{'type': 'text', 'text': '1500'}]},
                {
                    'type': 'tool_result',
                    'tool_use_id': other,
                    'content': [{'type': 'text', 'text': 'there is no such tool'}],
                    'is_error': True,
                    **CACHED,
                },
            ],
        },
        {'role': 'assistant', 'content': [{'type': 'text', 'text': 'INFY costs 1500.'}]},
        {'role': 'user', 'content': [{'type': 'text', 'text': 'Half a \ufffd character', **CACHED}]},
    ]


def test_anthropic_the_rest_of_a_request() -> None:
    """System, tools, temperature and limit are passed on; of the metadata only the user's id."""
    params = _anthropic(
        UserMessage('hello'),
        system='You trade.',
        tools=[PRICE, NOTE],
        temperature=0.0,
        max_tokens=7,
        metadata={'desk': 'main', 'user_id': 'u1', 'session_id': 's'},
    )
    assert {**params, 'messages': None} == {
        'model': 'claude',
        'max_tokens': 7,
        'messages': None,
        'system': [{'type': 'text', 'text': 'You trade.', **CACHED}],
        'tools': [
            {'name': 'price', 'description': 'The last price.', 'input_schema': PRICE.parameters},
            {'name': 'note', 'input_schema': {'type': 'object'}, **CACHED},
        ],
        'temperature': 0.0,
        'metadata': {'user_id': 'u1'},
    }
    assert set(_anthropic(UserMessage('hello'))) == {'model', 'max_tokens', 'messages'}
    assert _anthropic(UserMessage('hello'))['max_tokens'] == 1000


def test_anthropic_tools_that_were_called_are_declared() -> None:
    """A conversation in which tools were called declares them also where there are none now, and calls none."""
    params = _anthropic()
    assert [tool['name'] for tool in params['tools']] == ['price', 'no_such_tool']
    assert params['tool_choice'] == {'type': 'none'}


def test_anthropic_at_most_four_places_are_cached() -> None:
    """A growing conversation marks where it ends and where it ended in the request before, and never more than four."""
    said: list[Any] = []
    ends: list[str] = []
    for number in range(30):
        said.append(UserMessage(f'question {number}'))
        text = json.dumps(_anthropic(*said, system='You trade.', tools=[PRICE], schema={'type': 'object'}))
        assert text.count('cache_control') == min(4, 3 + number)
        marked = [turn['content'][-1]['text'] for turn in json.loads(text)['messages'] if 'cache_control' in str(turn)]
        assert marked == [*ends[-1:], f'question {number}']
        ends.append(f'question {number}')
        said.append(AssistantMessage(f'answer {number}'))


def test_anthropic_the_cache_is_kept_for_an_hour() -> None:
    """Another time for which the cache is kept is asked for in so many words."""
    params = anthropic_request.params_of(request(UserMessage('hello')), 'claude', 1000, '1h')
    assert params['messages'][0]['content'][0]['cache_control'] == {'type': 'ephemeral', 'ttl': '1h'}


def test_anthropic_a_schema_is_told_in_words_behind_what_is_cached() -> None:
    """The words that ask for a schema come last, so that what stands above them is still read from the cache."""
    system = _anthropic(UserMessage('hello'), system='You trade.', schema={'type': 'object', 'title': 'Odd'})['system']
    assert [CACHED.items() <= block.items() for block in system] == [True, False]
    assert '"title":"Odd"' in system[1]['text']


def test_anthropic_a_conversation_that_begins_with_an_answer() -> None:
    """The API wants a user's turn first: one is put there."""
    turns = _anthropic(AssistantMessage('Good morning.'), UserMessage('hello'))['messages']
    assert [turn['role'] for turn in turns] == ['user', 'assistant', 'user']


def test_anthropic_an_empty_result() -> None:
    """A tool that gave back nothing has a result all the same."""
    result = _anthropic(UserMessage('x'), ToolResultMessage('a', 'price', ''))['messages'][0]['content'][1]
    assert result == {'type': 'tool_result', 'tool_use_id': 'a', **CACHED}


@pytest.mark.parametrize('said', [[UserMessage('  ')], [UserMessage('x'), AssistantMessage('y')]])
def test_anthropic_nothing_to_answer(said: list[Any]) -> None:
    """A request in which nobody asks anything is refused before it is sent."""
    with pytest.raises(TurnRefused):
        _anthropic(*said)


@pytest.mark.parametrize(
    ('schema', 'closed'),
    [
        ({'type': 'object', 'properties': {'a': {'type': 'string'}}}, True),
        ({'type': 'object', 'properties': {'a': {'type': 'string'}}, 'additionalProperties': False}, True),
        ({'type': 'array', 'items': {'type': 'object', 'properties': {'type': {'type': 'object'}}}}, False),
        ({'type': 'object'}, False),
        ({'type': 'object', 'properties': {'a': {}}, 'additionalProperties': {'type': 'string'}}, False),
        ({'$defs': {'A': {'type': 'object'}}, '$ref': '#/$defs/A'}, False),
        ({'type': 'string'}, True),
    ],
)
def test_anthropic_schemas_whose_objects_name_their_fields(schema: dict[str, Any], closed: bool) -> None:  # noqa: FBT001
    """An object that takes any field cannot be asked for by the API's output format."""
    assert anthropic_request.is_closed(schema) is closed


def _openai(*messages: Any, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - as ModelRequest takes them
    return openai_request.params_of(request(*messages, **fields), 'gpt', None, 'max_tokens')


def test_openai_a_conversation_with_tools() -> None:
    """What one side said twice in a row is one message, what is blank is left out, each result names its call."""
    turns = _openai()['messages']
    other = turns[1]['tool_calls'][1]['id']
    assert other.startswith('call_')
    assert turns == [
        {'role': 'user', 'content': 'What do INFY and WIPRO cost?\n\nIn rupees.'},
        {
            'role': 'assistant',
            'content': 'I look. And again.',
            'tool_calls': [
                {'id': 'a', 'type': 'function', 'function': {'name': 'price', 'arguments': '{"symbol":"INFY"}'}},
                {'id': other, 'type': 'function', 'function': {'name': 'no_such_tool', 'arguments': '{"n":[1]}'}},
            ],
        },
        {'role': 'tool', 'tool_call_id': 'a', 'content': '1500'},
        {'role': 'tool', 'tool_call_id': other, 'content': 'Error: there is no such tool'},
        {'role': 'assistant', 'content': 'INFY costs 1500.'},
        {'role': 'user', 'content': 'Half a \ufffd character'},
    ]


def test_openai_answers_in_a_row() -> None:
    """Answers are joined too, also with one that calls tools behind them; what follows its result is another."""
    call = ToolCall('a', 'price', {})
    said = [
        UserMessage('x'),
        AssistantMessage('1'),
        AssistantMessage('2'),
        AssistantMessage('', [call]),
        ToolResultMessage('a', 'price', '9'),
        AssistantMessage('3'),
        AssistantMessage('4'),
        UserMessage('y'),
    ]
    turns = _openai(*said)['messages']
    assert [turn['content'] for turn in turns] == ['x', '1\n\n2', '9', '3\n\n4', 'y']
    assert [turn['role'] for turn in turns if 'tool_calls' in turn] == ['assistant']


def test_openai_the_rest_of_a_request() -> None:
    """System, tools, temperature and limit are passed on; of the metadata only the user's id."""
    params = _openai(
        UserMessage('hello'),
        system='You trade.',
        tools=[PRICE, NOTE],
        temperature=0.0,
        max_tokens=7,
        metadata={'desk': 'main', 'user_id': 'u1', 'session_id': 's'},
    )
    assert params == {
        'model': 'gpt',
        'messages': [{'role': 'system', 'content': 'You trade.'}, {'role': 'user', 'content': 'hello'}],
        'stream_options': {'include_usage': True},
        'max_tokens': 7,
        'tools': [
            {
                'type': 'function',
                'function': {'name': 'price', 'description': 'The last price.', 'parameters': PRICE.parameters},
            },
            {'type': 'function', 'function': {'name': 'note', 'parameters': {'type': 'object'}}},
        ],
        'temperature': 0.0,
        'user': 'u1',
    }
    assert set(_openai(UserMessage('hello'))) == {'model', 'messages', 'stream_options'}


def test_openai_a_schema() -> None:
    """A schema is asked for by the API's own way, and in words."""
    params = _openai(UserMessage('hello'), schema={'type': 'object', 'title': 'Odd'})
    assert params['response_format']['json_schema']['schema'] == {'type': 'object', 'title': 'Odd'}
    assert '"title":"Odd"' in params['messages'][0]['content']


@pytest.mark.parametrize('said', [[UserMessage('  ')], [UserMessage('x'), AssistantMessage('y')]])
def test_openai_nothing_to_answer(said: list[Any]) -> None:
    """A request in which nobody asks anything is refused before it is sent."""
    with pytest.raises(TurnRefused):
        _openai(*said)
