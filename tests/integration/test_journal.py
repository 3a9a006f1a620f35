"""The journal: sessions of messages in files, and the chain that shows what was changed."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trading_agent import files, json_lines
from trading_agent.conversation.journal import (
    InvalidSessionName,
    Journal,
    SessionExists,
    SessionManager,
    verify,
)
from trading_agent.conversation.records import CallFailed, MessageSaid, TextCame, TurnBegun, TurnCut, TurnEnded
from trading_agent.errors import DeskUnusable, StorageError
from trading_agent.messages import (
    AssistantMessage,
    Message,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
)

SAID: list[Message] = [
    UserMessage('What of ABC?', 1.5),
    AssistantMessage(
        [TextContent('Let me look.'), ToolCall('c1', 'quote', {'symbol': 'ABC'})], [], 'm', Usage(3, 4), 'x'
    ),
    ToolResultMessage('c1', 'quote', '101.5', is_error=False, timestamp=2.0),
    AssistantMessage('It is at 101.5. \u2028\u2029\u0085\0📈'),
]


@pytest.fixture
def manager(tmp_path: Path) -> SessionManager:
    """A manager of an empty folder."""
    return SessionManager(tmp_path / 'sessions')


# -- sessions --------------------------------------------------------------------------------------------------


def test_messages_come_back_as_they_were(manager: SessionManager) -> None:
    """What was saved is loaded, in order and whole, also by another manager; each session has its own."""
    first, second = manager.create_session('first'), manager.create_session('second')
    for message in SAID:
        manager.save_message(first, message)
    manager.save_message(second, SAID[0])
    again = SessionManager(str(manager.session_dir))
    assert again.load_session(first) == SAID
    assert again.load_session(second) == SAID[:1]


def test_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is `.agenix` by default, made where it is missing with those above it, and nobody else can read it."""
    monkeypatch.chdir(tmp_path)
    old = os.umask(0)
    try:
        manager = SessionManager()
        session_id = manager.create_session()
        SessionManager('a/b/c')
    finally:
        os.umask(old)
    assert (tmp_path / '.agenix').is_dir()
    assert (tmp_path / 'a/b/c').is_dir()
    assert (tmp_path / '.agenix').stat().st_mode & 0o777 == 0o700
    assert (tmp_path / f'.agenix/{session_id}.jsonl').stat().st_mode & 0o777 == 0o600


def test_the_header(manager: SessionManager) -> None:
    """A file begins with its header: the session's id, when it was created, in UTC, and the version."""
    before = datetime.now(UTC)
    session_id = manager.create_session('20261019')
    header = json.loads((manager.session_dir / '20261019.jsonl').read_bytes())
    assert list(header) == ['type', 'session_id', 'created_at', 'version']
    assert (header['type'], header['session_id'], header['version']) == ('session_header', session_id, '2.0')
    assert header['created_at'].endswith('Z')
    assert before <= datetime.fromisoformat(header['created_at']) <= datetime.now(UTC)


def test_sessions_made_in_the_same_second(manager: SessionManager) -> None:
    """Without a name each session gets an id of its own, however fast they are made."""
    made = [manager.create_session() for _ in range(20)]
    assert len(set(made)) == 20
    assert {session['session_id'] for session in manager.list_sessions()} == set(made)


def test_a_session_is_never_overwritten(manager: SessionManager) -> None:
    """Creating one that is there is refused, and what it has stays."""
    manager.create_session('mine')
    manager.save_message('mine', SAID[0])
    with pytest.raises(SessionExists, match='mine'):
        manager.create_session('mine')
    with pytest.raises(FileExistsError):
        manager.create_session('mine')
    assert manager.load_session('mine') == SAID[:1]


@pytest.mark.parametrize('call', ['load_session', 'journal'])
def test_a_missing_session(manager: SessionManager, call: str) -> None:
    """Loading one that is not there is a FileNotFoundError that names it."""
    with pytest.raises(FileNotFoundError, match='Session not found: nobody'):
        getattr(manager, call)('nobody')


def test_a_message_of_a_missing_session(manager: SessionManager) -> None:
    """Saving to one that is not there is an error, and makes no file without a header."""
    with pytest.raises(FileNotFoundError):
        manager.save_message('nobody', SAID[0])
    assert not list(manager.session_dir.iterdir())


def test_deleting(manager: SessionManager) -> None:
    """A deleted session is gone, and deleting it again is no error."""
    manager.create_session('a')
    manager.delete_session('a')
    manager.delete_session('a')
    assert manager.list_sessions() == []
    with pytest.raises(FileNotFoundError):
        manager.load_session('a')


@pytest.mark.parametrize('name', ['', '.', '..', '.hidden', 'a/b', '../up', '/etc/passwd', 'a\0b', 'a\nb', 'x' * 200])
def test_a_name_never_becomes_a_path(manager: SessionManager, name: str) -> None:
    """A name that could lead elsewhere, or fits no file name, is refused by every method, and nothing is touched."""
    calls: list[Callable[[], object]] = [
        lambda: manager.create_session(name),
        lambda: manager.load_session(name),
        lambda: manager.save_message(name, SAID[0]),
        lambda: manager.delete_session(name),
    ]
    for call in calls:
        with pytest.raises(InvalidSessionName):
            call()
    assert not list(manager.session_dir.iterdir())


def test_the_newest_comes_first(manager: SessionManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are listed with id, time and path, the newest first; what is no session is left out."""
    for name in ('b', 'a', 'c'):
        manager.create_session(name)
    (manager.session_dir / 'notes.txt').write_text('x')
    (manager.session_dir / 'torn.jsonl').write_text('{"type":"session_he')
    (manager.session_dir / 'other.jsonl').write_text('{"type":"message"}\n')
    (manager.session_dir / 'folder.jsonl').mkdir()
    listed = manager.list_sessions()
    assert [session['session_id'] for session in listed] == ['c', 'a', 'b']
    assert all(set(session) == {'session_id', 'created_at', 'path'} for session in listed)
    assert listed[0]['path'] == str(manager.session_dir / 'c.jsonl')


# -- files of the first program --------------------------------------------------------------------------------

OLD = [
    {'type': 'session_header', 'session_id': 'old', 'created_at': '2025-12-16T09:10:00.123456', 'version': '1.0'},
    {
        'type': 'message',
        'timestamp': '2025-12-16T09:10:01.5',
        'message': {'role': 'user', 'content': 'hello', 'timestamp': 1765856401.5},
    },
    {
        'type': 'message',
        'timestamp': '2025-12-16T09:10:02',
        'message': {
            'role': 'assistant',
            'content': [{'type': 'text', 'text': 'hi'}, {'type': 'tool_call', 'name': 'quote'}],
            'tool_calls': [{'id': '1', 'name': 'quote', 'arguments': {'symbol': 'ABC'}}],
            'model': 'gpt',
            'usage': {'input_tokens': 5, 'output_tokens': 6},
            'stop_reason': None,
            'timestamp': 1765856402,
        },
    },
    {
        'type': 'message',
        'timestamp': '2025-12-16T09:10:03',
        'message': {
            'role': 'tool',
            'tool_call_id': '1',
            'name': 'quote',
            'content': '101',
            'is_error': False,
            'timestamp': 0,
        },
    },
]


def _old_file(manager: SessionManager) -> Path:
    path = manager.session_dir / 'old.jsonl'
    path.write_text(''.join(json.dumps(entry) + '\n' for entry in OLD))
    return path


def test_a_file_of_the_first_program_is_read(manager: SessionManager) -> None:
    """Its messages load, its time counts as India's, and messages can be added to it."""
    path = _old_file(manager)
    messages = manager.load_session('old')
    assert messages == [
        UserMessage('hello', 1765856401.5),
        AssistantMessage(
            [TextContent('hi'), ToolCall(name='quote')],
            [ToolCall('1', 'quote', {'symbol': 'ABC'})],
            'gpt',
            Usage(5, 6),
            None,
            1765856402,
        ),
        ToolResultMessage('1', 'quote', '101'),
    ]
    assert manager.list_sessions()[0]['created_at'] == '2025-12-16T03:40:00.123456Z'
    manager.save_message('old', UserMessage('more'))
    assert manager.load_session('old')[3:] == [UserMessage('more')]
    found = verify(path)
    assert (found.records, found.unnumbered, found.broken) == (4, 3, None)


def test_the_first_program_reads_ours(manager: SessionManager) -> None:
    """Its way of reading, JSON lines of the type `message` with a role, finds every message of ours."""
    session_id = manager.create_session()
    for message in SAID:
        manager.save_message(session_id, message)
    with (manager.session_dir / f'{session_id}.jsonl').open(encoding='utf-8') as file:
        entries = [json.loads(line) for line in file]
    assert entries[0]['type'] == 'session_header'
    roles = [entry['message']['role'] for entry in entries if entry['type'] == 'message']
    assert roles == ['user', 'assistant', 'tool', 'assistant']


def test_an_entry_that_is_no_json_stops_nothing(manager: SessionManager) -> None:
    """What comes after a damaged line is loaded, and the line stays in the file."""
    path = _old_file(manager)
    lines = path.read_bytes().split(b'\n')
    for damage in (b'{"type": "mess', b'\xff\xfe', b'null', b'[]', b'{"type":"message"}', b'[' * 100_000, b'"x"'):
        path.write_bytes(b'\n'.join([lines[0], lines[1], damage, *lines[2:]]))
        assert len(manager.load_session('old')) == 3
        assert damage in path.read_bytes()
    path.write_bytes(b'\n'.join(lines)[:-30])
    assert len(manager.load_session('old')) == 2


def test_a_newer_format_is_not_touched(manager: SessionManager) -> None:
    """A file that a newer program wrote is refused with what to do, and is as it was."""
    path = manager.session_dir / 'new.jsonl'
    text = '{"type":"session_header","session_id":"new","created_at":"2030-01-01T00:00:00Z","version":"3.0"}\n'
    path.write_text(text)
    with pytest.raises(DeskUnusable, match=r'3\.0'):
        manager.save_message('new', SAID[0])
    assert path.read_text() == text


# -- turns in a journal ----------------------------------------------------------------------------------------


def test_only_what_was_answered_counts(manager: SessionManager) -> None:
    """Messages of turns that were cut off, failed or beside the session, or of a failed backend, are left out."""
    journal = manager.journal(manager.create_session('a'))

    def said(turn: str, message: Message) -> MessageSaid:
        return MessageSaid(turn_id=turn, message=message)

    journal.append(MessageSaid(message=UserMessage('alone')))
    journal.append(
        TurnBegun(turn_id='1', purpose='turn'), said('1', UserMessage('one')), TextCame(turn_id='1', text='x')
    )
    journal.append(TurnCut(turn_id='1', cause='stop'))
    journal.append(TurnBegun(turn_id='2', purpose='turn'), said('2', UserMessage('two')))
    journal.append(said('2', AssistantMessage('void')), CallFailed(turn_id='2', backend='a'))
    journal.append(said('2', AssistantMessage('second')), TurnEnded(turn_id='2', outcome='answered', backend='b'))
    journal.append(TurnBegun(turn_id='3', purpose='review'), said('3', UserMessage('sum it up')))
    journal.append(said('3', AssistantMessage('a day')), TurnEnded(turn_id='3', outcome='answered'))
    journal.append(TurnBegun(turn_id='4', purpose='turn'), said('4', UserMessage('four')))
    journal.append(TurnEnded(turn_id='4', outcome='failed'))
    journal.append(TurnBegun(turn_id='5', purpose='turn'), said('5', UserMessage('still running')))
    told = manager.load_session('a')
    assert told == [UserMessage('alone'), UserMessage('two'), AssistantMessage('second')]


# -- the chain -------------------------------------------------------------------------------------------------


def _journal(folder: Path, count: int = 9) -> Path:
    manager = SessionManager(folder)
    journal = manager.journal(manager.create_session('chain'))
    for number in range(1, count + 1):
        journal.append(MessageSaid(message=UserMessage(f'message {number}')))
    return journal.path


def test_each_record_carries_the_digest_of_the_one_before(tmp_path: Path) -> None:
    """Records are numbered from 1, and whole files, also when written by several writers in turn, hold together."""
    path = _journal(tmp_path)
    Journal(path).append(MessageSaid(message=UserMessage('x')), MessageSaid(message=UserMessage('y')))
    numbers = [json.loads(line).get('number') for line in path.read_bytes().split(b'\n') if line]
    assert numbers == [None, *range(1, 12)]
    found = verify(path)
    assert (found.records, found.unnumbered, found.unreadable, found.broken) == (11, 0, [], None)
    assert verify(path, last_digest=found.digest).broken is None


@pytest.mark.parametrize('number', range(1, 9))
def test_an_altered_record_is_named(tmp_path: Path, number: int) -> None:
    """A record whose text was changed is named by its number and line, whichever it is but the last."""
    path = _journal(tmp_path)
    text = path.read_text().replace(f'message {number}"', f'massage {number}"')
    path.write_text(text)
    broken = verify(path).broken
    assert broken is not None
    assert (broken.what, broken.number, broken.line) == ('altered', number, number + 1)


def test_an_altered_last_record_shows_by_the_next_digest(tmp_path: Path) -> None:
    """The last record cannot vouch for itself; with the digest that the next session's header has it is named."""
    path = _journal(tmp_path)
    digest = verify(path).digest
    path.write_text(path.read_text().replace('message 9"', 'massage 9"'))
    assert verify(path).broken is None
    broken = verify(path, last_digest=digest).broken
    assert broken is not None
    assert (broken.what, broken.number) == ('altered', 9)
    lines = path.read_bytes().split(b'\n')
    path.write_bytes(b'\n'.join(lines[:-2]) + b'\n')
    assert verify(path, last_digest=digest).broken is not None


def test_an_altered_header_is_named(tmp_path: Path) -> None:
    """The first record vouches for the header."""
    path = _journal(tmp_path)
    path.write_text(path.read_text().replace('"session_id":"chain"', '"session_id":"other"'))
    broken = verify(path).broken
    assert broken is not None
    assert (broken.what, broken.number, broken.line) == ('altered', 0, 1)


@pytest.mark.parametrize('number', range(1, 9))
def test_a_missing_record_is_named(tmp_path: Path, number: int) -> None:
    """A record that was taken out is named by its number."""
    path = _journal(tmp_path)
    lines = path.read_bytes().split(b'\n')
    path.write_bytes(b'\n'.join(lines[:number] + lines[number + 1 :]))
    broken = verify(path).broken
    assert broken is not None
    assert (broken.what, broken.number) == ('missing', number)


def test_reordered_records_are_named(tmp_path: Path) -> None:
    """Two records that changed places, and one that stands twice, are named where they stand."""
    path = _journal(tmp_path)
    lines = path.read_bytes().split(b'\n')
    swapped = [*lines[:3], lines[4], lines[3], *lines[5:]]
    path.write_bytes(b'\n'.join(swapped))
    broken = verify(path).broken
    assert broken is not None
    assert (broken.what, broken.number, broken.line) == ('reordered', 4, 4)
    path.write_bytes(b'\n'.join([*lines[:4], lines[3], *lines[4:]]))
    twice = verify(path).broken
    assert twice is not None
    assert (twice.what, twice.number, twice.line) == ('reordered', 3, 5)


def test_a_record_made_unreadable_is_missed(tmp_path: Path) -> None:
    """A line that was spoilt is told as unreadable, and its record as missing."""
    path = _journal(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"message 4"', b'"message \xff"'))
    found = verify(path)
    assert found.unreadable == [5]
    assert found.broken is not None
    assert (found.broken.what, found.broken.number) == ('missing', 4)


@pytest.mark.parametrize('left', [1, 20, 90])
def test_a_torn_record_is_no_break(tmp_path: Path, left: int) -> None:
    """What a crash left of a record stays in the file as an unreadable line; the chain goes on behind it."""
    path = _journal(tmp_path, 3)
    with path.open('ab') as file:
        file.write(
            b'{"type":"message","number":4,"previous":"00","timestamp":"","message":{"role":"user","content":"x"}}'[
                :left
            ]
        )
    Journal(path).append(MessageSaid(message=UserMessage('next')))
    found = verify(path)
    assert (found.records, found.unreadable, found.broken) == (4, [5], None)


def test_a_record_without_its_newline_counts(tmp_path: Path) -> None:
    """A whole record that lacks only its newline is a record, and the next one chains on it."""
    path = _journal(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-1])
    Journal(path).append(MessageSaid(message=UserMessage('next')))
    found = verify(path)
    assert (found.records, found.unreadable, found.broken) == (4, [], None)


def test_a_write_that_fails_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an append that failed the file holds what it held, and the next one goes on with its number."""
    path = _journal(tmp_path, 3)
    journal = Journal(path)
    journal.append(MessageSaid(message=UserMessage('4')))
    before = path.read_bytes()

    def full(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        del descriptor, data, offset
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(os, 'pwrite', full)
        with pytest.raises(StorageError):
            journal.append(MessageSaid(message=UserMessage('5')), sync=True)
    assert path.read_bytes() == before
    journal.append(MessageSaid(message=UserMessage('5')))
    assert (verify(path).records, verify(path).broken) == (5, None)


def test_what_was_not_synced_is_written_again_with_what_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that fails may lose all that was not on the disk: it is written once more until one succeeds."""
    path = _journal(tmp_path, 2)
    journal = Journal(path)
    journal.append(MessageSaid(message=UserMessage('lost')))
    written: list[bytes] = []
    real_write, real_sync = os.pwrite, os.fdatasync
    failing = [True, True, False, False]

    def write(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        written.append(bytes(data))
        return real_write(descriptor, data, offset)

    def sync(descriptor: int) -> None:
        if failing.pop(0):
            raise OSError(5, 'Input/output error')
        real_sync(descriptor)

    monkeypatch.setattr(os, 'pwrite', write)
    monkeypatch.setattr(os, 'fdatasync', sync)
    with pytest.raises(StorageError):
        journal.append(MessageSaid(message=UserMessage('refused')), sync=True)
    for text, is_written_again in (('taken', True), ('the last', False)):
        written.clear()
        journal.append(MessageSaid(message=UserMessage(text)), sync=True)
        assert any(b'lost' in data for data in written) is is_written_again
    assert (verify(path).records, verify(path).broken) == (5, None)


@pytest.mark.parametrize('closes', [False, True])
def test_what_the_disk_did_not_even_take_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closes: bool
) -> None:
    """What was written, not synced, and taken along by a sync that failed for good, is there as soon as it can be."""
    path = _journal(tmp_path, 2)
    journal = Journal(path)
    journal.append(MessageSaid(message=UserMessage('shown')))
    real_sync = os.fdatasync

    def refuse(*_: object) -> int:
        raise OSError(28, 'No space left on device')

    def sync(descriptor: int) -> None:
        broken.setattr(os, 'pwrite', refuse)
        refuse(descriptor)

    with monkeypatch.context() as broken:
        broken.setattr(os, 'fdatasync', sync)
        with pytest.raises(StorageError):
            journal.append(MessageSaid(message=UserMessage('refused')), sync=True)
    assert b'shown' not in path.read_bytes(), 'nothing was taken along'
    assert os.fdatasync is real_sync
    if closes:
        journal.close()
    else:
        journal.append(MessageSaid(message=UserMessage('taken')), sync=True)
    assert (verify(path).records, verify(path).broken) == (3 if closes else 4, None)
    assert b'shown' in path.read_bytes()


WRITER = """
import sys
from pathlib import Path
from trading_agent.conversation.journal import SessionManager
from trading_agent.messages import UserMessage
manager = SessionManager(sys.argv[1])
for number in range(int(sys.argv[2])):
    manager.save_message('shared', UserMessage(f'{sys.argv[3]} {number}'))
    print(number, flush=True)
"""


def test_several_processes_share_a_session(tmp_path: Path) -> None:
    """Four processes that save at once lose nothing, keep their own order, and leave one unbroken chain."""
    manager = SessionManager(tmp_path)
    manager.create_session('shared')
    command = [sys.executable, '-c', WRITER, str(tmp_path), '40']
    writers = [subprocess.Popen([*command, name], stdout=subprocess.DEVNULL) for name in 'abcd']
    assert [writer.wait(60) for writer in writers] == [0] * 4
    texts = [message.content for message in manager.load_session('shared') if isinstance(message, UserMessage)]
    for name in 'abcd':
        assert [text for text in texts if text.startswith(name)] == [f'{name} {number}' for number in range(40)]
    assert verify(tmp_path / 'shared.jsonl').broken is None


def test_what_was_saved_survives_a_kill(tmp_path: Path) -> None:
    """Whatever the process had been told was saved is there after kill -9, and the chain is whole."""
    manager = SessionManager(tmp_path)
    manager.create_session('shared')
    for _ in range(5):
        already = len(manager.load_session('shared'))
        command = [sys.executable, '-c', WRITER, str(tmp_path), '100000', 'x']
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(random.randrange(1, 60)):  # noqa: S311 - no secret
                writer.stdout.readline()
            writer.kill()
            told = writer.stdout.read().count(b'\n')
            del told
        assert len(manager.load_session('shared')) > already
    assert verify(tmp_path / 'shared.jsonl').broken is None


# -- lines from the end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize('block', [1, 2, 7, 1 << 16])
@pytest.mark.parametrize('content', [b'', b'\n', b'a', b'a\n', b'a\nbc\n\n \nd', b'\n\nlong line here\nx\n' * 5])
def test_lines_from_the_end(tmp_path: Path, block: int, content: bytes) -> None:
    """Read from the end the same lines come as from the front, in the opposite order, whatever the block's size."""
    path = tmp_path / 'log'
    path.write_bytes(content)
    forward = [line for _, line in json_lines.read(path)]
    assert list(json_lines.read_back(path, block)) == forward[::-1]


@pytest.mark.parametrize('block', [1, 3, 1 << 16])
def test_whole_lines_with_their_offsets(tmp_path: Path, block: int) -> None:
    """Each line that has its newline comes with the offset behind it, from which reading goes on."""
    content = b'one\n\ntwo, longer\nthree\ntorn'
    path = tmp_path / 'log'
    path.write_bytes(content)
    found = list(json_lines.read_whole(path, block=block))
    assert [line for _, line in found] == [b'one', b'', b'two, longer', b'three']
    for at, (offset, _) in enumerate(found):
        assert content[:offset].endswith(b'\n')
        assert list(json_lines.read_whole(path, offset, block)) == found[at + 1 :]


def test_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last lines of a long file cost a few blocks, and not the file."""
    path = tmp_path / 'log'
    path.write_bytes(b'x' * 99 + b'\n' + b'y' * 99 + b'\n' * 1 + (b'z' * 99 + b'\n') * 100_000)
    read = 0
    real = os.pread

    def counting(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = real(descriptor, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, 'pread', counting)
    lines = json_lines.read_back(path)
    assert [next(lines)[:1] for _ in range(200)] == [b'z'] * 200
    assert read <= 2 * (1 << 16)


def test_a_file_is_created_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before its content is synced leaves no file of that name."""

    def dies(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, 'fsync', dies)
        with pytest.raises(KeyboardInterrupt):
            files.create(tmp_path / 'new', b'content')
    assert not (tmp_path / 'new').exists()
    files.create(tmp_path / 'new', b'content')
    assert (tmp_path / 'new').read_bytes() == b'content'


def test_damage_of_any_kind_is_no_crash(tmp_path: Path) -> None:
    """Whatever bytes are changed, cut or put in, loading and verifying raise nothing; what was before it is kept."""
    path = _journal(tmp_path, 6)
    whole = path.read_bytes()
    manager = SessionManager(tmp_path)
    chance = random.Random(7)  # noqa: S311 - no secret
    for _ in range(300):
        at = chance.randrange(len(whole))
        damaged: Any = chance.choice(
            [
                whole[:at],
                whole[:at] + bytes([chance.randrange(256)]) + whole[at + 1 :],
                whole[:at] + b'\0' * 40 + whole[at:],
                whole[:at] + '\u2028'.encode() + whole[at:],
            ]
        )
        path.write_bytes(damaged)
        intact = whole[:at].count(b'\n') - 1
        assert manager.load_session('chain')[: max(0, intact)] == [
            UserMessage(f'message {number}') for number in range(1, max(0, intact) + 1)
        ]
        verify(path)
