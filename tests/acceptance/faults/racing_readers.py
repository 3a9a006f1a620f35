"""The command line reads a workspace while a daemon writes: no error, and no half record."""

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from children import Children, children, heard
from race import LAST_SECOND, Race, Sender, at_rest, running

from trading_agent.cli import main as command_line
from trading_agent.clock import ManualClock
from trading_agent.events import TriggerClosed


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
        code = await anyio.to_thread.run_sync(heard, pipe, given)
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
    with children(race.plant) as started:
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
