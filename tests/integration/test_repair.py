"""`repair`: what it mends, what it keeps of it, what it leaves to a person, and when it does nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from audited_desks import (
    FIRST,
    JOURNAL,
    LOG,
    MAIN,
    SECOND,
    STATE,
    THIRD,
    TRIGGERS,
    Line,
    add,
    change,
    copy_of,
    everything_in,
    findings,
    make_workspace,
    offset_of,
    problems,
    verify,
)
from cli_fakes import call, lonely
from daemon_fakes import MORNING, answered, config_for, daemon_of

from trading_agent import files
from trading_agent.clock import ManualClock
from trading_agent.config import Desk
from trading_agent.files import Lock

IDS = f'{MAIN}/sessions/.session-ids'
LOCK = 'trading-agent.lock'
TORN = b'{"type":"closed","at":"2026-03-1'


@pytest.fixture(scope='module')
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of two desks with three days each; nothing of it is to be changed."""
    folder = tmp_path_factory.mktemp('template') / 'ws'
    make_workspace(folder)
    return folder


@pytest.fixture
def ws(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that workspace."""
    lonely(tmp_path, monkeypatch)
    return copy_of(template, tmp_path / 'ws')


def repair(workspace: Path, *arguments: str) -> Line:
    """Returns what `repair --json` tells; its exit code is as what it tells."""
    result = call('--workspace', str(workspace), '--json', 'repair', *arguments)
    told: Line = json.loads(result.stdout)
    assert result.exit_code == (1 if told['left'] else 0)
    return told


# -- what it mends ---------------------------------------------------------------------------------------------

Damage = Callable[[Path], bytes | None]
"""Does something to a workspace; returns what has to be kept of a file, or None for nothing."""


def torn(path: str, tail: bytes = TORN) -> Damage:
    """Returns what leaves a torn line at the end of a file."""

    def tear(ws: Path) -> None:
        add(ws / path, tail)

    return tear


def _state(data: bytes) -> Damage:
    def damage(ws: Path) -> bytes:
        (ws / STATE).write_bytes(data)
        return data

    return damage


def _no_newline(ws: Path) -> None:
    (ws / LOG).write_bytes((ws / LOG).read_bytes()[:-1])


def _without(path: str) -> Damage:
    def remove(ws: Path) -> None:
        (ws / path).unlink()

    return remove


def _without_id(*session_ids: str) -> Damage:
    def remove(ws: Path) -> None:
        listed = (ws / IDS).read_text().split('\n')
        (ws / IDS).write_text('\n'.join(each for each in listed if each not in session_ids))

    return remove


def _left_over(ws: Path) -> None:
    (ws / MAIN / 'sessions' / '.state.json.0123abcd.tmp').write_bytes(b'{')
    (ws / '.index.sqlite3.tmp').write_bytes(b'')


def _open(path: str, mode: int) -> Damage:
    def widen(ws: Path) -> None:
        (ws / path).chmod(mode)

    return widen


def _index(ws: Path) -> bytes:
    (ws / 'index.sqlite3').write_bytes(b'no index')
    return b'no index'


MENDED: dict[str, tuple[Damage, str, str]] = {
    'torn triggers': (torn(TRIGGERS), TRIGGERS, 'closed its torn last line'),
    'a torn log': (torn(LOG, b'{"trigger_text":"x'), LOG, 'closed its torn last line'),
    'a torn journal': (torn(JOURNAL), JOURNAL, 'closed its torn last line'),
    'a torn archive': (torn(f'{MAIN}/triggers/{FIRST}.jsonl'), f'{MAIN}/triggers/{FIRST}.jsonl', 'closed its torn'),
    'torn notes': (torn(f'{MAIN}/notes/{FIRST}.jsonl'), f'{MAIN}/notes/{FIRST}.jsonl', 'closed its torn last line'),
    'a torn id': (torn(IDS, b'2026-03'), IDS, 'closed its torn last line'),
    'a last line without its newline': (
        _no_newline,
        LOG,
        'closed its torn last line',
    ),
    'no list of ids': (_without(IDS), IDS, 'put 3 ids into it'),
    'a list without an id': (_without_id(SECOND), IDS, 'put 1 id into it'),
    'a list without old ids': (_without_id(FIRST, SECOND), IDS, 'put 2 ids into it'),
    'a damaged state': (_state(b'{"session_id":'), STATE, f'rebuilt it: the session {THIRD} goes on'),
    'an empty state': (_state(b''), STATE, f'rebuilt it: the session {THIRD} goes on'),
    'no state': (_without(STATE), STATE, f'rebuilt it: the session {THIRD} goes on'),
    'temporary files': (_left_over, f'{MAIN}/sessions/.state.json.0123abcd.tmp', 'removed it'),
    'an open log': (_open(LOG, 0o644), LOG, 'gave it the mode 0600'),
    'an open folder': (_open(f'{MAIN}/journal', 0o755), f'{MAIN}/journal', 'gave it the mode 0700'),
    'a file that cannot be read': (_open(LOG, 0), LOG, 'gave it the mode 0600'),
    'a closed folder': (_open(f'{MAIN}/journal', 0o500), f'{MAIN}/journal', 'gave it the mode 0700'),
    'a damaged index': (_index, 'index.sqlite3', 'made it anew from the files'),
}


@pytest.mark.parametrize('name', MENDED)
def test_it_mends(ws: Path, name: str) -> None:
    """What it says it would do it does, keeping what it replaces; a clean workspace is left, and nothing to do."""
    damage, path, what = MENDED[name]
    kept_bytes = damage(ws)
    before = everything_in(ws)
    planned = repair(ws, '--dry-run')
    assert everything_in(ws) == before
    told = repair(ws)
    assert [step['path'] for step in told['done']] == [step['path'] for step in planned['done']]
    assert told['left'] == planned['left'] == []
    (step,) = [step for step in told['done'] if step['path'] == path]
    assert what in step['what']
    if kept_bytes is None:
        assert step['kept'] is None
    else:
        assert step['kept'].startswith(f'{path}.damaged-2')
        assert (ws / step['kept']).read_bytes() == kept_bytes
    assert verify(ws)['ok']
    repaired = everything_in(ws, leaving_out=[LOCK, 'ws'])
    assert repair(ws) == {'done': [], 'left': []}
    assert everything_in(ws, leaving_out=[LOCK, 'ws']).keys() == repaired.keys()
    for each, now in everything_in(ws, leaving_out=[LOCK, 'ws']).items():
        assert now[-1] == repaired[each][-1], each


def test_everything_at_once(ws: Path) -> None:
    """Several faults are mended in one go, no byte of what was whole is changed, and a daemon goes on from there."""
    whole = {path: (ws / path).read_bytes() for path in (TRIGGERS, LOG, JOURNAL)}
    for damage in (torn(TRIGGERS), torn(LOG), torn(JOURNAL), _state(b'?'), _left_over, _open(IDS, 0o640), _index):
        damage(ws)
    assert repair(ws)['left'] == []
    assert verify(ws)['ok']
    for path, data in whole.items():
        assert (ws / path).read_bytes() == data + TORN + b'\n'
    state = json.loads((ws / STATE).read_bytes())
    assert state == {'session_id': THIRD, 'trading_date': '2026-03-12', 'routes': {}}


async def test_a_daemon_goes_on(ws: Path) -> None:
    """After a repair the desk starts in its session, answers, and what it writes is clean."""
    for damage in (torn(TRIGGERS), torn(LOG), torn(JOURNAL), _state(b'?')):
        damage(ws)
    repair(ws)
    clock = ManualClock(MORNING + timedelta(days=2))
    async with daemon_of(config_for(ws, desks=[Desk(name='main'), Desk(name='other')]), clock) as daemon:
        await answered(daemon, 'main', 'after')
        assert daemon.supervisor.desks['main'].session_id == THIRD
    assert verify(ws)['ok']


def test_a_rollover_says_which_session_goes_on(ws: Path) -> None:
    """A state that is lost in the middle of a rollover is rebuilt as the next start would: from the rollover."""
    (ws / STATE).unlink()
    rollover = {'ended_session_id': THIRD, 'reason': 'manual', 'stage': 'summary', 'exchanges': 3}
    (ws / MAIN / 'sessions' / 'rollover.json').write_text(json.dumps(rollover))
    (ws / MAIN / 'sessions' / 'rollover.json').chmod(0o600)
    (ws / MAIN / 'sessions' / '2026-03-12-2.jsonl').touch(0o600)
    assert repair(ws) == {
        'done': [{'path': STATE, 'what': f'rebuilt it: the session {THIRD} goes on', 'kept': None}],
        'left': [],
    }


def test_an_old_rollover_leads_into_no_session_that_has_ended(ws: Path) -> None:
    """Where the state is lost too, the last session goes on, and not the one that a rollover long ago was about."""
    (ws / STATE).unlink()
    rollover = {'ended_session_id': FIRST, 'new_session_id': SECOND, 'reason': 'manual', 'stage': 'summary'}
    (ws / MAIN / 'sessions' / 'rollover.json').write_text(json.dumps(rollover))
    (ws / MAIN / 'sessions' / 'rollover.json').chmod(0o600)
    assert [step['what'] for step in repair(ws)['done']] == [f'rebuilt it: the session {THIRD} goes on']
    assert not [what for (path, *_), what in problems(ws) if path == STATE]


def _newest_log_lost(ws: Path) -> None:
    (ws / LOG).unlink()


def _stray_log(name: str) -> Callable[[Path], None]:
    def stray(ws: Path) -> None:
        shutil.copy(ws / LOG, ws / MAIN / 'sessions' / f'{name}.jsonl')

    return stray


@pytest.mark.parametrize('damage', [_newest_log_lost, _stray_log('2026-03-12-9'), _stray_log('2026-03-13-1')])
def test_logs_that_are_not_those_that_were_begun(ws: Path, damage: Callable[[Path], None]) -> None:
    """With a log that is lost, or one whose id was never given out, it is for a person to say which session goes on."""
    (ws / STATE).unlink()
    damage(ws)
    told = repair(ws)
    assert STATE not in [step['path'] for step in told['done']]
    assert STATE in [each['path'] for each in told['left']]
    assert not (ws / STATE).exists()


def test_one_desk(ws: Path) -> None:
    """With a DESK nothing else is touched."""
    torn(TRIGGERS)(ws)
    torn('desks/other/triggers.jsonl')(ws)
    other = (ws / 'desks/other/triggers.jsonl').read_bytes()
    assert [step['path'] for step in repair(ws, 'main')['done']] == [TRIGGERS]
    assert (ws / 'desks/other/triggers.jsonl').read_bytes() == other
    assert [path for (path, *_), _ in problems(ws)] == ['desks/other/triggers.jsonl']


# -- what it leaves --------------------------------------------------------------------------------------------


def test_what_a_person_has_to_decide(ws: Path) -> None:
    """What can be mended is, the rest is told with its place, and left to the byte as it is."""
    change(ws / LOG, 2, b'{"no": 1}\n')
    torn(TRIGGERS)(ws)
    log = (ws / LOG).read_bytes()
    planned = repair(ws, '--dry-run')
    told = repair(ws)
    assert [step['path'] for step in told['done']] == [TRIGGERS]
    left = {'path': LOG, 'what': f'line 2 (offset {offset_of(ws / LOG, 2)}): cannot be read: '}
    assert any(each['path'] == LOG and each['what'].startswith(left['what']) for each in told['left'])
    assert told['left'] == planned['left']
    assert (ws / LOG).read_bytes() == log
    shown = call('--workspace', str(ws), 'repair')
    assert shown.exit_code == 1
    assert f'left: {LOG}: line 2' in shown.stdout
    assert 'for a person to decide' in shown.stderr


def _both_damaged(ws: Path) -> None:
    (ws / STATE).write_bytes(b'?')
    (ws / MAIN / 'sessions' / 'rollover.json').write_bytes(b'?')
    (ws / MAIN / 'sessions' / 'rollover.json').chmod(0o600)


def _newer(ws: Path) -> None:
    change(ws / TRIGGERS, 1, lambda line: line.replace(b'"version":1', b'"version":2'))
    torn(TRIGGERS)(ws)


def _of_the_future(ws: Path) -> None:
    for desk in (ws / 'desks').iterdir():
        for folder in ('sessions', 'journal', 'triggers'):
            for path in sorted((desk / folder).glob('*.jsonl')):
                path.rename(path.with_name(path.name.replace('2026', '9026')))
    (ws / STATE).unlink()


@pytest.mark.parametrize('damage', [_both_damaged, _newer, _of_the_future, _without_id(THIRD)])
def test_where_there_is_a_doubt(ws: Path, damage: Callable[[Path], None]) -> None:
    """State and rollover both damaged, a newer version's file, logs of a wrong clock, the last id gone: all is left."""
    damage(ws)
    before = everything_in(ws, leaving_out=[LOCK])
    told = repair(ws, 'main')
    assert told['done'] == []
    assert told['left']
    assert everything_in(ws, leaving_out=[LOCK]) == before


# -- who holds the workspace -----------------------------------------------------------------------------------


@pytest.mark.parametrize('arguments', [(), ('--dry-run',)])
def test_refused_beside_a_daemon(ws: Path, arguments: tuple[str, ...]) -> None:
    """While somebody holds the workspace nothing is done, and who it is is told with what to do."""
    torn(TRIGGERS)(ws)
    lock = Lock(ws / LOCK)
    assert lock.acquire() is None
    lock.write(b'{"pid": 4711, "started_at": "2026-03-12T04:00:00Z"}')
    before = everything_in(ws)
    result = call('--workspace', str(ws), 'repair', *arguments)
    assert result.exit_code == 1
    assert 'is held by the process 4711' in result.stderr
    assert 'hint: stop that daemon first' in result.stderr
    assert everything_in(ws) == before
    lock.release()
    assert call('--workspace', str(ws), 'repair').exit_code == 0


def test_no_daemon_starts_meanwhile(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it works it holds the workspace as a daemon does, and says who it is; afterwards nobody does."""
    torn(TRIGGERS)(ws)
    seen = []

    def seal(path: Path) -> bool:
        seen.append(Lock(ws / LOCK).acquire())
        return real(path)

    real = files.seal
    monkeypatch.setattr(files, 'seal', seal)
    assert repair(ws)['left'] == []
    (held,) = seen
    assert json.loads(held or b'')['pid'] == os.getpid()
    assert Lock(ws / LOCK).acquire() is None


# -- killed ----------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
left = int(sys.argv[2])

def deadly(module, name):
    real = getattr(module, name)
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(module, name, call)

from trading_agent.audit.repairs import repair
for name in ('pwrite', 'fsync', 'fdatasync', 'rename', 'replace', 'link', 'unlink', 'ftruncate', 'chmod'):
    deadly(os, name)
for name in ('rename', 'unlink', 'chmod'):
    deadly(Path, name)
repair(Path(sys.argv[1]), 'main')
"""


def test_killed_at_every_step(ws: Path, tmp_path: Path) -> None:
    """Killed before any of its writes it is begun again and ends well, with no byte of what was there lost."""
    for damage in (torn(TRIGGERS), _state(b'broken'), _left_over, _open(LOG, 0o644)):
        damage(ws)
    (ws / '.index.sqlite3.tmp').unlink()
    kept: set[bytes] = set()
    for step in range(40):
        copy = copy_of(ws, tmp_path / str(step))
        killed = subprocess.run([sys.executable, '-c', KILLED, str(copy), str(step)], check=False, timeout=30)
        assert (copy / TRIGGERS).read_bytes().startswith((ws / TRIGGERS).read_bytes())
        assert (copy / LOG).read_bytes() == (ws / LOG).read_bytes()
        found = findings(verify(copy, 'main'))
        assert all('cannot be read' not in what for _, what in found), found
        assert repair(copy)['left'] == []
        assert verify(copy)['ok']
        kept |= {path.read_bytes() for path in (copy / MAIN / 'sessions').glob('state.json.damaged-*')}
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL
    assert 10 < step < 39
    assert kept == {b'broken'}
