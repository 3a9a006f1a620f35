"""One tiny call of a backend, beside every desk: whether it answers, how soon, and what that costs."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import anyio
import anyio.to_thread

from trading_agent import config
from trading_agent.clock import Clock
from trading_agent.conversation.recorder import TurnRecords
from trading_agent.daemon.backend_status import BackendTest
from trading_agent.daemon.status import BACKEND_STATES
from trading_agent.errors import BackendError, ConfigurationError, TradingAgentError, TurnRefused
from trading_agent.plug_in import NAME as PLUG_IN
from trading_agent.plug_in import imported
from trading_agent.routing.backend_health import BackendHealth
from trading_agent.routing.model_call import Reply, reply_of
from trading_agent.routing.turn_runner import TextPiece, Turn, TurnEvent, TurnRunner

TRIAL_SECONDS = 60.0
"""How long the call may take."""

TEXT = 'This is a test of the connection. Answer with the one word OK.'
DESK = 'backend-test'
"""Which desk the backend is told that it answers; it is none."""

_ANSWERS_ALONE = frozenset({'offline', 'anthropic', 'openai_compatible'})
"""Kinds that keep no session and have no tools of their own: a turn without tools has no effects, and what is said
comes in pieces. Others are asked a question beside the session, which has none by its contract."""

_LONGEST_ERROR = 2000


class BackendTrials:
    """Calls backends to see whether they answer.

    Each has a runner of its own for this, kept from one call to the next: a desk's runner may be at work, and one that
    keeps a session must not meet the desk's. A call is in no journal, takes no slot of `max_concurrent_turns`, and
    counts for the backend's health like any other.

    Args:
        make: Makes a runner of a backend by its name and configuration.
        clock: What time it is.
    """

    def __init__(self, make: Callable[[str, config.Backend], TurnRunner], clock: Clock) -> None:
        self._make = make
        self._clock = clock
        self._kept: dict[str, tuple[config.Backend, TurnRunner]] = {}
        self._calling: dict[str, anyio.Lock] = {}

    async def run(self, name: str, backend: config.Backend, health: BackendHealth) -> BackendTest:
        """Calls a backend, also one that is disabled or left alone for a while; one at a time of each.

        Returns:
            What came of it; a backend that cannot even be made has failed, too.
        """
        async with self._calling.setdefault(name, anyio.Lock()):
            call = _Call(name, health)
            try:
                runner = await self._runner(name, backend)
            except ConfigurationError as error:
                return call.failed(error)
            begun = health.begin()
            try:
                reply = await call.of(runner, self._turn(backend))
            except TurnRefused as error:
                health.end(begun)
                return call.failed(error)
            except Exception as error:  # noqa: BLE001 - a plug-in may raise anything: it is that backend's failure
                health.failed(error, begun)
                return call.failed(error)
            except BaseException:
                health.end(begun)
                raise
            health.answered()
            return call.answered(reply)

    async def _runner(self, name: str, backend: config.Backend) -> TurnRunner:
        kept = self._kept.get(name)
        if kept is not None and kept[0] == backend:
            return kept[1]
        if PLUG_IN.fullmatch(backend.kind):
            await anyio.to_thread.run_sync(_import_ahead, backend.kind)
        runner = self._make(name, backend)
        self._kept[name] = backend, runner
        return runner

    def _turn(self, backend: config.Backend) -> Turn:
        day = self._clock.trusted_date(timedelta())
        return Turn(
            desk=DESK,
            session_id=f'{day}-1',
            trading_date=day,
            text=TEXT,
            started_at=self._clock.now(),
            schema=None if backend.kind in _ANSWERS_ALONE else {},
        )


class _Call:
    """One call, and what is noted of it."""

    def __init__(self, name: str, health: BackendHealth) -> None:
        self._name = name
        self._health = health
        self._records = TurnRecords('')
        self._began = anyio.current_time()
        self._first: float | None = None
        self._first_text: float | None = None

    async def of(self, runner: TurnRunner, turn: Turn) -> Reply:
        self._began = anyio.current_time()
        with anyio.move_on_after(TRIAL_SECONDS):
            return await reply_of(self._name, runner, turn, self._take)
        raise BackendError(f'no answer within {TRIAL_SECONDS:g} s', 'is it reachable, and is it overloaded?')

    async def _take(self, event: TurnEvent) -> None:
        self._records.of(event)
        now = anyio.current_time()
        self._first = now if self._first is None else self._first
        if isinstance(event, TextPiece) and self._first_text is None:
            self._first_text = now

    def answered(self, reply: Reply) -> BackendTest:
        return self._result(ok=True, model=reply.model)

    def failed(self, error: Exception) -> BackendTest:
        return self._result(
            ok=False,
            error_type=type(error).__name__,
            error=str(error)[:_LONGEST_ERROR] or type(error).__name__,
            hint=error.hint if isinstance(error, TradingAgentError) else '',
        )

    def _result(
        self, *, ok: bool, model: str = '', error_type: str = '', error: str = '', hint: str = ''
    ) -> BackendTest:
        # Where nothing is said in pieces, what came first tells when the model began.
        first = self._first if self._first_text is None else self._first_text
        return BackendTest(
            name=self._name,
            ok=ok,
            state=BACKEND_STATES[self._health.state],
            duration_ms=_ms(anyio.current_time() - self._began),
            first_output_ms=None if first is None else _ms(first - self._began),
            usage=self._records.usage,
            model=model,
            error_type=error_type,
            error=error,
            hint=hint,
        )


def _import_ahead(kind: str) -> None:
    """Imports a plug-in, which may take seconds; what fails is told when it is made."""
    with suppress(Exception):
        imported(kind)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
