"""What people may ask of a running daemon, by the control socket."""

import os
from datetime import datetime
from typing import Protocol

import anyio

from trading_agent import __version__
from trading_agent.clock import INDIA, Clock
from trading_agent.daemon.configuration import Configuration
from trading_agent.daemon.desk import Desk
from trading_agent.daemon.status import (
    ClockStatus,
    DaemonInfo,
    DeskStatus,
    ReloadResult,
    RolloverResult,
    Status,
    TriggerResult,
)
from trading_agent.daemon.supervisor import Supervisor
from trading_agent.daemon.vitals import clock_state
from trading_agent.errors import DeskUnusable
from trading_agent.event_bus import EventBus
from trading_agent.events import DeskParked, DeskRestarted, DeskStarted

CUT_OFF_SECONDS = 10.0
"""How long a running turn may take to end once it is cut off, before who asked for it is answered without."""

START_SECONDS = 20.0
"""How long a parked desk may take to start again, likewise."""


class Running(Protocol):
    """The daemon, as far as it is needed here."""

    bus: EventBus
    supervisor: Supervisor
    clock: Clock
    run_id: str
    started_at: datetime

    @property
    def configuration(self) -> Configuration:
        """What makes desks and components as configured."""
        ...


class Operations:
    """Fulfils the port of the control socket.

    Args:
        daemon: The daemon.
    """

    def __init__(self, daemon: Running) -> None:
        self._daemon = daemon

    def _desk(self, name: str, *, retiring: bool = False) -> Desk:
        desk = self._daemon.supervisor.desks.get(name)
        if desk is None or (desk.retiring and not retiring):
            hint = 'its triggers are kept: add it to the configuration again, then `trading-agent reload`'
            raise DeskUnusable(f'the desk {name!r} is not configured', hint)
        return desk

    def status(self) -> Status:
        """Returns how everything is."""
        daemon = self._daemon
        clock = ClockStatus(daemon.clock.now().astimezone(INDIA), clock_state(daemon.clock))
        info = DaemonInfo(__version__, daemon.run_id, os.getpid(), daemon.started_at)
        return Status(info, clock, [*daemon.supervisor.status(), *daemon.configuration.unconfigured])

    def has_desk(self, desk: str) -> bool:
        """Returns whether there is such a desk; one that is no longer configured and ends its last turn counts not."""
        found = self._daemon.supervisor.desks.get(desk)
        return found is not None and not found.retiring

    async def result_of(self, desk: str, trigger_id: str) -> TriggerResult | None:
        """Returns how a trigger ended; None while it is open or when it is not known.

        Raises:
            DeskUnusable: The desk is no longer configured, and its last turn has ended.
        """
        return await self._desk(desk, retiring=True).result_of(trigger_id)

    async def roll_over(self, desk: str) -> RolloverResult:
        """Rolls a desk over after its running turn.

        Raises:
            DeskUnusable: The desk is paused, parked or stopping.
        """
        return await self._desk(desk).roll_over()

    async def pause(self, desk: str, by: str, reason: str, *, now: bool) -> DeskStatus:
        """Holds a desk, after its running turn or cutting it off.

        A turn that does not let itself be cut off is still there in the status that is returned.
        """
        held = self._desk(desk)
        with anyio.move_on_after(CUT_OFF_SECONDS):
            await held.pause(by, reason, now=now)
        return held.status()

    async def resume(self, desk: str, by: str) -> DeskStatus:
        """Lets a paused or parked desk go on; one that is not held is left as it is.

        Raises:
            DeskUnusable: It is parked since it cannot be cut off, or it was parked anew: nothing has been mended.
        """
        held = self._desk(desk)
        was_parked = held.state == 'parked'
        if was_parked:
            await self._start_again(held)
        if was_parked or held.hold is not None:
            await held.resume(by)
        return held.status()

    async def _start_again(self, desk: Desk) -> None:
        kinds = (DeskStarted, DeskParked, DeskRestarted)
        with self._daemon.bus.subscribe(*kinds, desk=desk.name, name='resume') as events:
            self._daemon.supervisor.resume(desk.name)
            with anyio.move_on_after(START_SECONDS):
                await events.batch()
        if desk.state == 'parked':
            raise DeskUnusable(f'the desk {desk.name} is still parked: {desk.trouble}')

    async def cancel(self, desk: str, trigger_id: str, by: str, reason: str) -> TriggerResult | None:
        """Closes a trigger as cancelled; returns how it ended, or None for an unknown one.

        Raises:
            DeskUnusable: Its turn does not let itself be cut off.
        """
        with anyio.move_on_after(CUT_OFF_SECONDS) as within:
            return await self._desk(desk).cancel(trigger_id, by, reason)
        assert within.cancelled_caught  # noqa: S101 - it returned otherwise
        hint = 'it is closed as cancelled once the turn ends; where it never does, restart the daemon'
        raise DeskUnusable(f'the turn of {trigger_id} was told to end, and has not', hint)

    async def reload(self) -> ReloadResult:
        """Reads the configuration again and puts it in force.

        Raises:
            ConfigurationError: It is refused whole.
        """
        changes = await self._daemon.configuration.reload()
        return ReloadResult(changes.added, changes.changed, changes.removed)
