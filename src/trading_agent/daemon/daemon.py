"""The whole daemon: builds every service, hands each what it needs, and starts and stops them in order.

Example:
    async with Daemon(config.load()) as daemon:
        receipt = await daemon.bus.send(Trigger('What did we decide on ABC?', 'main', priority='person'))
"""

import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import msgspec

from trading_agent import __version__, files
from trading_agent.clock import Clock, IndiaClock, utc_text
from trading_agent.config import Config
from trading_agent.daemon.backend_operations import BackendOperations
from trading_agent.daemon.components import Components
from trading_agent.daemon.configuration import Configuration
from trading_agent.daemon.desk import Desk
from trading_agent.daemon.indexing import Indexing
from trading_agent.daemon.operations import Operations
from trading_agent.daemon.plan import DeskPlan, make_plan
from trading_agent.daemon.scheduler import Scheduler
from trading_agent.daemon.sources.control import ControlServer
from trading_agent.daemon.sources.inbox import InboxSource
from trading_agent.daemon.supervisor import Supervisor
from trading_agent.daemon.vitals import Vitals
from trading_agent.disk import Disk
from trading_agent.errors import WorkspaceLocked
from trading_agent.event_bus import EventBus
from trading_agent.events import DaemonReady, DaemonStopping
from trading_agent.routing.backend import Backend
from trading_agent.routing.backend_health import BackendHealth
from trading_agent.systemd import Notifier

WATCH_SECONDS = 1.0
"""How often the configuration file is looked at, with `watch_config`."""

LOCK_NAME = 'trading-agent.lock'
SOCKET_NAME = 'control.sock'


class Daemon:
    """One daemon on one workspace. It installs no signal handlers.

    Args:
        config: What it runs.
        clock: What time it is; None for the host's clock in India.
        faces: Whether it has a control socket and inboxes. `replay` runs without.
        index: Whether the index for search is kept up; None where it has faces. `search` reads what is missing in it.
        environ: For RUNTIME_DIRECTORY; None for the process's own environment.
        notifier: Tells systemd; None for nobody.
        read_config: Reads the configuration again, for `reload`; None where there is nothing to read.

    Attributes:
        bus: Events, and `send`.
        supervisor: The desks.
        backends: What can be asked of the backends.
        run_id: Marks this run in the log.
        on_config: Is told each configuration that comes in force.

    Raises on entering:
        WorkspaceLocked: Another daemon holds the workspace.
        StorageError: The workspace cannot be used.
        ConfigurationError: A backend cannot be made.
    """

    bus: EventBus
    supervisor: Supervisor
    scheduler: Scheduler
    operations: Operations
    backends: BackendOperations

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        faces: bool = True,
        index: bool | None = None,
        environ: Mapping[str, str] | None = None,
        notifier: Notifier | None = None,
        read_config: Callable[[], Config] | None = None,
    ) -> None:
        self._first_config = config
        self.clock = clock or IndiaClock()
        self.run_id = secrets.token_hex(8)
        self.bus = EventBus()
        self._faces = faces
        self._environ = os.environ if environ is None else environ
        self._notifier = notifier or Notifier({})
        self._disk = Disk()
        self._read_config = read_config
        self.on_config: Callable[[Config], None] = lambda _: None
        self.started_at = datetime.now(UTC)
        self._configuration: Configuration | None = None
        self._stack = AsyncExitStack()
        self._control: ControlServer | None = None
        self._inbox: InboxSource | None = None
        self._keeps_index = faces if index is None else index
        self._indexing: Indexing | None = None

    # -- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._begin(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._stack.__aexit__(kind, error, traceback)
        # What the program around it raises is not the daemon's: it ends in order, and that error goes on as it is.
        await self._stack.__aexit__(None, None, None)
        return None

    async def _begin(self, stack: AsyncExitStack) -> None:
        """Starts everything in order; the stack stops it in the opposite one."""
        began = anyio.current_time()
        # Built before anything waits, so that a stop may be asked for from the first moment on.
        self._build()
        await stack.enter_async_context(self._locked())
        await self.backends.load()
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        if self._control is not None:
            await self._start_part(stack, self._control)
        await self._start_part(stack, self._components)
        desks = await stack.enter_async_context(anyio.create_task_group())
        stack.push_async_callback(self._end_desks)
        await desks.start(self.supervisor.run)
        await self.configuration.begin()
        await tasks.start(self.scheduler.run)
        if self._inbox is not None:
            await self._start_part(stack, self._inbox)
        if self._indexing is not None:
            await self._start_part(stack, self._indexing)
        tasks.start_soon(self._vitals.run)
        tasks.start_soon(self.configuration.run)
        self._tell_ready(anyio.current_time() - began)

    async def _start_part(
        self, stack: AsyncExitStack, part: ControlServer | InboxSource | Components | Indexing
    ) -> None:
        room = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(part.stop)
        await room.start(part.run)

    def _build(self) -> None:
        self._stop_asked = anyio.Event()
        self._drain_over = anyio.Event()
        self._slots = anyio.CapacityLimiter(self._first_config.max_concurrent_turns)
        plan = make_plan(self._first_config)
        self._components = Components(self.bus)
        self.supervisor = Supervisor(self.bus, on_gone=self._desk_gone)
        self._configuration = Configuration(
            plan,
            supervisor=self.supervisor,
            components=self._components,
            make_desk=self._make_desk,
            backends_of=self._backends_of,
            on_change=self._config_changed,
            read=self._read_config,
            bus=self.bus,
            clock=self.clock,
            disk=self._disk,
            notifier=self._notifier,
        )
        self.scheduler = Scheduler(self.supervisor.desks.values, self.clock, self.bus.publish)
        self._vitals = Vitals(
            config=lambda: self.config,
            supervisor=self.supervisor,
            bus=self.bus,
            clock=self.clock,
            disk=self._disk,
            notifier=self._notifier,
            beats=self._beats,
        )
        self.operations = Operations(self)
        self.backends = BackendOperations(
            lambda: self.config, lambda: self.supervisor.desks, self.bus, self.clock, self._disk
        )
        if self._keeps_index:
            self._indexing = Indexing(self.workspace, self.bus)
        if self._faces:
            size = self.config.max_trigger_size
            self._inbox = InboxSource(self.bus, self._inboxes, self.clock, self._disk, max_size=size)
            self._control = ControlServer(
                self.bus,
                self.operations,
                self.socket_path,
                group=self.config.control_group,
                max_body_bytes=6 * size + (64 << 10),
                run_id=self.run_id,
                backends=self.backends,
                open_from=self._configuration.in_force,
            )

    def _inboxes(self) -> dict[str, Path]:
        return {name: desk.folder / 'inbox' for name, desk in self.supervisor.desks.items() if not desk.retiring}

    def _beats(self) -> list[float]:
        beats = [self.supervisor.beat, self.scheduler.beat]
        return beats if self._control is None else [*beats, self._control.beats]

    def _desk_changed(self) -> None:
        self.supervisor.changed()
        self.scheduler.plan_changed()

    def _make_desk(self, plan: DeskPlan) -> Desk:
        return Desk(
            plan.settings,
            self.workspace / 'desks' / plan.settings.name,
            self._backends_of(plan),
            self.bus,
            self.clock,
            slots=self._slots,
            disk=self._disk.share(),
            max_trigger_size=self.config.max_trigger_size,
            on_change=self._desk_changed,
        )

    def _backends_of(self, plan: DeskPlan) -> list[Backend]:
        """Returns a desk's backends; how each of them is, its desks share."""
        return [Backend(name, runner, self.backends.health(name), limits) for name, runner, limits in plan.runners]

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Holds the workspace for as long as this process lives."""
        await self._disk.run(files.make_folder, self.workspace)
        lock = files.Lock(self.workspace / LOCK_NAME)
        holder = await self._disk.run(lock.acquire)
        if holder is not None:
            raise WorkspaceLocked(self.workspace, _holder_in_words(holder))
        try:
            info = {
                'pid': os.getpid(),
                'started_at': utc_text(self.started_at),
                'run_id': self.run_id,
                'control_socket': str(self.socket_path) if self._faces else None,
            }
            await self._disk.run(lock.write, msgspec.json.encode(info) + b'\n')
            yield
        finally:
            lock.release()

    def stop(self, cause: str) -> None:
        """Lets the daemon end when its context is left: sources close now, running turns get `drain`.

        A second call ends the drain at once.
        """
        if self._stop_asked.is_set():
            self._drain_over.set()
            return
        self._stop_asked.set()
        desks = self.supervisor.desks.values()
        self.bus.publish(DaemonStopping(cause=cause, turns_running=sum(desk.turn is not None for desk in desks)))
        self._notifier.send('STOPPING=1', 'STATUS=stopping')
        if self._inbox is not None:
            self._inbox.stop()
        self.supervisor.begin_stop()

    async def stop_asked(self) -> None:
        """Returns once `stop` was called."""
        await self._stop_asked.wait()

    async def _end_desks(self) -> None:
        # Shielded: also when a part of the daemon has failed, the desks end in order.
        with anyio.CancelScope(shield=True):
            # A second call of `stop` would end the drain.
            if not self._stop_asked.is_set():
                self.stop('the program that it runs in')
            await self.supervisor.stop(self.config.drain, self._drain_over)

    def ask_reload(self) -> None:
        """Lets the configuration be read again soon; what comes of it is told as an event."""
        if self._configuration is not None:
            self._configuration.ask_reload()

    def _desk_gone(self) -> None:
        self.configuration.desk_gone()

    def _config_changed(self, config: Config) -> None:
        self._slots.total_tokens = config.max_concurrent_turns
        self.on_config(config)
        if self._inbox is not None:
            self._inbox.rescan()

    # -- what it tells -----------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._first_config if self._configuration is None else self._configuration.config

    @property
    def healths(self) -> dict[str, BackendHealth]:
        """How each backend is, by its name."""
        return self.backends.healths

    @property
    def configuration(self) -> Configuration:
        """What makes desks and components as configured."""
        assert self._configuration is not None  # noqa: S101 - the daemon was entered
        return self._configuration

    @property
    def workspace(self) -> Path:
        """The folder that everything is kept in."""
        return self._first_config.workspace.absolute()

    @property
    def socket_path(self) -> Path:
        """The control socket: in $RUNTIME_DIRECTORY, which systemd sets, else in the workspace."""
        folder = self._environ.get('RUNTIME_DIRECTORY', '').split(':')[0]
        return (Path(folder) if folder else self.workspace) / SOCKET_NAME

    def _tell_ready(self, seconds: float) -> None:
        if self._stop_asked.is_set():
            return
        desks = self.supervisor.desks.values()
        self.bus.publish(
            DaemonReady(
                version=__version__,
                desks=len(desks),
                desks_parked=sum(desk.state == 'parked' for desk in desks),
                duration_ms=round(seconds * 1000),
            )
        )
        self._notifier.send('READY=1', f'STATUS={self._vitals.in_words()}')


def _holder_in_words(data: bytes) -> str:
    try:
        info = msgspec.json.decode(data, type=dict[str, object])
    except ValueError:
        return 'another daemon, which is just starting'
    return f'the daemon with pid {info.get("pid")}, started at {info.get("started_at")} (run {info.get("run_id")})'
