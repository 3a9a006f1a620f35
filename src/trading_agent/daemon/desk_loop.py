"""The loop that alone touches a desk's session.

Triggers, the date boundary, a rollover asked for by a person, owed summaries and the stop come to it one after the
other, so that nothing in a session ever happens at the same time as something else.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import anyio

from trading_agent.beside import beside
from trading_agent.daemon.desk_parts import DeskParts
from trading_agent.daemon.status import RolloverResult
from trading_agent.errors import DeskUnusable, NoBackend, StorageError
from trading_agent.events import Event, WriteFailed
from trading_agent.memory.rollover import Decision
from trading_agent.memory.trigger_queue import TriggerQueue

TRY_AGAIN_SECONDS = (1.0, 30.0)
"""How long the desk waits when no backend can answer or the disk cannot be written: doubling from the first on."""

BACKFILL_SECONDS = 300.0
"""How often an owed summary is tried while no turn shows that a backend is back."""

OVERDUE_GRACE_SECONDS = 10.0
OVERDUE_SECONDS = 600.0
"""How long a desk may be at work outside a model call, on the disk for example, before it counts as stuck."""


@dataclass
class _RolloverRequest:
    done: anyio.Event = field(default_factory=anyio.Event)
    result: RolloverResult | None = None
    error: Exception | None = None


class DeskLoop:
    """One run of a desk's loop; the next start of the desk gets another.

    Args:
        desk: The desk's name.
        parts: What it works with.
        queue: Its triggers.
        publish: Where events go.
        on_idle: Called when it has nothing to do, or wants to be woken at another instant.
        on_trouble: Is told what keeps it from going on.

    Attributes:
        idle: Whether it waits for something to do.
        held: Whether a person holds the desk, so that nothing is run.
    """

    def __init__(
        self,
        *,
        desk: str,
        parts: DeskParts,
        queue: TriggerQueue,
        publish: Callable[[Event], None],
        on_idle: Callable[[], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._desk = desk
        self._parts = parts
        self._queue = queue
        self._publish = publish
        self._on_idle = on_idle
        self._on_trouble = on_trouble
        self._ending = False
        self._wake = anyio.Event()
        self._urgent = anyio.Event()
        self._requests: list[_RolloverRequest] = []
        self._busy_since = anyio.current_time()
        self._backfill_at = 0.0
        self.idle = False
        self.held = False

    # -- from others -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Lets the loop look for something to do."""
        self.idle = False
        self._wake.set()

    def look_now(self) -> None:
        """Like `wake`, and also ends a pause before another try: at a boundary, or when a person asks."""
        self._urgent.set()
        self.wake()

    def touch(self) -> None:
        """Says that the loop is not stuck: a full disk is waited for, however long that takes."""
        self._busy_since = anyio.current_time()

    def end(self) -> None:
        """Lets `run` return after what it is doing."""
        self._ending = True
        self.look_now()

    @property
    def alarm(self) -> datetime | None:
        """When the scheduler is to wake the loop, by the clock."""
        return self._queue.next_instant() if self.idle else None

    def overdue(self) -> str | None:
        """Returns what the loop has waited for longer than it said it would, or None."""
        now = anyio.current_time()
        call = self._parts.router.call
        if self.idle or (call is not None and call.ends_by is None):
            return None
        if call is not None and call.ends_by is not None:
            return f'the backend {call.backend}' if now > call.ends_by + OVERDUE_GRACE_SECONDS else None
        return 'the disk' if now > self._busy_since + OVERDUE_SECONDS else None

    def take_over(self, previous: 'DeskLoop') -> None:
        """Goes on with what was asked of a loop that has failed."""
        self._requests += previous.hand_over()

    def hand_over(self) -> list[_RolloverRequest]:
        """Lets go of what was asked and is not answered."""
        requests, self._requests = self._requests, []
        return requests

    def refuse(self, error: Exception) -> None:
        """Answers whoever waits for a rollover."""
        for request in self.hand_over():
            request.error = error
            request.done.set()

    async def roll_over(self) -> RolloverResult:
        """Rolls over after the running turn.

        Raises:
            DeskUnusable: The desk is parked or stopping.
            TradingAgentError: The rollover failed; it is gone on with by itself.
        """
        request = _RolloverRequest()
        self._requests.append(request)
        self.look_now()
        await request.done.wait()
        if request.error is not None:
            raise request.error
        assert request.result is not None  # noqa: S101 - one of the two is there
        return request.result

    # -- the loop ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until `end`."""
        wait, longest = TRY_AGAIN_SECONDS
        while not self._ending:
            self._wake = anyio.Event()
            self._urgent = anyio.Event()
            self._busy_since = anyio.current_time()
            try:
                did_something = await self._do_next()
                self._on_trouble('')
                wait = TRY_AGAIN_SECONDS[0]
                if not did_something:
                    await self._rest()
            except NoBackend as error:
                self._on_trouble(f'{error}: {error.hint}')
                await self._pause(wait)
                wait = min(wait * 2, longest)
            except StorageError as error:
                self._publish(WriteFailed.of(error, self._desk))
                self.refuse(error)
                await self._pause(wait)
                wait = min(wait * 2, longest)

    async def _do_next(self) -> bool:
        """Does the first thing that is due; returns whether there was one. While a person holds it, nothing is due."""
        await self._parts.router.settle()
        if not self.held and await self._parts.keeper.roll_over_if_due():
            return True
        if self._requests:
            await self._roll_over_as_asked()
            return True
        for entry in self._queue.expired():
            await self._queue.close(entry, 'stale', self._parts.router.session_id)
        if self._queue.head() is None or self.held:
            return False
        await self._parts.turns.run(self._queue.batch())
        self._backfill_at = 0.0
        return True

    async def _rest(self) -> None:
        """Waits until something wakes the loop; makes an owed summary meanwhile, which whatever is due cuts off."""
        if self._wake.is_set():
            return
        owed = self._parts.keeper.owed and not self.held
        owed_in = max(0.0, self._backfill_at - anyio.current_time()) if owed else None
        self.idle = True
        self._on_idle()
        with anyio.move_on_after(owed_in) as until_backfill:
            await self._wake.wait()
        self.idle = False
        if until_backfill.cancelled_caught:
            self._backfill_at = anyio.current_time() + BACKFILL_SECONDS
            with anyio.CancelScope() as scope:
                async with beside(partial(self._give_way, scope)):
                    if await self._parts.keeper.backfill():
                        self._backfill_at = 0.0

    async def _give_way(self, scope: anyio.CancelScope) -> None:
        while True:
            await self._wake.wait()
            if self._something_is_due():
                break
            self._wake = anyio.Event()
        self._backfill_at = anyio.current_time() + TRY_AGAIN_SECONDS[1]
        scope.cancel()

    def _something_is_due(self) -> bool:
        if self._ending or self.held or self._requests or self._queue.head() is not None:
            return True
        return self._parts.keeper.decision() in (Decision.ROLL_OVER, Decision.CORRECT)

    async def _pause(self, seconds: float) -> None:
        """Waits before another try; only the boundary, a rollover or a stop end it early."""
        self._busy_since = anyio.current_time()
        with anyio.move_on_after(seconds * random.uniform(0.8, 1.2)):  # noqa: S311 - no secret
            await self._urgent.wait()

    async def _roll_over_as_asked(self) -> None:
        if self.held:
            self.refuse(DeskUnusable(f'the desk {self._desk} is paused', f'`trading-agent resume {self._desk}`'))
            return
        before = self._parts.router.session_id
        after = await self._parts.keeper.roll_over()
        result = RolloverResult(after is not None, after or before or '', before if after is not None else None)
        requests, self._requests = self._requests, []
        for request in requests:
            request.result = result
            request.done.set()
