"""`init`: a folder to begin with."""

import shlex
from importlib.resources import files
from pathlib import Path

import click

from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.render import print_json
from trading_agent.errors import StorageError, TradingAgentError

FILE_NAME = 'trading-agent.toml'
_UNSET = '# workspace = "workspace"\n'


def starter() -> str:
    """Returns a configuration with every key at its default, and what each is for."""
    return files('trading_agent.cli').joinpath('starter.toml').read_text('utf-8')


@click.command('init')
@click.argument('folder', metavar='DIR', type=click.Path(path_type=Path))
@global_options
@pass_options
def init_command(options: Options, folder: Path) -> None:
    """Write a commented configuration into DIR, and say how to go on.

    It has one desk, `main`, on the built-in `offline` backend: no key and no network is needed. The workspace is made
    beside it by the first `run`. A configuration that is there is left alone: exit code 1.
    """
    file = folder / FILE_NAME
    # Named in the file, so that a daemon finds it from wherever it is started.
    text = starter().replace(_UNSET, _UNSET.removeprefix('# '))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open('x', encoding='utf-8') as new:
            new.write(text)
    except FileExistsError as error:
        what = f'{file if folder.is_dir() else folder} is there already, and is left as it is'
        raise TradingAgentError(what, 'name another folder, or go on with that one') from error
    except OSError as error:
        raise StorageError('write', file, error) from error
    option = f'--config {shlex.quote(str(file))}'
    following = [
        f'trading-agent {option} run',
        f"trading-agent {option} send main 'What do you know so far?' --wait",
    ]
    if options.json:
        print_json({'config': str(file), 'next': following})
        return
    click.echo(f'wrote {file}; now start the daemon, and in another terminal talk to its desk:')
    for command in following:
        click.echo(f'    {command}')
