"""Puts together what one desk works with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from trading_agent import config
from trading_agent.clock import Clock
from trading_agent.daemon.turns import Turns
from trading_agent.files import Disk
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.review import Limits
from trading_agent.memory.session_keeper import Publisher, SessionKeeper
from trading_agent.memory.session_store import Damage, SessionStore
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.routing.model_router import ModelRouter
from trading_agent.routing.turn_runner import TurnRunner


@dataclass(frozen=True)
class DeskParts:
    """What one start of a desk works with; the next start gets new ones."""

    store: SessionStore
    router: ModelRouter
    keeper: SessionKeeper
    turns: Turns


def build_parts(
    settings: config.Desk,
    folder: Path,
    backends: Sequence[tuple[str, TurnRunner]],
    *,
    publisher: Publisher,
    queue: TriggerQueue,
    clock: Clock,
    slots: anyio.CapacityLimiter,
    disk: Disk,
    on_damage: Callable[[Damage], None],
) -> DeskParts:
    """Builds a desk's store, router, keeper and turns; nothing on the disk is touched."""
    name = settings.name
    memory = MemoryFile(folder)
    store = SessionStore(folder / 'sessions', lambda: clock.trusted_date(settings.rollover_at), on_damage=on_damage)
    router = ModelRouter(
        name,
        store,
        backends,
        publisher.publish,
        clock,
        memory=memory,
        turn_seconds=settings.turn_timeout,
        review_seconds=settings.summary_timeout,
        slots=slots,
        disk=disk,
    )
    limits = Limits(
        summary_budget=settings.summary_budget,
        memory_budget=settings.memory_budget,
        carry_summaries=settings.carry_summaries,
        # The router gives each backend its time; this one only ends a wait that nobody else does.
        review_seconds=settings.summary_timeout * len(backends) + settings.turn_timeout,
    )
    keeper = SessionKeeper(
        name, router, store, publisher, memory=memory, clock=clock, limits=limits, disk=disk, archive=queue.archive
    )
    turns = Turns(
        desk=name,
        queue=queue,
        store=store,
        keeper=keeper,
        router=router,
        publish=publisher.publish,
        clock=clock,
        disk=disk,
    )
    return DeskParts(store, router, keeper, turns)
