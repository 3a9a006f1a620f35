"""The `openai_compatible` provider: OpenAI's Chat Completions API, and the many servers that speak it."""

from collections.abc import AsyncGenerator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from trading_agent.errors import BackendBusy, TurnRefused
from trading_agent.messages import Usage
from trading_agent.providers.answer import Answer
from trading_agent.providers.http_failures import HttpFailures
from trading_agent.providers.openai_request import params_of
from trading_agent.providers.outgoing import texts_of
from trading_agent.providers.provider import ModelRequest
from trading_agent.providers.sdk_clients import own_headers, require_package, usable_key, usable_url
from trading_agent.providers.sdk_requests import SdkRequests
from trading_agent.turn_events import TurnEvent

if TYPE_CHECKING:
    import openai

BASE_URL = 'https://api.openai.com/v1'

_REASONS = {
    'stop': 'end_turn',
    'length': 'max_tokens',
    'tool_calls': 'tool_use',
    'function_call': 'tool_use',
    'content_filter': 'refusal',
}


class OpenAICompatibleProvider:
    """Asks one model by the Chat Completions API, always streaming: OpenAI, vLLM, llama.cpp, Ollama and others.

    The SDK is imported with the first request. It retries nothing; several requests may run at once.

    Args:
        model: The model, where a request names none.
        api_key: The key; empty for a server that wants none.
        base_url: Where the API is, mostly with `/v1`; None for OpenAI's own.
        max_tokens: The longest answer, in tokens, where a request does not say; None for the server's own limit.
        read_timeout: The longest silence of the server, in seconds.
        proxy: The URL of a proxy; the environment is not asked for one.

    Raises:
        ConfigurationError: The SDK is not installed, or the key or the URL cannot be one.
    """

    def __init__(
        self,
        model: str,
        api_key: str,
        base_url: str | None = None,
        max_tokens: int | None = None,
        *,
        read_timeout: float = 300.0,
        proxy: str | None = None,
    ) -> None:
        require_package('openai')
        self._model = model
        self._max_tokens = max_tokens
        # OpenAI's newer models refuse the one name, most other servers do not know the other.
        self._limit = 'max_tokens' if base_url else 'max_completion_tokens'
        key, url = usable_key(api_key), usable_url(base_url or BASE_URL)

        def make() -> 'openai.AsyncOpenAI':
            import openai

            client = openai.AsyncOpenAI(
                api_key=key or 'none',
                base_url=url,
                max_retries=0,
                http_client=openai.DefaultAsyncHttpx2Client(
                    timeout=openai.Timeout(read_timeout, connect=10.0),
                    trust_env=False,
                    follow_redirects=False,
                    proxy=proxy,
                ),
            )
            # What the environment says of these, the constructor takes for its own.
            client.organization = client.project = client.admin_api_key = None
            _ = client.chat.completions  # imports the rest of the SDK, here and not in the loop
            return client

        def send(client: 'openai.AsyncOpenAI', params: dict[str, Any]) -> Awaitable[Any]:
            from openai import Omit

            headers = own_headers(key, 'OPENAI_CUSTOM_HEADERS', Omit())
            return client.chat.completions.create(stream=True, extra_headers=headers, **params)

        self._requests = SdkRequests(
            make,
            send,
            HttpFailures(url, model, [key]),
            {
                'response_format': None,
                'stream_options': None,
                'max_completion_tokens': 'max_tokens',
                'max_tokens': 'max_completion_tokens',
            },
            'response_format',
        )

    def stream(self, request: ModelRequest) -> AsyncGenerator[TurnEvent, None]:
        """Sends one request and yields what comes of it, `Stopped` last; see `Provider`.

        Of `metadata` the API is told `user_id` alone. A schema is told in words too, for servers that know no other
        way; the answer may still not fulfil it.
        """
        return self._requests.events(
            lambda: params_of(request, self._model, self._max_tokens, self._limit), _Reading(), texts_of(request)
        )

    async def aclose(self) -> None:
        """Closes the connections. A request that is running fails; a later one opens new ones."""
        await self._requests.aclose()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class _Delta(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """A piece of the stream, as far as it is read here."""

    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class _Written(msgspec.Struct):
    """A tool call while it comes."""

    index: int | None
    id: str
    name: str = ''
    text: str = ''
    table: dict[str, Any] | None = None


class _Reading:
    """Reads one answer. What the model thinks to itself is left out."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._model = ''
        self._reason = ''
        self._refusal = ''
        self._calls: list[_Written] = []

    def take(self, piece: object) -> Iterator[TurnEvent]:
        chunk = msgspec.convert(piece, _Chunk, from_attributes=True)
        self._model = chunk.model or self._model
        for choice in chunk.choices or []:
            if choice.index:
                continue  # only one answer was asked for
            delta = choice.delta or _Delta()
            yield from self._text(delta.content)
            self._refusal += delta.refusal or ''
            for call in delta.tool_calls or []:
                self._write(call)
            if choice.finish_reason and not self._reason:
                self._reason = choice.finish_reason
                calls, self._calls = self._calls, []
                for written in calls:
                    given = written.text if written.table is None else written.table
                    yield self._answer.call(written.id, written.name, given)
        if chunk.usage is not None:
            yield from self._answer.used(_used(chunk.usage))

    def end(self) -> Iterator[TurnEvent]:
        if not self._reason:
            raise BackendBusy('the stream was cut', 'ask again')
        if self._answer.is_empty and self._refusal:
            raise TurnRefused('the model refused to answer', 'say it in other words')
        yield from self._answer.stopped(_REASONS.get(self._reason, self._reason), self._model)

    def _text(self, content: str | list[_Part] | None) -> Iterator[TurnEvent]:
        if isinstance(content, list):
            content = ''.join(part.text or '' for part in content if part.type == 'text')
        if content:
            yield from self._answer.text(content)

    def _write(self, call: _Call) -> None:
        """Adds a piece of a call. A new one has another index, or, for servers that count none, another id."""
        last = self._calls[-1] if self._calls else None
        known = next((written for written in reversed(self._calls) if written.index == call.index), last)
        if known is None or call.index not in (None, known.index) or (call.id and known.id and call.id != known.id):
            known = _Written(call.index, call.id or '')
            self._calls.append(known)
        known.id = known.id or call.id or ''
        function = call.function or _Function()
        known.name = known.name or function.name or ''
        if isinstance(function.arguments, str):
            known.text += function.arguments
        elif isinstance(function.arguments, dict):
            known.table = function.arguments


def _used(usage: _Usage) -> Usage:
    """Returns a count in which what a cache had is not counted as read anew."""
    details = usage.prompt_tokens_details or _Details()
    read, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    prompt = usage.prompt_tokens or 0
    return Usage(max(0, prompt - read - written), usage.completion_tokens or 0, read, written)
