"""A desk that is some days old, made by a real one; and what becomes of it when it is opened and used again."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon.daemon import Daemon
from trading_agent.errors import DeskUnusable, TurnRefused
from trading_agent.event_bus import Subscription
from trading_agent.events import Event
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.exchange import Exchange
from trading_agent.routing.turn_runner import (
    TextPiece,
    ToolCalled,
    ToolReturned,
    Turn,
    TurnAnswered,
    TurnEvent,
    UsageCounted,
)
from trading_agent.trigger import Trigger
from trading_agent.units import Duration

DESK = 'main'
FIRST, SECOND, THIRD = '2026-03-06-1', '2026-03-09-1', '2026-03-10-1'
NOW = datetime(2026, 3, 10, 15, tzinfo=INDIA)
PATIENCE_SECONDS = 60.0
"""How long anything that must happen may take."""


class Answering:
    """A model that answers at once; some questions it refuses, or never answers, as it is told to.

    Args:
        mood: `hangs`: on what it hangs, `summary` or `actions`; empty for nothing.
    """

    def __init__(self, mood: dict[str, str]) -> None:
        self._mood = mood

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        fields = turn.schema['properties'] if turn.schema is not None else {}
        if self._mood.get('hangs', 'nothing') in fields:
            await anyio.sleep_forever()
        if 'summary' in fields and FIRST in turn.text:
            raise TurnRefused('too much of it', '')
        yield UsageCounted(input_tokens=10, output_tokens=2)
        if 'actions' in fields:
            skill = {'name': f'sizing-{turn.trading_date}', 'description': 'how', 'body': 'so', 'reason': 'a loss'}
            yield TurnAnswered(json.dumps({'actions': [{'action': 'create', **skill}]}))
        elif fields:
            summary = f'{turn.session_id} had {len(turn.exchanges)} exchanges'
            memory = f'{turn.memory}- a lesson of {turn.session_id}\n'
            known = {'summary': summary, 'memory': memory if turn.memory else '- buy low, sell high\n', 'reasons': 'so'}
            yield TurnAnswered(json.dumps({name: known.get(name, '') for name in fields}))
        else:
            yield TextPiece('Let me see. ')
            if turn.trigger_id.endswith('-2'):
                yield ToolCalled('c1', 'act', {'for': turn.trigger_id})
                yield ToolReturned('c1', 'done')
            yield TurnAnswered(f'Let me see. Answer to {turn.trigger_id}', {'turns': len(turn.exchanges) + 1})


def answering(_: str, options: dict[str, Any]) -> Answering:
    """Makes a backend of this kind."""
    return Answering(**options)


def config_of(workspace: Path, mood: dict[str, str] | None = None, backend: str = 'model') -> Config:
    """Returns the configuration of a daemon with this one desk, on the model or on the built-in `offline`."""
    model = Backend(kind='old_desk:answering', options={'mood': {} if mood is None else mood})
    backends = {'model': model, 'offline': Backend(kind='offline')}
    return Config(
        workspace=workspace, backends=backends, desks=[Desk(name=DESK, backends=[backend])], drain=Duration(0)
    )


async def until(condition: Callable[[], object]) -> bool:
    """Waits for a condition; returns whether it came true in time."""
    with anyio.move_on_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - any condition
            await anyio.sleep(0.001)
        return True
    return False


# -- as it is made -------------------------------------------------------------------------------------------------


async def make_desk(workspace: Path, hangs: str = 'actions') -> None:
    """Makes the workspace of such a desk: three sessions, of which the last is being rolled over.

    The first has a summary that is owed, the second was folded into Memory.md, and while the third is rolled over one
    trigger waits for that and another one for the year 2099.

    Args:
        workspace: Where it is made.
        hangs: Which stage of the rollover: `summary` is the first, `actions` the review of its skills.
    """
    mood: dict[str, str] = {}
    clock = ManualClock(datetime(2026, 3, 6, 10, tzinfo=INDIA))
    async with Daemon(config_of(workspace, mood), clock, faces=False, environ={}) as daemon:
        desk = daemon.supervisor.desks[DESK]

        async def answered(trigger_id: str) -> None:
            await daemon.bus.send(Trigger(f'tell me of {trigger_id}', DESK, id=trigger_id, received_at=clock.now()))
            assert await until(lambda: desk.queue.closing(trigger_id)), trigger_id

        for days, session_id in ((0, FIRST), (3, SECOND), (1, THIRD)):
            clock.advance(timedelta(days=days))
            wanted = session_id
            assert await until(lambda: desk.session_id == wanted), session_id  # noqa: B023 - called before the next one
            for number in range(1, 4):
                await answered(f'{session_id}-trigger-{number}')
            DayNotes(desk.folder).add(session_id, f'a note of {session_id}', clock.now())
        mood['hangs'] = hangs
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.roll_over)
            stage = b'"skills"' if hangs == 'actions' else b'"answers"'
            rollover = desk.folder / 'sessions' / 'rollover.json'
            assert await until(lambda: rollover.exists() and stage in rollover.read_bytes())
            later = datetime(2099, 1, 1, tzinfo=UTC)
            await daemon.bus.send(Trigger('tell me', DESK, id='waits', received_at=clock.now()))
            await daemon.bus.send(Trigger('tell me', DESK, id='later', received_at=clock.now(), not_before=later))
            tasks.cancel_scope.cancel()
    sessions = workspace / 'desks' / DESK / 'sessions'
    (sessions / 'untold.json').write_text(f'["{SECOND}"]')
    parts = [{'exchanges': 2, 'summary': 'two exchanges'}]
    (sessions / 'backfill.json').write_text(json.dumps({'session_id': FIRST, 'parts': parts, 'version': 1}))
    (workspace / 'desks' / DESK / 'AGENTS.md').write_text('Be brief.\n')
    for name in ('sessions/untold.json', 'sessions/backfill.json', 'AGENTS.md'):
        (workspace / 'desks' / DESK / name).chmod(0o600)


# -- opened again --------------------------------------------------------------------------------------------------


@dataclass
class Opened:
    """What came of opening and using it.

    Attributes:
        told: The events.
        logged: What was logged beside these, from warnings on.
        state: The desk's state when it was ready, and why it is so.
        session: The session that it was in then.
        remembered: That session's exchanges, as the desk knew them.
        waited: The ids of the triggers that were open then.
        trouble: What did not happen; empty where all did.
    """

    told: list[Event] = field(default_factory=list)
    logged: list[logging.LogRecord] = field(default_factory=list)
    state: str = ''
    reason: str = ''
    session: str | None = None
    remembered: list[Exchange] = field(default_factory=list)
    waited: list[str] = field(default_factory=list)
    trouble: str = ''


async def open_and_use(workspace: Path, name: str, backend: str = 'model') -> Opened:
    """Starts the daemon, lets the desk answer all that waits and two triggers more, and rolls over in between."""
    opened = Opened()
    with _logged(opened.logged):
        clock = ManualClock(NOW)
        async with Daemon(config_of(workspace, backend=backend), clock, faces=False, environ={}) as daemon:
            with daemon.bus.subscribe(since='oldest') as events:
                with anyio.move_on_after(PATIENCE_SECONDS * 2) as within:
                    opened.trouble = await _used(daemon, opened, name)
                if within.cancelled_caught:
                    opened.trouble = 'it took too long'
                _listen(events, opened)
    return opened


def _listen(events: Subscription, opened: Opened) -> None:
    opened.told += [item.event for item in events.ready(1 << 20)]


async def _used(daemon: Daemon, opened: Opened, name: str) -> str:  # noqa: PLR0911 - one for each step
    desk = daemon.supervisor.desks[DESK]
    opened.state, opened.reason, opened.session = desk.state, desk.trouble, desk.session_id
    opened.remembered = list(desk.router.exchanges)
    opened.waited = [entry.trigger.id for entry in desk.queue.open_entries()]
    if desk.state == 'paused':
        await desk.resume('the suite')
    if desk.state != 'running':
        return f'the desk is {desk.state}: {desk.trouble}'

    async def answered(trigger_id: str) -> bool:
        await daemon.bus.send(Trigger('and now?', DESK, id=trigger_id, received_at=daemon.clock.now()))
        return await until(lambda: desk.queue.closing(trigger_id))

    if not await answered(f'{name}-1'):
        return f'{name}-1 is not answered: {desk.trouble}'
    before = desk.session_id
    try:
        await desk.roll_over()
    except DeskUnusable:
        return f'it was not rolled over: {desk.trouble}'
    if desk.session_id == before:
        return 'it was not rolled over'
    if not await answered(f'{name}-3'):
        return f'{name}-3 is not answered: {desk.trouble}'
    owed, store = desk._parts.keeper._owed, desk._parts.store
    readable = {session_id for session_id in owed.sessions if store.exchanges(session_id, last=1)}
    tried = await until(
        lambda: desk.state == 'parked' or (desk.idle and not readable.intersection(owed.sessions) - owed._refused)
    )
    if desk.state == 'parked':  # type: ignore[comparison-overlap] # it changes while it is awaited
        return f'the desk is parked: {desk.trouble}'
    return '' if tried else f'no full summary was made of {owed.sessions}: {desk.trouble}'


@contextmanager
def _logged(records: list[logging.LogRecord]) -> Iterator[None]:
    """Notes what is logged by the standard library within the block."""

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    root, handler = logging.getLogger(), Noting(logging.WARNING)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
