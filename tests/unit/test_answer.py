"""An answer of a model API while it comes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trading_agent.errors import BackendError, InvalidAnswer, TurnRefused
from trading_agent.messages import Usage
from trading_agent.providers.answer import Answer
from trading_agent.providers.provider import Stopped
from trading_agent.turn_events import TextPiece, ToolCalled, TurnEvent, UsageCounted


def _said(answer: Answer, *pieces: str) -> list[TurnEvent]:
    return [event for piece in pieces for event in answer.text(piece)]


@given(st.text(st.characters(codec='utf-16', exclude_categories=()), max_size=20), st.integers(1, 3))
def test_halves_of_characters_find_each_other(text: str, size: int) -> None:
    """Text that a server cuts in the middle of a character is whole again, and every piece can be kept."""
    halves = [chr(unit) for unit in memoryview(text.encode('utf-16-le', 'surrogatepass')).cast('H')]
    pieces = [''.join(halves[start : start + size]) for start in range(0, len(halves), size)]
    answer = Answer()
    answer.call('1', 'any', {})
    events = [*_said(answer, *pieces), *answer.stopped('tool_use', 'm')]
    texts = [event.text for event in events if isinstance(event, TextPiece)]
    for piece in texts:
        piece.encode()
    assert ''.join(texts) == text.encode('utf-16-le', 'surrogatepass').decode('utf-16-le', 'replace')


def test_half_a_character_at_the_end() -> None:
    """Half a character whose other half never comes is told as U+FFFD."""
    answer = Answer()
    assert _said(answer, 'a\ud83d') == [TextPiece('a')]
    assert list(answer.stopped('end_turn', 'm')) == [TextPiece('\ufffd'), Stopped('end_turn', 'm')]


def test_each_token_is_counted_once() -> None:
    """Counts that are told again and again, as totals, add up to the last of them."""
    answer = Answer()
    totals = [Usage(5, 1), Usage(5, 4, 7), Usage(0, 0), Usage(5, 9, 7, 2)]
    events = [event for total in totals for event in answer.used(total)]
    assert events == [UsageCounted(5, 1), UsageCounted(0, 3, 7), UsageCounted(0, 5, 0, 2)]


@pytest.mark.parametrize(
    ('arguments', 'read'),
    [('', {}), ('  ', {}), ('{}', {}), ('{"a": [1, null]}', {'a': [1, None]}), ({'a': 1}, {'a': 1})],
)
def test_arguments(arguments: str | dict[str, Any], read: dict[str, Any]) -> None:
    """The arguments of a call are an object, given as one or as its text; none at all are an empty one."""
    assert Answer().call('1', 'price', arguments) == ToolCalled('1', 'price', read)


@pytest.mark.parametrize('arguments', ['{', '[1]', '"x"', 'null', '{"a": 1} {', '[' * 100_000])
def test_arguments_that_are_none(arguments: str) -> None:
    """Arguments that are no JSON object are the model's failure, told without showing them."""
    with pytest.raises(InvalidAnswer) as raised:
        Answer().call('1', 'price', arguments)
    assert str(raised.value) == "the arguments of its call of 'price' are no JSON object"
    assert raised.value.text == arguments


def test_an_answer_in_which_there_is_nothing() -> None:
    """An empty or blank answer is a failure, unless a tool is called; one that was refused refuses the turn."""
    for pieces in ([], [' ', '\n']):
        answer = Answer()
        _said(answer, *pieces)
        with pytest.raises(BackendError, match='empty'):
            list(answer.stopped('end_turn', 'm'))
    with pytest.raises(BackendError, match='max_tokens'):
        list(Answer().stopped('max_tokens', 'm'))
    with pytest.raises(TurnRefused):
        list(Answer().stopped('refusal', 'm'))


def test_why_it_stopped() -> None:
    """A reason is passed on as it is, but an answer with calls has stopped to have them made."""
    answer = Answer()
    _said(answer, 'Well')
    assert list(answer.stopped('pause_turn', 'm')) == [Stopped('pause_turn', 'm')]
    answer.call('1', 'price', {})
    assert list(answer.stopped('end_turn', 'm')) == [Stopped('tool_use', 'm')]
    assert list(answer.stopped('max_tokens', 'm')) == [Stopped('max_tokens', 'm')]
