"""How what was found by meaning and by words becomes one list."""

from datetime import date

import pytest

from trading_agent.cli.semantic_search import content_words, joined
from trading_agent.index.results import Hit


def hit(number: int, text: str, *, marks: list[tuple[int, int]] | None = None) -> Hit:
    """Returns a message that was found."""
    return Hit('main', '2026-10-19-1', date(2026, 10, 19), number, '', 'user', '', text, text, marks or [], 1.0)


NEAR = [hit(number, f'text {number}') for number in range(1, 9)]


def numbers(found: list[Hit]) -> list[int]:
    """Returns which messages were found, in order."""
    return [one.number for one in found]


def test_without_words_the_meaning_alone_decides() -> None:
    """Where no message has a word of the query, the order is that of the meaning."""
    assert numbers(joined('quick fox', NEAR, [])) == list(range(1, 9))


def test_a_message_with_all_words_comes_first() -> None:
    """A symbol or an amount, which has no meaning, is found by its letters."""
    found = joined('16.53 Cr', NEAR, [hit(20, 'the value is 16.53 Cr (Rupees)', marks=[(13, 21)])])
    assert numbers(found)[0] == 20
    assert found[0].marks == [(13, 21)]
    assert numbers(joined('newgen', NEAR, [hit(21, 'NEWGEN: order')]))[0] == 21


def test_a_word_alone_does_not_push_the_meaning_away() -> None:
    """A message that has only some words stays behind those that are near; one that is near too moves up."""
    some = [hit(30, 'the fox'), hit(31, 'a fox'), hit(6, 'text fox')]
    assert numbers(joined('quick fox', NEAR, some)) == [1, 2, 6, 3, 4, 5, 7, 8, 30, 31]


def test_each_message_is_there_once_with_a_score_that_falls() -> None:
    """A message that was found in both ways is there once, with its match marked; scores go down the list."""
    found = joined('text 2', NEAR, [hit(2, 'text 2', marks=[(0, 4)])])
    assert sorted(numbers(found)) == list(range(1, 9))
    assert next(one for one in found if one.number == 2).marks == [(0, 4)]
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ('query', 'expected'),
    [
        ('what is the price of ABC?', 'price ABC?'),
        ('Who, and why?', 'Who, and why?'),
        ('M&M on the rise', 'M&M rise'),
        ('', ''),
    ],
)
def test_words_that_say_nothing_are_not_looked_for(query: str, expected: str) -> None:
    """Function words do not count as words of the query, unless there are no others."""
    assert content_words(query) == expected
