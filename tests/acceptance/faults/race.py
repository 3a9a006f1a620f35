"""What races are run with: a workspace, a daemon in this process, and those who send."""

import random
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from auditor import audit
from findings import Findings
from quick_folder import quick_folder

from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon.daemon import Daemon
from trading_agent.trigger import Trigger
from trading_agent.units import Duration

LAST_SECOND = datetime(2026, 3, 10, 23, 59, 59, tzinfo=INDIA)


class Race(NamedTuple):
    """What a race is run with.

    Attributes:
        workspace: A folder of its own.
        chance: What its chances come from.
        findings: What is found.
        plant: The fault that is planted; into the processes that it starts, too.
    """

    workspace: Path
    chance: random.Random
    findings: Findings
    plant: str = ''

    def check(self, sequences: Sequence[Sequence[str]], desk: str = 'main') -> None:
        """Audits the workspace; each sequence has acknowledged triggers of a desk in their order."""
        for accepted in sequences:
            self.findings.found(audit(self.workspace, {desk: accepted}), 'after it')

    def expect(self, kept: object, what: str) -> None:
        """Notes a promise that was not kept."""
        if not kept:
            self.findings.add('broken', what)


def config(workspace: Path, desks: Sequence[str] = ('main',), *, seconds: int = 60, **more: Any) -> Config:  # noqa: ANN401
    """Returns a configuration; another number of seconds makes it another one for each desk."""
    return Config(
        workspace=workspace,
        backends={'offline': Backend(kind='offline', options={'delay': '2ms'})},
        desks=[Desk(name=name, summary_timeout=Duration(seconds)) for name in desks],
        **more,
    )


async def at_rest(daemon: Daemon) -> None:
    """Returns once no desk has anything to do."""
    desks = daemon.supervisor.desks.values
    while not (daemon.scheduler.settled and all(desk.idle and not desk.queue.depth for desk in desks())):  # noqa: ASYNC110
        await anyio.sleep(0.002)


@asynccontextmanager
async def running(
    race: Race,
    read: Callable[[], Config] | None = None,
    *,
    clock: ManualClock | None = None,
    faces: bool = False,
    index: bool | None = None,
) -> AsyncIterator[Daemon]:
    """Runs a daemon until the block ends and every desk is at rest."""
    read = read or (lambda: config(race.workspace))
    clock = clock or ManualClock(LAST_SECOND)
    async with Daemon(read(), clock, faces=faces, index=index, environ={}, read_config=read) as daemon:
        yield daemon
        await at_rest(daemon)


class Sender:
    """One who sends triggers, the next one when the one before is acknowledged.

    Attributes:
        accepted: What was.
    """

    def __init__(self, daemon: Daemon, name: str, desk: str = 'main') -> None:
        self._daemon = daemon
        self._name = name
        self._desk = desk
        self._numbers = count()
        self.accepted: list[str] = []

    async def send(self, number: int) -> None:
        """Sends so many more."""
        for each in islice(self._numbers, number):
            trigger = Trigger(f'{each} from {self._name}', self._desk, id=f'{self._name}-{each}')
            receipt = await self._daemon.bus.send(trigger)
            if receipt.status == 'accepted':
                self.accepted.append(trigger.id)


def run_one(
    act: Callable[[Race], Awaitable[object]], told: str, seed: str, plant: str = '', *, seconds: float, count_as: str
) -> Findings:
    """Runs one race or overload; what is found says what repeats it.

    Args:
        act: What happens.
        told: Its name, as a fault tells it.
        seed: What its chances come from.
        plant: The fault that is planted.
        seconds: How long it may take.
        count_as: What it counts as.
    """
    findings = Findings()
    chance = random.Random(f'{seed}-{told}')  # noqa: S311 - to be repeated, not to be secret
    with quick_folder() as folder:
        race = Race(folder / 'ws', chance, findings, plant)

        async def in_time() -> None:
            with anyio.fail_after(seconds):
                await act(race)

        try:
            anyio.run(in_time)
        except TimeoutError:
            findings.add('blocked', f'it took more than {seconds:g} s')
        except Exception as error:  # noqa: BLE001 - whatever it is, a promise was not kept
            findings.add('broken', ''.join(traceback.format_exception(error))[-1500:])
    found = Findings(counts=Counter({count_as: 1}))
    found.found(findings.faults, f'{told} of {seed}')
    return found
