"""Keeps every desk at work: starts it, restarts it within a budget, parks it when only a person can mend it."""

import errno
from collections.abc import Callable

import anyio
import anyio.abc

from trading_agent.daemon.desk import Desk
from trading_agent.daemon.restarts import RestartBudget
from trading_agent.daemon.status import DeskStatus
from trading_agent.errors import DeskUnusable, StorageError, TradingAgentError
from trading_agent.event_bus import EventBus
from trading_agent.events import DeskParked, DeskRestarted

TICK_SECONDS = 1.0
CANCEL_GRACE_SECONDS = 10.0

_FOR_A_PERSON = frozenset(
    {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Storage errors that no waiting mends. A full or failing disk is tried again and again instead."""


class DeskStuck(TradingAgentError):
    """Raised in place of a desk's loop that waited longer than it had said."""


class Supervisor:
    """Runs the desks, each in a room of its own: what one does harms no other.

    Args:
        bus: Where events go; each desk is attached to it.
        on_gone: Called when a desk that is no longer configured has ended.
    """

    def __init__(self, bus: EventBus, on_gone: Callable[[], None] = lambda: None) -> None:
        self.desks: dict[str, Desk] = {}
        self._bus = bus
        self._on_gone = on_gone
        self._tasks: anyio.abc.TaskGroup | None = None
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._stuck: dict[str, tuple[str, float]] = {}
        self._let_go: dict[str, anyio.Event] = {}
        self._stop = anyio.Event()
        self._done = anyio.Event()
        self._running = 0
        self._changed = anyio.Event()
        self.beat = anyio.current_time()

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Runs the desks that `add` brings, until `stop` has let them all end."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._watch)
            task_status.started()
            await self._done.wait()

    def add(self, desk: Desk) -> None:
        """Starts a desk, and lets the bus send it triggers."""
        assert self._tasks is not None  # noqa: S101 - `run` was started first
        self.desks[desk.name] = desk
        self._bus.attach(desk.name, desk.queue.accept)
        self._running += 1
        self._tasks.start_soon(self._supervise, desk, name=f'desk {desk.name}')

    def take_back(self, desk: Desk) -> None:
        """Lets the bus send triggers to a desk that was to go and is configured again."""
        self._bus.attach(desk.name, desk.queue.accept)
        self._wake_up(desk.name)

    def remove(self, name: str) -> None:
        """Lets a desk end after its running turn; it gets no more triggers, and those that wait stay on disk."""
        self._bus.detach(name)
        self.desks[name].retire()
        self._wake_up(name)

    def resume(self, name: str) -> None:
        """Starts a parked desk again.

        Raises:
            DeskUnusable: It is parked since it cannot be cut off.
        """
        if name in self._stuck:
            raise DeskUnusable(f'the desk {name} cannot be cut off', 'restart the daemon')
        self._wake_up(name)

    def _wake_up(self, name: str) -> None:
        self._let_go.get(name, anyio.Event()).set()

    async def ready(self) -> None:
        """Returns once every desk is ready or parked."""
        for desk in list(self.desks.values()):
            await desk.ready.wait()

    def begin_stop(self) -> None:
        """Lets nothing more begin."""
        self._stop.set()
        for name, desk in self.desks.items():
            desk.stop()
            self._wake_up(name)
        if not self._running:
            self._done.set()

    async def stop(self, drain: float, now: anyio.Event) -> None:
        """Lets every desk end what it is doing, for `drain` seconds or until `now` is set; then cuts it off."""
        self.begin_stop()
        with anyio.move_on_after(drain):
            async with anyio.create_task_group() as first:
                first.start_soon(_until_set, now, first.cancel_scope)
                first.start_soon(_until_set, self._done, first.cancel_scope)
        for scope in self._scopes.values():
            scope.cancel()
        with anyio.move_on_after(CANCEL_GRACE_SECONDS):
            await self._done.wait()

    async def _supervise(self, desk: Desk) -> None:
        budget = RestartBudget()
        try:
            while not (self._stop.is_set() or desk.retiring):
                failure = await self._run_once(desk)
                if failure is None:
                    continue  # told to stop, to go or to begin anew
                if _needs_a_person(failure) or not (budget.spend() or isinstance(failure, StorageError)):
                    self._park(desk, failure)
                    await self._until_let_go(desk)
                    budget = RestartBudget()
                else:
                    await self._delay_restart(desk, failure, budget)
        finally:
            self._gone(desk)

    def _gone(self, desk: Desk) -> None:
        desk.end()
        if desk.retiring and not self._stop.is_set():
            del self.desks[desk.name]
            self._on_gone()
        self._running -= 1
        if not self._running and self._stop.is_set():
            self._done.set()
        self.changed()

    async def _until_let_go(self, desk: Desk) -> None:
        event = self._let_go[desk.name] = anyio.Event()
        if not (self._stop.is_set() or desk.retiring):
            await event.wait()
        del self._let_go[desk.name]

    async def _run_once(self, desk: Desk) -> Exception | None:
        """Runs a desk's loop; returns what ended it, or None when it was told to end."""
        with anyio.CancelScope() as scope:
            self._scopes[desk.name] = scope
            try:
                await desk.run()
            except Exception as error:  # noqa: BLE001 - a desk's failure stays in its room, and is told
                return error
            finally:
                self._scopes.pop(desk.name, None)
                waited_for, _ = self._stuck.pop(desk.name, ('', 0.0))
        if scope.cancelled_caught and not self._stop.is_set():
            return DeskStuck(f'it waited too long for {waited_for}', 'see the log for what was slow')
        return None

    def _park(self, desk: Desk, failure: Exception) -> None:
        hint = failure.hint if isinstance(failure, TradingAgentError) else 'this is a fault of the program: report it'
        then = 'restart the daemon' if desk.name in self._stuck else f'`trading-agent resume {desk.name}`'
        hint = f'{hint}; then {then}'
        desk.park(f'{str(failure) or type(failure).__name__}: {hint}')
        self._bus.publish(
            DeskParked(
                desk=desk.name,
                error_type=type(failure).__name__,
                error=str(failure) or type(failure).__name__,
                hint=hint,
            )
        )
        self.changed()

    async def _delay_restart(self, desk: Desk, failure: Exception, budget: RestartBudget) -> None:
        delay = budget.delay()
        desk.state = 'starting'
        desk.trouble = failure.in_words if isinstance(failure, TradingAgentError) else repr(failure)
        self._bus.publish(
            DeskRestarted(
                desk=desk.name,
                restarts=budget.used,
                delay_ms=round(delay * 1000),
                error_type=type(failure).__name__,
                error=str(failure) or type(failure).__name__,
                hint=failure.hint if isinstance(failure, TradingAgentError) else '',
            )
        )
        with anyio.move_on_after(delay):
            await self._until_let_go(desk)

    async def _watch(self) -> None:
        """Looks after desks that wait longer than they said; ends when all have ended."""
        while not self._done.is_set():
            self.beat = anyio.current_time()
            for desk in list(self.desks.values()):
                self._look_after(desk)
            with anyio.move_on_after(TICK_SECONDS):
                await self._done.wait()

    def _look_after(self, desk: Desk) -> None:
        scope = self._scopes.get(desk.name)
        if scope is None or desk.state == 'parked':
            return
        if desk.name in self._stuck:
            waited_for, since = self._stuck[desk.name]
            if anyio.current_time() > since + CANCEL_GRACE_SECONDS:
                hint = 'mend or remove what it waits for'
                self._park(desk, DeskStuck(f'it waits for {waited_for} and cannot be cut off', hint))
            return
        waited_for_now = desk.overdue()
        if waited_for_now is not None:
            self._stuck[desk.name] = (waited_for_now, anyio.current_time())
            scope.cancel()

    # -- settling ----------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Is told by a desk that it went idle."""
        self._changed.set()

    async def settled(self) -> None:
        """Returns once no desk has anything to do at this instant."""
        while not all(desk.idle for desk in self.desks.values()):
            self._changed = anyio.Event()
            await self._changed.wait()

    def status(self) -> list[DeskStatus]:
        """Returns how each desk is."""
        return [desk.status() for desk in self.desks.values() if not desk.retiring]


async def _until_set(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _needs_a_person(failure: Exception) -> bool:
    if isinstance(failure, StorageError):
        return failure.errno in _FOR_A_PERSON
    return isinstance(failure, DeskUnusable)
