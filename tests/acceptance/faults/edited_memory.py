"""A person edits Memory.md while a day is folded into it: at each moment of that, in each way that editors do it."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import anyio.lowlevel
import pytest
from keeper_fakes import Box, InlineDisk, around, spare_the_disk
from race import Race

from trading_agent import swap
from trading_agent.routing.turn_runner import Turn

T = TypeVar('T')
Ts = TypeVarTuple('Ts')

MOMENTS = 6
"""How many moments one race tries, beside those around the rename."""

BY_HAND = '- by hand\n'
EDITS = 'written over', 'added to', 'renamed', 'removed'
"""How a person edits: the file is emptied and written, or added to, or another one put in its place, or removed."""

CALLS: list[tuple[Any, str]] = [
    *((os, name) for name in ('pwrite', 'fsync', 'fdatasync', 'replace', 'link', 'unlink', 'ftruncate')),
    (swap, 'exchange'),
    (swap, '_read'),
]


class Person:
    """Edits the file at one moment, and counts them all.

    Args:
        path: Memory.md.
        at: The moment, from 1; 0 for never.
        how: The way.

    Attributes:
        looks: Whether the moments count.
        moments: How many there were.
        rename: Which of them was right before the new text was put in its place.
    """

    def __init__(self, path: Path, at: int, how: str) -> None:
        self._path = path
        self._at = at
        self._how = how
        self.looks = False
        self.moments = self.rename = 0

    def moment(self, name: object = '') -> None:
        """Is told each moment."""
        if not self.looks:
            return
        self.moments += 1
        if name == 'exchange':
            self.rename = self.moments
        if self.moments == self._at:
            self.looks = False
            self._edit()
            self.looks = True

    def _edit(self) -> None:
        before = self._path.read_text() if self._path.exists() else ''
        text = f'{before}- by a person\n'
        match self._how:
            case 'written over':
                self._path.write_text(text)
            case 'added to':
                with self._path.open('a') as file:
                    file.write('- by a person\n')
            case 'renamed':
                other = self._path.with_name('Memory.md~')
                other.write_text(text)
                other.rename(self._path)
            case _:
                self._path.unlink(missing_ok=True)


class WatchedDisk(InlineDisk):
    """A disk whose calls are moments."""

    def __init__(self, moment: Callable[[], None]) -> None:
        super().__init__()
        self._moment = moment

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        self._moment()
        await anyio.lowlevel.checkpoint()
        result = await super().run(function, *args)
        self._moment()
        return result


async def folded(folder: Path, at: int, how: str) -> tuple[Person, Box]:
    """Folds two days; at a moment of the first fold a person edits the file. Returns the two."""
    person = Person(folder / 'Memory.md', at, how)
    box = Box(folder, disk=WatchedDisk(person.moment))
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        spare_the_disk(patch)

        async def review(turn: Turn) -> dict[str, Any]:
            person.moment()
            return await box.model.review(turn)

        await box.start()
        await box.turn()
        box.memory.path.write_text(BY_HAND)
        box.next_day()
        box.model.on_review = review
        for name in ('replace', 'append', 'create', 'read'):
            around(patch, name, before=person.moment, after=person.moment)
        for owner, name in CALLS:
            before_each(patch, owner, name, person.moment)
        person.looks = True
        await box.keeper.roll_over_if_due()
        person.looks = False
    await box.turn()
    box.next_day()
    await box.keeper.roll_over_if_due()
    return person, box


def before_each(patch: pytest.MonkeyPatch, owner: Any, name: str, moment: Callable[[str], None]) -> None:  # noqa: ANN401
    """Lets each call of a function be a moment right before it."""
    real = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever that function takes
        moment(name)
        return real(*arguments, **options)

    patch.setattr(owner, name, call)


async def edits(race: Race) -> None:
    """A person edits Memory.md at some moments of a fold: what they wrote is there in the end."""
    race.workspace.mkdir()
    person, _ = await folded(race.workspace / 'none', 0, '')
    every = range(1, person.moments + 1)
    around_it = range(person.rename - 1, person.rename + 3)
    for at in sorted({*around_it, *race.chance.sample(every, min(MOMENTS, len(every)))}):
        for how in EDITS:
            await one_edit(race, at, how)


async def one_edit(race: Race, at: int, how: str) -> None:
    """A person edits Memory.md at one moment."""
    person, box = await folded(race.workspace / f'{how}-{at}', at, how)
    lines = box.memory_text.split('\n')
    where = f'Memory.md {how} at moment {at} of {person.moments}: {lines}'
    stays = int(how != 'removed')
    race.expect(lines.count('- by a person') == stays, f'what a person wrote is gone: {where}')
    race.expect(lines.count('- by hand') == stays, f'a person has done this, and it is undone: {where}')
    race.expect(lines.count('- lesson of 2026-10-19-1') in (stays, 1), f'the day is not folded in once: {where}')
    race.expect(lines.count('- lesson of 2026-10-20-1') == 1, f'the next day is not folded in once: {where}')
