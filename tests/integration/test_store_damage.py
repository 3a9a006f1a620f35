"""What cannot be read, of whichever of a desk's files, is told once, and none of its bytes are lost."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from daemon_fakes import config_for, daemon_of
from keeper_fakes import MONDAY_MORNING, Box

from trading_agent.cli.render import india_time
from trading_agent.clock import instant_in
from trading_agent.conversation.journal import SessionManager
from trading_agent.daemon.disabled_backends import DisabledFile, DisabledFileDamaged
from trading_agent.daemon.hold import Hold, HoldFile
from trading_agent.errors import DeskUnusable
from trading_agent.events import DeskParked, DeskRestarted, StoreDamaged
from trading_agent.memory.damage import Damage, DamageReport, keep_aside, set_aside
from trading_agent.memory.day_notes import DayNotes
from trading_agent.memory.exchange import Exchange
from trading_agent.memory.memory_file import MemoryFile
from trading_agent.memory.session_state import RouteState, SessionState
from trading_agent.memory.session_store import SessionStore
from trading_agent.memory.skill_store import SkillStore

DAY = date(2026, 10, 19)
SESSION = '2026-10-19-1'


@pytest.fixture
def told() -> list[Damage]:
    """What was told."""
    return []


def places(told: list[Damage]) -> list[tuple[str, int | None]]:
    """Returns the files and lines that were told."""
    return [(damage.path.name, damage.line) for damage in told]


def asides(folder: Path) -> list[bytes]:
    """Returns what was set aside."""
    return [path.read_bytes() for path in sorted(folder.rglob('*.damaged-*'))]


# -- telling and keeping -------------------------------------------------------------------------------------------


def test_each_part_is_told_once(tmp_path: Path, told: list[Damage]) -> None:
    """A damaged line is told once, however often it is read; another one of the same file is told too."""
    report = DamageReport(told.append)
    for line in (3, 3, 4, None, None):
        report.tell(tmp_path / 'file', line, ValueError('x' * 1000))
    assert places(told) == [('file', 3), ('file', 4), ('file', None)]
    assert report.lines_in(tmp_path / 'file') == 2
    assert all(len(damage.error) == 500 for damage in told)


def test_a_text_is_read_as_far_as_it_goes(tmp_path: Path, told: list[Damage]) -> None:
    """A byte that is no text shows as U+FFFD and is told with its line; a text with a BOM is told nothing of."""
    report = DamageReport(told.append)
    assert report.text_of(tmp_path / 'a', b'\xef\xbb\xbfone\ntwo') == 'one\ntwo'
    assert report.text_of(tmp_path / 'b', b'one\nt\xffwo\n\xff') == 'one\nt\ufffdwo\n\ufffd'
    assert places(told) == [('b', 2)]


def test_what_is_set_aside_replaces_nothing(tmp_path: Path) -> None:
    """Of two files that are set aside in the same instant both are kept."""
    for content in ('first', 'second', 'third'):
        (tmp_path / 'state.json').write_text(content)
        set_aside(tmp_path / 'state.json', MONDAY_MORNING)
    assert sorted(asides(tmp_path)) == [b'first', b'second', b'third']
    (tmp_path / 'kept').write_text('kept')
    assert keep_aside(tmp_path / 'kept').read_text() == (tmp_path / 'kept').read_text()


# -- files of records ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('name', 'read'),
    [
        (f'notes/{SESSION}.jsonl', lambda folder, tell: DayNotes(folder, on_damage=tell).read(SESSION)),
        ('memory_history/ledger.jsonl', lambda folder, tell: MemoryFile(folder, on_damage=tell).changes()),
        ('skills/ledger.jsonl', lambda folder, tell: SkillStore(folder, on_damage=tell).records()),
    ],
)
def test_a_damaged_record_is_told(
    tmp_path: Path, told: list[Damage], name: str, read: Callable[[Path, Callable[[Damage], None]], object]
) -> None:
    """A line of notes or of a ledger that is none is told with its number and stays; a header is no damage."""
    path = tmp_path / name
    path.parent.mkdir()
    content = b'{"type":"header","version":1}\n{"type":"note"\n\n\xff\n{"type":"header","version":1}\n'
    path.write_bytes(content)
    read(tmp_path, told.append)
    assert places(told) == [(path.name, 2), (path.name, 4)]
    assert path.read_bytes() == content


def test_a_proposal_that_cannot_be_understood_is_told(tmp_path: Path, told: list[Damage]) -> None:
    """A proposal of the curator that is damaged is left out, told, and stays; what is no proposal is nobody's."""
    proposed = tmp_path / 'skills' / '.proposed'
    (proposed / 'done').mkdir(parents=True)
    (proposed / '2026-10-19-0123abcd.json').write_text('{')
    (proposed / 'README').write_text('')
    store = SkillStore(tmp_path, on_damage=told.append)
    assert store.proposals() == store.proposals() == []
    assert places(told) == [('2026-10-19-0123abcd.json', None)]


# -- sessions ------------------------------------------------------------------------------------------------------


def test_a_state_of_another_date_is_none(tmp_path: Path, told: list[Damage]) -> None:
    """A state whose date is not its session's is damaged: one of the two was changed."""
    store = SessionStore(tmp_path, lambda: DAY, on_damage=told.append)
    (tmp_path / 'state.json').write_text(f'{{"session_id": "{SESSION}", "trading_date": "2026-10-18"}}')
    assert store.load_state() is None
    assert places(told) == [('state.json', None)]


def test_who_has_seen_what_is_not_there_any_more() -> None:
    """Of three exchanges one cannot be read: who had seen two is told the last; nobody has seen more than there are."""
    routes = {'a': RouteState(2, {'id': 'x'}), 'b': RouteState(0, None), 'c': RouteState(99, None)}
    state = SessionState(SESSION, DAY, routes).seen_at_most(2, lost=1)
    assert state.routes == {'a': RouteState(1, {'id': 'x'}), 'b': RouteState(0, None), 'c': RouteState(2, None)}


async def test_a_backend_misses_nothing_behind_a_damaged_line(tmp_path: Path) -> None:
    """An exchange behind a damaged one is told to a backend that has not seen it, though it has seen as many."""
    box = Box(tmp_path)
    await box.start()
    for text in ('one', 'two', 'three'):
        await box.turn(text)
    log = box.store.log_path(SESSION)
    lines = log.read_bytes().split(b'\n')
    log.write_bytes(b'\n'.join([b'{"damaged', *lines[1:]]))
    state = box.store.load_state()
    assert state is not None
    box.store.save_state(SessionState(SESSION, DAY, {'first': RouteState(2, {'id': 'x'})}))
    await box.restart()
    assert box.router.routes['first'] == RouteState(1, {'id': 'x'})
    await box.turn('four')
    turn = box.model.turns[-1]
    assert 'three' in turn.exchanges[turn.exchanges_seen].trigger_text


async def test_a_state_that_names_a_session_that_never_was(tmp_path: Path) -> None:
    """A state that names a session whose id was never given out is set aside, and the newest log goes on."""
    box = Box(tmp_path)
    await box.start()
    await box.turn('one')
    state = box.path / 'state.json'
    state.write_text(state.read_text().replace(SESSION, '2026-10-19-3'))
    before = state.read_bytes()
    await box.restart()
    assert box.router.session_id == SESSION
    assert [exchange.answer for exchange in box.router.exchanges] == [f'answer 1 of {SESSION}']
    assert asides(box.path) == [before]
    assert box.told(StoreDamaged)


def test_a_log_that_is_missing_is_told(tmp_path: Path, told: list[Damage]) -> None:
    """That the log of a session which there was is gone is told."""
    store = SessionStore(tmp_path, lambda: DAY, on_damage=told.append)
    assert not store.has_had(SESSION)
    assert store.new_session_id(DAY) == SESSION
    assert store.has_had(SESSION)
    assert told == []
    store.log_path(SESSION).unlink()
    assert store.has_had(SESSION)
    assert places(told) == [(f'{SESSION}.jsonl', None)]


def test_an_id_that_is_none_is_told(tmp_path: Path, told: list[Damage]) -> None:
    """A line of the ids that is none is told and stays, and the others hold."""
    store = SessionStore(tmp_path, lambda: DAY, on_damage=told.append)
    (tmp_path / '.session-ids').write_bytes(b'2026-10-19-4\n\xff\xff\n\n2026-10-1')
    assert store.new_session_id(DAY) == '2026-10-19-5'
    assert places(told) == [('.session-ids', 2), ('.session-ids', 4)]
    assert (tmp_path / '.session-ids').read_bytes() == b'2026-10-19-4\n\xff\xff\n\n2026-10-1\n2026-10-19-5\n'


def test_a_summary_that_is_no_text_is_kept(tmp_path: Path, told: list[Damage]) -> None:
    """A day's summary with a bad byte is told; before another section is written, it is kept as it was."""
    store = SessionStore(tmp_path, lambda: DAY, on_damage=told.append)
    path = store.write_summary_section(SESSION, 'a quiet day')
    path.write_bytes(path.read_bytes() + b'\xff')
    before = path.read_bytes()
    store.write_summary_section('2026-10-19-2', 'another one')
    assert asides(tmp_path) == [before]
    assert places(told) == [('2026-10-19.md', 4)]
    assert [section.session_id for section in store.summary_sections(DAY)] == [SESSION, '2026-10-19-2']


@pytest.mark.parametrize(('name', 'content'), [('untold.json', b''), ('backfill.json', b'{"parts": 3}')])
async def test_what_is_owed_is_set_aside(tmp_path: Path, name: str, content: bytes) -> None:
    """A list of what is owed that cannot be understood is moved aside and told; the desk goes on."""
    told: list[Damage] = []
    box = Box(tmp_path)
    await box.start()
    box.store.damage = DamageReport(told.append)
    (box.path / name).write_bytes(content)
    await box.keeper._owed.load()
    assert asides(box.path) == [content]
    assert [damage.path.name.partition('.damaged')[0] for damage in told] == [name]


async def test_what_a_newer_version_owes(tmp_path: Path) -> None:
    """Progress that a newer version wrote down is not overwritten: the desk says which version is needed."""
    box = Box(tmp_path)
    await box.start()
    newer = b'{"session_id": "2026-10-18-1", "version": 2}'
    (box.path / 'backfill.json').write_bytes(newer)
    with pytest.raises(DeskUnusable, match='format 2'):
        await box.keeper._owed.load()
    assert (box.path / 'backfill.json').read_bytes() == newer


# -- what people have done -----------------------------------------------------------------------------------------


def test_a_hold_that_cannot_be_understood(tmp_path: Path, told: list[Damage]) -> None:
    """A damaged `paused.json` holds and is told; letting go, or holding anew, leaves its bytes under another name."""
    file = HoldFile(tmp_path, told.append)
    path = tmp_path / 'paused.json'
    for content in (b'{', b'{"at": "9999-12-31T23:59:59.9-12:00", "by": "asha", "reason": ""}'):
        path.write_bytes(content)
        hold = file.read()
        assert hold is not None
        assert hold.in_words('main').startswith('paused by somebody')
        file.remove()
        assert file.read() is None
    path.write_bytes(b'\xff')
    file.write(Hold(MONDAY_MORNING, 'asha', 'lunch'))
    assert sorted(asides(tmp_path)) == sorted(
        [b'{', b'{"at": "9999-12-31T23:59:59.9-12:00", "by": "asha", "reason": ""}', b'\xff']
    )
    assert places(told) == [('paused.json', None)]
    assert file.read() == Hold(MONDAY_MORNING.astimezone(UTC), 'asha', 'lunch')


def test_a_time_that_is_none_in_india(tmp_path: Path) -> None:
    """A backend that was disabled at the end of the calendar makes the file one that is set aside, and no exception."""
    file = DisabledFile(tmp_path)
    file.path.write_text('{"version": 1, "backends": {"gpt": {"at": "9999-12-31T23:59:59Z", "by": "asha"}}}')
    with pytest.raises(DisabledFileDamaged):
        file.read()
    assert file.read() == {}


# -- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'text', ['', 'x', '2026-10-19', '2026-10-19T10:00:00', '0001-01-01T00:00:00+14:00', '9999-12-31T23:59:59Z']
)
def test_instants_that_are_none(text: str) -> None:
    """A text that is no time, has no zone, or none in other zones is no instant."""
    assert instant_in(text) is None
    assert india_time(text) == (text or '-')
    assert instant_in('2026-10-19T10:00:00Z') == datetime(2026, 10, 19, 10, tzinfo=UTC)


def test_a_session_that_began_before_there_were_days(tmp_path: Path) -> None:
    """A session whose header tells a time that cannot be said in UTC is left out of the list, and raises nothing."""
    manager = SessionManager(tmp_path)
    manager.create_session('sound')
    line = '{"type":"session_header","session_id":"odd","created_at":"0001-01-01T00:00:00+14:00"}\n'
    (tmp_path / 'odd.jsonl').write_text(line)
    assert [session['session_id'] for session in manager.list_sessions()] == ['sound']


async def test_a_trigger_from_before_there_were_days(tmp_path: Path) -> None:
    """An open trigger whose line tells a time that cannot be said in India is run like any other."""
    box = Box(tmp_path)
    await box.start()
    path = tmp_path / 'triggers.jsonl'
    line = '{"type":"accepted","at":"0001-01-01T00:00:00+14:00","trigger":{"text":"a","desk":"main","id":"odd"}}\n'
    path.write_text(path.read_text() + line)
    await box.restart()
    oldest = box.queue.oldest
    assert oldest is not None
    assert oldest.accepted_at == oldest.trigger.received_at


# -- newer versions ------------------------------------------------------------------------------------------------


async def test_a_newer_version_that_is_met_while_a_debt_is_paid(tmp_path: Path) -> None:
    """Notes of a newer version, read for a summary that is owed, park the desk at once with what to do about it."""
    desk = tmp_path / 'desks' / 'main'
    sessions = desk / 'sessions'
    (sessions / 'summaries').mkdir(parents=True)
    (desk / 'notes').mkdir()
    store = SessionStore(sessions, lambda: date(2026, 3, 9))
    owed = store.new_session_id(date(2026, 3, 9))
    store.append_exchange(owed, Exchange('told', 'answered', 'offline', '2026-03-09T04:00:00Z'))
    store.write_summary_section(owed, 'in short', degraded=True)
    store.save_state(SessionState(store.new_session_id(date(2026, 3, 10)), date(2026, 3, 10)))
    (desk / 'notes' / f'{owed}.jsonl').write_text('{"type":"header","version":99}\n')
    async with daemon_of(config_for(tmp_path)) as daemon:
        with daemon.bus.subscribe(DeskParked, DeskRestarted, since='oldest') as events:
            parked = (await events.batch())[0]
        assert isinstance(parked, DeskParked)
        assert 'format 99' in parked.error
        assert 'install the newer version' in parked.hint
