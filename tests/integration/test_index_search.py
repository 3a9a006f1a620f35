"""The index for search: what it finds, how it follows the files, and that it is always what they say."""

import json
import socket
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_days import AT, SID, Day, failure, found, rebuilt, rows_of, spoken, tool

from trading_agent.conversation.journal_folder import JournalFolder
from trading_agent.errors import StorageError
from trading_agent.index import feed, schema
from trading_agent.index.database import IndexFile
from trading_agent.index.lines import Lines
from trading_agent.index.results import EXCHANGE_STEP, DeskStatus, Progress
from trading_agent.index.session_files import Snapshot
from trading_agent.index.sqlite import SqliteIndex, mark_after
from trading_agent.memory.carry import BEGIN, framed
from trading_agent.messages import Usage


@pytest.fixture
def day(tmp_path: Path) -> Day:
    """A session of the desk `main`, without anything in it."""
    return Day(tmp_path)


@pytest.fixture
def index(tmp_path: Path) -> SqliteIndex:
    """The index of the same workspace; a damaged one fails the test."""

    def fail(path: Path, error: str) -> None:
        raise AssertionError(f'{path}: {error}')

    return SqliteIndex(tmp_path, fail)


# -- what is found -------------------------------------------------------------------------------------------------


def test_finds_what_was_said_in_finished_turns(day: Day, index: SqliteIndex) -> None:
    """Question, answer and what tools gave back are found; what a backend said before it failed is not."""
    usage = Usage(3, 4)
    day.say('zebra question', 'zebra answer', before=[*tool('quotes', 'zebra quote', is_error=True)], usage=usage)
    day.say('zebra second', 'zebra last', before=[spoken('zebra void'), failure()])
    index.catch_up()
    assert sorted(found(index, 'zebra')) == [
        ('assistant', 'zebra answer'),
        ('assistant', 'zebra last'),
        ('tool:quotes', 'zebra quote'),
        ('user', 'zebra question'),
        ('user', 'zebra second'),
    ]


def test_finds_nothing_that_does_not_hold(day: Day, index: SqliteIndex) -> None:
    """A turn that runs or was cut off, and a question beside the session, are not found; a failed turn's message is."""
    day.say('zebra cut', 'zebra half', trigger_id='t', outcome='interrupted', before=[spoken('zebra said')])
    day.say('zebra again', 'zebra whole', trigger_id='t', attempt=2)
    day.say('zebra review', 'zebra summary', purpose='review')
    day.say('zebra refused', outcome='failed', before=[spoken('zebra void'), failure()])
    day.say('zebra now', outcome='running', before=[spoken('zebra so far')])
    index.catch_up()
    assert sorted(text for _, text in found(index, 'zebra')) == ['zebra again', 'zebra refused', 'zebra whole']


def test_a_turn_is_found_once_it_has_its_end(day: Day, index: SqliteIndex) -> None:
    """What was read while a turn ran is found as soon as its end is read, and what was void then is not."""
    *parts, end, exchange = day.turn('zebra', 'zebra last', before=[spoken('zebra void'), failure(), spoken('zebra')])
    for part in parts:
        day.append(part)
        index.catch_up()
        assert not found(index, 'zebra')
    day.append(end)
    index.catch_up()
    assert sorted(text for _, text in found(index, 'zebra')) == ['zebra', 'zebra', 'zebra last']
    day.append(exchange)
    index.catch_up()
    assert len(found(index, 'zebra')) == 3
    assert rows_of(day.log.parents[3]) == rebuilt(day.log.parents[3])


def test_a_carried_summary_is_not_found_again(day: Day, index: SqliteIndex) -> None:
    """Of a first message with what came before in front of it, the message itself is kept."""
    first = framed(BEGIN.format(session_id=SID), 'yesterday we sold zebra', 'what now?')
    day.say(first, 'wait')
    day.append(day.unjournaled(first, 'old wait'))
    index.catch_up()
    assert not found(index, 'zebra')
    assert found(index, 'what now') == [('user', 'what now?')] * 2


def test_every_exchange_is_found_exactly_once(day: Day, index: SqliteIndex) -> None:
    """Exchanges of an older program, without a journal, are found beside journaled ones, which add nothing."""
    day.append(day.unjournaled('zebra one', trigger_id='old'), day.unjournaled('zebra two'))
    index.catch_up()
    day.say('zebra three')
    day.append(day.unjournaled('zebra four'))
    index.catch_up()
    assert sorted(text for _, text in found(index, 'zebra')) == ['zebra four', 'zebra one', 'zebra three', 'zebra two']
    hit = index.search('two')[0]
    assert (hit.who, hit.at, hit.trigger_id, hit.session_id) == ('user', AT, '', SID)
    assert index.search('one')[0].trigger_id == 'old'


@pytest.mark.parametrize('part', range(4))
def test_a_turn_that_cannot_be_read_is_found_by_its_exchange(day: Day, index: SqliteIndex, part: int) -> None:
    """Where a line of a journaled turn is damaged, what was said is found all the same, and once."""
    begun, told, _, said, end, exchange = day.turn('zebra question', 'zebra answer')
    kept = [begun, told, said, end]
    kept[part] = (day.journal, b'{"type":"mess\n')
    day.append(*kept, exchange)
    day.say('zebra next')
    index.catch_up()
    texts = sorted(text for _, text in found(index, 'zebra'))
    assert texts == ['zebra answer', 'zebra next', 'zebra question']
    assert index.status()[0].damaged_lines == 1


def test_a_failed_backends_answer_does_not_stand_for_one(day: Day, index: SqliteIndex) -> None:
    """Where the answer after a failure cannot be read, the exchange is found, and not what was said before it."""
    parts = day.turn('zebra question', 'zebra answer', before=[spoken('zebra void'), failure()])
    parts[-3] = (day.journal, b'{"type":"mess\n')
    for part in parts:
        day.append(part)
        index.catch_up()
    assert sorted(text for _, text in found(index, 'zebra')) == ['zebra answer', 'zebra question']


def test_who_when_and_where(day: Day, index: SqliteIndex, tmp_path: Path) -> None:
    """A hit names desk, session, date, trigger and time; filters go by desk and date; of equals the newest is first."""
    day.say('zebra here', trigger_id='mine')
    Day(tmp_path, 'other', '2026-10-20-1').say('zebra there')
    Day(tmp_path, 'main', '2026-10-21-2').say('zebra here')
    index.catch_up()
    hits = index.search('zebra here')
    assert [(hit.desk, hit.session_id) for hit in hits] == [('main', '2026-10-21-2'), ('main', SID)]
    assert (hits[1].trading_date, hits[1].trigger_id, hits[1].at) == (date(2026, 10, 19), 'mine', AT)
    assert hits[1].score > 0
    assert [hit.desk for hit in index.search('zebra', desk='other')] == ['other']
    assert [hit.desk for hit in index.search('zebra', first=date(2026, 10, 20), last=date(2026, 10, 20))] == ['other']
    assert len(index.search('zebra', last=date(2026, 10, 19))) == 1
    assert len(index.search('zebra', limit=2)) == 2
    assert not index.search('zebra', desk='nobody')


def test_the_same_text_many_times(day: Day, index: SqliteIndex) -> None:
    """A feed that repeats itself is found as often as is asked for, the newest first."""
    for _ in range(50):
        day.say('zebra zebra zebra')
    index.catch_up()
    assert [hit.trigger_id for hit in index.search('zebra', limit=3)] == ['t50', 't49', 't48']
    assert len(index.search('zebra', limit=100)) == 50


def test_the_match_is_marked(day: Day, index: SqliteIndex) -> None:
    """The excerpt is one line of bounded length around the match, which is marked; `message` shows the beginning."""
    words = ' '.join(f'word{number}' for number in range(400))
    day.say(f'{words}\n\n the M&M\t\x02 board \x03  met \n{words}', 'x' * 3000)
    index.catch_up()
    (hit,) = index.search('"m&m" board')
    assert [hit.excerpt[start:end] for start, end in hit.marks] == ['M&M', 'board']
    assert '\n' not in hit.excerpt
    assert len(hit.excerpt) < 300
    assert len(hit.text) > 4000
    shown = index.message(hit.desk, hit.session_id, hit.number)
    assert shown is not None
    assert (shown.text, shown.marks) == (hit.text, [])
    assert shown.excerpt.startswith('word0 word1')
    assert shown.excerpt.endswith('…')
    assert index.message(hit.desk, hit.session_id, 10**6) is None
    (long,) = index.search('x*')
    assert long.marks == [(0, len(long.excerpt) - 1)]


@pytest.mark.parametrize(
    ('typed', 'texts'),
    [
        ('M&M', {'M&M told of an order'}),
        ('m&m', {'M&M told of an order'}),
        ('bajaj-auto', {'BAJAJ-AUTO closed at 1,234.50'}),
        ('BAJAJ*', {'BAJAJ-AUTO closed at 1,234.50', 'Bajaj Finance has paid Rs.12,50,000/-'}),
        ('1234.5', {'BAJAJ-AUTO closed at 1,234.50'}),
        ('1,234.50', {'BAJAJ-AUTO closed at 1,234.50'}),
        ('₹1250000', {'Bajaj Finance has paid Rs.12,50,000/-'}),
        ('1,250,000', {'Bajaj Finance has paid Rs.12,50,000/-'}),
        ('Rs.12,50,000', {'Bajaj Finance has paid Rs.12,50,000/-'}),
        ('234', {'BAJAJ-AUTO closed at 1,234.50'}),
        ('लाभांश', {'कंपनी ने लाभांश घोषित किया'}),
        ('कंपनी', {'कंपनी ने लाभांश घोषित किया'}),
        ('cafe', {'Café Coffee Day'}),
        ('CAFÉ', {'Café Coffee Day'}),
        ('"an order"', {'M&M told of an order'}),
        ('"order an"', set()),
        ('order told', {'M&M told of an order'}),
        ('order nonsense', {'M&M told of an order'}),
        ('"order nonsense"', set()),
        ('NOT order', {'M&M told of an order'}),
        ('told AND', {'M&M told of an order'}),
        ('told" order', {'M&M told of an order'}),
        ('🚀', set()),
        ('told 🚀 "!!" ***', {'M&M told of an order'}),
        ('', set()),
        ('" * ^ : { } ( ) - + NEAR', set()),
        ('said: told', {'M&M told of an order'}),
        ('told\0order', {'M&M told of an order'}),
    ],
)
def test_what_a_trader_types(day: Day, index: SqliteIndex, typed: str, texts: set[str]) -> None:
    """Symbols, amounts however they are grouped, phrases, beginnings of words and other scripts are found."""
    for text in (
        'M&M told of an order',
        'BAJAJ-AUTO closed at 1,234.50',
        'Bajaj Finance has paid Rs.12,50,000/-',
        'कंपनी ने लाभांश घोषित किया',
        'Café Coffee Day',
    ):
        day.say(text, 'ok')
    index.catch_up()
    assert {hit.text for hit in index.search(typed)} == texts


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(typed=st.one_of(st.text(), st.text(alphabet='"*()^:-+ \'aM&1,.\0\n{}🚀क')))
def test_nothing_that_is_typed_is_an_error(tmp_path: Path, typed: str) -> None:
    """Whatever stands in a query, searching answers, and nothing counts as damage."""
    if not (tmp_path / 'desks').exists():
        Day(tmp_path).say('a M&M 1 क')
    with SqliteIndex(tmp_path, lambda path, error: pytest.fail(f'{path} {error}')) as index:
        for hit in index.search(typed):
            assert all(hit.excerpt[start:end] for start, end in hit.marks)


def test_a_pasted_announcement_finds_itself(day: Day, index: SqliteIndex) -> None:
    """10,000 characters are a query like any other, in quotes too; those beyond all measure answer as well."""
    text = ' '.join(f'word{number}' for number in range(1300))
    day.say(text, 'ok')
    index.catch_up()
    assert len(text) > 10_000
    assert [hit.text for hit in index.search(text)] == [text]
    assert [hit.text for hit in index.search(f'"{text}"')] == [text]
    assert index.search('a ' * 10_000) == []
    assert index.search('x' * 100_000) == []


def test_any_text_can_be_kept(day: Day, index: SqliteIndex) -> None:
    """NUL and half a surrogate pair are kept as U+FFFD, line separators as they are; what stands behind is found."""
    day.say('zebra a\0b \u2028 \U0001f680 behind', 'ok')
    odd = {'trigger_text': 'zebra \ud800 c\0d behind', 'answer': ' \n ', 'backend_name': 'b', 'finished_at': AT}
    day.append((day.log, json.dumps({**odd, 'usage': {'input_tokens': 10**30}}).encode() + b'\n'))
    index.catch_up()
    assert sorted(text for _, text in found(index, 'behind')) == [
        'zebra a\ufffdb \u2028 \U0001f680 behind',
        'zebra \ufffd c\ufffdd behind',
    ]
    assert rows_of(index.path.parent) == rebuilt(index.path.parent)


# -- how it follows the files --------------------------------------------------------------------------------------


def test_usage_is_what_the_journal_counts(day: Day, index: SqliteIndex) -> None:
    """The tokens of turns, of failed calls, of cut-off turns and of reviews are all there, once each."""
    day.say('a', usage=Usage(1, 2, 3, 4), before=[failure(Usage(10))])
    day.say('b', outcome='interrupted', usage=Usage(100))
    day.say('c', purpose='review', usage=Usage(1000))
    index.catch_up()
    rows = rows_of(index.path.parent)['usage']
    total = [sum(counts) for counts in zip(*[row[-4:] for row in rows], strict=True)]
    assert Usage(*total) == JournalFolder(day.journal.parent, 'main', None).usage(SID)  # type: ignore[arg-type]
    assert len(rows) == 4


def test_tool_calls_and_outcomes(day: Day, index: SqliteIndex) -> None:
    """Each call is there with its arguments, and each turn with how it ended."""
    day.say('a', before=tool('quotes', '101.5'))
    day.say('b', outcome='interrupted')
    day.say('c', outcome='failed')
    day.say('d', outcome='running')
    index.catch_up()
    rows = rows_of(index.path.parent)
    (call,) = rows['tool_calls']
    assert call[-4:] == ('c1', 'quotes', 0, '{"symbol":"ABC","n":1.5}')
    assert [row[8] for row in sorted(rows['turns'])] == ['answered', 'interrupted', 'failed', 'running']
    day.say('e')
    index.catch_up()
    assert [row[8] for row in sorted(rows_of(index.path.parent)['turns'])][-2:] == ['interrupted', 'answered']


def test_status_and_behind(day: Day, index: SqliteIndex, tmp_path: Path) -> None:
    """The status counts what is in the index and what is not yet, without making one; a torn tail is no line."""
    day.say('a')
    Day(tmp_path, 'other').append((Day(tmp_path, 'other').log, b'broken\n'))
    size = day.journal.stat().st_size + day.log.stat().st_size
    assert index.status() == [DeskStatus('main', 0, 0, 0, 0, size), DeskStatus('other', 0, 0, 0, 0, 7)]
    assert not index.exists
    told: list[Progress] = []
    assert index.catch_up(on_progress=told.append)
    assert (told[-1].done, told[-1].total) == (size + 7, size + 7)
    assert index.status() == [DeskStatus('main', 1, 2, 1, 0, 0), DeskStatus('other', 1, 0, 0, 1, 0)]
    day.append((day.log, b'{"trigger_text":'))
    assert index.behind() == 16
    index.catch_up()
    assert index.behind() == 0


def test_nothing_is_there_yet(tmp_path: Path, index: SqliteIndex) -> None:
    """A workspace without desks has an empty index; a missing one is an error that says so."""
    assert index.search('anything') == []
    assert index.status() == []
    assert list(index.passages({})) == []
    with pytest.raises(StorageError, match='nowhere'):
        SqliteIndex(tmp_path / 'nowhere').search('anything')


def test_it_is_private(day: Day, index: SqliteIndex) -> None:
    """Every file of the index is for its owner alone."""
    day.say('a')
    index.catch_up()
    modes = {path.name: path.stat().st_mode & 0o777 for path in index.path.parent.glob('index*')}
    assert set(modes) == {'index.sqlite3', 'index.sqlite3-wal', 'index.sqlite3-shm', 'index.lock'}
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize('which', ['journal', 'log'])
@pytest.mark.parametrize('change', ['shorter', 'rewritten', 'rewritten and longer', 'gone', 'gone, then back'])
def test_the_files_are_right(day: Day, index: SqliteIndex, which: str, change: str) -> None:
    """A file that shrank, was written anew or is gone makes its session be read anew."""
    for number in range(20):
        day.say(f'zebra {number}')
    index.catch_up()
    path = getattr(day, which)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = [line.replace(b'zebra', b'tiger').replace(b'"b"', b'"c"') for line in lines]
    if change == 'shorter':
        path.write_bytes(b''.join(lines[:-12]))
    elif change == 'rewritten':
        path.write_bytes(b''.join(changed))
    elif change == 'rewritten and longer':
        path.write_bytes(b''.join(changed * 2))
    else:
        path.unlink()
        if change == 'gone, then back':
            index.catch_up()
            path.write_bytes(b''.join(lines))
    index.catch_up()
    assert index.check(patience=0) == []
    assert rows_of(index.path.parent) == rebuilt(index.path.parent)


def test_a_session_that_is_gone_is_forgotten(day: Day, index: SqliteIndex, tmp_path: Path) -> None:
    """Where both files of a session were moved away, nothing of it is found; a desk's folder likewise."""
    day.say('zebra')
    other = Day(tmp_path, 'other')
    other.say('zebra there')
    Day(tmp_path, 'main', '2026-10-20-1').say('zebra next day')
    index.catch_up()
    day.journal.unlink()
    day.log.unlink()
    (tmp_path / 'desks' / 'other').rename(tmp_path / 'elsewhere')
    index.catch_up(desk='other')
    assert {text for _, text in found(index, 'zebra')} == {'zebra', 'zebra next day'}
    index.catch_up()
    assert {text for _, text in found(index, 'zebra')} == {'zebra next day'}
    assert rows_of(tmp_path) == rebuilt(tmp_path)


def test_a_torn_line_is_read_once_it_is_whole(day: Day, index: SqliteIndex) -> None:
    """Bytes behind the last newline wait; closed by one they are a damaged line, and those after it are read."""
    *parts, (path, exchange) = day.turn('zebra')
    day.append(*parts, (path, exchange[:20]))
    index.catch_up()
    assert index.status()[0].exchanges == 0
    day.append((path, b'\n' + exchange))
    index.catch_up()
    assert (index.status()[0].exchanges, index.status()[0].damaged_lines) == (1, 1)
    assert found(index, 'zebra') == [('user', 'zebra')]


def test_lines_longer_than_a_batch(day: Day, index: SqliteIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is read whatever its length; one beyond all measure counts as damaged, and the next one follows."""
    monkeypatch.setattr(feed, 'BATCH_BYTES', 64)
    monkeypatch.setattr('trading_agent.json_lines.MAX_LINE_BYTES', 1 << 20)
    day.say('zebra ' * 10_000)
    day.append(day.unjournaled('zebra ' * 300_000))
    day.append(day.unjournaled('lion'))
    index.catch_up()
    assert len(index.search('zebra')) == 1
    assert found(index, 'lion') == [('user', 'lion')]
    assert index.status()[0].damaged_lines == 1
    day.append(day.unjournaled('tiger'))
    index.catch_up()
    assert rows_of(index.path.parent) == rebuilt(index.path.parent)


def test_one_session_is_made_anew(day: Day, index: SqliteIndex, tmp_path: Path) -> None:
    """`rebuild_sqlite_from_jsonl` replays one session of every desk that has it, or of one, and touches no other."""
    day.say('zebra')
    Day(tmp_path, 'other').say('zebra there')
    Day(tmp_path, 'main', '2026-10-20-1').say('zebra next day')
    index.catch_up()
    before = rows_of(tmp_path)
    index.rebuild_sqlite_from_jsonl(SID)
    index.rebuild_sqlite_from_jsonl(SID, 'other')
    index.rebuild_sqlite_from_jsonl('2030-01-01-1')
    index.rebuild('main')
    assert rows_of(tmp_path) == before
    for path in (day.journal, day.log):
        path.unlink()
    index.rebuild_sqlite_from_jsonl(SID, 'main')
    assert {hit.desk for hit in index.search('zebra')} == {'other', 'main'}
    assert len(index.search('zebra')) == 2


def test_a_file_that_cannot_be_read_holds_up_no_other(
    day: Day, index: SqliteIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other sessions are read, and the failure is raised in the end, by catching up and by making it anew."""
    day.say('zebra')
    broken = Day(tmp_path, 'broken')
    broken.say('zebra there')
    real = Lines.take

    def take(lines: Lines, most_bytes: int) -> object:
        if 'broken' in lines.source.name:
            raise StorageError('read', broken.journal, OSError(5, 'Input/output error'))
        return real(lines, most_bytes)

    monkeypatch.setattr(Lines, 'take', take)
    for action in (index.catch_up, index.rebuild, index.catch_up):
        with pytest.raises(StorageError, match='Input/output error'):
            action()
        assert found(index, 'zebra') == [('user', 'zebra')]
    monkeypatch.undo()
    index.catch_up()
    assert rows_of(tmp_path) == rebuilt(tmp_path)


def test_stops_when_it_is_told_to(day: Day, index: SqliteIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between two transactions, it says that it is not done, and goes on from there later."""
    monkeypatch.setattr(feed, 'BATCH_BYTES', 500)
    for number in range(30):
        day.say(f'zebra {number}')
    stops = iter([False, False, True])
    assert index.catch_up(stop=lambda: next(stops)) is False
    assert 0 < index.behind() < day.journal.stat().st_size + day.log.stat().st_size
    assert index.catch_up() is True
    assert rows_of(index.path.parent) == rebuilt(index.path.parent)


def test_a_session_that_is_replayed_by_another_meanwhile(day: Day, index: SqliteIndex) -> None:
    """Where another process takes the journal's rows away before the log is read, both are read again."""
    day.say('zebra')
    stops = 0

    def stop() -> bool:
        nonlocal stops
        stops += 1
        if stops == 1:
            with IndexFile(index.path, lambda *_: None).writing('write') as connection:
                schema.purge(connection, 'main', SID)
        return False

    assert index.catch_up(stop=stop)
    assert stops > 2
    assert len(found(index, 'zebra')) == 1
    assert rows_of(index.path.parent) == rebuilt(index.path.parent)


def test_a_session_that_comes_back_meanwhile(
    day: Day, index: SqliteIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose files were not seen, but are there when it is to be forgotten, stays."""
    day.say('zebra')
    index.catch_up()
    Day(tmp_path, 'other').say('lion')
    monkeypatch.setattr(Snapshot, 'gone', lambda *_: [('main', SID)])
    index.catch_up()
    assert len(found(index, 'zebra')) == 1


def test_only_some_sessions(day: Day, index: SqliteIndex, tmp_path: Path) -> None:
    """Asked for some sessions, it reads these alone, once all have been read; into a new index it reads all."""
    other = Day(tmp_path, 'other')
    for each in (day, other):
        each.say('zebra')
    index.catch_up(sessions={('main', SID)})
    assert len(index.search('zebra')) == 2
    for each in (day, other):
        each.say('lion')
    index.catch_up(sessions=[('main', SID), ('main', '2030-01-01-1'), ('nobody', SID), ('main', '../../x')])
    assert [hit.desk for hit in index.search('lion')] == ['main']
    index.path.unlink()
    index.catch_up(sessions=[('main', SID)])
    assert len(index.search('lion')) == 2
    index.rebuild('main', 'no session')
    assert rows_of(tmp_path) == rebuilt(tmp_path)


def test_passages_go_on_behind_their_marks(day: Day, index: SqliteIndex, tmp_path: Path) -> None:
    """Every message that search finds is handed over once, in batches, and later only what is new."""
    for number in range(200):
        day.say(f'zebra {number}', '' if number % 2 else 'ok')
    day.say('running', outcome='running')
    mixed = Day(tmp_path, 'mixed')
    mixed.append(mixed.unjournaled('lion one'))
    index.catch_up()
    marks: dict[tuple[str, str], int] = {}

    def taken() -> list[str]:
        texts = []
        for batch in index.passages(marks):
            assert 0 < len(batch) <= 600
            for passage in batch:
                key = (passage.desk, passage.session_id)
                assert key not in marks or passage.number not in (marks[key], 0)
                marks[key] = mark_after(marks.get(key, 0), passage.number)
                texts.append(passage.text)
        return texts

    assert len(taken()) == 302
    assert taken() == []
    mixed.say('lion two')
    mixed.append(mixed.unjournaled('lion three'))
    day.say('tiger')
    index.catch_up()
    assert sorted(taken()) == ['lion three', 'lion two', 'noted', 'noted', 'noted', 'tiger']
    mixed.say('lion four')
    index.catch_up()
    assert sorted(taken()) == ['lion four', 'noted']
    assert taken() == []


@given(st.lists(st.integers(0, 2 * EXCHANGE_STEP)))
def test_marks_never_go_back(numbers: list[int]) -> None:
    """A mark covers each number that went into it, and taking one in twice changes nothing."""
    mark = 0
    for number in numbers:
        following = mark_after(mark, number)
        assert following >= mark
        assert mark_after(following, number) == following
        mark = following


def test_opens_no_connection(day: Day, index: SqliteIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither reading the files nor searching opens a socket to anywhere."""

    class Guarded(socket.socket):
        def __init__(self, *arguments: object, **options: object) -> None:
            raise AssertionError(f'a socket: {arguments} {options}')

    monkeypatch.setattr(socket, 'socket', Guarded)
    day.say('zebra')
    index.catch_up()
    index.rebuild()
    assert index.check() == []
    assert len(index.search('zebra')) == 1
    assert sum(map(len, index.passages({}))) == 2
