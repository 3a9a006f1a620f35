"""`skills` on real files: what is there, what waits for a person, and deciding on it."""

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from cli_fakes import call, lonely

from trading_agent.memory.skill_folder import digest_of, read_skill, skill_list, skill_text
from trading_agent.memory.skill_ledger import Proposal, SkillChange, proposal_id
from trading_agent.memory.skill_store import SkillStore

NOW = datetime(2026, 10, 19, 18, 30, 3, tzinfo=UTC)
SIZING = skill_text('sizing', 'How much to buy', 'Never more than 4 lakh.')
REVISED = skill_text('sizing', 'How much to buy', 'Never more than 5 lakh.')


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely(tmp_path, monkeypatch)
    monkeypatch.setattr('trading_agent.cli.skills.login_name', lambda: 'anil')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a desk `main` that has the skill `sizing`."""
    folder = tmp_path / 'workspace' / 'desks' / 'main'
    (folder / 'skills' / 'sizing').mkdir(parents=True)
    (folder / 'skills' / 'sizing' / 'SKILL.md').write_bytes(SIZING)
    return folder


def propose(folder: Path, what: SkillChange, name: str, text: bytes, base: bytes | None = None) -> str:
    """Proposes a change and returns its id."""
    before = '' if base is None else digest_of(base)
    change_id = proposal_id(date(2026, 10, 19), what, name, before, digest_of(text) if text else '')
    proposal = Proposal(
        change_id, '2026-10-19T18:30:03.000000Z', what, name, text.decode(), before, f'the day asks to {what} it'
    )
    assert SkillStore(folder, lambda: NOW).propose(proposal, 'curator')
    return change_id


def rows(*options: str) -> list[tuple[str, str, str | None]]:
    """Returns the list for programs: each state, name and id."""
    shown = json.loads(call('skills', 'main', '--json', *options).stdout)
    return [(row['state'], row['name'], row['id']) for row in shown['skills']]


def test_the_list(folder: Path) -> None:
    """Active and faulty skills, what is proposed and what is stale, each with its id and since when."""
    gaps = propose(folder, 'create', 'gaps', skill_text('gaps', 'What to do on a gap', 'Wait.'))
    (folder / 'skills' / 'bad').mkdir()
    (folder / 'skills' / 'bad' / 'SKILL.md').write_text('no front matter')
    stale = propose(folder, 'revise', 'sizing', REVISED, b'another')
    result = call('skills', 'main')
    assert result.exit_code == 0
    lines = [' '.join(line.split()) for line in result.stdout.rstrip('\n').split('\n')]
    assert lines == [
        'STATE SKILL ID SINCE (IST) WHAT',
        'faulty bad - - the SKILL.md of bad has no front matter',
        'active sizing - - How much to buy',
        *sorted(
            (
                f'proposed gaps {gaps} 2026-10-20 00:00:03 create: the day asks to create it',
                f'stale sizing {stale} 2026-10-20 00:00:03 revise: the day asks to revise it',
            ),
            key=lambda line: line.split()[2],
        ),
    ]
    assert result.stderr == (f'hint: `trading-agent skills show main {gaps}`, then `skills approve` or `reject`\n')
    assert call('skills', 'list', 'main').stdout == result.stdout


def test_no_skills(tmp_path: Path) -> None:
    """A desk that has none says so; for programs it is an empty list."""
    (tmp_path / 'workspace' / 'desks' / 'main').mkdir(parents=True)
    result = call('skills', 'main')
    assert (result.exit_code, result.stdout, result.stderr) == (0, '', 'main has no skill yet\n')
    assert rows() == []


def test_approve_and_revert(folder: Path) -> None:
    """A change is made, listed with its id, taken back by it, and that is taken back again."""
    change = propose(folder, 'revise', 'sizing', REVISED, SIZING)
    assert rows() == [('active', 'sizing', None), ('proposed', 'sizing', change)]
    result = call('skills', 'approve', 'main', change)
    assert result.stdout == f'main: sizing is revised; `trading-agent skills revert main {change}` undoes it\n'
    assert read_skill(folder, 'sizing').encode() == REVISED
    assert rows() == [('active', 'sizing', change)]
    result = call('skills', 'revert', 'main', change)
    assert result.stdout == (
        f'main: sizing is as it was before; `trading-agent skills revert main {change}.r1` undoes that\n'
    )
    assert read_skill(folder, 'sizing').encode() == SIZING
    assert json.loads(call('skills', 'revert', 'main', f'{change}.r1', '--json').stdout) == {
        'desk': 'main', 'id': f'{change}.r1.r1', 'name': 'sizing', 'action': 'revise', 'outcome': 'reverted',
    }  # fmt: skip
    assert read_skill(folder, 'sizing').encode() == REVISED
    assert [record.by for record in SkillStore(folder).records()] == ['curator', 'anil', 'anil', 'anil']


def test_archive_and_bring_back(folder: Path) -> None:
    """A skill that is archived is listed as such, with the id that brings it back."""
    change = propose(folder, 'archive', 'sizing', b'', SIZING)
    assert 'sizing is archived' in call('skills', 'main', 'approve', change).stdout
    assert rows() == [('archived', 'sizing', change)]
    assert skill_list(folder) == []
    call('skills', 'revert', 'main', change)
    assert rows() == [('active', 'sizing', f'{change}.r1')]


def test_reject(folder: Path) -> None:
    """A change that is turned down is gone from the list; the reason is written down."""
    change = propose(folder, 'create', 'gaps', skill_text('gaps', 'What to do on a gap', 'Wait.'))
    result = call('skills', 'reject', 'main', change, '--reason', 'too early')
    assert result.stdout == 'main: create gaps is rejected\n'
    assert rows() == [('active', 'sizing', None)]
    assert SkillStore(folder).records()[-1].why == 'too early'


def test_show(folder: Path) -> None:
    """A skill is shown as it is; a change that waits with its reason, and what it would do."""
    assert call('skills', 'show', 'main', 'sizing').stdout == SIZING.decode()
    assert json.loads(call('skills', 'show', 'main', 'sizing', '--json').stdout)['text'] == SIZING.decode()
    change = propose(folder, 'revise', 'sizing', REVISED, SIZING)
    lines = call('skills', 'show', 'main', change).stdout.split('\n')
    assert lines[:3] == [
        'revise sizing, proposed (2026-10-20 00:00:03 IST)',
        'the day asks to revise it',
        '',
    ]
    assert '-Never more than 4 lakh.' in lines
    assert '+Never more than 5 lakh.' in lines
    new = propose(folder, 'create', 'gaps', skill_text('gaps', 'What to do on a gap', 'Wait\x1b[2J.'))
    assert call('skills', 'show', 'main', new).stdout.endswith('---\n\nWait\ufffd[2J.\n')
    gone = propose(folder, 'archive', 'sizing', b'', SIZING)
    assert '-Never more than 4 lakh.' in call('skills', 'show', 'main', gone).stdout
    (folder / 'skills' / 'sizing' / 'SKILL.md').write_bytes(REVISED + b'x')
    assert 'revise sizing, stale: somebody changed the skill since' in call('skills', 'show', 'main', change).stdout


@pytest.mark.parametrize(
    ('arguments', 'error'),
    [
        (('show', 'main', 'sising'), "there is no skill 'sising'"),
        (('show', 'main', '../x'), "'../x' is no name of a skill"),
        (('show', 'main', '2026-10-19-00000000'), 'there is no proposal 2026-10-19-00000000'),
        (('approve', 'main', 'sizing'), "'sizing' is no id of a change"),
        (('approve', 'main', '../../x'), "'../../x' is no id of a change"),
        (('reject', 'main', '2026-10-19-00000000'), 'there is no proposal 2026-10-19-00000000'),
        (('revert', 'main', '2026-10-19-00000000'), 'no change 2026-10-19-00000000 was made'),
        (('approve', 'mian', '2026-10-19-00000000'), "has no desk 'mian'"),
    ],
)
def test_what_is_not_there(folder: Path, arguments: tuple[str, ...], error: str) -> None:
    """What is not there is an error with what to do: exit 1, and nothing is changed."""
    before = sorted(path for path in folder.rglob('*'))
    result = call('skills', *arguments)
    assert result.exit_code == 1
    assert error in result.stderr
    assert '\nhint: ' in result.stderr
    assert sorted(path for path in folder.rglob('*')) == before


def test_a_stale_change_is_not_made(folder: Path) -> None:
    """A skill that somebody changed since is left alone: exit 1, and what to do; rejecting it is possible."""
    change = propose(folder, 'revise', 'sizing', REVISED, SIZING)
    (folder / 'skills' / 'sizing' / 'SKILL.md').write_bytes(SIZING + b'Mine.\n')
    assert rows()[1] == ('stale', 'sizing', change)
    result = call('skills', 'approve', 'main', change)
    assert result.exit_code == 1
    assert 'is no longer what' in result.stderr
    assert '\nhint: nothing was done; compare' in result.stderr
    assert read_skill(folder, 'sizing').endswith('Mine.\n')
    assert call('skills', 'reject', 'main', change).exit_code == 0


def test_usage() -> None:
    """Without a desk the help is shown; a mistyped command is told with the nearest one: exit 2."""
    assert call('skills').exit_code == 2
    result = call('skills', 'aprove', 'main', 'x')
    assert result.exit_code == 2
    assert "did you mean 'approve'?" in result.stderr
    assert 'skills [OPTIONS] DESK | COMMAND DESK ID' in call('skills', '--help').stdout
