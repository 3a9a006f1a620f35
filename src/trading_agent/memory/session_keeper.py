"""Starts, resumes and rolls over a desk's sessions.

When the desk starts, the keeper asks the model router to pick up the session that was saved before a restart.
Before each turn it checks the India date: on a new day the old session is summarised, the day's lessons are folded
into Memory.md, and a fresh session starts, whose first message carries what came before.

Example:
    keeper = SessionKeeper('main', router, store, event_bus)
    await keeper.start()
    trigger = await keeper.prepare(trigger)
"""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime
from typing import Protocol

import anyio

from trading_agent.clock import Clock, IndiaClock
from trading_agent.disk import Disk
from trading_agent.events import ClockBehind, Event, SessionReason, SessionStarted, StoreDamaged
from trading_agent.memory import carry
from trading_agent.memory.curated import Curator
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.owed import OwedSummaries
from trading_agent.memory.review import Asker, Limits, Reviewer
from trading_agent.memory.rollover import Decision, RolloverRecord, decide, session_to_resume
from trading_agent.memory.rollover_steps import RolloverSteps, Sessions
from trading_agent.memory.session_state import SessionState, split_session_id
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.trigger import Trigger


class Router(Sessions, Asker, Protocol):
    """What the keeper asks of the model router, which is built with the same store."""

    @property
    def trading_date(self) -> date | None:
        """The current session's India date."""
        ...

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """The current session's exchanges, oldest first."""
        ...

    async def restore_session(self) -> bool:
        """Picks up the saved session, or starts the first one; returns whether there was one."""
        ...


class Publisher(Protocol):
    """Where events are told: the event bus, or whoever stands in front of it."""

    def publish(self, event: Event) -> None:
        """Tells an event."""
        ...


async def _no_archive(session_id: str) -> None:
    """For a keeper without a trigger queue."""


async def _at_once() -> None:
    """For a keeper whose events nobody writes down."""


class SessionKeeper:
    """Looks after one desk's sessions.

    Args:
        desk_name: The desk.
        router: The desk's router, built with the same store.
        store: The desk's sessions folder.
        event_bus: Where new sessions are announced.
        curator: Reviews the desk's own skills after the day's summary, or None to skip the review.
        memory: The desk's Memory.md, or None to fold nothing.
        notes: What the desk notes down in the course of a day, or None.
        clock: For how long it has shown an earlier date; None for the host's.
        limits: Bounds of reviews.
        disk: Where file work is done; None for one of its own.
        archive: Called with a session's id when it has ended, before the next one begins.
        ended_digest: Returns the digest of the last line of the ended session's journal; empty where there is none.
        told: Returns once what was published is written down: not before is a rollover forgotten.
    """

    def __init__(
        self,
        desk_name: str,
        router: Router,
        store: SessionStore,
        event_bus: Publisher,
        curator: Curator | None = None,
        *,
        memory: MemoryFile | None = None,
        notes: DayNotes | None = None,
        clock: Clock | None = None,
        limits: Limits | None = None,
        disk: Disk | None = None,
        archive: Callable[[str], Awaitable[None]] = _no_archive,
        ended_digest: Callable[[], str] = str,
        told: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self._desk_name = desk_name
        self._router = router
        self._store = store
        self._event_bus = event_bus
        self._clock = clock or IndiaClock()
        self._limits = limits or Limits()
        self._disk = disk or Disk()
        reviewer = Reviewer(desk_name, router, memory, self._limits, self._disk, notes=notes)
        self._steps = RolloverSteps(
            desk=desk_name,
            router=router,
            store=store,
            publish=event_bus.publish,
            reviewer=reviewer,
            memory=memory,
            curator=curator,
            archive=archive,
            ended_digest=ended_digest,
            limits=self._limits,
            disk=self._disk,
            told=told,
        )
        self._owed = OwedSummaries(store, reviewer, self._steps, self._disk)
        self._turn = anyio.Lock()
        self._rolling = anyio.Lock()
        self._behind_since: datetime | None = None
        self._behind_told = False
        self._unfinished = True
        self.stage = 'waiting'

    @property
    def owed(self) -> Sequence[str]:
        """The sessions whose full summary is still owed, oldest first."""
        return self._owed.sessions

    # -- start -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Picks up the saved session, or starts the first one, when the desk starts.

        A rollover that was cut off is not gone on with here, but by `roll_over_if_due`.

        Raises:
            StorageError: The files cannot be read; nothing is taken for missing and nothing is overwritten.
            DeskUnusable: A newer version of the program wrote them.
        """
        async with self._rolling:
            record = await self._steps.load()
            state = await self._disk.run(self._store.load_state)
            if state is None or not await self._disk.run(self._store.has_had, state.session_id):
                await self._recover_state(record)
            resumed = await self._router.restore_session()
            await self._owed.load()
            if record is not None and record.new_session_id == self._router.session_id:
                await self._steps.announce(record)
            else:
                self._unfinished = record is not None
                self._publish_session_started('resumed' if resumed else 'first')

    async def _recover_state(self, record: RolloverRecord | None) -> None:
        """Rebuilds the state from what is there: a rollover under way, else the newest log."""
        aside = await self._disk.run(self._store.set_state_aside, self._clock.now())
        logs, given_out = await self._disk.run(lambda: (self._store.session_ids(), self._store.ids_given_out.read()))
        session_id = session_to_resume(record, logs, given_out, self._store.today())
        if session_id is not None:
            state = SessionState(session_id, split_session_id(session_id)[0], {})
            await self._disk.run(self._store.save_state, state)
        if aside is not None or session_id is not None:
            found = f'the session {session_id} goes on' if session_id else 'there are no logs: a first session starts'
            self._event_bus.publish(
                StoreDamaged(
                    desk=self._desk_name,
                    session_id=session_id,
                    path=str(aside or self._store.directory / 'state.json'),
                    error='the session state was damaged' if aside else 'the session state is missing',
                    hint=f'it was rebuilt: {found}; each backend is caught up from the log',
                )
            )

    def _publish_session_started(self, reason: SessionReason) -> None:
        self._event_bus.publish(
            SessionStarted(
                desk=self._desk_name,
                session_id=self._router.session_id,
                trading_date=self._router.trading_date,
                reason=reason,
            )
        )

    # -- turns -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Holds off rollovers that others ask for: put it around `prepare` and the turn that follows."""
        async with self._turn:
            yield
            await self._owed.answered(self._router.session_id, len(self._router.exchanges))

    @asynccontextmanager
    async def _after_the_turn(self) -> AsyncIterator[None]:
        """Waits for the turn that runs, unless the task that asks holds it."""
        if self._turn.statistics().owner == anyio.get_current_task():
            yield
        else:
            async with self._turn:
                yield

    async def prepare(self, trigger: Trigger) -> Trigger:
        """Rolls over to a new session on a new day, and seeds a new session's first message.

        Args:
            trigger: The trigger about to run.

        Returns:
            The trigger, with the summaries of the sessions before in front when the session is new.
        """
        await self._owed.answered(self._router.session_id, len(self._router.exchanges))
        await self.roll_over_if_due()
        late = self._owed.tell(self._router.session_id, len(self._router.exchanges))
        if not self._router.exchanges:
            text = await self._disk.run(self._with_what_came_before, trigger.text, late)
        elif late:
            text = await self._disk.run(self._owed.noted, trigger.text, late)
        else:
            return trigger
        return trigger if text == trigger.text else dataclasses.replace(trigger, text=text)

    def _with_what_came_before(self, text: str, late: list[str]) -> str:
        today = self._router.trading_date or self._store.today()
        chosen = carry.chosen(self._store.summaries(), today)
        carried, sessions = carry.carried(chosen, self._limits.carry_summaries, self._limits.summary_budget)
        text = self._owed.noted(text, [session_id for session_id in late if session_id not in sessions])
        return carry.framed(carry.BEGIN.format(session_id=self._router.session_id), carried, text) if carried else text

    # -- rollover ----------------------------------------------------------------------------------------------

    def decision(self) -> Decision:
        """Says what the date asks for now; pure but for remembering since when the clock has been behind."""
        session_date, today = self._router.trading_date, self._store.today()
        decision = decide(session_date, today)
        if decision is not Decision.BEHIND:
            self._behind_since, self._behind_told = None, False
            return decision
        now = self._clock.now()
        if self._behind_since is None or self._behind_since > now:
            self._behind_since = now
        steady = max(self._behind_since, self._clock.steadiness().since)
        return decide(session_date, today, now - steady)

    async def roll_over_if_due(self) -> bool:
        """Goes on with a rollover that was cut off, and rolls over where the date asks for it.

        A turn that runs finishes in its session first, unless it is the caller's own.

        Returns:
            Whether a rollover was done.

        Raises:
            StorageError: A stage could not be written; the next call goes on from there.
        """
        async with self._after_the_turn(), self._rolling:
            record = await self._steps.load() if self._unfinished else None
            if record is not None:
                await self._run(record)
            self._unfinished = False
            decision = self.decision()
            if decision in (Decision.ROLL_OVER, Decision.CORRECT):
                await self._begin('clock_corrected' if decision is Decision.CORRECT else 'daily_rollover')
                return True
            if decision is Decision.BEHIND and not self._behind_told:
                self._behind_told = True
                self._tell_behind()
            return record is not None

    async def roll_over(self) -> str | None:
        """Ends the current session with a summary and starts a fresh one for today.

        Of several callers at once one rolls over and the others get what came of it. A turn that runs finishes in
        its session first.

        Returns:
            The new session's identifier, or None when the session has no exchanges, so that nothing was done.

        Raises:
            StorageError: A stage could not be written; the next call goes on from there.
        """
        asked_for = self._router.session_id
        async with self._after_the_turn():
            if self._router.session_id == asked_for and not await self.roll_over_if_due():
                async with self._rolling:
                    if not self._router.exchanges:
                        return None
                    await self._begin('manual')
            return self._router.session_id

    async def _begin(self, reason: SessionReason) -> None:
        assert self._router.session_id is not None  # noqa: S101 - a session without an id has no date either
        record = RolloverRecord(
            ended_session_id=self._router.session_id,
            reason=reason,
            stage='answers' if self._router.exchanges else 'session',
            exchanges=len(self._router.exchanges),
        )
        self._unfinished = True
        await self._steps.save(record)
        await self._run(record)

    async def _run(self, record: RolloverRecord) -> None:
        if self._router.session_id == record.ended_session_id:
            exchanges = list(self._router.exchanges)
        else:
            exchanges = await self._disk.run(self._store.exchanges, record.ended_session_id)
        self._unfinished = True
        try:
            record = await self._steps.run(record, exchanges, self._on_stage)
        finally:
            self.stage = 'waiting'
        self._unfinished = False
        self._behind_since, self._behind_told = None, False
        if record.review is not None and record.review.degraded:
            self._owed.add(record.ended_session_id)

    def _on_stage(self, stage: str) -> None:
        self.stage = stage

    def _tell_behind(self) -> None:
        self._event_bus.publish(
            ClockBehind(
                desk=self._desk_name,
                session_id=self._router.session_id,
                trading_date=self._router.trading_date,
                clock_date=self._store.today(),
                hint='check the host clock; after ten steady minutes the session is ended and one for today begins',
            )
        )

    async def backfill(self) -> bool:
        """Makes the oldest summary that is owed in full; returns whether one was made. May be cancelled."""
        async with self._rolling:
            return await self._owed.pay_one()
