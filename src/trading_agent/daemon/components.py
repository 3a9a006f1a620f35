"""Other people's code in the process: started before the desks, stopped after them, kept in rooms of its own."""

import asyncio
import math
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from trading_agent import config
from trading_agent.daemon.restarts import RestartBudget
from trading_agent.errors import ConfigurationError, Problem, TradingAgentError
from trading_agent.event_bus import EventBus
from trading_agent.events import ComponentFailed
from trading_agent.plug_in import imported

Component = Callable[[EventBus, dict[str, Any]], Awaitable[None]]

CANCEL_GRACE_SECONDS = 10.0
"""How long a component may take to end before it is told that it does not."""

SWITCH_SECONDS = 0.0002
"""How long a thread waits at most for its turn in the interpreter (`sys.setswitchinterval`).

A component that keeps the event loop busy without blocking it would else hold up the threads that write the desks'
files by the usual 5 ms at each of their many calls of the system: a turn takes about a hundred of them.
"""


class ComponentCancelled(TradingAgentError):
    """Told in place of a cancellation that nobody here asked for: the component made it itself."""


class ComponentStuck(TradingAgentError):
    """Told of a component that does not end."""


def import_component(settings: config.Component, where: str) -> Component:
    """Returns the callable that a `[[components]]` table names.

    Raises:
        ConfigurationError: It cannot be imported or called.
    """
    try:
        entry = imported(settings.entry)
    except Exception as error:
        what = f'{settings.entry!r} cannot be used: {type(error).__name__}: {error}'
        hint = 'is its package installed in this environment?'
        raise ConfigurationError([Problem(f'{where}: components.{settings.name}.entry', what, hint)]) from error
    if not callable(entry):
        what = f'{settings.entry!r} cannot be called'
        hint = 'name an `async def component(bus, options)`'
        raise ConfigurationError([Problem(f'{where}: components.{settings.name}.entry', what, hint)])
    component: Component = entry
    return component


@dataclass(eq=False)
class _Room:
    """One component as it is configured now.

    Attributes:
        settings: Its table.
        component: What is run.
        before: The room of the same name that must be empty first, or None.
        scope: Ends it.
        ended: Set once nothing of it runs.
        down: Whether it failed too often and is not started again.
    """

    settings: config.Component
    component: Component
    before: '_Room | None' = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    down: bool = False


class Components:
    """Runs the configured components.

    Args:
        bus: What they see of the daemon.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._tasks: anyio.abc.TaskGroup | None = None
        self._rooms: dict[str, _Room] = {}
        self._leaving: dict[str, _Room] = {}
        self._stop = anyio.Event()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Holds the components until `stop`; returns once they have ended.

        For the whole process it shortens the time that a thread waits for its turn in the interpreter.
        """
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            await self._stop.wait()
            # Whoever waits for events is handed the last ones: woken in the first round, running in the second.
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            for name in list(self._rooms):
                self._leave(name)

    def stop(self) -> None:
        """Ends every component."""
        self._stop.set()

    def apply(self, wanted: dict[str, tuple[config.Component, Component]]) -> None:
        """Starts what is new or has failed too often, ends what is gone, and restarts what has changed.

        Args:
            wanted: Each component by its name: its settings and its callable.
        """
        assert self._tasks is not None  # noqa: S101 - `run` was started first
        for name, room in list(self._rooms.items()):
            if name not in wanted or wanted[name][0] != room.settings or room.down:
                self._leave(name)
        for name, (settings, component) in wanted.items():
            if name not in self._rooms:
                room = self._rooms[name] = _Room(settings, component, before=self._leaving.get(name))
                self._tasks.start_soon(self._supervise, room, name=f'component {name}')

    def _leave(self, name: str) -> None:
        assert self._tasks is not None  # noqa: S101 - there is a room
        room = self._leaving[name] = self._rooms.pop(name)
        room.scope.cancel()
        self._tasks.start_soon(self._see_off, room, name=f'end of component {name}')

    async def _see_off(self, room: _Room) -> None:
        name = room.settings.name
        with anyio.move_on_after(CANCEL_GRACE_SECONDS) as patience:
            await room.ended.wait()
        if patience.cancelled_caught:
            what = f'it was told to end {CANCEL_GRACE_SECONDS:g} s ago and has not'
            hint = 'it must let itself be cancelled; only a restart of the daemon ends it'
            self._tell(name, ComponentStuck(what, hint))
            await room.ended.wait()
        if self._leaving.get(name) is room:
            del self._leaving[name]

    async def _supervise(self, room: _Room) -> None:
        try:
            if room.before is not None:
                await room.before.ended.wait()
                room.before = None
            with room.scope:
                await self._keep_running(room)
        finally:
            room.ended.set()

    async def _keep_running(self, room: _Room) -> None:
        budget = RestartBudget()
        while not room.scope.cancel_called:
            error = await self._run_once(room)
            if error is None:
                return
            task = asyncio.current_task()
            # Where the task itself was cancelled, the event loop may be on its way out: not started again.
            room.down = not budget.spend() or (task is not None and task.cancelling() > 0)
            if room.scope.cancel_called:
                what = 'this came while it was being ended'
            elif room.down:
                what = 'it stays down until `trading-agent reload`; code that was changed needs a restart of the daemon'
            else:
                what = 'it is started again'
            self._tell(room.settings.name, error, what)
            if room.down:
                return
            await anyio.sleep(budget.delay())

    async def _run_once(self, room: _Room) -> BaseException | None:
        """Runs a component; returns what ended it, or None when it returned."""
        try:
            # A copy: what it does to its options is not what is configured.
            await room.component(self._bus, dict(room.settings.options))
        except asyncio.CancelledError:
            if anyio.current_effective_deadline() == -math.inf:
                raise
            return ComponentCancelled('it was cancelled by something inside it')
        except (Exception, SystemExit, BaseExceptionGroup) as error:  # noqa: BLE001 - other people's code: it is told
            return error
        return None

    def _tell(self, name: str, error: BaseException, what: str = '') -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        hint = error.hint if isinstance(error, TradingAgentError) else ''
        self._bus.publish(
            ComponentFailed(
                component=name,
                error_type=type(error).__name__,
                error=f'{str(error)[:2000] or type(error).__name__}{_where(error)}',
                hint='; '.join(filter(None, (hint, what))),
            )
        )


def _where(error: BaseException) -> str:
    """Returns where an error was raised, in words; empty where that is in this module."""
    stack = traceback.extract_tb(error.__traceback__, limit=-1)
    if not stack or stack[-1].filename == __file__:
        return ''
    return f' (in {stack[-1].name}, {stack[-1].filename}:{stack[-1].lineno})'
