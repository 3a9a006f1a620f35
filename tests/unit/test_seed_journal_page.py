"""The documented uses of the session manager, the stores and the file-backed persistence, line by line."""

import inspect
import json
from abc import ABC
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trading_agent.conversation import (
    Agent,
    AssistantMessage,
    SessionManager,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)
from trading_agent.conversation.stores import InMemoryStore, SessionStore, SQLiteStore
from trading_agent.errors import TradingAgentError
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.messages import Message


@pytest.mark.parametrize(
    ('function', 'parameters'),
    [
        (SessionManager.__init__, {'session_dir': '.agenix'}),
        (SessionManager.create_session, {'name': None}),
        (SessionManager.save_message, {'session_id': ..., 'message': ...}),
        (SessionManager.load_session, {'session_id': ...}),
        (SessionManager.list_sessions, {}),
        (SessionManager.delete_session, {'session_id': ...}),
        (SessionStore.save, {'session_id': ..., 'data': ...}),
        (SessionStore.load, {'session_id': ...}),
        (SessionStore.delete, {'session_id': ...}),
        (SessionStore.list_sessions, {}),
        (SessionStore.exists, {'session_id': ...}),
        (InMemoryStore.clear, {}),
        (SQLiteStore.__init__, {'db_path': 'agent_sessions.db'}),
        (SQLiteStore.clear, {}),
        (SQLiteStore.vacuum, {}),
    ],
    ids=lambda value: getattr(value, '__qualname__', ''),
)
def test_parameters(function: Callable[..., Any], parameters: dict[str, Any]) -> None:
    """Each method takes what it was documented to take, with the same defaults, by position and by name."""
    taken = {
        name: ... if parameter.default is parameter.empty else parameter.default
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    assert taken == parameters


def test_the_manager_keeps_a_conversation(tmp_path: Path) -> None:
    """Created, saved to, listed, loaded and deleted, as documented."""
    manager = SessionManager(session_dir=str(tmp_path / 'agenix'))
    session_id = manager.create_session(name='desk')
    assert session_id == 'desk'
    messages: list[Message] = [
        UserMessage(content='quote ABC', timestamp=1.0),
        AssistantMessage(
            content=[TextContent(text='one moment')],
            tool_calls=[ToolCall(id='1', name='quote', arguments={'symbol': 'ABC'})],
            model='m',
            usage=Usage(input_tokens=3, output_tokens=4),
            stop_reason='tool_use',
            timestamp=2.0,
        ),
        ToolResultMessage(tool_call_id='1', name='quote', content='101', is_error=False, timestamp=3.0),
    ]
    for message in messages:
        manager.save_message(session_id, message)
    assert manager.load_session(session_id) == messages
    (listed,) = manager.list_sessions()
    assert set(listed) == {'session_id', 'created_at', 'path'}
    entries = [json.loads(line) for line in Path(listed['path']).read_bytes().split(b'\n') if line]
    assert [entry['type'] for entry in entries] == ['session_header', 'message', 'message', 'message']
    assert entries[1]['message'] == {'role': 'user', 'content': 'quote ABC', 'timestamp': 1.0}
    manager.delete_session(session_id)
    with pytest.raises(FileNotFoundError, match='Session not found: desk'):
        manager.load_session(session_id)


@pytest.mark.parametrize('make', [lambda _: InMemoryStore(), lambda folder: SQLiteStore(folder / 'sessions.db')])
def test_the_stores(tmp_path: Path, make: Callable[[Path], SessionStore]) -> None:
    """`SessionStore` is abstract; save, load, delete, list, exists and clear do what was documented."""
    assert issubclass(SessionStore, ABC)
    with pytest.raises(TypeError):
        SessionStore()  # type: ignore[abstract] # that is the point
    store = make(tmp_path)
    store.save('session-123', {'messages': [], 'system': 'be brief'})
    assert store.load('session-123') == {'messages': [], 'system': 'be brief'}
    assert store.load('another') is None
    assert store.exists('session-123')
    assert store.list_sessions() == ['session-123']
    assert [store.delete('session-123'), store.delete('session-123')] == [True, False]
    store.save('a', {})
    assert isinstance(store, InMemoryStore | SQLiteStore)
    store.clear()
    assert store.list_sessions() == []


def test_token_usage_adds_up() -> None:
    """Missing or null counts are zero, and of a count that makes no sense nothing is half-added."""
    session = Agent().session()
    assert session.token_usage == {'prompt_tokens': 0, 'completion_tokens': 0, 'total_tokens': 0}
    session.update_usage({'prompt_tokens': 10, 'completion_tokens': 5, 'total_tokens': 15})
    session.update_usage({'prompt_tokens': 1, 'completion_tokens': None})
    session.update_usage({})
    expected = {'prompt_tokens': 11, 'completion_tokens': 5, 'total_tokens': 15}
    assert session.token_usage == expected
    with pytest.raises(TradingAgentError):
        session.update_usage({'prompt_tokens': 7, 'completion_tokens': -1, 'total_tokens': 7})
    assert session.token_usage == expected


def test_the_index_is_rebuilt_from_the_lines() -> None:
    """Purge and replay of one session has the name that it was documented under."""
    assert next(iter(list(inspect.signature(SqliteIndex.rebuild_sqlite_from_jsonl).parameters)[1:])) == 'session_id'
