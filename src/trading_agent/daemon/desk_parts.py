"""Puts together what one desk works with."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from trading_agent import config
from trading_agent.clock import Clock
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.daemon.recovery import Recovery
from trading_agent.daemon.turn_news import TurnNews
from trading_agent.daemon.turns import Turns
from trading_agent.daemon.unknown_outcomes import UnknownOutcomes
from trading_agent.disk import Disk
from trading_agent.events import ToolServerDown, ToolServerUp
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.review import Limits
from trading_agent.memory.session_keeper import Publisher, SessionKeeper
from trading_agent.memory.session_store import Damage, SessionStore
from trading_agent.memory.skill_curator import SkillCurator
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.routing.backend import Backend
from trading_agent.routing.model_router import ModelRouter
from trading_agent.tools.desk_tools import DeskTools
from trading_agent.tools.mcp_connection import ServerNews
from trading_agent.tools.mcp_servers import McpServers
from trading_agent.trigger import Receipt, Trigger


@dataclass(frozen=True)
class DeskParts:
    """What one start of a desk works with; the next start gets new ones."""

    store: SessionStore
    router: ModelRouter
    keeper: SessionKeeper
    turns: Turns
    recovery: Recovery
    servers: McpServers


def build_parts(
    settings: config.Desk,
    folder: Path,
    backends: Sequence[Backend],
    *,
    publisher: Publisher,
    queue: TriggerQueue,
    clock: Clock,
    slots: anyio.CapacityLimiter,
    disk: Disk,
    on_damage: Callable[[Damage], None],
    send: Callable[[Trigger], Awaitable[Receipt]],
    told: Callable[[], Awaitable[None]],
) -> DeskParts:
    """Builds a desk's store, tools, router, keeper and turns; nothing on the disk is touched.

    Raises:
        ConfigurationError: An MCP server cannot be had.
    """
    name = settings.name
    memory = MemoryFile(folder, clock.now, on_damage=on_damage)
    journals = JournalFolder(folder / 'journal', name, clock.now, on_damage=on_damage)
    store = SessionStore(folder / 'sessions', lambda: clock.trusted_date(settings.rollover_at), on_damage=on_damage)
    servers = McpServers(name, settings.mcp_servers, allow=settings.allow, on_news=partial(_tell, publisher, name))
    tools = _tools(settings, folder, servers, queue, clock=clock, disk=disk, send=send)
    router = _router(
        settings, store, backends, memory, journals, tools=tools, bus=publisher, clock=clock, slots=slots, disk=disk
    )
    keeper = _keeper(
        settings,
        router,
        store,
        memory,
        _limits(settings, backends),
        publisher=publisher,
        queue=queue,
        clock=clock,
        disk=disk,
        told=told,
        on_damage=on_damage,
    )
    news = TurnNews(name, router, publisher.publish)
    unknown = UnknownOutcomes(name, queue, clock, lambda: router.session_id)
    turns = Turns(
        desk=name,
        queue=queue,
        store=store,
        keeper=keeper,
        router=router,
        unknown=unknown,
        news=news,
        publish=publisher.publish,
        clock=clock,
        disk=disk,
    )
    recovery = Recovery(queue=queue, store=store, journals=journals, unknown=unknown, news=news, disk=disk)
    return DeskParts(store, router, keeper, turns, recovery, servers)


def _router(
    settings: config.Desk,
    store: SessionStore,
    backends: Sequence[Backend],
    memory: MemoryFile,
    journals: JournalFolder,
    *,
    tools: DeskTools,
    bus: Publisher,
    clock: Clock,
    slots: anyio.CapacityLimiter,
    disk: Disk,
) -> ModelRouter:
    return ModelRouter(
        settings.name,
        store,
        backends,
        bus.publish,
        clock,
        memory=memory,
        journals=journals,
        tools=tools,
        turn_seconds=settings.turn_timeout,
        review_seconds=settings.summary_timeout,
        slots=slots,
        disk=disk,
    )


def _keeper(
    settings: config.Desk,
    router: ModelRouter,
    store: SessionStore,
    memory: MemoryFile,
    limits: Limits,
    *,
    publisher: Publisher,
    queue: TriggerQueue,
    clock: Clock,
    disk: Disk,
    told: Callable[[], Awaitable[None]],
    on_damage: Callable[[Damage], None],
) -> SessionKeeper:
    folder = store.directory.parent
    curator = SkillCurator(
        settings.name,
        folder,
        router,
        store,
        mode=settings.skills,
        limits=limits,
        disk=disk,
        now=clock.now,
        on_damage=on_damage,
    )
    return SessionKeeper(
        settings.name,
        router,
        store,
        publisher,
        curator,
        memory=memory,
        notes=DayNotes(folder, on_damage=on_damage),
        clock=clock,
        limits=limits,
        disk=disk,
        archive=queue.archive,
        ended_digest=lambda: router.ended_digest,
        told=told,
    )


def _limits(settings: config.Desk, backends: Sequence[Backend]) -> Limits:
    # The router gives each backend its time; this one only ends a wait that nobody else does.
    longest = settings.summary_timeout * len(backends) + settings.turn_timeout
    return Limits(
        summary_budget=settings.summary_budget,
        memory_budget=settings.memory_budget,
        carry_summaries=settings.carry_summaries,
        review_seconds=longest,
        curator_seconds=longest,
        review_chars=min((backend.limits.review_chars for backend in backends), default=sys.maxsize),
    )


def _tools(
    settings: config.Desk,
    folder: Path,
    servers: McpServers,
    queue: TriggerQueue,
    *,
    clock: Clock,
    disk: Disk,
    send: Callable[[Trigger], Awaitable[Receipt]],
) -> DeskTools:
    return DeskTools(
        settings.name,
        folder=folder,
        send=send,
        open_wake_ups=lambda: sum(entry.trigger.source == 'wake_me' for entry in queue.open_entries()),
        clock=clock,
        disk=disk,
        servers=servers,
        read_only=settings.read_only_tools,
        allow=settings.allow,
    )


def _tell(publisher: Publisher, desk: str, news: ServerNews) -> None:
    """Tells that an MCP server is ready or down."""
    if news.state == 'ready':
        publisher.publish(ToolServerUp(desk=desk, server=news.server, tools=news.tools))
    else:
        hint = 'its calls fail until it is back, the desk goes on; see mcp_servers of the desk'
        publisher.publish(ToolServerDown(desk=desk, server=news.server, error=news.error, hint=hint))
