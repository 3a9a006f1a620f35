"""What a real model is told beside the message itself: the same each time, for a cache knows only what it has seen."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from trading_agent.routing.turn_text import system_prompt, timed

MONDAY = date(2026, 10, 19)


def utc(day: int, hour: int, minute: int = 0, second: int = 0) -> datetime:
    """Returns an instant of October 2026."""
    return datetime(2026, 10, day, hour, minute, second, tzinfo=UTC)


def test_a_message_begins_with_the_time_in_india() -> None:
    """Time, weekday and date are India's, whatever zone the instant comes in, and the trading date stands beside."""
    told = '[09:45 IST, Monday 2026-10-19; trading date 2026-10-19]\nnews'
    assert timed('news', utc(19, 4, 15), MONDAY) == told
    elsewhere = utc(19, 4, 15).astimezone(timezone(timedelta(hours=-8)))
    assert timed('news', elsewhere, MONDAY) == told


def test_a_time_that_is_not_known() -> None:
    """Without an instant the trading date stands alone."""
    assert timed('news', None, MONDAY) == '[Trading date 2026-10-19]\nnews'


@pytest.mark.parametrize(
    ('at', 'begins'),
    [
        (utc(19, 20, 30), '[02:00 IST, Tuesday 2026-10-20; trading date 2026-10-19]'),
        (utc(18, 18, 30), '[00:00 IST, Monday 2026-10-19; trading date 2026-10-19]'),
        (utc(18, 18, 29, 59), '[23:59 IST, Sunday 2026-10-18]'),
        (utc(16, 4), '[09:30 IST, Friday 2026-10-16]'),
    ],
)
def test_what_was_said_on_another_day(at: datetime, begins: str) -> None:
    """A desk's night belongs to the day before; what was said before the trading date began is not dated by it."""
    assert timed('news', at, MONDAY) == f'{begins}\nnews'


def test_a_message_is_left_as_it_is() -> None:
    """Nothing of the message itself is changed, odd characters included."""
    text = ' \u2028[End]\r\n\0 x '
    assert timed(text, utc(19, 4), MONDAY).partition('\n')[2] == text


def test_what_changes_least_stands_first() -> None:
    """Instructions, Memory.md, skills and the digest follow each other, so that a new digest leaves a beginning."""
    before = system_prompt(
        'main', instructions='Sell nothing.', memory='- a rule\n', skills=[('charts', 'Reads them.')]
    )
    after = system_prompt(
        'main', instructions='Sell nothing.', memory='- a rule\n', skills=[('charts', 'Reads them.')], digest='It fell.'
    )
    places = [before.index(part) for part in ('"main"', 'Sell nothing.', '- a rule', '- charts: Reads them.')]
    assert places == sorted(places)
    assert after.startswith(before)
    assert after.endswith('\n\nIt fell.')


def test_what_is_not_there_is_not_named() -> None:
    """Blank texts have no heading."""
    assert '#' not in system_prompt('main', instructions=' \n', memory='\n')
