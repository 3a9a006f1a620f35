"""A daemon that lives through a story told in code, and marks what it promises in the moment in which it does so."""

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio

from trading_agent.clock import INDIA, ManualClock
from trading_agent.config import Backend, Config, Desk
from trading_agent.daemon.daemon import Daemon
from trading_agent.errors import StorageError, TurnRefused
from trading_agent.events import (
    Event,
    MemoryUpdated,
    SessionEnded,
    SessionStarted,
    StoreDamaged,
    SummaryWritten,
    TriggerAccepted,
    TriggerClosed,
)
from trading_agent.routing.turn_runner import TextPiece, ToolCalled, ToolReturned, Turn, TurnAnswered, TurnEvent
from trading_agent.trigger import Trigger
from trading_agent.units import Duration

MORNING = datetime(2026, 10, 19, 9, 15, tzinfo=INDIA)
ORDER, REFUSE, TALK, WAIT = 'place the order', 'refuse this', 'say much', 'wait for long'
"""What a message asks the backend for; others are only answered."""

TOOL = 'broker__order'
PATIENCE_SECONDS = 60.0

Mark = dict[str, str]


class Scripted:
    """A backend that does what a message asks for; what was cut off after an order is only taken note of.

    Args:
        effect: Is called with a trigger's id in the moment in which its order is placed.
        waits: Whether it waits where a message asks for that.
    """

    def __init__(self, effect: Callable[[str], None], *, waits: bool = True) -> None:
        self._effect = effect
        self._waits = waits

    async def run(self, turn: Turn) -> AsyncIterator[TurnEvent]:
        text = turn.text
        if turn.schema is not None:
            yield TurnAnswered(json.dumps(_review(turn)))
        elif turn.trigger_id.startswith('unknown-'):
            yield TurnAnswered('I leave it at that.')
        elif ORDER in text:
            yield TextPiece('I order. ')
            yield ToolCalled('c1', TOOL, {'key': turn.trigger_id})
            self._effect(turn.trigger_id)
            yield ToolReturned('c1', 'ordered')
            yield TurnAnswered('I order. It is ordered.')
        elif REFUSE in text:
            raise TurnRefused('this is refused')
        elif TALK in text or WAIT in text:
            pieces = [f'{number}: {"word " * 250}' for number in range(5)]
            for piece in pieces:
                yield TextPiece(piece)
            if WAIT in text and turn.attempt == 1 and self._waits:
                await anyio.sleep(PATIENCE_SECONDS)
            yield TurnAnswered(''.join(pieces))
        else:
            yield TurnAnswered(f'answer {len(turn.exchanges) + 1} of {turn.session_id}')


def _review(turn: Turn) -> dict[str, Any]:
    """Returns what is answered to a question beside the session: on skills, or on what it has taught."""
    assert turn.schema is not None
    if 'actions' in turn.schema['properties']:
        text = {'description': 'How to place an order', 'body': 'Look twice.', 'reason': 'it was asked for'}
        return {'actions': [{'action': 'propose', 'name': 'orders', **text}] if not turn.skills else []}
    lesson = f'- lesson of {turn.session_id}\n'
    memory = turn.memory if lesson in turn.memory else turn.memory + lesson
    return {'summary': f'summary of {turn.session_id}', 'memory': memory, 'reasons': 'a lesson'}


def make_backend(_: str, options: dict[str, Any]) -> Scripted:
    """Makes a backend of this kind."""
    backend: Scripted = options['backend']
    return backend


def config_for(workspace: Path, backend: Scripted, desks: tuple[str, ...]) -> Config:
    """Returns the configuration under which a story is told, and gone on with."""
    return Config(
        workspace=workspace,
        backends={'scripted': Backend(kind='scripted_story:make_backend', options={'backend': backend})},
        desks=[Desk(name=name, backends=['scripted']) for name in desks],
        drain=Duration(0),
    )


class Story:
    """One chapter: a daemon that is told to do things, and stopped, and started again.

    Args:
        folder: Where its workspace is made; it has the chapter's name.
        marks: A descriptor of the file of marks.
        desks: The desks.

    Attributes:
        on_mark: Is given each mark once it is written.
    """

    def __init__(self, folder: Path, marks: int, desks: tuple[str, ...] = ('main',)) -> None:
        self._chapter = folder.name
        self.workspace = folder / 'workspace'
        self.clock = ManualClock(MORNING)
        self._marks = marks
        self.on_mark: Callable[[Mark], None] = lambda _: None
        self.config = config_for(self.workspace, Scripted(self._effect), desks)
        self._stack = AsyncExitStack()

    def mark(self, **what: str) -> None:
        """Writes what has just come to be true."""
        mark = {'chapter': self._chapter, 'now': self.clock.now().isoformat(), **what}
        os.write(self._marks, json.dumps(mark).encode() + b'\n')
        self.on_mark(mark)

    def _effect(self, trigger_id: str) -> None:
        self.mark(what='effect', id=trigger_id)

    def before(self) -> 'Story':
        """Returns the same chapter on another workspace, which is not looked at: what comes before it begins."""
        earlier = Story(self.workspace.parent, self._marks)
        earlier.workspace = self.workspace.parent.with_suffix('.before') / 'workspace'
        earlier.config = config_for(earlier.workspace, Scripted(earlier._effect), ('main',))
        return earlier

    def leave_behind(self, later: 'Story', alter: Callable[[str, bytes], bytes]) -> None:
        """Leaves the workspace, as a killed process would leave it now, to a later one: durably, mark `left` says so.

        From now on this one promises nothing.

        Args:
            later: The same chapter.
            alter: Is given each file's name in the workspace, and its bytes, and returns those that are left.
        """
        for path in (self.workspace, *sorted(self.workspace.rglob('*'))):
            name = path.relative_to(self.workspace)
            if path.is_dir():
                (later.workspace / name).mkdir(0o700)
            else:
                _write_durably(later.workspace / name, alter(str(name), path.read_bytes()))
            _sync((later.workspace / name).parent)
        self.mark(what='left')
        self._marks = os.open(os.devnull, os.O_WRONLY)

    async def start(self) -> None:
        """Starts the daemon, and returns when every desk is ready."""
        self.daemon = Daemon(self.config, self.clock, faces=False, environ={})
        publish = self.daemon.bus.publish

        def marked(event: Event) -> None:
            mark = mark_of(event)
            if mark is not None:
                self.mark(**mark)
            publish(event)

        self.daemon.bus.publish = marked  # type: ignore[method-assign]
        await self._stack.enter_async_context(self.daemon)
        await self.daemon.supervisor.ready()

    async def stop(self) -> None:
        """Stops it; a turn that runs is cut off."""
        await self._stack.aclose()

    async def send(self, *triggers: tuple[str, str], desk: str = 'main', rest: bool = True) -> None:
        """Sends triggers, each by its id and its text, all at once; returns when they are answered."""
        async with anyio.create_task_group() as together:
            for trigger_id, text in triggers:
                together.start_soon(self._send, Trigger(text, desk, id=trigger_id, received_at=self.clock.now()))
        if rest:
            await self.rest()

    async def _send(self, trigger: Trigger) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while (await self.daemon.bus.send(trigger)).status == 'refused':  # noqa: ASYNC110 - the disk fails: again
                await anyio.sleep(0.001)

    async def rest(self) -> None:
        """Returns when nothing is left to do."""
        await self.until(lambda: all(desk.idle and not desk.queue.depth for desk in self._desks))

    @property
    def _desks(self) -> list[Any]:
        return list(self.daemon.supervisor.desks.values())

    async def until(self, condition: Callable[[], object]) -> None:
        """Returns when a condition is true."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - any condition
                await anyio.sleep(0.001)

    async def roll_over(self) -> None:
        """Ends the session of the desk `main` by hand; where the disk fails, the desk goes on with that by itself."""
        desk = self.daemon.supervisor.desks['main']
        before = desk.session_id
        with suppress(StorageError):
            await desk.roll_over()
        await self.until(lambda: desk.session_id != before)
        await self.rest()

    async def next_day(self) -> None:
        """Lets midnight pass, and returns when the session is rolled over."""
        self.clock.advance(timedelta(days=1))
        self.mark(what='date')
        today = self.clock.now().astimezone(INDIA).date()
        await self.until(lambda: all(desk.session_date == today for desk in self._desks))
        await self.rest()


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.pwrite(descriptor, data, 0)
    os.fsync(descriptor)
    os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def mark_of(event: Event) -> Mark | None:  # noqa: PLR0911 - one for each kind
    """Returns what an event promises; None for one that promises nothing that a power cut could take."""
    desk, session_id = event.desk or '', event.session_id or ''
    match event:
        case TriggerAccepted(trigger_id=trigger_id):
            return {'what': 'accepted', 'desk': desk, 'id': trigger_id}
        case TriggerClosed(trigger_id=trigger_id, outcome=outcome):
            return {'what': 'closed', 'desk': desk, 'id': trigger_id, 'outcome': outcome, 'session_id': session_id}
        case SessionStarted():
            return {'what': 'session', 'desk': desk, 'id': session_id}
        case SessionEnded(journal_digest=digest):
            return {'what': 'ended', 'desk': desk, 'id': session_id, 'digest': digest}
        case SummaryWritten():
            return {'what': 'summary', 'desk': desk, 'id': session_id}
        case MemoryUpdated():
            return {'what': 'memory', 'desk': desk, 'id': session_id}
        case StoreDamaged(error=error):
            return {'what': 'damaged', 'desk': desk, 'id': error}
        case _:
            return None
