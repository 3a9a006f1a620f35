"""A daemon's life, from its start by the warm process until it is killed."""

import http.client
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from killed_daemon import Start
from planted import environment
from process import clean_environ

PATIENCE = 20.0
"""How long a start, an answer or an end may take before it counts as blocked, in seconds."""


class Blocked(Exception):
    """Something did not happen in time, or came to an end by itself."""


class Zygote:
    """The warm process that daemons are forked from; see `killed_daemon`.

    Args:
        plant: The fault that is planted into each of them.
    """

    def __init__(self, plant: str = '') -> None:
        program = Path(__file__).with_name('killed_daemon.py')
        self._process = subprocess.Popen(
            [sys.executable, program, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environ(**environment(plant)),
        )

    def start(self, start: Start) -> int:
        """Starts a daemon; returns its process's id."""
        return self._ask({'start': start})

    def wait(self, pid: int) -> int:
        """Returns the code by which a daemon ended."""
        return self._ask({'wait': pid})

    def _ask(self, question: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(question) + b'\n')
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends it, and all daemons with it."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def warm(plant: str = '') -> Iterator[Zygote]:
    """Yields a warm process until the block ends."""
    zygote = Zygote(plant)
    try:
        yield zygote
    finally:
        zygote.close()


@dataclass
class Life:
    """One life of a daemon.

    Attributes:
        number: Which one of its workspace, from 0.
        pid: Its process.
        log: The file of its log.
        told: How it is to be killed, in words.
        death: Readable when the process has ended.
        kill_at: When it is killed, by the monotonic clock.
        killed: Whether it was, since it was time.
        over: Whether it has ended, and that was waited for.
        connection: The one to it, while there is one.
        asked: Further ones, whose answers nobody waits for.
    """

    number: int
    pid: int
    log: Path
    told: str
    death: int
    kill_at: float = float('inf')
    killed: bool = False
    over: bool = False
    connection: http.client.HTTPConnection | None = None
    asked: list[http.client.HTTPConnection] = field(default_factory=list)

    def __str__(self) -> str:
        return f'life {self.number} ({self.told})'

    def kill(self) -> None:
        """Kills it now."""
        self.killed, self.kill_at = True, float('inf')
        os.kill(self.pid, signal.SIGKILL)

    def ends_within(self, seconds: float) -> bool:
        """Waits so long whether it ends by itself."""
        return bool(select.select([self.death], [], [], seconds)[0])

    def hang_up(self) -> None:
        """Closes the connection."""
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def wait(self, until: float, *others: socket.socket) -> socket.socket | None:
        """Waits for one of the sockets; returns None when the daemon has ended, as it does when it is time.

        Raises:
            Blocked: Nothing came until that time, by the monotonic clock.
        """
        while True:
            left = min(until, self.kill_at) - time.monotonic()
            descriptors = [self.death, *(other.fileno() for other in others)]
            ready = select.select(descriptors, [], [], max(0.0, left))[0]
            for other in others:
                if other.fileno() in ready:
                    return other
            if ready:
                return None
            if time.monotonic() >= self.kill_at:
                self.kill()
            elif time.monotonic() >= until:
                raise Blocked(f'nothing came within {PATIENCE:g} s')
