"""What the `claude` command writes, as recorded from version 2.1.332: its events, its answer, and why it failed."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_agent.errors import (
    BackendBusy,
    BackendDown,
    BackendError,
    ContextTooSmall,
    LostSession,
    TradingAgentError,
    TurnRefused,
)
from trading_agent.routing.claude_command import Resumed, message_line, without_lengths
from trading_agent.routing.claude_failures import failure_of, too_old
from trading_agent.routing.claude_stream import LONGEST_TOOL_RESULT, ClaudeStream, decode
from trading_agent.routing.guarded_process import Ending
from trading_agent.turn_events import TextPiece, ToolCalled, ToolReturned, TurnEvent, UsageCounted

SESSION = '87b0d686-1c3a-418f-98a7-a3dd13f19813'
WELL = Ending(0, '')

Fields = dict[str, Any]


def init(version: str = '2.1.332') -> Fields:
    """Returns how a turn begins."""
    return {'type': 'system', 'subtype': 'init', 'session_id': SESSION, 'claude_code_version': version, 'tools': []}


def streamed(event: Fields, parent: str | None = None) -> Fields:
    """Returns an event of the model as it streams."""
    return {'type': 'stream_event', 'event': event, 'session_id': SESSION, 'parent_tool_use_id': parent}


def begins(message: str = 'msg_1') -> Fields:
    """Returns how a message of the model begins."""
    usage = {
        'input_tokens': 11,
        'cache_creation_input_tokens': 5,
        'cache_read_input_tokens': 3,
        'output_tokens': 1,
    }
    return streamed({'type': 'message_start', 'message': {'id': message, 'model': 'claude-opus-5-5', 'usage': usage}})


def piece(text: str) -> Fields:
    """Returns a piece of text."""
    delta = {'type': 'text_delta', 'text': text}
    return streamed({'type': 'content_block_delta', 'index': 0, 'delta': delta})


def ends(reason: str = 'end_turn') -> Fields:
    """Returns how a message of the model ends."""
    delta = {'stop_reason': reason, 'stop_sequence': None}
    return streamed({'type': 'message_delta', 'delta': delta, 'usage': {'output_tokens': 9}})


def says(*blocks: Fields, message: str = 'msg_1', uuid: str = 'u1', parent: str | None = None, **more: Any) -> Fields:  # noqa: ANN401 - as JSON
    """Returns a whole message of the model, or a block of it."""
    content = {'id': message, 'role': 'assistant', 'model': 'claude-opus-5-5', 'content': list(blocks)}
    return {'type': 'assistant', 'message': content | more, 'uuid': uuid, 'parent_tool_use_id': parent}


def text(said: str) -> Fields:
    """Returns a block of text."""
    return {'type': 'text', 'text': said}


def returns(content: object, *, is_error: bool | None = None) -> Fields:
    """Returns the result of a tool."""
    block = {'type': 'tool_result', 'tool_use_id': 'toolu_1', 'content': content, 'is_error': is_error}
    return {'type': 'user', 'message': {'role': 'user', 'content': [block]}, 'parent_tool_use_id': None}


def result(**changes: Any) -> Fields:  # noqa: ANN401 - as JSON
    """Returns the last line of a turn."""
    usage = {
        'input_tokens': 11,
        'cache_creation_input_tokens': 5,
        'cache_read_input_tokens': 3,
        'output_tokens': 9,
        'server_tool_use': {'web_search_requests': 0},
    }
    return {
        'type': 'result',
        'subtype': 'success',
        'is_error': False,
        'stop_reason': 'end_turn',
        'session_id': SESSION,
        'result': 'as agreed',
        'usage': usage,
        'terminal_reason': 'completed',
        'api_error_status': None,
    } | changes


CALL: Fields = {'type': 'tool_use', 'id': 'toolu_1', 'name': 'Read', 'input': {'file_path': 'a.txt'}}


def read(*lines: Fields) -> tuple[ClaudeStream, list[TurnEvent]]:
    """Reads lines as they would come over the pipe."""
    stream = ClaudeStream()
    events: list[TurnEvent] = []
    for line in lines:
        fields = decode(json.dumps(line).encode())
        assert fields is not None
        events += stream.take(fields)
    return stream, events


def used(events: list[TurnEvent]) -> tuple[int, ...]:
    """Returns what all counts together come to."""
    counts = [event for event in events if isinstance(event, UsageCounted)]
    kinds = ('input_tokens', 'output_tokens', 'cache_read_tokens', 'cache_write_tokens')
    return tuple(sum(getattr(count, kind) for count in counts) for kind in kinds)


def test_text_comes_as_it_is_streamed_and_once() -> None:
    """The pieces are told as they come and make up the answer; the whole message after them is not told again."""
    stream, events = read(init(), begins(), piece('as '), piece('agreed'), says(text('as agreed')), ends(), result())
    assert [event.text for event in events if isinstance(event, TextPiece)] == ['as ', 'agreed']
    answer = stream.answered(schema=False)
    assert (answer.answer, answer.model, answer.stop_reason) == ('as agreed', 'claude-opus-5-5', 'end_turn')
    assert failure_of(stream, WELL) is None


def test_text_that_was_not_streamed_is_told_whole() -> None:
    """A command that sends no pieces still tells its text, when the message is complete."""
    _, events = read(init(), says(text('as agreed')), result())
    assert [event.text for event in events if isinstance(event, TextPiece)] == ['as agreed']


def test_the_session_and_where_to_resume_it_are_known() -> None:
    """The session's id and the last message's are kept, the last one and not one of an agent within the turn."""
    stream, _ = read(
        init(),
        says(text('one'), uuid='u1'),
        says(text('two'), uuid='u2'),
        says(text('inside'), uuid='u3', parent='toolu_1'),
        result(),
    )
    assert Resumed(stream.session_id, stream.message_id) == Resumed(SESSION, 'u2')


def test_tools_are_told_with_what_they_were_given_and_gave_back() -> None:
    """A call of a tool and its result are told in their order; the answer is what the model says after them."""
    stream, events = read(
        says(text('Let me look. ')), says(CALL), returns('42'), says(text('It says 42.'), message='msg_2'), result()
    )
    told = [event for event in events if not isinstance(event, UsageCounted)]
    assert told == [
        TextPiece('Let me look. '),
        ToolCalled('toolu_1', 'Read', {'file_path': 'a.txt'}),
        ToolReturned('toolu_1', '42'),
        TextPiece('It says 42.'),
    ]
    assert stream.answered(schema=False).answer == 'It says 42.'


@pytest.mark.parametrize(
    ('content', 'told'),
    [
        ('42', '42'),
        (
            [{'type': 'text', 'text': 'a'}, {'type': 'image', 'source': {}}, {'type': 'text', 'text': 'b'}],
            'a\n[image]\nb',
        ),
        (None, ''),
        ('x' * (LONGEST_TOOL_RESULT + 1), 'x' * (LONGEST_TOOL_RESULT - 13) + '\n[… cut here]'),
    ],
    ids=['text', 'parts', 'nothing', 'long'],
)
def test_a_result_is_told_as_text(content: object, told: str) -> None:
    """What a tool gave back is told as text, parts that are none by their kind, and a long one is cut visibly."""
    assert read(returns(content, is_error=True))[1] == [ToolReturned('toolu_1', told, is_error=True)]


def test_an_agent_within_the_turn_calls_tools_and_answers_nothing() -> None:
    """Of an agent that the model has started, calls of tools are told, and its text is no part of the answer."""
    stream, events = read(
        streamed({'type': 'content_block_delta', 'delta': {'type': 'text_delta', 'text': 'no'}}, 'toolu_0'),
        says(text('no'), parent='toolu_0'),
        says(CALL, parent='toolu_0'),
        says(text('yes'), message='msg_2'),
        result(result='yes'),
    )
    assert [type(event) for event in events[:2]] == [ToolCalled, TextPiece]
    assert stream.answered(schema=False).answer == 'yes'


def test_an_answer_that_was_continued_is_whole() -> None:
    """An answer that ran into the limit of one message, and went on in a second, is both together."""
    stream, _ = read(
        says(text('The first half, ')),
        {'type': 'user', 'message': {'role': 'user', 'content': [text('Output token limit hit. Resume')]}},
        says(text('and the second.'), message='msg_2'),
        result(result='and the second.'),
    )
    assert stream.answered(schema=False).answer == 'The first half, and the second.'


def test_the_answer_to_a_schema_is_its_fields() -> None:
    """Where a schema was asked for, the answer is the checked object as JSON, and its tool is no call of the desk's."""
    call = {'type': 'tool_use', 'id': 'toolu_1', 'name': 'StructuredOutput', 'input': {'summary': 'quiet'}}
    stream, events = read(says(call), result(structured_output={'summary': 'quiet'}, result='something else'))
    assert not [event for event in events if isinstance(event, ToolCalled)]
    assert stream.answered(schema=True).answer == '{"summary":"quiet"}'


def test_a_model_that_only_talks_is_read_all_the_same() -> None:
    """Without the checked object the answer to a schema is the last message: whoever asked reads JSON out of it."""
    stream, _ = read(says(text('```json\n{"a": 1}\n```')), result(result='```json\n{"a": 1}\n```'))
    assert stream.answered(schema=True).answer == '```json\n{"a": 1}\n```'


def test_usage_is_counted_as_it_is_used_and_once() -> None:
    """Tokens are counted as a message begins and ends, so also in a turn cut off; the sum is the result's."""
    _, events = read(begins(), piece('a'), ends(), begins('msg_2'), piece('b'), ends())
    assert used(events) == (22, 18, 6, 10)
    usage = {'input_tokens': 30, 'output_tokens': 18, 'cache_read_input_tokens': 6, 'cache_creation_input_tokens': 10}
    _, events = read(begins(), ends(), begins('msg_2'), ends(), result(usage=usage))
    assert used(events) == (30, 18, 6, 10)
    assert used(read(says(text('not streamed')), result())[1]) == (11, 9, 3, 5)


def test_thinking_is_a_sign_of_life() -> None:
    """What the model thinks is not told, but that it does is: a count of nothing, for who waits for the next word."""
    delta = {'type': 'thinking_delta', 'thinking': 'Hm.'}
    assert read(streamed({'type': 'content_block_delta', 'delta': delta}))[1] == [UsageCounted()]


def test_the_rest_is_let_pass() -> None:
    """Lines of a kind that is not known, and fields of another type than expected, tell nothing and break nothing."""
    for line in (
        {'type': 'system', 'subtype': 'status', 'status': 'requesting'},
        {'type': 'brand_new', 'event': 7},
        {'type': 'stream_event', 'event': 'x'},
        {'type': 'assistant', 'message': None},
        {'type': 'user', 'message': {'content': 'just text'}},
        {},
    ):
        assert read(line)[1] == []
    stream, _ = read({'type': 'result', 'usage': 'x', 'errors': 3, 'api_error_status': 'x', 'result': ['x']})
    assert stream.result is not None
    assert stream.result.text == ''


@pytest.mark.parametrize('line', [b'', b'[SandboxDebug] x', b'[1]', b'7', b'{"a":', b'\xff\xfe{}', b'[' * 200_000])
def test_what_is_no_object_is_none(line: bytes) -> None:
    """A line that is no JSON object is none, whatever it is."""
    assert decode(line) is None


def test_a_lone_surrogate_is_read() -> None:
    """Text with half a character, written as an escape, is read, and comes as it can be stored."""
    fields = decode(b'{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"a\\ud800b"}]}}')
    assert fields is not None
    assert list(ClaudeStream().take(fields)) == [TextPiece('a\ufffdb')]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
KINDS = st.sampled_from(['system', 'stream_event', 'assistant', 'user', 'result', 'rate_limit_event'])
NAMES = st.sampled_from(
    ['subtype', 'event', 'message', 'content', 'usage', 'errors', 'result', 'uuid', 'rate_limit_info', 'type', 'text']
)


@given(kind=KINDS, fields=st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON)))
def test_any_line_is_taken(kind: str, fields: Fields) -> None:
    """Whatever a line says, reading it raises nothing, and the turn's end is an answer or an error of ours."""
    stream = ClaudeStream()
    for event in stream.take(fields | {'type': kind}):
        assert isinstance(event, TurnEvent)
    failure = failure_of(stream, WELL)
    assert failure is not None or stream.result is not None


@given(st.binary())
def test_any_bytes_are_read(line: bytes) -> None:
    """No bytes make the reader raise."""
    decode(line)


# -- failures ------------------------------------------------------------------------------------------------------


def failing(told: str, status: int | None = None, kind: str = '', error: str = '', **more: Any) -> list[Fields]:  # noqa: ANN401 - as JSON
    """Returns how the command ends a turn that the API has refused."""
    return [
        {'type': 'assistant', 'message': {'model': '<synthetic>', 'content': [text(told)]}, 'error': error},
        result(is_error=True, result=told, api_error_status=status, api_error_type=kind or None)
        | {'terminal_reason': 'api_error'}
        | more,
    ]


FAILURES = {
    'rate limit': (
        failing('API Error: Request rejected (429) · Number of requests', 429, 'rate_limit_error', 'rate_limit'),
        BackendBusy,
    ),
    'overloaded': (
        failing('API Error: 529 Overloaded. This is a server-side issue', 529, 'overloaded_error', 'server_error'),
        BackendDown,
    ),
    'overloaded in the middle': (failing('API Error: Overloaded', 529, 'overloaded_error', 'unknown'), BackendDown),
    'server error': (failing('API Error: 500 Internal server error.', 500, 'api_error', 'server_error'), BackendBusy),
    'bad gateway': (failing('API Error: 502', 502, '', 'server_error'), BackendDown),
    'bad key': (
        failing('Invalid API key · Fix external API key', 401, 'authentication_error', 'authentication_failed'),
        BackendDown,
    ),
    'not allowed': (
        failing(
            'Failed to authenticate. API Error: 403 Your account', 403, 'permission_error', 'authentication_failed'
        ),
        BackendDown,
    ),
    'not logged in': (failing('Not logged in · Please run /login', None, '', 'authentication_failed'), BackendDown),
    'no credit': (failing('Credit balance is too low', 400, 'invalid_request_error', 'billing_error'), BackendDown),
    'no such model': (
        failing("There's an issue with the selected model", 404, 'not_found_error', 'model_not_found'),
        BackendDown,
    ),
    'too long': (
        failing('Prompt is too long · the request is ~210000 tokens', 400, 'invalid_request_error', 'invalid_request'),
        ContextTooSmall,
    ),
    'too large': (
        failing('Request too large (max 32MB).', 413, 'request_too_large', 'invalid_request'),
        ContextTooSmall,
    ),
    'bad request': (
        failing('API Error: 400 messages.0: something is wrong', 400, 'invalid_request_error', 'unknown'),
        BackendError,
    ),
    'unreachable': (
        failing('API Error: Connection refused', None, '', 'server_error', api_error='connection_failed'),
        BackendDown,
    ),
    'cut off': (
        [
            begins(),
            piece('a'),
            *failing('API Error: Connection lost', error='server_error', api_error='connection_failed'),
        ],
        BackendBusy,
    ),
    'malformed': (failing('API Error: API returned an empty or malformed response', None, '', 'unknown'), BackendBusy),
    'refused': (failing("API Error: Opus 5.5's safeguards flagged this", stop_reason='refusal'), TurnRefused),
    'used up': (failing("You've hit your session limit · resets 3pm", 429, '', 'rate_limit'), BackendDown),
    'unknown session': (
        [
            result(
                is_error=True,
                subtype='error_during_execution',
                errors=[f'No conversation found with session ID: {SESSION}'],
            )
            | {'result': None}
        ],
        LostSession,
    ),
    'unknown message': (
        [result(is_error=True, errors=['No message found with message.uuid of: u9']) | {'result': None}],
        LostSession,
    ),
    'no fields': (
        [
            result(is_error=True, subtype='error_max_structured_output_retries', errors=['Failed to provide'])
            | {'result': None}
        ],
        BackendError,
    ),
}


@pytest.mark.parametrize('name', FAILURES)
def test_a_failure_says_what_to_do_about_it(name: str) -> None:
    """Each way in which the command says that it has failed is the error that says what comes next."""
    lines, kind = FAILURES[name]
    failure = failure_of(read(init(), *lines)[0], Ending(1, ''))
    assert failure is not None
    assert type(failure) is kind
    assert str(failure).strip()
    if kind is BackendDown and name not in ('overloaded', 'overloaded in the middle', 'bad gateway'):
        assert failure.hint


def test_a_subscription_says_until_when() -> None:
    """Where the command has said until when a limit holds, the error says after how many seconds to ask again."""
    until = datetime.now(UTC).timestamp() + 3600
    limit = {'type': 'rate_limit_event', 'rate_limit_info': {'status': 'rejected', 'resetsAt': until}}
    failure = failure_of(read(limit, *failing("You've hit your limit", 429, '', 'rate_limit'))[0], Ending(1, ''))
    assert isinstance(failure, BackendDown)
    assert failure.retry_after == pytest.approx(3600, abs=60)
    allowed = {'type': 'rate_limit_event', 'rate_limit_info': {'status': 'allowed', 'resetsAt': until}}
    assert isinstance(failure_of(read(allowed, *failing('busy', 429, '', 'rate_limit'))[0], Ending(1, '')), BackendBusy)


@pytest.mark.parametrize(
    ('lines', 'ending', 'kind'),
    [
        ([init(), begins(), piece('a')], Ending(0, ''), BackendBusy),
        ([init()], Ending(137, ''), BackendBusy),
        ([], Ending(137, ''), BackendBusy),
        ([], Ending(0, ''), BackendBusy),
        ([], Ending(1, 'Claude Code could not start: x'), BackendDown),
        ([], Ending(1, "error: unknown option '--restricted'"), BackendDown),
        ([], Ending(1, f'No conversation found with session ID: {SESSION}'), LostSession),
        ([], Ending(126, 'claude: Permission denied'), BackendDown),
        ([], Ending(127, 'claude: No such file or directory'), BackendDown),
    ],
)
def test_an_end_without_a_result(lines: list[Fields], ending: Ending, kind: type[TradingAgentError]) -> None:
    """A command that ends without its last line has failed; what it said on stderr is told, and not at any length."""
    failure = failure_of(read(*lines)[0], ending)
    assert type(failure) is kind
    assert ending.last_words in str(failure)
    long = failure_of(read(*lines)[0], Ending(ending.status, ending.last_words + ' x' * 4000))
    assert len(str(long)) < 1500


@pytest.mark.parametrize(
    ('version', 'old'), [('2.1.332', False), ('2.1.248', False), ('3.0.0', False), ('2.1.247', True), ('1.9.999', True)]
)
def test_an_old_version_is_told(version: str, *, old: bool) -> None:
    """A version that would read the files which a message mentions is refused, with the one that is needed."""
    assert (too_old(version) is not None) is old


# -- what it is given ----------------------------------------------------------------------------------------------


@given(st.text())
def test_a_message_is_one_line_and_taken_as_it_is(said: str) -> None:
    """Any message is one line of JSON, marked so that the command neither reads files for it nor runs it."""
    line = message_line(said)
    assert line.endswith(b'\n')
    assert line.count(b'\n') == 1
    assert len(line.decode().splitlines()) == 1
    fields = json.loads(line)
    assert fields['client_composed'] is True
    assert fields['message']['content'] == said


@pytest.mark.parametrize(
    'state',
    [None, {}, {'session_id': 'a'}, {'session_id': '', 'message_id': 'b'}, {'session_id': 7, 'message_id': 'b'}],
)
def test_a_state_that_names_nothing_resumes_nothing(state: Fields | None) -> None:
    """Only a state that names a session and a message is resumed."""
    assert Resumed.of(state) is None
    assert Resumed.of(Resumed('a', 'b').as_state()) == Resumed('a', 'b')


def test_texts_may_be_long() -> None:
    """Limits on the length of texts are left out of a schema, and nothing else, a field of that name neither."""
    schema: Fields = {
        'type': 'object',
        'properties': {
            'maxLength': {'type': 'string', 'maxLength': 7},
            'list': {'type': 'array', 'items': {'anyOf': [{'type': 'string', 'maxLength': 3, 'minLength': 1}]}},
            'one': {'enum': [{'maxLength': 3}]},
        },
        'required': ['maxLength'],
        'additionalProperties': False,
    }
    assert without_lengths(schema) == {
        'type': 'object',
        'properties': {
            'maxLength': {'type': 'string'},
            'list': {'type': 'array', 'items': {'anyOf': [{'type': 'string', 'minLength': 1}]}},
            'one': {'enum': [{'maxLength': 3}]},
        },
        'required': ['maxLength'],
        'additionalProperties': False,
    }
