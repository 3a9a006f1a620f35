"""How `status` looks to people: a table read in three seconds, and under it what is wrong and what mends it."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click

from trading_agent.cli.render import (
    IST,
    STYLES,
    age,
    on_terminal,
    paint,
    parse_instant,
    printable,
    short_count,
    terminal_width,
    wrapped,
)

GAP = 2


class Column(NamedTuple):
    """One column of the table.

    Attributes:
        heading: What stands above it.
        spare: Which columns are left out first where the terminal is narrow, from 1; 0 for never.
        shrinks: Which columns are made narrower first, from 1; 0 for never.
        least: How narrow it may be made.
    """

    heading: str
    spare: int = 0
    shrinks: int = 0
    least: int = 0


COLUMNS = (
    Column('DESK', shrinks=2, least=12),
    Column('STATE'),
    Column('QUEUE'),
    Column('TURN', shrinks=3, least=10),
    Column('LAST', spare=4),
    Column('BACKENDS', spare=5, shrinks=1, least=10),
    Column('SESSION', spare=2),
    Column('EXCH.', spare=1),
    Column('TOKENS', spare=3),
    Column('NEXT DAY IST', spare=6),
)
_SPARED_BEFORE_SHRINKING = 3
_ONLY_WHEN_THERE = frozenset({'TOKENS'})
"""Columns that are left out where no desk has anything in them."""


def print_status(status: dict[str, Any]) -> None:
    """Writes the daemon's status: a line about the daemon, a row for each desk, and what is wrong with which."""
    daemon, clock = status['daemon'], status['clock']
    now = parse_instant(clock['now_ist']) or datetime.now(IST)
    _print_whole(
        f'trading-agent {daemon["version"]}, pid {daemon["pid"]}, up {age(daemon["started_at"], now)}; '
        f'{now.astimezone(IST):%Y-%m-%d %H:%M:%S} IST, clock {clock["state"]}'
    )
    desks = status['desks']
    if not desks:
        click.echo('no desks')
        return
    if len(desks) > 1:
        _print_whole(_in_short(desks))
    rows = [[printable(cell) for cell in desk_row(desk, now)] for desk in desks]
    for line in table_lines(rows, terminal_width() if on_terminal() else None):
        click.echo(line)
    _print_reasons(desks)


def _print_whole(text: str) -> None:
    """Writes what is about the whole daemon; what an operator should see in it has its colour."""
    for line in wrapped(text, terminal_width()) if on_terminal() else [text]:
        click.echo(re.sub(r'\d+ (parked|paused)|stepped', _striking, line))


def _striking(found: re.Match[str]) -> str:
    return paint(found[0], STYLES.get(found[1] or 'warning'), bold=True)


def _in_short(desks: Sequence[dict[str, Any]]) -> str:
    states = [desk['state'] for desk in desks]
    told = [
        f'{states.count(state)} {state}' for state in ('parked', 'paused', 'starting', 'running') if state in states
    ]
    queued = sum(desk['queue'] for desk in desks)
    return f'{len(desks)} desks: {", ".join(told)}; {queued} trigger{"" if queued == 1 else "s"} open'


def desk_row(desk: dict[str, Any], now: datetime) -> list[str]:
    """Returns a desk's cells, one for each of `COLUMNS`."""
    turn, queue, boundary = desk['turn'], str(desk['queue']), parse_instant(desk['next_boundary'])
    if desk['queue'] and desk['oldest_trigger_at']:
        queue += f', oldest {age(desk["oldest_trigger_at"], now)}'
    return [
        desk['name'],
        desk['state'],
        queue,
        _turn(turn, now) if turn else '-',
        _last(desk, now) if desk['last_turn_at'] else '-',
        ', '.join(
            backend['name'] + ('' if backend['state'] == 'up' else f' {backend["state"]}')
            for backend in desk['backends']
        )
        or '-',
        desk['session_id'] or '-',
        str(desk['exchanges']),
        _tokens(desk.get('usage') or {}),
        f'{boundary.astimezone(IST):%d %b %H:%M}' if boundary else '-',
    ]


def _turn(turn: dict[str, Any], now: datetime) -> str:
    """Returns who answers for how long, and the tokens that it has counted so far."""
    used = sum((turn.get('usage') or {}).values())
    tokens = f', {short_count(used)} tokens' if used else ''
    return f'{turn["backend"] or "starting"} {age(turn["started_at"], now)}{tokens}'


def _last(desk: dict[str, Any], now: datetime) -> str:
    """Returns when the last answer was given, and by whom where that was not the preferred backend."""
    by = f' by {desk["last_backend"]}' if desk.get('last_preferred') is False else ''
    return f'{age(desk["last_turn_at"], now)} ago{by}'


def _tokens(usage: dict[str, dict[str, int]]) -> str:
    """Returns the tokens of the session, and of its day where that has had another one; empty where there are none."""
    session, day = (sum(usage.get(which, {}).values()) for which in ('session', 'day'))
    if session == day:
        return short_count(day) if day else ''
    return f'{short_count(session)}, day {short_count(day)}'


def table_lines(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Returns the lines of the table.

    Args:
        rows: The cells of each desk.
        width: The terminal's columns, which no line exceeds as long as that can be: cells are cut, then columns left
            out. None for as wide as it comes.
    """
    widths = [
        max(map(cells_of, (column.heading, *cells))) if any(cells) or column.heading not in _ONLY_WHEN_THERE else 0
        for column, *cells in zip(COLUMNS, *rows, strict=True)
    ]
    if width is not None:
        widths = _fitted(widths, width)
    shown = [number for number, columns in enumerate(widths) if columns]
    heading = [paint(_cut(COLUMNS[number].heading, widths[number]), bold=True) for number in shown]
    lines = [(' ' * GAP).join(heading).rstrip()]
    for row in rows:
        cells = [_coloured(number, _cut(row[number], widths[number]), row[1]) for number in shown]
        lines.append((' ' * GAP).join(cells).rstrip())
    return lines


def _fitted(widths: Sequence[int], width: int) -> list[int]:
    """Makes columns narrower and leaves some out, as far as is needed; a column of 0 is left out."""
    fitted = list(widths)

    def excess() -> int:
        return sum(fitted) + GAP * (sum(map(bool, fitted)) - 1) - width

    spares = _in_order(column.spare for column in COLUMNS)
    for number in spares[:_SPARED_BEFORE_SHRINKING]:
        if excess() > 0:
            fitted[number] = 0
    for number in _in_order(column.shrinks for column in COLUMNS):
        if excess() > 0 and fitted[number] > COLUMNS[number].least:
            fitted[number] = max(COLUMNS[number].least, fitted[number] - excess())
    for number in spares[_SPARED_BEFORE_SHRINKING:]:
        if excess() > 0:
            fitted[number] = 0
    return fitted


def _in_order(ranks: Iterable[int]) -> list[int]:
    """Returns the numbers of the columns that have a rank, the lowest rank first."""
    return [number for rank, number in sorted((rank, number) for number, rank in enumerate(ranks)) if rank]


def cells_of(text: str) -> int:
    """Returns how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = (2 if unicodedata.east_asian_width(char) in 'WF' else 1 for char in text if not unicodedata.combining(char))
    return sum(wide)


def _cut(text: str, width: int) -> str:
    """Returns text that takes exactly a width: filled up with spaces, or cut with an ellipsis."""
    if cells_of(text) <= width:
        return text + ' ' * (width - cells_of(text))
    while cells_of(text) >= width and text:
        text = text[:-1]
    return text + '…' + ' ' * (width - 1 - cells_of(text))


def _coloured(number: int, cell: str, state: str) -> str:
    if COLUMNS[number].heading == 'STATE':
        return paint(cell, STYLES.get(state), bold=state == 'parked')
    if COLUMNS[number].heading == 'BACKENDS':
        return re.sub(r'[^, ]+ (fail|disab)[a-z]*', _unwell, cell)
    if COLUMNS[number].heading == 'LAST' and ' by ' in cell:
        return paint(cell, 'yellow')
    return cell


def _unwell(found: re.Match[str]) -> str:
    return paint(found[0], STYLES['failing' if found[1] == 'fail' else 'disabled'])


def _print_reasons(desks: Sequence[dict[str, Any]]) -> None:
    """Writes what is wrong with which desk, and below it with which backend."""
    told = [desk for desk in desks if desk['reason']]
    backends = {backend['name']: backend for desk in desks for backend in desk['backends'] if backend.get('reason')}
    told += [{**backend, 'name': f'backend {name}'} for name, backend in backends.items()]
    if not on_terminal():
        for desk in told:
            click.echo(printable(f'{desk["name"]}: {" ".join(desk["reason"].split())}'))
        return
    if told:
        click.echo()
    for desk in told:
        name = printable(desk['name'])
        first, *others = wrapped(printable(f'{name}: {desk["reason"]}'), terminal_width())
        click.echo(paint(name, STYLES.get(desk['state'], 'yellow'), bold=True) + _commands(first.removeprefix(name)))
        for line in others:
            click.echo(_commands(line))


def _commands(line: str) -> str:
    return re.sub(r'`[^`]+`', lambda command: paint(command[0], bold=True), line)
