"""`sessions`, `show` and `summaries`: a desk's records, read from its files whether a daemon runs or not."""

import difflib
from pathlib import Path
from typing import Any

import click

from trading_agent import files
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.render import india_time, print_json, print_table, printable
from trading_agent.cli.workspace import workspace_with_records
from trading_agent.config import DESK_NAME
from trading_agent.errors import TradingAgentError
from trading_agent.memory.daily_summary import split_sections
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_state import newest_session, split_session_id
from trading_agent.memory.session_store import Damage, SessionStore


def desk_folder(options: Options, desk: str) -> Path:
    """Returns a desk's folder.

    Raises:
        TradingAgentError: There is none.
    """
    workspace = workspace_with_records(options.config, options.workspace)
    names = sorted(name for name in files.names_in(workspace / 'desks') if DESK_NAME.fullmatch(name))
    if desk not in names:
        near = difflib.get_close_matches(desk, names, 1)
        known = f'there is {", ".join(names[:20])}' if names else 'name the workspace with --workspace'
        hint = f'did you mean {near[0]!r}?' if near else known
        raise TradingAgentError(f'{workspace / "desks"} has no desk {desk!r}', hint)
    return workspace / 'desks' / desk


def open_store(options: Options, desk: str) -> SessionStore:
    """Returns a desk's sessions.

    Raises:
        TradingAgentError: There is no folder of that desk.
    """
    return SessionStore(desk_folder(options, desk) / 'sessions', on_damage=tell_damage)


def tell_damage(damage: Damage) -> None:
    """Warns on stderr of a part of a file that cannot be read."""
    place = f'{damage.path}, line {damage.line}' if damage.line else str(damage.path)
    click.echo(f'warning: {place} cannot be read: {damage.error}', err=True)


def current_session(store: SessionStore) -> str | None:
    """Returns the session that the state names, else the newest one, or None where there is none."""
    state, known = store.load_state(), store.session_ids()
    return state.session_id if state and state.session_id in known else newest_session(known, store.today())


@click.command('sessions')
@click.argument('desk')
@global_options
@pass_options
def sessions_command(options: Options, desk: str) -> None:
    """List a desk's sessions, newest first."""
    store = open_store(options, desk)
    current = current_session(store)
    found = [_session(store, session_id, current) for session_id in store.session_ids()]
    if options.json:
        print_json(found)
    elif not found:
        click.echo(f'{desk} has had no session yet', err=True)
    else:
        print_table(
            ('SESSION', 'EXCHANGES', 'FIRST (IST)', 'LAST (IST)', ''),
            [
                [
                    session['id'],
                    str(session['exchanges']),
                    india_time(session['first_at']),
                    india_time(session['last_at']),
                    'current' if session['current'] else '',
                ]
                for session in found
            ],
        )


def _session(store: SessionStore, session_id: str, current: str | None) -> dict[str, Any]:
    exchanges = store.exchanges(session_id)
    return {
        'id': session_id,
        'trading_date': split_session_id(session_id)[0].isoformat(),
        'exchanges': len(exchanges),
        'first_at': exchanges[0].finished_at if exchanges else None,
        'last_at': exchanges[-1].finished_at if exchanges else None,
        'current': session_id == current,
    }


@click.command('show')
@click.argument('desk')
@click.argument('session', required=False)
@global_options
@pass_options
def show_command(options: Options, desk: str, session: str | None) -> None:
    """Show the exchanges of a session, oldest first; by default of the current one."""
    store = open_store(options, desk)
    known = store.session_ids()
    session_id = session or current_session(store)
    if session_id is None:
        raise TradingAgentError(f'{desk} has had no session yet')
    if session_id not in known:
        hint = f'there is {", ".join(known[:10])}' if known else 'it has had none yet'
        raise TradingAgentError(f'{desk} has no session {session_id!r}', hint)
    exchanges = store.exchanges(session_id)
    if options.json:
        shown = [exchange.to_json_dictionary() for exchange in exchanges]
        print_json({'session_id': session_id, 'exchanges': shown})
        return
    click.echo(f'session {session_id}, {len(exchanges)} exchange{"" if len(exchanges) == 1 else "s"}')
    for exchange in exchanges:
        _print_exchange(exchange)


def _print_exchange(exchange: Exchange) -> None:
    source = f', trigger {exchange.trigger_id}' if exchange.trigger_id else ''
    heading = f'{india_time(exchange.finished_at)} IST, {exchange.backend_name}{source}'
    click.echo('\n' + click.style(printable(heading), bold=True))
    for line in printable(exchange.trigger_text).split('\n'):
        click.echo(f'> {line}'.rstrip())
    click.echo(printable(exchange.answer))


@click.command('summaries')
@click.argument('desk')
@global_options
@pass_options
def summaries_command(options: Options, desk: str) -> None:
    """Show a desk's daily summaries, newest first."""
    store = open_store(options, desk)
    found = [
        {
            'trading_date': summary.trading_date.isoformat(),
            'text': summary.text,
            'degraded': any(section.degraded for section in split_sections(summary.text)[1]),
        }
        for summary in store.summaries()
    ]
    if options.json:
        print_json(found)
        return
    if not found:
        click.echo(f'{desk} has no summary yet', err=True)
    for at, summary in enumerate(found):
        owed = ' (degraded: a full one is owed)' if summary['degraded'] else ''
        click.echo(('\n' if at else '') + click.style(f'# {summary["trading_date"]}{owed}', bold=True))
        click.echo(printable(str(summary['text'])))
