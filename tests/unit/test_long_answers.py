"""How much a backend may say: more than can be read again from a file is given up before it is written."""

from collections.abc import AsyncIterator, Sequence
from datetime import date

import pytest

from trading_agent.errors import BackendError
from trading_agent.routing import model_call
from trading_agent.routing.model_call import reply_of
from trading_agent.routing.turn_runner import TextPiece, ToolCalled, ToolReturned, Turn, TurnAnswered, TurnEvent

ASKED = Turn(desk='main', session_id='2026-10-19-1', trading_date=date(2026, 10, 19), text='news')


class Talking:
    """Yields events, and notes how many were taken."""

    def __init__(self, events: Sequence[TurnEvent]) -> None:
        self._events = events
        self.taken = 0

    async def run(self, _: Turn) -> AsyncIterator[TurnEvent]:
        for event in self._events:
            self.taken += 1
            yield event


async def nobody(_: TurnEvent) -> None:
    """Takes an event."""


@pytest.fixture(autouse=True)
def few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets 100 characters be too many."""
    monkeypatch.setattr(model_call, 'LONGEST_ANSWER', 100)


@pytest.mark.parametrize(
    ('events', 'taken'),
    [
        ([TextPiece('x' * 30)] * 50, 4),
        ([ToolReturned('c1', 'x' * 101)] * 50, 1),
        ([ToolCalled('c1', 'act', {'x': 'x' * 101})] * 50, 1),
        ([TurnAnswered('x' * 101)], 1),
        ([TurnAnswered('x', {'state': 'x' * 101})], 1),
    ],
)
async def test_too_much_is_given_up(events: list[TurnEvent], taken: int) -> None:
    """A backend that does not stop talking, or keeps too much, fails as soon as that shows, and tells the bound."""
    runner = Talking(events)
    with pytest.raises(BackendError, match='100'):
        await reply_of('talking', runner, ASKED, nobody)
    assert runner.taken == taken


async def test_as_much_as_may_be_is_taken() -> None:
    """An answer of just so many characters is one, though it came in pieces before."""
    results = [ToolReturned('c1', 'x' * 100)] * 3
    said = [*results, *[TextPiece('x' * 50)] * 2, TurnAnswered('x' * 100)]
    reply = await reply_of('talking', Talking(said), ASKED, nobody)
    assert reply.text == 'x' * 100
