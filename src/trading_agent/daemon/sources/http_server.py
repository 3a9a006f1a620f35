"""HTTP on a unix socket: uvicorn with our own socket and our own way to stop it, and answers in JSON.

A stream is JSON lines: one object a line, sent as it happens.
"""

import asyncio
import contextlib
import grp
import json
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trading_agent import files
from trading_agent.daemon.sources.connections import MAX_HEAD_BYTES, Connection
from trading_agent.errors import ConfigurationError, Problem, StorageError

_LOGGER = logging.getLogger(__name__)

BACKLOG = 1024
"""How many connections may wait to be taken; who comes then is told to try again (EAGAIN)."""

TAKEN_AT_ONCE = 8
"""How many connections are taken before those that are there are looked after: more would use up all files."""

GRACE_SECONDS = 3
"""How long requests that are being answered get at a stop, before they are cut off."""

_LAST_LINE_SECONDS = 0.3


def encode(content: object) -> bytes:
    """Returns `content` as JSON; also text that UTF-8 cannot hold, which JSON can."""
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(content)).encode()


class JsonAnswer(Response):
    """An answer whose content is whatever msgspec can encode."""

    media_type = 'application/json'

    def render(self, content: object) -> bytes:
        """Encodes the content."""
        return encode(content)


def error_answer(status: int, error: str, hint: str = '', /, **fields: object) -> JsonAnswer:
    """Returns an error: what is wrong, what to do about it, and further fields before these."""
    return JsonAnswer({**fields, 'error': error, 'hint': hint}, status)


class LineWriter:
    """Writes the lines of one stream.

    Attributes:
        started: Whether the answer has begun, so that its status can no longer change.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def start(self) -> None:
        """Begins the answer, so that the client knows that its request was taken."""
        if not self.started:
            self.started = True
            headers = [(b'content-type', b'application/x-ndjson'), (b'cache-control', b'no-store')]
            await self._send({'type': 'http.response.start', 'status': 200, 'headers': headers})

    async def write(self, *records: object) -> None:
        """Sends each record as a line; waits while the client reads more slowly than we write."""
        await self.write_lines(b''.join(encode(record) + b'\n' for record in records))

    async def write_lines(self, data: bytes) -> None:
        """Sends lines that are encoded already."""
        await self.start()
        await self._send({'type': 'http.response.body', 'body': data, 'more_body': True})

    async def end(self) -> None:
        """Ends the answer."""
        await self.start()
        await self._send({'type': 'http.response.body', 'body': b'', 'more_body': False})


Producer = Callable[[LineWriter], Awaitable[Response | None]]


class LineStream(Response):
    """An answer that comes line by line, until its producer returns, the client leaves or the server stops.

    Args:
        produce: Writes the lines. It may return an ordinary answer instead, as long as it has written nothing. It
            is cancelled when the client leaves.
        stopping: Is set when the server stops: the stream then ends with an error line.
    """

    def __init__(self, produce: Producer, stopping: anyio.Event) -> None:
        super().__init__()
        self._produce = produce
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the producer, and watches the client and the server meanwhile."""
        writer = LineWriter(send)
        last: Response | None = None
        done = left = False

        async def watch_client(running: anyio.CancelScope) -> None:
            nonlocal left
            while (await receive())['type'] != 'http.disconnect':
                pass
            left = True
            running.cancel()

        async def watch_server(running: anyio.CancelScope) -> None:
            await self._stopping.wait()
            running.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_client, tasks.cancel_scope)
            tasks.start_soon(watch_server, tasks.cancel_scope)
            try:
                last = await self._produce(writer)
            except Exception as error:
                _LOGGER.exception('a stream failed')
                last = unexpected(error)
            done = True
            tasks.cancel_scope.cancel()
        if left:
            return
        if not done:
            last = error_answer(503, 'the daemon is stopping', 'ask again once it runs')
        if last is not None and not writer.started:
            await last(scope, receive, send)
            return
        # A client that no longer reads must not hold up a stop.
        with anyio.move_on_after(_LAST_LINE_SECONDS if self._stopping.is_set() else None):
            if last is not None:
                await writer.write_lines(bytes(last.body) + b'\n')
            await writer.end()


def unexpected(error: Exception) -> JsonAnswer:
    """Returns the answer for a fault of our own."""
    return error_answer(500, f'{type(error).__name__}: {error}', 'a fault of the daemon: its log has the details')


def bind_socket(path: Path, group: str | None = None) -> socket.socket:
    """Binds a unix socket in place of a stale one.

    Its mode is 0600, or 0660 where a group may use it; whatever the umask, and from its first moment no wider.

    Args:
        path: Where; its folder exists, and nobody else is listening there.
        group: The name or number of the group that may use it, or None for the owner alone.

    Raises:
        ConfigurationError: There is no such group.
        StorageError: It could not be made there, or something that is no socket stands there.
    """
    number = None if group is None else _group_number(group)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _remove_stale(path)
        # The file gets the mode that its socket has (less the umask), so nobody can slip in before a chmod.
        os.fchmod(listener.fileno(), 0o600)
        with files.short_name(path) as name:
            listener.bind(name)
        # From here on: who finds the file is let wait for the server, and is not told that there is none.
        listener.listen(BACKLOG)
        if number is not None:
            os.chown(path, -1, number)
        path.chmod(0o600 if number is None else 0o660)
    except OSError as error:
        listener.close()
        if isinstance(error, StorageError):
            raise
        raise StorageError('make the control socket', path, error) from error
    return listener


def _group_number(group: str) -> int:
    try:
        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError:
        problem = Problem('control_group', f'there is no group {group!r}', 'make it, or name another one')
        raise ConfigurationError([problem]) from None


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        error = StorageError('make the control socket', path, FileExistsError(17, 'something else stands there'))
        error.hint = 'look at what it is and move it away'
        raise error
    path.unlink()


class SocketServer(uvicorn.Server):
    """uvicorn without its signal handlers, that serves a socket which is bound already.

    Args:
        app: The application.
        on_started: Is called once connections are taken.

    Attributes:
        beat: When its loop last ran, by the event loop's clock in seconds; 0 before it serves.
    """

    def __init__(self, app: ASGIApp, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                backlog=TAKEN_AT_ONCE,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ws='none',
                lifespan='off',
                interface='asgi3',
                log_config=None,
                log_level='error',  # what a client does wrong is for the client, and not for the log
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self.beat = 0.0
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to the daemon."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to take connections, and says so."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # for asyncio the two numbers are one
        self.beat = anyio.current_time()
        self._on_started()

    async def on_tick(self, counter: int) -> bool:
        """Notes that the loop is alive, ten times a second."""
        self.beat = anyio.current_time()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets requests be answered within the grace, then cuts off who is left."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            transport: Any = connection.transport
            transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=1)


def remove_socket(path: Path) -> None:
    """Removes the socket after serving; one that is gone already is no error."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
