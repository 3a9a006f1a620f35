"""One desk: what is known of it, what can be asked of it, and the start of its loop."""

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path

import anyio
import anyio.from_thread

from trading_agent import config, files
from trading_agent.beside import beside
from trading_agent.clock import Clock
from trading_agent.daemon.desk_loop import DeskLoop
from trading_agent.daemon.desk_parts import DeskParts, build_parts
from trading_agent.daemon.desk_status import LastAnswer, status_of
from trading_agent.daemon.hold import Hold, HoldFile
from trading_agent.daemon.status import DeskState, DeskStatus, RolloverResult, TriggerResult, TurnStatus
from trading_agent.daemon.turns import Cut
from trading_agent.disk import Disk
from trading_agent.errors import DeskUnusable
from trading_agent.event_bus import EventBus
from trading_agent.events import DeskPaused, DeskResumed, DeskStarted, Event, StoreDamaged, TurnFinished, WriteFailed
from trading_agent.memory.session_store import Damage
from trading_agent.memory.skill_store import SkillStore
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.routing.backend import Backend
from trading_agent.routing.model_router import ModelRouter


class Desk:
    """One desk: its queue, its session and its loop. It outlives a failure of its loop.

    Args:
        settings: Its configuration.
        folder: Its folder.
        backends: Its backends, in order of preference.
        bus: Where its events go.
        clock: What time it is.
        slots: Caps the model calls of all desks together.
        disk: Where file work is done.
        max_trigger_size: The longest trigger text, in bytes.
        on_change: Called when it goes idle, or wants to be woken at another instant.
    """

    def __init__(
        self,
        settings: config.Desk,
        folder: Path,
        backends: Sequence[Backend],
        bus: EventBus,
        clock: Clock,
        *,
        slots: anyio.CapacityLimiter,
        disk: Disk,
        max_trigger_size: int,
        on_change: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.folder = folder
        self._bus = bus
        self._clock = clock
        self._disk = disk
        self._on_change = on_change
        self._slots = slots
        self._backends = backends
        self.queue = TriggerQueue(
            folder,
            settings.name,
            clock,
            self.publish,
            disk,
            limit=settings.queue_limit,
            max_size=max_trigger_size,
            on_ready=self.wake,
        )
        self._stopping = False
        self.retiring = False
        self._following: tuple[config.Desk, Sequence[Backend]] | None = None
        self._hold_file = HoldFile(folder, self._tell_damage)
        self.hold: Hold | None = None
        self.state: DeskState = 'starting'
        self.trouble = ''
        self.ready = anyio.Event()
        self._last: LastAnswer | None = None
        self.started_at = clock.now()
        self._parts, self._loop = self._build()

    def _build(self) -> tuple[DeskParts, DeskLoop]:
        """Makes what a start begins with: a failed loop leaves nothing of its own behind."""
        parts = build_parts(
            self.settings,
            self.folder,
            self._backends,
            publisher=self,
            queue=self.queue,
            clock=self._clock,
            slots=self._slots,
            disk=self._disk,
            on_damage=self._tell_damage,
            send=self._bus.send,
            told=self._bus.told,
        )
        loop = DeskLoop(
            desk=self.name,
            parts=parts,
            queue=self.queue,
            publish=self.publish,
            on_idle=self._on_change,
            on_trouble=self._set_trouble,
        )
        return parts, loop

    def _set_trouble(self, trouble: str) -> None:
        self.trouble = trouble

    # -- what others see ---------------------------------------------------------------------------------------

    def publish(self, event: Event) -> None:
        """Tells an event of this desk, and remembers for `status` what is wrong."""
        if isinstance(event, WriteFailed):
            self.trouble = f'{event.error}: {event.hint}'
            # Whoever tells that a write failed is not stuck: a full disk is waited for, however long that takes.
            self._loop.touch()
        elif isinstance(event, TurnFinished):
            self._last = LastAnswer(self._clock.now(), event.backend, event.preferred)
        self._bus.publish(event)

    def _tell_damage(self, damage: Damage) -> None:
        event = StoreDamaged(
            desk=self.name,
            path=str(damage.path),
            line=damage.line,
            error=damage.error,
            hint='what is readable is used; the damaged part stays in the file for a look',
        )
        anyio.from_thread.run_sync(self.publish, event)

    @property
    def router(self) -> ModelRouter:
        """What runs its turns; another one after each start of the desk."""
        return self._parts.router

    @property
    def stage(self) -> str:
        """How far a rollover is."""
        return self._parts.keeper.stage

    @property
    def session_date(self) -> date | None:
        """The current session's trading date."""
        return self._parts.router.trading_date

    @property
    def session_id(self) -> str | None:
        """The current session."""
        return self._parts.router.session_id

    @property
    def summaries_owed(self) -> int:
        """How many summaries still wait for a full one."""
        return len(self._parts.keeper.owed)

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do at this instant."""
        return self.state == 'parked' or self._loop.idle

    @property
    def alarm(self) -> datetime | None:
        """When the scheduler is to wake it, by the clock."""
        return self._loop.alarm if self.state != 'parked' else None

    def overdue(self) -> str | None:
        """Returns what it has waited for longer than it said it would, or None."""
        return self._loop.overdue()

    @property
    def turn(self) -> TurnStatus | None:
        """The turn that is running."""
        return self._parts.turns.current

    def status(self) -> DeskStatus:
        """Returns how the desk is."""
        return status_of(
            self.settings,
            self._parts,
            self.queue,
            self._backends,
            state=self.state,
            reason=self.hold.in_words(self.name) if self.hold and self.state == 'paused' else self.trouble,
            last=self._last,
            now=self._clock.now(),
        )

    async def result_of(self, trigger_id: str) -> TriggerResult | None:
        """Returns how a trigger ended, with its answer; None while it is open or when it is not known."""
        return await self._parts.turns.result_of(trigger_id)

    # -- what others ask ---------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Lets the loop look for something to do."""
        self._loop.wake()

    def boundary(self) -> None:
        """Tells the loop that the trading date may have changed."""
        self._loop.look_now()

    def retire(self) -> None:
        """Lets the loop end after what it is doing: the desk is no longer configured."""
        self.retiring = True
        self._loop.end()

    def reconfigure(self, settings: config.Desk, backends: Sequence[Backend]) -> None:
        """Lets the loop begin anew with other settings, after what it is doing."""
        self.retiring = False
        self._following = (settings, backends)
        self._loop.end()

    def stop(self) -> None:
        """Lets the loop end after what it is doing; nothing more is accepted."""
        self._stopping = self.queue.stopping = self._parts.turns.stopping = True
        self._loop.end()

    def end(self) -> None:
        """Tells those who wait for a rollover that there will be none: the loop has ended for good."""
        self._loop.refuse(DeskUnusable(f'the desk {self.name} has stopped', 'see `trading-agent status`'))
        self.ready.set()

    def park(self, trouble: str) -> None:
        """Says that the loop is not started again until a person has mended something."""
        self.state, self.trouble = 'parked', trouble
        self._loop.refuse(DeskUnusable(f'the desk {self.name} is parked', trouble))
        self.ready.set()

    async def roll_over(self) -> RolloverResult:
        """Rolls over after the running turn.

        Raises:
            DeskUnusable: The desk is paused, parked or stopping.
            TradingAgentError: The rollover failed; it is gone on with by itself.
        """
        if self._stopping or self.state in ('parked', 'paused'):
            state = 'stopping' if self._stopping else self.state
            raise DeskUnusable(f'the desk {self.name} is {state}', 'see `trading-agent status`')
        return await self._loop.roll_over()

    async def pause(self, by: str, reason: str, *, now: bool) -> None:
        """Holds the desk: after the running turn, or cutting it off, nothing is run until `resume`.

        Triggers are still accepted, and go stale by their own expiry. The hold survives restarts.

        Raises:
            StorageError: It could not be written down; the desk goes on.
        """
        if self.hold is not None and not reason:
            reason = self.hold.reason  # said again without a reason, the one that was given still holds
        hold = Hold(self._clock.now(), by, reason)
        await self._disk.run(self._hold_file.write, hold)
        self.hold = hold
        self._loop.held = True
        self._loop.wake()
        if self.state == 'running':
            self.state = 'paused'
        hint = f'`trading-agent resume {self.name}` lets it go on'
        self.publish(DeskPaused(desk=self.name, session_id=self.session_id, by=by, reason=reason, hint=hint))
        if now:
            await self._parts.turns.cut_off(Cut(by, reason, cancels=False))

    async def resume(self, by: str) -> None:
        """Lets a paused desk go on.

        Raises:
            StorageError: It could not be written down; the desk stays paused.
        """
        await self._disk.run(self._hold_file.remove)
        self.hold = None
        self.started_at = self._clock.now()  # what was due meanwhile is late from now on
        self._loop.held = False
        if self.state == 'paused':
            self.state = 'running'
        self.publish(DeskResumed(desk=self.name, session_id=self.session_id, by=by, queue_depth=self.queue.depth))
        self.boundary()

    async def cancel(self, trigger_id: str, by: str, reason: str) -> TriggerResult | None:
        """Closes a waiting trigger as cancelled, or ends its running turn.

        Returns:
            How the trigger ended, which is `answered` when the turn was quicker; None for an unknown trigger.

        Raises:
            StorageError: It could not be recorded; the trigger is still open.
        """
        entry = self.queue.entry(trigger_id)
        if entry is not None:
            await self._parts.turns.cut_off(Cut(by, reason, cancels=True), trigger_id)
            if self.queue.entry(trigger_id) is entry:
                await self.queue.close(entry, 'cancelled', self.session_id, by=by, error=reason)
        return await self.result_of(trigger_id)

    # -- the loop ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Starts the desk and works until it is told to stop.

        Raises:
            StorageError: Its files cannot be read.
            DeskUnusable: A person has to mend something first.
        """
        self.state = 'starting'
        if self._following is not None:
            (self.settings, self._backends), self._following = self._following, None
            self.queue.limit = self.settings.queue_limit
        self.queue.collect = timedelta(seconds=self.settings.collect)
        failed = self._loop
        self._parts, self._loop = self._build()
        self._loop.take_over(failed)
        self._parts.turns.stopping = self._stopping
        if self._stopping or self.retiring:
            self._loop.end()
        async with beside(self._parts.servers.run, wait=True):
            await self._start()
            await self._loop.run()

    async def _start(self) -> None:
        began = anyio.current_time()
        for folder in ('', 'memory_history', 'sessions', 'sessions/summaries', 'journal'):
            await self._disk.run(files.sweep, self.folder / folder)
        await self._disk.run(SkillStore(self.folder).sweep)
        self.hold = await self._disk.run(self._hold_file.read)
        await self.queue.load()
        await self._parts.recovery.close_answered()
        await self._parts.keeper.start()
        self._parts.recovery.tell_cut_off()
        self._loop.held = self.hold is not None
        self.state = 'paused' if self.hold else 'running'
        self.trouble = ''
        self.started_at = self._clock.now()
        self.publish(
            DeskStarted(
                desk=self.name,
                session_id=self._parts.router.session_id,
                trading_date=self._parts.router.trading_date,
                open_triggers=self.queue.depth,
                duration_ms=round((anyio.current_time() - began) * 1000),
            )
        )
        self.ready.set()
