"""Runs the daemon through a quiet day: `python quiet_day.py WORKSPACE FILE`; its log comes on stderr.

From 08:00 IST on Tuesday to 00:30 on Wednesday, each line of FILE is one trigger, evenly spread over 09:00 to 15:30.
Time is simulated and goes from one trigger or full minute to the next, each time once everything is done. Two things
that the daemon takes from the host go by that clock too: the times in the log, and the waits between heartbeats. How
full the host's disk is does not count.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.lowlevel

from trading_agent import event_bus
from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Config
from trading_agent.daemon import vitals
from trading_agent.daemon.daemon import Daemon
from trading_agent.event_bus import Subscription
from trading_agent.events import DaemonHeartbeat
from trading_agent.logs import Log
from trading_agent.trigger import Trigger
from trading_agent.units import Size

BEGINS = datetime(2026, 3, 10, 8, tzinfo=INDIA).astimezone(UTC)
OPENS = timedelta(hours=1)
CLOSES = timedelta(hours=7, minutes=30)
ENDS = timedelta(hours=16, minutes=30)
MINUTE = timedelta(minutes=1)


def go_by(clock: ManualClock) -> None:
    """Lets the times in the log and the waits between heartbeats go by a clock."""

    async def sleep(seconds: float) -> None:
        await clock.sleep_until(clock.now() + timedelta(seconds=seconds))

    def current_time() -> float:
        return (clock.now() - BEGINS).total_seconds()

    vitals.anyio = SimpleNamespace(  # type: ignore[attr-defined, assignment]
        sleep=sleep,
        current_time=current_time,
        create_task_group=anyio.create_task_group,
    )
    event_bus.datetime = SimpleNamespace(now=lambda _: clock.now())  # type: ignore[attr-defined, assignment]


async def advance(daemon: Daemon, clock: ManualClock, to: datetime, heartbeats: Subscription) -> None:
    """Lets time pass to an instant, which is no later than the next full minute, and everything be done."""
    clock.advance(to)
    if (to - BEGINS) % MINUTE == timedelta():
        await heartbeats.batch(1)
    while True:
        await daemon.supervisor.settled()
        if daemon.scheduler.settled:
            return
        await anyio.lowlevel.checkpoint()


async def run(workspace: Path, texts: list[str]) -> None:
    """Runs the day."""
    clock = ManualClock(BEGINS)
    go_by(clock)
    daemon = Daemon(Config(workspace=workspace, disk_low=Size(0), disk_low_percent=0.0), clock, faces=False)
    spread = (CLOSES - OPENS) / len(texts)
    due = {BEGINS + OPENS + place * spread: text for place, text in enumerate(texts)}
    minutes = [BEGINS + place * MINUTE for place in range(1, ENDS // MINUTE + 1)]
    async with anyio.create_task_group() as tasks:
        await tasks.start(Log(daemon.run_id).follow, daemon.bus)
        with daemon.bus.subscribe(DaemonHeartbeat) as heartbeats:
            async with daemon:
                # The first heartbeat is a minute after the start, if its wait begins before time goes on.
                await anyio.wait_all_tasks_blocked()
                for instant in sorted({*due, *minutes}):
                    await advance(daemon, clock, instant, heartbeats)
                    if instant in due:
                        await daemon.bus.send(Trigger(due[instant], 'main', source='inbox', received_at=instant))
        tasks.cancel_scope.cancel()


if __name__ == '__main__':
    anyio.run(run, Path(sys.argv[1]), Path(sys.argv[2]).read_text().split('\n'))
