"""`sessions` and `summaries`: a desk's records, read from its files whether a daemon runs or not."""

import difflib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from trading_agent import files, json_lines
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.render import india_time, print_json, print_table, printable, short_count
from trading_agent.cli.workspace import workspace_with_records
from trading_agent.config import DESK_NAME
from trading_agent.conversation.journal_folder import JournalFolder, usage_counts
from trading_agent.errors import TradingAgentError
from trading_agent.memory.daily_summary import split_sections
from trading_agent.memory.exchange import NO_EXCHANGE, Exchange, decode_line
from trading_agent.memory.session_state import is_session_id, newest_session, split_session_id
from trading_agent.memory.session_store import Damage, SessionStore


def desk_names(workspace: Path) -> list[str]:
    """Returns the desks that have a folder in a workspace, by name."""
    return sorted(name for name in files.names_in(workspace / 'desks') if DESK_NAME.fullmatch(name))


def known_desk(workspace: Path, desk: str) -> Path:
    """Returns the folder of a desk.

    Raises:
        TradingAgentError: There is none.
    """
    names = desk_names(workspace)
    if desk not in names:
        near = difflib.get_close_matches(desk, names, 1)
        known = f'there is {", ".join(names[:20])}' if names else 'name the workspace with --workspace'
        hint = f'did you mean {near[0]!r}?' if near else known
        raise TradingAgentError(f'{workspace / "desks"} has no desk {desk!r}', hint)
    return workspace / 'desks' / desk


def desk_folder(options: Options, desk: str) -> Path:
    """Returns a desk's folder in the workspace whose records are to be shown.

    Raises:
        TradingAgentError: There is none.
    """
    return known_desk(workspace_with_records(options.config, options.workspace), desk)


def open_store(options: Options, desk: str) -> SessionStore:
    """Returns a desk's sessions.

    Raises:
        TradingAgentError: There is no folder of that desk.
    """
    return SessionStore(desk_folder(options, desk) / 'sessions', on_damage=tell_damage)


def journals_of(store: SessionStore) -> JournalFolder:
    """Returns the journals of the desk whose sessions these are."""
    desk = store.directory.parent
    return JournalFolder(desk / 'journal', desk.name, lambda: datetime.now(UTC))


def tell_damage(damage: Damage) -> None:
    """Warns on stderr of a part of a file that cannot be read."""
    place = f'{damage.path}, line {damage.line}' if damage.line else str(damage.path)
    click.echo(f'warning: {place} cannot be read: {damage.error}', err=True)


def current_session(store: SessionStore) -> str | None:
    """Returns the session that the state names, else the newest one, or None where there is none."""
    state, known = store.load_state(), store.session_ids()
    return state.session_id if state and state.session_id in known else newest_session(known, store.today())


def chosen_session(store: SessionStore, named: str | None, *, journaled: bool = False) -> str:
    """Returns the session that was named, else the current one.

    Args:
        store: The desk's sessions.
        named: The session that was named.
        journaled: Whether it is enough that it has a journal: its log may be lost.

    Raises:
        TradingAgentError: There is no such session.
    """
    desk, known = store.directory.parent.name, store.session_ids()
    session_id = named or current_session(store)
    if session_id is None:
        raise TradingAgentError(f'{desk} has had no session yet')
    has_journal = journaled and is_session_id(session_id) and journals_of(store).path(session_id).exists()
    if session_id not in known and not has_journal:
        hint = f'there is {", ".join(known[:10])}' if known else 'it has had none yet'
        raise TradingAgentError(f'{desk} has no session {session_id!r}', hint)
    return session_id


def usage_of_session(store: SessionStore, session_id: str, by_exchanges: Counter[str]) -> dict[str, int]:
    """Returns the tokens used in a session: all that its journal counts, or by its exchanges where it has none."""
    journals = journals_of(store)
    if journals.path(session_id).exists():
        return usage_counts(journals.usage(session_id)) or {}
    return {kind: count for kind, count in by_exchanges.items() if count}


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
        _print_sessions(found)


def _print_sessions(found: list[dict[str, Any]]) -> None:
    counted = any(session['usage'] for session in found)
    headings = ['SESSION', 'EXCHANGES', 'FIRST (IST)', 'LAST (IST)', *(['TOKENS'] if counted else []), '']
    rows = []
    for session in found:
        tokens = sum(session['usage'].values())
        rows.append(
            [
                session['id'],
                str(session['exchanges']),
                india_time(session['first_at']),
                india_time(session['last_at']),
                *([short_count(tokens) if tokens else '-'] if counted else []),
                'current' if session['current'] else '',
            ]
        )
    print_table(headings, rows)


def _session(store: SessionStore, session_id: str, current: str | None) -> dict[str, Any]:
    first, last, count, used = None, None, 0, Counter[str]()
    for exchange in _exchanges_in(store.log_path(session_id)):
        first, last, count = first or exchange, exchange, count + 1
        used.update(exchange.usage or {})
    return {
        'id': session_id,
        'trading_date': split_session_id(session_id)[0].isoformat(),
        'exchanges': count,
        'first_at': first.finished_at if first else None,
        'last_at': last.finished_at if last else None,
        'current': session_id == current,
        'usage': usage_of_session(store, session_id, used),
    }


def _exchanges_in(log: Path) -> Iterator[Exchange]:
    """Yields the exchanges of a log one by one: a long session is not held in memory to be counted."""
    for number, line in json_lines.read(log):
        try:
            yield decode_line(line)
        except NO_EXCHANGE as error:
            tell_damage(Damage(log, number, f'{type(error).__name__}: {error}'[:500]))


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
