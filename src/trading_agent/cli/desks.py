"""`status` and `rollover`: how the desks are, and ending a session by hand."""

import json

import click

from trading_agent.cli.options import Options, global_options, pass_options


@click.command('status')
@global_options
@pass_options
def status_command(options: Options) -> None:
    """Show how the daemon and its desks are."""
    from trading_agent.cli.client import connect
    from trading_agent.cli.status_view import print_status

    with connect(options) as client:
        content = client.result(client.request('GET', '/v1/status'))
    if options.json:
        click.echo(content)
    else:
        print_status(json.loads(content))


@click.command('rollover')
@click.argument('desk')
@global_options
@pass_options
def rollover_command(options: Options, desk: str) -> None:
    """End a desk's session now and begin a new one.

    It waits for the running turn, and for the summary. A session without exchanges stays as it is.
    """
    from trading_agent.cli.client import connect, path_to

    with connect(options) as client:
        # A summary takes as long as its model takes; the daemon has the time-outs.
        content = client.result(client.request('POST', path_to(desk, 'rollover'), timeout=None))
    if options.json:
        click.echo(content)
        return
    result = json.loads(content)
    if result['rolled_over']:
        click.echo(f'{desk}: {result["previous_session_id"]} has ended, {result["session_id"]} has begun')
    else:
        click.echo(f'{desk}: nothing to do, {result["session_id"]} has no exchanges')
