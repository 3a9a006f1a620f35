"""`verify`: what is damaged, missing or contradicts another file is told where it is; all else is clean."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
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
    Found,
    Line,
    add,
    change,
    copy_of,
    everything_in,
    findings,
    kill_left,
    lines_in,
    make_workspace,
    notes,
    number_of,
    offset_of,
    problems,
    record,
    verify,
)
from cli_fakes import call, lonely
from daemon_fakes import MORNING, answered, config_for, daemon_of, until
from keeper_fakes import spare_the_disk
from memory_growth import grown_by

from trading_agent.audit.desk_audit import audit_desk
from trading_agent.audit.findings import DeskReport
from trading_agent.audit.holder import find_holder
from trading_agent.audit.workspace_audit import audit
from trading_agent.clock import ManualClock
from trading_agent.config import Desk
from trading_agent.files import Lock
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_state import RouteState, SessionState
from trading_agent.memory.session_store import SessionStore
from trading_agent.trigger import Trigger

ARCHIVE = f'{MAIN}/triggers/{SECOND}.jsonl'
SUMMARY = f'{MAIN}/sessions/summaries/2026-03-11.md'
HISTORY = 'desks/other/memory_history'


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


# -- clean -----------------------------------------------------------------------------------------------------


def test_a_clean_workspace(ws: Path) -> None:
    """What real desks have made is clean, told in a line for each, and left as it is to the byte."""
    before = everything_in(ws)
    told = verify(ws)
    assert told['ok']
    records = {file['path']: (file['kind'], file['records']) for file in told['files']}
    assert records[LOG] == ('exchanges', 3)
    assert records[STATE] == ('state', 1)
    assert records[JOURNAL] == ('journal', len(lines_in(ws / JOURNAL)) - 1)
    assert records[TRIGGERS] == ('triggers', len(lines_in(ws / TRIGGERS)))
    assert {kind for kind, _ in records.values()} == {
        'exchanges', 'index', 'journal', 'ledger', 'memory', 'notes', 'session_ids', 'skill', 'state', 'summary',
        'triggers',
    }  # fmt: skip
    assert findings(told, 'notes') == [((TRIGGERS, None, None), '1 open trigger: waits (waits)')]
    shown = call('--workspace', str(ws), 'verify')
    assert shown.exit_code == 0
    journaled = sum(len(lines_in(path)) - 1 for path in (ws / MAIN / 'journal').iterdir())
    assert shown.stdout.split('\n')[0] == (
        f'main: 3 sessions, 9 exchanges, 10 triggers (1 open), {journaled} journal records: clean'
    )
    assert shown.stdout.endswith(f'clean: {ws}\n')
    assert everything_in(ws) == before


def test_one_desk(ws: Path) -> None:
    """With a DESK only its files are read, and one that there is none of is an error that names the others."""
    change(ws / LOG, 1, b'[]\n')
    assert problems(ws, 'other') == []
    assert {file['path'].split('/')[1] for file in verify(ws, 'main')['files']} == {'main'}
    refused = call('--workspace', str(ws), 'verify', 'mian')
    assert refused.exit_code == 1
    assert "did you mean 'main'?" in refused.stderr


def test_in_words(ws: Path) -> None:
    """A problem is told by file, line and offset, and `repair` is named where it mends something."""
    change(ws / LOG, 2, b'[]\n')
    add(ws / TRIGGERS, b'{"type":"clo')
    shown = call('--workspace', str(ws), 'verify')
    assert shown.exit_code == 1
    at = offset_of(ws / LOG, 2)
    assert f'problem: {LOG}:2 (offset {at}): cannot be read: ' in shown.stdout
    assert f'problem: {TRIGGERS}:' in shown.stdout
    assert '`trading-agent repair --dry-run` tells what' in shown.stderr


def test_names_that_would_command_the_terminal(ws: Path) -> None:
    """A name with a line break or control characters is told on one line, without them."""
    for name in ('a\nclean: all', '\x1b[2Jb'):
        os.mkfifo(ws / MAIN / 'triggers' / f'{name}.jsonl', 0o600)
    shown = call('--workspace', str(ws), 'verify')
    assert '\x1b' not in shown.stdout
    for name in ('a\ufffdclean: all', '\ufffd[2Jb'):
        assert f'note: {MAIN}/triggers/{name}.jsonl: has a name that is no session' in shown.stdout


def test_a_folder_of_the_first_program(tmp_path: Path) -> None:
    """A desk of which there is but a sessions folder, in the layout of the first program, is clean."""
    sessions = tmp_path / 'ws' / 'desks' / 'old' / 'sessions'
    (sessions / 'summaries').mkdir(parents=True)
    for day, count in (('2025-01-06', 3), ('2025-01-07', 1)):
        lines = [vars(Exchange(f'told {n}', 'said', 'gpt', f'{day}T04:00:0{n}+00:00')) for n in range(count)]
        wanted = ('trigger_text', 'answer', 'backend_name', 'finished_at')
        text = ''.join(json.dumps({name: line[name] for name in wanted}) + '\n' for line in lines)
        (sessions / f'{day}-1.jsonl').write_text(text)
    (sessions / 'summaries' / '2025-01-06.md').write_text('Bought nothing.\n')
    store = SessionStore(sessions)
    store.save_state(SessionState('2025-01-07-1', store.today().replace(2025, 1, 7), {'gpt': RouteState(1, None)}))
    assert problems(tmp_path / 'ws') == []


# -- damaged, missing, contradicting -----------------------------------------------------------------------------


def damaged_line(path: str, number: int, new: bytes = b'{"type":"closed" "id"}\n') -> Callable[[Path], Found]:
    """Returns what puts something in the place of a line that is none."""

    def damage(ws: Path) -> Found:
        change(ws / path, number, new)
        return path, number, offset_of(ws / path, number)

    return damage


def test_each_kind_of_line_that_cannot_be_read(ws: Path) -> None:
    """A line that is no record is told by number and offset in every kind of file, whatever is wrong with it."""
    news = (b'null\n', b'{"type":"what"}\n', b'\xff\xfe{}\n', b'{}}\n', b'[' * 100_000 + b'\n', b'\xef\xbb\xbf\n')
    for path in (TRIGGERS, ARCHIVE, LOG, JOURNAL, f'{MAIN}/notes/{FIRST}.jsonl', f'{HISTORY}/ledger.jsonl'):
        kept = (ws / path).read_bytes()
        for new in news:
            place = damaged_line(path, 2, new)(ws)
            told = dict(problems(ws))
            assert told[place].startswith('cannot be read: '), (path, new, told)
        (ws / path).write_bytes(kept)
    (ws / MAIN / 'sessions' / '.session-ids').write_bytes(b'2026-03-10-1\nwhat\n')
    assert (f'{MAIN}/sessions/.session-ids', 2, 13) in dict(problems(ws))


Planted = tuple[Callable[[Path], Found], str]


def on_line(path: str, do: Callable[[Path], int]) -> Callable[[Path], Found]:
    """Returns what does something to a file, and where that is to show: at the line that `do` returns."""

    def plant(ws: Path) -> Found:
        number = do(ws / path)
        return path, number, offset_of(ws / path, number)

    return plant


def on_file(path: str, do: Callable[[Path], object]) -> Callable[[Path], Found]:
    """Returns what does something to a file that shows in the whole of it."""

    def plant(ws: Path) -> Found:
        do(ws / path)
        return path, None, None

    return plant


def appended(*records: Line) -> Callable[[Path], int]:
    """Returns what adds records at the end of a file, and returns the last one's line."""

    def append(path: Path) -> int:
        add(path, *records)
        return len(lines_in(path))

    return append


def _without(path: Path, number: int) -> int:
    change(path, number, b'')
    return number


def _swapped(path: Path, number: int) -> int:
    lines = lines_in(path)
    lines[number - 1], lines[number] = lines[number], lines[number - 1]
    path.write_bytes(b''.join(lines))
    return number


def _changed(path: Path, number: int, old: bytes, new: bytes) -> int:
    change(path, number, lambda line: line.replace(old, new))
    return number


def _without_its_trigger(path: Path) -> int:
    triggers = path.parents[1] / 'triggers.jsonl'
    triggers.write_bytes(b''.join(line for line in lines_in(triggers) if b'main-3-3' not in line))
    return 3


def _edited(number: int, **fields: object) -> Callable[[Path], int]:
    def edit(path: Path) -> int:
        at = number if number > 0 else len(lines_in(path)) + 1 + number
        change(path, at, json.dumps(record(path, at) | fields, separators=(',', ':')).encode() + b'\n')
        return at

    return edit


def _again(number: int) -> Callable[[Path], int]:
    def again(path: Path) -> int:
        add(path, lines_in(path)[number - 1])
        return len(lines_in(path))

    return again


def _state(**fields: object) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _lost_exchange(path: Path) -> int:
    change(path.parents[1] / 'sessions' / f'{THIRD}.jsonl', 2, b'')
    return number_of(path, type='turn_finished', turn_id='main-3-2:1')


def _closing_of_a_lost_exchange(path: Path) -> int:
    change(path.parent / 'sessions' / f'{THIRD}.jsonl', 2, b'')
    return number_of(path, type='closed', id='main-3-2')


def _header_again(path: Path) -> int:
    header = lines_in(path)[0]
    change(path, 1, header + header)
    return 2


def _without_header(path: Path) -> int:
    change(path, 1, b'\n')
    return 2


def _forgotten_trigger(path: Path) -> int:
    current = path.parents[1] / 'triggers.jsonl'
    current.write_bytes(b''.join(line for line in lines_in(current) if b'"id":"main-2-3"' not in line))
    return number_of(path, type='closed', id='main-2-3')


def _ended_otherwise(path: Path) -> int:
    return _changed(path, number_of(path, type='closed', id='main-2-3'), b'"answered"', b'"failed"')


def _lost_trigger(path: Path) -> int:
    add(path, lines_in(path)[number_of(path, type='accepted') - 1].replace(b'main-2-3', b'lost'))
    return len(lines_in(path))


def _added(data: bytes) -> Callable[[Path], int]:
    def plant(path: Path) -> int:
        add(path, data)
        return len(lines_in(path))

    return plant


def _without_what_it_names(path: Path) -> int:
    path.with_name(f'{FIRST}.md').unlink()
    return 2


def _proposal(path: Path) -> None:
    path.parent.mkdir(0o700)
    path.write_text('{}')
    path.chmod(0o600)


def _file_instead(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b'')


def _folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def _section(text: str) -> Callable[[Path], int]:
    def write(path: Path) -> int:
        add(path, f'\n{text}\n\nMore.\n'.encode())
        return max(at for at, line in enumerate(lines_in(path), 1) if line.strip() == text.encode())

    return write


CLOSED: Line = {
    'type': 'closed',
    'at': '2026-03-12T04:30:00Z',
    'id': 'main-3-1',
    'outcome': 'failed',
    'session_id': THIRD,
}

PLANTED: dict[str, Planted] = {
    'a trigger accepted twice': (
        on_line(ARCHIVE, lambda path: _again(number_of(path, type='accepted'))(path)),
        'the trigger main-2-3 is accepted twice',
    ),
    'a closing of nobody': (
        on_line(TRIGGERS, appended(CLOSED | {'id': 'nobody'})),
        'closes the trigger nobody, which is not known',
    ),
    'a carried closing of nobody': (on_line(TRIGGERS, _edited(2, id='nobody')), 'closes the trigger nobody'),
    'a start of nobody': (
        on_line(TRIGGERS, appended({'type': 'started', 'at': 'now', 'id': 'nobody', 'attempt': 1})),
        'the trigger nobody is not known',
    ),
    'two outcomes': (on_line(TRIGGERS, appended(CLOSED)), 'is closed as failed, and was closed as answered before'),
    'triggers without a header': (on_line(TRIGGERS, lambda path: _without(path, 1)), 'does not begin with a header'),
    'triggers of another desk': (on_line(TRIGGERS, _edited(1, desk='other')), "is of the desk 'other'"),
    'triggers of a newer version': (on_file(TRIGGERS, _edited(1, version=2)), 'has format 2, and this program knows'),
    'a trigger that a rollover lost': (
        on_line(
            ARCHIVE,
            _lost_trigger,
        ),
        'the trigger lost is open here, and the file after this one does not know it',
    ),
    'no triggers': (on_file(TRIGGERS, Path.unlink), 'is missing'),
    'empty triggers': (on_file(TRIGGERS, lambda path: path.write_bytes(b'')), 'is empty'),
    'no archive': (on_file(f'{MAIN}/triggers/{FIRST}.jsonl', Path.unlink), 'is missing: the session has ended'),
    'a desk that is gone': (on_file('desks/other', shutil.rmtree), 'is missing: the index has sessions of this desk'),
    'a journal with two headers': (on_line(JOURNAL, _header_again), 'is a second header'),
    'triggers with a blank header': (on_line(TRIGGERS, _without_header), 'does not begin with a header'),
    'notes without a header': (
        on_line(f'{MAIN}/notes/{FIRST}.jsonl', _without_header),
        'does not begin with a header',
    ),
    'a trigger that a rollover forgot': (
        on_line(ARCHIVE, _forgotten_trigger),
        'the trigger main-2-3 is closed here, and the file after this one has forgotten it',
    ),
    'a trigger that ended in two ways': (
        on_line(ARCHIVE, _ended_otherwise),
        'closes the trigger main-2-3 as failed, and the file after this one as answered',
    ),
    'a trigger without its id': (
        on_line(TRIGGERS, lambda path: _changed(path, number_of(path, type='accepted'), b'"id"', b'"ie"')),
        'cannot be read: ValueError: the trigger has no id',
    ),
    'a byte in a name': (
        on_line(TRIGGERS, lambda path: _changed(path, number_of(path, type='closed'), b'"session_id"', b'"ses\xff"')),
        'cannot be read: UnicodeDecodeError',
    ),
    'answered in no session': (
        on_line(TRIGGERS, lambda path: _changed(path, number_of(path, type='closed'), b'session_id', b'session')),
        'closes the trigger main-3-3 as answered, and names no session',
    ),
    'answered without an exchange': (
        on_line(TRIGGERS, _closing_of_a_lost_exchange),
        f'the trigger main-3-2 is closed as answered, and {LOG} has no exchange of it',
    ),
    'a finished turn without an exchange': (
        on_line(JOURNAL, _lost_exchange),
        f'the answer to the trigger main-3-2 is not in {LOG}',
    ),
    'an exchange twice': (on_line(LOG, _again(2)), 'the trigger main-3-2 is answered a second time: see line 2'),
    'an exchange whose trigger is lost': (
        on_line(LOG, _without_its_trigger),
        'the trigger main-3-3 is answered here, and no file of triggers knows it',
    ),
    'another order': (on_line(LOG, lambda path: _swapped(path, 1) + 1), 'stands behind the exchange of a later turn'),
    'another answer': (on_line(LOG, _edited(2, answer='no')), 'says something else than the journal in: the answer'),
    'another message': (on_line(LOG, _edited(1, trigger_text='no')), 'than the journal in: what it was told'),
    'an exchange of no turn': (
        on_line(LOG, appended(vars(Exchange('x', 'y', 'gpt', '2026-03-12T05:00:00Z', 'never')) | {'trigger_ids': []})),
        'the journal has no finished turn of the trigger never',
    ),
    'no log': (on_file(f'{MAIN}/sessions/{SECOND}.jsonl', Path.unlink), 'is missing: the session has a journal'),
    'an altered record': (on_line(JOURNAL, _edited(4, text='no', turn_id='x')), 'the record 3 was altered'),
    'an altered header': (on_line(JOURNAL, _edited(1, created_at='2026-03-12T00:00:00Z')), 'the header was altered'),
    'a record taken out': (
        on_line(JOURNAL, lambda path: _without(path, 5)),
        'the record 4 is missing in front of this',
    ),
    'a record moved': (on_line(JOURNAL, lambda path: _swapped(path, 5)), 'the record 5 was moved'),
    'an altered last record': (
        on_line(f'{MAIN}/journal/{SECOND}.jsonl', _edited(-1, backend='gpt')),
        f'does not end as the journal of {THIRD} says',
    ),
    'a journal of another session': (on_line(JOURNAL, _edited(1, session_id=FIRST)), f'is of the session {FIRST!r}'),
    'a journal of another desk': (on_line(JOURNAL, _edited(1, desk='other')), "is of the desk 'other'"),
    'a journal that follows another': (on_line(JOURNAL, _edited(1, previous_session_id=FIRST)), f'follows {FIRST}, as'),
    'a journal that follows none': (on_line(JOURNAL, _edited(1, previous_session_id='')), 'does not say which journal'),
    'a journal of a newer version': (on_file(JOURNAL, _edited(1, version='3.0')), 'has format 3.0'),
    'no journal': (on_file(JOURNAL, Path.unlink), 'is missing: the session has a log'),
    'a journal without a header': (on_line(JOURNAL, lambda path: _without(path, 1)), 'has no header'),
    'a damaged state': (on_file(STATE, lambda path: path.write_bytes(b'{"session_id"')), 'is damaged: '),
    'no state': (on_file(STATE, Path.unlink), 'is missing: there are sessions'),
    'a state of no session': (
        on_file(STATE, _state(session_id='2026-03-12-7')),
        'names the session 2026-03-12-7, which has no log',
    ),
    'a state of another day': (on_file(STATE, _state(trading_date='2026-03-11')), 'is damaged: ValueError'),
    'a state of an earlier session': (
        on_file(STATE, _state(session_id=SECOND, trading_date='2026-03-11', routes={})),
        f'names the session {SECOND}, and {THIRD} follows it',
    ),
    'a state that has seen too much': (
        on_file(STATE, _state(routes={'gpt': {'exchanges_seen': 4, 'runner_state': None}})),
        f'says that gpt has seen 4 exchanges of {THIRD}, which has 3',
    ),
    'a rollover of no session': (
        on_file(
            f'{MAIN}/sessions/rollover.json',
            lambda path: path.write_text('{"ended_session_id":"2026-03-09-1","reason":"manual","stage":"answers"}'),
        ),
        'is about the session 2026-03-09-1, which has no log',
    ),
    'a damaged rollover': (
        on_file(f'{MAIN}/sessions/rollover.json', lambda path: path.write_text('{')),
        'is damaged: ',
    ),
    'a newer rollover': (
        on_file(f'{MAIN}/sessions/rollover.json', lambda path: path.write_text('{"version": 2}')),
        'has format 2',
    ),
    'a damaged list of debts': (
        on_file(f'{MAIN}/sessions/untold.json', lambda path: path.write_text('["2026-03-10-1",')),
        'is damaged: ',
    ),
    'a debt of no session': (
        on_file(f'{MAIN}/sessions/untold.json', lambda path: path.write_text('["2026-03-01-1"]')),
        "names the session '2026-03-01-1', which is not known",
    ),
    'a damaged backfill': (
        on_file(f'{MAIN}/sessions/backfill.json', lambda path: path.write_text('{"parts": 1}')),
        'is damaged: ',
    ),
    'no section': (
        on_file(SUMMARY, lambda path: path.write_text('Nothing.\n')),
        f'has no section of the session {SECOND}',
    ),
    'no summary': (on_file(SUMMARY, Path.unlink), f'has no section of the session {SECOND}'),
    'two sections': (
        on_line(SUMMARY, _section(f'## Session {SECOND}')),
        f'has a second section of the session {SECOND}',
    ),
    'a section of another day': (on_line(SUMMARY, _section(f'## Session {THIRD}')), 'which is of another day'),
    'a section of no session': (on_line(SUMMARY, _section('## Session 2026-03-11-7')), 'which is not known'),
    'a summary that is no text': (
        on_line(SUMMARY, _added(b'a\n\xff\n')),
        'has a byte that is not UTF-8, 0xff',
    ),
    'a Memory.md that is no text': (
        on_line('desks/other/Memory.md', _added(b'a\xe9b\n')),
        'has a byte that is not UTF-8, 0xe9',
    ),
    'another history': (
        on_file(f'desks/other/memory_history/{FIRST}.md', lambda path: path.write_text('something else\n')),
        'is not the text that line 2 of ledger.jsonl says',
    ),
    'a history that is gone': (
        on_line(
            'desks/other/memory_history/ledger.jsonl',
            _without_what_it_names,
        ),
        f'the text that it names is missing: {FIRST}.md',
    ),
    'a skill that is none': (
        on_file(f'{MAIN}/skills/sizing/SKILL.md', lambda path: path.write_text('---\nname: siz')),
        'cannot be used: ',
    ),
    'a damaged proposal': (
        on_file(
            f'{MAIN}/skills/.proposed/2026-03-10-0123abcd.json',
            _proposal,
        ),
        'the proposal 2026-03-10-0123abcd cannot be read',
    ),
    'a damaged hold': (on_file(f'{MAIN}/paused.json', lambda path: path.write_text('yes')), 'is damaged: '),
    'damaged disabled backends': (
        on_file('disabled-backends.json', lambda path: path.write_text('{"version": 1}')),
        'is damaged: ',
    ),
    'notes of no session': (
        on_file(
            f'{MAIN}/notes/2026-03-11-7.jsonl',
            lambda path: path.write_bytes(lines_in(path.with_name(f'{FIRST}.jsonl'))[0]),
        ),
        'is of a session that is not known',
    ),
    'no list of ids': (on_file(f'{MAIN}/sessions/.session-ids', Path.unlink), 'is missing: there are sessions'),
    'an empty list of ids': (
        on_file(f'{MAIN}/sessions/.session-ids', lambda path: path.write_bytes(b'')),
        'is missing: there are sessions',
    ),
    'an id that was not given out': (
        on_file(f'{MAIN}/sessions/.session-ids', lambda path: change(path, 2, b'')),
        f'does not have {SECOND}, which has a journal',
    ),
    'an open file': (on_file(LOG, lambda path: path.chmod(0o644)), 'has the mode 0644, and is to have 0600'),
    'an open folder': (on_file(f'{MAIN}/journal', lambda path: path.chmod(0o755)), 'has the mode 0755, and is to have'),
    'a pipe': (
        on_file(f'{MAIN}/triggers/2026-03-09-1.jsonl', lambda path: os.mkfifo(path, 0o600)),
        'is no regular file',
    ),
    'a file in the place of a folder': (
        on_file(f'{MAIN}/notes', _file_instead),
        'cannot be listed: Not a directory',
    ),
    'a folder in the place of a file': (
        on_file(STATE, _folder_instead),
        'is no regular file',
    ),
    'an index that is none': (on_file('index.sqlite3', lambda path: path.write_text('no')), 'is damaged: '),
}


@pytest.mark.parametrize('name', PLANTED)
def test_planted(ws: Path, name: str) -> None:
    """Each contradiction is told in the file, the line and the offset where it is, and nothing is changed."""
    plant, what = PLANTED[name]
    place = plant(ws)
    before = everything_in(ws)
    told = problems(ws)
    assert [each for each in told if each[0] == place and what in each[1]], told
    assert everything_in(ws) == before
    assert not [path for (path, *_), _ in told if path.startswith('desks/other')] or place[0].startswith('desks/other')


# -- torn lines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('path', [TRIGGERS, LOG, JOURNAL, f'{MAIN}/sessions/.session-ids', f'{HISTORY}/ledger.jsonl'])
def test_a_torn_tail(ws: Path, path: str) -> None:
    """A file's torn last line is told with its offset; beside a daemon it is one that is being written."""
    size = (ws / path).stat().st_size
    place = path, len(lines_in(ws / path)) + 1, size
    torn = b'2026-03-' if path.endswith('-ids') else b'{"type":"closed","at":"2026'
    add(ws / path, torn)
    assert problems(ws) == [(place, f'ends in a torn line of {len(torn)} bytes')]
    lock = Lock(ws / 'trading-agent.lock')
    assert lock.acquire() is None
    told = verify(ws)
    lock.release()
    assert told['ok']
    assert (place, 'its last line is being written') in findings(told, 'notes')
    add(ws / path, b'\n')
    told = verify(ws)
    assert told['ok'], told
    assert [what for found, what in findings(told, 'notes') if found == place] == [
        'the beginning of a line that was never written to its end, as a crash leaves it'
    ]


@pytest.mark.parametrize(
    ('path', 'number', 'also'),
    [
        (TRIGGERS, 8, (TRIGGERS, 9)),
        (LOG, 2, (TRIGGERS, None)),
        (JOURNAL, 6, (JOURNAL, 7)),
    ],
)
def test_what_was_whole_once(ws: Path, path: str, number: int, also: tuple[str, int | None]) -> None:
    """A line that is cut off but has left its traces elsewhere was acknowledged: it is damaged, and so told."""
    kill_left(ws / path, number)
    told = {found[:2] for found, _ in problems(ws)}
    assert (path, number) in told
    assert [found for found in told if found[0] == also[0] and also[1] in (None, found[1])]


def test_zeros_of_a_power_cut(ws: Path) -> None:
    """Zeros that a power cut left of what was not synced are told and are no fault, unless something is missing."""
    path = ws / JOURNAL
    add(path, bytes(300) + b'\n')
    assert problems(ws) == []
    assert notes(ws, JOURNAL) == ['zeros, as a power cut leaves them in the place of what was not synced']
    change(path, 6, lambda line: bytes(len(line) - 1) + b'\n')
    assert (JOURNAL, 6, offset_of(path, 6)) in dict(problems(ws))


def test_a_crash_before_the_exchange(ws: Path) -> None:
    """What the next start makes good is told, and is no fault: an exchange to be completed, a trigger to be closed."""
    for number in (-1, -1):
        change(ws / TRIGGERS, len(lines_in(ws / TRIGGERS)) + 1 + number, b'')
    waits = number_of(ws / TRIGGERS, type='started', id='main-3-3')
    assert waits == len(lines_in(ws / TRIGGERS))
    change(ws / TRIGGERS, waits, lambda line: line)
    told = verify(ws)
    assert told['ok']
    assert [what for (path, *_), what in findings(told, 'notes') if path == LOG] == [
        'the trigger main-3-3 is answered here and still open: the next start closes it'
    ]
    change(ws / LOG, 3, b'')
    (ws / STATE).write_text((ws / STATE).read_text().replace('"exchanges_seen": 3', '"exchanges_seen": 2'))
    told = verify(ws)
    assert told['ok'], findings(told)
    assert 'the answer to the trigger main-3-3 is not in the log yet: the next start puts it there' in [
        what for _, what in findings(told, 'notes')
    ]


# -- what is told and is no fault ------------------------------------------------------------------------------


def test_what_lies_about(ws: Path) -> None:
    """Temporary files, files that were set aside, and logs that a person has put away are told and are no fault."""
    (ws / MAIN / 'sessions' / '.state.json.0123abcd.tmp').touch(0o600)
    (ws / MAIN / 'sessions' / 'state.json.damaged-20260312T041000000000Z').touch(0o600)
    for folder in ('sessions', 'journal', 'triggers'):
        (ws / MAIN / folder / f'{FIRST}.jsonl').unlink()
    told = verify(ws)
    assert told['ok'], findings(told)
    said = [what for _, what in findings(told, 'notes')]
    assert 'was left by a writer that was killed: nothing of it was ever in use' in said
    assert 'was set aside when it was found damaged' in said
    assert f'follows {FIRST}, which is not here any more' in said


def test_an_index(ws: Path) -> None:
    """A missing or a lagging index is told, a damaged one is a problem; none is made, and none is touched."""
    add(ws / LOG, vars(Exchange('x', 'y', 'gpt', '2026-03-12T05:00:00Z')) | {'trigger_ids': []})
    before = everything_in(ws)
    size = len(lines_in(ws / LOG)[-1])
    lag = f'is {size} bytes behind the files: the daemon or the next search reads on'
    assert notes(ws, 'index.sqlite3') == [lag]
    assert everything_in(ws) == before
    code = (
        'import os, sqlite3, sys; connection = sqlite3.connect(sys.argv[1], isolation_level=None);'
        'connection.execute("DELETE FROM usage"); os._exit(0)'
    )
    subprocess.run([sys.executable, '-c', code, str(ws / 'index.sqlite3')], check=True)
    killed = everything_in(ws)
    assert {'index.sqlite3-wal', 'index.sqlite3-shm'} <= killed.keys()
    assert notes(ws, 'index.sqlite3') == [lag]
    assert everything_in(ws) == killed
    with (ws / 'index.sqlite3').open('r+b') as file:
        file.seek(3 * 4096)
        file.write(b'\xa5' * 8192)
    assert ('index.sqlite3', None, None) in dict(problems(ws))
    (ws / 'index.sqlite3').unlink()
    gone = everything_in(ws)
    assert notes(ws, 'index.sqlite3') == ['there is none yet: the daemon or the next search makes it']
    assert everything_in(ws) == gone


def test_a_folder_that_may_not_be_entered(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the user may not look at are told, each once, and all others are read."""

    def forbidding(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as it is
            if isinstance(path, str | Path) and any(each in str(path) for each in (f'{MAIN}/sessions/', TRIGGERS)):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return function(path, *arguments, **options)

        return call

    monkeypatch.setattr(os, 'open', forbidding(os.open))
    monkeypatch.setattr(os, 'stat', forbidding(os.stat))
    told = problems(ws)
    assert ((LOG, None, None), 'cannot be read: Permission denied') in told
    assert len(told) == len(set(told))
    assert not [path for (path, *_), _ in told if path.startswith('desks/other')]


# -- a long line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('size', [100_000_000, 60 << 20])
def test_a_long_line_takes_bounded_memory(ws: Path, size: int) -> None:
    """A line of 100 MB is told as damaged, one that can still be read is read; neither takes more than 3 x 64 MiB."""
    with (ws / LOG).open('ab') as file:
        file.write(b'{"trigger_text":"')
        for _ in range(100):
            file.write(b'x' * (size // 100))
        file.write(b'","answer":"","backend_name":"","finished_at":""}\n')
    prepare = 'import contextlib, sys\nfrom trading_agent.cli.main import main'
    verify = 'sys.argv[1:] = ["--workspace", sys.argv[1], "verify"]\nwith contextlib.suppress(SystemExit): main()'
    _, grown = grown_by(prepare, verify, ws)
    assert grown < (3 << 26) + (48 << 20)
    told = dict(problems(ws))
    place = LOG, 4, offset_of(ws / LOG, 4)
    assert told == ({place: 'is longer than 64 MiB'} if size > 64 << 20 else {})


# -- beside a daemon -------------------------------------------------------------------------------------------


def test_the_holder_is_found_without_its_lock(tmp_path: Path) -> None:
    """Whoever holds a workspace is found, and one that has been killed is not; nobody's lock is taken for that."""
    path = tmp_path / 'trading-agent.lock'
    assert not find_holder(tmp_path).is_there
    code = (
        'import sys, pathlib; from trading_agent.files import Lock; lock = Lock(pathlib.Path(sys.argv[1]));'
        'lock.acquire(); lock.write(b\'{"pid": %d}\' % __import__("os").getpid()); print(flush=True); sys.stdin.read()'
    )
    holder = subprocess.Popen([sys.executable, '-c', code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    found = find_holder(tmp_path)
    assert found.is_there
    assert found.pid == holder.pid
    holder.kill()
    holder.communicate()
    assert path.read_bytes()
    assert not find_holder(tmp_path).is_there


@pytest.fixture
def fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A workspace to be made, where the disk is spared."""
    spare_the_disk(monkeypatch)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)  # so that threads take turns often, and neither waits long for the other
    yield tmp_path / 'ws'
    sys.setswitchinterval(interval)


@pytest.mark.parametrize('days', [1, 9])
async def test_no_false_alarm_beside_a_daemon(fast: Path, days: int) -> None:
    """However often it is asked while desks answer triggers and roll over, what is being written is no problem."""
    clock = ManualClock(MORNING)
    config = config_for(fast, desks=[Desk(name='main'), Desk(name='other')])
    told: set[str] = set()
    async with daemon_of(config, clock, index=True) as daemon, anyio.create_task_group() as tasks:
        desks = daemon.supervisor.desks

        async def talk(desk: str) -> None:
            for number in range(100_000):
                await daemon.bus.send(Trigger('hello', desk, id=f'{desk}-{number}', received_at=clock.now()))
                await anyio.sleep(0.01)
                await until(lambda: desks[desk].queue.depth < 3, 'there is room')

        for desk in desks:
            tasks.start_soon(talk, desk)
        for run in range(100):
            if run % 6 == 0:
                clock.advance(timedelta(days=days))
            found = await anyio.to_thread.run_sync(audit, fast, ('main', 'other', None)[run % 3])
            assert found.ok, [(file.path, file.problems) for file in found.all_files() if file.problems]
            told |= {note.what for file in found.all_files() for note in file.notes}
        tasks.cancel_scope.cancel()
    assert any('is being rolled over' in what for what in told)
    assert any(what.endswith('is running') for what in told)
    found = audit(fast)
    assert found.ok
    assert all(desk.sessions > 5 < desk.exchanges for desk in found.desks)


def test_a_daemon_that_comes_meanwhile(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a daemon comes while the files are read they are read again, and what it may be writing is not judged."""
    lock = Lock(ws / 'trading-agent.lock')

    def with_a_daemon(workspace: Path, desk: str, *, busy: bool) -> DeskReport:
        if not busy and desk == 'main':
            assert lock.acquire() is None
            add(ws / TRIGGERS, b'{"type":"acc')
        return audit_desk(workspace, desk, busy=busy)

    monkeypatch.setattr('trading_agent.audit.workspace_audit.audit_desk', with_a_daemon)
    assert audit(ws).ok
    lock.release()


async def test_what_is_damaged_is_told_beside_a_daemon(fast: Path) -> None:
    """A problem is a problem beside a daemon, too, and what is told of it is where it is."""
    async with daemon_of(config_for(fast), ManualClock(MORNING)) as daemon:
        for number in range(3):
            await answered(daemon, 'main', f't{number}')
        log = f'{MAIN}/sessions/{FIRST}.jsonl'
        change(fast / log, 2, b'{"no": 1}\n')
        found = await anyio.to_thread.run_sync(audit, fast)
    told = [(file.path, each.line, each.offset) for file in found.all_files() for each in file.problems]
    assert (log, 2, offset_of(fast / log, 2)) in told
    assert 'a daemon holds the workspace: what it is writing is not judged' in [
        note.what for file in found.files for note in file.notes
    ]
    with suppress(FileNotFoundError):
        assert not os.listdir(fast / 'desks' / 'main' / 'triggers')  # noqa: PTH208 - names


async def test_an_id_that_is_lost_is_told_beside_a_daemon(fast: Path) -> None:
    """Also that of the session that goes on: an id is written down before anything of its session is there."""
    async with daemon_of(config_for(fast), ManualClock(MORNING)) as daemon:
        await answered(daemon, 'main', 't0')
        await daemon.operations.roll_over('main')
        ids = fast / MAIN / 'sessions' / '.session-ids'
        change(ids, 2, b'')
        found = await anyio.to_thread.run_sync(audit, fast)
        told = [(file.path, each.what) for file in found.all_files() for each in file.problems]
        newest = daemon.supervisor.desks['main'].session_id
    assert told == [(f'{MAIN}/sessions/.session-ids', f'does not have {newest}, which has a journal')]
