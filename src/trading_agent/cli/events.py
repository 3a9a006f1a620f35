"""`events`: what happens, as it happens, and what each event means."""

from typing import Any

import click

from trading_agent.cli.event_view import print_event
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.render import on_terminal, print_json


@click.command('events')
@click.option('--desk', metavar='DESK', help='Only what happens at this desk.')
@click.option('--event', 'events', metavar='NAME', multiple=True, help='Only events of this name; may be repeated.')
@click.option('--catalog', is_flag=True, help='List every event with its level and fields, and end.')
@global_options
@pass_options
def events_command(options: Options, *, desk: str | None, events: tuple[str, ...], catalog: bool) -> None:
    """Show what happens, as it happens, until Ctrl-C.

    On a terminal an event is told in words; in a pipe as `name=value`, and with --json whole, as the log has it.
    What is being said is shown with `--event turn_output`.
    """
    if catalog:
        print_catalog(options)
        return
    from urllib.parse import urlencode

    from trading_agent.cli.client import connect

    query = urlencode([('desk', desk)] * (desk is not None) + [('event', name) for name in events], errors='replace')
    with connect(options) as client:
        response = client.request('GET', '/v1/events' + (f'?{query}' if query else ''))
        if on_terminal() and response.status == 200:
            click.echo('what happens from now on; Ctrl-C ends it', err=True)
        for line in client.lines(response):
            if options.json:
                print_json(line)
            else:
                print_event(line)


def print_catalog(options: Options) -> None:
    """Writes what every event means."""
    from trading_agent.event_catalog import catalog

    known: list[dict[str, Any]] = catalog()
    if options.json:
        print_json(known)
        return
    for event in known:
        click.echo(f'{click.style(event["event"], bold=True)} ({event["level"]}): {event["about"]}')
        for name, meaning in event['fields'].items():
            click.echo(f'    {name:<22} {meaning}')
