"""`search`: what was said, found by its words or by its meaning, whether a daemon runs or not."""

from datetime import date

import click

from trading_agent.cli.dates import Day
from trading_agent.cli.index_use import caught_up, workspace_with_desks
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.records import known_desk
from trading_agent.cli.render import print_json
from trading_agent.cli.search_view import as_json, print_hits


@click.command('search')
@click.argument('query', nargs=-1, required=True)
@click.option('--desk', metavar='DESK', help='Only this desk.')
@click.option('--from', 'first', type=Day(), metavar='DAY', help='Only trading dates from this one on.')
@click.option('--to', 'last', type=Day(), metavar='DAY', help='Only trading dates up to and with this one.')
@click.option('--limit', type=click.IntRange(1, 10_000), default=20, show_default=True, help='How many at most.')
@click.option('--semantic', is_flag=True, help='By meaning too; needs the extra `semantic`.')
@global_options
@pass_options
def search_command(
    options: Options,
    *,
    query: tuple[str, ...],
    desk: str | None,
    first: date | None,
    last: date | None,
    limit: int,
    semantic: bool,
) -> None:
    """Search what was said at the desks, the best match first.

    Plain search is by words: messages that have all words of the QUERY, else those that have some. Words within
    double quotes must follow each other ('"purchase order"'), a * at a word's end stands for any ending, and a number
    is found however its digits are grouped. With --semantic messages that mean the same in other words are found as
    well; that needs the packages of the extra: pip install 'trading-agent[semantic]'.

    A DAY is 2026-10-19, today, yesterday, or 7d for seven days before today. The index is made or mended first where
    it has to be. Exit code 0 also where nothing is found.
    """
    if first is not None and last is not None and first > last:
        raise click.UsageError(f'--from {first} is after --to {last}')
    workspace = workspace_with_desks(options)
    if desk is not None:
        known_desk(workspace, desk)
    wanted = ' '.join(query)
    if semantic:
        from trading_agent.cli.semantic_search import open_vectors, search_by_meaning

        with open_vectors(workspace) as vectors, caught_up(workspace, desk) as index:
            hits = search_by_meaning(index, vectors, wanted, desk=desk, first=first, last=last, limit=limit + 1)
    else:
        with caught_up(workspace, desk) as index:
            hits = index.search(wanted, desk=desk, first=first, last=last, limit=limit + 1)
    shown = hits[:limit]
    if options.json:
        print_json({'results': [as_json(hit) for hit in shown]})
    elif shown:
        print_hits(shown, more=len(hits) > limit)
    else:
        click.echo('nothing found', err=True)
