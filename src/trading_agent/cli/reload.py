"""`reload`: the daemon reads its configuration again."""

import json

import click

from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.errors import ConfigurationError, Problem


@click.command('reload')
@global_options
@pass_options
def reload_command(options: Options) -> None:
    """Put the configuration in force that the daemon's file says now.

    No running turn of a desk that it does not change is disturbed. A file with a mistake is refused whole: the
    configuration that was in force stays. Exit code 0: it is in force; 78: it was refused.
    """
    from trading_agent.cli.client import connect, error_in

    with connect(options) as client:
        # Its packages are imported, however long that takes.
        response = client.request('POST', '/v1/reload', timeout=None)
        data = client.content(response)
    if options.json:
        click.echo(data)
    if response.status != 200:
        raise problems_in(data) or error_in(data)
    if options.json:
        return
    changes = json.loads(data)
    lines = [f'{kind} {thing}' for kind in ('added', 'changed', 'removed') for thing in changes[kind]]
    click.echo('\n'.join(lines) or 'nothing has changed')


def problems_in(data: bytes) -> ConfigurationError | None:
    """Returns what is wrong with the configuration, as an answer of the daemon tells it; None for another error."""
    try:
        problems = [
            Problem(str(told['where']), str(told['what']), str(told['hint'])) for told in json.loads(data)['problems']
        ]
    except (ValueError, KeyError, TypeError):
        return None
    return ConfigurationError(problems) if problems else None
