"""The `anthropic` provider: Anthropic's Messages API, and whatever else speaks it."""

from collections.abc import AsyncGenerator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from trading_agent.errors import BackendBusy
from trading_agent.messages import Usage
from trading_agent.providers.answer import Answer
from trading_agent.providers.anthropic_request import CacheTtl, is_closed, params_of
from trading_agent.providers.http_failures import HttpFailures
from trading_agent.providers.outgoing import texts_of
from trading_agent.providers.provider import ModelRequest
from trading_agent.providers.sdk_clients import own_headers, require_package, usable_key, usable_url
from trading_agent.providers.sdk_requests import SdkRequests
from trading_agent.turn_events import TurnEvent

if TYPE_CHECKING:
    import anthropic

BASE_URL = 'https://api.anthropic.com'
MAX_TOKENS = 8192


class AnthropicProvider:
    """Asks one model by Anthropic's Messages API, always streaming.

    What a growing conversation repeats is read from the API's cache. The SDK is imported with the first request. It
    retries nothing; several requests may run at once.

    Args:
        model: The model, where a request names none.
        api_key: The key; empty for a server that wants none.
        base_url: Where the API is, without `/v1`; None for Anthropic's own.
        max_tokens: The longest answer, in tokens, where a request does not say.
        cache_ttl: How long a conversation is kept in the cache from its last use on. An hour costs more to write.
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
        max_tokens: int = MAX_TOKENS,
        *,
        cache_ttl: CacheTtl = '5m',
        read_timeout: float = 300.0,
        proxy: str | None = None,
    ) -> None:
        require_package('anthropic')
        self._model = model
        self._max_tokens = max_tokens
        self._cache_ttl = cache_ttl
        key, url = usable_key(api_key), usable_url(base_url or BASE_URL)

        def make() -> 'anthropic.AsyncAnthropic':
            import anthropic

            client = anthropic.AsyncAnthropic(
                api_key=key,
                base_url=url,
                max_retries=0,
                open_telemetry=False,
                http_client=anthropic.DefaultAsyncHttpxClient(
                    timeout=anthropic.Timeout(read_timeout, connect=10.0),
                    trust_env=False,
                    follow_redirects=False,
                    proxy=proxy,
                ),
            )
            _ = client.messages  # imports the rest of the SDK, here and not in the loop
            return client

        def send(client: 'anthropic.AsyncAnthropic', params: dict[str, Any]) -> Awaitable[Any]:
            from anthropic import Omit

            headers = own_headers(key, 'ANTHROPIC_CUSTOM_HEADERS', Omit())
            return client.messages.create(stream=True, extra_headers=headers, **params)

        self._requests = SdkRequests(
            make,
            send,
            HttpFailures(url, model, [key]),
            {'output_config': None},
            'output_config',
        )

    def stream(self, request: ModelRequest) -> AsyncGenerator[TurnEvent, None]:
        """Sends one request and yields what comes of it, `Stopped` last; see `Provider`.

        Of `metadata` the API is told `user_id` alone. A schema is told in words too, for servers that know no other
        way; the answer may still not fulfil it.
        """
        return self._requests.events(lambda: self._params(request), _Reading(), texts_of(request))

    async def aclose(self) -> None:
        """Closes the connections. A request that is running fails; a later one opens new ones."""
        await self._requests.aclose()

    def _params(self, request: ModelRequest) -> dict[str, Any]:
        params = params_of(request, self._model, self._max_tokens, self._cache_ttl)
        if request.schema is not None and is_closed(request.schema):
            from anthropic import transform_schema

            try:
                schema = transform_schema(request.schema)
            except (ValueError, TypeError, AttributeError, AssertionError):
                return params  # the words must do
            params['output_config'] = {'format': {'type': 'json_schema', 'schema': schema}}
        return params


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    model: str | None = None
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    text: str | None = None


class _Delta(msgspec.Struct):
    text: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    """An event of the stream, as far as it is read here."""

    type: str
    index: int | None = None
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class _Reading:
    """Reads one answer. What the model thinks to itself is left out."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._model = ''
        self._reason = ''
        self._ended = False
        self._calls: dict[int | None, tuple[_Block, list[str]]] = {}

    def take(self, piece: object) -> Iterator[TurnEvent]:
        event = msgspec.convert(piece, _Event, from_attributes=True)
        if event.type == 'message_start' and event.message is not None:
            self._model = event.message.model or ''
            yield from self._used(event.message.usage)
        elif event.type == 'content_block_start' and event.content_block is not None:
            if event.content_block.type == 'tool_use':
                self._calls[event.index] = event.content_block, []
            elif event.content_block.type == 'text' and event.content_block.text:
                yield from self._answer.text(event.content_block.text)
        elif event.type == 'content_block_delta' and event.delta is not None:
            if event.delta.partial_json and event.index in self._calls:
                self._calls[event.index][1].append(event.delta.partial_json)
            elif event.delta.text:
                yield from self._answer.text(event.delta.text)
        elif event.type == 'content_block_stop' and event.index in self._calls:
            block, written = self._calls.pop(event.index)
            given = ''.join(written) or (block.input if isinstance(block.input, dict) else '')
            yield self._answer.call(block.id or '', block.name or '', given)
        elif event.type == 'message_delta':
            self._reason = (event.delta and event.delta.stop_reason) or self._reason
            yield from self._used(event.usage)
        elif event.type == 'message_stop':
            self._ended = True

    def end(self) -> Iterator[TurnEvent]:
        if not self._ended or not self._reason or self._calls:
            raise BackendBusy('the stream was cut', 'ask again')
        yield from self._answer.stopped(self._reason, self._model)

    def _used(self, usage: _Usage | None) -> Iterator[TurnEvent]:
        if usage is not None:
            counts = (
                usage.input_tokens,
                usage.output_tokens,
                usage.cache_read_input_tokens,
                usage.cache_creation_input_tokens,
            )
            yield from self._answer.used(Usage(*(count or 0 for count in counts)))
