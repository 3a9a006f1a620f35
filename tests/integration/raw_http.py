"""A server that does to each request what a script says, also what no HTTP server does by itself."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: Any


@dataclass
class Visit:
    """One request and the connection on which it came."""

    received: Received
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: asyncio.Event

    async def send(self, data: bytes) -> None:
        """Sends bytes."""
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Ends the connection with a TCP reset."""
        own: socket.socket = self.writer.get_extra_info('socket')
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.writer.transport.abort()


Act = Callable[[Visit], Awaitable[None]]


@dataclass
class Raw:
    """The server.

    Attributes:
        url: Its URL, without a path.
        received: The requests so far.
        asked: Set when there was one.
        left: Set when a client has left a connection on which that was waited for.
    """

    url: str
    received: list[Received] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def serving(*script: Act) -> AsyncIterator[Raw]:
    """Starts a server that does one act of the script for each request, the last one again and again."""
    acts = list(script)
    writers: set[asyncio.StreamWriter] = set()

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            received = await _received(reader)
            raw.received.append(received)
            raw.asked.set()
            act = acts.pop(0) if len(acts) > 1 else acts[0]
            await act(Visit(received, reader, writer, raw.left))
        writers.discard(writer)
        writer.close()

    server = await asyncio.start_server(visited, '127.0.0.1', 0)
    raw = Raw(f'http://127.0.0.1:{server.sockets[0].getsockname()[1]}')
    try:
        yield raw
    finally:
        server.close()
        for writer in writers.copy():
            writer.transport.abort()
        await server.wait_closed()


async def _received(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b'\r\n\r\n')).decode().split('\r\n')
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(':') for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get('content-length', 0)))
    return Received(head[0], headers, json.loads(body) if body else None)


def answer(status: int, body: object = '', headers: Mapping[str, str] | None = None) -> Act:
    """Answers with a whole response; what is no text is sent as JSON."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    kind = 'text/html' if isinstance(body, str) else 'application/json'

    async def act(visit: Visit) -> None:
        fields = {'content-type': kind, 'content-length': str(len(data)), 'connection': 'close', **(headers or {})}
        lines = ''.join(f'{name}: {value}\r\n' for name, value in fields.items())
        await visit.send(f'HTTP/1.1 {status} Said\r\n{lines}\r\n'.encode() + data)

    return act


async def hang_up(_: Visit) -> None:
    """Closes the connection without a word."""


def stream(*events: object, after: Act = hang_up, whole: bool = True) -> Act:
    """Streams events, each a table or a text, and then does something else.

    Args:
        events: Tables become the data of an event, with its `type` for a name where it has one; texts are sent raw.
        after: What is done then.
        whole: Whether the body is ended as it should be.
    """

    async def act(visit: Visit) -> None:
        head = 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n'
        await visit.send(head.encode())
        for event in events:
            data = (event if isinstance(event, str) else _event(event)).encode()
            await visit.send(f'{len(data):x}\r\n'.encode() + data + b'\r\n')
        if whole:
            await visit.send(b'0\r\n\r\n')
        await after(visit)

    return act


def _event(data: object) -> str:
    kind = data.get('type') if isinstance(data, dict) else None
    name = f'event: {kind}\n' if isinstance(kind, str) else ''
    return f'{name}data: {json.dumps(data)}\n\n'


async def reset(visit: Visit) -> None:
    """Resets the connection."""
    visit.reset()


async def stay(visit: Visit) -> None:
    """Says nothing more, and waits until the client has left."""
    with suppress(ConnectionError):
        await visit.reader.read()
    visit.left.set()


async def send_half(visit: Visit) -> None:
    """Begins a chunk, and closes the connection in the middle of it."""
    await visit.send(b'400\r\ndata: {"half')


async def send_garbage(visit: Visit) -> None:
    """Sends what is no HTTP."""
    await visit.send(b'\x00\xff garbage garbage\r\n\r\n')
