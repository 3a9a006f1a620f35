"""How instants, ages and states look to people."""

from datetime import UTC, datetime

import pytest

from trading_agent.cli.render import age, india_time, paint, parse_instant, print_table, printable, span, wrapped
from trading_agent.clock import INDIA

NOON = datetime(2026, 10, 19, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('2026-10-19T06:29:59.900Z', '0s'),
        ('2026-10-19T06:29:01Z', '59s'),
        ('2026-10-19T06:25:00Z', '5m'),
        ('2026-10-19T04:25:00Z', '2h'),
        ('2026-10-16T06:30:00Z', '3d'),
        ('2026-10-19T12:00:00+05:30', '0s'),
        ('2026-10-19T07:30:00Z', '0s'),
        (None, '-'),
        ('soon', '-'),
    ],
)
def test_an_age_has_one_unit(text: str | None, expected: str) -> None:
    """An age is told in one unit, never below zero; of what is no instant there is none."""
    assert age(text, NOON) == expected


@pytest.mark.parametrize(
    ('seconds', 'expected'),
    [(0, '0s'), (89.9, '89s'), (90, '1m'), (5399, '89m'), (5400, '1h'), (129_599, '35h'), (129_600, '1d'), (-5, '0s')],
)
def test_a_span_has_the_unit_that_says_most(seconds: float, expected: str) -> None:
    """A span stays in the smaller unit as long as its number has two digits."""
    assert span(seconds) == expected


def test_text_is_wrapped_and_its_commands_are_not() -> None:
    """Lines keep the width, those after the first are indented, and a command in backticks stays in one piece."""
    text = 'the disk is full: free some space, then `trading-agent resume main` lets it go on'
    lines = wrapped(text, 40)
    assert lines == [
        'the disk is full: free some space, then',
        '    `trading-agent resume main` lets it',
        '    go on',
    ]
    assert wrapped('a\n b', 40) == ['a b']
    assert max(map(len, wrapped('x' * 100, 30))) == 30


def test_without_a_terminal_nothing_has_a_colour() -> None:
    """In a pipe text is as it is."""
    assert paint('parked', 'red', bold=True) == 'parked'


def test_a_time_is_indias() -> None:
    """A stored instant is shown in India's time, with the date where it is another day; other text as it is."""
    assert india_time('2026-10-19T06:30:00Z', NOON) == '12:00:00'
    assert india_time('2026-10-19T18:30:00Z', NOON) == '2026-10-20 00:00:00'
    assert india_time('2026-10-19T06:30:00Z') == '2026-10-19 12:00:00'
    assert india_time('yesterday\x1b[2J') == 'yesterday\ufffd[2J'
    assert india_time(None) == '-'


def test_the_zone_is_that_of_the_clock() -> None:
    """The offset that is written down here is that of Asia/Kolkata."""
    instant = parse_instant('2026-10-19T06:30:00Z')
    assert instant is not None
    assert india_time('2026-10-19T06:30:00Z').endswith(f'{instant.astimezone(INDIA):%H:%M:%S}')


def test_what_a_model_says_cannot_command_the_terminal() -> None:
    """Control characters are replaced; newlines, tabs and every script stay."""
    assert (
        printable('\x1b]0;title\x07a\r\nb\tc\x9b1m ₹ नमस्ते\u2028') == '\ufffd]0;title\ufffda\nb\tc\ufffd1m ₹ नमस्ते\u2028'
    )


def test_a_table_is_plain_columns_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal columns are aligned with spaces, and nothing is cut, coloured or left to the terminal."""
    print_table(('DESK', 'STATE'), [['main', 'running'], ['a-very-long-name', 'par\x1bked']], coloured=1)
    assert capsys.readouterr().out == (
        'DESK              STATE\nmain              running\na-very-long-name  par\ufffdked\n'
    )
