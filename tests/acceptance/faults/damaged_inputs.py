"""What people and other programs hand to the daemon, damaged: its configuration, and files in an inbox."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from click.testing import CliRunner
from damage import Damage
from findings import Findings

from trading_agent import config
from trading_agent.cli.main import cli
from trading_agent.clock import IndiaClock, ManualClock
from trading_agent.daemon.daemon import Daemon
from trading_agent.daemon.sources.inbox import InboxSource
from trading_agent.disk import Disk
from trading_agent.errors import ConfigurationError
from trading_agent.event_bus import EventBus
from trading_agent.events import ComponentFailed, ConfigRejected, ConfigReloaded, Event, TriggerRefused, WriteFailed
from trading_agent.memory.trigger_queue import TriggerQueue
from trading_agent.trigger import Trigger

CONFIGURATION = """\
workspace = "ws"
log_level = "info"
max_concurrent_turns = 4
drain = "0s"
watch_config = false
heartbeat_every = "60s"
disk_low_percent = 2.0
max_trigger_size = "64KiB"

[backends.offline]
kind = "offline"
delay = "0s"
fail_every = 0

[backends.claude]
kind = "anthropic"
model = "claude-sonnet-5"
api_key_env = "ANTHROPIC_API_KEY"
temperature = 0.3

[[desks]]
name = "main"
backends = ["offline"]
rollover_at = "00:00"
queue_limit = 1000
turn_timeout = "5m"
summary_budget = 6000
read_only_tools = ["time__*"]

[[desks]]
name = "second"
carry_summaries = 3
"""

INBOX = {
    'note.txt': 'NIFTY crossed 26000: what now? ₹\n',
    'note.md': '# Results\n\nTCS beats.\n',
    'note.json': '{"text": "a dividend", "id": "a-1", "priority": "person", "expires_at": "2099-01-01T00:00:00Z"}',
}
"""The files by name, as they are when they are sound."""

MOST_BYTES = 64 << 10
PATIENCE_SECONDS = 20.0


# -- the configuration ---------------------------------------------------------------------------------------------


class Reloaded:
    """A daemon whose configuration is damaged and read again and again.

    Args:
        folder: Where its files are.
        findings: What comes of it.
    """

    def __init__(self, folder: Path, findings: Findings) -> None:
        self._folder = folder
        self._findings = findings
        self._file = folder / 'trading-agent.toml'
        self._file.write_text(CONFIGURATION)

    @asynccontextmanager
    async def running(self) -> AsyncIterator['Reloaded']:
        """Runs it."""
        read = self._read
        async with Daemon(read(), ManualClock(IndiaClock().now()), faces=False, environ={}, read_config=read) as daemon:
            self._daemon = daemon
            yield self

    def _read(self) -> config.Config:
        return config.load(self._file, None, {})

    async def damage(self, damage: Damage, where: str) -> None:
        """Damages the file, has it checked and read again, and mends it."""
        data = damage.of(CONFIGURATION.encode())
        if data is None:
            self._file.unlink()
        else:
            self._file.write_bytes(data)
        try:
            await anyio.to_thread.run_sync(self._check, where)
            await self._reload(where)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            self._findings.add('broken', f'{where}: {type(error).__name__}: {error}')
        self._file.write_text(CONFIGURATION)
        await self._daemon.configuration.reload()

    def _check(self, where: str) -> None:
        result = CliRunner().invoke(cli, ['--config', str(self._file), 'check'])
        expected = 0
        try:
            self._read()
        except ConfigurationError as error:
            expected = 78
            if not error.problems or not all(problem.where and problem.what for problem in error.problems):
                self._findings.add('silent', f'{where}: refused without saying why: {error.problems}')
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            self._findings.add('broken', f'{where}: check raises {result.exception!r}')
        elif result.exit_code not in (expected, 78):  # what can be read may still lack a package or a key
            self._findings.add('broken', f'{where}: check exits with {result.exit_code}, not {expected}')

    async def _reload(self, where: str) -> None:
        daemon = self._daemon
        before, desks = daemon.config, dict(daemon.supervisor.desks)
        with daemon.bus.subscribe(ConfigRejected, ConfigReloaded) as events:
            try:
                await daemon.configuration.reload()
            except ConfigurationError:
                if daemon.config is not before or daemon.supervisor.desks != desks:
                    self._findings.add('broken', f'{where}: refused, and not whole')
            told = [type(item.event) for item in events.ready()]
        if told != [ConfigRejected if daemon.config is before else ConfigReloaded]:
            self._findings.add('silent', f'{where}: told {told}')


# -- an inbox ------------------------------------------------------------------------------------------------------


class Inbox:
    """A desk's inbox into which damaged files are put.

    Args:
        folder: Where its files are.
        findings: What comes of it.
    """

    def __init__(self, folder: Path, findings: Findings) -> None:
        self._findings = findings
        self._bus = EventBus()
        clock, disk = IndiaClock(), Disk()
        self._queue = TriggerQueue(folder, 'main', clock, self._bus.publish, disk, max_size=MOST_BYTES, limit=1 << 20)
        self._bus.attach('main', self._queue.accept)
        self._folder = folder / 'inbox'
        self._source = InboxSource(
            self._bus, {'main': self._folder}, clock, disk, max_size=MOST_BYTES, settle_seconds=0.001
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator['Inbox']:
        """Runs it."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._source.run)
            assert await _until(self._folder.is_dir)
            yield self
            self._source.stop()

    async def damage(self, damage: Damage, where: str) -> None:
        """Puts a damaged file into the inbox, and looks what becomes of it."""
        data = damage.of(INBOX[damage.path].encode())
        if data is None:
            return
        before = {entry.trigger.id for entry in self._queue.open_entries()}
        made = self._folder / f'.{damage.path}'
        made.write_bytes(data)
        with self._bus.subscribe(TriggerRefused, ComponentFailed, WriteFailed) as events:
            os.rename(made, self._folder / damage.path)  # noqa: PTH104 - as a producer does it
            self._source.rescan()
            if not await _until(lambda: not (self._folder / damage.path).exists()):
                self._findings.add('blocked', f'{where}: the file is still there')
            told = [item.event for item in events.ready()]
        taken = [entry.trigger for entry in self._queue.open_entries() if entry.trigger.id not in before]
        self._check(data, taken, told, where)
        for kept in [*self._folder.glob('done/*/*'), *self._folder.glob('rejected/*')]:
            kept.unlink()
        for trigger in taken:
            entry = self._queue.entry(trigger.id)
            if entry is not None and trigger.id != 'a-1':
                await self._queue.close(entry, 'cancelled')

    def _check(self, data: bytes, taken: Sequence[Trigger], told: Sequence[Event], where: str) -> None:
        done = [path.read_bytes() for path in self._folder.glob('done/*/*')]
        rejected = [path.read_bytes() for path in self._folder.glob('rejected/*') if path.suffix != '.reason']
        reasons = [path.read_text() for path in self._folder.glob('rejected/*.reason')]
        if [data] not in (done, rejected) or (done and rejected):
            self._findings.add('lost', f'{where}: {len(done)} done, {len(rejected)} rejected, not these bytes')
        if rejected and (len(reasons) != 1 or not any(isinstance(event, TriggerRefused) for event in told)):
            self._findings.add('silent', f'{where}: rejected, with {len(reasons)} reasons, told {told}')
        if any(isinstance(event, ComponentFailed | WriteFailed) for event in told):
            self._findings.add('broken', f'{where}: {told}')
        if self._is_sound_text(data, where) and not taken:
            self._findings.add('lost', f'{where}: a text that is fine was not taken: {reasons}')

    @staticmethod
    def _is_sound_text(data: bytes, where: str) -> bool:
        if '.json' in where.partition('how=')[0] or len(data) > MOST_BYTES:
            return False
        try:
            return bool(data.decode().strip('\ufeff \n\r\t\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029'))
        except UnicodeDecodeError:
            return False


async def _until(condition: Callable[[], object]) -> bool:
    with anyio.move_on_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - any condition
            await anyio.sleep(0.001)
        return True
    return False


async def try_inputs(
    folder: Path, configurations: list[list[Damage]], files: list[list[Damage]], findings: Findings, where: str
) -> None:
    """Damages the configuration of a running daemon, and files that are put into an inbox."""
    reloaded, inbox = folder / 'reloaded', folder / 'desk'
    reloaded.mkdir()
    inbox.mkdir()
    async with Reloaded(reloaded, findings).running() as daemon:
        for damage in [damage for several in configurations for damage in several]:
            await daemon.damage(damage, f'{where}, configuration, {damage}')
    async with Inbox(inbox, findings).running() as source:
        for damage in [damage for several in files for damage in several]:
            await source.damage(damage, f'{where}, inbox, {damage}')
