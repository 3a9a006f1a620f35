"""Desks that left triggers on disk and are no longer configured: shown, so that nobody forgets them."""

from pathlib import Path

from trading_agent import files
from trading_agent.clock import Clock, boundary_after
from trading_agent.config import DESK_NAME
from trading_agent.daemon.status import DeskStatus
from trading_agent.errors import StorageError
from trading_agent.memory.trigger_log import open_triggers


def find_unconfigured(folder: Path, configured: set[str], clock: Clock) -> list[DeskStatus]:
    """Returns the desks under a folder that are not configured and have open triggers. Changes nothing."""
    found = []
    for name in sorted(files.names_in(folder)):
        if name in configured or not DESK_NAME.fullmatch(name):
            continue
        try:
            waiting = open_triggers(folder / name / 'triggers.jsonl')
        except StorageError:
            continue  # no desk's folder, or one that nobody can read: it is told when it is configured
        if waiting:
            found.append(
                DeskStatus(
                    name=name,
                    state='parked',
                    reason=_reason(len(waiting)),
                    session_id=None,
                    trading_date=None,
                    exchanges=0,
                    queue=len(waiting),
                    oldest_trigger_at=min(trigger.received_at for trigger in waiting.values()),
                    turn=None,
                    last_turn_at=None,
                    backends=[],
                    next_boundary=boundary_after(clock.now()),
                )
            )
    return found


def _reason(waiting: int) -> str:
    wait = '1 trigger waits' if waiting == 1 else f'{waiting} triggers wait'
    return f'it is not configured, and {wait} for it: configure it again, then `trading-agent reload`'
