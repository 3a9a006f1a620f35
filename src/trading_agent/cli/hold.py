"""`pause`, `resume` and `cancel`: a person's hand on a desk, and on one of its triggers."""

import json
import os
import pwd
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.render import print_json, printable
from trading_agent.errors import TradingAgentError

every_desk = click.option('--all', 'every', is_flag=True, help='Every desk.')
reason_why = click.option('--reason', metavar='TEXT', default='', help='Why, in your own words.')


def login_name() -> str:
    """Returns who gives the command, as the log and `status` tell it; whom sudo runs it for, where it does."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except (KeyError, OSError):
        name = f'uid {os.getuid()}'
    person = os.environ.get('SUDO_USER', '')
    return (f'{person} as {name}' if person and person != name and os.getuid() == 0 else name)[:100]


@click.command('pause')
@click.argument('desk', required=False)
@every_desk
@click.option('--now', is_flag=True, help='Interrupt the running turn; it is run again later.')
@reason_why
@global_options
@pass_options
def pause_command(options: Options, *, desk: str | None, every: bool, now: bool, reason: str) -> None:
    """Hold a desk: nothing is run until `resume`.

    The running turn goes on to its end, or is interrupted with --now. Triggers are still accepted, and go stale by
    their own expiry. A restart does not let the desk go. `status` shows who did it, and why. Exit code 1: a desk could
    not be held.
    """
    body = {'by': login_name(), 'reason': reason, 'now': now}
    command_desks(options, desk, 'pause', body, every=every, in_words=partial(_paused_in_words, now=now))


@click.command('resume')
@click.argument('desk', required=False)
@every_desk
@global_options
@pass_options
def resume_command(options: Options, *, desk: str | None, every: bool) -> None:
    """Let a paused or parked desk go on.

    Whatever parked it has to be mended first. Exit code 1: a desk could not go on.
    """
    command_desks(options, desk, 'resume', {'by': login_name()}, every=every, in_words=_resumed_in_words)


@click.command('cancel')
@click.argument('desk')
@click.argument('trigger_id', metavar='ID')
@reason_why
@global_options
@pass_options
def cancel_command(options: Options, *, desk: str, trigger_id: str, reason: str) -> None:
    """Cancel a trigger that waits or runs.

    It is closed as cancelled, which the log tells with who and why. Exit code 1: it is not known, or was closed before.
    """
    from trading_agent.cli.client import connect, error_in, path_to, quoted

    body = {'by': login_name(), 'reason': reason}
    with connect(options) as client:
        response = client.request('DELETE', path_to(desk, f'triggers/{quoted(trigger_id)}'), body)
        data = client.content(response)
    if options.json:
        click.echo(data)
    if response.status != 200:
        raise error_in(data)
    if not options.json:
        click.echo(printable(f'{desk}: {trigger_id} is cancelled'))


def command_desks(
    options: Options,
    desk: str | None,
    what: str,
    body: dict[str, Any],
    *,
    every: bool,
    in_words: Callable[[dict[str, Any]], str],
) -> None:
    """Tells one desk or every one what to do, and what came of it.

    Args:
        options: What was asked for beside the command.
        desk: The desk, or None.
        what: What the desk is told.
        body: What goes with it.
        every: Whether it is every desk.
        in_words: Returns what to say of a desk that did it, by its status.

    Raises:
        UsageError: Neither one desk nor every one, or both.
        Exit: With 1, when a desk could not do it.
    """
    if (desk is None) != every:
        raise click.UsageError('name a DESK, or say --all')
    told = [_told(options, name, what, body) for name in ([desk] if desk is not None else _configured(options))]
    if options.json:
        print_json({'ok': all(one['ok'] for one in told), 'desks': told})
    for one in told:
        if not one['ok']:
            whose = f'{one["name"]}: ' if every else ''
            click.echo(f'error: {whose}{printable(" ".join(one["error"].split()))}', err=True)
            if one['hint']:
                click.echo(f'hint: {printable(" ".join(one["hint"].split()))}', err=True)
        elif not options.json:
            click.echo(printable(f'{one["name"]}: {in_words(one)}'))
    if not all(one['ok'] for one in told):
        raise click.exceptions.Exit(1)


def _told(options: Options, desk: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
    """Tells one desk; returns its status with `ok`, or what is wrong with `error` and `hint`."""
    from trading_agent.cli.client import connect, path_to

    with connect(options) as client:
        response = client.request('POST', path_to(desk, what), body)
        try:
            status: dict[str, Any] = json.loads(client.result(response))
        except TradingAgentError as error:
            return {'name': desk, 'ok': False, 'error': str(error), 'hint': error.hint}
    return {'name': desk, 'ok': True, **status}


def _configured(options: Options) -> list[str]:
    """Returns every desk that there is; one that is no longer configured has nothing that could be held."""
    from trading_agent.cli.client import connect

    with connect(options) as client:
        desks = json.loads(client.result(client.request('GET', '/v1/status')))['desks']
    for desk in desks:
        if not desk['backends']:
            click.echo(printable(f'{desk["name"]}: left out, {desk["reason"]}'), err=True)
    return [desk['name'] for desk in desks if desk['backends']]


def _paused_in_words(desk: dict[str, Any], *, now: bool) -> str:
    if desk['state'] == 'parked':
        return f'is parked, and stays so: {desk["reason"]}'
    told = 'paused' if desk['state'] == 'paused' else f'{desk["state"]}, and paused as soon as that is done'
    if desk['turn'] is not None:
        on = desk['turn']['backend'] or 'its backend'
        fate = 'does not let itself be interrupted' if now else 'goes on to its end'
        told += f'; the turn of {desk["turn"]["trigger_id"]} on {on} {fate}'
    return told + _waiting(desk)


def _resumed_in_words(desk: dict[str, Any]) -> str:
    return str(desk['state']) + _waiting(desk)


def _waiting(desk: dict[str, Any]) -> str:
    waiting = desk['queue'] - (desk['turn'] is not None)
    return f'; {waiting} trigger{"" if waiting == 1 else "s"} wait{"s" if waiting == 1 else ""}' if waiting else ''
