"""What overloads are made with: how much of it, and how it is measured."""

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from process import unix_request

from trading_agent.config import Backend, Config, Desk

MEGABYTE = 1 << 20
PROMPT_SECONDS = 1.0
"""How soon a request that waits for no disk is answered, whatever else goes on."""

LOOK_SECONDS = 0.02


class Size(NamedTuple):
    """How much there is of it.

    Attributes:
        sends: How many triggers a component or a client sends.
        files: How many files are put into an inbox.
        sync_seconds: How long a sync takes.
    """

    sends: int
    files: int
    sync_seconds: float


SHORT = Size(sends=400, files=150, sync_seconds=1.2)
LONG = Size(sends=2000, files=1000, sync_seconds=5.0)


def resident(pid: int | str = 'self') -> int:
    """Returns the memory of a process, in bytes (proc(5))."""
    return int(Path(f'/proc/{pid}/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def config(workspace: Path, desks: Sequence[str] = ('main',), *, queue_limit: int = 1000, delay: str = '0ms') -> Config:
    """Returns a configuration."""
    return Config(
        workspace=workspace,
        backends={'offline': Backend(kind='offline', options={'delay': delay})},
        desks=[Desk(name=name, queue_limit=queue_limit) for name in desks],
    )


class Stalls:
    """Notices when this process stands still, as it does where its host gives the cores to others.

    What takes long meanwhile is not to blame for it.
    """

    def __init__(self) -> None:
        self._stood_still: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        before, ended = time.monotonic(), False
        while not ended:
            ended = self._ended.wait(LOOK_SECONDS)
            now = time.monotonic()
            if now - before > 2 * LOOK_SECONDS:
                self._stood_still.append((before + LOOK_SECONDS, now))
            before = now

    def taken(self, began: float, ended: float) -> float:
        """Returns how much time passed between two moments of the monotonic clock, without that of the stalls."""
        return ended - began - sum(max(0.0, min(to, ended) - max(since, began)) for since, to in self._stood_still)


def seconds_of(path: Path, method: str = 'GET', target: str = '/v1/status') -> float:
    """Returns how long a request takes on a control socket."""
    with Stalls() as stalls:
        began = time.monotonic()
        unix_request(path, method, target)
        ended = time.monotonic()
    return stalls.taken(began, ended)


def put(path: Path, text: str) -> None:
    """Puts a file into an inbox."""
    path.write_text(text)
    path.chmod(0o600)


def exchanges(workspace: Path, desk: str = 'main') -> list[str]:
    """Returns the lines of a desk's logs."""
    logs = sorted((workspace / 'desks' / desk / 'sessions').glob('*.jsonl'))
    return [line for log in logs for line in log.read_text().split('\n') if line]
