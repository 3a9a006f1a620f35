"""What the fourth document says of Session, line by line: every call as it is shown there."""

import inspect
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, get_type_hints

import msgspec
import pytest

from trading_agent import conversation
from trading_agent.conversation import Agent, AgentResponse, AsyncStreamResponse, Session, StreamResponse
from trading_agent.messages import AssistantMessage, Message, UserMessage
from trading_agent.providers.provider import ModelRequest, Stopped
from trading_agent.testing.provider import ScriptedProvider
from trading_agent.turn_events import TextPiece, TurnEvent

SETTINGS = {'temperature': 0.3, 'max_tokens': 64, 'metadata': {'user': 'asha'}}
SCHEMA = {'type': 'object', 'properties': {'name': {'type': 'string'}}, 'required': ['name']}


class Remembering:
    """A model that remembers a name: the answers that the page shows."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[TurnEvent]:
        self.requests.append(request)
        told = ' '.join(message.content for message in request.messages if isinstance(message, UserMessage))
        name = 'Alice' if 'My name is Alice' in told else 'unknown'
        text = json.dumps({'name': name}) if request.schema else f'Your name is {name}'
        for piece in (text[:5], text[5:]):
            yield TextPiece(piece)
        yield Stopped('end_turn', 'gpt-4o')


@pytest.fixture
def agent() -> Agent:
    """An agent whose model remembers."""
    return Agent(provider=Remembering(), model='gpt-4o', system='Be kind.')


@pytest.fixture
def session(agent: Agent) -> Session:
    """A session in which a name was told."""
    session = agent.session()
    session.run('My name is Alice')
    return session


def test_the_example(agent: Agent) -> None:
    """The page's example works as it stands, but for the provider's name."""
    session = agent.session()

    session.run('My name is Alice')
    response = session.run("What's my name?")
    assert response.text == 'Your name is Alice'


def test_the_example_offline() -> None:
    """With the provider that is built in, the second answer quotes the first message."""
    session = Agent(provider='offline', model='any').session()

    session.run('My name is Alice')
    assert 'My name is Alice' in session.run("What's my name?").text


def test_the_names_are_in_the_package() -> None:
    """Agent, Session, the messages and their parts are imported from `trading_agent.conversation`."""
    for name in ('Agent', 'Session', 'SessionManager', 'UserMessage', 'AssistantMessage', 'ToolResultMessage'):
        assert inspect.isclass(getattr(conversation, name))
    for name in ('TextContent', 'ToolCall', 'Usage', 'AgentResponse', 'StreamResponse', 'AsyncStreamResponse', 'Tool'):
        assert inspect.isclass(getattr(conversation, name))
        assert name in conversation.__all__
        assert name in dir(conversation)
    with pytest.raises(AttributeError, match='has no attribute'):
        _ = conversation.Nothing
    assert Session.__bases__ == (object,)


KEYWORDS = {'temperature': None, 'max_tokens': None, 'metadata': None}


@pytest.mark.parametrize(
    ('function', 'positional', 'keywords'),
    [
        (Session, {'agent': ..., 'session_id': None, 'system': None, 'messages': None}, {}),
        (Session.run, {'self': ..., 'input': ...}, KEYWORDS),
        (Session.run_async, {'self': ..., 'input': ...}, KEYWORDS),
        (Session.stream, {'self': ..., 'input': ...}, KEYWORDS),
        (Session.stream_async, {'self': ..., 'input': ...}, KEYWORDS),
        (Session.json, {'self': ..., 'input': ...}, {'schema': ..., **KEYWORDS}),
        (Session.json_async, {'self': ..., 'input': ...}, {'schema': ..., **KEYWORDS}),
        (Session.history, {'self': ...}, {}),
        (Session.clear, {'self': ...}, {}),
        (Session.fork, {'self': ..., 'session_id': None}, {}),
        (Session.add_message, {'self': ..., 'message': ...}, {}),
        (Session.to_dict, {'self': ...}, {}),
        (Session.from_dict, {'data': ..., 'agent': ...}, {}),
    ],
)
def test_parameters(function: Callable[..., Any], positional: dict[str, Any], keywords: dict[str, Any]) -> None:
    """Each has the documented parameters and defaults, those behind the star by keyword alone; others have defaults."""
    found = inspect.signature(function).parameters.values()
    defaults = {each.name: ... if each.default is each.empty else each.default for each in found}
    by_position = {each.name: defaults[each.name] for each in found if each.kind is each.POSITIONAL_OR_KEYWORD}
    by_keyword = {each.name: defaults[each.name] for each in found if each.kind is each.KEYWORD_ONLY}
    assert by_position == positional
    assert list(by_position) == list(positional)
    assert keywords.items() <= by_keyword.items()
    assert all(by_keyword[name] is not ... for name in by_keyword.keys() - keywords.keys())


@pytest.mark.parametrize(
    ('function', 'returned'),
    [
        (Session.run, AgentResponse),
        (Session.run_async, AgentResponse),
        (Session.stream, StreamResponse),
        (Session.stream_async, AsyncStreamResponse),
        (Session.json, AgentResponse),
        (Session.json_async, AgentResponse),
        (Session.history, list[Message]),
        (Session.clear, type(None)),
        (Session.fork, Session),
        (Session.add_message, type(None)),
        (Session.to_dict, dict[str, Any]),
    ],
)
def test_return_types(function: Callable[..., Any], returned: object) -> None:
    """Each says that it returns what the page says; those that end in `_async`, and only they, are awaited."""
    assert get_type_hints(function)['return'] == returned
    assert inspect.iscoroutinefunction(function) == function.__name__.endswith('_async')


# -- the constructor and the properties ------------------------------------------------------------------------


def test_a_session_of_an_agent(agent: Agent) -> None:
    """`Session(agent, session_id, system, messages)` and `agent.session(…)` make the same."""
    said: list[Message] = [UserMessage('My name is Alice'), AssistantMessage('Hello')]
    for session in (Session(agent, 's1', 'Be brief.', said), agent.session('s1', 'Be brief.', said)):
        assert (session.session_id, session.system, session.messages) == ('s1', 'Be brief.', said)
        assert session.run("What's my name?").text == 'Your name is Alice'
    assert Session(agent, session_id='s2', system=None, messages=None).messages == []


def test_session_id(agent: Agent) -> None:
    """A session without an id gets one that no other has."""
    ids = {agent.session().session_id for _ in range(100)}
    assert len(ids) == 100
    assert all(ids)
    with pytest.raises(AttributeError):
        agent.session().session_id = 'x'  # type: ignore[misc]


def test_system(agent: Agent) -> None:
    """The system prompt is the session's own, else the agent's, else None."""
    assert agent.session().system == 'Be kind.'
    assert agent.session(system='').system == ''
    assert Agent().session().system is None


def test_messages_is_a_read_only_copy(session: Session) -> None:
    """What is done to the list does not reach the session, and the property cannot be set."""
    session.messages.clear()
    assert len(session.messages) == 2
    with pytest.raises(AttributeError):
        session.messages = []  # type: ignore[misc]


# -- run, stream, json -----------------------------------------------------------------------------------------


def test_run_adds_input_and_response(session: Session) -> None:
    """`run` returns an AgentResponse with the model's response, and both are in the history."""
    response = session.run("What's my name?", temperature=0.3, max_tokens=64, metadata={'user': 'asha'})
    assert isinstance(response, AgentResponse)
    assert response.text == 'Your name is Alice'
    user, answer = session.messages[-2:]
    assert isinstance(user, UserMessage)
    assert user.content == "What's my name?"
    assert answer == response.message


async def test_run_async(agent: Agent) -> None:
    """The same, awaited."""
    session = agent.session()
    await session.run_async('My name is Alice')
    response = await session.run_async("What's my name?", temperature=0.3, max_tokens=64, metadata={})
    assert (response.text, len(session.messages)) == ('Your name is Alice', 4)


def test_stream(session: Session) -> None:
    """`stream` returns an iterator over the answer's text; the history is updated after it is consumed."""
    stream = session.stream("What's my name?", temperature=0.3, max_tokens=64, metadata={'user': 'asha'})
    assert isinstance(stream, StreamResponse)
    assert iter(stream) is stream
    assert next(stream) == 'Your '
    assert len(session.messages) == 2
    assert ''.join(stream) == 'name is Alice'
    assert len(session.messages) == 4
    assert stream.response.text == 'Your name is Alice'


async def test_stream_async(agent: Agent) -> None:
    """The same, awaited and with `async for`."""
    session = agent.session(messages=[UserMessage('My name is Alice')])
    stream = await session.stream_async("What's my name?", temperature=0.3, max_tokens=64, metadata={'user': 'asha'})
    assert isinstance(stream, AsyncStreamResponse)
    assert await anext(stream) == 'Your '
    assert len(session.messages) == 1
    assert [piece async for piece in stream] == ['name is Alice']
    assert len(session.messages) == 3
    assert stream.response.text == 'Your name is Alice'


class Person(msgspec.Struct):
    name: str


@pytest.mark.parametrize(('schema', 'parsed'), [(SCHEMA, {'name': 'Alice'}), (Person, Person('Alice'))])
def test_json(session: Session, schema: Any, parsed: object) -> None:  # noqa: ANN401
    """`json` returns an AgentResponse with parsed output, for a type and for a JSON schema."""
    response = session.json("What's my name?", schema=schema, temperature=0.3, max_tokens=64, metadata={'user': 'a'})
    assert isinstance(response, AgentResponse)
    assert response.parsed == parsed
    assert len(session.messages) == 4
    assert session.run('x').parsed is None


async def test_json_async(agent: Agent) -> None:
    """The same, awaited."""
    session = agent.session(messages=[UserMessage('My name is Alice')])
    response = await session.json_async("What's my name?", schema=SCHEMA, temperature=0.3, max_tokens=64, metadata={})
    assert response.parsed == {'name': 'Alice'}


@pytest.mark.parametrize('way', ['run', 'stream', 'json'])
async def test_settings_override_the_defaults(way: str) -> None:
    """`temperature` and `max_tokens` go before the agent's own, and `metadata` goes with the request."""
    provider = Remembering()
    session = Agent(provider, temperature=0.9, max_tokens=1).session()
    further: dict[str, Any] = {'schema': SCHEMA} if way == 'json' else {}
    for settings in (SETTINGS, {}):
        answer = await getattr(session, f'{way}_async')('x', **further, **settings)
        if way == 'stream':
            _ = [piece async for piece in answer]
    first, second = provider.requests
    assert (first.temperature, first.max_tokens, first.metadata) == (0.3, 64, {'user': 'asha'})
    assert (second.temperature, second.max_tokens, second.metadata) == (0.9, 1, {})


@pytest.mark.parametrize('way', ['run', 'run_async', 'stream', 'stream_async', 'json', 'json_async'])
async def test_settings_are_given_by_keyword(session_for_await: Session, way: str) -> None:
    """A second positional argument is refused."""
    with pytest.raises(TypeError, match='positional'):
        getattr(session_for_await, way)('x', 0.3)


@pytest.fixture
def session_for_await() -> Session:
    """A session whose model is never asked."""
    return Agent(ScriptedProvider()).session()


# -- the history -----------------------------------------------------------------------------------------------


def test_history(session: Session) -> None:
    """`history` returns all messages, oldest first."""
    user, answer = session.history()
    assert isinstance(user, UserMessage)
    assert isinstance(answer, AssistantMessage)
    assert (user.content, answer.text) == ('My name is Alice', 'Your name is Alice')


def test_clear(session: Session) -> None:
    """`clear` empties the history: the model no longer knows."""
    session.clear()
    assert session.history() == []
    assert session.run("What's my name?").text == 'Your name is unknown'


def test_fork(session: Session) -> None:
    """`fork` makes a new session with a copy of the history, with an id of its own or the one that is given."""
    fork = session.fork()
    assert fork.session_id != session.session_id
    assert fork.history() == session.history()
    assert fork.run("What's my name?").text == 'Your name is Alice'
    assert (len(fork.history()), len(session.history())) == (4, 2)
    assert session.fork(session_id='side').session_id == 'side'
    assert session.fork('side').system == session.system


def test_add_message(agent: Agent) -> None:
    """`add_message` adds a message to the history by hand."""
    session = agent.session()
    session.add_message(UserMessage('My name is Alice'))
    session.add_message(message=AssistantMessage('Hello'))
    assert session.history() == [UserMessage('My name is Alice'), AssistantMessage('Hello')]
    assert session.run("What's my name?").text == 'Your name is Alice'


def test_to_dict_and_from_dict(session: Session, agent: Agent) -> None:
    """`to_dict` serializes the state, and `from_dict` makes the session of it again, with the agent that is given."""
    data = session.to_dict()
    assert data.keys() >= {'session_id', 'system', 'messages'}
    restored = Session.from_dict(json.loads(json.dumps(data)), agent=agent)
    assert isinstance(restored, Session)
    assert (restored.session_id, restored.system) == (session.session_id, session.system)
    assert restored.history() == session.history()
    assert restored.to_dict() == data
    assert restored.run("What's my name?").text == 'Your name is Alice'
    empty = Session.from_dict(agent.session('e', 'own').to_dict(), agent)
    assert (empty.history(), empty.session_id, empty.system) == ([], 'e', 'own')


# -- of the third document -------------------------------------------------------------------------------------


def test_the_fields_of_a_record(session: Session) -> None:
    """An id that is text, a time in UTC, and a usage of three counts that begin at zero."""
    assert len(session.session_id) == 36
    assert session.created_at.endswith('Z')
    assert session.token_usage == {'prompt_tokens': 0, 'completion_tokens': 0, 'total_tokens': 0}


def test_update_usage(session: Session) -> None:
    """Each of the three counts is added; a missing one is zero, and others are not looked at."""
    session.update_usage({'prompt_tokens': 10, 'completion_tokens': 5, 'total_tokens': 15})
    session.update_usage({'prompt_tokens': 1, 'completion_tokens': None, 'cached': 'x'})  # type: ignore[dict-item]
    assert session.token_usage == {'prompt_tokens': 11, 'completion_tokens': 5, 'total_tokens': 15}
