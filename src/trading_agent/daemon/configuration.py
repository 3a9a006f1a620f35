"""The configuration in force: put there as a whole, read again when somebody asks or saves the file."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from trading_agent.clock import Clock
from trading_agent.config import Config
from trading_agent.daemon.components import Components
from trading_agent.daemon.desk import Desk
from trading_agent.daemon.plan import DeskPlan, Difference, Plan, difference, import_ahead, make_plan
from trading_agent.daemon.status import DeskStatus
from trading_agent.daemon.supervisor import Supervisor
from trading_agent.daemon.unconfigured import find_unconfigured
from trading_agent.disk import Disk
from trading_agent.errors import ConfigurationError, Problem, StorageError
from trading_agent.event_bus import EventBus
from trading_agent.events import ConfigRejected, ConfigReloaded, WriteFailed
from trading_agent.routing.backend import Backend
from trading_agent.systemd import Notifier

WATCH_SECONDS = 1.0
"""How often the configuration file is looked at, with `watch_config`."""


class Configuration:
    """Makes desks and components what the configuration says.

    Args:
        plan: What is to be in force first.
        supervisor: Runs the desks.
        components: Runs the components.
        make_desk: Makes a desk that has not been there.
        backends_of: Makes the backends of one that is to go on with others.
        on_change: Is told the configuration that comes in force.
        read: Reads the configuration again; None where there is nothing to read.
        bus: Where events go.
        clock: What time it is.
        disk: Where file work is done.
        notifier: Tells systemd.

    Attributes:
        plan: What is in force.
        unconfigured: The desks that are no longer configured and have triggers on disk.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        supervisor: Supervisor,
        components: Components,
        make_desk: Callable[[DeskPlan], Desk],
        backends_of: Callable[[DeskPlan], Sequence[Backend]],
        on_change: Callable[[Config], None],
        read: Callable[[], Config] | None,
        bus: EventBus,
        clock: Clock,
        disk: Disk,
        notifier: Notifier,
    ) -> None:
        self.plan = plan
        self.unconfigured: list[DeskStatus] = []
        self._supervisor = supervisor
        self._components = components
        self._make_desk = make_desk
        self._backends_of = backends_of
        self._on_change = on_change
        self._read = read
        self._bus = bus
        self._clock = clock
        self._disk = disk
        self._notifier = notifier
        self._asked = anyio.Event()
        self._gone = anyio.Event()
        self.in_force = anyio.Event()
        self._begun = anyio.Event()
        self._applying = anyio.Lock()
        self._looking = anyio.Lock()
        self._content: bytes | None = None

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.plan.config

    async def begin(self) -> None:
        """Puts the first plan in force; returns once every desk is ready or parked."""
        self._content = await self._disk.run(_content, self.config.file)
        self._put_in_force(self.plan, None)
        self.in_force.set()
        await self._supervisor.ready()
        await self.find_unconfigured()
        self._begun.set()

    async def run(self) -> None:
        """Reads the configuration again when it was asked for, or saved; until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_file)
            tasks.start_soon(self._look_after_the_gone)
            while True:
                await self._asked.wait()
                self._asked = anyio.Event()
                with suppress(ConfigurationError):  # told as config_rejected
                    await self.reload()

    def ask_reload(self) -> None:
        """Lets the configuration be read again soon; what comes of it is told as an event."""
        self._asked.set()

    async def apply(self, wanted: Config) -> Difference:
        """Puts another configuration in force; no running turn of a desk that it does not change is disturbed.

        What it changes of a desk counts after the turn that runs there. Where the daemon is starting, it waits.

        Returns:
            What has changed.

        Raises:
            ConfigurationError: It cannot be; the one that was in force stays, whole.
        """
        await self._begun.wait()
        async with self._applying:
            return await self._apply(wanted)

    async def _apply(self, wanted: Config) -> Difference:
        await self._disk.run(import_ahead, wanted)
        if any(desk.queue.stopping for desk in self._supervisor.desks.values()):
            raise ConfigurationError([Problem('this daemon', 'is stopping', 'the next start reads the file')])
        plan = make_plan(wanted, self.plan)
        changes = difference(self.plan, plan)
        self._put_in_force(plan, self.plan)
        await self.find_unconfigured()
        self._bus.publish(
            ConfigReloaded(
                path=str(wanted.file or 'built-in'),
                added=changes.added,
                changed=changes.changed,
                removed=changes.removed,
            )
        )
        return changes

    async def reload(self) -> Difference:
        """Reads the configuration again and puts it in force. Of several calls one is made after the other.

        Raises:
            ConfigurationError: It is refused whole; the one that was in force stays.
        """
        await self._begun.wait()
        async with self._applying:
            self._notifier.send('RELOADING=1', f'MONOTONIC_USEC={time.monotonic_ns() // 1000}')
            try:
                return await self._apply(await self._read_again())
            except ConfigurationError as error:
                first = error.problems[0]
                path = str(self.config.file or 'configuration')
                self._bus.publish(ConfigRejected(path=path, error=str(error), hint=first.hint or 'mend it, and reload'))
                raise
            finally:
                self._notifier.send('READY=1')

    async def _read_again(self) -> Config:
        if self._read is None:
            problem = Problem('this daemon', 'has no file to read', 'call apply() with a configuration')
            raise ConfigurationError([problem])
        # Before it is read: what is saved meanwhile is then another change.
        self._content = await self._disk.run(_content, self.config.file)
        try:
            return await self._disk.run(self._read)
        except ConfigurationError:
            raise
        except Exception as error:
            what = f'cannot be read: {type(error).__name__}: {error}'
            raise ConfigurationError([Problem(str(self.config.file or 'configuration'), what)]) from error

    def desk_gone(self) -> None:
        """Is told that a desk which is no longer configured has ended."""
        self._gone.set()

    async def _look_after_the_gone(self) -> None:
        while True:
            await self._gone.wait()
            self._gone = anyio.Event()
            await self.find_unconfigured()

    async def _watch_file(self) -> None:
        """Asks for a reload when the file has another content, and has rested, where `watch_config` says so."""
        before = self._content
        while True:
            await anyio.sleep(WATCH_SECONDS)
            if not self.config.watch_config:
                continue
            now = await self._disk.run(_content, self.config.file)
            if now == before and now not in (self._content, None):
                self._content = now
                self.ask_reload()
            before = now

    def _put_in_force(self, plan: Plan, before: Plan | None) -> None:
        """Makes everything as the plan says; nothing here waits."""
        self.plan = plan
        # First the components, so that they see their desks start.
        self._components.apply(plan.components)
        desks = self._supervisor.desks
        for name in [name for name in desks if name not in plan.desks and not desks[name].retiring]:
            self._supervisor.remove(name)
        for name, desk_plan in plan.desks.items():
            desk = desks.get(name)
            if desk is None:
                self._supervisor.add(self._make_desk(desk_plan))
            elif desk.retiring or before is None or before.desks.get(name) is not desk_plan:
                desk.reconfigure(desk_plan.settings, self._backends_of(desk_plan))
                self._supervisor.take_back(desk)  # also a parked one: what it lacked may be there now
            desks[name] = desks.pop(name)  # in the order of the configuration
        for desk in desks.values():
            desk.queue.max_size = plan.config.max_trigger_size
        self._on_change(plan.config)

    async def find_unconfigured(self) -> None:
        """Looks which desks have triggers on disk and no place in the configuration."""
        async with self._looking:
            folder = self.config.workspace / 'desks'
            configured = {name for name, desk in self._supervisor.desks.items() if not desk.retiring}
            try:
                self.unconfigured = await self._disk.run(find_unconfigured, folder, configured, self._clock)
            except StorageError as error:
                self._bus.publish(WriteFailed.of(error))


def _content(path: Path | None) -> bytes | None:
    """Returns what is in a file; None where there is none, or where it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError:
        return None
