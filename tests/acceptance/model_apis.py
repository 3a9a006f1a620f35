"""Two model APIs on loopback, Anthropic's and OpenAI's: they answer what a test says, and fail how and when it says."""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

Moment = Literal['first', 'middle', 'last']
"""Before anything of the answer, in the middle of it, after all of it but before its end."""


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        api: `anthropic` or `openai`.
        headers: Its headers, with small letters.
        body: What was sent.
    """

    api: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def system(self) -> str:
        """What stands above the conversation."""
        if self.api == 'anthropic':
            return _text(self.body.get('system', ''))
        return '\n\n'.join(_text(each['content']) for each in self.body['messages'] if each['role'] == 'system')

    @property
    def said(self) -> list[str]:
        """The conversation, oldest first; the user began."""
        return [_text(each['content']) for each in self.body['messages'] if each['role'] != 'system']

    @property
    def wants_json(self) -> bool:
        """Whether the answer is to be an object of a schema."""
        return 'fulfils this JSON Schema' in self.system


@dataclass(frozen=True)
class Fault:
    """How a request fails.

    Attributes:
        kind: `status`, `hang_up`, `reset`, `end` (the stream ends as if it were whole), `half` (in the middle of a
            chunk), `error` (an event of the stream says so), `garbage`, `page` (a web page), `stall` (silence).
        moment: When.
        status: The status, of `status`.
        retry_after: After how many seconds to ask again, where the server says so.
        message: What it says.
    """

    kind: str
    moment: Moment = 'first'
    status: int = 500
    retry_after: float | None = None
    message: str = 'no'


Answering = Callable[[Asked], str | Fault]


@dataclass
class ModelApis:
    """The server while it runs.

    Attributes:
        answering: Says what becomes of a request.
        asked: The requests, the oldest first.
        broken: What failed in the server itself.
    """

    answering: Answering
    asked: list[Asked] = field(default_factory=list)
    broken: list[Exception] = field(default_factory=list)
    _port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    def url(self, api: str) -> str:
        """Returns the base URL of an API."""
        return f'http://127.0.0.1:{self._port}' + ('/v1' if api == 'openai' else '')

    def listen(self) -> None:
        """Lets connections be made, on the same port as before."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def refuse(self) -> None:
        """Lets connections be refused until `listen`."""
        asyncio.run_coroutine_threadsafe(self._refuse(), self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, '127.0.0.1', self._port, limit=1 << 26)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Ends all that is being answered."""
        await self._refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(reader, writer)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.broken.append(error)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b'\r\n\r\n')).decode().split('\r\n')
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(':') for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get('content-length', 0)))
        asked = Asked('anthropic' if '/messages' in head[0] else 'openai', headers, json.loads(body))
        self.asked.append(asked)
        answer = self.answering(asked)
        fault = answer if isinstance(answer, Fault) else None
        if fault is not None and fault.moment == 'first' and fault.kind not in ('end', 'half', 'error'):
            await _fail(reader, writer, fault, asked.api)
            return
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n')
        writer.write(b'connection: close\r\n\r\n')
        text = answer if isinstance(answer, str) else 'the beginning of an answer that does not count'
        begin, pieces, end = (_anthropic if asked.api == 'anthropic' else _openai)(text)
        said = {'first': 0, 'middle': len(pieces) // 2, 'last': len(pieces)}[fault.moment if fault else 'last']
        for event in [*begin, *pieces[:said], *([] if fault else end)]:
            await _chunk(writer, event)
        if fault is not None:
            await _fail(reader, writer, fault, asked.api)
        elif asked.api == 'openai':
            await _chunk(writer, 'data: [DONE]\n\n')
        if fault is None or fault.kind in ('end', 'error'):
            writer.write(b'0\r\n\r\n')
        await writer.drain()


@contextmanager
def model_apis(answering: Answering) -> Iterator[ModelApis]:
    """Runs the server in a thread of its own, so that it answers also while a test waits for something."""
    apis = ModelApis(answering)
    thread = threading.Thread(target=apis._loop.run_forever, daemon=True)
    thread.start()
    apis.listen()
    try:
        yield apis
    finally:
        asyncio.run_coroutine_threadsafe(apis.close(), apis._loop).result(10)
        apis._loop.call_soon_threadsafe(apis._loop.stop)
        thread.join(30)
        apis._loop.close()
    assert apis.broken == []


async def _fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault, api: str) -> None:
    match fault.kind:
        case 'status':
            retry = '' if fault.retry_after is None else f'retry-after: {fault.retry_after}\r\n'
            _whole(writer, f'{fault.status} No', 'application/json', json.dumps(_error(api, fault)), retry)
        case 'page':
            _whole(writer, '200 OK', 'text/html', '<html>Sign in to this network</html>')
        case 'error':
            await _chunk(writer, _event('error' if api == 'anthropic' else None, _error(api, fault)))
        case 'garbage':
            writer.write(b'\x00\xff garbage\r\n\r\n')
        case 'half':
            writer.write(b'400\r\ndata: {"half')
        case 'reset':
            own: socket.socket = writer.get_extra_info('socket')
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            writer.transport.abort()
        case 'stall':
            await writer.drain()
            await reader.read()  # until the client leaves
    if fault.kind != 'reset':
        await writer.drain()


def _error(api: str, fault: Fault) -> dict[str, Any]:
    kind = {429: 'rate_limit_error', 529: 'overloaded_error', 401: 'authentication_error'}.get(
        fault.status, 'api_error'
    )
    inner = {'type': 'invalid_request_error' if fault.status == 400 else kind, 'message': fault.message}
    return {'type': 'error', 'error': inner} if api == 'anthropic' else {'error': inner}


def _whole(writer: asyncio.StreamWriter, status: str, kind: str, text: str, more: str = '') -> None:
    data = text.encode()
    head = (
        f'HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\nconnection: close\r\n{more}\r\n'
    )
    writer.write(head.encode() + data)


async def _chunk(writer: asyncio.StreamWriter, event: str) -> None:
    data = event.encode()
    writer.write(f'{len(data):x}\r\n'.encode() + data + b'\r\n')
    await writer.drain()


def _event(kind: str | None, fields: dict[str, Any]) -> str:
    name = f'event: {kind}\n' if kind else ''
    return f'{name}data: {json.dumps(fields)}\n\n'


def _cut(text: str) -> list[str]:
    size = max(1, len(text) // 4)
    return [text[start : start + size] for start in range(0, len(text), size)]


def _anthropic(text: str) -> tuple[list[str], list[str], list[str]]:
    """Returns an answer as events: its beginning, its pieces, its end."""

    def event(kind: str, **fields: Any) -> str:  # noqa: ANN401 - as JSON
        return _event(kind, {'type': kind, **fields})

    message = {'id': 'msg_1', 'type': 'message', 'role': 'assistant', 'content': [], 'model': 'claude-mock'}
    begin = [
        event('message_start', message={**message, 'usage': {'input_tokens': 100, 'output_tokens': 1}}),
        event('content_block_start', index=0, content_block={'type': 'text', 'text': ''}),
    ]
    pieces = [
        event('content_block_delta', index=0, delta={'type': 'text_delta', 'text': piece}) for piece in _cut(text)
    ]
    stop = event('message_delta', delta={'stop_reason': 'end_turn'}, usage={'output_tokens': 9})
    return begin, pieces, [event('content_block_stop', index=0), stop, event('message_stop')]


def _openai(text: str) -> tuple[list[str], list[str], list[str]]:
    """Returns an answer as events: its beginning, its pieces, its end."""

    def event(delta: dict[str, Any] | None, reason: str | None = None, **fields: Any) -> str:  # noqa: ANN401 - as JSON
        choices = [] if delta is None else [{'index': 0, 'delta': delta, 'finish_reason': reason}]
        return _event(
            None, {'id': 'c1', 'object': 'chat.completion.chunk', 'model': 'gpt-mock', 'choices': choices} | fields
        )

    pieces = [event({'content': piece}) for piece in _cut(text)]
    usage = {'prompt_tokens': 100, 'completion_tokens': 9}
    return [event({'role': 'assistant'})], pieces, [event({}, 'stop'), event(None, usage=usage)]


def _text(content: object) -> str:
    if isinstance(content, list):
        return '\n\n'.join(str(part.get('text', '')) for part in content)
    return str(content)
