"""How `status` looks to people."""

from datetime import UTC, datetime
from typing import Any

import pytest

from trading_agent.cli.status_view import COLUMNS, cells_of, desk_row, print_status, table_lines

NOON = datetime(2026, 10, 19, 6, 30, tzinfo=UTC)

DESK: dict[str, Any] = {
    'name': 'main',
    'state': 'running',
    'reason': '',
    'session_id': '2026-10-19-1',
    'trading_date': '2026-10-19',
    'exchanges': 3,
    'queue': 0,
    'oldest_trigger_at': None,
    'turn': None,
    'last_turn_at': None,
    'backends': [{'name': 'claude', 'state': 'up'}, {'name': 'gpt', 'state': 'failing'}],
    'next_boundary': '2026-10-19T18:30:00Z',
}
TURN = {'trigger_id': 'a-1', 'attempt': 1, 'started_at': '2026-10-19T06:29:48Z', 'backend': 'claude'}
BUSY = {
    **DESK,
    'turn': TURN,
    'queue': 12,
    'oldest_trigger_at': '2026-10-19T06:25:00Z',
    'last_turn_at': NOON.isoformat(),
}

USED = {'session': {'input_tokens': 1200, 'output_tokens': 30}, 'day': {'input_tokens': 1200, 'output_tokens': 30}}


def cells(desk: dict[str, Any]) -> dict[str, str]:
    """Returns a desk's cells under their headings."""
    return dict(zip((column.heading for column in COLUMNS), desk_row(desk, NOON), strict=True))


def test_a_desk_at_rest() -> None:
    """A desk without work shows its session, its backends with their state, and its next boundary in India."""
    assert cells(DESK) == {
        'DESK': 'main',
        'STATE': 'running',
        'QUEUE': '0',
        'TURN': '-',
        'LAST': '-',
        'BACKENDS': 'claude, gpt failing',
        'SESSION': '2026-10-19-1',
        'EXCH.': '3',
        'TOKENS': '',
        'NEXT DAY IST': '20 Oct 00:00',
    }


def test_a_desk_at_work() -> None:
    """A running turn, the oldest trigger and the last answer are shown with their ages."""
    row = cells({**BUSY, 'last_turn_at': '2026-10-19T04:25:00Z'})
    assert (row['QUEUE'], row['TURN'], row['LAST']) == ('12, oldest 5m', 'claude 12s', '2h ago')
    starting = cells({**DESK, 'session_id': None, 'backends': [], 'turn': {**TURN, 'backend': None}})
    assert (starting['SESSION'], starting['TURN'], starting['BACKENDS']) == ('-', 'starting 12s', '-')


def test_a_running_turns_tokens_are_shown_as_they_are_counted() -> None:
    """Behind who answers, and for how long, stands what it has used so far; nothing where nothing is counted."""
    assert cells({**DESK, 'turn': {**TURN, 'usage': {'input_tokens': 1200, 'output_tokens': 30}}})['TURN'] == (
        'claude 12s, 1.2k tokens'
    )
    assert cells({**DESK, 'turn': {**TURN, 'usage': {}}})['TURN'] == 'claude 12s'


def test_an_answer_of_another_than_the_preferred_backend_says_so() -> None:
    """Where the last answer did not come from the preferred backend, it is told from which; else it is not."""
    last = {'last_turn_at': '2026-10-19T06:25:00Z', 'last_backend': 'gpt'}
    assert cells({**DESK, **last, 'last_preferred': False})['LAST'] == '5m ago by gpt'
    assert cells({**DESK, **last, 'last_preferred': True})['LAST'] == '5m ago'
    assert cells({**DESK, 'last_preferred': None})['LAST'] == '-'


def test_a_backend_out_of_use_is_told_with_who_did_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A disabled backend is marked in the table, and below it stands once why, however many desks use it."""
    why = 'it is disabled by anil: a drill (`trading-agent backends enable claude`)'
    backends = [{'name': 'claude', 'state': 'disabled', 'reason': why}, {'name': 'gpt', 'state': 'up', 'reason': ''}]
    desks = [{**DESK, 'name': name, 'backends': backends} for name in ('main', 'options')]
    assert cells(desks[0])['BACKENDS'] == 'claude disabled, gpt'
    print_status(
        {
            'daemon': {'version': '0.1.0', 'run_id': 'r', 'pid': 7, 'started_at': '2026-10-19T06:00:00Z'},
            'clock': {'now_ist': '2026-10-19T12:00:00+05:30', 'state': 'steady'},
            'desks': desks,
        }
    )
    assert capsys.readouterr().out.split('\n')[-2:] == [f'backend claude: {why}', '']


def test_tokens_are_shown_where_there_are_any() -> None:
    """A desk's tokens stand in short, those of its day too where they are more; without any there is no column."""
    assert cells({**DESK, 'usage': USED})['TOKENS'] == '1.2k'
    assert cells({**DESK, 'usage': {'session': {}, 'day': {'output_tokens': 2_500_000}}})['TOKENS'] == '0, day 2.5M'
    assert cells({**DESK, 'usage': {'session': {}, 'day': {}}})['TOKENS'] == ''
    for width in (None, 200):
        assert 'TOKENS' not in table_lines([desk_row(DESK, NOON)], width)[0]
        heading, used, _ = table_lines([desk_row({**DESK, 'usage': USED}, NOON), desk_row(DESK, NOON)], width)
        assert used.index('1.2k') == heading.index('TOKENS')


@pytest.mark.parametrize('width', [200, 120, 100, 90, 80, 70, 60, 50])
def test_the_table_keeps_to_the_terminal(width: int) -> None:
    """However narrow the terminal, no line is longer, and the name, the state and the queue of each desk are there."""
    desks = [
        {**BUSY, 'usage': USED},
        {**BUSY, 'name': 'a-desk-with-a-name-of-more-than-forty-characters', 'state': 'parked'},
    ]
    lines = table_lines([desk_row(desk, NOON) for desk in desks], width)
    assert max(map(cells_of, lines)) <= width
    for line, state in zip(lines[1:], ('running', 'parked'), strict=True):
        assert state in line
        assert '12, oldest 5m' in line
        assert line.startswith(('main ', 'a-desk-with'))


def test_a_wide_terminal_loses_nothing() -> None:
    """Where there is room every column is there in full, as it is in a pipe."""
    rows = [desk_row({**BUSY, 'usage': USED}, NOON), desk_row({**DESK, 'name': 'options'}, NOON)]
    assert table_lines(rows, 200) == table_lines(rows, None)
    assert table_lines(rows, None)[0].split() == ' '.join(column.heading for column in COLUMNS).split()


def test_what_matters_most_stays_longest() -> None:
    """At 80 columns a busy desk still shows its turn, its backends and its next day."""
    heading, row = table_lines([desk_row(BUSY, NOON)], 80)
    assert heading.split()[:4] == ['DESK', 'STATE', 'QUEUE', 'TURN']
    assert 'claude 12s' in row
    assert 'claude, gp' in row
    assert '20 Oct 00:00' in row


def test_wide_characters_are_counted_as_a_terminal_does() -> None:
    """A backend's name in another script takes the columns that it takes, and the table stays straight."""
    named = {**DESK, 'backends': [{'name': '模型', 'state': 'up'}]}
    heading, *rows = table_lines([desk_row(named, NOON), desk_row(DESK, NOON)], None)
    at = heading.index('SESSION')
    assert [cells_of(row[: row.index('2026-10-19-1')]) for row in rows] == [at, at]


def test_a_status_tells_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason of a desk that is not well stands below the table, and a daemon without desks says so."""
    status = {
        'daemon': {'version': '0.1.0', 'run_id': 'r', 'pid': 7, 'started_at': '2026-10-19T06:00:00Z'},
        'clock': {'now_ist': '2026-10-19T12:00:00+05:30', 'state': 'steady'},
        'desks': [{**DESK, 'state': 'parked', 'reason': 'the disk is full:\nfree some space\x1b'}],
    }
    print_status(status)
    out = capsys.readouterr().out
    assert out.startswith('trading-agent 0.1.0, pid 7, up 30m; 2026-10-19 12:00:00 IST, clock steady\nDESK ')
    assert out.endswith('main: the disk is full: free some space\ufffd\n')
    print_status({**status, 'desks': []})
    assert capsys.readouterr().out.endswith('no desks\n')


def test_many_desks_are_told_in_short_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Above the table of several desks stands how many are in which state, the worst first, and what is open."""
    states = ['running', 'parked', 'running', 'paused']
    status = {
        'daemon': {'version': '0.1.0', 'run_id': 'r', 'pid': 7, 'started_at': '2026-10-19T06:00:00Z'},
        'clock': {'now_ist': '2026-10-19T12:00:00+05:30', 'state': 'stepped'},
        'desks': [{**DESK, 'name': f'd{number}', 'state': state, 'queue': 2} for number, state in enumerate(states)],
    }
    print_status(status)
    shown = capsys.readouterr().out.split('\n')
    assert shown[0].endswith('clock stepped')
    assert shown[1] == '4 desks: 1 parked, 1 paused, 2 running; 8 triggers open'
