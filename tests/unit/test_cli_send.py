"""When a trigger is to run and when it expires, as people write it."""

from datetime import UTC, datetime, timedelta

import click
import pytest

from trading_agent.cli.send import parse_at, parse_expiry, receipt_in, trigger_body
from trading_agent.trigger import Trigger

NOON = datetime(2026, 10, 19, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('15:10', '2026-10-19T15:10:00+05:30'),
        ('12:00:01', '2026-10-19T12:00:01+05:30'),
        ('12:00', '2026-10-20T12:00:00+05:30'),
        ('9:15', '2026-10-20T09:15:00+05:30'),
        ('00:00', '2026-10-20T00:00:00+05:30'),
        ('2026-10-19T15:10:00+05:30', '2026-10-19T15:10:00+05:30'),
        ('2026-10-19T09:40Z', '2026-10-19T09:40:00+00:00'),
        ('2020-01-01T00:00:00Z', '2020-01-01T00:00:00+00:00'),
    ],
)
def test_a_time_is_read_in_india(text: str, expected: str) -> None:
    """A time of the day is India's, today or else tomorrow; an instant with a zone is taken as it is."""
    assert parse_at(text, NOON).isoformat() == expected


def test_the_day_is_indias_and_not_the_hosts() -> None:
    """Shortly after midnight in India, when it is yesterday in UTC, `00:30` is still to come today."""
    assert parse_at('00:30', datetime(2026, 10, 18, 18, 45, tzinfo=UTC)).isoformat() == '2026-10-19T00:30:00+05:30'


@pytest.mark.parametrize('text', ['', 'noon', '25:00', '12:60', '2026-10-19T15:10:00', '2026-10-19', '-1:00', '1510'])
def test_another_time_is_refused(text: str) -> None:
    """What is no time, or an instant without a zone, is told with how to write one."""
    with pytest.raises(ValueError, match=r'write it like 15:10|no time of the day'):
        parse_at(text, NOON)


def test_an_expiry_is_counted_from_its_start() -> None:
    """`10m` is ten minutes after the start; what is no duration, or ends after year 9999, is refused."""
    assert parse_expiry('10m', NOON) == NOON + timedelta(minutes=10)
    for wrong in ('10', 'soon', '99999999999h', '9' * 400 + 'h'):
        with pytest.raises(ValueError, match=r'written like|too long'):
            parse_expiry(wrong, NOON)


def test_an_expiry_is_counted_from_the_time_at_which_it_is_to_run() -> None:
    """A trigger for tomorrow that matters for ten minutes does not expire today."""
    body = trigger_body('hello', None, 'person', '2099-01-01T00:00:00Z', '10m')
    assert body['not_before'] == '2099-01-01T00:00:00+00:00'
    assert body['expires_at'] == '2099-01-01T00:10:00+00:00'


def test_a_bad_time_is_a_mistake_in_its_own_option() -> None:
    """The usage error names the option that is wrong."""
    with pytest.raises(click.BadParameter) as caught:
        trigger_body('hello', None, 'person', 'noon', None)
    assert caught.value.param_hint == '--at'
    with pytest.raises(click.BadParameter) as caught:
        trigger_body('hello', None, 'person', '15:10', 'soon')
    assert caught.value.param_hint == '--expires-in'


def test_an_id_is_chosen_only_where_none_is_given() -> None:
    """Each trigger gets an id that is valid and its own; one that was given is kept, an empty one too."""
    first, second = (trigger_body('hello', None, 'person', None, None)['id'] for _ in range(2))
    assert first != second
    assert Trigger('hello', 'main', id=first).id == first
    assert trigger_body('hello', 'a-1', 'person', None, None)['id'] == 'a-1'
    assert trigger_body('hello', '', 'person', None, None)['id'] == ''


def test_a_receipt_is_found_in_a_refusal_and_nowhere_else() -> None:
    """The receipt is the refusal less its error; another answer has none."""
    refusal = b'{"id":"a","desk":"main","status":"refused","reason":"expired","error":"late","hint":""}'
    assert receipt_in(refusal) == {'id': 'a', 'desk': 'main', 'status': 'refused', 'reason': 'expired'}
    assert receipt_in(b'{"error":"late","hint":""}') is None
    assert receipt_in(b'<html>') is None
    assert receipt_in(b'[]') is None
