"""What a failure may tell: its own words, and nothing of what was said."""

import json
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_agent.errors import BackendBusy, BackendError, InvalidAnswer, TurnRefused
from trading_agent.memory.exchange import Exchange
from trading_agent.routing.discretion import NOT_SHOWN, without_conversation
from trading_agent.routing.turn_runner import Turn

TEXT = 'Should nine thousand shares of "Infosys" be bought\nbefore the others hear of it? ₹ 500 crore are there.'
ANSWER = 'Hold what there is, and look again at noon.'
TURN = Turn(
    desk='main',
    session_id='2026-10-19-1',
    trading_date=date(2026, 10, 19),
    text=TEXT,
    exchanges=[Exchange('Sell 500 INFY now.', ANSWER, 'm', '2026-10-19T04:00:00Z')],
    memory='Options that were held overnight lost money.',
    instructions='Answer in one line, and never in two.',
)


@pytest.mark.parametrize(
    'repeated',
    [
        TEXT,
        json.dumps(TEXT),
        repr(json.dumps(TEXT)),
        TEXT[20:60],
        ' '.join(TEXT.split()),
        ANSWER,
        'Sell 500 INFY now.',
        TURN.memory,
        TURN.instructions[5:],
        f'{{"content": {json.dumps([TEXT, ANSWER])}}}',
    ],
)
def test_what_was_said_is_cut(repeated: str) -> None:
    """Whole or in part, as it is or escaped: what was said is not told, and the words before it are."""
    error = without_conversation(BackendBusy(f'the server answered 429: {repeated}', retry_after=3), TURN)
    assert isinstance(error, BackendBusy)
    assert error.retry_after == 3
    assert str(error).startswith('the server answered 429:')
    assert str(error).endswith(NOT_SHOWN)
    assert len(str(error)) < 45 + len(NOT_SHOWN)


def test_an_error_that_repeats_nothing_is_itself() -> None:
    """Nothing is done to it, not even where single words are the same."""
    for own in (BackendError('nine thousand requests a day, no more', 'wait'), ValueError('shares'), KeyError('x')):
        assert without_conversation(own, TURN) is own


def test_its_kind_stays() -> None:
    """What comes next is decided by the kind of an error; one of somebody else becomes a backend's."""
    refused = without_conversation(TurnRefused('policy', hint=f'you said: {TEXT}'), TURN)
    assert isinstance(refused, TurnRefused)
    assert (str(refused), refused.hint) == ('policy', f'you said:{NOT_SHOWN}')
    invalid = without_conversation(
        InvalidAnswer('a secret plan of nobody at all', 'no JSON: a secret plan of nobody at all'), TURN
    )
    assert isinstance(invalid, InvalidAnswer)
    assert invalid.problem == str(invalid) == f'no JSON:{NOT_SHOWN}'
    foreign = without_conversation(KeyError(TEXT), TURN)
    assert type(foreign) is BackendError
    assert str(foreign) == f'KeyError: {NOT_SHOWN}'


@given(st.text(max_size=200), st.text(min_size=30, max_size=200), st.text(max_size=100))
def test_any_text_can_be_told(before: str, said: str, behind: str) -> None:
    """Whatever the texts are, an error can be told; one that repeats thirty plain characters is cut."""
    turn = Turn(desk='main', session_id='2026-10-19-1', trading_date=date(2026, 10, 19), text=said)
    shown = str(without_conversation(BackendError(before + said + behind), turn))
    plain = ' '.join(said.replace('\\', '').split())
    if len(plain) >= 30:
        assert plain not in shown
