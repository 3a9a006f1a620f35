"""Spans of time, sizes and times of the day, as people write them."""

import re
from datetime import timedelta

_UNITS = {'ms': 0.001, 's': 1.0, 'm': 60.0, 'h': 3600.0}
_SIZES = {'B': 1, 'KiB': 1 << 10, 'MiB': 1 << 20, 'GiB': 1 << 30}


class Duration(float):
    """A span of time in seconds, written like `30s`."""

    @classmethod
    def parse(cls, text: str) -> 'Duration':
        """Reads `500ms`, `30s`, `10m` or `2h`.

        Raises:
            ValueError: It is written another way.
        """
        match = re.fullmatch(r'(\d+(?:\.\d+)?)(ms|s|m|h)', text.strip())
        if match is None:
            raise ValueError(f'a duration is written like 500ms, 30s, 10m or 2h, not {text!r}')
        return cls(float(match[1]) * _UNITS[match[2]])


class Size(int):
    """A number of bytes, written like `64KiB`."""

    @classmethod
    def parse(cls, text: str) -> 'Size':
        """Reads `512B`, `64KiB`, `1MiB` or `2GiB`.

        Raises:
            ValueError: It is written another way.
        """
        match = re.fullmatch(r'(\d+)(B|KiB|MiB|GiB)', text.strip())
        if match is None:
            raise ValueError(f'a size is written like 64KiB or 1MiB, not {text!r}')
        return cls(int(match[1]) * _SIZES[match[2]])


class TimeOfDay(timedelta):
    """A time of the day in IST as the span since midnight, written like `05:30`."""

    @classmethod
    def parse(cls, text: str) -> 'TimeOfDay':
        """Reads `00:00` to `11:59`.

        Raises:
            ValueError: It is written another way, or later in the day.
        """
        match = re.fullmatch(r'([01]\d):([0-5]\d)', text)
        if match is None or int(match[1]) > 11:
            raise ValueError(f'a rollover time is written like 05:30, from 00:00 to 11:59, not {text!r}')
        return cls(hours=int(match[1]), minutes=int(match[2]))


EXAMPLES: dict[type, str] = {Duration: '30s', Size: '64KiB', TimeOfDay: '05:30'}
"""How a value of each kind is written."""
