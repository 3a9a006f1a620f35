"""Races between processes that share a workspace: makers of sessions, daemons, readers of the index."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date, datetime, timedelta
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError

import anyio
import anyio.to_thread
from auditor import audit
from children import DEADLINE_SECONDS, children, heard
from file_clock import FileClock
from index_days import rebuilt, rows_of
from process import Process, unix_request, until
from race import LAST_SECOND, Race, Sender, at_rest, config, running

from trading_agent.clock import ManualClock
from trading_agent.daemon.daemon import Daemon
from trading_agent.errors import WorkspaceLocked
from trading_agent.index import feed
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.memory.session_store import SessionStore

DAY = date(2026, 3, 10)


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
        with children(race.plant) as started:
            barrier = started.barrier(2) if together else None
            number = 2 if together else processes
            pipes = [started.start_talking(_make_sessions, folder, 15, barrier)[1] for _ in range(number)]
            made = [each for pipe in pipes for each in await anyio.to_thread.run_sync(heard, pipe, 'sessions are made')]
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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            pipe.send(('fails', repr(error)))

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

    with children(race.plant) as started:
        together = started.barrier(3)
        rivals = [started.start_talking(_run_daemon, race.workspace, together) for _ in range(3)]
        for generation in ('first', 'second'):
            said = [(*heard(pipe, 'a daemon starts'), process, pipe) for process, pipe in rivals]
            running_ones = [each for each in said if each[0] == 'runs']
            race.expect(
                len(running_ones) == 1,
                f'{len(running_ones)} daemons run on one workspace: {[each[:2] for each in said]}',
            )
            if len(running_ones) != 1:
                return
            _, pid, process, pipe = running_ones[0]
            for _, why, *_ in (each for each in said if each[0] == 'refused'):
                race.expect(f'pid {pid}' in why or 'just starting' in why, f'the refusal does not say who: {why}')
            send(f'to the {generation}')
            _, late = started.start_talking(_run_daemon, race.workspace, None)
            race.expect(heard(late, 'a late daemon')[0] == 'refused', 'a second daemon runs beside the first')
            send(f'again to the {generation}')
            if generation == 'first':
                process.kill()
                process.join()
                rivals = [started.start_talking(_run_daemon, race.workspace, None)]
        pipe.send('end')
        process.join(DEADLINE_SECONDS)
        race.expect(process.exitcode == 0, f'the last one ended with {process.exitcode}')
    race.check([accepted])


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
    with children(race.plant) as started:
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
                damaged = await anyio.to_thread.run_sync(heard, pipe, 'an indexer ends')
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
