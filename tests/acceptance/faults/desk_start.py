"""The start of the desks as the daemon makes it, on a workspace that is given, in one thread, thousands of times."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import anyio
import anyio.from_thread
import anyio.lowlevel
from scripted_story import Scripted, config_for

from trading_agent import files
from trading_agent.clock import ManualClock
from trading_agent.conversation.tools import Tool
from trading_agent.daemon.desk import Desk
from trading_agent.disk import Disk
from trading_agent.event_bus import EventBus
from trading_agent.events import Event
from trading_agent.routing.backend import Backend
from trading_agent.routing.backend_health import BackendHealth
from trading_agent.trigger import Trigger

T = TypeVar('T')
Ts = TypeVarTuple('Ts')

PATIENCE_SECONDS = 60.0
FURTHER = 'further'
"""The trigger that is sent after a crash."""


@contextmanager
def quick_starts() -> Iterator[None]:
    """Spares the starts what is not the point, thousands of times.

    What is told from a thread of the disk is told at once: here such a thread is the loop's own. The schemas of the
    desk's own tools are made once.
    """
    from_thread, made = anyio.from_thread.run_sync, Tool.of
    anyio.from_thread.run_sync = lambda function, *arguments: function(*arguments)
    known: dict[str, Tool] = {}

    def known_or_made(function: Callable[..., Awaitable[Any]] | Tool) -> Tool:
        name = getattr(function, '__qualname__', '')
        if name not in known:
            known[name] = made(function)
        return known[name]

    Tool.of = known_or_made  # type: ignore[method-assign]
    try:
        yield
    finally:
        anyio.from_thread.run_sync, Tool.of = from_thread, made  # type: ignore[method-assign]


class _InlineDisk(Disk):
    """A disk without threads."""

    def share(self) -> Disk:
        return self

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        await anyio.lowlevel.checkpoint_if_cancelled()
        return function(*args)


class DeskStart:
    """The desks of a workspace, as one process starts them.

    Args:
        workspace: The workspace.
        desks: The names of the desks.
        now: What time it is.

    Attributes:
        told: What they have told.
        effects: The triggers of which they have placed an order.
        desks: The desks.
    """

    def __init__(self, workspace: Path, desks: Sequence[str], now: datetime) -> None:
        self._workspace = workspace
        self.told: list[Event] = []
        self.effects: list[str] = []
        self._changed = anyio.Event()
        self._clock = ManualClock(now + timedelta(seconds=1))
        bus = EventBus()
        bus.publish = self.told.append  # type: ignore[method-assign, assignment]
        backend = Scripted(self.effects.append, waits=False)
        disk, slots = _InlineDisk(), anyio.CapacityLimiter(4)
        settings = config_for(workspace, backend, tuple(desks)).desks
        self.desks = [
            Desk(
                each,
                workspace / 'desks' / each.name,
                [Backend('scripted', backend, BackendHealth('scripted', bus.publish))],
                bus,
                self._clock,
                slots=slots,
                disk=disk,
                max_trigger_size=1 << 20,
                on_change=self._on_change,
            )
            for each in settings
        ]

    def _on_change(self) -> None:
        self._changed.set()

    async def start(self) -> None:
        """Starts the desks; nothing is run yet."""
        files.make_folder(self._workspace)
        for desk in self.desks:
            await desk._start()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Lets the loops of the desks run until the block ends."""
        async with anyio.create_task_group() as loops:
            for desk in self.desks:
                loops.start_soon(desk._loop.run)
            yield
            for desk in self.desks:
                desk.stop()

    async def send_further(self) -> None:
        """Sends one more trigger to each desk.

        Raises:
            AssertionError: It was not accepted.
        """
        for desk in self.desks:
            trigger = Trigger('one more', desk.name, id=FURTHER, received_at=self._clock.now())
            receipt = await desk.queue.accept(trigger)
            assert receipt.status == 'accepted', receipt

    async def rest(self) -> bool:
        """Returns when all desks have nothing more to do; False where they do not come to rest."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            while not all(desk.idle and not desk.queue.depth for desk in self.desks):
                self._changed = anyio.Event()
                await self._changed.wait()
            return True
        return False
