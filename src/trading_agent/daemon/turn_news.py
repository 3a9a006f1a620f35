"""What is told of a desk's turns: that they begin, that they are answered, that they are cut off."""

from collections.abc import Callable
from datetime import datetime
from typing import Literal

from trading_agent.events import Event, TurnFinished, TurnInterrupted, TurnStarted
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.trigger_queue import Entry
from trading_agent.messages import Usage
from trading_agent.routing.model_router import ModelRouter

CutBy = Literal['crash', 'stop', 'restart', 'pause']


class TurnNews:
    """Tells of one desk's turns, each once: one of several triggers by the first of them and their number.

    Args:
        desk: The desk's name.
        router: Knows the session.
        publish: Where events go.
    """

    def __init__(self, desk: str, router: ModelRouter, publish: Callable[[Event], None]) -> None:
        self._desk = desk
        self._router = router
        self._publish = publish

    def started(self, first: Entry, attempt: int, triggers: int, now: datetime) -> None:
        """Tells that a turn begins."""
        trigger = first.trigger
        self._publish(
            TurnStarted(
                desk=self._desk,
                session_id=self._router.session_id,
                trading_date=self._router.trading_date,
                trigger_id=trigger.id,
                turn_id=f'{trigger.id}:{attempt}',
                attempt=attempt,
                source=trigger.source,
                wait_ms=max(0, round((now - first.due_at).total_seconds() * 1000)),
                triggers=triggers,
            )
        )

    def finished(self, trigger_id: str, attempt: int, triggers: int, exchange: Exchange, seconds: float) -> None:
        """Tells that a turn was answered."""
        self._publish(
            TurnFinished(
                desk=self._desk,
                session_id=self._router.session_id,
                trading_date=self._router.trading_date,
                trigger_id=trigger_id,
                turn_id=f'{trigger_id}:{attempt}',
                attempt=attempt,
                backend=exchange.backend_name,
                preferred=exchange.backend_name == self._router.backends[0],
                duration_ms=round(seconds * 1000),
                exchanges=len(self._router.exchanges),
                answer=exchange.answer,
                triggers=triggers,
                **{kind: count for kind, count in (exchange.usage or {}).items() if kind in Usage.__struct_fields__},
            )
        )

    def interrupted(self, trigger_id: str, attempt: int, triggers: int, cause: CutBy) -> None:
        """Tells that a turn was cut off."""
        self._publish(
            TurnInterrupted(
                desk=self._desk,
                session_id=self._router.session_id,
                trading_date=self._router.trading_date,
                trigger_id=trigger_id,
                turn_id=f'{trigger_id}:{attempt}',
                attempt=attempt,
                cause=cause,
                triggers=triggers,
            )
        )
