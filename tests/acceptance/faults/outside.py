"""Does to the daemon from outside what should not be done: at its socket, in an inbox, with names that are paths."""

import os
import random
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
from auditor import modes
from besieged import Besieged
from findings import Budget, Findings
from planted import planted
from quick_folder import quick_folder
from rude_clients import PATIENCE_SECONDS

from trading_agent.clock import ManualClock
from trading_agent.config import Config
from trading_agent.daemon.daemon import Daemon
from trading_agent.events import TurnFinished
from trading_agent.trigger import Trigger

CATCHES = ('a file made 0644',)

UMASKS = (0, 0o777, 0o027)
ROUNDS = 5
"""How many rounds one daemon lives through; in the first of them everything is done to it once."""


def run(budget: Budget, plant: str = '') -> Findings:
    """Does to daemons what should not be done until the budget is over; to each of them in some rounds."""
    findings = Findings()
    rounds = iter(budget)
    number = next(rounds, None)
    while number is not None:
        umask = UMASKS[number // ROUNDS % len(UMASKS)]
        with quick_folder() as folder, Besieged(folder, umask, findings, plant) as daemon:
            for nth in range(ROUNDS):
                if number is None:
                    break
                where = f'round {budget.seed}-{number}'
                daemon.round(where, random.Random(where), everything=not nth)  # noqa: S311 - to be repeated
                number = next(rounds, None)
            daemon.commands()
            daemon.end()
    return findings


async def _made(workspace: Path) -> None:
    async with Daemon(
        Config(workspace=workspace), ManualClock(datetime(2026, 3, 10, 6, tzinfo=UTC)), environ={}
    ) as daemon:
        with daemon.bus.subscribe(TurnFinished) as events, anyio.fail_after(PATIENCE_SECONDS):
            await daemon.bus.send(Trigger('hello', 'main', id='a'))
            await events.batch()


def trial(plant: str) -> Findings:
    """Looks at the modes of what a daemon within this process makes."""
    findings = Findings()
    before = os.umask(0)
    try:
        with quick_folder() as folder, planted(plant):
            anyio.run(_made, folder / 'ws')
            findings.found(modes(folder / 'ws'), 'a daemon that was started and stopped')
    finally:
        os.umask(before)
    return findings


if __name__ == '__main__':
    found = run(Budget(seconds=float(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 1))
    for fault in found.faults:
        print(*fault, sep=': ')  # noqa: T201 - its output
    print(dict(found.counts))  # noqa: T201
