"""Sessions: what a turn adds to the history, and that whatever goes wrong leaves it as it was."""

import asyncio
import gc
import json
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from trading_agent.conversation import Agent, Session
from trading_agent.errors import BackendError, InvalidInput, LoopIsRunning, SessionBusy, StreamNotConsumed
from trading_agent.messages import (
    AssistantMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from trading_agent.providers.offline import OfflineProvider
from trading_agent.providers.provider import ModelRequest, Stopped
from trading_agent.testing.provider import ScriptedProvider, Step
from trading_agent.turn_events import TextPiece, ToolCalled, TurnAnswered, TurnEvent, UsageCounted

END = Stopped('end_turn', 'm1')
CALL = ToolCall('c1', 'price', {'symbol': 'ABC', 'legs': [{'qty': 1}]})
ASKING = AssistantMessage('', [CALL])
RESULT = ToolResultMessage('c1', 'price', '41.20')


def session_of(*answers: str | list[Step], **options: Any) -> tuple[Session, ScriptedProvider]:  # noqa: ANN401 - as Agent takes them
    """Returns a session with a provider that answers this."""
    provider = ScriptedProvider(*answers)
    return Agent(provider, **options).session(), provider


def said(session: Session) -> list[tuple[str, str]]:
    """Returns the history as roles and texts."""
    rows = []
    for message in session.history():
        text = message.text if isinstance(message, AssistantMessage) else message.content
        rows.append((type(message).__name__.removesuffix('Message').lower(), text))
    return rows


# -- a turn ----------------------------------------------------------------------------------------------------


def test_a_turn_becomes_two_messages() -> None:
    """Message and answer are in the history with their times, and the response says all that is known of them."""
    session, _ = session_of(
        [TextPiece('Buy '), UsageCounted(10, 2, 3, 4), TextPiece('now'), Stopped('max_tokens', 'm1')]
    )
    response = session.run('What now?')
    assert said(session) == [('user', 'What now?'), ('assistant', 'Buy now')]
    assert all(message.timestamp > 1.7e9 for message in session.messages)
    assert (response.text, response.stop_reason, response.model, response.parsed) == (
        'Buy now',
        'max_tokens',
        'm1',
        None,
    )
    assert response.usage == Usage(10, 2, 3, 4)
    assert response.message == session.messages[-1]
    assert response.messages == session.messages
    assert response.message.usage == Usage(10, 2, 3, 4)


async def test_what_a_model_is_asked() -> None:
    """The provider gets the whole conversation, what stands above it, and the turn's settings before the agent's."""
    session, provider = session_of('1', '2', '3', model='m', system='Be brief.', temperature=0.5, max_tokens=7)
    await session.run_async('one')
    await session.run_async('two', temperature=0.0, max_tokens=9, metadata={'user': 'asha'})
    first, second = provider.requests
    assert (first.model, first.system, first.temperature, first.max_tokens) == ('m', 'Be brief.', 0.5, 7)
    assert (second.temperature, second.max_tokens, second.metadata) == (0.0, 9, {'user': 'asha'})
    assert (first.metadata, first.schema, list(first.tools)) == ({}, None, [])
    assert [getattr(message, 'content', '') for message in first.messages] == ['one']
    assert [getattr(message, 'content', '') for message in second.messages] == ['one', '1', 'two']
    other = Session(Agent(ScriptedProvider(), system='Be brief.'), system='Be long.')
    assert (session.system, other.system, Agent().session().system) == ('Be brief.', 'Be long.', None)


@pytest.mark.parametrize('text', ['', '  \n', None, 7])
async def test_a_blank_message_is_refused(text: Any) -> None:  # noqa: ANN401
    """Nothing is sent, whichever way it comes."""
    session, provider = session_of('never')
    for send in (session.run_async, session.stream_async, lambda text: session.json_async(text, schema={})):
        with pytest.raises(InvalidInput):
            await send(text)
    assert provider.requests == []
    assert said(session) == []


def test_any_text_is_storable() -> None:
    """A lone surrogate becomes U+FFFD in the message, the answer, the system and the id."""
    session = Agent(ScriptedProvider('c\ud800')).session('a\ud800', 'b\ud800')
    session.run('\ud800')
    assert said(session) == [('user', '\ufffd'), ('assistant', 'c\ufffd')]
    assert (session.session_id, session.system) == ('a\ufffd', 'b\ufffd')
    json.dumps(session.to_dict(), ensure_ascii=False).encode()


# -- whatever goes wrong ---------------------------------------------------------------------------------------

FAILURES: list[tuple[list[Step], type[BaseException], str]] = [
    ([TextPiece('half')], BackendError, 'the stream was cut'),
    ([], BackendError, 'the stream was cut'),
    ([TextPiece('half'), ValueError('bad key')], ValueError, 'bad key'),
    ([BackendError('overloaded')], BackendError, 'overloaded'),
    ([asyncio.CancelledError()], BackendError, 'something inside it was cancelled'),
    ([ToolCalled('1', 'x', ['no', 'object']), END], BackendError, 'cannot be kept'),  # type: ignore[arg-type]
    ([ToolCalled('1', 'x', {'n': float('nan')}), END], BackendError, 'cannot be kept'),
]


@pytest.mark.parametrize(('steps', 'error', 'why'), FAILURES)
@pytest.mark.parametrize('way', ['run', 'run_async', 'stream', 'stream_async'])
def test_a_turn_that_fails_leaves_the_history(
    steps: list[Step], error: type[BaseException], why: str, way: str
) -> None:
    """Cut, refused or failing: the error comes through, nothing is added, and the next turn is answered."""
    session, provider = session_of('first', [UsageCounted(5, 1), *steps], 'third')
    session.run('one')
    before = session.history()
    with pytest.raises(error, match=why):
        consume(session, way)
    assert session.history() == before
    assert provider.closed == 2
    assert session.token_usage['total_tokens'] == 6, 'what it cost is counted all the same'
    assert session.run('three').text == 'third'


def consume(session: Session, way: str) -> None:
    """Sends a message and reads the answer to its end."""

    async def read() -> None:
        async for _ in await session.stream_async('two'):
            pass

    match way:
        case 'run':
            session.run('two')
        case 'run_async':
            asyncio.run(session.run_async('two'))
        case 'stream':
            list(session.stream('two'))
        case _:
            asyncio.run(read())


async def test_a_turn_that_is_cancelled_leaves_the_history() -> None:
    """Cancellation goes through, the provider is closed at once, and the session can go on."""
    session, provider = session_of([TextPiece('half'), anyio.sleep_forever], 'yes')
    with anyio.move_on_after(0.05) as scope:
        await session.run_async('one')
    assert scope.cancelled_caught
    assert (said(session), provider.closed) == ([], 1)
    assert (await session.run_async('two')).text == 'yes'


async def test_one_turn_at_a_time() -> None:
    """While a turn runs another one, clear and add_message are refused; reading and forking are not."""
    gate = anyio.Event()
    session, provider = session_of('first', [gate.wait, TextPiece('late'), END], 'third')
    await session.run_async('one')
    waiting = await session.stream_async('beside')
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run_async, 'two')
        await anyio.wait_all_tasks_blocked()
        for refused in (session.run_async, session.stream_async):
            with pytest.raises(SessionBusy):
                await refused('x')
        with pytest.raises(SessionBusy):
            await anext(waiting)
        for change in (session.clear, lambda: session.add_message(UserMessage('x'))):
            with pytest.raises(SessionBusy):
                change()
        assert [text for _, text in said(session)] == ['one', 'first']
        assert [text for _, text in said(session.fork())] == ['one', 'first']
        assert len(session.to_dict()['messages']) == 2
        gate.set()
    assert [text for _, text in said(session)] == ['one', 'first', 'two', 'late']
    assert len(provider.requests) == 2
    assert (await session.run_async('three')).text == 'third'


# -- streams ---------------------------------------------------------------------------------------------------

THREE: list[Step] = [TextPiece('a'), TextPiece('b'), UsageCounted(1, 1), TextPiece('c'), END]


def test_a_stream_is_read_piece_by_piece() -> None:
    """The message is sent with the first piece; the history is updated, and the response there, after the last."""
    session, provider = session_of(THREE)
    stream = session.stream('go')
    assert provider.requests == []
    pieces = []
    for piece in stream:
        pieces.append(piece)
        assert said(session) == []
        with pytest.raises(StreamNotConsumed):
            _ = stream.response
    assert pieces == ['a', 'b', 'c']
    assert said(session) == [('user', 'go'), ('assistant', 'abc')]
    assert (stream.response.text, stream.response.usage) == ('abc', Usage(1, 1))
    assert list(stream) == []


async def test_a_stream_is_read_piece_by_piece_in_a_loop() -> None:
    """The same for `async for`."""
    session, provider = session_of(THREE)
    stream = await session.stream_async('go')
    assert provider.requests == []
    pieces = []
    async for piece in stream:
        pieces.append(piece)
        assert said(session) == []
        with pytest.raises(StreamNotConsumed):
            _ = stream.response
    assert pieces == ['a', 'b', 'c']
    assert said(session) == [('user', 'go'), ('assistant', 'abc')]
    assert stream.response.text == 'abc'
    assert [piece async for piece in stream] == []


def drop_by_break(session: Session) -> None:
    """Leaves the loop."""
    for _ in session.stream('one'):
        break


def drop_by_close(session: Session) -> None:
    """Closes the stream, twice."""
    stream = session.stream('one')
    next(stream)
    stream.close()
    stream.close()
    assert list(stream) == []


def drop_by_context(session: Session) -> None:
    """Leaves its block."""
    with session.stream('one') as stream:
        next(stream)
        assert list(zip(stream, range(0), strict=False)) == []


def drop_by_error(session: Session) -> None:
    """Leaves its block by an error."""
    with suppress(ZeroDivisionError), session.stream('one') as stream:
        raise ZeroDivisionError(next(stream))


def drop_by_collector(session: Session) -> None:
    """Leaves it to the collector of cycles."""
    ring: list[Any] = [session.stream('one')]
    ring.append(ring)
    next(ring[0])
    del ring
    gc.collect()


@pytest.mark.parametrize(
    'drop', [drop_by_break, drop_by_close, drop_by_context, drop_by_error, drop_by_collector], ids=lambda f: f.__name__
)
def test_a_stream_that_is_dropped_leaves_the_history(drop: Callable[[Session], None]) -> None:
    """However it is left, the provider is closed, nothing is added, and the next turn begins at once."""
    session, provider = session_of(THREE, 'yes')
    drop(session)
    assert (said(session), provider.closed) == ([], 1)
    assert session.run('two').text == 'yes'


async def test_a_stream_that_is_dropped_in_a_loop_leaves_the_history() -> None:
    """Left by aclose, an error or break, nothing is added, and the next turn may begin at once."""
    session, provider = session_of(THREE, THREE, THREE, 'yes')
    stream = await session.stream_async('one')
    await anext(stream)
    await stream.aclose()
    assert provider.closed == 1, 'the provider is closed when aclose returns'
    with suppress(ZeroDivisionError):
        async with await session.stream_async('two') as stream:
            raise ZeroDivisionError(await anext(stream))
    assert provider.closed == 2
    with pytest.raises(StreamNotConsumed):
        _ = stream.response
    async for _ in await session.stream_async('three'):
        break
    assert said(session) == []
    assert (await session.run_async('four')).text == 'yes'
    await anyio.wait_all_tasks_blocked()
    assert provider.closed == 4


@pytest.mark.parametrize('in_a_loop', [False, True])
def test_a_stream_that_is_never_read_costs_nothing(*, in_a_loop: bool) -> None:
    """It sends nothing, holds nobody up, and is forgotten without a warning."""
    session, provider = session_of('yes')

    async def forget() -> None:
        await session.stream_async('one')

    if in_a_loop:
        asyncio.run(forget())
    else:
        session.stream('one')
    gc.collect()
    assert session.run('two').text == 'yes'
    assert len(provider.requests) == 1


class Scoped:
    """A provider that holds a cancel scope and a task group over its pieces, as HTTP clients do."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[TurnEvent]:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep, 0)
                for text in 'abc':
                    await anyio.lowlevel.checkpoint()
                    yield TextPiece(text)
        yield END


def test_a_sync_stream_runs_in_one_task() -> None:
    """Cancel scopes and task groups of a provider hold over all pieces, also when the stream is left."""
    session = Agent(Scoped()).session()
    assert list(session.stream('one')) == ['a', 'b', 'c']
    for _ in session.stream('two'):
        break
    assert [text for _, text in said(session)] == ['one', 'abc']


def test_a_sync_stream_can_end_where_a_loop_runs() -> None:
    """Begun outside and dropped inside an event loop, it is closed all the same; it is not read there."""
    session, provider = session_of(THREE, 'yes')
    streams = [session.stream('one')]
    assert next(streams[0]) == 'a'

    async def inside() -> None:
        with pytest.raises(LoopIsRunning, match='this stream blocks') as refused:
            next(streams[0])
        assert 'stream_async' in refused.value.hint
        del refused
        streams.clear()
        gc.collect()
        assert provider.closed == 1

    asyncio.run(inside())
    assert session.run('two').text == 'yes'


def test_threads_have_sessions_of_their_own() -> None:
    """Sync calls work in any thread, side by side."""
    texts: list[str] = []

    def talk(number: int) -> None:
        session, _ = session_of(f'answer {number}', THREE)
        texts.append(session.run('one').text + ''.join(session.stream('two')))

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == [f'answer {number}abc' for number in range(5)]


async def interrupt() -> None:
    """Presses Ctrl-C."""
    signal.raise_signal(signal.SIGINT)
    await anyio.sleep_forever()


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Lets SIGINT be Python's own: a shell starts what is in the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures('_ctrl_c')
def test_ctrl_c_ends_a_turn() -> None:
    """It cancels the turn, closes the provider, and comes out as KeyboardInterrupt; the session can go on."""
    session, provider = session_of([interrupt], [TextPiece('a'), interrupt], 'yes')
    with pytest.raises(KeyboardInterrupt):
        session.run('one')
    stream = session.stream('two')
    assert next(stream) == 'a'
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert list(stream) == []
    assert (said(session), provider.closed) == ([], 2)
    assert session.run('three').text == 'yes'


async def test_sync_methods_say_what_to_await_inside_a_loop() -> None:
    """Each refuses before it does anything, and its hint names its counterpart."""
    session, provider = session_of('never')
    for call, counterpart in (
        (lambda: session.run('x'), 'run_async'),
        (lambda: session.stream('x'), 'stream_async'),
        (lambda: session.json('x', schema={}), 'json_async'),
    ):
        with pytest.raises(LoopIsRunning) as refused:
            call()
        assert f'await session.{counterpart}(' in refused.value.hint
    assert provider.requests == []


def test_the_threads_own_loop_is_left_alone() -> None:
    """A sync call neither uses nor replaces the event loop that the thread has for itself."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        session, _ = session_of('a', THREE)
        session.run('one')
        list(session.stream('two'))
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_every_event_can_be_read() -> None:
    """`events` yields what the provider tells, and at last the answer, when the history has it."""
    session, _ = session_of([*THREE[:3], ValueError('never read')], THREE)
    events = session.events('one')
    assert await anext(events) == TextPiece('a')
    await events.aclose()
    found = [(event, len(session.messages)) async for event in session.events('two')]
    assert found[:-1] == [(event, 0) for event in THREE[:-1]]
    assert found[-1] == (TurnAnswered('abc', None, 'm1', 'end_turn'), 2)


# -- the history -----------------------------------------------------------------------------------------------


def damage(message: Message) -> None:
    """Changes whatever in a message can be changed."""
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            call.arguments.clear()
        message.tool_calls.append(ToolCall('x'))
        if isinstance(message.content, list):
            message.content.clear()


def test_nothing_that_is_given_or_returned_is_shared() -> None:
    """What callers do to messages, responses, dictionaries and settings does not reach the session."""
    given: list[Message] = [
        UserMessage('price?'),
        deepcopy(AssistantMessage([TextContent('let me see'), CALL], [CALL])),
        RESULT,
        AssistantMessage('41.20'),
    ]
    call = ToolCalled('c2', 'nothing', {'deep': {'list': [1]}})
    provider = ScriptedProvider([TextPiece('a'), call, TextPiece('b'), Stopped('tool_use')], 'done')
    session = Agent(provider).session(messages=given)
    response = session.run('go')
    data = session.to_dict()
    copy = Session.from_dict(data, Agent())
    pristine = json.dumps(data)
    call.arguments.clear()
    for messages in (given, session.history(), session.messages, response.messages, [response.message]):
        for message in messages:
            damage(message)
        messages.clear()
    session.token_usage['total_tokens'] = 99
    assert json.dumps(session.to_dict()) == pristine
    data['messages'][1]['content'].clear()
    data['messages'].clear()
    data['token_usage'].clear()
    assert json.dumps(session.to_dict()) == pristine == json.dumps(copy.to_dict())


def test_a_fork_goes_its_own_way() -> None:
    """It has the history, agent and system, an id of its own and no tokens; neither sees what the other says then."""
    session = Agent(ScriptedProvider([UsageCounted(1), TextPiece('a'), END], 'b', 'c'), system='S').session(system='T')
    session.run('one')
    fork, named = session.fork(), session.fork('side')
    assert (fork.history(), fork.system, named.session_id) == (session.history(), 'T', 'side')
    assert len({session.session_id, fork.session_id, named.session_id}) == 3
    assert (session.token_usage['total_tokens'], fork.token_usage['total_tokens']) == (1, 0)
    fork.run('two')
    session.run('three')
    assert [text for _, text in said(fork)] == ['one', 'a', 'two', 'b']
    assert [text for _, text in said(session)] == ['one', 'a', 'three', 'c']
    assert [text for _, text in said(named)] == ['one', 'a']


def test_clear_forgets_what_was_said() -> None:
    """The history is empty, and the next request has only its own message; id and tokens stay."""
    session, provider = session_of([UsageCounted(2), TextPiece('a'), END], 'b')
    session.run('one')
    session_id = session.session_id
    session.add_message(ASKING)
    session.clear()
    assert (session.history(), session.session_id, session.token_usage['total_tokens']) == ([], session_id, 2)
    session.run('two')
    assert len(provider.requests[1].messages) == 1


def test_messages_can_be_added_by_hand() -> None:
    """They stand in the history as given, and the model gets them."""
    session, provider = session_of('yes')
    for message in (UserMessage('a', 1.5), AssistantMessage('b', model='m', usage=Usage(1)), UserMessage('c')):
        session.add_message(message)
        assert session.messages[-1] == message
    session.run('d')
    assert [getattr(message, 'content', '') for message in provider.requests[0].messages] == ['a', 'b', 'c', 'd']


def test_a_call_waits_aside_for_its_result() -> None:
    """A call without its result is in no history, no copy and no request; with the last result all come in."""
    session, provider = session_of('yes')
    session.add_message(UserMessage('price?'))
    session.add_message(AssistantMessage('', [CALL, ToolCall('c2', 'price')]))
    session.add_message(ToolResultMessage('c2', 'price', '9'))
    assert said(session) == [('user', 'price?')]
    for act in (lambda: session.run('x'), session.to_dict, session.fork, lambda: session.add_message(UserMessage('x'))):
        with pytest.raises(InvalidInput, match="the tool call 'c1' has no result"):
            act()
    assert provider.requests == []
    session.add_message(RESULT)
    assert [kind for kind, _ in said(session)] == ['user', 'assistant', 'toolresult', 'toolresult']
    assert session.run('so?').text == 'yes'


@pytest.mark.parametrize(
    ('messages', 'why'),
    [
        ([RESULT], "message 0: no call 'c1' waits for a result"),
        ([ASKING], "the tool call 'c1' has no result"),
        ([ASKING, UserMessage('x')], "message 1: the tool call 'c1' has no result"),
        ([ASKING, RESULT, RESULT], "message 2: no call 'c1' waits for a result"),
        ([AssistantMessage('', [CALL, CALL])], 'message 0: each tool call of a message needs an id of its own'),
        ([AssistantMessage('', [ToolCall()])], 'an id of its own'),
        ([{'role': 'user', 'content': 'x'}], 'message 0: this is no message but a dict'),
        ([UserMessage(5)], 'message 0: the message cannot be kept'),  # type: ignore[arg-type]
        ([UserMessage('x', float('nan'))], 'message 0: the message cannot be kept'),
        ([AssistantMessage('', [ToolCall('1', 'x', {'a': float('nan')})])], 'cannot hold all of it'),
        ([AssistantMessage('', [ToolCall('1', 'x', {'a': object()})])], 'message 0: the message cannot be kept'),
        ([AssistantMessage('', [ToolCall('1', 'x', {'a': (1,)})])], 'cannot hold all of it'),
    ],
)
def test_messages_that_do_not_fit(messages: list[Any], why: str) -> None:
    """A history that could never be sent is refused, with the number of the message and what is wrong."""
    with pytest.raises(InvalidInput, match=why):
        Agent().session(messages=messages)


# -- to_dict, from_dict, tokens --------------------------------------------------------------------------------


def full_session() -> Session:
    """Returns a session in which every field says something."""
    session = Agent(system='of the agent').session(
        'id 1',
        'own',
        [
            UserMessage('\u2028 a \0', 1.25),
            AssistantMessage(
                [TextContent('x'), CALL, TextContent('y')], [CALL], 'm', Usage(1, 2, 3, 4), 'tool_use', 2.5
            ),
            ToolResultMessage('c1', 'price', 'no', is_error=True, timestamp=3.0),
            AssistantMessage('📈', model='m', stop_reason='end_turn', timestamp=4.0),
        ],
    )
    session.update_usage({'prompt_tokens': 5, 'completion_tokens': 6, 'total_tokens': 11})
    return session


def test_a_session_survives_json() -> None:
    """Through JSON and back it is the same in everything: id, system, messages, times, tokens."""
    session = full_session()
    data = session.to_dict()
    assert data['version'] == 1
    restored = Session.from_dict(json.loads(json.dumps(data, allow_nan=False)), Agent())
    assert restored.to_dict() == data
    assert (restored.session_id, restored.system, restored.created_at) == ('id 1', 'own', session.created_at)
    assert restored.history() == session.history()
    assert restored.token_usage == {'prompt_tokens': 5, 'completion_tokens': 6, 'total_tokens': 11}


def test_the_agents_system_is_not_the_sessions() -> None:
    """A session without one of its own has that of the agent with which it is read."""
    data = Agent(system='A').session().to_dict()
    assert Session.from_dict(data, Agent(system='B')).system == 'B'


def test_a_dictionary_may_say_little() -> None:
    """Messages and system alone will do, as will null fields; what is not known is left out."""
    data = {
        'messages': [{'role': 'user', 'content': 'x', 'timestamp': None}],
        'system': 's',
        'session_id': None,
        'created_at': None,
        'token_usage': {'prompt_tokens': None, 'more': 'x'},
        'colour': 'red',
    }
    session = Session.from_dict(data, Agent())
    assert (said(session), session.system) == ([('user', 'x')], 's')
    assert len(session.session_id) == 36
    assert session.created_at.endswith('Z')
    assert set(session.token_usage.values()) == {0}


@pytest.mark.parametrize(
    ('changes', 'why'),
    [
        (None, 'a session is a dictionary, not a list'),
        ({'version': 2}, 'version: 2 is newer than what this program knows'),
        ({'version': 'x'}, 'version: .x. is no version'),
        ({'version': 0}, 'version: 0 is no version'),
        ({'messages': None}, 'messages: there is no list'),
        ({'messages': 'x'}, 'messages: there is no list'),
        ({'messages': [5]}, 'message 0: Expected `object`'),
        ({'messages': [{'role': 'robot'}]}, 'message 0: Invalid value .robot.'),
        ({'messages': [{'role': 'user'}, {'role': 'tool'}]}, 'message 1: no call .. waits'),
        ({'messages': [{'role': 'assistant', 'tool_calls': [{'type': 'tool_call', 'id': 'a'}]}]}, "'a' has no result"),
        ({'messages': [{'role': 'assistant', 'usage': {'input_tokens': 'x'}}]}, r'message 0: .*usage\.input_tokens'),
        ({'session_id': 5}, 'session_id: 5 is no text'),
        ({'system': ['x']}, 'system: .* is no text'),
        ({'created_at': 'yesterday'}, 'created_at: .yesterday. is no time'),
        ({'created_at': '2026-10-19T03:45:00'}, 'created_at: .* has no zone'),
        ({'token_usage': {'prompt_tokens': -1}}, 'token_usage: prompt_tokens: -1 is no number of tokens'),
        ({'token_usage': 7}, 'token_usage: tokens are counted in a dictionary'),
    ],
)
def test_a_dictionary_that_is_no_session(changes: dict[str, Any] | None, why: str) -> None:
    """What cannot be is refused as a ValueError that names the field and what is wrong with it."""
    data: Any = [] if changes is None else {**full_session().to_dict(), **changes}
    with pytest.raises(ValueError, match=why) as refused:
        Session.from_dict(data, Agent())
    assert isinstance(refused.value, InvalidInput)


def test_tokens_add_up() -> None:
    """Each turn's tokens are added, those of a cache to the prompt, and those reported by `update_usage`."""
    session, _ = session_of([UsageCounted(10, 1), UsageCounted(1, 2, 100, 1000), TextPiece('a'), END], THREE)
    session.run('one')
    assert session.token_usage == {'prompt_tokens': 1111, 'completion_tokens': 3, 'total_tokens': 1114}
    session.run('two')
    session.update_usage({'prompt_tokens': 7, 'total_tokens': None})
    assert session.token_usage == {'prompt_tokens': 1119, 'completion_tokens': 4, 'total_tokens': 1116}


@pytest.mark.parametrize('count', [-1, 1.5, '3', True, float('nan'), [1]])
@pytest.mark.parametrize('key', ['prompt_tokens', 'completion_tokens', 'total_tokens'])
def test_a_count_that_is_none_adds_nothing(key: str, count: Any) -> None:  # noqa: ANN401
    """One bad count refuses the whole, and nothing of it is half added."""
    session = full_session()
    before = session.token_usage
    with pytest.raises(InvalidInput, match=key):
        session.update_usage({'prompt_tokens': 1, 'completion_tokens': 1, 'total_tokens': 1, key: count})
    with pytest.raises(InvalidInput):
        session.update_usage([('prompt_tokens', 1)])  # type: ignore[arg-type]
    assert session.token_usage == before


# -- the agent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('options', 'why', 'hint'),
    [
        ({'provider': 'ofline'}, "no provider 'ofline'", "did you mean 'offline'"),
        ({'provider': 'xyz'}, "no provider 'xyz'", 'one of offline'),
        ({'provider': object()}, 'is no provider', ''),
        ({'max_rounds': 0}, 'max_rounds', ''),
    ],
)
def test_an_agent_that_cannot_be(options: dict[str, Any], why: str, hint: str) -> None:
    """A mistake is told when the agent is made, with the nearest name."""
    with pytest.raises(InvalidInput, match=why) as refused:
        Agent(**options)
    assert hint in refused.value.hint


def test_a_built_in_provider_is_made_once() -> None:
    """It is made when it is needed first, and is the same for all sessions of the agent."""
    agent = Agent('offline')
    assert isinstance(agent.provider, OfflineProvider)
    assert agent.provider is agent.provider


async def test_repeated_ids_and_parts_in_order() -> None:
    """Calls without an id of their own get one; text between calls stays where it came."""
    session, _ = session_of(
        [
            TextPiece('a'),
            ToolCalled('', 'x', {}),
            TextPiece('b'),
            ToolCalled('1', 'x', {}),
            ToolCalled('1', 'x', {}),
            Stopped('tool_use'),
        ],
        [TextPiece('c'), ToolCalled('1', 'x', {}), Stopped('tool_use')],
        'done',
    )
    await session.run_async('go')
    first, second = (message for message in session.messages if isinstance(message, AssistantMessage) and message.calls)
    assert isinstance(first.content, list)
    assert [part.text if isinstance(part, TextContent) else '*' for part in first.content] == ['a', '*', 'b', '*', '*']
    assert len({call.id for call in first.calls}) == 3
    assert (second.content, second.calls) == ('c', [ToolCall('1', 'x')])
