"""What happens in the daemon as a whole."""

from typing import ClassVar, Literal

from trading_agent.events.base import Event, Level


class DaemonReady(Event, frozen=True, kw_only=True):
    """Every desk is ready or parked: the daemon takes triggers."""

    version: str
    desks: int
    desks_parked: int
    duration_ms: int


class DaemonStopping(Event, frozen=True, kw_only=True):
    """The daemon was told to stop: sources are closed, running turns get `drain`."""

    cause: str
    turns_running: int


class DaemonHeartbeat(Event, frozen=True, kw_only=True):
    """The daemon is alive, and how it is; comes every `heartbeat_every`."""

    version: str
    desks_running: int
    desks_paused: int
    desks_parked: int
    turns_running: int
    queue_depth: int
    oldest_trigger_age_ms: int | None = None
    oldest_trigger_desk: str | None = None
    summaries_owed: int
    disk_free_bytes: int | None = None
    clock_state: str
    market_hours: bool
    rss_bytes: int
    events_skipped: int


class ConfigReloaded(Event, frozen=True, kw_only=True):
    """The configuration was read again and is in force."""

    path: str
    added: list[str]
    changed: list[str]
    removed: list[str]


class ConfigRejected(Event, frozen=True, kw_only=True):
    """The configuration was read again and refused whole: the old one stays in force."""

    level: ClassVar[Level] = 'error'

    path: str
    error: str
    hint: str


class LoopBlocked(Event, frozen=True, kw_only=True):
    """Somebody's code holds up everything in the process. Logged at once, by a thread, while it still does."""

    level: ClassVar[Level] = 'error'

    task: str
    blocked_ms: int
    error: str
    hint: str


class DiskLow(Event, frozen=True, kw_only=True):
    """The workspace's file system is nearly full."""

    level: ClassVar[Level] = 'error'

    path: str
    disk_free_bytes: int
    disk_free_percent: float
    hint: str


class ComponentFailed(Event, frozen=True, kw_only=True):
    """A part beside the desks failed; it is started again within its budget."""

    level: ClassVar[Level] = 'error'
    gathered: ClassVar[bool] = True

    component: str
    error_type: str
    error: str
    hint: str = ''


class DateChanged(Event, frozen=True, kw_only=True):
    """The trading date of some desks has changed."""

    desks: int


class ClockStepped(Event, frozen=True, kw_only=True):
    """Somebody set the host's clock. A new date counts once the clock has been steady for a minute."""

    level: ClassVar[Level] = 'warning'

    step_ms: int
    hint: str


class SubscriberLagged(Event, frozen=True, kw_only=True):
    """A subscriber of the bus was slower than the ring is long, and has skipped ahead."""

    level: ClassVar[Level] = 'warning'
    gathered: ClassVar[bool] = True

    subscriber: str
    events_skipped: int


class IndexLagged(Event, frozen=True, kw_only=True):
    """The index for search is behind the files; desks are not held up, and searching reads on where it stands."""

    level: ClassVar[Level] = 'warning'
    gathered: ClassVar[bool] = True

    path: str
    behind_bytes: int
    error: str = ''
    hint: str


class BackendDown(Event, frozen=True, kw_only=True):
    """A backend failed and is left alone for a while; then one call tries it. Told once until it is back."""

    level: ClassVar[Level] = 'warning'

    backend: str
    error_type: str
    error: str
    retry_after_ms: int
    hint: str = ''


class BackendUp(Event, frozen=True, kw_only=True):
    """A backend that had failed has answered again."""

    backend: str
    failures: int


class BackendTested(Event, frozen=True, kw_only=True):
    """A person had a backend make one tiny call, beside all desks; its tokens count for none of them."""

    backend: str
    by: str
    outcome: Literal['answered', 'failed']
    model: str = ''
    duration_ms: int
    first_output_ms: int | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    error_type: str = ''
    error: str = ''
    hint: str = ''


class BackendDisabled(Event, frozen=True, kw_only=True):
    """A person has taken a backend out of use, for every desk and until it is enabled again."""

    level: ClassVar[Level] = 'warning'

    backend: str
    by: str
    reason: str
    hint: str


class BackendEnabled(Event, frozen=True, kw_only=True):
    """A person has taken a backend into use again."""

    backend: str
    by: str
