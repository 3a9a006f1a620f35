"""What every event carries, and how the bus keeps one."""

import re
from datetime import date, datetime
from typing import ClassVar, Literal

import msgspec

Level = Literal['debug', 'info', 'warning', 'error', 'critical']
CONTENT_FIELDS = frozenset({'text', 'answer'})
"""What was said: logged as `text_length` and `answer_length`, unless `log_content = true`."""


def _tag(class_name: str) -> str:
    return re.sub(r'(?<!^)(?=[A-Z])', '_', class_name).lower()


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field='event', tag=_tag, omit_defaults=True):
    """What every event carries, where it is about a desk and its session."""

    level: ClassVar[Level] = 'info'
    logged: ClassVar[bool] = True
    gathered: ClassVar[bool] = False

    desk: str | None = None
    session_id: str | None = None
    trading_date: date | None = None


class Stamped(msgspec.Struct, frozen=True):
    """An event as the bus keeps it.

    Attributes:
        seq: Its number in this run, from 1 and without gaps; an event that is not logged has that of the one before.
        timestamp: When it was published, by the host's clock, in UTC.
        event: The event.
    """

    seq: int
    timestamp: datetime
    event: Event
