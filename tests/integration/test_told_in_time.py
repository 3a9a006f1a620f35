"""What must be told is in the log before the files forget it: a kill in between leaves it to the next start."""

import io
from datetime import timedelta
from pathlib import Path

import anyio
from daemon_fakes import config_for, daemon_of, told, until
from keeper_fakes import MONDAY_MORNING

from trading_agent.clock import ManualClock
from trading_agent.events import StoreDamaged
from trading_agent.logs import Log
from trading_agent.trigger import Trigger


class Watching(io.BytesIO):
    """A log that notes, as each line comes, whether a rollover is still on disk.

    Args:
        rollover: The record of a rollover.
    """

    def __init__(self, rollover: Path) -> None:
        super().__init__()
        self._rollover = rollover
        self.with_record: list[bool] = []

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        self.with_record += [self._rollover.exists()] * data.count(b'"reason":"daily_rollover","previous_session_id"')
        return len(data)


async def test_a_rollover_is_forgotten_only_once_it_is_in_the_log(tmp_path: Path) -> None:
    """`rollover.json` is still there when the line that announces the new session is written."""
    clock = ManualClock(MONDAY_MORNING)
    log = Watching(tmp_path / 'desks' / 'main' / 'sessions' / 'rollover.json')
    async with daemon_of(config_for(tmp_path), clock) as daemon, anyio.create_task_group() as tasks:
        await tasks.start(Log(daemon.run_id, stream=log).follow, daemon.bus)
        for _ in range(20):
            await daemon.bus.send(Trigger('x', 'main', received_at=clock.now()))
            await daemon.supervisor.settled()
            clock.advance(timedelta(days=1))
            await until(lambda: daemon.scheduler.settled, 'the boundary is told')
            await daemon.supervisor.settled()
        tasks.cancel_scope.cancel()
    assert log.with_record == [True] * 20


async def test_a_torn_line_of_the_journal(tmp_path: Path) -> None:
    """A line that a crash tore in the journal is told by each start on that session, with its number, once."""
    lines_told = [await lines_damaged(tmp_path)]
    (journal,) = (tmp_path / 'desks' / 'main' / 'journal').iterdir()
    number = len(journal.read_bytes().split(b'\n'))
    with journal.open('ab') as file:
        file.write(b'{"type":"text","number":99,"te')
    lines_told += [await lines_damaged(tmp_path) for _ in range(2)]
    assert lines_told == [[], [(str(journal), number, 'main')], [(str(journal), number, 'main')]]


async def lines_damaged(workspace: Path) -> list[tuple[str, int | None, str | None]]:
    """Runs a daemon for one trigger; returns the lines that it told as damaged."""
    clock = ManualClock(MONDAY_MORNING)
    async with daemon_of(config_for(workspace), clock) as daemon:
        await daemon.bus.send(Trigger('x', 'main', received_at=clock.now()))
        await daemon.supervisor.settled()
        with daemon.bus.subscribe(StoreDamaged, since='oldest') as events:
            return [(event.path, event.line, event.desk) for event in told(events, StoreDamaged)]
