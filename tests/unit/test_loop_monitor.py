"""The thread that names what blocks the event loop."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from trading_agent.daemon import loop_monitor
from trading_agent.daemon.loop_monitor import LoopMonitor
from trading_agent.events import LoopBlocked


class Told:
    """What a monitor has told: `now` from its thread, `later` on the loop."""

    def __init__(self) -> None:
        self.now: list[LoopBlocked] = []
        self.later: list[LoopBlocked] = []
        self.threads: list[str] = []

    def tell_now(self, event: LoopBlocked) -> None:
        self.threads.append(threading.current_thread().name)
        self.now.append(event)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches the loop of the test."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(LoopMonitor(self.tell_now, self.later.append).run)
            yield
            tasks.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a tenth of a second count as blocked."""
    monkeypatch.setattr(loop_monitor, 'BLOCKED_SECONDS', 0.1)
    monkeypatch.setattr(loop_monitor, 'BEAT_SECONDS', 0.02)


def _stand_in_the_way(seconds: float) -> None:
    time.sleep(seconds)


def _stand_in_the_way_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


async def _until(told: list[LoopBlocked], count: int) -> None:
    with anyio.fail_after(30):
        while len(told) < count:  # noqa: ASYNC110 - any list
            await anyio.sleep(0.005)


async def test_a_task_that_blocks() -> None:
    """Each time that a task blocks the loop it is named once, from the thread, and once on the loop afterwards."""
    told = Told()

    async def slow() -> None:
        for _ in range(2):
            await anyio.sleep(0.1)
            before = len(told.now)
            _stand_in_the_way_until(lambda before=before: len(told.now) > before)  # type: ignore[misc]
            _stand_in_the_way(0.1)
            assert len(told.now) == before + 1, 'it was not told while it went on, or twice'

    async with told.watching(), anyio.create_task_group() as tasks:
        tasks.start_soon(slow, name='component slow')
        await _until(told.later, 2)
    assert told.later == told.now
    assert told.threads == ['loop-monitor'] * 2
    for event in told.now:
        assert event.task == 'component slow'
        assert f'_stand_in_the_way_until ({__file__}:' in event.error
        assert f'< slow ({__file__}:' in event.error
        assert event.blocked_ms >= 100
        assert 'anyio.to_thread.run_sync' in event.hint


async def test_a_callback_that_blocks() -> None:
    """What blocks without a task is named as a callback, with its function."""
    told = Told()
    async with told.watching():
        asyncio.get_running_loop().call_soon(_stand_in_the_way_until, lambda: bool(told.now))
        await _until(told.later, 1)
    assert told.now[0].task == 'a callback'
    assert '_stand_in_the_way_until' in told.now[0].error


async def test_one_that_waits_for_a_lock() -> None:
    """Code that waits without end for something that only the loop could bring is named while it does."""
    told = Told()
    lock = threading.Lock()

    def let_go() -> None:
        _stand_in_the_way_until(lambda: bool(told.now))
        lock.release()

    async with told.watching():
        lock.acquire()
        threading.Thread(target=let_go).start()
        await anyio.lowlevel.checkpoint()
        assert lock.acquire(timeout=5)
        await _until(told.later, 1)
    assert 'blocked in test_one_that_waits_for_a_lock' in told.now[0].error


async def test_one_that_lets_no_thread_run() -> None:
    """Code of a C library that keeps all threads waiting is named as soon as it lets one run."""
    told = Told()
    async with told.watching():
        for _ in range(20):  # where others have most of the machine, it may look as if the process was stopped
            await anyio.sleep(0.1)
            re.match(r'(a+)+$', 'a' * 24 + 'b')
            if told.now:
                break
        await _until(told.later, 1)
    assert f'({__file__}:' in told.now[0].error


async def test_short_work_and_much_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short pieces of work are no block, however much time they take together."""
    monkeypatch.setattr(loop_monitor, 'BLOCKED_SECONDS', 1.0)
    told = Told()
    async with told.watching():
        for _ in range(30):
            _stand_in_the_way(0.05)
            await anyio.lowlevel.checkpoint()
    assert told.now == []


async def test_it_looks_at_nobody_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the loop turns nobody's stack is looked at: that would keep alive what is in its variables."""
    monkeypatch.setattr(loop_monitor, 'BLOCKED_SECONDS', 30.0)
    monkeypatch.setattr(loop_monitor, 'BEAT_SECONDS', 0.001)
    told = Told()
    looks: list[int] = []
    monkeypatch.setattr(sys, '_current_frames', lambda: looks.append(1))
    async with told.watching():
        await anyio.sleep(0.2)
    assert looks == []


async def test_its_end() -> None:
    """With the monitor its thread ends."""
    told = Told()
    async with told.watching():
        threads = [thread for thread in threading.enumerate() if thread.name == 'loop-monitor']
        assert threads
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


PROGRAM = """
import sys, anyio
from trading_agent.daemon.loop_monitor import LoopMonitor

async def main():
    async with anyio.create_task_group() as tasks:
        told = lambda event: print(event.error, flush=True)
        await tasks.start(LoopMonitor(told, told).run)
        print('ready', flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        await anyio.sleep(0.6)
        tasks.cancel_scope.cancel()

anyio.run(main)
"""


def test_a_process_that_was_stopped(tmp_path: Path) -> None:
    """When the whole process or its host stood still, nobody's code is blamed for it."""
    process = subprocess.Popen(
        [sys.executable, '-c', PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == 'ready\n'
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.6)
        process.send_signal(signal.SIGCONT)
        told, _ = process.communicate('\n', timeout=30)
    assert told == ''
    assert process.returncode == 0
