"""A disk that fills up under a desk at work, page by page, and is freed again: a small file system in memory."""

import json
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import anyio
import images
from auditor import audit, lines_of
from findings import Fault
from images import Ballast
from io_story import Desks, Stuck
from writer import impatient

from trading_agent.errors import TradingAgentError
from trading_agent.trigger import Trigger

SIZE = 4 << 20
MOST_PAGES = 48
"""With so many pages left a desk has room for whatever it does at a time here."""

TOLD_WITHIN_SECONDS = 20.0


class FullDisk:
    """A desk on a file system that is filled.

    Args:
        folder: The file system.
        chances: What chance there is.

    Attributes:
        faults: The promises that were not kept.
    """

    def __init__(self, folder: Path, chances: random.Random) -> None:
        self.desks = Desks(folder / 'ws')
        self.faults: list[Fault] = []
        self._folder = self.desks.workspace / 'desks' / 'main'
        self._ballast = Ballast(folder)
        self._chances = chances
        self._number = 0
        self._refused: set[str] = set()

    async def through(self, levels: Sequence[int]) -> None:
        """Goes through levels, each so many free pages: the space comes back, and the desk goes on by itself."""
        await self.desks.offer('first')
        await self.desks.at_rest()
        for pages in levels:
            before = len(self.faults)
            self._ballast.leave(pages)
            await self._at_work()
            self._ballast.remove()
            await self.desks.at_rest()
            self._look_for_refused()
            self.faults[before:] = [Fault(kind, f'{pages} pages: {what}') for kind, what in self.faults[before:]]

    async def _at_work(self) -> None:
        """Lets the desk do what it can, and makes sure that it says what it cannot."""
        desk = self.desks.desk
        told = len(self.desks.trouble)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_at_files)
            for _ in range(self._chances.randrange(1, 4)):
                await self._offer('x ' * self._chances.choice((10, 1000, 9000)))
            if self._chances.random() < 0.5:
                tasks.start_soon(self._ask)
            if self._chances.random() < 0.3:
                self.desks.clock.advance(timedelta(days=1))
            with anyio.move_on_after(TOLD_WITHIN_SECONDS) as waited:
                await anyio.sleep(0.02)
                while not (desk.idle and desk.queue.depth == 0):
                    if desk.status().reason and len(self.desks.trouble) > told:
                        break
                    await anyio.sleep(0.005)
                await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
        if waited.cancelled_caught:
            reason = desk.status().reason
            self.faults.append(
                Fault('silent', f'the desk cannot go on; it is {desk.state}, and its status is {reason!r}')
            )

    async def _offer(self, text: str) -> None:
        self._number += 1
        trigger = Trigger(text, 'main', id=f'level-{self._number}', received_at=self.desks.clock.now())
        told = len(self.desks.trouble)
        receipt = await self.desks.daemon.bus.send(trigger)
        if receipt.status == 'accepted':
            self.desks.accepted.append(trigger.id)
            return
        self._refused.add(trigger.id)
        if receipt.reason != 'storage' or len(self.desks.trouble) == told:
            self.faults.append(Fault('silent', f'{receipt}, and nothing was told'))

    async def _ask(self) -> None:
        with suppress(TradingAgentError):
            await self.desks.desk.roll_over()

    async def _look_at_files(self) -> None:
        """Sees to it that no file is ever replaced by half of one."""
        sessions = self._folder / 'sessions'
        while True:
            for path in (sessions / 'state.json', sessions / 'rollover.json'):
                with suppress(FileNotFoundError):
                    data = path.read_bytes()
                    try:
                        json.loads(data)
                    except ValueError:
                        self.faults.append(Fault('broken', f'{path.name} is not whole: {data[:100]!r}'))
            for path in (self._folder / 'Memory.md', *(sessions / 'summaries').glob('*.md')):
                with suppress(FileNotFoundError):
                    if not path.read_bytes().endswith(b'\n'):
                        self.faults.append(Fault('broken', f'{path.name} is not whole'))
            await anyio.sleep(0.003)

    def _look_for_refused(self) -> None:
        for _, line in lines_of(self._folder / 'triggers.jsonl'):
            if line and line.get('type') == 'accepted' and line['trigger']['id'] in self._refused:
                self.faults.append(Fault('broken', f'{line["trigger"]["id"]} was refused, and is in the file'))


def fill(levels: Sequence[int], chances: random.Random) -> list[Fault]:
    """Lets a desk live through these levels and returns the promises that were not kept; call it within `apart`."""
    with images.in_memory(SIZE) as folder, impatient():
        disk = FullDisk(folder, chances)

        async def story(_: Desks) -> None:
            await disk.through(levels)

        try:
            anyio.run(disk.desks.live, story)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a fault
            kind = 'blocked' if isinstance(error, Stuck) or 'Stuck' in repr(error) else 'broken'
            return [*disk.faults, *disk.desks.faults, Fault(kind, repr(error)[:800])]  # type: ignore[arg-type]
        anyio.run(disk.desks.live, Desks.at_rest)  # what proves an answer is there; that it is closed a start adds
        faults = [*disk.faults, *disk.desks.faults]
        faults += audit(disk.desks.workspace, {'main': disk.desks.accepted})
        shutil.rmtree(disk.desks.workspace)
        return faults
