"""A child process that speaks in lines. What it may pile up in memory is bounded, and it goes with its whole group."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, cast

import anyio

KEPT_ERRORS = 4 << 10
"""How much of the end of its stderr is kept, in bytes."""

MOST_UNREAD = 4 << 20
"""A child that leaves more than this unread on its stdin, in bytes, has stopped listening."""

GRACE_SECONDS = 2.0
"""How long it gets to end by itself once its stdin is closed, and again once it was asked to by SIGTERM."""

_LAST_WORDS_SECONDS = 0.5
"""How long its stdout is still read once it is gone, where somebody whom it started holds that open."""


class ChildProcess:
    """A running child, the leader of a process group of its own. Made by `start`; `stop` must be called.

    A child whose parent is killed gets the end of file on its stdin, and is expected to leave.
    """

    def __init__(self, transport: asyncio.SubprocessTransport, pipes: '_Pipes') -> None:
        self._transport = transport
        self._pipes = pipes

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str], longest_line: int) -> Self:
        """Starts a command.

        Args:
            command: The program, found by the PATH of `environ` where it has no slash, and its arguments.
            environ: The whole of its environment.
            longest_line: The longest line that is taken from its stdout, in bytes; a longer one is its end.

        Raises:
            OSError: It cannot be started.
            ValueError: There is a NUL in the command or the environment.
        """
        pipes = _Pipes(longest_line)
        with anyio.CancelScope(shield=True):  # it takes milliseconds, and cut short it would leave somebody behind
            transport, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: pipes, *command, env=dict(environ), start_new_session=True
            )
        return cls(transport, pipes)

    @property
    def ended(self) -> anyio.Event:
        """Set once nothing more will come from it: it is gone, closed its stdout or wrote too long a line."""
        return self._pipes.ended

    @property
    def errors(self) -> str:
        """The end of what it wrote to stderr."""
        return self._pipes.errors.decode(errors='replace')

    @property
    def ending(self) -> str:
        """How it ended, in words; of use once `ended` is set."""
        code = self._transport.get_returncode()
        if self._pipes.fault:
            return self._pipes.fault
        if code is None:
            return 'it closed the connection'
        return f'it was ended by {_signal_name(-code)}' if code < 0 else f'it ended with exit code {code}'

    async def next_line(self) -> bytes | None:
        """Returns the next line of its stdout, without its newline; None at the end."""
        return await self._pipes.next_line()

    def write(self, data: bytes) -> None:
        """Writes to its stdin; never waits.

        Raises:
            anyio.BrokenResourceError: It is gone, or does not read.
        """
        pipe = cast('asyncio.WriteTransport | None', self._transport.get_pipe_transport(0))
        if pipe is None or pipe.is_closing() or self.ended.is_set():
            self._pipes.end()
            raise anyio.BrokenResourceError
        if pipe.get_write_buffer_size() > MOST_UNREAD:
            self.fail('it does not read its stdin')
            raise anyio.BrokenResourceError
        pipe.write(data)

    def fail(self, fault: str) -> None:
        """Gives it up, for a reason: takes nothing more from it."""
        self._pipes.fail(fault)

    async def stop(self) -> None:
        """Ends it and everything in its group: its stdin is closed, then SIGTERM, then SIGKILL. At most 5 seconds.

        One that was given up gets SIGTERM at once.
        """
        with anyio.CancelScope(shield=True):
            if self._pipes.fault:
                self._signal(signal.SIGTERM)
            self._pipes.end()
            if stdin := cast('asyncio.WriteTransport | None', self._transport.get_pipe_transport(0)):
                stdin.close()
            for ask in (signal.SIGTERM, signal.SIGKILL):
                with anyio.move_on_after(GRACE_SECONDS):
                    await self._pipes.gone.wait()
                    break
                self._signal(ask)
            with anyio.move_on_after(0.5):
                await self._pipes.gone.wait()
            self._signal(signal.SIGKILL)  # whoever it has left behind in its group
            if stdin and not self._pipes.stdin_lost:
                stdin.abort()
            self._transport.close()
            with anyio.move_on_after(0.5):
                await self._pipes.closed.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid() or 0, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'


class _Pipes(asyncio.SubprocessProtocol):
    """The child's ends of the pipes, called by the event loop.

    Its stdout is not read on while lines of it are waiting to be taken.
    """

    def __init__(self, longest_line: int) -> None:
        self._longest_line = longest_line
        self._transport: asyncio.SubprocessTransport | None = None
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []
        self._begun_size = 0
        self._news = asyncio.Event()
        self.errors = b''
        self.fault = ''
        self.stdin_lost = False
        self.ended = anyio.Event()
        self.gone = anyio.Event()
        self.closed = anyio.Event()

    async def next_line(self) -> bytes | None:
        while not self._lines:
            if self.ended.is_set():
                return None
            self._read_on()
            self._news.clear()
            await self._news.wait()
        return self._lines.popleft()

    def end(self) -> None:
        """Takes nothing more from it. What it still writes is thrown away, so that it can go on to its end."""
        self.ended.set()
        self._news.set()
        self._read_on()

    def fail(self, fault: str) -> None:
        if not self.ended.is_set():
            self.fault = fault
        self.end()

    # -- called by the loop ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast('asyncio.SubprocessTransport', transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.errors = (self.errors + data)[-KEPT_ERRORS:]
        elif not self.ended.is_set():
            self._take(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        if fd == 0:
            self.stdin_lost = True
        elif fd == 1:
            self.end()

    def process_exited(self) -> None:
        self.gone.set()
        asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self.end)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed.set()

    def _take(self, data: bytes) -> None:
        *whole, rest = data.split(b'\n')
        for piece in whole:
            self._lines.append(b''.join([*self._begun, piece]))
            self._begun, self._begun_size = [], 0
        self._begun.append(rest)
        self._begun_size += len(rest)
        if self._begun_size > self._longest_line:
            self.fail(f'it wrote a line of more than {self._longest_line >> 20} MiB')
        elif self._lines:
            self._stdout('pause_reading')
            self._news.set()

    def _read_on(self) -> None:
        self._stdout('resume_reading')

    def _stdout(self, what: str) -> None:
        pipe: Any = self._transport.get_pipe_transport(1) if self._transport is not None else None
        if pipe is not None:
            getattr(pipe, what)()
