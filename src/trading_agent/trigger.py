"""One message that wakes a desk, and what its sender is told.

Priorities, in the order in which a desk takes them: `person`, `timer`, `feed`. Within one, first come first
served.
"""

import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, get_args

import msgspec

from trading_agent.errors import InvalidTrigger

Priority = Literal['person', 'timer', 'feed']
ReceiptStatus = Literal['accepted', 'duplicate', 'refused']
RefusalReason = Literal['unknown_desk', 'too_large', 'invalid', 'expired', 'queue_full', 'storage', 'stopping']

PRIORITIES: tuple[Priority, ...] = get_args(Priority)
MAX_ID_LENGTH = 128
MAX_TEXT_BYTES = 1 << 20
REFUSED_FOR_THE_MOMENT = frozenset[RefusalReason]({'queue_full', 'storage', 'stopping'})


def new_trigger_id() -> str:
    """Returns an id that no other trigger has, and that sorts by the time it was made."""
    return f'{time.time_ns():016x}-{secrets.token_hex(6)}'


def storable(text: str) -> str:
    """Returns `text` as it can be written as UTF-8: a lone surrogate becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')
    return text


@dataclass(frozen=True)
class Trigger:
    """One message that wakes a desk.

    Attributes:
        text: What the desk is told: not blank, and at most 1 MiB as UTF-8 when it is sent (what the keeper puts
            in front of it does not count). A lone surrogate becomes U+FFFD.
        desk: The desk's name.
        id: 1 to 128 printable characters. A second trigger with the same id is a duplicate.
        source: Where it came from, such as `inbox`.
        priority: `person`, `timer` or `feed`.
        received_at: When it came, in UTC.
        not_before: Not run before this instant, or None.
        expires_at: Not run from this instant on, but closed as `stale`; or None.

    Raises:
        InvalidTrigger: One of these rules is broken, or a time has no zone.
    """

    text: str
    desk: str
    id: str = field(default_factory=new_trigger_id)
    source: str = 'api'
    priority: Priority = 'feed'
    received_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    not_before: datetime | None = None
    expires_at: datetime | None = None

    def __post_init__(self) -> None:
        for name in ('text', 'desk', 'id', 'source'):
            if not isinstance(getattr(self, name), str):
                raise InvalidTrigger(f"a trigger's {name} is text, not {type(getattr(self, name)).__name__}")
        for name in ('text', 'desk', 'source'):
            object.__setattr__(self, name, storable(getattr(self, name)))
        if not self.text.strip():
            raise InvalidTrigger("a trigger's text is blank", 'say what the desk is to know or to do')
        if not 1 <= len(self.id) <= MAX_ID_LENGTH or not self.id.isprintable():
            raise InvalidTrigger(f"a trigger's id is 1 to {MAX_ID_LENGTH} printable characters, not {self.id[:200]!r}")
        if self.priority not in PRIORITIES:
            raise InvalidTrigger(f"a trigger's priority is one of {', '.join(PRIORITIES)}, not {self.priority!r}")
        for name in ('received_at', 'not_before', 'expires_at'):
            object.__setattr__(self, name, _in_utc(name, getattr(self, name)))


def _in_utc(name: str, instant: datetime | None) -> datetime | None:
    if instant is None and name != 'received_at':
        return None
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise InvalidTrigger(
            f"a trigger's {name} is a time with a zone, not {instant!r}",
            'write it like 2026-10-19T15:10:00+05:30',
        )
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidTrigger(f"a trigger's {name} is out of range: {instant!r}") from None


class Receipt(msgspec.Struct, frozen=True):
    """What the sender of a trigger is told, once it is durable or turned away.

    Attributes:
        id: The trigger's id.
        desk: The desk it was sent to.
        status: `accepted`, `duplicate` (it was accepted before: nothing to do) or `refused`.
        reason: Why it was refused: for good (`unknown_desk`, `too_large`, `invalid`, `expired`), or for the moment
            (`queue_full`, `storage`, `stopping`: send it again later). None when it was not.
    """

    id: str
    desk: str
    status: ReceiptStatus
    reason: RefusalReason | None = None

    @property
    def try_again(self) -> bool:
        """Whether the refusal is for the moment, so that the source keeps the original."""
        return self.reason in REFUSED_FOR_THE_MOMENT
