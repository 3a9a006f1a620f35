"""Overload and slowness: sources that flood, subscribers that stall, and disks that take seconds for a sync."""

import json
import math
import shutil
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path

# Some of what they are run with belongs to other tests.
import anyio
import anyio.lowlevel
import anyio.to_thread
import slow_disks
from findings import Budget, Findings
from load import LONG, MEGABYTE, PROMPT_SECONDS, SHORT, Size, config, exchanges, put, resident, seconds_of
from planted import planted
from process import Process, UnixConnection, eventually, until
from race import LAST_SECOND, Race, at_rest, run_one

from trading_agent.clock import ManualClock
from trading_agent.daemon.daemon import Daemon
from trading_agent.event_bus import EventBus
from trading_agent.events import DateChanged, Event, SubscriberLagged, TriggerRefused
from trading_agent.trigger import Receipt, Trigger

CATCHES = ('skipped events not told',)

PATIENCE_SECONDS = 240.0
LONG_TAKES_SECONDS = 60.0
"""Where there is more time than this, rounds are large ones: one takes about so long."""

# -- floods ----------------------------------------------------------------------------------------------------


async def component(race: Race, size: Size) -> None:
    """A source in the process sends as fast as it can: what the queue does not hold is refused, and memory stays."""
    limit = 50
    before = resident()
    receipts: list[Receipt] = []
    deepest = 0
    settings = config(race.workspace, queue_limit=limit, delay='2ms')
    async with Daemon(settings, ManualClock(LAST_SECOND), faces=False, environ={}) as daemon:
        desk = daemon.supervisor.desks['main']
        with daemon.bus.subscribe(TriggerRefused) as events:
            for number in range(size.sends):
                trigger = Trigger(f'{number} {"x" * 65536}', 'main', id=f't{number}')
                receipts.append(await daemon.bus.send(trigger))
                deepest = max(deepest, desk.queue.depth)
            told = len(events.ready(1 << 15))
        await at_rest(daemon)
        grown = (resident() - before) / MEGABYTE
    refused = [each for each in receipts if each.status == 'refused']
    race.expect(deepest <= limit, f'{deepest} triggers were open')
    race.expect(
        {(each.reason, each.try_again) for each in refused} == {('queue_full', True)}, f'refused: {refused[:3]}'
    )
    race.expect(told == len(refused), f'{len(refused)} were refused, and {told} refusals told')
    race.expect(grown < 120, f'it has grown by {grown:.0f} MB')
    race.check([[each.id for each in receipts if each.status == 'accepted']])


PROCESS = """
drain = "30s"
max_concurrent_turns = 16
[backends.slow]
kind = "offline"
delay = "20ms"
[[desks]]
name = "main"
backends = ["slow"]
queue_limit = 20
[[desks]]
name = "other"
"""


async def clients(race: Race, size: Size) -> None:
    """Clients flood the control socket: they are refused for the moment, memory stays, and `status` is prompt."""
    await anyio.to_thread.run_sync(_clients, race, size)


def _clients(race: Race, size: Size) -> None:
    daemon = Process(race.workspace, PROCESS)
    done = threading.Event()
    text = 'x' * 65536

    def flood(client: int) -> list[str]:
        accepted = []
        for number in range(size.sends // 6):
            status, receipt = daemon.request(
                'POST', '/v1/desks/main/triggers', {'text': f'{number} {text}', 'id': f'{client}-{number}'}
            )
            if status == 200:
                accepted.append(receipt['id'])
            else:
                race.expect((status, receipt['reason']) == (503, 'queue_full'), f'answered by {status}: {receipt}')
        return accepted

    def look() -> float:
        slowest = 0.0
        while not done.is_set():
            slowest = max(slowest, seconds_of(race.workspace / 'control.sock'))
        return slowest

    try:
        daemon.ready()
        before = resident(daemon.pid)
        with ThreadPoolExecutor(8) as threads:
            looking = threads.submit(look)
            flooding = [threads.submit(flood, client) for client in range(6)]
            accepted = [each.result() for each in flooding]
            done.set()
            race.expect(looking.result() < 2 * PROMPT_SECONDS, f'`status` took {looking.result():.1f} s')
        grown = (resident(daemon.pid) - before) / MEGABYTE
        until(lambda: not daemon.desk()['queue'], 'all is answered')
        race.expect(sum(map(len, accepted)) < size.sends - size.sends % 6, 'nothing is refused')
        race.expect(grown < 120, f'it has grown by {grown:.0f} MB')
        race.expect(daemon.stop() == 0, 'it does not end in order')
    finally:
        daemon.close()
    race.check(accepted)


async def inbox(race: Race, size: Size) -> None:
    """Thousands of files lie in an inbox, far more than the queue holds: each stays there until it is taken, once."""
    limit = max(50, size.files // 4)
    folder = race.workspace / 'desks' / 'main' / 'inbox'
    folder.mkdir(parents=True, mode=0o700)
    for path in (race.workspace, race.workspace / 'desks', folder.parent):
        path.chmod(0o700)
    names = {f'{number:05}.txt' for number in range(size.files)}
    for name in names:
        put(folder / name, f'what {name} says')
    before, deepest = resident(), 0
    async with Daemon(config(race.workspace, queue_limit=limit), ManualClock(LAST_SECOND), environ={}) as daemon:
        desk = daemon.supervisor.desks['main']
        left = names
        while left or not desk.idle:
            deepest = max(deepest, desk.queue.depth)
            left = await anyio.to_thread.run_sync(files_left, race, folder, names)
            await anyio.sleep(0.05)
        grown = (resident() - before) / MEGABYTE
        await at_rest(daemon)
    race.expect(deepest <= limit, f'{deepest} triggers were open')
    race.expect(grown < 120, f'it has grown by {grown:.0f} MB')
    said = [json.loads(line)['trigger_text'] for line in exchanges(race.workspace)]
    asked = Counter(name for name in names for text in said if text.endswith(f'what {name} says'))
    race.expect(asked == Counter(names), f'not each file is answered once: {asked - Counter(names)}')
    race.check([[]])


def files_left(race: Race, folder: Path, names: set[str]) -> set[str]:
    """Returns which files are in the inbox still; none may be nowhere."""
    here = {path.name for path in folder.iterdir()} & names
    done = {path.name for path in (folder / 'done').glob('*/*')}
    race.expect(not names - here - done, f'these files are nowhere: {names - here - done}')
    return here


# -- subscribers that stall ------------------------------------------------------------------------------------


async def stalled(race: Race, size: Size) -> None:
    """One subscriber stalls, again and again: it skips ahead and is told how much, once each time; others go on."""
    del size
    capacity = race.chance.choice([16, 64, 256])
    bus = EventBus(capacity)
    got, missed, read = 0, 0, 0
    with bus.subscribe() as live, bus.subscribe(DateChanged, name='stalled') as stalling:

        def look() -> list[Event]:
            return [item.event for item in live.ready()]

        for episode in range(5):
            for _ in range(race.chance.randrange(2, 6)):
                published = range(got, got + race.chance.randrange(capacity // 2, capacity))
                for number in published:
                    bus.publish(DateChanged(trading_date=date.min, desks=number))
                race.expect(dates_in(look()) == list(published), 'another subscriber misses something')
                got = published.stop
            there = dates_in([item.event for item in stalling.ready()])
            skipped, read = got - read - len(there), got
            missed += skipped
            lags = [event for event in look() if isinstance(event, SubscriberLagged)]
            race.expect(there == list(range(got - len(there), got)), 'what is left comes in another order')
            told = [lag.events_skipped >= skipped for lag in lags if lag.subscriber == 'stalled']
            what = f'in episode {episode} of {capacity} events {skipped} are skipped, and told is {lags}'
            race.expect(told == [True] * bool(skipped), what)
        race.expect(bus.events_skipped >= missed > 0, f'{bus.events_skipped} events are counted, {missed} were skipped')


def dates_in(events: Sequence[Event]) -> list[int]:
    """Returns the numbers that were published."""
    return [event.desks for event in events if isinstance(event, DateChanged)]


async def stream(race: Race, size: Size) -> None:
    """A client that follows events stops reading: it is told what it missed, others get every event, memory stays."""
    del size
    total, before = 48_000, resident()
    async with Daemon(config(race.workspace), ManualClock(LAST_SECOND), environ={}) as daemon:
        live, stalling = [await anyio.to_thread.run_sync(Follower, daemon.socket_path) for _ in range(2)]
        threads = [threading.Thread(target=client.read, daemon=True) for client in (live, stalling)]
        threads[0].start()
        for number in range(total):
            daemon.bus.publish(DateChanged(trading_date=date.min, desks=number))
            if number % 2000 == 1999:
                # It may be slow, but is not to be the one that stalls.
                await eventually(partial(live.has, number - 4000), 'the other one reads')
        grown = (resident() - before) / MEGABYTE
        threads[1].start()
        for client in (live, stalling):
            await eventually(partial(client.has, total - 1), 'all has come')
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    race.expect(live.numbers == list(range(total)), 'the other client misses something')
    race.expect(stalling.numbers == sorted(stalling.numbers), 'what is left comes in another order')
    race.expect(grown < 120, f'it has grown by {grown:.0f} MB')
    skipped = total - len(stalling.numbers)
    told = f'{skipped} were skipped, and told is {live.lags}'
    race.expect(skipped and len(live.lags) == 1 and live.lags[0] >= skipped, told)


class Follower:
    """Follows the events over a control socket; to be made and read in a thread.

    Attributes:
        numbers: The dates that have come.
        lags: How many events were told to be skipped.
    """

    def __init__(self, path: Path) -> None:
        self._connection = UnixConnection(path)
        self._connection.request('GET', '/v1/events')
        self._response = self._connection.getresponse()
        self.numbers: list[int] = []
        self.lags: list[int] = []

    def has(self, number: int) -> bool:
        """Returns whether a date has come."""
        return number < 0 or (bool(self.numbers) and self.numbers[-1] >= number)

    def read(self) -> None:
        """Reads until the daemon ends."""
        for raw in self._response:
            line = json.loads(raw)
            if line.get('event') == 'date_changed':
                self.numbers.append(line['desks'])
            elif line.get('event') == 'subscriber_lagged':
                self.lags.append(line['events_skipped'])
        self._connection.close()


# -- the part --------------------------------------------------------------------------------------------------

OVERLOADS: dict[str, Callable[[Race, Size], Awaitable[None]]] = {
    'component': component,
    'clients': clients,
    'inbox': inbox,
    'stalled': stalled,
    'stream': stream,
    'slow desks': slow_disks.desks,
    'slow disk': slow_disks.whole,
}
"""Each overload by its name."""


def lacks(name: str) -> str:
    """Returns what this machine lacks for an overload; empty where it has all."""
    if name == 'slow disk' and shutil.which('strace') is None:
        return 'strace is not installed: no sync of a whole process is slow'
    return ''


def run_overload(name: str, seed: str, size: Size = SHORT, plant: str = '') -> Findings:
    """Makes one overload."""

    async def act(race: Race) -> None:
        await OVERLOADS[name](race, size)

    return run_one(act, f'the overload {name!r}', seed, plant, seconds=PATIENCE_SECONDS, count_as='overloads')


def run(budget: Budget, plant: str = '') -> Findings:
    """Makes every overload in each round; large ones where there is time."""
    findings = Findings()
    size = LONG if math.isfinite(budget.seconds_left) and budget.seconds_left > LONG_TAKES_SECONDS else SHORT
    with planted(plant):
        for number in budget:
            for name in OVERLOADS:
                if not budget.spent and not lacks(name):
                    findings.take(run_overload(name, f'{budget.seed}-{number}', size, plant))
    return findings


def trial(plant: str) -> Findings:
    """Lets a subscriber stall."""
    with planted(plant):
        return run_overload('stalled', 'trial', plant=plant)
