"""`skills`: a desk's skills, the changes to them that wait for a person, and taking changes back."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from trading_agent.cli.desk_group import DeskGroup, as_owner_of
from trading_agent.cli.hold import login_name, reason_why
from trading_agent.cli.options import Options, global_options, pass_options
from trading_agent.cli.records import desk_folder
from trading_agent.cli.render import india_time, on_terminal, paint, print_json, print_table, printable
from trading_agent.memory.skill_folder import FaultySkill, read_skill, scan, skill_data
from trading_agent.memory.skill_ledger import Proposal, SkillRecord, is_change_id
from trading_agent.memory.skill_store import SkillStore

_HERE = 'trading_agent.cli.skills'
_LONGEST_WORDS = 100
_DONE = {'create': 'created', 'revise': 'revised', 'archive': 'archived'}

COMMANDS = {
    'list': (f'{_HERE}:skills_list_command', "List a desk's skills and what waits; `skills DESK` does the same."),
    'show': (f'{_HERE}:skills_show_command', 'Show a skill, or what a change that waits would make of it.'),
    'approve': (f'{_HERE}:skills_approve_command', 'Make a change that waits.'),
    'reject': (f'{_HERE}:skills_reject_command', 'Turn a change down that waits.'),
    'revert': (f'{_HERE}:skills_revert_command', 'Take a change back that was made.'),
}
"""Each command of the group, as in `trading_agent.cli.main`."""


@click.command('skills', cls=DeskGroup, lazy=COMMANDS, subcommand_metavar='DESK | COMMAND DESK ID')
@global_options
def skills_command() -> None:
    """List a desk's skills, and decide on changes to them.

    After each day the curator may propose to create, revise or archive a skill; with `skills = "apply"` it does so
    itself. Every change can be taken back with `revert`. The files are read and written whether a daemon runs or not.
    """


@click.command('list')
@click.argument('desk')
@global_options
@pass_options
def skills_list_command(options: Options, desk: str) -> None:
    """List a desk's skills: active and faulty ones, changes that are proposed or stale, and what is archived.

    A change is stale when somebody changed the skill after it was proposed: it can only be rejected.
    """
    folder = desk_folder(options, desk)
    rows = _rows(folder)
    if options.json:
        print_json({'desk': desk, 'skills': rows})
        return
    if not rows:
        click.echo(f'{desk} has no skill yet', err=True)
        return
    print_table(
        ['STATE', 'SKILL', 'ID', 'SINCE (IST)', 'WHAT'],
        [[row['state'], row['name'], row['id'] or '-', india_time(row['at']), _short(row['what'])] for row in rows],
    )
    waiting = next((row['id'] for row in rows if row['state'] == 'proposed'), None)
    if waiting is not None:
        click.echo(f'hint: `trading-agent skills show {desk} {waiting}`, then `skills approve` or `reject`', err=True)


def _rows(folder: Path) -> list[dict[str, Any]]:
    store = SkillStore(folder)
    proposals, records = store.proposals(), store.records()
    last = {record.name: record for record in records if record.kind in ('applied', 'reverted')}
    rows = []
    for skill in scan(folder):
        change = last.get(skill.name)
        state, what = ('faulty', skill.error) if isinstance(skill, FaultySkill) else ('active', skill.description)
        rows.append(_row(state, skill.name, change, what))
    for proposal in proposals:
        state = 'stale' if store.is_stale(proposal) else 'proposed'
        rows.append(_row(state, proposal.name, proposal, f'{proposal.action}: {proposal.reason}'))
    there = {row['name'] for row in rows if row['state'] in ('active', 'faulty')}
    gone = [change for change in last.values() if not change.after and change.name not in there]
    return rows + [_row('archived', each.name, each, each.why or f'{each.kind} by {each.by}') for each in gone]


def _row(state: str, name: str, change: Proposal | SkillRecord | None, what: str) -> dict[str, Any]:
    made = {'id': None, 'at': None} if change is None else {'id': change.id, 'at': change.at}
    return {'state': state, 'name': name, **made, 'what': what}


def _short(text: str) -> str:
    words = ' '.join(text.split())
    if on_terminal() or len(words) <= _LONGEST_WORDS:
        return words
    return words[: _LONGEST_WORDS - 1] + '…'


@click.command('show')
@click.argument('desk')
@click.argument('which', metavar='SKILL|ID')
@global_options
@pass_options
def skills_show_command(options: Options, desk: str, which: str) -> None:
    """Show a skill by its name, or a change that waits by its id: why, and what it would make of the skill."""
    folder = desk_folder(options, desk)
    store = SkillStore(folder)
    if not is_change_id(which):
        text = read_skill(folder, which)
        if options.json:
            print_json({'desk': desk, 'name': which, 'text': text})
        else:
            click.echo(printable(text), nl=not text.endswith('\n'))
        return
    proposal = store.proposal(which)
    stale = store.is_stale(proposal)
    present = (skill_data(folder, proposal.name) or b'').decode('utf-8-sig', errors='replace')
    if options.json:
        print_json({'desk': desk, **msgspec.to_builtins(proposal), 'stale': stale, 'present': present})
        return
    state = 'stale: somebody changed the skill since' if stale else 'proposed'
    heading = f'{proposal.action} {proposal.name}, {state} ({india_time(proposal.at)} IST)'
    click.echo(paint(printable(heading), bold=True))
    if proposal.reason:
        click.echo(printable(proposal.reason))
    click.echo()
    for line in _diff(present, proposal.text):
        click.echo(paint(printable(line), {'+': 'green', '-': 'red', '@': 'cyan'}.get(line[:1]) if present else None))


def _diff(present: str, text: str) -> list[str]:
    """Returns what a change does to a skill; of a new one its text."""
    if not present:
        return text.rstrip('\n').split('\n')
    was, becomes = (each.rstrip('\n').split('\n') if each else [] for each in (present, text))
    return list(difflib.unified_diff(was, becomes, 'now', 'then', lineterm=''))


@click.command('approve')
@click.argument('desk')
@click.argument('change_id', metavar='ID')
@global_options
@pass_options
def skills_approve_command(options: Options, *, desk: str, change_id: str) -> None:
    """Make a change that waits. A skill that somebody changed since it was proposed is left alone: exit code 1."""
    proposal = _done(options, desk, lambda store: store.approve(change_id, login_name()))
    made = f'{proposal.name} is {_DONE[proposal.action]}'
    _tell(options, desk, proposal, 'approved', f'{made}; `trading-agent skills revert {desk} {proposal.id}` undoes it')


@click.command('reject')
@click.argument('desk')
@click.argument('change_id', metavar='ID')
@reason_why
@global_options
@pass_options
def skills_reject_command(options: Options, *, desk: str, change_id: str, reason: str) -> None:
    """Turn a change down that waits. The curator is told, with the reason, and does not propose the same again."""
    proposal = _done(options, desk, lambda store: store.reject(change_id, login_name(), reason))
    _tell(options, desk, proposal, 'rejected', f'{proposal.action} {proposal.name} is rejected')


@click.command('revert')
@click.argument('desk')
@click.argument('change_id', metavar='ID')
@global_options
@pass_options
def skills_revert_command(options: Options, *, desk: str, change_id: str) -> None:
    """Take a change back that was made: the skill is what it was before it.

    A skill that was changed again since is left alone: exit code 1. That can be taken back in turn, by the id it gets.
    """
    record = _done(options, desk, lambda store: store.revert(change_id, login_name()))
    now = 'as it was before' if record.after else 'archived'
    again = f'`trading-agent skills revert {desk} {record.id}` undoes that'
    _tell(options, desk, record, 'reverted', f'{record.name} is {now}; {again}')


def _done(options: Options, desk: str, do: Callable[[SkillStore], Any]) -> Any:  # noqa: ANN401 - what it returns
    folder = desk_folder(options, desk)
    with as_owner_of(folder):
        return do(SkillStore(folder))


def _tell(options: Options, desk: str, change: Proposal | SkillRecord, what: str, in_words: str) -> None:
    if options.json:
        print_json({'desk': desk, 'id': change.id, 'name': change.name, 'action': change.action, 'outcome': what})
    else:
        click.echo(printable(f'{desk}: {in_words}'))
