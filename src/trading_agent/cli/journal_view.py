"""How a journal looks to people: turn by turn, a line for each thing that happened."""

import textwrap
from collections.abc import Iterable, Iterator

import click
import msgspec

from trading_agent.cli.journal_reading import Happening, JournaledLines, Line, What, turns_in
from trading_agent.cli.render import (
    india_time,
    on_terminal,
    paint,
    parse_instant,
    plural,
    printable,
    span_of,
    terminal_width,
    usage_words,
)
from trading_agent.conversation.records import TurnCut, TurnEnded
from trading_agent.messages import Usage

CAUSES = {
    'crash': 'a crash',
    'stop': 'a stop of the daemon',
    'restart': 'a restart of the desk',
    'pause': '`pause --now`',
    'cancelled': '`cancel`',
    'no_backend': 'the last backend that could have answered',
    'dropped': 'who had asked: the answer was not waited for',
    'unknown': 'a failure after calls that may have had effects',
}
"""By what a turn was interrupted, in words."""

_LABELS: dict[What, str] = {
    'told': 'told',
    'said': 'said',
    'said_in_vain': 'said so far',
    'asked': 'asked',
    'tool_called': 'tool call',
    'tool_result': 'tool result',
    'tool_failed': 'tool failed',
    'digested': 'digest',
    'backend_failed': 'error',
    'answered': 'answered',
    'failed': 'FAILED',
    'interrupted': 'INTERRUPTED',
}
_COLOURS = {
    'tool_called': 'cyan',
    'tool_failed': 'red',
    'backend_failed': 'red',
    'failed': 'red',
    'interrupted': 'yellow',
    'answered': 'green',
}
_LABEL = 12
_INDENT = 2 + len('00:00:00  ') + _LABEL
_NARROWEST = 30


def print_journal(session_id: str, lines: Iterable[Line], *, whole: bool) -> None:
    """Writes a session event by event.

    Args:
        session_id: The session.
        lines: Its records, oldest first.
        whole: Whether these are all of them, so that the session's tokens can be told.
    """
    width = terminal_width() if on_terminal() else None
    turns, reviews, cut, used = 0, 0, 0, Usage()
    waiting: JournaledLines | None = None
    click.echo(f'journal of session {session_id}' + ('' if whole else ', its end'))
    for turn in turns_in(lines):
        if waiting is not None:
            _print_turn(waiting, width, last=False)
        waiting = turn
        if turn.begun is not None:
            turns, reviews = turns + (turn.begun.purpose == 'turn'), reviews + (turn.begun.purpose == 'review')
            cut += isinstance(turn.end, TurnCut)
        used += turn.usage
    if waiting is not None:
        _print_turn(waiting, width, last=True)
    told = [plural(turns, 'turn')]
    told += [f'{cut:,} of them interrupted'] if cut else []
    told += [f'{plural(reviews, "question")} beside the session'] if reviews else []
    told += [usage_words(msgspec.to_builtins(used))] if used else []
    click.echo(f'\n{"in all" if whole else "shown"}: {", ".join(told)}')


def _print_turn(turn: JournaledLines, width: int | None, *, last: bool) -> None:
    lines = ['', _heading(turn)]
    for happening in turn.happenings():
        lines += _lines_of(happening, turn, width)
    if turn.begun is not None and turn.end is None:
        how = 'it runs, or was cut off a moment ago' if last else 'it was cut off'
        lines.append(f'  {"":10}' + paint(f'{"NO END":<{_LABEL}}', 'yellow', bold=True) + how)
    click.echo('\n'.join(lines))


def _heading(turn: JournaledLines) -> str:
    begun, end = turn.begun, turn.end
    if begun is None:
        turn_id = turn.lines[0].record.turn_id
        return paint(f'turn {printable(turn_id)}, its beginning is missing' if turn_id else 'saved alone', bold=True)
    attempt = f', attempt {begun.attempt}' if begun.attempt > 1 else ''
    what = (
        f'turn of {begun.trigger_id or begun.turn_id}{attempt}'
        if begun.purpose == 'turn'
        else 'a question beside the session'
    )
    heading = paint(printable(f'{india_time(begun.timestamp)} IST, {what}'), bold=True)
    if isinstance(end, TurnCut):
        heading += ', ' + paint('INTERRUPTED', 'yellow', bold=True)
    elif isinstance(end, TurnEnded) and end.outcome == 'failed':
        heading += ', ' + paint('FAILED', 'red', bold=True)
    return heading


def _lines_of(happening: Happening, turn: JournaledLines, width: int | None) -> Iterator[str]:
    """Yields what happened, under the time of the day; on a terminal in lines of its width."""
    label, text = described(happening, turn)
    instant = parse_instant(happening.at)
    clock = india_time(happening.at, instant) if instant else '-'
    first = f'  {paint(f"{clock:<8}", dim=True)}  ' + paint(f'{label:<{_LABEL}}', _COLOURS.get(happening.what))
    for number, line in enumerate(_wrapped(printable(text), width)):
        shown = paint(line, dim=True) if happening.what == 'said_in_vain' else line
        yield ((first if not number else ' ' * _INDENT) + shown).rstrip()


def described(happening: Happening, turn: JournaledLines) -> tuple[str, str]:
    """Returns what happened in a word or two, and the text that says more."""
    tool, backend = happening.tool, happening.backend
    match happening.what:
        case 'said' if turn.begun is not None and turn.begun.purpose == 'review':
            text = _fields(happening.text)
        case 'told' | 'said' | 'said_in_vain':
            text = happening.text
        case 'asked':
            text = f'{backend}, which acts by itself: its whole turn counts as one call'
        case 'tool_called':
            text = f'{tool} {happening.text}'
        case 'tool_result' | 'tool_failed':
            text = f'{tool}: {happening.text}'
        case 'digested':
            folded = plural(happening.exchanges, 'exchange')
            text = f'the first {folded} of the session are told in short from now on:\n{happening.text}'
        case 'backend_failed':
            text = f'{backend or "the backend"} failed: {happening.error_type}: {happening.text}'
        case 'interrupted':
            text = f'by {CAUSES.get(happening.cause, happening.cause)}{_after(happening, turn)}'
            text += f' while {backend} was asked' if backend else ''
            text += f', {plural(turn.said, "character")} had been said' if turn.said else ''
        case 'failed':
            text = f'no backend could ever answer it{_after(happening, turn)}'
        case _:
            text = f'by {backend or "the model"}{_after(happening, turn)}'
    return _LABELS[happening.what], text + _tokens(happening)


def _fields(text: str) -> str:
    """Returns the answer to a question beside the session, an object, as its fields one below the other."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, str])
    except (ValueError, RecursionError):
        return text
    return '\n'.join(f'{name}: {value or "(empty)"}' for name, value in fields.items())


def _tokens(happening: Happening) -> str:
    words = usage_words(msgspec.to_builtins(happening.usage)) if happening.usage else ''
    return f', {words}' if words else ''


def _after(happening: Happening, turn: JournaledLines) -> str:
    begun = parse_instant(turn.begun.timestamp) if turn.begun is not None else None
    ended = parse_instant(happening.at)
    return f' after {span_of((ended - begun).total_seconds())}' if begun and ended else ''


def _wrapped(text: str, width: int | None) -> Iterator[str]:
    for line in text.rstrip('\n').split('\n'):
        if width is None:
            yield line
        else:
            room = max(_NARROWEST, width - _INDENT)
            yield from textwrap.wrap(line, room, break_on_hyphens=False, drop_whitespace=True) or ['']
