"""How long a server asks to be left alone: the Retry-After header (RFC 9110, 10.2.3) and its relatives."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 3600.0
"""In seconds: whoever asks for more is asked again after this all the same."""


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Returns after how many seconds, 0 to 3600, a server may be asked again; None where it does not say.

    `retry-after-ms`, which the model APIs add, goes before `retry-after`. A date counts from the response's own
    `date`, so that it does not matter whether the two clocks agree.

    Args:
        headers: The response's headers, their names in lower case or a mapping that does not mind.
        now: The time, with a zone, where the response has no date; None for the present.
    """
    seconds = _number(headers.get('retry-after-ms'))
    if seconds is not None:
        seconds /= 1000
    else:
        told = headers.get('retry-after')
        seconds = _number(told)
        at = _instant(told) if seconds is None else None
        if at is not None:
            sent = _instant(headers.get('date')) or now or datetime.now(UTC)
            seconds = max(0.0, (at - sent).total_seconds())
    return None if seconds is None or seconds < 0 else min(seconds, LONGEST)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or '')
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _instant(text: str | None) -> datetime | None:
    try:
        instant = parsedate_to_datetime(text or '')
    except (TypeError, ValueError, OverflowError):
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
