"""`repair`: mends what there can be no doubt about, with no daemon on the workspace."""

from typing import Any

import click

from trading_agent.audit.repairs import Left, Plan, Step, plan, repair
from trading_agent.cli.desk_group import as_owner_of
from trading_agent.cli.index_use import workspace_with_desks
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.records import known_desk
from trading_agent.cli.render import on_one_line, plural, print_json


@click.command('repair')
@click.argument('desk', required=False)
@click.option('--dry-run', is_flag=True, help='Tell what would be done, and change nothing.')
@global_options
@pass_options
def repair_command(options: Options, *, desk: str | None, dry_run: bool) -> None:
    """Mend what there can be no doubt about of what `verify` finds, or only that of one DESK.

    A torn last line is closed; ids that the list of sessions has lost are put back; a state.json that is damaged or
    missing is rebuilt, where logs and rollover agree on the session that goes on; temporary files that a killed writer
    left are removed; a damaged index is made anew; modes that are too wide, or keep a file from being read, are set
    right. Whatever is replaced is kept beside it, under a name with the time. A daemon must not be running on the
    workspace. Can be repeated. Exit code 0: nothing is left; 1: problems are left that a person has to decide on, or a
    daemon holds the workspace.
    """
    workspace = workspace_with_desks(options)
    if desk is not None:
        known_desk(workspace, desk)
    if dry_run:
        made = plan(workspace, desk)
    else:
        with as_owner_of(workspace):
            made = repair(workspace, desk)
    if options.json:
        print_json({'done': [_as_json(step) for step in made.steps], 'left': [_left(each) for each in made.left]})
    else:
        _print(made, dry_run=dry_run)
    if made.left:
        raise click.exceptions.Exit(1)


def _as_json(step: Step) -> dict[str, Any]:
    return {'path': step.path, 'what': step.what, 'kept': step.kept}


def _left(left: Left) -> dict[str, Any]:
    return {'path': left.path, 'what': left.what}


def _print(made: Plan, *, dry_run: bool) -> None:
    for step in made.steps:
        kept = f' (what it was is {step.kept})' if step.kept else ''
        click.echo(on_one_line(f'{step.path}: {step.what}{kept}'))
    for left in made.left:
        click.echo(on_one_line(f'left: {left.path}: {left.what}'))
    if not made.steps and not made.left:
        click.echo('nothing is to be done')
    elif dry_run:
        click.echo(f'would do {plural(len(made.steps), "thing")}, and leave {plural(len(made.left), "problem")}')
    if made.left:
        click.echo('hint: what is left is for a person to decide; see `trading-agent verify`', err=True)
