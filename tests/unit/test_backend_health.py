"""Whether a backend is worth asking, by a clock that goes when the test says so."""

import anyio
import pytest

from trading_agent.errors import BackendBusy, BackendDown, BackendError
from trading_agent.events import BackendDown as WentDown
from trading_agent.events import BackendUp, Event
from trading_agent.routing.backend_health import LONGEST_RETRY_AFTER_SECONDS, BackendHealth


class Clock:
    """The event loop's clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Returns the clock that everything goes by."""
    made = Clock()
    monkeypatch.setattr(anyio, 'current_time', made.time)
    return made


@pytest.fixture
def told() -> list[Event]:
    """Returns what was told."""
    return []


@pytest.fixture
def health(clock: Clock, told: list[Event]) -> BackendHealth:
    """Returns the health of a backend that has not been asked yet."""
    del clock
    return BackendHealth('claude', told.append)


def test_one_that_has_not_failed_is_asked(health: BackendHealth, told: list[Event]) -> None:
    """At first, and after each answer, a backend is up, as often as it is asked at once; nothing is told of it."""
    for _ in range(2):
        health.begin()
        health.begin()
        assert health.may_be_asked()
        assert (health.state, health.why_not, health.cools_for, health.failures) == ('up', '', 0.0, 0)
        health.answered()
    assert told == []


def test_a_failure_begins_a_cool_down(health: BackendHealth, clock: Clock, told: list[Event]) -> None:
    """A backend that failed is not asked for about a second; why, and what to do, is known meanwhile and told once."""
    health.begin()
    health.failed(BackendError('the line is dead', 'look at the line'))
    assert (health.state, health.failures) == ('cooling', 1)
    assert (health.error, health.error_type, health.hint) == ('the line is dead', 'BackendError', 'look at the line')
    assert 0.8 <= health.cools_for <= 1.2
    assert health.why_not == 'it is left alone for 1 s more after: the line is dead'
    assert not health.may_be_asked()
    clock.now += 0.79
    assert not health.may_be_asked()
    (down,) = told
    assert isinstance(down, WentDown)
    assert (down.backend, down.error, down.error_type) == ('claude', 'the line is dead', 'BackendError')
    assert (down.hint, 800 <= down.retry_after_ms <= 1200) == ('look at the line', True)
    health.failed(ValueError())
    assert (health.error, health.error_type, health.hint) == ('ValueError', 'ValueError', '')
    assert len(told) == 1


def test_a_cool_down_doubles_up_to_a_bound(clock: Clock, told: list[Event]) -> None:
    """Each failure in a row doubles the wait from the first to the longest, a fifth more or less."""
    health = BackendHealth('claude', told.append, cool_down=(2.0, 10.0))
    for expected in (2.0, 4.0, 8.0, 10.0, 10.0):
        health.failed(BackendError('dead'))
        assert expected * 0.8 <= health.cools_for <= expected * 1.2
        clock.now += 100
    for _ in range(2000):
        health.failed(BackendError('dead'))
    assert health.cools_for <= 12.0


@pytest.mark.parametrize('kind', [BackendBusy, BackendDown])
def test_what_it_asks_for_counts(kind: type[BackendBusy | BackendDown], health: BackendHealth) -> None:
    """A backend that says for how long it wants to be left alone is left alone so long, up to an hour."""
    health.failed(kind('overloaded', retry_after=50.0))
    assert health.cools_for == 50.0
    health.failed(kind('overloaded', retry_after=1e6))
    assert health.cools_for == LONGEST_RETRY_AFTER_SECONDS
    health.answered()
    health.failed(kind('overloaded', retry_after=0.0))
    assert health.cools_for >= 0.8


def test_one_call_tries_it(health: BackendHealth, clock: Clock) -> None:
    """After the cool-down one call at a time may try it; one that was cut off lets the next one try."""
    health.failed(BackendError('dead'))
    clock.now += 2
    assert health.may_be_asked()
    assert health.why_not == 'it is tried with the next call after: dead'
    trial = health.begin()
    assert not health.may_be_asked()
    assert health.why_not == 'it is being tried after: dead'
    health.end(trial)
    assert health.may_be_asked()
    assert health.state == 'cooling'
    health.failed(BackendError('still dead'), health.begin())
    assert not health.may_be_asked()
    assert health.failures == 2


@pytest.mark.parametrize('how', ['cut off', 'failed'])
def test_a_call_from_before_is_not_the_one_that_tries_it(health: BackendHealth, clock: Clock, how: str) -> None:
    """A call that was made before the failure, and ends in the middle of the trial, allows no second trial."""
    before = health.begin()
    health.failed(BackendError('dead'), health.begin())
    clock.now += 2
    trial = health.begin()
    if how == 'cut off':
        health.end(before)
    else:
        health.failed(BackendError('dead, too'), before)
        clock.now += 10
    assert not health.may_be_asked()
    health.end(trial)
    assert health.may_be_asked()


def test_an_answer_ends_it(health: BackendHealth, clock: Clock, told: list[Event]) -> None:
    """An answer makes it up again, whatever the wait, tells that once with the number of failures, and forgets them."""
    for _ in range(3):
        health.failed(BackendDown('overloaded', 'wait', retry_after=600))
        clock.now += 1
    health.answered()
    health.answered()
    assert (health.state, health.why_not, health.may_be_asked()) == ('up', '', True)
    assert (health.failures, health.error, health.error_type, health.hint) == (0, '', '', '')
    assert [event for event in told if isinstance(event, BackendUp)] == [BackendUp(backend='claude', failures=3)]
    health.failed(BackendError('dead again'))
    assert 0.8 <= health.cools_for <= 1.2


def test_a_disabled_one_is_never_asked(health: BackendHealth, clock: Clock, told: list[Event]) -> None:
    """While a person has it out of use it is not asked, whatever its calls come to; afterwards they count."""
    health.disabled = 'disabled by anil'
    assert (health.state, health.may_be_asked(), health.why_not) == ('disabled', False, 'it is disabled by anil')
    health.answered()
    assert not health.may_be_asked()
    health.failed(BackendError('dead'))
    clock.now += 10
    assert (health.state, health.may_be_asked(), health.why_not) == ('disabled', False, 'it is disabled by anil')
    health.disabled = ''
    assert (health.state, health.may_be_asked()) == ('cooling', True)
    assert [type(event) for event in told] == [WentDown]
