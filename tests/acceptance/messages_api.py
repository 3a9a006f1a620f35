"""A small Messages API of Anthropic on loopback, in the test's own event loop: it answers, and fails on demand.

A word such as `(529)` in the last message says how a request ends. Each answer names the messages that were sent.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

ERRORS = {
    '(429)': (429, 'rate_limit_error', 'Number of requests has exceeded your rate limit'),
    '(529)': (529, 'overloaded_error', 'Overloaded'),
    '(500)': (500, 'api_error', 'Internal server error'),
    '(401)': (401, 'authentication_error', 'invalid x-api-key'),
    '(404)': (404, 'not_found_error', 'model: claude-nothing'),
    '(too long)': (400, 'invalid_request_error', 'prompt is too long: 210000 tokens > 200000 maximum'),
}
USAGE = {'input_tokens': 11, 'cache_creation_input_tokens': 5, 'cache_read_input_tokens': 3, 'output_tokens': 1}


class Request:
    """One request.

    Attributes:
        path: Its path.
        headers: Its headers, with small letters.
        body: What was sent.
    """

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def system(self) -> str:
        """What stands above the conversation."""
        return '\n'.join(part['text'] for part in self.body.get('system', []))

    @property
    def tools(self) -> list[str]:
        """The tools that the model may call."""
        return [tool['name'] for tool in self.body.get('tools', [])]

    def said(self) -> list[str]:
        """Returns the conversation: what the user and the model said, in their order."""
        return [_text(each) for each in self.body['messages'] if each['role'] in ('user', 'assistant')]


class MessagesApi:
    """The API while it runs.

    Attributes:
        url: Its address.
        requests: The requests for an answer, the oldest first.
        others: The paths of all other requests.
        hanging: How many answers have stopped in the middle so far.
    """

    def __init__(self, port: int) -> None:
        self.url = f'http://127.0.0.1:{port}'
        self.requests: list[Request] = []
        self.others: list[str] = []
        self.hanging = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        while line := await reader.readline():
            headers = {}
            while (header := (await reader.readline()).decode().strip()) != '':
                name, _, value = header.partition(':')
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get('content-length', 0)))
            path = line.decode().split()[1]
            if path.partition('?')[0] == '/v1/messages':
                self.requests.append(Request(path, headers, json.loads(body)))
                await self._answer(writer, self.requests[-1])
            else:
                self.others.append(path)
                _whole(writer, 404, {})
            await writer.drain()

    async def _answer(self, writer: asyncio.StreamWriter, request: Request) -> None:
        told = request.said()[-1]
        for word, (status, kind, message) in ERRORS.items():
            if word in told:
                _whole(writer, status, {'type': 'error', 'error': {'type': kind, 'message': message}})
                return
        blocks, stop = _blocks(request, told)
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n')
        begun = {'id': f'msg_{len(self.requests)}', 'type': 'message', 'role': 'assistant', 'content': []}
        _event(writer, 'message_start', message={**begun, 'model': request.body['model'], 'usage': USAGE})
        for index, block in enumerate(blocks):
            empty = {**block, 'text': ''} if 'text' in block else {**block, 'input': {}}
            _event(writer, 'content_block_start', index=index, content_block=empty)
            for number, delta in enumerate(_deltas(block)):
                if number == 1 and '(hang)' in told:
                    await writer.drain()
                    self.hanging += 1
                    await anyio.sleep_forever()
                _event(writer, 'content_block_delta', index=index, delta=delta)
            _event(writer, 'content_block_stop', index=index)
        _event(writer, 'message_delta', delta={'stop_reason': stop, 'stop_sequence': None}, usage={'output_tokens': 9})
        _event(writer, 'message_stop')
        writer.write(b'0\r\n\r\n')


@asynccontextmanager
async def messages_api() -> AsyncIterator[MessagesApi]:
    """Runs the API on a free port."""
    served: list[asyncio.Task[None]] = []
    api: MessagesApi | None = None

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert api is not None
        served.append(task)
        with suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            await api.serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, '127.0.0.1', 0, limit=1 << 26)
    api = MessagesApi(server.sockets[0].getsockname()[1])
    try:
        yield api
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


def _blocks(request: Request, told: str) -> tuple[list[dict[str, Any]], str]:
    """Returns the parts of an answer, and why it stops."""
    if 'StructuredOutput' in request.tools and 'tool_result' not in json.dumps(request.body['messages'][-1]):
        return [_call('StructuredOutput', summary='it was quiet')], 'tool_use'
    for word, tool, given in (
        ('(env)', 'Bash', {'command': 'env; pwd', 'description': 'x'}),
        ('(wait)', 'Bash', {'command': 'tail -f /dev/null', 'description': 'x'}),
        ('(read)', 'Read', {'file_path': '/etc/hostname'}),
    ):
        if word in told and tool in request.tools:
            return [{'type': 'text', 'text': 'Let me look.'}, _call(tool, **given)], 'tool_use'
    said = ' | '.join(text.rpartition('\n')[2] for text in request.said()[::2])
    return [{'type': 'text', 'text': f'I know: {said}'}], 'refusal' if '(refuse)' in told else 'end_turn'


def _call(name: str, **given: str) -> dict[str, Any]:
    return {'type': 'tool_use', 'id': f'toolu_{name}', 'name': name, 'input': given}


def _deltas(block: dict[str, Any]) -> list[dict[str, Any]]:
    if 'text' in block:
        text = block['text']
        return [{'type': 'text_delta', 'text': text[start : start + 6]} for start in range(0, len(text), 6)]
    return [{'type': 'input_json_delta', 'partial_json': json.dumps(block['input'])}]


def _text(message: dict[str, Any]) -> str:
    content = message['content']
    parts = [{'type': 'text', 'text': content}] if isinstance(content, str) else content
    return '\n'.join(str(part.get('text') or part.get('content') or part.get('name')) for part in parts)


def _whole(writer: asyncio.StreamWriter, status: int, fields: dict[str, Any]) -> None:
    data = json.dumps(fields).encode()
    head = f'HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n'
    writer.write(head.encode() + data)


def _event(writer: asyncio.StreamWriter, kind: str, **fields: Any) -> None:  # noqa: ANN401 - as JSON
    data = f'event: {kind}\ndata: {json.dumps({"type": kind, **fields})}\n\n'.encode()
    writer.write(b'%x\r\n' % len(data) + data + b'\r\n')
