"""`check`: whether the daemon would take its configuration."""

import os
from collections.abc import Iterator

import click

from trading_agent.cli import unit as systemd
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.render import print_json
from trading_agent.config import Config, find_file, load
from trading_agent.errors import ConfigurationError, Problem

CONFIGURATION_EXIT = 78


@click.command('check')
@global_options
@pass_options
def check_command(options: Options) -> None:
    """Check the configuration, and tell everything that is wrong with it.

    Backends and components are imported and made, as the daemon does it, but not run. Where the systemd unit is at
    hand, a warning tells when its TimeoutStopSec leaves no time for `drain`. Exit code 0: it can be used; 78: it
    cannot.
    """
    file = find_file(options.config, os.environ)
    config: Config | None = None
    unit = systemd.read_unit(systemd.UNIT)
    warnings: list[Problem] = []
    problems: list[Problem] = []
    try:
        config = load(options.config, options.workspace)
    except ConfigurationError as error:
        problems = error.problems
    else:
        for problem in problems_of_parts(config):
            (warnings if _held_by_systemd(problem, unit) else problems).append(problem)
        if unit is not None:
            warnings += problems_of_stop(config, unit)
    used = 'the built-in default (there is no file)' if file is None else str(file)
    if options.json:
        told = [
            {'where': problem.where, 'what': problem.what, 'hint': problem.hint} for problem in [*problems, *warnings]
        ]
        print_json({'ok': not problems, 'problems': told})
        click.echo(f'checked {used}', err=True)
    else:
        _print(problems, '')
        _print(warnings, 'warning: ')
        count = f'{len(problems)} problem{"" if len(problems) == 1 else "s"}'
        fine = f'ok, the workspace is {config.workspace}' if config is not None else ''
        click.echo(f'checked {used}: {count if problems else fine}')
    if problems:
        raise click.exceptions.Exit(CONFIGURATION_EXIT)


def _print(problems: list[Problem], prefix: str) -> None:
    for problem in problems:
        click.echo(f'{prefix}{problem.where}: {problem.what}')
        if problem.hint:
            click.echo(f'    {problem.hint}')


def problems_of_parts(config: Config) -> Iterator[Problem]:
    """Yields why backends that a desk names, and components, cannot be made; a secret is told by its name alone."""
    from trading_agent.daemon.backends import make_runner
    from trading_agent.daemon.components import import_component

    where = str(config.file or 'configuration')
    for name in dict.fromkeys(name for desk in config.desks for name in desk.backends):
        try:
            make_runner(name, config.backends[name], where)
        except ConfigurationError as error:
            yield from error.problems
    for component in config.components:
        try:
            import_component(component, where)
        except ConfigurationError as error:
            yield from error.problems


def problems_of_stop(config: Config, unit: systemd.Unit) -> Iterator[Problem]:
    """Yields what is wrong with the unit's time for a stop: it has to outlast `drain` and what comes after it."""
    from trading_agent.cli.run import GIVE_UP_SECONDS

    where, seconds = unit.stop_timeout()
    least = config.drain + GIVE_UP_SECONDS
    if seconds < least:
        yield Problem(
            f'{where or "the systemd unit"}: TimeoutStopSec',
            f'{seconds:g} s leave no time for drain = {config.drain:g} s: systemd would kill running turns',
            f'set it to {least:g} or more in a drop-in (`systemctl edit trading-agent`), or make drain shorter',
        )


def _held_by_systemd(problem: Problem, unit: systemd.Unit | None) -> bool:
    """Whether a credential is missing here alone: systemd gives it to the daemon, and to no person's command."""
    if unit is None or 'CREDENTIALS_DIRECTORY' in os.environ or not problem.where.endswith('_credential'):
        return False
    return any(problem.what.endswith(f' {name}') for name in unit.credentials())
