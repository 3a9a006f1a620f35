"""Conversations, message by message: the journal, sessions with a model, and where they are stored.

Example:
    from trading_agent.conversation import Agent

    session = Agent(provider='offline').session()
    print(session.run('Never hold options overnight.').text)
"""

from typing import TYPE_CHECKING

from trading_agent.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage, Usage, UserMessage

if TYPE_CHECKING:
    from trading_agent.conversation.agent import Agent
    from trading_agent.conversation.journal import SessionManager
    from trading_agent.conversation.responses import AgentResponse, AsyncStreamResponse, StreamResponse
    from trading_agent.conversation.session import Session
    from trading_agent.conversation.tools import Tool

__all__ = [
    'Agent',
    'AgentResponse',
    'AssistantMessage',
    'AsyncStreamResponse',
    'Session',
    'SessionManager',
    'StreamResponse',
    'TextContent',
    'Tool',
    'ToolCall',
    'ToolResultMessage',
    'Usage',
    'UserMessage',
]

_HOMES = {
    'Agent': 'agent',
    'AgentResponse': 'responses',
    'AsyncStreamResponse': 'responses',
    'Session': 'session',
    'SessionManager': 'journal',
    'StreamResponse': 'responses',
    'Tool': 'tools',
}


def __getattr__(name: str) -> object:
    """Imports what has its module elsewhere when it is asked for first: who wants a store needs no event loop."""
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from importlib import import_module

    return getattr(import_module(f'{__name__}.{_HOMES[name]}'), name)


def __dir__() -> list[str]:
    return __all__
