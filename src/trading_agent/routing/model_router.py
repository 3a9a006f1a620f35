"""Picks the backend for a turn, runs it there, and puts the exchange where it survives.

Backends are asked in order of preference: the first that answers, answers. What a backend yields is in the journal
before it is told; the journal's end and the exchange are synced before anyone hears that the turn is finished.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import anyio

from trading_agent.clock import Clock, utc_text
from trading_agent.conversation.journal_folder import JournalFolder, UsageTotals, usage_counts
from trading_agent.conversation.records import Cause
from trading_agent.disk import Disk
from trading_agent.errors import BackendError, NoBackend, OutcomeUnknown, StorageError, TurnRefused
from trading_agent.events import Event, WriteFailed
from trading_agent.memory.exchange import answer_to
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.session_state import RouteState, SessionState, split_session_id
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.messages import Usage
from trading_agent.routing.asking import AskedTurn
from trading_agent.routing.backend import Backend, backends_of
from trading_agent.routing.desk_texts import Surroundings
from trading_agent.routing.ending import Ending
from trading_agent.routing.failover import Failover
from trading_agent.routing.model_call import Call, Reply, fields_of
from trading_agent.routing.token_budget import TokenBudget
from trading_agent.routing.turn_journal import TurnJournal
from trading_agent.routing.turn_runner import Turn, TurnRunner
from trading_agent.tools.desk_tools import DeskTools
from trading_agent.trigger import Trigger, storable

WRITE_AGAIN_SECONDS = (0.5, 30.0)
"""After a failed write the exchange is written again: after the first of these, doubling up to the second."""


class ModelRouter:
    """Runs one desk's turns.

    Args:
        desk: The desk's name.
        store: The desk's sessions folder, shared with its keeper.
        backends: In order of preference; a name and a runner alone get limits and a health of their own.
        publish: Where events go.
        clock: For the times in exchanges.
        memory: The desk's Memory.md, or None.
        journals: The desk's journals; None for those beside the sessions folder.
        turn_seconds: How long one backend may take for a turn.
        review_seconds: How long one backend may take for a question beside the session.
        slots: Caps the model calls of all desks together.
        disk: Where file work is done.
        tools: What the model may call; None for nothing.
    """

    def __init__(
        self,
        desk: str,
        store: SessionStore,
        backends: Sequence[Backend | tuple[str, TurnRunner]],
        publish: Callable[[Event], None],
        clock: Clock,
        *,
        memory: MemoryFile | None = None,
        journals: JournalFolder | None = None,
        turn_seconds: float = 300.0,
        review_seconds: float = 180.0,
        slots: anyio.CapacityLimiter | None = None,
        disk: Disk | None = None,
        tools: DeskTools | None = None,
    ) -> None:
        self._desk = desk
        self._store = store
        self._backends = backends_of(backends, publish)
        self._publish = publish
        self._clock = clock
        self._disk = disk or Disk()
        desk_folder = store.directory.parent
        self._around = Surroundings(desk_folder, memory, tools, store.damage)
        folder = journals or JournalFolder(desk_folder / 'journal', desk, clock.now)
        self._journal = TurnJournal(desk, folder, publish, clock, self._disk, read_only=self._around.is_read_only)
        self._failover = Failover(
            desk,
            self._backends,
            publish,
            turn_seconds=turn_seconds,
            review_seconds=review_seconds,
            slots=slots or anyio.CapacityLimiter(4),
        )
        self._budget = TokenBudget(desk, publish)
        self._last_call: Call | None = None
        self._state: SessionState | None = None
        self._exchanges: list[Exchange] = []
        self._ending: Ending | None = None
        self._turn = anyio.Lock()

    @property
    def session_id(self) -> str | None:
        """The current session; None before `restore_session`."""
        return self._state.session_id if self._state else None

    @property
    def trading_date(self) -> date | None:
        """The current session's India date."""
        return self._state.trading_date if self._state else None

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """The current session's exchanges, oldest first."""
        return self._exchanges

    @property
    def routes(self) -> Mapping[str, RouteState]:
        """How far each backend has followed the current session, by its name."""
        return self._state.routes if self._state else {}

    @property
    def ended_digest(self) -> str:
        """The digest of the last line of the journal before this session's; empty where there was none."""
        return self._journal.ended_digest

    @property
    def usage(self) -> UsageTotals:
        """Tokens used in the current session and on its day."""
        return self._journal.usage

    @property
    def backends(self) -> list[str]:
        """The backends' names, in order of preference."""
        return [backend.name for backend in self._backends]

    @property
    def failing(self) -> set[str]:
        """The names of the backends that are not up."""
        return {backend.name for backend in self._backends if backend.health.state != 'up'}

    @property
    def call(self) -> Call | None:
        """The model call that is being made."""
        return self._failover.call

    async def restore_session(self) -> bool:
        """Picks up the session that the store's state names, or starts the first one.

        Returns:
            Whether there was one.

        Raises:
            StorageError: The state or the log cannot be read.
        """
        state = await self._disk.run(self._store.load_state)
        if state is None:
            await self.reset()
            return False
        await self._disk.run(self._store.seal, state.session_id)
        self._exchanges = await self._disk.run(self._store.exchanges, state.session_id)
        await self._disk.run(self._pick_up_journal, state)
        # A line that cannot be read any more is not counted: whoever had it behind him is told what follows once more.
        lost = self._store.damage.lines_in(self._store.log_path(state.session_id))
        self._state = state.seen_at_most(len(self._exchanges), lost)
        return True

    def _pick_up_journal(self, state: SessionState) -> None:
        same_day = [sid for sid in self._store.session_ids() if split_session_id(sid)[0] == state.trading_date]
        self._journal.pick_up(state.session_id, same_day)

    async def reset(self) -> None:
        """Starts a fresh session for today, with the id that the store gives; every backend's state is dropped."""
        async with self._turn:
            self._state = await self._disk.run(self._new_session)
            self._exchanges = []

    def _new_session(self) -> SessionState:
        session_id = self._store.new_session_id(self._store.today())
        # First the journal: a state that names a session says that it has one.
        self._journal.begin_session(session_id)
        state = SessionState(session_id, split_session_id(session_id)[0], {})
        self._store.save_state(state)
        return state

    async def run(self, trigger: Trigger, *, attempt: int = 1, trigger_ids: Sequence[str] = ()) -> Exchange:
        """Runs a trigger on the first backend that answers, and appends the exchange, durably.

        Cancelled while a backend answers, it leaves nothing behind. While the disk cannot take the exchange, it is
        written again and again, for the answer must not be asked for twice.

        Args:
            trigger: What the desk is told.
            attempt: How often the trigger has been started, this time included.
            trigger_ids: All triggers that were gathered into this one, in order; none where it is one.

        Raises:
            NoBackend: None could answer.
            TurnRefused: The request was refused, so that no backend could answer it.
            OutcomeUnknown: It failed after calls that may have had effects.
        """
        async with self._turn:
            if attempt > 1 and (answered := answer_to(self._exchanges, trigger.id)) is not None:
                return answered
            call = Call('turn', trigger.id, f'{trigger.id}:{attempt}', trigger_ids=tuple(trigger_ids))
            asking = await self._begin(call, trigger.text, self._exchanges, None, attempt)
            reply = await self._answer_of(asking)
            self._ending = self._ending_of(trigger, reply, asking)
            await self._keep(self._ending)
            return self._exchanges[-1]

    async def settle(self) -> None:
        """Puts an answer on the disk that was cut off on its way there; call it before anything else is run."""
        if self._ending is not None:
            async with self._turn:
                await self._keep(self._ending)

    async def cut_off(self, cause: Cause) -> list[str]:
        """Marks the turn that was running as interrupted, unless it has its end in the journal.

        Returns:
            The calls that it made and that may have had effects, in words.
        """
        return [] if self._ending is not None else await self._journal.cut_off(cause, self._asked_last)

    async def ask(self, exchanges: Sequence[Exchange], instruction: str, schema: dict[str, Any] | None = None) -> Reply:
        """Asks a question about exchanges, beside the session: it becomes no exchange.

        Args:
            exchanges: What the question is about, oldest first.
            instruction: The question.
            schema: The JSON Schema of the answer, an object; None for plain text.

        Raises:
            NoBackend: None could answer, or none as the schema asks.
            TurnRefused: The request was refused.
        """
        async with self._turn:
            known = self._journal.answered_before(instruction)
            if known is not None:
                with suppress(BackendError):
                    return Reply(*known, fields_of(known[0], schema) if schema else {})
            asking = await self._begin(Call('review'), instruction, exchanges, schema or {})
            try:
                reply = await self._answer_of(asking)
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await self._journal.cut_off('dropped', self._asked_last)
                raise
            await self._journal.end_review(asking.recorder, reply)
            return reply

    async def _begin(
        self,
        call: Call,
        text: str,
        exchanges: Sequence[Exchange],
        schema: dict[str, Any] | None,
        attempt: int = 1,
    ) -> AskedTurn:
        assert self._state is not None  # noqa: S101 - the keeper restores the session first
        read = await self._disk.run(self._around.read)
        turn = Turn(
            desk=self._desk,
            session_id=self._state.session_id,
            trading_date=self._state.trading_date,
            text=text,
            exchanges=exchanges,
            memory=read.memory,
            instructions=read.instructions,
            skills=read.skills,
            tools=self._around.tools_for(call.trigger_id, attempt, self._state.session_id),
            trigger_id=call.trigger_id or '',
            attempt=attempt,
            started_at=self._clock.now(),
            schema=schema,
        )
        recorder = await self._journal.begin(call, text, attempt, self._around.digests(read))
        self._last_call = call
        return AskedTurn(call, turn, recorder, self._journal, routes=self._state.routes, over_budget=self._over_budget)

    def _over_budget(self, backend: Backend) -> str:
        assert self._state is not None  # noqa: S101 - the keeper restores the session first
        used = self.usage.day_of_backend.get(backend.name, Usage())
        return self._budget.why_not(backend, used, self._state.trading_date)

    async def _answer_of(self, asking: AskedTurn) -> Reply:
        try:
            async with asking.recorder.gathering():
                return await self._failover.answer(asking)
        except TurnRefused:
            await self._journal.refused(asking.recorder)
            raise
        except OutcomeUnknown:
            await self._journal.cut_off('unknown', self._asked_last)
            raise
        except NoBackend:
            await self._journal.cut_off('no_backend', self._asked_last)
            raise

    @property
    def _asked_last(self) -> str:
        """The backend that was asked last."""
        return self._last_call.backend or '' if self._last_call else ''

    def _ending_of(self, trigger: Trigger, reply: Reply, asking: AskedTurn) -> Ending:
        assert self._state is not None  # noqa: S101 - the keeper restores the session first
        started_at = asking.turn.started_at or self._clock.now()
        exchange = Exchange(
            trigger_text=trigger.text,
            answer=storable(reply.text),
            backend_name=reply.backend,
            finished_at=utc_text(self._clock.now()),
            trigger_id=trigger.id,
            started_at=utc_text(started_at),
            usage=usage_counts(asking.recorder.records.usage),
            trigger_ids=asking.call.trigger_ids,
        )
        route = RouteState(len(self._exchanges) + 1, reply.runner_state)
        following = dataclasses.replace(self._state, routes={**self._state.routes, reply.backend: route})
        last = self._journal.last_records(asking.recorder, reply, exchange.started_at or '', exchange.finished_at)
        return Ending(exchange, following, asking.recorder, last)

    async def _keep(self, ending: Ending) -> None:
        wait, longest = WRITE_AGAIN_SECONDS
        try:
            while True:
                try:
                    # Shielded: from the first byte of the end on, the turn is finished or has left no trace.
                    with anyio.CancelScope(shield=True):
                        failure = await self._disk.run(ending.write, self._journal.journal, self._store)
                        self._exchanges.append(ending.exchange)
                        self._state, self._ending = ending.state, None
                        self._journal.ended(ending.recorder, ending.exchange.backend_name)
                except StorageError as error:
                    self._tell(error)
                    await anyio.sleep(wait * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
                    wait = min(wait * 2, longest)
                else:
                    if failure is not None:
                        self._tell(failure)
                    return
        finally:
            if not ending.journaled:
                self._ending = None  # cut off before its end: it is run again

    def _tell(self, error: StorageError) -> None:
        event = WriteFailed.of(error, self._desk, session_id=self.session_id, trading_date=self.trading_date)
        self._publish(event)
