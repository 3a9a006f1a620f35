"""Races between processes that share a workspace: makers of sessions, daemons, readers of files and of the index."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from itertools import count
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from auditor import audit
from file_clock import FileClock
from index_days import rebuilt, rows_of
from planted import planted
from process import Process, unix_request, until
from race import LAST_SECOND, Race, Sender, at_rest, config, running

from trading_agent.cli import main as command_line
from trading_agent.clock import ManualClock
from trading_agent.daemon.daemon import Daemon
from trading_agent.errors import WorkspaceLocked
from trading_agent.events import TriggerClosed
from trading_agent.index import feed
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.memory.session_store import SessionStore

DAY = date(2026, 3, 10)
DEADLINE_SECONDS = 20.0
_PDEATHSIG = 1


# -- processes -------------------------------------------------------------------------------------------------


def _begin(plant: str, function: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401
    """Runs in a child: it dies with whoever forked it."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    with planted(plant):
        function(*arguments)


class Children:
    """Processes that are forked from one that has loaded the program, and has no threads.

    Args:
        plant: The fault that is planted into each.
    """

    def __init__(self, plant: str) -> None:
        self._context = multiprocessing.get_context('forkserver')
        self._plant = plant
        self._started: list[ForkServerProcess] = []

    def start(self, function: Callable[..., None], *arguments: Any) -> ForkServerProcess:  # noqa: ANN401
        """Starts one."""
        process = self._context.Process(target=_begin, args=(self._plant, function, *arguments))
        process.start()
        self._started.append(process)
        return process

    def start_talking(self, function: Callable[..., None], *arguments: Any) -> tuple[ForkServerProcess, Connection]:  # noqa: ANN401
        """Starts one that is given the other end of a pipe last."""
        here, there = self._context.Pipe()
        process = self.start(function, *arguments, there)
        there.close()
        return process, here

    def barrier(self, parties: int) -> Barrier:
        """Returns a barrier for some of them."""
        return self._context.Barrier(parties)

    def end(self) -> None:
        """Ends those that are left."""
        for process in self._started:
            process.kill()
            process.join()
            process.close()


@contextmanager
def children(race: Race) -> Iterator[Children]:
    """Yields what starts processes; none of them outlives the block."""
    multiprocessing.get_context('forkserver').set_forkserver_preload([__name__])
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))  # what is loaded ahead is found by it
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop('PYTHONPATH')
        if before is not None:
            os.environ['PYTHONPATH'] = before
    started = Children(race.plant)
    try:
        yield started
    finally:
        started.end()


def _heard(pipe: Connection, what: object) -> Any:  # noqa: ANN401 - whatever was said
    if not pipe.poll(DEADLINE_SECONDS):
        raise TimeoutError(what)
    return pipe.recv()


# -- session ids -----------------------------------------------------------------------------------------------


def _make_sessions(folder: Path, number: int, together: Barrier | None, pipe: Connection) -> None:
    store = SessionStore(folder, lambda: DAY)
    if together is not None:
        choose = store.next_session_id

        def choose_together(trading_date: date) -> str:
            chosen = choose(trading_date)
            with suppress(BrokenBarrierError):
                together.wait(DEADLINE_SECONDS)
            return chosen

        store.next_session_id = choose_together  # type: ignore[method-assign]
    made = [store.new_session_id(DAY) for _ in range(number)]
    if together is not None:
        together.abort()
    pipe.send(made)


async def ids(race: Race) -> None:
    """Processes make sessions in one folder: each id is given to one of them, and each has its log."""
    processes = race.chance.choice([2, 3, 4])
    for together in (True, False):
        folder = race.workspace / str(together)
        with children(race) as started:
            barrier = started.barrier(2) if together else None
            number = 2 if together else processes
            pipes = [started.start_talking(_make_sessions, folder, 15, barrier)[1] for _ in range(number)]
            made = [
                each for pipe in pipes for each in await anyio.to_thread.run_sync(_heard, pipe, 'sessions are made')
            ]
        twice = sorted({each for each in made if made.count(each) > 1})
        race.expect(not twice, f'given to two processes: {twice}')
        there = sorted(path.stem for path in folder.glob('*.jsonl'))
        race.expect(there == sorted(made), f'{made} were given out, and {there} are there')


# -- daemons ---------------------------------------------------------------------------------------------------


def _run_daemon(workspace: Path, together: Barrier | None, pipe: Connection) -> None:
    async def run() -> None:
        try:
            async with Daemon(config(workspace), ManualClock(LAST_SECOND), environ={}) as daemon:
                pipe.send(('runs', os.getpid()))
                await anyio.to_thread.run_sync(pipe.recv)
                await at_rest(daemon)
        except WorkspaceLocked as error:
            pipe.send(('refused', str(error)))

    if together is not None:
        together.wait(DEADLINE_SECONDS)
    anyio.run(run)


async def daemons(race: Race) -> None:
    """Of daemons on one workspace one runs, and those that are refused harm nothing; once killed, it has an heir."""
    await anyio.to_thread.run_sync(_daemons, race)


def _daemons(race: Race) -> None:
    accepted = []

    def send(text: str) -> None:
        status, receipt = unix_request(
            race.workspace / 'control.sock', 'POST', '/v1/desks/main/triggers', {'text': text, 'id': text}
        )
        race.expect(status == 200, f'{text} is not taken: {receipt}')
        accepted.append(text)

    with children(race) as started:
        together = started.barrier(3)
        rivals = [started.start_talking(_run_daemon, race.workspace, together) for _ in range(3)]
        for generation in ('first', 'second'):
            said = [(*_heard(pipe, 'a daemon starts'), process, pipe) for process, pipe in rivals]
            running_ones = [each for each in said if each[0] == 'runs']
            race.expect(len(running_ones) == 1, f'{len(running_ones)} daemons run on one workspace')
            if len(running_ones) != 1:
                return
            _, pid, process, pipe = running_ones[0]
            for _, why, *_ in (each for each in said if each[0] == 'refused'):
                race.expect(f'pid {pid}' in why or 'just starting' in why, f'the refusal does not say who: {why}')
            send(f'to the {generation}')
            _, late = started.start_talking(_run_daemon, race.workspace, None)
            race.expect(_heard(late, 'a late daemon')[0] == 'refused', 'a second daemon runs beside the first')
            send(f'again to the {generation}')
            if generation == 'first':
                process.kill()
                process.join()
                rivals = [started.start_talking(_run_daemon, race.workspace, None)]
        pipe.send('end')
        process.join(DEADLINE_SECONDS)
        race.expect(process.exitcode == 0, f'the last one ended with {process.exitcode}')
    race.check([accepted])


# -- readers ---------------------------------------------------------------------------------------------------


def _command(arguments: Sequence[str], out: Path, pipe: Connection) -> None:
    for descriptor, name in ((1, 'stdout'), (2, 'stderr')):
        file = os.open(out.with_suffix(f'.{name}'), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = ['trading-agent', *arguments]
    code: object = 0
    try:
        command_line.main()
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    pipe.send(code or 0)


class Reader:
    """Runs commands of the command line on a workspace, and looks at what they say.

    Args:
        race: The race.
        started: Starts processes.
        answered: The session of each trigger that was answered; it grows.
    """

    def __init__(self, race: Race, started: Children, answered: dict[str, str]) -> None:
        self._race = race
        self._started = started
        self._answered = answered
        self._numbers = count()

    async def read(self) -> None:
        """Runs one command."""
        known = dict(self._answered)
        trigger_id = self._race.chance.choice(list(known))
        session_id = known[trigger_id]
        of_session = [each for each, session in known.items() if session == session_id]
        commands: dict[tuple[str, ...], Callable[[Any], object]] = {
            ('show', 'main', session_id): lambda said: (
                set(of_session) <= {each['trigger_id'] for each in said['exchanges'] if each['answer']}
            ),
            ('show', 'main', session_id, '--journal'): lambda said: said,
            ('show', 'main', '--last', '3'): lambda said: len(said['exchanges']) <= 3,
            ('sessions', 'main'): lambda said: sum(each['exchanges'] for each in said) >= len(known),
            ('why', 'main', trigger_id): lambda said: trigger_id in str(said) and session_id in str(said),
            ('search', 'hello'): lambda said: said['results'],
            ('status',): lambda said: said['desks'][0]['state'] == 'running',
            ('summaries', 'main'): lambda said: all(each['text'].startswith('## Session') for each in said),
            ('export', 'main', '--all'): lambda said: all(f'trigger {each}' in str(said) for each in known),
            ('memory', 'main'): lambda said: said,
            ('index', 'check'): lambda said: said,
        }
        if 'verify' in command_line.COMMANDS:
            commands['verify',] = lambda said: said['ok']
        arguments = self._race.chance.choice(list(commands))
        await self._run(arguments, commands[arguments])

    async def _run(self, arguments: tuple[str, ...], is_right: Callable[[Any], object]) -> None:
        out = self._race.workspace.with_name(f'command-{next(self._numbers)}')
        given = [*arguments, '--workspace', str(self._race.workspace), '--json']
        _, pipe = self._started.start_talking(_command, given, out)
        code = await anyio.to_thread.run_sync(_heard, pipe, given)
        said, error = (out.with_suffix(f'.{name}').read_bytes() for name in ('stdout', 'stderr'))
        what = f'{" ".join(arguments)}: exit code {code}, {error.decode()[-400:]!r}, {said[-400:]!r}'
        if code or b'error' in error or b'warning' in error:
            self._race.expect(False, f'a reader beside the daemon fails: {what}')  # noqa: FBT003
            return
        try:
            right = is_right(msgspec.json.decode(said))
        except (ValueError, LookupError, TypeError) as failure:
            right, what = None, f'{failure!r}: {what}'
        self._race.expect(right, f'a reader is not told what was there: {what}')


async def readers(race: Race) -> None:
    """The command line reads while a daemon writes, over midnights and rollovers: no error, and no half record."""
    clock, answered = ManualClock(LAST_SECOND), dict[str, str]()
    with children(race) as started:
        async with running(race, clock=clock, faces=True) as daemon:
            sender = Sender(daemon, 'hello')
            with daemon.bus.subscribe(TriggerClosed) as events:

                async def write() -> None:
                    while True:
                        await sender.send(5)
                        await at_rest(daemon)
                        for item in events.ready(1 << 15):
                            assert isinstance(item.event, TriggerClosed)
                            answered[item.event.trigger_id] = item.event.session_id or ''
                        if race.chance.random() < 0.3:
                            clock.advance(timedelta(days=1))
                        elif race.chance.random() < 0.3:
                            await daemon.operations.roll_over('main')

                async def read() -> None:
                    while not answered:  # noqa: ASYNC110
                        await anyio.sleep(0.002)
                    for _ in range(12):
                        await reader.read()

                reader = Reader(race, started, answered)
                async with anyio.create_task_group() as writing:
                    writing.start_soon(write)
                    async with anyio.create_task_group() as reading:
                        for _ in range(2):
                            reading.start_soon(read)
                    writing.cancel_scope.cancel()
    race.check([sender.accepted])


# -- the index -------------------------------------------------------------------------------------------------


def _follow(workspace: Path, pipe: Connection) -> None:
    feed.BATCH_BYTES = 4096
    damaged: list[str] = []
    with SqliteIndex(workspace, lambda path, error: damaged.append(f'{path}: {error}')) as index:
        while not pipe.poll():
            index.catch_up()
    pipe.send(damaged)


async def indexers(race: Race) -> None:
    """Two processes read the files into the index beside the daemon: each line's rows are there once."""
    clock = ManualClock(LAST_SECOND)
    with children(race) as started:
        async with running(race, clock=clock, index=True) as daemon:
            pipes = [started.start_talking(_follow, race.workspace)[1] for _ in range(2)]
            sender = Sender(daemon, 'hello')
            for _ in range(3):
                await sender.send(20)
                await at_rest(daemon)
                clock.advance(timedelta(days=1))
                await at_rest(daemon)
            for pipe in pipes:
                pipe.send('end')
                damaged = await anyio.to_thread.run_sync(_heard, pipe, 'an indexer ends')
                race.expect(not damaged, f'the index was damaged: {damaged}')
    await anyio.to_thread.run_sync(_compare, race)
    race.check([sender.accepted])


def _compare(race: Race) -> None:
    with SqliteIndex(race.workspace) as index:
        index.catch_up()
        wrong = index.check(patience=0)
    race.expect(not wrong, f'the index is not what the files say: {wrong}')
    race.expect(rows_of(race.workspace) == rebuilt(race.workspace), 'the index is not what it is made anew')


# -- the whole process -----------------------------------------------------------------------------------------


async def boundary(race: Race) -> None:
    """The real process, by a clock that a file sets: a hundred triggers in the boundary's second, and all the rest."""
    await anyio.to_thread.run_sync(_boundary, race)


def _boundary(race: Race) -> None:
    race.workspace.parent.joinpath('clock').touch()
    clock = FileClock(race.workspace.parent / 'clock', datetime.combine(DAY, LAST_SECOND.timetz()) - timedelta(hours=1))
    daemon = Process(race.workspace, '[[desks]]\nname = "main"\n', program=clock.program)

    def send(sender: int) -> list[str]:
        return [
            receipt['id']
            for number in range(25)
            if (receipt := daemon.send('hello', id=f'{sender}-{number}'))['status'] == 'accepted'
        ]

    try:
        daemon.ready()
        daemon.send('hello', id='before')
        daemon.wait_for('turn_finished')
        clock.sleep_until(LAST_SECOND + timedelta(seconds=0.6))
        with ThreadPoolExecutor(8) as threads:
            senders = [threads.submit(send, sender) for sender in range(4)]
            others = [threads.submit(daemon.request, 'POST', '/v1/desks/main/rollover')]
            others += [threads.submit(daemon.request, 'POST', '/v1/reload') for _ in range(2)]
            sequences = [sender.result() for sender in senders]
            for other in others:
                race.expect(other.result()[0] == 200, f'a request is refused: {other.result()}')
        until(lambda: not daemon.desk()['queue'] and daemon.desk()['trading_date'] > str(DAY), 'all is answered')
        race.expect(daemon.stop() == 0, 'it does not end in order')
    finally:
        daemon.close()
    for sequence in sequences:
        race.findings.found(audit(race.workspace, {'main': sequence}), 'after it')
    race.expect(sum(map(len, sequences)) == 100, 'a trigger was refused')
    # By the clock, or by the person whose rollover was under way at midnight.
    nights = [
        line['previous_session_id']
        for line in daemon.found('session_started')
        if line['reason'] != 'resumed'
        and line.get('previous_session_id', '').startswith(str(DAY))
        and line['trading_date'] > str(DAY)
    ]
    race.expect(len(nights) == 1, f'the night was rolled over after {nights}')
