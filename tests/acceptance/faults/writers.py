"""Processes with desks at work, to be broken: what they acknowledge and tell comes over a pipe."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec
import planted

from trading_agent.clock import INDIA

Line = dict[str, Any]

DESKS = ('main', 'other')
MORNING = datetime(2026, 10, 19, 10, tzinfo=INDIA)
PATIENCE_SECONDS = 60.0
PROGRAM = Path(__file__).with_name('writer.py')


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What the desks of one process are to do.

    Attributes:
        workspace: Where.
        seed: What chance comes from.
        now: What time it is.
        number: The number of the first new trigger.
        again: By desk, the triggers that were offered before and not acknowledged: they are offered again first.
        settle: Whether they only bring to its end what is open, and end.
        space: A file that is removed once a sync has failed, before the program hears of that; empty for none.
    """

    workspace: str
    seed: str
    now: datetime
    number: int = 0
    again: Mapping[str, list[str]] = {}
    settle: bool = False
    space: str = ''


class Writers:
    """Processes with desks at work, one at a time.

    Args:
        plant: The fault that is planted into them.

    Attributes:
        pid: The process that runs, or ran last.
        running: Whether it runs.
    """

    def __init__(self, plant: str = '') -> None:
        self._server = subprocess.Popen(
            [sys.executable, PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | planted.environment(plant),
        )
        self._rest = b''
        self._early: list[Line] = []
        self.pid = 0
        self.running = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.kill()
        with self._server:
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.kill()

    def begin(self, task: Task) -> None:
        """Starts a process."""
        assert self._server.stdin is not None
        self._server.stdin.write(msgspec.json.encode(task) + b'\n')
        self._server.stdin.flush()
        self.running, self.pid = True, 0
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.pid:
            assert time.monotonic() < until, 'no process was forked'
            self._early += self._take(self._read(1.0))

    def lines(self, seconds: float) -> list[Line]:
        """Returns what it says next, waiting for so long at most; nothing where it says nothing, or has ended."""
        until = time.monotonic() + seconds
        found, self._early = self._early, []
        while not found and self.running:
            left = max(0.0, until - time.monotonic())
            found = self._take(self._read(left))
            if not left:
                break
        return found

    def rest(self) -> list[Line]:
        """Waits for its end and returns all that it says until then."""
        found, self._early = self._early, []
        until = time.monotonic() + PATIENCE_SECONDS
        while self.running:
            assert time.monotonic() < until, 'it does not end'
            found += self._take(self._read(1.0))
        return found

    def kill(self) -> list[Line]:
        """Kills it; returns what it had said before."""
        if self.running:
            with suppress(ProcessLookupError):  # it has ended by itself, and that is not read yet
                os.kill(self.pid, signal.SIGKILL)
        return self.rest()

    def _read(self, seconds: float) -> list[Line]:
        assert self._server.stdout is not None
        descriptor = self._server.stdout.fileno()
        if not select.select([descriptor], [], [], seconds)[0]:
            return []
        data = os.read(descriptor, 1 << 16)
        assert data, 'the program that forks has ended'
        *whole, self._rest = (self._rest + data).split(b'\n')
        return [json.loads(line) for line in whole]

    def _take(self, lines: list[Line]) -> list[Line]:
        """Keeps what the program that forks says, and returns the others."""
        found = []
        for line in lines:
            if line.get('did') == 'fork':
                self.pid = line['pid']
            elif line.get('did') == 'end':
                self.running = False
                if line['code'] not in (0, -signal.SIGKILL):
                    found.append({'did': 'fail', 'error': f'exit code {line["code"]}'})
            else:
                found.append(line)
        return found


def utc(text: str) -> datetime:
    """Returns the instant that a line tells."""
    return datetime.fromisoformat(text).astimezone(UTC)
