"""What a desk lives through while calls fail: its start, triggers, turns, rollovers, the index; and what must hold."""

import errno
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import anyio
from auditor import audit
from failing_calls import FailingCalls
from findings import Fault
from writer import impatient
from writers import MORNING

from trading_agent import files
from trading_agent.clock import ManualClock
from trading_agent.config import Backend, Config
from trading_agent.config import Desk as DeskSettings
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.desk import Desk
from trading_agent.errors import StorageError, TradingAgentError
from trading_agent.events import (
    ComponentFailed,
    DeskParked,
    DeskRestarted,
    Event,
    IndexLagged,
    MemoryRefused,
    ModelCallFailed,
    SkillsReviewed,
    StoreDamaged,
    TriggerRefused,
    TurnFinished,
    WriteFailed,
)
from trading_agent.index.sqlite import SqliteIndex
from trading_agent.trigger import Trigger

PATIENCE_SECONDS = 30.0
TOLD_WITHIN_SECONDS = 5.0
"""How long calls go on to fail at most, while nobody is told."""

_SKILL = b'---\nname: spreads\ndescription: How spreads are priced.\n---\n\nBy the legs.\n'

_UNTOLD = re.compile(r'stat .*|close .*|unlink .*\.tmp|ftruncate trading-agent\.lock')
"""Calls that nobody has to be told of where all went well all the same: a question that is asked again in another way,
the end of what is synced, what the next start sweeps away."""

_TROUBLE = (
    ComponentFailed,
    DeskParked,
    DeskRestarted,
    IndexLagged,
    MemoryRefused,
    ModelCallFailed,
    StoreDamaged,
    WriteFailed,
)


class Stuck(Exception):
    """Raised when something that must happen does not."""


class _Logged(logging.Handler):
    """Notes what is told by the standard library's logging, which the program's log has too."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Desks:
    """A daemon with the desk `main` in this process, and what was offered to it and told by it.

    Args:
        workspace: Its workspace.
        calls: The calls that fail.

    Attributes:
        accepted: The triggers that were acknowledged, in order.
        refused: Those that were refused, as often as they were.
        trouble: What was told of what is wrong, in words.
        faults: The promises that were seen not to be kept.
    """

    def __init__(self, workspace: Path, calls: FailingCalls | None = None) -> None:
        self.workspace = workspace
        self._calls = calls or FailingCalls(workspace)
        self.clock = ManualClock(MORNING)
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self.trouble: list[str] = []
        self.faults: list[Fault] = []
        self._logged = _Logged()
        self._answered: set[str] = set()
        self._daemon: Daemon | None = None

    # -- its life ----------------------------------------------------------------------------------------------

    @property
    def daemon(self) -> Daemon:
        """The daemon that runs."""
        assert self._daemon is not None
        return self._daemon

    @property
    def parked(self) -> bool:
        """Whether the desk waits for a person."""
        begun = self._daemon is not None and hasattr(self._daemon, 'supervisor')
        return begun and 'main' in self.daemon.supervisor.desks and self.desk.state == 'parked'

    @property
    def desk(self) -> Desk:
        """The desk `main` of it."""
        return self.daemon.supervisor.desks['main']

    async def live(self, story: Callable[['Desks'], Awaitable[None]]) -> None:
        """Starts a daemon, again where it cannot start, lets a story happen, and ends it in order."""
        root = logging.getLogger()
        root.addHandler(self._logged)
        try:
            for _ in range(20):
                try:
                    async with self._new():
                        await story(self)
                except StorageError as error:  # the process ends with that, and is started again
                    self.trouble.append(f'no start: {error}')
                    await anyio.sleep(0.01)
                else:
                    return
            raise Stuck('the daemon cannot start')
        finally:
            root.removeHandler(self._logged)
            self.trouble += self._logged.lines

    def _new(self) -> Daemon:
        config = Config(
            workspace=self.workspace, backends={'offline': Backend(kind='offline')}, desks=[DeskSettings(name='main')]
        )
        daemon = self._daemon = Daemon(config, self.clock, faces=False, index=True, environ={})
        publish = daemon.bus.publish

        def told(event: Event) -> None:
            self._take(event)
            publish(event)

        daemon.bus.publish = told  # type: ignore[method-assign]
        return daemon

    def _take(self, event: Event) -> None:
        refused = isinstance(event, TriggerRefused) and event.reason == 'storage'
        failed = isinstance(event, SkillsReviewed) and event.outcome == 'failed'
        if refused or failed or isinstance(event, _TROUBLE):
            self.trouble.append(repr(event))
        if isinstance(event, WriteFailed) and not (event.path and event.error and event.hint):
            self.faults.append(Fault('silent', f'this says too little: {event}'))
        if isinstance(event, ComponentFailed) or (
            isinstance(event, DeskRestarted | DeskParked) and event.error_type not in ('StorageError', 'FileExists')
        ):
            self.faults.append(Fault('broken', repr(event)))
        if isinstance(event, TurnFinished):
            if event.trigger_id in self._answered:
                self.faults.append(Fault('twice', f'{event.trigger_id} was answered twice'))
            self._answered.add(event.trigger_id)
            log = self.workspace / 'desks' / 'main' / 'sessions' / f'{event.session_id}.jsonl'
            if not self._calls.is_synced(log, f'"{event.trigger_id}"'.encode()):
                self.faults.append(Fault('lost', f'{event.trigger_id} was told as answered before that was synced'))

    # -- what happens to it ------------------------------------------------------------------------------------

    async def offer(self, trigger_id: str, text: str = 'Remember: never sell ABC below 100.') -> None:
        """Offers a trigger again and again until it is taken, as a source does."""

        async def taken() -> bool:
            trigger = Trigger(text, 'main', id=trigger_id, received_at=self.clock.now())
            receipt = await self.daemon.bus.send(trigger)
            if receipt.status == 'refused':
                self.refused.append(trigger_id)
            return receipt.status != 'refused'

        await self.until(taken, f'{trigger_id} is accepted')
        self.accepted.append(trigger_id)
        triggers = self.workspace / 'desks' / 'main' / 'triggers.jsonl'
        if not self._calls.is_synced(triggers, f'"desk":"main","id":"{trigger_id}"'.encode()):
            self.faults.append(Fault('lost', f'{trigger_id} was acknowledged before it was synced'))

    async def roll_over(self) -> None:
        """Asks for a rollover until there was one."""
        before = self.desk.session_id

        async def done() -> bool:
            with suppress(TradingAgentError):
                await self.desk.roll_over()
            return self.desk.session_id != before

        await self.until(done, 'a person rolls over')

    async def next_day(self) -> None:
        """Lets midnight pass."""
        self.clock.advance(timedelta(days=1))
        today = self.clock.now().date()
        await self.until(lambda: self.desk.session_date == today, 'the session of the next day')

    async def at_rest(self) -> None:
        """Returns once nothing is open and the index has all."""
        desk = self.desk
        await self.until(lambda: desk.idle and desk.state == 'running' and desk.queue.depth == 0, 'the desk is at rest')
        if desk.status().reason:
            self.faults.append(Fault('silent', f'all is well, and the status says {desk.status().reason!r}'))
        await self.until(self._is_read, 'the index has all')
        with self._calls.aside(), SqliteIndex(self.workspace) as index:
            self.faults += [Fault('broken', str(each)) for each in index.check()]

    def _is_read(self) -> bool:
        with self._calls.aside(), SqliteIndex(self.workspace) as index:
            return index.exists and index.behind() == 0

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for a condition.

        Raises:
            Stuck: It does not come true.
        """
        with anyio.move_on_after(PATIENCE_SECONDS):
            while True:
                result = condition()
                if result if not isinstance(result, Awaitable) else await result:
                    return
                await anyio.sleep(0.003)
        desk = self.desk
        raise Stuck(f'it does not come: {what}; the desk is {desk.state}: {desk.status().reason}')


async def day(desks: Desks) -> None:
    """One story: what was cut off, a turn, a rollover by hand, a turn, midnight, a turn."""
    await desks.offer('first')
    await desks.at_rest()
    await desks.roll_over()
    await desks.offer('second')
    await desks.next_day()
    await desks.offer('third')
    await desks.at_rest()


def make_template(workspace: Path) -> None:
    """Makes a workspace that a crash left: an exchange, and a trigger that was cut off."""

    async def make() -> None:
        desks = Desks(workspace)

        async def evening(desks: Desks) -> None:
            await desks.offer('before')
            await desks.at_rest()

        await desks.live(evening)
        queue = desks.desk.queue
        queue.stopping = False
        await queue.accept(Trigger('it was cut off', 'main', id='cut-off', received_at=desks.clock.now()))
        entry = queue.entry('cut-off')
        assert entry is not None
        await queue.start(entry)
        folder = workspace / 'desks' / 'main'
        files.make_folder(folder / 'skills' / 'spreads')
        files.create(folder / 'skills' / 'spreads' / 'SKILL.md', _SKILL)
        files.create(folder / 'AGENTS.md', b'Answer in one line.')

    with impatient():
        anyio.run(make)


async def _mend_once_told(desks: Desks, calls: FailingCalls) -> None:
    """Lets calls fail until that is told, and a little longer; then nothing fails any more."""
    while not calls.failing:  # noqa: ASYNC110 - calls are made in threads
        await anyio.sleep(0.002)
    told = len(desks.trouble)
    with anyio.move_on_after(TOLD_WITHIN_SECONDS):
        while len(desks.trouble) == told or len(calls.failed) < 3:  # noqa: ASYNC110 - likewise
            await anyio.sleep(0.005)
        await anyio.sleep(0.02)
    calls.mend()


async def _let_go_when_parked(desks: Desks, calls: FailingCalls) -> None:
    """Is the person who mends what no waiting mends, and resumes the desk."""
    while True:
        await anyio.sleep(0.005)
        if desks.parked and not calls.failing:
            if os.strerror(errno.EACCES) not in desks.desk.trouble:
                desks.faults.append(Fault('blocked', f'parked for what passes: {desks.desk.trouble}'))
            desks.daemon.supervisor.resume('main')


def through(template: Path, workspace: Path, calls: FailingCalls) -> list[Fault]:
    """Lets the story happen while calls fail, and then a start after it; returns the promises that were not kept."""
    shutil.copytree(template, workspace)
    desks = Desks(workspace, calls)
    desks.accepted += ['before', 'cut-off']

    async def live() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_mend_once_told, desks, calls)
            with calls.installed():
                tasks.start_soon(_let_go_when_parked, desks, calls)
                await desks.live(day)
            tasks.cancel_scope.cancel()

    return _lived(desks, calls, live)


def _lived(desks: Desks, calls: FailingCalls, live: Callable[[], Awaitable[None]]) -> list[Fault]:
    with impatient():
        try:
            anyio.run(live)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a fault
            return [*desks.faults, Fault('blocked' if 'Stuck' in repr(error) else 'broken', repr(error)[:800])]
        faults = [*desks.faults, *audit(desks.workspace, {'main': desks.accepted}, settled=False)]
        faults += [Fault('lost', f'{path}: bytes of a failed sync were not written again') for path in calls.lost()]
        to_tell = [call for call in calls.failed if not _UNTOLD.fullmatch(call)]
        if to_tell and not desks.trouble:
            faults.append(Fault('silent', f'nothing was told of {to_tell[:3]}'))
        desks.faults = []
        anyio.run(desks.live, Desks.at_rest)
    return [*faults, *desks.faults, *audit(desks.workspace, {'main': desks.accepted})]
