"""How an MCP server is reached: as a child process, or over streamable HTTP. Both bounded in what they take in."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
import anyio.lowlevel

from trading_agent.tools.child_process import ChildProcess

MOST_IN_ONE_MESSAGE = 8 << 20
"""The longest message of a server, in bytes."""

MOST_WITHOUT_AN_ANSWER = 64 << 20
"""A child that has written this much and answered nothing, in bytes, is ended."""

CONNECT_SECONDS = 10.0

_INHERITED = ('PATH', 'HOME', 'LANG')


class Link:
    """A way to a server, while it is open.

    Args:
        read: The stream of its messages, as the SDK takes it.
        write: The stream to it.
        process: The server, where it is a child of ours.
    """

    def __init__(self, read: Any, write: Any, process: ChildProcess | None = None) -> None:  # noqa: ANN401
        self.read = read
        self.write = write
        self._process = process
        self._ended = anyio.Event()
        self._fault = ''

    @property
    def ended(self) -> anyio.Event:
        """Set once nothing more will come. Of HTTP, where there is no such moment, only by `fail`."""
        return self._process.ended if self._process is not None else self._ended

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        return self._process.ending if self._process is not None else self._fault

    @property
    def errors(self) -> str:
        """The end of what the server wrote to stderr."""
        return self._process.errors if self._process is not None else ''

    def fail(self, why: str) -> None:
        """Gives the server up."""
        if self._process is not None:
            self._process.fail(why)
        else:
            self._fault = why
            self._ended.set()


@asynccontextmanager
async def child(command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Link]:
    """Starts a server, and ends it behind the block.

    Args:
        command: The program and its arguments.
        env: Its environment, besides PATH, HOME and LANG.

    Raises:
        OSError: It cannot be started.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    process = await ChildProcess.start(command, inherited | dict(env), MOST_IN_ONE_MESSAGE)
    try:
        yield Link(_FromChild(process), _ToChild(process), process)
    finally:
        await process.stop()


@asynccontextmanager
async def streamable_http(url: str, headers: Mapping[str, str], timeout: float) -> AsyncIterator[Link]:
    """Opens a connection to a server, and closes it behind the block.

    A redirect is not followed: each call is one request, to the address that was configured.

    Args:
        url: The server's address.
        headers: Sent with every request.
        timeout: How long it may be silent, in seconds.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(
        headers={**headers, 'Accept-Encoding': 'identity'},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=timeout),
        max_redirects=0,
        event_hooks={'response': [_bounded]},
    )
    async with (
        client,
        streamable_http_client(
            url, http_client=client, terminate_on_close=False, max_sse_event_size=MOST_IN_ONE_MESSAGE
        ) as (read, write),
    ):
        yield Link(read, write)


async def _bounded(response: Any) -> None:  # noqa: ANN401 - the HTTP client's response
    """Sees to it that a response ends once it has brought too much."""
    import httpx2

    if response.headers.get('content-encoding', 'identity') != 'identity':
        raise httpx2.DecodingError('it answers compressed, although it was asked not to')

    # Each is what the SDK makes an error of the call of, and not of the connection.
    is_stream = response.headers.get('content-type', '').lower().startswith('text/event-stream')
    too_much = httpx2.SSEError if is_stream else httpx2.StreamError

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:  # noqa: ANN401
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > MOST_IN_ONE_MESSAGE:
                    raise too_much(f'it answered with more than {MOST_IN_ONE_MESSAGE >> 20} MiB')
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    response.stream = Bounded(response.stream)


class _Stream:
    """What both streams have in common."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process

    async def aclose(self) -> None:
        """Does nothing: the process is ended where it was started."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _ToChild(_Stream):
    """Writes messages to a child's stdin. It never waits: a child that does not read is ended."""

    async def send(self, item: Any) -> None:  # noqa: ANN401 - the SDK's SessionMessage
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        self._process.write(data.encode() + b'\n')


class _FromChild(_Stream):
    """Reads messages from a child's stdout. What is no message is skipped: programs print to stdout by mistake."""

    def __init__(self, process: ChildProcess) -> None:
        super().__init__(process)
        self._without_an_answer = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - the SDK's SessionMessage
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> Any:  # noqa: ANN401 - the SDK's SessionMessage
        from mcp.shared.message import SessionMessage
        from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCResponse, jsonrpc_message_adapter

        while (line := await self._process.next_line()) is not None:
            await anyio.lowlevel.checkpoint()  # a flood of messages is no reason that others wait
            self._without_an_answer += len(line)
            if self._without_an_answer > MOST_WITHOUT_AN_ANSWER:
                self._process.fail(f'it wrote {MOST_WITHOUT_AN_ANSWER >> 20} MiB and no answer')
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                continue
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                self._without_an_answer = 0
            if not isinstance(message, JSONRPCNotification):  # of progress and log messages no use is made
                return SessionMessage(message)
        raise anyio.EndOfStream
