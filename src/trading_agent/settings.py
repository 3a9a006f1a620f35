"""What can be configured: every table and key, its default and its range."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from trading_agent.trigger import MAX_TEXT_BYTES
from trading_agent.units import Duration, Size, TimeOfDay

DEFAULT_WORKSPACE = Path('workspace')

LogLevel = Literal['debug', 'info', 'warning', 'error']


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every table: an unknown key is a mistake."""


class OfflineOptions(Table, frozen=True, kw_only=True):
    """What the built-in `offline` backend can be told, for drills and tests.

    Attributes:
        delay: How long it thinks before the first word.
        chunk_delay: How long between two pieces of the answer.
        fail_every: Every n-th call fails; 0 for never.
        hang_every: Every n-th call never answers; 0 for never.
    """

    delay: Duration = Duration(0)
    chunk_delay: Duration = Duration(0)
    fail_every: int = 0
    hang_every: int = 0


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One `[backends.NAME]`.

    Attributes:
        kind: `offline`, or `package.module:callable`.
        options: The further keys, as they stand in the file; each kind knows its own.
    """

    kind: str
    options: dict[str, Any] = {}


class Desk(Table, frozen=True, kw_only=True):
    """One `[[desks]]`.

    Attributes:
        name: Matches `[a-z0-9][a-z0-9_-]{0,62}`; also the name of its folder.
        backends: Names of backends, in order of preference.
        rollover_at: When the trading date changes, IST.
        queue_limit: How many triggers may be open before more are refused.
        turn_timeout: How long one backend may take for a turn.
        summary_timeout: How long one backend may take for the end-of-day review.
        summary_budget: The longest summary, in characters.
        memory_budget: The longest Memory.md that a review may write, in characters.
        carry_summaries: Most sessions whose summaries a new one begins with.
    """

    name: str
    backends: list[str] = msgspec.field(default_factory=lambda: ['offline'])
    rollover_at: TimeOfDay = TimeOfDay()
    queue_limit: int = 1000
    turn_timeout: Duration = Duration(300)
    summary_timeout: Duration = Duration(180)
    summary_budget: int = 6000
    memory_budget: int = 12000
    carry_summaries: int = 3


class Component(Table, frozen=True, kw_only=True):
    """One `[[components]]`: other people's code in the process.

    Attributes:
        name: Names it in the log.
        entry: `package.module:callable`, an `async def component(bus, options)`.
        options: Given to it as they stand.
    """

    name: str
    entry: str
    options: dict[str, Any] = {}


class Common(Table, frozen=True, kw_only=True):
    """The keys at the top that mean in the file what they mean in force.

    Attributes:
        log_level: The lowest level that is logged.
        log_content: Whether the log shows what was said, and not only its length.
        max_concurrent_turns: How many model calls run at once, over all desks.
        drain: How long running turns get at a stop.
        control_group: The group that may use the control socket, or None for the owner alone.
        heartbeat_every: How often `daemon_heartbeat` is told.
        max_trigger_size: The longest trigger text, in bytes as UTF-8; at most 1 MiB.
        watch_config: Whether the configuration is read again when its file is saved.
        disk_low: Free space, in bytes, below which `disk_low` is told.
        disk_low_percent: The same as a share of the file system, in percent.
        components: `[[components]]` tables.
    """

    log_level: LogLevel = 'info'
    log_content: bool = False
    max_concurrent_turns: int = 4
    drain: Duration = Duration(30)
    control_group: str | None = None
    heartbeat_every: Duration = Duration(60)
    max_trigger_size: Size = Size(MAX_TEXT_BYTES)
    watch_config: bool = False
    disk_low: Size = Size(256 << 20)
    disk_low_percent: float = 2.0
    components: list[Component] = []


class File(Common, frozen=True, kw_only=True):
    """The file as it stands, before its parts are checked against each other.

    Attributes:
        workspace: The folder that everything is kept in.
        backends: `[backends.NAME]` tables.
        desks: `[[desks]]` tables; none means one desk `main` on `offline`.
    """

    workspace: str | None = None
    backends: dict[str, Any] = {}
    desks: list[Desk] = []


class Config(Common, frozen=True, kw_only=True):
    """The whole configuration, checked.

    Attributes:
        workspace: The folder that everything is kept in.
        backends: The backends by name; `offline` is always there.
        desks: The desks.
        file: The file that it came from, or None for the built-in default.
    """

    workspace: Path = DEFAULT_WORKSPACE
    backends: dict[str, Backend] = msgspec.field(default_factory=lambda: {'offline': Backend(kind='offline')})
    desks: list[Desk] = msgspec.field(default_factory=lambda: [Desk(name='main')])
    file: Path | None = None


RANGES: dict[str, tuple[float, float, str]] = {
    'max_concurrent_turns': (1, 256, 'from 1 to 256'),
    'drain': (0, 3600, 'from 0s to 1h'),
    'heartbeat_every': (1, 3600, 'from 1s to 1h'),
    'max_trigger_size': (1, MAX_TEXT_BYTES, 'from 1B to 1MiB'),
    'disk_low': (0, 1 << 60, '0B or more'),
    'disk_low_percent': (0, 100, 'from 0 to 100'),
    'queue_limit': (1, 1_000_000, 'from 1 to 1000000'),
    'turn_timeout': (0.001, 86400, 'from 1ms to 24h'),
    'summary_timeout': (0.001, 86400, 'from 1ms to 24h'),
    'summary_budget': (200, 1_000_000, 'from 200 to 1000000 characters'),
    'memory_budget': (200, 1_000_000, 'from 200 to 1000000 characters'),
    'carry_summaries': (0, 100, 'from 0 to 100'),
    'delay': (0, 86400, 'from 0s to 24h'),
    'chunk_delay': (0, 86400, 'from 0s to 24h'),
    'fail_every': (0, 1_000_000_000, '0 or more'),
    'hang_every': (0, 1_000_000_000, '0 or more'),
}
