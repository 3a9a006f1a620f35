"""Picks the backend for a turn, runs it there, and puts the exchange where it survives.

Backends are asked in order of preference: the first that answers, answers. What a backend yields is told as it
comes; the exchange is appended and synced before anyone hears that the turn is finished.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from typing import Any

import anyio

from trading_agent.clock import Clock, utc_text
from trading_agent.errors import BackendError, NoBackend, StorageError, TradingAgentError, TurnRefused
from trading_agent.events import Event, ModelCallFailed, TurnOutput, WriteFailed
from trading_agent.files import Disk
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.session_state import RouteState, SessionState, split_session_id
from trading_agent.memory.session_store import Exchange, SessionStore
from trading_agent.routing.model_call import Call, Reply, reply_of
from trading_agent.routing.turn_runner import Turn, TurnRunner
from trading_agent.trigger import Trigger, storable

WRITE_AGAIN_SECONDS = (0.5, 30.0)
"""After a failed write the exchange is written again: after the first of these, doubling up to the second."""


class ModelRouter:
    """Runs one desk's turns.

    Args:
        desk: The desk's name.
        store: The desk's sessions folder, shared with its keeper.
        backends: Each backend's name and runner, in order of preference.
        publish: Where events go.
        clock: For the times in exchanges.
        memory: The desk's Memory.md, or None.
        turn_seconds: How long one backend may take for a turn.
        review_seconds: How long one backend may take for a question beside the session.
        slots: Caps the model calls of all desks together.
        disk: Where file work is done.
    """

    def __init__(
        self,
        desk: str,
        store: SessionStore,
        backends: Sequence[tuple[str, TurnRunner]],
        publish: Callable[[Event], None],
        clock: Clock,
        *,
        memory: MemoryFile | None = None,
        turn_seconds: float = 300.0,
        review_seconds: float = 180.0,
        slots: anyio.CapacityLimiter | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._desk = desk
        self._store = store
        self._backends = list(backends)
        self._publish = publish
        self._clock = clock
        self._memory = memory
        self._turn_seconds = turn_seconds
        self._review_seconds = review_seconds
        self._slots = slots or anyio.CapacityLimiter(4)
        self._disk = disk or Disk()
        self._state: SessionState | None = None
        self._exchanges: list[Exchange] = []
        self._turn = anyio.Lock()
        self.failing: set[str] = set()
        self.call: Call | None = None

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
    def backends(self) -> list[str]:
        """The backends' names, in order of preference."""
        return [name for name, _ in self._backends]

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
        self._state = state
        return True

    async def reset(self) -> None:
        """Starts a fresh session for today, with the id that the store gives; every backend's state is dropped."""
        async with self._turn:
            self._state = await self._disk.run(self._new_session)
            self._exchanges = []

    def _new_session(self) -> SessionState:
        session_id = self._store.new_session_id(self._store.today())
        state = SessionState(session_id, split_session_id(session_id)[0], {})
        self._store.save_state(state)
        return state

    async def run(self, trigger: Trigger, *, attempt: int = 1) -> Exchange:
        """Runs a trigger on the first backend that answers, and appends the exchange, durably.

        Cancelled while a backend answers, it leaves nothing behind. While the disk cannot take the exchange, it is
        written again and again, for the answer must not be asked for twice.

        Args:
            trigger: What the desk is told.
            attempt: How often the trigger has been started, this time included.

        Raises:
            NoBackend: None could answer.
            TurnRefused: The request was refused, so that no backend could answer it.
        """
        async with self._turn:
            state = self._state
            assert state is not None  # noqa: S101 - the keeper restores the session first
            started_at = self._clock.now()
            call = Call('turn', trigger.id, f'{trigger.id}:{attempt}')
            reply = await self._first_answer(call, trigger.text, self._exchanges, None, self._turn_seconds)
            exchange = Exchange(
                trigger_text=trigger.text,
                answer=storable(reply.text),
                backend_name=reply.backend,
                finished_at=utc_text(self._clock.now()),
                trigger_id=trigger.id,
                started_at=utc_text(started_at),
                usage=reply.usage,
            )
            await self._keep(state, exchange, reply)
            return exchange

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
        return await self._first_answer(Call('review'), instruction, exchanges, schema or {}, self._review_seconds)

    async def _first_answer(
        self, call: Call, text: str, exchanges: Sequence[Exchange], schema: dict[str, Any] | None, seconds: float
    ) -> Reply:
        memory = (await self._disk.run(self._memory.read)).text if self._memory else ''
        failures: dict[str, str] = {}
        for name, runner in self._backends:
            turn = self._as_turn(name, text, exchanges, memory, schema)
            try:
                reply = await self._call(call, name, runner, turn, seconds)
            except TurnRefused:
                raise
            except Exception as error:  # noqa: BLE001 - a plug-in may raise anything: it is that backend's failure
                failures[name] = str(error) or type(error).__name__
                self.failing.add(name)
            else:
                self.failing.discard(name)
                return reply
        raise NoBackend(failures)

    def _as_turn(
        self, name: str, text: str, exchanges: Sequence[Exchange], memory: str, schema: dict[str, Any] | None
    ) -> Turn:
        state = self._state
        assert state is not None  # noqa: S101 - the keeper restores the session first
        route = state.routes.get(name) if schema is None else None
        return Turn(
            desk=self._desk,
            session_id=state.session_id,
            trading_date=state.trading_date,
            text=text,
            exchanges=exchanges,
            memory=memory,
            exchanges_seen=min(route.exchanges_seen, len(exchanges)) if route else 0,
            runner_state=route.runner_state if route else None,
            schema=schema,
        )

    async def _call(self, call: Call, name: str, runner: TurnRunner, turn: Turn, seconds: float) -> Reply:
        self.call = call
        began = anyio.current_time()
        try:
            async with self._slots:
                began = anyio.current_time()
                call.backend, call.ends_by = name, began + seconds
                with anyio.move_on_after(seconds) as within:
                    return await reply_of(name, runner, turn, partial(self._tell_text, call, turn))
            assert within.cancelled_caught  # noqa: S101 - it returned otherwise
            raise BackendError(
                f'no answer within {seconds:g} s', 'raise turn_timeout or summary_timeout, or mend the backend'
            )
        except Exception as error:
            self._publish(
                ModelCallFailed(
                    desk=self._desk,
                    session_id=turn.session_id,
                    trading_date=turn.trading_date,
                    backend=name,
                    purpose=call.purpose,
                    trigger_id=call.trigger_id,
                    duration_ms=round((anyio.current_time() - began) * 1000),
                    error_type=type(error).__name__,
                    error=str(error)[:2000] or type(error).__name__,
                    hint=error.hint if isinstance(error, TradingAgentError) else '',
                )
            )
            raise
        finally:
            self.call = None

    def _tell_text(self, call: Call, turn: Turn, text: str) -> None:
        if call.trigger_id is not None:
            self._publish(
                TurnOutput(
                    desk=self._desk,
                    session_id=turn.session_id,
                    trading_date=turn.trading_date,
                    trigger_id=call.trigger_id,
                    turn_id=call.turn_id,
                    backend=call.backend or '',
                    text=text,
                )
            )

    async def _keep(self, state: SessionState, exchange: Exchange, reply: Reply) -> None:
        route = RouteState(len(self._exchanges) + 1, reply.runner_state)
        following = dataclasses.replace(state, routes={**state.routes, reply.backend: route})
        wait, longest = WRITE_AGAIN_SECONDS
        while True:
            try:
                # Shielded: from the first byte of the exchange on, the turn is finished or has left no trace.
                with anyio.CancelScope(shield=True):
                    failure = await self._disk.run(self._append_and_save, following, exchange)
                    self._exchanges.append(exchange)
                    self._state = following
            except StorageError as error:
                self._tell(error)
                await anyio.sleep(wait * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
                wait = min(wait * 2, longest)
            else:
                if failure is not None:
                    self._tell(failure)
                return

    def _append_and_save(self, state: SessionState, exchange: Exchange) -> StorageError | None:
        self._store.append_exchange(state.session_id, exchange)
        try:
            self._store.save_state(state)
        except StorageError as error:
            return error  # the old state only means that the backend is told more than it needs
        return None

    def _tell(self, error: StorageError) -> None:
        event = WriteFailed.of(error, self._desk, session_id=self.session_id, trading_date=self.trading_date)
        self._publish(event)
