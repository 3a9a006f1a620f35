"""`show`, `sessions` and `why` over the journals of a day that an embedded daemon has lived through."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from cli_fakes import call, live_through_a_day, lonely, on_terminal
from daemon_fakes import config_for, daemon_of, until

from trading_agent import json_lines
from trading_agent.config import Backend, Desk
from trading_agent.conversation.journal import Journal
from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.conversation.records import CallFailed, MessageSaid, TextCame, TurnBegun, TurnCut, TurnEnded
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.session_store import SessionStore
from trading_agent.messages import AssistantMessage, Usage, UserMessage
from trading_agent.trigger import Trigger

SESSION = '2026-03-10-1'


@pytest.fixture(scope='module')
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace that a daemon has worked in; nobody changes it."""
    folder = tmp_path_factory.mktemp('lived')
    anyio.run(live_through_a_day, folder / 'workspace')
    return folder / 'workspace'


@pytest.fixture
def day(lived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the desk `main`, in the workspace that `run` would choose here."""
    lonely(tmp_path, monkeypatch)
    shutil.copytree(lived, tmp_path / 'workspace')
    return tmp_path / 'workspace' / 'desks' / 'main'


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """The empty journal of a session of 19 October, whose clock begins at 09:30:00 in India and goes 0.5 s a record."""
    lonely(tmp_path, monkeypatch)
    folder = tmp_path / 'workspace' / 'desks' / 'main'
    SessionStore(folder / 'sessions').create_session('2026-10-19-1')
    now = datetime(2026, 10, 19, 4, tzinfo=UTC)

    def clock() -> datetime:
        nonlocal now
        now += timedelta(seconds=0.5)
        return now - timedelta(seconds=1)

    return JournalFolder(folder / 'journal', 'main', clock).open('2026-10-19-1')


def write(journal: Journal, *records: object) -> None:
    """Writes records one by one, so that each has its own time."""
    for record in records:
        journal.append(record)  # type: ignore[arg-type] # as the journal's own


# -- tokens --------------------------------------------------------------------------------------------------------


def test_sessions_tell_the_tokens_of_each(day: Path) -> None:
    """`sessions` has what each session used by its journal: for answers, for failures, in vain and beside it."""
    rolled, lived = json.loads(call('sessions', 'main', '--json').stdout)
    assert (lived['id'], lived['exchanges']) == (SESSION, 3)
    assert lived['usage'] == {'input_tokens': 1467, 'output_tokens': 190, 'cache_read_tokens': 3000}
    assert rolled['usage'] == {}
    heading, *rows = call('sessions', 'main').stdout.split('\n')
    assert heading.split()[-1] == 'TOKENS'
    assert [row.split()[-1] for row in rows if row] == ['current', '4.7k']


def test_without_a_journal_the_exchanges_tell_the_tokens(day: Path) -> None:
    """A session without a journal is told by what its exchanges count; a kind that nobody knows is told too."""
    shutil.rmtree(day / 'journal')
    store = SessionStore(day / 'sessions')
    odd = Exchange('x', 'y', 'old', '2026-03-10T04:30:00Z', usage={'total_tokens': 7, 'output_tokens': 2})
    store.append_exchange(SESSION, odd)
    _, lived = json.loads(call('sessions', 'main', '--json').stdout)
    assert lived['usage'] == {
        'input_tokens': 360, 'output_tokens': 92, 'cache_read_tokens': 3000, 'total_tokens': 7,
    }  # fmt: skip
    shown = call('show', 'main', SESSION).stdout
    assert 'session 2026-03-10-1, 4 exchanges, 360 tokens in, 92 out, 3,000 from a cache, 7 total\n' in shown
    assert 'IST, old, 7 tokens total, 2 out\n' in shown


def test_show_tells_the_tokens_of_each_exchange_and_of_all(day: Path) -> None:
    """`show` has each exchange's tokens, and the session's, which are more where some were used in vain."""
    shown = call('show', 'main', SESSION).stdout
    assert shown.startswith('session 2026-03-10-1, 3 exchanges, 1,467 tokens in, 190 out, 3,000 from a cache\n')
    assert 'IST, claude, trigger quote, 120 tokens in, 30 out, 1,000 from a cache\n' in shown
    told = json.loads(call('show', 'main', SESSION, '--json').stdout)
    assert told['usage'] == {'input_tokens': 1467, 'output_tokens': 190, 'cache_read_tokens': 3000}
    assert told['exchanges'][0]['usage'] == {'input_tokens': 120, 'output_tokens': 30, 'cache_read_tokens': 1000}


def test_status_tells_the_tokens_of_the_session_and_of_the_day(tmp_path: Path) -> None:
    """A desk's status has what its session and its day used; the day goes on after a rollover and a restart."""

    async def live() -> None:
        gpt = Backend(kind='cli_fakes:scripted', options={'asleep': []})
        config = config_for(tmp_path, desks=[Desk(name='main', backends=['gpt'])], backends={'gpt': gpt})
        async with daemon_of(config) as daemon:
            desk = daemon.supervisor.desks['main']
            assert desk.status().usage.session == Usage()
            await daemon.bus.send(Trigger('how is ABC?', 'main', id='a'))
            await until(lambda: desk.queue.closing('a'), 'it is closed')
            answered = Usage(120, 30, 1000)
            assert (desk.status().usage.session, desk.status().usage.day) == (answered, answered)
            earlier = desk.status().usage
            await desk.roll_over()
            reviewed = answered + Usage(1000, 100)  # of the day, and of the skills
            assert (desk.status().usage.session, desk.status().usage.day) == (Usage(), reviewed)
            assert earlier.day == answered, 'what was told before has changed'
        async with daemon_of(config) as daemon:
            told = daemon.supervisor.desks['main'].status().usage
            assert (told.session, told.day) == (Usage(), reviewed)

    anyio.run(live)


# -- the end alone -------------------------------------------------------------------------------------------------


@pytest.fixture
def from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read from their end, or not at all."""

    def refuse(*_: object) -> None:
        raise AssertionError('a file is read from its beginning')

    monkeypatch.setattr(json_lines, 'read', refuse)
    monkeypatch.setattr(json_lines, 'read_whole', refuse)


@pytest.mark.usefixtures('from_the_end')
def test_the_last_exchanges_are_read_from_the_end(day: Path) -> None:
    """`--last N` shows the last N exchanges, reads nothing from the beginning, and so tells no total."""
    shown = call('show', 'main', SESSION, '--last', '2').stdout
    assert shown.startswith('session 2026-03-10-1, the last 2 exchanges\n')
    told = json.loads(call('show', 'main', SESSION, '--last', '1', '--json').stdout)
    assert ([exchange['trigger_id'] for exchange in told['exchanges']], told['usage']) == (['shake'], None)
    assert call('show', 'main', SESSION, '--last', '0').exit_code == 2


@pytest.mark.usefixtures('from_the_end')
def test_the_last_turns_are_read_from_the_end(day: Path) -> None:
    """`--journal --last N` shows the last N turns, the questions beside the session counted."""
    told = json.loads(call('show', 'main', SESSION, '--journal', '--last', '3', '--json').stdout)
    begun = [record for record in told['records'] if record['type'] == 'turn_started']
    assert [(record['purpose'], record.get('attempt')) for record in begun] == [
        ('turn', None),
        ('review', None),
        ('review', None),
    ]
    shown = call('show', 'main', SESSION, '--journal', '--last', '3').stdout
    assert shown.startswith('journal of session 2026-03-10-1, its end\n')
    assert '\nshown: 1 turn, 1 of them interrupted, 2 questions beside the session, 1,127 tokens in' in shown


# -- the journal ---------------------------------------------------------------------------------------------------

A_SESSION = """\
journal of session 2026-10-19-1

2026-10-19 09:30:00 IST, turn of a-1
  09:30:00  told        how is ABC?
  09:30:01  said so far I think
  09:30:01  error       claude failed: BackendError: the line is dead, 7 tokens in
  09:30:02  said        4.
                        Not 5.
  09:30:02  answered    by gpt after 2.5s, 10 tokens in, 2 out

2026-10-19 09:30:03 IST, turn of a-2, INTERRUPTED
  09:30:03  told        and XYZ?
  09:30:04  said so far Let me look
  09:30:04  INTERRUPTED by a crash after 1.5s, 11 characters had been said, 3 tokens in

2026-10-19 09:30:05 IST, turn of a-2, attempt 2, FAILED
  09:30:05  told        and XYZ?
  09:30:06  FAILED      no backend could ever answer it after 1.0s

2026-10-19 09:30:06 IST, a question beside the session
  09:30:07  told        what was it about?
            NO END      it was cut off

2026-10-19 09:30:07 IST, turn of a-3
  09:30:08  told        still there?
            NO END      it runs, or was cut off a moment ago

in all: 4 turns, 1 of them interrupted, 1 question beside the session, 20 tokens in, 2 out
"""


def turn(turn_id: str, *, asked: str, purpose: str = 'turn', attempt: int = 1) -> Iterator[object]:
    """Yields how a turn begins."""
    trigger_id = '' if purpose == 'review' else turn_id.partition(':')[0]
    yield TurnBegun(turn_id=turn_id, purpose=purpose, trigger_id=trigger_id, attempt=attempt)  # type: ignore[arg-type]
    yield MessageSaid(turn_id=turn_id, message=UserMessage(asked))


def a_session(journal: Journal) -> None:
    """Writes a session in which every end that a turn can have is there."""
    write(
        journal,
        *turn('a-1:1', asked='how is ABC?'),
        TextCame(turn_id='a-1:1', text='I think'),
        CallFailed(turn_id='a-1:1', backend='claude', error_type='BackendError', error='the line is dead',
                   usage=Usage(7)),
        MessageSaid(turn_id='a-1:1', message=AssistantMessage('4.\nNot 5.')),
        TurnEnded(turn_id='a-1:1', outcome='answered', backend='gpt', usage=Usage(10, 2)),
        *turn('a-2:1', asked='and XYZ?'),
        TextCame(turn_id='a-2:1', text='Let me look'),
        TurnCut(turn_id='a-2:1', cause='crash', usage=Usage(3)),
        *turn('a-2:2', asked='and XYZ?', attempt=2),
        TurnEnded(turn_id='a-2:2', outcome='failed'),
        *turn('review:1', asked='what was it about?', purpose='review'),
        *turn('a-3:1', asked='still there?'),
    )  # fmt: skip


def test_a_journal_is_told_event_by_event(journal: Journal) -> None:
    """Each turn stands under its heading with all that happened in it; what has no answer is marked for the eye."""
    a_session(journal)
    result = call('show', 'main', '--journal')
    assert (result.exit_code, result.stdout, result.stderr) == (0, A_SESSION, '')


def test_a_journal_for_programs(journal: Journal) -> None:
    """`show --journal --json` has every record as it stands in the file, without the header."""
    a_session(journal)
    told = json.loads(call('show', 'main', '--journal', '--json').stdout)
    assert list(told) == ['session_id', 'records']
    lines = journal.path.read_text().split('\n')[1:-1]
    assert len(told['records']) == len(lines)
    for record, line in zip(told['records'], lines, strict=True):
        assert record == json.loads(line)


def test_a_day_with_tools_is_told_in_order(day: Path) -> None:
    """What a daemon has journaled is told in order: calls of tools, their results, and each text once."""
    shown = call('show', 'main', SESSION, '--journal').stdout
    turns = shown.split('\n\n2026-03-10 ')
    assert [re.sub(r'^.{8} IST, ', '', told.split('\n')[0]) for told in turns[1:]] == [
        'turn of quote',
        'turn of cut, INTERRUPTED',
        'turn of cut, attempt 2',
        'turn of shake',
        'a question beside the session',
        'a question beside the session, INTERRUPTED',  # about skills: the backend's answer fits no schema
    ]
    assert [line[12:] for line in turns[4].split('\n')[1:]] == [
        'told        shake, and tell',
        'said so far I think that',
        'error       claude failed: BackendError: the line is dead, 7 tokens in',
        'said        Let me look.',
        'tool call   get_quote {"symbol":"ABC"}',
        'tool result get_quote: {"last": 123.45}',
        'tool call   place_order {"symbol":"ABC","quantity":10}',
        'tool failed place_order: the market is closed',
        'said        ABC is at 123.45; the order was refused. You said: shake, and tell',
        'answered    by gpt after 0ms, 120 tokens in, 30 out, 1,000 from a cache',
    ]
    assert '  said so far Let me look.\n' in turns[2]
    assert re.search(r'INTERRUPTED by `pause --now` after 0ms.*, 13 characters had been said, 100 tokens in', turns[2])
    assert 'said        summary: Bought ABC.\n                        memory: (empty)\n' in turns[5]


def test_a_journal_keeps_to_the_terminal(journal: Journal, tmp_path: Path) -> None:
    """On a terminal long texts are wrapped under their column, and what was cut off has its colour."""
    write(
        journal,
        *turn('a-1:1', asked='one ' * 100 + 'x' * 200),
        TextCame(turn_id='a-1:1', text='half a word'),
        TurnCut(turn_id='a-1:1', cause='stop'),
    )
    shown = on_terminal('show', 'main', '--journal', '--workspace', str(tmp_path / 'workspace'), columns=70)
    assert '\x1b[33m\x1b[1mINTERRUPTED\x1b[0m' in shown
    lines = re.sub(r'\x1b\[[0-9;]*m', '', shown).split('\n')
    assert max(map(len, lines)) <= 70
    assert '                        one one' in shown
    piped = call('show', 'main', '--journal').stdout
    assert 'one ' * 100 + 'x' * 200 + '\n' in piped
    assert '\x1b' not in piped


def test_what_a_journal_says_cannot_command_the_terminal(journal: Journal) -> None:
    """Control characters in texts, ids and names are replaced for people and whole for programs."""
    write(
        journal,
        *turn('a\x1b[2J:1', asked='\x1b[2Jgone'),
        CallFailed(turn_id='a\x1b[2J:1', backend='b\x07', error_type='E', error='\x1b'),
    )
    shown = call('show', 'main', '--journal').stdout
    assert '\x1b' not in shown
    assert '\x07' not in shown
    assert json.loads(call('show', 'main', '--journal', '--json').stdout)['records'][1]['message']['content'] == (
        '\x1b[2Jgone'
    )


def test_a_session_from_before_there_were_journals(day: Path) -> None:
    """A session without a journal is exit 1 for `--journal`, with how to see its exchanges."""
    (day / 'journal' / f'{SESSION}.jsonl').unlink()
    result = call('show', 'main', SESSION, '--journal')
    assert (result.exit_code, result.stdout) == (1, '')
    assert 'has no journal\nhint: ' in result.stderr
    assert f'`trading-agent show main {SESSION}`' in result.stderr


def test_a_damaged_line_of_a_journal_is_told(journal: Journal) -> None:
    """A line that cannot be read is a warning with its number; one that is being written is none."""
    write(journal, *turn('a-1:1', asked='how is ABC?'))
    with journal.path.open('ab') as file:
        file.write(b'{"type":"text"\n{"type":"tex')
    result = call('show', 'main', '--journal')
    assert 'how is ABC?' in result.stdout
    assert re.fullmatch(r'warning: .*/journal/2026-10-19-1\.jsonl, line 4 cannot be read: .*\n', result.stderr)


# -- why -----------------------------------------------------------------------------------------------------------


def test_why_tells_what_happened_in_the_turn(day: Path) -> None:
    """`why` tells calls of tools and their results, a backend that failed, the tokens, and where the journal has it."""
    shown = call('why', 'main', 'shake').stdout
    assert '  tokens      127 tokens in, 30 out, 1,000 from a cache\n' in shown
    assert re.search(
        r'  journal +journal/2026-03-10-1\.jsonl, lines 30 to 43\n'
        r' +\(`trading-agent show main 2026-03-10-1 --journal`\)\n',
        shown,
    )
    events = re.sub(r'\d\d:\d\d:\d\d', 'AT', shown.partition('  events      ')[2].partition('  text ')[0])
    assert [line.strip() for line in events.split('\n') if line] == [
        'AT  error        claude failed: BackendError: the line is dead, 7 tokens in',
        'AT  tool call    get_quote {"symbol":"ABC"}',
        'AT  tool result  get_quote: {"last": 123.45}',
        'AT  tool call    place_order {"symbol":"ABC","quantity":10}',
        'AT  tool failed  place_order: the market is closed',
    ]


def test_why_tells_an_interrupted_attempt(day: Path) -> None:
    """An attempt that was cut off is told with its cause and how much had been said; tokens count over all."""
    shown = ' '.join(call('why', 'main', 'cut').stdout.split())
    assert 'interrupted by `pause --now` after 0ms; 13 characters had been said attempt 2 ' in shown
    assert 'tokens 220 tokens in, 30 out, 1,000 from a cache, over all attempts ' in shown
    assert 'lines 14 to 17, 18 to 29 ' in shown
    assert ' attempt 2, tool failed place_order: the market is closed ' in shown


def test_why_for_programs_has_every_event(day: Path) -> None:
    """`why --json` has all that happened, each with its attempt and the file and line that say so, and the tokens."""
    told = json.loads(call('why', 'main', 'cut', '--json').stdout)
    assert told['usage'] == {'input_tokens': 220, 'output_tokens': 30, 'cache_read_tokens': 1000}
    events = told['events']
    assert [(event['attempt'], event['what']) for event in events] == [
        (1, 'told'), (1, 'said_in_vain'), (1, 'interrupted'),
        (2, 'told'), (2, 'said'), (2, 'tool_called'), (2, 'tool_result'),
        (2, 'tool_called'), (2, 'tool_failed'), (2, 'said'), (2, 'answered'),
    ]  # fmt: skip
    lines = (day / events[0]['path']).read_text().split('\n')
    for event in events:
        record = json.loads(lines[event['line'] - 1])
        assert record['turn_id'] == f'cut:{event["attempt"]}'
        assert record['timestamp'] == event['at']
    assert (events[2]['cause'], events[1]['text']) == ('pause', 'Let me look. ')
    assert events[8] | {'at': '', 'line': 0} == {
        'attempt': 2, 'session_id': SESSION, 'path': f'journal/{SESSION}.jsonl', 'at': '', 'line': 0,
        'what': 'tool_failed', 'tool': 'place_order', 'call_id': 'c2', 'text': 'the market is closed',
    }  # fmt: skip


def test_a_crash_is_told_by_the_journal(journal: Journal) -> None:
    """Where the queue's records only show that an attempt ended, the journal says that it was a crash."""
    folder = journal.path.parent.parent
    trigger = {'text': 'x', 'desk': 'main', 'id': 'a-2', 'received_at': '2026-10-19T04:00:00Z'}
    (folder / 'triggers.jsonl').write_text(
        json.dumps({'type': 'accepted', 'at': '2026-10-19T04:00:00Z', 'trigger': trigger})
        + '\n{"type":"started","at":"2026-10-19T04:00:03Z","id":"a-2","attempt":1}\n'
        '{"type":"started","at":"2026-10-19T04:00:05Z","id":"a-2","attempt":2}\n'
        '{"type":"closed","at":"2026-10-19T04:00:06Z","id":"a-2","outcome":"failed","session_id":"2026-10-19-1"}\n'
    )
    a_session(journal)
    shown = call('why', 'main', 'a-2').stdout
    assert '  attempt 1   2026-10-19 09:30:03 IST, cut off by a crash; 11 characters had been said\n' in shown
    assert '  attempt 2   2026-10-19 09:30:05 IST, closed as failed after 1.0s\n' in shown
    assert '  tokens      3 tokens in, over all attempts\n' in shown


def test_an_id_that_is_part_of_another_has_its_own_turns(journal: Journal) -> None:
    """A trigger's turns are those with exactly its id, whatever other ids begin with it or end like an attempt."""
    folder = journal.path.parent.parent
    for trigger_id in ('a', 'a:1', 'a"b'):
        trigger = {'text': 'x', 'desk': 'main', 'id': trigger_id, 'received_at': '2026-10-19T04:00:00Z'}
        with (folder / 'triggers.jsonl').open('a') as log:
            log.write(json.dumps({'type': 'accepted', 'at': '2026-10-19T04:00:00Z', 'trigger': trigger}) + '\n')
        write(journal, *turn(f'{trigger_id}:1', asked=f'from {trigger_id}'))
    for trigger_id in ('a', 'a:1', 'a"b'):
        told = json.loads(call('why', 'main', trigger_id, '--json').stdout)
        assert [event['text'] for event in told['events']] == [f'from {trigger_id}']


def test_many_events_fit_on_a_screen(day: Path) -> None:
    """A turn with a hundred calls of tools is told with the first and the last of them, in lines of the terminal."""
    journal = JournalFolder(day / 'journal', 'main', lambda: datetime(2026, 3, 10, 4, 30, tzinfo=UTC))
    path = journal.path(SESSION)
    lines = path.read_bytes().split(b'\n')
    at = next(number for number, line in enumerate(lines) if b'"cut:2"' in line and b'"tool_call"' in line)
    path.write_bytes(b'\n'.join([*lines[:at], *[lines[at]] * 100, *lines[at:]]))
    shown = on_terminal('why', 'main', 'cut', '--workspace', str(day.parent.parent), columns=80)
    told = re.sub(r'\x1b\[[0-9;]*m', '', shown).rstrip('\n').split('\n')
    assert len(told) <= 24
    assert max(map(len, told)) <= 80
    assert any('… 100 more; --json has them all' in line for line in told)


def test_nothing_is_changed_by_looking(day: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`show`, `sessions` and `why` leave every file of the workspace as it is."""

    def state() -> dict[Path, tuple[bytes, int]]:
        files = (path for path in day.parent.parent.rglob('*') if path.is_file())
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = state()
    looks: list[Callable[[], object]] = [
        lambda: call('show', 'main', SESSION, '--journal'),
        lambda: call('sessions', 'main'),
        lambda: call('why', 'main', 'cut'),
    ]
    for look in looks:
        look()
        assert state() == before


def test_a_journal_whose_session_has_lost_its_log(day: Path) -> None:
    """`show --journal` tells what happened in a session whose log is gone; without it there is nothing to show."""
    (day / 'sessions' / f'{SESSION}.jsonl').unlink()
    shown = call('show', 'main', SESSION, '--journal')
    assert shown.exit_code == 0
    assert 'turn' in shown.stdout
    assert call('show', 'main', SESSION).exit_code == 1
    assert call('show', 'main', '../../etc', '--journal').exit_code == 1
