"""Messages: what they hold, and that they are the same after a round trip."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_agent import json_lines
from trading_agent.messages import (
    AssistantMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    message_from,
)


def _storable(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
TEXT = st.text(st.characters(exclude_categories=['Cs']))
CALLS = st.builds(ToolCall, TEXT, TEXT, st.dictionaries(TEXT, JSON.filter(_storable), max_size=3))
USAGE = st.builds(Usage, *[st.integers(0, 10**12)] * 4)
TIMES = st.floats(0, 4e9)
MESSAGES = st.one_of(
    st.builds(UserMessage, TEXT, TIMES),
    st.builds(
        AssistantMessage,
        TEXT | st.lists(st.builds(TextContent, TEXT) | CALLS, max_size=4),
        st.lists(CALLS, max_size=3),
        TEXT,
        st.none() | USAGE,
        st.none() | TEXT,
        TIMES,
    ),
    st.builds(ToolResultMessage, TEXT, TEXT, TEXT, st.booleans(), TIMES),
)


@given(MESSAGES)
def test_a_round_trip_loses_nothing(message: Message) -> None:
    """A message of any kind is the same after it was written as JSON and read back, the strict and the lenient way."""
    line = json_lines.encode(message)
    assert line.count(b'\n') == 1
    assert msgspec.json.decode(line, type=Message) == message
    assert message_from(msgspec.to_builtins(message)) == message


def test_arguments_of_calls_inside_content_survive() -> None:
    """A tool call among the parts of an answer keeps its id and its arguments."""
    call = ToolCall('c1', 'quote', {'symbol': 'ABC', 'depth': 5, 'nested': {'a': [1, None]}})
    message = AssistantMessage([TextContent('let me look'), call])
    read = msgspec.json.decode(msgspec.json.encode(message), type=AssistantMessage)
    assert read == message
    assert read.calls == [call]


def test_text_and_calls_of_an_answer() -> None:
    """`text` is the text of all parts, `calls` each tool call once, wherever it stands."""
    first, second = ToolCall('1', 'a', {}), ToolCall('2', 'b', {})
    message = AssistantMessage([TextContent('a'), first, TextContent('b'), second], [first])
    assert message.text == 'ab'
    assert message.calls == [first, second]
    assert AssistantMessage('plain').text == 'plain'


@pytest.mark.parametrize(
    ('data', 'expected'),
    [
        ({'role': 'user', 'content': 'hi', 'timestamp': 0}, UserMessage('hi')),
        ({'role': 'user', 'content': None}, UserMessage('')),
        (
            {
                'role': 'assistant',
                'content': [{'type': 'text', 'text': 'a'}, {'type': 'tool_call', 'name': 'quote'}],
                'tool_calls': [{'id': '1', 'name': 'quote', 'arguments': {'x': None}}],
                'model': None,
                'usage': {'input_tokens': None, 'output_tokens': 3},
                'stop_reason': None,
                'timestamp': '12.5',
            },
            AssistantMessage(
                [TextContent('a'), ToolCall(name='quote')],
                [ToolCall('1', 'quote', {'x': None})],
                usage=Usage(0, 3),
                timestamp=12.5,
            ),
        ),
        ({'role': 'tool', 'tool_call_id': '1', 'is_error': 1}, ToolResultMessage('1', is_error=True)),
    ],
)
def test_what_other_programs_write(data: dict[str, Any], expected: Message) -> None:
    """Null counts as missing, a count that is null as zero, numbers may be text; arguments stay as they are."""
    assert message_from(data) == expected


@pytest.mark.parametrize('data', [{}, {'role': 'system', 'content': 'x'}, {'role': 'user', 'content': 5.5}])
def test_what_is_no_message_is_refused(data: dict[str, Any]) -> None:
    """Without a known role, or with a field that makes no sense, it is no message."""
    with pytest.raises(msgspec.ValidationError):
        message_from(data)


def test_usage_adds_up() -> None:
    """Counts add up kind by kind, none is falsy, and the total has all kinds."""
    total = sum([Usage(1, 2), Usage(10, 20, 30, 40)], Usage())
    assert total == Usage(11, 22, 30, 40)
    assert total.total_tokens == 103
    assert not Usage()
    assert Usage(output_tokens=1)
    assert msgspec.to_builtins(Usage(0, 5)) == {'output_tokens': 5}
