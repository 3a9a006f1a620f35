"""Days as people name them on the command line."""

import re
from datetime import UTC, date, datetime, timedelta

import click

from trading_agent.cli.render import IST
from trading_agent.memory.session_state import parse_date

_AGO = re.compile(r'(\d{1,5})d', re.ASCII)


def today_in_india() -> date:
    """Returns today's date in India, whatever the host's zone."""
    return datetime.now(UTC).astimezone(IST).date()


def parse_day(text: str, today: date) -> date:
    """Reads a day: `2026-10-19`, `today`, `yesterday`, or `7d` for seven days before today.

    Raises:
        ValueError: It is written another way, or there is no such day.
    """
    word = text.strip().lower()
    ago = _AGO.fullmatch({'today': '0d', 'yesterday': '1d'}.get(word, word))
    try:
        return today - timedelta(days=int(ago[1])) if ago else parse_date(word)
    except (ValueError, OverflowError):
        raise ValueError(
            f'write a day as 2026-10-19, today, yesterday or 7d (days before today), not {text!r}'
        ) from None


class Day(click.ParamType[date]):
    """A day as an option's value."""

    name = 'day'

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> date:
        """Reads it; a mistake is a usage error."""
        if isinstance(value, date):
            return value
        try:
            return parse_day(str(value), today_in_india())
        except ValueError as error:
            self.fail(str(error), param, ctx)
