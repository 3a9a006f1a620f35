"""How results look to people: times in India, ages, colours, tables. Rich is used on a terminal alone."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import MAXYEAR, datetime, timedelta, timezone

import click

IST = timezone(timedelta(hours=5, minutes=30), 'IST')
"""India's time; `trading_agent.clock` has the zone itself, but takes long to import."""

STYLES = {
    'running': 'green',
    'starting': 'cyan',
    'paused': 'yellow',
    'parked': 'red',
    'up': 'green',
    'failing': 'red',
    'disabled': 'yellow',
    'debug': 'bright_black',
    'warning': 'yellow',
    'error': 'red',
    'critical': 'red',
}
"""The colour of each state and level that has one."""

_KINDS_OF_TOKENS = {
    'input_tokens': 'in',
    'output_tokens': 'out',
    'cache_read_tokens': 'from a cache',
    'cache_write_tokens': 'into a cache',
}
_CONTROL = re.compile(r'[\x00-\x08\x0b-\x1f\x7f-\x9f]')
_COMMAND = re.compile(r'`[^`]{1,60}`')
_FIXED_SPACE = '\xa0'


def printable(text: str) -> str:
    """Returns text without control characters, so that what a model says cannot command the terminal."""
    return _CONTROL.sub('\ufffd', text.replace('\r\n', '\n'))


def on_one_line(text: str) -> str:
    """Returns printable text without line breaks, for what a line of its own is about, such as a file's name."""
    return printable(text).replace('\n', '\ufffd')


def print_json(value: object) -> None:
    """Writes a result for programs: JSON on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def parse_instant(text: str | None) -> datetime | None:
    """Reads a stored instant; None where it is none, has no zone, or cannot be told in every other zone."""
    try:
        instant = datetime.fromisoformat(text or '')
    except ValueError:
        return None
    return None if instant.utcoffset() is None or not 1 < instant.year < MAXYEAR else instant


def india_time(text: str | None, now: datetime | None = None) -> str:
    """Returns a stored instant as the time in India, with its date where that is not the date of `now`.

    What cannot be read comes back as it is.
    """
    instant = parse_instant(text)
    if instant is None:
        return printable(text or '-')
    instant = instant.astimezone(IST)
    same_day = now is not None and instant.date() == now.astimezone(IST).date()
    return f'{instant:%H:%M:%S}' if same_day else f'{instant:%Y-%m-%d %H:%M:%S}'


def age(text: str | None, now: datetime) -> str:
    """Returns how long before `now` a stored instant was, in one unit, such as `3m`."""
    instant = parse_instant(text)
    return '-' if instant is None else span((now - instant).total_seconds())


def span(seconds: float) -> str:
    """Returns a span of time in the unit that says most in two digits, such as `45s`, `89m`, `35h`, `2d`."""
    whole = max(0, int(seconds))
    if whole < 90:
        return f'{whole}s'
    if whole < 90 * 60:
        return f'{whole // 60}m'
    if whole < 36 * 3600:
        return f'{whole // 3600}h'
    return f'{whole // 86400}d'


def usage_words(counts: Mapping[str, int] | None) -> str:
    """Returns tokens in words, such as `1,200 tokens in, 300 out`; empty where there are none.

    Args:
        counts: How many of each kind, by the names that `trading_agent.messages.Usage` has; others are told as well.
    """
    told: list[str] = []
    for kind, count in (counts or {}).items():
        if count:
            unit = '' if told else ' token' if count == 1 else ' tokens'
            told.append(f'{count:,}{unit} {_KINDS_OF_TOKENS.get(kind) or _name_of_kind(kind)}')
    return ', '.join(told)


def triggers_words(ids: Sequence[str]) -> str:
    """Returns which triggers a turn answers, such as `trigger a and 2 more`; empty where none is known."""
    more = f' and {len(ids) - 1} more' if len(ids) > 1 else ''
    return f'trigger {ids[0]}{more}' if ids else ''


def _name_of_kind(kind: str) -> str:
    return printable(kind.removesuffix('_tokens').replace('_', ' '))


def short_count(count: int) -> str:
    """Returns a number in at most four digits and a letter, such as `950`, `12.3k` or `4.5M`."""
    for unit, letter in ((1_000_000, 'M'), (1000, 'k')):
        if count >= unit:
            return f'{count / unit:.1f}'.removesuffix('.0') + letter
    return str(count)


def size_of(count: int) -> str:
    """Returns a number of bytes in words, such as `12.3 kB`."""
    for unit, name in ((10**9, 'GB'), (10**6, 'MB'), (10**3, 'kB')):
        if count >= unit:
            return f'{count / unit:.1f} {name}'
    return f'{count} bytes' if count != 1 else '1 byte'


def plural(count: int, noun: str) -> str:
    """Returns a number with its noun, such as `1 exchange` or `1,200 exchanges`."""
    return f'{count:,} {noun}{"" if count == 1 else "s"}'


def span_of(seconds: float) -> str:
    """Returns a span of time, in milliseconds or with a fraction where it is short."""
    if seconds < 1:
        return f'{max(0, round(seconds * 1000))}ms'
    return f'{seconds:.1f}s' if seconds < 10 else span(seconds)


def on_terminal() -> bool:
    """Returns whether a person reads stdout on a terminal."""
    return sys.stdout.isatty()


def paint(text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
    """Returns text in a colour, on a terminal that is to have colours (https://no-color.org); else as it is."""
    if not on_terminal() or os.environ.get('NO_COLOR') or os.environ.get('TERM') == 'dumb':
        return text
    return click.style(text, fg=colour, bold=bold or None, dim=dim or None)


def terminal_width() -> int:
    """Returns how many columns there are to write in."""
    import shutil

    return max(20, shutil.get_terminal_size().columns)


def wrapped(text: str, width: int, indent: str = '    ') -> list[str]:
    """Returns text as lines of a width, those after the first one indented; a command in backticks is not split."""
    import textwrap

    kept = _COMMAND.sub(lambda command: command[0].replace(' ', _FIXED_SPACE), ' '.join(text.split()))
    lines = textwrap.wrap(kept, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_FIXED_SPACE, ' ') for line in lines]


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], coloured: int | None = None) -> None:
    """Writes a table: with Rich on a terminal, else in plain columns without colour.

    Args:
        headings: The columns.
        rows: The cells.
        coloured: The column whose cells are coloured by `STYLES`, or None.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headings, cells, coloured)
        return
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for row in [list(headings), *cells]:
        click.echo('  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(headings: Sequence[str], rows: Sequence[Sequence[str]], coloured: int | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style='bold')
    for heading in headings:
        table.add_column(heading, overflow='fold', no_wrap=heading in {'SESSION', 'ID'})
    for row in rows:
        table.add_row(
            *(Text(cell, style=STYLES.get(cell, '') if at == coloured else '') for at, cell in enumerate(row))
        )
    Console(highlight=False).print(table)
