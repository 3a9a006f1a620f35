"""Kills rollovers, one at each moment: `python killed_rollovers.py TEMPLATE TARGET YYYY-MM-DD`.

The workspace TEMPLATE, with a session of that day, is copied to TARGET/1, TARGET/2 …; in the k-th copy a daemon
crosses the midnight after that day and is killed by SIGKILL just before its k-th call that changes a file. The last
copy's daemon gets through. Where the call was one of the system's, within one of `files`, a second daemon is started
on the copy: with a backend that fails, wherever the rollover has its answers already. The others are left as they are.

For each copy a line of JSON is printed: which call, and how far the rollover was. What a daemon published is in
TARGET/k.events, line by line as it came; a line `null` parts the two daemons.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import msgspec

from trading_agent import files, swap
from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config
from trading_agent.daemon.daemon import Daemon
from trading_agent.events import Event

PRIMITIVES = {
    files: ('append', 'replace', 'create', 'link', 'move', 'remove'),
    os: ('pwrite', 'replace', 'link', 'ftruncate'),
    swap: ('exchange',),
}
"""A sync is none of them: before it everything is as it is before the next one, for a killed process loses no page."""


class Killer:
    """Ends the process before the k-th call that changes a file, once it is armed.

    Args:
        moment: Which call, from 1.
        call: The file where it writes the call's name.
    """

    def __init__(self, moment: int, call: Path) -> None:
        self._left = moment
        self._call = call
        self.armed = False

    def prepare(self) -> None:
        """Puts itself before each such call of this process."""
        for module, names in PRIMITIVES.items():
            for name in names:
                setattr(module, name, self._wrapped(f'{module.__name__}.{name}', getattr(module, name)))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever that function takes
            if self.armed:
                self._left -= 1
                if not self._left:
                    self._call.write_text(name)
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call


@dataclass
class Run:
    """One daemon's run on a workspace.

    Attributes:
        workspace: The workspace.
        start: When it starts.
        span: How much time it is to see.
        failing: Whether its backend fails.
        killer: Ends it once that time passes, or None.
    """

    workspace: Path
    start: datetime
    span: timedelta = timedelta()
    failing: bool = False
    killer: Killer | None = None

    def in_a_child(self) -> int:
        """Runs it in a process of its own; returns how that ended, as wait(2) tells it."""
        child = os.fork()
        if not child:
            if self.killer is not None:
                self.killer.prepare()
            anyio.run(self._run)
            os._exit(0)
        return os.waitpid(child, 0)[1]

    async def _run(self) -> None:
        clock = ManualClock(self.start)
        backend = Backend(kind='offline', options={'fail_every': int(self.failing)})
        daemon = Daemon(Config(workspace=self.workspace, backends={'offline': backend}), clock, faces=False)
        self._write_down_events_of(daemon)
        async with daemon:
            (desk,) = daemon.supervisor.desks.values()
            await daemon.supervisor.settled()
            if self.killer is not None:
                self.killer.armed = True
            clock.advance(self.span)
            while not (daemon.scheduler.settled and desk.idle):  # noqa: ASYNC110 - there is no such event
                await anyio.sleep(0.001)
            if self.killer is not None:
                self.killer.armed = False

    def _write_down_events_of(self, daemon: Daemon) -> None:
        log = os.open(f'{self.workspace}.events', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        publish = daemon.bus.publish

        def written_down(event: Event) -> None:
            os.write(log, msgspec.json.encode(event) + b'\n')
            publish(event)

        daemon.bus.publish = written_down  # type: ignore[method-assign]


def stage_of(workspace: Path) -> str | None:
    """Returns how far the rollover is, or None where none is under way."""
    path = workspace / 'desks' / 'main' / 'sessions' / 'rollover.json'
    return str(json.loads(path.read_bytes())['stage']) if path.exists() else None


def main(template: Path, target: Path, day: str) -> None:
    """Kills one daemon after the other, until one gets through."""
    before = datetime.fromisoformat(f'{day}T23:59:57').replace(tzinfo=INDIA)
    for moment in count(1):
        workspace, call = target / str(moment), target / f'{moment}.call'
        shutil.copytree(template, workspace)
        code = Run(workspace, before, timedelta(seconds=5), killer=Killer(moment, call)).in_a_child()
        if code not in (0, signal.SIGKILL):
            sys.exit(f'the daemon of moment {moment} ended with {code}')
        name, stage = call.read_text() if code else None, stage_of(workspace)
        sys.stdout.write(json.dumps({'moment': moment, 'call': name, 'stage': stage}) + '\n')
        sys.stdout.flush()
        if name is None:
            return
        if name.startswith('os.'):
            with Path(f'{workspace}.events').open('a') as events:
                events.write('null\n')
            failing = stage not in (None, 'answers')
            if Run(workspace, before + timedelta(minutes=5), failing=failing).in_a_child():
                sys.exit(f'the second daemon of moment {moment} failed')


if __name__ == '__main__':
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
