"""Races: whatever may happen in one instant does, in one daemon and between processes that share a workspace."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

# Some of what they are run with belongs to other tests.
import anyio
import anyio.lowlevel
import racing_processes
import racing_readers
from edited_memory import edits
from findings import Budget, Findings
from planted import planted
from race import LAST_SECOND, Race, Sender, at_rest, config, run_one, running

from trading_agent.clock import ManualClock
from trading_agent.config import Component, Config
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.operations import Operations
from trading_agent.errors import DeskUnusable
from trading_agent.event_bus import EventBus
from trading_agent.events import SessionStarted
from trading_agent.trigger import Receipt, Trigger

PATIENCE_SECONDS = 60.0
SENDERS = 4

CATCHES = ('lock not taken', 'id picked without O_EXCL')

# -- the races -------------------------------------------------------------------------------------------------


async def boundary(race: Race) -> None:
    """A hundred triggers in the boundary's second, with rollovers by hand and reloads."""
    clock, chance, versions = ManualClock(LAST_SECOND), race.chance, count(60)
    midnight_after = chance.randrange(100)

    async def later(what: Callable[[], Awaitable[object]]) -> None:
        await anyio.sleep(chance.uniform(0, 0.3))
        await what()

    async def midnight() -> None:
        while sum(len(sender.accepted) for sender in senders) < midnight_after:
            await anyio.lowlevel.checkpoint()
        clock.advance(timedelta(seconds=1))

    async with running(race, lambda: config(race.workspace, seconds=next(versions)), clock=clock) as daemon:
        with daemon.bus.subscribe(SessionStarted, since='oldest') as events:
            senders = [Sender(daemon, f'sender{number}') for number in range(SENDERS)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(midnight)
                for sender in senders:
                    tasks.start_soon(sender.send, 100 // SENDERS)
                for _ in range(2):
                    tasks.start_soon(later, lambda: daemon.operations.roll_over('main'))
                    tasks.start_soon(later, daemon.operations.reload)
            await at_rest(daemon)
            begun = [item.event for item in events.ready(1 << 15)]
    started = [event for event in begun if isinstance(event, SessionStarted) and event.reason != 'resumed']
    ids = [event.session_id for event in started]
    race.expect(len(set(ids)) == len(ids), f'sessions were begun twice: {ids}')
    race.expect([event.previous_session_id for event in started] == [None, *ids[:-1]], f'a session is missing: {ids}')
    dates = [str(event.trading_date) for event in started]
    race.expect(dates == sorted(dates) and set(dates) == {'2026-03-10', '2026-03-11'}, f'sessions of {dates}')
    race.check([sender.accepted for sender in senders])
    race.expect(sum(len(sender.accepted) for sender in senders) == 100, 'a trigger was refused')


async def commands(race: Race) -> None:
    """People pause, resume, cancel, roll over and reload, all at once, while triggers come."""
    desks, chance, versions = ('main', 'other'), race.chance, count(60)
    clock = ManualClock(LAST_SECOND)

    async def person(asked: Operations, by: str) -> None:
        for _ in range(12):
            desk = chance.choice(desks)
            with suppress(DeskUnusable):  # a paused desk rolls over for nobody
                match chance.randrange(5):
                    case 0:
                        await asked.pause(desk, by, 'to see', now=chance.random() < 0.5)
                    case 1:
                        await asked.resume(desk, by)
                    case 2:
                        await asked.cancel(desk, f'{desk}-{chance.randrange(30)}', by, 'not wanted')
                    case 3:
                        await asked.roll_over(desk)
                    case _:
                        await asked.reload()
            await anyio.sleep(chance.uniform(0, 0.02))

    async with running(race, lambda: config(race.workspace, desks, seconds=next(versions)), clock=clock) as daemon:
        senders = [Sender(daemon, desk, desk) for desk in desks]
        async with anyio.create_task_group() as tasks:
            for sender in senders:
                tasks.start_soon(sender.send, 30)
            for by in ('anil', 'bina', 'chitra'):
                tasks.start_soon(person, daemon.operations, by)
            await anyio.sleep(0.05)
            clock.advance(timedelta(seconds=1))
        for desk in desks:
            await daemon.operations.resume(desk, 'anil')
    for sender, desk in zip(senders, desks, strict=True):
        race.check([sender.accepted], desk)


async def reloads(race: Race) -> None:
    """Two reloads at once, again and again, which take desks away and bring them back, while triggers come."""
    desks, chance = ('one', 'two', 'three'), race.chance
    wanted: list[Sequence[str]] = [desks]

    def read() -> Config:
        return config(race.workspace, wanted[-1], seconds=60 + len(wanted))

    async def two_at_once(daemon: Daemon) -> None:
        for number in range(8):
            wanted.append(desks if number == 7 else sorted(chance.sample(desks, chance.randint(1, 3))))
            async with anyio.create_task_group() as both:
                both.start_soon(daemon.operations.reload)
                both.start_soon(daemon.operations.reload)
            there = [name for name, desk in daemon.supervisor.desks.items() if not desk.retiring]
            race.expect(sorted(there) == sorted(wanted[-1]), f'{wanted[-1]} are configured, {there} are there')
            await anyio.sleep(chance.uniform(0, 0.01))

    async with running(race, read) as daemon:
        senders = [Sender(daemon, desk, desk) for desk in desks]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two_at_once, daemon)
            for sender in senders:
                tasks.start_soon(sender.send, 30)
    for sender, desk in zip(senders, desks, strict=True):
        race.check([sender.accepted], desk)


async def repeating(bus: EventBus, options: dict[str, Any]) -> None:
    """Sends triggers as a component does; another one sends the same."""
    for number in options['order']:
        options['receipts'].append(await bus.send(Trigger('the same', 'main', id=f'same-{number}')))


async def components(race: Race) -> None:
    """Two components send the same ids: one of them is told `accepted`, and there is one exchange."""
    receipts: list[list[Receipt]] = [[], []]
    tables = []
    for number, told in enumerate(receipts):
        order = list(range(40))
        if race.chance.random() < 0.5:
            race.chance.shuffle(order)
        options = {'order': order, 'receipts': told}
        tables.append(Component(name=f'component{number}', entry=f'{__name__}:repeating', options=options))
    async with running(race, lambda: config(race.workspace, components=tables)):
        while any(len(told) < 40 for told in receipts):  # noqa: ASYNC110
            await anyio.sleep(0.002)
    for number in range(40):
        said = sorted(each.status for told in receipts for each in told if each.id == f'same-{number}')
        race.expect(said == ['accepted', 'duplicate'], f'same-{number} sent twice was {said}')
    race.check([[each.id for each in told if each.status == 'accepted'] for told in receipts])


RACES: dict[str, Callable[[Race], Awaitable[None]]] = {
    'boundary': boundary,
    'commands': commands,
    'reloads': reloads,
    'components': components,
    'edits': edits,
    'ids': racing_processes.ids,
    'daemons': racing_processes.daemons,
    'readers': racing_readers.readers,
    'indexers': racing_processes.indexers,
    'a real boundary': racing_processes.boundary,
}
"""Each race by its name."""

SELDOM = frozenset({'a real boundary', 'readers', 'daemons', 'edits'})
"""Those that take seconds are run in one round of four."""


# -- the part --------------------------------------------------------------------------------------------------


def run_race(name: str, seed: str, plant: str = '') -> Findings:
    """Runs a race once."""
    return run_one(RACES[name], f'the race {name!r}', seed, plant, seconds=PATIENCE_SECONDS, count_as='races')


def run(budget: Budget, plant: str = '') -> Findings:
    """Runs every race in each round."""
    findings = Findings()
    with planted(plant):
        for number in budget:
            for at, name in enumerate(RACES):
                if not budget.spent and (name not in SELDOM or (number + at) % 4 == 0):
                    findings.take(run_race(name, f'{budget.seed}-{number}', plant))
    return findings


def trial(plant: str) -> Findings:
    """Runs those races that find what this part says that it finds."""
    findings = Findings()
    with planted(plant):
        for name in ('ids', 'daemons'):
            findings.take(run_race(name, 'trial', plant))
    return findings
