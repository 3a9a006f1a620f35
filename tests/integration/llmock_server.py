"""A model API that nobody here wrote: `llmock`, which breaks on demand, and reports what its clients did wrong."""

import importlib.util
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from trading_agent.errors import BackendBusy, BackendDown
from trading_agent.messages import Message, UserMessage
from trading_agent.providers.anthropic import AnthropicProvider
from trading_agent.providers.openai_compatible import OpenAICompatibleProvider
from trading_agent.providers.provider import ModelRequest, ToolSpec
from trading_agent.turn_events import TextPiece, TurnEvent

if TYPE_CHECKING:
    from llmock.testing import LLMockServer

ApiProvider = AnthropicProvider | OpenAICompatibleProvider
Make = Callable[..., ApiProvider]

KEY = 'sk-test-4f9d2c7ab81e'
PRICE = ToolSpec(
    'price',
    'The last price of a share.',
    {'type': 'object', 'properties': {'symbol': {'type': 'string'}}, 'required': ['symbol']},
)
PROVIDERS = {'anthropic': AnthropicProvider, 'openai': OpenAICompatibleProvider}


def require(*packages: str) -> None:
    """Skips the test that needs packages which are not installed, or fails where everything is to be tried."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return
    reason = f'not installed: {", ".join(missing)}: no real SDK was tried'
    if os.environ.get('TRADING_AGENT_TEST_ALL'):
        pytest.fail(reason)
    pytest.skip(reason)


def asking(
    said: str | Sequence[Message] = 'What does Infosys cost?',
    *,
    tools: bool = False,
    **fields: Any,  # noqa: ANN401 - as ModelRequest takes them
) -> ModelRequest:
    """Returns a request that asks for the price of a share."""
    messages = [UserMessage(said)] if isinstance(said, str) else said
    return ModelRequest(model='', messages=messages, tools=[PRICE] if tools else (), **fields)


async def told(provider: ApiProvider, request: ModelRequest, into: list[TurnEvent] | None = None) -> list[TurnEvent]:
    """Returns what a provider yields; `into` has it also where it fails."""
    events = [] if into is None else into
    async with aclosing(provider.stream(request)) as stream:
        async for event in stream:
            events.append(event)
    return events


async def answered(provider: ApiProvider, request: ModelRequest, tries: int = 3) -> list[TurnEvent]:
    """Returns what a provider yields, asked again as a router would ask it."""
    for _ in range(tries - 1):
        try:
            return await told(provider, request)
        except (BackendBusy, BackendDown) as failure:
            await anyio.sleep(failure.retry_after or 0.01)
    return await told(provider, request)


def text_of(events: Sequence[TurnEvent]) -> str:
    """Returns the text of an answer."""
    return ''.join(event.text for event in events if isinstance(event, TextPiece))


class Mock:
    """The server, and its judgement.

    Attributes:
        kind: Whose API it speaks.
        state: Its own state.
    """

    def __init__(self, server: 'LLMockServer', kind: str) -> None:
        self.kind = kind
        self.state = server.state
        self.url = server.base_url(kind)

    def provider(self, model: str = 'some-model', **options: Any) -> ApiProvider:  # noqa: ANN401 - as it takes them
        """Returns a provider that asks it."""
        made: ApiProvider = PROVIDERS[self.kind](model, KEY, self.url, **options)
        return made

    def plan(self, *behaviours: Any) -> None:  # noqa: ANN401 - the server's own
        """Sets what becomes of the next requests."""
        self.state.scenarios.add(*behaviours)

    def pause(self, milliseconds: int) -> None:
        """Sets how long it waits between two pieces: only then does it notice that its client has left."""
        from llmock.chaos import StreamChaos

        self.state.stream_chaos = StreamChaos(chunk_delay_ms=milliseconds).validated()

    @property
    def chunks(self) -> int:
        """Into how many pieces the last answer was cut."""
        return int(self.state.journal.records(wait=2.0)[-1].chunks_sent)

    def require_no_mistakes(self, calls: int | None = None, *, beside: Collection[str] = ()) -> None:
        """Sees to it that the server found nothing wrong with its client, not even what it only warns of.

        Args:
            calls: How many requests there were, one that was tried again counting once; None for any number.
            beside: What it cannot know.
        """
        from llmock.verdict import judge

        verdict = judge(self.state.journal.records(wait=2.0))
        assert not {finding.code for finding in verdict.findings} - set(beside), verdict.render()
        assert len(verdict.calls) == calls if calls else verdict.calls, verdict.render()


@contextmanager
def running() -> Iterator['LLMockServer']:
    """Starts the server, on a free port of this machine."""
    require('anthropic', 'openai', 'llmock')
    from llmock.testing import LLMockServer

    with LLMockServer() as server:
        yield server


def mock_of(server: 'LLMockServer', kind: str) -> Mock:
    """Returns the server as one API, everything of before forgotten."""
    from llmock.ratelimit import LimitSettings

    server.state.reset()
    server.state.limiter.configure(LimitSettings())
    mock = Mock(server, kind)
    mock.pause(0)
    return mock
