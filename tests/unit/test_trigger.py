"""What a trigger may be, and what it becomes."""

import dataclasses
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trading_agent.errors import InvalidTrigger, TradingAgentError
from trading_agent.trigger import PRIORITIES, Receipt, RefusalReason, Trigger, new_trigger_id, storable

IST = timezone(timedelta(hours=5, minutes=30))


def test_the_least_that_is_needed() -> None:
    """A text and a desk make a trigger: from the api, as a feed, received now in UTC, with an id of its own."""
    before = datetime.now(UTC)
    one, two = Trigger('wake up', 'main'), Trigger('wake up', 'main')
    assert (one.text, one.desk, one.source, one.priority) == ('wake up', 'main', 'api', 'feed')
    assert (one.not_before, one.expires_at) == (None, None)
    assert before <= one.received_at <= datetime.now(UTC)
    assert one.id != two.id


def test_a_trigger_is_frozen() -> None:
    """A trigger never changes; `dataclasses.replace` makes another one, checked again."""
    trigger = Trigger('wake up', 'main', id='a')
    with pytest.raises(dataclasses.FrozenInstanceError):
        trigger.text = 'x'  # type: ignore[misc]
    assert dataclasses.replace(trigger, text='x') == dataclasses.replace(trigger, text='x')
    with pytest.raises(InvalidTrigger):
        dataclasses.replace(trigger, text=' ')


def test_priorities_are_in_their_order() -> None:
    """People come before timers, and timers before feeds."""
    assert PRIORITIES == ('person', 'timer', 'feed')


@pytest.mark.parametrize(
    ('bad', 'told'),
    [
        ({'text': ''}, 'blank'),
        ({'text': ' \n\t\u2028 '}, 'blank'),
        ({'text': b'bytes'}, 'text is text, not bytes'),
        ({'text': None}, 'text is text, not NoneType'),
        ({'desk': 7}, 'desk is text, not int'),
        ({'source': None}, 'source is text'),
        ({'id': ''}, '1 to 128 printable'),
        ({'id': 'x' * 129}, '1 to 128 printable'),
        ({'id': 'a\nb'}, '1 to 128 printable'),
        ({'id': 'a\x00'}, '1 to 128 printable'),
        ({'id': 'a\u2028b'}, '1 to 128 printable'),
        ({'id': 'a\ud800'}, '1 to 128 printable'),
        ({'id': 5}, 'id is text, not int'),
        ({'priority': 'urgent'}, 'one of person, timer, feed'),
        ({'priority': None}, 'one of person'),
        ({'received_at': datetime(2026, 10, 19, 4, 0)}, 'received_at is a time with a zone'),  # noqa: DTZ001
        ({'received_at': None}, 'received_at is a time'),
        ({'not_before': datetime(2026, 10, 19, 4, 0)}, 'not_before is a time with a zone'),  # noqa: DTZ001
        ({'expires_at': datetime(2026, 10, 19, 4, 0)}, 'expires_at is a time with a zone'),  # noqa: DTZ001
        ({'expires_at': '2026-10-19T04:00:00Z'}, 'expires_at is a time with a zone'),
        ({'not_before': date(2026, 10, 19)}, 'not_before is a time with a zone'),
        ({'expires_at': datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))}, 'out of range'),
        ({'not_before': datetime.min.replace(tzinfo=IST)}, 'out of range'),
    ],
)
def test_what_no_trigger_may_be(bad: dict[str, Any], told: str) -> None:
    """A rule that is broken is an InvalidTrigger, a ValueError too, which names the field and the rule."""
    with pytest.raises(InvalidTrigger, match=told) as caught:
        Trigger(**{'text': 'x', 'desk': 'main', **bad})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TradingAgentError)


def test_a_naive_time_is_told_how_to_be_written() -> None:
    """Who sends a time without a zone is shown one with a zone."""
    with pytest.raises(InvalidTrigger) as caught:
        Trigger('x', 'main', not_before=datetime(2026, 10, 19, 4, 0))  # noqa: DTZ001
    assert '+05:30' in caught.value.hint


@pytest.mark.parametrize('trigger_id', ['x', 'x' * 128, 'NSE:2026/10/19#1', 'ü₹🙂', '..', 'a b'])
def test_ids_that_are_fine(trigger_id: str) -> None:
    """An id is any 1 to 128 printable characters."""
    assert Trigger('x', 'main', id=trigger_id).id == trigger_id


def test_times_are_kept_in_utc() -> None:
    """Times of any zone are kept as the same instant in UTC."""
    at = datetime(2026, 10, 19, 15, 10, tzinfo=IST)
    trigger = Trigger('x', 'main', received_at=at, not_before=at, expires_at=at)
    for instant in (trigger.received_at, trigger.not_before, trigger.expires_at):
        assert instant == at
        assert instant is not None
        assert instant.tzinfo is UTC


def test_lone_surrogates_are_replaced() -> None:
    """What cannot be written as UTF-8 becomes U+FFFD, in the text, the source and the desk."""
    trigger = Trigger('a\ud800b', 'main\udfff', source='\ud800')
    assert (trigger.text, trigger.desk, trigger.source) == ('a\ufffdb', 'main\ufffd', '\ufffd')


def test_text_is_kept_as_it_is() -> None:
    """Space, NUL and line separators around and in a text stay."""
    text = '  \x00 a\u2028b\r\n\u0085 '
    assert Trigger(text, 'main').text == text


@given(text=st.text(st.characters(exclude_categories=())))
@settings(deadline=None)
def test_storable_text_is_utf8(text: str) -> None:
    """Any text becomes one that can be written; one that can be already does not change."""
    clean = storable(text)
    clean.encode()
    assert storable(clean) == clean
    if not any('\ud800' <= char <= '\udfff' for char in text):
        assert clean == text


@given(text=st.text(st.characters(exclude_categories=()), max_size=20), trigger_id=st.text(max_size=5))
@settings(deadline=None)
def test_a_trigger_is_made_or_refused(text: str, trigger_id: str) -> None:
    """Whatever it is given, a trigger is made, and can be written, or InvalidTrigger is raised."""
    try:
        trigger = Trigger(text, 'main', id=trigger_id)
    except InvalidTrigger:
        return
    assert msgspec.json.decode(msgspec.json.encode(trigger), type=Trigger) == trigger


def test_new_ids_differ_and_sort_by_time() -> None:
    """A new id is like no other, printable, and later ones sort behind earlier ones."""
    made = [new_trigger_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert [name.split('-')[0] for name in made] == sorted(name.split('-')[0] for name in made)
    assert all(name.isprintable() and len(name) <= 128 for name in made)


def test_which_refusals_are_for_the_moment() -> None:
    """A full queue, a full disk and a stop are for the moment; everything else is for good; no refusal is neither."""
    again = {reason for reason in get_args(RefusalReason) if Receipt('a', 'main', 'refused', reason).try_again}
    assert again == {'queue_full', 'storage', 'stopping'}
    assert not Receipt('a', 'main', 'accepted').try_again
    assert not Receipt('a', 'main', 'duplicate').try_again
