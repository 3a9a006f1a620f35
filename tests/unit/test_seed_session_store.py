"""What the first document says of the session store, line by line: every call as it is shown there."""

import dataclasses
import inspect
import json
import logging
import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from trading_agent.memory import session_store
from trading_agent.memory.session_store import DailySummary, Exchange, RouteState, SessionState, SessionStore

DAY = date(2026, 10, 19)
EXCHANGE = Exchange('NIFTY crossed 25,000', 'Noted.', 'claude', '2026-10-19T04:00:00+00:00')
STATE = SessionState('2026-10-19-1', DAY, {'claude': RouteState(3, {'session': 'abc'}), 'gpt': RouteState(0, None)})


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    """A store whose folder is not there yet."""
    return SessionStore(tmp_path / 'sessions', lambda: DAY)


def test_typical_usage(tmp_path: Path) -> None:
    """The typical usage example works as it stands, on a folder as the page draws it."""
    store = SessionStore(tmp_path / 'workspace/desks/main/sessions')
    store.save_state(STATE)
    state = store.load_state()
    assert state is not None
    store.append_exchange(state.session_id, EXCHANGE)
    store.write_summary(state.trading_date, 'A quiet day.')
    folder = tmp_path / 'workspace/desks/main/sessions'
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file())
    assert found == ['2026-10-19-1.jsonl', 'state.json', 'summaries/2026-10-19.md']


@pytest.mark.parametrize(
    ('function', 'parameters'),
    [
        (SessionStore, ['directory', 'date_source']),
        (SessionStore.today, ['self']),
        (SessionStore.load_state, ['self']),
        (SessionStore.save_state, ['self', 'state']),
        (SessionStore.new_session_id, ['self', 'trading_date']),
        (SessionStore.append_exchange, ['self', 'session_id', 'exchange']),
        (SessionStore.exchanges, ['self', 'session_id']),
        (SessionStore.session_ids, ['self']),
        (SessionStore.summaries, ['self']),
        (SessionStore.write_summary, ['self', 'trading_date', 'text']),
        (SessionStore.latest_summary, ['self']),
        (Exchange.to_json_dictionary, ['self']),
        (Exchange.from_json_dictionary, ['data']),
        (SessionState.to_json_dictionary, ['self']),
        (SessionState.from_json_dictionary, ['data']),
    ],
)
def test_parameters(function: Any, parameters: list[str]) -> None:  # noqa: ANN401
    """Each method has the documented parameters under their names, and whatever else it takes has a default."""
    found = list(inspect.signature(function).parameters.values())
    positional = [parameter.name for parameter in found if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert positional == parameters
    assert all(parameter.default is not parameter.empty for parameter in found if parameter.name not in parameters)


def test_all_five_names_are_in_the_module() -> None:
    """The five documented classes are imported from this module, and four of them are dataclasses."""
    for name in ('Exchange', 'RouteState', 'SessionState', 'DailySummary'):
        assert dataclasses.is_dataclass(getattr(session_store, name))
    assert inspect.isclass(session_store.SessionStore)


# -- Exchange ----------------------------------------------------------------------------------------------------


def test_an_exchange_has_four_attributes() -> None:
    """`Exchange(trigger_text, answer, backend_name, finished_at)` keeps each under its name."""
    exchange = Exchange('told', 'answered', 'gpt', '2026-10-19T04:00:00+00:00')
    assert (exchange.trigger_text, exchange.answer) == ('told', 'answered')
    assert (exchange.backend_name, exchange.finished_at) == ('gpt', '2026-10-19T04:00:00+00:00')
    same = Exchange(trigger_text='told', answer='answered', backend_name='gpt', finished_at=exchange.finished_at)
    assert same == exchange


def test_an_exchange_becomes_a_dictionary_of_its_fields() -> None:
    """`to_json_dictionary` returns the four fields, and json.dumps can write them."""
    data = EXCHANGE.to_json_dictionary()
    assert data == {
        'trigger_text': 'NIFTY crossed 25,000',
        'answer': 'Noted.',
        'backend_name': 'claude',
        'finished_at': '2026-10-19T04:00:00+00:00',
    }
    assert json.loads(json.dumps(data)) == data


def test_an_exchange_is_read_from_its_dictionary() -> None:
    """`from_json_dictionary` reads what `to_json_dictionary` wrote."""
    assert Exchange.from_json_dictionary(data=EXCHANGE.to_json_dictionary()) == EXCHANGE


@pytest.mark.parametrize('field', ['trigger_text', 'answer', 'backend_name', 'finished_at'])
def test_an_exchange_without_a_field_is_a_key_error(field: str) -> None:
    """A missing field is a KeyError."""
    data = EXCHANGE.to_json_dictionary()
    del data[field]
    with pytest.raises(KeyError, match=field):
        Exchange.from_json_dictionary(data)


# -- RouteState, SessionState ------------------------------------------------------------------------------------


def test_a_route_has_two_attributes() -> None:
    """`RouteState(exchanges_seen, runner_state)` keeps both; the second may be None."""
    assert RouteState(3, {'id': 'x'}).exchanges_seen == 3
    assert RouteState(3, {'id': 'x'}).runner_state == {'id': 'x'}
    assert RouteState(exchanges_seen=0, runner_state=None).runner_state is None


def test_a_state_has_three_attributes() -> None:
    """`SessionState(session_id, trading_date, routes)` keeps each under its name."""
    assert (STATE.session_id, STATE.trading_date) == ('2026-10-19-1', DAY)
    assert STATE.routes['claude'] == RouteState(3, {'session': 'abc'})
    assert SessionState(session_id='2026-10-19-1', trading_date=DAY, routes=STATE.routes) == STATE


def test_a_state_becomes_a_dictionary() -> None:
    """`to_json_dictionary` has the date as an ISO 8601 string, and json.dumps can write it."""
    data = STATE.to_json_dictionary()
    assert data == {
        'session_id': '2026-10-19-1',
        'trading_date': '2026-10-19',
        'routes': {
            'claude': {'exchanges_seen': 3, 'runner_state': {'session': 'abc'}},
            'gpt': {'exchanges_seen': 0, 'runner_state': None},
        },
    }
    assert json.loads(json.dumps(data)) == data


def test_a_state_is_read_from_its_dictionary() -> None:
    """`from_json_dictionary` reads what `to_json_dictionary` wrote."""
    assert SessionState.from_json_dictionary(data=STATE.to_json_dictionary()) == STATE


@pytest.mark.parametrize('field', ['session_id', 'trading_date'])
def test_a_state_without_a_field_is_a_key_error(field: str) -> None:
    """A missing field is a KeyError."""
    data = STATE.to_json_dictionary()
    del data[field]
    with pytest.raises(KeyError, match=field):
        SessionState.from_json_dictionary(data)


@pytest.mark.parametrize('text', ['yesterday', '19.10.2026', '2026-13-01', '2026-02-30', ''])
def test_a_state_with_another_date_is_a_value_error(text: str) -> None:
    """A date that is not an ISO 8601 date is a ValueError."""
    with pytest.raises(ValueError, match=r'.'):
        SessionState.from_json_dictionary({**STATE.to_json_dictionary(), 'trading_date': text})


def test_a_state_without_routes_has_none() -> None:
    """Routes, and what is in a route, may be left out: nothing seen, nothing kept."""
    assert SessionState.from_json_dictionary({'session_id': '2026-10-19-1', 'trading_date': '2026-10-19'}).routes == {}
    data = {'session_id': '2026-10-19-1', 'trading_date': '2026-10-19', 'routes': {'gpt': {}}}
    assert SessionState.from_json_dictionary(data).routes == {'gpt': RouteState(0, None)}


def test_a_daily_summary_has_two_attributes() -> None:
    """`DailySummary(trading_date, text)` keeps both."""
    summary = DailySummary(trading_date=DAY, text='A quiet day.')
    assert (summary.trading_date, summary.text) == (DAY, 'A quiet day.')
    assert DailySummary(DAY, 'A quiet day.') == summary


# -- SessionStore ------------------------------------------------------------------------------------------------


def test_a_store_touches_no_disk(tmp_path: Path) -> None:
    """The constructor describes the folder without touching the disk; `directory` is the folder."""
    store = SessionStore(tmp_path / 'a' / 'sessions', None)
    assert store.directory == tmp_path / 'a' / 'sessions'
    assert list(tmp_path.iterdir()) == []


def test_reading_creates_nothing(tmp_path: Path) -> None:
    """Where nothing was written, reading finds nothing and creates nothing."""
    store = SessionStore(tmp_path / 'sessions')
    assert store.load_state() is None
    assert store.exchanges('2026-10-19-1') == []
    assert store.session_ids() == []
    assert store.summaries() == []
    assert store.latest_summary() is None
    assert list(tmp_path.iterdir()) == []


def test_today_is_what_the_date_source_says(tmp_path: Path) -> None:
    """`date_source` replaces the clock."""
    assert SessionStore(tmp_path, date_source=lambda: DAY).today() == DAY


def test_today_is_indias_date(tmp_path: Path) -> None:
    """Without a date source it is the date in India, five and a half hours before UTC gets there."""
    india = timedelta(hours=5, minutes=30)
    before = (datetime.now(UTC) + india).date()
    assert before <= SessionStore(tmp_path).today() <= (datetime.now(UTC) + india).date()


def test_no_state_yet(store: SessionStore) -> None:
    """`load_state` returns None when there is none yet."""
    assert store.load_state() is None


def test_the_state_is_read_back(store: SessionStore) -> None:
    """`load_state` returns what `save_state` wrote, and the file is the documented JSON."""
    store.save_state(state=STATE)
    assert store.load_state() == STATE
    assert json.loads((store.directory / 'state.json').read_text(encoding='utf-8')) == STATE.to_json_dictionary()


@pytest.mark.parametrize('text', ['', '{', '[]', '"x"', '{}', '{"session_id": 1, "trading_date": "2026-10-19"}'])
def test_a_damaged_state_is_logged_and_missing(
    store: SessionStore, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged state file is logged and treated as missing."""
    store.directory.mkdir()
    (store.directory / 'state.json').write_text(text)
    with caplog.at_level(logging.WARNING):
        assert store.load_state() is None
    assert 'state.json' in caplog.text


def test_a_crash_in_the_middle_of_a_save_leaves_the_old_state(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written beside the old one and renamed over it: until then the old state is there, whole."""
    store.save_state(STATE)
    seen = []

    def crash(source: Path, destination: Path) -> None:
        seen.append((Path(source).parent, Path(destination)))
        raise OSError(5, 'crash')

    monkeypatch.setattr(os, 'replace', crash)
    with pytest.raises(OSError, match=r'state\.json'):
        store.save_state(dataclasses.replace(STATE, session_id='2026-10-19-2'))
    assert seen == [(store.directory, store.directory / 'state.json')]
    assert store.load_state() == STATE


def test_the_next_free_identifier(store: SessionStore) -> None:
    """`new_session_id` picks the next free identifier of a day, from 1, and creates its empty log."""
    assert store.new_session_id(DAY) == '2026-10-19-1'
    assert store.new_session_id(trading_date=DAY) == '2026-10-19-2'
    assert store.new_session_id(date(2026, 10, 20)) == '2026-10-20-1'
    for session_id in ('2026-10-19-1', '2026-10-19-2', '2026-10-20-1'):
        assert (store.directory / f'{session_id}.jsonl').read_bytes() == b''


def test_an_exchange_is_added_to_the_end(store: SessionStore) -> None:
    """`append_exchange` adds one line of JSON to the end of the session's log, which it creates where it is missing."""
    store.append_exchange('2026-10-19-1', EXCHANGE)
    other = dataclasses.replace(EXCHANGE, answer='₹ and \u2028')
    store.append_exchange(session_id='2026-10-19-1', exchange=other)
    lines = (store.directory / '2026-10-19-1.jsonl').read_text(encoding='utf-8').split('\n')
    assert [json.loads(line) for line in lines[:-1]] == [EXCHANGE.to_json_dictionary(), other.to_json_dictionary()]
    assert lines[-1] == ''


def test_exchanges_come_oldest_first(store: SessionStore) -> None:
    """`exchanges` reads a session's exchanges, oldest first, and those of no other session."""
    told = [dataclasses.replace(EXCHANGE, trigger_text=str(number)) for number in range(3)]
    for exchange in told:
        store.append_exchange('2026-10-19-1', exchange)
    store.append_exchange('2026-10-19-2', EXCHANGE)
    assert store.exchanges(session_id='2026-10-19-1') == told


@pytest.mark.parametrize('line', ['{"trigger_text": "cut sho', '[]', 'null', '{}', '   ', ''])
def test_a_damaged_line_is_skipped(store: SessionStore, line: str) -> None:
    """A damaged line, such as one cut short by a crash, is skipped; so is a blank one."""
    store.append_exchange('2026-10-19-1', EXCHANGE)
    with (store.directory / '2026-10-19-1.jsonl').open('a') as log:
        log.write(line + '\n')
    store.append_exchange('2026-10-19-1', EXCHANGE)
    assert store.exchanges('2026-10-19-1') == [EXCHANGE, EXCHANGE]


def test_an_unknown_session_has_no_exchanges(store: SessionStore) -> None:
    """`exchanges` returns an empty list for an unknown session."""
    store.append_exchange('2026-10-19-1', EXCHANGE)
    assert store.exchanges('2026-10-19-7') == []


def test_sessions_come_newest_first(store: SessionStore) -> None:
    """`session_ids` lists every session that has a log, newest first: the tenth after the ninth."""
    for day, count in ((DAY, 11), (date(2026, 10, 20), 1), (date(2025, 12, 31), 1)):
        for _ in range(count):
            store.new_session_id(day)
    tenth_first = [f'2026-10-19-{number}' for number in range(11, 0, -1)]
    assert store.session_ids() == ['2026-10-20-1', *tenth_first, '2025-12-31-1']


def test_a_summary_is_saved_under_its_date(store: SessionStore) -> None:
    """`write_summary` returns the day's file, which holds the text without the space around it."""
    path = store.write_summary(trading_date=DAY, text='\n  A quiet day. \n\n')
    assert path == store.directory / 'summaries' / '2026-10-19.md'
    assert path.read_text(encoding='utf-8') == 'A quiet day.\n'


def test_a_second_summary_of_a_day_replaces_the_first(store: SessionStore) -> None:
    """`write_summary` replaces the day's file."""
    store.write_summary(DAY, 'first')
    store.write_summary(DAY, 'second')
    assert store.summaries() == [DailySummary(DAY, 'second')]


def test_summaries_come_newest_first(store: SessionStore) -> None:
    """`summaries` returns every daily summary, newest first; a file that is not named after a date is none."""
    for day in (2, 10, 9):
        store.write_summary(date(2026, 10, day), f'day {day}')
    (store.directory / 'summaries' / 'notes.md').write_text('mine')
    (store.directory / 'summaries' / '2026-10-11.txt').write_text('mine')
    assert [(summary.trading_date.day, summary.text) for summary in store.summaries()] == [
        (10, 'day 10'),
        (9, 'day 9'),
        (2, 'day 2'),
    ]


def test_the_latest_summary(store: SessionStore) -> None:
    """`latest_summary` returns the newest summary, or None when no day has been summarised yet."""
    assert store.latest_summary() is None
    store.write_summary(date(2026, 10, 20), 'newer')
    store.write_summary(DAY, 'older, written later')
    assert store.latest_summary() == DailySummary(date(2026, 10, 20), 'newer')
