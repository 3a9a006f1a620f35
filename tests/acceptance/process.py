"""A daemon in a process of its own, as an operator meets it: its log, its command line, its socket and its files."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
from desk_files import DeskFiles, Line

T = TypeVar('T')

DEADLINE = 60.0
"""How long anything that must happen may take before the test fails, in seconds: no test waits for luck."""

_OF_THE_HOST = ('NOTIFY_SOCKET', 'WATCHDOG_USEC', 'WATCHDOG_PID', 'JOURNAL_STREAM', 'RUNTIME_DIRECTORY')


def clean_environ(**added: str) -> dict[str, str]:
    """Returns this process's environment without what could tell a daemon something, and with what is added."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith('TRADING_AGENT_') and name not in (*_OF_THE_HOST, 'STATE_DIRECTORY')
    }
    return kept | {'PYTHONUNBUFFERED': '1'} | added


class Process:
    """One run of `trading-agent run`.

    Args:
        workspace: The workspace.
        config: The text of the configuration file, which is written beside the workspace.
        program: What Python runs; by default the package.
        prefix: A command in front of Python, such as `faketime`.
        environ: What is added to the environment.

    Attributes:
        lines: The log so far, each line decoded.
        raw: The same lines as they came.
        odd: What came on stderr and is no line of the log.
    """

    def __init__(
        self,
        workspace: Path,
        config: str = '',
        *,
        program: Sequence[str] = ('-m', 'trading_agent'),
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.workspace = workspace
        self.config = workspace.parent / f'{workspace.name}.toml'
        self.config.write_text(config)
        self.lines: list[Line] = []
        self.raw: list[bytes] = []
        self.odd: list[bytes] = []
        self._came = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [*prefix, sys.executable, *program, '--config', self.config, '--workspace', workspace, 'run'],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=workspace.parent,
            env=clean_environ(**(environ or {})),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # -- its log -----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._process.stderr is not None
        for raw in self._process.stderr:
            text = raw[3:] if raw[:1] == b'<' and raw[2:3] == b'>' else raw
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            with self._came:
                if isinstance(line, dict):
                    self.lines.append(line)
                    self.raw.append(raw)
                else:
                    self.odd.append(raw)
                self._came.notify_all()
        with self._came:
            self._ended = True
            self._came.notify_all()

    def wait_for(self, event: str, *, count: int = 1, **fields: Any) -> Line:  # noqa: ANN401 - a line's fields
        """Returns the log line of an event with these fields, once `count` of them have come: the last of these.

        Raises:
            AssertionError: It did not come in time, or the process ended without it.
        """
        until = time.monotonic() + DEADLINE
        with self._came:
            while len(matching := self.found(event, **fields)) < count:
                left = until - time.monotonic()
                if left <= 0 or self._ended:
                    why = f'nothing within {DEADLINE} s'
                    if self._ended:
                        why = f'the process ended with {self._process.wait(DEADLINE)}'
                    raise AssertionError(f'{why}: no {count} of {event} {fields} in\n{self.tail()}')
                self._came.wait(left)
        return matching[count - 1]

    def found(self, event: str, **fields: Any) -> list[Line]:  # noqa: ANN401 - a line's fields
        """Returns the log lines of an event with these fields that have come so far."""
        wanted = {'event': event, **fields}
        return [line for line in self.lines if all(line.get(name) == value for name, value in wanted.items())]

    def tail(self) -> str:
        """Returns the end of what was logged."""
        return b''.join([*self.odd[-20:], *self.raw[-30:]]).decode(errors='replace')

    def ready(self) -> 'Process':
        """Returns once the daemon is ready."""
        self.wait_for('daemon_ready')
        return self

    # -- its faces ---------------------------------------------------------------------------------------------

    def cli(self, *arguments: str) -> 'subprocess.CompletedProcess[str]':
        """Runs a command of the command line against it."""
        return run_cli('--workspace', str(self.workspace), *arguments)

    def request(self, method: str, target: str, body: Line | None = None) -> tuple[int, Any]:
        """Makes a request over the control socket; returns the status and the decoded answer."""
        return unix_request(self.workspace / 'control.sock', method, target, body)

    def send(self, text: str, desk: str = 'main', **fields: Any) -> Line:  # noqa: ANN401 - a trigger's fields
        """Sends a trigger and returns its receipt."""
        receipt: Line = self.request('POST', f'/v1/desks/{desk}/triggers', {'text': text, **fields})[1]
        return receipt

    def desk(self, name: str = 'main') -> Line:
        """Returns a desk's status."""
        desks: list[Line] = self.request('GET', '/v1/status')[1]['desks']
        return next(desk for desk in desks if desk['name'] == name)

    # -- its files ---------------------------------------------------------------------------------------------

    def files_of(self, desk: str = 'main') -> 'DeskFiles':
        """Returns a desk's files."""
        return DeskFiles(self.workspace / 'desks' / desk)

    # -- its end -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Waits for its end and for its whole log; returns the exit code."""
        code = self._process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stops it in order; returns the exit code."""
        self.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """Kills it: nothing of it runs on for a moment longer."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """Kills it where it still runs, and lets go of it."""
        self._process.kill()
        self._process.wait()
        self._reader.join(DEADLINE)
        assert self._process.stderr is not None
        self._process.stderr.close()


class UnixConnection(http.client.HTTPConnection):
    """A connection to the control socket."""

    def __init__(self, path: Path) -> None:
        super().__init__('localhost', timeout=DEADLINE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            # However long the folder's name is, this one fits into an address.
            self.sock.connect(f'/proc/self/fd/{folder}/{self._path.name}')
        finally:
            os.close(folder)


def unix_request(path: Path, method: str, target: str, body: Line | None = None) -> tuple[int, Any]:
    """Makes an HTTP request on a unix socket; returns the status and the decoded answer."""
    connection = UnixConnection(path)
    try:
        connection.request(method, target, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class Start(Protocol):
    """The fixture `start`."""

    def __call__(
        self,
        config: str = '',
        *,
        workspace: Path | None = None,
        program: Sequence[str] = ...,
        prefix: Sequence[str] = ...,
        environ: Mapping[str, str] | None = ...,
    ) -> Process:
        """Starts a daemon with this configuration."""
        ...


def run_cli(*arguments: str, **environ: str) -> 'subprocess.CompletedProcess[str]':
    """Runs a command of the command line."""
    return subprocess.run(
        [sys.executable, '-m', 'trading_agent', *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE * 3,
        env=clean_environ(**environ),
    )


def until(condition: Callable[[], T], what: str) -> T:
    """Returns what a condition returns as soon as that is true.

    Raises:
        AssertionError: It did not come true in time.
    """
    deadline = time.monotonic() + DEADLINE
    while not (result := condition()):
        assert time.monotonic() < deadline, f'not within {DEADLINE} s: {what}'
        time.sleep(0.02)
    return result


async def eventually(condition: Callable[[], T | Awaitable[T]], what: str) -> T:
    """Returns what a condition returns as soon as that is true, while the event loop goes on.

    Raises:
        AssertionError: It did not come true in time.
    """
    with anyio.move_on_after(DEADLINE):
        while True:
            result = condition()
            if isinstance(result, Awaitable):
                result = await result
            if result:
                return result
            await anyio.sleep(0.005)
    raise AssertionError(f'not within {DEADLINE} s: {what}')
