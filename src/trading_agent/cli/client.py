"""Finds the daemon and talks to it: HTTP over its control socket, one request a connection."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from trading_agent.cli.options import Options
from trading_agent.cli.workspace import chosen_workspace
from trading_agent.errors import ConfigurationError, DaemonUnreachable, TradingAgentError

RUNTIME_FOLDER = Path('/run/trading-agent')
"""Where a daemon that systemd runs has its socket."""

TIMEOUT_SECONDS = 30.0
"""How long an answer may take, where it is not one that takes its time."""

OK = 200
_LONGEST_ADDRESS = 107


class Client:
    """One request to a daemon; a context manager that ends the connection.

    Args:
        path: The daemon's socket.
        connected: A connection to it.
    """

    def __init__(self, path: Path, connected: socket.socket) -> None:
        self._path = path
        self._socket = connected
        self._connection = HTTPConnection('daemon')
        self._connection.sock = connected
        self._response: HTTPResponse | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()
        self._socket.close()

    def request(
        self, method: str, target: str, body: dict[str, Any] | None = None, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> HTTPResponse:
        """Sends the request and returns the answer's head; the rest is read with `content` or `lines`.

        Args:
            method: The HTTP method.
            target: The path with its query, quoted.
            body: What is sent, as JSON.
            timeout: How many seconds the daemon may be silent; None for as long as it takes.

        Raises:
            DaemonUnreachable: There was no answer in time, or none at all.
        """
        self._socket.settimeout(timeout)
        data = None if body is None else json.dumps(body).encode()
        with self._told():
            self._connection.request(method, target, data, {'Content-Type': 'application/json', 'Connection': 'close'})
            self._response = self._connection.getresponse()
        return self._response

    def content(self, response: HTTPResponse) -> bytes:
        """Returns the content of an answer, whatever its status."""
        with self._told():
            return response.read()

    def result(self, response: HTTPResponse) -> bytes:
        """Returns the content of an answer that is no error.

        Raises:
            TradingAgentError: The daemon turned the request down: what and why, in its words.
        """
        data = self.content(response)
        if response.status != OK:
            raise error_in(data)
        return data

    def lines(self, response: HTTPResponse) -> Iterator[dict[str, Any]]:
        """Yields the lines of a stream as they come, however long that takes, until one that has the result.

        Raises:
            TradingAgentError: The daemon turned the request down, is stopping, or is gone.
        """
        if response.status != OK:
            self.result(response)
        self._socket.settimeout(None)
        while True:
            with self._told():
                data = response.readline()
            if not data.endswith(b'\n'):
                raise self._gone()
            line = json.loads(data)
            if 'error' in line and 'event' not in line:
                raise error_in(data)
            yield line
            if 'result' in line:
                return

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise DaemonUnreachable([f'{self._path} (no answer within {self._socket.gettimeout():g} s)']) from error
        except (OSError, ValueError, HTTPException) as error:
            raise self._gone() from error

    def _gone(self) -> TradingAgentError:
        return TradingAgentError(
            f'the daemon at {self._path} went away before it had answered',
            'see whether it runs with `trading-agent status`; its log tells why it ended',
        )


def path_to(desk: str, what: str) -> str:
    """Returns the path of what a desk can be asked for."""
    return f'/v1/desks/{quoted(desk)}/{what}'


def quoted(text: str) -> str:
    """Returns text as one piece of a path, whatever is in it."""
    return quote(text, safe='', errors='replace')


def error_in(data: bytes) -> TradingAgentError:
    """Returns the error that an answer of the daemon tells of."""
    try:
        told = json.loads(data)
        return TradingAgentError(str(told['error']), str(told.get('hint', '')))
    except (ValueError, KeyError, TypeError, AttributeError):
        return TradingAgentError(f'the daemon gave an answer that makes no sense: {data[:200]!r}')


def connect(options: Options) -> Client:
    """Finds the daemon.

    It is looked for in the named workspace alone, or else in the one that `run` would choose, then where systemd
    puts it.

    Raises:
        DaemonUnreachable: None answers; every place that was tried is told.
    """
    tried: list[str] = []
    for folder in _folders(options, tried):
        path = _socket_of(folder)
        try:
            return Client(path, _connected(path))
        except OSError as error:
            tried.append(f'{path} ({error.strerror or error})')
    raise DaemonUnreachable(tried)


def _folders(options: Options, tried: list[str]) -> Iterator[Path]:
    if options.workspace is not None:
        yield options.workspace
        return
    try:
        yield chosen_workspace(options.config)
    except ConfigurationError as error:
        tried.append(f'the workspace of the configuration ({error})')
    yield RUNTIME_FOLDER


def _socket_of(folder: Path) -> Path:
    """Returns the socket that the holder of a workspace named, else the usual one."""
    try:
        named = json.loads((folder / 'trading-agent.lock').read_bytes())['control_socket']
    except (OSError, ValueError, KeyError, TypeError):
        named = None
    return folder / (named if isinstance(named, str) else 'control.sock')


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(TIMEOUT_SECONDS)
        if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
            connection.connect(os.fsencode(path))
            return connection
        # A name through an open descriptor of the folder fits into an address, see unix(7).
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            connection.connect(f'/proc/self/fd/{folder}/{path.name}')
        finally:
            os.close(folder)
    except OSError:
        connection.close()
        raise
    return connection
