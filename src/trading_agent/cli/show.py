"""`show`: a session's exchanges, or with `--journal` all that happened in it, read from the files."""

from collections import Counter

import click
import msgspec

from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.records import chosen_session, journals_of, open_store, tell_damage, usage_of_session
from trading_agent.cli.render import india_time, plural, print_json, printable, triggers_words, usage_words
from trading_agent.errors import TradingAgentError
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_store import SessionStore


@click.command('show')
@click.argument('desk')
@click.argument('session', required=False)
@click.option('--journal', is_flag=True, help='All that happened: tool calls, failures, interrupted turns.')
@click.option('--last', type=click.IntRange(1), metavar='N', help='Only the last N exchanges, or turns.')
@global_options
@pass_options
def show_command(options: Options, *, desk: str, session: str | None, journal: bool, last: int | None) -> None:
    """Show the exchanges of a session, oldest first; by default of the current one.

    With --journal it is told event by event: what the model was told and said, the calls of tools and their results,
    failures of backends, turns that were cut off, and questions beside the session. With --last only the end of the
    file is read, however long it is, and the session's tokens are not added up.
    """
    store = open_store(options, desk)
    session_id = chosen_session(store, session, journaled=journal)
    if journal:
        _show_journal(store, session_id, last, options)
    else:
        _show_exchanges(store, session_id, last, options)


def _show_exchanges(store: SessionStore, session_id: str, last: int | None, options: Options) -> None:
    exchanges = store.exchanges(session_id, last=last)
    used: dict[str, int] | None = None
    if last is None:
        by_exchanges = Counter[str]()
        for exchange in exchanges:
            by_exchanges.update(exchange.usage or {})
        used = usage_of_session(store, session_id, by_exchanges)
    if options.json:
        shown = [exchange.to_json_dictionary() for exchange in exchanges]
        print_json({'session_id': session_id, 'exchanges': shown, 'usage': used})
        return
    tokens = usage_words(used)
    which = 'the last ' if last is not None else ''
    click.echo(f'session {session_id}, {which}{plural(len(exchanges), "exchange")}' + (f', {tokens}' if tokens else ''))
    for exchange in exchanges:
        print_exchange(exchange)


def print_exchange(exchange: Exchange) -> None:
    """Writes an exchange for people."""
    source = f', {triggers_words(exchange.answers)}' if exchange.answers else ''
    tokens = usage_words(exchange.usage)
    heading = f'{india_time(exchange.finished_at)} IST, {exchange.backend_name}{source}' + (
        f', {tokens}' if tokens else ''
    )
    click.echo('\n' + click.style(printable(heading), bold=True))
    for line in printable(exchange.trigger_text).split('\n'):
        click.echo(f'> {line}'.rstrip())
    click.echo(printable(exchange.answer))


def _show_journal(store: SessionStore, session_id: str, last: int | None, options: Options) -> None:
    from trading_agent.cli.journal_reading import last_turns, read_journal
    from trading_agent.cli.journal_view import print_journal

    path = journals_of(store).path(session_id)
    if not path.exists():
        raise TradingAgentError(
            f'session {session_id} has no journal',
            f'it was held before there were journals: `trading-agent show {path.parent.parent.name} {session_id}`',
        )
    lines = read_journal(path, tell_damage) if last is None else iter(last_turns(path, last))
    if options.json:
        print_json({'session_id': session_id, 'records': [msgspec.to_builtins(line.record) for line in lines]})
    else:
        print_journal(session_id, lines, whole=last is None)
