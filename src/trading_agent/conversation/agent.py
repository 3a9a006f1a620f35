"""Who answers: a provider and a model, what stands above the conversation, and the tools it may call."""

import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from trading_agent.conversation.history import History
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.session import Session
from trading_agent.conversation.tools import Tool, named
from trading_agent.errors import InvalidInput
from trading_agent.messages import Message
from trading_agent.plug_in import imported
from trading_agent.providers.provider import Provider

MAX_ROUNDS = 20
"""How often a model is asked in one turn, its tools' results being told in between."""

_PROVIDERS = {'offline': 'trading_agent.providers.offline:OfflineProvider'}


class Agent:
    """What sessions are had with.

    Example:
        agent = Agent(provider='offline')
        session = agent.session()
        session.run('Never hold options overnight.')
        print(session.run('What about options?').text)

    Args:
        provider: A provider, or the name of one that is built in: `offline`.
        model: The provider's name of the model; empty for its own choice.
        system: What stands above every conversation, or None.
        tools: Async functions with typed parameters, or `Tool`s, that the model may call.
        temperature: How freely it answers, where a turn does not say; None for the provider's own choice.
        max_tokens: The longest answer in tokens, where a turn does not say; None for the provider's own choice.
        max_rounds: How often the model is asked in one turn before it is given up, from 1 on.

    Raises:
        InvalidInput: There is no such provider, or a tool cannot be one.
    """

    def __init__(
        self,
        provider: str | Provider = 'offline',
        model: str = '',
        system: str | None = None,
        tools: Sequence[Callable[..., Awaitable[Any]] | Tool] = (),
        *,
        temperature: float | None = None,
        max_tokens: int | None = None,
        max_rounds: int = MAX_ROUNDS,
    ) -> None:
        _require_provider(provider)
        if max_rounds < 1:
            raise InvalidInput(f'max_rounds is at least 1, not {max_rounds}')
        self._provider = provider
        self._tools = named(tools)
        self.model = model
        self.system = system
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.max_rounds = max_rounds

    @property
    def provider(self) -> Provider:
        """Who is asked; a built-in one is made when it is needed first."""
        if isinstance(self._provider, str):
            made: Provider = imported(_PROVIDERS[self._provider])()
            self._provider = made
        return self._provider

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What the model may call, by name."""
        return self._tools

    def session(
        self,
        session_id: str | None = None,
        system: str | None = None,
        messages: Iterable[Message] | History | None = None,
        *,
        journal: Journal | None = None,
    ) -> Session:
        """Returns a new session with this agent; see `Session`."""
        return Session(self, session_id, system, messages, journal=journal)


def _require_provider(provider: object) -> None:
    if isinstance(provider, str):
        if provider not in _PROVIDERS:
            near = difflib.get_close_matches(provider, _PROVIDERS, 1)
            hint = f'did you mean {near[0]!r}?' if near else f'one of {", ".join(_PROVIDERS)}, or a Provider'
            raise InvalidInput(f'there is no provider {provider!r}', hint)
    elif not callable(getattr(provider, 'stream', None)):
        raise InvalidInput(f'{provider!r} is no provider: it has no stream(request)')
