"""Disks that take seconds for a sync: one desk's, which the others must not feel, and that of the whole process."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from load import PROMPT_SECONDS, Size, Stalls, config, exchanges, put, seconds_of
from process import Process, eventually
from race import LAST_SECOND, Race, at_rest
from test_notify import Manager

from trading_agent.clock import ManualClock
from trading_agent.daemon.daemon import Daemon
from trading_agent.events import TurnFinished
from trading_agent.trigger import Trigger

SLOW_DESKS = 20
"""More than there are threads for files."""

WATCHDOG_SECONDS = 2.0
PATIENCE_SECONDS = 120.0


# -- one desk's disk -------------------------------------------------------------------------------------------


class SlowDisk:
    """Lets syncs of what is in some folders take a while, as on a disk of their own.

    Args:
        patch: Takes it out again.
        folders: The folders.
        seconds: How long.

    Attributes:
        slow: Whether they do now.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folders: list[Path], seconds: float) -> None:
        self._folders = tuple(f'{folder}/' for folder in folders)
        self._seconds = seconds
        self.slow = False
        for name in ('fsync', 'fdatasync'):
            patch.setattr(os, name, self._slowly(getattr(os, name)))

    def _slowly(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            if self.slow and f'{Path(f"/proc/self/fd/{descriptor}").readlink()}/'.startswith(self._folders):
                time.sleep(self._seconds)
            sync(descriptor)

        return call


async def desks(race: Race, size: Size) -> None:
    """Twenty desks wait for a disk that takes long for each sync: one on another disk feels nothing of it."""
    slow_ones = [f'slow{number}' for number in range(SLOW_DESKS)]
    seconds = min(size.sync_seconds, 2.0)
    with pytest.MonkeyPatch.context() as patch:
        disk = SlowDisk(patch, [race.workspace / 'desks' / name for name in slow_ones], seconds)
        settings = config(race.workspace, [*slow_ones, 'quick'])
        async with Daemon(settings, ManualClock(LAST_SECOND), environ={}) as daemon:
            async with anyio.create_task_group() as tasks:
                disk.slow = True
                for name in slow_ones:
                    for number in range(3):
                        tasks.start_soon(send, race, daemon, name, f'{name}-{number}')
                await anyio.sleep(seconds / 4)
                await quick_desk(race, daemon, seconds)
                disk.slow = False
            await at_rest(daemon)
    for name in slow_ones:
        race.expect(len(exchanges(race.workspace, name)) == 3, f'{name} has not answered')
    race.check([[f'quick-{number}' for number in range(5)]], 'quick')


async def send(race: Race, daemon: Daemon, desk: str, trigger_id: str) -> None:
    """Sends a trigger."""
    receipt = await daemon.bus.send(Trigger('hello', desk, id=trigger_id))
    race.expect(receipt.status == 'accepted', f'{trigger_id}: {receipt}')


async def quick_desk(race: Race, daemon: Daemon, seconds: float) -> None:
    """Lets the desk on the other disk answer triggers and a file, while a sync of the others takes so many seconds."""
    inbox = race.workspace / 'desks' / 'quick' / 'inbox'
    put(inbox / 'file.txt', 'hello')
    began = time.monotonic()
    with daemon.bus.subscribe(TurnFinished) as finished:
        for number in range(5):
            await send(race, daemon, 'quick', f'quick-{number}')
            await at_rest_of(daemon, 'quick')
        took = time.monotonic() - began
        first = [item.event.desk for item in finished.ready()]
    await eventually(lambda: list((inbox / 'done').glob('*/file.txt')), 'a file is taken')
    took_file = time.monotonic() - began
    await anyio.to_thread.run_sync(check_prompt, race, daemon.socket_path)
    race.expect(set(first) == {'quick'}, f'it took {took:.1f} s, and others were quicker: {first}')
    race.expect(took < 3 * seconds, f'five turns of the quick desk took {took:.1f} s, a sync of others {seconds} s')
    race.expect(took_file < 3 * seconds + 1, f'a file in the quick inbox took {took_file:.1f} s')


def check_prompt(race: Race, path: Path) -> None:
    """Asks what needs no disk."""
    for method, target in (('GET', '/v1/status'), ('GET', '/v1/backends')):
        took = seconds_of(path, method, target)
        race.expect(took < PROMPT_SECONDS, f'{method} {target} took {took:.1f} s')


async def at_rest_of(daemon: Daemon, name: str) -> None:
    """Returns once a desk has nothing to do."""
    desk = daemon.supervisor.desks[name]
    while not (desk.idle and not desk.queue.depth):  # noqa: ASYNC110
        await anyio.sleep(0.002)


# -- the disk of the whole process -----------------------------------------------------------------------------

THREE_DESKS = """
drain = "{drain}s"
[backends.offline]
kind = "offline"
[[desks]]
name = "one"
[[desks]]
name = "two"
[[desks]]
name = "three"
"""


@contextmanager
def slow_syncs(pid: int, seconds: float) -> Iterator[None]:
    """Lets each sync of a running process take long (strace(1): the delay holds up that thread alone)."""
    inject = f'inject=fsync,fdatasync:delay_enter={round(seconds * 1e6)}'
    command = ['strace', '-f', '-qq', '-p', str(pid), '-o', os.devnull, '-e', 'trace=fsync,fdatasync', '-e', inject]
    strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 20
        while not all_traced(pid):
            if strace.poll() is not None or time.monotonic() > until:
                raise OSError(f'strace does not attach: {strace.stderr.read() if strace.stderr else b""!r}')
            time.sleep(0.01)
        yield
    finally:
        strace.terminate()
        strace.wait()
        if strace.stderr is not None:
            strace.stderr.close()


def all_traced(pid: int) -> bool:
    """Returns whether every thread of a process is being traced (proc(5))."""
    return all('TracerPid:\t0\n' not in path.read_text() for path in Path(f'/proc/{pid}/task').glob('*/status'))


async def whole(race: Race, size: Size) -> None:
    """A disk takes seconds for each sync: answers come late, and all else in time, up to an orderly stop."""
    await anyio.to_thread.run_sync(_whole, race, size.sync_seconds)


def _whole(race: Race, seconds: float) -> None:
    at_length = seconds > PROMPT_SECONDS * 2
    text = THREE_DESKS.format(drain=round(10 * seconds))
    manager = Manager(race.workspace.with_name('notify'))
    environ = {'NOTIFY_SOCKET': str(manager.path), 'WATCHDOG_USEC': f'{WATCHDOG_SECONDS * 1e6:.0f}'}
    names = ('one', 'two', 'three')
    accepted: dict[str, list[str]] = {name: [] for name in names}
    done = threading.Event()
    daemon = Process(race.workspace, text, environ=environ)
    stalls = Stalls()

    def send(desk: str, trigger_id: str) -> None:
        receipt = daemon.send('hello', desk, id=trigger_id)
        race.expect(receipt['status'] == 'accepted', f'{trigger_id}: {receipt}')
        accepted[desk].append(trigger_id)

    def ask() -> None:
        while not done.is_set():
            for method, target in (('GET', '/v1/status'), ('GET', '/v1/backends'), ('POST', '/v1/reload')):
                took = seconds_of(race.workspace / 'control.sock', method, target)
                race.expect(took < PROMPT_SECONDS, f'{method} {target} took {took:.1f} s, a sync {seconds} s')
            time.sleep(0.05)

    try:
        daemon.ready()
        with stalls, slow_syncs(daemon.pid, seconds), ThreadPoolExecutor(4) as threads:
            asking = threads.submit(ask)
            asking = threads.submit(ask)
            if at_length:
                list(threads.map(send, names, [f'{name}-first' for name in names]))
                wait_until(lambda: len(daemon.found('turn_finished')) == len(names), 'all have answered')
            list(threads.map(send, names, [f'{name}-last' for name in names]))
            time.sleep(seconds)  # while a turn is on its way to the disk
            done.set()
            asking.result()
            began = time.monotonic()
            daemon.send_signal(signal.SIGTERM)
            wait_until(lambda: not daemon.alive, 'it has stopped')
            took = time.monotonic() - began
        race.expect(daemon.wait() == 0, 'it does not end in order')
        race.expect(took < 10 * seconds + 5, f'the stop took {took:.1f} s')
    finally:
        done.set()
        daemon.close()
        manager.close()
    pings = manager.when('WATCHDOG=1')
    longest = max((stalls.taken(*between) for between in pairwise(pings)), default=0.0)
    race.expect(pings and longest < WATCHDOG_SECONDS, f'the watchdog waited for {longest:.1f} s')
    go_on(race, text, accepted)


def go_on(race: Race, text: str, accepted: dict[str, list[str]]) -> None:
    """Starts it on a good disk: what was accepted is answered."""
    daemon = Process(race.workspace, text)
    try:
        daemon.ready()
        wait_until(lambda: not any(daemon.desk(name)['queue'] for name in accepted), 'all is answered')
        race.expect(daemon.stop() == 0, 'it does not end in order')
    finally:
        daemon.close()
    for name, ids in accepted.items():
        race.check([ids], name)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Returns once a condition is true.

    Raises:
        TimeoutError: It does not come true.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(what)
        time.sleep(0.02)
