"""A desk of a daemon within a test, with a clock that stands still."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio
import pytest
from desk_files import DeskFiles, Line

from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon import desk_loop
from trading_agent.daemon.daemon import Daemon
from trading_agent.events import Event
from trading_agent.routing import backend_health, failover
from trading_agent.routing.turn_text import timed
from trading_agent.trigger import Trigger
from trading_agent.units import Duration

E = TypeVar('E', bound=Event)

MORNING = datetime(2026, 3, 10, 10, tzinfo=INDIA)
TODAY, TOMORROW = '2026-03-10', '2026-03-11'


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all waits be short, that a day has room in a test."""
    monkeypatch.setattr(backend_health, 'COOL_DOWN_SECONDS', (0.02, 0.1))
    monkeypatch.setattr(backend_health, 'LONGEST_RETRY_AFTER_SECONDS', 0.1)
    monkeypatch.setattr(failover, 'BUSY_SECONDS', 0.005)
    monkeypatch.setattr(desk_loop, 'TRY_AGAIN_SECONDS', (0.02, 0.1))


class EmbeddedDesk:
    """The desk `main`.

    Args:
        folder: Where its workspace is made.
        backends: The backends, in order of preference.
        patience: How long anything that must happen may take, in seconds.

    Attributes:
        clock: It goes when it is told to.
        events: All that was told.
        files: What it has on disk.
    """

    def __init__(self, folder: Path, backends: dict[str, Backend], patience: float = 20.0) -> None:
        self.clock = ManualClock(MORNING)
        self._patience = patience
        self.events: list[Event] = []
        self.files = DeskFiles(folder / 'ws' / 'desks' / 'main')
        desk = Desk(name='main', backends=list(backends), turn_timeout=Duration(20))
        self._config = Config(workspace=folder / 'ws', backends=backends, desks=[desk])
        self._stack = AsyncExitStack()

    async def begin(self) -> None:
        """Starts the daemon, anew where it runs."""
        await self.end()
        daemon = Daemon(self._config, self.clock, faces=False, environ={})
        self._bus, self._supervisor = (await self._stack.enter_async_context(daemon)).bus, daemon.supervisor
        self._told = self._stack.enter_context(self._bus.subscribe(since='oldest'))
        self._stack.callback(self._listen)

    async def end(self) -> None:
        """Stops it."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    def _listen(self) -> None:
        self.events += [item.event for item in self._told.ready(1 << 20)]

    async def send(self, texts: Sequence[str], ids: Sequence[str] = ()) -> None:
        """Sends triggers at once, and returns when all are closed; without ids each has one of its own."""
        ids = ids or [f't{len(self.events)}-{number}' for number in range(len(texts))]
        for text, trigger_id in zip(texts, ids, strict=True):
            trigger = Trigger(text, 'main', id=trigger_id, received_at=self.clock.now())
            receipt = await self._bus.send(trigger)
            assert receipt.status == 'accepted', receipt
        await self.at_rest()

    async def at_rest(self) -> None:
        """Returns when it has nothing more to do."""
        desk = self._supervisor.desks['main']
        await self._until(lambda: desk.queue.depth == 0 and desk.idle, 'the desk is at rest')
        self._listen()

    async def cooled_down(self) -> None:
        """Returns when every backend may be asked again."""
        healths = [backend.health for backend in self._supervisor.desks['main']._backends]
        await self._until(lambda: all(health.cools_for == 0 for health in healths), 'all have cooled down')

    async def next_day(self) -> None:
        """Lets midnight pass, and returns when the session is rolled over."""
        self.clock.advance(timedelta(days=1))
        await self._until(lambda: TOMORROW in self.files.state()['session_id'], 'the session is rolled over')
        await self.at_rest()

    async def _until(self, condition: Callable[[], object], what: str) -> None:
        with anyio.move_on_after(self._patience):
            while not condition():  # noqa: ASYNC110 - any condition
                await anyio.sleep(0.005)
            return
        raise AssertionError(f'not within {self._patience} s: {what}')

    def told(self, kind: type[E]) -> list[E]:
        """Returns the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def last(self) -> Line:
        """The last exchange."""
        return self.files.exchanges()[-1]


def dated(exchange: Line) -> str:
    """Returns what was told in an exchange of the first day as a model is told it."""
    return timed(exchange['trigger_text'], datetime.fromisoformat(exchange['started_at']), MORNING.date())


async def after(seconds: float, *what: Any) -> None:  # noqa: ANN401 - functions
    """Does something after a while."""
    await anyio.sleep(seconds)
    for function in what:
        function()
