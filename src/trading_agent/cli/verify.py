"""`verify`: whether everything on disk is whole and agrees with itself, whether a daemon runs or not."""

from pathlib import Path
from typing import Any

import click

from trading_agent.audit.findings import DeskReport, FileReport, Finding, WorkspaceReport
from trading_agent.audit.workspace_audit import audit
from trading_agent.cli.index_use import workspace_with_desks
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.progress import bar
from trading_agent.cli.records import known_desk
from trading_agent.cli.render import on_one_line, paint, plural, print_json

_SHOWN = 100


@click.command('verify')
@click.argument('desk', required=False)
@global_options
@pass_options
def verify_command(options: Options, *, desk: str | None) -> None:
    """Tell whether everything on disk is whole, or all of one DESK: nothing damaged, missing or contradictory.

    Nothing is changed, and a daemon may work at the same time. Open triggers, a running turn, and an index that is
    missing or behind are told and are no fault; neither is what a crash left of a line that was never acknowledged.
    --json tells it file by file, each with its number of records.
    Exit code 0: there is no problem; 1: there is one.
    """
    workspace = workspace_with_desks(options)
    if desk is not None:
        known_desk(workspace, desk)
    with bar('reading', unit='desks', quiet=options.json) as advance:
        found = audit(workspace, desk, on_desk=advance)
    if options.json:
        print_json({'ok': found.ok, 'files': [_as_json(file) for file in found.all_files()]})
    else:
        _print(found, workspace)
    if not found.ok:
        raise click.exceptions.Exit(1)


def _as_json(file: FileReport) -> dict[str, Any]:
    told: dict[str, Any] = {
        'path': file.path,
        'kind': file.kind,
        'records': file.records,
        'problems': [_finding(finding) for finding in file.problems],
    }
    return told | ({'notes': [_finding(finding) for finding in file.notes]} if file.notes else {})


def _finding(finding: Finding) -> dict[str, Any]:
    return {'line': finding.line, 'offset': finding.offset, 'what': finding.what}


def _print(found: WorkspaceReport, workspace: Path) -> None:
    for desk in found.desks:
        click.echo(_in_words(desk))
    findings = [(file.path, each, False) for file in found.all_files() for each in file.problems]
    can_be_mended = any(finding.mend for _, finding, _ in findings)
    problems = len(findings)
    findings += [(file.path, each, True) for file in found.all_files() for each in file.notes]
    for path, finding, is_note in findings[:_SHOWN]:
        place = path if finding.line is None else f'{path}:{finding.line} (offset {finding.offset})'
        prefix = paint('note: ', dim=True) if is_note else paint('problem: ', 'red')
        click.echo(prefix + on_one_line(f'{place}: {finding.what}'))
    if len(findings) > _SHOWN:
        click.echo(f'… and {len(findings) - _SHOWN:,} more: see --json')
    if not problems:
        click.echo(f'clean: {workspace}')
        return
    click.echo(f'{plural(problems, "problem")}: {workspace}')
    if can_be_mended:
        click.echo('hint: `trading-agent repair --dry-run` tells what it mends; stop the daemon first', err=True)


def _in_words(desk: DeskReport) -> str:
    waiting = f' ({desk.open_triggers:,} open)' if desk.open_triggers else ''
    counts = (
        f'{plural(desk.sessions, "session")}, {plural(desk.exchanges, "exchange")}, '
        f'{plural(desk.triggers, "trigger")}{waiting}, {plural(desk.journal_records, "journal record")}'
    )
    problems = sum(len(file.problems) for file in desk.files)
    return f'{desk.name}: {counts}: ' + (paint(plural(problems, 'problem'), 'red') if problems else 'clean')
