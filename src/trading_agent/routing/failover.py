"""Who answers: the backends in order of preference, each asked again, passed over or given up as its failure says."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio
import anyio.to_thread

from trading_agent.errors import (
    BackendBusy,
    BackendError,
    ContextTooSmall,
    InvalidAnswer,
    LostSession,
    NoBackend,
    NotJournaled,
    OutcomeUnknown,
    TooManyRounds,
    TradingAgentError,
    TurnRefused,
)
from trading_agent.events import Event, ModelCallFailed
from trading_agent.routing.backend import Backend
from trading_agent.routing.discretion import without_conversation
from trading_agent.routing.model_call import Call, Reply, reply_of
from trading_agent.routing.turn_runner import ToolCalled, ToolReturned, Turn, TurnEvent

TRIES = 3
"""How often a backend that is only busy is asked in a row."""

BUSY_SECONDS = 1.0
"""How long a busy backend is left alone before it is asked again, doubling, where it does not say."""

PATIENCE_SECONDS = 15.0
"""A backend that asks for more than this is passed over."""

_SAYS_NOTHING_OF_IT = (
    ContextTooSmall,
    InvalidAnswer,
    LostSession,
    NotJournaled,
    OutcomeUnknown,
    TooManyRounds,
    TurnRefused,
)
"""After these a backend is as healthy as before."""

OnEvent = Callable[[TurnEvent], Awaitable[None]]
_ENDS_THE_TURN = (TurnRefused, NotJournaled, OutcomeUnknown)


class Asking(Protocol):
    """One thing that is asked, whoever is asked it."""

    call: Call

    def why_not(self, backend: Backend) -> str:
        """Says why a backend is not to be asked at all; empty where it may be."""
        ...

    async def turn_for(self, backend: Backend, *, anew: bool) -> Turn:
        """Returns the turn for a backend, which begins now; `anew` where it no longer knows its session."""
        ...

    async def take(self, event: TurnEvent) -> None:
        """Is given each event as it comes, and returns once it is written."""
        ...

    async def failed(self, backend: Backend, error: Exception) -> None:
        """Is told each failed call before anything else is asked.

        Raises:
            OutcomeUnknown: It had made calls that may have had effects: nobody else is to be asked.
        """
        ...


class Failover:
    """Asks one desk's backends.

    Args:
        desk: The desk's name.
        backends: In order of preference.
        publish: Where events go.
        turn_seconds: How long one backend may take for a turn.
        review_seconds: How long one backend may take for a question beside the session.
        slots: Caps the model calls of all desks together.

    Attributes:
        call: The model call that is being made, or None.
    """

    def __init__(
        self,
        desk: str,
        backends: Sequence[Backend],
        publish: Callable[[Event], None],
        *,
        turn_seconds: float,
        review_seconds: float,
        slots: anyio.CapacityLimiter,
    ) -> None:
        self._desk = desk
        self._backends = backends
        self._publish = publish
        self._turn_seconds = turn_seconds
        self._review_seconds = review_seconds
        self._slots = slots
        self.call: Call | None = None

    async def answer(self, asking: Asking) -> Reply:
        """Returns the answer of the first backend that gives one.

        Raises:
            NoBackend: None could answer.
            TurnRefused: The request was refused, or is too long for each of them, so that none could answer it.
            OutcomeUnknown: It failed after calls that may have had effects.
        """
        failures: dict[str, str] = {}
        too_long = 0
        for backend in self._backends:
            why = asking.why_not(backend) or ('' if backend.health.may_be_asked() else backend.health.why_not)
            if why:
                failures[backend.name] = why
                continue
            try:
                return await self._ask(backend, asking)
            except _ENDS_THE_TURN:
                raise
            except Exception as error:  # noqa: BLE001 - a plug-in may raise anything: it is that backend's failure
                failures[backend.name] = str(error) or type(error).__name__
                too_long += isinstance(error, ContextTooSmall)
        if too_long and too_long == len(self._backends):
            told = '; '.join(f'{name}: {what}' for name, what in failures.items())
            raise TurnRefused(f'it is too long for every backend ({told})', 'say it in fewer words, or in parts')
        raise NoBackend(failures)

    async def _ask(self, backend: Backend, asking: Asking) -> Reply:
        tries, anew = 0, False
        while True:
            tries += 1
            call = backend.health.begin()
            try:
                reply = await self._call(backend, asking, await asking.turn_for(backend, anew=anew))
            except Exception as error:
                wait = _wait_before(error, tries)
                again = wait is not None or (isinstance(error, LostSession) and not anew)
                if again or isinstance(error, _SAYS_NOTHING_OF_IT):
                    backend.health.end(call)
                else:
                    backend.health.failed(error, call)
                if not isinstance(error, NotJournaled):
                    await asking.failed(backend, error)
                if not again:
                    raise
                anew = anew or isinstance(error, LostSession)
                await anyio.sleep(wait or 0)
            except BaseException:
                backend.health.end(call)
                raise
            else:
                backend.health.answered()
                return reply

    async def _call(self, backend: Backend, asking: Asking, turn: Turn) -> Reply:
        seconds = self._turn_seconds if turn.schema is None else self._review_seconds
        call = self.call = asking.call
        began = anyio.current_time()
        try:
            async with self._slots:
                began = anyio.current_time()
                call.backend, call.ends_by = backend.name, began + seconds
                with anyio.move_on_after(seconds) as whole:
                    progress = _Progress(backend, asking.take)
                    with progress.scope:
                        return await reply_of(backend.name, backend.runner, turn, progress.take)
                    raise BackendBusy(f'nothing came for {progress.seconds:g} s', 'see its limits in [backends]')
            assert whole.cancelled_caught  # noqa: S101 - it returned otherwise
            raise BackendError(
                f'no answer within {seconds:g} s', 'raise turn_timeout or summary_timeout, or mend the backend'
            )
        except Exception as error:
            took = anyio.current_time() - began
            shown = await anyio.to_thread.run_sync(without_conversation, error, turn)
            self._tell(backend, call, turn, shown, took)
            if shown is error:
                raise
            raise shown from None
        finally:
            self.call = None

    def _tell(self, backend: Backend, call: Call, turn: Turn, error: Exception, seconds: float) -> None:
        self._publish(
            ModelCallFailed(
                desk=self._desk,
                session_id=turn.session_id,
                trading_date=turn.trading_date,
                backend=backend.name,
                purpose=call.purpose,
                trigger_id=call.trigger_id,
                duration_ms=round(seconds * 1000),
                error_type=type(error).__name__,
                error=str(error)[:2000] or type(error).__name__,
                hint=error.hint if isinstance(error, TradingAgentError) else '',
            )
        )


class _Progress:
    """Ends a call of which nothing more comes; what a tool takes is the tool's own limit."""

    def __init__(self, backend: Backend, on_event: OnEvent) -> None:
        self._limits = backend.limits
        self._on_event = on_event
        self._tools_running = 0
        self.seconds = self._limits.first_token_seconds
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + self.seconds)

    async def take(self, event: TurnEvent) -> None:
        self.scope.deadline = float('inf')  # the disk is not the backend
        await self._on_event(event)
        if isinstance(event, ToolCalled):
            self._tools_running += 1
        elif isinstance(event, ToolReturned):
            self._tools_running -= 1
        self.seconds = self._limits.between_tokens_seconds
        if self._tools_running <= 0:
            self.scope.deadline = anyio.current_time() + self.seconds


def _wait_before(error: Exception, tries: int) -> float | None:
    """Returns after how many seconds the same backend is asked again, or None where it is not."""
    if not isinstance(error, BackendBusy) or tries >= TRIES:
        return None
    wait = BUSY_SECONDS * 2 ** (tries - 1) if error.retry_after is None else error.retry_after
    return None if wait > PATIENCE_SECONDS else wait * random.uniform(1.0, 1.25)  # noqa: S311 - no secret
