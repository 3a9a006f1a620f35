"""The SDKs below the providers: imported late, deaf to the environment, at home in any loop, good for a session."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from llmock_server import KEY, PROVIDERS, Mock, asking, mock_of, require, running, text_of, told
from raw_http import serving, stream

from trading_agent.conversation.agent import Agent
from trading_agent.conversation.session import Session
from trading_agent.errors import BackendDown, ConfigurationError
from trading_agent.messages import AssistantMessage, ToolResultMessage

if TYPE_CHECKING:
    from llmock.testing import LLMockServer

ANSWER: list[object] = [
    {'type': 'message_start', 'choices': [{'index': 0, 'delta': {'content': 'Well'}, 'finish_reason': 'stop'}]},
    {'type': 'content_block_delta', 'index': 0, 'delta': {'type': 'text_delta', 'text': 'Well'}, 'choices': []},
    {'type': 'message_delta', 'delta': {'stop_reason': 'end_turn'}, 'choices': []},
    {'type': 'message_stop', 'choices': []},
]
"""An answer that both APIs understand."""

EVIL_HEADERS = 'X-Evil: evil\nauthorization: evil\nX-Api-Key: evil'
PROXIES = ('HTTP_PROXY', 'http_proxy', 'HTTPS_PROXY', 'https_proxy', 'ALL_PROXY', 'all_proxy')
AMBIENT = {
    'ANTHROPIC_BASE_URL': 'http://127.0.0.1:9/evil',
    'ANTHROPIC_API_KEY': 'evil',
    'ANTHROPIC_AUTH_TOKEN': 'evil',
    'ANTHROPIC_PROFILE': 'evil',
    'ANTHROPIC_CUSTOM_HEADERS': EVIL_HEADERS,
    'OPENAI_BASE_URL': 'http://127.0.0.1:9/evil',
    'OPENAI_API_KEY': 'evil',
    'OPENAI_ADMIN_KEY': 'evil',
    'OPENAI_ORG_ID': 'evil',
    'OPENAI_PROJECT_ID': 'evil',
    'OPENAI_CUSTOM_HEADERS': EVIL_HEADERS,
    **dict.fromkeys(PROXIES, 'http://127.0.0.1:9'),
}


@pytest.fixture(scope='module')
def server() -> Iterator['LLMockServer']:
    """One llmock for all of these tests."""
    with running() as started:
        yield started


@pytest.fixture(params=['anthropic', 'openai'])
def kind(request: pytest.FixtureRequest) -> str:
    """Whose API."""
    require('anthropic', 'openai')
    return str(request.param)


@pytest.fixture
def mock(server: 'LLMockServer', kind: str) -> Mock:
    """The llmock as one of the APIs."""
    return mock_of(server, kind)


@pytest.mark.parametrize('key', [KEY, ''])
async def test_the_environment_changes_nothing(kind: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one of the variables that an SDK or its HTTP library reads changes whom a provider asks, or with what key."""
    for name, value in AMBIENT.items():
        monkeypatch.setenv(name, value)
    async with serving(stream(*ANSWER)) as raw:
        provider = PROVIDERS[kind]('m', key, raw.url)
        assert text_of(await told(provider, asking())) == 'Well'
        await provider.aclose()
    headers = raw.received[0].headers
    assert headers.get('authorization') == (f'Bearer {key}' if key else None)
    assert 'evil' not in str(headers)


async def test_the_default_is_the_apis_own_server(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a base_url the API's own server is asked, whatever the environment says."""
    for name, value in AMBIENT.items():
        monkeypatch.setenv(name, value)
    asked: list[str] = []

    def unknown(host: str | bytes, *_: object, **__: object) -> None:
        asked.append(host if isinstance(host, str) else host.decode())
        raise OSError('nobody looks up names here')

    monkeypatch.setattr('socket.getaddrinfo', unknown)
    provider = PROVIDERS[kind]('m', KEY)
    with pytest.raises(BackendDown, match=f'^api.{kind}.com cannot be reached'):
        await told(provider, asking())
    await provider.aclose()
    assert set(asked) == {f'api.{kind}.com'}


async def test_a_proxy_that_is_configured(kind: str) -> None:
    """A proxy is asked where it is configured."""
    async with serving(stream(*ANSWER)) as raw:
        provider = PROVIDERS[kind]('m', KEY, 'http://models.example/v1', proxy=raw.url)
        assert text_of(await told(provider, asking())) == 'Well'
        await provider.aclose()
    assert raw.received[0].line.startswith('POST http://models.example/v1/')


def test_late_imports_and_a_silent_log() -> None:
    """An SDK is imported with the first request, and logs no request even where a variable of its own asks for it."""
    require('anthropic', 'openai', 'llmock')
    program = """
import asyncio, sys
from llmock_server import PROVIDERS, KEY, asking, running, told
async def main(server):
    for kind, made in PROVIDERS.items():
        provider = made('m', KEY, server.base_url(kind))
        assert kind not in sys.modules, kind
        await told(provider, asking('a very private question'))
        assert kind in sys.modules
        await provider.aclose()
with running() as server:
    asyncio.run(main(server))
"""
    environ = {**os.environ, 'ANTHROPIC_LOG': 'debug', 'OPENAI_LOG': 'debug', 'PYTHONPATH': os.pathsep.join(sys.path)}
    command = [sys.executable, '-W', 'error', '-c', program]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


async def test_loggers_are_silenced(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """What a request says is in no log record, at any level."""
    caplog.set_level(logging.DEBUG)
    async with serving(stream(*ANSWER)) as raw:
        provider = PROVIDERS[kind]('m', KEY, raw.url)
        await told(provider, asking('a very private question'))
        await provider.aclose()
    assert 'private' not in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize('name', ['anthropic', 'openai'])
def test_an_sdk_that_is_not_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider whose SDK is missing cannot be made, and says which extra brings it."""
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=rf"the package '{name}' is not installed .*trading-agent\[{name}\]"):
        PROVIDERS[name]('m', KEY)


@pytest.mark.parametrize('key', ['sk-one\nsk-two', 'sk one', 'sk-ö', 'sk-\x00'])
def test_keys_that_are_none(kind: str, key: str) -> None:
    """What cannot be sent as a key is refused at once, and not shown."""
    with pytest.raises(ConfigurationError) as raised:
        PROVIDERS[kind]('m', key)
    assert key not in str(raised.value)
    assert 'api_key_env' in str(raised.value)
    assert PROVIDERS[kind]('m', f' {KEY}\n')


@pytest.mark.parametrize('url', ['localhost:8080', 'ftp://host/', 'http://', 'http://host:99999', '/v1'])
def test_urls_that_are_none(kind: str, url: str) -> None:
    """What is no URL of a server is refused at once."""
    with pytest.raises(ConfigurationError, match='base_url'):
        PROVIDERS[kind]('m', KEY, url)


async def price(symbol: str) -> str:
    """Returns the last price of a share.

    Args:
        symbol: The share.
    """
    return f'{symbol} costs 1500'


async def test_a_session_with_a_tool(mock: Mock) -> None:
    """A session asks, has the tool run that the model wants, and is answered; the API sees nothing wrong with it."""
    provider = mock.provider()
    session = Agent(provider, system='You trade.', tools=[price]).session()
    assert (await session.run_async('What does Infosys cost?')).text
    streamed = await session.stream_async('And now?')
    assert ''.join([piece async for piece in streamed])
    await provider.aclose()
    called = [message for message in session.messages if isinstance(message, AssistantMessage) and message.calls]
    results = [message for message in session.messages if isinstance(message, ToolResultMessage)]
    assert [len(called), len(results)] == [2, 2]
    assert all(result.content.endswith('costs 1500') and not result.is_error for result in results)
    assert session.token_usage['completion_tokens'] > 0
    mock.require_no_mistakes(4)


def test_sessions_without_an_event_loop(mock: Mock) -> None:
    """One provider serves calls that block, each with an event loop of its own, and leaves no connection behind."""
    provider = mock.provider()
    session = Session(Agent(provider, tools=[price]))
    for _ in range(2):
        assert session.run('What does Infosys cost?').text
    assert ''.join(session.stream('And now?'))
    assert provider._requests._clients._kept == {}
    mock.require_no_mistakes(6)


async def test_structured_output(mock: Mock) -> None:
    """A session is given what it asked for by a schema."""
    from llmock.scenarios import Reply

    mock.plan(Reply(text='no JSON'), Reply(text='{"price": 1500}'))
    provider = mock.provider()
    schema = {'type': 'object', 'properties': {'price': {'type': 'integer'}}, 'required': ['price']}
    response = await Session(Agent(provider)).json_async('What does Infosys cost?', schema=schema)
    await provider.aclose()
    assert response.parsed == {'price': 1500}
    mock.require_no_mistakes(2)
