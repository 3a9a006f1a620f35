"""A program that answers a turn, as the daemon sees it: started, read line by line, and gone whenever it lets go."""

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel

from trading_agent.json_lines import MAX_LINE_BYTES
from trading_agent.routing import process_guard
from trading_agent.routing.process_guard import LAST_WORDS_BYTES

GRACE_SECONDS = 2.0
"""How long a program may go on after it was asked to end."""

END_SECONDS = 7.0
"""How long all of it together may take to end, before the guard is killed, and the program with it."""

_CHUNK_BYTES = 1 << 16


@contextmanager
def in_memory(name: str, data: bytes) -> Iterator[int]:
    """Makes a file that is in memory alone and on no disk, to be given to a program (memfd_create(2)).

    Args:
        name: What it is called under /proc, for whoever looks there.
        data: What is in it.

    Yields:
        Its descriptor, at its beginning; closed afterwards.
    """
    descriptor = os.memfd_create(name)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Ending:
    """How a program ended.

    Attributes:
        status: Its exit status; 128 and the signal where one ended it.
        last_words: The end of what it said on stderr, at most 8 KiB.
    """

    status: int
    last_words: str


class GuardedProcess:
    """A program under a guard, in a session of its own; see `process_guard`. Use it as a context manager.

    Whenever the context is left, the program and all that it started have ended. They end too when this process is
    killed. Memory is bounded by the longest line.

    Attributes:
        lines_dropped: How many lines were longer than 64 MiB, and are not told.
    """

    def __init__(self, process: anyio.abc.Process, lifeline: int) -> None:
        self._process = process
        self._lifeline: int | None = lifeline
        self._lines: deque[bytearray] = deque()
        self._rest = bytearray()
        self._overlong = False
        self.lines_dropped = 0

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        stdin: int,
        environment: Mapping[str, str],
        folder: Path,
        passed: Sequence[int] = (),
    ) -> Self:
        """Starts a program.

        Args:
            command: The program's path and its arguments.
            stdin: A descriptor that it reads.
            environment: All of its environment.
            folder: Its working directory.
            passed: Further descriptors that it is given, under the numbers that they have.

        Raises:
            OSError: Not even its guard can be started. What it is when the program itself cannot is an `Ending`.
        """
        held, lifeline = os.pipe2(os.O_CLOEXEC)
        numbers = ','.join(map(str, passed))
        guard = [sys.executable, '-I', '-S', process_guard.__file__, str(held), str(GRACE_SECONDS), numbers, *command]
        try:
            # Shielded: a start that is cut off would leave a process that nobody knows.
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    guard,
                    stdin=stdin,
                    stdout=PIPE,
                    stderr=PIPE,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                    pass_fds=[held, *passed],
                )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(held)
        return cls(process, lifeline)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            self._let_go()
            with anyio.move_on_after(END_SECONDS):
                await self._ended()
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.aclose()

    async def line(self) -> bytearray | None:
        """Returns the next line that it writes and that is not empty, without its newline; None at the end."""
        await anyio.lowlevel.checkpoint()  # many short lines at once must not hold up the others
        while not self._lines:
            data = await self._read()
            if not data:
                rest, self._rest = self._rest, bytearray()
                return rest or None
            self._take(data)
        return self._lines.popleft()

    async def ending(self, within: float) -> Ending:
        """Waits for its end, asking for it where it does not come by itself.

        Args:
            within: For how many seconds it may go on by itself.
        """
        with anyio.move_on_after(within):
            return await self._ended()
        self._let_go()
        return await self._ended()

    async def _ended(self) -> Ending:
        while await self._read():
            pass
        words = bytearray()
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            assert self._process.stderr is not None  # noqa: S101 - it is a pipe
            while len(words) < LAST_WORDS_BYTES:
                words += await self._process.stderr.receive(_CHUNK_BYTES)
        status = await self._process.wait()
        # Below zero a signal has ended the guard itself, and the kernel the program with it.
        return Ending(status if status >= 0 else 128 - status, words.decode('utf-8', 'replace'))

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    async def _read(self) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            return await self._process.stdout.receive(_CHUNK_BYTES)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return b''

    def _take(self, data: bytes) -> None:
        first, *others = data.split(b'\n')
        self._add(first)
        for following in others:
            if self._overlong:
                self.lines_dropped += 1
            elif self._rest:
                self._lines.append(self._rest)
            self._rest, self._overlong = bytearray(), False
            self._add(following)

    def _add(self, part: bytes) -> None:
        if not self._overlong:
            self._rest += part
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest, self._overlong = bytearray(), True
