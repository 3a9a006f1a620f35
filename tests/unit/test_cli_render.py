"""How instants, ages and states look to people."""

from datetime import UTC, datetime

import pytest

from trading_agent.cli.render import (
    age,
    india_time,
    paint,
    parse_instant,
    plural,
    print_table,
    printable,
    short_count,
    size_of,
    span,
    usage_words,
    wrapped,
)
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


@pytest.mark.parametrize(
    ('counts', 'expected'),
    [
        ({}, ''),
        (None, ''),
        ({'input_tokens': 1200, 'output_tokens': 1}, '1,200 tokens in, 1 out'),
        ({'input_tokens': 0, 'output_tokens': 1}, '1 token out'),
        (
            {'input_tokens': 1, 'cache_read_tokens': 20, 'cache_write_tokens': 30},
            '1 token in, 20 from a cache, 30 into a cache',
        ),
        ({'total_tokens': 7, 'odd\x1bkind': 2}, '7 tokens total, 2 odd\ufffdkind'),
    ],
)
def test_tokens_are_told_in_words(counts: dict[str, int] | None, expected: str) -> None:
    """Each kind of tokens of which there are any is told, the ones that nobody knows too."""
    assert usage_words(counts) == expected


@pytest.mark.parametrize(
    ('count', 'expected'),
    [
        (0, '0'),
        (999, '999'),
        (1000, '1k'),
        (12_345, '12.3k'),
        (999_949, '999.9k'),
        (1_000_000, '1M'),
        (4_560_000, '4.6M'),
    ],
)
def test_a_large_number_is_told_in_short(count: int, expected: str) -> None:
    """A number of tokens is told in thousands or millions, as far as it matters."""
    assert short_count(count) == expected


def test_a_number_goes_with_its_noun() -> None:
    """One thing is told in the singular, and thousands have their comma."""
    assert [plural(count, 'turn') for count in (0, 1, 1200)] == ['0 turns', '1 turn', '1,200 turns']


@pytest.mark.parametrize(
    ('count', 'expected'),
    [(0, '0 bytes'), (1, '1 byte'), (999, '999 bytes'), (1234, '1.2 kB'), (4_100_000, '4.1 MB'), (2 * 10**9, '2.0 GB')],
)
def test_a_size_has_its_unit(count: int, expected: str) -> None:
    """A number of bytes is told in the largest unit of which there is one."""
    assert size_of(count) == expected
