"""Days as people name them."""

from datetime import date

import pytest

from trading_agent.cli.dates import parse_day

TODAY = date(2026, 3, 2)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('2025-12-16', date(2025, 12, 16)),
        ('today', TODAY),
        ('Yesterday ', date(2026, 3, 1)),
        ('0d', TODAY),
        ('7d', date(2026, 2, 23)),
    ],
)
def test_a_day_is_named_in_several_ways(text: str, expected: date) -> None:
    """A day is a date, today, yesterday, or so many days before today."""
    assert parse_day(text, TODAY) == expected


@pytest.mark.parametrize(
    'text', ['', '2025-13-01', '2026-W10-1', '16.12.2025', '7', '-7d', '\u0667d', '99999999d', 'monday']
)
def test_another_way_is_told_with_the_right_ones(text: str) -> None:
    """What is no day, or none that there is, is an error that says how to write one."""
    with pytest.raises(ValueError, match='write a day as 2026-10-19, today, yesterday or 7d'):
        parse_day(text, TODAY)


def test_before_the_first_day_there_is_none() -> None:
    """So many days that there was no such date yet are an error like any other."""
    with pytest.raises(ValueError, match='write a day as'):
        parse_day('99999d', date(20, 1, 1))
