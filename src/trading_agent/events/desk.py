"""What happens in one desk: its sessions, its triggers, its turns."""

from datetime import date
from typing import ClassVar, Literal, Self

from trading_agent.errors import StorageError
from trading_agent.events.base import Event, Level
from trading_agent.trigger import storable

SessionReason = Literal['first', 'resumed', 'daily_rollover', 'manual', 'clock_corrected']
SummaryQuality = Literal['full', 'degraded', 'backfilled']
Outcome = Literal['answered', 'failed', 'stale', 'cancelled', 'quarantined', 'unknown']


class DeskStarted(Event, frozen=True, kw_only=True):
    """A desk has its session and takes triggers."""

    open_triggers: int
    duration_ms: int


class DeskRestarted(Event, frozen=True, kw_only=True):
    """A desk failed and is started again after a pause."""

    level: ClassVar[Level] = 'warning'

    restarts: int
    delay_ms: int
    error_type: str
    error: str
    hint: str = ''


class DeskParked(Event, frozen=True, kw_only=True):
    """A desk has stopped until a person mends what is wrong. It still accepts triggers where it can store them."""

    level: ClassVar[Level] = 'error'

    error_type: str
    error: str
    hint: str


class DeskPaused(Event, frozen=True, kw_only=True):
    """A person holds the desk: nothing runs, triggers are still accepted and go stale by their own expiry."""

    level: ClassVar[Level] = 'warning'

    by: str
    reason: str
    hint: str


class DeskResumed(Event, frozen=True, kw_only=True):
    """A person lets a paused or parked desk go on."""

    by: str
    queue_depth: int


class SessionStarted(Event, frozen=True, kw_only=True):
    """A desk's session begins or goes on. At least once for each session; its key is `session_id`."""

    reason: SessionReason
    previous_session_id: str | None = None
    summary_path: str | None = None


class SessionEnded(Event, frozen=True, kw_only=True):
    """A session takes no more exchanges."""

    exchanges: int
    next_session_id: str
    journal_digest: str = ''


class RolloverStarted(Event, frozen=True, kw_only=True):
    """The rollover from one session to the next has begun, or goes on after a restart."""

    reason: SessionReason
    stage: str
    exchanges: int


class RolloverFinished(Event, frozen=True, kw_only=True):
    """The rollover is done: the new session is announced."""

    reason: SessionReason
    next_session_id: str
    duration_ms: int


class RolloverLate(Event, frozen=True, kw_only=True):
    """A date boundary passed two minutes ago, and the desk is still in the old session."""

    level: ClassVar[Level] = 'error'

    stage: str
    late_ms: int
    hint: str


class SummaryWritten(Event, frozen=True, kw_only=True):
    """A session's summary is on disk."""

    quality: SummaryQuality
    summary_path: str
    length: int
    backend: str | None = None
    unproved: int = 0


class MemoryUpdated(Event, frozen=True, kw_only=True):
    """Memory.md was replaced; the old text is in `memory_history/`."""

    length: int
    previous_length: int


class MemoryRefused(Event, frozen=True, kw_only=True):
    """A new Memory.md was not taken: the old one stays."""

    level: ClassVar[Level] = 'warning'

    error: str
    hint: str


class SkillsReviewed(Event, frozen=True, kw_only=True):
    """The skill curator has looked at the day, or failed at it, which holds up nothing."""

    outcome: Literal['done', 'failed']
    proposed: int = 0
    applied: int = 0
    refused: int = 0
    error_type: str | None = None
    error: str | None = None


class TriggerAccepted(Event, frozen=True, kw_only=True):
    """A trigger is durable: it will be closed with an outcome."""

    trigger_id: str
    source: str
    priority: str
    text: str
    queue_depth: int


class TriggerRefused(Event, frozen=True, kw_only=True):
    """A trigger was turned away: nothing of it is kept."""

    level: ClassVar[Level] = 'warning'
    gathered: ClassVar[bool] = True

    trigger_id: str
    source: str
    reason: str
    error: str = ''
    hint: str = ''


class TriggerClosed(Event, frozen=True, kw_only=True):
    """A trigger has its outcome."""

    trigger_id: str
    outcome: Outcome
    by: str = ''
    error: str = ''
    hint: str = ''


class ClockBehind(Event, frozen=True, kw_only=True):
    """The trading date is before the session's. Nothing changes until it has been so for ten steady minutes."""

    level: ClassVar[Level] = 'warning'

    clock_date: date
    hint: str


class StoreDamaged(Event, frozen=True, kw_only=True):
    """A part of a file cannot be read. It stays where it is; what is readable is used."""

    level: ClassVar[Level] = 'error'
    gathered: ClassVar[bool] = True

    path: str
    line: int | None = None
    error: str
    hint: str


class WriteFailed(Event, frozen=True, kw_only=True):
    """Something could not be written or read. Nothing was acknowledged; it is tried again."""

    level: ClassVar[Level] = 'error'
    gathered: ClassVar[bool] = True

    path: str
    operation: str
    error: str
    hint: str

    @classmethod
    def of(
        cls,
        error: StorageError,
        desk: str | None = None,
        *,
        session_id: str | None = None,
        trading_date: date | None = None,
    ) -> Self:
        """Returns the event that tells of a storage error."""
        return cls(
            desk=desk,
            session_id=session_id,
            trading_date=trading_date,
            path=storable(str(error.path)),
            operation=error.operation,
            error=storable(str(error)),
            hint=error.hint,
        )
