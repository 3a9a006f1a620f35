"""Measures what the daemon costs, as ratios against a bare equivalent run beside it; prints each beside its budget.

scripts/bench [NAME …]      all of them, or only: append publish read trigger command-line desks index resume
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
from bench_index import bench_index
from bench_resume import bench_resume

from trading_agent import config
from trading_agent.daemon.daemon import Daemon
from trading_agent.disk import Disk
from trading_agent.event_bus import EventBus
from trading_agent.events import DateChanged
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.trigger import Trigger

EXCHANGE = Exchange('told ' * 40, 'answered ' * 40, 'offline', '2026-10-19T04:00:00.000000Z', 't1')
LINE = msgspec.json.encode(EXCHANGE.to_json_dictionary()) + b'\n'


def say(name: str, ratio: float, budget: str) -> None:
    """Prints one row."""
    print(f'{name:<58} {ratio:8.2f}   budget {budget}')


def median_pair(first: Callable[[], object], second: Callable[[], object], rounds: int) -> float:
    """Returns how much longer the first takes than the second, alternating them."""
    ratios = []
    for _ in range(rounds):
        times = []
        for function in (first, second):
            began = time.perf_counter()
            function()
            times.append(time.perf_counter() - began)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


def bench_append(folder: Path) -> None:
    """A durable append of the store, and from an event loop, against a bare write and fdatasync."""
    store = SessionStore(folder / 'sessions')
    session_id = store.new_session_id(date(2026, 10, 19))
    descriptor = os.open(folder / 'bare', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def bare() -> None:
        for _ in range(100):
            os.write(descriptor, LINE)
            os.fdatasync(descriptor)

    def stored() -> None:
        for _ in range(100):
            store.append_exchange(session_id, EXCHANGE)

    async def from_the_loop() -> float:
        disk, ratios = Disk(), []
        for _ in range(15):
            began = time.perf_counter()
            for _ in range(100):
                await disk.run(store.append_exchange, session_id, EXCHANGE)
            between = time.perf_counter()
            bare()
            ratios.append((between - began) / (time.perf_counter() - between))
        return statistics.median(ratios)

    say('durable append by the store / bare write and fdatasync', median_pair(stored, bare, 15), '1.1')
    say('durable append from the loop / the same', anyio.run(from_the_loop), '2')
    os.close(descriptor)


def bench_publish() -> None:
    """Publishing to 100 subscribers that read in batches, against 1, and against a queue for each."""

    async def bus(subscribers: int, events: int) -> float:
        told = EventBus(capacity=1 << 16)
        done = 0

        async def read() -> None:
            nonlocal done
            seen = 0
            with told.subscribe() as reading:
                while seen < events:
                    seen += len(await reading.batch())
            done += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(subscribers):
                tasks.start_soon(read)
            await anyio.sleep(0.05)
            began = time.perf_counter()
            for number in range(events):
                told.publish(DateChanged(desks=number))
                if number % 256 == 0:
                    await anyio.lowlevel.checkpoint()
        return time.perf_counter() - began

    async def queues(subscribers: int, events: int) -> float:
        all_queues: list[asyncio.Queue[DateChanged]] = [asyncio.Queue() for _ in range(subscribers)]

        async def read(queue: asyncio.Queue[DateChanged]) -> None:
            for _ in range(events):
                await queue.get()

        async with anyio.create_task_group() as tasks:
            for queue in all_queues:
                tasks.start_soon(read, queue)
            began = time.perf_counter()
            for number in range(events):
                event = DateChanged(desks=number)
                for queue in all_queues:
                    queue.put_nowait(event)
                if number % 256 == 0:
                    await anyio.lowlevel.checkpoint()
        return time.perf_counter() - began

    def publishing(subscribers: int) -> float:
        told = EventBus()

        async def alone() -> float:
            async with anyio.create_task_group() as tasks:
                for _ in range(subscribers):

                    async def follow() -> None:
                        with told.subscribe() as reading:
                            await reading.batch()

                    tasks.start_soon(follow)
                await anyio.sleep(0.05)
                event = DateChanged(desks=1)
                began = time.perf_counter()
                for _ in range(20_000):
                    told.publish(event)
                return time.perf_counter() - began

        return anyio.run(alone)

    flat = statistics.median(publishing(100) / publishing(1) for _ in range(7))
    say('publish with 100 subscribers / with 1', flat, 'flat (1)')
    gain = statistics.median(anyio.run(queues, 100, 5000) / anyio.run(bus, 100, 5000) for _ in range(5))
    say('throughput to 100 subscribers / a queue for each', gain, 'at least 5')


def bench_read(folder: Path) -> None:
    """Reading a session of 100,000 exchanges against msgspec decoding its lines and nothing else."""
    store = SessionStore(folder / 'read')
    session_id = store.new_session_id(date(2026, 10, 19))
    path = store.log_path(session_id)
    path.write_bytes(LINE * 100_000)
    decoder = msgspec.json.Decoder(Exchange)

    def bare() -> list[Exchange]:
        return [decoder.decode(line) for line in path.read_bytes().split(b'\n') if line]

    say(
        'whole session of 100,000 exchanges / decoding its lines',
        median_pair(lambda: store.exchanges(session_id), bare, 5),
        '1.5',
    )


def bench_trigger(folder: Path) -> None:
    """How often an answered trigger waits for the disk."""
    synced = 0
    real = {name: getattr(os, name) for name in ('fsync', 'fdatasync')}

    def counting(name: str) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            nonlocal synced
            synced += 1
            real[name](descriptor)

        return sync

    async def triggers() -> float:
        nonlocal synced
        settings = msgspec.structs.replace(config.Config(), workspace=folder / 'triggers')
        async with Daemon(settings, faces=False) as daemon:
            await daemon.bus.send(Trigger('first', 'main'))
            await daemon.supervisor.settled()
            synced = 0
            for number in range(50):
                await daemon.bus.send(Trigger(f'message {number}', 'main'))
                await daemon.supervisor.settled()
            return synced / 50

    for name in real:
        setattr(os, name, counting(name))
    try:
        waits = anyio.run(triggers)
    finally:
        for name, function in real.items():
            setattr(os, name, function)
    say('waits for the disk per answered trigger', waits, '4')


@contextmanager
def running(folder: Path, config_text: str = '') -> Iterator[tuple[list[str], int]]:
    """Runs a daemon within the block; yields the command line that reaches it, and its process."""
    folder.mkdir()
    (folder / 'config.toml').write_text(config_text)
    command = [sys.executable, '-m', 'trading_agent', '--config', str(folder / 'config.toml')]
    command += ['--workspace', str(folder / 'workspace')]
    with (folder / 'log').open('wb') as log:
        daemon = subprocess.Popen([*command, 'run'], stderr=log)
    try:
        while b'daemon_ready' not in (folder / 'log').read_bytes():
            time.sleep(0.05)
        yield command, daemon.pid
    finally:
        daemon.terminate()
        daemon.wait()


def bench_command_line(folder: Path) -> None:
    """`status` and `send` against a Python that does nothing; and what an idle daemon costs."""
    with running(folder / 'cli') as (command, daemon):

        def run(*arguments: str) -> Callable[[], object]:
            return lambda: subprocess.run([*command, *arguments], check=True, capture_output=True)

        def nothing() -> object:
            return subprocess.run([sys.executable, '-c', 'pass'], check=True)

        say('status / python -c pass', median_pair(run('status'), nothing, 15), '8')
        say('send / python -c pass', median_pair(run('send', 'main', 'x'), nothing, 15), '8')
        before = _processor_seconds(daemon)
        time.sleep(5)
        say('idle daemon, percent of a core', (_processor_seconds(daemon) - before) / 5 * 100, 'under 1')


def bench_desks(folder: Path) -> None:
    """The memory that a desk takes in an idle daemon: of 200 more than the first, each."""

    def kilobytes(desks: int) -> int:
        names = '\n'.join(f'[[desks]]\nname = "desk-{number}"' for number in range(desks))
        with running(folder / f'desks-{desks}', names) as (_, daemon):
            status = Path(f'/proc/{daemon}/status').read_text()
        return int(status.partition('VmRSS:')[2].split()[0])

    say('memory of a desk in an idle daemon, KB', (kilobytes(201) - kilobytes(1)) / 200, '100')


def _processor_seconds(pid: int) -> float:
    """Reads user and system time of a process (proc(5))."""
    fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def main() -> None:
    """Runs the benchmarks that are named, or all of them, each in a folder of its own."""
    benches: dict[str, Callable[[Path], None]] = {
        'append': bench_append,
        'publish': lambda _: bench_publish(),
        'read': bench_read,
        'trigger': bench_trigger,
        'command-line': bench_command_line,
        'desks': bench_desks,
        'index': lambda folder: bench_index(folder, say),
        'resume': lambda folder: bench_resume(folder, say, median_pair),
    }
    names = sys.argv[1:] or list(benches)
    if unknown := [name for name in names if name not in benches]:
        sys.exit(f'scripts/bench: there is no benchmark {", ".join(unknown)}; there are {", ".join(benches)}')
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            benches[name](Path(folder))


if __name__ == '__main__':
    main()
