"""How one event looks: to a person on a terminal in words, in a pipe as `name=value`."""

import json
import re
from collections.abc import Iterator
from typing import Any

import click

from trading_agent.cli.render import IST, STYLES, on_terminal, paint, parse_instant, printable, span

LOUD = ('warning', 'error', 'critical')
_HIDDEN = frozenset(
    {
        'timestamp', 'level', 'event', 'run_id', 'seq', 'desk', 'trading_date', 'trigger_id', 'turn_id',
        'error_type', 'error', 'hint', 'summary_path', 'rss_bytes', 'market_hours',
    }
)  # fmt: skip
"""What is told in another place of the line, or is left to `--json`."""

_WORDS = {
    'duration_ms': 'in {}',
    'wait_ms': 'waited {}',
    'late_ms': 'late by {}',
    'delay_ms': 'again in {}',
    'blocked_ms': 'for {} so far',
    'step_ms': 'by {}',
    'oldest_trigger_age_ms': 'oldest {}',
    'oldest_trigger_desk': 'of {}',
    'text': '{}',
    'answer': '{}',
    'attempt': 'attempt {}',
    'outcome': '{}',
    'reason': '{}',
    'cause': '{}',
    'stage': 'stage {}',
    'quality': '{}',
    'path': '{}',
    'component': '{}',
    'subscriber': '{}',
    'backend': 'by {}',
    'by': 'by {}',
    'source': 'from {}',
    'priority': '{}',
    'purpose': 'for a {}',
    'exchanges': '{} exchanges',
    'queue_depth': 'queue {}',
    'open_triggers': '{} open',
    'text_length': '{} characters',
    'answer_length': '{} characters',
    'length': '{} characters',
    'version': '{}',
    'desks': '{} desks',
    'next_session_id': 'then {}',
    'previous_session_id': 'after {}',
}
"""How a field is said; any other is said with its name."""

_ONLY_WHEN_THERE = frozenset(
    {'desks_parked', 'desks_paused', 'turns_running', 'events_skipped', 'summaries_owed', 'open_triggers'}
)
_LONGEST_ID = 24
_ID_TAIL = 12


def print_event(event: dict[str, Any]) -> None:
    """Writes an event as one line."""
    click.echo(in_words(event) if on_terminal() else in_fields(event))


def in_fields(event: dict[str, Any]) -> str:
    """Returns an event with every field: time, level, desk, name, and what else it says."""
    hidden = ('timestamp', 'level', 'event', 'seq', 'run_id', 'desk')
    told = ' '.join(f'{name}={_value(value)}' for name, value in event.items() if name not in hidden)
    line = f'{_time(event)} {event["level"]:<8} {event.get("desk") or "-"} {event["event"]} '
    return (line + printable(told)).rstrip()


def in_words(event: dict[str, Any]) -> str:
    """Returns an event as a person reads it: when, where, what, and of the rest what matters."""
    level = event['level']
    name = printable(str(event['event'])).replace('_', ' ')
    if level in LOUD:
        name = f'{level.upper()} {name}'
    told = '  '.join(printable(' '.join(part.split())) for part in _parts(event))
    error, hint = (printable(' '.join(str(event.get(key) or '').split())) for key in ('error', 'hint'))
    line = f'{paint(_time(event), dim=True)}  {printable(event.get("desk") or "-"):<10}  '
    line += paint(f'{name:<18}', STYLES.get(level, 'cyan' if level == 'info' else None), bold=level in LOUD)
    if told:
        line += f'  {told}'
    if error:
        line += f'  {paint(error, STYLES.get(level))}'
    if hint and hint not in error:
        line += f' {paint(f"({hint})", dim=True)}'
    return line.rstrip()


def short_id(trigger_id: str) -> str:
    """Returns the part of a long id that tells it from others; `why` takes it too."""
    return trigger_id if len(trigger_id) <= _LONGEST_ID else f'…{trigger_id[-_ID_TAIL:]}'


def _parts(event: dict[str, Any]) -> Iterator[str]:
    if event.get('trigger_id'):
        yield short_id(str(event['trigger_id']))
    for name, value in event.items():
        if name in _HIDDEN or value in ('', None, []) or _says_nothing(name, value, event):
            continue
        if name == 'preferred':
            yield 'not the preferred backend'
        elif name == 'session_id':
            yield str(value)
        else:
            words = _WORDS.get(name, f'{name.removesuffix("_ms").removesuffix("_bytes").replace("_", " ")} {{}}')
            yield words.format(_in_short(name, value))


def _says_nothing(name: str, value: object, event: dict[str, Any]) -> bool:
    """Whether a field is as it nearly always is, or told by another one."""
    return (
        (name in _ONLY_WHEN_THERE and not value)
        or (name == 'session_id' and 'trigger_id' in event)
        or (name, value) in (('attempt', 1), ('preferred', True), ('clock_state', 'steady'))
    )


def _in_short(name: str, value: object) -> str:
    if name.endswith('_ms') and isinstance(value, int):
        return (
            f'{value}ms' if abs(value) < 1000 else f'{value / 1000:.1f}s' if abs(value) < 90_000 else span(value / 1000)
        )
    if name.endswith('_bytes') and isinstance(value, int):
        return f'{value / (1 << 30):.1f} GiB' if value >= 1 << 30 else f'{value / (1 << 20):.0f} MiB'
    if isinstance(value, list):
        return ', '.join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time(event: dict[str, Any]) -> str:
    instant = parse_instant(event['timestamp'])
    return f'{instant.astimezone(IST):%H:%M:%S}' if instant else str(event['timestamp'])


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"=]', text) or not text else text
