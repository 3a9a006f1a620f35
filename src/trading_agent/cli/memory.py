"""`memory`: a desk's Memory.md, what the fold of each session changed in it, and taking that back."""

import difflib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from trading_agent import config
from trading_agent.cli.desk_group import DeskGroup, as_owner_of
from trading_agent.cli.hold import login_name
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.records import desk_folder
from trading_agent.cli.render import india_time, paint, print_json, printable
from trading_agent.errors import ConfigurationError
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.memory_history import FoldedText, MemoryChange

_HERE = 'trading_agent.cli.memory'

COMMANDS = {
    'show': (f'{_HERE}:memory_show_command', "Show a desk's Memory.md; `memory DESK` does the same."),
    'diff': (f'{_HERE}:memory_diff_command', 'Show what the fold of a session changed in it.'),
    'restore': (f'{_HERE}:memory_restore_command', 'Put the text back that stood there before that fold.'),
}
"""Each command of the group, as in `trading_agent.cli.main`."""


@click.command('memory', cls=DeskGroup, lazy=COMMANDS, subcommand_metavar='DESK | COMMAND DESK SESSION')
@global_options
def memory_command() -> None:
    """Show a desk's Memory.md, and what each session changed in it.

    `memory DESK` shows the text, its size and budget, and when it was folded last. The files are read and written
    whether a daemon runs or not; a fold that a running one is making meanwhile is made again from what it finds.
    """


@click.command('show')
@click.argument('desk')
@global_options
@pass_options
def memory_show_command(options: Options, desk: str) -> None:
    """Show a desk's Memory.md: its size and budget, when it was folded last, and the text."""
    memory = MemoryFile(desk_folder(options, desk))
    present, changes = memory.read(), memory.changes()
    last = next((change for change in reversed(changes) if change.kind != 'refused'), None)
    edited = last is not None and bool(last.after) and last.after != present.digest
    budget = _budget(options, desk)
    if options.json:
        print_json(
            {
                'desk': desk,
                'path': str(memory.path),
                'text': present.text,
                'characters': len(present.text.strip()),
                'budget': budget,
                'edited': edited,
                'last': None if last is None else msgspec.to_builtins(last),
                'changes': [msgspec.to_builtins(change) for change in changes],
            }
        )
        return
    of = f' of {budget:,}' if budget is not None else ''
    click.echo(paint(f'Memory.md of {desk}: {len(present.text.strip()):,}{of} characters', bold=True))
    if last is not None:
        click.echo(printable(_in_words(desk, last) + ('; edited since' if edited else '')))
    if changes and changes[-1].kind == 'refused':
        click.echo(printable(_in_words(desk, changes[-1])))
    if present.text.strip():
        click.echo('\n' + printable(present.text).strip('\n'))


def _in_words(desk: str, change: MemoryChange) -> str:
    at = f'{india_time(change.at)} IST' if change.at else 'at a time that is not known'
    match change.kind:
        case 'folded':
            see = f'`trading-agent memory diff {desk} {change.session_id}`'
            return f'folded {at}, session {change.session_id} ({see})'
        case 'restored':
            return f'restored {at} by {change.by}, to what it was before session {change.session_id}'
        case _:
            where = f'memory_history/{change.kept}'
            return f'a new text was refused {at}, session {change.session_id}: {change.why} (it is in {where})'


def _budget(options: Options, desk: str) -> int | None:
    """Returns the desk's memory_budget in characters; None where the configuration does not say."""
    with suppress(ConfigurationError):
        desks = config.load(options.config, options.workspace).desks
        return next((settings.memory_budget for settings in desks if settings.name == desk), None)
    return None


@click.command('diff')
@click.argument('desk')
@click.argument('session')
@global_options
@pass_options
def memory_diff_command(options: Options, desk: str, session: str) -> None:
    """Show what the fold of a session changed in a desk's Memory.md, and why.

    The text that followed may have been edited by a person before the next fold; where it was, that is told.
    """
    folds = MemoryFile(desk_folder(options, desk)).folds(session)
    if options.json:
        shown = [{**_builtins(fold), 'diff': _diff(fold.before, fold.after)} for fold in folds]
        print_json({'desk': desk, 'session_id': session, 'folds': shown})
        return
    for number, fold in enumerate(folds):
        at = f', {india_time(fold.at)} IST' if fold.at else ''
        why = f': {fold.why}' if fold.why else ''
        click.echo(('\n' if number else '') + paint(printable(f'session {session}{at}{why}'), bold=True))
        if fold.edited:
            click.echo('a person edited it afterwards; that is shown with it')
        _print_diff(_diff(fold.before, fold.after))


def _builtins(fold: FoldedText) -> dict[str, Any]:
    return {name: getattr(fold, name) for name in ('at', 'why', 'edited', 'before', 'after')}


def _diff(before: str, after: str) -> list[str]:
    was, is_now = (text.strip('\n').split('\n') if text.strip('\n') else [] for text in (before, after))
    return list(difflib.unified_diff(was, is_now, 'before', 'after', lineterm=''))


def _print_diff(lines: list[str]) -> None:
    for line in lines:
        colour = {'+': 'green', '-': 'red', '@': 'cyan'}.get(line[:1])
        click.echo(paint(printable(line), colour))


@click.command('restore')
@click.argument('desk')
@click.argument('session')
@click.option('--yes', is_flag=True, help='Do not ask on a terminal.')
@global_options
@pass_options
def memory_restore_command(options: Options, *, desk: str, session: str, yes: bool) -> None:
    """Put the Memory.md back that a desk had before a session was folded into it.

    What later folds and people wrote is taken back with it. The text of now is kept in memory_history, so that
    nothing is lost. On a terminal it shows what will change, and asks.
    """
    folder = desk_folder(options, desk)
    memory = MemoryFile(folder)
    before = memory.folds(session)[0].before
    if sys.stdin.isatty() and not yes:
        _print_diff(_diff(memory.read().text, before))
        if not click.confirm(f'put the Memory.md of {desk} back to what it was before {session}?', err=True):
            click.echo('it is left as it is', err=True)
            raise click.exceptions.Exit(1)
    with as_owner_of(folder):
        kept = memory.restore(session, login_name())
    kept_at = None if kept is None else Path('memory_history', kept)
    if options.json:
        told = {'desk': desk, 'session_id': session, 'restored': kept is not None}
        print_json({**told, 'kept': None if kept_at is None else str(folder / kept_at)})
    elif kept_at is None:
        click.echo(f'{desk}: nothing to do, Memory.md is what it was before {session}')
    else:
        click.echo(f'{desk}: Memory.md is what it was before {session}; what it was until now is {kept_at}')
