"""Desks at work in a process that is to be broken: `python writer.py` forks one for each line of JSON on stdin.

Whoever breaks it uses `Writers`. What the desks acknowledge and tell comes as lines of JSON over a pipe, so that it is
kept off the file system that is broken.
"""

import json
import logging
import os
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import images
import msgspec
import planted
from writers import DESKS, Task

from trading_agent.clock import ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.conversation import recorder
from trading_agent.daemon import desk_loop, indexing, restarts
from trading_agent.daemon.daemon import Daemon
from trading_agent.errors import TradingAgentError
from trading_agent.events import (
    ComponentFailed,
    DeskParked,
    DeskRestarted,
    Event,
    MemoryUpdated,
    SessionStarted,
    StoreDamaged,
    SummaryWritten,
    TurnFinished,
    WriteFailed,
)
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.routing import model_router
from trading_agent.trigger import Trigger

MOST_WAITING = 4

_TOLD = (
    ComponentFailed,
    DeskParked,
    DeskRestarted,
    MemoryUpdated,
    SessionStarted,
    StoreDamaged,
    SummaryWritten,
    TurnFinished,
    WriteFailed,
)
_FIELDS = ('event', 'desk', 'session_id', 'trigger_id', 'path', 'line', 'error_type', 'error', 'hint')
_LONGEST = 400
"""So long is a field told at most: a line that is shorter than PIPE_BUF is told whole or not at all, pipe(7)."""

IMPATIENCE: dict[tuple[Any, str], object] = {
    (desk_loop, 'TRY_AGAIN_SECONDS'): (0.02, 0.1),
    (model_router, 'WRITE_AGAIN_SECONDS'): (0.02, 0.1),
    (recorder, 'WRITE_AGAIN_SECONDS'): 0.02,
    (restarts, 'LONGEST_DELAY_SECONDS'): 0.1,
    (indexing, 'GATHER_SECONDS'): 0.02,
    (indexing, 'LOOK_SECONDS'): 0.3,
    (indexing, 'PAUSE_SECONDS'): 0.001,
    (indexing, 'AGAIN_SECONDS'): (0.05, 0.2),
}


@contextmanager
def impatient() -> Iterator[None]:
    """Lets the program wait for less long than it does, before it tries again what failed."""
    before = {(module, name): getattr(module, name) for module, name in IMPATIENCE}
    try:
        for (module, name), value in IMPATIENCE.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def text_of(trigger_id: str) -> str:
    """Returns what a trigger says: the same each time; a few words, or so many that they fill pages of a file."""
    chances = random.Random(trigger_id)  # noqa: S311 - the same text each time
    words = chances.choice((3, 10, 40, 200, 900)) if chances.random() < 0.95 else 9000
    rule = f'Remember: never sell {trigger_id} below {chances.randrange(1000)}. ' if chances.random() < 0.3 else ''
    return rule + ' '.join(chances.choice(('buy', 'sell', 'hold', '₹', 'NSE', 'limit')) for _ in range(words))


def _tell(**line: object) -> None:
    short = {key: value[:_LONGEST] if isinstance(value, str) else value for key, value in line.items()}
    os.write(1, json.dumps(short, ensure_ascii=False).encode(errors='replace') + b'\n')


class _Logged(logging.Handler):
    """Tells what is told by the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        _tell(event='log', error=record.getMessage())


class Work:
    """The desks of one process, and who sends them triggers.

    Args:
        task: What they are to do.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._clock = ManualClock(task.now)
        self._number = task.number
        backend = Backend(kind='offline')
        desks = [Desk(name=name) for name in DESKS]
        config = Config(workspace=Path(task.workspace), backends={'offline': backend}, desks=desks)
        self._daemon = Daemon(config, self._clock, faces=False, index=True, environ={})
        self._publish = self._daemon.bus.publish
        self._daemon.bus.publish = self._told  # type: ignore[method-assign]

    def _told(self, event: Event) -> None:
        if isinstance(event, _TOLD):
            told = msgspec.to_builtins(event)
            _tell(**{name: told[name] for name in _FIELDS if name in told})
        self._publish(event)

    async def run(self) -> None:
        """Does it until the process is killed, or it is settled."""
        async with self._daemon:
            _tell(did='begin')
            if self._task.settle:
                await self._settle()
                return
            async with anyio.create_task_group() as tasks:
                for desk in DESKS:
                    tasks.start_soon(self._feed, desk)

    async def _settle(self) -> None:
        desks = self._daemon.supervisor.desks.values()
        index = SqliteIndex(Path(self._task.workspace))
        while not all(desk.idle and desk.queue.depth == 0 for desk in desks):  # noqa: ASYNC110 - there is no event
            await anyio.sleep(0.002)
        while await anyio.to_thread.run_sync(index.behind):  # noqa: ASYNC110 - likewise
            await anyio.sleep(0.005)
        differences = await anyio.to_thread.run_sync(index.check)
        index.close()
        for difference in differences:
            _tell(did='compare', difference=str(difference))

    async def _feed(self, desk: str) -> None:
        chances = random.Random(f'{self._task.seed}-{desk}')  # noqa: S311 - no secret
        for trigger_id in self._task.again.get(desk, ()):
            await self._send(desk, trigger_id)
        while True:
            what = chances.random()
            if what < 0.1:
                await self._roll_over(desk)
            elif what < 0.15:
                days = timedelta(days=chances.choice((0, 1, 1, 3)), minutes=chances.randrange(60))
                _tell(did='pass', now=(self._clock.now() + days).isoformat())
                self._clock.advance(days)
            else:
                async with anyio.create_task_group() as together:
                    for _ in range(chances.choice((1, 1, 1, 2, 5))):
                        self._number += 1
                        together.start_soon(self._send, desk, f'{desk}-{self._number}')
            while self._daemon.supervisor.desks[desk].queue.depth > MOST_WAITING:  # noqa: ASYNC110 - no such event
                await anyio.sleep(0.001)

    async def _send(self, desk: str, trigger_id: str) -> None:
        _tell(did='send', desk=desk, trigger_id=trigger_id)
        trigger = Trigger(text_of(trigger_id), desk, id=trigger_id, received_at=self._clock.now())
        receipt = await self._daemon.bus.send(trigger)
        _tell(did='receive', desk=desk, trigger_id=trigger_id, status=receipt.status, reason=receipt.reason)

    async def _roll_over(self, desk: str) -> None:
        try:
            await self._daemon.supervisor.desks[desk].roll_over()
        except TradingAgentError as error:
            _tell(did='roll over', desk=desk, error=str(error))


def _with_space_after_a_failure(space: Path) -> None:
    """Makes room as soon as a sync has failed: from then on the system says that all is well."""
    for name in ('fsync', 'fdatasync'):
        real = getattr(os, name)

        def sync(descriptor: int, real: Any = real) -> None:  # noqa: ANN401 - a function
            try:
                real(descriptor)
            except OSError as error:
                with suppress(FileNotFoundError):  # another thread made it, or nobody takes any
                    space.unlink()
                    _tell(did='make room', error=str(error), path=str(Path(f'/proc/self/fd/{descriptor}').readlink()))
                raise

        setattr(os, name, sync)


def _work(data: bytes) -> None:
    """Is the whole life of a process that is to be broken."""
    images.die_with_parent()
    code = 1
    try:
        task = msgspec.json.decode(data, type=Task)
        if task.space:
            _with_space_after_a_failure(Path(task.space))
        logging.getLogger().addHandler(_Logged(logging.WARNING))
        with impatient():
            anyio.run(Work(task).run)
        code = 0
    except BaseException:  # noqa: BLE001 - it is told
        _tell(did='fail', error=traceback.format_exc()[-_LONGEST:])
    finally:
        os._exit(code)


def _serve() -> None:
    images.die_with_parent()
    planted.plant_from_environment()
    for data in sys.stdin.buffer:
        child = os.fork()
        if not child:
            _work(data)
        _tell(did='fork', pid=child)
        _tell(did='end', code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == '__main__':
    _serve()
