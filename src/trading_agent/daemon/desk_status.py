"""How one desk is, put together from what it works with."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from trading_agent import config
from trading_agent.clock import boundary_after
from trading_agent.daemon.desk_parts import DeskParts
from trading_agent.daemon.status import BackendStatus, DeskState, DeskStatus, TokensUsed
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.routing.backend import Backend


@dataclass(frozen=True)
class LastAnswer:
    """A desk's last answer.

    Attributes:
        at: When it was given, in UTC.
        backend: By whom.
        preferred: Whether that was the desk's first backend.
    """

    at: datetime
    backend: str
    preferred: bool


def status_of(
    settings: config.Desk,
    parts: DeskParts,
    queue: TriggerQueue,
    backends: Sequence[Backend],
    *,
    state: DeskState,
    reason: str,
    last: LastAnswer | None,
    now: datetime,
) -> DeskStatus:
    """Returns how a desk is.

    Args:
        settings: Its configuration.
        parts: What it works with.
        queue: Its triggers.
        backends: Its backends, in order of preference.
        state: Its state.
        reason: What is wrong and what to do about it; empty when all is well.
        last: Its last answer, or None.
        now: What time it is.
    """
    oldest, used = queue.oldest, parts.router.usage
    return DeskStatus(
        name=settings.name,
        state=state,
        reason=reason,
        session_id=parts.router.session_id,
        trading_date=parts.router.trading_date,
        exchanges=len(parts.router.exchanges),
        queue=queue.depth,
        oldest_trigger_at=oldest.trigger.received_at if oldest else None,
        turn=parts.turns.current,
        last_turn_at=last.at if last else None,
        backends=[BackendStatus.of(backend.health) for backend in backends],
        next_boundary=boundary_after(now, settings.rollover_at),
        usage=TokensUsed(used.session, used.day),
        last_backend=last.backend if last else None,
        last_preferred=last.preferred if last else None,
    )
