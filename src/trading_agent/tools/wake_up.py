"""When a desk asks to be woken: what it may ask for, and the trigger that comes of it."""

import hashlib
import re
from datetime import UTC, datetime, timedelta

from trading_agent.clock import INDIA
from trading_agent.tools.outcome import ToolError
from trading_agent.trigger import Trigger

SOURCE = 'wake_me'
FURTHEST = timedelta(days=30)
MOST_OPEN = 20
LONGEST_TEXT = 2000  # characters

_TIME_OF_DAY = re.compile(r'([01]?\d|2[0-3]):([0-5]\d)')


def wake_up(desk: str, text: str, instant: datetime, now: datetime, key: str) -> Trigger:
    """Returns the trigger that wakes a desk.

    Args:
        desk: The desk's name.
        text: What it wants to be told then.
        instant: When.
        now: The instant it is.
        key: What makes it the same wake-up as another one: with an equal key it is a duplicate.

    Raises:
        ToolError: The text is blank or too long, or the instant in the past or too far away.
    """
    if not text.strip():
        raise ToolError('say in `text` what you want to be told then')
    if len(text) > LONGEST_TEXT:
        raise ToolError(f'the text has {len(text)} characters, {LONGEST_TEXT} are allowed')
    if instant <= now:
        raise ToolError(f'{shown(instant)} is in the past: it is {shown(now)}')
    if instant > now + FURTHEST:
        raise ToolError(f'{shown(instant)} is more than {FURTHEST.days} days ahead')
    return Trigger(
        # Else it would read like the words of a person.
        text=f'You asked on {shown(now)} to be woken now, and to be told: {text}',
        desk=desk,
        id=f'wake-{hashlib.sha256(key.encode(errors="replace")).hexdigest()[:32]}',
        source=SOURCE,
        priority='timer',
        received_at=now,
        not_before=instant,
    )


def instant_of(at: str | None, in_minutes: int | None, now: datetime) -> datetime:
    """Returns the instant that a desk means.

    Args:
        at: A time of the day, the next such in India; or a date and time, in India where it names no zone.
        in_minutes: From now.
        now: The instant it is.

    Raises:
        ToolError: Neither is given, or both, or it is no time.
    """
    if (at is None) == (in_minutes is None):
        raise ToolError('say either `at` or `in_minutes`')
    try:
        if in_minutes is not None:
            return now + timedelta(minutes=in_minutes)
        clock = _TIME_OF_DAY.fullmatch((at or '').strip())
        if clock is None:
            instant = datetime.fromisoformat((at or '').strip())
            # By way of India, where the last hours of the year 9999 are none.
            return (instant if instant.tzinfo else instant.replace(tzinfo=INDIA)).astimezone(INDIA).astimezone(UTC)
        today = now.astimezone(INDIA).replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        return (today if today > now else today + timedelta(days=1)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ToolError(
            f'{at!r} is no time: write it like 14:30, or 2026-10-19T14:30; it is in India (IST)'
            if in_minutes is None
            else f'{in_minutes} minutes are too many'
        ) from None


def shown(instant: datetime) -> str:
    """Returns an instant as a desk is told of it, such as `Monday 2026-10-19 14:30 IST`."""
    return f'{instant.astimezone(INDIA):%A %Y-%m-%d %H:%M} IST'
