"""How often something that fails is started again, on a clock that the test moves."""

import random

import anyio
import pytest

from trading_agent.daemon.restarts import LONGEST_DELAY_SECONDS, RESTARTS, WINDOW_SECONDS, RestartBudget


class Time:
    """The event loop's time, as the test wants it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Stands in for the event loop's clock."""
    time = Time()
    monkeypatch.setattr(anyio, 'current_time', time)
    return time


def test_five_in_a_minute(time: Time) -> None:
    """Five failures within a minute are restarts, the sixth is not, nor is another one in that minute."""
    budget = RestartBudget()
    assert [budget.spend() for _ in range(RESTARTS)] == [True] * 5
    assert budget.used == 5
    time.now += 59
    assert not budget.spend()
    assert not budget.spend()


def test_failures_are_forgotten(time: Time) -> None:
    """What fails no more often than five times in any minute is started again for ever."""
    budget = RestartBudget()
    for _ in range(1000):
        assert budget.spend()
        time.now += WINDOW_SECONDS / 5 + 0.01
        assert budget.used <= 5


def test_a_storm_ends(time: Time) -> None:
    """A minute after the last of too many failures the budget is whole again, and remembers none of them."""
    budget = RestartBudget()
    for _ in range(500):
        budget.spend()
    time.now += WINDOW_SECONDS + 0.01
    assert [budget.spend() for _ in range(6)] == [True] * 5 + [False]


def test_the_pauses(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest pause doubles from 0.2 s on up to half a minute; what is drawn lies between half of it and all."""
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return high

    monkeypatch.setattr(random, 'uniform', uniform)
    budget = RestartBudget()
    delays = []
    for _ in range(200):
        budget.spend()
        delays.append(budget.delay())
    assert delays[:5] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2])
    assert max(delays) == LONGEST_DELAY_SECONDS
    assert set(drawn) == {(0.5, 1.0)}
