"""Wakes desks when the clock says so: at date boundaries, and at the instants that they ask for."""

from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta

import anyio
import anyio.abc

from trading_agent.clock import Clock, boundary_after
from trading_agent.daemon.desk import Desk
from trading_agent.events import ClockStepped, DateChanged, Event, RolloverLate

LATE_AFTER = timedelta(minutes=2)
TICK_SECONDS = 1.0
STEPPED_FOR = timedelta(minutes=1)


class Scheduler:
    """The one sleeper on the clock, for all desks.

    It sleeps until the next boundary or alarm of any desk. Beside that it looks once a second whether the clock was
    set, whether a date has come to be trusted, and whether a rollover is late.

    Args:
        desks: Returns the desks of now.
        clock: What time it is.
        publish: Where events go.
    """

    def __init__(self, desks: Callable[[], Iterable[Desk]], clock: Clock, publish: Callable[[Event], None]) -> None:
        self._desks = desks
        self._clock = clock
        self._publish = publish
        self._dates: dict[str, date] = {}
        self._late_told: dict[str, date] = {}
        self._changed = anyio.Event()
        self._sleeping_until: datetime | None = None
        self._steady_since = clock.steadiness().since
        self.beat = anyio.current_time()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Works until it is cancelled."""
        self.look()
        async with anyio.create_task_group() as both:
            both.start_soon(self._watch)
            task_status.started()
            while True:
                self._changed = anyio.Event()
                self._sleeping_until = self.next_instant()
                await self._sleep(self._sleeping_until)
                self.look()

    async def _sleep(self, until: datetime) -> None:
        async with anyio.create_task_group() as first:

            async def changed() -> None:
                await self._changed.wait()
                first.cancel_scope.cancel()

            first.start_soon(changed)
            await self._clock.sleep_until(until)
            first.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(TICK_SECONDS)
            self.beat = anyio.current_time()
            self._tell_steps()
            self.look()
            for desk in self._desks():
                self._tell_late(desk)

    def next_instant(self) -> datetime:
        """Returns the next instant at which a desk is to be woken, in UTC."""
        now = self._clock.now()
        instants = [boundary_after(now, desk.settings.rollover_at) for desk in self._desks()]
        instants += [desk.alarm for desk in self._desks() if desk.alarm is not None]
        return min(instants, default=boundary_after(now))

    def plan_changed(self) -> None:
        """Lets the scheduler look again, where an alarm is earlier than what it sleeps until."""
        if self._sleeping_until is None or self.next_instant() < self._sleeping_until:
            self._changed.set()

    @property
    def settled(self) -> bool:
        """Whether nothing that is due by now still waits to be told."""
        now = self._clock.now()
        return all(
            self._dates.get(desk.name) == self._clock.trusted_date(desk.settings.rollover_at)
            and (desk.alarm is None or desk.alarm > now)
            for desk in self._desks()
        )

    def look(self) -> None:
        """Wakes each desk whose trading date has changed or whose alarm is due."""
        now = self._clock.now()
        changed: dict[date, int] = {}
        for desk in self._desks():
            today = self._clock.trusted_date(desk.settings.rollover_at)
            before = self._dates.get(desk.name)
            self._dates[desk.name] = today
            if before != today:
                if before is not None:
                    changed[today] = changed.get(today, 0) + 1
                desk.boundary()
            elif desk.alarm is not None and desk.alarm <= now:
                desk.wake()
        for today, desks in changed.items():
            self._publish(DateChanged(trading_date=today, desks=desks))

    def _tell_steps(self) -> None:
        steadiness = self._clock.steadiness()
        if steadiness.since != self._steady_since:
            self._steady_since = steadiness.since
            hint = 'a new date counts once the clock has been steady for a minute; check the time service of the host'
            self._publish(ClockStepped(step_ms=round(steadiness.step * 1000), hint=hint))
            self._changed.set()
        for desk in self._desks():
            # A date behind the session's is judged by how long it lasts, so somebody has to ask.
            if desk.session_date is not None and desk.session_date > self._dates.get(desk.name, desk.session_date):
                desk.wake()

    def _tell_late(self, desk: Desk) -> None:
        today = self._dates[desk.name]
        if desk.state in {'parked', 'paused'} or desk.session_date is None or desk.session_date >= today:
            return
        now = self._clock.now()
        boundary = boundary_after(now, desk.settings.rollover_at) - timedelta(days=1)
        late = now - max(boundary, desk.started_at)
        if late >= LATE_AFTER and self._late_told.get(desk.name) != today:
            self._late_told[desk.name] = today
            turn = desk.turn
            hint = f'a turn still runs ({turn.trigger_id})' if turn else 'see model_call_failed and write_failed'
            self._publish(
                RolloverLate(
                    desk=desk.name,
                    session_id=desk.session_id,
                    trading_date=desk.session_date,
                    stage=desk.stage,
                    late_ms=round((now - boundary).total_seconds() * 1000),
                    hint=hint,
                )
            )
