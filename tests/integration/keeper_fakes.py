"""A desk's session side on real files: the model is a script, the disk may be spared, the process may die."""

import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import pytest

from trading_agent import files
from trading_agent.clock import INDIA, ManualClock
from trading_agent.disk import Disk
from trading_agent.errors import StorageError
from trading_agent.events import Event
from trading_agent.memory.curated import Curator
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.review import Limits
from trading_agent.memory.session_keeper import SessionKeeper
from trading_agent.memory.session_state import SessionState, split_session_id
from trading_agent.memory.session_store import SessionStore
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.routing.backend import Backend
from trading_agent.routing.backend_health import BackendHealth
from trading_agent.routing.model_router import ModelRouter
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnAnswered, TurnEvent, TurnRunner, UsageCounted
from trading_agent.trigger import Trigger

E = TypeVar('E', bound=Event)
T = TypeVar('T')
Ts = TypeVarTuple('Ts')

MONDAY_MORNING = datetime(2026, 10, 19, 9, 15, tzinfo=INDIA)
MONDAY, TUESDAY, WEDNESDAY = (date(2026, 10, day) for day in (19, 20, 21))


class Crash(BaseException):
    """The process dies: nothing catches this."""


class InlineDisk(Disk):
    """A disk without threads, where it is not the point that others go on meanwhile."""

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        await anyio.lowlevel.checkpoint_if_cancelled()
        return function(*args)


def spare_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets syncs do nothing, where durability is not the point."""
    for name in ('fsync', 'fdatasync'):
        monkeypatch.setattr(os, name, lambda _: None)


def around(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    before: Callable[[Path], None] = lambda _: None,
    after: Callable[[Path], None] = lambda _: None,
) -> None:
    """Lets something happen before or after each call of a function of the files module, which is given the path."""
    real = getattr(files, name)

    def wrapped(path: Path, *args: object, **options: object) -> object:
        before(path)
        result = real(path, *args, **options)
        after(path)
        return result

    monkeypatch.setattr(files, name, wrapped)


def failing(operation: str, path: Path, number: int) -> StorageError:
    """Returns the error of a disk that fails with this error number."""
    return StorageError(operation, path, OSError(number, os.strerror(number)))


def fast_folder(fallback: Path) -> Path:
    """Returns a folder in memory where the machine has one."""
    shared = Path('/dev/shm')  # noqa: S108 - only its speed is wanted, the test's folder in it is unique
    if not os.access(shared, os.W_OK):
        return fallback
    folder = shared / f'trading-agent-tests-{os.getpid()}-{fallback.name}'
    folder.mkdir(mode=0o700)
    return folder


class Model:
    """A backend that answers turns and reviews as told, and remembers what it was asked.

    Attributes:
        turns: What the desk was told.
        reviews: The sessions that it was asked to review, also in parts.
        curations: How it was asked about skills.
        on_turn: Returns the answer to a turn.
        on_review: Returns the answer to a review, as an object or as text.
        on_curation: Returns what is to be done to the skills.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.reviews: list[str] = []
        self.curations: list[str] = []
        self.on_turn: Callable[[Turn], Awaitable[str]] = self.answer
        self.on_review: Callable[[Turn], Awaitable[dict[str, Any] | str]] = self.review
        self.on_curation: Callable[[Turn], Awaitable[list[dict[str, str]]]] = self.curate

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        if turn.schema is None:
            self.turns.append(turn)
            answer = await self.on_turn(turn)
            yield TextPiece(answer)
            yield UsageCounted(input_tokens=10, output_tokens=2)
            yield TurnAnswered(answer, {'turns': len(self.turns)})
        elif 'actions' in turn.schema['properties']:
            self.curations.append(turn.text)
            yield TurnAnswered(json.dumps({'actions': await self.on_curation(turn)}))
        else:
            self.reviews.append(reviewed(turn))
            reviewed_as = await self.on_review(turn)
            yield TurnAnswered(reviewed_as if isinstance(reviewed_as, str) else json.dumps(reviewed_as))

    async def answer(self, turn: Turn) -> str:
        return f'answer {len(turn.exchanges) + 1} of {turn.session_id}'

    async def review(self, turn: Turn) -> dict[str, Any]:
        session_id = reviewed(turn)
        return {
            'summary': f'{session_id} had {len(turn.exchanges)} exchanges',
            'memory': f'{memory_in(turn)}- lesson of {session_id}\n',
            'reasons': 'a lesson',
        }

    async def curate(self, turn: Turn) -> list[dict[str, str]]:
        return []


def reviewed(turn: Turn) -> str:
    """Returns the session that a review is about."""
    found = re.search(r'[Tt]he session (\S+) of the desk', turn.text)
    assert found is not None
    return found[1]


def memory_in(turn: Turn) -> str:
    """Returns the Memory.md that a review was shown."""
    memory = turn.text.partition('Memory.md is now:\n\n')[2].removesuffix('\n')
    return '' if memory == '(empty)' else memory


async def never(_: object) -> str:
    """Hangs."""
    await anyio.sleep_forever()
    raise AssertionError


class PlainRouter:
    """The least that a keeper's router is: a session over the store. No model can be asked."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.session_id: str | None = None
        self.trading_date: date | None = None
        self.exchanges: list[Exchange] = []
        self.resets = 0

    async def restore_session(self) -> bool:
        state = self._store.load_state()
        if state is None:
            await self.reset()
            return False
        self.session_id, self.trading_date = state.session_id, state.trading_date
        self.exchanges = self._store.exchanges(state.session_id)
        return True

    async def reset(self) -> None:
        self.resets += 1
        self.session_id = self._store.new_session_id(self._store.today())
        self.trading_date = split_session_id(self.session_id)[0]
        self.exchanges = []
        self._store.save_state(SessionState(self.session_id, self.trading_date))

    def exchange(self, told: str, at: datetime, answer: str = 'noted') -> None:
        assert self.session_id is not None
        exchange = Exchange(told, answer, 'plain', at.isoformat())
        self._store.append_exchange(self.session_id, exchange)
        self.exchanges.append(exchange)


class Box:
    """One desk's folder and what a process makes of it; `restart` makes all of it anew on the same folder.

    Attributes:
        events: Everything that was told, over all restarts.
    """

    def __init__(
        self,
        folder: Path,
        clock: ManualClock | None = None,
        *,
        runners: Sequence[TurnRunner] = (),
        curator: Curator | Callable[['Box'], Curator] | None = None,
        limits: Limits | None = None,
        rollover_at: timedelta = timedelta(),
        disk: Disk | None = None,
    ) -> None:
        self.folder = folder
        self.clock = clock or ManualClock(MONDAY_MORNING)
        self.model = Model()
        self.runners = list(runners) or [self.model]
        self.curator = curator
        self.limits = limits or Limits()
        self.rollover_at = rollover_at
        self.disk = disk
        self.events: list[Event] = []
        self.build()

    def build(self) -> None:
        disk = self.disk or Disk()
        self.memory = MemoryFile(self.folder, self.clock.now)
        self.notes = DayNotes(self.folder)
        self.store = SessionStore(self.folder / 'sessions', lambda: self.clock.trusted_date(self.rollover_at))
        names = ['first', *(f'other-{number}' for number in range(1, len(self.runners)))]
        # Asked again at once: what a failure costs in time is not the point here.
        healths = [BackendHealth(name, self.publish, cool_down=(0.0, 0.0)) for name in names]
        backends = [Backend(*each) for each in zip(names, self.runners, healths, strict=True)]
        self.router = ModelRouter('main', self.store, backends, self.publish, self.clock, memory=self.memory, disk=disk)
        self.queue = TriggerQueue(self.folder, 'main', self.clock, self.publish, disk)
        self.keeper = SessionKeeper(
            'main',
            self.router,
            self.store,
            self,
            self.curator(self) if callable(self.curator) else self.curator,
            memory=self.memory,
            notes=self.notes,
            clock=self.clock,
            limits=self.limits,
            disk=disk,
            archive=self.queue.archive,
            ended_digest=lambda: self.router.ended_digest,
        )

    async def start(self) -> None:
        await self.queue.load()
        await self.keeper.start()

    async def restart(self) -> None:
        self.build()
        await self.start()

    def publish(self, event: Event) -> None:
        self.events.append(event)

    def told(self, kind: type[E]) -> list[E]:
        """Returns the events of one kind."""
        return [event for event in self.events if type(event) is kind]

    async def turn(self, text: str = 'a message') -> str:
        """Runs one trigger as a desk does; returns what the model was told."""
        async with self.keeper.turn():
            prepared = await self.keeper.prepare(Trigger(text, 'main', received_at=self.clock.now()))
            await self.router.run(prepared)
        return prepared.text

    def next_day(self, days: int = 1) -> None:
        """Lets time pass to the same time of a later day."""
        self.clock.advance(timedelta(days=days))

    @property
    def path(self) -> Path:
        return self.folder / 'sessions'

    @property
    def memory_text(self) -> str:
        return self.memory.read().text

    def summary(self, day: date) -> str:
        path = self.store.summary_path(day)
        return path.read_text() if path.exists() else ''

    def headings(self) -> list[str]:
        """Returns the heading of every summary section, the oldest day first."""
        texts = [summary.text for summary in reversed(self.store.summaries())]
        return [line for text in texts for line in text.split('\n') if line.startswith('## Session ')]


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Waits for a condition, and fails when it does not come true in time."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - any condition
            await anyio.sleep(0.002)
