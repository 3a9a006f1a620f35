"""Starts the command line's daemon again and again, to be killed each time: `python killed_daemon.py`.

It has imported everything before it is asked for the first one, and forks: a start costs no import. On stdin it is
asked, a line of JSON for each, and answers on stdout likewise: `{"start": …}`, a `Start`, with the process's id, and
`{"wait": PID}` with the code by which that process ended, negative for a signal. When stdin ends, or whoever started
it dies, it and everything that it started die too.
"""

import gc
import importlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
from images import die_with_parent
from planted import plant_from_environment

from trading_agent.cli.main import main as command_line
from trading_agent.clock import Steadiness, trading_date

USED_LATER = (
    'acting_backend',
    'anyio._backends._asyncio',
    'encodings.utf_8_sig',
    'trading_agent.cli.run',
    'trading_agent.daemon.daemon',
    'uvicorn.protocols.http.h11_impl',
)
"""What a daemon imports as it starts."""

CALLS = ('pwrite', 'fdatasync', 'fsync', 'replace', 'rename', 'link', 'unlink', 'ftruncate', 'mkdir')
"""The calls before, in or after which it can be killed."""


class Kill(msgspec.Struct, frozen=True):
    """At which of its calls a process is killed by SIGKILL.

    Attributes:
        calls: The calls that are counted.
        where: A regular expression for the file or folder that they are about, searched for in its name.
        number: Which of them, from 1.
        how: `before` it, `after` it, or in its middle where it writes: that `half` of it is there.
    """

    calls: tuple[str, ...] = CALLS
    where: str = '/desks/'
    number: int = 1
    how: str = 'before'

    def __str__(self) -> str:
        calls = 'any' if self.calls == CALLS else '/'.join(self.calls)
        return f'{self.how} call {self.number} ({calls} of {self.where})'


class Time(msgspec.Struct, frozen=True):
    """A clock that goes faster than the host's, and on while no process lives.

    Attributes:
        at: What it showed, in seconds since the epoch …
        since: … when the host's clock showed this.
        factor: How much faster it goes.
    """

    at: float
    since: float
    factor: float

    def now(self) -> float:
        """Returns what it shows."""
        return self.at + (time.time() - self.since) * self.factor


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How a daemon is to be started.

    Attributes:
        config: Its configuration file.
        workspace: Its workspace.
        log: The file that it writes its log to.
        notify: The socket on which it says that it is ready.
        time: Its clock.
        kill: When it is killed, if nobody kills it before.
        stopped: Whether it waits for a SIGCONT first.
    """

    config: str
    workspace: str
    log: str
    notify: str
    time: Time
    kill: Kill | None = None
    stopped: bool = False


class FastClock:
    """A `Clock` of the daemon that shows a `Time`."""

    def __init__(self, shown: Time) -> None:
        self._shown = shown
        self._steadiness = Steadiness(self.now())

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._shown.now(), UTC)

    def trusted_date(self, rollover_at: timedelta) -> date:
        return trading_date(self.now(), rollover_at)

    def steadiness(self) -> Steadiness:
        return self._steadiness

    async def sleep_until(self, instant: datetime) -> None:
        while (left := (instant - self.now()).total_seconds()) > 0:  # noqa: ASYNC110 - as the host's does
            await anyio.sleep(min(left / self._shown.factor, 1.0))


class Killer:
    """Kills its own process at one of its calls."""

    def __init__(self, kill: Kill) -> None:
        self._kill = kill
        self._where = re.compile(kill.where)
        self._left = kill.number
        self._counting = threading.Lock()

    def prepare(self) -> None:
        """Puts itself around each such call of this process."""
        for name in self._kill.calls:
            setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever that function takes
            if not self._is_it(arguments):
                return function(*arguments, **options)
            if self._kill.how == 'after':
                function(*arguments, **options)
            elif self._kill.how == 'half':
                descriptor, data, *offset = arguments
                function(descriptor, data[: len(data) // 2], *offset)
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        return call

    def _is_it(self, arguments: tuple[Any, ...]) -> bool:
        # A call with two names is about the second of them, one without any about its descriptor's file.
        names = [each for each in arguments if isinstance(each, str | os.PathLike)]
        name = os.fsdecode(names[-1]) if names else str(Path(f'/proc/self/fd/{arguments[0]}').readlink())
        if not self._where.search(name):
            return False
        with self._counting:
            self._left -= 1
            return not self._left


def die_with(parent: int) -> None:
    """Lets this process be killed when its parent dies, or has died."""
    die_with_parent()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def run(start: Start) -> int:
    """Runs a daemon in this process until it ends; returns its exit code."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, target in ((nothing, 0), (nothing, 1), (log, 2)):
        os.dup2(descriptor, target)
    os.environ['NOTIFY_SOCKET'] = start.notify
    # It is made there without arguments.
    vars(importlib.import_module('trading_agent.daemon.daemon'))['IndiaClock'] = partial(FastClock, start.time)
    if start.stopped:
        os.kill(os.getpid(), signal.SIGSTOP)
    if start.kill is not None:
        Killer(start.kill).prepare()
    sys.argv = ['trading-agent', '--config', start.config, '--workspace', start.workspace, 'run']
    try:
        command_line()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def begin(start: Start) -> int:
    """Starts a daemon; returns its process's id."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        code = 70
        try:
            die_with(parent)
            code = run(start)
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os._exit(code)
    return child


def serve() -> None:
    """Answers on stdout what is asked on stdin."""
    for line in sys.stdin.buffer:
        asked = msgspec.json.decode(line)
        if 'start' in asked:
            answer = begin(msgspec.convert(asked['start'], Start))
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked['wait'], 0)[1])
        os.write(1, b'%d\n' % answer)


if __name__ == '__main__':
    die_with(int(sys.argv[1]))
    plant_from_environment()
    for module in USED_LATER:
        importlib.import_module(module)
    gc.freeze()
    serve()
